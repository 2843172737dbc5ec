//! Messages of file systems: operations on names and attributes, and their answers.

mod addressed;
mod answer;
mod attributes;
mod lock;
mod names_across;
mod operation;
mod quota;
mod shard_state;
mod table_check;
mod use_of_shard;

pub use addressed::ShardRequest;
pub use answer::{Answer, DataBounds, FileError, Listed, ListedEntry, Recall};
pub use attributes::{ATTRIBUTES_BYTES, decode_attributes, encode_attributes};
pub use lock::{FileLock, LockFamily, LockMode, LockOwner};
pub use names_across::{InodeNames, NameAcross, NamesAcross};
pub use operation::{
    AttributeChanges, FileRequest, HoldMode, NameIn, NewInode, Operation, RenameMode, SetTime, XattrMode,
};
pub use quota::{QuotaAmount, QuotaKind, QuotaList, QuotaOf, QuotaUse};
pub use shard_state::ShardState;
pub use table_check::{CheckFinding, TableCheck};
pub use use_of_shard::{ShardUser, ShardWait, UseOfShard};

use crate::{DecodeError, Decoder, Encoder};

/// Writes bytes behind their length.
fn encode_bytes(e: &mut Encoder, bytes: &[u8]) {
    e.u32(bytes.len() as u32).bytes(bytes);
}

/// Reads bytes behind their length, at most `most` of them.
fn decode_bytes(d: &mut Decoder<'_>, field: &'static str, most: usize) -> Result<Vec<u8>, DecodeError> {
    let length = d.u32()?;
    if length as usize > most {
        return Err(DecodeError::Invalid { field, value: length.into() });
    }
    Ok(d.bytes(length as usize)?.to_vec())
}

fn decode_bool(d: &mut Decoder<'_>, field: &'static str) -> Result<bool, DecodeError> {
    match d.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        n => Err(DecodeError::Invalid { field, value: n.into() }),
    }
}

fn decode_count(d: &mut Decoder<'_>, field: &'static str, most: u32) -> Result<u32, DecodeError> {
    match d.u32()? {
        count if count <= most => Ok(count),
        count => Err(DecodeError::Invalid { field, value: count.into() }),
    }
}
