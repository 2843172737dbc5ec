//! Which blocks of the medium hold what.

use std::collections::BTreeSet;
use std::ops::Range;
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
    /// Free blocks that may have space on the drives.
    free: BTreeSet<u64>,
    /// Free blocks whose space was given back.
    empty: BTreeSet<u64>,
    end: u64,
}

impl Places {
    /// What is free where these pages are used, and pages begin at `first`.
    pub(crate) fn around(first: u64, used: &BTreeSet<u64>) -> Places {
        let end = used.last().map_or(first, |last| last + 1);
        let free = (first..end).filter(|block| !used.contains(block)).collect();
        Places { free, empty: BTreeSet::new(), end }
    }

    /// The lowest free block that has space, else the lowest one without, so that the medium stays short.
    pub(crate) fn take(&mut self) -> u64 {
        self.free.pop_first().or_else(|| self.empty.pop_first()).unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        })
    }

    /// Blocks that nothing reaches any more.
    pub(crate) fn give_back(&mut self, blocks: impl IntoIterator<Item = u64>) {
        self.free.extend(blocks);
    }

    /// Free blocks whose space is not kept any more, the highest first, as runs of neighbours: those beyond
    /// `kept`, and `most` of them. The caller gives their space back before any of them is taken.
    pub(crate) fn empty_beyond(&mut self, kept: usize, most: usize) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for _ in 0..self.free.len().saturating_sub(kept).min(most) {
            let block = self.free.pop_last().expect("there are more than are kept");
            match runs.last_mut() {
                Some(run) if block + 1 == run.start => run.start = block,
                _ => runs.push(block..block + 1),
            }
            self.empty.insert(block);
        }
        runs
    }
}
