//! What the kernel is answered: `…_out` of the header, and the flags in it.

use super::layouts;

layouts! {
    /// In front of each answer.
    OutHeader = 16 { len: u32, error: i32, unique: u64 }
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }
    Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    SxTime = 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    Statx = 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime,
        mtime: SxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut = 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 }
    WriteOut = 8 { size: u32, padding: u32 }
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    /// Of GETXATTR and LISTXATTR, where only the size was asked for.
    GetxattrOut = 8 { size: u32, padding: u32 }
    LseekOut = 8 { offset: u64 }
    /// `end` is the last byte.
    FuseLock = 24 { start: u64, end: u64, kind: u32, pid: u32 }
    LkOut = 24 { lk: FuseLock }
    /// The name follows, and zeroes up to a multiple of 8.
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
}

/// The flags of an answer to OPEN and CREATE.
pub(crate) mod fopen {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}
