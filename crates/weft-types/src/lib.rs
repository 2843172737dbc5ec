//! Words: the names and numbers that every layer shares.
//!
//! This crate owns identifiers, blocks and addresses, versions and epochs, the fabric map as a
//! document, and the limits of the whole system. It never does I/O, never reads a clock, and
//! never decides anything: transitions of the map live in `weft-membership`.

mod block;
mod capacity;
mod causes;
mod file;
mod ids;
pub mod limits;
mod load;
mod map;
mod object;
mod protection;
mod scrub;
mod table;
mod version;

pub use block::{BLOCK_SIZE, BlockCount, BlockRange, ChunkIndex, Lba, SECTOR_SIZE};
pub use capacity::{CapacityLevel, CapacityLevels, names_reserve};
pub use causes::with_causes;
pub use file::{Attributes, FileKind, FileTime, InodeNumber};
pub use ids::{
    DeviceId, DriveId, FabricId, Generation, GroupId, GroupTableId, NodeId, ParseIdError, PoolId, RequestId,
    SessionId, TargetId, VolumeId,
};
pub use load::{InterfaceLoad, Latencies, MeterReading, ProcessLoad, VolumeLoad};
pub use map::{
    AttachKind, AttachMode, Delta, DeltaError, Drive, DriveState, Durations, FabricMap, FileSystem, Group,
    GroupList, GroupTable, GroupTables, ListedShard, MapSettings, MapVersion, NamedGroups, Node, ObjectSpan,
    OfTarget, Piece, PieceKey, PieceKind, PieceSet, Pool, Relocation, Role, Session, SessionState, Slice,
    Slot, SpanGroups, Striping, TableWindow, Target, TargetSlice, Touched, Volume, VolumeKind, VolumeState,
    system_volume_name, targets_touched,
};
pub use object::{ObjectId, ObjectRange, Owner};
pub use protection::Protection;
pub use scrub::{SCRUB_EVERY_MS, ScrubFindingKind, ScrubPlan, ScrubRecord};
pub use table::{Key, Table, TableChange};
pub use version::{Epoch, SessionSlot, Version};
