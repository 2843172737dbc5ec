//! Frames on a connection: read one after another; written together as many as are ready.

use crate::shm::{Endpoint, ShmReader, ShmWriter};
use crate::sync::Notify;
use crate::{Buf, ByteReader, Stream, spawn};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use weft_types::limits::FRAME_HEAD_MAX;
use weft_wire::DecodeError;
use weft_wire::frame::{ENVELOPE_BYTES, Envelope};

/// One message.
#[derive(Debug)]
pub struct Frame {
    /// Kind, status, request and flags.
    pub envelope: Envelope,
    /// The typed head.
    pub head: Buf,
    /// Data blocks or a document; aligned to [`crate::IO_ALIGN`] from 4096 bytes on.
    pub body: Buf,
}

/// Why no further frame can be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection broke.
    #[error("connection lost")]
    Io(#[source] io::Error),
    /// The peer closed inside a frame.
    #[error("connection closed inside a frame")]
    Truncated,
    /// The bytes are no frames.
    #[error("peer does not speak the protocol")]
    Decode(#[source] DecodeError),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> FrameError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => FrameError::Truncated,
            _ => FrameError::Io(error),
        }
    }
}

/// Reads frames from a connection.
pub struct FrameReader(Source);

enum Source {
    Stream(ByteReader),
    Shared(ShmReader),
}

impl FrameReader {
    /// A reader of this stream; nobody else may read from it.
    pub fn new(stream: Stream) -> Self {
        FrameReader(Source::Stream(ByteReader::new(stream)))
    }

    /// The next frame; `None` when the peer has closed between frames.
    ///
    /// # Errors
    /// See [`FrameError`]; the connection is of no further use then.
    pub async fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        match &mut self.0 {
            Source::Stream(bytes) => next_of_stream(bytes).await,
            Source::Shared(shared) => shared.next().await,
        }
    }
}

async fn next_of_stream(bytes: &mut ByteReader) -> Result<Option<Frame>, FrameError> {
    if !bytes.fill_to(ENVELOPE_BYTES).await? {
        return Ok(None);
    }
    let fixed = bytes.have()[..ENVELOPE_BYTES].try_into().expect("that many bytes");
    let envelope = Envelope::decode(&fixed).map_err(FrameError::Decode)?;
    let front = ENVELOPE_BYTES + envelope.head_len as usize;
    bytes.fill_to(front).await?;
    let head = &bytes.have()[ENVELOPE_BYTES..front];
    Envelope::verify(&fixed, head).map_err(FrameError::Decode)?;
    let head = Buf::from(head);
    bytes.consume(front);
    let body = bytes.take(envelope.body_len as usize).await?;
    Ok(Some(Frame { envelope, head, body }))
}

/// Both halves of a connection through shared memory.
pub(crate) fn frames_of(end: Rc<Endpoint>) -> (FrameReader, FrameWriter) {
    let (reader, writer) = end.split();
    (FrameReader(Source::Shared(reader)), FrameWriter(Sink::Shared(writer)))
}

/// A frame's front always fits the buffer of its reader.
const _: () = assert!(ENVELOPE_BYTES + FRAME_HEAD_MAX <= ByteReader::FILL_MAX);

#[derive(Default)]
struct Outbox {
    parts: RefCell<Vec<Buf>>,
    /// Envelopes and heads that are not yet part of `parts`.
    tail: RefCell<Vec<u8>>,
    closed: Cell<bool>,
    changed: Notify,
    /// Frames that are queued, or in the write that is under way.
    pending: Cell<u32>,
    /// Somebody waits for fewer of them.
    drain_wanted: Cell<bool>,
    drained: Notify,
}

impl Outbox {
    fn push_tail(&self) {
        let mut tail = self.tail.borrow_mut();
        if !tail.is_empty() {
            self.parts.borrow_mut().push(Buf::from(&tail[..]));
            tail.clear();
        }
    }
}

/// Writes frames to a connection.
pub struct FrameWriter(Sink);

enum Sink {
    Stream(StreamWriter),
    Shared(ShmWriter),
}

impl FrameWriter {
    /// A writer to this stream; nobody else may write to it.
    pub fn new(stream: Stream) -> Self {
        FrameWriter(Sink::Stream(StreamWriter::new(stream)))
    }

    /// Sends a frame: `envelope` with its lengths set from `head` and `body`. It never waits: what may be
    /// under way is bounded by the credits of the connection. A frame on a broken connection vanishes; the
    /// reader notices.
    pub fn send(&self, mut envelope: Envelope, head: &[u8], body: Vec<Buf>) {
        envelope.head_len = head.len() as u32;
        envelope.body_len = body.iter().map(|b| b.len()).sum::<usize>() as u32;
        match &self.0 {
            Sink::Stream(stream) => stream.send(envelope, head, body),
            Sink::Shared(shared) => shared.send(envelope, head, body),
        }
    }

    /// Whether nothing more will be sent.
    pub(crate) fn is_closed(&self) -> bool {
        match &self.0 {
            Sink::Stream(stream) => stream.outbox.closed.get(),
            Sink::Shared(shared) => shared.is_closed(),
        }
    }

    /// Whether it goes through shared memory.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.0, Sink::Shared(_))
    }

    /// Frames sent that the connection has not taken yet.
    pub(crate) fn pending(&self) -> u32 {
        match &self.0 {
            Sink::Stream(stream) => stream.outbox.pending.get(),
            Sink::Shared(shared) => shared.pending(),
        }
    }

    /// Completes when the connection has taken more of them, or has ended.
    pub(crate) async fn drained(&self) {
        match &self.0 {
            Sink::Stream(stream) => stream.drained().await,
            Sink::Shared(shared) => shared.drained().await,
        }
    }

    /// Bytes handed to the connection so far.
    pub fn bytes_sent(&self) -> u64 {
        match &self.0 {
            Sink::Stream(stream) => stream.sent.get(),
            Sink::Shared(shared) => shared.bytes_sent(),
        }
    }

    /// Ends the connection both ways.
    pub fn shutdown(&self) {
        match &self.0 {
            Sink::Stream(stream) => stream.shutdown(),
            Sink::Shared(shared) => shared.shutdown(),
        }
    }
}

/// Writes frames to a stream. What is sent while an earlier write is under way, or by tasks that are ready at
/// the same time, goes out in one system call. What was sent before it is dropped still goes out; the stream is closed
/// when its reader is gone too.
struct StreamWriter {
    outbox: Rc<Outbox>,
    stream: Stream,
    sent: Rc<Cell<u64>>,
}

impl StreamWriter {
    fn new(stream: Stream) -> Self {
        let outbox = Rc::new(Outbox::default());
        let sent = Rc::new(Cell::new(0));
        let (queue, out, count) = (outbox.clone(), stream.clone(), sent.clone());
        spawn(async move {
            loop {
                queue.push_tail();
                let parts = std::mem::take(&mut *queue.parts.borrow_mut());
                let frames = queue.pending.get();
                if parts.is_empty() {
                    if queue.closed.get() {
                        break;
                    }
                    queue.changed.notified().await;
                    continue;
                }
                count.set(count.get() + parts.iter().map(|p| p.len() as u64).sum::<u64>());
                if out.write(parts).await.is_err() {
                    queue.closed.set(true);
                    queue.parts.borrow_mut().clear();
                    out.shutdown();
                    queue.drained.notify_all();
                    break;
                }
                // What was sent during the write is still to come.
                queue.pending.set(queue.pending.get() - frames);
                if queue.drain_wanted.take() {
                    queue.drained.notify_all();
                }
            }
        });
        StreamWriter { outbox, stream, sent }
    }

    fn send(&self, envelope: Envelope, head: &[u8], body: Vec<Buf>) {
        if self.outbox.closed.get() {
            return;
        }
        envelope.encode(head, &mut self.outbox.tail.borrow_mut());
        if envelope.body_len > 0 {
            self.outbox.push_tail();
            self.outbox.parts.borrow_mut().extend(body);
        }
        self.outbox.pending.set(self.outbox.pending.get() + 1);
        self.outbox.changed.notify_all();
    }

    async fn drained(&self) {
        if !self.outbox.closed.get() {
            self.outbox.drain_wanted.set(true);
            self.outbox.drained.notified().await;
        }
    }

    fn shutdown(&self) {
        self.outbox.closed.set(true);
        self.outbox.changed.notify_all();
        self.outbox.drained.notify_all();
        self.stream.shutdown();
    }
}

impl Drop for StreamWriter {
    fn drop(&mut self) {
        self.outbox.closed.set(true);
        self.outbox.changed.notify_all();
    }
}
