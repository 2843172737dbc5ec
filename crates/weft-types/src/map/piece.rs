//! The map in pieces, and what one commit changed.
//!
//! A piece is a part of the fabric map with its own key. A delta is the pieces that one map has and
//! the map before it had not, and the keys of those that are gone. Pure: it knows no store and no
//! connection.

use super::{
    Drive, Durations, FabricMap, Group, GroupTable, MapVersion, NamedGroups, Node, OfTarget, Pool,
    Relocation, Session, TableWindow, Target, Volume,
};
use crate::{
    CapacityLevels, DriveId, FabricId, GroupId, GroupTableId, Key, NodeId, PoolId, ScrubPlan, ScrubRecord,
    SessionId, Table, TableChange, TargetId, VolumeId,
};
use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// What is written with the map and belongs to no entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapSettings {
    /// Times that all members must agree on.
    pub durations: Durations,
    /// How full pools may become before people are told.
    pub capacity: CapacityLevels,
    /// How often every group is scrubbed, in milliseconds; `None`: only when somebody asks.
    pub scrub_every_ms: Option<u64>,
    /// Until when the schedule of scrubs rests, in milliseconds since 1970-01-01T00:00:00Z.
    pub scrub_rests_until_ms: u64,
    /// Groups that somebody wants scrubbed, and that have not been since.
    pub scrub_wanted: BTreeSet<GroupId>,
    /// Half-open ranges of numbers that may have been given out by versions of the map that were lost.
    pub unknown_ids: Vec<(u64, u64)>,
}

impl MapSettings {
    /// The settings of a map.
    pub(super) fn of(map: &FabricMap) -> MapSettings {
        MapSettings {
            durations: map.durations,
            capacity: map.capacity,
            scrub_every_ms: map.scrub.every_ms,
            scrub_rests_until_ms: map.scrub.rests_until_ms,
            scrub_wanted: map.scrub.wanted.clone(),
            unknown_ids: map.unknown_ids.clone(),
        }
    }

    fn put_into(self, map: &mut FabricMap) {
        let done = std::mem::take(&mut map.scrub.done);
        map.durations = self.durations;
        map.capacity = self.capacity;
        map.scrub = ScrubPlan {
            every_ms: self.scrub_every_ms,
            rests_until_ms: self.scrub_rests_until_ms,
            wanted: self.scrub_wanted,
            done,
        };
        map.unknown_ids = self.unknown_ids;
    }
}

/// A part of the map with a key of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// What belongs to no entry of a table.
    Settings(MapSettings),
    /// A machine.
    Node(Node),
    /// What serves a machine's drives.
    Target(Target),
    /// A drive.
    Drive(Drive),
    /// A drive that was taken out for good.
    RemovedDrive(DriveId),
    /// A pool.
    Pool(Pool),
    /// A group.
    Group(Group),
    /// A list of groups that volumes share.
    GroupTable(Arc<GroupTable>),
    /// A member of a group that is passing to another drive.
    Relocation {
        /// The group.
        group: GroupId,
        /// From which drive to which.
        relocation: Relocation,
    },
    /// A volume. It can be read only beside the tables that it names.
    Volume(Volume<NamedGroups>),
    /// A session.
    Session(Session),
    /// How the last complete scrub of a group ended.
    Scrubbed {
        /// The group.
        group: GroupId,
        /// How it ended.
        record: ScrubRecord,
    },
    /// What a target's slice says of entries that it does not list.
    OfTarget(OfTarget),
}

/// What a piece is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PieceKey {
    /// Of [`Piece::Settings`]; there is one.
    Settings,
    /// Of [`Piece::Node`].
    Node(NodeId),
    /// Of [`Piece::Target`].
    Target(TargetId),
    /// Of [`Piece::Drive`].
    Drive(DriveId),
    /// Of [`Piece::RemovedDrive`].
    RemovedDrive(DriveId),
    /// Of [`Piece::Pool`].
    Pool(PoolId),
    /// Of [`Piece::Group`].
    Group(GroupId),
    /// Of [`Piece::GroupTable`].
    GroupTable(GroupTableId),
    /// Of [`Piece::Relocation`].
    Relocation(GroupId),
    /// Of [`Piece::Volume`].
    Volume(VolumeId),
    /// Of [`Piece::Session`].
    Session(SessionId),
    /// Of [`Piece::Scrubbed`].
    Scrubbed(GroupId),
    /// Of [`Piece::OfTarget`]; there is one, in the slice of a target only.
    OfTarget,
}

/// A table of the map whose entries are pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the kind of the piece of its name")]
pub enum PieceKind {
    Settings,
    Node,
    Target,
    Drive,
    RemovedDrive,
    Pool,
    Group,
    GroupTable,
    Relocation,
    Volume,
    Session,
    Scrubbed,
    OfTarget,
}

impl PieceKind {
    /// All kinds that a whole map has, in key order.
    pub const ALL: [PieceKind; 12] = [
        PieceKind::Settings,
        PieceKind::Node,
        PieceKind::Target,
        PieceKind::Drive,
        PieceKind::RemovedDrive,
        PieceKind::Pool,
        PieceKind::Group,
        PieceKind::GroupTable,
        PieceKind::Relocation,
        PieceKind::Volume,
        PieceKind::Session,
        PieceKind::Scrubbed,
    ];

    /// Its name in keys of a store, in lower case with hyphens.
    pub const fn name(self) -> &'static str {
        match self {
            PieceKind::Settings => "settings",
            PieceKind::Node => "node",
            PieceKind::Target => "target",
            PieceKind::Drive => "drive",
            PieceKind::RemovedDrive => "removed-drive",
            PieceKind::Pool => "pool",
            PieceKind::Group => "group",
            PieceKind::GroupTable => "group-table",
            PieceKind::Relocation => "relocation",
            PieceKind::Volume => "volume",
            PieceKind::Session => "session",
            PieceKind::Scrubbed => "scrubbed",
            PieceKind::OfTarget => "of-target",
        }
    }
}

impl Piece {
    /// What the piece is found by.
    pub fn key(&self) -> PieceKey {
        match self {
            Piece::Settings(_) => PieceKey::Settings,
            Piece::Node(node) => PieceKey::Node(node.id),
            Piece::Target(target) => PieceKey::Target(target.id),
            Piece::Drive(drive) => PieceKey::Drive(drive.id),
            Piece::RemovedDrive(drive) => PieceKey::RemovedDrive(*drive),
            Piece::Pool(pool) => PieceKey::Pool(pool.id),
            Piece::Group(group) => PieceKey::Group(group.id),
            Piece::GroupTable(table) => PieceKey::GroupTable(table.id),
            Piece::Relocation { group, .. } => PieceKey::Relocation(*group),
            Piece::Volume(volume) => PieceKey::Volume(volume.id),
            Piece::Session(session) => PieceKey::Session(session.id),
            Piece::Scrubbed { group, .. } => PieceKey::Scrubbed(*group),
            Piece::OfTarget(_) => PieceKey::OfTarget,
        }
    }

    /// Puts the piece in, in the place of the one with its key.
    ///
    /// # Errors
    /// If it is a volume that names a window of a table that the map does not have.
    fn put_into(self, map: &mut FabricMap) -> Result<(), DeltaError> {
        match self {
            Piece::Settings(settings) => settings.put_into(map),
            Piece::Node(node) => drop(map.nodes.insert(node.id, node)),
            Piece::Target(target) => drop(map.targets.insert(target.id, target)),
            Piece::Drive(drive) => drop(map.drives.insert(drive.id, drive)),
            Piece::RemovedDrive(drive) => drop(map.removed_drives.insert(drive)),
            Piece::Pool(pool) => drop(map.pools.insert(pool.id, pool)),
            Piece::Group(group) => drop(map.groups.insert(group.id, group)),
            Piece::GroupTable(table) => drop(map.group_tables.insert(table.id, table)),
            Piece::Relocation { group, relocation } => drop(map.relocations.insert(group, relocation)),
            Piece::Volume(named) => {
                let id = named.id;
                let volume = named.with_groups(|groups| groups.found_in(&map.group_tables));
                let volume = volume.map_err(|window| DeltaError::NoTable { volume: id, window })?;
                map.volumes.insert(id, volume);
            }
            Piece::Session(session) => drop(map.sessions.insert(session.id, session)),
            Piece::Scrubbed { group, record } => drop(map.scrub.done.insert(group, record)),
            Piece::OfTarget(of_target) => map.of_target = Some(of_target),
        }
        Ok(())
    }
}

impl PieceKey {
    /// In which table the piece is.
    pub fn kind(self) -> PieceKind {
        match self {
            PieceKey::Settings => PieceKind::Settings,
            PieceKey::Node(_) => PieceKind::Node,
            PieceKey::Target(_) => PieceKind::Target,
            PieceKey::Drive(_) => PieceKind::Drive,
            PieceKey::RemovedDrive(_) => PieceKind::RemovedDrive,
            PieceKey::Pool(_) => PieceKind::Pool,
            PieceKey::Group(_) => PieceKind::Group,
            PieceKey::GroupTable(_) => PieceKind::GroupTable,
            PieceKey::Relocation(_) => PieceKind::Relocation,
            PieceKey::Volume(_) => PieceKind::Volume,
            PieceKey::Session(_) => PieceKind::Session,
            PieceKey::Scrubbed(_) => PieceKind::Scrubbed,
            PieceKey::OfTarget => PieceKind::OfTarget,
        }
    }

    /// Its number within its kind; 0 for the settings.
    pub fn number(self) -> u128 {
        match self {
            PieceKey::Settings | PieceKey::OfTarget => 0,
            PieceKey::Node(id) => id.0.into(),
            PieceKey::Target(id) => id.0.into(),
            PieceKey::Drive(id) | PieceKey::RemovedDrive(id) => id.0,
            PieceKey::Pool(id) => id.0.into(),
            PieceKey::Group(id) | PieceKey::Relocation(id) | PieceKey::Scrubbed(id) => id.0.into(),
            PieceKey::GroupTable(id) => id.0.into(),
            PieceKey::Volume(id) => id.0.into(),
            PieceKey::Session(id) => id.0.into(),
        }
    }

    /// Takes the piece with this key out of a map. Says whether it was there; the settings always
    /// are, and stay.
    fn take_from(self, map: &mut FabricMap) -> bool {
        match self {
            PieceKey::Settings => false,
            PieceKey::Node(id) => map.nodes.remove(&id).is_some(),
            PieceKey::Target(id) => map.targets.remove(&id).is_some(),
            PieceKey::Drive(id) => map.drives.remove(&id).is_some(),
            PieceKey::RemovedDrive(id) => map.removed_drives.remove(&id),
            PieceKey::Pool(id) => map.pools.remove(&id).is_some(),
            PieceKey::Group(id) => map.groups.remove(&id).is_some(),
            PieceKey::GroupTable(id) => map.group_tables.remove(&id).is_some(),
            PieceKey::Relocation(id) => map.relocations.remove(&id).is_some(),
            PieceKey::Volume(id) => map.volumes.remove(&id).is_some(),
            PieceKey::Session(id) => map.sessions.remove(&id).is_some(),
            PieceKey::Scrubbed(id) => map.scrub.done.remove(&id).is_some(),
            PieceKey::OfTarget => map.of_target.take().is_some(),
        }
    }
}

/// What leads from one version of a map to a later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The fabric of both maps.
    pub fabric: FabricId,
    /// The version that it leads from.
    pub from: MapVersion,
    /// The version that it leads to.
    pub to: MapVersion,
    /// The next number for any identifier made from a counter, in the later map.
    pub next_id: u64,
    /// Pieces that are new or different, in key order.
    pub put: Vec<Piece>,
    /// Keys of pieces that are gone, in key order.
    pub removed: Vec<PieceKey>,
}

/// Why a delta does not fit a map. The map must be fetched whole then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// It is about another fabric.
    #[error("the change is of fabric {found}, the map of {expected}")]
    Fabric {
        /// The fabric of the map.
        expected: FabricId,
        /// The fabric of the delta.
        found: FabricId,
    },
    /// It does not begin where the map is.
    #[error("the change leads from {found}, the map is at {expected}")]
    Gap {
        /// The version of the map.
        expected: MapVersion,
        /// The version that the delta leads from.
        found: MapVersion,
    },
    /// It takes out what is not there: the maps have gone different ways.
    #[error("the change takes out {key:?}, which the map does not have")]
    Missing {
        /// The key.
        key: PieceKey,
    },
    /// It puts in a volume whose groups are not known.
    #[error(
        "{volume} has {} groups of table {} from place {} on, which the map does not have",
        window.count, window.table, window.first
    )]
    NoTable {
        /// The volume.
        volume: VolumeId,
        /// The part of a table that it names.
        window: TableWindow,
    },
}

impl FabricMap {
    /// What leads from an older version of this map to this one. Costs what differs if the two have
    /// a common origin.
    pub fn delta_from(&self, old: &FabricMap) -> Delta {
        let mut delta = Delta {
            fabric: self.fabric,
            from: old.version,
            to: self.version,
            next_id: self.next_id,
            put: Vec::new(),
            removed: Vec::new(),
        };
        let settings = MapSettings::of(self);
        if settings != MapSettings::of(old) {
            delta.put.push(Piece::Settings(settings));
        }
        delta.add(&old.nodes, &self.nodes, PieceKey::Node, |_, n| Piece::Node(n.clone()));
        delta.add(&old.targets, &self.targets, PieceKey::Target, |_, t| Piece::Target(t.clone()));
        delta.add(&old.drives, &self.drives, PieceKey::Drive, |_, d| Piece::Drive(d.clone()));
        delta
            .put
            .extend(self.removed_drives.difference(&old.removed_drives).map(|d| Piece::RemovedDrive(*d)));
        let back = old.removed_drives.difference(&self.removed_drives);
        delta.removed.extend(back.map(|d| PieceKey::RemovedDrive(*d)));
        delta.add(&old.pools, &self.pools, PieceKey::Pool, |_, p| Piece::Pool(p.clone()));
        delta.add(&old.groups, &self.groups, PieceKey::Group, |_, g| Piece::Group(g.clone()));
        delta.add(&old.group_tables, &self.group_tables, PieceKey::GroupTable, |_, table| {
            Piece::GroupTable(table.clone())
        });
        delta.add(&old.relocations, &self.relocations, PieceKey::Relocation, |group, relocation| {
            Piece::Relocation { group, relocation: *relocation }
        });
        delta.add(&old.volumes, &self.volumes, PieceKey::Volume, |_, v| Piece::Volume(v.named()));
        delta.add(&old.sessions, &self.sessions, PieceKey::Session, |_, s| Piece::Session(s.clone()));
        delta.add(&old.scrub.done, &self.scrub.done, PieceKey::Scrubbed, |group, record| Piece::Scrubbed {
            group,
            record: *record,
        });
        if self.of_target != old.of_target {
            match &self.of_target {
                Some(of_target) => delta.put.push(Piece::OfTarget(of_target.clone())),
                None => delta.removed.push(PieceKey::OfTarget),
            }
        }
        delta
    }

    /// The later map that the delta leads to.
    ///
    /// # Errors
    /// If the delta is of another fabric, does not begin at this version, takes out what is not there, or
    /// puts in a volume whose groups are not known.
    pub fn apply_delta(&self, delta: &Delta) -> Result<FabricMap, DeltaError> {
        if delta.fabric != self.fabric {
            return Err(DeltaError::Fabric { expected: self.fabric, found: delta.fabric });
        }
        if delta.from != self.version {
            return Err(DeltaError::Gap { expected: self.version, found: delta.from });
        }
        let mut map = FabricMap { version: delta.to, next_id: delta.next_id, ..self.clone() };
        for key in &delta.removed {
            if !key.take_from(&mut map) {
                return Err(DeltaError::Missing { key: *key });
            }
        }
        for piece in &delta.put {
            piece.clone().put_into(&mut map)?;
        }
        Ok(map)
    }

    /// All pieces of the map, in key order: what leads to it from an empty one of the same fabric.
    pub fn pieces(&self) -> Vec<Piece> {
        let mut pieces = self.delta_from(&FabricMap::empty(self.fabric)).put;
        if !matches!(pieces.first(), Some(Piece::Settings(_))) {
            pieces.insert(0, Piece::Settings(MapSettings::of(self)));
        }
        pieces
    }

    /// The pieces of one kind whose numbers are in the range, in key order. Costs what they are.
    pub fn pieces_of(&self, kind: PieceKind, numbers: impl RangeBounds<u128>) -> Vec<Piece> {
        let numbers = (numbers.start_bound().cloned(), numbers.end_bound().cloned());
        let small = |n: u128| u64::try_from(n).ok();
        match kind {
            PieceKind::Settings if numbers.contains(&0) => vec![Piece::Settings(MapSettings::of(self))],
            PieceKind::Settings => Vec::new(),
            PieceKind::Node => {
                let key = |n| u32::try_from(n).ok().map(NodeId);
                in_range(&self.nodes, numbers, key, |_, n| Piece::Node(n.clone()))
            }
            PieceKind::Target => {
                let key = |n| u32::try_from(n).ok().map(TargetId);
                in_range(&self.targets, numbers, key, |_, t| Piece::Target(t.clone()))
            }
            PieceKind::Drive => {
                in_range(&self.drives, numbers, |n| Some(DriveId(n)), |_, d| Piece::Drive(d.clone()))
            }
            PieceKind::RemovedDrive => {
                let drives = self.removed_drives.iter().filter(|d| numbers.contains(&d.0));
                drives.map(|d| Piece::RemovedDrive(*d)).collect()
            }
            PieceKind::Pool => {
                let key = |n| u32::try_from(n).ok().map(PoolId);
                in_range(&self.pools, numbers, key, |_, p| Piece::Pool(p.clone()))
            }
            PieceKind::Group => {
                let key = |n| small(n).map(GroupId);
                in_range(&self.groups, numbers, key, |_, g| Piece::Group(g.clone()))
            }
            PieceKind::GroupTable => {
                let key = |n| small(n).map(GroupTableId);
                in_range(&self.group_tables, numbers, key, |_, table| Piece::GroupTable(table.clone()))
            }
            PieceKind::Relocation => {
                let piece =
                    |group, relocation: &Relocation| Piece::Relocation { group, relocation: *relocation };
                in_range(&self.relocations, numbers, |n| small(n).map(GroupId), piece)
            }
            PieceKind::Volume => {
                let key = |n| small(n).map(VolumeId);
                in_range(&self.volumes, numbers, key, |_, v| Piece::Volume(v.named()))
            }
            PieceKind::Session => {
                let key = |n| small(n).map(SessionId);
                in_range(&self.sessions, numbers, key, |_, s| Piece::Session(s.clone()))
            }
            PieceKind::Scrubbed => {
                let piece = |group, record: &ScrubRecord| Piece::Scrubbed { group, record: *record };
                in_range(&self.scrub.done, numbers, |n| small(n).map(GroupId), piece)
            }
            PieceKind::OfTarget => {
                let of_target = self.of_target.iter().filter(|_| numbers.contains(&0));
                of_target.map(|of_target| Piece::OfTarget(of_target.clone())).collect()
            }
        }
    }

    /// What leads to this map from nothing: all of it, as a delta that begins at version 0.
    pub fn from_nothing(&self) -> Delta {
        let (fabric, to, next_id) = (self.fabric, self.version, self.next_id);
        Delta { fabric, from: MapVersion(0), to, next_id, put: self.pieces(), removed: Vec::new() }
    }

    /// The map to which a delta leads that begins at version 0.
    ///
    /// # Errors
    /// If it begins at another version, or takes anything out.
    pub fn led_to_from_nothing(delta: &Delta) -> Result<FabricMap, DeltaError> {
        let nothing = FabricMap { version: MapVersion(0), ..FabricMap::empty(delta.fabric) };
        nothing.apply_delta(delta)
    }

    /// Puts other settings in.
    pub(super) fn put_settings(&mut self, settings: MapSettings) {
        settings.put_into(self);
    }

    /// Puts a piece in, in the place of the one with its key. The version stays as it is.
    ///
    /// # Errors
    /// If it is a volume that names a window of a table that the map does not have.
    pub fn put_piece(&mut self, piece: Piece) -> Result<(), DeltaError> {
        piece.put_into(self)
    }
}

impl Delta {
    fn add<K: Key, V: Clone + PartialEq>(
        &mut self,
        old: &Table<K, V>,
        new: &Table<K, V>,
        key_of: impl Fn(K) -> PieceKey,
        piece_of: impl Fn(K, &V) -> Piece,
    ) {
        for change in new.changes(old) {
            match change {
                TableChange::Put(key, value) => self.put.push(piece_of(*key, value)),
                TableChange::Removed(key) => self.removed.push(key_of(*key)),
            }
        }
    }
}

/// The entries of a table whose keys have numbers in the range.
fn in_range<K: Key, V: Clone>(
    table: &Table<K, V>,
    numbers: (Bound<u128>, Bound<u128>),
    key_of: impl Fn(u128) -> Option<K>,
    piece_of: impl Fn(K, &V) -> Piece,
) -> Vec<Piece> {
    // A number above all keys ends the range, or leaves nothing of it.
    let end = match numbers.1 {
        Bound::Included(n) => key_of(n).map_or(Bound::Unbounded, Bound::Included),
        Bound::Excluded(n) => key_of(n).map_or(Bound::Unbounded, Bound::Excluded),
        Bound::Unbounded => Bound::Unbounded,
    };
    let start = match numbers.0 {
        Bound::Included(n) => key_of(n).map(Bound::Included),
        Bound::Excluded(n) => key_of(n).map(Bound::Excluded),
        Bound::Unbounded => Some(Bound::Unbounded),
    };
    let Some(start) = start else { return Vec::new() };
    table.range((start, end)).map(|(key, value)| piece_of(*key, value)).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::PieceSet;
    use super::*;
    use crate::{
        AttachMode, BlockCount, DeviceId, DriveState, Epoch, FileSystem, Generation, ObjectSpan, Protection,
        Role, SessionSlot, SessionState, Slot, Striping, VolumeKind, VolumeState,
    };
    use proptest::prelude::*;

    fn table(id: u64) -> Arc<GroupTable> {
        Arc::new(GroupTable::new(GroupTableId(id), &[GroupId(id), GroupId((id + 1) % 6)]))
    }

    /// A list of its own, or a window of a table.
    fn groups(id: u64, value: u64) -> NamedGroups {
        match value {
            0 => NamedGroups::Own([GroupId(id)].into()),
            n => NamedGroups::Window(TableWindow {
                table: GroupTableId(n),
                first: (id % 2) as u32,
                count: 1 + (id % 3) as u32 / 2,
            }),
        }
    }

    /// Volumes of the two highest numbers are file systems.
    fn volume(id: u64, value: u64) -> Volume<NamedGroups> {
        let span = ObjectSpan { first: 0, count: 1, groups: groups(id, value) };
        let sets = vec![groups(id, value), groups(id - id % 2, (value + 1) % 4)];
        let (spans, kind) = match id {
            4.. => (
                vec![],
                VolumeKind::Files(FileSystem {
                    sets,
                    shards: vec![crate::ListedShard::new(VolumeId(value))],
                    is_spread: value % 2 == 1,
                }),
            ),
            _ => (vec![span], VolumeKind::Blocks),
        };
        Volume {
            id: VolumeId(id),
            name: format!("v{id}"),
            pool: PoolId(1),
            size: BlockCount(value),
            protection: Protection::mirror(2),
            striping: Striping { unit_blocks: 1, width: 1, object_blocks: 1 },
            spans,
            generation: Generation(1),
            state: VolumeState::Ready,
            thin: false,
            created_ms: 5,
            kind,
        }
    }

    /// A piece out of few numbers, so that two maps have much in common.
    pub(in crate::map) fn piece() -> impl Strategy<Value = Piece> {
        (0u8..12, 0u64..6, 0u64..4).prop_map(|(kind, id, value)| {
            let group = GroupId(id);
            let drive = DriveId(u128::from(id));
            match kind {
                0 => Piece::Node(Node { id: NodeId(id as u32), name: format!("n{value}") }),
                10 => Piece::Target(Target {
                    id: TargetId(id as u32),
                    node: NodeId(value as u32),
                    index: value as u32,
                    addr: format!("h:{id}"),
                }),
                11 => Piece::GroupTable(table(id)),
                1 => Piece::Drive(Drive {
                    id: drive,
                    node: NodeId(value as u32),
                    target: TargetId(value as u32 + id as u32 % 2),
                    device: DeviceId(u128::from(value)),
                    pool: PoolId(1),
                    path: "/dev/x".into(),
                    capacity: BlockCount(7),
                    state: DriveState::Active,
                }),
                2 => Piece::RemovedDrive(drive),
                3 => Piece::Pool(Pool { id: PoolId(id as u32), name: format!("p{value}") }),
                4 => Piece::Group(Group {
                    id: group,
                    pool: PoolId(1),
                    epoch: Epoch(value),
                    slots: [drive, DriveId(u128::from(value) + 2)]
                        .map(|drive| Slot { drive, role: Role::InSync, since: Epoch(1) })
                        .to_vec(),
                    floor: Default::default(),
                }),
                5 => Piece::Relocation {
                    group,
                    relocation: Relocation { from: drive, to: DriveId(value.into()) },
                },
                6 => Piece::Volume(volume(id, value)),
                7 => Piece::Session(Session {
                    number: value,
                    lane_slots: vec![],
                    id: SessionId(id),
                    slot: SessionSlot(value as u16),
                    volume: VolumeId(1),
                    mode: AttachMode::Shared,
                    generation: Generation(1),
                    client: "c".into(),
                    state: SessionState::Open,
                }),
                8 => {
                    Piece::Scrubbed { group, record: ScrubRecord { chunks: value, ..ScrubRecord::default() } }
                }
                _ => Piece::Settings(MapSettings {
                    scrub_rests_until_ms: value,
                    unknown_ids: vec![(id, id + 1)],
                    ..MapSettings::of(&FabricMap::empty(FabricId(1)))
                }),
            }
        })
    }

    /// Puts pieces in, and takes out those that are to go. Tables come with the volumes that name them, and
    /// stay while there are any.
    pub(in crate::map) fn run(mut map: FabricMap, steps: &[(Piece, bool)]) -> FabricMap {
        for (piece, stays) in steps {
            let named = match piece {
                Piece::Volume(volume) => volume.lists().cloned().collect(),
                _ => Vec::new(),
            };
            for groups in named {
                if let NamedGroups::Window(window) = groups {
                    map.group_tables.insert(window.table, table(window.table.0));
                }
            }
            let is_named = |key| {
                let mut tables = map.volumes.values().flat_map(Volume::group_tables);
                tables.any(|table| PieceKey::GroupTable(table.id) == key)
            };
            match stays {
                true => piece.clone().put_into(&mut map).expect("its table is there"),
                false if is_named(piece.key()) => {}
                false => drop(piece.key().take_from(&mut map)),
            }
        }
        map.version = MapVersion(map.version.0 + 1);
        map.next_id += steps.len() as u64;
        map
    }

    pub(in crate::map) fn steps() -> impl Strategy<Value = Vec<(Piece, bool)>> {
        proptest::collection::vec((piece(), any::<bool>()), 0..40)
    }

    proptest! {
        #[test]
        fn a_delta_leads_from_the_old_map_to_the_new(first in steps(), then in steps()) {
            let old = run(FabricMap::empty(FabricId(1)), &first);
            let new = run(old.clone(), &then);
            let delta = new.delta_from(&old);
            prop_assert_eq!(&old.apply_delta(&delta), &Ok(new.clone()));
            // Nothing is in it that is the same in both, and each key once.
            let all = old.pieces();
            prop_assert!(delta.put.iter().all(|piece| !all.contains(piece)));
            let mut keys: Vec<_> = delta.put.iter().map(Piece::key).chain(delta.removed.clone()).collect();
            keys.sort_unstable();
            prop_assert!(keys.windows(2).all(|two| two[0] < two[1]));
            prop_assert_eq!(
                new.apply_delta(&delta),
                Err(DeltaError::Gap { expected: new.version, found: old.version })
            );
        }

        #[test]
        fn a_map_is_its_pieces(steps in steps()) {
            let map = run(FabricMap::empty(FabricId(1)), &steps);
            let mut made = FabricMap { version: map.version, next_id: map.next_id, ..FabricMap::empty(FabricId(1)) };
            for piece in map.pieces() {
                piece.put_into(&mut made).expect("tables come first");
            }
            prop_assert_eq!(made, map);
        }

        #[test]
        fn a_map_is_the_pieces_of_its_kinds(steps in steps(), at in 0u128..7) {
            let map = run(FabricMap::empty(FabricId(1)), &steps);
            let mut found = Vec::new();
            for kind in PieceKind::ALL {
                let (low, high) = (map.pieces_of(kind, ..at), map.pieces_of(kind, at..));
                prop_assert!(low.iter().all(|p| p.key().kind() == kind && p.key().number() < at));
                prop_assert!(high.iter().all(|p| p.key().kind() == kind && p.key().number() >= at));
                prop_assert_eq!(map.pieces_of(kind, u128::MAX..), vec![]);
                found.extend(low.into_iter().chain(high));
            }
            prop_assert_eq!(found, map.pieces());
        }

        #[test]
        fn deltas_that_are_replayed_make_parts_of_later_maps_whole(
            maps in proptest::collection::vec(steps(), 2..6), later in any::<Vec<proptest::sample::Index>>(),
        ) {
            let mut history = vec![FabricMap::empty(FabricId(1))];
            for steps in &maps {
                history.push(run(history.last().expect("there is one").clone(), steps));
            }
            let newest = history.last().expect("there is one");
            // Each kind is as it was in some version.
            let (version, next_id) = (history[0].version, history[0].next_id);
            let mut mixed = PieceSet::at(FabricId(1), version, next_id);
            for (at, kind) in PieceKind::ALL.into_iter().enumerate() {
                let from = later.get(at).map_or(&history[0], |index| index.get(&history));
                from.pieces_of(kind, ..).into_iter().for_each(|piece| mixed.put(piece));
            }
            for two in history.windows(2) {
                prop_assert_eq!(mixed.replay(two[1].delta_from(&two[0])), Ok(()));
            }
            prop_assert_eq!(&mixed.into_map(), &Ok(newest.clone()));
        }

        #[test]
        fn what_two_deltas_do_one_after_the_other_one_does(a in steps(), b in steps(), c in steps()) {
            let first = run(FabricMap::empty(FabricId(1)), &a);
            let second = run(first.clone(), &b);
            let third = run(second.clone(), &c);
            let by_two = first.apply_delta(&second.delta_from(&first)).expect("it fits");
            prop_assert_eq!(by_two.apply_delta(&third.delta_from(&second)), Ok(third.clone()));
            prop_assert_eq!(first.apply_delta(&third.delta_from(&first)), Ok(third));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let map = FabricMap::empty(FabricId(1));
        let delta = Delta { removed: vec![PieceKey::Group(GroupId(3))], ..map.delta_from(&map) };
        assert_eq!(map.apply_delta(&delta), Err(DeltaError::Missing { key: PieceKey::Group(GroupId(3)) }));
        let other = Delta { fabric: FabricId(2), ..map.delta_from(&map) };
        let (expected, found) = (FabricId(1), FabricId(2));
        assert_eq!(map.apply_delta(&other), Err(DeltaError::Fabric { expected, found }));
    }
}
