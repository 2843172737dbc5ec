//! Readiness of descriptors that are neither drives nor connections: a poll that goes on by itself.

use super::check_result;
use super::op::{Held, RepeatingOp, with_driver};
use io_uring::{opcode, types};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

/// Reports of readiness that may wait for the reader; at so many the poll is stopped, and begins again
/// when the reader asks. One report is as good as many, so this only bounds memory.
const REPORTS_KEPT: usize = 64;

/// A descriptor, and the poll of it that is under way.
pub(crate) struct PolledFile {
    file: Rc<OwnedFd>,
    /// The poll (IORING_POLL_ADD_MULTI, Linux 5.13). It goes on between two calls.
    polling: RefCell<Option<RepeatingOp>>,
    /// Whether the kernel has polls that go on by themselves, as far as is known.
    repeats: Cell<bool>,
}

impl PolledFile {
    pub(crate) fn new(file: OwnedFd) -> PolledFile {
        PolledFile { file: Rc::new(file), polling: RefCell::default(), repeats: Cell::new(true) }
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub(crate) async fn ready(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_ready(cx)).await
    }

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut polling = self.polling.borrow_mut();
        let mut is_ready = false;
        loop {
            match polling.get_or_insert_with(|| self.start()).poll_next(cx) {
                Poll::Pending if is_ready => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
                // What was ready before the end is told first. The next call begins again, and looks.
                Poll::Ready(None) => {
                    *polling = None;
                    if is_ready {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(Some(report)) => match -report.result {
                    libc::ECANCELED | libc::EINTR => {}
                    // An older kernel refuses what it does not know.
                    libc::EINVAL if self.repeats.replace(false) => {}
                    _ => match check_result(report.result) {
                        Ok(_) => is_ready = true,
                        Err(error) => return Poll::Ready(Err(error)),
                    },
                },
            }
        }
    }

    fn start(&self) -> RepeatingOp {
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(self.repeats.get()).build();
        // SAFETY: the entry points to nothing.
        with_driver(|driver| unsafe {
            driver.start_repeating(entry, &self.file, Held::Nothing, REPORTS_KEPT)
        })
    }
}
