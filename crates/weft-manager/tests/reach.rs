//! Clients that cannot reach a node which the manager reaches: its members leave their groups, and come back.

use crate::harness;

use harness::*;
use std::rc::Rc;
use weft_api::{Presence, Severity, TroubleKind};
use weft_rt::sim::Sim;
use weft_rt::{Instant, now, sleep, spawn};
use weft_types::{AttachMode, DriveId, FabricMap, Group, Role, SessionId};
use weft_wire::control::TargetRequest;

/// A client that says again and again what it reaches, until it is dropped.
struct Client {
    session: SessionId,
    nodes: Vec<u32>,
    says: std::cell::RefCell<Option<weft_rt::JoinHandle<()>>>,
}

impl Client {
    async fn attach(service: &Service) -> Client {
        let session = attach("v", AttachMode::Shared, false).await.expect("it attaches").id;
        let client = Client { session, nodes: nodes_of(service), says: Default::default() };
        client.misses(&[]);
        client
    }

    /// From now on it misses these nodes, and hears of all others.
    fn misses(&self, missed: &[u32]) {
        let (from, session, missed): (Instant, _, Vec<u32>) = (now(), self.session, missed.to_vec());
        let others: Vec<u32> = self.nodes.iter().copied().filter(|n| !missed.contains(n)).collect();
        let says = spawn(async move {
            loop {
                let age = from.elapsed().as_millis() as u64;
                let silent: Vec<(u32, u64)> = missed.iter().map(|n| (*n, age)).collect();
                let mut heard: Vec<(u32, u64)> = others.iter().map(|n| (*n, 5)).collect();
                heard.extend(missed.iter().map(|n| (*n, age + 10)));
                let _ = tell_reach(&[session], &silent, &heard).await;
                sleep(ms(400)).await;
            }
        });
        if let Some(before) = self.says.borrow_mut().replace(says) {
            before.abort();
        }
    }
}

/// The numbers of all nodes.
fn nodes_of(service: &Service) -> Vec<u32> {
    service.map().nodes.keys().map(|node| node.0).collect()
}

/// A fabric of four nodes with a volume of two copies, the node of the first member of some group, and
/// its drive.
async fn scene() -> (Service, Vec<Rc<FakeTarget>>, Vec<Rc<ProcessView>>, u32, u128) {
    let (service, targets, views) = fabric(4).await;
    operate(volume_of("v", 2)).await.expect("it is made");
    all_up(&service, &targets).await;
    let map = service.map();
    let volume = map.volume_named("v").expect("it was made");
    let drive = map.groups[&volume.spans[0].groups[0]].slots[0].drive;
    let node = map.drives[&drive].node.0;
    (service, targets, views, node, drive.0)
}

fn name_of(service: &Service, node: u32) -> String {
    service.map().nodes[&weft_types::NodeId(node)].name.clone()
}

/// The groups of the volume with a member on this drive.
fn groups_on(map: &FabricMap, drive: u128) -> Vec<Group> {
    let volume = map.volume_named("v").expect("it was made");
    let used = volume.spans.iter().flat_map(|s| &s.groups);
    used.map(|g| map.groups[g].clone()).filter(|g| g.slot_of(DriveId(drive)).is_some()).collect()
}

/// Whether the drive has this role in all groups of the volume, and is in-sync in all others.
fn all_are(service: &Service, drive: u128, role: Role) -> bool {
    let map = service.map();
    let (drive, used) = (DriveId(drive), groups_on(&map, drive));
    let has = |g: &Group, role| g.slot_of(drive).is_none_or(|s| s.role == role);
    let others = map.groups.values().filter(|g| used.iter().all(|u| u.id != g.id));
    used.iter().all(|g| has(g, role)) && { others }.all(|g| has(g, Role::InSync))
}

#[test]
fn what_the_only_client_cannot_reach_leaves_without_a_wait_and_comes_back() {
    Sim::new(1).block_on(async {
        let (service, targets, _views, node, drive) = scene().await;
        let client = Client::attach(&service).await;
        sleep(ms(1_000)).await;
        let cut = now();
        client.misses(&[node]);
        sleep(ms(1_500)).await;
        let early = status().await;
        let waiting = trouble(&early, TroubleKind::ClientCutOff);
        assert_eq!(waiting.severity, Severity::Degraded);
        assert!(
            waiting.what.contains("'test'")
                && waiting.what.contains(&format!("'{}'", name_of(&service, node))),
            "{waiting:?}"
        );
        assert!(waiting.doing[0].what.contains("wait") && waiting.doing[0].wait_ms.is_some(), "{waiting:?}");
        assert!(all_are(&service, drive, Role::InSync));
        eventually("it is out", ms(2_000), || all_are(&service, drive, Role::Out)).await;
        assert!((ms(2_500)..ms(3_200)).contains(&cut.elapsed()), "{:?}", cut.elapsed());
        // Its lease went on, and nobody had to promise anything.
        let late = status().await;
        assert!(late.nodes.iter().all(|n| n.presence == Presence::Up));
        let is_promise = |r: &TargetRequest| matches!(r, TargetRequest::StopVouching { .. });
        assert!(targets.iter().all(|t| t.asked(cut, is_promise).is_none()));
        let left = trouble(&late, TroubleKind::ClientCutOff);
        assert!(left.groups > 0 && left.doing[0].what.contains("left out"), "{left:?}");
        let kinds = events_named;
        assert_eq!(kinds("client-cut-off").await, 1);
        assert_eq!((kinds("demote").await, kinds("depart").await), (1, 1));

        sleep(ms(20_000)).await;
        assert!(all_are(&service, drive, Role::Out), "it is not taken back while the report stands");
        client.misses(&[]);
        let healed = now();
        sleep(ms(1_000)).await;
        assert_eq!(kinds("client-reaches-again").await, 1);
        assert!(trouble(&status().await, TroubleKind::ClientCutOff).doing[0].what.contains("taken back"));
        eventually("it is back", ms(12_000), || all_are(&service, drive, Role::Syncing)).await;
        assert!((ms(10_000)..ms(11_500)).contains(&healed.elapsed()), "{:?}", healed.elapsed());
        assert!(!status().await.troubles.iter().any(|t| t.kind == TroubleKind::ClientCutOff));
    });
}

async fn events_named(what: &'static str) -> usize {
    events().await.iter().filter(|e| e.what == what).count()
}

#[test]
fn nothing_departs_before_its_target_knows_that_it_serves_no_reads() {
    Sim::new(2).block_on(async {
        let (service, targets, views, node, drive) = scene().await;
        let client = Client::attach(&service).await;
        sleep(ms(500)).await;
        let name = name_of(&service, node);
        let at = targets.iter().position(|t| t.name == name).expect("it is a target");
        let (victim, view) = (&targets[at], &views[at]);
        victim.holds_adoption.set(true);
        client.misses(&[node]);
        eventually("it is demoted", ms(3_500), || all_are(&service, drive, Role::Syncing)).await;
        let group = groups_on(&service.map(), drive)[0].id;
        // It has not heard of it, and still answers reads: so it takes part in every write.
        let from = now();
        while view.serves(group) {
            assert!(all_are(&service, drive, Role::Syncing));
            if from.elapsed() > ms(1_500) {
                break;
            }
            sleep(ms(20)).await;
        }
        victim.holds_adoption.set(false);
        eventually("it departs", ms(3_000), || all_are(&service, drive, Role::Out)).await;
        assert!(!view.serves(group));
    });
}

#[test]
fn one_client_of_two_is_believed_later_than_both() {
    for both in [false, true] {
        Sim::new(3).block_on(async move {
            let (service, _targets, _views, node, drive) = scene().await;
            let first = Client::attach(&service).await;
            let link = connect(weft_wire::handshake::PeerRole::Client).await;
            let request = weft_wire::control::ManagerRequest::Attach {
                volume: "v".into(),
                mode: AttachMode::Shared,
                preempt: false,
                client: "other".into(),
                follows: None,
                number: 0,
                lanes: 1,
                kind: Default::default(),
                server: None,
            };
            let Ok((weft_wire::control::ManagerAnswer::Attached { session, .. }, _)) =
                ask(&link, &request).await
            else {
                panic!("it attaches");
            };
            let second = Client { session: session.id, nodes: nodes_of(&service), says: Default::default() };
            second.misses(&[]);
            sleep(ms(500)).await;
            let cut = now();
            first.misses(&[node]);
            if both {
                second.misses(&[node]);
            }
            let least = if both { ms(2_500) } else { ms(10_000) };
            eventually("it is out", least + ms(1_000), || all_are(&service, drive, Role::Out)).await;
            assert!(cut.elapsed() >= least, "{both}: {:?}", cut.elapsed());
        });
    }
}
