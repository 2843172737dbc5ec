//! A client's attach: who it is, whether it still holds, and what is known of its requests for the logs.

use crate::attached::{Attached, Ended};
use crate::error::ClientError;
use crate::lane::{Behind, Reached, Seat};
use crate::request_log::RequestLog;
use crate::shared::Shared;
use crate::version_clock::VersionClock;
use crate::versions::{Operation, Versions};
use crate::watermarks::PassedOver;
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_rt::sync::Notify;
use weft_rt::{sleep, spawn, timeout};
use weft_types::limits::LANES_MAX;
use weft_types::{AttachMode, DriveId, Generation, GroupId, SessionId, SessionSlot, VolumeId};

/// How long the manager is asked why a session is over: it knows at once if it can be reached.
const WHY_PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait before it is asked again: it may not have answered, or have restarted.
const WHY_RETRY: Duration = Duration::from_millis(200);

/// A client's attach to a volume, or one lane of it.
pub(crate) struct Session {
    pub(crate) fabric: Rc<Shared>,
    pub(crate) id: SessionId,
    pub(crate) slot: SessionSlot,
    /// Lanes of the attach.
    pub(crate) lanes: usize,
    pub(crate) volume: VolumeId,
    pub(crate) volume_name: String,
    pub(crate) mode: AttachMode,
    pub(crate) generation: Generation,
    pub(crate) versions: Rc<Versions>,
    next_request: Cell<u32>,
    pub(crate) log: RequestLog,
    ended: Cell<Option<Ended>>,
    /// Why, in the manager's words; none if it has not answered in time.
    why: RefCell<Option<String>>,
    /// Whether the manager is being asked for them.
    asks_why: Cell<bool>,
    /// Whether this client ends it itself, and so need not ask why.
    pub(crate) is_detaching: Cell<bool>,
    /// It has ended, or the manager has said why.
    changed: Notify,
    /// Which lane of the attach this is.
    pub(crate) seat: Seat,
    /// Other lanes that have not heard of the newest map.
    pub(crate) behind: Behind,
    /// Watermarks are sent soon, and once more to those that could not be reached.
    pub(crate) telling: Cell<bool>,
    pub(crate) telling_again: Cell<bool>,
    /// Groups in which the watermark was raised while nothing was under way.
    pub(crate) passed_over: PassedOver,
    pub(crate) this: Weak<Session>,
}

impl Session {
    pub(crate) fn new(
        fabric: Rc<Shared>,
        session: &weft_types::Session,
        volume_name: &str,
        clock: VersionClock,
        seat: Seat,
    ) -> Rc<Session> {
        let slot = session.slots().nth(seat.number).expect("a session has a slot for each lane");
        Rc::new_cyclic(|this: &Weak<Session>| Session {
            fabric,
            id: session.id,
            slot,
            lanes: session.lanes(),
            volume: session.volume,
            volume_name: volume_name.to_owned(),
            mode: session.mode,
            generation: session.generation,
            versions: {
                let this = this.clone();
                let tell = move || this.upgrade().iter().for_each(|session| session.tell_watermarks_soon());
                Versions::new(slot, seat.bounds.clone(), clock, Box::new(tell))
            },
            next_request: Cell::new(first_request(seat.number)),
            log: RequestLog::default(),
            ended: Cell::new(None),
            why: RefCell::default(),
            asks_why: Cell::new(false),
            is_detaching: Cell::new(false),
            changed: Notify::default(),
            seat,
            behind: Behind::default(),
            telling: Cell::new(false),
            telling_again: Cell::new(false),
            passed_over: PassedOver::default(),
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
            let changed = self.changed.notified();
            let ended = self.ended.get()?;
            if !self.asks_why.get() {
                return Some(self.over(ended));
            }
            changed.await;
        }
    }

    /// Asks the manager why the session is over: a target only says that it is.
    fn ask_why(&self) {
        let Some(session) = self.this.upgrade() else { return };
        self.asks_why.set(true);
        spawn(async move {
            if !session.seat.is_first() {
                // The first lane asks, and posts what it hears.
                sleep(WHY_PATIENCE).await;
                return session.end_asking();
            }
            let answer = timeout(WHY_PATIENCE, session.fabric.why_over(session.id, WHY_RETRY)).await;
            answer.iter().for_each(|why| session.seat.tell_why(why));
            *session.why.borrow_mut() = answer.ok();
            session.end_asking();
        });
    }

    /// The manager has said why the session is over.
    pub(crate) fn hear_why(&self, why: String) {
        *self.why.borrow_mut() = Some(why);
        self.end_asking();
    }

    fn end_asking(&self) {
        self.asks_why.set(false);
        self.changed.notify_all();
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
            self.seat.tell_end(why);
            if !self.is_detaching.get() && why != Ended::Detached {
                self.ask_why();
            }
        }
        self.changed.notify_all();
        self.versions.moved.notify_all();
        self.fabric.changed.notify_all();
    }

    /// An answer that breaks the protocol, of the target that serves this drive.
    pub(crate) fn protocol(&self, drive: DriveId, what: &dyn std::fmt::Display) -> ClientError {
        let map = self.fabric.map();
        let addr = map.drive_addr(drive).unwrap_or("an unknown address").to_owned();
        ClientError::Protocol { addr, drive, message: what.to_string() }
    }

    /// Begins a write of so many bytes in a group, as soon as that may be ([`Versions::begin`]).
    pub(crate) async fn begin(&self, group: GroupId, bytes: u64) -> Result<Operation, ClientError> {
        loop {
            let moved = self.versions.moved.notified();
            self.check()?;
            if let Some(operation) = self.versions.begin(group, bytes) {
                return Ok(operation);
            }
            moved.await;
        }
    }
}

/// The first number of a lane's requests: lanes of a session count in different ranges, so that logs tell
/// them apart.
fn first_request(lane: usize) -> u32 {
    1 + lane as u32 * (u32::MAX / LANES_MAX as u32)
}

impl Attached for Session {
    fn id(&self) -> SessionId {
        self.id
    }

    fn volume(&self) -> VolumeId {
        self.volume
    }

    fn volume_name(&self) -> &str {
        &self.volume_name
    }

    fn generation(&self) -> Generation {
        self.generation
    }

    fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    fn end(&self, why: Ended) {
        Session::end(self, why);
    }

    fn map_changed(&self) {
        self.post_map();
        self.pass_over_later();
    }

    fn add_reach_of_others(&self, within: Duration, own: &mut Reached) {
        Session::add_reach_of_others(self, within, own);
    }

    fn connection_ended(&self) {
        self.doubt_watermarks();
    }

    fn show_life(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.send_a_watermark())
    }
}
