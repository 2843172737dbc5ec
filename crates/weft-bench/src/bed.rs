//! The fabric under test: its own processes on loopback, drives in memory or in files of its own, gone afterwards.
//!
//! It starts the weft binary's daemons and speaks to them as any tool and client would; it knows nothing of
//! what is inside them.

use crate::BenchError;
use crate::folder::Folder;
use crate::process::{Daemon, cpu_seconds};
use crate::tool::{Tool, not_an_answer};
use crate::workload::spin_name;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use weft_api::{
    ApiAnswer, ApiRequest, DriveInfo, FabricLoad, FabricStatus, FailureDomain, Health, Presence, ScrubInfo,
    SettingsWish,
};
use weft_rt::affinity;
use weft_rt::{Addr, Spin, now, sleep};

/// How long the fabric may take to come up: many times what it needs on a loaded machine.
const READY_PATIENCE: Duration = Duration::from_secs(30);

/// How often to look whether it is.
const READY_POLL: Duration = Duration::from_millis(50);

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
    /// How targets wait.
    pub spin: Spin,
    /// An existing folder in which each drive is a file; none: drives in memory.
    pub drives_in: Option<PathBuf>,
}

/// A volume to create.
#[derive(Clone, Copy, Debug)]
pub struct NewVolume<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// What must not hold two copies.
    pub failure_domain: FailureDomain,
    /// Objects that a stripe runs over; none: the default.
    pub width: Option<u32>,
    /// Whether it may be larger than what is free.
    pub is_thin: bool,
}

/// A running fabric. Dropped, its processes end and its folder is removed.
pub struct Bed {
    nodes: Vec<Daemon>,
    manager: Daemon,
    manager_addr: Addr,
    tool: Tool,
    _folder: Folder,
    drives: Option<Folder>,
}

impl Bed {
    /// Starts the processes and waits until the fabric is healthy.
    ///
    /// # Errors
    /// [`BenchError::Died`], [`BenchError::NotReady`].
    pub async fn start(options: &BedOptions) -> Result<Bed, BenchError> {
        let folder = Folder::create(&std::env::temp_dir())?;
        let drives = options.drives_in.as_deref().map(Folder::create).transpose()?;
        let ports = free_ports(1 + options.nodes as usize)?;
        let addr = loopback(ports[0]);
        let manager = start_manager(options, &addr, folder.path())?;
        let manager_addr: Addr = addr.parse().expect("loopback and a port are an address");
        let tool = Tool::new(vec![manager_addr.clone()]);
        let mut bed = Bed { nodes: vec![], manager, manager_addr, tool, _folder: folder, drives };
        bed.start_nodes(options, &ports[1..]).await?;
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

    /// Creates a volume of two copies.
    ///
    /// # Errors
    /// [`BenchError::Manager`].
    pub async fn create_volume(&mut self, volume: &NewVolume<'_>) -> Result<(), BenchError> {
        let request = ApiRequest::VolumeCreate {
            name: volume.name.to_owned(),
            size_bytes: volume.size_bytes,
            protection: weft_types::Protection::mirror(2),
            pool: None,
            stripe_unit_bytes: None,
            width: volume.width,
            failure_domain: volume.failure_domain,
            thin: volume.is_thin,
            dry_run: false,
        };
        self.ask("volume-create", &request).await.map(drop)
    }

    /// How the fabric is. What targets say in it may be a second old.
    ///
    /// # Errors
    /// [`BenchError::Manager`].
    pub async fn status(&mut self) -> Result<FabricStatus, BenchError> {
        match self.ask("status", &ApiRequest::Status {}).await? {
            ApiAnswer::Status(status) => Ok(*status),
            _ => Err(not_an_answer("status")),
        }
    }

    /// The counters of all nodes that are up, as they are now.
    ///
    /// # Errors
    /// [`BenchError::Manager`].
    pub async fn load(&mut self) -> Result<FabricLoad, BenchError> {
        self.tool.load().await
    }

    /// The drives, with their roles as they are and with figures that may be a second old.
    ///
    /// # Errors
    /// [`BenchError::Manager`].
    pub async fn drives(&mut self) -> Result<Vec<DriveInfo>, BenchError> {
        match self.ask("drive-list", &ApiRequest::DriveList {}).await? {
            ApiAnswer::Drives { drives } => Ok(drives),
            _ => Err(not_an_answer("drive-list")),
        }
    }

    /// Sets how long a replica may be out before its data is rebuilt elsewhere.
    ///
    /// # Errors
    /// [`BenchError::Manager`].
    pub async fn rebuild_after(&mut self, after: Duration) -> Result<(), BenchError> {
        let request = ApiRequest::Settings(SettingsWish::rebuild_after_ms(after.as_millis() as u64));
        self.ask("settings", &request).await.map(drop)
    }

    /// Has every volume read and verified as a whole.
    ///
    /// # Errors
    /// [`BenchError::Manager`].
    pub async fn start_scrub(&mut self) -> Result<(), BenchError> {
        self.ask("scrub-start", &ApiRequest::ScrubStart { volumes: vec![] }).await.map(drop)
    }

    /// How scrubs are getting on.
    ///
    /// # Errors
    /// [`BenchError::Manager`].
    pub async fn scrub(&mut self) -> Result<ScrubInfo, BenchError> {
        match self.ask("scrub-status", &ApiRequest::ScrubStatus {}).await? {
            ApiAnswer::Scrub(scrub) => Ok(*scrub),
            _ => Err(not_an_answer("scrub-status")),
        }
    }

    /// The numbers of the target processes.
    pub fn node_pids(&self) -> Vec<u32> {
        self.nodes.iter().map(Daemon::pid).collect()
    }

    /// The name of a node, counted from 0 on.
    pub fn node_name(&self, node: usize) -> &str {
        self.nodes[node].name()
    }

    /// Freezes a node as a machine that hangs: it keeps what it has, and misses what happens.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn freeze(&self, node: usize) -> Result<(), BenchError> {
        self.nodes[node].freeze()
    }

    /// Lets a frozen node go on.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn thaw(&self, node: usize) -> Result<(), BenchError> {
        self.nodes[node].thaw()
    }

    /// Ends a node at once and for good, with what its drives hold in memory.
    pub fn kill(&mut self, node: usize) {
        self.nodes.remove(node).kill();
    }

    /// Bytes that all targets have written to their drives' logs so far.
    ///
    /// # Errors
    /// [`BenchError::Manager`].
    pub async fn log_bytes(&mut self) -> Result<u64, BenchError> {
        let load = self.load().await?;
        Ok(load.nodes.iter().flat_map(|node| &node.drives).map(|d| d.log_bytes_written).sum())
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

    async fn start_nodes(&mut self, options: &BedOptions, ports: &[u16]) -> Result<(), BenchError> {
        let manager = self.manager_addr.to_string();
        let fabric = match &self.drives {
            Some(_) => Some(self.wait_for_manager().await?.fabric.to_string()),
            None => None,
        };
        for (i, port) in ports.iter().enumerate() {
            let name = format!("node-{}", i + 1);
            let mut drives = vec![];
            for d in 1..=options.drives {
                drives.push(match (&self.drives, &fabric) {
                    (Some(folder), Some(fabric)) => {
                        let path = folder.path().join(format!("{name}-drive-{d}"));
                        format(&options.program, &path, options.drive_bytes, fabric)?;
                        path.display().to_string()
                    }
                    _ => format!("mem:{}", options.drive_bytes),
                });
            }
            let log = self._folder.path().join(format!("{name}.log"));
            let arguments = node_arguments(&name, &manager, *port, &drives, options.spin);
            self.nodes.push(Daemon::start(&name, &options.program, &arguments, &log)?);
        }
        Ok(())
    }

    async fn wait_for_manager(&mut self) -> Result<FabricStatus, BenchError> {
        let until = now() + READY_PATIENCE;
        loop {
            self.check()?;
            match self.status().await {
                Err(BenchError::Link(_)) if now() < until => sleep(READY_POLL).await,
                answer => return answer,
            }
        }
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
        self.tool.ask(operation, request).await
    }
}

fn start_manager(options: &BedOptions, addr: &str, folder: &Path) -> Result<Daemon, BenchError> {
    let path = |name: &str| folder.join(name).display().to_string();
    make_fabric(&options.program, &path("map.redb"))?;
    let arguments = vec![
        "manager".into(),
        "run".into(),
        "--store".into(),
        path("map.redb"),
        "--listen".into(),
        addr.to_owned(),
        "--socket".into(),
        path("manager.sock"),
    ];
    Daemon::start("the manager", &options.program, &arguments, &folder.join("manager.log"))
}

fn node_arguments(name: &str, manager: &str, port: u16, drives: &[String], spin: Spin) -> Vec<String> {
    let listen = loopback(port);
    let mut arguments: Vec<String> =
        ["node", "run", "--name", name, "--manager", manager, "--listen", &listen].map(String::from).into();
    for drive in drives {
        arguments.extend(["--drive".to_owned(), drive.clone()]);
    }
    if spin != Spin::default() {
        arguments.extend(["--spin", spin_name(spin)].map(String::from));
    }
    arguments
}

/// Makes a fabric, in a store of its own.
fn make_fabric(program: &Path, store: &str) -> Result<(), BenchError> {
    run(program, &["fabric", "init", store])
}

/// Makes a file a drive of the fabric; its space is reserved, so that figures are not those of allocation.
fn format(program: &Path, path: &Path, bytes: u64, fabric: &str) -> Result<(), BenchError> {
    let (path, bytes) = (path.display().to_string(), bytes.to_string());
    run(program, &["drive", "format", "--fabric-id", fabric, "--size", &bytes, &path])
}

/// Runs a command of `weft` to its end.
fn run(program: &Path, arguments: &[&str]) -> Result<(), BenchError> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output =
        output.map_err(|source| BenchError::File { action: "start", path: program.to_owned(), source })?;
    if output.status.success() {
        return Ok(());
    }
    Err(BenchError::Died {
        name: format!("`weft {}`", arguments.join(" ")),
        how: output.status.to_string(),
        log: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
    })
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
        let drives = ["mem:134217728".to_owned(), "/a drive".to_owned()];
        let arguments = node_arguments("node-1", "127.0.0.1:1", 2, &drives, Spin::Never);
        assert_eq!(
            arguments.join(" "),
            "node run --name node-1 --manager 127.0.0.1:1 --listen 127.0.0.1:2 \
             --drive mem:134217728 --drive /a drive --spin never"
        );
    }
}
