//! Status codes of answers. Numbers are stable: they are the wire format.

use std::fmt;

/// How a request ended. Each says whether sending it again is safe and of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// No lease, role out, or not started: nothing was done; wait for a new map, then send again.
    NotServing = 1,
    /// The request's epoch is older than the group's; the head is the group's entry as JSON. Send again with it.
    StaleEpoch = 2,
    /// The target has an older epoch; send it the entry (`AdoptEntry`), then send again.
    UnknownEpoch = 3,
    /// The volume's generation has moved on: this client is fenced for good.
    StaleGeneration = 4,
    /// The session is over: this client must attach anew; requests in flight have an unknown outcome.
    SessionOver = 5,
    /// The drive is full: nothing was done. Free space, then send again.
    NoSpace = 6,
    /// The request breaks a rule of the protocol; sending it again is of no use.
    Invalid = 7,
    /// The drive has failed; wait for a map without it.
    DriveFailed = 8,
    /// The version's counter is too far above the target's clock; pick one from the clock in the answer.
    VersionAhead = 9,
    /// The body did not match its checksums when it arrived: send again.
    DamagedOnTheWay = 10,
    /// What was named does not exist here.
    NotFound = 11,
    /// A rule forbids it in the present state; the head says why, for people.
    Refused = 12,
    /// Something broke inside; the head says what, for people.
    Failed = 13,
    /// The peer is not the leading manager, or is not ready; try another or later. A write may have happened in part.
    NotReady = 14,
    /// The request asks for something that this release cannot serve; the head says what. Nothing was done:
    /// upgrade the side that refuses, then send again. Protocol 2.
    Unsupported = 15,
}

impl Status {
    /// The status with this number; an unknown one is [`Status::Failed`]: never taken for success.
    pub fn from_u16(n: u16) -> Status {
        use Status::*;
        [
            Ok,
            NotServing,
            StaleEpoch,
            UnknownEpoch,
            StaleGeneration,
            SessionOver,
            NoSpace,
            Invalid,
            DriveFailed,
            VersionAhead,
            DamagedOnTheWay,
            NotFound,
            Refused,
            Failed,
            NotReady,
            Unsupported,
        ]
        .into_iter()
        .find(|s| *s as u16 == n)
        .unwrap_or(Failed)
    }

    /// Whether the same request may be sent again, perhaps after waiting for a new map.
    pub fn is_retryable(self) -> bool {
        use Status::*;
        matches!(
            self,
            NotServing | StaleEpoch | UnknownEpoch | DriveFailed | VersionAhead | DamagedOnTheWay | NotReady
        )
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Status::*;
        f.write_str(match self {
            Ok => "done",
            NotServing => "not serving",
            StaleEpoch => "stale epoch",
            UnknownEpoch => "unknown epoch",
            StaleGeneration => "fenced by a newer attach",
            SessionOver => "session is over",
            NoSpace => "drive is full",
            Invalid => "invalid request",
            DriveFailed => "drive has failed",
            VersionAhead => "version too far ahead of the clock",
            DamagedOnTheWay => "data damaged on the way",
            NotFound => "not found",
            Refused => "refused",
            Failed => "failed",
            NotReady => "not ready",
            Unsupported => "not supported by this release",
        })
    }
}
