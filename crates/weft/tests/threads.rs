//! Nodes with several threads: each serves some of the drives, and their number may change with each start.

mod bed;

use bed::{Bed, Running, sample, wait_until};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

/// A manager and nodes of three drives as processes.
struct Site {
    bed: Bed,
    manager: String,
}

/// Ports that a node has for its threads.
const PORTS: u16 = 8;

impl Site {
    fn new(name: &str) -> Site {
        let bed = Bed::new(name);
        let manager = format!("127.0.0.1:{}", bed.port);
        Site { bed, manager }
    }

    fn listen(&self, n: u16) -> String {
        format!("127.0.0.1:{}", self.bed.port + n * PORTS)
    }

    fn drives(&self, n: u16) -> Vec<String> {
        (0..3).map(|d| format!("drive-{n}-{d}")).collect()
    }

    fn start_node(&self, n: u16, threads: &str, more: &[&str]) -> Running {
        let (name, listen, drives) = (format!("node-{n}"), self.listen(n), self.drives(n));
        let mut args = vec!["node", "run", "--name", &name, "--manager", &self.manager, "--listen", &listen];
        drives.iter().for_each(|drive| args.extend(["--drive", drive]));
        args.extend(["--threads", threads]);
        args.extend(more);
        self.bed.spawn(&args)
    }

    fn json(&self, args: &[&str]) -> Value {
        self.bed.json(&[&["--fabric", &self.manager], args].concat())
    }

    fn await_health(&self, wanted: &str) {
        wait_until(wanted, || self.json(&["status"])["health"] == wanted);
    }

    /// How many targets each node has, one after the other; 1: it does not list them.
    fn targets(&self) -> Vec<usize> {
        let nodes = self.json(&["node", "list"]);
        let mut nodes: Vec<&Value> = nodes["nodes"].as_array().expect("a list").iter().collect();
        nodes.sort_by_key(|node| node["name"].to_string());
        nodes.iter().map(|node| node["targets"].as_array().map_or(1, Vec::len)).collect()
    }
}

/// What is served to Prometheus there.
fn page_at(addr: &str) -> String {
    let mut stream = TcpStream::connect(addr).expect("it listens");
    let request = "GET /metrics HTTP/1.1\r\nHost: weft\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("it answers");
    page
}

#[test]
fn a_node_serves_with_another_number_of_threads_after_each_start() {
    let site = Site::new("threads");
    let bed = &site.bed;
    let fabric =
        bed.json(&["fabric", "init", "map.redb"])["fabric"].as_str().expect("its identity").to_owned();
    for drive in site.drives(1).iter().chain(&site.drives(2)) {
        bed.ok(&["drive", "format", drive, "--fabric-id", &fabric, "--size", "128MiB", "--sparse"]);
    }
    let _manager = bed.spawn(&["manager", "run", "--store", "map.redb", "--listen", &site.manager]);
    wait_until("the manager serves", || bed.weft(&["--fabric", &site.manager, "fabric", "show"]).code == 0);
    let metrics = format!("127.0.0.1:{}", bed.port + 3 * PORTS);
    let mut first = site.start_node(1, "2", &["--metrics", &metrics]);
    let _second = site.start_node(2, "3", &["--pin"]);
    wait_until("all drives are there", || {
        site.json(&["drive", "list"])["drives"].as_array().map(Vec::len) == Some(6)
    });
    site.await_health("healthy");
    assert_eq!(site.targets(), [2, 3]);
    let page = page_at(&metrics);
    assert!(page.contains("weft_node_targets{node=\"node-1\"} 2"), "{page}");
    assert_eq!(page.matches("weft_drive_capacity_bytes{").count(), 3, "{page}");

    fs::write(bed.path("data"), sample(8 << 20, 7)).expect("written");
    let on_fabric = |args: &[&str]| bed.ok(&[&["--fabric", &site.manager], args].concat());
    on_fabric(&["volume", "create", "v", "--size", "8MiB"]);
    on_fabric(&["volume", "import", "v", "data"]);
    for threads in ["1", "3", "2"] {
        assert_eq!(first.end("TERM"), Some(0));
        first = site.start_node(1, threads, &[]);
        let wanted: usize = threads.parse().expect("a number");
        wait_until("it has its threads", || site.targets()[0] == wanted);
        site.await_health("healthy");
    }
    // Killed, it comes back as well.
    drop(first);
    let _first = site.start_node(1, "3", &[]);
    wait_until("it has its threads", || site.targets()[0] == 3);
    site.await_health("healthy");
    on_fabric(&["volume", "export", "v", "back"]);
    assert!(fs::read(bed.path("back")).expect("it was written") == sample(8 << 20, 7));
    let check = bed.weft(&["--fabric", &site.manager, "fabric", "check"]);
    assert_eq!(check.code, 0, "{check:?}");
}

#[test]
fn a_number_of_threads_that_cannot_be_is_refused_in_words() {
    let site = Site::new("threads-refused");
    let bed = &site.bed;
    let run = |listen: &str, threads: &str, drives: &[&str]| {
        let mut args = vec!["node", "run", "--name", "n", "--manager", &site.manager, "--listen", listen];
        drives.iter().for_each(|drive| args.extend(["--drive", drive]));
        args.extend(["--threads", threads]);
        bed.weft(&args)
    };
    let two = ["mem:64M", "mem:64M"];
    run("127.0.0.1:4810", "0", &two).fails_as_usage("--threads 0: a node has 1 to 64 threads");
    run("127.0.0.1:4810", "65", &two).fails_as_usage("--threads 65: a node has 1 to 64 threads");
    run("127.0.0.1:65535", "2", &two).fails_as_usage("as many ports from 65535 on");
    run("unix:/tmp/weft-threads", "2", &two).fails_as_usage("a port of its own");
    bed.weft(&[
        "node",
        "run",
        "--name",
        "n",
        "--manager",
        &site.manager,
        "--listen",
        "127.0.0.1:1",
        "--drive",
        "x",
        "--pin",
    ])
    .fails_as_usage("--threads");
}
