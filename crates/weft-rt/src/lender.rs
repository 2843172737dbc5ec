//! Buffers in memory of somebody else: a mapping that is shared with another process, for one.

use crate::BufMut;
use std::fmt;
use std::ptr::NonNull;
use std::rc::Rc;

/// Memory of which buffers are made ([`BufMut::lent`], [`crate::Buf::lent`]) that come back when nobody uses
/// them any more.
///
/// # Safety
/// What [`Lender::lend`] returns must be valid for reads and writes of so many bytes, initialised, and nobody
/// else's of this process, as long as the lender lives and until the buffer was given back.
pub unsafe trait Lender {
    /// Memory for a buffer of `len` bytes; `None` if there is no more.
    fn lend(&self, len: usize) -> Option<NonNull<u8>>;

    /// The last user of the buffer of `len` bytes that begins here is gone.
    fn give_back(&self, start: NonNull<u8>, len: usize);
}

/// Where to read what answers a request ([`crate::Drive::read_to`]); memory of our own by default.
///
/// What lies in shared memory may change at any time, should the peer break the rules. So it is good for
/// being sent to that peer and for nothing else, and where it does not match its checksum, that says nothing
/// of the drive.
#[derive(Clone, Default)]
pub struct Landing(Option<Rc<dyn Lender>>);

impl Landing {
    /// In memory of this lender, as long as it has some.
    pub fn of(lender: Rc<dyn Lender>) -> Landing {
        Landing(Some(lender))
    }

    /// A buffer of `len` bytes of the lender, with unspecified contents; `None` if there is no lender, or it
    /// has no more.
    pub fn buffer(&self, len: usize) -> Option<BufMut> {
        self.0.as_ref().and_then(|lender| BufMut::lent(lender, len))
    }
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Landing({})", if self.0.is_some() { "shared" } else { "own" })
    }
}
