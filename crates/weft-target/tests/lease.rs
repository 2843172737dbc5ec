//! Leases and vouching: who serves while the manager is silent, and who must not.

use crate::fabric;

use fabric::*;
use std::time::Duration;
use weft_rt::sim::{Crash, Sim, heal_network, set_blocked};
use weft_rt::{now, sleep};
use weft_types::*;
use weft_wire::Status;
use weft_wire::control::{TargetAnswer, TargetRequest};
use weft_wire::data::*;

const OK: (Status, Option<Verdict>) = (Status::Ok, Some(Verdict::Applied));

/// Cuts the ways between a target and everyone in the list, both directions.
fn isolate(n: usize, from: &[usize]) {
    for other in from {
        set_blocked(host(n), host(*other), true);
        set_blocked(host(*other), host(n), true);
    }
}

#[test]
fn nothing_is_served_without_a_lease() {
    Sim::new(1).block_on(async {
        let fabric = Fabric::start_with(1, Role::InSync).await;
        fabric.manager.refused.borrow_mut().insert(TargetId(1));
        sleep(ms(1000)).await;
        let a = Client::new(1, 1);
        assert_eq!(a.write(1, 0, a.v(1), 1).await.0, Status::NotServing);
        fabric.manager.refused.borrow_mut().clear();
        fabric.wait_serving().await;
        assert_eq!(a.write(1, 0, a.v(1), 1).await, OK);
    });
}

#[test]
fn a_grant_counts_only_with_its_map() {
    Sim::new(2).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        a.write_all(&[1, 2], 0, a.v(1), 1).await;
        // The manager goes on granting, but for a map that this target cannot get; nobody vouches for it.
        fabric.manager.holds_maps.set(true);
        isolate(2, &[1]);
        fabric.set_role(2, Role::Out);
        let renewed = fabric.manager.renewals.get();
        sleep(LEASE + ms(50)).await;
        assert!(fabric.manager.renewals.get() > renewed + 2);
        assert_eq!(a.read(2, 0).await, Err(Status::NotServing), "served with a map that was not adopted");
        fabric.manager.holds_maps.set(false);
        // The answer that was held back comes after ten seconds.
        sleep(Duration::from_secs(12)).await;
        a.epoch.set(2);
        assert_eq!(a.read(2, 0).await, Err(Status::NotServing), "now it knows that it is out");
        assert_eq!(a.read(1, 0).await.unwrap().byte, 1);
    });
}

#[test]
fn a_lone_target_stops_when_its_lease_ends() {
    Sim::new(3).block_on(async {
        let fabric = Fabric::start(1).await;
        let a = Client::new(1, 1);
        fabric.stop_manager();
        let silent = now();
        let mut last = now();
        while silent.elapsed() < LEASE * 2 {
            if a.read(1, 0).await.is_ok() {
                last = now();
            }
            sleep(ms(5)).await;
        }
        assert!(last - silent <= LEASE, "served {:?} after the last grant", last - silent);
        assert!(last - silent > LEASE / 2, "a lease lasts a while");
        assert!(!fabric.is_serving(1));
    });
}

#[test]
fn peers_vouch_for_each_other_while_the_manager_is_silent() {
    Sim::new(4).block_on(async {
        let fabric = Fabric::start(3).await;
        let a = Client::new(1, 1);
        fabric.stop_manager();
        for i in 0..100 {
            sleep(ms(100)).await;
            a.write_all(&[1, 2, 3], 0, a.v(1 + i), i as u8).await;
        }
        // When one of them is gone, nobody's word is whole any more.
        fabric.kill_target(3, Crash::Process);
        sleep(LEASE + ms(100)).await;
        for n in [1, 2] {
            assert_eq!(a.write(n, 0, a.v(1000), 1).await.0, Status::NotServing, "target {n}");
        }
        // Nor does the word of one that has restarted count: it has forgotten what it promised.
        fabric.start_target(3);
        sleep(LEASE * 2).await;
        for n in [1, 2, 3] {
            assert_eq!(a.write(n, 0, a.v(1001), 1).await.0, Status::NotServing, "target {n}");
        }
        // With the map of its join, but no grant, it does not know yet what it may have promised.
        fabric.manager.refused.borrow_mut().extend([TargetId(1), TargetId(2), TargetId(3)]);
        fabric.start_manager();
        sleep(LEASE * 2).await;
        for n in [1, 2, 3] {
            assert_eq!(a.write(n, 0, a.v(1001), 1).await.0, Status::NotServing, "target {n}");
        }
        fabric.manager.refused.borrow_mut().clear();
        fabric.wait_serving().await;
        a.write_all(&[1, 2, 3], 0, a.v(1002), 1).await;
    });
}

#[test]
fn who_promised_not_to_vouch_does_not() {
    Sim::new(5).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        let map = fabric.manager.map.borrow().version;
        let stop = TargetRequest::StopVouching { victim: TargetId(2), map };
        fabric.manager.suspects.borrow_mut().insert(TargetId(2));
        assert_eq!(fabric.command(1, &stop).await, Some(TargetAnswer::Done));
        fabric.stop_manager();
        sleep(LEASE + ms(100)).await;
        assert_eq!(a.read(2, 0).await, Err(Status::NotServing), "target 1 has promised");
        assert!(a.read(1, 0).await.is_ok(), "target 2 has not");
        // Called off: the manager's next grants no longer name it, and the promise ends.
        fabric.manager.suspects.borrow_mut().clear();
        fabric.start_manager();
        fabric.wait_serving().await;
        sleep(LEASE).await;
        fabric.stop_manager();
        sleep(LEASE * 2).await;
        assert!(a.read(2, 0).await.is_ok());
    });
}

#[test]
fn a_promise_outlives_maps_that_are_about_something_else() {
    Sim::new(6).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        let map = fabric.manager.map.borrow().version;
        fabric.manager.suspects.borrow_mut().insert(TargetId(2));
        let stop = TargetRequest::StopVouching { victim: TargetId(2), map };
        assert_eq!(fabric.command(1, &stop).await, Some(TargetAnswer::Done));
        fabric.change(|map| map.next_id += 1);
        fabric.push(&[1, 2]).await;
        fabric.stop_manager();
        sleep(LEASE + ms(100)).await;
        assert_eq!(a.read(2, 0).await, Err(Status::NotServing));
    });
}

#[test]
fn suspects_of_a_grant_are_not_vouched_for() {
    Sim::new(7).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        fabric.manager.suspects.borrow_mut().insert(TargetId(2));
        sleep(LEASE / 2).await;
        fabric.stop_manager();
        sleep(LEASE + ms(100)).await;
        assert_eq!(a.read(2, 0).await, Err(Status::NotServing));
    });
}

#[test]
fn a_vouch_is_for_one_epoch() {
    Sim::new(8).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        fabric.stop_manager();
        sleep(LEASE * 2).await;
        assert!(a.read(2, 0).await.is_ok(), "by its peer's word");
        // Target 1 hears that target 2 is out; target 2 does not.
        fabric.set_role(2, Role::Out);
        assert_eq!(a.teach(1, &fabric.entry()).await, Status::Ok);
        sleep(LEASE + ms(100)).await;
        assert_eq!(a.read(2, 0).await, Err(Status::NotServing));
        a.epoch.set(2);
        assert_eq!(a.read(1, 0).await, Err(Status::NotServing), "alone, it needs the manager");
    });
}

#[test]
fn a_target_that_is_cut_off_from_all_stops_in_time() {
    for seed in 0..10 {
        Sim::new(seed).block_on(async {
            let fabric = Fabric::start(3).await;
            let a = Client::new(1, 1);
            sleep(ms(weft_rt::random_below(1000))).await;
            isolate(2, &[1, 3, 100]);
            let cut = now();
            let mut last = now();
            while cut.elapsed() < LEASE * 2 {
                if a.read(2, 0).await.is_ok() {
                    last = now();
                }
                sleep(ms(5)).await;
            }
            assert!(last - cut <= LEASE, "served {:?} after it was cut off", last - cut);
            assert!(a.read(1, 0).await.is_ok(), "the others have the manager");
            heal_network();
            eventually("it comes back", || fabric.is_serving(2)).await;
        });
    }
}

#[test]
fn a_promise_not_to_vouch_lasts_until_the_map_of_the_eviction_is_adopted() {
    Sim::new(5).block_on(async {
        let fabric = Fabric::start(2).await;
        let a = Client::new(1, 1);
        a.write_all(&[1, 2], 0, a.v(1), 1).await;
        let map = fabric.manager.map.borrow().version;
        fabric.manager.suspects.borrow_mut().insert(TargetId(2));
        fabric.manager.refused.borrow_mut().insert(TargetId(2));
        assert_eq!(
            fabric.command(1, &TargetRequest::StopVouching { victim: TargetId(2), map }).await,
            Some(TargetAnswer::Done)
        );
        set_blocked(host(2), host(100), true);
        set_blocked(host(100), host(2), true);
        sleep(LEASE * 2).await;
        assert_eq!(a.read(2, 0).await, Err(Status::NotServing), "the victim is waited out");
        // The eviction is committed; target 1 hears by its renewal, and gets the map a little later.
        fabric.manager.holds_maps.set(true);
        fabric.set_role(2, Role::Out);
        fabric.manager.suspects.borrow_mut().clear();
        sleep(LEASE).await;
        // Now it gets the map and serves without the victim.
        fabric.push(&[1]).await;
        let b = Client::new(2, 2);
        b.epoch.set(2);
        b.write_all(&[1], 0, b.v(9), 9).await;
        assert_eq!(a.read(2, 0).await, Err(Status::NotServing), "the evicted replica serves, and is stale");
    });
}
