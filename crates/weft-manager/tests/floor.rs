//! Floors of groups (R7). Targets of an older release do not know them: they serve no drive of a group that
//! has a floor, and none of their drives becomes a member of one. Rounds that come to nothing become rare.

use crate::harness;

use harness::*;
use std::rc::Rc;
use weft_api::{ApiRequest, ErrorCode, SettingsWish, TroubleKind};
use weft_rt::sim::Sim;
use weft_rt::sleep;
use weft_types::{DriveId, Epoch, MapVersion, Role, SessionSlot, Version};
use weft_wire::control::TargetRequest;

/// A manager and nodes 1 to n with a drive each, of which the first two have copies of groups; all groups
/// have a floor from now on. The others are not started.
async fn fabric_with_floors(nodes: u8) -> (Service, Vec<Rc<FakeTarget>>) {
    let (service, mut targets, _) = fabric(2).await;
    operate(volume_of("v", 2)).await.unwrap();
    all_up(&service, &targets).await;
    service.kill();
    let mut map = service.map();
    for id in map.groups.keys().copied().collect::<Vec<_>>() {
        map.groups.get_mut(&id).unwrap().floor = Version::new(7, SessionSlot(0));
    }
    map.version = MapVersion(map.version.0 + 1);
    weft_manager::put_map(&service.store, &map).await.unwrap();
    service.restart().await;
    all_up(&service, &targets).await;
    for n in 3..=nodes {
        targets.push(FakeTarget::new(n, &[u128::from(n)]));
    }
    (service, targets)
}

/// Starts a target of an older release.
fn start_older(target: &Rc<FakeTarget>) {
    target.knows_floors.set(false);
    target.start();
}

#[test]
fn a_target_that_does_not_know_floors_serves_no_drive_of_a_group_that_has_one() {
    Sim::new(1).block_on(async {
        let (service, targets) = fabric_with_floors(2).await;
        assert!(roles(&service.map(), 2).iter().all(|r| *r == Role::InSync));
        start_older(&targets[1]);
        let is_out = || roles(&service.map(), 2).iter().all(|r| *r == Role::Out);
        eventually("its copies leave their groups", ms(20_000), is_out).await;
        sleep(ms(5_000)).await;
        assert!(is_out(), "it does not come back");
        let status = status().await;
        let refused = trouble(&status, TroubleKind::DriveRefused);
        assert!(refused.what.contains("Expected a target that knows the floors of groups"), "{refused:?}");
        assert!(refused.advice[0].what.contains("upgrade node 'node-2'"), "{refused:?}");

        targets[1].knows_floors.set(true);
        targets[1].start();
        let is_back = || roles(&service.map(), 2).iter().all(|r| *r == Role::Syncing);
        eventually("it is back once it is upgraded", ms(20_000), is_back).await;
    });
}

#[test]
fn a_drive_whose_target_does_not_know_floors_is_no_new_member_of_a_group_that_has_one() {
    Sim::new(2).block_on(async {
        let (service, targets) = fabric_with_floors(4).await;
        operate(ApiRequest::Settings(SettingsWish::rebuild_after_ms(1_000))).await.unwrap();
        start_older(&targets[2]);
        eventually("it has joined", ms(5_000), || service.map().drives.contains_key(&DriveId(3))).await;
        all_up(&service, &targets[..3]).await;
        let (id, with) = (DriveId(2).to_string(), DriveId(3).to_string());
        let replace = ApiRequest::DriveReplace { id, with, device: false, dry_run: false };
        let error = operate(replace).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Refused);
        assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("upgrade")), "{error:?}");

        targets[1].kill();
        sleep(ms(30_000)).await;
        assert_eq!(roles(&service.map(), 3), [], "the copies of the second are not made there");
        targets[3].start();
        let is_rebuilt = || roles(&service.map(), 4).len() == service.map().groups.len();
        eventually("they are made on a node that knows floors", ms(20_000), is_rebuilt).await;

        operate(volume_of("w", 3)).await.unwrap();
        assert!(!roles(&service.map(), 3).is_empty(), "new groups have no floor");
    });
}

#[test]
fn what_a_manager_of_before_has_closed_is_opened_soon_by_another_epoch() {
    Sim::new(4).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        all_up(&service, &targets).await;
        assert!(service.map().groups.values().all(|g| g.epoch == Epoch(1)));
        // The manager dies between asking members to close and the commit.
        targets[1].closed.set(Some(Epoch(1)));
        service.restart().await;
        let is_open = || service.map().groups.values().all(|g| g.epoch == Epoch(2));
        eventually("the groups begin an epoch", ms(10_000), is_open).await;
        assert!(
            service.map().groups.values().all(|g| g.floor == Version::ZERO),
            "without a word of all, no floor"
        );
        sleep(ms(10_000)).await;
        assert!(is_open(), "it is done once");
    });
}

#[test]
fn a_group_whose_floor_cannot_rise_seldom_begins_an_epoch_for_it() {
    Sim::new(3).block_on(async {
        let service = Service::start().await;
        service.forget_every.set(ms(1_000));
        service.restart().await;
        let targets = [1, 2].map(|n| FakeTarget::new(n, &[u128::from(n)]));
        targets.iter().for_each(|target| drop(target.start()));
        all_up(&service, &targets).await;
        operate(volume_of("v", 2)).await.unwrap();
        all_up(&service, &targets).await;
        let floor = || service.map().groups.values().map(|g| g.floor.counter()).min().unwrap();
        targets[1].never_closes.set(true);
        targets.iter().for_each(|t| t.tombstone.set(Some(Version::new(6, SessionSlot(0)))));
        let asked = |is_close: bool| {
            let log = targets[1].log.borrow();
            let closes = log.iter().filter_map(|(_, request)| match request {
                TargetRequest::Floors { close } => Some(!close.is_empty()),
                _ => None,
            });
            closes.filter(|closes| *closes == is_close).count()
        };
        eventually("many rounds are over", ms(200_000), || asked(false) >= 60).await;
        assert_eq!(floor(), 0, "one member says nothing");
        assert!((2..=8).contains(&asked(true)), "asked to close {} times", asked(true));

        targets[1].never_closes.set(false);
        eventually("it is tried again", ms(60_000), || floor() == 7).await;
    });
}
