//! A drive that is pulled from under a running node, and where a volume's data lies on drives.

mod bed;

use bed::{Bed, sample, wait_until};
use std::fs;

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;

#[test]
fn a_drive_that_is_pulled_is_missed_and_its_copies_are_rebuilt() {
    let bed = Bed::new("pulled");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB", "--copies", "2"]);
    let data = sample(16 * MIB, 5);
    fs::write(bed.path("file"), &data).expect("written");
    bed.ok(&["volume", "import", "data", "file"]);

    fs::remove_file(bed.fabric().join("nodes/node-1/drive-1.img")).expect("it was there");
    let failed = || {
        let drives = bed.json(&["drive", "list"])["drives"].as_array().expect("a list").clone();
        drives.into_iter().find(|d| d["state"] == "failed")
    };
    wait_until("the drive is missed", || failed().is_some());
    let drive = failed().expect("it stays so")["id"].as_str().expect("a text").to_owned();
    let events = bed.ok(&["events"]);
    assert!(events.contains("failed: the drive is gone: its file was deleted"), "{events}");
    wait_until("its copies are rebuilt", || {
        bed.json(&["status"])["degraded_groups"].as_array().is_some_and(Vec::is_empty)
    });
    let status = bed.json(&["status"]);
    let reason = status["reasons"][0].as_str().expect("it is not healthy for one reason");
    assert!(reason.contains("its file was deleted"), "{status}");
    assert!(status["troubles"].to_string().contains("weft drive remove"), "{status}");
    bed.ok(&["drive", "remove", &drive, "--yes"]);
    bed.await_health("healthy");

    // All copies are there: either of the remaining nodes may go.
    bed.ok(&["node", "stop", "node-2", "--kill"]);
    bed.await_health("degraded");
    bed.ok(&["volume", "export", "data", "back", "--sparse"]);
    assert!(fs::read(bed.path("back")).expect("it was written")[..data.len()] == data[..]);
}

/// The kernel lets go of a killed process's drive only when the requests that were under way are through.
#[test]
fn a_drive_that_is_held_for_a_moment_longer_is_waited_for() {
    let bed = Bed::new("held");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB", "--copies", "2"]);
    bed.ok(&["node", "stop", "node-2", "--kill"]);
    let drive = fs::File::open(bed.fabric().join("nodes/node-2/drive-1.img")).expect("it is there");
    wait_until("the former process lets go", || drive.try_lock().is_ok());
    let start = bed.spawn(&["node", "start", "node-2"]);
    wait_until("the node finds it in use", || bed.logs().contains("waiting for the drive"));
    drive.unlock().expect("it is locked");
    bed.await_health("healthy");
    drop(start);
}

#[test]
fn data_is_where_it_is_said_to_be_also_on_a_drive_in_use() {
    let bed = Bed::new("locate");
    bed.up(3, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB", "--copies", "2", "--stripe-width", "3"]);
    let data = sample(16 * MIB, 11);
    fs::write(bed.path("file"), &data).expect("written");
    bed.ok(&["volume", "import", "data", "file"]);
    let mut copies = vec![0u8; data.len() / BLOCK];
    for node in 1..=3 {
        let drive = format!("fabric/nodes/node-{node}/drive-1.img");
        let found = bed.json(&["drive", "locate", &drive, "data", "--size", "32MiB", "--verify"]);
        let bytes = fs::read(bed.path(&drive)).expect("it is a file");
        let mut at = 0;
        for run in found["runs"].as_array().expect("a list") {
            let number = |name: &str| run[name].as_u64().unwrap_or_else(|| panic!("{name}: {run}")) as usize;
            let (offset, length) = (number("offset_bytes"), number("length_bytes"));
            assert_eq!(offset, at, "in order and without gaps: {run}");
            at = offset + length;
            if run["held"] == "data" {
                let place = number("drive_byte");
                assert!(bytes[place..place + length] == data[offset..offset + length], "{run}");
                assert_eq!(run["is_intact"], true, "{run}");
                copies[offset / BLOCK..at / BLOCK].iter_mut().for_each(|n| *n += 1);
            }
        }
        assert_eq!(at, 32 * MIB);
    }
    let is_data = |block: usize| data[block * BLOCK..(block + 1) * BLOCK].iter().any(|b| *b != 0);
    let wrong: Vec<usize> = (0..copies.len()).filter(|b| is_data(*b) && copies[*b] != 2).collect();
    assert!(wrong.is_empty(), "blocks that are not on two drives: {wrong:?}");

    let drive = "fabric/nodes/node-1/drive-1.img";
    let find = || bed.json(&["drive", "locate", drive, "data", "--size", "16MiB"]);
    let rotten = find()["runs"].as_array().expect("a list").iter().find(|r| r["held"] == "data").cloned();
    let place = rotten.expect("it holds some")["drive_byte"].as_u64().expect("a place");
    let file = fs::OpenOptions::new().write(true).open(bed.path(drive)).expect("it is a file");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 64], place).expect("written");
    let checked = bed.weft(&["drive", "locate", drive, "data", "--size", "16MiB", "--verify"]);
    assert!(checked.code == 1 && checked.out.contains("DAMAGED"), "{checked:?}");
    assert!(
        checked.err.contains("1 run of blocks") && checked.err.contains("weft scrub start data"),
        "{checked:?}"
    );

    let said = bed.ok(&["drive", "locate", drive, "data", "--offset", "8MiB", "--size", "1MiB"]);
    assert!(said.contains("1 MiB of volume data from 8 MiB on") && said.contains("DRIVE BYTE"), "{said}");
    let locate = |rest: &[&str]| bed.weft(&[&["drive", "locate", drive], rest].concat());
    locate(&["none"]).fails(1, &["no volume 'none'", "known: data"]);
    locate(&["data", "--offset", "100"]).fails(2, &["multiples of 4096"]);
    locate(&["data", "--offset", "32MiB"]).fails(2, &["pass the end of volume 'data' at 32 MiB"]);
    locate(&["data", "--size", "1TiB"]).fails(2, &["at most 16 GiB"]);
    bed.weft(&["drive", "locate", "file", "data"]).fails(1, &["not a Weft drive"]);
}
