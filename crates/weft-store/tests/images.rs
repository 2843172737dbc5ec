//! Drives as the program of each format left them: each must open, hold exactly what was on it, and be in good order.
//!
//! The files of a format are made once, by the program that writes that format, and are never made again:
//! `WEFT_BLESS_IMAGES=1 cargo test -p weft-store --test suite images` makes those of the present one.

use crate::image;
use crate::model;

use image::*;
use model::*;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use weft_rt::sim::{Sim, SimDisk};
use weft_rt::sync::join_all;
use weft_store::*;
use weft_types::*;

/// The format that the present program writes.
const FORMAT: u16 = 2;

/// What each image is a case of.
const NAMES: &[&str] = &["used", "deep", "full", "fresh"];

/// The smallest drive that is used, and the smallest that tests use.
const SIZE: u64 = 64 << 20;
const TINY: u64 = 4 << 20;

/// Bytes of the largest image that is kept.
const PACKED_BYTES_MAX: usize = 100 << 10;

const OTHER: DriveId = DriveId(0xd2);
const THIRD: DriveId = DriveId(0xd3);
const OBJECT: ObjectId = ObjectId::of_volume(VolumeId(7), 3);

fn file(format: u16, name: &str, kind: &str) -> PathBuf {
    PathBuf::from(format!("{}/tests/golden/image-v{format}-{name}.{kind}", env!("CARGO_MANIFEST_DIR")))
}

fn group_of(id: u64, epoch: u64, slots: &[(DriveId, Role, u64)]) -> Group {
    let slot = |(drive, role, since): &(DriveId, Role, u64)| Slot {
        drive: *drive,
        role: *role,
        since: Epoch(*since),
    };
    let slots = slots.iter().map(slot).collect();
    Group { id: GroupId(id), pool: PoolId(2), epoch: Epoch(epoch), slots, floor: Default::default() }
}

/// Blocks of one byte each: they compress well.
fn plain(byte: u8, count: u32) -> Payload {
    let data = weft_rt::Buf::from(vec![byte; count as usize * BLOCK_SIZE]);
    let crcs = data.chunks(BLOCK_SIZE).map(weft_wire::crc32c).collect();
    Payload::Data { data, crcs }
}

fn at(first: u32, count: u32) -> BlockRange {
    BlockRange::new(first, count)
}

fn by(slot: u16, counter: u64, write: Write) -> Write {
    Write { version: Version::new(counter, SessionSlot(slot)), ..write }
}

async fn put(store: &Rc<Store>, group: u64, write: Write) {
    store.write(Write { group: GroupId(group), ..write }).await.unwrap();
}

/// A chunk of group 2 becomes what a source has: data, a tombstone, damage.
async fn copy(store: &Rc<Store>, stint: u64, chunk: u16, counter: u64) {
    let first = ChunkIndex(chunk).range().first;
    let Payload::Data { data, crcs } = plain(0x70 + counter as u8, 8) else { unreachable!() };
    let version = Version::new(counter, SessionSlot(3));
    let source = vec![
        CopyEntry { range: at(first + 10, 8), version, data: CopyData::Data { buf: data, crcs } },
        CopyEntry { range: at(first + 40, 4), version, data: CopyData::Zero },
        CopyEntry { range: at(first + 50, 2), version, data: CopyData::Damaged },
    ];
    store.verify_chunk(GroupId(2), OBJECT, ChunkIndex(chunk), Epoch(stint), source, false).await.unwrap();
}

/// Everything that a drive can hold, in checkpoints and in the log behind them; the newest batch is in doubt.
async fn make_used(disk: &SimDisk) -> Rc<Store> {
    format(disk, options()).await.unwrap();
    let store = open(disk).await;
    let (mine, syncing, out) = ((DRIVE, Role::InSync, 1), (DRIVE, Role::Syncing, 4), (DRIVE, Role::Out, 2));
    for group in [
        group_of(1, 3, &[mine, (OTHER, Role::InSync, 1), (THIRD, Role::Out, 3)]),
        group_of(2, 5, &[(OTHER, Role::InSync, 1), syncing]),
        group_of(3, 2, &[(OTHER, Role::InSync, 1), out, (THIRD, Role::Syncing, 2)]),
        group_of(4, 1, &[mine]),
        group_of(5, 8, &[(OTHER, Role::InSync, 7), (THIRD, Role::InSync, 8)]),
        group_of(u64::MAX - 1, 1, &[mine]),
    ] {
        store.set_group(group).await.unwrap();
    }
    store.close_sessions(Some(SessionId(4)), &[SessionId(9), SessionId(12)]).await.unwrap();
    store.set_generation(VolumeId(7), Generation(3)).await.unwrap();
    store.set_generation(VolumeId(8), Generation(1)).await.unwrap();
    store.put_map_copy(41, &[b'm'; 9000]).await.unwrap();
    store.put_map_copy(42, &[b'n'; 10_000]).await.unwrap();
    write_and_discard(&store, disk).await;
    store.checkpoint().await.unwrap();
    store.drop_group(GroupId(4)).await.unwrap();
    store.drop_objects(VolumeId(8)).await.unwrap();
    store.checkpoint().await.unwrap();
    fill_log(&store).await;
    end_in_doubt(&store, disk).await;
    store
}

/// Data, tombstones, damage, marks of several sessions.
async fn write_and_discard(store: &Rc<Store>, disk: &SimDisk) {
    for (i, object) in
        [OBJECT, ObjectId::of_volume(VolumeId(7), 0), ObjectId::of_volume(VolumeId(1 << 62), 5)]
            .into_iter()
            .enumerate()
    {
        let byte = 0x10 * (i as u8 + 1);
        put(store, 1, by(1, 50, client(object, at(100, 60), 0, plain(byte, 60)))).await;
        put(store, 1, by(2, 60, client(object, at(120, 3), 0, plain(byte + 1, 3)))).await;
        put(store, 1, by(1, 70, zero(object, at(124, 2), 0))).await;
        put(store, 1, by(3, 65, client(object, at(500, 1), 0, plain(byte + 2, 1)))).await;
    }
    put(store, 1, by(2, 80, zero(OBJECT, at(1000, 3000), 0))).await;
    let last = limits::OBJECT_CHUNKS_MAX * limits::CHUNK_BLOCKS - 2;
    put(store, 1, by(2, 81, client(OBJECT, at(last, 2), 0, plain(0x2f, 2)))).await;
    for group in [3, 4, u64::MAX - 1] {
        put(store, group, by(1, 5, client(OBJECT, at(120, 16), 0, plain(0x40 ^ group as u8, 16)))).await;
    }
    put(store, 1, by(1, 71, client(ObjectId::of_volume(VolumeId(8), 2), at(0, 140), 0, plain(0x50, 140))))
        .await;
    // A repair is refused, and its version remembered.
    let refused = by(5, 40, client(OBJECT, at(100, 2), 0, plain(0x51, 2)));
    put(store, 1, Write { kind: WriteKind::Repair, ..refused }).await;
    // Two blocks rot, and a read finds them; one is healed.
    for _ in 0..2 {
        let place = find_block(disk, &[0x10; BLOCK_SIZE]);
        disk.flip(place, 0);
        store.read(GroupId(1), OBJECT, at(100, 60)).await.unwrap();
    }
    put(store, 1, by(1, 50, client(OBJECT, at(159, 1), 0, plain(0x10, 1)))).await;
    copy(store, 4, 0, 3).await;
    copy(store, 4, 7, 4).await;
    let equal = ChunkIndex(9);
    store.verify_chunk(GroupId(2), OBJECT, equal, Epoch(4), Vec::new(), true).await.unwrap();
    store.settle(GroupId(1), OBJECT, at(121, 1), Version::new(60, SessionSlot(2)));
    store.advance(GroupId(1), SessionSlot(1), Version::new(70, SessionSlot(1)));
}

/// Records of every kind behind the newest checkpoint.
async fn fill_log(store: &Rc<Store>) {
    let entry = OpenEntry {
        version: Version::new(30, SessionSlot(7)),
        object: OBJECT,
        range: at(9, 20),
        settled: true,
    };
    let watermarks = vec![(SessionSlot(7), Version::new(20, SessionSlot(7)))];
    let marks = Marks { open: vec![entry], watermarks };
    store.merge_marks(GroupId(2), Epoch(4), Epoch(5), marks).await.unwrap();
    store.set_cursor(GroupId(2), Epoch(4), Cursor::At(OBJECT, ChunkIndex(2))).await.unwrap();
    copy(store, 4, 2, 5).await;
    store.set_group(group_of(1, 4, &[(DRIVE, Role::InSync, 1), (OTHER, Role::InSync, 1)])).await.unwrap();
    put(store, 1, by(2, 90, client(OBJECT, at(130, 4), 0, plain(0x61, 4)))).await;
    put(store, 1, by(3, 91, zero(OBJECT, at(131, 1), 0))).await;
    put(store, 1, by(3, 92, client(OBJECT, at(132, 1), 0, plain(0x62, 1)))).await;
    store.settle(GroupId(1), OBJECT, at(130, 2), Version::new(90, SessionSlot(2)));
    store.advance(GroupId(1), SessionSlot(3), Version::new(65, SessionSlot(3)));
    let refused = by(5, 41, client(OBJECT, at(131, 1), 0, plain(0x63, 1)));
    put(store, 1, Write { kind: WriteKind::Repair, ..refused }).await;
    assert!(store.forget_session(GroupId(3), SessionSlot(6)).await.unwrap());
    store.close_sessions(Some(SessionId(6)), &[SessionId(13)]).await.unwrap();
    store.set_generation(VolumeId(9), Generation(2)).await.unwrap();
    store.drop_objects(VolumeId(10)).await.unwrap();
    store.set_group(group_of(6, 1, &[(DRIVE, Role::Syncing, 1), (OTHER, Role::InSync, 1)])).await.unwrap();
}

/// Three changes in one batch, which nothing says was durable; the data of two of them has not arrived.
async fn end_in_doubt(store: &Rc<Store>, disk: &SimDisk) {
    // With their leaves in RAM, and begun in one step, they are one batch.
    for (group, range) in [(1, at(200, 230)), (2, ChunkIndex(3).range())] {
        store.versions(GroupId(group), OBJECT, range).await.unwrap();
    }
    let mut all: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
    for (first, byte, count) in [(200, 0x71, 3), (300, 0x72, 130)] {
        let write = by(2, 95, client(OBJECT, at(first, count), 0, plain(byte, count)));
        all.push(Box::pin(put(store, 1, write)));
    }
    all.push(Box::pin(copy(store, 4, 3, 8)));
    join_all(all).await;
    for byte in [0x72, 0x78] {
        let lost = find_block(disk, &[byte; BLOCK_SIZE]);
        disk.poke(lost, &[0; BLOCK_SIZE]);
    }
}

/// A block map of three levels, on a drive that was closed in order.
async fn make_deep(disk: &SimDisk) -> Rc<Store> {
    format(disk, options()).await.unwrap();
    let store = open(disk).await;
    store.set_group(group_of(1, 1, &[(DRIVE, Role::InSync, 1)])).await.unwrap();
    store.advance(GroupId(1), SessionSlot(1), Version::new(100, SessionSlot(1)));
    // Tombstones of two versions in turn make the largest leaves without a block of data.
    for index in 0..2 {
        let object = ObjectId::of_volume(VolumeId(3), index);
        put(&store, 1, by(1, 20, zero(object, at(0, 64 * limits::CHUNK_BLOCKS), 0))).await;
        for block in (0..64 * limits::CHUNK_BLOCKS).step_by(2) {
            put(&store, 1, by(1, 21, zero(object, at(block, 1), 0))).await;
        }
    }
    // Small leaves beside them, some with data.
    for index in 10..200 {
        let object = ObjectId::of_volume(VolumeId(3), index);
        put(&store, 1, by(1, 22 + index % 7, zero(object, at(5, 2), 0))).await;
        if index % 16 == 0 {
            put(&store, 1, by(1, 40, client(object, at(7, 1), 0, plain(index as u8, 1)))).await;
        }
    }
    store.close().await.unwrap();
    store
}

/// A drive without room for data: beside data it has nothing but what checkpoints need.
async fn make_full(disk: &SimDisk) -> Rc<Store> {
    format(disk, FormatOptions { allow_tiny: true, ..options() }).await.unwrap();
    let store = open(disk).await;
    store.set_group(group_of(1, 1, &[(DRIVE, Role::InSync, 1)])).await.unwrap();
    let mut counter = 10;
    for index in 0u64.. {
        counter += 1;
        let object = ObjectId::of_volume(VolumeId(3), index % 200);
        let first = (index / 200) as u32 * 7;
        let write = by(1, counter, client(object, at(first, 3), 0, plain(index as u8, 3)));
        match store.write(Write { group: GroupId(1), ..write }).await {
            Ok(_) => {}
            Err(StoreError::NoSpace { .. }) => break,
            Err(error) => panic!("{error}"),
        }
        store.advance(GroupId(1), SessionSlot(1), Version::new(counter, SessionSlot(1)));
    }
    for index in 0..50 {
        put(
            &store,
            1,
            by(1, counter + 1, zero(ObjectId::of_volume(VolumeId(3), 300 + index), at(0, 130), 0)),
        )
        .await;
    }
    store
}

/// A drive on which no store was ever open.
async fn make_fresh(disk: &SimDisk) -> Rc<Store> {
    format(disk, options()).await.unwrap();
    open(&disk.copy("looked at")).await
}

fn make(name: &'static str) -> SimDisk {
    Sim::new(1).block_on(async move {
        let disk = SimDisk::new("made", if name == "full" { TINY } else { SIZE });
        let store = match name {
            "used" => make_used(&disk).await,
            "deep" => make_deep(&disk).await,
            "full" => make_full(&disk).await,
            _ => make_fresh(&disk).await,
        };
        let made = disk.copy("made");
        drop(store);
        made
    })
}

/// What a drive holds as the present program finds it, with what opening it took.
async fn look(disk: &SimDisk) -> (Rc<Store>, String) {
    let before = check(&disk.open().unwrap(), true).await.unwrap();
    assert!(before.findings.iter().all(|f| f.severity != Severity::Fatal), "{before:#?}");
    let seen = inspect(&disk.open().unwrap()).await.unwrap();
    assert_eq!((seen.damaged_labels, seen.log_damage), (0, None));
    let (store, report) = Store::open(disk.open().unwrap(), OpenOptions::default()).await.unwrap();
    let found = format!(
        "{} batches, {} records, {} blocks had not arrived; {} batches and {} records in the log\n{}",
        report.batches_replayed,
        report.records_replayed,
        report.blocks_dropped,
        seen.log_batches,
        seen.log_records,
        describe(&store).await
    );
    (store, found)
}

fn bless(name: &'static str) {
    let disk = make(name);
    let packed = pack(&disk);
    let found = Sim::new(2).block_on(async move { look(&disk).await.1 });
    std::fs::write(file(FORMAT, name, "img.gz"), packed).unwrap();
    std::fs::write(file(FORMAT, name, "txt.gz"), compress(found.as_bytes())).unwrap();
}

/// Opens an image and compares; again after it was closed; and writes to it.
async fn verify(disk: SimDisk, wanted: String) {
    let (store, found) = look(&disk).await;
    assert_eq!(found, wanted);
    let (_, wanted) = wanted.split_once('\n').unwrap();
    let damaged = store.check(true).await.unwrap();
    assert!(damaged.findings.iter().all(|f| f.severity == Severity::Damage), "{damaged:#?}");
    let store = reopen(&disk, store).await;
    assert_eq!(describe(&store).await, wanted);
    store.close().await.unwrap();
    drop(store);
    let report = check(&disk.open().unwrap(), true).await.unwrap();
    assert!(report.findings.iter().all(|f| f.severity == Severity::Damage), "{report:#?}");
    assert_eq!(report.findings.is_empty(), damaged.findings.is_empty(), "{report:#?}");
    go_on(&disk).await;
}

/// Life goes on on the drive.
async fn go_on(disk: &SimDisk) {
    let store = open(disk).await;
    store.set_group(group_of(77, 1, &[(DRIVE, Role::InSync, 1)])).await.unwrap();
    let object = ObjectId::of_volume(VolumeId(70), 1);
    let write = by(9, 5, client(object, at(120, 16), 0, plain(0x99, 16)));
    let written = store.write(Write { group: GroupId(77), ..write }).await;
    assert!(matches!(written, Ok(_) | Err(StoreError::NoSpace { .. })), "{written:?}");
    put(&store, 77, by(9, 6, zero(object, at(130, 1), 0))).await;
    let before = describe(&store).await;
    drop(store);
    weft_rt::sleep(std::time::Duration::from_millis(50)).await;
    let store = open(disk).await;
    assert_eq!(describe(&store).await, before);
    assert!(before.contains("130 1 at"), "{before}");
    store.close().await.unwrap();
}

#[test]
fn drives_of_every_format_hold_what_they_held() {
    if std::env::var_os("WEFT_BLESS_IMAGES").is_some() {
        NAMES.iter().for_each(|name| bless(name));
    }
    for format in 1..=FORMAT {
        for name in NAMES {
            let packed = std::fs::read(file(format, name, "img.gz")).unwrap();
            assert!(packed.len() <= PACKED_BYTES_MAX, "{name} has {} bytes", packed.len());
            let wanted =
                String::from_utf8(decompress(&std::fs::read(file(format, name, "txt.gz")).unwrap())).unwrap();
            let disk = unpack(name, &packed);
            Sim::new(3).block_on(verify(disk, wanted));
        }
    }
}
