//! What a copy consists of, found on one host: files, folders and links below the sources.

use super::message::{CopyPath, Entry};
use super::on_host::Work;
use crate::error::CliError;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, lchown, symlink};
use std::path::{Path, PathBuf};

/// Entries of a line.
const LINE: usize = 1000;

struct Lister<'a> {
    work: &'a Work<'a>,
    waiting: Vec<Entry>,
}

/// Lists what is below the sources, and makes its folders and links below the target. A source goes to the
/// target under its own name. If its path ends with a slash, its contents go there instead.
pub(super) fn list(work: &Work<'_>, sources: &[CopyPath], target: &Path) -> Result<(), CliError> {
    fs::create_dir_all(target).map_err(CliError::file("create the folder", target))?;
    let mut lister = Lister { work, waiting: Vec::new() };
    for CopyPath(source) in sources {
        work.check()?;
        let is_contents = source.as_os_str().as_bytes().ends_with(b"/");
        let to = match (source.file_name(), is_contents) {
            (_, true) | (None, _) => target.to_owned(),
            (Some(name), false) => target.join(name),
        };
        if target.starts_with(source) {
            let what = format!("{} cannot be copied into itself", CopyPath::shown(source));
            lister.push(Entry::Error { what });
            continue;
        }
        // A link with a slash behind it is the folder that it names.
        lister.take(source, &to)?;
    }
    lister.flush();
    Ok(())
}

impl Lister<'_> {
    fn push(&mut self, entry: Entry) {
        self.waiting.push(entry);
        if self.waiting.len() == LINE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let entries = std::mem::take(&mut self.waiting);
        if !entries.is_empty() {
            self.work
                .tell(&format!("entries {}", serde_json::to_string(&entries).expect("entries serialise")));
        }
    }

    /// Takes a source and all below it, without recursion: trees may be deep.
    fn take(&mut self, source: &Path, target: &Path) -> Result<(), CliError> {
        let mut waiting = vec![(source.to_owned(), target.to_owned())];
        while let Some((from, to)) = waiting.pop() {
            self.work.check()?;
            match self.take_one(&from, &to) {
                Ok(below) => waiting.extend(below),
                Err(error) => {
                    self.push(Entry::Error { what: format!("{}: {error}", CopyPath::shown(&from)) });
                }
            }
        }
        Ok(())
    }

    fn take_one(&mut self, from: &Path, to: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
        let found = fs::symlink_metadata(from)?;
        if found.is_dir() {
            // Files are put in before it gets its own mode.
            match DirBuilder::new().mode(0o700).create(to) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && to.is_dir() => {}
                made => made?,
            }
            self.push(Entry::Folder { from: CopyPath(from.to_owned()), to: CopyPath(to.to_owned()) });
            let below = fs::read_dir(from)?.map(|entry| {
                let name = entry?.file_name();
                Ok((from.join(&name), to.join(&name)))
            });
            return below.collect();
        }
        if found.is_symlink() {
            let names = fs::read_link(from)?;
            match symlink(&names, to) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => replace_link(&names, to)?,
                made => made?,
            }
            // Only root may give links away.
            match lchown(to, Some(found.uid()), Some(found.gid())) {
                Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
                _ => {}
            }
            self.push(Entry::Link {});
        } else if found.is_file() {
            let (from, to) = (CopyPath(from.to_owned()), CopyPath(to.to_owned()));
            self.push(Entry::File { from, to, bytes: found.len() });
        } else {
            return Err(io::Error::other("it is neither file, folder nor symbolic link"));
        }
        Ok(Vec::new())
    }
}

/// Has a link that is there name something else.
fn replace_link(names: &Path, at: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(at)?;
    if !found.is_symlink() {
        let at = CopyPath::shown(at);
        return Err(io::Error::other(format!("{at} is there, and no symbolic link")));
    }
    if fs::read_link(at)? == names {
        return Ok(());
    }
    fs::remove_file(at)?;
    symlink(names, at)
}

/// The name under which a file is copied before it is whole: no longer than its own may be, and always the
/// same.
pub(super) fn unfinished(to: &Path) -> PathBuf {
    let name = to.file_name().unwrap_or(OsStr::new(""));
    // FNV-1a, 64 bits (Fowler, Noll, Vo): it has to be the same in every run.
    let hash = name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    to.with_file_name(format!(".weft-copy-{hash:016x}"))
}
