//! What is answered about scrubs: the schedule, the one that runs, what was found. Shapes only.

use crate::Timestamp;
use serde::{Deserialize, Serialize};
use weft_types::{DriveId, GroupId, ScrubFindingKind};

/// The schedule of scrubs, the scrub that runs, and how the last ones ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubInfo {
    /// How often every group is scrubbed, in milliseconds; none: only when somebody asks.
    pub every_ms: Option<u64>,
    /// When the schedule asks for the next one; none without a schedule or without volumes.
    pub next: Option<Timestamp>,
    /// Until when the schedule rests because a scrub was stopped.
    pub rests_until: Option<Timestamp>,
    /// The scrub that runs.
    pub running: Option<ScrubRunInfo>,
    /// The last one that ended since this manager process started.
    pub last: Option<ScrubRunInfo>,
    /// The groups that are being read at present.
    pub groups: Vec<ScrubGroupInfo>,
    /// How the last complete scrubs of each volume's groups ended.
    pub volumes: Vec<ScrubVolumeInfo>,
    /// What was found since this manager process started, the newest last.
    pub findings: Vec<ScrubFindingInfo>,
}

/// A scrub: from when something was due to when nothing was any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubRunInfo {
    /// When it began.
    pub started: Timestamp,
    /// When it ended; none while it runs.
    pub ended: Option<Timestamp>,
    /// Whether it was stopped before its end.
    pub was_stopped: bool,
    /// Groups that it is about.
    pub groups_total: usize,
    /// Groups that were read to their end.
    pub groups_done: usize,
    /// Groups that are due, and wait for a drive's turn or for a member that serves.
    pub groups_waiting: usize,
    /// Groups that were read with fewer members than they have copies: less could be compared, or nothing.
    pub groups_degraded: usize,
    /// Chunks read.
    pub chunks_done: u64,
    /// Bytes read and verified, all copies counted.
    pub bytes_read: u64,
    /// Damaged copies of blocks that were written anew from a good one.
    pub healed_blocks: u64,
    /// Blocks that no copy of can be read.
    pub lost_blocks: u64,
    /// Blocks whose copies disagree, or that could not be healed.
    pub disagreements: u64,
    /// When it will be done at the rate of the last seconds, in milliseconds from now; none while that is unknown.
    pub eta_ms: Option<u64>,
}

/// A group that is being read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubGroupInfo {
    /// The group.
    pub group: GroupId,
    /// Volumes with objects in it.
    pub volumes: Vec<String>,
    /// The node that leads.
    pub node: String,
    /// Copies that are read and compared; with one, only its checksums are verified.
    pub members: usize,
    /// Copies that there should be.
    pub copies: usize,
    /// Chunks read.
    pub chunks_done: u64,
    /// Chunks to read, as far as known.
    pub chunks_total: u64,
    /// What it waits for, if it does.
    pub waits_for: Option<String>,
}

/// How the last scrubs of a volume's groups ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubVolumeInfo {
    /// The volume.
    pub volume: String,
    /// Its groups.
    pub groups: usize,
    /// Those that were ever scrubbed.
    pub groups_scrubbed: usize,
    /// When the oldest of the last scrubs ended; none before all groups were scrubbed once.
    pub scrubbed: Option<Timestamp>,
    /// Blocks that these scrubs healed. Groups may be shared with other volumes.
    pub healed_blocks: u64,
    /// Blocks of these groups that no copy of could be read.
    pub lost_blocks: u64,
}

/// Something that a scrub found: a run of blocks of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubFindingInfo {
    /// When the manager heard of it.
    pub time: Timestamp,
    /// What it is.
    pub kind: ScrubFindingKind,
    /// The group.
    pub group: GroupId,
    /// The volume; its number if it has been deleted since.
    pub volume: String,
    /// Where in the volume the run begins, in bytes; of a file: where in its object.
    pub offset_bytes: u64,
    /// How long it is.
    pub length_bytes: u64,
    /// The drives that it is about.
    pub drives: Vec<DriveId>,
    /// The object of a file, if `volume` is a file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileObject>,
}

/// An object of a file. Only the file's layout, which is in its metadata, says where in the file it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileObject {
    /// The inode.
    pub inode: u64,
    /// The object's number among those of the inode.
    pub object: u64,
}
