//! Mounting and unmounting for users who may not: by `fusermount3`, a program of libfuse that runs as root.
//!
//! It mounts at folders of the user alone, and hands the kernel's device over through a socket
//! (fusermount3(1), `_FUSE_COMMFD` in libfuse's `mount.c`).

use crate::mounts::{MountOptions, Unmount};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::{fs, str};

/// The program.
const HELPER: &str = "fusermount3";

/// Where an administrator lets users make mounts that others may use.
const SETTINGS: &str = "/etc/fuse.conf";

/// Whether this user is one who needs it: root that may not mount, as in a container, gets nothing by it
/// either.
pub(crate) fn is_wanted() -> bool {
    !rustix::process::geteuid().is_root()
}

/// Mounts, and returns the device.
///
/// # Errors
/// What the program complains of, or that there is none.
pub(crate) fn mount(path: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (own, its) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The one that the program inherits.
    fcntl_setfd(&its, FdFlags::empty())?;
    let settings = fs::read_to_string(SETTINGS).unwrap_or_default();
    let mut command = Command::new(HELPER);
    command.env("_FUSE_COMMFD", its.as_raw_fd().to_string());
    command.arg("-o").arg(options.words(allows_others(&settings))).arg("--").arg(path);
    let said = run(command);
    drop(its);
    said?;
    let device = receive(&own)?;
    fcntl_setfd(&device, FdFlags::CLOEXEC)?;
    fcntl_setfl(&device, fcntl_getfl(&device)? | OFlags::NONBLOCK)?;
    Ok(device)
}

/// Unmounts what this user has mounted.
///
/// # Errors
/// What the program complains of, or that there is none; `EBUSY` if the mount is in use.
pub(crate) fn unmount(path: &Path, how: Unmount) -> io::Result<()> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if how == Unmount::Now {
        command.arg("-z");
    }
    command.arg("--").arg(path);
    // The helper looks for the mount among those of this user: of another one's it says that there is none.
    run(command).map_err(|error| match error.to_string().contains("busy") {
        true => io::Error::from_raw_os_error(libc::EBUSY),
        false => io::Error::from_raw_os_error(libc::EPERM),
    })
}

/// Whether users may make mounts that others use.
fn allows_others(settings: &str) -> bool {
    settings.lines().any(|line| line.trim() == "user_allow_other")
}

fn run(mut command: Command) -> io::Result<()> {
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let done = done.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("only root may mount, and {HELPER} is not installed (package fuse3)"),
        ),
        _ => error,
    })?;
    match done.status.success() {
        true => Ok(()),
        false => {
            let said = str::from_utf8(&done.stderr).unwrap_or_default().trim().to_owned();
            Err(io::Error::other(if said.is_empty() { format!("{HELPER}: {}", done.status) } else { said }))
        }
    }
}

/// Receives the descriptor that the program has sent.
fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let sent = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    sent.ok_or_else(|| io::Error::other(format!("{HELPER} has not sent the device")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_allow_others_by_a_line_of_its_own() {
        assert!(allows_others("# x\n user_allow_other \nmount_max = 9\n"));
        assert!(!allows_others("#user_allow_other\nuser_allow_others\n"));
        let mut options = MountOptions::new("home");
        assert_eq!(options.words(false), "fsname=home,subtype=weft,default_permissions");
        options.is_read_only = true;
        assert_eq!(options.words(true), "fsname=home,subtype=weft,default_permissions,ro,allow_other");
    }
}
