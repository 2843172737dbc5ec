//! What to do next about what was observed. The manager calls [`next_change`] and commits what comes out, until
//! nothing does.
//!
//! It owns the order of things: first what lets writes go on, then what brings back protection, then what frees
//! space. It never changes a map: every plan is a [`Change`] that `apply` judges by its own rules.

use crate::observe::Condition;
use crate::{
    Acknowledged, Change, CloseSession, Evict, FailDrive, FinishDelete, Observations, Promote, Rebuild,
    Rejoin, SweepSession, apply,
};
use std::collections::{BTreeMap, BTreeSet};
use weft_layout::{Candidate, replacement};
use weft_types::{
    DriveId, DriveState, Epoch, FabricMap, Group, GroupId, NodeId, Role, SessionState, VolumeState,
};

/// The next change to commit, or `None` where nothing can be done at present.
///
/// Every call either gives a change that applies to this map, or says that there is none; with the observations
/// unchanged, a loop of calls comes to an end.
pub fn next_change(map: &FabricMap, seen: &Observations) -> Option<Change> {
    next_failure(map, seen)
        .or_else(|| next_eviction(map, seen))
        .or_else(|| next_promotion(map, seen))
        .or_else(|| next_rejoin(map, seen))
        .or_else(|| next_rebuild(map, seen))
        .or_else(|| next_release(map, seen))
}

/// A drive that its target reported as failed is marked, so that it is not forgotten over a restart.
pub fn next_failure(map: &FabricMap, seen: &Observations) -> Option<Change> {
    let active = |d: &DriveId| map.drives.get(d).is_some_and(|d| d.state == DriveState::Active);
    seen.drives.iter().filter(|(drive, _)| active(drive)).find_map(|(&drive, observed)| {
        let cause = observed.failed.clone()?;
        Some(Change::FailDrive(FailDrive { drive, cause }))
    })
}

/// An eviction that the manager should prepare: it asks the drives' targets to acknowledge the intent, and waits
/// out the victim's lease meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The group.
    pub group: GroupId,
    /// Its epoch; an acknowledgement counts for this one only.
    pub epoch: Epoch,
    /// The drive that is gone.
    pub victim: DriveId,
    /// In-sync members that serve; the word of one is enough.
    pub ask: Vec<DriveId>,
}

/// The evictions to prepare: for every group with a drive in its write set that is gone, and an in-sync member that
/// serves, unless that was acknowledged already.
pub fn intents(map: &FabricMap, seen: &Observations) -> Vec<Intent> {
    let mut intents = Vec::new();
    for group in map.groups.values() {
        let serving = |d: &DriveId| seen.condition(map, *d) == Condition::Serving;
        let ask: Vec<DriveId> = group.read_set().filter(serving).collect();
        if ask.is_empty() {
            continue;
        }
        let gone = |d: &DriveId| matches!(seen.condition(map, *d), Condition::Gone { .. });
        for victim in group.write_set().filter(gone) {
            if acknowledged(group, victim, seen).is_none() {
                intents.push(Intent { group: group.id, epoch: group.epoch, victim, ask: ask.clone() });
            }
        }
    }
    intents
}

/// The word about this victim that counts in the group's present epoch.
fn acknowledged(group: &Group, victim: DriveId, seen: &Observations) -> Option<Acknowledged> {
    let word = *seen.acknowledged.get(&(group.id, victim))?;
    (word.epoch == group.epoch && word.by != victim).then_some(word)
}

/// The eviction of all drives of one node that are gone and can serve nothing any more, from all groups that have
/// acknowledged it. The manager gives the acknowledgements of a node's groups together, to have it in one change.
pub fn next_eviction(map: &FabricMap, seen: &Observations) -> Option<Change> {
    let mut victims: BTreeMap<NodeId, BTreeSet<DriveId>> = BTreeMap::new();
    for drive in map.drives.values() {
        if let Condition::Gone { fenced: true, .. } = seen.condition(map, drive.id) {
            victims.entry(drive.node).or_default().insert(drive.id);
        }
    }
    victims.into_values().find_map(|drives| {
        let acknowledged: BTreeMap<GroupId, Acknowledged> = (map.groups.values())
            .filter_map(|group| {
                let words =
                    group.write_set().filter(|d| drives.contains(d)).map(|d| acknowledged(group, d, seen));
                // Each of the node's drives in the group needs a word; they are of one epoch, so one tells all.
                let words: Option<Vec<Acknowledged>> = words.collect();
                Some((group.id, *words?.first()?))
            })
            .collect();
        if acknowledged.is_empty() {
            return None;
        }
        applicable(map, Change::Evict(Evict { drives, acknowledged }))
    })
}

/// The promotion of a replica that has verified everything in its present stint.
pub fn next_promotion(map: &FabricMap, seen: &Observations) -> Option<Change> {
    // The reports of past stints stay in the observations; most are stale, and are passed over cheaply.
    let awaited = |group: GroupId, drive: DriveId, stint: Epoch| {
        let slot = map.groups.get(&group).and_then(|g| g.slot_of(drive));
        slot.is_some_and(|s| s.role == Role::Syncing && s.since == stint)
    };
    (seen.verified.iter()).filter(|&(&(group, drive), &stint)| awaited(group, drive, stint)).find_map(
        |(&(group, drive), &stint)| applicable(map, Change::Promote(Promote { group, drive, stint })),
    )
}

/// The return of all drives of one node that serve again.
pub fn next_rejoin(map: &FabricMap, seen: &Observations) -> Option<Change> {
    let out: BTreeSet<DriveId> = (map.groups.values().flat_map(|g| &g.slots))
        .filter(|slot| slot.role == Role::Out)
        .map(|slot| slot.drive)
        .collect();
    let mut back: BTreeMap<NodeId, BTreeSet<DriveId>> = BTreeMap::new();
    for drive in out.iter().filter_map(|d| map.drives.get(d)) {
        if drive.state == DriveState::Active && seen.condition(map, drive.id) == Condition::Serving {
            back.entry(drive.node).or_default().insert(drive.id);
        }
    }
    back.into_values().find_map(|drives| applicable(map, Change::Rejoin(Rejoin { drives })))
}

/// The rebuild of one lost copy: of a drive marked as failed at once, of one that is gone after
/// `rebuild_after_ms`; onto the drive that suits best, where an in-sync member serves as the source.
pub fn next_rebuild(map: &FabricMap, seen: &Observations) -> Option<Change> {
    let serving = |drive| seen.condition(map, drive) == Condition::Serving;
    let lost =
        |group: &&Group| group.slots.iter().any(|s| s.role == Role::Out && is_lost(map, s.drive, seen));
    for group in map.groups.values().filter(lost).filter(|g| g.read_set().any(serving)) {
        let candidates: Vec<Candidate> = (map.drives.values())
            .filter(|d| d.pool == group.pool && d.state == DriveState::Active && serving(d.id))
            .map(|d| Candidate { drive: d.id, node: d.node, capacity: d.capacity })
            .collect();
        let existing: Vec<Vec<DriveId>> = (map.groups.values())
            .filter(|g| g.pool == group.pool)
            .map(|g| g.slots.iter().map(|s| s.drive).collect())
            .collect();
        for slot in group.slots.iter().filter(|s| s.role == Role::Out && is_lost(map, s.drive, seen)) {
            let keep: Vec<(DriveId, NodeId)> = (group.slots.iter().filter(|s| s.drive != slot.drive))
                .filter_map(|s| Some((s.drive, map.drives.get(&s.drive)?.node)))
                .collect();
            let Some(to) = replacement(&candidates, &existing, &keep, slot.drive, seen.domain) else {
                continue;
            };
            let rebuild = Rebuild { group: group.id, from: slot.drive, to, domain: seen.domain };
            if let Some(change) = applicable(map, Change::Rebuild(rebuild)) {
                return Some(change);
            }
        }
    }
    None
}

/// Whether the drive's copies are given up.
fn is_lost(map: &FabricMap, drive: DriveId, seen: &Observations) -> bool {
    let failed = map.drives.get(&drive).is_none_or(|d| d.state == DriveState::Failed);
    failed
        || match seen.condition(map, drive) {
            Condition::Gone { since_ms, .. } => {
                seen.now_ms.saturating_sub(since_ms) >= map.durations.rebuild_after_ms
            }
            Condition::Unknown | Condition::Serving => false,
        }
}

/// What can be let go: a session that ended, one that was swept, a deleted volume that is empty.
pub fn next_release(map: &FabricMap, seen: &Observations) -> Option<Change> {
    let in_state = |state| map.sessions.values().filter(move |s| s.state == state).map(|s| s.id);
    let over = in_state(SessionState::Open).find(|s| seen.ended.contains(s));
    let swept = in_state(SessionState::Over).find(|s| seen.swept.contains(s));
    let emptied = (map.volumes.values())
        .filter(|v| v.state == VolumeState::Deleting && seen.emptied.contains(&v.id))
        .find_map(|v| applicable(map, Change::FinishDelete(FinishDelete { volume: v.id })));
    over.map(|session| Change::CloseSession(CloseSession { session }))
        .or_else(|| swept.map(|session| Change::SweepSession(SweepSession { session })))
        .or(emptied)
}

/// The change, where the map would take it.
fn applicable(map: &FabricMap, change: Change) -> Option<Change> {
    apply(map, &change).is_ok().then_some(change)
}
