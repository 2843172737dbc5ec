//! Commits: the only way in which the map changes.
//!
//! A commit is decided in one step without waiting: apply, check, replace the newest map. Then `durable.rs`
//! has the store keep it, and informs targets and clients. A commit is never undone: after an error of the
//! store it is unknown which map the store has, so the manager stops.

use crate::ended::ended_by;
use crate::error::CommitError;
use crate::event::Subjects;
use crate::led_store::Decided;
use crate::manager::{Manager, State, wall_clock_ms};
use crate::member::Member;
use std::rc::Rc;
#[cfg(debug_assertions)]
use weft_membership::check;
use weft_membership::{Change, Reason, apply, check_changed, check_step};
use weft_rt::{Buf, now};
use weft_rules::{Path, mark};
use weft_types::limits::{
    COMMITS_AHEAD_MAX, DELTA_BYTES_MAX, FRAME_BODY_MAX, MAP_JSON_BYTES_GROWN_MAX, PIECES_BYTES_MAX,
};
use weft_types::{Delta, FabricMap, MapVersion, SessionId, TableChange, with_causes};
use weft_wire::pieces::encode_delta;

impl Manager {
    /// Applies a change: from now on it is decided, and soon durable (`durable.rs`).
    ///
    /// # Errors
    /// If the rules forbid the change, the store is too far behind, or the manager has stopped.
    pub(crate) fn commit(&self, change: &Change) -> Result<Reason, CommitError> {
        let old = self.map();
        let (next, reason) = apply(&old, change)?;
        let (what, about) = (name_of(change), Subjects::of(&reason, &old, &next, &self.state.borrow().index));
        let ended = ended_by(&reason, self.actor().as_deref(), &old, &next);
        let mut why = reason.to_string();
        if let (Reason::SessionOver { .. }, [(_, cause)]) = (&reason, &ended[..]) {
            why.push_str(&format!(": {cause}"));
        }
        self.commit_map(next, &what, why, about, change.grows_map())?;
        self.state.borrow_mut().ended.note(ended);
        match &reason {
            Reason::Promoted { .. } => mark(Path::Promoted),
            Reason::Evicted { .. } => mark(Path::Evicted),
            Reason::Demoted { .. } => mark(Path::Demoted),
            Reason::Departed { .. } => mark(Path::Departed),
            Reason::Relocated { .. } => mark(Path::Relocated),
            Reason::Rebuilding { .. } => mark(Path::Rebuilt),
            _ => {}
        }
        Ok(reason)
    }

    /// Commits a change that was planned outside, as `weft bench map` does. It is judged like every other.
    /// Durable when it completes.
    ///
    /// # Errors
    /// Why it was not committed, or why that is unknown.
    pub async fn commit_planned(&self, change: &Change) -> Result<(), String> {
        self.commit(change).map_err(|error| with_causes(&error))?;
        self.all_durable().await
    }

    /// Decides by what is known now and commits what is due, as each look of the main loop does; for
    /// `weft bench map`.
    pub async fn decide(&self) {
        self.begin_look().await;
        self.commit_what_is_due();
    }

    /// Takes over a map, and has it made durable.
    ///
    /// # Errors
    /// If it is too large to be sent, the store is too far behind, or the manager has stopped.
    ///
    /// # Panics
    /// If the map breaks a rule: a bug, and a map like that must never reach the store.
    fn commit_map(
        &self,
        next: FabricMap,
        what: &str,
        why: String,
        about: Subjects,
        grows: bool,
    ) -> Result<(), CommitError> {
        if let Err(reason) = self.check_term() {
            return Err(CommitError::Halted(reason));
        }
        let ahead = self.state.borrow().durable.ahead();
        if ahead >= COMMITS_AHEAD_MAX {
            return Err(CommitError::StoreBehind { ahead });
        }
        let old = self.map();
        let broken: Vec<_> = check_changed(&old, &next).into_iter().chain(check_step(&old, &next)).collect();
        #[cfg(debug_assertions)]
        assert_eq!(check(&next), [], "what differs was looked at, and is sound");
        assert!(broken.is_empty(), "{what} would break the map: {broken:?}");
        let delta = next.delta_from(&old);
        let encoded = encode_delta(&delta);
        if encoded.len() > DELTA_BYTES_MAX {
            return Err(CommitError::ChangeTooLarge { bytes: encoded.len(), limit: DELTA_BYTES_MAX });
        }
        let (limit, json_limit) = match grows {
            true => (self.options.map_bytes_max, MAP_JSON_BYTES_GROWN_MAX),
            false => (PIECES_BYTES_MAX, FRAME_BODY_MAX),
        };
        let json_limit = Some(json_limit).filter(|_| self.state.borrow().is_sent_whole());
        let follow = |state: &State| state.whole.follow(&next, &delta, encoded.len(), limit, json_limit);
        if let Err(bytes) = follow(&self.state.borrow()) {
            return Err(CommitError::TooLarge {
                bytes,
                limit: json_limit.map_or(limit, |json| json.min(limit)),
            });
        }
        {
            let mut state = self.state.borrow_mut();
            let event = state.events.next(self.actor().as_deref(), next.version, what, &why, about);
            state.follow(&old, next, &delta);
            let map = state.map.clone();
            state.durable.add(Decided { delta, encoded, map });
            state.events.add(event);
        }
        self.decided.notify_all();
        self.changed.notify_all();
        Ok(())
    }

    /// Adds an event about something that changed no map, and wakes those who wait for a change.
    pub(crate) fn tell(&self, what: &str, why: String, about: Subjects) {
        {
            let mut state = self.state.borrow_mut();
            let version = state.map.version;
            let event = state.events.next(self.actor().as_deref(), version, what, &why, about);
            state.events.add(event);
        }
        self.decided.notify_all();
        self.changed.notify_all();
    }

    /// Stops for good because a drive knows more than the map: the store is an old copy, and whatever it
    /// would hand out could bring back replicas that were evicted since. Whoever knows more keeps its roles:
    /// nothing is decided any more.
    pub(crate) fn halt_as_stale(&self, reason: String) -> String {
        self.is_stale.set(true);
        self.tell("store-is-old", reason.clone(), Subjects::default());
        self.halt(reason)
    }

    /// Stops for good if another manager may lead by now: that one waits only for grants of before its term.
    ///
    /// # Errors
    /// Why this manager has stopped, now or before.
    pub(crate) fn check_term(&self) -> Result<(), String> {
        if let Some(reason) = self.halted.borrow().clone() {
            return Err(reason);
        }
        if self.store.leads() {
            return Ok(());
        }
        mark(Path::ManagerFenced);
        Err(self
            .halt("the store has not confirmed its term in time: another manager may have taken over".into()))
    }

    /// Why this manager leads no more; none as long as it does.
    pub(crate) fn why_over(&self) -> Option<String> {
        self.check_term().err()
    }

    /// Stops serving, for good. Returns why it has stopped: what was said first.
    pub(crate) fn halt(&self, reason: String) -> String {
        let reason = self.halted.borrow_mut().get_or_insert(reason).clone();
        tracing::error!(reason, "the manager stops");
        self.decided.notify_all();
        self.changed.notify_all();
        reason
    }

    /// The durable map's version and bytes, if it is newer than this.
    pub(crate) fn newer_map(&self, have: MapVersion) -> Option<(MapVersion, Buf)> {
        let state = self.state.borrow();
        let version = state.durable.map.version;
        (version > have).then(|| (version, state.bytes()))
    }
}

impl State {
    /// Takes over a map that was decided. Costs what differs from the one before it.
    fn follow(&mut self, old: &FabricMap, next: FabricMap, delta: &Delta) {
        for change in next.targets.changes(&old.targets) {
            match change {
                TableChange::Put(target, _) => {
                    let unknown = || Member::unknown(now(), wall_clock_ms());
                    if !self.members.contains_key(target) {
                        self.members.insert(*target, unknown());
                        self.unheard.insert(*target);
                    }
                }
                TableChange::Removed(target) => {
                    self.members.remove(target);
                    self.suspected.remove(target);
                    self.unheard.remove(target);
                    self.forget_holders(*target);
                }
            }
        }
        if next.nodes.changes(&old.nodes).next().is_some() {
            self.processes.retain(|node| next.nodes.contains_key(node));
        }
        for change in next.sessions.changes(&old.sessions) {
            if let TableChange::Removed(session) = change {
                self.forget_session(session);
            }
        }
        self.changed_in.note(old, &next);
        self.index.note(old, &next);
        self.note_touched(delta, old, &next);
        self.map = Rc::new(next);
        let map = self.map.clone();
        for change in map.drives.changes(&old.drives) {
            self.note_presence(*change.key());
        }
        self.note_evictions(old);
    }

    /// Forgets what was heard of a session and from its client.
    fn forget_session(&mut self, session: &SessionId) {
        self.touched.remove(session);
        self.reports.remove(session);
        self.served.remove(session);
        self.silent.remove(session);
    }
}

/// The change's name as programs see it in events: `evict`, `open-session`, ...
fn name_of(change: &Change) -> String {
    match serde_json::to_value(change) {
        Ok(serde_json::Value::Object(object)) => object.keys().next().cloned().unwrap_or_default(),
        _ => String::new(),
    }
}
