//! The folder that is tested: what file system it is on, and how much room that has.

use crate::BenchError;
use crate::outcome::size_text;
use serde::Serialize;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A folder on a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestedFolder {
    /// The folder.
    pub folder: PathBuf,
    /// The type of its file system, such as `fuse.weft` or `ext4`.
    pub file_system: String,
    /// What is mounted, as the kernel names it.
    pub source: String,
}

/// What a file system has left for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    /// Inodes; none where the file system does not count them.
    pub(crate) inodes: Option<u64>,
}

impl TestedFolder {
    /// Looks at a folder that exists.
    pub(crate) fn look(folder: &Path) -> TestedFolder {
        let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let (file_system, source) =
            mount_of(&mounts, &whole).unwrap_or_else(|| ("unknown".to_owned(), "unknown".to_owned()));
        TestedFolder { folder: whole, file_system, source }
    }

    /// In a line.
    pub(crate) fn text(&self) -> String {
        format!("{} on {} ({})", self.folder.display(), self.source, self.file_system)
    }
}

/// Type and source of the mount with the longest mount point that a path is below; of equals the last one,
/// which hides the others. See proc_pid_mountinfo(5).
fn mount_of(mounts: &str, path: &Path) -> Option<(String, String)> {
    let mut best: Option<(usize, &str, &str)> = None;
    for line in mounts.lines() {
        let (before, after) = line.split_once(" - ")?;
        let point = unescaped(before.split(' ').nth(4)?);
        let mut words = after.split(' ');
        let (kind, source) = (words.next()?, words.next()?);
        if path.starts_with(&point) && best.is_none_or(|(length, ..)| point.len() >= length) {
            best = Some((point.len(), kind, source));
        }
    }
    best.map(|(_, kind, source)| (kind.to_owned(), unescaped(source)))
}

/// A field of mountinfo: blanks in it are octal.
fn unescaped(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

/// What the file system of a folder has left.
///
/// # Errors
/// Those of the operating system.
pub(crate) fn room(folder: &Path) -> Result<Room, BenchError> {
    let failed =
        |source| BenchError::File { action: "ask for the free space of", path: folder.into(), source };
    let path = CString::new(folder.as_os_str().as_bytes()).map_err(|error| failed(error.into()))?;
    // SAFETY: statvfs is plain numbers, for which zeroes are valid.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero, and both live as long as the call.
    if unsafe { libc::statvfs(path.as_ptr(), &mut found) } != 0 {
        return Err(failed(std::io::Error::last_os_error()));
    }
    let inodes = (found.f_files > 0).then_some(found.f_favail);
    Ok(Room { bytes: found.f_bavail.saturating_mul(found.f_frsize), inodes })
}

/// Fails if the folder has not room for this many bytes and inodes.
///
/// # Errors
/// [`BenchError::NoRoom`], or those of [`room`].
pub(crate) fn insist_on(folder: &Path, bytes: u64, inodes: u64) -> Result<(), BenchError> {
    let found = room(folder)?;
    let refused = |wanted: String, left: String| BenchError::NoRoom { folder: folder.into(), wanted, left };
    if bytes > found.bytes {
        return Err(refused(size_words(bytes), size_words(found.bytes)));
    }
    match found.inodes.filter(|left| inodes > *left) {
        Some(left) => Err(refused(format!("{inodes} files and folders"), left.to_string())),
        None => Ok(()),
    }
}

/// Bytes for people: exact where that is short, else to a tenth of a unit.
pub(crate) fn size_words(bytes: u64) -> String {
    let exact = size_text(bytes);
    if exact.len() <= 8 {
        return exact;
    }
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(power, _)| bytes >> power > 0);
    unit.map_or(exact, |(power, name)| format!("{:.1} {name}", bytes as f64 / (1_u64 << power) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_that_a_folder_is_on_is_found() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 22 0:40 / /mnt rw - tmpfs none rw\n\
                      31 30 0:41 / /mnt/a\\040b rw shared:1 - fuse.weft home rw,user_id=0\n";
        let of = |path: &str| mount_of(mounts, Path::new(path)).expect("it is on one");
        assert_eq!(of("/mnt/a b/c"), ("fuse.weft".to_owned(), "home".to_owned()));
        assert_eq!(of("/mnt/a"), ("tmpfs".to_owned(), "none".to_owned()));
        assert_eq!(of("/home"), ("ext4".to_owned(), "/dev/sda1".to_owned()));
    }

    #[test]
    fn a_folder_without_room_is_refused_before_anything_is_written() {
        let folder = std::env::temp_dir();
        insist_on(&folder, 4096, 1).expect("there is so much");
        let refused = insist_on(&folder, u64::MAX / 2, 1).expect_err("no folder has so much");
        assert!(refused.to_string().contains("are needed"), "{refused}");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([4096, 3 << 30, 1_500_000].map(size_words), ["4 KiB", "3 GiB", "1.4 MiB"]);
    }
}
