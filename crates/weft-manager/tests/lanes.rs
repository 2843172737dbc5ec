//! Sessions with several lanes: who gets them, and what becomes of their slots (P6, P7).

use crate::harness;

use harness::*;
use std::rc::Rc;
use weft_rt::sim::Sim;
use weft_rt::{Instant, spawn};
use weft_types::AttachMode::{Exclusive, Shared};
use weft_types::limits::LANES_MAX;
use weft_types::{Session, SessionSlot, TargetId};
use weft_wire::Status;
use weft_wire::control::{ManagerRequest, TargetRequest};
use weft_wire::handshake::PeerRole;

async fn attach_with(lanes: u32) -> Result<Session, (Status, String)> {
    attach_lanes("v", Shared, false, 0, lanes).await
}

/// The slots that this target was asked to sweep.
fn swept(target: &FakeTarget) -> Vec<SessionSlot> {
    let found = std::cell::RefCell::default();
    target.asked(Instant::default(), |request| {
        if let TargetRequest::Sweep { sessions, .. } = request {
            let slots = sessions.iter().map(|(_, slot)| *slot);
            *found.borrow_mut() = slots.collect();
        }
        false
    });
    found.into_inner()
}

#[test]
fn a_session_has_as_many_slots_as_it_asks_for_and_gives_all_back() {
    Sim::new(1).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        let wide = attach_with(4).await.unwrap();
        assert_eq!(wide.lanes(), 4);
        let plain = attach_with(1).await.unwrap();
        assert!(plain.lanes() == 1 && !wide.has_slot(plain.slot));
        assert_eq!(service.map().sessions[&wide.id].lane_slots, wide.lane_slots);
        for lanes in [0, LANES_MAX as u32 + 1, 16, u32::MAX] {
            let (status, text) = attach_with(lanes).await.unwrap_err();
            assert!(status == Status::Refused && text.contains("expected 1 to 8"), "{text}");
        }
        let link = connect(PeerRole::Client).await;
        ask(&link, &ManagerRequest::Detach { session: wide.id }).await.unwrap();
        eventually("it is swept", ms(1000), || !service.map().sessions.contains_key(&wide.id)).await;
        for target in &targets {
            assert_eq!(swept(target), wide.slots().collect::<Vec<_>>());
        }
    });
}

#[test]
fn an_attach_that_fences_waits_until_all_slots_are_swept() {
    Sim::new(2).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        let wide = attach_lanes("v", Exclusive, false, 7, 3).await.unwrap();
        targets[1].holds_sweep.set(true);
        let next = spawn(attach_lanes("v", Exclusive, true, 8, 3));
        weft_rt::sleep(ms(800)).await;
        assert!(!next.is_finished() && service.map().sessions.contains_key(&wide.id));
        targets[1].holds_sweep.set(false);
        let next = next.await.unwrap().unwrap();
        assert!(next.slots().all(|slot| !wide.has_slot(slot)));
        assert_eq!(swept(&targets[1]), wide.slots().collect::<Vec<_>>());
    });
}

#[test]
fn an_attach_that_is_asked_for_again_has_the_slots_that_it_had() {
    Sim::new(3).block_on(async {
        let (_service, _targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        let first = attach_lanes("v", Exclusive, false, 7, 3).await.unwrap();
        let again = attach_lanes("v", Exclusive, false, 7, 3).await.unwrap();
        assert_eq!((first.id, first.lane_slots), (again.id, again.lane_slots));
    });
}

#[test]
fn lanes_and_targets_that_do_not_know_them_do_not_come_together() {
    Sim::new(4).block_on(async {
        let service = Service::start().await;
        let (older, newer) = (FakeTarget::new(1, &[1]), FakeTarget::new(2, &[2]));
        older.knows_lanes.set(false);
        [&older, &newer].into_iter().for_each(|target| drop(target.start()));
        all_up(&service, &[older.clone(), newer.clone()]).await;
        operate(volume_of("v", 2)).await.unwrap();
        assert_eq!(attach_with(4).await.unwrap().lanes(), 1);
        older.kill();
        older.knows_lanes.set(true);
        older.start();
        weft_rt::sleep(ms(100)).await;
        all_up(&service, &[older.clone(), newer.clone()]).await;
        let wide = attach_with(4).await.unwrap();
        assert_eq!(wide.lanes(), 4);
        older.kill();
        older.knows_lanes.set(false);
        let link = connect(PeerRole::Target(TargetId::default())).await;
        let (status, text) = ask(&link, &older.join()).await.unwrap_err();
        let says = text.contains("upgrade node 'node-1'") && text.contains("has 4 lanes");
        assert!(status == Status::Refused && says, "{text}");
        let _: &Rc<FakeTarget> = &newer;
    });
}
