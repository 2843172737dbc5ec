//! The fabric under test: its own processes on loopback, drives in memory, gone afterwards.
//!
//! It starts the weft binary's daemons and speaks to them as any tool and client would; it knows nothing of
//! what is inside them.

use crate::BenchError;
use crate::affinity;
use crate::process::{Daemon, cpu_seconds};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, FailureDomain, Health, Presence, decode_reply, encode_request};
use weft_rt::{Addr, Link, now, sleep};
use weft_wire::handshake::{Hello, PeerRole};
use weft_wire::{Kind, Status};

/// How long the fabric may take to come up: many times what it needs on a loaded machine.
const READY_PATIENCE: Duration = Duration::from_secs(30);

/// How often to look whether it is.
const READY_POLL: Duration = Duration::from_millis(50);

/// How old the manager's figures on drives may be (it asks targets at most once per second), and a margin.
const USAGE_AGE: Duration = Duration::from_millis(1200);

/// What to start.
#[derive(Clone, Debug)]
pub struct BedOptions {
    /// The weft binary.
    pub program: PathBuf,
    /// Target processes.
    pub nodes: u32,
    /// Drives of each.
    pub drives: u32,
    /// Bytes of each drive.
    pub drive_bytes: u64,
    /// The core for all of the processes; none: wherever the kernel likes.
    pub cpu: Option<usize>,
}

/// A running fabric. Dropped, its processes end and its folder is removed.
pub struct Bed {
    nodes: Vec<Daemon>,
    manager: Daemon,
    manager_addr: Addr,
    link: Option<Link>,
    _folder: Folder,
}

/// A temporary folder, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn create() -> Result<Folder, BenchError> {
        let path = std::env::temp_dir().join(format!(
            "weft-bench-{}-{:08x}",
            std::process::id(),
            weft_rt::random_u64() as u32
        ));
        std::fs::create_dir(&path).map_err(|source| BenchError::File {
            action: "create",
            path: path.clone(),
            source,
        })?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "the folder stays behind");
        }
    }
}

impl Bed {
    /// Starts the processes and waits until the fabric is healthy.
    ///
    /// # Errors
    /// [`BenchError::Died`], [`BenchError::NotReady`].
    pub async fn start(options: &BedOptions) -> Result<Bed, BenchError> {
        let folder = Folder::create()?;
        let (manager, manager_addr, nodes) = start_processes(options, &folder.0)?;
        let mut bed = Bed { nodes, manager, manager_addr, link: None, _folder: folder };
        bed.wait_until_ready(options).await?;
        if let Some(cpu) = options.cpu {
            bed.pin_to(cpu)?;
        }
        Ok(bed)
    }

    /// Where the manager listens.
    pub fn manager_addr(&self) -> &Addr {
        &self.manager_addr
    }

    /// CPU seconds of the target processes so far.
    ///
    /// # Errors
    /// If one has ended.
    pub fn target_cpu_seconds(&self) -> Result<f64, BenchError> {
        self.nodes.iter().map(|node| cpu_seconds(node.pid())).sum()
    }

    /// CPU seconds of all processes so far.
    ///
    /// # Errors
    /// If one has ended.
    pub fn all_cpu_seconds(&self) -> Result<f64, BenchError> {
        Ok(self.target_cpu_seconds()? + cpu_seconds(self.manager.pid())?)
    }

    /// Creates a volume of two copies, which may lie on two drives of one node.
    ///
    /// # Errors
    /// [`BenchError::Manager`].
    pub async fn create_volume(&mut self, name: &str, size_bytes: u64) -> Result<(), BenchError> {
        let request = ApiRequest::VolumeCreate {
            name: name.to_owned(),
            size_bytes,
            copies: 2,
            pool: None,
            stripe_unit_bytes: None,
            width: Some(1),
            failure_domain: FailureDomain::Drive,
            thin: false,
            dry_run: false,
        };
        self.ask("volume-create", &request).await.map(drop)
    }

    /// Bytes that all targets have written to their drives' logs so far. Takes a moment: the figures are
    /// gathered once per second.
    ///
    /// # Errors
    /// [`BenchError::Manager`].
    pub async fn log_bytes(&mut self) -> Result<u64, BenchError> {
        sleep(USAGE_AGE).await;
        match self.ask("drive-list", &ApiRequest::DriveList {}).await? {
            ApiAnswer::Drives { drives } => {
                Ok(drives.iter().filter_map(|d| d.usage).map(|u| u.log_bytes_written).sum())
            }
            _ => Err(not_an_answer("drive-list")),
        }
    }

    /// Fails if a process has ended.
    ///
    /// # Errors
    /// [`BenchError::Died`].
    pub fn check(&mut self) -> Result<(), BenchError> {
        self.manager.check()?;
        self.nodes.iter_mut().try_for_each(Daemon::check)
    }

    /// Pins what runs. Not before: an executor that starts on a single core takes itself for alone on the machine,
    /// and never spins.
    fn pin_to(&self, cpu: usize) -> Result<(), BenchError> {
        for process in self.nodes.iter().chain([&self.manager]) {
            affinity::pin_process(process.pid(), &[cpu])
                .map_err(|source| BenchError::System { action: "pin a process to a core", source })?;
        }
        Ok(())
    }

    async fn wait_until_ready(&mut self, options: &BedOptions) -> Result<(), BenchError> {
        let until = now() + READY_PATIENCE;
        loop {
            self.check()?;
            let missing = match self.ask("status", &ApiRequest::Status {}).await {
                Ok(ApiAnswer::Status(status)) => {
                    let up = status.nodes.iter().filter(|n| n.presence == Presence::Up);
                    let drives: usize = up.map(|n| n.drives).sum();
                    let wanted = (options.nodes * options.drives) as usize;
                    match status.health {
                        Health::Healthy if drives == wanted => return Ok(()),
                        Health::Healthy => format!("{drives} of {wanted} drives are up"),
                        _ => status.reasons.join("; "),
                    }
                }
                Ok(_) => return Err(not_an_answer("status")),
                Err(error) => error.to_string(),
            };
            if now() >= until {
                return Err(BenchError::NotReady { seconds: READY_PATIENCE.as_secs(), missing });
            }
            sleep(READY_POLL).await;
        }
    }

    async fn ask(&mut self, operation: &'static str, request: &ApiRequest) -> Result<ApiAnswer, BenchError> {
        let link = match self.link.take().filter(|link| !link.is_closed()) {
            Some(link) => link,
            None => {
                Link::connect(&self.manager_addr, &Hello::new(PeerRole::Tool, None, "weft bench")).await?
            }
        };
        let frame = link.call(Kind::Api, &encode_request(request), vec![]).await?;
        self.link = Some(link);
        let refused = |message: String| BenchError::Manager { operation, message };
        let status = Status::from_u16(frame.envelope.status);
        if status != Status::Ok {
            return Err(refused(format!("{status}: {}", String::from_utf8_lossy(&frame.head))));
        }
        let reply = decode_reply(&frame.body).map_err(|e| refused(e.to_string()))?;
        reply.into_result().map_err(|e| refused(e.to_string()))
    }
}

fn not_an_answer(operation: &'static str) -> BenchError {
    BenchError::Manager { operation, message: "an answer to something else".into() }
}

fn start_processes(options: &BedOptions, folder: &Path) -> Result<(Daemon, Addr, Vec<Daemon>), BenchError> {
    let ports = free_ports(1 + options.nodes as usize)?;
    let manager_addr = loopback(ports[0]);
    let path = |name: &str| folder.join(name).display().to_string();
    let arguments = vec![
        "manager".into(),
        "run".into(),
        "--store".into(),
        path("map.redb"),
        "--listen".into(),
        manager_addr.clone(),
        "--socket".into(),
        path("manager.sock"),
    ];
    let manager = Daemon::start("the manager", &options.program, &arguments, &folder.join("manager.log"))?;
    let mut nodes = Vec::with_capacity(options.nodes as usize);
    for (i, port) in ports[1..].iter().enumerate() {
        let name = format!("node-{}", i + 1);
        let arguments = node_arguments(options, &name, &manager_addr, *port);
        nodes.push(Daemon::start(&name, &options.program, &arguments, &folder.join(format!("{name}.log")))?);
    }
    let manager_addr = manager_addr.parse().expect("loopback and a port are an address");
    Ok((manager, manager_addr, nodes))
}

fn node_arguments(options: &BedOptions, name: &str, manager: &str, port: u16) -> Vec<String> {
    let listen = loopback(port);
    let mut arguments: Vec<String> =
        ["node", "run", "--name", name, "--manager", manager, "--listen", &listen].map(String::from).into();
    for _ in 0..options.drives {
        arguments.extend(["--drive".to_owned(), format!("mem:{}", options.drive_bytes)]);
    }
    arguments
}

fn loopback(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// Ports that nobody listens on at this moment, all different.
fn free_ports(count: usize) -> Result<Vec<u16>, BenchError> {
    let take = || -> std::io::Result<Vec<u16>> {
        let listeners: Vec<TcpListener> =
            (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
        listeners.iter().map(|l| Ok(l.local_addr()?.port())).collect()
    };
    take().map_err(|source| BenchError::System { action: "find free ports", source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ() {
        let mut ports = free_ports(8).expect("there are eight");
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
    }

    #[test]
    fn a_node_is_told_all_its_drives() {
        let options =
            BedOptions { program: PathBuf::new(), nodes: 1, drives: 2, drive_bytes: 1 << 27, cpu: None };
        let arguments = node_arguments(&options, "node-1", "127.0.0.1:1", 2).join(" ");
        assert_eq!(
            arguments,
            "node run --name node-1 --manager 127.0.0.1:1 --listen 127.0.0.1:2 \
             --drive mem:134217728 --drive mem:134217728"
        );
    }
}
