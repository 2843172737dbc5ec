//! Versions order the writes to one block; epochs order the memberships of one group.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The short number of a client session, unique among the sessions that are not yet swept everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionSlot(pub u16);

/// The total order of writes to one block: a 48-bit counter, then the session slot that breaks ties.
///
/// Counters are per group. Persisted and sent as the 8 bytes of [`Version::to_bits`].
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(u64);

impl Version {
    /// The version of a block that was never written.
    pub const ZERO: Version = Version(0);

    /// Whether it is [`Version::ZERO`].
    pub fn is_zero(&self) -> bool {
        *self == Version::ZERO
    }

    /// The largest counter; 48 bits.
    pub const COUNTER_MAX: u64 = (1 << 48) - 1;

    /// The version with this counter and session.
    ///
    /// # Panics
    /// If the counter does not fit 48 bits: a counter that ran out can order nothing any more.
    pub fn new(counter: u64, slot: SessionSlot) -> Self {
        assert!(counter <= Self::COUNTER_MAX, "version counter {counter} passes 48 bits");
        Version(counter << 16 | u64::from(slot.0))
    }

    /// The version with these bits, as persisted.
    pub const fn from_bits(bits: u64) -> Self {
        Version(bits)
    }

    /// The bits to persist: the counter above, the session slot in the low 16.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The counter.
    pub const fn counter(self) -> u64 {
        self.0 >> 16
    }

    /// The session slot of the writer.
    pub const fn slot(self) -> SessionSlot {
        SessionSlot(self.0 as u16)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.counter(), self.slot().0)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{self}")
    }
}

/// The version number of one group's membership; a request with an older one is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after this one.
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_by_counter_then_session() {
        let v = |c, s| Version::new(c, SessionSlot(s));
        assert!(v(2, 0) > v(1, u16::MAX));
        assert!(v(1, 2) > v(1, 1));
        assert_eq!(v(Version::COUNTER_MAX, 7).counter(), Version::COUNTER_MAX);
        assert_eq!(v(3, 9).slot(), SessionSlot(9));
    }
}
