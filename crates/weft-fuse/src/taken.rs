//! Whether the kernel takes what it is told of the files that are open.
//!
//! The kernel numbers what it learns of an inode's attributes: from answers with attributes, from the end of
//! a write, and from a read that ends early. It throws away the answer to a question if it has learned
//! something since it asked, and goes on with the size and the pages that it has. If another client has
//! written to the file, these pages are old.
//!
//! A question is asked after the device was seen to be empty for the last time before the question was read.
//! So an answer that was sent before that is older than the question. (The kernel takes the number of a
//! question some instructions before it can be read: a caller that stands still in between is not noticed.)

use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_rt::sync::Mutex;
use weft_types::InodeNumber;

/// The files that the kernel has open, and when it learned something of them last.
#[derive(Default)]
pub(crate) struct Taken {
    /// How often the device was seen to be empty.
    looks: Cell<u64>,
    open: RefCell<FxHashMap<InodeNumber, Open>>,
}

/// An inode that is open.
struct Open {
    handles: u64,
    /// The number of looks when the kernel was told something of it last.
    told: u64,
    /// Held by whoever has its pages dropped.
    turn: Rc<Mutex<()>>,
}

impl Taken {
    /// The device is empty: whatever is read from it later was asked later.
    pub(crate) fn is_empty_now(&self) {
        self.looks.set(self.looks.get() + 1);
    }

    /// How often the device was seen to be empty.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.get()
    }

    /// The kernel has one more handle of a file.
    pub(crate) fn open(&self, inode: InodeNumber) {
        let new = || Open { handles: 0, told: self.looks.get(), turn: Rc::new(Mutex::new(())) };
        self.open.borrow_mut().entry(inode).or_insert_with(new).handles += 1;
    }

    /// The kernel has one handle less.
    pub(crate) fn close(&self, inode: InodeNumber) {
        let mut open = self.open.borrow_mut();
        if let Some(of_inode) = open.get_mut(&inode) {
            of_inode.handles -= 1;
            if of_inode.handles == 0 {
                open.remove(&inode);
            }
        }
    }

    /// The kernel is told something of an inode.
    pub(crate) fn tell(&self, inode: InodeNumber) {
        if let Some(open) = self.open.borrow_mut().get_mut(&inode) {
            open.told = self.looks.get();
        }
    }

    /// The turn to have the pages of a file dropped, if the kernel may throw away the answer to a question
    /// that was read after so many looks.
    pub(crate) fn turn_in_doubt(&self, inode: InodeNumber, looks: u64) -> Option<Rc<Mutex<()>>> {
        let open = self.open.borrow();
        open.get(&inode).filter(|open| open.told >= looks).map(|open| open.turn.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_in_doubt_if_another_one_was_sent_since_the_device_was_empty() {
        let (taken, inode) = (Taken::default(), InodeNumber(7));
        let is_in_doubt = |looks| taken.turn_in_doubt(inode, looks).is_some();
        taken.tell(inode);
        assert!(!is_in_doubt(0), "it is not open");
        (0..2).for_each(|_| taken.open(inode));
        taken.is_empty_now();
        assert!(!is_in_doubt(1));
        taken.tell(inode);
        assert!(is_in_doubt(1) && !is_in_doubt(2));
        taken.is_empty_now();
        assert!(is_in_doubt(1), "it waits for its answer since before");
        taken.close(inode);
        assert!(is_in_doubt(1));
        taken.close(inode);
        assert!(!is_in_doubt(1));
    }
}
