//! Devices of several parts: each part is a drive of the fabric, and a node serves all of them from several
//! threads.

mod bed;

use bed::{Bed, Running, Said, kill, sample, wait_until};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A manager, and nodes of one device each, as processes.
struct Site {
    bed: Bed,
    manager: String,
    fabric: String,
    _manager: Running,
}

/// Ports that a node has for its threads.
const PORTS: u16 = 4;

/// Where the parts of the devices begin: the first MiB is the label's.
const PART_AT: u64 = 1 << 20;
const PART_BYTES: u64 = 127 << 20;

impl Site {
    fn new(name: &str) -> Site {
        let bed = Bed::new(name);
        let manager = format!("127.0.0.1:{}", bed.port);
        let fabric = bed.json(&["fabric", "init", "map.redb"])["fabric"].as_str().expect("an id").to_owned();
        let _manager = bed.spawn(&["manager", "run", "--store", "map.redb", "--listen", &manager]);
        wait_until("the manager serves", || bed.weft(&["--fabric", &manager, "fabric", "show"]).code == 0);
        Site { bed, manager, fabric, _manager }
    }

    /// Formats files, in two parts each.
    fn format(&self, files: &[&str]) {
        for file in files {
            self.bed
                .ok(&self.format_args(file, &["--size", "256MiB", "--sparse", "--parts", "2", "--force"]));
        }
    }

    fn format_args<'a>(&'a self, file: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        [&["drive", "format", file, "--fabric-id", &self.fabric], more].concat()
    }

    fn start_node(&self, n: u16, threads: &str, drives: &[&str]) -> Running {
        let (name, listen) = (format!("node-{n}"), format!("127.0.0.1:{}", self.bed.port + n * PORTS));
        let mut args = vec!["node", "run", "--name", &name, "--manager", &self.manager, "--listen", &listen];
        drives.iter().for_each(|drive| args.extend(["--drive", drive]));
        args.extend(["--threads", threads, "--log-file", &name]);
        self.bed.spawn(&args)
    }

    fn on_fabric(&self, args: &[&str]) -> Said {
        self.bed.weft(&[&["--fabric", &self.manager], args].concat())
    }

    fn json(&self, args: &[&str]) -> Value {
        self.bed.json(&[&["--fabric", &self.manager], args].concat())
    }

    fn await_health(&self, wanted: &str) {
        wait_until(wanted, || self.json(&["status"])["health"] == wanted);
    }

    /// The drives of the fabric: path, device, and whether they are there.
    fn drives(&self) -> Vec<(String, String, bool)> {
        let answer = self.json(&["drive", "list"]);
        let drives = answer["drives"].as_array().expect("a list").iter();
        let text = |drive: &Value, field: &str| drive[field].as_str().unwrap_or_default().to_owned();
        let mut drives: Vec<_> = drives
            .map(|d| (text(d, "path"), text(d, "device"), d["present"].as_bool().unwrap_or(false)))
            .collect();
        drives.sort();
        drives
    }

    fn await_present(&self, count: usize) {
        wait_until("the drives are there", || self.drives().iter().filter(|d| d.2).count() == count);
    }

    fn log(&self, node: u16) -> String {
        fs::read_to_string(self.bed.path(&format!("node-{node}"))).unwrap_or_default()
    }

    fn targets(&self, node: usize) -> usize {
        let nodes = self.json(&["node", "list"]);
        let name = format!("node-{node}");
        let mut nodes = nodes["nodes"].as_array().expect("a list").iter();
        nodes.find(|n| n["name"] == *name).map_or(0, |n| n["targets"].as_array().map_or(1, Vec::len))
    }
}

fn overwrite(path: &Path, at: u64, len: usize) {
    let file = fs::File::options().write(true).open(path).expect("it is there");
    file.write_all_at(&vec![0x5a; len], at).expect("it can be written");
}

#[test]
fn parts_are_served_from_several_threads_and_survive_a_kill() {
    let site = Site::new("parts");
    site.format(&["one", "two"]);
    let first = site.start_node(1, "2", &["one"]);
    let _second = site.start_node(2, "2", &["two"]);
    site.await_present(4);
    site.await_health("healthy");
    let drives = site.drives();
    let paths: Vec<&str> = drives.iter().map(|drive| &*drive.0).collect();
    assert_eq!(paths, ["one#0", "one#1", "two#0", "two#1"]);
    assert!(drives[0].1 == drives[1].1 && drives[2].1 == drives[3].1 && drives[0].1 != drives[2].1);
    assert_eq!((site.targets(1), site.targets(2)), (2, 2));
    let list = site.on_fabric(&["drive", "list"]).out;
    assert!(list.contains("DEVICE"), "{list}");

    fs::write(site.bed.path("data"), sample(8 << 20, 7)).expect("written");
    assert_eq!(site.on_fabric(&["volume", "create", "v", "--size", "8MiB"]).code, 0);
    assert_eq!(site.on_fabric(&["volume", "import", "v", "data"]).code, 0);
    // Nobody else opens the device while its parts are served: neither a node nor a check.
    site.bed.weft(&["drive", "check", "one"]).fails(1, &["in use"]);
    site.bed.weft(&["drive", "check", "one#1"]).fails(1, &["in use"]);
    kill(first.0.id() as i32, "KILL");
    drop(first);
    site.await_present(2);
    for threads in ["2", "1", "2"] {
        let node = site.start_node(1, threads, &["one"]);
        site.await_present(4);
        site.await_health("healthy");
        assert_eq!(node.end("TERM"), Some(0));
    }
    let check = site.bed.json(&["drive", "check", "one"]);
    assert_eq!((check["is_clean"].as_bool(), check["parts"].as_array().map(Vec::len)), (Some(true), Some(2)));
    let _first = site.start_node(1, "2", &["one"]);
    site.await_present(4);
    site.await_health("healthy");
    assert_eq!(site.on_fabric(&["volume", "export", "v", "back"]).code, 0);
    assert!(fs::read(site.bed.path("back")).expect("it was written") == sample(8 << 20, 7));
    let check = site.on_fabric(&["fabric", "check"]);
    assert_eq!(check.code, 0, "{check:?}");
}

#[test]
fn a_part_that_is_damaged_is_left_out_and_the_other_one_serves() {
    let site = Site::new("parts-damaged");
    site.format(&["one", "two"]);
    let _second = site.start_node(2, "1", &["two"]);
    let first = site.start_node(1, "2", &["one"]);
    site.await_present(4);
    assert_eq!(site.on_fabric(&["volume", "create", "v", "--size", "8MiB"]).code, 0);
    assert_eq!(first.end("TERM"), Some(0));
    let device = site.bed.path("one");
    // One copy of the device's label, and all of the first part's.
    overwrite(&device, (256 << 20) - 4096, 4096);
    for at in [0, 4096, 8192, PART_BYTES - 4096] {
        overwrite(&device, PART_AT + at, 4096);
    }
    let inspected = site.bed.json(&["drive", "inspect", "one"]);
    assert_eq!(inspected["damaged_labels"], 1, "{inspected}");
    assert!(inspected["parts"][0]["error"].as_str().is_some_and(|error| error.contains("not a Weft drive")));
    assert_eq!(inspected["parts"][1]["path"], "one#1");
    site.bed.weft(&["drive", "inspect", "one#0"]).fails(1, &["one#0: not a Weft drive"]);
    let checked = site.bed.weft(&["drive", "check", "one"]);
    assert_eq!(checked.code, 1, "{checked:?}");
    assert!(checked.out.contains("one#1 is sound") && checked.err.contains("one#0"), "{checked:?}");

    let _first = site.start_node(1, "2", &["one"]);
    site.await_present(3);
    wait_until("it is told of", || site.log(1).contains("left out"));
    let log = site.log(1);
    assert!(log.contains("a copy of the device's label was damaged, and is written anew"), "{log}");
    assert!(log.contains("one#0: not a Weft drive"), "{log}");
    let status = site.on_fabric(&["status"]).out;
    assert!(status.contains("one#0"), "{status}");
    let inspected = site.bed.json(&["drive", "inspect", "one"]);
    assert_eq!(inspected["damaged_labels"], 0, "{inspected}");
}

#[test]
fn a_part_in_the_wrong_place_and_a_copy_of_a_device_are_left_out() {
    let site = Site::new("parts-copies");
    site.format(&["one", "two"]);
    // The second part of one device has come to the other device.
    let read = fs::read(site.bed.path("one")).expect("it is there");
    let part = &read[(PART_AT + PART_BYTES) as usize..][..PART_BYTES as usize];
    let file = fs::File::options().write(true).open(site.bed.path("two")).expect("it is there");
    file.write_all_at(part, PART_AT + PART_BYTES).expect("it can be written");
    fs::copy(site.bed.path("one"), site.bed.path("copy")).expect("there is room");
    site.bed.weft(&["drive", "inspect", "two#1"]).fails(1, &["part 1 is not what the device's label lists"]);

    let _first = site.start_node(1, "2", &["one", "copy", "two"]);
    site.await_present(1);
    let log = site.log(1);
    for word in [
        "one and copy carry the same identity",
        "two#1: part 1 is not what the device's label lists: found drive",
    ] {
        assert!(log.contains(word), "'{word}' is not in {log}");
    }
    assert_eq!(log.matches("drive is left out: ").count(), 5, "{log}");
    assert_eq!(site.drives().len(), 1);
    assert_eq!(site.drives()[0].0, "two#0");
}

#[test]
fn what_cannot_be_a_device_of_parts_is_refused_in_words() {
    let site = Site::new("parts-refused");
    let bed = &site.bed;
    let format = |more: &[&str]| bed.weft(&site.format_args("f", &[&["--size", "256MiB"], more].concat()));
    for bad in ["0", "3", "16"] {
        format(&["--parts", bad]).fails(2, &[&format!("--parts {bad}: a device has 1, 2, 4 or 8 parts")]);
        format(&["--parts", bad, "--force"]).fails(2, &["1, 2, 4 or 8"]);
    }
    format(&["--parts", "2"]).fails(2, &["2 parts of f would wait for each other: it is a file"]);
    format(&["--parts", "4", "--force"]).fails(1, &["the smallest that can be used"]);
    assert!(!bed.path("f").exists(), "nothing is left of what was refused");
    let rehearsal = format(&["--parts", "2", "--force", "--dry-run"]);
    assert!(rehearsal.out.contains("would be formatted in 2 parts of 127 MiB"), "{rehearsal:?}");
    let report =
        bed.json(&site.format_args("f", &["--size", "256MiB", "--sparse", "--parts", "2", "--force"]));
    assert_eq!(report["parts"][1]["path"], "f#1");
    assert_eq!(report["parts"][1]["size_bytes"], PART_BYTES);

    let again = |more: &[&str]| bed.weft(&site.format_args("f", more));
    again(&[]).fails(4, &["formatted for Weft already, as device", "in 2 parts"]);
    again(&["--parts", "2"]).fails(4, &["in 2 parts"]);
    let forced = again(&["--force", "--dry-run"]);
    assert!(forced.out.contains("lost would be what is there: the device is formatted"), "{forced:?}");
    bed.weft(&["drive", "inspect", "f#2"]).fails(1, &["there is no part 2: the device has 2"]);
    bed.weft(&["drive", "inspect", "g#0"]).fails(1, &["g#0"]);
    bed.weft(&["drive", "locate", "f", "v"]).fails(2, &["f is a device of 2 parts", "f#0 to f#1"]);
    let node = site.start_node(1, "1", &["f#0"]);
    wait_until("it is left out", || site.log(1).contains("left out"));
    assert!(site.log(1).contains("name it alone, --drive f"), "{}", site.log(1));
    drop(node);
    assert_eq!(again(&["--force"]).code, 0);
    bed.weft(&["drive", "inspect", "f#0"]).fails(1, &["f has no parts"]);
    assert_eq!(bed.json(&["drive", "inspect", "f"])["size_bytes"], 256 << 20);
}

#[test]
fn a_fabric_is_recovered_from_the_parts_of_its_devices() {
    let site = Site::new("parts-recover");
    site.format(&["one", "two"]);
    let nodes = [site.start_node(1, "2", &["one"]), site.start_node(2, "2", &["two"])];
    site.await_present(4);
    assert_eq!(site.on_fabric(&["volume", "create", "v", "--size", "8MiB"]).code, 0);
    site.await_health("healthy");
    for node in nodes {
        assert_eq!(node.end("TERM"), Some(0));
    }
    let collected = site.bed.json(&["fabric", "collect", "known", "--drives", "two"]);
    assert_eq!(collected["drives"].as_array().map(Vec::len), Some(2), "{collected}");
    let recovered =
        site.bed.json(&["fabric", "recover", "again.redb", "--drives", "one#0", "one#1", "--from", "known"]);
    assert_eq!(recovered["volumes"][0], "v", "{recovered}");
    assert_eq!(recovered["copies"].as_array().map(Vec::len), Some(4), "{recovered}");
}

#[test]
fn a_local_fabric_of_threads_and_parts_is_found_again_as_it_is() {
    let bed = Bed::new("parts-up");
    let (port, shape) = (bed.port.to_string(), ["--nodes", "2", "--drives", "1", "--drive-size", "256MiB"]);
    let up = |more: &[&str]| {
        bed.weft(&[&["up", "--sparse", "--port", &port, "--detach"], &shape[..], more].concat())
    };
    up(&["--parts", "3"]).fails_as_usage("1, 2, 4 or 8 parts");
    up(&["--parts", "4"]).fails(2, &["drive", "use --drive-size 258MiB or more"]);
    let first = up(&["--threads", "2", "--parts", "2"]);
    assert_eq!(first.code, 0, "{first:?}{}", bed.logs());
    assert!(first.out.contains("2 nodes of 2 threads, 2 drives of 256 MiB in 2 parts each"), "{}", first.out);
    bed.ok(&["volume", "create", "v", "--size", "8MiB"]);
    fs::write(bed.path("data"), sample(8 << 20, 9)).expect("written");
    bed.ok(&["volume", "import", "v", "data"]);
    bed.ok(&["manager", "stop", "--kill"]);
    let lost = bed.weft(&["status", "--json"]);
    assert_eq!(lost.code, 3, "{lost:?}");
    let lost: Value = serde_json::from_str(&lost.out).expect("a document");
    assert_eq!(lost["nodes"][0]["drives"].as_array().map(Vec::len), Some(2), "{lost}");
    bed.ok(&["down"]);
    up(&["--parts", "4"]).fails(2, &["drives in 2 parts"]);
    let again = bed.ok(&["up", "--detach"]);
    assert!(again.contains("2 nodes of 2 threads, 2 drives of 256 MiB in 2 parts each"), "{again}");
    bed.await_health("healthy");
    assert_eq!(bed.json(&["drive", "list"])["drives"].as_array().map(Vec::len), Some(4));
    bed.ok(&["volume", "export", "v", "back"]);
    assert!(fs::read(bed.path("back")).expect("it was written") == sample(8 << 20, 9));
}

#[test]
fn a_device_of_another_fabric_is_left_out_part_by_part() {
    let site = Site::new("parts-foreign");
    site.format(&["one"]);
    let other = "0f6c3a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f";
    let format = ["drive", "format", "two", "--fabric-id", other, "--size", "256MiB", "--sparse"];
    site.bed.ok(&[&format[..], &["--parts", "2", "--force"]].concat());
    let _node = site.start_node(1, "2", &["one", "two"]);
    site.await_present(2);
    wait_until("it is told of", || site.log(1).matches("left out").count() >= 2);
    let log = site.log(1);
    for part in ["two#0", "two#1"] {
        assert!(log.contains(&format!("{part}: drive ")), "{log}");
    }
    assert!(log.contains(&format!("belongs to fabric {other}")), "{log}");
    let status = site.on_fabric(&["status"]).out;
    assert!(status.contains("two#0") && status.contains("two#1"), "{status}");
}

#[test]
fn a_second_process_does_not_get_a_device_that_is_served() {
    let site = Site::new("parts-twice");
    site.format(&["one"]);
    let _first = site.start_node(1, "2", &["one"]);
    site.await_present(2);
    let _second = site.start_node(2, "2", &["one"]);
    wait_until("it is told of", || site.log(2).contains("left out"));
    assert!(site.log(2).contains("one is in use") || site.log(2).contains("in use"), "{}", site.log(2));
    site.await_present(2);
    site.bed.weft(&site.format_args("one", &["--force"])).fails(1, &["in use"]);
}
