//! Coming back: replicas that were out take part again, as syncing.
//!
//! It owns the new stint. A drive that restarted without having been evicted keeps its role and needs no change.

use crate::group::{self, Step};
use crate::refusal::Kind;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weft_types::{DriveId, DriveState, FabricMap, Group, GroupId, Role, Slot};

/// Drives that were out come back as syncing in all their groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rejoin {
    /// The drives that are back.
    pub drives: BTreeSet<DriveId>,
    /// Groups that they stay out of all the same.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub except: BTreeSet<GroupId>,
}

pub(crate) fn rejoin(map: &mut FabricMap, change: &Rejoin) -> Result<Reason, Refusal> {
    for drive in &change.drives {
        match map.drives.get(drive).map(|d| d.state) {
            None => return Err(Refusal::Unknown { kind: Kind::Drive, id: drive.to_string() }),
            Some(DriveState::Failed) => return Err(Refusal::DriveFailed { drive: *drive }),
            Some(DriveState::Destroyed) => return Err(Refusal::DriveDestroyed { drive: *drive }),
            Some(DriveState::Active | DriveState::Draining) => {}
        }
    }
    let mut groups = Vec::new();
    let is_back = |s: &Slot| s.role == Role::Out && change.drives.contains(&s.drive);
    let can_take = |g: &Group| !change.except.contains(&g.id) && g.read_set().next().is_some();
    map.groups.update_where(
        |group| can_take(group) && group.slots.iter().any(is_back),
        |group| {
            let epoch = group::next_epoch(group);
            for slot in group.slots.iter_mut().filter(|s| is_back(s)) {
                group::take(slot, Step::Begin, epoch);
            }
            groups.push(group.id);
        },
    );
    if groups.is_empty() {
        return Err(Refusal::NothingToRejoin { drives: change.drives.len() });
    }
    Ok(Reason::Rejoined { drives: change.drives.iter().copied().collect(), groups })
}
