//! Face: file systems as mounts, by the kernel's FUSE protocol.
//!
//! Implement [`Tree`], mount it, and run the [`Session`] until the file system is unmounted:
//!
//! ```no_run
//! # use weft_fuse::{MountOptions, Session, Tree, WritePlace};
//! # async fn f(tree: impl Tree) -> Result<(), weft_fuse::FuseError> {
//! use std::{path::Path, rc::Rc};
//! let options = MountOptions::new("files");
//! let session = Session::mount(Path::new("/mnt/files"), &options, Rc::new(tree)).await?;
//! session.run().await
//! # }
//! ```
//!
//! `session.rs` reads requests of the kernel, `request.rs` decodes them, `service.rs` makes calls of the
//! tree of them, `answer.rs` and `directory.rs` encode what these return. `device.rs` has the device and
//! the handshake, `lanes.rs` requests over io_uring, `proto` the numbers and layouts of the kernel's
//! header, `lookups.rs` counts what the kernel knows, and `mounts.rs` makes, finds and ends mounts.
//!
//! All of it runs on one thread of `weft-rt`, where it waits for the device on the ring. The kernel keeps
//! caches and checks permissions. This crate caches nothing, and knows
//! nothing of where a tree has its files from.
#![forbid(unsafe_code)]

mod answer;
mod by_helper;
mod device;
mod directory;
mod error;
mod lanes;
mod lookups;
mod mounts;
mod proto;
mod request;
mod service;
mod session;
mod tree;

pub use error::FuseError;
pub use mounts::{MountOptions, Unmount, WeftMount, mount_at, unmount, weft_mounts};
pub use session::Session;
pub use tree::{
    Allocate, Caching, Durable, Errno, FilePlace, HowToOpen, Opened, Reply, Seek, Space, Timeouts, Tree,
    WritePlace,
};
