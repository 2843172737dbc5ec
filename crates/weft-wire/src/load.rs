//! What a target has done since its process started, for a manager that is asked by watchers.
//!
//! It owns the shape; the counters in it are those of `weft-types`. It is a document of its own, because it is large
//! and asked for every second, while a status is small and asked for by everyone.

use serde::{Deserialize, Serialize};
use weft_types::{DriveId, MeterReading, ProcessLoad, SessionId, VolumeId, VolumeLoad};

/// A target's counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetLoad {
    /// Random, new for each start of the process: counters of another start cannot be compared with these.
    pub incarnation: u64,
    /// When they were read, in microseconds on the target's own monotonic clock: two readings of one incarnation tell
    /// how much time lies between them.
    pub at_us: u64,
    /// Per drive.
    pub drives: Vec<DriveLoad>,
    /// Per volume, as far as this target was asked about it. A write to several copies counts once in the fabric: at the
    /// first member of its group's write set; every member times it.
    pub volumes: Vec<VolumeLoad>,
    /// Per session that is open, counted as volumes are.
    pub sessions: Vec<SessionLoad>,
    /// What the process has used; none where nobody reads it.
    pub process: Option<ProcessLoad>,
    /// Whether the manager's word holds now; while it does not, the target serves by the word of its peers, or not.
    #[serde(default)]
    pub leased: bool,
    /// Bytes of data that resyncs have copied from other targets, whether they ended or not.
    #[serde(default)]
    pub copied_bytes: u64,
    /// Requests that took longer than the log's threshold.
    #[serde(default)]
    pub slow_requests: u64,
    /// Requests that failed for a reason which nobody should meet on a sound fabric with room.
    #[serde(default)]
    pub failed_requests: u64,
}

/// What was asked of a drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriveLoad {
    /// The drive.
    pub id: DriveId,
    /// Requests for it.
    pub meter: MeterReading,
    /// Bytes of data that its store has written, for clients and for other replicas.
    pub data_bytes_written: u64,
    /// Bytes that its store has written to its log.
    pub log_bytes_written: u64,
}

/// What a session has asked of one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionLoad {
    /// The session; 0 for what targets ask of each other.
    pub id: SessionId,
    /// The volume that it is attached to.
    pub volume: VolumeId,
    /// Its requests.
    pub meter: MeterReading,
}
