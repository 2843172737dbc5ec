//! What can go wrong in a shard.

use std::rc::Rc;
use thiserror::Error;

/// Why a shard cannot be opened, or serves no more.
#[derive(Clone, Debug, Error)]
pub enum MetaError {
    /// The medium failed or was taken over by another server: nothing is known of what was under way.
    #[error("the shard's volume cannot be used")]
    Medium(#[from] MediumError),
    /// What the medium holds contradicts itself.
    #[error("{what} at block {block} is damaged: {reason}")]
    Damaged {
        /// The structure.
        what: &'static str,
        /// Where it lies, in blocks of the medium.
        block: u64,
        /// What was found, and what was expected.
        reason: String,
    },
    /// The medium holds no shard.
    #[error("no shard is here: {0}")]
    NoShard(String),
    /// The shard is of a later release.
    #[error("the shard has format {found}, this release reads up to {newest}: upgrade the node")]
    Version {
        /// Its format.
        found: u16,
        /// The newest that is read.
        newest: u16,
    },
    /// The shard uses what this release does not know.
    #[error("the shard has features {0:#x}, which this release does not know: upgrade the node")]
    Features(u64),
    /// The medium is too small for what the shard holds.
    #[error("no space: a checkpoint needs block {needed}, the volume has {blocks}")]
    NoSpace {
        /// A block that is not there.
        needed: u64,
        /// Blocks of the medium.
        blocks: u64,
    },
    /// An operation has waited for other sessions, and is to be asked again. Nothing has happened.
    #[error("other sessions are in the way: ask again")]
    Waits,
    /// The shard was closed.
    #[error("the shard is closed")]
    Closed,
}

/// Why a medium did not do what it was asked for.
#[derive(Clone, Debug, Error)]
pub enum MediumError {
    /// Another server has taken the medium: this one serves no more.
    #[error("another server has taken it over")]
    Fenced,
    /// It failed.
    #[error("{0}")]
    Failed(Rc<str>),
}

impl MetaError {
    pub(crate) fn damaged(what: &'static str, block: u64, reason: impl Into<String>) -> MetaError {
        MetaError::Damaged { what, block, reason: reason.into() }
    }
}
