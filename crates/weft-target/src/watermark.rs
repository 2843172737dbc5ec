//! Watermarks that came alone and met a closed gate: they wait until it is open.
//!
//! It owns how many wait: of each session in each group on each drive the newest, and no more than a limit
//! in all. What is beyond it is dropped, as is what is refused: it only leaves entries open a little
//! longer. It never judges a note.

use crate::admit::{Admitted, Claim, Refusal, SYSTEM_SESSION};
use crate::target::Target;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use weft_rpc::{Answer, Request};
use weft_types::limits::WATERMARKS_WAITING_MAX;
use weft_types::{DriveId, GroupId, SessionId};
use weft_wire::Status;
use weft_wire::data::WatermarkNote;

/// Whose watermark it is, and where.
type NoteKey = (DriveId, GroupId, SessionId);

fn key_of(note: &WatermarkNote) -> NoteKey {
    (note.drive, note.group, note.session)
}

/// The notes that wait, each with a task that waits for it.
#[derive(Default)]
pub(crate) struct WaitingWatermarks(RefCell<BTreeMap<NoteKey, WatermarkNote>>);

impl WaitingWatermarks {
    /// Keeps a note until its gate is open. Whether it needs a task that waits: not if an older note of its
    /// kind has one, whose place it takes, and not if it is dropped.
    fn keep(&self, note: WatermarkNote) -> bool {
        let mut waiting = self.0.borrow_mut();
        let is_full = waiting.len() >= WATERMARKS_WAITING_MAX;
        match waiting.entry(key_of(&note)) {
            Entry::Occupied(mut held) => {
                if held.get().watermark <= note.watermark {
                    held.insert(note);
                }
                false
            }
            Entry::Vacant(_) if is_full => false,
            Entry::Vacant(place) => {
                place.insert(note);
                true
            }
        }
    }

    fn newest(&self, key: &NoteKey) -> Option<WatermarkNote> {
        self.0.borrow().get(key).copied()
    }

    /// Forgets a note, unless a newer one has taken its place.
    fn end(&self, note: &WatermarkNote) {
        let mut waiting = self.0.borrow_mut();
        if waiting.get(&key_of(note)) == Some(note) {
            waiting.remove(&key_of(note));
        }
    }
}

impl Target {
    /// Takes watermarks that came alone. A note that is refused is dropped: it only leaves entries open a
    /// little longer. A note that meets a closed gate waits for it: its client may be idle from then on,
    /// and not repeat it.
    pub(crate) fn take_watermarks(&self, request: &Request) -> Answer {
        let notes = match WatermarkNote::decode_all(&request.head) {
            Ok(notes) => notes,
            Err(error) => return Answer::error(Status::Invalid, error.to_string()),
        };
        for note in notes.into_iter().filter(|note| note.session != SYSTEM_SESSION) {
            let claim = Claim::of_note(&note);
            // Refused or not, one of an open session says that its client is alive.
            if self.is_listed(&claim) {
                self.meters.hear(note.session, note.volume, self.map().as_deref());
            }
            match self.check(&claim) {
                Ok(admitted) => advance_to(&admitted, &note),
                Err(Refusal::Answer(_)) => {}
                Err(Refusal::GateClosed(_) | Refusal::NewGeneration(..)) => {
                    if self.waiting_watermarks.keep(note) {
                        let target = self.shared();
                        self.background(async move { target.take_when_open(key_of(&note)).await });
                    }
                }
            }
        }
        Answer::ok(vec![], vec![])
    }

    /// Takes the newest note of its kind once the gate is open.
    async fn take_when_open(&self, key: NoteKey) {
        while let Some(note) = self.waiting_watermarks.newest(&key) {
            if let Ok(admitted) = self.admit(&Claim::of_note(&note)).await {
                advance_to(&admitted, &note);
            }
            self.waiting_watermarks.end(&note);
        }
    }
}

/// Raises the watermark that an admitted note names.
fn advance_to(admitted: &Admitted, note: &WatermarkNote) {
    admitted.drive().store.advance(note.group, note.watermark.slot(), note.watermark);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;
    use weft_rt::sim::{Sim, SimDisk, spawn_process};
    use weft_rt::{Addr, Buf, Landing, now, sleep};
    use weft_store::{FormatOptions, OpenOptions, Store};
    use weft_types::{
        Epoch, FabricId, Generation, Group, MapVersion, PoolId, Role, SessionSlot, Slot, Version, VolumeId,
    };
    use weft_wire::Kind;

    const DRIVE: DriveId = DriveId(1);
    const GROUP: GroupId = GroupId(1);

    fn note(session: u16, watermark: u64) -> WatermarkNote {
        WatermarkNote {
            drive: DRIVE,
            group: GROUP,
            epoch: Epoch(1),
            volume: VolumeId(1),
            generation: Generation(0),
            session: SessionId(session.into()),
            watermark: Version::new(watermark, SessionSlot(session)),
        }
    }

    #[test]
    fn only_the_newest_of_each_kind_waits_and_there_is_a_limit() {
        let waiting = WaitingWatermarks::default();
        assert!(waiting.keep(note(1, 5)) && !waiting.keep(note(1, 7)) && !waiting.keep(note(1, 6)));
        assert_eq!(waiting.newest(&key_of(&note(1, 0))), Some(note(1, 7)));
        waiting.end(&note(1, 5));
        assert_eq!(waiting.newest(&key_of(&note(1, 0))), Some(note(1, 7)), "a newer one has come since");
        for session in 2..=u16::try_from(WATERMARKS_WAITING_MAX).unwrap() {
            assert!(waiting.keep(note(session, 1)));
        }
        assert!(!waiting.keep(note(u16::MAX, 1)), "there is no room for another session");
        assert!(!waiting.keep(note(2, 9)), "one that waits already has its task");
        assert_eq!(waiting.newest(&key_of(&note(2, 0))), Some(note(2, 9)));
        waiting.end(&note(1, 7));
        assert!(waiting.keep(note(u16::MAX, 1)));
    }

    /// A client may send a note each millisecond, and the gate may be closed for as long as a drive takes.
    #[test]
    fn notes_at_a_closed_gate_take_one_task_for_each_session_and_the_newest_counts() {
        Sim::new(1).block_on(async {
            let is_over = Rc::new(Cell::new(false));
            let over = is_over.clone();
            spawn_process([10, 0, 0, 1].into(), "target", async move {
                let disk = SimDisk::new("d", 64 << 20);
                let drive = disk.open().unwrap();
                Store::format(&drive, FormatOptions::new(FabricId(7), DRIVE)).await.unwrap();
                let (store, _) = Store::open(drive, OpenOptions::default()).await.unwrap();
                let slots = vec![Slot { drive: DRIVE, role: Role::InSync, since: Epoch(1) }];
                let entry =
                    Group { id: GROUP, pool: PoolId(1), epoch: Epoch(1), slots, floor: Default::default() };
                store.set_group(entry).await.unwrap();
                let addr: Addr = "10.0.0.1:4800".parse().unwrap();
                let options = crate::TargetOptions {
                    node_name: "n1".into(),
                    fabric: FabricId(7),
                    listen: addr.clone(),
                    managers: vec![addr],
                    thread: crate::TargetThread::only(),
                };
                let target = Target::start(options, vec![("d".into(), store.clone())]);
                let lease = Duration::from_secs(10);
                target.lease.grant(now(), lease, MapVersion(0), vec![], MapVersion(0));
                let member = target.member(DRIVE, GROUP).unwrap();
                let gate = member.close_gate();
                let before = target.background_tasks();
                for n in 1..=1000 {
                    for session in [1, 2] {
                        let request = Request {
                            kind: Kind::Watermark,
                            number: 0,
                            head: Buf::from(WatermarkNote::encode_all(&[note(session, n)])),
                            body: Buf::empty(),
                            one_way: true,
                            landing: Landing::default(),
                        };
                        target.take_watermarks(&request);
                    }
                }
                assert_eq!(target.background_tasks() - before, 2);
                gate.open(None);
                sleep(Duration::from_millis(1)).await;
                for session in [1, 2] {
                    let held = store.watermark(GROUP, SessionSlot(session));
                    assert_eq!(held, note(session, 1000).watermark);
                }
                assert!(target.waiting_watermarks.0.borrow().is_empty());
                over.set(true);
            });
            sleep(Duration::from_secs(1)).await;
            assert!(is_over.get(), "it came to its end");
        });
    }
}
