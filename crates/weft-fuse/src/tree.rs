//! What a mount shows: the trait that a file system implements, and the words of its operations.
//!
//! A [`Session`](crate::Session) calls it for each request of the kernel, many at once, on one thread. The
//! kernel checks permissions (`default_permissions`), holds the page cache and serialises what changes
//! the names of one directory.

use std::future::Future;
use std::time::Duration;
use weft_rt::Buf;
use weft_types::{Attributes, InodeNumber};
use weft_wire::files::{AttributeChanges, FileLock, Listed, LockOwner, NewInode, RenameMode, XattrMode};

/// Why an operation failed: an error number of Linux, positive.
///
/// `ENOSYS` makes the kernel never ask for that operation again while the file system is mounted: answer
/// `EOPNOTSUPP` where only this call cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// An operation's outcome.
pub type Reply<T> = Result<T, Errno>;

/// How long the kernel may answer from its caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// That a name leads to an inode, or to no inode.
    pub entry: Duration,
    /// The attributes of an inode.
    pub attributes: Duration,
}

impl Timeouts {
    /// The shorter of both, each.
    pub(crate) fn shorter(self, other: Timeouts) -> Timeouts {
        Timeouts { entry: self.entry.min(other.entry), attributes: self.attributes.min(other.attributes) }
    }
}

impl Default for Timeouts {
    /// A second each.
    fn default() -> Timeouts {
        Timeouts { entry: Duration::from_secs(1), attributes: Duration::from_secs(1) }
    }
}

/// What the kernel does with the data of a file that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Caches pages, and keeps those of earlier opens (`FOPEN_KEEP_CACHE`).
    Kept,
    /// Caches pages, and drops those of earlier opens first.
    Fresh,
    /// Caches nothing: each read and write is one of the tree (`FOPEN_DIRECT_IO`), and writes of one file may
    /// come at the same time (`FOPEN_PARALLEL_DIRECT_WRITES`). Opens with `O_DIRECT` are like this
    /// whatever the tree answers.
    Direct,
}

/// A file that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The tree's number for it, which comes with each operation until it is released.
    pub handle: u64,
    /// What the kernel does with its data.
    pub caching: Caching,
}

/// How a file is to be opened. The kernel has checked permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HowToOpen {
    /// It will be read.
    pub reads: bool,
    /// It will be written.
    pub writes: bool,
    /// With `O_APPEND`. Writes still come with offsets: the kernel takes the end from the attributes.
    pub appends: bool,
    /// Its contents are removed by the open (`O_TRUNC`): the tree does that.
    pub truncates: bool,
    /// With `O_DIRECT`: the kernel keeps no pages of what is read and written by it.
    pub is_direct: bool,
}

/// What an allocation does to a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Allocates, and makes the file as long as the range's end (`fallocate` with mode 0).
    Extend,
    /// Allocates; the size stays (`FALLOC_FL_KEEP_SIZE`).
    KeepSize,
    /// Gives the space back, so that zeroes are read; the size stays (`FALLOC_FL_PUNCH_HOLE`).
    PunchHole,
    /// Makes zeroes of it, and the file as long as the range's end (`FALLOC_FL_ZERO_RANGE`).
    ZeroRange,
    /// Makes zeroes of it; the size stays.
    ZeroRangeKeepSize,
}

/// What to look for in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is no hole (`SEEK_DATA`); `ENXIO` if there is none.
    Data,
    /// The next hole, or the end of the file (`SEEK_HOLE`).
    Hole,
}

/// Where bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritePlace {
    /// In bytes from the beginning.
    pub offset: u64,
    /// They are pages of a mapping: they belong there, also in a file that is open to append.
    pub is_of_pages: bool,
}

/// What of a write is durable when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durable {
    /// Nothing: it is so after [`Tree::sync`], or when the tree sees fit.
    #[default]
    Later,
    /// The data (`O_DIRECT`).
    Data,
    /// The data, the size and what else is needed to read them (`O_DSYNC`, `O_SYNC`).
    WithSize,
}

/// A place in an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// The file.
    pub inode: InodeNumber,
    /// By what it is open.
    pub handle: u64,
    /// In bytes from the beginning.
    pub offset: u64,
}

/// How much there is room for, in blocks of 4096 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// All blocks.
    pub blocks: u64,
    /// Blocks that are free.
    pub blocks_free: u64,
    /// Blocks that anybody but root may still use.
    pub blocks_available: u64,
    /// Inodes that there may be.
    pub files: u64,
    /// Inodes that may still be made.
    pub files_free: u64,
}

/// A file system that can be mounted.
///
/// Names are 1 to 255 bytes without `/` and zero, and neither `.` nor `..`. The future of an operation that
/// changes nothing is dropped if its caller is killed; all others run to their end. Answer `ESTALE` for
/// an inode that is gone: the kernel then looks the path up again, once.
pub trait Tree: 'static {
    /// How long the kernel may cache names and attributes.
    fn timeouts(&self) -> Timeouts {
        Timeouts::default()
    }

    /// Attributes of what has a name.
    fn find(&self, directory: InodeNumber, name: &[u8]) -> impl Future<Output = Reply<Attributes>>;

    /// Attributes of an inode.
    fn attributes(&self, inode: InodeNumber) -> impl Future<Output = Reply<Attributes>>;

    /// Permissions of an inode.
    fn permissions(&self, inode: InodeNumber) -> impl Future<Output = Reply<u16>> {
        async move { self.attributes(inode).await.map(|found| found.mode) }
    }

    /// Changes attributes; returns them after that. With a handle if an open file is what its user has named.
    fn change(
        &self,
        inode: InodeNumber,
        handle: Option<u64>,
        changes: AttributeChanges,
    ) -> impl Future<Output = Reply<Attributes>>;

    /// Target of a symbolic link.
    fn target(&self, inode: InodeNumber) -> impl Future<Output = Reply<Vec<u8>>>;

    /// Makes an inode and its name. `new.gid` is the caller's group: a directory with `S_ISGID` gives its own
    /// instead, and the tree does that.
    fn make(
        &self,
        directory: InodeNumber,
        name: &[u8],
        new: NewInode,
    ) -> impl Future<Output = Reply<Attributes>>;

    /// Makes a regular file and opens it. `EEXIST` if the name is there.
    fn create(
        &self,
        directory: InodeNumber,
        name: &[u8],
        new: NewInode,
        how: HowToOpen,
    ) -> impl Future<Output = Reply<(Attributes, Opened)>>;

    /// Makes a regular file without a name and opens it (`O_TMPFILE`).
    fn create_unnamed(
        &self,
        directory: InodeNumber,
        new: NewInode,
        how: HowToOpen,
    ) -> impl Future<Output = Reply<(Attributes, Opened)>>;

    /// Gives an inode another name; returns its attributes after that.
    fn link(
        &self,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> impl Future<Output = Reply<Attributes>>;

    /// Removes a name of what is not a directory. Files that are open keep their data.
    fn unlink(&self, directory: InodeNumber, name: &[u8]) -> impl Future<Output = Reply<()>>;

    /// Removes an empty directory.
    fn remove_directory(&self, directory: InodeNumber, name: &[u8]) -> impl Future<Output = Reply<()>>;

    /// Gives what has the first name the second one.
    fn rename(
        &self,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> impl Future<Output = Reply<()>>;

    /// Opens a regular file.
    fn open(&self, inode: InodeNumber, how: HowToOpen) -> impl Future<Output = Reply<Opened>>;

    /// Bytes of a file from an offset on: `length` of them, fewer at the end of the file only.
    fn read(
        &self,
        inode: InodeNumber,
        handle: u64,
        offset: u64,
        length: u32,
    ) -> impl Future<Output = Reply<Vec<Buf>>>;

    /// Writes all of the data (at most 1 MiB); returns its length. Data of 4096 bytes and more begin at a
    /// multiple of 4096 in memory. `when` says what has to be durable when it returns.
    fn write(
        &self,
        inode: InodeNumber,
        handle: u64,
        place: WritePlace,
        data: Buf,
        when: Durable,
    ) -> impl Future<Output = Reply<u32>>;

    /// Copies up to `length` bytes from one place to another, which may be in the same file but do not
    /// overlap then; returns how many: fewer at the end of what is read, or where that takes long.
    fn copy(&self, from: FilePlace, to: FilePlace, length: u64) -> impl Future<Output = Reply<u64>>;

    /// A program has closed a descriptor of the open file; its `close` returns the error. Nothing has to
    /// be durable then. May come more than once. `owner` is the process that has closed it: it has no
    /// locks on ranges of the file any more, by whatever handle it took them.
    fn flush(&self, inode: InodeNumber, handle: u64, owner: LockOwner) -> impl Future<Output = Reply<()>>;

    /// Takes a lock; it replaces what its owner has in that range. `EAGAIN` if another owner has one that
    /// excludes it. A lock goes when it is given back, when the process of a lock on a range has closed the
    /// file ([`Tree::flush`]), or when the handle is released by which it was taken.
    fn lock(&self, inode: InodeNumber, handle: u64, lock: FileLock) -> impl Future<Output = Reply<()>>;

    /// Waits until another owner has no lock that excludes this one. Dropped if its caller does not wait any
    /// more. `EDEADLK` if that would be for ever.
    fn until_unlocked(
        &self,
        inode: InodeNumber,
        handle: u64,
        lock: FileLock,
    ) -> impl Future<Output = Reply<()>>;

    /// Gives back what an owner has locked, from the first byte to the last one.
    fn unlock(
        &self,
        inode: InodeNumber,
        handle: u64,
        owner: LockOwner,
        range: (u64, u64),
    ) -> impl Future<Output = Reply<()>>;

    /// A lock of another owner that excludes this one, if there is one.
    fn find_lock(
        &self,
        inode: InodeNumber,
        handle: u64,
        lock: FileLock,
    ) -> impl Future<Output = Reply<Option<FileLock>>>;

    /// Makes a file or directory durable; with `data_only`, what is needed to read its data. `handle` is 0
    /// for a directory.
    fn sync(&self, inode: InodeNumber, handle: u64, data_only: bool) -> impl Future<Output = Reply<()>>;

    /// The open file is not used any more, by anybody. Comes once for each open, unless the mount ends first.
    fn release(&self, inode: InodeNumber, handle: u64) -> impl Future<Output = ()>;

    /// Makes everything durable.
    fn sync_all(&self) -> impl Future<Output = Reply<()>>;

    /// Entries of a directory, in the order of their cookies, behind a cookie (0: from the beginning).
    /// Cookies are from 16 on. Entries of equal cookies come together, even if these are more than `limit`.
    fn list(&self, directory: InodeNumber, after: u64, limit: u32) -> impl Future<Output = Reply<Listed>>;

    /// Value of an extended attribute; `ENODATA` if there is no such.
    fn xattr(&self, inode: InodeNumber, name: &[u8]) -> impl Future<Output = Reply<Vec<u8>>>;

    /// Names of all extended attributes.
    fn xattr_names(&self, inode: InodeNumber) -> impl Future<Output = Reply<Vec<Vec<u8>>>>;

    /// Sets an extended attribute.
    fn set_xattr(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> impl Future<Output = Reply<()>>;

    /// Removes an extended attribute.
    fn remove_xattr(&self, inode: InodeNumber, name: &[u8]) -> impl Future<Output = Reply<()>>;

    /// How much room there is.
    fn space(&self) -> impl Future<Output = Reply<Space>>;

    /// Allocates a range of a file, or frees it. `length` is not 0.
    fn allocate(
        &self,
        inode: InodeNumber,
        handle: u64,
        how: Allocate,
        offset: u64,
        length: u64,
    ) -> impl Future<Output = Reply<()>>;

    /// Where the next data or hole of a file is, from an offset on.
    fn seek(
        &self,
        inode: InodeNumber,
        handle: u64,
        offset: u64,
        what: Seek,
    ) -> impl Future<Output = Reply<u64>>;

    /// The kernel knows the inode no more: it had been given `lookups` times since the last such call. It is
    /// not called for what the kernel still knows when the mount ends. An answer that is on its way may name
    /// the inode again.
    fn forget(&self, inode: InodeNumber, lookups: u64);
}
