//! Who has taken locks of an open file, so that they are given back when it is closed (F11).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use weft_wire::files::LockOwner;

/// Those who may have locks of a file, and the handles by which they took them.
#[derive(Default)]
pub(crate) struct Lockers(RefCell<BTreeMap<LockOwner, BTreeSet<u64>>>);

impl Lockers {
    /// Somebody asks for a lock by a handle.
    pub(crate) fn note(&self, owner: LockOwner, handle: u64) {
        self.0.borrow_mut().entry(owner).or_default().insert(handle);
    }

    /// Whether somebody may have locks.
    pub(crate) fn has(&self, owner: LockOwner) -> bool {
        self.0.borrow().contains_key(&owner)
    }

    /// Somebody gives all of its locks back; whether it may have some.
    pub(crate) fn forget(&self, owner: LockOwner) -> bool {
        self.0.borrow_mut().remove(&owner).is_some()
    }

    /// A handle is closed for good. Returns the owners that have taken locks by this handle and by no
    /// other one: all of their locks are to be given back. Each process that had the handle has closed it
    /// before, and lost its locks of the file with that, so the locks that are left belong to the open
    /// file itself. This call may come late: a later open file may have the same number as owner by then,
    /// and keeps the locks that it has taken by its own handle.
    pub(crate) fn close(&self, handle: u64) -> Vec<LockOwner> {
        let mut lockers = self.0.borrow_mut();
        let of_handle = lockers
            .iter_mut()
            .filter_map(|(owner, handles)| (handles.remove(&handle) && handles.is_empty()).then_some(*owner));
        let owners: Vec<LockOwner> = of_handle.collect();
        owners.iter().for_each(|owner| drop(lockers.remove(owner)));
        owners
    }
}
