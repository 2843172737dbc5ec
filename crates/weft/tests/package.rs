//! The package: what is in it, and that the same is in it twice. It is made of the program under test, and only where
//! there is `dpkg-deb`.

mod bed;

use bed::{Bed, WEFT};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/package.sh")
}

/// Runs a program and insists on success; returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {err}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn make(out: &Path) -> Vec<PathBuf> {
    let mut command = Command::new(script());
    let said =
        run(command.arg("--binary").arg(WEFT).arg("--out").arg(out).env("SOURCE_DATE_EPOCH", "1700000000"));
    said.lines().map(|line| line.split("  ").next().unwrap_or_default().into()).collect()
}

#[test]
fn the_package_holds_what_it_should() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        eprintln!("skipped: this machine has no dpkg-deb");
        return;
    }
    let bed = Bed::new("package");
    let (first, second) = (make(&bed.path("first")), make(&bed.path("second")));
    let [deb, archive] = first.as_slice() else { panic!("{first:?}") };
    for (one, other) in first.iter().zip(&second) {
        assert!(
            fs::read(one).expect("made") == fs::read(other).expect("made"),
            "{one:?} differs when made again"
        );
    }

    let listed = run(Command::new("dpkg-deb").arg("--contents").arg(deb));
    assert!(listed.lines().all(|line| line.contains(" root/root ")), "{listed}");
    let mut files: Vec<String> = listed
        .lines()
        .filter_map(|l| l.rsplit(" ./").next())
        .filter(|l| !l.is_empty() && !l.ends_with('/'))
        .map(Into::into)
        .collect();
    let mut archived: Vec<String> = run(Command::new("tar").arg("-tzf").arg(archive))
        .lines()
        .filter(|line| !line.ends_with('/'))
        .filter_map(|line| line.split_once('/').map(|(_, name)| name.to_owned()))
        .collect();
    files.sort();
    archived.sort();
    assert_eq!(files, archived, "both hold the same");
    // One page for each section of the reference.
    let commands = bed.ok(&["reference"]).lines().filter(|l| l.starts_with("## weft")).count();
    let (pages, others): (Vec<_>, Vec<_>) =
        files.iter().partition(|f| f.starts_with("usr/share/man/man1/weft"));
    assert_eq!(pages.len(), commands, "{pages:?}");
    assert!(pages.iter().any(|page| *page == "usr/share/man/man1/weft-volume-create.1.gz"), "{pages:?}");
    assert_eq!(
        others,
        [
            "etc/weft/manager.env",
            "etc/weft/node.env",
            "usr/bin/weft",
            "usr/lib/systemd/system/weft-manager.service",
            "usr/lib/systemd/system/weft-node.service",
            "usr/share/bash-completion/completions/weft",
            "usr/share/doc/weft/ARCHITECTURE.md",
            "usr/share/doc/weft/README.md",
            "usr/share/doc/weft/changelog.gz",
            "usr/share/doc/weft/copyright",
            "usr/share/doc/weft/docs/capacity.md",
            "usr/share/doc/weft/docs/guide.md",
            "usr/share/doc/weft/docs/logs.md",
            "usr/share/doc/weft/docs/reference/metrics.md",
            "usr/share/doc/weft/docs/status.md",
            "usr/share/fish/vendor_completions.d/weft.fish",
            "usr/share/zsh/vendor-completions/_weft",
        ]
    );

    run(Command::new("dpkg-deb").arg("--raw-extract").arg(deb).arg(bed.path("x")));
    let read = |name: &str| fs::read_to_string(bed.path("x").join(name)).expect("it is in the package");
    let control = read("DEBIAN/control");
    assert!(control.contains(concat!("\nVersion: ", env!("CARGO_PKG_VERSION"), "\n")), "{control}");
    assert!(control.contains("\nDepends: libc6 (>= "), "{control}");
    assert_eq!(read("DEBIAN/conffiles"), "/etc/weft/manager.env\n/etc/weft/node.env\n");
    for script in ["postinst", "postrm", "prerm"] {
        let text = read(&format!("DEBIAN/{script}"));
        assert!(
            !text.contains("enable") && !text.contains("start"),
            "{script} leaves services alone: {text}"
        );
    }
    for completions in
        others.iter().filter(|f| f.contains("completions/") || f.contains("vendor_completions.d/"))
    {
        let text = read(completions);
        assert!(text.contains("failure-domain"), "{completions} knows the options");
        assert!(!text.contains("supervisor"), "{completions} offers no hidden option");
    }
    let program = bed.path("x").join("usr/bin/weft");
    assert_eq!(
        run(Command::new(program).arg("--version")),
        concat!("weft ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn wrong_calls_are_told() {
    for (args, code, says) in [
        (&["--binary", "/nowhere/weft"][..], 1, "there is no program at /nowhere/weft"),
        (&["--binary"], 2, "--binary needs a path"),
        (&["--fast"], 2, "unknown argument --fast"),
    ] {
        let output = Command::new(script()).args(args).output().expect("it runs");
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {err}");
        assert!(err.contains(says) && err.contains("\nhint: "), "{args:?}: {err}");
    }
}
