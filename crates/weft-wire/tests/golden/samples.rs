//! Values that the cases are made of: no field has a default, and no two fields the same value where that
//! can be.

use crate::{covers, variants};
use std::collections::BTreeSet;
use std::sync::Arc;
use weft_types::{
    AttachMode, BlockCount, BlockRange, CapacityLevels, DeviceId, Drive, DriveId, DriveState, Durations,
    Epoch, FabricId, FabricMap, FileSystem, Generation, Group, GroupId, GroupTable, GroupTableId,
    InterfaceLoad, Latencies, ListedShard, MapVersion, MeterReading, Node, NodeId, ObjectId, ObjectSpan,
    Owner, Pool, PoolId, ProcessLoad, Relocation, Role, ScrubFindingKind, ScrubPlan, ScrubRecord, Session,
    SessionId, SessionSlot, SessionState, Slot, SpanGroups, Striping, Table, TableWindow, Target, TargetId,
    TargetSlice, Version, Volume, VolumeId, VolumeKind, VolumeState,
};

variants!(Role { InSync, Syncing, Out });
variants!(DriveState { Active, Draining, Failed, Destroyed });
variants!(VolumeState { Ready, Deleting });
variants!(SessionState { Open, Over });
variants!(AttachMode { Shared, Exclusive, ReadOnly });
variants!(ScrubFindingKind { Healed, NotHealed, Lost, Stale, Different });
variants!(Owner { Volume, Inode });

pub const FABRIC: FabricId = FabricId(0x0f0e_0d0c_0b0a_4908_8706_0504_0302_0100);

/// A drive whose bytes can be told from those of others.
pub const fn drive(n: u128) -> DriveId {
    DriveId(0xd001_d002_d003_4004_8005_d006_d007_0000 + n)
}

pub fn version(counter: u64) -> Version {
    Version::new(counter, SessionSlot(0x1234))
}

/// The objects of all kinds of owners.
pub fn objects() -> [ObjectId; 2] {
    let owners =
        [Owner::Volume(VolumeId(21)), Owner::Inode { file_system: VolumeId(22), inode: 0x0a0b_0c0d }];
    covers(&owners);
    [ObjectId::new(owners[0], 0x0102_0304), ObjectId::new(owners[1], 5)]
}

pub const fn blocks() -> BlockRange {
    BlockRange::new(260, 2)
}

pub fn group() -> Group {
    let slot = |n, role, since| Slot { drive: drive(n), role, since: Epoch(since) };
    let slots = vec![slot(1, Role::InSync, 2), slot(2, Role::Syncing, 7), slot(3, Role::Out, 6)];
    covers(slots.iter().map(|slot| &slot.role));
    Group { id: GroupId(11), pool: PoolId(4), epoch: Epoch(7), slots, floor: Default::default() }
}

pub fn sessions() -> Vec<Session> {
    let session = |id, slot, mode, state| Session {
        number: 0,
        lane_slots: vec![],
        id: SessionId(id),
        slot: SessionSlot(slot),
        volume: VolumeId(21),
        mode,
        generation: Generation(3),
        client: "host-a weft[77]".into(),
        state,
    };
    let all = vec![
        session(30, 0x1234, AttachMode::Shared, SessionState::Open),
        session(31, 0x1235, AttachMode::Exclusive, SessionState::Over),
        session(32, 0x1236, AttachMode::ReadOnly, SessionState::Open),
    ];
    covers(all.iter().map(|session| &session.mode));
    covers(all.iter().map(|session| &session.state));
    all
}

fn drives() -> Table<DriveId, Drive> {
    let states = [DriveState::Active, DriveState::Draining, DriveState::Failed, DriveState::Destroyed];
    covers(&states);
    let drive = |(n, state): (u128, DriveState)| Drive {
        id: drive(n),
        node: NodeId(2),
        target: TargetId(2),
        device: DeviceId::of_drive(drive(n)),
        pool: PoolId(4),
        path: format!("/dev/nvme{n}n1"),
        capacity: BlockCount(1_000_000 + n as u64),
        state,
    };
    (1..).zip(states).map(drive).map(|drive| (drive.id, drive)).collect()
}

fn volumes() -> Table<VolumeId, Volume> {
    let states = [VolumeState::Ready, VolumeState::Deleting];
    covers(&states);
    let volume = |(id, state): (u64, VolumeState)| Volume {
        id: VolumeId(id),
        name: format!("data-{id}"),
        pool: PoolId(4),
        size: BlockCount(40_000),
        protection: weft_types::Protection::mirror(3),
        striping: Striping { unit_blocks: 64, width: 1, object_blocks: 16_384 },
        spans: vec![ObjectSpan { first: 0, count: 3, groups: vec![GroupId(11)].into() }],
        generation: Generation(3),
        state,
        thin: true,
        created_ms: 1_700_000_000_000,
        kind: VolumeKind::Blocks,
    };
    (21..).zip(states).map(volume).map(|volume| (volume.id, volume)).collect()
}

/// A map with something in every part of it. It keeps no rule of maps but those of its document.
pub fn map() -> FabricMap {
    let node = Node { id: NodeId(2), name: "node-b".into() };
    let target = Target { id: TargetId(2), node: NodeId(2), index: 0, addr: "10.0.0.2:7400".into() };
    let record = ScrubRecord {
        finished_ms: 1_700_000_000_001,
        members: 3,
        chunks: 4,
        healed: 5,
        lost: 6,
        disagreements: 7,
    };
    FabricMap {
        schema: FabricMap::SCHEMA,
        fabric: FABRIC,
        version: MapVersion(9),
        durations: Durations {
            lease_ms: 2_000,
            drift_per_mille: 10,
            session_ms: 30_000,
            rebuild_after_ms: 600_000,
        },
        nodes: Table::from([(node.id, node)]),
        targets: Table::from([(target.id, target)]),
        drives: drives(),
        removed_drives: BTreeSet::from([drive(9)]),
        pools: Table::from([(PoolId(4), Pool { id: PoolId(4), name: "default".into() })]),
        groups: Table::from([(GroupId(11), group())]),
        group_tables: Table::new(),
        relocations: Table::from([(GroupId(11), Relocation { from: drive(1), to: drive(2) })]),
        volumes: volumes(),
        sessions: sessions().into_iter().map(|session| (session.id, session)).collect(),
        scrub: ScrubPlan {
            every_ms: Some(86_400_000),
            rests_until_ms: 1_700_000_000_002,
            wanted: BTreeSet::from([GroupId(11)]),
            done: Table::from([(GroupId(11), record)]),
        },
        capacity: CapacityLevels { warning_percent: 70, critical_percent: 85 },
        next_id: 33,
        unknown_ids: vec![(5, 10)],
        of_target: None,
    }
}

/// A map whose volumes share a list of groups, and whose sessions have the numbers of their attaches.
pub fn map_with_tables() -> FabricMap {
    let mut map = map_of_targets();
    let table = Arc::new(GroupTable::new(GroupTableId(12), &[GroupId(13), GroupId(11), GroupId(15)]));
    let window = TableWindow { table: table.id, first: 1, count: 3 };
    let groups = SpanGroups::of_table(&table, window).expect("it is one of the table");
    map.volumes.update_where(|v| v.id == VolumeId(21), |v| v.spans[0].groups = groups.clone());
    map.group_tables.insert(table.id, table);
    map.sessions.update_each(|session| session.number = 0x5eed_0000_0000_0000 + session.id.0);
    map
}

/// A map whose sessions have several lanes.
pub fn map_with_lanes() -> FabricMap {
    let mut map = map_with_tables();
    let slots =
        |id: u64| [0x2000, 0x4000, 0xffff].into_iter().map(move |slot: u16| SessionSlot(slot - id as u16));
    map.sessions.update_where(
        |session| session.id != SessionId(31),
        |session| session.lane_slots = slots(session.id.0).collect(),
    );
    map
}

/// A map with a file system of two sets, one of them a window of a table and one that names a group twice,
/// and two system volumes.
pub fn map_with_file_systems() -> FabricMap {
    let mut map = map_with_lanes();
    let table = map.group_tables.values().next().expect("it has one");
    let window = TableWindow { table: table.id, first: 0, count: 2 };
    let window = SpanGroups::of_table(table, window).expect("it is one of the table");
    let twice = vec![GroupId(11), GroupId(15), GroupId(11)].into();
    let shards = vec![VolumeId(41), VolumeId(42)];
    let volume = map.volumes[&VolumeId(21)].clone();
    let file_system = VolumeId(40);
    for shard in &shards {
        let name = format!("photos:{}", shard.0 - 41);
        let kind = VolumeKind::System { file_system };
        map.volumes.insert(*shard, Volume { id: *shard, name, kind, ..volume.clone() });
    }
    let first = ListedShard { volume: shards[0], server: Some(TargetId(2)) };
    let shards = vec![first, ListedShard::new(shards[1])];
    let kind = VolumeKind::Files(FileSystem { sets: vec![window, twice], shards, is_spread: false });
    let (name, size, spans) = ("photos".to_owned(), BlockCount(0), vec![]);
    map.volumes.insert(file_system, Volume { id: file_system, name, size, spans, kind, ..volume });
    map.next_id = 43;
    map
}

pub fn meter() -> MeterReading {
    let latencies = |bound| Latencies { buckets: vec![(bound, 2), (bound + 8, 1)], sum_us: 3 * bound };
    MeterReading {
        reads: 1,
        writes: 2,
        zeroes: 3,
        probes: 4,
        read_bytes: 4096,
        written_bytes: 8192,
        zeroed_bytes: 12_288,
        errors: 5,
        in_flight: 6,
        read_latency: latencies(100),
        write_latency: latencies(200),
    }
}

pub fn process() -> ProcessLoad {
    let interface = InterfaceLoad { name: "eth0".into(), received_bytes: 12, sent_bytes: 13 };
    ProcessLoad { cpu_us: 10, resident_bytes: 11, interfaces: vec![interface] }
}

/// Every kind of finding.
pub fn finding_kinds() -> Vec<ScrubFindingKind> {
    use ScrubFindingKind::*;
    let all = vec![Healed, NotHealed, Lost, Stale, Different];
    covers(&all);
    all
}

/// The slice of a target, which says that a group is gone.
pub fn slice_of_target() -> FabricMap {
    let held = BTreeSet::from([GroupId(10), GroupId(11)]);
    let map = map();
    TargetSlice::of(&map, TargetId(2), held).slice(&map)
}

/// The same, with a second target on the node, which serves some of its drives.
pub fn map_of_targets() -> FabricMap {
    let mut map = map();
    let target = Target { id: TargetId(5), node: NodeId(2), index: 0, addr: "10.0.0.2:7401".into() };
    map.drives.update_where(|d| d.id == drive(2), |d| d.target = target.id);
    map.targets.insert(target.id, target);
    map
}
