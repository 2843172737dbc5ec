//! Rebuild: the slot of a drive that is out passes to another drive, which begins as syncing.
//!
//! It owns the rules of who may take a slot over. It never chooses the drive: the plan did.

use crate::group;
use crate::refusal::Kind;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use weft_layout::{Candidate, FailureDomain};
use weft_types::{Drive, DriveId, DriveState, FabricMap, Group, GroupId, Role};

/// One group's lost copy is rebuilt on another drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rebuild {
    /// The group.
    pub group: GroupId,
    /// The drive that is out.
    pub from: DriveId,
    /// The drive that takes its slot over.
    pub to: DriveId,
    /// With `node`, refused where the new drive's node holds another copy.
    pub domain: FailureDomain,
}

pub(crate) fn rebuild(map: &mut FabricMap, change: &Rebuild) -> Result<Reason, Refusal> {
    let Rebuild { group, from, to, domain } = *change;
    take_over(map, group, from, to, domain)?;
    Ok(Reason::Rebuilding { group, from, to })
}

/// Passes one slot from a drive that is out to another drive; shared with `replace`.
pub(crate) fn take_over(
    map: &mut FabricMap,
    group_id: GroupId,
    from: DriveId,
    to: DriveId,
    domain: FailureDomain,
) -> Result<(), Refusal> {
    active_drive(map, to)?;
    let unknown = || Refusal::Unknown { kind: Kind::Group, id: group_id.to_string() };
    let group = map.groups.get(&group_id).ok_or_else(unknown)?;
    let at = (group.slots.iter().position(|s| s.drive == from))
        .ok_or(Refusal::NotMember { group: group_id, drive: from })?;
    if let Some(running) = map.relocations.get(&group_id).filter(|r| r.from == from || r.to == from) {
        return Err(Refusal::BeingRelocated { group: group_id, from: running.from, to: running.to });
    }
    let found = group.slots[at].role;
    if found != Role::Out {
        return Err(Refusal::WrongRole { group: group_id, drive: from, found, expected: Role::Out });
    }
    if !group::has_source_beside(group, from) {
        return Err(Refusal::NoSource { group: group_id });
    }
    check_place(map, group, from, to, domain)?;
    let group = map.groups.get_mut(&group_id).expect("it was found above");
    let epoch = group::next_epoch(group);
    group::set_drive(&mut group.slots[at], to, epoch);
    Ok(())
}

/// Checks that a drive can stand in a group in the place of one of its members.
pub(crate) fn check_place(
    map: &FabricMap,
    group: &Group,
    from: DriveId,
    to: DriveId,
    domain: FailureDomain,
) -> Result<(), Refusal> {
    let Some(new) = map.drives.get(&to) else {
        return Err(Refusal::Unknown { kind: Kind::Drive, id: to.to_string() });
    };
    if new.pool != group.pool {
        return Err(Refusal::WrongPool { drive: to, group: group.id, found: new.pool, expected: group.pool });
    }
    if group.slot_of(to).is_some() {
        return Err(Refusal::AlreadyMember { group: group.id, drive: to });
    }
    check_apart(map, group.id, map.staying(group).filter(|&d| d != from), new, domain)
}

/// Checks that a drive is apart from others that hold copies of a group.
pub(crate) fn check_apart(
    map: &FabricMap,
    group: GroupId,
    mut others: impl Iterator<Item = DriveId>,
    new: &Drive,
    domain: FailureDomain,
) -> Result<(), Refusal> {
    let place = Candidate::of(new);
    let is_near = |d: &Drive| !domain.is_apart(&Candidate::of(d), &place);
    let (drive, node) = (new.id, new.node);
    match others.find(|other| map.drives.get(other).is_some_and(is_near)) {
        None => Ok(()),
        Some(other) if domain == FailureDomain::Node => {
            Err(Refusal::SharedNode { group, drive, node, other })
        }
        Some(other) => Err(Refusal::SharedDevice { group, drive, other }),
    }
}

/// The drive, if it is known and active.
pub(crate) fn active_drive(map: &FabricMap, id: DriveId) -> Result<&Drive, Refusal> {
    let drive =
        map.drives.get(&id).ok_or_else(|| Refusal::Unknown { kind: Kind::Drive, id: id.to_string() })?;
    match drive.state {
        DriveState::Active => Ok(drive),
        DriveState::Draining => Err(Refusal::DriveDraining { drive: id }),
        DriveState::Failed => Err(Refusal::DriveFailed { drive: id }),
        DriveState::Destroyed => Err(Refusal::DriveDestroyed { drive: id }),
    }
}
