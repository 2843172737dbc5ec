//! Damage to what holds the names of a file system: blocks of one copy, and of all copies.

mod bed;

use bed::{Bed, wait_until};
use std::fs;
use std::path::{Path, PathBuf};

const BLOCK: usize = 4096;

/// The bit that is flipped in a block, and its byte, which is behind the block's header.
const AT: usize = 60;
const BIT: u8 = 0x10;

/// The drives of a fabric that has one on each node.
fn drives(bed: &Bed, nodes: u16) -> Vec<PathBuf> {
    (1..=nodes).map(|n| bed.fabric().join(format!("nodes/node-{n}/drive-1.img"))).collect()
}

/// A damaged block of a drive: where it begins, and what it was.
struct Damage {
    at: usize,
    before: Vec<u8>,
}

/// Flips a bit in each block of a drive that begins with a word and belongs to shard 0 of a file system
/// (docs/format/meta.md).
fn damage(drive: &Path, word: &[u8; 4], file_system: u64) -> Vec<Damage> {
    let mut bytes = fs::read(drive).expect("the drive is a file");
    let mut damaged = Vec::new();
    for (n, block) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        let is_meant = block.starts_with(word) && block[4..12] == file_system.to_le_bytes();
        if is_meant && block[12..14] == [0; 2] {
            damaged.push(Damage { at: n * BLOCK, before: block.to_vec() });
            block[AT] ^= BIT;
        }
    }
    fs::write(drive, bytes).expect("written");
    assert!(!damaged.is_empty(), "the drive has a copy of it");
    damaged
}

/// Takes back what was damaged and is so still.
fn mend(drive: &Path, damaged: &[Damage]) {
    let mut bytes = fs::read(drive).expect("the drive is a file");
    for Damage { at, before } in damaged {
        let block = &mut bytes[*at..at + BLOCK];
        block[AT] ^= BIT;
        if block != before {
            block[AT] ^= BIT;
        }
    }
    fs::write(drive, bytes).expect("written");
}

fn names(bed: &Bed, file_system: &str) -> Vec<String> {
    let listed = bed.json(&["fs", "ls", file_system]);
    let files = listed["files"].as_array().expect("a list");
    files.iter().map(|file| file["name"].as_str().expect("a name").to_owned()).collect()
}

/// What the status says of shards that cannot be opened.
fn unopened(bed: &Bed) -> Vec<String> {
    let status = bed.json(&["status"]);
    let troubles = status["troubles"].as_array().expect("a list");
    let unserved = troubles.iter().filter(|trouble| trouble["kind"] == "shard-unserved");
    unserved.map(|trouble| trouble["what"].as_str().expect("a text").to_owned()).collect()
}

#[test]
fn damage_to_names_is_read_past_or_named_and_the_rest_is_served() {
    let bed = Bed::new("files-damage");
    bed.up(2, 1);
    bed.ok(&["fs", "create", "rest"]);
    bed.ok(&["fs", "mkdir", "rest", "/a", "/b"]);
    let drives = drives(&bed, 2);
    for word in [b"WMPG", b"WMLG"] {
        bed.ok(&["fs", "create", "home"]);
        bed.ok(&["fs", "mkdir", "home", "/a", "/b"]);
        let home = bed.json(&["fs", "show", "home"])["file_system"]["id"].as_u64().expect("a number");
        for drive in &drives {
            bed.ok(&["down"]);
            let damaged = damage(drive, word, home);
            bed.ok(&["up", "--detach"]);
            assert_eq!(names(&bed, "home"), ["a", "b"], "the other copy has it");
            bed.ok(&["down"]);
            mend(drive, &damaged);
            bed.ok(&["up", "--detach"]);
        }
        bed.ok(&["down"]);
        drives.iter().for_each(|drive| drop(damage(drive, word, home)));
        bed.ok(&["up", "--detach"]);
        wait_until("it is said that the shard cannot be opened", || !unopened(&bed).is_empty());
        assert_named(&bed);
        // A file system that cannot be read can be deleted.
        bed.ok(&["fs", "delete", "home", "--yes"]);
        wait_until("it is deleted", || bed.weft(&["fs", "show", "home"]).code != 0);
        assert_eq!(unopened(&bed), [""; 0]);
    }
    assert_eq!(names(&bed, "rest"), ["a", "b"]);
    bed.ok(&["down"]);
}

/// Insists that all say which shard cannot be opened, and that the rest is served.
fn assert_named(bed: &Bed) {
    let said = unopened(bed);
    assert!(said.len() == 1 && said[0].contains("shard 0 of file system 'home' is not served"), "{said:?}");
    assert!(said[0].contains("is damaged on every replica"), "{said:?}");
    assert_eq!(names(bed, "rest"), ["a", "b"]);
    assert!(bed.ok(&["fs", "check", "rest"]).starts_with("sound: "));

    let checked = bed.weft(&["fs", "check", "home"]);
    assert_eq!(checked.code, 1, "{checked:?}");
    assert!(checked.err.contains("shards that cannot be opened: 0;"), "{checked:?}");
    assert!(checked.out.starts_with("fault: shard 0 of file system 'home' is not served"), "{checked:?}");
    assert!(checked.out.contains("15 shards, data were not compared"), "{checked:?}");
    let inspected = bed.json(&["fs", "inspect", "home"]);
    assert_eq!(inspected["unopened"][0]["shard"], 0, "{inspected}");
    assert_eq!(inspected["shards"].as_array().map(Vec::len), Some(15), "{inspected}");
    assert_eq!(bed.json(&["fs", "clients", "home"])["unopened"][0]["shard"], 0);
}
