//! The wish to end: SIGINT and SIGTERM, read through the ring.

use super::op::{Held, Op, with_driver};
use crate::BufMut;
use io_uring::{opcode, types};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// What a descriptor for signals is read into: one record of the kernel.
const RECORD_BYTES: u32 = size_of::<libc::signalfd_siginfo>() as u32;

/// What a thread knows of signals.
#[derive(Default)]
pub(crate) struct Signals {
    came: Cell<bool>,
    /// Present from the first question on.
    source: RefCell<Option<Rc<OwnedFd>>>,
    /// The read that ends when a signal comes. It outlives the futures that wait, so that none is lost.
    reading: RefCell<Option<Op>>,
}

impl Signals {
    /// Takes the signals away from their default action, which is to end the process.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub(crate) fn watch(&self) -> io::Result<()> {
        if self.came.get() || self.source.borrow().is_some() {
            return Ok(());
        }
        let set = set();
        // SAFETY: the set is initialised; the old one is not asked for.
        let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        // SAFETY: the set is initialised.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        *self.source.borrow_mut() = Some(Rc::new(unsafe { OwnedFd::from_raw_fd(fd) }));
        Ok(())
    }

    /// Completes when a signal has come. From then on the next one has its default action.
    pub(crate) async fn came() {
        poll_fn(|cx| {
            with_driver(|driver| {
                let signals = &driver.signals;
                if signals.came.get() {
                    return Poll::Ready(());
                }
                let Some(source) = signals.source.borrow().clone() else { return Poll::Pending };
                let mut reading = signals.reading.borrow_mut();
                loop {
                    let op = reading.get_or_insert_with(|| read(driver, &source));
                    let Poll::Ready((result, _)) = Future::poll(Pin::new(op), cx) else {
                        return Poll::Pending;
                    };
                    *reading = None;
                    if result > 0 {
                        signals.came.set(true);
                        signals.source.take();
                        unblock();
                        return Poll::Ready(());
                    }
                }
            })
        })
        .await;
    }

    /// Stops watching.
    pub(super) fn forget(&self) {
        drop(self.reading.take());
        if self.source.take().is_some() {
            unblock();
        }
    }
}

fn read(driver: &super::Driver, source: &Rc<OwnedFd>) -> Op {
    let mut buf = BufMut::aligned(RECORD_BYTES as usize);
    let entry = opcode::Read::new(types::Fd(source.as_raw_fd()), buf.as_mut_ptr(), RECORD_BYTES).build();
    // SAFETY: the entry points into the buffer that goes with it.
    unsafe { driver.start(entry, source, Held::Bytes(buf), true) }
}

/// SIGINT and SIGTERM.
fn set() -> libc::sigset_t {
    // SAFETY: a set of signals is plain bits, for which zero is a value.
    let mut set = unsafe { std::mem::zeroed::<libc::sigset_t>() };
    // SAFETY: the set is ours, the numbers are those of signals.
    unsafe {
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
    }
    set
}

fn unblock() {
    let set = set();
    // SAFETY: the set is initialised; the old one is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) };
}
