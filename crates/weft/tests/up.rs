//! A local fabric from end to end: real processes, real files, a node's death, the loss of the manager's store.

mod bed;

use bed::{Bed, Said, runs_in, said, sample, wait_until};
use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};

const MIB: usize = 1 << 20;

/// Exports a volume and compares its first bytes; the rest must be zeroes.
fn assert_holds(bed: &Bed, volume: &str, expected: &[u8]) {
    let file = bed.path("back");
    let file = file.to_str().expect("a plain path");
    bed.ok(&["volume", "export", volume, file, "--sparse", "--force"]);
    let found = fs::read(file).expect("it was written");
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{volume} differs at this byte{}", bed.logs());
    assert!(found[expected.len()..].iter().all(|b| *b == 0), "the rest reads as zeroes");
}

#[test]
fn data_lives_through_a_dead_node_a_restart_and_a_lost_manager() {
    let bed = Bed::new("life");
    let report = bed.up(3, 1);
    assert!(report.contains("is up: 3 nodes, 3 drives of 128 MiB"), "{report}");
    let fits = report.lines().find_map(|line| line.trim().split_once("--size ")).expect("a first command").1;
    bed.ok(&["volume", "create", "hinted", "--size", fits.split(' ').next().expect("a size")]);
    bed.ok(&["volume", "delete", "hinted", "--yes"]);
    bed.ok(&["volume", "create", "data", "--size", "48MiB"]);
    let (first, second) = (sample(24 * MIB, 1), sample(30 * MIB - 100, 2));
    fs::write(bed.path("first"), &first).expect("written");
    fs::write(bed.path("second"), &second).expect("written");
    bed.ok(&["volume", "import", "data", "first"]);
    assert_holds(&bed, "data", &first);

    bed.ok(&["node", "stop", "node-2", "--kill"]);
    bed.weft(&["node", "stop", "node-2"]).fails(1, &["node-2 is not running"]);
    bed.await_health("degraded");
    bed.weft(&["volume", "import", "data", "second"]).fails(4, &["holds data", "--force"]);
    bed.weft(&["volume", "import", "data", "second", "--dry-run"]).fails(4, &["holds data", "--force"]);
    let would = bed.json(&["volume", "import", "data", "second", "--dry-run", "--force"]);
    assert_eq!((&would["overwrites"], &would["bytes"]), (&true.into(), &second.len().into()), "{would}");
    assert_holds(&bed, "data", &first);
    bed.ok(&["volume", "import", "data", "second", "--force"]);
    assert_holds(&bed, "data", &second);

    bed.ok(&["node", "start", "node-2"]);
    bed.weft(&["node", "start", "node-2"]).fails(1, &["node-2 is running already"]);
    bed.await_health("healthy");
    assert_holds(&bed, "data", &second);

    bed.ok(&["down"]);
    bed.weft(&["status"]).fails(3, &["no fabric answers"]);
    bed.ok(&["up", "--detach"]);
    assert_holds(&bed, "data", &second);
    bed.ok(&["down"]);

    fs::remove_file(bed.fabric().join("manager/map.redb")).expect("it was there");
    bed.weft(&["up", "--detach"]).fails(4, &["manager's store is missing", "weft fabric recover"]);
    recover(&bed, true);
    assert!(!bed.fabric().join("manager/map.redb").exists(), "a dry run writes nothing");
    recover(&bed, false);
    bed.ok(&["up", "--detach"]);
    bed.await_health("healthy");
    assert_holds(&bed, "data", &second);
    destroy(&bed);
}

fn recover(bed: &Bed, dry_run: bool) {
    let fabric = bed.fabric();
    let drives: Vec<String> =
        (1..=3).map(|n| fabric.join(format!("nodes/node-{n}/drive-1.img")).display().to_string()).collect();
    let folder = fabric.display().to_string();
    let mut args = vec!["fabric", "recover", &folder, "--drives"];
    args.extend(drives.iter().map(String::as_str));
    if dry_run {
        args.push("--dry-run");
    }
    let report = bed.json(&args);
    assert_eq!(report["volumes"], serde_json::json!(["data"]), "{report}");
    assert_eq!(report["copies"].as_array().map(Vec::len), Some(3), "{report}");
}

fn destroy(bed: &Bed) {
    bed.weft(&["down", "--destroy"]).fails(4, &["There is no terminal"]);
    let rehearsal = bed.json(&["down", "--destroy", "--dry-run"]);
    assert_eq!(rehearsal["dry_run"], true);
    assert!(bed.pid("manager").is_some(), "nothing was stopped");
    bed.ok(&["down", "--destroy", "--yes"]);
    assert!(!bed.fabric().exists(), "nothing is left");
}

#[test]
fn a_volume_grows_is_seen_and_is_deleted() {
    let bed = Bed::new("volume");
    bed.up(2, 1);
    let made = bed.json(&["volume", "create", "data", "--size", "16MiB", "--stripe-unit", "64KiB"]);
    assert_eq!(made["volume"]["size_bytes"], 16 * MIB);
    let grown = bed.json(&["volume", "resize", "data", "--size", "32MiB"]);
    assert_eq!(grown["volume"]["size_bytes"], 32 * MIB);
    bed.weft(&["volume", "resize", "data", "--size", "16MiB"]).fails(4, &["32 MiB"]);
    let listed = bed.json(&["volume", "list"]);
    assert_eq!(listed["volumes"][0]["name"], "data");

    bed.weft(&["volume", "delete", "data"]).fails(4, &["There is no terminal"]);
    bed.ok(&["volume", "delete", "data", "--dry-run"]);
    bed.ok(&["volume", "show", "data"]);
    bed.ok(&["volume", "delete", "data", "--yes"]);
    wait_until("the volume is gone", || bed.weft(&["volume", "show", "data"]).code == 1);
    assert_eq!(bed.json(&["fabric", "show"])["nodes"], 2);
    assert_eq!(bed.json(&["map", "show"])["map"]["schema"], 1);
    assert!(bed.ok(&["events", "--limit", "5"]).lines().count() <= 5);
    assert_eq!(bed.json(&["drive", "list"])["drives"].as_array().map(Vec::len), Some(2));
    assert_eq!(bed.json(&["node", "show", "node-1"])["node"]["presence"], "up");
}

#[test]
fn bad_volumes_are_refused_with_what_to_do() {
    let bed = Bed::new("bad-volume");
    bed.up(2, 1);
    let create = |name: &str, size: &str| bed.weft(&["volume", "create", name, "--size", size]);
    create("a/b", "1MiB").fails(2, &["a/b"]);
    create(&"x".repeat(300), "1MiB").fails(2, &["name"]);
    create("odd", "1000").fails(2, &["1000"]);
    create("big", "1TiB").fails(4, &["can promise", "--thin"]);
    bed.ok(&["volume", "create", "big", "--size", "1TiB", "--thin"]);
    create("big", "1MiB").fails(1, &["already"]);
    bed.weft(&["volume", "create", "c3", "--size", "1MiB", "--copies", "3"]).fails(4, &["3 copies need 3"]);
    bed.weft(&["volume", "show", "none"]).fails(1, &["none"]);
    bed.weft(&["volume", "import", "none", "fabric/fabric.json"]).fails(1, &["none"]);
    bed.weft(&["volume", "import", "big", "no-such-file"]).fails(1, &["no-such-file"]);

    bed.ok(&["volume", "create", "small", "--size", "4KiB", "--thin"]);
    fs::write(bed.path("large"), vec![1; 8192]).expect("written");
    bed.weft(&["volume", "import", "small", "large"]).fails(1, &["8192", "nothing was imported", "resize"]);
    fs::write(bed.path("there"), "x").expect("written");
    bed.weft(&["volume", "export", "small", "there"]).fails(4, &["there exists", "--force"]);
    assert_eq!(fs::read(bed.path("there")).expect("still there"), b"x");
    // A file that nothing could be written to is no export: it does not stay behind.
    let mut limited = Command::new("sh");
    limited.args([
        "-c",
        "trap '' XFSZ; ulimit -f 0; exec \"$@\"",
        "sh",
        &bed::WEFT,
        "volume",
        "export",
        "small",
    ]);
    limited.arg(bed.path("nothing")).env("WEFT_FABRIC", bed.fabric()).stdin(Stdio::null());
    said(limited.output().expect("sh runs")).fails(1, &["nothing", "too large"]);
    assert!(!bed.path("nothing").exists());
}

#[test]
fn data_goes_through_pipes() {
    let bed = Bed::new("pipe");
    bed.up(2, 1);
    let data = sample(3 * MIB + 777, 3);
    fs::write(bed.path("data"), &data).expect("written");
    let import = |args: &[&str]| -> Said {
        let stdin = fs::File::open(bed.path("data")).expect("it is there");
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let feeder = std::thread::spawn(move || std::io::copy(&mut { stdin }, &mut writer));
        let mut command = Command::new(&*bed::WEFT);
        command.args(args).env("WEFT_FABRIC", bed.fabric()).stdin(reader);
        let said = said(command.output().expect("weft runs"));
        // The feeder ends when nobody can read any more.
        drop(command);
        let _ = feeder.join();
        said
    };
    let without_size = import(&["volume", "import", "p", "-", "--create"]);
    without_size.fails(2, &["--size"]);
    let done = import(&["volume", "import", "p", "-", "--create", "--size", "4MiB", "--json"]);
    assert_eq!(done.code, 0, "{done:?}");
    let mut export = Command::new(&*bed::WEFT);
    export.args(["volume", "export", "p", "-"]).env("WEFT_FABRIC", bed.fabric()).stdin(Stdio::null());
    let out = export.output().expect("weft runs").stdout;
    assert_eq!(out.len(), 4 * MIB);
    assert!(out[..data.len()] == data[..] && out[data.len()..].iter().all(|b| *b == 0));
    bed.weft(&["volume", "export", "p", "-", "--sparse"]).fails(2, &["holes"]);
}

#[test]
fn up_refuses_what_would_not_work() {
    let bed = Bed::new("refuse");
    let port = bed.port.to_string();
    let up = |args: &[&str]| bed.weft(&[&["up", "--detach", "--port", &port], args].concat());
    let taken = TcpListener::bind(("127.0.0.1", bed.port + 1)).expect("it is free");
    up(&["--sparse", "--drive-size", "64MiB"])
        .fails(1, &[&format!("port {}", bed.port + 1), "node-1", "--port"]);
    drop(taken);
    up(&["--drive-size", "8EiB", "--nodes", "1", "--drives", "1"]).fails(4, &["do not fit", "--sparse"]);
    up(&["--drive-size", "1MiB", "--sparse"]).fails(2, &["too small", "64MiB"]);
    up(&["--nodes", "0"]).fails(2, &["--nodes"]);
    assert!(!bed.fabric().exists(), "nothing was made");

    fs::write(bed.path("file"), "x").expect("written");
    up(&["--dir", "file"]).fails(1, &["cannot create the folder file"]);
    fs::create_dir(bed.path("mine")).expect("made");
    fs::write(bed.path("mine/thesis.tex"), "x").expect("written");
    up(&["--dir", "mine"]).fails(4, &["thesis.tex", "not the folder of a Weft fabric"]);
    bed.weft(&["down", "--dir", "mine", "--destroy", "--yes"]).fails(3, &["no fabric in mine"]);
    assert!(bed.path("mine/thesis.tex").exists());

    bed.up(1, 1);
    up(&[]).fails(4, &["is running already", "weft down"]);
    bed.ok(&["down"]);
    up(&["--nodes", "2"]).fails(2, &["has 1 nodes, not 2"]);
}

#[test]
fn a_fabric_in_the_foreground_ends_with_its_command() {
    for signal in ["INT", "TERM", "KILL"] {
        let bed = Bed::new(&format!("front-{signal}"));
        let port = bed.port.to_string();
        let args =
            ["up", "--nodes", "2", "--drives", "1", "--drive-size", "64MiB", "--sparse", "--port", &port];
        let mut up = bed.spawn(&args);
        up.await_line("is up");
        let members: Vec<i32> =
            ["manager", "node-1", "node-2"].iter().map(|m| bed.pid(m).expect("it runs")).collect();
        let code = up.end(signal);
        assert_eq!(code, if signal == "KILL" { None } else { Some(0) });
        let all_gone = || members.iter().all(|pid| !runs_in(*pid, &bed.dir));
        assert!(signal == "KILL" || all_gone(), "in order means that all are gone when it returns");
        wait_until("nothing is orphaned", all_gone);
    }
}

#[test]
fn down_ends_a_fabric_in_the_foreground_and_a_dead_node_is_told() {
    let bed = Bed::new("down-front");
    let port = bed.port.to_string();
    let mut up = bed.spawn(&[
        "up",
        "--nodes",
        "2",
        "--drives",
        "1",
        "--drive-size",
        "64MiB",
        "--sparse",
        "--port",
        &port,
    ]);
    up.await_line("is up");
    bed.ok(&["node", "stop", "node-1", "--kill"]);
    bed.ok(&["node", "start", "node-1"]);
    bed.await_health("healthy");
    bed.ok(&["down"]);
    let status = up.0.wait().expect("it is a child");
    assert!(status.success());
    let mut told = String::new();
    let mut pipe = up.0.stderr.take().expect("it was asked for");
    std::io::Read::read_to_string(&mut pipe, &mut told).expect("text");
    assert!(told.contains("node-1 has ended (signal: 9"), "{told}");
    assert!(bed.pid("node-1").is_none() && bed.pid("manager").is_none());
}

#[test]
fn a_manager_that_has_died_is_brought_back_while_its_nodes_run() {
    let bed = Bed::new("headless");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "16MiB"]);
    bed.weft(&["manager", "start"]).fails(1, &["manager is running already", "weft manager stop"]);
    bed.ok(&["manager", "stop", "--kill"]);
    bed.weft(&["manager", "stop"]).fails(1, &["manager is not running", "weft manager start"]);
    bed.weft(&["volume", "list"]).fails(3, &["no fabric answers", "manager start` brings it back"]);
    bed.weft(&["up", "--detach"]).fails(4, &["node-1, node-2", "manager start` brings it back"]);
    let nodes = (bed.pid("node-1"), bed.pid("node-2"));
    bed.ok(&["manager", "start"]);
    assert_eq!(bed.json(&["status"])["health"], "healthy", "its nodes are awaited");
    assert_eq!((bed.pid("node-1"), bed.pid("node-2")), nodes, "they ran on");
    bed.ok(&["volume", "show", "data"]);

    // A store that cannot be seen is not one that is lost: the link leads to itself.
    bed.ok(&["down"]);
    let (store, away) = (bed.fabric().join("manager/map.redb"), bed.path("map.redb"));
    fs::rename(&store, &away).expect("moved");
    std::os::unix::fs::symlink("map.redb", &store).expect("linked");
    let up = bed.weft(&["up", "--detach"]);
    up.fails(1, &["map.redb"]);
    assert!(!up.err.contains("recover"), "{up:?}");
    fs::remove_file(&store).expect("unlinked");
    bed.weft(&["manager", "start"]).fails(4, &["manager's store is missing"]);
    fs::rename(&away, &store).expect("moved back");
    bed.ok(&["up", "--detach"]);
    bed.ok(&["volume", "show", "data"]);
}

#[test]
fn what_is_asked_of_a_node_names_the_address_as_wrong() {
    let bed = Bed::new("wrong-port");
    bed.up(1, 1);
    let node = format!("127.0.0.1:{}", bed.port + 1);
    bed.weft(&["volume", "list", "--fabric", &node]).fails(1, &["is that the manager's address"]);
    // A pool is told by its name.
    let create = ["volume", "create", "big", "--copies", "1", "--size", "1TiB"];
    bed.weft(&create).fails(4, &["pool 'default' can promise"]);
}

#[test]
fn an_import_that_cannot_be_meant_changes_nothing() {
    let bed = Bed::new("import");
    bed.up(2, 1);
    let data = sample(8 * MIB, 5);
    fs::write(bed.path("file"), &data).expect("written");
    fs::write(bed.path("empty"), "").expect("written");
    bed.ok(&["volume", "import", "data", "file", "--create", "--size", "16MiB"]);
    bed.weft(&["volume", "import", "data", "empty"]).fails(4, &["empty is empty", "nothing was changed"]);
    bed.weft(&["volume", "import", "data", "-", "--force"]).fails(4, &["standard input is empty"]);
    assert_holds(&bed, "data", &data);
    let small = ["volume", "import", "new", "file", "--create", "--size", "4MiB"];
    bed.weft(&small).fails(2, &["8388608 bytes", "cannot hold"]);
    bed.weft(&["volume", "show", "new"]).fails(1, &["no volume 'new'"]);
}

#[test]
fn a_server_ends_once_nothing_is_left_to_serve() {
    let bed = Bed::new("preempted");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "16MiB"]);
    let socket = format!("unix:{}", bed.path("s").display());
    let serve = ["volume", "serve", "data", "--nbd"];
    let mut first = bed.spawn(&[&serve[..], &[&socket]].concat());
    first.await_line("nbd");
    fs::write(bed.path("file"), "x").expect("written");
    bed.weft(&["volume", "import", "data", "file"]).fails(4, &["exclusive", "weft session list"]);
    bed.ok(&["volume", "delete", "data", "--force", "--yes"]);
    let status = first.0.wait().expect("it is a child");
    assert_eq!(status.code(), Some(1));
    let mut told = String::new();
    let mut pipe = first.0.stderr.take().expect("it was asked for");
    std::io::Read::read_to_string(&mut pipe, &mut told).expect("text");
    assert!(told.contains("nothing is left to serve"), "{told}");
}
