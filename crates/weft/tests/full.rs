//! A fabric that is nearly full, and full: what clients meet over NBD, what is told, and that discards heal it.

mod bed;

use bed::{Bed, wait_until};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// NBD protocol, "Error values".
const ENOSPC: u32 = 28;

const READ: u16 = 0;
const WRITE: u16 = 1;
const TRIM: u16 = 4;

/// A client of an NBD export: simple replies, one request at a time.
struct Nbd(UnixStream);

impl Nbd {
    fn connect(path: &str, export: &str) -> Nbd {
        let mut nbd = Nbd(UnixStream::connect(path).expect("it listens"));
        nbd.0.set_read_timeout(Some(Duration::from_secs(90))).expect("a socket takes it");
        assert_eq!(&nbd.take::<18>()[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeroes; then NBD_OPT_GO with the name and no requests for information.
        let name = export.as_bytes();
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend_from_slice(b"IHAVEOPT");
        hello.extend_from_slice(&7u32.to_be_bytes());
        hello.extend_from_slice(&(name.len() as u32 + 6).to_be_bytes());
        hello.extend_from_slice(&(name.len() as u32).to_be_bytes());
        hello.extend_from_slice(name);
        hello.extend_from_slice(&0u16.to_be_bytes());
        nbd.0.write_all(&hello).expect("it reads");
        loop {
            let reply: [u8; 20] = nbd.take();
            let field = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("4 bytes"));
            let mut data = vec![0; field(16) as usize];
            nbd.0.read_exact(&mut data).expect("it is sent");
            match field(12) {
                1 => return nbd,
                3 => {}
                other => panic!("the export is refused: {other:#x} {}", String::from_utf8_lossy(&data)),
            }
        }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).expect("it is sent");
        bytes
    }

    /// Sends a request and returns the error of its reply, 0 for none.
    fn ask(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) -> u32 {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend_from_slice(&0u16.to_be_bytes());
        request.extend_from_slice(&command.to_be_bytes());
        request.extend_from_slice(&7u64.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        request.extend_from_slice(data);
        self.0.write_all(&request).expect("it reads");
        let reply: [u8; 16] = self.take();
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().expect("4 bytes"))
    }

    fn write(&mut self, mib: u64) -> u32 {
        self.ask(WRITE, mib * MIB, MIB as u32, &contents(mib))
    }

    fn read(&mut self, mib: u64) -> Vec<u8> {
        assert_eq!(self.ask(READ, mib * MIB, MIB as u32, &[]), 0, "reads go on");
        let mut data = vec![0; MIB as usize];
        self.0.read_exact(&mut data).expect("it is sent");
        data
    }
}

/// What is written at a mebibyte.
fn contents(mib: u64) -> Vec<u8> {
    (0..MIB / 8).flat_map(|n| (mib << 32 | n | 1).to_le_bytes()).collect()
}

fn pool(bed: &Bed) -> Value {
    bed.json(&["status"])["pools"][0].clone()
}

fn filling(bed: &Bed) -> Option<Value> {
    let status = bed.json(&["status"]);
    status["troubles"].as_array().expect("a list").iter().find(|t| t["kind"] == "pool-filling").cloned()
}

fn capacity_events(bed: &Bed) -> Vec<String> {
    let events = bed.json(&["events"]);
    let whats =
        events["events"].as_array().expect("a list").iter().map(|e| e["what"].as_str().expect("a name"));
    whats.filter(|what| what.starts_with("capacity-")).map(str::to_owned).collect()
}

#[test]
fn a_full_fabric_refuses_writes_only_and_discards_heal_it() {
    let bed = Bed::new("full");
    bed.up(2, 1);
    bed.weft(&["volume", "create", "data", "--size", "1GiB"]).fails(4, &["--thin"]);
    let created = bed.weft(&["volume", "create", "data", "--size", "1GiB", "--thin"]);
    assert_eq!(created.code, 0, "{created:?}");
    assert!(
        created.err.contains("warning: pool 'default' is over-provisioned: 2 GiB promised"),
        "{}",
        created.err
    );
    let resized = bed.json(&["volume", "resize", "data", "--size", "2GiB"]);
    assert!(resized["warnings"][0].as_str().is_some_and(|w| w.contains("4 GiB promised")), "{resized}");

    let socket = bed.path("nbd.sock");
    let socket = socket.to_str().expect("a plain path");
    let mut serve = bed.spawn(&["volume", "serve", "data", "--nbd", &format!("unix:{socket}")]);
    wait_until("it listens", || std::path::Path::new(socket).exists());
    let mut nbd = Nbd::connect(socket, "data");
    let mut written = 0;
    let refused = loop {
        match nbd.write(written) {
            0 => written += 1,
            error => break error,
        }
        assert!(written < 256, "twice what there is");
    };
    assert_eq!(refused, ENOSPC, "after {written} MiB");
    assert!(written >= 48, "{written} MiB of drives with 128 MiB");
    for mib in [0, written / 2, written - 1] {
        assert_eq!(nbd.read(mib), contents(mib), "reads go on");
    }
    assert_eq!(nbd.write(written + 3), ENOSPC, "still");

    wait_until("the pool is told to be full", || pool(&bed)["level"] == "full");
    let trouble = filling(&bed).expect("it is told");
    assert_eq!(
        (&trouble["severity"], &trouble["pool"]),
        (&"degraded".into(), &"default".into()),
        "{trouble}"
    );
    assert!(trouble["what"].as_str().is_some_and(|w| w.contains("takes no new data")), "{trouble}");
    wait_until("an event tells of it", || capacity_events(&bed).contains(&"capacity-full".to_owned()));
    let late = bed.weft(&["volume", "create", "more", "--size", "16MiB", "--thin"]);
    assert!(late.code == 0 && late.err.contains("is full (level full)"), "{late:?}");

    // What is discarded comes back, and everything goes on by itself.
    assert_eq!(nbd.ask(TRIM, 0, (written / 2 * MIB) as u32, &[]), 0, "a discard needs no space");
    let began = std::time::Instant::now();
    while nbd.write(written) != 0 {
        assert!(began.elapsed() < bed::PATIENCE, "there is no room");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(nbd.read(written), contents(written));
    assert_eq!(nbd.read(0), vec![0; MIB as usize], "it was discarded");
    wait_until("the pool has room again", || pool(&bed)["level"] == "normal");
    assert_eq!(filling(&bed), None);
    wait_until("an event tells of it", || {
        capacity_events(&bed).last().is_some_and(|e| e == "capacity-normal")
    });
    bed.await_health("healthy");
    drop(nbd);
    let _ = serve.0.kill();
}
