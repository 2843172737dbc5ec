//! How a client follows the map: the slice that concerns its sessions, change by change.
//!
//! It owns what is held of the map (C8). A slice says nothing of what it does not list, so only a session
//! that the slice was asked for is over if it is not listed. It decides nothing.

use crate::attached::Ended;
use crate::error::ClientError;
use crate::followed::Followed;
use crate::managers::Asked;
use crate::shared::{MANAGER_RETRY, Shared};
use std::rc::{Rc, Weak};
use std::time::Duration;
use weft_rpc::{CallError, Link, Reply};
use weft_rt::sync::{Either, race};
use weft_rt::{Buf, now, sleep, sleep_until};
use weft_rules::{Mutation, mutated};
use weft_types::{FabricMap, MapVersion, SessionState, Slice, with_causes};
use weft_wire::control::{self, ManagerAnswer, ManagerRequest};
use weft_wire::pieces::decode_delta;
use weft_wire::{Kind, Status};

/// A manager that was asked for a slice holds the answer back until the slice changes; that another
/// slice is asked for instead does not end it. So two are this far apart at least: then those that
/// wait, for 10 s at most, stay below [`weft_types::limits::CONNECTION_REQUESTS_MAX`].
const ASKED_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// What a manager is asked for.
struct Question {
    version: MapVersion,
    nonce: u64,
    slice: Slice,
    /// The version of the whole map that is held, for a manager of an older release; 0 for none.
    have: MapVersion,
}

impl Question {
    fn request(&self) -> ManagerRequest {
        let Question { version, nonce, slice, .. } = self;
        ManagerRequest::Follow { version: *version, nonce: *nonce, slice: slice.clone() }
    }

    /// Asks the manager on this connection, and one of an older release for the whole map.
    async fn ask(&self, link: &Link) -> Result<Reply, CallError> {
        match call(link, &self.request()).await {
            Err(error) if error.status() == Some(Status::Invalid) => {
                call(link, &ManagerRequest::WatchMap { have: self.have }).await
            }
            called => called,
        }
    }
}

async fn call(link: &Link, request: &ManagerRequest) -> Result<Reply, CallError> {
    let (head, body) = control::encode_request(request);
    link.call(Kind::Manage, &head, body).await
}

/// Why an answer is not taken. What is held stays.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error("it is not about what is held by now")]
    Late,
    #[error("the manager sent what cannot be read")]
    Unreadable(#[source] weft_wire::DecodeError),
    #[error("the manager sent a change that does not fit")]
    Unfit(#[source] weft_types::DeltaError),
    #[error("{0}")]
    Unexpected(String),
}

impl Shared {
    /// Fetches the map for the first time.
    ///
    /// # Errors
    /// If no manager answers.
    pub(crate) async fn fetch_map(&self) -> Result<(), ClientError> {
        let question = self.question();
        let (answer, body) = self.ask_for_map(&question).await?;
        let taken = self.take_answer(&question, answer, &body, None);
        taken.map_err(|error| ClientError::Refused { message: with_causes(&error) })
    }

    /// What is followed already, when another session is asked for.
    pub(crate) fn follows(&self) -> Slice {
        self.wanted(None)
    }

    /// Takes the map that came with a new session, or fetches one with it: the slice of what is
    /// followed by now and the session. `nonce` is 0 if the manager is of an older release: then
    /// the map is the whole one.
    ///
    /// # Errors
    /// If no manager answers any more.
    pub(crate) async fn take_attached(
        &self,
        body: &Buf,
        nonce: u64,
        follows: Slice,
        session: &weft_types::Session,
    ) -> Result<(), ClientError> {
        let slice = if nonce == 0 { Slice::Whole } else { with_session(follows, session) };
        let taken = self.take_whole(body, slice, nonce, Some(session));
        let Err(mut error) = taken else { return Ok(()) };
        // Another attach of this fabric was faster, or the map is newer by now.
        loop {
            tracing::debug!(error = with_causes(&error), "the map that came with a session is not taken");
            let slice = self.wanted(Some(session));
            let question = Question { nonce: 0, slice, ..self.question() };
            let (answer, body) = self.ask_for_map(&question).await?;
            match self.take_answer(&question, answer, &body, Some(session)) {
                Ok(()) => return Ok(()),
                Err(other) => error = other,
            }
            sleep(MANAGER_RETRY).await;
        }
    }

    /// The slice that concerns the sessions that are in use, this one, and volumes that are watched.
    fn wanted(&self, with: Option<&weft_types::Session>) -> Slice {
        let sessions = self.attached();
        let watched = self.watched.borrow().clone();
        let slice = Slice::Client {
            volumes: sessions.iter().map(|session| session.volume()).chain(watched).collect(),
            sessions: sessions.iter().map(|session| session.id()).collect(),
        };
        match with {
            Some(session) => with_session(slice, session),
            None => slice,
        }
    }

    /// What to ask a manager for next.
    fn question(&self) -> Question {
        let (version, followed, wanted) = (self.map().version, self.followed.borrow(), self.wanted(None));
        let have = if followed.slice == Slice::Whole { version } else { MapVersion(0) };
        match followed.nonce != 0 && followed.slice.covers(&wanted) {
            true => Question { version, nonce: followed.nonce, slice: followed.slice.clone(), have },
            false => Question { version, nonce: 0, slice: wanted, have },
        }
    }

    /// Asks a manager that is ready, and one of an older release for the whole map.
    async fn ask_for_map(&self, question: &Question) -> Result<(ManagerAnswer, Buf), Asked> {
        match self.ask_manager(&question.request()).await {
            Err(Asked::Answered(Status::Invalid, _)) => {
                self.ask_manager(&ManagerRequest::WatchMap { have: MapVersion(0) }).await
            }
            other => other,
        }
    }

    fn take_reply(&self, asked: &Question, reply: &Reply) -> Result<(), NotTaken> {
        let answer = control::decode(&reply.head).map_err(NotTaken::Unreadable)?;
        let taken = self.take_answer(asked, answer, &reply.body, None);
        if matches!(taken, Err(NotTaken::Unreadable(_) | NotTaken::Unfit(_))) {
            // All of the slice is asked for next.
            self.followed.borrow_mut().nonce = 0;
        }
        taken
    }

    fn take_answer(
        &self,
        asked: &Question,
        answer: ManagerAnswer,
        body: &Buf,
        with: Option<&weft_types::Session>,
    ) -> Result<(), NotTaken> {
        match answer {
            ManagerAnswer::Followed { from: MapVersion(0), nonce, .. } => {
                self.take_whole(body, asked.slice.clone(), nonce, with)
            }
            ManagerAnswer::Followed { from, version, nonce } => {
                self.take_change(asked, (from, version, nonce), body)
            }
            // Of a manager of an older release. It says nothing as long as nothing is newer.
            ManagerAnswer::Map { .. } if body.is_empty() => Ok(()),
            ManagerAnswer::Map { .. } => self.take_whole(body, Slice::Whole, 0, with),
            other => Err(NotTaken::Unexpected(other.unexpected("follow", "followed"))),
        }
    }

    /// Takes a slice as it is. Another one is not taken if it is older than what is held, or if it
    /// leaves out a session that is in use.
    fn take_whole(
        &self,
        body: &Buf,
        slice: Slice,
        nonce: u64,
        with: Option<&weft_types::Session>,
    ) -> Result<(), NotTaken> {
        let map = control::decode_map(body).map_err(NotTaken::Unreadable)?;
        let held = self.map();
        if (map.fabric == held.fabric && map.version < held.version) || !slice.covers(&self.wanted(with)) {
            return Err(NotTaken::Late);
        }
        *self.followed.borrow_mut() = Followed { slice, nonce };
        self.adopt(map);
        self.follows_other.notify_all();
        Ok(())
    }

    /// Takes what has changed since the version that is held, or that nothing has: from exactly there, or not
    /// at all (C8).
    fn take_change(
        &self,
        asked: &Question,
        (from, version, nonce): (MapVersion, MapVersion, u64),
        body: &Buf,
    ) -> Result<(), NotTaken> {
        if version == from {
            return Ok(());
        }
        let held = self.map();
        {
            let followed = self.followed.borrow();
            let is_there = followed.slice == asked.slice && followed.nonce == nonce && held.version == from;
            let gap = if body.is_empty() { Mutation::SkipOverGap } else { Mutation::DeltaOverGap };
            if !is_there && !mutated(gap) {
                return Err(NotTaken::Late);
            }
        }
        if body.is_empty() {
            // Nobody waits for a version.
            self.set_map(FabricMap { version, ..FabricMap::clone(&held) });
            return Ok(());
        }
        let delta = decode_delta(body).map_err(NotTaken::Unreadable)?;
        let held = match mutated(Mutation::DeltaOverGap) {
            true => Rc::new(FabricMap { version: delta.from, ..FabricMap::clone(&held) }),
            false => held,
        };
        let map = held.apply_delta(&delta).map_err(NotTaken::Unfit)?;
        self.adopt(map);
        Ok(())
    }

    /// Ends the sessions that are followed and that the map no longer lists as open, so that also
    /// one that asks for nothing hears of it.
    pub(crate) fn end_what_is_over(&self, map: &FabricMap) {
        let sessions = self.attached();
        for session in sessions {
            let is_followed = self.followed.borrow().slice.names_session(session.id(), session.volume());
            let listed = map.sessions.get(&session.id());
            if !is_followed || listed.is_some_and(|s| s.state == SessionState::Open) {
                continue;
            }
            let is_newer = |v: &weft_types::Volume| v.generation > session.generation();
            let fenced = map.volumes.get(&session.volume()).is_some_and(is_newer);
            session.end(if fenced { Ended::Fenced } else { Ended::Over });
        }
    }
}

fn with_session(slice: Slice, session: &weft_types::Session) -> Slice {
    match slice {
        Slice::Client { mut volumes, mut sessions } => {
            volumes.insert(session.volume);
            sessions.insert(session.id);
            Slice::Client { volumes, sessions }
        }
        other => other,
    }
}

/// Follows the map for as long as somebody uses the fabric.
pub(crate) async fn follow_map(shared: Weak<Shared>) {
    while let Some(fabric) = shared.upgrade() {
        let follows_other = fabric.follows_other.clone();
        let other = follows_other.notified();
        let (question, asked_at) = (fabric.question(), now());
        // Without holding the fabric: the wait may be long, and must not keep it alive.
        let link = fabric.manager_link().await;
        drop(fabric);
        let answered = match &link {
            Ok(link) => match race(question.ask(link), other).await {
                Either::Left(answered) => answered,
                Either::Right(()) => {
                    sleep_until(asked_at + ASKED_AGAIN_AFTER).await;
                    continue;
                }
            },
            Err(_) => Err(CallError::Broken),
        };
        drop(link);
        let Some(fabric) = shared.upgrade() else { return };
        let taken = match &answered {
            Ok(reply) => fabric.take_reply(&question, reply),
            Err(error) => {
                if error.status() == Some(Status::NotReady) {
                    fabric.managers.pass();
                }
                drop(fabric);
                sleep(MANAGER_RETRY).await;
                continue;
            }
        };
        drop(fabric);
        if let Err(error) = taken {
            tracing::debug!(error = with_causes(&error), "what changed in the map is asked for again");
            sleep(ASKED_AGAIN_AFTER).await;
        }
    }
}
