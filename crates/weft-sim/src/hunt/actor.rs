//! Who acts in a script: clients on hosts of their own, whose ways can be cut one by one, and what a drive holds.

use super::crowd;
use super::stage::{Stage, chunk_block};
use crate::bed::STOP_PATIENCE;
use crate::clients::client_host;
use crate::manager_host;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_checker::{Value, fill_block};
use weft_client::{AttachMode, AttachOptions, Fabric, Volume};
use weft_rt::sim::{self, Crash, ProcessId};
use weft_rt::sync::join_all;
use weft_rt::{Buf, JoinHandle, random_below, sleep, spawn};
use weft_store::Store;
use weft_types::{BlockRange, Group, ObjectId, Role, Version};

/// A block that is not looked at, in the same group.
const ASIDE: u64 = 700;

/// Reads at once when one of them has to ask a certain member: of three members all miss it in one of 100 cases.
const READS_AT_ONCE: usize = 12;

/// A client on a host of its own.
pub struct Actor {
    name: &'static str,
    n: usize,
    /// The session.
    pub volume: Volume,
    stage: Rc<Stage>,
    /// Where its session lives.
    home: ProcessId,
}

/// A write that has begun.
pub struct Begun {
    /// What it writes.
    pub value: Value,
    /// Whether it has returned.
    pub done: Rc<Cell<bool>>,
    /// The process that waits for it.
    pub process: ProcessId,
}

impl Actor {
    /// A client that shares the volume with others.
    pub async fn enter(stage: &Rc<Stage>, n: usize, name: &'static str) -> Rc<Actor> {
        Actor::enter_as(stage, n, name, AttachMode::Shared).await
    }

    /// A client that has the volume for itself, and takes it away from whoever has it.
    pub async fn take(stage: &Rc<Stage>, n: usize, name: &'static str) -> Rc<Actor> {
        Actor::enter_as(stage, n, name, AttachMode::Exclusive).await
    }

    async fn enter_as(stage: &Rc<Stage>, n: usize, name: &'static str, mode: AttachMode) -> Rc<Actor> {
        let (sender, receiver) = weft_rt::sync::oneshot();
        let of_process = stage.clone();
        let home = sim::spawn_process(client_host(n), name, async move {
            let volume = match mode {
                AttachMode::Exclusive => take_alone(&of_process, name).await,
                _ => of_process.attach(name).await,
            };
            // So that it is connected to all before anything is cut.
            let _ = volume.write_zeroes(ASIDE * 4096, 4096).await;
            sender.send(volume);
            std::future::pending::<()>().await;
        });
        let volume = receiver.await.expect("it attaches");
        Rc::new(Actor { name, n, volume, stage: stage.clone(), home })
    }

    /// Begins a write on its own host.
    pub fn write(self: &Rc<Actor>, block: u64) -> Begun {
        self.write_by_clock(block, 1, 0)
    }

    /// Likewise, of so many blocks and while its clock is off by so many microseconds.
    pub fn write_by_clock(self: &Rc<Actor>, first: u64, count: u64, skew_us: i64) -> Begun {
        let history = self.stage.history.clone();
        let (mut data, mut calls, mut value) = (Vec::new(), Vec::new(), 0);
        for block in first..first + count {
            value = history.fresh_value();
            data.extend_from_slice(&fill_block(block, value));
            calls.push(history.begin_write(self.name, block, value));
        }
        sim::tell(|| format!("{} begins to write {value} to block {first}", self.name));
        let (this, done) = (self.clone(), Rc::new(Cell::new(false)));
        let ended = done.clone();
        let process = sim::spawn_process(client_host(self.n), self.name, async move {
            if this.volume.write(first * 4096, vec![Buf::from(data)]).await.is_ok() {
                calls.into_iter().for_each(|call| this.stage.history.end_write(call));
                sim::tell(|| format!("{} has written {value} to block {first}", this.name));
                ended.set(true);
            }
        });
        sim::set_wall_skew(process, skew_us);
        Begun { value, done, process }
    }

    /// Writes the first block of each of the first so many chunks, and waits until all is done.
    pub async fn write_chunks(self: &Rc<Actor>, chunks: u64) {
        let begun: Vec<Begun> = (0..chunks).map(|c| self.write(chunk_block(c))).collect();
        for write in begun {
            until(&write.done).await;
        }
        self.be_quiet().await;
    }

    /// Waits until what it has written is known as complete everywhere.
    pub async fn be_quiet(&self) {
        sleep(Duration::from_millis(5)).await;
    }

    /// Begins a read.
    pub fn read(self: &Rc<Actor>, block: u64) -> JoinHandle<Result<(), String>> {
        let this = self.clone();
        spawn(async move {
            let read = crowd::read(this.name, &this.stage, &this.volume, block, 1).await;
            read.map_err(|e| e.to_string())
        })
    }

    /// Reads a block again and again, one read after another, each for a while at most.
    pub async fn read_again(self: &Rc<Actor>, block: u64, times: usize) {
        for _ in 0..times {
            let _ = weft_rt::timeout(Duration::from_millis(300), self.read(block)).await;
        }
    }

    /// Begins so many reads of each block at once that every member it can reach is asked, and waits for a while.
    pub async fn read_now(self: &Rc<Actor>, blocks: impl Iterator<Item = u64>) {
        let reads = blocks.flat_map(|block| (0..READS_AT_ONCE).map(move |_| self.read(block)));
        let reads: Vec<_> = reads.collect();
        let _ = weft_rt::timeout(Duration::from_millis(40), join_all(reads)).await;
    }

    /// Cuts what it sends to a node, or opens the way.
    pub fn cut_to(&self, node: usize, blocked: bool) {
        sim::set_blocked(client_host(self.n), self.stage.host(node), blocked);
    }

    /// Lets so many of the messages through that it sends to a node it is cut off from, one at a time.
    pub async fn let_through(&self, node: usize, messages: usize) {
        for _ in 0..messages {
            self.cut_to(node, false);
            sleep(Duration::from_micros(1)).await;
            self.cut_to(node, true);
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Cuts what a node sends to it, or opens the way.
    pub fn cut_from(&self, node: usize, blocked: bool) {
        sim::set_blocked(self.stage.host(node), client_host(self.n), blocked);
    }

    /// Its connection to a node ends, with all that is on the way.
    pub fn lose_connection(&self, node: usize) {
        sim::reset_connections(client_host(self.n), self.stage.host(node));
    }

    /// Cuts it off from every node but this one.
    pub fn reach_only(&self, node: usize) {
        for n in 0..self.stage.bed.nodes.len() {
            self.stage.cut(client_host(self.n), self.stage.host(n), n != node);
        }
    }

    /// Cuts it off from the manager, or ends that.
    pub fn hear_of_nothing(&self, blocked: bool) {
        self.stage.cut(client_host(self.n), manager_host(), blocked);
    }

    /// It dies, and its session with it.
    pub fn die(&self, write: &Begun) {
        sim::kill(write.process, Crash::Process);
        sim::kill(self.home, Crash::Process);
    }
}

/// What most scripts begin with: three nodes, as many copies of each block as there are holders to be named, and a client
/// of each name.
pub async fn enter<const HOLDERS: usize, const CLIENTS: usize>(
    names: [&'static str; CLIENTS],
) -> (Rc<Stage>, [usize; HOLDERS], [Rc<Actor>; CLIENTS]) {
    enter_on(Stage::set(3, HOLDERS as u8).await, names).await
}

/// The nodes that hold copies of each block on a stage, and a client of each name.
pub async fn enter_on<const HOLDERS: usize, const CLIENTS: usize>(
    stage: Rc<Stage>,
    names: [&'static str; CLIENTS],
) -> (Rc<Stage>, [usize; HOLDERS], [Rc<Actor>; CLIENTS]) {
    let holders = stage.holders().await.try_into().expect("one for each copy");
    let mut clients = Vec::with_capacity(CLIENTS);
    for (n, name) in names.into_iter().enumerate() {
        clients.push(Actor::enter(&stage, n, name).await);
    }
    let Ok(clients) = clients.try_into() else { unreachable!("one for each name") };
    (stage, holders, clients)
}

/// Attaches the volume exclusively, and takes it away from whoever has it.
pub async fn take_alone(stage: &Rc<Stage>, name: &str) -> Volume {
    take_alone_of(stage, super::stage::VOLUME, name).await
}

/// Likewise, another volume.
pub async fn take_alone_of(stage: &Rc<Stage>, volume: &str, name: &str) -> Volume {
    loop {
        let attempt = async {
            let fabric = Fabric::connect(&stage.bed.managers(), name).await?;
            let mode = AttachMode::Exclusive;
            let options = AttachOptions {
                mode,
                preempt: true,
                io_timeout: Duration::from_secs(3600),
                ..Default::default()
            };
            fabric.attach(volume, options).await
        };
        match weft_rt::timeout(Duration::from_secs(20), attempt).await {
            Ok(Ok(volume)) => return volume,
            _ => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// The group and object of the volume's first blocks.
pub async fn place(stage: &Stage) -> (Group, ObjectId) {
    let map = stage.bed.map().await;
    let volume = map.volumes.values().next().expect("there is one");
    (map.groups[&volume.spans[0].groups[0]].clone(), ObjectId::of_volume(volume.id, 0))
}

/// The open store of a node's drive.
pub fn store(stage: &Stage, node: usize) -> Option<Rc<Store>> {
    stage.bed.nodes[node].stores().first().cloned()
}

/// Waits until a drive holds another version of a block than before; `false` if that takes too long.
pub async fn changes(stage: &Stage, node: usize, block: u64, before: Version) -> bool {
    for _ in 0..4_000 {
        if version(stage, node, block).await != before {
            return true;
        }
        sleep(Duration::from_micros(50)).await;
    }
    false
}

/// The version of a block on a node's drive.
pub async fn version(stage: &Stage, node: usize, block: u64) -> Version {
    let (group, object) = place(stage).await;
    let Some(store) = store(stage, node) else { return Default::default() };
    let found = store.versions(group.id, object, BlockRange::one(block as u32)).await;
    found.ok().and_then(|x| x.first().map(|x| x.version)).unwrap_or_default()
}

/// Waits until the fabric's map lists a node's drive in this role; `false` if that takes too long.
pub async fn becomes(stage: &Stage, node: usize, role: Role) -> bool {
    let drive = stage.bed.nodes[node].drives()[0];
    for _ in 0..4_000 {
        let (group, _) = place(stage).await;
        if group.slot_of(drive).is_some_and(|slot| slot.role == role) {
            return true;
        }
        sleep(Duration::from_millis(1)).await;
    }
    false
}

/// Waits until something is done; `false` if that takes too long.
pub async fn until(done: &Cell<bool>) -> bool {
    for _ in 0..4_000 {
        if done.get() {
            return true;
        }
        sleep(Duration::from_millis(1)).await;
    }
    false
}

/// Sets how long a node's disks take from now on.
pub fn slow(stage: &Stage, node: usize, latency: Duration) {
    for disk in stage.bed.nodes[node].disks() {
        disk.set_faults(|f| f.latency = (latency, latency + Duration::from_micros(100)));
    }
}

/// Makes a node's disks slow, begins something, and makes them fast again once an operation of theirs is under
/// way: that one takes its time.
pub async fn with_slow_operation<T>(
    stage: &Stage,
    node: usize,
    latency: Duration,
    begin: impl FnOnce() -> T,
) -> T {
    let disks = stage.bed.nodes[node].disks();
    let operations = || disks.iter().map(|d| d.operations()).sum::<u64>();
    slow(stage, node, latency);
    let before = operations();
    let begun = begin();
    for _ in 0..400 {
        if operations() > before {
            break;
        }
        sleep(Duration::from_micros(50)).await;
    }
    fast(stage, node);
    begun
}

/// Ends that.
pub fn fast(stage: &Stage, node: usize) {
    slow(stage, node, Duration::from_micros(20));
}

/// A process of a node dies, and the node is evicted.
pub async fn leave(stage: &Stage, node: usize) {
    stage.bed.kill_node(node, Crash::Process);
    becomes(stage, node, Role::Out).await;
}

/// A node starts again in order, with nothing in RAM.
pub async fn start_cold(stage: &Stage, node: usize) {
    stage.bed.stop_node(node, STOP_PATIENCE).await;
    start_and_wait(stage, node).await;
}

/// A node starts again with nothing in RAM, before anybody has missed it: it stays a member of its groups.
pub async fn start_unmissed(stage: &Stage, node: usize) {
    stage.bed.kill_node(node, Crash::Process);
    stage.bed.close_drives(node).await;
    start_and_wait(stage, node).await;
}

async fn start_and_wait(stage: &Stage, node: usize) {
    stage.bed.start_node(node);
    sleep(Duration::from_millis(30)).await;
    becomes(stage, node, Role::InSync).await;
}

/// Cuts a node off from the manager, or ends that.
pub fn cut_off(stage: &Stage, node: usize, blocked: bool) {
    stage.cut(stage.host(node), manager_host(), blocked);
}

/// So many milliseconds, to within what the seed says.
pub fn about_ms(least: u64, spread: u64) -> Duration {
    Duration::from_micros(least * 1000 + random_below(spread * 1000 + 1))
}
