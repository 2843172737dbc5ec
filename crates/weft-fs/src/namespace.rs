//! Paths of a file system: found, made, listed and removed. What is kept of them is in `kept_names.rs`.

use crate::caller::{Caller, Shards};
use crate::error::FsError;
use crate::hearing::Hearing;
use crate::kept_names::KeptNames;
use crate::path::{ends_with_dot, is_of_directory, names, text};
use std::rc::Rc;
use std::time::Duration;
use weft_layout::FileLayout;
use weft_types::limits::LISTED_ENTRIES_MAX;
use weft_types::{Attributes, FileKind, InodeNumber};
use weft_wire::files::{
    Answer, AttributeChanges, FileError, HoldMode, Listed, ListedEntry, NameIn, NewInode, Operation,
    RenameMode,
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
    /// Permissions that it does not get, unless the directory has a default access control list.
    pub umask: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// How far a path was followed.
struct Way {
    directory: InodeNumber,
    /// The names that are left, the next one last.
    left: Vec<Vec<u8>>,
    /// Symbolic links that were followed.
    links: usize,
}

impl Way {
    /// The beginning of a path from a directory.
    fn of(path: &[u8], directory: InodeNumber) -> Way {
        let mut left: Vec<Vec<u8>> = names(path).map(<[u8]>::to_vec).collect();
        left.reverse();
        Way { directory, left, links: 0 }
    }
}

/// Names of a file system, as a session sees them. Clones are the same.
pub struct Namespace<S> {
    caller: Caller<S>,
    /// The directory that paths begin in.
    from: InodeNumber,
    /// Whether operations are waited for as long as it takes.
    to_end: bool,
}

impl<S> Clone for Namespace<S> {
    fn clone(&self) -> Self {
        Namespace { caller: self.caller.clone(), from: self.from, to_end: self.to_end }
    }
}

impl<S: Shards> Namespace<S> {
    /// The names that a session sees.
    pub fn new(caller: Caller<S>) -> Namespace<S> {
        Namespace { caller, from: InodeNumber::ROOT, to_end: false }
    }

    /// When a shard was heard from.
    pub(crate) fn hearing(&self, shard: u16) -> Rc<Hearing> {
        self.caller.hearing(shard)
    }

    /// When each shard was heard from that was asked.
    pub(crate) fn hearings(&self) -> Vec<(u16, Rc<Hearing>)> {
        self.caller.hearings()
    }

    /// The shards that were asked, once there are more than this number.
    pub(crate) async fn shards_beyond(&self, count: usize) -> Vec<u16> {
        self.caller.shards_beyond(count).await
    }

    /// The same, where operations are waited for as long as it takes.
    pub(crate) fn to_end(&self) -> Namespace<S> {
        Namespace { caller: self.caller.clone(), from: self.from, to_end: true }
    }

    /// Whether the session is over, as far as is known.
    pub(crate) fn is_over(&self) -> bool {
        self.caller.is_over()
    }

    /// What is answered without asking.
    pub(crate) fn kept(&self) -> &KeptNames {
        self.caller.kept()
    }

    /// How long operations are waited for otherwise.
    pub(crate) fn patience(&self) -> Duration {
        self.caller.patience()
    }

    /// The same, where paths begin in this directory, whatever they begin with: each look at what is in it is
    /// one question then.
    pub fn below(&self, directory: InodeNumber) -> Namespace<S> {
        Namespace { caller: self.caller.clone(), from: directory, to_end: self.to_end }
    }

    /// What a path stands for. Symbolic links on the way are followed; the last one if `follows` says so, or
    /// the path ends with `/` or `.`.
    ///
    /// # Errors
    /// If there is nothing, or the way leads through something that is no directory.
    pub async fn find(&self, path: &[u8], follows: bool) -> Result<Attributes, FsError> {
        let must_be_directory = is_of_directory(path);
        let mut way = Way::of(path, self.from);
        loop {
            let last = self.walk(path, &mut way).await?;
            let found = match last {
                Some(name) => {
                    self.attributes_by(path, Operation::Find(NameIn { directory: way.directory, name }))
                        .await?
                }
                None => self.attributes_by(path, Operation::Attributes(way.directory)).await?,
            };
            if found.kind == FileKind::Symlink && (follows || must_be_directory) {
                self.follow(path, &mut way, found.inode).await?;
                continue;
            }
            return match found.kind == FileKind::Directory || !must_be_directory {
                true => Ok(found),
                false => Err(FsError::Refused { path: text(path), error: FileError::NotDirectory }),
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
        let NewFile { mode, umask, uid, gid } = new;
        self.attributes_by(
            path,
            Operation::Create(at, NewInode { kind, mode, umask, uid, gid, device: 0, target }),
        )
        .await
    }

    /// Attributes of an inode. `path` is what it is called in errors.
    ///
    /// # Errors
    /// If it is gone.
    pub async fn attributes_of(&self, inode: InodeNumber, path: &[u8]) -> Result<Attributes, FsError> {
        self.attributes_by(path, Operation::Attributes(inode)).await
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
        self.attributes_by(path, Operation::Change(inode, changes)).await
    }

    /// Sets how the data of a file without data will lie, or of files that are made in a directory from now
    /// on. `path` is what it is called in errors.
    ///
    /// # Errors
    /// If it is gone, has data or is open, or no file can have the layout.
    pub async fn set_layout(
        &self,
        inode: InodeNumber,
        layout: FileLayout,
        path: &[u8],
    ) -> Result<Attributes, FsError> {
        self.attributes_by(path, Operation::SetLayout(inode, layout.encode())).await
    }

    /// All entries of a directory, without `.` and `..`, in the order of their cookies. Each part of some
    /// hundred is of one moment.
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
        self.attributes_by(path, operation).await
    }

    /// Removes the name of what is no directory.
    ///
    /// # Errors
    /// If there is nothing, or a directory.
    pub async fn unlink(&self, path: &[u8]) -> Result<Attributes, FsError> {
        let at = self.place(path, FileError::Invalid).await?;
        self.attributes_by(path, Operation::Unlink(at)).await
    }

    /// Gives what has one path another one; what had that loses it.
    ///
    /// # Errors
    /// If there is nothing, or it cannot have that path.
    pub async fn rename(&self, from: &[u8], to: &[u8]) -> Result<Attributes, FsError> {
        let old = self.place(from, FileError::Invalid).await?;
        let new = self.place(to, FileError::Invalid).await?;
        self.attributes_by(from, Operation::Rename(old, new, RenameMode::Replace)).await
    }

    /// The directory of a path's last name, and that name; `nameless` is why a path without one is refused.
    async fn place(&self, path: &[u8], nameless: FileError) -> Result<NameIn, FsError> {
        let mut way = Way::of(path, self.from);
        let name = self.walk(path, &mut way).await?.filter(|_| !ends_with_dot(path));
        let name = name.ok_or_else(|| FsError::Refused { path: text(path), error: nameless })?;
        Ok(NameIn { directory: way.directory, name })
    }

    /// Follows a path up to its last name, and returns that name. Returns `None` for the root and for a
    /// path that ends with `..`: then the way has reached the directory itself.
    async fn walk(&self, path: &[u8], way: &mut Way) -> Result<Option<Vec<u8>>, FsError> {
        while let Some(name) = way.left.pop() {
            if name == b".." {
                way.directory = self.parent(way.directory, path).await?;
                continue;
            }
            if way.left.is_empty() {
                return Ok(Some(name));
            }
            let at = NameIn { directory: way.directory, name };
            let found = self.attributes_by(path, Operation::Find(at)).await?;
            match found.kind {
                FileKind::Symlink => self.follow(path, way, found.inode).await?,
                _ => way.directory = found.inode,
            }
        }
        Ok(None)
    }

    /// Goes where a symbolic link leads, from the directory that it is in.
    async fn follow(&self, path: &[u8], way: &mut Way, link: InodeNumber) -> Result<(), FsError> {
        way.links += 1;
        if way.links > LINKS_MAX {
            return Err(FsError::TooManyLinks { path: text(path) });
        }
        let target = match self.ask(path, link, Operation::Target(link)).await? {
            Answer::Bytes(target) => target,
            _ => return Err(FsError::OtherAnswer { shard: link.shard() }),
        };
        if target.first() == Some(&b'/') {
            way.directory = InodeNumber::ROOT;
        }
        way.left.extend(Way::of(&target, self.from).left);
        Ok(())
    }

    async fn parent(&self, directory: InodeNumber, path: &[u8]) -> Result<InodeNumber, FsError> {
        let list = Operation::List { directory, after: 0, limit: 1 };
        match self.ask(path, directory, list).await? {
            Answer::Listed(listed) => Ok(InodeNumber(listed.parent)),
            _ => Err(FsError::OtherAnswer { shard: directory.shard() }),
        }
    }

    /// Carries out an operation that is answered with attributes.
    pub(crate) async fn attributes_by(
        &self,
        path: &[u8],
        operation: Operation,
    ) -> Result<Attributes, FsError> {
        let inode = operation.inode();
        match self.ask(path, inode, operation).await? {
            Answer::Attributes(attributes) => Ok(attributes),
            _ => Err(FsError::OtherAnswer { shard: inode.shard() }),
        }
    }

    /// Has the shard of an inode carry out an operation.
    pub(crate) async fn ask(
        &self,
        path: &[u8],
        inode: InodeNumber,
        operation: Operation,
    ) -> Result<Answer, FsError> {
        let answer = match self.to_end {
            true => self.caller.call_to_end(inode.shard(), operation).await?,
            false => self.caller.call(inode.shard(), operation).await?,
        };
        succeeded(path, answer)
    }

    /// Takes a mode of an inode if nothing that others hold is in the way; none otherwise.
    pub(crate) async fn hold_if_free(
        &self,
        inode: InodeNumber,
        mode: HoldMode,
    ) -> Result<Option<Attributes>, FsError> {
        match self.caller.attempt(inode.shard(), Operation::Hold(inode, mode)).await? {
            Answer::Failed(FileError::Busy) => Ok(None),
            answer => match succeeded(b"", answer)? {
                Answer::Attributes(found) => Ok(Some(found)),
                _ => Err(FsError::OtherAnswer { shard: inode.shard() }),
            },
        }
    }

    /// Waits until nothing is in the way of an operation. May be dropped.
    pub(crate) async fn until_free(&self, inode: InodeNumber, operation: Operation) -> Result<(), FsError> {
        succeeded(b"", self.caller.until_free(inode.shard(), operation).await?).map(drop)
    }
}

/// An answer that is no refusal.
fn succeeded(path: &[u8], answer: Answer) -> Result<Answer, FsError> {
    match answer {
        Answer::Failed(error) => Err(FsError::Refused { path: text(path), error }),
        answer => Ok(answer),
    }
}
