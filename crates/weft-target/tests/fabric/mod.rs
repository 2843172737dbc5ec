//! A fabric in one simulation for the target's tests: real targets on simulated disks, a manager that hands out
//! whatever map the test wants, and a client that speaks in raw requests.
#![allow(dead_code)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_rpc::{Answer, Body, CallError, Greeter, Link, Peer, Reply, Request, Server, Service, Services};
use weft_rt::sim::{Crash, ProcessId, SimDisk, kill, spawn_process};
use weft_rt::sync::{Notify, race};
use weft_rt::{Addr, Buf, Listener, now, sleep, timeout};
use weft_store::{FormatOptions, OpenOptions, Store};
use weft_target::{Target, TargetOptions, TargetThread};
use weft_types::limits::DIGESTS_MAX;
use weft_types::*;
use weft_wire::control::{
    self, Join, ManagerAnswer, ManagerRequest, TargetAnswer, TargetRequest, TargetStatus,
};
use weft_wire::data::*;
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::renewal::{Grant, Renewal};
use weft_wire::{Kind, PROTOCOL, Status};

pub const FABRIC: FabricId = FabricId(77);
pub const GROUP: GroupId = GroupId(1);
pub const VOLUME: VolumeId = VolumeId(1);
pub const OBJECT: ObjectId = ObjectId::of_volume(VOLUME, 0);
/// The lease of the tests' maps.
pub const LEASE: Duration = Duration::from_secs(2);

pub fn host(n: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, n as u8])
}

pub fn addr(n: usize) -> Addr {
    format!("10.0.0.{n}:4800").parse().unwrap()
}

pub fn drive(n: usize) -> DriveId {
    DriveId(n as u128)
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A version whose counter lies `n` above the virtual clock's start.
pub fn version(n: u64, slot: u16) -> Version {
    Version::new(clock_counter(1_767_225_600_000_000) + n, SessionSlot(slot))
}

/// A node, and how far its drives have come.
pub type LastWord = (TargetId, Vec<(DriveId, u64)>);

/// The manager: grants what the test allows, and remembers what it was told.
pub struct Manager {
    pub map: RefCell<FabricMap>,
    pub suspects: RefCell<BTreeSet<TargetId>>,
    /// Nodes that get no lease.
    pub refused: RefCell<BTreeSet<TargetId>>,
    pub incarnations: RefCell<BTreeMap<TargetId, u64>>,
    pub verified: RefCell<Vec<(GroupId, DriveId, Epoch)>>,
    pub failed: RefCell<Vec<(DriveId, String)>>,
    pub renewals: Cell<u64>,
    /// How far drives have come, by renewals and by last words.
    pub renewed: RefCell<BTreeMap<DriveId, u64>>,
    pub last_words: RefCell<Vec<LastWord>>,
    /// No map is handed out but to those who join.
    pub holds_maps: Cell<bool>,
}

impl Greeter for Manager {
    fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
        Ok(Some(FABRIC))
    }
}

impl Service for Manager {
    async fn handle(self: Rc<Self>, _: Rc<Peer>, request: Request) -> Answer {
        if request.kind == Kind::Renew {
            return self.renew(&Renewal::decode(&request.head).unwrap());
        }
        let asked: ManagerRequest = control::decode(&request.head).unwrap();
        let map = self.map.borrow().clone();
        let with_map = |answer: &ManagerAnswer| {
            Answer::ok(control::encode(answer), vec![Buf::from(control::encode_map(&map))])
        };
        match asked {
            ManagerRequest::Join(Join { node, incarnation, .. }) => {
                let target = TargetId::first_of(map.node_named(&node).unwrap().id);
                self.incarnations.borrow_mut().insert(target, incarnation);
                with_map(&ManagerAnswer::Joined { target, refused: vec![], nonce: 0 })
            }
            ManagerRequest::Stopped { target, incarnation, commits } => {
                if self.incarnations.borrow().get(&target) != Some(&incarnation) {
                    return Answer::error(Status::NotFound, "who are you");
                }
                self.last_words.borrow_mut().push((target, commits));
                Answer::ok(control::encode(&ManagerAnswer::Done), vec![])
            }
            ManagerRequest::WatchMap { have } if have < map.version && !self.holds_maps.get() => {
                with_map(&ManagerAnswer::Map { version: map.version })
            }
            ManagerRequest::WatchMap { .. } => {
                sleep(Duration::from_secs(10)).await;
                Answer::ok(control::encode(&ManagerAnswer::Map { version: map.version }), vec![])
            }
            ManagerRequest::Verified { group, drive, stint } => {
                self.verified.borrow_mut().push((group, drive, stint));
                Answer::ok(control::encode(&ManagerAnswer::Done), vec![])
            }
            ManagerRequest::DriveFailed { drive, cause, .. } => {
                self.failed.borrow_mut().push((drive, cause));
                Answer::ok(control::encode(&ManagerAnswer::Done), vec![])
            }
            other => Answer::error(Status::Invalid, format!("{other:?}")),
        }
    }
}

impl Manager {
    fn renew(&self, Renewal { target, incarnation, commits, .. }: &Renewal) -> Answer {
        let known = self.incarnations.borrow().get(target) == Some(incarnation);
        if !known || self.refused.borrow().contains(target) {
            return Answer::error(Status::NotFound, "no lease for you");
        }
        self.renewals.set(self.renewals.get() + 1);
        self.renewed.borrow_mut().extend(commits.iter().copied());
        let suspects = self.suspects.borrow().iter().copied().collect();
        let grant = Grant { map: self.map.borrow().version, clock_us: 0, suspects };
        let (head, body) = grant.encode();
        Answer::ok(head, if body.is_empty() { vec![] } else { vec![Buf::from(body)] })
    }
}

/// Targets 1 to n on hosts 10.0.0.1 to n, one drive each, all in one group; the manager on 10.0.0.100.
pub struct Fabric {
    pub manager: Rc<Manager>,
    pub manager_process: Cell<Option<ProcessId>>,
    pub disks: Vec<SimDisk>,
    processes: RefCell<BTreeMap<usize, ProcessId>>,
    /// Ask a process to stop in order.
    stops: RefCell<BTreeMap<usize, Rc<Notify>>>,
    /// What the last stop in order came to: whether its last word was heard, and the commit that its drive had.
    pub stopped: Rc<Cell<Option<(bool, u64)>>>,
    pub targets: Rc<RefCell<BTreeMap<usize, Rc<Target>>>>,
}

const MANAGER_HOST: usize = 100;

impl Fabric {
    /// Formats the drives and starts everything; returns when all targets serve.
    pub async fn start(n: usize) -> Rc<Fabric> {
        let fabric = Self::start_with(n, Role::InSync).await;
        fabric.wait_serving().await;
        fabric
    }

    /// Likewise, with the last member in this role; does not wait.
    pub async fn start_with(n: usize, last: Role) -> Rc<Fabric> {
        let mut disks = Vec::new();
        for i in 1..=n {
            let disk = SimDisk::new(&format!("disk{i}"), 64 << 20);
            let open = disk.open().unwrap();
            Store::format(&open, FormatOptions::new(FABRIC, drive(i))).await.unwrap();
            drop(open);
            disks.push(disk);
        }
        let manager = Rc::new(Manager {
            map: RefCell::new(first_map(n, last)),
            suspects: RefCell::default(),
            refused: RefCell::default(),
            incarnations: RefCell::default(),
            verified: RefCell::default(),
            failed: RefCell::default(),
            renewals: Cell::new(0),
            renewed: RefCell::default(),
            last_words: RefCell::default(),
            holds_maps: Cell::new(false),
        });
        let fabric = Rc::new(Fabric {
            manager,
            manager_process: Cell::new(None),
            disks,
            processes: RefCell::default(),
            stops: RefCell::default(),
            stopped: Rc::default(),
            targets: Rc::default(),
        });
        fabric.start_manager();
        for i in 1..=n {
            fabric.start_target(i);
        }
        fabric
    }

    pub fn start_manager(&self) {
        let manager = self.manager.clone();
        let process = spawn_process(host(MANAGER_HOST), "manager", async move {
            Server::run(Listener::bind(&addr(MANAGER_HOST)).unwrap(), Services::one(manager)).await;
        });
        self.manager_process.set(Some(process));
    }

    pub fn stop_manager(&self) {
        kill(self.manager_process.take().expect("it runs"), Crash::Process);
    }

    pub fn start_target(&self, n: usize) {
        let (disk, targets) = (self.disks[n - 1].clone(), self.targets.clone());
        let (stop, stopped) = (Rc::new(Notify::default()), self.stopped.clone());
        self.stops.borrow_mut().insert(n, stop.clone());
        let process = spawn_process(host(n), &format!("target{n}"), async move {
            let (store, _) = Store::open(disk.open().unwrap(), OpenOptions::default()).await.unwrap();
            let options = TargetOptions {
                node_name: format!("n{n}"),
                fabric: FABRIC,
                listen: addr(n),
                managers: vec![addr(MANAGER_HOST)],
                thread: TargetThread::only(),
            };
            let target = Target::start(options, vec![(format!("/dev/sim{n}"), store.clone())]);
            targets.borrow_mut().insert(n, target.clone());
            race(target.run(Listener::bind(&addr(n)).unwrap()), stop.notified()).await;
            target.stop().await;
            store.close().await.unwrap();
            stopped.set(Some((target.say_last_word().await, store.durable_commit())));
        });
        self.processes.borrow_mut().insert(n, process);
    }

    pub fn kill_target(&self, n: usize, crash: Crash) {
        let process = self.processes.borrow_mut().remove(&n).expect("it runs");
        self.targets.borrow_mut().remove(&n);
        kill(process, crash);
    }

    /// Stops a target in order; whether its last word was heard, and the commit that its drive had in the end.
    pub async fn stop_target(&self, n: usize) -> (bool, u64) {
        self.stopped.set(None);
        self.stops.borrow()[&n].notify_all();
        eventually("it stops", || self.stopped.get().is_some()).await;
        self.kill_target(n, Crash::Process);
        self.stopped.get().expect("it has stopped")
    }

    pub fn status(&self, n: usize) -> Option<TargetStatus> {
        self.targets.borrow().get(&n).map(|t| t.status())
    }

    pub fn is_serving(&self, n: usize) -> bool {
        self.status(n).is_some_and(|s| s.serving)
    }

    pub async fn wait_serving(&self) {
        let running: Vec<usize> = self.processes.borrow().keys().copied().collect();
        eventually("targets serve", || running.iter().all(|n| self.is_serving(*n))).await;
    }

    /// Changes the map: one version up. Nobody is told.
    pub fn change(&self, change: impl FnOnce(&mut FabricMap)) {
        let mut map = self.manager.map.borrow_mut();
        change(&mut map);
        map.version.0 += 1;
    }

    /// Changes a member's role: the group's epoch goes up, the role begins with it.
    pub fn set_role(&self, n: usize, role: Role) -> Epoch {
        let mut epoch = Epoch(0);
        self.change(|map| {
            let group = map.groups.get_mut(&GROUP).unwrap();
            group.epoch = group.epoch.next();
            epoch = group.epoch;
            let slot = group.slots.iter_mut().find(|s| s.drive == drive(n)).unwrap();
            (slot.role, slot.since) = (role, group.epoch);
        });
        epoch
    }

    /// The order to sweep sessions of the volume by the newest map.
    pub fn sweep_of(&self, sessions: &[(SessionId, SessionSlot)]) -> TargetRequest {
        let map = self.manager.map.borrow().version;
        TargetRequest::Sweep { sessions: sessions.to_vec(), volume: VOLUME, map }
    }

    pub fn entry(&self) -> Group {
        self.manager.map.borrow().groups[&GROUP].clone()
    }

    /// Tells a target something as the manager, which it does; none if it does not answer within 5 s.
    pub async fn command(&self, n: usize, request: &TargetRequest) -> Option<TargetAnswer> {
        let frame = self.order(n, request).await?;
        assert_eq!(frame.status, Status::Ok, "{:?}", text(&frame));
        let document = if frame.head.is_empty() { &frame.body[..] } else { &frame.head[..] };
        control::decode(document).ok()
    }

    /// Tells a target something as the manager; none if it does not answer within 5 s.
    pub async fn order(&self, n: usize, request: &TargetRequest) -> Option<Answered> {
        let body = match request {
            TargetRequest::AdoptMap { .. } => {
                vec![Buf::from(control::encode_map(&self.manager.map.borrow()))]
            }
            _ => vec![],
        };
        self.order_with(n, request, body).await
    }

    /// Likewise, with this body.
    pub async fn order_with(&self, n: usize, request: &TargetRequest, body: Vec<Buf>) -> Option<Answered> {
        let hello = Hello::new(PeerRole::Manager, Some(FABRIC), "manager");
        let exchange = async {
            let link = Link::connect(&addr(n), &hello).await.ok()?;
            answered(link.call(Kind::Control, &control::encode(request), body).await)
        };
        timeout(Duration::from_secs(5), exchange).await.ok().flatten()
    }

    /// Pushes the map to these targets.
    pub async fn push(&self, targets: &[usize]) {
        let version = self.manager.map.borrow().version;
        for n in targets {
            let answer = self.command(*n, &TargetRequest::AdoptMap { version, nonce: 0 }).await;
            assert_eq!(answer, Some(TargetAnswer::Done));
        }
    }
}

fn first_map(n: usize, last: Role) -> FabricMap {
    let mut map = FabricMap::empty(FABRIC);
    map.pools.insert(PoolId(1), Pool { id: PoolId(1), name: "default".into() });
    let mut slots = Vec::new();
    for i in 1..=n {
        let node = NodeId(i as u32);
        map.put_node(node, format!("n{i}"), addr(i).to_string());
        let listed = Drive {
            id: drive(i),
            node,
            target: TargetId::first_of(node),
            device: weft_types::DeviceId::of_drive(drive(i)),
            pool: PoolId(1),
            path: format!("/dev/sim{i}"),
            capacity: BlockCount(10_000),
            state: DriveState::Active,
        };
        map.drives.insert(listed.id, listed);
        let role = if i == n { last } else { Role::InSync };
        slots.push(Slot { drive: drive(i), role, since: Epoch(1) });
    }
    map.groups.insert(
        GROUP,
        Group { id: GROUP, pool: PoolId(1), epoch: Epoch(1), slots, floor: Default::default() },
    );
    let volume = Volume {
        id: VOLUME,
        name: "v".into(),
        pool: PoolId(1),
        size: BlockCount(16_384),
        protection: weft_types::Protection::of_members(n),
        striping: Striping { unit_blocks: 16, width: 1, object_blocks: 16_384 },
        spans: vec![ObjectSpan { first: 0, count: 1, groups: vec![GROUP].into() }],
        generation: Generation(1),
        state: VolumeState::Ready,
        thin: false,
        created_ms: 0,
        kind: weft_types::VolumeKind::Blocks,
    };
    map.volumes.insert(VOLUME, volume);
    map
}

/// Waits until the condition holds; at most a virtual minute.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        sleep(ms(5)).await;
    }
}

/// What a target has answered, whatever it was.
#[derive(Debug)]
pub struct Answered {
    pub status: Status,
    pub head: Buf,
    pub body: Buf,
}

/// None if there was no answer.
pub fn answered(called: Result<Reply, CallError>) -> Option<Answered> {
    match called {
        Ok(Reply { head, body }) => Some(Answered { status: Status::Ok, head, body }),
        Err(CallError::Refused { status, head }) => {
            Some(Answered { status, head: Buf::from(head), body: Buf::empty() })
        }
        Err(CallError::Broken | CallError::Late(_)) => None,
    }
}

pub fn text(frame: &Answered) -> String {
    String::from_utf8_lossy(&frame.head).into_owned()
}

/// A block full of one byte.
pub fn block(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK_SIZE]
}

/// A session of a client that speaks in raw requests. It does only what it is told.
#[derive(Clone)]
pub struct Client {
    pub session: SessionId,
    pub slot: u16,
    pub generation: Cell<u64>,
    pub epoch: Cell<u64>,
    pub watermark: Cell<Version>,
    links: Rc<RefCell<BTreeMap<usize, Link>>>,
}

/// What a read of one block found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub version: Version,
    pub open: bool,
    pub content: Content,
    /// The byte that fills the block; 0 for zeroes.
    pub byte: u8,
}

impl Client {
    pub fn new(session: u64, slot: u16) -> Client {
        Client {
            session: SessionId(session),
            slot,
            generation: Cell::new(1),
            epoch: Cell::new(1),
            watermark: Cell::new(Version::ZERO),
            links: Rc::default(),
        }
    }

    /// This client's version `n`.
    pub fn v(&self, n: u64) -> Version {
        version(n, self.slot)
    }

    async fn link(&self, n: usize) -> Option<Link> {
        let open = self.links.borrow().get(&n).cloned().filter(|l| !l.is_closed());
        if open.is_some() {
            return open;
        }
        let link = Link::connect(&addr(n), &Hello::new(PeerRole::Client, Some(FABRIC), "raw")).await.ok()?;
        self.links.borrow_mut().insert(n, link.clone());
        Some(link)
    }

    pub async fn call(&self, n: usize, kind: Kind, head: Vec<u8>, body: Vec<Buf>) -> Option<Answered> {
        let body = if kind == Kind::Write { Body::blocks(body) } else { body.into() };
        answered(self.link(n).await?.call(kind, &head, body).await)
    }

    pub fn head(&self, n: usize, range: BlockRange, version: Version, purpose: Purpose) -> DataRequest {
        DataRequest {
            drive: drive(n),
            group: GROUP,
            epoch: Epoch(self.epoch.get()),
            generation: Generation(self.generation.get()),
            session: self.session,
            watermark: self.watermark.get(),
            object: OBJECT,
            range,
            version,
            purpose,
            slot: SessionSlot(self.slot),
            scope: Scope::default(),
        }
    }

    /// Writes one block full of a byte; the status, and the verdict where it is a success.
    pub async fn write(&self, n: usize, at: u32, version: Version, byte: u8) -> (Status, Option<Verdict>) {
        self.put(n, at, version, byte, Purpose::Client).await
    }

    pub async fn put(
        &self,
        n: usize,
        at: u32,
        version: Version,
        byte: u8,
        purpose: Purpose,
    ) -> (Status, Option<Verdict>) {
        let data = block(byte);
        let head = self.head(n, BlockRange::one(at), version, purpose);
        let head = head.encode(PROTOCOL, &[weft_wire::crc32c(&data)]);
        let Some(frame) = self.call(n, Kind::Write, head, vec![Buf::from(data)]).await else {
            return (Status::Failed, None);
        };
        match frame.status {
            Status::Ok => {
                let answer = WriteAnswer::decode(&frame.head).unwrap();
                assert_eq!(answer.verdicts.len(), 1);
                (Status::Ok, Some(answer.verdicts[0].1))
            }
            status => (status, None),
        }
    }

    /// Writes to these targets, all of which must take it.
    pub async fn write_all(&self, targets: &[usize], at: u32, version: Version, byte: u8) {
        for n in targets {
            let done = self.write(*n, at, version, byte).await;
            assert_eq!(done, (Status::Ok, Some(Verdict::Applied)), "write to target {n}");
        }
    }

    pub async fn read(&self, n: usize, at: u32) -> Result<Found, Status> {
        let head = self.head(n, BlockRange::one(at), Version::ZERO, Purpose::Client).encode(PROTOCOL, &[]);
        let frame = self.call(n, Kind::Read, head, vec![]).await.ok_or(Status::Failed)?;
        match frame.status {
            Status::Ok => {}
            status => {
                weft_rt::sim::tell(|| format!("target {n} refuses a read: {status}: {}", text(&frame)));
                return Err(status);
            }
        }
        let answer = ReadAnswer::decode(&frame.head).unwrap();
        let x = &answer.extents[0];
        if x.content == Content::Data {
            assert_eq!(weft_wire::crc32c(&frame.body), x.crcs[0]);
        }
        let byte = frame.body.first().copied().unwrap_or(0);
        assert!(frame.body.iter().all(|b| *b == byte), "a torn block");
        Ok(Found { version: x.version, open: x.open, content: x.content, byte })
    }

    pub async fn settle(&self, n: usize, at: u32, version: Version) -> Status {
        let head = self.head(n, BlockRange::one(at), version, Purpose::Repair).encode(PROTOCOL, &[]);
        let frame = self.call(n, Kind::Settle, head, vec![]).await;
        frame.map_or(Status::Failed, |f| f.status)
    }

    /// Gives a target an entry of the group.
    pub async fn teach(&self, n: usize, entry: &Group) -> Status {
        let frame = self.call(n, Kind::AdoptEntry, control::encode(entry), vec![]).await;
        frame.map_or(Status::Failed, |f| f.status)
    }

    /// A peer's request about the group from a chunk of its first object on.
    pub fn chunk(&self, n: usize, chunk: u16) -> PeerRequest {
        PeerRequest {
            drive: drive(n),
            group: GROUP,
            epoch: Epoch(self.epoch.get()),
            object: ObjectId::default(),
            chunk: ChunkIndex(chunk),
            blocks: ChunkIndex(chunk).range(),
            limit: DIGESTS_MAX as u16,
            is_urgent: false,
            scope: Scope::default(),
        }
    }

    /// All digests of the group on a target's drive.
    pub async fn digests(&self, n: usize) -> Vec<(ObjectId, ChunkIndex, u64)> {
        let request = self.chunk(n, 0);
        let frame = self.call(n, Kind::Digests, request.encode(PROTOCOL), vec![]).await.unwrap();
        assert_eq!(frame.status, Status::Ok, "{}", text(&frame));
        DigestsAnswer::decode(&frame.head).unwrap().digests
    }
}
