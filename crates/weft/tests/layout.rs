//! Layouts of files and directories from end to end: set by a command, followed by a mount.

mod bed;

use bed::mounts::{Folder, with_home_on};
use bed::{Bed, sample};
use serde_json::Value;
use std::fs::{self, File};

const MIB: usize = 1 << 20;

fn shown(bed: &Bed, path: &str) -> (u64, u64) {
    let shown = bed.json(&["fs", "layout", "show", "home", path]);
    (shown["chunk_bytes"].as_u64().expect("a number"), shown["targets"].as_u64().expect("a number"))
}

fn bytes_of(list: &Value) -> u64 {
    list.as_array().expect("a list").iter().map(|row| row["bytes"].as_u64().expect("a number")).sum()
}

#[test]
fn files_lie_as_their_directory_says() {
    let Some(bed) = with_home_on("layout", 3, "256MiB") else { return };
    let at = Folder::new(&bed, "at");
    bed.ok(&["mount", "home", at.text()]);
    fs::create_dir_all(at.join("results/old")).expect("made");
    let (_, targets) = shown(&bed, "/");
    assert_eq!(shown(&bed, "/results"), (256 << 10, targets));

    let set = ["fs", "layout", "set", "home", "/results", "--chunk-size", "1MiB", "--targets", "2"];
    assert!(bed.ok(&set).contains("new files in home:/results: chunks of 1 MiB over 2 targets, 2 copies"));
    let content = sample(5 * MIB + 17, 3);
    fs::create_dir(at.join("results/new")).expect("made");
    fs::write(at.join("results/new/file"), &content).expect("written");
    File::open(at.join("results/new/file")).expect("open").sync_all().expect("durable");
    assert_eq!(shown(&bed, "/results/new/file"), (1 << 20, 2), "it is inherited");
    assert_eq!(shown(&bed, "/results/old"), (256 << 10, targets), "what was there keeps its own");
    let file = bed.json(&["fs", "layout", "show", "home", "/results/new/file", "--objects"]);
    assert_eq!(file["size_bytes"].as_u64(), Some(content.len() as u64));
    assert_eq!(bytes_of(&file["objects"]), content.len() as u64, "{file}");
    assert_eq!(bytes_of(&file["drives"]), 2 * content.len() as u64, "two copies: {file}");
    assert_eq!(file["objects"][0]["bytes"].as_u64(), Some(3 * MIB as u64), "chunks 0, 2 and 4: {file}");
    assert!(bed.ok(&["fs", "layout", "show", "home", "/results/new/file"]).contains("SHARE"));

    // A name that is free becomes a file, which the mount writes by its layout.
    let set = ["fs", "layout", "set", "home", "/results/single", "--targets", "1"];
    assert!(bed.ok(&set).starts_with("new file home:/results/single: "));
    fs::write(at.join("results/single"), &content).expect("written");
    assert_eq!(shown(&bed, "/results/single"), (1 << 20, 1));
    bed.ok(&["fs", "get", "home", "/results/single", "back"]);
    assert!(fs::read(bed.path("back")).expect("it is there") == content);
    let stays = &["keeps its layout", "make a new file"];
    bed.weft(&set).fails(4, stays);
    // One that a program has open, by a mount that need not say so to the shard.
    let set = ["fs", "layout", "set", "home", "/results/empty", "--targets", "2"];
    assert!(bed.ok(&set).starts_with("new file"));
    assert!(bed.ok(&set).starts_with("file "));
    fs::read_dir(at.join("results")).expect("a folder").for_each(|entry| drop(entry.map(|e| e.metadata())));
    let open = File::open(at.join("results/empty")).expect("open");
    bed.weft(&set).fails(4, stays);
    drop(open);

    bed.ok(&["umount", at.text()]);
    bed.ok(&set);
    assert_eq!(shown(&bed, "/results/empty"), (1 << 20, 2));
    assert!(bed.ok(&["fs", "check", "home"]).starts_with("sound: "));
}

#[test]
fn a_layout_that_cannot_be_is_refused_with_a_hint() {
    let Some(bed) = with_home_on("layout-bad", 2, "128MiB") else { return };
    let set = |args: &[&str]| bed.weft(&[&["fs", "layout", "set", "home", "/"], args].concat());
    set(&[]).fails(2, &["nothing to set is named", "--chunk-size"]);
    for size in ["0", "3KiB", "2KiB", "1GiB"] {
        set(&["--chunk-size", size]).fails(2, &["cannot be", "power of two from 4KiB to 64 MiB"]);
    }
    set(&["--chunk-size", "1MB"]).fails_as_usage("ambiguous");
    set(&["--targets", "0"]).fails_as_usage("1..=64");
    set(&["--targets", "64"]).fails(2, &["64 targets are more than the", "weft fs grow"]);
    let pipe = ["fs", "layout", "set", "home", "/none/file", "--targets", "1"];
    bed.weft(&pipe).fails(1, &["/none/file: no such file", "weft fs ls"]);
    bed.weft(&["fs", "layout", "show", "home", "/none"]).fails(1, &["/none: no such file", "weft fs ls"]);
    bed.weft(&["fs", "layout", "show", "nobody"]).fails(1, &["nobody"]);
}
