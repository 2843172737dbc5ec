//! Places that were replaced and may not be reused yet. Pure state.
//!
//! A replaced place is what recovery falls back to as long as the batch that replaced it is in doubt, and it
//! is what a read that began before may be reading. So it is returned to the bitmap only when a durable
//! marker or checkpoint covers that batch, and no read from before is left.

use crate::StoreError;
use crate::bitmap::{Bitmap, Unowned};
use crate::region::PlaceRun;
use std::collections::{BTreeMap, VecDeque};
use weft_rt::{Mutation, mutated};

/// What waits to be returned.
#[derive(Default)]
pub(crate) struct Frees {
    /// With the batch that replaced them, in order.
    pending: VecDeque<(u64, PlaceRun)>,
    /// Map pages given up by a durable checkpoint, with the open batch at that time: only reads keep them.
    retired: VecDeque<(u64, PlaceRun)>,
    blocks: u64,
    /// Batches up to this one are covered.
    covered: u64,
    /// Reads in progress, by the open batch when they began.
    readers: BTreeMap<u64, u32>,
}

impl Frees {
    /// Notes that a batch replaced a run.
    pub(crate) fn push(&mut self, batch: u64, run: PlaceRun) {
        debug_assert!(self.pending.back().is_none_or(|(b, _)| *b <= batch));
        self.pending.push_back((batch, run));
        self.blocks += u64::from(run.count);
    }

    /// Notes that a durable checkpoint gave up a page; `open_batch` is the batch that is open now.
    pub(crate) fn retire(&mut self, open_batch: u64, run: PlaceRun) {
        self.retired.push_back((open_batch, run));
        self.blocks += u64::from(run.count);
    }

    /// Notes that what batches up to this one replaced is not needed by any recovery.
    pub(crate) fn cover(&mut self, batch: u64) {
        self.covered = self.covered.max(batch);
    }

    /// Returns what can be returned; whether anything was.
    ///
    /// # Errors
    /// If the drive has let something own a place that something else owned too: then it is not to be trusted.
    pub(crate) fn release(&mut self, bitmap: &mut Bitmap) -> Result<bool, StoreError> {
        let twice = |unowned: Unowned| unowned.found_by("a place that was replaced");
        let oldest = self.readers.first_key_value().filter(|_| !mutated(Mutation::ReaderNotWaitedFor));
        let oldest = oldest.map_or(u64::MAX, |(batch, _)| *batch);
        let before = self.blocks;
        let covered = self.covered;
        while let Some((_, run)) = self.pending.front().filter(|(b, _)| *b <= covered && *b < oldest) {
            bitmap.release(*run).map_err(twice)?;
            self.blocks -= u64::from(run.count);
            self.pending.pop_front();
        }
        while let Some((_, run)) = self.retired.front().filter(|(b, _)| *b < oldest) {
            bitmap.release(*run).map_err(twice)?;
            self.blocks -= u64::from(run.count);
            self.retired.pop_front();
        }
        Ok(self.blocks != before)
    }

    /// A read begins while this batch is open: what later batches replace stays until it ends.
    pub(crate) fn begin_read(&mut self, open_batch: u64) {
        *self.readers.entry(open_batch).or_default() += 1;
    }

    /// A read that began while this batch was open ends.
    pub(crate) fn end_read(&mut self, open_batch: u64) {
        let count = self.readers.get_mut(&open_batch).expect("a read ends once, after it began");
        *count -= 1;
        if *count == 0 {
            self.readers.remove(&open_batch);
        }
    }

    /// Blocks that wait.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// All runs that wait: a checkpoint's bitmap shows them as free.
    pub(crate) fn runs(&self) -> Vec<PlaceRun> {
        self.pending.iter().chain(&self.retired).map(|(_, run)| *run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::RegionMap;

    #[test]
    fn a_place_returns_after_its_batch_is_covered_and_older_reads_are_over() {
        let mut bitmap = Bitmap::new(RegionMap::of(64 << 20, None));
        let mut out = Vec::new();
        bitmap.allocate(2, &mut out);
        let page = PlaceRun { place: bitmap.allocate_page().unwrap(), count: 1 };
        let all = bitmap.free();
        let mut frees = Frees::default();
        frees.begin_read(5);
        frees.push(6, out[0]);
        assert!(!frees.release(&mut bitmap).unwrap(), "batch 6 is in doubt");
        frees.cover(6);
        assert!(!frees.release(&mut bitmap).unwrap(), "a read from batch 5 is left");
        frees.begin_read(7);
        frees.retire(7, page);
        frees.end_read(5);
        assert!(frees.release(&mut bitmap).unwrap());
        assert_eq!((bitmap.free(), frees.blocks()), (all + 2, 1));
        frees.end_read(7);
        assert!(frees.release(&mut bitmap).unwrap() && frees.blocks() == 0 && bitmap.free() == all + 3);
    }

    #[test]
    fn a_place_that_two_owners_give_up_is_an_error() {
        let mut bitmap = Bitmap::new(RegionMap::of(64 << 20, None));
        let mut out = Vec::new();
        bitmap.allocate(1, &mut out);
        let mut frees = Frees::default();
        frees.push(1, out[0]);
        frees.push(1, out[0]);
        frees.cover(1);
        assert!(matches!(frees.release(&mut bitmap), Err(StoreError::MetadataDamaged { .. })));
    }
}
