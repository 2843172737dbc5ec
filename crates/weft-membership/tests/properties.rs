//! Properties of random histories: no change breaks an invariant, every change travels as text, and the plans bring
//! a fabric back to full protection.

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use weft_layout::FailureDomain;
use weft_membership::{
    AcceptLoss, Acknowledged, AddDrive, AddTarget, AssignDrive, BeginDelete, BeginRelocation,
    CancelRelocation, Change, CloseSession, CreatePool, Demote, Depart, DrainDrive, DriveFault,
    DriveObservation, Evict, FailDrive, FileSystemRequest, FinishDelete, FinishRelocation, GroupIndex,
    HandOver, JoinNode, KeepMember, MoveTarget, Observations, OpenSession, Promote, Rebuild, Rejoin,
    RemoveDrive, RemoveNode, RemoveTarget, Replace, ResizeRequest, RestoreDrive, Survivor, SweepSession,
    TargetObservation, VolumeRequest, apply, check, check_changed, check_step, intents, lost_groups,
    next_change, plan_file_set, plan_file_system, plan_resize, plan_volume,
};
use weft_types::TargetId;
use weft_types::{
    AttachMode, BlockCount, DriveId, DriveState, Epoch, FabricId, FabricMap, Group, GroupId, NodeId, PoolId,
    Protection, Role, SessionId, VolumeId,
};

const POOL: PoolId = PoolId(1);

/// A random number that picks among whatever the map offers at that moment.
type Pick = u32;

/// What a random history tries; picks are taken modulo what there is, so that most of it fits the map.
#[derive(Clone, Debug)]
enum Attempt {
    Join,
    Relocate(Pick),
    AddTarget(Pick, u32),
    RemoveTarget(Pick),
    AssignDrive(Pick, Pick),
    AddDrive(Pick, u64),
    FailDrive(Pick, bool),
    RemoveDrive(Pick),
    Evict(Vec<Pick>, Pick),
    EvictNode(Pick),
    Demote(Pick, Pick),
    Depart(Pick, Pick, u64),
    Rejoin(Pick),
    Promote(Pick, Pick, u64),
    Rebuild(Pick, Pick, Pick, bool),
    Replace(Pick, Pick),
    Drain(Pick, bool),
    Pass(Pick, Pick, Pick, bool),
    StepOfRelocation(Pick, Pick, u64),
    RemoveNode(Pick),
    Restore(Pick),
    AcceptLoss(Vec<Pick>, Pick),
    CreateVolume(u64, u8, bool, bool),
    CreateFileSystem(u8, usize, bool),
    Resize(Pick, u64),
    AddFileSet(Pick, bool),
    Delete(Pick, bool),
    FinishDelete(Pick),
    Open(Pick, u8, bool),
    Close(Pick),
    Sweep(Pick),
}

fn attempt() -> impl Strategy<Value = Attempt> {
    let pick = any::<Pick>;
    prop_oneof![
        1 => Just(Attempt::Join),
        1 => pick().prop_map(Attempt::Relocate),
        1 => (pick(), 0u32..4).prop_map(|(n, index)| Attempt::AddTarget(n, index)),
        1 => pick().prop_map(Attempt::RemoveTarget),
        2 => (pick(), pick()).prop_map(|(d, t)| Attempt::AssignDrive(d, t)),
        2 => (pick(), 0u64..2000).prop_map(|(n, c)| Attempt::AddDrive(n, c * 256)),
        1 => (pick(), any::<bool>()).prop_map(|(drive, of_device)| Attempt::FailDrive(drive, of_device)),
        1 => pick().prop_map(Attempt::RemoveDrive),
        4 => (proptest::collection::vec(pick(), 1..3), pick()).prop_map(|(d, by)| Attempt::Evict(d, by)),
        4 => pick().prop_map(Attempt::EvictNode),
        2 => (pick(), pick()).prop_map(|(d, by)| Attempt::Demote(d, by)),
        2 => (pick(), pick(), 0u64..4).prop_map(|(g, s, back)| Attempt::Depart(g, s, back)),
        4 => pick().prop_map(Attempt::Rejoin),
        6 => (pick(), pick(), 0u64..4).prop_map(|(g, s, back)| Attempt::Promote(g, s, back)),
        4 => (pick(), pick(), pick(), any::<bool>()).prop_map(|(g, s, d, n)| Attempt::Rebuild(g, s, d, n)),
        2 => (pick(), pick()).prop_map(|(a, b)| Attempt::Replace(a, b)),
        1 => (pick(), any::<bool>()).prop_map(|(d, on)| Attempt::Drain(d, on)),
        4 => (pick(), pick(), pick(), any::<bool>()).prop_map(|(g, s, d, n)| Attempt::Pass(g, s, d, n)),
        6 => (pick(), pick(), 0u64..4).prop_map(|(g, s, back)| Attempt::StepOfRelocation(g, s, back)),
        1 => pick().prop_map(Attempt::RemoveNode),
        1 => pick().prop_map(Attempt::Restore),
        2 => (proptest::collection::vec(pick(), 0..4), pick()).prop_map(|(d, s)| Attempt::AcceptLoss(d, s)),
        2 => (1u64..300, 0u8..5, any::<bool>(), any::<bool>())
            .prop_map(|(s, c, t, n)| Attempt::CreateVolume(s << 20, c, t, n)),
        1 => (0u8..4, 0usize..4, any::<bool>()).prop_map(|(c, s, n)| Attempt::CreateFileSystem(c, s, n)),
        2 => (pick(), 1u64..600).prop_map(|(v, s)| Attempt::Resize(v, s << 20)),
        2 => (pick(), any::<bool>()).prop_map(|(v, n)| Attempt::AddFileSet(v, n)),
        1 => (pick(), any::<bool>()).prop_map(|(v, f)| Attempt::Delete(v, f)),
        1 => pick().prop_map(Attempt::FinishDelete),
        3 => (pick(), 0u8..3, any::<bool>()).prop_map(|(v, m, p)| Attempt::Open(v, m, p)),
        2 => pick().prop_map(Attempt::Close),
        2 => pick().prop_map(Attempt::Sweep),
    ]
}

fn nth<T: Copy>(items: impl Iterator<Item = T>, pick: Pick) -> Option<T> {
    let items: Vec<T> = items.collect();
    (!items.is_empty()).then(|| items[pick as usize % items.len()])
}

fn domain(node: bool) -> FailureDomain {
    if node { FailureDomain::Node } else { FailureDomain::Drive }
}

/// The change that an attempt comes to in this map; `None` where the map has nothing to pick from.
fn change(map: &FabricMap, attempt: &Attempt, serial: u32) -> Option<Change> {
    let node = |pick| nth(map.nodes.keys().copied(), pick);
    let drive = |pick| nth(map.drives.keys().copied(), pick);
    let volume = |pick| nth(map.volumes.keys().copied(), pick);
    let session = |pick| nth(map.sessions.keys().copied(), pick);
    // Groups that are degraded are the interesting ones.
    let group = |pick: Pick| -> Option<&Group> {
        let degraded = map.groups.values().filter(|g| g.is_degraded());
        if pick.is_multiple_of(4) { nth(map.groups.values(), pick / 4) } else { nth(degraded, pick / 4) }
    };
    let addr = format!("10.0.0.1:{}", 1 + serial);
    Some(match attempt {
        Attempt::Join => Change::JoinNode(JoinNode { name: format!("node-{serial}"), addr }),
        Attempt::Relocate(_)
        | Attempt::AddTarget(..)
        | Attempt::RemoveTarget(_)
        | Attempt::AssignDrive(..) => change_of_target(map, attempt, addr)?,
        Attempt::AddDrive(n, blocks) => Change::AddDrive(add_drive(u128::from(serial), node(*n)?, *blocks)),
        Attempt::FailDrive(d, of_device) => Change::FailDrive(fail(drive(*d)?, *of_device)),
        Attempt::RemoveDrive(d) => Change::RemoveDrive(RemoveDrive { drive: drive(*d)? }),
        Attempt::Evict(picks, by) => {
            let drives = picks.iter().filter_map(|&d| drive(d)).collect();
            Change::Evict(Evict {
                drives,
                acknowledged: words(map, |g| nth(g.slots.iter().map(|s| s.drive), *by)),
            })
        }
        Attempt::EvictNode(n) => {
            let node = node(*n)?;
            let drives: BTreeSet<_> = map.drives.values().filter(|d| d.node == node).map(|d| d.id).collect();
            let acknowledged = words(map, |g| g.read_set().find(|d| !drives.contains(d)));
            Change::Evict(Evict { drives, acknowledged })
        }
        Attempt::Demote(d, by) => {
            let acknowledged = words(map, |g| nth(g.slots.iter().map(|s| s.drive), *by));
            Change::Demote(Demote { drives: [drive(*d)?].into(), acknowledged })
        }
        Attempt::Depart(g, s, back) => {
            let group = group(*g)?;
            let slot = nth(group.slots.iter(), *s)?;
            let stint = Epoch(slot.since.0.saturating_sub(back / 2));
            let members = [(group.id, [(slot.drive, stint)].into())].into();
            Change::Depart(Depart { members })
        }
        Attempt::Rejoin(d) => Change::Rejoin(Rejoin { drives: [drive(*d)?].into(), except: BTreeSet::new() }),
        Attempt::Promote(g, s, back) => {
            let group = group(*g)?;
            let slot = nth(group.slots.iter(), *s)?;
            let stint = Epoch(slot.since.0.saturating_sub(back / 2));
            Change::Promote(Promote { group: group.id, drive: slot.drive, stint })
        }
        Attempt::Rebuild(g, s, d, node) => {
            let group = group(*g)?;
            let from = nth(group.slots.iter().map(|s| s.drive), *s)?;
            Change::Rebuild(Rebuild { group: group.id, from, to: drive(*d)?, domain: domain(*node) })
        }
        Attempt::Replace(a, b) => {
            Change::Replace(Replace { from: drive(*a)?, to: drive(*b)?, domain: FailureDomain::Drive })
        }
        Attempt::Drain(d, on) => Change::DrainDrive(DrainDrive { drive: drive(*d)?, on: *on }),
        Attempt::Pass(g, s, d, node) => {
            let group = nth(map.groups.values(), *g)?;
            let from = nth(group.slots.iter().map(|s| s.drive), *s)?;
            let to = drive(*d)?;
            Change::BeginRelocation(BeginRelocation { group: group.id, from, to, domain: domain(*node) })
        }
        Attempt::StepOfRelocation(g, step, back) => {
            let group = nth(map.relocations.keys().copied(), *g)?;
            let since = map.groups[&group].slot_of(map.relocations[&group].from)?.since;
            match step % 5 {
                0 => Change::CancelRelocation(CancelRelocation { group }),
                4 => {
                    let lost = nth(
                        map.groups[&group].slots.iter().map(|s| s.drive),
                        u32::try_from(*back).expect("it is small"),
                    )?;
                    Change::KeepMember(KeepMember { group, lost, domain: domain(g % 2 == 0) })
                }
                1 | 2 => Change::HandOver(HandOver { group }),
                _ => {
                    let stint = Epoch(since.0.saturating_sub(back / 2));
                    Change::FinishRelocation(FinishRelocation { group, stint })
                }
            }
        }
        Attempt::Restore(d) => Change::RestoreDrive(RestoreDrive { drive: drive(*d)? }),
        Attempt::AcceptLoss(picks, pick) => {
            // Sometimes everything that one group has.
            let mut destroyed: BTreeSet<DriveId> = picks.iter().skip(1).filter_map(|&d| drive(d)).collect();
            if let Some(group) = picks.first().and_then(|&g| group(g)) {
                let many = if pick % 2 == 0 { usize::MAX } else { 1 };
                destroyed.extend(group.slots.iter().map(|s| s.drive).take(many));
                destroyed.extend(group.read_set());
            }
            let older: BTreeSet<DriveId> = picks.iter().take(1).filter_map(|&d| drive(d)).collect();
            let older: BTreeSet<DriveId> =
                older.into_iter().filter(|d| pick % 3 == 0 && !destroyed.contains(d)).collect();
            let gone = destroyed.union(&older).copied().collect();
            let survivors = lost_groups(map, &gone).filter_map(|g| {
                let left = g.slots.iter().map(|s| s.drive).filter(|d| !destroyed.contains(d));
                let left = nth(left, *pick).map(Survivor::Older);
                let fresh = map.drives.keys().copied().filter(|d| !destroyed.contains(d));
                Some((g.id, left.or_else(|| nth(fresh, *pick).map(Survivor::Empty))?))
            });
            let survivors = survivors.collect();
            Change::AcceptLoss(AcceptLoss { destroyed, older, survivors })
        }
        Attempt::RemoveNode(n) => Change::RemoveNode(RemoveNode { node: node(*n)? }),
        Attempt::CreateVolume(..) | Attempt::CreateFileSystem(..) => creation(map, attempt, serial)?,
        Attempt::Resize(v, bytes) => {
            let request =
                ResizeRequest { volume: volume(*v)?, size_bytes: *bytes, domain: FailureDomain::Drive };
            plan_resize(map, &GroupIndex::of(map), &request, &BTreeSet::new()).ok()?
        }
        Attempt::AddFileSet(v, by_node) => {
            let domain = if *by_node { FailureDomain::Node } else { FailureDomain::Drive };
            let none = BTreeSet::new();
            plan_file_set(map, &GroupIndex::of(map), (volume(*v)?, domain), &none, &none).ok()?
        }
        Attempt::Delete(v, force) => Change::BeginDelete(BeginDelete { volume: volume(*v)?, force: *force }),
        Attempt::FinishDelete(v) => Change::FinishDelete(FinishDelete { volume: volume(*v)? }),
        Attempt::Open(v, mode, preempt) => {
            let mode = [AttachMode::Shared, AttachMode::Exclusive, AttachMode::ReadOnly][usize::from(*mode)];
            let (volume, client, preempt) = (volume(*v)?, "c".into(), *preempt);
            Change::OpenSession(OpenSession { volume, mode, client, preempt, number: 0, lanes: v % 10 })
        }
        Attempt::Close(s) => Change::CloseSession(CloseSession { session: session(*s)? }),
        Attempt::Sweep(s) => Change::SweepSession(SweepSession { session: session(*s)? }),
    })
}

/// A volume or a file system that is created.
fn creation(map: &FabricMap, attempt: &Attempt, serial: u32) -> Option<Change> {
    match attempt {
        Attempt::CreateVolume(bytes, copies, thin, node) => {
            let request = VolumeRequest {
                thin: *thin,
                domain: domain(*node),
                ..request(&format!("v{serial}"), *bytes, *copies)
            };
            plan_volume(map, &GroupIndex::of(map), &request, &BTreeSet::new()).ok()
        }
        Attempt::CreateFileSystem(copies, shards, node) => {
            let request = FileSystemRequest {
                name: format!("f{serial}"),
                pool: POOL,
                protection: Protection::mirror(*copies),
                striping: None,
                domain: domain(*node),
                shards: *shards,
                is_spread: *shards % 2 == 0,
                created_ms: 0,
            };
            plan_file_system(map, &GroupIndex::of(map), &request, &BTreeSet::new()).ok()
        }
        _ => None,
    }
}

fn fail(drive: DriveId, of_device: bool) -> FailDrive {
    FailDrive { drive, cause: "test".into(), of_device }
}

/// Likewise, of a node's targets.
fn change_of_target(map: &FabricMap, attempt: &Attempt, free_addr: String) -> Option<Change> {
    let target = |pick| nth(map.targets.keys().copied(), pick);
    Some(match attempt {
        Attempt::Relocate(t) => {
            // Now and then to where another one listens.
            let addr = nth(map.targets.values().map(|t| &t.addr), *t / 4).filter(|_| *t % 4 == 0);
            let addr = addr.cloned().unwrap_or(free_addr);
            Change::MoveTarget(MoveTarget { target: target(*t)?, addr })
        }
        Attempt::AddTarget(n, index) => {
            let node = nth(map.nodes.keys().copied(), *n)?;
            Change::AddTarget(AddTarget { node, index: *index, addr: free_addr })
        }
        Attempt::RemoveTarget(t) => Change::RemoveTarget(RemoveTarget { target: target(*t)? }),
        Attempt::AssignDrive(d, t) => {
            let drive = nth(map.drives.keys().copied(), *d)?;
            let siblings = map.targets_of(map.drives[&drive].node).map(|t| t.id);
            let to = if *t % 8 == 0 { target(*t)? } else { nth(siblings, *t)? };
            Change::AssignDrive(AssignDrive { drive, target: to })
        }
        _ => return None,
    })
}

fn words(map: &FabricMap, by: impl Fn(&Group) -> Option<DriveId>) -> BTreeMap<GroupId, Acknowledged> {
    let word = |g: &Group| Some((g.id, Acknowledged { by: by(g)?, epoch: g.epoch }));
    map.groups.values().filter_map(word).collect()
}

fn add_drive(id: u128, node: NodeId, blocks: u64) -> AddDrive {
    AddDrive {
        drive: DriveId(id),
        target: TargetId::first_of(node),
        pool: POOL,
        path: format!("/dev/{id}"),
        capacity: BlockCount(blocks),
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
        created_ms: 1,
    }
}

fn commit(map: &mut FabricMap, change: &Change) {
    let (next, _) = apply(map, change).unwrap_or_else(|refusal| panic!("{change:?}: {refusal}"));
    *map = next;
}

/// Nodes with drives of 1 GiB, and a volume of 64 MiB with these copies.
fn fabric(nodes: u32, per_node: u32, copies: u8) -> FabricMap {
    let mut map = FabricMap::empty(FabricId(7));
    commit(&mut map, &Change::CreatePool(CreatePool { name: "p".into() }));
    for n in 0..nodes {
        let node = NodeId(u32::try_from(map.next_id).expect("a small number"));
        let join = JoinNode { name: format!("n{n}"), addr: format!("10.0.1.{n}:7000") };
        commit(&mut map, &Change::JoinNode(join));
        for d in 0..per_node {
            let id = u128::from(100_000 + 100 * n + d);
            commit(&mut map, &Change::AddDrive(add_drive(id, node, 1 << 18)));
        }
    }
    let change =
        plan_volume(&map, &GroupIndex::of(&map), &request("first", 64 << 20, copies), &BTreeSet::new())
            .expect("it fits");
    commit(&mut map, &change);
    map
}

fn through_json<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).expect("it has a text");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

proptest! {
    #[test]
    fn no_history_breaks_an_invariant(attempts in proptest::collection::vec(attempt(), 1..80), copies in 2u8..=3) {
        let mut map = fabric(4, 1, copies);
        let mut groups = GroupIndex::of(&map);
        for (serial, attempt) in (0..).zip(&attempts) {
            let Some(change) = change(&map, attempt, serial) else { continue };
            let result = apply(&map, &change);
            prop_assert_eq!(&apply(&map, &change), &result, "the same every time");
            match result {
                Ok((next, reason)) => {
                    prop_assert_eq!(check(&next), vec![], "after {:?}", &change);
                    prop_assert_eq!(check_changed(&map, &next), vec![], "after {:?}", &change);
                    prop_assert_eq!(check_step(&map, &next), vec![], "by {:?}", &change);
                    prop_assert!(!reason.to_string().is_empty());
                    // What travels is the change: another member that applies it gets the same map.
                    let elsewhere = apply(&through_json(&map), &through_json(&change)).map(|(map, _)| map);
                    prop_assert_eq!(elsewhere.as_ref(), Ok(&next));
                    prop_assert_eq!(through_json(&reason), reason);
                    groups.note(&map, &next);
                    prop_assert_eq!(&groups, &GroupIndex::of(&next), "after {:?}", &change);
                    map = next;
                }
                Err(refusal) => prop_assert!(!refusal.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn plans_bring_protection_back(
        nodes in 4u32..7,
        per_node in 1u32..3,
        copies in 2u8..=3,
        dead in proptest::collection::vec((any::<Pick>(), any::<bool>()), 1..4),
    ) {
        let mut map = fabric(nodes, per_node, copies);
        let mut world = World::new(&map);
        for (pick, returns) in dead {
            let node = nth(map.nodes.keys().copied(), pick).expect("there are nodes");
            world.kill(node);
            world.settle(&mut map)?;
            for group in map.groups.values() {
                let waits = group.write_set().any(|d| map.drives[&d].node == node);
                prop_assert!(!waits, "{} still waits for a dead node", group.id);
            }
            if !returns {
                // The node stays away for so long that its copies are rebuilt elsewhere.
                world.seen.now_ms += map.durations.rebuild_after_ms;
                world.settle(&mut map)?;
                let alive = world.seen.targets.values().filter(|n| n.alive).count();
                if alive >= usize::from(copies) {
                    let degraded = map.groups.values().filter(|g| g.is_degraded()).count();
                    prop_assert_eq!(degraded, 0, "{} nodes are enough to rebuild on", alive);
                }
            }
            world.revive(node);
            world.settle(&mut map)?;
            let degraded = map.groups.values().filter(|g| g.is_degraded()).count();
            prop_assert_eq!(degraded, 0, "all nodes are back");
        }
    }
}

/// A world in which everyone who lives does what the manager asks at once.
struct World {
    seen: Observations,
}

impl World {
    fn new(map: &FabricMap) -> Self {
        let mut seen = Observations { now_ms: 1_000, ..Observations::default() };
        let alive = TargetObservation { alive: true, fenced: false, heard_ms: 1_000 };
        seen.targets = map.targets.keys().map(|&t| (t, alive)).collect();
        let present = DriveObservation { present: true, failed: None, fenced: false, seen_ms: 1_000 };
        seen.drives = map.drives.keys().map(|&d| (d, present.clone())).collect();
        World { seen }
    }

    fn kill(&mut self, node: NodeId) {
        let heard_ms = self.seen.now_ms;
        self.seen
            .targets
            .insert(TargetId::first_of(node), TargetObservation { alive: false, fenced: true, heard_ms });
    }

    fn revive(&mut self, node: NodeId) {
        let heard_ms = self.seen.now_ms;
        self.seen
            .targets
            .insert(TargetId::first_of(node), TargetObservation { alive: true, fenced: false, heard_ms });
    }

    /// Commits what is planned, acknowledges and verifies what is asked for, until nothing is left to do.
    fn settle(&mut self, map: &mut FabricMap) -> Result<(), TestCaseError> {
        for _ in 0..10_000 {
            for intent in intents(map, &GroupIndex::of(map), &self.seen) {
                let word = Acknowledged { by: intent.ask[0], epoch: intent.epoch };
                self.seen.acknowledged.insert((intent.group, intent.victim), word);
            }
            for group in map.groups.values() {
                let alive = |d: DriveId| self.seen.targets[&map.drives[&d].target].alive;
                for slot in group.slots.iter().filter(|s| s.role == Role::Syncing && alive(s.drive)) {
                    self.seen.verified.insert((group.id, slot.drive), slot.since);
                }
            }
            let Some(change) = next_change(map, &GroupIndex::of(map), &self.seen) else { return Ok(()) };
            let (next, _) =
                apply(map, &change).map_err(|r| TestCaseError::fail(format!("{change:?}: {r}")))?;
            prop_assert_eq!(check(&next), vec![]);
            prop_assert_eq!(check_step(map, &next), vec![]);
            *map = next;
        }
        Err(TestCaseError::fail("the plans never come to an end"))
    }
}

#[test]
fn a_node_is_evicted_by_one_change() {
    let mut map = fabric(3, 2, 2);
    let mut world = World::new(&map);
    let node = *map.nodes.keys().next().expect("a node");
    world.kill(node);
    for intent in intents(&map, &GroupIndex::of(&map), &world.seen) {
        let word = Acknowledged { by: intent.ask[0], epoch: intent.epoch };
        world.seen.acknowledged.insert((intent.group, intent.victim), word);
    }
    let change = next_change(&map, &GroupIndex::of(&map), &world.seen).expect("an eviction");
    assert!(matches!(&change, Change::Evict(evict) if evict.drives.len() == 2));
    commit(&mut map, &change);
    assert!(map.groups.values().flat_map(Group::write_set).all(|d| map.drives[&d].node != node));
    assert_eq!(next_change(&map, &GroupIndex::of(&map), &world.seen), None);
}

#[test]
fn nothing_is_evicted_without_word_and_fence() {
    let map = fabric(3, 1, 2);
    let mut world = World::new(&map);
    let node = *map.nodes.keys().next().expect("a node");
    world.kill(node);
    assert_eq!(next_change(&map, &GroupIndex::of(&map), &world.seen), None, "nobody has acknowledged");
    for intent in intents(&map, &GroupIndex::of(&map), &world.seen) {
        let word = Acknowledged { by: intent.ask[0], epoch: intent.epoch };
        world.seen.acknowledged.insert((intent.group, intent.victim), word);
    }
    assert_eq!(
        intents(&map, &GroupIndex::of(&map), &world.seen),
        [],
        "what is acknowledged is not asked for again"
    );
    world.seen.targets.get_mut(&TargetId::first_of(node)).expect("it is known").fenced = false;
    assert_eq!(next_change(&map, &GroupIndex::of(&map), &world.seen), None, "its lease may still run");
    world.seen.targets.get_mut(&TargetId::first_of(node)).expect("it is known").fenced = true;
    assert!(matches!(next_change(&map, &GroupIndex::of(&map), &world.seen), Some(Change::Evict(_))));
    assert_eq!(next_change(&map, &GroupIndex::of(&map), &Observations::default()), None, "nothing is known");
}

#[test]
fn a_failed_drive_is_marked_evicted_and_rebuilt_at_once() {
    let mut map = fabric(4, 1, 2);
    let mut world = World::new(&map);
    let drive = *map.drives.keys().next().expect("a drive");
    let observed = world.seen.drives.get_mut(&drive).expect("it is known");
    observed.failed = Some(DriveFault { cause: "I/O error".into(), of_device: false });
    observed.fenced = true;
    world.settle(&mut map).expect("it settles");
    assert_eq!(map.drives[&drive].state, DriveState::Failed);
    assert!(map.groups.values().all(|g| g.slot_of(drive).is_none() && !g.is_degraded()));
}

#[test]
fn sessions_and_volumes_are_released() {
    let mut map = fabric(3, 1, 2);
    let volume: VolumeId = *map.volumes.keys().next().expect("a volume");
    let session = SessionId(map.next_id);
    let open = OpenSession {
        volume,
        mode: AttachMode::Shared,
        client: "c".into(),
        preempt: false,
        number: 0,
        lanes: 1,
    };
    commit(&mut map, &Change::OpenSession(open));
    let mut world = World::new(&map);
    assert_eq!(next_change(&map, &GroupIndex::of(&map), &world.seen), None);
    world.seen.swept.insert(session);
    world.seen.emptied.insert(volume);
    assert_eq!(
        next_change(&map, &GroupIndex::of(&map), &world.seen),
        None,
        "an open session is not forgotten, nor a volume in use"
    );
    world.seen.ended.insert(session);
    world.settle(&mut map).expect("it settles");
    assert!(map.sessions.is_empty());
    commit(&mut map, &Change::BeginDelete(BeginDelete { volume, force: false }));
    world.settle(&mut map).expect("it settles");
    assert!(map.volumes.is_empty());
}
