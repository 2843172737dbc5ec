//! Eviction: drives leave the write sets of their groups, so that writes no longer wait for them.
//!
//! It owns the rule that data never loses its last listed copy. It never waits: the caller has stopped the
//! victims' leases and waited them out, or has their own word, before it commits.

use crate::group::{self, Step};
use crate::refusal::Kind;
use crate::{Reason, Refusal, SkipCause, Skipped};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{Drive, DriveId, DriveState, Epoch, FabricMap, Group, GroupId, Role};

/// Drives leave the write sets of their groups. A node's death is one such change with all of its drives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evict {
    /// The drives that leave.
    pub drives: BTreeSet<DriveId>,
    /// The groups that they leave, and who of each acknowledged the intent to evict them. A group that is
    /// named with an older epoch is left as it is.
    pub acknowledged: BTreeMap<GroupId, Acknowledged>,
}

/// The word of an in-sync member that it knows of an intended eviction, and no longer vouches for the victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Acknowledged {
    /// The member that remains.
    pub by: DriveId,
    /// The group's epoch when it gave its word.
    pub epoch: Epoch,
}

pub(crate) fn evict(map: &mut FabricMap, change: &Evict) -> Result<Reason, Refusal> {
    for drive in &change.drives {
        if !map.drives.contains_key(drive) {
            return Err(Refusal::Unknown { kind: Kind::Drive, id: drive.to_string() });
        }
    }
    let (mut groups, mut skipped) = (Vec::new(), Vec::new());
    let destroyed = destroyed(map);
    let is_written = |group: &Group| group.write_set().any(|d| change.drives.contains(&d));
    for id in change.acknowledged.keys() {
        let Some(group) = map.groups.get(id).filter(|group| is_written(group)) else { continue };
        match permit(group, &change.drives, &change.acknowledged, &destroyed) {
            Ok(()) => groups.push(*id),
            Err(cause) => skipped.push(Skipped { group: *id, cause }),
        }
    }
    for id in &groups {
        let group = map.groups.get_mut(id).expect("it was just there");
        leave(group, &change.drives);
    }
    if groups.is_empty() {
        return Err(Refusal::NothingToEvict { drives: change.drives.len(), skipped });
    }
    Ok(Reason::Evicted { drives: change.drives.iter().copied().collect(), groups, skipped })
}

/// The drives that were declared destroyed.
pub(crate) fn destroyed(map: &FabricMap) -> BTreeSet<DriveId> {
    let destroyed = |d: &&Drive| d.state == DriveState::Destroyed;
    map.drives.values().filter(destroyed).map(|d| d.id).collect()
}

/// Whether another in-sync member than these drives remains that has acknowledged the intent in this very epoch. One
/// that was declared destroyed is listed still, and is no copy.
pub(crate) fn permit(
    group: &Group,
    drives: &BTreeSet<DriveId>,
    acknowledged: &BTreeMap<GroupId, Acknowledged>,
    destroyed: &BTreeSet<DriveId>,
) -> Result<(), SkipCause> {
    let leaves = |drive| drives.contains(&drive) || destroyed.contains(&drive);
    let remains = |drive| !leaves(drive) && group.read_set().any(|d| d == drive);
    if !group.read_set().any(remains) {
        return Err(SkipCause::LastInSync);
    }
    match acknowledged.get(&group.id) {
        Some(word) if remains(word.by) && word.epoch == group.epoch => Ok(()),
        _ => Err(SkipCause::NotAcknowledged),
    }
}

fn leave(group: &mut Group, drives: &BTreeSet<DriveId>) {
    let epoch = group::next_epoch(group);
    for slot in &mut group.slots {
        if slot.role != Role::Out && drives.contains(&slot.drive) {
            group::take(slot, Step::Leave, epoch);
        }
    }
    assert!(group.read_set().next().is_some(), "group {} keeps an in-sync member", group.id);
}
