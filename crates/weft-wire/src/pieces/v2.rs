//! The second form of the map's documents: messages in the encoding of protocol buffers, and what they mean.
//!
//! Version 1 is the JSON of a whole map (`weft_types`, `map/v1.rs`). Tags are never used twice. What a later
//! release adds gets a tag of its own here; a reader that does not know the tag skips it. Where skipping it
//! would be wrong, the writer sets a bit that must be understood ([`super::Header`]).
//!
//! A drive's identity has 16 bytes, and a group names it in each slot. So a document begins with a list of
//! the drives that it names, and names them by their place there.

use super::invalid;
use crate::DecodeError;
use prost::{Message, Oneof};
use std::collections::BTreeMap;
use std::sync::Arc;
use weft_types::ListedShard;
use weft_types::limits::{LANES_MAX, SETS_MAX, SHARDS_MAX};
use weft_types::{
    AttachMode, BlockCount, CapacityLevels, DeviceId, DriveId, DriveState, Durations, Epoch, FabricId,
    Generation, GroupId, GroupTableId, MapSettings, MapVersion, NamedGroups, NodeId, ObjectSpan, PieceKey,
    PoolId, Protection, Role, ScrubRecord, SessionId, SessionSlot, SessionState, Striping, TableWindow,
    TargetId, Version, VolumeId, VolumeKind, VolumeState,
};

/// Pieces alone, or what a commit changed.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Document {
    /// Identities of the drives that are named, 16 bytes each.
    #[prost(bytes = "vec", tag = "1")]
    drives: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    put: Vec<Piece>,
    #[prost(message, repeated, tag = "3")]
    removed: Vec<Key>,
    /// Only of what a commit changed.
    #[prost(message, optional, tag = "4")]
    step: Option<Step>,
}

/// From where to where a delta leads.
#[derive(Clone, PartialEq, Message)]
struct Step {
    #[prost(bytes = "vec", tag = "1")]
    fabric: Vec<u8>,
    #[prost(uint64, tag = "2")]
    from: u64,
    #[prost(uint64, tag = "3")]
    to: u64,
    #[prost(uint64, tag = "4")]
    next_id: u64,
}

/// A piece. One of a kind that this release does not know has none, and is left out.
#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    Settings(Settings),
    #[prost(message, tag = "2")]
    Node(Node),
    #[prost(message, tag = "3")]
    Drive(Drive),
    #[prost(uint32, tag = "4")]
    RemovedDrive(u32),
    #[prost(message, tag = "5")]
    Pool(Pool),
    #[prost(message, tag = "6")]
    Group(Group),
    #[prost(message, tag = "7")]
    Relocation(Relocation),
    #[prost(message, tag = "8")]
    Volume(Volume),
    #[prost(message, tag = "9")]
    Session(Session),
    #[prost(message, tag = "10")]
    Scrubbed(Scrubbed),
    #[prost(message, tag = "11")]
    Target(Target),
    #[prost(message, tag = "12")]
    OfTarget(OfTarget),
    #[prost(message, tag = "13")]
    GroupTable(GroupTable),
}

/// What a piece is found by. One of an unknown kind has none, and is left out.
#[derive(Clone, PartialEq, Message)]
struct Key {
    #[prost(oneof = "KeyKind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13")]
    kind: Option<KeyKind>,
}

/// The tags are those of [`Kind`].
#[derive(Clone, PartialEq, Oneof)]
enum KeyKind {
    #[prost(bool, tag = "1")]
    Settings(bool),
    #[prost(uint32, tag = "2")]
    Node(u32),
    #[prost(uint32, tag = "3")]
    Drive(u32),
    #[prost(uint32, tag = "4")]
    RemovedDrive(u32),
    #[prost(uint32, tag = "5")]
    Pool(u32),
    #[prost(uint64, tag = "6")]
    Group(u64),
    #[prost(uint64, tag = "7")]
    Relocation(u64),
    #[prost(uint64, tag = "8")]
    Volume(u64),
    #[prost(uint64, tag = "9")]
    Session(u64),
    #[prost(uint64, tag = "10")]
    Scrubbed(u64),
    #[prost(uint32, tag = "11")]
    Target(u32),
    #[prost(bool, tag = "12")]
    OfTarget(bool),
    #[prost(uint64, tag = "13")]
    GroupTable(u64),
}

/// What a target's slice says of entries that it does not list.
#[derive(Clone, PartialEq, Message)]
struct OfTarget {
    #[prost(uint32, tag = "1")]
    target: u32,
    #[prost(uint64, tag = "2")]
    next_id: u64,
    #[prost(uint64, tag = "3")]
    sessions_from: u64,
    #[prost(uint64, repeated, tag = "4")]
    removed_groups: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct Settings {
    #[prost(uint32, tag = "1")]
    lease_ms: u32,
    #[prost(uint32, tag = "2")]
    drift_per_mille: u32,
    #[prost(uint32, tag = "3")]
    session_ms: u32,
    #[prost(uint64, tag = "4")]
    rebuild_after_ms: u64,
    #[prost(uint32, tag = "5")]
    warning_percent: u32,
    #[prost(uint32, tag = "6")]
    critical_percent: u32,
    #[prost(uint64, optional, tag = "7")]
    scrub_every_ms: Option<u64>,
    #[prost(uint64, tag = "8")]
    scrub_rests_until_ms: u64,
    #[prost(uint64, repeated, tag = "9")]
    scrub_wanted: Vec<u64>,
    /// Pairs: from, and below.
    #[prost(uint64, repeated, tag = "10")]
    unknown_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Target {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(uint32, tag = "2")]
    node: u32,
    /// Where it listens, the address to be tried first in front. This release writes one, and reads the first
    /// one.
    #[prost(string, repeated, tag = "3")]
    addrs: Vec<String>,
    /// Which of its node's targets it is.
    #[prost(uint32, tag = "4")]
    index: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Drive {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(uint32, tag = "2")]
    node: u32,
    #[prost(uint32, tag = "3")]
    pool: u32,
    #[prost(string, tag = "4")]
    path: String,
    #[prost(uint64, tag = "5")]
    capacity: u64,
    #[prost(uint32, tag = "6")]
    state: u32,
    /// The target that serves it. Absent: its node's first, whose number is the node's.
    #[prost(uint32, optional, tag = "7")]
    target: Option<u32>,
    /// Its device, 16 bytes. Absent: one that it shares with no other drive, with the drive's identity.
    #[prost(bytes = "vec", optional, tag = "8")]
    device: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Pool {
    #[prost(uint32, tag = "1")]
    id: u32,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Group {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint32, tag = "2")]
    pool: u32,
    #[prost(uint64, tag = "3")]
    epoch: u64,
    #[prost(message, repeated, tag = "4")]
    slots: Vec<Slot>,
    #[prost(uint64, tag = "5")]
    floor: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Slot {
    #[prost(uint32, tag = "1")]
    drive: u32,
    #[prost(uint32, tag = "2")]
    role: u32,
    #[prost(uint64, tag = "3")]
    since: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Relocation {
    #[prost(uint64, tag = "1")]
    group: u64,
    #[prost(uint32, tag = "2")]
    from: u32,
    #[prost(uint32, tag = "3")]
    to: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Volume {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint32, tag = "3")]
    pool: u32,
    #[prost(uint64, tag = "4")]
    size: u64,
    /// Copies of a mirror. Absent: protected in a way that this release does not know.
    #[prost(uint32, optional, tag = "5")]
    copies: Option<u32>,
    #[prost(uint32, tag = "6")]
    unit_blocks: u32,
    #[prost(uint32, tag = "7")]
    width: u32,
    #[prost(uint32, tag = "8")]
    object_blocks: u32,
    #[prost(message, repeated, tag = "9")]
    spans: Vec<Span>,
    #[prost(uint64, tag = "10")]
    generation: u64,
    #[prost(uint32, tag = "11")]
    state: u32,
    #[prost(bool, tag = "12")]
    thin: bool,
    #[prost(uint64, tag = "13")]
    created_ms: u64,
    /// The file system that it is. This and the next field take the feature
    /// [`FEATURE_FILE_SYSTEMS`](super::FEATURE_FILE_SYSTEMS).
    #[prost(message, optional, tag = "14")]
    files: Option<FileSystem>,
    /// The file system that it holds metadata of.
    #[prost(uint64, optional, tag = "15")]
    file_system: Option<u64>,
}

/// What a file system has instead of spans.
#[derive(Clone, PartialEq, Message)]
struct FileSystem {
    #[prost(message, repeated, tag = "1")]
    sets: Vec<GroupSet>,
    /// The system volumes of the shards.
    #[prost(uint64, repeated, tag = "2")]
    shards: Vec<u64>,
    /// The numbers of the targets beside which the shards are served, each one higher; 0: none is named. Left
    /// out while none is named of any.
    #[prost(uint64, repeated, tag = "3")]
    servers: Vec<u64>,
    /// Whether directories lie in any of the shards.
    #[prost(bool, tag = "4")]
    is_spread: bool,
}

/// A list of groups of its own, or a window of a table.
#[derive(Clone, PartialEq, Message)]
struct GroupSet {
    /// Each group's number less the one before it.
    #[prost(sint64, repeated, tag = "1")]
    group_steps: Vec<i64>,
    #[prost(message, optional, tag = "2")]
    window: Option<Window>,
}

#[derive(Clone, PartialEq, Message)]
struct GroupTable {
    #[prost(uint64, tag = "1")]
    id: u64,
    /// Each group's number less the one before it: groups that were made together follow each other.
    #[prost(sint64, repeated, tag = "2")]
    group_steps: Vec<i64>,
}

/// A span with groups of its own, or with a window of a table: the latter takes the feature
/// [`FEATURE_GROUP_TABLES`](super::FEATURE_GROUP_TABLES).
#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(uint64, tag = "1")]
    first: u64,
    #[prost(uint64, tag = "2")]
    count: u64,
    /// Each group's number less the one before it.
    #[prost(sint64, repeated, tag = "3")]
    group_steps: Vec<i64>,
    #[prost(message, optional, tag = "4")]
    window: Option<Window>,
}

/// Neighbouring groups in a table.
#[derive(Clone, PartialEq, Message)]
struct Window {
    #[prost(uint64, tag = "1")]
    table: u64,
    #[prost(uint32, tag = "2")]
    first: u32,
    #[prost(uint32, tag = "3")]
    count: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Session {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint32, tag = "2")]
    slot: u32,
    #[prost(uint64, tag = "3")]
    volume: u64,
    #[prost(uint32, tag = "4")]
    mode: u32,
    #[prost(uint64, tag = "5")]
    generation: u64,
    #[prost(string, tag = "6")]
    client: String,
    #[prost(uint32, tag = "7")]
    state: u32,
    #[prost(uint64, tag = "8")]
    number: u64,
    /// Has to be understood where there are some ([`Document::has_lanes`]).
    #[prost(uint32, repeated, tag = "9")]
    lane_slots: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct Scrubbed {
    #[prost(uint64, tag = "1")]
    group: u64,
    #[prost(uint64, tag = "2")]
    finished_ms: u64,
    #[prost(uint32, tag = "3")]
    members: u32,
    #[prost(uint64, tag = "4")]
    chunks: u64,
    #[prost(uint64, tag = "5")]
    healed: u64,
    #[prost(uint64, tag = "6")]
    lost: u64,
    #[prost(uint64, tag = "7")]
    disagreements: u64,
}

/// Values of an enum and their numbers. Zero is none of them, so that a field that is absent has no meaning.
fn number_of<T: PartialEq>(values: &[T], value: &T) -> u32 {
    let at = values.iter().position(|v| v == value).expect("the list has every value");
    at as u32 + 1
}

fn value_of<T: Copy>(field: &'static str, values: &[T], number: u32) -> Result<T, DecodeError> {
    let at = (number as usize).checked_sub(1);
    at.and_then(|at| values.get(at)).copied().ok_or_else(|| invalid(field, number.into()))
}

const DRIVE_STATES: [DriveState; 4] =
    [DriveState::Active, DriveState::Draining, DriveState::Failed, DriveState::Destroyed];
const ROLES: [Role; 3] = [Role::InSync, Role::Syncing, Role::Out];
const VOLUME_STATES: [VolumeState; 2] = [VolumeState::Ready, VolumeState::Deleting];
const ATTACH_MODES: [AttachMode; 3] = [AttachMode::Shared, AttachMode::Exclusive, AttachMode::ReadOnly];
const SESSION_STATES: [SessionState; 2] = [SessionState::Open, SessionState::Over];

/// The drives that a document names so far, and their places in its list.
#[derive(Default)]
struct Drives {
    list: Vec<u8>,
    places: BTreeMap<DriveId, u32>,
}

impl Drives {
    fn place_of(&mut self, drive: DriveId) -> u32 {
        let next = self.places.len() as u32;
        *self.places.entry(drive).or_insert_with(|| {
            self.list.extend_from_slice(&drive.to_bytes());
            next
        })
    }
}

/// The list of drives of a document that is read.
struct Named<'a>(&'a [[u8; 16]]);

impl Named<'_> {
    fn drive(&self, place: u32) -> Result<DriveId, DecodeError> {
        let bytes = self.0.get(place as usize).ok_or_else(|| invalid("drive", place.into()))?;
        Ok(DriveId::from_bytes(*bytes))
    }
}

fn narrow<N: TryFrom<u32>>(field: &'static str, value: u32) -> Result<N, DecodeError> {
    N::try_from(value).map_err(|_| invalid(field, value.into()))
}

impl Document {
    /// The document of some pieces.
    pub(super) fn of_pieces(pieces: &[weft_types::Piece]) -> Document {
        let mut drives = Drives::default();
        let put = pieces.iter().map(|piece| Piece { kind: Some(Kind::of(piece, &mut drives)) }).collect();
        Document { drives: drives.list, put, removed: Vec::new(), step: None }
    }

    /// The document of what a commit changed.
    pub(super) fn of_delta(delta: &weft_types::Delta) -> Document {
        let mut drives = Drives::default();
        let put = delta.put.iter().map(|piece| Piece { kind: Some(Kind::of(piece, &mut drives)) }).collect();
        let removed =
            delta.removed.iter().map(|key| Key { kind: Some(KeyKind::of(*key, &mut drives)) }).collect();
        let step = Step {
            fabric: delta.fabric.to_bytes().to_vec(),
            from: delta.from.0,
            to: delta.to.0,
            next_id: delta.next_id,
        };
        Document { drives: drives.list, put, removed, step: Some(step) }
    }

    /// The pieces of a document of pieces; those of unknown kinds are left out.
    pub(super) fn into_pieces(self) -> Result<Vec<weft_types::Piece>, DecodeError> {
        if self.step.is_some() || !self.removed.is_empty() {
            return Err(DecodeError::Document("a change of the map, where pieces of it are expected".into()));
        }
        self.read_pieces()
    }

    /// What a commit changed; pieces and keys of unknown kinds are left out.
    pub(super) fn into_delta(self) -> Result<weft_types::Delta, DecodeError> {
        let put = self.read_pieces()?;
        let named = named(&self.drives)?;
        let known = self.removed.into_iter().filter_map(|key| key.kind);
        let removed: Result<Vec<PieceKey>, DecodeError> = known.map(|key| key.into_key(&named)).collect();
        let step = self.step.ok_or_else(|| {
            DecodeError::Document("pieces of the map, where a change of it is expected".into())
        })?;
        let fabric: Result<[u8; 16], _> = step.fabric.try_into();
        let fabric = fabric.map_err(|bytes: Vec<u8>| invalid("fabric", bytes.len() as u64))?;
        Ok(weft_types::Delta {
            fabric: FabricId::from_bytes(fabric),
            from: MapVersion(step.from),
            to: MapVersion(step.to),
            next_id: step.next_id,
            put,
            removed: removed?,
        })
    }

    /// Whether a reader has to know tables of groups.
    pub(super) fn names_tables(&self) -> bool {
        self.put.iter().any(|piece| match &piece.kind {
            Some(Kind::Volume(volume)) => {
                let mut sets = volume.files.iter().flat_map(|files| &files.sets);
                volume.spans.iter().any(|span| span.window.is_some()) || sets.any(|set| set.window.is_some())
            }
            Some(Kind::GroupTable(_)) => true,
            _ => false,
        })
    }

    /// Whether a session has several lanes.
    pub(super) fn has_lanes(&self) -> bool {
        let is_wide = |kind: &Kind| matches!(kind, Kind::Session(session) if !session.lane_slots.is_empty());
        self.put.iter().any(|piece| piece.kind.as_ref().is_some_and(is_wide))
    }

    /// Whether a volume is a file system, or holds metadata of one.
    pub(super) fn has_file_systems(&self) -> bool {
        let is_of_one = |kind: &Kind| match kind {
            Kind::Volume(volume) => volume.files.is_some() || volume.file_system.is_some(),
            _ => false,
        };
        self.put.iter().any(|piece| piece.kind.as_ref().is_some_and(is_of_one))
    }

    fn read_pieces(&self) -> Result<Vec<weft_types::Piece>, DecodeError> {
        let named = named(&self.drives)?;
        let known = self.put.iter().filter_map(|piece| piece.kind.clone());
        known.map(|kind| kind.into_piece(&named)).collect()
    }
}

fn named(drives: &[u8]) -> Result<Named<'_>, DecodeError> {
    match drives.as_chunks() {
        (list, []) => Ok(Named(list)),
        (_, rest) => Err(invalid("drives", rest.len() as u64)),
    }
}

impl Kind {
    fn of(piece: &weft_types::Piece, drives: &mut Drives) -> Kind {
        match piece {
            weft_types::Piece::Settings(s) => Kind::Settings(Settings::of(s)),
            weft_types::Piece::Node(n) => Kind::Node(Node { id: n.id.0, name: n.name.clone() }),
            weft_types::Piece::Target(t) => Kind::Target(Target {
                id: t.id.0,
                node: t.node.0,
                addrs: vec![t.addr.clone()],
                index: t.index,
            }),
            weft_types::Piece::Drive(d) => Kind::Drive(Drive::of(d, drives)),
            weft_types::Piece::RemovedDrive(drive) => Kind::RemovedDrive(drives.place_of(*drive)),
            weft_types::Piece::Pool(p) => Kind::Pool(Pool { id: p.id.0, name: p.name.clone() }),
            weft_types::Piece::Group(g) => Kind::Group(Group {
                id: g.id.0,
                pool: g.pool.0,
                epoch: g.epoch.0,
                slots: g.slots.iter().map(|slot| Slot::of(slot, drives)).collect(),
                floor: g.floor.to_bits(),
            }),
            weft_types::Piece::GroupTable(t) => {
                Kind::GroupTable(GroupTable { id: t.id.0, group_steps: steps_of(t.groups()) })
            }
            weft_types::Piece::Relocation { group, relocation } => Kind::Relocation(Relocation {
                group: group.0,
                from: drives.place_of(relocation.from),
                to: drives.place_of(relocation.to),
            }),
            weft_types::Piece::Volume(v) => Kind::Volume(Volume::of(v)),
            weft_types::Piece::Session(s) => Kind::Session(Session::of(s)),
            weft_types::Piece::Scrubbed { group, record } => Kind::Scrubbed(Scrubbed::of(*group, record)),
            weft_types::Piece::OfTarget(o) => Kind::OfTarget(OfTarget {
                target: o.target.0,
                next_id: o.next_id,
                sessions_from: o.sessions_from.0,
                removed_groups: o.removed_groups.iter().map(|g| g.0).collect(),
            }),
        }
    }

    fn into_piece(self, named: &Named<'_>) -> Result<weft_types::Piece, DecodeError> {
        Ok(match self {
            Kind::Settings(s) => weft_types::Piece::Settings(s.read()?),
            Kind::Node(n) => weft_types::Piece::Node(weft_types::Node { id: NodeId(n.id), name: n.name }),
            Kind::Target(t) => weft_types::Piece::Target(t.read()?),
            Kind::Drive(d) => weft_types::Piece::Drive(d.read(named)?),
            Kind::RemovedDrive(place) => weft_types::Piece::RemovedDrive(named.drive(place)?),
            Kind::Pool(p) => weft_types::Piece::Pool(weft_types::Pool { id: PoolId(p.id), name: p.name }),
            Kind::Group(g) => weft_types::Piece::Group(weft_types::Group {
                id: GroupId(g.id),
                pool: PoolId(g.pool),
                epoch: Epoch(g.epoch),
                slots: g.slots.iter().map(|slot| slot.read(named)).collect::<Result<_, _>>()?,
                floor: Version::from_bits(g.floor),
            }),
            Kind::GroupTable(t) => {
                let groups: Vec<GroupId> = groups_at(&t.group_steps).collect();
                let table = weft_types::GroupTable::new(GroupTableId(t.id), &groups);
                weft_types::Piece::GroupTable(Arc::new(table))
            }
            Kind::Relocation(r) => weft_types::Piece::Relocation {
                group: GroupId(r.group),
                relocation: weft_types::Relocation { from: named.drive(r.from)?, to: named.drive(r.to)? },
            },
            Kind::Volume(v) => weft_types::Piece::Volume(v.read()?),
            Kind::Session(s) => weft_types::Piece::Session(s.read()?),
            Kind::Scrubbed(s) => weft_types::Piece::Scrubbed { group: GroupId(s.group), record: s.read()? },
            Kind::OfTarget(o) => weft_types::Piece::OfTarget(weft_types::OfTarget {
                target: TargetId(o.target),
                next_id: o.next_id,
                sessions_from: SessionId(o.sessions_from),
                removed_groups: o.removed_groups.into_iter().map(GroupId).collect(),
            }),
        })
    }
}

impl KeyKind {
    fn of(key: PieceKey, drives: &mut Drives) -> KeyKind {
        match key {
            PieceKey::Settings => KeyKind::Settings(true),
            PieceKey::Node(id) => KeyKind::Node(id.0),
            PieceKey::Target(id) => KeyKind::Target(id.0),
            PieceKey::Drive(id) => KeyKind::Drive(drives.place_of(id)),
            PieceKey::RemovedDrive(id) => KeyKind::RemovedDrive(drives.place_of(id)),
            PieceKey::Pool(id) => KeyKind::Pool(id.0),
            PieceKey::Group(id) => KeyKind::Group(id.0),
            PieceKey::GroupTable(id) => KeyKind::GroupTable(id.0),
            PieceKey::Relocation(id) => KeyKind::Relocation(id.0),
            PieceKey::Volume(id) => KeyKind::Volume(id.0),
            PieceKey::Session(id) => KeyKind::Session(id.0),
            PieceKey::Scrubbed(id) => KeyKind::Scrubbed(id.0),
            PieceKey::OfTarget => KeyKind::OfTarget(true),
        }
    }

    fn into_key(self, named: &Named<'_>) -> Result<PieceKey, DecodeError> {
        Ok(match self {
            KeyKind::Settings(_) => PieceKey::Settings,
            KeyKind::Node(id) => PieceKey::Node(NodeId(id)),
            KeyKind::Target(id) => PieceKey::Target(TargetId(id)),
            KeyKind::Drive(place) => PieceKey::Drive(named.drive(place)?),
            KeyKind::RemovedDrive(place) => PieceKey::RemovedDrive(named.drive(place)?),
            KeyKind::Pool(id) => PieceKey::Pool(PoolId(id)),
            KeyKind::Group(id) => PieceKey::Group(GroupId(id)),
            KeyKind::GroupTable(id) => PieceKey::GroupTable(GroupTableId(id)),
            KeyKind::Relocation(id) => PieceKey::Relocation(GroupId(id)),
            KeyKind::Volume(id) => PieceKey::Volume(VolumeId(id)),
            KeyKind::Session(id) => PieceKey::Session(SessionId(id)),
            KeyKind::Scrubbed(id) => PieceKey::Scrubbed(GroupId(id)),
            KeyKind::OfTarget(_) => PieceKey::OfTarget,
        })
    }
}

impl Settings {
    fn of(s: &MapSettings) -> Settings {
        Settings {
            lease_ms: s.durations.lease_ms,
            drift_per_mille: s.durations.drift_per_mille,
            session_ms: s.durations.session_ms,
            rebuild_after_ms: s.durations.rebuild_after_ms,
            warning_percent: s.capacity.warning_percent.into(),
            critical_percent: s.capacity.critical_percent.into(),
            scrub_every_ms: s.scrub_every_ms,
            scrub_rests_until_ms: s.scrub_rests_until_ms,
            scrub_wanted: s.scrub_wanted.iter().map(|group| group.0).collect(),
            unknown_ids: s.unknown_ids.iter().flat_map(|(from, below)| [*from, *below]).collect(),
        }
    }

    fn read(self) -> Result<MapSettings, DecodeError> {
        let (unknown_ids, odd) = self.unknown_ids.as_chunks();
        if let [alone] = odd {
            return Err(invalid("unknown ids", *alone));
        }
        Ok(MapSettings {
            durations: Durations {
                lease_ms: self.lease_ms,
                drift_per_mille: self.drift_per_mille,
                session_ms: self.session_ms,
                rebuild_after_ms: self.rebuild_after_ms,
            },
            capacity: CapacityLevels {
                warning_percent: narrow("warning percent", self.warning_percent)?,
                critical_percent: narrow("critical percent", self.critical_percent)?,
            },
            scrub_every_ms: self.scrub_every_ms,
            scrub_rests_until_ms: self.scrub_rests_until_ms,
            scrub_wanted: self.scrub_wanted.into_iter().map(GroupId).collect(),
            unknown_ids: unknown_ids.iter().map(|[from, below]| (*from, *below)).collect(),
        })
    }
}

impl Target {
    fn read(self) -> Result<weft_types::Target, DecodeError> {
        let addr = self.addrs.into_iter().next().ok_or_else(|| invalid("addresses of a target", 0))?;
        Ok(weft_types::Target { id: TargetId(self.id), node: NodeId(self.node), index: self.index, addr })
    }
}

impl Drive {
    fn of(d: &weft_types::Drive, drives: &mut Drives) -> Drive {
        Drive {
            id: drives.place_of(d.id),
            node: d.node.0,
            pool: d.pool.0,
            path: d.path.clone(),
            capacity: d.capacity.0,
            state: number_of(&DRIVE_STATES, &d.state),
            target: Some(d.target.0).filter(|_| d.target != TargetId::first_of(d.node)),
            device: (d.device != DeviceId::of_drive(d.id)).then(|| d.device.to_bytes().to_vec()),
        }
    }

    fn read(self, named: &Named<'_>) -> Result<weft_types::Drive, DecodeError> {
        let (id, node) = (named.drive(self.id)?, NodeId(self.node));
        let device = |bytes: Vec<u8>| match bytes.try_into() {
            Ok(bytes) => Ok(DeviceId::from_bytes(bytes)),
            Err(bytes) => Err(invalid("device", bytes.len() as u64)),
        };
        Ok(weft_types::Drive {
            id,
            node,
            device: self.device.map_or(Ok(DeviceId::of_drive(id)), device)?,
            target: self.target.map_or(TargetId::first_of(node), TargetId),
            pool: PoolId(self.pool),
            path: self.path,
            capacity: BlockCount(self.capacity),
            state: value_of("drive state", &DRIVE_STATES, self.state)?,
        })
    }
}

impl Slot {
    fn of(slot: &weft_types::Slot, drives: &mut Drives) -> Slot {
        Slot { drive: drives.place_of(slot.drive), role: number_of(&ROLES, &slot.role), since: slot.since.0 }
    }

    fn read(&self, named: &Named<'_>) -> Result<weft_types::Slot, DecodeError> {
        Ok(weft_types::Slot {
            drive: named.drive(self.drive)?,
            role: value_of("role", &ROLES, self.role)?,
            since: Epoch(self.since),
        })
    }
}

impl Volume {
    fn of(v: &weft_types::Volume<NamedGroups>) -> Volume {
        let copies = match v.protection {
            Protection::Mirror { copies } => Some(copies.into()),
            other => unreachable!("the form has no place for {other:?}"),
        };
        Volume {
            id: v.id.0,
            name: v.name.clone(),
            pool: v.pool.0,
            size: v.size.0,
            copies,
            unit_blocks: v.striping.unit_blocks,
            width: v.striping.width,
            object_blocks: v.striping.object_blocks,
            spans: v.spans.iter().map(Span::of).collect(),
            generation: v.generation.0,
            state: number_of(&VOLUME_STATES, &v.state),
            thin: v.thin,
            created_ms: v.created_ms,
            files: v.files().map(FileSystem::of),
            file_system: v.system_of().map(|file_system| file_system.0),
        }
    }

    fn read(self) -> Result<weft_types::Volume<NamedGroups>, DecodeError> {
        let copies = self.copies.ok_or_else(|| invalid("protection", 0))?;
        let kind = match (self.files, self.file_system) {
            (Some(files), None) => VolumeKind::Files(files.read()?),
            (None, Some(file_system)) => VolumeKind::System { file_system: VolumeId(file_system) },
            (None, None) => VolumeKind::Blocks,
            (Some(_), Some(file_system)) => return Err(invalid("file system of a file system", file_system)),
        };
        Ok(weft_types::Volume {
            id: VolumeId(self.id),
            name: self.name,
            pool: PoolId(self.pool),
            size: BlockCount(self.size),
            protection: Protection::mirror(narrow("copies", copies)?),
            striping: Striping {
                unit_blocks: self.unit_blocks,
                width: self.width,
                object_blocks: self.object_blocks,
            },
            spans: self.spans.into_iter().map(Span::read).collect(),
            generation: Generation(self.generation),
            state: value_of("volume state", &VOLUME_STATES, self.state)?,
            thin: self.thin,
            created_ms: self.created_ms,
            kind,
        })
    }
}

impl FileSystem {
    fn of(files: &weft_types::FileSystem<NamedGroups>) -> FileSystem {
        let set = |groups: &NamedGroups| {
            let (group_steps, window) = named_as(groups);
            GroupSet { group_steps, window }
        };
        let server = |shard: &ListedShard| shard.server.map_or(0, |target| u64::from(target.0) + 1);
        let mut servers: Vec<u64> = files.shards.iter().map(server).collect();
        if servers.iter().all(|server| *server == 0) {
            servers.clear();
        }
        FileSystem {
            sets: files.sets.iter().map(set).collect(),
            shards: files.shards.iter().map(|shard| shard.volume.0).collect(),
            servers,
            is_spread: files.is_spread,
        }
    }

    fn read(self) -> Result<weft_types::FileSystem<NamedGroups>, DecodeError> {
        if self.sets.is_empty() || self.sets.len() > SETS_MAX {
            return Err(invalid("sets", self.sets.len() as u64));
        }
        if self.shards.is_empty() || self.shards.len() > SHARDS_MAX {
            return Err(invalid("shards", self.shards.len() as u64));
        }
        if ![0, self.shards.len()].contains(&self.servers.len()) {
            return Err(invalid("servers", self.servers.len() as u64));
        }
        let server = |number: u64| match number.checked_sub(1) {
            None => Ok(None),
            Some(id) => u32::try_from(id).map(|id| Some(TargetId(id))).map_err(|_| invalid("server", number)),
        };
        let servers = self.servers.into_iter().chain(std::iter::repeat(0));
        let shards =
            self.shards.into_iter().zip(servers).map(|(volume, number)| {
                Ok(ListedShard { volume: VolumeId(volume), server: server(number)? })
            });
        Ok(weft_types::FileSystem {
            sets: self.sets.into_iter().map(|set| named_by(&set.group_steps, set.window)).collect(),
            shards: shards.collect::<Result<_, DecodeError>>()?,
            is_spread: self.is_spread,
        })
    }
}

impl Span {
    fn of(span: &ObjectSpan<NamedGroups>) -> Span {
        let (group_steps, window) = named_as(&span.groups);
        Span { first: span.first, count: span.count, group_steps, window }
    }

    fn read(self) -> ObjectSpan<NamedGroups> {
        let groups = named_by(&self.group_steps, self.window);
        ObjectSpan { first: self.first, count: self.count, groups }
    }
}

/// A list of groups as the form has it: the groups, or a window of a table.
fn named_as(groups: &NamedGroups) -> (Vec<i64>, Option<Window>) {
    match groups {
        NamedGroups::Own(groups) => (steps_of(groups), None),
        NamedGroups::Window(w) => {
            (Vec::new(), Some(Window { table: w.table.0, first: w.first, count: w.count }))
        }
    }
}

/// The list that the form has so.
fn named_by(group_steps: &[i64], window: Option<Window>) -> NamedGroups {
    match window {
        None => NamedGroups::Own(groups_at(group_steps).collect()),
        Some(w) => {
            NamedGroups::Window(TableWindow { table: GroupTableId(w.table), first: w.first, count: w.count })
        }
    }
}

/// Each group's number less the one before it.
fn steps_of(groups: &[GroupId]) -> Vec<i64> {
    let mut last = 0;
    let step = |group: &GroupId| {
        let step = group.0.wrapping_sub(last) as i64;
        last = group.0;
        step
    };
    groups.iter().map(step).collect()
}

/// The groups with these distances.
fn groups_at(steps: &[i64]) -> impl Iterator<Item = GroupId> {
    let mut last = 0u64;
    steps.iter().map(move |step| {
        last = last.wrapping_add(*step as u64);
        GroupId(last)
    })
}

impl Session {
    fn of(s: &weft_types::Session) -> Session {
        Session {
            id: s.id.0,
            slot: s.slot.0.into(),
            volume: s.volume.0,
            mode: number_of(&ATTACH_MODES, &s.mode),
            generation: s.generation.0,
            client: s.client.clone(),
            state: number_of(&SESSION_STATES, &s.state),
            number: s.number,
            lane_slots: s.lane_slots.iter().map(|slot| slot.0.into()).collect(),
        }
    }

    fn read(self) -> Result<weft_types::Session, DecodeError> {
        if self.lane_slots.len() >= LANES_MAX {
            return Err(invalid("lanes", 1 + self.lane_slots.len() as u64));
        }
        let lane_slots = self.lane_slots.iter().map(|slot| Ok(SessionSlot(narrow("lane slot", *slot)?)));
        let lane_slots = lane_slots.collect::<Result<_, DecodeError>>()?;
        Ok(weft_types::Session {
            id: SessionId(self.id),
            slot: SessionSlot(narrow("slot", self.slot)?),
            volume: VolumeId(self.volume),
            mode: value_of("mode", &ATTACH_MODES, self.mode)?,
            generation: Generation(self.generation),
            client: self.client,
            state: value_of("session state", &SESSION_STATES, self.state)?,
            number: self.number,
            lane_slots,
        })
    }
}

impl Scrubbed {
    fn of(group: GroupId, r: &ScrubRecord) -> Scrubbed {
        Scrubbed {
            group: group.0,
            finished_ms: r.finished_ms,
            members: r.members.into(),
            chunks: r.chunks,
            healed: r.healed,
            lost: r.lost,
            disagreements: r.disagreements,
        }
    }

    fn read(self) -> Result<ScrubRecord, DecodeError> {
        Ok(ScrubRecord {
            finished_ms: self.finished_ms,
            members: narrow("members", self.members)?,
            chunks: self.chunks,
            healed: self.healed,
            lost: self.lost,
            disagreements: self.disagreements,
        })
    }
}
