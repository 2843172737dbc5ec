//! What the kernel knows: how often each inode was given to it, less what it has forgotten.

use rustc_hash::FxHashMap;
use std::cell::RefCell;
use weft_types::InodeNumber;

/// Counts of one inode.
#[derive(Clone, Copy, Debug, Default)]
struct Given {
    /// Not forgotten yet.
    known: u64,
    /// All since the kernel began to know it.
    total: u64,
}

/// The counts of all inodes that the kernel knows.
#[derive(Default)]
pub(crate) struct Lookups(RefCell<FxHashMap<InodeNumber, Given>>);

impl Lookups {
    /// An answer gives the inode once more.
    pub(crate) fn add(&self, inode: InodeNumber) {
        let mut counts = self.0.borrow_mut();
        let given = counts.entry(inode).or_default();
        given.known += 1;
        given.total += 1;
    }

    /// The kernel has forgotten it so many times. How often it was given in total, once none is left. Numbers
    /// that are too high count as all.
    pub(crate) fn forget(&self, inode: InodeNumber, lookups: u64) -> Option<u64> {
        let mut counts = self.0.borrow_mut();
        let given = counts.get_mut(&inode)?;
        given.known = given.known.saturating_sub(lookups);
        if given.known > 0 {
            return None;
        }
        counts.remove(&inode).map(|given| given.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_forgotten_when_all_that_was_given_is() {
        let lookups = Lookups::default();
        let inode = InodeNumber(7);
        assert_eq!(lookups.forget(inode, 1), None, "it was never given");
        (0..3).for_each(|_| lookups.add(inode));
        assert_eq!(lookups.forget(inode, 2), None);
        lookups.add(inode);
        assert_eq!(lookups.forget(inode, 2), Some(4));
        assert_eq!(lookups.forget(inode, 2), None);
        lookups.add(inode);
        assert_eq!(lookups.forget(inode, u64::MAX), Some(1));
    }
}
