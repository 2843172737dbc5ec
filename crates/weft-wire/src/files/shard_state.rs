//! What a shard is made of, and what it has done.

use super::decode_count;
use crate::{DecodeError, Decoder, Encoder};
use weft_types::limits::SHARD_TABLES_MAX;

/// What a shard is made of, and what it has done since its server has opened it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardState {
    /// The format of its volume.
    pub format: u16,
    /// Checkpoints since the shard was made.
    pub checkpoint: u64,
    /// Rises with each server that opens it: that of this one.
    pub generation: u64,
    /// Blocks of its log.
    pub log_blocks: u32,
    /// The block of the log's stream from which a server would replay it.
    pub log_from: u64,
    /// The block of the log's stream that is written next.
    pub log_next: u64,
    /// Pages of the newest tree, and its levels.
    pub pages: u64,
    /// Levels of the newest tree.
    pub levels: u8,
    /// Items of each table, by the table's number.
    pub tables: Vec<(u8, u64)>,
    /// How long it has been served by this server, in milliseconds.
    pub served_ms: u64,
    /// Operations that were answered.
    pub operations: u64,
    /// Batches that were appended to the log.
    pub batches: u64,
    /// Blocks of these.
    pub appended_blocks: u64,
    /// Bytes of changes in these.
    pub change_bytes: u64,
    /// Reads that proved that no other server has begun (F2).
    pub probes: u64,
    /// Checkpoints that this server has made.
    pub checkpoints: u64,
}

impl ShardState {
    pub(super) fn encode(&self, e: &mut Encoder) {
        e.u16(self.format).u64(self.checkpoint).u64(self.generation);
        e.u32(self.log_blocks).u64(self.log_from).u64(self.log_next);
        e.u64(self.pages).u8(self.levels);
        e.u32(self.tables.len() as u32);
        self.tables.iter().for_each(|(table, items)| {
            e.u8(*table).u64(*items);
        });
        let counters = [
            self.served_ms,
            self.operations,
            self.batches,
            self.appended_blocks,
            self.change_bytes,
            self.probes,
            self.checkpoints,
        ];
        counters.iter().for_each(|count| {
            e.u64(*count);
        });
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<ShardState, DecodeError> {
        let (format, checkpoint, generation) = (d.u16()?, d.u64()?, d.u64()?);
        let (log_blocks, log_from, log_next) = (d.u32()?, d.u64()?, d.u64()?);
        let (pages, levels) = (d.u64()?, d.u8()?);
        let tables = (0..decode_count(d, "tables", SHARD_TABLES_MAX)?).map(|_| Ok((d.u8()?, d.u64()?)));
        Ok(ShardState {
            format,
            checkpoint,
            generation,
            log_blocks,
            log_from,
            log_next,
            pages,
            levels,
            tables: tables.collect::<Result<_, DecodeError>>()?,
            served_ms: d.u64()?,
            operations: d.u64()?,
            batches: d.u64()?,
            appended_blocks: d.u64()?,
            change_bytes: d.u64()?,
            probes: d.u64()?,
            checkpoints: d.u64()?,
        })
    }
}
