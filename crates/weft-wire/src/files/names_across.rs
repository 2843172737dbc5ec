//! Names that lead from one shard to another, as a check of tables has seen them (F3).

use super::attributes::decode_kind;
use super::{decode_bool, decode_count};
use crate::{DecodeError, Decoder, Encoder};
use weft_types::limits::NAMES_ACROSS_MAX;
use weft_types::{FileKind, InodeNumber};

/// What one shard's check has seen of an inode that has a name in another shard than its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameAcross {
    /// The inode: one of this shard, or of another one.
    pub inode: InodeNumber,
    /// Of an inode of another shard: how many names it has here. Of one of this shard: how many more names it
    /// says that it has than are here.
    pub names: u32,
    /// Of an inode of another shard: a directory that has one of the names. Of one of this shard: the
    /// directory that it says to have its only name in, or 0.
    pub directory: InodeNumber,
    /// What a name says that it is; of one of this shard, what it is.
    pub kind: FileKind,
}

/// Names that lead from one shard to another, by inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamesAcross {
    /// At most [`NAMES_ACROSS_MAX`], by inode.
    pub names: Vec<NameAcross>,
    /// Whether there are none behind these.
    pub is_end: bool,
}

/// What an inode says of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeNames {
    /// How many it has, in all shards: of a directory 0 or 1.
    pub names: u32,
    /// The directory that it says to have its only name in, or 0.
    pub directory: InodeNumber,
    /// What it is.
    pub kind: FileKind,
    /// Raised by each change of it or of its names.
    pub revision: u64,
    /// A transaction may have changed it that this shard has not heard the end of.
    pub is_locked: bool,
}

impl NamesAcross {
    pub(super) fn encode(&self, e: &mut Encoder) {
        e.u8(self.is_end.into()).u32(self.names.len() as u32);
        for NameAcross { inode, names, directory, kind } in &self.names {
            e.u64(inode.0).u32(*names).u64(directory.0).u8(*kind as u8);
        }
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<NamesAcross, DecodeError> {
        let is_end = decode_bool(d, "end of names")?;
        let names = (0..decode_count(d, "names", NAMES_ACROSS_MAX)?).map(|_| {
            let (inode, names, directory) = (InodeNumber(d.u64()?), d.u32()?, InodeNumber(d.u64()?));
            Ok(NameAcross { inode, names, directory, kind: decode_kind(d)? })
        });
        Ok(NamesAcross { names: names.collect::<Result<_, DecodeError>>()?, is_end })
    }
}

impl InodeNames {
    pub(super) fn encode(&self, e: &mut Encoder) {
        e.u32(self.names).u64(self.directory.0).u8(self.kind as u8);
        e.u64(self.revision).u8(self.is_locked.into());
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<InodeNames, DecodeError> {
        let (names, directory, kind) = (d.u32()?, InodeNumber(d.u64()?), decode_kind(d)?);
        let (revision, is_locked) = (d.u64()?, decode_bool(d, "lock of an inode")?);
        Ok(InodeNames { names, directory, kind, revision, is_locked })
    }
}
