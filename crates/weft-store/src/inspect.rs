//! Says what is on a drive without opening a store on it; it never writes.

use crate::StoreError;
use crate::bitmap::Bitmap;
use crate::checkpoint;
use crate::group_state::DriveState;
use crate::label::Label;
use crate::log::{LogReader, LogRing};
use crate::map_copy::{self, CopyOf};
use crate::page::PageReader;
use crate::recover::{read_bitmap, read_zone_table};
use crate::superblock::Superblock;
use weft_rt::Drive;
use weft_types::{BLOCK_SIZE, Group};

/// What is on a drive.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Who it is.
    pub label: Label,
    /// Copies of the label that are damaged, 0 or 1.
    pub damaged_labels: usize,
    /// The superblock that holds, if one is good.
    pub superblock: Option<Superblock>,
    /// Whether the other superblock is damaged.
    pub is_other_superblock_damaged: bool,
    /// Batches in the log behind the checkpoint, and the records in them.
    pub log_batches: u64,
    /// Records in those batches.
    pub log_records: u64,
    /// Bytes of those batches.
    pub log_bytes: u64,
    /// Bytes of the log ring.
    pub log_capacity_bytes: u64,
    /// Why the log cannot be replayed, if so.
    pub log_damage: Option<String>,
    /// Blocks for data and maps.
    pub capacity_blocks: u64,
    /// Blocks that the checkpoint leaves free; `None` if its bitmap is damaged.
    pub free_blocks: Option<u64>,
    /// The groups of the checkpoint; what the log changes since is not in them. Empty if the state is damaged.
    pub groups: Vec<Group>,
    /// The version of the copy of the fabric map, and its length in bytes.
    pub map_copy: Option<(u64, u64)>,
}

/// Looks at a drive that no store has open.
///
/// # Errors
/// If the drive is not Weft's.
pub async fn inspect(drive: &Drive) -> Result<Inspection, StoreError> {
    let (label, repairs) = Label::read(drive).await?;
    let superblock = Superblock::read(drive, label.drive).await.ok();
    let mut found = Inspection {
        label,
        damaged_labels: repairs.len(),
        superblock: superblock.map(|(s, _)| s),
        is_other_superblock_damaged: superblock.is_none_or(|(_, damaged)| damaged),
        log_batches: 0,
        log_records: 0,
        log_bytes: 0,
        log_capacity_bytes: label.region.log_blocks * BLOCK_SIZE as u64,
        log_damage: None,
        capacity_blocks: label.region.data_blocks(),
        free_blocks: None,
        groups: Vec::new(),
        map_copy: {
            let copies = map_copy::read(drive, CopyOf::Slice).await?;
            copies.first().map(|(version, bytes)| (*version, bytes.len() as u64))
        },
    };
    if let Some(superblock) = found.superblock {
        look_at_log(drive, &superblock, &mut found).await;
        found.free_blocks = load_bitmap(drive, &label, &superblock).await.ok().map(|b| b.free());
        let reader = PageReader::new(drive.clone(), 0);
        if let Ok((bytes, _)) = checkpoint::read_state(&reader, superblock.state).await
            && let Ok(state) = DriveState::decode(&bytes)
        {
            found.groups = state.groups.values().map(|g| Group::clone(&g.entry)).collect();
        }
    }
    Ok(found)
}

async fn load_bitmap(drive: &Drive, label: &Label, superblock: &Superblock) -> Result<Bitmap, StoreError> {
    let zones = read_zone_table(drive, &label.region, superblock).await?;
    read_bitmap(drive, &label.region, &zones).await
}

async fn look_at_log(drive: &Drive, superblock: &Superblock, found: &mut Inspection) {
    let ring = LogRing::new(found.label.drive, &found.label.region, superblock.log_position);
    let mut log = LogReader::new(&ring, drive, superblock.log_position, superblock.batch + 1);
    loop {
        match log.next().await {
            Ok(Some(batch)) => {
                found.log_batches += 1;
                found.log_records += u64::from(batch.header.count);
                found.log_bytes += u64::from(batch.header.length);
            }
            Ok(None) => return,
            Err(error) => {
                found.log_damage = Some(error.to_string());
                return;
            }
        }
    }
}
