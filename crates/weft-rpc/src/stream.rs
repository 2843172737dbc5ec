//! Frames on a stream of bytes: read one after another; written together as many as are ready.

use crate::debt::Debt;
use crate::frame::{FrameError, Front};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use weft_rt::sync::Notify;
use weft_rt::{Buf, ByteReader, Share, Stream, spawn};
use weft_types::limits::FRAME_HEAD_MAX;
use weft_wire::frame::{ENVELOPE_BYTES, Envelope};

/// Reads frames from a stream; nobody else may read from it.
pub(crate) struct StreamReader(ByteReader);

impl StreamReader {
    pub(crate) fn new(stream: Stream) -> StreamReader {
        StreamReader(ByteReader::new(stream))
    }

    /// See [`crate::FrameReader::front`].
    pub(crate) async fn front(&mut self) -> Result<Option<Front>, FrameError> {
        if !self.0.fill_to(ENVELOPE_BYTES).await? {
            return Ok(None);
        }
        let fixed = self.0.have()[..ENVELOPE_BYTES].try_into().expect("that many bytes");
        let envelope = Envelope::decode(&fixed).map_err(FrameError::Decode)?;
        let front = ENVELOPE_BYTES + envelope.head_len as usize;
        self.0.fill_to(front).await?;
        let head = &self.0.have()[ENVELOPE_BYTES..front];
        Envelope::verify(&fixed, head).map_err(FrameError::Decode)?;
        let head = Buf::from(head);
        self.0.consume(front);
        Ok(Some(Front { envelope, head }))
    }

    /// See [`crate::FrameReader::body`].
    pub(crate) async fn body(&mut self, front: &Front) -> Result<Buf, FrameError> {
        Ok(self.0.take(front.envelope.body_len as usize).await?)
    }

    /// See [`crate::FrameReader::pause`].
    pub(crate) fn pause(&mut self) {
        self.0.pause();
    }

    /// See [`crate::FrameReader::hung_up`].
    pub(crate) async fn hung_up(&self) {
        self.0.hung_up().await;
    }
}

/// A frame's front always fits the buffer of its reader.
const _: () = assert!(ENVELOPE_BYTES + FRAME_HEAD_MAX <= ByteReader::FILL_MAX);

/// From so many bytes or frames on, what is queued is handed to the kernel at once instead of at the end of
/// the executor's turn: the peer works on the first of a burst while the last is being made. Fewer would be
/// more system calls than the waiting costs.
const AT_ONCE_BYTES: usize = 64 << 10;
const AT_ONCE_FRAMES: u32 = 16;

/// What one connection has to send.
struct Outbox {
    stream: Stream,
    parts: RefCell<Vec<Buf>>,
    /// Envelopes and heads that are not yet part of `parts`.
    tail: RefCell<Vec<u8>>,
    /// Bytes and frames that are queued.
    bytes: Cell<usize>,
    frames: Cell<u32>,
    /// The write that is under way.
    writing: RefCell<Option<Writing>>,
    closed: Cell<bool>,
    changed: Notify,
    /// Somebody waits until fewer frames are pending.
    drain_wanted: Cell<bool>,
    drained: Notify,
    /// Bytes handed to the connection so far.
    sent: Cell<u64>,
    /// Bytes that are queued, or in the write that is under way.
    debt: Debt,
}

/// A write, and how many frames and bytes it sends.
struct Writing {
    frames: u32,
    bytes: usize,
    write: Pin<Box<dyn Future<Output = io::Result<()>>>>,
}

impl Outbox {
    fn new(stream: Stream) -> Outbox {
        Outbox {
            stream,
            parts: RefCell::default(),
            tail: RefCell::default(),
            bytes: Cell::new(0),
            frames: Cell::new(0),
            writing: RefCell::default(),
            closed: Cell::new(false),
            changed: Notify::default(),
            drain_wanted: Cell::new(false),
            drained: Notify::default(),
            sent: Cell::new(0),
            debt: Debt::default(),
        }
    }

    /// Frames that are queued, or in the write that is under way.
    fn pending(&self) -> u32 {
        self.frames.get() + self.writing.borrow().as_ref().map_or(0, |w| w.frames)
    }

    fn queue(&self, envelope: Envelope, head: &[u8], body: Vec<Buf>) {
        let mut tail = self.tail.borrow_mut();
        let before = tail.len();
        envelope.encode(head, &mut tail);
        let bytes = tail.len() - before + envelope.body_len as usize;
        self.bytes.set(self.bytes.get() + bytes);
        self.debt.add(bytes as u64);
        self.frames.set(self.frames.get() + 1);
        drop(tail);
        if envelope.body_len > 0 {
            self.push_tail();
            self.parts.borrow_mut().extend(body);
        }
    }

    fn push_tail(&self) {
        let mut tail = self.tail.borrow_mut();
        if !tail.is_empty() {
            self.parts.borrow_mut().push(Buf::from(&tail[..]));
            tail.clear();
        }
    }

    /// Begins a write of what is queued, unless one is under way; whether one is.
    fn begin(&self) -> bool {
        if self.writing.borrow().is_some() {
            return true;
        }
        self.push_tail();
        let parts = std::mem::take(&mut *self.parts.borrow_mut());
        if parts.is_empty() {
            return false;
        }
        let bytes = self.bytes.take();
        self.sent.set(self.sent.get() + bytes as u64);
        let (frames, stream) = (self.frames.take(), self.stream.clone());
        let write = Box::pin(async move { stream.write(parts).await });
        *self.writing.borrow_mut() = Some(Writing { frames, bytes, write });
        true
    }

    /// Goes on with the write that is under way, if one is; its end ends the connection if it has failed.
    fn poll_write(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut writing = self.writing.borrow_mut();
        let Some(Writing { write, bytes, .. }) = &mut *writing else { return Poll::Ready(()) };
        let Poll::Ready(ended) = write.as_mut().poll(cx) else { return Poll::Pending };
        let bytes = *bytes;
        *writing = None;
        drop(writing);
        self.debt.pay(bytes as u64);
        if ended.is_err() {
            self.closed.set(true);
            self.forget();
            self.stream.shutdown();
            self.drained.notify_all();
        } else if self.drain_wanted.take() {
            self.drained.notify_all();
        }
        Poll::Ready(())
    }

    fn shutdown(&self) {
        self.closed.set(true);
        self.changed.notify_all();
        self.drained.notify_all();
        self.stream.shutdown();
    }

    /// Drops what is queued.
    fn forget(&self) {
        self.parts.borrow_mut().clear();
        self.tail.borrow_mut().clear();
        self.debt.pay(self.bytes.take() as u64);
        self.frames.set(0);
    }

    /// Hands what is queued to the kernel now, unless it still has the write before. The task that writes is
    /// awake, and sees to the rest.
    fn hand_over(&self) {
        let mut cx = Context::from_waker(Waker::noop());
        if self.writing.borrow().is_some() {
            return;
        }
        if self.begin() && self.poll_write(&mut cx).is_pending() {
            weft_rt::submit_now();
            let _ = self.poll_write(&mut cx);
        }
    }
}

/// Writes frames to a stream. What is sent while an earlier write is under way, or by tasks that are ready at
/// the same time, goes out in few system calls. What was sent before it is dropped still goes out; the stream
/// is closed when its reader is gone too.
pub(crate) struct StreamWriter {
    outbox: Rc<Outbox>,
}

impl StreamWriter {
    pub(crate) fn new(stream: Stream) -> Self {
        let outbox = Rc::new(Outbox::new(stream));
        let queue = outbox.clone();
        spawn(async move {
            loop {
                if queue.begin() {
                    poll_fn(|cx| queue.poll_write(cx)).await;
                } else if queue.closed.get() {
                    break;
                } else {
                    queue.changed.notified().await;
                }
            }
        });
        StreamWriter { outbox }
    }

    pub(crate) fn send(&self, envelope: Envelope, head: &[u8], body: Vec<Buf>) {
        let outbox = &self.outbox;
        if outbox.closed.get() {
            return;
        }
        outbox.queue(envelope, head, body);
        outbox.changed.notify_all();
        if outbox.bytes.get() >= AT_ONCE_BYTES || outbox.frames.get() >= AT_ONCE_FRAMES {
            outbox.hand_over();
        }
    }

    /// See [`crate::FrameWriter::count_in`].
    pub(crate) fn count_in(&self, share: Rc<Share>) {
        self.outbox.debt.count_in(share);
    }

    pub(crate) async fn drained(&self) {
        if !self.outbox.closed.get() {
            self.outbox.drain_wanted.set(true);
            self.outbox.drained.notified().await;
        }
    }

    pub(crate) async fn closed(&self) {
        while !self.outbox.closed.get() {
            self.outbox.drained.notified().await;
        }
    }

    pub(crate) fn shutdown(&self) {
        self.outbox.shutdown();
    }

    /// See [`crate::FrameWriter::closer`].
    pub(crate) fn closer(&self) -> impl Fn() + use<> {
        let outbox = Rc::downgrade(&self.outbox);
        move || outbox.upgrade().iter().for_each(|outbox| outbox.shutdown())
    }
}

impl StreamWriter {
    pub(crate) fn is_closed(&self) -> bool {
        self.outbox.closed.get()
    }

    pub(crate) fn pending(&self) -> u32 {
        self.outbox.pending()
    }

    pub(crate) fn bytes_sent(&self) -> u64 {
        self.outbox.sent.get()
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.outbox.closed.set(true);
        self.outbox.changed.notify_all();
    }
}
