//! Why a change does not fit a map: what was found, what was expected, and what to do.
//!
//! It owns the texts. A refusal never means that something is broken, and the map is unchanged by it.

use crate::size::Size;
use crate::{NameFault, REBUILD_AFTER_MS, Skipped};
use std::fmt;
use weft_layout::LayoutError;
use weft_types::limits::{COPIES_MAX, SESSIONS_MAX, SETS_MAX, SHARDS_MAX, TARGETS_PER_NODE_MAX};
use weft_types::{
    AttachMode, BlockCount, DeviceId, DriveId, Epoch, GroupId, NodeId, PoolId, Protection, Role, SessionId,
    TargetId, Volume, VolumeId,
};

/// The kinds of things in a map, for texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A machine.
    Node,
    /// What serves some of a machine's drives.
    Target,
    /// A drive.
    Drive,
    /// A set of drives.
    Pool,
    /// A set of drives with the same data.
    Group,
    /// A volume.
    Volume,
    /// A file system.
    FileSystem,
    /// A client's attach.
    Session,
}

impl Kind {
    /// What an entry of the table of volumes is.
    pub fn of(volume: &Volume) -> Kind {
        if volume.is_file_system() { Kind::FileSystem } else { Kind::Volume }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Node => "node",
            Kind::Target => "target",
            Kind::Drive => "drive",
            Kind::Pool => "pool",
            Kind::Group => "group",
            Kind::Volume => "volume",
            Kind::FileSystem => "file system",
            Kind::Session => "session",
        })
    }
}

/// Why a change was refused. `Display` says what was found and expected, [`Refusal::hint`] what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the text of each variant names")]
pub enum Refusal {
    /// The thing is not in the map.
    #[error("there is no {kind} {id} in the fabric")]
    Unknown { kind: Kind, id: String },
    /// The name breaks the rule for names.
    #[error("'{}' cannot be the name of a {kind}", shown(name))]
    Name {
        kind: Kind,
        name: String,
        #[source]
        fault: NameFault,
    },
    /// Another one has this name.
    #[error("there is already a {kind} named '{name}'")]
    NameTaken { kind: Kind, name: String },
    /// The map has no number left for another one of this kind.
    #[error("the numbers for another {kind} have run out")]
    NumbersUsedUp { kind: Kind },

    /// The address is no `host:port`.
    #[error("'{}' is no address: expected host:port with a port from 1 to 65535", shown(addr))]
    Address { addr: String },
    /// Another node has this address.
    #[error("node '{node}' already listens at {addr}")]
    AddressTaken { addr: String, node: String },
    /// The target has this address already.
    #[error("target {target} is already at {addr}")]
    SameAddress { target: TargetId, addr: String },
    /// The node has a target with this index, or may have none.
    #[error("node {node} cannot have another target {index}")]
    TargetIndex { node: NodeId, index: u32 },
    /// The target has drives, or is its node's first.
    #[error("target {target} serves {drives} drives, or is the first of its node")]
    TargetInUse { target: TargetId, drives: usize },
    /// The target is of another node than the drive, or serves it already.
    #[error("drive {drive} is served by target {listed}, and cannot pass to {target}")]
    NotAssigned { drive: DriveId, target: TargetId, listed: TargetId },

    /// A drive with this identity is listed.
    #[error(
        "drive {drive} is already in the fabric, as {listed_path} on node {listed_node}; \
         found again as {found_path} on node {found_node}"
    )]
    DuplicateDrive {
        drive: DriveId,
        listed_node: NodeId,
        listed_path: String,
        found_node: NodeId,
        found_path: String,
    },
    /// The drive can hold nothing.
    #[error("drive {drive} has no room for data")]
    EmptyDrive { drive: DriveId },
    /// The map has this device for the drive already.
    #[error("drive {drive} is on device {device} already")]
    SameDevice { drive: DriveId, device: DeviceId },
    /// The drive is already failed.
    #[error("drive {drive} is already marked as failed")]
    AlreadyFailed { drive: DriveId },
    /// The drive is failed, an active one is needed.
    #[error("drive {drive} is marked as failed; an active drive is needed")]
    DriveFailed { drive: DriveId },
    /// The drive was declared destroyed.
    #[error("drive {drive} was declared destroyed; what it holds counts for nothing any more")]
    DriveDestroyed { drive: DriveId },
    /// A group has an in-sync member that was not declared destroyed.
    #[error(
        "group {group} is not lost: drive {drive} holds an up-to-date copy and was not declared destroyed"
    )]
    NotLost { group: GroupId, drive: DriveId },
    /// Every member of the group was declared destroyed, or this one was; or none was, and it should go on empty.
    #[error("group {group} cannot go on with drive {drive}: {why}")]
    NoSurvivor { group: GroupId, drive: DriveId, why: &'static str },
    /// Nothing says what the group is to go on with.
    #[error("group {group} would lose its last up-to-date copy, and is not named")]
    LossNotNamed { group: GroupId },
    /// No group is named.
    #[error("no group has lost its last up-to-date copy")]
    NothingLost,
    /// The drive was taken out for good.
    #[error("drive {drive} was removed from the fabric")]
    DriveRemoved { drive: DriveId },
    /// The drive has not failed.
    #[error("drive {drive} is not marked as failed")]
    NotFailed { drive: DriveId },
    /// The drive is being emptied.
    #[error("drive {drive} is being emptied")]
    DriveDraining { drive: DriveId },
    /// The drive is not being emptied.
    #[error("drive {drive} is not being emptied")]
    NotDraining { drive: DriveId },
    /// The node has drives.
    #[error("node {node} still has {drives} drives in the fabric")]
    NodeInUse { node: NodeId, drives: usize },
    /// A member of the group is passing to another drive.
    #[error("in group {group}, drive {from} is passing to drive {to}")]
    BeingRelocated { group: GroupId, from: DriveId, to: DriveId },
    /// No member of the group is passing to another drive.
    #[error("in group {group}, no drive is passing to another one")]
    NotBeingRelocated { group: GroupId },
    /// Groups list the drive.
    #[error("drive {drive} is still listed by {groups} groups, the first is {first}")]
    DriveInUse { drive: DriveId, groups: usize, first: GroupId },
    /// The drive belongs to another pool.
    #[error("drive {drive} is in pool {found}, group {group} draws from pool {expected}")]
    WrongPool { drive: DriveId, group: GroupId, found: PoolId, expected: PoolId },

    /// Nothing would change by the eviction.
    #[error("nothing to evict for {} drives{}", drives, list(skipped))]
    NothingToEvict { drives: usize, skipped: Vec<Skipped> },
    /// None of the drives has an out slot.
    #[error("none of the {drives} drives is out of a group that has an in-sync member")]
    NothingToRejoin { drives: usize },
    /// The drive has no slot in the group.
    #[error("drive {drive} is not a member of group {group}")]
    NotMember { group: GroupId, drive: DriveId },
    /// The replica has another role than needed.
    #[error("drive {drive} in group {group} is {found}, expected {expected}")]
    WrongRole { group: GroupId, drive: DriveId, found: Role, expected: Role },
    /// The group has begun another epoch since its members closed below a floor, or has a higher one.
    #[error("group {group} is at {found}: its members closed below a floor in {epoch}")]
    FloorOutdated { group: GroupId, epoch: Epoch, found: Epoch },
    /// The word is about an earlier stint.
    #[error(
        "drive {drive} in group {group} is in the stint of {found}, the report was about that of {reported}"
    )]
    StaleStint { group: GroupId, drive: DriveId, reported: Epoch, found: Epoch },
    /// No in-sync member could be copied from.
    #[error("group {group} has no in-sync member to copy from")]
    NoSource { group: GroupId },
    /// The drive already has a slot in the group.
    #[error("drive {drive} is already a member of group {group}")]
    AlreadyMember { group: GroupId, drive: DriveId },
    /// Another copy is on the same node.
    #[error("drive {drive} is on node {node}, which already holds a copy of group {group} on drive {other}")]
    SharedNode { group: GroupId, drive: DriveId, node: NodeId, other: DriveId },
    /// Another copy is on the same device.
    #[error("drive {drive} is on one device with drive {other}, which already holds a copy of group {group}")]
    SharedDevice { group: GroupId, drive: DriveId, other: DriveId },
    /// The drive to replace has no out slot.
    #[error("drive {drive} is not out of any group: nothing to replace")]
    NothingToReplace { drive: DriveId },

    /// The size is no positive multiple of a block.
    #[error("a size of {bytes} bytes: expected a multiple of 4096 above 0")]
    Size { bytes: u64 },
    /// The size is above every limit.
    #[error("a size of {} is more than any volume can have, {}", Size(*size), Size(*limit))]
    TooLarge { size: BlockCount, limit: BlockCount },
    /// The protection is not possible.
    #[error("{protection}: expected 1 to {COPIES_MAX} copies")]
    Protection { protection: Protection },
    /// The striping or the placement is not possible.
    #[error("the pool cannot hold this layout")]
    Layout(#[source] LayoutError),
    /// The stripe is wider than there are groups.
    #[error("a stripe of width {width} needs as many groups, pool {pool} has {groups} with {protection}")]
    WiderThanPool { pool: PoolId, width: u32, groups: usize, protection: Protection },
    /// The pool has not enough unpromised space.
    #[error(
        "pool {pool} can promise {} more at {protection}, {} are needed",
        Size(*free), Size(*needed)
    )]
    NoSpace { pool: PoolId, protection: Protection, needed: BlockCount, free: BlockCount },
    /// The groups in the change are not those that the map can take.
    #[error("the change was planned for another map: {found}")]
    PlannedElsewhere { found: String },
    /// The volume would become smaller.
    #[error("volume '{volume}' has {}, it cannot shrink to {}", Size(*from), Size(*to))]
    Shrink { volume: String, from: BlockCount, to: BlockCount },
    /// The volume has this size.
    #[error("volume '{volume}' already has {}", Size(*size))]
    SameSize { volume: String, size: BlockCount },
    /// No node can be back so soon, or it would wait for ever.
    #[error(
        "copies cannot be rebuilt elsewhere after {ms} ms: expected {} (a second) to {} (a year)",
        REBUILD_AFTER_MS.start(),
        REBUILD_AFTER_MS.end()
    )]
    RebuildAfter { ms: u64 },
    /// The levels are not in order, or out of range.
    #[error("a warning at {warning} % and critical at {critical} %")]
    CapacityLevels { warning: u8, critical: u8 },
    /// Nothing would change.
    #[error("the settings are so already")]
    SameSettings,
    /// The number of shards is out of range.
    #[error("{shards} shards: a file system has 1 to {SHARDS_MAX}")]
    Shards { shards: usize },
    /// The file system has no shard of this number.
    #[error("there is no shard {shard}: the file system has {shards}")]
    NoSuchShard { shard: usize, shards: usize },
    /// The shard has this server.
    #[error("shard {shard} is served beside target {server} already")]
    SameServer { shard: usize, server: TargetId },
    /// The volume holds metadata of a file system, and is changed together with it only.
    #[error("volume '{volume}' is a system volume of file system '{file_system}'")]
    SystemVolume { volume: String, file_system: String },
    /// The entry is a file system, which has no size.
    #[error("'{name}' is a file system: it has no size, and takes what is free in its pool")]
    HasNoSize { name: String },
    /// The newest set of the file system has all groups that its pool offers.
    #[error("file system '{name}' uses all drives of its pool already, as far as they can take new copies")]
    NothingToAdd { name: String },
    /// The file system has as many sets as one can have.
    #[error("file system '{name}' has grown {} times already", SETS_MAX - 1)]
    TooManySets { name: String },
    /// A file system is mounted beside others.
    #[error("file system '{name}' cannot be attached exclusively")]
    NotExclusive { name: String },
    /// The volume is being deleted.
    #[error("{kind} '{volume}' is being deleted")]
    Deleting { kind: Kind, volume: String },
    /// The volume is not being deleted.
    #[error("{kind} '{volume}' is not being deleted")]
    NotDeleting { kind: Kind, volume: String },
    /// Sessions stand in the way.
    #[error(
        "{kind} '{volume}' is in use by {}, the first is session {first} of client '{client}' ({mode})",
        clients(*sessions)
    )]
    Attached {
        kind: Kind,
        volume: String,
        sessions: usize,
        first: SessionId,
        client: String,
        mode: AttachMode,
    },
    /// Sessions have not been swept.
    #[error(
        "volume {volume} has {sessions} sessions that are not yet swept everywhere, the first is {first}"
    )]
    Unswept { volume: VolumeId, sessions: usize, first: SessionId },

    /// Every session slot is taken.
    #[error("{SESSIONS_MAX} sessions are open or not yet swept: there is no slot for another one")]
    TooManySessions,
    /// The client's name is too long.
    #[error("a client's name of {bytes} bytes: expected at most {limit}")]
    ClientName { bytes: usize, limit: usize },
    /// No lane, or more than a session may have.
    #[error("{wanted} lanes of an attach: expected 1 to {limit}")]
    Lanes { wanted: u32, limit: usize },
    /// The session is over.
    #[error("session {session} is already over")]
    AlreadyOver { session: SessionId },
    /// The session is open.
    #[error("session {session} is still open: only one that is over can have been swept")]
    StillOpen { session: SessionId },
}

impl Refusal {
    /// What to do about it, where there is something that people can do.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Refusal::Name { .. } => {
                "use 1 to 63 of A-Z a-z 0-9 . _ -, beginning with a letter or digit".into()
            }
            Refusal::NameTaken { kind, .. } => format!("choose another name for the {kind}"),
            Refusal::Address { .. } => "for example 10.0.0.7:4420 or [fd00::7]:4420".into(),
            Refusal::AddressTaken { .. } => "every target needs an address of its own".into(),
            Refusal::DuplicateDrive { .. } => {
                "one of the two is a copy of the other: unplug it, or format it anew".into()
            }
            Refusal::RebuildAfter { .. } => {
                "a node that only reboots should be back by then: minutes, usually".into()
            }
            Refusal::CapacityLevels { .. } => {
                "the warning comes first: 1 to 98 %, and critical above it, at most 99 %".into()
            }
            Refusal::DriveInUse { .. } => {
                "empty it first with `weft drive evacuate`, or wait until its groups are rebuilt elsewhere"
                    .into()
            }
            Refusal::DriveRemoved { .. } | Refusal::DriveDestroyed { .. } => {
                "`weft drive format --force` makes it a new drive, with nothing on it".into()
            }
            Refusal::DriveDraining { .. } => "`weft drive evacuate --cancel` lets it take part again".into(),
            Refusal::NotDraining { .. } | Refusal::NotFailed { .. } => {
                "see `weft drive list` for what is going on".into()
            }
            Refusal::TargetIndex { .. } => format!("a node has {TARGETS_PER_NODE_MAX} targets at most"),
            Refusal::TargetInUse { .. } => "remove the node instead, with `weft node remove`".into(),
            Refusal::NotAssigned { .. } => "a drive passes only between targets of one node".into(),
            Refusal::NodeInUse { .. } => "empty it first with `weft node evacuate`".into(),
            Refusal::BeingRelocated { from, .. } => hint_of_relocated(*from),
            Refusal::DriveFailed { .. } => {
                "if it is sound after all, restart its target, then `weft drive restore`".into()
            }
            Refusal::NothingToEvict { skipped, .. } if !skipped.is_empty() => {
                "the last in-sync copy of a group always stays listed: bring one of its drives back".into()
            }
            Refusal::NoSource { .. } => "bring one of the group's in-sync drives back".into(),
            Refusal::SharedNode { .. } => {
                "choose a drive of another node, or accept copies on one node with --failure-domain device"
                    .into()
            }
            Refusal::SharedDevice { .. } => "choose a drive on another device".into(),
            Refusal::WrongRole { expected: Role::Out, .. } | Refusal::NothingToReplace { .. } => {
                "a drive is replaced only after it was evicted".into()
            }
            Refusal::Size { bytes } => match bytes.div_ceil(4096).max(1).checked_mul(4096) {
                Some(next) => format!("the next size is {next} bytes"),
                None => "choose a smaller size".into(),
            },
            Refusal::Layout(LayoutError::TooFewNodes { .. }) => {
                "add nodes, ask for fewer copies, or accept copies on one node with --failure-domain device"
                    .into()
            }
            Refusal::Layout(LayoutError::TooFewDrives { .. } | LayoutError::TooFewDevices { .. }) => {
                "add drives, or ask for fewer copies".into()
            }
            Refusal::WiderThanPool { groups, .. } => format!("ask for a width of at most {groups}"),
            Refusal::NoSpace { .. } => {
                "ask for less, add drives, or pass --thin to promise more than there is".into()
            }
            Refusal::PlannedElsewhere { .. } => "plan it again for the newest map".into(),
            Refusal::Shrink { .. } => "create a smaller volume and copy the data".into(),
            Refusal::Attached { .. } => HINT_ATTACHED.into(),
            Refusal::TooManySessions => "detach clients that are not needed".into(),
            _ => return self.hint_about_files(),
        })
    }

    /// What to do about a file system or its system volumes.
    fn hint_about_files(&self) -> Option<String> {
        Some(match self {
            Refusal::Shards { .. } => {
                "each shard can be served by another node: 16 are enough for most".into()
            }
            Refusal::SystemVolume { file_system, .. } => {
                format!("it goes with its file system: `weft fs show {file_system}`")
            }
            Refusal::HasNoSize { .. } => "add drives to the pool to make room".into(),
            Refusal::NothingToAdd { .. } => "add drives first: `weft node run --drive`".into(),
            Refusal::TooManySets { .. } => {
                "empty full drives onto those that were added: `weft drive evacuate`".into()
            }
            Refusal::NotExclusive { .. } => "attach it shared, or read-only".into(),
            _ => return None,
        })
    }
}

/// What to do about clients that are in the way.
const HINT_ATTACHED: &str = "end the clients first (`weft session list` names them), or take it from them with \
                             --force: they lose access at once";

/// A number of clients, in words.
fn clients(n: usize) -> String {
    if n == 1 { "1 client".into() } else { format!("{n} clients") }
}

/// Hostile text in a message: escaped, and cut to a length that people read.
fn shown(text: &str) -> String {
    const SHOWN_CHARS: usize = 80;
    let mut shown: String = text.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().count() > SHOWN_CHARS {
        shown.push_str("...");
    }
    shown
}

/// The groups that were skipped, the first few by name.
fn list(skipped: &[Skipped]) -> String {
    const LISTED: usize = 3;
    if skipped.is_empty() {
        return ": no in-sync member acknowledged the intent for a group that they are written in".into();
    }
    let first: Vec<String> = skipped.iter().take(LISTED).map(|s| s.to_string()).collect();
    let more = if skipped.len() > LISTED { ", ..." } else { "" };
    format!(": {}{more}", first.join(", "))
}

/// What to do about a drive that is passing to another one.
fn hint_of_relocated(from: DriveId) -> String {
    let from = from.short();
    format!(
        "wait until it is done: see `weft status`; if the other drive is gone, call it off with \
         `weft drive evacuate {from} --cancel`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SkipCause;

    #[test]
    fn a_refusal_says_what_was_found_and_what_to_do() {
        let refusal = Refusal::NoSpace {
            pool: PoolId(1),
            protection: Protection::mirror(2),
            needed: BlockCount(1 << 20),
            free: BlockCount(256),
        };
        assert_eq!(refusal.to_string(), "pool p1 can promise 1 MiB more at 2 copies, 4 GiB are needed");
        assert!(refusal.hint().expect("a hint").contains("--thin"));
    }

    #[test]
    fn hostile_names_are_cut_and_escaped() {
        let refusal = Refusal::NameTaken { kind: Kind::Volume, name: "v".into() };
        assert_eq!(refusal.to_string(), "there is already a volume named 'v'");
        let text = Refusal::Name {
            kind: Kind::Volume,
            name: "\x1b[2J".repeat(100),
            fault: NameFault::Character { found: '\x1b' },
        }
        .to_string();
        assert!(!text.contains('\x1b') && text.len() < 400, "{text}");
    }

    #[test]
    fn the_size_hint_never_overflows() {
        assert_eq!(Refusal::Size { bytes: 1 }.hint().as_deref(), Some("the next size is 4096 bytes"));
        assert_eq!(Refusal::Size { bytes: u64::MAX }.hint().as_deref(), Some("choose a smaller size"));
    }

    #[test]
    fn skipped_groups_are_named() {
        let skipped = vec![Skipped { group: GroupId(4), cause: SkipCause::LastInSync }];
        let text = Refusal::NothingToEvict { drives: 1, skipped }.to_string();
        assert_eq!(text, "nothing to evict for 1 drives: g4 (no other in-sync member)");
    }
}
