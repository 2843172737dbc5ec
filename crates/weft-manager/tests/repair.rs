//! What people can do about faults: the check, sessions of clients that have died, settings, and losses.

use crate::harness;

use harness::*;
use std::rc::Rc;
use weft_api::{ApiAnswer, ApiRequest, CheckInfo, CheckSeverity, ErrorCode, SettingsWish};
use weft_rt::sim::Sim;
use weft_rt::{now, sleep, spawn};
use weft_types::{AttachMode, DriveId, DriveState, Role, SessionId, SessionSlot, TargetId, Version};
use weft_wire::Status;
use weft_wire::control::{self, Holding, ManagerRequest};
use weft_wire::handshake::PeerRole;

async fn check() -> CheckInfo {
    match operate(ApiRequest::FabricCheck {}).await {
        Ok(ApiAnswer::Check(check)) => *check,
        other => panic!("{other:?}"),
    }
}

fn repair(names: &[&str], destroyed: &[DriveId], dry_run: bool) -> ApiRequest {
    ApiRequest::VolumeRepair {
        names: names.iter().map(|n| (*n).to_owned()).collect(),
        accept_data_loss: true,
        destroyed: destroyed.iter().map(ToString::to_string).collect(),
        older: vec![],
        dry_run,
    }
}

#[test]
fn a_sound_fabric_is_sound_and_each_fault_is_told_with_what_to_do() {
    Sim::new(1).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        all_up(&service, &targets).await;
        let found = check().await;
        assert!(found.sound && found.findings.is_empty(), "{:?}", found.findings);
        assert_eq!((found.nodes_asked, found.drives_compared), (3, 3));

        // Groups that the map lists and a drive does not know, and the other way round.
        let mut changed = (**targets[0].map.borrow().as_ref().unwrap()).clone();
        let lacking = *changed.groups.iter().find(|(_, g)| g.slot_of(DriveId(1)).is_some()).unwrap().0;
        changed.groups.remove(&lacking);
        let map = targets[0].map.replace(Some(std::rc::Rc::new(changed)));
        let found = check().await;
        let told = found.findings.iter().find(|f| f.what.contains(&format!("group {lacking} lists it")));
        assert!(
            !found.sound && told.is_some_and(|f| f.severity == CheckSeverity::Fault),
            "{:?}",
            found.findings
        );
        *targets[0].map.borrow_mut() = map;
        assert!(check().await.sound);

        // A node that does not answer is not taken for sound.
        targets[2].kill();
        sleep(ms(5_000)).await;
        let found = check().await;
        let of_node: Vec<_> = found.findings.iter().filter(|f| f.subject == "node 'node-3'").collect();
        assert!(!found.sound && of_node.len() == 1, "{:?}", found.findings);
        assert!(found.findings.iter().all(|f| !f.todo.is_empty()));
    });
}

#[test]
fn a_refused_attach_says_until_when_and_how_to_end_it_earlier() {
    Sim::new(2).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        all_up(&service, &targets).await;
        let dead = attach("v", AttachMode::Exclusive, false).await.unwrap();
        sleep(ms(10_000)).await;
        let (status, text) = attach("v", AttachMode::Exclusive, false).await.unwrap_err();
        assert_eq!(status, Status::Refused);
        let end = format!("weft session end {}", dead.id);
        assert!(
            text.contains(&end) && text.contains("10.0 s ago") && text.contains("it is over in 20.0 s"),
            "{text}"
        );
        let ask = |session: SessionId, dry_run| ApiRequest::SessionEnd { session: session.0, dry_run };
        operate(ask(dead.id, true)).await.unwrap();
        assert!(attach("v", AttachMode::Exclusive, false).await.is_err(), "a dry run ends nothing");
        operate(ask(dead.id, false)).await.unwrap();
        attach("v", AttachMode::Exclusive, false).await.unwrap();
        let error = operate(ask(SessionId(999_999), false)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::NotFound);
    });
}

#[test]
fn a_time_before_rebuilds_has_bounds() {
    Sim::new(3).block_on(async {
        let (service, _, _) = fabric(1).await;
        let before = service.map().version;
        for ms in [0, 999, u64::MAX] {
            let error = operate(ApiRequest::Settings(SettingsWish::rebuild_after_ms(ms))).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::Invalid);
            assert!(error.message.contains("1000") && error.hint.is_some(), "{error:?}");
        }
        assert_eq!(service.map().version, before);
        operate(ApiRequest::Settings(SettingsWish::rebuild_after_ms(1_000))).await.unwrap();
        assert_eq!(service.map().durations.rebuild_after_ms, 1_000);
    });
}

#[test]
fn a_drive_that_comes_back_while_the_others_are_looked_at_is_not_destroyed() {
    Sim::new(11).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 1)).await.unwrap();
        all_up(&service, &targets).await;
        targets[0].kill();
        sleep(ms(10_000)).await;
        operate(repair(&["v"], &[DriveId(1)], true)).await.expect("it is gone, as far as anyone knows");
        let version = service.map().version;
        targets[1].holds_inventory.set(true);
        let repairing = spawn(operate(repair(&["v"], &[DriveId(1)], false)));
        sleep(ms(1_000)).await;
        let _back = targets[0].start();
        sleep(ms(3_000)).await;
        assert!(!repairing.is_finished(), "the other drive has not said what it holds");
        assert_eq!(service.map().version, version, "a drive that comes back as it went needs no new map");
        targets[1].holds_inventory.set(false);
        let error = repairing.await.unwrap().unwrap_err();
        assert!(error.code == ErrorCode::Refused, "it serves: {error:?}");
        assert_eq!(service.map().drives[&DriveId(1)].state, DriveState::Active);
    });
}

#[test]
fn nothing_is_declared_destroyed_that_serves_or_is_named_by_half() {
    Sim::new(4).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        operate(volume_of("w", 2)).await.unwrap();
        all_up(&service, &targets).await;
        let error = operate(repair(&["v"], &[], false)).await.unwrap_err();
        assert!(error.message.contains("nothing to accept"), "{error:?}");
        let both = [DriveId(1), DriveId(2)];
        let error = operate(repair(&["v"], &both, false)).await.unwrap_err();
        assert!(error.code == ErrorCode::Refused, "both serve: {error:?}");
        targets[0].kill();
        targets[1].kill();
        let half = ApiRequest::VolumeRepair {
            names: vec!["v".into()],
            accept_data_loss: true,
            destroyed: vec![DriveId(1).to_string()[..8].to_owned()],
            older: vec![],
            dry_run: false,
        };
        assert_eq!(operate(half).await.unwrap_err().code, ErrorCode::NotFound);
        // Too early: their leases may still run.
        let error = operate(repair(&["v", "w"], &both, false)).await.unwrap_err();
        assert_ne!(error.code, ErrorCode::Internal);
        assert!(service.map().drives.values().all(|d| d.state != DriveState::Destroyed));
        sleep(ms(6_000)).await;
        let error = operate(repair(&["v"], &both, true)).await.unwrap_err();
        assert!(error.message.contains("other volumes would lose data as well: w"), "{error:?}");
        let before = service.map();
        let Ok(ApiAnswer::Loss(info)) = operate(repair(&["v", "w"], &both, true)).await else { panic!() };
        assert!(info.dry_run && info.groups.iter().all(|g| g.empty && g.survivor == DriveId(3)));
        assert_eq!(service.map(), before, "a dry run changes nothing");
        let Ok(ApiAnswer::Loss(info)) = operate(repair(&["v", "w"], &both, false)).await else { panic!() };
        assert!(info.lost_bytes_max > 0);
        let map = service.map();
        assert!(both.iter().all(|d| map.drives[d].state == DriveState::Destroyed));
        // The one comes back: its node joins, the drive is refused, with the reason.
        targets[0].start();
        sleep(ms(6_000)).await;
        assert!(roles(&service.map(), 1).iter().all(|r| *r == weft_types::Role::Out));
        let reasons = status().await.reasons.join("\n");
        assert!(reasons.contains("was declared destroyed"), "{reasons}");
    });
}

/// What a person is told first leads on: the number of groups, and a command that is not refused.
#[test]
fn a_loss_is_counted_in_groups_and_its_hint_names_all_volumes_that_lose_data() {
    Sim::new(12).block_on(async {
        let service = Service::start().await;
        let drives: [&[u128]; 3] = [&[1, 11], &[2, 12], &[3]];
        let targets: Vec<Rc<FakeTarget>> = (1..).zip(drives).map(|(n, d)| FakeTarget::new(n, d)).collect();
        targets.iter().for_each(|t| drop(t.start()));
        all_up(&service, &targets).await;
        for (name, copies) in [("v", 2), ("w", 2), ("x", 3)] {
            let mut wish = volume_of(name, copies);
            if let ApiRequest::VolumeCreate { size_bytes, thin, .. } = &mut wish {
                (*size_bytes, *thin) = (8 << 30, true);
            }
            operate(wish).await.unwrap();
        }
        all_up(&service, &targets).await;
        targets[0].kill();
        targets[1].kill();
        sleep(ms(10_000)).await;
        let map = service.map();
        let dead = [1, 2, 11, 12].map(DriveId);
        let lost = |name: &str| {
            let groups = map.volume_named(name).unwrap().spans.iter().flat_map(|s| &s.groups);
            let groups: std::collections::BTreeSet<_> = groups.collect();
            groups.into_iter().filter(|g| map.groups[*g].read_set().all(|d| dead.contains(&d))).count()
        };
        assert!(lost("v") > 2 && lost("w") > 2 && lost("x") == 0);
        let ask = ApiRequest::VolumeRepair {
            names: vec!["v".into()],
            accept_data_loss: false,
            destroyed: vec![],
            older: vec![],
            dry_run: false,
        };
        let error = operate(ask).await.unwrap_err();
        let count = format!("the last up-to-date copy of {} groups", lost("v"));
        assert!(error.message.contains(&count), "{error:?}");
        assert!(error.message.contains("other volumes") && error.message.contains('w'), "{error:?}");
        let hint = error.hint.unwrap();
        let command = "weft volume repair v w --accept-data-loss --dry-run";
        assert!(hint.contains(command), "{hint}");
        let named: Vec<DriveId> =
            dead.into_iter().filter(|d| hint.contains(&format!("--destroyed {d}"))).collect();
        let Ok(ApiAnswer::Loss(info)) = operate(repair(&["v", "w"], &named, true)).await else {
            panic!(
                "the command of the hint was refused: {:?}",
                operate(repair(&["v", "w"], &named, true)).await
            )
        };
        assert_eq!(info.volumes, ["v", "w"]);
    });
}

/// Versions go ahead of the data when a copy is made: the copy with the newest may hold next to nothing.
#[test]
fn a_group_goes_on_with_the_copy_that_has_the_data_not_with_the_one_that_has_the_versions() {
    Sim::new(5).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 3)).await.unwrap();
        all_up(&service, &targets).await;
        targets[1].kill();
        targets[2].kill();
        let is_out = |drive| roles(&service.map(), drive).iter().all(|r| *r == Role::Out);
        eventually("two drives are behind", ms(6_000), || is_out(2) && is_out(3)).await;
        for (target, readable, newest) in [(&targets[1], 3_000, 7), (&targets[2], 40, 9)] {
            let drive = target.drives.borrow()[0];
            let held = Holding {
                chunks: 100,
                blocks: 3_000,
                readable: Some(readable),
                zeroes: Some(0),
                newest: Version::new(newest, SessionSlot(1)),
                verified_below: None,
            };
            target.holdings.borrow_mut().insert(drive, held);
            target.start();
        }
        let is_back = |drive| roles(&service.map(), drive).iter().all(|r| *r == Role::Syncing);
        eventually("they come back", ms(6_000), || is_back(2) && is_back(3)).await;
        targets[0].kill();
        sleep(ms(6_000)).await;
        let Ok(ApiAnswer::Loss(info)) = operate(repair(&["v"], &[DriveId(1)], true)).await else { panic!() };
        assert!(!info.groups.is_empty() && info.groups.iter().all(|g| g.survivor == DriveId(2)), "{info:?}");
        let hollow = info.groups[0].copies.iter().find(|c| c.drive == DriveId(3)).unwrap();
        assert_eq!(hollow.bytes, Some(40 * 4096), "what can be read");
    });
}

/// What a target says that was stopped in order, over a connection of its own.
async fn last_word(target: &FakeTarget, node: TargetId, commits: &[(u128, u64)]) -> Result<(), Status> {
    let link = connect(PeerRole::Target(node)).await;
    let incarnation = target.incarnation.get();
    let commits = commits.iter().map(|(d, c)| (DriveId(*d), *c)).collect();
    let said = ask(&link, &ManagerRequest::Stopped { target: node, incarnation, commits }).await;
    said.map(|_| ()).map_err(|(status, _)| status)
}

/// Two nodes with a volume, whose drives are at commit 100, as renewals have told; both are stopped.
async fn stopped_at_100() -> (Service, Vec<Rc<FakeTarget>>, Vec<TargetId>) {
    let (service, targets, _) = fabric(2).await;
    operate(volume_of("v", 2)).await.unwrap();
    for target in &targets {
        let drive = target.drives.borrow()[0];
        target.commits.borrow_mut().insert(drive, 100);
        target.start();
    }
    all_up(&service, &targets).await;
    sleep(ms(6_000)).await;
    targets.iter().for_each(|t| t.kill());
    let nodes = targets.iter().map(|t| first_target(&service.map(), &t.name)).collect();
    (service, targets, nodes)
}

#[test]
fn the_last_word_of_a_target_is_kept_before_it_is_answered() {
    for (said, seed) in [(Some(101), 6), (None, 7)] {
        Sim::new(seed).block_on(async move {
            let (service, targets, nodes) = stopped_at_100().await;
            if let Some(commit) = said {
                assert_eq!(last_word(&targets[0], nodes[0], &[(1, commit)]).await, Ok(()));
            }
            // The manager dies at once, and what it had only in its memory is gone.
            service.restart().await;
            let view = targets[0].start();
            targets[1].start();
            let group = *service.map().groups.keys().next().unwrap();
            let is_trusted = || roles(&service.map(), 1).contains(&Role::InSync);
            let began = now();
            while began.elapsed() < ms(8_000) {
                let refused = !view.serves(group) || !is_trusted();
                assert!(said.is_none() || refused, "it holds less than it had said, and serves");
                sleep(ms(20)).await;
            }
            let events = events().await;
            let told = events.iter().any(|e| e.what == "drive-refused" && e.why.contains("it was at 101"));
            assert_eq!((told, view.serves(group)), (said.is_some(), said.is_none()));
        });
    }
}

#[test]
fn a_last_word_counts_only_from_whom_it_concerns_and_once_it_is_kept() {
    Sim::new(8).block_on(async {
        let (service, targets, nodes) = stopped_at_100().await;
        let kept = || {
            let note =
                weft_manager::at_once(weft_manager::load_journal(&service.store)).unwrap().commits.unwrap();
            let all: Vec<(DriveId, u64)> = control::decode(&note).unwrap();
            all.into_iter().find(|(d, _)| *d == DriveId(1)).map(|(_, commit)| commit)
        };
        // Another node's drives are not its own, and one that was restarted since knows better.
        last_word(&targets[1], nodes[1], &[(1, 200)]).await.unwrap();
        assert_eq!(kept(), Some(100));
        let own = targets[0].incarnation.replace(77);
        assert_eq!(last_word(&targets[0], nodes[0], &[(1, 200)]).await, Err(Status::NotFound));
        assert_eq!(kept(), Some(100));
        targets[0].incarnation.set(own);
        // A store that refuses is told, and tried again by itself.
        service.store.set_broken(true);
        assert_eq!(last_word(&targets[0], nodes[0], &[(1, 101)]).await, Err(Status::Failed));
        service.store.set_broken(false);
        assert_eq!(kept(), Some(100));
        sleep(ms(6_000)).await;
        assert_eq!(kept(), Some(101));
        // A number that was heard before never goes down again.
        last_word(&targets[0], nodes[0], &[(1, 50)]).await.unwrap();
        assert_eq!(kept(), Some(101));
        // A manager that was restarted has not heard of the target, and believes it.
        service.restart().await;
        last_word(&targets[0], nodes[0], &[(1, 102)]).await.unwrap();
        assert_eq!(kept(), Some(102));
    });
}

/// A manager that has just started hears of the stop first, over a connection of its own, and of the join
/// after it.
#[test]
fn a_join_that_arrives_after_the_last_word_of_its_process_is_refused() {
    Sim::new(10).block_on(async {
        let (service, targets, nodes) = stopped_at_100().await;
        service.restart().await;
        let join = targets[0].join();
        last_word(&targets[0], nodes[0], &[(1, 101)]).await.unwrap();
        let late = connect(PeerRole::Target(nodes[0])).await;
        let (status, why) = ask(&late, &join).await.unwrap_err();
        assert!(status == Status::NotReady && why.contains("has stopped"), "{status}: {why}");
        assert!(events().await.iter().all(|e| e.what != "drive-refused"), "its drive is no older copy");
        // The process that follows holds what was said.
        targets[0].commits.borrow_mut().insert(DriveId(1), 101);
        targets[1].start();
        let view = targets[0].start();
        let group = *service.map().groups.keys().next().unwrap();
        eventually("it serves again", ms(8_000), || view.serves(group)).await;
    });
}

#[test]
fn an_older_copy_that_was_accepted_stays_so_whenever_the_manager_dies() {
    Sim::new(9).block_on(async {
        let (service, targets, nodes) = stopped_at_100().await;
        targets[0].commits.borrow_mut().insert(DriveId(1), 99);
        service.restart().await;
        targets[0].start();
        let accept = ApiRequest::VolumeRepair {
            names: vec!["v".into()],
            accept_data_loss: true,
            destroyed: vec![DriveId(2).to_string()],
            older: vec![DriveId(1).to_string()],
            dry_run: true,
        };
        let began = now();
        while let Err(error) = operate(accept.clone()).await {
            assert!(began.elapsed() < ms(20_000), "{error:?}");
            sleep(ms(100)).await;
        }
        // Something was kept just now, so the next time would be seconds away; and the manager dies at once.
        last_word(&targets[1], nodes[1], &[(2, 103)]).await.unwrap();
        let ApiRequest::VolumeRepair { names, destroyed, older, .. } = accept else { unreachable!() };
        operate(ApiRequest::VolumeRepair { names, accept_data_loss: true, destroyed, older, dry_run: false })
            .await
            .unwrap();
        service.restart().await;
        let group = *service.map().groups.keys().next().unwrap();
        let view = targets[0].start();
        eventually("what was accepted serves", ms(10_000), || view.serves(group)).await;
    });
}

/// A lost drive's groups without any volume can be rebuilt from nowhere, and nobody misses them: they must
/// not keep the drive listed for ever.
#[test]
fn groups_of_no_volume_are_begun_anew_on_demand() {
    Sim::new(6).block_on(async {
        let (service, targets, _) = fabric(4).await;
        operate(volume_of("v", 2)).await.unwrap();
        all_up(&service, &targets).await;
        operate(ApiRequest::VolumeDelete { name: "v".into(), force: false, dry_run: false }).await.unwrap();
        eventually("the volume is gone", ms(10_000), || service.map().volumes.is_empty()).await;
        let nothing = operate(repair(&[], &[], true)).await.unwrap_err();
        assert!(nothing.message.contains("there is nothing to accept"), "{nothing:?}");
        let both = [DriveId(1), DriveId(2)];
        for target in &targets[..2] {
            target.kill();
        }
        sleep(ms(6_000)).await;
        let of_both = |map: &weft_types::FabricMap| {
            map.groups.values().filter(|g| g.read_set().all(|d| both.contains(&d))).count()
        };
        assert!(of_both(&service.map()) > 0, "some groups are on these two alone");
        let error = operate(repair(&[], &[], false)).await.unwrap_err();
        let named = both.map(|d| format!("--destroyed {d}")).join(" ");
        assert!(error.code == ErrorCode::Refused && error.hint.unwrap().contains(&named));
        let Ok(ApiAnswer::Loss(info)) = operate(repair(&[], &both, false)).await else { panic!() };
        assert!(info.volumes.is_empty() && info.lost_bytes_max == 0 && !info.groups.is_empty(), "{info:?}");
        assert_eq!(of_both(&service.map()), 0);
        let is_out = || service.map().groups.values().all(|g| both.iter().all(|d| g.slot_of(*d).is_none()));
        eventually("their groups are rebuilt elsewhere", ms(30_000), is_out).await;
        for drive in both {
            let remove = ApiRequest::DriveRemove { id: drive.to_string(), device: false, dry_run: false };
            operate(remove).await.expect("nothing is on it any more");
        }
    });
}

#[test]
fn a_drive_that_holds_less_than_it_had_is_refused_until_it_is_out_of_its_groups() {
    Sim::new(5).block_on(async {
        // Everyone is stopped, also the manager; one drive comes back as it was before.
        let (service, targets, _) = stopped_at_100().await;
        targets[0].commits.borrow_mut().insert(DriveId(1), 99);
        service.restart().await;
        let behind = targets[0].start();
        targets[1].start();
        let group = *service.map().groups.keys().next().unwrap();
        let is_out = || roles(&service.map(), 1).iter().all(|r| *r != weft_types::Role::InSync);
        while !is_out() {
            assert!(!behind.serves(group) || is_out(), "it does not serve as it is");
            sleep(ms(20)).await;
        }
        let back = || roles(&service.map(), 1).contains(&weft_types::Role::Syncing);
        eventually("it is brought up to date", ms(10_000), back).await;
    });
}
