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
//! The way of a request: [`Volume`] splits it at object boundaries (`split.rs`), `replicate.rs` holds the write
//! protocol and the read path, `session.rs` keeps versions (`version_clock.rs`) and watermarks, `fabric.rs` the map and the
//! connections, `reach.rs` says which nodes do not answer. This crate never decides who is a member of
//! a group, and never touches a drive.

mod error;
mod fabric;
mod follow;
mod range_lock;
mod reach;
mod replicate;
mod session;
mod split;
mod version_clock;
mod volume;

pub use error::ClientError;
pub use fabric::Fabric;
pub use volume::{AttachOptions, IO_TIMEOUT, StatusExtent, Volume};
pub use weft_types::AttachMode;
