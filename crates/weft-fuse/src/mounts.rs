//! Mounts of this file system type: making one, ending one, and finding them in the kernel's list.

use crate::by_helper;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The type that `mount` and `df` show.
const TYPE: &str = "fuse.weft";

/// The kernel's list of this process's mounts (`proc_pid_mountinfo(5)`).
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// How a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// The file system's name, which `mount` and `df` show as the source.
    pub name: String,
    /// Nothing can be changed through this mount.
    pub is_read_only: bool,
    /// Set-id bits and file capabilities have no effect.
    pub no_set_id: bool,
    /// Devices cannot be opened.
    pub no_devices: bool,
    /// Programs cannot be started.
    pub no_programs: bool,
    /// How far the kernel reads ahead in files that are read in order, in bytes; a multiple of 4096.
    /// `None` leaves what the kernel has for all file systems: 128 KiB.
    pub readahead_bytes: Option<u32>,
    /// Requests go over io_uring (Linux 6.14), if the kernel's administrator lets it; otherwise the mount
    /// fails.
    pub over_io_uring: bool,
}

impl MountOptions {
    /// A mount of this file system without restrictions.
    pub fn new(name: &str) -> MountOptions {
        MountOptions {
            name: name.to_owned(),
            is_read_only: false,
            no_set_id: false,
            no_devices: false,
            no_programs: false,
            readahead_bytes: None,
            over_io_uring: false,
        }
    }

    /// The options as `fusermount3` takes them. Its mounts are nosuid and nodev in any case.
    pub(crate) fn words(&self, allow_other: bool) -> String {
        let words = [
            (self.is_read_only, ",ro"),
            (self.no_set_id, ",nosuid"),
            (self.no_devices, ",nodev"),
            (self.no_programs, ",noexec"),
            (allow_other, ",allow_other"),
        ];
        let words: String = words.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| *word).collect();
        format!("fsname={},subtype=weft,default_permissions{words}", self.name)
    }

    fn flags(&self) -> MountFlags {
        let flags = [
            (self.is_read_only, MountFlags::RDONLY),
            (self.no_set_id, MountFlags::NOSUID),
            (self.no_devices, MountFlags::NODEV),
            (self.no_programs, MountFlags::NOEXEC),
        ];
        flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect()
    }
}

/// How a mount is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Only if nothing uses it (`EBUSY`). What was written through mappings is written first: the session
    /// has to run, so never call this on its thread.
    Idle,
    /// At once: requests under way fail, and so do those of files that are still open. Those that lie in
    /// lanes of io_uring fail when the mount's process reads them, or ends.
    Now,
}

/// Ends the mount at this path. The session's `run` returns when the kernel has let go of it.
///
/// # Errors
/// Those of umount2(2): `EINVAL` if nothing is mounted there, `EBUSY`, `EPERM`.
pub fn unmount(path: &Path, how: Unmount) -> io::Result<()> {
    // FORCE ends the connection, so that nothing waits for an answer, not even this thread. FORCE alone
    // would fail with EBUSY while a file is open, and DETACH alone would leave the connection to files
    // that are open.
    let flags = match how {
        Unmount::Idle => UnmountFlags::empty(),
        Unmount::Now => UnmountFlags::FORCE | UnmountFlags::DETACH,
    };
    let path = settled(path)?;
    let is_there = || Ok::<bool, io::Error>(mount_at(&path)?.is_some());
    let was_there = is_there()?;
    match rustix::mount::unmount(&path, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) if by_helper::is_wanted() => by_helper::unmount(&path, how),
        // Its process has seen the end of the connection, and has unmounted it first.
        Err(Errno::INVAL) if how == Unmount::Now && was_there && !is_there()? => Ok(()),
        done => Ok(done?),
    }
}

/// A mount that ends when this is dropped, unless it has ended already.
pub(crate) struct Mounted {
    path: PathBuf,
    /// The kernel's number of it.
    device: Option<String>,
    has_ended: bool,
}

impl Mounted {
    /// Mounts what is answered through this descriptor of the device. Who may not mount has `fusermount3` do
    /// it, whose descriptor takes its place.
    pub(crate) fn new(
        path: &Path,
        options: &MountOptions,
        device: OwnedFd,
    ) -> io::Result<(OwnedFd, Mounted)> {
        let path = fs::canonicalize(path)?;
        let raw = device.as_raw_fd();
        let data = format!("fd={raw},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other");
        let data = CString::new(data).expect("numbers and words have no zero");
        let file = match rustix::mount::mount(&*options.name, &path, TYPE, options.flags(), &*data) {
            Ok(()) => device,
            Err(Errno::PERM) if by_helper::is_wanted() => by_helper::mount(&path, options)?,
            Err(error) => return Err(error.into()),
        };
        let device = device_now(&path);
        Ok((file, Mounted { path, device, has_ended: false }))
    }

    /// Tells the kernel how far to read ahead, once the handshake is over. Without that it works as well,
    /// so a failure is only logged.
    pub(crate) fn set_readahead(&self, bytes: u32) {
        let set = self.device.as_ref().ok_or(io::ErrorKind::NotFound.into()).and_then(|device| {
            fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), (bytes / 1024).to_string())
        });
        if let Err(error) = set {
            if error.kind() == io::ErrorKind::PermissionDenied && by_helper::is_wanted() {
                return;
            }
            tracing::warn!(%error, bytes, "the kernel does not read ahead as far as it should");
        }
    }

    /// The kernel has ended it: what is at the path now is another one's.
    pub(crate) fn ended(&mut self) {
        self.has_ended = true;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Another one may be there by now.
        if self.has_ended || self.device.is_none() || device_now(&self.path) != self.device {
            return;
        }
        if let Err(error) = unmount(&self.path, Unmount::Now) {
            tracing::warn!(path = %self.path.display(), %error, "a mount stays behind");
        }
    }
}

/// A mount of this type, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeftMount {
    /// Where it is.
    pub path: PathBuf,
    /// The file system's name.
    pub name: String,
}

impl WeftMount {
    /// Whether nobody answers there any more: its process has ended without unmounting. Asks the mount,
    /// so this waits for its process if there is one; never call it on the session's thread.
    pub fn is_dead(&self) -> bool {
        // What the kernel never answers from a cache.
        matches!(rustix::fs::statfs(&self.path), Err(Errno::NOTCONN | Errno::CONNABORTED))
    }
}

/// All mounts of this type that this process sees, in the order in which they were made.
///
/// # Errors
/// If `/proc` is not there.
pub fn weft_mounts() -> io::Result<Vec<WeftMount>> {
    let list = fs::read(MOUNTINFO)?;
    Ok(mounts_in(&list).into_iter().filter_map(|(mount, is_weft)| is_weft.then_some(mount)).collect())
}

/// The mount that is uppermost at this path, if it is of this type; dead or not. Does not ask the mount.
///
/// # Errors
/// If the path's folder or `/proc` is not there.
pub fn mount_at(path: &Path) -> io::Result<Option<WeftMount>> {
    let path = settled(path)?;
    let list = fs::read(MOUNTINFO)?;
    let at_path = mounts_in(&list).into_iter().rfind(|(mount, _)| mount.path == path);
    Ok(at_path.and_then(|(mount, is_weft)| is_weft.then_some(mount)))
}

/// Symbolic links that a path may end with, one after the other (Linux: `MAXSYMLINKS`).
const LINKS_FOLLOWED: usize = 40;

/// The path without links and dots. What is mounted there is not asked: a dead mount answers nothing.
fn settled(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_FOLLOWED {
        path = with_settled_folder(&path)?;
        // Reading a link asks no file system: for what is no link, the kernel says so by itself.
        let Ok(target) = fs::read_link(&path) else { return Ok(path) };
        path = path.parent().unwrap_or(Path::new("/")).join(target);
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

fn with_settled_folder(path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else { return fs::canonicalize(path) };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    Ok(fs::canonicalize(folder)?.join(name))
}

fn device_now(path: &Path) -> Option<String> {
    fs::read(MOUNTINFO).ok().and_then(|list| device_at(&list, path))
}

/// The number (`MAJOR:MINOR`) of the uppermost file system at this path in such a list.
fn device_at(list: &[u8], path: &Path) -> Option<String> {
    let lines = list.split(|byte| *byte == b'\n').rev();
    let fields = lines.map(|line| line.split(|byte| *byte == b' ').collect::<Vec<_>>());
    let is_at = |fields: &Vec<&[u8]>| {
        fields.get(4).is_some_and(|at| unescaped(at) == path.as_os_str().as_encoded_bytes())
    };
    let device = fields.into_iter().find(is_at)?.get(2)?.to_vec();
    String::from_utf8(device).ok()
}

/// The mounts of such a list, and whether each is of our type. Lines that are not understood are left out.
fn mounts_in(list: &[u8]) -> Vec<(WeftMount, bool)> {
    let mount = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        // Optional fields end with a field that is a dash; type and source follow.
        let dash = 6 + fields.get(6..)?.iter().position(|field| *field == b"-")?;
        let path = PathBuf::from(OsString::from_vec(unescaped(fields.get(4)?)));
        let name = String::from_utf8_lossy(&unescaped(fields.get(dash + 2)?)).into_owned();
        Some((WeftMount { path, name }, *fields.get(dash + 1)? == TYPE.as_bytes()))
    };
    list.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// Without the octal escapes of spaces, tabs, newlines and backslashes.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| *first == b'\\');
        let value = octal.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(value.unwrap_or(*first));
        rest = if value.is_some() { &behind[3..] } else { behind };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_in_the_kernels_list() {
        let list = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
            36 22 0:35 / /mnt/a\\040b rw shared:2 master:1 - fuse.weft files\\134x rw,user_id=0\n\
            37 22 0:36 / /mnt/c rw - fuse.other weft rw\n\
            38 22 0:37 / /mnt/d rw - fuse.weft\n\
            broken\n";
        let found = mounts_in(list);
        assert_eq!(found.len(), 3, "{found:?}");
        let weft: Vec<_> = found.iter().filter(|(_, is_weft)| *is_weft).collect();
        let mount = WeftMount { path: "/mnt/a b".into(), name: "files\\x".into() };
        assert_eq!(weft, [&(mount, true)]);
        assert_eq!(device_at(list, Path::new("/mnt/a b")).as_deref(), Some("0:35"));
        assert_eq!(device_at(list, Path::new("/mnt")), None);
        assert_eq!(unescaped(b"\\04"), b"\\04");
        assert_eq!(unescaped(b"\\777\\"), b"\\777\\", "no byte");
    }

    #[test]
    fn a_path_of_no_mount_has_none() {
        assert_eq!(mount_at(Path::new("/")).unwrap(), None);
        assert_eq!(mount_at(Path::new("relative")).unwrap(), None);
        assert!(mount_at(Path::new("/nowhere/at/all")).is_err());
    }
}
