//! Losses that are accepted: only what was named is lost, and who was declared destroyed never serves again.

use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, FabricStatus, LossInfo};
use weft_checker::History;
use weft_client::AttachMode;
use weft_rt::sim::{Crash, ProcessId, Sim, kill, spawn_process};
use weft_rt::{now, random_below, sleep, spawn};
use weft_sim::workload::{self, Workload};
use weft_sim::{Bed, BedShape, STOP_PATIENCE};
use weft_types::{BLOCK_SIZE, DriveId, DriveState, Durations, FabricMap};

/// Virtual time within which everything here must settle.
const WITHIN: Duration = Duration::from_secs(60);

const HOT: [u64; 4] = [0, 4, 150, 515];

fn shape(nodes: usize) -> BedShape {
    let durations =
        Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
    BedShape { nodes, drives: 1, parts: 1, targets: 1, drive_bytes: 64 << 20, copies: 2, durations }
}

fn workload(bed: &Rc<Bed>) -> Workload {
    Workload {
        managers: bed.managers(),
        volume: "shared".into(),
        hot_blocks: HOT.to_vec(),
        think: Duration::from_millis(2),
        operations: None,
        depth: 2,
    }
}

fn clients(bed: &Rc<Bed>, history: &History, round: u8) -> Vec<ProcessId> {
    let workload = workload(bed);
    (0..2)
        .map(|n| {
            let name = format!("client-{round}-{n}");
            let run = workload::run(name.clone(), workload.clone(), history.clone());
            spawn_process(std::net::IpAddr::from([10, 0, 2, 1 + 10 * round + n]), &name, run)
        })
        .collect()
}

fn repair(destroyed: &[DriveId], accept: bool, dry_run: bool) -> ApiRequest {
    ApiRequest::VolumeRepair {
        names: vec!["shared".into()],
        accept_data_loss: accept,
        destroyed: destroyed.iter().map(DriveId::to_string).collect(),
        older: vec![],
        dry_run,
    }
}

async fn refused(bed: &Rc<Bed>, request: &ApiRequest) -> String {
    bed.try_api(request).await.expect_err("it is refused")
}

async fn accepted(bed: &Rc<Bed>, request: &ApiRequest) -> LossInfo {
    let began = now();
    loop {
        match bed.try_api(request).await {
            Ok(ApiAnswer::Loss(info)) => return *info,
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(began.elapsed() < WITHIN, "{error}"),
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until no group waits for the drive to write, but those that have nobody else.
async fn evicted(bed: &Rc<Bed>, drive: DriveId, dead: &[DriveId]) {
    let began = now();
    loop {
        let map = bed.map().await;
        let waits = |g: &weft_types::Group| {
            g.write_set().any(|d| d == drive) && g.read_set().any(|d| !dead.contains(&d))
        };
        if !map.groups.values().any(waits) {
            return;
        }
        assert!(began.elapsed() < WITHIN, "{drive} is not evicted");
        sleep(Duration::from_millis(20)).await;
    }
}

fn is_in(info: &LossInfo, block: u64) -> bool {
    let at = block * BLOCK_SIZE as u64;
    let ranges = info.groups.iter().flat_map(|g| &g.ranges);
    { ranges }.any(|r| r.volume == "shared" && r.offset_bytes <= at && at < r.offset_bytes + r.bytes)
}

async fn status(bed: &Rc<Bed>) -> FabricStatus {
    match bed.api(ApiRequest::Status {}).await {
        ApiAnswer::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

async fn whole(bed: &Rc<Bed>) {
    let began = now();
    while let Err(why) = bed.is_whole().await {
        assert!(began.elapsed() < WITHIN, "{why}");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn read_all(bed: &Rc<Bed>, history: &History) {
    let volume = workload::attach(&bed.managers(), "shared", "reader", AttachMode::Shared).await;
    for block in history.blocks() {
        workload::read("reader", &volume, history, block, 1).await.expect("it is served");
    }
    volume.detach().await;
}

fn takes_part(map: &FabricMap, drive: DriveId) -> bool {
    map.groups.values().any(|g| g.write_set().any(|d| d == drive))
}

/// One copy falls behind, the other one is gone for good, and the fabric goes on with the one that is behind.
async fn goes_on_with_an_older_copy(with_manager_death: bool) {
    let bed = Bed::start(shape(3)).await;
    bed.create_volume("shared", 2, 3).await;
    let history = History::default();
    let mut running = clients(&bed, &history, 0);
    sleep(Duration::from_millis(400)).await;
    let (behind, gone, good) = (bed.nodes[0].drives()[0], bed.nodes[1].drives()[0], bed.nodes[2].drives()[0]);
    bed.kill_node(0, Crash::Process);
    evicted(&bed, behind, &[behind]).await;
    sleep(Duration::from_millis(400)).await;
    bed.kill_node(1, Crash::PowerCut);
    evicted(&bed, gone, &[behind, gone]).await;
    bed.start_node(0);
    sleep(Duration::from_millis(1_500)).await;
    // Nobody loses anything by a slip.
    let text = refused(&bed, &repair(&[], false, false)).await;
    assert!(text.contains("bring them back") && text.contains(&gone.to_string()), "{text}");
    assert!(refused(&bed, &repair(&[], true, false)).await.contains("bring them back"));
    let text = refused(&bed, &repair(&[gone], false, false)).await;
    assert!(text.contains("--accept-data-loss --dry-run"), "{text}");
    let text = refused(&bed, &repair(&[gone, good], true, false)).await;
    assert!(text.contains("is in service") || text.contains("no member"), "{text}");
    let before = bed.map().await;
    let rehearsal = accepted(&bed, &repair(&[gone], true, true)).await;
    let after = bed.map().await;
    assert!(rehearsal.dry_run && after.drives == before.drives, "a rehearsal changes nothing");
    if with_manager_death {
        bed.kill_manager();
        bed.start_manager();
    }
    let began = history.begin_loss();
    let info = accepted(&bed, &repair(&[gone], true, false)).await;
    history.end_loss(began, |block| is_in(&info, block));
    assert!(info.groups.iter().all(|g| g.survivor == behind && !g.empty), "{info:?}");
    assert!((1..16 << 20).contains(&info.lost_bytes_max), "only what was in that group: {info:?}");
    // Who was declared destroyed comes back, with all that was acknowledged, and is not heard.
    bed.start_node(1);
    running.extend(clients(&bed, &history, 1));
    sleep(Duration::from_millis(800)).await;
    let since = history.completed();
    sleep(Duration::from_millis(500)).await;
    assert!(history.completed() > since, "clients go on");
    running.into_iter().for_each(|c| kill(c, Crash::Process));
    whole(&bed).await;
    let map = bed.map().await;
    assert!(map.drives[&gone].state == DriveState::Destroyed && !takes_part(&map, gone));
    let reasons = status(&bed).await.reasons.join("\n");
    assert!(
        reasons.contains("was declared destroyed") && reasons.contains("drive format --force"),
        "{reasons}"
    );
    read_all(&bed, &history).await;
    whole(&bed).await;
    bed.scrub().await.unwrap();
    history.check().unwrap_or_else(|v| panic!("{v}"));
    assert!(history.completed() > 200, "{} operations", history.completed());
}

#[test]
fn a_group_goes_on_with_an_older_copy() {
    for seed in 0..6 {
        Sim::new(seed).block_on(goes_on_with_an_older_copy(seed % 2 == 1));
    }
}

#[test]
fn a_group_begins_anew_where_no_copy_is_left() {
    for seed in 20..24 {
        Sim::new(seed).block_on(async {
            let bed = Bed::start(shape(4)).await;
            bed.create_volume("shared", 2, 3).await;
            let history = History::default();
            let running = clients(&bed, &history, 0);
            sleep(Duration::from_millis(400)).await;
            // Both nodes of a group in which the volume lies.
            let map = bed.map().await;
            let group = &map.groups[&map.volume_named("shared").expect("it is there").spans[0].groups[0]];
            let gone: Vec<DriveId> = group.slots.iter().map(|s| s.drive).collect();
            let dead: Vec<usize> =
                (0..bed.nodes.len()).filter(|n| gone.contains(&bed.nodes[*n].drives()[0])).collect();
            dead.iter().for_each(|n| bed.kill_node(*n, Crash::PowerCut));
            for drive in &gone {
                evicted(&bed, *drive, &gone).await;
            }
            // One of the two is not enough: the other may have everything.
            let text = refused(&bed, &repair(&gone[..1], true, false)).await;
            assert!(text.contains(&gone[1].to_string()), "{text}");
            let began = history.begin_loss();
            let info = accepted(&bed, &repair(&gone, true, false)).await;
            history.end_loss(began, |block| is_in(&info, block));
            assert!(info.groups.iter().all(|g| g.empty) && !info.groups.is_empty(), "{info:?}");
            // Both come back, whole and up to date as they were: too late.
            dead.iter().for_each(|n| bed.start_node(*n));
            sleep(Duration::from_secs(3)).await;
            running.into_iter().for_each(|c| kill(c, Crash::Process));
            whole(&bed).await;
            let map = bed.map().await;
            assert!(gone.iter().all(|d| !takes_part(&map, *d)));
            read_all(&bed, &history).await;
            whole(&bed).await;
            bed.scrub().await.unwrap();
            history.check().unwrap_or_else(|v| panic!("{v}"));
        });
    }
}

/// Everyone is stopped, and one drive is replaced by a copy of itself from before.
async fn old_copy_in_its_place(stop_all: bool) {
    let bed = Bed::start(shape(3)).await;
    bed.create_volume("shared", 2, 3).await;
    let history = History::default();
    let mut running = clients(&bed, &history, 0);
    sleep(Duration::from_millis(500)).await;
    let old = bed.nodes[0].disks()[0].copy("old");
    // So long that the manager has kept how far the drives have come.
    sleep(Duration::from_secs(7)).await;
    let nodes = if stop_all { 3 } else { 1 };
    if stop_all {
        running.drain(..).for_each(|c| kill(c, Crash::Process));
        sleep(Duration::from_millis(random_below(2_000))).await;
        bed.kill_manager();
    }
    (0..nodes).for_each(|n| bed.kill_node(n, Crash::Process));
    bed.nodes[0].put_disk(0, old);
    bed.start_manager();
    (0..nodes).for_each(|n| bed.start_node(n));
    let told = bed.clone();
    let drive = bed.nodes[0].drives()[0];
    let told = spawn(async move {
        for _ in 0..200 {
            let reasons = status(&told).await.reasons.join("\n");
            if reasons.contains("holds less than it had acknowledged") {
                return reasons;
            }
            sleep(Duration::from_millis(20)).await;
        }
        String::new()
    });
    running.extend(clients(&bed, &history, 1));
    read_all(&bed, &history).await;
    let told = told.await.expect("it ends");
    assert!(told.contains(&drive.to_string()), "it is told: {told}");
    sleep(Duration::from_secs(2)).await;
    running.into_iter().for_each(|c| kill(c, Crash::Process));
    whole(&bed).await;
    let map = bed.map().await;
    assert!(takes_part(&map, drive), "it is brought up to date, and takes part again");
    bed.scrub().await.unwrap();
    history.check().unwrap_or_else(|v| panic!("{v}"));
}

/// A drive is replaced by a copy of itself that lacks only what was written after the last renewal before its
/// node was stopped in order.
async fn old_copy_of_a_moment_ago(manager_dies: bool) {
    // Renewals are 5 s apart, the first one comes with the join.
    let durations = Durations { lease_ms: 20_000, ..shape(3).durations };
    let bed = Bed::start(BedShape { durations, ..shape(3) }).await;
    bed.create_volume("shared", 2, 3).await;
    let history = History::default();
    let first = clients(&bed, &history, 0);
    sleep(Duration::from_secs(7)).await;
    first.into_iter().for_each(|c| kill(c, Crash::Process));
    // Stopped and started again: the join tells the manager what it holds then, and what it holds is copied.
    bed.stop_node(0, STOP_PATIENCE).await;
    let old = bed.nodes[0].disks()[0].copy("old");
    bed.start_node(0);
    let second = clients(&bed, &history, 1);
    sleep(Duration::from_millis(1_500)).await;
    second.into_iter().for_each(|c| kill(c, Crash::Process));
    bed.stop_node(0, STOP_PATIENCE).await;
    if manager_dies {
        bed.kill_manager();
        bed.start_manager();
    }
    bed.nodes[0].put_disk(0, old);
    bed.start_node(0);
    let drive = bed.nodes[0].drives()[0];
    // Its node has handed over, so no group trusts what it holds: nothing of it is read before it is brought
    // up to date.
    read_all(&bed, &history).await;
    whole(&bed).await;
    assert!(takes_part(&bed.map().await, drive), "it is brought up to date, and takes part again");
    bed.scrub().await.unwrap();
    history.check().unwrap_or_else(|v| panic!("{v}"));
    assert!(history.completed() > 200, "{} operations", history.completed());
}

#[test]
fn an_older_copy_that_lacks_only_the_last_moment_before_a_stop_is_brought_up_to_date() {
    for seed in 50..52 {
        Sim::new(seed).block_on(old_copy_of_a_moment_ago(seed % 2 == 0));
    }
}

#[test]
fn a_drive_that_is_an_older_copy_of_itself_never_serves_what_it_holds() {
    for seed in 40..44 {
        Sim::new(seed).block_on(old_copy_in_its_place(seed % 2 == 0));
    }
}
