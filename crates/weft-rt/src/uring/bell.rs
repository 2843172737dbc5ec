//! The doorbell: how other threads wake a thread that sleeps in its ring.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// An event counter, and whether anybody sleeps who has to hear it.
pub(super) struct Bell {
    event: OwnedFd,
    asleep: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        // SAFETY: the call takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Bell { event, asleep: AtomicBool::new(false) })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Wakes the thread if it sleeps. What it is to see must have been stored before.
    pub(super) fn ring(&self) {
        // Either this sees that the thread is about to sleep, or the thread sees what was stored before:
        // the pair of this fence is in `lie_down`.
        fence(Ordering::SeqCst);
        if !self.asleep.load(Ordering::Relaxed) || !self.asleep.swap(false, Ordering::AcqRel) {
            return;
        }
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer has the 8 bytes that are written. An event counter takes a write of 1 at once
        // unless it is near 2^64; then the thread has been woken often enough.
        let written = unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
        debug_assert_eq!(written, 8);
    }

    /// Says that the thread is about to sleep; look for work once more after this.
    pub(super) fn lie_down(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Says that the thread is awake.
    pub(super) fn get_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}
