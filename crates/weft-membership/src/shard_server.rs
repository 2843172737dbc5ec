//! Which target each shard of a file system is served beside.
//!
//! It owns the choice: a target with an in-sync member of the shard's system volume, so that the map that the
//! target follows lists the file system, the shard and the sessions of both; of these the one that serves
//! fewest. A name says only who may attach the system volume. That nobody else writes it any more, its
//! exclusive attach says (R16).

use crate::observe::Condition;
use crate::refusal::Kind;
use crate::session::end_sessions;
use crate::{Change, Observations, Reason, Refusal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{Drive, DriveState, FabricMap, FileSystem, Role, TargetId, Volume, VolumeId, VolumeState};

/// How many more shards than another one a target serves before one of them passes to that.
const UNEVEN: usize = 2;

/// Shards of a file system get other servers. The sessions of those before them are over, so that they stop,
/// and that nothing of theirs comes later than what the sweep of these sessions finishes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameServers {
    /// The file system.
    pub file_system: VolumeId,
    /// The targets, by the numbers of the shards.
    pub servers: BTreeMap<usize, TargetId>,
}

pub(crate) fn name(map: &mut FabricMap, change: &NameServers) -> Result<Reason, Refusal> {
    let id = change.file_system;
    let unknown = || Refusal::Unknown { kind: Kind::FileSystem, id: id.to_string() };
    let listed = map.volumes.get(&id).ok_or_else(unknown)?;
    let files = listed.files().ok_or_else(unknown)?;
    if listed.state == VolumeState::Deleting {
        return Err(Refusal::Deleting { kind: Kind::FileSystem, volume: listed.name.clone() });
    }
    let mut files = files.clone();
    let mut ended = Vec::new();
    for (&shard, &server) in &change.servers {
        if !map.targets.contains_key(&server) {
            return Err(Refusal::Unknown { kind: Kind::Target, id: server.to_string() });
        }
        let shards = files.shards.len();
        let entry = files.shards.get_mut(shard).ok_or(Refusal::NoSuchShard { shard, shards })?;
        if entry.server == Some(server) {
            return Err(Refusal::SameServer { shard, server });
        }
        entry.server = Some(server);
        ended.extend(end_sessions(map, entry.volume));
    }
    put(map, id, files);
    let servers = change.servers.iter().map(|(shard, server)| (*shard, *server)).collect();
    Ok(Reason::ServersNamed { file_system: id, servers, ended })
}

/// Targets that are gone serve nothing; their sessions are over.
pub(crate) fn forget_servers(map: &mut FabricMap, is_gone: impl Fn(TargetId) -> bool) {
    let is_served = |files: &FileSystem| files.shards.iter().any(|s| s.server.is_some_and(&is_gone));
    let served: Vec<(VolumeId, FileSystem)> = map
        .file_systems()
        .filter_map(|volume| Some((volume.id, volume.files().filter(|files| is_served(files))?.clone())))
        .collect();
    for (id, mut files) in served {
        for shard in files.shards.iter_mut().filter(|shard| shard.server.is_some_and(&is_gone)) {
            shard.server = None;
            end_sessions(map, shard.volume);
        }
        put(map, id, files);
    }
}

fn put(map: &mut FabricMap, id: VolumeId, files: FileSystem) {
    let listed = map.volumes.get_mut(&id).expect("it was found above");
    listed.kind = weft_types::VolumeKind::Files(files);
}

/// Names servers: for the shards of a file system that have none that can serve; if all have, for one shard
/// of a target that serves many more than another one could.
pub fn next_servers(map: &FabricMap, seen: &Observations) -> Option<Change> {
    let mut loads: BTreeMap<TargetId, usize> = BTreeMap::new();
    for server in map.file_systems().flat_map(listed_servers) {
        *loads.entry(server).or_default() += 1;
    }
    let ready = || map.file_systems().filter(|volume| volume.state == VolumeState::Ready);
    ready()
        .find_map(|volume| servers_in_need(map, volume, seen, &mut loads))
        .or_else(|| ready().find_map(|volume| evened_out(map, volume, seen, &loads)))
}

fn listed_servers(volume: &Volume) -> impl Iterator<Item = TargetId> + '_ {
    volume.files().into_iter().flat_map(|files| &files.shards).filter_map(|shard| shard.server)
}

/// Servers for all shards of a file system that lack one, as far as there are some.
fn servers_in_need(
    map: &FabricMap,
    volume: &Volume,
    seen: &Observations,
    loads: &mut BTreeMap<TargetId, usize>,
) -> Option<Change> {
    let mut servers = BTreeMap::new();
    for (shard, listed) in volume.files()?.shards.iter().enumerate() {
        if listed.server.is_some_and(|server| may_stay(map, listed.volume, server, seen)) {
            continue;
        }
        let candidates = candidates(map, listed.volume, seen);
        let others = candidates.into_iter().filter(|target| listed.server != Some(*target));
        let Some(server) = others.min_by_key(|target| (loads.get(target).copied(), *target)) else {
            continue;
        };
        *loads.entry(server).or_default() += 1;
        servers.insert(shard, server);
    }
    let named = NameServers { file_system: volume.id, servers };
    (!named.servers.is_empty()).then_some(Change::NameServers(named))
}

/// One shard for a target that serves few.
fn evened_out(
    map: &FabricMap,
    volume: &Volume,
    seen: &Observations,
    loads: &BTreeMap<TargetId, usize>,
) -> Option<Change> {
    let load = |target: &TargetId| loads.get(target).copied().unwrap_or(0);
    volume.files()?.shards.iter().enumerate().find_map(|(shard, listed)| {
        let most = load(&listed.server?);
        if most < UNEVEN {
            return None;
        }
        let candidates = candidates(map, listed.volume, seen);
        let server = candidates.into_iter().min_by_key(|target| (load(target), *target))?;
        let servers = [(shard, server)].into();
        let named = NameServers { file_system: volume.id, servers };
        (load(&server) + UNEVEN <= most).then_some(Change::NameServers(named))
    })
}

/// The drives of members that are not out, with their roles.
fn members(map: &FabricMap, volume: VolumeId) -> impl Iterator<Item = (&Drive, Role)> {
    let groups: BTreeSet<_> = map.volumes.get(&volume).into_iter().flat_map(Volume::groups).collect();
    let groups = groups.into_iter().filter_map(|id| map.groups.get(id));
    let slots = groups.flat_map(|group| &group.slots).filter(|slot| slot.role != Role::Out);
    slots.filter_map(|slot| Some((map.drives.get(&slot.drive)?, slot.role)))
}

/// Whether a target goes on serving a shard: it holds some of it, and nothing says that it does not serve. It
/// is not asked for an in-sync member: a copy that is brought up to date again need not cost the shard a move.
/// Where its drives are to be emptied it stays only if those of all others are, too.
fn may_stay(map: &FabricMap, volume: VolumeId, server: TargetId, seen: &Observations) -> bool {
    let own = || members(map, volume).map(|(drive, _)| drive).filter(|drive| drive.target == server);
    let serves = |drive: &Drive| !matches!(seen.condition(map, drive.id), Condition::Gone { .. });
    let is_active = |drive: &Drive| drive.state == DriveState::Active;
    seen.targets.get(&server).is_none_or(|target| target.alive)
        && own().any(serves)
        && (own().any(|drive| serves(drive) && is_active(drive))
            || candidates(map, volume, seen).contains(&server))
}

/// The targets that could serve a shard: those with drives that are not to be emptied, as long as there are
/// some.
fn candidates(map: &FabricMap, volume: VolumeId, seen: &Observations) -> BTreeSet<TargetId> {
    let in_sync = || {
        let in_sync = members(map, volume).filter(|(_, role)| *role == Role::InSync).map(|(drive, _)| drive);
        in_sync.filter(|drive| seen.condition(map, drive.id) == Condition::Serving)
    };
    let active: BTreeSet<TargetId> =
        in_sync().filter(|drive| drive.state == DriveState::Active).map(|drive| drive.target).collect();
    match active.is_empty() {
        true => in_sync().map(|drive| drive.target).collect(),
        false => active,
    }
}
