//! Records: what the log says happened, one after another, and how they are written as bytes.
//!
//! A record tells a decision that was taken, not a request: replaying it judges nothing again.

use crate::error::Fault;
use crate::layer::Layer;
use crate::leaf::LEAF_BYTES_MAX;
use crate::open_set::{ENTRY_BYTES_MAX, decode_entry, encode_entry};
use crate::region::{Place, PlaceRun};
use crate::request::{Cursor, Marks};
use crate::v1;
use weft_types::limits::OBJECT_CHUNKS_MAX;
use weft_types::{
    BlockRange, ChunkIndex, DriveId, Epoch, Generation, Group, GroupId, ObjectId, Owner, PoolId, Role,
    SessionId, SessionSlot, Slot, Version, VolumeId,
};
use weft_wire::{DecodeError, Decoder, Encoder};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// Data became current, and with `opens` its version was added to the open set.
    Write {
        group: GroupId,
        object: ObjectId,
        range: BlockRange,
        version: Version,
        opens: bool,
        places: Vec<PlaceRun>,
        crcs: Vec<u32>,
    },
    /// Blocks were discarded or zeroed, and the version was added to the open set.
    Zero { group: GroupId, object: ObjectId, range: BlockRange, version: Version },
    /// A version was seen and refused (R9).
    Remember { group: GroupId, object: ObjectId, range: BlockRange, version: Version },
    /// A version is on the whole write set.
    Settle { group: GroupId, object: ObjectId, range: BlockRange, version: Version },
    /// A watermark rose.
    Advance { group: GroupId, slot: SessionSlot, watermark: Version },
    /// Data of this version could not be read back.
    Damaged { group: GroupId, object: ObjectId, range: BlockRange, version: Version },
    /// A chunk was replaced as a whole and is verified in this stint; `leaf` is an encoded leaf.
    Copy { group: GroupId, object: ObjectId, chunk: ChunkIndex, stint: Epoch, leaf: Vec<u8> },
    /// A chunk is verified as it is.
    Verified { group: GroupId, object: ObjectId, chunk: ChunkIndex, stint: Epoch },
    /// Everything below the cursor is verified.
    Cursor { group: GroupId, stint: Epoch, cursor: Cursor },
    /// A group's entry was adopted.
    SetGroup { entry: Group, is_new_stint: bool },
    /// A group was dropped, its chunks before.
    DropGroup { group: GroupId },
    /// A source's marks were merged.
    Marks { group: GroupId, marks: Marks },
    /// A session's marks were forgotten.
    ForgetSession { group: GroupId, slot: SessionSlot },
    /// Sessions are over.
    CloseSessions { floor: SessionId, sessions: Vec<SessionId> },
    /// A volume's generation rose.
    SetGeneration { volume: VolumeId, generation: Generation },
    /// A chunk was removed.
    DropChunk { group: GroupId, object: ObjectId, chunk: ChunkIndex },
    /// The open entries of an owner of objects were forgotten, its chunks dropped before. A volume
    /// stands for its entry of the table of volumes.
    DropOwner { owner: Owner },
    /// No session has a write below this version open in the group any more (R7).
    Floor { group: GroupId, version: Version },
}

/// The numbers by which records are told apart on the drive. Never reused; those of format 1 alone are
/// in `v1`.
mod kind {
    pub(super) const WRITE: u8 = 1;
    pub(super) const HEAL: u8 = 2;
    pub(super) const ZERO: u8 = 3;
    pub(super) const REMEMBER: u8 = 4;
    pub(super) const SETTLE: u8 = 5;
    pub(super) const ADVANCE: u8 = 6;
    pub(super) const DAMAGED: u8 = 7;
    pub(super) const VERIFIED: u8 = 9;
    pub(super) const CURSOR: u8 = 10;
    pub(super) const DROP_GROUP: u8 = 12;
    pub(super) const MARKS: u8 = 13;
    pub(super) const FORGET_SESSION: u8 = 14;
    pub(super) const CLOSE_SESSIONS: u8 = 15;
    pub(super) const SET_GENERATION: u8 = 16;
    pub(super) const DROP_OWNER: u8 = 19;
    pub(super) const FLOOR: u8 = 20;
    pub(super) const COPY: u8 = 21;
    pub(super) const SET_GROUP: u8 = 22;
    pub(super) const DROP_CHUNK: u8 = 23;
}

/// Open entries that one record of marks carries at most; more are cut into several records.
pub(crate) const MARKS_PER_RECORD: usize = 256;

/// Bytes of a run of places in the record of a write: the first place, and how many.
const PLACES_BYTES: usize = 10;

/// Bytes of the smallest record: its kind, and a group or a volume.
pub(crate) const RECORD_BYTES_MIN: usize = 9;

/// Bytes of the largest record: a write of the largest request into as many pieces as it has blocks, or
/// a record of marks (entries of 33 bytes, watermarks of 10), whichever is more.
pub(crate) const RECORD_BYTES_MAX: usize = 16 << 10;
const _: () = assert!(64 + LEAF_BYTES_MAX <= RECORD_BYTES_MAX);
const _: () = assert!(64 + MARKS_PER_RECORD * (33 + 10) <= RECORD_BYTES_MAX);
const _: () = assert!(64 + weft_types::limits::REQUEST_BLOCKS_MAX as usize * (4 + 10) <= RECORD_BYTES_MAX);

/// What names the blocks of a record about a run of one version.
pub(crate) struct Span {
    pub(crate) group: GroupId,
    pub(crate) object: ObjectId,
    pub(crate) range: BlockRange,
    pub(crate) version: Version,
}

/// Appends the record of a write: 53 bytes for one block.
pub(crate) fn encode_write(e: &mut Encoder, span: &Span, opens: bool, places: &[PlaceRun], crcs: &[u32]) {
    encode_span(e, if opens { kind::WRITE } else { kind::HEAL }, span);
    e.u16(places.len() as u16);
    for run in places {
        e.u64(run.place.0).u16(run.count as u16);
    }
    for crc in crcs {
        e.u32(*crc);
    }
}

/// Appends the record of a discard or write of zeroes.
pub(crate) fn encode_zero(e: &mut Encoder, span: &Span) {
    encode_span(e, kind::ZERO, span);
}

fn span_of(group: &GroupId, object: &ObjectId, range: &BlockRange, version: &Version) -> Span {
    Span { group: *group, object: *object, range: *range, version: *version }
}

fn encode_span(e: &mut Encoder, kind: u8, span: &Span) {
    e.u8(kind).u64(span.group.0).bytes(&span.object.to_bytes());
    e.u16(span.range.first as u16).u16(span.range.count as u16).u64(span.version.to_bits());
}

fn decode_span(d: &mut Decoder<'_>) -> Result<Span, DecodeError> {
    let span = Span {
        group: GroupId(d.u64()?),
        object: ObjectId::from_bytes(d.array()?),
        range: BlockRange::new(u32::from(d.u16()?), u32::from(d.u16()?)),
        version: Version::from_bits(d.u64()?),
    };
    if !span.range.is_valid() {
        return Err(DecodeError::Invalid { field: "range", value: u64::from(span.range.first) });
    }
    Ok(span)
}

impl Record {
    /// Bytes by which the state can become longer with this record, at most. Those about blocks are left out: what
    /// they open is counted where it is opened.
    pub(crate) fn state_growth(&self) -> u64 {
        match self {
            Record::Remember { .. } => ENTRY_BYTES_MAX,
            // An entry that is settled in its middle becomes three; more entries are cut at two ends only.
            Record::Settle { .. } => 2 * ENTRY_BYTES_MAX,
            Record::Advance { .. } | Record::SetGeneration { .. } => 16,
            Record::Verified { .. } => 32,
            Record::SetGroup { entry, .. } => 96 + 32 * entry.slots.len() as u64,
            Record::Marks { marks, .. } => {
                2 * ENTRY_BYTES_MAX * marks.open.len() as u64 + 16 * marks.watermarks.len() as u64
            }
            Record::CloseSessions { sessions, .. } => 8 * sessions.len() as u64,
            _ => 0,
        }
    }

    /// Appends the record.
    pub(crate) fn encode(&self, e: &mut Encoder) {
        use Record::*;
        match self {
            Write { group, object, range, version, opens, places, crcs } => {
                encode_write(e, &span_of(group, object, range, version), *opens, places, crcs);
            }
            Zero { group, object, range, version } => encode_zero(e, &span_of(group, object, range, version)),
            Remember { group, object, range, version } => {
                encode_span(e, kind::REMEMBER, &span_of(group, object, range, version));
            }
            Settle { group, object, range, version } => {
                encode_span(e, kind::SETTLE, &span_of(group, object, range, version));
            }
            Damaged { group, object, range, version } => {
                encode_span(e, kind::DAMAGED, &span_of(group, object, range, version));
            }
            Advance { group, slot, watermark } => {
                e.u8(kind::ADVANCE).u64(group.0).u16(slot.0).u64(watermark.to_bits());
            }
            Copy { group, object, chunk, stint, leaf } => {
                encode_live(e, kind::COPY, *group, *object, *chunk);
                e.u64(stint.0).u16(leaf.len() as u16).bytes(leaf);
            }
            Verified { group, object, chunk, stint } => {
                encode_chunk(e, kind::VERIFIED, *group, *object, *chunk);
                e.u64(stint.0);
            }
            Cursor { group, stint, cursor } => {
                e.u8(kind::CURSOR).u64(group.0).u64(stint.0);
                encode_cursor(e, *cursor);
            }
            SetGroup { entry, is_new_stint } => {
                e.u8(kind::SET_GROUP).u8(u8::from(*is_new_stint));
                encode_group(e, entry);
            }
            DropGroup { group } => {
                e.u8(kind::DROP_GROUP).u64(group.0);
            }
            Marks { group, marks } => {
                e.u8(kind::MARKS).u64(group.0);
                encode_marks(e, marks);
            }
            ForgetSession { group, slot } => {
                e.u8(kind::FORGET_SESSION).u64(group.0).u16(slot.0);
            }
            CloseSessions { floor, sessions } => {
                e.u8(kind::CLOSE_SESSIONS).u64(floor.0).u32(sessions.len() as u32);
                for session in sessions {
                    e.u64(session.0);
                }
            }
            SetGeneration { volume, generation } => {
                e.u8(kind::SET_GENERATION).u64(volume.0).u64(generation.0);
            }
            DropChunk { group, object, chunk } => encode_live(e, kind::DROP_CHUNK, *group, *object, *chunk),
            DropOwner { owner } => {
                e.u8(kind::DROP_OWNER).bytes(&ObjectId::new(*owner, 0).to_bytes());
            }
            Floor { group, version } => {
                e.u8(kind::FLOOR).u64(group.0).u64(version.to_bits());
            }
        }
    }

    /// Reads the next record.
    ///
    /// # Errors
    /// If the bytes are not a record of this format or an older one; `Unknown` if they are one of a
    /// newer program.
    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<Record, Fault> {
        let number = d.u8()?;
        if let kind::WRITE..=kind::SETTLE | kind::DAMAGED = number {
            return Ok(Self::decode_spanned(number, d)?);
        }
        Ok(match number {
            kind::ADVANCE => Record::Advance {
                group: GroupId(d.u64()?),
                slot: SessionSlot(d.u16()?),
                watermark: Version::from_bits(d.u64()?),
            },
            kind::VERIFIED => {
                let (group, object, chunk) = decode_chunk(d)?;
                Record::Verified { group, object, chunk, stint: Epoch(d.u64()?) }
            }
            kind::COPY => {
                let (group, object, chunk) = decode_chunk(d)?;
                check_layer(d)?;
                let stint = Epoch(d.u64()?);
                let len = usize::from(d.u16()?);
                Record::Copy { group, object, chunk, stint, leaf: d.bytes(len)?.to_vec() }
            }
            kind::DROP_CHUNK => {
                let (group, object, chunk) = decode_chunk(d)?;
                check_layer(d)?;
                Record::DropChunk { group, object, chunk }
            }
            kind::CURSOR => {
                Record::Cursor { group: GroupId(d.u64()?), stint: Epoch(d.u64()?), cursor: decode_cursor(d)? }
            }
            kind::SET_GROUP => {
                let is_new_stint = d.u8()? != 0;
                Record::SetGroup { entry: decode_group(d)?, is_new_stint }
            }
            kind::DROP_GROUP => Record::DropGroup { group: GroupId(d.u64()?) },
            kind::MARKS => Record::Marks { group: GroupId(d.u64()?), marks: decode_marks(d)? },
            kind::FORGET_SESSION => {
                Record::ForgetSession { group: GroupId(d.u64()?), slot: SessionSlot(d.u16()?) }
            }
            kind::CLOSE_SESSIONS => {
                let floor = SessionId(d.u64()?);
                let count = d.u32()?;
                let sessions =
                    (0..count).map(|_| Ok(SessionId(d.u64()?))).collect::<Result<_, DecodeError>>()?;
                Record::CloseSessions { floor, sessions }
            }
            kind::SET_GENERATION => {
                Record::SetGeneration { volume: VolumeId(d.u64()?), generation: Generation(d.u64()?) }
            }
            kind::DROP_OWNER => Record::DropOwner { owner: decode_owner(d)? },
            kind::FLOOR => Record::Floor { group: GroupId(d.u64()?), version: Version::from_bits(d.u64()?) },
            v1::kind::COPY | v1::kind::SET_GROUP | v1::kind::DROP_CHUNK | v1::kind::DROP_VOLUME => {
                return v1::decode_record(number, d);
            }
            0 => return Err(Fault::Damaged("a record has the number 0".to_owned())),
            n => return Err(Fault::Unknown(format!("a record with the number {n}"))),
        })
    }

    fn decode_spanned(number: u8, d: &mut Decoder<'_>) -> Result<Record, DecodeError> {
        let Span { group, object, range, version } = decode_span(d)?;
        Ok(match number {
            kind::WRITE | kind::HEAL => {
                let count = usize::from(d.u16()?);
                let mut places = Vec::with_capacity(count.min(d.left() / PLACES_BYTES));
                for _ in 0..count {
                    places.push(PlaceRun { place: Place::decode(d)?, count: u32::from(d.u16()?) });
                }
                let covered: u64 = places.iter().map(|r| u64::from(r.count)).sum();
                if covered != u64::from(range.count) || places.iter().any(|r| r.count == 0) {
                    return Err(DecodeError::Invalid { field: "places", value: covered });
                }
                let crcs = (0..range.count).map(|_| d.u32()).collect::<Result<_, _>>()?;
                Record::Write { group, object, range, version, opens: number == kind::WRITE, places, crcs }
            }
            kind::ZERO => Record::Zero { group, object, range, version },
            kind::REMEMBER => Record::Remember { group, object, range, version },
            kind::SETTLE => Record::Settle { group, object, range, version },
            _ => Record::Damaged { group, object, range, version },
        })
    }
}

fn encode_chunk(e: &mut Encoder, kind: u8, group: GroupId, object: ObjectId, chunk: ChunkIndex) {
    e.u8(kind).u64(group.0).bytes(&object.to_bytes()).u16(chunk.0);
}

/// Appends the beginning of a record about the live leaf of a chunk.
fn encode_live(e: &mut Encoder, kind: u8, group: GroupId, object: ObjectId, chunk: ChunkIndex) {
    encode_chunk(e, kind, group, object, chunk);
    e.bytes(&Layer::Live.to_bytes());
}

pub(crate) fn decode_chunk(d: &mut Decoder<'_>) -> Result<(GroupId, ObjectId, ChunkIndex), DecodeError> {
    let (group, object) = (GroupId(d.u64()?), ObjectId::from_bytes(d.array()?));
    let chunk = ChunkIndex(d.u16()?);
    if u32::from(chunk.0) >= OBJECT_CHUNKS_MAX {
        return Err(DecodeError::Invalid { field: "chunk", value: u64::from(chunk.0) });
    }
    Ok((group, object, chunk))
}

/// Reads the layer of a leaf, which is the live one.
fn check_layer(d: &mut Decoder<'_>) -> Result<(), Fault> {
    let bytes = d.array()?;
    match Layer::from_bytes(bytes) {
        Some(Layer::Live) => Ok(()),
        _ => Err(Fault::Unknown(format!("a record about a leaf of layer {bytes:02x?}"))),
    }
}

/// Reads an owner of objects: the identifier of its object 0.
fn decode_owner(d: &mut Decoder<'_>) -> Result<Owner, DecodeError> {
    let first = ObjectId::from_bytes(d.array()?);
    match first.index() {
        0 => Ok(first.owner()),
        value => Err(DecodeError::Invalid { field: "owner", value }),
    }
}

pub(crate) fn encode_cursor(e: &mut Encoder, cursor: Cursor) {
    match cursor {
        Cursor::At(object, chunk) => e.u8(0).bytes(&object.to_bytes()).u16(chunk.0),
        Cursor::End => e.u8(1).bytes(&[0; 18]),
    };
}

pub(crate) fn decode_cursor(d: &mut Decoder<'_>) -> Result<Cursor, DecodeError> {
    let is_end = d.u8()? != 0;
    let (object, chunk) = (ObjectId::from_bytes(d.array()?), ChunkIndex(d.u16()?));
    Ok(if is_end { Cursor::End } else { Cursor::At(object, chunk) })
}

/// Uses of a group that this program knows, of those that who does not know them must not serve it for.
/// No such use exists yet.
const KNOWN_USES: u16 = 0;

/// The column of a slot whose drive holds every block of the group.
const WHOLE: u8 = 0;

/// Appends a group's entry: uses that have to be known and uses that may be ignored, a bit each, are
/// behind its epoch.
pub(crate) fn encode_group(e: &mut Encoder, group: &Group) {
    e.u64(group.id.0).u32(group.pool.0).u64(group.epoch.0).u16(0).u16(0).u8(group.slots.len() as u8);
    for slot in &group.slots {
        let role = match slot.role {
            Role::InSync => 0,
            Role::Syncing => 1,
            Role::Out => 2,
        };
        e.bytes(&slot.drive.to_bytes()).u8(role).u64(slot.since.0).u8(WHOLE);
    }
}

/// Reads a group's entry.
///
/// # Errors
/// If it is impossible; `Unknown` if the group is used in a way that this program does not know.
pub(crate) fn decode_group(d: &mut Decoder<'_>) -> Result<Group, Fault> {
    let (id, pool, epoch) = (GroupId(d.u64()?), PoolId(d.u32()?), Epoch(d.u64()?));
    let (must_know, _may_ignore) = (d.u16()?, d.u16()?);
    if must_know & !KNOWN_USES != 0 {
        return Err(Fault::Unknown(format!("group {id} with features {must_know:#x}")));
    }
    let mut slots = Vec::new();
    for _ in 0..d.u8()? {
        let drive = DriveId::from_bytes(d.array()?);
        let role = match d.u8()? {
            0 => Role::InSync,
            1 => Role::Syncing,
            2 => Role::Out,
            n => return Err(DecodeError::Invalid { field: "role", value: u64::from(n) }.into()),
        };
        let since = Epoch(d.u64()?);
        match d.u8()? {
            WHOLE => slots.push(Slot { drive, role, since }),
            column => return Err(Fault::Unknown(format!("group {id} with a drive for column {column}"))),
        }
    }
    Ok(Group { id, pool, epoch, slots, floor: Default::default() })
}

fn encode_marks(e: &mut Encoder, marks: &Marks) {
    e.u32(marks.open.len() as u32);
    for entry in &marks.open {
        encode_entry(e, entry);
    }
    e.u32(marks.watermarks.len() as u32);
    for (slot, watermark) in &marks.watermarks {
        e.u16(slot.0).u64(watermark.to_bits());
    }
}

fn decode_marks(d: &mut Decoder<'_>) -> Result<Marks, DecodeError> {
    let open = (0..d.u32()?).map(|_| decode_entry(d)).collect::<Result<_, _>>()?;
    let watermarks = (0..d.u32()?)
        .map(|_| Ok((SessionSlot(d.u16()?), Version::from_bits(d.u64()?))))
        .collect::<Result<_, DecodeError>>()?;
    Ok(Marks { open, watermarks })
}

#[cfg(test)]
pub(crate) fn samples() -> Vec<Record> {
    use crate::request::OpenEntry;
    let (group, object, chunk) = (GroupId(7), ObjectId::of_volume(VolumeId(3), 5), ChunkIndex(2));
    let (range, version, slot) =
        (BlockRange::new(300, 3), Version::new(1 << 40, SessionSlot(9)), SessionSlot(9));
    let places = vec![PlaceRun { place: Place(1 << 40), count: 2 }, PlaceRun { place: Place(77), count: 1 }];
    let entry = Group {
        id: group,
        pool: PoolId(1),
        epoch: Epoch(12),
        slots: vec![
            Slot { drive: DriveId(1 << 100), role: Role::InSync, since: Epoch(1) },
            Slot { drive: DriveId(5), role: Role::Syncing, since: Epoch(12) },
            Slot { drive: DriveId(6), role: Role::Out, since: Epoch(11) },
        ],
        floor: Default::default(),
    };
    let open = vec![OpenEntry { version, object, range, settled: true }];
    let write = |opens| Record::Write {
        group,
        object,
        range,
        version,
        opens,
        places: places.clone(),
        crcs: vec![1, 2, u32::MAX],
    };
    vec![
        write(true),
        write(false),
        Record::Zero { group, object, range, version },
        Record::Remember { group, object, range, version },
        Record::Settle { group, object, range, version },
        Record::Damaged { group, object, range, version },
        Record::Advance { group, slot, watermark: version },
        Record::Copy { group, object, chunk, stint: Epoch(4), leaf: vec![0, 0] },
        Record::Verified { group, object, chunk, stint: Epoch(4) },
        Record::Cursor { group, stint: Epoch(4), cursor: Cursor::At(object, chunk) },
        Record::Cursor { group, stint: Epoch(4), cursor: Cursor::End },
        Record::SetGroup { entry, is_new_stint: true },
        Record::DropGroup { group },
        Record::Marks { group, marks: Marks { open, watermarks: vec![(slot, version)] } },
        Record::ForgetSession { group, slot },
        Record::CloseSessions { floor: SessionId(3), sessions: vec![SessionId(8), SessionId(9)] },
        Record::SetGeneration { volume: VolumeId(3), generation: Generation(2) },
        Record::DropChunk { group, object, chunk },
        Record::DropOwner { owner: Owner::Volume(VolumeId(3)) },
        Record::DropOwner { owner: Owner::Inode { file_system: VolumeId(3), inode: u64::MAX } },
        Record::Floor { group, version },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_record_reads_back() {
        let mut e = Encoder::default();
        for record in samples() {
            record.encode(&mut e);
        }
        let mut d = Decoder::new(&e.0);
        for record in samples() {
            assert_eq!(Record::decode(&mut d).unwrap(), record);
        }
        assert!(d.finish().is_ok());
    }

    #[test]
    fn a_write_of_one_block_takes_at_most_64_bytes() {
        let span = Span {
            group: GroupId(1),
            object: ObjectId::default(),
            range: BlockRange::one(4),
            version: Version::from_bits(1),
        };
        let mut e = Encoder::default();
        encode_write(&mut e, &span, true, &[PlaceRun { place: Place(9), count: 1 }], &[5]);
        assert!(e.0.len() <= 64, "{}", e.0.len());
    }

    #[test]
    fn what_a_newer_program_logs_is_unknown_and_not_damaged() {
        let unknown = |change: &dyn Fn(&mut Vec<u8>), record: Record| {
            let mut e = Encoder::default();
            record.encode(&mut e);
            change(&mut e.0);
            let found = Record::decode(&mut Decoder::new(&e.0));
            assert!(matches!(found, Err(Fault::Unknown(_))), "{found:?}");
        };
        let (group, object, chunk) = (GroupId(7), ObjectId::of_volume(VolumeId(3), 5), ChunkIndex(2));
        let layer = 1 + 8 + 16 + 2;
        unknown(&|bytes| bytes[0] = 99, Record::DropGroup { group });
        unknown(&|bytes| bytes[layer] = 0x40, Record::DropChunk { group, object, chunk });
        let set_group =
            || samples().into_iter().find(|r| matches!(r, Record::SetGroup { .. })).expect("a sample");
        unknown(&|bytes| bytes[22] |= 1, set_group());
        unknown(&|bytes| *bytes.last_mut().expect("bytes") = 2, set_group());
        let mut e = Encoder::default();
        set_group().encode(&mut e);
        e.0[24] |= 1;
        assert_eq!(Record::decode(&mut Decoder::new(&e.0)), Ok(set_group()), "a use that may be ignored");
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..120), kind in 0u8..30) {
            let mut all = vec![kind];
            all.extend(bytes);
            let _ = Record::decode(&mut Decoder::new(&all));
        }
    }
}
