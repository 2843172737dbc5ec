//! What can go wrong for a connection, and for a request of a client.

use crate::protocol::{BadMagic, Errno, NBD_EINVAL, NBD_EIO, NBD_ENOSPC, NBD_EPERM, NBD_ESHUTDOWN};
use std::io;
use weft_client::export::{Fault, FaultKind};

/// Why a connection ended other than by the client's wish.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("connection lost")]
    Io(#[source] io::Error),
    #[error("connection closed inside a message")]
    Truncated,
    #[error("the client does not speak the protocol")]
    Magic(#[source] BadMagic),
    #[error("the client sets unknown handshake flags: {flags:#x}")]
    ClientFlags { flags: u32 },
    #[error("the client chose export '{name}', which does not exist or is over")]
    NoSuchExport { name: String },
    #[error("an option with {length} bytes of data is too large")]
    OptionTooLarge { length: u32 },
    #[error("a write of {length} bytes is too large")]
    WriteTooLarge { length: u32 },
    #[error("the handshake was not finished in time")]
    HandshakeTimeout,
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> ConnectionError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => ConnectionError::Truncated,
            _ => ConnectionError::Io(error),
        }
    }
}

/// Why a request fails: the number for programs, the text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(errno: Errno, text: impl Into<String>) -> Failure {
        Failure { errno, text: text.into() }
    }
}

impl From<Fault> for Failure {
    /// Section "Error values" leaves most choices to the server. An attach that is over fails all that
    /// follows, so it is told apart from trouble that may pass.
    fn from(fault: Fault) -> Failure {
        let errno = match fault.kind {
            FaultKind::NoSpace => NBD_ENOSPC,
            FaultKind::ReadOnly => NBD_EPERM,
            FaultKind::Range | FaultKind::Alignment => NBD_EINVAL,
            FaultKind::Over => NBD_ESHUTDOWN,
            FaultKind::TimedOut | FaultKind::Medium | FaultKind::Failed => NBD_EIO,
        };
        Failure { errno, text: fault.text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weft_client::ClientError;
    use weft_types::GroupId;

    #[test]
    fn what_may_pass_is_told_apart_from_what_is_over() {
        let volume = || "v".to_owned();
        let why = || "somebody ended it".to_owned();
        let errno = |error: ClientError| Failure::from(Fault::from(error)).errno;
        assert_eq!(errno(ClientError::NoSpace { group: GroupId(1) }), NBD_ENOSPC);
        assert_eq!(errno(ClientError::ReadOnly { volume: volume() }), NBD_EPERM);
        assert_eq!(errno(ClientError::Fenced { volume: volume(), why: why() }), NBD_ESHUTDOWN);
        assert_eq!(errno(ClientError::SessionOver { volume: volume(), why: why() }), NBD_ESHUTDOWN);
        let slow =
            ClientError::TimedOut { group: GroupId(1), waited: Duration::from_secs(30), cause: "x".into() };
        let failure = Failure::from(Fault::from(slow));
        assert_eq!(failure.errno, NBD_EIO);
        assert!(failure.text.contains("30s") && failure.text.contains("hint: "), "{}", failure.text);
    }
}
