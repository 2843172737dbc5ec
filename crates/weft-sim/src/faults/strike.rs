//! How each fault strikes, and how it ends by itself.

use super::guard::destroys;
use super::mend::usual_latency;
use super::{Fault, Guard, Planned, RESTART_PATIENCE, Who};
use crate::bed::{Bed, USUAL_SLOWNESS};
use crate::check::sessions::SessionsCheck;
use crate::filler;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;
use weft_api::ApiRequest;
use weft_checker::fill_block;
use weft_manager::Slowness;
use weft_rt::sim::{self, Crash, DiskFaults, ProcessId, SimDisk};
use weft_rt::sync::{Either, race};
use weft_rt::{Instant, now, random_below, sleep, sleep_until, spawn};
use weft_store::{ExtentData, RegionMap, Store};
use weft_types::{BLOCK_SIZE, BlockRange, ChunkIndex, DriveId, DriveState, GroupId, ObjectId, Role};

/// How often it is looked whether rot is healed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// After how many looks somebody asks for a scrub again.
const LOOKS_PER_SCRUB: u32 = 15;

/// A fault that has struck.
#[derive(Clone, Debug)]
pub struct Struck {
    /// The name of its kind.
    pub name: &'static str,
    /// When.
    pub from: Instant,
    /// When it was over, or is expected to be.
    pub to: Instant,
}

/// How often a fault that was put off is tried again.
const AGAIN_EVERY: Duration = Duration::from_millis(100);

/// How long after the last fault one that was put off may still strike: until nothing that went before can
/// evict anybody any more (`guard.rs`), and the copies that are missing have been made.
const PUT_OFF_MAX: Duration = Duration::from_secs(12);

/// Of so many times that a node of several threads stands still, one thread does alone in all but one.
const STALLS_ALONE_OF: usize = 3;

/// How long a store is waited for whose drive may be stuck.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// Batches after which one of before is named as durable: each names those that were so when it was made.
const LATER_BATCHES: u64 = 3;

/// A play of faults.
struct Play<'a> {
    bed: &'a Rc<Bed>,
    guard: &'a Rc<Guard>,
    clients: &'a [ProcessId],
    sessions: &'a SessionsCheck,
    struck: Vec<Struck>,
}

/// Lets everything go wrong in turn; says what has struck, and how many faults were spared. What destroys a
/// copy that cannot be spared at that time is put off until it can. What ends by itself ends in the
/// background; heal afterwards.
pub async fn play(
    bed: &Rc<Bed>,
    guard: &Rc<Guard>,
    planned: &[Planned],
    clients: &[ProcessId],
    sessions: &SessionsCheck,
) -> (Vec<Struck>, usize) {
    let began = now();
    let mut play = Play { bed, guard, clients, sessions, struck: Vec::new() };
    let (mut put_off, mut spared) = (Vec::new(), 0);
    for planned in planned {
        let at = began + planned.at;
        play.again(&mut put_off, at).await;
        sleep_until(at).await;
        if play.strike(planned).await {
            continue;
        }
        let may_come = !destroys(bed, &planned.fault).is_empty();
        sim::tell(|| format!("fault {} is {}", planned.number, if may_come { "put off" } else { "spared" }));
        match may_come {
            true => put_off.push(planned),
            false => spared += 1,
        }
    }
    play.again(&mut put_off, now() + PUT_OFF_MAX).await;
    (play.struck, spared + put_off.len())
}

impl Play<'_> {
    /// Lets what was put off strike as soon as it may, until all has struck or this instant has come.
    async fn again(&mut self, put_off: &mut Vec<&Planned>, until: Instant) {
        while !put_off.is_empty() && now() + AGAIN_EVERY < until {
            sleep(AGAIN_EVERY).await;
            for planned in std::mem::take(put_off) {
                if !self.strike(planned).await {
                    put_off.push(planned);
                }
            }
        }
    }

    async fn strike(&mut self, Planned { number, fault, .. }: &Planned) -> bool {
        if !self.guard.allows(self.bed, fault) || !strike(self.bed, self.guard, fault, self.clients).await {
            return false;
        }
        sim::tell(|| format!("fault {number}: {fault:?}"));
        match fault {
            Fault::Stall { who: Who::Client(n), lasts } => {
                self.sessions.note_unheard(Some(format!("client-{}", n + 1)), *lasts);
            }
            // A message of before may arrive so late after the end.
            Fault::Delay { latency, lasts } => self.sessions.note_unheard(None, *lasts + *latency),
            _ => {}
        }
        self.struck.push(Struck { name: fault.name(), from: now(), to: now() + fault.lasts() });
        true
    }
}

/// Runs something later, in the harness.
fn after(delay: Duration, act: impl FnOnce() + 'static) {
    spawn(async move {
        sleep(delay).await;
        act();
    });
}

async fn strike(bed: &Rc<Bed>, guard: &Rc<Guard>, fault: &Fault, clients: &[ProcessId]) -> bool {
    let this = bed.clone();
    match fault.clone() {
        Fault::Crash { node, crash, away } => {
            bed.kill_node(node, crash);
            after(away, move || this.start_node(node));
        }
        Fault::Stop { node, patience, away } => {
            if !bed.is_running(node) {
                return false;
            }
            spawn(async move {
                this.stop_node(node, patience).await;
                sleep(away).await;
                this.start_node(node);
            });
        }
        Fault::Blackout { manager, nodes } => {
            bed.kill_manager();
            (0..nodes.len()).for_each(|n| bed.kill_node(n, Crash::PowerCut));
            for (n, away) in nodes.into_iter().enumerate() {
                let this = bed.clone();
                after(away, move || this.start_node(n));
            }
            after(manager, move || this.start_manager());
        }
        Fault::Manager { away } => {
            bed.kill_manager();
            after(away, move || this.start_manager());
        }
        Fault::SecondManager {} => return bed.start_second_manager(),
        Fault::SlowStore { latency, unanswered_per_mille, late, lasts } => {
            let slowness = Slowness { latency: (Duration::ZERO, latency), unanswered_per_mille, late };
            bed.map_store().set_slowness(slowness);
            after(lasts, move || this.map_store().set_slowness(USUAL_SLOWNESS));
        }
        Fault::Partition { from, to, both, lasts } => cut(from, to, (true, both), lasts),
        Fault::ClientCut { client, node, to, from, lasts } => cut(client, node, (to, from), lasts),
        Fault::Flap { from, to, both, period, times } => {
            spawn(async move {
                for _ in 0..times {
                    sim::set_blocked(from, to, true);
                    sim::set_blocked(to, from, both);
                    sleep(period).await;
                    sim::set_blocked(from, to, false);
                    sim::set_blocked(to, from, false);
                    sleep(period).await;
                }
            });
        }
        Fault::Reset { a, b } => sim::reset_connections(a, b),
        Fault::Delay { latency, lasts } => {
            sim::set_latency(Duration::from_micros(5), latency);
            after(lasts, usual_latency);
        }
        Fault::Stall { who, lasts } => {
            let stalled = who_stalls(bed, who, clients);
            stalled.iter().for_each(|process| sim::pause(*process));
            let is_somebody = !stalled.is_empty();
            after(lasts, move || stalled.into_iter().for_each(sim::resume));
            return is_somebody;
        }
        Fault::Client { client } => {
            if !sim::is_alive(clients[client]) {
                return false;
            }
            // Its lanes die with it.
            threads_of(clients[client]).into_iter().for_each(|thread| sim::kill(thread, Crash::Process));
        }
        Fault::ClockStep { host, skew_us } => {
            bed.set_clock(host, skew_us);
            if clients.iter().any(|c| sim::host_of(*c) == Some(host)) {
                sim::processes_on(host).into_iter().for_each(|c| sim::set_wall_skew(c, skew_us));
            }
        }
        Fault::SlowDrive { node, drive, latency, lasts } => {
            let device = bed.nodes[node].device_disks(drive);
            set_faults(&device, |f| f.latency = (Duration::from_micros(5), latency));
            after(lasts, move || set_faults(&device, |f| f.latency = DiskFaults::default().latency));
        }
        Fault::StuckDrive { node, drive, lasts } => {
            let device = bed.nodes[node].device_disks(drive);
            set_faults(&device, |f| f.stuck = true);
            after(lasts, move || set_faults(&device, |f| f.stuck = false));
        }
        Fault::HungDrive { node, drive, lasts } => hang(this, node, drive, lasts),
        Fault::MissingDrive { node, drive, in_order, away, lasts } => {
            if !bed.is_running(node) || !bed.nodes[node].has_drive(drive) {
                return false;
            }
            spawn(async move {
                match in_order {
                    true => this.stop_node(node, RESTART_PATIENCE).await,
                    false => this.kill_node(node, Crash::PowerCut),
                }
                this.nodes[node].pull(drive);
                sleep(away).await;
                this.start_node(node);
                sleep(lasts).await;
                bring_back(&this, node, drive).await;
            });
        }
        Fault::PulledDrive { node, drive, lasts } => {
            if !bed.is_running(node) || !bed.nodes[node].has_drive(drive) {
                return false;
            }
            bed.nodes[node].pull(drive);
            spawn(async move {
                sleep(lasts).await;
                bring_back(&this, node, drive).await;
            });
        }
        Fault::DriveError { node, drive, lasts } => {
            let device = bed.nodes[node].device_disks(drive);
            set_faults(&device, |f| f.write_error = Some(std::io::ErrorKind::Other));
            bed.nodes[node].set_device_unsound(drive);
            after(lasts, move || {
                set_faults(&device, |f| f.write_error = None);
                this.kill_node(node, Crash::Process);
                this.start_node(node);
            });
        }
        Fault::Unreadable { node, drive, scrub_after } => {
            return rot(bed, guard, (node, drive), scrub_after, true).await;
        }
        Fault::Rot { node, drive, scrub_after } => {
            return rot(bed, guard, (node, drive), scrub_after, false).await;
        }
        Fault::RotInMetadata { node, drive, pick, away } => {
            let victim = bed.nodes[node].drive_at(drive);
            if !bed.is_running(node) {
                return false;
            }
            let Some(place) = metadata_place(bed, node, drive, pick) else { return false };
            // For good: nothing heals a store's own structures, and so the drive is replaced in the end.
            if guard.begin_rot(bed, victim).is_none() {
                return false;
            }
            guard.note_metadata();
            bed.nodes[node].set_unsound(drive);
            bed.nodes[node].disks()[drive].flip(place + pick % BLOCK_SIZE as u64, (pick >> 16) as u8);
            sim::tell(|| format!("a bit flips in block {} of {victim}", place / BLOCK_SIZE as u64));
            bed.wants_replacement(node, drive);
            bed.kill_node(node, Crash::PowerCut);
            after(away, move || this.start_node(node));
        }
        Fault::Replace { node, drive, away } => {
            guard.note_destroyed(&destroys(bed, fault));
            bed.kill_node(node, Crash::PowerCut);
            bed.put_empty_device(node, drive).await;
            after(away, move || this.start_node(node));
        }
        Fault::Loss { node } => {
            guard.note_destroyed(&destroys(bed, fault));
            bed.kill_node(node, Crash::PowerCut);
            bed.nodes[node].lose();
        }
        Fault::Evacuate { node, drive, cancel_after } => {
            spawn(async move {
                this.evacuate(node, drive, false).await;
                if let Some(after) = cancel_after {
                    sleep(after).await;
                    this.evacuate(node, drive, true).await;
                }
            });
        }
        Fault::Full { lasts } => drop(spawn(filler::fill(this, lasts))),
    }
    true
}

/// The processes that stand still together.
fn who_stalls(bed: &Bed, who: Who, clients: &[ProcessId]) -> Vec<ProcessId> {
    match who {
        Who::Node(node) => threads_that_stall(bed.nodes[node].threads()),
        Who::Manager => bed.manager_process().into_iter().collect(),
        Who::Client(client) => {
            clients.get(client).map_or_else(Vec::new, |client| threads_that_stall(threads_of(*client)))
        }
    }
}

/// The threads of a client that lives: its first lane, and the others.
fn threads_of(client: ProcessId) -> Vec<ProcessId> {
    sim::host_of(client).map_or_else(Vec::new, sim::processes_on)
}

/// One thread of a node or a client stands still alone, or all do. The choice follows from what has happened
/// so far.
fn threads_that_stall(threads: Vec<ProcessId>) -> Vec<ProcessId> {
    let hash = sim::trace_hash() as usize;
    match hash % STALLS_ALONE_OF {
        0 => threads,
        _ => threads.get(hash / STALLS_ALONE_OF % threads.len().max(1)).copied().into_iter().collect(),
    }
}

/// Does the same to all disks of a device.
fn set_faults(device: &[SimDisk], change: impl Fn(&mut DiskFaults)) {
    device.iter().for_each(|disk| disk.set_faults(&change));
}

/// A drive completes nothing for a while, and then everything; later somebody has its node start again.
fn hang(bed: Rc<Bed>, node: usize, drive: usize, lasts: Duration) {
    let device = bed.nodes[node].device_disks(drive);
    set_faults(&device, |f| f.stuck = true);
    bed.nodes[node].set_device_unsound(drive);
    after(lasts, move || {
        // Late completions come first.
        set_faults(&device, |f| f.stuck = false);
        after(RESTART_PATIENCE, move || {
            bed.kill_node(node, Crash::Process);
            bed.start_node(node);
        });
    });
}

/// Cuts the way from one host to another, and the way back, each where it is to be, and opens both after a
/// while.
fn cut(a: IpAddr, b: IpAddr, (there, back): (bool, bool), lasts: Duration) {
    sim::set_blocked(a, b, there);
    sim::set_blocked(b, a, back);
    spawn(async move {
        sleep(lasts).await;
        sim::set_blocked(a, b, false);
        sim::set_blocked(b, a, false);
    });
}

/// Puts a drive back that was away, has its node start again so that it is found, and tells the fabric that
/// it is sound, as people do. Nothing, if somebody has done so, or has put another one in its place.
async fn bring_back(bed: &Rc<Bed>, node: usize, drive: usize) {
    if !bed.nodes[node].put_back(drive) {
        return;
    }
    bed.stop_node(node, RESTART_PATIENCE).await;
    bed.start_node(node);
    for id in bed.nodes[node].device_drives(drive) {
        in_time(is_served(bed, id)).await;
        if bed.truth().drives.get(&id).is_some_and(|drive| drive.state == DriveState::Failed) {
            bed.ask(ApiRequest::DriveRestore { id: id.to_string(), device: false, dry_run: false }).await;
        }
    }
}

/// Completes when a drive's node has opened it.
async fn is_served(bed: &Bed, drive: DriveId) {
    while bed.store(drive).is_none() {
        sleep(LOOK_EVERY).await;
    }
}

/// A block of data that two drives hold in the same version, settled.
struct Cold {
    group: GroupId,
    object: ObjectId,
    block: u32,
    bytes: Vec<u8>,
}

/// Damages a block on a drive that another one holds as well, and asks for a scrub some time later.
async fn rot(
    bed: &Rc<Bed>,
    guard: &Rc<Guard>,
    (node, drive): (usize, usize),
    scrub_after: Duration,
    is_unreadable: bool,
) -> bool {
    let victim = bed.nodes[node].drive_at(drive);
    let (disk, bed) = (bed.nodes[node].disks()[drive].clone(), bed.clone());
    let Some(cold) = in_time(cold_block(&bed, victim)).await.flatten() else { return false };
    if in_time(is_behind(&bed, victim, &cold)).await != Some(true) {
        return false;
    }
    let Some(number) = guard.begin_rot(&bed, victim) else { return false };
    let places: Vec<u64> =
        disk.touched().into_iter().filter(|at| disk.peek(*at, BLOCK_SIZE) == cold.bytes).collect();
    for at in places {
        if is_unreadable {
            disk.set_faults(|f| f.unreadable.push(at..at + BLOCK_SIZE as u64));
        } else {
            disk.flip(at + random_below(BLOCK_SIZE as u64), random_below(8) as u8);
        }
    }
    sim::tell(|| format!("block {} of {} in group {} rots on {victim}", cold.block, cold.object, cold.group));
    let guard = guard.clone();
    spawn(async move {
        sleep(scrub_after).await;
        for look in 0.. {
            if look % LOOKS_PER_SCRUB == 0 {
                let _ = bed.try_api(&ApiRequest::ScrubStart { volumes: vec![] }).await;
            }
            if is_healed(&bed, victim, &cold).await {
                break;
            }
            sleep(LOOK_EVERY).await;
        }
        sim::tell(|| format!("what rotted on {victim} is healed, or holds nothing any more"));
        guard.end_rot(number, victim);
    });
    true
}

/// Waits until the drive's log says that a block was durable, and says whether the block is there still. Rot
/// in the newest batch cannot be told from a write that never arrived: a drive that is opened then drops it, and has
/// missed a write that was complete.
async fn is_behind(bed: &Bed, victim: DriveId, cold: &Cold) -> bool {
    let Some(store) = bed.store(victim) else { return false };
    let (from, block) = (store.usage(), BlockRange::one(cold.block));
    loop {
        let usage = store.usage();
        if usage.batches >= from.batches + LATER_BATCHES || usage.checkpoints > from.checkpoints {
            break;
        }
        sleep(LOOK_EVERY).await;
    }
    let Ok(extents) = store.read(cold.group, cold.object, block).await else { return false };
    matches!(&extents[..], [x] if matches!(&x.data, ExtentData::Data { buf, .. } if buf[..] == cold.bytes[..]))
}

async fn is_healed(bed: &Rc<Bed>, victim: DriveId, cold: &Cold) -> bool {
    let map = bed.truth();
    match map.groups.get(&cold.group).and_then(|group| group.slot_of(victim)) {
        // Another drive has its place, with a copy made anew.
        None => return true,
        // It comes back with what was not written meanwhile.
        Some(slot) if slot.role != Role::InSync => return false,
        Some(_) => {}
    }
    let Some(store) = bed.store(victim) else { return false };
    match in_time(store.read(cold.group, cold.object, BlockRange::one(cold.block))).await {
        Some(Ok(extents)) => extents.iter().all(|x| !matches!(x.data, ExtentData::Damaged)),
        Some(Err(_)) | None => false,
    }
}

/// What a store answers; none if that takes long: a drive that is stuck answers late, and the store of a
/// process that dies meanwhile never does.
async fn in_time<T>(answer: impl Future<Output = T>) -> Option<T> {
    match race(answer, sleep(ANSWER_PATIENCE)).await {
        Either::Left(answer) => Some(answer),
        Either::Right(()) => None,
    }
}

/// A random block of data of a drive that a good in-sync drive beside it holds in the same version.
async fn cold_block(bed: &Rc<Bed>, victim: DriveId) -> Option<Cold> {
    let map = bed.truth();
    let own = bed.store(victim)?;
    let mut found = Vec::new();
    for group in map.groups.values().filter(|g| g.read_set().any(|d| d == victim)) {
        let others: Vec<Rc<Store>> =
            group.read_set().filter(|d| *d != victim).filter_map(|d| bed.store(d)).collect();
        let Some(other) = others.first() else { continue };
        let chunks = own.digests(group.id, None, 16).await.ok()?;
        for (object, chunk, _) in chunks {
            let (ours, theirs) =
                (held(&own, group.id, object, chunk).await, held(other, group.id, object, chunk).await);
            let both = ours.into_iter().filter(|(block, version)| theirs.contains(&(*block, *version)));
            found.extend(both.map(|(block, _)| (group.id, object, block)));
        }
    }
    if found.is_empty() {
        return None;
    }
    let (group, object, block) = found[random_below(found.len() as u64) as usize];
    let extents = own.read(group, object, BlockRange::one(block)).await.ok()?;
    match &extents[..] {
        [x] => match &x.data {
            ExtentData::Data { buf, .. } => Some(Cold { group, object, block, bytes: buf.to_vec() }),
            _ => None,
        },
        _ => None,
    }
}

/// The blocks of a chunk that hold data of versions that are not open.
async fn held(
    store: &Store,
    group: GroupId,
    object: ObjectId,
    chunk: ChunkIndex,
) -> Vec<(u32, weft_types::Version)> {
    let extents = store.versions(group, object, chunk.range()).await.unwrap_or_default();
    let data = extents.iter().filter(|x| !x.open && matches!(x.data, ExtentData::Data { .. }));
    data.flat_map(|x| x.range.blocks().map(|block| (block, x.version))).collect()
}

/// A block with structures of the store, in bytes from the start. Not of the log and not a superblock: rot in
/// the newest of those cannot be told from a write that never arrived.
fn metadata_place(bed: &Bed, node: usize, drive: usize, pick: u64) -> Option<u64> {
    let disk = &bed.nodes[node].disks()[drive];
    let region = bed.store(bed.nodes[node].drive_at(drive))?.label().region;
    let is_structure = |at: &u64| {
        let block = at / BLOCK_SIZE as u64;
        let superblocks = RegionMap::SUPERBLOCK.0..RegionMap::SUPERBLOCK.0 + 2;
        let log = region.log_first..region.log_first + region.log_blocks;
        if superblocks.contains(&block) || log.contains(&block) {
            return false;
        }
        block < region.data_first || !is_data(&disk.peek(*at, BLOCK_SIZE))
    };
    let places: Vec<u64> = disk.touched().into_iter().filter(is_structure).collect();
    (!places.is_empty()).then(|| places[(pick % places.len() as u64) as usize])
}

/// Whether a block is one that a client wrote.
fn is_data(bytes: &[u8]) -> bool {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    bytes == &fill_block(word(8), word(0))[..]
}
