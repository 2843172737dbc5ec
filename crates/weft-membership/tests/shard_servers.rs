//! Who serves the shards of file systems: each has a server where there is one that can, evenly, and gets
//! another one when that cannot serve any more.

use std::collections::{BTreeMap, BTreeSet};
use weft_layout::FailureDomain;
use weft_membership::{
    AddDrive, BeginDelete, Change, CreatePool, DrainDrive, DriveObservation, FileSystemRequest, GroupIndex,
    JoinNode, NameServers, Observations, OpenSession, Reason, Refusal, TargetObservation, apply, check,
    check_changed, check_step, next_servers, plan_file_system,
};
use weft_types::{
    AttachMode, BlockCount, DriveId, FabricId, FabricMap, PoolId, Protection, SessionState, TargetId,
    VolumeId,
};

const POOL: PoolId = PoolId(1);

fn take(map: &mut FabricMap, change: Change) -> Reason {
    let (next, reason) = apply(map, &change).unwrap_or_else(|refusal| panic!("{change:?}: {refusal}"));
    assert_eq!(check(&next), [], "after {change:?}");
    assert_eq!(check_changed(map, &next), [], "after {change:?}");
    assert_eq!(check_step(map, &next), [], "by {change:?}");
    assert!(!reason.to_string().is_empty());
    *map = next;
    reason
}

/// Nodes with one drive each, and a file system over all of them.
fn fabric(nodes: u32, shards: usize) -> (FabricMap, VolumeId) {
    let mut map = FabricMap::empty(FabricId(7));
    take(&mut map, Change::CreatePool(CreatePool { name: "p".into() }));
    for n in 1..=nodes {
        let join = JoinNode { name: format!("node-{n}"), addr: format!("10.0.0.{n}:7000") };
        let Reason::NodeJoined { node, .. } = take(&mut map, Change::JoinNode(join)) else { panic!() };
        let add = AddDrive {
            drive: DriveId(n.into()),
            target: TargetId::first_of(node),
            pool: POOL,
            path: format!("/dev/{n}"),
            capacity: BlockCount(10 << 18),
            device: None,
        };
        take(&mut map, Change::AddDrive(add));
    }
    let request = FileSystemRequest {
        name: "home".into(),
        pool: POOL,
        protection: Protection::mirror(2),
        striping: None,
        domain: FailureDomain::Node,
        shards,
        is_spread: false,
        created_ms: 5,
    };
    let planned = plan_file_system(&map, &GroupIndex::of(&map), &request, &BTreeSet::new());
    let Reason::FileSystemCreated { file_system, .. } = take(&mut map, planned.expect("it fits")) else {
        panic!()
    };
    (map, file_system)
}

/// All targets are up but these, and serve their drives.
fn seen_without(map: &FabricMap, dead: &[TargetId]) -> Observations {
    let mut seen = Observations { now_ms: 1_000, ..Observations::default() };
    let target = |alive| TargetObservation { alive, fenced: false, heard_ms: 1_000 };
    seen.targets = map.targets.keys().map(|t| (*t, target(!dead.contains(t)))).collect();
    let present = DriveObservation { present: true, failed: None, fenced: false, seen_ms: 1_000 };
    seen.drives = map.drives.keys().map(|d| (*d, present.clone())).collect();
    seen
}

/// Commits all that is planned, and says what was.
fn settle(map: &mut FabricMap, seen: &Observations) -> Vec<NameServers> {
    let mut named = Vec::new();
    while let Some(change) = next_servers(map, seen) {
        take(map, change.clone());
        let Change::NameServers(change) = change else { panic!("{change:?}") };
        named.push(change);
        assert!(named.len() < 1_000, "it comes to an end");
    }
    named
}

fn servers(map: &FabricMap, file_system: VolumeId) -> Vec<Option<TargetId>> {
    map.volumes[&file_system].files().expect("it is one").shards.iter().map(|shard| shard.server).collect()
}

/// How many shards each of these targets serves, in order.
fn loads(map: &FabricMap, file_system: VolumeId) -> BTreeMap<TargetId, usize> {
    let mut loads: BTreeMap<TargetId, usize> = map.targets.keys().map(|target| (*target, 0)).collect();
    for server in servers(map, file_system).into_iter().flatten() {
        *loads.get_mut(&server).expect("it is listed") += 1;
    }
    loads
}

#[test]
fn every_shard_has_a_server_that_holds_some_of_it_and_all_serve_about_as_many() {
    let (mut map, id) = fabric(4, 16);
    let seen = seen_without(&map, &[]);
    assert_eq!(servers(&map, id), [None; 16]);
    let named = settle(&mut map, &seen);
    assert_eq!((named.len(), named[0].servers.len()), (1, 16), "one commit names all");
    assert!(loads(&map, id).values().all(|load| *load == 4), "{:?}", loads(&map, id));
    for shard in &map.volumes[&id].files().expect("it is one").shards {
        let groups = map.volumes[&shard.volume].groups().map(|group| &map.groups[group]);
        let mut members = groups.flat_map(|group| &group.slots).map(|slot| map.drives[&slot.drive].target);
        assert!(members.any(|target| Some(target) == shard.server));
    }
}

#[test]
fn the_shards_of_a_target_that_is_gone_pass_to_others_and_their_sessions_end() {
    let (mut map, id) = fabric(4, 8);
    let seen = seen_without(&map, &[]);
    settle(&mut map, &seen);
    let before = servers(&map, id);
    let dead = before[0].expect("it has one");
    for shard in map.volumes[&id].files().expect("it is one").shards.clone() {
        let (mode, client) = (AttachMode::Exclusive, "server".into());
        let open = OpenSession { volume: shard.volume, mode, client, preempt: false, number: 0, lanes: 1 };
        take(&mut map, Change::OpenSession(open));
    }
    let seen = seen_without(&map, &[dead]);
    let named = settle(&mut map, &seen);
    assert_eq!(named.len(), 1, "one commit for all of them");
    for (shard, (was, is)) in before.iter().zip(servers(&map, id)).enumerate() {
        let volume = map.volumes[&id].files().expect("it is one").shards[shard].volume;
        let session = map.sessions.values().find(|session| session.volume == volume).expect("it is listed");
        match *was == Some(dead) {
            true => assert!(is.is_some() && is != *was && session.state == SessionState::Over),
            false => assert!(is == *was && session.state == SessionState::Open),
        }
    }
    // It is back.
    let seen = seen_without(&map, &[]);
    let named = settle(&mut map, &seen);
    assert!(named.iter().all(|change| change.servers.len() == 1), "one shard at a time");
    let loads = loads(&map, id);
    let (least, most) = (loads.values().min().unwrap(), loads.values().max().unwrap());
    assert!(most - least < 2, "{loads:?}");
}

#[test]
fn a_target_of_which_nothing_is_known_keeps_its_shards() {
    let (mut map, id) = fabric(3, 4);
    let seen = seen_without(&map, &[]);
    settle(&mut map, &seen);
    let before = servers(&map, id);
    assert_eq!(settle(&mut map, &Observations::default()), []);
    assert_eq!(servers(&map, id), before);
}

#[test]
fn a_target_whose_drive_is_to_be_emptied_serves_nothing_any_more() {
    let (mut map, id) = fabric(4, 8);
    let seen = seen_without(&map, &[]);
    settle(&mut map, &seen);
    let server = servers(&map, id)[0].expect("it has one");
    let drive = map.drives.values().find(|drive| drive.target == server).expect("it has one").id;
    take(&mut map, Change::DrainDrive(DrainDrive { drive, on: true }));
    settle(&mut map, &seen);
    assert_eq!(loads(&map, id)[&server], 0);
    assert!(servers(&map, id).iter().all(Option::is_some));
}

#[test]
fn what_cannot_be_named_is_refused() {
    let (mut map, id) = fabric(3, 2);
    let seen = seen_without(&map, &[]);
    settle(&mut map, &seen);
    let server = servers(&map, id)[0].expect("it has one");
    let name = |file_system, shard: usize, server| {
        Change::NameServers(NameServers { file_system, servers: [(shard, server)].into() })
    };
    let refusal = |map: &FabricMap, change: Change| apply(map, &change).unwrap_err();
    assert!(matches!(refusal(&map, name(id, 2, server)), Refusal::NoSuchShard { shard: 2, shards: 2 }));
    assert!(matches!(refusal(&map, name(id, 0, server)), Refusal::SameServer { shard: 0, .. }));
    assert!(matches!(refusal(&map, name(id, 0, TargetId(99))), Refusal::Unknown { .. }));
    assert!(matches!(refusal(&map, name(VolumeId(1), 0, server)), Refusal::Unknown { .. }));
    take(&mut map, Change::BeginDelete(BeginDelete { volume: id, force: false }));
    let other = *map.targets.keys().find(|target| **target != server).expect("there are three");
    assert!(matches!(refusal(&map, name(id, 0, other)), Refusal::Deleting { .. }));
    assert_eq!(next_servers(&map, &seen_without(&map, &[server])), None);
}
