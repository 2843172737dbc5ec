//! A manager, targets that only keep leases, and tools, in one simulation.
//!
//! The targets follow the rules that matter to the manager: a lease counts from when it was asked for and is
//! void until its map is adopted; they vouch for each other unless told not to; they log what they are asked.
//! They hold no data.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiError, ApiRequest, EventFilter, EventInfo, FabricStatus, Trouble, TroubleKind};
use weft_manager::{Manager, ManagerOptions, MemStore, found};
use weft_rpc::{Answer, CallError, Greeter, Link, Peer, Request, Server, Services};
use weft_rt::sim::{Crash, ProcessId, kill, spawn_process};
use weft_rt::{Addr, Buf, Instant, Listener, now, sleep, spawn, timeout};
use weft_types::{
    BlockCount, DriveId, Durations, Epoch, FabricId, FabricMap, Group, GroupId, MapVersion, Role, SessionId,
    Slice, TargetId, Version,
};
use weft_wire::control::{
    self, DriveReport, Join, ManagerAnswer, ManagerRequest, TargetAnswer, TargetRequest,
};
use weft_wire::control::{DriveInventory, DriveLeftOut, HeldGroup, Holding, Inventory};
use weft_wire::control::{DriveStatus, ResyncStatus, TargetStatus, UnservedShard, VouchAnswer, VouchRequest};
use weft_wire::control::{OpenBelow, TargetAge};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::pieces::decode_delta;
use weft_wire::{Kind, Status};

pub const FABRIC: FabricId = FabricId(0xfab);
/// 1 GiB.
pub const DRIVE_BLOCKS: u64 = 262_144;

/// The first target of the node with this name.
pub fn first_target(map: &FabricMap, name: &str) -> TargetId {
    TargetId::first_of(map.node_named(name).unwrap().id)
}

pub fn manager_host() -> IpAddr {
    IpAddr::from([10, 0, 0, 100])
}

pub fn manager_addr() -> Addr {
    "10.0.0.100:4800".parse().unwrap()
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Waits until the condition holds.
pub async fn eventually(what: &str, most: Duration, condition: impl Fn() -> bool) {
    let start = now();
    while !condition() {
        assert!(start.elapsed() < most, "not within {most:?}: {what}");
        sleep(ms(5)).await;
    }
}

/// Listens at an address as soon as it is free: a connection attempt that is stuck in a cut network may hold
/// on to the listener of the process before.
async fn listen(addr: &Addr) -> Listener {
    loop {
        match Listener::bind(addr) {
            Ok(listener) => return listener,
            Err(_) => sleep(ms(1)).await,
        }
    }
}

/// The manager's process and what survives it.
pub struct Service {
    pub store: MemStore,
    manager: Rc<RefCell<Option<Rc<Manager>>>>,
    process: Cell<Option<ProcessId>>,
    skew_us: Cell<i64>,
    /// How often processes that are started from now on raise floors.
    pub forget_every: Cell<Duration>,
    /// Bytes of the map up to which processes that are started from now on take what makes it larger.
    pub map_bytes_max: Cell<usize>,
}

impl Service {
    pub async fn start() -> Service {
        let service = Service {
            store: MemStore::new(),
            manager: Rc::default(),
            process: Cell::new(None),
            skew_us: Cell::new(0),
            forget_every: Cell::new(ManagerOptions::default().forget_every),
            map_bytes_max: Cell::new(ManagerOptions::default().map_bytes_max),
        };
        found(&service.store, FABRIC, Durations::default()).await.unwrap();
        service.restart().await;
        service
    }

    /// Stops the process where it is, as SIGSTOP does.
    pub fn pause(&self) {
        weft_rt::sim::pause(self.process.get().expect("it runs"));
    }

    /// Lets it go on.
    pub fn resume(&self) {
        weft_rt::sim::resume(self.process.get().expect("it runs"));
    }

    /// Starts the process (again).
    pub async fn restart(&self) {
        self.kill();
        let (store, slot) = (self.store.clone(), self.manager.clone());
        let map_bytes_max = self.map_bytes_max.get();
        let forget_every = self.forget_every.get();
        let fabric = Some(FABRIC);
        let options = ManagerOptions { fabric, map_bytes_max, forget_every, ..ManagerOptions::default() };
        self.process.set(Some(spawn_process(manager_host(), "manager", async move {
            let manager = Manager::start(store, options).await.unwrap();
            *slot.borrow_mut() = Some(manager.clone());
            manager.serve(listen(&manager_addr()).await).await;
        })));
        self.set_clock(self.skew_us.get());
        sleep(ms(1)).await;
    }

    /// The store as it is now, as a backup of it would be.
    pub fn backup(&self) -> MemStore {
        let copy = MemStore::new();
        weft_manager::at_once(weft_manager::put_map(&copy, &self.map())).unwrap();
        copy
    }

    /// Completes when the manager's process would end, with the reason.
    pub async fn halted(&self) -> String {
        let manager = self.manager.borrow().clone();
        manager.expect("it runs").halted().await
    }

    /// Sets how far the clock of the manager's machine is off, also for processes that are started there
    /// later.
    pub fn set_clock(&self, skew_us: i64) {
        self.skew_us.set(skew_us);
        if let Some(process) = self.process.get() {
            weft_rt::sim::set_wall_skew(process, skew_us);
        }
    }

    pub fn kill(&self) {
        self.manager.borrow_mut().take();
        if let Some(process) = self.process.take() {
            kill(process, Crash::Process);
        }
    }

    /// The map as it is in the store, also while no manager runs.
    pub fn map(&self) -> FabricMap {
        FabricMap::clone(&self.store.map().unwrap())
    }
}

/// A target's process and what survives it.
pub struct FakeTarget {
    pub name: String,
    pub host: IpAddr,
    pub drives: RefCell<Vec<DriveId>>,
    pub fabric: Cell<FabricId>,
    pub map: RefCell<Option<Rc<FabricMap>>>,
    /// Everything that the manager asked, with when it was answered.
    pub log: RefCell<Vec<(Instant, TargetRequest)>>,
    /// While set, maps are not adopted and the manager gets no answer.
    pub holds_adoption: Cell<bool>,
    /// How long it takes to adopt a map at least, in milliseconds.
    pub adoption_takes_ms: Cell<u64>,
    /// Set while a sweep is not to be answered.
    pub holds_sweep: Cell<bool>,
    /// While set, it does not say what its drives hold.
    pub holds_inventory: Cell<bool>,
    /// While set, it promises nothing and the manager gets no answer when it asks for that.
    pub holds_promises: Cell<bool>,
    /// Why the last join was refused.
    pub refusal: RefCell<Option<(Status, String)>>,
    /// The last start of its process.
    pub incarnation: Cell<u64>,
    /// What the manager's clock is, by the last lease, in microseconds since 1970-01-01T00:00:00Z.
    pub clock_us: Cell<u64>,
    /// When the last request was sent for which a lease was granted.
    pub leased_from: Cell<Option<Instant>>,
    pub resyncs: RefCell<Vec<ResyncStatus>>,
    /// Shards that it says it cannot open.
    pub unserved: RefCell<Vec<UnservedShard>>,
    /// Bytes used and free on each of its drives; none while it says nothing of them.
    pub room: Cell<Option<(u64, u64)>>,
    /// Blocks found damaged and healed on each of its drives.
    pub damage: Cell<(u64, u64)>,
    /// What its drives hold of each group; nothing of those not named.
    pub holdings: RefCell<BTreeMap<DriveId, Holding>>,
    /// Sessions that it has served, and when it did last; none: it does all the time.
    pub serves_sessions: RefCell<BTreeMap<SessionId, Option<Instant>>>,
    /// What it says of how far its drives have come.
    pub commits: RefCell<BTreeMap<DriveId, u64>>,
    /// What it says of the devices that its drives are on.
    pub devices: RefCell<BTreeMap<DriveId, weft_types::DeviceId>>,
    /// What it says that it has left out, when it joins.
    pub left_out: RefCell<Vec<DriveLeftOut>>,
    /// Which of its process's targets it is, and of how many.
    pub thread: Cell<(u32, u32)>,
    /// The process that it says it is of; 0: one of its own.
    pub process_id: Cell<u64>,
    /// Whether its release knows of nodes with several targets.
    pub knows_targets: Cell<bool>,
    /// Whether it says that it knows of lanes.
    pub knows_lanes: Cell<bool>,
    /// Whether it says that it knows of file systems.
    pub knows_file_systems: Cell<bool>,
    /// Whether it says that it knows of file systems with directories in several shards.
    pub knows_spread: Cell<bool>,
    /// The sessions under which its process serves shards of file systems, as it says.
    pub serves_shards: RefCell<BTreeSet<SessionId>>,
    /// Whether its release knows the floors of groups.
    pub knows_floors: Cell<bool>,
    /// The newest tombstone in each of its groups, as it says when it is asked; none: it has none.
    pub tombstone: Cell<Option<Version>>,
    /// The epoch of its groups in which it is closed below a floor that was to be; none: it is open.
    pub closed: Cell<Option<Epoch>>,
    /// Set while it does not say that it has closed.
    pub never_closes: Cell<bool>,
    /// Set while its drives keep no part of the whole map.
    pub keeps_no_parts: Cell<bool>,
    /// Whether its release knows of no deltas.
    pub refuses_deltas: Cell<bool>,
    /// Belongs to the version of its map; 0: no delta leads on from it.
    pub nonce: Cell<u64>,
    process: Cell<Option<ProcessId>>,
}

/// What a target knows only as long as its process lives.
#[derive(Default)]
struct Life {
    lease_until: Cell<Instant>,
    /// The lease counts once this map is adopted.
    lease_map: Cell<MapVersion>,
    had_lease: Cell<bool>,
    suspects: RefCell<BTreeSet<TargetId>>,
    /// Whom it has promised not to vouch for, and when.
    promises: RefCell<BTreeMap<TargetId, Instant>>,
    /// The newest grant, until its map is adopted: when it was asked for, the map, and the suspects.
    pending: RefCell<Option<(Instant, MapVersion, BTreeSet<TargetId>)>>,
    /// Per group until when each other member's target has vouched.
    vouched: RefCell<BTreeMap<(GroupId, DriveId), Instant>>,
    id: Cell<TargetId>,
    /// Drives that the manager has refused.
    refused: RefCell<BTreeSet<DriveId>>,
}

struct Process {
    target: Rc<FakeTarget>,
    life: Life,
}

impl FakeTarget {
    pub fn new(n: u8, drives: &[u128]) -> Rc<FakeTarget> {
        Rc::new(FakeTarget {
            name: format!("node-{n}"),
            host: IpAddr::from([10, 0, 0, n]),
            drives: RefCell::new(drives.iter().map(|&d| DriveId(d)).collect()),
            fabric: Cell::new(FABRIC),
            map: RefCell::new(None),
            log: RefCell::default(),
            holds_adoption: Cell::new(false),
            adoption_takes_ms: Cell::new(0),
            holds_sweep: Cell::new(false),
            holds_inventory: Cell::new(false),
            holds_promises: Cell::new(false),
            refusal: RefCell::new(None),
            incarnation: Cell::new(0),
            clock_us: Cell::new(0),
            leased_from: Cell::new(None),
            resyncs: RefCell::default(),
            unserved: RefCell::default(),
            room: Cell::new(None),
            damage: Cell::new((0, 0)),
            holdings: RefCell::default(),
            serves_sessions: RefCell::default(),
            commits: RefCell::default(),
            devices: RefCell::default(),
            left_out: RefCell::default(),
            thread: Cell::new((0, 1)),
            process_id: Cell::new(0),
            knows_targets: Cell::new(true),
            knows_lanes: Cell::new(true),
            knows_file_systems: Cell::new(true),
            knows_spread: Cell::new(true),
            serves_shards: RefCell::default(),
            knows_floors: Cell::new(true),
            tombstone: Cell::new(None),
            closed: Cell::new(None),
            never_closes: Cell::new(false),
            keeps_no_parts: Cell::new(false),
            refuses_deltas: Cell::new(false),
            nonce: Cell::new(0),
            process: Cell::new(None),
        })
    }

    /// A target of a node's process, which has several.
    pub fn thread(n: u8, thread: (u32, u32), process: u64, drives: &[u128]) -> Rc<FakeTarget> {
        let target = FakeTarget::new(n, drives);
        target.thread.set(thread);
        target.process_id.set(process);
        target
    }

    pub fn addr(&self) -> Addr {
        Addr::Tcp((self.host, 4801 + self.thread.get().0 as u16).into())
    }

    pub fn start(self: &Rc<Self>) -> Rc<ProcessView> {
        self.kill();
        self.leased_from.set(None);
        let process = Rc::new(Process { target: self.clone(), life: Life::default() });
        let run = process.clone();
        self.process.set(Some(spawn_process(self.host, &self.name, async move {
            spawn(Server::run(listen(&run.target.addr()).await, Services::one(run.clone())));
            run.keep_lease().await;
        })));
        Rc::new(ProcessView(process))
    }

    pub fn kill(&self) {
        if let Some(process) = self.process.take() {
            kill(process, Crash::Process);
        }
    }

    pub fn is_running(&self) -> bool {
        let id = self.process.get();
        id.is_some()
    }

    pub fn adopted(&self) -> MapVersion {
        self.map.borrow().as_ref().map_or(MapVersion(0), |m| m.version)
    }

    /// Whether it has adopted all of this map that concerns it: of what concerns others it hears nothing.
    fn is_current(&self, map: &FabricMap) -> bool {
        let Some(held) = self.map.borrow().clone() else { return false };
        let Some(of_target) = &held.of_target else { return held.version == map.version };
        let due = map.slice(&Slice::Target(of_target.target));
        held.version == map.version
            || (due.groups == held.groups
                && due.drives == held.drives
                && due.targets == held.targets
                && due.volumes == held.volumes
                && due.sessions == held.sessions)
    }

    /// When the manager asked for the first time what the condition picks, since the instant.
    pub fn asked(&self, since: Instant, pick: impl Fn(&TargetRequest) -> bool) -> Option<Instant> {
        self.log.borrow().iter().find(|(at, r)| *at >= since && pick(r)).map(|(at, _)| *at)
    }

    fn drive_statuses(&self) -> Vec<DriveStatus> {
        let Some((used_bytes, free_bytes)) = self.room.get() else { return Vec::new() };
        let (blocks_damaged, blocks_healed) = self.damage.get();
        let status = |&id: &DriveId| DriveStatus {
            id,
            path: format!("/dev/{}", id.0),
            capacity_bytes: used_bytes + free_bytes,
            used_bytes,
            free_bytes: Some(free_bytes),
            log_bytes_written: 0,
            data_bytes_written: 0,
            failed: None,
            vanished: None,
            blocks_damaged,
            blocks_healed,
        };
        self.drives.borrow().iter().map(status).collect()
    }

    fn commits(&self) -> Vec<(DriveId, u64)> {
        self.commits.borrow().iter().map(|(drive, commit)| (*drive, *commit)).collect()
    }

    /// What its drives know, by the map that it has adopted, and hold.
    fn inventory(&self, detail: &[GroupId]) -> Inventory {
        let map = self.map.borrow();
        let groups = |drive: DriveId| {
            let groups = map.iter().flat_map(|m| m.groups.values());
            let of_drive = groups.filter_map(move |g| Some((g, *g.slot_of(drive)?)));
            let nothing = Holding {
                chunks: 0,
                blocks: 0,
                readable: Some(0),
                zeroes: Some(0),
                newest: weft_types::Version::ZERO,
                verified_below: None,
            };
            let held = self.holdings.borrow().get(&drive).copied().unwrap_or(nothing);
            let held = of_drive.map(|(g, slot)| HeldGroup {
                group: g.id,
                epoch: g.epoch,
                role: Some(slot.role),
                since: Some(slot.since),
                volumes: vec![],
                holding: detail.contains(&g.id).then_some(held),
            });
            held.collect()
        };
        let drive = |&id: &DriveId| DriveInventory {
            id,
            path: format!("/dev/{}", id.0),
            format: 1,
            failed: None,
            map_copy: self.adopted(),
            commit: 0,
            groups: groups(id),
        };
        Inventory {
            software: env!("CARGO_PKG_VERSION").into(),
            clock_us: weft_rt::wall_clock_us(),
            map: self.adopted(),
            drives: self.drives.borrow().iter().map(drive).collect(),
        }
    }

    /// What it says of its groups when it is asked for tombstones, or to close.
    fn open_below(&self, close: &[(GroupId, Epoch, Version)]) -> Vec<OpenBelow> {
        let map = self.map.borrow();
        let is_asked = |group: &Group| close.is_empty() || close.iter().any(|(id, ..)| *id == group.id);
        let answers = close.is_empty() || !self.never_closes.get();
        let groups = map.iter().flat_map(|m| m.groups.values()).filter(|g| answers && is_asked(g));
        let of_drives = groups.flat_map(|g| self.drives.borrow().clone().into_iter().map(move |d| (g, d)));
        let has_some = self.tombstone.get().is_some() || self.closed.get().is_some();
        let members = of_drives.filter(|(g, d)| has_some && g.slot_of(*d).is_some());
        let word = |(group, drive): (&Group, DriveId)| OpenBelow {
            drive,
            group: group.id,
            epoch: group.epoch,
            newest_tombstone: self.tombstone.get(),
            sessions: vec![],
            is_closed: self.closed.get() == Some(group.epoch),
        };
        members.map(word).collect()
    }

    /// What its process says to join.
    pub fn join(&self) -> ManagerRequest {
        ManagerRequest::Join(Join {
            node: self.name.clone(),
            addr: self.addr().to_string(),
            incarnation: self.incarnation.get(),
            drives: self.reports(),
            left_out: self.left_out.borrow().clone(),
            knows_floors: self.knows_floors.get(),
            target: self.thread.get().0,
            targets: self.thread.get().1,
            process: self.process_id.get(),
            knows_targets: self.knows_targets.get(),
            knows_lanes: self.knows_lanes.get(),
            knows_file_systems: self.knows_file_systems.get(),
            knows_spread: self.knows_spread.get(),
            serves: self.serves_shards.borrow().clone(),
        })
    }

    fn reports(&self) -> Vec<DriveReport> {
        let map = self.map.borrow();
        let epochs = |drive| match &*map {
            Some(map) => (map.groups.values())
                .filter(|g| g.slot_of(drive).is_some())
                .map(|g| (g.id, g.epoch))
                .collect(),
            None => Vec::new(),
        };
        let report = |&id: &DriveId| DriveReport {
            id,
            path: format!("/dev/{}", id.0),
            capacity: BlockCount(DRIVE_BLOCKS),
            map_copy: self.adopted(),
            epochs: epochs(id),
            commit: self.commits.borrow().get(&id).copied().unwrap_or_default(),
            device: self.devices.borrow().get(&id).copied(),
        };
        self.drives.borrow().iter().map(report).collect()
    }
}

/// What a test may look at in a running target.
pub struct ProcessView(Rc<Process>);

impl ProcessView {
    /// Whether the target would serve this group now.
    pub fn serves(&self, group: GroupId) -> bool {
        self.0.serves(group)
    }
}

impl Process {
    fn adopt(&self, bytes: &Buf, nonce: u64) {
        let map = control::decode_map(bytes).unwrap();
        let held = self.target.map.borrow().clone();
        if held.as_deref() == Some(&map) {
            self.target.nonce.set(nonce);
        }
        if map.version > self.target.adopted() {
            self.hold(map, nonce);
        }
    }

    /// Adopts what a delta leads to; says what it has instead, if the delta does not lead on from there.
    fn adopt_delta(&self, bytes: &Buf, nonce: u64) -> Option<TargetAnswer> {
        let (delta, version) = (decode_delta(bytes).unwrap(), self.target.adopted());
        if delta.to <= version {
            return None;
        }
        let held = self.target.map.borrow().clone();
        match held.filter(|held| held.version == delta.from && self.target.nonce.get() == nonce) {
            Some(held) => self.hold(held.apply_delta(&delta).unwrap(), nonce),
            None => return Some(TargetAnswer::Holds { version, nonce: self.target.nonce.get() }),
        }
        None
    }

    fn hold(&self, map: FabricMap, nonce: u64) {
        *self.target.map.borrow_mut() = Some(Rc::new(map));
        self.target.nonce.set(nonce);
        self.heed_grant();
    }

    /// What a grant says counts when its map is adopted: a promise that was given before it was asked for
    /// ends if it does not name the victim any more.
    fn heed_grant(&self) {
        let adopted = self.target.adopted();
        let Some((sent, _, suspects)) = self.life.pending.borrow_mut().take_if(|p| p.1 <= adopted) else {
            return;
        };
        self.life.promises.borrow_mut().retain(|node, at| *at >= sent || suspects.contains(node));
        *self.life.suspects.borrow_mut() = suspects;
    }

    fn serves(&self, id: GroupId) -> bool {
        let Some(map) = self.target.map.borrow().clone() else { return false };
        let Some(group) = map.groups.get(&id) else { return false };
        if !self.life.had_lease.get() || !self.my_slots(&map, group).any(|r| r == Role::InSync) {
            return false;
        }
        let by_manager = self.life.lease_until.get() > now() && self.life.lease_map.get() <= map.version;
        by_manager || self.is_vouched_for(&map, group)
    }

    fn my_slots<'a>(&'a self, map: &'a FabricMap, group: &'a Group) -> impl Iterator<Item = Role> + 'a {
        let mine = |s: &&weft_types::Slot| {
            map.drives[&s.drive].target == self.life.id.get()
                && !self.life.refused.borrow().contains(&s.drive)
        };
        group.slots.iter().filter(mine).map(|s| s.role)
    }

    fn others(&self, map: &FabricMap, group: &Group) -> Vec<DriveId> {
        group.write_set().filter(|d| map.drives[d].target != self.life.id.get()).collect()
    }

    fn is_vouched_for(&self, map: &FabricMap, group: &Group) -> bool {
        let others = self.others(map, group);
        let vouched = self.life.vouched.borrow();
        let by = |d: &DriveId| vouched.get(&(group.id, *d)).is_some_and(|until| *until > now());
        !others.is_empty() && others.iter().all(by)
    }

    /// Joins and renews for ever; while the manager is silent, asks the other members.
    async fn keep_lease(self: Rc<Self>) {
        let incarnation = weft_rt::random_u64();
        self.target.incarnation.set(incarnation);
        let this = self.clone();
        spawn(async move {
            loop {
                sleep(ms(250)).await;
                this.ask_for_words().await;
            }
        });
        loop {
            let role = PeerRole::Target(self.life.id.get());
            let hello = Hello::new(role, Some(self.target.fabric.get()), self.target.name.clone());
            if let Ok(link) = Link::connect(&manager_addr(), &hello).await {
                self.renew_on(&link, incarnation).await;
            }
            sleep(ms(100)).await;
        }
    }

    async fn renew_on(&self, link: &Link, incarnation: u64) {
        match ask(link, &self.target.join()).await {
            Ok((ManagerAnswer::Joined { target, refused, nonce }, map)) => {
                self.life.id.set(target);
                *self.life.refused.borrow_mut() = refused.into_iter().map(|(drive, _)| drive).collect();
                if self.target.holds_adoption.get() {
                    return;
                }
                self.adopt(&map, nonce);
            }
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => {
                *self.target.refusal.borrow_mut() = Some(refusal);
                return;
            }
        }
        loop {
            let (target, sent) = (self.life.id.get(), now());
            let renew = ManagerRequest::Renew {
                target,
                incarnation,
                adopted: self.target.adopted(),
                commits: self.target.commits(),
                ahead: vec![],
            };
            let answer = match timeout(ms(1500), ask(link, &renew)).await {
                Ok(Ok((answer, _))) => answer,
                // The manager grants nothing yet.
                Ok(Err((Status::NotReady, _))) if !link.is_closed() => {
                    sleep(ms(100)).await;
                    continue;
                }
                _ => return,
            };
            let ManagerAnswer::Granted { map, suspects, clock_us } = answer else { panic!("{answer:?}") };
            self.target.clock_us.set(clock_us);
            self.life.lease_until.set(sent + ms(2000));
            self.life.lease_map.set(map);
            self.life.had_lease.set(true);
            *self.life.pending.borrow_mut() = Some((sent, map, suspects.into_iter().collect()));
            self.heed_grant();
            self.target.leased_from.set(Some(sent));
            // Some targets fetch the map that their lease waits for instead of waiting for it to be brought.
            if map > self.target.adopted() && weft_rt::random_below(2) == 0 {
                self.fetch_map(link).await;
            }
            sleep(ms(500)).await;
        }
    }

    async fn fetch_map(&self, link: &Link) {
        let (version, nonce) = (self.target.adopted(), self.target.nonce.get());
        let request = match self.target.refuses_deltas.get() {
            true => ManagerRequest::WatchMap { have: version },
            false => {
                let held = self.target.map.borrow().clone();
                let says = held.as_ref().and_then(|map| map.of_target.as_ref());
                let slice = says.map_or(Slice::Whole, |says| Slice::Target(says.target));
                ManagerRequest::Follow { version, nonce, slice }
            }
        };
        let Ok(Ok((answer, body))) = timeout(ms(400), ask(link, &request)).await else { return };
        if body.is_empty() || self.target.holds_adoption.get() {
            return;
        }
        match answer {
            ManagerAnswer::Map { .. } => self.adopt(&body, 0),
            ManagerAnswer::Followed { from: MapVersion(0), nonce, .. } => self.adopt(&body, nonce),
            ManagerAnswer::Followed { nonce, .. } => drop(self.adopt_delta(&body, nonce)),
            other => panic!("{other:?}"),
        }
    }

    async fn ask_for_words(self: &Rc<Self>) {
        if self.life.lease_until.get() > now() + ms(1000) || !self.life.had_lease.get() {
            return;
        }
        let Some(map) = self.target.map.borrow().clone() else { return };
        for group in map.groups.values().filter(|g| self.my_slots(&map, g).any(|r| r != Role::Out)) {
            for drive in self.others(&map, group) {
                let (this, map, id, epoch) = (self.clone(), map.clone(), group.id, group.epoch);
                spawn(async move {
                    let sent = now();
                    let request = VouchRequest {
                        target: this.life.id.get(),
                        asked: None,
                        groups: vec![(id, epoch)],
                        drives: vec![],
                    };
                    let addr: Addr = map.drive_addr(drive).unwrap().parse().unwrap();
                    let hello = Hello::new(PeerRole::Target(this.life.id.get()), Some(FABRIC), "peer");
                    let Ok(link) = Link::connect(&addr, &hello).await else { return };
                    let request = control::encode(&request);
                    let call = link.call(Kind::Vouch, &request, vec![]);
                    let Ok(Ok(frame)) = timeout(ms(500), call).await else { return };
                    let answer: VouchAnswer = control::decode(&frame.head).unwrap();
                    if answer.groups.contains(&id) {
                        this.life.vouched.borrow_mut().insert((id, drive), sent + ms(2000));
                    }
                });
            }
        }
    }

    fn vouch(&self, request: &VouchRequest) -> VouchAnswer {
        let map = self.target.map.borrow().clone();
        let victim = request.target;
        let refuses = self.life.suspects.borrow().contains(&victim)
            || self.life.promises.borrow().contains_key(&victim);
        let groups = match map {
            Some(map) if self.life.had_lease.get() && !refuses => (request.groups.iter())
                .filter(|(id, epoch)| is_written_by(&map, *id, *epoch, victim))
                .map(|(id, _)| *id)
                .collect(),
            _ => Vec::new(),
        };
        VouchAnswer { groups }
    }

    async fn control(&self, request: TargetRequest, body: &Buf) -> TargetAnswer {
        let mut holds = None;
        match &request {
            TargetRequest::AdoptMap { nonce, .. } | TargetRequest::AdoptDelta { nonce, .. } => {
                while self.target.holds_adoption.get() {
                    sleep(ms(10)).await;
                }
                let least = ms(self.target.adoption_takes_ms.get());
                sleep(least + Duration::from_micros(weft_rt::random_below(5000))).await;
                match &request {
                    TargetRequest::AdoptDelta { .. } => holds = self.adopt_delta(body, *nonce),
                    _ => self.adopt(body, *nonce),
                }
            }
            TargetRequest::StopVouching { victim, .. } => {
                while self.target.holds_promises.get() {
                    sleep(ms(10)).await;
                }
                self.life.promises.borrow_mut().insert(*victim, now());
            }
            TargetRequest::Inventory { .. } => {
                while self.target.holds_inventory.get() {
                    sleep(ms(10)).await;
                }
            }
            TargetRequest::Sweep { .. } => {
                while self.target.holds_sweep.get() {
                    sleep(ms(10)).await;
                }
                sleep(Duration::from_micros(weft_rt::random_below(5000))).await;
            }
            _ => {}
        }
        let answer = match &request {
            TargetRequest::Status => TargetAnswer::Status(TargetStatus {
                drives: self.target.drive_statuses(),
                resyncs: self.target.resyncs.borrow().clone(),
                unserved: self.target.unserved.borrow().clone(),
                ..TargetStatus::default()
            }),
            TargetRequest::Inventory { detail } => {
                TargetAnswer::Inventory(Box::new(self.target.inventory(detail)))
            }
            TargetRequest::Floors { close } => TargetAnswer::Floors { groups: self.target.open_below(close) },
            TargetRequest::HoldsData { .. } => TargetAnswer::HoldsData { holds: false },
            TargetRequest::HeardOf { sessions } => {
                let serves = self.target.serves_sessions.borrow();
                let ago_ms = |at: &Option<Instant>| at.map_or(0, |at| at.elapsed().as_millis() as u64);
                let heard = sessions.iter().filter_map(|id| Some((*id, ago_ms(serves.get(id)?)))).collect();
                TargetAnswer::HeardOf { heard }
            }
            _ => holds.unwrap_or(TargetAnswer::Done),
        };
        self.target.log.borrow_mut().push((now(), request));
        answer
    }
}

/// Whether the node has a drive in the write set of the group at this epoch.
fn is_written_by(map: &FabricMap, group: GroupId, epoch: Epoch, target: TargetId) -> bool {
    let Some(group) = map.groups.get(&group) else { return false };
    group.epoch == epoch && group.write_set().any(|d| map.drives[&d].target == target)
}

impl Greeter for Process {
    fn greet(&self, _: &Hello) -> Result<Option<FabricId>, String> {
        Ok(Some(FABRIC))
    }
}

impl weft_rpc::Service for Process {
    async fn handle(self: Rc<Self>, _: Rc<Peer>, request: Request) -> Answer {
        match request.kind {
            Kind::Control => {
                let asked: TargetRequest = control::decode(&request.head).unwrap();
                if self.target.refuses_deltas.get() && matches!(asked, TargetRequest::AdoptDelta { .. }) {
                    self.target.log.borrow_mut().push((now(), asked));
                    return Answer::error(Status::Invalid, "no such request");
                }
                if self.target.keeps_no_parts.get() && matches!(asked, TargetRequest::KeepPart { .. }) {
                    return Answer::error(Status::Refused, "the drive takes no part of the map");
                }
                let answer = self.control(asked, &request.body).await;
                if matches!(answer, TargetAnswer::Inventory(_)) {
                    return Answer::ok(vec![], vec![Buf::from(control::encode(&answer))]);
                }
                Answer::ok(control::encode(&answer), vec![])
            }
            Kind::Vouch => {
                Answer::ok(control::encode(&self.vouch(&control::decode(&request.head).unwrap())), vec![])
            }
            other => panic!("a target is not asked {other:?} here"),
        }
    }
}

/// Asks a manager something.
pub async fn ask(link: &Link, request: &ManagerRequest) -> Result<(ManagerAnswer, Buf), (Status, String)> {
    let (head, body) = control::encode_request(request);
    match link.call(Kind::Manage, &head, body).await {
        Ok(reply) => Ok((control::decode(&reply.head).unwrap(), reply.body)),
        Err(error @ CallError::Refused { .. }) => Err((error.status().unwrap(), error.text())),
        Err(error) => Err((Status::NotReady, error.to_string())),
    }
}

/// A client or tool of the manager.
pub async fn connect(role: PeerRole) -> Link {
    Link::connect(&manager_addr(), &Hello::new(role, None, "test")).await.unwrap()
}

/// One management operation on a connection of its own.
pub async fn operate(request: ApiRequest) -> Result<ApiAnswer, ApiError> {
    let link = connect(PeerRole::Tool).await;
    let reply = link.call(Kind::Api, &weft_api::encode_request(&request), vec![]).await.unwrap();
    weft_api::decode_reply(&reply.body).unwrap().into_result()
}

pub fn volume_of(name: &str, copies: u8) -> ApiRequest {
    ApiRequest::VolumeCreate {
        name: name.into(),
        size_bytes: 64 << 20,
        protection: weft_types::Protection::mirror(copies),
        pool: None,
        stripe_unit_bytes: None,
        width: None,
        failure_domain: weft_api::FailureDomain::Node,
        thin: false,
        dry_run: false,
    }
}

/// All events, in the order of their numbers.
pub async fn events() -> Vec<EventInfo> {
    match operate(ApiRequest::Events { after: 0, limit: None, filter: EventFilter::default() }).await {
        Ok(ApiAnswer::Events { events }) => events,
        other => panic!("{other:?}"),
    }
}

/// The one trouble of this kind.
pub fn trouble(status: &FabricStatus, kind: TroubleKind) -> &Trouble {
    let found: Vec<&Trouble> = status.troubles.iter().filter(|t| t.kind == kind).collect();
    assert_eq!(found.len(), 1, "{kind:?} in {:#?}", status.troubles);
    found[0]
}

pub async fn status() -> FabricStatus {
    match operate(ApiRequest::Status {}).await {
        Ok(ApiAnswer::Status(status)) => *status,
        other => panic!("{other:?}"),
    }
}

pub async fn attach(
    volume: &str,
    mode: weft_types::AttachMode,
    preempt: bool,
) -> Result<weft_types::Session, (Status, String)> {
    attach_numbered(volume, mode, preempt, 0).await
}

pub async fn attach_numbered(
    volume: &str,
    mode: weft_types::AttachMode,
    preempt: bool,
    number: u64,
) -> Result<weft_types::Session, (Status, String)> {
    attach_lanes(volume, mode, preempt, number, 1).await
}

pub async fn attach_lanes(
    volume: &str,
    mode: weft_types::AttachMode,
    preempt: bool,
    number: u64,
    lanes: u32,
) -> Result<weft_types::Session, (Status, String)> {
    let link = connect(PeerRole::Client).await;
    let (volume, client) = (volume.into(), "test".into());
    let kind = weft_types::AttachKind::Blocks;
    let request = ManagerRequest::Attach {
        volume,
        mode,
        preempt,
        client,
        follows: None,
        number,
        lanes,
        kind,
        server: None,
    };
    match ask(&link, &request).await? {
        (ManagerAnswer::Attached { session, .. }, _) => Ok(session),
        other => panic!("{other:?}"),
    }
}

pub async fn touch(sessions: &[SessionId]) -> Result<(), (Status, String)> {
    tell_reach(sessions, &[], &[]).await
}

/// Says which nodes have not answered for how many milliseconds, and which have answered so long ago.
pub async fn tell_reach(
    sessions: &[SessionId],
    silent: &[(u32, u64)],
    heard: &[(u32, u64)],
) -> Result<(), (Status, String)> {
    let link = connect(PeerRole::Client).await;
    let ages =
        |ages: &[(u32, u64)]| ages.iter().map(|&(n, ms)| TargetAge { target: TargetId(n), ms }).collect();
    let (silent, heard) = (ages(silent), ages(heard));
    ask(&link, &ManagerRequest::Touch { sessions: sessions.to_vec(), silent, heard }).await.map(|_| ())
}

/// A manager and nodes 1 to n with one drive each, all up and with the newest map.
pub async fn fabric(nodes: u8) -> (Service, Vec<Rc<FakeTarget>>, Vec<Rc<ProcessView>>) {
    let service = Service::start().await;
    let targets: Vec<Rc<FakeTarget>> = (1..=nodes).map(|n| FakeTarget::new(n, &[u128::from(n)])).collect();
    let views = targets.iter().map(FakeTarget::start).collect();
    all_up(&service, &targets).await;
    (service, targets, views)
}

/// Waits until all these targets hold leases and the newest map.
pub async fn all_up(service: &Service, targets: &[Rc<FakeTarget>]) {
    let is_up = |t: &Rc<FakeTarget>| t.leased_from.get().is_some() && t.is_current(&service.map());
    eventually("all targets are up", ms(5000), || targets.iter().all(is_up)).await;
}

/// The roles of a node's drives in all groups.
pub fn roles(map: &FabricMap, drive: u128) -> Vec<Role> {
    map.groups.values().filter_map(|g| g.slot_of(DriveId(drive))).map(|s| s.role).collect()
}
