//! Copying files on a host, several at a time.
//!
//! A file has its name only once it is whole and durable, with the time of its source: so a copy that was cut
//! off goes on where it was, also after the death of a host.

use super::copy_list::unfinished;
use super::host_mount::check_mounted;
use super::message::{Copied, CopyPath};
use super::on_host::Work;
use crate::error::CliError;
use std::fs::{self, File, FileTimes, Metadata};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// How much is read and written at once.
const BUFFER_BYTES: usize = 4 << 20;

/// Files that one host copies at the same time, at most.
const THREADS_MOST: usize = 256;

/// How often a file is tried that another copy works on. A copy that was ended may be at work on some hosts
/// for a moment.
const TRIES_OF_TAKEN: usize = 20;

/// How long a host waits between two tries.
const WAIT_FOR_OTHER: Duration = Duration::from_millis(100);

/// What is wrong with a file.
#[derive(Debug, PartialEq, Eq)]
enum FileError {
    /// For people, with the path.
    Failed(String),
    /// Another copy works on it.
    Taken,
    /// The copy is to end.
    Stopped,
}

/// Copies files, and says of each what has become of it. Of files that it says nothing of, the names are as
/// before.
///
/// # Errors
/// If the file system is not mounted here any more.
pub(super) fn copy(work: &Work<'_>, files: &[(CopyPath, CopyPath)], threads: usize) -> Result<(), CliError> {
    let mountpoint = work.place.record()?.mountpoint;
    check_mounted(&mountpoint)?;
    let (next, is_lost) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (stop, teller) = (work.stop, work.teller());
    let threads = threads.min(files.len()).clamp(1, THREADS_MOST);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = vec![0; BUFFER_BYTES];
                while !is_lost.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((CopyPath(from), CopyPath(to))) = files.get(index) else { return };
                    let copied = match copy_patiently(from, to, &mut buffer, stop) {
                        Ok(Some(bytes)) => Copied { index, bytes, skipped: false, error: None },
                        Ok(None) => Copied { index, bytes: 0, skipped: true, error: None },
                        Err(FileError::Stopped) => return,
                        Err(FileError::Failed(_)) if check_mounted(&mountpoint).is_err() => {
                            // The files are fine: another host copies them.
                            is_lost.store(true, Ordering::Relaxed);
                            return;
                        }
                        Err(FileError::Taken) => {
                            let error = format!("{}: another copy is at work on it", CopyPath::shown(to));
                            Copied { index, bytes: 0, skipped: false, error: Some(error) }
                        }
                        Err(FileError::Failed(error)) => {
                            Copied { index, bytes: 0, skipped: false, error: Some(error) }
                        }
                    };
                    let json = serde_json::to_string(&copied).expect("it serialises");
                    teller.tell(&format!("copied {json}"));
                }
            });
        }
    });
    if is_lost.into_inner() { check_mounted(&mountpoint) } else { work.check() }
}

/// Copies a file, and waits for another copy that works on it.
fn copy_patiently(
    from: &Path,
    to: &Path,
    buffer: &mut [u8],
    stop: &AtomicBool,
) -> Result<Option<u64>, FileError> {
    for _ in 1..TRIES_OF_TAKEN {
        match copy_one(from, to, buffer, stop) {
            Err(FileError::Taken) => thread::sleep(WAIT_FOR_OTHER),
            copied => return copied,
        }
    }
    copy_one(from, to, buffer, stop)
}

/// Copies a file; none if it is there already. Returns its bytes.
fn copy_one(from: &Path, to: &Path, buffer: &mut [u8], stop: &AtomicBool) -> Result<Option<u64>, FileError> {
    let failed = |path: &Path, what: &str| FileError::Failed(format!("{}: {what}", CopyPath::shown(path)));
    let of = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| failed(&path, &error.to_string())
    };
    let mut source = File::open(from).map_err(of(from))?;
    let found = source.metadata().map_err(of(from))?;
    match fs::symlink_metadata(to) {
        Ok(there) if there.is_file() && is_same(&found, &there) => return Ok(None),
        Ok(there) if !there.is_file() => return Err(failed(to, "it is there, and no file")),
        _ => {}
    }
    let part = unfinished(to);
    let mut target = create(&part).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => FileError::Taken,
        _ => of(&part)(error),
    })?;
    let copied = (|| {
        let mut bytes = 0;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(FileError::Stopped);
            }
            let read = source.read(buffer).map_err(of(from))?;
            if read == 0 {
                break;
            }
            target.write_all(&buffer[..read]).map_err(of(to))?;
            bytes += read as u64;
        }
        let after = source.metadata().map_err(of(from))?;
        if bytes != found.len() || !is_same(&found, &after) {
            return Err(failed(from, "it has changed while it was copied"));
        }
        dress(&target, &found).map_err(of(to))?;
        // Otherwise a host that dies could leave the whole name of a file that is not whole.
        target.sync_all().map_err(of(to))?;
        if !is_at(&target, &part) {
            return Err(FileError::Taken);
        }
        fs::rename(&part, to).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => FileError::Taken,
            _ => of(to)(error),
        })?;
        Ok(Some(bytes))
    })();
    if copied.is_err() && is_at(&target, &part) {
        let _ = fs::remove_file(&part);
    }
    copied
}

/// Creates a file that only this user reads. What an earlier copy has left there is no part of it.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// Whether an open file has this path. A host that was given up may still be at work on a file that another
/// one has begun.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: Metadata| (found.dev(), found.ino());
    let there = fs::symlink_metadata(path).map(identity).ok();
    there.is_some() && there == file.metadata().map(identity).ok()
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
    let mode = match fchown(copy, Some(source.uid()), Some(source.gid())) {
        Ok(()) => source.mode() & 0o7777,
        // A program that runs as its owner must not run as another one.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => source.mode() & 0o1777,
        Err(error) => return Err(error),
    };
    copy.set_permissions(fs::Permissions::from_mode(mode))?;
    copy.set_times(FileTimes::new().set_accessed(source.accessed()?).set_modified(source.modified()?))
}

/// Gives folders owner, mode and time of their sources. Returns what went wrong.
pub(super) fn finish_folders(folders: &[(CopyPath, CopyPath)]) -> Vec<String> {
    let finish = |(CopyPath(from), CopyPath(to)): &(CopyPath, CopyPath)| {
        let done = fs::metadata(from).and_then(|source| dress(&File::open(to)?, &source));
        Some(format!("{}: {}", CopyPath::shown(to), done.err()?))
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
        let copy = |from: &Path, to: &Path| copy_one(from, to, &mut [0; 3], &AtomicBool::new(false));
        assert_eq!(copy(&from, &to), Ok(Some(5)));
        assert_eq!(copy(&from, &to), Ok(None), "it is there");
        let there = fs::metadata(&to).expect("there");
        assert_eq!((fs::read(&to).expect("read"), there.mode() & 0o777), (b"hello".to_vec(), 0o640));
        fs::write(&from, "hallo").expect("written");
        let later = there.modified().expect("a time") + std::time::Duration::from_secs(9);
        File::options().write(true).open(&from).and_then(|file| file.set_modified(later)).expect("set");
        // What an earlier copy has left, and a link of somebody at the place of it.
        fs::write(unfinished(&to), "h").expect("written");
        assert_eq!(copy(&from, &to), Ok(Some(5)), "its time has changed");
        assert_eq!(fs::read(&to).expect("read"), b"hallo");
        fs::remove_file(&to).expect("removed");
        std::os::unix::fs::symlink(dir.join("else"), unfinished(&to)).expect("made");
        assert_eq!(copy(&from, &to), Ok(Some(5)));
        assert!(!dir.join("else").exists(), "nothing is written through a link");
        let failed = |from: &Path, to: &Path| match copy_one(from, to, &mut [0; 3], &AtomicBool::new(false)) {
            Err(FileError::Failed(error)) => error,
            other => panic!("{other:?}"),
        };
        assert!(failed(&dir.join("none"), &to).contains("none: "));
        fs::create_dir(dir.join("folder")).expect("made");
        assert!(failed(&from, &dir.join("folder")).contains("no file"));
        fs::remove_file(&to).expect("removed");
        let stopped = copy_one(&from, &to, &mut [0; 3], &AtomicBool::new(true));
        assert_eq!(stopped, Err(FileError::Stopped));
        assert_eq!(fs::read_dir(&dir).expect("there").count(), 2, "nothing unfinished stays");
        fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn copies_of_one_file_do_not_hinder_each_other() {
        let dir = std::env::temp_dir().join(format!("weft-ondemand-taken-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("made");
        let from = dir.join("from");
        fs::write(&from, vec![7; 100_000]).expect("written");
        for n in 0..20 {
            let to = dir.join(format!("to {n}"));
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let copied = copy_patiently(&from, &to, &mut [0; 1000], &AtomicBool::new(false));
                        assert!(matches!(copied, Ok(None | Some(100_000))), "{copied:?}");
                    });
                }
            });
            assert_eq!(fs::read(&to).expect("there"), vec![7; 100_000]);
        }
        assert_eq!(fs::read_dir(&dir).expect("there").count(), 21, "nothing unfinished stays");
        fs::remove_dir_all(dir).expect("removed");
    }

    #[test]
    fn a_file_that_grows_is_not_taken_for_whole() {
        let dir = std::env::temp_dir().join(format!("weft-ondemand-grows-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("made");
        let (from, to) = (dir.join("from"), dir.join("to"));
        fs::write(&from, vec![7; 64 << 20]).expect("written");
        let (stop, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let copied = thread::scope(|scope| {
            scope.spawn(|| {
                let mut file = File::options().append(true).open(&from).expect("there");
                while !is_over.load(Ordering::Relaxed) {
                    file.write_all(b"more").expect("written");
                }
            });
            let copied = copy_one(&from, &to, &mut vec![0; 1 << 20], &stop);
            is_over.store(true, Ordering::Relaxed);
            copied
        });
        assert!(
            matches!(&copied, Err(FileError::Failed(error)) if error.contains("has changed")),
            "{copied:?}"
        );
        assert_eq!(fs::read_dir(&dir).expect("there").count(), 1, "nothing unfinished stays");
        fs::remove_dir_all(dir).expect("removed");
    }
}
