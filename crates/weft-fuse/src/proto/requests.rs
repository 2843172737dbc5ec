//! What the kernel sends: `…_in` of the header, and the flags in it.

use super::{FuseLock, layouts};

layouts! {
    /// In front of each request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16,
        padding: u16,
    }
    /// The part of INIT that every version has.
    InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    ForgetIn = 8 { nlookup: u64 }
    BatchForgetIn = 8 { count: u32, dummy: u32 }
    ForgetOne = 16 { nodeid: u64, nlookup: u64 }
    InterruptIn = 8 { unique: u64 }
    GetattrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64 }
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32,
        unused5: u32,
    }
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn = 8 { mode: u32, umask: u32 }
    RenameIn = 8 { newdir: u64 }
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    LinkIn = 8 { oldnodeid: u64 }
    OpenIn = 8 { flags: u32, open_flags: u32 }
    /// Of CREATE and of TMPFILE.
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// Of READ, READDIR and READDIRPLUS.
    ReadIn = 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn = 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    /// Of GETLK, SETLK and SETLKW.
    LkIn = 48 { fh: u64, owner: u64, lk: FuseLock, lk_flags: u32, padding: u32 }
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// Without `SETXATTR_EXT`.
    SetxattrIn = 8 { size: u32, flags: u32 }
    /// What `SETXATTR_EXT` adds to it.
    SetxattrExt = 8 { setxattr_flags: u32, padding: u32 }
    /// Of GETXATTR and LISTXATTR.
    GetxattrIn = 8 { size: u32, padding: u32 }
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    CopyFileRangeIn = 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    SyncfsIn = 8 { padding: u64 }
}

/// The flags of INIT, as one 64-bit number: the low half is `flags`, the high half `flags2` (only valid with
/// `INIT_EXT`).
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// The umask is not taken off by the kernel: a default access control list stands in its place.
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const ABORT_ERROR: u64 = 1 << 21;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// What SETATTR is to change.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// A lock of GETLK, SETLK and SETLKW is one of `flock`.
pub(crate) const LK_FLOCK: u32 = 1 << 0;

/// `open_flags` of OPEN and CREATE: the set-id bits are to be removed.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `write_flags` of WRITE: the set-id bits are to be removed.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `FUSE_WRITE_CACHE`: pages that were changed through a mapping.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// `FUSE_SETXATTR_ACL_KILL_SGID`: who sets the list is not in the file's group.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `fsync_flags` of FSYNC: `fdatasync`.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
