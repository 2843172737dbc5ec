//! Words: the help, the reference and the errors, compared with files. `UPDATE_SNAPSHOTS=1` writes them anew.

mod bed;

use bed::{Bed, WEFT, said};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn compare(path: &Path, found: &str) {
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("made");
        fs::write(path, found).expect("written");
        return;
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    let differs = expected.lines().zip(found.lines()).position(|(a, b)| a != b);
    assert!(
        expected == found,
        "{} differs from line {}; UPDATE_SNAPSHOTS=1 writes it anew\n{}",
        path.display(),
        differs.unwrap_or(expected.lines().count().min(found.lines().count())) + 1,
        found
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The program without anything of this machine in its environment.
fn weft(args: &[&str]) -> bed::Said {
    let mut command = Command::new(&*WEFT);
    command.args(args).env_remove("WEFT_FABRIC").env_remove("WEFT_LOG").env("NO_COLOR", "1");
    said(command.current_dir("/").output().expect("weft runs"))
}

#[test]
fn the_reference_is_that_of_this_program() {
    let reference = weft(&["reference"]).out;
    compare(&root().join("docs/reference/cli.md"), &reference);
    for section in reference.split("\n## ").skip(1) {
        let is_leaf = !section.contains("\nCommands:\n");
        assert!(!is_leaf || section.contains("Examples:"), "no example for {}", &section[..40]);
        let too_long = section.lines().find(|l| l.chars().count() > 110);
        assert_eq!(too_long, None, "lines fit a screen");
    }
}

#[test]
fn help_and_version_are_data() {
    let help = weft(&["--help"]);
    assert_eq!((help.code, help.err.as_str()), (0, ""));
    assert!(help.out.contains("weft up"));
    let version = weft(&["-V"]);
    assert_eq!(version.out, concat!("weft ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn help_is_also_a_command() {
    for command in [&[][..], &["volume"], &["volume", "create"]] {
        let said = weft(&[&["help"], command].concat());
        assert_eq!((said.code, said.err.as_str()), (0, ""), "{command:?}");
        assert_eq!(said.out, weft(&[command, &["--help"]].concat()).out, "{command:?}");
    }
}

#[test]
fn errors_read_well() {
    let cases: &[&[&str]] = &[
        &[],
        &["volume"],
        &["volume", "create", "data"],
        &["volume", "create", "data", "--size", "10GB"],
        &["volume", "create", "data", "--size", "much"],
        &["volume", "create", "data", "--size", "1GiB", "--copies", "4"],
        &["volume", "serve", "data", "--nbd", "localhost"],
        &["volume", "serve", "data", "--nbd", "127.0.0.1:10809", "--shared", "--read-only"],
        &["volume", "create", "data", "--size", "-5GiB"],
        &["volume", "serve", "data", "data", "--nbd", "127.0.0.1:10809"],
        &["volum", "list"],
        &["status"],
        &["status", "--json"],
        &["--fabric", "127.0.0.1:1", "status"],
        &["--fabric", "unix:/nowhere/manager.sock", "status"],
        &["--fabric", "/etc/passwd", "status"],
        &["--fabric", "127.0.0.1:1", "up"],
        &["down"],
        &["node", "stop", "node-1"],
        &["drive", "inspect", "/nowhere/drive.img"],
        &["fabric", "recover", "/nowhere", "--drives", "/nowhere/drive.img"],
        &["fabric", "init", "/etc/passwd"],
        &["fabric", "init", "/dev/null/map.redb"],
        &["manager", "run", "--store", "/nowhere/map.redb", "--listen", "127.0.0.1:0"],
        &["up", "--drives", "65"],
        &["up", "--port", "0"],
        &["manager", "start"],
        &["volume", "import", "data", "/proc/self/nothing"],
        &["bench", "run"],
        &["bench", "run", "data", "--bs", "4KB"],
        &["bench", "run", "data", "--runtime", "30"],
        &["bench", "run", "data", "--warm-up", "-1s"],
        &["bench", "run", "data", "--rate-limit", "fast"],
        &["bench", "run", "data", "--rw", "readwrite"],
        &["bench", "run", "data", "--rw", "write", "--read-share", "50"],
        &["bench", "run", "data", "--depth", "0"],
        &["bench", "run", "data", "--html", "/nowhere/report.html"],
        &["bench", "run", "data"],
        &["completions"],
        &["completions", "powershell"],
        &["man"],
        &["man", "/dev/null/man1"],
        &["--json", "man", "/dev/null/man1"],
        &["--json", "volume", "create"],
    ];
    let mut text = String::new();
    for args in cases {
        let said = weft(args);
        assert_ne!(said.code, 0, "{args:?}");
        assert_eq!(said.out, "", "{args:?}");
        let last = said.err.lines().last().unwrap_or_default();
        assert!(last.starts_with("hint: ") || last.starts_with("{\"error\""), "{args:?}: {}", said.err);
        text.push_str(&format!("$ weft {}\n{}exit {}\n\n", args.join(" "), said.err, said.code));
    }
    compare(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/errors.txt"), &text);
}

#[test]
fn a_port_in_use_is_told_by_the_daemons() {
    let bed = Bed::new("daemons");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let addr = taken.local_addr().expect("bound").to_string();
    let fails = |args: &[&str]| {
        let said = bed.weft(args);
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.err.contains(&format!("cannot listen at {addr}")), "{said:?}");
        assert!(said.err.contains("choose another --listen"), "{said:?}");
    };
    bed.ok(&["fabric", "init", "m/map.redb"]);
    fails(&["manager", "run", "--store", "m/map.redb", "--listen", &addr]);
    fails(&[
        "node",
        "run",
        "--name",
        "n",
        "--manager",
        "127.0.0.1:1",
        "--listen",
        &addr,
        "--drive",
        "mem:64M",
    ]);
}
