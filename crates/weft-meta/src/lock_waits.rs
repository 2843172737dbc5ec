//! Which owners wait for locks of which others (F11), so that owners that wait for each other are refused.
//!
//! Locks are in the tables, and so durable. Waits are only here: an owner that waits asks again.

use crate::tables::Tables;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{FileLock, LockFamily, LockOwner};

/// A lock that is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedLock {
    pub session: SessionId,
    pub inode: InodeNumber,
    pub lock: FileLock,
}

impl WantedLock {
    fn owner(&self) -> (SessionId, LockOwner) {
        (self.session, self.lock.owner)
    }

    /// Those who have what is in its way.
    pub(crate) fn holders(self, tables: &Tables) -> impl Iterator<Item = (SessionId, LockOwner)> {
        let held = tables.locks_in_the_way(self.inode, self.session, self.lock);
        held.map(|(session, lock)| (session, lock.owner))
    }
}

/// Those who wait.
#[derive(Default)]
pub(crate) struct LockWaits {
    last: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, WantedLock>>,
}

/// One that waits, for as long as this is there.
pub(crate) struct LockWait<'w> {
    waits: &'w LockWaits,
    number: u64,
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        self.waits.waiting.borrow_mut().remove(&self.number);
    }
}

impl LockWaits {
    /// An owner does something else: it does not wait any more, whatever it has asked for.
    pub(crate) fn end_of(&self, session: SessionId, owner: LockOwner) {
        self.waiting.borrow_mut().retain(|_, wanted| wanted.owner() != (session, owner));
    }

    /// Somebody waits.
    pub(crate) fn begin(&self, wanted: WantedLock) -> LockWait<'_> {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.waiting.borrow_mut().insert(number, wanted);
        LockWait { waits: self, number }
    }

    /// Whether its owner would wait for itself: the holder of what it wants waits for a lock of this
    /// owner, directly or over other owners. As in Linux only for locks on ranges: open files do not wait.
    pub(crate) fn would_wait_for_itself(&self, tables: &Tables, wanted: WantedLock) -> bool {
        if wanted.lock.owner.family == LockFamily::Whole {
            return false;
        }
        let waiting = self.waiting.borrow();
        let (mut seen, mut wants) = (BTreeSet::new(), vec![wanted]);
        while let Some(next) = wants.pop() {
            for holder in next.holders(tables) {
                if holder == wanted.owner() {
                    return true;
                }
                if seen.insert(holder) {
                    wants.extend(waiting.values().filter(|other| other.owner() == holder));
                }
            }
        }
        false
    }
}
