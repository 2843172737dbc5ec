//! The superblock: where a checkpoint's tree and the log behind it begin. Two slots are written in turn.

use crate::error::MetaError;
use crate::page::PageRef;
use crate::place::{LOG_BLOCK, LOG_BLOCKS_LEAST, SUPERBLOCKS};
use std::ops::Range;
use weft_types::{BLOCK_SIZE, InodeNumber};
use weft_wire::{DecodeError, Decoder, Encoder, crc32c};

const MAGIC: [u8; 8] = *b"WEFTMETA";

/// The newest format of a shard that this release reads and writes.
pub(crate) const FORMAT: u16 = 1;

/// A feature: files say which directory has their only name. A release that does not know it takes such a
/// file for a directory where it gets another name, and loses count of its names.
const FILES_SAY_DIRECTORY: u64 = 1;

/// A feature: sessions may share a file that they write (F7). A release that does not know it takes such a
/// hold for damage.
const FILES_SHARED: u64 = 2;

/// A feature: directories of the file system lie in several shards, and operations happen in several of them
/// (F3). A release that does not know it finds tables that it cannot read.
pub(crate) const SPREAD: u64 = 4;

/// A feature: quotas are set, or parts of them handed out (F16). A release that does not know it finds tables
/// that it cannot read.
pub(crate) const QUOTAS: u64 = 8;

/// The features that every shard has which this release writes.
pub(crate) const FEATURES: u64 = FILES_SAY_DIRECTORY | FILES_SHARED;

/// The features that this release knows.
const FEATURES_KNOWN: u64 = FEATURES | SPREAD | QUOTAS;

const CRC_AT: Range<usize> = BLOCK_SIZE - 4..BLOCK_SIZE;

/// Checkpoints, blocks of the log and generations that no shard reaches.
const COUNTER_END: u64 = 1 << 60;

/// A tree of more levels is none: a page has at least five children.
const LEVEL_MAX: u8 = 24;

/// What errors call it.
const SUPERBLOCK: &str = "the superblock";

/// Which shard it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardName {
    /// The file system's number.
    pub file_system: u64,
    /// The shard's number in it.
    pub shard: u16,
}

/// The root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) page: PageRef,
    pub(crate) level: u8,
}

/// One checkpoint: everything of the shard is reached from here, and from the log from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) name: ShardName,
    /// What a release has to know that opens it.
    pub(crate) features: u64,
    /// Counts steps of checkpoints from 1. The newer of two good slots holds.
    pub(crate) checkpoint: u64,
    /// No batch of the log from `log_next` on is of a server before this generation. Between the steps of a
    /// checkpoint it stays as it was, like `log_next`: batches of servers before may be replayed.
    pub(crate) generation: u64,
    /// Blocks of the log.
    pub(crate) log_blocks: u32,
    /// The first block of the log's stream that is not in the checkpoint.
    pub(crate) log_next: u64,
    /// The tables.
    pub(crate) root: Option<Root>,
}

impl Superblock {
    /// The slot that it is written to.
    pub(crate) fn block(&self) -> u64 {
        SUPERBLOCKS[(self.checkpoint % 2) as usize]
    }

    /// The first block of the tree's pages.
    pub(crate) fn first_page(&self) -> u64 {
        LOG_BLOCK + u64::from(self.log_blocks)
    }

    /// The superblock as a block.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(BLOCK_SIZE);
        e.bytes(&MAGIC).u16(FORMAT).u16(self.name.shard).u32(self.log_blocks);
        // Behind the name: what a release that does not know it must not open the shard for.
        e.u64(self.name.file_system).u64(self.features);
        e.u64(self.checkpoint).u64(self.generation).u64(self.log_next);
        let root = self.root.unwrap_or(Root { page: PageRef { block: 0, crc: 0 }, level: 0 });
        e.u8(self.root.is_some().into()).u8(root.level).u64(root.page.block).u32(root.page.crc);
        let mut block = e.0;
        block.resize(CRC_AT.start, 0);
        let crc = crc32c(&block);
        block.extend_from_slice(&crc.to_le_bytes());
        block
    }

    /// The superblock of a block.
    ///
    /// # Errors
    /// [`MetaError::NoShard`] if it is none; if it is damaged, or of a later release.
    pub(crate) fn decode(bytes: &[u8], block: u64) -> Result<Superblock, MetaError> {
        if bytes[..MAGIC.len()] != MAGIC {
            let found = String::from_utf8_lossy(&bytes[..MAGIC.len()]).into_owned();
            return Err(MetaError::NoShard(format!("block {block} begins with {found:?}")));
        }
        let damaged = |reason: String| MetaError::damaged(SUPERBLOCK, block, reason);
        let (crc, found) = (crc32c(&bytes[..CRC_AT.start]), &bytes[CRC_AT]);
        if found != crc.to_le_bytes() {
            return Err(damaged(format!(
                "its checksum is {found:02x?}, expected {:02x?}",
                crc.to_le_bytes()
            )));
        }
        let mut d = Decoder::new(&bytes[MAGIC.len()..]);
        let format = d.u16().map_err(|error| damaged(error.to_string()))?;
        if format != FORMAT {
            return Err(MetaError::Version { found: format, newest: FORMAT });
        }
        let superblock = Superblock::fields(&mut d).map_err(|error| damaged(error.to_string()))?;
        match superblock.features & !FEATURES_KNOWN {
            0 => Ok(superblock),
            unknown => Err(MetaError::Features(unknown)),
        }
    }

    fn fields(d: &mut Decoder<'_>) -> Result<Superblock, DecodeError> {
        let (shard, log_blocks) = (d.u16()?, d.u32()?);
        let name = ShardName { file_system: d.u64()?, shard };
        let features = d.u64()?;
        let (checkpoint, generation, log_next) = (d.u64()?, d.u64()?, d.u64()?);
        let (has_root, level) = (d.u8()?, d.u8()?);
        let page = PageRef { block: d.u64()?, crc: d.u32()? };
        let root = (has_root == 1).then_some(Root { page, level });
        let checks = [
            ("shard", shard.into(), shard < InodeNumber::SHARDS),
            ("blocks of the log", log_blocks.into(), log_blocks >= LOG_BLOCKS_LEAST),
            ("checkpoint", checkpoint, (1..COUNTER_END).contains(&checkpoint)),
            ("generation", generation, generation < COUNTER_END),
            ("position in the log", log_next, log_next < COUNTER_END),
            ("root", has_root.into(), has_root <= 1),
            ("level", level.into(), level <= LEVEL_MAX),
        ];
        match checks.into_iter().find(|(.., is_good)| !is_good) {
            Some((field, value, _)) => Err(DecodeError::Invalid { field, value }),
            None => Ok(Superblock { name, features, checkpoint, generation, log_blocks, log_next, root }),
        }
    }
}

/// The superblock that holds, of both slots.
///
/// # Errors
/// If no slot has one; if the newer one is of a later release.
pub(crate) fn newest(slots: [&[u8]; 2]) -> Result<Superblock, MetaError> {
    let [a, b] = [0, 1].map(|slot| Superblock::decode(slots[slot], SUPERBLOCKS[slot]));
    let was_written = |slot: usize| slots[slot].iter().any(|byte| *byte != 0);
    match (a, b) {
        (Ok(a), Ok(b)) if a.name != b.name => {
            let reason = format!("slots are of {:?} and {:?}", a.name, b.name);
            Err(MetaError::damaged(SUPERBLOCK, SUPERBLOCKS[1], reason))
        }
        (Ok(a), Ok(b)) => Ok(if a.checkpoint > b.checkpoint { a } else { b }),
        // Each write of a block is whole, so only the first checkpoint is alone.
        (Err(_), Ok(one)) if one.checkpoint == 1 && !was_written(0) => Ok(one),
        (Err(error), Ok(one)) | (Ok(one), Err(error)) => {
            let reason = format!("{error}; the other slot has checkpoint {}", one.checkpoint);
            Err(MetaError::damaged(
                SUPERBLOCK,
                SUPERBLOCKS[usize::from(one.block() == SUPERBLOCKS[0])],
                reason,
            ))
        }
        (Err(_), Err(error)) if was_written(1) => Err(error),
        (Err(error), _) => Err(error),
    }
}
