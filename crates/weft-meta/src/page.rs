//! Pages of the tree: 4 KiB with a header that says what and where, and a checksum that the page above knows
//! too.

use crate::error::MetaError;
use crate::superblock::ShardName;
use std::ops::Range;
use weft_types::BLOCK_SIZE;
use weft_wire::{Decoder, Encoder, crc32c_of_all};

/// What errors call a page.
pub(crate) const PAGE: &str = "a page of the tables";

const MAGIC: [u8; 4] = *b"WMPG";

/// Bytes of a page's header.
const HEADER_BYTES: usize = 40;

/// Bytes that a page holds behind its header.
pub(crate) const PAGE_ROOM: usize = BLOCK_SIZE - HEADER_BYTES;

const CRC_AT: Range<usize> = 36..40;

/// A page and the checksum that it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRef {
    /// The block where it lies.
    pub(crate) block: u64,
    /// The checksum in its header, which covers all other bytes of the page.
    pub(crate) crc: u32,
}

/// What a page's header says besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageHead {
    /// 0: it holds items; otherwise pages of the level below.
    pub(crate) level: u8,
    /// Items or pages.
    pub(crate) count: u16,
    /// The checkpoint that wrote it.
    pub(crate) checkpoint: u64,
}

/// Makes a page, and says its checksum.
///
/// # Panics
/// If the body has more than [`PAGE_ROOM`] bytes.
pub(crate) fn encode_page(shard: ShardName, head: PageHead, body: &[u8]) -> (Vec<u8>, u32) {
    assert!(body.len() <= PAGE_ROOM, "a page has {PAGE_ROOM} bytes");
    let mut e = Encoder::with_capacity(BLOCK_SIZE);
    e.bytes(&MAGIC).u64(shard.file_system).u16(shard.shard).u8(head.level).u8(0).u16(head.count);
    e.u16(body.len() as u16).u64(head.checkpoint).u64(0);
    e.0.resize(CRC_AT.start, 0);
    e.u32(0).bytes(body);
    let mut page = e.0;
    page.resize(BLOCK_SIZE, 0);
    let crc = checksum(&page);
    page[CRC_AT].copy_from_slice(&crc.to_le_bytes());
    (page, crc)
}

/// Checks a page, and says what is in it.
///
/// # Errors
/// If it is not the page that is meant.
pub(crate) fn decode_page(
    page: &[u8],
    shard: ShardName,
    from: PageRef,
    level: u8,
) -> Result<(PageHead, Range<usize>), MetaError> {
    let damaged = |reason: String| MetaError::damaged(PAGE, from.block, reason);
    let crc = checksum(page);
    if crc != from.crc {
        return Err(damaged(format!("its checksum is {crc:#010x}, expected {:#010x}", from.crc)));
    }
    let mut d = Decoder::new(page);
    let mut read = || -> Result<_, weft_wire::DecodeError> {
        let found = (d.array::<4>()?, d.u64()?, d.u16()?);
        let (level, _, count, length) = (d.u8()?, d.u8()?, d.u16()?, d.u16()?);
        Ok((found, level, count, usize::from(length), d.u64()?))
    };
    let (found, its_level, count, length, checkpoint) = read().map_err(|error| damaged(error.to_string()))?;
    if found != (MAGIC, shard.file_system, shard.shard) {
        return Err(damaged(format!(
            "it is none of file system {}, shard {}",
            shard.file_system, shard.shard
        )));
    }
    if its_level != level {
        return Err(damaged(format!("it has level {its_level}, expected {level}")));
    }
    if length > PAGE_ROOM {
        return Err(damaged(format!("it says that it holds {length} bytes")));
    }
    Ok((PageHead { level, count, checkpoint }, HEADER_BYTES..HEADER_BYTES + length))
}

fn checksum(page: &[u8]) -> u32 {
    crc32c_of_all([&page[..CRC_AT.start], &page[CRC_AT.end..]])
}

const _: () = assert!(CRC_AT.end == HEADER_BYTES);
