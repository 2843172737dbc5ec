//! A client's connection as bytes: fixed and variable parts read one after another, replies written together.
//!
//! It knows nothing of what the bytes mean. Reading is done by one task; replies may come from many.

use crate::error::ConnectionError;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_rt::sync::{Notify, Permit};
use weft_rt::{Buf, BufMut, JoinHandle, Stream, spawn};

/// Bytes that a reader asks the stream for at once: dozens of small requests, or several of usual size.
const READ_BYTES: usize = 256 * 1024;

/// From this many missing bytes on, a payload is received where it belongs instead of through the read buffer:
/// below, one system call that also brings the next requests is cheaper than the copy it saves.
const DIRECT_BYTES: usize = 32 * 1024;

/// Reads from a stream; nobody else may read from it. Dropping one of its futures before it is done makes it
/// unusable.
pub(crate) struct ByteReader {
    stream: Stream,
    buf: Option<BufMut>,
    start: usize,
    end: usize,
}

impl ByteReader {
    pub(crate) fn new(stream: Stream) -> ByteReader {
        ByteReader { stream, buf: Some(BufMut::aligned(READ_BYTES)), start: 0, end: 0 }
    }

    /// The next `N` bytes; `None` if the client closed before the first of them.
    pub(crate) async fn next<const N: usize>(&mut self) -> Result<Option<[u8; N]>, ConnectionError> {
        const { assert!(N < READ_BYTES / 4) };
        if self.have().is_empty() && self.fill().await? == 0 {
            return Ok(None);
        }
        while self.have().len() < N {
            self.fill_some().await?;
        }
        let bytes = self.have()[..N].try_into().expect("that many bytes");
        self.start += N;
        Ok(Some(bytes))
    }

    /// The next `length` bytes in one buffer, aligned to [`weft_rt::IO_ALIGN`] from 4096 bytes on.
    pub(crate) async fn payload(&mut self, length: usize) -> Result<Buf, ConnectionError> {
        while self.have().len() < length
            && length - self.have().len() < DIRECT_BYTES
            && length <= READ_BYTES / 2
        {
            self.fill_some().await?;
        }
        let mut payload = BufMut::aligned(length);
        let mut filled = self.have().len().min(length);
        payload[..filled].copy_from_slice(&self.have()[..filled]);
        self.start += filled;
        while filled < length {
            let (n, returned) = self.stream.read(payload, filled).await;
            payload = returned;
            match n.map_err(ConnectionError::Io)? {
                0 => return Err(ConnectionError::Truncated),
                n => filled += n,
            }
        }
        Ok(payload.freeze())
    }

    /// Throws the next `length` bytes away.
    pub(crate) async fn skip(&mut self, length: usize) -> Result<(), ConnectionError> {
        let mut left = length;
        loop {
            let n = self.have().len().min(left);
            self.start += n;
            left -= n;
            if left == 0 {
                return Ok(());
            }
            self.fill_some().await?;
        }
    }

    fn have(&self) -> &[u8] {
        &self.buf.as_ref().expect("the buffer is only away during a read")[self.start..self.end]
    }

    async fn fill_some(&mut self) -> Result<(), ConnectionError> {
        match self.fill().await? {
            0 => Err(ConnectionError::Truncated),
            _ => Ok(()),
        }
    }

    async fn fill(&mut self) -> Result<usize, ConnectionError> {
        let mut buf = self.buf.take().expect("one read at a time");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 && buf.len() - self.end < READ_BYTES / 4 {
            buf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let (n, buf) = self.stream.read(buf, self.end).await;
        self.buf = Some(buf);
        let n = n.map_err(ConnectionError::Io)?;
        self.end += n;
        Ok(n)
    }
}

/// What a request holds of the connection's limits, until its reply has been handed to the network.
pub(crate) struct Held {
    pub(crate) _request: Permit,
    pub(crate) _bytes: Permit,
}

#[derive(Default)]
struct Outbox {
    parts: RefCell<Vec<Buf>>,
    /// Bytes that are not yet part of `parts`.
    tail: RefCell<Vec<u8>>,
    held: RefCell<Vec<Held>>,
    /// Nothing more will be put in.
    is_closing: Cell<bool>,
    /// The stream takes nothing more.
    is_broken: Cell<bool>,
    changed: Notify,
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

/// Writes replies to a stream; nobody else may write to it. What is put in while an earlier write is under way,
/// or by tasks that are ready at the same time, goes out in one system call. How much may wait here is bounded
/// by the limits that the requests hold.
///
/// A reply is put in without an await between its parts, so that replies do not mix.
pub(crate) struct ReplyWriter {
    outbox: Rc<Outbox>,
    task: RefCell<Option<JoinHandle<()>>>,
}

impl ReplyWriter {
    pub(crate) fn new(stream: Stream) -> ReplyWriter {
        let outbox = Rc::new(Outbox::default());
        let task = spawn(write_out(outbox.clone(), stream));
        ReplyWriter { outbox, task: RefCell::new(Some(task)) }
    }

    /// Puts in bytes that `encode` appends.
    pub(crate) fn head(&self, encode: impl FnOnce(&mut Vec<u8>)) {
        if !self.outbox.is_broken.get() {
            encode(&mut self.outbox.tail.borrow_mut());
            self.outbox.changed.notify_all();
        }
    }

    /// Puts in data, without copying it.
    pub(crate) fn data(&self, bufs: impl IntoIterator<Item = Buf>) {
        if !self.outbox.is_broken.get() {
            self.outbox.push_tail();
            self.outbox.parts.borrow_mut().extend(bufs);
            self.outbox.changed.notify_all();
        }
    }

    /// Gives back the limits once everything put in so far is with the network.
    pub(crate) fn release(&self, held: Held) {
        if !self.outbox.is_broken.get() {
            self.outbox.held.borrow_mut().push(held);
        }
    }

    /// Waits until everything put in is with the network, or the connection is broken.
    pub(crate) async fn finish(&self) {
        self.outbox.is_closing.set(true);
        self.outbox.changed.notify_all();
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            // Cancelled only with the whole executor.
            let _ = task.await;
        }
    }
}

impl Drop for ReplyWriter {
    /// What was put in before still goes out.
    fn drop(&mut self) {
        self.outbox.is_closing.set(true);
        self.outbox.changed.notify_all();
    }
}

async fn write_out(outbox: Rc<Outbox>, stream: Stream) {
    loop {
        outbox.push_tail();
        let parts = std::mem::take(&mut *outbox.parts.borrow_mut());
        let held = std::mem::take(&mut *outbox.held.borrow_mut());
        if parts.is_empty() {
            assert!(held.is_empty(), "a request is only released with its reply");
            if outbox.is_closing.get() {
                return;
            }
            outbox.changed.notified().await;
            continue;
        }
        if stream.write(parts).await.is_err() {
            outbox.is_broken.set(true);
            outbox.parts.borrow_mut().clear();
            outbox.tail.borrow_mut().clear();
            outbox.held.borrow_mut().clear();
            // The reader notices.
            stream.shutdown();
            return;
        }
        drop(held);
    }
}
