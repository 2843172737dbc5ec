//! The real backend: files, sockets, timers and threads of this machine.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::{join_all, oneshot};
use weft_rt::*;
use weft_types::DeviceId;

/// A folder that is removed again.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weft-rt-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn pattern(n: u8) -> Buf {
    Buf::from(vec![n; 4096])
}

#[test]
fn a_file_keeps_what_is_written_and_is_locked() {
    let folder = Folder::new("file");
    let path = folder.file("drive");
    block_on(async move {
        let options = OpenOptions { create_bytes: Some(1 << 20), ..Default::default() };
        let drive = Drive::open(&path, options.clone()).await.unwrap();
        assert_eq!(drive.size_bytes(), 1 << 20);
        let twice = Drive::open(&path, options).await.unwrap_err();
        assert_eq!(twice.kind(), std::io::ErrorKind::WouldBlock);
        assert!(twice.to_string().contains("in use"), "{twice}");
        join_all((0..64u64).map(|i| drive.write(i * 4096, pattern(i as u8)))).await;
        // Unaligned memory is copied, not refused.
        let odd = Buf::from(vec![9; 8192 + 1]).slice(1..8193);
        drive.write_vectored(64 * 4096, vec![odd, pattern(8)]).await.unwrap();
        drive.flush().await.unwrap();
        for i in 0..64u64 {
            assert!(drive.read(i * 4096, 4096).await.unwrap().iter().all(|b| *b == i as u8));
        }
        assert_eq!(drive.read(66 * 4096, 4096).await.unwrap()[0], 8);
        drive.discard(0, 4096).await.unwrap();
        let past = drive.read(1 << 20, 4096).await.unwrap_err();
        assert_eq!(past.kind(), std::io::ErrorKind::UnexpectedEof);
        assert!(drive.read(1, 4096).await.is_err());
        drop(drive);
        let again = Drive::open(&path, OpenOptions { read_only: true, ..Default::default() }).await.unwrap();
        assert_eq!(again.read(5 * 4096, 4096).await.unwrap()[0], 5);
        assert!(again.write(0, pattern(1)).await.is_err());
    })
    .unwrap();
}

#[test]
fn threads_of_a_process_share_a_drive_and_others_are_kept_out_until_the_last_has_closed_it() {
    let folder = Folder::new("share");
    let path = folder.file("drive");
    let shared = OpenOptions { is_shared: true, ..Default::default() };
    block_on(async move {
        let options = OpenOptions { create_bytes: Some(1 << 20), ..Default::default() };
        let holder = Drive::open(&path, options).await.unwrap();
        let kind = |opened: std::io::Result<Drive>| opened.map(|_| ()).unwrap_err().kind();
        let in_use = std::io::ErrorKind::WouldBlock;
        assert_eq!(kind(Drive::open(&path, shared.clone()).await), in_use, "it is not shared yet");
        holder.share().unwrap();
        let halves = [0u64, 1 << 19].map(|start| {
            let (path, options) = (path.clone(), shared.clone());
            std::thread::spawn(move || {
                block_on(async move {
                    let drive = Drive::open(&path, options).await.unwrap();
                    let extent = [Extent { start, len: 1 << 19 }];
                    let half = drive.window("half", DeviceId::of_name("d"), &extent).unwrap();
                    half.write(4096, pattern(start.leading_zeros() as u8)).await.unwrap();
                    half.flush().await.unwrap();
                })
            })
        });
        for half in halves {
            half.join().unwrap().unwrap();
        }
        for start in [0u64, 1 << 19] {
            let read = holder.read(start + 4096, 4096).await.unwrap();
            assert_eq!(read[0], start.leading_zeros() as u8);
        }
        let last = Drive::open(&path, shared).await.unwrap();
        drop(holder);
        assert_eq!(kind(Drive::open(&path, OpenOptions::default()).await), in_use);
        drop(last);
        Drive::open(&path, OpenOptions::default()).await.unwrap();
    })
    .unwrap();
}

#[test]
fn what_cannot_be_opened_says_why() {
    let folder = Folder::new("open");
    let (missing, inside) = (folder.file("none"), folder.file("no/folder"));
    block_on(async move {
        let kind = |r: std::io::Result<Drive>| r.unwrap_err().kind();
        assert_eq!(kind(Drive::open(&missing, OpenOptions::default()).await), std::io::ErrorKind::NotFound);
        let create = OpenOptions { create_bytes: Some(4096), ..Default::default() };
        assert_eq!(kind(Drive::open(&inside, create).await), std::io::ErrorKind::NotFound);
        let huge = OpenOptions { create_bytes: Some(1 << 60), ..Default::default() };
        assert!(Drive::open(&missing, huge).await.is_err());
        assert!(!std::path::Path::new(&missing).exists(), "nothing is left of a file that could not be made");
    })
    .unwrap();
}

#[test]
fn a_connection_that_is_refused_says_so() {
    block_on(async {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr();
        drop(listener);
        yield_now().await;
        sleep(Duration::from_millis(10)).await;
        let error = Stream::connect(&addr).await.err().unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    })
    .unwrap();
}

#[test]
fn a_shutdown_ends_a_pending_read_and_a_dropped_read_frees_the_socket() {
    block_on(async {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let client = Stream::connect(&listener.local_addr()).await.unwrap();
        let server = listener.accept().await.unwrap();
        let reader = client.clone();
        let read = spawn(async move { reader.read(BufMut::aligned(16), 0).await.0 });
        yield_now().await;
        assert!(timeout(Duration::from_millis(5), server.read(BufMut::aligned(16), 0)).await.is_err());
        drop(server);
        let ended = read.await.unwrap();
        assert!(matches!(ended, Ok(0) | Err(_)));
        client.shutdown();
    })
    .unwrap();
}

#[test]
fn other_threads_wake_a_sleeping_executor() {
    struct Shared(std::sync::Mutex<(bool, Option<std::task::Waker>)>);
    let woken = block_on(async {
        let shared = std::sync::Arc::new(Shared(std::sync::Mutex::new((false, None))));
        let other = shared.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(30));
            let mut state = other.0.lock().unwrap();
            state.0 = true;
            if let Some(waker) = state.1.take() {
                waker.wake();
            }
        });
        let wait = std::future::poll_fn(|cx| {
            let mut state = shared.0.lock().unwrap();
            if state.0 {
                return std::task::Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            std::task::Poll::Pending
        });
        timeout(Duration::from_secs(20), wait).await.is_ok()
    });
    assert!(woken.unwrap());
}

#[test]
fn an_idle_executor_sleeps_in_the_kernel() {
    block_on(async {
        let (tx, rx) = oneshot::<()>();
        let keeper = spawn(async move {
            sleep(Duration::from_millis(300)).await;
            drop(tx);
        });
        let before = kernel_enters();
        rx.await;
        keeper.await.unwrap();
        let enters = kernel_enters() - before;
        assert!(enters < 50, "entered the kernel {enters} times while idle");
    })
    .unwrap();
}

#[test]
fn who_breathes_lets_what_has_happened_meanwhile_go_first() {
    let breaths = block_on(async {
        let due = spawn(sleep(Duration::from_nanos(1)));
        yield_now().await;
        let mut breaths = 0;
        while !due.is_finished() {
            breathe().await;
            breaths += 1;
        }
        breaths
    });
    assert!(breaths.unwrap() <= 4, "a timer that is due is looked at after each");
}

#[test]
fn timers_fire_in_order() {
    let order = block_on(async {
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let tasks = [30u64, 10, 20].map(|ms| {
            let order = order.clone();
            spawn(async move {
                sleep(Duration::from_millis(ms)).await;
                order.borrow_mut().push(ms);
            })
        });
        for task in tasks {
            task.await.unwrap();
        }
        order.take()
    });
    assert_eq!(order.unwrap(), [10, 20, 30]);
}

#[test]
fn a_drive_that_is_deleted_or_cut_short_is_gone_though_it_still_answers() {
    let folder = Folder::new("gone");
    let (deleted, cut) = (folder.file("deleted"), folder.file("cut"));
    block_on(async move {
        let create = OpenOptions { create_bytes: Some(1 << 20), sparse: true, ..Default::default() };
        let drive = Drive::open(&deleted, create.clone()).await.unwrap();
        drive.check_presence().await.unwrap();
        std::fs::rename(&deleted, format!("{deleted}-elsewhere")).unwrap();
        drive.check_presence().await.expect("another name is as good");
        std::fs::remove_file(format!("{deleted}-elsewhere")).unwrap();
        let error = drive.check_presence().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (std::io::ErrorKind::NotFound, "its file was deleted".into())
        );
        drive.write(0, pattern(1)).await.expect("which is why it has to be looked for");
        let drive = Drive::open(&cut, create).await.unwrap();
        std::fs::File::options().write(true).open(&cut).unwrap().set_len(4096).unwrap();
        let error = drive.check_presence().await.unwrap_err();
        assert!(error.to_string().contains("cut to 4096 of 1048576 bytes"), "{error}");
    })
    .unwrap();
}

#[test]
fn a_drive_without_direct_io_works_too() {
    let path = format!("/dev/shm/weft-rt-tmpfs-{}", std::process::id());
    let file = path.clone();
    block_on(async move {
        let options = OpenOptions { create_bytes: Some(1 << 20), sparse: true, ..Default::default() };
        let drive = Drive::open(&file, options).await.unwrap();
        drive.write_vectored(4096, vec![pattern(1), pattern(2)]).await.unwrap();
        drive.flush().await.unwrap();
        let back = drive.read(0, 3 * 4096).await.unwrap();
        assert_eq!([back[0], back[4096], back[8192]], [0, 1, 2]);
        drive.discard(4096, 4096).await.unwrap();
    })
    .unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_new_file_is_for_its_owner_only_and_has_its_space() {
    use std::os::unix::fs::MetadataExt;
    let folder = Folder::new("create");
    let (full, sparse) = (folder.file("full"), folder.file("sparse"));
    block_on(async move {
        for (path, is_sparse) in [(&full, false), (&sparse, true)] {
            let options =
                OpenOptions { create_bytes: Some(4 << 20), sparse: is_sparse, ..Default::default() };
            let drive = Drive::open(path, options).await.unwrap();
            let metadata = std::fs::metadata(path).unwrap();
            assert_eq!((metadata.mode() & 0o777, metadata.len()), (0o600, 4 << 20));
            assert_eq!(metadata.blocks() * 512 < 4 << 20, is_sparse);
            assert_eq!(drive.size_bytes(), 4 << 20);
        }
    })
    .unwrap();
}

#[test]
fn a_file_of_odd_size_ends_at_its_last_whole_block() {
    let folder = Folder::new("odd");
    let path = folder.file("drive");
    std::fs::write(&path, vec![3; 2 * 4096 + 17]).unwrap();
    block_on(async move {
        let drive = Drive::open(&path, OpenOptions::default()).await.unwrap();
        assert_eq!(drive.size_bytes(), 2 * 4096);
        assert_eq!(drive.read(4096, 4096).await.unwrap()[4095], 3);
        // Somebody else cuts it: what is missing is an error, never old memory.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let cut = drive.read(0, 8192).await.unwrap_err();
        assert_eq!(cut.kind(), std::io::ErrorKind::UnexpectedEof);
    })
    .unwrap();
}

#[test]
fn what_is_no_drive_is_refused() {
    let folder = Folder::new("kind");
    let path = folder.file("");
    block_on(async move {
        let error = Drive::open(&path, OpenOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        let error = Drive::open("/dev/null", OpenOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    })
    .unwrap();
}

#[test]
fn large_messages_arrive_whole_when_the_reader_is_slow() {
    block_on(async {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let client = Stream::connect(&listener.local_addr()).await.unwrap();
        let server = listener.accept().await.unwrap();
        let parts: Vec<Buf> =
            (0..3000u32).map(|i| Buf::from(vec![i as u8; (i as usize * 7) % 9000])).collect();
        let expected: Vec<u8> = parts.iter().flat_map(|p| p.iter().copied()).collect();
        spawn(async move { client.write(parts).await.unwrap() });
        let mut got = Vec::new();
        let mut buf = BufMut::aligned(64 * 1024);
        loop {
            sleep(Duration::from_micros(100)).await;
            let (n, filled) = server.read(buf, 0).await;
            match n.unwrap() {
                0 => break,
                n => got.extend_from_slice(&filled[..n]),
            }
            buf = filled;
        }
        assert!(got == expected, "{} bytes of {}", got.len(), expected.len());
    })
    .unwrap();
}

#[test]
fn a_socket_file_is_refused_while_it_is_served_and_gone_afterwards() {
    let folder = Folder::new("unix");
    let path = folder.file("s");
    block_on(async move {
        let addr: Addr = format!("unix:{path}").parse().unwrap();
        std::fs::write(&path, "a letter").unwrap();
        assert_eq!(Listener::bind(&addr).err().unwrap().kind(), std::io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a letter", "no file of a person is replaced");
        std::fs::remove_file(&path).unwrap();
        let listener = Listener::bind(&addr).unwrap();
        assert_eq!(Listener::bind(&addr).err().unwrap().kind(), std::io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!std::path::Path::new(&path).exists());
    })
    .unwrap();
}

#[test]
fn no_connection_is_lost_when_a_caller_stops_waiting_for_it() {
    block_on(async {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr();
        assert!(timeout(Duration::from_millis(1), listener.accept()).await.is_err());
        let client = Stream::connect(&addr).await.unwrap();
        sleep(Duration::from_millis(20)).await;
        let server = listener.accept().await.unwrap();
        server.write(vec![Buf::from(&b"x"[..])]).await.unwrap();
        assert_eq!(client.read(BufMut::aligned(16), 0).await.0.unwrap(), 1);
    })
    .unwrap();
}

#[test]
fn more_connections_than_are_taken_ahead_are_all_served() {
    block_on(async {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr();
        // From here on connections are taken although nobody asks, until there are too many.
        assert!(timeout(Duration::from_millis(1), listener.accept()).await.is_err());
        let mut clients = Vec::new();
        for _ in 0..300 {
            clients.push(Stream::connect(&addr).await.unwrap());
        }
        let mut servers = Vec::new();
        for _ in 0..300 {
            let server = timeout(Duration::from_secs(10), listener.accept()).await.unwrap().unwrap();
            server.write(vec![Buf::from(&b"x"[..])]).await.unwrap();
            servers.push(server);
        }
        for client in &clients {
            assert_eq!(client.read(BufMut::aligned(16), 0).await.0.unwrap(), 1);
        }
        // A listener that ends closes what it had taken for nobody.
        let late = Stream::connect(&addr).await.unwrap();
        sleep(Duration::from_millis(10)).await;
        drop(listener);
        let ended = timeout(Duration::from_secs(10), late.read(BufMut::aligned(16), 0)).await.unwrap().0;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    })
    .unwrap();
}

#[test]
fn offloaded_work_runs_in_order_on_another_thread_and_is_waited_for() {
    let (tell, told) = std::sync::mpsc::channel();
    block_on(async move {
        let here = std::thread::current().id();
        let first = offload(move || std::thread::current().id() != here);
        let second = offload(|| 2);
        assert_eq!((second.await, first.await), (2, true));
        drop(offload(move || {
            std::thread::sleep(Duration::from_millis(50));
            tell.send(()).unwrap();
        }));
    })
    .unwrap();
    assert!(told.try_recv().is_ok(), "the end of the executor waits for it");
}

/// Signals go to a process, so this one is tried on another: this test's own, with a variable set.
#[test]
fn a_wish_to_end_is_heard_once_and_kept_for_who_asks_later() {
    const CHILD: &str = "WEFT_RT_TEST_SIGNALS";
    if std::env::var_os(CHILD).is_none() {
        let this = "a_wish_to_end_is_heard_once_and_kept_for_who_asks_later";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let status =
            child.args(["--exact", this, "--test-threads=1"]).env(CHILD, "1").output().unwrap().status;
        assert!(status.success(), "{status}");
        return;
    }
    block_on(async {
        drop(signal::terminated());
        // SAFETY: the call takes no pointers; the thread that gets the signal has blocked it.
        assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) }, 0);
        sleep(Duration::from_millis(5)).await;
        signal::terminated().await;
        signal::terminated().await;
    })
    .unwrap();
}

/// Needs a block device to write to, so it does nothing unless one is named.
#[test]
fn a_block_device_is_read_written_and_discarded() {
    let Ok(device) = std::env::var("WEFT_RT_TEST_DEVICE") else { return };
    block_on(async move {
        let drive = Drive::open(&device, OpenOptions::default()).await.unwrap();
        assert!(drive.size_bytes() >= 1 << 20);
        let twice = Drive::open(&device, OpenOptions::default()).await.unwrap_err();
        assert_eq!(twice.kind(), std::io::ErrorKind::WouldBlock, "{twice}");
        let end = drive.size_bytes() - 8192;
        drive.write_vectored(end, vec![pattern(4), pattern(5)]).await.unwrap();
        drive.flush().await.unwrap();
        let back = drive.read(end, 8192).await.unwrap();
        assert_eq!([back[0], back[8191]], [4, 5]);
        drive.discard(end, 8192).await.unwrap();
        drop(drive);
        Drive::open(&device, OpenOptions::default()).await.unwrap();
    })
    .unwrap();
}
