//! Creating and deleting volumes, with whoever does it killed at every point: what is left is whole or gone,
//! and no drive keeps a block of what is gone.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, CheckSeverity, FailureDomain};
use weft_client::AttachMode;
use weft_rt::sim::{Crash, Sim};
use weft_rt::{Buf, now, random_below, sleep, spawn, timeout};
use weft_sim::{Bed, BedShape, workload};
use weft_types::{BLOCK_SIZE, Durations, VolumeId};

/// Virtual time within which everything here must settle.
const WITHIN: Duration = Duration::from_secs(60);

/// Commits that a delete takes, and some more: each is a point to die at.
const COMMITS: u64 = 8;

fn shape() -> BedShape {
    let durations =
        Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
    BedShape { nodes: 3, drives: 1, parts: 1, targets: 1, drive_bytes: 64 << 20, copies: 2, durations }
}

fn create(name: &str) -> ApiRequest {
    ApiRequest::VolumeCreate {
        name: name.into(),
        size_bytes: 4 << 20,
        protection: weft_types::Protection::mirror(2),
        pool: None,
        stripe_unit_bytes: Some(16 << 10),
        width: Some(2),
        failure_domain: FailureDomain::Node,
        thin: false,
        dry_run: false,
    }
}

async fn all_drives(bed: &Rc<Bed>) {
    while bed.map().await.drives.len() < bed.shape.nodes {
        sleep(Duration::from_millis(50)).await;
    }
}

async fn whole(bed: &Rc<Bed>) {
    let began = now();
    while let Err(why) = bed.is_whole().await {
        assert!(began.elapsed() < WITHIN, "{why}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// A volume with data in every group that it uses.
async fn filled(bed: &Rc<Bed>, name: &str) -> VolumeId {
    assert!(matches!(bed.api(create(name)).await, ApiAnswer::Volume { .. }));
    let volume = workload::attach(&bed.managers(), name, "writer", AttachMode::Shared).await;
    let size = volume.size_bytes();
    for at in (0..size).step_by(128 << 10) {
        volume.write(at, vec![Buf::from(vec![7; BLOCK_SIZE])]).await.expect("it is served");
    }
    volume.detach().await;
    bed.map().await.volume_named(name).expect("it was made").id
}

async fn gone(bed: &Rc<Bed>, volume: VolumeId) {
    let began = now();
    while bed.map().await.volumes.contains_key(&volume) {
        assert!(began.elapsed() < WITHIN, "{volume} is still there");
        sleep(Duration::from_millis(50)).await;
    }
}

/// The volumes of which some drive holds something.
async fn held(bed: &Rc<Bed>) -> BTreeSet<VolumeId> {
    let mut held = BTreeSet::new();
    for store in bed.nodes.iter().flat_map(|n| n.stores()) {
        for group in store.groups() {
            held.extend(store.volumes_in(group).await.expect("it can be read"));
        }
    }
    held
}

/// Waits until a check finds nothing at all: right after a start not everybody has joined.
async fn sound(bed: &Rc<Bed>) {
    let began = now();
    loop {
        let ApiAnswer::Check(check) = bed.api(ApiRequest::FabricCheck {}).await else { panic!("a check") };
        let told = check.findings.iter().filter(|f| f.severity != CheckSeverity::Note).count();
        if check.sound && told == 0 && check.nodes_asked == check.nodes {
            return;
        }
        assert!(began.elapsed() < WITHIN, "{:?}", check.findings);
        sleep(Duration::from_millis(200)).await;
    }
}

async fn restart_manager(bed: &Rc<Bed>) {
    bed.kill_manager();
    bed.map_store().set_broken(false);
    bed.start_manager();
}

/// The manager's store fails at a commit of a delete, before or after the map is there.
async fn delete_that_dies_at_a_commit(commit: u64, is_written: bool) {
    let bed = Bed::start(shape()).await;
    all_drives(&bed).await;
    let kept = filled(&bed, "kept").await;
    let volume = filled(&bed, "doomed").await;
    whole(&bed).await;
    assert_eq!(held(&bed).await, BTreeSet::from([kept, volume]));
    bed.map_store().break_at(bed.map_store().commits() + commit, is_written);
    let asked = bed.clone();
    let delete = ApiRequest::VolumeDelete { name: "doomed".into(), force: true, dry_run: false };
    let request = delete.clone();
    let asked = spawn(async move { drop(timeout(Duration::from_secs(5), asked.try_api(&request)).await) });
    sleep(Duration::from_secs(2)).await;
    restart_manager(&bed).await;
    let _ = asked.await;
    whole(&bed).await;
    if let Some(left) = bed.map().await.volumes.get(&volume) {
        // Not begun, or going on by itself; asked again, it is done either way.
        let name = left.name.clone();
        assert_eq!(name, "doomed");
        drop(bed.try_api(&delete).await);
    }
    gone(&bed, volume).await;
    whole(&bed).await;
    assert_eq!(held(&bed).await, BTreeSet::from([kept]), "at commit {commit}, written: {is_written}");
    sound(&bed).await;
}

#[test]
fn a_delete_is_finished_whichever_commit_the_manager_dies_at() {
    for commit in 1..=COMMITS {
        for is_written in [false, true] {
            Sim::new(commit).block_on(delete_that_dies_at_a_commit(commit, is_written));
        }
    }
}

#[test]
fn a_delete_is_finished_whoever_dies_and_whenever() {
    for seed in 0..30 {
        Sim::new(seed).block_on(async move {
            let bed = Bed::start(shape()).await;
            all_drives(&bed).await;
            let kept = filled(&bed, "kept").await;
            let volume = filled(&bed, "doomed").await;
            // Some of the time one node is away from before until after.
            let is_away = seed % 3 == 0;
            if is_away {
                bed.kill_node(2, Crash::PowerCut);
                sleep(Duration::from_millis(random_below(3_000))).await;
            }
            let delete = ApiRequest::VolumeDelete { name: "doomed".into(), force: true, dry_run: false };
            let asked = bed.clone();
            let asked = spawn(async move {
                while asked.map().await.volumes.contains_key(&volume) {
                    drop(timeout(Duration::from_secs(5), asked.try_api(&delete)).await);
                    sleep(Duration::from_millis(100)).await;
                }
            });
            for _ in 0..1 + random_below(3) {
                sleep(Duration::from_micros(random_below(60_000))).await;
                match random_below(3) {
                    0 => restart_manager(&bed).await,
                    n => {
                        let crash = if random_below(2) == 0 { Crash::Process } else { Crash::PowerCut };
                        bed.kill_node(n as usize - 1, crash);
                        sleep(Duration::from_micros(random_below(900_000))).await;
                        bed.start_node(n as usize - 1);
                    }
                }
            }
            // What died on the way must not leave the volume there for good, though the answer may be lost.
            timeout(Duration::from_secs(30), asked).await.ok();
            if is_away {
                timeout(Duration::from_secs(20), gone(&bed, volume)).await.expect("nobody waits for it");
                bed.start_node(2);
            }
            gone(&bed, volume).await;
            whole(&bed).await;
            assert_eq!(held(&bed).await, BTreeSet::from([kept]), "seed {seed}");
            sound(&bed).await;
        });
    }
}

#[test]
fn a_volume_whose_manager_died_while_it_was_made_is_whole_or_was_never_there() {
    for (commit, is_written) in [(1, false), (1, true), (2, false), (2, true)] {
        Sim::new(commit).block_on(async move {
            let bed = Bed::start(shape()).await;
            all_drives(&bed).await;
            bed.map_store().break_at(bed.map_store().commits() + commit, is_written);
            let asked = bed.clone();
            let asked = spawn(async move { drop(asked.try_api(&create("new")).await) });
            sleep(Duration::from_secs(2)).await;
            restart_manager(&bed).await;
            let _ = asked.await;
            whole(&bed).await;
            if bed.map().await.volume_named("new").is_none() {
                assert!(bed.map().await.groups.is_empty(), "no group of it either");
                assert!(matches!(bed.api(create("new")).await, ApiAnswer::Volume { .. }));
            }
            let volume = workload::attach(&bed.managers(), "new", "writer", AttachMode::Exclusive).await;
            volume.write(0, vec![Buf::from(vec![7; BLOCK_SIZE])]).await.expect("it is served");
            volume.detach().await;
            whole(&bed).await;
            sound(&bed).await;
        });
    }
}

/// No change of today removes a group; what a map of another release has removed is dropped when the target
/// is back, and what only no map knows is not.
#[test]
fn a_group_that_was_removed_while_a_target_was_away_is_dropped_and_an_unknown_one_is_kept() {
    for is_known in [true, false] {
        Sim::new(7).block_on(async move {
            let bed = Bed::start(shape()).await;
            all_drives(&bed).await;
            let volume = filled(&bed, "doomed").await;
            whole(&bed).await;
            let drive = bed.nodes[0].drives()[0];
            bed.kill_manager();
            (0..3).for_each(|n| bed.kill_node(n, Crash::Process));
            bed.edit_map(|map| {
                map.volumes.remove(&volume);
                map.groups.clear();
                map.group_tables.clear();
                map.scrub = Default::default();
                if !is_known {
                    map.unknown_ids.push((1, map.next_id));
                }
            });
            bed.start_manager();
            (0..3).for_each(|n| bed.start_node(n));
            sleep(Duration::from_secs(3)).await;
            let store = bed.nodes[0].stores().remove(0);
            assert_eq!(store.label().drive, drive);
            let ApiAnswer::Check(check) = bed.api(ApiRequest::FabricCheck {}).await else {
                panic!("a check")
            };
            if is_known {
                assert!(store.groups().is_empty(), "{:?}", store.groups());
                assert!(check.sound && held(&bed).await.is_empty(), "{:?}", check.findings);
            } else {
                assert!(!store.groups().is_empty() && held(&bed).await.contains(&volume));
                let told = check.findings.iter().any(|f| f.what.contains("which no map lists"));
                assert!(!check.sound && told, "{:?}", check.findings);
            }
        });
    }
}
