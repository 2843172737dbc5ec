//! Which blocks of the medium hold what.

use std::collections::BTreeSet;
use weft_types::limits::META_BATCH_BLOCKS_MAX;

/// The two slots of the superblock.
pub(crate) const SUPERBLOCKS: [u64; 2] = [0, 1];

/// Where the log begins. What lies before it and behind the superblocks is left for later uses.
pub(crate) const LOG_BLOCK: u64 = 16;

/// Blocks of the log of a new shard: 64 MiB.
pub const LOG_BLOCKS: u32 = 16_384;

/// The fewest blocks of a log: room for the largest batch under way and the next one, and as much again for
/// what comes while a checkpoint is made.
pub(crate) const LOG_BLOCKS_LEAST: u32 = 4 * META_BATCH_BLOCKS_MAX;

/// Blocks for pages of the tree: those that are free below the end, and all from there on.
#[derive(Debug, Default)]
pub(crate) struct Places {
    free: BTreeSet<u64>,
    end: u64,
}

impl Places {
    /// What is free where these pages are used, and pages begin at `first`.
    pub(crate) fn around(first: u64, used: &BTreeSet<u64>) -> Places {
        let end = used.last().map_or(first, |last| last + 1);
        Places { free: (first..end).filter(|block| !used.contains(block)).collect(), end }
    }

    /// A free block; the lowest one, so that the medium stays short.
    pub(crate) fn take(&mut self) -> u64 {
        self.free.pop_first().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        })
    }

    /// Blocks that nothing reaches any more.
    pub(crate) fn give_back(&mut self, blocks: impl IntoIterator<Item = u64>) {
        self.free.extend(blocks);
    }
}
