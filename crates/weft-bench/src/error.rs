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
            BenchError::Client { hint: Some(hint), .. } => Some(hint),
            BenchError::Client { hint: None, .. } => Some(
                "it is a `weft bench` where it ran: is this version of weft there, and can it reach the fabric?",
            ),
            _ => None,
        }
    }
}
