//! No replica answers a read that is not in-sync by the map in the manager's store, at that very instant.
//!
//! That is what leases are for (R1, R11): an eviction commits only when the evicted cannot serve any more. The target's
//! own view plays no part here: the map is looked at behind everybody's back. A member that passes its copy on to another
//! drive, or that clients cannot reach, may answer until it has heard of that: it is in the write set,
//! so no newer write is complete before it has.

use crate::bed::Bed;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_rules::{ServedRead, observe_reads};
use weft_types::Role;

/// Watches all reads until it is dropped.
pub struct LeaseCheck {
    seen: Rc<Seen>,
}

#[derive(Default)]
struct Seen {
    reads: Cell<u64>,
    wrong: RefCell<Option<String>>,
}

impl LeaseCheck {
    /// Begins to watch.
    pub fn start(bed: &Rc<Bed>) -> LeaseCheck {
        let (seen, bed) = (Rc::new(Seen::default()), bed.clone());
        let watching = seen.clone();
        observe_reads(Some(Rc::new(move |read| watching.look(&bed, read))));
        LeaseCheck { seen }
    }

    /// How many reads there were.
    ///
    /// # Errors
    /// The first that was answered by a replica that was out.
    pub fn verdict(&self) -> Result<u64, String> {
        match self.seen.wrong.borrow().clone() {
            None => Ok(self.seen.reads.get()),
            Some(wrong) => Err(wrong),
        }
    }
}

impl Drop for LeaseCheck {
    fn drop(&mut self) {
        observe_reads(None);
    }
}

impl Seen {
    fn look(&self, bed: &Bed, read: ServedRead) {
        self.reads.set(self.reads.get() + 1);
        let map = bed.truth();
        let slot = map.groups.get(&read.group).and_then(|g| g.slot_of(read.drive));
        let passes_on = map.relocations.get(&read.group).is_some_and(|r| r.from == read.drive);
        let is_right = slot.is_some_and(|s| match s.role {
            Role::InSync => s.since <= read.epoch,
            Role::Syncing => passes_on || bed.was_demoted(read.group, read.drive, s.since),
            Role::Out => false,
        });
        if !is_right && self.wrong.borrow().is_none() {
            weft_rt::sim::tell(|| format!("a read is answered past the lease: {read:?}"));
            *self.wrong.borrow_mut() = Some(format!(
                "{} answered a read of group {} at {}, and is {:?} in map {}",
                read.drive, read.group, read.epoch, slot, map.version
            ));
        }
    }
}
