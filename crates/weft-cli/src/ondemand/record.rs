//! What is written down of a file system on demand: a record on each host, and one on the machine that has
//! started it.

use crate::error::CliError;
use crate::local::write_whole;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use weft_types::FabricId;

/// The version of both documents.
pub(super) const SCHEMA: u32 = 1;

/// The name of the file system.
pub(super) const FILE_SYSTEM: &str = "ondemand";

/// How far a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Phase {
    /// It is being started, or the start was cut off.
    Starting,
    Running,
    /// Its processes have ended, and its data are there.
    Stopped,
}

impl Phase {
    pub(super) fn word(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Running => "running",
            Phase::Stopped => "stopped",
        }
    }
}

/// The record on a host: `record.json` in its folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostRecord {
    pub(super) schema: u32,
    pub(super) state: Phase,
    pub(super) id: String,
    pub(super) fabric: FabricId,
    /// The name that the host file has for it.
    pub(super) host: String,
    /// The name of its node.
    pub(super) node: String,
    /// All hosts; the first one has the manager.
    pub(super) hosts: Vec<String>,
    pub(super) path: PathBuf,
    pub(super) mountpoint: PathBuf,
    /// What was there above MOUNTPOINT, where the start has made MOUNTPOINT.
    pub(super) above_mountpoint: Option<PathBuf>,
    /// Drives of the host.
    pub(super) drives: u16,
    /// Names in PATH of the block devices that are its drives; empty where these are files.
    pub(super) devices: Vec<String>,
    pub(super) copies: u8,
    /// Where its node listens, as IP:PORT.
    pub(super) listen: String,
    /// Where the manager listens, as IP:PORT; empty until it does.
    pub(super) manager: String,
}

impl HostRecord {
    /// Whether the manager runs on this host.
    pub(super) fn has_manager(&self) -> bool {
        self.hosts.first() == Some(&self.host)
    }
}

/// The record on the machine that has started it: `ID.json` in its folder of records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StartRecord {
    pub(super) schema: u32,
    pub(super) state: Phase,
    pub(super) id: String,
    pub(super) fabric: FabricId,
    pub(super) hosts: Vec<String>,
    pub(super) path: PathBuf,
    pub(super) mountpoint: PathBuf,
    pub(super) copies: u8,
    /// The command that reaches hosts.
    pub(super) ssh: String,
    /// Hosts on which a stop has ended everything already.
    #[serde(default)]
    pub(super) ended: Vec<String>,
}

/// Reads a document of this kind; none if there is none.
///
/// # Errors
/// If it cannot be read or understood.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, CliError> {
    #[derive(Deserialize)]
    struct Shape {
        schema: u32,
    }
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(CliError::file("read", path)(error)),
    };
    let wrong = |reason: String| CliError::Failed {
        message: format!("the record {} is not understood: {reason}", path.display()),
        hint: "use the weft that has written it; what it describes can be looked at there".into(),
    };
    let shape: Shape = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    if shape.schema != SCHEMA {
        return Err(wrong(format!("it has schema {}, this program knows {SCHEMA}", shape.schema)));
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| wrong(error.to_string()))
}

/// Writes a document, durably and at once.
pub(super) fn write<T: Serialize>(path: &Path, record: &T) -> Result<(), CliError> {
    let mut json = serde_json::to_vec_pretty(record).expect("a record serialises");
    json.push(b'\n');
    Ok(write_whole(path, &json)?)
}

/// The folder of the records of this machine and user.
#[derive(Clone, Debug)]
pub(super) struct Records(PathBuf);

impl Records {
    /// The folder that is named, or else `weft/ondemand` in the user's folder for state (XDG Base Directory
    /// Specification: `$XDG_STATE_HOME`, or `~/.local/state`).
    ///
    /// # Errors
    /// If the user has no home.
    pub(super) fn new(named: Option<&Path>) -> Result<Records, CliError> {
        if let Some(named) = named {
            return Ok(Records(named.to_owned()));
        }
        let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
        let state = state.ok_or_else(|| CliError::Usage {
            message: "neither XDG_STATE_HOME nor HOME names a folder for what is started here".into(),
            hint: "name one with --state-dir".into(),
        })?;
        Ok(Records(state.join("weft/ondemand")))
    }

    pub(super) fn file(&self, id: &str) -> PathBuf {
        self.0.join(format!("{id}.json"))
    }

    /// Writes a record.
    pub(super) fn keep(&self, record: &StartRecord) -> Result<(), CliError> {
        fs::create_dir_all(&self.0).map_err(CliError::file("create the folder", &self.0))?;
        write(&self.file(&record.id), record)
    }

    /// Removes a record, if there is one.
    pub(super) fn forget(&self, id: &str) -> Result<(), CliError> {
        let path = self.file(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(CliError::file("remove", path)(error))
            }
            _ => Ok(()),
        }
    }

    /// All records, by their identities.
    pub(super) fn all(&self) -> Result<Vec<StartRecord>, CliError> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(CliError::file("read the folder", &self.0)(error)),
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        paths.iter().filter_map(|path| read(path).transpose()).collect()
    }
}
