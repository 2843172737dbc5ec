//! Nodes with several targets: each has its own lease, and they come and go as one process (P1 to P4).

use crate::harness;

use harness::*;
use std::rc::Rc;
use weft_api::{ApiAnswer, ApiRequest, EventInfo, FabricStatus, NodeInfo, Presence, TroubleKind};
use weft_rt::sim::Sim;
use weft_rt::sleep;
use weft_types::{DriveId, NodeId, Role};
use weft_wire::Status;
use weft_wire::control::ManagerRequest;
use weft_wire::handshake::PeerRole;

async fn nodes() -> Vec<NodeInfo> {
    match operate(ApiRequest::NodeList {}).await.unwrap() {
        ApiAnswer::Nodes { mut nodes } => {
            nodes.sort_by(|a, b| a.name.cmp(&b.name));
            nodes
        }
        other => panic!("{other:?}"),
    }
}

async fn status() -> FabricStatus {
    match operate(ApiRequest::Status {}).await.unwrap() {
        ApiAnswer::Status(mut status) => {
            status.nodes.sort_by(|a, b| a.name.cmp(&b.name));
            *status
        }
        other => panic!("{other:?}"),
    }
}

async fn events(what: &str) -> Vec<EventInfo> {
    let request = ApiRequest::Events { after: 0, limit: None, filter: Default::default() };
    match operate(request).await.unwrap() {
        ApiAnswer::Events { events } => events.into_iter().filter(|e| e.what == what).collect(),
        other => panic!("{other:?}"),
    }
}

/// What joining comes to, without a process behind it.
async fn join(target: &FakeTarget) -> Result<(), (Status, String)> {
    ask(&connect(PeerRole::Target(Default::default())).await, &target.join()).await.map(|_| ())
}

/// A node of two targets with drives 1 and 2, and one of one target with drive 3.
async fn of_two_and_one() -> (Service, Vec<Rc<FakeTarget>>) {
    let service = Service::start().await;
    let targets = vec![
        FakeTarget::thread(1, (0, 2), 7, &[1]),
        FakeTarget::thread(1, (1, 2), 7, &[2]),
        FakeTarget::new(2, &[3]),
    ];
    for target in &targets {
        target.start();
    }
    all_up(&service, &targets).await;
    (service, targets)
}

#[test]
fn a_node_has_targets_with_drives_of_their_own_and_people_are_shown_one_node() {
    Sim::new(1).block_on(async {
        let (service, targets) = of_two_and_one().await;
        let map = service.map();
        let node = map.node_named("node-1").unwrap().id;
        let of_node: Vec<(u32, String)> = map.targets_of(node).map(|t| (t.index, t.addr.clone())).collect();
        assert_eq!(of_node, [(0, "10.0.0.1:4801".into()), (1, "10.0.0.1:4802".into())]);
        let target_of = |drive| map.target_of(DriveId(drive)).unwrap();
        assert!(target_of(1) != target_of(2) && map.drives[&DriveId(1)].node == map.drives[&DriveId(2)].node);
        assert_eq!(map.title_of(target_of(2)), "target 1 of node 'node-1'");
        assert_eq!(map.title_of(target_of(3)), "node 'node-2'");
        let nodes = nodes().await;
        assert_eq!(nodes.iter().map(|n| (n.drives, n.targets.len())).collect::<Vec<_>>(), [(2, 2), (1, 0)]);
        assert!(nodes[0].targets.iter().all(|t| t.presence == Presence::Up && t.drives == 1));
        assert!(targets.iter().all(|t| t.refusal.borrow().as_ref().is_none_or(|r| r.0 == Status::NotReady)));
    });
}

#[test]
fn a_target_that_stands_still_leaves_alone_and_the_node_is_gone_with_its_last_one() {
    Sim::new(2).block_on(async {
        let (service, targets) = of_two_and_one().await;
        operate(volume_of("v", 2)).await.unwrap();
        all_up(&service, &targets).await;
        targets[1].kill();
        let is_out = |drive| roles(&service.map(), drive).iter().all(|r| *r == Role::Out);
        eventually("its drive leaves its groups", ms(5_000), || is_out(2)).await;
        assert!(!roles(&service.map(), 1).contains(&Role::Out), "its sibling's stays");
        let told = events("target-suspected").await;
        assert!(told[0].why.starts_with("target 1 of node 'node-1' is taken for gone"), "{told:?}");
        assert_eq!(told[0].nodes, ["node-1"]);
        let now = status().await;
        assert_eq!(now.nodes[0].presence, Presence::Up);
        let of_kind = |status: &FabricStatus, kind| status.troubles.iter().find(|t| t.kind == kind).cloned();
        let gone = of_kind(&now, TroubleKind::TargetGone).unwrap();
        assert!(
            gone.what.contains("target 1 of node 'node-1'") && gone.what.contains("stands still"),
            "{gone:?}"
        );
        assert_eq!(of_kind(&now, TroubleKind::NodeGone), None);
        targets[0].kill();
        eventually("nobody is up", ms(5_000), || service.map().version > now.map).await;
        sleep(ms(2_500)).await;
        let told = events("node-suspected").await;
        assert!(told.last().unwrap().why.starts_with("node 'node-1' is taken for gone"), "{told:?}");
        let now = status().await;
        assert!(of_kind(&now, TroubleKind::NodeGone).unwrap().what.contains("node 'node-1'"));
        assert_eq!(of_kind(&now, TroubleKind::TargetGone), None);
    });
}

#[test]
fn a_process_with_fewer_targets_takes_their_drives_over_and_the_one_before_is_refused() {
    Sim::new(3).block_on(async {
        let (service, targets) = of_two_and_one().await;
        operate(volume_of("v", 2)).await.unwrap();
        all_up(&service, &targets).await;
        let before = service.map();
        targets[0].kill();
        targets[1].kill();
        let successor = FakeTarget::thread(1, (0, 1), 8, &[1, 2]);
        successor.start();
        all_up(&service, &[successor.clone(), targets[2].clone()]).await;
        let map = service.map();
        let node = map.node_named("node-1").unwrap().id;
        assert_eq!(map.targets_of(node).count(), 1, "what has no drive any more is forgotten");
        assert_eq!(map.target_of(DriveId(2)), before.target_of(DriveId(1)));
        let (status, text) = join(&targets[1]).await.unwrap_err();
        assert!(status == Status::NotReady && text.contains("a later process of node 'node-1'"), "{text}");
        let (status, text) = join(&targets[0]).await.unwrap_err();
        assert!(status == Status::NotReady && text.contains("a later process"), "{text}");
        // Also one of a number that the later process does not have.
        let (status, text) = join(&FakeTarget::thread(1, (5, 8), 7, &[9])).await.unwrap_err();
        assert!(status == Status::NotReady && text.contains("a later process"), "{text}");
        assert_eq!(service.map().targets_of(node).count(), 1);
        // And back.
        successor.kill();
        for target in &targets[..2] {
            target.process_id.set(9);
            target.start();
        }
        all_up(&service, &targets).await;
        let map = service.map();
        assert_eq!(map.targets_of(node).count(), 2);
        assert_ne!(map.target_of(DriveId(2)), map.target_of(DriveId(1)));
    });
}

#[test]
fn a_target_that_is_gone_stays_listed_as_long_as_a_drive_is_that_nobody_has_found() {
    Sim::new(4).block_on(async {
        let (service, targets) = of_two_and_one().await;
        targets[0].kill();
        targets[1].kill();
        let successor = FakeTarget::thread(1, (0, 1), 8, &[1]);
        successor.start();
        all_up(&service, &[successor.clone(), targets[2].clone()]).await;
        let node = service.map().node_named("node-1").unwrap().id;
        assert_eq!(service.map().targets_of(node).count(), 2);
        sleep(ms(3_000)).await;
        let now = status().await;
        let kinds: Vec<TroubleKind> = now.troubles.iter().map(|t| t.kind).collect();
        assert!(
            kinds.contains(&TroubleKind::DriveAbsent) && !kinds.contains(&TroubleKind::TargetGone),
            "{kinds:?}"
        );
        assert!(
            now.nodes[0].presence == Presence::Up && now.nodes[0].targets.is_empty(),
            "{:?}",
            now.nodes[0]
        );
        // Found again, it comes to the process that is there.
        successor.drives.borrow_mut().push(DriveId(2));
        successor.start();
        eventually("its target is forgotten", ms(5_000), || service.map().targets_of(node).count() == 1)
            .await;
    });
}

#[test]
fn who_would_ask_first_targets_only_and_second_targets_are_not_let_in_together() {
    Sim::new(5).block_on(async {
        let service = Service::start().await;
        let older = FakeTarget::new(2, &[3]);
        older.knows_targets.set(false);
        older.start();
        let (first, second) =
            (FakeTarget::thread(1, (0, 2), 7, &[1]), FakeTarget::thread(1, (1, 2), 7, &[2]));
        first.start();
        all_up(&service, &[older.clone(), first.clone()]).await;
        let (status, text) = join(&second).await.unwrap_err();
        assert!(status == Status::Refused && text.contains("upgrade node 'node-2' first"), "{text}");
        older.knows_targets.set(true);
        older.start();
        second.start();
        all_up(&service, &[older.clone(), first, second]).await;
        older.kill();
        older.knows_targets.set(false);
        let (status, text) = join(&older).await.unwrap_err();
        assert!(status == Status::Refused && text.contains("upgrade node 'node-2'"), "{text}");
    });
}

#[test]
fn what_cannot_be_a_target_of_a_node_is_refused_in_words() {
    Sim::new(6).block_on(async {
        let (service, targets) = of_two_and_one().await;
        for (thread, words) in
            [((2, 2), "target 2 of 2"), ((0, 65), "at most 64"), ((70, 0), "target 70 of 1")]
        {
            let (status, text) = join(&FakeTarget::thread(3, thread, 11, &[9])).await.unwrap_err();
            assert!(status == Status::Refused && text.contains(words), "{text}");
        }
        // One that comes before the first of its node is to try again.
        let (status, text) = join(&FakeTarget::thread(3, (1, 2), 11, &[9])).await.unwrap_err();
        assert!(status == Status::NotReady && text.contains("before the first target"), "{text}");
        // Another machine under the name of one that is up, with a target that the other does not have.
        let stranger = FakeTarget::thread(1, (3, 4), 12, &[9]);
        let (status, text) = join(&stranger).await.unwrap_err();
        assert!(status == Status::NotReady && text.contains("before the first target"), "{text}");
        // A process that gives a drive to two of its targets.
        let request = targets[1].join();
        let ManagerRequest::Join(mut twice) = request else { panic!("{request:?}") };
        let ManagerRequest::Join(of_first) = targets[0].join() else { panic!("it joins") };
        twice.drives.extend(of_first.drives);
        let link = connect(PeerRole::Target(Default::default())).await;
        let (answer, _) = ask(&link, &ManagerRequest::Join(twice)).await.unwrap();
        let weft_wire::control::ManagerAnswer::Joined { refused, .. } = answer else { panic!("{answer:?}") };
        assert!(refused.len() == 1 && refused[0].1.contains("given to two targets"), "{refused:?}");
        assert_eq!(service.map().nodes.keys().copied().filter(|n| *n == NodeId(99)).count(), 0);
    });
}

#[test]
fn a_node_may_have_several_targets_by_default_once_all_others_know_of_them() {
    Sim::new(1).block_on(async {
        let (service, targets, _) = fabric(3).await;
        let may = |node: &'static str| async move {
            let request = ManagerRequest::MayHaveTargets { node: node.into() };
            ask(&connect(PeerRole::Tool).await, &request).await.map(|_| ())
        };
        all_up(&service, &targets).await;
        may("node-1").await.expect("all have joined");
        may("a-new-one").await.expect("all have joined");
        // After a restart of the manager nobody has said anything yet.
        for target in &targets {
            target.kill();
        }
        service.restart().await;
        let (status, text) = may("node-1").await.expect_err("the others have not joined yet");
        assert!(status == Status::Refused && text.contains("has not said yet"), "{text}");
        targets[1].start();
        targets[2].knows_targets.set(false);
        targets[2].start();
        all_up(&service, &targets[1..]).await;
        let (_, text) = may("node-1").await.expect_err("one is of an older release");
        assert!(text.contains("node 'node-3'"), "{text}");
        targets[2].knows_targets.set(true);
        targets[2].start();
        all_up(&service, &targets[1..]).await;
        may("node-1").await.expect("it was upgraded");
    });
}
