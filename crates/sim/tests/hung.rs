//! A drive that hangs without an error: it counts as failed after a stated time, and holds up nobody but
//! itself until then.

use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest};
use weft_rt::sim::Sim;
use weft_rt::{now, sleep};
use weft_sim::{Bed, BedShape};
use weft_types::limits::DRIVE_SILENCE_SECONDS_MAX;
use weft_types::{DriveId, DriveState, Durations, FabricMap, Role};

/// Within so long a drive that hangs has left its groups: looks, a report, and a commit come on top.
const EVICTED_WITHIN: Duration = Duration::from_secs(DRIVE_SILENCE_SECONDS_MAX + 4);

async fn fabric() -> Rc<Bed> {
    let durations =
        Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
    let bed = Bed::start(BedShape { nodes: 3, drives: 2, drive_bytes: 64 << 20, copies: 2, durations }).await;
    bed.create_volume("v", 2, 4).await;
    sleep(Duration::from_secs(2)).await;
    bed.is_whole().await.expect("it is whole");
    bed
}

fn takes_part(map: &FabricMap, drive: DriveId) -> bool {
    map.groups.values().any(|g| g.write_set().any(|d| d == drive))
}

/// Whether the drive is in-sync wherever it is a member.
fn is_in_sync(map: &FabricMap, drive: DriveId) -> bool {
    let mut roles = map.groups.values().filter_map(|g| g.slot_of(drive)).map(|s| s.role);
    roles.all(|role| role == Role::InSync)
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
            let began = now();
            // A map that all have to adopt meanwhile; perhaps a manager that all have to join.
            bed.create_volume("w", 2, 4).await;
            if seed % 2 == 1 {
                bed.kill_manager();
                bed.start_manager();
            }
            while takes_part(&bed.truth(), hung) {
                assert!(began.elapsed() < EVICTED_WITHIN, "{hung} is still a member");
                sleep(Duration::from_millis(50)).await;
            }
            assert_eq!(bed.truth().drives[&hung].state, DriveState::Failed);
            sleep(Duration::from_secs(1)).await;
            let map = bed.truth();
            assert!(is_in_sync(&map, other), "the other drive of its node stays, or is back");
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
