//! Sessions: a client attaches a volume, is over, is swept.
//!
//! ```text
//!   open ----- close, preempted, volume deleted -----> over ----- swept everywhere -----> (forgotten)
//! ```
//!
//! It owns who may attach beside whom, the generation, and the session slots. It never knows whether targets have
//! heard of it: the manager waits for that before it tells the client.

use crate::change::take_id;
use crate::refusal::Kind;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weft_types::limits::{CLIENT_NAME_BYTES_MAX, LANES_MAX, SESSIONS_MAX};
use weft_types::{
    AttachMode, FabricMap, Generation, Session, SessionId, SessionSlot, SessionState, Volume, VolumeId,
    VolumeState,
};

/// A client attaches a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenSession {
    /// The volume.
    pub volume: VolumeId,
    /// What the session may do.
    pub mode: AttachMode,
    /// Who it is, for people.
    pub client: String,
    /// Whether sessions that stand in the way are ended; otherwise they are a reason to refuse.
    pub preempt: bool,
    /// By what the client knows its attach again; 0: it does not say.
    #[serde(default)]
    pub number: u64,
    /// How many lanes it asks for, from 1 to [`LANES_MAX`]. It gets as many as there are slots for, at least
    /// one.
    #[serde(default = "one_lane")]
    pub lanes: u32,
}

fn one_lane() -> u32 {
    1
}

/// A client session is over: the client said so, or was silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloseSession {
    /// The session.
    pub session: SessionId,
}

/// A session that is over was refused and swept at every target, and is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepSession {
    /// The session.
    pub session: SessionId,
}

/// Exclusive wants no other session, the others want no exclusive one. An exclusive attach and a preemption raise
/// the generation, so that targets refuse the clients before it.
pub(crate) fn open(map: &mut FabricMap, change: &OpenSession) -> Result<Reason, Refusal> {
    let OpenSession { volume: id, mode, client, preempt, number, lanes } = change;
    let unknown = || Refusal::Unknown { kind: Kind::Volume, id: id.to_string() };
    let volume = map.volumes.get(id).ok_or_else(unknown)?;
    if volume.state == VolumeState::Deleting {
        return Err(Refusal::Deleting { kind: Kind::of(volume), volume: volume.name.clone() });
    }
    if *mode == AttachMode::Exclusive && volume.is_file_system() {
        return Err(Refusal::NotExclusive { name: volume.name.clone() });
    }
    if client.len() > CLIENT_NAME_BYTES_MAX {
        return Err(Refusal::ClientName { bytes: client.len(), limit: CLIENT_NAME_BYTES_MAX });
    }
    if *lanes == 0 || *lanes as usize > LANES_MAX {
        return Err(Refusal::Lanes { wanted: *lanes, limit: LANES_MAX });
    }
    let in_the_way = |other| *mode == AttachMode::Exclusive || other == AttachMode::Exclusive;
    let conflict = attached(map, volume, in_the_way);
    let mut ended = Vec::new();
    match conflict {
        Err(refusal) if !preempt => return Err(refusal),
        // Either the new session or the one in its way is exclusive: no session can stay beside it.
        Err(_) => ended = end_sessions(map, *id),
        Ok(()) => {}
    }
    // A client whose exclusive session is over may not know it, and changes parts of blocks as if nobody else wrote.
    let current = map.volumes[id].generation;
    let follows_exclusive = exclusive_over(map, *id).any(|s| s.generation == current);
    let session = SessionId(take_id(map));
    let mut slots = free_slots(map, session, *lanes)?.into_iter();
    let slot = slots.next().expect("there is one at least");
    let volume = map.volumes.get_mut(id).expect("it was found above");
    if *mode == AttachMode::Exclusive || !ended.is_empty() || follows_exclusive {
        volume.generation = Generation(volume.generation.0 + 1);
    }
    let generation = volume.generation;
    let entry = Session {
        number: *number,
        lane_slots: slots.collect(),
        id: session,
        slot,
        volume: *id,
        mode: *mode,
        generation,
        client: client.clone(),
        state: SessionState::Open,
    };
    map.sessions.insert(session, entry);
    Ok(Reason::SessionOpened { session, volume: *id, generation, ended })
}

/// Exclusive sessions of a volume that are over, and not swept yet.
pub fn exclusive_over(map: &FabricMap, volume: VolumeId) -> impl Iterator<Item = &Session> {
    let is_over = move |s: &&Session| s.volume == volume && s.state == SessionState::Over;
    map.sessions.values().filter(is_over).filter(|s| s.mode == AttachMode::Exclusive)
}

pub(crate) fn close(map: &mut FabricMap, change: &CloseSession) -> Result<Reason, Refusal> {
    let session = find(map, change.session)?;
    if session.state == SessionState::Over {
        return Err(Refusal::AlreadyOver { session: change.session });
    }
    session.state = SessionState::Over;
    Ok(Reason::SessionOver { session: change.session, volume: session.volume })
}

pub(crate) fn sweep(map: &mut FabricMap, change: &SweepSession) -> Result<Reason, Refusal> {
    let session = find(map, change.session)?;
    if session.state == SessionState::Open {
        return Err(Refusal::StillOpen { session: change.session });
    }
    let volume = session.volume;
    map.sessions.remove(&change.session);
    Ok(Reason::SessionSwept { session: change.session, volume })
}

/// Refuses where sessions of such a mode are open on the volume.
pub(crate) fn attached(
    map: &FabricMap,
    volume: &Volume,
    counts: impl Fn(AttachMode) -> bool,
) -> Result<(), Refusal> {
    let open = |s: &&Session| s.volume == volume.id && s.state == SessionState::Open;
    let mut sessions = map.sessions.values().filter(open).filter(|s| counts(s.mode));
    let Some(first) = sessions.next() else { return Ok(()) };
    Err(Refusal::Attached {
        kind: Kind::of(volume),
        volume: volume.name.clone(),
        first: first.id,
        client: first.client.clone(),
        mode: first.mode,
        sessions: 1 + sessions.count(),
    })
}

/// Ends every open session of the volume, and says which.
pub(crate) fn end_sessions(map: &mut FabricMap, volume: VolumeId) -> Vec<SessionId> {
    let mut ended = Vec::new();
    map.sessions.update_where(
        |s| s.volume == volume && s.state == SessionState::Open,
        |session| {
            session.state = SessionState::Over;
            ended.push(session.id);
        },
    );
    ended
}

/// Slots for so many lanes of a session, or as many as are free, at least one. The first is the one that
/// belongs to the session's number, or the next free one; those of the other lanes begin at places of their
/// own. Session numbers only rise, so a slot comes up again only after many others had their turn, and
/// nothing about past sessions needs to be remembered.
fn free_slots(map: &FabricMap, session: SessionId, lanes: u32) -> Result<Vec<SessionSlot>, Refusal> {
    let mut used: BTreeSet<SessionSlot> = map.sessions.values().flat_map(Session::slots).collect();
    let slots = SESSIONS_MAX as u64;
    let mut found = Vec::new();
    for lane in 0..u64::from(lanes) {
        let first = session.0 % slots + lane * slots / LANES_MAX as u64;
        let mut turns = (0..slots).map(|offset| SessionSlot(((first + offset) % slots) as u16 + 1));
        let Some(slot) = turns.find(|slot| !used.contains(slot)) else { break };
        used.insert(slot);
        found.push(slot);
    }
    if found.is_empty() { Err(Refusal::TooManySessions) } else { Ok(found) }
}

fn find(map: &mut FabricMap, id: SessionId) -> Result<&mut Session, Refusal> {
    map.sessions.get_mut(&id).ok_or_else(|| Refusal::Unknown { kind: Kind::Session, id: id.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::FabricId;

    fn free_slot(map: &FabricMap, session: SessionId) -> Result<SessionSlot, Refusal> {
        free_slots(map, session, 1).map(|slots| slots[0])
    }

    fn map_with_slots(slots: impl Iterator<Item = u16>) -> FabricMap {
        let mut map = FabricMap::empty(FabricId(1));
        for (id, slot) in (1..).zip(slots) {
            let session = Session {
                number: 0,
                lane_slots: vec![],
                id: SessionId(id),
                slot: SessionSlot(slot),
                volume: VolumeId(1),
                mode: AttachMode::Shared,
                generation: Generation(1),
                client: String::new(),
                state: SessionState::Over,
            };
            map.sessions.insert(session.id, session);
        }
        map
    }

    #[test]
    fn slots_follow_the_numbers_and_are_reused_late() {
        let map = map_with_slots(std::iter::empty());
        assert_eq!(free_slot(&map, SessionId(1)), Ok(SessionSlot(2)));
        assert_eq!(free_slot(&map, SessionId(65_534)), Ok(SessionSlot(65_535)));
        assert_eq!(free_slot(&map, SessionId(65_535)), Ok(SessionSlot(1)), "0 is nobody's");
    }

    #[test]
    fn a_taken_slot_is_passed_over_until_there_is_none() {
        assert_eq!(free_slot(&map_with_slots(2..=4), SessionId(1)), Ok(SessionSlot(5)));
        assert_eq!(free_slot(&map_with_slots(1..=65_534), SessionId(1)), Ok(SessionSlot(65_535)));
        assert_eq!(free_slot(&map_with_slots(1..=65_535), SessionId(1)), Err(Refusal::TooManySessions));
    }

    #[test]
    fn lanes_get_slots_that_lie_apart_and_as_many_as_are_free() {
        let slots = |taken: std::ops::RangeInclusive<u16>, lanes| {
            let found = free_slots(&map_with_slots(taken), SessionId(1), lanes).unwrap();
            found.into_iter().map(|slot| slot.0).collect::<Vec<_>>()
        };
        assert_eq!(slots(5..=5, 3), [2, 8_193, 16_385]);
        assert_eq!(slots(2..=8_193, 2), [8_194, 8_195]);
        assert_eq!(slots(1..=65_533, 8), [65_534, 65_535]);
        assert_eq!(slots(1..=65_534, 8), [65_535]);
        let mut map = map_with_slots(1..=1);
        map.sessions.get_mut(&SessionId(1)).unwrap().lane_slots = vec![SessionSlot(2), SessionSlot(8_193)];
        let found = free_slots(&map, SessionId(1), 2).unwrap();
        assert_eq!(found, [SessionSlot(3), SessionSlot(8_194)], "a lane's slot is taken like any other");
    }
}
