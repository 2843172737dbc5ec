//! The folder of a local fabric: which files lie where.
//!
//! ```text
//! fabric.json             what the fabric consists of
//! manager/map.redb        the manager's store
//! manager/backups/        backups of the map that it takes by itself
//! nodes/NAME/drive-K.img  the drives
//! run/manager.sock        where tools reach the manager
//! run/NAME.pid            which process is which member
//! run/lock                held while a command starts or stops the fabric
//! log/NAME.log            what the members say; what they said before is in NAME.log.1 and so on
//! ```

use super::{LocalConfig, LocalError, LocalNode, ProcessId};
use serde_json::Value;
use std::borrow::Cow;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weft_rt::{Addr, now, sleep};

/// Bytes that fit `sun_path` of a Unix socket's address, without the closing NUL (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// The folders in it.
const PARTS: [&str; 4] = ["run", "log", "manager", "nodes"];

/// How long a command waits for another one that starts or stops a part of the fabric: a node's clean stop
/// takes seconds, a whole start rarely more.
const LOCK_PATIENCE: Duration = Duration::from_secs(20);

/// How often it looks.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// How a node's log begins to say that it does not serve a drive, and why. A test starts a node with such a drive.
const LEFT_OUT: &str = "left out: ";

/// The name under which the manager's process is known in the folder.
pub(super) const MANAGER: &str = "manager";

/// The name under which a `weft up` in the foreground is known in the folder.
pub(super) const SUPERVISOR: &str = "up";

/// A local fabric's folder, whether or not it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

/// Held while a command starts or stops the fabric.
pub(super) struct FolderLock {
    _file: File,
}

impl Folder {
    /// The folder at a path.
    pub fn at(path: &Path) -> Folder {
        Folder(path.to_owned())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What the fabric consists of.
    pub fn config_file(&self) -> PathBuf {
        self.0.join("fabric.json")
    }

    /// The manager's store.
    pub fn map_file(&self) -> PathBuf {
        self.0.join("manager/map.redb")
    }

    /// The backups of the map that the manager has taken by itself.
    pub(super) fn backups(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.0.join("manager/backups"));
        let mut paths: Vec<PathBuf> =
            entries.into_iter().flatten().filter_map(|e| Some(e.ok()?.path())).collect();
        // Also one that was not finished.
        let is_backup = |name: &str| name.strip_suffix(".new").unwrap_or(name).ends_with(".weftmap");
        paths.retain(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(is_backup));
        paths.sort();
        paths
    }

    /// Whether the manager's store is there. One that cannot be seen, for want of permission or else, is not
    /// taken for missing: then another would be made beside it.
    pub(super) fn has_map_file(&self) -> Result<bool, LocalError> {
        let path = self.map_file();
        path.try_exists().map_err(LocalError::file("find", path))
    }

    /// Where tools reach the manager.
    pub fn socket(&self) -> PathBuf {
        self.0.join("run/manager.sock")
    }

    /// The manager's socket as an address, if its path is short enough for one.
    pub fn socket_addr(&self) -> Option<Addr> {
        let path = self.socket();
        (path.as_os_str().as_bytes().len() <= SOCKET_PATH_MAX).then_some(Addr::Unix(path))
    }

    /// The drive files of a node.
    pub fn drives(&self, node: &LocalNode) -> Vec<PathBuf> {
        (1..=node.drives).map(|k| self.0.join(format!("nodes/{}/drive-{k}.img", node.name))).collect()
    }

    /// Which process a member is.
    pub(super) fn pid_file(&self, member: &str) -> PathBuf {
        self.0.join(format!("run/{member}.pid"))
    }

    /// What a member says.
    pub(super) fn log_file(&self, member: &str) -> PathBuf {
        self.0.join(format!("log/{member}.log"))
    }

    /// What a member says, and said before.
    pub(super) fn log_files(&self, member: &str) -> Vec<PathBuf> {
        let is_older = |name: &str| {
            let number = name.strip_prefix(member).and_then(|rest| rest.strip_prefix(".log."));
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        };
        let entries = fs::read_dir(self.log_dir()).into_iter().flatten().flatten();
        let mut older: Vec<PathBuf> = entries.map(|e| e.path()).collect();
        older.retain(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(is_older));
        older.sort();
        older.insert(0, self.log_file(member));
        older
    }

    /// What all members say, and said before.
    pub(crate) fn log_dir(&self) -> PathBuf {
        self.0.join("log")
    }

    /// The process of a member, if it runs.
    pub(crate) fn process(&self, member: &str) -> Option<ProcessId> {
        ProcessId::read_alive(&self.pid_file(member))
    }

    /// Where a manager may answer, best first; nowhere if there is no fabric in the folder.
    ///
    /// # Errors
    /// Those of [`Folder::config`].
    pub fn manager_addrs(&self) -> Result<Vec<Addr>, LocalError> {
        let Some(config) = self.config()? else { return Ok(Vec::new()) };
        let tcp = config.manager_addr.parse().ok();
        Ok(self.socket_addr().into_iter().chain(tcp).collect())
    }

    /// What the fabric consists of; none if there is no fabric in the folder.
    ///
    /// # Errors
    /// If the description cannot be read or understood.
    pub fn config(&self) -> Result<Option<LocalConfig>, LocalError> {
        let path = self.config_file();
        match fs::read(&path) {
            Ok(bytes) => LocalConfig::decode(&bytes, &path).map(Some),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(LocalError::file("read", path)(e)),
        }
    }

    /// What the fabric consists of.
    ///
    /// # Errors
    /// Those of [`Folder::config`], and [`LocalError::NoFabric`].
    pub fn require_config(&self) -> Result<LocalConfig, LocalError> {
        self.config()?.ok_or_else(|| LocalError::NoFabric { path: self.0.clone() })
    }

    /// Replaces the description, durably and at once.
    pub(super) fn write_config(&self, config: &LocalConfig) -> Result<(), LocalError> {
        write_whole(&self.config_file(), &config.encode())
    }

    /// Makes the folder and those inside it, and locks it.
    ///
    /// # Errors
    /// [`LocalError::ForeignFolder`] if it holds something else, [`LocalError::Busy`] if it is locked.
    pub(super) fn make(&self) -> Result<FolderLock, LocalError> {
        fs::create_dir_all(&self.0).map_err(LocalError::file("create the folder", &self.0))?;
        if self.config()?.is_none() {
            self.check_is_ours()?;
        }
        for name in PARTS {
            let path = self.0.join(name);
            fs::create_dir_all(&path).map_err(LocalError::file("create the folder", path))?;
        }
        self.lock()
    }

    /// Takes back what [`Folder::make`] made, if no fabric came of it. What is not empty stays.
    pub(super) fn unmake(&self) {
        if self.config_file().exists() {
            return;
        }
        let _ = fs::remove_file(self.0.join("run/lock"));
        for name in PARTS {
            let _ = fs::remove_dir(self.0.join(name));
        }
        let _ = fs::remove_dir(&self.0);
    }

    /// Refuses a folder without a description that holds anything but what an interrupted start leaves.
    fn check_is_ours(&self) -> Result<(), LocalError> {
        let entries = fs::read_dir(&self.0).map_err(LocalError::file("read the folder", &self.0))?;
        for entry in entries {
            let entry = entry.map_err(LocalError::file("read the folder", &self.0))?;
            let is_empty_dir = || fs::read_dir(entry.path()).is_ok_and(|mut d| d.next().is_none());
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_lock_dir = name == "run" && !self.0.join("run/manager.pid").exists();
            if !PARTS.contains(&name.as_str()) || !(is_lock_dir || is_empty_dir()) {
                return Err(LocalError::ForeignFolder { path: self.0.clone(), found: name });
            }
        }
        Ok(())
    }

    /// Locks the folder of a fabric that exists, against other commands that start or stop it.
    ///
    /// # Errors
    /// [`LocalError::Busy`].
    pub(super) fn lock(&self) -> Result<FolderLock, LocalError> {
        let path = self.0.join("run/lock");
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(LocalError::file("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(FolderLock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(LocalError::Busy { path: self.0.clone() }),
            Err(TryLockError::Error(e)) => Err(LocalError::file("lock", path)(e)),
        }
    }

    /// Locks the folder as [`Folder::lock`] does, once the command that holds the lock is done.
    ///
    /// # Errors
    /// [`LocalError::Busy`] if that takes too long.
    pub(super) async fn lock_patiently(&self) -> Result<FolderLock, LocalError> {
        let began = now();
        loop {
            match self.lock() {
                Err(LocalError::Busy { .. }) if began.elapsed() < LOCK_PATIENCE => sleep(LOCK_POLL).await,
                done => return done,
            }
        }
    }

    /// How long a member's log is: what it says from now on lies behind that.
    pub(super) fn log_length(&self, member: &str) -> u64 {
        fs::metadata(self.log_file(member)).map_or(0, |m| m.len())
    }

    /// What a node said about drives that it does not serve, in its log from `start` on.
    pub(super) fn left_out(&self, node: &str, start: u64) -> Vec<String> {
        let log = fs::read(self.log_file(node)).unwrap_or_default();
        let new = log.get(usize::try_from(start).unwrap_or(usize::MAX)..).unwrap_or_default();
        let text = String::from_utf8_lossy(new);
        let said = text.lines().map(message);
        said.filter_map(|line| Some(line[line.find(LEFT_OUT)?..].trim().to_owned())).collect()
    }

    /// The last lines of what a member said, on one line.
    pub(super) fn last_words(&self, member: &str) -> String {
        const LINES: usize = 2;
        let log = fs::read(self.log_file(member)).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
        let lines: Vec<String> = lines.map(|line| message(line).into_owned()).collect();
        match lines.len() {
            0 => "it said nothing".into(),
            n => lines[n.saturating_sub(LINES)..].join("; "),
        }
    }
}

/// What a line of a log says: of one that is JSON, the message and what caused it.
fn message(line: &str) -> Cow<'_, str> {
    let Ok(Value::Object(object)) = serde_json::from_str(line) else { return line.into() };
    let text = |name: &str| object.get(name).and_then(Value::as_str);
    match (text("message"), text("error")) {
        (Some(message), Some(error)) => format!("{message}: {error}").into(),
        (Some(message), None) => message.to_owned().into(),
        _ => line.into(),
    }
}

/// Replaces a file durably: whoever reads it sees the old contents or the new.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), LocalError> {
    let fresh = path.with_extension("new");
    let write = || -> io::Result<()> {
        let mut file = File::create(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
            _ => Ok(()),
        }
    };
    write().map_err(LocalError::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("weft-folder-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn a_folder_with_something_else_in_it_is_refused() {
        let path = temporary("foreign");
        fs::create_dir_all(&path).expect("made");
        fs::write(path.join("thesis.tex"), "x").expect("written");
        let error = Folder::at(&path).make().err().expect("refused");
        assert!(
            matches!(&error, LocalError::ForeignFolder { found, .. } if found == "thesis.tex"),
            "{error}"
        );
        fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn a_folder_is_locked_once() {
        let path = temporary("lock");
        let folder = Folder::at(&path);
        let lock = folder.make().expect("a new folder");
        assert!(matches!(folder.lock(), Err(LocalError::Busy { .. })));
        drop(lock);
        folder.lock().expect("free again");
        fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn what_a_node_says_is_found_in_either_form_of_its_log() {
        let path = temporary("log");
        let folder = Folder::at(&path);
        fs::create_dir_all(path.join("log")).expect("made");
        for line in [
            "2026-01-01T00:00:00Z ERROR weft::node: drive is left out: /x: gone; hint: look\n",
            "{\"level\":\"error\",\"message\":\"drive is left out: /x: gone; hint: look\",\"path\":\"/x\"}\n",
        ] {
            fs::write(folder.log_file("n"), line).expect("written");
            assert_eq!(folder.left_out("n", 0), ["left out: /x: gone; hint: look"], "{line}");
        }
        fs::write(folder.log_file("n"), "{\"message\":\"no\",\"error\":\"disk\"}\nplain\n").expect("written");
        assert_eq!(folder.last_words("n"), "no: disk; plain");
        fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn a_socket_with_a_long_path_has_no_address() {
        assert!(Folder::at(Path::new("/tmp/f")).socket_addr().is_some());
        assert!(Folder::at(Path::new(&format!("/tmp/{}", "f".repeat(100)))).socket_addr().is_none());
    }
}
