//! How one end wakes the other: an event counter of each, which the other end may ring.

use crate::executor::try_with_core;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// A new event counter.
pub(super) fn new_bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC)?)
}

/// The other end's event counter.
pub(super) struct PeerBell(Rc<OwnedFd>);

impl PeerBell {
    pub(super) fn new(event: OwnedFd) -> Rc<PeerBell> {
        Rc::new(PeerBell(Rc::new(event)))
    }

    /// Wakes the other end. It goes to the kernel with whatever else this turn of the executor has for it, and nobody
    /// waits for it: an end that breaks the rules could let the write wait for ever.
    pub(super) fn ring(&self) {
        try_with_core(|core| {
            if let Some(driver) = core.uring() {
                driver.ring(&self.0);
            }
        });
    }
}
