//! The way of replies to a client: written together, as many as are ready.
//!
//! It knows nothing of what the bytes mean. Replies may come from many tasks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_client::export::Credit;
use weft_rt::sync::Notify;
use weft_rt::{Buf, JoinHandle, Share, Stream, spawn};

#[derive(Default)]
struct Outbox {
    parts: RefCell<Vec<Buf>>,
    /// Bytes that are not yet part of `parts`.
    tail: RefCell<Vec<u8>>,
    held: RefCell<Vec<Credit>>,
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
/// by the credits that the requests hold.
///
/// A reply is put in without an await between its parts, so that replies do not mix.
pub(crate) struct ReplyWriter {
    outbox: Rc<Outbox>,
    task: RefCell<Option<JoinHandle<()>>>,
}

impl ReplyWriter {
    /// A writer that shows in the connection's share whether its client takes what it is sent.
    pub(crate) fn new(stream: Stream, share: Rc<Share>) -> ReplyWriter {
        let outbox = Rc::new(Outbox::default());
        let task = spawn(write_out(outbox.clone(), stream, share));
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

    /// Gives back what a request holds once everything put in so far is with the network.
    pub(crate) fn release(&self, credit: Credit) {
        if !self.outbox.is_broken.get() {
            self.outbox.held.borrow_mut().push(credit);
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

async fn write_out(outbox: Rc<Outbox>, stream: Stream, share: Rc<Share>) {
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
        share.leaving.begin(parts.iter().map(|part| part.len() as u64).sum());
        let written = stream.write(parts).await;
        share.leaving.end();
        if written.is_err() {
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
