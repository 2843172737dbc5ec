//! Growing a volume. It never shrinks one, and never moves an object: what is there stays where it is.

use crate::delete::check_is_of_users;
use crate::refusal::Kind;
use crate::volume::{Stock, add_groups, check_size, check_space, size_in_blocks};
use crate::{Change, GroupIndex, NewGroup, Reason, Refusal, SpanPlan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weft_layout::{FailureDomain, objects_for};
use weft_types::limits::{SPAN_GROUPS_MAX, VOLUME_SPANS_MAX};
use weft_types::{BlockCount, DriveId, FabricMap, GroupId, ObjectSpan, Volume, VolumeId, VolumeState};

/// What someone wants of a volume that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeRequest {
    /// The volume.
    pub volume: VolumeId,
    /// Its new size in bytes: a multiple of 4096, above the present size.
    pub size_bytes: u64,
    /// What must not hold two copies.
    pub domain: FailureDomain,
}

/// A volume grows. Made by [`plan_resize`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrowVolume {
    /// The volume.
    pub volume: VolumeId,
    /// Its new size.
    pub size: BlockCount,
    /// What must not hold two copies.
    pub domain: FailureDomain,
    /// Groups that are made first, with the next free numbers in order.
    pub new_groups: Vec<NewGroup>,
    /// The groups of the new objects, in their order. None where no object is new, or where the last span
    /// goes on.
    pub span: Option<SpanPlan>,
}

/// Decides how a volume grows: in its last row of objects while that has room, then by more objects in the
/// groups of its last span, or in a new span where the pool now offers other groups. `groups` is the index
/// of the map.
///
/// # Errors
/// As [`crate::apply`] would say; shrinking is refused.
pub fn plan_resize(
    map: &FabricMap,
    groups: &GroupIndex,
    request: &ResizeRequest,
    absent: &BTreeSet<DriveId>,
) -> Result<Change, Refusal> {
    let size = size_in_blocks(request.size_bytes)?;
    let volume = growing(map, request.volume, size)?;
    let objects = objects_for(&volume.striping, size) - covered(volume);
    let mut change = GrowVolume {
        volume: request.volume,
        size,
        domain: request.domain,
        new_groups: Vec::new(),
        span: None,
    };
    if objects > 0 {
        let stock = Stock::plan(map, groups, volume.pool, volume.protection, request.domain, absent)?;
        let last: &[GroupId] = volume.spans.last().map_or(&[], |span| &span.groups);
        let offered: BTreeSet<GroupId> = stock.groups.iter().copied().collect();
        let lists_all = last.len() == offered.len().min(SPAN_GROUPS_MAX)
            && last.iter().all(|g| offered.contains(g))
            && stock.new_groups.is_empty();
        if !lists_all && volume.spans.len() < VOLUME_SPANS_MAX {
            let is_last_span = volume.spans.len() + 1 == VOLUME_SPANS_MAX;
            let objects = if is_last_span { u64::MAX } else { objects };
            change.span = Some(SpanPlan::choose(map, &stock.groups, objects));
            change.new_groups = stock.new_groups;
        }
    }
    grow(&mut map.clone(), &change)?;
    Ok(Change::GrowVolume(change))
}

pub(crate) fn grow(map: &mut FabricMap, change: &GrowVolume) -> Result<Reason, Refusal> {
    check_size(change.size)?;
    let volume = growing(map, change.volume, change.size)?;
    let (pool, protection, from, first) = (volume.pool, volume.protection, volume.size, covered(volume));
    let objects = objects_for(&volume.striping, change.size) - first;
    if !volume.thin {
        check_space(map, pool, protection, change.domain, BlockCount(change.size.0 - from.0))?;
    }
    add_groups(map, pool, protection, change.domain, &change.new_groups)?;
    let groups = match &change.span {
        Some(span) => Some(span.carry_out(map, pool, protection)?),
        None => None,
    };
    let volume = map.volumes.get_mut(&change.volume).expect("it was found above");
    volume.size = change.size;
    match (volume.spans.last_mut(), groups) {
        _ if objects == 0 => {}
        (_, Some(groups)) => volume.spans.push(ObjectSpan { first, count: objects, groups }),
        (Some(last), None) => last.count += objects,
        (None, None) => unreachable!("a volume has a span"),
    }
    Ok(Reason::VolumeGrown { volume: change.volume, from_blocks: from.0, to_blocks: change.size.0 })
}

/// The volume, if it may grow to this size.
fn growing(map: &FabricMap, id: VolumeId, size: BlockCount) -> Result<&Volume, Refusal> {
    let unknown = || Refusal::Unknown { kind: Kind::Volume, id: id.to_string() };
    let volume = map.volumes.get(&id).ok_or_else(unknown)?;
    let name = || volume.name.clone();
    check_is_of_users(map, volume)?;
    if volume.is_file_system() {
        return Err(Refusal::HasNoSize { name: name() });
    }
    if volume.state == VolumeState::Deleting {
        return Err(Refusal::Deleting { kind: Kind::Volume, volume: name() });
    }
    if size < volume.size {
        return Err(Refusal::Shrink { volume: name(), from: volume.size, to: size });
    }
    if size == volume.size {
        return Err(Refusal::SameSize { volume: name(), size });
    }
    Ok(volume)
}

/// Objects that the volume's spans cover: whole rows, so that the next span begins at a multiple of the width.
fn covered(volume: &Volume) -> u64 {
    volume.spans.last().map_or(0, |last| last.first + last.count)
}
