//! `weft mount` and `weft umount`: what they are asked for.

use crate::span::Span;
use std::path::PathBuf;

/// Arguments of `weft mount`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  weft mount home /mnt/home\n  \
    weft mount home /mnt/home --read-only --foreground\n  weft umount /mnt/home\n\n\
    It needs root, and /dev/fuse (`modprobe fuse` where that is missing).")]
pub struct MountArgs {
    /// The file system's name
    pub name: String,
    /// The folder to mount it at: an empty one
    #[arg(value_name = "FOLDER")]
    pub at: PathBuf,
    /// Allow no changes through this mount; there may be any number of such mounts
    #[arg(long)]
    pub read_only: bool,
    /// Stay in the foreground; Ctrl-C or SIGTERM unmounts
    #[arg(long)]
    pub foreground: bool,
    /// How long a file operation waits while the fabric does not answer, such as 30s or 10m
    #[arg(long, value_name = "SPAN", default_value = "5m")]
    pub timeout: Span,
    /// The file for warnings of a mount in the background [default: none]
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
