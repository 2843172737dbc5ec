//! Pins the drive format: an image made by each format version must open, read back and check for ever, and
//! what is written today must have the same bytes as what the present version wrote first.
//!
//! `WEFT_BLESS=1 cargo test -p weft-store --test suite golden` makes the images of the present version again:
//! only together with a new format version and an entry in docs/format/drive.md.

use crate::model;

use model::*;
use std::fmt::Write as _;
use std::rc::Rc;
use weft_rt::sim::{Sim, SimDisk};
use weft_store::*;
use weft_types::*;

const GROUP: GroupId = GroupId(1);
const OBJECT: ObjectId = ObjectId::of_volume(VolumeId(7), 3);
const SIZE: u64 = 1 << 20;

/// The format that is written today.
const FORMAT: u16 = 2;

/// The image that a format's program has made.
fn image(format: u16) -> String {
    format!("{}/tests/golden/drive-v{format}.txt", env!("CARGO_MANIFEST_DIR"))
}

/// The same for what a drive comes to hold in use: after two checkpoints, and with a log to replay.
fn used(format: u16) -> String {
    format!("{}/tests/golden/drive-v{format}-used.txt", env!("CARGO_MANIFEST_DIR"))
}

/// Blocks of one byte each: they compress well.
fn plain(byte: u8, count: u32) -> Payload {
    let data = weft_rt::Buf::from(vec![byte; count as usize * BLOCK_SIZE]);
    let crcs = data.chunks(BLOCK_SIZE).map(weft_wire::crc32c).collect();
    Payload::Data { data, crcs }
}

/// Makes the image: a checkpoint, then a log of one batch that was never checkpointed. One request at a
/// time, so that the order of everything is fixed.
async fn make(disk: &SimDisk) -> Rc<Store> {
    format(disk, FormatOptions { allow_tiny: true, log_bytes: Some(128 << 10), ..options() }).await.unwrap();
    let store = open(disk).await;
    store.set_group(entry(1, 2, Role::InSync, 1)).await.unwrap();
    store.set_group(entry(2, 5, Role::Syncing, 4)).await.unwrap();
    store.close_sessions(Some(SessionId(4)), &[SessionId(9)]).await.unwrap();
    store.set_generation(VolumeId(7), Generation(3)).await.unwrap();
    store.write(client(OBJECT, BlockRange::new(120, 16), 5, plain(0x11, 16))).await.unwrap();
    store.write(client(OBJECT, BlockRange::new(122, 2), 6, plain(0x22, 2))).await.unwrap();
    store.write(zero(OBJECT, BlockRange::new(1000, 300), 7)).await.unwrap();
    store.put_map_copy(42, b"a fabric map").await.unwrap();
    store.checkpoint().await.unwrap();
    store.settle(GROUP, OBJECT, BlockRange::new(122, 2), version(6));
    store.advance(GROUP, SessionSlot(1), version(5));
    store.verify_chunk(GroupId(2), OBJECT, ChunkIndex(1), Epoch(4), Vec::new(), true).await.unwrap();
    store.write(client(OBJECT, BlockRange::new(130, 1), 8, plain(0x33, 1))).await.unwrap();
    store
}

/// Makes the second image: several groups, one dropped; a second syncing stint with copies, tombstones, damage,
/// marks and a cursor; a volume that was dropped; each of them before and behind the newest checkpoint.
async fn make_used(disk: &SimDisk) -> Rc<Store> {
    format(disk, FormatOptions { allow_tiny: true, log_bytes: Some(128 << 10), ..options() }).await.unwrap();
    let store = open(disk).await;
    for group in [
        entry(1, 2, Role::InSync, 1),
        entry(2, 5, Role::Syncing, 4),
        entry(3, 1, Role::InSync, 1),
        entry(4, 1, Role::InSync, 1),
    ] {
        store.set_group(group).await.unwrap();
    }
    for (i, group) in [(0u8, 1), (1, 3), (2, 4)] {
        let write = client(OBJECT, BlockRange::new(120, 16), 5, plain(0x41 + i, 16));
        store.write(Write { group: GroupId(group), ..write }).await.unwrap();
    }
    let gone = ObjectId::of_volume(VolumeId(8), 0);
    store.write(client(gone, BlockRange::new(0, 4), 5, plain(0x50, 4))).await.unwrap();
    copy(&store, Epoch(4), ChunkIndex(0), 3).await;
    let cursor = Cursor::At(OBJECT, ChunkIndex(1));
    store.set_cursor(GroupId(2), Epoch(4), cursor).await.unwrap();
    store.write(zero(OBJECT, BlockRange::new(124, 2), 6)).await.unwrap();
    // A block rots, and a read finds it.
    let block = vec![0x41; BLOCK_SIZE];
    let place = find_block(disk, &block);
    disk.flip(place, 0);
    store.read(GROUP, OBJECT, BlockRange::new(120, 16)).await.unwrap();
    store.checkpoint().await.unwrap();
    store.drop_group(GroupId(4)).await.unwrap();
    store.drop_objects(VolumeId(8)).await.unwrap();
    store.checkpoint().await.unwrap();
    // From here on it is the log that tells.
    store.set_group(entry(2, 7, Role::Syncing, 7)).await.unwrap();
    let entry_7 = OpenEntry {
        version: Version::new(30, SessionSlot(7)),
        object: OBJECT,
        range: BlockRange::new(9, 20),
        settled: true,
    };
    let watermarks = vec![(SessionSlot(7), Version::from_bits(77))];
    for marks in [Marks { open: vec![entry_7], watermarks: vec![] }, Marks { open: vec![], watermarks }] {
        store.merge_marks(GroupId(2), Epoch(7), Epoch(7), marks).await.unwrap();
        // A cursor that does not move waits for what was logged before it: a batch for each.
        let start = Cursor::At(ObjectId::default(), ChunkIndex(0));
        store.set_cursor(GroupId(2), Epoch(7), start).await.unwrap();
    }
    copy(&store, Epoch(7), ChunkIndex(0), 4).await;
    copy(&store, Epoch(7), ChunkIndex(2), 4).await;
    store.write(client(OBJECT, BlockRange::new(130, 4), 9, plain(0x61, 4))).await.unwrap();
    store.write(zero(OBJECT, BlockRange::new(131, 1), 10)).await.unwrap();
    store.write(client(OBJECT, BlockRange::one(132), 11, plain(0x62, 1))).await.unwrap();
    store.close_sessions(Some(SessionId(2)), &[SessionId(6)]).await.unwrap();
    store
}

/// Makes a chunk of group 2 what a source has: data, a tombstone, damage.
async fn copy(store: &Store, stint: Epoch, chunk: ChunkIndex, counter: u64) {
    let at = |first, count| BlockRange::new(chunk.range().first + first, count);
    let Payload::Data { data, crcs } = plain(0x70 + counter as u8, 8) else { unreachable!() };
    let version = version(counter);
    let source = vec![
        CopyEntry { range: at(10, 8), version, data: CopyData::Data { buf: data, crcs } },
        CopyEntry { range: at(40, 4), version, data: CopyData::Zero },
        CopyEntry { range: at(50, 2), version, data: CopyData::Damaged },
    ];
    store.verify_chunk(GroupId(2), OBJECT, chunk, stint, source, false).await.unwrap();
}

/// The extents of a run of blocks: first, count, version, and what they hold.
async fn shape(store: &Store, group: u64, range: BlockRange) -> Vec<(u32, u32, u64, &'static str, u8)> {
    let found = store.read(GroupId(group), OBJECT, range).await.unwrap();
    let of = |x: &Extent| match &x.data {
        ExtentData::Data { buf, .. } => ("data", buf[0]),
        ExtentData::Zero => ("zero", 0),
        ExtentData::Damaged => ("damaged", 0),
    };
    let all = found.iter().filter(|x| x.version != Version::ZERO);
    all.map(|x| (x.range.first, x.range.count, x.version.counter(), of(x).0, of(x).1)).collect()
}

async fn verify_used(store: &Store) {
    assert_eq!(store.groups(), [GroupId(1), GroupId(2), GroupId(3)]);
    let blocks = |shape: Vec<(u32, u32, u64, &'static str, u8)>| -> Vec<_> {
        shape
            .into_iter()
            .flat_map(|(first, count, v, kind, byte)| (first..first + count).map(move |b| (b, v, kind, byte)))
            .collect()
    };
    let held = blocks(shape(store, 1, BlockRange::new(100, 60)).await);
    assert_eq!(held.len(), 16);
    let damaged: Vec<_> = held.iter().filter(|b| b.2 == "damaged").collect();
    assert_eq!(damaged.len(), 1, "{held:?}");
    for (block, version, kind, byte) in &held {
        let wanted = match block {
            124 | 125 => (6, "zero", 0),
            131 => (10, "zero", 0),
            132 => (11, "data", 0x62),
            130..134 => (9, "data", 0x61),
            _ => (5, if *block == damaged[0].0 { "damaged" } else { "data" }, *byte),
        };
        assert_eq!((*version, *kind, *byte), wanted, "{block}");
    }
    let other = blocks(shape(store, 3, BlockRange::new(100, 60)).await);
    assert!(other.len() == 16 && other.iter().all(|b| (b.1, b.2, b.3) == (5, "data", 0x42)), "{other:?}");
    for chunk in [0u32, 2] {
        let first = 128 * chunk;
        let found = shape(store, 2, BlockRange::new(first, 128)).await;
        let wanted = [
            (first + 10, 8, 4, "data", 0x74),
            (first + 40, 4, 4, "zero", 0),
            (first + 50, 2, 4, "damaged", 0),
        ];
        assert_eq!(found, wanted);
        assert!(store.chunk_is_verified(GroupId(2), OBJECT, ChunkIndex(chunk as u16)));
    }
    assert!(!store.chunk_is_verified(GroupId(2), OBJECT, ChunkIndex(1)));
    let verified = store.verify_state(GroupId(2)).unwrap();
    assert_eq!((verified.stint, verified.ahead), (Some(Epoch(7)), 2));
    assert_eq!(store.watermark(GroupId(2), SessionSlot(7)), Version::from_bits(77));
    let open = store.open_entries_of(GroupId(2), SessionSlot(7));
    assert!(open.len() == 1 && open[0].settled && open[0].range == BlockRange::new(9, 20), "{open:?}");
    let gone = ObjectId::of_volume(VolumeId(8), 0);
    let found = store.versions(GROUP, gone, BlockRange::new(0, 4)).await.unwrap();
    assert!(found.iter().all(|x| x.version == Version::ZERO), "{found:?}");
    assert!(store.session_is_over(SessionId(1)) && store.session_is_over(SessionId(6)));
    assert!(!store.session_is_over(SessionId(5)));
}

async fn verify(store: &Store, golden: &str) {
    assert!(golden.starts_with(&digests(store).await), "{}", digests(store).await);
    let found = store.read(GROUP, OBJECT, BlockRange::new(119, 18)).await.unwrap();
    let byte = |x: &Extent| match &x.data {
        ExtentData::Data { buf, .. } => buf[0],
        ExtentData::Zero => 0,
        ExtentData::Damaged => 0xff,
    };
    let shape: Vec<_> = found.iter().map(|x| (x.range.first, x.version.counter(), byte(x), x.open)).collect();
    let wanted = [
        (119, 0, 0, false),
        (120, 5, 0x11, false),
        (122, 6, 0x22, false),
        (124, 5, 0x11, false),
        (128, 5, 0x11, false),
        (130, 8, 0x33, true),
        (131, 5, 0x11, false),
        (136, 0, 0, false),
    ];
    assert_eq!(shape, wanted);
    let zeroes = store.versions(GROUP, OBJECT, BlockRange::new(1000, 300)).await.unwrap();
    assert!(zeroes.iter().all(|x| x.version == version(7) && x.open && matches!(x.data, ExtentData::Zero)));
    assert_eq!(store.watermark(GROUP, SessionSlot(1)), version(5));
    assert_eq!(*store.group(GroupId(2)).unwrap(), entry(2, 5, Role::Syncing, 4));
    assert!(store.chunk_is_verified(GroupId(2), OBJECT, ChunkIndex(1)));
    assert!(!store.chunk_is_verified(GroupId(2), OBJECT, ChunkIndex(0)));
    assert!(store.session_is_over(SessionId(3)) && store.session_is_over(SessionId(9)));
    assert_eq!(store.generation(VolumeId(7)), Generation(3));
}

/// The digests of the group's chunks as one line: programs of different versions compare them.
async fn digests(store: &Store) -> String {
    let all = store.digests(GROUP, None, 10).await.unwrap();
    let all: Vec<_> = all.iter().map(|(_, chunk, digest)| format!("{}={digest:016x}", chunk.0)).collect();
    format!("digests {}\n", all.join(" "))
}

/// The disk as text: lines of 32 bytes that are not zero, with their offset and how often they repeat.
fn dump(disk: &SimDisk) -> String {
    let all = disk.peek(0, SIZE as usize);
    let mut out = String::new();
    let mut at = 0;
    while at < all.len() {
        let line = &all[at..at + 32];
        let times = all[at..].chunks(32).take_while(|next| next == &line).count();
        if line.iter().any(|b| *b != 0) {
            write!(out, "{at:06x} {times} ").unwrap();
            line.iter().for_each(|b| write!(out, "{b:02x}").unwrap());
            out.push('\n');
        }
        at += times * 32;
    }
    out
}

fn load(disk: &SimDisk, text: &str) {
    for line in text.lines().skip(1) {
        let mut fields = line.split(' ');
        let at = u64::from_str_radix(fields.next().unwrap(), 16).unwrap();
        let times: usize = fields.next().unwrap().parse().unwrap();
        let hex = fields.next().unwrap();
        let bytes: Vec<u8> =
            (0..32).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
        disk.poke(at, &bytes.repeat(times));
    }
}

/// The image without what differs from run to run: the time in the labels, and so their checksums; a label
/// is the first and the last block.
fn without_labels(text: &str) -> String {
    let is_label = |line: &&str| {
        let at = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        !(4096..SIZE - 4096).contains(&at)
    };
    text.lines().skip(1).filter(|line| !is_label(line)).map(|line| format!("{line}\n")).collect()
}

async fn verify_image(image: String, format: u16) {
    let disk = SimDisk::new("golden", SIZE);
    load(&disk, &image);
    let seen = inspect(&disk.open().unwrap()).await.unwrap();
    assert_eq!((seen.label.format, seen.label.drive, seen.damaged_labels), (format, DRIVE, 0));
    assert_eq!(seen.map_copy, Some((42, 12)));
    assert_eq!(seen.superblock.unwrap().checkpoint, 2);
    assert_eq!((seen.groups.len(), seen.log_damage.clone()), (2, None));
    let report = check(&disk.open().unwrap(), true).await.unwrap();
    assert!(report.is_clean(), "{report:#?}");
    let (store, report) = Store::open(disk.open().unwrap(), OpenOptions::default()).await.unwrap();
    assert!(!report.was_clean && report.records_replayed == 4, "{report:?}");
    assert_eq!(report.converted, format < FORMAT);
    verify(&store, &image).await;
    let store = reopen(&disk, store).await;
    verify(&store, &image).await;
    clean(&store, 0).await;
    assert_eq!(inspect(&disk.copy("closed").open().unwrap()).await.unwrap().label.format, FORMAT);
}

#[test]
fn the_image_of_every_format_opens_and_todays_bytes_are_the_same() {
    let made = Sim::new(1).block_on(async {
        let disk = SimDisk::new("made", SIZE);
        let store = make(&disk).await;
        digests(&store).await + &dump(&disk)
    });
    if std::env::var_os("WEFT_BLESS").is_some() {
        std::fs::write(image(FORMAT), &made).unwrap();
    }
    for format in 1..=FORMAT {
        let golden = std::fs::read_to_string(image(format)).unwrap();
        Sim::new(2).block_on(verify_image(golden, format));
    }
    assert_eq!(
        without_labels(&made),
        without_labels(&std::fs::read_to_string(image(FORMAT)).unwrap()),
        "the format has changed: see the top of this file"
    );
}

async fn verify_used_image(image: String, format: u16) {
    let disk = SimDisk::new("golden", SIZE);
    load(&disk, &image);
    let report = check(&disk.open().unwrap(), false).await.unwrap();
    assert!(report.is_clean() && report.log_batches > 5, "{report:#?}");
    let (store, report) = Store::open(disk.open().unwrap(), OpenOptions::default()).await.unwrap();
    assert!(!report.was_clean && report.blocks_dropped == 0, "{report:?}");
    assert_eq!(report.converted, format < FORMAT);
    verify_used(&store).await;
    let store = reopen(&disk, store).await;
    verify_used(&store).await;
    // The block that rotted, and the runs that came damaged with the copies.
    clean(&store, 3).await;
}

#[test]
fn the_image_of_a_used_drive_of_every_format_opens_and_todays_bytes_are_the_same() {
    let made = Sim::new(1).block_on(async {
        let disk = SimDisk::new("made", SIZE);
        let store = make_used(&disk).await;
        verify_used(&store).await;
        format!("used\n{}", dump(&disk))
    });
    if std::env::var_os("WEFT_BLESS").is_some() {
        std::fs::write(used(FORMAT), &made).unwrap();
    }
    for format in 1..=FORMAT {
        let golden = std::fs::read_to_string(used(format)).unwrap();
        Sim::new(2).block_on(verify_used_image(golden, format));
    }
    assert_eq!(
        without_labels(&made),
        without_labels(&std::fs::read_to_string(used(FORMAT)).unwrap()),
        "the format has changed: see the top of this file"
    );
}
