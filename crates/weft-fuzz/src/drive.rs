//! Targets of what is on a drive: its structures one by one, and whole images.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::Buf;
use weft_rt::sim::{Sim, SimDisk};
use weft_store::fuzzing;
use weft_store::*;
use weft_types::*;

const SIZE: u64 = 1 << 20;
const DRIVE: DriveId = DriveId(0xd1);
const OBJECT: ObjectId = ObjectId::of_volume(VolumeId(7), 3);

/// A label.
pub(crate) fn label(bytes: &[u8]) {
    fuzzing::label(bytes);
}

/// The label of a device of several parts.
pub(crate) fn device_label(bytes: &[u8]) {
    fuzzing::device_label(bytes);
}

/// A superblock.
pub(crate) fn superblock(bytes: &[u8]) {
    fuzzing::superblock(bytes);
}

/// A zone table.
pub(crate) fn zone_table(bytes: &[u8]) {
    fuzzing::zone_table(bytes);
}

/// Records of the log.
pub(crate) fn record(bytes: &[u8]) {
    fuzzing::records(bytes);
}

/// A leaf of the block map.
pub(crate) fn leaf(bytes: &[u8]) {
    fuzzing::leaf(bytes);
}

/// A page of the block map.
pub(crate) fn page(bytes: &[u8]) {
    fuzzing::page(bytes);
}

/// What a drive knows beside its blocks.
pub(crate) fn state(bytes: &[u8]) {
    fuzzing::state(bytes);
}

/// The first bytes of a block of the images, of each format, that begins with a magic number, for each
/// such block.
fn parts(magic: &[u8], skip: usize, length: usize) -> Vec<Vec<u8>> {
    let images = [used_image(), old_image()];
    let blocks = images.iter().flat_map(|image| image.chunks(BLOCK_SIZE));
    let blocks = blocks.filter(|block| block.starts_with(magic));
    blocks.map(|block| block[skip..skip + length].to_vec()).collect()
}

pub(crate) fn label_seeds() -> Vec<Vec<u8>> {
    parts(b"WEFTDRIV", 8, 128)
}

pub(crate) fn device_label_seeds() -> Vec<Vec<u8>> {
    let image = Sim::new(1).block_on(async {
        let disk = SimDisk::new("parts", 8 << 20);
        let drive = disk.open().expect("nobody has it open");
        let options = DeviceFormat {
            fabric: FabricId(0xfa),
            device: DeviceId(0xde),
            drives: vec![DRIVE, DriveId(0xd2)],
            force: false,
            allow_tiny: true,
        };
        Device::format(&drive, &options).await.expect("it is large enough");
        disk.peek(0, BLOCK_SIZE)
    });
    vec![image[8..148].to_vec()]
}

pub(crate) fn superblock_seeds() -> Vec<Vec<u8>> {
    [parts(b"WEFTSUPR", 8, 72), parts(b"WEFTSUP2", 8, 96)].concat()
}

pub(crate) fn zone_table_seeds() -> Vec<Vec<u8>> {
    vec![vec![1, 2, 3, 4, 5, 0, 0, 0, 9, 9, 9, 9, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0]]
}

pub(crate) fn record_seeds() -> Vec<Vec<u8>> {
    let of = |batch: &[u8]| {
        let number = |at: usize| u32::from_le_bytes(batch[at..at + 4].try_into().expect("4 bytes"));
        let records = &batch[64..64 + number(52) as usize];
        (number(56) > 0).then(|| [&number(56).to_le_bytes(), records].concat())
    };
    parts(b"WLOG", 0, BLOCK_SIZE).iter().filter_map(|batch| of(batch)).collect()
}

/// Pages of a kind, without what fills them up.
fn pages(kind: u8) -> Vec<Vec<u8>> {
    let mut pages = parts(b"WPAG", 24, BLOCK_SIZE - 24);
    pages.retain(|page| page[1] == kind);
    for page in &mut pages {
        let end = page.iter().rposition(|b| *b != 0).map_or(0, |at| at + 9);
        page.truncate(end);
    }
    pages
}

pub(crate) fn page_seeds() -> Vec<Vec<u8>> {
    pages(0).into_iter().map(|page| [&page[2..4], &page[8.min(page.len())..]].concat()).collect()
}

pub(crate) fn leaf_seeds() -> Vec<Vec<u8>> {
    let of = |page: Vec<u8>| {
        let (body, key) = (page.get(8..)?, if page[4] == 0 { 26 } else { 33 });
        let length = usize::from(u16::from_le_bytes([*body.get(key)?, *body.get(key + 1)?]));
        body.get(key + 2..key + 2 + length).map(<[u8]>::to_vec)
    };
    pages(0).into_iter().filter_map(of).collect()
}

pub(crate) fn state_seeds() -> Vec<Vec<u8>> {
    let of = |page: Vec<u8>| {
        let length = usize::from(u16::from_le_bytes([page[2], page[3]]));
        page.get(20..20 + length).map(<[u8]>::to_vec)
    };
    pages(1).into_iter().filter_map(of).collect()
}

fn group(id: u64, epoch: u64, role: Role, since: u64) -> Group {
    let slots = vec![Slot { drive: DRIVE, role, since: Epoch(since) }];
    Group { id: GroupId(id), pool: PoolId(1), epoch: Epoch(epoch), slots, floor: Default::default() }
}

fn write(group: u64, range: BlockRange, counter: u64, payload: Payload) -> Write {
    let version = Version::new(counter, SessionSlot(1));
    Write { group: GroupId(group), object: OBJECT, range, version, kind: WriteKind::Client, payload }
}

fn plain(byte: u8, count: u32) -> Payload {
    let data = Buf::from(vec![byte; count as usize * BLOCK_SIZE]);
    let crcs = data.chunks(BLOCK_SIZE).map(weft_wire::crc32c).collect();
    Payload::Data { data, crcs }
}

/// A drive in use: checkpoints, and a log behind the newest.
async fn use_drive(disk: &SimDisk) -> Result<(), StoreError> {
    let options = FormatOptions::new(FabricId(0xfa), DRIVE);
    let options = FormatOptions { allow_tiny: true, log_bytes: Some(128 << 10), ..options };
    Store::format(&disk.open().expect("nobody has it"), options).await?;
    let (store, _) = Store::open(disk.open().expect("nobody has it"), OpenOptions::default()).await?;
    store.set_group(group(1, 2, Role::InSync, 1)).await?;
    store.set_group(group(2, 5, Role::Syncing, 4)).await?;
    store.close_sessions(Some(SessionId(4)), &[SessionId(9)]).await?;
    store.set_generation(VolumeId(7), Generation(3)).await?;
    store.put_map_copy(42, b"a fabric map").await?;
    for i in 0..6 {
        store
            .write(write(1, BlockRange::new(120 + 20 * i, 16), 5 + u64::from(i), plain(i as u8, 16)))
            .await?;
    }
    store.write(write(1, BlockRange::new(1000, 300), 40, Payload::Zero)).await?;
    store.checkpoint().await?;
    let mark = OpenEntry {
        version: Version::new(30, SessionSlot(7)),
        object: OBJECT,
        range: BlockRange::new(9, 20),
        settled: true,
    };
    let marks = Marks { open: vec![mark], watermarks: vec![(SessionSlot(7), Version::from_bits(77))] };
    store.merge_marks(GroupId(2), Epoch(4), Epoch(5), marks).await?;
    let Payload::Data { data, crcs } = plain(0x70, 8) else { unreachable!("it is data") };
    let range = BlockRange::new(10, 8);
    let copied =
        CopyEntry { range, version: Version::from_bits(4 << 16), data: CopyData::Data { buf: data, crcs } };
    store.verify_chunk(GroupId(2), OBJECT, ChunkIndex(0), Epoch(4), vec![copied], false).await?;
    store.verify_chunk(GroupId(2), OBJECT, ChunkIndex(1), Epoch(4), Vec::new(), true).await?;
    store.checkpoint().await?;
    store.settle(GroupId(1), OBJECT, BlockRange::new(122, 2), Version::new(5, SessionSlot(1)));
    store.advance(GroupId(1), SessionSlot(1), Version::new(5, SessionSlot(1)));
    store.write(write(1, BlockRange::new(130, 4), 60, plain(0x33, 4))).await?;
    store.write(write(1, BlockRange::new(131, 1), 61, Payload::Zero)).await?;
    store.drop_objects(VolumeId(8)).await?;
    weft_rt::sleep(Duration::from_millis(50)).await;
    Ok(())
}

thread_local! {
    static USED: RefCell<Option<Rc<Vec<u8>>>> = const { RefCell::new(None) };
}

/// The image that images to try are made of: always the same one.
fn used_image() -> Rc<Vec<u8>> {
    USED.with_borrow_mut(|used| {
        let make = || {
            Sim::new(1).block_on(async {
                let disk = SimDisk::new("made", SIZE);
                use_drive(&disk).await.expect("a drive can be used");
                Rc::new(disk.peek(0, SIZE as usize))
            })
        };
        used.get_or_insert_with(make).clone()
    })
}

/// Changes the image as the input says: which block (of those that hold metadata), where in it, how long, and the bytes
/// to put there.
fn change(image: &mut [u8], bytes: &[u8]) {
    let places = fuzzing::metadata_places(image);
    let mut rest = bytes;
    while let Some((head, tail)) = rest.split_first_chunk::<4>() {
        let place = places[usize::from(head[0]) % places.len()] as usize;
        let at = usize::from(u16::from_le_bytes([head[1], head[2]])) % BLOCK_SIZE;
        let length = usize::from(head[3] % 32).min(tail.len()).min(BLOCK_SIZE - at);
        image[place * BLOCK_SIZE + at..][..length].copy_from_slice(&tail[..length]);
        rest = &tail[length..];
    }
}

/// A drive that a program of format 1 left, as its store's tests have it: lines of 32 bytes that are not
/// zero, each with its offset and how often it repeats.
const OLD: &str = include_str!("../../weft-store/tests/golden/drive-v1-used.txt");

thread_local! {
    static OLD_IMAGE: RefCell<Option<Rc<Vec<u8>>>> = const { RefCell::new(None) };
}

/// The image of format 1.
fn old_image() -> Rc<Vec<u8>> {
    let number = |text: &str, radix| usize::from_str_radix(text, radix).expect("a number");
    let make = || {
        let mut image = vec![0; SIZE as usize];
        for line in OLD.lines().skip(1) {
            let fields: Vec<&str> = line.split(' ').collect();
            let (at, times) = (number(fields[0], 16), number(fields[1], 10));
            let bytes: Vec<u8> = (0..32).map(|i| number(&fields[2][2 * i..2 * i + 2], 16) as u8).collect();
            image[at..at + 32 * times].copy_from_slice(&bytes.repeat(times));
        }
        Rc::new(image)
    };
    OLD_IMAGE.with_borrow_mut(|image| image.get_or_insert_with(make).clone())
}

/// A whole small drive: inspected, checked, opened, read, written to, checkpointed and closed.
pub(crate) fn image(bytes: &[u8]) {
    try_image(Vec::clone(&used_image()), bytes);
}

/// The same with a drive of format 1: opening it converts it.
pub(crate) fn image_of_format_1(bytes: &[u8]) {
    try_image(Vec::clone(&old_image()), bytes);
}

fn try_image(mut image: Vec<u8>, bytes: &[u8]) {
    change(&mut image, bytes);
    fuzzing::seal(&mut image);
    Sim::new(1).block_on(async move {
        let disk = SimDisk::new("image", SIZE);
        disk.poke(0, &image);
        drop(image);
        let _ = inspect(&disk.open().expect("nobody has it")).await;
        let _ = check(&disk.open().expect("nobody has it"), true).await;
        let wanted = Wanted { group: GroupId(1), object: OBJECT, range: BlockRange::new(100, 256) };
        let _ = locate(&disk.open().expect("nobody has it"), &[wanted], true).await;
        let opened = Store::open(disk.open().expect("nobody has it"), OpenOptions::default()).await;
        if let Ok((store, _)) = opened {
            // Whatever is wrong with the drive may be met at any of the steps; then that is the end of it.
            let _ = live_on(&store).await;
            let _ = store.close().await;
        }
        weft_rt::sleep(Duration::from_millis(100)).await;
    });
}

async fn live_on(store: &Store) -> Result<(), StoreError> {
    for id in store.groups() {
        store.holding(id).await?;
        store.volumes_in(id).await?;
        store.group(id).map(|group| group.read_set().count());
    }
    let around = BlockRange::new(100, 256);
    store.read(GroupId(1), OBJECT, around).await?;
    for (counter, first) in (1000..).zip([118, 130, 200, 1010]) {
        let range = BlockRange::new(first, 12);
        let verdicts = store.write(write(1, range, counter, plain(9, 12))).await?;
        if !verdicts.iter().all(|(_, verdict)| *verdict == Verdict::Applied) {
            continue;
        }
        for extent in store.read(GroupId(1), OBJECT, range).await? {
            match extent.data {
                ExtentData::Data { buf, .. } => {
                    assert!(buf.iter().all(|b| *b == 9), "what was written reads back")
                }
                other => panic!("{other:?} where data was just written"),
            }
        }
    }
    store.write(write(1, BlockRange::new(0, 2000), 2000, Payload::Zero)).await?;
    store.checkpoint().await?;
    store.check(true).await?;
    store.drop_group(GroupId(2)).await?;
    weft_rt::sleep(Duration::from_millis(50)).await;
    store.write(write(1, BlockRange::new(0, 64), 3000, plain(3, 64))).await?;
    store.checkpoint().await
}

pub(crate) fn image_seeds() -> Vec<Vec<u8>> {
    // Nothing is changed; then a field each of the label, the superblock and a batch.
    vec![
        vec![],
        vec![0, 64, 0, 8, 0, 2, 0, 0, 0, 0, 0, 0],
        vec![1, 40, 0, 8, 0, 0x10, 0, 0, 0, 0, 0, 0],
        vec![2, 24, 0, 2, 9, 9, 3, 56, 0, 4, 1, 0, 0, 0],
    ]
}
