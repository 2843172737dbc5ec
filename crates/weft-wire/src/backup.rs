//! A backup of the fabric map, as a file: what it is of, the map, and a checksum over both. Text, three lines:
//!
//! ```text
//! {"format":"weft-map-backup","format_version":1,"fabric":"...","map":7,"taken_ms":...,"software":"0.1.0","map_bytes":n}
//! {... the map, JSON ...}
//! {"crc32c":"1a2b3c4d"}        of all bytes before this line
//! ```
//! It owns the bytes. Whether a backup may be gone back to is not decided here.

use crate::control::{decode_map, encode_map};
use crate::lines::{self, error_of_format};
use serde::{Deserialize, Serialize};
use weft_types::{FabricId, FabricMap, MapVersion};

/// What the first line calls itself.
const FORMAT: &str = "weft-map-backup";

/// The version of the three lines.
const FORMAT_VERSION: u32 = 1;

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHead {
    /// Always the same word.
    format: String,
    /// The version of the format.
    format_version: u32,
    /// The fabric.
    pub fabric: FabricId,
    /// The version of the map.
    pub map: MapVersion,
    /// When it was taken, in milliseconds since 1970-01-01T00:00:00Z.
    pub taken_ms: u64,
    /// The version of the program that took it.
    pub software: String,
    /// Bytes of the map.
    map_bytes: usize,
}

error_of_format!(
    /// Why a file is no backup that can be used.
    BackupError,
    "it is no backup of a fabric map",
    FORMAT_VERSION
);

/// A backup of this map.
///
/// # Panics
/// Never: these shapes always serialise.
pub fn encode_backup(map: &FabricMap, taken_ms: u64) -> Vec<u8> {
    let body = encode_map(map);
    let head = BackupHead {
        format: FORMAT.into(),
        format_version: FORMAT_VERSION,
        fabric: map.fabric,
        map: map.version,
        taken_ms,
        software: env!("CARGO_PKG_VERSION").into(),
        map_bytes: body.len(),
    };
    lines::encode(&head, &body)
}

/// What a backup holds.
///
/// # Errors
/// If the bytes are not exactly what was written as a backup once.
pub fn decode_backup(bytes: &[u8]) -> Result<(BackupHead, FabricMap), BackupError> {
    let damaged = |why: &str| BackupError::Damaged(why.to_owned());
    let (head, body) = lines::decode(bytes, FORMAT, FORMAT_VERSION, |head: &BackupHead| head.map_bytes)?;
    let map = decode_map(body).map_err(|e| damaged(&e.to_string()))?;
    if map.fabric != head.fabric || map.version != head.map {
        return Err(damaged("its first line is about another map"));
    }
    Ok((head, map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_reads_back_and_no_changed_or_missing_byte_passes() {
        let map = FabricMap::empty(FabricId::from_random(7));
        let bytes = encode_backup(&map, 1_700_000_000_000);
        let (head, found) = decode_backup(&bytes).expect("it is one");
        assert_eq!((head.fabric, head.map, &found), (map.fabric, map.version, &map));
        for at in 0..bytes.len() - 1 {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(decode_backup(&bad).is_err(), "byte {at} of {}", bytes.len());
            assert!(decode_backup(&bytes[..at]).is_err(), "cut off at {at}");
        }
    }

    #[test]
    fn a_newer_format_and_other_files_are_told_apart() {
        let text = String::from_utf8(encode_backup(&FabricMap::empty(FabricId(1)), 1)).expect("text");
        let newer = text.replacen("\"format_version\":1", "\"format_version\":2", 1);
        assert_eq!(decode_backup(newer.as_bytes()), Err(BackupError::Newer { found: 2 }));
        assert_eq!(decode_backup(b"{}"), Err(BackupError::Foreign));
        assert_eq!(decode_backup(b""), Err(BackupError::Foreign));
    }
}
