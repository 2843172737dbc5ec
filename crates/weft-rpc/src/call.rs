//! How a call ends.

use crate::frame::Frame;
use std::time::Duration;
use weft_rt::Buf;
use weft_wire::Status;

/// The answer to a request that was carried out.
#[derive(Debug)]
pub struct Reply {
    /// The typed head.
    pub head: Buf,
    /// Data blocks or a document; aligned to [`weft_rt::IO_ALIGN`] from 4096 bytes on.
    pub body: Buf,
}

impl Reply {
    /// The one document of the answer: the head, or the body if it was longer than a head may be.
    pub fn document(&self) -> &[u8] {
        if self.head.is_empty() { &self.body } else { &self.head }
    }
}

/// Why a call brought no reply.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The peer has answered that it does not carry the request out; what that means for the data is said
    /// with the status.
    #[error("{status}: {}", text_of(.head))]
    Refused {
        /// Why.
        status: Status,
        /// A text for people; a document where the status says so.
        head: Vec<u8>,
    },
    /// The connection ended before the answer came: the request may or may not have been carried out.
    #[error("connection lost before the answer came")]
    Broken,
    /// No answer came in time. Likewise.
    #[error("no answer within {} ms", .0.as_millis())]
    Late(Duration),
}

impl CallError {
    /// What the peer has refused with; `None` if it has not answered.
    pub fn status(&self) -> Option<Status> {
        match self {
            CallError::Refused { status, .. } => Some(*status),
            CallError::Broken | CallError::Late(_) => None,
        }
    }

    /// What the peer says to people, without the status; empty if it has not answered.
    pub fn text(&self) -> String {
        match self {
            CallError::Refused { head, .. } => text_of(head),
            CallError::Broken | CallError::Late(_) => String::new(),
        }
    }
}

fn text_of(head: &[u8]) -> String {
    String::from_utf8_lossy(head).into_owned()
}

impl Frame {
    /// The answer that this is.
    ///
    /// # Errors
    /// [`CallError::Refused`] unless the status is [`Status::Ok`].
    pub fn into_reply(self) -> Result<Reply, CallError> {
        match Status::from_u16(self.envelope.status) {
            Status::Ok => Ok(Reply { head: self.head, body: self.body }),
            status => Err(CallError::Refused { status, head: self.head.to_vec() }),
        }
    }
}
