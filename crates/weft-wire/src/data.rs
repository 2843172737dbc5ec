//! Heads of the data path: fixed fields, little-endian, no allocation beyond the checksums.

use crate::{DecodeError, Decoder, Encoder};
use weft_types::limits::{CHUNK_BLOCKS, OBJECT_CHUNKS_MAX, REQUEST_BLOCKS_MAX};
use weft_types::{
    BLOCK_SIZE, BlockRange, ChunkIndex, DriveId, Epoch, Generation, GroupId, ObjectId, SessionId,
    SessionSlot, Version, VolumeId,
};

/// Whether the data is as many blocks as there are checksums, and each block has its own.
pub fn is_intact(data: &[u8], crcs: &[u32]) -> bool {
    data.len() == crcs.len() * BLOCK_SIZE
        && data.chunks_exact(BLOCK_SIZE).zip(crcs).all(|(block, crc)| crate::crc32c(block) == *crc)
}

/// The first protocol whose requests carry a [`Scope`].
pub const SCOPE_PROTOCOL: u16 = 2;

/// Which column and which past a request means: snapshots and erasure codes need it.
///
/// Requests of protocol 1 have no room for it. Nothing sets it yet, and a target of this release refuses a
/// request with any other scope than the default with [`crate::Status::Unsupported`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// The column of a coded group that is meant, counted from 1; 0: the group is not coded.
    pub column: u8,
    /// The newest cut of the volume that the sender knows, as the first version that is not before the cut;
    /// zero: none. A target that does not know the cut has to make it durable before it judges a write.
    pub cut: Version,
    /// Only versions below this one count; zero: all do.
    pub bound: Version,
}

impl Scope {
    /// Bytes of cut and bound; the column has room in both protocols.
    const BYTES: usize = 8 + 8;

    /// Whether the request is one that protocol 1 has too.
    pub fn is_default(&self) -> bool {
        *self == Scope::default()
    }

    /// # Panics
    /// If the protocol has no room for what the scope says.
    fn check_room(&self, protocol: u16) {
        assert!(
            protocol >= SCOPE_PROTOCOL || self.is_default(),
            "a scope for a peer that speaks protocol {protocol}"
        );
    }

    fn encode(&self, protocol: u16, e: &mut Encoder) {
        if protocol >= SCOPE_PROTOCOL {
            e.u64(self.cut.to_bits()).u64(self.bound.to_bits());
        }
    }

    fn decode(protocol: u16, column: u8, d: &mut Decoder<'_>) -> Result<Scope, DecodeError> {
        if protocol < SCOPE_PROTOCOL {
            return Ok(Scope::default());
        }
        Ok(Scope { column, cut: Version::from_bits(d.u64()?), bound: Version::from_bits(d.u64()?) })
    }
}

/// What every request on the data path carries for admission, and which blocks it is about.
///
/// 92 bytes in protocol 1, 108 in protocol 2; the checksums of a write follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRequest {
    /// The drive that is asked.
    pub drive: DriveId,
    /// The group that holds the object.
    pub group: GroupId,
    /// The group's epoch in the sender's map.
    pub epoch: Epoch,
    /// The volume's generation when the session attached.
    pub generation: Generation,
    /// The session that asks.
    pub session: SessionId,
    /// Every write of this session to this group up to this version is complete. Carries the session's slot.
    pub watermark: Version,
    /// The object; its volume is what the generation belongs to.
    pub object: ObjectId,
    /// The blocks.
    pub range: BlockRange,
    /// The version to write, repair or settle; ignored by reads.
    pub version: Version,
    /// How the request is meant.
    pub purpose: Purpose,
    /// The session's slot, for watermarks of zero.
    pub slot: SessionSlot,
    /// Which column and which past are meant.
    pub scope: Scope,
}

/// How a data request is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// A client's own read or write.
    Client = 0,
    /// Part of the slow read path: put what a reader is about to return (R8, R9), or ask for versions for it.
    Repair = 1,
    /// A client's own write to the volume of a shard of metadata, which may take space that is kept for these
    /// when other writes are refused. The names of a full pool can be changed so, and files removed.
    Reserve = 2,
}

impl DataRequest {
    /// Bytes of the fixed part in the newest protocol.
    pub const BYTES: usize = 16 + 8 * 5 + 16 + 8 + 8 + 1 + 1 + 2 + Scope::BYTES;

    /// The fixed part as a peer of this protocol reads it, then the checksums (none unless it is a write).
    ///
    /// # Panics
    /// If there is a scope, and the protocol has no room for it.
    pub fn encode(&self, protocol: u16, crcs: &[u32]) -> Vec<u8> {
        self.scope.check_room(protocol);
        let mut e = Encoder::with_capacity(Self::BYTES + 4 * crcs.len());
        e.bytes(&self.drive.to_bytes()).u64(self.group.0).u64(self.epoch.0).u64(self.generation.0);
        e.u64(self.session.0).u64(self.watermark.to_bits()).bytes(&self.object.to_bytes());
        e.u32(self.range.first).u32(self.range.count).u64(self.version.to_bits());
        e.u8(self.purpose as u8).u8(self.scope.column).u16(self.slot.0);
        self.scope.encode(protocol, &mut e);
        for crc in crcs {
            e.u32(*crc);
        }
        e.0
    }

    /// How many blocks the head of a request names, without any check; 0 if it is too short. It lies at the
    /// same place in every protocol.
    pub fn peek_blocks(head: &[u8]) -> u32 {
        const AT: usize = 16 + 8 * 5 + 16 + 4;
        head.get(AT..).and_then(|rest| rest.first_chunk()).map_or(0, |count| u32::from_le_bytes(*count))
    }

    /// Reads the fixed part, as a peer of this protocol writes it, and the checksums.
    ///
    /// # Errors
    /// If the bytes are too few or too many, or the range is empty or passes the largest object.
    pub fn decode(protocol: u16, head: &[u8]) -> Result<(DataRequest, Vec<u32>), DecodeError> {
        let mut d = Decoder::new(head);
        let mut request = DataRequest {
            drive: DriveId::from_bytes(d.array()?),
            group: GroupId(d.u64()?),
            epoch: Epoch(d.u64()?),
            generation: Generation(d.u64()?),
            session: SessionId(d.u64()?),
            watermark: Version::from_bits(d.u64()?),
            object: ObjectId::from_bytes(d.array()?),
            range: BlockRange::new(d.u32()?, d.u32()?),
            version: Version::from_bits(d.u64()?),
            purpose: match d.u8()? {
                0 => Purpose::Client,
                1 => Purpose::Repair,
                2 => Purpose::Reserve,
                other => return Err(DecodeError::Invalid { field: "purpose", value: u64::from(other) }),
            },
            scope: Scope { column: d.u8()?, ..Scope::default() },
            slot: SessionSlot(d.u16()?),
        };
        request.scope = Scope::decode(protocol, request.scope.column, &mut d)?;
        if !request.range.is_valid() {
            return Err(DecodeError::Invalid { field: "range", value: u64::from(request.range.count) });
        }
        if !d.left().is_multiple_of(4) || d.left() / 4 > REQUEST_BLOCKS_MAX as usize {
            return Err(DecodeError::Long(d.left()));
        }
        let mut crcs = Vec::with_capacity(d.left() / 4);
        while d.left() > 0 {
            crcs.push(d.u32()?);
        }
        Ok((request, crcs))
    }
}

/// How one replica judged a run of blocks of a write (R3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It took the version when it held nothing newer.
    Applied,
    /// It holds this newer version and never took the one asked.
    Superseded(Version),
}

/// The answer to a write: verdicts over the request's range in order, and the target's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteAnswer {
    /// The target's hybrid clock as a version counter.
    pub clock: u64,
    /// Runs of blocks and how they were judged; together the request's range.
    pub verdicts: Vec<(BlockRange, Verdict)>,
}

impl WriteAnswer {
    /// The answer as bytes: clock, then per run first, count, version bits (0: applied).
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(8 + 16 * self.verdicts.len());
        e.u64(self.clock);
        for (range, verdict) in &self.verdicts {
            e.u32(range.first).u32(range.count);
            e.u64(match verdict {
                Verdict::Applied => 0,
                Verdict::Superseded(newest) => newest.to_bits(),
            });
        }
        e.0
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// If the bytes do not end with a run, or a run is empty or passes the largest object.
    pub fn decode(head: &[u8]) -> Result<WriteAnswer, DecodeError> {
        let mut d = Decoder::new(head);
        let clock = d.u64()?;
        let mut verdicts = Vec::with_capacity(d.left() / 16);
        while d.left() > 0 {
            let range = BlockRange::new(d.u32()?, d.u32()?);
            if !range.is_valid() {
                return Err(DecodeError::Invalid { field: "range", value: u64::from(range.count) });
            }
            let verdict = match d.u64()? {
                0 => Verdict::Applied,
                bits => Verdict::Superseded(Version::from_bits(bits)),
            };
            verdicts.push((range, verdict));
        }
        Ok(WriteAnswer { clock, verdicts })
    }
}

/// What a replica holds in a run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Content {
    /// Nothing was ever written, or it was discarded or zeroed at the version: reads as zeroes.
    Zero = 0,
    /// Data.
    Data = 1,
    /// Data that this replica cannot read any more; a peer must be asked.
    Damaged = 2,
}

/// A run of blocks of one version, as a replica holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The blocks.
    pub range: BlockRange,
    /// The version that all of them have.
    pub version: Version,
    /// Whether the version is open here and not settled: a reader must take the slow path (R8).
    pub open: bool,
    /// What the blocks hold.
    pub content: Content,
    /// One CRC-32C per block where the content is data, else empty.
    pub crcs: Vec<u32>,
}

/// The answer to a read: extents over the request's range in order. The body holds the data blocks of the
/// extents with data, one after another; an answer about versions has no body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadAnswer {
    /// The target's hybrid clock as a version counter.
    pub clock: u64,
    /// Runs of blocks; together the request's range.
    pub extents: Vec<Extent>,
}

impl ReadAnswer {
    /// The answer as bytes: clock, then per extent first, count, version, open, content, 2 zero, checksums.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(8 + 24 * self.extents.len());
        e.u64(self.clock);
        for x in &self.extents {
            e.u32(x.range.first).u32(x.range.count).u64(x.version.to_bits());
            e.u8(u8::from(x.open)).u8(x.content as u8).u16(0);
            for crc in &x.crcs {
                e.u32(*crc);
            }
        }
        e.0
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// If the bytes are too few, or an extent is impossible.
    pub fn decode(head: &[u8]) -> Result<ReadAnswer, DecodeError> {
        let mut d = Decoder::new(head);
        let clock = d.u64()?;
        let mut extents = Vec::new();
        while d.left() > 0 {
            let range = BlockRange::new(d.u32()?, d.u32()?);
            if !range.is_valid() {
                return Err(DecodeError::Invalid { field: "range", value: u64::from(range.count) });
            }
            let version = Version::from_bits(d.u64()?);
            let open = d.u8()? != 0;
            let content = match d.u8()? {
                0 => Content::Zero,
                1 => Content::Data,
                2 => Content::Damaged,
                n => return Err(DecodeError::Invalid { field: "content", value: u64::from(n) }),
            };
            d.u16()?;
            let mut crcs = Vec::new();
            if content == Content::Data {
                if d.left() / 4 < range.count as usize {
                    return Err(DecodeError::Short {
                        offset: 0,
                        needed: range.count as usize * 4,
                        found: d.left(),
                    });
                }
                for _ in 0..range.count {
                    crcs.push(d.u32()?);
                }
            }
            extents.push(Extent { range, version, open, content, crcs });
        }
        Ok(ReadAnswer { clock, extents })
    }
}

/// Microseconds of wall clock that one step of a version counter stands for, a power of two. Microseconds
/// since 1970 need 51 bits already and a counter has 48; steps of 16 us last until the year 2112.
pub const CLOCK_STEP_US: u64 = 16;

/// The version counter that a wall clock stands for: where clients start from, and what targets answer with.
///
/// Several writes within one step are told apart by counting on, so the step only bounds how far the counter
/// of a client that writes faster runs ahead of its clock.
pub const fn clock_counter(wall_clock_us: u64) -> u64 {
    let counter = wall_clock_us / CLOCK_STEP_US;
    if counter < Version::COUNTER_MAX { counter } else { Version::COUNTER_MAX }
}

/// A peer's request about a group for resync: digests from a key on, or one chunk's entries, or marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRequest {
    /// The drive that is asked.
    pub drive: DriveId,
    /// The group.
    pub group: GroupId,
    /// The group's epoch in the sender's map; admitted like any other request (R1).
    pub epoch: Epoch,
    /// The object to begin at, or that is meant.
    pub object: ObjectId,
    /// The chunk to begin at, or that is meant.
    pub chunk: ChunkIndex,
    /// Of entries, the blocks that are meant: inside the chunk, or all of it.
    pub blocks: BlockRange,
    /// How many digests at most; of entries 0: with the data of open ones only.
    pub limit: u16,
    /// A client waits for what this leads to: the one who is asked does not make it wait its turn.
    pub is_urgent: bool,
    /// Which column and which past are meant.
    pub scope: Scope,
}

impl PeerRequest {
    /// Bytes in the newest protocol.
    pub const BYTES: usize = 16 + 8 + 8 + 16 + 2 + 2 + 2 + 1 + 1 + Scope::BYTES;

    /// The request as a peer of this protocol reads it: 55 bytes in protocol 1, 72 in protocol 2. The blocks
    /// are counted from the chunk's first.
    ///
    /// # Panics
    /// If there is a scope, and the protocol has no room for it.
    pub fn encode(&self, protocol: u16) -> Vec<u8> {
        self.scope.check_room(protocol);
        let mut e = Encoder::with_capacity(Self::BYTES);
        e.bytes(&self.drive.to_bytes()).u64(self.group.0).u64(self.epoch.0);
        e.bytes(&self.object.to_bytes()).u16(self.chunk.0);
        let first = self.blocks.first.saturating_sub(self.chunk.range().first);
        e.u8(first as u8).u8(self.blocks.count as u8);
        e.u16(self.limit).u8(self.is_urgent.into());
        if protocol >= SCOPE_PROTOCOL {
            e.u8(self.scope.column);
        }
        self.scope.encode(protocol, &mut e);
        e.0
    }

    /// Reads a request of a peer of this protocol.
    ///
    /// # Errors
    /// If the bytes are too few or too many, the chunk passes the largest object, the blocks are none or pass the
    /// chunk, or a flag is neither 0 nor 1.
    pub fn decode(protocol: u16, head: &[u8]) -> Result<PeerRequest, DecodeError> {
        let wrong = |field, value: u32| DecodeError::Invalid { field, value: u64::from(value) };
        let mut d = Decoder::new(head);
        let (drive, group, epoch) = (DriveId::from_bytes(d.array()?), GroupId(d.u64()?), Epoch(d.u64()?));
        let (object, chunk) = (ObjectId::from_bytes(d.array()?), ChunkIndex(d.u16()?));
        if u32::from(chunk.0) >= OBJECT_CHUNKS_MAX {
            return Err(wrong("chunk", chunk.0.into()));
        }
        let (first, count) = (u32::from(d.u8()?), u32::from(d.u8()?));
        if count == 0 || first + count > CHUNK_BLOCKS {
            return Err(wrong("blocks", first << 8 | count));
        }
        let blocks = BlockRange::new(chunk.range().first + first, count);
        let limit = d.u16()?;
        let is_urgent = match d.u8()? {
            value @ (0 | 1) => value == 1,
            value => return Err(wrong("is_urgent", value.into())),
        };
        let column = if protocol >= SCOPE_PROTOCOL { d.u8()? } else { 0 };
        let scope = Scope::decode(protocol, column, &mut d)?;
        d.finish()?;
        Ok(PeerRequest { drive, group, epoch, object, chunk, blocks, limit, is_urgent, scope })
    }
}

/// Digests of a group's chunks in key order; fewer than asked for means that there are no more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DigestsAnswer {
    /// Object, chunk, digest.
    pub digests: Vec<(ObjectId, ChunkIndex, u64)>,
}

impl DigestsAnswer {
    /// The answer as bytes: per chunk object 16, chunk 2, digest 8.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(26 * self.digests.len());
        for (object, chunk, digest) in &self.digests {
            e.bytes(&object.to_bytes()).u16(chunk.0).u64(*digest);
        }
        e.0
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// If the bytes do not end with an entry, or a chunk passes the largest object.
    pub fn decode(head: &[u8]) -> Result<DigestsAnswer, DecodeError> {
        let mut d = Decoder::new(head);
        let mut digests = Vec::with_capacity(d.left() / 26);
        while d.left() > 0 {
            let (object, chunk) = (ObjectId::from_bytes(d.array()?), d.u16()?);
            if u32::from(chunk) >= OBJECT_CHUNKS_MAX {
                return Err(DecodeError::Invalid { field: "chunk", value: u64::from(chunk) });
            }
            digests.push((object, ChunkIndex(chunk), d.u64()?));
        }
        Ok(DigestsAnswer { digests })
    }
}

/// The watermark of a session in a group, sent one-way when there was nothing else to send it with; one frame
/// carries several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatermarkNote {
    /// The drive that is told.
    pub drive: DriveId,
    /// The group.
    pub group: GroupId,
    /// The group's epoch in the sender's map.
    pub epoch: Epoch,
    /// The volume and its generation, for admission.
    pub volume: VolumeId,
    /// The volume's generation when the session attached.
    pub generation: Generation,
    /// The session.
    pub session: SessionId,
    /// Every write of this session to this group up to this version is complete.
    pub watermark: Version,
}

impl WatermarkNote {
    /// Bytes of one note.
    pub const BYTES: usize = 64;

    /// How many notes one frame carries at most.
    pub const NOTES_MAX: usize = weft_types::limits::FRAME_HEAD_MAX / Self::BYTES;

    /// The notes as bytes, one behind the other.
    ///
    /// # Panics
    /// If there are more than [`WatermarkNote::NOTES_MAX`].
    pub fn encode_all(notes: &[WatermarkNote]) -> Vec<u8> {
        assert!(notes.len() <= Self::NOTES_MAX, "{} notes in one frame", notes.len());
        let mut e = Encoder::with_capacity(Self::BYTES * notes.len());
        for note in notes {
            e.bytes(&note.drive.to_bytes()).u64(note.group.0).u64(note.epoch.0).u64(note.volume.0);
            e.u64(note.generation.0).u64(note.session.0).u64(note.watermark.to_bits());
        }
        e.0
    }

    /// Reads notes.
    ///
    /// # Errors
    /// If the bytes do not end with a note.
    pub fn decode_all(head: &[u8]) -> Result<Vec<WatermarkNote>, DecodeError> {
        let mut d = Decoder::new(head);
        let mut notes = Vec::with_capacity(d.left() / Self::BYTES);
        while d.left() > 0 {
            notes.push(WatermarkNote {
                drive: DriveId::from_bytes(d.array()?),
                group: GroupId(d.u64()?),
                epoch: Epoch(d.u64()?),
                volume: VolumeId(d.u64()?),
                generation: Generation(d.u64()?),
                session: SessionId(d.u64()?),
                watermark: Version::from_bits(d.u64()?),
            });
        }
        Ok(notes)
    }
}

const _: () = assert!(
    DataRequest::BYTES + 4 * REQUEST_BLOCKS_MAX as usize <= weft_types::limits::FRAME_HEAD_MAX,
    "a write of the largest request fits a head"
);
// The worst answer to a read: every block an extent of its own.
const _: () = assert!(8 + REQUEST_BLOCKS_MAX as usize * 24 <= weft_types::limits::FRAME_HEAD_MAX);
const _: () = assert!(CHUNK_BLOCKS <= REQUEST_BLOCKS_MAX, "a chunk's entries fit one answer");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_on_blocks_that_no_object_has_are_refused() {
        let answer = |first, count| WriteAnswer {
            clock: 1,
            verdicts: vec![(BlockRange::new(first, count), Verdict::Applied)],
        };
        assert_eq!(WriteAnswer::decode(&answer(3, 4).encode()), Ok(answer(3, 4)));
        for (first, count) in [(u32::MAX, 2), (0, u32::MAX), (16_384, 1), (5, 0)] {
            assert!(WriteAnswer::decode(&answer(first, count).encode()).is_err(), "{first}+{count}");
        }
    }

    #[test]
    fn digests_of_chunks_that_no_object_has_are_refused() {
        let answer = |chunk| DigestsAnswer { digests: vec![(ObjectId::default(), ChunkIndex(chunk), 7)] };
        assert_eq!(DigestsAnswer::decode(&answer(127).encode()), Ok(answer(127)));
        assert!(DigestsAnswer::decode(&answer(128).encode()).is_err());
    }
}
