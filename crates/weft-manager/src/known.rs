//! Since when which trouble is there, how full each pool was told to be, and what the clock was: kept across restarts
//! of the manager.
//!
//! It owns the memory, and the events about troubles that have no others. It never finds a trouble: `trouble.rs` does.

use crate::event::Subjects;
use crate::manager::Manager;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use weft_api::{Timestamp, Trouble, TroubleKind, WaitsFor};
use weft_rt::{Instant, now};
use weft_types::{CapacityLevel, PoolId};

/// How often it is looked for troubles: what is shorter need not be remembered.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The pause after a look is at least this many times as long as the look took. So a fabric with very many
/// groups does not keep the manager's core busy.
const LOOK_SHARE: u32 = 20;

/// How often the clock is written down: targets allow versions that are an hour ahead of it
/// (`weft_types::limits::VERSION_AHEAD_MAX`), so what was written before a restart is never too far ahead.
const CLOCK_EVERY_MS: u64 = 600_000;

/// Leases for which a new manager process waits for its targets before it takes note of troubles: until they have
/// found it, everything looks lost.
const PATIENCE_LEASES: u32 = 2;

/// Something of which the beginning and the end are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    /// What the event at its end is called.
    ended: String,
    /// What it is about, for people.
    text: String,
    /// How many groups it concerned when that was told last.
    #[serde(default)]
    groups: usize,
}

/// The document that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Memory {
    /// Since when each trouble is there, in milliseconds since 1970-01-01T00:00:00Z.
    #[serde(default)]
    since: BTreeMap<String, u64>,
    /// What was told to have begun.
    #[serde(default)]
    marks: BTreeMap<String, Mark>,
    /// The level of each pool that is not normal.
    #[serde(default)]
    levels: BTreeMap<PoolId, CapacityLevel>,
    /// What the clock was when that was last written down, in milliseconds since 1970-01-01T00:00:00Z.
    #[serde(default)]
    clock_ms: u64,
}

/// Something that is to be told.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    what: String,
    why: String,
    about: Subjects,
}

/// Since when which trouble is there.
#[derive(Default)]
pub(crate) struct KnownTroubles {
    memory: Memory,
    looked_at: Option<Instant>,
    /// How long that took.
    look_took: Duration,
}

impl KnownTroubles {
    /// What a store has kept; a document that cannot be read is none.
    pub(crate) fn kept(stored: Option<&[u8]>) -> KnownTroubles {
        let memory = stored.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
        KnownTroubles { memory, looked_at: None, look_took: Duration::ZERO }
    }

    /// What the clock was when that was last written down, in milliseconds since 1970-01-01T00:00:00Z.
    pub(crate) fn clock_ms(&self) -> u64 {
        self.memory.clock_ms
    }

    /// How full the pool was when that was last looked at.
    pub(crate) fn level(&self, pool: PoolId) -> CapacityLevel {
        self.memory.levels.get(&pool).copied().unwrap_or_default()
    }

    /// The trouble with its true beginning, if it was there before.
    pub(crate) fn with_beginning(&self, trouble: Trouble) -> Trouble {
        match self.memory.since.get(&key(&trouble)) {
            Some(since_ms) => Trouble { since: Timestamp::from_millis(*since_ms), ..trouble },
            None => trouble,
        }
    }

    /// Takes note of what is there now; returns what has begun and what is over.
    fn look(&mut self, troubles: &[Trouble]) -> Vec<Told> {
        let old = std::mem::take(&mut self.memory);
        let mut told = Vec::new();
        for trouble in troubles {
            let key = key(trouble);
            let since_ms = old.since.get(&key).copied().unwrap_or(trouble.since.as_millis());
            self.memory.since.insert(key.clone(), since_ms);
            let Some((began, ended)) = names(trouble) else { continue };
            let groups = trouble.groups;
            let mark = Mark { ended: ended.to_owned(), text: trouble.what.clone(), groups };
            // More data that is unavailable is as much news as the first.
            let is_more = |mark: &Mark| trouble.kind == TroubleKind::DataUnavailable && mark.groups < groups;
            if old.marks.get(&key).is_none_or(is_more) {
                told.push(Told { what: began.to_owned(), why: why(trouble), about: about(trouble) });
            }
            self.memory.marks.insert(key, mark);
        }
        for (key, mark) in old.marks {
            if !self.memory.marks.contains_key(&key) {
                let why = format!("over: {}", mark.text);
                told.push(Told { what: mark.ended, why, about: Subjects::default() });
            }
        }
        (self.memory.levels, self.memory.clock_ms) = (old.levels, old.clock_ms);
        told
    }

    /// Takes note of how full the pools are; returns what is to be told.
    fn look_at_levels(&mut self, levels: &BTreeMap<PoolId, (CapacityLevel, String)>) -> Vec<Told> {
        let mut told = Vec::new();
        for (pool, (level, text)) in levels {
            if *level != self.level(*pool) {
                let what = format!("capacity-{level}");
                told.push(Told { what, why: text.clone(), about: Subjects::default() });
            }
        }
        let is_worth = |level: &CapacityLevel| *level != CapacityLevel::Normal;
        let levels = levels.iter().map(|(pool, (level, _))| (*pool, *level));
        self.memory.levels = levels.filter(|(_, level)| is_worth(level)).collect();
        told
    }
}

/// By what a trouble is known again.
fn key(trouble: &Trouble) -> String {
    let mut key = trouble.kind.name().to_owned();
    if trouble.kind == TroubleKind::DataUnavailable {
        // One for the whole fabric, also when it comes to concern further drives.
        return key;
    }
    key.extend(trouble.node.iter().map(|node| format!(" node={node}")));
    key.extend(trouble.drive.iter().map(|drive| format!(" drive={drive}")));
    key.extend(trouble.pool.iter().map(|pool| format!(" pool={pool}")));
    if waits_for_room(trouble) {
        key.push_str(" room");
    }
    key
}

/// Whether something is not copied because there is no room for it.
fn waits_for_room(trouble: &Trouble) -> bool {
    let is_copy = trouble.kind == TroubleKind::Copying;
    is_copy && trouble.doing.iter().any(|d| d.waits_for == Some(WaitsFor::Room))
}

/// What the events at the beginning and at the end of a trouble are called; none if other events tell of it.
fn names(trouble: &Trouble) -> Option<(&'static str, &'static str)> {
    match trouble.kind {
        TroubleKind::DataUnavailable => Some(("data-unavailable", "data-available")),
        TroubleKind::DriveAbsent => Some(("drive-absent", "drive-back")),
        TroubleKind::NodeForeign => Some(("node-foreign", "node-foreign-gone")),
        TroubleKind::DriveForeign => Some(("drive-foreign", "drive-foreign-gone")),
        TroubleKind::DriveLeftOut => Some(("drive-left-out", "drive-left-out-over")),
        TroubleKind::Copying if waits_for_room(trouble) => {
            Some(("rebuild-waits-for-room", "rebuild-goes-on"))
        }
        _ => None,
    }
}

/// What is told at the beginning of a trouble.
fn why(trouble: &Trouble) -> String {
    let waits = trouble.doing.iter().filter(|d| d.waits_for.is_some());
    let parts: Vec<&str> = waits.map(|d| d.what.as_str()).collect();
    if parts.is_empty() { trouble.what.clone() } else { format!("{}: {}", trouble.what, parts.join("; ")) }
}

fn about(trouble: &Trouble) -> Subjects {
    Subjects::named(trouble.volumes.iter().map(|v| v.volume.clone()), trouble.node.clone(), trouble.drive)
}

impl Manager {
    /// Looks for troubles, tells of those that no other event tells of, and remembers since when they are there.
    pub(crate) fn look_for_troubles(&self) {
        let told = {
            let mut state = self.state.borrow_mut();
            let pause = LOOK_EVERY.max(state.known_troubles.look_took * LOOK_SHARE);
            let is_time = state.known_troubles.looked_at.is_none_or(|at| at.elapsed() >= pause);
            let is_settled = self.started.elapsed() >= state.map.durations.lease_wait() * PATIENCE_LEASES;
            if !is_time || !is_settled || self.halted.borrow().is_some() {
                return;
            }
            let began = now();
            state.known_troubles.looked_at = Some(began);
            let usage = state.usage.as_ref().map(|(_, usage)| usage.clone()).unwrap_or_default();
            let before = state.known_troubles.memory.clone();
            let clock_ms = self.steady_clock_us() / 1000;
            if clock_ms >= before.clock_ms + CLOCK_EVERY_MS {
                state.known_troubles.memory.clock_ms = clock_ms;
            }
            let levels = state.pool_levels(&usage);
            let mut told = state.known_troubles.look_at_levels(&levels);
            let troubles = state.troubles(&usage, self.started);
            told.extend(state.known_troubles.look(&troubles));
            state.known_troubles.look_took = began.elapsed();
            if state.known_troubles.memory != before {
                let document = serde_json::to_vec(&state.known_troubles.memory).expect("it serialises");
                state.durable.note_troubles(document);
                self.decided.notify_all();
            }
            told
        };
        for Told { what, why, about } in told {
            self.tell(&what, why, about);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::{Doing, Severity};

    fn trouble(kind: TroubleKind, node: &str, since_ms: u64) -> Trouble {
        Trouble {
            kind,
            severity: Severity::Degraded,
            what: format!("{kind:?} on {node}"),
            since: Timestamp::from_millis(since_ms),
            node: Some(node.into()),
            drive: None,
            pool: None,
            groups: 1,
            more_volumes: 0,
            volumes: vec![],
            doing: vec![],
            advice: vec![],
        }
    }

    fn whats(told: &[Told]) -> Vec<&str> {
        told.iter().map(|t| t.what.as_str()).collect()
    }

    #[test]
    fn a_trouble_keeps_its_beginning_also_across_a_restart() {
        let mut known = KnownTroubles::default();
        let gone = |at| trouble(TroubleKind::NodeGone, "a", at);
        assert!(known.look(&[gone(10)]).is_empty(), "other events tell of it");
        assert_eq!(known.with_beginning(gone(20)).since, Timestamp::from_millis(10));
        let stored = serde_json::to_vec(&known.memory).expect("it serialises");
        let mut known = KnownTroubles::kept(Some(&stored));
        known.look(&[gone(30)]);
        assert_eq!(known.with_beginning(gone(40)).since, Timestamp::from_millis(10));
        known.look(&[]);
        assert_eq!(known.with_beginning(gone(50)).since, Timestamp::from_millis(50), "it was over");
        assert_eq!(KnownTroubles::kept(Some(b"nonsense")).memory, Memory::default());
    }

    #[test]
    fn what_no_other_event_tells_is_told_once_at_each_end() {
        let mut known = KnownTroubles::default();
        let lost = trouble(TroubleKind::DataUnavailable, "a", 1);
        let copying = |waits_for| {
            let what = "waits".to_owned();
            let doing = Doing { what, groups: 1, waits_for, wait_ms: None, progress: None };
            Trouble { doing: vec![doing], ..trouble(TroubleKind::Copying, "b", 1) }
        };
        let stuck = copying(Some(WaitsFor::Room));
        let told = known.look(&[lost.clone(), stuck.clone()]);
        assert_eq!(whats(&told), ["data-unavailable", "rebuild-waits-for-room"]);
        assert_eq!(told[1].why, "Copying on b: waits");
        assert!(known.look(&[lost.clone(), stuck]).is_empty());
        assert_eq!(whats(&known.look(&[lost, copying(None)])), ["rebuild-goes-on"]);
        let told = known.look(&[]);
        assert_eq!(
            (told[0].what.as_str(), told[0].why.as_str()),
            ("data-available", "over: DataUnavailable on a")
        );
    }

    #[test]
    fn a_level_is_told_when_it_changes() {
        let mut known = KnownTroubles::default();
        let level = |level| BTreeMap::from([(PoolId(1), (level, "text".to_owned()))]);
        assert!(known.look_at_levels(&level(CapacityLevel::Normal)).is_empty());
        assert_eq!(whats(&known.look_at_levels(&level(CapacityLevel::Critical))), ["capacity-critical"]);
        assert!(known.look_at_levels(&level(CapacityLevel::Critical)).is_empty());
        known.look(&[]);
        assert_eq!(known.level(PoolId(1)), CapacityLevel::Critical, "kept beside the troubles");
        assert_eq!(whats(&known.look_at_levels(&level(CapacityLevel::Normal))), ["capacity-normal"]);
    }
}
