//! What the log tells of single requests on the data path: those that were slow, and those that failed.
//!
//! It owns which answers count as failures, and the lines' fields. A request that is neither costs a comparison. What a
//! newer map or another replica makes good (a stale epoch, a lease that has ended) is not a failure: the client that
//! does not get over it in time tells so itself, under the same number.

use crate::target::Target;
use std::cell::Cell;
use std::time::Duration;
use weft_rpc::{Answer, LogQuota, Peer, Request};
use weft_types::{RequestId, VolumeId};
use weft_wire::data::DataRequest;
use weft_wire::{Kind, Status};

/// How many requests were slow or failed, and how many lines about them may still be written.
pub(crate) struct Told {
    slow: LogQuota,
    slow_count: Cell<u64>,
    failed: LogQuota,
    failed_count: Cell<u64>,
}

impl Default for Told {
    fn default() -> Self {
        Told {
            slow: LogQuota::new("slow requests"),
            slow_count: Cell::new(0),
            failed: LogQuota::new("failed requests"),
            failed_count: Cell::new(0),
        }
    }
}

impl Told {
    /// Slow requests since the process started.
    pub(crate) fn slow_count(&self) -> u64 {
        self.slow_count.get()
    }

    /// Failed requests since the process started.
    pub(crate) fn failed_count(&self) -> u64 {
        self.failed_count.get()
    }
}

impl Target {
    /// Tells of a request that took long.
    #[cold]
    pub(crate) fn tell_slow(&self, peer: &Peer, request: &Request, head: &DataRequest, took: Duration) {
        self.told.slow_count.set(self.told.slow_count.get() + 1);
        if !self.told.slow.allows() {
            return;
        }
        let request_id = RequestId { session: head.session, number: request.number };
        let (what, took_ms) = (what(request), took.as_millis() as u64);
        tracing::warn!(
            %request_id, what, volume = self.volume_name(head.object.owner().volume()), group = %head.group,
            epoch = head.epoch.0, drive = %head.drive, object = %head.object, range = %head.range,
            client = peer.name, took_ms, "request was slow"
        );
    }

    /// Passes the answer on, and tells of it if it says that the request failed.
    pub(crate) fn tell_if_failed(&self, peer: &Peer, request: &Request, answer: Answer) -> Answer {
        if is_failure(answer.status) {
            self.tell_failed(peer, request, &answer);
        }
        answer
    }

    #[cold]
    fn tell_failed(&self, peer: &Peer, request: &Request, answer: &Answer) {
        self.told.failed_count.set(self.told.failed_count.get() + 1);
        if !self.told.failed.allows() {
            return;
        }
        let (what, client, error) = (what(request), &peer.name, String::from_utf8_lossy(&answer.head));
        let status = answer.status;
        match DataRequest::decode(peer.protocol, &request.head) {
            Ok((head, _)) => {
                let request_id = RequestId { session: head.session, number: request.number };
                tracing::warn!(
                    %request_id, what, volume = self.volume_name(head.object.owner().volume()), group = %head.group,
                    epoch = head.epoch.0, drive = %head.drive, object = %head.object, range = %head.range,
                    client, %status, %error, "request failed"
                );
            }
            Err(_) => tracing::warn!(what, client, %status, %error, "request failed"),
        }
    }

    fn volume_name(&self, id: VolumeId) -> String {
        let map = self.map();
        let known = map.as_ref().and_then(|map| map.volumes.get(&id));
        known.map_or_else(|| id.to_string(), |volume| volume.name.clone())
    }
}

/// What was asked, in the words of the client's own log.
fn what(request: &Request) -> &'static str {
    match request.kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::WriteZeroes => "write zeroes",
        _ => "versions",
    }
}

/// Whether this answer is one that nobody should get on a sound fabric with room.
fn is_failure(status: Status) -> bool {
    matches!(
        status,
        Status::NoSpace
            | Status::Invalid
            | Status::DriveFailed
            | Status::DamagedOnTheWay
            | Status::Failed
            | Status::Unsupported
    )
}
