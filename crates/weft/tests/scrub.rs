//! Scrub from end to end: bytes that change in a drive's file, a scrub that heals them, what people see of it.

mod bed;

use bed::{Bed, sample, wait_until};
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;

/// Changes a byte of this block wherever the drive's file holds it; returns how often it did.
fn spoil(drive: &std::path::Path, block: &[u8]) -> usize {
    let held = fs::read(drive).expect("the drive is a file");
    let mut file = OpenOptions::new().write(true).open(drive).expect("nobody has it open");
    let mut found = 0;
    for (n, at) in held.chunks(BLOCK).enumerate().filter(|(_, at)| *at == block) {
        file.seek(SeekFrom::Start((n * BLOCK + 100) as u64)).expect("it is that long");
        file.write_all(&[at[100] ^ 0x10]).expect("written");
        found += 1;
    }
    file.sync_all().expect("durable");
    found
}

#[test]
fn bytes_that_changed_on_a_drive_are_found_and_healed() {
    let bed = Bed::new("scrub");
    bed.up(2, 1);
    bed.weft(&["scrub", "start", "--all"]).fails(4, &["no volumes", "volume create"]);
    bed.ok(&["volume", "create", "data", "--size", "32MiB"]);
    let data = sample(16 * MIB, 7);
    fs::write(bed.path("file"), &data).expect("written");
    bed.ok(&["volume", "import", "data", "file"]);
    bed.weft(&["scrub", "start", "none"]).fails(1, &["no volume 'none'"]);

    bed.ok(&["node", "stop", "node-2"]);
    let drive = bed.fabric().join("nodes/node-2/drive-1.img");
    let spoiled: Vec<usize> = vec![1, 2, 701, 4090];
    for block in &spoiled {
        let bytes = &data[block * BLOCK..(block + 1) * BLOCK];
        assert!(
            bytes.iter().any(|b| *b != 0) && spoil(&drive, bytes) == 1,
            "block {block} is on the drive once"
        );
    }
    bed.ok(&["node", "start", "node-2"]);
    bed.await_health("healthy");

    bed.ok(&["scrub", "start", "data"]);
    wait_until("the scrub ends", || bed.json(&["scrub", "status"])["running"].is_null());
    let status = bed.json(&["scrub", "status"]);
    assert_eq!(status["last"]["healed_blocks"], 4, "{status}{}", bed.logs());
    assert_eq!(status["last"]["lost_blocks"], 0, "{status}");
    assert_eq!(status["last"]["bytes_read"].as_u64().map(|n| n >= 16 * MIB as u64), Some(true), "{status}");
    assert_eq!(status["volumes"][0]["volume"], "data");
    assert_eq!(status["volumes"][0]["healed_blocks"], 4);
    let offsets: Vec<u64> = status["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|f| f["offset_bytes"].as_u64().unwrap())
        .collect();
    assert!(offsets.contains(&(701 * BLOCK as u64)) && offsets.contains(&(BLOCK as u64)), "{status}");
    let text = bed.ok(&["scrub", "status"]);
    assert!(text.contains("4 blocks healed") && text.contains("every 7 d"), "{text}");
    assert!(bed.ok(&["events"]).contains("scrub-ended"));
    let drives = bed.json(&["drive", "list"]);
    let healed: u64 = drives["drives"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["usage"]["blocks_healed"].as_u64().unwrap())
        .sum();
    assert_eq!(healed, 4, "{drives}");

    // What was healed is on the drive: the other copy is not needed any more.
    bed.ok(&["node", "stop", "node-1", "--kill"]);
    bed.await_health("degraded");
    bed.ok(&["volume", "export", "data", "back", "--sparse"]);
    assert!(fs::read(bed.path("back")).expect("it was written")[..data.len()] == data[..]);
    bed.ok(&["scrub", "start", "--all"]);
    wait_until("the scrub ends", || bed.json(&["scrub", "status"])["running"].is_null());
    let status = bed.json(&["scrub", "status"]);
    assert_eq!(status["last"]["healed_blocks"], 0, "{status}");
    assert_eq!(status["last"]["groups_degraded"], status["last"]["groups_done"], "one copy only: {status}");
}

#[test]
fn the_schedule_is_shown_and_changed_and_a_scrub_is_stopped() {
    let bed = Bed::new("scrub-schedule");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "16MiB"]);
    assert!(bed.ok(&["scrub", "schedule"]).contains("every 7 d"));
    assert_eq!(bed.json(&["scrub", "schedule", "--every", "12h"])["every_ms"], 12 * 3_600_000);
    bed.weft(&["scrub", "schedule", "--every", "1s"]).fails(2, &["at least 60s"]);
    assert!(bed.ok(&["scrub", "schedule", "--off"]).contains("only on request"));
    let stopped = bed.json(&["scrub", "stop"]);
    assert!(stopped["running"].is_null() && stopped["rests_until"].is_string(), "{stopped}");
    bed.weft(&["scrub", "start"]).fails(2, &["--all"]);
}
