//! What the manager says of troubles, and what it remembers of them: by the answers that tools get.

use crate::harness;

use harness::*;
use std::collections::BTreeSet;
use std::rc::Rc;
use weft_api::{
    ApiAnswer, ApiRequest, EventFilter, EventInfo, FabricStatus, Health, SettingsWish, Severity, Trouble,
    TroubleKind, WaitsFor,
};
use weft_layout::{group_of, pieces};
use weft_rt::sim::Sim;
use weft_rt::sleep;
use weft_types::limits::TROUBLE_VOLUMES_MAX;
use weft_types::{CapacityLevel, DriveId, Lba, Role};
use weft_wire::control::{ResyncStatus, ResyncWait};

const MIB: u64 = 1 << 20;
const DAY_US: i64 = 86_400_000_000;

fn of_size(name: &str, copies: u8, mib: u64) -> ApiRequest {
    match volume_of(name, copies) {
        ApiRequest::VolumeCreate { name, protection, pool, failure_domain, dry_run, .. } => {
            ApiRequest::VolumeCreate {
                name,
                size_bytes: mib * MIB,
                protection,
                pool,
                stripe_unit_bytes: None,
                width: None,
                failure_domain,
                thin: false,
                dry_run,
            }
        }
        other => unreachable!("{other:?}"),
    }
}

fn settings(rebuild_after_ms: Option<u64>, levels: Option<(u8, u8)>) -> ApiRequest {
    ApiRequest::Settings(SettingsWish {
        rebuild_after_ms,
        capacity_warning_percent: levels.map(|l| l.0),
        capacity_critical_percent: levels.map(|l| l.1),
    })
}

fn commands(trouble: &Trouble) -> Vec<&str> {
    trouble.advice.iter().filter_map(|a| a.command.as_deref()).collect()
}

fn waits(trouble: &Trouble) -> Vec<WaitsFor> {
    trouble.doing.iter().filter_map(|d| d.waits_for).collect()
}

fn kinds(status: &FabricStatus) -> Vec<TroubleKind> {
    status.troubles.iter().map(|t| t.kind).collect()
}

async fn is_out(service: &Service, drive: u128) {
    let is_out = || roles(&service.map(), drive).iter().all(|r| *r == Role::Out);
    eventually("it is out", ms(7000), is_out).await;
}

/// The numbers and kinds of events with these names.
fn told<'a>(events: &'a [EventInfo], names: &[&str]) -> Vec<&'a str> {
    events.iter().map(|e| e.what.as_str()).filter(|what| names.contains(what)).collect()
}

#[test]
fn a_trouble_of_very_many_volumes_names_some_and_counts_the_others() {
    Sim::new(131).block_on(async {
        let (service, targets, _) = fabric(2).await;
        let further = 7;
        for n in 0..TROUBLE_VOLUMES_MAX + further {
            operate(of_size(&format!("v{n:03}"), 2, 1)).await.unwrap();
        }
        sleep(ms(6000)).await;
        targets[0].kill();
        is_out(&service, 1).await;
        let now = status().await;
        let copies = trouble(&now, TroubleKind::CopiesMissing);
        assert_eq!((copies.volumes.len(), copies.more_volumes), (TROUBLE_VOLUMES_MAX, further));
        assert!(copies.volumes.is_sorted_by(|a, b| a.volume < b.volume));
        targets[1].kill();
        sleep(ms(8000)).await;
        let now = status().await;
        let lost = trouble(&now, TroubleKind::DataUnavailable);
        assert_eq!(lost.more_volumes, further);
        assert!(commands(lost).contains(&"weft volume repair"), "it is about all of them: {lost:?}");
    });
}

#[test]
fn a_node_that_is_gone_is_explained_with_what_is_waited_for_and_what_to_do() {
    Sim::new(101).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        assert_eq!(status().await.troubles, [], "all is well");
        sleep(ms(6000)).await;
        let before = status().await.time;
        targets[0].kill();
        is_out(&service, 1).await;
        sleep(ms(3000)).await;
        let now = status().await;
        assert_eq!(kinds(&now), [TroubleKind::NodeGone, TroubleKind::CopiesMissing]);
        let gone = trouble(&now, TroubleKind::NodeGone);
        assert_eq!(gone.node.as_deref(), Some("node-1"));
        assert!(gone.since >= before && gone.since.as_millis() + 3000 <= now.time.as_millis(), "{gone:?}");
        assert_eq!(gone.groups, gone.volumes[0].groups);
        assert_eq!((gone.volumes[0].volume.as_str(), gone.volumes[0].bytes), ("v", 64 * MIB));
        assert_eq!((waits(gone), gone.doing[0].wait_ms), (vec![WaitsFor::Return], None));
        assert!(gone.doing[0].what.contains("no other drive"), "{gone:?}");
        assert_eq!(commands(gone), ["weft node start node-1"]);
        let copies = trouble(&now, TroubleKind::CopiesMissing);
        assert!(
            copies.what.contains("1 of 2 copies") && copies.what.contains("another loss"),
            "{}",
            copies.what
        );
        // Once the delay is over, there is nobody to rebuild on, and that is said.
        operate(settings(Some(1000), None)).await.unwrap();
        let late = status().await;
        assert_eq!(waits(trouble(&late, TroubleKind::NodeGone)), [WaitsFor::Drive]);
        assert!(trouble(&late, TroubleKind::NodeGone).doing[0].what.contains("pool 'default'"));
        assert!(commands(trouble(&late, TroubleKind::CopiesMissing)).contains(&"weft drive list"));
        targets[0].start();
        eventually("it is back", ms(7000), || roles(&service.map(), 1).iter().all(|r| *r == Role::Syncing))
            .await;
        assert_eq!(kinds(&status().await), [TroubleKind::CopiesMissing, TroubleKind::Copying]);
    });
}

/// Two drives at once with two copies: what is lost is named to the block, the rest is said to be served.
#[test]
fn what_two_lost_drives_take_away_is_named_exactly() {
    Sim::new(102).block_on(async {
        let (service, targets, _) = fabric(5).await;
        operate(of_size("large", 2, 900)).await.unwrap();
        operate(of_size("small", 3, 64)).await.unwrap();
        sleep(ms(1500)).await;
        targets[0].kill();
        targets[1].kill();
        let others = || {
            let map = service.map();
            let pair = BTreeSet::from([DriveId(1), DriveId(2)]);
            map.groups.values().all(|g| {
                let drives: BTreeSet<DriveId> = g.slots.iter().map(|s| s.drive).collect();
                drives == pair || drives.is_disjoint(&pair) || g.slots.iter().any(|s| s.role == Role::Out)
            })
        };
        eventually("what can be spared is evicted", ms(8000), others).await;
        let map = service.map();
        let now = status().await;
        assert_eq!(now.health, Health::Unavailable);
        let lost = trouble(&now, TroubleKind::DataUnavailable);
        assert_eq!(
            (lost.severity, now.troubles[0].kind),
            (Severity::Unavailable, TroubleKind::DataUnavailable)
        );
        let volume = map.volume_named("large").unwrap();
        let is_lost = |lba: u64| {
            let piece = pieces(&volume.striping, Lba(lba), 1).next().unwrap();
            let group = &map.groups[&group_of(volume, piece.object_index).unwrap()];
            group.slots.iter().all(|s| s.drive == DriveId(1) || s.drive == DriveId(2))
        };
        let blocks: Vec<u64> = (0..volume.size.0).filter(|lba| is_lost(*lba)).collect();
        assert!(!blocks.is_empty() && blocks.len() < volume.size.0 as usize, "a part of it");
        assert_eq!(lost.volumes.len(), 1, "three copies have one left: {lost:?}");
        let named = &lost.volumes[0];
        assert_eq!((named.volume.as_str(), named.bytes), ("large", blocks.len() as u64 * 4096));
        assert!(named.groups < named.groups_total);
        assert!(named.ranges.len() == 8 && named.has_more_ranges, "{named:?}");
        let inside = |r: &weft_api::ByteRange| {
            (r.offset_bytes / 4096..(r.offset_bytes + r.length_bytes) / 4096).all(is_lost)
        };
        assert!(named.ranges.iter().all(inside), "{named:?}");
        assert_eq!(named.ranges[0].offset_bytes, blocks[0] * 4096);
        assert!(lost.doing[0].what.contains("node 'node-1'") && lost.doing[0].what.contains("node 'node-2'"));
        assert_eq!(waits(lost), [WaitsFor::LastCopy]);
        let expected = ["weft node start node-1", "weft node start node-2", "weft volume repair large"];
        assert_eq!(commands(lost), expected);
        assert!(lost.advice.last().unwrap().what.contains("backup"), "{lost:?}");
        sleep(ms(1500)).await;
        assert_eq!(told(&events().await, &["data-unavailable", "data-available"]), ["data-unavailable"]);
        targets[0].start();
        sleep(ms(8000)).await;
        assert!(!kinds(&status().await).contains(&TroubleKind::DataUnavailable));
        let told = told(&events().await, &["data-unavailable", "data-available"]).join(" ");
        assert_eq!(told, "data-unavailable data-available");
    });
}

/// The groups that volumes have objects in.
fn in_use(map: &weft_types::FabricMap) -> Vec<&weft_types::Group> {
    let used: BTreeSet<_> =
        map.volumes.values().flat_map(|v| v.spans.iter().flat_map(|s| &s.groups)).collect();
    map.groups.values().filter(|g| used.contains(&g.id)).collect()
}

/// Nodes 1 and 2 with two drives each, and others with one.
async fn fabric_of_pairs(nodes: u8) -> (Service, Vec<Rc<FakeTarget>>) {
    let service = Service::start().await;
    let drives = |n: u8| match n {
        1 | 2 => vec![u128::from(n), u128::from(n) + 10],
        n => vec![u128::from(n)],
    };
    let targets: Vec<Rc<FakeTarget>> = (1..=nodes).map(|n| FakeTarget::new(n, &drives(n))).collect();
    targets.iter().for_each(|t| drop(t.start()));
    all_up(&service, &targets).await;
    (service, targets)
}

#[test]
fn two_lost_nodes_are_one_trouble_however_many_pairs_of_drives_they_are() {
    Sim::new(110).block_on(async {
        let (service, targets) = fabric_of_pairs(4).await;
        operate(of_size("v", 2, 900)).await.unwrap();
        operate(of_size("w", 2, 900)).await.unwrap();
        sleep(ms(1500)).await;
        targets[0].kill();
        targets[1].kill();
        sleep(ms(8000)).await;
        let map = service.map();
        let dead = [1, 2, 11, 12].map(DriveId);
        let lost: Vec<_> =
            in_use(&map).into_iter().filter(|g| g.read_set().all(|d| dead.contains(&d))).collect();
        let pairs: BTreeSet<Vec<DriveId>> = lost.iter().map(|g| g.read_set().collect()).collect();
        assert!(pairs.len() > 2, "{pairs:?}");
        let now = status().await;
        let found = trouble(&now, TroubleKind::DataUnavailable);
        assert_eq!(found.groups, lost.len());
        assert!(found.what.starts_with(&format!("{} groups have", lost.len())), "{}", found.what);
        assert_eq!(found.doing.iter().map(|d| d.groups).sum::<usize>(), lost.len());
        let words = found.doing.iter().map(|d| d.what.as_str()).collect::<Vec<_>>().join("\n");
        for drive in dead {
            assert!(words.contains(&drive.short()), "{words}");
        }
        let expected = ["weft node start node-1", "weft node start node-2", "weft volume repair v w"];
        assert_eq!(commands(found), expected);
        assert_eq!(told(&events().await, &["data-unavailable", "data-available"]), ["data-unavailable"]);
    });
}

#[test]
fn missing_copies_are_counted_by_how_many_there_should_be() {
    Sim::new(111).block_on(async {
        let (service, targets, _) = fabric(4).await;
        operate(of_size("two", 2, 400)).await.unwrap();
        operate(of_size("three", 3, 400)).await.unwrap();
        sleep(ms(1500)).await;
        targets[0].kill();
        is_out(&service, 1).await;
        let map = service.map();
        let short = |copies| {
            let is_short =
                |g: &&weft_types::Group| g.slots.len() == copies && g.slot_of(DriveId(1)).is_some();
            in_use(&map).into_iter().filter(is_short).count()
        };
        let (two, three) = (short(2), short(3));
        assert!(two > 1 && three > 1);
        let now = status().await;
        let what = &trouble(&now, TroubleKind::CopiesMissing).what;
        assert!(!what.contains("1 of 3"), "{what}");
        for words in [
            format!("{} groups have fewer copies", two + three),
            format!("{two} have 1 of 2"),
            format!("{three} have 2 of 3"),
            format!("another loss makes data of the {two} with one copy unavailable"),
        ] {
            assert!(what.contains(&words), "'{words}' is not in: {what}");
        }
    });
}

#[test]
fn a_removed_drive_that_is_still_listed_at_its_node_is_a_notice_that_says_to_take_it_off_the_list() {
    Sim::new(112).block_on(async {
        let (service, targets) = fabric_of_pairs(2).await;
        let id = DriveId(11).to_string();
        operate(ApiRequest::DriveEvacuate { id: id.clone(), cancel: false, device: false, dry_run: false })
            .await
            .unwrap();
        operate(ApiRequest::DriveRemove { id, device: false, dry_run: false }).await.unwrap();
        targets[0].start();
        let is_refused = || targets[0].leased_from.get().is_some_and(|at| at.elapsed() < ms(1000));
        sleep(ms(3000)).await;
        eventually("it is back", ms(5000), is_refused).await;
        assert!(service.map().removed_drives.contains(&DriveId(11)));
        let now = status().await;
        let refused = trouble(&now, TroubleKind::DriveRefused);
        assert_eq!((refused.severity, now.health), (Severity::Notice, Health::Healthy), "{refused:?}");
        let advice: Vec<&str> = refused.advice.iter().map(|a| a.what.as_str()).collect();
        assert!(advice[0].contains("WEFT_DRIVES") && advice[0].contains("node-1"), "{advice:?}");
        assert!(advice.iter().all(|a| !a.contains("one of the two")), "{advice:?}");
    });
}

#[test]
fn a_rebuild_without_room_says_where_and_what_helps() {
    Sim::new(103).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        targets[0].kill();
        is_out(&service, 1).await;
        targets[0].start();
        eventually("it is back", ms(7000), || roles(&service.map(), 1).iter().all(|r| *r == Role::Syncing))
            .await;
        let map = service.map();
        let report = |waits_for: Option<ResyncWait>, blocks: u64| {
            let resync = |group: &weft_types::GroupId| ResyncStatus {
                group: *group,
                drive: DriveId(1),
                chunks_verified: blocks / 100,
                chunks_total: 200,
                blocks_copied: blocks,
                blocks_held: blocks,
                done: false,
                waits_for: waits_for.clone(),
            };
            *targets[0].resyncs.borrow_mut() = map.groups.keys().map(resync).collect();
        };
        targets[0].room.set(Some((999 * MIB, 100)));
        report(Some(ResyncWait::Room("no room".into())), 5);
        sleep(ms(12_000)).await;
        let now = status().await;
        let copying = trouble(&now, TroubleKind::Copying);
        assert_eq!((copying.drive, copying.pool.as_deref()), (Some(DriveId(1)), Some("default")));
        assert_eq!(waits(copying), [WaitsFor::Room]);
        let what = &copying.doing[0].what;
        assert!(what.contains("room in pool 'default'") && what.contains("99 % of 999 MiB used"), "{what}");
        assert!(copying.advice.iter().any(|a| a.what.contains("discard")), "{copying:?}");
        assert_eq!(trouble(&now, TroubleKind::PoolFilling).severity, Severity::Degraded);
        let names = ["rebuild-waits-for-room", "rebuild-goes-on", "capacity-full", "capacity-normal"];
        assert_eq!(told(&events().await, &names), ["capacity-full", "rebuild-waits-for-room"]);
        // Something was discarded: it goes on, with a rate and an estimate.
        targets[0].room.set(Some((500 * MIB, 500 * MIB)));
        for step in 1..12 {
            report(None, 256 * step);
            sleep(ms(1000)).await;
            status().await;
        }
        let now = status().await;
        let copying = trouble(&now, TroubleKind::Copying);
        assert_eq!(waits(copying), []);
        let progress = copying.doing[0].progress.expect("it is copied");
        let groups = map.groups.len() as u64;
        assert_eq!((progress.chunks_done, progress.chunks_total), (28 * groups, 200 * groups));
        let rate = progress.bytes_per_second.expect("it moves") / groups;
        assert!((900_000..1_200_000).contains(&rate), "a mebibyte per second and group: {rate}");
        assert!((60_000..80_000).contains(&progress.eta_ms.expect("it moves")), "{progress:?}");
        let told = told(&events().await, &names).join(" ");
        assert_eq!(told, "capacity-full rebuild-waits-for-room capacity-normal rebuild-goes-on");
        // One copy waits while the others go on: nobody knows when all is done.
        for step in 12..20 {
            report(None, 256 * step);
            targets[0].resyncs.borrow_mut()[0].waits_for = Some(ResyncWait::Source("it is away".into()));
            sleep(ms(1000)).await;
            status().await;
        }
        let now = status().await;
        let progress = trouble(&now, TroubleKind::CopiesMissing).doing.iter().find_map(|d| d.progress);
        let progress = progress.expect("the others are copied");
        assert!(progress.bytes_per_second.is_some_and(|rate| rate > 0), "{progress:?}");
        assert_eq!(progress.eta_ms, None);
    });
}

#[test]
fn promises_are_told_apart_from_what_is_free() {
    Sim::new(113).block_on(async {
        let (_service, targets, _) = fabric(3).await;
        let mut huge = volume_of("huge", 2);
        if let ApiRequest::VolumeCreate { size_bytes, thin, .. } = &mut huge {
            (*size_bytes, *thin) = (8 << 40, true);
        }
        operate(huge).await.unwrap();
        for target in &targets {
            target.room.set(Some((24 * MIB, 1000 * MIB)));
        }
        sleep(ms(12_000)).await;
        status().await;
        let error = operate(of_size("small", 2, 2)).await.unwrap_err();
        for words in
            ["pool 'default' can promise 0 B more at 2 copies", "2 MiB are needed", "have 2.9 GiB free"]
        {
            assert!(error.message.contains(words), "'{words}' is not in: {}", error.message);
        }
    });
}

#[test]
fn nothing_is_emptied_that_does_not_fit_elsewhere() {
    Sim::new(109).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        targets[0].room.set(Some((500 * MIB, 100 * MIB)));
        for target in &targets[1..] {
            target.room.set(Some((400 * MIB, 200 * MIB)));
        }
        sleep(ms(5000)).await;
        let evacuate = ApiRequest::DriveEvacuate {
            id: DriveId(1).to_string(),
            cancel: false,
            device: false,
            dry_run: false,
        };
        let before = service.map();
        let error = operate(evacuate).await.expect_err("there is no room");
        assert!(
            error.message.contains("hold 500 MiB, the others of their pools have 400 MiB free"),
            "{error:?}"
        );
        assert!(error.hint.is_some_and(|hint| hint.contains("add a drive")) && service.map() == before);
    });
}

#[test]
fn a_pool_that_fills_up_is_told_at_its_levels_and_once() {
    Sim::new(104).block_on(async {
        let (_service, targets, _) = fabric(2).await;
        let names = ["capacity-normal", "capacity-warning", "capacity-critical", "capacity-full"];
        let fill = |percent: u64| targets[0].room.set(Some((percent * 10 * MIB, (100 - percent) * 10 * MIB)));
        targets[1].room.set(Some((100 * MIB, 900 * MIB)));
        let mut levels = Vec::new();
        for percent in [50, 80, 79, 92, 89, 88, 87, 100, 99, 50] {
            fill(percent);
            sleep(ms(15_000)).await;
            let now = status().await;
            levels.push(now.pools[0].level);
            let expected = match now.pools[0].level {
                CapacityLevel::Normal | CapacityLevel::Warning => Health::Healthy,
                CapacityLevel::Critical | CapacityLevel::Full => Health::Degraded,
            };
            let words = match now.pools[0].level {
                CapacityLevel::Normal => None,
                CapacityLevel::Warning => Some("is filling up"),
                CapacityLevel::Critical => Some("is nearly full"),
                CapacityLevel::Full => Some("is full"),
            };
            let told =
                now.troubles.iter().find(|t| t.kind == TroubleKind::PoolFilling).map(|t| t.what.as_str());
            assert_eq!(told.is_some(), words.is_some(), "{told:?}");
            assert!(told.unwrap_or_default().contains(words.unwrap_or_default()), "{percent} %: {told:?}");
            assert_eq!(now.health, expected, "{percent} %: {:?}", now.reasons);
            let fullest = now.pools[0].fullest.clone().expect("they answer");
            assert_eq!((fullest.node.as_str(), fullest.used_bytes), ("node-1", percent * 10 * MIB));
        }
        use CapacityLevel::{Critical, Full, Normal, Warning};
        let expected =
            [Normal, Warning, Warning, Critical, Critical, Critical, Warning, Full, Critical, Normal];
        assert_eq!(levels, expected);
        let told = told(&events().await, &names).join(" ");
        let expected = "capacity-warning capacity-critical capacity-warning capacity-full capacity-critical \
                        capacity-normal";
        assert_eq!(told, expected);
        // Other levels: half full is a warning, if somebody wants it so.
        let wrong = operate(settings(None, Some((60, 50)))).await.expect_err("out of order");
        assert!(wrong.message.contains("60 %") && wrong.hint.is_some(), "{wrong:?}");
        operate(settings(None, Some((40, 60)))).await.unwrap();
        let now = status().await;
        let filling = trouble(&now, TroubleKind::PoolFilling);
        assert_eq!((filling.severity, filling.pool.as_deref()), (Severity::Warning, Some("default")));
        assert!(filling.what.contains("50 % used"), "{}", filling.what);
        assert!(commands(filling).contains(&"weft volume delete NAME"));
        assert_eq!((now.health, now.reasons.len()), (Health::Healthy, 0), "a warning is no damage");
    });
}

#[test]
fn damage_is_told_and_is_no_trouble_once_it_is_healed() {
    Sim::new(105).block_on(async {
        let (_service, targets, _) = fabric(2).await;
        targets[0].room.set(Some((100 * MIB, 900 * MIB)));
        for (damage, severity) in [((3, 2), Severity::Warning), ((3, 3), Severity::Notice)] {
            targets[0].damage.set(damage);
            sleep(ms(1500)).await;
            let now = status().await;
            let found = trouble(&now, TroubleKind::DriveDamaged);
            assert_eq!((found.severity, now.health), (severity, Health::Healthy));
            assert!(
                found.what.contains(&format!(
                    "3 blocks found damaged since its target started, {} healed",
                    damage.1
                ))
            );
            assert!(commands(found).contains(&"weft scrub start --all"), "{found:?}");
        }
    });
}

#[test]
fn events_and_beginnings_outlive_the_manager() {
    Sim::new(106).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(6000)).await;
        targets[0].kill();
        is_out(&service, 1).await;
        sleep(ms(2000)).await;
        let before = events().await;
        let now = status().await;
        let gone = trouble(&now, TroubleKind::NodeGone);
        assert_eq!(waits(gone), [WaitsFor::Return]);
        let wait_ms = gone.doing[0].wait_ms.expect("it is known");
        assert!((580_000..600_000).contains(&wait_ms), "it is rebuilt on the third node then: {wait_ms}");
        assert_eq!(commands(gone), ["weft node start node-1", "weft node evacuate node-1"]);
        let since = gone.since;
        service.restart().await;
        all_up(&service, &targets[1..]).await;
        sleep(ms(9000)).await;
        let after = events().await;
        assert_eq!(after[..before.len()], before[..], "they are all there");
        assert_eq!(after[before.len()].what, "manager-started");
        let numbers: Vec<u64> = after.iter().map(|e| e.seq).collect();
        assert_eq!(numbers, (1..=after.len() as u64).collect::<Vec<u64>>(), "one after another");
        assert_eq!(trouble(&status().await, TroubleKind::NodeGone).since, since, "since before the restart");
        let who = |what: &str| after.iter().find(|e| e.what == what).unwrap_or_else(|| panic!("{what}"));
        assert_eq!(who("create-volume").who, "test", "the tool's name");
        assert_eq!(who("create-volume").volumes, ["v"]);
        let joined =
            after.iter().find(|e| e.what == "join-node" && e.nodes == ["node-1"]).expect("it joined");
        assert_eq!(joined.who, "target node-1");
        assert_eq!(who("evict").who, "manager", "nobody asked for that");
        assert_eq!(
            (&who("evict").nodes[..], &who("evict").drives[..]),
            (&["node-1".to_owned()][..], &[DriveId(1)][..])
        );
        let filter = EventFilter { node: Some("node-1".into()), ..EventFilter::default() };
        let answer = operate(ApiRequest::Events { after: 0, limit: None, filter }).await;
        let Ok(ApiAnswer::Events { events }) = answer else { panic!("{answer:?}") };
        assert!(!events.is_empty() && events.iter().all(|e| e.nodes.contains(&"node-1".to_owned())));
    });
}

/// Nobody has joined yet, and so nothing is known: neither that data is unavailable, nor that all is well.
#[test]
fn a_manager_that_has_just_started_says_who_is_still_reporting() {
    Sim::new(108).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        sleep(ms(6000)).await;
        targets[2].kill();
        service.restart().await;
        let early = status().await;
        assert_eq!(early.health, Health::Degraded, "{:#?}", early.troubles);
        assert_eq!(early.troubles.len(), 1, "{:#?}", early.troubles);
        let reporting = trouble(&early, TroubleKind::NodeGone);
        for name in ["node-1", "node-2", "node-3", "still reporting"] {
            assert!(reporting.what.contains(name), "{}", reporting.what);
        }
        // The two others have joined, and get no lease before the manager has waited for the third.
        sleep(ms(1000)).await;
        let later = status().await;
        let reporting = trouble(&later, TroubleKind::NodeGone);
        assert!(
            reporting.what.contains("node-3") && !reporting.what.contains("node-1"),
            "{}",
            reporting.what
        );
        assert!(reporting.what.contains("still reporting"), "{}", reporting.what);
        assert!(
            later.troubles.iter().all(|t| t.kind != TroubleKind::DataUnavailable),
            "{:#?}",
            later.troubles
        );
        sleep(ms(3000)).await;
        let gone = status().await;
        assert!(trouble(&gone, TroubleKind::NodeGone).what.contains("it has not joined since"), "{gone:#?}");
        targets[0].kill();
        sleep(ms(5000)).await;
        assert_eq!(status().await.health, Health::Unavailable, "two of three nodes are gone");
    });
}

/// Nothing of what the manager does rests on its wall clock.
#[test]
fn a_clock_that_is_set_back_a_day_disturbs_nobody() {
    Sim::new(107).block_on(async {
        let (service, targets, _) = fabric(3).await;
        operate(volume_of("v", 2)).await.unwrap();
        operate(settings(Some(20_000), None)).await.unwrap();
        sleep(ms(6000)).await;
        let before = events().await;
        service.set_clock(-DAY_US);
        sleep(ms(10_000)).await;
        operate(volume_of("w", 2)).await.unwrap();
        let after = events().await;
        let new: Vec<&str> = after[before.len()..].iter().map(|e| e.what.as_str()).collect();
        assert_eq!(new, ["create-volume"], "no lease has ended, nobody was suspected");
        let event = &after[before.len()];
        assert_eq!(event.seq, before.last().unwrap().seq + 1);
        assert!(event.time < before.last().unwrap().time);
        assert!(event.clock_back_ms.is_some_and(|ms| ms > 86_300_000), "{event:?}");
        // A node that dies now is rebuilt after the delay, not after a day; and one that died before as well.
        targets[0].kill();
        is_out(&service, 1).await;
        service.set_clock(-2 * DAY_US);
        let is_rebuilt = || service.map().groups.values().all(|g| g.slot_of(DriveId(1)).is_none());
        eventually("it is rebuilt elsewhere", ms(30_000), is_rebuilt).await;
        let now = status().await;
        let gone = trouble(&now, TroubleKind::NodeGone);
        assert!(gone.since > now.time, "as it was written down; tools say so");
        let all: Vec<u64> = events().await.iter().map(|e| e.seq).collect();
        assert_eq!(all, (1..=all.len() as u64).collect::<Vec<u64>>());
        let _keep: &Rc<FakeTarget> = &targets[1];
    });
}

/// Targets judge by it what is too far ahead: what was written before must not be.
#[test]
fn the_clock_that_targets_hear_never_goes_back_also_not_over_a_restart_after_a_quiet_time() {
    Sim::new(108).block_on(async {
        let (service, targets, _) = fabric(1).await;
        // So long that what happened last tells little of what the clock was.
        sleep(ms(30 * 60_000)).await;
        let before = targets[0].clock_us.get();
        service.set_clock(-DAY_US);
        sleep(ms(5_000)).await;
        assert!(targets[0].clock_us.get() > before, "it is set back while the manager runs");
        service.kill();
        targets[0].clock_us.set(0);
        service.restart().await;
        eventually("it hears a clock again", ms(10_000), || targets[0].clock_us.get() > 0).await;
        let behind_us = before.saturating_sub(targets[0].clock_us.get());
        assert!(
            behind_us < 11 * 60_000_000,
            "{} s behind: written down every ten minutes",
            behind_us / 1_000_000
        );
    });
}

#[test]
fn nodes_that_keep_no_part_of_the_map_are_a_trouble_after_a_while() {
    Sim::new(17).block_on(async {
        let (service, targets, _) = fabric(2).await;
        targets[1].keeps_no_parts.set(true);
        operate(volume_of("v", 2)).await.unwrap();
        all_up(&service, &targets).await;
        sleep(ms(60_000)).await;
        assert!(!kinds(&status().await).contains(&TroubleKind::MapNotKept), "it may pass");
        sleep(ms(180_000)).await;
        let now = status().await;
        let kept = trouble(&now, TroubleKind::MapNotKept);
        assert_eq!(kept.severity, Severity::Warning);
        assert_eq!(kept.node.as_deref(), Some("node-2"));
        assert!(kept.what.contains("the drive takes no part of the map"), "{}", kept.what);
        assert_eq!(commands(kept), ["weft map backup FILE"]);
        targets[1].keeps_no_parts.set(false);
        sleep(ms(120_000)).await;
        assert!(!kinds(&status().await).contains(&TroubleKind::MapNotKept));
    });
}
