//! How long a request is waited for, and what the log tells of those that take long or fail.

use crate::error::ClientError;
use crate::group_io::Place;
use crate::reach::STUCK_AFTER;
use crate::session::Session;
use std::pin::Pin;
use std::time::Duration;
use weft_rpc::slow_request;
use weft_rt::{Instant, now, timeout};
use weft_types::limits::REQUEST_WAITS_MAX;
use weft_types::{DriveId, GroupId, RequestId, with_causes};

impl Session {
    /// Goes on with the work of a request for `io_timeout` at most. Tells in the log if it took long or
    /// failed. The work is left where it is, because an `async fn` would keep it twice.
    ///
    /// # Errors
    /// [`ClientError::TimedOut`], or the work's own.
    pub(crate) async fn with_deadline<T>(
        &self,
        io_timeout: Duration,
        what: &'static str,
        at: Place,
        mut work: Pin<&mut impl Future<Output = Result<T, ClientError>>>,
    ) -> Result<T, ClientError> {
        let begun = now();
        let mut ended = timeout(io_timeout.min(STUCK_AFTER), work.as_mut()).await.ok();
        if ended.is_none() && io_timeout > STUCK_AFTER {
            self.log_stuck(what, at, io_timeout);
            ended = timeout(io_timeout.saturating_sub(STUCK_AFTER), work).await.ok();
        }
        let timed_out = || {
            let cause = self.waits_for(at);
            Err(ClientError::TimedOut { group: at.group, waited: io_timeout, cause })
        };
        let ended = ended.unwrap_or_else(timed_out);
        let took = begun.elapsed();
        if took >= slow_request() || ended.is_err() {
            self.log_end(what, at, took, ended.as_ref().err());
        }
        ended
    }

    /// Notes for the log what an attempt in a group has met.
    pub(crate) fn note_trouble(&self, group: GroupId, text: &str) {
        tracing::debug!(volume = self.volume_name, %group, text, "a replica does not serve");
        self.log.trouble.borrow_mut().insert(group, text.to_owned());
    }

    /// Notes for the log that a request has waited for this drive since then, if that is what made
    /// it slow: of several, the one that it has waited for longest.
    pub(crate) fn note_wait(&self, at: Place, drive: DriveId, since: Instant) {
        let waited = since.elapsed();
        if waited < slow_request() {
            return;
        }
        let mut waits = self.log.waits.borrow_mut();
        let longest = waits.entry(at.request).or_insert((drive, waited));
        if longest.1 < waited {
            *longest = (drive, waited);
        }
        // Requests that nobody waits for any more tell nothing, and leave theirs behind.
        if waits.len() > REQUEST_WAITS_MAX {
            waits.pop_first();
        }
    }

    /// Which members a request waits for, as far as is known, or what its last attempt met.
    fn waits_for(&self, at: Place) -> String {
        let silence = self.fabric.entry(at.group).and_then(|entry| self.fabric.silence_in(&entry));
        let trouble = || self.log.trouble.borrow().get(&at.group).cloned();
        silence.or_else(trouble).unwrap_or_else(|| "no answer".to_owned())
    }

    /// Tells of a request that goes on for long, before it fails.
    #[cold]
    fn log_stuck(&self, what: &'static str, at: Place, fails_after: Duration) {
        if !self.log.stuck.allows() {
            return;
        }
        let Place { group, object, range, request: number } = at;
        let request_id = RequestId { session: self.id, number };
        let (volume, waits_for) = (&self.volume_name, self.waits_for(at));
        let (took_ms, fails_after_ms) = (STUCK_AFTER.as_millis() as u64, fails_after.as_millis() as u64);
        tracing::warn!(
            %request_id, what, volume, %group, %object, %range, took_ms, fails_after_ms, waits_for,
            "request is stuck"
        );
    }

    /// Tells of a request that was slow or failed. That a session is over is told once, when it ends.
    #[cold]
    fn log_end(&self, what: &'static str, at: Place, took: Duration, error: Option<&ClientError>) {
        let Place { group, object, range, request: number } = at;
        let request_id = RequestId { session: self.id, number };
        let (volume, took_ms) = (&self.volume_name, took.as_millis() as u64);
        let epoch = self.fabric.entry(group).map(|entry| entry.epoch.0);
        let waited_for = self.log.waits.borrow_mut().remove(&number);
        match error {
            Some(ClientError::Fenced { .. } | ClientError::SessionOver { .. }) => {}
            Some(error) if self.log.failed.allows() => {
                let error = with_causes(error);
                tracing::warn!(
                    %request_id, what, volume, %group, epoch, %object, %range, took_ms, error,
                    "request failed"
                );
            }
            None if self.log.slow.allows() => {
                // What went wrong last in the group may have been another drive's, and no fault: it
                // is only worth telling where the request waited for no drive in particular.
                let last_trouble = self.log.trouble.borrow().get(&group).cloned();
                let last_trouble = last_trouble.filter(|_| waited_for.is_none());
                let waited_ms = waited_for.map(|(_, waited)| waited.as_millis() as u64);
                let waited_for = waited_for.map(|(drive, _)| self.fabric.drive_in_words(drive));
                tracing::warn!(
                    %request_id, what, volume, %group, epoch, %object, %range, took_ms, waited_for, waited_ms,
                    last_trouble, "request was slow"
                );
            }
            _ => {}
        }
    }
}
