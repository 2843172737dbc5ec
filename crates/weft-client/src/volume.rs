//! The public handle of an attached volume: reads and writes by byte offset.

use crate::error::ClientError;
use crate::range_lock::{Held, RangeLock, Use};
use crate::reach::STUCK_AFTER;
use crate::replicate::{Payload, Where, cut};
use crate::session::{Ended, Session, Ticket};
use crate::split::{ObjectPart, split, split_data};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use weft_rpc::slow_request;
use weft_rt::sync::{Notify, join_all};
use weft_rt::{Buf, BufMut, now, spawn, timeout};
use weft_types::limits::{RANGE_BLOCKS_MAX, REQUEST_BLOCKS_MAX};
use weft_types::{
    AttachMode, BLOCK_SIZE, BlockCount, Lba, ObjectId, RequestId, SECTOR_SIZE, SessionId, Striping,
    with_causes,
};
use weft_wire::control::ManagerRequest;
use weft_wire::data::Content;
use weft_wire::{crc32c, crc32c_of_all};

/// How to attach a volume.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// Beside whom. Exclusive by default.
    pub mode: AttachMode,
    /// End attaches that are in the way.
    pub preempt: bool,
    /// How long an operation goes on trying before it fails with [`ClientError::TimedOut`].
    pub io_timeout: Duration,
}

/// How long an operation goes on trying unless told otherwise: several evictions' worth, and what disk
/// drivers allow before they reset a device.
pub const IO_TIMEOUT: Duration = Duration::from_secs(30);

impl Default for AttachOptions {
    fn default() -> Self {
        AttachOptions { mode: AttachMode::Exclusive, preempt: false, io_timeout: IO_TIMEOUT }
    }
}

/// A run of bytes that a volume does or does not hold data for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Its length in bytes.
    pub length: u64,
    /// Whether it surely reads as zeroes and takes no space.
    pub is_zero: bool,
}

struct Inner {
    session: Rc<Session>,
    options: AttachOptions,
    partial: Rc<RangeLock>,
    in_flight: Cell<u64>,
    idle: Notify,
}

/// An attached volume. Clones share the attach. Every block is one atomic register: operations on it take
/// effect one after another, each at one instant between its call and its completion; several blocks in one
/// call are several registers. A completed write is durable on every in-sync replica.
///
/// Call [`Volume::detach`] when done; a volume that is merely dropped counts as attached until its session
/// expires.
#[derive(Clone)]
pub struct Volume(Rc<Inner>);

type Running = Pin<Box<dyn Future<Output = Result<(), ClientError>>>>;

/// A write that somebody waits for. Dropped before it has ended, it goes on in a task of its own, and counts as given
/// up: it still goes to the whole write set in the versions that it has, so that replicas become equal, but a
/// version that is superseded everywhere is then buried instead of being started again (R5). Started again it
/// would come after writes that were called, and acknowledged, when this one had failed already.
///
/// The write also holds its range. So while the version may still arrive somewhere, nobody reads the
/// block to change a part of it: such a read could see the block without this write, a later read could see it
/// with it, and the changed block would take it back again. The neighbours' sectors would survive even so: what
/// another write gets is a higher version, whether this one arrives before its read, between its read and its
/// write, or after both.
struct Wanted<'a> {
    /// Until it has ended.
    write: Option<Running>,
    session: &'a Session,
    ticket: Ticket,
}

impl Future for Wanted<'_> {
    type Output = Result<(), ClientError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let write = self.write.as_mut().expect("a write ends once");
        let Poll::Ready(written) = write.as_mut().poll(cx) else { return Poll::Pending };
        self.write = None;
        Poll::Ready(written)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        if let Some(write) = self.write.take() {
            self.session.give_up(self.ticket);
            spawn(write);
        }
    }
}

/// Counts an operation in flight, for [`Volume::detach`].
struct InFlight<'a>(&'a Inner);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        if self.0.in_flight.get() == 0 {
            self.0.idle.notify_all();
        }
    }
}

impl Volume {
    pub(crate) fn new(session: Rc<Session>, options: AttachOptions) -> Volume {
        Volume(Rc::new(Inner {
            session,
            options,
            partial: Rc::default(),
            in_flight: Cell::new(0),
            idle: Notify::default(),
        }))
    }

    /// The volume's name.
    pub fn name(&self) -> &str {
        &self.0.session.volume_name
    }

    /// The session of this attach.
    pub fn session_id(&self) -> SessionId {
        self.0.session.id
    }

    /// What this attach may do.
    pub fn mode(&self) -> AttachMode {
        self.0.session.mode
    }

    /// The size in bytes, as of the newest map: it may grow.
    pub fn size_bytes(&self) -> u64 {
        let map = self.0.session.fabric.map();
        let size = map.volumes.get(&self.0.session.volume).map_or(BlockCount(0), |v| v.size);
        size.bytes().unwrap_or(u64::MAX - u64::MAX % BLOCK_SIZE as u64)
    }

    /// The unit of addressing in bytes: 512 where attached exclusively, else 4096.
    pub fn logical_block(&self) -> u32 {
        match self.mode() {
            AttachMode::Exclusive => SECTOR_SIZE as u32,
            AttachMode::Shared | AttachMode::ReadOnly => BLOCK_SIZE as u32,
        }
    }

    /// Reads `length` bytes at `offset`: buffers that together are the range, in order.
    ///
    /// # Errors
    /// [`ClientError::OutOfBounds`], [`ClientError::Misaligned`] at once; [`ClientError::TimedOut`] if a group
    /// had no replica; [`ClientError::Damaged`] if no replica has a good copy.
    pub async fn read(&self, offset: u64, length: u64) -> Result<Vec<Buf>, ClientError> {
        self.check_range(offset, length)?;
        let _busy = self.begin();
        let first = offset / BLOCK_SIZE as u64;
        let end = (offset + length).div_ceil(BLOCK_SIZE as u64);
        let bufs = self.read_blocks(Lba(first), end - first).await?;
        let skip = (offset % BLOCK_SIZE as u64) as usize;
        if skip == 0 && length.is_multiple_of(BLOCK_SIZE as u64) {
            return Ok(bufs);
        }
        Ok(cut(&bufs, skip, length as usize))
    }

    /// Writes the buffers, one behind the other, at `offset`. When it completes, the data is durable on every
    /// replica of the write set.
    ///
    /// It goes on only while it is polled, or after it was dropped: who has begun it, awaits it or drops it. One that is
    /// left lying half done keeps other writes to these blocks waiting.
    ///
    /// # Errors
    /// Those of [`Volume::read`], and [`ClientError::ReadOnly`], [`ClientError::NoSpace`]. After
    /// [`ClientError::TimedOut`], or if the future is dropped, the write may go on in the background and still
    /// take effect, but never over a write that this client called later.
    pub async fn write(&self, offset: u64, bufs: Vec<Buf>) -> Result<(), ClientError> {
        let length: usize = bufs.iter().map(|b| b.len()).sum();
        self.check_write(offset, length as u64)?;
        let _busy = self.begin();
        let pieces = align(offset, length as u64);
        if let [piece] = pieces[..] {
            // The usual case: the future is large, and would be moved into a list and out of it again.
            return self.write_piece(piece, Some(bufs)).await;
        }
        let mut writes = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let data = cut(&bufs, (piece.offset - offset) as usize, piece.length as usize);
            writes.push(self.write_piece(piece, Some(data)));
        }
        all(writes).await
    }

    /// Makes `length` bytes at `offset` read as zeroes, and gives back the space of whole blocks.
    ///
    /// # Errors
    /// Those of [`Volume::write`].
    pub async fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        self.check_write(offset, length)?;
        let _busy = self.begin();
        all(align(offset, length).into_iter().map(|piece| self.write_piece(piece, None)).collect()).await
    }

    /// Gives back the space of the whole blocks in the range; they read as zeroes afterwards. Parts of blocks
    /// at its ends keep their contents.
    ///
    /// # Errors
    /// Those of [`Volume::write`].
    pub async fn discard(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        self.check_write(offset, length)?;
        let _busy = self.begin();
        let whole = align(offset, length).into_iter().filter(|piece| piece.is_whole);
        all(whole.map(|piece| self.write_piece(piece, None)).collect()).await
    }

    /// Makes completed writes durable: they are already, so this only fails if the attach has ended.
    ///
    /// # Errors
    /// [`ClientError::Fenced`], [`ClientError::SessionOver`].
    pub async fn flush(&self) -> Result<(), ClientError> {
        self.0.session.check()
    }

    /// Why this attach is over, in the manager's words if it answers within two seconds. None if it
    /// is not over, as far as this client knows.
    pub async fn why_over(&self) -> Option<ClientError> {
        self.0.session.why_over().await
    }

    /// Which parts of a range hold data, cautiously: what a write in flight may have filled counts as data.
    ///
    /// # Errors
    /// Those of [`Volume::read`].
    pub async fn block_status(&self, offset: u64, length: u64) -> Result<Vec<StatusExtent>, ClientError> {
        self.check_range(offset, length)?;
        let _busy = self.begin();
        let (first, end) = (offset / BLOCK_SIZE as u64, (offset + length).div_ceil(BLOCK_SIZE as u64));
        let striping = self.striping()?;
        let parts = split(&striping, Lba(first), end - first, REQUEST_BLOCKS_MAX);
        let mut zero = BTreeMap::new();
        for part in parts {
            let at = self.place(&part)?;
            let contents = pin!(self.0.session.contents(at));
            let extents = self.patiently("block status", at, contents).await?;
            for (place, count) in runs(&part) {
                for i in 0..count {
                    let block = place.1 + i;
                    let extent = extents.iter().find(|x| x.range.contains(block));
                    let is_zero = extent.is_some_and(|x| x.content == Content::Zero && !x.open);
                    zero.insert(place.0 + u64::from(i), is_zero);
                }
            }
        }
        let mut out: Vec<StatusExtent> = Vec::new();
        for (block, is_zero) in zero {
            let start = ((first + block) * BLOCK_SIZE as u64).max(offset);
            let stop = ((first + block + 1) * BLOCK_SIZE as u64).min(offset + length);
            match out.last_mut() {
                Some(last) if last.is_zero == is_zero => last.length += stop - start,
                _ => out.push(StatusExtent { length: stop - start, is_zero }),
            }
        }
        Ok(out)
    }

    /// Ends the attach: waits for operations in flight, then tells the manager, so that others need not wait
    /// for the session to expire.
    pub async fn detach(&self) {
        while self.0.in_flight.get() > 0 {
            self.0.idle.notified().await;
        }
        let session = &self.0.session;
        session.tell_watermarks().await;
        session.is_detaching.set(true);
        // Unreachable, the manager finds out when the session expires.
        let _ = session.fabric.ask_manager(&ManagerRequest::Detach { session: session.id }).await;
        session.end(Ended::Detached);
    }

    fn begin(&self) -> InFlight<'_> {
        self.0.in_flight.set(self.0.in_flight.get() + 1);
        InFlight(&self.0)
    }

    fn check_range(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        let logical_block = self.logical_block();
        let unit = u64::from(logical_block);
        if !offset.is_multiple_of(unit) || !length.is_multiple_of(unit) || length == 0 {
            return Err(ClientError::Misaligned { offset, length, logical_block });
        }
        let size = self.size_bytes();
        if offset.checked_add(length).is_none_or(|end| end > size) {
            self.0.session.check()?;
            return Err(ClientError::OutOfBounds { offset, length, size });
        }
        Ok(())
    }

    fn check_write(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        if self.mode() == AttachMode::ReadOnly {
            return Err(ClientError::ReadOnly { volume: self.name().to_owned() });
        }
        self.check_range(offset, length)
    }

    /// Writes whole blocks, or part of one block. No data: zeroes.
    async fn write_piece(&self, piece: Piece, data: Option<Vec<Buf>>) -> Result<(), ClientError> {
        let first = piece.offset / BLOCK_SIZE as u64;
        let count = (piece.offset + piece.length).div_ceil(BLOCK_SIZE as u64) - first;
        let blocks = first..first + count;
        if piece.is_whole {
            let held = match self.mode() {
                AttachMode::Exclusive => Some(self.hold(blocks, Use::Whole).await?),
                _ => None,
            };
            return self.write_blocks(Lba(first), count, data, held).await;
        }
        // Rare, and boxed so that it does not swell the future of a whole write.
        Box::pin(self.write_part(piece, data)).await
    }

    /// Writes part of one block: reads the block, changes it, and writes it whole.
    async fn write_part(&self, piece: Piece, data: Option<Vec<Buf>>) -> Result<(), ClientError> {
        let first = piece.offset / BLOCK_SIZE as u64;
        let held = self.hold(first..first + 1, Use::Part).await?;
        let old = self.read_blocks(Lba(first), 1).await?;
        let mut block = BufMut::aligned(BLOCK_SIZE);
        fill(&mut block, &old);
        let skip = (piece.offset % BLOCK_SIZE as u64) as usize;
        let part = &mut block[skip..skip + piece.length as usize];
        match data {
            Some(data) => fill(part, &data),
            None => part.fill(0),
        }
        self.write_blocks(Lba(first), 1, Some(vec![block.freeze()]), Some(held)).await
    }

    /// Waits for the blocks, as long as the options allow: a write that was given up may still hold them.
    async fn hold(&self, blocks: Range<u64>, how: Use) -> Result<Held, ClientError> {
        if let Some(held) = self.0.partial.try_acquire(&blocks, how) {
            return Ok(held);
        }
        let parts = split(&self.striping()?, Lba(blocks.start), 1, 1);
        let at = self.place(&parts[0])?;
        let turn = pin!(async { Ok(self.0.partial.acquire(blocks, how).await) });
        self.patiently("wait for an earlier write", at, turn).await
    }

    /// Writes whole blocks: each object's part at once. No data: zeroes. What is held stays so until every
    /// part has reached its end.
    async fn write_blocks(
        &self,
        lba: Lba,
        count: u64,
        data: Option<Vec<Buf>>,
        held: Option<Held>,
    ) -> Result<(), ClientError> {
        let striping = self.striping()?;
        let parts = match data {
            Some(_) => split_data(&striping, lba, count),
            None => split(&striping, lba, count, RANGE_BLOCKS_MAX),
        };
        if let [part] = &parts[..] {
            return self.write_part_of_object(part, data.as_deref(), held)?.await;
        }
        let mut writes = Vec::with_capacity(parts.len());
        for part in &parts {
            let held = held.as_ref().map(Held::share);
            writes.push(self.write_part_of_object(part, data.as_deref(), held)?);
        }
        all(writes).await
    }

    /// Writes what goes to one object, once awaited.
    fn write_part_of_object<'a>(
        &'a self,
        part: &ObjectPart,
        data: Option<&[Buf]>,
        held: Option<Held>,
    ) -> Result<impl Future<Output = Result<(), ClientError>> + use<'a>, ClientError> {
        let at = self.place(part)?;
        let (what, payload, bytes) = match data {
            Some(bufs) => ("write", gather(part, bufs), at.range.bytes() as u64),
            None => ("write zeroes", Payload::Zero, BLOCK_SIZE as u64),
        };
        Ok(async move {
            let write = pin!(async move {
                let session = &self.0.session;
                let operation = session.begin(at.group, bytes).await?;
                let (ticket, writer) = (operation.ticket(), session.clone());
                let write = Box::pin(async move {
                    let written = writer.write_object(operation, at, payload).await;
                    drop(held);
                    written
                });
                Wanted { write: Some(write), session, ticket }.await
            });
            self.patiently(what, at, write).await
        })
    }

    /// Reads whole blocks.
    async fn read_blocks(&self, lba: Lba, count: u64) -> Result<Vec<Buf>, ClientError> {
        let striping = self.striping()?;
        let parts = split_data(&striping, lba, count);
        if let [part] = &parts[..]
            && part.places.len() == 1
        {
            let at = self.place(part)?;
            let read = pin!(self.0.session.read_object(at));
            let read = self.patiently("read", at, read).await?;
            return Ok(read.into_iter().map(|(_, buf)| buf).collect());
        }
        let mut reads = Vec::with_capacity(parts.len());
        for part in &parts {
            let at = self.place(part)?;
            reads.push(async move {
                let read = pin!(self.0.session.read_object(at));
                self.patiently("read", at, read).await
            });
        }
        let mut bufs = BTreeMap::new();
        for (part, read) in parts.iter().zip(join_all(reads).await) {
            let run: Vec<Buf> = read?.into_iter().map(|(_, buf)| buf).collect();
            for ((at, block), n) in runs(part) {
                let skip = (block - part.range.first) as usize * BLOCK_SIZE;
                bufs.insert(at, cut(&run, skip, n as usize * BLOCK_SIZE));
            }
        }
        Ok(bufs.into_values().flatten().collect())
    }

    /// Goes on trying for as long as the options allow. Tells in the log if it took long or failed. The work is left where
    /// it is, because an `async fn` would keep it twice.
    async fn patiently<T>(
        &self,
        what: &'static str,
        at: Where,
        work: Pin<&mut impl Future<Output = Result<T, ClientError>>>,
    ) -> Result<T, ClientError> {
        let (waited, begun) = (self.0.options.io_timeout, now());
        let mut work = work;
        let mut ended = timeout(waited.min(STUCK_AFTER), work.as_mut()).await.ok();
        if ended.is_none() && waited > STUCK_AFTER {
            self.tell_stuck(what, at, waited);
            ended = timeout(waited.saturating_sub(STUCK_AFTER), work).await.ok();
        }
        let timed_out = || {
            let cause = self.waits_for(at);
            Err(ClientError::TimedOut { group: at.group, waited, cause })
        };
        let ended = ended.unwrap_or_else(timed_out);
        let took = begun.elapsed();
        if took >= slow_request() || ended.is_err() {
            self.tell(what, at, took, ended.as_ref().err());
        }
        ended
    }

    /// Which members a request waits for, as far as is known, or what its last attempt met.
    fn waits_for(&self, at: Where) -> String {
        let session = &self.0.session;
        let silence = session.fabric.entry(at.group).and_then(|entry| session.fabric.silence_in(&entry));
        let trouble = || session.trouble.borrow().get(&at.group).cloned();
        silence.or_else(trouble).unwrap_or_else(|| "no answer".to_owned())
    }

    /// Tells of a request that goes on for long, before it fails.
    #[cold]
    fn tell_stuck(&self, what: &'static str, at: Where, fails_after: Duration) {
        let session = &self.0.session;
        if !session.stuck_told.allows() {
            return;
        }
        let Where { group, object, range, request: number } = at;
        let request_id = RequestId { session: session.id, number };
        let (volume, waits_for) = (&session.volume_name, self.waits_for(at));
        let (took_ms, fails_after_ms) = (STUCK_AFTER.as_millis() as u64, fails_after.as_millis() as u64);
        tracing::warn!(
            %request_id, what, volume, %group, %object, %range, took_ms, fails_after_ms, waits_for,
            "request is stuck"
        );
    }

    /// Tells of a request that was slow or failed. That a session is over is told once, when it ends.
    #[cold]
    fn tell(&self, what: &'static str, at: Where, took: Duration, error: Option<&ClientError>) {
        let session = &self.0.session;
        let Where { group, object, range, request: number } = at;
        let request_id = RequestId { session: session.id, number };
        let (volume, took_ms) = (&session.volume_name, took.as_millis() as u64);
        let epoch = session.fabric.entry(group).map(|entry| entry.epoch.0);
        let waited_for = session.waits.borrow_mut().remove(&number);
        match error {
            Some(ClientError::Fenced { .. } | ClientError::SessionOver { .. }) => {}
            Some(error) if session.failed_told.allows() => {
                let error = with_causes(error);
                tracing::warn!(
                    %request_id, what, volume, %group, epoch, %object, %range, took_ms, error,
                    "request failed"
                );
            }
            None if session.slow_told.allows() => {
                // What went wrong last in the group may have been another drive's, and no fault: it
                // is only worth telling where the request waited for no drive in particular.
                let last_trouble = session.trouble.borrow().get(&group).cloned();
                let last_trouble = last_trouble.filter(|_| waited_for.is_none());
                let waited_ms = waited_for.map(|(_, waited)| waited.as_millis() as u64);
                let waited_for = waited_for.map(|(drive, _)| session.fabric.drive_in_words(drive));
                tracing::warn!(
                    %request_id, what, volume, %group, epoch, %object, %range, took_ms, waited_for, waited_ms,
                    last_trouble, "request was slow"
                );
            }
            _ => {}
        }
    }

    fn striping(&self) -> Result<Striping, ClientError> {
        let map = self.0.session.fabric.map();
        match map.volumes.get(&self.0.session.volume) {
            Some(volume) => Ok(volume.striping),
            None => {
                self.0.session.end(Ended::Fenced);
                Err(self.0.session.fenced())
            }
        }
    }

    fn place(&self, part: &ObjectPart) -> Result<Where, ClientError> {
        let map = self.0.session.fabric.map();
        let volume = map.volumes.get(&self.0.session.volume);
        let group = volume.and_then(|v| weft_layout::group_of(v, part.object_index));
        let object = ObjectId::of_volume(self.0.session.volume, part.object_index);
        match group {
            Some(group) => {
                let request = self.0.session.number_request();
                Ok(Where { group, object, range: part.range, request })
            }
            None => Err(self.0.session.fenced()),
        }
    }
}

/// Where the runs of a part lie: (first block in the request, first block in the object), count.
fn runs(part: &ObjectPart) -> impl Iterator<Item = ((u64, u32), u32)> + '_ {
    let mut block = part.range.first;
    part.places.iter().map(move |(at, count)| {
        let run = ((*at, block), *count);
        block += count;
        run
    })
}

/// The data of a part, with a checksum per block: made here, checked by targets and by whoever reads.
fn gather(part: &ObjectPart, bufs: &[Buf]) -> Payload {
    let mut data = Vec::with_capacity(part.places.len());
    for (at, count) in &part.places {
        data.extend(cut(bufs, *at as usize * BLOCK_SIZE, *count as usize * BLOCK_SIZE));
    }
    let crcs = block_crcs(&data);
    Payload::Data { bufs: data, crcs }
}

/// The CRC-32C of each block of the buffers taken as one.
fn block_crcs(bufs: &[Buf]) -> Vec<u32> {
    let mut crcs = Vec::with_capacity(bufs.iter().map(|b| b.len()).sum::<usize>() / BLOCK_SIZE);
    // Of a block that is cut: its bytes so far.
    let (mut pieces, mut have): (Vec<&[u8]>, usize) = (Vec::new(), 0);
    for buf in bufs {
        let mut rest = &buf[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(BLOCK_SIZE - have));
            rest = later;
            if now.len() == BLOCK_SIZE {
                crcs.push(crc32c(now));
                continue;
            }
            pieces.push(now);
            have += now.len();
            if have == BLOCK_SIZE {
                crcs.push(crc32c_of_all(pieces.drain(..)));
                have = 0;
            }
        }
    }
    assert_eq!(have, 0, "whole blocks");
    crcs
}

fn fill(mut out: &mut [u8], bufs: &[Buf]) {
    for buf in bufs {
        let (now, later) = out.split_at_mut(buf.len());
        now.copy_from_slice(buf);
        out = later;
    }
}

/// A part of a write: whole blocks, or a part of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    offset: u64,
    length: u64,
    is_whole: bool,
}

/// Cuts a range into a part of its first block, whole blocks, and a part of its last.
fn align(offset: u64, length: u64) -> Vec<Piece> {
    let block = BLOCK_SIZE as u64;
    let end = offset + length;
    let (whole_start, whole_end) = (offset.next_multiple_of(block), end - end % block);
    let mut pieces = Vec::with_capacity(3);
    let mut push = |from: u64, to: u64, is_whole| {
        if from < to {
            pieces.push(Piece { offset: from, length: to - from, is_whole });
        }
    };
    if whole_start > whole_end {
        push(offset, end, false);
    } else {
        push(offset, whole_start, false);
        push(whole_start, whole_end, true);
        push(whole_end, end, false);
    }
    pieces
}

/// Runs all at once; the first error, once all have ended.
async fn all<F: Future<Output = Result<(), ClientError>>>(mut work: Vec<F>) -> Result<(), ClientError> {
    if work.len() == 1 {
        return work.pop().expect("there is one").await;
    }
    join_all(work).await.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_blocks() {
        let cuts = |offset, length| -> Vec<(u64, u64, bool)> {
            align(offset, length).iter().map(|p| (p.offset, p.length, p.is_whole)).collect()
        };
        assert_eq!(cuts(0, 8192), [(0, 8192, true)]);
        assert_eq!(cuts(512, 512), [(512, 512, false)]);
        assert_eq!(cuts(512, 8192), [(512, 3584, false), (4096, 4096, true), (8192, 512, false)]);
        assert_eq!(cuts(512, 3584), [(512, 3584, false)]);
        assert_eq!(cuts(3584, 1024), [(3584, 512, false), (4096, 512, false)]);
    }

    #[test]
    fn checksums_do_not_depend_on_how_the_bytes_are_cut() {
        let bytes: Vec<u8> = (0..3 * BLOCK_SIZE).map(|i| (i * 7 % 251) as u8).collect();
        let whole = Buf::from(bytes);
        let pieces = [whole.slice(0..100), whole.slice(100..5000), whole.slice(5000..3 * BLOCK_SIZE)];
        assert_eq!(block_crcs(std::slice::from_ref(&whole)), block_crcs(&pieces));
        assert_eq!(block_crcs(&[whole]).len(), 3);
    }
}
