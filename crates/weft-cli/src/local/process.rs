//! Which process a member is: recorded so that it is never mistaken for another one.
//!
//! A process number is reused by the kernel. What is recorded is the number, the time at which the process
//! started and the boot in which it did: no other process ever has all three.

use super::LocalError;
use super::folder::write_whole;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;
use weft_rt::{now, sleep};

/// How often a process is looked at while its end is awaited.
const POLL: Duration = Duration::from_millis(20);

#[cfg(test)]
thread_local! {
    /// A process that no signal reaches, like one that waits inside the kernel for a disk.
    pub(super) static UNKILLABLE: std::cell::Cell<Option<i32>> = const { std::cell::Cell::new(None) };
}

/// A process of this machine, for all time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since boot (proc(5), `/proc/PID/stat`, field 22).
    pub start_ticks: u64,
    /// The boot in which it started (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
}

/// A signal that members understand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Stop in order.
    Terminate,
    /// Stop at once, as if the power had failed for this process.
    Kill,
}

impl ProcessId {
    /// The process that has this number now; none if there is none, or it has ended and was not awaited.
    pub fn of(pid: i32) -> Option<ProcessId> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, start_ticks) = parse_stat(&stat)?;
        if matches!(state, 'Z' | 'X') {
            return None;
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        Some(ProcessId { pid, start_ticks, boot })
    }

    /// This process.
    ///
    /// # Panics
    /// If `/proc` is not mounted.
    pub fn current() -> ProcessId {
        let pid = std::process::id() as i32;
        ProcessId::of(pid).expect("a process finds itself in /proc")
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        ProcessId::of(self.pid).as_ref() == Some(self)
    }

    /// Reads what [`ProcessId::write`] wrote; none if there is nothing, or nothing that can be understood.
    pub(super) fn read(path: &Path) -> Option<ProcessId> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    /// The recorded process, if it still runs.
    pub(crate) fn read_alive(path: &Path) -> Option<ProcessId> {
        ProcessId::read(path).filter(ProcessId::is_alive)
    }

    /// Records it.
    pub(crate) fn write(&self, path: &Path) -> Result<(), LocalError> {
        write_whole(path, &serde_json::to_vec(self).expect("it serialises"))
    }

    /// Sends it a signal; nothing happens if it has ended.
    ///
    /// # Errors
    /// Those of the operating system: no permission.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let number = match signal {
            Signal::Terminate => libc::SIGTERM,
            Signal::Kill => libc::SIGKILL,
        };
        // The descriptor stands for whichever process has the number now; only if that is still ours is it
        // signalled, and then it cannot become another one in between.
        let handle = match open_pidfd(self.pid) {
            Ok(handle) => handle,
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            Err(e) => return Err(e),
        };
        if !self.is_alive() {
            return Ok(());
        }
        #[cfg(test)]
        if UNKILLABLE.get() == Some(self.pid) {
            return Ok(());
        }
        // SAFETY: the descriptor is open for the whole call, and a null siginfo is allowed
        // (pidfd_send_signal(2)).
        let done = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                handle.as_raw_fd(),
                number,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match done {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
                e => Err(e),
            },
        }
    }

    /// Waits until it has ended; false if it still runs after this long.
    pub(crate) async fn ends_within(&self, patience: Duration) -> bool {
        let start = now();
        while self.is_alive() {
            if start.elapsed() >= patience {
                return false;
            }
            sleep(POLL).await;
        }
        true
    }
}

fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes a number and flags, and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// State and start time of `/proc/PID/stat`. The name, in parentheses, may hold anything, also parentheses.
pub(crate) fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_ascii_whitespace();
    // The state is field 3, the start time field 22.
    let state = fields.next()?.chars().next()?;
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.pid, self.start_ticks, self.boot)
    }
}

/// A text that names no process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected PID:START:BOOT, as this program writes it")]
pub struct ParseProcessError;

impl FromStr for ProcessId {
    type Err = ParseProcessError;
    fn from_str(text: &str) -> Result<ProcessId, ParseProcessError> {
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next().ok_or(ParseProcessError);
        let pid = next()?.parse().map_err(|_| ParseProcessError)?;
        let start_ticks = next()?.parse().map_err(|_| ParseProcessError)?;
        let boot = next()?.to_owned();
        Ok(ProcessId { pid, start_ticks, boot })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_with_the_same_number_but_another_start_is_another() {
        let own = ProcessId::current();
        assert!(own.is_alive());
        assert_eq!(own.to_string().parse(), Ok(own.clone()));
        let older = ProcessId { start_ticks: own.start_ticks - 1, ..own.clone() };
        assert!(!older.is_alive());
        older.signal(Signal::Kill).expect("another process is left alone, so this test goes on");
        let other_boot = ProcessId { boot: "x".into(), ..own };
        assert!(!other_boot.is_alive());
    }

    #[test]
    fn a_process_that_ended_and_was_not_awaited_counts_as_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let id = ProcessId::of(child.id() as i32).expect("it runs");
        id.signal(Signal::Kill).expect("it is ours");
        while id.is_alive() {
            std::thread::yield_now();
        }
        child.wait().expect("it ended");
        id.signal(Signal::Kill).expect("nothing happens");
    }

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let stat = "7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(parse_stat(stat), Some(('S', 4242)));
        assert_eq!(parse_stat("7 (a"), None);
    }
}
