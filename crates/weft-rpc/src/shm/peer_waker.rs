//! How one end wakes the other: by a byte through the socket. What the byte says does not matter.

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::rc::Rc;
use weft_rt::Stream;

/// Wakes the other end of a connection.
pub(super) struct PeerWaker(Stream);

impl PeerWaker {
    pub(super) fn new(socket: Stream) -> Rc<PeerWaker> {
        Rc::new(PeerWaker(socket))
    }

    /// Sends a wake-up. It never waits: where there is no room for a byte, enough are there to wake whoever
    /// sleeps; and where nobody is at the other end any more, the socket's end tells so.
    pub(super) fn wake(&self) {
        let Some(socket) = self.0.socket() else { return };
        let sent = send(socket, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        if let Err(error) = sent
            && error != Errno::AGAIN
        {
            tracing::debug!(%error, "the other end cannot be woken");
        }
    }
}
