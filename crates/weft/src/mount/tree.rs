//! A file system of the fabric as what the kernel mounts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, PoolInfo};
use weft_cli::Connection;
use weft_fs::{Files, FsError, LastingFiles};
use weft_fuse::{
    Allocate, Caching, Durable, Errno, FilePlace, HowToOpen, Opened, Reply, Seek, Space, Timeouts, Tree,
    WritePlace,
};
use weft_rt::{Buf, Instant, now};
use weft_types::limits::FILE_NAME_BYTES_MAX;
use weft_types::{Attributes, BLOCK_SIZE, CapacityLevel, InodeNumber};
use weft_wire::files::{
    AttributeChanges, FileError, FileLock, Listed, LockOwner, NewInode, RenameMode, XattrMode,
};

/// How old the manager's answer may be about how much space there is.
const SPACE_AGE: Duration = Duration::from_secs(5);

/// The mount keeps back at most one part in so many of the free space, until it asks for the free space
/// again: other clients write, too.
const KEPT_BACK_SHARE: u64 = 4;

/// Inodes that there may be, as far as anybody asks: space ends before numbers do.
const INODES: u64 = 1 << 40;

/// The files of a mount.
pub(super) struct FilesTree {
    files: Rc<LastingFiles>,
    name: String,
    manager: Rc<Connection>,
    space: RefCell<Option<(Instant, Space)>>,
    /// For each inode of which the kernel may have pages, its revision when it was opened.
    revisions: RefCell<BTreeMap<InodeNumber, u64>>,
}

impl FilesTree {
    pub(super) fn new(files: Rc<LastingFiles>, name: &str, manager: Connection) -> FilesTree {
        let (space, revisions) = (RefCell::default(), RefCell::default());
        FilesTree { files, name: name.to_owned(), manager: Rc::new(manager), space, revisions }
    }

    /// The kernel keeps pages of a file from one open to the next, if nobody has changed it since. Before
    /// each read it asks for size and time, unless it may keep these, and drops the pages if they have
    /// changed.
    async fn opened(&self, inode: InodeNumber, handle: u64, is_direct: bool) -> Reply<Opened> {
        if !is_direct && let Err(error) = self.of(handle)?.keep_pages(handle).await {
            self.release(inode, handle).await;
            return reply(Err(error));
        }
        let revision = self.files.newest().revision(handle);
        let before = match revision {
            Some(revision) => self.revisions.borrow_mut().insert(inode, revision),
            None => None,
        };
        let caching = if revision.is_some() && before == revision { Caching::Kept } else { Caching::Fresh };
        Ok(Opened { handle, caching })
    }

    /// Runs work that changes nothing. If its session ends before it is done, runs it again in a new
    /// session.
    async fn look<T>(&self, work: impl AsyncFn(Files) -> Result<T, FsError>) -> Reply<T> {
        match work(reply(self.files.files().await)?).await {
            Err(FsError::SessionOver { .. }) => reply(work(reply(self.files.files().await)?).await),
            done => reply(done),
        }
    }

    /// Runs work that changes something, once: if its session ends before it is done, it may have
    /// happened.
    async fn change_by<T>(&self, work: impl AsyncFnOnce(Files) -> Result<T, FsError>) -> Reply<T> {
        reply(work(reply(self.files.files().await)?).await)
    }

    /// The files in whose session a handle was opened.
    fn of(&self, handle: u64) -> Reply<Files> {
        reply(self.files.of_handle(handle))
    }

    /// Bytes that may be kept back until it is asked again: a part of what is free; none if the pool is not
    /// far from full. `None` if no manager answers.
    pub(super) async fn room_to_keep_back(&self) -> Option<u64> {
        let (pool, copies) = self.ask_pool().await?;
        let free = pool.raw_bytes.saturating_sub(pool.used_bytes) / copies;
        Some(if pool.level == CapacityLevel::Normal { free / KEPT_BACK_SHARE } else { 0 })
    }

    /// The pool of this file system as its manager knows it, and copies of each block in it.
    async fn ask_pool(&self) -> Option<(PoolInfo, u64)> {
        let show = ApiRequest::FsShow { name: self.name.clone() };
        let Ok(ApiAnswer::FileSystem { file_system, .. }) = self.manager.ask(&show).await else {
            return None;
        };
        let pools = self.manager.ask(&ApiRequest::PoolList {}).await;
        let Ok(ApiAnswer::Pools { pools, .. }) = pools else { return None };
        let pool = pools.into_iter().find(|pool| pool.name == file_system.pool)?;
        Some((pool, u64::from(file_system.copies.max(1))))
    }

    /// How much room the pool has for the copies of this file system.
    async fn ask_space(&self) -> Option<Space> {
        let (pool, copies) = self.ask_pool().await?;
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
        | FsError::CheckForgotten { .. }
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
        FileError::Locked => libc::EAGAIN,
        FileError::Deadlock => libc::EDEADLK,
        FileError::NoLocks => libc::ENOLCK,
        FileError::OverQuota => libc::EDQUOT,
        FileError::OtherProject => libc::EXDEV,
    }
}

fn reply<T>(outcome: Result<T, FsError>) -> Reply<T> {
    outcome.map_err(|error| errno(&error))
}

impl Tree for FilesTree {
    fn timeouts(&self) -> Timeouts {
        let stays = self.files.newest().stays();
        Timeouts { entry: stays, attributes: stays }
    }

    async fn find(&self, directory: InodeNumber, name: &[u8]) -> Reply<Attributes> {
        match name.len() > FILE_NAME_BYTES_MAX {
            true => Err(Errno(libc::ENAMETOOLONG)),
            false => self.look(async |files| files.find(directory, name).await).await,
        }
    }

    async fn attributes(&self, inode: InodeNumber) -> Reply<Attributes> {
        self.look(async |files| files.attributes(inode).await).await
    }

    async fn permissions(&self, inode: InodeNumber) -> Reply<u16> {
        self.look(async |files| files.permissions(inode).await).await
    }

    async fn change(
        &self,
        inode: InodeNumber,
        handle: Option<u64>,
        changes: AttributeChanges,
    ) -> Reply<Attributes> {
        match handle {
            Some(handle) => reply(self.of(handle)?.change(inode, changes).await),
            None => self.change_by(async |files| files.change(inode, changes).await).await,
        }
    }

    async fn target(&self, inode: InodeNumber) -> Reply<Vec<u8>> {
        self.look(async |files| files.target(inode).await).await
    }

    async fn make(&self, directory: InodeNumber, name: &[u8], new: NewInode) -> Reply<Attributes> {
        self.change_by(async |files| files.make(directory, name, new).await).await
    }

    async fn create(
        &self,
        directory: InodeNumber,
        name: &[u8],
        new: NewInode,
        how: HowToOpen,
    ) -> Reply<(Attributes, Opened)> {
        let create = async |files: Files| files.create(directory, name, new, how.appends).await;
        let (made, handle) = self.change_by(create).await?;
        Ok((made, self.opened(made.inode, handle, how.is_direct).await?))
    }

    async fn create_unnamed(
        &self,
        directory: InodeNumber,
        new: NewInode,
        how: HowToOpen,
    ) -> Reply<(Attributes, Opened)> {
        let create = async |files: Files| files.create_unnamed(directory, new, how.appends).await;
        let (made, handle) = self.change_by(create).await?;
        Ok((made, self.opened(made.inode, handle, how.is_direct).await?))
    }

    async fn link(&self, inode: InodeNumber, directory: InodeNumber, name: &[u8]) -> Reply<Attributes> {
        self.change_by(async |files| files.link(inode, directory, name).await).await
    }

    async fn unlink(&self, directory: InodeNumber, name: &[u8]) -> Reply<()> {
        self.change_by(async |files| files.unlink(directory, name).await).await
    }

    async fn remove_directory(&self, directory: InodeNumber, name: &[u8]) -> Reply<()> {
        self.change_by(async |files| files.remove_directory(directory, name).await).await
    }

    async fn rename(
        &self,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> Reply<()> {
        self.change_by(async |files| files.rename(from, to, mode).await).await
    }

    async fn open(&self, inode: InodeNumber, how: HowToOpen) -> Reply<Opened> {
        if how.writes && self.files.has_former(inode).await {
            // The kernel would write by this handle what was stored through mappings of the former ones.
            tracing::warn!(%inode, "a file is open from a session that is over: it is not opened to write");
            return Err(Errno(libc::EIO));
        }
        let HowToOpen { writes, truncates, appends, is_direct, .. } = how;
        let how = weft_fs::HowToOpen { writes, truncates, appends };
        let handle = match truncates {
            true => self.change_by(async |files| files.open(inode, how).await).await?,
            false => self.look(async |files| files.open(inode, how).await).await?,
        };
        self.opened(inode, handle, is_direct).await
    }

    async fn read(&self, _: InodeNumber, handle: u64, offset: u64, length: u32) -> Reply<Vec<Buf>> {
        reply(self.of(handle)?.read(handle, offset, length.into()).await)
    }

    async fn write(
        &self,
        _: InodeNumber,
        handle: u64,
        WritePlace { offset, is_of_pages }: WritePlace,
        data: Buf,
        when: Durable,
    ) -> Reply<u32> {
        let (length, files) = (data.len() as u32, self.of(handle)?);
        match when {
            _ if is_of_pages => reply(files.write_at(handle, offset, vec![data]).await)?,
            Durable::Later => reply(files.write(handle, offset, vec![data]).await)?,
            Durable::Data => reply(files.write_through(handle, offset, vec![data]).await)?,
            Durable::WithSize => {
                reply(files.write_through(handle, offset, vec![data]).await)?;
                reply(files.sync_handle(handle).await)?;
            }
        }
        Ok(length)
    }

    async fn copy(&self, from: FilePlace, to: FilePlace, length: u64) -> Reply<u64> {
        let (files, target) = (self.of(from.handle)?, self.of(to.handle)?);
        if files.session_id() != target.session_id() {
            // One of them is of a session that is over.
            return Err(Errno(libc::EIO));
        }
        let place = |at: FilePlace| weft_fs::FilePlace { handle: at.handle, offset: at.offset };
        reply(files.copy(place(from), place(to), length).await)
    }

    async fn flush(&self, _: InodeNumber, handle: u64, owner: LockOwner) -> Reply<()> {
        let files = self.of(handle)?;
        // With its locks goes what was written under them: that may fail, too.
        let unlocked = files.unlock_all(handle, owner).await;
        reply(files.flush(handle).await.and(unlocked))
    }

    async fn lock(&self, _: InodeNumber, handle: u64, lock: FileLock) -> Reply<()> {
        reply(self.of(handle)?.lock(handle, lock).await)
    }

    async fn until_unlocked(&self, _: InodeNumber, handle: u64, lock: FileLock) -> Reply<()> {
        reply(self.of(handle)?.until_unlocked(handle, lock).await)
    }

    async fn unlock(&self, _: InodeNumber, handle: u64, owner: LockOwner, range: (u64, u64)) -> Reply<()> {
        reply(self.of(handle)?.unlock(handle, owner, range).await)
    }

    async fn find_lock(&self, _: InodeNumber, handle: u64, lock: FileLock) -> Reply<Option<FileLock>> {
        reply(self.of(handle)?.find_lock(handle, lock).await)
    }

    async fn sync(&self, inode: InodeNumber, handle: u64, _data_only: bool) -> Reply<()> {
        match (handle, inode) {
            // The whole file system: `sync` does not come here, and `weft umount` asks for it.
            (0, InodeNumber::ROOT) => self.sync_all().await,
            (0, _) => self.look(async |files| files.sync(inode).await).await,
            // What a session has lost with its end, a later one does not make good.
            _ => reply(self.of(handle)?.sync_handle(handle).await),
        }
    }

    async fn release(&self, _: InodeNumber, handle: u64) {
        if let Ok(files) = self.files.of_handle(handle) {
            files.release(handle).await;
        }
    }

    async fn sync_all(&self) -> Reply<()> {
        reply(self.files.newest().sync_all().await)
    }

    async fn list(&self, directory: InodeNumber, after: u64, limit: u32) -> Reply<Listed> {
        let listed = async |files: Files| match files.list(directory, after, limit).await {
            // A directory that was removed while it is open has nothing in it.
            Err(FsError::Refused { error: FileError::Stale, .. }) => {
                Ok(Listed { parent: directory.0, entries: Vec::new(), is_end: true })
            }
            listed => listed,
        };
        self.look(listed).await
    }

    async fn xattr(&self, inode: InodeNumber, name: &[u8]) -> Reply<Vec<u8>> {
        self.look(async |files| files.xattr(inode, name).await).await
    }

    async fn xattr_names(&self, inode: InodeNumber) -> Reply<Vec<Vec<u8>>> {
        self.look(async |files| files.xattr_names(inode).await).await
    }

    async fn set_xattr(&self, inode: InodeNumber, name: &[u8], value: &[u8], mode: XattrMode) -> Reply<()> {
        self.change_by(async |files| files.set_xattr(inode, name, value.to_vec(), mode).await).await
    }

    async fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> Reply<()> {
        self.change_by(async |files| files.remove_xattr(inode, name).await).await
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
        let files = self.of(handle)?;
        match how {
            // Space is taken when data is written: nothing is set aside.
            Allocate::KeepSize => Ok(()),
            Allocate::Extend => reply(files.extend(handle, end).await),
            Allocate::PunchHole | Allocate::ZeroRangeKeepSize => {
                reply(files.zero(handle, offset, length).await)
            }
            Allocate::ZeroRange => {
                reply(files.zero(handle, offset, length).await)?;
                reply(files.extend(handle, end).await)
            }
        }
    }

    async fn seek(&self, _: InodeNumber, handle: u64, offset: u64, what: Seek) -> Reply<u64> {
        let found = reply(self.of(handle)?.seek(handle, offset, what == Seek::Data).await)?;
        found.ok_or(Errno(libc::ENXIO))
    }

    fn forget(&self, inode: InodeNumber, _: u64) {
        self.revisions.borrow_mut().remove(&inode);
    }
}
