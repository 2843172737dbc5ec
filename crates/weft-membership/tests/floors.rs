//! Drives whose targets do not know the floors of groups (R7): they neither come back to a group that has
//! one, nor are promoted in it, nor take a place in it.

use std::collections::BTreeSet;
use weft_membership::{
    AddDrive, Change, CreatePool, DrainDrive, DriveObservation, GroupIndex, JoinNode, Observations,
    TargetObservation, apply, has_spare_drive, next_promotion, next_rebuild, next_rejoin, next_relocation,
};
use weft_types::TargetId;
use weft_types::{
    BlockCount, DriveId, Epoch, FabricId, FabricMap, Group, GroupId, NodeId, Role, SessionSlot, Slot, Version,
};

const GROUP: GroupId = GroupId(1 << 20);

/// Three nodes with a drive each, the first two members of a group.
fn map_with(role: Role, floor: u64) -> FabricMap {
    let mut map = FabricMap::empty(FabricId(7));
    let mut commit = |change| map = apply(&map, &change).expect("it fits").0;
    commit(Change::CreatePool(CreatePool { name: "p".into() }));
    for n in 1..=3 {
        commit(Change::JoinNode(JoinNode { name: format!("n{n}"), addr: format!("10.0.1.{n}:7000") }));
    }
    let pool = map.pool_named("p").expect("it was made").id;
    let nodes: Vec<NodeId> = map.nodes.keys().copied().collect();
    for (n, node) in (1..).zip(nodes) {
        let (path, capacity) = (format!("/dev/{n}"), BlockCount(1 << 18));
        let add = AddDrive {
            drive: DriveId(n),
            target: TargetId::first_of(node),
            pool,
            path,
            capacity,
            device: None,
        };
        map = apply(&map, &Change::AddDrive(add)).expect("it fits").0;
    }
    let slot = |n, role| Slot { drive: DriveId(n), role, since: Epoch(1) };
    let slots = vec![slot(1, Role::InSync), slot(2, role)];
    let floor = Version::new(floor, SessionSlot(0));
    map.groups.insert(GROUP, Group { id: GROUP, pool, epoch: Epoch(1), slots, floor });
    map
}

/// All drives serve; the targets of these do not know floors.
fn seen(map: &FabricMap, without_floors: &[u128]) -> Observations {
    let without_floors: BTreeSet<DriveId> = without_floors.iter().map(|n| DriveId(*n)).collect();
    let mut seen = Observations { now_ms: 1_000, without_floors, ..Observations::default() };
    let alive = TargetObservation { alive: true, fenced: false, heard_ms: 1_000 };
    seen.targets = map.targets.keys().map(|&t| (t, alive)).collect();
    let present = DriveObservation { present: true, failed: None, fenced: false, seen_ms: 1_000 };
    seen.drives = map.drives.keys().map(|&d| (d, present.clone())).collect();
    seen.verified.insert((GROUP, DriveId(2)), Epoch(1));
    seen
}

/// What the plan says where the group has no floor, and where it has one.
fn planned(
    role: Role,
    without_floors: &[u128],
    next: impl Fn(&FabricMap, &Observations) -> bool,
) -> [bool; 2] {
    [0, 9].map(|floor| {
        let map = map_with(role, floor);
        next(&map, &seen(&map, without_floors))
    })
}

#[test]
fn it_does_not_come_back_and_is_not_promoted() {
    let rejoin =
        |map: &FabricMap, seen: &Observations| next_rejoin(map, &GroupIndex::of(map), seen).is_some();
    assert_eq!(planned(Role::Out, &[], rejoin), [true, true]);
    assert_eq!(planned(Role::Out, &[2], rejoin), [true, false]);
    let promotion = |map: &FabricMap, seen: &Observations| next_promotion(map, seen).is_some();
    assert_eq!(planned(Role::Syncing, &[], promotion), [true, true]);
    assert_eq!(planned(Role::Syncing, &[2], promotion), [true, false]);
}

#[test]
fn it_takes_no_place() {
    let relocation = |map: &FabricMap, seen: &Observations| {
        let drain = Change::DrainDrive(DrainDrive { drive: DriveId(2), on: true });
        let map = apply(map, &drain).expect("it is active").0;
        next_relocation(&map, &GroupIndex::of(&map), seen).is_some()
    };
    assert_eq!(planned(Role::InSync, &[], relocation), [true, true]);
    assert_eq!(planned(Role::InSync, &[3], relocation), [true, false]);
    let rebuild = |map: &FabricMap, seen: &Observations| {
        let mut map = map.clone();
        map.drives.get_mut(&DriveId(2)).expect("it is listed").state = weft_types::DriveState::Failed;
        let spare = has_spare_drive(&map, &map.groups[&GROUP], DriveId(2), seen);
        assert_eq!(next_rebuild(&map, &GroupIndex::of(&map), seen).is_some(), spare);
        spare
    };
    assert_eq!(planned(Role::Out, &[], rebuild), [true, true]);
    assert_eq!(planned(Role::Out, &[3], rebuild), [true, false]);
}
