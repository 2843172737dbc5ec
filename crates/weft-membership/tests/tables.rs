//! Volumes share lists of groups: how many there are, what is in them, and how evenly volumes lie over the
//! groups.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use weft_layout::FailureDomain;
use weft_membership::{
    AddDrive, BeginDelete, Change, CreatePool, FinishDelete, GroupIndex, JoinNode, Reason, ResizeRequest,
    VolumeRequest, apply, check, check_changed, check_step, plan_resize, plan_volume,
};
use weft_types::TargetId;
use weft_types::limits::SPAN_GROUPS_MAX;
use weft_types::{
    BlockCount, DriveId, FabricId, FabricMap, GroupId, ObjectSpan, PoolId, Protection, VolumeId,
};

const GIB: u64 = 1 << 30;

/// Objects of 64 MiB, the default, in one GiB.
const OBJECTS_PER_GIB: u64 = 16;

fn take(map: &mut FabricMap, change: &Change) -> Reason {
    let (next, reason) = apply(map, change).unwrap_or_else(|refusal| panic!("{change:?}: {refusal}"));
    assert_eq!(check(&next), [], "after {change:?}");
    assert_eq!(check_changed(map, &next), [], "after {change:?}");
    assert_eq!(check_step(map, &next), [], "by {change:?}");
    *map = next;
    reason
}

/// A pool with a drive of 1 PiB on each of these nodes.
fn fabric(nodes: u32) -> FabricMap {
    let mut map = FabricMap::empty(FabricId(7));
    take(&mut map, &Change::CreatePool(CreatePool { name: "p".into() }));
    (0..nodes).for_each(|_| add_node(&mut map));
    map
}

fn add_node(map: &mut FabricMap) {
    let n = map.nodes.len() + 1;
    let join = JoinNode { name: format!("node-{n}"), addr: format!("10.0.0.{n}:7000") };
    let Reason::NodeJoined { node, .. } = take(map, &Change::JoinNode(join)) else { panic!("joined") };
    let (drive, capacity) = (DriveId(n as u128), BlockCount(1 << 38));
    let path = format!("/dev/{n}");
    take(
        map,
        &Change::AddDrive(AddDrive {
            drive,
            target: TargetId::first_of(node),
            pool: PoolId(1),
            path,
            capacity,
            device: None,
        }),
    );
}

fn create(map: &mut FabricMap, gib: u64, copies: u8) -> VolumeId {
    let request = VolumeRequest {
        name: format!("v{}", map.next_id),
        pool: PoolId(1),
        size_bytes: gib * GIB,
        protection: Protection::mirror(copies),
        striping: None,
        domain: FailureDomain::Node,
        thin: false,
        created_ms: 0,
    };
    let change = plan_volume(map, &GroupIndex::of(map), &request, &BTreeSet::new()).expect("it fits");
    match take(map, &change) {
        Reason::VolumeCreated { volume, .. } => volume,
        other => panic!("{other:?}"),
    }
}

fn delete(map: &mut FabricMap, volume: VolumeId) {
    take(map, &Change::BeginDelete(BeginDelete { volume, force: true }));
    take(map, &Change::FinishDelete(FinishDelete { volume }));
}

/// How many objects each group of this protection has.
fn objects(map: &FabricMap, copies: usize) -> BTreeMap<GroupId, u64> {
    let groups = map.groups.values().filter(|g| g.slots.len() == copies);
    let mut objects: BTreeMap<GroupId, u64> = groups.map(|g| (g.id, 0)).collect();
    let of_protection = map.volumes.values().filter(|v| v.protection.members() == copies);
    for span in of_protection.flat_map(|volume| &volume.spans) {
        for object in 0..span.count {
            let group = span.groups[(object % span.groups.len() as u64) as usize];
            *objects.get_mut(&group).expect("it is of the protection") += 1;
        }
    }
    objects
}

fn only_span(map: &FabricMap, volume: VolumeId) -> &ObjectSpan {
    &map.volumes[&volume].spans[0]
}

#[test]
fn a_large_pool_has_as_many_tables_as_its_groups_fill() {
    // 640 groups of two copies.
    let mut map = fabric(80);
    let volumes: Vec<VolumeId> = (0..9).map(|_| create(&mut map, 100, 2)).collect();
    assert_eq!((map.groups.len(), map.group_tables.len()), (640, 3));
    assert!(volumes.iter().all(|v| only_span(&map, *v).groups.len() == SPAN_GROUPS_MAX));
    let listed: BTreeSet<&GroupId> = map.group_tables.values().flat_map(|t| t.groups()).collect();
    assert_eq!(listed.len(), 640, "each group is in one of them");
    // A small volume is a window of one of them, on other drives with each object.
    let small = create(&mut map, 1, 2);
    assert_eq!(map.group_tables.len(), 3);
    let groups = &only_span(&map, small).groups;
    assert_eq!(groups.len() as u64, OBJECTS_PER_GIB);
    let drives: BTreeSet<DriveId> =
        groups.iter().flat_map(|g| &map.groups[g].slots).map(|slot| slot.drive).collect();
    assert_eq!(drives.len() as u64, 2 * OBJECTS_PER_GIB);
}

#[test]
fn small_volumes_lie_evenly_over_the_groups() {
    let mut map = fabric(3);
    for _ in 0..30 {
        create(&mut map, 1, 2);
    }
    let objects = objects(&map, 2);
    assert_eq!((objects.len(), map.group_tables.len()), (24, 1));
    // 480 objects: 20 for each group if they lay as evenly as can be.
    assert!(objects.values().all(|count| (19..=21).contains(count)), "{objects:?}");
}

#[test]
fn new_groups_are_used_and_a_table_goes_with_its_last_volume() {
    let mut map = fabric(3);
    let first = create(&mut map, 100, 2);
    let table = *map.group_tables.keys().next().expect("there is one");
    add_node(&mut map);
    let second = create(&mut map, 100, 2);
    assert_eq!(only_span(&map, second).groups.len(), 32, "the groups of four drives");
    assert_eq!(map.group_tables.len(), 2);
    let third = create(&mut map, 1, 2);
    delete(&mut map, first);
    let is_first = |v: VolumeId| only_span(&map, v).groups.window().is_some_and(|(t, _)| t.id == table);
    assert_eq!(map.group_tables.contains_key(&table), is_first(third));
    delete(&mut map, third);
    delete(&mut map, second);
    assert!(map.group_tables.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Create(u64, u8),
    Grow(usize, u64),
    Delete(usize),
    AddNode,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1u64..40, 2u8..4).prop_map(|(gib, copies)| Step::Create(gib, copies)),
        2 => (any::<usize>(), 1u64..20).prop_map(|(at, gib)| Step::Grow(at, gib)),
        2 => any::<usize>().prop_map(Step::Delete),
        1 => Just(Step::AddNode),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Each change is checked by `take`; the tables do not become more and more.
    #[test]
    fn tables_stay_few(steps in steps(), nodes in 3u32..40) {
        let mut map = fabric(nodes);
        let mut joined = 0;
        for step in steps {
            let volumes: Vec<VolumeId> = map.volumes.keys().copied().collect();
            let at = |n: usize| volumes.get(n % volumes.len().max(1)).copied();
            match step {
                Step::Create(gib, copies) => {
                    create(&mut map, gib, copies);
                }
                Step::Delete(n) => at(n).into_iter().for_each(|volume| delete(&mut map, volume)),
                Step::Grow(n, gib) => {
                    let Some(volume) = at(n) else { continue };
                    let size_bytes = map.volumes[&volume].size.0 * 4096 + gib * GIB;
                    let request = ResizeRequest { volume, size_bytes, domain: FailureDomain::Node };
                    let change = plan_resize(&map, &GroupIndex::of(&map), &request, &BTreeSet::new()).expect("it grows");
                    take(&mut map, &change);
                }
                Step::AddNode => {
                    add_node(&mut map);
                    joined += 1;
                }
            }
        }
        let full = |copies| objects(&map, copies).len().div_ceil(SPAN_GROUPS_MAX);
        // For each protection, and one more with each time that there were new groups.
        let most = full(2) + full(3) + 2 * joined;
        prop_assert!(map.group_tables.len() <= most, "{} tables, {most} are enough", map.group_tables.len());
    }
}
