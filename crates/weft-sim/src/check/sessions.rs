//! No session ends under a client that lives and is heard: neither because the manager stood still, nor
//! because it was started again.

use crate::bed::Bed;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{Instant, now, sleep};
use weft_types::{SessionId, SessionState};

/// Virtual time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// For so many terms after something kept a client from being heard, the end of its session is nobody's
/// mistake.
const EXCUSED_TERMS: u32 = 3;

/// The sessions that clients hold, and what keeps clients from being heard.
#[derive(Default)]
pub struct SessionsCheck {
    held: RefCell<BTreeMap<SessionId, String>>,
    /// Who is not heard, all if nobody is named, from when and until when.
    unheard: RefCell<Vec<(Option<String>, Instant, Instant)>>,
    wrong: RefCell<Option<String>>,
}

/// A session that a client holds, until it lets go of it or dies.
pub struct Held(Rc<SessionsCheck>, SessionId);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.borrow_mut().remove(&self.1);
    }
}

impl SessionsCheck {
    /// A client has attached a volume that it shares: nobody takes that away.
    pub fn hold(self: &Rc<Self>, session: SessionId, client: &str) -> Held {
        self.held.borrow_mut().insert(session, client.to_owned());
        Held(self.clone(), session)
    }

    /// A client, or all of them, may not be heard for so long from now on.
    pub fn note_unheard(&self, client: Option<String>, lasts: Duration) {
        self.unheard.borrow_mut().push((client, now(), now() + lasts));
    }

    /// Looks again and again, for ever.
    pub async fn watch(self: Rc<Self>, bed: Rc<Bed>) {
        loop {
            self.look(&bed);
            sleep(LOOK_EVERY).await;
        }
    }

    /// Whether all was well.
    ///
    /// # Errors
    /// The first session that ended under a client.
    pub fn verdict(&self) -> Result<(), String> {
        self.wrong.borrow().clone().map_or(Ok(()), Err)
    }

    fn look(&self, bed: &Bed) {
        let (map, term) = (bed.truth(), bed.shape.durations.session());
        let is_open = |id| map.sessions.get(id).is_some_and(|s| s.state == SessionState::Open);
        for (session, client) in self.held.borrow().iter().filter(|(id, _)| !is_open(id)) {
            let is_it = |who: &Option<String>| who.as_ref().is_none_or(|who| who == client);
            let mut unheard = self
                .unheard
                .borrow()
                .iter()
                .any(|(who, _, until)| is_it(who) && now() < *until + term * EXCUSED_TERMS);
            unheard |= self.wrong.borrow().is_some();
            if !unheard {
                weft_rt::sim::tell(|| format!("session {session} of {client} is over, and nobody ended it"));
                *self.wrong.borrow_mut() = Some(format!(
                    "session {session} of {client}, which was there all the time, is over in map {}",
                    map.version
                ));
            }
        }
    }
}
