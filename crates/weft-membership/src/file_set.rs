//! Further sets of groups for a file system: files that are made from then on use what was added to its pool.
//! It never changes a set, and never moves an object: files that there are stay where they are.

use crate::refusal::Kind;
use crate::volume::{Stock, add_groups, check_striping};
use crate::{Change, GroupIndex, NewGroup, Reason, Refusal, SpanPlan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weft_layout::FailureDomain;
use weft_types::limits::{SETS_MAX, SPAN_GROUPS_MAX};
use weft_types::{DriveId, FabricMap, FileSystem, GroupId, Volume, VolumeId, VolumeKind, VolumeState};

/// A file system gets a further set. Made by [`plan_file_set`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddFileSet {
    /// The file system.
    pub file_system: VolumeId,
    /// What must not hold two copies.
    pub domain: FailureDomain,
    /// Groups that are made first, with the next free numbers in order.
    pub new_groups: Vec<NewGroup>,
    /// The set.
    pub set: SpanPlan,
}

/// Decides a further set: all groups that the pool offers now, as far as a set has room, with new ones on
/// drives that have few. Groups on drives that are nearly full are left out, as long as enough others are
/// left for a file. `groups` is the index of the map.
///
/// # Errors
/// [`Refusal::NothingToAdd`] if the newest set has all that the pool offers; else as [`crate::apply`] would
/// say.
pub fn plan_file_set(
    map: &FabricMap,
    groups: &GroupIndex,
    (file_system, domain): (VolumeId, FailureDomain),
    absent: &BTreeSet<DriveId>,
    full: &BTreeSet<DriveId>,
) -> Result<Change, Refusal> {
    let (volume, files) = growing(map, file_system)?;
    let (pool, protection) = (volume.pool, volume.protection);
    let no_place = absent.union(full).copied().collect();
    let of = (pool, protection, domain);
    let roomy = Stock::plan_without(map, groups, of, &no_place, full);
    let stock = match roomy {
        Ok(stock) if stock.groups.len() >= volume.striping.width as usize => stock,
        _ => Stock::plan(map, groups, pool, protection, domain, &no_place)?,
    };
    let newest: BTreeSet<_> = files.sets.last().into_iter().flat_map(|set| set.iter().copied()).collect();
    let others: Vec<GroupId> = stock.groups.iter().copied().filter(|group| !newest.contains(group)).collect();
    if others.is_empty() {
        return Err(Refusal::NothingToAdd { name: volume.name.clone() });
    }
    // A set that has no room for all has those that the newest one lacks.
    let is_too_long = stock.groups.len() > SPAN_GROUPS_MAX && others.len() >= volume.striping.width as usize;
    let offered = if is_too_long { others } else { stock.groups };
    let mut next = map.clone();
    add_groups(&mut next, pool, protection, domain, &stock.new_groups)?;
    let set = SpanPlan::choose(&next, &offered, u64::MAX);
    let change = AddFileSet { file_system, domain, new_groups: stock.new_groups, set };
    add(&mut map.clone(), &change)?;
    Ok(Change::AddFileSet(change))
}

pub(crate) fn add(map: &mut FabricMap, change: &AddFileSet) -> Result<Reason, Refusal> {
    let (volume, _) = growing(map, change.file_system)?;
    let (pool, protection, striping) = (volume.pool, volume.protection, volume.striping);
    add_groups(map, pool, protection, change.domain, &change.new_groups)?;
    let set = change.set.carry_out(map, pool, protection)?;
    check_striping(&striping, pool, protection, set.len())?;
    let groups = set.len();
    let volume = map.volumes.get_mut(&change.file_system).expect("it was found above");
    let VolumeKind::Files(files) = &mut volume.kind else { unreachable!("it was found as one above") };
    files.sets.push(set);
    Ok(Reason::FileSystemGrown {
        file_system: change.file_system,
        sets: files.sets.len(),
        groups,
        new_groups: change.new_groups.len(),
    })
}

/// The file system, if it may have one set more.
fn growing(map: &FabricMap, id: VolumeId) -> Result<(&Volume, &FileSystem), Refusal> {
    let unknown = || Refusal::Unknown { kind: Kind::FileSystem, id: id.to_string() };
    let volume = map.volumes.get(&id).ok_or_else(unknown)?;
    let files = volume.files().ok_or_else(unknown)?;
    let name = || volume.name.clone();
    if volume.state == VolumeState::Deleting {
        return Err(Refusal::Deleting { kind: Kind::FileSystem, volume: name() });
    }
    match files.sets.len() < SETS_MAX {
        true => Ok((volume, files)),
        false => Err(Refusal::TooManySets { name: name() }),
    }
}
