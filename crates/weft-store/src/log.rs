//! The log ring: a byte stream without end, laid onto a region of the drive modulo its length. It owns the
//! form of a batch, where batches lie, and how they are found again; what the records in them mean is
//! `record`'s, and when they are written is `commit`'s.
//!
//! One batch is written at a time: batch n+1 begins only after n was flushed. So at most the last batch on
//! the drive is in doubt, and every header names the newest batch that was durable when it was written.

use crate::StoreError;
use crate::error::Fault;
use crate::record::{RECORD_BYTES_MAX, Record};
use crate::region::{Place, RegionMap};
use crate::state::State;
use weft_rt::{BufMut, Drive};
use weft_rules::{Mutation, mutated};
use weft_types::{BLOCK_SIZE, DriveId};
use weft_wire::{Decoder, Encoder, crc32c};

/// Bytes of the largest batch, padding included: long enough that the header and the flush weigh nothing,
/// short enough that a damaged one is told from the log's end by looking a little further.
pub const LOG_BATCH_MAX: u64 = 1 << 20;

/// The largest batch of a small ring is this part of it, so that several always fit.
const BATCH_SHARE: u64 = 8;

/// Bytes of a batch's header.
pub(crate) const BATCH_HEADER: usize = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"WLOG");

/// Bytes that are read at a time when the log is replayed.
const READ_BYTES: u64 = 1 << 20;

/// A batch's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    /// Counts batches from 1 over the drive's life.
    pub(crate) sequence: u64,
    /// Where in the log's byte stream it begins.
    pub(crate) position: u64,
    /// The newest batch that was durable when this one was written.
    pub(crate) durable: u64,
    /// Bytes on the drive: header, records and padding; a multiple of 4096.
    pub(crate) length: u32,
    /// Bytes of records.
    pub(crate) record_bytes: u32,
    /// How many records.
    pub(crate) count: u32,
    /// What of the batch a program has to know to replay it, a bit each. No such bit exists yet.
    pub(crate) must_know: u32,
}

/// A batch as found on the drive.
#[derive(Clone, Debug)]
pub(crate) struct FoundBatch {
    pub(crate) header: BatchHeader,
    pub(crate) records: Vec<u8>,
}

/// Where the ring lies, and which part of the stream it holds.
#[derive(Clone, Debug)]
pub(crate) struct LogRing {
    drive_id: DriveId,
    first: Place,
    capacity: u64,
    /// Where the next batch goes.
    pub(crate) head: u64,
    /// What lies before is in a checkpoint.
    pub(crate) tail: u64,
}

impl FoundBatch {
    /// Its records.
    ///
    /// # Errors
    /// If they are no records; `Unknown` if a newer program has written them.
    pub(crate) fn decode(&self) -> Result<Vec<Record>, Fault> {
        let decoded = match self.header.must_know {
            0 => State::decode_records(&self.records, self.header.count),
            features => Err(Fault::Unknown(format!("features {features:#x}"))),
        };
        decoded.map_err(|fault| fault.in_part(format_args!("batch {}", self.header.sequence)))
    }
}

impl LogRing {
    /// The ring of a drive, empty at a position of the stream.
    pub(crate) fn new(drive_id: DriveId, region: &RegionMap, position: u64) -> Self {
        LogRing {
            drive_id,
            first: Place(region.log_first),
            capacity: region.log_blocks * BLOCK_SIZE as u64,
            head: position,
            tail: position,
        }
    }

    /// Bytes of the ring.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes between tail and head.
    pub(crate) fn used(&self) -> u64 {
        self.head - self.tail
    }

    /// Bytes of the largest batch of this ring.
    pub(crate) fn batch_max(&self) -> u64 {
        let least = (2 * RECORD_BYTES_MAX) as u64;
        (self.capacity / BATCH_SHARE).clamp(least, LOG_BATCH_MAX) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64
    }

    /// Takes the room for a batch; returns where it begins.
    ///
    /// # Panics
    /// If the ring is full: records are admitted only while there is room for them.
    pub(crate) fn take(&mut self, length: u64) -> u64 {
        assert!(self.used() + length <= self.capacity, "the log would overrun its tail");
        let position = self.head;
        self.head += length;
        position
    }

    /// The batch as bytes.
    pub(crate) fn encode(&self, header: &BatchHeader, records: &[u8]) -> BufMut {
        let mut batch = BufMut::aligned(header.length as usize);
        let mut e = Encoder::with_capacity(BATCH_HEADER);
        e.u32(MAGIC).u32(0).bytes(&self.drive_id.to_bytes());
        e.u64(header.sequence).u64(header.position).u64(header.durable);
        e.u32(header.length).u32(header.record_bytes).u32(header.count).u32(header.must_know);
        batch[..BATCH_HEADER].copy_from_slice(&e.0);
        batch[BATCH_HEADER..BATCH_HEADER + records.len()].copy_from_slice(records);
        batch[BATCH_HEADER + records.len()..].fill(0);
        let crc = crc32c(&batch[8..]);
        batch[4..8].copy_from_slice(&crc.to_le_bytes());
        batch
    }

    /// The parts of the drive that a piece of the stream lies on, one or two.
    pub(crate) fn segments(&self, position: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
        let at = position % self.capacity;
        let first = length.min(self.capacity - at);
        let base = self.first.offset();
        [(base + at, first), (base, length - first)].into_iter().filter(|(_, len)| *len > 0)
    }

    /// Writes a piece of the stream.
    #[cfg(test)]
    pub(crate) async fn write(
        &self,
        drive: &Drive,
        position: u64,
        bytes: weft_rt::Buf,
    ) -> Result<(), StoreError> {
        let mut done = 0;
        for (at, len) in self.segments(position, bytes.len() as u64) {
            let part = bytes.slice(done..done + len as usize);
            drive.write(at, part).await.map_err(|e| StoreError::io("write", at, len, e))?;
            done += len as usize;
        }
        Ok(())
    }

    /// Reads a piece of the stream.
    async fn read(&self, drive: &Drive, position: u64, length: u64) -> Result<Vec<u8>, StoreError> {
        let mut out = Vec::with_capacity(length as usize);
        for (at, len) in self.segments(position, length) {
            let part = drive.read(at, len as usize).await.map_err(|e| StoreError::io("read", at, len, e))?;
            out.extend_from_slice(&part);
        }
        Ok(out)
    }

    /// Reads the header of a batch that may begin at these bytes, in this round of the ring or in another; `None`
    /// if none does.
    fn header(&self, bytes: &[u8], position: u64) -> Option<BatchHeader> {
        let mut d = Decoder::new(bytes);
        let (magic, _, drive) = (d.u32().ok()?, d.u32().ok()?, DriveId::from_bytes(d.array().ok()?));
        let (sequence, found_position, durable) = (d.u64().ok()?, d.u64().ok()?, d.u64().ok()?);
        let (length, record_bytes, count) = (d.u32().ok()?, d.u32().ok()?, d.u32().ok()?);
        let must_know = d.u32().ok()?;
        let is_whole = (length as usize).is_multiple_of(BLOCK_SIZE)
            && u64::from(length) <= LOG_BATCH_MAX.max(self.batch_max())
            && BATCH_HEADER + record_bytes as usize <= length as usize;
        let lies_here = found_position.abs_diff(position).is_multiple_of(self.capacity);
        (magic == MAGIC && drive == self.drive_id && lies_here && is_whole).then_some(BatchHeader {
            sequence,
            position,
            durable,
            length,
            record_bytes,
            count,
            must_know,
        })
    }
}

/// Reads batches one after another from where a checkpoint ends.
pub(crate) struct LogReader<'a> {
    ring: &'a LogRing,
    drive: &'a Drive,
    /// Where the next batch would begin, and its number.
    pub(crate) position: u64,
    pub(crate) sequence: u64,
    /// What was read ahead, and where it begins.
    window: Vec<u8>,
    window_at: u64,
    /// Up to here nothing is read ahead: something there cannot be read, and need not be anything of the log's.
    cautious_until: u64,
}

impl<'a> LogReader<'a> {
    /// A reader that expects this batch at this position.
    pub(crate) fn new(ring: &'a LogRing, drive: &'a Drive, position: u64, sequence: u64) -> Self {
        let (window, window_at, cautious_until) = (Vec::new(), position, 0);
        LogReader { ring, drive, position, sequence, window, window_at, cautious_until }
    }

    /// The next batch; `None` at the log's end.
    ///
    /// # Errors
    /// `LogDamaged` if a batch that was complete once is not there any more, which a later batch proves: one
    /// behind it, or one of a later round of the ring that has been written over it; those of the drive, if what it cannot
    /// read may be a batch that was complete once.
    pub(crate) async fn next(&mut self) -> Result<Option<FoundBatch>, StoreError> {
        let (sequence, position) = (self.sequence, self.position);
        let header = self.header_at(position).await?;
        let begun = header.filter(|h| h.sequence == sequence);
        if let Some(header) = begun
            && let Some(found) = self.batch_of(header).await?
        {
            self.position += u64::from(found.header.length);
            self.sequence += 1;
            return Ok(Some(found));
        }
        let mut at = position;
        let end = position + (2 * self.ring.batch_max()).min(self.ring.capacity);
        while at < end && !mutated(Mutation::LaterBatchNotSought) {
            let later = match self.header_at(at).await {
                // Where this batch was not even begun, there is no later one that could have become unreadable.
                Err(StoreError::Io { .. }) if begun.is_none() => None,
                other => other?,
            };
            // Batches of earlier rounds have lower numbers: they are what a log's end usually borders on.
            if let Some(later) = later.filter(|h| h.sequence > sequence)
                && let Some(later) = self.batch_of(later).await?
            {
                return Err(StoreError::LogDamaged { sequence, position, later: later.header.sequence });
            }
            at += BLOCK_SIZE as u64;
        }
        Ok(None)
    }

    /// The header of the batch that seems to begin at a position, if one does: of this round of the ring, or of another.
    async fn header_at(&mut self, position: u64) -> Result<Option<BatchHeader>, StoreError> {
        self.fill(position, BLOCK_SIZE as u64).await?;
        let header = self.ring.header(self.bytes(position, BATCH_HEADER as u64), position);
        Ok(header.filter(|h| u64::from(h.length) <= self.ring.capacity))
    }

    /// The batch that a header speaks of, if it is complete.
    async fn batch_of(&mut self, header: BatchHeader) -> Result<Option<FoundBatch>, StoreError> {
        let position = header.position;
        self.fill(position, u64::from(header.length)).await?;
        let bytes = self.bytes(position, u64::from(header.length));
        let crc = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
        if crc32c(&bytes[8..]) != crc && !mutated(Mutation::BatchCrcNotChecked) {
            return Ok(None);
        }
        let records = bytes[BATCH_HEADER..BATCH_HEADER + header.record_bytes as usize].to_vec();
        Ok(Some(FoundBatch { header, records }))
    }

    fn bytes(&self, position: u64, length: u64) -> &[u8] {
        let from = (position - self.window_at) as usize;
        &self.window[from..from + length as usize]
    }

    /// Makes the window cover a piece of the stream.
    async fn fill(&mut self, position: u64, length: u64) -> Result<(), StoreError> {
        let end = self.window_at + self.window.len() as u64;
        if position >= self.window_at && position + length <= end {
            return Ok(());
        }
        let ahead = length.max(READ_BYTES).min(self.ring.capacity);
        let is_cautious = position < self.cautious_until || ahead == length;
        let read = |length| self.ring.read(self.drive, position, length);
        self.window = match read(if is_cautious { length } else { ahead }).await {
            Err(error) if !is_cautious => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the log is read piece by piece");
                self.cautious_until = position + ahead;
                read(length).await?
            }
            other => other?,
        };
        self.window_at = position;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::sim::{Sim, SimDisk};

    fn ring() -> LogRing {
        LogRing::new(DriveId(9), &RegionMap::of(8 << 20, Some(256 << 10)), 0)
    }

    /// Writes batches of 1 to 3 blocks until the stream is `bytes` long; returns where each begins.
    async fn fill(ring: &mut LogRing, drive: &Drive, bytes: u64) -> Vec<u64> {
        let mut starts = Vec::new();
        while ring.head < bytes {
            let sequence = starts.len() as u64 + 1;
            let records = vec![sequence as u8; 3000 * (sequence as usize % 4)];
            let length = (BATCH_HEADER + records.len()).next_multiple_of(BLOCK_SIZE) as u32;
            ring.tail = ring.head;
            let position = ring.take(u64::from(length));
            let record_bytes = records.len() as u32;
            let header = BatchHeader {
                sequence,
                position,
                durable: sequence - 1,
                length,
                record_bytes,
                count: 1,
                must_know: 0,
            };
            ring.write(drive, position, ring.encode(&header, &records).freeze()).await.unwrap();
            starts.push(position);
        }
        starts
    }

    async fn read_from(
        ring: &LogRing,
        drive: &Drive,
        position: u64,
        sequence: u64,
    ) -> Result<u64, StoreError> {
        let mut reader = LogReader::new(ring, drive, position, sequence);
        let mut last = sequence - 1;
        while let Some(found) = reader.next().await? {
            assert!(found.records.iter().all(|b| *b == found.header.sequence as u8));
            last = found.header.sequence;
        }
        Ok(last)
    }

    #[test]
    fn the_stream_reads_back_over_the_rings_end() {
        Sim::new(1).block_on(async {
            let drive = SimDisk::new("d", 8 << 20).open().unwrap();
            let mut ring = ring();
            let starts = fill(&mut ring, &drive, 3 * (256 << 10)).await;
            let last = starts.len() as u64;
            let from = starts.iter().rposition(|at| ring.head - at > 200 << 10).unwrap();
            let found = read_from(&ring, &drive, starts[from], from as u64 + 1).await.unwrap();
            assert_eq!(found, last);
        });
    }

    #[test]
    fn a_damaged_batch_with_later_ones_behind_it_is_no_end() {
        Sim::new(1).block_on(async {
            let disk = SimDisk::new("d", 8 << 20);
            let drive = disk.open().unwrap();
            let mut ring = ring();
            let starts = fill(&mut ring, &drive, 200 << 10).await;
            let last = starts.len();
            let flip = |i: usize| {
                let (at, _) = ring.segments(starts[i], 4096).next().unwrap();
                disk.flip(at + 70, 3);
            };
            flip(last - 1);
            assert_eq!(
                read_from(&ring, &drive, 0, 1).await.unwrap(),
                last as u64 - 1,
                "a torn tail is an end"
            );
            flip(last - 1);
            flip(last - 3);
            match read_from(&ring, &drive, 0, 1).await {
                Err(StoreError::LogDamaged { sequence, later, .. }) => {
                    assert_eq!((sequence, later), (last as u64 - 2, last as u64 - 1));
                }
                other => panic!("{other:?}"),
            }
        });
    }

    /// A block behind the log's end is nothing that anybody needs; one of a batch may be an acknowledged write.
    #[test]
    fn what_cannot_be_read_is_refused_only_where_a_batch_may_be() {
        Sim::new(1).block_on(async {
            let disk = SimDisk::new("d", 8 << 20);
            let drive = disk.open().unwrap();
            let mut ring = ring();
            let starts = fill(&mut ring, &drive, 200 << 10).await;
            let last = starts.len() as u64;
            let block = |position: u64| {
                let (at, _) = ring.segments(position, 4096).next().unwrap();
                let block = at..at + 4096;
                disk.set_faults(|f| f.unreadable = vec![block]);
            };
            for behind in 1..4 {
                block(ring.head + behind * 4096);
                assert_eq!(read_from(&ring, &drive, 0, 1).await.unwrap(), last, "{behind} behind the end");
            }
            block(starts[2] - 4096);
            assert_eq!(read_from(&ring, &drive, starts[2], 3).await.unwrap(), last, "before the beginning");
            for lost in [ring.head, starts[2], starts[2] + 4096, ring.head - 4096] {
                block(lost);
                let found = read_from(&ring, &drive, 0, 1).await;
                assert!(matches!(found, Err(StoreError::Io { .. })), "at {lost}: {found:?}");
            }
            // The last batch is torn, and may be rotten as well; what is behind it decides which.
            let (torn, _) = ring.segments(starts[last as usize - 1], 4096).next().unwrap();
            disk.flip(torn + 70, 3);
            block(ring.head + 4096);
            assert!(matches!(read_from(&ring, &drive, 0, 1).await, Err(StoreError::Io { .. })));
        });
    }

    #[test]
    fn a_start_that_was_written_over_is_no_end() {
        Sim::new(1).block_on(async {
            let drive = SimDisk::new("d", 8 << 20).open().unwrap();
            let mut ring = ring();
            fill(&mut ring, &drive, (256 << 10) + (80 << 10)).await;
            let found = read_from(&ring, &drive, 0, 1).await;
            assert!(matches!(found, Err(StoreError::LogDamaged { sequence: 1, .. })), "{found:?}");
        });
    }
}
