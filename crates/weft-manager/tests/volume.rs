//! Volumes and the manager's own death: a change happened or did not, and what was begun goes on.

use crate::harness;

use harness::*;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, ErrorCode, Health, Repair};
use weft_rpc::Link;
use weft_rt::sim::Sim;
use weft_rt::{sleep, spawn};
use weft_types::AttachMode::Shared;
use weft_types::{AttachMode, DeviceId, DriveId, Role, VolumeState};
use weft_wire::control::{ManagerRequest, ResyncStatus, TargetRequest};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::pieces::encode_whole;
use weft_wire::{Kind, Status};

fn delete(name: &str, force: bool, dry_run: bool) -> ApiRequest {
    ApiRequest::VolumeDelete { name: name.into(), force, dry_run }
}

fn was_dropped(target: &FakeTarget) -> bool {
    target.log.borrow().iter().any(|(_, r)| matches!(r, TargetRequest::DropVolume { .. }))
}

#[test]
fn a_volume_is_created_grown_and_deleted() {
    Sim::new(1).block_on(async {
        let (service, targets, _) = fabric(3).await;
        let mut wanted = volume_of("v", 2);
        let ApiRequest::VolumeCreate { stripe_unit_bytes, width, dry_run, .. } = &mut wanted else {
            panic!()
        };
        (*stripe_unit_bytes, *width, *dry_run) = (Some(128 << 10), Some(2), true);
        let before = service.map();
        let Ok(ApiAnswer::Volume { volume, dry_run: true, .. }) = operate(wanted.clone()).await else {
            panic!("planned")
        };
        assert_eq!(service.map(), before, "a dry run changes nothing");
        let ApiRequest::VolumeCreate { dry_run, .. } = &mut wanted else { panic!() };
        *dry_run = false;
        let Ok(ApiAnswer::Volume { volume: created, .. }) = operate(wanted.clone()).await else {
            panic!("created")
        };
        assert_eq!((created.id, created.groups, created.health), (volume.id, volume.groups, volume.health));
        assert_eq!(
            (created.stripe_unit_bytes, created.width, created.health),
            (128 << 10, 2, Health::Healthy)
        );
        assert_eq!(operate(wanted).await.unwrap_err().code, ErrorCode::Conflict);

        let grow = |bytes| ApiRequest::VolumeResize { name: "v".into(), size_bytes: bytes, dry_run: false };
        for _ in 0..2 {
            let Ok(ApiAnswer::Volume { volume, .. }) = operate(grow(256 << 20)).await else {
                panic!("grown")
            };
            assert_eq!(volume.size_bytes, 256 << 20);
        }
        let error = operate(grow(64 << 20)).await.unwrap_err();
        assert!(error.code == ErrorCode::Refused && error.hint.is_some(), "{error:?}");

        attach("v", Shared, false).await.unwrap();
        let error = operate(delete("v", false, false)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Refused);
        assert!(error.hint.unwrap().contains("--force"));
        let Ok(ApiAnswer::Deleting { ended_sessions, .. }) = operate(delete("v", true, true)).await else {
            panic!()
        };
        assert_eq!(
            (ended_sessions.len(), service.map().volume_named("v").unwrap().state),
            (1, VolumeState::Ready)
        );
        operate(delete("v", true, false)).await.unwrap();
        eventually("it is gone", ms(2000), || service.map().volumes.is_empty()).await;
        assert!(service.map().sessions.is_empty() && targets.iter().all(|t| was_dropped(t)));
    });
}

#[test]
fn what_cannot_be_is_refused_with_a_hint() {
    Sim::new(2).block_on(async {
        let (_service, _targets, _) = fabric(2).await;
        let with = |name: &str, size: u64, n: u8| {
            let mut request = volume_of(name, n);
            if let ApiRequest::VolumeCreate { size_bytes, .. } = &mut request {
                *size_bytes = size;
            }
            request
        };
        for (request, code, word) in [
            (with("a/b", 4096, 1), ErrorCode::Invalid, "contains '/'"),
            (with(&"x".repeat(300), 4096, 1), ErrorCode::Invalid, "300 bytes"),
            (with("v", 5000, 1), ErrorCode::Invalid, "multiple of 4096"),
            (with("v", 4096, 3), ErrorCode::Refused, ""),
            (with("v", 4096, 9), ErrorCode::Invalid, "9 copies"),
            (with("v", 8 << 30, 2), ErrorCode::Refused, "can promise"),
            (ApiRequest::VolumeShow { name: "none".into() }, ErrorCode::NotFound, "no volume 'none'"),
            (ApiRequest::NodeShow { name: "none".into() }, ErrorCode::NotFound, "no node"),
            (ApiRequest::DriveShow { id: "00000000".into() }, ErrorCode::Invalid, "several"),
        ] {
            let error = operate(request.clone()).await.unwrap_err();
            assert!(error.code == code && error.message.contains(word), "{request:?}: {error:?}");
        }
        assert!(operate(with("v", 8 << 30, 2)).await.unwrap_err().hint.unwrap().contains("--thin"));
        let Ok(ApiAnswer::Drive { drive, .. }) =
            operate(ApiRequest::DriveShow { id: "00000000-0000-0000-0000-000000000002".into() }).await
        else {
            panic!("a drive")
        };
        assert!(drive.present && drive.node == "node-2" && drive.capacity_bytes == 1 << 30);
    });
}

/// A target says on which device a drive is, when it joins: of a drive that the map has as well.
#[test]
fn copies_by_device_go_by_what_targets_say_of_devices() {
    Sim::new(3).block_on(async {
        let (service, targets, _) = fabric(1).await;
        let by_device = || match volume_of("v", 2) {
            ApiRequest::VolumeCreate { name, size_bytes, protection, .. } => ApiRequest::VolumeCreate {
                name,
                size_bytes,
                protection,
                pool: None,
                stripe_unit_bytes: None,
                width: None,
                failure_domain: weft_api::FailureDomain::Device,
                thin: false,
                dry_run: false,
            },
            other => other,
        };
        let join = async || ask(&connect(PeerRole::Client).await, &targets[0].join()).await.unwrap();
        targets[0].drives.borrow_mut().push(DriveId(50));
        join().await;
        assert_ne!(service.map().drives[&DriveId(1)].device, service.map().drives[&DriveId(50)].device);
        for device in [DeviceId(7), DeviceId(8)] {
            let devices = [DriveId(1), DriveId(50)].map(|drive| (drive, device));
            *targets[0].devices.borrow_mut() = devices.into();
            join().await;
            let map = service.map();
            assert!(devices.iter().all(|(drive, device)| map.drives[drive].device == *device), "{map:?}");
            let error = operate(by_device()).await.unwrap_err();
            assert!(error.message.contains("2 devices"), "{error:?}");
        }
        targets[0].devices.borrow_mut().insert(DriveId(50), DeviceId(9));
        join().await;
        operate(by_device()).await.unwrap();
    });
}

#[test]
fn a_fabric_without_drives_says_so() {
    Sim::new(3).block_on(async {
        let _service = Service::start().await;
        let error = operate(volume_of("v", 1)).await.unwrap_err();
        assert!(error.code == ErrorCode::Refused && error.message.contains("no drives"), "{error:?}");
    });
}

/// The manager dies at every moment around a create. Afterwards the volume is there, whole, or not at all; a client
/// that heard of it finds it.
#[test]
fn a_manager_killed_during_a_create_has_done_all_of_it_or_nothing() {
    let (mut there, mut not_there) = (0, 0);
    for seed in 0..60 {
        let is_there = Sim::new(seed).block_on(async move {
            let (service, targets, _) = fabric(2).await;
            let link = Link::connect(&manager_addr(), &Hello::new(PeerRole::Tool, None, "t")).await.unwrap();
            let call = spawn(async move {
                let request = weft_api::encode_request(&volume_of("v", 2));
                link.call(Kind::Api, &request, vec![]).await.is_ok()
            });
            sleep(Duration::from_micros(seed * 10)).await;
            service.kill();
            let heard = call.await.unwrap();
            service.restart().await;
            let map = service.map();
            assert_eq!(weft_membership_check(&map), 0);
            let is_there = map.volume_named("v").is_some();
            assert!(is_there || !heard, "what was answered is there");
            // Tried again, it is there in any case, and can be used.
            all_up(&service, &targets).await;
            match operate(volume_of("v", 2)).await {
                Ok(_) => assert!(!is_there),
                Err(error) => assert!(is_there && error.code == ErrorCode::Conflict, "{error:?}"),
            }
            attach("v", Shared, false).await.unwrap();
            is_there
        });
        if is_there { there += 1 } else { not_there += 1 }
    }
    assert!(there > 5 && not_there > 5, "both happen: {there}, {not_there}");
}

fn weft_membership_check(map: &weft_types::FabricMap) -> usize {
    weft_membership::check(map).len()
}

#[test]
fn an_interrupted_delete_goes_on_with_the_next_manager() {
    for seed in 0..30 {
        Sim::new(seed).block_on(async move {
            let (service, targets, _) = fabric(2).await;
            operate(volume_of("v", 2)).await.unwrap();
            let session = attach("v", Shared, false).await.unwrap();
            operate(delete("v", true, false)).await.unwrap();
            sleep(Duration::from_micros(seed * 700)).await;
            service.kill();
            sleep(ms(100)).await;
            service.restart().await;
            eventually("it is gone", ms(5000), || service.map().volumes.is_empty()).await;
            assert!(!service.map().sessions.contains_key(&session.id));
            assert!(targets.iter().all(|t| was_dropped(t)));
        });
    }
}

#[test]
fn a_broken_store_stops_the_manager_and_nothing_else_happens() {
    Sim::new(4).block_on(async {
        let (service, targets, views) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(1000)).await;
        let group = *service.map().groups.keys().next().unwrap();
        service.store.set_broken(true);
        let error = operate(volume_of("w", 2)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Unavailable, "{error:?}");
        let link = connect(PeerRole::Tool).await;
        let request = weft_api::encode_request(&ApiRequest::VolumeList { all: false });
        let error = link.call(Kind::Api, &request, vec![]).await.unwrap_err();
        assert_eq!(error.status(), Some(Status::NotReady));
        sleep(ms(8000)).await;
        assert!(views.iter().all(|v| v.serves(group)), "the targets go on without it");
        service.store.set_broken(false);
        service.restart().await;
        all_up(&service, &targets).await;
        assert!(service.map().volume_named("w").is_none());
        operate(volume_of("w", 2)).await.unwrap();
    });
}

#[test]
fn status_tells_of_a_resync_and_when_it_is_done() {
    Sim::new(5).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        targets[0].kill();
        eventually("it is out", ms(6000), || roles(&service.map(), 1).iter().all(|r| *r == Role::Out)).await;
        let waiting = status().await;
        let is_awaited =
            |r: &Repair| matches!(r, Repair::AwaitingReturn { rebuild_in_ms } if *rebuild_in_ms > 590_000);
        assert!(waiting.degraded_groups.iter().all(|d| is_awaited(&d.repair) && d.good_copies == 1));
        assert!(waiting.degraded_groups.iter().all(|d| d.node == "node-1"));
        assert!(waiting.degraded_groups.iter().any(|d| d.volumes == ["v"]));
        targets[0].start();
        eventually("it is back", ms(6000), || roles(&service.map(), 1).iter().all(|r| *r == Role::Syncing))
            .await;
        let drive = weft_types::DriveId(1);
        for step in 0..8 {
            let resync = |group| ResyncStatus {
                group,
                drive,
                chunks_verified: step * 10,
                chunks_total: 200,
                blocks_copied: step,
                blocks_held: step,
                done: false,
                waits_for: None,
            };
            *targets[0].resyncs.borrow_mut() = service.map().groups.keys().map(|g| resync(*g)).collect();
            let status = status().await;
            assert_eq!(status.health, Health::Degraded);
            if step == 7 {
                let eta = status.resync_eta_ms.expect("it moves");
                assert!((12_000..15_000).contains(&eta), "130 chunks at 10 per second: {eta}");
            }
            sleep(ms(1001)).await;
        }
    });
}

/// The map is as large as it may become: nothing is added, and whatever else there is to be done goes on.
#[test]
fn a_map_that_is_full_takes_evictions_returns_sweeps_and_deletions() {
    Sim::new(40).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        operate(volume_of("w", 3)).await.unwrap();
        let session = attach("v", AttachMode::Shared, false).await.unwrap();
        service.map_bytes_max.set(encode_whole(&service.map()).len());
        service.restart().await;
        all_up(&service, &targets).await;
        let refused = operate(volume_of("x", 2)).await.unwrap_err();
        assert!(refused.code == ErrorCode::Refused && refused.message.contains("bytes"), "{refused:?}");
        assert!(refused.hint.is_some_and(|hint| hint.contains("delete")));
        let (status, text) = attach("v", AttachMode::Shared, false).await.unwrap_err();
        assert!(status == Status::Refused && text.contains("bytes"), "{text}");
        let stranger = FakeTarget::new(4, &[4]);
        stranger.start();
        sleep(ms(500)).await;
        assert!(service.map().node_named("node-4").is_none() && stranger.refusal.borrow().is_some());

        targets[0].kill();
        eventually("it is evicted", ms(6_000), || roles(&service.map(), 1).contains(&Role::Out)).await;
        targets[0].start();
        eventually("it comes back", ms(6_000), || roles(&service.map(), 1).contains(&Role::Syncing)).await;
        let link = connect(PeerRole::Client).await;
        for entry in service.map().groups.values() {
            let Some(slot) = entry.slot_of(DriveId(1)) else { continue };
            let verified = ManagerRequest::Verified { group: entry.id, drive: DriveId(1), stint: slot.since };
            ask(&link, &verified).await.unwrap();
        }
        assert!(roles(&service.map(), 1).iter().all(|role| *role == Role::InSync), "it is promoted");
        ask(&link, &ManagerRequest::Detach { session: session.id }).await.unwrap();
        let is_swept = || service.map().sessions.is_empty();
        eventually("the session is swept", ms(3_000), is_swept).await;
        let delete = ApiRequest::VolumeDelete { name: "w".into(), force: false, dry_run: false };
        operate(delete).await.unwrap();
        eventually("it is gone", ms(6_000), || service.map().volume_named("w").is_none()).await;
        attach("v", AttachMode::Shared, false).await.expect("there is room again");
    });
}
