//! Frames through shared memory: the connection of two processes on one machine, without the kernel in
//! between.
//!
//! ```text
//! FrameWriter -> sender: body into pages, record into the ring ... receiver: record out, body where it lies -> FrameReader
//! ```
//! Each direction has a ring of records and an area of pages (`region.rs`), written by one end only. An end
//! looks for news once in each turn of its executor, and asks for a wake-up before it sleeps; so a busy
//! connection makes no system calls. Handshake, credits and frames are those of every connection. Of the
//! other end nothing is believed: positions and numbers are checked, records are copied before they are read,
//! and an end that dies closes its socket.

mod arena;
mod listener;
mod peer_waker;
mod receiver;
mod region;
mod sender;

pub use listener::{ShmListener, connect};

use crate::debt::Debt;
use crate::frame::{FrameError, Front};
use peer_waker::PeerWaker;
use receiver::{Piece, Receiver, Record};
use region::Direction;
use sender::{Outgoing, Sender};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{Error, ErrorKind};
use std::rc::{Rc, Weak};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::task::{Context, Poll, Waker, ready};
use weft_rt::sync::Notify;
use weft_rt::{Buf, BufMut, JoinHandle, Landing, Polled, Share, Stream, sim, spawn, unwatch, watch};
use weft_wire::frame::{ENVELOPE_BYTES, Envelope, FLAG_BLOCKS};

/// Frames that a reader takes in a row before others have their turn: so that what the first of them lead to
/// goes out while the next are taken, and both ends work at the same time instead of in turns.
const FRAMES_IN_A_ROW: u32 = 8;

/// So many sleeps without news make a connection a quiet one: it is not looked at any more until the peer
/// wakes it.
const QUIET_AFTER: u32 = 64;

static WANTED: AtomicBool = AtomicBool::new(true);

/// Says whether this process takes and makes connections through shared memory from now on, as it does unless
/// told otherwise.
pub fn set_shared_memory(is_wanted: bool) {
    WANTED.store(is_wanted, Relaxed);
}

/// What [`set_shared_memory`] said; never under simulation.
pub(crate) fn is_wanted() -> bool {
    WANTED.load(Relaxed) && !sim::is_simulated()
}

/// Wake-ups that are read at once.
const WAKEUPS_READ_MAX: usize = 64;

/// How the other end broke the rules. The connection is of no further use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer breaks the rules of shared memory: {0}")]
pub(crate) struct ProtocolViolation(&'static str);

impl From<ProtocolViolation> for FrameError {
    fn from(violation: ProtocolViolation) -> FrameError {
        FrameError::Io(Error::new(ErrorKind::InvalidData, violation))
    }
}

/// Whether the other end asks for a wake-up; the request is cleared.
fn wants(flag: &AtomicU32) -> bool {
    flag.load(Relaxed) == 1 && flag.swap(0, AcqRel) == 1
}

/// One end of a connection.
pub struct Endpoint {
    sender: Rc<Sender>,
    receiver: Rc<Receiver>,
    /// Shows whether the other end is there.
    stream: Stream,
    /// Frames that wait for room, in order.
    queue: RefCell<VecDeque<Outgoing>>,
    /// What is owed to the other end counts here.
    debt: Debt,
    drained: Notify,
    /// The task that waits for a record.
    reader: RefCell<Option<Waker>>,
    /// Either end has gone, or was told to.
    gone: Cell<bool>,
    sent: Cell<u64>,
    /// Sleeps since something came.
    quiet: Cell<u32>,
    /// Its reader and its writer, as long as they are there.
    owners: Cell<u32>,
    /// The task that reads wake-ups.
    hearing: RefCell<Option<JoinHandle<()>>>,
}

impl Endpoint {
    fn new((to, from): (Direction, Direction), stream: Stream) -> Rc<Endpoint> {
        let peer_waker = PeerWaker::new(stream.clone());
        let endpoint = Rc::new(Endpoint {
            sender: Sender::new(to, peer_waker.clone()),
            receiver: Receiver::new(from, peer_waker),
            stream: stream.clone(),
            queue: RefCell::default(),
            debt: Debt::default(),
            drained: Notify::default(),
            reader: RefCell::default(),
            gone: Cell::new(false),
            sent: Cell::new(0),
            quiet: Cell::new(0),
            owners: Cell::new(0),
            hearing: RefCell::default(),
        });
        *endpoint.hearing.borrow_mut() = Some(spawn(hear_wakeups(Rc::downgrade(&endpoint), stream)));
        watch(endpoint.clone());
        endpoint
    }

    /// Its two halves. The connection ends when both are dropped.
    pub(crate) fn split(self: Rc<Self>) -> (ShmReader, ShmWriter) {
        self.owners.set(2);
        (ShmReader { end: self.clone(), begun: None, in_a_row: 0 }, ShmWriter { end: self })
    }

    /// The other end has sent a wake-up. What it was sent for may have been seen already, but it sends none
    /// for more room before it is asked again.
    fn on_wakeup(&self) {
        self.quiet.set(0);
        self.receiver.disarm_wakeup();
        self.poll();
        self.flush();
    }

    /// A quiet one has asked for a wake-up, and is not looked at until then.
    fn is_quiet(&self) -> bool {
        self.quiet.get() > QUIET_AFTER
    }

    fn wake_reader(&self) {
        let waker = self.reader.borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
    }

    fn send(&self, mut frame: Outgoing) {
        if !self.queue.borrow().is_empty() {
            return self.queue_up(frame);
        }
        match self.sender.send(&mut frame) {
            Ok(true) => {}
            Ok(false) => {
                self.queue_up(frame);
                self.flush();
            }
            Err(violation) => self.end_because(violation),
        }
    }

    fn queue_up(&self, frame: Outgoing) {
        self.debt.add(frame.bytes);
        self.queue.borrow_mut().push_back(frame);
    }

    /// Sends what waits, as far as there is room. It ends with nothing left, or with a try that has found no
    /// room after asking for a wake-up.
    fn flush(&self) {
        if self.queue.borrow().is_empty() {
            return;
        }
        let mut has_asked = false;
        loop {
            let mut queue = self.queue.borrow_mut();
            let Some(frame) = queue.front_mut() else { break };
            let sent = self.sender.send(frame).and_then(|sent| match sent || has_asked {
                true => Ok(sent),
                false => self.sender.ask_for_space().map(|()| sent),
            });
            match sent {
                Ok(true) => {
                    let bytes = queue.pop_front().map_or(0, |sent| sent.bytes);
                    drop(queue);
                    self.debt.pay(bytes);
                    has_asked = false;
                }
                Ok(false) if has_asked => break,
                Ok(false) => has_asked = true,
                Err(violation) => {
                    drop(queue);
                    return self.end_because(violation);
                }
            }
        }
        self.drained.notify_all();
    }

    fn end_because(&self, violation: ProtocolViolation) {
        tracing::warn!(error = &violation as &dyn std::error::Error, "connection ends");
        self.end();
    }

    /// Ends the connection both ways. What has come is still to be read.
    fn end(&self) {
        if !self.gone.replace(true) {
            self.stream.shutdown();
        }
        self.queue.borrow_mut().clear();
        self.debt.forgive();
        self.wake_reader();
        self.drained.notify_all();
    }

    async fn closed(&self) {
        while !self.gone.get() {
            self.drained.notified().await;
        }
    }

    fn let_go(self: &Rc<Self>) {
        self.owners.set(self.owners.get() - 1);
        if self.owners.get() == 0 {
            self.end();
            self.hearing.borrow_mut().take().into_iter().for_each(|task| task.abort());
            unwatch(&(self.clone() as Rc<dyn Polled>));
        }
    }
}

impl Polled for Endpoint {
    /// Whether there is something for a task here.
    fn is_ready(&self) -> bool {
        !self.is_quiet()
            && ((self.receiver.is_ready() && self.reader.borrow().is_some())
                || (!self.queue.borrow().is_empty() && self.sender.is_ready()))
    }

    /// Wakes the task that what has come is for, and sends what waited for room.
    fn poll(&self) {
        if self.is_quiet() {
            return;
        }
        if self.receiver.is_ready() {
            self.quiet.set(0);
            self.wake_reader();
        }
        if !self.queue.borrow().is_empty() && self.sender.is_ready() {
            self.quiet.set(0);
            self.flush();
        }
    }

    /// Before this thread sleeps: asks for a wake-up. Look once more, behind a fence, after this.
    fn arm_wakeup(&self) {
        if !self.is_quiet() {
            self.quiet.set((self.quiet.get() + 1).min(QUIET_AFTER));
            self.receiver.arm_wakeup();
        }
    }

    /// After the sleep. One that has been without news for long becomes a quiet one here, where nothing can
    /// have come unseen: it has asked for a wake-up, has looked since, and goes on asking.
    fn disarm_wakeup(&self) {
        if self.quiet.get() == QUIET_AFTER && !self.receiver.is_ready() {
            self.quiet.set(QUIET_AFTER + 1);
        } else if !self.is_quiet() {
            self.receiver.disarm_wakeup();
        }
    }
}

/// Reads the wake-ups of the other end, and notices when it goes.
async fn hear_wakeups(end: Weak<Endpoint>, stream: Stream) {
    let mut bytes = BufMut::aligned(WAKEUPS_READ_MAX);
    loop {
        let (heard, read) = stream.read(bytes, 0).await;
        bytes = read;
        let Some(end) = end.upgrade() else { return };
        match heard {
            Ok(0) | Err(_) => return end.end(),
            Ok(_) => end.on_wakeup(),
        }
    }
}

/// The half that reads frames.
pub(crate) struct ShmReader {
    end: Rc<Endpoint>,
    /// A frame whose body is not complete, or has not been asked for.
    begun: Option<Begun>,
    in_a_row: u32,
}

struct Begun {
    front: Front,
    /// What came with the front, and still lies in shared memory.
    piece: Option<Piece>,
    /// Memory of our own for a body that is not used where it lies, and how much of it has come.
    body: Option<BufMut>,
    filled: usize,
}

impl ShmReader {
    /// See [`crate::FrameReader::front`].
    pub(crate) async fn front(&mut self) -> Result<Option<Front>, FrameError> {
        poll_fn(|cx| self.poll_front(cx)).await
    }

    /// See [`crate::FrameReader::body`].
    pub(crate) async fn body(&mut self) -> Result<Buf, FrameError> {
        poll_fn(|cx| self.poll_body(cx)).await
    }

    /// See [`crate::FrameReader::hung_up`].
    pub(crate) async fn closed(&self) {
        self.end.closed().await;
    }

    fn poll_front(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Front>, FrameError>> {
        if self.begun.is_none() {
            if self.in_a_row == FRAMES_IN_A_ROW {
                self.in_a_row = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let Some(record) = ready!(self.poll_record(cx))? else { return Poll::Ready(Ok(None)) };
            self.begun = Some(begin(record)?);
            self.in_a_row += 1;
        }
        Poll::Ready(Ok(self.begun.as_ref().map(|begun| begun.front.clone())))
    }

    /// The next record; `None` at the end.
    fn poll_record(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Record>, FrameError>> {
        // In this order: what came before the end is read before it.
        let is_over = self.end.gone.get();
        let record = self.end.receiver.take()?;
        if record.is_none() && !is_over {
            self.in_a_row = 0;
            *self.end.reader.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(record))
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Buf, FrameError>> {
        loop {
            if let Some(body) = self.take_piece() {
                return Poll::Ready(Ok(body));
            }
            let Some(Record { front, piece }) = ready!(self.poll_record(cx))? else {
                return Poll::Ready(Err(FrameError::Truncated));
            };
            let begun = self.begun.as_mut().expect("a body belongs to a front");
            let missing = begun.front.envelope.body_len as usize - begun.filled;
            if !front.is_empty() || piece.len == 0 || piece.len > missing {
                let violation = ProtocolViolation("a piece does not belong to the frame that was begun");
                return Poll::Ready(Err(violation.into()));
            }
            begun.piece = Some(piece);
        }
    }

    /// Takes the piece that is there; the body, if it is complete with it.
    fn take_piece(&mut self) -> Option<Buf> {
        let begun = self.begun.as_mut().expect("a body belongs to a front");
        let (receiver, envelope) = (&self.end.receiver, &begun.front.envelope);
        let len = envelope.body_len as usize;
        let piece = begun.piece.take()?;
        let body = match piece.len {
            0 => Buf::empty(),
            n if n == len && envelope.flags & FLAG_BLOCKS != 0 => receiver.lend_piece(piece),
            n => {
                let mut body = begun.body.take().unwrap_or_else(|| BufMut::aligned(len));
                receiver.copy(piece, &mut body[begun.filled..begun.filled + n]);
                begun.filled += n;
                if begun.filled < len {
                    begun.body = Some(body);
                    return None;
                }
                body.freeze()
            }
        };
        self.begun = None;
        Some(body)
    }
}

/// What the first record of a frame begins.
fn begin(Record { front, piece }: Record) -> Result<Begun, FrameError> {
    let Some(fixed) = front.first_chunk::<ENVELOPE_BYTES>() else {
        return Err(ProtocolViolation("a frame without an envelope").into());
    };
    let envelope = Envelope::decode(fixed).map_err(FrameError::Decode)?;
    let head = front.slice(ENVELOPE_BYTES..front.len());
    Envelope::verify(fixed, &head).map_err(FrameError::Decode)?;
    let len = envelope.body_len as usize;
    if head.len() != envelope.head_len as usize || piece.len > len || (piece.len == 0) != (len == 0) {
        return Err(ProtocolViolation("a record and its envelope differ").into());
    }
    let front = Front { envelope, head };
    Ok(Begun { front, piece: Some(piece), body: None, filled: 0 })
}

impl Drop for ShmReader {
    fn drop(&mut self) {
        self.end.reader.borrow_mut().take();
        self.end.let_go();
    }
}

/// The half that sends frames.
pub(crate) struct ShmWriter {
    end: Rc<Endpoint>,
}

impl ShmWriter {
    /// See [`crate::FrameWriter::send`].
    pub(crate) fn send(&self, envelope: Envelope, head: &[u8], body: Vec<Buf>) {
        if self.end.gone.get() {
            return;
        }
        let mut front = Vec::with_capacity(ENVELOPE_BYTES + head.len());
        envelope.encode(head, &mut front);
        let bytes = front.len() as u64 + u64::from(envelope.body_len);
        self.end.sent.set(self.end.sent.get() + bytes);
        self.end.send(Outgoing::new(front, body));
    }

    /// Where bodies land that need not be copied to be sent here.
    pub(crate) fn landing(&self) -> Landing {
        Landing::of(self.end.sender.clone())
    }

    /// See [`crate::FrameWriter::count_in`].
    pub(crate) fn count_in(&self, share: Rc<Share>) {
        self.end.debt.count_in(share);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.end.gone.get()
    }

    pub(crate) fn pending(&self) -> u32 {
        self.end.queue.borrow().len() as u32
    }

    pub(crate) async fn drained(&self) {
        if !self.end.gone.get() {
            self.end.drained.notified().await;
        }
    }

    pub(crate) async fn closed(&self) {
        self.end.closed().await;
    }

    pub(crate) fn bytes_sent(&self) -> u64 {
        self.end.sent.get()
    }

    pub(crate) fn shutdown(&self) {
        self.end.end();
    }

    /// See [`crate::FrameWriter::closer`].
    pub(crate) fn closer(&self) -> impl Fn() + use<> {
        let end = Rc::downgrade(&self.end);
        move || end.upgrade().iter().for_each(|end| end.end())
    }
}

impl Drop for ShmWriter {
    fn drop(&mut self) {
        self.end.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::region::{FRONTS_BYTES, PAGE, PAGES, PIECE_MAX, Region};
    use super::*;
    use crate::frame::Frame;
    use proptest::prelude::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::Ordering::Release;
    use std::time::Duration;
    use weft_rt::{Lender, block_on, random_below, sleep, timeout, yield_now};
    use weft_types::limits::FRAME_BODY_MAX;

    impl ShmReader {
        async fn next(&mut self) -> Result<Option<Frame>, FrameError> {
            let Some(Front { envelope, head }) = self.front().await? else { return Ok(None) };
            Ok(Some(Frame { envelope, head, body: self.body().await? }))
        }
    }

    /// Both ends of a connection, and its memory.
    fn pair() -> (Rc<Endpoint>, Rc<Endpoint>, Rc<Region>) {
        let (region, _) = Region::create().unwrap();
        let streams = UnixStream::pair().unwrap();
        let socket = |s: UnixStream| Stream::of(OwnedFd::from(s));
        let (a, b) = (|| region.direction(0), || region.direction(1));
        let left = Endpoint::new((a(), b()), socket(streams.0));
        let right = Endpoint::new((b(), a()), socket(streams.1));
        (left, right, region)
    }

    fn body(len: usize, seed: usize) -> Buf {
        Buf::from((0..len).map(|i| (i ^ i >> 8 ^ seed) as u8).collect::<Vec<_>>())
    }

    fn send(writer: &ShmWriter, flags: u16, head: &[u8], body: Vec<Buf>) {
        let lens = (head.len() as u32, body.iter().map(|b| b.len() as u32).sum());
        let (head_len, body_len) = lens;
        let envelope = Envelope { head_len, body_len, flags, ..Default::default() };
        writer.send(envelope, head, body);
    }

    /// Bodies of every size, of kinds that are used where they lie and of others, some of them kept for a
    /// while: all come in order and as they were, also where the pages run out.
    #[test]
    fn frames_of_any_size_come_in_order() {
        block_on(async {
            let (left, right, _) = pair();
            let ((_left_reader, writer), (mut reader, _right_writer)) = (left.split(), right.split());
            let count = 3000;
            let len = |i: usize| match i % 50 {
                0 => FRAME_BODY_MAX / 8 + i,
                1..5 => PIECE_MAX - i,
                5..20 => 0,
                _ => (i * 37) % (5 * PAGE),
            };
            let sender = spawn(async move {
                let mut reads = VecDeque::new();
                for i in 0..count {
                    while writer.pending() > 20 {
                        writer.drained().await;
                    }
                    let (len, flags) = (len(i), if i % 3 == 0 { 0 } else { FLAG_BLOCKS });
                    let part = random_below(len as u64 + 1) as usize;
                    // Some are read to where the other end sees them, some others' memory is there and not
                    // used.
                    let landing = if i % 4 < 2 { writer.landing().buffer(len) } else { None };
                    reads.push_back(writer.landing().buffer(len));
                    if reads.len() > 30 {
                        reads.remove(random_below(30) as usize);
                    }
                    let whole = match landing {
                        Some(mut landing) => {
                            landing.copy_from_slice(&body(len, i));
                            landing.freeze()
                        }
                        None => body(len, i),
                    };
                    let parts = vec![whole.slice(0..part), whole.slice(part..len)];
                    drop(whole);
                    send(&writer, flags, format!("{i}").as_bytes(), parts);
                }
                writer
            });
            let mut kept = VecDeque::new();
            for i in 0..count {
                let frame = reader.next().await.unwrap().unwrap();
                assert_eq!(&frame.head[..], format!("{i}").as_bytes());
                kept.push_back((i, frame.body));
                while kept.len() > 40 {
                    let (i, found) = kept.remove(random_below(40) as usize).unwrap();
                    assert!(found[..] == body(len(i), i)[..], "body {i}");
                }
            }
            drop(sender.await.unwrap());
        })
        .unwrap();
    }

    /// Bodies that lie in the pages already go out as they are, whole or their beginnings, in parts or not;
    /// one that somebody else looks at is copied, one of another connection as well, and one that is never
    /// sent leaves its pages.
    #[test]
    fn what_is_read_to_shared_memory_is_not_copied() {
        block_on(async {
            let (left, right, _) = pair();
            let ((_left, writer), (mut reader, _right)) = (left.clone().split(), right.split());
            let (other, ..) = pair();
            let free = |len| left.sender.lend(len).inspect(|at| left.sender.give_back(*at, len));
            let lowest = free(PAGE).unwrap();
            let mut kept = VecDeque::new();
            for i in 0..3000 {
                let len = 1 + random_below(5 * PAGE as u64) as usize;
                let lender = if i % 7 == 0 { &other } else { &left };
                let mut whole = Landing::of(lender.sender.clone()).buffer(len).unwrap();
                whole.copy_from_slice(&body(len, i));
                let (whole, at) = (whole.freeze(), random_below(len as u64 + 1) as usize);
                let parts = match i % 4 {
                    0 => vec![whole.clone()],
                    1 => vec![whole.slice(0..at), whole.slice(at..len)],
                    2 => vec![whole.slice(0..at)],
                    _ => vec![whole.slice(at..len), whole.slice(0..at)],
                };
                let sent: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
                let (start, is_kept) = (whole.as_ptr(), i % 5 == 0);
                if is_kept {
                    kept.push_back((i, whole.clone()));
                }
                drop(whole);
                if i % 11 > 0 {
                    send(&writer, FLAG_BLOCKS, b"", parts);
                    let found = reader.next().await.unwrap().unwrap().body;
                    assert_eq!(found[..], sent[..], "frame {i}");
                    let in_place = i % 7 > 0 && i % 4 < 3 && !is_kept && !found.is_empty();
                    assert!(found.as_ptr() == start || !in_place, "frame {i} was copied");
                }
                if kept.len() > 30 {
                    let (i, kept) = kept.pop_front().unwrap();
                    assert_eq!(kept[..], body(kept.len(), i)[..], "what is kept stays as it was");
                }
            }
            kept.clear();
            left.sender.collect().unwrap();
            assert_eq!(free(PAGE), Some(lowest), "all pages are free again");
            assert!(free(PIECE_MAX).is_some() && free(PIECE_MAX + 1).is_none());
        })
        .unwrap();
    }

    /// Reads of a slow drive hold pages; frames that need others go nevertheless, and so do those behind
    /// them: also where the other end keeps as much as it may, where what is free is scattered, and where
    /// reads come to nothing.
    #[test]
    fn what_lands_keeps_nobody_waiting_for_ever() {
        for (landed, between, kept_max) in [
            (PIECE_MAX, 0, 0),
            (PAGE, 3 * PAGE, 0),
            (PAGE, 3 * PAGE, 4096),
            (3 * PAGE, PAGE, 4096),
            (PAGE, 0, 4096),
        ] {
            block_on(async move {
                let (left, right, _) = pair();
                let ((_left, writer), (mut reader, _right)) = (left.split(), right.split());
                let (mut lent, mut sent, mut kept) = (vec![], 0, vec![]);
                for i in 0.. {
                    let Some(buffer) = writer.landing().buffer(landed) else { break };
                    lent.push(buffer);
                    if between > 0 {
                        send(&writer, FLAG_BLOCKS, b"", vec![body(between, i)]);
                        sent += 1;
                    }
                }
                assert!(lent.len() > 3);
                // It needs pages that follow each other; what landed is behind it, or is not sent at all.
                send(&writer, FLAG_BLOCKS, b"", vec![body(PIECE_MAX, 7)]);
                send(&writer, FLAG_BLOCKS, b"", vec![body(5 * PIECE_MAX, 7)]);
                sent += 2;
                for (i, buffer) in lent.into_iter().enumerate() {
                    if i % 3 < 2 {
                        send(&writer, FLAG_BLOCKS, b"", vec![buffer.freeze()]);
                        sent += 1;
                    }
                }
                for i in 0..sent {
                    let next = timeout(Duration::from_secs(5), reader.next()).await;
                    let body = next
                        .unwrap_or_else(|_| panic!("frame {i} of {sent} never came"))
                        .unwrap()
                        .unwrap()
                        .body;
                    if body.len() >= PIECE_MAX && between > 0 {
                        assert!(body.iter().enumerate().all(|(i, b)| *b == (i ^ i >> 8 ^ 7) as u8));
                    }
                    if kept.len() < kept_max {
                        kept.push(body);
                    }
                }
                assert_eq!(writer.pending(), 0);
            })
            .unwrap();
        }
    }

    /// The other end stands still after its first frames: whoever waits for it then sleeps. It is woken by
    /// more room.
    #[test]
    fn a_sender_that_waits_for_room_sees_no_news_in_old_ones() {
        // Frames of which so many wait for pages, or for the ring.
        for (head, len) in [(8, PIECE_MAX), (16 << 10, PAGE), (16 << 10, 0)] {
            block_on(async move {
                let (left, right, _) = pair();
                let ((_left, writer), (mut reader, _right)) = (left.clone().split(), right.split());
                for i in 0..100 {
                    send(&writer, FLAG_BLOCKS, &vec![7; head], vec![body(len, i)]);
                }
                for _ in 0..3 {
                    assert_eq!(reader.next().await.unwrap().unwrap().head.len(), head);
                    left.on_wakeup();
                    assert!(!left.is_ready() && writer.pending() > 0, "{head} + {len}");
                }
                while writer.pending() > 0 {
                    reader.next().await.unwrap();
                }
            })
            .unwrap();
        }
    }

    #[test]
    fn what_was_sent_before_the_end_is_read_and_then_the_end() {
        block_on(async {
            let (left, right, _) = pair();
            let (writer, mut reader) = (left.split(), right.split());
            send(&writer.1, FLAG_BLOCKS, b"last", vec![body(5000, 1)]);
            drop(writer);
            sleep(Duration::from_millis(20)).await;
            let last = reader.0.next().await.unwrap().expect("it was sent before");
            assert!(reader.0.next().await.unwrap().is_none() && reader.1.is_closed());
            drop(reader);
            assert_eq!(last.body[..], body(5000, 1)[..], "it outlives the connection");
        })
        .unwrap();
    }

    #[test]
    fn an_end_that_sleeps_is_woken() {
        block_on(async {
            let (left, right, _) = pair();
            let ((mut answers, asks), (mut asked, answer)) = (left.split(), right.split());
            let served = spawn(async move {
                while let Ok(Some(frame)) = asked.next().await {
                    answer.send(frame.envelope, &frame.head, vec![frame.body]);
                }
            });
            for i in 0..20 {
                // Long enough to sleep; and some rounds in which both were quiet before.
                sleep(Duration::from_millis(if i % 5 == 0 { 30 } else { 1 })).await;
                for _ in 0..QUIET_AFTER * u32::from(i % 5 == 1) {
                    sleep(Duration::from_micros(300)).await;
                }
                send(&asks, FLAG_BLOCKS, b"ask", vec![body(4096, i)]);
                assert_eq!(answers.next().await.unwrap().unwrap().body[..], body(4096, i)[..]);
            }
            drop((asks, answers));
            served.await.unwrap();
        })
        .unwrap();
    }

    /// Between the last look and the sleep, however many sleeps there were without news.
    #[test]
    fn what_comes_just_before_a_sleep_is_noticed_or_wakes() {
        for sleeps in 0..QUIET_AFTER + 3 {
            block_on(async move {
                let (left, right, _) = pair();
                let ((mut reader, _left), (_right, writer)) = (left.clone().split(), right.split());
                let taken = spawn(async move { reader.next().await.unwrap().is_some() });
                yield_now().await;
                for _ in 0..sleeps {
                    left.arm_wakeup();
                    assert!(!left.is_ready());
                    left.disarm_wakeup();
                }
                send(&writer, FLAG_BLOCKS, b"now", vec![]);
                left.arm_wakeup();
                let is_woken = sleeps >= QUIET_AFTER;
                assert!(left.is_ready() || is_woken, "after {sleeps} sleeps");
                left.disarm_wakeup();
                assert!(timeout(Duration::from_secs(5), taken).await.unwrap().unwrap());
            })
            .unwrap();
        }
    }

    #[test]
    fn a_sender_that_is_lied_to_ends_the_connection() {
        // What it says, and frames of which that many use up all room: pages, or the ring.
        type Lie = (&'static str, fn(&Direction), (usize, usize));
        let lies: [Lie; 4] = [
            ("freed more", |d| d.positions().freed.0.store(99, Release), (8, PIECE_MAX)),
            (
                "frees what was not sent",
                |d| {
                    d.free_entry(0).store(PAGES as u32 - 1, Relaxed);
                    d.positions().freed.0.store(1, Release);
                },
                (8, PIECE_MAX),
            ),
            (
                "frees what was not sent",
                |d| {
                    // A page that was taken for what is to be sent.
                    d.free_entry(0).store(0, Relaxed);
                    d.positions().freed.0.store(1, Release);
                },
                (8, PIECE_MAX),
            ),
            ("taken what was not sent", |d| d.positions().taken.0.store(1 << 40, Release), (16 << 10, 0)),
        ];
        for (what, lie, (head, len)) in lies {
            block_on(async move {
                let (left, _right, region) = pair();
                let _lent = left.sender.lend(PAGE);
                let (_reader, writer) = left.split();
                for _ in 0..20 {
                    send(&writer, FLAG_BLOCKS, &vec![7; head], vec![body(len, 3)]);
                }
                assert!(!writer.is_closed() && writer.pending() > 0);
                lie(&region.direction(0));
                sleep(Duration::from_millis(10)).await;
                send(&writer, FLAG_BLOCKS, &vec![7; head], vec![body(len, 3)]);
                assert!(writer.is_closed(), "{what}");
            })
            .unwrap();
        }
    }

    proptest! {
        /// Whatever lies in the ring, and wherever the other end says that it is: a receiver answers with
        /// frames or an error, and touches nothing outside.
        #[test]
        fn a_receiver_takes_nothing_on_trust(
            written in prop_oneof![0u64..600, Just(FRONTS_BYTES as u64), any::<u64>()],
            records in prop::collection::vec((0u32..200, prop_oneof![0u32..5000, any::<u32>()],
                prop_oneof![0u32..20_000, any::<u32>()], prop::collection::vec(any::<u8>(), 0..64), any::<bool>()), 0..8),
        ) {
            block_on(async move {
                let (left, right, region) = pair();
                let ((_left, _writer), (mut reader, _right)) = (left.split(), right.split());
                let direction = region.direction(0);
                let mut at = 0;
                for (front, page, len, bytes, fits) in records {
                    let front = if fits { bytes.len() as u32 } else { front };
                    let fixed = [front, page, len, 0].map(u32::to_le_bytes).concat();
                    direction.put_front(at, &fixed);
                    direction.put_front(at + 16, &bytes);
                    at += (16 + u64::from(front)).next_multiple_of(16);
                }
                let at = if written < 600 { at } else { written };
                direction.positions().written.0.store(at, Release);
                for _ in 0..20 {
                    let next = timeout(Duration::from_micros(1), reader.next()).await;
                    if !matches!(next, Ok(Ok(Some(_)))) { break; }
                }
            }).unwrap();
        }
    }
}
