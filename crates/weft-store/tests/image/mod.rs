//! Images of drives as files, and what a drive holds as text: what one version of the program has written, and
//! what every later one has to find on it.

#![allow(dead_code, missing_docs)]

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::rc::Rc;
use weft_rt::sim::SimDisk;
use weft_store::*;
use weft_types::limits::CHUNK_BLOCKS;
use weft_types::*;

/// Extents of a chunk that are listed one by one; of more, a checksum of the list is enough.
const EXTENTS_LISTED_MAX: usize = 24;

/// Sessions that a description asks for.
const SESSIONS: u64 = 40;

/// The disk as a file: its size, then each block that is not zero behind its offset; compressed.
pub fn pack(disk: &SimDisk) -> Vec<u8> {
    let mut out = disk.size_bytes().to_le_bytes().to_vec();
    let mut touched = disk.touched();
    touched.sort_unstable();
    for at in touched {
        let block = disk.peek(at, BLOCK_SIZE);
        if block.iter().any(|b| *b != 0) {
            out.extend_from_slice(&at.to_le_bytes());
            out.extend_from_slice(&block);
        }
    }
    compress(&out)
}

pub fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::best());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

pub fn decompress(packed: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut out).unwrap();
    out
}

/// The disk that a file was made of.
pub fn unpack(name: &str, packed: &[u8]) -> SimDisk {
    let bytes = decompress(packed);
    let (size, blocks) = bytes.split_first_chunk::<8>().unwrap();
    let disk = SimDisk::new(name, u64::from_le_bytes(*size));
    for block in blocks.chunks_exact(8 + BLOCK_SIZE) {
        let (at, block) = block.split_first_chunk::<8>().unwrap();
        disk.poke(u64::from_le_bytes(*at), block);
    }
    disk
}

/// Everything that an open store says of its drive. It has no word of how that is laid out, so it is the same for
/// every format.
pub async fn describe(store: &Rc<Store>) -> String {
    let mut out = String::new();
    let label = store.label();
    let (fabric, drive, size) = (label.fabric, label.drive, label.size_bytes);
    writeln!(out, "drive {drive} of fabric {fabric}, {size} bytes, {:?}", label.region).unwrap();
    let map = store.map_copy().await.unwrap();
    let map = map.map(|(version, bytes)| (version, bytes.len(), weft_wire::crc32c(&bytes)));
    writeln!(out, "map copy {map:?}").unwrap();
    let over: Vec<u64> = (0..SESSIONS).filter(|s| store.session_is_over(SessionId(*s))).collect();
    writeln!(out, "sessions over: below {}, {over:?}", store.session_floor().0).unwrap();
    for (volume, generation) in store.generations() {
        writeln!(out, "volume {} has generation {}", volume.0, generation.0).unwrap();
    }
    for group in store.groups() {
        describe_group(store, group, &mut out).await;
    }
    out
}

async fn describe_group(store: &Rc<Store>, id: GroupId, out: &mut String) {
    let group = store.group(id).unwrap();
    writeln!(out, "group {} of pool {} in epoch {}", id.0, group.pool.0, group.epoch.0).unwrap();
    for slot in &group.slots {
        writeln!(out, "  slot {} {} since {}", slot.drive, slot.role, slot.since.0).unwrap();
    }
    let verified = store.verify_state(id).unwrap();
    let cursor = match verified.cursor {
        Cursor::At(object, chunk) => format!("{} {}", hex(object), chunk.0),
        Cursor::End => "end".to_owned(),
    };
    let stint = verified.stint.map(|epoch| epoch.0);
    writeln!(out, "  stint {stint:?}, verified below {cursor}, {} ahead", verified.ahead).unwrap();
    for slot in store.slots_in(id) {
        writeln!(out, "  session {} watermark {}", slot.0, store.watermark(id, slot)).unwrap();
        for entry in store.open_entries_of(id, slot) {
            let (object, range) = (hex(entry.object), entry.range);
            let settled = if entry.settled { "settled" } else { "open" };
            writeln!(out, "    {} {object} {} {} {settled}", entry.version, range.first, range.count)
                .unwrap();
        }
    }
    for (object, chunk, digest) in store.digests(id, None, usize::MAX).await.unwrap() {
        let verified = if store.chunk_is_verified(id, object, chunk) { "verified" } else { "unverified" };
        writeln!(out, "  chunk {} {} digest {digest:016x} {verified}", hex(object), chunk.0).unwrap();
        let range = BlockRange::new(u32::from(chunk.0) * CHUNK_BLOCKS, CHUNK_BLOCKS);
        let extents = store.read(id, object, range).await.unwrap();
        let lines: Vec<String> = extents.iter().map(describe_extent).collect();
        match lines.len() {
            n if n > EXTENTS_LISTED_MAX => {
                let crc = weft_wire::crc32c(lines.join("\n").as_bytes());
                writeln!(out, "    {n} extents {crc:08x}").unwrap();
            }
            _ => lines.iter().for_each(|line| writeln!(out, "    {line}").unwrap()),
        }
    }
}

fn describe_extent(extent: &Extent) -> String {
    let what = match &extent.data {
        ExtentData::Data { buf, crcs } => format!("data of {} {:08x}", crcs.len(), weft_wire::crc32c(buf)),
        ExtentData::Zero => "zero".to_owned(),
        ExtentData::Damaged => "damaged".to_owned(),
    };
    let open = if extent.open { "open " } else { "" };
    format!("{} {} at {} {open}{what}", extent.range.first, extent.range.count, extent.version)
}

/// An object's identifier as its bytes stand on a drive.
fn hex(object: ObjectId) -> String {
    object.to_bytes().iter().map(|b| format!("{b:02x}")).collect()
}
