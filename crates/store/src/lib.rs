//! Engine: the versioned copy-on-write block store on a drive.
//!
//! It owns everything between "these blocks of this object, at this version" and the bytes on one drive:
//! the version rule, copy-on-write placement, the log, checkpoints, recovery, and verification of every byte
//! read. It never talks to anyone: admission, leases and peers belong to the target.
#![allow(dead_code)]
mod bitmap;
mod error;
mod foreign;
mod label;
mod leaf;
mod open_set;
mod region;
mod request;
mod store;
mod superblock;

pub use error::StoreError;
pub use label::Label;
pub use region::{Place, RegionMap};
pub use request::*;
pub use store::Store;
