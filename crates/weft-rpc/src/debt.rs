//! What one side of a connection owes to the other: frames that were sent and that the network has not taken.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use weft_rt::Share;

/// The bytes that wait, counted in the connection's share of a budget if it has one. Nothing here waits: what
/// is owed is there already.
#[derive(Default)]
pub(crate) struct Debt {
    share: OnceCell<Rc<Share>>,
    bytes: Cell<u64>,
}

impl Debt {
    /// Counts in this share from now on.
    pub(crate) fn count_in(&self, share: Rc<Share>) {
        share.owe(self.bytes.get());
        // A connection has one share, which it gets once.
        let _ = self.share.set(share);
    }

    /// So many bytes more wait.
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
        if let Some(share) = self.share.get() {
            share.owe(bytes);
            share.leaving.grow(bytes);
        }
    }

    /// The network has taken so many.
    pub(crate) fn pay(&self, bytes: u64) {
        let left = self.bytes.get() - bytes;
        self.bytes.set(left);
        if let Some(share) = self.share.get() {
            share.leaving.begin(left);
            share.give_back(bytes);
        }
    }

    /// Nothing waits any more: the connection has ended.
    pub(crate) fn forgive(&self) {
        self.pay(self.bytes.get());
    }
}
