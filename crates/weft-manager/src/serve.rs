//! Requests of targets, clients and tools: who may connect, and where each request goes.
//!
//! It owns the way from a frame to a typed request and back. Each operation is in the file of its name.

use crate::actor::name_of;
use crate::error::Denied;
use crate::manager::Manager;
use crate::session::AttachWish;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiError, ErrorCode};
use weft_membership::DriveFault;
use weft_rpc::{Answer, Greeter, Peer, Request, Service};
use weft_rt::{Buf, now, timeout};
use weft_rules::{Mutation, mutated};
use weft_types::{AttachKind, limits::FRAME_BODY_MAX};
use weft_types::{FabricId, MapVersion, SessionId, SessionState, with_causes};
use weft_wire::control::{self, DELTA_PROTOCOL, ManagerAnswer, ManagerRequest, TargetAge};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::renewal::{Grant, Renewal};
use weft_wire::{Kind, Status};

/// How long a watch is held open when there is nothing new: long enough to cost nothing, short enough that a
/// dead connection is noticed before a person wonders.
pub(crate) const WATCH_MAX: Duration = Duration::from_secs(10);

/// Sessions of one client of which the reasons why they are over fit into one answer.
const ENDED_NAMED: usize = 8;

/// What to do where it is not known whether something was done.
pub(crate) const UNKNOWN_HINT: &str =
    "look into the manager's log; then ask again, and look whether it was done";

/// What goes back: the typed answer, and the map where one belongs to it.
type Reply = Result<(ManagerAnswer, Option<Buf>), Denied>;

/// Kinds of requests that a manager answers.
pub(crate) const ANSWERED: &[Kind] = &[Kind::Manage, Kind::Renew, Kind::Api];

impl Greeter for Manager {
    fn greet(&self, hello: &Hello) -> Result<Option<FabricId>, String> {
        let fabric = self.map().fabric;
        let Some(other) = hello.fabric.filter(|other| *other != fabric) else { return Ok(Some(fabric)) };
        if matches!(hello.role, PeerRole::Target(_)) {
            self.note_foreign_node(&hello.name, other);
        }
        Err(format!(
            "'{}' belongs to fabric {other}, this manager serves fabric {fabric}: \
             name the manager of its own fabric, or format its drives anew for this one",
            hello.name
        ))
    }
}

impl Service for Manager {
    async fn handle(self: Rc<Self>, peer: Rc<Peer>, request: Request) -> Answer {
        // A manager whose store is an old copy still says so to people; it changes nothing.
        let is_read = self.is_stale.get() && request.kind == Kind::Api;
        if let Some(reason) = self.halted.borrow().clone().filter(|_| !is_read) {
            return Answer::error(Status::NotReady, format!("this manager has stopped: {reason}"));
        }
        // A request that is longer than a head may be travels as the body.
        let bytes = if request.head.is_empty() { &request.body } else { &request.head };
        match request.kind {
            Kind::Manage => match control::decode::<ManagerRequest>(bytes) {
                Ok(request) => {
                    let waits = waits_for_the_store(&request);
                    let before = self.map().version;
                    let made = self.on_behalf_of(name_of(&peer), self.manage(&peer, request)).await;
                    let kept = if waits { self.answerable(before).await } else { Ok(()) };
                    reply(kept.map_err(|why| Denied::new(Status::NotReady, why)).and(made))
                }
                Err(error) => Answer::error(Status::Invalid, error.to_string()),
            },
            Kind::Renew => match Renewal::decode(bytes) {
                Ok(renewal) => self.answer_renewal(&peer, &renewal),
                Err(error) => Answer::error(Status::Invalid, error.to_string()),
            },
            Kind::Api => match weft_api::decode_request(bytes) {
                Ok(request) => {
                    let (who, before) = (name_of(&peer), self.map().version);
                    let made = self.on_behalf_of(who.clone(), self.operate(request, &who)).await;
                    let kept = self
                        .answerable(before)
                        .await
                        .map_err(|why| ApiError::new(ErrorCode::Unavailable, why).with_hint(UNKNOWN_HINT));
                    let mut bytes = weft_api::encode_reply(kept.and(made));
                    if bytes.len() > FRAME_BODY_MAX {
                        let text = format!("the answer has {} bytes, more than can be sent", bytes.len());
                        bytes = weft_api::encode_reply(Err(ApiError::new(ErrorCode::Refused, text)));
                    }
                    Answer::ok(vec![], vec![Buf::from(bytes)])
                }
                Err(error) => Answer::error(Status::Invalid, with_causes(&error)),
            },
            other => Answer::error(Status::Invalid, format!("a manager does not answer {other:?}")),
        }
    }
}

/// Whether the answer to this may say something that is decided and not durable. A renewal's says nothing of
/// the kind: its lease is void until the map that it names is adopted, and only durable maps are. What a
/// watch is answered is durable.
fn waits_for_the_store(request: &ManagerRequest) -> bool {
    use ManagerRequest::{Follow, Renew, WatchMap};
    !matches!(request, Renew { .. } | WatchMap { .. } | Follow { .. })
}

/// Refuses to send a map that no frame can hold: a member of this release follows a slice, or asks for less.
fn check_fits(map: &Buf) -> Result<(), Denied> {
    if map.len() <= FRAME_BODY_MAX {
        return Ok(());
    }
    let text = format!(
        "the fabric map has {} bytes, and {FRAME_BODY_MAX} can be sent whole: upgrade this member, so that it \
         follows only what concerns it",
        map.len()
    );
    Err(Denied::new(Status::Refused, text))
}

fn check_answer((answer, map): (ManagerAnswer, Option<Buf>)) -> Reply {
    map.iter().try_for_each(check_fits)?;
    Ok((answer, map))
}

fn reply(reply: Reply) -> Answer {
    match reply {
        Ok((answer, map)) => Answer::ok(control::encode(&answer), map.into_iter().collect::<Vec<_>>()),
        Err(Denied { status, text }) => Answer::error(status, text),
    }
}

/// Refuses the attach of a file system, or of a system volume, to a client that is sent whole maps: these
/// leave file systems out.
fn check_is_sent_file_systems(peer: &Peer, kind: AttachKind) -> Result<(), Denied> {
    if kind.is_blocks() || peer.protocol >= DELTA_PROTOCOL {
        return Ok(());
    }
    let text = format!("the client speaks protocol {}, file systems need {DELTA_PROTOCOL}", peer.protocol);
    Err(Denied::new(Status::Refused, text))
}

impl Manager {
    /// Waits until an answer may be given: until all is durable that was decided when it was made (C1), also
    /// by others. What it refuses, or says is so already, may follow from that. `before` is the newest map
    /// when the request came.
    ///
    /// # Errors
    /// Why it is not known whether what the answer says is so.
    async fn answerable(&self, before: MapVersion) -> Result<(), String> {
        let has_decided = self.map().version > before;
        if mutated(Mutation::ToldEarly) || mutated(Mutation::RepeatToldEarly) && !has_decided {
            return Ok(());
        }
        // One whose store is an old copy still says so; it decides nothing.
        if self.is_stale.get() {
            return Ok(());
        }
        self.all_durable().await
    }

    /// Answers a renewal in its fixed form: at once, since what it says does not wait for the store.
    fn answer_renewal(&self, peer: &Peer, renewal: &Renewal) -> Answer {
        match self.acting_for(name_of(peer), || self.renew(renewal)) {
            Ok(grant) => {
                let (head, body) = grant.encode();
                Answer::ok(head, if body.is_empty() { vec![] } else { vec![Buf::from(body)] })
            }
            Err(Denied { status, text }) => Answer::error(status, text),
        }
    }

    async fn manage(self: &Rc<Self>, peer: &Peer, request: ManagerRequest) -> Reply {
        let done = |()| (ManagerAnswer::Done, None);
        match request {
            ManagerRequest::Join(mut join) => {
                let takes_slices = peer.protocol >= DELTA_PROTOCOL;
                // File systems are left out of whole maps: to whoever is sent these they would be deleted.
                join.knows_file_systems &= takes_slices;
                let (name, drives, left_out) =
                    (join.node.clone(), join.drives.clone(), join.left_out.clone());
                let (target, refused) = self.join(join, peer.since)?;
                self.note_left_out(&name, target, left_out);
                self.answerable(MapVersion(0)).await.map_err(|why| Denied::new(Status::NotReady, why))?;
                let (nonce, map) = self.joined_map(target, &drives, takes_slices);
                check_fits(&map)?;
                Ok((ManagerAnswer::Joined { target, refused, nonce }, Some(map)))
            }
            ManagerRequest::Renew { target, incarnation, adopted, commits, ahead } => {
                let renewal = Renewal { target, incarnation, adopted, commits, ahead };
                let Grant { map, suspects, clock_us } = self.renew(&renewal)?;
                Ok((ManagerAnswer::Granted { map, suspects, clock_us }, None))
            }
            ManagerRequest::Stopped { target, incarnation, commits } => {
                self.hear_last_word(target, incarnation, &commits).await.map(done)
            }
            ManagerRequest::WatchMap { have } => check_answer(self.watch_map(have).await),
            ManagerRequest::Follow { version, nonce, slice } => {
                check_answer(self.follow(version, nonce, &slice).await)
            }
            ManagerRequest::Verified { group, drive, stint } => {
                self.note_verified(group, drive, stint).map(done)
            }
            ManagerRequest::DriveFailed { drive, incarnation, cause, of_device } => {
                self.note_failure(drive, incarnation, DriveFault { cause, of_device }).map(done)
            }
            ManagerRequest::Attach {
                volume,
                mode,
                preempt,
                client,
                follows,
                number,
                lanes,
                kind,
                server,
            } => {
                check_is_sent_file_systems(peer, kind)?;
                let wish = AttachWish { mode, preempt, client, number, lanes, kind, server };
                let session = self.attach(&volume, wish).await?;
                self.answerable(MapVersion(0)).await.map_err(|why| Denied::new(Status::NotReady, why))?;
                let (nonce, map) = self.attached_map(&session, follows);
                check_fits(&map)?;
                let generation = session.generation;
                let clock_us = self.steady_clock_us();
                Ok((ManagerAnswer::Attached { session, generation, clock_us, nonce }, Some(map)))
            }
            ManagerRequest::Detach { session } => self.detach(session).map(done),
            ManagerRequest::Touch { sessions, silent, heard } => {
                self.touch(&sessions, &silent, &heard).map(done)
            }
            ManagerRequest::Suspect { target } => {
                self.probe(target);
                Ok((ManagerAnswer::Done, None))
            }
            ManagerRequest::MayHaveTargets { node } => self.may_have_targets(&node).map(done),
        }
    }

    /// Waits for a map newer than the peer's; of peers of the release before, which do not follow.
    async fn watch_map(&self, have: MapVersion) -> (ManagerAnswer, Option<Buf>) {
        let newer = async {
            loop {
                let changed = self.changed.notified();
                match self.newer_map(have) {
                    Some(newer) => return newer,
                    None => changed.await,
                }
            }
        };
        match timeout(WATCH_MAX, newer).await {
            Ok((version, bytes)) => (ManagerAnswer::Map { version }, Some(bytes)),
            Err(_) => (ManagerAnswer::Map { version: self.durable_map().version }, None),
        }
    }

    /// Notes that clients are alive, and which nodes they reach. Tells a client none of whose sessions
    /// is open any more, and why: of one, the reason alone; of several, each with its number.
    fn touch(
        self: &Rc<Self>,
        sessions: &[SessionId],
        silent: &[TargetAge],
        heard: &[TargetAge],
    ) -> Result<(), Denied> {
        let map = self.map();
        let is_open = |id| map.sessions.get(id).is_some_and(|s| s.state == SessionState::Open);
        let open: Vec<_> = sessions.iter().filter(|id| is_open(id)).collect();
        if open.is_empty() && !sessions.is_empty() {
            let state = self.state.borrow();
            let text = match sessions {
                [one] => state.why_ended(*one),
                several => {
                    let named = several.iter().take(ENDED_NAMED);
                    let named: Vec<String> =
                        named.map(|id| format!("session {id}: {}", state.why_ended(*id))).collect();
                    named.join("; ")
                }
            };
            return Err(Denied::new(Status::SessionOver, text));
        }
        {
            let mut state = self.state.borrow_mut();
            for id in &open {
                state.touched.insert(**id, now());
                state.silent.remove(id);
            }
        }
        self.note_reach(open.into_iter().copied(), silent, heard);
        Ok(())
    }
}
