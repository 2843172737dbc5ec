//! A drive whose file was deleted: it fails at once where others have what it has, and serves its last
//! copies until they are elsewhere.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, TroubleKind};
use weft_checker::History;
use weft_rt::sim::{Sim, kill, spawn_process};
use weft_rt::{now, sleep};
use weft_sim::workload::{self, Workload};
use weft_sim::{Bed, BedShape};
use weft_types::{DriveId, DriveState, Durations};

async fn fabric(copies: u8) -> Rc<Bed> {
    let durations =
        Durations { lease_ms: 500, drift_per_mille: 10, session_ms: 4_000, rebuild_after_ms: 3_600_000 };
    let bed = Bed::start(BedShape {
        nodes: 3,
        drives: 2,
        parts: 1,
        targets: 1,
        drive_bytes: 64 << 20,
        copies,
        durations,
    })
    .await;
    bed.create_volume("shared", copies, 4).await;
    sleep(Duration::from_secs(2)).await;
    bed
}

/// Whether the drive has the last up-to-date copy of something that a volume uses.
fn has_last_copy(bed: &Bed, drive: DriveId) -> bool {
    let map = bed.truth();
    let is_used = |id| map.volumes.values().any(|v| v.spans.iter().any(|s| s.groups.contains(&id)));
    map.groups.values().any(|g| g.read_set().eq([drive]) && is_used(g.id))
}

async fn fails(bed: &Bed, drive: DriveId, within: Duration) {
    let began = now();
    while bed.truth().groups.values().any(|g| g.write_set().any(|d| d == drive)) {
        assert!(began.elapsed() < within, "{drive} still takes part");
        sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn what_others_have_as_well_fails_at_once() {
    Sim::new(601).block_on(async {
        let bed = fabric(2).await;
        let gone = bed.nodes[1].drive_at(0);
        bed.nodes[1].set_unsound(0);
        bed.nodes[1].disks()[0].set_faults(|f| f.is_gone = true);
        fails(&bed, gone, Duration::from_secs(4)).await;
        assert_eq!(bed.truth().drives[&gone].state, DriveState::Failed);
    });
}

#[test]
fn the_last_copy_is_served_until_it_is_elsewhere() {
    for seed in 0..3 {
        Sim::new(610 + seed).block_on(async move {
            let bed = fabric(1).await;
            let history = History::default();
            let used = Workload {
                managers: bed.managers(),
                volume: "shared".into(),
                hot_blocks: vec![0, 4, 150, 515, 900, 1300],
                think: Duration::from_millis(2),
                operations: None,
                depth: 2,
            };
            let run = workload::run("client".into(), used, history.clone());
            let client = spawn_process(IpAddr::from([10, 0, 2, 1]), "client", run);
            sleep(Duration::from_secs(1)).await;
            let place = (0..3).flat_map(|n| [(n, 0), (n, 1)]);
            let (node, at) =
                { place }.find(|(n, d)| has_last_copy(&bed, bed.nodes[*n].drive_at(*d))).unwrap();
            let gone = bed.nodes[node].drive_at(at);
            bed.nodes[node].set_unsound(at);
            bed.nodes[node].disks()[at].set_faults(|f| f.is_gone = true);
            let mut was_told = false;
            let began = now();
            while has_last_copy(&bed, gone) {
                assert!(began.elapsed() < Duration::from_secs(60), "{gone} still has last copies");
                assert_ne!(bed.truth().drives[&gone].state, DriveState::Failed, "nobody has what it has");
                if let Ok(ApiAnswer::Status(status)) = bed.try_api(&ApiRequest::Status {}).await {
                    was_told |= status.troubles.iter().any(|t| {
                        t.kind == TroubleKind::DriveFailed
                            && t.drive == Some(gone)
                            && t.what.contains("serves all the same")
                    });
                }
                sleep(Duration::from_millis(100)).await;
            }
            assert!(was_told, "people were told");
            fails(&bed, gone, Duration::from_secs(5)).await;
            sleep(Duration::from_secs(2)).await;
            kill(client, weft_rt::sim::Crash::Process);
            // Nothing of it was only there.
            bed.kill_node(node, weft_rt::sim::Crash::Process);
            bed.nodes[node].pull(at);
            bed.start_node(node);
            sleep(Duration::from_secs(3)).await;
            let volume =
                workload::attach(&bed.managers(), "shared", "reader", weft_client::AttachMode::Shared).await;
            for block in history.blocks() {
                workload::read("reader", &volume, &history, block, 1).await.expect("it is served");
            }
            volume.detach().await;
            assert!(history.check().is_ok());
        });
    }
}
