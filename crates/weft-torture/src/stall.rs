//! One thread of a process that stands still while the others run: no signal does that.
//!
//! The kernel stops a thread for whoever traces it (ptrace(2)). The program under torture needs nothing for
//! it, and runs as it ships. It owns the trace: the thread goes on once this is dropped, or its tracer ends.

use crate::Trouble;
use std::{fs, io, ptr};

/// A thread that stands still.
#[derive(Debug)]
pub struct Stalled {
    thread: libc::pid_t,
}

/// The threads of a process with names that begin so, in the order of their names: name and number.
pub fn threads_of(pid: u32, prefix: &str) -> Vec<(String, libc::pid_t)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let named = tasks.filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?.trim().to_owned();
        let number = task.file_name().to_str()?.parse().ok()?;
        name.starts_with(prefix).then_some((name, number))
    });
    let mut named: Vec<_> = named.collect();
    named.sort();
    named
}

impl Stalled {
    /// Stops a thread of a child, and waits until it stands still. It must not be the first thread of its
    /// process: whoever awaits the child would take the stop for its end.
    ///
    /// # Errors
    /// If the kernel refuses, or the thread has ended.
    pub fn begin(thread: libc::pid_t) -> Result<Stalled, Trouble> {
        ptrace(libc::PTRACE_SEIZE, thread)?;
        // From here on it is let go, whatever happens.
        let stalled = Stalled { thread };
        ptrace(libc::PTRACE_INTERRUPT, thread)?;
        match wait(thread) {
            Some(status) if libc::WIFSTOPPED(status) => Ok(stalled),
            _ => Err(Trouble(format!("thread {thread} has ended before it stood still"))),
        }
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        // One that was killed takes no request any more. Its end has to be taken note of, or that of its
        // process is never told.
        while ptrace(libc::PTRACE_DETACH, self.thread).is_err() {
            match wait(self.thread) {
                Some(status) if libc::WIFSTOPPED(status) => {}
                _ => break,
            }
        }
    }
}

fn ptrace(request: libc::c_uint, thread: libc::pid_t) -> Result<(), Trouble> {
    let nothing = ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests take a number each, and touch no memory of this process.
    match unsafe { libc::ptrace(request, thread, nothing, nothing) } {
        -1 => Err(Trouble::of(format!("thread {thread} cannot be stopped"), io::Error::last_os_error())),
        _ => Ok(()),
    }
}

/// Waits until a thread that is traced stops or ends; how, or nothing if it is none of this process.
fn wait(thread: libc::pid_t) -> Option<libc::c_int> {
    let mut status = 0;
    loop {
        // SAFETY: the pointer is to a number that lives through the call.
        match unsafe { libc::waitpid(thread, &mut status, libc::__WALL) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return None,
            _ => return Some(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    /// A process with a second thread of this name, which says a line every 10 ms.
    fn python(name: &str) -> Option<Child> {
        let code = format!(
            "import ctypes, threading, time\n\
             def say():\n\
             \x20   ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\n\
             \x20   while True:\n\
             \x20       open('/dev/null').close(); time.sleep(0.01)\n\
             threading.Thread(target=say, daemon=True).start()\n\
             while True: time.sleep(0.01)\n"
        );
        let mut command = Command::new("python3");
        command.args(["-c", &code]).stdin(Stdio::null()).stderr(Stdio::null());
        command.spawn().ok()
    }

    /// How often a thread gave up the processor.
    fn switches(pid: u32, thread: libc::pid_t) -> String {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap_or_default();
        status.lines().find(|line| line.starts_with("voluntary")).unwrap_or_default().to_owned()
    }

    #[test]
    fn one_thread_stands_still_and_the_others_run() {
        let Some(mut child) = python("target-1") else {
            eprintln!("skipped: this machine has no python3");
            return;
        };
        let (pid, began) = (child.id(), Instant::now());
        let thread = loop {
            if let Some((name, thread)) = threads_of(pid, "target-").pop() {
                assert_eq!(name, "target-1");
                break thread;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "it has two threads");
            sleep(Duration::from_millis(10));
        };
        let moves = |thread| {
            let before = switches(pid, thread);
            sleep(Duration::from_millis(300));
            switches(pid, thread) != before
        };
        let stalled = Stalled::begin(thread).expect("it may be traced");
        assert!(!moves(thread) && moves(pid as libc::pid_t), "one stands still, the other runs");
        assert!(child.try_wait().expect("a child").is_none(), "the stop is not taken for its end");
        drop(stalled);
        assert!(moves(thread), "it goes on");
        // Killed while one of its threads stands still, it can be awaited all the same.
        let stalled = Stalled::begin(thread).expect("it may be traced");
        child.kill().expect("it is there");
        drop(stalled);
        child.wait().expect("it ends");
        assert!(Stalled::begin(thread).is_err(), "it is gone");
    }
}
