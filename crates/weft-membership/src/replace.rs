//! Replacement: a drive takes over every slot of another one that is out.
//!
//! It owns the walk over the groups; the rules for each slot are those of `rebuild`.

use crate::rebuild::take_over;
use crate::{Reason, Refusal, SkipCause, Skipped};
use serde::{Deserialize, Serialize};
use weft_layout::FailureDomain;
use weft_types::{DriveId, FabricMap, GroupId};

/// A drive takes over every slot in which another one is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replace {
    /// The drive that is out.
    pub from: DriveId,
    /// The drive that takes its place.
    pub to: DriveId,
    /// With `node`, groups are left where the new drive's node holds another copy.
    pub domain: FailureDomain,
}

/// Groups in which the slot cannot pass are left as they are and named in the reason; where that is so for all,
/// the change is refused with the first one's refusal.
pub(crate) fn replace(map: &mut FabricMap, change: &Replace) -> Result<Reason, Refusal> {
    let Replace { from, to, domain } = *change;
    let listed: Vec<GroupId> =
        map.groups.values().filter(|g| g.slot_of(from).is_some()).map(|g| g.id).collect();
    let (mut groups, mut skipped, mut first_refusal) = (Vec::new(), Vec::new(), None);
    for group in listed {
        match take_over(map, group, from, to, domain) {
            Ok(()) => groups.push(group),
            Err(refusal) => {
                let Some(cause) = skip_cause(&refusal) else { return Err(refusal) };
                skipped.push(Skipped { group, cause });
                first_refusal.get_or_insert(refusal);
            }
        }
    }
    if groups.is_empty() {
        return Err(first_refusal.unwrap_or(Refusal::NothingToReplace { drive: from }));
    }
    Ok(Reason::Replaced { from, to, groups, skipped })
}

/// Why one group is left as it is; `None` where the refusal is about the drive, and so about every group.
fn skip_cause(refusal: &Refusal) -> Option<SkipCause> {
    match refusal {
        Refusal::WrongRole { .. } => Some(SkipCause::NotOut),
        Refusal::AlreadyMember { .. } => Some(SkipCause::AlreadyMember),
        Refusal::SharedNode { .. } => Some(SkipCause::SharedNode),
        Refusal::NoSource { .. } => Some(SkipCause::NoSource),
        _ => None,
    }
}
