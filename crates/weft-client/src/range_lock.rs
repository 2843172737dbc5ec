//! Keeps a read-modify-write of part of a block apart from other writes to that block, within one client.
//!
//! Only a volume attached exclusively has logical blocks smaller than a block, so one client's order is
//! enough.

use slab::Slab;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use weft_rt::sync::Notify;

/// How a range of blocks is used while the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Whole blocks are written: several such writes may overlap, as on any drive.
    Whole,
    /// Blocks are read, changed in part and written back: nobody else may write them.
    Part,
}

/// Ranges of block addresses in use by writes of one volume.
#[derive(Default)]
pub(crate) struct RangeLock {
    held: RefCell<Slab<Entry>>,
    /// How many of them are used in part.
    in_part: Cell<usize>,
    released: Notify,
}

struct Entry {
    blocks: Range<u64>,
    how: Use,
    /// How many hold it together.
    holders: u32,
}

/// A range in use; free again when this and all that share it are dropped.
pub(crate) struct Held {
    lock: Rc<RangeLock>,
    key: usize,
}

impl RangeLock {
    /// Waits until nobody uses the blocks in a way that does not go together with this use.
    pub(crate) async fn acquire(self: &Rc<Self>, blocks: Range<u64>, how: Use) -> Held {
        loop {
            let waiting = self.released.notified();
            if let Some(held) = self.try_acquire(&blocks, how) {
                return held;
            }
            waiting.await;
        }
    }

    /// Takes the blocks if nobody uses them in such a way now.
    pub(crate) fn try_acquire(self: &Rc<Self>, blocks: &Range<u64>, how: Use) -> Option<Held> {
        let mut held = self.held.borrow_mut();
        let goes_together = |other: &Entry| {
            other.blocks.end <= blocks.start
                || blocks.end <= other.blocks.start
                || (how == Use::Whole && other.how == Use::Whole)
        };
        // Without anybody who uses a part, whole blocks need no look at the others.
        let is_free = how == Use::Whole && self.in_part.get() == 0;
        if !is_free && !held.iter().all(|(_, other)| goes_together(other)) {
            return None;
        }
        self.in_part.set(self.in_part.get() + usize::from(how == Use::Part));
        let key = held.insert(Entry { blocks: blocks.clone(), how, holders: 1 });
        Some(Held { lock: self.clone(), key })
    }
}

impl Held {
    /// The same range, held by one more.
    pub(crate) fn share(&self) -> Held {
        let mut held = self.lock.held.borrow_mut();
        held[self.key].holders += 1;
        Held { lock: self.lock.clone(), key: self.key }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        {
            let mut held = self.lock.held.borrow_mut();
            let entry = &mut held[self.key];
            entry.holders -= 1;
            if entry.holders > 0 {
                return;
            }
            let was_part = held.remove(self.key).how == Use::Part;
            self.lock.in_part.set(self.lock.in_part.get() - usize::from(was_part));
        }
        self.lock.released.notify_all();
    }
}
