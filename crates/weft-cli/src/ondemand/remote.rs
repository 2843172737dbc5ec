//! Hosts over ssh: one connection to each for a whole command, all of them at once.
//!
//! It owns the ssh processes and what is read from them. What a host prints that is not marked with the word
//! of this command, such as a banner at the login, is passed over.

use super::message::{Answered, Asked, NO_NUMBER, Request};
use super::script::SHELL;
use crate::local::detach_from_terminal;
use serde::de::DeserializeOwned;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often a wait looks whether the command is to end.
const POLL: Duration = Duration::from_millis(50);

/// How long an ssh process that has closed its output may take to end.
const END_WITHIN: Duration = Duration::from_secs(5);

/// How long the last words of an ssh process that has ended are awaited.
const WORDS_WITHIN: Duration = Duration::from_millis(500);

/// Lines of an ssh process's standard error that are kept: the last ones say why.
const LINES_KEPT: usize = 20;

/// The longest line that a host may say: the list of files of a copy comes in lines of this many bytes.
const LINE_BYTES: u64 = 64 << 20;

/// Stack of a thread that waits for a host.
const STACK_BYTES: usize = 512 << 10;

/// The command that reaches a host: `ssh` with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ssh(Vec<String>);

impl Default for Ssh {
    fn default() -> Ssh {
        Ssh(vec!["ssh".to_owned()])
    }
}

/// A text that is no command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a command such as 'ssh -p 2222 -i KEY', with quotes in pairs")]
pub struct ParseSshError;

impl FromStr for Ssh {
    type Err = ParseSshError;

    /// Words are separated by white space, and quotes keep it: as in a shell, without variables.
    fn from_str(text: &str) -> Result<Ssh, ParseSshError> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for letter in text.chars() {
            match (letter, quote) {
                ('\'' | '"', None) => {
                    quote = Some(letter);
                    word.get_or_insert_default();
                }
                (_, Some(open)) if letter == open => quote = None,
                (_, None) if letter.is_whitespace() => words.extend(word.take()),
                _ => word.get_or_insert_default().push(letter),
            }
        }
        words.extend(word);
        if quote.is_some() || words.is_empty() { Err(ParseSshError) } else { Ok(Ssh(words)) }
    }
}

impl Ssh {
    /// The words, as `--ssh` takes them.
    pub(super) fn text(&self) -> String {
        let is_special = |c: char| c.is_whitespace() || matches!(c, '\'' | '"');
        let quoted = |word: &String| match word.contains(is_special) || word.is_empty() {
            true => format!("'{}'", word.replace('\'', r#"'"'"'"#)),
            false => word.clone(),
        };
        self.0.iter().map(quoted).collect::<Vec<_>>().join(" ")
    }

    fn command(&self, host: &str) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]);
        // Of an option that comes twice, ssh takes the first one: what the user says stands before.
        for option in ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=4"]
        {
            command.args(["-o", option]);
        }
        command.args(["-T", "--", host, SHELL]);
        command
    }
}

/// Why a host did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HostError {
    /// There is no connection to it.
    #[error("cannot be reached by ssh: {0}")]
    NoSsh(String),
    /// The connection has ended before an answer came.
    #[error("the connection has ended: {0}")]
    Ended(String),
    /// It does not answer.
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// It has answered with a refusal or an error.
    #[error("{0}")]
    Said(String),
    /// What it says is not understood.
    #[error("its answer is not understood: {0}")]
    Unclear(String),
    /// The command is to end.
    #[error("the command was stopped before the host had answered")]
    Stopped,
}

/// A connection to a host.
pub(super) struct Session {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    complaints: Arc<Mutex<VecDeque<String>>>,
    complaining: JoinHandle<()>,
    /// Its shell has said something.
    has_begun: bool,
    asked: u64,
}

/// Whether a command is to end, and until when an answer is awaited.
#[derive(Clone, Copy)]
pub(super) struct Wait<'a> {
    pub(super) limit: Duration,
    pub(super) stop: &'a AtomicBool,
}

impl Session {
    /// Connects, and has the host run a script whose lines are marked with the token. Does not wait for it.
    pub(super) fn open(ssh: &Ssh, host: &str, token: &str, script: &str) -> Result<Session, HostError> {
        let mut command = ssh.command(host);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // It does not ask for a password, and neither Ctrl-C nor the end of the terminal reaches it.
        detach_from_terminal(&mut command);
        let mut child = command
            .spawn()
            .map_err(|error| HostError::NoSsh(format!("{} cannot be started: {error}", ssh.0[0])))?;
        let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let lines = read_marked(out, token);
        let (complaints, complaining) = read_complaints(err);
        let stdin = child.stdin.take();
        let mut session =
            Session { child, stdin, lines, complaints, complaining, has_begun: false, asked: 0 };
        session.send(script.as_bytes())?;
        Ok(session)
    }

    /// Sends bytes to what runs there.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), HostError> {
        let sent = self.stdin.as_mut().map(|stdin| stdin.write_all(bytes).and_then(|()| stdin.flush()));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self.end()),
        }
    }

    /// The next line that is meant for this command.
    pub(super) fn line(&mut self, wait: Wait) -> Result<String, HostError> {
        let until = Instant::now() + wait.limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(POLL)) {
                Ok(line) => {
                    self.has_begun = true;
                    return Ok(line);
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.end()),
                Err(RecvTimeoutError::Timeout) if wait.stop.load(Ordering::Relaxed) => {
                    return Err(HostError::Stopped);
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    return Err(HostError::Silent(wait.limit));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Asks the program that runs there, and waits for its answer.
    pub(super) fn ask<T: DeserializeOwned>(&mut self, request: Request, wait: Wait) -> Result<T, HostError> {
        self.ask_telling(request, wait, |_| {})
    }

    /// As [`Session::ask`]; what it says before the answer goes to `tell`, and the limit counts anew from
    /// then.
    pub(super) fn ask_telling<T: DeserializeOwned>(
        &mut self,
        request: Request,
        wait: Wait,
        mut tell: impl FnMut(&str),
    ) -> Result<T, HostError> {
        self.asked += 1;
        let asked = Asked { n: self.asked, request };
        let mut line = serde_json::to_string(&asked).expect("a request serialises");
        line.push('\n');
        self.send(line.as_bytes())?;
        loop {
            let line = self.line(wait)?;
            let Some(json) = line.strip_prefix("answer ") else {
                tell(&line);
                continue;
            };
            let answered: Answered =
                serde_json::from_str(json).map_err(|error| HostError::Unclear(error.to_string()))?;
            // An earlier one that was no longer awaited.
            if answered.n != self.asked && answered.n != NO_NUMBER {
                continue;
            }
            return match (answered.ok, answered.error) {
                (Some(ok), _) => {
                    serde_json::from_value(ok).map_err(|error| HostError::Unclear(error.to_string()))
                }
                (None, error) => Err(HostError::Said(error.unwrap_or_else(|| "no reason given".to_owned()))),
            };
        }
    }

    /// Why it has ended.
    fn end(&mut self) -> HostError {
        self.stdin = None;
        let until = Instant::now() + END_WITHIN;
        let code = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status.code(),
                Ok(None) if Instant::now() < until => thread::sleep(POLL / 5),
                _ => break None,
            }
        };
        // A master of several connections may keep the standard error open.
        let until = Instant::now() + WORDS_WITHIN;
        while !self.complaining.is_finished() && Instant::now() < until {
            thread::sleep(POLL / 5);
        }
        let complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        let said = complaints.iter().rev().find(|line| !line.is_empty()).cloned();
        match (self.has_begun, said, code) {
            (false, Some(said), _) => HostError::NoSsh(said),
            (false, None, code) => HostError::NoSsh(format!("ssh has ended with {}", shown(code))),
            (true, Some(said), _) => HostError::Ended(said),
            (true, None, code) => HostError::Ended(format!("its shell has ended with {}", shown(code))),
        }
    }
}

fn shown(code: Option<i32>) -> String {
    code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"))
}

impl Drop for Session {
    fn drop(&mut self) {
        // What runs there reads the end of its input, and ends by itself; ssh ends when the connection does.
        self.stdin = None;
        let until = Instant::now() + END_WITHIN;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(POLL / 5);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Lines that begin with the token, without it.
fn read_marked(out: impl Read + Send + 'static, token: &str) -> Receiver<String> {
    let (lines, receiver) = channel();
    let mark = format!("{token} ");
    thread::spawn(move || {
        let mut out = BufReader::new(out);
        let mut line = Vec::new();
        while let Ok(1..) = out.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line);
            // A banner may not end with a new line.
            let meant = text.find(&mark).map(|at| text[at + mark.len()..].trim_end().to_owned());
            if meant.is_some_and(|meant| lines.send(meant).is_err()) {
                return;
            }
            line.clear();
        }
    });
    receiver
}

fn read_complaints(err: impl Read + Send + 'static) -> (Arc<Mutex<VecDeque<String>>>, JoinHandle<()>) {
    let complaints = Arc::new(Mutex::new(VecDeque::new()));
    let kept = complaints.clone();
    let reading = thread::spawn(move || {
        let mut err = BufReader::new(err);
        let mut line = Vec::new();
        while let Ok(1..) = err.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push_back(String::from_utf8_lossy(&line).trim().to_owned());
            if kept.len() > LINES_KEPT {
                kept.pop_front();
            }
            line.clear();
        }
    });
    (complaints, reading)
}

/// Does something for each of several things at once, each in a thread of its own. Results are in their
/// order.
pub(super) fn at_once<M: Send, T: Send>(
    things: impl IntoIterator<Item = M>,
    work: impl Fn(M) -> T + Sync,
) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let start = |thing| {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            builder.spawn_scoped(scope, move || work(thing)).expect("a thread starts")
        };
        let threads: Vec<_> = things.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread does not panic")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_words() {
        let words = |text: &str| text.parse::<Ssh>().map(|ssh| ssh.0);
        assert_eq!(words("ssh -p 22"), Ok(vec!["ssh".into(), "-p".into(), "22".into()]));
        assert_eq!(
            words(" 'my ssh' -F \"a b\"c ''"),
            Ok(vec!["my ssh".into(), "-F".into(), "a bc".into(), "".into()])
        );
        assert_eq!(words("ssh 'x"), Err(ParseSshError));
        assert_eq!(words("  "), Err(ParseSshError));
        for words in [&["ssh", "-F", "a b"][..], &["ssh", "-o", "ProxyCommand=it's \"x\" 'y'", "", "\""]] {
            let ssh = Ssh(words.iter().map(|word| (*word).to_owned()).collect());
            assert_eq!(ssh.text().parse(), Ok(ssh));
        }
    }

    /// A stand-in for ssh: it runs the script on this machine, behind a banner.
    fn local(banner: &str) -> Ssh {
        Ssh(vec!["sh".into(), "-c".into(), format!("printf '{banner}'; exec sh -s")])
    }

    const WAIT: Duration = Duration::from_secs(20);

    #[test]
    fn banners_are_no_answers_and_the_end_has_a_reason() {
        let stop = AtomicBool::new(false);
        let wait = Wait { limit: WAIT, stop: &stop };
        let script = "echo Welcome; echo '@t@ one'; echo why >&2; exit 3\n";
        let mut session =
            Session::open(&local("hello\\n@x@ no\\nno new line "), "h", "@t@", script).expect("sh");
        assert_eq!(session.line(wait), Ok("one".to_owned()));
        assert_eq!(session.line(wait), Err(HostError::Ended("why".to_owned())));
        let nowhere = Ssh(vec!["/nowhere/ssh".into()]);
        assert!(matches!(Session::open(&nowhere, "h", "@t@", ""), Err(HostError::NoSsh(_))));
        let closed = Ssh(vec!["sh".into(), "-c".into(), "echo Connection refused >&2; exit 255".into()]);
        let said = Session::open(&closed, "h", "@t@", "").and_then(|mut session| session.line(wait));
        assert_eq!(said, Err(HostError::NoSsh("Connection refused".into())));
    }

    #[test]
    fn a_host_that_says_nothing_is_given_up_and_a_stop_is_heard() {
        let stop = AtomicBool::new(false);
        let mut session = Session::open(&local(""), "h", "@t@", "read x\n").expect("sh");
        let limit = Duration::from_millis(10);
        assert_eq!(session.line(Wait { limit, stop: &stop }), Err(HostError::Silent(limit)));
        stop.store(true, Ordering::Relaxed);
        assert_eq!(session.line(Wait { limit: WAIT, stop: &stop }), Err(HostError::Stopped));
    }

    #[test]
    fn things_are_done_at_once_and_keep_their_order() {
        let barrier = std::sync::Barrier::new(8);
        let done = at_once(0..8, |n| {
            barrier.wait();
            n * 2
        });
        assert_eq!(done, [0, 2, 4, 6, 8, 10, 12, 14]);
    }
}
