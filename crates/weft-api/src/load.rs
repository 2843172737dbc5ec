//! The load of the fabric: cumulative counters, for programs that watch.
//!
//! It owns the shape, and what became of one node's counters between two answers. Counters begin at zero with each
//! start of a node's process, so they are kept per node with the process's incarnation: readings of different
//! incarnations are never subtracted from each other.

use crate::Timestamp;
use serde::{Deserialize, Serialize};
use weft_types::{DriveId, FabricId, MeterReading, NodeId, ProcessLoad, SessionId, VolumeLoad};

/// The counters of all nodes that answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FabricLoad {
    /// The fabric.
    pub fabric: FabricId,
    /// The time of this answer, by the manager's clock.
    pub time: Timestamp,
    /// The nodes that answered, by number.
    pub nodes: Vec<NodeLoad>,
    /// Names of the nodes that are down, or did not answer in time.
    pub silent: Vec<String>,
}

/// The counters of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeLoad {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Random, new for each start of its process.
    pub incarnation: u64,
    /// When the counters were read, in microseconds on the node's own monotonic clock.
    pub at_us: u64,
    /// What its process has used, and its machine's network.
    pub process: Option<ProcessLoad>,
    /// Its drives.
    pub drives: Vec<DriveLoad>,
    /// Volumes, as far as this node was asked about them: add up what all nodes say. A write to several copies counts
    /// at one of them, and is timed at each.
    pub volumes: Vec<VolumeLoad>,
    /// Sessions that are open, counted as volumes are. Where there are very many, those that asked most.
    pub sessions: Vec<SessionLoad>,
}

/// What was asked of a drive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriveLoad {
    /// The drive.
    pub id: DriveId,
    /// Where it is on its node.
    pub path: String,
    /// Requests of clients for it.
    pub meter: MeterReading,
    /// Bytes of data that were written to it, for clients and for other replicas.
    pub data_bytes_written: u64,
    /// Bytes that were written to its log.
    pub log_bytes_written: u64,
}

/// What a session has asked of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionLoad {
    /// The session; 0 for what the nodes ask of each other.
    pub id: SessionId,
    /// The client that opened it.
    pub client: String,
    /// The name of the volume.
    pub volume: String,
    /// Its requests.
    pub meter: MeterReading,
}
