//! Keeps a read-modify-write of part of a block apart from other writes to that block, within one client.
//!
//! Only a volume attached exclusively has logical blocks smaller than a block, so one client's order is enough.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
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
    held: RefCell<BTreeMap<u64, (Range<u64>, Use)>>,
    next: RefCell<u64>,
    released: Notify,
}

/// A range in use; free again when dropped.
pub(crate) struct Held<'a> {
    lock: &'a RangeLock,
    key: u64,
}

impl RangeLock {
    /// Waits until nobody uses the blocks in a way that does not go together with this use.
    pub(crate) async fn acquire(&self, blocks: Range<u64>, how: Use) -> Held<'_> {
        loop {
            let waiting = self.released.notified();
            let free = self.held.borrow().values().all(|(range, other)| {
                range.end <= blocks.start
                    || blocks.end <= range.start
                    || (how == Use::Whole && *other == Use::Whole)
            });
            if free {
                break;
            }
            waiting.await;
        }
        let key = {
            let mut next = self.next.borrow_mut();
            *next += 1;
            *next
        };
        self.held.borrow_mut().insert(key, (blocks, how));
        Held { lock: self, key }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.held.borrow_mut().remove(&self.key);
        self.lock.released.notify_all();
    }
}
