//! Why a command did not do what was asked, with the exit code and the hint that go with it.
//!
//! It owns the mapping from errors to exit codes. The chain of causes is printed once, here at the boundary.

use crate::local::LocalError;
use std::io;
use std::path::PathBuf;
use weft_api::{ApiError, ErrorCode, MessageError};
use weft_client::ClientError;
use weft_rpc::{CallError, ConnectError};
use weft_rt::RtError;

/// How a command ended, as its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// It failed.
    Failed = 1,
    /// It was called wrongly; nothing was done.
    Usage = 2,
    /// No manager of the fabric could be reached.
    Unreachable = 3,
    /// It was refused because data or somebody's work could be lost; nothing was done.
    Refused = 4,
}

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The arguments do not fit together.
    #[error("{message}")]
    Usage {
        /// What was found and expected.
        message: String,
        /// What to do.
        hint: String,
    },
    /// Carrying it out could lose data or somebody's work.
    #[error("{message}")]
    Refused {
        /// What is in the way.
        message: String,
        /// What to do.
        hint: String,
    },
    /// It failed for a reason that none of the other variants describes better.
    #[error("{message}")]
    Failed {
        /// What happened.
        message: String,
        /// What to do.
        hint: String,
    },
    /// There is no manager at any of the places where it was looked for.
    #[error("no fabric answers at {at}")]
    Unreachable {
        /// Where it was looked for.
        at: String,
        /// What to do.
        hint: String,
        /// What the last attempt met.
        #[source]
        source: Option<ConnectError>,
    },
    /// The connection broke before the answer came.
    #[error(
        "the connection to the manager at {at} broke before the answer came; what was asked may have been done"
    )]
    ConnectionLost {
        /// Where the manager is.
        at: String,
        /// How it broke.
        #[source]
        source: CallError,
    },
    /// The manager's answer cannot be read.
    #[error("the answer of the manager at {at} cannot be read")]
    Answer {
        /// Where the manager is.
        at: String,
        /// What is wrong with it.
        #[source]
        source: MessageError,
    },
    /// The manager refused.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// An operation on a volume failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A local fabric's folder or processes.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A file.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried, such as `read`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// The reader of the standard output has gone, or it cannot be written.
    #[error("cannot write to the standard output")]
    Output(#[source] io::Error),
    /// The kernel refuses what the runtime needs.
    #[error(transparent)]
    Runtime(#[from] RtError),
    /// The user ended it.
    #[error("{message}")]
    Interrupted {
        /// What was done by then.
        message: String,
    },
}

impl CliError {
    /// The exit code.
    pub fn exit(&self) -> Exit {
        match self {
            CliError::Usage { .. } => Exit::Usage,
            CliError::Refused { .. } => Exit::Refused,
            CliError::Unreachable { .. } | CliError::Client(ClientError::NoManager { .. }) => {
                Exit::Unreachable
            }
            CliError::Client(ClientError::Refused { .. }) => Exit::Refused,
            CliError::Api(error) => match error.code {
                ErrorCode::Invalid => Exit::Usage,
                ErrorCode::Refused => Exit::Refused,
                ErrorCode::Unavailable => Exit::Unreachable,
                ErrorCode::NotFound | ErrorCode::Conflict | ErrorCode::Internal => Exit::Failed,
            },
            CliError::Local(error) => error.exit(),
            _ => Exit::Failed,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> String {
        match self {
            CliError::Usage { hint, .. }
            | CliError::Refused { hint, .. }
            | CliError::Failed { hint, .. }
            | CliError::Unreachable { hint, .. } => hint.clone(),
            CliError::ConnectionLost { .. } => {
                "look at `weft status` and `weft events`, then try again".into()
            }
            CliError::Answer { .. } => "use the same version of weft on this side and for the manager".into(),
            CliError::Api(error) => error.hint.clone().unwrap_or_else(|| api_hint(error.code).into()),
            CliError::Client(ClientError::Refused { .. }) => {
                "`weft session list` shows who has which volumes attached; `weft volume serve` can wait for \
                 them (--wait) or take the volume from them (--preempt)"
                    .into()
            }
            CliError::Client(error) => error
                .hint()
                .unwrap_or("`weft status` says how the fabric is, `weft events` what happened")
                .into(),
            CliError::Local(error) => error.hint(),
            CliError::File { source, .. } => file_hint(source).into(),
            CliError::Output(_) => "redirect the output to a file, or let its reader read to the end".into(),
            CliError::Runtime(_) => "weft needs io_uring: the text above says what stands in its way".into(),
            CliError::Interrupted { .. } => "run the command again to do the rest".into(),
        }
    }

    /// Whether all that failed is that nobody reads the output any more, as in `weft events | head`: the
    /// reader has what it wanted.
    pub fn is_reader_gone(&self) -> bool {
        matches!(self, CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The error with all its causes, on one line.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }

    /// The manager answered another question than the one asked.
    pub(crate) fn wrong_answer(at: &str) -> CliError {
        CliError::Failed {
            message: format!("the manager at {at} answered another question than the one asked"),
            hint: "use the same version of weft on this side and for the manager".into(),
        }
    }

    /// Names the file that an error is about.
    pub fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> CliError {
        let path = path.into();
        move |source| CliError::File { action, path, source }
    }
}

fn api_hint(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::NotFound => {
            "`weft volume list`, `weft node list` and `weft drive list` show what there is"
        }
        ErrorCode::Invalid => "see the command's --help for what is allowed",
        ErrorCode::Conflict => "choose another name, or use what is there",
        ErrorCode::Refused => "`weft status` says what state the fabric is in",
        ErrorCode::Unavailable => "try again in a few seconds; `weft status` says what is missing",
        ErrorCode::Internal => {
            "the manager's log says more; for a local fabric see log/manager.log in its folder"
        }
    }
}

pub(crate) fn file_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "check the permissions, or run as another user",
        io::ErrorKind::AlreadyExists => "choose another path, or remove what is there first",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, or choose another disk"
        }
        io::ErrorKind::ReadOnlyFilesystem => "choose a place that can be written",
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            "check the path: a file is not a folder"
        }
        io::ErrorKind::BrokenPipe => "let the reader of the output read to the end",
        io::ErrorKind::WouldBlock => "end the process that uses it, then try again",
        _ => "the operating system's word above says why",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_stable() {
        let api = |code| CliError::Api(ApiError::new(code, "x")).exit() as u8;
        assert_eq!(api(ErrorCode::Invalid), 2);
        assert_eq!(api(ErrorCode::Refused), 4);
        assert_eq!(api(ErrorCode::Unavailable), 3);
        assert_eq!(api(ErrorCode::NotFound), 1);
    }

    #[test]
    fn the_chain_is_one_line() {
        let error = CliError::file("read", "/x")(io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(error.chain(), "cannot read /x: entity not found");
        assert_eq!(error.hint(), "check the path");
    }
}
