//! Which members leave because clients cannot reach them: the evidence that it takes, what is spared, and when they
//! come back.

use std::collections::{BTreeMap, BTreeSet};
use weft_membership::{Kept, Reach, ReachReport};
use weft_types::{
    AttachMode, BlockCount, Drive, DriveId, DriveState, Epoch, FabricId, FabricMap, Generation, Group,
    GroupId, NodeId, ObjectSpan, Pool, PoolId, Role, Session, SessionId, SessionSlot, SessionState, Slot,
    Striping, TargetId, Volume, VolumeId, VolumeState,
};

/// The usual lease, in milliseconds.
const LEASE: u64 = 2_000;
/// After how long clients are believed.
const PATIENCE: u64 = LEASE * 5 / 4;
/// When the cut begins.
const CUT: u64 = 100_000;

/// A fabric with a drive on each node, and what clients have said.
struct Scene {
    map: FabricMap,
    reports: BTreeMap<SessionId, ReachReport>,
    reach: Reach,
    down: BTreeSet<DriveId>,
    up_since: BTreeMap<TargetId, u64>,
}

fn node(n: u64) -> NodeId {
    NodeId(n as u32)
}

fn target(n: u64) -> TargetId {
    TargetId::first_of(node(n))
}

fn member(group: u64, drive: u64) -> (GroupId, DriveId) {
    (GroupId(group), DriveId(u128::from(drive)))
}

impl Scene {
    /// So many nodes, each with the drive of its number, and groups of these drives: volume 100 has them all.
    fn new(nodes: u64, groups: &[&[u64]]) -> Scene {
        let mut map = FabricMap::empty(FabricId(1));
        map.pools.insert(PoolId(1), Pool { id: PoolId(1), name: "p".into() });
        for n in 1..=nodes {
            let (id, drive) = (node(n), DriveId(u128::from(n)));
            map.put_node(id, format!("node-{n}"), format!("10.0.0.{n}:1"));
            map.drives.insert(
                drive,
                Drive {
                    id: drive,
                    node: id,
                    target: TargetId::first_of(id),
                    device: weft_types::DeviceId::of_drive(drive),
                    pool: PoolId(1),
                    path: String::new(),
                    capacity: BlockCount(1 << 20),
                    state: DriveState::Active,
                },
            );
        }
        for (n, drives) in (0..).zip(groups) {
            let id = GroupId(10 + n);
            let slot = |d: &u64| Slot { drive: DriveId(u128::from(*d)), role: Role::InSync, since: Epoch(1) };
            let slots = drives.iter().map(slot).collect();
            map.groups
                .insert(id, Group { id, pool: PoolId(1), epoch: Epoch(1), slots, floor: Default::default() });
        }
        let all: Vec<GroupId> = map.groups.keys().copied().collect();
        let mut scene = Scene {
            map,
            reports: BTreeMap::new(),
            reach: Reach::default(),
            down: BTreeSet::new(),
            up_since: BTreeMap::new(),
        };
        scene.volume(100, &all);
        scene
    }

    fn volume(&mut self, id: u64, groups: &[GroupId]) {
        let spans = vec![ObjectSpan { first: 0, count: 1, groups: groups.to_vec().into() }];
        self.map.volumes.insert(
            VolumeId(id),
            Volume {
                id: VolumeId(id),
                name: format!("v{id}"),
                pool: PoolId(1),
                size: BlockCount(1024),
                protection: weft_types::Protection::mirror(2),
                striping: Striping { unit_blocks: 16, width: 1, object_blocks: 1024 },
                spans,
                generation: Generation(1),
                state: VolumeState::Ready,
                thin: false,
                created_ms: 0,
                kind: weft_types::VolumeKind::Blocks,
            },
        );
    }

    /// A session of a client on a volume, which has just heard of all nodes.
    fn open(&mut self, id: u64, client: &str, volume: u64) {
        self.map.sessions.insert(
            SessionId(id),
            Session {
                number: 0,
                lane_slots: vec![],
                id: SessionId(id),
                slot: SessionSlot(id as u16),
                volume: VolumeId(volume),
                mode: AttachMode::Shared,
                generation: Generation(1),
                client: client.into(),
                state: SessionState::Open,
            },
        );
        self.says(id, CUT, &[]);
    }

    /// A session's client says that the targets of these nodes have not answered since the cut began, and all others have just now.
    fn says(&mut self, id: u64, now: u64, silent: &[u64]) {
        let targets: Vec<TargetId> = self.map.targets.keys().copied().collect();
        let is_silent = |t: &TargetId| silent.iter().any(|s| target(*s) == *t);
        let report = ReachReport {
            said_ms: now,
            silent: silent.iter().map(|n| (target(*n), CUT)).collect(),
            heard: targets.into_iter().map(|t| (t, if is_silent(&t) { CUT - 5 } else { now })).collect(),
        };
        self.reports.insert(SessionId(id), report);
    }

    fn look(&mut self, now: u64) -> Vec<(GroupId, DriveId)> {
        let (down, up_since) = (&self.down, &self.up_since);
        let serves = |drive| !down.contains(&drive);
        let up_since = |target| up_since.get(&target).copied().unwrap_or(0);
        self.reach.look(&self.map, &self.reports, &serves, &up_since, now);
        self.reach.members().into_keys().collect()
    }

    fn kept(&self, n: u64) -> Vec<(GroupId, Kept)> {
        let cut = self.reach.cuts().find(|(id, _)| *id == target(n)).expect("somebody complains").1;
        cut.kept.iter().map(|(group, kept)| (*group, *kept)).collect()
    }

    fn set_role(&mut self, (group, drive): (GroupId, DriveId), role: Role) {
        let slots = &mut self.map.groups.get_mut(&group).expect("it is there").slots;
        slots.iter_mut().find(|s| s.drive == drive).expect("a member").role = role;
    }
}

#[test]
fn the_only_client_is_believed_after_a_lease_and_a_quarter() {
    let mut scene = Scene::new(4, &[&[1, 2], &[3, 4], &[4, 1]]);
    scene.open(1, "nbd a weft[1]", 100);
    scene.says(1, CUT + 1_000, &[1]);
    assert_eq!(scene.look(CUT + 1_000), []);
    let cut = scene.reach.cuts().next().expect("it is noted").1.clone();
    assert_eq!((cut.since_ms, cut.due_ms, cut.is_alone), (CUT, CUT + PATIENCE, false));
    assert!(cut.clients.contains("nbd a weft[1]"));
    assert_eq!(scene.look(CUT + PATIENCE - 1), []);
    assert_eq!(scene.look(CUT + PATIENCE), [member(10, 1), member(12, 1)], "not of the other group");
}

#[test]
fn a_silence_of_before_the_node_was_up_does_not_count() {
    let mut scene = Scene::new(4, &[&[1, 2]]);
    scene.open(1, "a[1]", 100);
    scene.set_role(member(10, 1), Role::Syncing);
    // It was dead, and is back just now: the client has not had the time to connect again.
    let back = CUT + 10 * LEASE;
    scene.up_since.insert(target(1), back);
    scene.says(1, back, &[1]);
    assert_eq!(scene.look(back), []);
    assert_eq!(scene.look(back + PATIENCE - 1), []);
    scene.says(1, back + PATIENCE, &[1]);
    assert_eq!(scene.look(back + PATIENCE), [member(10, 1)], "it is out of reach");
}

#[test]
fn two_clients_are_believed_as_soon_whatever_others_say() {
    let mut scene = Scene::new(4, &[&[1, 2]]);
    (1..=3).for_each(|id| scene.open(id, &format!("host-{id} weft[7]"), 100));
    let now = CUT + PATIENCE;
    scene.says(1, now, &[1]);
    scene.says(2, now, &[1]);
    scene.says(3, now, &[]);
    assert_eq!(scene.look(now), [member(10, 1)]);
}

#[test]
fn two_processes_of_one_machine_are_one_client() {
    let mut scene = Scene::new(4, &[&[1, 2]]);
    scene.open(1, "nbd root@a weft[17]", 100);
    scene.open(2, "nbd root@a weft[18]", 100);
    scene.open(3, "nbd root@b weft[17]", 100);
    let now = CUT + PATIENCE;
    scene.says(1, now, &[1]);
    scene.says(2, now, &[1]);
    scene.says(3, now, &[]);
    assert_eq!(scene.look(now), [], "the other machine reaches the node");
    assert!(scene.reach.cuts().next().expect("it is noted").1.is_alone);
}

#[test]
fn one_client_alone_waits_longer_and_costs_no_group_its_last_copy_but_one() {
    let mut scene = Scene::new(4, &[&[1, 2], &[1, 3, 4]]);
    scene.open(1, "a", 100);
    scene.open(2, "b", 100);
    scene.set_role(member(11, 4), Role::Out);
    for step in 1..5 {
        let now = CUT + step * LEASE;
        scene.says(1, now, &[1]);
        scene.says(2, now, &[]);
        assert_eq!(scene.look(now), [], "after {step} leases");
    }
    let now = CUT + 5 * LEASE;
    scene.says(1, now, &[1]);
    assert_eq!(scene.look(now), [member(10, 1)]);
    assert_eq!(scene.kept(1), [(GroupId(11), Kept::Degraded)]);
}

#[test]
fn a_client_that_has_not_been_heard_of_since_might_reach_it() {
    let mut scene = Scene::new(4, &[&[1, 2]]);
    scene.open(1, "a", 100);
    scene.open(2, "b", 100);
    scene.says(1, CUT + PATIENCE, &[1]);
    assert_eq!(scene.look(CUT + PATIENCE), [], "it spoke before");
    scene.says(1, CUT + PATIENCE + 10, &[1]);
    scene
        .reports
        .insert(SessionId(2), ReachReport { said_ms: CUT + PATIENCE + 10, ..ReachReport::default() });
    assert_eq!(scene.look(CUT + PATIENCE + 10), [member(10, 1)], "it has not tried");
}

#[test]
fn the_last_member_that_is_reached_stays() {
    let mut scene = Scene::new(4, &[&[1, 2], &[1, 3]]);
    scene.open(1, "a", 100);
    scene.set_role(member(11, 3), Role::Syncing);
    scene.down.insert(DriveId(2));
    scene.says(1, CUT + PATIENCE, &[1]);
    assert_eq!(scene.look(CUT + PATIENCE), []);
    assert_eq!(scene.kept(1), [(GroupId(10), Kept::LastReached), (GroupId(11), Kept::LastReached)]);
    scene.down.clear();
    // Its word of the other one is old.
    scene.says(1, CUT + 2 * LEASE, &[1]);
    scene.reports.get_mut(&SessionId(1)).expect("it spoke").heard.insert(target(2), CUT - 3 * LEASE);
    assert_eq!(scene.look(CUT + 2 * LEASE), []);
    scene.says(1, CUT + 2 * LEASE, &[1]);
    assert_eq!(scene.look(CUT + 2 * LEASE), [member(10, 1)]);
}

#[test]
fn a_client_that_misses_more_than_it_reaches_is_not_believed() {
    let mut scene = Scene::new(5, &[&[1, 2], &[3, 4]]);
    scene.open(1, "a", 100);
    scene.says(1, CUT + 9 * LEASE, &[1, 3, 5]);
    assert_eq!(scene.look(CUT + 9 * LEASE), []);
    assert_eq!(scene.kept(1), [(GroupId(10), Kept::OwnNetwork)]);
}

#[test]
fn a_client_alone_that_came_with_its_fault_costs_others_nothing() {
    let mut scene = Scene::new(4, &[&[1, 2]]);
    scene.open(1, "a", 100);
    scene.open(2, "b", 100);
    let now = CUT + 9 * LEASE;
    scene.says(1, now, &[1]);
    scene.says(2, now, &[]);
    scene.reports.get_mut(&SessionId(1)).expect("it spoke").heard.remove(&target(1));
    assert_eq!(scene.look(now), []);
    assert_eq!(scene.kept(1), [(GroupId(10), Kept::NeverReached)]);
}

#[test]
fn no_more_nodes_leave_at_once_than_one_in_four() {
    let mut scene = Scene::new(7, &[&[1, 2], &[3, 4], &[1, 3, 5]]);
    scene.open(1, "a", 100);
    let now = CUT + PATIENCE;
    scene.says(1, now, &[1, 3]);
    assert_eq!(scene.look(now), [member(10, 1), member(12, 1)]);
    assert!(scene.kept(3).contains(&(GroupId(11), Kept::TooManyNodes)));
}

#[test]
fn readers_and_sessions_that_are_over_do_not_count() {
    let mut scene = Scene::new(4, &[&[1, 2]]);
    scene.open(1, "a", 100);
    scene.says(1, CUT + PATIENCE, &[1]);
    scene.map.sessions.get_mut(&SessionId(1)).expect("it is open").mode = AttachMode::ReadOnly;
    assert_eq!(scene.look(CUT + PATIENCE), []);
    let session = scene.map.sessions.get_mut(&SessionId(1)).expect("it is open");
    (session.mode, session.state) = (AttachMode::Shared, SessionState::Over);
    assert_eq!(scene.look(CUT + PATIENCE), []);
    assert_eq!(scene.reach.cuts().count(), 0);
}

#[test]
fn what_was_left_out_comes_back_after_a_hold_down_that_grows() {
    let mut scene = Scene::new(4, &[&[1, 2]]);
    scene.open(1, "a", 100);
    let mut now = CUT;
    for hold_leases in [5, 10, 20, 40, 80, 150, 150] {
        now += PATIENCE;
        scene.says(1, now, &[1]);
        assert_eq!(scene.look(now), [member(10, 1)]);
        scene.set_role(member(10, 1), Role::Out);
        // The reports stand, and end; then one more while it is held down.
        now += 2 * LEASE;
        scene.says(1, now, &[1]);
        assert_eq!(scene.look(now), [member(10, 1)]);
        scene.says(1, now, &[]);
        scene.look(now);
        now += LEASE;
        scene.says(1, now, &[1]);
        assert_eq!(scene.look(now), [member(10, 1)], "it counts as the same time");
        scene.says(1, now, &[]);
        scene.look(now);
        let cut = scene.reach.cuts().next().expect("it is held down").1.clone();
        assert_eq!(scene.reach.back_ms(&scene.map, &cut), Some(now + hold_leases * LEASE));
        assert_eq!(scene.look(now + hold_leases * LEASE - 1), [member(10, 1)]);
        now += hold_leases * LEASE;
        assert_eq!(scene.look(now), []);
        assert_eq!(scene.reach.cuts().count(), 0, "nothing to tell of");
        scene.set_role(member(10, 1), Role::InSync);
    }
    now += 1_000 * LEASE;
    scene.look(now);
    assert_eq!(scene.reach, Reach::default(), "quiet for long: forgotten");
}

#[test]
fn a_report_that_is_not_repeated_expires() {
    let mut scene = Scene::new(4, &[&[1, 2]]);
    scene.open(1, "a", 100);
    scene.says(1, CUT + PATIENCE, &[1]);
    scene.look(CUT + PATIENCE);
    assert_eq!(scene.reach.cuts().next().expect("it stands").1.ended_ms, None);
    let later = CUT + PATIENCE + 3 * LEASE + 1;
    assert_eq!(scene.look(later), [member(10, 1)]);
    assert_eq!(scene.reach.cuts().next().expect("it is held down").1.ended_ms, Some(later));
}

#[test]
fn a_member_that_was_made_anew_elsewhere_is_no_matter_any_more() {
    let mut scene = Scene::new(4, &[&[1, 2]]);
    scene.open(1, "a", 100);
    scene.says(1, CUT + PATIENCE, &[1]);
    assert_eq!(scene.look(CUT + PATIENCE), [member(10, 1)]);
    scene.map.groups.get_mut(&GroupId(10)).expect("it is there").slots[0].drive = DriveId(3);
    scene.says(1, CUT + 2 * LEASE, &[1]);
    assert_eq!(scene.look(CUT + 2 * LEASE), []);
}

#[test]
fn a_node_that_is_gone_for_the_manager_too_is_not_held_down() {
    let mut scene = Scene::new(4, &[&[1, 2]]);
    scene.open(1, "a", 100);
    scene.down.insert(DriveId(1));
    scene.says(1, CUT + PATIENCE, &[1]);
    assert_eq!(scene.look(CUT + PATIENCE), [], "it is evicted as ever");
    scene.down.clear();
    assert_eq!(scene.look(CUT + PATIENCE), [member(10, 1)]);
    scene.down.insert(DriveId(1));
    assert_eq!(scene.look(CUT + PATIENCE), [], "it died before it had left");
}
