//! The superblock: the root of a checkpoint. Two slots are written in turn, so that the older one stays
//! good until the newer one is durable.

use crate::StoreError;
use crate::region::{Place, RegionMap};
use weft_rt::{BufMut, Drive};
use weft_types::{BLOCK_SIZE, DriveId};
use weft_wire::{DecodeError, Decoder, Encoder, crc32c};

const MAGIC: [u8; 8] = *b"WEFTSUPR";
const CRC_AT: usize = BLOCK_SIZE - 4;

/// Counters, and bytes of the log's stream, that no drive reaches: a million batches a second take 36,000 years.
const COUNTER_END: u64 = 1 << 60;

/// A page of the store, and the checksum that it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// Where it lies.
    pub place: Place,
    /// The CRC-32C in its header, which covers the rest of the page.
    pub crc: u32,
}

impl PageRef {
    pub(crate) const BYTES: usize = 12;

    pub(crate) fn encode(&self, e: &mut Encoder) {
        e.u64(self.place.0).u32(self.crc);
    }

    pub(crate) fn decode(d: &mut Decoder<'_>) -> Result<PageRef, DecodeError> {
        Ok(PageRef { place: Place::decode(d)?, crc: d.u32()? })
    }
}

/// The root page of the block map and its level; leaf pages are level 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeRoot {
    /// The page.
    pub page: PageRef,
    /// Its level.
    pub level: u8,
}

/// One checkpoint: everything on the drive is reached from here, and from the log behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The drive that it belongs to.
    pub drive: DriveId,
    /// Counts checkpoints from 1; the newer of two good slots is the one that holds.
    pub checkpoint: u64,
    /// The newest batch whose records are in this checkpoint, 0 if none.
    pub batch: u64,
    /// Where in the log's byte stream the batch after that one begins.
    pub log_position: u64,
    /// The block map; `None` while it is empty.
    pub root: Option<TreeRoot>,
    /// The first page of the state blob; `None` while there is no state.
    pub state: Option<PageRef>,
    /// Which copy of the zone table belongs to this checkpoint.
    pub table_copy: u8,
    /// The checksum of that copy's entries.
    pub table_crc: u32,
}

impl Superblock {
    /// The slot that a checkpoint is written to.
    pub(crate) fn slot(checkpoint: u64) -> Place {
        RegionMap::SUPERBLOCK.plus(checkpoint % 2)
    }

    /// The superblock as a block.
    pub(crate) fn encode(&self) -> BufMut {
        let mut e = Encoder::with_capacity(128);
        e.bytes(&MAGIC).bytes(&self.drive.to_bytes());
        e.u64(self.checkpoint).u64(self.batch).u64(self.log_position);
        let none = PageRef { place: Place::NONE, crc: 0 };
        self.root.map_or(none, |r| r.page).encode(&mut e);
        e.u8(self.root.map_or(0, |r| r.level)).u8(self.table_copy).u16(0);
        self.state.unwrap_or(none).encode(&mut e);
        e.u32(self.table_crc);
        let mut block = BufMut::zeroed(BLOCK_SIZE);
        block[..e.0.len()].copy_from_slice(&e.0);
        let crc = crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads a slot of the drive; `None` if it holds no good superblock of this drive.
    pub(crate) fn decode(block: &[u8], drive: DriveId) -> Option<Superblock> {
        let crc = u32::from_le_bytes(block.get(CRC_AT..)?.try_into().ok()?);
        if block[..8] != MAGIC || crc32c(&block[..CRC_AT]) != crc {
            return None;
        }
        let mut d = Decoder::new(&block[8..CRC_AT]);
        let page = |d: &mut Decoder<'_>| PageRef::decode(d).ok();
        let found = DriveId::from_bytes(d.array().ok()?);
        let (checkpoint, batch, log_position) = (d.u64().ok()?, d.u64().ok()?, d.u64().ok()?);
        let root = page(&mut d)?;
        let (level, table_copy) = (d.u8().ok()?, d.u8().ok()?);
        d.u16().ok()?;
        let state = page(&mut d)?;
        let table_crc = d.u32().ok()?;
        let is_possible = [checkpoint, batch, log_position].iter().all(|n| *n < COUNTER_END)
            && log_position.is_multiple_of(BLOCK_SIZE as u64);
        (found == drive && table_copy < 2 && is_possible).then_some(Superblock {
            drive,
            checkpoint,
            batch,
            log_position,
            root: (root.place != Place::NONE).then_some(TreeRoot { page: root, level }),
            state: (state.place != Place::NONE).then_some(state),
            table_copy,
            table_crc,
        })
    }

    /// Reads both slots; the newer good one comes with whether the other slot is damaged. An older slot that
    /// was never written is blank, which is no damage.
    ///
    /// # Errors
    /// If neither slot is good.
    pub(crate) async fn read(drive: &Drive, id: DriveId) -> Result<(Superblock, bool), StoreError> {
        let mut best: Option<Superblock> = None;
        let mut is_other_damaged = false;
        for slot in 0..2 {
            let at = RegionMap::SUPERBLOCK.plus(slot).offset();
            let block = drive.read(at, BLOCK_SIZE).await;
            match block.as_ref().ok().and_then(|b| Superblock::decode(b, id)) {
                Some(found) if best.is_none_or(|b| b.checkpoint < found.checkpoint) => best = Some(found),
                Some(_) => {}
                None => is_other_damaged |= block.is_err() || block.is_ok_and(|b| b.iter().any(|x| *x != 0)),
            }
        }
        best.map(|b| (b, is_other_damaged)).ok_or(StoreError::SuperblockDamaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_reads_back_for_its_drive_alone() {
        let drive = DriveId::from_random(7);
        let page = PageRef { place: Place(900), crc: 5 };
        let full = Superblock {
            drive,
            checkpoint: 3,
            batch: 77,
            log_position: 1 << 33,
            root: Some(TreeRoot { page, level: 2 }),
            state: Some(page),
            table_copy: 1,
            table_crc: 9,
        };
        for s in [full, Superblock { root: None, state: None, ..full }] {
            assert_eq!(Superblock::decode(&s.encode(), drive), Some(s));
            assert_eq!(Superblock::decode(&s.encode(), DriveId::from_random(8)), None);
            let mut bad = s.encode();
            bad[40] ^= 1;
            assert_eq!(Superblock::decode(&bad, drive), None);
        }
        for impossible in [
            Superblock { checkpoint: u64::MAX, ..full },
            Superblock { batch: u64::MAX, ..full },
            Superblock { log_position: u64::MAX - 4095, ..full },
            Superblock { log_position: 1 << 33 | 8, ..full },
            Superblock {
                root: Some(TreeRoot { page: PageRef { place: Place(u64::MAX), ..page }, level: 1 }),
                ..full
            },
            Superblock { state: Some(PageRef { place: Place(1 << 52), ..page }), ..full },
        ] {
            assert_eq!(Superblock::decode(&impossible.encode(), drive), None, "{impossible:?}");
        }
    }
}
