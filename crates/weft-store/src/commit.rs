//! Group commit: records gather in the open batch; one batch at a time is written, together with the data
//! that its records speak of, and flushed; then everyone who waits for it goes on.
//!
//! ```text
//!   open -- closed by the committer, by a checkpoint, or when full --> queued -> writing -> flushing -> durable
//! ```
//!
//! Data is written in parallel with the records about it: what recovery finds without its data in the last
//! batch never happened.

use crate::StoreError;
use crate::engine::Engine;
use crate::log::{BATCH_HEADER, BatchHeader};
use crate::record::RECORD_BYTES_MAX;
use crate::region::Place;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::join_all;
use weft_rt::{Buf, Drive, JoinHandle, breathe};
use weft_rules::{Mutation, mutated};
use weft_types::BLOCK_SIZE;
use weft_wire::Encoder;

/// How long a store is idle before it writes a marker, an empty batch that says that the one before is
/// durable: long beside a commit, short beside what people notice.
const MARKER_AFTER: Duration = Duration::from_millis(10);

/// Data of at least this many bytes is written at once; smaller data waits for its batch, where neighbours
/// become one write: below it a write costs more for being a write than for its bytes.
const WRITE_AT_ONCE_BYTES: usize = 64 << 10;

/// The longest write that neighbours become, and how many writes are polled together before each gets a
/// task of its own.
const GATHER_BYTES_MAX: usize = 1 << 20;
const POLLED_TOGETHER_MAX: usize = 8;

/// Records that become durable together, and the data that they speak of.
pub(crate) struct Batch {
    sequence: u64,
    records: Encoder,
    count: u32,
    data: Vec<(Place, Buf)>,
    started: Vec<JoinHandle<Result<(), StoreError>>>,
}

impl Batch {
    fn new(sequence: u64) -> Self {
        Batch { sequence, records: Encoder::default(), count: 0, data: Vec::new(), started: Vec::new() }
    }

    fn length(&self) -> u64 {
        (BATCH_HEADER + self.records.0.len()).next_multiple_of(BLOCK_SIZE) as u64
    }
}

/// The batches that are not durable yet.
pub(crate) struct Commits {
    open: Batch,
    queue: VecDeque<Batch>,
    queue_bytes: u64,
    durable: u64,
    /// Where in the log the newest durable batch ends.
    durable_end: u64,
    /// The batch that a checkpoint waits for, and where it ends once it is durable.
    watched: (u64, u64),
    /// The newest batch that is known durable from a durable marker or checkpoint.
    covered: u64,
    /// Bytes of records at which the open batch is closed.
    full_bytes: usize,
}

impl Commits {
    /// Nothing is waiting, and everything up to this batch, which ends there in the log, is durable.
    pub(crate) fn new(durable: u64, durable_end: u64, batch_max: u64) -> Self {
        Commits {
            open: Batch::new(durable + 1),
            queue: VecDeque::new(),
            queue_bytes: 0,
            durable,
            durable_end,
            watched: (durable, durable_end),
            covered: durable,
            full_bytes: batch_max as usize - BATCH_HEADER - RECORD_BYTES_MAX,
        }
    }

    /// The newest durable batch.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// The batch that the next record goes to.
    pub(crate) fn open_batch(&self) -> u64 {
        self.open.sequence
    }

    /// The newest batch that has records.
    pub(crate) fn newest_batch(&self) -> u64 {
        if self.open.count > 0 { self.open.sequence } else { self.open.sequence - 1 }
    }

    /// Bytes of the log that the waiting batches will take.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queue_bytes + if self.open.count > 0 { self.open.length() } else { 0 }
    }

    /// Appends a record to the open batch; returns the batch.
    pub(crate) fn append(&mut self, encode: impl FnOnce(&mut Encoder)) -> u64 {
        let before = self.open.records.0.len();
        encode(&mut self.open.records);
        debug_assert!(self.open.records.0.len() - before <= RECORD_BYTES_MAX);
        self.open.count += 1;
        let sequence = self.open.sequence;
        if self.open.records.0.len() > self.full_bytes {
            self.close();
        }
        sequence
    }

    /// Gives the open batch data to write before it commits; comes before the record about it.
    pub(crate) fn add_data(&mut self, drive: &Drive, place: Place, data: Buf) {
        if data.len() >= WRITE_AT_ONCE_BYTES {
            let write = write_at(drive.clone(), place.offset(), vec![data]);
            self.open.started.push(weft_rt::spawn(write));
        } else {
            self.open.data.push((place, data));
        }
    }

    /// Whether the open batch has records, and is the next to be written.
    fn is_gathering(&self) -> bool {
        self.queue.is_empty() && self.open.count > 0
    }

    /// Closes the open batch, if it has records; returns the newest closed batch.
    pub(crate) fn close(&mut self) -> u64 {
        if self.open.count > 0 {
            self.close_always();
        }
        self.open.sequence - 1
    }

    fn close_always(&mut self) {
        let next = Batch::new(self.open.sequence + 1);
        let batch = std::mem::replace(&mut self.open, next);
        self.queue_bytes += batch.length();
        self.queue.push_back(batch);
    }

    /// The next batch to write.
    fn take(&mut self) -> Option<Batch> {
        if self.queue.is_empty() {
            self.close();
        }
        let batch = self.queue.pop_front()?;
        self.queue_bytes -= batch.length();
        Some(batch)
    }

    /// An empty batch, if the newest one is not yet known durable from anything durable.
    fn take_marker(&mut self) -> Option<Batch> {
        if self.queue.is_empty() && self.open.count == 0 && self.is_marker_due() {
            self.close_always();
        }
        self.take()
    }

    fn is_marker_due(&self) -> bool {
        self.covered < self.durable
    }

    /// A durable checkpoint holds everything up to this batch.
    pub(crate) fn cover(&mut self, batch: u64) {
        self.covered = self.covered.max(batch);
    }

    /// Starts over behind what recovery has replayed.
    pub(crate) fn resume(&mut self, durable: u64, durable_end: u64) {
        debug_assert!(self.queue.is_empty() && self.open.count == 0);
        self.open.sequence = durable + 1;
        (self.durable, self.durable_end, self.covered) = (durable, durable_end, durable);
    }

    /// Closes the open batch for a checkpoint, which will ask where the newest closed batch ends.
    pub(crate) fn close_for_checkpoint(&mut self) -> u64 {
        let batch = self.close();
        self.watched = (batch, if batch == self.durable { self.durable_end } else { 0 });
        batch
    }

    /// Where the batch that the checkpoint closed ends in the log; it is durable.
    pub(crate) fn end_of_watched(&self) -> u64 {
        assert!(self.durable >= self.watched.0, "the checkpoint waits for its batch first");
        self.watched.1
    }

    fn set_durable(&mut self, header: &BatchHeader) {
        (self.durable, self.durable_end) = (header.sequence, header.position + u64::from(header.length));
        if self.watched.0 == header.sequence {
            self.watched.1 = self.durable_end;
        }
    }
}

/// The committer: writes batch after batch until the store is stopped or fails.
pub(crate) async fn run(engine: Rc<Engine>) {
    // Whether writes come in crowds.
    let mut crowded = false;
    loop {
        if crowded && engine.state.borrow().commits.is_gathering() {
            // One look at what has arrived meanwhile, which then shares one write of the log. A drive that takes its time
            // has such batches by itself.
            breathe().await;
        }
        let next = engine.state.borrow_mut().commits.take();
        let batch = match next {
            Some(batch) => batch,
            None => match idle(&engine).await {
                Idle::Stop => return,
                Idle::Again => continue,
                Idle::Marker(batch) => batch,
            },
        };
        crowded = batch.data.len() + batch.started.len() > 1;
        if let Err(error) = commit(&engine, batch).await {
            engine.fail(&error);
            return;
        }
    }
}

/// What follows when no batch waits.
enum Idle {
    Stop,
    Again,
    Marker(Batch),
}

async fn idle(engine: &Engine) -> Idle {
    let is_marker_due = {
        let state = engine.state.borrow();
        if state.is_stopped || state.failed.is_some() {
            return Idle::Stop;
        }
        state.commits.is_marker_due()
    };
    let work = engine.work.notified();
    if !is_marker_due {
        work.await;
        return Idle::Again;
    }
    if weft_rt::timeout(MARKER_AFTER, work).await.is_ok() {
        return Idle::Again;
    }
    let mut state = engine.state.borrow_mut();
    if state.is_stopped {
        return Idle::Stop;
    }
    state.commits.take_marker().map_or(Idle::Again, Idle::Marker)
}

/// Writes one batch and its data, flushes, and tells everyone.
async fn commit(engine: &Rc<Engine>, mut batch: Batch) -> Result<(), StoreError> {
    let length = batch.length();
    let (mut writes, header) = {
        let mut state = engine.state.borrow_mut();
        let position = state.ring.take(length);
        let header = BatchHeader {
            sequence: batch.sequence,
            position,
            durable: state.commits.durable,
            length: length as u32,
            record_bytes: batch.records.0.len() as u32,
            count: batch.count,
            must_know: 0,
        };
        let bytes = state.ring.encode(&header, &batch.records.0).freeze();
        let mut done = 0;
        let mut writes = Vec::with_capacity(4);
        for (at, len) in state.ring.segments(position, length) {
            writes.push((at, vec![bytes.slice(done..done + len as usize)]));
            done += len as usize;
        }
        (writes, header)
    };
    if mutated(Mutation::DataNotAwaited) {
        for (place, data) in batch.data.drain(..) {
            drop(weft_rt::spawn(write_at(engine.drive.clone(), place.offset(), vec![data])));
        }
        batch.started.clear();
    }
    gather(batch.data, &mut writes);
    let writes = writes.into_iter().map(|(at, data)| write_at(engine.drive.clone(), at, data));
    if writes.len() <= POLLED_TOGETHER_MAX {
        join_all(writes).await.into_iter().collect::<Result<(), _>>()?;
    } else {
        let tasks: Vec<_> = writes.map(weft_rt::spawn).collect();
        for task in tasks {
            task.await.unwrap_or(Err(StoreError::Closed))?;
        }
    }
    for write in batch.started {
        write.await.unwrap_or(Err(StoreError::Closed))?;
    }
    if !mutated(Mutation::CommitWithoutFlush) {
        engine.flush().await?;
    }
    let mut state = engine.state.borrow_mut();
    let state = &mut *state;
    state.commits.set_durable(&header);
    if mutated(Mutation::LogTrimmedEarly) {
        state.ring.tail = header.position;
    }
    // What a marker may cover, nothing but a marker makes worth covering: empty batches need none.
    let covered = if header.count == 0 { header.sequence } else { header.durable };
    state.commits.cover(covered);
    state.frees.cover(header.durable);
    state.frees.release(&mut state.bitmap)?;
    state.figures.log_bytes_written += length;
    state.figures.batches += 1;
    engine.committed.notify_all();
    if state.is_checkpoint_due() {
        engine.want_checkpoint(state);
    }
    Ok(())
}

/// Appends writes of data, neighbours together.
fn gather(data: Vec<(Place, Buf)>, writes: &mut Vec<(u64, Vec<Buf>)>) {
    let (mut next, mut filled, first) = (0, 0, writes.len());
    for (place, buf) in data {
        let len = buf.len();
        let is_next = writes.len() > first && place.offset() == next && filled + len <= GATHER_BYTES_MAX;
        if is_next {
            writes.last_mut().expect("a write was begun").1.push(buf);
            filled += len;
        } else {
            writes.push((place.offset(), vec![buf]));
            filled = len;
        }
        next = place.offset() + len as u64;
    }
}

async fn write_at(drive: Drive, at: u64, data: Vec<Buf>) -> Result<(), StoreError> {
    let len = data.iter().map(|b| b.len() as u64).sum();
    drive.write_vectored(at, data).await.map_err(|e| StoreError::io("write", at, len, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_write() {
        let block = |p| (Place(p), Buf::zeroes(BLOCK_SIZE));
        let mut writes = Vec::new();
        gather(vec![block(5), block(6), block(9), block(10), block(7)], &mut writes);
        let shape: Vec<_> = writes.iter().map(|(at, b)| (at / 4096, b.len())).collect();
        assert_eq!(shape, [(5, 2), (9, 2), (7, 1)]);
    }

    #[test]
    fn a_batch_is_closed_when_it_is_full_and_a_marker_follows_it_once() {
        let mut commits = Commits::new(7, 0, 64 << 10);
        assert_eq!(commits.close(), 7, "an empty batch is not closed");
        while commits.open_batch() == 8 {
            assert_eq!(commits.append(|e| e.0.extend([0; 4096])), 8);
        }
        assert!(commits.queued_bytes() <= 64 << 10);
        assert_eq!(commits.take().unwrap().sequence, 8);
        assert!(commits.take().is_none() && commits.take_marker().is_none());
        commits.durable = 8;
        let marker = commits.take_marker().unwrap();
        assert_eq!((marker.sequence, marker.count), (9, 0));
        commits.durable = 9;
        commits.cover(9);
        assert!(commits.take_marker().is_none());
    }
}
