//! Messages of file systems: operations on names and attributes, and their answers.

mod addressed;
mod answer;
mod attributes;
mod lock;
mod operation;

pub use addressed::ShardRequest;
pub use answer::{Answer, FileError, Listed, ListedEntry, Recall};
pub use attributes::{ATTRIBUTES_BYTES, decode_attributes, encode_attributes};
pub use lock::{FileLock, LockFamily, LockMode, LockOwner};
pub use operation::{
    AttributeChanges, FileRequest, HoldMode, NameIn, NewInode, Operation, RenameMode, SetTime, XattrMode,
};

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
