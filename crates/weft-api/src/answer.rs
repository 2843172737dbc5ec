//! What is answered. It owns the shapes that tools print; bytes are integers, times RFC 3339 in UTC.

use crate::{CheckInfo, FabricLoad, LossInfo, ScrubInfo, ScrubRunInfo, Timestamp, Trouble};
use serde::{Deserialize, Serialize};
use weft_types::{
    AttachMode, CapacityLevel, CapacityLevels, DeviceId, DriveId, DriveState, Epoch, FabricId, FabricMap,
    Generation, GroupId, MapVersion, NodeId, PoolId, Protection, Role, SessionId, SessionState, TargetId,
    VolumeId, VolumeState,
};

/// The answer to an operation, tagged by `op`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum ApiAnswer {
    /// To `node-list`: by number.
    Nodes {
        /// The nodes.
        nodes: Vec<NodeInfo>,
    },
    /// To `node-show`.
    Node {
        /// The node.
        node: NodeInfo,
        /// Its drives.
        drives: Vec<DriveInfo>,
    },
    /// To `drive-list`: by node, then path.
    Drives {
        /// The drives.
        drives: Vec<DriveInfo>,
    },
    /// To `drive-show`.
    Drive {
        /// The drive.
        drive: DriveInfo,
        /// Its part in each group that lists it.
        replicas: Vec<ReplicaInfo>,
    },
    /// To `drive-evacuate`, `drive-replace` and `node-evacuate`.
    Evacuation(Evacuation),
    /// To `drive-remove` and `node-remove`.
    Removed {
        /// The node, where one was forgotten.
        node: Option<String>,
        /// The drives that were forgotten.
        drives: Vec<DriveId>,
        /// Whether nothing was changed because the request said `dry_run`.
        #[serde(default)]
        dry_run: bool,
    },
    /// To `pool-list`: by number.
    Pools {
        /// The pools.
        pools: Vec<PoolInfo>,
    },
    /// To `volume-list`: by name.
    Volumes {
        /// The volumes.
        volumes: Vec<VolumeInfo>,
    },
    /// To `volume-create`, `volume-show`, `volume-resize`.
    Volume {
        /// The volume.
        volume: VolumeInfo,
        /// What was done and may be regretted, for people: a pool that is promised more often than it exists.
        #[serde(default)]
        warnings: Vec<String>,
        /// Whether nothing was changed because the request said `dry_run`.
        #[serde(default)]
        dry_run: bool,
    },
    /// To `volume-delete`.
    Deleting {
        /// The volume as it was.
        volume: VolumeInfo,
        /// Sessions that were ended.
        ended_sessions: Vec<SessionId>,
        /// Whether nothing was changed because the request said `dry_run`.
        #[serde(default)]
        dry_run: bool,
    },
    /// To `fs-list`: by name.
    FileSystems {
        /// The file systems.
        file_systems: Vec<FileSystemInfo>,
    },
    /// To `fs-create` and `fs-show`.
    FileSystem {
        /// The file system.
        file_system: FileSystemInfo,
        /// What was done and may be regretted, for people.
        #[serde(default)]
        warnings: Vec<String>,
        /// Whether nothing was changed because the request said `dry_run`.
        #[serde(default)]
        dry_run: bool,
    },
    /// To `fs-delete`.
    FileSystemDeleting {
        /// The file system as it was.
        file_system: FileSystemInfo,
        /// Sessions that were ended, also those of servers of its metadata.
        ended_sessions: Vec<SessionId>,
        /// Whether nothing was changed because the request said `dry_run`.
        #[serde(default)]
        dry_run: bool,
    },
    /// To `session-list`: by number.
    Sessions {
        /// The sessions.
        sessions: Vec<SessionInfo>,
    },
    /// To `status`.
    Status(Box<FabricStatus>),
    /// To `load`.
    Load(Box<FabricLoad>),
    /// To `events`: oldest first; to `event-add` and `fabric-stop`: the one that was added.
    Events {
        /// The events.
        events: Vec<EventInfo>,
    },
    /// To `scrub-start`, `scrub-stop`, `scrub-status` and `scrub-schedule`: as it is now.
    Scrub(Box<ScrubInfo>),
    /// To `fabric-check`.
    Check(Box<CheckInfo>),
    /// To `volume-repair`.
    Loss(Box<LossInfo>),
    /// To `volume-holds-data`.
    HoldsData {
        /// Whether a drive holds data of it; none if not every drive could be asked.
        holds: Option<bool>,
    },
    /// To `map-diff`: one line for each thing that is different.
    MapDiff {
        /// The differences.
        changes: Vec<String>,
    },
    /// To `map-get`.
    Map {
        /// The map.
        map: Box<FabricMap>,
    },
    /// To `settings`: as they are now.
    Settings {
        /// The settings.
        settings: SettingsInfo,
    },
}

/// What emptying drives comes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evacuation {
    /// The drives that are being emptied, or take part again.
    pub drives: Vec<DriveInfo>,
    /// Where each copy goes, as planned now: the choice is made anew when its turn comes.
    pub copies: Vec<CopyMove>,
    /// Bytes that the drives hold, as far as their targets answer.
    pub used_bytes: u64,
    /// Bytes that are free on the drives that can take them, as far as their targets answer.
    pub free_bytes: u64,
    /// Whether the drives take part again instead of being emptied.
    pub cancelled: bool,
    /// Whether nothing was changed because the request said `dry_run`.
    #[serde(default)]
    pub dry_run: bool,
}

/// A copy that passes to another drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyMove {
    /// The group.
    pub group: GroupId,
    /// The drive that it leaves.
    pub from: DriveId,
    /// The drive that takes it.
    pub to: DriveId,
}

/// Whether a node's target takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Presence {
    /// Its target holds a lease.
    Up,
    /// Its target has not been heard of for too long; it may be on its way out of its groups.
    Suspect,
    /// Its target is gone.
    Down,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its number.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Where its target listens, the first one if it has several.
    pub addr: String,
    /// Whether it takes part: any of its targets does.
    pub presence: Presence,
    /// Since when, as far as this manager process knows.
    pub since: Timestamp,
    /// How many drives the map lists on it.
    pub drives: usize,
    /// The newest map that all of its targets are known to have adopted.
    pub adopted: Option<MapVersion>,
    /// Its targets, if it has several: threads of its process, each with drives of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetInfo>,
}

/// A target of a node that has several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Its number.
    pub id: TargetId,
    /// Which of the node's targets it is, from 0.
    pub index: u32,
    /// Where it listens.
    pub addr: String,
    /// Whether it takes part.
    pub presence: Presence,
    /// Since when, as far as this manager process knows.
    pub since: Timestamp,
    /// How many drives the map lists on it.
    pub drives: usize,
    /// The newest map that it is known to have adopted.
    pub adopted: Option<MapVersion>,
}

/// What a target said of a drive's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveUse {
    /// Bytes that hold data or metadata.
    pub used_bytes: u64,
    /// Bytes of data written since the target started.
    pub data_bytes_written: u64,
    /// Bytes written to the log since the target started.
    pub log_bytes_written: u64,
    /// Blocks found damaged since the target started.
    #[serde(default)]
    pub blocks_damaged: u64,
    /// Damaged blocks that were written anew since the target started, for a reader or by a scrub.
    #[serde(default)]
    pub blocks_healed: u64,
}

/// A drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveInfo {
    /// Its identity, from its label.
    pub id: DriveId,
    /// The node that it is on.
    pub node: String,
    /// The path on that node.
    pub path: String,
    /// The device of that node that it is on; drives with the same one fail together. None: it shares it
    /// with no other, or the manager is of an older release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceId>,
    /// The pool that draws from it.
    pub pool: String,
    /// Bytes that can hold data.
    pub capacity_bytes: u64,
    /// Whether it takes part or has failed.
    pub state: DriveState,
    /// Whether its node's target serves it at present.
    pub present: bool,
    /// What its target said of it; none while the target does not answer.
    pub usage: Option<DriveUse>,
    /// Groups that list it, by its role in them.
    pub in_sync_groups: usize,
    /// Groups in which it is being brought up to date.
    pub syncing_groups: usize,
    /// Groups in which it takes no part.
    pub out_groups: usize,
}

/// A drive's part in a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaInfo {
    /// The group.
    pub group: GroupId,
    /// Its role there.
    pub role: Role,
    /// The epoch at which this role began.
    pub since: Epoch,
}

/// What a pool can still promise to new volumes at a number of copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityAtCopies {
    /// Copies of each block.
    pub copies: u8,
    /// The largest volume that is not thin, in bytes, with each copy on another node.
    pub free_bytes: u64,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolInfo {
    /// Its number.
    pub id: PoolId,
    /// Its name.
    pub name: String,
    /// How many drives draw from it.
    pub drives: usize,
    /// Its groups.
    pub groups: usize,
    /// Bytes that its active drives can hold, all copies counted.
    pub raw_bytes: u64,
    /// Bytes that hold data or metadata, as far as targets answer, all copies counted.
    pub used_bytes: u64,
    /// Bytes promised to volumes, all copies counted.
    pub provisioned_bytes: u64,
    /// What can still be promised.
    pub free: Vec<CapacityAtCopies>,
    /// How full it is: as full as the fullest of its active drives.
    #[serde(default)]
    pub level: CapacityLevel,
    /// The fullest of its active drives that answer: writes fail where it is full, whatever is free beside it.
    #[serde(default)]
    pub fullest: Option<DriveFill>,
}

/// How full a drive is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveFill {
    /// The drive.
    pub drive: DriveId,
    /// Its node.
    pub node: String,
    /// Bytes that can hold data.
    pub capacity_bytes: u64,
    /// Bytes that hold data or metadata.
    pub used_bytes: u64,
    /// Whether it takes no more new data: the rest is what the store needs itself.
    pub is_full: bool,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeInfo {
    /// Its number.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// The pool that it draws from.
    pub pool: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// How its data is protected.
    pub protection: Protection,
    /// Members of its groups: of a mirror the copies of each block.
    pub copies: u8,
    /// Bytes that go to one object before the next one's turn.
    pub stripe_unit_bytes: u64,
    /// Objects that a stripe runs over.
    pub width: u32,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Whether it may be larger than what the pool could hold.
    pub thin: bool,
    /// Whether it can be attached.
    pub state: VolumeState,
    /// Its counter of exclusive attaches and preemptions.
    pub generation: Generation,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it can be read and written, and is fully protected.
    pub health: Health,
    /// How many groups hold its objects.
    pub groups: usize,
    /// Sessions that are open.
    pub sessions: usize,
    /// The file system that it holds metadata of, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_system: Option<String>,
}

/// A file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystemInfo {
    /// Its number.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// The pool that it draws from.
    pub pool: String,
    /// How its data and its metadata are protected.
    pub protection: Protection,
    /// Members of its groups: of a mirror the copies of each block.
    pub copies: u8,
    /// Of files for which nobody says otherwise: bytes that go to one object before the next one's turn.
    pub stripe_unit_bytes: u64,
    /// Of files for which nobody says otherwise: objects that a stripe runs over.
    pub width: u32,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Shards of its metadata.
    pub shards: usize,
    /// Whether its directories lie in all of its shards; otherwise all names and attributes are in the first.
    #[serde(default)]
    pub is_spread: bool,
    /// Who serves each of them, in the order of the shards.
    #[serde(default)]
    pub servers: Vec<ShardServing>,
    /// How many groups each of its sets lists, in the order of the sets; new files take the last one.
    pub sets: Vec<usize>,
    /// Whether it can be attached.
    pub state: VolumeState,
    /// Its counter of preemptions and losses.
    pub generation: Generation,
    /// When it was created.
    pub created: Timestamp,
    /// Whether its files and its metadata can be read and written, and are fully protected.
    pub health: Health,
    /// How many groups hold objects of its files.
    pub groups: usize,
    /// Sessions that are open: one for each mount.
    pub sessions: usize,
}

/// Who serves a shard of a file system's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardServing {
    /// The target that is named for it: its node, and which of the node's targets it is if there are several.
    pub server: Option<String>,
    /// Whether that one has taken the shard: otherwise operations wait.
    pub serves: bool,
}

/// A client's attach to a volume or a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// Its number.
    pub id: SessionId,
    /// The volume.
    pub volume: String,
    /// What it may do.
    pub mode: AttachMode,
    /// Who it is.
    pub client: String,
    /// Whether it may still write.
    pub state: SessionState,
    /// The generation at which it attached.
    pub generation: Generation,
    /// How long ago its client was last heard of, in milliseconds; none once it is over.
    pub idle_ms: Option<u64>,
    /// Threads of its client that work on the volume, each with connections of its own. Left out if there is
    /// one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub lanes: usize,
}

fn one() -> usize {
    1
}

fn is_one(count: &usize) -> bool {
    *count == 1
}

/// How well the fabric or a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// Everything is served with every copy.
    Healthy,
    /// Everything is served, but something is missing or behind.
    Degraded,
    /// Some data cannot be read or written at present.
    Unavailable,
}

/// What is being done about a copy that is missing or behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Repair {
    /// The replica is being brought up to date.
    Resync {
        /// Chunks compared so far; none while its target has not said.
        chunks_verified: Option<u64>,
        /// Chunks to compare, as far as known.
        chunks_total: Option<u64>,
        /// Bytes copied so far.
        bytes_copied: u64,
        /// When it will be done at the rate of the last seconds, in milliseconds from now.
        eta_ms: Option<u64>,
    },
    /// Its drive is out, and awaited; after this many milliseconds its copy is rebuilt elsewhere.
    AwaitingReturn {
        /// Milliseconds left.
        rebuild_in_ms: u64,
    },
    /// It is to be rebuilt elsewhere, and no drive can take it.
    NoSpareDrive,
    /// It is the last up-to-date copy, and its node is down: the data comes back with it, and only with it.
    AwaitingLastCopy,
    /// Its node does not answer, and is on its way out of the group.
    Evicting,
}

/// A copy that is missing, behind, or does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DegradedGroup {
    /// The group.
    pub group: GroupId,
    /// Volumes with objects in it.
    pub volumes: Vec<String>,
    /// The drive of the copy.
    pub drive: DriveId,
    /// The node of that drive.
    pub node: String,
    /// The copy's role.
    pub role: Role,
    /// Up-to-date copies that answer.
    pub good_copies: usize,
    /// Copies that there should be.
    pub copies: usize,
    /// What is being done.
    pub repair: Repair,
}

/// The fabric at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FabricStatus {
    /// The fabric.
    pub fabric: FabricId,
    /// The version of its map.
    pub map: MapVersion,
    /// The time of this answer, by the manager's clock.
    pub time: Timestamp,
    /// How well it is.
    pub health: Health,
    /// Why it is not healthy, for people; empty if it is. In `troubles` is more.
    pub reasons: Vec<String>,
    /// All that is not as it should be, the worst first; also what does not touch its health.
    #[serde(default)]
    pub troubles: Vec<Trouble>,
    /// The nodes, by number.
    pub nodes: Vec<NodeInfo>,
    /// The pools with their capacity.
    pub pools: Vec<PoolInfo>,
    /// Copies that are missing, behind or silent.
    pub degraded_groups: Vec<DegradedGroup>,
    /// Drives that are being emptied.
    #[serde(default)]
    pub emptying: Vec<Emptying>,
    /// All groups.
    pub groups: usize,
    /// All volumes, but those that hold metadata of file systems.
    pub volumes: usize,
    /// All file systems. Left out if there are none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub file_systems: usize,
    /// Sessions that are open.
    pub sessions: usize,
    /// When the last resync will be done, in milliseconds from now; none if there is none, or no rate yet.
    pub resync_eta_ms: Option<u64>,
    /// What resyncs have done, as their targets tell: those that run, and the last one of each replica since its
    /// target started.
    #[serde(default)]
    pub resyncs: Vec<ResyncInfo>,
    /// The scrub that runs.
    #[serde(default)]
    pub scrub: Option<ScrubRunInfo>,
}

/// How far a drive has been emptied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emptying {
    /// The drive.
    pub drive: DriveId,
    /// Its node.
    pub node: String,
    /// Copies that it still holds.
    pub copies_left: usize,
    /// How many of them are on their way to another drive now.
    pub copies_passing: usize,
    /// Bytes copied for those that are on their way.
    pub bytes_copied: u64,
}

/// What the resync of a replica has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResyncInfo {
    /// The group.
    pub group: GroupId,
    /// The replica's drive.
    pub drive: DriveId,
    /// Whether everything is verified.
    pub done: bool,
    /// Bytes copied from other replicas.
    pub bytes_copied: u64,
    /// Bytes that the chunks compared so far hold: what a copy of everything would have moved.
    pub bytes_held: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventInfo {
    /// Its number; rises by one with each event of the fabric, across restarts of the manager. The order of events
    /// is that of their numbers, whatever the clock says.
    pub seq: u64,
    /// When, by the manager's clock.
    pub time: Timestamp,
    /// By how much its time lies before that of the event before it, in milliseconds: the clock was set back.
    #[serde(default)]
    pub clock_back_ms: Option<u64>,
    /// The map's version after it.
    pub map: MapVersion,
    /// Who did it: `manager` of its own accord, `target NAME` or `client NAME` that asked for it, or a person's tool
    /// as `USER@HOST`, as it calls itself.
    #[serde(default)]
    pub who: String,
    /// What happened, for programs: `join-node`, `evict`, `data-unavailable`, ...
    pub what: String,
    /// What happened and why, for people.
    pub why: String,
    /// Volumes that it is about, some of them where there are many.
    #[serde(default)]
    pub volumes: Vec<String>,
    /// Nodes that it is about, likewise.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Drives that it is about, likewise.
    #[serde(default)]
    pub drives: Vec<DriveId>,
}

/// The settings of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsInfo {
    /// How long a replica may be out before its data is rebuilt elsewhere, in milliseconds.
    pub rebuild_after_ms: u64,
    /// How long a target may serve on one grant, in milliseconds; fixed when the fabric is made.
    pub lease_ms: u32,
    /// How long a client may be silent before its sessions are over, in milliseconds; fixed as well.
    pub session_ms: u32,
    /// At which part of its capacity a pool's fullest drive is worth a warning, and is critical.
    #[serde(default)]
    pub capacity: CapacityLevels,
}

impl SettingsInfo {
    /// As the map has them.
    pub fn of(map: &FabricMap) -> SettingsInfo {
        SettingsInfo {
            rebuild_after_ms: map.durations.rebuild_after_ms,
            lease_ms: map.durations.lease_ms,
            session_ms: map.durations.session_ms,
            capacity: map.capacity,
        }
    }
}

fn is_none(count: &usize) -> bool {
    *count == 0
}
