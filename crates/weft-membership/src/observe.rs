//! What the manager has observed: the input of every plan.
//!
//! It owns the shape, and how a drive's condition follows from it. It never observes by itself. What is not in it is
//! not known, and nothing is planned about it.

use crate::{Acknowledged, Room};
use std::collections::{BTreeMap, BTreeSet};
use weft_layout::FailureDomain;
use weft_types::{DriveId, Epoch, FabricMap, Group, GroupId, SessionId, TargetId, Version, VolumeId};

/// All that was observed so far.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    /// Now, in milliseconds on the clock that the other times here are taken from.
    pub now_ms: u64,
    /// What must not hold two copies, for the choice of drives to rebuild on.
    pub domain: FailureDomain,
    /// The targets.
    pub targets: BTreeMap<TargetId, TargetObservation>,
    /// The drives.
    pub drives: BTreeMap<DriveId, DriveObservation>,
    /// Drives that are gone and serve all the same, because they have last up-to-date copies: these are to
    /// be made elsewhere.
    pub vanished: BTreeSet<DriveId>,
    /// Drives whose targets do not know the floors of groups: they become members of no group that has
    /// one (R7).
    pub without_floors: BTreeSet<DriveId>,
    /// How full drives are; nothing of those whose targets do not say.
    pub room: BTreeMap<DriveId, Room>,
    /// Who acknowledged the intent to evict this drive from this group, and in which epoch.
    pub acknowledged: BTreeMap<(GroupId, DriveId), Acknowledged>,
    /// The stint in which this replica has verified everything.
    pub verified: BTreeMap<(GroupId, DriveId), Epoch>,
    /// The stint in which the target of a drive that is to leave its group knows that it serves no reads there.
    pub yielded: BTreeMap<(GroupId, DriveId), Epoch>,
    /// Members that clients cannot reach, with since when, in milliseconds: they leave their groups, and are not taken
    /// back before they are not named here any more (`reach.rs`).
    pub unreached: BTreeMap<(GroupId, DriveId), u64>,
    /// Sessions that closed, or whose client was silent for too long.
    pub ended: BTreeSet<SessionId>,
    /// Sessions that every target refuses durably, and has swept.
    pub swept: BTreeSet<SessionId>,
    /// Deleted volumes of which every target has returned all blocks.
    pub emptied: BTreeSet<VolumeId>,
}

/// What is known of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetObservation {
    /// Whether it renews its lease.
    pub alive: bool,
    /// Whether it can serve nothing any more: its lease was stopped and waited out, or it said so itself.
    pub fenced: bool,
    /// When it was last heard of, in milliseconds.
    pub heard_ms: u64,
}

/// What is known of a drive from its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveObservation {
    /// Whether the target has opened it.
    pub present: bool,
    /// What the target met on it.
    pub failed: Option<DriveFault>,
    /// Whether it can serve nothing any more, although its target may: its target acknowledged its eviction.
    pub fenced: bool,
    /// When it was last seen in service, in milliseconds.
    pub seen_ms: u64,
}

/// Why a drive serves no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveFault {
    /// What happened, for people.
    pub cause: String,
    /// Whether the device is at fault that the drive is on: see [`crate::FailDrive::of_device`].
    pub of_device: bool,
}

/// A drive, as far as plans care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Nothing was observed that says anything.
    Unknown,
    /// In service.
    Serving,
    /// Not in service.
    Gone {
        /// Whether it can serve nothing any more.
        fenced: bool,
        /// Since when, in milliseconds.
        since_ms: u64,
    },
}

impl Observations {
    /// Whether the drive may begin a stint, or be promoted, in this group: what a target that does not know
    /// floors takes below one would bring back what was forgotten (R7).
    pub(crate) fn heeds_floor(&self, group: &Group, drive: DriveId) -> bool {
        group.floor == Version::ZERO || !self.without_floors.contains(&drive)
    }

    /// The condition of a drive of the map. One that the map marks as failed or destroyed does not serve, even where its target
    /// still could: it is to be fenced, evicted and rebuilt elsewhere.
    pub(crate) fn condition(&self, map: &FabricMap, drive: DriveId) -> Condition {
        let listed = map.drives.get(&drive);
        let failed = listed.is_some_and(|d| d.state.is_given_up());
        let target = listed.and_then(|d| self.targets.get(&d.target));
        let seen = self.drives.get(&drive);
        match (target, seen) {
            (None, _) => Condition::Unknown,
            (Some(target), seen) if !target.alive => {
                let fenced = target.fenced || seen.is_some_and(|s| s.fenced);
                Condition::Gone { fenced, since_ms: target.heard_ms }
            }
            (Some(_), None) => Condition::Unknown,
            (Some(_), Some(seen)) if seen.present && seen.failed.is_none() && !failed => Condition::Serving,
            (Some(_), Some(seen)) => Condition::Gone { fenced: seen.fenced, since_ms: seen.seen_ms },
        }
    }
}
