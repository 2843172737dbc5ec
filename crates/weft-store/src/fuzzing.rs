//! Doors to the decoders of this crate, for fuzzing: each takes any bytes, checks what must hold for them, and panics
//! if it does not. And [`seal`], which makes the checksums of a drive's image right again after it was changed, so
//! that what lies behind them is reached. Nothing of this is in a build for use.

use crate::checkpoint::{decode_zone_table, encode_zone_table};
use crate::device_label::{DEVICE_MAGIC, DeviceLabel};
use crate::group_state::DriveState;
use crate::label::{FORMAT_VERSION, LABEL_MAGIC, Label};
use crate::leaf::{Leaf, LeafKey};
use crate::log::BATCH_HEADER;
use crate::page::{FORMAT_AT, PAGE_HEADER, PageKind};
use crate::record::Record;
use crate::region::{Place, RegionMap, ZONE_ENTRY_BYTES};
use crate::state::State;
use crate::superblock::{self, Superblock};
use crate::{tree, v1};
use std::ops::Range;
use weft_types::{BLOCK_SIZE, DriveId, Version};
use weft_wire::{Decoder, Encoder};
use weft_wire::{crc32c, crc32c_of_all};

/// Records as a batch of the log holds them, behind four bytes that say how many there are.
///
/// # Panics
/// If records that decode do not read back.
pub fn records(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first_chunk::<4>() else { return };
    let Ok(records) = State::decode_records(rest, u32::from_le_bytes(*count)) else { return };
    let mut e = Encoder::default();
    for record in &records {
        record.encode(&mut e);
        State::leaves_of(record);
        record.state_growth();
    }
    assert_eq!(State::decode_records(&e.0, records.len() as u32).as_ref(), Ok(&records));
    for record in &records {
        if let Record::Copy { leaf, .. } = record {
            check_leaf(leaf);
        }
    }
}

/// A leaf of the block map.
///
/// # Panics
/// If a leaf that decodes does not read back, or does not tell of every block once.
pub fn leaf(bytes: &[u8]) {
    check_leaf(bytes);
}

fn check_leaf(bytes: &[u8]) {
    let Ok(leaf) = Leaf::decode(bytes) else { return };
    let mut e = Encoder::default();
    leaf.encode(&mut e);
    assert_eq!(e.0.len(), leaf.encoded_len());
    assert_eq!(Leaf::decode(&e.0).as_ref(), Ok(&leaf));
    let all = weft_types::limits::CHUNK_BLOCKS as u8;
    let told: u32 = leaf.pieces(0, all).map(|piece| u32::from(piece.count)).sum();
    assert_eq!(told, u32::from(all), "{leaf:?}");
    leaf.digest(Version::ZERO);
    let mut empty = leaf.clone();
    let mut freed = Vec::new();
    empty.remove(0, all, &mut freed);
    assert!(empty.is_empty(), "{leaf:?}");
    assert_eq!(freed, leaf.places().collect::<Vec<_>>());
}

/// A page of the block map in each format, from the count in its header on: two bytes, and the body.
///
/// # Panics
/// Never, whatever the bytes are.
pub fn page(bytes: &[u8]) {
    let Some((count, body)) = bytes.split_first_chunk::<2>() else { return };
    for format in [0, FORMAT_VERSION as u8] {
        tree::decode_any(format, u16::from_le_bytes(*count), body);
    }
}

/// What a drive knows beside its blocks.
///
/// # Panics
/// If a state that decodes does not read back.
pub fn state(bytes: &[u8]) {
    let Ok(state) = DriveState::decode(bytes) else { return };
    assert_eq!(DriveState::decode(&state.encode()).as_ref(), Ok(&state));
}

/// A label, its checksum made right.
///
/// # Panics
/// If a label that decodes does not read back.
pub fn label(bytes: &[u8]) {
    let block = sealed_block(bytes, &LABEL_MAGIC);
    let Ok(label) = Label::decode(&block) else { return };
    assert_eq!(Label::decode(&label.encode()).as_ref(), Ok(&label));
    let region = label.region;
    assert!(region.label_b().0 * (BLOCK_SIZE as u64) < label.size_bytes);
    assert!(region.data_first < region.data_end() && region.map_slot_blocks > 1);
}

/// The label of a device of several parts, its checksum made right.
///
/// # Panics
/// If a label that decodes does not read back, or has parts that are none of the device.
pub fn device_label(bytes: &[u8]) {
    let block = sealed_block(bytes, &DEVICE_MAGIC);
    let Ok(label) = DeviceLabel::decode(&block) else { return };
    assert_eq!(DeviceLabel::decode(&label.encode()).as_ref(), Ok(&label));
    let extents = label.parts.iter().flat_map(|part| &part.extents);
    let taken: u64 = extents.map(|extent| extent.len).sum();
    assert!(taken > 0 && taken <= label.size_bytes - 2 * BLOCK_SIZE as u64);
}

/// A superblock of each format, its checksum made right.
///
/// # Panics
/// If a superblock that decodes does not read back.
pub fn superblock(bytes: &[u8]) {
    for magic in [v1::SUPERBLOCK_MAGIC, superblock::MAGIC] {
        let block = sealed_block(bytes, &magic);
        let drive = DriveId::from_bytes(block[8..24].try_into().expect("16 bytes"));
        let Some(found) = Superblock::decode(&block, drive) else { continue };
        let found = Superblock { format: found.format.max(FORMAT_VERSION), ..found };
        assert_eq!(Superblock::decode(&found.encode(), drive), Some(found));
    }
}

/// A zone table.
///
/// # Panics
/// If a table that decodes does not read back.
pub fn zone_table(bytes: &[u8]) {
    let zones = bytes.len() as u64 / ZONE_ENTRY_BYTES;
    let Ok(entries) = decode_zone_table(bytes, zones) else { return };
    let encoded = encode_zone_table(&entries);
    assert_eq!(decode_zone_table(&encoded, zones).as_ref(), Ok(&entries));
    // More zones than the table has room for are no reason to reserve memory for them.
    assert!(decode_zone_table(bytes, u64::MAX).is_err());
}

/// The bytes behind a magic number as a block whose last four bytes are its checksum.
fn sealed_block(bytes: &[u8], magic: &[u8; 8]) -> Vec<u8> {
    let mut block = vec![0; BLOCK_SIZE];
    block[..8].copy_from_slice(magic);
    let len = bytes.len().min(BLOCK_SIZE - 12);
    block[8..8 + len].copy_from_slice(&bytes[..len]);
    seal_block(&mut block);
    block
}

fn seal_block(block: &mut [u8]) {
    let at = block.len() - 4;
    let crc = crc32c(&block[..at]);
    block[at..].copy_from_slice(&crc.to_le_bytes());
}

/// Pages of a tree or a state that are sealed at most: those of an image that goes round in circles have no end.
const PAGES_MAX: usize = 256;

/// Makes the checksums of an image right, from the leaves up: pages of the map and the state, bitmaps, zone tables,
/// superblocks, batches of the log, labels. Structures that are not where they should be stay as they are.
pub fn seal(image: &mut [u8]) {
    if image.len() < 16 * BLOCK_SIZE || image[..8] != LABEL_MAGIC {
        return;
    }
    let region = RegionMap::decode(&mut Decoder::new(&image[64..136])).expect("nine numbers");
    if region.is_consistent() && region.drive_blocks as usize * BLOCK_SIZE <= image.len() {
        seal_log(image, &region);
        for slot in 0..2 {
            seal_superblock(image, &region, slot);
        }
    }
    let last = image.len() - BLOCK_SIZE;
    for at in [0, last] {
        if image[at..at + 8] == LABEL_MAGIC {
            seal_block(&mut image[at..at + BLOCK_SIZE]);
        }
    }
}

fn block_at(image: &[u8], place: u64) -> Option<Range<usize>> {
    let at = usize::try_from(place).ok()?.checked_mul(BLOCK_SIZE)?;
    (place > 0 && at.checked_add(BLOCK_SIZE)? <= image.len()).then_some(at..at + BLOCK_SIZE)
}

fn number(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(image[at..at + 8].try_into().expect("8 bytes"))
}

fn set_crc(image: &mut [u8], at: usize, crc: Option<u32>) {
    if let Some(crc) = crc {
        image[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Places of the fields that hold checksums; see docs/format/drive.md.
fn seal_superblock(image: &mut [u8], region: &RegionMap, slot: u64) {
    let at = RegionMap::SUPERBLOCK.plus(slot).0 as usize * BLOCK_SIZE;
    if ![v1::SUPERBLOCK_MAGIC, superblock::MAGIC].iter().any(|magic| image[at..at + 8] == *magic) {
        return;
    }
    let mut left = PAGES_MAX;
    let crc = seal_page(image, number(image, at + 48), image[at + 60].min(8), &mut left);
    set_crc(image, at + 56, crc);
    let crc = seal_state(image, number(image, at + 64), &mut left);
    set_crc(image, at + 72, crc);
    let table = region.zone_table(u64::from(image[at + 61] & 1)).0 as usize * BLOCK_SIZE;
    for zone in 0..region.zones {
        let entry = table + (zone * ZONE_ENTRY_BYTES) as usize;
        let page_slot = image[entry + 6];
        if page_slot < 2 {
            let crc =
                block_at(image, region.bitmap_page(zone, page_slot).0).map(|block| crc32c(&image[block]));
            set_crc(image, entry, crc);
        }
    }
    let crc = crc32c(&image[table..table + region.table_blocks as usize * BLOCK_SIZE]);
    set_crc(image, at + 76, Some(crc));
    seal_block(&mut image[at..at + BLOCK_SIZE]);
}

/// Seals a page of the block map and those below it.
fn seal_page(image: &mut [u8], place: u64, level: u8, left: &mut usize) -> Option<u32> {
    let block = block_at(image, place)?;
    *left = left.checked_sub(1)?;
    if level > 0 {
        let count = u16::from_le_bytes([image[block.start + 26], image[block.start + 27]]);
        let (key_bytes, child_bytes) = match image[block.start + FORMAT_AT] {
            0 => (v1::KEY_BYTES, v1::CHILD_BYTES),
            _ => (LeafKey::BYTES, tree::CHILD_BYTES),
        };
        for child in 0..usize::from(count).min((BLOCK_SIZE - PAGE_HEADER) / child_bytes) {
            let at = block.start + PAGE_HEADER + child * child_bytes + key_bytes;
            let crc = seal_page(image, number(image, at), level - 1, left);
            set_crc(image, at + 8, crc);
        }
    }
    Some(seal_one(image, block))
}

/// Seals a page of the state and those that follow it.
fn seal_state(image: &mut [u8], place: u64, left: &mut usize) -> Option<u32> {
    let block = block_at(image, place)?;
    *left = left.checked_sub(1)?;
    let at = block.start + PAGE_HEADER;
    let crc = seal_state(image, number(image, at), left);
    set_crc(image, at + 8, crc);
    Some(seal_one(image, block))
}

fn seal_one(image: &mut [u8], block: Range<usize>) -> u32 {
    let crc = crc32c(&image[block.start + 8..block.end]);
    set_crc(image, block.start + 4, Some(crc));
    crc
}

/// Seals whatever begins like a batch in the log's region.
fn seal_log(image: &mut [u8], region: &RegionMap) {
    let start = region.log_first as usize * BLOCK_SIZE;
    let capacity = region.log_blocks as usize * BLOCK_SIZE;
    for at in (0..capacity).step_by(BLOCK_SIZE) {
        let head = start + at;
        if image[head..head + 4] != *b"WLOG" {
            continue;
        }
        let length = u32::from_le_bytes(image[head + 48..head + 52].try_into().expect("4 bytes")) as usize;
        if !(BATCH_HEADER..=capacity).contains(&length) {
            continue;
        }
        // What passes the end of the ring goes on at its beginning.
        let first = length.min(capacity - at);
        let crc = crc32c_of_all([&image[head + 8..head + first], &image[start..start + length - first]]);
        set_crc(image, head + 4, Some(crc));
    }
}

/// The places of an image that hold metadata, as the newest checkpoint has them: where changes are worth most.
pub fn metadata_places(image: &[u8]) -> Vec<u64> {
    let Ok(label) = Label::decode(&image[..BLOCK_SIZE]) else { return Vec::new() };
    let mut places = vec![0, 1, 2];
    places.extend(label.region.log_first..label.region.data_first);
    places.extend((label.region.data_first..label.region.data_end()).filter(|place| {
        let at = *place as usize * BLOCK_SIZE;
        image[at..at + 4] == *b"WPAG" && image[at + 25] <= PageKind::State as u8
    }));
    places.retain(|place| {
        let at = *place as usize * BLOCK_SIZE;
        image[at..at + BLOCK_SIZE].iter().any(|b| *b != 0)
    });
    debug_assert!(places.iter().all(|place| *place < Place::END.0));
    places
}
