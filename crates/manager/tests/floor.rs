//! Targets of an older release, which do not know the floors of groups (R7): they serve no drive of a group
//! that has a floor, and none of their drives becomes a member of one.

mod harness;

use harness::*;
use std::rc::Rc;
use weft_api::{ApiRequest, ErrorCode, SettingsWish, TroubleKind};
use weft_rt::sim::Sim;
use weft_rt::sleep;
use weft_types::{DriveId, MapVersion, Role, SessionSlot, Version};

/// A manager and nodes 1 to n with a drive each, of which the first two have copies of groups; all groups have
/// a floor from now on.
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
        let replace = ApiRequest::DriveReplace { id, with, dry_run: false };
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
