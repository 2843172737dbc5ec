//! What a client asks a shard to do.

use super::attributes::{decode_kind, decode_mode, decode_time, encode_time};
use super::lock::{FileLock, LockOwner, decode_range};
use super::quota::{QuotaAmount, QuotaOf};
use super::{decode_bytes, decode_count, encode_bytes};
use crate::{DecodeError, Decoder, Encoder, crc32c};
use weft_types::limits::{
    FILE_NAME_BYTES_MAX, INODES_ASKED_MAX, LINK_TARGET_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use weft_types::{FileKind, FileTime, InodeNumber, SessionId};

/// An operation with what makes it happen once (F1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRequest {
    /// The session of the mount.
    pub session: SessionId,
    /// Numbers the session's operations that change something, from 1; 0 for others. A request that is sent
    /// again has the same number.
    pub number: u64,
    /// The session has all answers up to this number: they need not be kept.
    pub answered: u64,
    /// What to do.
    pub operation: Operation,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameIn {
    /// The directory.
    pub directory: InodeNumber,
    /// The name: 1 to 255 bytes, none of which is `/` or 0, and neither `.` nor `..`.
    pub name: Vec<u8>,
}

/// An inode that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// What it is.
    pub kind: FileKind,
    /// Its permissions.
    pub mode: u16,
    /// Permissions that it does not get, unless the directory has a default access control list: then that
    /// says which.
    pub umask: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group, where the directory does not say it (`S_ISGID`).
    pub gid: u32,
    /// Device number of a device, otherwise 0.
    pub device: u64,
    /// Target of a symbolic link, otherwise empty.
    pub target: Vec<u8>,
}

/// What a rename does where the new name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RenameMode {
    /// Replaces it.
    Replace = 0,
    /// Fails (`RENAME_NOREPLACE`).
    Keep = 1,
    /// The two names are exchanged; both have to be there (`RENAME_EXCHANGE`).
    Exchange = 2,
}

/// Which extended attributes may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum XattrMode {
    /// New ones and present ones.
    Either = 0,
    /// New ones only (`XATTR_CREATE`).
    Create = 1,
    /// Present ones only (`XATTR_REPLACE`).
    Replace = 2,
}

/// What a session may do with an inode that it has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HoldMode {
    /// It may do nothing; the inode stays.
    Open = 0,
    /// It may read data, and knows the size: nobody else changes them meanwhile.
    Read = 1,
    /// It may write data and choose the size: nobody else reads or writes meanwhile.
    Write = 2,
    /// It may read data, write whole blocks and make the file longer, and so may others meanwhile (F7).
    Shared = 3,
}

impl HoldMode {
    /// The mode with this number.
    pub fn from_u8(n: u8) -> Option<HoldMode> {
        let modes = [HoldMode::Open, HoldMode::Read, HoldMode::Write, HoldMode::Shared];
        modes.into_iter().find(|mode| *mode as u8 == n)
    }

    /// Whether two sessions may hold an inode in these modes at once.
    pub fn goes_with(self, other: HoldMode) -> bool {
        let goes_with_itself = matches!(self, HoldMode::Read | HoldMode::Shared);
        self == HoldMode::Open || other == HoldMode::Open || (self == other && goes_with_itself)
    }

    /// Whether who holds an inode in this mode may do all that the other mode allows.
    pub fn covers(self, other: HoldMode) -> bool {
        self == other || self == HoldMode::Write || other == HoldMode::Open
    }

    /// Whether who holds an inode in this mode may write, and so know more of it than the shard.
    pub fn writes(self) -> bool {
        matches!(self, HoldMode::Write | HoldMode::Shared)
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<HoldMode, DecodeError> {
        let n = d.u8()?;
        HoldMode::from_u8(n).ok_or(DecodeError::Invalid { field: "hold mode", value: n.into() })
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// That of the shard.
    Now,
    /// This one.
    At(FileTime),
}

/// Attributes to change; those that are `None` stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChanges {
    /// Permissions.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes; only of a file.
    pub size: Option<u64>,
    /// When it was read.
    pub accessed: Option<SetTime>,
    /// When its contents changed.
    pub modified: Option<SetTime>,
}

/// What a shard can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Attributes of what has a name.
    Find(NameIn),
    /// Attributes of an inode.
    Attributes(InodeNumber),
    /// Makes an inode and its name, which must not be there.
    Create(NameIn, NewInode),
    /// Makes a file without a name (`O_TMPFILE`) that takes its layout from a directory.
    CreateUnnamed(InodeNumber, NewInode),
    /// Another name of an inode that is not a directory.
    Link(InodeNumber, NameIn),
    /// Removes a name of what is not a directory.
    Unlink(NameIn),
    /// Removes an empty directory. The session does not hold it any more.
    RemoveDirectory(NameIn),
    /// Gives what has the first name the second one.
    Rename(NameIn, NameIn, RenameMode),
    /// Changes attributes.
    Change(InodeNumber, AttributeChanges),
    /// Entries of a directory with attributes, in the order of their cookies, behind a cookie.
    List {
        /// The directory.
        directory: InodeNumber,
        /// The cookie of the last entry that is known, 0 at the beginning.
        after: u64,
        /// The most entries, from 1 on; those of equal cookies are never cut apart.
        limit: u32,
    },
    /// Target of a symbolic link.
    Target(InodeNumber),
    /// Value of an extended attribute.
    Xattr(InodeNumber, Vec<u8>),
    /// Names of all extended attributes.
    XattrNames(InodeNumber),
    /// Sets an extended attribute.
    SetXattr(InodeNumber, Vec<u8>, Vec<u8>, XattrMode),
    /// Removes an extended attribute.
    RemoveXattr(InodeNumber, Vec<u8>),
    /// The session has the inode open, and may do with it from now on what the mode says, which may be less
    /// than until now. It is not purged before the session has released it or is over, whether or not it has
    /// a name. Refused if it has no name, and nobody holds it, and as long as another session holds it in a
    /// mode that does not go with this one (F4). Of directories there is only the root to write, which stands
    /// for all names and attributes, and is refused as long as another session holds anything; and to open,
    /// which gives these back. [`HoldMode::Shared`] is granted only if nothing lies behind the end of the
    /// file: to a session that holds it to write, which makes sure of that, and beside others that share it.
    /// Refused with [`super::FileError::NotPermitted`] otherwise (F7).
    Hold(InodeNumber, HoldMode),
    /// Changes attributes, and the session has the inode open no more.
    Release(InodeNumber, AttributeChanges),
    /// Bytes may be written up to this offset of a file, which are found when it is purged. Answered with the
    /// end until then; that is never lowered by this.
    Reserve(InodeNumber, u64),
    /// What lay in a file from this offset on is given back. Answered with the end until then.
    Unreserve(InodeNumber, u64),
    /// Makes a file and its name, which the session has open to write, with bytes reserved up to this offset.
    CreateOpen(NameIn, NewInode, u64),
    /// What others wait for that this session has to do. Answered when there is something, or a second later.
    Recalls,
    /// The shard knows by now what was asked for by the recall of this number.
    Told(u64),
    /// Has others give back what is in the way of an operation, which was refused with
    /// [`super::FileError::Busy`] or would be. Answered when nothing is. Of a lock: waits until nobody has
    /// one that is in its way; refused with [`super::FileError::Deadlock`] if that would be for ever.
    Await(Box<Operation>),
    /// Takes a lock of an inode that the session has open; what the owner had in its range is replaced.
    /// Refused with [`super::FileError::Locked`] if another owner has a lock that excludes it, and never
    /// waits (F11).
    Lock(InodeNumber, FileLock),
    /// Gives back what an owner has locked from the first byte to the last one.
    Unlock(InodeNumber, LockOwner, (u64, u64)),
    /// Which lock of another owner would be in the way of this one.
    FindLock(InodeNumber, FileLock),
    /// Has the shard compare all that is in its tables while it serves, and says how that stands. It is asked
    /// again by the same number until it is over. While the check of another number is under way, the answer
    /// is the state of that one.
    Check(u64),
    /// Who uses the shard, and who waits for whom.
    Use,
    /// What the shard is made of, and what it has done.
    State,
    /// The session holds a directory to read (F4): its names and attributes stay as they are, and so do the
    /// attributes of what has its only name there, unless another session holds that to write. Less than the
    /// session holds already is not taken for it. Given back by [`Operation::Release`].
    HoldDirectory(InodeNumber),
    /// Where the data of inodes may be, at most [`INODES_ASKED_MAX`] of them: for a check of what groups
    /// hold.
    DataOf(Vec<InodeNumber>),
    /// Names that lead from this shard to others, or to it from others, as the check of this number has seen
    /// them: of inodes behind this one, by inode. Refused with [`super::FileError::NotFound`] if that check
    /// is not the last one that has ended here (F3).
    Across(u64, InodeNumber),
    /// What inodes say of their names, at most [`INODES_ASKED_MAX`] of them.
    NamesOf(Vec<InodeNumber>),
    /// A file that the session may write is at least this long, and data were written at this time (F7). It
    /// never becomes shorter. Its time becomes this one, or the next after the one that it has. Answered with
    /// its attributes.
    Grow(InodeNumber, u64, FileTime),
    /// How the data of files lie that are made in a directory from now on, or of a file that has none yet:
    /// see `weft_layout::FileLayout`. The set of groups stays as it is. Refused with
    /// [`super::FileError::NotPermitted`] once a file has data, and while a session has it open; with
    /// [`super::FileError::Invalid`] if no file can have the layout. Answered with the attributes.
    SetLayout(InodeNumber, [u8; 12]),
    /// How much may be used of the file system in all shards (F16). Each shard is asked, by the number that
    /// stands for it ([`InodeNumber::whole_of`]), the first one last. What is used already stays. The
    /// directory that a project begins with is kept with it, to be shown; 0 leaves that as it is.
    SetQuota(InodeNumber, QuotaOf, QuotaAmount, InodeNumber),
    /// What is used and limited in the shard, from this quota on, in their order.
    Quotas(QuotaOf),
    /// An inode belongs to a project from now on, or with 0 to none, and so does what is made in it (F16).
    /// What a directory has already stays as it is.
    SetProject(InodeNumber, u32),
    /// The project of an inode.
    Project(InodeNumber),
}

impl Operation {
    /// The CRC-32C of the operation's bytes, by which two operations are told apart.
    pub fn checksum(&self) -> u32 {
        let mut e = Encoder::default();
        self.encode(&mut e);
        crc32c(&e.0)
    }

    /// The inode whose shard carries it out.
    pub fn inode(&self) -> InodeNumber {
        match self {
            Operation::Find(at)
            | Operation::Create(at, _)
            | Operation::CreateOpen(at, ..)
            | Operation::Link(_, at)
            | Operation::Unlink(at)
            | Operation::RemoveDirectory(at)
            | Operation::Rename(at, ..) => at.directory,
            Operation::Attributes(inode)
            | Operation::CreateUnnamed(inode, _)
            | Operation::Change(inode, _)
            | Operation::List { directory: inode, .. }
            | Operation::Target(inode)
            | Operation::Xattr(inode, _)
            | Operation::XattrNames(inode)
            | Operation::SetXattr(inode, ..)
            | Operation::RemoveXattr(inode, _)
            | Operation::Hold(inode, _)
            | Operation::HoldDirectory(inode)
            | Operation::Release(inode, _)
            | Operation::Reserve(inode, _)
            | Operation::Unreserve(inode, _)
            | Operation::Grow(inode, ..)
            | Operation::SetLayout(inode, _)
            | Operation::SetQuota(inode, ..)
            | Operation::SetProject(inode, _)
            | Operation::Project(inode)
            | Operation::Lock(inode, _)
            | Operation::Unlock(inode, ..)
            | Operation::FindLock(inode, _) => *inode,
            Operation::Recalls
            | Operation::Told(_)
            | Operation::Check(_)
            | Operation::Use
            | Operation::State
            | Operation::DataOf(_)
            | Operation::Across(..)
            | Operation::NamesOf(_)
            | Operation::Quotas(_) => InodeNumber::ROOT,
            Operation::Await(operation) => operation.inode(),
        }
    }

    /// Whether it is about the server of a shard, or asks of its tables what no program asks.
    pub fn is_of_server(&self) -> bool {
        matches!(
            self,
            Operation::Recalls
                | Operation::Told(_)
                | Operation::Await(_)
                | Operation::Check(_)
                | Operation::Use
                | Operation::State
                | Operation::DataOf(_)
                | Operation::Across(..)
                | Operation::NamesOf(_)
                | Operation::Quotas(_)
        )
    }

    /// Whether it needs only what the session holds already, so that nothing of others is in its way.
    pub fn is_of_holder(&self) -> bool {
        matches!(
            self,
            Operation::Release(..) | Operation::Reserve(..) | Operation::Unreserve(..) | Operation::Grow(..)
        )
    }

    /// Whether it may make the tables of a shard larger: refused where there is no space.
    pub fn grows(&self) -> bool {
        match self {
            Operation::Create(..)
            | Operation::CreateOpen(..)
            | Operation::CreateUnnamed(..)
            | Operation::Link(..)
            | Operation::SetXattr(..) => true,
            Operation::Rename(from, to, _) => to.name.len() > from.name.len(),
            _ => false,
        }
    }

    /// Whether it can change anything, and so has to happen once.
    pub fn changes(&self) -> bool {
        match self {
            Operation::Find(_)
            | Operation::Attributes(_)
            | Operation::List { .. }
            | Operation::Target(_)
            | Operation::Xattr(..)
            | Operation::XattrNames(_)
            | Operation::Recalls
            | Operation::Told(_)
            | Operation::Await(_)
            | Operation::FindLock(..)
            | Operation::Check(_)
            | Operation::Use
            | Operation::State
            | Operation::DataOf(_)
            | Operation::Across(..)
            | Operation::NamesOf(_)
            | Operation::Project(_)
            | Operation::Quotas(_) => false,
            Operation::Create(..)
            | Operation::CreateOpen(..)
            | Operation::CreateUnnamed(..)
            | Operation::Link(..)
            | Operation::Unlink(_)
            | Operation::RemoveDirectory(_)
            | Operation::Rename(..)
            | Operation::Change(..)
            | Operation::SetXattr(..)
            | Operation::RemoveXattr(..)
            | Operation::Hold(..)
            | Operation::HoldDirectory(_)
            | Operation::Release(..)
            | Operation::Reserve(..)
            | Operation::Unreserve(..)
            | Operation::Grow(..)
            | Operation::SetLayout(..)
            | Operation::SetQuota(..)
            | Operation::SetProject(..)
            | Operation::Lock(..)
            | Operation::Unlock(..) => true,
        }
    }
}

/// The number of [`Operation::Await`].
const AWAIT: u8 = 23;

impl FileRequest {
    /// Appends the request: session, number, answered, then the operation.
    pub fn encode(&self, e: &mut Encoder) {
        e.u64(self.session.0).u64(self.number).u64(self.answered);
        self.operation.encode(e);
    }

    /// Takes a request.
    ///
    /// # Errors
    /// If the bytes end early, or a field has a value that it cannot have.
    pub fn decode(d: &mut Decoder<'_>) -> Result<FileRequest, DecodeError> {
        let (session, number, answered) = (SessionId(d.u64()?), d.u64()?, d.u64()?);
        Ok(FileRequest { session, number, answered, operation: Operation::decode(d)? })
    }
}

impl Operation {
    fn encode(&self, e: &mut Encoder) {
        match self {
            Operation::Find(at) => encode_name(e.u8(1), at),
            Operation::Attributes(inode) => encode_of_inode(e, 2, *inode),
            Operation::Create(at, made) => {
                encode_name(e.u8(3), at);
                made.encode(e);
            }
            Operation::CreateUnnamed(directory, made) => {
                e.u8(4).u64(directory.0);
                made.encode(e);
            }
            Operation::Link(inode, at) => encode_name(e.u8(5).u64(inode.0), at),
            Operation::Unlink(at) => encode_name(e.u8(6), at),
            Operation::RemoveDirectory(at) => encode_name(e.u8(7), at),
            Operation::Rename(from, to, mode) => {
                e.u8(8).u8(*mode as u8);
                encode_name(e, from);
                encode_name(e, to);
            }
            Operation::Change(inode, changes) => {
                e.u8(9).u64(inode.0);
                changes.encode(e);
            }
            Operation::List { directory, after, limit } => {
                e.u8(10).u64(directory.0).u64(*after).u32(*limit);
            }
            Operation::Target(inode) => encode_of_inode(e, 11, *inode),
            Operation::Xattr(inode, name) => encode_bytes(e.u8(12).u64(inode.0), name),
            Operation::XattrNames(inode) => encode_of_inode(e, 13, *inode),
            Operation::SetXattr(inode, name, value, mode) => {
                encode_bytes(e.u8(14).u64(inode.0).u8(*mode as u8), name);
                encode_bytes(e, value);
            }
            Operation::RemoveXattr(inode, name) => encode_bytes(e.u8(15).u64(inode.0), name),
            Operation::Hold(inode, mode) => {
                e.u8(16).u64(inode.0).u8(*mode as u8);
            }
            Operation::Release(inode, changes) => {
                e.u8(17).u64(inode.0);
                changes.encode(e);
            }
            Operation::Reserve(inode, end) => {
                e.u8(18).u64(inode.0).u64(*end);
            }
            Operation::Unreserve(inode, end) => {
                e.u8(19).u64(inode.0).u64(*end);
            }
            Operation::CreateOpen(at, made, end) => {
                encode_name(e.u8(20), at);
                made.encode(e);
                e.u64(*end);
            }
            Operation::Lock(inode, lock) => lock.encode(e.u8(24).u64(inode.0)),
            Operation::Unlock(inode, owner, (start, last)) => {
                owner.encode(e.u8(25).u64(inode.0));
                e.u64(*start).u64(*last);
            }
            Operation::FindLock(inode, lock) => lock.encode(e.u8(26).u64(inode.0)),
            Operation::HoldDirectory(inode) => encode_of_inode(e, 30, *inode),
            Operation::Grow(inode, size, time) => {
                encode_time(e.u8(32).u64(inode.0).u64(*size), *time);
            }
            Operation::SetLayout(inode, layout) => drop(e.u8(33).u64(inode.0).bytes(layout)),
            of_server => of_server.encode_of_server(e),
        }
    }

    /// What is about a shard as a whole.
    fn encode_of_server(&self, e: &mut Encoder) {
        match self {
            Operation::Recalls => drop(e.u8(21)),
            Operation::Told(number) => drop(e.u8(22).u64(*number)),
            Operation::Await(operation) => operation.encode(e.u8(AWAIT)),
            Operation::Check(number) => drop(e.u8(27).u64(*number)),
            Operation::Use => drop(e.u8(28)),
            Operation::State => drop(e.u8(29)),
            Operation::DataOf(inodes) => encode_inodes(e.u8(31), inodes),
            Operation::Across(number, after) => drop(e.u8(34).u64(*number).u64(after.0)),
            Operation::NamesOf(inodes) => encode_inodes(e.u8(35), inodes),
            Operation::Quotas(from) => from.encode(e.u8(37)),
            Operation::SetQuota(inode, of, limit, directory) => {
                of.encode(e.u8(36).u64(inode.0));
                limit.encode(e);
                e.u64(directory.0);
            }
            Operation::SetProject(inode, project) => drop(e.u8(38).u64(inode.0).u32(*project)),
            Operation::Project(inode) => drop(e.u8(39).u64(inode.0)),
            other => unreachable!("{other:?} is about the tables of a shard"),
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Operation, DecodeError> {
        Operation::decode_some(d, true)
    }

    /// What is awaited awaits nothing.
    fn decode_some(d: &mut Decoder<'_>, may_await: bool) -> Result<Operation, DecodeError> {
        let number = d.u8()?;
        Ok(match number {
            1 => Operation::Find(decode_name(d)?),
            2 => Operation::Attributes(decode_inode(d)?),
            3 => Operation::Create(decode_name(d)?, NewInode::decode(d)?),
            4 => Operation::CreateUnnamed(decode_inode(d)?, NewInode::decode(d)?),
            5 => Operation::Link(decode_inode(d)?, decode_name(d)?),
            6 => Operation::Unlink(decode_name(d)?),
            7 => Operation::RemoveDirectory(decode_name(d)?),
            8 => {
                let modes = [RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange];
                let mode = decode_one_of(d, "rename mode", &modes)?;
                Operation::Rename(decode_name(d)?, decode_name(d)?, mode)
            }
            9 => Operation::Change(decode_inode(d)?, AttributeChanges::decode(d)?),
            10 => Operation::List { directory: decode_inode(d)?, after: d.u64()?, limit: d.u32()? },
            11 => Operation::Target(decode_inode(d)?),
            12 => Operation::Xattr(decode_inode(d)?, decode_xattr_name(d)?),
            13 => Operation::XattrNames(decode_inode(d)?),
            14 => {
                let inode = decode_inode(d)?;
                let modes = [XattrMode::Either, XattrMode::Create, XattrMode::Replace];
                let mode = decode_one_of(d, "extended attribute mode", &modes)?;
                let name = decode_xattr_name(d)?;
                let value = decode_bytes(d, "extended attribute value", XATTR_VALUE_BYTES_MAX)?;
                Operation::SetXattr(inode, name, value, mode)
            }
            15 => Operation::RemoveXattr(decode_inode(d)?, decode_xattr_name(d)?),
            16 => Operation::Hold(decode_inode(d)?, HoldMode::decode(d)?),
            17 => Operation::Release(decode_inode(d)?, AttributeChanges::decode(d)?),
            18 => Operation::Reserve(decode_inode(d)?, d.u64()?),
            19 => Operation::Unreserve(decode_inode(d)?, d.u64()?),
            20 => Operation::CreateOpen(decode_name(d)?, NewInode::decode(d)?, d.u64()?),
            21 => Operation::Recalls,
            22 => Operation::Told(d.u64()?),
            24 => Operation::Lock(decode_inode(d)?, FileLock::decode(d)?),
            25 => Operation::Unlock(decode_inode(d)?, LockOwner::decode(d)?, decode_range(d)?),
            26 => Operation::FindLock(decode_inode(d)?, FileLock::decode(d)?),
            27 => Operation::Check(d.u64()?),
            28 => Operation::Use,
            29 => Operation::State,
            30 => Operation::HoldDirectory(decode_inode(d)?),
            31 => Operation::DataOf(decode_inodes(d)?),
            32 => Operation::Grow(decode_inode(d)?, d.u64()?, decode_time(d)?),
            33 => Operation::SetLayout(decode_inode(d)?, d.array()?),
            34 => Operation::Across(d.u64()?, decode_inode(d)?),
            35 => Operation::NamesOf(decode_inodes(d)?),
            36 => {
                let (inode, of) = (decode_inode(d)?, QuotaOf::decode(d)?);
                Operation::SetQuota(inode, of, QuotaAmount::decode(d)?, InodeNumber(d.u64()?))
            }
            37 => Operation::Quotas(QuotaOf::decode(d)?),
            38 => Operation::SetProject(decode_inode(d)?, d.u32()?),
            39 => Operation::Project(decode_inode(d)?),
            AWAIT if may_await => Operation::Await(Box::new(Operation::decode_some(d, false)?)),
            n => return Err(DecodeError::Invalid { field: "operation", value: n.into() }),
        })
    }
}

impl NewInode {
    fn encode(&self, e: &mut Encoder) {
        e.u8(self.kind as u8).u16(self.mode).u16(self.umask).u32(self.uid).u32(self.gid).u64(self.device);
        encode_bytes(e, &self.target);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<NewInode, DecodeError> {
        Ok(NewInode {
            kind: decode_kind(d)?,
            mode: decode_mode(d)?,
            umask: decode_mode(d)?,
            uid: d.u32()?,
            gid: d.u32()?,
            device: d.u64()?,
            target: decode_bytes(d, "link target", LINK_TARGET_BYTES_MAX)?,
        })
    }
}

/// Bits that say which attributes follow, in this order.
const MODE: u8 = 1;
const UID: u8 = 2;
const GID: u8 = 4;
const SIZE: u8 = 8;
const ACCESSED: u8 = 16;
const MODIFIED: u8 = 32;

impl AttributeChanges {
    fn encode(&self, e: &mut Encoder) {
        let bit = |is_there: bool, bit: u8| if is_there { bit } else { 0 };
        e.u8(bit(self.mode.is_some(), MODE)
            | bit(self.uid.is_some(), UID)
            | bit(self.gid.is_some(), GID)
            | bit(self.size.is_some(), SIZE)
            | bit(self.accessed.is_some(), ACCESSED)
            | bit(self.modified.is_some(), MODIFIED));
        if let Some(mode) = self.mode {
            e.u16(mode);
        }
        for id in self.uid.iter().chain(&self.gid) {
            e.u32(*id);
        }
        if let Some(size) = self.size {
            e.u64(size);
        }
        for time in self.accessed.iter().chain(&self.modified) {
            match time {
                SetTime::Now => {
                    e.u8(0);
                }
                SetTime::At(time) => encode_time(e.u8(1), *time),
            }
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Result<AttributeChanges, DecodeError> {
        let bits = d.u8()?;
        if bits > MODE | UID | GID | SIZE | ACCESSED | MODIFIED {
            return Err(DecodeError::Invalid { field: "attributes to change", value: bits.into() });
        }
        let has = |bit: u8| bits & bit != 0;
        Ok(AttributeChanges {
            mode: has(MODE).then(|| decode_mode(d)).transpose()?,
            uid: has(UID).then(|| d.u32()).transpose()?,
            gid: has(GID).then(|| d.u32()).transpose()?,
            size: has(SIZE).then(|| d.u64()).transpose()?,
            accessed: has(ACCESSED).then(|| decode_set_time(d)).transpose()?,
            modified: has(MODIFIED).then(|| decode_set_time(d)).transpose()?,
        })
    }
}

fn decode_set_time(d: &mut Decoder<'_>) -> Result<SetTime, DecodeError> {
    match d.u8()? {
        0 => Ok(SetTime::Now),
        1 => Ok(SetTime::At(decode_time(d)?)),
        n => Err(DecodeError::Invalid { field: "time to set", value: n.into() }),
    }
}

/// An operation of this number that says no more than its inode.
fn encode_of_inode(e: &mut Encoder, number: u8, inode: InodeNumber) {
    e.u8(number).u64(inode.0);
}

fn encode_inodes(e: &mut Encoder, inodes: &[InodeNumber]) {
    e.u32(inodes.len() as u32);
    for inode in inodes {
        e.u64(inode.0);
    }
}

fn decode_inodes(d: &mut Decoder<'_>) -> Result<Vec<InodeNumber>, DecodeError> {
    let count = decode_count(d, "inodes", INODES_ASKED_MAX)?;
    (0..count).map(|_| decode_inode(d)).collect()
}

fn decode_inode(d: &mut Decoder<'_>) -> Result<InodeNumber, DecodeError> {
    Ok(InodeNumber(d.u64()?))
}

fn encode_name(e: &mut Encoder, at: &NameIn) {
    encode_bytes(e.u64(at.directory.0), &at.name);
}

/// A name that is too long is taken as it is: the shard answers what Linux answers.
fn decode_name(d: &mut Decoder<'_>) -> Result<NameIn, DecodeError> {
    let directory = decode_inode(d)?;
    Ok(NameIn { directory, name: decode_bytes(d, "name", 4 * FILE_NAME_BYTES_MAX)? })
}

fn decode_xattr_name(d: &mut Decoder<'_>) -> Result<Vec<u8>, DecodeError> {
    decode_bytes(d, "extended attribute name", XATTR_NAME_BYTES_MAX)
}

/// The value whose place in the list is the next byte.
fn decode_one_of<T: Copy>(d: &mut Decoder<'_>, field: &'static str, values: &[T]) -> Result<T, DecodeError> {
    let n = d.u8()?;
    values.get(usize::from(n)).copied().ok_or(DecodeError::Invalid { field, value: n.into() })
}
