//! The whole map on drives: in parts, of which each drive keeps one (C11). docs/format/drive.md says where.
//!
//! ```text
//!  offset  size  field
//!       0     8  magic: "WEFTPART"
//!       8     4  version of the form, little-endian: 1
//!      12     2  which part
//!      14     2  of how many
//!      16    16  fabric
//!      32     8  version of the map
//!      40     4  CRC-32C of all parts' bytes together
//!      44     4  CRC-32C of bytes 0 to 43
//!      48        bytes of the part
//! ```
//!
//! All parts' bytes together are the map as pieces ([`crate::pieces`]), compressed as zlib does. Pure: it
//! knows no drive. Parts of one version that were made by two processes may differ, so parts belong together
//! by the checksum.

use crate::pieces::{decode_whole, encode_whole};
use crate::{DecodeError, Decoder, Encoder, crc32c};
use flate2::Compression;
use flate2::read::{ZlibDecoder, ZlibEncoder};
use std::collections::BTreeMap;
use std::io::Read;
use weft_types::limits::{MAP_PARTS_MAX, PIECES_BYTES_MAX};
use weft_types::{FabricId, FabricMap, MapVersion};

const MAGIC: [u8; 8] = *b"WEFTPART";

/// The version that is written, and the newest that is read.
const VERSION: u32 = 1;

/// Bytes before a part's own.
const HEADER_BYTES: usize = 48;

/// A part of a whole map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapPart {
    /// The fabric.
    pub fabric: FabricId,
    /// The version of the map.
    pub version: MapVersion,
    /// Which part it is, from 0 on.
    pub part: u16,
    /// Of how many.
    pub parts: u16,
    /// The checksum of all parts' bytes together.
    crc: u32,
    bytes: Vec<u8>,
}

/// The map in parts of at most so many bytes as [`MapPart::encode`] writes them; none if that takes more
/// parts than there may be.
///
/// # Panics
/// If a part has no room for anything.
pub fn split(map: &FabricMap, part_bytes: usize) -> Option<Vec<MapPart>> {
    let mut whole = Vec::new();
    let pieces = encode_whole(map);
    ZlibEncoder::new(&pieces[..], Compression::fast()).read_to_end(&mut whole).expect("memory is read");
    let room = part_bytes.checked_sub(HEADER_BYTES).filter(|room| *room > 0).expect("a part has room");
    let chunks: Vec<&[u8]> = whole.chunks(room).collect();
    let parts = u16::try_from(chunks.len()).ok().filter(|parts| *parts <= MAP_PARTS_MAX)?;
    let crc = crc32c(&whole);
    let part = |(part, bytes): (u16, &&[u8])| MapPart {
        fabric: map.fabric,
        version: map.version,
        part,
        parts,
        crc,
        bytes: bytes.to_vec(),
    };
    Some((0..).zip(&chunks).map(part).collect())
}

/// The maps of which all parts are there, and how many versions are incomplete.
pub fn join(parts: Vec<MapPart>) -> (Vec<FabricMap>, usize) {
    let mut versions: BTreeMap<(MapVersion, u32, u16), BTreeMap<u16, Vec<u8>>> = BTreeMap::new();
    for part in parts {
        let version = versions.entry((part.version, part.crc, part.parts)).or_default();
        version.insert(part.part, part.bytes);
    }
    let (mut maps, mut incomplete) = (Vec::new(), 0);
    for ((version, crc, parts), found) in versions {
        let whole: Vec<u8> = found.values().flatten().copied().collect();
        let is_whole = found.len() == usize::from(parts) && crc32c(&whole) == crc;
        match unpack(&whole).filter(|map| is_whole && map.version == version) {
            Some(map) => maps.push(map),
            None => incomplete += 1,
        }
    }
    (maps, incomplete)
}

fn unpack(whole: &[u8]) -> Option<FabricMap> {
    let mut pieces = Vec::new();
    let limit = PIECES_BYTES_MAX as u64 + 1;
    ZlibDecoder::new(whole).take(limit).read_to_end(&mut pieces).ok()?;
    decode_whole(&pieces).ok()
}

impl MapPart {
    /// The part as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::with_capacity(HEADER_BYTES + self.bytes.len());
        e.bytes(&MAGIC).u32(VERSION).u16(self.part).u16(self.parts);
        e.bytes(&self.fabric.0.to_le_bytes()).u64(self.version.0).u32(self.crc);
        let crc = crc32c(&e.0);
        e.u32(crc).bytes(&self.bytes);
        e.0
    }

    /// Reads a part.
    ///
    /// # Errors
    /// If the bytes are no part, or one of a later form.
    pub fn decode(bytes: &[u8]) -> Result<MapPart, DecodeError> {
        let mut d = Decoder::new(bytes);
        if d.array::<8>()? != MAGIC {
            return Err(DecodeError::Document("it does not begin as a part of a map does".into()));
        }
        let found = d.u32()?;
        if found != VERSION {
            return Err(DecodeError::Version { found, newest: VERSION });
        }
        let (part, parts) = (d.u16()?, d.u16()?);
        let (fabric, version, crc) =
            (FabricId(u128::from_le_bytes(d.array()?)), MapVersion(d.u64()?), d.u32()?);
        if d.u32()? != crc32c(&bytes[..HEADER_BYTES - 4]) {
            return Err(DecodeError::Document("the head of a part of a map is damaged".into()));
        }
        if part >= parts || parts > MAP_PARTS_MAX {
            return Err(DecodeError::Invalid { field: "part of a map", value: part.into() });
        }
        let left = d.left();
        Ok(MapPart { fabric, version, part, parts, crc, bytes: d.bytes(left)?.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_types::{Pool, PoolId};

    fn map(pools: u32) -> FabricMap {
        let pool =
            |id| (PoolId(id), Pool { id: PoolId(id), name: format!("pool-{}", crc32c(&id.to_le_bytes())) });
        FabricMap {
            version: MapVersion(7),
            pools: (0..pools).map(pool).collect(),
            ..FabricMap::empty(FabricId(5))
        }
    }

    #[test]
    fn a_map_is_its_parts_in_any_order_and_twice() {
        let map = map(300);
        let mut parts = split(&map, 400).expect("few");
        assert!(parts.len() > 3 && parts.iter().all(|part| part.encode().len() <= 400));
        parts.reverse();
        parts.extend(parts.clone());
        assert_eq!(join(parts.clone()), (vec![map.clone()], 0));
        parts.retain(|part| part.part != 1);
        assert_eq!(join(parts), (vec![], 1));
        // A second version does not mix with the first.
        let next = FabricMap { version: MapVersion(8), ..map.clone() };
        let both = [split(&map, 400), split(&next, 400)].map(|parts| parts.expect("few")).concat();
        assert_eq!(join(both), (vec![map, next], 0));
    }

    #[test]
    fn no_flipped_bit_and_no_missing_byte_of_a_head_passes() {
        let bytes = split(&map(3), 4096).expect("few")[0].encode();
        assert!(MapPart::decode(&bytes).is_ok());
        for at in 0..HEADER_BYTES {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(MapPart::decode(&bad).is_err(), "byte {at}");
            assert!(MapPart::decode(&bytes[..at]).is_err(), "cut off at {at}");
        }
    }

    proptest! {
        #[test]
        fn bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(part) = MapPart::decode(&bytes) {
                prop_assert_eq!(part.encode(), bytes);
            }
        }

        #[test]
        fn damaged_bytes_of_parts_make_no_map(at in 0usize..2000, to in any::<u8>()) {
            let whole = map(300);
            let mut parts = split(&whole, 400).expect("few");
            let (part, byte) = (at / 300 % parts.len(), at % 300);
            let bytes = &mut parts[part].bytes;
            let byte = byte % bytes.len();
            let was = std::mem::replace(&mut bytes[byte], to);
            prop_assert_eq!(join(parts).0.len(), usize::from(was == to));
        }
    }
}
