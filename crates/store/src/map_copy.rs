//! A copy of the fabric map on each drive: what a fabric is found by again when its managers are lost. It
//! lies at a fixed place and is good without anything else on the drive. The bytes mean nothing here.

use crate::StoreError;
use crate::label::Label;
use crate::region::{Place, RegionMap};
use weft_rt::{BufMut, Drive};
use weft_types::BLOCK_SIZE;
use weft_wire::{Decoder, Encoder, crc32c};

const MAGIC: [u8; 8] = *b"WEFTMAPC";

/// Bytes of the header, which has a block of its own.
const HEADER_BYTES: usize = 40;

/// Writes a copy to the slot that holds the older one. Durable on return.
///
/// # Errors
/// If the bytes do not fit the slot, or the drive cannot be written.
pub(crate) async fn put(drive: &Drive, label: &Label, version: u64, bytes: &[u8]) -> Result<(), StoreError> {
    let room = (label.region.map_slot_blocks - 1) * BLOCK_SIZE as u64;
    if bytes.len() as u64 > room {
        let (what, found_bytes) = ("the fabric map", bytes.len() as u64);
        return Err(StoreError::TooLarge { what, found_bytes, limit_bytes: room });
    }
    let mut held = [None; 2];
    for (slot, held) in held.iter_mut().enumerate() {
        *held = read_slot(drive, label.region.map_copy(slot as u64), label.region.map_slot_blocks)
            .await
            .map(|(version, _)| version);
    }
    let slot = u64::from(held[0] > held[1]);
    let mut e = Encoder::with_capacity(HEADER_BYTES);
    e.bytes(&MAGIC).u64(version).u64(bytes.len() as u64).u32(crc32c(bytes)).u32(0);
    let crc = crc32c(&e.0);
    e.u32(crc);
    let mut blocks = BufMut::zeroed(BLOCK_SIZE + bytes.len().next_multiple_of(BLOCK_SIZE));
    blocks[..e.0.len()].copy_from_slice(&e.0);
    blocks[BLOCK_SIZE..BLOCK_SIZE + bytes.len()].copy_from_slice(bytes);
    let (at, len) = (label.region.map_copy(slot).offset(), blocks.len() as u64);
    drive.write(at, blocks.freeze()).await.map_err(|e| StoreError::io("write", at, len, e))?;
    drive.flush().await.map_err(|e| StoreError::io("flush", 0, 0, e))
}

/// The newest good copy; needs no label.
///
/// # Errors
/// None but a drive that is too small to be Weft's.
pub(crate) async fn read(drive: &Drive) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
    let size = match Label::read(drive).await {
        Ok((label, _)) => label.size_bytes,
        Err(_) => drive.size_bytes(),
    };
    let blocks = RegionMap::map_slot_blocks(size);
    let mut best: Option<(u64, Vec<u8>)> = None;
    for slot in 0..2 {
        let found = read_slot(drive, RegionMap::MAP_COPY.plus(slot * blocks), blocks).await;
        if let Some(found) = found
            && best.as_ref().is_none_or(|b| b.0 < found.0)
        {
            best = Some(found);
        }
    }
    Ok(best)
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
