//! `weft mount` and `weft umount`: what they are asked for.

use crate::span::Span;
use std::path::PathBuf;

/// What is not to be had of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MountOption {
    /// Set-id bits and file capabilities have no effect
    Nosuid,
    /// Devices cannot be opened
    Nodev,
    /// Programs cannot be started
    Noexec,
}

/// Arguments of `weft mount`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  weft mount home /mnt/home\n  \
    weft mount home /mnt/home --read-only --foreground\n  weft umount /mnt/home\n\n\
    It needs /dev/fuse (`modprobe fuse` where that is missing), and root. Other users mount at folders \
    of their own where fusermount3 is (package fuse3); no other user sees files there, unless \
    user_allow_other is in /etc/fuse.conf. `mount -t weft` and /etc/fstab work where /sbin/mount.weft is \
    a link to this program, as the packages have it; \
    there, options are fabric=PLACE, timeout=SPAN, log-file=FILE, ro, sync, over-io-uring, nosuid, nodev and \
    noexec:\n\n  \
    home  /mnt/home  weft  _netdev,fabric=10.0.0.1:4800  0  0")]
pub struct MountArgs {
    /// The file system's name
    pub name: String,
    /// The folder to mount it at: an empty one
    #[arg(value_name = "FOLDER")]
    pub at: PathBuf,
    /// Allow no changes through this mount; there may be any number of such mounts
    #[arg(long)]
    pub read_only: bool,
    /// Restrictions, such as nosuid,noexec
    #[arg(long, short = 'o', value_name = "LIST", value_delimiter = ',')]
    pub options: Vec<MountOption>,
    /// Stay in the foreground; Ctrl-C or SIGTERM unmounts
    #[arg(long)]
    pub foreground: bool,
    /// Have each write durable when it returns; otherwise what is written is so after fsync, or some seconds
    #[arg(long)]
    pub write_through: bool,
    /// Take the kernel's requests over io_uring: faster where programs have many requests under way. The
    /// kernel (Linux 6.14) has to allow it: `echo Y > /sys/module/fuse/parameters/enable_uring`. Few
    /// programs can then wait for file locks at a time: half of what a processor has room for, 4 to 32
    #[arg(long)]
    pub over_io_uring: bool,
    /// How long a file operation waits while the fabric does not answer, such as 30s or 10m
    #[arg(long, value_name = "SPAN", default_value = "5m")]
    pub timeout: Span,
    /// The file for warnings of a mount in the background [default: /var/log/weft/PLACE.log, with a dash for
    /// each slash in the mount's place]
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// Set by the command itself for the process in the background
    #[arg(long, hide = true)]
    pub in_background: bool,
}

/// Arguments of `weft umount`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  weft umount /mnt/home\n  weft umount /mnt/home --force")]
pub struct UmountArgs {
    /// The folder that it is mounted at
    #[arg(value_name = "FOLDER")]
    pub at: PathBuf,
    /// Also if it is in use: what is open fails from then on
    #[arg(long)]
    pub force: bool,
}
