//! Engine: attaches volumes, and keeps every block of them one atomic register, whoever else writes and
//! whatever fails.
//!
//! Begin with [`Fabric::connect`], then [`Fabric::attach`] a volume and read and write it:
//!
//! ```no_run
//! # async fn f() -> Result<(), weft_client::ClientError> {
//! use weft_client::{AttachOptions, Fabric};
//! let fabric = Fabric::connect(&["127.0.0.1:4800".parse().unwrap()], "example").await?;
//! let volume = fabric.attach("data", AttachOptions::default()).await?;
//! volume.write(0, vec![weft_rt::Buf::zeroes(4096)]).await?;
//! let parts = volume.read(0, 4096).await?;
//! volume.detach().await;
//! # Ok(()) }
//! ```
//!
//! A program with threads of its own uses one attach from all of them through [`Submitter`]: see
//! `examples/submit.rs`.
//!
//! A file system is attached by [`Fabric::attach_file_system`]; [`FileSystem::file`] is the data of one
//! inode, on the same way.
//!
//! The way of a request: [`Volume`] or [`File`] checks its range, `block.rs` cuts it at blocks and objects,
//! `mirror.rs` holds the write protocol and the read path, `exchange.rs` one request to one replica.
//! `versions.rs` gives out versions and keeps the watermark, `shared.rs` the map and the connections,
//! `managers.rs` finds a manager, `reach.rs` says which nodes do not answer, `lane.rs` and `submit.rs` use
//! several threads. This crate never decides who is a member of a group, and never touches a drive.

mod attach;
mod attached;
mod block;
mod contact;
mod deadline;
mod error;
mod exchange;
pub mod export;
mod fabric;
mod file_system;
mod follow;
mod followed;
mod group_io;
mod hedge;
mod lane;
mod listing;
mod managers;
mod mirror;
mod mirror_rules;
mod payload;
mod range_lock;
mod reach;
mod request_log;
mod session;
mod shared;
mod sparse;
mod split;
mod submit;
mod version_clock;
mod versions;
mod volume;
mod watermarks;

pub use error::ClientError;
pub use fabric::Fabric;
pub use file_system::{File, FileSystem};
pub use lane::Lane;
pub use sparse::{DataFrom, InodeData};
pub use submit::{Completion, LaneOp, NotQueued, OpenError, Submitter};
pub use volume::{AttachOptions, IO_TIMEOUT, StatusExtent, Volume};
pub use weft_layout::FileLayout;
pub use weft_types::AttachMode;
