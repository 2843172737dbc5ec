//! The words in which the store is spoken to: writes, extents, copies, marks. Plain data, no behaviour
//! beyond what follows from the fields.

use crate::device_label::DeviceLabel;
use weft_rt::Buf;
use weft_types::{BlockRange, ChunkIndex, DriveId, Epoch, FabricId, GroupId, ObjectId, SessionSlot, Version};

/// How to format a drive.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// The fabric that the drive shall belong to.
    pub fabric: FabricId,
    /// The identity that it gets; a drive formatted anew must get a new one.
    pub drive_id: DriveId,
    /// Overwrite what is there: foreign data, or a label of Weft.
    pub force: bool,
    /// Bytes of the log ring; `None` computes it from the drive's size.
    pub log_bytes: Option<u64>,
    /// Allow drives below [`weft_types::limits::DRIVE_BYTES_MIN`], down to 1 MiB; for tests.
    pub allow_tiny: bool,
}

impl FormatOptions {
    /// The ordinary options: refuse whatever is not empty, compute the log's size.
    pub fn new(fabric: FabricId, drive_id: DriveId) -> Self {
        FormatOptions { fabric, drive_id, force: false, log_bytes: None, allow_tiny: false }
    }
}

/// How to open a store.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Bytes of RAM for the block map and its caches; `None`: a thousandth of the drive (1 GiB per TiB), at
    /// least 64 MiB.
    pub ram_budget_bytes: Option<u64>,
    /// Refuse the drive unless its label names this fabric.
    pub fabric: Option<FabricId>,
    /// Refuse the drive unless it is this part of this device: its label has to be that of the drive that is
    /// listed there, of the same size and fabric.
    pub part_of: Option<(DeviceLabel, usize)>,
    /// For tests: pages of an older format that one checkpoint converts at most.
    pub conversions: Option<u64>,
    /// For tests: take the places first that were returned last, so that one that is returned too early does
    /// harm that shows.
    pub reuse_at_once: bool,
}

/// What opening a drive found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// The log was empty: the drive had been closed in order.
    pub was_clean: bool,
    /// Batches of the log that were applied.
    pub batches_replayed: u64,
    /// Records that were applied.
    pub records_replayed: u64,
    /// Blocks of unacknowledged writes whose data had not arrived: those writes never happened.
    pub blocks_dropped: u64,
    /// A copy of the label was damaged and has been rewritten from the other.
    pub label_repaired: bool,
    /// The drive had an older format: it has the present one from now on, and an older program refuses it.
    pub converted: bool,
    /// The newer superblock was damaged; the older one and the log were used.
    pub superblock_fallback: bool,
    /// Microseconds that it took.
    pub took_us: u64,
}

/// Where a write comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// A client's own write.
    Client,
    /// A client's own write that may take space which is kept for names of files.
    Reserve,
    /// A reader puts what it is about to return (R8): when refused, the version is remembered (R9).
    Repair,
}

/// What a write puts.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Data: `range.bytes()` bytes, and the CRC-32C of each block.
    Data {
        /// The bytes; aligned to 4096 where that spares a copy.
        data: Buf,
        /// One per block, verified by the caller.
        crcs: Vec<u32>,
    },
    /// Nothing: a discard or a write of zeroes (R7).
    Zero,
}

/// A write of one version to a run of blocks of one object.
#[derive(Clone, Debug)]
pub struct Write {
    /// The group.
    pub group: GroupId,
    /// The object.
    pub object: ObjectId,
    /// The blocks; data at most [`weft_types::limits::REQUEST_BLOCKS_MAX`], zeroes a whole object.
    pub range: BlockRange,
    /// The version; not [`Version::ZERO`].
    pub version: Version,
    /// Where it comes from.
    pub kind: WriteKind,
    /// What it puts.
    pub payload: Payload,
}

/// How the store judged a run of blocks of a write (R3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It took the version when it held nothing newer, now or before.
    Applied,
    /// It holds this newer version and never took the one asked.
    Superseded {
        /// The version held.
        newest: Version,
    },
}

/// What an extent holds. Two reads of the same state give the same extents.
#[derive(Clone, Debug)]
pub enum ExtentData {
    /// Data, verified against its checksums.
    Data {
        /// The bytes; empty in an answer about versions.
        buf: Buf,
        /// The CRC-32C of each block.
        crcs: Vec<u32>,
    },
    /// Never written, or discarded or zeroed: reads as zeroes.
    Zero,
    /// Data that this drive cannot read any more.
    Damaged,
}

/// A run of blocks of one version.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The blocks.
    pub range: BlockRange,
    /// Their version; [`Version::ZERO`] where nothing was ever written.
    pub version: Version,
    /// Whether the version is open here and not settled (R8).
    pub open: bool,
    /// What they hold.
    pub data: ExtentData,
}

/// A run of blocks of a chunk as the source of a resync holds it.
#[derive(Clone, Debug)]
pub struct CopyEntry {
    /// The blocks, inside the chunk.
    pub range: BlockRange,
    /// Their version; [`Version::ZERO`] for [`CopyData::Absent`].
    pub version: Version,
    /// What they hold.
    pub data: CopyData,
}

/// What the source of a resync holds in a run of blocks.
#[derive(Clone, Debug)]
pub enum CopyData {
    /// Data and its checksums.
    Data {
        /// The bytes.
        buf: Buf,
        /// The CRC-32C of each block.
        crcs: Vec<u32>,
    },
    /// A tombstone: discarded or zeroed at the version.
    Zero,
    /// Never written.
    Absent,
    /// The source cannot read it either.
    Damaged,
}

/// A version that a replica has taken or seen in a run of blocks, above its session's watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenEntry {
    /// The version; its low bits are the session's slot.
    pub version: Version,
    /// The object.
    pub object: ObjectId,
    /// The blocks.
    pub range: BlockRange,
    /// Whether it is known to be on the whole write set.
    pub settled: bool,
}

/// What travels with a copied range (R14): open entries with their settled marks, and watermarks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The open entries in the range.
    pub open: Vec<OpenEntry>,
    /// The watermarks of all sessions in the group.
    pub watermarks: Vec<(SessionSlot, Version)>,
}

/// How far a syncing replica has verified: all chunks below the cursor, and those verified out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cursor {
    /// Every chunk below this one is verified.
    At(ObjectId, ChunkIndex),
    /// All chunks are verified.
    End,
}

/// What a drive knows of its own verification in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyState {
    /// The newest syncing stint that this drive has adopted; `None` if it never was syncing.
    pub stint: Option<Epoch>,
    /// How far it has verified in that stint.
    pub cursor: Cursor,
    /// Chunks verified out of order, above the cursor.
    pub ahead: usize,
}

/// Figures about a store since it was opened, and its space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks that can hold data and the maps.
    pub capacity_blocks: u64,
    /// Blocks that hold data or maps, or wait to be returned.
    pub used_blocks: u64,
    /// Blocks that a write could take now.
    pub free_blocks: u64,
    /// Blocks that were replaced and return soon.
    pub pending_free_blocks: u64,
    /// Bytes that the log ring holds since the last checkpoint.
    pub log_used_bytes: u64,
    /// Bytes of the log ring.
    pub log_capacity_bytes: u64,
    /// Bytes written to the log since the store was opened.
    pub log_bytes_written: u64,
    /// Bytes of data written since the store was opened.
    pub data_bytes_written: u64,
    /// Bytes of map pages, bitmaps and state written since the store was opened.
    pub metadata_bytes_written: u64,
    /// Pages of an older format that were rewritten since the store was opened.
    pub pages_converted: u64,
    /// Bytes of data read since the store was opened.
    pub data_bytes_read: u64,
    /// Batches committed since the store was opened.
    pub batches: u64,
    /// Checkpoints taken since the store was opened.
    pub checkpoints: u64,
    /// Leaves of the block map that differ from the drive's.
    pub dirty_leaves: u64,
    /// Bytes of RAM that the block map, its caches and the bitmap take.
    pub ram_bytes: u64,
    /// The budget for them.
    pub ram_budget_bytes: u64,
    /// Blocks found damaged since the store was opened.
    pub damaged_found: u64,
    /// Damaged blocks that a put of the same version has healed since the store was opened.
    pub damaged_healed: u64,
    /// Blocks whose tombstones have left the block map since the store was opened (R7).
    pub tombstones_forgotten: u64,
}
