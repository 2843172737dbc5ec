//! Requests of the kernel: bytes in, typed operations out.
//!
//! Every length is checked before anything is acted on. A message that does not hold what its operation needs
//! is refused with an error number; it never panics. Bytes behind what is needed are ignored, because newer
//! kernels make structs longer.

use crate::device::{DATA_BYTES, Terms};
use crate::proto::*;
use crate::tree::{Allocate, Durable, Errno, FilePlace, HowToOpen, Seek, WritePlace};
use weft_types::limits::{
    FILE_NAME_BYTES_MAX, LINK_TARGET_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use weft_types::{FileKind, FileTime, InodeNumber};
use weft_wire::files::{
    AttributeChanges, FileLock, LockFamily, LockMode, LockOwner, RenameMode, SetTime, XattrMode,
};

/// The bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o7777;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct FuseRequest {
    /// The kernel's number for it.
    pub(crate) unique: u64,
    /// What it is about.
    pub(crate) node: InodeNumber,
    /// The caller's thread; 0 where the kernel asks for itself, or the caller is not of this PID namespace.
    pub(crate) thread: u32,
    /// The caller's user, for what it makes.
    pub(crate) uid: u32,
    /// The caller's group, for what it makes.
    pub(crate) gid: u32,
    /// What to do.
    pub(crate) operation: FuseOperation,
}

/// Why a message is not acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The request to answer; `None` where the kernel waits for no answer.
    pub(crate) unique: Option<u64>,
    /// With this.
    pub(crate) errno: Errno,
}

/// What is asked of an entry in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LookupName {
    /// `.`, for exports.
    Own,
    /// `..`, for exports.
    Parent,
    /// A name.
    Entry(Vec<u8>),
}

/// An inode that is to be made: its kind, permissions and what else its kind has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Making {
    pub(crate) kind: FileKind,
    pub(crate) mode: u16,
    pub(crate) umask: u16,
    pub(crate) device: u64,
    pub(crate) target: Vec<u8>,
}

/// How a file is opened, and what of that the tree does not hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    pub(crate) how: HowToOpen,
    pub(crate) is_exclusive: bool,
    pub(crate) kills_set_id: bool,
}

/// The operations, with what they need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FuseOperation {
    Lookup(LookupName),
    Forget(Vec<(InodeNumber, u64)>),
    Attributes,
    Statx,
    Change { changes: AttributeChanges, handle: Option<u64>, kills_set_id: bool },
    Target,
    Make { name: Vec<u8>, making: Making },
    Unlink(Vec<u8>),
    RemoveDirectory(Vec<u8>),
    Rename { name: Vec<u8>, to: InodeNumber, new_name: Vec<u8>, mode: RenameMode },
    Link { inode: InodeNumber, name: Vec<u8> },
    Open(Opening),
    Create { name: Vec<u8>, mode: u16, umask: u16, opening: Opening },
    CreateUnnamed { mode: u16, umask: u16, opening: Opening },
    Read { handle: u64, offset: u64, length: u32 },
    Write { handle: u64, place: WritePlace, length: u32, kills_set_id: bool, when: Durable },
    Flush { handle: u64, owner: LockOwner },
    Lock { handle: u64, lock: FileLock, waits: bool },
    Unlock { handle: u64, owner: LockOwner, range: (u64, u64) },
    FindLock { handle: u64, lock: FileLock },
    Copy { from: FilePlace, to: FilePlace, length: u64 },
    Sync { handle: u64, data_only: bool },
    Release { handle: u64 },
    OpenDirectory,
    ReleaseDirectory,
    List { after: u64, length: u32, with_attributes: bool },
    Space,
    SetXattr { name: Vec<u8>, value: Vec<u8>, mode: XattrMode, kills_set_gid: bool },
    Xattr { name: Vec<u8>, length: u32 },
    XattrNames { length: u32 },
    RemoveXattr(Vec<u8>),
    Allocate { handle: u64, how: Allocate, offset: u64, length: u64 },
    Seek { handle: u64, offset: u64, what: Seek },
    SyncAll,
    Interrupt { unique: u64 },
    Destroy,
}

impl FuseOperation {
    /// Whether it need not come to its end if its caller is killed: it changes nothing.
    pub(crate) fn can_be_given_up(&self) -> bool {
        matches!(
            self,
            FuseOperation::Lookup(_)
                | FuseOperation::Attributes
                | FuseOperation::Statx
                | FuseOperation::Target
                | FuseOperation::Read { .. }
                | FuseOperation::List { .. }
                | FuseOperation::Space
                | FuseOperation::Xattr { .. }
                | FuseOperation::XattrNames { .. }
                | FuseOperation::Seek { .. }
                | FuseOperation::Sync { .. }
                | FuseOperation::SyncAll
                | FuseOperation::FindLock { .. }
        )
    }
}

impl FuseRequest {
    /// Takes a whole message. The data of a WRITE stay where they are, behind the first
    /// [`WRITE_HEAD_BYTES`](crate::device::WRITE_HEAD_BYTES).
    ///
    /// # Errors
    /// `EIO` for a message that is too short or contradicts itself, `EINVAL` for values that make no sense,
    /// `ENAMETOOLONG`, `E2BIG`, `ENOSYS` for operations that are not served.
    pub(crate) fn decode(message: &[u8], terms: Terms) -> Result<FuseRequest, Refusal> {
        let mut bytes = message;
        let refusal = Refusal { unique: None, errno: Errno(libc::EIO) };
        let header = InHeader::take(&mut bytes).ok_or(refusal)?;
        let is_answered = !matches!(header.opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT);
        let refuse = |errno| Refusal { unique: is_answered.then_some(header.unique), errno };
        if header.len as usize != message.len() {
            return Err(refuse(Errno(libc::EIO)));
        }
        // Extensions (in units of 8 bytes) are behind all else.
        let own = bytes.len().checked_sub(usize::from(header.total_extlen) * 8);
        let own = own.ok_or(refuse(Errno(libc::EIO)))?;
        let operation = decode_operation(&header, Fields(&bytes[..own]), terms).map_err(refuse)?;
        Ok(FuseRequest {
            unique: header.unique,
            node: InodeNumber(header.nodeid),
            thread: header.pid,
            uid: header.uid,
            gid: header.gid,
            operation,
        })
    }
}

/// What is left of a message.
#[derive(Clone, Copy)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<T: Field>(&mut self) -> Result<T, Errno> {
        T::take(&mut self.0).ok_or(Errno(libc::EIO))
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Errno> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Errno(libc::EIO))?;
        self.0 = rest;
        Ok(bytes)
    }

    /// A text that ends with a zero.
    fn text(&mut self) -> Result<&'a [u8], Errno> {
        let length = self.0.iter().position(|byte| *byte == 0).ok_or(Errno(libc::EIO))?;
        let text = self.bytes(length)?;
        self.bytes(1)?;
        Ok(text)
    }

    /// A name in a directory.
    fn name(&mut self) -> Result<Vec<u8>, Errno> {
        let name = self.text()?;
        if name.is_empty() || name.contains(&b'/') || matches!(name, b"." | b"..") {
            return Err(Errno(libc::EINVAL));
        }
        match name.len() <= FILE_NAME_BYTES_MAX {
            true => Ok(name.to_vec()),
            false => Err(Errno(libc::ENAMETOOLONG)),
        }
    }

    /// What LOOKUP is asked for.
    fn lookup_name(&mut self) -> Result<LookupName, Errno> {
        let mut ahead = *self;
        match ahead.text()? {
            b"." => Ok(LookupName::Own),
            b".." => Ok(LookupName::Parent),
            _ => self.name().map(LookupName::Entry),
        }
    }

    /// The name of an extended attribute.
    fn xattr_name(&mut self) -> Result<Vec<u8>, Errno> {
        match self.text()? {
            b"" => Err(Errno(libc::EINVAL)),
            name if name.len() > XATTR_NAME_BYTES_MAX => Err(Errno(libc::ERANGE)),
            name => Ok(name.to_vec()),
        }
    }
}

fn decode_operation(header: &InHeader, mut f: Fields<'_>, terms: Terms) -> Result<FuseOperation, Errno> {
    Ok(match header.opcode {
        op::LOOKUP => FuseOperation::Lookup(f.lookup_name()?),
        op::FORGET => {
            FuseOperation::Forget(vec![(InodeNumber(header.nodeid), f.take::<ForgetIn>()?.nlookup)])
        }
        op::BATCH_FORGET => decode_forgets(f)?,
        op::GETATTR => f.take::<GetattrIn>().map(|_| FuseOperation::Attributes)?,
        op::STATX => f.take::<StatxIn>().map(|_| FuseOperation::Statx)?,
        op::SETATTR => decode_change(f.take()?)?,
        op::READLINK => FuseOperation::Target,
        op::SYMLINK | op::MKNOD | op::MKDIR => decode_make(header.opcode, f)?,
        op::UNLINK => FuseOperation::Unlink(f.name()?),
        op::RMDIR => FuseOperation::RemoveDirectory(f.name()?),
        op::RENAME => decode_rename(f.take::<RenameIn>()?.newdir, 0, f)?,
        op::RENAME2 => {
            let rename: Rename2In = f.take()?;
            decode_rename(rename.newdir, rename.flags, f)?
        }
        op::LINK => {
            let inode = InodeNumber(f.take::<LinkIn>()?.oldnodeid);
            FuseOperation::Link { inode, name: f.name()? }
        }
        op::OPEN => {
            let open: OpenIn = f.take()?;
            FuseOperation::Open(opening(open.flags, open.open_flags))
        }
        op::CREATE | op::TMPFILE => decode_create(header.opcode, f)?,
        op::READ => {
            let read: ReadIn = f.take()?;
            let length = data_length(read.size)?;
            FuseOperation::Read { handle: read.fh, offset: read.offset, length }
        }
        op::WRITE => decode_write(f)?,
        op::FLUSH => {
            let flush: FlushIn = f.take()?;
            let owner = LockOwner { family: LockFamily::Range, id: flush.lock_owner };
            FuseOperation::Flush { handle: flush.fh, owner }
        }
        op::GETLK | op::SETLK | op::SETLKW => decode_lock(header.opcode, f.take()?)?,
        op::FSYNC | op::FSYNCDIR => decode_sync(f.take()?),
        op::RELEASE => FuseOperation::Release { handle: f.take::<ReleaseIn>()?.fh },
        op::OPENDIR => f.take::<OpenIn>().map(|_| FuseOperation::OpenDirectory)?,
        op::RELEASEDIR => f.take::<ReleaseIn>().map(|_| FuseOperation::ReleaseDirectory)?,
        op::READDIR | op::READDIRPLUS => {
            let read: ReadIn = f.take()?;
            let with_attributes = header.opcode == op::READDIRPLUS;
            FuseOperation::List { after: read.offset, length: data_length(read.size)?, with_attributes }
        }
        op::STATFS => FuseOperation::Space,
        op::SETXATTR => decode_set_xattr(f, terms)?,
        op::GETXATTR => {
            let length = f.take::<GetxattrIn>()?.size;
            FuseOperation::Xattr { name: f.xattr_name()?, length }
        }
        op::LISTXATTR => FuseOperation::XattrNames { length: f.take::<GetxattrIn>()?.size },
        op::REMOVEXATTR => FuseOperation::RemoveXattr(f.xattr_name()?),
        op::FALLOCATE => decode_allocate(f.take()?)?,
        op::LSEEK => decode_seek(f.take()?)?,
        op::COPY_FILE_RANGE => decode_copy(InodeNumber(header.nodeid), f.take()?)?,
        op::SYNCFS => f.take::<SyncfsIn>().map(|_| FuseOperation::SyncAll)?,
        op::INTERRUPT => FuseOperation::Interrupt { unique: f.take::<InterruptIn>()?.unique },
        op::DESTROY => FuseOperation::Destroy,
        op::INIT => return Err(Errno(libc::EIO)),
        // ACCESS among them: the kernel checks permissions itself. It does not ask a second time.
        _ => return Err(Errno(libc::ENOSYS)),
    })
}

/// A length that an answer, or a request, can have.
fn data_length(length: u32) -> Result<u32, Errno> {
    if length as usize <= DATA_BYTES { Ok(length) } else { Err(Errno(libc::EINVAL)) }
}

fn decode_forgets(mut f: Fields<'_>) -> Result<FuseOperation, Errno> {
    let count = f.take::<BatchForgetIn>()?.count as usize;
    if count > f.0.len() / ForgetOne::BYTES {
        return Err(Errno(libc::EIO));
    }
    let one = |_| f.take::<ForgetOne>().map(|one| (InodeNumber(one.nodeid), one.nlookup));
    Ok(FuseOperation::Forget((0..count).map(one).collect::<Result<_, _>>()?))
}

fn decode_change(set: SetattrIn) -> Result<FuseOperation, Errno> {
    let has = |flag| set.valid & flag != 0;
    let time = |flag, now, seconds, nanoseconds| match (has(now), has(flag)) {
        (true, _) => Ok(Some(SetTime::Now)),
        (false, false) => Ok(None),
        (false, true) if nanoseconds >= FileTime::SECOND => Err(Errno(libc::EINVAL)),
        (false, true) => Ok(Some(SetTime::At(FileTime { seconds, nanoseconds }))),
    };
    let changes = AttributeChanges {
        mode: has(fattr::MODE).then_some((set.mode & PERMISSIONS) as u16),
        uid: has(fattr::UID).then_some(set.uid),
        gid: has(fattr::GID).then_some(set.gid),
        size: has(fattr::SIZE).then_some(set.size),
        accessed: time(fattr::ATIME, fattr::ATIME_NOW, set.atime, set.atimensec)?,
        modified: time(fattr::MTIME, fattr::MTIME_NOW, set.mtime, set.mtimensec)?,
    };
    // Directories have the handle 0.
    let handle = has(fattr::FH).then_some(set.fh).filter(|handle| *handle > 0);
    Ok(FuseOperation::Change { changes, handle, kills_set_id: has(fattr::KILL_SUIDGID) })
}

fn decode_make(opcode: u32, mut f: Fields<'_>) -> Result<FuseOperation, Errno> {
    let (kind, target) = (FileKind::Directory, Vec::new());
    let mut making = Making { kind, mode: 0o777, umask: 0, device: 0, target };
    match opcode {
        op::MKDIR => {
            let MkdirIn { mode, umask } = f.take()?;
            (making.mode, making.umask) = ((mode & PERMISSIONS) as u16, (umask & PERMISSIONS) as u16);
        }
        op::MKNOD => {
            let node: MknodIn = f.take()?;
            making.kind = kind_of(node.mode).ok_or(Errno(libc::EINVAL))?;
            making.mode = (node.mode & PERMISSIONS) as u16;
            making.umask = (node.umask & PERMISSIONS) as u16;
            if matches!(making.kind, FileKind::CharacterDevice | FileKind::BlockDevice) {
                // 12 bits of major and 20 of minor number lie as in `st_rdev`.
                making.device = node.rdev.into();
            }
        }
        _ => making.kind = FileKind::Symlink,
    }
    let name = f.name()?;
    if opcode == op::SYMLINK {
        making.target = f.text()?.to_vec();
        match making.target.len() {
            0 => return Err(Errno(libc::ENOENT)),
            length if length > LINK_TARGET_BYTES_MAX => return Err(Errno(libc::ENAMETOOLONG)),
            _ => {}
        }
    }
    Ok(FuseOperation::Make { name, making })
}

/// The kind that `mknod` makes.
fn kind_of(mode: u32) -> Option<FileKind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(FileKind::Regular),
        libc::S_IFIFO => Some(FileKind::Pipe),
        libc::S_IFSOCK => Some(FileKind::Socket),
        libc::S_IFCHR => Some(FileKind::CharacterDevice),
        libc::S_IFBLK => Some(FileKind::BlockDevice),
        _ => None,
    }
}

fn decode_rename(to: u64, flags: u32, mut f: Fields<'_>) -> Result<FuseOperation, Errno> {
    let mode = match flags {
        0 => RenameMode::Replace,
        libc::RENAME_NOREPLACE => RenameMode::Keep,
        libc::RENAME_EXCHANGE => RenameMode::Exchange,
        // RENAME_WHITEOUT among them.
        _ => return Err(Errno(libc::EINVAL)),
    };
    Ok(FuseOperation::Rename { name: f.name()?, to: InodeNumber(to), new_name: f.name()?, mode })
}

fn opening(flags: u32, open_flags: u32) -> Opening {
    let flags = flags as i32;
    let has = |flag| flags & flag != 0;
    let access = flags & libc::O_ACCMODE;
    let how = HowToOpen {
        reads: access != libc::O_WRONLY,
        writes: access != libc::O_RDONLY,
        appends: has(libc::O_APPEND),
        truncates: has(libc::O_TRUNC),
        is_direct: has(libc::O_DIRECT),
    };
    let kills_set_id = open_flags & OPEN_KILL_SUIDGID != 0;
    Opening { how, is_exclusive: has(libc::O_EXCL), kills_set_id }
}

fn decode_create(opcode: u32, mut f: Fields<'_>) -> Result<FuseOperation, Errno> {
    let create: CreateIn = f.take()?;
    let [mode, umask] = [create.mode, create.umask].map(|mode| (mode & PERMISSIONS) as u16);
    let opening = opening(create.flags, create.open_flags);
    // TMPFILE has a name as well, of which nothing is known.
    match opcode {
        op::TMPFILE => f.text().map(|_| FuseOperation::CreateUnnamed { mode, umask, opening }),
        _ => Ok(FuseOperation::Create { name: f.name()?, mode, umask, opening }),
    }
}

fn decode_write(mut f: Fields<'_>) -> Result<FuseOperation, Errno> {
    let write: WriteIn = f.take()?;
    let length = data_length(write.size)?;
    f.bytes(length as usize)?;
    let kills_set_id = write.write_flags & WRITE_KILL_SUIDGID != 0;
    let has = |flag| write.flags as i32 & flag == flag;
    let when = match (has(libc::O_DSYNC), has(libc::O_DIRECT)) {
        // O_SYNC is O_DSYNC with one bit more.
        (true, _) => Durable::WithSize,
        (_, true) => Durable::Data,
        _ => Durable::Later,
    };
    let is_of_pages = write.write_flags & WRITE_CACHE != 0;
    let place = WritePlace { offset: write.offset, is_of_pages };
    Ok(FuseOperation::Write { handle: write.fh, place, length, kills_set_id, when })
}

fn decode_set_xattr(mut f: Fields<'_>, terms: Terms) -> Result<FuseOperation, Errno> {
    let set: SetxattrIn = f.take()?;
    let kills_set_gid = terms.flags & init::SETXATTR_EXT != 0
        && f.take::<SetxattrExt>()?.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0;
    let mode = match set.flags as i32 {
        0 => XattrMode::Either,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let name = f.xattr_name()?;
    if set.size as usize > XATTR_VALUE_BYTES_MAX {
        return Err(Errno(libc::E2BIG));
    }
    let value = f.bytes(set.size as usize)?.to_vec();
    Ok(FuseOperation::SetXattr { name, value, mode, kills_set_gid })
}

fn decode_sync(sync: FsyncIn) -> FuseOperation {
    FuseOperation::Sync { handle: sync.fh, data_only: sync.fsync_flags & FSYNC_FDATASYNC != 0 }
}

fn decode_copy(inode: InodeNumber, copy: CopyFileRangeIn) -> Result<FuseOperation, Errno> {
    if copy.flags != 0 {
        return Err(Errno(libc::EINVAL));
    }
    let from = FilePlace { inode, handle: copy.fh_in, offset: copy.off_in };
    let to = FilePlace { inode: InodeNumber(copy.nodeid_out), handle: copy.fh_out, offset: copy.off_out };
    let is_far = |place: &FilePlace| place.offset.checked_add(copy.len).is_none();
    if is_far(&from) || is_far(&to) {
        return Err(Errno(libc::EOVERFLOW));
    }
    Ok(FuseOperation::Copy { from, to, length: copy.len })
}

fn decode_allocate(range: FallocateIn) -> Result<FuseOperation, Errno> {
    const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP_SIZE;
    const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_RANGE_KEEP_SIZE: i32 = ZERO_RANGE | KEEP_SIZE;
    let how = match range.mode as i32 {
        0 => Allocate::Extend,
        KEEP_SIZE => Allocate::KeepSize,
        PUNCH_HOLE => Allocate::PunchHole,
        ZERO_RANGE => Allocate::ZeroRange,
        ZERO_RANGE_KEEP_SIZE => Allocate::ZeroRangeKeepSize,
        _ => return Err(Errno(libc::EOPNOTSUPP)),
    };
    if range.length == 0 || range.offset.checked_add(range.length).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Errno(libc::EINVAL));
    }
    Ok(FuseOperation::Allocate { handle: range.fh, how, offset: range.offset, length: range.length })
}

fn decode_lock(opcode: u32, asked: LkIn) -> Result<FuseOperation, Errno> {
    let (handle, FuseLock { start, end: last, kind, pid: process }) = (asked.fh, asked.lk);
    if start > last {
        return Err(Errno(libc::EINVAL));
    }
    let family = if asked.lk_flags & LK_FLOCK != 0 { LockFamily::Whole } else { LockFamily::Range };
    let owner = LockOwner { family, id: asked.owner };
    let mode = match kind as i32 {
        libc::F_RDLCK => LockMode::Shared,
        libc::F_WRLCK => LockMode::Exclusive,
        libc::F_UNLCK if opcode != op::GETLK => {
            return Ok(FuseOperation::Unlock { handle, owner, range: (start, last) });
        }
        _ => return Err(Errno(libc::EINVAL)),
    };
    let lock = FileLock { owner, start, last, mode, process };
    Ok(match opcode {
        op::GETLK => FuseOperation::FindLock { handle, lock },
        _ => FuseOperation::Lock { handle, lock, waits: opcode == op::SETLKW },
    })
}

fn decode_seek(seek: LseekIn) -> Result<FuseOperation, Errno> {
    let what = match seek.whence as i32 {
        libc::SEEK_DATA => Seek::Data,
        libc::SEEK_HOLE => Seek::Hole,
        _ => return Err(Errno(libc::EINVAL)),
    };
    Ok(FuseOperation::Seek { handle: seek.fh, offset: seek.offset, what })
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
