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
    run("127.0.0.1:4810", "-1", &two).fails_as_usage("-1");
    run("127.0.0.1:4810", "two", &two).fails_as_usage("two");
    run("unix:/tmp/weft-threads", "2", &two).fails_as_usage("a port of its own");
}

/// A node without a manager, with drives in memory: what it says until it has this many threads.
fn log_of(bed: &Bed, wrapped: &[&str], threads: &[&str], drives: usize) -> String {
    let listen = format!("127.0.0.1:{}", bed.port + PORTS);
    let manager = format!("127.0.0.1:{}", bed.port);
    let fabric = "7b0c6a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f";
    let mut args = vec!["node", "run", "--name", "n", "--manager", &manager, "--listen", &listen];
    args.extend(["--fabric-id", fabric, "--log-file", "n.log"]);
    args.extend(threads);
    (0..drives).for_each(|_| args.extend(["--drive", "mem:64M"]));
    let _ = fs::remove_file(bed.path("n.log"));
    let node = bed.spawn_in(wrapped, &args);
    let log = || fs::read_to_string(bed.path("n.log")).unwrap_or_default();
    wait_until("it has opened its drives", || log().matches("drive is open").count() == drives);
    assert_eq!(node.end("TERM"), Some(0), "{}", log());
    log()
}

#[test]
fn threads_beyond_drives_and_cores_are_told_and_what_is_used() {
    let bed = Bed::new("threads-beyond");
    let log = log_of(&bed, &[], &["--threads", "4"], 2);
    assert!(log.contains("more threads than drives") && log.contains("asked=4 used=2"), "{log}");
    for line in ["thread=0 ", "thread=1 "] {
        assert!(log.contains(line), "{log}");
    }
    // Its cores are those of its affinity.
    let on_one = ["taskset", "-c", "0"];
    if std::process::Command::new("taskset").arg("--version").output().is_err() {
        eprintln!("skipped: this machine has no taskset");
        return;
    }
    let log = log_of(&bed, &on_one, &["--threads", "2", "--pin"], 2);
    assert!(log.contains("more threads than cores that this process may use"), "{log}");
    assert!(log.contains("threads=2 cores=1") && log.matches("cores=\"[0]\"").count() == 2, "{log}");
    let log = log_of(&bed, &on_one, &[], 2);
    assert!(log.contains("at_most=1 cores=1"), "{log}");
    // A node with one thread is bound, too.
    let log = log_of(&bed, &[], &["--threads", "1", "--pin"], 2);
    assert!(log.contains("the thread of the node is bound") && log.contains("cores=[0]"), "{log}");
}

/// A control group that may use one processor's time; gone when dropped.
struct Group(std::path::PathBuf);

impl Group {
    /// None where this machine gives none.
    fn of_one_processor() -> Option<Group> {
        let name = format!("weft-threads-{}", std::process::id());
        // Of the second version, and of the first, whose controllers have folders of their own.
        let second = ("/sys/fs/cgroup", "cpu.max", "100000 100000");
        for (root, file, quota) in [second, ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "100000")] {
            let group = Group(std::path::Path::new(root).join(&name));
            if fs::create_dir(&group.0).is_ok() {
                // A file that is made here is none of the kernel's.
                if group.0.join("cgroup.procs").exists() && fs::write(group.0.join(file), quota).is_ok() {
                    return Some(group);
                }
            }
        }
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn the_time_that_a_control_group_allows_counts_as_cores() {
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        eprintln!("skipped: this machine has one core");
        return;
    }
    let Some(group) = Group::of_one_processor() else {
        eprintln!("skipped: this machine gives no control group with the processor's time");
        return;
    };
    let bed = Bed::new("threads-quota");
    let enter = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", group.0.display());
    let log = log_of(&bed, &["sh", "-c", &enter], &[], 2);
    assert!(log.contains("at_most=1 cores=1"), "{log}");
    let log = log_of(&bed, &["sh", "-c", &enter], &["--threads", "2"], 2);
    assert!(log.contains("more threads than cores that this process may use"), "{log}");
}

#[test]
fn a_port_that_somebody_has_ends_the_node_and_is_named() {
    let bed = Bed::new("threads-port");
    let (listen, manager) = (format!("127.0.0.1:{}", bed.port + 1), format!("127.0.0.1:{}", bed.port));
    let _taken = std::net::TcpListener::bind(("127.0.0.1", bed.port + 3)).expect("it is free");
    let mut args = vec!["node", "run", "--name", "n", "--manager", &manager, "--listen", &listen];
    args.extend(["--fabric-id", "7b0c6a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f", "--threads", "3"]);
    args.extend(["--drive", "mem:64M", "--drive", "mem:64M", "--drive", "mem:64M"]);
    let refused = bed.weft(&args);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains(&format!("127.0.0.1:{}", bed.port + 3)), "{refused:?}");
    assert!(refused.err.contains("hint: "), "{refused:?}");
}

#[test]
fn the_port_of_the_metrics_is_refused_among_those_of_threads() {
    let bed = Bed::new("threads-metrics");
    let (listen, metrics) = (format!("127.0.0.1:{}", bed.port), format!("127.0.0.1:{}", bed.port + 1));
    let mut args = vec!["node", "run", "--name", "n", "--manager", "127.0.0.1:1", "--listen", &listen];
    args.extend(["--fabric-id", "7b0c6a52-7c5e-4f6b-9d0e-1a2b3c4d5e6f", "--metrics", &metrics]);
    args.extend(["--threads", "2", "--drive", "mem:64M", "--drive", "mem:64M"]);
    bed.weft(&args).fails(2, &[&metrics, "that of --metrics"]);
}

#[test]
fn a_node_goes_from_many_threads_to_one_and_back_under_a_checked_load() {
    let site = Site::new("threads-load");
    let bed = &site.bed;
    let fabric =
        bed.json(&["fabric", "init", "map.redb"])["fabric"].as_str().expect("its identity").to_owned();
    for n in [1, 2] {
        let device = format!("device-{n}");
        let format = ["drive", "format", &device, "--fabric-id", &fabric, "--size", "600MiB", "--sparse"];
        bed.ok(&[&format[..], &["--parts", "8", "--force"]].concat());
    }
    let _manager = bed.spawn(&["manager", "run", "--store", "map.redb", "--listen", &site.manager]);
    wait_until("the manager serves", || bed.weft(&["--fabric", &site.manager, "fabric", "show"]).code == 0);
    let start = |n: u16, threads: &str| {
        let (name, listen, device) = (format!("node-{n}"), site.listen(n), format!("device-{n}"));
        let args = ["node", "run", "--name", &name, "--manager", &site.manager, "--listen", &listen];
        bed.spawn(&[&args[..], &["--drive", &device, "--threads", threads]].concat())
    };
    let (mut first, _second) = (start(1, "7"), start(2, "2"));
    wait_until("all parts are there", || {
        site.json(&["drive", "list"])["drives"].as_array().map(Vec::len) == Some(16)
    });
    site.await_health("healthy");
    bed.ok(&["--fabric", &site.manager, "volume", "create", "v", "--size", "32MiB"]);
    let load = ["bench", "run", "v", "--rw", "mix", "--verify", "--threads", "2", "--depth", "4", "--json"];
    let load = bed.spawn(
        &[&["--fabric", &site.manager], &load[..], &["--rate-limit", "600", "--runtime", "15s"]].concat(),
    );
    for (threads, wanted) in [("1", 1), ("7", 7)] {
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert_eq!(first.end("TERM"), Some(0));
        first = start(1, threads);
        wait_until("it has its threads", || site.targets()[0] == wanted);
        site.await_health("healthy");
    }
    let ended = load.finish();
    assert_eq!(ended.code, 0, "{ended:?}");
    let report: Value = serde_json::from_str(&ended.out).expect("a document");
    assert!(report["verify"]["is_read_back"] == true, "{report}");
    assert_eq!(bed.weft(&["--fabric", &site.manager, "fabric", "check"]).code, 0);
}

#[test]
fn a_second_process_under_the_name_of_a_node_is_refused_as_long_as_the_first_one_serves() {
    let site = Site::new("threads-twice");
    let bed = &site.bed;
    let fabric =
        bed.json(&["fabric", "init", "map.redb"])["fabric"].as_str().expect("its identity").to_owned();
    for drive in ["a-0", "a-1", "b-0", "b-1"] {
        bed.ok(&["drive", "format", drive, "--fabric-id", &fabric, "--size", "128MiB", "--sparse"]);
    }
    let _manager = bed.spawn(&["manager", "run", "--store", "map.redb", "--listen", &site.manager]);
    wait_until("the manager serves", || bed.weft(&["--fabric", &site.manager, "fabric", "show"]).code == 0);
    let start = |n: u16, which: &str, log: &str| {
        let (listen, drives) = (site.listen(n), [format!("{which}-0"), format!("{which}-1")]);
        let args = ["node", "run", "--name", "n", "--manager", &site.manager, "--listen", &listen];
        let more = ["--threads", "2", "--drive", &drives[0], "--drive", &drives[1], "--log-file", log];
        bed.spawn(&[&args[..], &more].concat())
    };
    let present = || {
        let list = site.json(&["drive", "list"]);
        let drives = list["drives"].as_array().expect("a list").iter().filter(|d| d["present"] == true);
        drives.map(|d| d["path"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let log = |name: &str| fs::read_to_string(bed.path(name)).unwrap_or_default();
    let first = start(1, "a", "first.log");
    wait_until("it serves", || present() == ["a-0", "a-1"]);
    // The same drives: it is refused them, and the first one serves on.
    let same = start(2, "a", "same.log");
    wait_until("it has given up", || log("same.log").matches("drive is left out").count() == 2);
    assert!(log("same.log").contains("in use"), "{}", log("same.log"));
    drop(same);
    // Other drives under the same name: who was first serves on, and the other one takes part once it is
    // gone.
    let second = start(2, "b", "second.log");
    wait_until("it is refused", || log("second.log").matches("manager refuses").count() >= 2);
    let said = log("second.log");
    for words in ["a target named 'n' is up at", "every node needs a name of its own"] {
        assert!(said.contains(words), "'{words}' is not in {said}");
    }
    assert_eq!(present(), ["a-0", "a-1"]);
    drop(first);
    wait_until("it serves", || present() == ["b-0", "b-1"]);
    assert_eq!(second.end("TERM"), Some(0));
}
