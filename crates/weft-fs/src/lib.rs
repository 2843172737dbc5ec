//! Engine: the client of a file system.
//!
//! It owns what a mount knows and does: which operations are under way at which shard, each of them once
//! (F1), and what paths mean. It knows neither how a shard is reached ([`Shards`]) nor what the shard keeps.

mod caller;
mod error;
mod namespace;
mod path;

pub use caller::{Caller, Shards};
pub use error::FsError;
pub use namespace::{DirectoryEntry, Namespace, NewFile};
