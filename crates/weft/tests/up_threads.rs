//! `weft up` with several threads and parts: another number of threads at each start, and a node that is
//! killed under a load whose data is checked.

mod bed;

use bed::{Bed, Said, kill, sample, wait_until};
use serde_json::Value;
use std::fs;

const DRIVE: &str = "300MiB";

/// Starts a fabric of so many nodes with so many devices each, of 2 parts.
fn up(bed: &Bed, nodes: &str, drives: &str, threads: &str) -> Said {
    let port = bed.port.to_string();
    let shape = ["up", "--nodes", nodes, "--drives", drives, "--drive-size", DRIVE, "--sparse", "--detach"];
    bed.weft(&[&shape[..], &["--port", &port, "--parts", "2", "--threads", threads]].concat())
}

/// How many targets each node has; 1: it does not list them.
fn targets(bed: &Bed) -> Vec<usize> {
    let nodes = bed.json(&["node", "list"]);
    let nodes = nodes["nodes"].as_array().expect("a list");
    nodes.iter().map(|node| node["targets"].as_array().map_or(1, Vec::len)).collect()
}

/// The options that a node's process was started with.
fn command_line(bed: &Bed, node: &str) -> String {
    let pid = bed.pid(node).expect("it runs");
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).expect("it runs")).replace('\0', " ")
}

#[test]
fn a_fabric_starts_again_with_another_number_of_threads() {
    let bed = Bed::new("up-threads");
    let first = up(&bed, "2", "1", "5");
    assert_eq!(first.code, 0, "{first:?}{}", bed.logs());
    for words in ["--threads 5: each serves at least one drive or part, so 2 are used", "for trying"] {
        assert!(first.err.contains(words), "'{words}' is not in {}", first.err);
    }
    assert!(first.out.contains("2 nodes of 2 threads, 2 drives of 300 MiB in 2 parts each"), "{first:?}");
    assert_eq!(targets(&bed), [2, 2]);
    let (nodes, status) = (bed.ok(&["node", "list"]), bed.ok(&["status"]));
    assert!(nodes.contains("THREADS") && status.contains("THREADS"), "{nodes}{status}");
    assert!(bed.ok(&["drive", "list"]).contains("DEVICE"));
    bed.ok(&["volume", "create", "v", "--size", "8MiB"]);
    fs::write(bed.path("data"), sample(8 << 20, 3)).expect("written");
    bed.ok(&["volume", "import", "v", "data"]);
    for (threads, used) in [("1", 1), ("2", 2), ("1", 1)] {
        bed.ok(&["down"]);
        bed.ok(&["up", "--detach", "--threads", threads]);
        bed.await_health("healthy");
        wait_until("it has its threads", || targets(&bed) == [used, used]);
        assert!(command_line(&bed, "node-1").contains(&format!("--threads {used} ")));
    }
    // Nothing of threads is said where nobody has several.
    assert!(!bed.ok(&["node", "list"]).contains("THREADS"));
    for (asked, found) in [("1", "drives in 2 parts"), ("4", "drives in 2 parts")] {
        bed.ok(&["down"]);
        let other = bed.weft(&["up", "--detach", "--parts", asked]);
        other.fails(2, &[found]);
        assert!(other.err.contains("leave the option out"), "{}", other.err);
        bed.ok(&["up", "--detach", "--parts", "2"]);
    }
    bed.ok(&["volume", "export", "v", "back"]);
    assert!(fs::read(bed.path("back")).expect("it was written") == sample(8 << 20, 3));
    let description = bed.fabric().join("fabric.json");
    bed.ok(&["down"]);
    let text = fs::read_to_string(&description).expect("it is there");
    fs::write(&description, text.replace("\"parts\": 2", "\"parts\": 3")).expect("written");
    bed.weft(&["up", "--detach"]).fails(1, &["drives have 3 parts, there are 1, 2, 4 or 8"]);
    fs::write(&description, text).expect("written");
}

#[test]
fn a_node_of_threads_and_parts_is_killed_under_a_checked_load() {
    let bed = Bed::new("up-killed");
    let made = up(&bed, "3", "2", "3");
    assert_eq!(made.code, 0, "{made:?}{}", bed.logs());
    wait_until("all threads are there", || targets(&bed) == [3, 3, 3]);
    for (name, size) in [("v", "64MiB"), ("cold", "16MiB")] {
        bed.ok(&["volume", "create", name, "--size", size]);
    }
    fs::write(bed.path("data"), sample(16 << 20, 5)).expect("written");
    bed.ok(&["volume", "import", "cold", "data"]);
    let load = ["bench", "run", "v", "--rw", "mix", "--verify", "--threads", "2", "--depth", "8"];
    let load = bed.spawn(&[&load[..], &["--rate-limit", "1500", "--runtime", "12s", "--json"]].concat());
    std::thread::sleep(std::time::Duration::from_secs(3));
    kill(bed.pid("node-2").expect("it runs"), "KILL");
    wait_until("it is missed", || bed.json(&["status"])["health"] == "degraded");
    bed.ok(&["node", "start", "node-2"]);
    let ended = load.finish();
    assert_eq!(ended.code, 0, "{ended:?}{}", bed.logs());
    let report: Value = serde_json::from_str(&ended.out).expect("a document");
    assert!(report["verify"]["is_read_back"] == true, "{report}");
    bed.await_health("healthy");
    assert_eq!(targets(&bed), [3, 3, 3]);
    bed.ok(&["fabric", "check"]);
    bed.ok(&["scrub", "start", "--all"]);
    wait_until("the scrub ends", || {
        let scrub = bed.json(&["scrub", "status"]);
        scrub["running"].is_null() && scrub["last"].is_object()
    });
    let last = bed.json(&["scrub", "status"])["last"].clone();
    assert!(last["lost_blocks"] == 0 && last["disagreements"] == 0, "{last}");
    bed.ok(&["volume", "export", "cold", "back"]);
    assert!(fs::read(bed.path("back")).expect("it was written") == sample(16 << 20, 5));
}
