//! A process whose words are kept: what it is told, what it says until it ends, and how it ended.

use crate::BenchError;
use crate::process::Process;
use std::io::{Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use weft_rt::{Instant, now, sleep};

/// How often it is looked whether a process has said or done what is waited for.
pub(crate) const LOOKED_AT: Duration = Duration::from_millis(20);

/// What is said of a process that said nothing.
const NOTHING: &str = "it said nothing";

/// How long it is listened after a process has ended: what it started itself may have its pipes and go on.
const LISTENED_AFTER: Duration = Duration::from_secs(1);

/// A process that runs; it ends when this is dropped.
pub(crate) struct Subprocess {
    process: Process,
    /// When it was found to have ended.
    gone: Option<Instant>,
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
        Ok(Subprocess { process, gone: None, out: Words::of(stdout)?, err: Words::of(stderr)? })
    }

    /// What it is called.
    pub(crate) fn name(&self) -> &str {
        self.process.name()
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// What it has said on its standard output so far.
    pub(crate) fn said(&self) -> String {
        self.out.text()
    }

    /// Its end, if that has come and its words are there.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn ended(&mut self) -> Result<Option<Ended>, BenchError> {
        let Some(status) = self.process.ended()? else { return Ok(None) };
        let gone = *self.gone.get_or_insert_with(now);
        let is_complete = self.out.are_all() && self.err.are_all() || now() - gone > LISTENED_AFTER;
        Ok(is_complete.then(|| Ended { status, out: self.out.text(), err: self.err.text() }))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) async fn end(&mut self) -> Result<Ended, BenchError> {
        loop {
            match self.ended()? {
                Some(ended) => return Ok(ended),
                None => sleep(LOOKED_AT).await,
            }
        }
    }
}

impl Ended {
    /// That a command of weft failed, called so: with the message and the hint that it printed as a document, or whatever
    /// it complained of.
    pub(crate) fn refusal(&self, name: &str) -> BenchError {
        let lines = self.err.lines().rev();
        let document =
            lines.flat_map(serde_json::from_str::<serde_json::Value>).find(|line| line["error"].is_object());
        let text = |key: &str| Some(document.as_ref()?["error"][key].as_str()?.to_owned());
        let complaint = Some(self.err.trim()).filter(|text| !text.is_empty()).unwrap_or(NOTHING);
        let message = text("message").unwrap_or_else(|| complaint.to_owned());
        let message = format!("{}: {message}", self.status);
        BenchError::Client { name: name.to_owned(), message, hint: text("hint") }
    }

    /// What it complained of; or else what it said, or that it said nothing.
    pub(crate) fn words(&self) -> &str {
        let texts = [self.err.trim(), self.out.trim()];
        texts.into_iter().find(|text| !text.is_empty()).unwrap_or(NOTHING)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, input: Option<String>) -> Subprocess {
        Subprocess::start("sh", Command::new("/bin/sh").args(["-c", script]), input).expect("it starts")
    }

    #[test]
    fn all_words_are_kept_however_many() {
        weft_rt::block_on(async {
            let input = "x".repeat(300_000);
            let ended = sh("echo first >&2; cat; exit 3", Some(input.clone())).end().await.expect("it ends");
            assert_eq!((ended.status.code(), ended.out == input, ended.words()), (Some(3), true, "first"));
            let mut silent = sh("exit 1", None);
            assert_eq!(silent.end().await.expect("it ends").words(), "it said nothing");
        })
        .expect("the executor starts");
    }

    #[test]
    fn what_others_hold_open_is_not_waited_for() {
        weft_rt::block_on(async {
            let ended = sh("sleep 20 & echo said; exit 1", None).end().await.expect("it ends");
            assert_eq!((ended.status.code(), ended.words()), (Some(1), "said"));
        })
        .expect("the executor starts");
    }

    #[test]
    fn a_command_that_failed_is_told_with_its_message_and_hint() {
        weft_rt::block_on(async {
            let line = r#"{"error":{"message":"no volume","hint":"make one"}}"#;
            let ended =
                sh(&format!("echo data; echo 'a note' >&2; echo '{line}' >&2; exit 1"), None).end().await;
            let error = ended.expect("it ends").refusal("client 1");
            assert_eq!(error.to_string(), "client 1 failed (exit status: 1: no volume)");
            assert_eq!(error.hint(), Some("make one"));
            let silent = sh("echo data; exit 1", None).end().await.expect("it ends").refusal("client 1");
            assert!(silent.to_string().contains(NOTHING), "{silent}");
        })
        .expect("the executor starts");
    }

    #[test]
    fn words_are_there_before_the_end_and_no_process_is_left() {
        weft_rt::block_on(async {
            let mut child = sh("echo ready; exec sleep 600", None);
            while child.said() != "ready\n" {
                sleep(LOOKED_AT).await;
            }
            assert!(child.ended().expect("it is ours").is_none());
            let pid = child.pid();
            drop(child);
            assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
        })
        .expect("the executor starts");
    }
}
