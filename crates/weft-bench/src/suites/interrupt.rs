//! Ctrl-C and SIGTERM while a suite runs: the conductor hears of the first one and cleans up, the second
//! one ends the process at once.

use crate::BenchError;
use std::io;
use std::thread::Builder;

/// The signals that ask a process to end.
const ASK_TO_END: [libc::c_int; 2] = [libc::SIGINT, libc::SIGTERM];

/// From now on has `tell` called when the process is asked to end. The calling thread and those that it
/// starts later hold the signals back; processes that are started as [`crate::process::Process`] do not.
///
/// # Errors
/// Those of the operating system.
pub(crate) fn on_interrupt(tell: impl FnOnce() + Send + 'static) -> Result<(), BenchError> {
    let failed = |source| BenchError::System { action: "watch for signals", source };
    let set = signals();
    // SAFETY: the set is initialised; nothing is asked about the old mask.
    let held = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    if held != 0 {
        return Err(failed(io::Error::from_raw_os_error(held)));
    }
    let watch = move || {
        wait_for(&set);
        tell();
        let signal = wait_for(&set);
        // As a shell says of a process that a signal has ended.
        std::process::exit(128 + signal);
    };
    Builder::new().name("bench-signals".into()).spawn(watch).map_err(failed)?;
    Ok(())
}

fn wait_for(set: &libc::sigset_t) -> libc::c_int {
    let mut signal = 0;
    // SAFETY: both live as long as the call; the signals of the set are held back in this thread.
    unsafe { libc::sigwait(set, &mut signal) };
    signal
}

fn signals() -> libc::sigset_t {
    // SAFETY: a sigset_t is plain bits, which sigemptyset fills; the signals are ones that exist.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in ASK_TO_END {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}
