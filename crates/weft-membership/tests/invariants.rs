//! The invariants notice what they are there for: a sound map is broken in one place, and the fault is named.

use std::collections::BTreeSet;
use std::sync::Arc;
use weft_layout::FailureDomain;
use weft_membership::{
    AddDrive, Change, CreatePool, GroupIndex, JoinNode, OpenSession, VolumeRequest, apply, check,
    check_changed, check_step, plan_volume,
};
use weft_types::{
    AttachMode, BlockCount, DriveId, Epoch, FabricId, FabricMap, Generation, Group, GroupId, GroupTable,
    GroupTableId, MapVersion, PoolId, Role, Session, SessionId, SessionSlot, SessionState, TargetId, Volume,
    VolumeState,
};

/// Three nodes with a drive each, a volume with two copies, and two shared sessions on it.
fn sound_map() -> FabricMap {
    let mut map = FabricMap::empty(FabricId(7));
    let take = |map: &mut FabricMap, change: Change| *map = apply(map, &change).expect("it fits").0;
    take(&mut map, Change::CreatePool(CreatePool { name: "p".into() }));
    let pool = PoolId(1);
    for n in 1..=3 {
        take(&mut map, Change::JoinNode(JoinNode { name: format!("n{n}"), addr: format!("h{n}:1") }));
        let node = *map.nodes.keys().last().expect("it joined");
        let (drive, capacity) = (DriveId(n), BlockCount(1 << 20));
        take(
            &mut map,
            Change::AddDrive(AddDrive {
                drive,
                target: TargetId::first_of(node),
                pool,
                path: String::new(),
                capacity,
                device: None,
            }),
        );
    }
    let request = VolumeRequest {
        name: "v".into(),
        pool,
        size_bytes: 1 << 30,
        protection: weft_types::Protection::mirror(2),
        striping: None,
        domain: FailureDomain::Node,
        thin: false,
        created_ms: 0,
    };
    let change = plan_volume(&map, &GroupIndex::of(&map), &request, &BTreeSet::new()).expect("it fits");
    take(&mut map, change);
    let volume = *map.volumes.keys().next().expect("it was created");
    for client in ["a", "b"] {
        let (mode, client, preempt) = (AttachMode::Shared, client.to_owned(), false);
        take(
            &mut map,
            Change::OpenSession(OpenSession { volume, mode, client, preempt, number: 0, lanes: 1 }),
        );
    }
    map
}

fn group(map: &mut FabricMap) -> &mut Group {
    let first = *map.groups.keys().next().expect("a group");
    map.groups.get_mut(&first).expect("a group")
}

fn volume(map: &mut FabricMap) -> &mut Volume {
    let first = *map.volumes.keys().next().expect("a volume");
    map.volumes.get_mut(&first).expect("a volume")
}

fn session(map: &mut FabricMap) -> &mut Session {
    let first = *map.sessions.keys().next().expect("a session");
    map.sessions.get_mut(&first).expect("a session")
}

/// The volume's groups as a list of its own, changed.
fn change_groups(map: &mut FabricMap, change: impl FnOnce(&mut Vec<GroupId>)) {
    let span = &mut volume(map).spans[0];
    let mut groups = span.groups.to_vec();
    change(&mut groups);
    span.groups = groups.into();
}

fn put_table(map: &mut FabricMap, id: u64, groups: &[GroupId]) {
    map.group_tables.insert(GroupTableId(id), Arc::new(GroupTable::new(GroupTableId(id), groups)));
}

#[test]
fn a_broken_map_is_noticed() {
    type Break = fn(&mut FabricMap);
    let sound = sound_map();
    assert_eq!(check(&sound), []);
    let cases: [(&str, Break); 31] = [
        ("no in-sync member", |m| group(m).slots.iter_mut().for_each(|s| s.role = Role::Out)),
        ("has two slots", |m| group(m).slots[1] = group(m).slots[0]),
        ("the epoch is e1", |m| group(m).slots[0].since = Epoch(2)),
        ("1 copies in pool", |m| group(m).slots.truncate(1)),
        ("no drive", |m| drop(m.drives.remove(&DriveId(2)))),
        ("no pool p1", |m| m.pools.clear()),
        ("no node", |m| m.nodes.clear()),
        ("no first target", |m| m.targets.clear()),
        ("no target t99", |m| m.drives.update_each(|d| d.target = TargetId(99))),
        ("is not below the next number", |m| m.next_id = 5),
        ("is under the number", |m| group(m).id = GroupId(1)),
        ("two nodes are named", |m| m.nodes.update_each(|n| n.name = "x".into())),
        ("breaks the rule", |m| volume(m).name = "a/b".into()),
        ("two targets listen", |m| m.targets.update_each(|t| t.addr = "h:1".into())),
        ("has the address", |m| m.targets.update_each(|t| t.addr.clear())),
        ("the spans cover 16 objects, the size needs 20", |m| volume(m).size.0 += 1),
        ("expected 0", |m| volume(m).spans[0].first = 4),
        ("no whole rows", |m| volume(m).spans[0].count = 15),
        ("lists 0 groups", |m| change_groups(m, Vec::clear)),
        ("no group g999", |m| change_groups(m, |groups| groups[0] = GroupId(999))),
        ("no such table", |m| m.group_tables.clear()),
        ("no volume names it", |m| put_table(m, 6, &[GroupId(6)])),
        ("it lists 2 groups, 1 different", |m| put_table(m, 6, &[GroupId(6); 2])),
        ("no such table", |m| m.group_tables.update_each(|t| *t = Arc::new(GroupTable::new(t.id, &[])))),
        ("2 copies in pool", |m| volume(m).protection = weft_types::Protection::mirror(3)),
        ("stripe width of 0", |m| volume(m).striping.width = 0),
        ("slot 0 is nobody's", |m| session(m).slot = SessionSlot(0)),
        ("is taken twice", |m| m.sessions.update_each(|s| s.slot = SessionSlot(9))),
        ("targets refuse below", |m| volume(m).generation = Generation(2)),
        ("open together", |m| session(m).mode = AttachMode::Exclusive),
        ("being deleted", |m| volume(m).state = VolumeState::Deleting),
    ];
    for (fault, damage) in cases {
        let mut map = sound.clone();
        damage(&mut map);
        let found: Vec<String> = check(&map).iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|f| f.contains(fault)), "expected '{fault}', found {found:?}");
        let found: Vec<String> = check_changed(&sound, &map).iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|f| f.contains(fault)), "by what differs: '{fault}', found {found:?}");
    }
}

#[test]
fn a_forbidden_step_is_noticed() {
    type Break = fn(&mut FabricMap);
    /// Changes the first slot of the first group, with a new epoch and stint as the rules want.
    fn step(map: &mut FabricMap, drive: Option<DriveId>, role: Role) {
        let group = group(map);
        group.epoch = group.epoch.next();
        let slot = &mut group.slots[0];
        (slot.role, slot.since, slot.drive) = (role, group.epoch, drive.unwrap_or(slot.drive));
    }
    let mut old = sound_map();
    step(&mut old, None, Role::Out);
    let out = old.groups.values().next().expect("a group").slots[0].drive;
    let kept = old.groups.values().next().expect("a group").slots[1].drive;
    assert!(out == DriveId(1) && kept != DriveId(3), "the third drive is free for the cases below");
    let over = *old.sessions.keys().next().expect("a session");
    old.sessions.get_mut(&over).expect("it is listed").state = SessionState::Over;
    old.next_id += 10;

    let mut good = old.clone();
    good.version = MapVersion(old.version.0 + 1);
    step(&mut good, None, Role::Syncing);
    assert_eq!(check_step(&old, &good), []);

    let cases: [(&str, Break); 18] = [
        ("follows", |m| m.version.0 += 1),
        ("slots changed: false", |m| group(m).epoch.0 += 1),
        ("slots changed: true", |m| group(m).slots[0].role = Role::Syncing),
        ("is not new", |m| {
            step(m, None, Role::Syncing);
            group(m).slots[0].since = Epoch(1);
        }),
        ("out became drive", |m| step(m, None, Role::InSync)),
        ("out became drive", |m| step(m, Some(DriveId(3)), Role::InSync)),
        ("no member stayed in-sync", |m| {
            step(m, None, Role::Syncing);
            group(m).slots[1].role = Role::Out;
        }),
        ("the group is gone", |m| m.groups.clear()),
        ("slots became", |m| group(m).slots.truncate(1)),
        ("the next number fell", |m| m.next_id -= 1),
        ("is given again", |m| {
            let new = session(m).clone();
            m.sessions.clear();
            m.sessions.insert(SessionId(3), new);
        }),
        ("gen0 follows", |m| volume(m).generation = Generation(0)),
        ("blocks became", |m| volume(m).size.0 -= 1),
        ("the layout changed", |m| volume(m).striping.width = 2),
        ("it changed", |m| m.group_tables.update_each(|t| *t = Arc::new(GroupTable::new(t.id, &[])))),
        ("the span at object 0 changed", |m| change_groups(m, |groups| groups.reverse())),
        ("gone while it was", |m| m.sessions.clear()),
        ("open again", |m| session(m).state = SessionState::Open),
    ];
    for (fault, damage) in cases {
        let mut map = old.clone();
        map.version = MapVersion(old.version.0 + 1);
        damage(&mut map);
        let found: Vec<String> = check_step(&old, &map).iter().map(ToString::to_string).collect();
        assert!(found.iter().any(|f| f.contains(fault)), "expected '{fault}', found {found:?}");
    }
}
