//! Where the data of files lie, asked of groups instead of block by block: a file may have holes that are
//! larger than all drives together.

use crate::block::Space;
use crate::error::ClientError;
use crate::file_system::{File, FileSpace, FileSystem};
use crate::group_io::{GroupIo, Lister, Place};
use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::pin;
use weft_layout::{address_of, group_of_file};
use weft_rt::sync::join_all;
use weft_rules::{Mutation, mutated};
use weft_types::limits::{LISTED_RUNS_MAX, OBJECT_BLOCKS_MAX};
use weft_types::{BLOCK_SIZE, BlockRange, DriveId, GroupId, ObjectId, Owner, Striping};
use weft_wire::listing::ListAnswer;

/// Bytes of a block, as an offset.
const BLOCK: u64 = BLOCK_SIZE as u64;

/// The last object that an inode can have.
const LAST: u32 = u32::MAX;

/// A run of an inode's data in a group: whole chunks of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeData {
    /// The inode.
    pub inode: u64,
    /// The number of the object among those of the inode.
    pub object: u32,
    /// The blocks of the object. Some of them may hold nothing.
    pub blocks: BlockRange,
}

/// Where a list goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFrom {
    /// The inode.
    pub inode: u64,
    /// The number of an object of it.
    pub object: u32,
    /// The block of the object.
    pub block: u32,
}

impl File {
    /// How its addresses are spread over objects.
    pub fn striping(&self) -> Striping {
        self.space().striping
    }

    /// Where data may lie at or behind an offset, in bytes; `None` if there are none. Up to there every
    /// byte reads as zero, but for what a write in flight has filled. It takes a few requests to each group
    /// of the file, however large the hole is.
    ///
    /// # Errors
    /// Those of [`File::read`]; [`ClientError::Refused`] by a target of a release that cannot say it.
    pub async fn next_data(&self, offset: u64) -> Result<Option<u64>, ClientError> {
        let _busy = self.begin().await?;
        let row = self.row_with_data(offset / BLOCK, Lister::One).await?;
        Ok(row.first().map(|run| (run.start * BLOCK).max(offset)))
    }

    /// Gives back the space of the whole blocks in a range that hold data: with as many requests as there
    /// are data, however far they lie apart. Blocks without data get no version of this, so a write that is
    /// under way may come after it; the caller has made sure that there is none.
    ///
    /// # Errors
    /// Those of [`File::write`]; [`ClientError::Refused`] by a target of a release that cannot say
    /// where data lie.
    pub async fn discard_data(&self, range: Range<u64>) -> Result<(), ClientError> {
        let _busy = self.begin().await?;
        let (mut at, end) = (range.start.div_ceil(BLOCK), range.end / BLOCK);
        while at < end && !mutated(Mutation::ListForgotten) {
            let row = self.row_with_data(at, Lister::All).await?;
            let Some((first, last)) = row.first().zip(row.last()) else { break };
            // Holes between them too: one request to each object of the row.
            if first.start < end {
                self.discard(first.start * BLOCK, (last.end.min(end) - first.start) * BLOCK).await?;
            }
            at = last.end;
        }
        Ok(())
    }

    /// The blocks of the first row of objects that has data at or behind a block, in order and from that
    /// block on.
    async fn row_with_data(&self, from: u64, by: Lister) -> Result<Vec<Range<u64>>, ClientError> {
        let space = self.space();
        let width = space.striping.width;
        let row_blocks = u64::from(width) * u64::from(space.striping.object_blocks);
        let (mut from, groups) = (from, space.groups()?);
        loop {
            let Ok(first) = u32::try_from(from / row_blocks * u64::from(width)) else {
                return Ok(Vec::new());
            };
            let lists = groups.iter().map(|group| self.list(*group, (first, LAST), by));
            let lists = join_all(lists).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            let objects =
                lists.iter().filter_map(|list| list.runs.first()).map(|(object, _)| object.index() as u32);
            let Some(row) = objects.min().map(|object| object - object % width) else {
                return Ok(Vec::new());
            };
            let last = row.saturating_add(width - 1);
            let mut runs = Vec::new();
            for list in join_all((row..=last).map(|object| self.all_runs(object, by))).await {
                for (object, blocks) in list? {
                    addresses(&space.striping, object.index(), blocks, &mut runs);
                }
            }
            let runs = merged(runs, from);
            if !runs.is_empty() {
                return Ok(runs);
            }
            // All that the row has lies before the block.
            from = (u64::from(row) / u64::from(width) + 1) * row_blocks;
        }
    }

    /// All runs of one object.
    async fn all_runs(&self, object: u32, by: Lister) -> Result<Vec<(ObjectId, BlockRange)>, ClientError> {
        let place = self.space().place(object.into(), BlockRange::one(0))?;
        let (mut runs, mut next) = (Vec::new(), Some(0));
        while let Some(block) = next {
            let list = self.list_at(place.part(many_from(block)), place.object, by).await?;
            runs.extend(list.runs);
            next = list.next.map(|(_, block)| block);
        }
        Ok(runs)
    }

    /// The first part of a list of objects that has runs, or the last one.
    async fn list(&self, group: GroupId, objects: (u32, u32), by: Lister) -> Result<ListAnswer, ClientError> {
        let space = self.space();
        let owner = space.owner();
        let [first, last] = [objects.0, objects.1].map(|index| ObjectId::new(owner, index.into()));
        let request = space.io().session().number_request();
        let mut at = Place { group, object: first, range: BlockRange::one(0), request };
        loop {
            let list = self.list_at(at, last, by).await?;
            match list.next {
                Some((object, block)) if list.runs.is_empty() => {
                    at = Place { object, range: BlockRange::one(block), ..at };
                }
                // The first run says which row is meant: no more were asked for.
                _ => return Ok(list),
            }
        }
    }

    async fn list_at(&self, at: Place, last: ObjectId, by: Lister) -> Result<ListAnswer, ClientError> {
        let list = pin!(self.space().io().list(at, last, by));
        self.blocks().with_deadline("list", at, list).await
    }
}

impl FileSpace {
    /// What its objects belong to.
    fn owner(&self) -> Owner {
        Owner::Inode { file_system: self.io().session().volume, inode: self.inode }
    }

    /// The groups of its set, each once.
    fn groups(&self) -> Result<BTreeSet<GroupId>, ClientError> {
        self.with_listed(|volume| {
            let sets = volume.files().map(|files| &files.sets);
            let set = sets.and_then(|sets| sets.get(usize::from(self.set)));
            set.map(|set| set.iter().copied().collect())
        })
    }
}

impl FileSystem {
    /// The groups that hold data of files, each once.
    ///
    /// # Errors
    /// [`ClientError::Fenced`] if the file system is gone.
    pub fn groups(&self) -> Result<Vec<GroupId>, ClientError> {
        let groups = self.with_listed(|volume| {
            let sets = volume.files().map(|files| files.sets.iter());
            sets.map(|sets| sets.flat_map(|set| set.iter().copied()).collect::<BTreeSet<GroupId>>())
        });
        Ok(groups?.into_iter().collect())
    }

    /// The group that an object of an inode belongs into, by the set of its layout; `None` if this client's
    /// map has no such set.
    ///
    /// # Errors
    /// [`ClientError::Fenced`] if the file system is gone.
    pub fn group_of(&self, set: u8, inode: u64, object: u32) -> Result<Option<GroupId>, ClientError> {
        self.with_listed(|volume| Some(group_of_file(volume, set, inode, object)))
    }

    /// The drives that hold what is written to a group now; none if this client's map has no such group.
    pub fn drives_of(&self, group: GroupId) -> Vec<DriveId> {
        let map = self.session().fabric.map();
        map.groups.get(&group).map(|group| group.write_set().collect()).unwrap_or_default()
    }

    /// A part of what a group holds of all files, as one up-to-date replica says, in the order of inodes,
    /// objects and blocks; and where to go on. `only` names an inode: of the others nothing is said.
    ///
    /// # Errors
    /// Those of [`File::read`]; [`ClientError::Refused`] by a target of a release that cannot say it.
    pub async fn data_in(
        &self,
        group: GroupId,
        from: Option<DataFrom>,
        only: Option<u64>,
    ) -> Result<(Vec<InodeData>, Option<DataFrom>), ClientError> {
        let _busy = self.begin();
        let session = self.session();
        let object = |inode, index: u32| {
            ObjectId::new(Owner::Inode { file_system: session.volume, inode }, index.into())
        };
        let from = from.unwrap_or(DataFrom { inode: only.unwrap_or(0), object: 0, block: 0 });
        let at = Place {
            group,
            object: object(from.inode, from.object),
            range: many_from(from.block),
            request: session.number_request(),
        };
        let last = object(only.unwrap_or(u64::MAX), LAST);
        let list = pin!(self.io().list(at, last, Lister::One));
        let list = session.with_deadline(self.io_timeout(), "list", at, list).await?;
        let runs = list.runs.into_iter().filter_map(|(object, blocks)| {
            let (inode, object) = of_inode(object)?;
            Some(InodeData { inode, object, blocks })
        });
        let next = list.next.and_then(|(object, block)| {
            let (inode, object) = of_inode(object)?;
            Some(DataFrom { inode, object, block })
        });
        Ok((runs.collect(), next))
    }
}

/// A range that asks for as many runs as one answer has, from a block on.
fn many_from(block: u32) -> BlockRange {
    BlockRange::new(block, (LISTED_RUNS_MAX as u32).min(OBJECT_BLOCKS_MAX - block))
}

/// The inode of an object, and its number.
fn of_inode(object: ObjectId) -> Option<(u64, u32)> {
    match object.owner() {
        Owner::Inode { inode, .. } => Some((inode, object.index() as u32)),
        Owner::Volume(_) => None,
    }
}

/// Appends the addresses of an object's blocks, unit by unit.
fn addresses(striping: &Striping, object: u64, blocks: BlockRange, out: &mut Vec<Range<u64>>) {
    let unit = striping.unit_blocks;
    let mut block = blocks.first;
    while block < blocks.end() {
        let end = blocks.end().min(block - block % unit + unit);
        if let Some(at) = address_of(striping, object, block) {
            out.push(at.0..at.0 + u64::from(end - block));
        }
        block = end;
    }
}

/// The ranges in order, neighbours as one, without what lies before a block.
fn merged(mut ranges: Vec<Range<u64>>, from: u64) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut out: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges.into_iter().filter(|range| range.end > from) {
        let start = range.start.max(from);
        match out.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(start..range.end),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::random_below;
    use weft_rt::sim::Sim;

    #[test]
    fn runs_of_objects_become_addresses_in_order() {
        Sim::new(1).block_on(async {
            for _ in 0..500 {
                let object_blocks = 1 << random_below(8);
                let unit_blocks = (1 << random_below(8)).min(object_blocks);
                let striping = Striping { unit_blocks, width: 1 + random_below(5) as u32, object_blocks };
                let row = u64::from(striping.width) * random_below(3);
                let (mut blocks, mut ranges) = (BTreeSet::new(), Vec::new());
                for object in row..row + u64::from(striping.width) {
                    let first = random_below(object_blocks.into()) as u32;
                    let run =
                        BlockRange::new(first, 1 + random_below(u64::from(object_blocks - first)) as u32);
                    addresses(&striping, object, run, &mut ranges);
                    blocks.extend(run.blocks().map(|block| address_of(&striping, object, block).unwrap().0));
                }
                let from = row * u64::from(object_blocks) + random_below(u64::from(object_blocks) * 2);
                let expected: Vec<u64> = blocks.range(from..).copied().collect();
                let found = merged(ranges, from);
                assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start), "{found:?}");
                assert_eq!(found.into_iter().flatten().collect::<Vec<u64>>(), expected);
            }
        });
    }
}
