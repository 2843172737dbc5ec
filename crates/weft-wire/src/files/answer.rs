//! What a shard answers.

use super::attributes::{decode_attributes, decode_kind, encode_attributes};
use super::lock::FileLock;
use super::names_across::{InodeNames, NamesAcross};
use super::operation::HoldMode;
use super::quota::QuotaList;
use super::shard_state::ShardState;
use super::table_check::TableCheck;
use super::use_of_shard::UseOfShard;
use super::{decode_bool, decode_bytes, decode_count, encode_bytes};
use crate::{DecodeError, Decoder, Encoder};
use thiserror::Error;
use weft_types::limits::{
    FILE_NAME_BYTES_MAX, INODES_ASKED_MAX, LINK_TARGET_BYTES_MAX, LISTED_ENTRIES_MAX, RECALLS_MAX,
    XATTR_NAMES_BYTES_MAX, XATTR_VALUE_BYTES_MAX,
};
use weft_types::{Attributes, FileKind, InodeNumber};

/// Why an operation changed nothing. Numbers are stable; each has the error number of Linux that a mount
/// returns.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileError {
    /// `ENOENT`.
    #[error("no such file or directory")]
    NotFound = 1,
    /// `EEXIST`.
    #[error("the name is taken")]
    Exists = 2,
    /// `ENOTDIR`.
    #[error("not a directory")]
    NotDirectory = 3,
    /// `EISDIR`.
    #[error("it is a directory")]
    IsDirectory = 4,
    /// `ENOTEMPTY`.
    #[error("the directory is not empty")]
    NotEmpty = 5,
    /// `ENAMETOOLONG`.
    #[error("the name has more than 255 bytes")]
    NameTooLong = 6,
    /// `EINVAL`.
    #[error("the operation makes no sense for these")]
    Invalid = 7,
    /// `EMLINK`.
    #[error("the file has as many names as it may have")]
    TooManyLinks = 8,
    /// `ENODATA`.
    #[error("no such extended attribute")]
    NoXattr = 9,
    /// `EFBIG`.
    #[error("larger than a file may be")]
    TooLarge = 10,
    /// `ENOSPC`.
    #[error("no space is left for it")]
    NoSpace = 11,
    /// `EPERM`.
    #[error("not permitted for this kind of file")]
    NotPermitted = 12,
    /// `ESTALE`.
    #[error("the inode is gone")]
    Stale = 13,
    /// `EIO`: more operations in flight than a session may have, or a number that was answered for good.
    #[error("the session's numbers do not fit")]
    OutOfOrder = 14,
    /// What another session holds is in the way: it is to be awaited ([`super::Operation::Await`]).
    #[error("another mount uses it")]
    Busy = 15,
    /// `EAGAIN`: somebody else has a lock that is in the way.
    #[error("it is locked")]
    Locked = 16,
    /// `EDEADLK`: who has the lock waits for one of this owner.
    #[error("each would wait for the other's lock")]
    Deadlock = 17,
    /// `ENOLCK`.
    #[error("the mount has as many locks of the file as it may have")]
    NoLocks = 18,
    /// `EDQUOT`.
    #[error("its user, group or project has no space or no inodes left: a quota is used up")]
    OverQuota = 19,
    /// `EXDEV`.
    #[error("the directory belongs to another project: copy it there, and remove it here")]
    OtherProject = 20,
}

impl FileError {
    const ALL: [FileError; 20] = [
        FileError::NotFound,
        FileError::Exists,
        FileError::NotDirectory,
        FileError::IsDirectory,
        FileError::NotEmpty,
        FileError::NameTooLong,
        FileError::Invalid,
        FileError::TooManyLinks,
        FileError::NoXattr,
        FileError::TooLarge,
        FileError::NoSpace,
        FileError::NotPermitted,
        FileError::Stale,
        FileError::OutOfOrder,
        FileError::Busy,
        FileError::Locked,
        FileError::Deadlock,
        FileError::NoLocks,
        FileError::OverQuota,
        FileError::OtherProject,
    ];

    /// The error with this number.
    pub fn from_u8(n: u8) -> Option<FileError> {
        FileError::ALL.into_iter().find(|error| *error as u8 == n)
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEntry {
    /// Its place in the order of entries; names may share one.
    pub cookie: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// What it names.
    pub attributes: Attributes,
    /// The attributes last, as those of [`Answer::Lasting`].
    pub lasts: bool,
}

/// Entries of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The directory that the directory is in; itself for the root.
    pub parent: u64,
    /// Its entries, by cookie and name, without `.` and `..`.
    pub entries: Vec<ListedEntry>,
    /// Whether no entry follows.
    pub is_end: bool,
}

/// What a session has to do because another one waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// The number by which it is answered.
    pub number: u64,
    /// What it is about.
    pub inode: InodeNumber,
    /// The mode that may stay; [`HoldMode::Write`]: the shard is to hear of size and times, and nothing is
    /// given back.
    pub keeps: HoldMode,
}

/// Where the data of an inode may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataBounds {
    /// Its layout; see `weft_layout::FileLayout`.
    pub layout: [u8; 12],
    /// Nothing of it lies from this offset on (F8), in bytes.
    pub end: u64,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Attributes of what was found, made, linked, unlinked, renamed or changed, after that.
    Attributes(Attributes),
    /// Likewise, of what was found. Nobody else changes them as long as the session holds this directory to
    /// read: the inode itself, or the directory of its only name. To sessions only that hold it.
    Lasting(Attributes, InodeNumber),
    /// It is done.
    Done,
    /// Entries of a directory.
    Listed(Listed),
    /// A link's target, or the value of an extended attribute.
    Bytes(Vec<u8>),
    /// Names of extended attributes, in order.
    Names(Vec<Vec<u8>>),
    /// Nothing was changed.
    Failed(FileError),
    /// Until now nothing lay from this offset on in the file.
    Reserved(u64),
    /// What the session has to do, in no order.
    Recalled(Vec<Recall>),
    /// A lock of somebody else that is in the way, if there is one.
    Lock(Option<FileLock>),
    /// How a check of the tables stands.
    Check(TableCheck),
    /// Who uses the shard.
    Use(UseOfShard),
    /// What the shard is made of, and what it has done.
    State(ShardState),
    /// Where the data of each of the inodes may be, in the order in which they were asked for; nothing of
    /// those that are not there.
    DataOf(Vec<Option<DataBounds>>),
    /// Names that lead from this shard to others, or to it from others.
    Across(NamesAcross),
    /// What each of the inodes says of its names, in the order in which they were asked for; nothing of those
    /// that are not there.
    NamesOf(Vec<Option<InodeNames>>),
    /// What is used and limited in this shard.
    Quotas(QuotaList),
    /// The project of an inode; 0 if it has none.
    Project(u32),
    /// What has the name lies in another shard, which knows its attributes (F3).
    Elsewhere(InodeNumber, FileKind),
}

impl Answer {
    /// Appends the answer.
    pub fn encode(&self, e: &mut Encoder) {
        match self {
            Answer::Attributes(attributes) => encode_attributes(e.u8(1), attributes),
            Answer::Done => {
                e.u8(2);
            }
            Answer::Listed(listed) => encode_listed(e, listed),
            Answer::Bytes(bytes) => encode_bytes(e.u8(4), bytes),
            Answer::Names(names) => {
                e.u8(5).u32(names.len() as u32);
                names.iter().for_each(|name| encode_bytes(e, name));
            }
            Answer::Failed(error) => {
                e.u8(6).u8(*error as u8);
            }
            Answer::Reserved(before) => {
                e.u8(7).u64(*before);
            }
            Answer::Recalled(recalls) => {
                e.u8(8).u32(recalls.len() as u32);
                for Recall { number, inode, keeps } in recalls {
                    e.u64(*number).u64(inode.0).u8(*keeps as u8);
                }
            }
            Answer::Lock(lock) => {
                e.u8(9).u8(lock.is_some().into());
                lock.iter().for_each(|lock| lock.encode(e));
            }
            Answer::Check(check) => check.encode(e.u8(10)),
            Answer::Use(used) => used.encode(e.u8(11)),
            Answer::State(state) => state.encode(e.u8(12)),
            Answer::DataOf(bounds) => {
                e.u8(15).u32(bounds.len() as u32);
                for bounds in bounds {
                    e.u8(bounds.is_some().into());
                    if let Some(bounds) = bounds {
                        e.bytes(&bounds.layout).u64(bounds.end);
                    }
                }
            }
            Answer::Across(across) => across.encode(e.u8(17)),
            Answer::NamesOf(inodes) => {
                e.u8(18).u32(inodes.len() as u32);
                for names in inodes {
                    e.u8(names.is_some().into());
                    names.iter().for_each(|names| names.encode(e));
                }
            }
            Answer::Quotas(list) => list.encode(e.u8(19)),
            Answer::Project(project) => drop(e.u8(20).u32(*project)),
            Answer::Elsewhere(inode, kind) => drop(e.u8(16).u64(inode.0).u8(*kind as u8)),
            Answer::Lasting(attributes, directory) => {
                encode_attributes(e.u8(13).u64(directory.0), attributes)
            }
        }
    }

    /// Takes an answer.
    ///
    /// # Errors
    /// If the bytes end early, or a field has a value that it cannot have.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Answer, DecodeError> {
        let number = d.u8()?;
        Ok(match number {
            1 => Answer::Attributes(decode_attributes(d)?),
            2 => Answer::Done,
            3 => Answer::Listed(decode_listed(d, false)?),
            4 => Answer::Bytes(decode_bytes(d, "bytes", LINK_TARGET_BYTES_MAX.max(XATTR_VALUE_BYTES_MAX))?),
            5 => {
                let count = decode_count(d, "names", XATTR_NAMES_BYTES_MAX as u32)?;
                let names = (0..count).map(|_| decode_bytes(d, "name", FILE_NAME_BYTES_MAX));
                Answer::Names(names.collect::<Result<Vec<_>, _>>()?)
            }
            6 => {
                let n = d.u8()?;
                let error = FileError::from_u8(n);
                Answer::Failed(error.ok_or(DecodeError::Invalid { field: "file error", value: n.into() })?)
            }
            7 => Answer::Reserved(d.u64()?),
            8 => {
                let recalls = (0..decode_count(d, "recalls", RECALLS_MAX)?).map(|_| {
                    let (number, inode) = (d.u64()?, InodeNumber(d.u64()?));
                    Ok(Recall { number, inode, keeps: HoldMode::decode(d)? })
                });
                Answer::Recalled(recalls.collect::<Result<_, _>>()?)
            }
            9 => match decode_bool(d, "lock in the way")? {
                true => Answer::Lock(Some(FileLock::decode(d)?)),
                false => Answer::Lock(None),
            },
            10 => Answer::Check(TableCheck::decode(d)?),
            11 => Answer::Use(UseOfShard::decode(d)?),
            12 => Answer::State(ShardState::decode(d)?),
            13 => {
                let directory = InodeNumber(d.u64()?);
                Answer::Lasting(decode_attributes(d)?, directory)
            }
            14 => Answer::Listed(decode_listed(d, true)?),
            15 => {
                let bounds = (0..decode_count(d, "inodes", INODES_ASKED_MAX)?).map(|_| {
                    Ok(match decode_bool(d, "whether an inode is there")? {
                        true => Some(DataBounds { layout: d.array()?, end: d.u64()? }),
                        false => None,
                    })
                });
                Answer::DataOf(bounds.collect::<Result<_, _>>()?)
            }
            17 => Answer::Across(NamesAcross::decode(d)?),
            18 => {
                let inodes = (0..decode_count(d, "inodes", INODES_ASKED_MAX)?).map(|_| {
                    Ok(match decode_bool(d, "whether an inode is there")? {
                        true => Some(InodeNames::decode(d)?),
                        false => None,
                    })
                });
                Answer::NamesOf(inodes.collect::<Result<_, _>>()?)
            }
            19 => Answer::Quotas(QuotaList::decode(d)?),
            20 => Answer::Project(d.u32()?),
            16 => Answer::Elsewhere(InodeNumber(d.u64()?), decode_kind(d)?),
            n => return Err(DecodeError::Invalid { field: "answer", value: n.into() }),
        })
    }
}

/// Which entries last is said where some do: only sessions that hold directories know what it means.
fn encode_listed(e: &mut Encoder, listed: &Listed) {
    let some_last = listed.entries.iter().any(|entry| entry.lasts);
    e.u8(if some_last { 14 } else { 3 });
    e.u64(listed.parent).u8(listed.is_end.into()).u32(listed.entries.len() as u32);
    for entry in &listed.entries {
        encode_bytes(e.u64(entry.cookie), &entry.name);
        encode_attributes(e, &entry.attributes);
        if some_last {
            e.u8(entry.lasts.into());
        }
    }
}

fn decode_listed(d: &mut Decoder<'_>, some_last: bool) -> Result<Listed, DecodeError> {
    let parent = InodeNumber(d.u64()?).0;
    let is_end = decode_bool(d, "end of a directory")?;
    let count = decode_count(d, "entries", 2 * LISTED_ENTRIES_MAX)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let cookie = d.u64()?;
        let name = decode_bytes(d, "name", FILE_NAME_BYTES_MAX)?;
        let attributes = decode_attributes(d)?;
        let lasts = some_last && decode_bool(d, "whether attributes last")?;
        entries.push(ListedEntry { cookie, name, attributes, lasts });
    }
    Ok(Listed { parent, entries, is_end })
}
