//! File systems over a small fabric: what one commit makes, what becomes of it, and what is refused.

use std::collections::BTreeSet;
use weft_layout::FailureDomain;
use weft_membership::{
    AddDrive, BeginDelete, Change, CreatePool, FileSystemRequest, FinishDelete, GroupIndex, JoinNode,
    OpenSession, Reason, Refusal, ResizeRequest, SHARDS_DEFAULT, SweepSession, VolumeRequest, apply, check,
    check_changed, check_step, free_blocks, plan_file_set, plan_file_system, plan_resize, plan_volume,
};
use weft_types::limits::{SETS_MAX, SHARDS_MAX, SPAN_GROUPS_MAX, SYSTEM_VOLUME_GROUPS_MAX};
use weft_types::{
    AttachMode, BlockCount, DriveId, FabricId, FabricMap, GroupId, ObjectId, PoolId, Protection, SessionId,
    Striping, TargetId, Volume, VolumeId, VolumeKind, VolumeState,
};

const GIB: u64 = 1 << 30;
const POOL: PoolId = PoolId(1);

/// Applies a change that must be accepted.
fn take(map: &mut FabricMap, change: Change) -> Reason {
    let (next, reason) = apply(map, &change).unwrap_or_else(|refusal| panic!("{change:?}: {refusal}"));
    assert_eq!(check(&next), [], "after {change:?}");
    assert_eq!(check_changed(map, &next), [], "after {change:?}");
    assert_eq!(check_step(map, &next), [], "by {change:?}");
    assert!(!reason.to_string().is_empty());
    *map = next;
    reason
}

/// Nodes with one drive each of 10 GiB.
fn fabric(nodes: u32) -> FabricMap {
    let mut map = FabricMap::empty(FabricId(7));
    take(&mut map, Change::CreatePool(CreatePool { name: "p".into() }));
    add_nodes(&mut map, 1..=nodes);
    map
}

fn add_nodes(map: &mut FabricMap, numbers: impl Iterator<Item = u32>) {
    for n in numbers {
        let join = JoinNode { name: format!("node-{n}"), addr: format!("10.0.0.{n}:7000") };
        let Reason::NodeJoined { node, .. } = take(map, Change::JoinNode(join)) else { panic!() };
        let add = AddDrive {
            drive: DriveId(n.into()),
            target: TargetId::first_of(node),
            pool: POOL,
            path: format!("/dev/{n}"),
            capacity: BlockCount(10 * GIB / 4096),
            device: None,
        };
        take(map, Change::AddDrive(add));
    }
}

fn request(name: &str, shards: usize) -> FileSystemRequest {
    FileSystemRequest {
        name: name.into(),
        pool: POOL,
        protection: Protection::mirror(2),
        striping: None,
        domain: FailureDomain::Node,
        shards,
        is_spread: false,
        created_ms: 5,
    }
}

fn plan(map: &FabricMap, request: &FileSystemRequest) -> Result<Change, Refusal> {
    plan_file_system(map, &GroupIndex::of(map), request, &BTreeSet::new())
}

fn create(map: &mut FabricMap, request: &FileSystemRequest) -> VolumeId {
    let change = plan(map, request).unwrap_or_else(|refusal| panic!("{request:?}: {refusal}"));
    match take(map, change) {
        Reason::FileSystemCreated { file_system, .. } => file_system,
        other => panic!("{other:?}"),
    }
}

fn volume(map: &mut FabricMap, name: &str) -> Result<VolumeId, Refusal> {
    let request = VolumeRequest {
        name: name.into(),
        pool: POOL,
        size_bytes: GIB,
        protection: Protection::mirror(2),
        striping: None,
        domain: FailureDomain::Node,
        thin: false,
        created_ms: 5,
    };
    let change = plan_volume(map, &GroupIndex::of(map), &request, &BTreeSet::new())?;
    match take(map, change) {
        Reason::VolumeCreated { volume, .. } => Ok(volume),
        other => panic!("{other:?}"),
    }
}

fn attach(map: &mut FabricMap, volume: VolumeId, mode: AttachMode) -> Result<SessionId, Refusal> {
    let open = OpenSession { volume, mode, client: "c".into(), preempt: false, number: 0, lanes: 1 };
    apply(map, &Change::OpenSession(open.clone()))?;
    match take(map, Change::OpenSession(open)) {
        Reason::SessionOpened { session, .. } => Ok(session),
        other => panic!("{other:?}"),
    }
}

fn shards_of(map: &FabricMap, file_system: VolumeId) -> Vec<&Volume> {
    let files = map.volumes[&file_system].files().expect("it is a file system");
    files.system_volumes().map(|id| &map.volumes[&id]).collect()
}

#[test]
fn one_commit_makes_a_file_system_with_its_system_volumes() {
    let mut map = fabric(6);
    let before = map.version;
    let id = create(&mut map, &request("photos", SHARDS_DEFAULT));
    assert_eq!(map.version.0, before.0 + 1);
    let listed = &map.volumes[&id];
    let files = listed.files().expect("it is one");
    assert_eq!((files.sets.len(), files.shards.len()), (1, SHARDS_DEFAULT));
    assert_eq!(files.sets[0].len(), map.groups.len(), "its first set has all groups of the pool");
    let mut used = BTreeSet::new();
    for (shard, volume) in shards_of(&map, id).iter().enumerate() {
        assert_eq!(volume.name, format!("photos:{shard}"));
        assert_eq!((volume.system_of(), volume.thin, volume.size.0), (Some(id), true, 1 << 28));
        let groups: BTreeSet<_> = volume.groups().copied().collect();
        assert!(groups.len() <= SYSTEM_VOLUME_GROUPS_MAX, "{groups:?}");
        used.extend(groups);
    }
    assert_eq!(used.len(), map.groups.len(), "its shards are spread over all groups");
}

#[test]
fn volumes_and_file_systems_share_groups_tables_and_names() {
    let mut map = fabric(4);
    volume(&mut map, "v").expect("it fits");
    let (groups, tables) = (map.groups.len(), map.group_tables.len());
    let id = create(&mut map, &request("photos", 4));
    assert_eq!((map.groups.len(), map.group_tables.len()), (groups, tables));
    let taken = |refusal| matches!(refusal, Err(Refusal::NameTaken { .. }));
    assert!(taken(plan(&map, &request("v", 1))));
    assert!(taken(plan(&map, &request("photos", 1))));
    let error = volume(&mut map, "photos").unwrap_err().to_string();
    assert_eq!(error, "there is already a file system named 'photos'");
    assert!(matches!(volume(&mut map, "photos:0"), Err(Refusal::Name { .. })));
    // The sizes of system volumes are what they may have, not what is promised.
    let protection = Protection::mirror(2);
    let free = free_blocks(&map, POOL, protection, FailureDomain::Node);
    assert_eq!(free.0 * 4096 / GIB, 4 * 10 / 2 - 1);
    let lists = map.group_lists();
    assert!(lists.iter().any(|list| list.volumes.iter().any(|v| v.id == id)));
}

#[test]
fn a_file_system_has_from_one_shard_to_the_most() {
    let mut map = fabric(3);
    for shards in [0, SHARDS_MAX + 1] {
        let refusal = plan(&map, &request("f", shards)).unwrap_err();
        assert!(matches!(refusal, Refusal::Shards { .. }) && refusal.hint().is_some());
    }
    create(&mut map, &request("one", 1));
    create(&mut map, &request("most", SHARDS_MAX));
    assert_eq!(map.file_systems().count(), 2);
    let wide = Striping { unit_blocks: 64, width: 64, object_blocks: 16_384 };
    let refusal = plan(&map, &FileSystemRequest { striping: Some(wide), ..request("wide", 1) });
    assert!(matches!(refusal, Err(Refusal::WiderThanPool { .. })));
}

#[test]
fn a_file_system_gets_no_number_that_its_objects_have_no_room_for() {
    let mut map = fabric(3);
    create(&mut map, &request("f", 1));
    map.next_id = ObjectId::FILE_SYSTEM_MAX;
    let last = create(&mut map, &request("last", 1));
    assert_eq!(last.0, ObjectId::FILE_SYSTEM_MAX);
    assert!(matches!(plan(&map, &request("beyond", 1)), Err(Refusal::NumbersUsedUp { .. })));
    volume(&mut map, "v").expect("volumes go on");
}

#[test]
fn deletion_takes_the_system_volumes_along() {
    let mut map = fabric(4);
    let id = create(&mut map, &request("photos", 2));
    let shards: Vec<VolumeId> = shards_of(&map, id).iter().map(|v| v.id).collect();
    let mount = attach(&mut map, id, AttachMode::Shared).expect("it mounts");
    let server = attach(&mut map, shards[1], AttachMode::Exclusive).expect("its server attaches");
    let begin = |force| Change::BeginDelete(BeginDelete { volume: id, force });
    let refusal = apply(&map, &begin(false)).unwrap_err();
    assert!(refusal.to_string().starts_with("file system 'photos' is in use by 1 client"), "{refusal}");
    let Reason::VolumeDeleting { ended, .. } = take(&mut map, begin(true)) else { panic!() };
    assert_eq!(ended, [mount, server]);
    for entry in shards.iter().chain([&id]) {
        assert_eq!(map.volumes[entry].state, VolumeState::Deleting);
    }
    assert!(matches!(apply(&map, &begin(true)), Err(Refusal::Deleting { .. })));
    for session in [mount, server] {
        take(&mut map, Change::SweepSession(SweepSession { session }));
    }
    // Each is forgotten when its blocks are gone, in any order.
    for volume in [shards[1], id, shards[0]] {
        take(&mut map, Change::FinishDelete(FinishDelete { volume }));
    }
    assert!(map.volumes.is_empty() && map.group_tables.is_empty());
}

#[test]
fn nobody_but_the_server_of_its_metadata_stands_in_the_way_of_a_deletion() {
    let mut map = fabric(4);
    let id = create(&mut map, &request("photos", 1));
    let shard = shards_of(&map, id)[0].id;
    attach(&mut map, shard, AttachMode::Exclusive).expect("its server attaches");
    take(&mut map, Change::BeginDelete(BeginDelete { volume: id, force: false }));
}

#[test]
fn a_system_volume_is_nothing_that_users_change() {
    let mut map = fabric(4);
    let id = create(&mut map, &request("photos", 1));
    let shard = shards_of(&map, id)[0].id;
    let resize = |map: &FabricMap, volume| {
        let request = ResizeRequest { volume, size_bytes: 1 << 41, domain: FailureDomain::Node };
        plan_resize(map, &GroupIndex::of(map), &request, &BTreeSet::new()).unwrap_err()
    };
    let delete = Change::BeginDelete(BeginDelete { volume: shard, force: true });
    for refusal in [resize(&map, shard), apply(&map, &delete).unwrap_err()] {
        assert_eq!(refusal.to_string(), "volume 'photos:0' is a system volume of file system 'photos'");
        assert!(refusal.hint().expect("a hint").contains("weft fs show photos"));
    }
    assert!(matches!(resize(&map, id), Refusal::HasNoSize { .. }));
    assert!(matches!(attach(&mut map, id, AttachMode::Exclusive), Err(Refusal::NotExclusive { .. })));
    attach(&mut map, id, AttachMode::ReadOnly).expect("one that only reads");
}

fn plan_set(map: &FabricMap, file_system: VolumeId) -> Result<Change, Refusal> {
    plan_set_beside(map, file_system, &BTreeSet::new())
}

/// Some of its drives are nearly full.
fn plan_set_beside(
    map: &FabricMap,
    file_system: VolumeId,
    full: &BTreeSet<DriveId>,
) -> Result<Change, Refusal> {
    let wanted = (file_system, FailureDomain::Node);
    plan_file_set(map, &GroupIndex::of(map), wanted, &BTreeSet::new(), full)
}

#[test]
fn a_file_system_grows_beside_drives_that_are_full() {
    let mut map = fabric(2);
    let id = create(&mut map, &request("photos", 1));
    add_nodes(&mut map, 3..=4);
    let full = BTreeSet::from([DriveId(1), DriveId(2)]);
    let change = plan_set_beside(&map, id, &full).expect("there are new drives");
    take(&mut map, change);
    let newest = map.volumes[&id].files().expect("it is one").sets.last().expect("it has some").clone();
    let drives: BTreeSet<DriveId> =
        newest.iter().flat_map(|group| map.groups[group].slots.iter().map(|slot| slot.drive)).collect();
    assert_eq!(drives, BTreeSet::from([DriveId(3), DriveId(4)]), "only those with room");
}

#[test]
fn a_file_system_grows_into_drives_that_were_added() {
    let mut map = fabric(2);
    let id = create(&mut map, &request("photos", 1));
    let sets = |map: &FabricMap| map.volumes[&id].files().expect("it is one").sets.clone();
    let first = sets(&map);
    assert!(matches!(plan_set(&map, id), Err(Refusal::NothingToAdd { .. })));
    add_nodes(&mut map, 3..=4);
    let change = plan_set(&map, id).expect("there are new drives");
    let reason = take(&mut map, change);
    let grown = sets(&map);
    assert!(matches!(reason, Reason::FileSystemGrown { sets: 2, new_groups: 1.., .. }), "{reason}");
    assert_eq!(grown[..1], first[..], "files that there are stay where they are");
    let drives = |set: &[GroupId]| -> BTreeSet<DriveId> {
        set.iter().flat_map(|group| map.groups[group].slots.iter().map(|slot| slot.drive)).collect()
    };
    assert_eq!(drives(&first[0]).len(), 2);
    assert_eq!(drives(&grown[1]).len(), 4, "new ones lie on all drives");
    assert!(matches!(plan_set(&map, id), Err(Refusal::NothingToAdd { .. })));
    let other = volume(&mut map, "v").expect("it fits");
    assert!(matches!(plan_set(&map, other), Err(Refusal::Unknown { .. })), "a volume has no sets");
    take(&mut map, Change::BeginDelete(BeginDelete { volume: id, force: false }));
    assert!(matches!(plan_set(&map, id), Err(Refusal::Deleting { .. })));
}

/// A set has no room for all groups of a large pool: a further one has those that the newest one lacks.
#[test]
fn a_file_system_of_a_large_pool_grows_as_well() {
    let mut map = fabric(40);
    let id = create(&mut map, &request("photos", 1));
    let newest = |map: &FabricMap| -> BTreeSet<GroupId> {
        let sets = &map.volumes[&id].files().expect("it is one").sets;
        sets.last().expect("it has some").iter().copied().collect()
    };
    let before = newest(&map);
    assert_eq!(before.len(), SPAN_GROUPS_MAX);
    add_nodes(&mut map, 41..=60);
    let change = plan_set(&map, id).expect("there are new drives");
    take(&mut map, change);
    assert!(newest(&map).is_disjoint(&before), "{:?}", newest(&map));
}

#[test]
fn a_file_system_has_so_many_sets_and_no_more() {
    let mut map = fabric(2);
    let id = create(&mut map, &request("photos", 1));
    let sets = &mut files(map.volumes.get_mut(&id).expect("it is there")).sets;
    *sets = vec![sets[0].clone(); SETS_MAX - 1];
    add_nodes(&mut map, 3..=4);
    let last = plan_set(&map, id).expect("one more");
    take(&mut map, last);
    add_nodes(&mut map, 5..=6);
    let refusal = plan_set(&map, id).unwrap_err();
    assert!(matches!(refusal, Refusal::TooManySets { .. }), "{refusal}");
    assert!(refusal.hint().expect("a hint").contains("weft drive evacuate"));
}

/// What becomes of a volume that is to be found out.
type Damage = fn(&mut Volume);

#[test]
fn what_does_not_belong_together_is_found() {
    let mut sound = fabric(4);
    let id = create(&mut sound, &request("photos", 2));
    let shard = shards_of(&sound, id)[0].id;
    let change: [(&str, Damage); 6] = [
        ("a size", |v| v.size = BlockCount(9)),
        ("no set", |v| files(v).sets.clear()),
        ("a shard twice", |v| files(v).shards = vec![files(v).shards[0]; 2]),
        ("a shard less", |v| files(v).shards.truncate(1)),
        ("blocks", |v| v.kind = VolumeKind::Blocks),
        ("a reserved name", |v| v.name = "a:b".into()),
    ];
    let damaged = change.iter().map(|(what, change)| (id, *what, *change));
    let change: [(&str, Damage); 3] = [
        ("nobody's", |v| v.kind = VolumeKind::System { file_system: VolumeId(1) }),
        ("a user's volume", |v| v.kind = VolumeKind::Blocks),
        ("another name", |v| v.name = "photos:7".into()),
    ];
    for (id, what, change) in damaged.chain(change.iter().map(|(what, change)| (shard, *what, *change))) {
        let mut map = sound.clone();
        map.version.0 += 1;
        change(map.volumes.get_mut(&id).expect("it is there"));
        assert_ne!(check(&map), [], "{what}");
        assert_ne!(check_changed(&sound, &map), [], "{what}");
    }
    let mut map = sound.clone();
    map.volumes.remove(&shard);
    assert_ne!(check(&map), []);
    assert_ne!(check_changed(&sound, &map), []);
}

fn files(volume: &mut Volume) -> &mut weft_types::FileSystem {
    match &mut volume.kind {
        VolumeKind::Files(files) => files,
        other => panic!("{other:?}"),
    }
}
