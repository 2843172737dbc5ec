//! Processes that a measurement starts, and the CPU time of any process.
//!
//! A process that was started here is ended here, whatever happens: by the drop of its [`Process`], or by the kernel when
//! the thread that started it is gone.

use crate::BenchError;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to end cleanly: a checkpoint of the largest drives that a benchmark uses.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// How much of a process's log is shown when it ends early, in lines.
const LOG_LINES: usize = 12;

/// A child process: asked to end, or killed if it does not, when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
}

impl Process {
    /// Starts it: called so in what is said of it.
    ///
    /// # Errors
    /// If there is no such program.
    pub(crate) fn start(name: &str, command: &mut Command) -> Result<Process, BenchError> {
        end_with_starter(command);
        let path = PathBuf::from(command.get_program());
        let child = command.spawn().map_err(|source| BenchError::File { action: "start", path, source })?;
        Ok(Process { name: name.to_owned(), child })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its pipes: to it, its data, and what it says besides; each only once, and where there is one.
    pub(crate) fn pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdin.take(), self.child.stdout.take(), self.child.stderr.take())
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, BenchError> {
        let ended = self.child.try_wait();
        ended.map_err(|source| BenchError::System { action: "look after a process", source })
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end; one that is frozen would not hear it.
    fn terminate(&self) {
        for signal in [libc::SIGTERM, libc::SIGCONT] {
            if let Err(error) = self.signal(signal) {
                tracing::warn!(process = self.name, %error, "cannot be asked to end");
            }
        }
    }

    fn signal(&self, signal: libc::c_int) -> std::io::Result<()> {
        let pid = self.child.id() as libc::pid_t;
        // SAFETY: the child is not yet waited for, so the number is still its own.
        match unsafe { libc::kill(pid, signal) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    /// Ends the process: asks first, and does not wait for ever.
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        self.terminate();
        let until = Instant::now() + STOP_PATIENCE;
        while Instant::now() < until {
            if self.has_ended() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        tracing::warn!(process = self.name, "does not end, and is killed");
        self.kill();
    }
}

/// Has the kernel end the process when the thread that starts it is gone, and lets it hear signals, which this thread may
/// hold back.
fn end_with_starter(command: &mut Command) {
    // SAFETY: between fork and exec only functions are called that are async-signal-safe and allocate nothing; a
    // sigset_t is plain bits, which sigemptyset fills.
    unsafe {
        command.pre_exec(|| {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

/// A process of the fabric under test.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    log: PathBuf,
}

impl Daemon {
    /// Starts the program; its standard error goes to the log.
    ///
    /// # Errors
    /// If the log cannot be made or the program not be started.
    pub fn start(name: &str, program: &Path, arguments: &[String], log: &Path) -> Result<Daemon, BenchError> {
        let file = |action| move |source| BenchError::File { action, path: log.to_owned(), source };
        let out = File::create(log).map_err(file("create"))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(out);
        Ok(Daemon { process: Process::start(name, &mut command)?, log: log.to_owned() })
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Fails if it has ended.
    ///
    /// # Errors
    /// [`BenchError::Died`] with the end of its log.
    pub fn check(&mut self) -> Result<(), BenchError> {
        match self.process.ended()? {
            None => Ok(()),
            Some(status) => Err(BenchError::Died {
                name: self.name().to_owned(),
                how: status.to_string(),
                log: last_lines(&fs::read_to_string(&self.log).unwrap_or_default(), LOG_LINES),
            }),
        }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        self.process.name()
    }

    /// Stops it where it is, until [`Daemon::thaw`].
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn freeze(&self) -> Result<(), BenchError> {
        let frozen = self.process.signal(libc::SIGSTOP);
        frozen.map_err(|source| BenchError::System { action: "freeze a process", source })
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn thaw(&self) -> Result<(), BenchError> {
        let thawed = self.process.signal(libc::SIGCONT);
        thawed.map_err(|source| BenchError::System { action: "thaw a process", source })
    }

    /// Ends it at once.
    pub fn kill(mut self) {
        self.process.kill();
    }
}

/// The end of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// CPU seconds that a process has used so far, in user mode and in the kernel, all its threads together.
///
/// # Errors
/// If there is no such process.
pub fn cpu_seconds(pid: u32) -> Result<f64, BenchError> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let unreadable = |source| BenchError::File { action: "read", path: path.clone(), source };
    let text = fs::read_to_string(&path).map_err(unreadable)?;
    let ticks = cpu_ticks(&text).ok_or_else(|| unreadable(std::io::ErrorKind::InvalidData.into()))?;
    // SAFETY: sysconf has no preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    assert!(per_second > 0, "Linux always knows its clock tick");
    Ok(ticks as f64 / per_second as f64)
}

/// utime + stime of a line of /proc/PID/stat: fields 14 and 15 (proc_pid_stat(5)). The name in field 2 may hold
/// blanks and parentheses, so counting starts behind the last one.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let kernel: u64 = fields.next()?.parse().ok()?;
    Some(user + kernel)
}

/// Bytes that a process has exchanged with disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskBytes {
    /// Read from disks.
    pub read: u64,
    /// Written to disks.
    pub written: u64,
}

/// Bytes that a process has exchanged with disks so far, as the kernel counts them.
///
/// # Errors
/// If there is no such process, or it is another user's.
pub fn disk_bytes(pid: u32) -> Result<DiskBytes, BenchError> {
    let path = PathBuf::from(format!("/proc/{pid}/io"));
    let unreadable = |source| BenchError::File { action: "read", path: path.clone(), source };
    let text = fs::read_to_string(&path).map_err(unreadable)?;
    disk_counts(&text).ok_or_else(|| unreadable(std::io::ErrorKind::InvalidData.into()))
}

/// read_bytes and write_bytes of /proc/PID/io (proc_pid_io(5)): what went to the storage layer, not what hit a cache.
fn disk_counts(io: &str) -> Option<DiskBytes> {
    let of = |name: &str| {
        let mut values = io.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        values.next()?.trim().parse().ok()
    };
    Some(DiskBytes { read: of("read_bytes")?, written: of("write_bytes")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_whatever_the_name() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 100 0 0 0 7 35 0 0 20 0 1 0 1000 0 0";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("42 (x) S 1 2"), None);
        assert_eq!(cpu_ticks(""), None);
    }

    #[test]
    fn this_process_has_used_some_time_or_none() {
        assert!(cpu_seconds(std::process::id()).expect("it runs") >= 0.0);
        assert!(cpu_seconds(u32::MAX).is_err());
    }

    #[test]
    fn a_frozen_process_ends_all_the_same() {
        let log = std::env::temp_dir().join(format!("weft-bench-frozen-{}.log", std::process::id()));
        let arguments = ["-c".to_owned(), "exec sleep 600".to_owned()];
        let state = |pid: u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).expect("it has a state")
        };
        let sleeper = Daemon::start("sh", Path::new("/bin/sh"), &arguments, &log).expect("starts");
        sleeper.freeze().expect("it is ours");
        while state(sleeper.pid()) != 'T' {
            std::thread::sleep(Duration::from_millis(1));
        }
        let pid = sleeper.pid();
        drop(sleeper);
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "it was ended and waited for");
        let sleeper = Daemon::start("sh", Path::new("/bin/sh"), &arguments, &log).expect("starts");
        let pid = sleeper.pid();
        sleeper.freeze().and_then(|()| sleeper.thaw()).expect("it is ours");
        sleeper.kill();
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "it was ended and waited for");
        fs::remove_file(&log).expect("it was made");
    }

    #[test]
    fn bytes_of_disks_are_not_those_of_calls() {
        let io = "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 5\n";
        assert_eq!(disk_counts(io), Some(DiskBytes { read: 4096, written: 8192 }));
        assert_eq!(disk_counts("rchar: 1\n"), None);
        assert!(disk_bytes(std::process::id()).is_ok() && disk_bytes(u32::MAX).is_err());
    }

    #[test]
    fn the_last_words_of_a_log_are_its_last_lines() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 2), "a");
    }

    #[test]
    fn a_daemon_ends_when_dropped_and_tells_when_it_ended_early() {
        let log = std::env::temp_dir().join(format!("weft-bench-test-{}.log", std::process::id()));
        let sh = |script: &str| {
            Daemon::start("sh", Path::new("/bin/sh"), &["-c".into(), script.into()], &log).expect("starts")
        };
        let mut sleeper = sh("exec sleep 600");
        sleeper.check().expect("it sleeps");
        let pid = sleeper.pid();
        drop(sleeper);
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "it was ended and waited for");
        let mut loud = sh("echo went wrong >&2; exit 3");
        let error = loop {
            if let Err(error) = loud.check() {
                break error;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        assert!(matches!(&error, BenchError::Died { log, .. } if log == "went wrong"), "{error}");
        fs::remove_file(&log).expect("it was made");
    }
}
