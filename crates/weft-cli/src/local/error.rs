//! What can go wrong with a local fabric.

use super::folder::MANAGER;
use crate::error::{Exit, file_hint};
use crate::size::Size;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why something with a local fabric's folder or processes did not work.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// A file or folder.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried, such as `create`.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// The folder holds something else.
    #[error("{} is not the folder of a Weft fabric: it holds '{found}' and no fabric.json", path.display())]
    ForeignFolder {
        /// The folder.
        path: PathBuf,
        /// Something that is in it.
        found: String,
    },
    /// There is no fabric in the folder.
    #[error("there is no fabric in {}", path.display())]
    NoFabric {
        /// The folder.
        path: PathBuf,
    },
    /// The fabric's description cannot be understood.
    #[error("{} cannot be read: {reason}", path.display())]
    BadConfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The fabric map is gone while the drives may hold data.
    #[error("the manager's store is missing: there is no {}", store.display())]
    NoStore {
        /// The fabric's folder.
        folder: PathBuf,
        /// The file that should be there.
        store: PathBuf,
    },
    /// The fabric runs already.
    #[error("the fabric in {} is running already ({running})", path.display())]
    Running {
        /// The folder.
        path: PathBuf,
        /// What of it runs.
        running: String,
        /// Whether its manager does.
        has_manager: bool,
    },
    /// Another command is starting or stopping it.
    #[error("another command is starting or stopping the fabric in {}", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// What was asked for differs from the fabric that is there.
    #[error("the fabric in {} has {found}, not {asked}", path.display())]
    Differs {
        /// The folder.
        path: PathBuf,
        /// What it has.
        found: String,
        /// What was asked for.
        asked: String,
    },
    /// The drive files do not fit the disk.
    #[error("{} of drive files do not fit {}: {} are free there", Size(*needed), path.display(), Size(*free))]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A drive file below what can be formatted.
    #[error("a drive of {} is too small: the smallest has {}", Size(*asked), Size(*minimum))]
    DriveTooSmall {
        /// Bytes asked for.
        asked: u64,
        /// The limit.
        minimum: u64,
    },
    /// Somebody listens at a port that is needed.
    #[error("port {port} on 127.0.0.1, for {purpose}, cannot be used")]
    Port {
        /// The port.
        port: u16,
        /// What for.
        purpose: String,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// The ports from a base pass the last one.
    #[error("{count} ports from {base} on pass the last port, 65535")]
    PortRange {
        /// The first port.
        base: u16,
        /// How many are needed.
        count: usize,
    },
    /// There is no node of that name.
    #[error("there is no node '{name}' in the fabric in {}", path.display())]
    NoNode {
        /// The name asked for.
        name: String,
        /// The folder.
        path: PathBuf,
        /// The names that there are.
        known: String,
    },
    /// The process is running.
    #[error("{name} is running already, as process {pid}")]
    MemberRunning {
        /// Which member.
        name: String,
        /// Its process.
        pid: i32,
    },
    /// The process is not running.
    #[error("{name} is not running")]
    MemberStopped {
        /// Which member.
        name: String,
    },
    /// A process could not be started.
    #[error("cannot start {name}")]
    Start {
        /// What was to be started.
        name: String,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// A process ended soon after its start.
    #[error("{name} ended right after its start ({how}): {last_words}")]
    Died {
        /// Which member.
        name: String,
        /// How it ended.
        how: String,
        /// The last of its log.
        last_words: String,
        /// Its log.
        log: PathBuf,
    },
    /// A process did not end when asked to.
    #[error("{name} did not stop within {waited:?}")]
    WontStop {
        /// Which member.
        name: String,
        /// How long was waited.
        waited: Duration,
    },
    /// Members run still after everything was tried; all others are stopped.
    #[error("not stopped: {members}; everything else of the fabric is")]
    StillRunning {
        /// Which, with the process of each, and why.
        members: String,
        /// The numbers of the processes, as ps(1) takes them.
        pids: String,
    },
    /// The fabric was started but is not well.
    #[error("the fabric is not healthy {waited:?} after its start: {reason}")]
    NotHealthy {
        /// How long was waited.
        waited: Duration,
        /// What is missing.
        reason: String,
    },
    /// The fabric could not be made in the manager's store.
    #[error("cannot make the fabric in {}: {reason}", store.display())]
    Init {
        /// The store.
        store: PathBuf,
        /// What the command said.
        reason: String,
    },
    /// A drive could not be formatted.
    #[error("cannot format {}: {reason}", path.display())]
    Format {
        /// The drive file.
        path: PathBuf,
        /// What the command said.
        reason: String,
    },
}

impl LocalError {
    /// Names the file that an error is about.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> LocalError {
        let path = path.into();
        move |source| LocalError::File { action, path, source }
    }

    /// The exit code of a command that ends with it.
    pub fn exit(&self) -> Exit {
        match self {
            LocalError::ForeignFolder { .. }
            | LocalError::Running { .. }
            | LocalError::Busy { .. }
            | LocalError::NoStore { .. }
            | LocalError::NoRoom { .. } => Exit::Refused,
            LocalError::NoFabric { .. } => Exit::Unreachable,
            LocalError::Differs { .. } | LocalError::DriveTooSmall { .. } | LocalError::PortRange { .. } => {
                Exit::Usage
            }
            _ => Exit::Failed,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            LocalError::File { source, .. } => file_hint(source).into(),
            LocalError::ForeignFolder { .. } => "choose an empty or new folder with --dir".into(),
            LocalError::NoFabric { path } => {
                format!("make one with `weft up --dir {}`, or name another folder with --dir", path.display())
            }
            LocalError::BadConfig { .. } => {
                "restore the file from a copy; the drives hold a copy of the fabric map, see `weft fabric recover`"
                    .into()
            }
            LocalError::NoStore { folder, .. } => {
                let dir = folder.display();
                format!(
                    "the drives hold copies of it: `weft fabric recover {dir} --drives {dir}/nodes/*/drive-*.img`"
                )
            }
            LocalError::Running { path, has_manager: false, .. } => {
                let dir = path.display();
                format!(
                    "its manager is not: `weft --fabric {dir} manager start` brings it back, or stop all with \
                     `weft down --dir {dir}`"
                )
            }
            LocalError::Running { path, .. } => {
                let dir = path.display();
                format!("see `weft --fabric {dir} status`, or stop it with `weft down --dir {dir}`")
            }
            LocalError::Busy { .. } => "wait until that command is done".into(),
            LocalError::Differs { .. } => {
                "leave the option out to start the fabric as it is, or make another one with --dir".into()
            }
            LocalError::NoRoom { .. } => {
                "make the drives smaller with --drive-size, let them grow as needed with --sparse, or choose \
                 another disk with --dir"
                    .into()
            }
            LocalError::DriveTooSmall { minimum, .. } => {
                format!("use --drive-size {} or more", Size(*minimum).to_string().replace(' ', ""))
            }
            LocalError::Port { .. } => "choose other ports with --port, such as --port 5800".into(),
            LocalError::PortRange { .. } => "choose a lower --port".into(),
            LocalError::NoNode { known, .. } => format!("its nodes are {known}"),
            LocalError::MemberRunning { name, .. } if name == MANAGER => {
                "stop it first with `weft manager stop`".into()
            }
            LocalError::MemberRunning { .. } => "stop it first with `weft node stop`".into(),
            LocalError::MemberStopped { name } if name == MANAGER => "start it with `weft manager start`".into(),
            LocalError::MemberStopped { .. } => "start it with `weft node start`".into(),
            LocalError::Start { .. } => "check that the weft program can be run, and the folder's permissions".into(),
            LocalError::Died { log, .. } => format!("its log says more: {}", log.display()),
            LocalError::WontStop { .. } => "end it at once with --kill".into(),
            LocalError::StillRunning { pids, .. } => format!(
                "`ps -o pid,user,stat,wchan,args -p {pids}` shows what it waits for, often a disk, or whose it is; once it has \
                 ended, run the command again"
            ),
            LocalError::NotHealthy { .. } => "see `weft status`, and the logs in the fabric's folder log/".into(),
            LocalError::Init { .. } => "check the folder's permissions, then run `weft up` again".into(),
            LocalError::Format { .. } => "remove the file if nothing on it is needed, then run `weft up` again".into(),
        }
    }
}
