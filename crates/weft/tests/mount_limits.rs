//! A mount at its limits: a pool that is full, names and sizes that are too long, races of renames, very many
//! open files, machines that cannot mount, and a fabric that does not answer.

mod bed;

use bed::mounts::{Folder, mount_process_at, with_home, with_home_on};
use bed::{Bed, Said, sample, wait_until};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;

const MIB: usize = 1 << 20;

/// The smallest drive that there can be, for pools that are full in a second.
const SMALLEST: &str = "64MiB";

/// What programs write at a time.
const CHUNK: usize = 256 << 10;

/// What is left to names in a pool that is full otherwise: some tens of thousands.
const ROOM_FOR_NAMES: u64 = 4 * MIB as u64;

/// The error of a call; none if it did what it was asked for.
fn refusal<T>(outcome: io::Result<T>) -> Option<Errno> {
    outcome.err().map(|error| Errno::from_io_error(&error).expect("it is an error of the kernel"))
}

/// Closes a file as programs do that care for the outcome.
fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is open, and nobody has it any more.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

/// Insists that names, inodes and data agree.
fn assert_sound(bed: &Bed) {
    let checked = bed.json(&["fs", "check", "home"]);
    assert_eq!((checked["sound"].as_bool(), checked["found"].as_u64()), (Some(true), Some(0)), "{checked}");
}

/// Bytes that the drives hold.
fn used(bed: &Bed) -> u64 {
    let drives = bed.json(&["drive", "list"]);
    let drives = drives["drives"].as_array().expect("a list").clone();
    drives.iter().map(|drive| drive["usage"]["used_bytes"].as_u64().unwrap_or(0)).sum()
}

/// Waits until a file of a mebibyte can be written again.
fn await_room(folder: &Folder) {
    wait_until("there is room again", || {
        let made = File::create(folder.join("room"));
        made.is_ok_and(|mut file| file.write_all(&sample(MIB, 13)).and_then(|()| file.sync_all()).is_ok())
    });
    fs::remove_file(folder.join("room")).expect("removed");
}

/// Appends chunks to a file until one is refused; how many were taken, and why no more.
fn fill(file: &mut File, chunk: &[u8]) -> (usize, Errno) {
    let mut taken = 0;
    loop {
        match refusal(file.write_all(chunk)) {
            None => taken += 1,
            Some(why) => return (taken, why),
        }
        assert!(taken * chunk.len() < 1 << 30, "more than there is");
    }
}

#[test]
fn a_full_pool_is_told_to_those_who_write_and_keeps_what_was_synced() {
    let Some(bed) = with_home_on("limits-full", 2, SMALLEST) else { return };
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "home", a.text()]);
    bed.ok(&["mount", "home", b.text()]);
    let kept = sample(2 * MIB + 5, 3);
    let mut synced = open(&a.join("synced"));
    synced.write_all(&kept).and_then(|()| synced.sync_all()).expect("there is room");

    // Two files grow in turn, each with what tells its chunks from those of the other.
    let chunks = [sample(CHUNK, 5), sample(CHUNK, 7)];
    let mut files = ["one", "two"].map(|name| open(&a.join(name)));
    let (mut durable, mut written, mut told) = ([0; 2], [0; 2], Vec::new());
    while told.is_empty() {
        for n in [0, 1] {
            match refusal(files[n].write_all(&chunks[n])) {
                None => written[n] += 1,
                Some(why) => told.push(why),
            }
            if written[n] % 8 == 0 || !told.is_empty() {
                match refusal(files[n].sync_all()) {
                    None => durable[n] = written[n],
                    Some(why) => told.push(why),
                }
            }
        }
        assert!(written[0] < 256, "more than there is");
    }
    assert!(told.iter().all(|why| *why == Errno::NOSPC), "{told:?}");
    // It was said, and there is nothing more to say of what was written until then.
    for file in &files {
        assert_eq!((refusal(file.sync_all()), refusal(file.sync_all())), (None, None));
    }
    // Smaller and smaller pieces, until nothing at all is taken; that is said each time.
    for bytes in [65_536, 4096] {
        assert_eq!(fill(&mut files[0], &chunks[0][..bytes]).1, Errno::NOSPC);
    }
    assert_eq!(refusal(files[0].write_all(&chunks[0][..4096])), Some(Errno::NOSPC));
    for (n, name) in ["one", "two"].iter().enumerate() {
        let read = fs::read(b.join(name)).expect("read");
        assert!(durable[n] > 16 && read.len() >= durable[n] * CHUNK, "{name}: {} bytes", read.len());
        assert!(read.chunks(CHUNK).take(durable[n]).all(|chunk| chunk == chunks[n]), "{name}");
    }
    assert!(fs::read(b.join("synced")).expect("read") == kept);
    assert_sound(&bed);

    files.into_iter().for_each(|file| assert_eq!(refusal(close(file)), None, "all was told"));
    fs::remove_file(b.join("one")).expect("a full pool gives back");
    fs::remove_file(b.join("two")).expect("a full pool gives back");
    await_room(&a);
    synced.write_all_at(b"over it", 4096).and_then(|()| synced.sync_all()).expect("there is room");
    assert_eq!(&fs::read(b.join("synced")).expect("read")[4096..4103], b"over it");
    drop(synced);
    bed.ok(&["umount", a.text()]);
    bed.ok(&["umount", b.text()]);
    assert_sound(&bed);
}

/// A mount accepts data for two files, each open three times, and stands still while another mount fills the
/// pool. The first of these data are written back until then, and the shard has not heard of that. For each
/// file this prints the first answer to each handle, and the later ones. It runs in a process of its own: a
/// process that is started from this one closes the files that it inherits. That close would wait for the
/// mount that stands still, and get the error in place of the handle.
const LOSER: &str = "
import errno, os, signal, sys, time
def refusal(call, *args):
    try: call(*args)
    except OSError as error: return errno.errorcode[error.errno]
def fill(size):
    while not (why := refusal(os.write, filler, os.urandom(size))): pass
    return why
one, two, filler, mount = sys.argv[1:]
files = [[os.open(path, os.O_CREAT | os.O_RDWR, 0o644) for _ in range(3)] for path in (one, two)]
filler = os.open(filler, os.O_CREAT | os.O_RDWR, 0o644)
for first, *_ in files: os.write(first, b'1' * 4096), os.fsync(first)
for _ in range(32): os.write(filler, os.urandom(1 << 20)), os.fsync(filler)
for first, *_ in files: assert os.pwrite(first, b'2' * (2 << 20), 4096) == 2 << 20
time.sleep(0.3)
for first, *_ in files: assert os.pwrite(first, b'3' * (1 << 20), 4096 + (2 << 20)) == 1 << 20
os.kill(int(mount), signal.SIGSTOP)
try: full = [fill(1 << 18), fill(4096)]
finally: os.kill(int(mount), signal.SIGCONT)
assert full == ['ENOSPC', 'ENOSPC'], full
for first, second, third in files:
    print(refusal(os.fsync, first), refusal(os.fdatasync, second), refusal(os.close, third), end='; ')
    again = [refusal(call, file) for call in (os.fsync, os.fdatasync, os.close) for file in (first, second)]
    print(*again)
";

/// Whether accepted data were lost and reported, and nothing else was lost. They are not lost if they were
/// written back in between.
fn is_lost_and_told(a: &Folder, b: &Folder, round: u64) -> bool {
    let names = ["one", "two"].map(|name| format!("of-a/{name}-{round}"));
    let paths = [a.join(&names[0]), a.join(&names[1]), b.join("of-b/filler")];
    let mut program = Command::new("python3");
    program.args(["-B", "-c", LOSER]).args(&paths).arg(mount_process_at(a.text()));
    let said = bed::said(program.output().expect("python3 runs"));
    assert_eq!((said.code, said.out.lines().count()), (0, 2), "{said:?}");
    let was_lost = names.iter().zip(said.out.lines()).map(|(name, told)| {
        let read = fs::read(b.join(name)).expect("read");
        assert!(read.len() >= 4096, "what was synced before");
        let sent = [[b'1'; 4096].as_slice(), &[b'2'; 2 * MIB], &[b'3'; MIB]].concat();
        assert!(sent.starts_with(&read), "nothing but what was sent, up to the end");
        // Each handle is told once: by a sync or at its end, whichever comes first.
        match told {
            "ENOSPC ENOSPC ENOSPC; None None None None None None" => read.len() == sent.len() - MIB,
            "None None None; None None None None None None" if read == sent => false,
            // On a very slow machine its session is over before the pool is full.
            "EIO EIO EIO; EIO EIO EIO EIO EIO EIO" => false,
            _ => panic!("{name}: {told}, {} bytes", read.len()),
        }
    });
    let was_lost = was_lost.collect::<Vec<_>>() == [true; 2];
    paths.iter().for_each(|path| fs::remove_file(path).expect("removed"));
    was_lost
}

#[test]
fn accepted_data_that_find_no_room_are_told_once_to_each_handle() {
    let Some(bed) = with_home_on("limits-lost", 2, SMALLEST) else { return };
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "home", a.text()]);
    bed.ok(&["mount", "home", b.text()]);
    // Folders of their own: neither mount waits for the other one.
    fs::create_dir(a.join("of-a")).expect("made");
    fs::create_dir(b.join("of-b")).expect("made");
    let lost = (0..5).any(|round| {
        let lost = is_lost_and_told(&a, &b, round);
        await_room(&b);
        await_room(&a);
        lost
    });
    assert!(lost, "all was durable each time before the pool was full, or what was durable is lost as well");
    // Who takes the mount away is told as well, once.
    bed.weft(&["umount", a.text()]).fails(1, &["cannot unmount", "No space left", "--force"]);
    await_room(&a);
    fs::write(a.join("of-a/after"), b"after").expect("it goes on");
    assert_eq!(fs::read(b.join("of-a/after")).expect("read"), b"after");
    bed.ok(&["umount", a.text()]);
    // Of what the other one had accepted some may be lost too.
    let said = bed.weft(&["umount", b.text()]);
    if said.code != 0 {
        said.fails(1, &["cannot unmount", "No space left", "--force"]);
        bed.ok(&["umount", b.text()]);
    }
    assert_sound(&bed);
}

/// A pool is full, of names at the end, and several programs remove them at a time.
#[test]
fn many_names_are_removed_at_a_time_from_a_full_pool() {
    let Some(bed) = with_home_on("limits-full-names", 2, SMALLEST) else { return };
    let at = Folder::new(&bed, "at");
    bed.ok(&["mount", "home", at.text(), "--timeout", "20s"]);
    // Most of it is data, so that there are not too many names.
    let mut data = open(&at.join("data"));
    assert_eq!(fill(&mut data, &sample(CHUNK, 11)).1, Errno::NOSPC);
    // What was accepted last may have found no room: then the file ends before it.
    let lost = refusal(data.sync_all());
    assert!(matches!(lost, None | Some(Errno::NOSPC)), "{lost:?}");
    let kept = data.metadata().expect("it is there").len();
    data.set_len(kept - ROOM_FOR_NAMES).expect("shorter");
    await_room(&at);
    let path = |thread: usize, n: usize| at.join(&format!("{thread}-{n}"));
    let make = |thread: usize| {
        let refused = |n: &usize| refusal(File::create_new(path(thread, *n))).is_some();
        (0..100_000).find(refused).expect("it gets full")
    };
    let made = on_threads(make);
    // In an order that has nothing to do with that in which they were made; 7919 is a prime.
    let remove = |thread: usize| {
        let mut names = (0..made[thread]).map(|n| n * 7919 % made[thread]);
        names.find_map(|n| refusal(fs::remove_file(path(thread, n))))
    };
    assert_eq!(on_threads(remove), [None; 8], "a full pool gives back: of {made:?} names");
    drop(data);
    await_room(&at);
    bed.ok(&["umount", at.text()]);
    assert_sound(&bed);
}

/// What eight threads return that do the same thing, each with its number.
fn on_threads<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|threads| {
        let work = &work;
        let all: Vec<_> = (0..8).map(|thread| threads.spawn(move || work(thread))).collect();
        all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn names_are_any_bytes_up_to_255() {
    let Some(bed) = with_home("limits-names") else { return };
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "home", a.text()]);
    bed.ok(&["mount", "home", b.text()]);
    let plain: [&[u8]; 8] = [b"a\nb", b"\xff\n", b"\x1b[31mred", b" ", b"\\", b"\"'", b"-rf", b"\xff"];
    let longest = [vec![b'x'; 255], vec![0xff; 255], ["\u{e4}".repeat(127).as_bytes(), b"z"].concat()];
    let mut names: Vec<Vec<u8>> = plain.iter().map(|name| name.to_vec()).chain(longest).collect();
    names.sort();
    let listed = |folder: &Folder| {
        let entries =
            fs::read_dir(&folder.0).expect("a folder").map(|entry| entry.expect("read").file_name());
        let mut names: Vec<Vec<u8>> = entries.map(OsStringExt::into_vec).collect();
        names.sort();
        names
    };
    let path = |folder: &Folder, name: &[u8]| folder.0.join(OsStr::from_bytes(name));
    for name in &names {
        fs::write(path(&a, name), name).expect("written");
    }
    assert!(listed(&b) == names && listed(&a) == names);
    for name in &names {
        assert_eq!(fs::read(path(&b, name)).expect("read"), *name);
    }

    // Nothing of them reaches a terminal as it is, and programs learn the bytes that are no text.
    let shown = bed.ok(&["fs", "ls", "home"]);
    assert_eq!(shown.lines().count(), names.len() + 1, "{shown}");
    assert!(shown.contains("a\\nb") && !shown.contains('\x1b'), "{shown}");
    let json = bed.json(&["fs", "ls", "home"]);
    let files = json["files"].as_array().expect("a list");
    let hex = |name: &[u8]| name.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for name in &names {
        let is_listed = match str::from_utf8(name) {
            Ok(text) => files.iter().any(|file| file["name"] == text && file["name_hex"].is_null()),
            Err(_) => files.iter().any(|file| file["name_hex"] == hex(name)),
        };
        assert!(is_listed, "{name:?}: {json}");
    }

    let too_long = path(&a, &[b'y'; 256]);
    let (here, there) = (path(&a, b"a\nb"), path(&b, b"a\nb"));
    let refused = [
        refusal(File::create(&too_long)),
        refusal(fs::create_dir(&too_long)),
        refusal(symlink("t", &too_long)),
        refusal(fs::hard_link(&here, &too_long)),
        refusal(fs::rename(&here, &too_long)),
        refusal(fs::metadata(&too_long)),
    ];
    assert_eq!(refused, [Some(Errno::NAMETOOLONG); 6]);
    fs::rename(&here, path(&a, b"new\nname")).expect("renamed");
    assert!(!there.exists() && path(&b, b"new\nname").exists());
    listed(&a).iter().for_each(|name| fs::remove_file(path(&b, name)).expect("removed"));
    assert!(listed(&a).is_empty());
    bed.ok(&["umount", a.text()]);
    bed.ok(&["umount", b.text()]);
    assert_sound(&bed);
}

#[test]
fn a_path_is_refused_beyond_4096_bytes_and_a_tree_may_be_deeper() {
    let Some(bed) = with_home("limits-paths") else { return };
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "home", a.text()]);
    bed.ok(&["mount", "home", b.text()]);
    let level = "d".repeat(200);
    let long = |folder: &Folder| (0..25).fold(folder.0.clone(), |path, _| path.join(&level));
    assert!(long(&a).as_os_str().len() > 5000);
    assert_eq!(refusal(fs::create_dir(long(&a))), Some(Errno::NAMETOOLONG));
    assert_eq!(refusal(File::create(long(&a).join("file"))), Some(Errno::NAMETOOLONG));
    assert_eq!(refusal(symlink(long(&a), a.join("link"))), Some(Errno::NAMETOOLONG));

    // Step by step a tree gets as deep: each step is a short path from a folder that is open.
    let below =
        |folder: &File, name: &str| PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()));
    let mut folder = File::open(&a.0).expect("open");
    for _ in 0..25 {
        fs::create_dir(below(&folder, &level)).expect("made");
        folder = File::open(below(&folder, &level)).expect("open");
    }
    fs::write(below(&folder, "file"), b"deep").expect("written");
    folder = File::open(&b.0).expect("open");
    for _ in 0..25 {
        folder = File::open(below(&folder, &level)).expect("the other mount has it");
    }
    assert_eq!(fs::read(below(&folder, "file")).expect("read"), b"deep");
    drop(folder);
    assert_sound(&bed);
    fs::remove_dir_all(b.join(&level)).expect("removed step by step");
    assert_eq!(fs::read_dir(&a.0).expect("a folder").count(), 0);
    bed.ok(&["umount", a.text()]);
    bed.ok(&["umount", b.text()]);
    assert_sound(&bed);
}

#[test]
fn a_file_ends_at_2_to_the_58() {
    const MOST: u64 = 1 << 58;
    let Some(bed) = with_home("limits-size") else { return };
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "home", a.text()]);
    bed.ok(&["mount", "home", b.text()]);
    let size = |folder: &Folder| fs::metadata(folder.join("big")).expect("there").len();
    let file = open(&a.join("big"));
    for beyond in [i64::MAX as u64, MOST + 1] {
        assert_eq!(refusal(file.set_len(beyond)), Some(Errno::FBIG), "{beyond}");
    }
    for beyond in [i64::MAX as u64 - 1, MOST] {
        assert_eq!(refusal(file.write_all_at(b"x", beyond)), Some(Errno::FBIG), "{beyond}");
    }
    assert_eq!((size(&a), size(&b)), (0, 0));
    file.set_len(MOST).expect("it is as long as a file may be");
    assert_eq!((size(&a), size(&b)), (MOST, MOST));

    let (before, last) = (used(&bed), vec![7; 4 * MIB]);
    file.write_all_at(&last, MOST - last.len() as u64).expect("within");
    file.write_all_at(b"e", MOST - 1).expect("the last byte");
    file.sync_all().expect("durable");
    wait_until("it takes room", || used(&bed) > before + 4 * MIB as u64);
    let other = File::open(b.join("big")).expect("open");
    let mut end = [9; 4];
    assert_eq!(other.read_at(&mut end, MOST - 3).expect("read"), 3);
    assert_eq!((end, size(&b)), ([7, 7, b'e', 9], MOST));
    let mut hole = [9; 4096];
    other.read_exact_at(&mut hole, MOST / 2).expect("read");
    assert_eq!(hole, [0; 4096]);
    drop((file, other));

    fs::remove_file(b.join("big")).expect("removed");
    wait_until("the space is given back", || used(&bed) < before + MIB as u64);
    bed.ok(&["umount", a.text()]);
    bed.ok(&["umount", b.text()]);
    assert_sound(&bed);
}

#[test]
fn of_two_folders_that_are_renamed_into_each_other_one_stays() {
    let Some(bed) = with_home("limits-renames") else { return };
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "home", a.text()]);
    bed.ok(&["mount", "home", b.text()]);
    for round in 0..60 {
        // In every second round they are moved to further down in each other.
        let below = ["", "/1/2"][round % 2];
        let (one, two) = (format!("{round}-p/a"), format!("{round}-q/b"));
        fs::create_dir_all(a.join(&format!("{one}{below}"))).expect("made");
        fs::create_dir_all(b.join(&format!("{two}{below}"))).expect("made");
        let both = Barrier::new(2);
        let rename = |folder: &Folder, from: &str, into: &str| {
            let (from, to) = (folder.join(from), folder.join(&format!("{into}{below}/x")));
            both.wait();
            refusal(fs::rename(from, to))
        };
        let outcomes = std::thread::scope(|threads| {
            let other = threads.spawn(|| rename(&b, &two, &one));
            (rename(&a, &one, &two), other.join().expect("no panic"))
        });
        let stays = match outcomes {
            (None, Some(Errno::INVAL | Errno::NOENT)) => &two,
            (Some(Errno::INVAL | Errno::NOENT), None) => &one,
            other => panic!("round {round}: {other:?}"),
        };
        for folder in [&a, &b] {
            let is_there = [&one, &two].map(|path| folder.join(path).exists());
            assert_eq!(is_there, [&one, &two].map(|path| path == stays), "round {round}");
            assert!(folder.join(&format!("{stays}{below}/x")).is_dir(), "round {round}");
        }
    }
    assert_sound(&bed);
    for entry in fs::read_dir(&a.0).expect("a folder") {
        fs::remove_dir_all(entry.expect("read").path()).expect("there is no loop");
    }
    bed.ok(&["umount", a.text()]);
    bed.ok(&["umount", b.text()]);
    assert_sound(&bed);
}

/// Makes files, each with its number in it, and has them open until a line comes. It is a process of its own,
/// because each process that is started from one with so many files closes them all.
const HOLDER: &str = "
import os, sys
files = [os.open(f'{sys.argv[1]}/{n}', os.O_CREAT | os.O_RDWR, 0o644) for n in range(int(sys.argv[2]))]
for n in range(0, len(files), 100): os.write(files[n], b'%d' % n)
print('open', flush=True)
sys.stdin.readline()
assert os.pread(files[50], 100, 0) == b'by the other', 'a file is not what the other mount has written'
for file in files: os.close(file)
print('closed', flush=True)
";

#[test]
fn a_program_has_thousands_of_files_open() {
    let Some(bed) = with_home_on("limits-open", 3, "1GiB") else { return };
    let (a, b) = (Folder::new(&bed, "a"), Folder::new(&bed, "b"));
    bed.ok(&["mount", "home", a.text()]);
    bed.ok(&["mount", "home", b.text()]);
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let files = most.min(4_000) - 100;
    fs::create_dir(a.join("many")).expect("made");
    let at = a.join("many");
    let mut holder = Command::new("sh")
        .args(["-c", "ulimit -n $(ulimit -H -n); exec python3 -B -c \"$@\"", "sh", HOLDER])
        .args([at.as_os_str(), OsStr::new(&files.to_string())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map(bed::Running)
        .expect("sh runs");
    let mut said = holder.lines();
    assert_eq!(said.next().as_deref(), Some("open"), "of {files} files");
    let used = bed.json(&["fs", "clients", "home"]);
    let clients = used["clients"].as_array().expect("a list").iter();
    let open: u64 = clients.map(|client| client["writable"].as_u64().expect("a number")).sum();
    assert!(open >= files, "{open} of {files} are known to be open: {used}");

    assert_eq!(fs::read_dir(b.join("many")).expect("a folder").count() as u64, files);
    for n in (0..files).step_by(500) {
        assert_eq!(fs::read_to_string(b.join(&format!("many/{n}"))).expect("read"), n.to_string());
    }
    fs::write(b.join("many/50"), b"by the other").expect("written");
    holder.0.stdin.take().expect("it was asked for").write_all(b"\n").expect("it reads");
    assert_eq!(said.next().as_deref(), Some("closed"));
    assert_eq!(holder.finish().code, 0);
    assert_sound(&bed);
    fs::remove_dir_all(b.join("many")).expect("removed");
    bed.ok(&["umount", a.text()]);
    bed.ok(&["umount", b.text()]);
    assert_sound(&bed);
}

/// Insists that nothing is mounted there, that no process is left, and that the fabric knows of no mount.
fn assert_nothing_is_left(bed: &Bed, at: &Folder) {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("read");
    assert!(!mounts.contains(at.text()), "{mounts}");
    assert!(!is_mounting(at), "a process is left");
    wait_until("no session is left", || {
        bed.json(&["fs", "clients", "home"])["clients"].as_array().is_some_and(Vec::is_empty)
    });
}

#[test]
fn a_machine_that_cannot_mount_and_a_user_who_must_not_are_told_so() {
    let Some(bed) = with_home("limits-rights") else { return };
    let at = Folder::new(&bed, "at");
    let words = ["mount", "home", at.text()];
    // What is mounted here is seen by this command only.
    let without = |covered: &str| {
        let script = format!("mount --bind {covered} /dev/fuse && exec \"$0\" \"$@\"");
        bed.spawn_in(&["unshare", "-m", "sh", "-c", &script], &words).finish()
    };
    without("/dev/null").fails(1, &["cannot serve a mount", at.text(), "/dev/fuse", "modprobe fuse"]);
    fs::write(bed.path("no-device"), b"").expect("written");
    let no_device = bed.path("no-device");
    without(no_device.to_str().expect("plain")).fails(1, &["cannot serve a mount", "/dev/fuse"]);
    assert_nothing_is_left(&bed, &at);

    // Where the program lies others may not reach it.
    let program = bed.path("weft");
    fs::copy(&**bed::WEFT, &program).expect("copied");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
    let as_nobody = |words: &[&str]| -> Said {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&program).args(words);
        command.current_dir(&bed.dir).env("WEFT_FABRIC", bed.fabric()).env("NO_COLOR", "1");
        bed::said(command.output().expect("setpriv runs"))
    };
    let hint = "without root it takes fusermount3 (package fuse3), and a folder of your own";
    as_nobody(&words).fails(1, &["cannot serve a mount", hint]);
    as_nobody(&[&words[..], &["--foreground"]].concat()).fails(1, &["cannot serve a mount", hint]);
    assert_nothing_is_left(&bed, &at);
    let plain = bed.path("plain");
    fs::write(&plain, b"").expect("written");
    bed.weft(&["mount", "home", "plain"]).fails(1, &["Not a directory", "name a folder"]);
    assert_eq!(fs::read(&plain).expect("read"), b"");
    bed.ok(&words);
    as_nobody(&["umount", at.text()]).fails(1, &["cannot unmount", "needs root"]);
    as_nobody(&["umount", at.text(), "--force"]).fails(1, &["cannot unmount", "needs root"]);
    fs::write(at.join("file"), b"it is still there").expect("written");
    bed.ok(&["umount", at.text()]);
    wait_until("its process is gone", || !is_mounting(&at));
    assert_nothing_is_left(&bed, &at);
}

/// Whether a process serves a mount there.
fn is_mounting(at: &Folder) -> bool {
    let found = Command::new("pgrep").args(["-f", &format!("mount home {}", at.text())]).output();
    !found.expect("pgrep runs").stdout.is_empty()
}

#[test]
fn calls_end_while_the_fabric_is_stopped_and_work_when_it_is_back() {
    let Some(bed) = with_home("limits-timeout") else { return };
    let at = Folder::new(&bed, "at");
    bed.ok(&["mount", "home", at.text(), "--timeout", "2s"]);
    let content = sample(MIB, 3);
    fs::write(at.join("file"), &content).expect("written");
    File::open(at.join("file")).and_then(|file| file.sync_all()).expect("durable");
    for round in 0..2 {
        bed.ok(&["down"]);
        let refused = [
            refusal(File::create(at.join("new"))),
            refusal(fs::create_dir(at.join("folder"))),
            refusal(fs::remove_file(at.join("file"))),
            refusal(fs::rename(at.join("file"), at.join("moved"))),
        ];
        assert_eq!(refused, [Some(Errno::TIMEDOUT); 4], "round {round}");
        bed.ok(&["up", "--detach"]);
        wait_until("it is used as before", || fs::write(at.join("again"), b"again").is_ok());
        assert!(fs::read(at.join("file")).expect("read") == content);
    }
    bed.ok(&["umount", at.text()]);
    assert_sound(&bed);
}

#[test]
fn a_mount_in_the_foreground_ends_with_its_signal() {
    let Some(bed) = with_home("limits-foreground") else { return };
    let (at, other) = (Folder::new(&bed, "at"), Folder::new(&bed, "other"));
    bed.ok(&["mount", "home", other.text()]);
    let content = sample(3 * MIB, 3);
    for (signal, name) in [("TERM", "one"), ("INT", "two"), ("TERM", "open")] {
        let mut mount = bed.spawn(&["mount", "home", at.text(), "--foreground"]);
        mount.await_line("is mounted at");
        let mut file = File::create(at.join(name)).expect("made");
        file.write_all(&content).expect("written");
        // What is written is there, though it was not synced; what is open fails from then on.
        let open = if name == "open" { Some(file) } else { None };
        assert_eq!(mount.end(signal), Some(0), "{name}");
        assert_eq!(fs::read_dir(&at.0).expect("a folder").count(), 0, "{name}");
        assert!(fs::read(other.join(name)).expect("read") == content, "{name}");
        if let Some(mut file) = open {
            assert!(file.write_all(b"?").is_err() && file.sync_all().is_err());
        }
    }
    bed.ok(&["umount", other.text()]);
    assert_sound(&bed);
}
