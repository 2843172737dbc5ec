//! Volumes and sessions over a small fabric: what is refused, and what the map holds after what is not.

use std::collections::BTreeSet;
use weft_layout::{FailureDomain, LayoutError, group_of};
use weft_membership::{
    AddDrive, AddTarget, AssignDrive, BeginDelete, BeginRelocation, Change, CloseSession, CreatePool,
    FinishDelete, GroupIndex, JoinNode, MoveTarget, OpenSession, Reason, Refusal, RemoveDrive, RemoveTarget,
    ResizeRequest, SetDevice, SweepSession, VolumeRequest, apply, check, check_step, domain_of,
    exclusive_over, free_blocks, plan_resize, plan_volume,
};
use weft_types::TargetId;
use weft_types::limits::TARGETS_PER_NODE_MAX;
use weft_types::{
    AttachMode, BlockCount, DeviceId, DriveId, FabricId, FabricMap, Generation, NodeId, PoolId, SessionId,
    SessionState, Striping, VolumeId, VolumeState,
};

const GIB: u64 = 1 << 30;
const POOL: PoolId = PoolId(1);

/// Applies a change that must be accepted.
fn take(map: &mut FabricMap, change: Change) -> Reason {
    let (next, reason) = apply(map, &change).unwrap_or_else(|refusal| panic!("{change:?}: {refusal}"));
    assert_eq!(check(&next), [], "after {change:?}");
    assert_eq!(check_step(map, &next), [], "by {change:?}");
    assert!(!reason.to_string().is_empty());
    *map = next;
    reason
}

/// Nodes with one drive each of 10 GiB.
fn fabric(nodes: u32) -> FabricMap {
    let mut map = FabricMap::empty(FabricId(7));
    take(&mut map, Change::CreatePool(CreatePool { name: "p".into() }));
    for n in 1..=nodes {
        add_node(&mut map, n);
    }
    map
}

fn add_node(map: &mut FabricMap, n: u32) {
    let join = JoinNode { name: format!("node-{n}"), addr: format!("10.0.0.{n}:7000") };
    let Reason::NodeJoined { node, .. } = take(map, Change::JoinNode(join)) else { panic!("joined") };
    take(map, Change::AddDrive(drive(u128::from(n), node)));
}

fn drive(id: u128, node: NodeId) -> AddDrive {
    let capacity = BlockCount(10 * GIB / 4096);
    AddDrive {
        drive: DriveId(id),
        target: TargetId::first_of(node),
        pool: POOL,
        path: format!("/dev/{id}"),
        capacity,
        device: None,
    }
}

fn request(name: &str, size_bytes: u64, copies: u8) -> VolumeRequest {
    VolumeRequest {
        name: name.into(),
        pool: POOL,
        size_bytes,
        protection: weft_types::Protection::mirror(copies),
        striping: None,
        domain: FailureDomain::Node,
        thin: false,
        created_ms: 0,
    }
}

fn plan(map: &FabricMap, request: &VolumeRequest) -> Result<Change, Refusal> {
    plan_volume(map, &GroupIndex::of(map), request, &BTreeSet::new())
}

fn create(map: &mut FabricMap, request: &VolumeRequest) -> VolumeId {
    let change = plan(map, request).unwrap_or_else(|refusal| panic!("{request:?}: {refusal}"));
    match take(map, change) {
        Reason::VolumeCreated { volume, .. } => volume,
        other => panic!("{other:?}"),
    }
}

fn attach(
    map: &mut FabricMap,
    volume: VolumeId,
    mode: AttachMode,
    preempt: bool,
) -> Result<SessionId, Refusal> {
    let change =
        Change::OpenSession(OpenSession { volume, mode, client: "c".into(), preempt, number: 0, lanes: 1 });
    apply(map, &change)?;
    match take(map, change) {
        Reason::SessionOpened { session, .. } => Ok(session),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_first_volume_makes_the_groups_and_the_next_one_uses_them() {
    let mut map = fabric(3);
    create(&mut map, &request("a", GIB, 2));
    assert_eq!(map.groups.len(), 24, "16 per drive, two drives each");
    let b = create(&mut map, &request("b", GIB, 2));
    assert_eq!(map.groups.len(), 24);
    create(&mut map, &request("c", GIB, 3));
    assert_eq!(map.groups.len(), 24 + 16, "three copies need groups of their own");
    let volume = &map.volumes[&b];
    assert_eq!(volume.generation, Generation(1));
    let row: BTreeSet<_> = (0..4).map(|i| group_of(volume, i).expect("covered")).collect();
    assert_eq!(row.len(), 4, "a stripe runs over four groups");
    assert_eq!(group_of(volume, 16), None, "1 GiB is 16 objects");
}

#[test]
fn a_shared_attach_fences_an_exclusive_session_that_is_over_and_no_other() {
    let mut map = fabric(2);
    let volume = create(&mut map, &request("a", GIB, 2));
    let alone = attach(&mut map, volume, AttachMode::Exclusive, false).unwrap();
    take(&mut map, Change::CloseSession(CloseSession { session: alone }));
    let before = map.volumes[&volume].generation;
    attach(&mut map, volume, AttachMode::Shared, false).unwrap();
    let after = map.volumes[&volume].generation;
    assert!(after > before, "its client may not know that it is over");
    attach(&mut map, volume, AttachMode::Shared, false).unwrap();
    assert_eq!(map.volumes[&volume].generation, after, "the first shared session lives on");
    assert_eq!(exclusive_over(&map, volume).map(|s| s.id).collect::<Vec<_>>(), [alone], "until it is swept");
}

#[test]
fn small_volumes_take_turns_on_the_groups() {
    let mut map = fabric(3);
    let volumes: Vec<_> = (0..6).map(|i| create(&mut map, &request(&format!("v{i}"), GIB / 4, 2))).collect();
    let used: BTreeSet<_> = volumes.iter().flat_map(|v| &map.volumes[v].spans[0].groups).collect();
    assert_eq!(used.len(), 24, "six volumes of four objects each use all groups once");
}

#[test]
fn new_drives_get_groups_with_the_next_volume() {
    let mut map = fabric(3);
    create(&mut map, &request("a", GIB, 2));
    for n in 4..=6 {
        add_node(&mut map, n);
    }
    create(&mut map, &request("b", GIB, 2));
    assert_eq!(map.groups.len(), 48);
    let of_new = map.groups.values().filter(|g| g.slot_of(DriveId(5)).is_some()).count();
    assert_eq!(of_new, 16);
}

#[test]
fn absent_drives_get_no_new_group() {
    let mut map = fabric(4);
    let change = plan_volume(&map, &GroupIndex::of(&map), &request("a", GIB, 2), &[DriveId(2)].into())
        .expect("three are left");
    take(&mut map, change);
    assert!(map.groups.values().all(|g| g.slot_of(DriveId(2)).is_none()));
}

#[test]
fn bad_requests_are_refused_with_their_figures() {
    let map = fabric(2);
    let text = |request: VolumeRequest| {
        let refusal = plan(&map, &request).expect_err("a refusal");
        let hint = refusal.hint().unwrap_or_default();
        format!(
            "{refusal}{}; {hint}",
            std::error::Error::source(&refusal).map_or(String::new(), |s| format!(": {s}"))
        )
    };
    let expect = |request: VolumeRequest, parts: &[&str]| {
        let text = text(request);
        assert!(parts.iter().all(|p| text.contains(p)), "{text} lacks one of {parts:?}");
    };
    expect(request("a/b", GIB, 2), &["'a/b'", "contains '/'", "A-Z a-z 0-9"]);
    expect(request(&"x".repeat(300), GIB, 2), &["300 bytes", "63"]);
    expect(request("v", 0, 2), &["0 bytes", "multiple of 4096"]);
    expect(request("v", 5000, 2), &["5000 bytes", "8192"]);
    expect(request("v", u64::MAX - 4095, 2), &["more than any volume"]);
    expect(request("v", GIB, 0), &["0 copies", "1 to 3"]);
    expect(request("v", GIB, 3), &["3 copies need 3 drives, found 2", "add drives"]);
    expect(
        request("v", 11 * GIB, 2),
        &["can promise 10 GiB more at 2 copies", "11 GiB are needed", "--thin"],
    );
    expect(VolumeRequest { pool: PoolId(9), ..request("v", GIB, 2) }, &["no pool p9"]);
    let wide = Striping { unit_blocks: 16, width: 64, object_blocks: 16_384 };
    expect(VolumeRequest { striping: Some(wide), ..request("v", GIB, 2) }, &["width 64", "16 with 2 copies"]);
    let odd = Striping { unit_blocks: 3, width: 1, object_blocks: 16_384 };
    expect(VolumeRequest { striping: Some(odd), ..request("v", GIB, 2) }, &["power of two"]);
}

#[test]
fn space_is_promised_once_and_thin_volumes_may_exceed_it() {
    let mut map = fabric(3);
    let free = |map: &FabricMap, copies| {
        let protection = weft_types::Protection::mirror(copies);
        free_blocks(map, POOL, protection, FailureDomain::Node).0 * 4096 / GIB
    };
    assert_eq!((free(&map, 1), free(&map, 2), free(&map, 3)), (30, 15, 10));
    create(&mut map, &request("a", 9 * GIB, 2));
    assert_eq!((free(&map, 1), free(&map, 2), free(&map, 3)), (12, 6, 4));
    assert!(matches!(plan(&map, &request("b", 7 * GIB, 2)), Err(Refusal::NoSpace { .. })));
    create(&mut map, &VolumeRequest { thin: true, ..request("b", 7000 * GIB, 2) });
    assert_eq!(free(&map, 2), 0);
    assert_eq!(
        plan(&map, &request("a", GIB, 2)).map_err(|r| r.to_string()),
        Err("there is already a volume named 'a'".into())
    );
}

#[test]
fn a_plan_for_another_map_is_refused() {
    let mut map = fabric(3);
    let stale = plan(&map, &request("a", GIB, 2)).expect("a plan");
    add_node(&mut map, 4);
    assert!(matches!(apply(&map, &stale), Err(Refusal::PlannedElsewhere { .. })));
}

#[test]
fn growing_keeps_what_is_there_and_shrinking_is_refused() {
    let mut map = fabric(3);
    let id = create(&mut map, &request("a", GIB / 2, 2));
    let resize = |map: &FabricMap, size_bytes| {
        let request = ResizeRequest { volume: id, size_bytes, domain: FailureDomain::Node };
        plan_resize(map, &GroupIndex::of(map), &request, &BTreeSet::new())
    };
    let before = map.volumes[&id].clone();
    for size in [GIB / 2 + 4096, GIB, 3 * GIB, 5 * GIB, 6 * GIB] {
        let change = resize(&map, size).expect("it fits");
        take(&mut map, change);
    }
    let after = &map.volumes[&id];
    assert_eq!(after.size, BlockCount(6 * GIB / 4096));
    assert_eq!(after.generation, before.generation, "growing fences nobody");
    assert!((0..8).all(|i| group_of(&before, i) == group_of(after, i)), "no object moved");
    assert_eq!(after.spans.last().expect("a span").groups.len(), 24, "later spans use all groups, and go on");
    assert!(after.spans.len() < 5, "{:?}", after.spans);
    assert!(matches!(resize(&map, GIB), Err(Refusal::Shrink { .. })));
    assert!(matches!(resize(&map, 6 * GIB), Err(Refusal::SameSize { .. })));
    assert!(matches!(resize(&map, 16 * GIB), Err(Refusal::NoSpace { .. })));
}

#[test]
fn often_grown_volumes_keep_a_bounded_number_of_spans() {
    let mut map = fabric(3);
    let thin = VolumeRequest { thin: true, ..request("a", GIB / 4, 2) };
    let id = create(&mut map, &thin);
    for step in 2..200 {
        let request = ResizeRequest { volume: id, size_bytes: step * GIB / 4, domain: FailureDomain::Node };
        let change = plan_resize(&map, &GroupIndex::of(&map), &request, &BTreeSet::new()).expect("it grows");
        take(&mut map, change);
    }
    let spans = &map.volumes[&id].spans;
    assert!(spans.len() <= 64, "{} spans", spans.len());
    assert_eq!(spans.last().expect("a span").groups.len(), 24);
}

#[test]
fn deletion_waits_for_sessions() {
    let mut map = fabric(2);
    let volume = create(&mut map, &request("a", GIB, 2));
    let session = attach(&mut map, volume, AttachMode::Shared, false).expect("free");
    let begin = |force| Change::BeginDelete(BeginDelete { volume, force });
    let finish = Change::FinishDelete(FinishDelete { volume });
    assert!(matches!(apply(&map, &begin(false)), Err(Refusal::Attached { sessions: 1, .. })));
    assert!(matches!(apply(&map, &finish), Err(Refusal::NotDeleting { .. })));
    take(&mut map, begin(true));
    assert_eq!(map.sessions[&session].state, SessionState::Over);
    assert_eq!(
        (map.volumes[&volume].state, map.volumes[&volume].generation),
        (VolumeState::Deleting, Generation(2))
    );
    assert!(matches!(apply(&map, &begin(true)), Err(Refusal::Deleting { .. })));
    assert!(matches!(attach(&mut map, volume, AttachMode::Shared, true), Err(Refusal::Deleting { .. })));
    assert!(matches!(apply(&map, &finish), Err(Refusal::Unswept { sessions: 1, .. })));
    take(&mut map, Change::SweepSession(SweepSession { session }));
    take(&mut map, finish);
    assert!(map.volumes.is_empty());
}

#[test]
fn who_may_attach_beside_whom() {
    use AttachMode::{Exclusive, ReadOnly, Shared};
    for (open, new, fits) in [
        (Shared, Shared, true),
        (Shared, ReadOnly, true),
        (Shared, Exclusive, false),
        (ReadOnly, Shared, true),
        (ReadOnly, ReadOnly, true),
        (ReadOnly, Exclusive, false),
        (Exclusive, Shared, false),
        (Exclusive, ReadOnly, false),
        (Exclusive, Exclusive, false),
    ] {
        let mut map = fabric(2);
        let volume = create(&mut map, &request("a", GIB, 2));
        let first = attach(&mut map, volume, open, false).expect("nobody is there");
        let generation = map.volumes[&volume].generation;
        assert_eq!(generation, Generation(if open == Exclusive { 2 } else { 1 }), "{open}");
        let second = attach(&mut map, volume, new, false);
        assert_eq!(second.is_ok(), fits, "{new} beside {open}");
        if fits {
            assert_eq!(map.volumes[&volume].generation, generation, "{new} beside {open} fences nobody");
            continue;
        }
        let second = attach(&mut map, volume, new, true).expect("preempts");
        assert_eq!(map.volumes[&volume].generation, Generation(generation.0 + 1));
        assert_eq!(map.sessions[&first].state, SessionState::Over);
        assert_eq!(map.sessions[&second].generation, map.volumes[&volume].generation);
        let again = attach(&mut map, volume, new, false);
        assert_eq!(again.is_ok(), new != Exclusive, "{new} beside itself");
    }
}

#[test]
fn a_preemption_without_need_fences_nobody() {
    let mut map = fabric(2);
    let volume = create(&mut map, &request("a", GIB, 2));
    let first = attach(&mut map, volume, AttachMode::Shared, false).expect("free");
    attach(&mut map, volume, AttachMode::Shared, true).expect("fits");
    assert_eq!(map.sessions[&first].state, SessionState::Open);
    assert_eq!(map.volumes[&volume].generation, Generation(1));
}

#[test]
fn sessions_close_once_and_are_forgotten_after_the_sweep() {
    let mut map = fabric(2);
    let volume = create(&mut map, &request("a", GIB, 2));
    let session = attach(&mut map, volume, AttachMode::Exclusive, false).expect("free");
    let (close, sweep) =
        (Change::CloseSession(CloseSession { session }), Change::SweepSession(SweepSession { session }));
    assert_eq!(apply(&map, &sweep), Err(Refusal::StillOpen { session }));
    let slot = map.sessions[&session].slot;
    take(&mut map, close.clone());
    assert_eq!(apply(&map, &close), Err(Refusal::AlreadyOver { session }));
    let next =
        attach(&mut map, volume, AttachMode::Exclusive, false).expect("one that is over is not in the way");
    assert_ne!(map.sessions[&next].slot, slot);
    take(&mut map, sweep.clone());
    assert!(matches!(apply(&map, &sweep), Err(Refusal::Unknown { .. })));
}

#[test]
fn nodes_and_drives_are_unique() {
    let mut map = fabric(2);
    let join = |name: &str, addr: &str| Change::JoinNode(JoinNode { name: name.into(), addr: addr.into() });
    let refusal = |map: &FabricMap, change| apply(map, &change).expect_err("a refusal");
    assert!(matches!(refusal(&map, join("node-1", "10.0.0.9:1")), Refusal::NameTaken { .. }));
    assert!(matches!(refusal(&map, join("node/1", "10.0.0.9:1")), Refusal::Name { .. }));
    assert!(matches!(refusal(&map, join("node-9", "10.0.0.1:7000")), Refusal::AddressTaken { .. }));
    assert!(matches!(refusal(&map, join("node-9", "nowhere")), Refusal::Address { .. }));
    let node = map.node_named("node-2").expect("it joined").id;
    let twin = refusal(&map, Change::AddDrive(drive(1, node))).to_string();
    assert!(twin.contains("already in the fabric, as /dev/1 on node n2; found again"), "{twin}");
    let empty = AddDrive { capacity: BlockCount(0), ..drive(9, node) };
    assert!(matches!(refusal(&map, Change::AddDrive(empty)), Refusal::EmptyDrive { .. }));
    assert!(matches!(refusal(&map, Change::AddDrive(drive(9, NodeId(99)))), Refusal::Unknown { .. }));
    take(
        &mut map,
        Change::MoveTarget(MoveTarget { target: TargetId::first_of(node), addr: "host-2:7001".into() }),
    );
    assert_eq!(map.drive_addr(DriveId(2)), Some("host-2:7001"));
    create(&mut map, &request("a", GIB, 2));
    let remove = |id| Change::RemoveDrive(RemoveDrive { drive: DriveId(id) });
    assert!(matches!(refusal(&map, remove(1)), Refusal::DriveInUse { groups: 16, .. }));
    take(&mut map, Change::AddDrive(drive(3, node)));
    take(&mut map, remove(3));
}

#[test]
fn a_node_has_further_targets_which_take_its_drives_over() {
    let mut map = fabric(2);
    let refusal = |map: &FabricMap, change| apply(map, &change).expect_err("a refusal");
    let node = map.node_named("node-1").expect("it joined").id;
    let add = |index, addr: &str| Change::AddTarget(AddTarget { node, index, addr: addr.into() });
    assert!(matches!(refusal(&map, add(0, "h:1")), Refusal::TargetIndex { index: 0, .. }));
    assert!(matches!(refusal(&map, add(TARGETS_PER_NODE_MAX, "h:1")), Refusal::TargetIndex { .. }));
    assert!(matches!(refusal(&map, add(1, "10.0.0.2:7000")), Refusal::AddressTaken { .. }));
    let Reason::TargetAdded { target, .. } = take(&mut map, add(1, "10.0.0.1:7001")) else { panic!("added") };
    assert!(matches!(refusal(&map, add(1, "h:2")), Refusal::TargetIndex { index: 1, .. }));
    let assign = |drive, target| Change::AssignDrive(AssignDrive { drive: DriveId(drive), target });
    assert!(matches!(refusal(&map, assign(2, target)), Refusal::NotAssigned { .. }), "of another node");
    take(&mut map, assign(1, target));
    assert!(matches!(refusal(&map, assign(1, target)), Refusal::NotAssigned { .. }), "it has it");
    assert_eq!(
        (map.drive_addr(DriveId(1)), map.target_of(DriveId(1))),
        (Some("10.0.0.1:7001"), Some(target))
    );
    assert_eq!(map.title_of(target), "target 1 of node 'node-1'");
    // The first one takes the other's address, which gets the one that is free now.
    let first = TargetId::first_of(node);
    take(&mut map, Change::MoveTarget(MoveTarget { target: first, addr: "10.0.0.1:7001".into() }));
    assert_eq!(map.drive_addr(DriveId(1)), Some("10.0.0.1:7000"));
    let remove = |target| Change::RemoveTarget(RemoveTarget { target });
    assert!(matches!(refusal(&map, remove(target)), Refusal::TargetInUse { drives: 1, .. }));
    assert!(matches!(refusal(&map, remove(first)), Refusal::TargetInUse { drives: 0, .. }));
    take(&mut map, assign(1, first));
    take(&mut map, remove(target));
    assert_eq!(map.title_of(first), "node 'node-1'");
}

#[test]
fn a_single_node_needs_the_drive_domain() {
    let mut map = fabric(1);
    let node = map.node_named("node-1").expect("it joined").id;
    take(&mut map, Change::AddDrive(drive(2, node)));
    let refusal = plan(&map, &request("a", GIB, 2)).expect_err("one node");
    assert_eq!(refusal, Refusal::Layout(LayoutError::TooFewNodes { copies: 2, nodes: 1, drives: 2 }));
    create(&mut map, &VolumeRequest { domain: FailureDomain::Drive, ..request("a", GIB, 2) });
    assert_eq!(map.groups.len(), 16);
    assert!(
        plan(&map, &request("b", GIB, 2)).is_err(),
        "such groups are not offered to those who want nodes"
    );
}

/// One node with a pair of drives on each of three devices. A volume by device has no two copies on one of
/// them, at first, and after a drive has passed its copies on.
#[test]
fn copies_by_device_stay_on_different_devices() {
    let mut map = fabric(0);
    let join = JoinNode { name: "node-1".into(), addr: "10.0.0.1:7000".into() };
    let Reason::NodeJoined { node, .. } = take(&mut map, Change::JoinNode(join)) else { panic!("joined") };
    let add = |map: &mut FabricMap, id: u128| {
        let device = Some(DeviceId(id.div_ceil(2)));
        take(map, Change::AddDrive(AddDrive { device, ..drive(id, node) }));
    };
    (1..=4).for_each(|id| add(&mut map, id));
    let by_device = |copies| VolumeRequest { domain: FailureDomain::Device, ..request("a", GIB, copies) };
    let refusal = plan(&map, &by_device(3)).expect_err("two devices");
    assert_eq!(refusal, Refusal::Layout(LayoutError::TooFewDevices { copies: 3, devices: 2, drives: 4 }));
    (5..=6).for_each(|id| add(&mut map, id));
    create(&mut map, &by_device(2));
    let is_apart = |map: &FabricMap| map.groups.values().all(|g| !map.shares_a_device(g));
    assert!(is_apart(&map) && map.groups.values().all(|g| map.shares_a_node(g)));
    assert!(plan(&map, &VolumeRequest { domain: FailureDomain::Node, ..by_device(2) }).is_err());
    // A drive's rebuild: never beside the other copy, wherever there is room.
    let of_one = map.groups.values().find(|g| g.slot_of(DriveId(1)).is_some()).expect("a group").clone();
    let other = of_one.slots.iter().map(|s| s.drive).find(|d| *d != DriveId(1)).expect("two copies");
    let sibling = DriveId(if other.0 % 2 == 0 { other.0 - 1 } else { other.0 + 1 });
    let begin = |to, domain| {
        Change::BeginRelocation(BeginRelocation { group: of_one.id, from: DriveId(1), to, domain })
    };
    let refused = apply(&map, &begin(sibling, FailureDomain::Device)).expect_err("one device");
    assert!(matches!(refused, Refusal::SharedDevice { .. }), "{refused}");
    assert!(apply(&map, &begin(sibling, FailureDomain::Drive)).is_ok());
    assert!(apply(&map, &begin(DriveId(2), FailureDomain::Device)).is_ok(), "its own device");
    assert_eq!(domain_of(&map, &map.groups[&of_one.id]), FailureDomain::Device);
    // What its target says later counts as well.
    let device = map.drives[&DriveId(1)].device;
    take(&mut map, Change::SetDevice(SetDevice { drive: other, device }));
    assert_eq!(domain_of(&map, &map.groups[&of_one.id]), FailureDomain::Drive);
    let again = apply(&map, &Change::SetDevice(SetDevice { drive: other, device })).expect_err("known");
    assert!(matches!(again, Refusal::SameDevice { .. }), "{again}");
}

/// What volumes were promised lies on drives by their sizes: they fill up at about the same rate.
#[test]
fn drives_of_unequal_size_are_promised_by_their_size() {
    let mut map = FabricMap::empty(FabricId(7));
    take(&mut map, Change::CreatePool(CreatePool { name: "p".into() }));
    let sizes = [1u64, 1, 2, 2, 4, 4];
    for (n, tens) in (1u32..).zip(sizes) {
        let join = JoinNode { name: format!("node-{n}"), addr: format!("10.0.0.{n}:7000") };
        let Reason::NodeJoined { node, .. } = take(&mut map, Change::JoinNode(join)) else {
            panic!("joined")
        };
        let add = drive(u128::from(n), node);
        let capacity = BlockCount(add.capacity.0 * tens);
        take(&mut map, Change::AddDrive(AddDrive { capacity, ..add }));
    }
    for n in 0..4 {
        create(&mut map, &VolumeRequest { thin: true, ..request(&format!("v{n}"), 14 * GIB, 2) });
    }
    let mut promised = [0u64; 6];
    for volume in map.volumes.values() {
        for span in &volume.spans {
            for object in span.first..span.first + span.count {
                let group = &map.groups[&group_of(volume, object).expect("it is covered")];
                for slot in &group.slots {
                    promised[slot.drive.0 as usize - 1] += u64::from(volume.striping.object_blocks);
                }
            }
        }
    }
    let parts: Vec<f64> = promised
        .iter()
        .zip(sizes)
        .map(|(blocks, tens)| *blocks as f64 / (tens * 10 * GIB / 4096) as f64)
        .collect();
    let mean = parts.iter().sum::<f64>() / 6.0;
    for (part, size) in parts.iter().zip(sizes) {
        assert!(
            (part / mean - 1.0).abs() < 0.35,
            "a drive of {size}: {part} of it, {mean} on average: {parts:?}"
        );
    }
}
