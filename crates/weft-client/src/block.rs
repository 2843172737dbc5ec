//! Byte ranges over blocks: cut at blocks and at objects, parts of blocks changed in place, each request
//! under a deadline.
//!
//! It owns the read-modify-write of parts of blocks, and what becomes of a write that its caller drops. Where
//! a block lies is the [`Space`]'s word; how it is read and written is its [`GroupIo`]'s.

use crate::error::ClientError;
use crate::group_io::{GroupIo, Place};
use crate::payload::{Payload, cut, fill};
use crate::range_lock::{Held, RangeLock, Use};
use crate::split::{ObjectPart, split, split_data};
use crate::versions::{Ticket, Versions};
use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use weft_rt::sync::join_all;
use weft_rt::{Buf, BufMut, spawn};
use weft_types::limits::{RANGE_BLOCKS_MAX, REQUEST_BLOCKS_MAX};
use weft_types::{BLOCK_SIZE, BlockRange, Lba, Striping};
use weft_wire::data::Content;

/// Bytes of a block, as an offset.
const BLOCK: u64 = BLOCK_SIZE as u64;

/// Addresses of blocks: which object holds a block, and in which group it lies.
pub(crate) trait Space: 'static {
    /// How its groups are read and written.
    type Io: GroupIo;

    /// The same, for requests.
    fn io(&self) -> &Rc<Self::Io>;

    /// How addresses are spread over objects.
    fn striping(&self) -> Result<Striping, ClientError>;

    /// Where blocks of an object lie, for a new request.
    fn place(&self, object_index: u64, range: BlockRange) -> Result<Place, ClientError>;

    /// Whether parts of blocks are written, which needs that nobody else writes here: no other client and no
    /// other lane.
    fn writes_parts(&self) -> bool;
}

/// The blocks of a space, by byte offset. Whoever calls has checked the range.
pub(crate) struct Blocks<S> {
    pub(crate) space: S,
    /// How long a request goes on trying before it fails with [`ClientError::TimedOut`].
    io_timeout: Duration,
    partial: Rc<RangeLock>,
}

impl<S: Space> Blocks<S> {
    pub(crate) fn new(space: S, io_timeout: Duration) -> Blocks<S> {
        Blocks::with_lock(space, io_timeout, Rc::default())
    }

    /// With a lock that others have as well, whose writes of parts of blocks must not meet these.
    pub(crate) fn with_lock(space: S, io_timeout: Duration, partial: Rc<RangeLock>) -> Blocks<S> {
        Blocks { space, io_timeout, partial }
    }

    /// Reads `length` bytes at `offset`: buffers that together are the range, in order.
    pub(crate) async fn read(&self, offset: u64, length: u64) -> Result<Vec<Buf>, ClientError> {
        let first = offset / BLOCK;
        let end = (offset + length).div_ceil(BLOCK);
        let bufs = self.read_blocks(Lba(first), end - first).await?;
        let skip = (offset % BLOCK) as usize;
        if skip == 0 && length.is_multiple_of(BLOCK) {
            return Ok(bufs);
        }
        Ok(cut(&bufs, skip, length as usize))
    }

    /// Writes the buffers, one behind the other, at `offset`.
    pub(crate) async fn write(&self, offset: u64, length: u64, bufs: Vec<Buf>) -> Result<(), ClientError> {
        let pieces = align(offset, length);
        if let [piece] = pieces[..] {
            // The usual case: the future is large, and would be moved into a list and out of it again.
            return self.write_aligned(piece, Some(bufs)).await;
        }
        let mut writes = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let data = cut(&bufs, (piece.offset - offset) as usize, piece.length as usize);
            writes.push(self.write_aligned(piece, Some(data)));
        }
        all(writes).await
    }

    /// Makes bytes read as zeroes, and gives back the space of whole blocks.
    pub(crate) async fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        all(align(offset, length).into_iter().map(|piece| self.write_aligned(piece, None)).collect()).await
    }

    /// Gives back the space of the whole blocks in the range. Parts of blocks at its ends keep their
    /// contents.
    pub(crate) async fn discard(&self, offset: u64, length: u64) -> Result<(), ClientError> {
        let whole = align(offset, length).into_iter().filter(|piece| piece.is_whole);
        all(whole.map(|piece| self.write_aligned(piece, None)).collect()).await
    }

    /// Which parts of a range surely read as zeroes and take no space, in order: their lengths in bytes, and
    /// whether they do. What a write in flight may have filled does not.
    pub(crate) async fn zeroes(&self, offset: u64, length: u64) -> Result<Vec<(u64, bool)>, ClientError> {
        let (first, end) = (offset / BLOCK, (offset + length).div_ceil(BLOCK));
        let parts = split(&self.space.striping()?, Lba(first), end - first, REQUEST_BLOCKS_MAX);
        let mut zero = BTreeMap::new();
        for part in parts {
            let at = self.place(&part)?;
            let contents = pin!(self.space.io().contents(at));
            let extents = self.with_deadline("block status", at, contents).await?;
            for ((at, block), count) in runs(&part) {
                for i in 0..count {
                    let extent = extents.iter().find(|x| x.range.contains(block + i));
                    let is_zero = extent.is_some_and(|x| x.content == Content::Zero && !x.open);
                    zero.insert(at + u64::from(i), is_zero);
                }
            }
        }
        let mut out: Vec<(u64, bool)> = Vec::new();
        for (block, is_zero) in zero {
            let start = ((first + block) * BLOCK).max(offset);
            let stop = ((first + block + 1) * BLOCK).min(offset + length);
            match out.last_mut() {
                Some(last) if last.1 == is_zero => last.0 += stop - start,
                _ => out.push((stop - start, is_zero)),
            }
        }
        Ok(out)
    }

    /// Writes whole blocks, or part of one block. No data: zeroes.
    async fn write_aligned(&self, piece: Aligned, data: Option<Vec<Buf>>) -> Result<(), ClientError> {
        let first = piece.offset / BLOCK;
        let count = (piece.offset + piece.length).div_ceil(BLOCK) - first;
        if piece.is_whole {
            let held = match self.space.writes_parts() {
                true => Some(self.hold(Lba(first), count, Use::Whole).await?),
                false => None,
            };
            return self.write_blocks(Lba(first), count, data, held).await;
        }
        // Rare, and boxed so that it does not swell the future of a whole write.
        Box::pin(self.change_block(piece, data)).await
    }

    /// Writes part of one block: reads the block, changes it, and writes it whole.
    async fn change_block(&self, piece: Aligned, data: Option<Vec<Buf>>) -> Result<(), ClientError> {
        let lba = Lba(piece.offset / BLOCK);
        let held = self.hold(lba, 1, Use::Part).await?;
        let old = self.read_blocks(lba, 1).await?;
        let mut block = BufMut::aligned(BLOCK_SIZE);
        fill(&mut block, &old);
        let skip = (piece.offset % BLOCK) as usize;
        let part = &mut block[skip..skip + piece.length as usize];
        match data {
            Some(data) => fill(part, &data),
            None => part.fill(0),
        }
        self.write_blocks(lba, 1, Some(vec![block.freeze()]), Some(held)).await
    }

    /// Waits for the blocks, as long as the deadline allows: a write that was given up may still hold them.
    async fn hold(&self, lba: Lba, count: u64, how: Use) -> Result<Held, ClientError> {
        let blocks = lba.0..lba.0 + count;
        if let Some(held) = self.partial.try_acquire(&blocks, how) {
            return Ok(held);
        }
        let parts = split(&self.space.striping()?, lba, 1, 1);
        let at = self.place(&parts[0])?;
        let turn = pin!(async { Ok(self.partial.acquire(blocks, how).await) });
        self.with_deadline("wait for an earlier write", at, turn).await
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
        let striping = self.space.striping()?;
        let parts = match data {
            Some(_) => split_data(&striping, lba, count),
            None => split(&striping, lba, count, RANGE_BLOCKS_MAX),
        };
        let (data, bufs) =
            (data.as_deref(), |part: &ObjectPart, data: &[Buf]| Payload::of(gather(part, data)));
        if let [part] = &parts[..] {
            let at = self.place(part)?;
            return self.write_object(at, data.map_or(Payload::Zero, |data| bufs(part, data)), held).await;
        }
        let mut writes = Vec::with_capacity(parts.len());
        for part in &parts {
            let (at, held) = (self.place(part)?, held.as_ref().map(Held::share));
            writes.push(self.write_object(at, data.map_or(Payload::Zero, |data| bufs(part, data)), held));
        }
        all(writes).await
    }

    /// Writes blocks of one object.
    async fn write_object(&self, at: Place, payload: Payload, held: Option<Held>) -> Result<(), ClientError> {
        let (what, bytes) = match payload {
            Payload::Data { .. } => ("write", at.range.bytes() as u64),
            Payload::Zero => ("write zeroes", BLOCK),
        };
        let write = pin!(async move {
            let io = self.space.io();
            let operation = io.session().begin(at.group, bytes).await?;
            let (ticket, io) = (operation.ticket(), io.clone());
            let versions = &self.space.io().session().versions;
            // In a box, so that it can move into a task of its own.
            let write = Box::pin(async move {
                let written = io.write(operation, at, payload).await;
                drop(held);
                written
            });
            Wanted { write: Some(write), versions, ticket }.await
        });
        self.with_deadline(what, at, write).await
    }

    /// Reads whole blocks.
    async fn read_blocks(&self, lba: Lba, count: u64) -> Result<Vec<Buf>, ClientError> {
        let parts = split_data(&self.space.striping()?, lba, count);
        if let [part] = &parts[..]
            && part.places.len() == 1
        {
            let at = self.place(part)?;
            let read = pin!(self.space.io().read(at));
            let read = self.with_deadline("read", at, read).await?;
            return Ok(read.into_iter().map(|(_, buf)| buf).collect());
        }
        let mut reads = Vec::with_capacity(parts.len());
        for part in &parts {
            let at = self.place(part)?;
            reads.push(async move {
                let read = pin!(self.space.io().read(at));
                self.with_deadline("read", at, read).await
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

    /// Works until the deadline of a request.
    pub(crate) async fn with_deadline<T>(
        &self,
        what: &'static str,
        at: Place,
        work: Pin<&mut impl Future<Output = Result<T, ClientError>>>,
    ) -> Result<T, ClientError> {
        self.space.io().session().with_deadline(self.io_timeout, what, at, work).await
    }

    fn place(&self, part: &ObjectPart) -> Result<Place, ClientError> {
        self.space.place(part.object_index, part.range)
    }
}

type Running = Pin<Box<dyn Future<Output = Result<(), ClientError>>>>;

/// A write that somebody waits for. Dropped before it has ended, it goes on in a task of its own, and counts
/// as given up: it still goes to the whole write set in the versions that it has, so that replicas become
/// equal, but a version that is superseded everywhere is then buried instead of being started again (R5).
/// Started again it would come after writes that were called, and acknowledged, when this one had failed
/// already.
///
/// The write also holds its range. So while the version may still arrive somewhere, nobody reads the block to
/// change a part of it: such a read could see the block without this write, a later read could see it with
/// it, and the changed block would take it back again. The neighbours' sectors would survive even so: what
/// another write gets is a higher version, whether this one arrives before its read, between its read and its
/// write, or after both.
struct Wanted<'a> {
    /// Until it has ended.
    write: Option<Running>,
    versions: &'a Versions,
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
            self.versions.give_up(self.ticket);
            spawn(write);
        }
    }
}

/// A part of a byte range: whole blocks, or a part of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Aligned {
    offset: u64,
    length: u64,
    is_whole: bool,
}

/// Cuts a range into a part of its first block, whole blocks, and a part of its last.
fn align(offset: u64, length: u64) -> Vec<Aligned> {
    let end = offset + length;
    let (whole_start, whole_end) = (offset.next_multiple_of(BLOCK), end - end % BLOCK);
    let mut pieces = Vec::with_capacity(3);
    let mut push = |from: u64, to: u64, is_whole| {
        if from < to {
            pieces.push(Aligned { offset: from, length: to - from, is_whole });
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

/// Where the runs of a part lie: (first block in the request, first block in the object), count.
fn runs(part: &ObjectPart) -> impl Iterator<Item = ((u64, u32), u32)> + '_ {
    let mut block = part.range.first;
    part.places.iter().map(move |(at, count)| {
        let run = ((*at, block), *count);
        block += count;
        run
    })
}

/// The data of a part, out of that of the request.
fn gather(part: &ObjectPart, bufs: &[Buf]) -> Vec<Buf> {
    let mut data = Vec::with_capacity(part.places.len());
    for (at, count) in &part.places {
        data.extend(cut(bufs, *at as usize * BLOCK_SIZE, *count as usize * BLOCK_SIZE));
    }
    data
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
}
