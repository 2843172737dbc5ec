//! Targets are sent what has changed in the map where that leads on from what they have, and whole maps where
//! it does not (C8).

use crate::harness;

use harness::*;
use std::rc::Rc;
use weft_api::{ApiRequest, SettingsWish};
use weft_rt::sim::Sim;
use weft_types::limits::MAP_VERSIONS_KEPT_MAX;
use weft_types::{FabricMap, TargetSlice};
use weft_wire::control::TargetRequest;

/// How often a target was sent a whole map, and how often a delta.
fn sent(target: &FakeTarget) -> (usize, usize) {
    let log = target.log.borrow();
    let count = |is: fn(&TargetRequest) -> bool| log.iter().filter(|(_, request)| is(request)).count();
    let maps = count(|request| matches!(request, TargetRequest::AdoptMap { .. }));
    (maps, count(|request| matches!(request, TargetRequest::AdoptDelta { .. })))
}

/// A target has all of the newest map that concerns it.
fn assert_has_its_slice(target: &FakeTarget, map: &FabricMap) {
    let held = FabricMap::clone(&target.map.borrow().clone().unwrap());
    let Some(of_target) = held.of_target.clone() else { return assert_eq!(held, *map, "{}", target.name) };
    let slice = TargetSlice::of(map, of_target.target, held.groups.keys().copied().collect()).slice(map);
    assert_eq!(
        FabricMap { of_target: None, ..held },
        FabricMap { of_target: None, ..slice },
        "{}",
        target.name
    );
}

/// Changes the map, and waits until all have it.
async fn change(service: &Service, targets: &[Rc<FakeTarget>], name: &str) {
    operate(volume_of(name, 2)).await.unwrap();
    all_up(service, targets).await;
    for target in targets {
        assert_has_its_slice(target, &service.map());
    }
}

#[test]
fn a_target_is_sent_what_has_changed() {
    Sim::new(31).block_on(async {
        let (service, targets, _) = fabric(2).await;
        change(&service, &targets, "a").await;
        targets.iter().for_each(|target| target.log.borrow_mut().clear());
        for name in ["b", "c", "d"] {
            change(&service, &targets, name).await;
        }
        for target in &targets {
            let (maps, deltas) = sent(target);
            assert!(deltas >= 3 && maps == 0, "{maps} maps, {deltas} deltas");
        }
    });
}

#[test]
fn a_target_that_knows_no_deltas_is_sent_whole_maps() {
    Sim::new(32).block_on(async {
        let (service, targets, _) = fabric(2).await;
        targets[0].refuses_deltas.set(true);
        targets.iter().for_each(|target| target.log.borrow_mut().clear());
        for name in ["a", "b", "c"] {
            change(&service, &targets, name).await;
        }
        let (maps, deltas) = sent(&targets[0]);
        assert!(maps >= 3 && deltas <= 1, "{maps} maps, {deltas} deltas: it is asked once in its life");
        // Its next release may know them.
        targets[0].refuses_deltas.set(false);
        targets[0].leased_from.set(None);
        targets[0].start();
        all_up(&service, &targets).await;
        targets[0].log.borrow_mut().clear();
        change(&service, &targets, "d").await;
        assert!(sent(&targets[0]).1 > 0);
    });
}

#[test]
fn a_map_that_came_from_elsewhere_is_followed_by_a_whole_one() {
    Sim::new(33).block_on(async {
        let (service, targets, _) = fabric(2).await;
        change(&service, &targets, "a").await;
        // Its map has the same version, and may say something else.
        let other = {
            let held = targets[0].map.borrow().clone().unwrap();
            FabricMap { volumes: Default::default(), ..FabricMap::clone(&held) }
        };
        *targets[0].map.borrow_mut() = Some(Rc::new(other));
        targets[0].nonce.set(1);
        targets.iter().for_each(|target| target.log.borrow_mut().clear());
        change(&service, &targets, "b").await;
        assert_eq!(sent(&targets[0]).0, 1, "{:?}", sent(&targets[0]));
    });
}

#[test]
fn a_target_that_was_away_for_long_is_sent_the_whole_map() {
    Sim::new(34).block_on(async {
        let (service, targets, _) = fabric(2).await;
        change(&service, &targets, "a").await;
        targets[0].holds_adoption.set(true);
        for round in 0..=MAP_VERSIONS_KEPT_MAX as u8 {
            let capacity_warning_percent = Some(50 + round % 20);
            let wish = SettingsWish { capacity_warning_percent, ..SettingsWish::default() };
            operate(ApiRequest::Settings(wish)).await.unwrap();
        }
        targets[0].log.borrow_mut().clear();
        targets[0].holds_adoption.set(false);
        let newest = service.map().version;
        eventually("it has the newest map", ms(5000), || targets[0].adopted() == newest).await;
        assert_has_its_slice(&targets[0], &service.map());
    });
}
