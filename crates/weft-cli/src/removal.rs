//! Removing paths of a file system, with all that is in them.
//!
//! It owns the order: what is in a directory goes first. Each directory is asked by its inode, so a long path
//! costs no more than a short one. A directory is looked up by its name once more before it is entered: it may
//! have been moved, or replaced by a symbolic link, since it was listed.

use crate::progress::Step;
use weft_fs::{DirectoryEntry, FsError, Mount, Namespace, Shards};
use weft_rt::sync::join_all;
use weft_types::{FileKind, InodeNumber};
use weft_wire::files::FileError;

/// Names that are removed at the same time.
const AT_ONCE: usize = 64;

/// Removed names between two reports of progress.
const SAID_EVERY: u64 = 256;

/// A removal that goes on.
pub(crate) struct Removal {
    /// What is in directories goes as well.
    pub(crate) is_recursive: bool,
    /// Nothing is removed.
    pub(crate) is_dry: bool,
    /// Names that are removed, or would be.
    pub(crate) count: u64,
    step: Step,
}

/// A directory that is removed.
struct Level<S> {
    /// How long its path is.
    path_bytes: usize,
    /// The names in it.
    names: Namespace<S>,
    /// The directories in it that are still there.
    directories: Vec<DirectoryEntry>,
}

impl Removal {
    pub(crate) fn new(is_recursive: bool, is_dry: bool) -> Removal {
        Removal { is_recursive, is_dry, count: 0, step: Step::new() }
    }

    /// Removes a path, and before it all that is in it if that is wanted.
    pub(crate) async fn remove(&mut self, mount: &Mount, path: &[u8]) -> Result<(), FsError> {
        // With a slash at its end a path would lead on from a symbolic link.
        let ends = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let (path, names_directory) = (&path[..ends], ends < path.len());
        let found = mount.names().find(path, false).await?;
        if names_directory && found.kind != FileKind::Directory {
            return Err(refused(path, FileError::NotDirectory));
        }
        if found.kind == FileKind::Directory {
            self.empty(mount.names(), found.inode, path).await?;
        }
        if !self.is_dry {
            mount.names().remove(path).await?;
        }
        self.counted(1);
        Ok(())
    }

    /// Removes all that is in a directory. A tree may be deeper than a program's stack.
    async fn empty<S: Shards>(
        &mut self,
        names: &Namespace<S>,
        inode: InodeNumber,
        path: &[u8],
    ) -> Result<(), FsError> {
        let mut path = path.to_vec();
        let (first, files) = Level::open(names, inode, &path).await?;
        if !(self.is_recursive || first.directories.is_empty() && files.is_empty()) {
            return Err(refused(&path, FileError::NotEmpty));
        }
        self.remove_files(&first, &files, &path).await?;
        let mut levels = vec![first];
        while let Some(level) = levels.last_mut() {
            if let Some(entry) = level.directories.pop() {
                // It may have gone elsewhere since it was listed.
                let inode = match level.names.find(&entry.name, false).await {
                    Ok(found) if found.kind == FileKind::Directory => found.inode,
                    Err(error) if error.refusal() == Some(FileError::NotFound) => continue,
                    found => {
                        let error =
                            found.map_or_else(|error| error, |_| refused(b"", FileError::NotDirectory));
                        return Err(error.about(&below(&path, &entry.name)));
                    }
                };
                path = below(&path, &entry.name);
                let (next, files) = Level::open(&level.names, inode, &path).await?;
                self.remove_files(&next, &files, &path).await?;
                levels.push(next);
                continue;
            }
            levels.pop();
            if let Some(above) = levels.last() {
                let name = &path[above.path_bytes + 1..];
                if !self.is_dry {
                    above.names.remove(name).await.map_err(|error| error.about(&path))?;
                }
                self.counted(1);
                path.truncate(above.path_bytes);
            }
        }
        Ok(())
    }

    async fn remove_files<S: Shards>(
        &mut self,
        level: &Level<S>,
        files: &[DirectoryEntry],
        path: &[u8],
    ) -> Result<(), FsError> {
        for some in files.chunks(AT_ONCE) {
            if !self.is_dry {
                let ends = join_all(some.iter().map(|entry| level.names.unlink(&entry.name))).await;
                for (entry, end) in some.iter().zip(ends) {
                    end.map_err(|error| error.about(&below(path, &entry.name)))?;
                }
            }
            self.counted(some.len() as u64);
        }
        Ok(())
    }

    fn counted(&mut self, names: u64) {
        let before = self.count / SAID_EVERY;
        self.count += names;
        if self.count / SAID_EVERY > before {
            let would = if self.is_dry { "found" } else { "removed" };
            self.step.says(&format!("{} names {would}", self.count));
        }
    }
}

/// A directory, and what is in it and no directory.
type Opened<S> = (Level<S>, Vec<DirectoryEntry>);

impl<S: Shards> Level<S> {
    async fn open(above: &Namespace<S>, inode: InodeNumber, path: &[u8]) -> Result<Opened<S>, FsError> {
        let names = above.below(inode);
        let entries = names.list(inode, path).await?;
        let is_directory = |entry: &DirectoryEntry| entry.attributes.kind == FileKind::Directory;
        let (directories, files) = entries.into_iter().partition(is_directory);
        Ok((Level { path_bytes: path.len(), names, directories }, files))
    }
}

fn refused(path: &[u8], error: FileError) -> FsError {
    FsError::Refused { path: String::from_utf8_lossy(path).escape_debug().to_string(), error }
}

fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    [path, b"/", name].concat()
}
