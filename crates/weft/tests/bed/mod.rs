//! Real processes in a temporary folder, which are ended by their numbers whatever happens.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod mounts;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// The program under test: the one that is named in the environment, as `make test` does with the one that
/// ships; or the one that cargo has just built, which may have the switches of the simulation.
pub static WEFT: LazyLock<String> = LazyLock::new(|| {
    std::env::var("WEFT_UNDER_TEST").unwrap_or_else(|_| env!("CARGO_BIN_EXE_weft").to_owned())
});

/// How long anything may take before the test fails: many times what it needs on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Ports set apart for one fabric: each member has one for its metrics, and each thread of a node has one.
const PORTS: u16 = 32;

static TAKEN: AtomicU16 = AtomicU16::new(0);

/// A folder that is removed at the end, with every process of a fabric in it.
pub struct Bed {
    pub dir: PathBuf,
    pub port: u16,
    /// What every `weft` finds in its environment, and with it what it starts.
    pub env: Vec<(&'static str, &'static str)>,
}

/// What a command said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Bed {
    pub fn new(name: &str) -> Bed {
        let dir = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("the temporary folder can be written");
        Bed { dir, port: free_ports(), env: Vec::new() }
    }

    /// The folder of the fabric.
    pub fn fabric(&self) -> PathBuf {
        self.dir.join("fabric")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs `weft`, with the fabric named by the environment.
    pub fn weft(&self, args: &[&str]) -> Said {
        said(self.command(args).output().expect("weft runs"))
    }

    /// Runs `weft` and insists on success; returns what it printed.
    pub fn ok(&self, args: &[&str]) -> String {
        let said = self.weft(args);
        assert_eq!(said.code, 0, "weft {} failed: {}{}", args.join(" "), said.err, self.logs());
        said.out
    }

    /// Runs `weft ... --json` and insists on a document.
    pub fn json(&self, args: &[&str]) -> Value {
        let out = self.ok(&[args, &["--json"]].concat());
        let value: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
        assert_eq!(value["schema_version"], 1, "{out}");
        value
    }

    /// Starts `weft` and leaves it running.
    pub fn spawn(&self, args: &[&str]) -> Running {
        let mut command = self.command(args);
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weft runs"))
    }

    /// Starts `weft` by another program, which becomes it, and leaves it running.
    pub fn spawn_in(&self, wrapped: &[&str], args: &[&str]) -> Running {
        let words: Vec<&str> = wrapped.iter().copied().chain([&**WEFT]).chain(args.iter().copied()).collect();
        let mut command = self.environment(Command::new(words[0]));
        command.args(&words[1..]);
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs"))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.environment(Command::new(&*WEFT));
        command.args(args);
        command
    }

    fn environment(&self, mut command: Command) -> Command {
        command.current_dir(&self.dir).stdin(Stdio::null());
        command.env("WEFT_FABRIC", self.fabric()).env("NO_COLOR", "1").env_remove("WEFT_LOG");
        command.env_remove("WEFT_LOG_FORMAT").env_remove("WEFT_SLOW_REQUEST").envs(self.env.iter().copied());
        command
    }

    /// Starts a small fabric in the background.
    pub fn up(&self, nodes: u16, drives: u16) -> String {
        self.up_with(nodes, drives, "128MiB")
    }

    /// As [`Bed::up`], with drives of this size.
    pub fn up_with(&self, nodes: u16, drives: u16, drive_size: &str) -> String {
        let (nodes, drives, port) = (nodes.to_string(), drives.to_string(), self.port.to_string());
        self.ok(&[
            "up",
            "--nodes",
            &nodes,
            "--drives",
            &drives,
            "--drive-size",
            drive_size,
            "--sparse",
            "--port",
            &port,
            "--detach",
        ])
    }

    /// Waits until the fabric's health is this.
    pub fn await_health(&self, wanted: &str) {
        let began = Instant::now();
        loop {
            let status = self.json(&["status"]);
            if status["health"] == wanted {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "not {wanted}: {status}{}", self.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The process of a member, if its record names one that runs this fabric.
    pub fn pid(&self, member: &str) -> Option<i32> {
        let record = fs::read(self.fabric().join(format!("run/{member}.pid"))).ok()?;
        let record: Value = serde_json::from_slice(&record).ok()?;
        let pid = record["pid"].as_i64()? as i32;
        runs_in(pid, &self.dir).then_some(pid)
    }

    /// The last words of every member, for failures.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for entry in fs::read_dir(self.fabric().join("log")).into_iter().flatten().flatten() {
            let log = fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(12)..].join("\n");
            text.push_str(&format!("\n== {}\n{last}", entry.path().display()));
        }
        text
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if self.fabric().join("fabric.json").exists() {
            let _ = self.command(&["down"]).output();
        }
        // Whatever is left is ended by its number, which is that of a process with this folder in its
        // arguments.
        for entry in fs::read_dir(self.fabric().join("run")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(pid) = name.strip_suffix(".pid").and_then(|member| self.pid(member)) {
                kill(pid, "KILL");
            }
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A process that is killed and awaited when dropped.
pub struct Running(pub Child);

impl Running {
    /// Reads its standard output up to a line with this word.
    pub fn await_line(&mut self, word: &str) {
        let out = self.0.stdout.take().expect("it was asked for, and is read once");
        let found = BufReader::new(out).lines().map_while(Result::ok).any(|line| line.contains(word));
        assert!(found, "it ended without saying '{word}'");
    }

    /// The lines of its standard output, as they come.
    pub fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        let out = self.0.stdout.take().expect("it was asked for, and is read once");
        BufReader::new(out).lines().map_while(Result::ok)
    }

    /// Waits for the end; what it has said.
    pub fn finish(mut self) -> Said {
        let (mut out, mut err) = (String::new(), String::new());
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut out).expect("it is text");
        }
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut err).expect("it is text");
        }
        let code = self.0.wait().expect("it is a child").code().unwrap_or(-1);
        Said { code, out, err }
    }

    /// Sends a signal and waits for the end.
    pub fn end(mut self, signal: &str) -> Option<i32> {
        kill(self.0.id() as i32, signal);
        self.0.wait().expect("it is a child").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal to a process by its number.
pub fn kill(pid: i32, signal: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
    assert!(sent.expect("kill runs").success(), "process {pid} is there");
}

/// Whether a process runs with this folder in its arguments.
pub fn runs_in(pid: i32, dir: &Path) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&arguments).contains(&*dir.to_string_lossy())
}

/// Waits until something is so.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn said(output: Output) -> Said {
    Said {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Said {
    /// Insists on a refusal of the arguments themselves, with these words.
    pub fn fails_as_usage(&self, words: &str) {
        assert_eq!(self.code, 2, "{self:?}");
        assert!(self.err.contains(words) && self.out.is_empty(), "'{words}' is not in: {}", self.err);
    }

    /// Insists on a failure with this exit code, these words, and a hint.
    pub fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "'{word}' is not in: {}", self.err);
        }
        let hint = self.err.lines().last().unwrap_or_default();
        assert!(hint.starts_with("hint: ") && hint.len() > 10, "no hint: {}", self.err);
        assert!(self.out.is_empty(), "errors do not print data: {}", self.out);
    }
}

/// The first of a run of ports that are free, below those that the kernel gives to clients.
fn free_ports() -> u16 {
    let spread = (std::process::id() % 600) as u16 * PORTS;
    loop {
        let turn = TAKEN.fetch_add(PORTS, Ordering::Relaxed);
        let first = 20_000 + (spread + turn) % 12_000;
        if (first..first + PORTS).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return first;
        }
    }
}

/// Insists that every tag of a page is closed, in order.
pub fn assert_balanced(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    for piece in html.split('<').skip(1) {
        let (tag, _) = piece.split_once('>').expect("tags end");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed out of order");
        } else if !tag.ends_with('/') && !tag.starts_with('!') {
            open.extend(tag.split_whitespace().next());
        }
    }
    assert_eq!(open, Vec::<&str>::new(), "never closed");
}

/// Bytes that look random, are the same each time, and have blocks of zeroes among them.
pub fn sample(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    let blocks = length / 4096;
    for block in (blocks / 4..blocks / 2).chain((0..blocks).step_by(7)) {
        bytes[block * 4096..(block + 1) * 4096].fill(0);
    }
    bytes
}
