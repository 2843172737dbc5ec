//! What happened, as the marks of a chart: the events that matter to who looks at throughput and latency, told
//! together where many are about one thing.
//!
//! It owns the choice. Events come as the manager worded them; that all copies are up to date again is seen from
//! the intervals, because no single event says it.

use super::record::Record;
use serde::Serialize;
use weft_api::{EventInfo, Timestamp};

/// Events of one kind within this time of each other are one mark: the steps of one repair are commits of the manager
/// one after another, some milliseconds apart.
const TOGETHER_MS: u64 = 3_000;

/// Characters of a mark's text.
const TEXT_CHARS_MAX: usize = 160;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Mark {
    pub(super) time: Timestamp,
    /// Seconds since the record's beginning.
    pub(super) at_s: f64,
    pub(super) what: String,
}

/// Everything that is to be marked, in order of time.
pub(super) fn marks(record: &Record) -> Vec<Mark> {
    let begin_ms = record.begin_ms();
    let mut runs: Vec<Run<'_>> = Vec::new();
    for event in record.intervals.iter().flat_map(|i| &i.events).filter(|e| is_marked(&e.what)) {
        let before = runs.iter_mut().rfind(|run| run.first.what == event.what);
        match before.filter(|run| run.goes_on_with(event)) {
            Some(run) => (run.count, run.last) = (run.count + 1, event.time),
            None => runs.push(Run { first: event, count: 1, last: event.time }),
        }
    }
    let mut marks: Vec<(Timestamp, String)> = runs.iter().map(|run| (run.first.time, run.text())).collect();
    marks.extend(ends_of_repair(record).map(|time| (time, "all copies are up to date again".to_owned())));
    marks.sort_by_key(|(time, _)| *time);
    let at_s = |time: Timestamp| time.as_millis().saturating_sub(begin_ms) as f64 / 1000.0;
    marks.into_iter().map(|(time, what)| Mark { time, at_s: at_s(time), what }).collect()
}

/// Events of one kind that are one thing to people.
struct Run<'a> {
    first: &'a EventInfo,
    count: usize,
    last: Timestamp,
}

impl Run<'_> {
    fn goes_on_with(&self, event: &EventInfo) -> bool {
        let is_near = event.time.as_millis() <= self.last.as_millis() + TOGETHER_MS;
        let is_same = match event.what.as_str() {
            // The same drives leave their groups one after another.
            "evict" => subject(&self.first.why) == subject(&event.why),
            what => GATHERED.contains(&what),
        };
        is_near && is_same
    }

    fn text(&self) -> String {
        match (self.first.what.as_str(), self.count) {
            ("rebuild", n) => format!("{} rebuilt on other drives", copies(n)),
            ("begin-relocation", n) => format!("{} passing to other drives", copies(n)),
            ("evict", _) => format!("{} from its groups", subject(&self.first.why)),
            (_, 1) => clip(&self.first.why),
            (_, n) => format!("{}, and {} more", clip(&self.first.why), n - 1),
        }
    }
}

fn copies(count: usize) -> String {
    if count == 1 { "1 copy is".into() } else { format!("{count} copies are") }
}

/// Of the text of an eviction, who is evicted; what groups there are and why is for the list of events.
fn subject(why: &str) -> &str {
    why.split_once(" from ").map_or(why, |(subject, _)| subject)
}

/// Kinds of events of which several within a short time are one thing to people.
const GATHERED: &[&str] =
    &["add-drive", "begin-relocation", "join-node", "rebuild", "scrub-disagree", "scrub-lost"];

/// Events that are worth a mark: not the steps of repairs, and not clients that come and go.
const MARKED: &[&str] = &[
    "add-drive",
    "begin-delete",
    "begin-relocation",
    "create-volume",
    "data-available",
    "data-unavailable",
    "drain-drive",
    "drive-absent",
    "drive-back",
    "drive-foreign",
    "drive-left-out",
    "drive-refused",
    "evict",
    "fabric-stop",
    "fail-drive",
    "grow-volume",
    "join-node",
    "manager-started",
    "map-backup-failed",
    "map-backup-kept",
    "node-foreign",
    "node-suspected",
    "note",
    "rebuild",
    "rebuild-goes-on",
    "rebuild-waits-for-room",
    "rejoin",
    "remove-drive",
    "remove-node",
    "replace",
    "restore-drive",
    "scrub-begun",
    "scrub-disagree",
    "scrub-ended",
    "scrub-lost",
    "scrub-not-healed",
    "store-is-old",
    "target-suspected",
];

fn is_marked(what: &str) -> bool {
    MARKED.contains(&what)
}

/// When the last copy that was missing or behind was there again.
fn ends_of_repair(record: &Record) -> impl Iterator<Item = Timestamp> {
    let pairs = record.intervals.windows(2);
    pairs.filter(|pair| pair[0].copies_behind > 0 && pair[1].copies_behind == 0).map(|pair| pair[1].time)
}

fn clip(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{} ...", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{event, seconds};
    use super::*;

    fn told(record: &Record) -> Vec<(f64, String)> {
        marks(record).into_iter().map(|m| (m.at_s, m.what)).collect()
    }

    #[test]
    fn steps_of_one_repair_are_one_mark_and_its_end_is_seen() {
        let mut record = seconds(10);
        let events: Vec<EventInfo> = vec![
            event(1_002_100, "note", "pulled"),
            event(1_002_500, "fail-drive", "drive aa failed"),
            event(1_003_000, "rebuild", "group 1"),
            event(1_003_001, "promote", "never told"),
            event(1_003_001, "evict", "evicted drive aa from 2 groups; left as they were: g7"),
            event(1_003_002, "rebuild", "group 2"),
            event(1_003_003, "evict", "evicted drive aa from 1 groups"),
            event(1_009_002, "rebuild", "group 3: later"),
            event(1_009_003, "open-session", "never told"),
        ];
        record.intervals[9].events = events;
        (3..7).for_each(|i| record.intervals[i].copies_behind = 2);
        let expected = [
            (2.1, "pulled"),
            (2.5, "drive aa failed"),
            (3.0, "2 copies are rebuilt on other drives"),
            (3.001, "evicted drive aa from its groups"),
            (8.0, "all copies are up to date again"),
            (9.002, "1 copy is rebuilt on other drives"),
        ];
        assert_eq!(told(&record), expected.map(|(at, what)| (at, what.to_owned())));
    }

    #[test]
    fn notes_are_told_one_by_one_and_long_ones_are_cut() {
        let mut record = seconds(1);
        record.intervals[0].events =
            vec![event(1_000_100, "note", "a"), event(1_000_200, "note", &"b".repeat(900))];
        let told = told(&record);
        assert_eq!((told.len(), told[0].1.as_str()), (2, "a"));
        assert!(told[1].1.len() < 200 && told[1].1.ends_with(" ..."));
    }
}
