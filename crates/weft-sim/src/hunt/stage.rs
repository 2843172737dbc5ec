//! What every hunt stands on: a fabric with short leases and one volume, a history, and the judgement at the
//! end.

use super::crowd;
use crate::bed::{Bed, BedShape, USUAL_SLOWNESS, manager_host};
use crate::workload;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_api::FailureDomain;
use weft_checker::History;
use weft_client::{AttachMode, Volume};
use weft_rpc::Link;
use weft_rt::sim::{self, Crash};
use weft_rt::{now, random_below, sleep, spawn};
use weft_types::{DriveId, Durations, Role, limits::CHUNK_BLOCKS};
use weft_wire::Kind;
use weft_wire::control::{self, ManagerRequest};
use weft_wire::handshake::{Hello, PeerRole};

/// Drives, and so threads, of a node that is split.
const SPLIT_DRIVES: usize = 2;

/// Groups that the volume of a split fabric is striped over: each target has some.
const SPLIT_WIDTH: u32 = 4;

/// The name of the volume.
pub const VOLUME: &str = "prey";

/// How long an operation of a sound drive takes at most.
pub const DISK_LATENCY_HIGH: Duration = Duration::from_micros(100);

/// After how long the log of a drive says of a batch that it is durable: a later batch does, or an empty one
/// once the store has been idle for 10 ms, and it takes the drive a few operations.
const DURABLE_SAYS_LOG_AFTER: Duration = Duration::from_millis(12);

/// Virtual time within which operations end once everything is healed: a few connection attempts.
const OPERATIONS_END_WITHIN: Duration = Duration::from_secs(6);

/// Virtual time within which a healed fabric is whole: some hundred leases.
const WHOLE_WITHIN: Duration = Duration::from_secs(40);

/// A fabric, its volume, and what is known of it.
pub struct Stage {
    /// The fabric.
    pub bed: Rc<Bed>,
    /// What clients did.
    pub history: History,
    copies: u8,
    /// Operations that have begun and not ended.
    under_way: Cell<u64>,
    /// No more begin.
    is_closing: Cell<bool>,
}

/// An operation that has begun, until it ends or its client dies.
pub struct UnderWay(Rc<Stage>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

impl Stage {
    /// A fabric of so many nodes with a drive each.
    pub async fn set(nodes: usize, copies: u8) -> Rc<Stage> {
        Stage::set_with(nodes, copies, 100, 10).await
    }

    /// Likewise, with leases of so many milliseconds, and clocks whose rates may differ by so many parts of a
    /// thousand.
    pub async fn set_with(nodes: usize, copies: u8, lease_ms: u32, drift_per_mille: u32) -> Rc<Stage> {
        Stage::set_as(shape(nodes, copies, lease_ms, drift_per_mille), false).await
    }

    /// Likewise, with sessions that end after so many milliseconds of silence.
    pub async fn set_with_sessions(nodes: usize, copies: u8, session_ms: u32) -> Rc<Stage> {
        let mut shape = shape(nodes, copies, 100, 10);
        shape.durations.session_ms = session_ms;
        Stage::set_as(shape, false).await
    }

    /// Likewise, where two managers may share the store.
    pub async fn set_shared(nodes: usize, copies: u8) -> Rc<Stage> {
        Stage::set_as(shape(nodes, copies, 100, 10), true).await
    }

    /// A fabric in which floors rise so often.
    pub async fn set_forgetting(nodes: usize, copies: u8, every: Duration) -> Rc<Stage> {
        Stage::on(Bed::start_forgetting(shape(nodes, copies, 100, 10), every).await).await
    }

    /// A fabric of so many nodes with two drives, and a thread with a host of its own for each. The volume's
    /// copies are on different devices, or on different nodes, and it is striped over several groups.
    pub async fn set_split(nodes: usize, copies: u8, domain: FailureDomain) -> Rc<Stage> {
        let shape = BedShape { drives: SPLIT_DRIVES, ..shape(nodes, copies, 100, 10) };
        let bed = Bed::start_split(shape).await;
        bed.create_volume_apart(VOLUME, copies, SPLIT_WIDTH, domain).await;
        Stage::over(bed)
    }

    /// One fabric of this shape, and a volume whose copies are on different devices, striped over several
    /// groups.
    pub async fn set_on_devices(shape: BedShape) -> Rc<Stage> {
        let bed = Bed::start(shape).await;
        let copies = bed.shape.copies;
        bed.create_volume_apart(VOLUME, copies, SPLIT_WIDTH, FailureDomain::Device).await;
        Stage::over(bed)
    }

    async fn set_as(shape: BedShape, has_second_manager: bool) -> Rc<Stage> {
        Stage::on(Bed::start_with(shape, BTreeMap::new(), has_second_manager).await).await
    }

    async fn on(bed: Rc<Bed>) -> Rc<Stage> {
        let copies = bed.shape.copies;
        bed.create_volume(VOLUME, copies, 1).await;
        Stage::over(bed)
    }

    fn over(bed: Rc<Bed>) -> Rc<Stage> {
        let copies = bed.shape.copies;
        let history = History::default();
        Rc::new(Stage { bed, history, copies, under_way: Cell::new(0), is_closing: Cell::new(false) })
    }

    /// An operation begins, unless it is time to end: then this never does.
    pub async fn begin_operation(self: &Rc<Stage>) -> UnderWay {
        if self.is_closing.get() {
            std::future::pending::<()>().await;
        }
        self.under_way.set(self.under_way.get() + 1);
        UnderWay(self.clone())
    }

    /// Lets no more operations begin, and waits for those that have.
    ///
    /// # Errors
    /// If one does not end although nothing is in its way.
    pub async fn await_operations(&self) -> Result<(), String> {
        self.is_closing.set(true);
        let from = now();
        while self.under_way.get() > 0 {
            if now() - from > OPERATIONS_END_WITHIN {
                let left = self.under_way.get();
                return Err(format!(
                    "{left} operations do not end, {OPERATIONS_END_WITHIN:?} after everything healed"
                ));
            }
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// A node's disks are slow for a while.
    pub async fn be_slow(&self, node: usize, latency: Duration, lasts: Duration) {
        let disks = self.bed.nodes[node].disks();
        disks.iter().for_each(|d| d.set_faults(|f| f.latency.1 = latency.max(DISK_LATENCY_HIGH)));
        sleep(lasts).await;
        disks.iter().for_each(|d| d.set_faults(|f| f.latency.1 = DISK_LATENCY_HIGH));
    }

    /// The host of a node.
    pub fn host(&self, node: usize) -> IpAddr {
        self.bed.nodes[node].host
    }

    /// The volume, shared with others.
    pub async fn attach(&self, name: &str) -> Volume {
        workload::attach(&self.bed.managers(), VOLUME, name, AttachMode::Shared).await
    }

    /// The drives that hold the first blocks of the volume, in the order of their group.
    pub async fn write_set(&self) -> Vec<DriveId> {
        let map = self.bed.map().await;
        let volume = map.volumes.values().find(|v| v.name == VOLUME).expect("it was made");
        map.groups[&volume.spans[0].groups[0]].slots.iter().map(|slot| slot.drive).collect()
    }

    /// The nodes of these drives, as the fabric began.
    pub async fn holders(&self) -> Vec<usize> {
        let node_of = |drive| self.bed.nodes.iter().position(|n| n.drives().contains(&drive));
        self.write_set().await.into_iter().filter_map(node_of).collect()
    }

    /// The node of a drive, and its place there.
    ///
    /// # Panics
    /// If it is in none.
    pub fn place_of(&self, drive: DriveId) -> (usize, usize) {
        self.bed.place_of(drive).expect("it is in its place")
    }

    /// Cuts a node's power, or kills it, and starts it again after a while.
    pub async fn restart(&self, node: usize, after: Duration) {
        let crash = if random_below(3) == 0 { Crash::Process } else { Crash::PowerCut };
        self.bed.kill_node(node, crash);
        sleep(after).await;
        self.bed.start_node(node);
    }

    /// Cuts all nodes' power at once.
    pub async fn blackout(&self) {
        let all = 0..self.bed.nodes.len();
        all.clone().for_each(|n| self.bed.kill_node(n, Crash::PowerCut));
        sleep(Duration::from_millis(random_below(8))).await;
        all.for_each(|n| self.bed.start_node(n));
    }

    /// Cuts both ways between two hosts, or opens them.
    pub fn cut(&self, a: IpAddr, b: IpAddr, blocked: bool) {
        sim::set_blocked(a, b, blocked);
        sim::set_blocked(b, a, blocked);
    }

    /// A node is cut off from the manager and, perhaps, from other nodes, but not from clients.
    pub async fn isolate(&self, node: usize, lasts: Duration) {
        let own = self.host(node);
        let mut others = vec![manager_host()];
        others.extend(
            (0..self.bed.nodes.len()).filter(|n| *n != node && random_below(3) > 0).map(|n| self.host(n)),
        );
        let ways = [(true, true), (true, false), (false, true)][random_below(3) as usize];
        for other in &others {
            sim::set_blocked(own, *other, ways.0);
            sim::set_blocked(*other, own, ways.1);
        }
        sleep(lasts).await;
        others.iter().for_each(|other| self.cut(own, *other, false));
    }

    /// Tells the manager again and again, for a while, that a node does not answer, as clients and targets
    /// do.
    pub fn complain_of(self: &Rc<Stage>, node: usize) {
        let stage = self.clone();
        spawn(async move {
            let map = stage.bed.map().await;
            let drive = stage.bed.nodes[node].drives()[0];
            let request = ManagerRequest::Suspect { target: map.drives[&drive].target };
            for _ in 0..40 {
                let hello = Hello::new(PeerRole::Client, None, "complainer");
                if let Ok(link) = Link::connect(&stage.bed.managers()[0], &hello).await {
                    let _ = link.call(Kind::Manage, &control::encode(&request), vec![]).await;
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
    }

    /// Flips a bit of the newest data of a block on a node's disks, and cuts the node's power once the log
    /// says of that data that it was durable: before, it cannot be told from data that never arrived.
    pub async fn rot_something(&self, node: usize) {
        let newest = self.history.fresh_value();
        for value in (newest.saturating_sub(40)..newest).rev() {
            if self.bed.rot(node, &weft_checker::fill_block(0, value)) {
                break;
            }
        }
        sleep(DURABLE_SAYS_LOG_AFTER).await;
        self.bed.kill_node(node, Crash::PowerCut);
        sleep(Duration::from_millis(1)).await;
        self.bed.start_node(node);
    }

    /// One node is cut off, or its process dies, for less than so many milliseconds: two times in so many
    /// calls. Then all copies are there again: of two copies one always is.
    pub async fn trouble_a_node(&self, lasts_ms: u64, kinds: u64) {
        let node = random_below(self.bed.nodes.len() as u64) as usize;
        let lasts = Duration::from_millis(random_below(lasts_ms));
        match random_below(kinds) {
            0 => self.isolate(node, lasts).await,
            1 => {
                self.bed.kill_node(node, Crash::Process);
                sleep(lasts).await;
                self.bed.start_node(node);
            }
            _ => sleep(lasts).await,
        }
        while self.bed.has_all_copies(&self.bed.map().await).is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends every fault.
    pub fn heal(&self) {
        sim::heal_network();
        self.bed.map_store().set_slowness(USUAL_SLOWNESS);
        self.bed.start_manager();
        for n in 0..self.bed.nodes.len() {
            self.bed.start_node(n);
            let disks = self.bed.nodes[n].disks();
            disks.iter().for_each(|d| d.set_faults(|f| *f = Default::default()));
        }
    }

    /// The end: the fabric becomes whole, every block is read, replicas are equal, no drive is damaged, and
    /// the history of every block is that of one atomic register.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn finish(&self) -> Result<(), String> {
        self.finish_despite(false).await
    }

    /// Likewise; where blocks have rotted, a scrub may find them.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn finish_despite(&self, rot: bool) -> Result<(), String> {
        self.become_whole().await?;
        let reader = self.attach("reader").await;
        for _ in 0..self.copies {
            for block in self.history.blocks() {
                let read = crowd::read("reader", self, &reader, block, 1).await;
                read.map_err(|e| e.to_string())?;
            }
        }
        reader.detach().await;
        self.become_whole().await?;
        if !rot {
            self.bed.scrub_itself().await?;
        }
        self.bed.scrub().await?;
        self.history.check().map_err(|v| v.to_string())
    }

    /// Likewise, while sessions are still open: what they have not finished is not looked at.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn finish_with_sessions(&self) -> Result<(), String> {
        self.become_whole_but_for_sessions().await?;
        let reader = self.attach("last").await;
        for _ in 0..2 * self.copies {
            for block in self.history.blocks() {
                let read = crowd::read("last", self, &reader, block, 1).await;
                read.map_err(|e| e.to_string())?;
            }
        }
        reader.detach().await;
        self.history.check().map_err(|v| v.to_string())
    }

    /// Waits until every replica is in-sync.
    ///
    /// # Errors
    /// What still is in the way after a long time.
    pub async fn become_whole_but_for_sessions(&self) -> Result<(), String> {
        let from = now();
        loop {
            let map = self.bed.map().await;
            let mut slots = map.groups.values().flat_map(|g| &g.slots);
            if slots.all(|slot| slot.role == Role::InSync) {
                return Ok(());
            }
            if now() - from > WHOLE_WITHIN {
                return Err(format!("copies are missing {WHOLE_WITHIN:?} after everything healed"));
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until every replica is in-sync and every session swept.
    ///
    /// # Errors
    /// What still is in the way after a long time.
    pub async fn become_whole(&self) -> Result<(), String> {
        let from = now();
        loop {
            match self.bed.is_whole().await {
                Ok(()) => return Ok(()),
                Err(why) if now() - from > WHOLE_WITHIN => {
                    return Err(format!("not whole {WHOLE_WITHIN:?} after everything healed: {why}"));
                }
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

pub(super) fn shape(nodes: usize, copies: u8, lease_ms: u32, drift_per_mille: u32) -> BedShape {
    let durations = Durations { lease_ms, drift_per_mille, session_ms: 1_200, rebuild_after_ms: 3_600_000 };
    BedShape { nodes, drives: 1, parts: 1, targets: 1, drive_bytes: 64 << 20, copies, durations }
}

/// A block in every so many chunks: each is another chunk of the resync.
pub fn chunk_block(chunk: u64) -> u64 {
    chunk * u64::from(CHUNK_BLOCKS)
}
