//! Event counters of other processes: heard and rung through the ring.

use super::op::{Held, with_driver};
use super::{Driver, check_result, is_interrupted};
use crate::BufMut;
use io_uring::{opcode, types};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

/// What is added to a counter.
static ONE: u64 = 1;

/// Waits until a counter is not zero, and makes it zero.
///
/// # Errors
/// Those of the kernel, also if another process has changed how the descriptor behaves.
pub(crate) async fn read_event(event: &Rc<OwnedFd>) -> io::Result<()> {
    loop {
        let mut count = BufMut::zeroed(size_of::<u64>());
        let to = count.as_mut_ptr();
        let entry = opcode::Read::new(types::Fd(event.as_raw_fd()), to, count.len() as u32).build();
        // SAFETY: the entry points into the buffer that goes with it.
        let op = with_driver(|driver| unsafe { driver.start(entry, event, Held::Bytes(count), true) });
        match check_result(op.await.0) {
            Ok(8) => return Ok(()),
            Ok(_) => return Err(ErrorKind::InvalidData.into()),
            Err(error) if is_interrupted(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

impl Driver {
    /// Adds one to a counter. Nobody waits for it.
    pub(crate) fn ring(&self, event: &Rc<OwnedFd>) {
        let from = (&raw const ONE).cast();
        let entry = opcode::Write::new(types::Fd(event.as_raw_fd()), from, size_of::<u64>() as u32).build();
        // SAFETY: the entry points to a constant.
        drop(unsafe { self.start(entry, event, Held::Nothing, false) });
    }
}
