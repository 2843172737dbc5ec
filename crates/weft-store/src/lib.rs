//! Engine: the versioned copy-on-write block store on a drive.
//!
//! It owns everything between "these blocks of this object, at this version" and the bytes on one drive:
//! the version rule, copy-on-write placement, the log, checkpoints, recovery, and verification of every byte
//! read. It never talks to anyone: admission, leases and peers belong to the target.
/// Whether this program was built with the doors that fuzzing goes through.
pub const HAS_FUZZING_DOORS: bool = cfg!(feature = "fuzzing");

mod bitmap;
mod cache;
mod changed;
mod check;
mod checkpoint;
mod commit;
mod convert;
mod device;
mod device_label;
mod engine;
mod error;
mod floor;
mod foreign;
mod format;
mod frees;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod group_state;
mod groups;
mod holdings;
mod inspect;
mod label;
mod layer;
mod leaf;
mod listing;
mod locate;
mod log;
mod map;
mod map_copy;
mod open_set;
mod page;
mod read;
mod record;
mod recover;
mod region;
mod request;
mod resync;
mod shortage;
mod state;
mod store;
mod superblock;
mod tree;
mod v1;
mod watch;

pub use check::{CheckReport, Finding, Severity, check};
pub use device::{Device, DeviceFormat, split_part};
pub use device_label::{DeviceLabel, Part};
pub use error::StoreError;
pub use holdings::Holding;
pub use inspect::{Inspection, inspect};
pub use label::Label;
pub use listing::DataRuns;
pub use locate::{Held, Located, Wanted, locate};
pub use region::{Place, RegionMap};
pub use request::*;
pub use store::Store;
pub use superblock::{PageRef, Superblock, TreeRoot};
