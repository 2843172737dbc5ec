//! Blocks and addresses. A block is 4 KiB: the unit of versioning and checksumming.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Bytes in a block: the unit of versioning and checksumming.
pub const BLOCK_SIZE: usize = 4096;

/// Bytes in the smallest logical block that a volume offers (only where attached exclusively).
pub const SECTOR_SIZE: usize = 512;

/// A block's address inside a volume, in blocks of [`BLOCK_SIZE`] from the volume's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lba(pub u64);

/// A number of blocks of [`BLOCK_SIZE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockCount(pub u64);

impl BlockCount {
    /// The number of bytes, or `None` where it does not fit 64 bits.
    pub fn bytes(self) -> Option<u64> {
        self.0.checked_mul(BLOCK_SIZE as u64)
    }

    /// The number of blocks that `bytes` fill, rounded up.
    pub fn covering(bytes: u64) -> Self {
        BlockCount(bytes.div_ceil(BLOCK_SIZE as u64))
    }
}

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

impl fmt::Display for BlockCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks", self.0)
    }
}

/// A run of blocks inside one object: `first` up to, not including, `first + count`.
///
/// An object has at most [`crate::limits::OBJECT_BLOCKS_MAX`] blocks, so 32 bits are ample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockRange {
    /// The first block, counted from the object's start.
    pub first: u32,
    /// How many blocks; at least 1 in every valid request.
    pub count: u32,
}

impl BlockRange {
    /// A run of `count` blocks from `first`.
    pub const fn new(first: u32, count: u32) -> Self {
        BlockRange { first, count }
    }

    /// One block.
    pub const fn one(block: u32) -> Self {
        BlockRange { first: block, count: 1 }
    }

    /// The first block after the run.
    ///
    /// # Panics
    /// If the run passes the end of 32 bits; check untrusted input with [`BlockRange::is_valid`] first.
    pub fn end(self) -> u32 {
        self.first.checked_add(self.count).expect("a block range ends within 32 bits")
    }

    /// The blocks' numbers.
    pub fn blocks(self) -> Range<u32> {
        self.first..self.end()
    }

    /// Whether the block lies in the run.
    pub fn contains(self, block: u32) -> bool {
        block >= self.first && block - self.first < self.count
    }

    /// Whether the two runs share a block.
    pub fn overlaps(self, other: BlockRange) -> bool {
        self.first < other.end() && other.first < self.end()
    }

    /// Whether the run is not empty and lies inside an object of the largest size.
    pub fn is_valid(self) -> bool {
        self.count > 0
            && self.first.checked_add(self.count).is_some_and(|end| end <= crate::limits::OBJECT_BLOCKS_MAX)
    }

    /// The run's length in bytes.
    pub fn bytes(self) -> usize {
        self.count as usize * BLOCK_SIZE
    }

    /// The run cut into parts of at most `max` blocks, in order.
    pub fn parts(self, max: u32) -> impl Iterator<Item = BlockRange> {
        let firsts = (self.first..self.end()).step_by(max as usize);
        firsts.map(move |first| BlockRange::new(first, max.min(self.end() - first)))
    }

    /// The run cut at chunk boundaries, in order: each part lies inside one chunk.
    pub fn by_chunk(self) -> impl Iterator<Item = (ChunkIndex, BlockRange)> {
        let chunk_blocks = crate::limits::CHUNK_BLOCKS;
        let (mut at, end) = (self.first, self.end());
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let chunk = at / chunk_blocks;
            let stop = end.min((chunk + 1) * chunk_blocks);
            let part = BlockRange::new(at, stop - at);
            at = stop;
            Some((ChunkIndex(chunk as u16), part))
        })
    }
}

impl fmt::Display for BlockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.first, self.count)
    }
}

/// A chunk's number inside its object: a run of [`crate::limits::CHUNK_BLOCKS`] blocks, the unit of the
/// block map's leaves, of digests and of verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChunkIndex(pub u16);

impl ChunkIndex {
    /// The blocks of this chunk.
    pub fn range(self) -> BlockRange {
        BlockRange::new(u32::from(self.0) * crate::limits::CHUNK_BLOCKS, crate::limits::CHUNK_BLOCKS)
    }

    /// The chunk that holds a block of an object.
    pub fn of(block: u32) -> Self {
        ChunkIndex((block / crate::limits::CHUNK_BLOCKS) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_chunk_boundaries() {
        let chunk = crate::limits::CHUNK_BLOCKS;
        let parts: Vec<_> = BlockRange::new(chunk - 1, chunk + 2).by_chunk().collect();
        assert_eq!(
            parts,
            [
                (ChunkIndex(0), BlockRange::new(chunk - 1, 1)),
                (ChunkIndex(1), BlockRange::new(chunk, chunk)),
                (ChunkIndex(2), BlockRange::new(2 * chunk, 1)),
            ]
        );
    }

    #[test]
    fn a_range_is_cut_into_parts() {
        let parts: Vec<_> = BlockRange::new(5, 9).parts(4).collect();
        assert_eq!(parts, [BlockRange::new(5, 4), BlockRange::new(9, 4), BlockRange::new(13, 1)]);
        assert_eq!(BlockRange::new(5, 4).parts(4).count(), 1);
    }

    #[test]
    fn a_range_past_the_largest_object_is_invalid() {
        assert!(!BlockRange::new(crate::limits::OBJECT_BLOCKS_MAX, 1).is_valid());
        assert!(!BlockRange::new(u32::MAX, 2).is_valid());
        assert!(!BlockRange::new(0, 0).is_valid());
    }
}
