//! The fabric that is tested: nodes with simulated disks, and a manager with a store that survives it.

use crate::check::slices::SlicesCheck;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiReply, ApiRequest, FailureDomain};
use weft_manager::{Manager, ManagerOptions, MemStore, Slowness, at_once, found, put_map};
use weft_meta::ShardServer;
use weft_rpc::Link;
use weft_rt::sim::{self, Crash, ProcessId, SimDisk, spawn_process};
use weft_rt::sync::{Notify, race};
use weft_rt::{Addr, Extent, Listener, now, random_below, random_u64, random_u128, sleep, timeout};
use weft_store::{FormatOptions, OpenOptions, Store};
use weft_target::{Target, TargetOptions, TargetThread};
use weft_types::{
    DeviceId, DriveId, DriveState, Durations, Epoch, FabricId, FabricMap, GroupId, Role, Session,
    SessionState,
};
use weft_wire::control::DELTA_PROTOCOL;
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, PROTOCOL, PROTOCOL_OLDEST};

/// How long a node has to stop in order before it is killed: as long as `weft down` gives it.
pub const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// Lets the process speak one of the protocols that this code knows, as in a fabric that is being upgraded,
/// where each start may be of another release. The choice follows from what has happened so far, and takes no
/// random number.
pub fn speak_some_protocol(process: ProcessId) {
    let oldest = OLDEST.get();
    let choices = u64::from(PROTOCOL - oldest) + 1;
    let protocol = oldest + (sim::trace_hash() % choices) as u16;
    sim::tell(|| format!("speaks protocols up to {protocol}"));
    weft_rpc::set_protocol_newest(process, protocol);
}

thread_local! {
    /// The oldest protocol that a process of this thread's simulation speaks.
    static OLDEST: Cell<u16> = const { Cell::new(PROTOCOL_OLDEST) };
}

/// While this lives, every process that starts speaks a protocol of releases that know file systems.
pub struct KnowFiles(());

impl KnowFiles {
    /// From now on.
    pub fn begin() -> KnowFiles {
        OLDEST.set(DELTA_PROTOCOL);
        KnowFiles(())
    }
}

impl Drop for KnowFiles {
    fn drop(&mut self) {
        OLDEST.set(PROTOCOL_OLDEST);
    }
}

/// How large the fabric is.
#[derive(Clone, Debug)]
pub struct BedShape {
    /// Nodes.
    pub nodes: usize,
    /// Drives on each.
    pub drives: usize,
    /// Drives that are parts of one device. Of each node's drives, from the first on, so many together are
    /// on one: it is pulled, hangs, fails and is replaced as a whole.
    pub parts: usize,
    /// Targets of each, at most: each start of a node has so many threads, or fewer, and deals the drives to
    /// them in its own way.
    pub targets: usize,
    /// Bytes of each drive.
    pub drive_bytes: u64,
    /// Copies of each block.
    pub copies: u8,
    /// Lease and other times.
    pub durations: Durations,
}

impl BedShape {
    /// A random shape: 3 to 6 nodes, one or two drives each, two or three copies.
    pub fn random() -> BedShape {
        BedShape {
            nodes: 3 + random_below(4) as usize,
            drives: 1 + random_below(2) as usize,
            parts: 1,
            targets: 1,
            drive_bytes: 64 << 20,
            copies: 2 + random_below(2) as u8,
            durations: Durations {
                lease_ms: 500,
                drift_per_mille: 10,
                session_ms: 4_000,
                rebuild_after_ms: 3_600_000,
            },
        }
    }
}

/// How a node that starts deals its drives to threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dealing {
    /// To as many threads as the start draws, up to those of the shape.
    Drawn,
    /// To a thread for each drive. Each has a host of its own, so that one of them can be cut off alone.
    OnePerDrive,
    /// To one thread.
    One,
}

/// A node: its disks outlive its process.
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its host in the simulated network.
    pub host: IpAddr,
    disks: RefCell<Vec<SimDisk>>,
    /// The device that each of them is on.
    devices: RefCell<Vec<DeviceId>>,
    /// The drives that it began with.
    drives: Vec<DriveId>,
    /// Those in their places now.
    drives_now: RefCell<Vec<DriveId>>,
    /// Whether it is gone for good.
    is_lost: Cell<bool>,
    /// Drives that may be in no state to be opened, because of what was done to them.
    unsound: Rc<RefCell<BTreeSet<DriveId>>>,
    /// Drives that were pulled: processes that had them open may see them fail.
    pulled: Rc<RefCell<BTreeSet<DriveId>>>,
    /// The threads of its process: each is a process of the host here, and they end together.
    threads: RefCell<Vec<ProcessId>>,
    stores: Rc<RefCell<Vec<Rc<Store>>>>,
    /// How the process that was started last is stopped in order.
    stop: RefCell<Rc<Stop>>,
}

/// How a process is stopped in order.
#[derive(Default)]
struct Stop {
    is_asked: Cell<bool>,
    asked: Notify,
    /// How many of its threads have not stopped.
    running: Cell<usize>,
}

impl Stop {
    fn ask(&self) {
        self.is_asked.set(true);
        self.asked.notify_all();
    }

    /// Completes when the process is asked to stop.
    async fn asked(&self) {
        while !self.is_asked.get() {
            self.asked.notified().await;
        }
    }
}

/// The fabric.
pub struct Bed {
    /// Its shape.
    pub shape: BedShape,
    /// Its nodes.
    pub nodes: Vec<Node>,
    fabric: FabricId,
    /// How nodes that are started from now on deal their drives to threads.
    pub dealing: Cell<Dealing>,
    /// How often floors rise, for managers that are started from now on.
    pub forget_every: Cell<Duration>,
    map_store: MemStore,
    /// The store as each manager has it that was started last, by their hosts.
    stores: RefCell<BTreeMap<IpAddr, MemStore>>,
    /// Managers that run, by their hosts. More than one only while somebody makes that mistake.
    running_managers: RefCell<BTreeMap<IpAddr, ProcessId>>,
    /// Where managers may run.
    manager_hosts: Vec<IpAddr>,
    /// By how much the monotonic clock of each host is too fast, in millionths; 0 for those not named.
    rates: BTreeMap<IpAddr, i32>,
    /// Places whose drives are to be replaced.
    to_replace: RefCell<BTreeSet<(usize, usize)>>,
    /// Drives that were replaced, and by which: the one that is in the place now, however many there were
    /// between.
    replaced: RefCell<Vec<(DriveId, DriveId)>>,
    /// Drives whose stores had failed when their nodes died, and why.
    failures: RefCell<Vec<(DriveId, String)>>,
    /// By how much the clock of each host is off, in microseconds; 0 for those not named.
    skews: RefCell<BTreeMap<IpAddr, i64>>,
    /// Members that left the read set of their group and stayed in its write set, with the epoch in
    /// which they did.
    demoted: Rc<RefCell<BTreeSet<(GroupId, DriveId, Epoch)>>>,
    /// What followers have is compared with the map.
    slices: Rc<SlicesCheck>,
}

/// How long the manager's store usually takes: a flush of a drive, or a way to another machine.
pub const USUAL_SLOWNESS: Slowness = Slowness {
    latency: (Duration::from_micros(50), Duration::from_millis(3)),
    unanswered_per_mille: 0,
    late: Duration::ZERO,
};

/// How often floors rise in a run that has many discards and takes a minute.
pub const FORGET_EVERY: Duration = Duration::from_secs(2);

/// Longer than any run: where a script waits for one thing after the other, no epoch begins in between.
const NEVER_FORGETS: Duration = Duration::from_secs(1 << 20);

/// What an event about a demotion has in it.
const DEMOTION: &str = "\"demote\"";

/// The members that are in the write set in both maps, and in the read set in the first one only.
fn demotions(before: &FabricMap, after: &FabricMap) -> Vec<(GroupId, DriveId, Epoch)> {
    let mut found = Vec::new();
    for group in after.groups.values() {
        let was_in_sync =
            |drive| before.groups.get(&group.id).is_some_and(|g| g.read_set().any(|d| d == drive));
        let demoted = group.slots.iter().filter(|s| s.role == Role::Syncing && was_in_sync(s.drive));
        found.extend(demoted.map(|s| (group.id, s.drive, s.since)));
    }
    found
}

/// The manager's host.
pub fn manager_host() -> IpAddr {
    IpAddr::from([10, 0, 1, 1])
}

/// Where another manager may run.
pub fn second_manager_host() -> IpAddr {
    IpAddr::from([10, 0, 1, 2])
}

fn manager_addr(host: IpAddr) -> Addr {
    format!("{host}:4700").parse().expect("a valid address")
}

/// A drive of a node, as it is given to a thread.
#[derive(Clone)]
struct Disk {
    disk: SimDisk,
    drive: DriveId,
    device: DeviceId,
}

/// Opens a drive of a node; none if it is left out, because it is not there or may be in no state to be
/// opened.
///
/// # Panics
/// If it does not open, and nothing was done to it.
async fn open(
    Disk { disk, device, .. }: &Disk,
    is_unsound: impl Fn() -> bool,
) -> Option<(String, Rc<Store>)> {
    let pulls = disk.pulls();
    if disk.is_pulled() {
        sim::tell(|| "a drive is left out: it is not there".into());
        return None;
    }
    let whole = disk.open().expect("the old process is gone");
    let path = whole.path().to_owned();
    let all = [Extent { start: 0, len: whole.size_bytes() }];
    let drive = whole.window(&path, *device, &all).expect("the whole of it is there");
    match Store::open(drive, OpenOptions::default()).await {
        Ok((store, report)) => {
            sim::tell(|| format!("opens {path}: {report:?}"));
            Some((path, store))
        }
        Err(error) if is_unsound() || disk.pulls() > pulls => {
            sim::tell(|| format!("cannot open {path}: {error}"));
            None
        }
        Err(error) => panic!("{path} does not open after a crash: {error}"),
    }
}

impl Node {
    /// A node of this number, from 0, with formatted disks, which runs nothing yet.
    async fn make(shape: &BedShape, n: usize, fabric: FabricId) -> Node {
        let host = IpAddr::from([10, 0, 0, 1 + n as u8]);
        let (mut disks, mut drives, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        for d in 0..shape.drives {
            let disk = SimDisk::new(&format!("node-{}/drive-{}", n + 1, d + 1), shape.drive_bytes);
            let drive = disk.open().expect("nobody has it open");
            let drive_id = DriveId::from_random(random_u128());
            let options = FormatOptions::new(fabric, drive_id);
            Store::format(&drive, options).await.expect("an empty disk can be formatted");
            disks.push(disk);
            drives.push(drive_id);
            devices.push(match d % shape.parts {
                0 => DeviceId::of_drive(drive_id),
                _ => devices[d - 1],
            });
        }
        Node {
            name: format!("node-{}", n + 1),
            host,
            disks: RefCell::new(disks),
            devices: RefCell::new(devices),
            drives_now: RefCell::new(drives.clone()),
            drives,
            is_lost: Cell::new(false),
            unsound: Rc::default(),
            pulled: Rc::default(),
            threads: RefCell::default(),
            stores: Rc::default(),
            stop: RefCell::default(),
        }
    }

    /// Its disks.
    pub fn disks(&self) -> Vec<SimDisk> {
        self.disks.borrow().clone()
    }

    /// The places whose drives are parts of one device with the drive in this place, it too.
    pub fn together_with(&self, at: usize) -> Vec<usize> {
        let devices = self.devices.borrow();
        (0..devices.len()).filter(|other| devices[*other] == devices[at]).collect()
    }

    /// The disks of the device that the drive in a place is on.
    pub fn device_disks(&self, at: usize) -> Vec<SimDisk> {
        let disks = self.disks.borrow();
        self.together_with(at).into_iter().map(|place| disks[place].clone()).collect()
    }

    /// The drives of the device that the drive in a place is on.
    pub fn device_drives(&self, at: usize) -> Vec<DriveId> {
        self.together_with(at).into_iter().map(|place| self.drive_at(place)).collect()
    }

    /// Its drives, with where each is.
    fn placed(&self) -> Vec<Disk> {
        let (disks, devices) = (self.disks.borrow(), self.devices.borrow());
        let drives = self.drives_now();
        let all = disks.iter().zip(drives).zip(devices.iter());
        all.map(|((disk, drive), device)| Disk { disk: disk.clone(), drive, device: *device }).collect()
    }

    /// Puts another disk in the place of one, for the node's next start.
    pub fn put_disk(&self, at: usize, disk: SimDisk) {
        self.disks.borrow_mut()[at] = disk;
    }

    /// The identities of the drives in its places now.
    pub fn drives_now(&self) -> Vec<DriveId> {
        self.drives_now.borrow().clone()
    }

    /// The identity of the drive in a place now.
    pub fn drive_at(&self, at: usize) -> DriveId {
        self.drives_now.borrow()[at]
    }

    /// The threads of its process; none if it does not run.
    pub fn threads(&self) -> Vec<ProcessId> {
        self.threads.borrow().clone()
    }

    /// Whether its process runs.
    pub fn is_running(&self) -> bool {
        !self.threads.borrow().is_empty()
    }

    /// From now on it does not start any more.
    pub fn lose(&self) {
        self.is_lost.set(true);
    }

    /// Whether it is gone for good.
    pub fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Notes that something was done to the device that the drive in a place is on.
    pub fn set_device_unsound(&self, at: usize) {
        self.together_with(at).into_iter().for_each(|place| self.set_unsound(place));
    }

    /// Notes that something was done to the drive in a place: it may fail, and the node goes on without it.
    pub fn set_unsound(&self, at: usize) {
        self.unsound.borrow_mut().insert(self.drive_at(at));
    }

    /// Whether something was done to a drive that may make it fail.
    pub fn may_fail(&self, drive: DriveId) -> bool {
        self.unsound.borrow().contains(&drive) || self.pulled.borrow().contains(&drive)
    }

    /// Pulls the device that the drive in a place is on; a process that runs sees its drives fail.
    pub fn pull(&self, at: usize) {
        if self.is_running() {
            self.pulled.borrow_mut().extend(self.device_drives(at));
        }
        self.device_disks(at).iter().for_each(SimDisk::pull);
    }

    /// Puts the device that the drive in a place is on back, for the node's next start; whether it was away.
    pub fn put_back(&self, at: usize) -> bool {
        let was_away = !self.has_drive(at);
        self.device_disks(at).iter().for_each(SimDisk::put_back);
        was_away
    }

    /// Whether the drive in a place is there.
    pub fn has_drive(&self, at: usize) -> bool {
        !self.disks.borrow()[at].is_pulled()
    }

    /// Whether a drive is in one of its places, and there.
    pub fn has(&self, drive: DriveId) -> bool {
        self.drives_now().iter().position(|id| *id == drive).is_some_and(|at| self.has_drive(at))
    }

    /// Its open stores; none while it does not run.
    pub fn stores(&self) -> Vec<Rc<Store>> {
        self.stores.borrow().clone()
    }

    /// The identities of the drives that it began with.
    pub fn drives(&self) -> &[DriveId] {
        &self.drives
    }
}

impl Bed {
    /// Formats the drives and starts everything.
    pub async fn start(shape: BedShape) -> Rc<Bed> {
        Self::start_forgetting(shape, NEVER_FORGETS).await
    }

    /// Likewise, with floors that rise so often.
    pub async fn start_forgetting(shape: BedShape, every: Duration) -> Rc<Bed> {
        Self::start_as(shape, BTreeMap::new(), false, every).await
    }

    /// Likewise, with clocks that run too fast or too slow by so many millionths, and perhaps a second host
    /// on which a manager can run.
    pub async fn start_with(
        shape: BedShape,
        rates: BTreeMap<IpAddr, i32>,
        has_second_manager: bool,
    ) -> Rc<Bed> {
        Self::start_as(shape, rates, has_second_manager, NEVER_FORGETS).await
    }

    /// Likewise, with floors that rise so often.
    pub async fn start_as(
        shape: BedShape,
        rates: BTreeMap<IpAddr, i32>,
        has_second_manager: bool,
        forget_every: Duration,
    ) -> Rc<Bed> {
        Self::start_dealing(shape, rates, has_second_manager, forget_every, Dealing::Drawn).await
    }

    /// With a thread for each drive.
    pub async fn start_split(shape: BedShape) -> Rc<Bed> {
        Self::start_dealing(shape, BTreeMap::new(), false, NEVER_FORGETS, Dealing::OnePerDrive).await
    }

    async fn start_dealing(
        shape: BedShape,
        rates: BTreeMap<IpAddr, i32>,
        has_second_manager: bool,
        forget_every: Duration,
        dealing: Dealing,
    ) -> Rc<Bed> {
        let fabric = FabricId::from_random(random_u128());
        let mut nodes = Vec::new();
        for n in 0..shape.nodes {
            nodes.push(Node::make(&shape, n, fabric).await);
        }
        let map_store = MemStore::new();
        found(&map_store, fabric, shape.durations).await.expect("an empty store takes a fabric");
        let slices = Rc::new(SlicesCheck::start(&map_store.map().expect("it was made")));
        map_store.set_slowness(USUAL_SLOWNESS);
        let bed = Rc::new(Bed {
            shape,
            nodes,
            fabric,
            dealing: Cell::new(dealing),
            forget_every: Cell::new(forget_every),
            map_store,
            stores: RefCell::default(),
            running_managers: RefCell::default(),
            manager_hosts: if has_second_manager {
                vec![manager_host(), second_manager_host()]
            } else {
                vec![manager_host()]
            },
            rates,
            to_replace: RefCell::default(),
            replaced: RefCell::default(),
            failures: RefCell::default(),
            skews: RefCell::default(),
            demoted: Rc::default(),
            slices,
        });
        bed.watch_commits();
        bed.start_manager();
        for n in 0..bed.nodes.len() {
            bed.start_node(n);
        }
        bed
    }

    /// Notes each version of the map, and each member that leaves its group because clients cannot reach it.
    fn watch_commits(&self) {
        let (demoted, slices) = (self.demoted.clone(), self.slices.clone());
        self.map_store.observe(move |before, after, events| {
            slices.note(after);
            // Events are documents.
            let is_demotion =
                |event: &[u8]| event.windows(DEMOTION.len()).any(|part| part == DEMOTION.as_bytes());
            if events.iter().any(|event| is_demotion(event)) {
                demoted.borrow_mut().extend(demotions(before, after));
            }
        });
    }

    /// Where the managers listen.
    pub fn managers(&self) -> Vec<Addr> {
        self.manager_hosts.iter().copied().map(manager_addr).collect()
    }

    /// The store as the manager has it that was started last on this host.
    ///
    /// # Panics
    /// If none was.
    pub fn store_of(&self, host: IpAddr) -> MemStore {
        self.stores.borrow()[&host].clone()
    }

    /// The process of a manager that runs.
    pub fn manager_process(&self) -> Option<ProcessId> {
        self.running_managers.borrow().values().next().copied()
    }

    /// Starts the manager if it is not running.
    pub fn start_manager(self: &Rc<Self>) {
        if self.running_managers.borrow().is_empty() {
            self.start_manager_on(manager_host());
        }
    }

    /// Starts another manager beside the one that runs. Whether one could be started.
    pub fn start_second_manager(self: &Rc<Self>) -> bool {
        let free = |host: &&IpAddr| !self.running_managers.borrow().contains_key(*host);
        match self.manager_hosts.iter().find(free) {
            Some(host) if !self.running_managers.borrow().is_empty() => {
                self.start_manager_on(*host);
                true
            }
            _ => false,
        }
    }

    fn start_manager_on(self: &Rc<Self>, host: IpAddr) {
        // Where several managers may run, none of them has the store for itself.
        let store = match self.manager_hosts.len() {
            1 => self.map_store.clone(),
            _ => self.map_store.shared(),
        };
        self.stores.borrow_mut().insert(host, store.clone());
        let (fabric, forget_every) = (Some(self.fabric), self.forget_every.get());
        let options = ManagerOptions { fabric, forget_every, ..ManagerOptions::default() };
        let name = if host == manager_host() { "manager" } else { "manager-2" };
        let (halted, is_halted) = (Rc::new(Notify::default()), Rc::new(Cell::new(false)));
        let (halts, sets_halted) = (halted.clone(), is_halted.clone());
        let process = spawn_process(host, name, async move {
            let manager = loop {
                match Manager::start(store.clone(), options.clone()).await {
                    Ok(manager) => break manager,
                    // As a supervisor does with a daemon that ends.
                    Err(error) => sim::tell(|| format!("does not start: {error}")),
                }
                sleep(Duration::from_millis(100)).await;
            };
            let listener = Listener::bind(&manager_addr(host)).expect("the old manager's socket is closed");
            sim::tell(|| "starts".into());
            weft_rt::spawn(manager.clone().serve(listener));
            let reason = manager.halted().await;
            sim::tell(|| format!("stops: {reason}"));
            sets_halted.set(true);
            halts.notify_all();
        });
        sim::set_clock_rate(process, self.rate(host));
        sim::set_wall_skew(process, self.skew(host));
        self.running_managers.borrow_mut().insert(host, process);
        // A manager that has stopped for good ends, as the daemon does; another one goes on, or is started.
        let bed = self.clone();
        weft_rt::spawn(async move {
            while !is_halted.get() {
                let halt = halted.notified();
                if !sim::is_alive(process) {
                    return;
                }
                race(halt, sleep(Duration::from_millis(50))).await;
            }
            let is_it = bed.running_managers.borrow().get(&host) == Some(&process);
            if is_it {
                bed.running_managers.borrow_mut().remove(&host);
                sim::kill(process, Crash::Process);
            }
            bed.start_manager();
        });
    }

    /// Sets how far the clock of a host is off, in microseconds: of what runs there, and of what will.
    pub fn set_clock(&self, host: IpAddr, skew_us: i64) {
        self.skews.borrow_mut().insert(host, skew_us);
        let nodes = self.nodes.iter().filter(|n| n.host == host).flat_map(|n| n.threads());
        let manager = self.running_managers.borrow().get(&host).copied();
        nodes.chain(manager).for_each(|process| sim::set_wall_skew(process, skew_us));
    }

    /// Puts the clocks of all hosts right.
    pub fn put_clocks_right(&self) {
        let hosts: Vec<IpAddr> = self.skews.borrow().keys().copied().collect();
        hosts.into_iter().for_each(|host| self.set_clock(host, 0));
    }

    fn skew(&self, host: IpAddr) -> i64 {
        self.skews.borrow().get(&host).copied().unwrap_or(0)
    }

    fn rate(&self, host: IpAddr) -> i32 {
        self.rates.get(&host).copied().unwrap_or(0)
    }

    /// Kills the manager, if it is running; all of them, if there are several.
    pub fn kill_manager(&self) {
        for process in self.running_managers.take().into_values() {
            sim::kill(process, Crash::Process);
        }
    }

    /// Starts a node if it is not running, as `weft node run` does: with the drives that are there, dealt to
    /// as many threads as this start has.
    pub fn start_node(&self, n: usize) {
        let node = &self.nodes[n];
        if node.is_running() || node.is_lost() {
            return;
        }
        let stop = Rc::new(Stop::default());
        *node.stop.borrow_mut() = stop.clone();
        let (count, turn) = self.threads_of_next_start();
        stop.running.set(count);
        let process = random_u64() | 1;
        let disks = node.placed();
        for index in 0..count {
            let thread = TargetThread { process, index: index as u32, of: count as u32 };
            let own = disks.iter().enumerate().filter(|(at, _)| (at + turn) % count == index);
            let own = own.map(|(_, disk)| disk.clone()).collect();
            let id = self.start_thread((node, self.host_of(n, index)), thread, own, stop.clone());
            node.threads.borrow_mut().push(id);
        }
    }

    /// How many threads the next start of a node has, and with which of them its drives begin. The choice
    /// follows from what has happened so far, and takes no random number.
    fn threads_of_next_start(&self) -> (usize, usize) {
        let hash = sim::trace_hash() as usize;
        match self.dealing.get() {
            Dealing::Drawn => (1 + hash % self.shape.targets, hash / self.shape.targets),
            Dealing::OnePerDrive => (self.shape.drives, 0),
            Dealing::One => (1, 0),
        }
    }

    /// The host of the thread that serves the drive in a place of a node, where each drive has a thread.
    pub fn host_of(&self, node: usize, at: usize) -> IpAddr {
        match (self.dealing.get(), at) {
            (Dealing::OnePerDrive, 1..) => IpAddr::from([10, 1, at as u8, 1 + node as u8]),
            _ => self.nodes[node].host,
        }
    }

    /// The node and the place that a drive is in now.
    pub fn place_of(&self, drive: DriveId) -> Option<(usize, usize)> {
        let at = |node: &Node| node.drives_now.borrow().iter().position(|id| *id == drive);
        self.nodes.iter().enumerate().find_map(|(n, node)| Some((n, at(node)?)))
    }

    /// Starts one thread of a node's process, with these drives.
    fn start_thread(
        &self,
        (node, host): (&Node, IpAddr),
        thread: TargetThread,
        disks: Vec<Disk>,
        stop: Rc<Stop>,
    ) -> ProcessId {
        let (managers, unsound, pulled) = (self.managers(), node.unsound.clone(), node.pulled.clone());
        let (shared, stores_of_thread) = (node.stores.clone(), Rc::new(RefCell::new(Vec::new())));
        let addr: Addr = format!("{host}:{}", 4800 + thread.index).parse().expect("a valid address");
        let (name, fabric) = (node.name.clone(), self.fabric);
        let title = match thread.of {
            1 => name.clone(),
            _ => format!("{name}/{}", thread.index),
        };
        let process = spawn_process(host, &title, async move {
            let (running, serving) = (RefCell::new(None), RefCell::new(None::<Rc<ShardServer>>));
            let opened = stores_of_thread;
            let serve = async {
                for disk in disks {
                    if let Some(found) = open(&disk, || unsound.borrow().contains(&disk.drive)).await {
                        opened.borrow_mut().push(found);
                    }
                }
                let stores: Vec<(String, Rc<Store>)> = opened.borrow().clone();
                shared.borrow_mut().extend(stores.iter().map(|(_, store)| store.clone()));
                let listener = Listener::bind(&addr).expect("the old process's socket is closed");
                let options = TargetOptions { node_name: name, fabric, listen: addr, managers, thread };
                sim::tell(|| "serves".into());
                let target = Target::start(options, stores);
                *running.borrow_mut() = Some(target.clone());
                let shards = ShardServer::beside(&target);
                *serving.borrow_mut() = Some(shards.clone());
                shards.run(listener).await;
            };
            race(serve, stop.asked()).await;
            sim::tell(|| "is asked to stop".into());
            serving.take().iter().for_each(|shards| shards.stop());
            let target = running.take();
            if let Some(target) = &target {
                target.stop().await;
            }
            // It may have been asked while it opened its drives.
            for (_, store) in opened.take() {
                let id = store.label().drive;
                shared.borrow_mut().retain(|other| other.label().drive != id);
                let is_closed = store.close().await.is_ok();
                let may_fail = unsound.borrow().contains(&id) || pulled.borrow().contains(&id);
                assert!(is_closed || may_fail, "its disk is sound");
            }
            if let Some(target) = &target {
                target.say_last_word().await;
            }
            sim::tell(|| "has stopped".into());
            stop.running.set(stop.running.get() - 1);
        });
        sim::set_clock_rate(process, self.rate(node.host));
        sim::set_wall_skew(process, self.skew(node.host));
        speak_some_protocol(process);
        process
    }

    /// Kills a node, if it is running.
    pub fn kill_node(&self, n: usize, crash: Crash) {
        let threads = self.nodes[n].threads.take();
        if !threads.is_empty() {
            self.note_failures(n);
            self.nodes[n].stores.borrow_mut().clear();
        }
        for thread in threads {
            sim::kill(thread, crash);
        }
    }

    /// Opens and closes the drives of a node that does not run: the next process finds everything in its
    /// place, and nothing in the log.
    pub async fn close_drives(&self, n: usize) {
        for disk in self.nodes[n].placed() {
            let is_unsound = || self.nodes[n].unsound.borrow().contains(&disk.drive);
            if let Some((_, store)) = open(&disk, is_unsound).await {
                store.close().await.expect("its disk is sound");
            }
        }
    }

    fn note_failures(&self, n: usize) {
        let failed = |store: &Rc<Store>| Some((store.label().drive, store.failure()?.to_string()));
        self.failures.borrow_mut().extend(self.nodes[n].stores().iter().filter_map(failed));
    }

    /// Drives whose stores have failed so far, and why.
    pub fn failures(&self) -> Vec<(DriveId, String)> {
        (0..self.nodes.len()).for_each(|n| self.note_failures(n));
        self.failures.borrow().clone()
    }

    /// Whether something was done to a drive that may make it fail, wherever it was.
    pub fn may_fail(&self, drive: DriveId) -> bool {
        self.nodes.iter().any(|n| n.may_fail(drive))
    }

    /// Stops a node in order, as a supervisor does that has patience for so long and then kills it. Returns
    /// when this process is no more, whoever ended it.
    pub async fn stop_node(&self, n: usize, patience: Duration) {
        let node = &self.nodes[n];
        let threads = node.threads();
        if threads.is_empty() {
            return;
        }
        let (stop, began) = (node.stop.borrow().clone(), now());
        stop.ask();
        while node.threads() == threads {
            let left = patience.saturating_sub(began.elapsed());
            if stop.running.get() == 0 || left.is_zero() {
                return self.kill_node(n, Crash::Process);
            }
            sleep(left.min(Duration::from_millis(1))).await;
        }
    }

    /// The manager's store, which outlives it.
    pub fn map_store(&self) -> &MemStore {
        &self.map_store
    }

    /// Changes the map in the manager's store behind everybody's back, as one commit.
    ///
    /// # Panics
    /// If a manager runs.
    pub fn edit_map(&self, edit: impl FnOnce(&mut FabricMap)) {
        assert!(self.manager_process().is_none(), "the map is edited while no manager runs");
        let mut map = FabricMap::clone(&self.map_store.map().expect("there is a map"));
        edit(&mut map);
        map.version = weft_types::MapVersion(map.version.0 + 1);
        self.map_store.set_slowness(Slowness::default());
        at_once(put_map(&self.map_store, &map)).expect("nobody else commits");
        self.map_store.set_slowness(USUAL_SLOWNESS);
    }

    /// Carries out a management operation, trying until the manager answers.
    pub async fn api(&self, request: ApiRequest) -> ApiAnswer {
        loop {
            match timeout(Duration::from_secs(5), self.try_api(&request)).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(error)) => sim::tell(|| format!("management: {error}")),
                Err(_) => sim::tell(|| "the manager does not answer".into()),
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Creates a volume of 16 MiB, once all drives have joined. Stripe units are small, so that requests span
    /// objects.
    ///
    /// # Panics
    /// If the manager refuses it.
    pub async fn create_volume(&self, name: &str, copies: u8, width: u32) {
        self.create_volume_of(name, 16 << 20, copies, width, false).await;
    }

    /// Likewise, of any size in bytes, perhaps of more than there is room for.
    ///
    /// # Panics
    /// If the manager refuses it.
    pub async fn create_volume_of(&self, name: &str, size_bytes: u64, copies: u8, width: u32, thin: bool) {
        self.create(name, size_bytes, (copies, FailureDomain::Node), width, thin).await;
    }

    /// A volume of 16 MiB whose copies are so far apart.
    ///
    /// # Panics
    /// If the manager refuses it.
    pub async fn create_volume_apart(&self, name: &str, copies: u8, width: u32, domain: FailureDomain) {
        self.create(name, 16 << 20, (copies, domain), width, false).await;
    }

    async fn create(
        &self,
        name: &str,
        size_bytes: u64,
        (copies, failure_domain): (u8, FailureDomain),
        width: u32,
        thin: bool,
    ) {
        self.all_drives_are_there().await;
        let request = ApiRequest::VolumeCreate {
            name: name.into(),
            size_bytes,
            protection: weft_types::Protection::mirror(copies),
            pool: None,
            stripe_unit_bytes: Some(16 << 10),
            width: Some(width),
            failure_domain,
            thin,
            dry_run: false,
        };
        match self.api(request).await {
            ApiAnswer::Volume { .. } => {}
            other => panic!("the answer to volume-create is {other:?}"),
        }
    }

    /// Waits until the map has all drives.
    pub async fn all_drives_are_there(&self) {
        while self.map().await.drives.len() < self.shape.nodes * self.shape.drives {
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Creates a file system of one shard, once all drives have joined and all nodes have said that they know
    /// of such. Stripe units are as small as those of volumes.
    ///
    /// # Panics
    /// If the manager refuses it.
    pub async fn create_file_system(&self, name: &str, copies: u8, width: u32) {
        self.create_file_system_of(1, name, copies, width).await;
    }

    /// The same with this number of shards: with more than one, its directories lie in all of them.
    ///
    /// # Panics
    /// If the manager refuses it.
    pub async fn create_file_system_of(&self, shards: u32, name: &str, copies: u8, width: u32) {
        self.all_drives_are_there().await;
        let request = ApiRequest::FsCreate {
            name: name.into(),
            protection: weft_types::Protection::mirror(copies),
            pool: None,
            shards: Some(shards),
            is_spread: shards > 1,
            stripe_unit_bytes: Some(16 << 10),
            width: Some(width),
            failure_domain: FailureDomain::Node,
            dry_run: false,
        };
        match self.api(request).await {
            ApiAnswer::FileSystem { .. } => {}
            other => panic!("the answer to fs-create is {other:?}"),
        }
    }

    /// Asks once for a drive to be emptied, or to take part again. The manager may refuse, or not be there.
    pub async fn evacuate(&self, node: usize, drive: usize, cancel: bool) {
        let id = self.nodes[node].drives[drive].to_string();
        let request = ApiRequest::DriveEvacuate { id, cancel, device: false, dry_run: false };
        if let Ok(Err(error)) = timeout(Duration::from_secs(5), self.try_api(&request)).await {
            sim::tell(|| format!("management: {error}"));
        }
    }

    /// Carries out a management operation, trying once for a while; what comes of it is told.
    pub async fn ask(&self, request: ApiRequest) {
        match timeout(Duration::from_secs(5), self.try_api(&request)).await {
            Ok(Ok(_)) => sim::tell(|| format!("management: {request:?} is done")),
            Ok(Err(error)) => sim::tell(|| format!("management: {error}")),
            Err(_) => sim::tell(|| "the manager does not answer".into()),
        }
    }

    /// The map as it is in the manager's store: what is true, whoever knows it.
    pub fn truth(&self) -> Rc<FabricMap> {
        self.map_store.map().expect("there is a map")
    }

    /// Whether a member went from in-sync to syncing with this epoch: it takes part in every write, and
    /// may answer reads until its target has heard of it.
    pub fn was_demoted(&self, group: GroupId, drive: DriveId, since: Epoch) -> bool {
        self.demoted.borrow().contains(&(group, drive, since))
    }

    /// The node that has a drive in one of its places now.
    pub fn node_of(&self, drive: DriveId) -> Option<usize> {
        self.nodes.iter().position(|n| n.drives_now.borrow().contains(&drive))
    }

    /// Whether a node's process runs.
    pub fn is_running(&self, n: usize) -> bool {
        self.nodes[n].is_running()
    }

    /// Puts an empty device, formatted like the one before, where the drive in a place of a node is. The node
    /// does not run afterwards.
    pub async fn put_empty_device(&self, n: usize, at: usize) {
        let device = DeviceId(random_u128());
        for place in self.nodes[n].together_with(at) {
            self.put_empty_drive(n, place).await;
            self.nodes[n].devices.borrow_mut()[place] = device;
        }
    }

    async fn put_empty_drive(&self, n: usize, at: usize) {
        let node = &self.nodes[n];
        let disk = SimDisk::new(&format!("{}/drive-{}-new", node.name, at + 1), self.shape.drive_bytes);
        let id = DriveId::from_random(random_u128());
        let drive = disk.open().expect("nobody has it open");
        Store::format(&drive, FormatOptions::new(self.fabric, id))
            .await
            .expect("an empty disk can be formatted");
        drop(drive);
        // Somebody else may have started it meanwhile.
        self.kill_node(n, Crash::PowerCut);
        node.put_disk(at, disk);
        let old = std::mem::replace(&mut node.drives_now.borrow_mut()[at], id);
        sim::tell(|| format!("{id} takes the place of {old} on {}", node.name));
        let mut replaced = self.replaced.borrow_mut();
        replaced.iter_mut().filter(|(_, by)| *by == old).for_each(|(_, by)| *by = id);
        replaced.push((old, id));
        self.to_replace.borrow_mut().remove(&(n, at));
    }

    /// Notes that somebody is to replace a drive.
    pub fn wants_replacement(&self, n: usize, at: usize) {
        self.to_replace.borrow_mut().insert((n, at));
    }

    /// Whether somebody is to replace a drive.
    pub fn is_to_be_replaced(&self, n: usize, at: usize) -> bool {
        self.to_replace.borrow().contains(&(n, at))
    }

    /// Drives that were replaced, and by which: those that are in their places now.
    pub fn replaced(&self) -> Vec<(DriveId, DriveId)> {
        self.replaced.borrow().clone()
    }

    /// Carries out a management operation, trying once.
    ///
    /// # Errors
    /// What the manager said, or that it does not answer.
    pub async fn try_api(&self, request: &ApiRequest) -> Result<ApiAnswer, String> {
        let hello = Hello::new(PeerRole::Tool, None, "harness");
        let mut hosts: Vec<IpAddr> = self.running_managers.borrow().keys().copied().collect();
        if hosts.is_empty() {
            hosts.push(manager_host());
        }
        // One that waits for the end of another's term does not listen.
        let mut link = Link::connect(&manager_addr(hosts[0]), &hello).await;
        for host in &hosts[1..] {
            if link.is_err() {
                link = Link::connect(&manager_addr(*host), &hello).await;
            }
        }
        let link = link.map_err(|e| e.to_string())?;
        let frame = link.call(Kind::Api, &weft_api::encode_request(request), vec![]).await;
        let frame = frame.map_err(|e| e.to_string())?;
        let reply: ApiReply = weft_api::decode_reply(&frame.body).map_err(|e| e.to_string())?;
        reply.into_result().map_err(|e| format!("{e:?}"))
    }

    /// The fabric map, from the manager.
    pub async fn map(&self) -> FabricMap {
        match self.api(ApiRequest::MapGet {}).await {
            ApiAnswer::Map { map } => *map,
            other => panic!("the answer to map-get is {other:?}"),
        }
    }

    /// Whether every replica is in-sync and no session is left but those of servers of shards.
    pub async fn is_whole(&self) -> Result<(), String> {
        let map = self.map().await;
        self.has_all_copies(&map)?;
        let is_of_server = |session: &&Session| {
            let listed = map.volumes.get(&session.volume);
            session.state == SessionState::Open && listed.is_some_and(|v| v.system_of().is_some())
        };
        match map.sessions.values().find(|session| !is_of_server(session)) {
            Some(session) => Err(format!("session {} of {} is left", session.id, session.client)),
            None => Ok(()),
        }
    }

    /// Whether every replica of this map is in-sync, on a drive that is in its place.
    pub fn has_all_copies(&self, map: &FabricMap) -> Result<(), String> {
        for group in map.groups.values() {
            if let Some(slot) = group.slots.iter().find(|s| s.role != Role::InSync) {
                let all: Vec<String> =
                    group.slots.iter().map(|s| format!("{} {}", s.drive, s.role)).collect();
                let relocation = map.relocations.get(&group.id);
                return Err(format!(
                    "group {} {}: {} is {} ({}; {relocation:?})",
                    group.id,
                    group.epoch,
                    slot.drive,
                    slot.role,
                    all.join(", ")
                ));
            }
        }
        if let Some((group, relocation)) = map.relocations.iter().next() {
            return Err(format!("group {group}: {} still passes to {}", relocation.from, relocation.to));
        }
        if let Some((n, at)) = self.to_replace.borrow().iter().find(|(n, _)| !self.nodes[*n].is_lost()) {
            return Err(format!("drive {at} of node {n} is to be replaced"));
        }
        // The manager may not have heard of it yet.
        let is_listed = |old: &DriveId| map.groups.values().any(|g| g.slot_of(*old).is_some());
        if let Some((old, _)) = self.replaced.borrow().iter().find(|(old, _)| is_listed(old)) {
            return Err(format!("{old} was replaced, and is still a member"));
        }
        let failed = |d: &DriveId| map.drives.get(d).is_some_and(|d| d.state == DriveState::Failed);
        let present = self.nodes.iter().filter(|n| !n.is_lost()).flat_map(|n| n.drives_now());
        if let Some(drive) = { present }.find(failed) {
            return Err(format!("{drive} is marked as failed"));
        }
        Ok(())
    }

    /// Flips a bit wherever a node's disks hold exactly this block, behind the process's back. Whether they
    /// did.
    pub fn rot(&self, n: usize, block: &[u8]) -> bool {
        let mut found = false;
        for disk in self.nodes[n].disks() {
            for offset in (0..disk.size_bytes()).step_by(block.len()) {
                if disk.peek(offset, block.len()) == block {
                    disk.flip(offset + random_below(block.len() as u64), random_below(8) as u8);
                    found = true;
                }
            }
        }
        found
    }

    /// Has the fabric scrub itself, and waits for the end. Its drives are sound and its software is to be, so
    /// nothing may be found.
    ///
    /// # Errors
    /// What it found, or that it does not end.
    pub async fn scrub_itself(&self) -> Result<(), String> {
        self.api(ApiRequest::ScrubStart { volumes: vec![] }).await;
        for _ in 0..1200 {
            match self.api(ApiRequest::ScrubStatus {}).await {
                ApiAnswer::Scrub(info) if !info.findings.is_empty() => {
                    return Err(format!("a scrub found {:?}", info.findings));
                }
                ApiAnswer::Scrub(info) if info.running.is_none() => return Ok(()),
                _ => sleep(Duration::from_millis(100)).await,
            }
        }
        Err("a scrub does not end".into())
    }

    /// Compares the replicas of every group, chunk by chunk.
    ///
    /// # Errors
    /// What differs.
    pub async fn scrub(&self) -> Result<u64, String> {
        let map = self.map().await;
        let mut chunks = 0;
        for group in map.groups.values() {
            let mut reference = None;
            for drive in group.read_set() {
                let store = self.store(drive).ok_or_else(|| format!("drive {drive} is not open"))?;
                let digests =
                    store.digests(group.id, None, usize::MAX).await.map_err(|e| format!("{drive}: {e}"))?;
                chunks += digests.len() as u64;
                match &reference {
                    None => reference = Some((drive, digests)),
                    Some((first, expected)) if *expected != digests => {
                        return Err(format!(
                            "group {}: {first} and {drive} differ:\n {expected:?}\n {digests:?}",
                            group.id
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(chunks)
    }

    /// The open store of a drive.
    pub fn store(&self, drive: DriveId) -> Option<Rc<Store>> {
        self.nodes.iter().flat_map(|n| n.stores.borrow().clone()).find(|store| store.label().drive == drive)
    }
}
