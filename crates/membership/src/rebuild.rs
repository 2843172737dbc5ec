//! Rebuild: the slot of a drive that is out passes to another drive, which begins as syncing.
//!
//! It owns the rules of who may take a slot over. It never chooses the drive: the plan did.

use crate::group;
use crate::refusal::Kind;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use weft_layout::FailureDomain;
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
    if domain == FailureDomain::Node {
        let mut others = map.staying(group).filter(|&d| d != from);
        let node_of = |drive| map.drives.get(&drive).map(|d| d.node);
        if let Some(other) = others.find(|&d| node_of(d) == Some(new.node)) {
            return Err(Refusal::SharedNode { group: group.id, drive: to, node: new.node, other });
        }
    }
    Ok(())
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
