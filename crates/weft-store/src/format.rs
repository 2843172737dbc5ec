//! Makes a drive a Weft drive: regions, an empty checkpoint, and last of all the labels.

use crate::StoreError;
use crate::checkpoint::encode_zone_table;
use crate::device_label::refuse_what_is_there;
use crate::label::{FORMAT_VERSION, Label};
use crate::region::{RegionMap, TINY_BYTES_MIN};
use crate::request::FormatOptions;
use crate::state::ZoneEntry;
use crate::superblock::Superblock;
use weft_rt::{Buf, Drive};
use weft_types::BLOCK_SIZE;
use weft_types::limits::DRIVE_BYTES_MIN;
use weft_wire::crc32c;

/// What is overwritten with zeroes at the start and at the end: where other programs keep their signatures,
/// so that none of them takes the drive for its own again.
const WIPE_HEAD_BYTES: u64 = 256 << 10;
const WIPE_TAIL_BYTES: u64 = 64 << 10;

/// Formats a drive.
///
/// # Errors
/// If it is too small, holds anything and `force` is not set, or cannot be written.
pub(crate) async fn format(drive: &Drive, options: &FormatOptions) -> Result<Label, StoreError> {
    let label = plan(drive, options).await?;
    let (size_bytes, region) = (label.size_bytes, label.region);
    wipe_ends(drive, size_bytes).await?;
    write_empty_checkpoint(drive, &label).await?;
    for slot in 0..2 {
        let first = region.map_copy(slot);
        for half in [first, first.plus(region.map_slot_blocks / 2)] {
            write(drive, half.offset(), Buf::zeroes(BLOCK_SIZE)).await?;
        }
    }
    flush(drive).await?;
    label.write(drive, &[region.label_b(), RegionMap::LABEL_A]).await?;
    flush(drive).await?;
    Ok(label)
}

/// Overwrites both ends of a drive, so that nobody takes it for what it was. Durable with the next flush.
pub(crate) async fn wipe_ends(drive: &Drive, size_bytes: u64) -> Result<(), StoreError> {
    let head = WIPE_HEAD_BYTES.min(size_bytes);
    write(drive, 0, Buf::zeroes(head as usize)).await?;
    let tail_at = size_bytes - WIPE_TAIL_BYTES.min(size_bytes);
    write(drive, tail_at, Buf::zeroes((size_bytes - tail_at) as usize)).await
}

/// Goes through all checks, and only reads: the label that the drive would get.
pub(crate) async fn plan(drive: &Drive, options: &FormatOptions) -> Result<Label, StoreError> {
    let size_bytes = drive.size_bytes();
    let minimum_bytes = if options.allow_tiny { TINY_BYTES_MIN } else { DRIVE_BYTES_MIN };
    if size_bytes < minimum_bytes {
        return Err(StoreError::TooSmall { found_bytes: size_bytes, minimum_bytes });
    }
    if !options.force {
        refuse_what_is_there(drive).await?;
    }
    let region = RegionMap::of(size_bytes, options.log_bytes);
    if !region.is_consistent() {
        return Err(StoreError::Invalid { reason: "the log leaves no room for data" });
    }
    Ok(Label {
        format: FORMAT_VERSION,
        fabric: options.fabric,
        drive: options.drive_id,
        size_bytes,
        created_us: weft_rt::wall_clock_us(),
        region,
    })
}

/// Writes checkpoint 1: no leaf, no state, no zone written yet.
async fn write_empty_checkpoint(drive: &Drive, label: &Label) -> Result<(), StoreError> {
    let pristine = ZoneEntry { crc: 0, free: 0, slot: ZoneEntry::PRISTINE };
    let table = encode_zone_table(&vec![pristine; label.region.zones as usize]);
    let superblock = Superblock {
        format: FORMAT_VERSION,
        drive: label.drive,
        checkpoint: 1,
        batch: 0,
        log_position: 0,
        root: None,
        state: None,
        table_copy: 0,
        table_crc: crc32c(&table),
        must_know: 0,
        may_ignore: 0,
    };
    write(drive, label.region.zone_table(0).offset(), table).await?;
    write(drive, Superblock::slot(0).offset(), Buf::zeroes(BLOCK_SIZE)).await?;
    write(drive, Superblock::slot(1).offset(), superblock.encode().freeze()).await
}

async fn write(drive: &Drive, at: u64, data: Buf) -> Result<(), StoreError> {
    let len = data.len() as u64;
    drive.write(at, data).await.map_err(|e| StoreError::io("write", at, len, e))
}

pub(crate) async fn flush(drive: &Drive) -> Result<(), StoreError> {
    drive.flush().await.map_err(|e| StoreError::io("flush", 0, 0, e))
}
