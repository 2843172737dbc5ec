//! Why an operation was not carried out. It owns the codes; a failed operation has changed nothing.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The kind of failure; stable, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// What was named does not exist.
    NotFound,
    /// The request breaks a rule whatever the state of the fabric.
    Invalid,
    /// It collides with something that exists, such as a name that is taken.
    Conflict,
    /// The present state forbids it, for safety or for lack of space.
    Refused,
    /// The manager or a target that is needed does not answer; the same request may succeed later.
    Unavailable,
    /// Something broke inside.
    Internal,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorCode::NotFound => "not found",
            ErrorCode::Invalid => "invalid",
            ErrorCode::Conflict => "conflict",
            ErrorCode::Refused => "refused",
            ErrorCode::Unavailable => "unavailable",
            ErrorCode::Internal => "internal error",
        })
    }
}

/// A failure, for programs (`code`) and for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The kind of failure.
    pub code: ErrorCode,
    /// What was found and what was expected.
    pub message: String,
    /// What to do about it, where there is something to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ApiError {
    /// A failure without a hint.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        ApiError { code, message: message.into(), hint: None }
    }

    /// The same failure with what to do about it.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
