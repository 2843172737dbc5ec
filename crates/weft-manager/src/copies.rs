//! The whole map on the drives of each target, in parts, for a fabric that has lost its managers (C11).
//!
//! It owns when that is done and which drive keeps which part. What concerns a target, its drives keep by
//! themselves with each map that they adopt; of what concerns others, a drive that is at hand then has to
//! know.

use crate::manager::{Manager, State};
use crate::trouble::new_trouble;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{Advice, Doing, Severity, Trouble, TroubleKind};
use weft_rt::sync::{join_all, race};
use weft_rt::{Buf, Instant, now, offload, sleep_until};
use weft_types::{DriveId, FabricMap, MapVersion, TargetId, Volume, with_causes};
use weft_wire::control::{DELTA_PROTOCOL, TargetRequest};
use weft_wire::map_part::{MapPart, split};

/// How often the whole map is kept, if anything in it has changed.
const EVERY: Duration = Duration::from_secs(600);

/// How long after a change of machines, drives or volumes, so that several are kept at once.
const AFTER_CHANGE: Duration = Duration::from_secs(5);

/// How long to wait after a round that has not reached all targets that are up.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Bytes of a part. A drive of 64 MiB has room for it.
const PART_BYTES: usize = 256 * 1024;

/// How long a target may take to write a part.
const KEEP_MAX: Duration = Duration::from_secs(5);

/// Rounds in a row after which it is a trouble that targets do not keep their parts: three minutes.
const ROUNDS_UNTIL_TOLD: u32 = 3;

/// Nodes that are named in one sentence; the others are counted.
const NODES_NAMED: usize = 4;

/// What drives keep of the whole map, as far as this process knows.
#[derive(Default)]
pub(crate) struct CopiesKept {
    /// The newest map of which every target that was up keeps its parts.
    pub(crate) map: Option<Rc<FabricMap>>,
    /// When the last round ended.
    ended: Option<Instant>,
    /// The targets that were up and did not keep theirs in the last round, and why.
    pub(crate) missed: Vec<(TargetId, String)>,
    /// How many rounds in a row some have not.
    rounds_missed: u32,
}

impl CopiesKept {
    /// When the next round is due, of which this would be the map.
    fn due(&self, map: &FabricMap, started: Instant) -> Option<Instant> {
        let ended = self.ended.unwrap_or(started);
        let Some(kept) = &self.map else { return Some(ended + AFTER_CHANGE) };
        if !self.missed.is_empty() {
            return Some(ended + AGAIN_AFTER);
        }
        if kept.version == map.version {
            return None;
        }
        Some(ended + if has_grown(kept, map) { AFTER_CHANGE } else { EVERY })
    }
}

/// Whether machines, drives, pools, or where volumes are, have changed. Costs what is different.
fn has_grown(old: &FabricMap, new: &FabricMap) -> bool {
    let is_elsewhere =
        |volume: Option<&Volume>, id| volume.map(Volume::placed) != old.volumes.get(id).map(Volume::placed);
    new.nodes.changes(&old.nodes).next().is_some()
        || new.targets.changes(&old.targets).next().is_some()
        || new.drives.changes(&old.drives).next().is_some()
        || new.pools.changes(&old.pools).next().is_some()
        || new.volumes.changes(&old.volumes).any(|c| is_elsewhere(new.volumes.get(c.key()), c.key()))
}

/// Which parts the drives of a target keep: all targets together keep each part, if they can, and each target
/// as many as it has drives.
fn parts_of(target_at: usize, drives: &[DriveId], parts: usize) -> Vec<(DriveId, usize)> {
    let first = if parts > drives.len() { target_at * drives.len() } else { 0 };
    drives.iter().take(parts).enumerate().map(|(at, drive)| (*drive, (first + at) % parts)).collect()
}

impl Manager {
    /// Has drives keep the whole map, whenever it is due, until the manager stops.
    pub(crate) async fn keep_copies(self: Rc<Self>) {
        let started = now();
        while self.halted.borrow().is_none() {
            let changed = self.changed.notified();
            let map = self.durable_map();
            let due = self.state.borrow().copies.due(&map, started);
            match due {
                Some(due) if due <= now() => self.keep_copies_of(map).await,
                Some(due) => {
                    race(changed, sleep_until(due)).await;
                }
                None => changed.await,
            }
        }
    }

    async fn keep_copies_of(self: &Rc<Self>, map: Rc<FabricMap>) {
        let whole = FabricMap::clone(&map);
        let parts = offload(move || split(&whole, PART_BYTES)).await;
        let missed = match parts {
            Some(parts) => self.hand_out(map.version, &parts).await,
            None => vec![(TargetId(0), "the map is too large to be kept in parts".to_owned())],
        };
        for (target, why) in &missed {
            tracing::debug!(%target, why, "a target does not keep its parts of the map");
        }
        let mut state = self.state.borrow_mut();
        state.copies.map = Some(map);
        state.copies.rounds_missed = if missed.is_empty() { 0 } else { state.copies.rounds_missed + 1 };
        (state.copies.ended, state.copies.missed) = (Some(now()), missed);
    }

    /// Has each target that is up keep its parts. Returns who has not, and why.
    async fn hand_out(self: &Rc<Self>, version: MapVersion, parts: &[MapPart]) -> Vec<(TargetId, String)> {
        let targets: Vec<(TargetId, Vec<DriveId>)> = {
            let state = self.state.borrow();
            let is_there = |target: &TargetId| {
                state.members.get(target).is_some_and(|m| {
                    m.is_up() && m.open_link().is_some_and(|link| link.protocol() >= DELTA_PROTOCOL)
                })
            };
            let served = |target: TargetId| {
                let drives = state.index.drives_of(target);
                drives.filter(|d| state.is_served(*d)).collect::<Vec<DriveId>>()
            };
            state
                .map
                .targets
                .keys()
                .copied()
                .filter(is_there)
                .map(|target| (target, served(target)))
                .collect()
        };
        let kept = targets.iter().enumerate().map(|(at, (target, drives))| async move {
            for (drive, part) in parts_of(at, drives, parts.len()) {
                let request = TargetRequest::KeepPart { drive, version };
                let body = Buf::from(parts[part].encode());
                if let Err(error) = self.ask(*target, &request, Some(body), KEEP_MAX).await {
                    return Some((*target, with_causes(&error)));
                }
            }
            None
        });
        join_all(kept).await.into_iter().flatten().collect()
    }
}

impl State {
    /// Nodes that have not kept their parts of the map for a while.
    pub(crate) fn map_not_kept(&self) -> Option<Trouble> {
        let copies = &self.copies;
        if copies.rounds_missed < ROUNDS_UNTIL_TOLD {
            return None;
        }
        let name = |target: &TargetId| match self.map.targets.contains_key(target) {
            true => self.map.title_of(*target),
            false => "all nodes".to_owned(),
        };
        let named = copies.missed.iter().take(NODES_NAMED);
        let named: Vec<String> = named.map(|(target, why)| format!("{}: {why}", name(target))).collect();
        let more = copies.missed.len().saturating_sub(NODES_NAMED);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let what = format!("nodes do not keep their parts of the fabric map: {}{more}", named.join("; "));
        let mut trouble = new_trouble(TroubleKind::MapNotKept, Severity::Warning, what);
        if let [(target, _)] = &copies.missed[..] {
            trouble.node = self.map.node_of(*target).map(|n| n.name.clone());
        }
        trouble.doing.push(Doing {
            what: "is tried again every minute".into(),
            groups: 0,
            waits_for: None,
            progress: None,
            wait_ms: None,
        });
        trouble.advice.push(Advice {
            what: "keep a backup of the map meanwhile, for the loss of the manager's store: `weft fabric \
                   recover` may have an old map of these nodes to go by"
                .into(),
            command: Some("weft map backup FILE".into()),
        });
        Some(trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn targets_keep_every_part_as_soon_as_they_have_drives_enough() {
        let drives = |n: u128| (0..n).map(DriveId).collect::<Vec<_>>();
        for (targets, each, parts) in [(1, 1, 1), (3, 2, 2), (3, 2, 5), (4, 3, 12), (5, 4, 7), (2, 8, 3)] {
            let kept: BTreeSet<usize> = (0..targets)
                .flat_map(|at| parts_of(at, &drives(each), parts))
                .map(|(_, part)| part)
                .collect();
            assert_eq!(
                kept.len(),
                parts.min(targets * each as usize),
                "{targets} targets, {each} drives, {parts} parts"
            );
            for at in 0..targets {
                let own = parts_of(at, &drives(each), parts);
                let used: BTreeSet<DriveId> = own.iter().map(|(drive, _)| *drive).collect();
                assert_eq!(used.len(), own.len().min(each as usize), "one part for each drive");
            }
        }
    }
}
