//! A client's attach: versions it gives out, and the watermark below which all of them are complete.

use crate::error::ClientError;
use crate::fabric::Shared;
use crate::version_clock::{COUNTER_SANE_MAX, VersionClock};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_rpc::LogQuota;
use weft_rt::sync::{Notify, join_all};
use weft_rt::{Instant, now, sleep, sleep_until, spawn, timeout};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::limits::{GIVEN_UP_BYTES_MAX, WATERMARK_LAG_MAX};
use weft_types::{AttachMode, DriveId, Generation, GroupId, SessionId, SessionSlot, Version, VolumeId};
use weft_wire::Kind;
use weft_wire::data::WatermarkNote;

/// How long a finished write may stay unknown to replicas when nothing else is sent to them: readers of it
/// take the slow path until then.
const WATERMARK_DELAY: Duration = Duration::from_millis(1);

/// How long to wait before a target that could not be reached is told again: long beside a connection attempt,
/// short beside the time that a restart takes.
const WATERMARK_RETRY: Duration = Duration::from_secs(1);

/// How long a group issues no versions after one that was too far ahead: others that were given out before it
/// reach their refusals, so that a lower one is the highest again.
const AHEAD_PAUSE: Duration = Duration::from_millis(20);

/// How long the manager is asked why a session is over: it knows at once if it can be reached.
const WHY_PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait before it is asked again: it may not have answered, or have restarted.
const WHY_RETRY: Duration = Duration::from_millis(200);

/// Why a session is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Fenced,
    Over,
    /// By this client itself.
    Detached,
}

impl Ended {
    /// What may have ended it, where the manager has not said so.
    fn guess(self) -> &'static str {
        match self {
            Ended::Fenced => {
                "another client attached the volume exclusively, the volume was deleted, or the fabric's \
                 map was recovered"
            }
            Ended::Over => "its client was out of touch for too long, or somebody ended it",
            Ended::Detached => "it was detached",
        }
    }
}

/// The versions of one session in one group.
#[derive(Default)]
struct GroupVersions {
    /// The highest counter that a replica answered with.
    seen: u64,
    /// Counters given out above the watermark, and whether their operation is complete.
    issued: BTreeMap<u64, bool>,
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
        while let Some(first) = self.issued.first_entry().filter(|e| *e.get()) {
            self.watermark = first.remove_entry().0;
        }
    }
}

/// A client's attach to a volume.
pub(crate) struct Session {
    pub(crate) fabric: Rc<Shared>,
    pub(crate) id: SessionId,
    pub(crate) slot: SessionSlot,
    pub(crate) volume: VolumeId,
    pub(crate) volume_name: String,
    pub(crate) mode: AttachMode,
    pub(crate) generation: Generation,
    groups: RefCell<BTreeMap<GroupId, GroupVersions>>,
    pub(crate) clock: VersionClock,
    next_operation: Cell<u64>,
    next_request: Cell<u32>,
    pub(crate) slow_told: LogQuota,
    pub(crate) failed_told: LogQuota,
    pub(crate) stuck_told: LogQuota,
    /// Operations under way that their callers gave up: their group, and the bytes that they hold.
    given_up: RefCell<BTreeMap<u64, (GroupId, u64)>>,
    given_up_bytes: Cell<u64>,
    ended: Cell<Option<Ended>>,
    /// Why, in the manager's words; none if it has not answered in time.
    why: RefCell<Option<String>>,
    /// Whether the manager is being asked for them.
    asks_why: Cell<bool>,
    /// Whether this client ends it itself, and so need not ask why.
    pub(crate) is_detaching: Cell<bool>,
    /// A watermark moved, or the session ended.
    moved: Notify,
    telling: Cell<bool>,
    telling_again: Cell<bool>,
    /// Drives that refused a write for want of space, and until when they are asked first.
    pub(crate) full: RefCell<BTreeMap<DriveId, Instant>>,
    /// The drive that a slow request has waited for, and how long, by the number of the request.
    pub(crate) waits: RefCell<BTreeMap<u32, (DriveId, Duration)>>,
    /// What the last attempt in a group met, for people.
    pub(crate) trouble: RefCell<BTreeMap<GroupId, String>>,
    this: Weak<Session>,
}

impl Session {
    pub(crate) fn new(
        fabric: Rc<Shared>,
        session: &weft_types::Session,
        generation: Generation,
        volume_name: &str,
        manager_clock_us: u64,
    ) -> Rc<Session> {
        Rc::new_cyclic(|this| Session {
            fabric,
            id: session.id,
            slot: session.slot,
            volume: session.volume,
            volume_name: volume_name.to_owned(),
            mode: session.mode,
            generation,
            groups: RefCell::default(),
            clock: VersionClock::new(manager_clock_us),
            next_operation: Cell::new(1),
            next_request: Cell::new(1),
            slow_told: LogQuota::new("slow requests"),
            failed_told: LogQuota::new("failed requests"),
            stuck_told: LogQuota::new("stuck requests"),
            given_up: RefCell::default(),
            given_up_bytes: Cell::new(0),
            ended: Cell::new(None),
            why: RefCell::default(),
            asks_why: Cell::new(false),
            is_detaching: Cell::new(false),
            moved: Notify::default(),
            telling: Cell::new(false),
            telling_again: Cell::new(false),
            full: RefCell::default(),
            waits: RefCell::default(),
            trouble: RefCell::default(),
            this: this.clone(),
        })
    }

    /// Fails if the session is of no further use.
    pub(crate) fn check(&self) -> Result<(), ClientError> {
        self.ended.get().map_or(Ok(()), |ended| Err(self.over(ended)))
    }

    /// The volume is not there for this attach.
    pub(crate) fn fenced(&self) -> ClientError {
        self.over(self.ended.get().unwrap_or(Ended::Fenced))
    }

    fn over(&self, ended: Ended) -> ClientError {
        let volume = self.volume_name.clone();
        let why = self.why.borrow().clone().unwrap_or_else(|| ended.guess().to_owned());
        match ended {
            Ended::Fenced => ClientError::Fenced { volume, why },
            Ended::Over | Ended::Detached => ClientError::SessionOver { volume, why },
        }
    }

    /// Why the session is over, once the manager has said so or has not for [`WHY_PATIENCE`]; none
    /// if it is not over.
    pub(crate) async fn why_over(&self) -> Option<ClientError> {
        loop {
            let moved = self.moved.notified();
            let ended = self.ended.get()?;
            if !self.asks_why.get() {
                return Some(self.over(ended));
            }
            moved.await;
        }
    }

    /// Asks the manager why the session is over: a target only says that it is.
    fn ask_why(&self) {
        let Some(session) = self.this.upgrade() else { return };
        self.asks_why.set(true);
        spawn(async move {
            let answer = timeout(WHY_PATIENCE, session.fabric.why_over(session.id, WHY_RETRY)).await;
            *session.why.borrow_mut() = answer.ok();
            session.asks_why.set(false);
            session.moved.notify_all();
        });
    }

    /// The number of a new request, for logs. It is never 0.
    pub(crate) fn number_request(&self) -> u32 {
        let number = self.next_request.get();
        self.next_request.set(number.checked_add(1).unwrap_or(1));
        number
    }

    /// Marks the session as ended; every operation fails from now on.
    pub(crate) fn end(&self, why: Ended) {
        if self.ended.get().is_none() {
            tracing::info!(session = %self.id, volume = self.volume_name, ?why, "session ends");
            self.ended.set(Some(why));
            if !self.is_detaching.get() {
                self.ask_why();
            }
        }
        self.moved.notify_all();
        self.fabric.changed.notify_all();
    }

    /// Begins a write of so many bytes in a group. Waits while too many versions are above the watermark, or
    /// too much is held by writes that were given up and this group has some: what is not begun yet costs
    /// nothing when it is given up.
    pub(crate) async fn begin(self: &Rc<Self>, group: GroupId, bytes: u64) -> Result<Operation, ClientError> {
        loop {
            let moved = self.moved.notified();
            self.check()?;
            let (lag, given_up) = {
                let groups = self.groups.borrow();
                groups.get(&group).map_or((0, 0), |g| (g.issued.len() as u64, g.given_up))
            };
            let crowded = given_up > 0 && self.given_up_bytes.get() >= GIVEN_UP_BYTES_MAX;
            if lag < WATERMARK_LAG_MAX && !crowded {
                let id = self.next_operation.get();
                self.next_operation.set(id + 1);
                let ticket = Ticket { id, group, bytes };
                return Ok(Operation { session: self.clone(), ticket, counters: Vec::new() });
            }
            moved.await;
        }
    }

    /// Notes that nobody waits for an operation under way any more.
    pub(crate) fn give_up(&self, ticket: Ticket) {
        let known = self.given_up.borrow_mut().insert(ticket.id, (ticket.group, ticket.bytes));
        assert!(known.is_none(), "an operation is given up once");
        self.given_up_bytes.set(self.given_up_bytes.get() + ticket.bytes);
        self.groups.borrow_mut().entry(ticket.group).or_default().given_up += 1;
    }

    /// An operation has ended, whichever way.
    fn ended(&self, id: u64) {
        let Some((group, bytes)) = self.given_up.borrow_mut().remove(&id) else { return };
        self.given_up_bytes.set(self.given_up_bytes.get() - bytes);
        self.groups.borrow_mut().get_mut(&group).expect("noted when it was given up").given_up -= 1;
        self.moved.notify_all();
    }

    /// Notes which watermark a request to this replica carries.
    pub(crate) fn carries_watermark(&self, group: GroupId, drive: DriveId) -> Version {
        let mut groups = self.groups.borrow_mut();
        let g = groups.entry(group).or_default();
        g.told.insert(drive, g.watermark);
        let newest = g.issued.last_key_value().filter(|_| mutated(Mutation::WatermarkPassesOpen));
        Version::new(newest.map_or(g.watermark, |(newest, _)| *newest), self.slot)
    }

    /// Raises the session's counter above a version that it has seen.
    ///
    /// # Errors
    /// A text, if no clock and no number of writes can have led to it: nothing could be ordered after it.
    pub(crate) fn saw_version(&self, group: GroupId, version: Version) -> Result<(), String> {
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

    /// Until when the group gives out no versions, if that lies ahead.
    fn held_until(&self, group: GroupId) -> Option<Instant> {
        let until = self.groups.borrow().get(&group).map(|g| g.hold_until)?;
        (until != Instant::default() && now() < until).then_some(until)
    }

    fn issue(&self, group: GroupId) -> u64 {
        let clock = self.clock.counter();
        let mut groups = self.groups.borrow_mut();
        let g = groups.entry(group).or_default();
        let last = g.issued.last_key_value().map_or(g.watermark, |(last, _)| *last);
        let counter = clock.max(g.seen + 1).max(last + 1);
        g.issued.insert(counter, false);
        counter
    }

    /// Forgets a version that is nowhere and never will be.
    fn take_back(&self, group: GroupId, counter: u64) {
        {
            let mut groups = self.groups.borrow_mut();
            let g = groups.get_mut(&group).expect("versions were given out in it");
            let was_complete = g.issued.remove(&counter).expect("it was given out");
            assert!(!was_complete, "a complete version cannot be taken back");
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
                *g.issued.get_mut(counter).expect("a counter is completed once") = true;
            }
            g.raise_watermark();
        }
        self.moved.notify_all();
        self.tell_later();
    }

    /// Sends watermarks that no request has carried, a little later.
    fn tell_later(&self) {
        if self.telling.replace(true) {
            return;
        }
        let this = self.this.clone();
        spawn(async move {
            sleep(WATERMARK_DELAY).await;
            if let Some(session) = this.upgrade() {
                session.telling.set(false);
                session.tell_watermarks().await;
            }
        });
    }

    /// Likewise, once a target that cannot be reached has had time to come back.
    fn tell_again(&self) {
        if self.telling_again.replace(true) {
            return;
        }
        let this = self.this.clone();
        spawn(async move {
            sleep(WATERMARK_RETRY).await;
            if let Some(session) = this.upgrade() {
                session.telling_again.set(false);
                session.tell_watermarks().await;
            }
        });
    }

    /// A connection has ended, and what was sent through it last may be lost: whoever has no connection now counts as
    /// not told.
    pub(crate) fn connection_ended(&self) {
        for g in self.groups.borrow_mut().values_mut() {
            g.told.retain(|drive, _| self.fabric.is_connected(*drive));
        }
        self.tell_later();
    }

    /// Sends every replica the watermarks that it has not been sent.
    pub(crate) async fn tell_watermarks(&self) {
        if self.check().is_err() {
            return;
        }
        let mut untold: BTreeMap<DriveId, Vec<GroupId>> = BTreeMap::new();
        for (group, g) in self.groups.borrow().iter() {
            let Some(entry) = self.fabric.entry(*group) else { continue };
            for drive in entry.write_set().filter(|drive| g.is_untold(*drive)) {
                untold.entry(drive).or_default().push(*group);
            }
        }
        let told = join_all(untold.into_iter().map(async |(drive, groups)| {
            let Ok(link) = self.fabric.link(drive).await else { return false };
            for part in self.notes(drive, &groups).chunks(WatermarkNote::NOTES_MAX) {
                mark(Path::WatermarkAlone);
                link.cast(Kind::Watermark, &WatermarkNote::encode_all(part));
            }
            true
        }));
        if told.await.contains(&false) {
            self.tell_again();
        }
    }

    /// Tells targets that the client is alive: it asks nothing of them at present, and cannot reach a
    /// manager. The watermark of one group goes to the members of its write set once more.
    pub(crate) async fn show_life(&self) {
        if self.check().is_err() {
            return;
        }
        let map = self.fabric.map();
        let mut of_volume =
            map.volumes.get(&self.volume).into_iter().flat_map(|v| &v.spans).flat_map(|s| &s.groups);
        let Some(entry) = of_volume.find_map(|group| self.fabric.entry(*group)) else { return };
        let watermark = self.groups.borrow().get(&entry.id).map_or(0, |g| g.watermark);
        let telling = entry.write_set().map(async |drive| {
            let Ok(link) = self.fabric.link(drive).await else { return };
            let note = WatermarkNote {
                drive,
                group: entry.id,
                epoch: entry.epoch,
                volume: self.volume,
                generation: self.generation,
                session: self.id,
                watermark: Version::new(watermark, self.slot),
            };
            link.cast(Kind::Watermark, &WatermarkNote::encode_all(&[note]));
        });
        join_all(telling).await;
    }

    /// The watermarks of these groups that the drive has not been sent; from now on it has.
    fn notes(&self, drive: DriveId, groups: &[GroupId]) -> Vec<WatermarkNote> {
        let mut notes = Vec::with_capacity(groups.len());
        let mut known = self.groups.borrow_mut();
        for group in groups {
            let (Some(g), Some(entry)) = (known.get_mut(group), self.fabric.entry(*group)) else { continue };
            if !g.is_untold(drive) {
                continue;
            }
            g.told.insert(drive, g.watermark);
            notes.push(WatermarkNote {
                drive,
                group: *group,
                epoch: entry.epoch,
                volume: self.volume,
                generation: self.generation,
                session: self.id,
                watermark: Version::new(g.watermark, self.slot),
            });
        }
        notes
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
    session: Rc<Session>,
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
        self.session.given_up.borrow().contains_key(&self.ticket.id)
    }

    /// A version above every one that this session has seen in the group.
    pub(crate) async fn next_version(&mut self) -> Version {
        while let Some(until) = self.session.held_until(self.ticket.group) {
            sleep_until(until).await;
        }
        if mutated(Mutation::WatermarkPassesRestart) && !self.counters.is_empty() {
            self.session.complete(self.ticket.group, &std::mem::take(&mut self.counters));
        }
        let counter = self.session.issue(self.ticket.group);
        self.counters.push(counter);
        Version::new(counter, self.session.slot)
    }

    /// The last version was refused by all as too far ahead of their clocks, one of which is this: it is
    /// nowhere, and the next one starts from that clock.
    pub(crate) fn take_back(&mut self, clock: u64) {
        let counter = self.counters.pop().expect("a version was given out");
        self.session.clock.saw_behind(clock);
        self.session.take_back(self.ticket.group, counter);
    }

    /// The write is complete on the whole write set, or certainly took effect nowhere.
    pub(crate) fn finish(mut self) {
        let counters = std::mem::take(&mut self.counters);
        if !counters.is_empty() {
            self.session.complete(self.ticket.group, &counters);
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.session.ended(self.ticket.id);
    }
}
