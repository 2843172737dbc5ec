//! A file system mounted: real programs' calls through the kernel, mounts that share files, and what dies.

mod bed;

use bed::mounts::{Folder, mount_process_at, with_home};
use bed::{Bed, sample, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

const MIB: usize = 1 << 20;

fn mount_process(bed: &Bed) -> String {
    mount_process_at(&bed.dir.display().to_string())
}

#[test]
fn files_are_used_through_a_mount() {
    let Some(bed) = with_home("mount") else { return };
    let (at, other) = (Folder::new(&bed, "at"), Folder::new(&bed, "other"));
    let no_log = ["mount", "home", at.text(), "--log-file", "/nowhere/at/all"];
    bed.weft(&no_log).fails(1, &["open the log", "/nowhere/at/all"]);
    let mounted: serde_json::Value =
        serde_json::from_str(&bed.ok(&["--json", "mount", "home", at.text()])).expect("JSON");
    assert_eq!(mounted["file_system"], "home");
    bed.ok(&["umount", at.text()]);
    assert!(bed.ok(&["mount", "home", at.text()]).contains("home is mounted at"));
    let content = sample(3 * MIB + 17, 5);
    fs::write(at.join("file"), &content).expect("written");
    assert!(fs::read(at.join("file")).expect("read") == content);
    fs::create_dir_all(at.join("a/b")).expect("made");
    fs::rename(at.join("file"), at.join("a/moved")).expect("renamed");
    fs::hard_link(at.join("a/moved"), at.join("a/b/linked")).expect("linked");
    symlink("../moved", at.join("a/b/soft")).expect("linked");
    assert!(fs::read(at.join("a/b/soft")).expect("read") == content);
    assert_eq!(fs::metadata(at.join("a/moved")).expect("there").nlink(), 2);
    fs::set_permissions(at.join("a/moved"), fs::Permissions::from_mode(0o604)).expect("ours");

    // Holes, and what was behind an end: it never comes back.
    let file = File::options().read(true).write(true).open(at.join("a/moved")).expect("open");
    file.set_len(1000).expect("shorter");
    file.write_all_at(b"x", 9000).expect("longer");
    let mut read = vec![1; 8000];
    file.read_exact_at(&mut read, 1000).expect("read");
    assert!(read.iter().all(|byte| *byte == 0), "zeroes between the old end and the new one");
    assert_eq!(file.metadata().expect("there").len(), 9001);
    file.sync_all().expect("durable");

    // A time that is set while the file is open is not overwritten by that of the write before.
    let long_ago = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let mut copied = File::create(at.join("copied")).expect("made");
    copied.write_all(b"copied").expect("written");
    copied.set_modified(long_ago).expect("ours");
    drop(copied);

    // A file that is open loses its names, and stays as long as it is open.
    fs::remove_file(at.join("a/moved")).expect("removed");
    fs::remove_file(at.join("a/b/linked")).expect("removed");
    let mut gone = file;
    std::thread::sleep(Duration::from_secs(8));
    assert_eq!(fs::metadata(at.join("copied")).expect("there").modified().expect("it has one"), long_ago);
    gone.seek(SeekFrom::Start(0)).expect("open");
    let mut first = vec![0; 1000];
    gone.read_exact(&mut first).expect("it is not purged");
    assert!(first == content[..1000]);
    drop(gone);

    // A mount that only reads sees what others do.
    bed.ok(&["mount", "home", other.text(), "--read-only"]);
    fs::write(at.join("fresh"), b"fresh").expect("written");
    assert_eq!(fs::read(other.join("fresh")).expect("read"), b"fresh");
    assert!(fs::write(other.join("fresh"), b"no").is_err());
    bed.weft(&["mount", "home", at.text()]).fails(1, &["is mounted there", "weft umount"]);
    bed.weft(&["mount", "none", "fabric"]).fails(1, &["is not empty", "empty folder"]);
    bed.weft(&["mount", "none", "missing"]).fails(1, &["missing", "mkdir"]);
    bed.ok(&["umount", other.text()]);
    bed.weft(&["mount", "none", other.text()]).fails(1, &["no file system 'none'", "weft fs list"]);
    let open = File::open(at.join("fresh")).expect("open");
    bed.weft(&["umount", at.text()]).fails(1, &["busy", "--force"]);
    drop(open);
    bed.ok(&["umount", at.text()]);
    bed.weft(&["umount", at.text()]).fails(1, &["no file system of Weft is mounted"]);
    assert_eq!(fs::read_dir(&at.0).expect("a folder").count(), 0);
}

/// Appends so many lines to a file by a handle of its own, each by one call.
fn append(path: &Path, who: &str, lines: usize) {
    let mut file = File::options().append(true).open(path).expect("open");
    for n in 0..lines {
        file.write_all(format!("{who} {n}\n").as_bytes()).expect("written");
    }
}

/// What is changed of an open file's attributes is seen at once, and stays.
fn share_attributes(a: &Folder, b: &Folder) {
    let mut open = File::create(a.join("attributes")).expect("made");
    open.write_all(b"content").expect("written");
    open.set_permissions(fs::Permissions::from_mode(0o640)).expect("ours");
    let long_ago = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    open.set_modified(long_ago).expect("ours");
    let is_so = |folder: &Folder| {
        let seen = fs::metadata(folder.join("attributes")).expect("there");
        (seen.mode() & 0o7777, seen.len(), seen.modified().expect("it has one")) == (0o640, 7, long_ago)
    };
    assert!(is_so(a) && is_so(b));
    open.set_permissions(fs::Permissions::from_mode(0o600)).expect("ours");
    open.set_permissions(fs::Permissions::from_mode(0o640)).expect("ours");
    assert!(is_so(a));
    drop(open);
    assert!(is_so(b) && is_so(a));
    // What is written later is the newest, and so is its time.
    let mut open = File::options().append(true).open(a.join("attributes")).expect("there");
    open.set_modified(long_ago).expect("ours");
    open.write_all(b"!").expect("written");
    assert!(fs::metadata(b.join("attributes")).expect("there").modified().expect("it has one") > long_ago);
    drop(open);
}

#[test]
fn mounts_share_files_as_if_they_were_one() {
    let Some(bed) = with_home("mounts") else { return };
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "home", a.text()]);
    bed.ok(&["mount", "home", b.text()]);

    share_attributes(&a, &b);

    // Each sees at once what the other has done, also by handles that are open.
    let content = sample(MIB + 5, 1);
    let mut by_a = File::create(a.join("file")).expect("made");
    by_a.write_all(&content).expect("written");
    assert_eq!(fs::metadata(b.join("file")).expect("there").len(), content.len() as u64);
    let by_b = File::options().read(true).write(true).open(b.join("file")).expect("open");
    let mut read = vec![0; content.len()];
    by_b.read_exact_at(&mut read, 0).expect("read");
    assert!(read == content);
    by_b.write_all_at(b"by b", 100).expect("written");
    by_b.write_all_at(b"and longer", content.len() as u64).expect("written");
    let by_a = File::open(a.join("file")).expect("open");
    for round in 0..20_u8 {
        by_b.write_all_at(&[round; 10_000], 4_000).expect("written");
        let mut read = [0; 10_000];
        by_a.read_exact_at(&mut read, 4_000).expect("read");
        assert!(read == [round; 10_000], "round {round}");
    }
    assert_eq!(by_a.metadata().expect("there").len(), content.len() as u64 + 10);
    by_b.set_len(50).expect("shorter");
    assert_eq!(fs::read(a.join("file")).expect("read"), content[..50]);

    // Names and attributes.
    fs::create_dir(a.join("folder")).expect("made");
    fs::rename(b.join("file"), b.join("folder/moved")).expect("renamed");
    assert!(!a.join("file").exists() && a.join("folder/moved").exists());
    fs::set_permissions(b.join("folder/moved"), fs::Permissions::from_mode(0o604)).expect("ours");
    assert_eq!(by_a.metadata().expect("there").permissions().mode() & 0o777, 0o604);
    assert!(File::create_new(b.join("folder/moved")).is_err());
    fs::remove_file(b.join("folder/moved")).expect("removed");
    assert!(!a.join("folder/moved").exists());
    assert_eq!(by_a.read_at(&mut [0; 100], 0).expect("it is open"), 50);

    // What both append is there, each line whole and once.
    let log = "log";
    fs::write(a.join(log), b"").expect("made");
    let (of_a, of_b) = (a.join(log), b.join(log));
    let both = [std::thread::spawn(move || append(&of_a, "a", 200)), {
        std::thread::spawn(move || append(&of_b, "b", 200))
    }];
    both.into_iter().for_each(|thread| thread.join().expect("it appends"));
    let text = fs::read_to_string(b.join(log)).expect("read");
    for who in ["a", "b"] {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(who)).collect();
        assert_eq!(lines, (0..200).map(|n| format!("{who} {n}")).collect::<Vec<_>>());
    }

    // One dies with what it has open: the other goes on with it once its session is over.
    let mut left = File::create(a.join("left")).expect("made");
    left.write_all(b"synced").expect("written");
    left.sync_all().expect("durable");
    let process = mount_process_at(a.text());
    assert!(Command::new("kill").args(["-9", &process]).status().expect("kill runs").success());
    assert_eq!(fs::read(b.join("left")).expect("read"), b"synced");
    fs::write(b.join("left"), b"by b").expect("written");
    drop((left, by_a, by_b));
    bed.ok(&["umount", b.text()]);
}

#[test]
fn mount_8_mounts_by_the_name_of_its_helper() {
    let Some(bed) = with_home("mount-helper") else { return };
    let at = Folder::new(&bed, "at");
    let helper = bed.path("mount.weft");
    symlink(&**bed::WEFT, &helper).expect("linked");
    let run = |options: &str| {
        let words = ["home", at.text(), "-n", "-o", options];
        let ran = Command::new(&helper).args(words).env_remove("WEFT_FABRIC").output().expect("weft runs");
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let fabric = format!("rw,_netdev,x-a.b=c,noexec,nosuid,nodev,fabric={}", bed.fabric().display());
    let (code, said) = run(&format!("{fabric},frob"));
    assert!(
        code == Some(2) && said.contains("'frob' is not known") && said.contains("fabric=PLACE"),
        "{said}"
    );
    let (code, said) = run(&fabric);
    assert_eq!(code, Some(0), "{said}");
    let script = at.join("script");
    fs::write(&script, "#!/bin/sh\n").expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("ours");
    assert!(Command::new(&script).status().is_err(), "a program is started from a mount without programs");
    // As umount(8) does it: the process ends by itself.
    assert!(Command::new("umount").arg(at.text()).status().expect("umount runs").success());
    wait_until("the process has ended", || {
        Command::new("pgrep").args(["-f", at.text()]).output().is_ok_and(|found| found.stdout.is_empty())
    });
}

/// Runs a program of `tests/programs`, which says at its end that all is well.
fn run_program(name: &str, args: &[&str], at_its_end: &str) {
    let script = format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"));
    let ran = Command::new("python3").args(["-B", &script]).args(args).output().expect("python3 runs");
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains(at_its_end), "{said}");
}

/// A folder to be made in a file system of the kernel that has access control lists: one in memory.
fn folder_in_memory() -> PathBuf {
    PathBuf::from(format!("/dev/shm/weft-oracle-{}", std::process::id()))
}

#[test]
fn programs_find_locks_and_lists_on_two_mounts() {
    let Some(bed) = with_home("mount-locks") else { return };
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "home", a.text()]);
    bed.ok(&["mount", "home", b.text()]);
    run_program("locks.py", &[a.text(), b.text()], "locks hold");
    // Who uses the file system is told, by somebody who does not count.
    let open = File::create(a.join("open")).expect("made");
    let used = bed.json(&["fs", "clients", "home"]);
    let clients = used["clients"].as_array().expect("a list").clone();
    assert_eq!(clients.len(), 2, "{used}");
    let writes: u64 = clients.iter().map(|client| client["writable"].as_u64().expect("a number")).sum();
    assert_eq!((writes, used["waits"].as_array().map(Vec::len)), (1, Some(0)), "{used}");
    drop(open);
    // Lists are compared with those of a file system of the kernel.
    let oracle = folder_in_memory();
    for at in [a.join("lists"), oracle.clone()] {
        fs::create_dir(&at).expect("made");
    }
    let [at, other] = [a.join("lists"), b.join("lists")].map(|path| path.display().to_string());
    run_program("acl.py", &[&at, &other, &oracle.display().to_string(), "300"], "lists agree");
    fs::remove_dir_all(&oracle).expect("removed");
    let checked = bed.json(&["fs", "check", "home"]);
    assert_eq!((checked["sound"].as_bool(), checked["found"].as_u64()), (Some(true), Some(0)), "{checked}");
    assert!(checked["names"].as_u64() > Some(20), "{checked}");
    bed.ok(&["umount", a.text()]);
    bed.ok(&["umount", b.text()]);
}

#[test]
fn a_mount_that_stood_still_goes_on_in_a_new_session() {
    let Some(bed) = with_home("mount-still") else { return };
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "home", a.text()]);
    bed.ok(&["mount", "home", b.text()]);
    let mut before = File::create(a.join("file")).expect("made");
    before.write_all(b"before").expect("written");
    before.sync_all().expect("durable");
    before.lock().expect("nobody has it");
    let mut other = File::options().read(true).write(true).open(b.join("file")).expect("there");
    assert!(other.try_lock().is_err(), "it is locked by the other mount");
    let pid = mount_process_at(a.text()).parse().ok().and_then(Pid::from_raw).expect("a number");
    // Nothing is started meanwhile: a new process closes what it inherits, and would wait for this mount.
    kill_process(pid, Signal::STOP).expect("it is ours");
    let locked = other.lock();
    let written = locked.and_then(|()| other.write_all(b"since"));
    kill_process(pid, Signal::CONT).expect("it is ours");
    written.expect("its lock is over with its session");
    // Whoever has it open from before knows nothing of that, and must not go on.
    wait_until("files work", || fs::read(a.join("file")).is_ok_and(|read| read == b"sincee"));
    let failed = before.write_all(b"?").expect_err("another mount has the lock");
    assert_eq!(failed.raw_os_error(), Some(5), "EIO: {failed}");
    assert!(before.sync_all().is_err());
    assert!(before.set_len(0).is_err(), "what another one has written is cut");
    // What is stored through a mapping of the one could be written by the other.
    assert!(File::options().write(true).open(a.join("file")).is_err());
    drop(before);
    fs::write(a.join("file"), b"after").expect("opened anew");
    assert_eq!(fs::read(b.join("file")).expect("read"), b"after");
    assert!(File::open(a.join("file")).expect("there").try_lock().is_err(), "the other one has it still");
    drop(other);
    bed.ok(&["umount", a.text()]);
    bed.ok(&["umount", b.text()]);
}

#[test]
fn a_mount_lives_through_the_death_of_a_node_and_dies_without_harm() {
    let Some(bed) = with_home("mount-deaths") else { return };
    let at = Folder::new(&bed, "at");
    bed.ok(&["mount", "home", at.text()]);
    let content = sample(200_000, 9);
    let write = |n: usize| {
        let mut file = File::create(at.join(&format!("file-{n}"))).expect("made");
        file.write_all(&content[n..]).expect("written");
        file.sync_all().expect("durable");
    };
    (0..20).for_each(write);
    let shown = bed.json(&["fs", "show", "home"]);
    let server = shown["file_system"]["servers"][0]["server"].as_str().expect("it is served").to_owned();
    let server = server.split('\'').nth(1).expect("node 'NAME'");
    bed.ok(&["node", "stop", server, "--kill"]);
    (20..40).for_each(write);
    bed.ok(&["node", "start", server]);

    // The mount dies with a file that was not closed: what was synced is there.
    let mut file = File::create(at.join("open")).expect("made");
    file.write_all(&content).expect("written");
    file.sync_all().expect("durable");
    let pid = mount_process(&bed);
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill runs").success());
    drop(file);
    wait_until("the mount is dead", || fs::read_dir(&at.0).is_err());
    assert!(bed.weft(&["umount", at.text()]).code == 0, "a dead mount is taken away");
    // Its session is over after half a minute; until then this waits.
    assert!(bed.ok(&["mount", "home", at.text()]).contains("home is mounted at"));
    for n in 0..40 {
        assert!(fs::read(at.join(&format!("file-{n}"))).expect("read") == content[n..], "file {n}");
    }
    assert!(fs::read(at.join("open")).expect("read") == content);
    bed.ok(&["umount", at.text()]);
}

/// The kernel's switch for FUSE over io_uring, as it was before when this is dropped. The lock keeps other
/// processes from it.
struct LanesSwitch(String, #[expect(dead_code, reason = "it is held")] File);

impl LanesSwitch {
    const PATH: &str = "/sys/module/fuse/parameters/enable_uring";

    /// None if the kernel has no such switch.
    fn found() -> Option<LanesSwitch> {
        let lock = File::create(std::env::temp_dir().join("weft-enable-uring.lock")).ok()?;
        lock.lock().ok()?;
        Some(LanesSwitch(fs::read_to_string(LanesSwitch::PATH).ok()?, lock))
    }

    fn set(&self, is_on: bool) {
        fs::write(LanesSwitch::PATH, if is_on { "Y" } else { "N" }).expect("mounting takes root as well");
    }
}

impl Drop for LanesSwitch {
    fn drop(&mut self) {
        let _ = fs::write(LanesSwitch::PATH, self.0.trim());
    }
}

#[test]
fn a_mount_over_io_uring_is_used_and_dies_as_any_other() {
    let Some(bed) = with_home("mount-lanes") else { return };
    let Some(switch) = LanesSwitch::found() else {
        eprintln!("skipped: the kernel has no FUSE over io_uring");
        return;
    };
    let at = Folder::new(&bed, "at");
    let over = ["mount", "home", at.text(), "--over-io-uring"];
    switch.set(false);
    bed.weft(&over)
        .fails(1, &["does not offer FUSE over io_uring", "enable_uring", "without --over-io-uring"]);
    switch.set(true);
    let content = sample(5 * MIB + 17, 5);
    for round in 0..3 {
        bed.ok(&over);
        let write = |n: usize| {
            let mut file = File::create(at.join(&format!("{round}-{n}"))).expect("made");
            file.write_all(&content[n..]).expect("written");
            file.sync_all().expect("durable");
        };
        std::thread::scope(|threads| {
            (0..8).for_each(|n| drop(threads.spawn(move || write(n))));
        });
        for n in 0..8 {
            assert!(fs::read(at.join(&format!("{round}-{n}"))).expect("read") == content[n..], "{round}-{n}");
        }
        let pid = mount_process(&bed).parse().ok().and_then(Pid::from_raw).expect("a number");
        match round {
            0 => bed.ok(&["umount", at.text()]),
            1 => {
                kill_process(pid, Signal::STOP).expect("it is ours");
                // What hangs is taken away all the same; of a request that it has and does not answer, it
                // is told.
                let waking = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_secs(8));
                    kill_process(pid, Signal::CONT).expect("it is ours");
                });
                let ended = bed.weft(&["umount", at.text(), "--force"]);
                waking.join().expect("no panic");
                assert_eq!(ended.code, 0);
                ended.out
            }
            _ => {
                kill_process(pid, Signal::KILL).expect("it is ours");
                wait_until("the mount is dead", || fs::read_dir(&at.0).is_err());
                bed.ok(&["umount", at.text()])
            }
        };
        let status = PathBuf::from(format!("/proc/{}/exe", pid.as_raw_nonzero()));
        wait_until("its process is gone", || fs::read_link(&status).is_err());
    }
    bed.ok(&["mount", "home", at.text()]);
    assert_eq!(fs::read_dir(&at.0).expect("a folder").count(), 24);
    bed.ok(&["umount", at.text()]);
}
