//! Which part of the map a client holds.

use weft_types::Slice;

/// Which part of the map is held.
#[derive(Clone)]
pub(crate) struct Followed {
    pub(crate) slice: Slice,
    /// Came with the version of the map that is held; 0: what changed since cannot be asked for. A manager
    /// has another one after each start.
    pub(crate) nonce: u64,
}

impl Default for Followed {
    fn default() -> Self {
        Followed { slice: Slice::of_nothing(), nonce: 0 }
    }
}
