//! A member that serves leaves its groups, without a wait: clients cannot reach it, although the manager can.
//!
//! ```text
//! demote      the member leaves the read set; writes still go to it     a in-sync   b syncing
//! depart      ... and, once its target knows that, the write set        a in-sync   b out
//! ```
//! A syncing member serves no reads, so it can leave without a wait for its lease (R11). Until its target has
//! acknowledged the epoch in which it became one, it may still answer reads, and takes part in every write: so no
//! read misses a complete write. What dies between the two steps is evicted, or brought up to date, like any other.
//!
//! It owns the two steps. It never decides who leaves: `reach.rs` does.

use crate::evict::{destroyed, permit};
use crate::group::{self, Step};
use crate::refusal::Kind;
use crate::{Acknowledged, Reason, Refusal, Skipped};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{DriveId, Epoch, FabricMap, GroupId, Role};

/// In-sync members on these drives leave the read sets of the groups that are named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Demote {
    /// The drives that leave.
    pub drives: BTreeSet<DriveId>,
    /// The groups, and per group the word of an in-sync member that remains: it serves, and has adopted the newest
    /// map. A group that is named with an older epoch is left as it is.
    pub acknowledged: BTreeMap<GroupId, Acknowledged>,
}

/// Syncing members leave the write sets: their targets know that they serve no reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Depart {
    /// Per group and drive the stint that the drive's target has acknowledged.
    pub members: BTreeMap<GroupId, BTreeMap<DriveId, Epoch>>,
}

pub(crate) fn demote(map: &mut FabricMap, change: &Demote) -> Result<Reason, Refusal> {
    if let Some(drive) = change.drives.iter().find(|d| !map.drives.contains_key(d)) {
        return Err(Refusal::Unknown { kind: Kind::Drive, id: drive.to_string() });
    }
    let destroyed = destroyed(map);
    let (mut groups, mut skipped) = (Vec::new(), Vec::new());
    for id in change.acknowledged.keys() {
        let group = map.groups.get_mut(id).ok_or_else(|| unknown(*id))?;
        if !group.read_set().any(|d| change.drives.contains(&d)) {
            continue;
        }
        if let Err(cause) = permit(group, &change.drives, &change.acknowledged, &destroyed) {
            skipped.push(Skipped { group: *id, cause });
            continue;
        }
        let epoch = group::next_epoch(group);
        let leaving = |s: &&mut weft_types::Slot| s.role == Role::InSync && change.drives.contains(&s.drive);
        group.slots.iter_mut().filter(leaving).for_each(|slot| group::take(slot, Step::StandDown, epoch));
        groups.push(*id);
    }
    if groups.is_empty() {
        return Err(Refusal::NothingToEvict { drives: change.drives.len(), skipped });
    }
    Ok(Reason::Demoted { drives: change.drives.iter().copied().collect(), groups, skipped })
}

pub(crate) fn depart(map: &mut FabricMap, change: &Depart) -> Result<Reason, Refusal> {
    let mut drives = BTreeSet::new();
    for (id, members) in &change.members {
        let group = map.groups.get_mut(id).ok_or_else(|| unknown(*id))?;
        let epoch = group::next_epoch(group);
        for (&drive, &stint) in members {
            let slot = group.slots.iter_mut().find(|s| s.drive == drive);
            let slot = slot.ok_or(Refusal::NotMember { group: *id, drive })?;
            if slot.role != Role::Syncing {
                let (found, expected) = (slot.role, Role::Syncing);
                return Err(Refusal::WrongRole { group: *id, drive, found, expected });
            }
            if slot.since != stint {
                let found = slot.since;
                return Err(Refusal::StaleStint { group: *id, drive, reported: stint, found });
            }
            group::take(slot, Step::Leave, epoch);
            drives.insert(drive);
        }
    }
    if drives.is_empty() {
        return Err(Refusal::NothingToEvict { drives: 0, skipped: vec![] });
    }
    let groups = change.members.keys().copied().collect();
    Ok(Reason::Departed { drives: drives.into_iter().collect(), groups })
}

fn unknown(id: GroupId) -> Refusal {
    Refusal::Unknown { kind: Kind::Group, id: id.to_string() }
}
