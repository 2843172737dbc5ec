//! `weft ondemand` over real ssh: four hosts, each with a network namespace, a mount namespace and an sshd of
//! its own. Starts that fail or are cut off leave nothing behind, and a stop copes with a host that has died.

use serde_json::Value;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use weft_torture::world::{Cut, Host, World, run};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The hosts that have an sshd.
const ALL: [&str; 4] = ["n1", "n2", "n3", "n4"];

/// PATH and MOUNTPOINT below the folder of the test: words of a shell they are not.
const PATH: &str = "a $path; \"x\" `y`";
const MNT: &str = "mnt \\ *";

/// A user of the hosts who is not root.
const ADA: u32 = 12345;

/// What the shell of a host says at a login.
const BANNER: &str = "Welcome\nno new line";

/// What a command said and how it ended.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

/// The hosts, and the folder of the test.
struct Bed {
    weft: PathBuf,
    dir: PathBuf,
    hosts: Vec<Host>,
    sshds: RefCell<Vec<Child>>,
}

#[test]
fn a_file_system_comes_and_goes_with_a_job() {
    let world = World::enter().expect("the test can be run again");
    let has_fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if world == World::Loopback || !has_fuse {
        println!("skipped: this machine gives no network namespaces, or no /dev/fuse");
        return;
    }
    let dir = std::env::temp_dir().join(format!("weft-ondemand-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("the temporary folder can be written");
    let found = std::panic::catch_unwind(|| {
        let bed = Bed::new(world, &dir);
        bed.comes_and_goes();
        bed.what_is_no_request_is_answered();
        bed.unfit_hosts_are_named();
        bed.a_start_that_is_cut_off_leaves_nothing();
        bed.the_machine_of_a_start_dies();
        bed.goes_without_root();
        bed.devices_are_drives();
        bed.a_host_dies_before_the_stop();
        bed.data_that_stayed_are_taken_again();
    });
    let _ = fs::remove_dir_all(&dir);
    if let Err(panic) = found {
        std::panic::resume_unwind(panic);
    }
}

impl Bed {
    fn new(world: World, dir: &Path) -> Bed {
        world.set_up().expect("the world can be made");
        for name in [PATH, MNT, "bin", "bin-old", "in/deep/er", "out"] {
            fs::create_dir_all(dir.join(name)).expect("made");
        }
        let users = fs::read_to_string("/etc/passwd").expect("there");
        fs::write(dir.join("passwd"), format!("{users}\nada:x:{ADA}:{ADA}::/:/bin/sh\n")).expect("written");
        fs::write(dir.join("bin-old/weft"), "#!/bin/sh\necho weft 0.0.1\n").expect("written");
        run("chmod", &["755", &dir.join("bin-old/weft").display().to_string()]).expect("it runs");
        fs::create_dir_all("/run/sshd").expect("made");
        let weft = weft_tests::weft();
        std::os::unix::fs::symlink(&weft, dir.join("bin/weft")).expect("made");
        for name in ["key", "host-key"] {
            let path = dir.join(name).display().to_string();
            run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &path]).expect("a key");
        }
        let hosts: Vec<Host> = (1..=5u8).map(|n| world.host(&format!("n{n}"), n).expect("a host")).collect();
        let bed = Bed { weft, dir: dir.to_owned(), hosts, sshds: RefCell::default() };
        let mut config = format!(
            "User root\nIdentityFile {}\nStrictHostKeyChecking no\n\
             UserKnownHostsFile /dev/null\nLogLevel ERROR\n",
            dir.join("key").display()
        );
        for host in &bed.hosts {
            config.push_str(&format!("Host {}\nHostName {}\n", host.name, host.ip));
        }
        config.push_str(&format!("Host twin\nHostName {}\n", bed.hosts[0].ip));
        // Nobody has this address.
        config.push_str("Host dead\nHostName 10.77.0.99\n");
        fs::write(dir.join("ssh_config"), config).expect("written");
        // The fifth one has none.
        for host in &bed.hosts[..4] {
            bed.start_sshd(host);
        }
        bed
    }

    fn path(&self) -> PathBuf {
        self.dir.join(PATH)
    }

    fn mnt(&self) -> String {
        self.dir.join(MNT).display().to_string()
    }

    /// A host's own folder, seen from outside.
    fn of(&self, host: &str, name: &str) -> PathBuf {
        self.dir.join("hosts").join(host).join(name)
    }

    /// Starts the sshd of a host, in which PATH, MOUNTPOINT and the home are the host's own. At each login it
    /// says a few words that are no answer. The fourth host has a weft of another version.
    fn start_sshd(&self, host: &Host) {
        for name in ["path", "mnt", "home"] {
            fs::create_dir_all(self.of(&host.name, name)).expect("made");
        }
        fs::write(self.of(&host.name, "home/.bashrc"), format!("printf '{BANNER}'; echo hm >&2\n"))
            .expect("written");
        let bin = self.dir.join(if host.name == "n4" { "bin-old" } else { "bin" });
        let config = format!(
            "ListenAddress {}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n\
             PermitRootLogin yes\nMaxStartups 100\nSetEnv PATH={}:/usr/bin:/bin:/usr/sbin:/sbin\n",
            host.ip,
            self.dir.join("host-key").display(),
            self.dir.join("key.pub").display(),
            bin.display()
        );
        let file = self.dir.join(format!("sshd-{}", host.name));
        fs::write(&file, config).expect("written");
        let script = "mount --bind \"$1/path\" \"$2/$4\" && mount --bind \"$1/mnt\" \"$2/$5\" && \
                      mount --bind \"$1/home\" /root && mount --bind \"$2/passwd\" /etc/passwd && \
                      { [ -e \"$1/fuse\" ] || mknod -m 666 \"$1/fuse\" c 10 229; } && \
                      mount --bind \"$1/fuse\" /dev/fuse; \
                      exec /usr/sbin/sshd -D -e -f \"$3\"";
        let args = [
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
            &self.of(&host.name, "").display().to_string(),
            &self.dir.display().to_string(),
            &file.display().to_string(),
            PATH,
            MNT,
        ];
        let log = self.dir.join(format!("sshd-{}.log", host.name));
        let sshd = host.start(Path::new("unshare"), &args.map(String::from), &log).expect("sshd starts");
        self.sshds.borrow_mut().push(sshd);
        self.wait("sshd answers", || self.on(&host.name, "true").code == 0);
    }

    /// Runs a shell command on a host.
    fn on(&self, host: &str, command: &str) -> Said {
        let config = self.dir.join("ssh_config");
        let mut ssh = Command::new("ssh");
        said(ssh.arg("-F").arg(config).args(["-o", "BatchMode=yes", host, command]))
    }

    /// Runs a shell command on a host, and insists on success.
    fn ok_on(&self, host: &str, command: &str) -> String {
        let said = self.on(host, command);
        assert_eq!(said.code, 0, "{command}: {said:?}");
        said.out.strip_prefix(BANNER).map_or(said.out.clone(), str::to_owned)
    }

    fn ondemand(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.weft);
        command.arg("ondemand").args(args).env("WEFT_ONDEMAND_STATE", self.dir.join("state"));
        command.env("NO_COLOR", "1").env_remove("WEFT_FABRIC").current_dir(&self.dir);
        command
    }

    fn weft(&self, args: &[&str]) -> Said {
        said(&mut self.ondemand(args))
    }

    fn json(&self, args: &[&str]) -> Value {
        let said = self.weft(&[args, &["--json"]].concat());
        assert_eq!(said.code, 0, "{args:?}: {said:?}");
        serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"))
    }

    /// The words of a start on these hosts.
    fn words(&self, hosts: &str) -> Vec<String> {
        fs::write(self.dir.join("hosts.txt"), hosts).expect("written");
        let ssh = format!("ssh -F '{}'", self.dir.join("ssh_config").display());
        let path = self.path().display().to_string();
        let words = ["start", "-n", "hosts.txt", "-d", &path, "-c", &self.mnt(), "--ssh", &ssh, "-m", "4"];
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn start(&self, hosts: &str, more: &[&str]) -> Said {
        let words = self.words(hosts);
        let words: Vec<&str> = words.iter().map(String::as_str).chain(more.iter().copied()).collect();
        self.weft(&words)
    }

    /// Insists that a host has nothing of a file system: no process, no file, no mount.
    fn is_clean(&self, host: &str) {
        let left: Vec<_> = fs::read_dir(self.of(host, "path")).expect("there").collect();
        assert!(left.is_empty(), "{host}: {left:?}");
        // One that served a command which was killed ends on its own, a moment after its last folder is gone.
        self.wait(&format!("{host} has processes left"), || self.programs(host).is_empty());
        let mounts = self.ok_on(host, "cat /proc/self/mountinfo");
        assert!(!mounts.contains("fuse.weft"), "{host}: {mounts}");
    }

    /// The command lines of this program's processes on a host.
    fn programs(&self, host: &str) -> Vec<String> {
        let pids = Command::new("ip").args(["netns", "pids", host]).output().expect("ip runs").stdout;
        let words = |pid: &str| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let lines = String::from_utf8_lossy(&pids).lines().map(words).collect::<Vec<_>>();
        let lines = lines.iter().map(|words| String::from_utf8_lossy(words).replace('\0', " "));
        lines.filter(|words| words.split(' ').next().unwrap_or_default().ends_with("weft")).collect()
    }

    fn all_are_clean(&self) {
        ALL.iter().for_each(|host| self.is_clean(host));
    }

    fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn comes_and_goes(&self) {
        let hosts = "n[1-2] # the first ones\nn1\nN2\nn3 slots=4 max_slots=8\nn4:2\n";
        let rehearsed = self.start(hosts, &["--size", "128MiB", "--dry-run"]);
        assert_eq!(rehearsed.code, 0, "{rehearsed:?}");
        assert!(rehearsed.out.contains("would start a node on 4 hosts"), "{rehearsed:?}");
        assert!(rehearsed.out.contains("would copy this program to 1 of them"), "{rehearsed:?}");
        self.all_are_clean();
        let started = self.start(hosts, &["--size", "128MiB", "--json"]);
        assert_eq!(started.code, 0, "{started:?}");
        let document: Value = serde_json::from_str(&started.out).expect("a document");
        let id = document["id"].as_str().expect("an ID").to_owned();
        assert_eq!(document["hosts"], serde_json::json!(["n1", "n2", "n3", "n4"]), "twins are joined");
        let mnt = self.mnt();
        self.ok_on("n1", &format!("echo hello >'{mnt}/x'"));
        assert_eq!(self.ok_on("n4", &format!("cat '{mnt}/x'")), "hello\n");
        let status = self.json(&["status"]);
        assert_eq!(status["fabric"]["health"], "healthy", "{status}");
        let answers = status["hosts"].as_array().into_iter().flatten().filter(|host| host["answers"] == true);
        assert_eq!(answers.count(), 4, "{status}");

        let again = self.start(hosts, &["--size", "128MiB"]);
        assert_eq!(again.code, 4, "{again:?}");
        let says = format!("holds weft-ondemand-{id} of another start, which is running");
        assert!(again.err.contains(&says), "{again:?}");
        self.copies(&mnt);
        self.is_in_use(&mnt);
        self.a_mount_dies(&id, &mnt);

        let stopped = self.weft(&["stop", "--delete"]);
        assert_eq!(stopped.code, 0, "{stopped:?}");
        self.all_are_clean();
        let path = self.path().display().to_string();
        let ssh = format!("ssh -F '{}'", self.dir.join("ssh_config").display());
        for words in [&["stop", "--delete"][..], &["stop", "-n", "hosts.txt", "-d", &path, "--ssh", &ssh]] {
            let stopped = self.weft(words);
            assert_eq!(stopped.code, 0, "a second time: {stopped:?}");
        }
    }

    /// What is copied: odd names, modes, times and links among it.
    fn source(&self) -> PathBuf {
        let source = self.dir.join("in");
        for n in 0..40 {
            let file = source.join(format!("deep/er/file {n}"));
            fs::write(file, vec![n; 1000 * usize::from(n)]).expect("written");
        }
        for name in [&b"a\nb"[..], b"\xff\xfe", b"-rf", b"it's \"$x\" \\"] {
            fs::write(source.join(OsStr::from_bytes(name)), name).expect("written");
        }
        let large: Vec<u8> = (0..16u32 << 20).flat_map(u32::to_le_bytes).collect();
        fs::write(source.join("large"), large).expect("written");
        for (names, link) in [("large", "link"), ("/nowhere", "dangling"), ("deep", "folder link")] {
            let _ = fs::remove_file(source.join(link));
            std::os::unix::fs::symlink(names, source.join(link)).expect("made");
        }
        let script = "cd \"$1\" && chmod 640 large && chmod 4711 ./-rf && chmod 500 deep/er && \
                      touch -d 2001-02-03T04:05:06.789 large deep/er/* && touch -d 1969-01-02 deep/er deep";
        run("sh", &["-c", script, "sh", &source.display().to_string()]).expect("it runs");
        source
    }

    /// Names below a folder, with owners, and what links name; of others modes and times.
    fn listed(&self, folder: &Path) -> Vec<u8> {
        let mut find = Command::new("find");
        find.arg(folder).args(["-mindepth", "1", "-type", "l", "-printf", r"%P %l %U\0"]);
        find.args(["-o", "-mindepth", "1", "-printf", r"%P %y %m %T@ %U\0"]);
        let found = find.output().expect("find runs").stdout;
        let mut lines: Vec<&[u8]> = found.split(|byte| *byte == 0).collect();
        lines.sort();
        lines.join(&b"\n"[..])
    }

    fn copies(&self, mnt: &str) {
        let folder = self.source();
        let (source, target) = (folder.display().to_string(), format!("{mnt}/job"));
        self.copy_is_cut_off(&source, &target);
        let first = self.json(&["copy", &source, &target]);
        assert_eq!((&first["links"], &first["errors"]), (&3.into(), &0.into()), "{first}");
        let files = first["files"].as_u64().unwrap_or(0) + first["skipped"].as_u64().unwrap_or(0);
        assert_eq!(files, 45, "{first}");
        let again = self.json(&["copy", &source, &target]);
        assert_eq!((&again["files"], &again["skipped"]), (&0.into(), &45.into()), "{again}");
        let out = self.dir.join("out");
        self.json(&["copy", &format!("{target}/in/"), &out.display().to_string()]);
        run("diff", &["-r", "--no-dereference", &source, &out.display().to_string()]).expect("the same");
        let lines = |folder| String::from_utf8_lossy(&self.listed(folder)).into_owned();
        assert_eq!(lines(&out), lines(&folder), "modes, times, links and owners");
        let missing = self.weft(&["copy", "/nowhere/at/all", &target]);
        assert!(missing.code == 1 && missing.err.contains("/nowhere/at/all: "), "{missing:?}");
        let large = format!("{source}/large");
        let twice = self.weft(&["copy", &large, &large, &target]);
        assert!(twice.code == 1 && twice.err.contains("several sources would become"), "{twice:?}");
    }

    /// A copy is killed while a host is at work on a file, and leaves nothing that is not whole.
    fn copy_is_cut_off(&self, source: &str, target: &str) {
        let mut copy = self.ondemand(&["copy", source, target]);
        let mut copy = copy.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
        let mut lines = BufReader::new(copy.stderr.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("copying ")), "it begins");
        std::thread::sleep(Duration::from_millis(100));
        copy.kill().and_then(|()| copy.wait()).expect("it ends");
        let unfinished = format!("find '{target}' -name '.weft-copy-*' 2>/dev/null | grep -c . || true");
        self.wait("hosts end what they had begun", || self.ok_on("n1", &unfinished).trim() == "0");
    }

    /// A host whose mount has died takes no part in a copy, instead of writing to its own disk.
    fn a_mount_dies(&self, id: &str, mnt: &str) {
        let path = self.path().display().to_string();
        let pid = format!("tr -dc '0-9,' <'{path}/weft-ondemand-{id}/run/mount.pid' | cut -d, -f1");
        self.ok_on("n3", &format!("kill -KILL $({pid})"));
        let source = self.dir.join("in/deep/").display().to_string();
        let copied = self.weft(&["copy", &source, mnt]);
        assert!(copied.code == 0 && copied.err.contains("n3 takes no part any more"), "{copied:?}");
        self.ok_on("n1", &format!("diff -r '{source}' '{mnt}/deep' || diff -r '{source}/er' '{mnt}/er'"));
        let status = self.json(&["status"]);
        let silent = status["hosts"].as_array().into_iter().flatten().find(|host| host["host"] == "n3");
        assert_eq!(silent.map(|host| &host["answers"]), Some(&false.into()), "{status}");
    }

    fn is_in_use(&self, mnt: &str) {
        let config = self.dir.join("ssh_config");
        let mut user = Command::new("ssh");
        let command = format!("cd '{mnt}' && printf '\\nthere\\n' && exec cat");
        user.arg("-F").arg(config).args(["-T", "n2", &command]);
        let mut user = user
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("ssh runs");
        let mut lines = BufReader::new(user.stdout.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "there"), "a program is in the mount");
        self.wait("the program uses the mount", || {
            let stopped = self.weft(&["stop", "--delete"]);
            assert_ne!(stopped.code, 0, "it was ended under a program: {stopped:?}");
            stopped.code == 4 && stopped.err.contains("n2: cat (process ")
        });
        assert_eq!(self.ok_on("n1", &format!("cat '{mnt}/x'")), "hello\n");
        drop(user.stdin.take());
        user.wait().expect("it ends");
    }

    /// What runs on hosts says what is wrong with a request, and goes on.
    fn what_is_no_request_is_answered(&self) {
        let folder = self.dir.join("own");
        fs::create_dir_all(&folder).expect("made");
        let mut host = self.ondemand(&["on-host", "--token", "@t@", "--folder"]);
        host.arg(&folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut host = host.spawn().expect("it runs");
        let asked: [(&[u8], &str); 5] = [
            (b"hello", r#"{"n":0,"error":"weft "#),
            (b"\xff", r#"{"n":0,"error":"weft "#),
            (br#"{"n":7,"op":"explode"}"#, r#"{"n":7,"error":"weft "#),
            (br#"{"n":8,"op":"record"}"#, r#"{"n":8,"ok":null}"#),
            (br#"{"n":9,"op":"mount"}"#, r#"{"n":9,"error":""#),
        ];
        let mut stdin = host.stdin.take().expect("piped");
        for (line, _) in asked {
            stdin.write_all(line).and_then(|()| stdin.write_all(b"\n")).expect("written");
        }
        drop(stdin);
        let output = host.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some("@t@ serves"), "{output:?}");
        for (line, start) in asked {
            let answer = lines.next().and_then(|line| line.strip_prefix("@t@ answer "));
            assert!(answer.is_some_and(|answer| answer.starts_with(start)), "{line:?}: {said}");
        }
        assert_eq!((lines.next(), output.status.code()), (None, Some(0)), "{said}");
    }

    fn unfit_hosts_are_named(&self) {
        let failed = self.start("n1\ndead\nn5\n", &["--size", "128MiB"]);
        assert_eq!(failed.code, 1, "{failed:?}");
        for says in ["dead  cannot be reached by ssh", "n5    cannot be reached by ssh"] {
            assert!(failed.err.contains(says), "{failed:?}");
        }
        let path = self.path().display().to_string();
        self.ok_on("n2", &format!("mount -o remount,bind,ro '{path}'"));
        self.ok_on("n3", &format!("echo mine >'{path}/thesis.tex'"));
        let failed = self.start("n[1-4]\n", &["--size", "128MiB"]);
        assert_eq!(failed.code, 4, "{failed:?}");
        assert!(failed.err.contains("2 of 4 hosts failed"), "{failed:?}");
        assert!(failed.err.contains("n2: PATH ") && failed.err.contains("cannot be written"), "{failed:?}");
        assert!(failed.err.contains("holds 'thesis.tex', which is not Weft's"), "{failed:?}");
        self.ok_on("n2", &format!("mount -o remount,bind,rw '{path}'"));
        self.ok_on("n3", &format!("rm '{path}/thesis.tex'"));
        self.ok_on("n3", &format!("mount -t tmpfs -o size=8m none '{path}'"));
        for (hosts, size) in [("n3", "128MiB"), ("n[1-4]\n", "1EiB")] {
            let failed = self.start(hosts, &["--size", size]);
            assert!(failed.code == 1 && failed.err.contains("has too little room"), "{failed:?}");
        }
        self.ok_on("n3", &format!("umount '{path}'"));
        let failed = self.start("n1\ntwin\n", &["--size", "128MiB"]);
        assert!(failed.code == 1 && failed.err.contains("one machine under two names?"), "{failed:?}");
        // Here it is found only once the others have begun.
        self.ok_on("n2", &format!("mkdir '{}/below'", self.mnt()));
        let failed = self.start("n[1-4]\n", &["--size", "128MiB", "--ports", "1-1"]);
        let says = "it holds 'below', which would be hidden";
        assert!(failed.code == 4 && failed.err.contains(says), "{failed:?}");
        self.ok_on("n2", &format!("rmdir '{}/below'", self.mnt()));
        let failed = self.start("n[1-4]\n", &["--size", "128MiB", "--ports", "4900-4900"]);
        assert!(failed.code == 1 && failed.err.contains("n1: of the ports 4901 to 4900"), "{failed:?}");
        self.all_are_clean();
    }

    /// Starts, and sends a signal once the start has said these words.
    fn cut_off(&self, words: &str, signal: &str) {
        let args = self.words("n[1-4]\n");
        let args: Vec<&str> = args.iter().map(String::as_str).chain(["--size", "128MiB"]).collect();
        let mut command = self.ondemand(&args);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let said = lines.by_ref().map_while(Result::ok).take_while(|line| !line.contains(words));
        let said: Vec<String> = said.collect();
        run("kill", &[&format!("-{signal}"), &child.id().to_string()]).expect("it runs");
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        let code = child.wait().expect("it ends").code();
        assert_eq!(code, if signal == "KILL" { None } else { Some(1) }, "{words}: {said:?} {rest:?}");
    }

    fn a_start_that_is_cut_off_leaves_nothing(&self) {
        for (words, signal) in [("looked at", "INT"), ("made drives", "INT"), ("started a node", "TERM")] {
            self.cut_off(words, signal);
            self.all_are_clean();
        }
        assert_eq!(self.json(&["status", "--list"])["file_systems"], serde_json::json!([]));
        // Nobody is there to undo it: the hosts do that by themselves.
        self.cut_off("created the file system", "KILL");
        let is_empty = |host: &str| fs::read_dir(self.of(host, "path")).is_ok_and(|dir| dir.count() == 0);
        self.wait("hosts undo a start without an end", || ALL.iter().all(|host| is_empty(host)));
        self.all_are_clean();
        let stopped = self.weft(&["stop", "--delete"]);
        assert_eq!(stopped.code, 0, "{stopped:?}");
        assert!(stopped.out.contains("Nothing of it was there any more on 4 hosts"), "{stopped:?}");
    }

    /// The machine of a start dies so that hosts do not notice: their connections stay open.
    fn the_machine_of_a_start_dies(&self) {
        let args = self.words("n[1-4]\n");
        let args: Vec<&str> = args.iter().map(String::as_str).chain(["--size", "128MiB"]).collect();
        let mut start = self.ondemand(&args);
        let mut start = start.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
        let mut lines = BufReader::new(start.stderr.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("started a node")));
        run("kill", &["-STOP", &start.id().to_string()]).expect("it runs");
        let path = self.path().display().to_string();
        let ssh = format!("ssh -F '{}'", self.dir.join("ssh_config").display());
        let elsewhere = self.dir.join("elsewhere").display().to_string();
        let words = ["stop", "-n", "hosts.txt", "-d", &path, "--ssh", &ssh, "--state-dir", &elsewhere];
        let stopped = self.weft(&[&words[..], &["--delete", "--force"]].concat());
        assert_eq!(stopped.code, 0, "{stopped:?}");
        self.all_are_clean();
        run("kill", &["-KILL", &start.id().to_string()]).expect("it runs");
        start.wait().expect("it ends");
        assert_eq!(self.weft(&["stop", "--delete"]).code, 0);
    }

    /// Hosts let users in who are not root: fusermount3 mounts for them.
    fn goes_without_root(&self) {
        let own = |uid: u32| {
            for (host, name) in ["n1", "n2"].iter().flat_map(|host| [(host, "path"), (host, "mnt")]) {
                std::os::unix::fs::chown(self.of(host, name), Some(uid), Some(uid)).expect("root may");
            }
        };
        let as_ada = |host: &str, command: &str| {
            let config = self.dir.join("ssh_config");
            let mut ssh = Command::new("ssh");
            said(ssh.arg("-F").arg(config).args(["-l", "ada", host, command]))
        };
        if as_ada("n1", "command -v fusermount3 && test -w /dev/fuse").code != 0 {
            println!("skipped: starts without root, which take fusermount3 (package fuse3) and /dev/fuse");
            return;
        }
        own(ADA);
        let mut words = self.words("n1\nn2\n");
        let ssh = words.iter_mut().find(|word| word.starts_with("ssh -F")).expect("it is among them");
        ssh.push_str(" -l ada");
        let words: Vec<&str> = words.iter().map(String::as_str).chain(["--size", "128MiB"]).collect();
        let started = self.weft(&words);
        assert_eq!(started.code, 0, "{started:?}");
        let mnt = self.mnt();
        let written = as_ada("n1", &format!("echo ada >'{mnt}/hers'"));
        assert_eq!(written.code, 0, "{written:?}");
        let read = as_ada("n2", &format!("cat '{mnt}/hers' && stat -c %U '{mnt}'"));
        assert_eq!(read.out, "ada\nada\n", "{read:?}");
        let stopped = self.weft(&["stop", "--delete"]);
        assert_eq!(stopped.code, 0, "{stopped:?}");
        own(0);
        self.all_are_clean();
    }

    /// A host whose power fails: nothing of it runs any more, and nobody reaches it.
    fn kill_host(&self, host: &Host) {
        host.cut(Cut::Both, None).expect("it is cut off");
        let pids = Command::new("ip").args(["netns", "pids", &host.name]).output().expect("ip runs").stdout;
        for pid in String::from_utf8_lossy(&pids).lines() {
            let _ = run("kill", &["-KILL", pid]);
        }
        for sshd in &mut *self.sshds.borrow_mut() {
            let _ = sshd.try_wait();
        }
    }

    fn a_host_dies_before_the_stop(&self) {
        let started = self.start("n[1-4]\n", &["--size", "128MiB", "--copies", "2"]);
        assert_eq!(started.code, 0, "{started:?}");
        self.ok_on("n1", &format!("echo kept >'{}/y'; sync '{}/y'", self.mnt(), self.mnt()));
        self.a_host_dies_in_a_copy();
        let stopped = self.weft(&["stop", "--delete"]);
        assert_eq!(stopped.code, 1, "{stopped:?}");
        let says = "something is left on 1 host: n4: cannot be reached by ssh";
        assert!(stopped.err.contains(says), "{stopped:?}");
        ["n1", "n2", "n3"].iter().for_each(|host| self.is_clean(host));
        assert!(fs::read_dir(self.of("n4", "path")).expect("there").next().is_some(), "its data are there");
        self.hosts[3].heal().expect("it is reached");
        self.start_sshd(&self.hosts[3]);
        let stopped = self.json(&["stop", "--delete"]);
        assert_eq!(stopped["ended"], serde_json::json!(["n4"]), "{stopped}");
        self.all_are_clean();
    }

    /// Empty devices that PATH holds are formatted, and emptied again. Those that hold data are left alone.
    fn devices_are_drives(&self) {
        let image = self.dir.join("image");
        fs::File::create(&image).and_then(|file| file.set_len(160 << 20)).expect("made");
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().expect("losetup");
        let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        if !made.status.success() {
            println!("skipped: drives on devices, for which this machine has no loop devices");
            return;
        }
        let _loop = Loop(device.clone());
        let link = self.of("n1", "path").join("nvme 0");
        std::os::unix::fs::symlink(&device, &link).expect("made");
        for _ in 0..2 {
            let started = self.start("n1\nn2\n", &["--size", "128MiB", "--json"]);
            assert_eq!(started.code, 0, "{started:?}");
            let document: Value = serde_json::from_str(&started.out).expect("a document");
            assert_eq!(document["raw_bytes"], (160u64 + 128) << 20, "{document}");
            self.ok_on("n2", &format!("echo x >'{}/x'", self.mnt()));
            assert_eq!(self.weft(&["stop", "--delete"]).code, 0);
            assert!(link.is_symlink(), "the name of the device is the user's");
        }
        fs::write(&device, "somebody's").expect("written");
        let failed = self.start("n1\nn2\n", &["--size", "128MiB"]);
        assert!(failed.code == 1 && failed.err.contains("n1: a drive cannot be made"), "{failed:?}");
        assert!(fs::read(&image).expect("there").starts_with(b"somebody's"), "it is left alone");
        fs::remove_file(link).expect("removed");
        self.all_are_clean();
    }

    /// The others copy what the dead host has not.
    fn a_host_dies_in_a_copy(&self) {
        let (source, target) = (self.source(), format!("{}/job", self.mnt()));
        let source = source.display().to_string();
        let mut copy = self.ondemand(&["copy", &source, &target, "--at-once", "1"]);
        let mut copy = copy.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
        let mut lines = BufReader::new(copy.stderr.take().expect("piped")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("copying ")), "it begins");
        self.kill_host(&self.hosts[3]);
        let said: Vec<String> = lines.collect();
        let code = copy.wait().expect("it ends").code();
        assert!(code == Some(0) || code == Some(1), "{said:?}");
        let again = self.json(&["copy", &source, &target]);
        assert_eq!(again["errors"], 0, "{again}: {said:?}");
        let same = format!("diff -r --no-dereference '{source}' '{target}/in'");
        assert_eq!(self.ok_on("n1", &same), "", "{said:?}");
    }

    fn data_that_stayed_are_taken_again(&self) {
        let started = self.start("n[1-3]\n", &["--size", "128MiB"]);
        assert_eq!(started.code, 0, "{started:?}");
        let file = format!("{}/kept", self.mnt());
        self.ok_on("n2", &format!("echo kept >'{file}'"));
        for _ in 0..2 {
            let stopped = self.weft(&["stop"]);
            assert_eq!(stopped.code, 0, "{stopped:?}");
        }
        let refused = self.start("n[1-3]\n", &["--size", "128MiB"]);
        let says = "which is stopped: `weft ondemand stop --delete`";
        assert!(refused.code == 4 && refused.err.contains(says), "{refused:?}");
        let words = self.words("n[1-3]\n");
        // Those for the shards are for new data.
        let words: Vec<&str> = words[..words.len() - 2].iter().map(String::as_str).collect();
        let resumed = self.weft(&[&words, &["--resume"][..]].concat());
        assert_eq!(resumed.code, 0, "{resumed:?}");
        assert!(self.ok_on("n3", &format!("cat '{file}'")).ends_with("kept\n"));
        let refused = self.weft(&[&words, &["--resume"][..]].concat());
        assert!(refused.code == 4 && refused.err.contains("which is running"), "{refused:?}");
        assert!(self.ok_on("n3", &format!("cat '{file}'")).ends_with("kept\n"), "it runs still");
        assert_eq!(self.weft(&["stop", "--delete", "--force"]).code, 0);
        self.all_are_clean();
    }
}

/// A loop device, which is let go of at the end.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.0]);
    }
}

fn said(command: &mut Command) -> Said {
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    Said {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
