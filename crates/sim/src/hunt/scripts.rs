//! Rare schedules, step by step: what random faults would find only after very many seeds.
//!
//! A step waits for what a drive holds, not for a time, wherever that is possible; what is left to the seed is how
//! messages and operations of drives interleave in between.

use super::crowd;
use super::stage::{Stage, chunk_block};
use crate::clients::client_host;
use crate::history::Value;
use crate::workload::fill_block;
use std::rc::Rc;
use std::time::Duration;
use weft_client::Volume;
use weft_rt::sim::{self, Crash, ProcessId};
use weft_rt::{Buf, JoinHandle, random_below, sleep, spawn};
use weft_store::Store;
use weft_types::{BlockRange, ChunkIndex, Group, ObjectId, Role};

/// A schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// A write's answer is lost, a reader repairs it while a newer write is halfway, the one replica that took the
    /// write is evicted, and the writer asks again.
    RepairRefused,
    /// A dying client's write reaches the in-sync member just after the block was copied, a reader settles it, and
    /// the syncing member is promoted.
    RepairWhileSyncing,
    /// Likewise, but the answer arrives.
    AnswerKept,
    /// A write is superseded by one that is not durable yet, and that is lost then.
    CiteLost,
    /// A write is admitted and waits for the drive, while a member comes back and copies the block.
    SlowAdmission,
    /// A write to a block that was never written reaches one replica, which is evicted; its client dies.
    DebrisOfAbsent,
}

impl Script {
    /// Runs it to its end.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn run(self) -> Result<(), String> {
        match self {
            Script::RepairRefused => repair_refused(true).await,
            Script::AnswerKept => repair_refused(false).await,
            Script::CiteLost => cite_lost().await,
            Script::SlowAdmission => slow_admission().await,
            Script::RepairWhileSyncing => repair_while_syncing().await,
            Script::DebrisOfAbsent => debris_of_absent().await,
        }
    }
}

/// A block that is not looked at, in the same group.
const ASIDE: u64 = 700;

/// A client on a host of its own.
struct Actor {
    name: &'static str,
    n: usize,
    volume: Volume,
    stage: Rc<Stage>,
}

impl Actor {
    async fn enter(stage: &Rc<Stage>, n: usize, name: &'static str) -> Rc<Actor> {
        let (sender, receiver) = weft_rt::sync::oneshot();
        let of_process = stage.clone();
        sim::spawn_process(client_host(n), name, async move {
            let volume = of_process.attach(name).await;
            // So that it is connected to all before anything is cut.
            let _ = volume.write_zeroes(ASIDE * 4096, 4096).await;
            sender.send(volume);
            std::future::pending::<()>().await;
        });
        let volume = receiver.await.expect("it attaches");
        Rc::new(Actor { name, n, volume, stage: stage.clone() })
    }

    /// Begins a write on its own host; returns its value and when it has ended.
    fn write(self: &Rc<Actor>, block: u64) -> (Value, Rc<std::cell::Cell<bool>>, ProcessId) {
        self.write_by_clock(block, 0)
    }

    /// Likewise, while its clock is off by so many microseconds.
    fn write_by_clock(
        self: &Rc<Actor>,
        block: u64,
        skew_us: i64,
    ) -> (Value, Rc<std::cell::Cell<bool>>, ProcessId) {
        let value = self.stage.history.fresh_value();
        let (this, done) = (self.clone(), Rc::new(std::cell::Cell::new(false)));
        let ended = done.clone();
        let call = self.stage.history.begin_write(self.name, block, value);
        let process = sim::spawn_process(client_host(self.n), self.name, async move {
            let data = vec![Buf::from(fill_block(block, value))];
            if this.volume.write(block * 4096, data).await.is_ok() {
                this.stage.history.end_write(call);
                ended.set(true);
            }
        });
        sim::set_wall_skew(process, skew_us);
        (value, done, process)
    }

    fn read(self: &Rc<Actor>, block: u64) -> JoinHandle<()> {
        let this = self.clone();
        spawn(async move {
            let _ = crowd::read(this.name, &this.stage, &this.volume, block, 1).await;
        })
    }

    /// Cuts what it sends to a node, or opens the way.
    fn cut_to(&self, node: usize, blocked: bool) {
        sim::set_blocked(client_host(self.n), self.stage.host(node), blocked);
    }

    /// Cuts what a node sends to it, or opens the way.
    fn cut_from(&self, node: usize, blocked: bool) {
        sim::set_blocked(self.stage.host(node), client_host(self.n), blocked);
    }
}

/// The group and object of the volume's first blocks.
async fn place(stage: &Stage) -> (Group, ObjectId) {
    let map = stage.bed.map().await;
    let volume = map.volumes.values().next().expect("there is one");
    (map.groups[&volume.spans[0].groups[0]].clone(), ObjectId::new(volume.id, 0))
}

fn store(stage: &Stage, node: usize) -> Option<Rc<Store>> {
    stage.bed.nodes[node].stores().first().cloned()
}

/// Waits until a drive holds another version of a block than before; `false` if that takes too long.
async fn changes(stage: &Stage, node: usize, block: u64, before: weft_types::Version) -> bool {
    for _ in 0..4_000 {
        if version(stage, node, block).await != before {
            return true;
        }
        sleep(Duration::from_micros(50)).await;
    }
    false
}

async fn version(stage: &Stage, node: usize, block: u64) -> weft_types::Version {
    let (group, object) = place(stage).await;
    let Some(store) = store(stage, node) else { return Default::default() };
    let found = store.versions(group.id, object, BlockRange::one(block as u32)).await;
    found.ok().and_then(|x| x.first().map(|x| x.version)).unwrap_or_default()
}

/// Waits until the fabric's map lists a node's drive in this role; `false` if that takes too long.
async fn becomes(stage: &Stage, node: usize, role: Role) -> bool {
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

async fn until(done: &std::cell::Cell<bool>) -> bool {
    for _ in 0..4_000 {
        if done.get() {
            return true;
        }
        sleep(Duration::from_millis(1)).await;
    }
    false
}

fn slow(stage: &Stage, node: usize, latency: Duration) {
    for disk in stage.bed.nodes[node].disks() {
        disk.set_faults(|f| f.latency = (latency, latency + Duration::from_micros(100)));
    }
}

async fn repair_refused(is_lost: bool) -> Result<(), String> {
    let stage = Stage::set(3, 3).await;
    let nodes = stage.holders().await;
    let (a, b, c) = (nodes[0], nodes[1], nodes[2]);
    let writer = Actor::enter(&stage, 0, "writer").await;
    let other = Actor::enter(&stage, 1, "other").await;
    let reader = Actor::enter(&stage, 2, "reader").await;
    until(&other.write(0).1).await;
    sleep(Duration::from_millis(5)).await;
    let before = version(&stage, c, 0).await;
    // The write reaches C alone, and C's answer is lost.
    [a, b].iter().for_each(|n| writer.cut_to(*n, true));
    writer.cut_from(c, is_lost);
    let (_, written, _) = writer.write(0);
    if !changes(&stage, c, 0, before).await {
        return Ok(());
    }
    sleep(Duration::from_millis(1)).await;
    // A reader finds it on C, whose drive takes long to read it; meanwhile a newer write reaches A and B.
    slow(&stage, c, Duration::from_millis(20));
    let reads: Vec<_> = (0..4).map(|_| reader.read(0)).collect();
    sleep(Duration::from_millis(22 + random_below(16))).await;
    other.cut_to(c, true);
    let (_, overwritten, _) = other.write(0);
    for read in reads {
        let _ = weft_rt::timeout(Duration::from_millis(200), read).await;
    }
    // C is evicted; the newer write is done, and is read; then the writer asks again.
    stage.bed.kill_node(c, Crash::Process);
    becomes(&stage, c, Role::Out).await;
    until(&overwritten).await;
    for _ in 0..3 {
        let _ = weft_rt::timeout(Duration::from_millis(200), reader.read(0)).await;
    }
    [a, b].iter().for_each(|n| writer.cut_to(*n, false));
    until(&written).await;
    stage.heal();
    stage.finish_with_sessions().await
}

async fn cite_lost() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let nodes = stage.holders().await;
    let (a, b) = (nodes[0], nodes[1]);
    let behind = Actor::enter(&stage, 0, "behind").await;
    let ahead = Actor::enter(&stage, 1, "ahead").await;
    let reader = Actor::enter(&stage, 2, "reader").await;
    until(&reader.write(0).1).await;
    sleep(Duration::from_millis(600)).await;
    // A newer write is on its way into B's drive, and nowhere else.
    slow(&stage, b, Duration::from_millis(40));
    ahead.cut_to(a, true);
    let (_, _, newer) = ahead.write(0);
    sleep(Duration::from_millis(3)).await;
    // An older one meets it there.
    let (_, written, older) = behind.write_by_clock(0, -300_000);
    sleep(Duration::from_millis(5 + random_below(10))).await;
    sim::kill(newer, Crash::Process);
    stage.bed.kill_node(b, Crash::PowerCut);
    slow(&stage, b, Duration::from_micros(20));
    sleep(Duration::from_millis(1)).await;
    if !written.get() {
        sim::kill(older, Crash::Process);
    }
    stage.bed.start_node(b);
    for _ in 0..30 {
        let _ = weft_rt::timeout(Duration::from_millis(20), reader.read(0)).await;
    }
    stage.heal();
    stage.finish_with_sessions().await
}

async fn slow_admission() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let nodes = stage.holders().await;
    let (a, b) = (nodes[0], nodes[1]);
    let writer = Actor::enter(&stage, 0, "writer").await;
    let reader = Actor::enter(&stage, 1, "reader").await;
    until(&writer.write(0).1).await;
    stage.bed.kill_node(b, Crash::Process);
    becomes(&stage, b, Role::Out).await;
    until(&writer.write(0).1).await;
    // A has to read the block's entry anew, and the writer hears of nothing.
    stage.restart(a, Duration::from_millis(1)).await;
    stage.cut(client_host(0), crate::manager_host(), true);
    for _ in 0..2_000 {
        if writer.volume.read(4096 * 600, 4096).await.is_ok() {
            break;
        }
    }
    slow(&stage, a, Duration::from_millis(500));
    let (_, written, _) = writer.write(0);
    sleep(Duration::from_millis(2)).await;
    slow(&stage, a, Duration::from_micros(20));
    // Meanwhile B comes back, and copies the block from A.
    stage.bed.start_node(b);
    becomes(&stage, b, Role::InSync).await;
    until(&written).await;
    for _ in 0..12 {
        let _ = weft_rt::timeout(Duration::from_millis(300), reader.read(0)).await;
    }
    stage.heal();
    stage.finish_with_sessions().await
}

async fn repair_while_syncing() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let nodes = stage.holders().await;
    let (a, b) = (nodes[0], nodes[1]);
    let writer = Actor::enter(&stage, 0, "writer").await;
    let reader = Actor::enter(&stage, 1, "reader").await;
    for chunk in 0..16 {
        until(&reader.write(chunk_block(chunk)).1).await;
    }
    stage.bed.kill_node(b, Crash::Process);
    becomes(&stage, b, Role::Out).await;
    for chunk in 0..16 {
        until(&reader.write(chunk_block(chunk)).1).await;
    }
    slow(&stage, b, Duration::from_millis(4));
    stage.bed.start_node(b);
    let (group, object) = place(&stage).await;
    let mut is_copied = false;
    for _ in 0..20_000 {
        let held = store(&stage, b);
        let stint = held.as_ref().and_then(|s| s.verify_state(group.id)).and_then(|s| s.stint);
        if stint.is_some() && held.is_some_and(|s| s.chunk_is_verified(group.id, object, ChunkIndex(0))) {
            is_copied = true;
            break;
        }
        sleep(Duration::from_micros(200)).await;
    }
    let (now, _) = place(&stage).await;
    let drive = stage.bed.nodes[b].drives()[0];
    if !is_copied || now.slot_of(drive).is_none_or(|s| s.role != Role::Syncing) {
        return Ok(());
    }
    // The dying client's write reaches the in-sync member alone.
    let before = version(&stage, a, 0).await;
    writer.cut_to(b, true);
    let (_, _, process) = writer.write(0);
    changes(&stage, a, 0, before).await;
    sim::kill(process, Crash::Process);
    for _ in 0..3 {
        let _ = weft_rt::timeout(Duration::from_millis(300), reader.read(0)).await;
    }
    slow(&stage, b, Duration::from_micros(20));
    becomes(&stage, b, Role::InSync).await;
    for _ in 0..12 {
        let _ = weft_rt::timeout(Duration::from_millis(300), reader.read(0)).await;
    }
    stage.heal();
    stage.finish_with_sessions().await
}

async fn debris_of_absent() -> Result<(), String> {
    let stage = Stage::set(3, 2).await;
    let nodes = stage.holders().await;
    let (a, c) = (nodes[0], nodes[1]);
    let writer = Actor::enter(&stage, 0, "writer").await;
    let reader = Actor::enter(&stage, 1, "reader").await;
    until(&reader.write(3).1).await;
    writer.cut_to(a, true);
    let before = version(&stage, c, 0).await;
    let (_, _, process) = writer.write(0);
    changes(&stage, c, 0, before).await;
    sim::kill(process, Crash::Process);
    stage.bed.kill_node(c, Crash::Process);
    becomes(&stage, c, Role::Out).await;
    for _ in 0..3 {
        let _ = weft_rt::timeout(Duration::from_millis(300), reader.read(0)).await;
    }
    stage.heal();
    becomes(&stage, c, Role::InSync).await;
    for _ in 0..12 {
        let _ = weft_rt::timeout(Duration::from_millis(300), reader.read(0)).await;
    }
    stage.finish_with_sessions().await
}
