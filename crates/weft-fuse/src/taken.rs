//! Whether the kernel takes what it is told of the files that are open.
//!
//! The kernel asks for size and time of a file before it reads pages that it has, and drops them if these
//! have changed. It throws the answer away if it has learned something else of the file since it asked: by
//! another answer, or by the end of a write, which it counts only when the caller runs again. While it makes
//! a file longer it throws away all of them. Then it goes on with the size and the pages that it has.

use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::Mutex;
use weft_rt::{Instant, now};
use weft_types::InodeNumber;

/// After so long a caller has run to which an answer was sent.
const RUN_WITHIN: Duration = Duration::from_secs(1);

/// The files that the kernel has open, and what it learns of them.
#[derive(Default)]
pub(crate) struct Taken(RefCell<FxHashMap<InodeNumber, Open>>);

/// An inode that is open.
struct Open {
    handles: u64,
    /// Requests under way that may change its size.
    changing: u64,
    /// When the kernel was told something of it last.
    told: Instant,
    /// Held by whoever has its pages dropped.
    turn: Rc<Mutex<()>>,
}

impl Taken {
    /// The kernel has one more handle of a file.
    pub(crate) fn open(&self, inode: InodeNumber) {
        let new = || Open { handles: 0, changing: 0, told: now(), turn: Rc::new(Mutex::new(())) };
        self.0.borrow_mut().entry(inode).or_insert_with(new).handles += 1;
    }

    /// The kernel has one handle less.
    pub(crate) fn close(&self, inode: InodeNumber) {
        let mut open = self.0.borrow_mut();
        if let Some(of_inode) = open.get_mut(&inode) {
            of_inode.handles -= 1;
            if of_inode.handles == 0 {
                open.remove(&inode);
            }
        }
    }

    /// Something begins that may change the size of a file.
    pub(crate) fn begin_change(&self, inode: InodeNumber) {
        if let Some(open) = self.0.borrow_mut().get_mut(&inode) {
            open.changing += 1;
        }
    }

    /// It ends.
    pub(crate) fn end_change(&self, inode: InodeNumber) {
        if let Some(open) = self.0.borrow_mut().get_mut(&inode) {
            // It may have begun before the file was open.
            open.changing = open.changing.saturating_sub(1);
        }
    }

    /// The kernel is told something of an inode.
    pub(crate) fn tell(&self, inode: InodeNumber) {
        if let Some(open) = self.0.borrow_mut().get_mut(&inode) {
            open.told = now();
        }
    }

    /// The turn to have the pages of a file dropped, if the kernel may throw away the answer to a question
    /// that it has asked by now.
    pub(crate) fn turn_in_doubt(&self, inode: InodeNumber) -> Option<Rc<Mutex<()>>> {
        let open = self.0.borrow();
        let open = open.get(&inode)?;
        let is_in_doubt = open.changing > 0 || open.told.elapsed() < RUN_WITHIN;
        is_in_doubt.then(|| open.turn.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::sim::Sim;
    use weft_rt::sleep;

    #[test]
    fn an_answer_is_in_doubt_beside_changes_and_soon_after_other_answers() {
        Sim::new(1).block_on(async {
            let (taken, inode) = (Taken::default(), InodeNumber(7));
            let is_in_doubt = || taken.turn_in_doubt(inode).is_some();
            taken.tell(inode);
            assert!(!is_in_doubt(), "it is not open");
            (0..2).for_each(|_| taken.open(inode));
            sleep(RUN_WITHIN).await;
            assert!(!is_in_doubt());
            taken.begin_change(inode);
            assert!(is_in_doubt(), "a write is under way");
            taken.end_change(inode);
            assert!(!is_in_doubt());
            taken.tell(inode);
            assert!(is_in_doubt());
            sleep(RUN_WITHIN).await;
            assert!(!is_in_doubt());
            taken.tell(inode);
            taken.close(inode);
            assert!(is_in_doubt());
            taken.close(inode);
            assert!(!is_in_doubt());
        });
    }
}
