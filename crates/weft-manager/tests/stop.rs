//! A target that is stopped in order: its drives leave their groups at once, where others are up to date
//! and say so.

use crate::harness;

use harness::*;
use std::rc::Rc;
use weft_api::{ApiAnswer, ApiRequest};
use weft_rt::sim::Sim;
use weft_rt::{now, sleep};
use weft_types::{DriveId, Role, TargetId};
use weft_wire::Status;
use weft_wire::control::{ManagerRequest, TargetRequest};
use weft_wire::handshake::PeerRole;

/// Far less than a lease.
const AT_ONCE_MS: u64 = 100;

async fn say(target: &FakeTarget, node: TargetId, request: ManagerRequest) -> Result<(), Status> {
    let link = connect(PeerRole::Target(node)).await;
    let said = ask(&link, &request).await;
    if let Err((status, text)) = &said {
        weft_rt::sim::tell(|| format!("{}: {status}: {text}", target.name));
    }
    said.map(|_| ()).map_err(|(status, _)| status)
}

/// The target refuses everything from now on, and says so.
async fn stop(target: &FakeTarget, node: TargetId) {
    let incarnation = target.incarnation.get();
    target.kill();
    let word = ManagerRequest::Stopped { target: node, incarnation, commits: vec![] };
    assert_eq!(say(target, node, word).await, Ok(()));
}

/// Nodes with a drive each and a volume of so many copies, and the number of the first.
async fn with_volume(nodes: u8, copies: u8) -> (Service, Vec<Rc<FakeTarget>>, TargetId) {
    let (service, targets, _) = fabric(nodes).await;
    operate(volume_of("v", copies)).await.unwrap();
    all_up(&service, &targets).await;
    let node = first_target(&service.map(), "node-1");
    (service, targets, node)
}

#[test]
fn the_drives_of_a_target_that_has_stopped_leave_at_once_by_the_word_of_others() {
    Sim::new(1).block_on(async {
        let (service, targets, node) = with_volume(3, 2).await;
        let stopped = now();
        stop(&targets[0], node).await;
        let left = || roles(&service.map(), 1).iter().all(|r| *r == Role::Out);
        eventually("its drive leaves its groups", ms(AT_ONCE_MS), left).await;
        for witness in &targets[1..] {
            let word = |r: &TargetRequest| matches!(r, TargetRequest::StopVouching { victim, .. } if *victim == node);
            assert!(witness.asked(stopped, word).is_some(), "each has promised");
        }
        // It comes back like any other.
        let _view = targets[0].start();
        let back = || roles(&service.map(), 1).iter().all(|r| *r == Role::Syncing);
        eventually("it comes back", ms(2_000), back).await;
    });
}

#[test]
fn nobody_leaves_without_a_word_and_the_last_up_to_date_copy_never_does() {
    Sim::new(2).block_on(async {
        let (service, targets, node) = with_volume(2, 2).await;
        targets[1].holds_promises.set(true);
        stop(&targets[0], node).await;
        sleep(ms(1_000)).await;
        assert!(!roles(&service.map(), 1).contains(&Role::Out), "nobody has given a word");
        targets[1].holds_promises.set(false);
        let left = || roles(&service.map(), 1).iter().all(|r| *r == Role::Out);
        eventually("its drive leaves its groups", ms(2_500), left).await;
        let other = first_target(&service.map(), "node-2");
        stop(&targets[1], other).await;
        sleep(ms(10_000)).await;
        assert!(roles(&service.map(), 2).iter().all(|r| *r == Role::InSync));
    });
}

#[test]
fn nobody_leaves_while_the_fabric_is_about_to_stop() {
    Sim::new(5).block_on(async {
        let (service, targets, node) = with_volume(3, 2).await;
        let told = operate(ApiRequest::FabricStop {}).await.unwrap();
        assert!(matches!(&told, ApiAnswer::Events { events } if events[0].what == "fabric-stop"), "{told:?}");
        let version = service.map().version;
        stop(&targets[0], node).await;
        sleep(ms(14_000)).await;
        assert_eq!(service.map().version, version, "the map stays as it is");
        // Whoever said so has not come to an end: what is gone is gone.
        let left = || roles(&service.map(), 1).iter().all(|r| *r == Role::Out);
        eventually("its drive leaves its groups", ms(1_500), left).await;

        // One that joins ends it at once.
        let _view = targets[0].start();
        eventually("it comes back", ms(2_000), || roles(&service.map(), 1).iter().all(|r| *r != Role::Out))
            .await;
        operate(ApiRequest::FabricStop {}).await.unwrap();
        let _again = targets[0].start();
        let other = first_target(&service.map(), "node-2");
        stop(&targets[1], other).await;
        let left = || roles(&service.map(), 2).contains(&Role::Out);
        eventually("a drive leaves its groups", ms(2_000), left).await;
    });
}

/// Messages may overtake each other on their connections.
#[test]
fn what_a_target_had_sent_before_its_last_word_does_not_bring_it_back() {
    Sim::new(3).block_on(async {
        let (service, targets, node) = with_volume(2, 2).await;
        targets[1].holds_promises.set(true);
        stop(&targets[0], node).await;
        let renewal = ManagerRequest::Renew {
            target: node,
            incarnation: targets[0].incarnation.get(),
            adopted: service.map().version,
            commits: vec![],
            ahead: vec![],
        };
        assert_eq!(say(&targets[0], node, renewal).await, Err(Status::NotReady));
        targets[1].holds_promises.set(false);
        let left = || roles(&service.map(), 1).iter().all(|r| *r == Role::Out);
        eventually("its drive leaves its groups", ms(2_500), left).await;
    });
}

/// A process of before may have a drive that the one which has stopped did not find.
#[test]
fn a_drive_that_the_process_did_not_have_is_waited_for_as_ever() {
    Sim::new(4).block_on(async {
        let (service, targets, _) = fabric(1).await;
        let both = FakeTarget::new(2, &[2, 3]);
        both.start();
        eventually("it joins", ms(1_000), || service.map().drives.contains_key(&DriveId(3))).await;
        operate(volume_of("v", 2)).await.unwrap();
        let all = [targets[0].clone(), both.clone()];
        all_up(&service, &all).await;
        both.drives.borrow_mut().retain(|d| *d == DriveId(2));
        let (again, node) = (now(), first_target(&service.map(), "node-2"));
        both.start();
        sleep(ms(700)).await;
        stop(&both, node).await;
        let has_left = |drive| roles(&service.map(), drive).iter().all(|r| *r == Role::Out);
        eventually("the drive that it had leaves", ms(AT_ONCE_MS), || has_left(2)).await;
        assert!(!roles(&service.map(), 3).contains(&Role::Out));
        eventually("the other one does later", ms(6_000), || has_left(3)).await;
        assert!(again.elapsed() >= ms(2_020), "after a lease: {:?}", again.elapsed());
    });
}
