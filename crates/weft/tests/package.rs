//! The package: what is in it, and that the same is in it twice. It is made of the program under test, and only where
//! there is `dpkg-deb`.

mod bed;

use bed::{Bed, Running, WEFT, wait_until};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Units, and the files that they are set up by.
const UNITS: [(&str, &str); 3] = [
    ("weft-manager.service", "/etc/weft/manager.env"),
    ("weft-node.service", "/etc/weft/node.env"),
    ("weft-volume@.service", "/etc/weft/volume.env"),
];

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
    let said = run(command
        .arg("--binary")
        .arg(&*WEFT)
        .arg("--out")
        .arg(out)
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .env_remove("WEFT_MAINTAINER"));
    said.lines().map(|line| line.split("  ").next().unwrap_or_default().into()).collect()
}

fn is_missing(program: &str) -> bool {
    let is_missing = Command::new(program).arg("--version").output().is_err();
    if is_missing {
        eprintln!("skipped: this machine has no {program}");
    }
    is_missing
}

/// What a unit runs, as systemd reads it: `%i`, `${NAME}` as one word, `$NAME` as words of its own. Paths of
/// the machine are below `root`. What is set has to be named in the file that the package brings for it.
fn exec_start(root: &Path, unit: &str, instance: &str, set: &[(&str, String)]) -> Command {
    let text = fs::read_to_string(root.join("usr/lib/systemd/system").join(unit)).expect("it is there");
    let text = text.replace("%i", instance).replace("%H", "the-machine");
    let lines = |key: &'static str| {
        let with_key = text.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix('='));
        with_key.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut env = BTreeMap::new();
    for (name, value) in
        lines("Environment").iter().flat_map(|l| l.split(' ')).filter_map(|x| x.split_once('='))
    {
        env.insert(name.to_owned(), value.to_owned());
    }
    let file = &lines("EnvironmentFile")[0];
    let template = fs::read_to_string(root.join(&file[1..])).expect("the package brings it");
    let is_set = |line: &&str| !line.is_empty() && !line.starts_with('#');
    assert!(!template.lines().any(|line| is_set(&line)), "{file} decides nothing: {template}");
    for (name, value) in set {
        assert!(template.contains(&format!("\n#{name}=")), "{file} names {name}: {template}");
        env.insert((*name).into(), value.clone());
    }
    let line = &lines("ExecStart")[0];
    let mut words = Vec::new();
    // What is not set is empty.
    let value = |name: &str| env.get(name).cloned().unwrap_or_default();
    for word in line.split(' ') {
        match (word.strip_prefix("${"), word.strip_prefix('$')) {
            (Some(name), _) => words.push(value(name.trim_end_matches('}'))),
            (None, Some(name)) => words.extend(value(name).split_whitespace().map(str::to_owned)),
            (None, None) => words.push(word.to_owned()),
        }
    }
    for folder in lines("StateDirectory") {
        fs::create_dir_all(root.join("var/lib").join(folder)).expect("made");
    }
    for folder in lines("RuntimeDirectory") {
        fs::create_dir_all(root.join("run").join(folder)).expect("made");
    }
    let here = |word: &String| {
        ["/usr/bin/", "/run/", "/var/lib/"]
            .iter()
            .fold(word.clone(), |word, at| word.replace(at, &format!("{}{at}", root.display())))
    };
    let words: Vec<String> = words.iter().map(here).collect();
    assert!(!words.iter().any(|word| word.contains(['$', '%'])), "{words:?}");
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env_clear().envs(env).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    command
}

/// The files and links that `dpkg-deb --contents` lists.
fn files_of(listed: &str) -> Vec<String> {
    let names = listed.lines().filter_map(|line| line.rsplit(" ./").next());
    let files = names.filter(|name| !name.is_empty() && !name.ends_with('/'));
    files.map(|name| name.split(" -> ").next().unwrap_or(name).to_owned()).collect()
}

#[test]
fn the_package_holds_what_it_should() {
    if is_missing("dpkg-deb") {
        return;
    }
    let bed = Bed::new("package");
    let (first, second) = (make(&bed.path("first")), make(&bed.path("second")));
    let [deb, archive] = first.as_slice() else { panic!("{first:?}") };
    for (one, other) in first.iter().zip(&second) {
        let bytes = |path| fs::read(path).expect("made");
        assert!(bytes(one) == bytes(other), "{one:?} differs when made again");
    }

    let listed = run(Command::new("dpkg-deb").arg("--contents").arg(deb));
    assert!(listed.lines().all(|line| line.contains(" root/root ")), "{listed}");
    assert!(listed.contains("./usr/sbin/mount.weft -> ../bin/weft\n"), "{listed}");
    let mut files = files_of(&listed);
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
            "etc/weft/volume.env",
            "usr/bin/weft",
            "usr/lib/systemd/system/weft-manager.service",
            "usr/lib/systemd/system/weft-node.service",
            "usr/lib/systemd/system/weft-volume@.service",
            "usr/sbin/mount.weft",
            "usr/share/bash-completion/completions/weft",
            "usr/share/doc/weft/ARCHITECTURE.md",
            "usr/share/doc/weft/CHANGELOG.md.gz",
            "usr/share/doc/weft/LICENSE",
            "usr/share/doc/weft/README.md",
            "usr/share/doc/weft/changelog.gz",
            "usr/share/doc/weft/copyright",
            "usr/share/doc/weft/docs/capacity.md",
            "usr/share/doc/weft/docs/guide.md",
            "usr/share/doc/weft/docs/logs.md",
            "usr/share/doc/weft/docs/reference/metrics.md",
            "usr/share/doc/weft/docs/status.md",
            "usr/share/doc/weft/examples/slurm-epilog.sh",
            "usr/share/doc/weft/examples/slurm-prolog.sh",
            "usr/share/fish/vendor_completions.d/weft.fish",
            "usr/share/lintian/overrides/weft",
            "usr/share/zsh/vendor-completions/_weft",
        ]
    );

    run(Command::new("dpkg-deb").arg("--raw-extract").arg(deb).arg(bed.path("x")));
    let read = |name: &str| fs::read_to_string(bed.path("x").join(name)).expect("it is in the package");
    let control = read("DEBIAN/control");
    assert!(control.contains(concat!("\nVersion: ", env!("CARGO_PKG_VERSION"), "\n")), "{control}");
    assert!(control.contains("\nDepends: libc6 (>= "), "{control}");
    assert!(control.contains("\nMaintainer: Weft maintainers <maintainers@weft.invalid>\n"), "{control}");
    assert_eq!(read("DEBIAN/conffiles"), UNITS.map(|(_, file)| format!("{file}\n")).concat());
    let copyright = read("usr/share/doc/weft/copyright");
    assert!(copyright.contains("/usr/share/common-licenses/Apache-2.0"), "{copyright}");
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

/// Installed below a folder of its own, with what dpkg would remember kept there as well: installed, over itself,
/// removed, purged.
#[test]
fn the_package_comes_and_goes() {
    // Scripts of packages run as root alone, in a root of their own.
    if is_missing("dpkg-deb") || run(Command::new("id").arg("-u")) != "0\n" {
        eprintln!("skipped: dpkg installs for root alone");
        return;
    }
    let bed = Bed::new("package-root");
    let deb = make(&bed.path("out")).remove(0);
    let root = bed.path("root");
    for folder in ["var/lib/dpkg/updates", "var/lib/dpkg/info", "var/lib/weft"] {
        fs::create_dir_all(root.join(folder)).expect("made");
    }
    for file in ["status", "available"] {
        fs::write(root.join("var/lib/dpkg").join(file), "").expect("written");
    }
    // What it depends on is not there, and neither is a shell: its scripts are run with the root's path.
    let dpkg = |args: &[&str]| {
        let mut command = Command::new("dpkg");
        command.arg("--root").arg(&root).arg("--log").arg(bed.path("dpkg.log"));
        run(command.args(["--force-depends", "--force-script-chrootless", "--force-not-root"]).args(args))
    };
    let deb = deb.to_str().expect("a name");
    dpkg(&["--install", deb]);
    let settings = root.join("etc/weft/node.env");
    fs::write(&settings, "WEFT_NODE=mine\n").expect("written");
    let links = root.join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&links).expect("made");
    for unit in ["weft-node.service", "weft-volume@data.service", "others.service"] {
        std::os::unix::fs::symlink("/lib/systemd/system/x", links.join(unit)).expect("made");
    }
    dpkg(&["--install", deb]);
    assert_eq!(fs::read_to_string(&settings).expect("there"), "WEFT_NODE=mine\n", "an upgrade keeps it");
    assert!(root.join("usr/bin/weft").exists());
    dpkg(&["--remove", "weft"]);
    assert!(!root.join("usr/bin/weft").exists() && settings.exists());
    assert!(links.join("weft-node.service").is_symlink(), "whoever removes may install again");
    let said = dpkg(&["--purge", "weft"]);
    assert!(said.contains("/var/lib/weft stays"), "{said}");
    assert!(!root.join("etc/weft").exists() && root.join("var/lib/weft").exists());
    let left = fs::read_dir(&links).expect("there").map(|entry| entry.expect("an entry").file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["others.service"]);
}

/// Makes the fabric whose manager the unit runs; before, there is none. Returns its identity.
fn make_fabric(bed: &Bed, root: &Path, manager: &[(&str, String)]) -> String {
    // The store may be on a disk that is mounted later: it is tried again, and nothing is made in its place.
    let code = exec_start(root, UNITS[0].0, "", manager).status().expect("it runs").code();
    assert_eq!(code, Some(4));
    let store = root.join("var/lib/weft/map.redb");
    let made = bed.json(&["fabric", "init", store.to_str().expect("a name")]);
    made["fabric"].as_str().expect("its identity").to_owned()
}

#[test]
fn a_fabric_comes_up_from_what_the_units_run() {
    if is_missing("dpkg-deb") {
        return;
    }
    let bed = Bed::new("package-units");
    let deb = make(&bed.path("out")).remove(0);
    let root = bed.path("root");
    run(Command::new("dpkg-deb").arg("--extract").arg(&deb).arg(&root));
    for (unit, file) in UNITS {
        let text = fs::read_to_string(root.join("usr/lib/systemd/system").join(unit)).expect("it is there");
        assert!(text.contains(&format!("EnvironmentFile={file}\n")), "{unit}: {text}");
        let code =
            |set: &[(&str, String)]| exec_start(&root, unit, "data", set).status().expect("it runs").code();
        // Called wrongly is not tried again; a manager that is not there is.
        let of_nothing_set = if unit.contains("volume") { 3 } else { 2 };
        assert_eq!(code(&[]), Some(of_nothing_set), "{unit}");
        assert!(text.contains("\nRestartPreventExitStatus=2\n"), "{unit}: {text}");
    }
    let addr = |n: u16| format!("127.0.0.1:{}", bed.port + n);
    let fabric = addr(0);
    let manager = [("WEFT_LISTEN", fabric.clone()), ("WEFT_OPTIONS", format!("--metrics {}", addr(1)))];
    let made = make_fabric(&bed, &root, &manager);
    let manager = Running(exec_start(&root, UNITS[0].0, "", &manager).spawn().expect("it runs"));
    let is_well = |args: &[&str]| bed.weft(&[args, &["--fabric", &fabric]].concat()).code == 0;
    wait_until("the manager serves", || is_well(&["fabric", "show"]));
    let shown = bed.json(&["fabric", "show", "--fabric", &fabric]);
    let id = shown["fabric"].as_str().expect("its identity").to_owned();
    assert_eq!(made, id);
    let node = |n: u16| {
        let drives: Vec<PathBuf> = (0..2).map(|d| bed.path(&format!("drive-{n}-{d}"))).collect();
        for drive in &drives {
            let file = fs::File::create(drive).expect("made");
            file.set_len(128 << 20).expect("a sparse file");
            bed.ok(&["drive", "format", drive.to_str().expect("a name"), "--fabric-id", &id]);
        }
        let drives: Vec<String> = drives.iter().map(|drive| format!("--drive {}", drive.display())).collect();
        let set = [
            ("WEFT_NODE", format!("node-{n}")),
            ("WEFT_MANAGER", fabric.clone()),
            ("WEFT_LISTEN", addr(2 * n)),
            ("WEFT_DRIVES", drives.join(" ")),
            ("WEFT_OPTIONS", format!("--metrics {}", addr(2 * n + 1))),
        ];
        Running(exec_start(&root, UNITS[1].0, "", &set).spawn().expect("it runs"))
    };
    let nodes = [node(1), node(2)];
    wait_until("a volume can be created", || {
        is_well(&["volume", "create", "data", "--size", "64MiB", "--copies", "2"])
    });
    let drives = bed.json(&["drive", "list", "--fabric", &fabric]);
    assert_eq!(drives["drives"].as_array().map(Vec::len), Some(4), "{drives}");
    let volume = exec_start(&root, UNITS[2].0, "data", &[("WEFT_FABRIC", fabric.clone())]).spawn();
    let volume = Running(volume.expect("it runs"));
    let socket = root.join("run/weft-volume/data/nbd.sock");
    wait_until("the volume is served", || UnixStream::connect(&socket).is_ok());
    let mut greeting = [0; 16];
    UnixStream::connect(&socket).and_then(|mut s| s.read_exact(&mut greeting)).expect("it greets");
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT");
    assert_eq!(volume.end("TERM"), Some(0));
    let local = format!("unix:{}", root.join("run/weft/manager.sock").display());
    let sessions = bed.json(&["session", "list", "--fabric", &local]);
    assert!(
        sessions["sessions"].as_array().is_some_and(|all| all.iter().all(|s| s["state"] != "open")),
        "{sessions}"
    );
    for node in nodes {
        assert_eq!(node.end("TERM"), Some(0));
    }
    assert_eq!(manager.end("TERM"), Some(0));
}

#[test]
fn systemd_understands_the_units() {
    if is_missing("systemd-analyze") {
        return;
    }
    let bed = Bed::new("package-verify");
    for (unit, _) in UNITS {
        let text = fs::read_to_string(script().with_file_name("package").join(unit)).expect("it is there");
        assert!(text.contains("ExecStart=/usr/bin/weft "), "{unit}: {text}");
        let unit = unit.replace('@', "@data");
        fs::write(bed.path(&unit), text.replace("/usr/bin/weft", &WEFT)).expect("written");
        let mut verify = Command::new("systemd-analyze");
        let done = verify.args(["verify", "--man=no"]).arg(bed.path(&unit)).output().expect("it runs");
        let err = String::from_utf8_lossy(&done.stderr);
        let about: Vec<&str> = err.lines().filter(|line| line.contains("weft")).collect();
        assert!(about.is_empty() && done.status.success(), "{unit}: {err}");
    }
}

#[test]
fn wrong_calls_are_told() {
    let output = Command::new(script()).env("WEFT_MAINTAINER", "nobody").output().expect("it runs");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("WEFT_MAINTAINER is 'nobody'\nhint: expected is NAME <ADDRESS>"), "{err}");
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
