//! What a drive knows beside its blocks: groups and how far they are verified, sessions that are over,
//! generations of volumes. Pure state; the store logs every change before anyone may rely on it.

use crate::StoreError;
use crate::error::Fault;
use crate::open_set::OpenSets;
use crate::record::{Record, decode_cursor, decode_group, encode_cursor, encode_group};
use crate::request::{Cursor, Marks, VerifyState};
use crate::v1;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weft_rules::{Mutation, mutated};
use weft_types::{
    ChunkIndex, DriveId, Epoch, Generation, Group, GroupId, ObjectId, Role, SessionId, Version, VolumeId,
};
use weft_wire::{Decoder, Encoder};

/// The format of the state blob, in its first bytes.
const STATE_FORMAT: u16 = 2;

/// The section that says up to where tombstones have left the block map, and bytes of a group in it. A
/// program that does not know it goes through the map once more.
const SECTION_FORGOTTEN: u16 = 1;
const FORGOTTEN_BYTES: u32 = 16;

/// What a drive knows of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupState {
    /// The newest entry that was adopted.
    pub(crate) entry: Rc<Group>,
    /// The newest syncing stint that was adopted.
    pub(crate) stint: Option<Epoch>,
    /// How far this drive is verified in that stint.
    pub(crate) cursor: Cursor,
    /// Chunks verified out of order, none below the cursor.
    pub(crate) ahead: BTreeSet<(ObjectId, ChunkIndex)>,
    /// Open sets and watermarks.
    pub(crate) marks: OpenSets,
    /// No session has a write below this version open any more (R7); zero while that is not known.
    pub(crate) floor: Version,
    /// Every tombstone below this version has left the block map: at most the floor.
    pub(crate) forgotten: Version,
}

/// Everything that a drive knows beside its blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DriveState {
    pub(crate) groups: BTreeMap<GroupId, GroupState>,
    /// Every session below is over.
    pub(crate) session_floor: SessionId,
    /// Sessions at or above the floor that are over.
    pub(crate) closed: BTreeSet<SessionId>,
    /// The lowest generation that is still served.
    pub(crate) generations: BTreeMap<VolumeId, Generation>,
}

impl GroupState {
    /// A group that is not known yet: nothing verified is not "never syncing", so its end is decided by the
    /// first entry's role.
    pub(crate) fn new(entry: Rc<Group>) -> Self {
        GroupState {
            entry,
            stint: None,
            cursor: Cursor::End,
            ahead: BTreeSet::new(),
            marks: OpenSets::default(),
            floor: Version::ZERO,
            forgotten: Version::ZERO,
        }
    }

    /// Whether the drive has compared this chunk with an in-sync replica in its stint (R12), or never had to.
    pub(crate) fn is_verified(&self, object: ObjectId, chunk: ChunkIndex) -> bool {
        Cursor::At(object, chunk) < self.cursor || self.ahead.contains(&(object, chunk))
    }

    /// Marks a chunk as verified.
    pub(crate) fn mark_verified(&mut self, object: ObjectId, chunk: ChunkIndex) {
        if Cursor::At(object, chunk) >= self.cursor {
            self.ahead.insert((object, chunk));
        }
    }

    /// Moves the cursor up; it never moves back.
    pub(crate) fn raise_cursor(&mut self, cursor: Cursor) {
        if cursor > self.cursor {
            self.cursor = cursor;
            self.ahead = match cursor {
                Cursor::At(object, chunk) => self.ahead.split_off(&(object, chunk)),
                Cursor::End => BTreeSet::new(),
            };
        }
    }

    /// Applies a record about marks or verification; one of another stint changes nothing.
    pub(crate) fn apply(&mut self, record: Record) {
        match record {
            Record::Remember { object, range, version, .. } => self.marks.remember(object, range, version),
            Record::Settle { object, range, version, .. } => self.marks.settle(object, range, version),
            Record::Advance { slot, watermark, .. } => {
                self.marks.advance(slot, watermark);
            }
            Record::ForgetSession { slot, .. } => self.marks.forget(slot),
            Record::Verified { object, chunk, stint, .. } if self.is_stint(stint) => {
                self.mark_verified(object, chunk);
            }
            Record::Cursor { stint, cursor, .. } if self.stint == Some(stint) => self.raise_cursor(cursor),
            Record::Marks { marks, .. } => self.merge_marks(&marks),
            Record::Floor { version, .. } => self.set_floor(version),
            _ => {}
        }
    }

    /// Raises the floor, here and in the entry that the drive shows: a recovery takes it from there.
    fn set_floor(&mut self, version: Version) {
        self.floor = version.max(self.floor);
        Rc::make_mut(&mut self.entry).floor = self.floor;
    }

    /// Takes over a source's marks (R14): its entries and settled marks, then its watermarks.
    fn merge_marks(&mut self, marks: &Marks) {
        for entry in &marks.open {
            self.marks.remember(entry.object, entry.range, entry.version);
            if entry.settled {
                self.marks.settle(entry.object, entry.range, entry.version);
            }
        }
        for (slot, watermark) in &marks.watermarks {
            self.marks.advance(*slot, *watermark);
        }
    }

    /// Everything is unverified again, and marks count for nothing (R12). The floor stays: it never falls
    /// (R7).
    fn begin_stint(&mut self, stint: Epoch) {
        self.stint = Some(stint);
        if !mutated(Mutation::StintKeepsVerified) {
            self.cursor = Cursor::At(ObjectId::default(), ChunkIndex(0));
            self.ahead.clear();
        }
        if !mutated(Mutation::StintKeepsMarks) {
            self.marks = OpenSets::default();
        }
    }

    /// How far it is verified.
    pub(crate) fn verify_state(&self) -> VerifyState {
        VerifyState { stint: self.stint, cursor: self.cursor, ahead: self.ahead.len() }
    }

    /// Whether the drive is in this stint.
    fn is_stint(&self, stint: Epoch) -> bool {
        self.stint == Some(stint) || mutated(Mutation::StaleStintCopied)
    }

    /// Checks that a copy belongs to the stint that the drive is in (R13).
    pub(crate) fn check_stint(&self, stint: Epoch) -> Result<(), StoreError> {
        if self.is_stint(stint) {
            return Ok(());
        }
        Err(StoreError::StaleStint { group: self.entry.id, found: stint, current: self.stint })
    }

    /// Checks that what a source said is not of before a change of the group (R12).
    pub(crate) fn check_epoch(&self, epoch: Epoch) -> Result<(), StoreError> {
        if epoch >= self.entry.epoch || mutated(Mutation::EvictedSourceCopied) {
            return Ok(());
        }
        Err(StoreError::StaleEpoch { group: self.entry.id, found: epoch, current: self.entry.epoch })
    }
}

impl DriveState {
    /// Whether adopting the entry begins a new syncing stint for the drive: told by the epoch at which the
    /// map says that the role began, because a drive that was cut off may never have seen the map in which it
    /// was out.
    pub(crate) fn begins_stint(&self, entry: &Group, drive: DriveId) -> bool {
        let Some(slot) = entry.slot_of(drive).filter(|s| s.role == Role::Syncing) else { return false };
        self.groups.get(&entry.id).and_then(|g| g.stint) != Some(slot.since)
    }

    /// Adopts a group's entry. A drive that the map lists as in-sync is verified by that very word: the
    /// manager promotes it after all was verified, or an operator has made its history the true one.
    pub(crate) fn adopt(&mut self, entry: Group, drive: DriveId, is_new_stint: bool) {
        let slot = entry.slot_of(drive).copied();
        let entry = Rc::new(entry);
        let state = self.groups.entry(entry.id).or_insert_with(|| GroupState::new(entry.clone()));
        // Only the map brings a floor: an entry may have come by way of an older peer (R7).
        let floor = state.floor;
        state.entry = entry;
        state.set_floor(floor);
        if let Some(slot) = slot {
            if is_new_stint {
                state.begin_stint(slot.since);
            } else if slot.role == Role::InSync {
                state.raise_cursor(Cursor::End);
            }
        }
    }

    /// The state of a group.
    ///
    /// # Errors
    /// If it was never set here.
    pub(crate) fn group(&self, group: GroupId) -> Result<&GroupState, StoreError> {
        self.groups.get(&group).ok_or(StoreError::UnknownGroup { group })
    }

    /// Likewise, to change it.
    pub(crate) fn group_mut(&mut self, group: GroupId) -> Result<&mut GroupState, StoreError> {
        self.groups.get_mut(&group).ok_or(StoreError::UnknownGroup { group })
    }

    /// Whether a session is over.
    pub(crate) fn session_is_over(&self, session: SessionId) -> bool {
        session < self.session_floor || self.closed.contains(&session)
    }

    /// These sessions, and all below the floor, are over.
    pub(crate) fn close_sessions(&mut self, floor: SessionId, sessions: &[SessionId]) {
        self.session_floor = self.session_floor.max(floor);
        self.closed.extend(sessions);
        self.closed = self.closed.split_off(&self.session_floor);
    }

    /// Raises a volume's generation.
    pub(crate) fn set_generation(&mut self, volume: VolumeId, generation: Generation) {
        let held = self.generations.entry(volume).or_default();
        *held = generation.max(*held);
    }

    /// The state as bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(4096);
        e.u16(STATE_FORMAT).u64(self.session_floor.0).u32(self.closed.len() as u32);
        for session in &self.closed {
            e.u64(session.0);
        }
        e.u32(self.generations.len() as u32);
        for (volume, generation) in &self.generations {
            e.u64(volume.0).u64(generation.0);
        }
        e.u32(self.groups.len() as u32);
        for state in self.groups.values() {
            encode_group(&mut e, &state.entry);
            e.u64(state.floor.to_bits());
            e.u8(u8::from(state.stint.is_some())).u64(state.stint.unwrap_or_default().0);
            encode_cursor(&mut e, state.cursor);
            e.u32(state.ahead.len() as u32);
            for (object, chunk) in &state.ahead {
                e.bytes(&object.to_bytes()).u16(chunk.0);
            }
            state.marks.encode(&mut e);
        }
        let forgotten: Vec<_> = self.groups.iter().filter(|(_, g)| g.forgotten != Version::ZERO).collect();
        e.u16(u16::from(!forgotten.is_empty()));
        if !forgotten.is_empty() {
            e.u16(SECTION_FORGOTTEN).u8(0).u32(forgotten.len() as u32 * FORGOTTEN_BYTES);
            for (group, state) in forgotten {
                e.u64(group.0).u64(state.forgotten.to_bits());
            }
        }
        e.0
    }

    /// Reads the state.
    ///
    /// # Errors
    /// If the bytes are not a state of this format or the one before; `Unknown` if a newer program has
    /// put something into it that has to be known.
    pub(crate) fn decode(bytes: &[u8]) -> Result<DriveState, Fault> {
        let mut d = Decoder::new(bytes);
        let state = match d.u16()? {
            v1::FORMAT => v1::decode_state(&mut d)?,
            STATE_FORMAT => Self::decode_body(&mut d)?,
            0 => return Err(Fault::Damaged("it has format 0".to_owned())),
            newer => return Err(Fault::Unknown(format!("format {newer}"))),
        };
        d.finish()?;
        Ok(state)
    }

    /// Reads a section: its kind, whether it has to be known, its length, its bytes. One that a newer
    /// program has written is passed over.
    fn decode_section(&mut self, d: &mut Decoder<'_>) -> Result<(), Fault> {
        let (kind, must_know, len) = (d.u16()?, d.u8()? != 0, d.u32()?);
        let bytes = d.bytes(len as usize)?;
        match kind {
            SECTION_FORGOTTEN => {
                let mut d = Decoder::new(bytes);
                for _ in 0..len / FORGOTTEN_BYTES {
                    let (group, version) = (GroupId(d.u64()?), Version::from_bits(d.u64()?));
                    if let Some(held) = self.groups.get_mut(&group) {
                        held.forgotten = version.min(held.floor);
                    }
                }
                Ok(d.finish()?)
            }
            _ if must_know => Err(Fault::Unknown(format!("a section of kind {kind}"))),
            _ => Ok(()),
        }
    }

    /// Reads what stands behind the number of the format.
    fn decode_body(d: &mut Decoder<'_>) -> Result<DriveState, Fault> {
        let mut state = DriveState { session_floor: SessionId(d.u64()?), ..Default::default() };
        for _ in 0..d.u32()? {
            state.closed.insert(SessionId(d.u64()?));
        }
        for _ in 0..d.u32()? {
            state.generations.insert(VolumeId(d.u64()?), Generation(d.u64()?));
        }
        for _ in 0..d.u32()? {
            let mut group = GroupState::new(Rc::new(decode_group(d)?));
            group.set_floor(Version::from_bits(d.u64()?));
            let (has_stint, stint) = (d.u8()? != 0, Epoch(d.u64()?));
            group.stint = has_stint.then_some(stint);
            group.cursor = decode_cursor(d)?;
            for _ in 0..d.u32()? {
                group.ahead.insert((ObjectId::from_bytes(d.array()?), ChunkIndex(d.u16()?)));
            }
            group.marks = OpenSets::decode(d)?;
            state.groups.insert(group.entry.id, group);
        }
        for _ in 0..d.u16()? {
            state.decode_section(d)?;
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{BlockRange, PoolId, SessionSlot, Slot, Version};

    const DRIVE: DriveId = DriveId(5);

    fn entry(epoch: u64, role: Role, since: u64) -> Group {
        let slots = vec![Slot { drive: DRIVE, role, since: Epoch(since) }];
        Group { id: GroupId(1), pool: PoolId(1), epoch: Epoch(epoch), slots, floor: Default::default() }
    }

    fn adopt(state: &mut DriveState, entry: Group) -> &mut GroupState {
        let is_new = state.begins_stint(&entry, DRIVE);
        state.adopt(entry, DRIVE, is_new);
        state.groups.get_mut(&GroupId(1)).unwrap()
    }

    #[test]
    fn a_new_stint_unverifies_everything_even_if_the_drive_never_saw_itself_out() {
        let mut state = DriveState::default();
        let object = ObjectId::of_volume(VolumeId(1), 0);
        let version = Version::new(4, SessionSlot(2));
        let group = adopt(&mut state, entry(1, Role::InSync, 1));
        assert!(group.is_verified(object, ChunkIndex(0)), "an in-sync drive has nothing to verify");
        group.marks.remember(object, BlockRange::one(0), version);
        let group = adopt(&mut state, entry(3, Role::Syncing, 3));
        assert!(!group.is_verified(object, ChunkIndex(0)));
        assert_eq!(group.marks.len(), 0);
        group.mark_verified(object, ChunkIndex(9));
        group.marks.remember(object, BlockRange::one(0), version);
        let group = adopt(&mut state, entry(4, Role::Syncing, 3));
        assert!(group.is_verified(object, ChunkIndex(9)), "the same stint goes on");
        assert_eq!(group.marks.len(), 1);
        assert!(group.check_stint(Epoch(3)).is_ok() && group.check_stint(Epoch(4)).is_err());
        group.raise_cursor(Cursor::At(object, ChunkIndex(10)));
        assert!(group.ahead.is_empty() && group.is_verified(object, ChunkIndex(3)));
        assert!(!group.is_verified(object, ChunkIndex(10)));
        let group = adopt(&mut state, entry(5, Role::InSync, 5));
        assert!(group.is_verified(object, ChunkIndex(99)));
    }

    #[test]
    fn the_state_reads_back() {
        let mut state = DriveState::default();
        let group = adopt(&mut state, entry(3, Role::Syncing, 3));
        group.mark_verified(ObjectId::of_volume(VolumeId(1), 1), ChunkIndex(9));
        group.marks.remember(ObjectId::default(), BlockRange::new(3, 4), Version::new(4, SessionSlot(2)));
        state.close_sessions(SessionId(5), &[SessionId(3), SessionId(8)]);
        state.set_generation(VolumeId(2), Generation(4));
        state.set_generation(VolumeId(2), Generation(3));
        assert_eq!(state.generations[&VolumeId(2)], Generation(4));
        assert!(state.session_is_over(SessionId(4)) && state.session_is_over(SessionId(8)));
        assert!(!state.session_is_over(SessionId(5)) && state.closed.len() == 1);
        let bytes = state.encode();
        assert_eq!(DriveState::decode(&bytes).unwrap(), state);
        assert!(DriveState::decode(&bytes[..bytes.len() - 1]).is_err());
        let version = Version::new(9, SessionSlot(3));
        state.groups.get_mut(&GroupId(1)).unwrap().apply(Record::Floor { group: GroupId(1), version });
        let found = DriveState::decode(&state.encode()).unwrap();
        assert_eq!((found.groups[&GroupId(1)].floor, &found), (version, &state));
        state.groups.get_mut(&GroupId(1)).unwrap().forgotten = Version::new(7, SessionSlot(0));
        let bytes = state.encode();
        assert_eq!(DriveState::decode(&bytes).unwrap(), state);
        assert!(DriveState::decode(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn a_section_of_a_newer_program_is_passed_over_unless_it_has_to_be_known() {
        let mut state = DriveState::default();
        adopt(&mut state, entry(3, Role::Syncing, 3));
        let with = |must_know: u8| {
            let mut bytes = state.encode();
            bytes.truncate(bytes.len() - 2);
            let mut e = Encoder(bytes);
            e.u16(2).u16(7).u8(0).u32(3).bytes(b"one").u16(8).u8(must_know).u32(0);
            DriveState::decode(&e.0)
        };
        assert_eq!(with(0), Ok(state.clone()));
        assert_eq!(with(1), Err(Fault::Unknown("a section of kind 8".to_owned())));
        let mut newer = state.encode();
        newer[0] = 3;
        assert_eq!(DriveState::decode(&newer), Err(Fault::Unknown("format 3".to_owned())));
    }
}
