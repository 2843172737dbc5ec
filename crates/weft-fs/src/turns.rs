//! Turns at inodes: of each inode one thing is under way at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_rt::sync::Mutex;
use weft_types::InodeNumber;

/// The turns that are taken, or waited for.
#[derive(Default)]
pub(crate) struct Turns(RefCell<BTreeMap<InodeNumber, Rc<Mutex<()>>>>);

/// Somebody who has a turn or waits for it.
struct InTurn<'a> {
    turns: &'a Turns,
    inode: InodeNumber,
    turn: Rc<Mutex<()>>,
}

impl Turns {
    /// Does something that is under way with an inode alone.
    pub(crate) async fn take<T>(&self, inode: InodeNumber, work: impl AsyncFnOnce() -> T) -> T {
        let new = || Rc::new(Mutex::new(()));
        let turn = self.0.borrow_mut().entry(inode).or_insert_with(new).clone();
        let waits = InTurn { turns: self, inode, turn };
        let _turn = waits.turn.lock().await;
        work().await
    }

    /// Whether something is under way with an inode.
    pub(crate) fn is_any_at(&self, inode: InodeNumber) -> bool {
        self.0.borrow().contains_key(&inode)
    }
}

impl Drop for InTurn<'_> {
    fn drop(&mut self) {
        // The other one is in the list.
        if Rc::strong_count(&self.turn) == 2 {
            self.turns.0.borrow_mut().remove(&self.inode);
        }
    }
}
