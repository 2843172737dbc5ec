//! A manager on an old copy of its store: it must not bring back what was evicted since.

use crate::harness;

use harness::*;
use std::rc::Rc;
use weft_api::Health;
use weft_rt::sim::{Sim, set_blocked};
use weft_rt::{now, sleep, timeout};
use weft_types::{Epoch, GroupId, MapVersion, Role};

/// Two nodes of which the second was evicted after a backup of the store was made, and is down now.
async fn evicted_after_backup() -> (Service, Vec<Rc<FakeTarget>>, GroupId) {
    let (mut service, targets, _) = fabric(2).await;
    operate(volume_of("v", 2)).await.unwrap();
    all_up(&service, &targets).await;
    let group = *service.map().groups.keys().next().unwrap();
    let backup = service.backup();
    targets[1].kill();
    eventually("it is evicted", ms(6000), || roles(&service.map(), 2).contains(&Role::Out)).await;
    eventually("the other knows", ms(1000), || targets[0].adopted() == service.map().version).await;
    service.kill();
    service.store = backup;
    (service, targets, group)
}

/// Watches for a while that the replica which was left behind does not serve.
async fn never_serves(view: &ProcessView, group: GroupId, watched_ms: u64) {
    let since = now();
    while since.elapsed() < ms(watched_ms) {
        assert!(!view.serves(group), "an evicted replica serves after {:?}", since.elapsed());
        sleep(ms(5)).await;
    }
}

#[test]
fn a_manager_on_an_old_store_stops_when_a_drive_knows_more() {
    Sim::new(1).block_on(async {
        let (service, targets, group) = evicted_after_backup().await;
        let before = service.map();
        let behind = targets[1].start();
        service.restart().await;
        never_serves(&behind, group, 10_000).await;
        assert_eq!(
            service.map(),
            before,
            "it decides nothing, above all no eviction of the one that knows more"
        );
        let status = status().await;
        assert_eq!(status.health, Health::Unavailable);
        assert!(status.reasons[0].contains("weft fabric recover"), "{:?}", status.reasons);
        let refused = operate(volume_of("w", 2)).await.unwrap_err();
        assert!(refused.message.contains("weft fabric recover"), "{refused:?}");
    });
}

/// It would stay to say so, and answer whoever asks it with its old map.
#[test]
fn a_manager_that_another_has_followed_does_not_take_its_store_for_an_old_one() {
    Sim::new(6).block_on(async {
        let (mut service, targets, _) = fabric(2).await;
        service.store = service.store.shared();
        service.restart().await;
        // The term of the one before has to end first.
        sleep(ms(6_000)).await;
        all_up(&service, &targets).await;
        service.pause();
        sleep(ms(6_000)).await;
        let mut newer = service.map();
        newer.version = MapVersion(newer.version.0 + 1);
        weft_manager::take_over(&service.store).await.unwrap();
        weft_manager::put_map(&service.store, &newer).await.unwrap();
        targets[0].kill();
        *targets[0].map.borrow_mut() = Some(Rc::new(newer));
        targets[0].start();
        service.resume();
        let why = timeout(ms(1000), service.halted()).await.expect("its process ends");
        assert!(why.contains("another manager"), "{why}");
    });
}

#[test]
fn a_manager_grants_nothing_before_those_who_may_know_more_had_their_say() {
    Sim::new(2).block_on(async {
        let (service, targets, group) = evicted_after_backup().await;
        targets[0].kill();
        let behind = targets[1].start();
        service.restart().await;
        never_serves(&behind, group, 1500).await;
        targets[0].start();
        never_serves(&behind, group, 10_000).await;
        assert!(status().await.reasons[0].contains("weft fabric recover"));
    });
}

#[test]
fn when_all_are_there_a_new_manager_grants_at_once() {
    Sim::new(3).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 3)).await.unwrap();
        all_up(&service, &targets).await;
        service.restart().await;
        let restarted = now();
        let is_up = |t: &Rc<FakeTarget>| t.leased_from.get().is_some_and(|at| at > restarted);
        eventually("all have leases", ms(700), || targets.iter().all(is_up)).await;
    });
}

#[test]
fn a_node_that_stays_away_holds_up_a_new_manager_for_one_wait_only() {
    Sim::new(4).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        all_up(&service, &targets).await;
        set_blocked(targets[1].host, manager_host(), true);
        service.restart().await;
        let restarted = now();
        let is_up = || targets[0].leased_from.get().is_some_and(|at| at > restarted);
        eventually("the other has its lease", ms(2600), is_up).await;
        assert!(restarted.elapsed() >= ms(2000));
    });
}

#[test]
fn a_drive_that_remembers_a_group_that_is_gone_knows_no_more() {
    Sim::new(5).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        all_up(&service, &targets).await;
        // As if the group had been removed while the drive was away: its number is one that was given out.
        let mut map = (**targets[0].map.borrow().as_ref().unwrap()).clone();
        let mut gone = map.groups.values().next().unwrap().clone();
        let number = (1..map.ids_below()).find(|n| !map.groups.contains_key(&GroupId(*n))).unwrap();
        (gone.id, gone.epoch) = (GroupId(number), Epoch(9));
        map.groups.insert(gone.id, gone);
        targets[0].kill();
        *targets[0].map.borrow_mut() = Some(Rc::new(map.clone()));
        let restarted = now();
        targets[0].start();
        let is_up = || targets[0].leased_from.get().is_some_and(|at| at > restarted);
        eventually("it is back", ms(1000), is_up).await;
        // A number that was never given out is another matter.
        let unheard_of = map.groups.remove(&GroupId(number)).unwrap();
        let fresh = GroupId(map.next_id + 7);
        map.groups.insert(fresh, weft_types::Group { id: fresh, ..unheard_of });
        map.version = MapVersion(map.version.0.min(service.map().version.0));
        targets[0].kill();
        *targets[0].map.borrow_mut() = Some(Rc::new(map));
        targets[0].start();
        sleep(ms(1000)).await;
        assert!(status().await.reasons[0].contains("weft fabric recover"));
        assert!(roles(&service.map(), 1).iter().all(|r| *r == Role::InSync));
    });
}
