//! What to do next about what was observed. The manager calls [`next_change`] and commits what comes out, until
//! nothing does.
//!
//! It owns the order of things: first what lets writes go on, then what brings back protection, then what frees
//! space. It never changes a map: every plan is a [`Change`] that `apply` judges by its own rules.

use crate::observe::{Condition, DriveFault};
use crate::room::full_for_copies;
use crate::{
    Acknowledged, BeginRelocation, CancelRelocation, Change, CloseSession, Demote, Depart, DrainDrive, Evict,
    FailDrive, FinishDelete, FinishRelocation, GroupIndex, HandOver, KeepMember, Observations, Promote,
    Rebuild, Rejoin, SweepSession, apply, next_servers,
};
use std::collections::{BTreeMap, BTreeSet};
use weft_layout::{Candidate, FailureDomain, replacement};
use weft_types::{
    Drive, DriveId, DriveState, Epoch, FabricMap, Group, GroupId, NodeId, Role, SessionId, SessionState,
    Slot, VolumeState,
};

/// Members that pass from one drive to others at the same time: enough for all of the others to take part, few
/// enough that most groups write no further copy meanwhile.
const RELOCATIONS_AT_ONCE: usize = 8;

/// The next change to commit, or `None` where nothing can be done at present. `groups` is the index of the
/// map.
///
/// Every call either gives a change that applies to this map, or says that there is none; with the observations
/// unchanged, a loop of calls comes to an end.
pub fn next_change(map: &FabricMap, groups: &GroupIndex, seen: &Observations) -> Option<Change> {
    next_failure(map, seen)
        .or_else(|| next_eviction(map, seen))
        .or_else(|| next_departure(map, seen))
        .or_else(|| next_demotion(map, seen))
        .or_else(|| next_servers(map, seen))
        .or_else(|| next_drain(map, seen))
        .or_else(|| next_promotion(map, seen))
        .or_else(|| next_step_of_relocation(map, seen))
        .or_else(|| next_rejoin(map, groups, seen))
        .or_else(|| next_rebuild(map, groups, seen))
        .or_else(|| next_relocation(map, groups, seen))
        .or_else(|| next_release(map, seen))
        .or_else(|| next_rebuild_on_one_node(map, groups, seen))
}

/// A drive that its target reported as failed is marked, so that it is not forgotten over a restart.
pub fn next_failure(map: &FabricMap, seen: &Observations) -> Option<Change> {
    let takes_part = |d: &DriveId| map.drives.get(d).is_some_and(|d| !d.state.is_given_up());
    seen.drives.iter().filter(|(drive, _)| takes_part(drive)).find_map(|(&drive, observed)| {
        let DriveFault { cause, of_device } = observed.failed.clone()?;
        Some(Change::FailDrive(FailDrive { drive, cause, of_device }))
    })
}

/// A drive that is gone and serves its last copies all the same is to be emptied before its process ends.
pub fn next_drain(map: &FabricMap, seen: &Observations) -> Option<Change> {
    let is_active = |d: &&DriveId| map.drives.get(d).is_some_and(|d| d.state == DriveState::Active);
    let drive = *seen.vanished.iter().find(is_active)?;
    Some(Change::DrainDrive(DrainDrive { drive, on: true }))
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
pub fn intents(map: &FabricMap, groups: &GroupIndex, seen: &Observations) -> Vec<Intent> {
    let mut intents = Vec::new();
    let is_gone = |drive: DriveId| matches!(seen.condition(map, drive), Condition::Gone { .. });
    let gone = map.drives.keys().filter(|drive| is_gone(**drive));
    let of_gone: BTreeSet<GroupId> = gone.flat_map(|drive| groups.of_drive(*drive)).collect();
    for group in of_gone.iter().filter_map(|id| map.groups.get(id)) {
        let serving = |d: &DriveId| seen.condition(map, *d) == Condition::Serving;
        let ask: Vec<DriveId> = group.read_set().filter(serving).collect();
        if ask.is_empty() {
            continue;
        }
        for victim in group.write_set().filter(|d| is_gone(*d)) {
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
    // Only groups of which there is a word can be left.
    let mut spoken_of: BTreeMap<NodeId, BTreeSet<GroupId>> = BTreeMap::new();
    for (group, drive) in seen.acknowledged.keys() {
        if let Some(drive) = map.drives.get(drive) {
            spoken_of.entry(drive.node).or_default().insert(*group);
        }
    }
    victims.into_iter().find_map(|(node, drives)| {
        let groups = spoken_of.get(&node)?.iter().filter_map(|id| map.groups.get(id));
        let acknowledged: BTreeMap<GroupId, Acknowledged> = groups
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

/// The departure of all members that clients cannot reach, serve no reads any more, and know it.
pub fn next_departure(map: &FabricMap, seen: &Observations) -> Option<Change> {
    let mut members: BTreeMap<GroupId, BTreeMap<DriveId, Epoch>> = BTreeMap::new();
    for (id, drive) in seen.unreached.keys() {
        let Some(group) = map.groups.get(id) else { continue };
        let Some(slot) = group.slot_of(*drive).filter(|s| s.role == Role::Syncing) else { continue };
        let knows = seen.yielded.get(&(*id, *drive)) == Some(&slot.since);
        // Without an in-sync member that serves, nothing is gained, and the member would not be brought up to date.
        if knows && group.read_set().any(|d| seen.condition(map, d) == Condition::Serving) {
            members.entry(*id).or_default().insert(*drive, slot.since);
        }
    }
    if members.is_empty() { None } else { applicable(map, Change::Depart(Depart { members })) }
}

/// The demotion of all in-sync members of one node that clients cannot reach, in the groups in which another in-sync
/// member has given its word. What has died is evicted instead.
pub fn next_demotion(map: &FabricMap, seen: &Observations) -> Option<Change> {
    let mut leaving: BTreeMap<NodeId, (BTreeSet<DriveId>, BTreeMap<GroupId, Acknowledged>)> = BTreeMap::new();
    for (id, drive) in seen.unreached.keys() {
        let Some(group) = map.groups.get(id).filter(|g| g.read_set().any(|d| d == *drive)) else { continue };
        let Some(node) = map.drives.get(drive).map(|d| d.node) else { continue };
        let is_serving = |drive| seen.condition(map, drive) == Condition::Serving;
        if let Some(word) = acknowledged(group, *drive, seen).filter(|w| is_serving(w.by))
            && is_serving(*drive)
        {
            let (drives, words) = leaving.entry(node).or_default();
            drives.insert(*drive);
            words.insert(*id, word);
        }
    }
    leaving
        .into_values()
        .find_map(|(drives, acknowledged)| applicable(map, Change::Demote(Demote { drives, acknowledged })))
}

/// The promotion of a replica that has verified everything in its present stint.
pub fn next_promotion(map: &FabricMap, seen: &Observations) -> Option<Change> {
    // The reports of past stints stay in the observations; most are stale, and are passed over cheaply.
    let awaited = |group: GroupId, drive: DriveId, stint: Epoch| {
        let Some(entry) = map.groups.get(&group) else { return false };
        entry.slot_of(drive).is_some_and(|s| s.role == Role::Syncing && s.since == stint)
            && seen.heeds_floor(entry, drive)
            && !has_handed_over(map, group, drive)
            && !seen.unreached.contains_key(&(group, drive))
    };
    (seen.verified.iter()).filter(|&(&(group, drive), &stint)| awaited(group, drive, stint)).find_map(
        |(&(group, drive), &stint)| applicable(map, Change::Promote(Promote { group, drive, stint })),
    )
}

/// The return of all drives of one node that serve again.
pub fn next_rejoin(map: &FabricMap, groups: &GroupIndex, seen: &Observations) -> Option<Change> {
    let with_out = || groups.with_out().filter_map(|id| map.groups.get(&id));
    let out = with_out().flat_map(|g| &g.slots).filter(|slot| slot.role == Role::Out);
    let out: BTreeSet<DriveId> = out.map(|slot| slot.drive).collect();
    let mut back: BTreeMap<NodeId, BTreeSet<DriveId>> = BTreeMap::new();
    for drive in out.iter().filter_map(|d| map.drives.get(d)) {
        if !drive.state.is_given_up() && seen.condition(map, drive.id) == Condition::Serving {
            back.entry(drive.node).or_default().insert(drive.id);
        }
    }
    back.into_values().find_map(|drives| {
        let stays_out = |(_, drive): &&(GroupId, DriveId)| drives.contains(drive);
        let unreached = seen.unreached.keys().filter(stays_out).map(|(group, _)| *group);
        let without_floors = with_out().filter(|group| {
            group.slots.iter().any(|s| drives.contains(&s.drive) && !seen.heeds_floor(group, s.drive))
        });
        let except = unreached.chain(without_floors.map(|group| group.id)).collect();
        applicable(map, Change::Rejoin(Rejoin { drives, except }))
    })
}

/// The rebuild of one lost copy: of a drive marked as failed at once, of one that is gone after
/// `rebuild_after_ms`; onto the drive that suits best, where an in-sync member serves as the source.
pub fn next_rebuild(map: &FabricMap, groups: &GroupIndex, seen: &Observations) -> Option<Change> {
    rebuild_in(map, groups, seen, |_| Some(seen.domain))
}

/// The rebuild of one lost copy in a group whose copies were put on one node, or one device, on purpose: on
/// such a drive as well. The other groups keep their copies on different nodes, and wait for a drive
/// where that is possible.
pub fn next_rebuild_on_one_node(map: &FabricMap, groups: &GroupIndex, seen: &Observations) -> Option<Change> {
    rebuild_in(map, groups, seen, |group| map.shares_a_node(group).then(|| domain_of(map, group)))
}

/// The next rebuild, with what must not hold two copies of a group; none: the group is left out.
fn rebuild_in(
    map: &FabricMap,
    groups: &GroupIndex,
    seen: &Observations,
    domain: impl Fn(&Group) -> Option<FailureDomain>,
) -> Option<Change> {
    let serving = |drive| seen.condition(map, drive) == Condition::Serving;
    let is_lost = |group: &Group, slot: &Slot| {
        slot.role == Role::Out
            && (is_lost(map, slot.drive, seen) || is_unreached_for_long(map, group, slot.drive, seen))
    };
    let lost = |group: &&Group| group.slots.iter().any(|s| is_lost(group, s)) && domain(group).is_some();
    let with_out = groups.with_out().filter_map(|id| map.groups.get(&id));
    for group in with_out.filter(lost).filter(|g| g.read_set().any(serving)) {
        let Some(domain) = domain(group) else { continue };
        for slot in group.slots.iter().filter(|s| is_lost(group, s)) {
            let Some(to) = stand_in(map, groups, group, slot.drive, seen, domain) else { continue };
            let rebuild = Rebuild { group: group.id, from: slot.drive, to, domain };
            if let Some(change) = applicable(map, Change::Rebuild(rebuild)) {
                return Some(change);
            }
        }
    }
    None
}

/// Whether clients have not reached a member for as long as a drive that is gone is awaited.
fn is_unreached_for_long(map: &FabricMap, group: &Group, drive: DriveId, seen: &Observations) -> bool {
    let since_ms = seen.unreached.get(&(group.id, drive));
    since_ms.is_some_and(|since| seen.now_ms.saturating_sub(*since) >= map.durations.rebuild_after_ms)
}

/// The drive that suits best to stand in for a member: active, in service, with room, apart from the
/// others, least loaded, and not on a node whose members of this group clients cannot reach.
fn stand_in(
    map: &FabricMap,
    groups: &GroupIndex,
    group: &Group,
    member: DriveId,
    seen: &Observations,
    domain: FailureDomain,
) -> Option<DriveId> {
    let unreached: BTreeSet<NodeId> = (seen.unreached.keys())
        .filter(|(id, _)| *id == group.id)
        .filter_map(|(_, drive)| Some(map.drives.get(drive)?.node))
        .collect();
    let full = full_for_copies(map, &seen.room);
    let candidates: Vec<Candidate> = (map.drives.values())
        .filter(|d| d.pool == group.pool && d.state == DriveState::Active && !unreached.contains(&d.node))
        .filter(|d| !full.contains(&d.id) && seen.heeds_floor(group, d.id))
        .filter(|d| seen.condition(map, d.id) == Condition::Serving)
        .map(Candidate::of)
        .collect();
    let keep: Vec<Candidate> = (group.slots.iter().filter(|s| s.drive != member))
        .filter_map(|s| map.drives.get(&s.drive).map(Candidate::of))
        .collect();
    replacement(&candidates, groups.loads_beside(map, group), &keep, member, domain)
}

/// Whether a drive could take a member's place in a group now: one that is active, in service, of the pool,
/// with room, and as far from the other copies as those are from each other.
pub fn has_spare_drive(map: &FabricMap, group: &Group, member: DriveId, seen: &Observations) -> bool {
    let domain = domain_of(map, group);
    let others = group.slots.iter().filter(|s| s.drive != member).filter_map(|s| map.drives.get(&s.drive));
    let others: Vec<Candidate> = others.map(Candidate::of).collect();
    let full = full_for_copies(map, &seen.room);
    let fits = |d: &Drive| {
        d.pool == group.pool
            && !full.contains(&d.id)
            && seen.heeds_floor(group, d.id)
            && d.state == DriveState::Active
            && d.id != member
            && others.iter().all(|o| o.drive != d.id && domain.is_apart(o, &Candidate::of(d)))
            && seen.condition(map, d.id) == Condition::Serving
    };
    map.drives.values().any(fits)
}

/// Whether the drive has passed its place in the group to another one that is in-sync, and only has to leave.
fn has_handed_over(map: &FabricMap, group: GroupId, drive: DriveId) -> bool {
    let Some(relocation) = map.relocations.get(&group).filter(|r| r.from == drive) else { return false };
    map.groups.get(&group).is_some_and(|g| g.read_set().any(|d| d == relocation.to))
}

/// The next step of a member that is passing to another drive.
pub fn next_step_of_relocation(map: &FabricMap, seen: &Observations) -> Option<Change> {
    map.relocations.iter().find_map(|(&id, relocation)| {
        let group = map.groups.get(&id)?;
        let (from, to) = (group.slot_of(relocation.from)?, group.slot_of(relocation.to)?);
        let step = match (from.role, to.role) {
            // The copies are all there without the old drive, and answer.
            (Role::InSync, Role::InSync) => {
                let others = || group.slots.iter().filter(|s| s.drive != from.drive);
                let serves = |s: &Slot| seen.condition(map, s.drive) == Condition::Serving;
                if others().all(|s| s.role == Role::InSync && serves(s)) {
                    Change::HandOver(HandOver { group: id })
                } else {
                    // A copy is missing, and both drives may stand where it could be rebuilt.
                    let lost = others().find(|s| s.role == Role::Out && is_lost(map, s.drive, seen))?.drive;
                    let domain = domain_of(map, group);
                    let keep = Change::KeepMember(KeepMember { group: id, lost, domain });
                    (serves(from) && serves(to)).then_some(keep)?
                }
            }
            (Role::Syncing, Role::InSync) => {
                let stint = *seen.yielded.get(&(id, from.drive))?;
                Change::FinishRelocation(FinishRelocation { group: id, stint })
            }
            (Role::Out, Role::InSync) => {
                Change::FinishRelocation(FinishRelocation { group: id, stint: from.since })
            }
            (_, Role::Syncing | Role::Out) => {
                let state = |drive| map.drives.get(&drive).map(|d| d.state);
                let is_called_off = state(from.drive) == Some(DriveState::Active);
                let is_useless = state(to.drive) != Some(DriveState::Active)
                    || is_lost(map, to.drive, seen)
                    || seen.unreached.contains_key(&(id, to.drive));
                (is_called_off || is_useless)
                    .then_some(Change::CancelRelocation(CancelRelocation { group: id }))?
            }
        };
        applicable(map, step)
    })
}

/// The beginning of the next relocation of a member on a drive that is being emptied.
pub fn next_relocation(map: &FabricMap, groups: &GroupIndex, seen: &Observations) -> Option<Change> {
    let draining = map.drives.values().filter(|d| d.state == DriveState::Draining);
    let draining: BTreeSet<DriveId> = draining.map(|d| d.id).collect();
    // Hardly ever is a drive being emptied: then no group needs to be looked at.
    if draining.is_empty() {
        return None;
    }
    let is_draining = |d: &DriveId| draining.contains(d);
    let of_draining: BTreeSet<GroupId> = draining.iter().flat_map(|d| groups.of_drive(*d)).collect();
    let mut running: BTreeMap<DriveId, usize> = BTreeMap::new();
    for relocation in map.relocations.values() {
        *running.entry(relocation.from).or_default() += 1;
    }
    let of_draining = of_draining.iter().filter_map(|id| map.groups.get(id));
    let idle = of_draining.filter(|g| !map.relocations.contains_key(&g.id));
    let leaving = idle.flat_map(|g| g.write_set().filter(is_draining).map(move |from| (g, from)));
    { leaving }.filter(|(_, from)| running.get(from).is_none_or(|n| *n < RELOCATIONS_AT_ONCE)).find_map(
        |(group, from)| {
            let domain = domain_of(map, group);
            let to = stand_in(map, groups, group, from, seen, domain)?;
            applicable(map, Change::BeginRelocation(BeginRelocation { group: group.id, from, to, domain }))
        },
    )
}

/// How far apart the members of a group are to stay: a group whose copies share a node, or a device, may
/// go on so.
pub fn domain_of(map: &FabricMap, group: &Group) -> FailureDomain {
    match (map.shares_a_device(group), map.shares_a_node(group)) {
        (true, _) => FailureDomain::Drive,
        (false, true) => FailureDomain::Device,
        (false, false) => FailureDomain::Node,
    }
}

/// Whether the drive's copies are given up.
fn is_lost(map: &FabricMap, drive: DriveId, seen: &Observations) -> bool {
    let state = map.drives.get(&drive).map(|d| d.state);
    state.is_none_or(DriveState::is_given_up)
        || match seen.condition(map, drive) {
            Condition::Gone { since_ms, .. } => {
                state == Some(DriveState::Draining)
                    || seen.now_ms.saturating_sub(since_ms) >= map.durations.rebuild_after_ms
            }
            Condition::Unknown | Condition::Serving => false,
        }
}

/// Where the members on these drives would go if all of the drives were emptied now.
///
/// # Errors
/// The members for which no drive in service can stand in.
pub fn plan_evacuation(
    map: &FabricMap,
    groups: &GroupIndex,
    drives: &BTreeSet<DriveId>,
    seen: &Observations,
) -> Result<Vec<BeginRelocation>, Vec<(GroupId, DriveId)>> {
    let mut ahead = map.clone();
    ahead.drives.update_where(|d| drives.contains(&d.id), |d| d.state = DriveState::Draining);
    let mut index = groups.clone();
    let (mut moves, mut stuck) = (Vec::new(), Vec::new());
    let concerned: BTreeSet<GroupId> = drives.iter().flat_map(|drive| groups.of_drive(*drive)).collect();
    for group in concerned.iter().filter_map(|id| map.groups.get(id)) {
        let members = group.slots.iter().map(|s| s.drive).filter(|d| drives.contains(d));
        for from in members.filter(|d| map.staying(group).any(|s| s == *d)) {
            let present = &ahead.groups[&group.id];
            let domain = domain_of(map, group);
            match stand_in(&ahead, &index, present, from, seen, domain) {
                Some(to) => {
                    // So that the next choice counts this one.
                    let before = ahead.clone();
                    let changing = ahead.groups.get_mut(&group.id).expect("it is the same map");
                    let slot = changing.slots.iter_mut().find(|s| s.drive == from).expect("it is a member");
                    slot.drive = to;
                    index.note(&before, &ahead);
                    moves.push(BeginRelocation { group: group.id, from, to, domain });
                }
                None => stuck.push((group.id, from)),
            }
        }
    }
    if stuck.is_empty() { Ok(moves) } else { Err(stuck) }
}

/// What can be let go: a session that ended, one that was swept, a deleted volume that is empty.
pub fn next_release(map: &FabricMap, seen: &Observations) -> Option<Change> {
    let is_in = |state| move |id: &SessionId| map.sessions.get(id).is_some_and(|s| s.state == state);
    let over = seen.ended.iter().copied().find(is_in(SessionState::Open));
    let swept = seen.swept.iter().copied().find(is_in(SessionState::Over));
    let emptied = (seen.emptied.iter())
        .filter_map(|id| map.volumes.get(id))
        .filter(|v| v.state == VolumeState::Deleting)
        .find_map(|v| applicable(map, Change::FinishDelete(FinishDelete { volume: v.id })));
    over.map(|session| Change::CloseSession(CloseSession { session }))
        .or_else(|| swept.map(|session| Change::SweepSession(SweepSession { session })))
        .or(emptied)
}

/// The change, where the map would take it.
fn applicable(map: &FabricMap, change: Change) -> Option<Change> {
    apply(map, &change).is_ok().then_some(change)
}
