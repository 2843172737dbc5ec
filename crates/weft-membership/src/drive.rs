//! Drives: one joins a pool, is being emptied, is declared failed, or is forgotten.
//!
//! It owns a drive's entry. It never changes a group: a failed drive is evicted and rebuilt by changes of
//! their own.

use crate::refusal::Kind;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use weft_types::{BlockCount, DeviceId, Drive, DriveId, DriveState, FabricMap, PoolId, TargetId};

/// A drive joins a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddDrive {
    /// The drive's identity, from its label.
    pub drive: DriveId,
    /// The target that serves it.
    pub target: TargetId,
    /// The pool that may draw from it.
    pub pool: PoolId,
    /// The path on its node, for people.
    pub path: String,
    /// Blocks that can hold data; above 0.
    pub capacity: BlockCount,
    /// The device that it is on, as its target says; none: it shares it with no other drive.
    #[serde(default)]
    pub device: Option<DeviceId>,
}

/// A drive's target says of another device than before that the drive is on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetDevice {
    /// The drive.
    pub drive: DriveId,
    /// The device; another one than the map has.
    pub device: DeviceId,
}

/// Nothing new is placed on a drive, and its members pass to other drives; or no longer so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainDrive {
    /// The drive.
    pub drive: DriveId,
    /// Whether it is being emptied from now on; otherwise it takes part again.
    pub on: bool,
}

/// A drive is declared failed: nothing new is placed on it, its groups move away. Where its device is at
/// fault, the device's other drives are emptied from now on: whatever their copies are still good for, they
/// count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailDrive {
    /// The drive.
    pub drive: DriveId,
    /// Why, for people.
    pub cause: String,
    /// Whether the device that it is on is at fault, not only what is on the drive (P5).
    #[serde(default)]
    pub of_device: bool,
}

/// A drive that had failed is sound again: it takes part, and its copies come back as syncing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreDrive {
    /// The drive.
    pub drive: DriveId,
}

/// A drive that no group lists any more is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveDrive {
    /// The drive.
    pub drive: DriveId,
}

pub(crate) fn add(map: &mut FabricMap, change: &AddDrive) -> Result<Reason, Refusal> {
    let AddDrive { drive, target, pool, path, capacity, device } = change;
    let unknown = |kind, id: String| Refusal::Unknown { kind, id };
    let Some(node) = map.targets.get(target).map(|target| target.node) else {
        return Err(unknown(Kind::Target, target.to_string()));
    };
    if !map.pools.contains_key(pool) {
        return Err(unknown(Kind::Pool, pool.to_string()));
    }
    if let Some(listed) = map.drives.get(drive) {
        return Err(Refusal::DuplicateDrive {
            drive: *drive,
            listed_node: listed.node,
            listed_path: listed.path.clone(),
            found_node: node,
            found_path: path.clone(),
        });
    }
    if map.removed_drives.contains(drive) {
        return Err(Refusal::DriveRemoved { drive: *drive });
    }
    if capacity.0 == 0 {
        return Err(Refusal::EmptyDrive { drive: *drive });
    }
    let entry = Drive {
        id: *drive,
        node,
        target: *target,
        device: device.unwrap_or(DeviceId::of_drive(*drive)),
        pool: *pool,
        path: path.clone(),
        capacity: *capacity,
        state: DriveState::Active,
    };
    map.drives.insert(*drive, entry);
    Ok(Reason::DriveAdded { drive: *drive, node, pool: *pool })
}

pub(crate) fn set_device(map: &mut FabricMap, change: &SetDevice) -> Result<Reason, Refusal> {
    let SetDevice { drive, device } = *change;
    let Some(listed) = map.drives.get_mut(&drive) else {
        return Err(Refusal::Unknown { kind: Kind::Drive, id: drive.to_string() });
    };
    if listed.device == device {
        return Err(Refusal::SameDevice { drive, device });
    }
    listed.device = device;
    Ok(Reason::DeviceFound { drive, device })
}

pub(crate) fn drain(map: &mut FabricMap, change: &DrainDrive) -> Result<Reason, Refusal> {
    let DrainDrive { drive: id, on } = *change;
    let unknown = || Refusal::Unknown { kind: Kind::Drive, id: id.to_string() };
    let drive = map.drives.get_mut(&id).ok_or_else(unknown)?;
    let (before, after) = match on {
        true => (DriveState::Active, DriveState::Draining),
        false => (DriveState::Draining, DriveState::Active),
    };
    match drive.state {
        DriveState::Failed => Err(Refusal::DriveFailed { drive: id }),
        DriveState::Destroyed => Err(Refusal::DriveDestroyed { drive: id }),
        state if state == before => {
            drive.state = after;
            Ok(Reason::DriveDraining { drive: id, on })
        }
        _ if on => Err(Refusal::DriveDraining { drive: id }),
        _ => Err(Refusal::NotDraining { drive: id }),
    }
}

pub(crate) fn fail(map: &mut FabricMap, change: &FailDrive) -> Result<Reason, Refusal> {
    let FailDrive { drive: id, ref cause, of_device } = *change;
    let unknown = || Refusal::Unknown { kind: Kind::Drive, id: id.to_string() };
    let drive = map.drives.get_mut(&id).ok_or_else(unknown)?;
    match drive.state {
        DriveState::Failed => return Err(Refusal::AlreadyFailed { drive: id }),
        DriveState::Destroyed => return Err(Refusal::DriveDestroyed { drive: id }),
        DriveState::Active | DriveState::Draining => {}
    }
    drive.state = DriveState::Failed;
    let place = (drive.node, drive.device);
    let mut emptied = Vec::new();
    if of_device {
        map.drives.update_where(
            |d| (d.node, d.device) == place && d.state == DriveState::Active,
            |sibling| {
                sibling.state = DriveState::Draining;
                emptied.push(sibling.id);
            },
        );
    }
    Ok(Reason::DriveFailed { drive: id, cause: cause.clone(), emptied })
}

/// A failed drive's members were evicted first, or are in-sync still because they are the last: either way a
/// copy that missed a write is not taken for a good one.
pub(crate) fn restore(map: &mut FabricMap, change: &RestoreDrive) -> Result<Reason, Refusal> {
    let id = change.drive;
    let unknown = || Refusal::Unknown { kind: Kind::Drive, id: id.to_string() };
    let drive = map.drives.get_mut(&id).ok_or_else(unknown)?;
    match drive.state {
        DriveState::Failed => {}
        DriveState::Destroyed => return Err(Refusal::DriveDestroyed { drive: id }),
        DriveState::Active | DriveState::Draining => return Err(Refusal::NotFailed { drive: id }),
    }
    drive.state = DriveState::Active;
    Ok(Reason::DriveRestored { drive: id })
}

pub(crate) fn remove(map: &mut FabricMap, change: &RemoveDrive) -> Result<Reason, Refusal> {
    let id = change.drive;
    if !map.drives.contains_key(&id) {
        return Err(Refusal::Unknown { kind: Kind::Drive, id: id.to_string() });
    }
    let mut listing = map.groups.values().filter(|g| g.slot_of(id).is_some()).map(|g| g.id);
    if let Some(first) = listing.next() {
        return Err(Refusal::DriveInUse { drive: id, groups: 1 + listing.count(), first });
    }
    map.drives.remove(&id);
    map.removed_drives.insert(id);
    Ok(Reason::DriveRemoved { drive: id })
}
