//! File systems, as tools and clients ask for them: what they list, who attaches what, and who has to know
//! them.

use crate::harness;

use harness::*;
use weft_api::{ApiAnswer, ApiRequest, ErrorCode, FileSystemInfo, Health, Severity, TroubleKind, VolumeInfo};
use weft_rt::sim::Sim;
use weft_rt::sleep;
use weft_types::AttachMode::{self, Exclusive, ReadOnly, Shared};
use weft_types::{AttachKind, Session, SessionState, TargetId, VolumeState};
use weft_wire::Status;
use weft_wire::control::{ManagerAnswer, ManagerRequest, TargetRequest, UnservedShard};
use weft_wire::handshake::PeerRole;

fn fs_of(name: &str, copies: u8) -> ApiRequest {
    request_of(name, copies, false)
}

fn request_of(name: &str, copies: u8, is_spread: bool) -> ApiRequest {
    ApiRequest::FsCreate {
        name: name.into(),
        protection: weft_types::Protection::mirror(copies),
        pool: None,
        shards: Some(3),
        is_spread,
        stripe_unit_bytes: Some(128 << 10),
        width: None,
        failure_domain: Default::default(),
        dry_run: false,
    }
}

async fn created(request: ApiRequest) -> FileSystemInfo {
    match operate(request).await {
        Ok(ApiAnswer::FileSystem { file_system, .. }) => file_system,
        other => panic!("{other:?}"),
    }
}

async fn created_info(name: &str) -> FileSystemInfo {
    match operate(ApiRequest::FsShow { name: name.into() }).await {
        Ok(ApiAnswer::FileSystem { file_system, .. }) => file_system,
        other => panic!("{other:?}"),
    }
}

async fn volumes(all: bool) -> Vec<VolumeInfo> {
    match operate(ApiRequest::VolumeList { all }).await {
        Ok(ApiAnswer::Volumes { volumes }) => volumes,
        other => panic!("{other:?}"),
    }
}

async fn attach_as(kind: AttachKind, name: &str, mode: AttachMode) -> Result<Session, (Status, String)> {
    attach_beside(None, kind, name, mode).await
}

async fn attach_beside(
    server: Option<TargetId>,
    kind: AttachKind,
    name: &str,
    mode: AttachMode,
) -> Result<Session, (Status, String)> {
    let link = connect(PeerRole::Client).await;
    let (volume, client) = (name.into(), "test".into());
    let follows = None;
    let request = ManagerRequest::Attach {
        volume,
        mode,
        preempt: false,
        client,
        follows,
        number: 0,
        lanes: 1,
        kind,
        server,
    };
    match ask(&link, &request).await? {
        (ManagerAnswer::Attached { session, .. }, _) => Ok(session),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_system_is_created_shown_and_deleted_with_its_system_volumes() {
    Sim::new(1).block_on(async {
        let (service, targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        let mut rehearsal = fs_of("photos", 2);
        let ApiRequest::FsCreate { dry_run, .. } = &mut rehearsal else { panic!() };
        *dry_run = true;
        let planned = created(rehearsal).await;
        assert!(service.map().file_systems().next().is_none());
        let info = created(fs_of("photos", 2)).await;
        assert_eq!((info.id, info.groups, info.health), (planned.id, planned.groups, Health::Healthy));
        assert_eq!((info.shards, info.sets.len(), info.stripe_unit_bytes), (3, 1, 128 << 10));
        let names = |volumes: Vec<VolumeInfo>| volumes.into_iter().map(|v| v.name).collect::<Vec<_>>();
        assert_eq!(names(volumes(false).await), ["v"]);
        let all = volumes(true).await;
        assert_eq!(all[0].file_system.as_deref(), Some("photos"));
        assert_eq!(names(all), ["photos:0", "photos:1", "photos:2", "v"]);
        let Ok(ApiAnswer::FileSystems { file_systems }) = operate(ApiRequest::FsList {}).await else {
            panic!()
        };
        let servers = file_systems[0].servers.clone();
        assert!(servers.iter().all(|shard| shard.server.is_some()), "each has one by now");
        assert_eq!(file_systems, [FileSystemInfo { servers, ..info }]);
        let status = status().await;
        assert_eq!((status.volumes, status.file_systems), (1, 1));

        attach_as(AttachKind::Files, "photos", Shared).await.unwrap();
        let delete = |force, dry_run| ApiRequest::FsDelete { name: "photos".into(), force, dry_run };
        let error = operate(delete(false, false)).await.unwrap_err();
        assert!(error.code == ErrorCode::Refused && error.hint.unwrap().contains("--force"));
        let Ok(ApiAnswer::FileSystemDeleting { ended_sessions, .. }) = operate(delete(true, true)).await
        else {
            panic!()
        };
        assert_eq!(ended_sessions.len(), 1);
        let ids: Vec<_> = service.map().volumes.values().filter(|v| v.name != "v").map(|v| v.id).collect();
        operate(delete(true, false)).await.unwrap();
        let map = service.map();
        let is_closed = |v: &weft_types::Volume| v.name == "v" || v.state == VolumeState::Deleting;
        assert!(map.volumes.values().all(is_closed));
        eventually("all are gone", ms(3000), || service.map().volumes.len() == 1).await;
        for target in &targets {
            let dropped = |id| {
                let is_that = |r: &TargetRequest| *r == TargetRequest::DropVolume { volume: id };
                target.log.borrow().iter().any(|(_, request)| is_that(request))
            };
            assert!(ids.iter().all(|id| dropped(*id)), "each is dropped by itself");
        }
    });
}

#[test]
fn a_file_system_grows_into_new_drives_and_says_if_there_are_none() {
    Sim::new(9).block_on(async {
        let (service, mut targets, _) = fabric(2).await;
        let before = created(fs_of("photos", 2)).await;
        let grow = |dry_run| ApiRequest::FsGrow { name: "photos".into(), dry_run };
        let grown = async |dry_run| match operate(grow(dry_run)).await {
            Ok(ApiAnswer::FileSystem { file_system, warnings, dry_run: answered }) if answered == dry_run => {
                (file_system.sets, warnings)
            }
            other => panic!("{other:?}"),
        };
        let (sets, warnings) = grown(false).await;
        assert_eq!(sets, before.sets);
        assert!(warnings[0].contains("uses all drives of its pool already"), "{warnings:?}");
        for n in 3..=4 {
            targets.push(FakeTarget::new(n, &[u128::from(n)]));
            targets.last().expect("it was pushed").start();
        }
        all_up(&service, &targets).await;
        let (sets, warnings) = grown(true).await;
        assert_eq!((sets.len(), warnings), (2, vec![]));
        assert_eq!(created_info("photos").await.sets, before.sets, "nothing was changed");
        assert_eq!(grown(false).await.0, sets);
        // Said again after a lost answer, it is done.
        assert_eq!(grown(false).await.0, sets);
        let error = operate(ApiRequest::FsGrow { name: "v".into(), dry_run: false }).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::NotFound);
    });
}

#[test]
fn what_is_one_thing_is_not_taken_for_another() {
    Sim::new(2).block_on(async {
        let (_service, _targets, _) = fabric(2).await;
        operate(volume_of("v", 2)).await.unwrap();
        created(fs_of("photos", 2)).await;
        use AttachKind::{Blocks, Files, System};
        for (kind, name, mode, says) in [
            (Blocks, "photos", Shared, "'photos' is a file system"),
            (System, "photos", Exclusive, "'photos' is a file system"),
            (Files, "v", Shared, "'v' is a volume of blocks"),
            (System, "v", Exclusive, "'v' is a volume of blocks"),
            (Blocks, "photos:1", Shared, "holds metadata of file system 'photos'"),
            (Files, "photos:1", Shared, "holds metadata of file system 'photos'"),
            (Files, "photos", Exclusive, "cannot be attached exclusively"),
        ] {
            let (status, text) = attach_as(kind, name, mode).await.unwrap_err();
            assert!(status == Status::Refused && text.contains(says), "{kind:?} of {name}: {text}");
        }
        attach_as(Files, "photos", Shared).await.unwrap();
        attach_as(Files, "photos", ReadOnly).await.unwrap();
        let (status, text) = attach_as(System, "photos:1", Exclusive).await.unwrap_err();
        assert!(status == Status::Refused && text.contains("by the server of its shard"), "{text}");
        let show = |name: &str| ApiRequest::VolumeShow { name: name.into() };
        let fs_show = |name: &str| ApiRequest::FsShow { name: name.into() };
        let resize =
            |name: &str| ApiRequest::VolumeResize { name: name.into(), size_bytes: 2 << 40, dry_run: false };
        let delete = |name: &str| ApiRequest::VolumeDelete { name: name.into(), force: true, dry_run: false };
        for (request, says, hint) in [
            (show("photos"), "'photos' is a file system", "weft fs show photos"),
            (resize("photos"), "'photos' is a file system", "weft fs show photos"),
            (delete("photos"), "'photos' is a file system", "weft fs show photos"),
            (resize("photos:0"), "system volume of file system 'photos'", "weft fs show photos"),
            (delete("photos:0"), "system volume of file system 'photos'", "weft fs show photos"),
            (fs_show("v"), "'v' is a volume", "weft volume show v"),
            (fs_show("photos:0"), "system volume", "weft fs list"),
            (fs_show("none"), "there is no file system 'none'", "weft fs list"),
            (fs_of("v", 2), "already a volume named 'v'", "choose another name"),
            (volume_of("photos", 2), "already a file system named 'photos'", "choose another name"),
        ] {
            let error = operate(request.clone()).await.unwrap_err();
            let hints = error.hint.as_deref().unwrap_or_default();
            assert!(error.message.contains(says) && hints.contains(hint), "{request:?}: {error:?}");
        }
        assert!(matches!(operate(show("photos:0")).await, Ok(ApiAnswer::Volume { .. })), "it can be seen");
        let scrub = ApiRequest::ScrubStart { volumes: vec!["photos".into()] };
        assert!(operate(scrub).await.is_ok());
    });
}

/// The servers of the shards of 'photos'.
fn servers(service: &Service) -> Vec<Option<TargetId>> {
    let map = service.map();
    let files = map.volume_named("photos").expect("it was made").files().expect("it is one").clone();
    files.shards.iter().map(|shard| shard.server).collect()
}

#[test]
fn a_shard_is_served_by_the_target_that_is_named_and_by_its_newest_process() {
    Sim::new(4).block_on(async {
        let (service, targets, _) = fabric(3).await;
        created(fs_of("photos", 2)).await;
        let named = |service: &Service| servers(service).iter().all(Option::is_some);
        eventually("all have servers", ms(1000), || named(&service)).await;
        let server = servers(&service)[0].expect("it has one");
        let other = *service.map().targets.keys().find(|target| **target != server).expect("there are three");
        let (status, text) =
            attach_beside(Some(other), AttachKind::System, "photos:0", Exclusive).await.unwrap_err();
        let title = service.map().title_of(server);
        assert!(status == Status::Refused && text.contains(&title), "{text}");
        let attach = || attach_beside(Some(server), AttachKind::System, "photos:0", Exclusive);
        let session = attach().await.unwrap();
        let is_open = |service: &Service, session: &Session| {
            service.map().sessions.get(&session.id).is_some_and(|s| s.state == SessionState::Open)
        };
        let shown = created_info("photos").await;
        assert_eq!(shown.servers.iter().map(|shard| shard.serves).collect::<Vec<_>>(), [true, false, false]);

        // It joins again, as after the manager has lost sight of it, and says what its process serves.
        let of_map = service.map().targets[&server].node;
        let target = targets.iter().find(|t| t.name == service.map().nodes[&of_map].name).expect("it is one");
        target.serves_shards.borrow_mut().insert(session.id);
        let link = connect(PeerRole::Target(TargetId::default())).await;
        ask(&link, &target.join()).await.unwrap();
        assert!(is_open(&service, &session));

        // Another process of it, which knows nothing of the session.
        target.serves_shards.borrow_mut().clear();
        ask(&link, &target.join()).await.unwrap();
        assert!(!is_open(&service, &session));
        eventually("it is swept", ms(3000), || !service.map().sessions.contains_key(&session.id)).await;

        let session = attach().await.unwrap();
        target.kill();
        eventually("another one is named", ms(5000), || servers(&service)[0] != Some(server)).await;
        assert!(!is_open(&service, &session), "its session is over with its name");
        assert!(named(&service));
    });
}

#[test]
fn file_systems_and_targets_that_do_not_know_them_do_not_come_together() {
    Sim::new(3).block_on(async {
        let service = Service::start().await;
        let (older, newer) = (FakeTarget::new(1, &[1]), FakeTarget::new(2, &[2]));
        older.knows_file_systems.set(false);
        [&older, &newer].into_iter().for_each(|target| drop(target.start()));
        all_up(&service, &[older.clone(), newer.clone()]).await;
        operate(volume_of("v", 2)).await.unwrap();
        let error = operate(fs_of("photos", 2)).await.unwrap_err();
        let says = error.message.contains("node 'node-1' runs an older release");
        assert!(says && error.hint.unwrap().contains("upgrade all nodes"), "{}", error.message);
        older.kill();
        older.knows_file_systems.set(true);
        older.start();
        weft_rt::sleep(ms(100)).await;
        all_up(&service, &[older.clone(), newer.clone()]).await;
        created(fs_of("photos", 2)).await;
        older.kill();
        older.knows_file_systems.set(false);
        let link = connect(PeerRole::Target(TargetId::default())).await;
        let (status, text) = ask(&link, &older.join()).await.unwrap_err();
        let says = text.contains("upgrade node 'node-1'") && text.contains("file system 'photos'");
        assert!(status == Status::Refused && says, "{text}");
    });
}

#[test]
fn spread_file_systems_and_targets_that_do_not_know_them_do_not_come_together() {
    Sim::new(4).block_on(async {
        let service = Service::start().await;
        let (older, newer) = (FakeTarget::new(1, &[1]), FakeTarget::new(2, &[2]));
        older.knows_spread.set(false);
        [&older, &newer].into_iter().for_each(|target| drop(target.start()));
        all_up(&service, &[older.clone(), newer.clone()]).await;
        created(fs_of("photos", 2)).await;
        let error = operate(request_of("films", 2, true)).await.unwrap_err();
        let says = error.message.contains("node 'node-1' runs an older release");
        assert!(says && error.message.contains("in several shards"), "{}", error.message);
        older.kill();
        older.knows_spread.set(true);
        older.start();
        weft_rt::sleep(ms(100)).await;
        all_up(&service, &[older.clone(), newer.clone()]).await;
        created(request_of("films", 2, true)).await;
        older.kill();
        older.knows_spread.set(false);
        let link = connect(PeerRole::Target(TargetId::default())).await;
        let (status, text) = ask(&link, &older.join()).await.unwrap_err();
        let says = text.contains("upgrade node 'node-1'") && text.contains("one, 'films'");
        assert!(status == Status::Refused && says, "{text}");
    });
}

#[test]
fn a_shard_that_its_server_cannot_open_is_named() {
    Sim::new(6).block_on(async {
        let (service, targets, _) = fabric(3).await;
        created(fs_of("photos", 2)).await;
        let named = |service: &Service| servers(service).iter().all(Option::is_some);
        eventually("all have servers", ms(1000), || named(&service)).await;
        let server = servers(&service)[1].expect("it has one");
        let name_of = |target| {
            let map = service.map();
            map.nodes[&map.targets[&target].node].name.clone()
        };
        let target = targets.iter().find(|t| t.name == name_of(server)).expect("it is one");
        let other = targets.iter().find(|t| t.name != name_of(server)).expect("there are three");
        let file_system = service.map().file_systems().next().expect("it is there").id;
        let unserved = |why: &str| UnservedShard { file_system, shard: 1, why: why.into() };
        let told = async || {
            sleep(ms(1_500)).await;
            let troubles = status().await.troubles;
            troubles.into_iter().filter(|t| t.kind == TroubleKind::ShardUnserved).collect::<Vec<_>>()
        };
        assert!(told().await.is_empty());
        // What a server says that was named before says nothing.
        other.unserved.borrow_mut().push(unserved("of before"));
        assert!(told().await.is_empty());
        target.unserved.borrow_mut().push(unserved("the log is damaged"));
        let [trouble] = &told().await[..] else { panic!("one is told") };
        assert!(trouble.what.contains("shard 1 of file system 'photos'"), "{}", trouble.what);
        assert!(trouble.what.contains("the log is damaged"), "{}", trouble.what);
        assert_eq!(
            (trouble.severity, &trouble.volumes[0].volume),
            (Severity::Unavailable, &"photos:1".into())
        );
        let shown = created_info("photos").await;
        assert_eq!((shown.health, shown.servers[1].serves), (Health::Unavailable, false));
        target.unserved.borrow_mut().clear();
        assert!(told().await.is_empty());
        assert_eq!(created_info("photos").await.health, Health::Healthy);
    });
}
