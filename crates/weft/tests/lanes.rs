//! Several threads of one process on one attach: `weft bench run --threads` on a real fabric.

mod bed;

use bed::{Bed, Running, wait_until};
use serde_json::Value;
use std::time::Duration;

fn run<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    [&["bench", "run", "data", "--warm-up", "0s", "--runtime", "1s"], rest].concat()
}

/// The lanes of each session that is open, by what the manager lists.
fn sessions(bed: &Bed) -> Vec<Value> {
    bed.json(&["session", "list"])["sessions"].as_array().expect("a list").clone()
}

#[test]
fn threads_of_a_load_share_one_attach_and_check_what_they_wrote() {
    let bed = Bed::new("lanes");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB"]);
    for attach in [&[][..], &["--shared"]] {
        let mix = ["--rw", "mix", "--size", "16MiB", "--verify", "--overwrite", "--threads", "3"];
        let report = bed.json(&run(&[&mix[..], attach].concat()));
        assert_eq!(report["verify"]["blocks_wrong"], 0, "{report}");
        assert_eq!(report["verify"]["is_read_back"], true, "{report}");
        let attached = if attach.is_empty() { "exclusive" } else { "shared" };
        assert_eq!((&report["load"]["attached"], &report["load"]["jobs"]), (&attached.into(), &3.into()));
        assert!(report["failure"].is_null() && report["total"]["requests"].as_u64() > Some(0), "{report}");
    }
    let read = bed.json(&run(&["--verify", "--size", "16MiB", "--threads", "8", "--pattern", "sequential"]));
    let read = (&read["load"]["attached"], &read["verify"]["blocks_wrong"]);
    assert_eq!(read, (&"read-only".into(), &0.into()));
    wait_until("every session has ended", || sessions(&bed).is_empty());
}

#[test]
fn a_load_of_threads_that_cannot_begin_says_why_and_ends() {
    let bed = Bed::new("lanes-refuse");
    bed.up(1, 1);
    bed.ok(&["volume", "create", "data", "--size", "4MiB", "--copies", "1"]);
    bed.weft(&run(&["--threads", "0"])).fails_as_usage("0 is not in 1..=8");
    bed.weft(&run(&["--threads", "9"])).fails_as_usage("9 is not in 1..=8");
    bed.weft(&run(&["--threads", "2", "--jobs", "2"])).fails_as_usage("cannot be used with");
    bed.weft(&run(&["--threads", "2", "--rw", "write", "--bs", "512"])).fails(2, &["not a multiple of 4096"]);
    bed.ok(&run(&["--threads", "1", "--rw", "write", "--bs", "512", "--size", "4KiB"]));
    // The first thread finds data in its part, while the others have none in theirs and are ready.
    bed.weft(&run(&["--threads", "4", "--rw", "write"])).fails(4, &["'data' holds data", "--overwrite"]);
    bed.weft(&run(&["--threads", "2", "--rw", "write", "--offset", "1MiB"]));
    let mut serving = bed.spawn(&["volume", "serve", "data", "--nbd", "127.0.0.1:0"]);
    serving.await_line("nbd://");
    bed.weft(&run(&["--threads", "2", "--rw", "write", "--overwrite"])).fails(4, &["is in use by 1 client"]);
    drop(serving);
}

#[test]
fn a_server_that_dies_while_it_opens_lanes_leaves_none_behind() {
    let bed = Bed::new("lanes-die");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "8MiB"]);
    let serve = ["volume", "serve", "data", "--nbd", "127.0.0.1:0", "--lanes", "8", "--preempt"];
    for delay_ms in [5, 20, 40, 60, 90, 150, 300] {
        let dying = bed.spawn(&serve);
        std::thread::sleep(Duration::from_millis(delay_ms));
        dying.end("KILL");
    }
    let mut serving = bed.spawn(&[&serve[..], &["--json"]].concat());
    serving.await_line("\"lanes\": 8");
    assert_eq!(sessions(&bed).len(), 1);
    assert_eq!(serving.end("TERM"), Some(0));
    wait_until("every session has ended", || sessions(&bed).is_empty());
    bed.ok(&run(&["--threads", "8", "--rw", "write", "--overwrite"]));
}

#[test]
fn a_load_of_more_threads_than_lanes_says_how_many_there_are() {
    let bed = Bed::new("lanes-few");
    let at = |n: u16| format!("127.0.0.1:{}", bed.port + n);
    let fabric = bed.json(&["fabric", "init", "map.redb"])["fabric"].as_str().expect("its name").to_owned();
    let start_manager = || bed.spawn(&["manager", "run", "--store", "map.redb", "--listen", &at(0)]);
    let start_node = |n: u16| -> Running {
        let (name, drive) = (format!("node-{n}"), format!("drive-{n}"));
        bed.ok(&["drive", "format", &drive, "--fabric-id", &fabric, "--size", "128MiB", "--sparse"]);
        let mut args = vec!["node", "run", "--name", &name, "--drive", &drive];
        let (manager, listen) = (at(0), at(n));
        args.extend(["--manager", &manager, "--listen", &listen]);
        bed.spawn(&args)
    };
    let ask = |args: &[&str]| bed.weft(&[&["--fabric", &at(0)], args].concat());
    let manager = start_manager();
    let (node, other) = (start_node(1), start_node(2));
    wait_until("both nodes have joined", || ask(&["node", "list", "--json"]).out.contains("node-2"));
    let create = || ask(&["volume", "create", "data", "--size", "4MiB", "--copies", "1"]).code == 0;
    wait_until("a volume can be made", create);
    wait_until("lanes are given", || ask(&run(&["--threads", "2"])).code == 0);
    // Of a node that is away, a manager that has begun since does not know whether it serves lanes.
    other.end("KILL");
    manager.end("TERM");
    let manager = start_manager();
    let refused = || ask(&run(&["--threads", "2"]));
    wait_until("the manager gives one lane", || refused().err.contains("needs 2 lanes"));
    refused().fails(1, &["the manager gave 1", "--jobs"]);
    drop((node, manager));
}
