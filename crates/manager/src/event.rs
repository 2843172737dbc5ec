//! What happened lately, for people: a ring of the last events of this process. It decides nothing.

use std::collections::{BTreeMap, VecDeque};
use weft_api::{EventInfo, Timestamp};
use weft_types::MapVersion;

/// How many events are kept: a busy day of a small fabric, in about 200 KB.
pub(crate) const EVENTS_MAX: usize = 1000;

/// Characters of an event's text: an eviction names each group that it had to leave alone, and there may be
/// thousands.
const WHY_CHARS_MAX: usize = 500;

/// The last events, oldest first.
#[derive(Default)]
pub(crate) struct Events {
    ring: VecDeque<EventInfo>,
    last: u64,
    /// How many there were of each kind.
    counts: BTreeMap<String, u64>,
}

impl Events {
    /// Adds an event; the oldest one leaves if there are too many.
    pub(crate) fn add(&mut self, map: MapVersion, what: &str, mut why: String) {
        tracing::info!(%map, what, why, "event");
        if let Some((end, _)) = why.char_indices().nth(WHY_CHARS_MAX) {
            why.truncate(end);
            why.push_str(" ...");
        }
        if self.ring.len() == EVENTS_MAX {
            self.ring.pop_front();
        }
        self.last += 1;
        *self.counts.entry(what.to_owned()).or_default() += 1;
        let time = Timestamp::from_millis(weft_rt::wall_clock_us() / 1000);
        self.ring.push_back(EventInfo { seq: self.last, time, map, what: what.to_owned(), why });
    }

    /// How many events of each kind there were since the process started.
    pub(crate) fn counts(&self) -> &BTreeMap<String, u64> {
        &self.counts
    }

    /// The newest `limit` events with a number above `after`, oldest first.
    pub(crate) fn newest(&self, after: u64, limit: Option<u32>) -> Vec<EventInfo> {
        let wanted = self.ring.iter().filter(|e| e.seq > after).count();
        let skip = limit.map_or(0, |limit| wanted.saturating_sub(limit as usize));
        self.ring.iter().filter(|e| e.seq > after).skip(skip).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_newest() {
        weft_rt::sim::Sim::new(1).block_on(async {
            let mut events = Events::default();
            for i in 1..=EVENTS_MAX as u64 + 5 {
                events.add(MapVersion(i), "test", String::new());
            }
            let all = events.newest(0, None);
            assert_eq!((all.len(), all[0].seq), (EVENTS_MAX, 6));
            assert_eq!(events.counts()["test"], EVENTS_MAX as u64 + 5);
            let last: Vec<u64> = events.newest(1000, Some(2)).iter().map(|e| e.seq).collect();
            assert_eq!(last, [1004, 1005]);
            assert!(events.newest(1005, None).is_empty());
            events.add(MapVersion(1), "test", "\u{e4}".repeat(10_000));
            assert_eq!(events.newest(1005, None)[0].why.chars().count(), WHY_CHARS_MAX + 4);
        });
    }
}
