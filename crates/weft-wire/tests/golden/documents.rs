//! Documents: the handshake, what members ask of each other, the fabric map, and its backup.

use crate::samples::{
    FABRIC, blocks, drive, finding_kinds, group, map, map_of_targets, map_with_file_systems, map_with_lanes,
    map_with_tables, meter, objects, process, sessions, slice_of_target, version,
};
use crate::{Case, Form, case, check, covers, document, documents_of, variants};
use std::collections::BTreeSet;
use weft_types::{
    AttachKind, AttachMode, BlockCount, ChunkIndex, DeviceId, DriveId, Epoch, FabricId, FabricMap,
    Generation, GroupId, MapVersion, Role, Session, SessionId, SessionSlot, Slice, TargetId, Version,
    VolumeId, VolumeLoad,
};
use weft_wire::backup::{decode_backup, encode_backup};
use weft_wire::collected::{Collected, CollectedDrive, DriveContents, decode_collected, encode_collected};
use weft_wire::control::{
    DriveDamage, DriveInventory, DriveLeftOut, DriveReport, DriveStatus, HeldGroup, Holding, Inventory, Join,
    ManagerAnswer, ManagerRequest, Marks, OpenBelow, OpenMark, ResyncStatus, ResyncWait, ScrubFinding,
    ScrubOrder, ScrubReport, ScrubState, ScrubStatus, TargetAge, TargetAnswer, TargetRequest, TargetStatus,
    UnservedShard, VouchAnswer, VouchRequest, decode_map, encode_map,
};
use weft_wire::handshake::{Hello, PeerRole, Welcome};
use weft_wire::load::{DriveLoad, SessionLoad, TargetLoad};
use weft_wire::pieces::{
    decode_delta, decode_pieces, decode_whole, encode_delta, encode_pieces, encode_whole,
};

variants!(PeerRole { Client, Target, Manager, Tool });
variants!(ManagerRequest {
    Join,
    Renew,
    Stopped,
    WatchMap,
    Follow,
    Verified,
    DriveFailed,
    Attach,
    Detach,
    Touch,
    Suspect,
    MayHaveTargets,
});
variants!(ManagerAnswer { Joined, Granted, Map, Followed, Attached, Done });
variants!(TargetRequest {
    AdoptMap,
    KeepPart,
    AdoptPart,
    AdoptDelta,
    StopVouching,
    EndSessions,
    Sweep,
    DropVolume,
    Inventory,
    HoldsData,
    HeardOf,
    Scrub,
    Floors,
    Status,
    Load,
});
variants!(TargetAnswer { Done, Adopted, Holds, Status, Inventory, HoldsData, HeardOf, Scrubs, Load, Floors });
variants!(ScrubState { Running, Waiting, Interrupted, Done });
variants!(ResyncWait { Room, Drive, Source });

#[test]
fn handshakes() {
    let roles = [PeerRole::Client, PeerRole::Target(TargetId(2)), PeerRole::Manager, PeerRole::Tool];
    covers(&roles);
    let hello =
        |role| Hello { protocol_oldest: 1, protocol_newest: 2, role, fabric: Some(FABRIC), name: "a".into() };
    let welcome = Welcome {
        protocol: 1,
        fabric: Some(FABRIC),
        requests_max: 256,
        bytes_max: 33_554_432,
        door: Some("weft-1".into()),
    };
    let mut cases: Vec<Case> =
        roles.into_iter().map(|role| document(format!("hello of {role:?}"), hello(role))).collect();
    cases.push(document("hello, fabric unknown", Hello { fabric: None, ..hello(PeerRole::Client) }));
    cases.push(document("welcome without a door", Welcome { door: None, ..welcome.clone() }));
    cases.push(document("welcome", welcome));
    check("handshake.json", Form::Json, &cases);
}

#[test]
fn documents_of_groups() {
    let open = |(settled, object)| OpenMark { version: version(8), object, range: blocks(), settled };
    let marks = Marks {
        open: [true, false].into_iter().zip(objects()).map(open).collect(),
        watermarks: vec![(SessionSlot(0x1234), version(7))],
    };
    let vouch = VouchRequest {
        target: TargetId(2),
        asked: None,
        groups: vec![(GroupId(11), Epoch(7))],
        drives: vec![],
    };
    let cases = [
        document("entry", group()),
        document("marks", marks),
        document("vouch", vouch),
        document("vouch answer", VouchAnswer { groups: vec![GroupId(11)] }),
    ];
    check("group.json", Form::Json, &cases);
}

/// What a target says of a drive that it has opened.
fn report() -> DriveReport {
    DriveReport {
        id: drive(1),
        path: "/dev/nvme1n1".into(),
        capacity: BlockCount(1_000_000),
        map_copy: MapVersion(9),
        epochs: vec![(GroupId(11), Epoch(7))],
        commit: 6,
        device: None,
    }
}

/// What a target of the release before says.
fn only_target() -> Join {
    let left_out = DriveLeftOut {
        path: "/dev/nvme2n1".into(),
        id: Some(drive(4)),
        fabric: Some(FabricId(0x0a0b_0c0d_0e0f_4001_8203_0405_0607_0809)),
        why: "/dev/nvme2n1: it belongs to another fabric".into(),
        hint: "put it back".into(),
    };
    Join {
        node: "node-b".into(),
        addr: "10.0.0.2:7400".into(),
        incarnation: 0x0102_0304_0506_0708,
        drives: vec![report()],
        left_out: vec![left_out],
        knows_floors: true,
        ..Join::default()
    }
}

/// What the second target of a node of three says.
fn second_target() -> Join {
    Join {
        node: "node-b".into(),
        addr: "10.0.0.2:7401".into(),
        incarnation: 0x0102_0304_0506_0708,
        drives: vec![report()],
        left_out: vec![],
        knows_floors: true,
        target: 1,
        targets: 3,
        process: 0x0102_0304_0506_0708,
        knows_targets: true,
        knows_lanes: false,
        knows_file_systems: false,
        knows_spread: false,
        serves: BTreeSet::new(),
    }
}

/// The attach of a file system, or of the system volume of one.
fn attach_of_kind(volume: &str, kind: AttachKind) -> ManagerRequest {
    ManagerRequest::Attach {
        volume: volume.into(),
        mode: AttachMode::Shared,
        preempt: false,
        client: "host-a weft[77]".into(),
        follows: None,
        number: 0x5eed_0000_0000_0003,
        lanes: 1,
        kind,
        server: (kind == AttachKind::System).then_some(TargetId(3)),
    }
}

/// Requests that came with targets of a node, parts of a device and lanes of a client.
fn requests_of_several_targets(incarnation: u64) -> Vec<ManagerRequest> {
    vec![
        ManagerRequest::Join(second_target()),
        ManagerRequest::DriveFailed {
            drive: drive(1),
            incarnation,
            cause: "it is gone".into(),
            of_device: true,
        },
        ManagerRequest::MayHaveTargets { node: "node-b".into() },
        ManagerRequest::Join(Join { knows_lanes: true, ..only_target() }),
        ManagerRequest::Attach {
            volume: "data".into(),
            mode: AttachMode::Shared,
            preempt: false,
            client: "host-a weft[77]".into(),
            follows: None,
            number: 0x5eed_0000_0000_0002,
            lanes: 4,
            kind: AttachKind::Blocks,
            server: None,
        },
        ManagerRequest::Join(Join { knows_file_systems: true, ..only_target() }),
        attach_of_kind("photos", AttachKind::Files),
        attach_of_kind("photos:0", AttachKind::System),
        ManagerRequest::Join(Join {
            knows_file_systems: true,
            serves: BTreeSet::from([SessionId(40), SessionId(41)]),
            ..only_target()
        }),
        ManagerRequest::Join(Join { knows_file_systems: true, knows_spread: true, ..only_target() }),
    ]
}

#[test]
fn manager_requests() {
    let commits = vec![(drive(1), 6)];
    let (target, incarnation) = (TargetId(2), 0x0102_0304_0506_0708);
    let attach = |mode, preempt| ManagerRequest::Attach {
        volume: "data".into(),
        mode,
        preempt,
        client: "host-a weft[77]".into(),
        follows: None,
        number: 0,
        lanes: 1,
        kind: AttachKind::Blocks,
        server: None,
    };
    let client = Slice::Client {
        volumes: BTreeSet::from([VolumeId(21)]),
        sessions: BTreeSet::from([SessionId(30), SessionId(32)]),
    };
    let follow = |slice| ManagerRequest::Follow { version: MapVersion(9), nonce: incarnation, slice };
    let requests = vec![
        ManagerRequest::Join(only_target()),
        ManagerRequest::Renew {
            target,
            incarnation,
            adopted: MapVersion(9),
            commits: commits.clone(),
            ahead: vec![(drive(1), MapVersion(10))],
        },
        ManagerRequest::Stopped { target, incarnation, commits },
        ManagerRequest::WatchMap { have: MapVersion(9) },
        ManagerRequest::Verified { group: GroupId(11), drive: drive(2), stint: Epoch(7) },
        ManagerRequest::DriveFailed {
            drive: drive(1),
            incarnation,
            cause: "it said \"no\"".into(),
            of_device: false,
        },
        attach(AttachMode::Shared, false),
        attach(AttachMode::Exclusive, true),
        attach(AttachMode::ReadOnly, false),
        ManagerRequest::Detach { session: SessionId(30) },
        ManagerRequest::Touch {
            sessions: vec![SessionId(30), SessionId(32)],
            silent: vec![TargetAge { target, ms: 2_500 }],
            heard: vec![TargetAge { target: TargetId(3), ms: 12 }],
        },
        ManagerRequest::Touch { sessions: vec![SessionId(30)], silent: vec![], heard: vec![] },
        ManagerRequest::Suspect { target },
        follow(Slice::Whole),
        follow(Slice::Target(TargetId(2))),
        follow(client.clone()),
        ManagerRequest::Attach {
            volume: "data".into(),
            mode: AttachMode::Shared,
            preempt: false,
            client: "host-a weft[77]".into(),
            follows: Some(client),
            number: 0x5eed_0000_0000_0001,
            lanes: 1,
            kind: AttachKind::Blocks,
            server: None,
        },
    ];
    let requests = requests.into_iter().chain(requests_of_several_targets(incarnation)).collect();
    check("manager-request.json", Form::Json, &documents_of(requests));
}

#[test]
fn manager_answers() {
    let attached = |session| ManagerAnswer::Attached {
        session,
        generation: Generation(3),
        clock_us: 1_700_000_000_000_000,
        nonce: 0,
    };
    let mut answers = vec![
        ManagerAnswer::Joined {
            target: TargetId(2),
            refused: vec![(drive(3), "it is a copy".into())],
            nonce: 0,
        },
        ManagerAnswer::Joined { target: TargetId(2), refused: vec![], nonce: 77 },
        ManagerAnswer::Granted {
            map: MapVersion(9),
            suspects: vec![TargetId(5)],
            clock_us: 1_700_000_000_000_000,
        },
        ManagerAnswer::Map { version: MapVersion(9) },
    ];
    answers.extend(sessions().into_iter().map(attached));
    answers.push(ManagerAnswer::Done);
    let nonce = 0x0102_0304_0506_0708;
    answers.push(ManagerAnswer::Followed { from: MapVersion(9), version: MapVersion(12), nonce });
    let lane_slots = vec![SessionSlot(0x3233), SessionSlot(0xffff)];
    for session in [sessions().remove(0), Session { lane_slots, ..sessions().remove(0) }] {
        answers.push(ManagerAnswer::Attached {
            session,
            generation: Generation(3),
            clock_us: 1_700_000_000_000_000,
            nonce,
        });
    }
    check("manager-answer.json", Form::Json, &documents_of(answers));
}

#[test]
fn target_requests() {
    let order = |from| ScrubOrder {
        order: 0x0102_0304_0506_0708,
        group: GroupId(11),
        drive: drive(1),
        from,
        findings_seen: 3,
    };
    let requests = vec![
        TargetRequest::AdoptMap { version: MapVersion(9), nonce: 0 },
        TargetRequest::AdoptMap { version: MapVersion(9), nonce: 77 },
        TargetRequest::AdoptPart { version: MapVersion(9), nonce: 77, part: 1, parts: 3 },
        TargetRequest::KeepPart { drive: drive(1), version: MapVersion(9) },
        TargetRequest::AdoptDelta { from: MapVersion(8), version: MapVersion(9), nonce: 77 },
        TargetRequest::StopVouching { victim: TargetId(5), map: MapVersion(9) },
        TargetRequest::EndSessions { sessions: vec![SessionId(31)] },
        TargetRequest::Sweep {
            sessions: vec![(SessionId(31), SessionSlot(0x1235))],
            volume: VolumeId(21),
            map: MapVersion(9),
        },
        TargetRequest::DropVolume { volume: VolumeId(22) },
        TargetRequest::Inventory { detail: vec![GroupId(11)] },
        TargetRequest::HoldsData { volume: VolumeId(21) },
        TargetRequest::HeardOf { sessions: vec![SessionId(31)] },
        TargetRequest::Scrub { orders: vec![order(None), order(Some((objects()[0], ChunkIndex(2))))] },
        TargetRequest::Floors {
            close: vec![(GroupId(11), Epoch(7), Version::new(0x0102_0304_0506, SessionSlot(0)))],
        },
        TargetRequest::Status,
        TargetRequest::Load,
    ];
    check("target-request.json", Form::Json, &documents_of(requests));
}

fn open_below() -> OpenBelow {
    let version = |counter| Version::new(counter, SessionSlot(5));
    OpenBelow {
        drive: DriveId(0x11),
        group: GroupId(11),
        epoch: Epoch(7),
        newest_tombstone: Some(version(9)),
        sessions: vec![(SessionSlot(5), version(7), Some(version(8))), (SessionSlot(6), Version::ZERO, None)],
        is_closed: false,
    }
}

#[test]
fn target_answers() {
    let answers = vec![
        TargetAnswer::Done,
        TargetAnswer::Adopted { left: vec![GroupId(11)] },
        TargetAnswer::Holds { version: MapVersion(8), nonce: 77 },
        TargetAnswer::Status(status()),
        TargetAnswer::Inventory(Box::new(inventory())),
        TargetAnswer::HoldsData { holds: true },
        TargetAnswer::HeardOf { heard: vec![(SessionId(31), 4)] },
        TargetAnswer::Floors { groups: vec![open_below()] },
        TargetAnswer::Floors { groups: vec![OpenBelow { is_closed: true, ..open_below() }] },
        TargetAnswer::Scrubs(scrubs()),
        TargetAnswer::Load(Box::new(load())),
    ];
    check("target-answer.json", Form::Json, &documents_of(answers));
}

fn status() -> TargetStatus {
    let drive_status = DriveStatus {
        id: drive(1),
        path: "/dev/nvme1n1".into(),
        capacity_bytes: 1,
        used_bytes: 2,
        free_bytes: Some(3),
        log_bytes_written: 4,
        data_bytes_written: 5,
        failed: Some("gone".into()),
        vanished: Some("deleted".into()),
        blocks_damaged: 6,
        blocks_healed: 7,
    };
    let waits = vec![
        ResyncWait::Room("full".into()),
        ResyncWait::Drive("failed".into()),
        ResyncWait::Source("silent".into()),
    ];
    covers(&waits);
    let resync = |waits_for| ResyncStatus {
        group: GroupId(11),
        drive: drive(2),
        chunks_verified: 1,
        chunks_total: 2,
        blocks_copied: 3,
        blocks_held: 4,
        done: false,
        waits_for,
    };
    TargetStatus {
        drives: vec![drive_status],
        resyncs: waits.into_iter().map(Some).chain([None]).map(resync).collect(),
        serving: true,
        pace_percent: Some(25),
        unserved: vec![UnservedShard { file_system: VolumeId(21), shard: 3, why: "damaged".into() }],
    }
}

fn inventory() -> Inventory {
    let holding = Holding {
        chunks: 1,
        blocks: 2,
        readable: Some(1),
        zeroes: Some(3),
        newest: version(8),
        verified_below: Some((objects()[0], ChunkIndex(2))),
    };
    let held = HeldGroup {
        group: GroupId(11),
        epoch: Epoch(7),
        role: Some(Role::Syncing),
        since: Some(Epoch(6)),
        volumes: vec![VolumeId(21)],
        holding: Some(holding),
    };
    let drive = DriveInventory {
        id: drive(1),
        path: "/dev/nvme1n1".into(),
        format: 1,
        failed: None,
        map_copy: MapVersion(9),
        commit: 6,
        groups: vec![held],
    };
    Inventory {
        software: "0.1.0".into(),
        clock_us: 1_700_000_000_000_000,
        map: MapVersion(9),
        drives: vec![drive],
    }
}

fn scrubs() -> ScrubReport {
    let states = vec![
        ScrubState::Running,
        ScrubState::Waiting("clients".into()),
        ScrubState::Interrupted("the epoch changed".into()),
        ScrubState::Done,
    ];
    covers(&states);
    let finding =
        |kind| ScrubFinding { kind, object: objects()[0], range: blocks(), drives: vec![drive(1), drive(2)] };
    let scrub = |state| ScrubStatus {
        order: 0x0102_0304_0506_0708,
        group: GroupId(11),
        members: vec![drive(1), drive(2)],
        cursor: Some((objects()[0], ChunkIndex(2))),
        chunks_done: 1,
        chunks_total: 2,
        blocks_read: 3,
        blocks_healed: 4,
        blocks_lost: 5,
        disagreements: 6,
        findings_total: 7,
        findings: finding_kinds().into_iter().map(finding).collect(),
        state,
    };
    ScrubReport {
        scrubs: states.into_iter().map(scrub).collect(),
        damage: vec![DriveDamage { drive: drive(1), found: 8, healed: 9 }],
    }
}

fn load() -> TargetLoad {
    TargetLoad {
        incarnation: 0x0102_0304_0506_0708,
        at_us: 1,
        drives: vec![DriveLoad { id: drive(1), meter: meter(), data_bytes_written: 2, log_bytes_written: 3 }],
        volumes: vec![VolumeLoad { id: VolumeId(21), name: "data-21".into(), meter: meter() }],
        sessions: vec![SessionLoad { id: SessionId(30), volume: VolumeId(21), meter: meter() }],
        process: Some(process()),
        leased: true,
        copied_bytes: 4,
        slow_requests: 5,
        failed_requests: 6,
    }
}

#[test]
fn the_map_and_its_backup() {
    check("map.json", Form::Json, &[case("map", map(), encode_map, decode_map)]);
    let of_targets = case("map of targets", map_of_targets(), encode_map, decode_map);
    check("map-of-targets.json", Form::Json, &[of_targets]);
    let with_tables = case("map with tables", map_with_tables(), encode_map, decode_map);
    check("map-with-tables.json", Form::Json, &[with_tables]);
    let with_lanes = case("map with lanes", map_with_lanes(), encode_map, decode_map);
    check("map-with-lanes.json", Form::Json, &[with_lanes]);
    let with_files = case("map with file systems", map_with_file_systems(), encode_map, decode_map);
    check("map-with-file-systems.json", Form::Json, &[with_files]);
    let of_target = case("slice of a target", slice_of_target(), encode_map, decode_map);
    check("slice.json", Form::Json, &[of_target]);
    let backup = case(
        "backup",
        map(),
        |map| encode_backup(map, 1_700_000_000_003),
        |bytes| decode_backup(bytes).map(|(_, map)| map),
    );
    check("backup.txt", Form::Text, &[backup]);
}

#[test]
fn pieces_of_the_map() {
    let mut map = map_of_targets();
    map.drives
        .update_where(|d| d.id == drive(3), |d| d.device = DeviceId::of_name("nqn.2019-08.org.example:1"));
    let pieces = case("every piece of a map", map.pieces(), |p| encode_pieces(p), decode_pieces);
    let mut before = map.clone();
    (before.version, before.next_id) = (MapVersion(8), 30);
    before.nodes.clear();
    before.targets.clear();
    before.volumes.clear();
    let forth = case("what a commit put", map.delta_from(&before), encode_delta, decode_delta);
    let mut after = FabricMap::empty(map.fabric);
    (after.version, after.next_id) = (MapVersion(10), 34);
    let back = case("what a commit took out", after.delta_from(&map), encode_delta, decode_delta);
    let slice = case("slice of a target", slice_of_target(), encode_whole, decode_whole);
    let tables = case("map with tables", map_with_tables(), encode_whole, decode_whole);
    let mut without = map_with_tables();
    (without.volumes, without.version) = (map_of_targets().volumes, MapVersion(10));
    without.group_tables.clear();
    let gone = without.delta_from(&map_with_tables());
    let gone = case("what a commit took out with a table", gone, encode_delta, decode_delta);
    let lanes = case("map with lanes", map_with_lanes(), encode_whole, decode_whole);
    let files = case("map with file systems", map_with_file_systems(), encode_whole, decode_whole);
    check("pieces.txt", Form::Hex, &[pieces, forth, back, slice, tables, gone, lanes, files]);
}

#[test]
fn collected_drives() {
    let map = map();
    let contents = DriveContents {
        id: drive(1),
        map_copy: map.version,
        entries: vec![group()],
        generations: [(VolumeId(20), Generation(3))].into(),
        slots: [(SessionSlot(0x1234), [GroupId(11)].into())].into(),
    };
    let path = |name: &str| format!("/dev/disk/by-id/{name}");
    let sound = CollectedDrive {
        path: path("a"),
        map_copy: Some(map.version),
        commit: 6,
        contents: Some(contents),
        warning: None,
    };
    let broken = CollectedDrive {
        path: path("b"),
        commit: 0,
        contents: None,
        warning: Some("its log is damaged".into()),
        ..sound.clone()
    };
    let parts = weft_wire::map_part::split(&slice_of_target(), 160).expect("few");
    let collected = Collected { maps: vec![map, slice_of_target()], parts, drives: vec![sound, broken] };
    let case = case(
        "collected",
        collected,
        |collected| encode_collected(FABRIC, "node-b", 1_700_000_000_004, collected),
        |bytes| decode_collected(bytes).map(|(_, collected)| collected),
    );
    check("collected.txt", Form::Text, &[case]);
}
