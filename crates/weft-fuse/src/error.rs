//! What can go wrong for a mount as a whole.

use std::io;
use std::path::PathBuf;

/// Why a mount could not be made, or ended before it was unmounted.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// The kernel's device is not there or may not be opened.
    #[error("cannot open /dev/fuse; hint: 'modprobe fuse' loads the kernel's part, and mounting takes root")]
    Device(#[source] io::Error),
    /// mount(2) has refused.
    #[error("cannot mount at {}", path.display())]
    Mount {
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The kernel's protocol has another major version, or a minor one that is too old.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) or later is needed")]
    Version {
        /// The kernel's major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The first request of a mount is not INIT.
    #[error("unexpected first request of the kernel: operation {operation}, expected INIT (26)")]
    FirstRequest {
        /// What came instead; 0 if it was too short to say.
        operation: u32,
    },
    /// FUSE over io_uring is asked for and not offered.
    #[error("the kernel does not offer FUSE over io_uring")]
    NoLanes,
    /// FUSE over io_uring is offered, and fails.
    #[error("FUSE over io_uring cannot be set up")]
    Lanes(#[source] io::Error),
    /// The device can neither be read nor polled.
    #[error("the connection to the kernel failed")]
    Connection(#[source] io::Error),
}
