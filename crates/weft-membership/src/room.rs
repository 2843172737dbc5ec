//! Which drives have room for another copy, as far as their targets have said how full they are.
//!
//! It owns the estimate of what a copy takes: as much as copies of the pool take on average. It never knows
//! how much a group holds, nor what a volume will write. A drive of which nothing was said counts as one
//! with room.

use std::collections::{BTreeMap, BTreeSet};
use weft_types::{BlockCount, DriveId, FabricMap, PoolId, Role};

/// How full a drive is, as its target said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Blocks that hold data or metadata.
    pub used: BlockCount,
    /// Blocks that writes of clients could take, now or once what was replaced is returned.
    pub free: BlockCount,
}

/// One block in so many stays free for what is written to the copies that a drive has already.
const KEPT_PART: u64 = 20;

/// The drives that no new group is to be placed on: less than one block in 20 would be free once the copies
/// are there that are being made on them.
pub fn nearly_full(map: &FabricMap, room: &BTreeMap<DriveId, Room>) -> BTreeSet<DriveId> {
    full_with(map, room, 0)
}

/// The drives that no existing group's copy is to be made on: the copy would have to fit as well.
pub(crate) fn full_for_copies(map: &FabricMap, room: &BTreeMap<DriveId, Room>) -> BTreeSet<DriveId> {
    full_with(map, room, 1)
}

fn full_with(map: &FabricMap, room: &BTreeMap<DriveId, Room>, further: u64) -> BTreeSet<DriveId> {
    if room.is_empty() {
        return BTreeSet::new();
    }
    // Per drive: copies that it holds, and those that are being made on it.
    let mut copies: BTreeMap<DriveId, (u64, u64)> = BTreeMap::new();
    for slot in map.groups.values().flat_map(|g| &g.slots) {
        let of_drive = copies.entry(slot.drive).or_default();
        match slot.role {
            Role::InSync => of_drive.0 += 1,
            Role::Syncing => of_drive.1 += 1,
            Role::Out => {}
        }
    }
    let mut held: BTreeMap<PoolId, (u128, u128)> = BTreeMap::new();
    for (drive, room) in room {
        let Some(listed) = map.drives.get(drive) else { continue };
        let (blocks, in_sync) = held.entry(listed.pool).or_default();
        *blocks += u128::from(room.used.0);
        *in_sync += u128::from(copies.get(drive).map_or(0, |c| c.0));
    }
    let is_full = |(drive, room): &(&DriveId, &Room)| {
        let Some(listed) = map.drives.get(drive) else { return false };
        let (blocks, in_sync) = held[&listed.pool];
        let of_copy = blocks.checked_div(in_sync).unwrap_or(0);
        let incoming = copies.get(drive).map_or(0, |c| c.1) + further;
        let kept = u128::from((room.used.0.saturating_add(room.free.0)) / KEPT_PART);
        u128::from(room.free.0) < kept + of_copy * u128::from(incoming)
    };
    room.iter().filter(is_full).map(|(drive, _)| *drive).collect()
}
