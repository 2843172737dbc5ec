//! A drive of format 1 becomes one of the present format. The power is cut at every write and flush of
//! that, with subsets of what was not flushed lost, kept or torn: whatever is left opens, and holds what
//! the drive held. Until an older program refuses the drive, nothing of it but labels has changed.

use crate::cuts;
use crate::image;
use crate::model;

use cuts::*;
use image::*;
use model::*;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sim::{DiskEvent, Sim, SimDisk};
use weft_store::*;
use weft_types::*;

/// The format that drives get.
const FORMAT: u16 = 2;

/// Subsets of one cut that are tried; when there are no more, then all of them.
const SUBSETS: u64 = 9;

/// One in so many images sees its conversion cut again, and one in so many is worked on.
const CUT_AGAIN_EVERY: u64 = 40;
const GO_ON_EVERY: u64 = 8;

/// How long the background needs to rewrite the whole block map, and more.
const LONG: Duration = Duration::from_secs(20);

/// An image of format 1, and what it holds.
struct Old {
    disk: SimDisk,
    holds: String,
    /// Pages of the block map that a checkpoint converts.
    step: u64,
}

fn old(name: &str, step: u64) -> Old {
    let file = |kind| format!("{}/tests/golden/image-v1-{name}.{kind}", env!("CARGO_MANIFEST_DIR"));
    let disk = unpack(name, &std::fs::read(file("img.gz")).unwrap());
    let text = String::from_utf8(decompress(&std::fs::read(file("txt.gz")).unwrap())).unwrap();
    let (_, holds) = text.split_once('\n').unwrap();
    Old { disk, holds: holds.to_owned(), step }
}

async fn open_by(disk: &SimDisk, step: u64) -> (Rc<Store>, OpenReport) {
    let options = OpenOptions { conversions: Some(step), ..OpenOptions::default() };
    Store::open(disk.open().unwrap(), options).await.unwrap()
}

/// How a program that knows format 1 alone reads a drive's label: it goes on with what the last good
/// copy of format 1 says, unless the first good copy is of a newer format. Whether it goes on.
fn an_older_program_opens(disk: &SimDisk) -> bool {
    let format_at = |at: u64| {
        let block = disk.peek(at, BLOCK_SIZE);
        let crc = u32::from_le_bytes(block[BLOCK_SIZE - 4..].try_into().unwrap());
        let is_good = block.starts_with(b"WEFTDRIV") && weft_wire::crc32c(&block[..BLOCK_SIZE - 4]) == crc;
        is_good.then(|| u16::from_le_bytes([block[8], block[9]]))
    };
    match format_at(0) {
        Some(format) => format == 1,
        None => format_at(disk.size_bytes() - BLOCK_SIZE as u64) == Some(1),
    }
}

/// The blocks that differ and are no label.
fn changed(disk: &SimDisk, base: &SimDisk) -> Vec<u64> {
    let labels = [0, disk.size_bytes() - BLOCK_SIZE as u64];
    let mut touched = [disk.touched(), base.touched()].concat();
    touched.retain(|at| !labels.contains(at) && disk.peek(*at, BLOCK_SIZE) != base.peek(*at, BLOCK_SIZE));
    touched
}

/// Opens the drive and lets it be until all of it has the present format.
fn convert(disk: &SimDisk, step: u64, seed: u64) {
    let disk = disk.clone();
    Sim::new(seed).block_on(async move {
        let (store, _) = open_by(&disk, step).await;
        weft_rt::sleep(LONG).await;
        store.close().await.unwrap();
    });
}

struct Cutter {
    old: Old,
    dice: Dice,
    /// By depth: a cut of the conversion, and one of the conversion that followed.
    tried: [Tried; 2],
    /// Images that an older program would still open.
    still_old: u64,
}

impl Cutter {
    fn cut_everywhere(&mut self, base: &SimDisk, events: &[DiskEvent], depth: usize) {
        let durable = base.copy("durable");
        let mut unflushed = Vec::new();
        for at in 0..=events.len() {
            let event = at.checked_sub(1).map(|i| &events[i]);
            if let Some(event) = event {
                follow(event, &durable, &mut unflushed);
            }
            let is_write = matches!(event, Some(DiskEvent::Write { .. })) && !unflushed.is_empty();
            let (fates, _) = fates_of(unflushed.len(), is_write, SUBSETS, &mut self.dice);
            self.tried[depth].cuts += 1;
            for fates in fates {
                let tried = &mut self.tried[depth];
                let image = image_of(&durable, &unflushed, &fates, &mut self.dice, tried);
                tried.images += 1;
                eprintln!("depth {depth}, event {at} of {}, {fates:?}", events.len());
                self.look(&image, depth);
            }
        }
    }

    fn look(&mut self, image: &SimDisk, depth: usize) {
        let nth = self.tried[depth].images;
        if an_older_program_opens(image) {
            self.still_old += 1;
            assert_eq!(changed(image, &self.old.disk), [0u64; 0], "an older program opens the drive");
        }
        if depth == 0 && nth.is_multiple_of(CUT_AGAIN_EVERY) {
            let (base, used) = (image.copy("before"), image.copy("converted"));
            used.record();
            convert(&used, self.old.step, nth);
            let events = used.take_record();
            self.cut_everywhere(&base, &events, 1);
        }
        let (disk, holds, step) = (image.clone(), self.old.holds.clone(), self.old.step);
        Sim::new(nth).block_on(async move {
            let before = check(&disk.open().unwrap(), false).await.unwrap();
            assert!(before.findings.iter().all(|f| f.severity == Severity::Note), "{before:#?}");
            let (store, _) = open_by(&disk, step).await;
            assert_eq!(describe(&store).await, holds);
            let seen = store.check(false).await.unwrap();
            assert!(seen.is_clean(), "{seen:#?}");
            if nth.is_multiple_of(GO_ON_EVERY) {
                go_on(&disk, store, step).await;
            }
        });
    }
}

/// Work on a drive that was cut: what is put is there after the store was dropped, and so is what was
/// there before.
async fn go_on(disk: &SimDisk, store: Rc<Store>, step: u64) {
    let object = ObjectId::of_volume(VolumeId(70), 1);
    store.set_group(entry(77, 1, Role::InSync, 1)).await.unwrap();
    let write = zero(object, BlockRange::new(100, 60), 5);
    store.write(Write { group: GroupId(77), ..write }).await.unwrap();
    store.checkpoint().await.unwrap();
    let data = Write { group: GroupId(77), ..client(object, BlockRange::new(120, 9), 6, fill(4, 9)) };
    let written = store.write(data).await;
    assert!(matches!(written, Ok(_) | Err(StoreError::NoSpace { .. })), "{written:?}");
    let holds = describe(&store).await;
    drop(store);
    weft_rt::sleep(Duration::from_millis(50)).await;
    let (store, report) = open_by(disk, step).await;
    assert!(!report.converted, "{report:?}");
    assert_eq!(describe(&store).await, holds);
    weft_rt::sleep(LONG).await;
    assert_eq!(describe(&store).await, holds);
    store.close().await.unwrap();
}

/// Cuts the conversion of an image everywhere; returns the converted drive.
fn cut_conversion(name: &str, step: u64) -> (Cutter, SimDisk) {
    let old = old(name, step);
    let used = old.disk.copy("converted");
    used.record();
    convert(&used, step, 1);
    let events = used.take_record();
    let base = old.disk.clone();
    let mut cutter = Cutter { old, dice: Dice(1), tried: Default::default(), still_old: 0 };
    cutter.cut_everywhere(&base, &events, 0);
    println!("{name}: {:?}, {} still old", cutter.tried, cutter.still_old);
    assert!(cutter.still_old > 0 && !an_older_program_opens(&used));
    (cutter, used)
}

#[test]
fn a_cut_at_every_write_of_the_conversion_of_a_used_drive_leaves_it_whole() {
    let (cutter, converted) = cut_conversion("used", 1);
    let [first, second] = cutter.tried;
    assert!(first.cuts > 10 && second.images > 20 && first.torn > 10, "{first:?} {second:?}");
    assert_whole_map_is_new(&converted);
}

#[test]
fn a_cut_at_every_write_of_the_conversion_of_a_full_drive_leaves_it_whole() {
    let (cutter, _) = cut_conversion("full", 2);
    assert!(cutter.tried[0].cuts > 10, "{:?}", cutter.tried);
}

#[test]
fn a_cut_at_every_write_of_the_conversion_of_a_new_drive_leaves_it_whole() {
    let (cutter, converted) = cut_conversion("fresh", 2);
    assert!(cutter.tried[0].cuts > 5, "{:?}", cutter.tried);
    assert_whole_map_is_new(&converted);
}

fn assert_whole_map_is_new(disk: &SimDisk) {
    let disk = disk.copy("looked at");
    Sim::new(1).block_on(async move {
        let report = check(&disk.open().unwrap(), true).await.unwrap();
        assert_eq!(report.old_pages, 0, "{report:#?}");
        let seen = inspect(&disk.open().unwrap()).await.unwrap();
        assert_eq!((seen.label.format, seen.superblock.unwrap().format), (FORMAT, FORMAT));
    });
}

/// A map of three levels is converted in steps, each of them a checkpoint, while it is written to.
#[test]
fn a_deep_map_is_converted_in_steps_and_says_the_newest_versions_all_the_time() {
    for step in [3, 40, 1000] {
        let old = old("deep", step);
        Sim::new(step).block_on(async move {
            let (store, report) = open_by(&old.disk, step).await;
            assert!(report.converted && report.was_clean, "{report:?}");
            let mut left = store.check(false).await.unwrap().old_pages;
            assert_eq!(left > 0, step < 1000, "{left} pages are left after the first step");
            let mut steps = 0;
            while left > 0 {
                // Writes touch a few pages here and there; each checkpoint converts some more.
                let object = ObjectId::of_volume(VolumeId(3), 50 + steps % 100);
                let write = zero(object, BlockRange::new(300, 1 + steps as u32 % 9), 500 + steps);
                store.write(write).await.unwrap();
                store.checkpoint().await.unwrap();
                let report = store.check(false).await.unwrap();
                assert!(report.is_clean() && report.old_pages < left, "{left}: {report:#?}");
                left = report.old_pages;
                steps += 1;
            }
            for n in 0..steps {
                let object = ObjectId::of_volume(VolumeId(3), 50 + n % 100);
                let found = store.versions(GroupId(1), object, BlockRange::one(300)).await.unwrap();
                assert!(found[0].version >= version(500 + n), "{n}: {found:?}");
            }
            store.close().await.unwrap();
            drop(store);
            let report = check(&old.disk.open().unwrap(), true).await.unwrap();
            assert!(report.is_clean() && report.old_pages == 0, "{report:#?}");
        });
    }
}

/// Left alone, the whole map has the present format after a while, and holds what it held.
#[test]
fn a_deep_map_is_converted_in_the_background() {
    let old = old("deep", 10);
    convert(&old.disk, old.step, 3);
    assert_whole_map_is_new(&old.disk);
    Sim::new(4).block_on(async move {
        let (store, report) = open_by(&old.disk, 10).await;
        assert!(!report.converted);
        assert_eq!(describe(&store).await, old.holds);
    });
}

/// The newest superblock rots before there is a second one of its format: the checkpoint of format 1 and
/// the log behind it, with records of both formats, hold everything.
#[test]
fn the_checkpoint_of_format_1_and_the_log_behind_it_hold_what_was_written_since() {
    let old = old("full", 100);
    Sim::new(5).block_on(async move {
        let (store, report) = open_by(&old.disk, 100).await;
        assert!(report.converted && report.records_replayed > 0, "{report:?}");
        store.set_group(entry(77, 1, Role::Syncing, 1)).await.unwrap();
        store.drop_objects(VolumeId(99)).await.unwrap();
        store.set_generation(VolumeId(9), Generation(7)).await.unwrap();
        let holds = describe(&store).await;
        drop(store);
        weft_rt::sleep(Duration::from_millis(50)).await;
        let newest = inspect(&old.disk.open().unwrap()).await.unwrap().superblock.unwrap();
        assert_eq!(newest.format, FORMAT);
        old.disk.flip((1 + newest.checkpoint % 2) * BLOCK_SIZE as u64 + 33, 1);
        let (store, report) = open_by(&old.disk, 100).await;
        assert!(report.superblock_fallback && report.converted, "{report:?}");
        assert_eq!(describe(&store).await, holds);
    });
}

/// A drive whose labels are of format 1 again, by a mishap, is one of the present format all the same:
/// nothing is read in the wrong way, by this program or by an older one.
#[test]
fn labels_of_format_1_on_a_converted_drive_are_raised_again() {
    let old = old("used", 100);
    let label = old.disk.peek(0, BLOCK_SIZE);
    convert(&old.disk, old.step, 6);
    let last = old.disk.size_bytes() - BLOCK_SIZE as u64;
    [0, last].iter().for_each(|at| old.disk.poke(*at, &label));
    Sim::new(7).block_on(async move {
        let (store, report) = open_by(&old.disk, 100).await;
        assert!(!report.converted);
        assert_eq!(describe(&store).await, old.holds);
        assert!(!an_older_program_opens(&old.disk));
    });
}
