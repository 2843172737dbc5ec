//! What one client may have in flight, counted in requests and bytes.

use weft_rt::sync::{Permit, Semaphore};

/// A client's limits. What a request takes comes back when its [`Credit`] is dropped: a face drops it when
/// the answer is with the network, so that a client that does not read its answers is not read from either.
pub struct Credits {
    requests: Semaphore,
    bytes: Semaphore,
    requests_max: u64,
}

/// What a request holds of them.
pub struct Credit {
    _request: Permit,
    _bytes: Permit,
}

impl Credits {
    /// For so many requests, and so many bytes of data in all, at a time.
    pub fn new(requests_max: u64, bytes_max: u64) -> Credits {
        Credits { requests: Semaphore::new(requests_max), bytes: Semaphore::new(bytes_max), requests_max }
    }

    /// Takes one request of so many bytes, which must not be more than there are in all; waits until there
    /// are as many.
    pub async fn take(&self, bytes: u64) -> Credit {
        let request = self.requests.acquire(1).await.expect("credits are never closed");
        let bytes = self.bytes.acquire(bytes).await.expect("credits are never closed");
        Credit { _request: request, _bytes: bytes }
    }

    /// Whether nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.requests.free() == self.requests_max
    }

    /// Waits until nothing is in flight.
    pub async fn all_back(&self) {
        self.requests.acquire(self.requests_max).await.expect("credits are never closed");
    }
}
