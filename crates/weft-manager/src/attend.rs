//! One task per target that attends to it: keeps a connection, has it promise not to vouch for suspects,
//! and brings it every new map, as what has changed where that leads on from what it has (C8).
//!
//! It owns the order of the two: the promise first, since an eviction waits for it and for nothing else. It
//! never gives up on a target: the next thing may be its return.

use crate::manager::{Manager, State};
use crate::member::Member;
use crate::slices::Push;
use std::rc::Rc;
use std::time::Duration;
use weft_rpc::{CallError, ConnectError, Link};
use weft_rt::{Addr, Buf, Instant, now, sleep, spawn, timeout};
use weft_rules::{Mutation, mutated};
use weft_types::limits::{FRAME_BODY_MAX, SLICE_PART_BYTES};
use weft_types::{FabricMap, MapVersion, TargetId, with_causes};
use weft_wire::control::{self, TargetAnswer, TargetRequest};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, Status};

/// How long a target may take to make a map durable before it is sent again: many times what a slow drive
/// needs.
const ADOPT_MAX: Duration = Duration::from_secs(5);

/// How long to wait after a failure before trying again: short beside a lease.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Why a target gave no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// No target of this target has joined.
    #[error("its target has not joined")]
    NotJoined,
    /// The address in the map cannot be used.
    #[error("its address '{addr}' cannot be used: {cause}")]
    Address { addr: String, cause: String },
    /// The connection failed.
    #[error(transparent)]
    Link(#[from] ConnectError),
    /// It was asked, and has not answered or has refused.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Its answer is no message of the protocol.
    #[error("its answer cannot be read: {0}")]
    Answer(String),
}

/// What to do for a target next.
enum Duty {
    /// Nothing before something changes.
    Wait,
    /// Connect.
    Connect,
    /// Have it promise.
    Promise { victim: TargetId, map: MapVersion },
    /// Have it adopt the newest map.
    Push(Push),
}

impl Manager {
    /// Begins to attend to targets that are new.
    pub(crate) fn attend_to_targets(self: &Rc<Self>) {
        let new: Vec<TargetId> = {
            let mut state = self.state.borrow_mut();
            let targets: Vec<TargetId> = state.map.targets.keys().copied().collect();
            targets.into_iter().filter(|target| state.attended.insert(*target)).collect()
        };
        for target in new {
            spawn(self.clone().attend(target));
        }
    }

    async fn attend(self: Rc<Self>, target: TargetId) {
        while self.halted.borrow().is_none() {
            let changed = self.changed.notified();
            if !self.map().targets.contains_key(&target) {
                self.state.borrow_mut().attended.remove(&target);
                return;
            }
            let duty = self.state.borrow().duty(target, self.nonce());
            let done = match duty {
                Duty::Wait => {
                    changed.await;
                    continue;
                }
                Duty::Connect => self.link(target).await.map(|_| ()),
                Duty::Promise { victim, map } => self.have_promised(target, victim, map).await,
                Duty::Push(push) => self.push(target, push).await,
            };
            if let Err(error) = done {
                tracing::debug!(%target, error = with_causes(&error), "cannot attend to a target");
                sleep(RETRY_AFTER).await;
            }
        }
    }

    async fn have_promised(
        self: &Rc<Self>,
        target: TargetId,
        victim: TargetId,
        map: MapVersion,
    ) -> Result<(), AskError> {
        let incarnation = self.incarnation(target);
        let suspected = self.suspected_since(victim);
        self.ask(target, &TargetRequest::StopVouching { victim, map }, None, self.lease()).await?;
        if self.incarnation(target) == incarnation {
            let mut state = self.state.borrow_mut();
            // The suspicion may have ended meanwhile; the next one begins with a promise of its own.
            if state.suspects().contains(&victim)
                && state.members.get(&victim).and_then(Member::suspected_since) == suspected
                && let Some(member) = state.members.get_mut(&target)
            {
                member.note_promise(victim, map, now());
            }
        }
        self.changed.notify_all();
        Ok(())
    }

    async fn push(self: &Rc<Self>, target: TargetId, push: Push) -> Result<(), AskError> {
        let incarnation = self.incarnation(target);
        let answer = match self.send(target, &push).await {
            Err(AskError::Call(CallError::Refused { status: Status::Invalid, head }))
                if push.from.is_some() =>
            {
                let why = String::from_utf8_lossy(&head);
                tracing::info!(%target, %why, "a target is sent whole maps: it does not take what has changed");
                None
            }
            answered => Some(answered?),
        };
        if self.incarnation(target) == incarnation {
            let mut state = self.state.borrow_mut();
            match (answer, state.members.get_mut(&target)) {
                (None, Some(member)) => member.refuses_deltas = true,
                // It has gone on, or its map is from elsewhere.
                (Some(TargetAnswer::Holds { .. }), _) => state.note_elsewhere(target, &push),
                (Some(TargetAnswer::Adopted { left }), _) => state.note_pushed(target, &push, left),
                _ => state.note_pushed(target, &push, Vec::new()),
            }
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Sends a target what leads it on: in one request, or in several where one frame does not hold it.
    async fn send(self: &Rc<Self>, target: TargetId, push: &Push) -> Result<TargetAnswer, AskError> {
        let (version, nonce, bytes) = (push.version, push.nonce, &push.bytes);
        if bytes.len() <= FRAME_BODY_MAX {
            let request = match push.from {
                Some(from) => TargetRequest::AdoptDelta { from, version, nonce },
                None => TargetRequest::AdoptMap { version, nonce },
            };
            return self.ask(target, &request, Some(bytes.clone()), ADOPT_MAX).await;
        }
        let parts = bytes.len().div_ceil(SLICE_PART_BYTES) as u32;
        let mut answer = TargetAnswer::Done;
        for (part, bytes) in (0..).zip(bytes.chunks(SLICE_PART_BYTES)) {
            let request = TargetRequest::AdoptPart { version, nonce, part, parts };
            answer = self.ask(target, &request, Some(Buf::from(bytes.to_vec())), ADOPT_MAX).await?;
            if answer != TargetAnswer::Done {
                break;
            }
        }
        Ok(answer)
    }

    fn suspected_since(&self, target: TargetId) -> Option<Instant> {
        self.state.borrow().members.get(&target)?.suspected_since()
    }

    fn incarnation(&self, target: TargetId) -> Option<u64> {
        self.state.borrow().members.get(&target)?.incarnation
    }

    /// Asks a target something, connecting first if need be.
    ///
    /// # Errors
    /// See [`AskError`]; only after [`CallError::Refused`] is it known that nothing was done.
    pub(crate) async fn ask(
        self: &Rc<Self>,
        target: TargetId,
        request: &TargetRequest,
        body: Option<Buf>,
        patience: Duration,
    ) -> Result<TargetAnswer, AskError> {
        let call = async {
            let link = self.link(target).await?;
            let body = body.into_iter().collect::<Vec<_>>();
            Ok::<_, AskError>(link.call(Kind::Control, &control::encode(request), body).await?)
        };
        let reply = timeout(patience, call).await.unwrap_or(Err(CallError::Late(patience).into()))?;
        control::decode(reply.document()).map_err(|e| AskError::Answer(e.to_string()))
    }

    /// The connection to a target; a connection that cannot be made again is a reason for suspicion.
    async fn link(self: &Rc<Self>, target: TargetId) -> Result<Link, AskError> {
        let (addr, fabric, incarnation, had_link) = {
            let state = self.state.borrow();
            let member = state.members.get(&target).ok_or(AskError::NotJoined)?;
            if let Some(link) = member.open_link() {
                return Ok(link);
            }
            let incarnation = member.incarnation.ok_or(AskError::NotJoined)?;
            // Where it listened, a target of the newer process may: that one answers for itself.
            let listed = state.map.targets.get(&target).ok_or(AskError::NotJoined)?;
            if !member.process.is_some_and(|process| state.processes.is_newest(listed.node, process)) {
                return Err(AskError::NotJoined);
            }
            let addr = state.map.targets.get(&target).ok_or(AskError::NotJoined)?.addr.clone();
            (addr, state.map.fabric, incarnation, member.link.is_some())
        };
        let to: Addr = match addr.parse() {
            Ok(to) => to,
            Err(error) => return Err(AskError::Address { addr, cause: with_causes(&error) }),
        };
        let hello = Hello::new(PeerRole::Manager, Some(fabric), self.options.name.clone());
        let begun = now();
        let result = Link::connect(&to, &hello).await;
        let has_stalled = self.has_stalled_since(begun);
        let mut state = self.state.borrow_mut();
        let member = state.members.get_mut(&target).filter(|m| m.incarnation == Some(incarnation));
        let Some(member) = member else { return Err(AskError::NotJoined) };
        match result {
            Ok(link) => {
                // Another request may have connected at the same time; one of the two links is then dropped.
                let link = member.open_link().unwrap_or(link);
                member.link = Some(link.clone());
                member.is_unreachable = false;
                drop(state);
                self.wake_when_closed(&link);
                Ok(link)
            }
            Err(error) => {
                let is_lost = had_link && !member.is_unreachable && !has_stalled;
                member.is_unreachable = true;
                member.link = None;
                drop(state);
                if is_lost {
                    self.suspect(target, format!("its connection is lost: {}", with_causes(&error)));
                }
                Err(error.into())
            }
        }
    }
}

impl Manager {
    /// Has everyone look again when the connection ends.
    fn wake_when_closed(self: &Rc<Self>, link: &Link) {
        let (manager, link) = (self.clone(), link.clone());
        spawn(async move {
            link.closed().await;
            manager.changed.notify_all();
        });
    }
}

impl State {
    /// What to do for a target next: first a connection, then promises, then the map.
    fn duty(&self, target: TargetId, nonce: u64) -> Duty {
        let is_there = |m: &&Member| m.incarnation.is_some() && !m.has_stopped();
        let Some(member) = self.members.get(&target).filter(is_there) else { return Duty::Wait };
        if member.open_link().is_none() {
            return Duty::Connect;
        }
        let map = self.map.version;
        let promised = |victim: &TargetId| {
            member.promises.get(victim).is_some_and(|p| p.map >= map && p.since > member.joined_at)
        };
        let suspects = self.suspects().into_iter().filter(|victim| *victim != target);
        match { suspects }.find(|v| !promised(v) && self.is_concerned(target, *v)) {
            Some(victim) => Duty::Promise { victim, map },
            None => self.next_push(target, member, nonce).map_or(Duty::Wait, Duty::Push),
        }
    }

    /// The map that targets are sent: a durable one (C1). One that is only decided may never be.
    pub(crate) fn pushed(&self) -> &Rc<FabricMap> {
        match mutated(Mutation::PushDecided) {
            true => &self.map,
            false => &self.durable.map,
        }
    }

    /// The whole map, for a target of the release before: it takes no deltas.
    pub(crate) fn whole_push(&self, nonce: u64) -> Push {
        let pushed = self.pushed();
        Push::of_whole(pushed.version, self.whole.bytes(pushed), nonce)
    }

    /// Whether the target has a member of a group that the victim is to leave: as long as all of them vouch
    /// for it, it may serve.
    fn is_concerned(&self, target: TargetId, victim: TargetId) -> bool {
        let is_on = |drive, target| self.target_of(drive) == Some(target);
        let mut written = self.index.drives_of(target).flat_map(|d| self.groups_written_by(d));
        written.any(|g| g.write_set().any(|d| is_on(d, victim)))
    }
}
