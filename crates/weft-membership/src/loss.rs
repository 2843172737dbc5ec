//! Accepted loss: a person declares drives destroyed, and groups whose last up-to-date copies were on them go on with
//! an older copy, or with nothing.
//!
//! It owns the one way in which a group goes on without any of its in-sync members, and what belongs to it: the drives
//! never come back, every session that may have seen what is lost is over, and no group is lost by it that was not
//! named. It never decides that data is lost: a person does, and the manager has made sure that no lost member can
//! still serve. Which of the copies that are left a group goes on with is decided here as well
//! ([`best_copy`]).

use crate::group::{self, Step};
use crate::rebuild::{active_drive, check_place};
use crate::refusal::Kind;
use crate::session::end_sessions;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_layout::FailureDomain;
use weft_types::{DriveId, DriveState, FabricMap, Generation, Group, GroupId, Role, Version, VolumeId};

/// Drives are declared destroyed, and groups whose last up-to-date copies were on them go on without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptLoss {
    /// Drives that do not exist any more; those that were declared so before may be among them.
    pub destroyed: BTreeSet<DriveId>,
    /// Drives that hold less than they had acknowledged: they count as up to date no more, but a group may go on with
    /// one of them.
    #[serde(default)]
    pub older: BTreeSet<DriveId>,
    /// What each group goes on with that has no in-sync member on another drive; all such groups must be named.
    pub survivors: BTreeMap<GroupId, Survivor>,
}

/// What a group goes on with after its up-to-date copies are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Survivor {
    /// What this member holds is the truth from now on.
    Older(DriveId),
    /// No member is left: this drive, which holds nothing of the group, begins it anew as zeroes.
    Empty(DriveId),
}

/// What a member that is behind holds of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCopy {
    /// The member.
    pub drive: DriveId,
    /// Blocks of which it knows what is in them: data that can be read, or that they were discarded.
    pub blocks: u64,
    /// Its newest version.
    pub newest: Version,
}

/// One part in so many of the fullest copy may be missing from a newer one: a few damaged blocks, or writes
/// of which it has not heard. A copy that was being made lacks more, unless it was nearly done.
const MISSING_PART: u128 = 64;

/// The copy that a group goes on with whose up-to-date copies are all gone: of those that hold nearly as
/// much as the fullest, the newest. Versions go ahead of the data when a copy is made (R12), so the newest
/// may hold next to nothing.
pub fn best_copy(copies: &[HeldCopy]) -> Option<DriveId> {
    let most = copies.iter().map(|c| u128::from(c.blocks)).max()?;
    let is_nearly_full = |c: &&HeldCopy| (most - u128::from(c.blocks)) * MISSING_PART <= most;
    copies.iter().filter(is_nearly_full).max_by_key(|c| (c.newest, c.blocks, c.drive)).map(|c| c.drive)
}

/// The groups without an in-sync member once these drives are gone as well.
pub fn lost_groups<'a>(
    map: &'a FabricMap,
    destroyed: &'a BTreeSet<DriveId>,
) -> impl Iterator<Item = &'a Group> {
    map.groups.values().filter(|g| g.read_set().all(|d| destroyed.contains(&d) || is_destroyed(map, d)))
}

pub(crate) fn accept(map: &mut FabricMap, change: &AcceptLoss) -> Result<Reason, Refusal> {
    for id in &change.destroyed {
        let unknown = || Refusal::Unknown { kind: Kind::Drive, id: id.to_string() };
        map.drives.get_mut(id).ok_or_else(unknown)?.state = DriveState::Destroyed;
    }
    if let Some(id) = change.older.iter().find(|d| !map.drives.contains_key(d)) {
        return Err(Refusal::Unknown { kind: Kind::Drive, id: id.to_string() });
    }
    if let Some(group) = lost_groups(map, &change.older).find(|g| !change.survivors.contains_key(&g.id)) {
        return Err(Refusal::LossNotNamed { group: group.id });
    }
    let (mut older, mut emptied) = (Vec::new(), Vec::new());
    for (&id, &survivor) in &change.survivors {
        match survivor {
            Survivor::Older(drive) => {
                check_lost(map, id, &change.older)?;
                go_on_with(map, id, drive)?;
                older.push(id);
            }
            Survivor::Empty(drive) => {
                check_lost(map, id, &change.older)?;
                begin_anew(map, id, drive)?;
                emptied.push(id);
            }
        }
    }
    if change.survivors.is_empty() {
        return Err(Refusal::NothingLost);
    }
    let ended = fence(map, &change.survivors);
    Ok(Reason::LossAccepted { destroyed: change.destroyed.iter().copied().collect(), older, emptied, ended })
}

fn is_destroyed(map: &FabricMap, drive: DriveId) -> bool {
    map.drives.get(&drive).is_none_or(|d| d.state == DriveState::Destroyed)
}

fn check_lost(map: &FabricMap, id: GroupId, older: &BTreeSet<DriveId>) -> Result<(), Refusal> {
    let unknown = || Refusal::Unknown { kind: Kind::Group, id: id.to_string() };
    let group = map.groups.get(&id).ok_or_else(unknown)?;
    match group.read_set().find(|d| !is_destroyed(map, *d) && !older.contains(d)) {
        Some(drive) => Err(Refusal::NotLost { group: id, drive }),
        None => Ok(()),
    }
}

/// The member is in-sync from now on. Members that were being brought up to date begin again: what they compared
/// themselves with is gone.
fn go_on_with(map: &mut FabricMap, id: GroupId, drive: DriveId) -> Result<(), Refusal> {
    if map.groups[&id].slot_of(drive).is_none() {
        return Err(Refusal::NotMember { group: id, drive });
    }
    if map.drives.get(&drive).is_none_or(|d| d.state.is_given_up()) {
        return Err(Refusal::NoSurvivor { group: id, drive, why: "it is marked as failed or destroyed" });
    }
    end_relocation(map, id, drive);
    demote(map, id);
    let group = map.groups.get_mut(&id).expect("the caller has it");
    let epoch = group.epoch;
    let slot = group.slots.iter_mut().find(|s| s.drive == drive).expect("it is a member");
    group::take(slot, Step::Survive, epoch);
    Ok(())
}

/// Another drive takes a slot over, in-sync with nothing in it.
fn begin_anew(map: &mut FabricMap, id: GroupId, drive: DriveId) -> Result<(), Refusal> {
    active_drive(map, drive)?;
    let group = &map.groups[&id];
    if let Some(left) = group.slots.iter().find(|s| !is_destroyed(map, s.drive)) {
        let why = "a member is left that was not declared destroyed";
        return Err(Refusal::NoSurvivor { group: id, drive: left.drive, why });
    }
    // None of the others is a copy any more, so their nodes do not matter.
    check_place(map, group, group.slots[0].drive, drive, FailureDomain::Drive)?;
    let keep = group.slots[0].drive;
    end_relocation(map, id, keep);
    demote(map, id);
    let group = map.groups.get_mut(&id).expect("the caller has it");
    let epoch = group.epoch;
    let slot = group.slots.iter_mut().find(|s| s.drive == keep).expect("it was kept");
    group::take(slot, Step::Survive, epoch);
    slot.drive = drive;
    Ok(())
}

/// Takes the slot away that the group has more while a member passes to another drive: that of a destroyed drive
/// first, never that of the drive to keep.
fn end_relocation(map: &mut FabricMap, id: GroupId, keep: DriveId) {
    let Some(relocation) = map.relocations.remove(&id) else { return };
    let passing = [relocation.from, relocation.to];
    let mut spare: Vec<DriveId> = passing.into_iter().filter(|d| *d != keep).collect();
    spare.sort_by_key(|d| !is_destroyed(map, *d));
    let group = map.groups.get_mut(&id).expect("a relocation is of a group");
    group.slots.retain(|s| s.drive != spare[0]);
}

/// Begins the group's next epoch: destroyed members are out, members that were syncing begin a new stint.
fn demote(map: &mut FabricMap, id: GroupId) {
    let gone: BTreeSet<DriveId> =
        map.groups[&id].slots.iter().map(|s| s.drive).filter(|d| is_destroyed(map, *d)).collect();
    let group = map.groups.get_mut(&id).expect("the caller has it");
    let epoch = group::next_epoch(group);
    for slot in group.slots.iter_mut().filter(|s| s.role != Role::Out) {
        let step = match slot.role {
            _ if gone.contains(&slot.drive) => Step::Leave,
            Role::InSync => Step::StandDown,
            _ => Step::BeginAgain,
        };
        group::take(slot, step, epoch);
    }
}

/// Ends every session of the volumes in these groups, and raises their generations: no client that has seen what is
/// lost may go on as if nothing had happened.
fn fence(map: &mut FabricMap, survivors: &BTreeMap<GroupId, Survivor>) -> Vec<weft_types::SessionId> {
    let touched = |v: &weft_types::Volume| v.groups().any(|g| survivors.contains_key(g));
    let volumes: Vec<VolumeId> = map.volumes.values().filter(|v| touched(v)).map(|v| v.id).collect();
    let mut ended = Vec::new();
    for id in volumes {
        ended.extend(end_sessions(map, id));
        let volume = map.volumes.get_mut(&id).expect("it was found above");
        volume.generation = Generation(volume.generation.0 + 1);
    }
    ended
}

/// Whether a group went on, from one map to the next, because the loss of all of its in-sync members was accepted.
pub(crate) fn is_accepted(old_map: &FabricMap, new_map: &FabricMap, old: &Group) -> bool {
    let declared = |d| new_map.drives.get(&d).is_some_and(|d| d.state == DriveState::Destroyed);
    // A member that was up to date and begins anew without having been out was older than it should be; or it has left,
    // where it was passing to another drive.
    let Some(new) = new_map.groups.get(&old.id) else { return false };
    let passing = old_map.relocations.get(&old.id);
    let counts_no_more = |d| match new.slot_of(d) {
        Some(slot) => slot.since > old.epoch,
        None => passing.is_some_and(|r| r.from == d || r.to == d),
    };
    old.read_set().all(|d| declared(d) || counts_no_more(d))
}

/// What is wrong with a step that is one of an accepted loss.
pub(crate) fn step_faults(old_map: &FabricMap, new_map: &FabricMap, old: &Group, new: &Group) -> Vec<String> {
    let mut faults = Vec::new();
    let mut must = |holds: bool, fault: &str| {
        if !holds {
            faults.push(format!("after an accepted loss, {fault}: {:?} became {:?}", old.slots, new.slots));
        }
    };
    must(new.epoch == old.epoch.next(), "the epoch is not the next one");
    must(new.floor == old.floor, "the floor is another one");
    must(new.read_set().count() == 1, "there is not one member in-sync");
    must(!new_map.relocations.contains_key(&new.id), "a member is passing to another drive");
    must(old_map.copies_of(old) == new.slots.len(), "the number of copies has changed");
    must(new.write_set().all(|d| !is_destroyed(new_map, d)), "a destroyed drive takes part");
    let taking_part = new.slots.iter().filter(|s| s.role != Role::Out);
    must({ taking_part }.all(|s| s.since == new.epoch), "a stint goes on");
    let known = new.slots.iter().filter(|s| old.slot_of(s.drive).is_none());
    must({ known }.all(|s| s.role == Role::InSync), "a drive has joined that is not the survivor");
    let of_group = new_map.volumes.values().filter(|v| v.has_group(new.id));
    let raised = |v: &weft_types::Volume| {
        old_map.volumes.get(&v.id).is_some_and(|before| v.generation > before.generation)
    };
    must({ of_group }.all(raised), "a volume's generation was not raised");
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_types::SessionSlot;

    fn copy(drive: u128, blocks: u64, newest: u64) -> HeldCopy {
        HeldCopy { drive: DriveId(drive), blocks, newest: Version::new(newest, SessionSlot(1)) }
    }

    #[test]
    fn a_copy_with_the_data_is_better_than_one_with_the_newest_versions() {
        assert_eq!(best_copy(&[]), None);
        let (complete, hollow, empty) = (copy(1, 6400, 5), copy(2, 500, 9), copy(3, 0, 0));
        assert_eq!(best_copy(&[hollow, complete, empty]), Some(DriveId(1)));
        assert_eq!(best_copy(&[empty, hollow]), Some(DriveId(2)));
        let (few_damaged, more_damaged) = (copy(4, 6300, 7), copy(5, 6299, 8));
        assert_eq!(
            best_copy(&[complete, few_damaged, more_damaged]),
            Some(DriveId(4)),
            "1 in 64 may be missing"
        );
        assert_eq!(
            best_copy(&[copy(6, 10, 5), copy(7, 10, 6)]),
            Some(DriveId(7)),
            "the newer of two that are as full"
        );
    }

    proptest! {
        #[test]
        fn no_copy_with_much_more_data_and_no_newer_one_with_as_much_is_passed_over(
            held in proptest::collection::vec((0u64..2_000, 0u64..8), 1..6)
        ) {
            let copies: Vec<HeldCopy> =
                (1..).zip(&held).map(|(drive, (blocks, newest))| copy(drive, *blocks, *newest)).collect();
            let best = best_copy(&copies).expect("there is a copy");
            let best = copies.iter().find(|c| c.drive == best).expect("it is one of them");
            for other in &copies {
                prop_assert!(other.blocks * 63 <= best.blocks * 64 + 63, "{other:?} has more than {best:?}");
                prop_assert!(other.blocks < best.blocks || other.newest <= best.newest, "{other:?}, not {best:?}");
            }
        }
    }
}
