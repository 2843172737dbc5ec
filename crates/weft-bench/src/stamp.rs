//! The stamp in each block that a checked load writes, by which the block says what it is.
//!
//! Bytes, little-endian; the rest of the block is data:
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | `WEFTLOAD` |
//! | 8 | 8 | LBA: the block's number on the volume, of 4 KiB |
//! | 16 | 8 | run: which run wrote it, a random number |
//! | 24 | 4 | generation: how often this run had written the block by then |
//! | 28 | 4 | CRC-32C of the whole block without these four bytes |
//!
//! It knows nothing of what should be found where.

use std::fmt;
use weft_types::{BLOCK_SIZE, Lba};
use weft_wire::crc32c_of_all;

const MAGIC: &[u8; 8] = b"WEFTLOAD";

/// Where the checksum stands, and what is behind it.
const CRC_AT: usize = 28;
const DATA_AT: usize = 32;

/// What a block says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) lba: Lba,
    pub(crate) run: u64,
    pub(crate) generation: u32,
}

/// What is in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing but zeroes.
    Zeroes,
    /// A stamp, and data whose checksum is right.
    Stamped(Stamp),
    /// A stamp, and a checksum that does not fit.
    Corrupt {
        /// What the stamp says, which may be wrong itself.
        stamp: Stamp,
        /// The checksum in the stamp.
        crc: u32,
        /// The checksum of what is there.
        found: u32,
    },
    /// No stamp.
    Foreign,
}

/// Puts a stamp on a block.
///
/// # Panics
/// If it is no block.
pub(crate) fn put(block: &mut [u8], stamp: Stamp) {
    assert_eq!(block.len(), BLOCK_SIZE, "stamps are for whole blocks");
    block[..8].copy_from_slice(MAGIC);
    block[8..16].copy_from_slice(&stamp.lba.0.to_le_bytes());
    block[16..24].copy_from_slice(&stamp.run.to_le_bytes());
    block[24..CRC_AT].copy_from_slice(&stamp.generation.to_le_bytes());
    let crc = checksum(block);
    block[CRC_AT..DATA_AT].copy_from_slice(&crc.to_le_bytes());
}

/// Reads what a block says.
///
/// # Panics
/// If it is no block.
pub(crate) fn content(block: &[u8]) -> Content {
    assert_eq!(block.len(), BLOCK_SIZE, "stamps are for whole blocks");
    if block[..8] != *MAGIC {
        let is_zero = block.iter().all(|byte| *byte == 0);
        return if is_zero { Content::Zeroes } else { Content::Foreign };
    }
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let half = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
    let stamp = Stamp { lba: Lba(word(8)), run: word(16), generation: half(24) };
    let (crc, found) = (half(CRC_AT), checksum(block));
    if crc == found { Content::Stamped(stamp) } else { Content::Corrupt { stamp, crc, found } }
}

fn checksum(block: &[u8]) -> u32 {
    crc32c_of_all([&block[..CRC_AT], &block[DATA_AT..]])
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Zeroes => f.write_str("zeroes"),
            Content::Foreign => f.write_str("data without a stamp"),
            Content::Stamped(stamp) => {
                let Stamp { lba, run, generation } = stamp;
                write!(f, "generation {generation} of LBA {} of run {run:016x}", lba.0)
            }
            Content::Corrupt { stamp, crc, found } => {
                write!(f, "{} with checksum {found:08x} instead of {crc:08x}", Content::Stamped(*stamp))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped() -> Vec<u8> {
        let mut block: Vec<u8> = (0..BLOCK_SIZE).map(|i| (i % 251) as u8).collect();
        put(&mut block, Stamp { lba: Lba(77), run: 0xabc, generation: 3 });
        block
    }

    #[test]
    fn a_block_says_what_was_put_in() {
        let stamp = Stamp { lba: Lba(77), run: 0xabc, generation: 3 };
        assert_eq!(content(&stamped()), Content::Stamped(stamp));
        assert_eq!(content(&[0; BLOCK_SIZE]), Content::Zeroes);
        assert_eq!(content(&[1; BLOCK_SIZE]), Content::Foreign);
    }

    #[test]
    fn any_wrong_byte_is_noticed() {
        for at in (0..DATA_AT).chain([DATA_AT, 1000, BLOCK_SIZE - 1]) {
            let mut block = stamped();
            block[at] ^= 0x10;
            let found = content(&block);
            let is_noticed =
                if at < 8 { found == Content::Foreign } else { matches!(found, Content::Corrupt { .. }) };
            assert!(is_noticed, "byte {at}: {found}");
        }
    }
}
