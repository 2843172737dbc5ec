//! Words: the requests and answers of management, for every tool that people or programs use.
//!
//! It owns the shapes and their JSON: integer bytes, RFC 3339 times, names of the glossary. It never carries
//! anything out, and never decides: the manager does.

mod answer;
mod error;
mod load;
mod message;
mod recovery;
mod request;
mod scrub;
mod time;
mod trouble;

pub use answer::{
    ApiAnswer, CapacityAtCopies, CopyMove, DegradedGroup, DriveFill, DriveInfo, DriveUse, Emptying,
    Evacuation, EventInfo, FabricStatus, FileSystemInfo, Health, NodeInfo, PoolInfo, Presence, Repair,
    ReplicaInfo, ResyncInfo, SessionInfo, SettingsInfo, ShardServing, TargetInfo, VolumeInfo,
};
pub use error::{ApiError, ErrorCode};
pub use load::{DriveLoad, FabricLoad, NodeLoad, SessionLoad};
pub use message::{
    ApiReply, MessageError, Outcome, decode_reply, decode_request, encode_reply, encode_request,
};
pub use recovery::{CheckFinding, CheckInfo, CheckSeverity, LossInfo, LostCopy, LostGroup, LostRange};
pub use request::{ApiRequest, EventFilter, FailureDomain, SettingsWish};
pub use scrub::{FileObject, ScrubFindingInfo, ScrubGroupInfo, ScrubInfo, ScrubRunInfo, ScrubVolumeInfo};
pub use time::{ParseTimeError, Timestamp};
pub use trouble::{
    Advice, AffectedVolume, ByteRange, Doing, Progress, Severity, Trouble, TroubleKind, WaitsFor,
};

/// The version of the shapes in this crate; raised when a reader of the older one would misunderstand.
pub const SCHEMA_VERSION: u32 = 1;
