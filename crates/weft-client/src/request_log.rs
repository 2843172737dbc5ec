//! What is known of a session's requests that go on for long, for the log.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;
use weft_rpc::LogQuota;
use weft_types::{DriveId, GroupId};

/// What is known of a session's requests that go on for long, and how many lines of the log they may fill.
pub(crate) struct RequestLog {
    pub(crate) slow: LogQuota,
    pub(crate) failed: LogQuota,
    pub(crate) stuck: LogQuota,
    /// The drive that a slow request has waited for, and how long, by the number of the request.
    pub(crate) waits: RefCell<BTreeMap<u32, (DriveId, Duration)>>,
    /// What the last attempt in a group met, for people.
    pub(crate) trouble: RefCell<BTreeMap<GroupId, String>>,
}

impl Default for RequestLog {
    fn default() -> RequestLog {
        RequestLog {
            slow: LogQuota::new("slow requests"),
            failed: LogQuota::new("failed requests"),
            stuck: LogQuota::new("stuck requests"),
            waits: RefCell::default(),
            trouble: RefCell::default(),
        }
    }
}
