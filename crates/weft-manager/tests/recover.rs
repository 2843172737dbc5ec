//! Recovery of the map from the copies on the drives.

use crate::harness;

use harness::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use weft_api::ApiRequest;
use weft_manager::{RecoverError, recover};
use weft_membership::{Acknowledged, Change, Evict, OpenSession, Promote, Rejoin, apply, check};
use weft_membership::{BeginRelocation, FinishRelocation, HandOver};
use weft_rt::sim::Sim;
use weft_types::{
    AttachMode, DriveId, Epoch, FabricId, FabricMap, GroupId, MapVersion, Role, SessionSlot, SessionState,
    Slice, TargetId,
};
use weft_wire::collected::DriveContents;

/// A map with three nodes and two volumes, as a manager makes it.
fn sample() -> FabricMap {
    Sim::new(1).block_on(async {
        let (service, _, _) = fabric(3).await;
        operate(volume_of("two", 2)).await.unwrap();
        operate(volume_of("three", 3)).await.unwrap();
        attach("two", AttachMode::Shared, false).await.unwrap();
        service.map()
    })
}

/// What is on a drive that has adopted this map.
fn contents(map: &FabricMap, drive: DriveId) -> DriveContents {
    let mine = map.groups.values().filter(|g| g.slot_of(drive).is_some());
    let generations = map.volumes.values().map(|v| (v.id, v.generation)).collect();
    let slots = BTreeMap::new();
    DriveContents { id: drive, map_copy: map.version, entries: mine.cloned().collect(), generations, slots }
}

/// What is on a drive that has adopted the older map, and was taught the entries of the newer one by clients.
fn taught(old: &FabricMap, new: &FabricMap, drive: DriveId) -> DriveContents {
    DriveContents { map_copy: old.version, ..contents(new, drive) }
}

/// The map after one drive came back as syncing.
fn rejoin(map: &FabricMap, drive: DriveId) -> FabricMap {
    apply(map, &Change::Rejoin(Rejoin { drives: BTreeSet::from([drive]), except: BTreeSet::new() }))
        .unwrap()
        .0
}

/// The map after one drive was evicted from everything.
fn evict(map: &FabricMap, victim: DriveId) -> FabricMap {
    let groups = map.groups.values().filter(|g| g.slot_of(victim).is_some());
    let word = |g: &weft_types::Group| {
        let by = g.read_set().find(|d| *d != victim).unwrap();
        (g.id, Acknowledged { by, epoch: g.epoch })
    };
    let change = Evict { drives: BTreeSet::from([victim]), acknowledged: groups.map(word).collect() };
    apply(map, &Change::Evict(change)).unwrap().0
}

#[test]
fn the_newest_copy_counts_and_everything_rises() {
    let old = sample();
    let open = OpenSession {
        volume: old.volumes.values().next().unwrap().id,
        mode: AttachMode::ReadOnly,
        client: "c".into(),
        preempt: false,
        number: 0,
        lanes: 1,
    };
    let new = apply(&old, &Change::OpenSession(open)).unwrap().0;
    let reports: Vec<_> = (1..=3).map(|d| contents(&new, DriveId(d))).collect();
    let recovered = recover(vec![old, new.clone()], &reports).unwrap();
    let map = recovered.map;
    assert!(recovered.warnings.is_empty(), "{:?}", recovered.warnings);
    assert!(map.version.0 >= new.version.0 + 1000 && map.next_id > new.next_id + 1000);
    assert!(map.volumes.iter().all(|(id, v)| v.generation > new.volumes[id].generation));
    assert!(map.sessions.len() == 2 && map.sessions.values().all(|s| s.state == SessionState::Over));
    for (id, group) in &map.groups {
        assert!(group.epoch > new.groups[id].epoch && group.slots == new.groups[id].slots);
    }
}

/// Drives serve sessions before they hear of them, so one of which no copy tells may have left open entries.
#[test]
fn a_session_that_no_copy_lists_is_swept_and_its_slot_is_nobodys_until_then() {
    let old = sample();
    let volume = &old.volumes.values().next_back().unwrap().clone();
    let open = OpenSession {
        volume: volume.id,
        mode: AttachMode::Exclusive,
        client: "c".into(),
        preempt: false,
        number: 0,
        lanes: 1,
    };
    let new = apply(&old, &Change::OpenSession(open)).unwrap().0;
    let session = new.sessions.values().next_back().unwrap();
    let wrote = volume.spans[0].groups[0];
    let mut drives: Vec<_> = (1..=3).map(|d| contents(&old, DriveId(d))).collect();
    drives[1].slots.insert(session.slot, BTreeSet::from([wrote]));
    drives[2].generations.insert(volume.id, session.generation);
    // Whose volume is not listed has written nothing that is.
    drives[2].slots.insert(SessionSlot(77), BTreeSet::from([GroupId(9_999)]));
    // A lane of a session that a copy lists is no session of its own.
    let mut old = old.clone();
    old.sessions.update_each(|s| s.lane_slots = vec![SessionSlot(78)]);
    drives[2].slots.insert(SessionSlot(78), BTreeSet::from([wrote]));
    let map = recover(vec![old.clone()], &drives).unwrap().map;
    assert!(check(&map).is_empty());
    assert!(map.volumes[&volume.id].generation > session.generation, "a drive refuses what is below its own");
    let listed: Vec<_> = map.sessions.values().filter(|s| s.slot == session.slot).collect();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].state, listed[0].id > session.id), (SessionState::Over, true));
    let reached = map.volumes[&listed[0].volume].spans.iter().any(|s| s.groups.contains(&wrote));
    assert!(reached, "the sweep reaches the drives that have the entries");
    assert!(map.sessions.values().all(|s| s.slot != SessionSlot(77)));
    let known: BTreeSet<_> = old.sessions.values().map(|s| s.slot).collect();
    assert!(!known.contains(&session.slot) && map.sessions.len() == old.sessions.len() + 1);
}

#[test]
fn a_replica_that_may_have_been_evicted_since_is_not_trusted() {
    let old = sample();
    let new = evict(&old, DriveId(1));
    // Only the copy of the evicted drive can be read; the others tell of newer epochs.
    let reports = [contents(&old, DriveId(1)), contents(&new, DriveId(2)), contents(&new, DriveId(3))];
    let recovered = recover(vec![old.clone()], &reports).unwrap();
    assert!(!recovered.warnings.is_empty());
    for group in recovered.map.groups.values() {
        let role = group.slot_of(DriveId(1)).map(|s| s.role);
        assert!(role.is_none_or(|r| r == Role::Out), "{group:?}");
        assert!(group.epoch > new.groups[&group.id].epoch);
    }
    assert!(check(&recovered.map).is_empty());
    // A drive that is not there at all is named.
    let recovered = recover(vec![new.clone()], &reports[1..]).unwrap();
    assert!(recovered.warnings.iter().any(|w| w.contains("not at hand")), "{:?}", recovered.warnings);
}

#[test]
fn an_entry_that_everyone_was_taught_counts_without_a_copy_of_its_map() {
    let old = sample();
    // Evicted, and back as syncing: the drive knows the newest epoch, and lacks what was written in between.
    let new = rejoin(&evict(&old, DriveId(1)), DriveId(1));
    let drives: Vec<_> = (1..=3).map(|d| taught(&old, &new, DriveId(d))).collect();
    let map = recover(vec![old], &drives).unwrap().map;
    assert!(check(&map).is_empty());
    assert!(!roles(&map, 1).is_empty() && roles(&map, 1).iter().all(|r| *r == Role::Syncing));
    for (id, group) in map.groups.iter().filter(|(_, g)| g.slot_of(DriveId(1)).is_some()) {
        let was = new.groups[id].slot_of(DriveId(1)).unwrap().since;
        assert!(group.slot_of(DriveId(1)).unwrap().since > was, "what it had verified counts for nothing");
    }
    for drive in [2, 3] {
        assert!(roles(&map, drive).iter().all(|r| *r == Role::InSync));
    }
}

#[test]
fn a_replica_that_has_not_heard_of_the_newest_entry_stays_as_that_says() {
    let old = sample();
    let new = rejoin(&evict(&old, DriveId(1)), DriveId(1));
    // Only the one that is behind was taught the newest entries.
    let drives = [taught(&old, &new, DriveId(1)), contents(&old, DriveId(2)), contents(&old, DriveId(3))];
    let map = recover(vec![old], &drives).unwrap().map;
    assert!(check(&map).is_empty());
    assert!(roles(&map, 1).iter().all(|r| *r == Role::Syncing));
    for drive in [2, 3] {
        assert!(
            roles(&map, drive).iter().all(|r| *r == Role::InSync),
            "without it no write was acknowledged"
        );
    }
}

#[test]
fn a_relocation_that_began_or_ended_since_the_newest_copy_leaves_a_sound_map() {
    let old = sample();
    let group = old.groups.values().find(|g| g.slots.len() == 2).unwrap();
    let (id, from) = (group.id, group.slots[0].drive);
    let to = *old.drives.keys().find(|d| group.slot_of(**d).is_none()).unwrap();
    let begin = BeginRelocation { group: id, from, to, domain: weft_layout::FailureDomain::Drive };
    let begun = apply(&old, &Change::BeginRelocation(begin)).unwrap().0;
    let stint = begun.groups[&id].slot_of(to).unwrap().since;
    let copied = apply(&begun, &Change::Promote(Promote { group: id, drive: to, stint })).unwrap().0;
    let handed = apply(&copied, &Change::HandOver(HandOver { group: id })).unwrap().0;
    let stint = handed.groups[&id].slot_of(from).unwrap().since;
    let done = apply(&handed, &Change::FinishRelocation(FinishRelocation { group: id, stint })).unwrap().0;
    let steps = [&old, &begun, &copied, &handed, &done];
    for (i, known) in steps.iter().enumerate() {
        for newest in &steps[i..] {
            let drives: Vec<_> = (1..=3).map(|d| taught(known, newest, DriveId(d))).collect();
            let map = recover(vec![(*known).clone()], &drives).unwrap().map;
            assert!(check(&map).is_empty());
            let truth: BTreeSet<_> = newest.groups[&id].read_set().collect();
            let read: BTreeSet<_> = map.groups[&id].read_set().collect();
            assert!(!read.is_empty() && read.is_subset(&truth), "{read:?} of {truth:?}");
        }
    }
}

#[test]
fn without_a_copy_or_a_good_replica_there_is_no_map() {
    let map = sample();
    assert_eq!(recover(vec![], &[]), Err(RecoverError::NoCopy));
    let mut other = map.clone();
    other.fabric = FabricId(7);
    assert!(matches!(recover(vec![map.clone(), other], &[]), Err(RecoverError::SeveralFabrics { .. })));
    let mut broken = map.clone();
    broken.next_id = 1;
    assert!(matches!(recover(vec![broken], &[]), Err(RecoverError::Broken(_))));
    // A drive became a member that the newest copy does not list.
    let mut newer = contents(&map, DriveId(1));
    newer.entries.iter_mut().for_each(|g| (g.slots[0].drive, g.epoch) = (DriveId(9), Epoch(50)));
    assert!(matches!(recover(vec![map], &[newer]), Err(RecoverError::UnlistedMembers { .. })));
}

proptest! {
    /// Whatever the drives say, a map that comes out is sound and above all that they said.
    #[test]
    fn a_recovered_map_is_sound_and_above_every_report(
        epochs in prop::collection::vec((1u128..5, 0usize..40, 0u64..2000), 0..60),
        copies in prop::collection::vec(0u64..5000, 1..4),
    ) {
        thread_local!(static SAMPLE: FabricMap = sample());
        let map = SAMPLE.with(Clone::clone);
        let groups: Vec<_> = map.groups.keys().copied().collect();
        let mut reports: Vec<DriveContents> =
            (1..5).map(|d| DriveContents { entries: vec![], ..contents(&map, DriveId(d)) }).collect();
        for (drive, group, epoch) in epochs {
            let mut entry = map.groups[&groups[group % groups.len()]].clone();
            entry.epoch = Epoch(entry.epoch.0 + epoch);
            reports[drive as usize - 1].entries.push(entry);
        }
        for (report, copy) in reports.iter_mut().zip(copies) {
            report.map_copy.0 = copy;
        }
        {
            let recovered = recover(vec![map], &reports).unwrap();
            prop_assert!(check(&recovered.map).is_empty());
            for report in &reports {
                prop_assert!(recovered.map.version > report.map_copy);
                for entry in &report.entries {
                    prop_assert!(recovered.map.groups[&entry.id].epoch > entry.epoch);
                }
            }
        }
    }
}

/// What drives keep of these maps: the slice of each target in its version.
fn slices<'a>(of: impl IntoIterator<Item = (&'a FabricMap, u32)>) -> Vec<FabricMap> {
    let slice = |(map, target): (&FabricMap, u32)| map.slice(&Slice::Target(TargetId(target)));
    of.into_iter().map(slice).collect()
}

/// What is in a map and is the same after a recovery.
fn entries(map: &FabricMap) -> impl PartialEq + std::fmt::Debug + use<> {
    let names: Vec<(String, u64)> = map.volumes.values().map(|v| (v.name.clone(), v.size.0)).collect();
    let spans: Vec<_> = map.volumes.values().map(|v| v.spans.clone()).collect();
    let groups: Vec<_> = map.groups.values().map(|g| (g.id, g.slots.clone())).collect();
    let sessions: Vec<_> = map.sessions.keys().copied().collect();
    let machines = (map.nodes.clone(), map.targets.clone(), map.drives.clone(), map.pools.clone());
    (names, spans, groups, sessions, machines, map.removed_drives.clone())
}

/// Two maps of four nodes with a drive each: in the second, later one a volume is gone and another is there.
fn before_and_after() -> (FabricMap, FabricMap) {
    Sim::new(3).block_on(async {
        let (service, targets, _) = fabric(4).await;
        for name in ["stays", "goes"] {
            operate(volume_of(name, 2)).await.unwrap();
        }
        attach("stays", AttachMode::Shared, false).await.unwrap();
        all_up(&service, &targets).await;
        let before = service.map();
        operate(ApiRequest::VolumeDelete { name: "goes".into(), force: false, dry_run: false })
            .await
            .unwrap();
        operate(volume_of("comes", 3)).await.unwrap();
        let gone = || service.map().volume_named("goes").is_none();
        eventually("it is gone", ms(5000), gone).await;
        (before, service.map())
    })
}

#[test]
fn the_slices_of_all_targets_together_are_the_map() {
    let (before, after) = before_and_after();
    let targets: Vec<u32> = after.targets.keys().map(|id| id.0).collect();
    let of_all = slices(targets.iter().map(|target| (&after, *target)));
    let recovered = recover(of_all.clone(), &[]).unwrap().map;
    assert_eq!(entries(&recovered), entries(&after));
    assert!(recovered.next_id > after.next_id && recovered.version > after.version);
    // One that was away lists what is gone since; the others, which would list it, do not.
    for away in &targets {
        let mut copies = of_all.clone();
        copies.extend(slices([(&before, *away)]));
        copies.retain(|copy| {
            let says = copy.of_target.as_ref().unwrap();
            says.target.0 != *away || copy.version == before.version
        });
        let recovered = recover(copies, &[]).unwrap().map;
        assert_eq!(entries(&recovered), entries(&after), "target {away} was away");
    }
    // An old copy of the whole adds nothing to newer slices of all.
    let recovered = recover([vec![before], of_all].concat(), &[]).unwrap().map;
    assert_eq!(entries(&recovered), entries(&after));
}

#[test]
fn what_no_slice_at_hand_lists_comes_from_a_copy_of_the_whole() {
    let whole = before_and_after().1;
    let after = FabricMap { version: MapVersion(whole.version.0 + 1), ..whole.clone() };
    let one = slices([(&after, after.targets.keys().next().unwrap().0)]);
    let refused = recover(one.clone(), &[]).unwrap_err();
    assert!(matches!(refused, RecoverError::UnlistedGroups { .. }), "{refused}");
    let recovered = recover([one, vec![whole]].concat(), &[]).unwrap().map;
    assert_eq!(entries(&recovered), entries(&after));
}
