//! The label: who a drive is, in its first and its last block. After format only its format version
//! changes, and only up: before anything of a newer format is written, so that older programs refuse the
//! drive.

use crate::StoreError;
use crate::foreign;
use crate::region::{Place, RegionMap};
use weft_rt::{Buf, BufMut, Drive};
use weft_types::{BLOCK_SIZE, DriveId, FabricId};
use weft_wire::{Decoder, Encoder, crc32c};

/// The first bytes of a Weft drive, of every format version.
pub const LABEL_MAGIC: [u8; 8] = *b"WEFTDRIV";

/// The format that this program writes; it refuses newer ones. History: docs/format/drive.md.
pub const FORMAT_VERSION: u16 = 2;

/// The checksum's place, the block's last four bytes, in every format version.
const CRC_AT: usize = BLOCK_SIZE - 4;

/// Who a drive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The format of everything on the drive.
    pub format: u16,
    /// The fabric that it belongs to.
    pub fabric: FabricId,
    /// The drive's identity.
    pub drive: DriveId,
    /// The drive's size when it was formatted.
    pub size_bytes: u64,
    /// When it was formatted, in microseconds since 1970-01-01T00:00:00Z.
    pub created_us: u64,
    /// Where each structure lies.
    pub region: RegionMap,
}

impl Label {
    /// The label as a block.
    pub(crate) fn encode(&self) -> BufMut {
        let mut e = Encoder::with_capacity(256);
        e.bytes(&LABEL_MAGIC).u16(self.format).u16(0).u32(0);
        e.bytes(&self.fabric.to_bytes()).bytes(&self.drive.to_bytes());
        e.u64(self.size_bytes).u64(self.created_us);
        self.region.encode(&mut e);
        let mut block = BufMut::zeroed(BLOCK_SIZE);
        block[..e.0.len()].copy_from_slice(&e.0);
        let crc = crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads a label.
    ///
    /// # Errors
    /// [`LabelFault`]: not a label at all, damaged, or of a newer format.
    pub(crate) fn decode(block: &[u8]) -> Result<Label, LabelFault> {
        if block.len() != BLOCK_SIZE || block[..8] != LABEL_MAGIC {
            return Err(LabelFault::NotALabel);
        }
        let crc = u32::from_le_bytes(block[CRC_AT..].try_into().expect("four bytes"));
        if crc32c(&block[..CRC_AT]) != crc {
            return Err(LabelFault::Damaged);
        }
        let mut d = Decoder::new(&block[8..CRC_AT]);
        let label = (|| {
            let format = d.u16()?;
            d.u16()?;
            d.u32()?;
            Ok::<_, weft_wire::DecodeError>(Label {
                format,
                fabric: FabricId::from_bytes(d.array()?),
                drive: DriveId::from_bytes(d.array()?),
                size_bytes: d.u64()?,
                created_us: d.u64()?,
                region: RegionMap::decode(&mut d)?,
            })
        })()
        .map_err(|_| LabelFault::Damaged)?;
        if label.format > FORMAT_VERSION {
            return Err(LabelFault::Newer(label.format));
        }
        let blocks = label.size_bytes / BLOCK_SIZE as u64;
        if !label.region.is_consistent() || label.region.drive_blocks != blocks {
            return Err(LabelFault::Damaged);
        }
        Ok(label)
    }

    /// Reads the drive's label from either copy; the second result says which copies need repair.
    ///
    /// # Errors
    /// If neither copy is good, the drive is truncated, or of a newer format.
    pub(crate) async fn read(drive: &Drive) -> Result<(Label, Vec<Place>), StoreError> {
        let size = drive.size_bytes();
        if size < 2 * BLOCK_SIZE as u64 {
            return Err(StoreError::NotWeft { found: format!("{size} bytes") });
        }
        let first = Self::read_at(drive, RegionMap::LABEL_A).await;
        let expected = first.as_ref().map_or(size, |l| l.size_bytes);
        if size < expected {
            return Err(StoreError::Truncated { found_bytes: size, expected_bytes: expected });
        }
        let last = Place(expected / BLOCK_SIZE as u64 - 1);
        let second = Self::read_at(drive, last).await;
        match (first, second) {
            (Ok(a), Ok(b)) if a == b => Ok((a, Vec::new())),
            // The first is raised before the last.
            (Ok(a), Ok(b)) if b == (Label { format: b.format, ..a }) && b.format > a.format => {
                Ok((b, vec![RegionMap::LABEL_A]))
            }
            (Ok(a), Ok(_) | Err(_)) => Ok((a, vec![last])),
            (Err(LabelFault::Newer(found)), _) | (_, Err(LabelFault::Newer(found))) => {
                Err(StoreError::NewerFormat { found, known: FORMAT_VERSION })
            }
            (Err(_), Ok(b)) if b.size_bytes / BLOCK_SIZE as u64 == last.0 + 1 => {
                Ok((b, vec![RegionMap::LABEL_A]))
            }
            (Err(LabelFault::NotALabel), Err(LabelFault::NotALabel)) => {
                let found = foreign::look(drive).await?.unwrap_or_else(|| "no label".to_owned());
                Err(StoreError::NotWeft { found })
            }
            _ => Err(StoreError::LabelDamaged),
        }
    }

    /// Writes the copies at these places.
    pub(crate) async fn write(&self, drive: &Drive, places: &[Place]) -> Result<(), StoreError> {
        let block: Buf = self.encode().freeze();
        for place in places {
            let at = place.offset();
            drive
                .write(at, block.clone())
                .await
                .map_err(|e| StoreError::io("write", at, BLOCK_SIZE as u64, e))?;
        }
        Ok(())
    }

    async fn read_at(drive: &Drive, place: Place) -> Result<Label, LabelFault> {
        match drive.read(place.offset(), BLOCK_SIZE).await {
            Ok(block) => Label::decode(&block),
            Err(_) => Err(LabelFault::Damaged),
        }
    }
}

/// Why a block is not a label that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelFault {
    /// It does not begin like one.
    NotALabel,
    /// Its checksum or fields are wrong.
    Damaged,
    /// It is of this newer format.
    Newer(u16),
}

#[cfg(test)]
pub(crate) fn sample(size_bytes: u64) -> Label {
    Label {
        format: FORMAT_VERSION,
        fabric: FabricId::from_random(1),
        drive: DriveId::from_random(2),
        size_bytes,
        created_us: 1_700_000_000_000_000,
        region: RegionMap::of(size_bytes, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_reads_back_and_every_flipped_bit_is_seen() {
        let label = sample(64 << 20);
        let block = label.encode();
        assert_eq!(Label::decode(&block), Ok(label));
        for at in (0..BLOCK_SIZE).step_by(61).chain(CRC_AT..BLOCK_SIZE) {
            let mut bad = BufMut::copy_of(&block);
            bad[at] ^= 4;
            assert!(Label::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_newer_format_is_told_apart_from_damage() {
        let label = Label { format: FORMAT_VERSION + 1, ..sample(64 << 20) };
        assert_eq!(Label::decode(&label.encode()), Err(LabelFault::Newer(FORMAT_VERSION + 1)));
    }
}
