//! Joining, leases, and leaving: who is let in, who is evicted, and not one moment too early.

use crate::harness;

use harness::*;
use std::rc::Rc;
use weft_api::{ApiAnswer, ApiRequest, Health, Presence, SettingsWish, Severity, TroubleKind};
use weft_rpc::Link;
use weft_rt::sim::{Sim, heal_network, reset_connections, set_blocked, trace_hash};
use weft_rt::{now, random_below, sleep, spawn};
use weft_types::limits::DRIVES_PER_TARGET_MAX;
use weft_types::{
    AttachMode, BlockCount, DriveId, DriveState, Epoch, FabricId, GroupId, MapVersion, Role, TargetId,
};
use weft_wire::control::{DriveLeftOut, DriveReport, Join, ManagerAnswer, ManagerRequest, TargetRequest};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, Status};

/// The default lease is 2 s, and the granter waits 1 % longer.
const LEASE_WAIT_MS: u64 = 2020;

#[test]
fn targets_join_and_get_leases() {
    Sim::new(1).block_on(async {
        let (service, targets, _) = fabric(3).await;
        let map = service.map();
        assert_eq!((map.nodes.len(), map.drives.len(), map.pools.len()), (3, 3, 1));
        assert_eq!(map.fabric, FABRIC);
        assert!(targets.iter().all(|t| t.refusal.borrow().is_none()));
        let status = status().await;
        assert_eq!(status.health, Health::Healthy, "{:?}", status.reasons);
        assert!(status.nodes.iter().all(|n| n.presence == Presence::Up));
        // Eight targets' free space at two copies is half of the raw one at most.
        let pool = &status.pools[0];
        assert_eq!(pool.raw_bytes, 3 << 30);
        assert_eq!(pool.free.iter().map(|f| f.copies).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(pool.free[2].free_bytes, 1 << 30);
    });
}

#[test]
fn a_copied_drive_another_fabric_and_a_newer_map_are_refused() {
    Sim::new(2).block_on(async {
        let (service, targets, _) = fabric(2).await;
        let version = service.map().version;
        // The copy stays out, the node and its other drive join.
        let copy = FakeTarget::new(3, &[2, 3]);
        copy.start();
        let joined = || service.map().drives.contains_key(&DriveId(3));
        eventually("the node joins with its own drive", ms(1000), joined).await;
        assert!(copy.refusal.borrow().is_none());
        let reasons = status().await.reasons.join("\n");
        assert!(reasons.contains("is in service on node 'node-2'") && reasons.contains("copy"), "{reasons}");
        let map = service.map();
        assert_eq!(map.nodes[&map.drives[&DriveId(2)].node].name, "node-2", "it stays where it is");
        assert!(map.version > version);
        copy.kill();

        let stranger = FakeTarget::new(4, &[4]);
        stranger.fabric.set(FabricId(0xbad));
        stranger.start();
        sleep(ms(1000)).await;
        assert!(service.map().node_named("node-4").is_none() && stranger.leased_from.get().is_none());
        stranger.kill();

        // A manager that was restored from an old copy of its store must not hand out what it thinks it
        // knows.
        let mut newer = service.map();
        newer.version = MapVersion(newer.version.0 + 1);
        targets[0].kill();
        *targets[0].map.borrow_mut() = Some(Rc::new(newer));
        targets[0].start();
        eventually("it is refused", ms(1000), || targets[0].refusal.borrow().is_some()).await;
        let (_, text) = targets[0].refusal.borrow().clone().unwrap();
        assert!(text.contains("weft fabric recover"), "{text}");
    });
}

#[test]
fn an_eviction_waits_for_the_lease_and_for_the_word() {
    Sim::new(3).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(1500)).await;
        let before = service.map();
        let victim = first_target(&before, "node-1");
        let (killed, granted) = (now(), targets[0].leased_from.get().unwrap());
        targets[0].kill();
        eventually("it is evicted", ms(5000), || roles(&service.map(), 1).contains(&Role::Out)).await;
        let evicted = now();
        let after = service.map();
        assert!(roles(&after, 1).iter().all(|r| *r == Role::Out));
        let is_word =
            |r: &TargetRequest| matches!(r, TargetRequest::StopVouching { victim: v, .. } if *v == victim);
        for witness in &targets[1..] {
            let word = witness.asked(killed, is_word).expect("both hold a copy of its groups");
            assert!(evicted - word >= ms(LEASE_WAIT_MS), "waited {:?} after the word", evicted - word);
            assert!(word - killed < ms(500), "a lost connection is noticed at once");
        }
        assert!(evicted - granted >= ms(LEASE_WAIT_MS));
        assert!(evicted - killed < ms(4000), "the stall is short: {:?}", evicted - killed);
        for (id, group) in &after.groups {
            let touched = group.slot_of(DriveId(1)).is_some();
            assert_eq!(
                group.epoch.0 - before.groups[id].epoch.0,
                u64::from(touched),
                "one epoch, only where needed"
            );
        }
        eventually("the others adopt it", ms(500), || {
            targets[1..].iter().all(|t| t.adopted() == after.version)
        })
        .await;
        let status = status().await;
        assert_eq!(status.health, Health::Degraded);
        assert!(status.nodes.iter().any(|n| n.name == "node-1" && n.presence == Presence::Down));
        assert!(status.reasons[0].contains("node 'node-1' is down"), "{:?}", status.reasons);
    });
}

#[test]
fn a_node_that_only_falls_silent_is_noticed_after_one_lease() {
    Sim::new(4).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(1500)).await;
        let cut = now();
        for (from, to) in [(targets[0].host, manager_host()), (manager_host(), targets[0].host)] {
            set_blocked(from, to, true);
        }
        eventually("it is evicted", ms(7000), || roles(&service.map(), 1).contains(&Role::Out)).await;
        assert!(cut.elapsed() >= ms(LEASE_WAIT_MS + 1400) && cut.elapsed() < ms(5000), "{:?}", cut.elapsed());
        heal_network();
        eventually("it comes back", ms(7000), || roles(&service.map(), 1).contains(&Role::Syncing)).await;
    });
}

#[test]
fn the_last_in_sync_member_stays() {
    Sim::new(5).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(1000)).await;
        targets[0].kill();
        eventually("one is evicted", ms(5000), || roles(&service.map(), 1).contains(&Role::Out)).await;
        targets[1].kill();
        sleep(ms(10_000)).await;
        let map = service.map();
        assert!(roles(&map, 2).iter().all(|r| *r == Role::InSync), "its log has every acknowledged write");
        let down = status().await;
        assert_eq!(down.health, Health::Unavailable, "{:?}", down.reasons);
        // The one that was evicted cannot help alone.
        targets[0].start();
        sleep(ms(3000)).await;
        assert!(!roles(&service.map(), 1).contains(&Role::InSync));
        targets[1].start();
        sleep(ms(3000)).await;
        assert_eq!(status().await.health, Health::Degraded);
    });
}

#[test]
fn when_all_members_die_together_nobody_is_evicted() {
    Sim::new(6).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(1000)).await;
        let version = service.map().version;
        targets.iter().for_each(|t| t.kill());
        sleep(ms(20_000)).await;
        assert_eq!(service.map().version, version);
        targets.iter().for_each(|t| drop(t.start()));
        sleep(ms(3000)).await;
        assert_eq!(service.map().version, version, "both have every acknowledged write");
        assert_eq!(status().await.health, Health::Healthy);
    });
}

#[test]
fn a_target_that_is_back_before_the_wait_is_over_keeps_its_roles() {
    Sim::new(7).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 3)).await.unwrap();
        sleep(ms(1000)).await;
        let groups = service.map().groups;
        targets[0].kill();
        sleep(ms(1500)).await;
        targets[0].start();
        sleep(ms(10_000)).await;
        assert_eq!(service.map().groups, groups);
        // Cut off and back again is the same.
        set_blocked(targets[1].host, manager_host(), true);
        sleep(ms(3000)).await;
        heal_network();
        sleep(ms(10_000)).await;
        assert_eq!(service.map().groups, groups);
        let Ok(ApiAnswer::Events { events }) =
            operate(ApiRequest::Events { after: 0, limit: None, filter: Default::default() }).await
        else {
            panic!("events")
        };
        let seen = |what: &str| events.iter().filter(|e| e.what == what).count();
        assert_eq!(
            (seen("node-suspected"), seen("suspicion-ended"), seen("evict")),
            (2, 1, 0),
            "{events:#?}"
        );
    });
}

#[test]
fn out_comes_back_as_syncing_and_is_promoted_by_its_own_stint() {
    Sim::new(8).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        targets[0].kill();
        eventually("it is evicted", ms(5000), || roles(&service.map(), 1).contains(&Role::Out)).await;
        targets[0].start();
        eventually("it is syncing", ms(5000), || {
            roles(&service.map(), 1).iter().all(|r| *r == Role::Syncing)
        })
        .await;
        let link = connect(PeerRole::Client).await;
        for (&id, group) in &service.map().groups {
            let stint = group.slot_of(DriveId(1)).unwrap().since;
            let word = |stint| ManagerRequest::Verified { group: id, drive: DriveId(1), stint };
            let (status, text) = ask(&link, &word(Epoch(stint.0 - 1))).await.unwrap_err();
            assert_eq!(status, Status::Refused, "{text}");
            ask(&link, &word(stint)).await.unwrap();
            assert_eq!(service.map().groups[&id].slot_of(DriveId(1)).unwrap().role, Role::InSync);
            ask(&link, &word(stint)).await.expect("said again after a lost answer");
        }
        assert!(service.map().groups.values().all(|g| !g.is_degraded()));
        sleep(ms(1000)).await;
        assert_eq!(status().await.health, Health::Healthy);
    });
}

fn failure_of(target: &FakeTarget, drive: u128) -> ManagerRequest {
    let incarnation = target.incarnation.get();
    ManagerRequest::DriveFailed {
        drive: DriveId(drive),
        incarnation,
        cause: "I/O error".into(),
        of_device: false,
    }
}

#[test]
fn what_a_former_process_said_of_its_drive_does_not_evict_the_present_one() {
    Sim::new(19).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(500)).await;
        let link = connect(PeerRole::Client).await;
        let late = failure_of(&targets[0], 1);
        targets[0].kill();
        let view = targets[0].start();
        let group = service.map().groups.values().find(|g| g.slot_of(DriveId(1)).is_some()).cloned();
        let group = group.expect("the drive is in one").id;
        eventually("it serves again", ms(2000), || view.serves(group)).await;
        let (status, text) = ask(&link, &late).await.unwrap_err();
        assert_eq!(status, Status::NotFound, "{text}");
        sleep(ms(1000)).await;
        assert!(roles(&service.map(), 1).iter().all(|r| *r == Role::InSync), "it was not evicted");
        assert_eq!(service.map().drives[&DriveId(1)].state, DriveState::Active);
        ask(&link, &failure_of(&targets[0], 1)).await.expect("the present process is heard");
        let is_away = || !roles(&service.map(), 1).contains(&Role::InSync);
        eventually("it is evicted", ms(500), is_away).await;
    });
}

/// It would pass for the newest, and its drives, which hold less than the successor's, for older copies of
/// themselves.
#[test]
fn a_join_of_a_former_process_that_arrives_after_its_successors_changes_nothing() {
    Sim::new(22).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(500)).await;
        let node = first_target(&service.map(), &targets[0].name);
        targets[0].commits.borrow_mut().insert(DriveId(1), 51);
        let link = connect(PeerRole::Target(node)).await;
        let late = targets[0].join();
        targets[0].commits.borrow_mut().insert(DriveId(1), 55);
        targets[0].start();
        sleep(ms(500)).await;
        let (status, text) = ask(&link, &late).await.unwrap_err();
        assert!(status == Status::NotReady && text.contains("later process"), "{text}");
        sleep(ms(500)).await;
        assert!(roles(&service.map(), 1).iter().all(|r| *r == Role::InSync), "it was not evicted");
        let events = ApiRequest::Events { after: 0, limit: None, filter: Default::default() };
        let Ok(ApiAnswer::Events { events, .. }) = operate(events).await else { panic!("events") };
        assert!(events.iter().all(|e| e.what != "drive-refused"), "{events:#?}");
        let link = connect(PeerRole::Target(node)).await;
        let (status, _) = ask(&link, &late).await.expect_err("a process that was replaced stays so");
        assert_eq!(status, Status::NotReady);
    });
}

#[test]
fn a_join_that_arrives_after_the_word_of_a_failure_takes_nothing_back() {
    Sim::new(21).block_on(async {
        let (service, targets, _) = fabric(1).await;
        operate(volume_of("v", 1)).await.unwrap();
        sleep(ms(500)).await;
        let node = first_target(&service.map(), &targets[0].name);
        let link = connect(PeerRole::Target(node)).await;
        let late = targets[0].join();
        ask(&link, &failure_of(&targets[0], 1)).await.unwrap();
        trouble(&status().await, TroubleKind::DataUnavailable);
        ask(&link, &late).await.unwrap();
        sleep(ms(1000)).await;
        trouble(&status().await, TroubleKind::DataUnavailable);
    });
}

/// It left the fabric, and its process still had it open: the word is not repeated for ever.
#[test]
fn the_failure_of_a_drive_that_is_in_no_map_is_taken_note_of() {
    Sim::new(20).block_on(async {
        let (_service, targets, _) = fabric(2).await;
        sleep(ms(500)).await;
        let link = connect(PeerRole::Client).await;
        let (answer, _) = ask(&link, &failure_of(&targets[0], 99)).await.unwrap();
        assert_eq!(answer, ManagerAnswer::Done);
    });
}

/// Clients come and go all the time, and no target ever has the newest map.
#[test]
fn a_failed_drive_is_evicted_while_other_changes_follow_each_other() {
    Sim::new(23).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        operate(volume_of("busy", 2)).await.unwrap();
        sleep(ms(500)).await;
        targets.iter().for_each(|t| t.adoption_takes_ms.set(20));
        for _ in 0..4 {
            spawn(async {
                loop {
                    let session = attach("busy", AttachMode::Shared, false).await.unwrap();
                    let link = connect(PeerRole::Client).await;
                    ask(&link, &ManagerRequest::Detach { session: session.id }).await.unwrap();
                }
            });
        }
        sleep(ms(500)).await;
        let version = service.map().version;
        sleep(ms(100)).await;
        assert!(service.map().version.0 > version.0 + 50, "changes follow each other");
        let link = connect(PeerRole::Client).await;
        ask(&link, &failure_of(&targets[0], 1)).await.unwrap();
        let is_away = || roles(&service.map(), 1).iter().all(|r| *r == Role::Out);
        eventually("it is evicted", ms(500), is_away).await;
    });
}

#[test]
fn a_failed_drive_that_is_served_again_before_it_was_evicted_is_evicted_all_the_same() {
    Sim::new(24).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(500)).await;
        let link = connect(PeerRole::Client).await;
        // Nobody hears of it in time.
        targets[1..].iter().for_each(|t| t.holds_adoption.set(true));
        ask(&link, &failure_of(&targets[0], 1)).await.unwrap();
        assert_eq!(service.map().drives[&DriveId(1)].state, DriveState::Failed, "it is not forgotten");
        targets[0].start();
        sleep(ms(1000)).await;
        targets[1..].iter().for_each(|t| t.holds_adoption.set(false));
        let is_away = || roles(&service.map(), 1).iter().all(|r| *r == Role::Out);
        eventually("it is evicted", ms(8000), is_away).await;
        // Once a person has said that it is sound it comes back, and is compared from its first block
        // to its last.
        sleep(ms(1000)).await;
        assert!(roles(&service.map(), 1).iter().all(|r| *r == Role::Out));
        operate(ApiRequest::DriveRestore { id: DriveId(1).to_string(), device: false, dry_run: false })
            .await
            .unwrap();
        let is_back = || roles(&service.map(), 1).iter().all(|r| *r == Role::Syncing);
        eventually("it is brought up to date", ms(5000), is_back).await;
    });
}

#[test]
fn a_failed_drive_with_the_last_copy_serves_again_when_its_target_has_opened_it() {
    Sim::new(25).block_on(async {
        let (service, targets, _) = fabric(1).await;
        operate(volume_of("v", 1)).await.unwrap();
        sleep(ms(500)).await;
        let link = connect(PeerRole::Client).await;
        ask(&link, &failure_of(&targets[0], 1)).await.unwrap();
        let view = targets[0].start();
        let group = *service.map().groups.keys().next().unwrap();
        eventually("it serves", ms(3000), || view.serves(group)).await;
        sleep(ms(3000)).await;
        assert!(view.serves(group));
    });
}

#[test]
fn a_failed_drive_is_evicted_without_waiting_for_a_lease() {
    Sim::new(9).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(500)).await;
        let link = connect(PeerRole::Client).await;
        let failed = now();
        ask(&link, &failure_of(&targets[0], 1)).await.unwrap();
        let is_away = || roles(&service.map(), 1).iter().all(|r| *r == Role::Out);
        eventually("it is evicted", ms(500), is_away).await;
        assert_eq!(service.map().drives[&DriveId(1)].state, DriveState::Failed);
        // Rebuilt at once on the one node that has no other copy of the group.
        eventually("it is rebuilt elsewhere", ms(1000), || roles(&service.map(), 1).is_empty()).await;
        assert!(failed.elapsed() < ms(1500));
        assert!(targets[0].is_running() && targets[0].refusal.borrow().is_none());
    });
}

#[test]
fn a_node_that_stays_away_is_rebuilt_elsewhere() {
    Sim::new(10).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        operate(ApiRequest::Settings(SettingsWish::rebuild_after_ms(30_000))).await.unwrap();
        targets[0].kill();
        sleep(ms(25_000)).await;
        assert!(
            roles(&service.map(), 1).iter().all(|r| *r == Role::Out) && !roles(&service.map(), 1).is_empty()
        );
        eventually("its copies move", ms(10_000), || roles(&service.map(), 1).is_empty()).await;
        let map = service.map();
        for group in map.groups.values() {
            assert_eq!(group.slots.len(), 2);
            assert_ne!(map.drives[&group.slots[0].drive].node, map.drives[&group.slots[1].drive].node);
        }
    });
}

#[test]
fn a_drive_that_its_restarted_target_does_not_find_leaves() {
    Sim::new(11).block_on(async {
        let service = Service::start().await;
        let one = FakeTarget::new(1, &[1, 11]);
        let two = FakeTarget::new(2, &[2, 12]);
        one.start();
        two.start();
        all_up(&service, &[one.clone(), two.clone()]).await;
        operate(volume_of("v", 2)).await.unwrap();
        one.kill();
        one.drives.borrow_mut().pop();
        one.start();
        let restarted = now();
        let all = |drive, role| roles(&service.map(), drive).iter().all(|r| *r == role);
        eventually("the missing drive is out", ms(5000), || all(11, Role::Out)).await;
        assert!(restarted.elapsed() >= ms(LEASE_WAIT_MS), "its former self had a lease");
        assert!(all(1, Role::InSync), "the other drive is not concerned");
    });
}

#[test]
fn the_word_about_a_missing_drive_is_that_of_a_process_with_its_own() {
    Sim::new(20).block_on(async {
        let service = Service::start().await;
        let targets = [1, 2, 3].map(|n| FakeTarget::new(n, &[u128::from(n)]));
        targets.iter().for_each(|t| drop(t.start()));
        all_up(&service, &targets).await;
        operate(volume_of("v", 3)).await.unwrap();
        sleep(ms(500)).await;
        targets[2].holds_promises.set(true);
        // Processes of before may have the drives, and vouch for each other together with the third.
        for target in &targets[..2] {
            target.kill();
            target.drives.borrow_mut().pop();
            target.start();
        }
        sleep(ms(4 * LEASE_WAIT_MS)).await;
        for drive in [1, 2] {
            assert!(!roles(&service.map(), drive).contains(&Role::Out), "drive {drive} was evicted");
        }
        targets[2].holds_promises.set(false);
        let are_out = || [1, 2].iter().all(|d| roles(&service.map(), *d).iter().all(|r| *r == Role::Out));
        eventually("both are out", ms(3 * LEASE_WAIT_MS), are_out).await;
    });
}

#[test]
fn the_word_of_a_syncing_member_does_not_stand_for_an_in_sync_one() {
    Sim::new(21).block_on(async {
        let service = Service::start().await;
        let targets = [1, 2, 3].map(|n| FakeTarget::new(n, &[u128::from(n)]));
        targets.iter().for_each(|t| drop(t.start()));
        all_up(&service, &targets).await;
        operate(volume_of("v", 3)).await.unwrap();
        let all = |drive, role| roles(&service.map(), drive).iter().all(|r| *r == role);
        targets[2].kill();
        eventually("the third is out", ms(10_000), || all(3, Role::Out)).await;
        targets[2].start();
        eventually("it is back", ms(10_000), || all(3, Role::Syncing)).await;
        sleep(ms(500)).await;
        targets[1].holds_promises.set(true);
        targets[0].kill();
        targets[0].drives.borrow_mut().pop();
        targets[0].start();
        sleep(ms(4 * LEASE_WAIT_MS)).await;
        // A process of before may not have heard that the third is back, and have the second's word.
        assert!(all(1, Role::InSync) && all(3, Role::Syncing), "{:?}", service.map().groups);
        targets[1].holds_promises.set(false);
        eventually("it is out", ms(3 * LEASE_WAIT_MS), || all(1, Role::Out)).await;
    });
}

#[test]
fn a_restarted_manager_waits_before_it_believes_in_anyones_absence() {
    Sim::new(12).block_on(async {
        let (service, targets, views) = fabric(3).await;
        operate(volume_of("v", 3)).await.unwrap();
        sleep(ms(1000)).await;
        let groups = service.map().groups;
        service.kill();
        targets[2].kill();
        sleep(ms(10_000)).await;
        let group = *groups.keys().next().unwrap();
        assert!(!views[0].serves(group), "a member is silent, and so is the manager");
        let restarted = now();
        service.restart().await;
        sleep(ms(1900)).await;
        assert!(!views[0].serves(group), "the third may know more than the manager's store");
        sleep(ms(700)).await;
        assert_eq!(service.map().groups, groups);
        assert!(views[0].serves(group) && views[1].serves(group), "they have leases again");
        eventually("the dead one is evicted", ms(6000), || roles(&service.map(), 3).contains(&Role::Out))
            .await;
        assert!(restarted.elapsed() >= ms(LEASE_WAIT_MS));
        assert!(roles(&service.map(), 1).iter().chain(&roles(&service.map(), 2)).all(|r| *r == Role::InSync));
    });
}

#[test]
fn without_a_manager_members_vouch_for_each_other() {
    Sim::new(13).block_on(async {
        let (service, _targets, views) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(1000)).await;
        let group = *service.map().groups.keys().next().unwrap();
        service.kill();
        for _ in 0..60 {
            sleep(ms(250)).await;
            assert!(views.iter().all(|v| v.serves(group)));
        }
    });
}

/// Random deaths, returns, partitions and attaches: no replica is ever taken out while it would still serve.
fn chaos(seed: u64) -> (u64, usize) {
    Sim::new(seed).block_on(async move {
        let nodes = 3 + (seed % 2) as u8;
        let (service, targets, mut views) = fabric(nodes).await;
        operate(volume_of("two", 2)).await.unwrap();
        operate(volume_of("three", 3)).await.unwrap();
        let (mut known, mut commits) = (service.map(), service.store.commits());
        let (mut evictions, end) = (0, now() + ms(60_000));
        let mut next_event = now();
        // New maps all the time: a promise not to vouch must survive them.
        let changes = spawn(async {
            loop {
                sleep(ms(random_below(300))).await;
                let link = Link::connect(&manager_addr(), &Hello::new(PeerRole::Tool, None, "test")).await;
                let Ok(link) = link else { continue };
                let request = ApiRequest::Settings(SettingsWish::rebuild_after_ms(600_000 + random_below(2)));
                let _ = link.call(Kind::Api, &weft_api::encode_request(&request), vec![]).await;
            }
        });
        while now() < end {
            if now() >= next_event {
                disturb(&service, &targets, &mut views).await;
                next_event = now() + ms(random_below(4000));
            }
            sleep(ms(2)).await;
            if service.store.commits() != commits {
                let map = service.map();
                commits = service.store.commits();
                evictions += check_evictions(&known, &map, &targets, &views);
                known = map;
            }
        }
        changes.abort();
        (trace_hash(), evictions)
    })
}

async fn disturb(service: &Service, targets: &[Rc<FakeTarget>], views: &mut [Rc<ProcessView>]) {
    let i = random_below(targets.len() as u64) as usize;
    let j = random_below(targets.len() as u64 + 1) as usize;
    let (a, b) = (targets[i].host, targets.get(j).map_or(manager_host(), |t| t.host));
    match random_below(11) {
        0 | 1 => targets[i].kill(),
        2..=4 => {
            if !targets[i].is_running() {
                views[i] = targets[i].start();
            }
        }
        5 => set_blocked(a, b, true),
        6 => {
            set_blocked(a, b, true);
            set_blocked(b, a, true);
        }
        7 => heal_network(),
        8 | 9 => reset_connections(a, manager_host()),
        _ => service.restart().await,
    }
}

/// Counts the replicas that left, and makes sure that none of them serves at this moment.
fn check_evictions(
    old: &weft_types::FabricMap,
    new: &weft_types::FabricMap,
    targets: &[Rc<FakeTarget>],
    views: &[Rc<ProcessView>],
) -> usize {
    let mut evictions = 0;
    for (id, group) in &new.groups {
        let Some(before) = old.groups.get(id) else { continue };
        for (was, is) in before.slots.iter().zip(&group.slots) {
            if was.role == Role::Out || is.role != Role::Out {
                continue;
            }
            evictions += 1;
            let at = targets.iter().position(|t| t.drives.borrow().contains(&is.drive)).unwrap();
            let serves = targets[at].is_running() && views[at].serves(*id);
            assert!(!serves, "{id}: {} was evicted in {} while it serves", is.drive, new.version);
        }
        assert!(group.read_set().next().is_some());
    }
    evictions
}

#[test]
fn nobody_is_evicted_who_could_still_serve() {
    let evictions: usize = (0..40).map(|seed| chaos(seed).1).sum();
    assert!(evictions > 400, "the schedule has evictions: {evictions}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(chaos(5), chaos(5));
}

#[test]
fn a_target_that_was_not_heard_of_since_is_not_granted_a_lease_of_its_former_self() {
    Sim::new(14).block_on(async {
        let (service, _, _) = fabric(1).await;
        let node = first_target(&service.map(), "node-1");
        let link = connect(PeerRole::Target(node)).await;
        let adopted = service.map().version;
        for (node, what) in [(node, "another incarnation"), (TargetId(77), "no such node")] {
            let (status, _) = ask(
                &link,
                &ManagerRequest::Renew {
                    target: node,
                    incarnation: 1,
                    adopted,
                    commits: vec![],
                    ahead: vec![],
                },
            )
            .await
            .unwrap_err();
            assert_eq!(status, Status::NotFound, "{what}");
        }
    });
}

#[test]
fn a_target_gets_new_maps_also_while_a_node_is_suspected() {
    Sim::new(15).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(1000)).await;
        targets[0].kill();
        sleep(ms(300)).await;
        let map = service.map();
        let watch = ManagerRequest::WatchMap { have: MapVersion(0) };
        for name in ["node-1", "node-2"] {
            // Its own suspicion does not keep a node from the map that it needs to come back.
            let (asked, role) = (now(), PeerRole::Target(first_target(&map, name)));
            let (_, bytes) = ask(&connect(role).await, &watch).await.unwrap();
            assert!(!bytes.is_empty() && asked.elapsed() < ms(100), "{name}");
        }
        // The promise outlives the maps: the witness is asked before it gets the one that evicts.
        eventually("it is evicted", ms(5000), || roles(&service.map(), 1).contains(&Role::Out)).await;
        sleep(ms(500)).await;
        let log = targets[1].log.borrow();
        let word = log.iter().position(|(_, r)| matches!(r, TargetRequest::StopVouching { .. })).unwrap();
        let is_map = |r: &TargetRequest| {
            matches!(r, TargetRequest::AdoptMap { .. } | TargetRequest::AdoptDelta { .. })
        };
        let evicted = log.iter().rposition(|(_, r)| is_map(r)).unwrap();
        assert!(word < evicted);
    });
}

#[test]
fn a_late_renewal_does_not_bring_back_who_was_evicted() {
    Sim::new(16).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(1000)).await;
        let before = service.map();
        let node = first_target(&before, "node-1");
        let (incarnation, adopted) = (targets[0].incarnation.get(), targets[0].adopted());
        targets[0].kill();
        eventually("it is evicted", ms(5000), || roles(&service.map(), 1).contains(&Role::Out)).await;
        let evicted = service.map().version;
        let link = connect(PeerRole::Target(node)).await;
        // It was on its way all the time: the process that sent it is dead, and its grant is void.
        let late =
            ManagerRequest::Renew { target: node, incarnation, adopted, commits: vec![], ahead: vec![] };
        let (answer, _) = ask(&link, &late).await.unwrap();
        let ManagerAnswer::Granted { map, .. } = answer else { panic!("{answer:?}") };
        assert!(map >= evicted, "the lease is void until the map without the node is adopted");
        sleep(ms(1000)).await;
        assert!(roles(&service.map(), 1).iter().all(|r| *r == Role::Out), "it is still gone");
        // One that was only slow has adopted the map by its next renewal, and comes back.
        ask(
            &link,
            &ManagerRequest::Renew {
                target: node,
                incarnation,
                adopted: map,
                commits: vec![],
                ahead: vec![],
            },
        )
        .await
        .unwrap();
        eventually("it is syncing", ms(500), || roles(&service.map(), 1).contains(&Role::Syncing)).await;
    });
}

#[test]
fn a_second_process_of_a_name_does_not_cut_short_the_wait_for_the_first() {
    Sim::new(17).block_on(async {
        let (service, targets, views) = fabric(3).await;
        operate(volume_of("v", 3)).await.unwrap();
        sleep(ms(1000)).await;
        let group = *service.map().groups.keys().next().unwrap();
        // The first one hears of its peers, and not of the manager.
        set_blocked(targets[0].host, manager_host(), true);
        set_blocked(manager_host(), targets[0].host, true);
        sleep(ms(2300)).await;
        assert!(status().await.nodes.iter().any(|n| n.name == "node-1" && n.presence == Presence::Suspect));
        let mut second = FakeTarget::new(9, &[9]);
        Rc::get_mut(&mut second).unwrap().name = "node-1".into();
        second.start();
        eventually("it is in", ms(1000), || second.leased_from.get().is_some()).await;
        let is_out = || roles(&service.map(), 1).iter().all(|r| *r == Role::Out);
        let since = now();
        while !is_out() {
            assert!(since.elapsed() < ms(10_000), "its drive is evicted in the end");
            sleep(ms(2)).await;
        }
        assert!(!views[0].serves(group), "its peers vouched for the first process to the end");
    });
}

#[test]
fn a_copy_of_a_drive_is_refused_and_the_drives_beside_it_serve() {
    Sim::new(18).block_on(async {
        let (service, _, _) = fabric(2).await;
        let join = ManagerRequest::Join(Join {
            node: "node-3".into(),
            addr: "10.0.0.3:4801".into(),
            incarnation: 1,
            drives: vec![report(2, 0), report(33, 0)],
            knows_floors: true,
            knows_targets: true,
            knows_lanes: true,
            knows_file_systems: true,
            knows_spread: true,
            serves: Default::default(),
            ..Join::default()
        });
        let (answer, _) = ask(&connect(PeerRole::Client).await, &join).await.unwrap();
        let ManagerAnswer::Joined { target, refused, .. } = answer else { panic!("{answer:?}") };
        assert_eq!(refused.len(), 1);
        assert!(refused[0].0 == DriveId(2) && refused[0].1.contains("copy"), "{refused:?}");
        let map = service.map();
        assert_eq!(map.drives[&DriveId(33)].target, target);
        assert_ne!(map.drives[&DriveId(2)].target, target, "it stays where it was");
        let status = status().await;
        let named = |r: &String| r.contains("node 'node-3'") && r.contains("on node 'node-2'");
        assert!(status.reasons.iter().any(named), "{:?}", status.reasons);
        let events = operate(ApiRequest::Events { after: 0, limit: None, filter: Default::default() }).await;
        let Ok(ApiAnswer::Events { events }) = events else { panic!("{events:?}") };
        assert!(events.iter().any(|e| e.what == "drive-refused"));
    });
}

/// What a target says of a drive that it has not opened.
fn left_out(path: &str, id: Option<u128>, fabric: Option<FabricId>) -> DriveLeftOut {
    let (why, hint) = (format!("{path}: it is not to be"), "mend it".into());
    DriveLeftOut { path: path.into(), id: id.map(DriveId), fabric, why, hint }
}

#[test]
fn a_manager_that_sees_drives_of_another_fabric_only_is_not_healthy() {
    Sim::new(21).block_on(async {
        let service = Service::start().await;
        let other = FabricId(0xbad);
        let target = FakeTarget::new(1, &[]);
        *target.left_out.borrow_mut() = vec![left_out("/dev/a", Some(7), Some(other))];
        target.start();
        // A node that has run on since before asks under its own fabric.
        let foreign = FakeTarget::new(2, &[2]);
        foreign.fabric.set(other);
        foreign.start();
        eventually("it joins", ms(1000), || service.map().node_named("node-1").is_some()).await;
        sleep(ms(500)).await;
        let status = status().await;
        assert_eq!(status.health, Health::Unavailable, "{:?}", status.reasons);
        let drive = status.troubles.iter().find(|t| t.kind == TroubleKind::DriveForeign).expect("it is told");
        let named = [DriveId(7).short(), other.to_string(), FABRIC.to_string(), "'node-1'".into()];
        assert!(named.iter().all(|name| drive.what.contains(name)), "{}", drive.what);
        assert_eq!((drive.node.as_deref(), drive.drive), (Some("node-1"), Some(DriveId(7))));
        assert!(
            drive.advice.iter().any(|a| a.command.as_ref().is_some_and(|c| c.contains("fabric recover")))
        );
        let node = status.troubles.iter().find(|t| t.kind == TroubleKind::NodeForeign).expect("it is told");
        assert_eq!(node.node.as_deref(), Some("node-2"));
        assert!(node.what.contains(&other.to_string()) && node.what.contains(&FABRIC.to_string()));
        let Ok(ApiAnswer::Check(check)) = operate(ApiRequest::FabricCheck {}).await else {
            panic!("a check")
        };
        assert!(!check.sound, "{check:?}");
        foreign.kill();
        target.left_out.borrow_mut().clear();
        target.start();
        sleep(ms(20_000)).await;
        let left = troubles_told().await;
        assert!(
            left.iter().all(|kind| !matches!(kind, TroubleKind::DriveForeign | TroubleKind::NodeForeign))
        );
    });
}

async fn troubles_told() -> Vec<TroubleKind> {
    status().await.troubles.iter().map(|t| t.kind).collect()
}

#[test]
fn a_drive_that_was_left_out_is_told_with_the_reason() {
    Sim::new(22).block_on(async {
        let (service, targets, _) = fabric(2).await;
        let path = service.map().drives[&DriveId(2)].path.clone();
        targets[1].kill();
        let without = FakeTarget::new(2, &[]);
        *without.left_out.borrow_mut() = vec![
            left_out(&path, None, None),
            left_out("/dev/new", None, None),
            left_out("/dev/b", None, Some(FabricId(9))),
        ];
        without.start();
        let is_told = async || status().await.troubles.iter().any(|t| t.kind == TroubleKind::DriveAbsent);
        for _ in 0..100 {
            if is_told().await {
                break;
            }
            sleep(ms(100)).await;
        }
        let status = status().await;
        let find = |kind| status.troubles.iter().filter(|t| t.kind == kind).collect::<Vec<_>>();
        let absent = find(TroubleKind::DriveAbsent);
        assert!(absent.len() == 1 && absent[0].what.contains("it is not to be"), "{:?}", status.troubles);
        assert!(absent[0].advice[0].what.contains("mend it"));
        let others = find(TroubleKind::DriveLeftOut);
        assert!(others.len() == 1 && others[0].severity == Severity::Warning, "{:?}", status.troubles);
        assert!(others[0].what.contains("/dev/new") && !others[0].what.contains(&path), "{}", others[0].what);
        let foreign = find(TroubleKind::DriveForeign);
        assert!(foreign.len() == 1 && foreign[0].severity == Severity::Degraded, "{:?}", status.troubles);
    });
}

/// What a target says of a drive that knows the first so many groups that were ever made.
fn report(drive: u128, groups: u64) -> DriveReport {
    DriveReport {
        id: DriveId(drive),
        path: format!("/dev/disk/by-id/{drive}"),
        capacity: BlockCount(DRIVE_BLOCKS),
        map_copy: MapVersion(1),
        epochs: (0..groups).map(|g| (GroupId(g + 1_000_000), Epoch(1))).collect(),
        commit: 0,
        device: None,
    }
}

#[test]
fn a_join_may_be_longer_than_the_head_of_a_frame() {
    Sim::new(19).block_on(async {
        let (service, _, _) = fabric(1).await;
        // As many numbers have been given out as the drives know groups of.
        let mut map = service.map();
        service.kill();
        let before = map.version;
        (map.next_id, map.version) = (2_000_000, MapVersion(before.0 + 1));
        weft_manager::put_map(&service.store, &map).await.unwrap();
        service.restart().await;
        let link = connect(PeerRole::Client).await;
        let join = |drives: u128, groups| {
            ManagerRequest::Join(Join {
                node: "node-7".into(),
                addr: "10.0.0.7:4801".into(),
                incarnation: 1,
                drives: (0..drives).map(|d| report(1000 + d, groups)).collect(),
                knows_floors: true,
                knows_targets: true,
                knows_lanes: true,
                knows_file_systems: true,
                knows_spread: true,
                serves: Default::default(),
                ..Join::default()
            })
        };
        let most = DRIVES_PER_TARGET_MAX as u128;
        let (answer, _) = ask(&link, &join(most, 625)).await.unwrap();
        assert!(matches!(answer, ManagerAnswer::Joined { .. }));
        assert_eq!(service.map().drives.len(), 1 + DRIVES_PER_TARGET_MAX);
        // More drives than a target may have are refused with words.
        let (status, text) = ask(&link, &join(200, 200)).await.unwrap_err();
        assert!(status == Status::Refused && text.contains("200 drives"), "{text}");
    });
}
