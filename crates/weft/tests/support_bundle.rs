//! Support bundles of a fabric that is well, and of one whose manager and a node are dead.

mod bed;

use bed::Bed;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A word that is all over the data of the volume.
const DATA: &str = "user-data-nobody-may-see";

/// Secrets that others have put where they do not belong.
const SECRETS: [&str; 3] = ["hunter2", "s3cr3t-of-the-environment", "me-and-my-password"];

/// Takes the archive apart and verifies its sums; the folder in it.
fn unpack(bed: &Bed, archive: &Path) -> PathBuf {
    let dir = bed.path(&format!("{}.d", archive.file_name().expect("a name").to_string_lossy()));
    fs::create_dir_all(&dir).expect("made");
    let done = Command::new("tar").arg("xzf").arg(archive).arg("-C").arg(&dir).status().expect("tar runs");
    assert!(done.success());
    let mut folders = fs::read_dir(&dir).expect("read").map(|entry| entry.expect("an entry").path());
    let folder = folders.next().expect("a folder");
    assert!(folders.next().is_none(), "one folder alone");
    let sums = Command::new("sha256sum").args(["--quiet", "-c", "SHA256SUMS"]).current_dir(&folder).output();
    let sums = sums.expect("sha256sum runs");
    assert!(sums.status.success(), "{sums:?}");
    folder
}

fn manifest(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("manifest.json")).expect("a manifest")).expect("JSON")
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("read").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Insists that neither data nor secrets are in any file.
fn is_clean(folder: &Path) {
    for path in files(folder) {
        let bytes = fs::read(&path).expect("read");
        let text = String::from_utf8_lossy(&bytes);
        for word in [&SECRETS[..], &[DATA]].concat() {
            assert!(!text.contains(word), "{word} is in {}", path.display());
        }
    }
}

/// Names of what is missing, with the reasons.
fn missing(manifest: &Value) -> Vec<(String, String)> {
    let all = manifest["missing"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    all.map(|item| (text(&item["name"]), text(&item["why"]))).collect()
}

/// The files of a bundle of a fabric of two nodes with one drive each.
fn expected() -> BTreeSet<String> {
    let mut names: Vec<String> = vec!["program.json".into(), "local/fabric.json".into()];
    let machine = "version os-release cpuinfo meminfo loadavg uptime pressure-cpu pressure-io pressure-memory limits \
                   mounts partitions diskstats network-devices network-counters network-protocols network-sockets";
    names.extend(machine.split_whitespace().map(|name| format!("machine/{name}.txt")));
    names.extend(["settings", "block-devices", "interfaces"].map(|name| format!("machine/{name}.json")));
    let asked = "status map events load nodes drives pools volumes sessions scrub settings";
    names.extend(asked.split_whitespace().map(|name| format!("fabric/{name}.json")));
    for member in ["manager", "node-1", "node-2"] {
        names.extend([format!("metrics/{member}.txt"), format!("logs/{member}.log")]);
        names
            .extend(["status", "limits", "io", "sched"].map(|file| format!("processes/{member}/{file}.txt")));
    }
    names.extend(["node-1", "node-2"].map(|node| format!("drives/{node}/drive-1.json")));
    names.into_iter().collect()
}

#[test]
fn what_can_be_had_is_in_it_and_nothing_else() {
    let mut bed = Bed::new("bundle");
    bed.env = vec![("SOME_VARIABLE", SECRETS[1])];
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "64MiB", "--copies", "2"]);
    fs::write(bed.path("image"), DATA.repeat(32 * 4096)).expect("written");
    bed.ok(&["volume", "import", "data", "image"]);
    let log = bed.fabric().join("log/node-1.log");
    let mut text = fs::read_to_string(&log).expect("a log");
    text.push_str(&format!("password={} for http://{}@host/\n", SECRETS[0], SECRETS[2]));
    fs::write(&log, text).expect("written");

    let plan = bed.json(&["support-bundle", "--dry-run", "--out", "b.tar.gz"]);
    assert!(plan["items"].as_array().is_some_and(|items| items.len() > 40), "{plan}");
    assert!(!bed.path("b.tar.gz").exists(), "a dry run writes nothing");
    let done = bed.json(&["support-bundle", "--out", "b.tar.gz"]);
    assert_eq!(done["missing"].as_array().map(Vec::len), Some(0), "{done}");
    assert_eq!(done["redactions"].as_u64(), Some(2), "{done}");
    bed.weft(&["support-bundle", "--out", "b.tar.gz"]).fails(2, &["b.tar.gz exists already"]);
    bed.weft(&["support-bundle", "--max-size", "1KiB"]).fails(2, &["--max-size is 1 KiB", "1 MiB to 1 GiB"]);

    let folder = unpack(&bed, &bed.path("b.tar.gz"));
    is_clean(&folder);
    for (name, word) in [
        ("program.json", "\"available\": true"),
        ("machine/meminfo.txt", "MemTotal"),
        ("machine/interfaces.json", "\"lo\""),
        ("machine/limits.txt", "Max open files"),
        ("fabric/status.json", "\"health\": \"healthy\""),
        ("fabric/map.json", "\"groups\""),
        ("fabric/events.json", "\"what\""),
        ("metrics/manager.txt", "weft_fabric_health 0"),
        ("metrics/node-2.txt", "weft_node_serving{node=\"node-2\"} 1"),
        ("processes/node-1/status.txt", "VmRSS"),
        ("drives/node-2/drive-1.json", "\"superblock\""),
        ("logs/manager.log", "manager serves"),
        ("logs/node-1.log", "password=[redacted] for http://[redacted]@host/"),
    ] {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(text.contains(word), "'{word}' is not in {name}: {text}");
    }
    let manifest = manifest(&folder);
    let listed = manifest["files"].as_array().expect("files").iter();
    let listed: BTreeSet<String> = listed.map(|f| f["name"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(listed.len() + 2, files(&folder).len(), "all but the manifest and the sums are listed");
    assert_eq!(listed, expected(), "no more and no less");
    // Each is the answer to a question of its own.
    let ops = listed.iter().filter(|name| name.starts_with("fabric/")).map(|name| {
        let text = fs::read_to_string(folder.join(name)).expect("read");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        answer["op"].as_str().expect("what was answered").to_owned()
    });
    assert_eq!(ops.collect::<BTreeSet<String>>().len(), 11);
}

#[test]
fn dead_members_are_noted_and_the_rest_is_taken() {
    let bed = Bed::new("bundle-dead");
    bed.up(2, 1);
    bed.ok(&["node", "stop", "node-2", "--kill"]);
    bed.ok(&["manager", "stop", "--kill"]);
    let said = bed.weft(&["support-bundle", "--out", "b.tar.gz"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("not collected: fabric/status.json: no fabric answers"), "{said:?}");
    let folder = unpack(&bed, &bed.path("b.tar.gz"));
    let missing = missing(&manifest(&folder));
    let why = |name: &str| missing.iter().find(|(n, _)| n == name).map(|(_, why)| why.as_str());
    assert!(why("fabric/map.json").is_some_and(|why| why.contains("no fabric answers")), "{missing:?}");
    // The socket of a process that was killed may take connections a moment longer than it lives, so why is not fixed.
    assert!(why("metrics/manager.txt").is_some() && why("metrics/node-2.txt").is_some(), "{missing:?}");
    assert_eq!(why("processes/node-2"), Some("it does not run"));
    assert_eq!(why("processes/manager"), Some("it does not run"));
    // A dead node's drive can still be read, and so can the logs of all.
    for name in [
        "metrics/node-1.txt",
        "processes/node-1/io.txt",
        "drives/node-1/drive-1.json",
        "drives/node-2/drive-1.json",
        "logs/manager.log",
        "logs/node-2.log",
        "machine/cpuinfo.txt",
        "local/fabric.json",
    ] {
        assert!(folder.join(name).exists(), "{name} is missing: {missing:?}");
    }
}

#[test]
fn without_a_fabric_the_machine_is_told_and_logs_are_cut_at_the_bound() {
    let bed = Bed::new("bundle-none");
    let log: String = (0..100_000).map(|i| format!("line {i:06} of a log that is rather long\n")).collect();
    fs::write(bed.path("old.log"), log).expect("written");
    let args = [
        "support-bundle",
        "--out",
        "b.tar.gz",
        "--log",
        "old.log",
        "--max-size",
        "1MiB",
        "--drive",
        "old.log",
    ];
    let done = bed.json(&args);
    assert!(done["files"].as_u64().is_some_and(|n| n > 10), "{done}");
    let folder = unpack(&bed, &bed.path("b.tar.gz"));
    let manifest = manifest(&folder);
    let missing = missing(&manifest);
    assert!(
        missing
            .iter()
            .any(|(name, why)| name == "local/fabric.json" && why.contains("there is no fabric in"))
    );
    assert!(missing.iter().any(|(name, _)| name == "drives/old.log.json"), "no drive: {missing:?}");
    let total: u64 = files(&folder).iter().map(|path| fs::metadata(path).expect("there").len()).sum();
    assert!(total <= 1 << 20, "{total} bytes");
    let cut = fs::read_to_string(folder.join("logs/old.log")).expect("the end of the log");
    assert!(cut.starts_with("line 0") && cut.ends_with("line 099999 of a log that is rather long\n"));
    let entry = manifest["files"].as_array().and_then(|f| f.iter().find(|f| f["name"] == "logs/old.log"));
    let cut_bytes = entry.and_then(|entry| entry["cut_bytes"].as_u64()).expect("listed");
    assert_eq!(cut_bytes + cut.len() as u64, 4_100_000, "what is left out is counted");
}
