//! The mounts of a run, each a process on a host of its own, and the users of their files.

use crate::Trouble;
use crate::fabric::{Fabric, PATIENCE, tail};
use crate::users::note_death;
use crate::world::{Host, World, signal};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// The file system that is mounted.
pub const FILES: &str = "files";

/// How many mounts, and users of each of them in turns.
pub const MOUNTS: usize = 3;
const USERS: usize = 4;

/// How long a call on a mount waits for the fabric: longer than any fault lasts.
const TIMEOUT: &str = "90s";

/// How long to wait before a mount is tried again that could not begin: nodes may be dead.
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// A mount, whether or not its process lives.
pub struct Mounted {
    /// Where its process runs.
    pub host: Host,
    folder: PathBuf,
    deaths: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    /// When to start it again, if it is to run and does not.
    starts_at: Option<Instant>,
}

/// All mounts, and their users.
pub struct Mounts {
    /// By their indices.
    pub all: Vec<Mounted>,
    users: Option<Child>,
    dir: PathBuf,
    /// There was no space at times: mounts may end with something lost.
    has_filled: bool,
}

impl Mounted {
    fn start(&mut self, fabric: &Fabric) -> Result<(), Trouble> {
        // Its words are its own: they say whether it has begun.
        let _ = fs::remove_file(&self.log);
        let folder = self.folder.display().to_string();
        let args =
            ["mount", FILES, &folder, "--foreground", "--timeout", TIMEOUT, "--fabric", fabric.address()];
        let child = self.host.start(fabric.program(), &args.map(String::from), &self.log)?;
        (self.child, self.starts_at) = (Some(child), None);
        Ok(())
    }

    fn has_begun(&self) -> bool {
        fs::read_to_string(&self.log).is_ok_and(|said| said.contains("is mounted at"))
    }

    /// Kills its process. Its folder stays as it is: a mount that answers nothing.
    pub fn kill(&mut self) {
        self.starts_at = None;
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// What was written through it and not synced may be lost from now on.
    ///
    /// # Errors
    /// If that cannot be noted.
    pub fn may_die(&self) -> Result<(), Trouble> {
        note_death(&self.deaths)
    }

    /// Is started again, as soon as it can be.
    pub fn revive(&mut self) {
        self.starts_at = Some(Instant::now());
    }

    /// Sends its process a signal, if it runs.
    ///
    /// # Errors
    /// If the signal cannot be sent.
    pub fn signal(&self, name: &str) -> Result<(), Trouble> {
        self.child.as_ref().map_or(Ok(()), |child| signal(child, name))
    }

    fn check(&mut self, fabric: &Fabric) -> Result<(), Trouble> {
        if self.starts_at.is_some_and(|at| at <= Instant::now()) {
            return self.start(fabric);
        }
        let Some(child) = &mut self.child else { return Ok(()) };
        match child.try_wait() {
            Ok(None) => Ok(()),
            // The fabric may not have answered in time.
            Ok(Some(_)) if !self.has_begun() => {
                (self.child, self.starts_at) = (None, Some(Instant::now() + AGAIN_AFTER));
                Ok(())
            }
            Ok(Some(status)) => {
                Err(Trouble(format!("{} ended by itself, {status}:\n{}", self.host.name, tail(&self.log))))
            }
            Err(error) => Err(Trouble::of(&self.host.name, error)),
        }
    }
}

impl Mounts {
    /// Whether file systems can be mounted here.
    pub fn are_possible() -> bool {
        fs::File::options().read(true).write(true).open("/dev/fuse").is_ok()
            && rustix::process::geteuid().is_root()
    }

    /// None.
    pub fn none() -> Mounts {
        Mounts { all: Vec::new(), users: None, dir: PathBuf::new(), has_filled: false }
    }

    /// There will be no space, or was none a moment ago: what is kept back may be lost.
    ///
    /// # Errors
    /// If that cannot be noted.
    pub fn may_lose(&mut self) -> Result<(), Trouble> {
        self.has_filled = true;
        self.all.iter().try_for_each(Mounted::may_die)
    }

    /// Makes a file system, mounts it on hosts of their own, and starts the users.
    ///
    /// # Errors
    /// If something cannot be started.
    pub fn start(fabric: &Fabric, world: World, seed: u64) -> Result<Mounts, Trouble> {
        fabric.weft(&["fs", "create", FILES, "--copies", "2"])?;
        let dir = fabric.dir.join("mounts");
        let mut all = Vec::new();
        for n in 1..=MOUNTS {
            let host = world.host(&format!("mount-{n}"), 51 + n as u8)?;
            let folder = dir.join(n.to_string());
            fs::create_dir_all(&folder).map_err(|e| Trouble::of(folder.display(), e))?;
            let log = fabric.dir.join(format!("log/{}.log", host.name));
            let deaths = dir.join(format!("deaths-{n}"));
            note_death(&deaths)?;
            let mut mounted = Mounted { host, folder, deaths, log, child: None, starts_at: None };
            mounted.start(fabric)?;
            all.push(mounted);
        }
        let mut mounts = Mounts { all, users: None, dir, has_filled: false };
        mounts.await_all(fabric)?;
        mounts.users = Some(mounts.start_users(fabric, seed)?);
        Ok(mounts)
    }

    fn start_users(&self, fabric: &Fabric, seed: u64) -> Result<Child, Trouble> {
        let program = std::env::current_exe().map_err(|e| Trouble::of("this program's path", e))?;
        let mut args = vec!["users".to_owned()];
        let mut option = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        for mounted in &self.all {
            option("mount", mounted.folder.display().to_string());
            option("deaths", mounted.deaths.display().to_string());
        }
        option("users", USERS.to_string());
        option("seed", seed.to_string());
        option("end", self.dir.join("end").display().to_string());
        option("count", self.dir.join("count").display().to_string());
        self.all[0].host.start(&program, &args, &self.log(fabric))
    }

    fn log(&self, fabric: &Fabric) -> PathBuf {
        fabric.dir.join("log/users.log")
    }

    /// Waits until all mounts are there.
    fn await_all(&mut self, fabric: &Fabric) -> Result<(), Trouble> {
        let began = Instant::now();
        while !self.all.iter().all(|mounted| mounted.child.is_some() && mounted.has_begun()) {
            self.check(fabric)?;
            if began.elapsed() > PATIENCE {
                let logs: Vec<String> = self.all.iter().map(|mounted| tail(&mounted.log)).collect();
                return Err(Trouble(format!("not all is mounted within {PATIENCE:?}: {logs:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Starts what is to be started, and looks whether all others run.
    ///
    /// # Errors
    /// Which one ended by itself, or what the users have found.
    pub fn check(&mut self, fabric: &Fabric) -> Result<(), Trouble> {
        self.all.iter_mut().try_for_each(|mounted| mounted.check(fabric))?;
        let Some(users) = &mut self.users else { return Ok(()) };
        match users.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(Trouble(format!("users of files: {}", words(&self.log(fabric))))),
            Err(error) => Err(Trouble::of("the users of files", error)),
        }
    }

    /// Has the users compare all that is there with what was acknowledged, and ends the mounts. Returns how
    /// many of their calls had an answer.
    ///
    /// # Errors
    /// What is not as it was acknowledged.
    pub fn judge(&mut self, fabric: &Fabric) -> Result<u64, Trouble> {
        if self.all.is_empty() {
            return Ok(0);
        }
        self.await_all(fabric)?;
        let end = self.dir.join("end");
        fs::write(&end, "").map_err(|e| Trouble::of(end.display(), e))?;
        let began = Instant::now();
        let mut users = self.users.take().expect("they were started");
        let status = loop {
            match users.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if began.elapsed() > PATIENCE => {
                    let _ = users.kill();
                    return Err(Trouble(format!("users of files do not end within {PATIENCE:?}")));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => return Err(Trouble::of("the users of files", error)),
            }
        };
        if !status.success() {
            return Err(Trouble(format!("users of files: {}", words(&self.log(fabric)))));
        }
        fabric.weft(&["fs", "check", FILES])?;
        for mounted in &mut self.all {
            mounted.signal("TERM")?;
            let ended = mounted.child.take().map(|mut child| child.wait());
            match ended {
                Some(Ok(status)) if status.success() || self.has_filled => {}
                ended => {
                    let name = &mounted.host.name;
                    return Err(Trouble(format!(
                        "{name} did not end well: {ended:?}\n{}",
                        tail(&mounted.log)
                    )));
                }
            }
        }
        let count = self.dir.join("count");
        let count = fs::read_to_string(&count).map_err(|e| Trouble::of(count.display(), e))?;
        count.parse().map_err(|e| Trouble::of("the number of calls", e))
    }
}

/// All that is in a log.
fn words(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}

impl Drop for Mounts {
    fn drop(&mut self) {
        // First what serves: whoever waits for it goes on then.
        for mounted in &mut self.all {
            mounted.kill();
            let _ = crate::world::run("umount", &["-l", &mounted.folder.display().to_string()]);
        }
        if let Some(users) = &mut self.users {
            let _ = users.kill();
            let _ = users.wait();
        }
    }
}
