//! Engine: a metadata shard of a file system.
//!
//! A shard owns names, attributes and extended attributes of the inodes that were made in it. It is kept on
//! one volume, which it has for itself: a log of changes, and a tree of tables that checkpoints write. What
//! an operation does is decided by pure code ([`decide`]). The shard never touches the data of files, and it
//! talks to nobody but its volume. Which shards a node
//! serves, and who may ask them, is in `server.rs`.

/// Whether this program was built with the doors that fuzzing goes through.
pub const HAS_FUZZING_DOORS: bool = cfg!(feature = "fuzzing");

mod acl;
mod bounds;
mod change;
mod check;
mod checkpoint;
mod coordinator;
mod decide;
mod error;
mod finding;
mod foreign;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod key;
mod lock_waits;
mod log;
mod medium;
mod other_shards;
mod page;
mod participant;
mod peer;
mod peer_message;
mod place;
mod purge;
mod quota;
mod recalls;
mod record;
mod running_check;
mod server;
mod shard;
mod superblock;
mod tables;
mod tree;
mod usage;
mod use_of;
mod volume_medium;
mod waits;

pub use change::Change;
pub use check::check_tables;
pub use decide::{Decision, decide};
pub use error::{MediumError, MetaError};
pub use finding::TableFinding;
pub use foreign::RENAMES;
pub use key::{Key, KeyParts, Table};
pub use medium::Medium;
pub use peer::{PeerAnswer, PeerAsk, Peers, Prepare, Transaction};
pub use peer_message::PeerRequest;
pub use place::LOG_BLOCKS;
pub use record::{Entry, Inode, Part, ShardRecord, Value};
pub use server::ShardServer;
pub use shard::{Shard, ShardCounters, ShardFormat, format_shard, open_or_format};
pub use superblock::ShardName;
pub use tables::Tables;
pub use volume_medium::VolumeMedium;
