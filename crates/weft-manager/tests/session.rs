//! Attach, detach, expiry: what everyone has heard before the client may go on.

use crate::harness;

use harness::*;
use std::rc::Rc;
use weft_api::{ApiAnswer, ApiRequest};
use weft_rpc::Link;
use weft_rt::sim::{Sim, heal_network, set_blocked};
use weft_rt::{Instant, now, sleep, spawn};
use weft_types::AttachMode::{Exclusive, ReadOnly, Shared};
use weft_types::{Generation, MapVersion, Role, Session, SessionId, SessionState};
use weft_wire::Status;
use weft_wire::control::{ManagerAnswer, ManagerRequest, TargetRequest};
use weft_wire::handshake::{Hello, PeerRole};

/// When a target was first asked to end, and to sweep, this session.
fn ended_and_swept(target: &FakeTarget, id: SessionId) -> (Option<Instant>, Option<Instant>) {
    let ended = target.asked(
        Instant::default(),
        |r| matches!(r, TargetRequest::EndSessions { sessions } if sessions.contains(&id)),
    );
    let is_sweep = |r: &TargetRequest| matches!(r, TargetRequest::Sweep { sessions, .. } if sessions.iter().any(|s| s.0 == id));
    (ended, target.asked(Instant::default(), is_sweep))
}

/// Every target was told of the end before any was asked to sweep.
fn assert_swept_in_order(targets: &[Rc<FakeTarget>], session: &Session) {
    let times: Vec<_> = targets.iter().map(|t| ended_and_swept(t, session.id)).collect();
    let last_end = times.iter().map(|t| t.0.expect("told of the end")).max().unwrap();
    let first_sweep = times.iter().map(|t| t.1.expect("swept")).min().unwrap();
    assert!(last_end <= first_sweep, "{times:?}");
}

#[test]
fn an_attach_that_is_asked_for_again_finds_its_own_session() {
    Sim::new(31).block_on(async {
        let (service, _targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        let first = attach_numbered("v", Exclusive, false, 7).await.unwrap();
        let again = attach_numbered("v", Exclusive, false, 7).await.unwrap();
        assert_eq!((first.id, first.generation), (again.id, again.generation));
        assert_eq!(service.map().sessions.len(), 1);
        let (status, text) = attach_numbered("v", Exclusive, false, 8).await.unwrap_err();
        assert_eq!(status, Status::Refused, "{text}");
        let (status, _) = attach_numbered("v", Shared, false, 7).await.unwrap_err();
        assert_eq!(status, Status::Refused, "it asks for something else");
        // Whose session is over gets another one.
        operate(ApiRequest::SessionEnd { session: first.id.0, dry_run: false }).await.unwrap();
        let third = attach_numbered("v", Exclusive, false, 7).await.unwrap();
        assert!(third.id > first.id && third.generation > first.generation);
        // Two that do not say a number are two.
        let plain = (attach("v", Shared, true).await.unwrap(), attach("v", Shared, false).await.unwrap());
        assert_ne!(plain.0.id, plain.1.id);
    });
}

#[test]
fn an_exclusive_attach_waits_for_adoption_and_for_the_sweep() {
    Sim::new(1).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        let first = attach("v", Exclusive, false).await.unwrap();
        assert_eq!(first.generation, Generation(2));
        let (status, text) = attach("v", Exclusive, false).await.unwrap_err();
        assert!(
            status == Status::Refused && text.contains(&format!("weft session end {}", first.id)),
            "{text}"
        );
        targets[0].holds_adoption.set(true);
        targets[1].holds_sweep.set(true);
        let second = spawn(attach("v", Exclusive, true));
        sleep(ms(800)).await;
        assert!(!second.is_finished(), "one target has not adopted the generation");
        targets[0].holds_adoption.set(false);
        sleep(ms(800)).await;
        assert!(!second.is_finished(), "the first client's writes are not swept");
        assert!(service.map().sessions.contains_key(&first.id), "nor is its slot free");
        targets[1].holds_sweep.set(false);
        let second = second.await.unwrap().unwrap();
        assert_eq!(second.generation, Generation(3));
        assert!(second.slot != first.slot && second.id > first.id);
        assert_swept_in_order(&targets, &first);
        let version = service.map().version;
        assert!(targets.iter().all(|t| t.adopted().0 + 1 >= version.0), "adopted before the answer");
        assert!(!service.map().sessions.contains_key(&first.id));
    });
}

#[test]
fn an_attach_that_is_asked_for_again_waits_for_all_that_the_first_one_waits_for() {
    Sim::new(32).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        attach("v", Exclusive, false).await.unwrap();
        targets[1].holds_sweep.set(true);
        // It takes the volume from a client that wrote alone, so it waits for the sweep of what that one
        // wrote.
        let first = spawn(attach_numbered("v", Shared, true, 7));
        sleep(ms(800)).await;
        let again = spawn(attach_numbered("v", Shared, true, 7));
        sleep(ms(800)).await;
        assert!(!first.is_finished() && !again.is_finished(), "what the client before wrote is not swept");
        targets[1].holds_sweep.set(false);
        let (first, again) = (first.await.unwrap().unwrap(), again.await.unwrap().unwrap());
        assert_eq!((first.id, first.generation), (again.id, again.generation));
        assert_eq!(service.map().sessions.len(), 1);
    });
}

#[test]
fn shared_sessions_do_not_wait_and_share() {
    Sim::new(2).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(500)).await;
        targets[0].holds_adoption.set(true);
        let a = attach("v", Shared, false).await.unwrap();
        let b = attach("v", ReadOnly, false).await.unwrap();
        assert!(a.generation == b.generation && a.slot != b.slot);
        targets[0].holds_adoption.set(false);
        let (status, _) = attach("v", Exclusive, false).await.unwrap_err();
        assert_eq!(status, Status::Refused);
        let (status, _) = attach("no-such", Shared, false).await.unwrap_err();
        assert_eq!(status, Status::NotFound);
        let Ok(ApiAnswer::Sessions { sessions }) =
            operate(ApiRequest::SessionList { volume: Some("v".into()) }).await
        else {
            panic!("sessions")
        };
        assert_eq!(sessions.iter().map(|s| s.id).collect::<Vec<_>>(), [a.id, b.id]);
        // Done, the session is ended everywhere, swept, and forgotten.
        let link = connect(PeerRole::Client).await;
        for _ in 0..2 {
            let (answer, _) = ask(&link, &ManagerRequest::Detach { session: a.id }).await.unwrap();
            assert_eq!(answer, ManagerAnswer::Done);
        }
        eventually("it is swept", ms(1000), || !service.map().sessions.contains_key(&a.id)).await;
        assert_swept_in_order(&targets, &a);
        assert!(service.map().sessions.contains_key(&b.id));
    });
}

#[test]
fn a_silent_client_expires_and_a_talking_one_does_not() {
    Sim::new(3).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        let silent = attach("v", Shared, false).await.unwrap();
        let talking = attach("v", Shared, false).await.unwrap();
        let attached = now();
        for _ in 0..8 {
            sleep(ms(5000)).await;
            touch(&[talking.id]).await.unwrap();
            let is_open = service.map().sessions.contains_key(&silent.id);
            assert_eq!(is_open, attached.elapsed() < ms(30_500), "after {:?}", attached.elapsed());
        }
        assert_swept_in_order(&targets, &silent);
        assert!(service.map().sessions.contains_key(&talking.id));
        let (status, _) = touch(&[silent.id]).await.unwrap_err();
        assert_eq!(status, Status::SessionOver);
        // A new manager process gives a full term.
        service.restart().await;
        sleep(ms(29_000)).await;
        assert!(service.map().sessions.contains_key(&talking.id));
        touch(&[talking.id]).await.unwrap();
        sleep(ms(29_000)).await;
        assert!(service.map().sessions.contains_key(&talking.id));
        sleep(ms(3_000)).await;
        assert!(!service.map().sessions.contains_key(&talking.id));
    });
}

#[test]
fn an_attach_passes_a_dead_node_once_it_is_evicted() {
    Sim::new(4).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 3)).await.unwrap();
        let first = attach("v", Exclusive, false).await.unwrap();
        targets[0].kill();
        let asked = now();
        let second = attach("v", Exclusive, true).await.unwrap();
        assert!(asked.elapsed() > ms(1500), "the dead node had a lease");
        assert!(roles(&service.map(), 1).iter().all(|r| *r == Role::Out));
        assert!(!service.map().sessions.contains_key(&first.id) && second.generation > first.generation);
        assert_swept_in_order(&targets[1..], &first);
    });
}

#[test]
fn an_attach_gives_up_when_the_last_copy_is_away_and_leaves_nothing_behind() {
    Sim::new(5).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 1)).await.unwrap();
        sleep(ms(1000)).await;
        targets[0].kill();
        let (status, text) = attach("v", Exclusive, false).await.unwrap_err();
        assert!(status == Status::NotReady && text.contains("node-1"), "{text}");
        assert!(service.map().sessions.values().all(|s| s.state == weft_types::SessionState::Over));
        targets[0].start();
        eventually("what was left is swept", ms(5000), || service.map().sessions.is_empty()).await;
        attach("v", Exclusive, false).await.unwrap();
    });
}

#[test]
fn a_replica_that_comes_back_during_a_sweep_makes_another_round() {
    Sim::new(6).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 3)).await.unwrap();
        let session = attach("v", Shared, false).await.unwrap();
        targets[0].kill();
        eventually("it is out", ms(6000), || roles(&service.map(), 1).iter().all(|r| *r == Role::Out)).await;
        targets[1].holds_sweep.set(true);
        let link = connect(PeerRole::Client).await;
        ask(&link, &ManagerRequest::Detach { session: session.id }).await.unwrap();
        sleep(ms(500)).await;
        targets[0].start();
        eventually("it is back", ms(6000), || roles(&service.map(), 1).iter().all(|r| *r == Role::Syncing))
            .await;
        assert_eq!(ended_and_swept(&targets[0], session.id), (None, None));
        targets[1].holds_sweep.set(false);
        eventually("it is swept", ms(6000), || service.map().sessions.is_empty()).await;
        assert_swept_in_order(&targets[..1], &session);
    });
}

/// The process before may have had less of what its drives hold, and what it said counts for the one after it only if that
/// says it too.
#[test]
fn a_target_that_starts_anew_during_a_sweep_is_asked_again() {
    Sim::new(9).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        let session = attach("v", Shared, false).await.unwrap();
        targets[1].holds_sweep.set(true);
        let link = connect(PeerRole::Client).await;
        ask(&link, &ManagerRequest::Detach { session: session.id }).await.unwrap();
        let is_swept = || ended_and_swept(&targets[0], session.id).1.is_some();
        eventually("one of them has swept", ms(2000), is_swept).await;
        let restarted = now();
        targets[0].start();
        sleep(ms(500)).await;
        assert!(roles(&service.map(), 1).iter().all(|r| *r == Role::InSync), "nobody was evicted");
        targets[1].holds_sweep.set(false);
        eventually("it is swept", ms(6000), || service.map().sessions.is_empty()).await;
        let is_sweep = |r: &TargetRequest| matches!(r, TargetRequest::Sweep { .. });
        assert!(targets[0].asked(restarted, is_sweep).is_some(), "the new process was asked as well");
    });
}

#[test]
fn sessions_that_were_over_are_swept_by_the_next_manager() {
    Sim::new(7).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        let session = attach("v", Shared, false).await.unwrap();
        targets[0].holds_sweep.set(true);
        let link = connect(PeerRole::Client).await;
        ask(&link, &ManagerRequest::Detach { session: session.id }).await.unwrap();
        sleep(ms(500)).await;
        service.restart().await;
        targets[0].holds_sweep.set(false);
        eventually("it is swept", ms(6000), || service.map().sessions.is_empty()).await;
    });
}

#[test]
fn a_watch_brings_the_next_map_at_once_and_is_let_go_after_ten_seconds() {
    Sim::new(8).block_on(async {
        let (service, _targets, _) = fabric(1).await;
        let link = connect(PeerRole::Client).await;
        let (answer, map) = ask(&link, &ManagerRequest::WatchMap { have: MapVersion(0) }).await.unwrap();
        let have = service.map().version;
        assert!(answer == ManagerAnswer::Map { version: have } && !map.is_empty());
        let asked = now();
        let (_, map) = ask(&link, &ManagerRequest::WatchMap { have }).await.unwrap();
        assert!(map.is_empty() && asked.elapsed() >= ms(10_000) && asked.elapsed() < ms(10_100));
        let watching: Link = link.clone();
        let watch = spawn(async move { ask(&watching, &ManagerRequest::WatchMap { have }).await });
        sleep(ms(100)).await;
        operate(volume_of("v", 1)).await.unwrap();
        let asked = now();
        let (answer, map) = watch.await.unwrap().unwrap();
        assert!(answer == ManagerAnswer::Map { version: service.map().version } && !map.is_empty());
        assert!(asked.elapsed() < ms(10));
    });
}

/// What a client hears of a session of its own that is over.
async fn why_over(session: &Session) -> String {
    let (status, text) = touch(&[session.id]).await.unwrap_err();
    assert_eq!(status, Status::SessionOver);
    text
}

#[test]
fn a_client_hears_why_its_session_is_over() {
    Sim::new(13).block_on(async {
        let (service, _targets, _) = fabric(2).await;
        for name in ["v", "w"] {
            operate(volume_of(name, 2)).await.unwrap();
        }
        let by_hand = attach("v", Shared, false).await.unwrap();
        operate(ApiRequest::SessionEnd { session: by_hand.id.0, dry_run: false }).await.unwrap();
        let why = why_over(&by_hand).await;
        assert!(why.contains("test ended it") && why.contains("weft session end"), "{why}");

        let detached = attach("v", Shared, false).await.unwrap();
        let link = connect(PeerRole::Client).await;
        ask(&link, &ManagerRequest::Detach { session: detached.id }).await.unwrap();
        let why = why_over(&detached).await;
        assert!(why.contains("detached"), "{why}");

        let first = attach("v", Exclusive, false).await.unwrap();
        let second = attach("v", Exclusive, true).await.unwrap();
        let why = why_over(&first).await;
        assert!(why.contains("client test") && why.contains(&second.id.to_string()), "{why}");
        sleep(ms(40_000)).await;
        let why = why_over(&second).await;
        assert!(why.contains("not heard of") && why.contains("30 s"), "{why}");
        let why = why_over(&first).await;
        assert!(why.contains("client test"), "it is remembered after the sweep: {why}");

        let deleted = attach("w", Shared, false).await.unwrap();
        let delete = ApiRequest::VolumeDelete { name: "w".into(), force: true, dry_run: false };
        operate(delete).await.unwrap();
        let why = why_over(&deleted).await;
        assert!(why.contains("volume 'w' was deleted"), "{why}");

        // What only the process before knew, is in the events.
        service.restart().await;
        let why = why_over(&first).await;
        assert!(why.contains("weft events"), "{why}");
        assert!(events().await.iter().any(|e| e.what == "close-session" && e.why.contains("test ended it")));
    });
}

#[test]
fn a_client_from_before_a_recovery_hears_of_it() {
    Sim::new(14).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        let session = attach("v", Shared, false).await.unwrap();
        all_up(&service, &targets).await;
        targets.iter().for_each(|t| t.kill());
        service.kill();
        let recovered = weft_manager::recover(vec![service.map()], &[]).unwrap().map;
        weft_manager::put_map(&service.store, &recovered).await.unwrap();
        service.restart().await;
        let why = why_over(&session).await;
        assert!(why.contains("recovered") && why.contains("attach"), "{why}");
    });
}

/// A client that says again and again that its sessions are alive, to whichever manager takes connections.
async fn keep_touching(id: SessionId) {
    loop {
        let hello = Hello::new(PeerRole::Client, None, "client");
        if let Ok(link) = Link::connect(&manager_addr(), &hello).await {
            let touch = ManagerRequest::Touch { sessions: vec![id], silent: vec![], heard: vec![] };
            let _ = ask(&link, &touch).await;
        }
        sleep(ms(5_000)).await;
    }
}

fn is_open(service: &Service, id: SessionId) -> bool {
    service.map().sessions.get(&id).is_some_and(|s| s.state == SessionState::Open)
}

#[test]
fn a_manager_that_stood_still_ends_no_session_and_suspects_nobody() {
    Sim::new(5).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        let alive = attach("v", Shared, false).await.unwrap();
        let dead = attach("v", Shared, false).await.unwrap();
        spawn(keep_touching(alive.id));
        sleep(ms(12_000)).await;
        for stands_still_ms in [1_000, 3_000, 45_000, 90_000] {
            service.pause();
            sleep(ms(stands_still_ms)).await;
            service.resume();
            sleep(ms(3_000)).await;
            assert!(is_open(&service, alive.id), "after {stands_still_ms} ms");
            assert!(roles(&service.map(), 1).iter().all(|role| *role == Role::InSync));
        }
        let told = events().await;
        assert!(told.iter().all(|e| e.what != "node-suspected"), "{told:#?}");
        assert!(told.iter().any(|e| e.what == "manager-stalled"), "{told:#?}");
        // It has heard of nobody for all that time, and still counts silence.
        let is_over = || !service.map().sessions.contains_key(&dead.id);
        eventually("the silent session is over", ms(31_000), is_over).await;
        assert!(is_open(&service, alive.id));
        service.pause();
        sleep(ms(10_000)).await;
        targets[0].kill();
        sleep(ms(10_000)).await;
        service.resume();
        eventually("the dead node is evicted", ms(6_000), || roles(&service.map(), 1).contains(&Role::Out))
            .await;
    });
}

#[test]
fn a_client_that_only_targets_hear_keeps_its_session_while_nobody_needs_it_gone() {
    Sim::new(6).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        let session = attach("v", Exclusive, false).await.unwrap();
        let serve = |serves: bool| {
            let last = (!serves).then(now);
            for target in &targets {
                target.serves_sessions.borrow_mut().insert(session.id, last);
            }
        };
        serve(true);
        sleep(ms(20_000)).await;
        assert_eq!(
            attach("v", Exclusive, false).await.unwrap_err().0,
            Status::Refused,
            "its term is not over"
        );
        sleep(ms(60_000)).await;
        assert!(is_open(&service, session.id), "targets serve it");
        serve(false);
        sleep(ms(25_000)).await;
        assert!(is_open(&service, session.id), "they did until a moment ago");
        let is_over = || !service.map().sessions.contains_key(&session.id);
        eventually("nobody has heard of it for a term", ms(10_000), is_over).await;

        // One that the manager has not heard of for a term gives way to an attach that it is in the way of.
        let session = attach("v", Exclusive, false).await.unwrap();
        for target in &targets {
            target.serves_sessions.borrow_mut().insert(session.id, None);
        }
        sleep(ms(32_000)).await;
        assert!(is_open(&service, session.id));
        let next = attach("v", Exclusive, false).await.unwrap();
        assert!(next.generation > session.generation && !service.map().sessions.contains_key(&session.id));
    });
}

#[test]
fn no_session_ends_for_silence_while_no_target_can_say_whether_it_serves_it() {
    Sim::new(7).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        let session = attach("v", Shared, false).await.unwrap();
        sleep(ms(20_000)).await;
        for target in &targets {
            set_blocked(target.host, manager_host(), true);
            set_blocked(manager_host(), target.host, true);
        }
        sleep(ms(60_000)).await;
        assert!(is_open(&service, session.id), "the manager may be cut off from everybody");
        heal_network();
        let is_over = || !service.map().sessions.contains_key(&session.id);
        eventually("they say that they do not", ms(10_000), is_over).await;
    });
}
