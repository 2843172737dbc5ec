//! A process whose words are kept: what it is told, what it says until it ends, and how it ended.

use crate::BenchError;
use crate::process::Process;
use std::io::{Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How often it is looked whether a process has said or done what is waited for.
pub(crate) const LOOKED_AT: Duration = Duration::from_millis(20);

/// A process that runs; it ends when this is dropped.
pub(crate) struct Subprocess {
    process: Process,
    /// What comes out of its standard output, and of its standard error.
    out: Words,
    err: Words,
}

/// How a process ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Its standard output.
    pub(crate) out: String,
    /// Its standard error.
    pub(crate) err: String,
}

impl Subprocess {
    /// Starts it, and has it read the input.
    ///
    /// # Errors
    /// If there is no such program.
    pub(crate) fn start(
        name: &str,
        command: &mut Command,
        input: Option<String>,
    ) -> Result<Subprocess, BenchError> {
        let stdin = if input.is_some() { Stdio::piped() } else { Stdio::null() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Process::start(name, command)?;
        let (stdin, stdout, stderr) = process.pipes();
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            // One that reads nothing has failed, and says so.
            thread(move || drop(stdin.write_all(input.as_bytes())))?;
        }
        Ok(Subprocess { process, out: Words::of(stdout)?, err: Words::of(stderr)? })
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &str {
        self.process.name()
    }

    /// Its end, if that has come and all its words are there.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn ended(&mut self) -> Result<Option<Ended>, BenchError> {
        let Some(status) = self.process.ended()? else { return Ok(None) };
        let is_complete = self.out.are_all() && self.err.are_all();
        Ok(is_complete.then(|| Ended { status, out: self.out.text(), err: self.err.text() }))
    }
}

impl Ended {
    /// What it complained of; or else what it said, or that it said nothing.
    pub(crate) fn words(&self) -> &str {
        let texts = [self.err.trim(), self.out.trim()];
        texts.into_iter().find(|text| !text.is_empty()).unwrap_or("it said nothing")
    }
}

/// What comes out of a pipe, read as it comes: a pipe holds 64 KiB, and results are longer.
struct Words {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Words {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Result<Words, BenchError> {
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let read = bytes.clone();
        let reader = thread(move || {
            let (mut pipe, mut piece) = (pipe, [0; 16 << 10]);
            // A pipe that cannot be read any more is at its end.
            while let Some(count) =
                pipe.as_mut().and_then(|pipe| pipe.read(&mut piece).ok()).filter(|n| *n > 0)
            {
                read.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&piece[..count]);
            }
        })?;
        Ok(Words { bytes, reader })
    }

    fn are_all(&self) -> bool {
        self.reader.is_finished()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

fn thread(body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, BenchError> {
    let started = Builder::new().name("bench-words".into()).spawn(body);
    started.map_err(|source| BenchError::System { action: "start a thread", source })
}
