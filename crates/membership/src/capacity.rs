//! How much of a pool is not yet promised to volumes.
//!
//! It owns the bookkeeping of promises. It never knows how full the drives really are: a thin volume may be promised
//! more than there is, and every volume occupies only what was written.

use std::collections::BTreeSet;
use weft_layout::{Candidate, FailureDomain, usable_blocks};
use weft_types::{BlockCount, DriveId, DriveState, FabricMap, PoolId};

/// The pool's drives that new groups may be placed on, by id, without those named as absent.
pub(crate) fn candidates(map: &FabricMap, pool: PoolId, absent: &BTreeSet<DriveId>) -> Vec<Candidate> {
    (map.drives.values())
        .filter(|d| d.pool == pool && d.state == DriveState::Active && !absent.contains(&d.id))
        .map(|d| Candidate { drive: d.id, node: d.node, capacity: d.capacity })
        .collect()
}

/// How many blocks a further volume with this many copies may have without being thin.
///
/// That is what the active drives hold at these copies, less what all volumes of the pool were promised, counted
/// at their copies. Thin volumes count in full: what they were promised could be written at any time, and must not
/// come out of what was promised for certain.
pub fn free_blocks(map: &FabricMap, pool: PoolId, copies: u8, domain: FailureDomain) -> BlockCount {
    let copies = u128::from(copies.max(1));
    let usable = usable_blocks(&candidates(map, pool, &BTreeSet::new()), copies as usize, domain);
    let promised: u128 = (map.volumes.values())
        .filter(|v| v.pool == pool)
        .map(|v| u128::from(v.size.0) * u128::from(v.copies))
        .sum();
    let promised_here = u64::try_from(promised.div_ceil(copies)).unwrap_or(u64::MAX);
    BlockCount(usable.0.saturating_sub(promised_here))
}
