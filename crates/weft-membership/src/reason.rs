//! What a change did: for the log, the audit and the caller. It carries facts, never decisions.

use serde::{Deserialize, Serialize};
use std::fmt;
use weft_types::{
    DeviceId, DriveId, Epoch, Generation, GroupId, NodeId, PoolId, SessionId, TargetId, VolumeId,
};

/// What a change did. `Display` is the text for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the fields are what the text of each variant names")]
pub enum Reason {
    /// A node joined under this number.
    NodeJoined { node: NodeId, name: String },
    /// A node was forgotten.
    NodeRemoved { node: NodeId, name: String },
    /// A further target of a node joined.
    TargetAdded { node: NodeId, target: TargetId, index: u32 },
    /// A target listens elsewhere.
    TargetMoved { target: TargetId, from: String, to: String },
    /// A target was forgotten.
    TargetRemoved { node: NodeId, target: TargetId },
    /// Another target of its node serves a drive.
    DriveAssigned { drive: DriveId, from: TargetId, to: TargetId },
    /// A pool was created.
    PoolCreated { pool: PoolId, name: String },
    /// A drive joined.
    DriveAdded { drive: DriveId, node: NodeId, pool: PoolId },
    /// The target of a drive has said which device it is on.
    DeviceFound { drive: DriveId, device: DeviceId },
    /// A drive is being emptied, or no longer.
    DriveDraining { drive: DriveId, on: bool },
    /// A drive that was marked as failed takes part again.
    DriveRestored { drive: DriveId },
    /// A drive was marked as failed; the others of its device are being emptied.
    DriveFailed { drive: DriveId, cause: String, emptied: Vec<DriveId> },
    /// A drive was forgotten.
    DriveRemoved { drive: DriveId },
    /// Replicas left their groups; the skipped groups keep theirs.
    Evicted { drives: Vec<DriveId>, groups: Vec<GroupId>, skipped: Vec<Skipped> },
    /// Replicas left the read sets of these groups; the skipped groups keep theirs.
    Demoted { drives: Vec<DriveId>, groups: Vec<GroupId>, skipped: Vec<Skipped> },
    /// Replicas that served no reads left these groups.
    Departed { drives: Vec<DriveId>, groups: Vec<GroupId> },
    /// Replicas came back as syncing.
    Rejoined { drives: Vec<DriveId>, groups: Vec<GroupId> },
    /// A replica became in-sync.
    Promoted { group: GroupId, drive: DriveId, stint: Epoch },
    /// A lost copy is rebuilt on another drive.
    Rebuilding { group: GroupId, from: DriveId, to: DriveId },
    /// A drive took over the slots of another one; the skipped groups keep theirs.
    Replaced { from: DriveId, to: DriveId, groups: Vec<GroupId>, skipped: Vec<Skipped> },
    /// A member begins to pass to another drive.
    RelocationBegun { group: GroupId, from: DriveId, to: DriveId },
    /// The new drive is in-sync, the old one serves no reads any more.
    HandedOver { group: GroupId, from: DriveId, to: DriveId },
    /// The old drive has left the group.
    Relocated { group: GroupId, from: DriveId, to: DriveId },
    /// The new drive has left the group again.
    RelocationCancelled { group: GroupId, from: DriveId, to: DriveId },
    /// A lost member has left the group, and the drive that was to leave stays in its place.
    MemberKept { group: GroupId, lost: DriveId, stays: DriveId },
    /// Drives were declared destroyed; some groups go on with an older copy, some with nothing, and these sessions
    /// were ended.
    LossAccepted {
        destroyed: Vec<DriveId>,
        older: Vec<GroupId>,
        emptied: Vec<GroupId>,
        ended: Vec<SessionId>,
    },
    /// A volume was created, with so many new groups.
    VolumeCreated { volume: VolumeId, name: String, new_groups: usize },
    /// A file system was created, with so many shards and new groups.
    FileSystemCreated { file_system: VolumeId, name: String, shards: usize, new_groups: usize },
    /// A file system got a further set: how many sets it has, how many groups the new one has, and how many of
    /// these were made for it.
    FileSystemGrown { file_system: VolumeId, sets: usize, groups: usize, new_groups: usize },
    /// Shards of a file system are served beside these targets from now on; the sessions of those before
    /// were ended.
    ServersNamed { file_system: VolumeId, servers: Vec<(usize, TargetId)>, ended: Vec<SessionId> },
    /// A volume grew.
    VolumeGrown { volume: VolumeId, from_blocks: u64, to_blocks: u64 },
    /// A volume is gone for clients; these sessions were ended.
    VolumeDeleting { volume: VolumeId, generation: Generation, ended: Vec<SessionId> },
    /// A volume was forgotten.
    VolumeDeleted { volume: VolumeId, name: String },
    /// A client attached; these sessions were ended for it.
    SessionOpened { session: SessionId, volume: VolumeId, generation: Generation, ended: Vec<SessionId> },
    /// A session is over.
    SessionOver { session: SessionId, volume: VolumeId },
    /// A session was forgotten.
    SessionSwept { session: SessionId, volume: VolumeId },
    /// Groups have a higher floor; those that only begin a new epoch are not named.
    FloorsRaised { groups: Vec<GroupId> },
    /// Groups are to be scrubbed.
    ScrubWanted { groups: usize },
    /// Scrubs were stopped.
    ScrubStopped { wanted: usize },
    /// Groups are scrubbed so often from now on.
    ScrubScheduled { every_ms: Option<u64> },
    /// Settings changed: those that are named.
    SettingsChanged { rebuild_after_ms: Option<u64>, capacity_percent: Option<(u8, u8)> },
    /// Groups were scrubbed.
    Scrubbed { groups: usize, chunks: u64, healed: u64, lost: u64, disagreements: u64 },
}

impl Reason {
    /// The text of what is about a node, its targets, and its drives there.
    fn of_node(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NodeJoined { node, name } => write!(f, "node '{name}' joined as {node}"),
            Reason::NodeRemoved { node, name } => write!(f, "node '{name}' ({node}) removed"),
            Reason::DriveAssigned { drive, from, to } => {
                write!(f, "drive {} passed from target {from} to target {to}", drive.short())
            }
            Reason::TargetAdded { node, target, index } => {
                write!(f, "target {index} of node {node} joined as {target}")
            }
            Reason::TargetMoved { target, from, to } => {
                write!(f, "target {target} moved from {from} to {to}")
            }
            Reason::DriveDraining { drive, on } => {
                let how = if *on { "" } else { "no longer " };
                write!(f, "drive {} is {how}being emptied", drive.short())
            }
            Reason::TargetRemoved { node, target } => write!(f, "target {target} of node {node} removed"),
            _ => Ok(()),
        }
    }
}

impl Reason {
    /// What was created, or has grown.
    fn fmt_created(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::VolumeCreated { volume, name, new_groups } => {
                write!(f, "volume '{name}' created as {volume}, with {new_groups} new groups")
            }
            Reason::FileSystemCreated { file_system, name, shards, new_groups } => {
                write!(f, "file system '{name}' created as {file_system}, with {shards} shards ")?;
                write!(f, "and {new_groups} new groups")
            }
            Reason::FileSystemGrown { file_system, sets, groups, new_groups } => {
                write!(
                    f,
                    "file system {file_system} has a set {sets} of {groups} groups, {new_groups} of them new"
                )
            }
            Reason::VolumeGrown { volume, from_blocks, to_blocks } => {
                write!(f, "volume {volume} grew from {from_blocks} to {to_blocks} blocks")
            }
            other => unreachable!("{other:?} creates nothing"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NodeJoined { .. }
            | Reason::NodeRemoved { .. }
            | Reason::TargetAdded { .. }
            | Reason::TargetMoved { .. }
            | Reason::TargetRemoved { .. }
            | Reason::DriveAssigned { .. }
            | Reason::DriveDraining { .. } => self.of_node(f),
            Reason::PoolCreated { pool, name } => write!(f, "pool '{name}' created as {pool}"),
            Reason::DriveAdded { drive, node, pool } => {
                write!(f, "drive {} of node {node} added to pool {pool}", drive.short())
            }
            Reason::DeviceFound { drive, device } => write!(f, "drive {} on device {device}", drive.short()),
            Reason::DriveRestored { drive } => write!(f, "drive {} takes part again", drive.short()),
            Reason::DriveFailed { drive, cause, emptied } => failed(f, *drive, cause, emptied),
            Reason::DriveRemoved { drive } => write!(f, "drive {} removed", drive.short()),
            Reason::Evicted { drives, groups, skipped } => {
                write!(f, "evicted {} from {} groups", Shorts(drives), groups.len())?;
                kept(f, skipped)
            }
            Reason::Demoted { drives, groups, skipped } => {
                write!(
                    f,
                    "{} to leave {} groups because clients cannot reach it: serves no reads there any more",
                    Shorts(drives),
                    groups.len()
                )?;
                kept(f, skipped)
            }
            Reason::Departed { drives, groups } => {
                write!(f, "{} out of {} groups because clients cannot reach it", Shorts(drives), groups.len())
            }
            Reason::Rejoined { drives, groups } => {
                write!(f, "{} back as syncing in {} groups", Shorts(drives), groups.len())
            }
            Reason::Promoted { group, drive, stint } => {
                write!(f, "drive {} in-sync in {group}, all verified since {stint}", drive.short())
            }
            Reason::Rebuilding { group, from, to } => {
                write!(f, "{group}: copy of drive {} rebuilt on {}", from.short(), to.short())
            }
            Reason::Replaced { from, to, groups, skipped } => {
                write!(f, "drive {} replaced by {} in {} groups", from.short(), to.short(), groups.len())?;
                kept(f, skipped)
            }
            Reason::RelocationBegun { group, from, to } => {
                write!(f, "{group}: drive {} is to take over from {}", to.short(), from.short())
            }
            Reason::HandedOver { group, from, to } => {
                write!(f, "{group}: drive {} has taken over from {}", to.short(), from.short())
            }
            Reason::Relocated { group, from, to } => {
                write!(f, "{group}: drive {} has left, {} has its place", from.short(), to.short())
            }
            Reason::RelocationCancelled { group, from, to } => {
                write!(f, "{group}: drive {} no longer takes over from {}", to.short(), from.short())
            }
            Reason::MemberKept { group, lost, stays } => {
                write!(
                    f,
                    "{group}: drive {} stays, in the place of {}, which is lost",
                    stays.short(),
                    lost.short()
                )
            }
            Reason::LossAccepted { destroyed, older, emptied, ended } => write!(
                f,
                "{} declared destroyed: {} groups go on with an older copy, {} with nothing, {} sessions ended",
                Shorts(destroyed),
                older.len(),
                emptied.len(),
                ended.len()
            ),
            Reason::VolumeCreated { .. }
            | Reason::FileSystemCreated { .. }
            | Reason::FileSystemGrown { .. }
            | Reason::VolumeGrown { .. } => self.fmt_created(f),
            Reason::ServersNamed { file_system: id, servers, ended } => served(f, *id, servers, ended),
            Reason::VolumeDeleting { volume, generation, ended } => {
                write!(f, "volume {volume} is being deleted at {generation}, {} sessions ended", ended.len())
            }
            Reason::VolumeDeleted { volume, name } => write!(f, "volume '{name}' ({volume}) deleted"),
            Reason::SessionOpened { session, volume, generation, ended } => {
                write!(f, "session {session} opened on {volume} at {generation}, {} preempted", ended.len())
            }
            Reason::SessionOver { session, volume } => write!(f, "session {session} on {volume} is over"),
            Reason::SessionSwept { session, volume } => write!(f, "session {session} on {volume} swept"),
            Reason::FloorsRaised { groups } => write!(f, "{} groups have a higher floor", groups.len()),
            Reason::ScrubWanted { groups } => write!(f, "{groups} groups are to be scrubbed"),
            Reason::ScrubStopped { wanted } => {
                write!(f, "scrub stopped, {wanted} groups that were to be scrubbed are not")
            }
            Reason::ScrubScheduled { every_ms: Some(ms) } => {
                write!(f, "every group is scrubbed every {} s from now on", ms / 1000)
            }
            Reason::ScrubScheduled { every_ms: None } => {
                write!(f, "groups are scrubbed only when somebody asks from now on")
            }
            Reason::SettingsChanged { rebuild_after_ms, capacity_percent } => {
                f.write_str(&settings_in_words(*rebuild_after_ms, *capacity_percent))
            }
            Reason::Scrubbed { groups, chunks, healed, lost, disagreements } => write!(
                f,
                "{groups} groups scrubbed: {chunks} chunks read, {healed} blocks healed, {lost} lost, \
                 {disagreements} in disagreement"
            ),
        }
    }
}

fn served(
    f: &mut fmt::Formatter<'_>,
    file_system: VolumeId,
    servers: &[(usize, TargetId)],
    ended: &[SessionId],
) -> fmt::Result {
    let name = |(shard, target): &(usize, TargetId)| format!("shard {shard} beside target {target}");
    let names: Vec<String> = servers.iter().map(name).collect();
    write!(f, "file system {file_system}: {}, {} sessions ended", names.join(", "), ended.len())
}

fn settings_in_words(rebuild_after_ms: Option<u64>, capacity_percent: Option<(u8, u8)>) -> String {
    let rebuild = rebuild_after_ms
        .map(|ms| format!("copies that are out for {ms} ms are rebuilt elsewhere from now on"));
    let capacity = capacity_percent.map(|(warning, critical)| {
        format!("pools are told to be filling up at {warning} %, critical at {critical} %")
    });
    rebuild.into_iter().chain(capacity).collect::<Vec<_>>().join("; ")
}

/// A group that a change had to leave as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The group.
    pub group: GroupId,
    /// Why it was left.
    pub cause: SkipCause,
}

/// Why a change had to leave a group as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SkipCause {
    /// No in-sync member would remain.
    LastInSync,
    /// No remaining in-sync member has acknowledged the intent in the group's present epoch.
    NotAcknowledged,
    /// The slot is not out.
    NotOut,
    /// The new drive already has a slot in the group.
    AlreadyMember,
    /// Another copy is on the new drive's node.
    SharedNode,
    /// No in-sync member could be copied from.
    NoSource,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = match self.cause {
            SkipCause::LastInSync => "no other in-sync member",
            SkipCause::NotAcknowledged => "no in-sync member acknowledged the intent",
            SkipCause::NotOut => "the slot is not out",
            SkipCause::AlreadyMember => "the drive is a member already",
            SkipCause::SharedNode => "another copy is on that node",
            SkipCause::NoSource => "no in-sync member to copy from",
        };
        write!(f, "{} ({cause})", self.group)
    }
}

/// Drives by their short names.
struct Shorts<'a>(&'a [DriveId]);

impl fmt::Display for Shorts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(|d| d.short()).collect();
        write!(f, "drive {}", names.join(", "))
    }
}

/// A drive that has failed, and the other drives of its device.
fn failed(f: &mut fmt::Formatter<'_>, drive: DriveId, cause: &str, emptied: &[DriveId]) -> fmt::Result {
    write!(f, "drive {} failed: {cause}", drive.short())?;
    match emptied.is_empty() {
        true => Ok(()),
        false => write!(f, "; being emptied, on the same device: {}", Shorts(emptied)),
    }
}

fn kept(f: &mut fmt::Formatter<'_>, skipped: &[Skipped]) -> fmt::Result {
    if skipped.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = skipped.iter().map(|s| s.to_string()).collect();
    write!(f, "; left as they were: {}", names.join(", "))
}
