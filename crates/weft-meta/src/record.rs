//! Values of a shard's tables.

use crate::key::{Key, KeyParts};
use crate::quota::{Given, Quota};
use std::rc::Rc;
use weft_types::{Attributes, FileKind, FileTime, InodeNumber};
use weft_wire::files::{
    ATTRIBUTES_BYTES, Answer, FileLock, HoldMode, LockMode, LockOwner, decode_attributes, encode_attributes,
};
use weft_wire::{DecodeError, Decoder, Encoder};

/// A value as bytes, shared by the tables and what is written of them.
pub type Value = Rc<[u8]>;

/// The longest value: a page of the tree has room for two items.
pub const VALUE_BYTES_MAX: usize = 1536;

/// Bytes of a piece of what does not fit a value.
pub(crate) const PIECE_BYTES: usize = 1024;

/// What a shard itself keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRecord {
    /// Inodes up to this number, not included, may have been made: a shard that is opened goes on from there.
    pub reserved: u64,
    /// The key of the hash of names: one for all shards of a file system.
    pub hash_key: [u8; 16],
    /// The number of the shard in its file system.
    pub number: u16,
}

impl ShardRecord {
    /// Inodes that are reserved together: so many may be made before the record changes.
    pub(crate) const RESERVED: u64 = 1024;

    /// The record as bytes.
    pub fn encode(&self) -> Value {
        let mut e = Encoder::default();
        e.u64(self.reserved).bytes(&self.hash_key).u16(self.number);
        e.0.into()
    }

    /// The record of these bytes.
    ///
    /// # Errors
    /// If they are none.
    pub fn decode(bytes: &[u8]) -> Result<ShardRecord, DecodeError> {
        let mut d = Decoder::new(bytes);
        let record = ShardRecord { reserved: d.u64()?, hash_key: d.array()?, number: d.u16()? };
        if record.reserved == 0 || record.reserved >> InodeNumber::COUNTER_BITS != 0 {
            return Err(DecodeError::Invalid { field: "reserved inodes", value: record.reserved });
        }
        if record.number >= InodeNumber::SHARDS {
            return Err(DecodeError::Invalid { field: "shard", value: record.number.into() });
        }
        d.finish()?;
        Ok(record)
    }
}

/// An inode: what `stat` says of it, except what the parts of a directory say, and what only the shard needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its attributes. Those of a directory have 2 links (0 once its name is gone), size 0, and the time of
    /// its last change apart from its entries.
    pub attributes: Attributes,
    /// The directory that it has its only name in; itself for the root. 0 for a file without a name, for one
    /// with several or that had several, and for one that was made before files had this.
    pub parent: InodeNumber,
    /// No byte was ever written from here on.
    pub reserved_end: u64,
    /// How many changes of its entries the parts of a directory had counted when the time of its last change
    /// was set: that time holds until they count more.
    pub modified_revision: u64,
    /// Made without a name, and never had one (`O_TMPFILE`): it may still get one.
    pub is_unnamed: bool,
    /// The project that it counts for, and that what is made in it gets (F16); 0 for none.
    pub project: u32,
}

/// Bits of the byte of an inode that says what is true of it.
const UNNAMED: u8 = 1;
/// Its project follows.
const IN_PROJECT: u8 = 2;

impl Inode {
    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.attributes.kind == FileKind::Directory
    }

    /// The directory whose holders keep its attributes: itself, or the one of its only name (F4).
    pub fn kept_with(&self) -> Option<InodeNumber> {
        match self.is_directory() {
            true => Some(self.attributes.inode),
            false => {
                // A file that lies in another shard than its directory is not kept with it.
                let is_beside = |parent: &InodeNumber| parent.shard() == self.attributes.inode.shard();
                let parent = Some(self.parent).filter(|parent| *parent != InodeNumber(0));
                parent.filter(is_beside).filter(|_| self.attributes.links == 1)
            }
        }
    }

    /// The inode as bytes.
    pub fn encode(&self) -> Value {
        let mut e = Encoder::with_capacity(ATTRIBUTES_BYTES + 29);
        encode_attributes(&mut e, &self.attributes);
        e.u64(self.parent.0).u64(self.reserved_end).u64(self.modified_revision);
        let bit = |bit: u8, is_so: bool| if is_so { bit } else { 0 };
        e.u8(bit(UNNAMED, self.is_unnamed) | bit(IN_PROJECT, self.project != 0));
        if self.project != 0 {
            e.u32(self.project);
        }
        e.0.into()
    }

    /// The inode of these bytes.
    ///
    /// # Errors
    /// If they are none.
    pub fn decode(bytes: &[u8]) -> Result<Inode, DecodeError> {
        let mut d = Decoder::new(bytes);
        let (attributes, parent) = (decode_attributes(&mut d)?, InodeNumber(d.u64()?));
        let (reserved_end, modified_revision, bits) = (d.u64()?, d.u64()?, d.u8()?);
        let project = if bits & IN_PROJECT == 0 { 0 } else { d.u32()? };
        if bits & !(UNNAMED | IN_PROJECT) != 0 || (project == 0 && bits & IN_PROJECT != 0) {
            return Err(DecodeError::Invalid { field: "bits of an inode", value: bits.into() });
        }
        d.finish()?;
        let is_unnamed = bits & UNNAMED != 0;
        Ok(Inode { attributes, parent, reserved_end, modified_revision, is_unnamed, project })
    }
}

/// What is counted of a part of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Its entries.
    pub entries: u64,
    /// Those of them that are directories.
    pub directories: u32,
    /// When an entry came or went last.
    pub modified: FileTime,
    /// How often that was.
    pub revision: u64,
}

impl Part {
    /// The part as bytes.
    pub fn encode(&self) -> Value {
        let mut e = Encoder::with_capacity(32);
        e.u64(self.entries).u32(self.directories).u64(self.modified.seconds as u64);
        e.u32(self.modified.nanoseconds).u64(self.revision);
        e.0.into()
    }

    /// The part of these bytes.
    ///
    /// # Errors
    /// If they are none.
    pub fn decode(bytes: &[u8]) -> Result<Part, DecodeError> {
        let mut d = Decoder::new(bytes);
        let (entries, directories) = (d.u64()?, d.u32()?);
        let modified = FileTime { seconds: d.u64()? as i64, nanoseconds: d.u32()? };
        if modified.nanoseconds >= FileTime::SECOND || u64::from(directories) > entries {
            return Err(DecodeError::Invalid { field: "part of a directory", value: entries });
        }
        let part = Part { entries, directories, modified, revision: d.u64()? };
        d.finish()?;
        Ok(part)
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub inode: InodeNumber,
    /// What it is.
    pub kind: FileKind,
}

impl Entry {
    /// The entry as bytes.
    pub fn encode(&self) -> Value {
        let mut e = Encoder::with_capacity(9);
        e.u64(self.inode.0).u8(self.kind as u8);
        e.0.into()
    }

    /// What is known of an inode that lies in another shard: number and kind. Its revision is 0, which no
    /// inode has.
    pub(crate) fn elsewhere(&self) -> Attributes {
        let never = FileTime::default();
        Attributes {
            inode: self.inode,
            kind: self.kind,
            mode: 0,
            links: 0,
            uid: 0,
            gid: 0,
            size: 0,
            device: 0,
            accessed: never,
            modified: never,
            changed: never,
            born: never,
            layout: [0; 12],
            revision: 0,
        }
    }

    /// The entry of these bytes.
    ///
    /// # Errors
    /// If they are none.
    pub fn decode(bytes: &[u8]) -> Result<Entry, DecodeError> {
        let mut d = Decoder::new(bytes);
        let (inode, kind) = (InodeNumber(d.u64()?), d.u8()?);
        let kind =
            FileKind::from_u8(kind).ok_or(DecodeError::Invalid { field: "kind", value: kind.into() })?;
        d.finish()?;
        Ok(Entry { inode, kind })
    }
}

/// An answer that is kept (F1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptAnswer {
    /// The checksum of the operation that was answered.
    pub(crate) of: u32,
    /// The answer.
    pub(crate) answer: Answer,
}

impl KeptAnswer {
    /// The answer as bytes.
    pub(crate) fn encode(&self) -> Value {
        let mut e = Encoder::default();
        self.answer.encode(e.u32(self.of));
        e.0.into()
    }

    /// The answer of these bytes.
    ///
    /// # Errors
    /// If they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<KeptAnswer, DecodeError> {
        let mut d = Decoder::new(bytes);
        let kept = KeptAnswer { of: d.u32()?, answer: Answer::decode(&mut d)? };
        d.finish()?;
        Ok(kept)
    }
}

/// What is locked for a transaction, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prepared {
    /// The transaction has happened, and its changes are made.
    pub(crate) is_applied: bool,
    /// The number of an inode that was made for it; it is locked, too.
    pub(crate) made: Option<InodeNumber>,
    /// Inodes that are locked.
    pub(crate) locks: Vec<InodeNumber>,
}

impl Prepared {
    /// It as bytes.
    pub(crate) fn encode(&self) -> Value {
        let mut e = Encoder::default();
        e.u8(self.is_applied.into()).u64(self.made.map_or(0, |made| made.0)).u8(self.locks.len() as u8);
        for inode in &self.locks {
            e.u64(inode.0);
        }
        e.0.into()
    }

    /// What these bytes say.
    ///
    /// # Errors
    /// If they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Prepared, DecodeError> {
        let mut d = Decoder::new(bytes);
        let is_applied = match d.u8()? {
            0 => false,
            1 => true,
            n => return Err(DecodeError::Invalid { field: "state of a transaction", value: n.into() }),
        };
        let made = Some(InodeNumber(d.u64()?)).filter(|made| made.0 != 0);
        let count = d.u8()?;
        let locks = (0..count).map(|_| d.u64().map(InodeNumber)).collect::<Result<_, _>>()?;
        d.finish()?;
        Ok(Prepared { is_applied, made, locks })
    }
}

/// A number as a value: of a session, the last operation that was answered for good.
pub(crate) fn encode_number(n: u64) -> Value {
    Rc::new(n.to_le_bytes())
}

/// The number of such a value.
///
/// # Errors
/// If it has not 8 bytes.
pub(crate) fn decode_number(bytes: &[u8]) -> Result<u64, DecodeError> {
    let mut d = Decoder::new(bytes);
    let number = d.u64()?;
    d.finish()?;
    Ok(number)
}

/// Checks that a value is one that its key can have, so that who reads the tables later may rely on it.
///
/// # Errors
/// What does not fit.
pub(crate) fn check_value(key: &Key, value: &[u8]) -> Result<(), DecodeError> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(DecodeError::Long(value.len() - VALUE_BYTES_MAX));
    }
    match key.parts().expect("a key was checked when it was made") {
        KeyParts::Shard => ShardRecord::decode(value).map(drop),
        KeyParts::Session(_) => decode_number(value).map(drop),
        KeyParts::Answer(..) => KeptAnswer::decode(value).map(drop),
        KeyParts::Inode(inode) => match Inode::decode(value)?.attributes.inode {
            found if found == inode => Ok(()),
            found => Err(DecodeError::Invalid { field: "inode", value: found.0 }),
        },
        KeyParts::Part(..) => Part::decode(value).map(drop),
        KeyParts::Entry(..) => Entry::decode(value).map(drop),
        KeyParts::Target(_, piece) | KeyParts::Xattr(_, _, piece) => match (piece, value.len()) {
            (0, 0..4) => Err(DecodeError::Short { offset: 0, needed: 4, found: value.len() }),
            _ => Ok(()),
        },
        KeyParts::Orphan(_) => Decoder::new(value).finish(),
        KeyParts::Held(..) => decode_hold(value).map(drop),
        KeyParts::Transactions | KeyParts::Over(_) | KeyParts::Room(_) => decode_number(value).map(drop),
        KeyParts::Committed(..) => Ok(()),
        KeyParts::Prepared(..) => Prepared::decode(value).map(drop),
        KeyParts::Lock(_, _, owner, start) => decode_lock(owner, start, value).map(drop),
        KeyParts::Quota(_) => Quota::decode(value).map(drop),
        KeyParts::Budget(..) => Given::decode(value).map(drop),
    }
}

/// In which mode a session holds an inode.
///
/// # Errors
/// If it is none.
pub fn decode_hold(value: &[u8]) -> Result<HoldMode, DecodeError> {
    let mut d = Decoder::new(value);
    let n = d.u8()?;
    d.finish()?;
    HoldMode::from_u8(n).ok_or(DecodeError::Invalid { field: "hold mode", value: n.into() })
}

/// A lock as a value: what its key does not say.
pub(crate) fn encode_lock(lock: &FileLock) -> Value {
    let mut e = Encoder::with_capacity(13);
    e.u64(lock.last).u8(lock.mode as u8).u32(lock.process);
    e.0.into()
}

/// The lock of a key and a value.
///
/// # Errors
/// If the value is none, or ends before it begins.
pub fn decode_lock(owner: LockOwner, start: u64, value: &[u8]) -> Result<FileLock, DecodeError> {
    let mut d = Decoder::new(value);
    let (last, mode, process) = (d.u64()?, d.u8()?, d.u32()?);
    d.finish()?;
    if last < start {
        return Err(DecodeError::Invalid { field: "last byte of a lock", value: last });
    }
    let found = LockMode::from_u8(mode);
    let mode = found.ok_or(DecodeError::Invalid { field: "lock mode", value: mode.into() })?;
    Ok(FileLock { owner, start, last, mode, process })
}
