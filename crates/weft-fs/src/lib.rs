//! Engine: the client of a file system.
//!
//! It owns what a mount knows and does: which operations are under way at which shard, each of them once
//! (F1), what paths mean, and which bytes of a file are where. It does not know what a shard keeps.

mod all_names;
mod caller;
mod copy;
mod data_check;
mod directory_leases;
mod dirty;
mod doubts;
mod error;
mod file_part;
mod files;
mod hearing;
mod kept_names;
mod lasting;
mod leased;
mod lockers;
mod locks;
mod mount;
mod names_check;
mod namespace;
mod open_file;
mod open_files;
mod path;
mod projects;
mod quotas;
mod shared;
mod turns;
mod untold;
mod write_back;

pub use caller::{Caller, Shards, Unanswerable};
pub use copy::FilePlace;
pub use data_check::{DataCheck, DataFinding};
pub use error::FsError;
pub use file_part::FilePart;
pub use files::{Files, HowToOpen};
pub use lasting::LastingFiles;
pub use mount::{Mount, Source};
pub use names_check::NamesCheck;
pub use namespace::{DirectoryEntry, Namespace, NewFile};
pub use quotas::QuotaReport;
