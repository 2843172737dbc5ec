//! `weft bench ior`, `weft bench mdtest` and `weft bench io500` as users run them: several processes on a
//! plain folder and on a mount of Weft, what they check, what they refuse, and ranks that `mpirun` has
//! started.

mod bed;

use bed::mounts::{Folder, with_home};
use bed::{Bed, Said, WEFT, assert_balanced, kill, said, wait_until};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("a folder").next().is_none()
}

/// The rows of an access.
fn rows<'a>(figures: &'a Value, access: &str) -> Vec<&'a Value> {
    let rows = figures["rows"].as_array().expect("a list");
    rows.iter().filter(|row| row["access"] == access).collect()
}

/// Both suites with three processes on a folder, whatever it is on.
fn both_suites(bed: &Bed, folder: &Path, file_system: &str) {
    let test = folder.join("test");
    let ior =
        ["bench", "ior", "-w", "-r", "-W", "-R", "-C", "-e", "-g", "-i", "2", "-N", "3", "-o", text(&test)];
    for rest in [&["-t", "64k,256k", "-b", "1m", "-s", "2"][..], &["-t", "4k", "-b", "256k", "-z", "-F"]] {
        let figures = bed.json(&[&ior[..], rest, &["--html", "ior.html"]].concat());
        assert_eq!(figures["folder"]["file_system"], file_system, "{figures}");
        let sizes = rest[1].split(',').count();
        for access in ["write", "read", "remove"] {
            assert_eq!(rows(&figures, access).len(), 2 * sizes, "{access} in {figures}");
        }
        let bytes = if rest.contains(&"-F") { 3 * (256 << 10) } else { 6 << 20 };
        for row in [rows(&figures, "write"), rows(&figures, "read")].concat() {
            assert!(row["bytes"] == bytes && row["processes"] == 3, "{row}");
            assert!(row["mib_per_s"].as_f64() > Some(0.0) && row["total_s"].as_f64() > Some(0.0), "{row}");
        }
        assert_eq!(figures["checked"]["wrong"], 0, "{figures}");
        // After each write and after each read.
        assert_eq!(figures["checked"]["bytes"], bytes * 2 * 2 * sizes as u64, "{figures}");
        let html = fs::read_to_string(bed.path("ior.html")).expect("it was written");
        assert_balanced(&html);
        assert!(html.contains("<svg"), "{html}");
    }
    assert!(is_empty(folder), "all is removed");

    let mdtest =
        ["bench", "mdtest", "-z", "2", "-b", "2", "-I", "3", "-i", "2", "-w", "3901", "-e", "3901", "-X"];
    for rest in [&["-N", "1", "--processes", "1,3"][..], &["-u", "-L", "-y", "-R7", "--processes", "3"]] {
        let figures = bed.json(&[&mdtest[..], rest, &["-d", text(folder)]].concat());
        let result = figures["results"].as_array().and_then(|results| results.last()).expect("a result");
        let operations: Vec<&str> = result["rows"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|row| row["operation"].as_str())
            .collect();
        assert_eq!(operations.len(), 10, "{result}");
        let is_leaf_only = rest.contains(&"-L");
        let items = 3 * 3 * if is_leaf_only { 4 } else { 7 };
        for row in result["rows"].as_array().expect("a list") {
            let is_tree = row["operation"].as_str().is_some_and(|name| name.starts_with("tree"));
            let count = if is_tree { 7 * if is_leaf_only { 3 } else { 1 } } else { items };
            assert_eq!((&row["operations"], row["rates"].as_array().map(Vec::len)), (&count.into(), Some(2)));
            assert!(row["per_second"]["min"].as_f64() > Some(0.0), "{row}");
        }
        assert_eq!(result["wrong"], 0, "{result}");
    }
    assert!(is_empty(folder), "all is removed");
}

#[test]
fn suites_run_on_a_plain_folder() {
    let bed = Bed::new("suites");
    let folder = bed.path("tested");
    fs::create_dir(&folder).expect("it is new");
    let kind =
        said(Command::new("stat").args(["-f", "-c", "%T", text(&folder)]).output().expect("stat runs"));
    let test = folder.join("x");
    let figures = bed.json(&["bench", "ior", "-t", "4k", "-b", "64k", "-o", text(&test)]);
    let file_system = figures["folder"]["file_system"].as_str().expect("a name").to_owned();
    assert!(!file_system.is_empty() && file_system != "unknown", "stat says {}", kind.out);
    both_suites(&bed, &folder, &file_system);
}

#[test]
fn suites_run_on_a_mount() {
    let Some(bed) = with_home("suites-mount") else { return };
    let at = Folder::new(&bed, "at");
    bed.ok(&["mount", "home", at.text()]);
    both_suites(&bed, &at.0, "fuse.weft");
    // Direct requests of all processes go to one file without a lock.
    let test = at.join("direct");
    let direct =
        ["bench", "ior", "-B", "-w", "-r", "-R", "-t", "64k", "-b", "512k", "-N", "3", "-o", text(&test)];
    assert_eq!(bed.json(&direct)["checked"]["wrong"], 0);
    let io500 =
        ["bench", "io500", "--stonewall", "1", "--space", "32m", "--files", "400", "--processes", "2"];
    let figures = bed.json(&[&io500[..], &["-d", at.text()]].concat());
    check_phases(&figures["results"][0]);
    assert!(is_empty(&at.0), "all is removed");
    bed.ok(&["umount", at.text()]);
}

/// The row of a phase of IO500.
fn phase<'a>(result: &'a Value, name: &str) -> &'a Value {
    let rows = result["rows"].as_array().expect("a list");
    rows.iter().find(|row| row["phase"] == name).unwrap_or_else(|| panic!("no {name} in {result}"))
}

/// Insists on what each phase of IO500 has to have done, and on the score.
fn check_phases(result: &Value) {
    let operations = |name: &str| phase(result, name)["operations"].as_u64().expect("a number");
    let names: Vec<&str> =
        result["rows"].as_array().expect("a list").iter().filter_map(|row| row["phase"].as_str()).collect();
    let order = "ior-easy-write mdtest-easy-write timestamp ior-hard-write mdtest-hard-write find \
                 ior-easy-read mdtest-easy-stat ior-hard-read mdtest-hard-stat mdtest-easy-delete \
                 mdtest-hard-read mdtest-hard-delete";
    assert_eq!(names.join(" "), order);
    for form in ["easy", "hard"] {
        let (write, read) = (format!("ior-{form}-write"), format!("ior-{form}-read"));
        let transfer = if form == "easy" { 2 << 20 } else { 47_008 };
        assert!(operations(&write) > 0 && operations(&read) == operations(&write), "{result}");
        for name in [write, read] {
            assert_eq!(phase(result, &name)["bytes"], operations(&name) * transfer, "{result}");
        }
        let made = operations(&format!("mdtest-{form}-write"));
        for rest in if form == "easy" { &["stat", "delete"][..] } else { &["stat", "read", "delete"] } {
            assert_eq!(operations(&format!("mdtest-{form}-{rest}")), made, "{rest} in {result}");
        }
    }
    // Beside the files of mdtest there are one of each process, one of all, and the timestamp.
    let processes = result["processes"].as_u64().expect("a number");
    let files = operations("mdtest-easy-write") + operations("mdtest-hard-write") + processes + 2;
    assert_eq!(result["find"]["looked_at"], files, "{result}");
    assert_eq!(result["find"]["found"], result["find"]["expected"], "{result}");
    let compared = ["ior-easy-read", "ior-hard-read", "mdtest-hard-read"].map(operations).iter().sum::<u64>();
    assert_eq!((&result["checked"]["wrong"], &result["checked"]["transfers"]), (&0.into(), &compared.into()));
    check_score(result);
}

/// Insists on the score that follows from the rates.
fn check_score(result: &Value) {
    let mean = |unit: &str| {
        let rows = result["rows"].as_array().expect("a list").iter().filter(|row| row["unit"] == unit);
        let rates: Vec<f64> = rows.map(|row| row["rate"].as_f64().expect("a rate")).collect();
        let product: f64 = rates.iter().product();
        (rates.len(), product.powf(1.0 / rates.len() as f64))
    };
    let ((of_bytes, bandwidth), (of_names, kiops)) = (mean("GiB/s"), mean("kIOPS"));
    assert_eq!((of_bytes, of_names), (4, 8), "{result}");
    let figures =
        [("bandwidth_gib_per_s", bandwidth), ("kiops", kiops), ("total", (bandwidth * kiops).sqrt())];
    for (name, expected) in figures {
        let found = result["score"][name].as_f64().expect("a number");
        assert!(found > 0.0 && (found - expected).abs() < expected * 0.01, "{name}: {expected} in {result}");
    }
}

#[test]
fn io500_runs_all_its_phases_and_leaves_nothing() {
    let bed = Bed::new("suites-io500");
    let folder = bed.path("tested");
    fs::create_dir(&folder).expect("it is new");
    let run = ["bench", "io500", "-d", text(&folder), "--stonewall", "1", "--space", "512m"];
    let figures = bed.json(&[&run[..], &["--processes", "2,1", "--html", "io500.html"]].concat());
    assert_eq!(figures["is_official"], false, "{figures}");
    let results = figures["results"].as_array().expect("a list");
    assert_eq!(results.iter().map(|result| &result["processes"]).collect::<Vec<_>>(), [2, 1]);
    for result in results {
        check_phases(result);
        let easy = phase(result, "mdtest-easy-write");
        assert!(easy["reached_stonewall"] == true && easy["seconds"].as_f64() >= Some(1.0), "{easy}");
        assert!(result["find"]["found"].as_u64() > Some(0), "more than a hundred files are made: {result}");
    }
    let html = fs::read_to_string(bed.path("io500.html")).expect("it was written");
    assert_balanced(&html);
    assert!(html.contains("<svg") && html.contains("NOT an official IO500 score"), "{html}");
    assert!(is_empty(&folder), "all is removed");

    // What is kept is in the way of the next run, which leaves it as it is.
    let few = ["--files", "150", "--processes", "1"];
    let said = bed.ok(&[&run[..], &few, &["-k", "--no-verify"]].concat());
    for part in [
        "NOT an official IO500 score",
        "the stonewall was 1 s",
        "mdtest-hard-write ended before the stonewall",
        "score: ",
    ] {
        assert!(said.contains(part), "'{part}' is not in {said}");
    }
    assert!(!said.contains("checked"), "{said}");
    let kept = folder.join("weft-io500.1/ior-hard/file.0");
    assert!(kept.metadata().is_ok_and(|file| file.len() > 0 && file.len().is_multiple_of(47_008)));
    bed.weft(&[&run[..], &few].concat()).fails(4, &["weft-io500.1 is there", "earlier run"]);
    assert!(kept.exists());
}

/// Changes one bit of a file.
fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).expect("it is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("it is so long");
    file.write_all_at(&[byte[0] ^ 0x10], at).expect("written");
}

#[test]
fn a_byte_that_was_changed_is_noticed_by_a_later_run() {
    let bed = Bed::new("suites-flip");
    let test = bed.path("test");
    let sizes = ["-t", "64k", "-b", "256k", "-s", "2", "-N", "3", "-k", "-o", text(&test)];
    bed.ok(&[&["bench", "ior", "-w"][..], &sizes].concat());
    let read = [&["bench", "ior", "-r", "-R", "-C"][..], &sizes].concat();
    assert!(bed.ok(&read).contains("24 transfers, 1536 KiB, all right"));
    flip(&test, 700_001);
    let found = bed.weft(&read);
    assert_eq!(found.code, 1, "{found:?}");
    assert!(found.out.contains("WRONG content in 1 of 24 transfers"), "{found:?}");
    assert!(found.err.contains("byte 700001 of") && found.err.contains("hint: "), "{found:?}");
    flip(&test, 700_001);
    // Two blocks that have changed places are no less wrong, although each byte is one that was written.
    let file = File::options().read(true).write(true).open(&test).expect("it is there");
    let (mut one, mut other) = (vec![0; 4096], vec![0; 4096]);
    file.read_exact_at(&mut one, 0x5000).expect("read");
    file.read_exact_at(&mut other, 0x5000 + (1 << 20)).expect("read");
    file.write_all_at(&other, 0x5000).expect("written");
    assert_eq!(bed.weft(&read).code, 1, "a block of another place");
    file.write_all_at(&one, 0x5000).expect("written");
    bed.ok(&read);

    // With other sizes the file is too short, and a file of somebody else is neither checked nor touched.
    let longer =
        ["bench", "ior", "-r", "-t", "64k", "-b", "1m", "-s", "2", "-N", "3", "-k", "-o", text(&test)];
    bed.weft(&longer).fails(1, &["ends at byte 1572864", "-b, -s"]);
    let other = bed.path("other");
    fs::write(&other, vec![7; 1 << 20]).expect("written");
    let small = ["-t", "4k", "-b", "64k", "-o", text(&other)];
    bed.weft(&[&["bench", "ior", "-w"][..], &small].concat()).fails(4, &["exists", "no test of weft"]);
    bed.weft(&[&["bench", "ior", "-R"][..], &small].concat()).fails(1, &["cannot be checked"]);
    bed.ok(&[&["bench", "ior", "-r"][..], &small].concat());
    assert_eq!(fs::read(&other).expect("it stays"), vec![7; 1 << 20]);
    // Without -k a file of a test is removed after it was read, as in IOR.
    let last: Vec<&str> = read.iter().copied().filter(|word| *word != "-k").collect();
    bed.ok(&last);
    assert!(!test.exists());
}

#[test]
fn io500_notices_a_byte_that_was_changed_between_its_phases() {
    let bed = Bed::new("suites-io500-flip");
    let folder = bed.path("tested");
    fs::create_dir(&folder).expect("it is new");
    let run =
        ["bench", "io500", "--stonewall", "2", "--space", "256m", "--processes", "2", "-d", text(&folder)];
    let running = bed.spawn(&run);
    let top = folder.join("weft-io500.2");
    let files = top.join("mdtest-hard/tree.0");
    wait_until("files are made", || fs::read_dir(&files).is_ok_and(|files| files.count() > 100));
    flip(&top.join("ior-easy/file.00000001"), 2_100_000);
    let ended = running.finish();
    assert!(ended.code == 1 && ended.out.contains("WRONG content in 1 of"), "{ended:?}");
    assert!(ended.err.contains("byte 2100000 of") && ended.err.contains("file.00000001"), "{ended:?}");
    assert!(is_empty(&folder), "all is removed");
}

#[test]
fn parts_of_mdtest_follow_each_other_in_runs_of_their_own() {
    let bed = Bed::new("suites-parts");
    let folder = bed.path("names");
    let part = |rest: &[&str]| -> Said {
        let common =
            ["-n", "20", "-z", "1", "-b", "3", "-F", "-w", "100", "-e", "100", "-X", "-d", text(&folder)];
        bed.weft(&[&["bench", "mdtest", "--processes", "2"][..], &common, rest].concat())
    };
    part(&["-T"]).fails(2, &["holds no test", "-C"]);
    assert_eq!(part(&["-C"]).code, 0);
    part(&["-C"]).fails(4, &["weft-mdtest.0 exists"]);
    let other = ["bench", "mdtest", "-T", "-n", "5", "-d", text(&folder)];
    bed.weft(&other).fails(2, &["holds another test"]);
    let found = part(&["-T", "-E"]);
    assert!(found.out.contains("File stat") && found.out.contains("File read"), "{found:?}");
    let file = folder.join("weft-mdtest.0/tree.0/file.1.0");
    flip(&file, 50);
    let wrong = part(&["-E"]);
    assert!(wrong.code == 1 && wrong.err.contains("file.1.0: byte 50"), "{wrong:?}");
    // What somebody else has put there is not removed.
    let note = folder.join("weft-mdtest.0/tree.0/note");
    fs::write(&note, "mine").expect("written");
    part(&["-r"]).fails(1, &["cannot remove", "not empty"]);
    assert!(note.exists() && !file.exists());
}

#[test]
fn what_cannot_be_done_is_refused_and_nothing_is_left() {
    let bed = Bed::new("suites-refused");
    let (folder, test) = (bed.path("tested"), bed.path("tested/test"));
    fs::create_dir(&folder).expect("it is new");
    let ior = |rest: &[&str]| bed.weft(&[&["bench", "ior", "-o", text(&test)][..], rest].concat());
    ior(&["-a", "MPIIO"]).fails_as_usage("only POSIX is supported");
    ior(&["-c"]).fails(2, &["-c is not supported", "collective"]);
    ior(&["-t", "3k", "-b", "4k"]).fails(2, &["-b 4 KiB is not a multiple of -t 3 KiB"]);
    ior(&["-b", "1000000g", "-t", "1m"]).fails(4, &["has not room", "are needed"]);
    let mdtest = |rest: &[&str]| bed.weft(&[&["bench", "mdtest", "-d", text(&folder)][..], rest].concat());
    mdtest(&["-W", "300"]).fails(2, &["-W is not supported"]);
    mdtest(&["-n", "1000000", "-w", "1g", "-z", "0"]).fails(4, &["has not room"]);

    let io500 = |rest: &[&str]| bed.weft(&[&["bench", "io500", "-d", text(&folder)][..], rest].concat());
    io500(&["--stonewall", "0"]).fails(2, &["--stonewall has to be at least 1"]);
    io500(&["--processes", "5000"]).fails(2, &["--processes 5000 is more than 1024"]);
    io500(&["--processes", "2,2"]).fails(2, &["--processes has 2 twice"]);
    io500(&["-B", "-t", "1000"]).fails(2, &["-B wants transfers"]);
    io500(&["--space", "1000000g"]).fails(4, &["has not room"]);
    bed.weft(&["bench", "io500", "-d", text(&test)]).fails(2, &["there is no folder", "make it first"]);

    let plan = ior(&["-t", "1m", "-b", "64m", "-N", "3", "-F", "-w", "--dry-run"]);
    for part in
        ["3 files, which are removed in the end", "test.00000000 to", "192 MiB at a time", "192 MiB in all"]
    {
        assert!(plan.out.contains(part), "'{part}' is not in {}", plan.out);
    }
    let plan =
        bed.json(&["bench", "mdtest", "-d", text(&folder), "-I", "10", "-z", "5", "-b", "5", "--dry-run"]);
    assert_eq!(plan["entries"], 3906 + 39_060, "{plan}");
    let plan = io500(&["--processes", "2", "--space", "1g", "--dry-run"]);
    for part in [
        "ior-easy-write, mdtest-easy-write",
        "4 phases of 30 s",
        "weft-io500.2, which is removed",
        "256 MiB of",
    ] {
        assert!(plan.out.contains(part), "'{part}' is not in {}", plan.out);
    }
    assert!(is_empty(&folder));
}

#[test]
fn an_end_before_the_end_removes_what_was_made() {
    let bed = Bed::new("suites-early");
    let folder = bed.path("tested");
    fs::create_dir(&folder).expect("it is new");
    let test = folder.join("test");
    let long = ["bench", "ior", "-w", "-Y", "-z", "-t", "4k", "-b", "64m", "-s", "4", "-F", "-N", "3"];
    let running = bed.spawn(&[&long[..], &["-i", "1000", "-o", text(&test)]].concat());
    wait_until("all ranks write", || fs::read_dir(&folder).expect("there").count() == 3);
    kill(running.0.id() as i32, "INT");
    let ended = running.finish();
    assert!(ended.code == 1 && ended.err.contains("interrupted"), "{ended:?}");
    assert!(is_empty(&folder), "the files are removed");

    let many = ["bench", "mdtest", "-n", "2000000", "-F", "--processes", "2", "-d", text(&folder)];
    let running = bed.spawn(&many);
    let tree = folder.join("weft-mdtest.0/tree.0");
    wait_until("files are made", || fs::read_dir(&tree).is_ok_and(|files| files.count() > 100));
    kill(running.0.id() as i32, "TERM");
    let ended = running.finish();
    assert!(ended.code == 1 && ended.err.contains("interrupted"), "{ended:?}");
    assert!(is_empty(&folder), "the tree is removed");

    let io500 = ["bench", "io500", "--space", "1g", "--processes", "2", "--stonewall", "300"];
    let running = bed.spawn(&[&io500[..], &["-d", text(&folder)]].concat());
    let tree = folder.join("weft-io500.2/mdtest-easy/tree.1");
    wait_until("files are made", || fs::read_dir(&tree).is_ok_and(|files| files.count() > 100));
    kill(running.0.id() as i32, "INT");
    let ended = running.finish();
    assert!(ended.code == 1 && ended.err.contains("interrupted"), "{ended:?}");
    assert!(is_empty(&folder), "all of the run is removed");
}

#[test]
fn ranks_of_mpirun_work_together() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        eprintln!("skipped: this machine has no mpirun; scripts/setup.sh --for posix installs it");
        return;
    }
    let bed = Bed::new("suites-mpi");
    let folder = bed.path("tested");
    fs::create_dir(&folder).expect("it is new");
    let test = folder.join("test");
    let mpirun = |args: &[&str]| -> Value {
        let launcher = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"];
        let mut command = Command::new("mpirun");
        command.args(launcher).arg(&*WEFT).args(args).current_dir(&bed.dir).env("NO_COLOR", "1");
        let said = said(command.output().expect("mpirun runs"));
        assert_eq!(said.code, 0, "{said:?}");
        // Only the first rank prints.
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    };
    let ior = ["--json", "bench", "ior", "-w", "-r", "-R", "-C", "-t", "64k", "-b", "1m", "-o", text(&test)];
    let figures = mpirun(&ior);
    assert_eq!(figures["checked"]["wrong"], 0, "{figures}");
    let writes = rows(&figures, "write");
    assert!(writes.len() == 1 && writes[0]["processes"] == 2 && writes[0]["bytes"] == 2 << 20, "{figures}");
    let figures = mpirun(&["--json", "bench", "mdtest", "-n", "50", "-N", "1", "-d", text(&folder)]);
    assert_eq!(figures["results"][0]["processes"], 2, "{figures}");
    assert_eq!(figures["results"][0]["rows"][1]["operations"], 100, "{figures}");
    let short = ["--json", "bench", "io500", "--stonewall", "1", "--space", "64m", "-d", text(&folder)];
    let figures = mpirun(&short);
    assert_eq!(figures["results"][0]["processes"], 2, "{figures}");
    check_phases(&figures["results"][0]);
    assert!(is_empty(&folder), "neither data nor a meeting place is left");
}
