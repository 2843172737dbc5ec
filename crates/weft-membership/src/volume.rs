//! Volumes: planning one, and putting it into the map.
//!
//! It owns what a volume begins as, and which groups it uses. Growing is in `resize`, deleting in `delete`,
//! attaching in `session`.

use crate::capacity::{candidates, free_blocks};
use crate::change::take_id;
use crate::refusal::Kind;
use crate::{Change, GroupIndex, Reason, Refusal, SpanPlan, validate_name};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use weft_layout::{Candidate, FailureDomain, LayoutError};
use weft_layout::{default_striping, groups_wanted, objects_for, place, validate};
use weft_types::{
    BLOCK_SIZE, BlockCount, DeviceId, Drive, DriveId, DriveState, Epoch, FabricMap, Generation, Group,
    GroupId, NodeId, ObjectSpan, PoolId, Protection, Role, Slot, Striping, Volume, VolumeId, VolumeKind,
    VolumeState,
};

/// Blocks of the largest volume: its size in bytes is a signed 64-bit number everywhere in Linux (`loff_t`).
pub const VOLUME_BLOCKS_MAX: u64 = i64::MAX as u64 / BLOCK_SIZE as u64;

/// What someone wants of a new volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRequest {
    /// Its name, unique in the fabric.
    pub name: String,
    /// The pool that it draws from.
    pub pool: PoolId,
    /// Its size in bytes: a multiple of 4096 above 0.
    pub size_bytes: u64,
    /// How its data is protected.
    pub protection: Protection,
    /// How its addresses become objects; `None` for the default.
    pub striping: Option<Striping>,
    /// What must not hold two copies.
    pub domain: FailureDomain,
    /// Whether it may be larger than what is free.
    pub thin: bool,
    /// Now, in milliseconds since 1970-01-01T00:00:00Z.
    pub created_ms: u64,
}

/// A volume is created. Made by [`plan_volume`]: the groups are decided, and named by number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name, unique in the fabric.
    pub name: String,
    /// The pool that it draws from.
    pub pool: PoolId,
    /// Its size.
    pub size: BlockCount,
    /// How its data is protected.
    pub protection: Protection,
    /// How its addresses become objects.
    pub striping: Striping,
    /// What must not hold two copies.
    pub domain: FailureDomain,
    /// Whether it may be larger than what is free.
    pub thin: bool,
    /// When it was created, in milliseconds since 1970-01-01T00:00:00Z.
    pub created_ms: u64,
    /// Groups that are made first, with the next free numbers in order.
    pub new_groups: Vec<NewGroup>,
    /// The groups of its objects, in their order; old and new ones.
    pub span: SpanPlan,
}

/// A group to be made: all of its members begin in-sync, since there is nothing in it yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewGroup {
    /// Its number.
    pub id: GroupId,
    /// Its drives in slot order, one per copy.
    pub drives: Vec<DriveId>,
}

/// Decides a new volume: how it is striped, which groups are made, and which it uses. `groups` is the index
/// of the map.
///
/// Groups are made where the pool has fewer than its drives deserve: all of them for its first volume with this
/// protection, and further ones after drives were added. No group is made on a drive in `absent`, the drives that do
/// not serve at the moment, or have no room ([`crate::nearly_full`]).
///
/// # Errors
/// Whatever is wrong with the request, as [`crate::apply`] would say; or [`Refusal::Layout`] where the pool has no
/// group to offer and none can be made.
pub fn plan_volume(
    map: &FabricMap,
    groups: &GroupIndex,
    request: &VolumeRequest,
    absent: &BTreeSet<DriveId>,
) -> Result<Change, Refusal> {
    let size = size_in_blocks(request.size_bytes)?;
    check_request(map, Kind::Volume, &request.name, request.pool, request.protection)?;
    let stock = Stock::plan(map, groups, request.pool, request.protection, request.domain, absent)?;
    let striping = request.striping.unwrap_or_else(|| default_striping(stock.groups.len()));
    check_striping(&striping, request.pool, request.protection, stock.groups.len())?;
    let span = SpanPlan::choose(map, &stock.groups, objects_for(&striping, size));
    let change = CreateVolume {
        name: request.name.clone(),
        pool: request.pool,
        size,
        protection: request.protection,
        striping,
        domain: request.domain,
        thin: request.thin,
        created_ms: request.created_ms,
        new_groups: stock.new_groups,
        span,
    };
    // A dry run by the real path: what cannot be applied is not offered.
    create(&mut map.clone(), &change)?;
    Ok(Change::CreateVolume(change))
}

pub(crate) fn create(map: &mut FabricMap, change: &CreateVolume) -> Result<Reason, Refusal> {
    check_request(map, Kind::Volume, &change.name, change.pool, change.protection)?;
    check_size(change.size)?;
    if !change.thin {
        check_space(map, change.pool, change.protection, change.domain, change.size)?;
    }
    add_groups(map, change.pool, change.protection, change.domain, &change.new_groups)?;
    let id = VolumeId(take_id(map));
    let groups = change.span.carry_out(map, change.pool, change.protection)?;
    check_striping(&change.striping, change.pool, change.protection, groups.len())?;
    let span = ObjectSpan { first: 0, count: objects_for(&change.striping, change.size), groups };
    let volume = Volume {
        id,
        name: change.name.clone(),
        pool: change.pool,
        size: change.size,
        protection: change.protection,
        striping: change.striping,
        spans: vec![span],
        generation: Generation(1),
        state: VolumeState::Ready,
        thin: change.thin,
        created_ms: change.created_ms,
        kind: VolumeKind::Blocks,
    };
    map.volumes.insert(id, volume);
    Ok(Reason::VolumeCreated { volume: id, name: change.name.clone(), new_groups: change.new_groups.len() })
}

/// The groups that a pool offers to a volume, those to be made included.
pub(crate) struct Stock {
    /// Groups to be made.
    pub(crate) new_groups: Vec<NewGroup>,
    /// All groups that can be used.
    pub(crate) groups: Vec<GroupId>,
}

impl Stock {
    /// What the pool offers, and what is to be made so that every drive has its part.
    pub(crate) fn plan(
        map: &FabricMap,
        index: &GroupIndex,
        pool: PoolId,
        protection: Protection,
        domain: FailureDomain,
        absent: &BTreeSet<DriveId>,
    ) -> Result<Self, Refusal> {
        Self::plan_without(map, index, (pool, protection, domain), absent, &BTreeSet::new())
    }

    /// As [`Stock::plan`], and offers no group that has a copy on one of the full drives.
    pub(crate) fn plan_without(
        map: &FabricMap,
        index: &GroupIndex,
        (pool, protection, domain): (PoolId, Protection, FailureDomain),
        absent: &BTreeSet<DriveId>,
        full: &BTreeSet<DriveId>,
    ) -> Result<Self, Refusal> {
        let drives = Drives::of(map);
        let has_room = |g: &Group| full.is_empty() || !g.slots.iter().any(|slot| full.contains(&slot.drive));
        let same = |g: &&Group| g.pool == pool && map.copies_of(g) == protection.members() && has_room(g);
        let offered = |g: &&Group| drives.offers(map, g, domain);
        let mut groups: Vec<GroupId> =
            map.groups.values().filter(same).filter(offered).map(|g| g.id).collect();
        let candidates = candidates(map, pool, absent);
        let missing = groups_wanted(&candidates, protection.members()).saturating_sub(groups.len());
        let new = match missing {
            // There is something to offer, and nothing to place.
            0 if !groups.is_empty() => Ok(Vec::new()),
            _ => place(&candidates, index.loads(pool, protection), protection.members(), missing, domain),
        };
        let new = match new {
            Ok(new) => new,
            // While too few nodes are there, a volume can still use the groups that exist.
            Err(
                LayoutError::TooFewDrives { .. }
                | LayoutError::TooFewDevices { .. }
                | LayoutError::TooFewNodes { .. },
            ) if !groups.is_empty() => Vec::new(),
            Err(error) => return Err(Refusal::Layout(error)),
        };
        let new_groups: Vec<NewGroup> =
            (map.next_id..).zip(new).map(|(id, drives)| NewGroup { id: GroupId(id), drives }).collect();
        groups.extend(new_groups.iter().map(|g| g.id));
        if groups.is_empty() {
            let (copies, drives) = (protection.members(), candidates.len());
            return Err(Refusal::Layout(LayoutError::TooFewDrives { copies, drives }));
        }
        Ok(Stock { new_groups, groups })
    }
}

/// What placement has to know of each drive, close together in memory: there is a look-up for each copy of
/// each group.
struct Drives(HashMap<DriveId, Place>);

/// A drive, as a place of copies.
#[derive(Clone, Copy)]
struct Place {
    node: NodeId,
    device: DeviceId,
    is_given_up: bool,
}

impl Drives {
    fn of(map: &FabricMap) -> Drives {
        let place = |d: &Drive| Place { node: d.node, device: d.device, is_given_up: d.state.is_given_up() };
        Drives(map.drives.values().map(|drive| (drive.id, place(drive))).collect())
    }

    /// Whether a volume may be put on the group: an in-sync member is not known to be lost, and no two copies
    /// are in one failure domain.
    fn offers(&self, map: &FabricMap, group: &Group, domain: FailureDomain) -> bool {
        let leaving = map.relocations.get(&group.id).map(|r| r.from);
        let mut places: Vec<Place> = Vec::with_capacity(group.slots.len());
        let mut is_sound = false;
        for slot in &group.slots {
            let Some(place) = self.0.get(&slot.drive) else { continue };
            is_sound |= slot.role == Role::InSync && !place.is_given_up;
            if Some(slot.drive) != leaving {
                places.push(*place);
            }
        }
        let is_apart = || match domain {
            FailureDomain::Node => is_each_once(places.iter().map(|place| place.node)),
            FailureDomain::Device => is_each_once(places.iter().map(|place| (place.node, place.device))),
            FailureDomain::Drive => true,
        };
        is_sound && is_apart()
    }
}

/// Whether no two are the same; there are as many as a group has copies.
fn is_each_once<T: PartialEq>(items: impl Iterator<Item = T> + Clone) -> bool {
    items.clone().enumerate().all(|(n, item)| items.clone().take(n).all(|earlier| earlier != item))
}

/// A size in bytes as blocks.
pub(crate) fn size_in_blocks(bytes: u64) -> Result<BlockCount, Refusal> {
    if bytes == 0 || !bytes.is_multiple_of(BLOCK_SIZE as u64) {
        return Err(Refusal::Size { bytes });
    }
    let size = BlockCount(bytes / BLOCK_SIZE as u64);
    check_size(size)?;
    Ok(size)
}

pub(crate) fn check_size(size: BlockCount) -> Result<(), Refusal> {
    if size.0 == 0 {
        return Err(Refusal::Size { bytes: 0 });
    }
    if size.0 > VOLUME_BLOCKS_MAX {
        return Err(Refusal::TooLarge { size, limit: BlockCount(VOLUME_BLOCKS_MAX) });
    }
    Ok(())
}

/// Checks what a new volume and a new file system have in common.
pub(crate) fn check_request(
    map: &FabricMap,
    kind: Kind,
    name: &str,
    pool: PoolId,
    protection: Protection,
) -> Result<(), Refusal> {
    validate_name(name).map_err(|fault| Refusal::Name { kind, name: name.to_owned(), fault })?;
    if let Some(taken) = map.volume_named(name) {
        return Err(Refusal::NameTaken { kind: Kind::of(taken), name: name.to_owned() });
    }
    if !map.pools.contains_key(&pool) {
        return Err(Refusal::Unknown { kind: Kind::Pool, id: pool.to_string() });
    }
    if !protection.is_valid() {
        return Err(Refusal::Protection { protection });
    }
    Ok(())
}

pub(crate) fn check_striping(
    striping: &Striping,
    pool: PoolId,
    protection: Protection,
    groups: usize,
) -> Result<(), Refusal> {
    validate(striping).map_err(Refusal::Layout)?;
    if striping.width as usize > groups {
        return Err(Refusal::WiderThanPool { pool, width: striping.width, groups, protection });
    }
    Ok(())
}

/// Checks that so many further blocks are free.
pub(crate) fn check_space(
    map: &FabricMap,
    pool: PoolId,
    protection: Protection,
    domain: FailureDomain,
    needed: BlockCount,
) -> Result<(), Refusal> {
    let free = free_blocks(map, pool, protection, domain);
    if needed > free {
        return Err(Refusal::NoSpace { pool, protection, needed, free });
    }
    Ok(())
}

/// Makes the groups, after a check that they still fit this map.
pub(crate) fn add_groups(
    map: &mut FabricMap,
    pool: PoolId,
    protection: Protection,
    domain: FailureDomain,
    new_groups: &[NewGroup],
) -> Result<(), Refusal> {
    for new in new_groups {
        let elsewhere = |found: String| Err(Refusal::PlannedElsewhere { found });
        let expected = GroupId(take_id(map));
        if new.id != expected {
            return elsewhere(format!("the next group here is {expected}, not {}", new.id));
        }
        let mut members: Vec<Candidate> = Vec::new();
        let mut is_apart = true;
        for id in &new.drives {
            let drive = match map.drives.get(id) {
                Some(d) if d.pool == pool && d.state == DriveState::Active => Candidate::of(d),
                _ => return elsewhere(format!("drive {id} is no active drive of pool {pool}")),
            };
            is_apart &= members.iter().all(|m| m.drive != drive.drive && domain.is_apart(m, &drive));
            members.push(drive);
        }
        if members.len() != protection.members() || !is_apart {
            return elsewhere(format!(
                "group {} has no {} drives apart by {domain}",
                new.id,
                protection.members()
            ));
        }
        let epoch = Epoch(1);
        let slot = |&drive: &DriveId| Slot { drive, role: Role::InSync, since: epoch };
        let slots = new.drives.iter().map(slot).collect();
        map.groups.insert(new.id, Group { id: new.id, pool, epoch, slots, floor: Default::default() });
    }
    Ok(())
}
