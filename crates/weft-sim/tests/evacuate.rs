//! Drives are emptied, replaced and restored under load: no operation fails or sees old data, and nothing is
//! left on them.

use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest};
use weft_checker::History;
use weft_rt::sim::{Crash, Sim, kill, spawn_process};
use weft_rt::{now, sleep};
use weft_sim::workload::{self, Workload};
use weft_sim::{Bed, BedShape};
use weft_types::{DriveId, DriveState, Durations, FabricMap};

/// Virtual time within which a small drive must be empty.
const EMPTY_WITHIN: Duration = Duration::from_secs(60);

fn shape(nodes: usize, drives: usize) -> BedShape {
    let durations =
        Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
    BedShape { nodes, drives, parts: 1, targets: 1, drive_bytes: 64 << 20, copies: 2, durations }
}

fn groups_on(map: &FabricMap, drive: DriveId) -> usize {
    map.groups.values().filter(|g| g.slot_of(drive).is_some()).count()
}

/// Runs clients, does something to drives meanwhile, and judges it at the end.
fn under_load<F: Future<Output = ()> + 'static>(
    seed: u64,
    bed_shape: BedShape,
    act: impl FnOnce(Rc<Bed>) -> F + 'static,
) {
    Sim::new(seed).block_on(async move {
        let bed = Bed::start(bed_shape).await;
        bed.create_volume("shared", 2, 2).await;
        let history = History::default();
        let workload = Workload {
            managers: bed.managers(),
            volume: "shared".into(),
            hot_blocks: vec![0, 2, 150],
            think: Duration::from_millis(2),
            operations: None,
            depth: 2,
        };
        let clients: Vec<_> = (0..2)
            .map(|n| {
                let name = format!("client-{n}");
                let run = workload::run(name.clone(), workload.clone(), history.clone());
                spawn_process(std::net::IpAddr::from([10, 0, 2, 1 + n]), &name, run)
            })
            .collect();
        sleep(Duration::from_millis(300)).await;
        act(bed.clone()).await;
        sleep(Duration::from_millis(300)).await;
        clients.into_iter().for_each(|c| kill(c, Crash::Process));
        let began = now();
        while let Err(why) = bed.is_whole().await {
            assert!(began.elapsed() < EMPTY_WITHIN, "{why}");
            sleep(Duration::from_millis(100)).await;
        }
        assert!(history.completed() > 200, "{} operations", history.completed());
        bed.scrub().await.unwrap();
        history.check().unwrap_or_else(|v| panic!("{v}"));
    });
}

/// Waits until a drive holds no copy; no group may have fewer than so many in-sync members on the way.
async fn until_empty(bed: &Rc<Bed>, drive: DriveId, copies: usize) {
    let began = now();
    loop {
        let map = bed.map().await;
        for group in map.groups.values() {
            assert!(
                group.read_set().count() >= copies,
                "group {} has a copy less: {:?}",
                group.id,
                group.slots
            );
        }
        if groups_on(&map, drive) == 0 {
            return;
        }
        assert!(began.elapsed() < EMPTY_WITHIN, "{} groups are left", groups_on(&map, drive));
        sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_drive_is_emptied_with_no_copy_less_at_any_time() {
    for seed in 0..5 {
        under_load(seed, shape(4, 1), |bed| async move {
            let drive = bed.nodes[0].drives()[0];
            let before = bed.map().await;
            bed.evacuate(0, 0, false).await;
            until_empty(&bed, drive, 2).await;
            // The drive's state; per group begin, promote, hand over, finish; and a few by clients.
            let changes = bed.map().await.version.0 - before.version.0;
            assert!(changes <= 4 * groups_on(&before, drive) as u64 + 10, "{changes} maps");
            let id = drive.to_string();
            assert!(matches!(
                bed.api(ApiRequest::DriveRemove { id, device: false, dry_run: false }).await,
                ApiAnswer::Removed { .. }
            ));
            // Its target may say what it likes: a drive that was removed does not come back.
            bed.kill_node(0, Crash::Process);
            bed.start_node(0);
            sleep(Duration::from_secs(2)).await;
            let map = bed.map().await;
            assert!(!map.drives.contains_key(&drive) && map.removed_drives.contains(&drive));
        });
    }
}

#[test]
fn a_drive_is_emptied_although_its_node_and_others_die_on_the_way() {
    for seed in 10..15 {
        under_load(seed, shape(5, 1), |bed| async move {
            let drive = bed.nodes[0].drives()[0];
            bed.evacuate(0, 0, false).await;
            sleep(Duration::from_millis(weft_rt::random_below(30))).await;
            let victim = weft_rt::random_below(3) as usize;
            bed.kill_node(victim, Crash::PowerCut);
            sleep(Duration::from_millis(weft_rt::random_below(1_500))).await;
            bed.kill_manager();
            bed.start_manager();
            sleep(Duration::from_millis(300)).await;
            bed.start_node(victim);
            until_empty(&bed, drive, 1).await;
        });
    }
}

#[test]
fn a_drive_takes_the_place_of_another_on_its_node() {
    under_load(20, shape(3, 2), |bed| async move {
        let (old, new) = (bed.nodes[1].drives()[0], bed.nodes[1].drives()[1]);
        let others = groups_on(&bed.map().await, new);
        // The new drive must be empty to take over every group: its own copies go elsewhere first.
        bed.evacuate(1, 1, false).await;
        until_empty(&bed, new, 2).await;
        bed.evacuate(1, 1, true).await;
        assert!(others > 0 && groups_on(&bed.map().await, old) > 0);
        let request = ApiRequest::DriveReplace {
            id: old.to_string(),
            with: new.to_string(),
            device: false,
            dry_run: false,
        };
        match bed.api(request).await {
            ApiAnswer::Evacuation(evacuation) => assert!(evacuation.copies.iter().all(|c| c.to == new)),
            other => panic!("{other:?}"),
        }
        until_empty(&bed, old, 2).await;
        assert!(groups_on(&bed.map().await, new) > 0);
    });
}

#[test]
fn a_drive_that_failed_is_restored_once_its_target_serves_it_again() {
    under_load(30, shape(3, 1), |bed| async move {
        let drive = bed.nodes[2].drives()[0];
        bed.nodes[2].disks()[0].set_faults(|f| f.write_error = Some(std::io::ErrorKind::Other));
        let state = async |bed: &Rc<Bed>| bed.map().await.drives[&drive].state;
        while state(&bed).await != DriveState::Failed {
            sleep(Duration::from_millis(50)).await;
        }
        let restore = ApiRequest::DriveRestore { id: drive.to_string(), device: false, dry_run: false };
        let refused = bed.try_api(&restore).await.expect_err("its target does not serve it");
        assert!(refused.contains("restart the node's target"), "{refused}");
        bed.nodes[2].disks()[0].set_faults(|f| f.write_error = None);
        bed.kill_node(2, Crash::Process);
        bed.start_node(2);
        sleep(Duration::from_secs(3)).await;
        assert_eq!(state(&bed).await, DriveState::Failed, "it is not trusted again by itself");
        assert!(matches!(bed.api(restore).await, ApiAnswer::Drive { .. }));
        assert_eq!(state(&bed).await, DriveState::Active);
    });
}
