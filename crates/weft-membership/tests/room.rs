//! Placement by free space: a drive that is nearly full gets no further copies while others have room.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use weft_layout::FailureDomain;
use weft_membership::{
    AddDrive, Change, CreatePool, DrainDrive, DriveObservation, FailDrive, GroupIndex, JoinNode,
    Observations, Room, TargetObservation, VolumeRequest, apply, has_spare_drive, nearly_full, next_rebuild,
    next_relocation, plan_evacuation, plan_volume,
};
use weft_types::TargetId;
use weft_types::{BlockCount, DriveId, FabricId, FabricMap, NodeId, PoolId, Protection, Role, with_causes};

const DRIVE_BLOCKS: u64 = 1 << 18;

fn commit(map: &mut FabricMap, change: &Change) {
    *map = apply(map, change).unwrap_or_else(|refusal| panic!("{change:?}: {refusal}")).0;
}

fn request(name: &str) -> VolumeRequest {
    VolumeRequest {
        name: name.into(),
        pool: PoolId(1),
        size_bytes: 64 << 20,
        protection: Protection::mirror(2),
        striping: None,
        domain: FailureDomain::Node,
        thin: true,
        created_ms: 1,
    }
}

/// Nodes with one drive each (drive n on the n-th), without a volume.
fn bare(nodes: u32) -> FabricMap {
    let mut map = FabricMap::empty(FabricId(7));
    commit(&mut map, &Change::CreatePool(CreatePool { name: "p".into() }));
    let pool = map.pool_named("p").expect("it was made").id;
    for n in 1..=nodes {
        let node = NodeId(u32::try_from(map.next_id).expect("a small number"));
        commit(
            &mut map,
            &Change::JoinNode(JoinNode { name: format!("n{n}"), addr: format!("10.0.1.{n}:7000") }),
        );
        commit(
            &mut map,
            &Change::AddDrive(AddDrive {
                drive: DriveId(u128::from(n)),
                target: TargetId::first_of(node),
                pool,
                path: format!("/dev/{n}"),
                capacity: BlockCount(DRIVE_BLOCKS),
                device: None,
            }),
        );
    }
    map
}

fn planned(map: &FabricMap, unfit: &BTreeSet<DriveId>) -> Result<Change, String> {
    let request = VolumeRequest { pool: map.pool_named("p").expect("it was made").id, ..request("v") };
    plan_volume(map, &GroupIndex::of(map), &request, unfit).map_err(|refusal| with_causes(&refusal))
}

fn all_serve(map: &FabricMap) -> Observations {
    let mut seen = Observations { now_ms: 1_000, ..Observations::default() };
    let alive = TargetObservation { alive: true, fenced: false, heard_ms: 1_000 };
    seen.targets = map.targets.keys().map(|&t| (t, alive)).collect();
    let present = DriveObservation { present: true, failed: None, fenced: false, seen_ms: 1_000 };
    seen.drives = map.drives.keys().map(|&d| (d, present.clone())).collect();
    seen
}

/// A drive that is used by so many in 1000.
fn used(permille: u64) -> Room {
    let used = DRIVE_BLOCKS * permille / 1000;
    Room { used: BlockCount(used), free: BlockCount(DRIVE_BLOCKS - used) }
}

/// The drive has failed, and is out of its groups.
fn lose(map: &mut FabricMap, drive: DriveId) {
    commit(map, &Change::FailDrive(FailDrive { drive, cause: "test".into(), of_device: false }));
    let members: Vec<_> = map.groups.values().filter(|g| g.slot_of(drive).is_some()).map(|g| g.id).collect();
    for id in members {
        let group = map.groups.get_mut(&id).expect("it was found");
        group.epoch = group.epoch.next();
        let epoch = group.epoch;
        for slot in group.slots.iter_mut().filter(|s| s.drive == drive) {
            (slot.role, slot.since) = (Role::Out, epoch);
        }
    }
}

#[test]
fn new_groups_leave_out_what_is_nearly_full_and_refuse_when_too_little_is_left() {
    let map = bare(4);
    let room = BTreeMap::from([(DriveId(1), used(960)), (DriveId(2), used(100)), (DriveId(3), used(940))]);
    let full = nearly_full(&map, &room);
    assert_eq!(full, BTreeSet::from([DriveId(1)]), "nothing is known of the fourth");
    let Ok(Change::CreateVolume(change)) = planned(&map, &full) else { panic!() };
    assert!(change.new_groups.iter().all(|g| !g.drives.contains(&DriveId(1))));
    let all: BTreeMap<DriveId, Room> = map.drives.keys().map(|d| (*d, used(960))).collect();
    let refused = planned(&map, &nearly_full(&map, &all)).expect_err("none has room");
    assert!(refused.contains("found 0"), "{refused}");
    assert!(nearly_full(&map, &BTreeMap::new()).is_empty(), "targets of an older release do not say");
}

#[test]
fn what_is_being_copied_to_a_drive_counts_as_there() {
    let mut map = bare(4);
    let change = planned(&map, &BTreeSet::new()).expect("it fits");
    commit(&mut map, &change);
    lose(&mut map, DriveId(1));
    let mut seen = all_serve(&map);
    // Its groups are 5 % of a drive each: of the room of 25 %, 20 % can be used.
    seen.room = map.drives.keys().map(|d| (*d, used(750))).collect();
    let lost = map.groups.values().filter(|g| g.is_degraded()).count();
    let mut begun = 0;
    while let Some(change) = next_rebuild(&map, &GroupIndex::of(&map), &seen) {
        commit(&mut map, &change);
        begun += 1;
    }
    assert!(begun > 0 && begun < lost, "{begun} of {lost} fit");
    let left =
        map.groups.values().find(|g| g.slots.iter().any(|s| s.drive == DriveId(1))).expect("one is left");
    assert!(!has_spare_drive(&map, left, DriveId(1), &seen), "and it is told");
    seen.room.clear();
    assert!(
        next_rebuild(&map, &GroupIndex::of(&map), &seen).is_some(),
        "where nothing is said, there is room"
    );
}

proptest! {
    #[test]
    fn no_copy_goes_to_a_drive_without_room_and_each_finds_one_that_has_it(
        fill in proptest::collection::vec(proptest::option::of(0u64..=1000), 5),
        victim in 1u128..=5,
        drains in any::<bool>(),
    ) {
        let mut map = bare(5);
        let change = planned(&map, &BTreeSet::new()).expect("it fits");
        commit(&mut map, &change);
        let victim = DriveId(victim);
        let mut seen = all_serve(&map);
        seen.room = (1..).zip(&fill).filter_map(|(d, fill)| Some((DriveId(d), used((*fill)?)))).collect();
        let all = BTreeSet::from([victim]);
        let planned = plan_evacuation(&map, &GroupIndex::of(&map), &all, &seen);
        match drains {
            true => commit(&mut map, &Change::DrainDrive(DrainDrive { drive: victim, on: true })),
            false => lose(&mut map, victim),
        }
        let full = nearly_full(&map, &seen.room);
        let groups = GroupIndex::of(&map);
        let step = if drains { next_relocation } else { next_rebuild };
        let next = step(&map, &groups, &seen);
        let to = match &next {
            Some(Change::BeginRelocation(begin)) => Some(begin.to),
            Some(Change::Rebuild(rebuild)) => Some(rebuild.to),
            other => { prop_assert!(other.is_none(), "{other:?}"); None }
        };
        if let Some(to) = to {
            prop_assert!(!full.contains(&to), "{to} is nearly full");
        }
        let has_spare = map.groups.values().any(|g| {
            g.slots.iter().any(|s| s.drive == victim) && has_spare_drive(&map, g, victim, &seen)
        });
        prop_assert_eq!(to.is_some(), has_spare);
        if let Ok(moves) = planned {
            prop_assert!(moves.iter().all(|m| !full.contains(&m.to)), "{moves:?}");
        }
        seen.room.clear();
        let unknown = step(&map, &groups, &seen);
        prop_assert!(unknown.is_some(), "where nothing is said, there is room");
    }
}
