//! The open sets of one group: versions taken, or seen, above their session's watermark (R3, R9, R10).
//! Pure state; what changes here is logged by the caller.

use crate::request::{Marks, OpenEntry};
use std::collections::BTreeMap;
use weft_rules::{Mutation, mutated};
use weft_types::{BlockRange, ObjectId, Owner, SessionSlot, Version};
use weft_wire::{DecodeError, Decoder, Encoder};

/// Bytes by which one more entry can make the state longer: the entry, and its session's head.
pub(crate) const ENTRY_BYTES_MAX: u64 = 48;

/// One entry's place in the order: by version, so that a watermark cuts off a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OpenKey {
    version: Version,
    object: ObjectId,
    first: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenRun {
    count: u32,
    settled: bool,
}

/// One session's part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SessionMarks {
    watermark: Version,
    /// Runs of one version and object never overlap.
    open: BTreeMap<OpenKey, OpenRun>,
}

/// The open sets and watermarks of all sessions in one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenSets {
    sessions: BTreeMap<SessionSlot, SessionMarks>,
}

impl OpenSets {
    /// Adds a version, unless its session's watermark has passed it; blocks that have it already stay as
    /// they are.
    pub(crate) fn remember(&mut self, object: ObjectId, range: BlockRange, version: Version) {
        let session = self.sessions.entry(version.slot()).or_default();
        if version <= session.watermark {
            return;
        }
        if !session.reaches(version) {
            let key = OpenKey { version, object, first: range.first };
            session.open.insert(key, OpenRun { count: range.count, settled: false });
            return;
        }
        let mut at = range.first;
        while at < range.end() {
            let covering = session.covering(object, at, version).map(|(first, run)| first + run.count);
            if let Some(end) = covering {
                at = end;
                continue;
            }
            let from = OpenKey { version, object, first: at };
            let stop = session.next_run(from).map_or(range.end(), |first| first.min(range.end()));
            session.open.insert(from, OpenRun { count: stop - at, settled: false });
            at = stop;
        }
    }

    /// Marks a version as known to be on the whole write set; entries that are not open are not added.
    pub(crate) fn settle(&mut self, object: ObjectId, range: BlockRange, version: Version) {
        let Some(session) = self.sessions.get_mut(&version.slot()) else { return };
        let mut at = range.first;
        while at < range.end() {
            let key = OpenKey { version, object, first: at };
            let Some((first, run)) = session.covering(object, at, version) else {
                match session.next_run(key) {
                    Some(next) if next < range.end() => at = next,
                    _ => return,
                }
                continue;
            };
            let end = first + run.count;
            let stop = end.min(range.end());
            if !run.settled {
                session.replace(key, first, end, stop, run);
            }
            at = stop;
        }
    }

    /// Raises a session's watermark and forgets what it passes. Returns whether anything changed.
    pub(crate) fn advance(&mut self, slot: SessionSlot, watermark: Version) -> bool {
        let session = self.sessions.entry(slot).or_default();
        if watermark <= session.watermark {
            return false;
        }
        session.watermark = watermark;
        while let Some(entry) = session.open.first_entry().filter(|e| e.key().version <= watermark) {
            entry.remove();
        }
        true
    }

    /// Whether a version is open in a block: `Some(settled)` if it is.
    pub(crate) fn find(&self, object: ObjectId, block: u32, version: Version) -> Option<bool> {
        let session = self.sessions.get(&version.slot()).filter(|s| version > s.watermark)?;
        session.covering(object, block, version).map(|(_, run)| run.settled)
    }

    /// Whether a version can be open in any block of the object; `false` is certain.
    pub(crate) fn may_hold(&self, object: ObjectId, version: Version) -> bool {
        self.sessions
            .get(&version.slot())
            .filter(|s| version > s.watermark)
            .filter(|session| session.reaches(version))
            .is_some_and(|session| session.next_run(OpenKey { version, object, first: 0 }).is_some())
    }

    /// Cuts a run of blocks of one version into parts that are open and not settled, and parts that are not.
    pub(crate) fn split_open(
        &self,
        object: ObjectId,
        range: BlockRange,
        version: Version,
        mut part: impl FnMut(BlockRange, bool),
    ) {
        if version == Version::ZERO || !self.may_hold(object, version) {
            return part(range, false);
        }
        let mut from = range.first;
        let is_open = |block| self.find(object, block, version) == Some(false);
        let mut state = is_open(from);
        for block in range.first + 1..range.end() {
            let now = is_open(block);
            if now != state {
                part(BlockRange::new(from, block - from), state);
                (from, state) = (block, now);
            }
        }
        part(BlockRange::new(from, range.end() - from), state);
    }

    /// Drops from another replica's marks those that would change nothing here.
    pub(crate) fn drop_held(&self, marks: &mut Marks) {
        let is_held = |entry: &OpenEntry| {
            entry.version <= self.watermark(entry.version.slot())
                || entry.range.blocks().all(|block| match self.find(entry.object, block, entry.version) {
                    Some(settled) => settled || !entry.settled,
                    None => false,
                })
        };
        marks.open.retain(|entry| !is_held(entry));
        marks.watermarks.retain(|(slot, watermark)| *watermark > self.watermark(*slot));
    }

    /// A session's watermark.
    pub(crate) fn watermark(&self, slot: SessionSlot) -> Version {
        self.sessions.get(&slot).map_or(Version::ZERO, |s| s.watermark)
    }

    /// All slots of which something is known.
    pub(crate) fn slots(&self) -> impl Iterator<Item = SessionSlot> + '_ {
        self.sessions.keys().copied()
    }

    /// All watermarks that are not zero, by slot.
    pub(crate) fn watermarks(&self) -> impl Iterator<Item = (SessionSlot, Version)> + '_ {
        self.sessions.iter().map(|(slot, s)| (*slot, s.watermark)).filter(|(_, w)| *w != Version::ZERO)
    }

    /// All entries, by slot and version.
    pub(crate) fn entries(&self) -> impl Iterator<Item = OpenEntry> + '_ {
        self.sessions.values().flat_map(SessionMarks::entries)
    }

    /// A session's entries, by version.
    pub(crate) fn entries_of(&self, slot: SessionSlot) -> impl Iterator<Item = OpenEntry> + '_ {
        self.sessions.get(&slot).into_iter().flat_map(SessionMarks::entries)
    }

    /// Whether settling this range would cut an entry in pieces.
    pub(crate) fn is_cut_by(&self, object: ObjectId, range: BlockRange, version: Version) -> bool {
        let Some(session) = self.sessions.get(&version.slot()) else { return false };
        let at = |block| session.covering(object, block, version);
        at(range.first).is_some_and(|(first, _)| first < range.first)
            || at(range.end() - 1).is_some_and(|(first, run)| first + run.count > range.end())
    }

    /// How many entries a session has.
    pub(crate) fn len_of(&self, slot: SessionSlot) -> usize {
        self.sessions.get(&slot).map_or(0, |session| session.open.len())
    }

    /// How many entries there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.sessions.values().map(|s| s.open.len()).sum()
    }

    /// Forgets a session that is over and swept: its slot may be given to another.
    pub(crate) fn forget(&mut self, slot: SessionSlot) {
        self.sessions.remove(&slot);
    }

    /// Forgets the entries of an owner's objects.
    pub(crate) fn drop_owner(&mut self, owner: Owner) {
        for session in self.sessions.values_mut() {
            session.open.retain(|key, _| !is_part_of(key.object, owner));
        }
    }

    /// Appends watermarks and entries.
    pub(crate) fn encode(&self, e: &mut Encoder) {
        e.u32(self.sessions.len() as u32);
        for (slot, session) in &self.sessions {
            e.u16(slot.0).u64(session.watermark.to_bits()).u32(session.open.len() as u32);
            for entry in session.entries() {
                encode_entry(e, &entry);
            }
        }
    }

    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<OpenSets, DecodeError> {
        let mut sets = OpenSets::default();
        for _ in 0..d.u32()? {
            let slot = SessionSlot(d.u16()?);
            let mut session = SessionMarks { watermark: Version::from_bits(d.u64()?), ..Default::default() };
            let mut before: Option<(OpenKey, u32)> = None;
            for _ in 0..d.u32()? {
                let x = decode_entry(d)?;
                let key = OpenKey { version: x.version, object: x.object, first: x.range.first };
                let is_behind = before.is_none_or(|(last, end)| {
                    let is_same = (last.version, last.object) == (key.version, key.object);
                    last < key && (!is_same || end <= key.first)
                });
                if x.version.slot() != slot || !is_behind {
                    return Err(DecodeError::Invalid { field: "open entry", value: x.version.to_bits() });
                }
                before = Some((key, x.range.end()));
                session.open.insert(key, OpenRun { count: x.range.count, settled: x.settled });
            }
            sets.sessions.insert(slot, session);
        }
        Ok(sets)
    }
}

/// Whether an object goes when its owner is dropped. A volume names its entry of the table of volumes:
/// with a file system go the objects of all of its inodes.
pub(crate) fn is_part_of(object: ObjectId, dropped: Owner) -> bool {
    match dropped {
        Owner::Volume(volume) => object.owner().volume() == volume,
        inode @ Owner::Inode { .. } => object.owner() == inode,
    }
}

/// Appends an entry, 33 bytes.
pub(crate) fn encode_entry(e: &mut Encoder, entry: &OpenEntry) {
    e.u64(entry.version.to_bits()).bytes(&entry.object.to_bytes());
    e.u32(entry.range.first).u32(entry.range.count).u8(u8::from(entry.settled));
}

/// Reads an entry.
pub(crate) fn decode_entry(d: &mut Decoder<'_>) -> Result<OpenEntry, DecodeError> {
    let version = Version::from_bits(d.u64()?);
    let object = ObjectId::from_bytes(d.array()?);
    let range = BlockRange::new(d.u32()?, d.u32()?);
    if !range.is_valid() {
        return Err(DecodeError::Invalid { field: "range", value: u64::from(range.first) });
    }
    Ok(OpenEntry { version, object, range, settled: d.u8()? != 0 })
}

impl SessionMarks {
    /// Whether this version or a later one is open somewhere. Of a client's new write, as a rule, it is not.
    fn reaches(&self, version: Version) -> bool {
        self.open.last_key_value().is_some_and(|(last, _)| last.version >= version)
    }

    /// The run of this version that covers the block: where it begins, and the run.
    fn covering(&self, object: ObjectId, block: u32, version: Version) -> Option<(u32, OpenRun)> {
        let key = OpenKey { version, object, first: block };
        let (key, run) = self.open.range(..=key).next_back()?;
        let is_same = key.version == version && key.object == object;
        (is_same && block - key.first < run.count).then_some((key.first, *run))
    }

    /// Where the next run of the same version and object begins, at or after the key.
    fn next_run(&self, key: OpenKey) -> Option<u32> {
        let (next, _) = self.open.range(key..).next()?;
        (next.version == key.version && next.object == key.object).then_some(next.first)
    }

    /// Marks the blocks from `key.first` up to `stop` of the run `first..end` as settled.
    fn replace(&mut self, key: OpenKey, first: u32, end: u32, stop: u32, run: OpenRun) {
        self.open.remove(&OpenKey { first, ..key });
        let mut put = |from: u32, to: u32, settled: bool| {
            if from < to {
                self.open.insert(OpenKey { first: from, ..key }, OpenRun { count: to - from, settled });
            }
        };
        put(first, key.first, run.settled);
        if !mutated(Mutation::ConfirmForgets) {
            put(key.first, stop, true);
        }
        put(stop, end, run.settled);
    }

    fn entries(&self) -> impl Iterator<Item = OpenEntry> + '_ {
        self.open.iter().map(|(key, run)| OpenEntry {
            version: key.version,
            object: key.object,
            range: BlockRange::new(key.first, run.count),
            settled: run.settled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_types::VolumeId;

    const OBJECT: ObjectId = ObjectId::of_volume(VolumeId(1), 0);

    proptest! {
        #[test]
        fn open_sets_are_what_a_table_of_blocks_is(
            steps in prop::collection::vec((0u8..3, 1u64..6, 1u16..3, 0u32..30, 1u32..12), 1..60)
        ) {
            let mut sets = OpenSets::default();
            let mut model: BTreeMap<(Version, u32), bool> = BTreeMap::new();
            let mut marks: BTreeMap<SessionSlot, Version> = BTreeMap::new();
            for (what, counter, slot, first, count) in steps {
                let version = Version::new(counter, SessionSlot(slot));
                let mark = marks.get(&version.slot()).copied().unwrap_or(Version::ZERO);
                let range = BlockRange::new(first, count);
                match what {
                    0 => {
                        sets.remember(OBJECT, range, version);
                        for block in range.blocks().filter(|_| version > mark) {
                            model.entry((version, block)).or_insert(false);
                        }
                    }
                    1 => {
                        sets.settle(OBJECT, range, version);
                        for block in range.blocks() {
                            if let Some(s) = model.get_mut(&(version, block)) { *s = true }
                        }
                    }
                    _ => {
                        prop_assert_eq!(sets.advance(version.slot(), version), version > mark);
                        marks.insert(version.slot(), mark.max(version));
                        model.retain(|(v, _), _| v.slot() != version.slot() || *v > mark.max(version));
                    }
                }
                for c in 1..6 { for s in 1..3 { for block in 0..42 {
                    let v = Version::new(c, SessionSlot(s));
                    prop_assert_eq!(sets.find(OBJECT, block, v), model.get(&(v, block)).copied());
                }}}
                let mut covered = 0;
                sets.split_open(OBJECT, BlockRange::new(0, 42), version, |range, open| {
                    assert_eq!(range.first, covered);
                    covered = range.end();
                    for b in range.blocks() {
                        assert_eq!(model.get(&(version, b)) == Some(&false), open);
                    }
                });
                prop_assert_eq!(covered, 42);
            }
            let mut e = Encoder::default();
            sets.encode(&mut e);
            let mut d = Decoder::new(&e.0);
            prop_assert_eq!(OpenSets::decode(&mut d).unwrap(), sets);
            prop_assert!(d.finish().is_ok());
        }
    }
}
