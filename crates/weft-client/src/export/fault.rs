//! Why a request of a face's client fails.

use crate::ClientError;
use weft_types::with_causes;

/// A failed request: the kind for programs, the text for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// What a face maps to a number of its protocol.
    pub kind: FaultKind,
    /// What was found and, where there is something to do, a hint.
    pub text: String,
}

/// What kind of failure it is. [`FaultKind::Over`] lasts; the others may pass, or concern one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The range does not lie inside the volume. Nothing was done.
    Range,
    /// The range is empty, or not made of whole logical blocks. Nothing was done.
    Alignment,
    /// The volume is attached read-only. Nothing was done.
    ReadOnly,
    /// The drives are full. Nothing was written.
    NoSpace,
    /// No copy of a block is good.
    Medium,
    /// The attach is over, for good: taken over, ended, or the volume is gone.
    Over,
    /// Not every answer that was needed came in time. A write may have taken effect.
    TimedOut,
    /// Something else broke. A write may have taken effect.
    Failed,
}

impl Fault {
    /// A fault that a face has found itself.
    pub fn new(kind: FaultKind, text: impl Into<String>) -> Fault {
        Fault { kind, text: text.into() }
    }
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Fault {
        let kind = match &error {
            ClientError::NoSpace { .. } => FaultKind::NoSpace,
            ClientError::ReadOnly { .. } => FaultKind::ReadOnly,
            ClientError::OutOfBounds { .. } => FaultKind::Range,
            ClientError::Misaligned { .. } => FaultKind::Alignment,
            ClientError::Fenced { .. }
            | ClientError::SessionOver { .. }
            | ClientError::NoSuchVolume { .. } => FaultKind::Over,
            ClientError::TimedOut { .. } => FaultKind::TimedOut,
            ClientError::Damaged { .. } => FaultKind::Medium,
            ClientError::NoManager { .. }
            | ClientError::Refused { .. }
            | ClientError::LanesOfParts { .. }
            | ClientError::Layout(_)
            | ClientError::Protocol { .. } => FaultKind::Failed,
        };
        let text = match error.hint() {
            Some(hint) => format!("{} (hint: {hint})", with_causes(&error)),
            None => with_causes(&error),
        };
        Fault { kind, text }
    }
}
