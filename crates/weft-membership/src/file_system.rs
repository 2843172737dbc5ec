//! File systems: planning one, and putting it into the map with its system volumes.
//!
//! It owns what a file system begins as. Deleting is in `delete`, mounting is an attach (`session`).

use crate::change::take_id;
use crate::refusal::Kind;
use crate::volume::{Stock, add_groups, check_request, check_striping};
use crate::{Change, GroupIndex, NewGroup, Reason, Refusal, SpanPlan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weft_layout::{FailureDomain, default_striping, objects_for};
use weft_types::limits::{SHARDS_MAX, SYSTEM_VOLUME_GROUPS_MAX};
use weft_types::{
    BlockCount, DriveId, FabricMap, FileSystem, Generation, GroupId, ListedShard, ObjectId, ObjectSpan,
    PoolId, Protection, Striping, Volume, VolumeId, VolumeKind, VolumeState, system_volume_name,
};

/// Shards of a file system for which nobody has said how many. Servers of metadata share them, so there are
/// some more than most fabrics have nodes; each costs a volume in the map.
pub const SHARDS_DEFAULT: usize = 16;

/// Blocks of a system volume: 1 TiB. It is thin, and takes what its shard has: a few hundred bytes for each
/// file.
pub const SYSTEM_VOLUME_BLOCKS: BlockCount = BlockCount(1 << 28);

/// What someone wants of a new file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystemRequest {
    /// Its name, unique among volumes and file systems.
    pub name: String,
    /// The pool that it draws from.
    pub pool: PoolId,
    /// How its data and its metadata are protected.
    pub protection: Protection,
    /// The default layout of its files; `None` for the default.
    pub striping: Option<Striping>,
    /// What must not hold two copies.
    pub domain: FailureDomain,
    /// How many shards its metadata has, from 1 to [`SHARDS_MAX`].
    pub shards: usize,
    /// Whether directories lie in any of them; otherwise all lie in the first one.
    pub is_spread: bool,
    /// Now, in milliseconds since 1970-01-01T00:00:00Z.
    pub created_ms: u64,
}

/// A file system is created, with its system volumes. Made by [`plan_file_system`]: the groups are decided,
/// and named by number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateFileSystem {
    /// Its name, unique among volumes and file systems.
    pub name: String,
    /// The pool that it draws from.
    pub pool: PoolId,
    /// How its data and its metadata are protected.
    pub protection: Protection,
    /// The default layout of its files.
    pub striping: Striping,
    /// What must not hold two copies.
    pub domain: FailureDomain,
    /// When it was created, in milliseconds since 1970-01-01T00:00:00Z.
    pub created_ms: u64,
    /// Groups that are made first, with the next free numbers in order.
    pub new_groups: Vec<NewGroup>,
    /// Its first set; the number of the file system comes before that of a table that is made for it.
    pub set: SpanPlan,
    /// Whether its directories lie in any of its shards.
    pub is_spread: bool,
    /// The groups of the system volume of each shard; at most [`SYSTEM_VOLUME_GROUPS_MAX`] each.
    pub shards: Vec<SpanPlan>,
}

/// Decides a new file system: which groups are made, and which its files and its shards use. `groups` is the
/// index of the map. Groups are made as for a volume ([`crate::plan_volume`]); all that the pool offers are
/// in its set, as far as a set has room.
///
/// # Errors
/// Whatever is wrong with the request, as [`crate::apply`] would say; or [`Refusal::Layout`] where the pool
/// has no group to offer and none can be made.
pub fn plan_file_system(
    map: &FabricMap,
    groups: &GroupIndex,
    request: &FileSystemRequest,
    absent: &BTreeSet<DriveId>,
) -> Result<Change, Refusal> {
    let FileSystemRequest { pool, protection, domain, is_spread, created_ms, .. } = *request;
    check_request(map, Kind::FileSystem, &request.name, pool, protection)?;
    check_shards(request.shards)?;
    let stock = Stock::plan(map, groups, pool, protection, domain, absent)?;
    let mut next = map.clone();
    add_groups(&mut next, pool, protection, domain, &stock.new_groups)?;
    let file_system = take_file_system_id(&mut next)?;
    let set = SpanPlan::choose(&next, &stock.groups, u64::MAX);
    let set_groups = set.carry_out(&mut next, pool, protection)?;
    let striping = request.striping.unwrap_or_else(|| default_striping(set_groups.len()));
    // Who holds something of a shard then holds something of the files as well, and follows both in its map.
    let mut offered: Vec<GroupId> = set_groups.to_vec();
    offered.sort_unstable();
    let mut change = CreateFileSystem {
        name: request.name.clone(),
        pool,
        protection,
        striping,
        domain,
        created_ms,
        new_groups: stock.new_groups,
        set,
        is_spread,
        shards: Vec::with_capacity(request.shards),
    };
    for shard in 0..request.shards {
        let plan = SpanPlan::choose(&next, &offered, SYSTEM_VOLUME_GROUPS_MAX as u64);
        put_system_volume(&mut next, &change, file_system, (shard, &plan))?;
        change.shards.push(plan);
    }
    // A dry run by the real path: what cannot be applied is not offered.
    create(&mut map.clone(), &change)?;
    Ok(Change::CreateFileSystem(change))
}

pub(crate) fn create(map: &mut FabricMap, change: &CreateFileSystem) -> Result<Reason, Refusal> {
    let CreateFileSystem { pool, protection, domain, .. } = *change;
    check_request(map, Kind::FileSystem, &change.name, pool, protection)?;
    check_shards(change.shards.len())?;
    add_groups(map, pool, protection, domain, &change.new_groups)?;
    let id = take_file_system_id(map)?;
    let set = change.set.carry_out(map, pool, protection)?;
    check_striping(&change.striping, pool, protection, set.len())?;
    let shards = change.shards.iter().enumerate();
    let shards = shards.map(|shard| Ok(ListedShard::new(put_system_volume(map, change, id, shard)?)));
    let shards = shards.collect::<Result<_, Refusal>>()?;
    let file_system = Volume {
        id,
        name: change.name.clone(),
        pool,
        size: BlockCount(0),
        protection,
        striping: change.striping,
        spans: Vec::new(),
        generation: Generation(1),
        state: VolumeState::Ready,
        thin: true,
        created_ms: change.created_ms,
        kind: VolumeKind::Files(FileSystem { sets: vec![set], shards, is_spread: change.is_spread }),
    };
    map.volumes.insert(id, file_system);
    Ok(Reason::FileSystemCreated {
        file_system: id,
        name: change.name.clone(),
        shards: change.shards.len(),
        new_groups: change.new_groups.len(),
    })
}

fn check_shards(shards: usize) -> Result<(), Refusal> {
    match (1..=SHARDS_MAX).contains(&shards) {
        true => Ok(()),
        false => Err(Refusal::Shards { shards }),
    }
}

/// The number of a new file system: objects of its files have 31 bits for it.
fn take_file_system_id(map: &mut FabricMap) -> Result<VolumeId, Refusal> {
    match VolumeId(take_id(map)) {
        id if id.0 <= ObjectId::FILE_SYSTEM_MAX => Ok(id),
        _ => Err(Refusal::NumbersUsedUp { kind: Kind::FileSystem }),
    }
}

/// Makes the system volume of a shard.
fn put_system_volume(
    map: &mut FabricMap,
    change: &CreateFileSystem,
    file_system: VolumeId,
    (shard, plan): (usize, &SpanPlan),
) -> Result<VolumeId, Refusal> {
    let CreateFileSystem { pool, protection, created_ms, .. } = *change;
    let name = system_volume_name(&change.name, shard);
    if map.volume_named(&name).is_some() {
        return Err(Refusal::NameTaken { kind: Kind::Volume, name });
    }
    let groups = plan.carry_out(map, pool, protection)?;
    if groups.len() > SYSTEM_VOLUME_GROUPS_MAX {
        let found = format!("a system volume with {} groups", groups.len());
        return Err(Refusal::PlannedElsewhere { found });
    }
    let striping = default_striping(groups.len());
    let span = ObjectSpan { first: 0, count: objects_for(&striping, SYSTEM_VOLUME_BLOCKS), groups };
    let id = VolumeId(take_id(map));
    let volume = Volume {
        id,
        name,
        pool,
        size: SYSTEM_VOLUME_BLOCKS,
        protection,
        striping,
        spans: vec![span],
        generation: Generation(1),
        state: VolumeState::Ready,
        thin: true,
        created_ms,
        kind: VolumeKind::System { file_system },
    };
    map.volumes.insert(id, volume);
    Ok(id)
}
