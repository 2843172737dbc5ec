//! Relocation: a member passes from one drive to another, with no copy less on the way.
//!
//! ```text
//! begin       the new drive gets a slot of its own, as syncing      a in-sync   b in-sync   + c syncing
//! promote     ... and becomes in-sync like any other                a in-sync   b in-sync     c in-sync
//! hand over   the old one leaves the read set                       a in-sync   b syncing     c in-sync
//! finish      ... and, once its target knows that, the group        a in-sync                 c in-sync
//! ```
//! If another member is lost meanwhile, the one that was to leave may stay in its place:
//!
//! ```text
//! keep                  a out   b in-sync   c in-sync   ->          b in-sync   c in-sync
//! ```
//! It owns these steps. A member that serves no reads can leave without a wait (R11); so the old drive first becomes
//! syncing, and leaves when its target has acknowledged the epoch in which it did. What dies on the way is evicted
//! like any other member: an old drive that is out can leave at once, a new one that is out makes room for another.
//! It never chooses the drive: the plan does, or a person.

use crate::group::{self, Step};
use crate::rebuild::{active_drive, check_apart, check_place};
use crate::refusal::Kind;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use weft_layout::FailureDomain;
use weft_types::{DriveId, DriveState, Epoch, FabricMap, Group, GroupId, Relocation, Role};

/// A further drive joins the group, to take over from a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginRelocation {
    /// The group.
    pub group: GroupId,
    /// The member that is to leave.
    pub from: DriveId,
    /// The drive that is to take over.
    pub to: DriveId,
    /// With `node`, refused where the new drive's node holds another copy that stays.
    pub domain: FailureDomain,
}

/// The new drive is in-sync: the old one leaves the read set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOver {
    /// The group.
    pub group: GroupId,
}

/// The old drive leaves the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishRelocation {
    /// The group.
    pub group: GroupId,
    /// The stint in which the old drive's target knows that it serves no reads; for one that is out, its stint.
    pub stint: Epoch,
}

/// The new drive leaves the group again, before it was in-sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelRelocation {
    /// The group.
    pub group: GroupId,
}

/// A member that is lost leaves the group, and the one that was to leave stays beside the new one: every copy is there
/// again, and nothing has to be copied for it. Otherwise the lost copy might find no place while both are there, and
/// neither could leave before it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepMember {
    /// The group.
    pub group: GroupId,
    /// The member that is out, and given up.
    pub lost: DriveId,
    /// Refused where the drive that stays is not this far from another copy.
    pub domain: FailureDomain,
}

pub(crate) fn begin(map: &mut FabricMap, change: &BeginRelocation) -> Result<Reason, Refusal> {
    let BeginRelocation { group: id, from, to, domain } = *change;
    active_drive(map, to)?;
    let group = map.groups.get(&id).ok_or_else(|| unknown(id))?;
    let slot = group.slot_of(from).ok_or(Refusal::NotMember { group: id, drive: from })?;
    if let Some(running) = map.relocations.get(&id) {
        return Err(Refusal::BeingRelocated { group: id, from: running.from, to: running.to });
    }
    if slot.role == Role::Out {
        return Err(Refusal::WrongRole { group: id, drive: from, found: Role::Out, expected: Role::InSync });
    }
    if !group::has_source(group) {
        return Err(Refusal::NoSource { group: id });
    }
    check_place(map, group, from, to, domain)?;
    let group = map.groups.get_mut(&id).expect("it was found above");
    let epoch = group::next_epoch(group);
    group.slots.push(group::syncing(to, epoch));
    map.relocations.insert(id, Relocation { from, to });
    Ok(Reason::RelocationBegun { group: id, from, to })
}

pub(crate) fn hand_over(map: &mut FabricMap, change: &HandOver) -> Result<Reason, Refusal> {
    let (Relocation { from, to }, group) = running(map, change.group)?;
    expect_role(group, to, Role::InSync)?;
    expect_role(group, from, Role::InSync)?;
    if map.drives.get(&to).is_some_and(|d| d.state == DriveState::Destroyed) {
        return Err(Refusal::DriveDestroyed { drive: to });
    }
    let (_, group) = running(map, change.group)?;
    let epoch = group::next_epoch(group);
    let slot = group.slots.iter_mut().find(|s| s.drive == from).expect("its role was checked");
    group::take(slot, Step::StandDown, epoch);
    Ok(Reason::HandedOver { group: change.group, from, to })
}

pub(crate) fn finish(map: &mut FabricMap, change: &FinishRelocation) -> Result<Reason, Refusal> {
    let FinishRelocation { group: id, stint } = *change;
    let (Relocation { from, to }, group) = running(map, id)?;
    expect_role(group, to, Role::InSync)?;
    let slot = *group.slot_of(from).expect("a relocation's drives are members");
    if slot.role == Role::InSync {
        return Err(Refusal::WrongRole { group: id, drive: from, found: slot.role, expected: Role::Syncing });
    }
    if slot.since != stint {
        return Err(Refusal::StaleStint { group: id, drive: from, reported: stint, found: slot.since });
    }
    leave(map, id, from);
    Ok(Reason::Relocated { group: id, from, to })
}

pub(crate) fn cancel(map: &mut FabricMap, change: &CancelRelocation) -> Result<Reason, Refusal> {
    let (Relocation { from, to }, group) = running(map, change.group)?;
    let found = group.slot_of(to).expect("a relocation's drives are members").role;
    if found == Role::InSync {
        return Err(Refusal::WrongRole { group: change.group, drive: to, found, expected: Role::Syncing });
    }
    leave(map, change.group, to);
    Ok(Reason::RelocationCancelled { group: change.group, from, to })
}

pub(crate) fn keep(map: &mut FabricMap, change: &KeepMember) -> Result<Reason, Refusal> {
    let KeepMember { group: id, lost, domain } = *change;
    let (Relocation { from, to }, group) = running(map, id)?;
    expect_role(group, to, Role::InSync)?;
    expect_role(group, from, Role::InSync)?;
    if group.slot_of(lost).is_none() {
        return Err(Refusal::NotMember { group: id, drive: lost });
    }
    expect_role(group, lost, Role::Out)?;
    let beside = map.groups[&id].slots.iter().map(|s| s.drive).filter(|d| ![from, lost].contains(d));
    if let Some(stays) = map.drives.get(&from) {
        check_apart(map, id, beside, stays, domain)?;
    }
    leave(map, id, lost);
    Ok(Reason::MemberKept { group: id, lost, stays: from })
}

/// Whether a group may change its slots so: one more that begins as syncing, or one less that served no reads.
pub(crate) fn is_slots_step(old: &Group, new: &Group) -> bool {
    if new.slots.len() == old.slots.len() + 1 {
        let Some((added, kept)) = new.slots.split_last() else { return false };
        return kept == old.slots && added.role == Role::Syncing && added.since == new.epoch;
    }
    let left = old.slots.iter().filter(|s| new.slot_of(s.drive).is_none());
    let left: Vec<_> = left.collect();
    let kept: Vec<_> = old.slots.iter().filter(|s| new.slot_of(s.drive).is_some()).copied().collect();
    left.len() == 1 && left[0].role != Role::InSync && kept == new.slots
}

/// The group's relocation, and the group.
fn running(map: &mut FabricMap, id: GroupId) -> Result<(Relocation, &mut Group), Refusal> {
    let group = map.groups.get_mut(&id).ok_or_else(|| unknown(id))?;
    let relocation = map.relocations.get(&id).ok_or(Refusal::NotBeingRelocated { group: id })?;
    Ok((*relocation, group))
}

/// Takes a member that serves no reads out of the group, and ends the relocation.
fn leave(map: &mut FabricMap, id: GroupId, drive: DriveId) {
    let group = map.groups.get_mut(&id).expect("the caller has it");
    group::next_epoch(group);
    group.slots.retain(|s| s.drive != drive);
    map.relocations.remove(&id);
}

fn expect_role(group: &Group, drive: DriveId, expected: Role) -> Result<(), Refusal> {
    let found = group.slot_of(drive).expect("a relocation's drives are members").role;
    if found != expected {
        return Err(Refusal::WrongRole { group: group.id, drive, found, expected });
    }
    Ok(())
}

fn unknown(id: GroupId) -> Refusal {
    Refusal::Unknown { kind: Kind::Group, id: id.to_string() }
}
