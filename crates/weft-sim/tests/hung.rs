//! A drive that hangs without an error: it counts as failed after a stated time, and holds up nobody but
//! itself until then.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest};
use weft_client::AttachMode;
use weft_rt::sim::{Sim, spawn_process};
use weft_rt::{Buf, now, sleep, timeout};
use weft_sim::{Bed, BedShape, workload};
use weft_types::limits::DRIVE_SILENCE_SECONDS_MAX;
use weft_types::{BLOCK_SIZE, DriveId, DriveState, Durations, FabricMap, Group, GroupId, Role};

/// Within so long a drive that hangs has left its groups: looks, a report, and a commit come on top.
const EVICTED_WITHIN: Duration = Duration::from_secs(DRIVE_SILENCE_SECONDS_MAX + 4);

/// The longest that clients of other drives may notice: two leases.
const STALL_MAX: Duration = Duration::from_millis(1_000);

async fn fabric() -> Rc<Bed> {
    let durations =
        Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
    let bed = Bed::start(BedShape {
        nodes: 3,
        drives: 2,
        parts: 1,
        targets: 1,
        drive_bytes: 64 << 20,
        copies: 2,
        durations,
    })
    .await;
    bed.create_volume("v", 2, 4).await;
    sleep(Duration::from_secs(2)).await;
    bed.is_whole().await.expect("it is whole");
    bed
}

fn takes_part(map: &FabricMap, drive: DriveId) -> bool {
    map.groups.values().any(|g| g.write_set().any(|d| d == drive))
}

/// The groups in which the drive is in-sync. It may be syncing in others, of which it is given a copy.
fn in_sync_in(map: &FabricMap, drive: DriveId) -> BTreeSet<GroupId> {
    let is_in_sync = |g: &&Group| g.slot_of(drive).is_some_and(|s| s.role == Role::InSync);
    map.groups.values().filter(is_in_sync).map(|g| g.id).collect()
}

#[test]
fn a_drive_that_hangs_is_evicted_and_holds_up_no_other_drive_of_its_node() {
    for seed in 0..4 {
        Sim::new(500 + seed).block_on(async move {
            let bed = fabric().await;
            let (hung, other) = (bed.nodes[0].drive_at(0), bed.nodes[0].drive_at(1));
            bed.nodes[0].set_unsound(0);
            let disk = bed.nodes[0].disks()[0].clone();
            disk.set_faults(|f| f.stuck = true);
            let (began, before) = (now(), in_sync_in(&bed.truth(), other));
            let stays = |map: &FabricMap| before.is_subset(&in_sync_in(map, other));
            // A map that all have to adopt meanwhile; perhaps a manager that all have to join.
            bed.create_volume("w", 2, 4).await;
            if seed % 2 == 1 {
                bed.kill_manager();
                bed.start_manager();
            }
            while takes_part(&bed.truth(), hung) {
                assert!(began.elapsed() < EVICTED_WITHIN, "{hung} is still a member");
                assert!(stays(&bed.truth()), "the other drive of its node has left a group");
                sleep(Duration::from_millis(50)).await;
            }
            assert_eq!(bed.truth().drives[&hung].state, DriveState::Failed);
            sleep(Duration::from_secs(1)).await;
            let map = bed.truth();
            assert!(stays(&map), "the other drive of its node stays");
            let ApiAnswer::Status(status) = bed.api(ApiRequest::Status {}).await else { panic!() };
            assert!(
                status.nodes.iter().all(|n| n.adopted == Some(map.version)),
                "all have adopted {}",
                map.version
            );
            // What it completes now counts for nothing.
            disk.set_faults(|f| f.stuck = false);
            sleep(Duration::from_secs(5)).await;
            assert!(!takes_part(&bed.truth(), hung));
        });
    }
}

/// A volume with its only copy on one drive, and none on another: no other node vouches for this one.
async fn volume_on(bed: &Bed, on: DriveId, not_on: DriveId) -> String {
    for n in 0.. {
        let name = format!("narrow-{n}");
        bed.create_volume(&name, 1, 1).await;
        let map = bed.truth();
        let volume = map.volumes.values().find(|v| v.name == name).expect("it was made");
        let groups: Vec<_> =
            volume.spans.iter().flat_map(|s| s.groups.iter()).map(|g| &map.groups[g]).collect();
        let has = |drive| groups.iter().any(|g| g.slot_of(drive).is_some());
        if has(on) && !has(not_on) {
            return name;
        }
    }
    unreachable!("drives have their share of the groups")
}

#[test]
fn what_hangs_stops_no_writes_to_the_other_drive_of_its_node() {
    Sim::new(520).block_on(async {
        let bed = fabric().await;
        let (hung, other) = (bed.nodes[0].drive_at(0), bed.nodes[0].drive_at(1));
        let (name, managers) = (volume_on(&bed, other, hung).await, bed.managers());
        let (longest, noted) = (Rc::new(Cell::new(Duration::ZERO)), Rc::new(Cell::new(0)));
        let (slowest, count) = (longest.clone(), noted.clone());
        spawn_process(IpAddr::from([10, 0, 2, 1]), "client", async move {
            let volume = workload::attach(&managers, &name, "client", AttachMode::Shared).await;
            loop {
                let began = now();
                volume.write(0, vec![Buf::zeroes(BLOCK_SIZE)]).await.expect("it is written");
                slowest.set(slowest.get().max(began.elapsed()));
                count.set(count.get() + 1);
                sleep(Duration::from_millis(20)).await;
            }
        });
        sleep(Duration::from_secs(1)).await;
        bed.nodes[0].set_unsound(0);
        bed.nodes[0].disks()[0].set_faults(|f| f.stuck = true);
        longest.set(Duration::ZERO);
        noted.set(0);
        // Maps that all have to adopt meanwhile.
        for n in 0..8 {
            let name = format!("w-{n}");
            let _ = timeout(Duration::from_secs(1), bed.create_volume(&name, 2, 1)).await;
            sleep(Duration::from_millis(500)).await;
        }
        assert!(noted.get() > 50, "{} writes", noted.get());
        let stall = longest.get();
        assert!(stall < STALL_MAX, "a write has taken {stall:?}");
    });
}

#[test]
fn what_hangs_holds_up_no_attach_of_a_volume_on_the_other_drive_of_its_node() {
    Sim::new(530).block_on(async {
        let bed = fabric().await;
        let (hung, other) = (bed.nodes[0].drive_at(0), bed.nodes[0].drive_at(1));
        let (name, managers) = (volume_on(&bed, other, hung).await, bed.managers());
        bed.nodes[0].set_unsound(0);
        bed.nodes[0].disks()[0].set_faults(|f| f.stuck = true);
        let took = Rc::new(Cell::new(None));
        let (attached, began) = (took.clone(), now());
        spawn_process(IpAddr::from([10, 0, 2, 1]), "client", async move {
            let _volume = workload::attach(&managers, &name, "client", AttachMode::Exclusive).await;
            attached.set(Some(began.elapsed()));
            std::future::pending::<()>().await;
        });
        while took.get().is_none() {
            assert!(began.elapsed() < STALL_MAX, "the attach waits for a drive of other volumes");
            sleep(Duration::from_millis(50)).await;
        }
        assert!(takes_part(&bed.truth(), hung), "it has not left its groups yet");
    });
}

#[test]
fn a_drive_that_is_slow_stays() {
    Sim::new(510).block_on(async {
        let bed = fabric().await;
        let slow = bed.nodes[0].drive_at(0);
        let latency = Duration::from_secs(DRIVE_SILENCE_SECONDS_MAX / 2);
        bed.nodes[0].disks()[0].set_faults(|f| f.latency = (latency, latency));
        sleep(Duration::from_secs(60)).await;
        assert!(bed.truth().drives[&slow].state == DriveState::Active && takes_part(&bed.truth(), slow));
    });
}
