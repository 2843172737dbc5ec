//! What this manager process knows of one target: its lease, its link, its promises.
//!
//! ```text
//!             join               first grant
//!   unknown --------->  joined  ------------->   up
//!      |                   ^                     |  ^
//!      |                   | join   silence,     |  | renewal, join
//!      |                   |        lost link    v  |
//!      +-- silence --> (suspect) <------------ suspect --- evicted from every group that can spare it --> down
//! ```
//! It owns the times that an eviction waits for. It never decides one.

use crate::slices::HeldSlice;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weft_membership::DriveFault;
use weft_rpc::Link;
use weft_rt::Instant;
use weft_rules::{Mutation, mutated};
use weft_types::{DriveId, MapVersion, TargetId};
use weft_wire::control::DriveLeftOut;

/// Why a target is taken for gone.
#[derive(Clone, Debug)]
pub(crate) struct Suspicion {
    /// What was noticed, for people.
    pub(crate) why: String,
    /// When.
    pub(crate) since: Instant,
    /// The newest map that took a drive of the target out because of it; 0 for none. Only a renewal that has
    /// adopted it is a sign of life: an older one may have been on its way since before.
    pub(crate) evicted_in: MapVersion,
}

/// The word of a target that it does not vouch for another target (R11).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    /// The newest map for which it was given.
    pub(crate) map: MapVersion,
    /// Since when it has held without a gap. The target keeps it until it has adopted the map of a grant that
    /// does not name the victim any more; this side forgets it with that grant.
    pub(crate) since: Instant,
}

/// What is known of one target.
pub(crate) struct Member {
    /// The start of the process that joined; none before a target has joined this manager process.
    pub(crate) incarnation: Option<u64>,
    /// The process that it is a thread of.
    pub(crate) process: Option<u64>,
    /// Whether that process knows the floors of groups (R7).
    pub(crate) knows_floors: bool,
    /// Whether it asks every target of a node for its word (P2).
    pub(crate) knows_targets: bool,
    /// Whether it serves sessions with several lanes (P6).
    pub(crate) knows_lanes: bool,
    /// Whether it knows file systems.
    pub(crate) knows_file_systems: bool,
    /// Whether it knows file systems with directories in several shards.
    pub(crate) knows_spread: bool,
    /// The process that was heard to have stopped in order, until another one joins.
    pub(crate) stopped: Option<u64>,
    /// When the newest process of the target that has joined said hello.
    pub(crate) hello_at: Instant,
    /// When it joined; the manager's start before that.
    pub(crate) joined_at: Instant,
    /// When it was last heard of; the manager's start before that.
    pub(crate) heard_at: Instant,
    /// When it was last granted a lease, by this process or, as far as this one can tell, by the one before.
    pub(crate) granted_at: Instant,
    /// Whether it has been granted a lease since it joined.
    pub(crate) granted: bool,
    /// When it was last granted a lease without having been up before; the manager's start before that.
    pub(crate) up_since: Instant,
    /// The newest map that it has adopted durably.
    pub(crate) adopted: MapVersion,
    /// Drives that have adopted a later map, which another drive of the target holds down, with its version.
    pub(crate) ahead: BTreeMap<DriveId, MapVersion>,
    /// Whether it has joined, and the answer with the map is on its way: nothing that it is sent leads on
    /// before that.
    pub(crate) awaits_map: bool,
    /// What it has of the map, if it follows its slice.
    pub(crate) slice: Option<HeldSlice>,
    /// Whether it has refused a delta as something that it cannot read: its release is an older one.
    pub(crate) refuses_deltas: bool,
    /// The drives that it has opened.
    pub(crate) drives: BTreeSet<DriveId>,
    /// The drives that it has found and must not serve, and why.
    pub(crate) refused: BTreeMap<DriveId, String>,
    /// Those among them that hold less than they had acknowledged.
    pub(crate) older: BTreeSet<DriveId>,
    /// Those among them that are members of groups with a floor, which its target does not know.
    pub(crate) floorless: BTreeSet<DriveId>,
    /// The drives that it was to serve and has not opened.
    pub(crate) left_out: Vec<DriveLeftOut>,
    /// Those among them that had failed, and that are taken out of their groups first.
    pub(crate) failed_before: BTreeSet<DriveId>,
    /// Whether another process of this target may have served before the one that joined.
    pub(crate) had_former: bool,
    /// The drives that it reported as failed, and why.
    pub(crate) failed: BTreeMap<DriveId, DriveFault>,
    /// Why it is taken for gone, if it is.
    pub(crate) suspicion: Option<Suspicion>,
    /// The connection to it.
    pub(crate) link: Option<Link>,
    /// Whether it renews its lease but cannot be connected to: then a lost link says nothing.
    pub(crate) is_unreachable: bool,
    /// Whether someone is looking after it, on a hint.
    pub(crate) is_probed: bool,
    /// Whom it does not vouch for.
    pub(crate) promises: BTreeMap<TargetId, Promise>,
    /// Since when it is up or down, in milliseconds since 1970-01-01T00:00:00Z.
    pub(crate) since_ms: u64,
}

impl Member {
    /// A target of the map that has not joined this process yet. The process before may have granted it a
    /// lease up to the last moment.
    pub(crate) fn unknown(now: Instant, wall_ms: u64) -> Self {
        Member {
            incarnation: None,
            process: None,
            knows_floors: false,
            knows_targets: false,
            knows_lanes: false,
            knows_file_systems: false,
            knows_spread: false,
            stopped: None,
            hello_at: Instant::default(),
            joined_at: now,
            heard_at: now,
            granted_at: now,
            granted: false,
            up_since: now,
            adopted: MapVersion(0),
            ahead: BTreeMap::new(),
            awaits_map: false,
            slice: None,
            refuses_deltas: false,
            drives: BTreeSet::new(),
            refused: BTreeMap::new(),
            left_out: Vec::new(),
            older: BTreeSet::new(),
            floorless: BTreeSet::new(),
            failed_before: BTreeSet::new(),
            had_former: true,
            failed: BTreeMap::new(),
            suspicion: None,
            link: None,
            is_unreachable: false,
            is_probed: false,
            promises: BTreeMap::new(),
            since_ms: wall_ms,
        }
    }

    /// Whether it holds a lease and nothing speaks against it.
    pub(crate) fn is_up(&self) -> bool {
        self.granted && self.suspicion.is_none() && !self.has_stopped()
    }

    /// Whether the process that has joined has said that it serves nothing any more.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped.is_some() && self.stopped == self.incarnation
    }

    /// Whether nothing is known of it yet: it has no lease, and has not had the time to get one.
    pub(crate) fn is_reporting(&self) -> bool {
        !self.granted && self.suspicion.is_none()
    }

    /// Since when it is taken for gone, if it is.
    pub(crate) fn suspected_since(&self) -> Option<Instant> {
        self.suspicion.as_ref().map(|s| s.since)
    }

    /// Whether this process of the target has joined with a drive, and was not refused.
    pub(crate) fn has_joined_with(&self, incarnation: u64, drive: DriveId) -> bool {
        self.incarnation == Some(incarnation) && self.drives.contains(&drive)
    }

    /// Whether its process has joined with this drive, was not refused, and has not reported that it failed.
    pub(crate) fn has_drive(&self, drive: DriveId) -> bool {
        self.drives.contains(&drive) && !self.failed.contains_key(&drive)
    }

    /// Whether it serves this drive, as far as is known.
    pub(crate) fn serves(&self, drive: DriveId) -> bool {
        self.is_up() && self.has_drive(drive)
    }

    /// The newest map that this drive is known to have adopted durably.
    pub(crate) fn adopted_on(&self, drive: DriveId) -> MapVersion {
        self.ahead.get(&drive).copied().unwrap_or_default().max(self.adopted)
    }

    /// Whether the target is known not to serve this drive: it is taken for gone, or has joined without the
    /// drive.
    pub(crate) fn lacks(&self, drive: DriveId) -> bool {
        let is_missing = !self.drives.contains(&drive) || self.failed.contains_key(&drive);
        self.suspicion.is_some() || (self.incarnation.is_some() && is_missing)
    }

    /// The link, if it is open.
    pub(crate) fn open_link(&self) -> Option<Link> {
        self.link.clone().filter(|l| !l.is_closed())
    }

    /// When the promise about this target has outlasted everything that was vouched before it; none without
    /// one. A promise given before the target joined anew is void: a new process knows nothing of it.
    pub(crate) fn promise_due(&self, victim: TargetId, wait: Duration) -> Option<Instant> {
        let promise = self.promises.get(&victim)?;
        let holds = promise.since > self.joined_at || mutated(Mutation::PromiseOutlivesRestart);
        let wait = if mutated(Mutation::PromiseNotWaitedOut) { Duration::ZERO } else { wait };
        holds.then(|| promise.since + wait)
    }

    /// Notes a promise. An older one that still holds goes on.
    pub(crate) fn note_promise(&mut self, victim: TargetId, map: MapVersion, now: Instant) {
        let joined_at = self.joined_at;
        let promise = self.promises.entry(victim).or_insert(Promise { map, since: now });
        promise.map = promise.map.max(map);
        if promise.since <= joined_at && !mutated(Mutation::PromiseOutlivesRestart) {
            promise.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_counts_from_when_it_began_and_not_across_a_join() {
        let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        let wait = Duration::from_secs(2);
        let mut member = Member::unknown(at(1), 0);
        assert_eq!(member.promise_due(TargetId(7), wait), None);
        member.note_promise(TargetId(7), MapVersion(5), at(2));
        member.note_promise(TargetId(7), MapVersion(6), at(3));
        assert_eq!(member.promise_due(TargetId(7), wait), Some(at(4)), "it has held since 2");
        member.joined_at = at(5);
        assert_eq!(member.promise_due(TargetId(7), wait), None);
        member.note_promise(TargetId(7), MapVersion(6), at(6));
        assert_eq!(member.promise_due(TargetId(7), wait), Some(at(8)));
    }
}
