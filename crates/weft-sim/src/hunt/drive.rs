//! One drive without a fabric: writers, readers, groups that come and go, and one power cut after another. After
//! each, everything that was cited must be there, with the data that belongs to its version, and nothing damaged.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use weft_rt::sim::{self, Crash, SimDisk, spawn_process};
use weft_rt::sync::join_all;
use weft_rt::{BufMut, random_below, sleep, spawn};
use weft_store::{
    ExtentData, FormatOptions, OpenOptions, Payload, Store, StoreError, Verdict, Write, WriteKind, check,
};
use weft_types::{
    BLOCK_SIZE, BlockRange, DriveId, Epoch, FabricId, Group, GroupId, ObjectId, PoolId, Role, SessionSlot,
    Slot, Version, VolumeId,
};

const DRIVE: DriveId = DriveId(0xd1);
const GROUP: GroupId = GroupId(1);
const FLEETING: GroupId = GroupId(2);
const OBJECT: ObjectId = ObjectId::of_volume(VolumeId(1), 0);

/// Blocks that are read together in the end.
const LOOK_BLOCKS: u32 = 150;

/// How long a slow read takes: many writes, and checkpoints.
const LONG_READ: Duration = Duration::from_millis(6);

/// What is done to a drive beside cutting its power.
#[derive(Clone, Copy, Debug)]
pub struct Drive {
    /// How often its power is cut.
    pub cuts: u64,
    /// The longest time between two cuts, in milliseconds.
    pub life_ms: u64,
    /// Writers at once.
    pub writers: u16,
    /// How long an operation of the drive takes at most, in microseconds.
    pub latency_us: u64,
    /// Whether a bit of the log flips before it is opened again: then it must say so, or lose nothing.
    pub rot_log: bool,
    /// Whether its recovery is cut, too.
    pub cut_recovery: bool,
    /// Whether half of the cuts only kill the process: what it had written and not flushed stays in the
    /// drive's cache, until the power goes the next time.
    pub kills: bool,
    /// How often a writer takes a checkpoint: one time in so many.
    pub checkpoint_every: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// Whether some reads take long, and nothing else does.
    pub slow_reads: bool,
    /// Blocks that are written to. A few chunks' worth fill a page or two of the block map; with many, a
    /// checkpoint writes many pages, beside writes.
    pub blocks: u32,
    /// The memory of the store, in bytes; with little, checkpoints read the pages that they replace.
    pub ram_bytes: Option<u64>,
}

/// A drive that loses power often.
pub const CUT: Drive = Drive {
    cuts: 5,
    life_ms: 14,
    writers: 4,
    latency_us: 100,
    rot_log: false,
    cut_recovery: false,
    kills: false,
    checkpoint_every: 30,
    log_bytes: 128 << 10,
    slow_reads: false,
    blocks: 300,
    ram_bytes: None,
};

/// What is known of the drive.
#[derive(Default)]
struct Facts {
    /// What each version was to hold, by its counter: a seed, or zeroes.
    sent: BTreeMap<Version, Option<u64>>,
    /// The newest version that was cited of each block.
    cited: BTreeMap<u32, Version>,
    next: u64,
    epoch: u64,
    wrong: Option<String>,
}

type Shared = Rc<RefCell<Facts>>;

fn pattern(seed: u64, block: u32) -> Vec<u8> {
    let words =
        (0..BLOCK_SIZE as u64 / 8).flat_map(|i| (seed << 32 | u64::from(block) << 12 | i).to_le_bytes());
    words.collect()
}

fn entry(group: GroupId, epoch: u64) -> Group {
    let slots = vec![Slot { drive: DRIVE, role: Role::InSync, since: Epoch(1) }];
    Group { id: group, pool: PoolId(1), epoch: Epoch(epoch), slots, floor: Default::default() }
}

impl Drive {
    /// Runs it to its end.
    ///
    /// # Errors
    /// What is wrong.
    pub async fn run(self) -> Result<(), String> {
        // What is written twice has room as well.
        let size_bytes =
            (3 << 19) + 3 * u64::from(self.blocks.saturating_sub(CUT.blocks)) * BLOCK_SIZE as u64 / 2;
        let disk = SimDisk::new("d", size_bytes);
        let options = FormatOptions {
            allow_tiny: true,
            log_bytes: Some(self.log_bytes),
            ..FormatOptions::new(FabricId(0xfa), DRIVE)
        };
        Store::format(&disk.open().expect("nobody has it open"), options).await.map_err(|e| e.to_string())?;
        disk.set_faults(|f| f.latency.1 = Duration::from_micros(self.latency_us));
        let facts = Shared::default();
        for _ in 0..=self.cuts {
            if self.rot_log && self.rot(&disk, &facts).await? {
                return Ok(());
            }
            if self.cut_recovery {
                let used = disk.clone();
                let process = start(async move {
                    let _store = Store::open(used.open().expect("nobody has it open"), self.reusing()).await;
                    std::future::pending::<()>().await;
                });
                sleep(Duration::from_micros(random_below(3_000))).await;
                sim::kill(process, Crash::PowerCut);
            }
            // Now and then it goes straight on.
            if !self.kills && random_below(3) > 0 {
                self.verify(&disk, &facts).await?;
            }
            let (used, known) = (disk.clone(), facts.clone());
            let process = start(async move { self.live(used, known).await });
            sleep(Duration::from_micros(500 + random_below(self.life_ms * 1000))).await;
            let only_killed = self.kills && random_below(2) == 0;
            sim::kill(process, if only_killed { Crash::Process } else { Crash::PowerCut });
            if let Some(wrong) = facts.borrow_mut().wrong.take() {
                return Err(wrong);
            }
        }
        self.verify(&disk, &facts).await
    }

    /// Flips a bit of the log that is replayed next; whether the drive said that it is damaged.
    async fn rot(self, disk: &SimDisk, facts: &Shared) -> Result<bool, String> {
        if facts.borrow().cited.is_empty() || random_below(2) == 0 {
            return Ok(false);
        }
        // The log lies behind the fixed regions; a batch begins with this word. Not the last one: whether that is
        // torn or has rotted nobody can tell.
        let starts = (0..disk.size_bytes()).step_by(BLOCK_SIZE);
        let mut batches: Vec<(u64, u64)> = starts
            .filter(|at| disk.peek(*at, 4) == *b"WLOG")
            .map(|at| (u64::from_le_bytes(disk.peek(at + 24, 8).try_into().expect("eight bytes")), at))
            .collect();
        batches.sort();
        let recent: Vec<u64> = batches.iter().rev().skip(1).take(3).map(|(_, at)| *at).collect();
        let Some(at) = recent.get(random_below(recent.len().max(1) as u64) as usize) else {
            return Ok(false);
        };
        disk.flip(at + 40 + random_below(40), random_below(8) as u8);
        match Store::open(disk.open().expect("nobody has it open"), self.reusing()).await {
            Ok((store, _)) => {
                store.close().await.map_err(|e| e.to_string())?;
                Ok(false)
            }
            Err(StoreError::LogDamaged { .. }) => Ok(true),
            Err(error) => Err(format!("after rot in the log: {error}")),
        }
    }

    /// Opens the drive and looks at all of it.
    async fn verify(self, disk: &SimDisk, facts: &Shared) -> Result<(), String> {
        let drive = disk.open().expect("nobody has it open");
        let report = check(&drive, false).await.map_err(|e| format!("after a power cut: {e}"))?;
        if !report.is_clean() {
            return Err(format!("after a power cut, the check finds {:?}", report.findings));
        }
        drop(drive);
        let drive = disk.open().expect("nobody has it open");
        let opened = Store::open(drive, self.reusing()).await;
        let (store, _) = opened.map_err(|e| format!("after a power cut it does not open: {e}"))?;
        if store.group(GROUP).is_some() {
            for first in (0..self.blocks).step_by(LOOK_BLOCKS as usize) {
                let count = LOOK_BLOCKS.min(self.blocks - first);
                look(&store, facts, BlockRange::new(first, count), true).await;
            }
        } else if !facts.borrow().cited.is_empty() {
            return Err("after a power cut, the group is not there any more".into());
        }
        if store.group(FLEETING).is_none() {
            let epoch = facts.borrow_mut().next_epoch();
            store.set_group(entry(FLEETING, epoch)).await.map_err(|e| e.to_string())?;
            let found =
                store.versions(FLEETING, OBJECT, BlockRange::new(0, 260)).await.map_err(|e| e.to_string())?;
            if found.iter().any(|x| x.version != Version::ZERO) {
                return Err("a group that was dropped comes back with blocks after a power cut".into());
            }
        }
        let report = store.check(true).await.map_err(|e| e.to_string())?;
        if !report.is_clean() {
            return Err(format!(
                "after a power cut, the check of the open store finds {:?}",
                report.findings
            ));
        }
        store.close().await.map_err(|e| format!("it does not close: {e}"))?;
        drop(store);
        facts.borrow_mut().wrong.take().map_or(Ok(()), Err)
    }

    fn reusing(self) -> OpenOptions {
        OpenOptions { reuse_at_once: true, ram_budget_bytes: self.ram_bytes, ..Default::default() }
    }

    async fn live(self, disk: SimDisk, facts: Shared) {
        let opened = Store::open(disk.open().expect("nobody has it open"), self.reusing()).await;
        let store = match opened {
            Ok((store, _)) => store,
            Err(error) => return facts.borrow_mut().fail(format!("it does not open: {error}")),
        };
        let epoch = facts.borrow_mut().next_epoch();
        let _ = store.set_group(entry(GROUP, epoch)).await;
        let writers = (0..self.writers).map(|slot| {
            let (store, facts) = (store.clone(), facts.clone());
            spawn(async move { self.write_on(&store, &facts, SessionSlot(slot + 1)).await })
        });
        let readers = (0..2).map(|_| {
            let (store, facts, disk) = (store.clone(), facts.clone(), disk.clone());
            spawn(async move {
                loop {
                    let range = BlockRange::new(random_below(u64::from(self.blocks) - 20) as u32, 20);
                    let reading = pin!(look(&store, &facts, range, false));
                    match self.slow_reads {
                        true => self.begin_slowly(&disk, reading).await,
                        false => reading.await,
                    }
                    sleep(Duration::from_micros(random_below(400))).await;
                }
            })
        });
        let fleeting = {
            let (store, facts) = (store.clone(), facts.clone());
            spawn(async move { come_and_go(&store, &facts).await })
        };
        join_all(writers.chain(readers).chain([fleeting])).await;
    }

    /// Runs a read whose first operations take long.
    async fn begin_slowly(self, disk: &SimDisk, mut reading: Pin<&mut impl Future<Output = ()>>) {
        disk.set_faults(|f| f.latency = (LONG_READ, LONG_READ));
        let begun = poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await;
        disk.set_faults(|f| f.latency = (Duration::ZERO, Duration::from_micros(self.latency_us)));
        if begun.is_pending() {
            reading.await;
        }
    }

    async fn write_on(self, store: &Rc<Store>, facts: &Shared, slot: SessionSlot) {
        loop {
            sleep(Duration::from_micros(random_below(300))).await;
            if random_below(self.checkpoint_every) == 0 {
                let _ = store.checkpoint().await;
                continue;
            }
            let count = [1, 1, 2, 8][random_below(4) as usize];
            // Half of the writes meet in a few blocks.
            let least = if random_below(2) == 0 { 12 } else { u64::from(self.blocks) - count };
            let range = BlockRange::new(random_below(least) as u32, count as u32);
            let (version, seed) = {
                let mut f = facts.borrow_mut();
                f.next += 1;
                let seed = (random_below(5) > 0).then_some(f.next);
                let version = Version::new(10 + f.next / 2 + random_below(3), slot);
                if f.sent.contains_key(&version) {
                    continue;
                }
                f.sent.insert(version, seed);
                (version, seed)
            };
            let payload = seed.map_or(Payload::Zero, |seed| {
                let mut data = BufMut::aligned(range.bytes());
                for (block, bytes) in range.blocks().zip(data.chunks_mut(BLOCK_SIZE)) {
                    bytes.copy_from_slice(&pattern(seed, block));
                }
                let crcs = data.chunks(BLOCK_SIZE).map(weft_wire::crc32c).collect();
                Payload::Data { data: data.freeze(), crcs }
            });
            let kind = WriteKind::Client;
            let answer =
                store.write(Write { group: GROUP, object: OBJECT, range, version, kind, payload }).await;
            for (part, verdict) in answer.unwrap_or_default() {
                let newest = match verdict {
                    Verdict::Applied => version,
                    Verdict::Superseded { newest } => newest,
                };
                facts.borrow_mut().cite(part, newest);
            }
            if random_below(4) == 0 {
                let newest = facts.borrow().sent.keys().rfind(|v| v.slot() == slot).copied();
                newest.into_iter().for_each(|newest| store.advance(GROUP, slot, newest));
            }
        }
    }
}

fn start(work: impl Future<Output = ()> + 'static) -> sim::ProcessId {
    spawn_process(IpAddr::from([10, 0, 0, 1]), "drive", work)
}

impl Facts {
    fn fail(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    fn cite(&mut self, range: BlockRange, version: Version) {
        for block in range.blocks() {
            let cited = self.cited.entry(block).or_default();
            *cited = version.max(*cited);
        }
    }
}

/// Reads blocks: what they hold must be what belongs to their version, and no older than what was cited before.
async fn look(store: &Rc<Store>, facts: &Shared, range: BlockRange, is_alone: bool) {
    let before: Vec<Version> =
        range.blocks().map(|b| facts.borrow().cited.get(&b).copied().unwrap_or_default()).collect();
    let Ok(found) = store.read(GROUP, OBJECT, range).await else { return };
    let mut f = facts.borrow_mut();
    for x in found {
        for (i, block) in x.range.blocks().enumerate() {
            let old = before[(block - range.first) as usize];
            let when = if is_alone { "after a power cut" } else { "while it runs" };
            if x.version < old {
                f.fail(format!("{when}, block {block} is at {} although {old} was cited", x.version));
            }
            if x.version == Version::ZERO {
                continue;
            }
            let is_right = match (&x.data, f.sent.get(&x.version)) {
                (ExtentData::Data { buf, .. }, Some(Some(seed))) => {
                    buf[i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE] == pattern(*seed, block)[..]
                }
                (ExtentData::Zero, Some(None)) => true,
                (ExtentData::Damaged, _) => {
                    f.fail(format!("{when}, block {block} is damaged at {}", x.version));
                    true
                }
                _ => false,
            };
            if !is_right {
                f.fail(format!("{when}, block {block} does not hold what version {} wrote", x.version));
            }
        }
        f.cite(x.range, x.version);
    }
}

/// A group that comes, is written to, and is dropped. When it comes again it must be empty.
async fn come_and_go(store: &Rc<Store>, facts: &Shared) {
    let range = BlockRange::new(0, 260);
    loop {
        if store.group(FLEETING).is_none() {
            let epoch = facts.borrow_mut().next_epoch();
            if store.set_group(entry(FLEETING, epoch)).await.is_err() {
                return;
            }
            match store.versions(FLEETING, OBJECT, range).await {
                Ok(found) if found.iter().any(|x| x.version != Version::ZERO) => {
                    facts.borrow_mut().fail("a group that was dropped comes back with blocks".into());
                }
                _ => {}
            }
        }
        for first in [0, 128, 256] {
            let version = Version::new(100 + facts.borrow_mut().next_epoch(), SessionSlot(9));
            let part = BlockRange::new(first, 2);
            let (kind, payload) = (WriteKind::Client, Payload::Zero);
            let write = Write { group: FLEETING, object: OBJECT, range: part, version, kind, payload };
            let _ = store.write(write).await;
        }
        if store.drop_group(FLEETING).await.is_err() {
            return;
        }
    }
}
