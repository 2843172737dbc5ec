//! A node of a real fabric with a thousand clients that all send as much as they may: how much memory it takes, and
//! that each of them goes on.

use serde_json::Value;
use std::cell::Cell;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;
use weft_client::{AttachMode, AttachOptions, Fabric, Volume};
use weft_rpc::shm::set_shared_memory;
use weft_rt::{Addr, Buf, block_on, sleep, spawn, timeout};
use weft_tests::weft;

const MIB: u64 = 1 << 20;

/// Clients, each with a connection of its own to the node.
const CLIENTS: usize = 1024;

/// Requests of 1 MiB that each client has in flight: what the credits of a connection allow.
const REQUESTS: u64 = 32;

/// The most memory that the node may have had.
const MEMORY_BYTES: u64 = 400 * MIB;

/// Bytes of the volume.
const VOLUME_BYTES: u64 = 512 * MIB;

/// When the test gives up. Builds share the machine with it.
const PATIENCE: Duration = Duration::from_secs(300);

/// A fabric of one node with one drive.
struct Bed {
    folder: PathBuf,
    manager: Addr,
}

impl Bed {
    fn start() -> Bed {
        let folder = std::env::temp_dir().join(format!("weft-crowd-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let port = free_ports();
        let bed = Bed { folder, manager: format!("127.0.0.1:{port}").parse().expect("an address") };
        let place = bed.place();
        let place = place.to_str().expect("a path of plain letters");
        let up = ["up", "--detach", "--nodes", "1", "--drives", "1", "--drive-size", "2GiB", "--sparse"];
        bed.weft(&[&up[..], &["--dir", place, "--port", &port.to_string()]].concat());
        let create = ["volume", "create", "crowded", "--size", "512MiB", "--copies", "1", "--thin"];
        bed.weft(&[&["--fabric", place], &create[..]].concat());
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

async fn attach(manager: Addr, name: String) -> Volume {
    let fabric = Fabric::connect(&[manager], &name).await.expect("the manager answers");
    let options = AttachOptions { mode: AttachMode::Shared, preempt: false, io_timeout: PATIENCE };
    fabric.attach("crowded", options).await.expect("it can be shared")
}

/// Lets each client do all its requests at once, and returns when each has been through with one. The others are
/// given up.
async fn each_goes_on<F>(clients: &[Rc<Volume>], request: impl Fn(Rc<Volume>, u64) -> F)
where
    F: Future<Output = ()> + 'static,
{
    let done: Rc<Vec<Cell<u32>>> = Rc::new(clients.iter().map(|_| Cell::new(0)).collect());
    let mut tasks = Vec::new();
    for (i, volume) in clients.iter().enumerate() {
        for at in 0..REQUESTS {
            let (done, block) = (done.clone(), (i as u64 * 7 + at) % (VOLUME_BYTES / MIB));
            let one = request(volume.clone(), block * MIB);
            tasks.push(spawn(async move {
                one.await;
                done[i].set(done[i].get() + 1);
            }));
        }
    }
    let everybody = async {
        while done.iter().any(|done| done.get() == 0) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, everybody).await.expect("each client goes on");
    tasks.iter().for_each(|task| task.abort());
}

#[test]
fn a_node_with_a_thousand_clients_that_all_send_stays_within_its_memory() {
    let bed = Bed::start();
    set_shared_memory(false);
    let manager = bed.manager.clone();
    let before = bed.memory_peak();
    block_on(async move {
        let mut clients = Vec::new();
        for first in (0..CLIENTS).step_by(16) {
            let some = (first..first + 16).map(|i| spawn(attach(manager.clone(), format!("client-{i}"))));
            let some: Vec<_> = some.collect();
            for client in some {
                clients.push(Rc::new(client.await.expect("it is not cancelled")));
            }
        }
        let data = Buf::from((0..MIB as usize).map(|i| (i % 251) as u8).collect::<Vec<_>>());
        each_goes_on(&clients, |volume, at| {
            let data = data.clone();
            async move { volume.write(at, vec![data]).await.expect("it is written") }
        })
        .await;
        each_goes_on(&clients, |volume, at| async move {
            volume.read(at, MIB).await.expect("it is read");
        })
        .await;
    })
    .expect("the runtime starts");
    let peak = bed.memory_peak();
    println!("{} MiB before, {} MiB at most", before / MIB, peak / MIB);
    assert!(peak < MEMORY_BYTES, "the node had {} MiB", peak / MIB);
}
