//! The crash matrix: one recorded workload, a power cut at every write and flush of it, and for each cut the
//! subsets of what was not flushed: every such write lost, kept, or torn between sectors, in any order. Each
//! image is opened and compared with what must and what may be there; some are cut a second and a third time
//! in the middle of the recovery, and on some the work goes on.
//!
//! `WEFT_STORE_FACTOR=n` tries n workloads and n times the subsets; `-- --nocapture` shows what was tried.

use crate::cuts;
use crate::ledger;
use crate::model;

use cuts::*;
use ledger::*;
use model::*;
use std::cell::RefCell;
use std::rc::Rc;
use weft_rt::sim::{DiskEvent, Sim, SimDisk};
use weft_rt::{random_below, spawn};
use weft_store::*;
use weft_types::*;

/// Subsets of one cut that are tried; when there are no more, then all of them.
const SUBSETS: u64 = 20;
/// Likewise for a cut in the middle of a recovery.
const SUBSETS_AGAIN: u64 = 8;
/// One in so many images sees its recovery cut as well.
const CUT_AGAIN_EVERY: u64 = 70;
const SIZE: u64 = 3 << 19;

/// What the whole exploration goes by.
struct Matrix {
    ledger: Ledger,
    factor: u64,
    dice: Dice,
    /// By depth.
    tried: [Tried; 3],
}

impl Matrix {
    /// Cuts at every event of a record that began with `base`. `fact` names the instant of the ledger that is
    /// compared with: that of the event itself in a workload; fixed in a recovery.
    fn cut_everywhere(&mut self, base: &SimDisk, events: &[DiskEvent], fixed: Option<usize>, depth: usize) {
        let durable = base.copy("durable");
        let mut unflushed: Vec<Unflushed> = Vec::new();
        let limit = self.factor * if depth == 0 { SUBSETS } else { SUBSETS_AGAIN };
        for at in 0..=events.len() {
            if let Some(event) = at.checked_sub(1).map(|i| &events[i]) {
                follow(event, &durable, &mut unflushed);
            }
            let is_write =
                at > 0 && matches!(events[at - 1], DiskEvent::Write { .. }) && !unflushed.is_empty();
            let (fates, is_all) = fates_of(unflushed.len(), is_write, limit, &mut self.dice);
            let tried = &mut self.tried[depth];
            tried.cuts += 1;
            tried.exhausted += u64::from(is_all);
            tried.unflushed_most = tried.unflushed_most.max(unflushed.len() as u64);
            for fates in fates {
                let tried = &mut self.tried[depth];
                let image = image_of(&durable, &unflushed, &fates, &mut self.dice, tried);
                tried.images += 1;
                let context = format!("depth {depth}, event {at} of {}, {fates:?}", events.len());
                self.look(&image, fixed.unwrap_or(at), depth, &context);
            }
        }
    }

    /// Opens an image, compares it, and now and then cuts its recovery too or goes on with it.
    fn look(&mut self, image: &SimDisk, at: usize, depth: usize, context: &str) {
        let nth = self.tried[depth].images;
        if depth < 2 && nth.is_multiple_of(CUT_AGAIN_EVERY) {
            let (base, used) = (image.copy("before"), image.copy("recovered"));
            used.record();
            let recovered = used.clone();
            Sim::new(nth).block_on(async move {
                let (store, _) =
                    Store::open(recovered.open().unwrap(), OpenOptions::default()).await.unwrap();
                store.close().await.unwrap();
            });
            let events = used.take_record();
            self.cut_everywhere(&base, &events, Some(at), depth + 1);
        }
        let goes_on = nth.is_multiple_of(16);
        let (ledger, disk) = (self.ledger.clone(), image.clone());
        let told = ToldIfItFails(context);
        let report = Sim::new(nth).block_on(async move { ledger.verify(&disk, at).await });
        let tried = &mut self.tried[depth];
        tried.replayed += u64::from(report.records_replayed > 0);
        tried.dropped_blocks += report.blocks_dropped;
        if goes_on {
            tried.went_on += 1;
            let (ledger, disk) = (self.ledger.clone(), image.clone());
            Sim::new(nth).block_on(async move { go_on(&disk, &ledger, at).await });
        }
        std::mem::forget(told);
    }

    fn table(&self) {
        println!("{:<22}{:>12}{:>12}{:>12}", "cut", "workload", "recovery", "its recovery");
        type Column = fn(&Tried) -> u64;
        let rows: [(&str, Column); 9] = [
            ("cut points", |t| t.cuts),
            ("  all subsets tried", |t| t.exhausted),
            ("images", |t| t.images),
            ("  with torn writes", |t| t.torn),
            ("  reordered", |t| t.reordered),
            ("  with a log to replay", |t| t.replayed),
            ("  worked on after", |t| t.went_on),
            ("blocks not arrived", |t| t.dropped_blocks),
            ("most writes unflushed", |t| t.unflushed_most),
        ];
        for (name, get) in rows {
            let [a, b, c] = self.tried.each_ref().map(get);
            println!("{name:<22}{a:>12}{b:>12}{c:>12}");
        }
    }
}

/// Work on a drive that was cut: new data is put, the drive is dropped and closed, and all is there.
async fn go_on(disk: &SimDisk, ledger: &Ledger, at: usize) {
    let object = ObjectId::of_volume(VolumeId(1), 77);
    let store = open_reusing(disk).await;
    store.set_group(entry(5, 1, Role::InSync, 1)).await.unwrap();
    let mut put = Vec::new();
    for i in 0..6u64 {
        let range = BlockRange::new(i as u32 * 3, 3);
        let version = Version::new(1 + i, SessionSlot(9));
        let write = Write { group: GroupId(5), version, ..client(object, range, 1, fill(900 + i, 3)) };
        match store.write(write).await {
            Ok(_) => put.push((range, version, 900 + i)),
            Err(StoreError::NoSpace { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        if i == 3 {
            store.checkpoint().await.unwrap();
        }
    }
    drop(store);
    weft_rt::sleep(std::time::Duration::from_millis(50)).await;
    let store = open(disk).await;
    for (range, version, seed) in put {
        let found = store.read(GroupId(5), object, range).await.unwrap();
        assert!(found.iter().all(|x| (x.version, seed_of(x)) == (version, Some(seed))), "{found:?}");
    }
    store.close().await.unwrap();
    drop(store);
    ledger.verify(disk, at).await;
}

/// Says what was looked at if it is dropped: by a panic.
struct ToldIfItFails<'a>(&'a str);

impl Drop for ToldIfItFails<'_> {
    fn drop(&mut self) {
        eprintln!("in the image of {}", self.0);
    }
}

/// The workload: everything that a drive is asked, several at a time, on three openings of the drive.
async fn workload(disk: SimDisk, ledger: Ledger) -> Usage {
    let mut usage = Usage::default();
    for part in 0..3u64 {
        let store = if part == 1 { open_reusing(&disk).await } else { open(&disk).await };
        for (name, group) in [
            ("group 1", entry(1, 1 + part, Role::InSync, 1)),
            ("group 2", entry(2, 2 + part, Role::Syncing, if part == 2 { 4 } else { 2 })),
        ] {
            let epoch = group.epoch.0;
            ledger.raise(name, epoch, store.set_group(group)).await;
        }
        let mut tasks: Vec<_> =
            (1..=3).map(|slot| spawn(writer(store.clone(), ledger.clone(), SessionSlot(slot), 22))).collect();
        tasks.push(spawn(syncer(store.clone(), ledger.clone(), part)));
        tasks.push(spawn(admin(store.clone(), ledger.clone(), part)));
        for task in tasks {
            task.await.unwrap();
        }
        let of_part = store.usage();
        usage.checkpoints += of_part.checkpoints;
        usage.log_bytes_written += of_part.log_bytes_written;
        usage.log_capacity_bytes = of_part.log_capacity_bytes;
        if part == 0 {
            store.close().await.unwrap();
        } else {
            drop(store);
            weft_rt::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
    usage
}

async fn writer(store: Rc<Store>, ledger: Ledger, slot: SessionSlot, rounds: u32) {
    for _ in 0..rounds {
        match random_below(16) {
            0 => store.checkpoint().await.unwrap(),
            1 => weft_rt::sleep(std::time::Duration::from_millis(random_below(15))).await,
            2 => ledger.settle_some(&store),
            3 => ledger.advance(&store, slot),
            4..7 => {
                let range = BlockRange::new(random_below(u64::from(BLOCKS - 20)) as u32, 20);
                ledger.read(&store, random_below(OBJECTS), range).await;
            }
            _ => {
                let count = [1, 1, 2, 3, 8, 30][random_below(6) as usize];
                // Half of the writes meet in a few blocks: several of one batch put the same block.
                let least = if random_below(2) == 0 { 12 } else { u64::from(BLOCKS - count) };
                let range = BlockRange::new(random_below(least) as u32, count);
                let kind = if random_below(6) == 0 { WriteKind::Repair } else { WriteKind::Client };
                let object = if least == 12 { 0 } else { random_below(OBJECTS) };
                ledger.write(&store, slot, object, range, kind, random_below(4) == 0).await;
            }
        }
    }
}

/// Copies, marks, the cursor, and a new stint, on a syncing group.
async fn syncer(store: Rc<Store>, ledger: Ledger, part: u64) {
    let stint = Epoch(if part == 2 { 4 } else { 2 });
    for i in 0..4u64 {
        ledger.copy(&store, stint, ChunkIndex((i % 2) as u16)).await;
        if i == 1 {
            ledger.merge_marks(&store, stint).await;
        }
        if i == 2 {
            // Chunk 0 was verified twice by now: below the cursor is nothing that was not.
            let cursor = Cursor::At(COPIED, ChunkIndex(1));
            store.set_cursor(SYNCING, stint, cursor).await.unwrap();
        }
    }
}

/// Sessions, generations, map copies, and groups and volumes that come and go.
async fn admin(store: Rc<Store>, ledger: Ledger, part: u64) {
    for i in part * 3..part * 3 + 3 {
        ledger.raise("generation", i + 1, store.set_generation(VolumeId(1), Generation(i + 1))).await;
        ledger.raise("floor", i + 1, store.close_sessions(Some(SessionId(i + 1)), &[])).await;
        ledger.raise("map copy", i + 1, store.put_map_copy(i + 1, &[i as u8; 5000])).await;
        ledger.live(&store, i).await;
        // Many writes at once make a batch of several sectors.
        let burst: Vec<_> = (0..14)
            .map(|_| {
                let (store, ledger) = (store.clone(), ledger.clone());
                spawn(async move {
                    let range = BlockRange::new(random_below(40) as u32 * 3, 2);
                    ledger.write(&store, SessionSlot(4), 1, range, WriteKind::Client, false).await;
                })
            })
            .collect();
        for write in burst {
            write.await.unwrap();
        }
    }
}

#[test]
fn every_cut_leaves_what_must_be_there_and_nothing_that_may_not() {
    let factor: u64 = std::env::var("WEFT_STORE_FACTOR").map_or(1, |f| f.parse().unwrap());
    let tried = Rc::new(RefCell::new([Tried::default(); 3]));
    for seed in 0..factor {
        let disk = SimDisk::new("d", SIZE);
        let used = disk.clone();
        let (base, ledger, usage) = Sim::new(seed).block_on(async move {
            let small = FormatOptions { allow_tiny: true, log_bytes: Some(128 << 10), ..options() };
            format(&used, small).await.unwrap();
            let base = used.copy("base");
            used.record();
            let ledger = Ledger::new(used.clone());
            let usage = workload(used, ledger.clone()).await;
            (base, ledger, usage)
        });
        let events = disk.take_record();
        assert!(usage.log_bytes_written > usage.log_capacity_bytes, "the log wraps: {usage:?}");
        assert!(usage.checkpoints > 5, "{usage:?}");
        ledger.assert_it_has_all();
        let mut matrix = Matrix { ledger, factor, dice: Dice(seed + 1), tried: *tried.borrow() };
        matrix.cut_everywhere(&base, &events, None, 0);
        *tried.borrow_mut() = matrix.tried;
        if seed + 1 == factor {
            println!("{} refused for want of space", matrix.ledger.refusals());
            matrix.table();
        }
    }
    let [first, second, third] = *tried.borrow();
    assert!(first.cuts > 300 && first.exhausted > 50 && first.unflushed_most > 3, "{first:?}");
    assert!(first.dropped_blocks > 0 && first.replayed > 0, "{first:?}");
    assert!(second.images > 100 && third.images > 0, "{second:?} {third:?}");
}
