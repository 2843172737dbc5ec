//! The library's example of several threads on one attach, against a fabric of `weft up`.

#[path = "../../weft-client/examples/submit.rs"]
#[allow(dead_code, reason = "the test begins where the program's arguments are read")]
mod submit;

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use weft_client::{AttachOptions, LaneOp, NotQueued, OpenError, Submitter};
use weft_rt::Addr;
use weft_tests::weft;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Fabrics that were started.
static STARTED: AtomicU16 = AtomicU16::new(0);

/// A fabric of two nodes in a folder that is removed at the end.
struct Fabric {
    folder: PathBuf,
    manager: Addr,
}

impl Fabric {
    fn start(name: &str) -> Fabric {
        let folder = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let is_free = |port: &u16| (*port..*port + 3).all(|p| TcpListener::bind(("127.0.0.1", p)).is_ok());
        // Tests that run at the same time look at other ports.
        let test = STARTED.fetch_add(1, Ordering::Relaxed);
        let first = 12_000 + (std::process::id() % 1000) as u16 * 12 + test * 6;
        let port = (first..first + 3000).step_by(12).find(is_free).expect("three ports are free");
        let manager = format!("127.0.0.1:{port}").parse().expect("an address");
        let fabric = Fabric { folder, manager };
        let up = ["up", "--detach", "--nodes", "2", "--drives", "1", "--drive-size", "512MiB", "--sparse"];
        fabric.ok(&[&up[..], &["--port", &port.to_string()]].concat());
        fabric
    }

    fn weft(&self, args: &[&str]) -> Output {
        let mut command = Command::new(weft());
        command.current_dir(&self.folder).env("WEFT_FABRIC", self.folder.join("fabric")).args(args);
        command.output().expect("weft runs")
    }

    fn ok(&self, args: &[&str]) -> String {
        let said = self.weft(args);
        assert!(said.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8_lossy(&said.stdout).into_owned()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.weft(&["down"]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Insists that no attach is left soon: one that was not ended would be over after 30 s.
fn await_detached(fabric: &Fabric) {
    let is_attached = || fabric.ok(&["session", "list", "--json"]).contains("submit");
    for _ in 0..100 {
        if !is_attached() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("it has not detached");
}

#[test]
fn threads_of_a_program_use_one_attach_and_leave_it() {
    let fabric = Fabric::start("submit");
    fabric.ok(&["volume", "create", "scratch", "--size", "32MiB"]);
    let said = submit::run(&fabric.manager, "scratch").expect("it verifies");
    assert!(said.contains("512 times") && said.contains("2 lanes"), "{said}");
    await_detached(&fabric);
    let options = AttachOptions { lanes: 2, whole_blocks: true, ..AttachOptions::default() };
    let open = |name: &str| {
        Submitter::open(std::slice::from_ref(&fabric.manager), "submit test", name, options.clone())
    };
    assert!(matches!(open("none"), Err(OpenError::Client(_))));
    for lanes in [0, 16, usize::MAX] {
        let options = AttachOptions { lanes, ..options.clone() };
        let managers = std::slice::from_ref(&fabric.manager);
        let refused = Submitter::open(managers, "submit test", "scratch", options).map(drop);
        assert!(refused.expect_err("a wrong number").to_string().contains("expected 1 to 8"), "{lanes}");
    }
    let volume = open("scratch").expect("it attaches");
    assert_eq!((volume.lanes(), volume.logical_block(), volume.size_bytes()), (2, 4096, 32 << 20));
    let (tell, told) = channel();
    let submit = |op: LaneOp| {
        let tell = tell.clone();
        volume.submit(op, move |completion| tell.send(completion).expect("it is waited for"))
    };
    let ends = || told.recv_timeout(PATIENCE).expect("it ends").result;
    // What makes no sense is refused by the lane, and loses nothing.
    submit(LaneOp::Write { offset: 512, buffer: vec![1; 4096] }).expect("it is queued");
    assert!(ends().expect_err("it is misaligned").to_string().contains("4096"));
    submit(LaneOp::Read { offset: 32 << 20, buffer: vec![0; 4096] }).expect("it is queued");
    assert!(ends().is_err());
    submit(LaneOp::Read { offset: 0, buffer: Vec::new() }).expect("it is queued");
    assert!(ends().is_err());
    submit(LaneOp::Discard { offset: 0, length: 1 << 20 }).expect("it is queued");
    submit(LaneOp::Flush).expect("it is queued");
    assert!(ends().is_ok() && ends().is_ok());
    submit(LaneOp::Read { offset: 4096, buffer: vec![7; 4096] }).expect("it is queued");
    let read = told.recv_timeout(PATIENCE).expect("it ends");
    assert!(read.result.is_ok() && read.buffer == [0; 4096], "{:?}", read.result);
    let large = volume.submit(LaneOp::Read { offset: 0, buffer: vec![0; (32 << 20) + 1] }, |_| {});
    assert!(matches!(large, Err(NotQueued::TooLarge { .. })));
    // A handle that is left over after the end is refused.
    let other = volume.clone();
    volume.detach().expect("the kernel has io_uring");
    await_detached(&fabric);
    assert!(matches!(other.submit(LaneOp::Flush, |_| {}), Err(NotQueued::Over { op: LaneOp::Flush })));
}

#[test]
fn an_attach_that_is_taken_over_ends_on_every_lane() {
    let fabric = Fabric::start("submit-over");
    fabric.ok(&["volume", "create", "scratch", "--size", "8MiB"]);
    let options = AttachOptions { lanes: 3, whole_blocks: true, ..AttachOptions::default() };
    let open = |preempt| {
        let options = AttachOptions { preempt, ..options.clone() };
        Submitter::open(std::slice::from_ref(&fabric.manager), "submit test", "scratch", options)
    };
    let first = open(false).expect("it attaches");
    assert!(open(false).is_err(), "it is attached exclusively");
    let second = open(true).expect("it takes the volume over");
    let on_each_lane = |volume: &Submitter, op: &LaneOp| -> Vec<bool> {
        let write = || {
            let (volume, op) = (volume.clone(), op.clone());
            let (tell, told) = channel();
            std::thread::spawn(move || {
                volume.submit(op, move |done| tell.send(done.result.is_ok()).expect("it is waited for")).ok();
                told.recv_timeout(PATIENCE).expect("it ends")
            })
        };
        // Threads that follow each other go to lanes that follow each other.
        let threads: Vec<_> = (0..3).map(|_| write()).collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends")).collect()
    };
    let write = LaneOp::Write { offset: 0, buffer: vec![5; 8192] };
    assert_eq!(on_each_lane(&first, &write), [false; 3]);
    assert_eq!(on_each_lane(&second, &write), [true; 3]);
    second.detach().expect("the kernel has io_uring");
    drop(first);
    await_detached(&fabric);
}
