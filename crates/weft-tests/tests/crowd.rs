//! A node of a real fabric with a thousand clients that all send as much as they may: how much memory it
//! takes, and that each of them goes on.

use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use weft_rpc::shm::set_shared_memory;
use weft_rpc::{Body, CallError, Link};
use weft_rt::sync::join_all;
use weft_rt::{Addr, Buf, block_on, spawn};
use weft_tests::weft;
use weft_wire::Kind;
use weft_wire::handshake::{Hello, PeerRole};

const MIB: u64 = 1 << 20;

/// Clients, each with a connection of its own to the node.
const CLIENTS: usize = 1024;

/// Requests of 1 MiB that each client has in flight: what the credits of a connection allow.
const REQUESTS: usize = 32;

/// The most memory that the node may have had.
const MEMORY_BYTES: u64 = 400 * MIB;

/// A fabric of one node with one drive.
struct Bed {
    folder: PathBuf,
    node: Addr,
}

impl Bed {
    fn start() -> Bed {
        let folder = std::env::temp_dir().join(format!("weft-crowd-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let port = free_ports();
        let bed = Bed { folder, node: format!("127.0.0.1:{}", port + 1).parse().expect("an address") };
        let place = bed.place();
        let place = place.to_str().expect("a path of plain letters");
        let up = ["up", "--detach", "--nodes", "1", "--drives", "1", "--drive-size", "2GiB", "--sparse"];
        bed.weft(&[&up[..], &["--dir", place, "--port", &port.to_string()]].concat());
        bed
    }

    fn place(&self) -> PathBuf {
        self.folder.join("fabric")
    }

    fn weft(&self, args: &[&str]) {
        let mut command = Command::new(weft());
        command.env_remove("WEFT_FABRIC").args(args).stdin(Stdio::null());
        let output = command.output().expect("the program runs");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The most memory that the node's process has had, in bytes (VmHWM of proc_pid_status(5)).
    fn memory_peak(&self) -> u64 {
        let record = fs::read(self.place().join("run/node-1.pid")).expect("the node runs");
        let record: Value = serde_json::from_slice(&record).expect("a document");
        let status = fs::read_to_string(format!("/proc/{}/status", record["pid"])).expect("it still runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
        kib * 1024
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let down = Command::new(weft()).args(["down", "--dir"]).arg(self.place()).output();
        if !down.is_ok_and(|output| output.status.success()) {
            eprintln!("weft down failed in {}", self.place().display());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The first of a few neighbouring ports of loopback that nobody listens on.
fn free_ports() -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let start = 10_000 + (std::process::id() % 2000) as u16 * 10;
    let free = (start..start + 2000).step_by(10).find(|first| (*first..first + 4).all(is_free));
    free.expect("four neighbouring ports of loopback are free")
}

async fn connect(node: Addr, name: String) -> Link {
    let hello = Hello::new(PeerRole::Client, None, &name);
    Link::connect(&node, &hello).await.expect("the node is there")
}

/// Sends as many bytes of writes as the connection may have in flight. They name nothing that there is, so
/// they are refused once the node has all of them in its memory.
async fn send_all(link: Link, data: Buf) -> usize {
    let writes = (0..REQUESTS)
        .map(|_| link.call(Kind::Write, b"no head of a write", Body::blocks(vec![data.clone()])));
    let refused = |answer: &Result<_, CallError>| matches!(answer, Err(CallError::Refused { .. }));
    join_all(writes).await.iter().filter(|answer| refused(answer)).count()
}

#[test]
fn a_node_with_a_thousand_clients_that_all_send_stays_within_its_memory() {
    let bed = Bed::start();
    set_shared_memory(false);
    let (node, before) = (bed.node.clone(), bed.memory_peak());
    let answered = block_on(async move {
        let links = (0..CLIENTS).map(|i| connect(node.clone(), format!("client-{i}")));
        let links = join_all(links).await;
        let data = Buf::zeroes(MIB as usize);
        let sending = links.iter().map(|link| spawn(send_all(link.clone(), data.clone())));
        let sending: Vec<_> = sending.collect();
        let mut answered = Vec::new();
        for client in sending {
            answered.push(client.await.expect("it is not cancelled"));
        }
        answered
    })
    .expect("the runtime starts");
    let peak = bed.memory_peak();
    println!("{} MiB before, {} MiB at most", before / MIB, peak / MIB);
    assert!(answered.iter().all(|count| *count == REQUESTS), "each goes on: {answered:?}");
    assert!(peak < MEMORY_BYTES, "the node had {} MiB", peak / MIB);
}
