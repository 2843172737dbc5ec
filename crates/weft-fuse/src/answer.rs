//! Answers to the kernel: what an operation came to, as bytes, and what the kernel gets with it.

use crate::proto::*;
use crate::tree::{Caching, Opened, Space, Timeouts};
use std::time::Duration;
use weft_rt::Buf;
use weft_types::limits::FILE_NAME_BYTES_MAX;
use weft_types::{Attributes, FileKind, FileTime, InodeNumber};
use weft_wire::files::{FileLock, LockMode};

/// The size of blocks that programs are told to prefer, and that [`Space`] counts.
const BLOCK_BYTES: u32 = 4096;

/// The unit of `st_blocks`.
const SECTOR_BYTES: u64 = 512;

/// What statx(2) is told: all basic fields and the time of birth.
const STATX_FIELDS: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

/// The bytes behind an answer's header.
#[derive(Debug)]
pub(crate) enum AnswerBody {
    /// Structs of the protocol.
    Bytes(Vec<u8>),
    /// Data of a file.
    Data(Vec<Buf>),
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) body: AnswerBody,
    /// Inodes that it gives to the kernel, each as often as it is here.
    pub(crate) gives: Vec<InodeNumber>,
    /// The open file that it gives to the kernel: of this inode, with this handle.
    pub(crate) opens: Option<(InodeNumber, u64)>,
}

impl Answer {
    /// Bytes.
    pub(crate) fn bytes(bytes: Vec<u8>) -> Answer {
        Answer { body: AnswerBody::Bytes(bytes), gives: Vec::new(), opens: None }
    }

    /// It is done.
    pub(crate) fn done() -> Answer {
        Answer::bytes(Vec::new())
    }

    /// One struct.
    pub(crate) fn of(answer: &impl Field) -> Answer {
        Answer::bytes(bytes_of(answer))
    }

    /// Data of a file.
    pub(crate) fn data(data: Vec<Buf>) -> Answer {
        Answer { body: AnswerBody::Data(data), ..Answer::done() }
    }

    /// Attributes.
    pub(crate) fn attributes(attributes: &Attributes, timeouts: Timeouts) -> Answer {
        let (attr_valid, attr_valid_nsec) = valid_for(timeouts.attributes);
        Answer::of(&AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attr_of(attributes) })
    }

    /// Attributes for statx(2).
    pub(crate) fn statx(attributes: &Attributes, timeouts: Timeouts) -> Answer {
        let (attr_valid, attr_valid_nsec) = valid_for(timeouts.attributes);
        let stat = statx_of(attributes);
        Answer::of(&StatxOut { attr_valid, attr_valid_nsec, flags: 0, spare: [0; 2], stat })
    }

    /// What a name leads to.
    pub(crate) fn entry(attributes: &Attributes, timeouts: Timeouts) -> Answer {
        let gives = vec![attributes.inode];
        Answer { gives, ..Answer::of(&entry_of(attributes, timeouts)) }
    }

    /// A name leads to nothing, and the kernel may remember that.
    pub(crate) fn no_entry(timeouts: Timeouts) -> Answer {
        let (entry_valid, entry_valid_nsec) = valid_for(timeouts.entry);
        Answer::of(&EntryOut { entry_valid, entry_valid_nsec, ..EntryOut::default() })
    }

    /// An open file.
    pub(crate) fn opened(inode: InodeNumber, opened: Opened, is_direct: bool) -> Answer {
        let opens = Some((inode, opened.handle));
        Answer { opens, ..Answer::of(&open_of(opened, is_direct)) }
    }

    /// A file that was made and opened.
    pub(crate) fn created(
        attributes: &Attributes,
        timeouts: Timeouts,
        opened: Opened,
        is_direct: bool,
    ) -> Answer {
        let mut bytes = bytes_of(&entry_of(attributes, timeouts));
        open_of(opened, is_direct).put(&mut bytes);
        let opens = Some((attributes.inode, opened.handle));
        Answer { body: AnswerBody::Bytes(bytes), gives: vec![attributes.inode], opens }
    }

    /// A lock that is in the way, or that none is.
    pub(crate) fn lock(found: Option<FileLock>) -> Answer {
        let kind = match found.map(|lock| lock.mode) {
            None => libc::F_UNLCK,
            Some(LockMode::Shared) => libc::F_RDLCK,
            Some(LockMode::Exclusive) => libc::F_WRLCK,
        };
        let lk = found.map_or_else(FuseLock::default, |lock| FuseLock {
            start: lock.start,
            end: lock.last,
            kind: 0,
            pid: lock.process,
        });
        Answer::of(&LkOut { lk: FuseLock { kind: kind as u32, ..lk } })
    }

    /// Room.
    pub(crate) fn space(space: &Space) -> Answer {
        Answer::of(&StatfsOut {
            blocks: space.blocks,
            bfree: space.blocks_free,
            bavail: space.blocks_available,
            files: space.files,
            ffree: space.files_free,
            bsize: BLOCK_BYTES,
            namelen: FILE_NAME_BYTES_MAX as u32,
            frsize: BLOCK_BYTES,
            padding: 0,
            spare: [0; 6],
        })
    }
}

fn bytes_of(field: &impl Field) -> Vec<u8> {
    let mut bytes = Vec::new();
    field.put(&mut bytes);
    bytes
}

/// Seconds and nanoseconds of a timeout.
fn valid_for(timeout: Duration) -> (u64, u32) {
    (timeout.as_secs(), timeout.subsec_nanos())
}

/// The bits of `st_mode` that say what an inode is.
pub(crate) fn kind_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Pipe => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharacterDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

fn mode_of(attributes: &Attributes) -> u32 {
    kind_bits(attributes.kind) | u32::from(attributes.mode)
}

/// `st_blocks`.
fn blocks_of(attributes: &Attributes) -> u64 {
    if attributes.kind == FileKind::Regular { attributes.size.div_ceil(SECTOR_BYTES) } else { 0 }
}

fn attr_of(a: &Attributes) -> Attr {
    Attr {
        ino: a.inode.0,
        size: a.size,
        blocks: blocks_of(a),
        atime: a.accessed.seconds,
        mtime: a.modified.seconds,
        ctime: a.changed.seconds,
        atimensec: a.accessed.nanoseconds,
        mtimensec: a.modified.nanoseconds,
        ctimensec: a.changed.nanoseconds,
        mode: mode_of(a),
        nlink: a.links,
        uid: a.uid,
        gid: a.gid,
        // 12 bits of major and 20 of minor number lie as in `st_rdev`; the kernel has no larger numbers.
        rdev: u32::try_from(a.device).unwrap_or(0),
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

fn statx_of(a: &Attributes) -> Statx {
    let time = |t: FileTime| SxTime { tv_sec: t.seconds, tv_nsec: t.nanoseconds, reserved: 0 };
    Statx {
        mask: STATX_FIELDS,
        blksize: BLOCK_BYTES,
        nlink: a.links,
        uid: a.uid,
        gid: a.gid,
        mode: mode_of(a) as u16,
        ino: a.inode.0,
        size: a.size,
        blocks: blocks_of(a),
        atime: time(a.accessed),
        btime: time(a.born),
        ctime: time(a.changed),
        mtime: time(a.modified),
        rdev_major: libc::major(a.device),
        rdev_minor: libc::minor(a.device),
        ..Statx::default()
    }
}

/// What a name leads to.
pub(crate) fn entry_of(attributes: &Attributes, timeouts: Timeouts) -> EntryOut {
    let (entry_valid, entry_valid_nsec) = valid_for(timeouts.entry);
    let (attr_valid, attr_valid_nsec) = valid_for(timeouts.attributes);
    EntryOut {
        nodeid: attributes.inode.0,
        // Numbers of inodes are never used again.
        generation: 0,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attr_of(attributes),
    }
}

fn open_of(opened: Opened, is_direct: bool) -> OpenOut {
    let open_flags = match opened.caching {
        _ if is_direct => fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES,
        Caching::Direct => fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES,
        Caching::Kept => fopen::KEEP_CACHE,
        Caching::Fresh => 0,
    };
    OpenOut { fh: opened.handle, open_flags, backing_id: 0 }
}
