//! What a volume and a file system have in common: one lane of an attach, and what it has in flight.

use crate::attached::Ended;
use crate::group_io::GroupIo;
use crate::lane::Lane;
use crate::mirror::Mirror;
use crate::session::Session;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_rt::sync::Notify;
use weft_wire::control::ManagerRequest;

/// A lane of an attach.
pub(crate) struct Attach {
    pub(crate) io: Rc<Mirror>,
    in_flight: Cell<u64>,
    idle: Notify,
    /// Lanes of the attach that nobody has taken yet.
    lanes: RefCell<Vec<Lane>>,
}

/// Counts an operation in flight, for [`Attach::detach`].
pub(crate) struct InFlight<'a>(&'a Attach);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        if self.0.in_flight.get() == 0 {
            self.0.idle.notify_all();
        }
    }
}

impl Attach {
    /// A lane, with the other lanes of its attach if it is the first one.
    pub(crate) fn new(session: Rc<Session>, lanes: Vec<Lane>) -> Attach {
        Attach {
            io: Mirror::new(session),
            in_flight: Cell::new(0),
            idle: Notify::default(),
            lanes: RefCell::new(lanes),
        }
    }

    pub(crate) fn session(&self) -> &Session {
        self.io.session()
    }

    pub(crate) fn take_lanes(&self) -> Vec<Lane> {
        self.lanes.take()
    }

    pub(crate) fn begin(&self) -> InFlight<'_> {
        self.in_flight.set(self.in_flight.get() + 1);
        InFlight(self)
    }

    /// Waits for operations in flight. Then the first lane ends the attach, and another one leaves it.
    pub(crate) async fn detach(&self) {
        while self.in_flight.get() > 0 {
            self.idle.notified().await;
        }
        let session = self.session();
        session.tell_watermarks().await;
        session.is_detaching.set(true);
        if session.seat.is_first() {
            // Unreachable, the manager finds out when the session expires.
            let _ = session.fabric.ask_manager(&ManagerRequest::Detach { session: session.id }).await;
        }
        session.end(Ended::Detached);
    }
}
