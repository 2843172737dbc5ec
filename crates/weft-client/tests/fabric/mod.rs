//! A fabric for the client's tests: a manager that hands out one map, and targets that keep registers in memory
//! and do what a test tells them before they answer.
#![allow(dead_code)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_client::{AttachMode, AttachOptions, Fabric, Volume};
use weft_rpc::{Answer, Body, Greeter, Peer, Request, Server, Service, Services};
use weft_rt::sim::{set_wall_skew, spawn_process};
use weft_rt::{Addr, Buf, Listener, sleep, wall_clock_us};
use weft_types::limits::VERSION_AHEAD_MAX;
use weft_types::*;
use weft_wire::control::{self, ManagerAnswer, ManagerRequest, TargetAge, VouchAnswer};
use weft_wire::data::*;
use weft_wire::handshake::Hello;
use weft_wire::{Kind, Status};

pub const GROUP: GroupId = GroupId(1);
const FABRIC: FabricId = FabricId(77);
const SLOT: SessionSlot = SessionSlot(1);

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn host(n: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, n as u8])
}

/// Where the tests' own task lives in the simulated network.
pub fn client_host() -> IpAddr {
    IpAddr::from([127, 0, 0, 1])
}

pub fn manager_addr() -> Addr {
    "10.0.0.100:4700".parse().unwrap()
}

/// The group with so many in-sync members, at an epoch.
pub fn group(members: usize, epoch: u64) -> Group {
    let slot = |n| Slot { drive: DriveId(n as u128), role: Role::InSync, since: Epoch(1) };
    Group {
        id: GROUP,
        pool: PoolId(1),
        epoch: Epoch(epoch),
        slots: (1..=members).map(slot).collect(),
        floor: Default::default(),
    }
}

fn map(members: usize) -> FabricMap {
    let mut map = FabricMap::empty(FABRIC);
    for n in 1..=members {
        let node = NodeId(n as u32);
        map.put_node(node, format!("n{n}"), format!("10.0.0.{n}:4800"));
        let id = DriveId(n as u128);
        let drive = Drive {
            id,
            node,
            target: TargetId::first_of(node),
            device: weft_types::DeviceId::of_drive(id),
            pool: PoolId(1),
            path: "d".into(),
            capacity: BlockCount(1 << 20),
            state: DriveState::Active,
        };
        map.drives.insert(id, drive);
    }
    map.groups.insert(GROUP, group(members, 1));
    let volume = weft_types::Volume {
        id: VolumeId(1),
        name: "v".into(),
        pool: PoolId(1),
        size: BlockCount(4 * 16_384),
        protection: weft_types::Protection::of_members(members),
        striping: Striping { unit_blocks: 16_384, width: 1, object_blocks: 16_384 },
        spans: vec![ObjectSpan { first: 0, count: 4, groups: vec![GROUP].into() }],
        generation: Generation(1),
        state: VolumeState::Ready,
        thin: false,
        created_ms: 0,
        kind: weft_types::VolumeKind::Blocks,
    };
    map.volumes.insert(volume.id, volume);
    map.next_id = 100;
    map
}

/// A manager; it tells its clock, as those of older releases do not.
struct Manager {
    map: FabricMap,
    tells_clock: bool,
}

impl Greeter for Manager {
    fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
        Ok(Some(FABRIC))
    }
}

impl Service for Manager {
    async fn handle(self: Rc<Self>, _: Rc<Peer>, request: Request) -> Answer {
        let answer = |a: &ManagerAnswer, body| Answer::ok(control::encode(a), body);
        let map = || vec![Buf::from(control::encode_map(&self.map))];
        match control::decode(&request.head).unwrap() {
            // As one of the release before, which does not know slices.
            ManagerRequest::Follow { .. } => Answer::error(Status::Invalid, "unknown variant `follow`"),
            ManagerRequest::WatchMap { have } if have < self.map.version => {
                answer(&ManagerAnswer::Map { version: self.map.version }, map())
            }
            ManagerRequest::WatchMap { .. } => pending().await,
            ManagerRequest::Attach { mode, client, .. } => {
                let generation = Generation(1);
                let session = Session {
                    number: 0,
                    lane_slots: vec![],
                    id: SessionId(1),
                    slot: SLOT,
                    volume: VolumeId(1),
                    mode,
                    generation,
                    client,
                    state: SessionState::Open,
                };
                let clock_us = if self.tells_clock { wall_clock_us() } else { 0 };
                let mut map = self.map.clone();
                map.sessions.insert(session.id, session.clone());
                let body = vec![Buf::from(control::encode_map(&map))];
                answer(&ManagerAnswer::Attached { session, generation, clock_us, nonce: 0 }, body)
            }
            // As of a session that a person has ended; until then, nobody looks at the answer.
            ManagerRequest::Touch { silent, heard, .. } => {
                WORDS.with(|words| words.borrow_mut().push((silent, heard)));
                Answer::error(Status::SessionOver, "somebody@host ended it")
            }
            _ => answer(&ManagerAnswer::Done, vec![]),
        }
    }
}

thread_local! {
    /// Which nodes the client of this test said that it misses, and hears of.
    static WORDS: RefCell<Vec<(Vec<TargetAge>, Vec<TargetAge>)>> = const { RefCell::new(Vec::new()) };
}

/// What the client has said of nodes since this was asked last: those that it misses, and those that it
/// hears of.
pub fn words() -> Vec<(Vec<TargetAge>, Vec<TargetAge>)> {
    WORDS.with(RefCell::take)
}

/// What a target does with a request.
pub enum Act {
    Serve,
    ServeAfter(Duration),
    /// Never answers, and does nothing.
    Hang,
    Answer(Answer),
    AnswerAfter(Duration, Answer),
}

pub type Script = Box<dyn Fn(&Target, Kind, &DataRequest) -> Act>;

struct Register {
    version: Version,
    data: Option<(Buf, u32)>,
}

/// A replica that keeps every block in memory.
pub struct Target {
    pub script: RefCell<Script>,
    /// What its answers say of its clock, instead of the truth.
    pub clock: Cell<Option<u64>>,
    pub watermark: Cell<Version>,
    /// Versions of clients' writes that reached it, served or not.
    pub asked: RefCell<BTreeSet<Version>>,
    pub requests: Cell<u64>,
    pub in_flight_writes: Cell<u64>,
    blocks: RefCell<BTreeMap<(ObjectId, u32), Register>>,
}

impl Target {
    pub fn say(&self, script: impl Fn(&Target, Kind, &DataRequest) -> Act + 'static) {
        *self.script.borrow_mut() = Box::new(script);
    }

    fn clock(&self) -> u64 {
        self.clock.get().unwrap_or(clock_counter(wall_clock_us()))
    }

    /// The version of a block of the first object, and its first byte.
    pub fn holds(&self, block: u32) -> (Version, u8) {
        let blocks = self.blocks.borrow();
        let held = blocks.get(&(ObjectId::of_volume(VolumeId(1), 0), block));
        held.map_or((Version::ZERO, 0), |r| (r.version, r.data.as_ref().map_or(0, |(buf, _)| buf[0])))
    }

    fn write(&self, head: &DataRequest, crcs: &[u32], body: &Buf) -> Answer {
        if head.version.counter() > clock_counter(wall_clock_us()) + VERSION_AHEAD_MAX {
            let head = WriteAnswer { clock: clock_counter(wall_clock_us()), verdicts: vec![] }.encode();
            return Answer { status: Status::VersionAhead, head, body: Body::none() };
        }
        let mut verdicts = Vec::new();
        for (i, block) in head.range.blocks().enumerate() {
            let mut blocks = self.blocks.borrow_mut();
            let fresh = Register { version: Version::ZERO, data: None };
            let held = blocks.entry((head.object, block)).or_insert(fresh);
            let verdict = if held.version > head.version {
                Verdict::Superseded(held.version)
            } else {
                held.version = head.version;
                let data = |c: &u32| (body.slice(i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE), *c);
                held.data = crcs.get(i).map(data);
                Verdict::Applied
            };
            verdicts.push((BlockRange::one(block), verdict));
        }
        let bytes = WriteAnswer { clock: self.clock(), verdicts }.encode();
        if bytes.len() > 4096 {
            Answer::ok(vec![], vec![Buf::from(bytes)])
        } else {
            Answer::ok(bytes, vec![])
        }
    }

    fn read(&self, kind: Kind, head: &DataRequest) -> Answer {
        let (mut extents, mut body) = (Vec::new(), Vec::new());
        let blocks = self.blocks.borrow();
        for block in head.range.blocks() {
            let held = blocks.get(&(head.object, block));
            let version = held.map_or(Version::ZERO, |r| r.version);
            let mut x = Extent {
                range: BlockRange::one(block),
                version,
                open: version > self.watermark.get(),
                content: Content::Zero,
                crcs: vec![],
            };
            if let Some((data, crc)) = held.and_then(|r| r.data.as_ref()) {
                x.content = Content::Data;
                x.crcs.push(*crc);
                if kind == Kind::Read {
                    body.push(data.clone());
                }
            }
            extents.push(x);
        }
        Answer::ok(ReadAnswer { clock: self.clock(), extents }.encode(), body)
    }
}

impl Greeter for Target {
    fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
        Ok(Some(FABRIC))
    }
}

impl Service for Target {
    async fn handle(self: Rc<Self>, peer: Rc<Peer>, request: Request) -> Answer {
        // A probe.
        if request.kind == Kind::Vouch {
            return Answer::ok(control::encode(&VouchAnswer { groups: vec![] }), vec![]);
        }
        self.requests.set(self.requests.get() + 1);
        if request.kind == Kind::Watermark {
            for note in WatermarkNote::decode_all(&request.head).unwrap() {
                self.watermark.set(self.watermark.get().max(note.watermark));
            }
            return Answer::ok(vec![], vec![]);
        }
        let (head, crcs) = DataRequest::decode(peer.protocol, &request.head).unwrap();
        let is_write = matches!(request.kind, Kind::Write | Kind::WriteZeroes);
        if is_write && head.purpose == Purpose::Client {
            self.asked.borrow_mut().insert(head.version);
        }
        let act = (self.script.borrow())(&self, request.kind, &head);
        match act {
            Act::Serve => {}
            Act::ServeAfter(pause) => sleep(pause).await,
            Act::Hang => pending().await,
            Act::Answer(answer) => return answer,
            Act::AnswerAfter(pause, answer) => {
                sleep(pause).await;
                return answer;
            }
        }
        self.watermark.set(self.watermark.get().max(head.watermark));
        match request.kind {
            Kind::Write | Kind::WriteZeroes => self.write(&head, &crcs, &request.body),
            Kind::Read | Kind::Versions => self.read(request.kind, &head),
            _ => Answer::ok(vec![], vec![]),
        }
    }
}

/// Starts a manager and so many targets, all in-sync members of one group; the first has the index 0.
pub async fn start(members: usize) -> Vec<Rc<Target>> {
    start_with(Manager { map: map(members), tells_clock: true }, members).await
}

/// The same with a manager that does not tell its clock.
pub async fn start_with_old_manager(members: usize) -> Vec<Rc<Target>> {
    start_with(Manager { map: map(members), tells_clock: false }, members).await
}

async fn start_with(manager: Manager, members: usize) -> Vec<Rc<Target>> {
    spawn_process(host(100), "manager", async {
        Server::run(Listener::bind(&manager_addr()).unwrap(), Services::one(Rc::new(manager))).await;
    });
    let targets: Vec<Rc<Target>> = (0..members)
        .map(|_| {
            Rc::new(Target {
                script: RefCell::new(Box::new(|_, _, _| Act::Serve)),
                clock: Cell::new(None),
                watermark: Cell::new(Version::ZERO),
                asked: RefCell::default(),
                requests: Cell::new(0),
                in_flight_writes: Cell::new(0),
                blocks: RefCell::default(),
            })
        })
        .collect();
    for (i, target) in targets.iter().enumerate() {
        let target = target.clone();
        spawn_process(host(i + 1), &format!("target-{}", i + 1), async move {
            let addr: Addr = format!("10.0.0.{}:4800", i + 1).parse().unwrap();
            Server::run(Listener::bind(&addr).unwrap(), Services::one(target)).await;
        });
    }
    sleep(ms(1)).await;
    targets
}

/// A manager that has stopped, or follows another one: it says of everything that it is not ready.
/// Where it listens.
pub fn start_unready_manager() -> Addr {
    struct Unready;

    impl Greeter for Unready {
        fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
            Ok(Some(FABRIC))
        }
    }

    impl Service for Unready {
        async fn handle(self: Rc<Self>, _: Rc<Peer>, _: Request) -> Answer {
            Answer::error(Status::NotReady, "this manager has stopped")
        }
    }

    let addr: Addr = "10.0.0.101:4700".parse().unwrap();
    let listens_at = addr.clone();
    spawn_process(host(101), "unready", async move {
        Server::run(Listener::bind(&listens_at).unwrap(), Services::one(Rc::new(Unready))).await;
    });
    addr
}

pub async fn attach(io_timeout: Duration) -> Volume {
    attach_by(&[manager_addr()], io_timeout).await
}

/// Likewise, by the first of these managers that is ready.
pub async fn attach_by(managers: &[Addr], io_timeout: Duration) -> Volume {
    let fabric = Fabric::connect(managers, "client").await.unwrap();
    let options =
        AttachOptions { mode: AttachMode::Shared, preempt: false, io_timeout, ..Default::default() };
    fabric.attach("v", options).await.unwrap()
}

/// Runs a client whose wall clock is off in a process of its own, to its end.
pub async fn with_skewed_clock(skew_us: i64, client: impl Future<Output = ()> + 'static) {
    let done = Rc::new(Cell::new(false));
    let over = done.clone();
    let process = spawn_process(host(200), "client", async move {
        sleep(ms(1)).await;
        client.await;
        over.set(true);
    });
    set_wall_skew(process, skew_us);
    for _ in 0..600 {
        if done.get() {
            return;
        }
        sleep(ms(100)).await;
    }
    panic!("the client is not done after a minute");
}

pub fn refusal(status: Status) -> Answer {
    Answer::error(status, "by the script")
}

/// The refusal that brings back a newer entry.
pub fn stale(newer: &Group) -> Answer {
    Answer { status: Status::StaleEpoch, head: control::encode(newer), body: Body::none() }
}

/// One block filled with a byte.
pub fn block(byte: u8) -> Vec<Buf> {
    vec![Buf::from(vec![byte; BLOCK_SIZE])]
}
