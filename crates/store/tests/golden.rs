//! Pins the drive format: an image made by format version 1 must open, read back and check for ever, and
//! what is written today must have the same bytes as what was written then.
//!
//! `WEFT_BLESS=1 cargo test -p weft-store --test golden` writes the image anew: only together with a new format
//! version and an entry in docs/format/drive.md.

mod model;

use model::*;
use std::fmt::Write as _;
use std::rc::Rc;
use weft_rt::sim::{Sim, SimDisk};
use weft_store::*;
use weft_types::*;

const GROUP: GroupId = GroupId(1);
const OBJECT: ObjectId = ObjectId::new(VolumeId(7), 3);
const SIZE: u64 = 1 << 20;
const IMAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/drive-v1.txt");

/// Blocks of one byte each: they compress well.
fn plain(byte: u8, count: u32) -> Payload {
    let data = weft_rt::Buf::from(vec![byte; count as usize * BLOCK_SIZE]);
    let crcs = data.chunks(BLOCK_SIZE).map(crc32c::crc32c).collect();
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

#[test]
fn the_image_of_format_1_opens_and_todays_bytes_are_the_same() {
    let made = Sim::new(1).block_on(async {
        let disk = SimDisk::new("made", SIZE);
        let store = make(&disk).await;
        digests(&store).await + &dump(&disk)
    });
    if std::env::var_os("WEFT_BLESS").is_some() {
        std::fs::write(IMAGE, &made).unwrap();
    }
    let golden = std::fs::read_to_string(IMAGE).unwrap();
    let image = golden.clone();
    Sim::new(2).block_on(async move {
        let disk = SimDisk::new("golden", SIZE);
        load(&disk, &image);
        let seen = inspect(&disk.open().unwrap()).await.unwrap();
        assert_eq!((seen.label.format, seen.label.drive, seen.damaged_labels), (1, DRIVE, 0));
        assert_eq!(seen.map_copy, Some((42, 12)));
        assert_eq!(seen.superblock.unwrap().checkpoint, 2);
        assert_eq!((seen.groups.len(), seen.log_damage.clone()), (2, None));
        let report = check(&disk.open().unwrap(), true).await.unwrap();
        assert!(report.is_clean(), "{report:#?}");
        let (store, report) = Store::open(disk.open().unwrap(), OpenOptions::default()).await.unwrap();
        assert!(!report.was_clean && report.records_replayed == 4, "{report:?}");
        verify(&store, &image).await;
        let store = reopen(&disk, store).await;
        verify(&store, &image).await;
        clean(&store, 0).await;
    });
    assert_eq!(
        without_labels(&made),
        without_labels(&golden),
        "the format has changed: see the top of this file"
    );
}
