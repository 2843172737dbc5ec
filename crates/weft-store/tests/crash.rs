//! Power cuts at every drive operation: whatever was acknowledged is there, whatever was not is old or new,
//! nothing is torn, no space is lost. The workload wraps the log, takes checkpoints, discards, fills the
//! drive, and commits many writers together.

use crate::model;

use model::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use weft_rt::sim::{Crash, Sim, SimDisk, kill, spawn_process};
use weft_rt::sync::{Either, race};
use weft_rt::{random_below, spawn};
use weft_store::*;
use weft_types::*;

const GROUP: GroupId = GroupId(1);
const SYNCING: GroupId = GroupId(2);
const COPIED: ObjectId = ObjectId::of_volume(VolumeId(9), 1);
const WRITERS: u16 = 4;
const OBJECTS: u64 = 5;
const BLOCKS: u32 = 300;

/// What every drive must show after a crash.
#[derive(Default)]
struct Expected {
    /// Per block everything that was ever sent: version to content (`None`: zeroes).
    sent: BTreeMap<(u64, u32), BTreeMap<Version, Option<u64>>>,
    /// Per block the newest version that an answer has cited.
    cited: BTreeMap<(u64, u32), Version>,
    /// Writes that were answered `Applied`, and the watermarks that were sent.
    applied: Vec<(u64, BlockRange, Version)>,
    watermarks: BTreeMap<SessionSlot, Version>,
    generation: u64,
    /// Copies of a chunk in the syncing group: the newest sent, and the newest acknowledged.
    copied: (u64, u64),
    full: u32,
    next: u64,
    /// Figures of the last run that ended in order.
    usage: Usage,
}

type Shared = Rc<RefCell<Expected>>;

async fn writer(store: Rc<Store>, expected: Shared, slot: SessionSlot, rounds: u32) {
    for _ in 0..rounds {
        match random_below(40) {
            0 => store.checkpoint().await.unwrap(),
            1 => {
                let next = { expected.borrow().generation + 1 };
                store.set_generation(VolumeId(1), Generation(next)).await.unwrap();
                let mut e = expected.borrow_mut();
                e.generation = e.generation.max(next);
            }
            2..4 if slot == SessionSlot(1) => one_copy(&store, &expected).await,
            4 => weft_rt::sleep(std::time::Duration::from_millis(random_below(15))).await,
            _ => one_write(&store, &expected, slot).await,
        }
    }
}

/// Replaces blocks 10 to 33 of a chunk of the syncing group by those of a newer version.
async fn one_copy(store: &Rc<Store>, expected: &Shared) {
    let next = {
        let mut e = expected.borrow_mut();
        e.copied.0 += 1;
        e.copied.0
    };
    let Payload::Data { data, crcs } = fill(next, 24) else { unreachable!() };
    let range = BlockRange::new(10, 24);
    let source =
        CopyEntry { range, version: Version::from_bits(next), data: CopyData::Data { buf: data, crcs } };
    match store.verify_chunk(SYNCING, COPIED, ChunkIndex(0), Epoch(2), vec![source], false).await {
        Ok(()) => expected.borrow_mut().copied.1 = next,
        Err(StoreError::NoSpace { .. }) => expected.borrow_mut().full += 1,
        Err(error) => panic!("{error}"),
    }
}

/// The chunk is one copy as a whole, and at least the one that was acknowledged last.
async fn check_copy(store: &Rc<Store>, expected: &Shared) {
    let (sent, acknowledged) = expected.borrow().copied;
    let found = store.read(SYNCING, COPIED, ChunkIndex(0).range()).await.unwrap();
    let held = found.iter().find(|x| x.version != Version::ZERO);
    let version = held.map_or(0, |x| x.version.to_bits());
    assert!(version >= acknowledged && version <= sent, "{acknowledged} <= {version} <= {sent}");
    for extent in found {
        let is_copied = extent.range.first >= 10 && extent.range.end() <= 34;
        let wanted = if version > 0 && is_copied { (version, Some(version)) } else { (0, None) };
        assert_eq!((extent.version.to_bits(), seed_of(&extent)), wanted, "{}", extent.range);
    }
    assert!(acknowledged == 0 || store.chunk_is_verified(SYNCING, COPIED, ChunkIndex(0)));
}

async fn one_write(store: &Rc<Store>, expected: &Shared, slot: SessionSlot) {
    let object = random_below(OBJECTS);
    let count = [1, 1, 1, 3, 8, 40][random_below(6) as usize];
    let range = BlockRange::new(random_below(u64::from(BLOCKS - count)) as u32, count);
    let is_zero = random_below(5) == 0;
    let (version, seed) = {
        let mut e = expected.borrow_mut();
        e.next += 1;
        let seed = e.next;
        // Counters of different sessions interleave and collide, as clients' do.
        let version = Version::new(10 + seed / 2 + random_below(3), slot);
        let held = e.watermarks.get(&slot).copied().unwrap_or(Version::ZERO);
        if version <= held || e.sent.values().any(|v| v.contains_key(&version)) {
            return;
        }
        let content = (!is_zero).then_some(seed);
        for block in range.blocks() {
            e.sent.entry((object, block)).or_default().insert(version, content);
        }
        (version, seed)
    };
    let payload = if is_zero { Payload::Zero } else { fill(seed, count) };
    let mut write = client(ObjectId::of_volume(VolumeId(1), object), range, 0, payload);
    write.version = version;
    write.kind = if random_below(8) == 0 { WriteKind::Repair } else { WriteKind::Client };
    let verdicts = match store.write(write).await {
        Ok(verdicts) => verdicts,
        Err(StoreError::NoSpace { .. }) => {
            expected.borrow_mut().full += 1;
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let mut e = expected.borrow_mut();
    let mut at = range.first;
    for (part, verdict) in verdicts {
        assert_eq!(part.first, at);
        at = part.end();
        let newest = match verdict {
            Verdict::Applied => version,
            Verdict::Superseded { newest } => newest,
        };
        for block in part.blocks() {
            let cited = e.cited.entry((object, block)).or_insert(newest);
            *cited = newest.max(*cited);
        }
        if verdict == Verdict::Applied {
            e.applied.push((object, part, version));
        }
    }
    assert_eq!(at, range.end());
    if random_below(6) == 0 {
        e.watermarks.insert(slot, version);
        drop(e);
        store.advance(GROUP, slot, version);
    }
}

async fn workload(disk: SimDisk, expected: Shared, rounds: u32) {
    let store = if random_below(2) == 0 { open(&disk).await } else { open_reusing(&disk).await };
    for group in [entry(1, 1, Role::InSync, 1), entry(2, 2, Role::Syncing, 2)] {
        store.set_group(group).await.unwrap();
    }
    let writers: Vec<_> = (1..=WRITERS)
        .map(|slot| spawn(writer(store.clone(), expected.clone(), SessionSlot(slot), rounds)))
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    expected.borrow_mut().usage = store.usage();
    store.close().await.unwrap();
}

/// Everything that was acknowledged is there, and the drive is in good order.
async fn verify(disk: &SimDisk, expected: &Shared) -> OpenReport {
    let before = check(&disk.open().unwrap(), false).await.unwrap();
    assert!(before.is_clean(), "{before:#?}");
    let (store, report) = Store::open(disk.open().unwrap(), OpenOptions::default()).await.unwrap();
    if store.groups().len() < 2 {
        assert!(expected.borrow().cited.is_empty());
        store.close().await.unwrap();
        return report;
    }
    assert!(store.generation(VolumeId(1)).0 >= expected.borrow().generation);
    for object in 0..OBJECTS {
        for part in [BlockRange::new(0, 150), BlockRange::new(150, 150)] {
            let found = store.read(GROUP, ObjectId::of_volume(VolumeId(1), object), part).await.unwrap();
            let mut at = part.first;
            for extent in found {
                assert_eq!(extent.range.first, at);
                at = extent.range.end();
                check_extent(object, &extent, &expected.borrow());
            }
            assert_eq!(at, part.end());
        }
    }
    check_open_sets(&store, expected).await;
    check_copy(&store, expected).await;
    clean(&store, 0).await;
    store.close().await.unwrap();
    report
}

fn check_extent(object: u64, extent: &Extent, expected: &Expected) {
    for block in extent.range.blocks() {
        let name = (object, block);
        let cited = expected.cited.get(&name).copied().unwrap_or(Version::ZERO);
        assert!(extent.version >= cited, "{name:?}: {} was cited, {} is held", cited, extent.version);
        let content = match &extent.data {
            ExtentData::Zero => None,
            ExtentData::Data { buf, .. } => {
                let at = (block - extent.range.first) as usize * BLOCK_SIZE;
                Some(seed_of_block(&buf[at..at + BLOCK_SIZE]))
            }
            ExtentData::Damaged => panic!("{name:?} is damaged"),
        };
        if extent.version != Version::ZERO {
            let sent = expected.sent.get(&name).and_then(|v| v.get(&extent.version));
            assert_eq!(sent, Some(&content), "{name:?} at {}", extent.version);
        } else {
            assert_eq!(content, None);
        }
    }
}

/// What was applied is in the open set as long as no watermark has passed it: asked again, it is applied.
async fn check_open_sets(store: &Rc<Store>, expected: &Shared) {
    let applied = expected.borrow().applied.clone();
    for (object, range, version) in applied {
        let mark = expected.borrow().watermarks.get(&version.slot()).copied().unwrap_or(Version::ZERO);
        if version <= mark {
            continue;
        }
        let entries = store.open_entries_of(GROUP, version.slot());
        for block in range.blocks() {
            assert!(
                entries
                    .iter()
                    .any(|e| e.version == version && e.object.index() == object && e.range.contains(block)),
                "{version} of {object}/{block} was applied and is not in the open set"
            );
        }
    }
}

/// Runs the workload in a process that ends with the cut, if one strikes, and restores the power.
async fn run_until_cut(disk: &SimDisk, expected: &Shared, rounds: u32, crash: Crash) {
    let done = Rc::new(weft_rt::sync::Notify::default());
    let (used, model, told) = (disk.clone(), expected.clone(), done.clone());
    let process = spawn_process(IpAddr::from([10, 0, 0, 1]), "store", async move {
        workload(used, model, rounds).await;
        told.notify_all();
        std::future::pending::<()>().await;
    });
    race(disk.cut(), done.notified()).await;
    kill(process, crash);
    disk.restore_power();
}

/// Runs the workload, cuts the power after so many operations (or kills the process), verifies, and
/// sometimes crashes the recovery too. Returns how many operations there were and whether the cut struck.
fn crash_at(seed: u64, cut: Option<u64>, crash: Crash) -> (u64, bool, (u32, Usage)) {
    Sim::new(seed).block_on(async move {
        let disk = SimDisk::new("d", 5 << 19);
        let expected = Shared::default();
        let small = FormatOptions { allow_tiny: true, log_bytes: Some(256 << 10), ..options() };
        format(&disk, small).await.unwrap();
        let began = disk.operations();
        if let Some(n) = cut {
            disk.cut_power_after(n);
        }
        run_until_cut(&disk, &expected, 70, crash).await;
        let operations = disk.operations() - began;
        let struck = cut.is_some_and(|n| operations > n);
        if let Some(n) = cut.filter(|n| n % 2 == 0) {
            // The recovery crashes as well, or the work that follows it does.
            disk.cut_power_after(random_below(40));
            run_until_cut(&disk, &expected, 10 + n as u32 % 10, Crash::PowerCut).await;
        }
        verify(&disk, &expected).await;
        let seen = (expected.borrow().full, expected.borrow().usage);
        // Life goes on after the crash.
        if cut.is_some_and(|n| n % 5 == 0) {
            workload(disk.clone(), expected.clone(), 6).await;
            let report = verify(&disk, &expected).await;
            assert!(report.was_clean);
        }
        (operations, struck, seen)
    })
}

#[test]
fn a_power_cut_at_every_operation_loses_nothing_that_was_acknowledged() {
    let (operations, struck, (full, usage)) = crash_at(1, None, Crash::PowerCut);
    assert!(!struck && operations > 200, "{struck} {operations}");
    assert!(full > 0, "the drive was never full");
    assert!(usage.checkpoints > 5 && usage.log_bytes_written > usage.log_capacity_bytes, "{usage:?}");
    assert!(usage.batches < 70 * 4 * 2 / 3, "writers share batches: {usage:?}");
    let mut cuts = 0;
    for n in 0..operations {
        cuts += u64::from(crash_at(1, Some(n), Crash::PowerCut).1);
    }
    assert_eq!(cuts, operations, "every cut struck");
}

/// A write that never arrived, at a place that cannot be read at the first start and can be at the second: the block is
/// what it was, wherever the power went again in between, or at that write's version once the first start has settled it.
#[test]
fn a_doubt_that_two_starts_see_differently_costs_no_older_data() {
    Sim::new(9).block_on(async {
        let disk = SimDisk::new("d", 8 << 20);
        let store = new_store(&disk).await;
        let (object, range) = (ObjectId::of_volume(VolumeId(1), 0), BlockRange::new(0, 8));
        store.write(client(object, range, 4, fill(1, 8))).await.unwrap();
        store.checkpoint().await.unwrap();
        store.write(client(object, range, 5, fill(2, 8))).await.unwrap();
        drop(store);
        weft_rt::sleep(std::time::Duration::from_millis(50)).await;
        let lost = find_block(&disk, &pattern(2, 0));
        for block in 0..8 {
            disk.flip(lost + block * BLOCK_SIZE as u64, 3);
        }
        let mut stepped_back = 0;
        for operations in 0.. {
            let first = disk.copy("first start");
            let unreadable = lost..lost + 8 * BLOCK_SIZE as u64;
            first.set_faults(|f| f.unreadable.push(unreadable));
            first.cut_power_after(operations);
            let options = OpenOptions { reuse_at_once: true, ..Default::default() };
            let (drive, started) = (first.open().unwrap(), first.clone());
            let is_settled = match race(Store::open(drive, options), started.cut()).await {
                Either::Left(opened) => opened.is_ok(),
                Either::Right(()) => false,
            };
            let store = open(&first.copy("second start")).await;
            for extent in store.read(GROUP, object, range).await.unwrap() {
                match extent.version == version(4) {
                    true => assert_eq!(seed_of(&extent), Some(1), "after {operations} operations"),
                    false => {
                        assert!(extent.version == version(5) && matches!(extent.data, ExtentData::Damaged))
                    }
                }
                stepped_back += u32::from(extent.version == version(4));
            }
            if is_settled {
                assert!(stepped_back > 0 && operations > 3);
                return;
            }
        }
    });
}

#[test]
fn other_schedules_lose_nothing_either() {
    for seed in 2..40 {
        for step in 0..8 {
            crash_at(seed, Some(seed * 13 + step * 41), Crash::PowerCut);
        }
    }
}

#[test]
fn a_killed_process_loses_nothing_even_if_the_power_goes_later() {
    for seed in 100..130 {
        for step in 0..5 {
            crash_at(seed, Some(seed % 50 + step * 60), Crash::Process);
        }
    }
}

/// What a killed process wrote and did not flush is found by the next one, and only the drive's volatile
/// cache has it: a checkpoint's superblock, or a marker behind a checkpoint. What rests on it must not
/// outlive it.
#[test]
fn what_only_the_cache_holds_is_flushed_before_anything_rests_on_it() {
    for seed in 0..400 {
        Sim::new(7_000 + seed).block_on(async move {
            let disk = SimDisk::new("d", 5 << 19);
            let (object, range) = (ObjectId::of_volume(VolumeId(1), 0), BlockRange::new(0, 8));
            new_store(&disk).await.close().await.unwrap();
            // The process is killed in the middle of a checkpoint, beside which it is long enough idle for
            // a marker.
            let used = disk.clone();
            let process = spawn_process(IpAddr::from([10, 0, 0, 1]), "first", async move {
                let store = open_reusing(&used).await;
                store.write(client(object, range, 3, fill(1, 8))).await.unwrap();
                store.checkpoint().await.unwrap();
                store.write(client(object, range, 4, fill(2, 8))).await.unwrap();
                used.set_faults(|f| f.latency = (ms(2), ms(6)));
                used.cut_power_after(random_below(16));
                store.checkpoint().await.unwrap();
                std::future::pending::<()>().await;
            });
            race(disk.cut(), weft_rt::sleep(ms(1_000))).await;
            weft_rt::sleep(ms(10)).await;
            kill(process, Crash::Process);
            disk.restore_power();
            disk.set_faults(|f| f.latency = (ms(0), ms(1)));
            // The next one begins to write, and then the power goes.
            let (used, cut) = (disk.clone(), random_below(12));
            let process = spawn_process(IpAddr::from([10, 0, 0, 1]), "second", async move {
                let store = open_reusing(&used).await;
                used.cut_power_after(cut);
                // At once, so that they take every place that is free in one batch.
                let others = (1..200).map(|i| ObjectId::of_volume(VolumeId(1), i));
                let writes = others.map(|other| store.write(client(other, range, 5, fill(3, 8))));
                weft_rt::sync::join_all(writes).await;
            });
            race(disk.cut(), weft_rt::sleep(ms(1_000))).await;
            weft_rt::sleep(ms(random_below(3))).await;
            kill(process, Crash::PowerCut);
            disk.restore_power();
            let opened = Store::open(disk.open().unwrap(), OpenOptions::default()).await;
            let (store, _) = opened.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            for extent in store.read(GROUP, object, range).await.unwrap() {
                let is_whole = matches!(extent.data, ExtentData::Data { .. });
                assert!(is_whole && extent.version >= version(4), "seed {seed}: {extent:?}");
            }
            clean(&store, 0).await;
        });
    }
}

/// Puts one block.
async fn put_one(store: &Rc<Store>, object: u64, block: u32, version: u64) -> Result<(), StoreError> {
    let object = ObjectId::of_volume(VolumeId(1), object);
    store.write(client(object, BlockRange::one(block), version, fill(version, 1))).await.map(drop)
}

/// Blocks are replaced while a checkpoint of many pages is written. The checkpoint holds them as they were,
/// so it must put none of its pages in their places.
#[test]
fn what_is_replaced_beside_a_checkpoint_is_no_place_for_its_pages() {
    const OBJECTS: u64 = 48;
    const RUNS: u32 = 40;
    for seed in 0..40 {
        Sim::new(9_000 + seed).block_on(async move {
            let disk = SimDisk::new("d", 32 << 20);
            let store = new_store(&disk).await;
            // Runs with a version each: so many that a page holds few leaves.
            for n in 0..OBJECTS {
                let writes = (0..RUNS).map(|run| put_one(&store, n, 2 * run, 3 + u64::from(run)));
                weft_rt::sync::join_all(writes).await;
            }
            store.close().await.unwrap();
            drop(store);
            let used = disk.clone();
            let process = spawn_process(IpAddr::from([10, 0, 0, 1]), "first", async move {
                // Without a cache: a checkpoint reads the pages that it replaces, which takes a while.
                let options = OpenOptions {
                    reuse_at_once: true,
                    ram_budget_bytes: Some(256 << 10),
                    ..Default::default()
                };
                let store = Store::open(used.open().unwrap(), options).await.unwrap().0;
                used.set_faults(|f| f.latency = (ms(1), ms(2)));
                used.cut_power_after(200 + random_below(2_000));
                let lanes = (0..8).map(async |lane| {
                    for version in 100.. {
                        let n = (lane + 8 * random_below(OBJECTS / 8)) % OBJECTS;
                        let block = 2 * random_below(u64::from(RUNS)) as u32;
                        if put_one(&store, n, block, version).await.is_err() {
                            return;
                        }
                    }
                });
                weft_rt::sync::join_all(lanes).await;
            });
            race(disk.cut(), weft_rt::sleep(ms(60_000))).await;
            kill(process, Crash::PowerCut);
            disk.restore_power();
            disk.set_faults(|f| f.latency = (ms(0), ms(1)));
            let opened = Store::open(disk.open().unwrap(), OpenOptions::default()).await;
            let (store, _) = opened.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            clean(&store, 0).await;
        });
    }
}

fn ms(n: u64) -> std::time::Duration {
    std::time::Duration::from_millis(n)
}
