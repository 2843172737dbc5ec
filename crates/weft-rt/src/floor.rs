//! A number that only rises, and that several executors of one process raise and read.
//!
//! Beside posts and what never changes, it is all that threads share. It is one word of memory: whoever reads
//! it after somebody has raised it, and has heard of that in whatever way, reads at least what it was raised
//! to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The highest number that anybody has raised it to; 0 at first. Clones are the same floor.
#[derive(Clone, Debug, Default)]
pub struct Floor(Arc<AtomicU64>);

impl Floor {
    /// Raises it to this number, if it is lower.
    pub fn raise(&self, to: u64) {
        self.0.fetch_max(to, Ordering::AcqRel);
    }

    /// The highest number so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn it_is_the_highest_that_any_thread_has_raised_it_to() {
        let floor = Floor::default();
        assert_eq!(floor.get(), 0);
        let raising = |from: u64| {
            let floor = floor.clone();
            thread::spawn(move || {
                (0..10_000).for_each(|n| {
                    floor.raise(from + 2 * n);
                    assert!(floor.get() >= from + 2 * n);
                });
            })
        };
        [raising(0), raising(1)].into_iter().for_each(|thread| thread.join().expect("it only rises"));
        assert_eq!(floor.get(), 19_999);
        floor.raise(7);
        assert_eq!(floor.get(), 19_999);
    }
}
