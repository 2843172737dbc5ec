//! Changes that this mount has made of open files without learning their attributes: a rename takes a link
//! away from what had the new name, and its answer is about another file. Attributes that were asked for
//! before such a change may be older than it.

use std::cell::Cell;

/// Counts such changes.
#[derive(Debug, Default)]
pub(crate) struct Doubts(Cell<u64>);

/// When attributes were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Asked(u64);

impl Doubts {
    /// Attributes are asked for now, or are known now.
    pub(crate) fn asked(&self) -> Asked {
        Asked(self.0.get())
    }

    /// A change has ended that may have changed attributes of any open file.
    pub(crate) fn note(&self) {
        self.0.set(self.0.get() + 1);
    }

    /// Whether no such change has ended since attributes were asked for.
    pub(crate) fn are_none_since(&self, asked: Asked) -> bool {
        asked == self.asked()
    }
}
