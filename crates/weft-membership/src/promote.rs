//! Promotion: a syncing replica that has verified every block becomes in-sync.
//!
//! It owns the check of the stint. It never judges whether all is verified: that is the replica's word.

use crate::group::{self, Step};
use crate::refusal::Kind;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use weft_types::{DriveId, Epoch, FabricMap, GroupId, Role};

/// A syncing replica becomes in-sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Promote {
    /// The group.
    pub group: GroupId,
    /// The replica's drive.
    pub drive: DriveId,
    /// The stint in which it verified everything; a word about an earlier stint counts for nothing.
    pub stint: Epoch,
}

pub(crate) fn promote(map: &mut FabricMap, change: &Promote) -> Result<Reason, Refusal> {
    let Promote { group: id, drive, stint } = *change;
    let group =
        map.groups.get_mut(&id).ok_or_else(|| Refusal::Unknown { kind: Kind::Group, id: id.to_string() })?;
    let at =
        (group.slots.iter().position(|s| s.drive == drive)).ok_or(Refusal::NotMember { group: id, drive })?;
    let slot = group.slots[at];
    if slot.role != Role::Syncing {
        return Err(Refusal::WrongRole { group: id, drive, found: slot.role, expected: Role::Syncing });
    }
    if slot.since != stint {
        return Err(Refusal::StaleStint { group: id, drive, reported: stint, found: slot.since });
    }
    let epoch = group::next_epoch(group);
    group::take(&mut group.slots[at], Step::Promote, epoch);
    Ok(Reason::Promoted { group: id, drive, stint })
}
