//! A client's attach: versions it gives out, and the watermark below which all of them are complete.

use crate::error::ClientError;
use crate::fabric::Shared;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_rt::sync::Notify;
use weft_rt::{Instant, sleep, spawn, wall_clock_us};
use weft_types::limits::WATERMARK_LAG_MAX;
use weft_types::{AttachMode, DriveId, Generation, GroupId, SessionId, SessionSlot, Version, VolumeId};
use weft_wire::Kind;
use weft_wire::data::{WatermarkNote, clock_counter};

/// How long a finished write may stay unknown to replicas when nothing else is sent to them: readers of it
/// take the slow path until then.
const WATERMARK_DELAY: Duration = Duration::from_millis(1);

/// Why a session is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Fenced,
    Over,
}

/// The versions of one session in one group.
#[derive(Default)]
struct GroupVersions {
    /// The highest counter seen or given out.
    counter: u64,
    /// Counters given out above the watermark, and whether their operation is complete.
    issued: BTreeMap<u64, bool>,
    /// All writes up to this counter are complete.
    watermark: u64,
    /// Which watermark each replica was last sent.
    told: BTreeMap<DriveId, u64>,
}

/// A client's attach to a volume.
pub(crate) struct Session {
    pub(crate) fabric: Rc<Shared>,
    pub(crate) id: SessionId,
    pub(crate) slot: SessionSlot,
    pub(crate) volume: VolumeId,
    pub(crate) volume_name: String,
    pub(crate) mode: AttachMode,
    pub(crate) generation: Generation,
    groups: RefCell<BTreeMap<GroupId, GroupVersions>>,
    /// By how many counter steps the targets' hybrid clocks are ahead of this machine's.
    clock_ahead: Cell<u64>,
    ended: Cell<Option<Ended>>,
    /// A watermark moved, or the session ended.
    moved: Notify,
    telling: Cell<bool>,
    /// Drives that refused a write for want of space, and until when they are asked first.
    pub(crate) full: RefCell<BTreeMap<DriveId, Instant>>,
    /// What the last attempt in a group met, for people.
    pub(crate) trouble: RefCell<BTreeMap<GroupId, String>>,
    this: Weak<Session>,
}

impl Session {
    pub(crate) fn new(
        fabric: Rc<Shared>,
        session: &weft_types::Session,
        generation: Generation,
        volume_name: &str,
    ) -> Rc<Session> {
        Rc::new_cyclic(|this| Session {
            fabric,
            id: session.id,
            slot: session.slot,
            volume: session.volume,
            volume_name: volume_name.to_owned(),
            mode: session.mode,
            generation,
            groups: RefCell::default(),
            clock_ahead: Cell::new(0),
            ended: Cell::new(None),
            moved: Notify::default(),
            telling: Cell::new(false),
            full: RefCell::default(),
            trouble: RefCell::default(),
            this: this.clone(),
        })
    }

    /// Fails if the session is of no further use.
    pub(crate) fn check(&self) -> Result<(), ClientError> {
        let volume = self.volume_name.clone();
        match self.ended.get() {
            None => Ok(()),
            Some(Ended::Fenced) => Err(ClientError::Fenced { volume }),
            Some(Ended::Over) => Err(ClientError::SessionOver { volume }),
        }
    }

    /// Marks the session as ended; every operation fails from now on.
    pub(crate) fn end(&self, why: Ended) {
        if self.ended.get().is_none() {
            tracing::info!(session = %self.id, volume = self.volume_name, ?why, "session ends");
            self.ended.set(Some(why));
        }
        self.moved.notify_all();
        self.fabric.changed.notify_all();
    }

    /// Begins a write in a group; waits while too many versions are above the watermark.
    pub(crate) async fn begin(&self, group: GroupId) -> Result<Operation<'_>, ClientError> {
        loop {
            let moved = self.moved.notified();
            self.check()?;
            let lag = self.groups.borrow().get(&group).map_or(0, |g| g.issued.len() as u64);
            if lag < WATERMARK_LAG_MAX {
                return Ok(Operation { session: self, group, counters: Vec::new() });
            }
            moved.await;
        }
    }

    /// Notes which watermark a request to this replica carries.
    pub(crate) fn carries_watermark(&self, group: GroupId, drive: DriveId) -> Version {
        let mut groups = self.groups.borrow_mut();
        let g = groups.entry(group).or_default();
        g.told.insert(drive, g.watermark);
        Version::new(g.watermark, self.slot)
    }

    /// Raises the session's counter above a version that it has seen.
    pub(crate) fn saw_version(&self, group: GroupId, version: Version) {
        let mut groups = self.groups.borrow_mut();
        let g = groups.entry(group).or_default();
        g.counter = g.counter.max(version.counter());
    }

    /// Notes a target's clock.
    pub(crate) fn saw_clock(&self, clock: u64) {
        let ahead = clock.saturating_sub(clock_counter(wall_clock_us()));
        if ahead > self.clock_ahead.get() {
            self.clock_ahead.set(ahead);
        }
    }

    fn issue(&self, group: GroupId) -> u64 {
        let clock = clock_counter(wall_clock_us()) + self.clock_ahead.get();
        let mut groups = self.groups.borrow_mut();
        let g = groups.entry(group).or_default();
        g.counter = clock.max(g.counter + 1);
        g.issued.insert(g.counter, false);
        g.counter
    }

    fn complete(&self, group: GroupId, counters: &[u64]) {
        {
            let mut groups = self.groups.borrow_mut();
            let g = groups.get_mut(&group).expect("versions were given out in it");
            for counter in counters {
                *g.issued.get_mut(counter).expect("a counter is completed once") = true;
            }
            while let Some(first) = g.issued.first_entry().filter(|e| *e.get()) {
                g.watermark = first.remove_entry().0;
            }
        }
        self.moved.notify_all();
        self.tell_later();
    }

    /// Sends watermarks that no request has carried, a little later.
    fn tell_later(&self) {
        if self.telling.replace(true) {
            return;
        }
        let this = self.this.clone();
        spawn(async move {
            sleep(WATERMARK_DELAY).await;
            if let Some(session) = this.upgrade() {
                session.telling.set(false);
                session.tell_watermarks().await;
            }
        });
    }

    /// Sends every replica the watermarks that it has not been sent.
    pub(crate) async fn tell_watermarks(&self) {
        let mut notes: BTreeMap<DriveId, Vec<WatermarkNote>> = BTreeMap::new();
        {
            let mut groups = self.groups.borrow_mut();
            for (group, g) in groups.iter_mut() {
                let Some(entry) = self.fabric.entry(*group) else { continue };
                for drive in entry.write_set() {
                    if g.told.get(&drive).copied().unwrap_or(0) == g.watermark {
                        continue;
                    }
                    g.told.insert(drive, g.watermark);
                    notes.entry(drive).or_default().push(WatermarkNote {
                        drive,
                        group: *group,
                        epoch: entry.epoch,
                        volume: self.volume,
                        generation: self.generation,
                        session: self.id,
                        watermark: Version::new(g.watermark, self.slot),
                    });
                }
            }
        }
        for (drive, notes) in notes {
            // A lost note only leaves an entry open a little longer.
            if let Ok(link) = self.fabric.link(drive).await {
                for part in notes.chunks(WatermarkNote::NOTES_MAX) {
                    link.cast(Kind::Watermark, &WatermarkNote::encode_all(part));
                }
            }
        }
    }
}

/// A write in progress: holds the watermark below its first version until it is finished. Dropping it
/// unfinished holds the watermark for the rest of the session, since nobody knows what became of the write.
pub(crate) struct Operation<'a> {
    session: &'a Session,
    group: GroupId,
    counters: Vec<u64>,
}

impl Operation<'_> {
    /// A version above every one that this session has seen in the group.
    pub(crate) fn next_version(&mut self) -> Version {
        let counter = self.session.issue(self.group);
        self.counters.push(counter);
        Version::new(counter, self.session.slot)
    }

    /// The write is complete on the whole write set, or certainly took effect nowhere.
    pub(crate) fn finish(self) {
        self.session.complete(self.group, &self.counters);
    }
}
