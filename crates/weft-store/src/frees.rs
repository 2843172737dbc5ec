//! Places that were replaced and may not be reused yet. Pure state.
//!
//! A replaced place is what recovery falls back to as long as the batch that replaced it is in doubt, and it
//! is what a read that began before may be reading. So it is returned to the bitmap only when a durable
//! marker or checkpoint covers that batch, and no read from before is left. What came before a read began is not what
//! it reads, so however many reads follow each other, what waits for them is returned.
//!
//! A checkpoint that is being written holds what was current at its instant. What is replaced meanwhile is
//! reached by it, and waits until it is done: in the place of such data its own pages would have two owners.

use crate::StoreError;
use crate::bitmap::{Bitmap, Unowned};
use crate::region::PlaceRun;
use std::collections::{BTreeMap, VecDeque};
use weft_rules::{Mutation, mutated};

/// A run that waits.
struct Waiting {
    /// How many were noted before it: reads that began by then may be reading it.
    number: u64,
    run: PlaceRun,
}

/// What waits to be returned.
#[derive(Default)]
pub(crate) struct Frees {
    /// With the batch that replaced them, in order.
    pending: VecDeque<(u64, Waiting)>,
    /// Map pages given up by a durable checkpoint: only reads keep them.
    retired: VecDeque<Waiting>,
    blocks: u64,
    /// How many runs were noted so far.
    noted: u64,
    /// Batches up to this one are covered.
    covered: u64,
    /// The newest batch in the checkpoint that is being written; none: none is.
    checkpoint: Option<u64>,
    /// Reads in progress, by how many runs had been noted when they began.
    readers: BTreeMap<u64, u32>,
}

impl Frees {
    /// Notes that a batch replaced a run.
    pub(crate) fn push(&mut self, batch: u64, run: PlaceRun) {
        debug_assert!(self.pending.back().is_none_or(|(b, _)| *b <= batch));
        let waiting = self.note(run);
        self.pending.push_back((batch, waiting));
    }

    /// Notes that a durable checkpoint gave up a page.
    pub(crate) fn retire(&mut self, run: PlaceRun) {
        let waiting = self.note(run);
        self.retired.push_back(waiting);
    }

    fn note(&mut self, run: PlaceRun) -> Waiting {
        self.blocks += u64::from(run.count);
        self.noted += 1;
        Waiting { number: self.noted - 1, run }
    }

    /// Notes that what batches up to this one replaced is not needed by any recovery.
    pub(crate) fn cover(&mut self, batch: u64) {
        self.covered = self.covered.max(batch);
    }

    /// A checkpoint of the batches up to this one begins to be written.
    pub(crate) fn begin_checkpoint(&mut self, batch: u64) {
        self.checkpoint = Some(batch);
    }

    /// The checkpoint is durable.
    pub(crate) fn end_checkpoint(&mut self) {
        self.checkpoint = None;
    }

    /// The newest batch of which nothing needs the places that it replaced, but reads.
    fn returnable(&self) -> u64 {
        let held = self.checkpoint.filter(|_| !mutated(Mutation::PagesOnReached));
        held.map_or(self.covered, |newest| newest.min(self.covered))
    }

    /// Returns what can be returned; whether anything was.
    ///
    /// # Errors
    /// If the drive has let something own a place that something else owned too: then it is not to be trusted.
    pub(crate) fn release(&mut self, bitmap: &mut Bitmap) -> Result<bool, StoreError> {
        let twice = |unowned: Unowned| unowned.found_by("a place that was replaced");
        let oldest = self.readers.first_key_value().filter(|_| !mutated(Mutation::ReaderNotWaitedFor));
        let oldest = oldest.map_or(u64::MAX, |(number, _)| *number);
        let before = self.blocks;
        let newest = self.returnable();
        let may_return = |(batch, w): &&(u64, Waiting)| *batch <= newest && w.number < oldest;
        while let Some((_, Waiting { run, .. })) = self.pending.front().filter(may_return) {
            bitmap.release(*run).map_err(twice)?;
            self.blocks -= u64::from(run.count);
            self.pending.pop_front();
        }
        while let Some(Waiting { run, .. }) = self.retired.front().filter(|w| w.number < oldest) {
            bitmap.release(*run).map_err(twice)?;
            self.blocks -= u64::from(run.count);
            self.retired.pop_front();
        }
        Ok(self.blocks != before)
    }

    /// A read begins: what is replaced from now on stays until it ends. Returns by what to name it then.
    pub(crate) fn begin_read(&mut self) -> u64 {
        *self.readers.entry(self.noted).or_default() += 1;
        self.noted
    }

    /// A read ends, by what its beginning returned.
    pub(crate) fn end_read(&mut self, begun: u64) {
        let count = self.readers.get_mut(&begun).expect("a read ends once, after it began");
        *count -= 1;
        if *count == 0 {
            self.readers.remove(&begun);
        }
    }

    /// Blocks that nothing but reads in progress keeps.
    pub(crate) fn blocks_kept_by_reads(&self) -> u64 {
        if self.readers.is_empty() {
            return 0;
        }
        let newest = self.returnable();
        let covered = self.pending.iter().take_while(|(batch, _)| *batch <= newest);
        covered.map(|(_, w)| w).chain(&self.retired).map(|w| u64::from(w.run.count)).sum()
    }

    /// Blocks that wait.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// All runs that wait: a checkpoint's bitmap shows them as free.
    pub(crate) fn runs(&self) -> Vec<PlaceRun> {
        self.pending.iter().map(|(_, w)| w).chain(&self.retired).map(|w| w.run).collect()
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
        let first = frees.begin_read();
        frees.push(6, out[0]);
        assert!(!frees.release(&mut bitmap).unwrap(), "batch 6 is in doubt");
        assert_eq!(frees.blocks_kept_by_reads(), 0, "a checkpoint has to come first");
        frees.cover(6);
        assert!(!frees.release(&mut bitmap).unwrap(), "a read from before is left");
        let second = frees.begin_read();
        frees.retire(page);
        assert_eq!(frees.blocks_kept_by_reads(), 3);
        frees.end_read(first);
        assert!(frees.release(&mut bitmap).unwrap());
        assert_eq!((bitmap.free(), frees.blocks()), (all + 2, 1));
        // Reads that begin later find other places.
        let third = frees.begin_read();
        frees.end_read(second);
        assert!(frees.release(&mut bitmap).unwrap() && frees.blocks() == 0 && bitmap.free() == all + 3);
        frees.end_read(third);
    }

    #[test]
    fn what_is_replaced_beside_a_checkpoint_returns_when_it_is_done() {
        let mut bitmap = Bitmap::new(RegionMap::of(64 << 20, None));
        let mut out = Vec::new();
        bitmap.allocate(1, &mut out);
        bitmap.allocate(1, &mut out);
        let all = bitmap.free();
        let mut frees = Frees::default();
        frees.push(6, out[0]);
        frees.begin_checkpoint(6);
        frees.push(7, out[1]);
        frees.cover(7);
        assert!(frees.release(&mut bitmap).unwrap());
        assert_eq!(bitmap.free(), all + 1, "the checkpoint reaches what batch 7 has replaced");
        frees.end_checkpoint();
        assert!(frees.release(&mut bitmap).unwrap() && bitmap.free() == all + 2);
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
