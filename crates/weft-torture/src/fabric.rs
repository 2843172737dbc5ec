//! The fabric under torture: a manager, nodes with drives on real files, each a process on its host.

use crate::Trouble;
use crate::stall::{Stalled, threads_of};
use crate::world::{Host, World, run, signal};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a fabric may take to be healthy again after the last fault ended, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// How long it has to stay healthy to count as such: longer than a target's lease.
const STEADY: Duration = Duration::from_secs(3);

/// The size of a device, in bytes.
pub const DEVICE_BYTES: u64 = 256 << 20;

/// Parts of the devices that have several.
const PARTS: usize = 2;

/// Room in the file system of the one node whose devices may be starved of it, in MiB: enough for both, and
/// no more.
const SMALL_MIB: u64 = 560;

/// A process that can be killed, frozen and started again.
pub struct Member {
    /// Where it runs.
    pub host: Host,
    args: Vec<String>,
    /// What is said besides: at the first start the first of them, and so on in turns.
    in_turns: Vec<Vec<String>>,
    starts: Cell<usize>,
    log: PathBuf,
    child: RefCell<Option<Child>>,
    /// A thread of it that stands still.
    stalled: RefCell<Option<Stalled>>,
}

/// A node of the fabric.
pub struct Node {
    /// Its process.
    pub member: Member,
    /// The files that its devices are. The first one has several parts, where the program knows any.
    pub devices: Vec<PathBuf>,
}

/// All of it.
pub struct Fabric {
    weft: PathBuf,
    /// Everything of the run is below.
    pub dir: PathBuf,
    /// The manager's process.
    pub manager: Member,
    /// The nodes.
    pub nodes: Vec<Node>,
    address: String,
    id: String,
    /// File systems of its own.
    mounted: Vec<PathBuf>,
}

impl Member {
    /// Starts its process.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self, program: &Path) -> Result<(), Trouble> {
        let start = self.starts.replace(self.starts.get() + 1);
        let turn = self.in_turns.get(start % self.in_turns.len().max(1)).into_iter().flatten();
        let args: Vec<String> = self.args.iter().chain(turn).cloned().collect();
        let child = self.host.start(program, &args, &self.log)?;
        *self.child.borrow_mut() = Some(child);
        Ok(())
    }

    /// Kills its process with SIGKILL, and awaits the end.
    pub fn kill(&self) {
        if let Some(mut child) = self.child.borrow_mut().take() {
            let _ = child.kill();
            // The end of a thread that is traced is awaited by its tracer.
            self.resume();
            let _ = child.wait();
        }
    }

    /// The names of the threads that serve drives; none if the process has only one.
    pub fn threads(&self) -> Vec<String> {
        let child = self.child.borrow();
        let threads = child.as_ref().map(|child| threads_of(child.id(), "target-"));
        threads.into_iter().flatten().map(|(name, _)| name).collect()
    }

    /// Has one of these threads stand still, until [`Member::resume`]. It is counted from the first one again
    /// where there are fewer. False if the process has only one thread, and nothing was done.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn stall(&self, which: usize) -> Result<bool, Trouble> {
        let child = self.child.borrow();
        let threads = child.as_ref().map(|child| threads_of(child.id(), "target-")).unwrap_or_default();
        let Some((_, thread)) = threads.get(which % threads.len().max(1)) else { return Ok(false) };
        *self.stalled.borrow_mut() = Some(Stalled::begin(*thread)?);
        Ok(true)
    }

    /// Lets a thread that stands still go on; whether there was one.
    pub fn resume(&self) -> bool {
        self.stalled.borrow_mut().take().is_some()
    }

    /// Sends its process a signal.
    ///
    /// # Errors
    /// If there is none.
    pub fn signal(&self, name: &str) -> Result<(), Trouble> {
        match &*self.child.borrow() {
            Some(child) => signal(child, name),
            None => Err(Trouble(format!("{} does not run", self.host.name))),
        }
    }

    /// Whether it runs, or is to.
    ///
    /// # Errors
    /// If it ended by itself: how, and its last words.
    pub fn check(&self) -> Result<(), Trouble> {
        let mut child = self.child.borrow_mut();
        let Some(running) = child.as_mut() else { return Ok(()) };
        match running.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                *child = None;
                Err(Trouble(format!("{} ended by itself, {status}:\n{}", self.host.name, tail(&self.log))))
            }
            Err(error) => Err(Trouble::of(&self.host.name, error)),
        }
    }
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

impl Fabric {
    /// Starts a fabric of so many nodes with two devices each.
    ///
    /// # Errors
    /// What could not be made or started.
    pub fn start(weft: &Path, dir: &Path, world: World, nodes: usize) -> Result<Fabric, Trouble> {
        let log = dir.join("log");
        fs::create_dir_all(&log).map_err(|e| Trouble::of(log.display(), e))?;
        let host = world.host("manager", 1)?;
        let address = format!("{}:4800", host.ip);
        let store = dir.join("map.redb").display().to_string();
        run(&weft.display().to_string(), &["fabric", "init", &store])?;
        let socket = dir.join("manager.sock").display().to_string();
        let args = ["manager", "run", "--store", &store, "--listen", &address, "--socket", &socket];
        let manager = member(host, &args.map(String::from), &log);
        let mut fabric = Fabric {
            weft: weft.into(),
            dir: dir.into(),
            manager,
            nodes: Vec::new(),
            address,
            id: String::new(),
            mounted: Vec::new(),
        };
        fabric.manager.start(weft)?;
        fabric.id = fabric.await_id()?;
        for n in 0..nodes {
            let node = fabric.make_node(world, n, &log)?;
            node.member.start(weft)?;
            fabric.nodes.push(node);
        }
        let parts = if fabric.knows_parts()? { PARTS } else { 1 };
        fabric.await_drives((parts + 1) * nodes)?;
        Ok(fabric)
    }

    fn make_node(&mut self, world: World, n: usize, log: &Path) -> Result<Node, Trouble> {
        let name = format!("node-{}", n + 1);
        let host = world.host(&name, 11 + n as u8)?;
        let folder = self.dir.join(&name);
        fs::create_dir_all(&folder).map_err(|e| Trouble::of(folder.display(), e))?;
        if n == 0 && world == World::Namespaces {
            let size = format!("size={SMALL_MIB}m");
            run("mount", &["-t", "tmpfs", "-o", &size, "none", &folder.display().to_string()])?;
            self.mounted.push(folder.clone());
        }
        let devices: Vec<PathBuf> = (1..=2).map(|d| folder.join(format!("drive-{d}.img"))).collect();
        let listen = format!("{}:4810", host.ip);
        let mut args: Vec<String> =
            ["node", "run", "--name", &name, "--manager", &self.address, "--listen", &listen]
                .map(String::from)
                .into();
        for device in &devices {
            self.format(device)?;
            args.extend(["--drive".into(), device.display().to_string()]);
        }
        let mut member = member(host, &args, log);
        // Each start deals the drives to another number of threads, where the program knows any.
        let threads = [["3", "1", "2"], ["1", "3", "2"], ["2", "3", "1"]][n % 3];
        if self.weft(&["node", "run", "--help"])?.contains("--threads") {
            member.in_turns = threads.map(|n| vec!["--threads".to_owned(), n.to_owned()]).into();
        }
        Ok(Node { member, devices })
    }

    /// Makes a file of the right size a device of this fabric; what it was before is gone. A node's first one
    /// gets parts.
    ///
    /// # Errors
    /// What `weft drive format` said.
    pub fn format(&self, device: &Path) -> Result<(), Trouble> {
        let file = File::create(device).map_err(|e| Trouble::of(device.display(), e))?;
        file.set_len(DEVICE_BYTES).map_err(|e| Trouble::of(device.display(), e))?;
        let (path, parts) = (device.display().to_string(), PARTS.to_string());
        let format = ["drive", "format", &path, "--fabric-id", &self.id];
        let has_parts = path.ends_with("-1.img") && self.knows_parts()?;
        // Parts of files are for trying, so it has to be insisted on.
        let in_parts: &[&str] = if has_parts { &["--parts", &parts, "--force"] } else { &[] };
        self.weft(&[&format, in_parts].concat()).map(|_| ())
    }

    /// Whether the program knows of devices with several parts.
    fn knows_parts(&self) -> Result<bool, Trouble> {
        Ok(self.weft(&["drive", "format", "--help"])?.contains("--parts"))
    }

    /// Starts a node again.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_node(&self, n: usize) -> Result<(), Trouble> {
        self.nodes[n].member.start(&self.weft)
    }

    /// Starts the manager again.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_manager(&self) -> Result<(), Trouble> {
        self.manager.start(&self.weft)
    }

    /// The program under torture.
    pub fn program(&self) -> &Path {
        &self.weft
    }

    /// The manager's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Runs `weft` to its end.
    ///
    /// # Errors
    /// What it complained of.
    pub fn weft(&self, args: &[&str]) -> Result<String, Trouble> {
        let mut command = Command::new(&self.weft);
        command.args(args).env("WEFT_FABRIC", &self.address).env("NO_COLOR", "1").stdin(Stdio::null());
        let output = command.output().map_err(|e| Trouble::of(self.weft.display(), e))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(Trouble(format!("weft {}: {said}", args.join(" "))))
            }
        }
    }

    /// What `weft ... --json` says.
    ///
    /// # Errors
    /// What it complained of.
    pub fn json(&self, args: &[&str]) -> Result<Value, Trouble> {
        let text = self.weft(&[args, &["--json"]].concat())?;
        serde_json::from_str(&text).map_err(|e| Trouble::of(format!("weft {}", args.join(" ")), e))
    }

    /// Waits until `is_so` of what `weft ... --json` says.
    ///
    /// # Errors
    /// What it was last, after [`PATIENCE`], or a process that ended by itself.
    pub fn wait(
        &self,
        what: &str,
        args: &[&str],
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Duration, Trouble> {
        let began = Instant::now();
        loop {
            self.check()?;
            let found = self.json(args);
            if found.as_ref().is_ok_and(&is_so) {
                return Ok(began.elapsed());
            }
            if began.elapsed() > PATIENCE {
                let found = found.map_or_else(|e| e.to_string(), |v| v.to_string());
                return Err(Trouble(format!("{what}: not within {PATIENCE:?}: {found}")));
            }
            std::thread::sleep(Duration::from_millis(250));
        }
    }

    /// Waits until nothing is degraded, and stays so: a manager that was frozen knows nothing for a moment.
    /// Returns how long it took.
    ///
    /// # Errors
    /// As [`Fabric::wait`].
    pub fn await_health(&self) -> Result<Duration, Trouble> {
        let began = Instant::now();
        let since = Cell::new(None::<Instant>);
        self.wait("healthy", &["status"], |status| {
            let is_healthy = status["health"] == "healthy";
            since.set(is_healthy.then(|| since.get().unwrap_or_else(Instant::now)));
            since.get().is_some_and(|since| since.elapsed() >= STEADY)
        })?;
        Ok(began.elapsed().saturating_sub(STEADY))
    }

    /// Whether every process that should run does.
    ///
    /// # Errors
    /// Which one ended by itself.
    pub fn check(&self) -> Result<(), Trouble> {
        self.manager.check()?;
        self.nodes.iter().try_for_each(|node| node.member.check())
    }

    /// What the fabric says of the drives that are this file, or parts of it.
    ///
    /// # Errors
    /// If the fabric has none such.
    pub fn drives_on(&self, device: &Path) -> Result<Vec<Value>, Trouble> {
        let list = self.json(&["drive", "list"])?;
        let drives = list["drives"].as_array().into_iter().flatten();
        let found: Vec<Value> = drives.filter(|drive| is_on(drive, device)).cloned().collect();
        match found.is_empty() {
            true => Err(Trouble(format!("no drive of the fabric is {}: {list}", device.display()))),
            false => Ok(found),
        }
    }

    /// Has the drives of a device take part again, after it was away or refused to write.
    ///
    /// # Errors
    /// If they do not within [`PATIENCE`].
    pub fn restore(&self, device: &Path) -> Result<(), Trouble> {
        for state in ["failed", "draining"] {
            for drive in self.drives_on(device)?.iter().filter(|drive| drive["state"] == state) {
                let id = drive["id"].as_str().unwrap_or_default();
                let args: &[&str] = match state {
                    "failed" => &["drive", "restore", id],
                    _ => &["drive", "evacuate", id, "--cancel"],
                };
                self.wait("the drive takes part again", args, |_| true)?;
            }
        }
        Ok(())
    }

    fn await_id(&self) -> Result<String, Trouble> {
        self.wait("the manager answers", &["fabric", "show"], |_| true)?;
        let shown = self.json(&["fabric", "show"])?;
        let id = shown["fabric"].as_str().map(str::to_owned);
        id.ok_or_else(|| Trouble(format!("the fabric has no identity: {shown}")))
    }

    fn await_drives(&self, count: usize) -> Result<Duration, Trouble> {
        self.wait("the drives have joined", &["drive", "list"], |list| {
            let drives = list["drives"].as_array().into_iter().flatten();
            drives.filter(|d| d["state"] == "active").count() == count
        })
    }
}

/// Whether a drive is this file, or a part of it.
pub fn is_on(drive: &Value, device: &Path) -> bool {
    let (path, device) = (drive["path"].as_str().unwrap_or_default(), device.display().to_string());
    path.strip_prefix(&device).is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
}

fn member(host: Host, args: &[String], log: &Path) -> Member {
    let log = log.join(format!("{}.log", host.name));
    let (in_turns, starts) = (Vec::new(), Cell::new(0));
    let (child, stalled) = (RefCell::new(None), RefCell::new(None));
    Member { host, args: args.to_vec(), in_turns, starts, log, child, stalled }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.nodes.iter().for_each(|node| node.member.kill());
        self.manager.kill();
        for folder in &self.mounted {
            let _ = run("umount", &[&folder.display().to_string()]);
        }
    }
}
