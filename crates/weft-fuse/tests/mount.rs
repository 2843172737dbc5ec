//! A tree in memory, really mounted, as programs see it. Skipped where there is no `/dev/fuse`.

mod memory;

use memory::{Memory, Probe};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use std::{env, process, thread};
use weft_fuse::{MountOptions, Session, Unmount, mount_at, unmount, weft_mounts};

/// How long a test may take before its mount is ended.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that is removed with what is in it, but never through a mount.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = env::temp_dir().join(format!("weft-fuse-{name}-{}", process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(fs::canonicalize(path).expect("a folder"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if mount_at(&self.0).is_ok_and(|mount| mount.is_some()) {
            let _ = unmount(&self.0, Unmount::Now);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

fn can_mount() -> bool {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &device {
        eprintln!("skipped: cannot open /dev/fuse: {error}");
    }
    device.is_ok()
}

/// The kernel's switch for FUSE over io_uring.
const LANES_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// How many tests have the switch on, what it was before, and the lock that keeps other processes from it.
static LANES_OFFERED: Mutex<(usize, String, Option<File>)> = Mutex::new((0, String::new(), None));

/// The kernel offers FUSE over io_uring as long as this is there.
struct LanesOffered;

impl LanesOffered {
    /// None if the kernel has no such thing, or this user may not switch it on.
    fn new() -> Option<LanesOffered> {
        let mut offered = LANES_OFFERED.lock().expect("no panic while locked");
        if offered.0 == 0 {
            let lock = File::create(env::temp_dir().join("weft-enable-uring.lock")).ok()?;
            lock.lock().ok()?;
            offered.1 = fs::read_to_string(LANES_SWITCH).ok()?;
            offered.2 = Some(lock);
        }
        fs::write(LANES_SWITCH, "Y").ok()?;
        offered.0 += 1;
        Some(LanesOffered)
    }
}

impl Drop for LanesOffered {
    fn drop(&mut self) {
        let mut offered = LANES_OFFERED.lock().expect("no panic while locked");
        offered.0 -= 1;
        if offered.0 == 0 {
            let _ = fs::write(LANES_SWITCH, offered.1.trim());
            offered.2 = None;
        }
    }
}

/// Mounts a tree on this thread while `client` uses it on another thread; then once more over io_uring, if
/// the kernel has that.
fn mounted(name: &str, client: impl Fn(&Path, &Probe) + Copy + Send + 'static) {
    if !can_mount() {
        return;
    }
    mounted_so(name, false, client);
    match LanesOffered::new() {
        Some(_offered) => mounted_so(name, true, client),
        None => eprintln!("skipped: the kernel does not offer FUSE over io_uring"),
    }
}

fn mounted_so(name: &str, over_io_uring: bool, client: impl Fn(&Path, &Probe) + Send + 'static) {
    let folder = Folder::new(name);
    let (path, probe) = (folder.0.clone(), Arc::new(Probe::default()));
    let seen = probe.clone();
    let (ended, watched) = channel::<()>();
    let stuck = path.clone();
    let watchdog = thread::spawn(move || {
        let is_late = watched.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
        is_late.then(|| unmount(&stuck, Unmount::Now))
    });
    let served = weft_rt::block_on(async move {
        let tree = Rc::new(Memory::new(seen.clone()));
        let new = MountOptions::new("memory");
        let options = MountOptions { readahead_bytes: Some(1 << 20), over_io_uring, ..new };
        let session = Session::mount(&path, &options, tree).await.expect("a mount");
        let at = path.clone();
        let using = thread::spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| client(&at, &seen)));
            if mount_at(&at).is_ok_and(|mount| mount.is_some()) {
                let how = if outcome.is_ok() { Unmount::Idle } else { Unmount::Now };
                let ended = unmount(&at, how).or_else(|_| unmount(&at, Unmount::Now));
                ended.expect("the mount ends");
            }
            outcome
        });
        (session.run().await, using.join())
    });
    drop(ended);
    assert!(watchdog.join().expect("no panic").is_none(), "a test was stuck");
    let (served, used) = served.expect("a ring");
    used.expect("the client's panics are caught").unwrap_or_else(|panic| resume_unwind(panic));
    served.expect("the session ends in order");
    assert_eq!(mount_at(&folder.0).expect("a list of mounts"), None);
    let opened = probe.opened.load(Ordering::Relaxed);
    assert_eq!(probe.unaligned_writes.load(Ordering::Relaxed), 0);
    assert!(probe.released.load(Ordering::Relaxed) <= opened);
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().expect("an error of the system")
}

/// Waits until a counter has come so far: what nobody waits for comes late.
fn reaches(counter: &AtomicU64, least: u64) {
    let began = Instant::now();
    while counter.load(Ordering::Relaxed) < least {
        assert!(began.elapsed() < Duration::from_secs(10), "{} of {least}", counter.load(Ordering::Relaxed));
        thread::sleep(Duration::from_millis(5));
    }
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 4096) as u8).collect()
}

#[test]
fn files_are_written_read_renamed_linked_and_cut() {
    mounted("files", |at, probe| {
        let data = bytes(3 << 20);
        fs::write(at.join("a"), &data).unwrap();
        assert!(fs::read(at.join("a")).unwrap() == data);
        assert!(probe.largest_write.load(Ordering::Relaxed) > 128 << 10, "large writes come whole");
        fs::rename(at.join("a"), at.join("b")).unwrap();
        assert_eq!(fs::metadata(at.join("a")).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::hard_link(at.join("b"), at.join("c")).unwrap();
        symlink("c", at.join("s")).unwrap();
        assert_eq!(fs::read_link(at.join("s")).unwrap(), Path::new("c"));
        assert!(fs::read(at.join("s")).unwrap() == data);
        let meta = fs::metadata(at.join("b")).unwrap();
        assert_eq!((meta.nlink(), meta.size(), meta.blksize(), meta.blocks()), (2, 3 << 20, 4096, 6144));
        OpenOptions::new().write(true).open(at.join("b")).unwrap().set_len(5000).unwrap();
        assert!(fs::read(at.join("c")).unwrap() == data[..5000]);
        let mut file = OpenOptions::new().append(true).open(at.join("b")).unwrap();
        file.write_all(b"end").unwrap();
        file.sync_all().unwrap();
        assert_eq!(probe.synced.load(Ordering::Relaxed), 1);
        assert_eq!(fs::read(at.join("c")).unwrap()[4998..], [data[4998], data[4999], b'e', b'n', b'd']);
        drop(file);
        fs::write(at.join("b"), b"short").unwrap();
        assert_eq!(fs::read(at.join("b")).unwrap(), b"short", "an open has removed what was there");
        fs::write(at.join("x"), b"x").unwrap();
        let rename = |flags| rustix::fs::renameat_with(CWD, at.join("b"), CWD, at.join("x"), flags);
        assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
        assert_eq!(rename(RenameFlags::WHITEOUT), Err(Errno::INVAL));
        rename(RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read(at.join("b")).unwrap(), b"x");
        rename(RenameFlags::empty()).unwrap();
        assert_eq!(fs::read(at.join("x")).unwrap(), b"x");
        reaches(&probe.released, probe.opened.load(Ordering::Relaxed));
        assert!(probe.flushed.load(Ordering::Relaxed) >= probe.opened.load(Ordering::Relaxed));
    });
}

#[test]
fn directories_of_thousands_of_entries_are_listed_whole() {
    mounted("list", |at, probe| {
        let folder = at.join("folder");
        fs::create_dir(&folder).unwrap();
        assert!(fs::read_dir(&folder).unwrap().next().is_none());
        let names: BTreeSet<String> =
            (0..3000).map(|i| format!("entry-{i}-{}", "x".repeat(i % 40))).collect();
        names.iter().for_each(|name| drop(File::create(folder.join(name)).unwrap()));
        let listed = |with_metadata: bool| -> Vec<String> {
            let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
            let name = |entry: fs::DirEntry| {
                assert!(entry.file_type().unwrap().is_file());
                assert!(!with_metadata || entry.metadata().unwrap().is_file());
                entry.file_name().into_string().unwrap()
            };
            entries.map(name).collect()
        };
        for with_metadata in [false, true, false] {
            let found = listed(with_metadata);
            assert_eq!(found.len(), 3000);
            assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), names);
        }
        assert_eq!(fs::read_dir(at).unwrap().count(), 1);
        assert_eq!(errno(fs::remove_dir(&folder).unwrap_err()), libc::ENOTEMPTY);
        fs::remove_dir_all(&folder).unwrap();
        assert!(!folder.exists());
        // Only if what listings gave was counted as the kernel does.
        reaches(&probe.forgotten, 3001);
    });
}

#[test]
fn attributes_are_kept_and_set_id_bits_removed() {
    mounted("attributes", |at, _| {
        let file = at.join("file");
        fs::write(&file, b"x").unwrap();
        let mode = || fs::metadata(&file).unwrap().mode() & 0o7777;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o6755)).unwrap();
        assert_eq!(mode(), 0o6755);
        std::os::unix::fs::chown(&file, Some(7), Some(8)).unwrap();
        let meta = fs::metadata(&file).unwrap();
        assert_eq!((meta.uid(), meta.gid(), mode()), (7, 8, 0o755));
        let old = SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
        File::open(&file).unwrap().set_modified(old).unwrap();
        let meta = fs::metadata(&file).unwrap();
        assert_eq!((meta.modified().unwrap(), meta.mtime()), (old, -2));
        assert!(meta.created().unwrap().elapsed().unwrap() < PATIENCE, "statx says when it was made");
        rustix::fs::mknodat(CWD, at.join("pipe"), FileType::Fifo, Mode::from(0o600), 0).unwrap();
        assert_eq!(fs::metadata(at.join("pipe")).unwrap().mode(), libc::S_IFIFO | 0o600);
        let device = rustix::fs::makedev(0x123, 0x45678);
        rustix::fs::mknodat(CWD, at.join("d"), FileType::BlockDevice, Mode::from(0o600), device).unwrap();
        assert_eq!(fs::metadata(at.join("d")).unwrap().rdev(), device);
        let device = fs::metadata(at).unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let readahead = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"));
        assert_eq!(readahead.unwrap().trim(), "1024");
        let space = rustix::fs::statvfs(at).unwrap();
        assert_eq!((space.f_bsize, space.f_blocks, space.f_bfree, space.f_bavail), (4096, 1000, 700, 600));
        assert_eq!((space.f_files, space.f_ffree, space.f_namemax), (50, 40, 255));
        let long = "x".repeat(256);
        assert_eq!(errno(File::create(at.join(&long)).unwrap_err()), libc::ENAMETOOLONG);
        File::create(at.join(&long[1..])).unwrap();
    });
}

#[test]
fn other_users_are_let_in_as_far_as_permissions_say() {
    mounted("users", |at, _| {
        let run = |script: &str| {
            let shell = Command::new("sh")
                .arg("-c")
                .arg(script)
                .current_dir("/")
                .env("D", at)
                .uid(1234)
                .gid(99)
                .output();
            shell.unwrap().status.success()
        };
        fs::write(at.join("secret"), b"x").unwrap();
        fs::set_permissions(at.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!run("cat $D/secret") && !run("touch $D/new"));
        fs::create_dir(at.join("open")).unwrap();
        fs::set_permissions(at.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(run("umask 027; mkdir $D/open/folder && echo x > $D/open/new && chmod 640 $D/open/new"));
        let meta = fs::metadata(at.join("open/folder")).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1234, 99, 0o750));
        assert_eq!(fs::metadata(at.join("open/new")).unwrap().mode() & 0o7777, 0o640);
        let tool = at.join("open/tool");
        let writes = [
            "echo x >> $F",
            "echo x > $F",
            "truncate -s 1 $F",
            "dd if=/dev/zero of=$F bs=4k count=1 oflag=direct",
        ];
        for write in writes {
            fs::write(&tool, b"program").unwrap();
            fs::set_permissions(&tool, fs::Permissions::from_mode(0o6777)).unwrap();
            assert!(run(&format!("F=$D/open/tool; {write}")), "{write}");
            assert_eq!(fs::metadata(&tool).unwrap().mode() & 0o7777, 0o777, "{write}");
        }
    });
}

#[test]
fn many_threads_at_once_find_what_each_has_written() {
    mounted("crowd", |at, probe| {
        thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || {
                    for round in 0..100 {
                        let suffix = if round % 2 == 0 { ".direct" } else { "" };
                        let path = at.join(format!("{thread}-{round}{suffix}"));
                        let data = bytes(1 + round * 1777);
                        fs::write(&path, &data).unwrap();
                        assert!(fs::read(&path).unwrap() == data);
                        assert!(fs::read_dir(at).unwrap().count() >= 1);
                        fs::remove_file(&path).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(at).unwrap().count(), 0);
        reaches(&probe.released, probe.opened.load(Ordering::Relaxed));
        reaches(&probe.forgotten, 800);
    });
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    mounted("xattr", |at, _| {
        let file = at.join("file");
        fs::write(&file, b"x").unwrap();
        let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&file, name, value, flags);
        let mut room = vec![0; 65_536];
        set("user.a", b"abc", XattrFlags::CREATE).unwrap();
        assert_eq!(set("user.a", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
        assert_eq!(set("user.b", b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
        set("user.big", &bytes(65_536), XattrFlags::empty()).unwrap();
        assert_eq!(rustix::fs::getxattr(&file, "user.a", &mut room).unwrap(), 3);
        assert_eq!(room[..3], *b"abc");
        assert_eq!(rustix::fs::getxattr(&file, "user.a", &mut [0; 2]), Err(Errno::RANGE));
        assert_eq!(rustix::fs::getxattr(&file, "user.big", &mut room).unwrap(), 65_536);
        assert!(room == bytes(65_536));
        assert_eq!(rustix::fs::getxattr(&file, "user.none", &mut room), Err(Errno::NODATA));
        let length = rustix::fs::listxattr(&file, &mut room).unwrap();
        assert_eq!(room[..length], *b"user.a\0user.big\0");
        assert_eq!(rustix::fs::listxattr_query(&file).unwrap(), length, "the size alone");
        assert_eq!(rustix::fs::listxattr(&file, &mut [0; 4]), Err(Errno::RANGE));
        rustix::fs::removexattr(&file, "user.a").unwrap();
        assert_eq!(rustix::fs::removexattr(&file, "user.a"), Err(Errno::NODATA));
    });
}

#[test]
fn files_without_a_name_live_while_they_are_open() {
    mounted("unnamed", |at, probe| {
        let mut file = File::create_new(at.join("a")).unwrap();
        fs::remove_file(at.join("a")).unwrap();
        file.write_all(b"still there").unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        let flags = OFlags::RDWR | OFlags::TMPFILE;
        let unnamed = rustix::fs::open(at, flags, Mode::from(0o640)).unwrap();
        assert_eq!(rustix::io::write(&unnamed, b"unnamed"), Ok(7));
        let own = format!("/proc/self/fd/{}", unnamed.as_raw_fd());
        rustix::fs::linkat(CWD, own, CWD, at.join("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
        assert_eq!(fs::read(at.join("named")).unwrap(), b"unnamed");
        assert_eq!(fs::metadata(at.join("named")).unwrap().mode() & 0o7777, 0o640);
        let forgotten = probe.forgotten.load(Ordering::Relaxed);
        drop(file);
        reaches(&probe.forgotten, forgotten + 1);
    });
}

#[test]
fn a_file_that_somebody_else_made_meanwhile_is_opened() {
    mounted("late", |at, _| {
        // The kernel remembers for a second that it was not there.
        assert!(!at.join("late").exists());
        let open = |options: &mut OpenOptions| options.write(true).open(at.join("late"));
        assert_eq!(errno(open(OpenOptions::new().create_new(true)).unwrap_err()), libc::EEXIST);
        open(OpenOptions::new().create(true)).unwrap();
    });
    mounted("late-2", |at, _| {
        assert!(!at.join("late").exists());
        OpenOptions::new().write(true).create(true).truncate(false).open(at.join("late")).unwrap();
    });
}

/// A handle of an inode (`struct file_handle`), as exports make it: type 0x81 is inode and generation.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    words: [u32; 3],
}

#[test]
fn handles_of_exports_lead_to_what_the_kernel_does_not_know() {
    mounted("export", |at, _| {
        let mount = File::open(at).unwrap();
        let open = |inode: u32| {
            let mut handle = Handle { bytes: 12, kind: 0x81, words: [0, inode, 0] };
            // SAFETY: the handle is laid out as the kernel's, with as many bytes as it says.
            let fd = unsafe {
                libc::syscall(
                    libc::SYS_open_by_handle_at,
                    mount.as_raw_fd(),
                    &raw mut handle,
                    libc::O_RDONLY | libc::O_CLOEXEC,
                )
            };
            // SAFETY: the kernel has just made this descriptor for us.
            (fd >= 0).then(|| unsafe { File::from_raw_fd(fd as i32) }).ok_or_else(io::Error::last_os_error)
        };
        assert!(!at.join("late").exists() && !at.join("late-folder").exists());
        // The tree made these, and the kernel has heard of neither.
        let (file, folder) = (open(2).unwrap(), open(3).unwrap());
        assert_eq!(file.metadata().unwrap().ino(), 2);
        assert!(folder.metadata().unwrap().is_dir());
        assert_eq!(
            fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd())).unwrap(),
            at.join("late-folder")
        );
        assert_eq!(errno(open(4).unwrap_err()), libc::ESTALE);
    });
}

/// Memory at a page's beginning.
#[repr(align(4096))]
struct Page([u8; 8192]);

#[test]
fn files_are_written_directly_mapped_and_allocated() {
    mounted("direct", |at, _| {
        for (name, flags) in [("a", libc::O_DIRECT), ("b.direct", 0)] {
            let mut page = Box::new(Page([0; 8192]));
            page.0.copy_from_slice(&bytes(8192));
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).custom_flags(flags);
            let file = options.open(at.join(name)).unwrap();
            file.write_all_at(&page.0, 0).unwrap();
            page.0.fill(0);
            file.read_exact_at(&mut page.0[..4096], 4096).unwrap();
            assert!(page.0[..4096] == bytes(8192)[4096..]);
            map(&file);
            file.sync_all().unwrap();
            assert_eq!(fs::read(at.join(name)).unwrap()[..6], *b"mapped");
        }
        let mut file = OpenOptions::new().read(true).write(true).open(at.join("a")).unwrap();
        let allocate = |flags, offset, length| rustix::fs::fallocate(&file, flags, offset, length);
        allocate(FallocateFlags::empty(), 0, 10_000).unwrap();
        allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096).unwrap();
        assert_eq!(allocate(FallocateFlags::ZERO_RANGE, 0, 1), Err(Errno::OPNOTSUPP));
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(5)), Ok(10_000));
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(20_000)), Err(Errno::NXIO));
        let mut data = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut data).unwrap();
        assert_eq!((data.len(), data[0], data[5000]), (10_000, 0, bytes(8192)[5000]));
    });
}

/// Writes through a mapping.
fn map(file: &File) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of the file's first page, which nobody else of this process uses; it is taken
    // away before the function ends.
    unsafe {
        let start = mmap(std::ptr::null_mut(), 4096, access, MapFlags::SHARED, file, 0).unwrap();
        std::ptr::copy_nonoverlapping(b"mapped".as_ptr(), start.cast(), 6);
        msync(start, 4096, MsyncFlags::SYNC).unwrap();
        munmap(start, 4096).unwrap();
    }
}

#[test]
fn a_killed_reader_ends_and_a_forced_end_waits_for_nobody() {
    mounted("kill", |at, _| {
        fs::write(at.join("hang"), b"never read").unwrap();
        // Direct, because the kernel lets go by itself of who waits for its own readahead.
        let file = format!("if={}", at.join("hang").display());
        let args = [&*file, "of=/dev/null", "iflag=direct", "status=none"];
        let read = || Command::new("dd").args(args).stderr(Stdio::null()).spawn().unwrap();
        let (mut killed, mut other) = (read(), read());
        thread::sleep(Duration::from_millis(300));
        let began = Instant::now();
        killed.kill().unwrap();
        killed.wait().unwrap();
        assert!(began.elapsed() < Duration::from_secs(10));
        assert!(other.try_wait().unwrap().is_none(), "it waits for its bytes");
        assert_eq!(errno(unmount(at, Unmount::Idle).unwrap_err()), libc::EBUSY);
        unmount(at, Unmount::Now).unwrap();
        assert!(!other.wait().unwrap().success());
    });
}

#[test]
fn an_aborted_connection_leaves_no_mount() {
    mounted("aborted", |at, _| {
        let minor = rustix::fs::minor(fs::metadata(at).unwrap().dev());
        let connection = Path::new("/sys/fs/fuse/connections").join(minor.to_string());
        if !connection.exists() {
            return eprintln!("skipped: no fusectl at {}", connection.display());
        }
        fs::write(connection.join("abort"), b"1").unwrap();
        let began = Instant::now();
        while mount_at(at).unwrap().is_some() {
            assert!(began.elapsed() < Duration::from_secs(10));
            thread::sleep(Duration::from_millis(5));
        }
    });
}

#[test]
fn a_session_that_is_dropped_leaves_no_mount() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new("dropped");
    let path = folder.0.clone();
    weft_rt::block_on(async move {
        let tree = Rc::new(Memory::new(Arc::default()));
        let link = path.with_extension("link");
        symlink(&path, &link).unwrap();
        let session = Session::mount(&link, &MountOptions::new("memory"), tree).await.expect("a mount");
        assert_eq!(mount_at(&link).unwrap().expect("a mount").path, path);
        fs::remove_file(&link).unwrap();
        drop(session);
        assert_eq!(mount_at(&path).unwrap(), None);
    })
    .expect("a ring");
}

#[test]
fn a_dead_mount_is_found_and_can_be_ended() {
    const ABANDON: &str = "WEFT_FUSE_TEST_ABANDON";
    if let Some(path) = env::var_os(ABANDON) {
        weft_rt::block_on(async move {
            let tree = Rc::new(Memory::new(Arc::default()));
            let mounted = Session::mount(Path::new(&path), &MountOptions::new("a name"), tree).await;
            mounted.map(|_session| process::exit(0)).map_err(drop).expect("a mount");
        })
        .expect("a ring");
    }
    if !can_mount() {
        return;
    }
    let folder = Folder::new("dead");
    let mut child = Command::new(env::current_exe().unwrap());
    child.args(["--exact", "a_dead_mount_is_found_and_can_be_ended"]).env(ABANDON, &folder.0);
    assert!(child.output().unwrap().status.success());
    let mount = mount_at(&folder.0).unwrap().expect("a mount");
    assert_eq!((&mount.path, &*mount.name), (&folder.0, "a name"));
    assert!(mount.is_dead());
    assert!(weft_mounts().unwrap().contains(&mount));
    unmount(&folder.0, Unmount::Now).unwrap();
    assert_eq!(mount_at(&folder.0).unwrap(), None);
    assert_eq!(errno(unmount(&folder.0, Unmount::Now).unwrap_err()), libc::EINVAL);
}

#[test]
fn locks_are_asked_of_the_tree() {
    mounted("locks", |at, probe| {
        let path = at.join("locked");
        let file = File::create_new(&path).unwrap();
        let lock = |file: &File, command, kind| {
            let lock = libc::flock { l_type: kind as i16, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
            // SAFETY: the descriptor is open, and the struct is read only.
            match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } {
                0 => Ok(()),
                _ => Err(errno(io::Error::last_os_error())),
            }
        };
        let (first, second) = (File::open(&path).unwrap(), File::options().write(true).open(&path).unwrap());
        // Those of open files are seen by others of the same process.
        assert_eq!(lock(&first, libc::F_OFD_SETLK, libc::F_RDLCK), Ok(()));
        assert_eq!(lock(&second, libc::F_OFD_SETLK, libc::F_WRLCK), Err(libc::EAGAIN));
        // Whole files are of another family.
        second.try_lock().unwrap();
        assert!(first.try_lock_shared().is_err());
        let before = probe.released.load(Ordering::Relaxed);
        drop(first);
        reaches(&probe.released, before + 1);
        assert_eq!(lock(&second, libc::F_OFD_SETLK, libc::F_WRLCK), Ok(()));
        // Who waits gets it when it is given back.
        let waits = thread::spawn({
            let file = file.try_clone().unwrap();
            move || lock(&file, libc::F_OFD_SETLKW, libc::F_WRLCK)
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished());
        assert_eq!(lock(&second, libc::F_OFD_SETLK, libc::F_UNLCK), Ok(()));
        assert_eq!(waits.join().unwrap(), Ok(()));
    });
}

#[test]
fn programs_that_wait_for_locks_leave_lanes_to_others() {
    let Some(_offered) = LanesOffered::new().filter(|_| can_mount()) else {
        eprintln!("skipped: the kernel does not offer FUSE over io_uring");
        return;
    };
    mounted_so("lock-waits", true, |at, _| {
        let path = at.join("locked");
        let holder = File::create_new(&path).unwrap();
        holder.lock().unwrap();
        let (sender, outcomes) = channel();
        let waiting: Vec<_> = (0..80)
            .map(|_| {
                let (path, sender) = (path.clone(), sender.clone());
                thread::spawn(move || {
                    let file = File::open(path).unwrap();
                    let outcome = file.lock().map_err(errno);
                    sender.send(outcome).unwrap();
                })
            })
            .collect();
        // A processor has 64 lanes at most, and half of them can wait.
        for _ in 0..80 - 32 {
            assert_eq!(outcomes.recv_timeout(Duration::from_secs(20)), Ok(Err(libc::ENOLCK)));
        }
        fs::write(at.join("other"), "goes on").unwrap();
        assert_eq!(fs::read(at.join("other")).unwrap(), b"goes on");
        holder.unlock().unwrap();
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(outcomes.try_iter().filter(Result::is_ok).count() > 0, "who waits gets the lock");
    });
}
