//! What can go wrong while measuring.

use crate::fio::FioError;
use std::io;
use std::path::PathBuf;
use weft_client::ClientError;
use weft_rpc::{CallError, ConnectError, FrameError};
use weft_rt::RtError;

/// Why there is no result. A run that is void has a result all the same; see [`crate::Figures`].
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A parameter makes no sense.
    #[error("{what}")]
    Invalid {
        /// Which, and what was expected.
        what: String,
    },
    /// This machine's runtime does not start.
    #[error("cannot start the runtime")]
    Runtime(#[from] RtError),
    /// A file or folder of the benchmark.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried: a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The operating system refused something that is not about a file.
    #[error("cannot {action}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A process of the fabric under test ended.
    #[error("{name} ended early ({how}); its last words:\n{log}")]
    Died {
        /// Which.
        name: String,
        /// Its exit status.
        how: String,
        /// The end of its log.
        log: String,
    },
    /// The attach has fewer lanes than the load has threads. Nothing was read or written.
    #[error("a load of {asked} threads needs {asked} lanes, and the manager gave {given}")]
    FewerLanes {
        /// Threads.
        asked: usize,
        /// Lanes of the attach.
        given: usize,
    },
    /// A client of several, or what serves one, did not do its part: a process of its own.
    #[error("{name} failed ({message})")]
    Client {
        /// Which.
        name: String,
        /// How it ended, and its words.
        message: String,
        /// What it said to do.
        hint: Option<String>,
    },
    /// The fabric under test did not come up.
    #[error("the fabric was not ready within {seconds} s: {missing}")]
    NotReady {
        /// How long was waited, in seconds.
        seconds: u64,
        /// What was missing at the end.
        missing: String,
    },
    /// The manager refused an operation, or its answer was none.
    #[error("the manager's answer to {operation}: {message}")]
    Manager {
        /// The operation.
        operation: &'static str,
        /// The manager's words.
        message: String,
    },
    /// No connection to the manager.
    #[error("cannot ask the manager")]
    Link(#[from] ConnectError),
    /// The manager was asked, and has not answered.
    #[error("the manager has not answered")]
    Call(#[from] CallError),
    /// A read or write failed.
    #[error("a request to the volume failed")]
    Request(#[from] ClientError),
    /// The volume holds data, and the load would destroy it. Nothing was written.
    #[error(
        "volume '{volume}' holds data, which this load would overwrite: the first of it within the MiB at {offset}"
    )]
    HoldsData {
        /// The volume.
        volume: String,
        /// Where, in bytes.
        offset: u64,
    },
    /// fio, which other people's measurements are made with.
    #[error(transparent)]
    Fio(#[from] FioError),
    /// The folder to be tested has not room for the test. Nothing was written.
    #[error("{} has not room for this test: {wanted} are needed, {left} are free", folder.display())]
    NoRoom {
        /// The folder.
        folder: PathBuf,
        /// What is needed.
        wanted: String,
        /// What is there.
        left: String,
    },
    /// Something is in the way that no test has made. Nothing was changed.
    #[error("{} exists, and no test of weft has made it", path.display())]
    NotOurs {
        /// What it is.
        path: PathBuf,
    },
    /// An earlier run has left its folder. Nothing was changed.
    #[error("{} is there: an earlier run has left it, or another one goes on", path.display())]
    Leftover {
        /// The folder.
        path: PathBuf,
    },
    /// A file was not written by a test, so its content cannot be checked.
    #[error("{} cannot be checked: no test of weft has written it", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
    },
    /// A rank of a suite has failed.
    #[error("rank {rank}: {message}")]
    Rank {
        /// Its number.
        rank: u32,
        /// What it says.
        message: String,
        /// What it says to do.
        hint: Option<String>,
    },
    /// What was read is not what was written.
    #[error("{wrong} transfers do not hold what was written; {first}")]
    Wrong {
        /// How many.
        wrong: u64,
        /// The first one.
        first: String,
    },
    /// A search has not found the files that were made.
    #[error("find has found {found} files, and {expected} of those that were made match")]
    Miscounted {
        /// Files that it has found.
        found: u64,
        /// Files that were made with such a name, size and time.
        expected: u64,
    },
    /// Somebody has asked for the end.
    #[error("interrupted; what the test had made is removed, unless -k was given")]
    Stopped,
    /// It was ended before anything was measured.
    #[error("interrupted before anything was measured")]
    Interrupted,
    /// The bare exchange of frames failed.
    #[error("the bare exchange of frames failed")]
    Exchange(#[from] FrameError),
    /// The server thread of the bare exchange ended early.
    #[error("the server of the bare exchange ended early")]
    ServerGone,
}

impl BenchError {
    /// What the user could do, where there is something.
    pub fn hint(&self) -> Option<&str> {
        match self {
            BenchError::Request(error) => error.hint(),
            BenchError::HoldsData { .. } => Some(
                "pass --overwrite if its data is of no use any more; a load that only reads destroys nothing, and another \
                 volume is made with `weft volume create`",
            ),
            BenchError::Fio(error) => Some(error.hint()),
            BenchError::FewerLanes { .. } => Some(
                "all nodes have to be up and run this release (`weft node list`), and session slots have to \
                 be left; with --jobs each thread has an attach of its own",
            ),
            BenchError::NotReady { .. } | BenchError::Died { .. } => {
                Some("is there memory for the drives (3 GiB)? the daemons' words are above")
            }
            BenchError::NoRoom { .. } => {
                Some("test with less data, fewer files or fewer processes, or in another folder")
            }
            BenchError::NotOurs { .. } => Some("name another file or folder; what is there is not touched"),
            BenchError::Leftover { .. } => {
                Some("if no run uses it any more, remove it with `rm -r`, or name another folder with -d")
            }
            BenchError::Miscounted { .. } => Some(
                "times of files come from clocks: are those of all machines set alike? if they are, the file \
                 system lists or shows files wrongly",
            ),
            BenchError::Unknown { .. } => Some("write it first with -w and -k, and the same -o"),
            BenchError::Rank { hint: Some(hint), .. } => Some(hint),
            BenchError::Rank { hint: None, .. } => {
                Some("what the rank has said is above; `weft status` says how a fabric is")
            }
            BenchError::Wrong { .. } => Some(
                "if no other program wrote to the files, they are damaged: keep them (-k or -K), and see \
                 `weft events` and the nodes' logs",
            ),
            BenchError::File { source, .. } => file_hint(source),
            BenchError::Client { hint: Some(hint), .. } => Some(hint),
            BenchError::Client { hint: None, .. } => Some(
                "it is a `weft bench` where it ran: is this version of weft there, and can it reach the fabric?",
            ),
            _ => None,
        }
    }
}

/// What to do about a file that cannot be used, where that is known.
fn file_hint(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::ENOSPC => Some("no space is left: test with less data, or see `weft fs df` and `weft status`"),
        libc::EINVAL => Some(
            "with -B, transfers have to be of whole blocks of the file system, mostly 4k, and it has to know \
             direct requests",
        ),
        libc::ENOENT => Some("it has to be there: write it first with -k, or see the names with --dry-run"),
        libc::EMFILE | libc::ENFILE => Some("too many files are open: see `ulimit -n`"),
        _ => None,
    }
}
