//! A file system of the fabric as what the kernel mounts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest};
use weft_cli::Connection;
use weft_fs::{Files, FsError};
use weft_fuse::{Allocate, Caching, Errno, HowToOpen, Opened, Reply, Seek, Space, Timeouts, Tree};
use weft_rt::{Buf, Instant, now};
use weft_types::limits::FILE_NAME_BYTES_MAX;
use weft_types::{Attributes, BLOCK_SIZE, InodeNumber};
use weft_wire::files::{AttributeChanges, FileError, Listed, NewInode, RenameMode, XattrMode};

/// How old the fabric's word may be of how much room there is.
const SPACE_AGE: Duration = Duration::from_secs(5);

/// Inodes that there may be, as far as anybody asks: space ends before numbers do.
const INODES: u64 = 1 << 40;

/// The files of a mount.
pub(super) struct FilesTree {
    files: Files,
    name: String,
    manager: Rc<Connection>,
    space: RefCell<Option<(Instant, Space)>>,
    /// How often an inode had been changed whose pages the kernel may have, when it was opened.
    revisions: RefCell<BTreeMap<InodeNumber, u64>>,
}

impl FilesTree {
    pub(super) fn new(files: Files, name: &str, manager: Connection) -> FilesTree {
        let (space, revisions) = (RefCell::default(), RefCell::default());
        FilesTree { files, name: name.to_owned(), manager: Rc::new(manager), space, revisions }
    }

    /// The kernel keeps pages of a file from one open to the next, if nobody has changed it since. Before each
    /// read it asks for size and time, unless it may keep these, and drops the pages if they have changed.
    fn opened(&self, inode: InodeNumber, handle: u64) -> Opened {
        let revision = self.files.revision(handle);
        let before = match revision {
            Some(revision) => self.revisions.borrow_mut().insert(inode, revision),
            None => None,
        };
        let caching = if revision.is_some() && before == revision { Caching::Kept } else { Caching::Fresh };
        Opened { handle, caching }
    }

    /// How much room the pool has for the copies of this file system.
    async fn ask_space(&self) -> Option<Space> {
        let show = ApiRequest::FsShow { name: self.name.clone() };
        let Ok(ApiAnswer::FileSystem { file_system, .. }) = self.manager.ask(&show).await else {
            return None;
        };
        let pools = self.manager.ask(&ApiRequest::PoolList {}).await;
        let Ok(ApiAnswer::Pools { pools, .. }) = pools else { return None };
        let pool = pools.into_iter().find(|pool| pool.name == file_system.pool)?;
        let copies = u64::from(file_system.copies.max(1));
        let block = BLOCK_SIZE as u64;
        let blocks = pool.raw_bytes / copies / block;
        let used = pool.used_bytes / copies / block;
        let free = blocks.saturating_sub(used);
        let files = (INODES, INODES);
        Some(Space { blocks, blocks_free: free, blocks_available: free, files: files.0, files_free: files.1 })
    }
}

/// The error number of Linux.
fn errno(error: &FsError) -> Errno {
    let number = match error {
        FsError::Refused { error, .. } => errno_of(*error),
        FsError::TooManyLinks { .. } => libc::ELOOP,
        FsError::Changed { .. } => libc::ESTALE,
        FsError::NoAnswer { .. } => libc::ETIMEDOUT,
        FsError::SessionOver { .. }
        | FsError::NotUnderstood { .. }
        | FsError::Data { .. }
        | FsError::OtherAnswer { .. } => libc::EIO,
    };
    if number == libc::EIO || number == libc::ETIMEDOUT {
        tracing::warn!(error = %error, "a file operation fails");
    }
    Errno(number)
}

fn errno_of(error: FileError) -> i32 {
    match error {
        FileError::NotFound => libc::ENOENT,
        FileError::Exists => libc::EEXIST,
        FileError::NotDirectory => libc::ENOTDIR,
        FileError::IsDirectory => libc::EISDIR,
        FileError::NotEmpty => libc::ENOTEMPTY,
        FileError::NameTooLong => libc::ENAMETOOLONG,
        FileError::Invalid => libc::EINVAL,
        FileError::TooManyLinks => libc::EMLINK,
        FileError::NoXattr => libc::ENODATA,
        FileError::TooLarge => libc::EFBIG,
        FileError::NoSpace => libc::ENOSPC,
        FileError::NotPermitted => libc::EPERM,
        FileError::Stale => libc::ESTALE,
        FileError::OutOfOrder => libc::EIO,
        FileError::Busy => libc::EBUSY,
    }
}

fn reply<T>(outcome: Result<T, FsError>) -> Reply<T> {
    outcome.map_err(|error| errno(&error))
}

impl Tree for FilesTree {
    fn timeouts(&self) -> Timeouts {
        let stays = self.files.stays();
        Timeouts { entry: stays, attributes: stays }
    }

    async fn find(&self, directory: InodeNumber, name: &[u8]) -> Reply<Attributes> {
        match name.len() > FILE_NAME_BYTES_MAX {
            true => Err(Errno(libc::ENAMETOOLONG)),
            false => reply(self.files.find(directory, name).await),
        }
    }

    async fn attributes(&self, inode: InodeNumber) -> Reply<Attributes> {
        reply(self.files.attributes(inode).await)
    }

    async fn change(&self, inode: InodeNumber, changes: AttributeChanges) -> Reply<Attributes> {
        reply(self.files.change(inode, changes).await)
    }

    async fn target(&self, inode: InodeNumber) -> Reply<Vec<u8>> {
        reply(self.files.target(inode).await)
    }

    async fn make(&self, directory: InodeNumber, name: &[u8], new: NewInode) -> Reply<Attributes> {
        reply(self.files.make(directory, name, new).await)
    }

    async fn create(
        &self,
        directory: InodeNumber,
        name: &[u8],
        new: NewInode,
        how: HowToOpen,
    ) -> Reply<(Attributes, Opened)> {
        let (made, handle) = reply(self.files.create(directory, name, new, how.appends).await)?;
        Ok((made, self.opened(made.inode, handle)))
    }

    async fn create_unnamed(
        &self,
        directory: InodeNumber,
        new: NewInode,
        how: HowToOpen,
    ) -> Reply<(Attributes, Opened)> {
        let (made, handle) = reply(self.files.create_unnamed(directory, new, how.appends).await)?;
        Ok((made, self.opened(made.inode, handle)))
    }

    async fn link(&self, inode: InodeNumber, directory: InodeNumber, name: &[u8]) -> Reply<Attributes> {
        reply(self.files.link(inode, directory, name).await)
    }

    async fn unlink(&self, directory: InodeNumber, name: &[u8]) -> Reply<()> {
        reply(self.files.unlink(directory, name).await)
    }

    async fn remove_directory(&self, directory: InodeNumber, name: &[u8]) -> Reply<()> {
        reply(self.files.remove_directory(directory, name).await)
    }

    async fn rename(
        &self,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Reply<()> {
        reply(self.files.rename(from, to, mode).await)
    }

    async fn open(&self, inode: InodeNumber, how: HowToOpen) -> Reply<Opened> {
        let how = weft_fs::HowToOpen { writes: how.writes, truncates: how.truncates, appends: how.appends };
        reply(self.files.open(inode, how).await).map(|handle| self.opened(inode, handle))
    }

    async fn read(&self, _: InodeNumber, handle: u64, offset: u64, length: u32) -> Reply<Vec<Buf>> {
        reply(self.files.read(handle, offset, length.into()).await)
    }

    async fn write(&self, _: InodeNumber, handle: u64, offset: u64, data: Buf) -> Reply<u32> {
        let length = data.len() as u32;
        reply(self.files.write(handle, offset, vec![data]).await)?;
        Ok(length)
    }

    async fn flush(&self, _: InodeNumber, handle: u64) -> Reply<()> {
        reply(self.files.flush(handle).await)
    }

    async fn sync(&self, inode: InodeNumber, _data_only: bool) -> Reply<()> {
        reply(self.files.sync(inode).await)
    }

    async fn release(&self, _: InodeNumber, handle: u64) {
        self.files.release(handle).await;
    }

    async fn sync_all(&self) -> Reply<()> {
        reply(self.files.sync_all().await)
    }

    async fn list(&self, directory: InodeNumber, after: u64, limit: u32) -> Reply<Listed> {
        match self.files.list(directory, after, limit).await {
            // A directory that was removed while it is open has nothing in it.
            Err(FsError::Refused { error: FileError::Stale, .. }) => {
                Ok(Listed { parent: directory.0, entries: Vec::new(), is_end: true })
            }
            listed => reply(listed),
        }
    }

    async fn xattr(&self, inode: InodeNumber, name: &[u8]) -> Reply<Vec<u8>> {
        reply(self.files.xattr(inode, name).await)
    }

    async fn xattr_names(&self, inode: InodeNumber) -> Reply<Vec<Vec<u8>>> {
        reply(self.files.xattr_names(inode).await)
    }

    async fn set_xattr(&self, inode: InodeNumber, name: &[u8], value: &[u8], mode: XattrMode) -> Reply<()> {
        reply(self.files.set_xattr(inode, name, value.to_vec(), mode).await)
    }

    async fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Reply<()> {
        reply(self.files.remove_xattr(inode, name).await)
    }

    async fn space(&self) -> Reply<Space> {
        let known = *self.space.borrow();
        if let Some((at, space)) = known
            && at.elapsed() < SPACE_AGE
        {
            return Ok(space);
        }
        let space = self.ask_space().await.or(known.map(|(_, space)| space)).unwrap_or_default();
        self.space.replace(Some((now(), space)));
        Ok(space)
    }

    async fn allocate(
        &self,
        _: InodeNumber,
        handle: u64,
        how: Allocate,
        offset: u64,
        length: u64,
    ) -> Reply<()> {
        let end = offset.checked_add(length).ok_or(Errno(libc::EFBIG))?;
        match how {
            // Space is taken when data is written: nothing is set aside.
            Allocate::KeepSize => Ok(()),
            Allocate::Extend => reply(self.files.extend(handle, end).await),
            Allocate::PunchHole | Allocate::ZeroRangeKeepSize => {
                reply(self.files.zero(handle, offset, length).await)
            }
            Allocate::ZeroRange => {
                reply(self.files.zero(handle, offset, length).await)?;
                reply(self.files.extend(handle, end).await)
            }
        }
    }

    async fn seek(&self, _: InodeNumber, handle: u64, offset: u64, what: Seek) -> Reply<u64> {
        let found = reply(self.files.seek(handle, offset, what == Seek::Data).await)?;
        found.ok_or(Errno(libc::ENXIO))
    }

    fn forget(&self, inode: InodeNumber, _: u64) {
        self.revisions.borrow_mut().remove(&inode);
    }
}
