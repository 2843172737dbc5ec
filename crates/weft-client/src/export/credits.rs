//! What one client may have in flight, counted in requests and bytes.
//!
//! Its own credits come first, and bound this client. Then comes room out of the budget that all clients of
//! the face have together. A request that holds both waits for no more.

use std::rc::Rc;
use weft_rt::sync::{Permit, Semaphore};
use weft_rt::{Room, Share, memory_of};
use weft_types::limits::ROOM_REQUEST_BYTES;

/// A client's limits. What a request takes comes back when its [`Credit`] is dropped: a face drops it when
/// the answer is with the network, so that a client that does not read its answers is not read from either.
pub struct Credits {
    requests: Semaphore,
    bytes: Semaphore,
    requests_max: u64,
    share: Rc<Share>,
}

/// What a request holds of them.
pub struct Credit {
    _request: Permit,
    _bytes: Permit,
    _room: Room,
}

/// Bytes of room that a request takes which carries or asks for so many bytes of data.
fn room_of(bytes: u64) -> u64 {
    memory_of(bytes as usize) as u64 + u64::from(ROOM_REQUEST_BYTES)
}

impl Credits {
    /// For so many requests, and so many bytes of data in all, at a time, as far as the share of all clients'
    /// budget has room.
    pub fn new(requests_max: u64, bytes_max: u64, share: Rc<Share>) -> Credits {
        let (requests, bytes) = (Semaphore::new(requests_max), Semaphore::new(bytes_max));
        Credits { requests, bytes, requests_max, share }
    }

    /// Takes one request of so many bytes, which must not be more than there are in all; waits until there
    /// are as many.
    pub async fn take(&self, bytes: u64) -> Credit {
        let request = self.requests.acquire(1).await.expect("credits are never closed");
        let credit = self.bytes.acquire(bytes).await.expect("credits are never closed");
        let room = self.share.room(room_of(bytes)).await;
        Credit { _request: request, _bytes: credit, _room: room }
    }

    /// The same, if nothing has to be waited for.
    pub fn try_take(&self, bytes: u64) -> Option<Credit> {
        let (request, credit) = (self.requests.try_acquire(1)?, self.bytes.try_acquire(bytes)?);
        let room = self.share.try_room(room_of(bytes))?;
        Some(Credit { _request: request, _bytes: credit, _room: room })
    }

    /// The client's share of the budget.
    pub fn share(&self) -> &Rc<Share> {
        &self.share
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
