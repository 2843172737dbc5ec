//! The log: changes in the order in which they were decided, in a ring of blocks.
//!
//! Changes that are ready together are a *batch* of one or more blocks, written by one write; one write is
//! under way at a time. Each block says which block of the stream it is, which of its batch, and the
//! generation of the server that wrote it. A batch that is not whole never happened: its operations were
//! not answered. An earlier server may have left blocks of such a batch where a later server writes its
//! own. The generation, which never goes back along the log, tells them apart.

use crate::change::Change;
use crate::error::MetaError;
use crate::medium::{Medium, read_whole};
use crate::place::LOG_BLOCK;
use crate::superblock::{ShardName, Superblock};
use std::ops::Range;
use weft_rt::Buf;
use weft_types::BLOCK_SIZE;
use weft_types::limits::META_BATCH_BLOCKS_MAX;
use weft_wire::{DecodeError, Decoder, Encoder, crc32c_of_all};

const MAGIC: [u8; 4] = *b"WMLG";

/// Bytes of a block's header.
const HEADER_BYTES: usize = 44;

/// Bytes of changes in a block.
const ROOM: usize = BLOCK_SIZE - HEADER_BYTES;

const CRC_AT: Range<usize> = 40..44;

/// Bytes of changes in the largest batch.
pub(crate) const BATCH_BYTES_MAX: usize = ROOM * META_BATCH_BLOCKS_MAX as usize;

/// What errors call it.
const LOG: &str = "the log";

/// Where the next batch goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    pub(crate) name: ShardName,
    /// Blocks of the ring.
    pub(crate) blocks: u32,
    /// The block of the stream that is written next.
    pub(crate) next: u64,
    /// The generation of this server.
    pub(crate) generation: u64,
}

/// A block of the log as it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    generation: u64,
    /// Which block of the stream it is.
    sequence: u64,
    /// Which block of its batch it is.
    index: u16,
    /// Blocks of its batch.
    count: u16,
    /// Bytes of changes in it.
    length: usize,
}

impl Head {
    /// The first block of its batch.
    fn first(self) -> u64 {
        self.sequence - u64::from(self.index)
    }
}

impl Log {
    /// Appends changes, and returns once they are durable.
    ///
    /// # Errors
    /// Those of the medium: the changes may be there or not, and nothing more may be written.
    pub(crate) async fn append(&mut self, medium: &impl Medium, changes: &[u8]) -> Result<(), MetaError> {
        let blocks = self.encode(changes);
        let (first, count) = (self.next, blocks.len() as u64);
        let until_end = u64::from(self.blocks) - first % u64::from(self.blocks);
        let mut blocks: Vec<Buf> = blocks.into_iter().map(Buf::from).collect();
        let wrapped = blocks.split_off((until_end.min(count)) as usize);
        medium.write(self.block_of(first), blocks).await?;
        if !wrapped.is_empty() {
            medium.write(LOG_BLOCK, wrapped).await?;
        }
        self.next += count;
        Ok(())
    }

    /// The blocks of a batch.
    fn encode(&self, changes: &[u8]) -> Vec<Vec<u8>> {
        let parts: Vec<&[u8]> = changes.chunks(ROOM).collect();
        assert!(
            parts.len() <= META_BATCH_BLOCKS_MAX as usize,
            "a batch of {} blocks is not replayed",
            parts.len()
        );
        let count = parts.len() as u16;
        let block = |(index, part): (usize, &&[u8])| {
            let mut e = Encoder::with_capacity(BLOCK_SIZE);
            e.bytes(&MAGIC).u64(self.name.file_system).u16(self.name.shard).u16(index as u16).u16(count);
            e.u16(part.len() as u16)
                .u64(self.generation)
                .u64(self.next + index as u64)
                .u32(0)
                .u32(0)
                .bytes(part);
            let mut block = e.0;
            block.resize(BLOCK_SIZE, 0);
            let crc = checksum(&block);
            block[CRC_AT].copy_from_slice(&crc.to_le_bytes());
            block
        };
        parts.iter().enumerate().map(block).collect()
    }

    /// Where a block of the stream lies.
    fn block_of(&self, sequence: u64) -> u64 {
        LOG_BLOCK + sequence % u64::from(self.blocks)
    }

    /// Blocks of the stream from `from` on that are in use.
    pub(crate) fn used(&self, from: u64) -> u64 {
        self.next - from
    }

    /// Finds the batches behind a checkpoint, and the end of the log. `each` is called for the changes of
    /// each.
    ///
    /// # Errors
    /// If a batch cannot be read although a later one is there; if it holds what is no change; if the
    /// checkpoint is an old one, whose log was overwritten.
    pub(crate) async fn replay(
        medium: &impl Medium,
        superblock: &Superblock,
        mut each: impl FnMut(&[Change]),
    ) -> Result<Log, MetaError> {
        let (name, blocks) = (superblock.name, superblock.log_blocks);
        let generation = medium.generation();
        let mut log = Log { name, blocks, next: superblock.log_next, generation };
        let mut window = Window { medium, log, first: 0, bytes: Vec::new() };
        let mut last = superblock.generation;
        while let Some((changes, count, generation)) = window.batch(log.next, last).await? {
            let at = log.block_of(log.next);
            each(&decode(&changes).map_err(|error| MetaError::damaged(LOG, at, error.to_string()))?);
            log.next += count;
            last = generation;
        }
        window.check_end(log.next, last).await?;
        if last >= generation {
            let reason =
                format!("generation {last} has written here, and the volume has generation {generation}");
            return Err(MetaError::damaged(LOG, log.block_of(log.next), reason));
        }
        Ok(log)
    }
}

/// Blocks of the log that were read ahead.
struct Window<'m, M> {
    medium: &'m M,
    log: Log,
    /// The block of the stream that the bytes begin with.
    first: u64,
    bytes: Vec<u8>,
}

impl<M: Medium> Window<'_, M> {
    /// The header of a block of the stream, if what is there is a good block of this log; and the block.
    async fn block(&mut self, sequence: u64) -> Result<Option<(Head, &[u8])>, MetaError> {
        let known = self.first..self.first + (self.bytes.len() / BLOCK_SIZE) as u64;
        if !known.contains(&sequence) {
            let until_end = u64::from(self.log.blocks) - sequence % u64::from(self.log.blocks);
            let count = until_end.min(META_BATCH_BLOCKS_MAX.into());
            self.bytes = read_whole(self.medium, self.log.block_of(sequence), count).await?;
            self.first = sequence;
        }
        let at = (sequence - self.first) as usize * BLOCK_SIZE;
        let block = &self.bytes[at..at + BLOCK_SIZE];
        Ok(decode_head(block, self.log.name).map(|head| (head, block)))
    }

    /// The changes of the batch that begins with a block, how many blocks it has, and its generation; `None`
    /// if it is not there, or not whole.
    async fn batch(&mut self, first: u64, last: u64) -> Result<Option<(Vec<u8>, u64, u64)>, MetaError> {
        let mut changes = Vec::new();
        let Some((head, _)) = self.block(first).await? else { return Ok(None) };
        if head.sequence != first || head.index != 0 || head.generation < last {
            return Ok(None);
        }
        for index in 0..head.count {
            let expected = Head { sequence: first + u64::from(index), index, ..head };
            match self.block(expected.sequence).await? {
                Some((found, block)) if found == (Head { length: found.length, ..expected }) => {
                    changes.extend_from_slice(&block[HEADER_BYTES..HEADER_BYTES + found.length]);
                }
                _ => return Ok(None),
            }
        }
        Ok(Some((changes, head.count.into(), head.generation)))
    }

    /// Whether the log really ends there: no block of a later batch follows, and none of a later round is in
    /// its place.
    async fn check_end(&mut self, end: u64, last: u64) -> Result<(), MetaError> {
        for sequence in end..end + 2 * u64::from(META_BATCH_BLOCKS_MAX).min(u64::from(self.log.blocks) / 2) {
            let at = self.log.block_of(sequence);
            if let Some((found, _)) = self.block(sequence).await?
                && found.generation >= last
                && found.first() > end
            {
                let reason = format!(
                    "block {end} of the stream is missing or damaged, block {} of a later batch is there",
                    found.sequence
                );
                return Err(MetaError::damaged(LOG, at, reason));
            }
        }
        Ok(())
    }
}

/// The header of a block; `None` if it is no good block of this log.
fn decode_head(block: &[u8], name: ShardName) -> Option<Head> {
    let mut d = Decoder::new(block);
    let mut read = || -> Result<_, DecodeError> {
        let whose = (d.array::<4>()?, d.u64()?, d.u16()?);
        let (index, count, length) = (d.u16()?, d.u16()?, d.u16()?);
        let (generation, sequence, _, crc) = (d.u64()?, d.u64()?, d.u32()?, d.u32()?);
        Ok((whose, Head { generation, sequence, index, count, length: length.into() }, crc))
    };
    let (whose, head, crc) = read().ok()?;
    let is_good = whose == (MAGIC, name.file_system, name.shard)
        && crc == checksum(block)
        && head.index < head.count
        && u32::from(head.count) <= META_BATCH_BLOCKS_MAX
        && head.length <= ROOM
        && u64::from(head.index) <= head.sequence;
    is_good.then_some(head)
}

/// Checks what a good block may say, for fuzzing: of any bytes, after its checksum was made right.
#[cfg(feature = "fuzzing")]
pub(crate) fn check_any(block: &mut [u8], name: ShardName) {
    let crc = checksum(block);
    block[CRC_AT].copy_from_slice(&crc.to_le_bytes());
    if let Some(head) = decode_head(block, name) {
        assert!(head.first() <= head.sequence && head.length <= ROOM && head.index < head.count);
        let _ = decode(&block[HEADER_BYTES..HEADER_BYTES + head.length]);
    }
}

/// The changes of a batch.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Change>, DecodeError> {
    let (mut d, mut changes) = (Decoder::new(bytes), Vec::new());
    while d.left() > 0 {
        changes.push(Change::decode(&mut d)?);
    }
    Ok(changes)
}

fn checksum(block: &[u8]) -> u32 {
    crc32c_of_all([&block[..CRC_AT.start], &block[CRC_AT.end..]])
}

const _: () = assert!(CRC_AT.end == HEADER_BYTES);
const _: () = assert!(4 + 8 + 2 + 2 + 2 + 2 + 8 + 8 + 4 == CRC_AT.start);
