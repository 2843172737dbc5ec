//! A fabric map of any size, made without a fabric: what the manager has to carry, for measurements.
//!
//! It owns how such a map looks. Each drive is in as many groups as placement gives it, each group
//! on different nodes, each volume over as many groups as a span lists at most.

use std::collections::BTreeMap;
use std::sync::Arc;
use weft_layout::{Candidate, groups_wanted};
use weft_types::limits::SPAN_GROUPS_MAX;
use weft_types::{
    AttachMode, BlockCount, DeviceId, Drive, DriveId, DriveState, Durations, Epoch, FabricId, FabricMap,
    Generation, Group, GroupId, GroupTable, GroupTableId, MapVersion, NodeId, ObjectSpan, Pool, PoolId,
    Protection, Role, Session, SessionId, SessionSlot, SessionState, Slot, SpanGroups, Striping, TableWindow,
    Target, TargetId, Volume, VolumeId, VolumeState,
};

/// 4 TiB, as a drive of today has, in blocks.
const DRIVE_BLOCKS: u64 = 1 << 30;

/// 100 GiB in blocks: 1,600 objects, so that a volume's list of groups is as long as it may be.
const VOLUME_BLOCKS: u64 = 25 << 20;

/// Blocks of an object, 64 MiB.
const OBJECT_BLOCKS: u32 = 16_384;

/// How large a map is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Machines.
    pub(super) nodes: u32,
    /// Threads of each machine, each a target.
    pub(super) threads: u32,
    /// Devices of each machine.
    pub(super) devices: u32,
    /// Parts of each device, each a drive.
    pub(super) parts: u32,
    /// Volumes of 100 GiB, thin.
    pub(super) volumes: u64,
    /// Open sessions, spread over the volumes.
    pub(super) sessions: u64,
    /// Lanes of each session.
    pub(super) lanes: u32,
    /// How the volumes are protected.
    pub(super) protection: Protection,
}

impl Shape {
    /// The version of the map.
    pub(super) const VERSION: MapVersion = MapVersion(1000);

    /// The name of a node.
    pub(super) fn node_name(node: u32) -> String {
        format!("node-{node}")
    }

    /// Where a node's target of this index would listen: an address of the node's own on this machine, where
    /// nobody does.
    pub(super) fn target_addr(node: u32, index: u32) -> String {
        format!("127.{}.{}.{}:{}", 100 + (node >> 16), node >> 8 & 0xff, node & 0xff, 4810 + index)
    }

    /// Where a device would be on its node.
    fn device_path(device: u32) -> String {
        format!("/dev/disk/by-id/nvme-{device}")
    }

    /// Drives of each machine.
    fn drives(self) -> u32 {
        self.devices * self.parts
    }

    /// The drives in an order in which neighbours are on different nodes: drive `i` is on node `1 +
    /// i % nodes`.
    fn drive_ids(self) -> impl Iterator<Item = (DriveId, NodeId, u32)> {
        (0..self.nodes * self.drives()).map(move |i| {
            // Random bits of the kind that labels have, the same in each run.
            let bits = u128::from(i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            (DriveId::from_random(bits), NodeId(1 + i % self.nodes), i / self.nodes)
        })
    }

    /// The map. Its numbers are given out in the order nodes and drives, groups, volumes, sessions.
    pub(super) fn map(self) -> FabricMap {
        let mut map = FabricMap::empty(FabricId::from_random(7));
        let pool = PoolId(1);
        map.durations = Durations::default();
        map.pools.insert(pool, Pool { id: pool, name: "default".into() });
        for n in 1..=self.nodes {
            let id = NodeId(n);
            map.put_node(id, Shape::node_name(n), Shape::target_addr(n, 0));
        }
        map.next_id = u64::from(self.nodes) + 2;
        let targets: BTreeMap<(NodeId, u32), TargetId> =
            (1..=self.nodes).flat_map(|node| self.targets(&mut map, NodeId(node))).collect();
        let drives: Vec<DriveId> = self.drive_ids().map(|(id, ..)| id).collect();
        map.drives.extend(self.drive_ids().map(|(id, node, index)| {
            let device = Shape::device_path(index / self.parts);
            let path = match self.parts {
                1 => device.clone(),
                _ => format!("{device}#{}", index % self.parts),
            };
            let capacity = BlockCount(DRIVE_BLOCKS / u64::from(self.parts));
            let device = DeviceId::of_name(&format!("{node} {device}"));
            let target = targets[&(node, index % self.threads)];
            (id, Drive { id, node, target, device, pool, path, capacity, state: DriveState::Active })
        }));
        let groups = self.groups(&mut map, pool, &drives);
        let volumes = self.volumes(&mut map, pool, &groups);
        self.sessions(&mut map, &volumes);
        map.version = Self::VERSION;
        map
    }

    /// Gives a node its further targets, and returns all of them by index.
    fn targets(self, map: &mut FabricMap, node: NodeId) -> Vec<((NodeId, u32), TargetId)> {
        let mut all = vec![((node, 0), TargetId::first_of(node))];
        for index in 1..self.threads {
            let id = TargetId(u32::try_from(map.next_id).expect("few enough"));
            map.next_id += 1;
            map.targets.insert(id, Target { id, node, index, addr: Shape::target_addr(node.0, index) });
            all.push(((node, index), id));
        }
        all
    }

    fn groups(self, map: &mut FabricMap, pool: PoolId, drives: &[DriveId]) -> Vec<GroupId> {
        let (members, total) = (self.protection.members(), drives.len());
        let candidates: Vec<Candidate> = map.drives.values().map(Candidate::of).collect();
        let others = (self.nodes as usize).saturating_sub(1).max(1);
        let mut ids = Vec::new();
        for g in 0..groups_wanted(&candidates, members) {
            let (first, round) = (g * members % total, g * members / total);
            // A step that is no multiple of the number of nodes leads to another node, and each
            // member's to another.
            let step = |member: usize| member * (1 + (round * 7 + g) % others.div_ceil(members).max(1));
            let id = GroupId(map.next_id);
            let slot =
                |m| Slot { drive: drives[(first + step(m)) % total], role: Role::InSync, since: Epoch(1) };
            let slots = (0..members).map(slot).collect();
            map.groups.insert(id, Group { id, pool, epoch: Epoch(1), slots, floor: Default::default() });
            map.next_id += 1;
            ids.push(id);
        }
        ids
    }

    fn volumes(self, map: &mut FabricMap, pool: PoolId, groups: &[GroupId]) -> Vec<VolumeId> {
        let striping =
            Striping { unit_blocks: 16, width: 4.min(groups.len() as u32), object_blocks: OBJECT_BLOCKS };
        let tables = self.tables(map, groups);
        let mut ids = Vec::new();
        for v in 0..self.volumes {
            let id = VolumeId(map.next_id);
            let table = &tables[v as usize % tables.len()];
            let whole = TableWindow { table: table.id, first: 0, count: table.groups().len() as u32 };
            let span = ObjectSpan {
                first: 0,
                count: VOLUME_BLOCKS / u64::from(OBJECT_BLOCKS),
                groups: SpanGroups::of_table(table, whole).expect("it is one of the table"),
            };
            let volume = Volume {
                id,
                name: format!("volume-{v}"),
                pool,
                size: BlockCount(VOLUME_BLOCKS),
                protection: self.protection,
                striping,
                spans: vec![span],
                generation: Generation(1),
                state: VolumeState::Ready,
                thin: true,
                created_ms: 1_700_000_000_000,
                kind: weft_types::VolumeKind::Blocks,
            };
            map.volumes.insert(id, volume);
            map.next_id += 1;
            ids.push(id);
        }
        ids
    }

    /// As many tables as the groups fill, or one for each volume if there are fewer. Neighbours in a table
    /// are far from each other in the pool.
    fn tables(self, map: &mut FabricMap, groups: &[GroupId]) -> Vec<Arc<GroupTable>> {
        let listed = groups.len().min(SPAN_GROUPS_MAX);
        let tables = groups.len().div_ceil(listed).min(self.volumes as usize).max(1);
        let mut made = Vec::new();
        for t in 0..tables {
            let id = GroupTableId(map.next_id);
            let at = |i: usize| groups[(t + i * (groups.len() / listed)) % groups.len()];
            let table = Arc::new(GroupTable::new(id, &(0..listed).map(at).collect::<Vec<_>>()));
            map.group_tables.insert(id, table.clone());
            map.next_id += 1;
            made.push(table);
        }
        made
    }

    fn sessions(self, map: &mut FabricMap, volumes: &[VolumeId]) {
        let lanes = u64::from(self.lanes.max(1));
        let slot = |number: u64| SessionSlot(number as u16 + 1);
        for s in 0..self.sessions.min((u64::from(u16::MAX) - 1) / lanes) {
            let id = SessionId(map.next_id);
            let session = Session {
                number: 0,
                lane_slots: (1..lanes).map(|lane| slot(s * lanes + lane)).collect(),
                id,
                slot: slot(s * lanes),
                volume: volumes[s as usize % volumes.len()],
                mode: AttachMode::Shared,
                generation: Generation(1),
                client: format!("host-{s}[4711]"),
                state: SessionState::Open,
            };
            map.sessions.insert(id, session);
            map.next_id += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_every_shape_keep_the_rules() {
        let shapes = [(1, 1, 1), (2, 1, 2), (3, 2, 3), (4, 3, 2), (5, 8, 3), (24, 8, 2)];
        let grown = [(1, 1, 1), (4, 2, 3), (8, 4, 4)];
        for ((nodes, devices, copies), (threads, parts, lanes)) in
            shapes.into_iter().flat_map(|shape| grown.map(|more| (shape, more)))
        {
            let protection = Protection::mirror(copies);
            let (volumes, sessions) = (20, 50);
            let shape = Shape { nodes, threads, devices, parts, volumes, sessions, lanes, protection };
            let map = shape.map();
            assert_eq!(weft_membership::check(&map), [], "{shape:?}");
            let places = if parts == 1 { 16 } else { 8 * parts };
            let wanted = ((nodes * devices * places) as usize).div_ceil(usize::from(copies));
            assert_eq!((map.groups.len(), map.volumes.len(), map.sessions.len()), (wanted, 20, 50));
            assert!(map.groups.values().all(|g| !map.shares_a_node(g)));
            assert_eq!(map.targets.len(), (nodes * threads) as usize);
        }
    }
}
