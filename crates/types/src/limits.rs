//! Every limit of the system in one place, with assertions on how they relate.

use crate::BLOCK_SIZE;

/// Blocks in the largest object: 64 MiB.
pub const OBJECT_BLOCKS_MAX: u32 = 16_384;

/// Blocks in a chunk, 512 KiB: a full leaf of the block map (128 entries of 20 bytes) fits one block.
pub const CHUNK_BLOCKS: u32 = 128;

/// Chunks in the largest object.
pub const OBJECT_CHUNKS_MAX: u32 = OBJECT_BLOCKS_MAX / CHUNK_BLOCKS;

/// Blocks that one request may carry, 1 MiB; clients split larger ones.
pub const REQUEST_BLOCKS_MAX: u32 = 256;

/// Blocks that one discard or write of zeroes may cover: a whole object.
pub const RANGE_BLOCKS_MAX: u32 = OBJECT_BLOCKS_MAX;

/// Bytes of a frame's typed head; a fabric map of a large fabric travels as a body instead.
pub const FRAME_HEAD_MAX: usize = 16 * 1024;

/// Bytes of a frame's body: the largest request, or a document such as the fabric map.
pub const FRAME_BODY_MAX: usize = 16 * 1024 * 1024;

/// Requests that one connection may have in flight; granted as credits by the handshake.
pub const CONNECTION_REQUESTS_MAX: u32 = 256;

/// Bytes of request bodies that one connection may have in flight; granted as credits by the handshake.
pub const CONNECTION_BYTES_MAX: u32 = 32 * 1024 * 1024;

/// How many versions a client may run ahead of its watermark in one group: bounds the open set.
pub const WATERMARK_LAG_MAX: u64 = 4096;

/// How far above its own clock a target accepts a version's counter: an hour in steps of 16 us (the unit of
/// `weft_wire::data::clock_counter`). A bad client cannot wedge a block, and no sane clock is off by as much.
pub const VERSION_AHEAD_MAX: u64 = 3_600_000_000 / 16;

/// Replicas of a mirror group.
pub const COPIES_MAX: usize = 3;

/// Volumes' and nodes' names, in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Sessions that are open or not yet swept, in the whole fabric: the session slot has 16 bits, 0 is nobody's.
pub const SESSIONS_MAX: usize = 65_535;

/// Objects that a stripe runs over.
pub const STRIPE_WIDTH_MAX: u32 = 64;

/// Events that a manager keeps, the oldest dropped first: some weeks of a small fabric, in a few megabytes of memory
/// and store. There is no limit by age: a clock that is set forward by mistake would empty the list.
pub const EVENTS_MAX: usize = 5_000;

/// Characters of an event's text: an eviction names each group that it had to leave alone, and there may be
/// thousands.
pub const EVENT_CHARS_MAX: usize = 500;

/// Volumes, and nodes, and drives, that an event is filed under; its text says how many there are.
pub const EVENT_SUBJECTS_MAX: usize = 16;

/// Drives that one target serves.
pub const DRIVES_PER_TARGET_MAX: usize = 64;

/// The smallest drive, 64 MiB: below it the log and the maps would leave no room for data.
pub const DRIVE_BYTES_MIN: u64 = 64 * 1024 * 1024;

const _: () = assert!(OBJECT_BLOCKS_MAX.is_multiple_of(CHUNK_BLOCKS));
const _: () = assert!(REQUEST_BLOCKS_MAX as usize * BLOCK_SIZE <= FRAME_BODY_MAX);
const _: () = assert!(FRAME_BODY_MAX <= CONNECTION_BYTES_MAX as usize, "one frame must fit the credit");
const _: () = assert!(RANGE_BLOCKS_MAX <= OBJECT_BLOCKS_MAX);
const _: () = assert!(OBJECT_CHUNKS_MAX <= u16::MAX as u32);
const _: () = assert!(CHUNK_BLOCKS as usize * 20 + 512 < BLOCK_SIZE, "a full leaf fits one block");
