//! Where a group holds data, run by run: for who looks for data in what is mostly empty.
//!
//! It only reads the block map. A run is whole chunks of one object, so it may hold less than it says; what
//! it does not name held nothing when it was looked at.

use crate::StoreError;
use crate::leaf::{Kind, LeafKey};
use crate::store::Store;
use weft_rt::breathe;
use weft_types::limits::OBJECT_CHUNKS_MAX;
use weft_types::{BlockRange, ChunkIndex, GroupId, ObjectId, ObjectRange};

/// Leaves that are read between two looks at the map, and that are looked at in a row while other work waits.
const LEAVES_PER_STEP: usize = 512;

/// Leaves that one call looks at, where most hold nothing but what was discarded.
const LEAVES_PER_LIST: usize = 16 * LEAVES_PER_STEP;

/// A part of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataRuns {
    /// In the order of objects and blocks; none empty. Damaged data count.
    pub runs: Vec<(ObjectId, BlockRange)>,
    /// Where to go on; nothing if this was the last part.
    pub next: Option<(ObjectId, ChunkIndex)>,
}

impl Store {
    /// At most `limit` runs of a group that hold data, from a chunk on, up to the last object of a range.
    ///
    /// # Errors
    /// If the store has failed, or a page of the map is damaged.
    pub async fn data_runs(
        &self,
        group: GroupId,
        (object, chunk): (ObjectId, ChunkIndex),
        last: ObjectId,
        limit: usize,
    ) -> Result<DataRuns, StoreError> {
        let (_, end) = LeafKey::bounds(group, ObjectRange { first: object, last });
        let mut next = Some(LeafKey { group, object, chunk });
        let mut runs: Vec<(ObjectId, BlockRange)> = Vec::new();
        let mut looked_at = 0;
        while let Some(from) = next.filter(|_| looked_at < LEAVES_PER_LIST) {
            let (leaves, more) = self.engine.scan(from, end, LEAVES_PER_STEP).await?;
            looked_at += LEAVES_PER_STEP;
            next = more;
            for (key, _) in
                leaves.iter().filter(|(_, leaf)| leaf.runs().iter().any(|run| run.kind != Kind::Zero))
            {
                let chunk = key.chunk.range();
                let is_full = runs.len() == limit;
                match runs.last_mut() {
                    Some((object, run)) if *object == key.object && run.end() == chunk.first => {
                        run.count += chunk.count;
                    }
                    _ if is_full => {
                        return Ok(DataRuns { runs, next: Some((key.object, key.chunk)) });
                    }
                    _ => runs.push((key.object, chunk)),
                }
            }
            breathe().await;
        }
        Ok(DataRuns { runs, next: next.and_then(|key| goes_on(key, last)) })
    }
}

/// A key as a place of an object that there can be. Behind the last chunk of one is the next object.
fn goes_on(key: LeafKey, last: ObjectId) -> Option<(ObjectId, ChunkIndex)> {
    if u32::from(key.chunk.0) < OBJECT_CHUNKS_MAX {
        return Some((key.object, key.chunk));
    }
    key.object.following().filter(|object| *object <= last).map(|object| (object, ChunkIndex(0)))
}
