//! What the drives of one machine know of their fabric, as a file: for a recovery of the fabric map on
//! another machine. docs/format/collected.md has the bytes.
//!
//! It owns the bytes. What is made of it, and whether it may be used, is not decided here.

use crate::control::decode_map;
use crate::lines::{self, error_of_format};
use crate::map_part::MapPart;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{
    DriveId, FabricId, FabricMap, Generation, Group, GroupId, MapVersion, SessionSlot, VolumeId,
};

/// What the first line calls itself.
const FORMAT: &str = "weft-collected-drives";

/// The version of the format.
const FORMAT_VERSION: u32 = 1;

/// What a drive knows of its groups, volumes and sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveContents {
    /// The drive.
    pub id: DriveId,
    /// The version of its copy of the map.
    pub map_copy: MapVersion,
    /// The newest entry that it has adopted of each group that it knows, durably.
    pub entries: Vec<Group>,
    /// The generation that it has adopted of each volume that it knows, durably: it refuses older ones for
    /// good.
    pub generations: BTreeMap<VolumeId, Generation>,
    /// The session slots of which it holds open entries or a watermark, and in which groups: they were not
    /// swept.
    pub slots: BTreeMap<SessionSlot, BTreeSet<GroupId>>,
}

/// A drive that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectedDrive {
    /// Where it was found on its machine, for people.
    pub path: String,
    /// The version of its copy of the map; none if it holds none.
    pub map_copy: Option<MapVersion>,
    /// The newest commit that is durable on it: tells which of two readings of a drive is the newer one.
    pub commit: u64,
    /// What else it knows; none if it is not sound, and only its copy of the map could be read.
    pub contents: Option<DriveContents>,
    /// What people should know of it.
    pub warning: Option<String>,
}

/// What the drives of one machine know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// The copies of the map that differ, each once: slices of targets, and whole ones.
    pub maps: Vec<FabricMap>,
    /// The parts of whole maps that differ, each once.
    pub parts: Vec<MapPart>,
    /// The drives.
    pub drives: Vec<CollectedDrive>,
}

/// What the file says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectedHead {
    /// Always the same word.
    format: String,
    /// The version of the format.
    format_version: u32,
    /// The fabric of all its drives.
    pub fabric: FabricId,
    /// The machine, by its host name, for people.
    pub machine: String,
    /// When its drives were read, in milliseconds since 1970-01-01T00:00:00Z.
    pub taken_ms: u64,
    /// The version of the program that read them.
    pub software: String,
    /// Bytes of the second line.
    body_bytes: usize,
}

error_of_format!(
    /// Why a file cannot be used.
    CollectedError,
    "it does not hold what `weft fabric collect` writes",
    FORMAT_VERSION
);

/// The second line. A map is read apart, because its own shape has a version.
#[derive(Serialize, Deserialize)]
struct Body<M> {
    maps: Vec<M>,
    /// In hexadecimal digits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts: Vec<String>,
    drives: Vec<CollectedDrive>,
}

/// The file.
///
/// # Panics
/// Never: these shapes always serialise.
pub fn encode_collected(fabric: FabricId, machine: &str, taken_ms: u64, collected: &Collected) -> Vec<u8> {
    let hex = |part: &MapPart| part.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    let (maps, parts) = (collected.maps.iter().collect(), collected.parts.iter().map(hex).collect());
    let body = Body { maps, parts, drives: collected.drives.clone() };
    let body = serde_json::to_vec(&body).expect("what drives know serialises");
    let head = CollectedHead {
        format: FORMAT.into(),
        format_version: FORMAT_VERSION,
        fabric,
        machine: machine.into(),
        taken_ms,
        software: env!("CARGO_PKG_VERSION").into(),
        body_bytes: body.len(),
    };
    lines::encode(&head, &body)
}

/// What a file holds.
///
/// # Errors
/// If the bytes are not exactly what was written as such a file once, or a map in it is of a newer shape or
/// of another fabric than the file.
pub fn decode_collected(bytes: &[u8]) -> Result<(CollectedHead, Collected), CollectedError> {
    let damaged = |why: String| CollectedError::Damaged(why);
    let (head, body) = lines::decode(bytes, FORMAT, FORMAT_VERSION, |h: &CollectedHead| h.body_bytes)?;
    let body: Body<serde_json::Value> = serde_json::from_slice(body).map_err(|e| damaged(e.to_string()))?;
    let mut maps = Vec::with_capacity(body.maps.len());
    for value in body.maps {
        let map = decode_map(value.to_string().as_bytes()).map_err(|e| damaged(e.to_string()))?;
        if map.fabric != head.fabric {
            return Err(damaged(format!("a map of fabric {}, not {}", map.fabric, head.fabric)));
        }
        maps.push(map);
    }
    let mut parts = Vec::with_capacity(body.parts.len());
    for text in &body.parts {
        let bytes = from_hex(text).ok_or_else(|| damaged("a part of a map that is no hexadecimal".into()))?;
        let part = MapPart::decode(&bytes).map_err(|e| damaged(e.to_string()))?;
        if part.fabric != head.fabric {
            return Err(damaged(format!("a part of a map of fabric {}, not {}", part.fabric, head.fabric)));
        }
        parts.push(part);
    }
    Ok((head, Collected { maps, parts, drives: body.drives }))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|two| two[0] << 4 | two[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map_part::split;
    use weft_types::{Epoch, PoolId, Role, Slot};

    fn collected() -> Collected {
        let map = FabricMap::empty(FabricId::from_random(7));
        let slot = Slot { drive: DriveId(3), role: Role::InSync, since: Epoch(1) };
        let contents = DriveContents {
            id: DriveId(3),
            map_copy: map.version,
            entries: vec![Group {
                id: GroupId(4),
                pool: PoolId(1),
                epoch: Epoch(2),
                slots: vec![slot],
                floor: Default::default(),
            }],
            generations: BTreeMap::from([(VolumeId(5), Generation(6))]),
            slots: BTreeMap::from([(SessionSlot(7), BTreeSet::from([GroupId(4)]))]),
        };
        let sound = CollectedDrive {
            path: "/dev/a".into(),
            map_copy: Some(map.version),
            commit: 9,
            contents: Some(contents),
            warning: None,
        };
        let broken = CollectedDrive {
            path: "/dev/b".into(),
            contents: None,
            warning: Some("its log is damaged".into()),
            ..sound.clone()
        };
        let parts = split(&map, 4096).expect("few");
        Collected { maps: vec![map], parts, drives: vec![sound, broken] }
    }

    #[test]
    fn it_reads_back_and_no_changed_or_missing_byte_passes() {
        let collected = collected();
        let fabric = collected.maps[0].fabric;
        let bytes = encode_collected(fabric, "node-2", 1_700_000_000_000, &collected);
        let (head, found) = decode_collected(&bytes).expect("it is one");
        assert_eq!((head.fabric, &*head.machine, head.taken_ms), (fabric, "node-2", 1_700_000_000_000));
        assert_eq!(found, collected);
        for at in 0..bytes.len() - 1 {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(decode_collected(&bad).is_err(), "byte {at} of {}", bytes.len());
            assert!(decode_collected(&bytes[..at]).is_err(), "cut off at {at}");
        }
    }

    #[test]
    fn a_newer_format_another_file_and_a_map_of_another_fabric_are_refused() {
        let collected = collected();
        let text = encode_collected(collected.maps[0].fabric, "m", 1, &collected);
        let text = String::from_utf8(text).expect("text");
        let newer = text.replacen("\"format_version\":1", "\"format_version\":2", 1);
        assert_eq!(decode_collected(newer.as_bytes()), Err(CollectedError::Newer { found: 2 }));
        assert_eq!(decode_collected(b"{}"), Err(CollectedError::Foreign));
        let backup = crate::backup::encode_backup(&collected.maps[0], 1);
        assert_eq!(decode_collected(&backup), Err(CollectedError::Foreign));
        let mixed = encode_collected(FabricId(1), "m", 1, &collected);
        assert!(matches!(decode_collected(&mixed), Err(CollectedError::Damaged(_))));
    }
}
