//! Bytes of a file that programs have written, and that are not on their way to the drives yet (F14).
//!
//! They are kept in runs that do not overlap. Nothing here waits.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use weft_rt::Buf;

/// Bytes of a run: one request of the data path.
const RUN_BYTES: usize = 1 << 20;

/// What a run counts for beside its bytes.
const RUN_WEIGHT: u64 = 256;

/// Runs that are not written yet, by offset.
#[derive(Default)]
pub(crate) struct Dirty {
    runs: RefCell<BTreeMap<u64, Vec<u8>>>,
    bytes: Cell<u64>,
}

impl Dirty {
    /// What they take of memory and time: their bytes, and something for each run.
    pub(crate) fn weight(&self) -> u64 {
        self.bytes.get() + RUN_WEIGHT * self.runs.borrow().len() as u64
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.get() == 0
    }

    /// Whether there are some from an offset on and below an end.
    pub(crate) fn overlaps(&self, offset: u64, end: u64) -> bool {
        let runs = self.runs.borrow();
        runs.range(..end).next_back().is_some_and(|(at, run)| at + run.len() as u64 > offset)
    }

    /// Puts bytes in the place of what is there.
    pub(crate) fn put(&self, offset: u64, bufs: &[Buf]) {
        let mut at = offset;
        for buf in bufs {
            for piece in buf.chunks(RUN_BYTES) {
                self.put_piece(at, piece);
                at += piece.len() as u64;
            }
        }
    }

    fn put_piece(&self, at: u64, piece: &[u8]) {
        let end = at + piece.len() as u64;
        let mut runs = self.runs.borrow_mut();
        if let Some((from, run)) = runs.range_mut(..=at).next_back()
            && end <= from + run.len() as u64
        {
            let start = (at - from) as usize;
            run[start..start + piece.len()].copy_from_slice(piece);
            return;
        }
        drop(runs);
        self.cut(at, end);
        let mut runs = self.runs.borrow_mut();
        self.bytes.set(self.bytes.get() + piece.len() as u64);
        match runs.range_mut(..at).next_back() {
            Some((from, run)) if from + run.len() as u64 == at && run.len() + piece.len() <= RUN_BYTES => {
                run.extend_from_slice(piece);
            }
            _ => drop(runs.insert(at, piece.to_vec())),
        }
    }

    /// Forgets what there is from an offset on and below an end.
    fn cut(&self, offset: u64, end: u64) {
        let mut runs = self.runs.borrow_mut();
        let overlaps = |(at, run): &(&u64, &Vec<u8>)| **at + run.len() as u64 > offset;
        let meant: Vec<u64> = runs.range(..end).rev().take_while(overlaps).map(|(at, _)| *at).collect();
        for at in meant {
            let mut run = runs.remove(&at).expect("it is there");
            let run_end = at + run.len() as u64;
            self.bytes.set(self.bytes.get() - (run_end.min(end) - at.max(offset)));
            if run_end > end {
                runs.insert(end, run.split_off((end - at) as usize));
            }
            if at < offset {
                run.truncate((offset - at) as usize);
                runs.insert(at, run);
            }
        }
    }

    /// The file ends there: forgets what lies behind.
    pub(crate) fn truncate(&self, size: u64) {
        self.cut(size, u64::MAX);
    }

    /// Takes all of them, to be written now.
    pub(crate) fn take(&self) -> Vec<(u64, Buf)> {
        self.bytes.set(0);
        self.runs.take().into_iter().map(|(at, run)| (at, Buf::from(run))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::random_below;
    use weft_rt::sim::Sim;

    /// What the runs say of each byte.
    fn bytes_of(dirty: &Dirty, size: usize) -> Vec<Option<u8>> {
        let mut bytes = vec![None; size];
        for (at, run) in &*dirty.runs.borrow() {
            for (n, byte) in run.iter().enumerate() {
                let there = bytes[*at as usize + n].replace(*byte);
                assert_eq!(there, None, "runs do not overlap");
            }
        }
        bytes
    }

    #[test]
    fn what_was_put_last_is_there() {
        const SIZE: u64 = 300;
        for seed in 0..30 {
            Sim::new(seed).block_on(async move {
                let (dirty, mut expected) = (Dirty::default(), vec![None; SIZE as usize]);
                for step in 0..400u64 {
                    let (at, length) = (random_below(SIZE), random_below(40));
                    let end = (at + length).min(SIZE);
                    match random_below(12) {
                        0 => {
                            dirty.truncate(at);
                            expected[at as usize..].fill(None);
                        }
                        1 => {
                            for (at, run) in dirty.take() {
                                let there = &mut expected[at as usize..at as usize + run.len()];
                                assert!(run.iter().zip(&*there).all(|(byte, there)| Some(*byte) == *there));
                                there.fill(None);
                            }
                            assert_eq!(expected, vec![None; SIZE as usize], "all of it was taken");
                        }
                        _ => {
                            let data = vec![step as u8; (end - at) as usize];
                            expected[at as usize..end as usize].fill(Some(step as u8));
                            dirty.put(at, &[Buf::from(data)]);
                        }
                    }
                    assert_eq!(bytes_of(&dirty, SIZE as usize), expected, "seed {seed}, step {step}");
                    let count = expected.iter().flatten().count() as u64;
                    assert_eq!((dirty.bytes.get(), dirty.is_empty()), (count, count == 0));
                    assert!(dirty.weight() >= count);
                    let overlap = expected[at as usize..end as usize].iter().any(Option::is_some);
                    assert_eq!(dirty.overlaps(at, end) && end > at, overlap);
                }
            });
        }
    }

    #[test]
    fn neighbours_are_one_run_until_it_is_a_whole_request() {
        let dirty = Dirty::default();
        for n in 0..300 {
            dirty.put(n * 4096, &[Buf::from(vec![1; 4096])]);
        }
        let lengths: Vec<usize> = dirty.take().iter().map(|(_, run)| run.len()).collect();
        assert_eq!(lengths, [RUN_BYTES, 44 * 4096]);
    }
}
