//! A manager as it runs in production: on an io_uring, with its store in a file, on TCP and on a Unix socket.

use std::path::PathBuf;
use std::rc::Rc;
use weft_api::{ApiAnswer, ApiRequest};
use weft_manager::{EmbeddedStore, Manager, ManagerError, ManagerOptions, StoreError, found};
use weft_rpc::Link;
use weft_rt::{Addr, Listener, block_on, spawn};
use weft_types::{BlockCount, DriveId, Durations, FabricId};
use weft_wire::Kind;
use weft_wire::control::{self, DriveReport, Join, ManagerRequest};
use weft_wire::handshake::{Hello, PeerRole};

/// A folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("weft-manager-real-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

async fn start(folder: PathBuf) -> (Rc<Manager>, Addr, Addr) {
    let store = EmbeddedStore::open(folder.join("map.redb")).unwrap();
    let manager = Manager::start(store, ManagerOptions::default()).await.unwrap();
    let tcp = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let unix = Listener::bind(&Addr::Unix(folder.join("manager.sock"))).unwrap();
    let addrs = (tcp.local_addr(), unix.local_addr());
    spawn(manager.clone().serve(tcp));
    spawn(manager.clone().serve(unix));
    (manager, addrs.0, addrs.1)
}

async fn join(addr: &Addr) {
    let link =
        Link::connect(addr, &Hello::new(PeerRole::Target(Default::default()), None, "t")).await.unwrap();
    let drive = DriveReport {
        id: DriveId(1),
        path: "/dev/one".into(),
        capacity: BlockCount(1 << 18),
        map_copy: Default::default(),
        epochs: vec![],
        commit: 0,
        device: None,
    };
    let request = ManagerRequest::Join(Join {
        node: "one".into(),
        addr: "127.0.0.1:1".into(),
        incarnation: 1,
        drives: vec![drive],
        knows_floors: true,
        knows_targets: true,
        knows_lanes: true,
        knows_file_systems: true,
        knows_spread: true,
        serves: Default::default(),
        ..Join::default()
    });
    link.call(Kind::Manage, &control::encode(&request), vec![]).await.unwrap();
}

async fn nodes(addr: &Addr) -> Vec<String> {
    let link = Link::connect(addr, &Hello::new(PeerRole::Tool, None, "t")).await.unwrap();
    let request = weft_api::encode_request(&ApiRequest::NodeList {});
    let frame = link.call(Kind::Api, &request, vec![]).await.unwrap();
    match weft_api::decode_reply(&frame.body).unwrap().into_result() {
        Ok(ApiAnswer::Nodes { nodes }) => nodes.into_iter().map(|n| n.name).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_one_process_has_committed_the_next_one_serves() {
    let folder = Folder::new();
    let path = folder.0.clone();
    let empty = block_on(async move {
        let store = EmbeddedStore::open(path.join("map.redb"));
        assert!(matches!(store.err(), Some(StoreError::Missing { .. })));
        let store = EmbeddedStore::open_or_make(path.join("map.redb")).unwrap();
        Manager::start(store, ManagerOptions::default()).await.err()
    })
    .unwrap();
    assert!(matches!(empty, Some(ManagerError::NoFabric)), "no fabric is made unasked: {empty:?}");
    let path = folder.0.clone();
    let fabric = block_on(async move {
        let store = EmbeddedStore::open(path.join("map.redb")).unwrap();
        let made = found(&store, FabricId(7), Durations::default()).await.unwrap().fabric;
        let again = found(&store, FabricId(8), Durations::default()).await;
        assert!(matches!(again, Err(ManagerError::FabricThere { fabric: FabricId(7), .. })), "{again:?}");
        drop(store);
        let (manager, tcp, unix) = start(path).await;
        assert_eq!(manager.map().fabric, made);
        join(&tcp).await;
        assert_eq!(nodes(&unix).await, ["one"]);
        manager.map().fabric
    })
    .unwrap();
    let path = folder.0.clone();
    let found = block_on(async move {
        let (manager, _, unix) = start(path).await;
        assert_eq!(nodes(&unix).await, ["one"]);
        manager.map().fabric
    })
    .unwrap();
    assert_eq!(fabric, found);
    let path = folder.0.clone();
    let refused = block_on(async move {
        let store = EmbeddedStore::open(path.join("map.redb")).unwrap();
        let options = ManagerOptions { fabric: Some(FabricId(1)), ..ManagerOptions::default() };
        Manager::start(store, options).await.err()
    })
    .unwrap();
    assert!(matches!(refused, Some(ManagerError::OtherFabric { .. })), "{refused:?}");
}
