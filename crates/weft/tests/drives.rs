//! Drives that are not as they should be: each is told, and none is used or destroyed by mistake.

mod bed;

use bed::Bed;
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

const FABRIC: &str = "0f6c3a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f";
const OTHER: &str = "11111111-2222-4333-8444-555555555555";

fn format(bed: &Bed, path: &str, fabric: &str, more: &[&str]) -> bed::Said {
    bed.weft(&[&["drive", "format", path, "--fabric-id", fabric], more].concat())
}

#[test]
fn a_drive_is_formatted_inspected_and_checked() {
    let bed = Bed::new("drive");
    assert_eq!(format(&bed, "d", FABRIC, &["--size", "64MiB", "--sparse"]).code, 0);
    let found = bed.json(&["drive", "inspect", "d"]);
    assert_eq!(found["fabric"], FABRIC);
    assert_eq!(found["size_bytes"], 64 << 20);
    assert!(bed.ok(&["drive", "check", "d", "--deep"]).contains("d is sound"));
    assert_eq!(bed.json(&["drive", "check", "d"])["is_clean"], true);

    format(&bed, "none", FABRIC, &[]).fails(1, &["none does not exist", "--size"]);
    format(&bed, "d", FABRIC, &["--size", "65MiB"]).fails(4, &["exists with 64 MiB"]);
    format(&bed, "d", FABRIC, &[]).fails(4, &["formatted for Weft already", "--force"]);
    format(&bed, "d", OTHER, &[]).fails(4, &[FABRIC]);
    format(&bed, "d", OTHER, &["--dry-run"]).fails(4, &[FABRIC, "--force"]);
    let before = fs::read(bed.path("d")).expect("read");
    let would = format(&bed, "d", OTHER, &["--dry-run", "--force"]);
    assert!(would.code == 0 && would.out.contains("would be formatted; lost would be"), "{would:?}");
    assert!(would.out.contains(FABRIC) && before == fs::read(bed.path("d")).expect("read"), "{would:?}");
    let would = format(&bed, "new", OTHER, &["--dry-run", "--size", "64MiB"]);
    assert!(would.code == 0 && would.out.contains("64 MiB would be formatted\n"), "{would:?}");
    format(&bed, "new", OTHER, &["--dry-run", "--size", "1MiB"]).fails(1, &["smallest"]);
    assert!(!bed.path("new").exists(), "a dry run makes nothing");
    assert_eq!(format(&bed, "d", OTHER, &["--force"]).code, 0);
    format(&bed, "tiny", FABRIC, &["--size", "1MiB"]).fails(1, &["smallest"]);
    assert!(!bed.path("tiny").exists(), "what it made itself, it removes");
    bed.weft(&["drive", "inspect", "none"]).fails(1, &["none"]);
    fs::write(bed.path("empty"), vec![0; 1 << 20]).expect("written");
    bed.weft(&["drive", "check", "empty"]).fails(1, &["not a Weft drive"]);
}

#[test]
fn a_file_system_is_not_overwritten() {
    let bed = Bed::new("foreign");
    let path = bed.path("ext4");
    let file = fs::File::create(&path).expect("made");
    file.set_len(64 << 20).expect("a sparse file");
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&path).status();
    assert!(made.expect("mkfs.ext4 is installed (package e2fsprogs)").success());
    let before = fs::read(&path).expect("read");
    format(&bed, "ext4", FABRIC, &[]).fails(4, &["ext4", "--force"]);
    assert!(before == fs::read(&path).expect("read"), "not a byte has changed");
    bed.weft(&["drive", "inspect", "ext4"]).fails(1, &["ext4"]);
    assert_eq!(format(&bed, "ext4", FABRIC, &["--force"]).code, 0);
}

#[test]
fn a_flipped_bit_in_a_label_is_mended_and_two_are_fatal() {
    let bed = Bed::new("label");
    assert_eq!(format(&bed, "d", FABRIC, &["--size", "64MiB", "--sparse"]).code, 0);
    flip(&bed, "d", 100);
    let checked = bed.json(&["drive", "check", "d"]);
    assert_eq!(checked["is_clean"], true, "one good copy is enough: {checked}");
    assert_eq!(checked["findings"][0]["severity"], "note");
    flip(&bed, "d", (64 << 20) - 4096 + 100);
    bed.weft(&["drive", "check", "d"]).fails(1, &["label"]);
}

#[test]
fn a_drive_that_cannot_be_opened_says_why() {
    let bed = Bed::new("unopened");
    // More than any file may have: the kernel's own words reach the user.
    format(&bed, "d", FABRIC, &["--size", "8EiB", "--sparse"]).fails(1, &["cannot open the drive: d: "]);
    fs::create_dir(bed.path("folder")).expect("made");
    bed.weft(&["drive", "inspect", "folder"]).fails(1, &["folder: "]);
}

fn flip(bed: &Bed, name: &str, at: u64) {
    let file = fs::File::options().read(true).write(true).open(bed.path(name)).expect("it is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 4], at).expect("written");
}

#[test]
fn a_fabric_comes_up_without_the_drives_that_are_not_sound() {
    let bed = Bed::new("unsound");
    bed.up(3, 2);
    bed.ok(&["down"]);
    let drive = |node: u8, k: u8| format!("fabric/nodes/node-{node}/drive-{k}.img");
    let cut = fs::File::options().write(true).open(bed.path(&drive(1, 1))).expect("it is there");
    cut.set_len(100 << 20).expect("truncated");
    flip(&bed, &drive(1, 2), 100);
    // Two drives with one identity on one node, and nothing tells which is the true one.
    fs::copy(bed.path(&drive(2, 1)), bed.path(&drive(2, 2))).expect("copied");
    assert_eq!(format(&bed, &drive(3, 2), OTHER, &["--force"]).code, 0);
    let up = bed.weft(&["up", "--detach"]);
    assert_eq!(up.code, 0, "{up:?}");
    let told = |words: &str| up.err.lines().any(|line| line.starts_with("warning: ") && line.contains(words));
    assert!(told("node-1/drive-1.img: the drive is truncated"), "{up:?}");
    assert!(told("carry the same identity"), "{up:?}");
    assert!(told(&format!("belongs to fabric {OTHER}")), "{up:?}");
    let listed = bed.json(&["drive", "list"]);
    let drives = listed["drives"].as_array().expect("a list");
    let present: Vec<&str> =
        drives.iter().filter(|d| d["present"] == true).map(|d| d["path"].as_str().expect("a path")).collect();
    assert_eq!(present.len(), 2, "{present:?}{}", bed.logs());
    assert!(present.iter().any(|path| path.ends_with("node-1/drive-2.img")), "{present:?}");
    assert!(present.iter().all(|path| !path.contains("node-2")), "{present:?}");
    let log = |node: &str| fs::read_to_string(bed.fabric().join(format!("log/{node}.log"))).expect("a log");
    assert!(log("node-1").contains("truncated: found 104857600 bytes, expected 134217728"));
    assert!(log("node-1").contains("label_repaired: true"));
    assert!(log("node-2").contains("carry the same identity"));
}

#[test]
fn a_copy_of_a_drive_on_another_node_is_refused() {
    let bed = Bed::new("twin");
    bed.up(2, 1);
    bed.ok(&["down"]);
    fs::copy(bed.path("fabric/nodes/node-1/drive-1.img"), bed.path("fabric/nodes/node-2/drive-1.img"))
        .expect("copied");
    let up = bed.weft(&["up", "--detach"]);
    assert_eq!(up.code, 0, "{up:?}");
    // Which of the two comes first is not determined; the other one is refused, and said why. Both nodes join.
    let why = ["is a copy of the other", "belongs on node 'node-1'"];
    assert!(why.iter().any(|why| up.out.contains(why)), "{up:?}");
    let nodes = bed.json(&["node", "list"]);
    let joined = nodes["nodes"].as_array().expect("a list").iter().filter(|n| n["presence"] == "up");
    assert_eq!(joined.count(), 2, "{nodes}");
    let listed = bed.json(&["drive", "list"]);
    let present = listed["drives"].as_array().expect("a list").iter().filter(|d| d["present"] == true);
    assert_eq!(present.count(), 1, "{listed}");
}
