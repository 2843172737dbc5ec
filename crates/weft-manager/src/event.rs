//! What happened, for people: the last events of the fabric, in the order of their numbers.
//!
//! It owns the list, its bounds, and what of it is not in the store yet. The store keeps it across restarts.
//! It decides nothing, and nothing is decided by it.

use crate::index::Index;
use crate::manager::wall_clock_ms;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_api::{EventFilter, EventInfo, Timestamp};
use weft_membership::Reason;
use weft_types::limits::{EVENT_CHARS_MAX, EVENT_SUBJECTS_MAX, EVENTS_MAX, FRAME_BODY_MAX};
use weft_types::{DriveId, FabricMap, GroupId, MapVersion, TargetId, VolumeId};

/// Bytes of an event as JSON besides its texts: names of fields, numbers, punctuation.
const EVENT_FRAME_BYTES: usize = 300;

/// Who decides where nobody has asked.
const OWN_ACCORD: &str = "manager";

/// What an event is filed under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subjects {
    volumes: BTreeSet<String>,
    nodes: BTreeSet<String>,
    drives: BTreeSet<DriveId>,
}

impl Subjects {
    /// A node, by name.
    pub(crate) fn node(name: &str) -> Subjects {
        Subjects::default().and_node(name)
    }

    /// What a trouble names.
    pub(crate) fn named(
        volumes: impl IntoIterator<Item = String>,
        node: Option<String>,
        drive: Option<DriveId>,
    ) -> Subjects {
        Subjects {
            volumes: volumes.into_iter().collect(),
            nodes: node.into_iter().collect(),
            drives: drive.into_iter().collect(),
        }
    }

    /// A node, by name, besides.
    pub(crate) fn and_node(mut self, name: &str) -> Subjects {
        self.nodes.insert(name.to_owned());
        self
    }

    /// Drives with the nodes that they are on.
    pub(crate) fn drives(map: &FabricMap, drives: impl IntoIterator<Item = DriveId>) -> Subjects {
        Subjects::default().and_drives(map, drives)
    }

    /// Drives with the nodes that they are on, besides.
    pub(crate) fn and_drives(
        mut self,
        map: &FabricMap,
        drives: impl IntoIterator<Item = DriveId>,
    ) -> Subjects {
        for drive in drives {
            let node = map.drives.get(&drive).and_then(|d| map.nodes.get(&d.node));
            self.nodes.extend(node.map(|n| n.name.clone()));
            self.drives.insert(drive);
        }
        self
    }

    /// The volumes with objects in these groups, besides: as many as an event names.
    pub(crate) fn and_groups(
        mut self,
        (map, index): (&FabricMap, &Index),
        groups: impl IntoIterator<Item = GroupId>,
    ) -> Self {
        let volumes = index.volumes_in(groups).first(EVENT_SUBJECTS_MAX);
        let names = volumes.iter().filter_map(|id| map.volumes.get(id)).map(|v| v.name.clone());
        self.volumes.extend(names);
        self
    }

    /// A volume, besides.
    pub(crate) fn and_volume(mut self, map: &FabricMap, volume: VolumeId) -> Subjects {
        self.volumes.extend(map.volumes.get(&volume).map(|v| v.name.clone()));
        self
    }

    /// The node of a target.
    pub(crate) fn target(map: &FabricMap, target: TargetId) -> Subjects {
        map.node_of(target).map_or_else(Subjects::default, |node| Subjects::node(&node.name))
    }

    /// What a change was about; what it removed is in the map before it only. The index is of either map.
    pub(crate) fn of(reason: &Reason, old: &FabricMap, new: &FabricMap, index: &Index) -> Subjects {
        let none = Subjects::default();
        match reason {
            Reason::NodeJoined { name, .. } | Reason::NodeRemoved { name, .. } => Subjects::node(name),
            Reason::TargetAdded { target, .. } | Reason::TargetMoved { target, .. } => {
                Subjects::target(new, *target)
            }
            Reason::TargetRemoved { target, .. } => Subjects::target(old, *target),
            Reason::DriveAdded { drive, .. }
            | Reason::DeviceFound { drive, .. }
            | Reason::DriveAssigned { drive, .. }
            | Reason::DriveDraining { drive, .. }
            | Reason::DriveRestored { drive } => Subjects::drives(new, [*drive]),
            Reason::DriveFailed { drive, emptied, .. } => {
                Subjects::drives(new, std::iter::once(*drive).chain(emptied.iter().copied()))
            }
            Reason::LossAccepted { destroyed, older, emptied, .. } => {
                Subjects::drives(new, destroyed.iter().copied())
                    .and_groups((new, index), older.iter().chain(emptied).copied())
            }
            Reason::DriveRemoved { drive } => Subjects::drives(old, [*drive]),
            Reason::Evicted { drives, groups, .. }
            | Reason::Demoted { drives, groups, .. }
            | Reason::Departed { drives, groups }
            | Reason::Rejoined { drives, groups } => {
                Subjects::drives(new, drives.iter().copied()).and_groups((new, index), groups.iter().copied())
            }
            Reason::Promoted { group, drive, .. } => {
                Subjects::drives(new, [*drive]).and_groups((new, index), [*group])
            }
            Reason::Rebuilding { group, from, to }
            | Reason::RelocationBegun { group, from, to }
            | Reason::HandedOver { group, from, to }
            | Reason::Relocated { group, from, to }
            | Reason::RelocationCancelled { group, from, to } => {
                Subjects::drives(new, [*from, *to]).and_groups((new, index), [*group])
            }
            Reason::MemberKept { group, lost, stays } => {
                Subjects::drives(new, [*lost, *stays]).and_groups((new, index), [*group])
            }
            Reason::Replaced { from, to, groups, .. } => {
                Subjects::drives(new, [*from, *to]).and_groups((new, index), groups.iter().copied())
            }
            Reason::FileSystemCreated { file_system: volume, .. }
            | Reason::FileSystemGrown { file_system: volume, .. }
            | Reason::ServersNamed { file_system: volume, .. }
            | Reason::VolumeCreated { volume, .. }
            | Reason::VolumeGrown { volume, .. }
            | Reason::VolumeDeleting { volume, .. }
            | Reason::SessionOpened { volume, .. }
            | Reason::SessionOver { volume, .. }
            | Reason::SessionSwept { volume, .. } => none.and_volume(new, *volume),
            Reason::VolumeDeleted { volume, .. } => none.and_volume(old, *volume),
            Reason::FloorsRaised { groups } => none.and_groups((new, index), groups.iter().copied()),
            Reason::PoolCreated { .. }
            | Reason::ScrubWanted { .. }
            | Reason::ScrubStopped { .. }
            | Reason::ScrubScheduled { .. }
            | Reason::Scrubbed { .. }
            | Reason::SettingsChanged { .. } => none,
        }
    }
}

/// The last events, in order.
#[derive(Default)]
pub(crate) struct Events {
    ring: VecDeque<EventInfo>,
    last: u64,
    /// How many there were of each kind.
    counts: BTreeMap<String, u64>,
    /// The number of the newest one that is in the store.
    written: u64,
}

impl Events {
    /// Those that a store has kept, by their numbers. What this program cannot read is left out, but its
    /// number is not given again.
    pub(crate) fn kept(stored: &[(u64, Vec<u8>)]) -> Events {
        let mut events = Events::default();
        for (number, bytes) in stored {
            events.last = events.last.max(*number);
            events.written = events.last;
            match serde_json::from_slice::<EventInfo>(bytes) {
                Ok(event) => events.ring.push_back(EventInfo { seq: *number, ..event }),
                Err(error) => tracing::warn!(number, %error, "an event in the store cannot be read"),
            }
        }
        events
    }

    /// The latest time that an event carries, in milliseconds since 1970-01-01T00:00:00Z.
    pub(crate) fn latest_ms(&self) -> u64 {
        self.ring.iter().map(|e| e.time.as_millis()).max().unwrap_or(0)
    }

    /// The next event, without adding it.
    pub(crate) fn next(
        &self,
        who: Option<&str>,
        map: MapVersion,
        what: &str,
        why: &str,
        about: Subjects,
    ) -> EventInfo {
        let mut why = why.to_owned();
        if let Some((end, _)) = why.char_indices().nth(EVENT_CHARS_MAX) {
            why.truncate(end);
            why.push_str(" ...");
        }
        let time = Timestamp::from_millis(wall_clock_ms());
        let back_ms = self.ring.back().map_or(0, |e| e.time.as_millis().saturating_sub(time.as_millis()));
        EventInfo {
            seq: self.last + 1,
            time,
            clock_back_ms: Some(back_ms).filter(|ms| *ms > 0),
            map,
            who: who.unwrap_or(OWN_ACCORD).to_owned(),
            what: what.to_owned(),
            why,
            volumes: about.volumes.into_iter().take(EVENT_SUBJECTS_MAX).collect(),
            nodes: about.nodes.into_iter().take(EVENT_SUBJECTS_MAX).collect(),
            drives: about.drives.into_iter().take(EVENT_SUBJECTS_MAX).collect(),
        }
    }

    /// Adds an event; the oldest one leaves if there are too many.
    pub(crate) fn add(&mut self, event: EventInfo) {
        tracing::info!(map = %event.map, who = event.who, what = event.what, why = event.why, "event");
        weft_rt::sim::tell(|| format!("{} {}: {}", event.map, event.what, event.why));
        if self.ring.len() == EVENTS_MAX {
            self.ring.pop_front();
        }
        self.last = event.seq;
        *self.counts.entry(event.what.clone()).or_default() += 1;
        self.ring.push_back(event);
    }

    /// How many events of each kind there were since the process started.
    pub(crate) fn counts(&self) -> &BTreeMap<String, u64> {
        &self.counts
    }

    /// Those that are not in the store yet and tell of no later map than this one, as the store takes them.
    pub(crate) fn unwritten(&self, map: MapVersion) -> Vec<(u64, Vec<u8>)> {
        let count = usize::try_from(self.last - self.written).unwrap_or(usize::MAX);
        let newer = self.ring.iter().skip(self.ring.len().saturating_sub(count));
        newer.take_while(|event| event.map <= map).map(as_stored).collect()
    }

    /// Those up to this number are in the store.
    pub(crate) fn note_written(&mut self, number: u64) {
        self.written = self.written.max(number);
    }

    /// The newest `limit` events with a number above `after` that pass, in order; no more than one answer
    /// carries.
    pub(crate) fn newest(&self, after: u64, limit: Option<u32>, filter: &EventFilter) -> Vec<EventInfo> {
        let mut bytes = 0;
        let fits = |event: &&EventInfo| {
            bytes += size(event);
            bytes <= FRAME_BODY_MAX / 2
        };
        let wanted = self.ring.iter().rev().take_while(|e| e.seq > after).filter(|e| filter.passes(e));
        let limit = limit.map_or(usize::MAX, |limit| limit as usize);
        let mut newest: Vec<EventInfo> = wanted.take(limit).take_while(fits).cloned().collect();
        newest.reverse();
        newest
    }
}

/// The number of the newest of these events; 0 for none.
pub(crate) fn written_with(events: &[(u64, Vec<u8>)]) -> u64 {
    events.last().map_or(0, |(number, _)| *number)
}

/// An event as the store takes it.
fn as_stored(event: &EventInfo) -> (u64, Vec<u8>) {
    (event.seq, serde_json::to_vec(event).expect("an event serialises"))
}

/// About how many bytes an event takes in an answer.
fn size(event: &EventInfo) -> usize {
    let names: usize = event.volumes.iter().chain(&event.nodes).map(|name| name.len() + 3).sum();
    EVENT_FRAME_BYTES + event.why.len() + event.who.len() + event.what.len() + names + event.drives.len() * 40
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::sim::{Sim, set_wall_skew, spawn_process};
    use weft_rt::sleep;

    fn add(events: &mut Events, what: &str, why: &str, about: Subjects) {
        let event = events.next(None, MapVersion(1), what, why, about);
        events.add(event);
    }

    fn numbers(events: &[EventInfo]) -> Vec<u64> {
        events.iter().map(|e| e.seq).collect()
    }

    #[test]
    fn the_newest_are_kept_also_across_a_restart() {
        Sim::new(1).block_on(async {
            let mut events = Events::default();
            let none = EventFilter::default();
            for _ in 0..EVENTS_MAX as u64 + 5 {
                add(&mut events, "test", "", Subjects::default());
            }
            let all = events.newest(0, None, &none);
            assert_eq!((all.len(), all[0].seq), (EVENTS_MAX, 6));
            assert_eq!(events.counts()["test"], EVENTS_MAX as u64 + 5);
            let max = EVENTS_MAX as u64;
            assert_eq!(numbers(&events.newest(max, Some(2), &none)), [max + 4, max + 5]);
            assert!(events.newest(max + 5, None, &none).is_empty());
            let stored = events.unwritten(MapVersion(1));
            assert_eq!(stored.len(), EVENTS_MAX);
            assert!(events.unwritten(MapVersion(0)).is_empty(), "their map is not there yet");
            events.note_written(written_with(&stored));
            add(&mut events, "test", &"\u{e4}".repeat(10_000), Subjects::default());
            assert_eq!(events.newest(max + 5, None, &none)[0].why.chars().count(), EVENT_CHARS_MAX + 4);
            let stored: Vec<_> = stored.into_iter().skip(1).chain(events.unwritten(MapVersion(1))).collect();
            let mut kept = Events::kept(&stored);
            assert_eq!(kept.newest(0, None, &none), events.newest(0, None, &none));
            assert!(kept.unwritten(MapVersion(1)).is_empty(), "they come from there");
            add(&mut kept, "test", "", Subjects::default());
            assert_eq!(numbers(&kept.newest(max + 6, None, &none)), [max + 7]);
        });
    }

    #[test]
    fn what_cannot_be_read_is_left_out_and_its_number_is_not_given_again() {
        Sim::new(1).block_on(async {
            let mut events = Events::kept(&[(7, b"{}".to_vec())]);
            add(&mut events, "test", "", Subjects::default());
            assert_eq!(numbers(&events.newest(0, None, &EventFilter::default())), [8]);
        });
    }

    #[test]
    fn all_events_at_their_longest_still_make_an_answer() {
        Sim::new(1).block_on(async {
            let mut events = Events::default();
            for _ in 0..EVENTS_MAX {
                add(&mut events, "test", &"\u{10348}".repeat(EVENT_CHARS_MAX), Subjects::default());
            }
            let some = events.newest(0, None, &EventFilter::default());
            assert_eq!(some.last().map(|e| e.seq), Some(EVENTS_MAX as u64), "the newest");
            assert!(serde_json::to_vec(&some).expect("they serialise").len() < FRAME_BODY_MAX);
        });
    }

    #[test]
    fn a_clock_that_is_set_back_changes_no_order_and_is_told() {
        Sim::new(1).block_on(async {
            let done = std::rc::Rc::new(std::cell::Cell::new(false));
            let over = done.clone();
            let process = spawn_process([10, 0, 0, 1].into(), "manager", async move {
                let mut events = Events::default();
                add(&mut events, "before", "", Subjects::default());
                sleep(std::time::Duration::from_secs(10)).await;
                for _ in 0..2 {
                    add(&mut events, "after", "", Subjects::default());
                }
                let all = events.newest(0, None, &EventFilter::default());
                assert_eq!(numbers(&all), [1, 2, 3]);
                let back: Vec<Option<u64>> = all.iter().map(|e| e.clock_back_ms).collect();
                assert_eq!(back, [None, Some(86_400_000 - 10_000), None]);
                assert!(all[1].time < all[0].time);
                let since = EventFilter { since: Some(all[0].time), ..EventFilter::default() };
                assert_eq!(numbers(&events.newest(0, None, &since)), [1], "by the time that they carry");
                over.set(true);
            });
            sleep(std::time::Duration::from_secs(5)).await;
            set_wall_skew(process, -86_400_000_000);
            sleep(std::time::Duration::from_secs(10)).await;
            assert!(done.get());
        });
    }

    #[test]
    fn filters_look_at_what_an_event_is_about() {
        Sim::new(1).block_on(async {
            let mut events = Events::default();
            let drive = DriveId(0xabcd << 112);
            let about = Subjects {
                volumes: ["data".to_owned()].into(),
                nodes: ["node-1".to_owned(), "node-2".to_owned()].into(),
                drives: [drive].into(),
            };
            add(&mut events, "evict", "", about);
            add(&mut events, "promote", "", Subjects::node("node-2"));
            let found = |filter: EventFilter| numbers(&events.newest(0, None, &filter));
            let none = EventFilter::default();
            assert_eq!(found(EventFilter { node: Some("node-2".into()), ..none.clone() }), [1, 2]);
            assert_eq!(found(EventFilter { node: Some("node".into()), ..none.clone() }), [0; 0]);
            assert_eq!(found(EventFilter { volume: Some("data".into()), ..none.clone() }), [1]);
            assert_eq!(found(EventFilter { drive: Some("ABC".into()), ..none.clone() }), [1]);
            assert_eq!(found(EventFilter { kinds: vec!["promote".into()], ..none.clone() }), [2]);
            assert_eq!(found(EventFilter { kinds: vec!["x".into(), "evict".into()], ..none }), [1]);
        });
    }
}
