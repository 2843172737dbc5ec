//! The two halves of a connection: frames out of it, and frames into it, whatever carries them.

use crate::body::Body;
use crate::frame::{Frame, FrameError, Front};
use crate::shm::{ShmReader, ShmWriter};
use crate::stream::{StreamReader, StreamWriter};
use std::rc::Rc;
use weft_rt::{Buf, Landing, Share, Stream};
use weft_wire::frame::{Envelope, FLAG_BLOCKS};

/// Reads frames from a connection.
pub struct FrameReader(Source);

enum Source {
    Stream(StreamReader),
    Shared(ShmReader),
}

impl FrameReader {
    /// A reader of this stream; nobody else may read from it.
    pub fn new(stream: Stream) -> Self {
        FrameReader(Source::Stream(StreamReader::new(stream)))
    }

    pub(crate) fn shared(reader: ShmReader) -> Self {
        FrameReader(Source::Shared(reader))
    }

    /// The next frame; `None` when the peer has closed between frames.
    ///
    /// # Errors
    /// See [`FrameError`]; the connection is of no further use then.
    pub async fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(front) = self.front().await? else { return Ok(None) };
        let body = self.body(&front).await?;
        Ok(Some(Frame { envelope: front.envelope, head: front.head, body }))
    }

    /// The next frame without its body, for which [`FrameReader::body`] is to be asked before the next front.
    ///
    /// # Errors
    /// As for [`FrameReader::next`].
    pub(crate) async fn front(&mut self) -> Result<Option<Front>, FrameError> {
        match &mut self.0 {
            Source::Stream(stream) => stream.front().await,
            Source::Shared(shared) => shared.front().await,
        }
    }

    /// The body of the frame that this front belongs to. Memory for it is taken here, and not before.
    ///
    /// # Errors
    /// As for [`FrameReader::next`].
    pub(crate) async fn body(&mut self, front: &Front) -> Result<Buf, FrameError> {
        match &mut self.0 {
            Source::Stream(stream) => stream.body(front).await,
            Source::Shared(shared) => shared.body().await,
        }
    }

    /// Takes nothing more in until it is asked for more, as far as that is under way without being asked.
    pub(crate) fn pause(&mut self) {
        match &mut self.0 {
            Source::Stream(stream) => stream.pause(),
            // The peer ends where the memory that is shared ends.
            Source::Shared(_) => {}
        }
    }

    /// Completes when the peer has closed or the connection is broken, for whoever waits between front and
    /// body.
    pub(crate) async fn hung_up(&self) {
        match &self.0 {
            Source::Stream(stream) => stream.hung_up().await,
            Source::Shared(shared) => shared.closed().await,
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

    pub(crate) fn shared(writer: ShmWriter) -> Self {
        FrameWriter(Sink::Shared(writer))
    }

    /// Sends a frame: `envelope` with its lengths and [`FLAG_BLOCKS`] set from `head` and `body`. It never
    /// waits: what may be under way is bounded by the credits of the connection. A frame on a broken
    /// connection vanishes; the reader notices.
    pub fn send(&self, mut envelope: Envelope, head: &[u8], body: Body) {
        envelope.head_len = head.len() as u32;
        envelope.body_len = body.len() as u32;
        if body.are_blocks() && envelope.body_len > 0 {
            envelope.flags |= FLAG_BLOCKS;
        }
        let body = body.into_bufs();
        match &self.0 {
            Sink::Stream(stream) => stream.send(envelope, head, body),
            Sink::Shared(shared) => shared.send(envelope, head, body),
        }
    }

    /// Whether nothing more will be sent.
    pub(crate) fn is_closed(&self) -> bool {
        match &self.0 {
            Sink::Stream(stream) => stream.is_closed(),
            Sink::Shared(shared) => shared.is_closed(),
        }
    }

    /// Whether it goes through shared memory.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.0, Sink::Shared(_))
    }

    /// Counts what is sent, and not taken by the network yet, in this share of a budget.
    pub(crate) fn count_in(&self, share: Rc<Share>) {
        match &self.0 {
            Sink::Stream(stream) => stream.count_in(share),
            Sink::Shared(shared) => shared.count_in(share),
        }
    }

    /// Where to read what is to be sent here.
    pub(crate) fn landing(&self) -> Landing {
        match &self.0 {
            Sink::Stream(_) => Landing::default(),
            Sink::Shared(shared) => shared.landing(),
        }
    }

    /// Frames sent that the connection has not taken yet.
    pub(crate) fn pending(&self) -> u32 {
        match &self.0 {
            Sink::Stream(stream) => stream.pending(),
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

    /// Completes when nothing more will be sent.
    pub(crate) async fn closed(&self) {
        match &self.0 {
            Sink::Stream(stream) => stream.closed().await,
            Sink::Shared(shared) => shared.closed().await,
        }
    }

    /// Bytes handed to the connection so far.
    pub fn bytes_sent(&self) -> u64 {
        match &self.0 {
            Sink::Stream(stream) => stream.bytes_sent(),
            Sink::Shared(shared) => shared.bytes_sent(),
        }
    }

    /// What ends the connection both ways, also when this writer is gone and what it had to send is still
    /// there.
    pub(crate) fn closer(&self) -> Box<dyn Fn()> {
        match &self.0 {
            Sink::Stream(stream) => Box::new(stream.closer()),
            Sink::Shared(shared) => Box::new(shared.closer()),
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
