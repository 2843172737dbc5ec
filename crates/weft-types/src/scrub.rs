//! When each group's data is read and verified as a whole, and how that ended last: the part of the fabric map that
//! a scrub's schedule lives by. It decides nothing: `weft-membership` says what is due.

use crate::{GroupId, Table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// How often everything is scrubbed unless told otherwise: a week, as is usual. Drives that rot do it over months,
/// and a second copy must not rot before the first is found.
pub const SCRUB_EVERY_MS: u64 = 7 * 24 * 3_600_000;

/// The schedule, what people have asked for, and what was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPlan {
    /// How often every group is scrubbed, in milliseconds; none: only when somebody asks.
    pub every_ms: Option<u64>,
    /// Until when the schedule rests, because somebody stopped a scrub; in milliseconds since
    /// 1970-01-01T00:00:00Z.
    #[serde(default)]
    pub rests_until_ms: u64,
    /// Groups that somebody wants scrubbed, and that have not been since.
    #[serde(default)]
    pub wanted: BTreeSet<GroupId>,
    /// How the last complete scrub of each group ended.
    #[serde(default)]
    pub done: Table<GroupId, ScrubRecord>,
}

impl Default for ScrubPlan {
    fn default() -> Self {
        ScrubPlan {
            every_ms: Some(SCRUB_EVERY_MS),
            rests_until_ms: 0,
            wanted: BTreeSet::new(),
            done: Table::new(),
        }
    }
}

impl ScrubPlan {
    /// Whether nobody has changed or scrubbed anything: such a plan is left out of the document.
    pub fn is_default(&self) -> bool {
        *self == ScrubPlan::default()
    }
}

/// How a scrub of one group ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubRecord {
    /// When, in milliseconds since 1970-01-01T00:00:00Z.
    pub finished_ms: u64,
    /// In-sync members that were read and compared; with one, only checksums were verified.
    pub members: u8,
    /// Chunks that were read.
    pub chunks: u64,
    /// Damaged copies of blocks that were written anew from a good one.
    pub healed: u64,
    /// Blocks that no member could read.
    pub lost: u64,
    /// Blocks in which members disagreed though no write was in flight: a fault of the software.
    pub disagreements: u64,
}

/// The kinds of what a scrub finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubFindingKind {
    /// Blocks were damaged on these drives, and have been written anew from a good copy.
    Healed,
    /// Blocks are damaged on these drives, and writing them anew did not help.
    NotHealed,
    /// No member can read these blocks any more. Nothing was changed.
    Lost,
    /// These drives missed a write that was complete; they were given it. A fault of the software.
    Stale,
    /// Members hold different data under the same version. A fault of the software; nothing was changed.
    Different,
}
