//! The first version of the map's documents, where it differs from what the program works with.
//!
//! A node had one target, and its address was the node's. The first target of a node is written so. Others,
//! and the drives that they serve, have fields of their own, which make the document one of schema 2.
//! Volumes had lists of groups of their own; tables make it one of schema 4, and so do the numbers of
//! attaches. File systems make it one of schema 6.

use super::{
    DeltaError, DriveState, Durations, FileSystem, Group, GroupTable, GroupTables, ListedShard, MapVersion,
};
use super::{
    NamedGroups, ObjectSpan, OfTarget, Pool, Relocation, Session, SpanGroups, Striping, TableWindow,
};
use super::{Target, VolumeKind, VolumeState};
use crate::{
    BlockCount, CapacityLevels, DeviceId, DriveId, FabricId, Generation, GroupId, GroupTableId, NodeId,
    PoolId, Protection, ScrubPlan, SessionId, Table, TargetId, VolumeId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The whole map.
#[derive(Serialize, Deserialize)]
pub(super) struct FabricMap {
    schema: u32,
    fabric: FabricId,
    version: MapVersion,
    durations: Durations,
    nodes: Table<NodeId, Node>,
    /// All but the first target of each node.
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    targets: Table<TargetId, Target>,
    drives: Table<DriveId, super::Drive>,
    #[serde(default)]
    removed_drives: BTreeSet<DriveId>,
    pools: Table<PoolId, Pool>,
    groups: Table<GroupId, Group>,
    #[serde(default)]
    relocations: Table<GroupId, Relocation>,
    /// Since schema 4.
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    group_tables: Table<GroupTableId, Vec<GroupId>>,
    volumes: Table<VolumeId, Volume>,
    sessions: Table<SessionId, Session>,
    #[serde(default, skip_serializing_if = "ScrubPlan::is_default")]
    scrub: ScrubPlan,
    #[serde(default, skip_serializing_if = "CapacityLevels::is_default")]
    capacity: CapacityLevels,
    next_id: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unknown_ids: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of_target: Option<OfTarget>,
}

/// A node, with the address of its first target; empty: it is not listed.
#[derive(Clone, Serialize, Deserialize)]
struct Node {
    id: NodeId,
    name: String,
    addr: String,
}

/// The schema of a document without what only later ones can say.
const SCHEMA_FIRST: u32 = 1;

/// The schema of a document with other targets than the first ones of nodes.
const SCHEMA_OF_TARGETS: u32 = 2;

/// The schema of the slice of a target.
const SCHEMA_OF_A_TARGET: u32 = 3;

/// The schema of a document whose volumes share lists of groups, or whose sessions have numbers.
const SCHEMA_OF_GROUP_TABLES: u32 = 4;

/// The schema of a document with a session that has several lanes.
const SCHEMA_OF_LANES: u32 = 5;

/// A map with these parts, and all others as another map has them.
macro_rules! with_the_rest_of {
    ($map:ident, $($kind:ident)::+ { $($part:ident),* }) => {
        $($kind)::+ {
            $($part,)*
            fabric: $map.fabric,
            version: $map.version,
            durations: $map.durations,
            drives: $map.drives,
            removed_drives: $map.removed_drives,
            pools: $map.pools,
            groups: $map.groups,
            relocations: $map.relocations,
            sessions: $map.sessions,
            scrub: $map.scrub,
            capacity: $map.capacity,
            next_id: $map.next_id,
            unknown_ids: $map.unknown_ids,
            of_target: $map.of_target,
        }
    };
}

impl TryFrom<FabricMap> for super::FabricMap {
    type Error = DeltaError;

    fn try_from(m: FabricMap) -> Result<Self, DeltaError> {
        let firsts = m.nodes.iter().filter(|(_, node)| !node.addr.is_empty()).map(|(key, node)| {
            let id = TargetId::first_of(*key);
            (id, Target { id, node: *key, index: 0, addr: node.addr.clone() })
        });
        let mut targets: Table<TargetId, Target> = firsts.collect();
        targets.extend(m.targets.iter().map(|(id, target)| (*id, target.clone())));
        let nodes = m.nodes.iter();
        let nodes = nodes.map(|(key, n)| (*key, super::Node { id: n.id, name: n.name.clone() })).collect();
        let schema = m.schema.max(super::FabricMap::SCHEMA);
        let table =
            |(id, groups): (&GroupTableId, &Vec<GroupId>)| (*id, Arc::new(GroupTable::new(*id, groups)));
        let group_tables: GroupTables = m.group_tables.iter().map(table).collect();
        let volume = |(id, volume): (&VolumeId, &Volume)| Ok((*id, volume.read(&group_tables)?));
        let volumes = m.volumes.iter().map(volume).collect::<Result<_, DeltaError>>()?;
        Ok(with_the_rest_of!(m, super::FabricMap { schema, nodes, targets, group_tables, volumes }))
    }
}

impl From<super::FabricMap> for FabricMap {
    fn from(m: super::FabricMap) -> Self {
        let is_first = |id: &TargetId, target: &Target| {
            let node = target.node;
            m.nodes.contains_key(&node)
                && *id == target.id
                && *id == TargetId::first_of(node)
                && target.index == 0
                && !target.addr.is_empty()
        };
        let (firsts, others): (Vec<_>, Vec<_>) = m.targets.iter().partition(|(id, t)| is_first(id, t));
        let targets: Table<TargetId, Target> = others.into_iter().map(|(id, t)| (*id, t.clone())).collect();
        let firsts: Table<NodeId, &Target> = firsts.into_iter().map(|(_, t)| (t.node, t)).collect();
        let addr = |node: &NodeId| firsts.get(node).map_or_else(String::new, |target| target.addr.clone());
        let node = |(key, n): (&NodeId, &super::Node)| {
            (*key, Node { id: n.id, name: n.name.clone(), addr: addr(key) })
        };
        let is_plain = targets.is_empty() && m.drives.values().all(super::Drive::is_of_first_target);
        let schema = match (&m.of_target, is_plain) {
            _ if m.volumes.values().any(|v| v.kind != VolumeKind::Blocks) => super::FabricMap::SCHEMA,
            _ if m.sessions.values().any(|s| s.lanes() > 1) => SCHEMA_OF_LANES,
            _ if !m.group_tables.is_empty() || m.sessions.values().any(|s| s.number != 0) => {
                SCHEMA_OF_GROUP_TABLES
            }
            (Some(_), _) => SCHEMA_OF_A_TARGET,
            (None, true) => SCHEMA_FIRST,
            (None, false) => SCHEMA_OF_TARGETS,
        };
        let nodes = m.nodes.iter().map(node).collect();
        let tables = m.group_tables.iter();
        let group_tables = tables.map(|(id, table)| (*id, table.groups().to_vec())).collect();
        let volumes = m.volumes.iter().map(|(id, volume)| (*id, Volume::of(volume))).collect();
        with_the_rest_of!(m, FabricMap { schema, nodes, targets, group_tables, volumes })
    }
}

/// A drive, with its target if that is not its node's first. It says nothing of its device: readers of
/// the first release would refuse the field, and its target says it again at the next join.
#[derive(Serialize, Deserialize)]
pub(super) struct Drive {
    id: DriveId,
    node: NodeId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<TargetId>,
    pool: PoolId,
    path: String,
    capacity: BlockCount,
    state: DriveState,
}

impl From<Drive> for super::Drive {
    fn from(d: Drive) -> Self {
        super::Drive {
            id: d.id,
            node: d.node,
            target: d.target.unwrap_or(TargetId::first_of(d.node)),
            device: DeviceId::of_drive(d.id),
            pool: d.pool,
            path: d.path,
            capacity: d.capacity,
            state: d.state,
        }
    }
}

impl From<super::Drive> for Drive {
    fn from(d: super::Drive) -> Self {
        Drive {
            target: Some(d.target).filter(|_| !d.is_of_first_target()),
            id: d.id,
            node: d.node,
            pool: d.pool,
            path: d.path,
            capacity: d.capacity,
            state: d.state,
        }
    }
}

/// A volume: all volumes were mirrors.
#[derive(Clone, Serialize, Deserialize)]
struct Volume {
    id: VolumeId,
    name: String,
    pool: PoolId,
    size: BlockCount,
    copies: u8,
    striping: Striping,
    spans: Vec<Span>,
    generation: Generation,
    state: VolumeState,
    thin: bool,
    created_ms: u64,
    /// The file system that it is; since schema 6, as the next field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    files: Option<Files>,
    /// The file system that it holds metadata of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file_system: Option<VolumeId>,
}

/// What a file system has instead of spans.
#[derive(Clone, Serialize, Deserialize)]
struct Files {
    sets: Vec<Groups>,
    shards: Vec<ListedShard>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_spread: bool,
}

/// A list of groups of its own, or a window of a table.
#[derive(Clone, Serialize, Deserialize)]
struct Groups {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<GroupId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<TableWindow>,
}

/// A span: with its own groups, or with a window of a table since schema 4.
#[derive(Clone, Serialize, Deserialize)]
struct Span {
    first: u64,
    count: u64,
    #[serde(flatten)]
    groups: Groups,
}

impl Volume {
    fn of(v: &super::Volume) -> Volume {
        let Protection::Mirror { copies } = v.protection;
        Volume {
            id: v.id,
            name: v.name.clone(),
            pool: v.pool,
            size: v.size,
            copies,
            striping: v.striping,
            spans: v.spans.iter().map(Span::of).collect(),
            generation: v.generation,
            state: v.state,
            thin: v.thin,
            created_ms: v.created_ms,
            files: v.files().map(Files::of),
            file_system: v.system_of(),
        }
    }

    fn read(&self, tables: &GroupTables) -> Result<super::Volume, DeltaError> {
        let missing = |window| DeltaError::NoTable { volume: self.id, window };
        let read = |span: &Span| span.read(tables).map_err(missing);
        let kind = match (&self.files, self.file_system) {
            (Some(files), _) => VolumeKind::Files(files.read(tables).map_err(missing)?),
            (None, Some(file_system)) => VolumeKind::System { file_system },
            (None, None) => VolumeKind::Blocks,
        };
        Ok(super::Volume {
            id: self.id,
            name: self.name.clone(),
            pool: self.pool,
            size: self.size,
            protection: Protection::mirror(self.copies),
            striping: self.striping,
            spans: self.spans.iter().map(read).collect::<Result<_, _>>()?,
            generation: self.generation,
            state: self.state,
            thin: self.thin,
            created_ms: self.created_ms,
            kind,
        })
    }
}

impl Files {
    fn of(files: &FileSystem) -> Files {
        let sets = files.sets.iter().map(Groups::of).collect();
        Files { sets, shards: files.shards.clone(), is_spread: files.is_spread }
    }

    fn read(&self, tables: &GroupTables) -> Result<FileSystem, TableWindow> {
        let sets = self.sets.iter().map(|set| set.read(tables)).collect::<Result<_, _>>()?;
        Ok(FileSystem { sets, shards: self.shards.clone(), is_spread: self.is_spread })
    }
}

impl Groups {
    fn of(groups: &SpanGroups) -> Groups {
        match groups.named() {
            NamedGroups::Own(groups) => Groups { groups: groups.to_vec(), window: None },
            NamedGroups::Window(window) => Groups { groups: Vec::new(), window: Some(window) },
        }
    }

    fn read(&self, tables: &GroupTables) -> Result<SpanGroups, TableWindow> {
        let named = match self.window {
            None => NamedGroups::Own(self.groups.clone().into()),
            Some(window) => NamedGroups::Window(window),
        };
        named.found_in(tables)
    }
}

impl Span {
    fn of(span: &ObjectSpan) -> Span {
        Span { first: span.first, count: span.count, groups: Groups::of(&span.groups) }
    }

    fn read(&self, tables: &GroupTables) -> Result<ObjectSpan, TableWindow> {
        Ok(ObjectSpan { first: self.first, count: self.count, groups: self.groups.read(tables)? })
    }
}
