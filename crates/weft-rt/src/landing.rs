//! Where what is read for a peer lands: in the memory that is shared with it, if there is some, so that nothing has to
//! be copied to send it.

use crate::BufMut;
use crate::shm::Sender;
use std::fmt;
use std::rc::Rc;

/// Where to read what answers a request ([`crate::Drive::read_to`]); memory of our own by default.
///
/// What lies in shared memory may change at any time, should the peer break the rules. So it is good for being sent to
/// that peer and for nothing else, and where it does not match its checksum, that says nothing of the drive.
#[derive(Clone, Default)]
pub struct Landing(Option<Rc<Sender>>);

impl Landing {
    pub(crate) fn shared(sender: Rc<Sender>) -> Landing {
        Landing(Some(sender))
    }

    /// A buffer of `len` bytes in shared memory, with unspecified contents; none if there is no such memory, or no more.
    pub(crate) fn buffer(&self, len: usize) -> Option<BufMut> {
        self.0.as_ref().and_then(|sender| BufMut::outgoing(sender, len))
    }
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Landing({})", if self.0.is_some() { "shared" } else { "own" })
    }
}
