//! Copying files on a host, several at a time.
//!
//! A file has its name only once it is whole, with the time of its source: so a copy that was cut off goes on
//! where it was.

use super::copy_list::unfinished;
use super::message::Copied;
use super::on_host::Work;
use crate::error::CliError;
use std::fs::{self, File, FileTimes, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// How much is read and written at once.
const BUFFER_BYTES: usize = 4 << 20;

/// Copies files, and says of each what has become of it.
pub(super) fn copy(work: &Work<'_>, files: &[(PathBuf, PathBuf)], threads: usize) {
    let next = AtomicUsize::new(0);
    let (stop, teller) = (work.stop, work.teller());
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, files.len().max(1)) {
            scope.spawn(|| {
                let mut buffer = vec![0; BUFFER_BYTES];
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((from, to)) = files.get(index) else { return };
                    let copied = match copy_one(from, to, &mut buffer) {
                        Ok(Some(bytes)) => Copied { index, bytes, skipped: false, error: None },
                        Ok(None) => Copied { index, bytes: 0, skipped: true, error: None },
                        Err(error) => Copied { index, bytes: 0, skipped: false, error: Some(error) },
                    };
                    let json = serde_json::to_string(&copied).expect("it serialises");
                    teller.tell(&format!("copied {json}"));
                }
            });
        }
    });
}

/// Copies a file; none if it is there already. Returns its bytes.
fn copy_one(from: &Path, to: &Path, buffer: &mut [u8]) -> Result<Option<u64>, String> {
    let of = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| format!("{path}: {error}")
    };
    let mut source = File::open(from).map_err(of(from))?;
    let found = source.metadata().map_err(of(from))?;
    match fs::symlink_metadata(to) {
        Ok(there) if there.is_file() && is_same(&found, &there) => return Ok(None),
        Ok(there) if !there.is_file() => return Err(format!("{}: it is there, and no file", to.display())),
        _ => {}
    }
    let part = unfinished(to);
    let copied = (|| {
        let mut target = File::create(&part).map_err(of(&part))?;
        let mut bytes = 0;
        loop {
            let read = source.read(buffer).map_err(of(from))?;
            if read == 0 {
                break;
            }
            target.write_all(&buffer[..read]).map_err(of(to))?;
            bytes += read as u64;
        }
        let after = source.metadata().map_err(of(from))?;
        if bytes != found.len() || !is_same(&found, &after) {
            return Err(format!("{}: it has changed while it was copied", from.display()));
        }
        dress(&target, &found).map_err(of(to))?;
        fs::rename(&part, to).map_err(of(to))?;
        Ok(Some(bytes))
    })();
    if copied.is_err() {
        let _ = fs::remove_file(&part);
    }
    copied
}

/// Whether a file is the copy of another one, by size and time. A file system that has no parts of a second
/// has zeroes there.
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    let parts = (one.mtime_nsec(), other.mtime_nsec());
    one.len() == other.len()
        && one.mtime() == other.mtime()
        && (parts.0 == parts.1 || parts.0 == 0 || parts.1 == 0)
}

/// Gives a copy owner, mode and time of its source. Only root may give files away.
fn dress(copy: &File, source: &Metadata) -> io::Result<()> {
    match fchown(copy, Some(source.uid()), Some(source.gid())) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
        _ => {}
    }
    copy.set_permissions(fs::Permissions::from_mode(source.mode() & 0o7777))?;
    copy.set_times(FileTimes::new().set_accessed(source.accessed()?).set_modified(source.modified()?))
}

/// Gives folders owner, mode and time of their sources. Returns what went wrong.
pub(super) fn finish_folders(folders: &[(PathBuf, PathBuf)]) -> Vec<String> {
    let finish = |(from, to): &(PathBuf, PathBuf)| {
        let done = fs::metadata(from).and_then(|source| dress(&File::open(to)?, &source));
        Some(format!("{}: {}", to.display(), done.err()?))
    };
    folders.iter().filter_map(finish).collect()
}

/// Has the file system of a folder write everything that it has.
pub(super) fn sync(target: &Path) -> Result<(), CliError> {
    let folder = File::open(target).map_err(CliError::file("open", target))?;
    // SAFETY: syncfs(2) takes a descriptor, which is open for the whole call, and touches no memory.
    match unsafe { libc::syncfs(folder.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(CliError::file("write everything to", target)(io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_copied_once_and_again_when_it_has_changed() {
        let dir = std::env::temp_dir().join(format!("weft-ondemand-copy-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("made");
        let (from, to) = (dir.join("from"), dir.join("to"));
        fs::write(&from, "hello").expect("written");
        fs::set_permissions(&from, fs::Permissions::from_mode(0o640)).expect("set");
        let mut buffer = [0; 3];
        assert_eq!(copy_one(&from, &to, &mut buffer), Ok(Some(5)));
        assert_eq!(copy_one(&from, &to, &mut buffer), Ok(None), "it is there");
        let there = fs::metadata(&to).expect("there");
        assert_eq!((fs::read(&to).expect("read"), there.mode() & 0o777), (b"hello".to_vec(), 0o640));
        fs::write(&from, "hallo").expect("written");
        let later = there.modified().expect("a time") + std::time::Duration::from_secs(9);
        File::options().write(true).open(&from).and_then(|file| file.set_modified(later)).expect("set");
        assert_eq!(copy_one(&from, &to, &mut buffer), Ok(Some(5)), "its time has changed");
        assert_eq!(fs::read(&to).expect("read"), b"hallo");
        let error = copy_one(&dir.join("none"), &to, &mut buffer).expect_err("there is none");
        assert!(error.contains("none: "), "{error}");
        fs::create_dir(dir.join("folder")).expect("made");
        assert!(copy_one(&from, &dir.join("folder"), &mut buffer).expect_err("a folder").contains("no file"));
        assert_eq!(fs::read_dir(&dir).expect("there").count(), 3, "nothing unfinished stays");
        fs::remove_dir_all(dir).expect("removed");
    }
}
