//! A drive's part in a group, as requests are admitted by it: the entry in force and what runs under it.
//!
//! It owns the rule that acknowledging an epoch drains what was admitted before it (R1). It never makes
//! anything durable: `adopt.rs` does, between closing the gate here and opening it again.

use crate::admit::Pass;
use crate::drive::ServedDrive;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use weft_rt::sync::{Mutex, Notify};
use weft_types::{Epoch, Group, GroupId, Role, SessionId, Slot, Version};

/// How many sessions a member remembers to have admitted: those that use one group at a time, mostly.
const PASSES: usize = 4;

/// One drive in one group.
///
/// ```text
///            gate closed; running mutations finish; the entry becomes durable
/// open(e) ---------------------------------------------------------------------> open(e + n)
/// ```
pub(crate) struct Member {
    pub(crate) drive: Rc<ServedDrive>,
    pub(crate) group: GroupId,
    /// The entry that is durable here; none for a group that this drive has only heard of.
    entry: RefCell<Option<Rc<Group>>>,
    /// An entry is being adopted: nothing is admitted until that is done.
    gate_closed: Cell<bool>,
    /// The group is not in the map any more: ids are never reused, so it never comes back.
    gone: Cell<bool>,
    /// The turn of whoever adopts an entry, or begins to drop the group.
    pub(crate) turn: Mutex<()>,
    /// Sessions that were admitted last.
    passes: [Cell<Option<Pass>>; PASSES],
    /// No client's write below this version is admitted, until the drive has adopted a map that has the
    /// group in an epoch after this one (R7).
    closed: Cell<Option<(Epoch, Version)>>,
    /// What the drive holds of the group is being dropped.
    is_dropping: Cell<bool>,
    /// The drive is to be in the group again: that ends the dropping.
    is_wanted: Cell<bool>,
    drop_ended: Notify,
    /// Mutations that were admitted and have not finished, by the phase in which they began.
    running: RefCell<VecDeque<(u64, u32)>>,
    phase: Cell<u64>,
    drained: Notify,
    /// The entry in force or the gate has changed.
    pub(crate) changed: Notify,
}

impl Member {
    pub(crate) fn new(drive: Rc<ServedDrive>, group: GroupId) -> Rc<Member> {
        let entry = drive.store.group(group);
        Rc::new(Member {
            drive,
            group,
            entry: RefCell::new(entry),
            gate_closed: Cell::new(false),
            gone: Cell::new(false),
            turn: Mutex::new(()),
            passes: Default::default(),
            closed: Cell::new(None),
            is_dropping: Cell::new(false),
            is_wanted: Cell::new(false),
            drop_ended: Notify::default(),
            running: RefCell::default(),
            phase: Cell::new(0),
            drained: Notify::default(),
            changed: Notify::default(),
        })
    }

    /// Where to keep that a session was admitted; another session may be there.
    pub(crate) fn pass_of(&self, session: SessionId) -> &Cell<Option<Pass>> {
        &self.passes[session.0 as usize % PASSES]
    }

    /// The entry in force, durable here.
    pub(crate) fn entry(&self) -> Option<Rc<Group>> {
        self.entry.borrow().clone()
    }

    /// The epoch in force; 0 for a group that this drive has only heard of.
    pub(crate) fn epoch(&self) -> Epoch {
        self.entry.borrow().as_ref().map_or(Epoch(0), |e| e.epoch)
    }

    /// This drive's slot in the entry in force.
    pub(crate) fn slot(&self) -> Option<Slot> {
        self.entry.borrow().as_ref().and_then(|e| e.slot_of(self.drive.id).copied())
    }

    /// This drive's role; a drive without a slot is out.
    pub(crate) fn role(&self) -> Role {
        self.slot().map_or(Role::Out, |s| s.role)
    }

    /// Whether this drive is the first that every write to the group goes to.
    pub(crate) fn is_first_of_write_set(&self) -> bool {
        self.entry.borrow().as_ref().is_some_and(|e| e.write_set().next() == Some(self.drive.id))
    }

    /// The stint in which this drive is syncing, if it is.
    pub(crate) fn stint(&self) -> Option<Epoch> {
        self.slot().filter(|s| s.role == Role::Syncing).map(|s| s.since)
    }

    /// Whether nothing is admitted because an entry is being adopted.
    pub(crate) fn gate_is_closed(&self) -> bool {
        self.gate_closed.get()
    }

    /// Closes the gate, until the guard is told to open it. A guard that is dropped before anything became durable
    /// opens it for the entry that was in force.
    pub(crate) fn close_gate(&self) -> ClosedGate<'_> {
        self.gate_closed.set(true);
        ClosedGate { member: self, reopens: Cell::new(true) }
    }

    fn open_gate(&self) {
        self.gate_closed.set(false);
        self.changed.notify_all();
    }

    /// Admits no client's write below a version any more. What was admitted before may still run.
    pub(crate) fn close_below(&self, epoch: Epoch, version: Version) {
        let held = self.closed.get().map_or(Version::ZERO, |(_, version)| version);
        self.closed.set(Some((epoch, version.max(held))));
    }

    /// Whether some versions of clients are not admitted until the group begins another epoch.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    /// Whether a client's write of this version is not admitted.
    pub(crate) fn is_closed_for(&self, version: Version) -> bool {
        self.closed.get().is_some_and(|(_, closed)| version < closed)
    }

    /// The drive has adopted a map that has the group in this epoch, and the floor that came with it.
    pub(crate) fn open_from(&self, listed: Epoch) {
        if self.closed.get().is_some_and(|(epoch, _)| epoch < listed) {
            self.closed.set(None);
        }
    }

    /// Whether the group has been removed from the fabric.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// The group has been removed from the fabric: nothing is admitted or adopted any more.
    pub(crate) fn leave(&self) {
        self.gone.set(true);
        self.changed.notify_all();
    }

    /// Begins to drop what the drive holds of the group, until the guard is dropped; none if that is under
    /// way already. Asked by whoever has the turn, and done without it: a large group takes minutes, and an
    /// adoption must not wait for so long.
    pub(crate) fn begin_drop(self: &Rc<Self>) -> Option<Dropping> {
        if self.is_dropping.replace(true) {
            return None;
        }
        // Whoever had called an earlier one off may have been given up while it waited.
        self.is_wanted.set(false);
        Some(Dropping(self.clone()))
    }

    /// Ends the dropping, as soon as the chunk that is being dropped is through. Asked by whoever has the
    /// turn, so that no other one begins.
    pub(crate) async fn end_drop(&self) {
        self.is_wanted.set(true);
        while self.is_dropping.get() {
            let ended = self.drop_ended.notified();
            ended.await;
        }
        self.is_wanted.set(false);
    }

    /// A mutation has been admitted; it is running until the guard is dropped.
    pub(crate) fn begin(self: &Rc<Self>) -> Running {
        let phase = self.phase.get();
        let mut running = self.running.borrow_mut();
        match running.back_mut() {
            Some((p, count)) if *p == phase => *count += 1,
            _ => running.push_back((phase, 1)),
        }
        Running { member: self.clone(), phase }
    }

    /// Whether a mutation that was admitted has not finished.
    pub(crate) fn is_busy(&self) -> bool {
        !self.running.borrow().is_empty()
    }

    /// Completes when every mutation that was admitted before this call has finished.
    pub(crate) async fn drain(&self) {
        let phase = self.phase.get();
        self.phase.set(phase + 1);
        loop {
            let drained = self.drained.notified();
            if self.running.borrow().front().is_none_or(|(p, _)| *p > phase) {
                return;
            }
            drained.await;
        }
    }
}

/// What a drive holds of a group that it has left is being dropped.
pub(crate) struct Dropping(Rc<Member>);

impl Dropping {
    /// Whether the drive is to be in the group again.
    pub(crate) fn is_called_off(&self) -> bool {
        self.0.is_wanted.get()
    }
}

impl Drop for Dropping {
    fn drop(&mut self) {
        self.0.is_dropping.set(false);
        self.0.drop_ended.notify_all();
    }
}

/// The gate of a member, closed by whoever adopts an entry.
pub(crate) struct ClosedGate<'a> {
    member: &'a Member,
    reopens: Cell<bool>,
}

impl ClosedGate<'_> {
    /// From now on it is not known which entry is durable: if the work is given up, nothing is served any more.
    pub(crate) fn keep_closed(&self) {
        self.reopens.set(false);
    }

    /// Opens the gate, with a new entry if there is one.
    pub(crate) fn open(self, entry: Option<Group>) {
        if let Some(entry) = entry {
            let current = self.member.epoch();
            assert!(entry.epoch > current, "epochs only rise: {} after {current}", entry.epoch);
            *self.member.entry.borrow_mut() = Some(Rc::new(entry));
        }
        self.reopens.set(true);
    }
}

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        if self.reopens.get() {
            self.member.open_gate();
        }
    }
}

/// A mutation that was admitted and has not finished.
pub(crate) struct Running {
    member: Rc<Member>,
    phase: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = self.member.running.borrow_mut();
        let at = running.iter().position(|(p, _)| *p == self.phase).expect("it was counted when it began");
        running[at].1 -= 1;
        while running.front().is_some_and(|(_, count)| *count == 0) {
            running.pop_front();
        }
        drop(running);
        self.member.drained.notify_all();
    }
}
