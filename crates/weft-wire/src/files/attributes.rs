//! Attributes of an inode as bytes: the same on the wire and in the tables of a shard.

use crate::{DecodeError, Decoder, Encoder};
use weft_types::{Attributes, FileKind, FileTime, InodeNumber};

/// Bytes of encoded attributes.
pub const ATTRIBUTES_BYTES: usize = 8 + 1 + 2 + 4 * 3 + 8 * 2 + 12 * 4 + 12 + 8;

/// Bits of a mode.
const MODE_BITS: u16 = 0o7777;

/// Appends a time.
pub(super) fn encode_time(e: &mut Encoder, time: FileTime) {
    e.u64(time.seconds as u64).u32(time.nanoseconds);
}

/// Takes a time.
///
/// # Errors
/// If its nanoseconds are a second or more.
pub(super) fn decode_time(d: &mut Decoder<'_>) -> Result<FileTime, DecodeError> {
    let time = FileTime { seconds: d.u64()? as i64, nanoseconds: d.u32()? };
    match time.nanoseconds < FileTime::SECOND {
        true => Ok(time),
        false => Err(DecodeError::Invalid { field: "nanoseconds", value: time.nanoseconds.into() }),
    }
}

/// Takes permissions.
pub(super) fn decode_mode(d: &mut Decoder<'_>) -> Result<u16, DecodeError> {
    let mode = d.u16()?;
    match mode & !MODE_BITS {
        0 => Ok(mode),
        _ => Err(DecodeError::Invalid { field: "mode", value: mode.into() }),
    }
}

/// Takes what an inode is.
pub(super) fn decode_kind(d: &mut Decoder<'_>) -> Result<FileKind, DecodeError> {
    let kind = d.u8()?;
    FileKind::from_u8(kind).ok_or(DecodeError::Invalid { field: "kind", value: kind.into() })
}

/// Appends attributes, [`ATTRIBUTES_BYTES`] of them.
pub fn encode_attributes(e: &mut Encoder, a: &Attributes) {
    e.u64(a.inode.0).u8(a.kind as u8).u16(a.mode).u32(a.links).u32(a.uid).u32(a.gid);
    e.u64(a.size).u64(a.device);
    for time in [a.accessed, a.modified, a.changed, a.born] {
        encode_time(e, time);
    }
    e.bytes(&a.layout).u64(a.revision);
}

/// Takes attributes.
///
/// # Errors
/// If the bytes end early, or a field has a value that it cannot have.
pub fn decode_attributes(d: &mut Decoder<'_>) -> Result<Attributes, DecodeError> {
    Ok(Attributes {
        inode: InodeNumber(d.u64()?),
        kind: decode_kind(d)?,
        mode: decode_mode(d)?,
        links: d.u32()?,
        uid: d.u32()?,
        gid: d.u32()?,
        size: d.u64()?,
        device: d.u64()?,
        accessed: decode_time(d)?,
        modified: decode_time(d)?,
        changed: decode_time(d)?,
        born: decode_time(d)?,
        layout: d.array()?,
        revision: d.u64()?,
    })
}
