//! Why sessions are over: what a client hears that asks after its own.
//!
//! It owns the words, and remembers them for the sessions that ended last. A manager that has
//! started since does not know them any more; the events of the time do.

use crate::manager::State;
use std::collections::BTreeMap;
use weft_membership::{Kind, Reason};
use weft_types::limits::ENDED_SESSIONS_MAX;
use weft_types::{FabricMap, SessionId};

/// Why the sessions that ended last are over, one clause each.
#[derive(Default)]
pub(crate) struct EndedSessions(BTreeMap<SessionId, String>);

impl EndedSessions {
    /// Takes note of what a change ended.
    pub(crate) fn note(&mut self, ended: Vec<(SessionId, String)>) {
        self.0.extend(ended);
        // Numbers only rise, so the first ones are the oldest.
        while self.0.len() > ENDED_SESSIONS_MAX {
            self.0.pop_first();
        }
    }
}

/// The sessions that a change ends, and why: on whose request, or because their clients were silent.
pub(crate) fn ended_by(
    reason: &Reason,
    actor: Option<&str>,
    old: &FabricMap,
    new: &FabricMap,
) -> Vec<(SessionId, String)> {
    let who = actor.unwrap_or("the manager");
    let all = |ended: &[SessionId], why: String| ended.iter().map(|id| (*id, why.clone())).collect();
    match reason {
        Reason::SessionOver { session, .. } => vec![(*session, why_closed(actor, *session, old))],
        Reason::SessionOpened { session, ended, .. } => {
            let client = new.sessions.get(session).map_or(who, |s| s.client.as_str());
            all(ended, format!("client {client} took the volume over, as session {session}"))
        }
        Reason::VolumeDeleting { volume, ended, .. } => {
            let listed = old.volumes.get(volume);
            let name = listed.map_or("", |v| v.name.as_str());
            let kind = listed.map_or(Kind::Volume, Kind::of);
            all(ended, format!("{kind} '{name}' was deleted by {who}"))
        }
        Reason::LossAccepted { ended, .. } => {
            all(ended, format!("{who} accepted that data of the volume is lost (`weft volume repair`)"))
        }
        _ => Vec::new(),
    }
}

fn why_closed(actor: Option<&str>, session: SessionId, map: &FabricMap) -> String {
    match actor {
        None => {
            let volume = map.sessions.get(&session).and_then(|session| map.volumes.get(&session.volume));
            let term = volume.map_or(map.durations.session(), |volume| map.durations.session_of(volume));
            format!("its client was not heard of for {} s", term.as_secs())
        }
        Some(client) if client.starts_with("client ") => format!("{client} detached the volume"),
        Some(who) => format!("{who} ended it (`weft session end`)"),
    }
}

impl State {
    /// Why a session that is not open any more is over, as far as this manager knows.
    pub(crate) fn why_ended(&self, session: SessionId) -> String {
        if let Some(why) = self.ended.0.get(&session) {
            return why.clone();
        }
        let is_from_before = |(_, below): &(u64, u64)| session.0 < *below;
        if self.map.unknown_ids.iter().any(is_from_before) {
            return "the fabric's map was recovered from its drives or from a backup since it began, which \
                    ends every session: attach again"
                .to_owned();
        }
        "this manager does not know why, it has started since: `weft events` may tell".to_owned()
    }
}
