//! A message as it lies between two peers.

use std::io;
use weft_rt::Buf;
use weft_wire::DecodeError;
use weft_wire::frame::Envelope;

/// What comes before the body of a message, and says how long that is.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    pub(crate) envelope: Envelope,
    pub(crate) head: Buf,
}

/// One message.
#[derive(Debug)]
pub struct Frame {
    /// Kind, status, request and flags.
    pub envelope: Envelope,
    /// The typed head.
    pub head: Buf,
    /// Data blocks or a document; aligned to [`weft_rt::IO_ALIGN`] from 4096 bytes on.
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
