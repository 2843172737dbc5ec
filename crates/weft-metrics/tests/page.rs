//! Pages as they are served: every documented name is there, and every line can be read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use weft_api::{
    DegradedGroup, DriveFill, FabricStatus, Health, PoolInfo, Repair, ScrubInfo, ScrubVolumeInfo, Severity,
    Timestamp, Trouble, TroubleKind,
};
use weft_metrics::{
    ExportConnections, ManagerView, TargetPage, manager_page, node_page, reference, server_page,
};
use weft_rt::{Addr, Buf, BufMut, Listener, Stream, block_on, spawn};
use weft_types::{
    CapacityLevel, DriveId, FabricId, FabricMap, GroupId, InterfaceLoad, Latencies, MapVersion, MeterReading,
    PoolId, ProcessLoad, Role, Table, VolumeId, VolumeLoad,
};
use weft_wire::control::{DriveStatus, TargetStatus};
use weft_wire::load::{DriveLoad, TargetLoad};

#[test]
fn the_reference_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, reference()).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == reference(), "docs/reference/metrics.md is old; UPDATE_SNAPSHOTS=1 writes it anew");
}

fn process() -> ProcessLoad {
    let interface = InterfaceLoad { name: "eth0".into(), received_bytes: 5, sent_bytes: 6 };
    ProcessLoad { cpu_us: 1_500_000, resident_bytes: 4096, interfaces: vec![interface] }
}

fn node() -> String {
    let meter = MeterReading {
        reads: 7,
        read_bytes: 7 * 4096,
        read_latency: Latencies { buckets: vec![(90, 6), (1_900, 1)], sum_us: 2_000 },
        ..Default::default()
    };
    let id = DriveId(3);
    let drive = DriveStatus {
        id,
        path: "/dev/x".into(),
        capacity_bytes: 100,
        used_bytes: 50,
        free_bytes: Some(50),
        log_bytes_written: 0,
        data_bytes_written: 0,
        blocks_damaged: 3,
        blocks_healed: 2,
        failed: None,
        vanished: None,
    };
    let status = TargetStatus { drives: vec![drive], serving: true, ..Default::default() };
    let load = TargetLoad {
        drives: vec![DriveLoad { id, meter: meter.clone(), data_bytes_written: 1, log_bytes_written: 2 }],
        volumes: vec![VolumeLoad { id: VolumeId(1), name: "a\"b".into(), meter }],
        process: Some(process()),
        ..Default::default()
    };
    node_page("node-1", &[TargetPage { status, load, owed_bytes: 0, waiting: 0 }])
}

fn pool() -> PoolInfo {
    PoolInfo {
        id: PoolId(1),
        name: "default".into(),
        drives: 2,
        groups: 9,
        raw_bytes: 200,
        used_bytes: 120,
        provisioned_bytes: 80,
        free: vec![],
        level: CapacityLevel::Warning,
        fullest: Some(DriveFill {
            drive: DriveId(3),
            node: "node-1".into(),
            capacity_bytes: 100,
            used_bytes: 85,
            is_full: false,
        }),
    }
}

fn trouble() -> Trouble {
    Trouble {
        kind: TroubleKind::PoolFilling,
        severity: Severity::Warning,
        what: String::new(),
        since: Timestamp::from_millis(0),
        node: None,
        drive: None,
        pool: Some("default".into()),
        groups: 0,
        more_volumes: 0,
        volumes: vec![],
        doing: vec![],
        advice: vec![],
    }
}

fn manager() -> String {
    let status = FabricStatus {
        fabric: FabricId(1),
        map: MapVersion(42),
        time: Timestamp::from_millis(0),
        health: Health::Degraded,
        reasons: vec![],
        troubles: vec![trouble()],
        nodes: vec![],
        pools: vec![pool()],
        degraded_groups: vec![DegradedGroup {
            group: GroupId(7),
            volumes: vec!["data".into()],
            drive: DriveId(3),
            node: "node-1".into(),
            role: Role::Syncing,
            good_copies: 1,
            copies: 2,
            repair: Repair::Resync {
                chunks_verified: Some(3),
                chunks_total: Some(8),
                bytes_copied: 0,
                eta_ms: None,
            },
        }],
        emptying: vec![],
        groups: 9,
        volumes: 1,
        file_systems: 0,
        sessions: 0,
        resync_eta_ms: Some(2_500),
        resyncs: vec![],
        scrub: None,
    };
    let map = FabricMap { drives: Table::new(), ..FabricMap::empty(FabricId(1)) };
    let scrub = ScrubInfo {
        every_ms: None,
        next: None,
        rests_until: None,
        running: None,
        last: None,
        groups: vec![],
        volumes: vec![ScrubVolumeInfo {
            volume: "data".into(),
            groups: 1,
            groups_scrubbed: 1,
            scrubbed: Some(Timestamp::from_millis(1_500)),
            healed_blocks: 0,
            lost_blocks: 2,
        }],
        findings: vec![],
    };
    let events = BTreeMap::from([("evict".to_owned(), 3)]);
    let (status, map, scrub, events) = (&status, &map, &scrub, &events);
    manager_page(&ManagerView { status, map, scrub, events, process: &process() })
}

fn server() -> String {
    let on_lane = |lane| ExportConnections { volume: "data".into(), lane, connections: 2 + lane };
    server_page(&[0, 1].map(on_lane), &process())
}

#[test]
fn a_server_tells_the_connections_of_each_lane() {
    let page = server();
    for line in [
        "weft_server_connections{volume=\"data\",lane=\"0\"} 2",
        "weft_server_connections{volume=\"data\",lane=\"1\"} 3",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in {page}");
    }
}

/// Names of the families on a page, as their type is told.
fn families(page: &str) -> BTreeSet<String> {
    let told = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    told.map(|rest| rest.split(' ').next().expect("a name").to_owned()).collect()
}

#[test]
fn every_documented_name_is_on_a_page_and_no_other() {
    let pages = [node(), manager(), server()];
    let found: BTreeSet<String> = pages.iter().flat_map(|page| families(page)).collect();
    let reference = reference();
    let named = reference.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let named: BTreeSet<String> =
        named.map(|name| name.strip_suffix("_total").unwrap_or(name).to_owned()).collect();
    assert_eq!(found, named);
    for page in pages {
        assert!(page.ends_with("# EOF\n"), "{page}");
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(name.starts_with("weft_"), "{line}");
        }
    }
}

#[test]
fn values_are_in_base_units_and_labels_are_escaped() {
    let drive = DriveId(3);
    let (node, manager) = (node(), manager());
    for line in [
        &format!("weft_drive_read_bytes_total{{node=\"node-1\",drive=\"{drive}\"}} 28672"),
        "weft_volume_reads_total{node=\"node-1\",volume=\"a\\\"b\"} 7",
        "weft_volume_read_latency_seconds_bucket{node=\"node-1\",le=\"0.0001\",volume=\"a\\\"b\"} 6",
        "weft_volume_read_latency_seconds_count{node=\"node-1\",volume=\"a\\\"b\"} 7",
        "weft_volume_read_latency_seconds_sum{node=\"node-1\",volume=\"a\\\"b\"} 0.002",
        "weft_process_cpu_seconds_total{node=\"node-1\"} 1.5",
        "weft_node_serving{node=\"node-1\"} 1",
        "# UNIT weft_drive_read_bytes bytes",
    ] {
        assert!(node.lines().any(|l| l == line), "{line} is not in\n{node}");
    }
    for line in [
        "weft_fabric_health 1",
        "weft_fabric_map_version 42",
        "weft_resync_remaining_seconds 2.5",
        "weft_resync_chunks 8",
        "weft_resync_chunks_verified 3",
        "weft_group_copies_missing{repair=\"resync\"} 1",
        "weft_group_copies_missing{repair=\"evicting\"} 0",
        "weft_fabric_drives{state=\"failed\"} 0",
        "weft_fabric_events_total{what=\"evict\"} 3",
        "weft_volume_scrubbed_time_seconds{volume=\"data\"} 1.5",
        "weft_volume_blocks_lost{volume=\"data\"} 2",
        "weft_fabric_troubles{kind=\"pool-filling\",severity=\"warning\"} 1",
        "weft_pool_level{pool=\"default\"} 1",
        "weft_pool_fullest_used_bytes{pool=\"default\"} 85",
    ] {
        assert!(manager.lines().any(|l| l == line), "{line} is not in\n{manager}");
    }
}

/// Sends a request and reads until the server closes.
async fn ask(addr: &Addr, request: &str) -> String {
    let stream = Stream::connect(addr).await.expect("it listens");
    stream.write(vec![Buf::from(request.as_bytes())]).await.expect("it reads");
    let (mut answer, mut buf) = (Vec::new(), BufMut::zeroed(4096));
    loop {
        let (read, back) = stream.read(buf, 0).await;
        buf = back;
        match read.expect("it answers") {
            0 => return String::from_utf8(answer).expect("text"),
            count => answer.extend_from_slice(&buf[..count]),
        }
    }
}

#[test]
fn the_page_is_served_to_whoever_asks_for_it() {
    block_on(async {
        let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a port is free");
        let addr = listener.local_addr();
        spawn(weft_metrics::serve(listener, || async { "page\n".repeat(10_000) }));
        for _ in 0..40 {
            let answer = ask(&addr, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await;
            let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
            assert!(head.contains("Content-Length: 50000"), "{head}");
            assert_eq!(body.len(), 50_000);
        }
        let head = ask(&addr, "HEAD /metrics HTTP/1.1\r\n\r\n").await;
        assert!(head.ends_with("Connection: close\r\n\r\n"), "{head}");
        assert!(ask(&addr, "GET /x HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404 "));
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "x".repeat(9_000));
        assert!(ask(&addr, &long[..8 * 1024]).await.starts_with("HTTP/1.1 431 "));
    })
    .expect("the executor runs");
}
