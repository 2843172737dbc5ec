//! The versions that a session gives out, and the watermark below which all of them are complete.
//!
//! It owns the counters of each group, the operations that hold them, and the clock that they start from
//! (`version_clock.rs`). Each lane of a session has its own. All of them issue above one floor: what is given
//! up on one lane is below what any lane issues afterwards (P8). It sends nothing: `watermarks.rs` tells
//! replicas.

use crate::version_clock::{COUNTER_SANE_MAX, VersionClock};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::Notify;
use weft_rt::{Floor, Instant, now, sleep_until};
use weft_rules::{Mutation, mutated};
use weft_types::limits::GIVEN_UP_BYTES_MAX;
use weft_types::{DriveId, Group, GroupId, SessionSlot, Version};
use weft_wire::data::clock_counter;

/// How long a group issues no versions after one that was too far ahead: others that were given out before it
/// reach their refusals, so that a lower one is the highest again.
const AHEAD_PAUSE: Duration = Duration::from_millis(20);

/// How far the watermark of an idle group stays behind the clock, as a counter: a second. A clock that is put
/// right soon gives out no version that it would have to begin again for this.
const PASSED_OVER_AFTER: u64 = clock_counter(1_000_000);

/// What the versions of a lane have to do with those of its siblings.
#[derive(Clone)]
pub(crate) struct Bounds {
    /// No lane of the attach issues versions at or below it.
    pub(crate) floor: Floor,
    /// Versions above the watermark in one group, at most.
    pub(crate) lag_max: u64,
    /// The slot of another lane, or the own one where there is no other: for a switch only.
    pub(crate) sibling: SessionSlot,
}

/// The versions of one lane of a session.
pub(crate) struct Versions {
    slot: SessionSlot,
    bounds: Bounds,
    /// What counters start from.
    pub(crate) clock: VersionClock,
    groups: RefCell<BTreeMap<GroupId, GroupVersions>>,
    next_operation: Cell<u64>,
    /// Operations under way that their callers gave up: their group, and the bytes that they hold.
    given_up: RefCell<BTreeMap<u64, (GroupId, u64)>>,
    given_up_bytes: Cell<u64>,
    /// A watermark has moved, or an operation that was given up has ended.
    pub(crate) moved: Notify,
    /// Called when an operation is complete: replicas are to be told of the watermark.
    when_complete: Box<dyn Fn()>,
}

/// A counter that was given out.
struct Issued {
    operation: u64,
    is_complete: bool,
}

/// The versions of one lane in one group.
#[derive(Default)]
struct GroupVersions {
    /// The highest counter that a replica answered with.
    seen: u64,
    /// Counters given out above the watermark.
    issued: BTreeMap<u64, Issued>,
    /// All writes up to this counter are complete.
    watermark: u64,
    /// Which watermark each replica was last sent.
    told: BTreeMap<DriveId, u64>,
    /// No version is given out before.
    hold_until: Instant,
    /// Writes under way that their callers gave up.
    given_up: u32,
}

impl GroupVersions {
    fn is_untold(&self, drive: DriveId) -> bool {
        self.told.get(&drive).copied().unwrap_or(0) != self.watermark
    }

    fn raise_watermark(&mut self) {
        while let Some(first) = self.issued.first_entry().filter(|e| e.get().is_complete) {
            self.watermark = first.remove_entry().0;
        }
    }

    /// The counter that a request says is complete.
    fn told_watermark(&self) -> u64 {
        let newest = self.issued.last_key_value().filter(|_| mutated(Mutation::WatermarkPassesOpen));
        newest.map_or(self.watermark, |(newest, _)| *newest)
    }
}

impl Versions {
    /// None given out yet. `when_complete` is called whenever an operation is complete.
    pub(crate) fn new(
        slot: SessionSlot,
        bounds: Bounds,
        clock: VersionClock,
        when_complete: Box<dyn Fn()>,
    ) -> Rc<Versions> {
        Rc::new(Versions {
            slot,
            bounds,
            clock,
            groups: RefCell::default(),
            next_operation: Cell::new(1),
            given_up: RefCell::default(),
            given_up_bytes: Cell::new(0),
            moved: Notify::default(),
            when_complete,
        })
    }

    /// Begins a write of so many bytes in a group. None while too many versions are above the watermark, or
    /// too much is held by writes that were given up and this group has some: what is not begun yet costs
    /// nothing when it is given up. Then try again when [`Versions::moved`] says so.
    pub(crate) fn begin(self: &Rc<Self>, group: GroupId, bytes: u64) -> Option<Operation> {
        let (lag, given_up) = {
            let groups = self.groups.borrow();
            groups.get(&group).map_or((0, 0), |g| (g.issued.len() as u64, g.given_up))
        };
        let is_crowded = given_up > 0 && self.given_up_bytes.get() >= GIVEN_UP_BYTES_MAX;
        if lag >= self.bounds.lag_max || is_crowded {
            return None;
        }
        let id = self.next_operation.get();
        self.next_operation.set(id + 1);
        let ticket = Ticket { id, group, bytes };
        Some(Operation { versions: self.clone(), ticket, counters: Vec::new() })
    }

    /// Notes that nobody waits for an operation under way any more. Whatever any lane of the attach issues
    /// from now on is above its versions (P8), and it gets no more of them.
    pub(crate) fn give_up(&self, ticket: Ticket) {
        self.raise_floor(ticket);
        let known = self.given_up.borrow_mut().insert(ticket.id, (ticket.group, ticket.bytes));
        assert!(known.is_none(), "an operation is given up once");
        self.given_up_bytes.set(self.given_up_bytes.get() + ticket.bytes);
        self.groups.borrow_mut().entry(ticket.group).or_default().given_up += 1;
    }

    /// Raises the floor of the attach to the newest version of an operation, if it has one.
    fn raise_floor(&self, ticket: Ticket) {
        let groups = self.groups.borrow();
        let mut issued = groups.get(&ticket.group).into_iter().flat_map(|g| g.issued.iter().rev());
        let own = issued.find(|(_, issued)| issued.operation == ticket.id);
        if let Some((counter, _)) = own.filter(|_| !mutated(Mutation::FloorNotRaised)) {
            self.bounds.floor.raise(*counter);
        }
    }

    /// An operation has ended, whichever way.
    fn ended(&self, id: u64) {
        let Some((group, bytes)) = self.given_up.borrow_mut().remove(&id) else { return };
        self.given_up_bytes.set(self.given_up_bytes.get() - bytes);
        self.groups.borrow_mut().get_mut(&group).expect("noted when it was given up").given_up -= 1;
        self.moved.notify_all();
    }

    /// Raises the session's counter above a version that it has seen.
    ///
    /// # Errors
    /// A text, if no clock and no number of writes can have led to it: nothing could be ordered after it.
    pub(crate) fn saw(&self, group: GroupId, version: Version) -> Result<(), String> {
        if version.counter() > COUNTER_SANE_MAX {
            return Err(format!("version {version} is beyond every clock"));
        }
        let mut groups = self.groups.borrow_mut();
        let g = groups.entry(group).or_default();
        if !mutated(Mutation::CounterNotRaised) {
            g.seen = g.seen.max(version.counter());
        }
        Ok(())
    }

    /// Raises the watermark of a group in which nothing is under way to what the clock was a little while
    /// ago: whatever is written there later is above it. Says whether nothing is under way.
    pub(crate) fn pass_over(&self, group: GroupId) -> bool {
        self.clock.saw_manager();
        let until = self.clock.counter().saturating_sub(PASSED_OVER_AFTER);
        let mut groups = self.groups.borrow_mut();
        let g = groups.entry(group).or_default();
        if !g.issued.is_empty() && !mutated(Mutation::WatermarkPassesOpen) {
            return false;
        }
        g.watermark = g.watermark.max(until);
        true
    }

    /// The watermark of a group.
    pub(crate) fn watermark(&self, group: GroupId) -> Version {
        let counter = self.groups.borrow().get(&group).map_or(0, |g| g.watermark);
        Version::new(counter, self.slot)
    }

    /// The watermark that a request to this replica carries; the replica has been told of it from now on.
    pub(crate) fn carry_watermark(&self, group: GroupId, drive: DriveId) -> Version {
        let mut groups = self.groups.borrow_mut();
        let g = groups.entry(group).or_default();
        g.told.insert(drive, g.watermark);
        Version::new(g.told_watermark(), self.watermark_slot())
    }

    /// The watermark of a group, if this replica has not been told of it. It has been from now on.
    pub(crate) fn take_untold(&self, group: GroupId, drive: DriveId) -> Option<Version> {
        let mut groups = self.groups.borrow_mut();
        let g = groups.get_mut(&group).filter(|g| g.is_untold(drive))?;
        g.told.insert(drive, g.watermark);
        Some(Version::new(g.watermark, self.watermark_slot()))
    }

    /// For whose slot watermarks are told: the lane's own (P6).
    fn watermark_slot(&self) -> SessionSlot {
        if mutated(Mutation::LaneSpeaksForSibling) { self.bounds.sibling } else { self.slot }
    }

    /// The replicas that have not been told of a watermark, with the groups. `entry` says who belongs to a
    /// group.
    pub(crate) fn untold(
        &self,
        entry: impl Fn(GroupId) -> Option<Rc<Group>>,
    ) -> BTreeMap<DriveId, Vec<GroupId>> {
        let mut untold: BTreeMap<DriveId, Vec<GroupId>> = BTreeMap::new();
        for (group, g) in self.groups.borrow().iter() {
            let Some(entry) = entry(*group) else { continue };
            for drive in entry.write_set().filter(|drive| g.is_untold(*drive)) {
                untold.entry(drive).or_default().push(*group);
            }
        }
        untold
    }

    /// Only these replicas count as told from now on: what was sent to others may be lost.
    pub(crate) fn forget_told(&self, is_sure: impl Fn(DriveId) -> bool) {
        for g in self.groups.borrow_mut().values_mut() {
            g.told.retain(|drive, _| is_sure(*drive));
        }
    }

    /// Until when the group gives out no versions, if that lies ahead.
    fn held_until(&self, group: GroupId) -> Option<Instant> {
        let until = self.groups.borrow().get(&group).map(|g| g.hold_until)?;
        (until != Instant::default() && now() < until).then_some(until)
    }

    fn issue(&self, group: GroupId, operation: u64) -> u64 {
        let clock = self.clock.counter();
        let mut groups = self.groups.borrow_mut();
        let g = groups.entry(group).or_default();
        let last = g.issued.last_key_value().map_or(g.watermark, |(last, _)| *last);
        let counter = clock.max(g.seen + 1).max(last + 1).max(self.bounds.floor.get() + 1);
        g.issued.insert(counter, Issued { operation, is_complete: false });
        counter
    }

    /// Forgets a version that is nowhere and never will be.
    fn take_back(&self, group: GroupId, counter: u64) {
        {
            let mut groups = self.groups.borrow_mut();
            let g = groups.get_mut(&group).expect("versions were given out in it");
            let issued = g.issued.remove(&counter).expect("it was given out");
            assert!(!issued.is_complete, "a complete version cannot be taken back");
            g.raise_watermark();
            g.hold_until = now() + AHEAD_PAUSE;
        }
        self.moved.notify_all();
    }

    fn complete(&self, group: GroupId, counters: &[u64]) {
        {
            let mut groups = self.groups.borrow_mut();
            let g = groups.get_mut(&group).expect("versions were given out in it");
            for counter in counters {
                g.issued.get_mut(counter).expect("a counter is completed once").is_complete = true;
            }
            g.raise_watermark();
        }
        self.moved.notify_all();
        (self.when_complete)();
    }
}

/// What names an operation, and how much it holds.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    id: u64,
    group: GroupId,
    bytes: u64,
}

/// A write in progress: holds the watermark below its first version until it is finished. Dropping it
/// unfinished holds the watermark for the rest of the session, since nobody knows what became of the write.
pub(crate) struct Operation {
    versions: Rc<Versions>,
    ticket: Ticket,
    counters: Vec<u64>,
}

impl Operation {
    /// By which its caller can give it up.
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Whether its caller has given it up.
    pub(crate) fn is_given_up(&self) -> bool {
        self.versions.given_up.borrow().contains_key(&self.ticket.id)
    }

    /// A version above every one that this lane has seen in the group, and above the floor of its attach.
    /// None if the caller has given the operation up: it would be above those of writes that were called
    /// since.
    pub(crate) async fn next_version(&mut self) -> Option<Version> {
        while let Some(until) = self.versions.held_until(self.ticket.group) {
            sleep_until(until).await;
        }
        if self.is_given_up() {
            return None;
        }
        if mutated(Mutation::WatermarkPassesRestart) && !self.counters.is_empty() {
            self.versions.complete(self.ticket.group, &std::mem::take(&mut self.counters));
        }
        let counter = self.versions.issue(self.ticket.group, self.ticket.id);
        self.counters.push(counter);
        Some(Version::new(counter, self.versions.slot))
    }

    /// The caller gets an error although its versions may still arrive somewhere: whatever it calls next, on
    /// whichever lane, is above them (P8).
    pub(crate) fn fail(&self) {
        self.versions.raise_floor(self.ticket);
    }

    /// The last version was refused by all as too far ahead of their clocks, one of which is this: it is
    /// nowhere, and the next one starts from that clock.
    pub(crate) fn take_back(&mut self, clock: u64) {
        let counter = self.counters.pop().expect("a version was given out");
        self.versions.clock.saw_behind(clock);
        self.versions.take_back(self.ticket.group, counter);
    }

    /// The write is complete on the whole write set, or certainly took effect nowhere.
    pub(crate) fn finish(mut self) {
        let counters = std::mem::take(&mut self.counters);
        if !counters.is_empty() {
            self.versions.complete(self.ticket.group, &counters);
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.versions.ended(self.ticket.id);
    }
}
