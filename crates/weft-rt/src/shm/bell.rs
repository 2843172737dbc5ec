//! How one end wakes the other: by a byte through the socket. What the byte says does not matter.

use crate::uring::SocketStream;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::rc::Rc;

/// Wakes the other end of a connection.
pub(super) struct Bell(SocketStream);

impl Bell {
    pub(super) fn new(socket: SocketStream) -> Rc<Bell> {
        Rc::new(Bell(socket))
    }

    /// Rings. It never waits: where there is no room for a byte, enough are there to wake whoever sleeps; and where
    /// nobody is at the other end any more, the socket's end tells so.
    pub(super) fn ring(&self) {
        let sent = send(self.0.socket(), b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        if let Err(error) = sent
            && error != Errno::AGAIN
        {
            tracing::debug!(%error, "the other end cannot be rung for");
        }
    }
}
