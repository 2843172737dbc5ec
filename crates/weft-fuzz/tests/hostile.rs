//! Drives whose structures verify and contradict each other: somebody wrote them so, or a bug did. They are refused
//! with a clear error, when they are opened or when the contradiction is met, and never bring the process down.

use std::rc::Rc;
use weft_rt::Buf;
use weft_rt::sim::{Sim, SimDisk};
use weft_store::fuzzing::seal;
use weft_store::*;
use weft_types::*;

const SIZE: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;
const DRIVE: DriveId = DriveId(0xd1);

fn entry() -> Group {
    let slots = vec![Slot { drive: DRIVE, role: Role::InSync, since: Epoch(1) }];
    Group { id: GroupId(1), pool: PoolId(1), epoch: Epoch(1), slots, floor: Default::default() }
}

/// A write of blocks that are full of one byte.
fn write(first: u32, count: u32, byte: u8) -> Write {
    let data = Buf::from(vec![byte; count as usize * BLOCK_SIZE]);
    let crcs = data.chunks(BLOCK_SIZE).map(weft_wire::crc32c).collect();
    Write {
        group: GroupId(1),
        object: ObjectId::default(),
        range: BlockRange::new(first, count),
        version: Version::new(u64::from(byte), SessionSlot(1)),
        kind: WriteKind::Client,
        payload: Payload::Data { data, crcs },
    }
}

/// The byte that block 0 is full of, after a check that finds nothing amiss.
async fn sound_byte(store: &Store) -> u8 {
    let report = store.check(true).await.unwrap();
    assert!(report.is_clean(), "{report:#?}");
    let found = store.read(GroupId(1), ObjectId::default(), BlockRange::new(0, 8)).await.unwrap();
    match &found[0].data {
        ExtentData::Data { buf, .. } => buf[0],
        other => panic!("{other:?}"),
    }
}

/// A drive with eight blocks of data in a checkpoint, and with more in the log if it is `used`. What is on it.
async fn image(used: bool) -> Vec<u8> {
    let disk = SimDisk::new("made", SIZE);
    let options = FormatOptions::new(FabricId(0xfa), DRIVE);
    let options = FormatOptions { allow_tiny: true, log_bytes: Some(128 << 10), ..options };
    Store::format(&disk.open().unwrap(), options).await.unwrap();
    let store = try_open(&disk).await.unwrap();
    store.set_group(entry()).await.unwrap();
    store.write(write(0, 8, 1)).await.unwrap();
    store.checkpoint().await.unwrap();
    if used {
        store.write(write(0, 8, 2)).await.unwrap();
        weft_rt::sleep(std::time::Duration::from_millis(50)).await;
    } else {
        store.close().await.unwrap();
    }
    drop(store);
    disk.peek(0, SIZE as usize)
}

/// A drive with an image, its checksums made right.
fn drive(mut image: Vec<u8>) -> SimDisk {
    seal(&mut image);
    let disk = SimDisk::new("hostile", SIZE);
    disk.poke(0, &image);
    disk
}

async fn parts(image: &[u8]) -> (Label, Superblock) {
    let found = inspect(&drive(image.to_vec()).open().unwrap()).await.unwrap();
    (found.label, found.superblock.unwrap())
}

async fn try_open(disk: &SimDisk) -> Result<Rc<Store>, StoreError> {
    Store::open(disk.open().unwrap(), OpenOptions::default()).await.map(|(store, _)| store)
}

/// The bit of a place in both slots of its zone's bitmap page.
fn set_bit(image: &mut [u8], label: &Label, place: u64, is_used: bool) {
    for slot in 0..2 {
        let byte = (label.region.bitmap_page(0, slot).offset() + place / 8) as usize;
        image[byte] =
            if is_used { image[byte] | 1 << (place % 8) } else { image[byte] & !(1 << (place % 8)) };
    }
}

/// Where the data of block 0 is said to lie by the leaf in the checkpoint.
fn leaf_at(image: &[u8], superblock: &Superblock) -> (u64, usize) {
    let root = superblock.root.unwrap();
    assert_eq!(root.level, 0);
    // Header 32, key 33, length 2, number of runs 2; first, count, kind 3; version 8; then the place.
    let at = root.page.place.offset() as usize + 32 + 33 + 2 + 2 + 3 + 8;
    (u64::from_le_bytes(image[at..at + 8].try_into().unwrap()), at)
}

/// One run of eight blocks, whose place is here, becomes two of four at the same place. The checksums move back by one
/// run.
fn share_place(image: &mut [u8], place_at: usize) {
    let run_at = place_at - 11;
    let mut run = image[run_at..run_at + 19].to_vec();
    let crcs = image[run_at + 19..run_at + 19 + 32].to_vec();
    run[1] = 4;
    let mut second = run.clone();
    second[0] = 4;
    let bytes = [run, second, crcs].concat();
    image[run_at..run_at + bytes.len()].copy_from_slice(&bytes);
    image[run_at - 2] = 2;
    let length = u16::from_le_bytes([image[run_at - 4], image[run_at - 3]]) + 19;
    image[run_at - 4..run_at - 2].copy_from_slice(&length.to_le_bytes());
}

fn is_contradiction(error: &StoreError) -> bool {
    matches!(error, StoreError::MetadataDamaged { .. }) && error.to_string().contains("formatted anew")
}

#[test]
fn an_image_that_is_only_sealed_again_is_as_it_was() {
    Sim::new(1).block_on(async {
        for used in [false, true] {
            let made = image(used).await;
            let mut sealed = made.clone();
            seal(&mut sealed);
            assert!(sealed == made, "sealing changes what is sound");
            let store = try_open(&drive(sealed)).await.unwrap();
            assert_eq!(sound_byte(&store).await, if used { 2 } else { 1 });
        }
    });
}

#[test]
fn a_log_that_replaces_what_the_bitmap_has_as_free_is_refused() {
    Sim::new(2).block_on(async {
        let mut image = image(true).await;
        let (label, superblock) = parts(&image).await;
        let (place, _) = leaf_at(&image, &superblock);
        set_bit(&mut image, &label, place, false);
        let error = try_open(&drive(image)).await.err().expect("the drive contradicts itself");
        assert!(is_contradiction(&error), "{error}");
    });
}

#[test]
fn a_log_that_gives_a_place_back_twice_is_refused() {
    Sim::new(11).block_on(async {
        let mut image = image(true).await;
        let (_, superblock) = parts(&image).await;
        let (place, at) = leaf_at(&image, &superblock);
        share_place(&mut image, at);
        let error = try_open(&drive(image)).await.err().expect("both runs are replaced");
        assert!(is_contradiction(&error), "{error}");
        assert!(error.to_string().contains(&format!("place {place}, which is free already")), "{error}");
    });
}

#[test]
fn blocks_that_share_a_place_fail_the_drive_and_not_the_process() {
    Sim::new(3).block_on(async {
        let mut image = image(false).await;
        let (_, superblock) = parts(&image).await;
        let (place, at) = leaf_at(&image, &superblock);
        share_place(&mut image, at);
        // What the second run had is in use by nothing.
        let disk = drive(image);
        let report = check(&disk.open().unwrap(), true).await.unwrap();
        assert!(report.findings.iter().any(|f| f.severity == Severity::Fatal), "{report:#?}");
        let store = try_open(&disk).await.unwrap();
        let mut failure = None;
        for counter in 10..20 {
            if let Err(error) = store.write(write(0, 8, counter)).await {
                failure = Some(error);
                break;
            }
            weft_rt::sleep(std::time::Duration::from_millis(50)).await;
        }
        let failure = failure.expect("the place is given back twice");
        assert!(matches!(failure, StoreError::Failed { .. }), "{failure}");
        assert!(failure.to_string().contains(&format!("place {place}")), "{failure}");
    });
}

#[test]
fn a_block_whose_place_is_free_or_beyond_the_data_is_refused_when_it_is_met() {
    Sim::new(4).block_on(async {
        let sound = image(false).await;
        let (label, superblock) = parts(&sound).await;
        let (place, at) = leaf_at(&sound, &superblock);
        let mut free = sound.clone();
        set_bit(&mut free, &label, place, false);
        let mut images = vec![free];
        for wrong in
            [1, label.region.data_first - 1, label.region.data_end() - 3, (1 << 48) - 1, 1 << 52, u64::MAX]
        {
            let mut image = sound.clone();
            image[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
            images.push(image);
        }
        for (number, image) in images.into_iter().enumerate() {
            let disk = drive(image);
            let report = check(&disk.open().unwrap(), true).await.unwrap();
            assert!(report.findings.iter().any(|f| f.severity == Severity::Fatal), "{number}: {report:#?}");
            let store = try_open(&disk).await.unwrap();
            let object = ObjectId::default();
            let read = store.read(GroupId(1), object, BlockRange::new(0, 8)).await;
            assert!(is_contradiction(&read.expect_err("the place is impossible")), "{number}");
            let error = store.write(write(2, 2, 9)).await.expect_err("what it would replace is impossible");
            assert!(is_contradiction(&error), "{number}: {error}");
            let wanted = [Wanted { group: GroupId(1), object, range: BlockRange::new(0, 8) }];
            let _ = locate(&disk.copy("look").open().unwrap(), &wanted, true).await;
        }
    });
}

#[test]
fn a_bitmap_that_leaves_the_log_to_be_allocated_is_refused() {
    Sim::new(5).block_on(async {
        let sound = image(false).await;
        let (label, _) = parts(&sound).await;
        for place in [0, 1, label.region.log_first, label.region.data_first - 1, label.region.data_end()] {
            let mut image = sound.clone();
            set_bit(&mut image, &label, place, false);
            let error = try_open(&drive(image)).await.err().expect("a fixed region is free");
            assert!(is_contradiction(&error), "{error}");
        }
    });
}

#[test]
fn pages_of_the_map_that_the_bitmap_has_as_free_fail_the_next_checkpoint() {
    Sim::new(6).block_on(async {
        let mut image = image(true).await;
        let (label, superblock) = parts(&image).await;
        set_bit(&mut image, &label, superblock.root.unwrap().page.place.0, false);
        let error = try_open(&drive(image)).await.err().expect("the recovery takes a checkpoint");
        assert!(is_contradiction(&error), "{error}");
    });
}

#[test]
fn counters_at_their_end_are_refused() {
    Sim::new(7).block_on(async {
        let sound = image(true).await;
        // Checkpoint, batch, position in the log.
        for field in [24, 32, 40] {
            for value in [u64::MAX, u64::MAX - 4095, 1 << 60] {
                let mut image = sound.clone();
                for slot in [1, 2] {
                    let at = (slot * BLOCK) as usize + field;
                    image[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
                }
                let disk = drive(image);
                assert!(
                    matches!(try_open(&disk).await.err(), Some(StoreError::SuperblockDamaged)),
                    "{field}"
                );
                let report = check(&disk.open().unwrap(), true).await.unwrap();
                assert!(report.findings.iter().any(|f| f.severity == Severity::Fatal));
            }
        }
    });
}

#[test]
fn a_batch_that_claims_more_records_than_it_can_hold_is_refused() {
    Sim::new(8).block_on(async {
        let sound = image(true).await;
        let (label, superblock) = parts(&sound).await;
        let ring = label.region.log_blocks * BLOCK;
        let at = (label.region.log_first * BLOCK + superblock.log_position % ring) as usize;
        assert_eq!(&sound[at..at + 4], b"WLOG");
        for count in [u32::MAX, 0, 2, 1000] {
            let mut image = sound.clone();
            image[at + 56..at + 60].copy_from_slice(&count.to_le_bytes());
            let error = try_open(&drive(image)).await.err().expect("the count is a lie");
            assert!(is_contradiction(&error), "{error}");
        }
    });
}

#[test]
fn a_log_that_is_full_of_batches_without_records_leaves_room_for_the_next() {
    Sim::new(9).block_on(async {
        let mut image = image(false).await;
        let (label, superblock) = parts(&image).await;
        let ring = label.region.log_blocks * BLOCK;
        for i in 0..label.region.log_blocks {
            let position = superblock.log_position + i * BLOCK;
            let at = (label.region.log_first * BLOCK + position % ring) as usize;
            image[at..at + BLOCK_SIZE].fill(0);
            image[at..at + 4].copy_from_slice(b"WLOG");
            image[at + 8..at + 24].copy_from_slice(&DRIVE.to_bytes());
            for (field, value) in [(24, superblock.batch + 1 + i), (32, position), (40, superblock.batch + i)]
            {
                image[at + field..at + field + 8].copy_from_slice(&value.to_le_bytes());
            }
            image[at + 48..at + 52].copy_from_slice(&(BLOCK as u32).to_le_bytes());
        }
        let store = try_open(&drive(image)).await.unwrap();
        store.write(write(0, 8, 9)).await.unwrap();
        assert_eq!(sound_byte(&store).await, 9);
    });
}

#[test]
fn a_state_that_goes_round_in_circles_is_refused() {
    Sim::new(10).block_on(async {
        let sound = image(false).await;
        let (_, superblock) = parts(&sound).await;
        let page = superblock.state.unwrap();
        // A page whose follower is itself, with the checksum that it has: CRC-32C is linear, so there is one. Bytes
        // behind the state are free to be chosen; a fixed point is looked for bit by bit.
        let at = page.place.offset() as usize;
        let mut block = sound[at..at + BLOCK_SIZE].to_vec();
        block[32..40].copy_from_slice(&page.place.0.to_le_bytes());
        fix_point(&mut block);
        let crc = u32::from_le_bytes(block[4..8].try_into().unwrap());
        assert_eq!(block[40..44], block[4..8]);
        let mut image = sound.clone();
        image[at..at + BLOCK_SIZE].copy_from_slice(&block);
        let slot = (1 + superblock.checkpoint % 2) * BLOCK;
        image[slot as usize + 72..slot as usize + 76].copy_from_slice(&crc.to_le_bytes());
        let end = (slot + BLOCK) as usize;
        let seal = weft_wire::crc32c(&image[slot as usize..end - 4]);
        image[end - 4..end].copy_from_slice(&seal.to_le_bytes());
        let disk = SimDisk::new("circle", SIZE);
        disk.poke(0, &image);
        let error = try_open(&disk).await.err().expect("the state has no end");
        assert!(error.to_string().contains("follows itself"), "{error}");
        let report = check(&disk.open().unwrap(), true).await.unwrap();
        assert!(report.findings.iter().any(|f| f.what.contains("follows itself")), "{report:#?}");
    });
}

/// Chooses the last four bytes of a page so that its checksum is the one that it names for its follower.
fn fix_point(block: &mut [u8]) {
    let end = block.len();
    let wrong = |block: &mut [u8], tail: u32, crc: u32| {
        block[40..44].copy_from_slice(&crc.to_le_bytes());
        block[end - 4..].copy_from_slice(&tail.to_le_bytes());
        weft_wire::crc32c(&block[8..])
    };
    // With the follower's checksum at zero, which tail makes the page's zero? The map from tails to checksums is
    // affine and one to one: solve it by elimination over bits.
    let base = wrong(block, 0, 0);
    let mut rows: Vec<(u32, u32)> = (0..32).map(|i| (wrong(block, 1 << i, 0) ^ base, 1u32 << i)).collect();
    let (mut rest, mut tail) = (base, 0);
    for bit in (0..32).rev() {
        let Some(at) = rows.iter().position(|(image, _)| image >> bit == 1) else { continue };
        let (image, source) = rows.swap_remove(at);
        if rest >> bit & 1 == 1 {
            rest ^= image;
            tail ^= source;
        }
        for row in &mut rows {
            if row.0 >> bit & 1 == 1 {
                *row = (row.0 ^ image, row.1 ^ source);
            }
        }
    }
    let crc = wrong(block, tail, 0);
    assert_eq!(crc, 0);
    block[4..8].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_record_about_a_whole_object_is_replayed_with_little_memory() {
    Sim::new(12).block_on(async {
        let disk = drive(image(true).await);
        let store = try_open(&disk).await.unwrap();
        let all = BlockRange::new(0, limits::OBJECT_BLOCKS_MAX);
        let discard = Write { range: all, payload: Payload::Zero, ..write(0, 1, 5) };
        store.write(discard).await.unwrap();
        weft_rt::sleep(std::time::Duration::from_millis(50)).await;
        drop(store);
        let options = OpenOptions { ram_budget_bytes: Some(BLOCK), ..Default::default() };
        let copy = SimDisk::new("copy", SIZE);
        copy.poke(0, &disk.peek(0, SIZE as usize));
        let (store, report) = Store::open(copy.open().unwrap(), options).await.unwrap();
        assert!(report.records_replayed > 0, "{report:?}");
        let found = store.read(GroupId(1), ObjectId::default(), BlockRange::new(0, 8)).await.unwrap();
        assert!(matches!(found[0].data, ExtentData::Zero), "{found:?}");
    });
}
