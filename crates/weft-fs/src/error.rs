//! What can go wrong for who uses a file system.

use crate::path::text;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;
use weft_wire::files::FileError;

/// Why an operation of a file system did not do what it was asked for.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FsError {
    /// A shard has refused it. Nothing was changed.
    #[error("{path}: {error}")]
    Refused {
        /// What it was about, for people.
        path: String,
        /// Why.
        error: FileError,
    },
    /// No server of a shard has answered. An operation that changes something may still happen.
    #[error("shard {shard} has not answered for {waited:?}; what was asked may still happen")]
    NoAnswer {
        /// The shard.
        shard: u16,
        /// How long it was asked.
        waited: Duration,
    },
    /// The session is over: another one is needed. An operation that was under way may have happened.
    #[error("the session is over: {why}")]
    SessionOver {
        /// Why.
        why: Rc<str>,
    },
    /// The server of a shard and this client do not understand each other: they are of releases that are too
    /// far apart.
    #[error("shard {shard} and this client do not understand each other: {why}")]
    NotUnderstood {
        /// The shard.
        shard: u16,
        /// What was said.
        why: Rc<str>,
    },
    /// The data of a file could not be read or written.
    #[error("{path}: {error}")]
    Data {
        /// The file, for people.
        path: String,
        /// Why.
        error: Rc<str>,
    },
    /// A file was changed by somebody else, or removed, while it was read.
    #[error("{path} was changed or removed while it was read")]
    Changed {
        /// The file, for people.
        path: String,
    },
    /// A symbolic link leads to another one, and so on, 40 times.
    #[error("{path}: too many symbolic links")]
    TooManyLinks {
        /// The path.
        path: String,
    },
    /// A check of all shards has come to no end: each time other servers had taken over meanwhile, or others
    /// had checked as well.
    #[error("the shards were read {times} times: each time another server or another check came in between")]
    CheckForgotten {
        /// How often.
        times: u32,
    },
    /// A shard has answered with something that is no answer to the question.
    #[error("shard {shard} has answered something else than was asked for")]
    OtherAnswer {
        /// The shard.
        shard: u16,
    },
}

impl FsError {
    /// The same, of another path: what people have asked for.
    pub fn about(self, path: &[u8]) -> FsError {
        match self {
            FsError::Refused { error, .. } => FsError::Refused { path: text(path), error },
            error => error,
        }
    }

    /// Why a shard has refused it, if one has.
    pub fn refusal(&self) -> Option<FileError> {
        match self {
            FsError::Refused { error, .. } => Some(*error),
            _ => None,
        }
    }
}
