//! A whole fabric on this machine: its folder and its processes.
//!
//! It owns which files lie where, which processes belong to the fabric, and the order in which they start and
//! stop. It ends no process that it did not start, and it never reads what is on a drive.

mod config;
mod down;
mod error;
mod folder;
mod member;
mod process;
mod room;
mod start;
mod stop;
mod unmanaged;
mod up;

pub use config::{LocalConfig, LocalNode, LocalShape};
pub use down::DownArgs;
pub(crate) use down::down;
pub use error::LocalError;
pub use folder::Folder;
pub(crate) use folder::write_whole;
pub(crate) use member::{start_lost_manager, start_member, stop_manager, stop_member};
pub use process::ProcessId;
pub(crate) use process::Signal;
#[cfg(feature = "fuzzing")]
pub(crate) use process::parse_stat;
pub(crate) use room::free_bytes;
pub(crate) use start::{detach_from_terminal, program};
pub(crate) use unmanaged::Unmanaged;
pub use up::UpArgs;
pub(crate) use up::up;
