//! What is answered.

use crate::form::{Case, Form, Named, case, cases_of, check};
use crate::samples::{self, FABRIC, drive, meter};
use crate::{covers, variants};
use weft_api::*;
use weft_types::{
    CapacityLevel, CapacityLevels, DeviceId, DriveState, Epoch, Generation, GroupId, MapVersion, NodeId,
    PoolId, Protection, Role, SessionId, TargetId, VolumeId, VolumeLoad, VolumeState,
};

variants!(ApiAnswer {
    Nodes,
    Node,
    Drives,
    Drive,
    Evacuation,
    Removed,
    Pools,
    Volumes,
    Volume,
    Deleting,
    FileSystems,
    FileSystem,
    FileSystemDeleting,
    Sessions,
    Status,
    Load,
    Events,
    Scrub,
    Check,
    Loss,
    HoldsData,
    MapDiff,
    Map,
    Settings,
});
variants!(ErrorCode { NotFound, Invalid, Conflict, Refused, Unavailable, Internal });
variants!(Presence { Up, Suspect, Down });
variants!(Health { Healthy, Degraded, Unavailable });
variants!(Repair { Resync, AwaitingReturn, NoSpareDrive, AwaitingLastCopy, Evicting });
variants!(CheckSeverity { Fault, Warning, Note });
variants!(Severity { Notice, Warning, Degraded, Unavailable });
variants!(WaitsFor { Return, Lease, Drive, Room, Source, LastCopy, Turn, People });
variants!(CapacityLevel { Normal, Warning, Critical, Full });
variants!(TroubleKind {
    ManagerStopped,
    DataUnavailable,
    BlocksUnreadable,
    DriveFailed,
    NodeGone,
    TargetGone,
    ShardUnserved,
    ClientCutOff,
    DriveAbsent,
    DriveRefused,
    NodeForeign,
    DriveForeign,
    DriveLeftOut,
    DriveDamaged,
    CopiesMissing,
    Copying,
    PoolFilling,
    DriveDraining,
    MapNotKept,
});

const GROUP: GroupId = GroupId(11);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + ms)
}

/// One value for each of these, all of which there must be.
fn each<K: Named, T>(kinds: Vec<K>, make: impl Fn(K) -> T) -> Vec<T> {
    covers(&kinds);
    kinds.into_iter().map(make).collect()
}

fn nodes() -> Vec<NodeInfo> {
    each(vec![Presence::Up, Presence::Suspect, Presence::Down], |presence| NodeInfo {
        id: NodeId(2),
        name: "node-b".into(),
        addr: "10.0.0.2:7400".into(),
        presence,
        since: at(1),
        drives: 4,
        adopted: (presence == Presence::Up).then_some(MapVersion(9)),
        targets: vec![],
    })
}

fn node_of_two_targets() -> NodeInfo {
    let target = |index: u32| TargetInfo {
        id: TargetId(2 + index),
        index,
        addr: format!("10.0.0.2:{}", 7400 + index),
        presence: if index == 0 { Presence::Up } else { Presence::Suspect },
        since: at(index.into()),
        drives: 2,
        adopted: Some(MapVersion(9)),
    };
    NodeInfo { targets: vec![target(0), target(1)], ..nodes().remove(0) }
}

fn drives() -> Vec<DriveInfo> {
    let usage = DriveUse {
        used_bytes: 4_096,
        data_bytes_written: 8_192,
        log_bytes_written: 12_288,
        blocks_damaged: 2,
        blocks_healed: 1,
    };
    let states = [DriveState::Active, DriveState::Draining, DriveState::Failed, DriveState::Destroyed];
    covers(&states);
    let info = |(n, state)| DriveInfo {
        id: drive(n),
        node: "node-b".into(),
        path: format!("/dev/nvme{n}n1"),
        device: (n == 1).then(|| DeviceId::of_drive(drive(1))),
        pool: "default".into(),
        capacity_bytes: 1 << 30,
        state,
        present: n == 1,
        usage: (n == 1).then_some(usage),
        in_sync_groups: 5,
        syncing_groups: 6,
        out_groups: 7,
    };
    (1..).zip(states).map(info).collect()
}

fn pools() -> Vec<PoolInfo> {
    use CapacityLevel::{Critical, Full, Normal, Warning};
    let fullest = |level| DriveFill {
        drive: drive(1),
        node: "node-b".into(),
        capacity_bytes: 1 << 30,
        used_bytes: 4_096,
        is_full: level == Full,
    };
    each(vec![Normal, Warning, Critical, Full], |level| PoolInfo {
        id: PoolId(4),
        name: "default".into(),
        drives: 3,
        groups: 16,
        raw_bytes: 3 << 30,
        used_bytes: 4_096,
        provisioned_bytes: 8_192,
        free: vec![CapacityAtCopies { copies: 2, free_bytes: 1 << 29 }],
        level,
        fullest: (level != Normal).then(|| fullest(level)),
    })
}

fn volumes() -> Vec<VolumeInfo> {
    each(vec![Health::Healthy, Health::Degraded, Health::Unavailable], |health| VolumeInfo {
        id: VolumeId(21),
        name: "data".into(),
        pool: "default".into(),
        size_bytes: 1 << 30,
        protection: Protection::mirror(3),
        copies: 3,
        stripe_unit_bytes: 65_536,
        width: 8,
        object_bytes: 1 << 26,
        thin: true,
        state: VolumeState::Ready,
        generation: Generation(3),
        created: at(2),
        health,
        groups: 16,
        sessions: 1,
        file_system: None,
    })
}

fn scrub_of_files() -> ScrubInfo {
    let mut scrub = scrub();
    scrub.findings.truncate(1);
    scrub.findings[0].file = Some(FileObject { inode: 9, object: 10 });
    scrub
}

fn loss_of_files() -> LossInfo {
    let mut loss = loss();
    loss.file_systems = vec!["photos".into()];
    loss.groups[0].file_systems = vec!["photos".into()];
    loss
}

fn system_volume() -> VolumeInfo {
    let (name, file_system) = ("photos:0".into(), Some("photos".into()));
    VolumeInfo { name, file_system, ..volumes().remove(0) }
}

fn file_systems() -> Vec<FileSystemInfo> {
    each(vec![Health::Healthy, Health::Degraded, Health::Unavailable], |health| FileSystemInfo {
        id: VolumeId(22),
        name: "photos".into(),
        pool: "default".into(),
        protection: Protection::mirror(3),
        copies: 3,
        stripe_unit_bytes: 65_536,
        width: 8,
        object_bytes: 1 << 26,
        shards: 2,
        is_spread: true,
        servers: vec![
            ShardServing { server: Some("node 'a'".into()), serves: true },
            ShardServing { server: None, serves: false },
        ],
        sets: vec![14, 15],
        state: VolumeState::Ready,
        generation: Generation(4),
        created: at(3),
        health,
        groups: 17,
        sessions: 2,
    })
}

fn session_infos() -> Vec<SessionInfo> {
    let info = |session: weft_types::Session| SessionInfo {
        id: session.id,
        volume: "data".into(),
        mode: session.mode,
        client: session.client,
        state: session.state,
        generation: session.generation,
        idle_ms: (session.id == SessionId(30)).then_some(250),
        lanes: 1,
    };
    samples::sessions().into_iter().map(info).collect()
}

fn troubles() -> Vec<Trouble> {
    use WaitsFor::*;
    let volume = AffectedVolume {
        volume: "data".into(),
        groups: 1,
        groups_total: 16,
        bytes: 8_192,
        size_bytes: 1 << 30,
        ranges: vec![ByteRange { offset_bytes: 4_096, length_bytes: 8_192 }],
        has_more_ranges: true,
    };
    let progress = Progress {
        chunks_done: 1,
        chunks_total: 2,
        bytes_copied: 3,
        bytes_per_second: Some(4),
        eta_ms: Some(5),
        pace_percent: Some(6),
    };
    let doing = |waits_for| Doing {
        what: "a copy is made".into(),
        groups: 1,
        waits_for,
        wait_ms: waits_for.map(|_| 500),
        progress: waits_for.is_none().then_some(progress),
    };
    let mut doings =
        each(vec![Return, Lease, Drive, Room, Source, LastCopy, Turn, People], |w| doing(Some(w)));
    doings.push(doing(None));
    let severities = vec![Severity::Notice, Severity::Warning, Severity::Degraded, Severity::Unavailable];
    covers(&severities);
    let kinds = TroubleKind::ALL.into_iter().zip(severities.into_iter().cycle()).collect::<Vec<_>>();
    covers(kinds.iter().map(|(kind, _)| kind));
    let trouble = |(kind, severity)| Trouble {
        kind,
        severity,
        what: "something is missing".into(),
        since: at(3),
        node: None,
        drive: None,
        pool: None,
        groups: 1,
        more_volumes: 0,
        volumes: vec![],
        doing: vec![],
        advice: vec![],
    };
    let mut all: Vec<Trouble> = kinds.into_iter().map(trouble).collect();
    let first = &mut all[0];
    (first.node, first.drive) = (Some("node-b".into()), Some(drive(1)));
    (first.pool, first.volumes, first.doing) = (Some("default".into()), vec![volume], doings);
    first.advice = vec![Advice::plain("wait"), Advice::command("look", "weft status")];
    all
}

fn scrub_run(ended: Option<Timestamp>) -> ScrubRunInfo {
    ScrubRunInfo {
        started: at(4),
        ended,
        was_stopped: ended.is_some(),
        groups_total: 1,
        groups_done: 2,
        groups_waiting: 3,
        groups_degraded: 4,
        chunks_done: 5,
        bytes_read: 6,
        healed_blocks: 7,
        lost_blocks: 8,
        disagreements: 9,
        eta_ms: Some(10),
    }
}

fn status() -> FabricStatus {
    let repairs = vec![
        Repair::Resync { chunks_verified: Some(1), chunks_total: Some(2), bytes_copied: 3, eta_ms: Some(4) },
        Repair::AwaitingReturn { rebuild_in_ms: 5 },
        Repair::NoSpareDrive,
        Repair::AwaitingLastCopy,
        Repair::Evicting,
    ];
    FabricStatus {
        fabric: FABRIC,
        map: MapVersion(9),
        time: at(5),
        health: Health::Degraded,
        reasons: vec!["node 'node-b' is down".into()],
        troubles: troubles(),
        nodes: nodes(),
        pools: pools(),
        degraded_groups: each(repairs, |repair| DegradedGroup {
            group: GROUP,
            volumes: vec!["data".into()],
            drive: drive(1),
            node: "node-b".into(),
            role: Role::Syncing,
            good_copies: 1,
            copies: 2,
            repair,
        }),
        emptying: vec![Emptying {
            drive: drive(1),
            node: "node-b".into(),
            copies_left: 3,
            copies_passing: 2,
            bytes_copied: 4_096,
        }],
        groups: 16,
        volumes: 2,
        file_systems: 0,
        sessions: 3,
        resync_eta_ms: Some(4),
        resyncs: vec![ResyncInfo {
            group: GROUP,
            drive: drive(1),
            done: true,
            bytes_copied: 4_096,
            bytes_held: 8_192,
        }],
        scrub: Some(scrub_run(None)),
    }
}

fn load() -> FabricLoad {
    let node = NodeLoad {
        id: NodeId(2),
        name: "node-b".into(),
        incarnation: 0x0102_0304,
        at_us: 5,
        process: Some(samples::process()),
        drives: vec![DriveLoad {
            id: drive(1),
            path: "/dev/nvme1n1".into(),
            meter: meter(),
            data_bytes_written: 4_096,
            log_bytes_written: 8_192,
        }],
        volumes: vec![VolumeLoad { id: VolumeId(21), name: "data".into(), meter: meter() }],
        sessions: vec![SessionLoad {
            id: SessionId(30),
            client: "host-a weft[77]".into(),
            volume: "data".into(),
            meter: meter(),
        }],
    };
    FabricLoad { fabric: FABRIC, time: at(6), nodes: vec![node], silent: vec!["node-c".into()] }
}

fn events() -> Vec<EventInfo> {
    vec![EventInfo {
        seq: 7,
        time: at(7),
        clock_back_ms: Some(8),
        map: MapVersion(9),
        who: "manager".into(),
        what: "evict".into(),
        why: "node 'node-b' is silent".into(),
        volumes: vec!["data".into()],
        nodes: vec!["node-b".into()],
        drives: vec![drive(1)],
    }]
}

fn scrub() -> ScrubInfo {
    let finding = |kind| ScrubFindingInfo {
        time: at(8),
        kind,
        group: GROUP,
        volume: "data".into(),
        offset_bytes: 4_096,
        length_bytes: 8_192,
        drives: vec![drive(1)],
        file: None,
    };
    ScrubInfo {
        every_ms: Some(86_400_000),
        next: Some(at(9)),
        rests_until: Some(at(10)),
        running: Some(scrub_run(None)),
        last: Some(scrub_run(Some(at(11)))),
        groups: vec![ScrubGroupInfo {
            group: GROUP,
            volumes: vec!["data".into()],
            node: "node-b".into(),
            members: 2,
            copies: 3,
            chunks_done: 4,
            chunks_total: 5,
            waits_for: Some("a drive's turn".into()),
        }],
        volumes: vec![ScrubVolumeInfo {
            volume: "data".into(),
            groups: 16,
            groups_scrubbed: 15,
            scrubbed: Some(at(12)),
            healed_blocks: 1,
            lost_blocks: 2,
        }],
        findings: samples::finding_kinds().into_iter().map(finding).collect(),
    }
}

fn check_info() -> CheckInfo {
    CheckInfo {
        fabric: FABRIC,
        map: MapVersion(9),
        time: at(13),
        sound: false,
        nodes_asked: 2,
        nodes: 3,
        drives_compared: 4,
        groups: 16,
        findings: each(vec![CheckSeverity::Fault, CheckSeverity::Warning, CheckSeverity::Note], |severity| {
            CheckFinding {
                severity,
                subject: "group g11".into(),
                what: "the drive does not know it".into(),
                todo: "restart the node".into(),
            }
        }),
    }
}

fn loss() -> LossInfo {
    let copy = LostCopy {
        drive: drive(1),
        node: "node-b".into(),
        role: Role::Out,
        destroyed: true,
        present: false,
        bytes: Some(4_096),
        newest: Some(at(14)),
    };
    LossInfo {
        volumes: vec!["data".into()],
        destroyed: vec![drive(1)],
        older: vec![drive(2)],
        groups: vec![LostGroup {
            group: GROUP,
            epoch: Epoch(7),
            copies: vec![copy],
            survivor: drive(2),
            empty: true,
            ranges: vec![LostRange { volume: "data".into(), offset_bytes: 4_096, bytes: 8_192 }],
            ranges_more: true,
            bytes: 8_192,
            file_systems: vec![],
        }],
        lost_bytes_max: 8_192,
        file_systems: vec![],
        ended_sessions: vec![SessionId(30)],
        dry_run: true,
    }
}

fn all() -> Vec<ApiAnswer> {
    let replica = ReplicaInfo { group: GROUP, role: Role::InSync, since: Epoch(7) };
    let (node, volume, drive_info) = (nodes().remove(0), volumes().remove(0), drives().remove(0));
    let evacuation = Evacuation {
        drives: drives(),
        copies: vec![CopyMove { group: GROUP, from: drive(1), to: drive(2) }],
        used_bytes: 4_096,
        free_bytes: 8_192,
        cancelled: true,
        dry_run: true,
    };
    let settings = SettingsInfo {
        rebuild_after_ms: 600_000,
        lease_ms: 2_000,
        session_ms: 30_000,
        capacity: CapacityLevels { warning_percent: 70, critical_percent: 85 },
    };
    vec![
        ApiAnswer::Nodes { nodes: nodes() },
        ApiAnswer::Node { node, drives: drives() },
        ApiAnswer::Drives { drives: drives() },
        ApiAnswer::Drive { drive: drive_info, replicas: vec![replica] },
        ApiAnswer::Evacuation(evacuation),
        ApiAnswer::Removed { node: Some("node-b".into()), drives: vec![drive(1)], dry_run: true },
        ApiAnswer::Removed { node: None, drives: vec![drive(1)], dry_run: false },
        ApiAnswer::Pools { pools: pools() },
        ApiAnswer::Volumes { volumes: volumes() },
        ApiAnswer::Volume {
            volume: volume.clone(),
            warnings: vec!["the pool is promised twice".into()],
            dry_run: true,
        },
        ApiAnswer::Deleting { volume, ended_sessions: vec![SessionId(30)], dry_run: true },
        ApiAnswer::Sessions { sessions: session_infos() },
        ApiAnswer::Status(Box::new(status())),
        ApiAnswer::Load(Box::new(load())),
        ApiAnswer::Events { events: events() },
        ApiAnswer::Scrub(Box::new(scrub())),
        ApiAnswer::Check(Box::new(check_info())),
        ApiAnswer::Loss(Box::new(loss())),
        ApiAnswer::HoldsData { holds: Some(true) },
        ApiAnswer::HoldsData { holds: None },
        ApiAnswer::MapDiff { changes: vec!["volume 'data' was deleted".into()] },
        ApiAnswer::Map { map: Box::new(samples::map()) },
        ApiAnswer::Settings { settings },
        ApiAnswer::Nodes { nodes: vec![node_of_two_targets()] },
        ApiAnswer::FileSystems { file_systems: file_systems() },
        ApiAnswer::FileSystem {
            file_system: file_systems().remove(0),
            warnings: vec!["the pool is promised twice".into()],
            dry_run: true,
        },
        ApiAnswer::FileSystemDeleting {
            file_system: file_systems().remove(1),
            ended_sessions: vec![SessionId(30)],
            dry_run: true,
        },
        ApiAnswer::Volumes { volumes: vec![system_volume()] },
        ApiAnswer::Loss(Box::new(loss_of_files())),
        ApiAnswer::Scrub(Box::new(scrub_of_files())),
        ApiAnswer::Status(Box::new(FabricStatus { file_systems: 4, ..status() })),
    ]
}

/// A reply with this answer or error.
fn reply(name: String, result: Result<ApiAnswer, ApiError>) -> Case {
    let read = |bytes: &[u8]| decode_reply(bytes).map(ApiReply::into_result);
    case(name, result, |result| encode_reply(result.clone()), read)
}

#[test]
fn answers() {
    check("answer.json", Form::Json, &cases_of(all(), |name, answer| reply(name, Ok(answer))));
}

#[test]
fn errors() {
    use ErrorCode::*;
    let mut cases =
        cases_of(vec![NotFound, Invalid, Conflict, Refused, Unavailable, Internal], |name, code| {
            reply(name, Err(ApiError::new(code, "there is no volume 'data'")))
        });
    let with_hint = ApiError::new(NotFound, "there is no volume 'data'").with_hint("see `weft volume list`");
    cases.push(reply("with a hint".into(), Err(with_hint)));
    check("error.json", Form::Json, &cases);
}
