//! The load generator on a real fabric: its reports, its checks, and what it refuses.

mod bed;

use bed::{Bed, assert_balanced, wait_until};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

fn run<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    [&["bench", "run", "data", "--warm-up", "0s"], rest].concat()
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

#[test]
fn a_checked_mix_is_reported_and_then_protected() {
    let bed = Bed::new("bench");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "32MiB"]);
    let mix = ["--rw", "mix", "--size", "8MiB", "--offset", "4MiB", "--depth", "16", "--verify"];
    let report = bed.json(&run(&[&mix[..], &["--runtime", "2s", "--html", "report.html"]].concat()));
    let (reads, writes) = (count(&report["reads"]["requests"]), count(&report["writes"]["requests"]));
    assert!(reads > 0 && writes > 0, "{report}");
    assert_eq!(count(&report["total"]["requests"]), reads + writes);
    assert_eq!(report["verify"]["blocks_wrong"], 0, "{report}");
    assert_eq!(report["verify"]["is_read_back"], true, "{report}");
    assert!(count(&report["verify"]["blocks_checked"]) >= reads, "{report}");
    assert_eq!((&report["volume"]["copies"], &report["load"]["attached"]), (&2.into(), &"exclusive".into()));
    assert!(report["machine"]["kernel"].is_string() && report["failure"].is_null(), "{report}");
    assert!(report["seconds"].as_array().is_some_and(|seconds| !seconds.is_empty()), "{report}");

    let html = fs::read_to_string(bed.path("report.html")).expect("it was written");
    assert_balanced(&html);
    assert_eq!(html.matches("<svg").count(), 4, "each chart is there");
    assert!(!html.contains("<script") && !html.contains("href="), "it needs nothing else");

    bed.weft(&run(&["--rw", "write"])).fails(4, &["'data' holds data", "--overwrite"]);
    let beside = run(&["--rw", "write", "--size", "4MiB", "--runtime", "100ms", "--rate-limit", "100"]);
    assert!(bed.ok(&beside).contains("random writes of 4 KiB, 32 in flight, at most 100/s"));
    let again = run(&["--rw", "write", "--overwrite", "--jobs", "2", "--runtime", "300ms"]);
    assert_eq!(bed.json(&again)["load"]["attached"], "shared");
    let read = bed.json(&run(&["--verify", "--runtime", "300ms", "--pattern", "sequential"]));
    assert_eq!(
        (&read["load"]["attached"], &read["verify"]["blocks_wrong"]),
        (&"read-only".into(), &0.into())
    );
}

#[test]
fn a_block_that_was_changed_is_found_and_named() {
    let bed = Bed::new("bench-corrupt");
    bed.up(2, 1);
    bed.ok(&["volume", "create", "data", "--size", "4MiB"]);
    let fill = ["--rw", "write", "--pattern", "sequential", "--bs", "64KiB", "--verify", "--runtime", "1s"];
    bed.ok(&run(&fill));
    bed.ok(&["volume", "export", "data", "image"]);
    let mut image = fs::read(bed.path("image")).expect("it was written");
    image[77 * 4096 + 1000] ^= 1;
    fs::write(bed.path("image"), &image).expect("written");
    bed.ok(&["volume", "import", "data", "image", "--force"]);
    // A megabyte at a time, so that all of it is read however slow the machine is: a run begins depth requests.
    let read =
        run(&["--verify", "--pattern", "sequential", "--bs", "1MiB", "--depth", "4", "--runtime", "1s"]);
    let said = bed.weft(&read);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.err.contains("LBA 77: expected") && said.err.contains("with checksum"), "{said:?}");
    assert!(said.err.contains("hint: ") && said.out.contains("WRONG blocks: "), "{said:?}");
}

#[test]
fn what_does_not_fit_the_volume_is_refused() {
    let bed = Bed::new("bench-refuse");
    bed.up(1, 1);
    bed.ok(&["volume", "create", "data", "--size", "4MiB", "--copies", "1"]);
    let fails = |rest: &[&str], word: &str| bed.weft(&run(rest)).fails(2, &[word]);
    fails(&["--bs", "1000"], "not a multiple of 4096");
    fails(&["--bs", "8MiB"], "for each job");
    fails(&["--offset", "4MiB"], "not within volume data");
    fails(&["--offset", "2MiB", "--size", "4MiB"], "not within volume data");
    fails(&["--rw", "write", "--bs", "512", "--verify"], "whole blocks");
    fails(&["--runtime", "0s"], "measures nothing");
    bed.weft(&["bench", "run", "none"]).fails(1, &["none"]);
    assert!(
        bed.ok(&["bench", "run", "data", "--rw", "write", "--bs", "512", "--runtime", "200ms"])
            .contains("512 B")
    );
}

/// Starts a long run, ends it by other means once it measures, and returns its exit code, its report and its errors.
fn cut_short(bed: &Bed, by: impl Fn(&bed::Running)) -> (Option<i32>, Value, String) {
    // The first request may not be on its way yet when the end comes: then more patience is needed.
    for patience_ms in [500, 5000, 50_000] {
        bed.ok(&["volume", "create", "data", "--size", "4MiB", "--copies", "1"]);
        let mut running = bed.spawn(&run(&["--runtime", "1h", "--json"]));
        wait_until("it is attached", || {
            let sessions = bed.json(&["session", "list"]);
            sessions["sessions"].as_array().is_some_and(|all| {
                all.iter()
                    .any(|one| one["client"].as_str().is_some_and(|name| name.starts_with("weft bench")))
            })
        });
        std::thread::sleep(Duration::from_millis(patience_ms));
        by(&running);
        let (mut told, mut errors) = (String::new(), String::new());
        let (out, err) = (running.0.stdout.take(), running.0.stderr.take());
        out.expect("it was asked for").read_to_string(&mut told).expect("text");
        err.expect("it was asked for").read_to_string(&mut errors).expect("text");
        let code = running.0.wait().expect("it is a child").code();
        let report: Value = serde_json::from_str(&told).unwrap_or_default();
        if report["total"]["requests"].as_u64() > Some(0) {
            return (code, report, errors);
        }
        bed.weft(&["volume", "delete", "data", "--force", "--yes"]);
        wait_until("the volume is gone", || bed.weft(&["volume", "show", "data"]).code == 1);
    }
    panic!("nothing was measured at all");
}

#[test]
fn a_run_that_ends_early_tells_what_ran() {
    let bed = Bed::new("bench-early");
    bed.up(1, 1);
    let (code, report, errors) = cut_short(&bed, |running| bed::kill(running.0.id() as i32, "INT"));
    assert_eq!((code, &report["interrupted"], errors.as_str()), (Some(0), &true.into(), ""), "{report}");
    bed.ok(&["volume", "delete", "data", "--yes"]);
    wait_until("the volume is gone", || bed.weft(&["volume", "show", "data"]).code == 1);

    let delete = |_: &bed::Running| drop(bed.ok(&["volume", "delete", "data", "--force", "--yes"]));
    let (code, report, errors) = cut_short(&bed, delete);
    assert_eq!((code, &report["interrupted"]), (Some(1), &false.into()), "{report}");
    assert!(report["failure"]["message"].is_string(), "{report}");
    assert!(errors.contains("the load ended early"), "{errors}");
}

#[test]
fn a_matrix_is_measured_compared_and_leaves_nothing_behind() {
    let bed = Bed::new("bench-matrix");
    bed.up(2, 1);
    let quick = ["bench", "matrix", "--quick", "--runtime", "300ms", "--warm-up", "50ms", "--size", "16MiB"];
    let loads = ["--clients", "2,1", "--bs", "4KiB"];
    let files = ["--out", "one.json", "--html", "one.html"];
    let text = bed.ok(&[&quick[..], &loads, &files].concat());
    for load in ["read 4 KiB private", "write 4 KiB private", "read 4 KiB shared", "write 4 KiB shared"] {
        assert_eq!(text.matches(load).count(), 2, "one row for each number of clients: {text}");
    }
    let result: Value =
        serde_json::from_slice(&fs::read(bed.path("one.json")).expect("it was written")).unwrap();
    let cells = result["cells"].as_array().expect("a list");
    assert_eq!(cells.len(), 8);
    for cell in cells {
        assert!(cell["median"]["iops"].as_f64().is_some_and(|iops| iops > 0.0), "{cell}");
        assert!(cell["median"]["p99_us"].as_f64().is_some_and(|us| us > 0.0), "{cell}");
        assert_eq!(cell["runs"].as_array().map(Vec::len), Some(1), "{cell}");
    }
    let html = fs::read_to_string(bed.path("one.html")).expect("it was written");
    assert_balanced(&html);
    assert_eq!(html.matches("<svg").count(), 4 * 5);
    let same = bed.json(&["bench", "compare", "one.json", "one.json"]);
    assert_eq!(same["cells"].as_array().map(Vec::len), Some(8), "{same}");
    assert!(same["cells"].as_array().unwrap().iter().all(|cell| cell["iops_ratio"] == 1.0), "{same}");
    assert_no_volumes(&bed);

    bed.weft(&[&quick[..], &["--bs", "16KiB"]].concat()).fails(2, &["no load of 16384 bytes", "4KiB, 8KiB"]);
    bed.weft(&["bench", "matrix", "--quick", "--size", "512KiB"]).fails(2, &["for each job"]);
    bed.weft(&["bench", "compare", "one.html", "one.json"]).fails(2, &["one.html: no result"]);
    // What is there already stays, and nothing is measured.
    bed.ok(&["volume", "create", "weft-bench-shared", "--size", "4MiB"]);
    bed.weft(&quick).fails(1, &["weft-bench-shared"]);
    assert_eq!(bed.json(&["volume", "list"])["volumes"].as_array().map(Vec::len), Some(1));
    // A client that cannot be reached is named with its words.
    bed.ok(&["volume", "delete", "weft-bench-shared", "--yes"]);
    let lost = ["--on", "false --for", "--clients", "1", "--volumes", "private", "--bs", "4KiB"];
    bed.weft(&[&quick[..], &lost].concat()).fails(1, &["client 1 failed (exit status: 1", "it said nothing"]);
    assert_no_volumes(&bed);
}

#[test]
fn a_workload_of_many_clients_is_told_for_each_and_all() {
    let bed = Bed::new("bench-workload");
    bed.up(2, 1);
    let load = |rest: &[&str]| {
        let words = ["bench", "start-workload", "-b4K", "-o", "4", "-t2", "-w30", "-r", "-Sh", "-L", "-c8M"];
        bed.weft(&[&words[..], rest].concat())
    };
    let short = ["-d", "300ms", "-W0", "--clients", "2"];
    let said = load(&[&short[..], &["--out", "one.json", "--html", "one.html"]].concat());
    assert_eq!(said.code, 0, "{said:?}");
    for part in
        ["2 clients, each on a volume of 8 MiB: 4 KiB random, 30 % writes, 2 threads x 4", "iops/core"]
    {
        assert!(said.out.contains(part), "'{part}' is not in {}", said.out);
    }
    let result: Value =
        serde_json::from_slice(&fs::read(bed.path("one.json")).expect("it was written")).unwrap();
    let rate = |of: &Value, key: &str| of[key].as_f64().filter(|rate| *rate > 0.0).expect("it did something");
    let clients = result["clients"].as_array().expect("a list");
    let sum: f64 = clients.iter().map(|client| rate(client, "iops")).sum();
    assert!((sum - rate(&result["total"], "iops")).abs() < 1.0, "{result}");
    assert!(
        clients.iter().all(|client| rate(client, "reads_per_s") > rate(client, "writes_per_s")),
        "{result}"
    );
    assert!(
        rate(&result["total"], "iops_per_core") > 0.0 && rate(&result["total"], "p999_us") > 0.0,
        "{result}"
    );
    assert!(result["machine"]["kernel"].is_string() && result["weft_version"].is_string(), "{result}");
    assert_eq!((clients.len(), &result["layout"]), (2, &"2 nodes with 2 drives, 2 copies".into()));
    let html = fs::read_to_string(bed.path("one.html")).expect("it was written");
    assert_balanced(&html);
    assert_eq!(html.matches("<svg").count(), 2);
    let same = bed.json(&["bench", "compare", "one.json", "one.json"]);
    assert_eq!((&same["cells"][0]["iops_ratio"], &same["cells"][0]["clients"]), (&1.0.into(), &2.into()));

    let fails = |rest: &[&str], word: &str| {
        bed.weft(&[&["bench", "start-workload"], rest].concat()).fails(2, &[word]);
    };
    fails(&["-b", "1000"], "not a multiple of 4096");
    fails(&["-t", "64", "-c", "2M"], "for each thread");
    fails(&["-d", "0"], "no time");
    fails(&["--on", " "], "--on is given no command");
    assert_no_volumes(&bed);
}

/// Waits until clients of a benchmark are attached; their sessions.
fn await_clients(bed: &Bed) {
    wait_until("clients are attached", || {
        let sessions = bed.json(&["session", "list"]);
        let clients = sessions["sessions"].as_array().map(Vec::as_slice).unwrap_or_default();
        clients.iter().any(|one| {
            one["client"]
                .as_str()
                .is_some_and(|name| ["weft bench[", "nbd "].iter().any(|prefix| name.starts_with(prefix)))
        })
    });
}

fn assert_no_volumes(bed: &Bed) {
    assert_eq!(bed.json(&["volume", "list"])["volumes"].as_array().map(Vec::len), Some(0));
}

/// The processes that a process has started and that still run.
fn children(pid: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let of = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    of.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().expect("a number")).collect::<Vec<_>>())
        .collect()
}

#[test]
fn clients_that_end_early_end_the_workload_and_nothing_is_left() {
    let mut bed = Bed::new("bench-ended");
    bed.up(2, 1);
    // A client that is killed cannot remove its own folder.
    let folder: &'static str = Box::leak(bed.dir.to_string_lossy().into_owned().into_boxed_str());
    bed.env = vec![("TMPDIR", folder)];
    fs::write(bed.path("long.fio"), "[job]\nrw=randread\ntime_based\nruntime=1h\n").expect("written");
    let workload = ["bench", "start-workload", "-r", "-d", "1h", "-W0", "-c8M", "--clients", "2"];
    let fio = ["bench", "fio", "long.fio", "--size", "8MiB", "--clients", "2"];
    for (is_killed, words) in [(true, "client 2 failed (signal: 9"), (false, "interrupted")] {
        for long in [&workload[..], &fio] {
            let mut running = bed.spawn(long);
            await_clients(&bed);
            let clients = children(running.0.id());
            assert_eq!(clients.len(), 2, "{clients:?}");
            match is_killed {
                true => bed::kill(*clients.iter().max().expect("there are two"), "KILL"),
                false => bed::kill(running.0.id() as i32, "INT"),
            }
            let mut errors = String::new();
            running.0.stderr.take().expect("it was asked for").read_to_string(&mut errors).expect("text");
            assert_eq!(running.0.wait().expect("it is a child").code(), Some(1), "{errors}");
            assert!(errors.contains(words), "{errors}");
            assert_no_volumes(&bed);
            assert!(
                clients.iter().all(|pid| !bed::runs_in(*pid, Path::new("weft-bench-"))),
                "a client is left"
            );
        }
    }
}

#[test]
fn fio_runs_a_job_file_on_all_clients_and_says_what_it_cannot() {
    let mut bed = Bed::new("bench-fio");
    bed.up(2, 1);
    let jobs = "[global]\nioengine=libaio\nfilename=/dev/none\nbs=4k\niodepth=4\ntime_based\nruntime=1\n\
                [mix]\nrw=randrw\n[after]\nstonewall\nrw=read\nbs=64k\nnumjobs=2\n";
    fs::write(bed.path("jobs.fio"), jobs).expect("written");
    let fio = |bed: &Bed, rest: &[&str]| bed.weft(&[&["bench", "fio", "jobs.fio"], rest].concat());
    let said = fio(&bed, &["--clients", "2", "--size", "8MiB", "--out", "one.json", "--html", "one.html"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.out.contains("over NBD") && said.out.contains("iops/core"), "{said:?}");
    let result: Value =
        serde_json::from_slice(&fs::read(bed.path("one.json")).expect("it was written")).unwrap();
    let jobs = result["jobs"].as_array().expect("a list");
    let names: Vec<String> = jobs.iter().map(|job| format!("{} {}", job["job"], job["direction"])).collect();
    assert_eq!(names, [r#""mix" "read""#, r#""mix" "write""#, r#""after" "read""#]);
    let sum =
        |of: &Value, keys: [&str; 2]| keys.map(|key| of[key].as_f64().expect("a number")).iter().sum::<f64>();
    let total = &result["total"];
    assert!(jobs.iter().all(|job| sum(job, ["p99_us", "p50_us"]) > 0.0), "{result}");
    assert!(sum(total, ["client_cores", "target_cores"]) > 0.0 && total["iops_per_core"] != 0.0, "{result}");
    assert_eq!(result["clients"].as_array().map(Vec::len), Some(2));
    assert!(result["fio_version"].as_str().is_some_and(|version| version.starts_with("fio-3")), "{result}");
    assert_balanced(&fs::read_to_string(bed.path("one.html")).expect("it was written"));
    let same = bed.json(&["bench", "compare", "one.json", "one.json"]);
    assert_eq!(same["cells"].as_array().map(Vec::len), Some(4), "three jobs, and all: {same}");
    assert_no_volumes(&bed);

    bed.ok(&["volume", "create", "data", "--size", "8MiB"]);
    assert_eq!(fio(&bed, &["--volume", "data"]).code, 0, "it is empty");
    fio(&bed, &["--volume", "data"]).fails(4, &["'data' holds data", "--overwrite"]);
    fio(&bed, &["--volume", "none"]).fails(1, &["none"]);
    fio(&bed, &["--overwrite"]).fails(2, &["--volume"]);
    let says = |bed: &Bed, code, words| fio(bed, &[]).fails(code, &[words]);
    fs::write(bed.path("jobs.fio"), "[job]\nrw=read\nbogus=1\n").expect("written");
    says(&bed, 2, "refused by fio: Bad option <bogus=1>");
    fs::write(bed.path("jobs.fio"), "[global]\nrw=read\n").expect("written");
    says(&bed, 2, "has no job");
    fs::write(bed.path("jobs.fio"), "[job]\nrw=read\n").expect("written");
    bed.env = vec![("PATH", "/nowhere")];
    says(&bed, 1, "fio is not installed");
}
