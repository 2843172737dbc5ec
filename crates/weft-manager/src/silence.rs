//! Sessions whose clients are silent: they end, unless a target hears them.
//!
//! A client that is cut off from the manager alone is served on, and targets can tell it from a dead
//! one. So they are asked before a session ends for silence. It owns the question, and what an attach
//! does about a session that is in its way and that only targets hear. It never ends a session by
//! itself: `observe.rs` says which are silent, and the plan of `weft-membership` closes them.

use crate::attend::AskError;
use crate::manager::{Manager, State};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_membership::{Change, CloseSession};
use weft_rpc::CallError;
use weft_rt::sync::join_all;
use weft_rt::{Instant, now, sleep, spawn};
use weft_rules::{Mutation, mutated};
use weft_types::{AttachMode, Session, SessionId, SessionState, TargetId, VolumeId, with_causes};
use weft_wire::control::{TargetAnswer, TargetRequest};

/// How often within a lease targets are asked about a session of which nothing is known.
const ASKED_PER_LEASE: u32 = 4;

/// Sessions in one question: as JSON some 20 bytes each, so that it fits a frame's head, and the answer
/// as well.
const SESSIONS_PER_QUESTION: usize = 256;

impl State {
    /// When this manager heard of a session last; as long as it has not, from when silence counts.
    pub(crate) fn touched_at(&self, session: SessionId) -> Instant {
        self.touched.get(&session).copied().unwrap_or(self.hears_from)
    }

    /// When this manager or, by their word, a target heard of a session last.
    fn heard_at(&self, session: SessionId) -> Instant {
        let served = self.served.get(&session).copied();
        self.touched_at(session).max(served.unwrap_or_default())
    }

    /// For how long nothing may be heard of a session.
    fn term_of(&self, session: &Session) -> Duration {
        match self.map.volumes.get(&session.volume) {
            Some(volume) => self.map.durations.session_of(volume),
            None => self.map.durations.session(),
        }
    }

    fn open_sessions(&self) -> impl Iterator<Item = &Session> {
        self.map.sessions.values().filter(|s| s.state == SessionState::Open)
    }

    /// Open sessions of which neither this manager nor a target that was asked has heard for a term.
    pub(crate) fn silent_sessions(&self) -> impl Iterator<Item = SessionId> {
        let is_open = |s: &Session| s.state == SessionState::Open;
        self.silent.iter().copied().filter(move |id| self.map.sessions.get(id).is_some_and(is_open))
    }

    /// Open sessions that this manager has not heard of for a term, as far as it knows, and about which
    /// nobody was asked yet.
    fn sessions_to_ask_about(&self) -> BTreeMap<VolumeId, Vec<SessionId>> {
        let mut by_volume: BTreeMap<VolumeId, Vec<SessionId>> = BTreeMap::new();
        for session in self.open_sessions() {
            let is_known = self.asked_about.contains(&session.id) || self.silent.contains(&session.id);
            if !is_known && self.heard_at(session.id).elapsed() >= self.term_of(session) {
                by_volume.entry(session.volume).or_default().push(session.id);
            }
        }
        by_volume
    }

    /// The targets that serve a volume's clients, as far as they can be asked.
    fn witnesses_of_sessions(&self, volume: VolumeId) -> BTreeSet<TargetId> {
        let can_be_asked = |n: &TargetId| self.members.get(n).is_some_and(|m| m.is_up() && !m.is_unreachable);
        self.writers_of(volume).into_iter().filter(can_be_asked).collect()
    }
}

impl Manager {
    /// Begins to ask targets about sessions that this manager has not heard of for a term.
    pub(crate) fn ask_about_the_silent(self: &Rc<Self>) {
        if self.is_catching_up() {
            return;
        }
        let by_volume = {
            let mut state = self.state.borrow_mut();
            let by_volume = state.sessions_to_ask_about();
            if mutated(Mutation::SilentUnasked) {
                state.silent.extend(by_volume.values().flatten());
                return;
            }
            state.asked_about.extend(by_volume.values().flatten());
            by_volume
        };
        for (volume, sessions) in by_volume {
            let manager = self.clone();
            spawn(async move {
                for part in sessions.chunks(SESSIONS_PER_QUESTION) {
                    manager.ask_about(volume, part).await;
                }
                manager.changed.notify_all();
                // Of which nothing is known they are asked again, and not all the time.
                sleep(manager.lease() / ASKED_PER_LEASE).await;
                let mut state = manager.state.borrow_mut();
                state.asked_about.retain(|id| !sessions.contains(id));
            });
        }
    }

    /// Asks the targets of a volume about sessions on it, and notes those that nobody has heard of for
    /// a term. As long as one that should answer does not, or none could be asked, nothing is known:
    /// the manager may be the one that is cut off.
    async fn ask_about(self: &Rc<Self>, volume: VolumeId, sessions: &[SessionId]) {
        let targets = self.state.borrow().witnesses_of_sessions(volume);
        let question = TargetRequest::HeardOf { sessions: sessions.to_vec() };
        let (question, patience) = (&question, self.lease() / 2);
        let asked = join_all(targets.iter().map(|&target| self.ask(target, question, None, patience))).await;
        let (mut latest, mut is_known): (BTreeMap<SessionId, Instant>, bool) =
            (BTreeMap::new(), !targets.is_empty());
        for answer in asked {
            match answer {
                Ok(TargetAnswer::HeardOf { heard }) => {
                    for (session, ago_ms) in heard {
                        let at = before_now(Duration::from_millis(ago_ms));
                        let latest = latest.entry(session).or_insert(at);
                        *latest = at.max(*latest);
                    }
                }
                // A target of an older release does not know the question.
                Ok(_) | Err(AskError::Call(CallError::Refused { .. })) => {}
                Err(error) => {
                    tracing::debug!(
                        error = with_causes(&error),
                        "it is not known whether clients are served"
                    );
                    is_known = false;
                }
            }
        }
        let mut state = self.state.borrow_mut();
        for id in sessions {
            let open = state.map.sessions.get(id).filter(|s| s.state == SessionState::Open);
            let Some(term) = open.map(|session| state.term_of(session)) else { continue };
            if let Some(at) = latest.get(id) {
                state.served.insert(*id, *at);
            }
            if is_known && state.heard_at(*id).elapsed() >= term {
                state.silent.insert(*id);
            }
        }
    }

    /// Ends the sessions that are in an attach's way and that this manager has not heard of for a term,
    /// although a target may hear them: somebody needs them gone.
    pub(crate) fn make_way(&self, volume: VolumeId, mode: AttachMode) {
        if self.is_catching_up() {
            return;
        }
        let in_the_way: Vec<SessionId> = {
            let state = self.state.borrow();
            let term = state.map.durations.session();
            let is_exclusive = |s: &Session| s.mode == AttachMode::Exclusive || mode == AttachMode::Exclusive;
            let of_volume = state.open_sessions().filter(|s| s.volume == volume && is_exclusive(s));
            let in_the_way: Vec<SessionId> = of_volume.map(|s| s.id).collect();
            // Where one stays, the attach is refused all the same.
            if in_the_way.iter().any(|id| state.touched_at(*id).elapsed() < term) {
                return;
            }
            in_the_way
        };
        for session in in_the_way {
            let close = Change::CloseSession(CloseSession { session });
            if let Err(error) = self.of_own_accord(|| self.commit(&close)) {
                tracing::warn!(%session, error = with_causes(&error), "a silent session is not ended");
            }
        }
    }
}

/// So long ago.
fn before_now(ago: Duration) -> Instant {
    let ago = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
    Instant::from_nanos(now().as_nanos().saturating_sub(ago))
}
