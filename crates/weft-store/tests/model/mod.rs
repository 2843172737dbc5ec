//! What the tests of the store share: drives, patterns that tell which write a block came from, and short
//! forms of requests.

#![allow(dead_code, missing_docs)]

use std::rc::Rc;
use weft_rt::sim::SimDisk;
use weft_rt::{Buf, BufMut};
use weft_store::*;
use weft_types::*;

pub const DRIVE: DriveId = DriveId(0xd1);

pub fn options() -> FormatOptions {
    FormatOptions::new(FabricId(0xfa), DRIVE)
}

pub async fn format(disk: &SimDisk, options: FormatOptions) -> Result<Label, StoreError> {
    Store::format(&disk.open().unwrap(), options).await
}

pub async fn open(disk: &SimDisk) -> Rc<Store> {
    Store::open(disk.open().unwrap(), OpenOptions::default()).await.unwrap().0
}

/// Opens a store that reuses places as early as it may.
pub async fn open_reusing(disk: &SimDisk) -> Rc<Store> {
    let options = OpenOptions { reuse_at_once: true, ..Default::default() };
    Store::open(disk.open().unwrap(), options).await.unwrap().0
}

/// A store on a small drive with a small log, with group 1.
pub async fn new_store(disk: &SimDisk) -> Rc<Store> {
    format(disk, FormatOptions { allow_tiny: true, log_bytes: Some(256 << 10), ..options() }).await.unwrap();
    let store = open(disk).await;
    store.set_group(entry(1, 1, Role::InSync, 1)).await.unwrap();
    store
}

/// Closes the store and opens its drive again, which must find it clean.
pub async fn reopen(disk: &SimDisk, store: Rc<Store>) -> Rc<Store> {
    store.close().await.unwrap();
    drop(store);
    let drive = disk.open().expect("a closed store has let go of its drive");
    let (store, report) = Store::open(drive, OpenOptions::default()).await.unwrap();
    assert!(report.was_clean, "{report:?}");
    store
}

/// Nothing on the store's drive is amiss, beside this many damaged blocks.
pub async fn clean(store: &Rc<Store>, damaged: usize) {
    let report = store.check(true).await.unwrap();
    assert_eq!(report.findings.len(), damaged, "{report:#?}");
    assert!(report.findings.iter().all(|f| f.severity == Severity::Damage));
}

pub fn entry(group: u64, epoch: u64, role: Role, since: u64) -> Group {
    let slots = vec![Slot { drive: DRIVE, role, since: Epoch(since) }];
    Group { id: GroupId(group), pool: PoolId(1), epoch: Epoch(epoch), slots, floor: Default::default() }
}

pub fn version(counter: u64) -> Version {
    Version::new(counter, SessionSlot(1))
}

/// A block that says by whom it was written.
pub fn pattern(seed: u64, block: u32) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_SIZE];
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = seed << 32 | u64::from(block) << 12 | i as u64;
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

pub fn fill_at(seed: u64, first: u32, count: u32) -> Payload {
    let mut data = BufMut::aligned(count as usize * BLOCK_SIZE);
    for i in 0..count {
        data[i as usize * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(&pattern(seed, first + i));
    }
    let crcs = data.chunks(BLOCK_SIZE).map(weft_wire::crc32c).collect();
    Payload::Data { data: data.freeze(), crcs }
}

pub fn fill(seed: u64, count: u32) -> Payload {
    fill_at(seed, 0, count)
}

pub fn client(object: ObjectId, range: BlockRange, counter: u64, payload: Payload) -> Write {
    let group = GroupId(1);
    Write {
        group,
        object,
        range,
        version: Version::from_bits(counter << 16 | 1),
        kind: WriteKind::Client,
        payload,
    }
}

pub fn zero(object: ObjectId, range: BlockRange, counter: u64) -> Write {
    client(object, range, counter, Payload::Zero)
}

/// Whose data an extent is; `None` for none. Panics if its blocks are mixed.
pub fn seed_of(extent: &Extent) -> Option<u64> {
    let ExtentData::Data { buf, .. } = &extent.data else { return None };
    let seeds: Vec<u64> = buf.chunks(BLOCK_SIZE).map(seed_of_block).collect();
    assert!(seeds.iter().all(|s| *s == seeds[0]), "{seeds:?}");
    Some(seeds[0])
}

pub fn seed_of_block(block: &[u8]) -> u64 {
    let word = |i: usize| u64::from_le_bytes(block[8 * i..8 * i + 8].try_into().unwrap());
    for i in 0..BLOCK_SIZE / 8 {
        assert_eq!(word(i) & 0xfff, i as u64, "the block is torn");
        assert_eq!(word(i) >> 12, word(0) >> 12, "the block is torn");
    }
    word(0) >> 32
}

/// Where on the disk a block lies.
pub fn find_block(disk: &SimDisk, bytes: &[u8]) -> u64 {
    let all = disk.peek(0, disk.size_bytes() as usize);
    all.chunks(BLOCK_SIZE).rposition(|block| block == bytes).unwrap() as u64 * BLOCK_SIZE as u64
}

pub async fn copy_entries(source: &Rc<Store>, object: ObjectId, chunk: ChunkIndex) -> Vec<CopyEntry> {
    let found = source.read(GroupId(1), object, chunk.range()).await.unwrap();
    found
        .into_iter()
        .map(|x| CopyEntry {
            range: x.range,
            version: x.version,
            data: match x.data {
                ExtentData::Data { buf, crcs } => CopyData::Data { buf: Buf::from(&buf[..]), crcs },
                ExtentData::Zero if x.version == Version::ZERO => CopyData::Absent,
                ExtentData::Zero => CopyData::Zero,
                ExtentData::Damaged => CopyData::Damaged,
            },
        })
        .collect()
}
