//! Clients follow their slices of the map, and those say what the whole map says.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiRequest, SettingsWish};
use weft_client::{AttachMode, AttachOptions, Fabric, Volume};
use weft_rt::sim::{Sim, set_blocked, spawn_process};
use weft_rt::{now, sleep, spawn};
use weft_sim::{Bed, BedShape, client_host, manager_host};
use weft_types::limits::MAP_VERSIONS_KEPT_MAX;
use weft_types::{Durations, FabricMap, SessionId, Slice, VolumeId};

async fn bed(nodes: usize) -> Rc<Bed> {
    let durations = Durations { lease_ms: 500, ..Durations::default() };
    let bed = Bed::start(BedShape {
        nodes,
        drives: 1,
        parts: 1,
        targets: 1,
        drive_bytes: 64 << 20,
        copies: 2,
        durations,
    })
    .await;
    for name in ["a", "b", "c"] {
        bed.create_volume(name, 2, 1).await;
    }
    bed
}

async fn attach(fabric: &Fabric, volume: &str) -> Volume {
    let options = AttachOptions {
        mode: AttachMode::Shared,
        preempt: false,
        io_timeout: Duration::from_secs(3600),
        ..Default::default()
    };
    fabric.attach(volume, options).await.unwrap()
}

/// The slice of the truth that a client has to hold which has attached these volumes, and no other
/// client has.
fn slice(truth: &FabricMap, volumes: &[&str]) -> FabricMap {
    let volumes: BTreeSet<VolumeId> =
        volumes.iter().map(|name| truth.volume_named(name).expect("it is there").id).collect();
    let sessions = truth.sessions.values().filter(|s| volumes.contains(&s.volume) && s.client == "own");
    let sessions: BTreeSet<SessionId> = sessions.map(|s| s.id).collect();
    truth.slice(&Slice::Client { volumes, sessions })
}

/// Waits until the client holds what the truth says of these volumes.
async fn holds(bed: &Bed, fabric: &Fabric, volumes: &[&str]) {
    let until = now() + Duration::from_secs(15);
    loop {
        let truth = bed.truth();
        let (expected, held) = (slice(&truth, volumes), fabric.map());
        if (FabricMap { version: truth.version, ..FabricMap::clone(&held) }) == expected {
            return;
        }
        assert!(now() < until, "the client holds {held:#?}, and not {expected:#?}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn a_client_holds_what_the_map_says_of_its_sessions() {
    Sim::new(3).block_on(async {
        let bed = bed(3).await;
        let fabric = Fabric::connect(&bed.managers(), "own").await.unwrap();
        holds(&bed, &fabric, &[]).await;
        let first = attach(&fabric, "a").await;
        holds(&bed, &fabric, &["a"]).await;
        // Of other clients and volumes it hears nothing.
        let others = Fabric::connect(&bed.managers(), "other").await.unwrap();
        let _other = attach(&others, "a").await;
        let _third = attach(&others, "c").await;
        bed.create_volume("d", 2, 1).await;
        holds(&bed, &fabric, &["a"]).await;
        // Two at once: the slice that comes with the one lacks the other.
        let second = {
            let fabric = fabric.clone();
            spawn(async move { attach(&fabric, "b").await })
        };
        let third = attach(&fabric, "c").await;
        let second = second.await.unwrap();
        holds(&bed, &fabric, &["a", "b", "c"]).await;
        for volume in [&first, &second, &third] {
            volume.read(0, 4096).await.unwrap();
        }
        // A member passes to a drive that the slice may not have.
        bed.evacuate(0, 0, false).await;
        sleep(Duration::from_secs(5)).await;
        assert!(bed.truth().groups.values().all(|g| g.slot_of(bed.nodes[0].drives()[0]).is_none()));
        holds(&bed, &fabric, &["a", "b", "c"]).await;
        first.read(0, 4096).await.unwrap();
        // The next manager does not know what the one before has said.
        bed.kill_manager();
        bed.start_manager();
        holds(&bed, &fabric, &["a", "b", "c"]).await;
        second.read(0, 4096).await.unwrap();
    });
}

#[test]
fn a_client_that_was_cut_off_for_many_changes_catches_up() {
    Sim::new(4).block_on(async {
        let bed = bed(2).await;
        let (inner, host) = (bed.clone(), client_host(0));
        let (done, told) = (Rc::new(std::cell::Cell::new(false)), Rc::new(std::cell::Cell::new(false)));
        let (is_done, is_attached) = (done.clone(), told.clone());
        spawn_process(host, "client", async move {
            let fabric = Fabric::connect(&inner.managers(), "own").await.unwrap();
            let volume = attach(&fabric, "a").await;
            is_attached.set(true);
            sleep(Duration::from_secs(5)).await;
            holds(&inner, &fabric, &["a"]).await;
            volume.read(0, 4096).await.unwrap();
            is_done.set(true);
        });
        while !told.get() {
            sleep(Duration::from_millis(10)).await;
        }
        set_blocked(host, manager_host(), true);
        let before = bed.truth().version;
        bed.try_api(&ApiRequest::VolumeResize { name: "a".into(), size_bytes: 18 << 20, dry_run: false })
            .await
            .unwrap();
        for round in 0..MAP_VERSIONS_KEPT_MAX as u8 {
            let capacity_warning_percent = Some(50 + round % 20);
            bed.api(ApiRequest::Settings(SettingsWish { capacity_warning_percent, ..Default::default() }))
                .await;
        }
        assert!(bed.truth().version.0 > before.0 + MAP_VERSIONS_KEPT_MAX as u64);
        set_blocked(host, manager_host(), false);
        let until = now() + Duration::from_secs(60);
        while !done.get() {
            assert!(now() < until, "it does not catch up");
            sleep(Duration::from_millis(50)).await;
        }
    });
}
