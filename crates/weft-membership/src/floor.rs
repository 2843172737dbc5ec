//! Floors of groups, R7: versions below which everything is finished, so that tombstones below them may be
//! forgotten.
//!
//! It owns what may become of a group whose members have closed below a version. It never knows what
//! sessions have open: the manager has asked, and has decided by the answers (`weft-manager/src/floor.rs`).

use crate::group;
use crate::refusal::Kind;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use weft_types::{Epoch, FabricMap, GroupId, Role, Version};

/// A group begins an epoch after its members have closed below a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupFloor {
    /// The group.
    pub group: GroupId,
    /// The epoch in which its members closed.
    pub epoch: Epoch,
    /// Its floor from now on; the one that it has, if there was no evidence for another.
    pub floor: Version,
}

/// Groups whose members have closed begin a new epoch with these floors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RaiseFloors {
    /// The groups.
    pub floors: Vec<GroupFloor>,
}

pub(crate) fn raise(map: &mut FabricMap, change: &RaiseFloors) -> Result<Reason, Refusal> {
    let mut raised = Vec::new();
    for GroupFloor { group: id, epoch, floor } in &change.floors {
        let unknown = || Refusal::Unknown { kind: Kind::Group, id: id.to_string() };
        let group = map.groups.get_mut(id).ok_or_else(unknown)?;
        if group.epoch != *epoch || *floor < group.floor {
            return Err(Refusal::FloorOutdated { group: *id, epoch: *epoch, found: group.epoch });
        }
        if let Some(slot) = group.slots.iter().find(|s| s.role != Role::InSync) {
            let (drive, found) = (slot.drive, slot.role);
            return Err(Refusal::WrongRole { group: *id, drive, found, expected: Role::InSync });
        }
        group::next_epoch(group);
        if *floor > group.floor {
            group.floor = *floor;
            raised.push(*id);
        }
    }
    Ok(Reason::FloorsRaised { groups: raised })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Change, apply, check_step};
    use weft_types::{DriveId, FabricId, Group, PoolId, SessionSlot, Slot};

    fn map(role: Role) -> FabricMap {
        let mut map = FabricMap::empty(FabricId(1));
        let slot = |n: u64, role| Slot { drive: DriveId(n.into()), role, since: Epoch(1) };
        let slots = vec![slot(1, Role::InSync), slot(2, role)];
        let floor = Version::new(5, SessionSlot(0));
        map.groups
            .insert(GroupId(1), Group { id: GroupId(1), pool: PoolId(1), epoch: Epoch(3), slots, floor });
        map
    }

    fn raise(map: &FabricMap, epoch: u64, floor: u64) -> Result<FabricMap, Refusal> {
        let floor =
            GroupFloor { group: GroupId(1), epoch: Epoch(epoch), floor: Version::new(floor, SessionSlot(0)) };
        apply(map, &Change::RaiseFloors(RaiseFloors { floors: vec![floor] })).map(|(map, _)| map)
    }

    #[test]
    fn a_floor_rises_with_the_epoch_in_which_members_closed_and_while_all_are_in_sync() {
        let old = map(Role::InSync);
        for (floor, group) in [(9, 9), (5, 5)].map(|(f, g)| (raise(&old, 3, f).unwrap(), g)) {
            assert_eq!(check_step(&old, &floor), []);
            let next = &floor.groups[&GroupId(1)];
            assert_eq!((next.epoch, next.floor.counter()), (Epoch(4), group));
            assert_eq!(next.slots, old.groups[&GroupId(1)].slots, "no stint begins");
        }
        assert!(matches!(raise(&old, 2, 9), Err(Refusal::FloorOutdated { .. })), "another epoch by now");
        assert!(matches!(raise(&old, 3, 4), Err(Refusal::FloorOutdated { .. })), "it never falls");
        assert!(matches!(raise(&map(Role::Syncing), 3, 9), Err(Refusal::WrongRole { .. })));
        let mut fallen = raise(&old, 3, 9).unwrap();
        fallen.groups.get_mut(&GroupId(1)).unwrap().floor = Version::ZERO;
        assert_eq!(check_step(&old, &fallen).len(), 1);
    }
}
