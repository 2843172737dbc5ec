//! Whether a kernel may have pages of an open file that are older than what was written to it.
//!
//! Pages are good as long as the mount may read or write the file alone. They are old once another mount has had
//! it. While mounts share it, they are old once it has another time.
//!
//! A kernel that drops pages while a write of its own is on the way to the mount reads again what was there
//! before that write. So in a file that others have had, pages are old after each write, too.

use std::cell::Cell;
use weft_types::FileTime;

/// What was read of one file.
#[derive(Default)]
pub(crate) struct OldPages {
    are_there: Cell<bool>,
    /// Another mount has had the file since it is open here.
    is_contested: Cell<bool>,
    /// The time that the file had before it was read first, of all that was read while it is shared.
    shared_since: Cell<Option<FileTime>>,
}

impl OldPages {
    /// Another mount may write the file from now on.
    pub(crate) fn give_up(&self) {
        self.are_there.set(true);
        self.is_contested.set(true);
    }

    /// Something is read or written of a file that others write; it has had this time.
    pub(crate) fn use_beside(&self, time: FileTime) {
        self.is_contested.set(true);
        self.shared_since.set(self.shared_since.get().or(Some(time)));
    }

    /// Something was written. Call this before the write returns.
    pub(crate) fn write(&self) {
        if self.is_contested.get() {
            self.are_there.set(true);
        }
    }

    /// Whether there may be old ones, in a file that has this time now. They count as dropped from now on.
    pub(crate) fn take(&self, time: FileTime) -> bool {
        let is_changed = self.shared_since.get().is_some_and(|since| since != time);
        if is_changed {
            self.shared_since.set(None);
        }
        self.are_there.take() || is_changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_old_after_others_and_beside_them_but_not_alone() {
        let [first, second] = [1, 2].map(|seconds| FileTime { seconds, nanoseconds: 0 });
        let pages = OldPages::default();
        pages.write();
        assert!(!pages.take(first), "nobody else has had it");
        pages.give_up();
        assert!(pages.take(first) && !pages.take(second));
        pages.write();
        assert!(pages.take(second), "a page may have been read before the write was here");
        pages.use_beside(second);
        pages.use_beside(first);
        assert!(!pages.take(second) && pages.take(first) && !pages.take(first));
    }
}
