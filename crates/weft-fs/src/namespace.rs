//! Paths of a file system: found, made, listed and removed. Every look asks the shard; nothing is kept.

use crate::caller::{Caller, Shards};
use crate::error::FsError;
use crate::path::{names, text};
use weft_types::limits::LISTED_ENTRIES_MAX;
use weft_types::{Attributes, FileKind, InodeNumber};
use weft_wire::files::{
    Answer, AttributeChanges, FileError, Listed, ListedEntry, NameIn, NewInode, Operation, RenameMode,
};

/// Symbolic links that are followed on the way to one file, as Linux does.
const LINKS_MAX: usize = 40;

/// An entry of a directory.
pub type DirectoryEntry = ListedEntry;

/// Who makes a file, and with which permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Its permissions.
    pub mode: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Where the last name of a path is.
struct Last {
    directory: InodeNumber,
    /// The name; `None` of the root and of a path that ends with `..`: that is the directory itself.
    name: Option<Vec<u8>>,
}

/// Names of a file system, as a session sees them. Clones are the same.
pub struct Namespace<S>(Caller<S>);

impl<S> Clone for Namespace<S> {
    fn clone(&self) -> Self {
        Namespace(self.0.clone())
    }
}

impl<S: Shards> Namespace<S> {
    /// The names that a session sees.
    pub fn new(caller: Caller<S>) -> Namespace<S> {
        Namespace(caller)
    }

    /// What a path stands for. Symbolic links on the way are followed; the last one if `follows` says so.
    ///
    /// # Errors
    /// If there is nothing, or the way leads through something that is no directory.
    pub async fn find(&self, path: &[u8], follows: bool) -> Result<Attributes, FsError> {
        let mut links = 0;
        let mut path = path.to_vec();
        loop {
            let last = self.walk(&path, &mut links).await?;
            let found = self.at(&last, &path).await?;
            if !follows || found.kind != FileKind::Symlink {
                return Ok(found);
            }
            self.count_link(&path, &mut links)?;
            let target = self.target(found.inode, &path).await?;
            // It leads on from where the link is.
            path = match target.first() {
                Some(b'/') => target,
                _ => [path[..path.len() - tail(&path)].to_vec(), target].concat(),
            };
        }
    }

    /// Makes a file. Those on the way have to be there.
    ///
    /// # Errors
    /// If the name is taken, or there is no such directory.
    pub async fn create(&self, path: &[u8], new: NewFile) -> Result<Attributes, FsError> {
        self.make(path, FileKind::Regular, new, Vec::new()).await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Namespace::create`].
    pub async fn make_directory(&self, path: &[u8], new: NewFile) -> Result<Attributes, FsError> {
        self.make(path, FileKind::Directory, new, Vec::new()).await
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`Namespace::create`], and if the target is empty or too long.
    pub async fn symlink(&self, path: &[u8], target: Vec<u8>, new: NewFile) -> Result<Attributes, FsError> {
        self.make(path, FileKind::Symlink, new, target).await
    }

    async fn make(
        &self,
        path: &[u8],
        kind: FileKind,
        new: NewFile,
        target: Vec<u8>,
    ) -> Result<Attributes, FsError> {
        let at = self.place(path, FileError::Exists).await?;
        let NewFile { mode, uid, gid } = new;
        self.attributes(path, Operation::Create(at, NewInode { kind, mode, uid, gid, device: 0, target }))
            .await
    }

    /// Changes attributes of an inode. `path` is what it is called in errors.
    ///
    /// # Errors
    /// If it is gone, or cannot have them.
    pub async fn change(
        &self,
        inode: InodeNumber,
        changes: AttributeChanges,
        path: &[u8],
    ) -> Result<Attributes, FsError> {
        self.attributes(path, Operation::Change(inode, changes)).await
    }

    /// All entries of a directory, without `.` and `..`, in the order of their cookies. Each part of some hundred
    /// is of one moment.
    ///
    /// # Errors
    /// If it is gone, or no directory.
    pub async fn list(&self, directory: InodeNumber, path: &[u8]) -> Result<Vec<DirectoryEntry>, FsError> {
        let (mut entries, mut after): (Vec<DirectoryEntry>, u64) = (Vec::new(), 0);
        loop {
            let list = Operation::List { directory, after, limit: LISTED_ENTRIES_MAX };
            let Answer::Listed(Listed { entries: some, is_end, .. }) =
                self.ask(path, directory, list).await?
            else {
                return Err(FsError::OtherAnswer { shard: directory.shard() });
            };
            after = some.last().map_or(after, |last| last.cookie);
            entries.extend(some);
            if is_end {
                return Ok(entries);
            }
        }
    }

    /// Removes the name of a file, or an empty directory.
    ///
    /// # Errors
    /// If there is nothing, or a directory has entries.
    pub async fn remove(&self, path: &[u8]) -> Result<Attributes, FsError> {
        let found = self.find(path, false).await?;
        let at = self.place(path, FileError::Invalid).await?;
        let operation = match found.kind {
            FileKind::Directory => Operation::RemoveDirectory(at),
            _ => Operation::Unlink(at),
        };
        self.attributes(path, operation).await
    }

    /// Gives what has one path another one; what had that loses it.
    ///
    /// # Errors
    /// If there is nothing, or it cannot have that path.
    pub async fn rename(&self, from: &[u8], to: &[u8]) -> Result<Attributes, FsError> {
        let old = self.place(from, FileError::Invalid).await?;
        let new = self.place(to, FileError::Invalid).await?;
        self.attributes(from, Operation::Rename(old, new, RenameMode::Replace)).await
    }

    /// The directory of a path's last name, and that name.
    async fn place(&self, path: &[u8], nameless: FileError) -> Result<NameIn, FsError> {
        let Last { directory, name } = self.walk(path, &mut 0).await?;
        let name = name.ok_or_else(|| FsError::Refused { path: text(path), error: nameless })?;
        Ok(NameIn { directory, name })
    }

    /// Follows a path up to its last name.
    async fn walk(&self, path: &[u8], links: &mut usize) -> Result<Last, FsError> {
        let mut left: Vec<Vec<u8>> = names(path).map(<[u8]>::to_vec).collect();
        left.reverse();
        let mut directory = InodeNumber::ROOT;
        while let Some(name) = left.pop() {
            if name == b".." {
                directory = self.parent(directory, path).await?;
                continue;
            }
            if left.is_empty() {
                return Ok(Last { directory, name: Some(name) });
            }
            let at = NameIn { directory, name };
            let found = self.attributes(path, Operation::Find(at)).await?;
            match found.kind {
                FileKind::Symlink => {
                    self.count_link(path, links)?;
                    let target = self.target(found.inode, path).await?;
                    if target.first() == Some(&b'/') {
                        directory = InodeNumber::ROOT;
                    }
                    left.extend(names(&target).map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter().rev());
                }
                _ => directory = found.inode,
            }
        }
        Ok(Last { directory, name: None })
    }

    async fn at(&self, last: &Last, path: &[u8]) -> Result<Attributes, FsError> {
        let operation = match &last.name {
            Some(name) => Operation::Find(NameIn { directory: last.directory, name: name.clone() }),
            None => Operation::Attributes(last.directory),
        };
        self.attributes(path, operation).await
    }

    async fn parent(&self, directory: InodeNumber, path: &[u8]) -> Result<InodeNumber, FsError> {
        let list = Operation::List { directory, after: 0, limit: 1 };
        match self.ask(path, directory, list).await? {
            Answer::Listed(listed) => Ok(InodeNumber(listed.parent)),
            _ => Err(FsError::OtherAnswer { shard: directory.shard() }),
        }
    }

    async fn target(&self, inode: InodeNumber, path: &[u8]) -> Result<Vec<u8>, FsError> {
        match self.ask(path, inode, Operation::Target(inode)).await? {
            Answer::Bytes(target) => Ok(target),
            _ => Err(FsError::OtherAnswer { shard: inode.shard() }),
        }
    }

    fn count_link(&self, path: &[u8], links: &mut usize) -> Result<(), FsError> {
        *links += 1;
        if *links <= LINKS_MAX { Ok(()) } else { Err(FsError::TooManyLinks { path: text(path) }) }
    }

    async fn attributes(&self, path: &[u8], operation: Operation) -> Result<Attributes, FsError> {
        let inode = operation.inode();
        match self.ask(path, inode, operation).await? {
            Answer::Attributes(attributes) => Ok(attributes),
            _ => Err(FsError::OtherAnswer { shard: inode.shard() }),
        }
    }

    async fn ask(&self, path: &[u8], inode: InodeNumber, operation: Operation) -> Result<Answer, FsError> {
        match self.0.call(inode.shard(), operation).await? {
            Answer::Failed(error) => Err(FsError::Refused { path: text(path), error }),
            answer => Ok(answer),
        }
    }
}

/// Bytes of a path's last name and what stands behind it.
fn tail(path: &[u8]) -> usize {
    let trimmed = path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count();
    path.len() - path[..trimmed].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1)
}
