//! What a drive holds, for people who look after a fabric: volumes in each group, how much, and how new.
//!
//! It only reads. What it says may be outdated when it is heard: nothing is decided by it that an epoch or a
//! generation would have to guard.

use crate::StoreError;
use crate::leaf::{Kind, LeafKey};
use crate::store::Store;
use std::collections::BTreeSet;
use weft_types::{GroupId, ObjectRange, Version, VolumeId};

/// Leaves that are looked at between two looks at the map.
const LEAVES_PER_STEP: usize = 512;

/// What a drive holds of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Chunks in which something was written or discarded.
    pub chunks: u64,
    /// Blocks that hold data, or should: what a copy left out (R12) and what was found damaged are among
    /// them.
    pub blocks: u64,
    /// Those of them that hold it, as far as was noticed.
    pub readable: u64,
    /// Blocks that were discarded or zeroed.
    pub zeroes: u64,
    /// The newest version of all.
    pub newest: Version,
}

impl Store {
    /// The newest commit that is durable here. It only rises, over restarts and crashes too, unless the drive is
    /// replaced by an older copy of itself or has lost what it had promised to keep.
    pub fn durable_commit(&self) -> u64 {
        self.engine.state.borrow().commits.durable()
    }

    /// The volumes of which the drive holds something in a group, in order.
    ///
    /// # Errors
    /// If the store has failed, or a page of the map is damaged.
    pub async fn volumes_in(&self, group: GroupId) -> Result<Vec<VolumeId>, StoreError> {
        let end = group.0.checked_add(1).map(|next| LeafKey::first_of(GroupId(next)));
        let mut from = Some(LeafKey::first_of(group));
        let mut volumes = BTreeSet::new();
        while let Some(key) = from {
            let (found, more) = self.engine.scan(key, end, 1).await?;
            from = match found.first() {
                None => more,
                Some((key, _)) => {
                    volumes.insert(key.object.owner().volume());
                    LeafKey::bounds(group, ObjectRange::of_entry_around(key.object)).1
                }
            };
        }
        Ok(volumes.into_iter().collect())
    }

    /// What the drive holds of a group. Takes as long as it takes to read the group's part of the block map.
    ///
    /// # Errors
    /// If the store has failed, or a page of the map is damaged.
    pub async fn holding(&self, group: GroupId) -> Result<Holding, StoreError> {
        let end = group.0.checked_add(1).map(|next| LeafKey::first_of(GroupId(next)));
        let mut from = Some(LeafKey::first_of(group));
        let mut holding = Holding::default();
        while let Some(key) = from {
            let (found, more) = self.engine.scan(key, end, LEAVES_PER_STEP).await?;
            let floor = self.floor(group);
            for (_, leaf) in found.iter().filter(|(_, leaf)| !leaf.is_empty_above(floor)) {
                holding.chunks += 1;
                for run in leaf.runs().iter().filter(|run| !run.is_tombstone_below(floor)) {
                    holding.newest = holding.newest.max(run.version);
                    let blocks = u64::from(run.count);
                    match run.kind {
                        Kind::Zero => holding.zeroes += blocks,
                        Kind::Damaged => holding.blocks += blocks,
                        Kind::Data => {
                            holding.blocks += blocks;
                            holding.readable += blocks;
                        }
                    }
                }
            }
            from = more;
        }
        Ok(holding)
    }

    /// Whether the drive holds data of a volume; what was only discarded or zeroed is none.
    ///
    /// # Errors
    /// If the store has failed, or a page of the map is damaged.
    pub async fn holds_data_of(&self, volume: VolumeId) -> Result<bool, StoreError> {
        for group in self.groups() {
            for objects in ObjectRange::of_entry(volume) {
                let (first, end) = LeafKey::bounds(group, objects);
                let mut from = Some(first);
                while let Some(key) = from {
                    let (found, more) = self.engine.scan(key, end, LEAVES_PER_STEP).await?;
                    if found.iter().any(|(_, leaf)| leaf.runs().iter().any(|run| run.kind != Kind::Zero)) {
                        return Ok(true);
                    }
                    from = more;
                }
            }
        }
        Ok(false)
    }
}
