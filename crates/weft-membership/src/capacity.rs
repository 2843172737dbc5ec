//! How much of a pool is not yet promised to volumes.
//!
//! It owns the bookkeeping of promises. It never knows how full the drives really are: a thin volume may be promised
//! more than there is, and every volume occupies only what was written.

use std::collections::BTreeSet;
use weft_layout::{Candidate, FailureDomain, usable_blocks};
use weft_types::{BlockCount, DriveId, DriveState, FabricMap, PoolId, Protection};

/// The pool's drives that new groups may be placed on, by id, without those named as absent.
pub(crate) fn candidates(map: &FabricMap, pool: PoolId, absent: &BTreeSet<DriveId>) -> Vec<Candidate> {
    (map.drives.values())
        .filter(|d| d.pool == pool && d.state == DriveState::Active && !absent.contains(&d.id))
        .map(Candidate::of)
        .collect()
}

/// How many blocks a further volume with this protection may have without being thin.
///
/// That is what the active drives hold with this protection, less what all volumes of the pool were promised, counted
/// with theirs. Thin volumes count in full: what they were promised could be written at any time, and must not
/// come out of what was promised for certain. File systems were promised nothing.
pub fn free_blocks(
    map: &FabricMap,
    pool: PoolId,
    protection: Protection,
    domain: FailureDomain,
) -> BlockCount {
    let usable = usable_blocks(&candidates(map, pool, &BTreeSet::new()), protection.members(), domain);
    let volumes = map.volumes.values().filter(|v| v.pool == pool);
    let promised: u128 = volumes.map(|v| v.protection.raw_blocks(v.promised())).sum();
    let promised_here = u64::try_from(protection.data_blocks(promised)).unwrap_or(u64::MAX);
    BlockCount(usable.0.saturating_sub(promised_here))
}
