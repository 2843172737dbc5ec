//! The fabric map: the versioned document that says which drives exist and how groups are composed.
//!
//! It is data only. `weft-membership` holds the transitions; the manager alone commits them.

use crate::{
    BlockCount, CapacityLevels, DeviceId, DriveId, Epoch, FabricId, Generation, GroupId, NodeId, PoolId,
    SessionId, TargetId,
};
use crate::{Protection, ScrubPlan, SessionSlot, Table, Version, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

mod file_system;
mod group_table;
mod piece;
mod piece_set;
mod slice;
mod target_slice;
mod v1;

pub use file_system::{FileSystem, ListedShard, VolumeKind, system_volume_name};
pub use group_table::{GroupList, GroupTable, GroupTables, NamedGroups, SpanGroups, TableWindow};
pub use piece::{Delta, DeltaError, MapSettings, Piece, PieceKey, PieceKind};
pub use piece_set::PieceSet;
pub use slice::Slice;
pub use target_slice::{OfTarget, TargetSlice, Touched, targets_touched};

/// The version of the whole document; every commit raises it by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MapVersion(pub u64);

impl fmt::Display for MapVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "m{}", self.0)
    }
}

/// The whole fabric, as one document.
///
/// Two adjacent releases read each other's documents: fields of a later release are passed over, and those of
/// an earlier one have defaults. Where passing over would be wrong, `schema` rises, and readers of the
/// earlier release refuse it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "v1::FabricMap", into = "v1::FabricMap")]
pub struct FabricMap {
    /// The version of what a reader has to understand of the document; readers refuse a newer one. A document
    /// is written with the lowest one that says what is in it.
    pub schema: u32,
    /// The fabric's identity, also in every drive's label.
    pub fabric: FabricId,
    /// The version of this document.
    pub version: MapVersion,
    /// Times that all members must agree on.
    pub durations: Durations,
    /// The machines.
    pub nodes: Table<NodeId, Node>,
    /// What serves the machines' drives. Each node has its first ([`TargetId::first_of`]), and may have more.
    pub targets: Table<TargetId, Target>,
    /// The drives, also those that are lost but still listed by a group.
    pub drives: Table<DriveId, Drive>,
    /// Drives that were taken out for good. Formatted anew, a drive has a new identity.
    pub removed_drives: BTreeSet<DriveId>,
    /// The sets of drives that volumes draw from.
    pub pools: Table<PoolId, Pool>,
    /// The sets of drives that hold the same data.
    pub groups: Table<GroupId, Group>,
    /// Lists of groups that volumes share. Each is used by a volume.
    pub group_tables: GroupTables,
    /// Members that are passing to another drive, at most one per group: such a group has one slot more.
    pub relocations: Table<GroupId, Relocation>,
    /// The volumes, and the file systems.
    pub volumes: Table<VolumeId, Volume>,
    /// The sessions that are open, or over and not yet swept everywhere.
    pub sessions: Table<SessionId, Session>,
    /// When groups are scrubbed, and how that ended last. Left out while nobody has scrubbed anything.
    pub scrub: ScrubPlan,
    /// How full pools may become before people are told. Left out while nobody has changed it.
    pub capacity: CapacityLevels,
    /// The next number for any identifier made from a counter; only ever rises, so no id is reused.
    pub next_id: u64,
    /// Numbers, from and below, that maps which were lost may have given out: the map was made anew from older
    /// copies then. Nobody knows what carries one of them, so nothing that does is taken for removed.
    pub unknown_ids: Vec<(u64, u64)>,
    /// Only in the slice of a target: what it says of entries that it does not list.
    pub of_target: Option<OfTarget>,
}

impl FabricMap {
    /// The newest version of the document's shape that this code reads and writes. 2: a node has other
    /// targets than its first one. 3: it is the slice of a target. 4: volumes share lists of groups. 5:
    /// sessions have several lanes. 6: there are file systems.
    pub const SCHEMA: u32 = 6;

    /// A fabric without nodes, drives or volumes.
    pub fn empty(fabric: FabricId) -> Self {
        FabricMap {
            schema: Self::SCHEMA,
            fabric,
            version: MapVersion(1),
            durations: Durations::default(),
            nodes: Table::new(),
            targets: Table::new(),
            drives: Table::new(),
            removed_drives: BTreeSet::new(),
            pools: Table::new(),
            groups: Table::new(),
            group_tables: Table::new(),
            relocations: Table::new(),
            volumes: Table::new(),
            sessions: Table::new(),
            scrub: ScrubPlan::default(),
            capacity: CapacityLevels::default(),
            next_id: 1,
            unknown_ids: Vec::new(),
            of_target: None,
        }
    }

    /// Whether a group was in the fabric once and is not any more, for certain: its number was given out by
    /// this map or one before it, not by one that was lost. A target's slice says so only of groups that the
    /// target holds.
    pub fn was_removed(&self, group: GroupId) -> bool {
        !self.groups.contains_key(&group)
            && match &self.of_target {
                Some(of_target) => of_target.removed_groups.contains(&group),
                None => self.is_used_up(group.0),
            }
    }

    /// Whether a volume was in the fabric once and is not any more, for certain. By a target's slice: or has
    /// no objects in the groups that the slice lists.
    pub fn was_deleted(&self, volume: VolumeId) -> bool {
        !self.volumes.contains_key(&volume) && self.is_used_up(volume.0)
    }

    /// Whether a session of a volume was in the fabric once and is not any more. A target's slice says so
    /// only of sessions whose volume it lists (C14).
    pub fn was_forgotten(&self, session: SessionId, volume: VolumeId) -> bool {
        let says = self.of_target.is_none() || self.volumes.contains_key(&volume);
        says && !self.sessions.contains_key(&session) && session.0 < self.ids_below()
    }

    /// Every session below this one is not in the fabric any more.
    pub fn sessions_from(&self) -> SessionId {
        match &self.of_target {
            Some(of_target) => of_target.sessions_from,
            None => self.sessions.first_key_value().map_or(SessionId(self.next_id), |(id, _)| *id),
        }
    }

    /// Whether this is the slice of a target, which says nothing of most of what it does not list.
    pub fn is_of_target(&self) -> bool {
        self.of_target.is_some()
    }

    /// The number from which on none was given out up to this version.
    pub fn ids_below(&self) -> u64 {
        self.of_target.as_ref().map_or(self.next_id, |of_target| of_target.next_id)
    }

    /// Whether the number was given out, and not by a map that was lost.
    fn is_used_up(&self, id: u64) -> bool {
        let is_unknown = self.unknown_ids.iter().any(|(from, below)| (*from..*below).contains(&id));
        id < self.ids_below() && !is_unknown
    }

    /// The volume with this name.
    pub fn volume_named(&self, name: &str) -> Option<&Volume> {
        self.volumes.values().find(|v| v.name == name)
    }

    /// The node with this name.
    pub fn node_named(&self, name: &str) -> Option<&Node> {
        self.nodes.values().find(|n| n.name == name)
    }

    /// The pool with this name.
    pub fn pool_named(&self, name: &str) -> Option<&Pool> {
        self.pools.values().find(|p| p.name == name)
    }

    /// How many members a group has when none of them is passing to another drive.
    pub fn copies_of(&self, group: &Group) -> usize {
        group.slots.len() - usize::from(self.relocations.contains_key(&group.id))
    }

    /// The drives of a group's members, without the one that is to leave it.
    pub fn staying(&self, group: &Group) -> impl Iterator<Item = DriveId> {
        let leaving = self.relocations.get(&group.id).map(|r| r.from);
        group.slots.iter().map(|s| s.drive).filter(move |d| Some(*d) != leaving)
    }

    /// Whether two members of the group are on one node, apart from the one that is to leave it.
    pub fn shares_a_node(&self, group: &Group) -> bool {
        self.has_twins(group, |drive| drive.node)
    }

    /// Whether two members of the group are on one device, apart from the one that is to leave it.
    pub fn shares_a_device(&self, group: &Group) -> bool {
        self.has_twins(group, |drive| (drive.node, drive.device))
    }

    fn has_twins<K: Ord>(&self, group: &Group, place: impl Fn(&Drive) -> K) -> bool {
        let drives = self.staying(group).filter_map(|d| self.drives.get(&d));
        let mut places: Vec<K> = drives.map(place).collect();
        places.sort_unstable();
        places.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// Whether the group has all of its copies up to date; a member that passes to another drive takes none away.
    pub fn is_whole(&self, group: &Group) -> bool {
        group.read_set().count() >= self.copies_of(group)
            && group.slots.iter().all(|s| s.role == Role::InSync || self.is_passing(group.id, s.drive))
    }

    /// Whether the drive is the one or the other side of a relocation in this group.
    pub fn is_passing(&self, group: GroupId, drive: DriveId) -> bool {
        self.relocations.get(&group).is_some_and(|r| r.from == drive || r.to == drive)
    }

    /// Puts in a node with its first target, or another name and address of one.
    pub fn put_node(&mut self, node: NodeId, name: String, addr: String) {
        let target = TargetId::first_of(node);
        self.nodes.insert(node, Node { id: node, name });
        self.targets.insert(target, Target { id: target, node, index: 0, addr });
    }

    /// The first target of a node: the one that a node never lacks.
    pub fn first_target_of(&self, node: NodeId) -> Option<&Target> {
        self.targets.get(&TargetId::first_of(node))
    }

    /// All targets of a node, in the order of their numbers. Looks through all targets.
    pub fn targets_of(&self, node: NodeId) -> impl Iterator<Item = &Target> {
        self.targets.values().filter(move |target| target.node == node)
    }

    /// The target of a node with this index.
    pub fn target_at(&self, node: NodeId, index: u32) -> Option<&Target> {
        match index {
            0 => self.first_target_of(node),
            _ => self.targets_of(node).find(|target| target.index == index),
        }
    }

    /// The target that serves a drive.
    pub fn target_of(&self, drive: DriveId) -> Option<TargetId> {
        self.drives.get(&drive).map(|drive| drive.target)
    }

    /// The node that a target runs on.
    pub fn node_of(&self, target: TargetId) -> Option<&Node> {
        self.nodes.get(&self.targets.get(&target)?.node)
    }

    /// A target in the words of people: `node 'a'`, or `target 1 of node 'a'` where the node has several.
    pub fn title_of(&self, target: TargetId) -> String {
        let listed = self.targets.get(&target).and_then(|t| Some((t, self.nodes.get(&t.node)?)));
        let Some((target, node)) = listed else { return format!("target {target}") };
        match (target.index, self.targets_of(node.id).count()) {
            (0, 1) => format!("node '{}'", node.name),
            _ => format!("target {} of node '{}'", target.index, node.name),
        }
    }

    /// The address of the target that serves a drive.
    pub fn drive_addr(&self, drive: DriveId) -> Option<&str> {
        let target = self.drives.get(&drive)?.target;
        Some(self.targets.get(&target)?.addr.as_str())
    }
}

/// The longest silence of a mount of a file system: a machine that stands still for less keeps what it has
/// open. Others wait for what a dead one has held for so long, and then until it is swept and its leases are
/// out.
const FILE_SILENCE_MAX: Duration = Duration::from_secs(9);

/// Times that all members must agree on, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// How long a target may serve after it sent the request that was granted.
    pub lease_ms: u32,
    /// By how much two clocks' rates may differ, in parts per thousand; the granter waits that much longer.
    pub drift_per_mille: u32,
    /// How long a client session may be out of touch with the manager before it is over.
    pub session_ms: u32,
    /// How long a replica may be out before its data is rebuilt elsewhere.
    pub rebuild_after_ms: u64,
}

impl Default for Durations {
    /// A lease of 2 s keeps the stall after a node's death under 5 s; 10 per mille is ten times what a bad
    /// quartz drifts; ten minutes let a node reboot without its drives being rebuilt elsewhere.
    fn default() -> Self {
        Durations { lease_ms: 2_000, drift_per_mille: 10, session_ms: 30_000, rebuild_after_ms: 600_000 }
    }
}

impl Durations {
    /// The lease, as a target counts it.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(u64::from(self.lease_ms))
    }

    /// How long a client session may be out of touch before it is over.
    pub fn session(&self) -> Duration {
        Duration::from_millis(u64::from(self.session_ms))
    }

    /// How long a session of this volume may be out of touch before it is over. Less for a mount of a file
    /// system: others wait for what it holds, and it takes a new session by itself (F14).
    pub fn session_of<G>(&self, volume: &Volume<G>) -> Duration {
        match volume.kind {
            VolumeKind::Files(_) => self.session().min(FILE_SILENCE_MAX),
            VolumeKind::Blocks | VolumeKind::System { .. } => self.session(),
        }
    }

    /// How long the granter waits before it takes a lease for expired: lease x (1 + drift bound).
    pub fn lease_wait(&self) -> Duration {
        let ms = u64::from(self.lease_ms);
        Duration::from_micros(ms * 1000 + ms * u64::from(self.drift_per_mille))
    }
}

/// A machine in the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The node's number.
    pub id: NodeId,
    /// The node's name, unique in the fabric.
    pub name: String,
}

/// What serves some of a node's drives: it has a lease of its own, and says for itself which map it has adopted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The target's number; its node's, if it is the node's first.
    pub id: TargetId,
    /// The node that it runs on.
    pub node: NodeId,
    /// Which of the node's targets it is, from 0: the thread of the node's process. Unique in the node.
    #[serde(default, skip_serializing_if = "is_first")]
    pub index: u32,
    /// Where it listens, as `host:port`.
    pub addr: String,
}

/// One block device, or file, formatted for Weft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "v1::Drive", into = "v1::Drive")]
pub struct Drive {
    /// The drive's identity, from its label.
    pub id: DriveId,
    /// The node that it was last seen on: that of its target.
    pub node: NodeId,
    /// The target of that node that serves it.
    pub target: TargetId,
    /// What fails together with it, among the drives of its node. Of its own, unless its target says
    /// otherwise.
    pub device: DeviceId,
    /// The pool that draws from it.
    pub pool: PoolId,
    /// The path on its node, for people.
    pub path: String,
    /// Blocks that can hold data.
    pub capacity: BlockCount,
    /// Whether it takes part.
    pub state: DriveState,
}

impl Drive {
    /// Whether its node's first target serves it.
    pub(crate) fn is_of_first_target(&self) -> bool {
        self.target == TargetId::first_of(self.node)
    }
}

/// Whether a drive takes part in the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriveState {
    /// New groups may be placed on it.
    Active,
    /// It serves, but nothing new is placed on it, and its members pass to other drives.
    Draining,
    /// It reported an I/O error or was declared lost; nothing new is placed on it, its groups move away.
    Failed,
    /// A person has declared that it does not exist any more. Whatever it holds counts for nothing from then on: if
    /// it turns up, it is refused, and left as it is.
    Destroyed,
}

impl DriveState {
    /// Whether its copies are given up, and made anew elsewhere.
    pub fn is_given_up(self) -> bool {
        matches!(self, DriveState::Failed | DriveState::Destroyed)
    }
}

/// A member that passes from one drive to another without a copy less on the way: both are listed by the group
/// until the new one is in-sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relocation {
    /// The drive that is to leave the group.
    pub from: DriveId,
    /// The drive that comes in its place.
    pub to: DriveId,
}

/// A set of drives that volumes draw from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// The pool's number.
    pub id: PoolId,
    /// The pool's name, unique in the fabric.
    pub name: String,
}

/// One drive's part in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Holds every complete write; serves reads.
    InSync,
    /// Takes writes, and is being brought up to date.
    Syncing,
    /// Takes no part until it comes back as syncing.
    Out,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::InSync => "in-sync",
            Role::Syncing => "syncing",
            Role::Out => "out",
        })
    }
}

/// A member slot of a group: the drive in it changes only by epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// The drive in the slot.
    pub drive: DriveId,
    /// Its role.
    pub role: Role,
    /// The epoch at which this role began for this drive: its stint.
    pub since: Epoch,
}

/// A set of drives, fixed within one epoch, that hold the same data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The group's number.
    pub id: GroupId,
    /// The pool whose drives it uses.
    pub pool: PoolId,
    /// The version of this membership.
    pub epoch: Epoch,
    /// The members, in the order that ties are broken by; one per copy, and one more while a member is passing to
    /// another drive.
    pub slots: Vec<Slot>,
    /// Every version below is finished, or was never taken and never will be (R7); zero: that is not known
    /// of any. It only rises, and only together with the epoch.
    #[serde(default, skip_serializing_if = "Version::is_zero")]
    pub floor: Version,
}

impl Group {
    /// The replicas that serve reads: those in-sync.
    pub fn read_set(&self) -> impl Iterator<Item = DriveId> + '_ {
        self.slots.iter().filter(|s| s.role == Role::InSync).map(|s| s.drive)
    }

    /// The replicas that every write goes to: in-sync and syncing.
    pub fn write_set(&self) -> impl Iterator<Item = DriveId> + '_ {
        self.slots.iter().filter(|s| s.role != Role::Out).map(|s| s.drive)
    }

    /// The drive's slot in this group.
    pub fn slot_of(&self, drive: DriveId) -> Option<&Slot> {
        self.slots.iter().find(|s| s.drive == drive)
    }

    /// Whether a copy is missing or not up to date.
    pub fn is_degraded(&self) -> bool {
        self.slots.iter().any(|s| s.role != Role::InSync)
    }
}

/// How a volume's addresses become objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Striping {
    /// Blocks that go to one object before the next one's turn; a power of two, divides `object_blocks`.
    pub unit_blocks: u32,
    /// Objects that a stripe runs over; 1 is plain concatenation.
    pub width: u32,
    /// Blocks in an object; a power of two, at most [`crate::limits::OBJECT_BLOCKS_MAX`].
    pub object_blocks: u32,
}

/// Which groups hold a run of a volume's objects; fixed when that range of the volume is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectSpan<G = SpanGroups> {
    /// The first object of the run.
    pub first: u64,
    /// How many objects.
    pub count: u64,
    /// Object `first + i` lives in `groups[i % groups.len()]`; never empty.
    pub groups: G,
}

/// Whether a volume can be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// It can be attached.
    Ready,
    /// It is gone for clients; its blocks are being returned to the drives.
    Deleting,
}

/// An entry of the table of volumes: a named, sized address space mapped onto objects by its layout; or a
/// file system, whose files are such spaces, and of which only [`VolumeKind::Files`] says where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume<G = SpanGroups> {
    /// The volume's number.
    pub id: VolumeId,
    /// The volume's name, unique in the fabric.
    pub name: String,
    /// The pool that it draws from.
    pub pool: PoolId,
    /// Its size; 0 of a file system, which has none.
    pub size: BlockCount,
    /// How its data is protected against the loss of drives.
    pub protection: Protection,
    /// How its addresses become objects; of a file system: those of a file for which nobody has said it, and
    /// the size of the objects of all of its files.
    pub striping: Striping,
    /// Which groups hold its objects; spans are contiguous from object 0 and cover the size. A file system
    /// has sets instead.
    pub spans: Vec<ObjectSpan<G>>,
    /// Fences older clients: raised by each exclusive attach, preemption and by deletion.
    pub generation: Generation,
    /// Whether it can be attached.
    pub state: VolumeState,
    /// Whether it may be larger than what the pool could hold.
    pub thin: bool,
    /// When it was created, in milliseconds since 1970-01-01T00:00:00Z.
    pub created_ms: u64,
    /// What it is: a block volume, or a file system. Never changes from the one to the other.
    pub kind: VolumeKind<G>,
}

/// What a client session may do, and beside whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachMode {
    /// Many sessions read and write; logical blocks of 4096 bytes.
    Shared,
    /// This session alone; logical blocks of 512 bytes possible.
    Exclusive,
    /// Reads only, beside shared sessions and other readers.
    ReadOnly,
}

impl fmt::Display for AttachMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AttachMode::Shared => "shared",
            AttachMode::Exclusive => "exclusive",
            AttachMode::ReadOnly => "read-only",
        })
    }
}

/// What a client takes the entry of the table of volumes for that it attaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachKind {
    /// A block volume. Clients of earlier releases know no other.
    #[default]
    Blocks,
    /// The system volume of a shard of a file system.
    System,
    /// A file system.
    Files,
}

impl AttachKind {
    /// Whether it is a block volume that users attach.
    pub fn is_blocks(&self) -> bool {
        *self == AttachKind::Blocks
    }
}

/// Whether a session may still write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SessionState {
    /// Targets admit it.
    Open,
    /// Targets refuse it, or will once they have heard; its open entries are being swept. Its slot is not
    /// reused before that is done everywhere.
    Over,
}

/// A client's attach to a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The session's number; monotone.
    pub id: SessionId,
    /// The low bits of the versions of its first lane, unique among listed sessions; never 0.
    pub slot: SessionSlot,
    /// The volume that it is attached to.
    pub volume: VolumeId,
    /// What it may do.
    pub mode: AttachMode,
    /// The volume's generation when it attached; requests carry it.
    pub generation: Generation,
    /// Who it is, for people.
    pub client: String,
    /// Whether it may still write.
    pub state: SessionState,
    /// By what its client knows its attach again (C10); 0: it did not say.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u64,
    /// The slots of its lanes after the first one (P6), each as unique as `slot`; [`LANES_MAX`] less one at
    /// most.
    ///
    /// [`LANES_MAX`]: crate::limits::LANES_MAX
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lane_slots: Vec<SessionSlot>,
}

impl Session {
    /// The slots of all its lanes, beginning with the first one's.
    pub fn slots(&self) -> impl Iterator<Item = SessionSlot> + '_ {
        std::iter::once(self.slot).chain(self.lane_slots.iter().copied())
    }

    /// Whether a lane of the session has this slot.
    pub fn has_slot(&self, slot: SessionSlot) -> bool {
        self.slots().any(|own| own == slot)
    }

    /// How many lanes it has, from 1.
    pub fn lanes(&self) -> usize {
        1 + self.lane_slots.len()
    }
}

fn is_first(index: &u32) -> bool {
    *index == 0
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
