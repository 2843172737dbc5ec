//! A client that loses its way to one node, while the manager and all other nodes reach it: its writes
//! go on after a moment, and people are told. Real processes, each in a network namespace of its own;
//! nftables cut the way.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weft_torture::fabric::{Fabric, tail};
use weft_torture::world::{Cut, World};

/// How long the way is cut: longer than the 30 s after which a request fails that gets no answer.
const CUT: Duration = Duration::from_secs(36);

/// How long a write may take, also on a busy machine: half of what it is given before it fails.
const WRITE_WITHIN: Duration = Duration::from_secs(15);

/// What a client wrote while the way was cut.
struct Wrote {
    writes: u64,
    longest: Duration,
    error: Option<String>,
}

/// A process that is killed and awaited when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_client_that_is_cut_off_from_one_node_goes_on() {
    let world = World::enter().expect("the test can be run again");
    if world == World::Loopback {
        println!("skipped: this machine gives no network namespaces, or has no nftables");
        return;
    }
    let weft = weft_tests::weft();
    let dir = std::env::temp_dir().join(format!("weft-cut-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("the temporary folder can be written");
    let found = std::panic::catch_unwind(|| cut_off(world, &weft, &dir));
    let _ = fs::remove_dir_all(&dir);
    if let Err(panic) = found {
        std::panic::resume_unwind(panic);
    }
}

fn cut_off(world: World, weft: &Path, dir: &Path) {
    world.set_up().expect("the world can be made");
    let fabric = Fabric::start(weft, dir, world, 4).expect("the fabric starts");
    let ok = |args: &[&str]| fabric.weft(args).unwrap_or_else(|e| panic!("{e}"));
    for (name, copies) in [("data", "2"), ("db", "3")] {
        ok(&["volume", "create", name, "--size", "64MiB", "--copies", copies]);
    }
    let host = world.host("client", 30).expect("a host for the client");
    let (socket, log) = (dir.join("nbd.sock"), dir.join("serve.log"));
    let nbd = format!("unix:{}", socket.display());
    // Through shared memory, nothing could be cut.
    let args = ["volume", "serve", "data", "db", "--nbd", &nbd, "--fabric", fabric.address()];
    let args: Vec<String> = args.iter().chain(&["--no-shared-memory"]).map(|a| (*a).to_owned()).collect();
    let _serve = Running(host.start(weft, &args, &log).expect("it starts"));
    let began = Instant::now();
    while !socket.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "{}", tail(&log));
        thread::sleep(Duration::from_millis(50));
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = ["data", "db"]
        .map(|name| {
            let (mut client, is_over) = (Nbd::connect(&socket, name), is_over.clone());
            thread::spawn(move || client.write_until(&is_over))
        })
        .into();
    thread::sleep(Duration::from_secs(3));

    host.cut(Cut::Both, Some(&fabric.nodes[0].member.host)).expect("the way is cut");
    let cut = Instant::now();
    let mut told = None;
    while cut.elapsed() < CUT {
        thread::sleep(Duration::from_millis(500));
        let status = fabric.json(&["status"]).unwrap_or_else(|e| panic!("{e}"));
        let all = status["troubles"].as_array().into_iter().flatten();
        let first = all.filter(|t| t["kind"] == "client-cut-off").map(|t| t["what"].to_string()).next();
        told = told.or_else(|| first.map(|what| (cut.elapsed(), what)));
    }
    is_over.store(true, Ordering::Relaxed);
    let wrote: Vec<Wrote> = writers.into_iter().map(|w| w.join().expect("it ends")).collect();
    let said = fs::read_to_string(&log).unwrap_or_default();
    for (name, wrote) in ["data", "db"].iter().zip(&wrote) {
        println!("{name}: {} writes, the longest took {:?}, {:?}", wrote.writes, wrote.longest, wrote.error);
        assert_eq!(wrote.error, None, "{name}: {}", tail(&log));
        assert!(wrote.longest < WRITE_WITHIN, "{name}: {:?}", wrote.longest);
    }
    let (after, what) = told.expect("people are told");
    println!("told {after:?} after the cut: {what}");
    assert!(what.contains("node-1") && what.contains("weft["), "{what}");
    assert!(said.contains("node does not answer this client") && said.contains("node-1"), "{said}");
    let events = ok(&["events"]);
    assert!(events.contains("client-cut-off") && events.contains("depart"), "{events}");

    host.heal().expect("the way is opened");
    let took = fabric.await_health().unwrap_or_else(|e| panic!("{e}"));
    println!("healthy {took:?} after the way was open again");
    assert!(ok(&["events"]).contains("client-reaches-again"));
}

/// A client of NBD that waits for each answer: the fixed newstyle handshake, and writes.
struct Nbd {
    stream: UnixStream,
    size: u64,
}

impl Nbd {
    fn connect(socket: &Path, name: &str) -> Nbd {
        let mut stream = UnixStream::connect(socket).expect("it listens");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("it greets");
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, and no zeroes after the export's flags; then the option EXPORT_NAME.
        let mut words = 3u32.to_be_bytes().to_vec();
        words.extend(b"IHAVEOPT");
        words.extend(1u32.to_be_bytes());
        words.extend((name.len() as u32).to_be_bytes());
        words.extend(name.as_bytes());
        stream.write_all(&words).expect("it reads");
        let mut export = [0; 10];
        stream.read_exact(&mut export).expect("it knows the export");
        Nbd { stream, size: u64::from_be_bytes(export[..8].try_into().expect("eight bytes")) }
    }

    /// Writes a block of 4 KiB.
    fn write(&mut self, cookie: u64, offset: u64) -> std::io::Result<u32> {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend([0, 0, 0, 1]);
        request.extend(cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(4096u32.to_be_bytes());
        request.extend([cookie as u8; 4096]);
        self.stream.write_all(&request)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        Ok(u32::from_be_bytes(reply[4..8].try_into().expect("four bytes")))
    }

    /// Writes one block after another, all over the volume, until it is over or one fails.
    fn write_until(&mut self, is_over: &AtomicBool) -> Wrote {
        let mut wrote = Wrote { writes: 0, longest: Duration::ZERO, error: None };
        let blocks = self.size / 4096;
        while !is_over.load(Ordering::Relaxed) && wrote.error.is_none() {
            let begun = Instant::now();
            // A stride that meets every object, and so every group.
            let offset = wrote.writes * 1_237 % blocks * 4096;
            match self.write(wrote.writes, offset) {
                Ok(0) => wrote.writes += 1,
                Ok(errno) => wrote.error = Some(format!("errno {errno}")),
                Err(error) => wrote.error = Some(error.to_string()),
            }
            wrote.longest = wrote.longest.max(begun.elapsed());
            thread::sleep(Duration::from_millis(2));
        }
        wrote
    }
}
