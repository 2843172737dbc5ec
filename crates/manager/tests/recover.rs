//! Recovery of the map from the copies on the drives.

mod harness;

use harness::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use weft_manager::{RecoverError, recover};
use weft_membership::{Acknowledged, Change, Evict, OpenSession, apply, check};
use weft_rt::sim::Sim;
use weft_types::{AttachMode, BlockCount, DriveId, Epoch, FabricId, FabricMap, Role, SessionState};
use weft_wire::control::DriveReport;

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

/// What a drive would say that has adopted this map.
fn report(map: &FabricMap, drive: DriveId) -> DriveReport {
    let mine = map.groups.values().filter(|g| g.slot_of(drive).is_some());
    DriveReport {
        id: drive,
        path: String::new(),
        capacity: BlockCount(1),
        map_copy: map.version,
        epochs: mine.map(|g| (g.id, g.epoch)).collect(),
    }
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
    };
    let new = apply(&old, &Change::OpenSession(open)).unwrap().0;
    let reports: Vec<_> = (1..=3).map(|d| report(&new, DriveId(d))).collect();
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

#[test]
fn a_replica_that_may_have_been_evicted_since_is_not_trusted() {
    let old = sample();
    let new = evict(&old, DriveId(1));
    // Only the copy of the evicted drive can be read; the others tell of newer epochs.
    let reports = [report(&old, DriveId(1)), report(&new, DriveId(2)), report(&new, DriveId(3))];
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
fn without_a_copy_or_a_good_replica_there_is_no_map() {
    let map = sample();
    assert_eq!(recover(vec![], &[]), Err(RecoverError::NoCopy));
    let mut other = map.clone();
    other.fabric = FabricId(7);
    assert!(matches!(recover(vec![map.clone(), other], &[]), Err(RecoverError::SeveralFabrics { .. })));
    let mut broken = map.clone();
    broken.next_id = 1;
    assert!(matches!(recover(vec![broken], &[]), Err(RecoverError::Broken(_))));
    // A drive that the copy does not know as a member has a newer epoch than all who are members.
    let mut stranger = report(&map, DriveId(9));
    stranger.epochs = map.groups.keys().map(|g| (*g, Epoch(50))).collect();
    assert!(matches!(recover(vec![map], &[stranger]), Err(RecoverError::NoGoodCopy { .. })));
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
        let mut reports: Vec<DriveReport> = (1..5).map(|d| DriveReport { epochs: vec![], ..report(&map, DriveId(d)) }).collect();
        for (drive, group, epoch) in epochs {
            reports[drive as usize - 1].epochs.push((groups[group % groups.len()], Epoch(epoch)));
        }
        for (report, copy) in reports.iter_mut().zip(copies) {
            report.map_copy.0 = copy;
        }
        if let Ok(recovered) = recover(vec![map], &reports) {
            prop_assert!(check(&recovered.map).is_empty());
            for report in &reports {
                prop_assert!(recovered.map.version > report.map_copy);
                for (group, epoch) in &report.epochs {
                    prop_assert!(recovered.map.groups[group].epoch > *epoch);
                }
            }
        }
    }
}
