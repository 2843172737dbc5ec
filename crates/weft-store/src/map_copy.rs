//! Copies of the fabric map on each drive: what a fabric is found by again when its managers are lost. They
//! lie at fixed places and are good without anything else on the drive. The bytes mean nothing here.
//!
//! ```text
//!   slot 0:  what concerns the drive | a part of the whole map    each half: a header's block, then the bytes
//!   slot 1:  the same, of another version
//! ```
//! A copy of the release before takes a whole slot.

use crate::StoreError;
use crate::label::Label;
use crate::region::{Place, RegionMap};
use weft_rt::{BufMut, Drive};
use weft_types::BLOCK_SIZE;
use weft_wire::{Decoder, Encoder, crc32c};

const MAGIC: [u8; 8] = *b"WEFTMAPC";

/// Bytes of the header, which has a block of its own.
const HEADER_BYTES: usize = 40;

/// What a copy is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyOf {
    /// What concerns the drive.
    Slice,
    /// A part of the whole map.
    Part,
}

/// Bytes that a copy may have.
pub(crate) fn room(label: &Label) -> u64 {
    (label.region.map_slot_blocks / 2 - 1) * BLOCK_SIZE as u64
}

/// Where the copy of a kind begins in a slot of so many blocks.
fn place(kind: CopyOf, slot: u64, slot_blocks: u64) -> Place {
    let slot = RegionMap::MAP_COPY.plus(slot * slot_blocks);
    match kind {
        CopyOf::Slice => slot,
        CopyOf::Part => slot.plus(slot_blocks / 2),
    }
}

/// Blocks that a copy of a kind may have been given: one of the release before took the whole slot.
fn blocks_of(kind: CopyOf, slot_blocks: u64) -> u64 {
    match kind {
        CopyOf::Slice => slot_blocks,
        CopyOf::Part => slot_blocks / 2,
    }
}

/// Writes a copy to the slot that holds the older one of its kind. Durable on return.
///
/// # Errors
/// If the bytes do not fit, or the drive cannot be written.
pub(crate) async fn put(
    drive: &Drive,
    label: &Label,
    kind: CopyOf,
    version: u64,
    bytes: &[u8],
) -> Result<(), StoreError> {
    let (room, slot_blocks) = (room(label), label.region.map_slot_blocks);
    if bytes.len() as u64 > room {
        let (what, found_bytes) = ("the copy of the fabric map", bytes.len() as u64);
        return Err(StoreError::TooLarge { what, found_bytes, limit_bytes: room });
    }
    let mut held = [None; 2];
    for (slot, held) in held.iter_mut().enumerate() {
        let place = place(kind, slot as u64, slot_blocks);
        let found = read_slot(drive, place, blocks_of(kind, slot_blocks)).await;
        *held = found.map(|(version, _)| version);
    }
    let slot = u64::from(held[0] > held[1]);
    let mut e = Encoder::with_capacity(HEADER_BYTES);
    e.bytes(&MAGIC).u64(version).u64(bytes.len() as u64).u32(crc32c(bytes)).u32(0);
    let crc = crc32c(&e.0);
    e.u32(crc);
    let mut blocks = BufMut::zeroed(BLOCK_SIZE + bytes.len().next_multiple_of(BLOCK_SIZE));
    blocks[..e.0.len()].copy_from_slice(&e.0);
    blocks[BLOCK_SIZE..BLOCK_SIZE + bytes.len()].copy_from_slice(bytes);
    let (at, len) = (place(kind, slot, slot_blocks).offset(), blocks.len() as u64);
    drive.write(at, blocks.freeze()).await.map_err(|e| StoreError::io("write", at, len, e))?;
    drive.flush().await.map_err(|e| StoreError::io("flush", 0, 0, e))
}

/// The good copies of a kind with their versions, the newest first; needs no label.
///
/// # Errors
/// None but a drive that is too small to be Weft's.
pub(crate) async fn read(drive: &Drive, kind: CopyOf) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
    let size = match Label::read(drive).await {
        Ok((label, _)) => label.size_bytes,
        Err(_) => drive.size_bytes(),
    };
    let slot_blocks = RegionMap::map_slot_blocks(size);
    let mut found = Vec::new();
    for slot in 0..2 {
        found.extend(read_slot(drive, place(kind, slot, slot_blocks), blocks_of(kind, slot_blocks)).await);
    }
    found.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    Ok(found)
}

/// The copy in a slot, if it is good.
async fn read_slot(drive: &Drive, place: Place, slot_blocks: u64) -> Option<(u64, Vec<u8>)> {
    let header = drive.read(place.offset(), BLOCK_SIZE).await.ok()?;
    let mut d = Decoder::new(&header);
    let magic: [u8; 8] = d.array().ok()?;
    let (version, len, crc) = (d.u64().ok()?, d.u64().ok()?, d.u32().ok()?);
    d.u32().ok()?;
    let is_whole = d.u32().ok()? == crc32c(&header[..32]) && magic == MAGIC;
    if !is_whole || len > (slot_blocks - 1) * BLOCK_SIZE as u64 {
        return None;
    }
    if len == 0 {
        return (crc == crc32c(&[])).then(|| (version, Vec::new()));
    }
    let padded = (len as usize).next_multiple_of(BLOCK_SIZE);
    let bytes = drive.read(place.plus(1).offset(), padded).await.ok()?;
    let bytes = &bytes[..len as usize];
    (crc32c(bytes) == crc).then(|| (version, bytes.to_vec()))
}
