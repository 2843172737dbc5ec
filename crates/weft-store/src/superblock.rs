//! The superblock: the root of a checkpoint. Two slots are written in turn, so that the older one stays
//! good until the newer one is durable.

use crate::StoreError;
use crate::label::FORMAT_VERSION;
use crate::region::{Place, RegionMap};
use crate::tree::UNKNOWN;
use crate::v1;
use weft_rt::{BufMut, Drive};
use weft_types::{BLOCK_SIZE, DriveId, Version};
use weft_wire::{DecodeError, Decoder, Encoder, crc32c};

/// The first bytes of a superblock that names its format. A program that knows format 1 alone takes it
/// for damaged.
pub(crate) const MAGIC: [u8; 8] = *b"WEFTSUP2";
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
    /// The newest version below it; that with all bits set while any page below is of format 1.
    pub newest: Version,
}

/// Uses of the drive that this program knows, of those that who does not know them must not open it for.
/// No such use exists yet.
const KNOWN_FEATURES: u64 = 0;

/// One checkpoint: everything on the drive is reached from here, and from the log behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The format that the checkpoint is written in; what it reaches may be of an older one.
    pub format: u16,
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
    /// Uses of the drive, a bit each: a program that does not know one of them must not open the drive.
    pub must_know: u64,
    /// Uses of the drive that a program that does not know them leaves alone; its next checkpoint takes
    /// the bit away, so that who set it sees that what it stands for was not kept up.
    pub may_ignore: u64,
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
        e.u8(self.root.map_or(0, |r| r.level)).u8(self.table_copy).u16(self.format);
        self.state.unwrap_or(none).encode(&mut e);
        e.u32(self.table_crc).u64(self.root.map_or(0, |r| r.newest.to_bits()));
        e.u64(self.must_know).u64(self.may_ignore);
        let mut block = BufMut::zeroed(BLOCK_SIZE);
        block[..e.0.len()].copy_from_slice(&e.0);
        let crc = crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads a slot of the drive; `None` if it holds no good superblock of this drive.
    pub(crate) fn decode(block: &[u8], drive: DriveId) -> Option<Superblock> {
        let crc = u32::from_le_bytes(block.get(CRC_AT..)?.try_into().ok()?);
        let is_old = block[..8] == v1::SUPERBLOCK_MAGIC;
        if !(is_old || block[..8] == MAGIC) || crc32c(&block[..CRC_AT]) != crc {
            return None;
        }
        let mut d = Decoder::new(&block[8..CRC_AT]);
        let page = |d: &mut Decoder<'_>| PageRef::decode(d).ok();
        let found = DriveId::from_bytes(d.array().ok()?);
        let (checkpoint, batch, log_position) = (d.u64().ok()?, d.u64().ok()?, d.u64().ok()?);
        let root = page(&mut d)?;
        let (level, table_copy) = (d.u8().ok()?, d.u8().ok()?);
        let format = d.u16().ok()?;
        let state = page(&mut d)?;
        let (table_crc, newest) = (d.u32().ok()?, Version::from_bits(d.u64().ok()?));
        let (must_know, may_ignore) = (d.u64().ok()?, d.u64().ok()?);
        let (format, newest) = if is_old { (v1::FORMAT, UNKNOWN) } else { (format, newest) };
        let is_possible = [checkpoint, batch, log_position].iter().all(|n| *n < COUNTER_END)
            && log_position.is_multiple_of(BLOCK_SIZE as u64)
            && (is_old || format > v1::FORMAT);
        (found == drive && table_copy < 2 && is_possible).then_some(Superblock {
            format,
            drive,
            checkpoint,
            batch,
            log_position,
            root: (root.place != Place::NONE).then_some(TreeRoot { page: root, level, newest }),
            state: (state.place != Place::NONE).then_some(state),
            table_copy,
            table_crc,
            must_know: if is_old { 0 } else { must_know },
            may_ignore: if is_old { 0 } else { may_ignore },
        })
    }

    /// Refuses what a newer program has made of the drive.
    ///
    /// # Errors
    /// `NewerFormat`, or `Unknown` for a use of the drive that this program does not know.
    pub(crate) fn check_is_known(&self) -> Result<(), StoreError> {
        if self.format > FORMAT_VERSION {
            return Err(StoreError::NewerFormat { found: self.format, known: FORMAT_VERSION });
        }
        match self.must_know & !KNOWN_FEATURES {
            0 => Ok(()),
            unknown => {
                Err(StoreError::Unknown { what: "the drive", found: format!("features {unknown:#x}") })
            }
        }
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
            format: FORMAT_VERSION,
            drive,
            checkpoint: 3,
            batch: 77,
            log_position: 1 << 33,
            root: Some(TreeRoot { page, level: 2, newest: Version::from_bits(99) }),
            state: Some(page),
            table_copy: 1,
            table_crc: 9,
            must_know: 0,
            may_ignore: 6,
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
                root: full.root.map(|r| TreeRoot { page: PageRef { place: Place(u64::MAX), ..page }, ..r }),
                ..full
            },
            Superblock { state: Some(PageRef { place: Place(1 << 52), ..page }), ..full },
        ] {
            assert_eq!(Superblock::decode(&impossible.encode(), drive), None, "{impossible:?}");
        }
    }

    #[test]
    fn what_a_newer_program_has_made_of_a_drive_is_refused_and_no_damage() {
        let drive = DriveId::from_random(7);
        let known = Superblock {
            format: FORMAT_VERSION,
            drive,
            checkpoint: 3,
            batch: 0,
            log_position: 0,
            root: None,
            state: None,
            table_copy: 0,
            table_crc: 0,
            must_know: 0,
            may_ignore: u64::MAX,
        };
        let read = |superblock: Superblock| {
            let found = Superblock::decode(&superblock.encode(), drive).expect("it is good");
            found.check_is_known()
        };
        assert!(read(known).is_ok(), "what may be ignored is");
        let feature = read(Superblock { must_know: 1 << 40, ..known });
        assert!(matches!(feature, Err(StoreError::Unknown { .. })), "{feature:?}");
        let newer = read(Superblock { format: FORMAT_VERSION + 1, ..known });
        assert!(matches!(newer, Err(StoreError::NewerFormat { .. })), "{newer:?}");
    }
}
