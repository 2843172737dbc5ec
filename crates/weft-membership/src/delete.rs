//! Deleting a volume, in two steps: first it is gone for clients, and later, when its blocks were returned
//! and its sessions swept, it is forgotten. The system volumes of a file system are deleted with it. It never
//! deletes data itself.

use crate::refusal::Kind;
use crate::session::{attached, end_sessions};
use crate::span::drop_tables;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use weft_types::{FabricMap, Generation, SessionId, Volume, VolumeId, VolumeState};

/// A volume is gone for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginDelete {
    /// The volume.
    pub volume: VolumeId,
    /// Whether sessions that are open are ended; otherwise they are a reason to refuse.
    pub force: bool,
}

/// A deleted volume is forgotten, after every target has returned its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishDelete {
    /// The volume.
    pub volume: VolumeId,
}

pub(crate) fn begin(map: &mut FabricMap, change: &BeginDelete) -> Result<Reason, Refusal> {
    let id = change.volume;
    let unknown = || Refusal::Unknown { kind: Kind::Volume, id: id.to_string() };
    let volume = map.volumes.get(&id).ok_or_else(unknown)?;
    check_is_of_users(map, volume)?;
    if volume.state == VolumeState::Deleting {
        return Err(Refusal::Deleting { kind: Kind::of(volume), volume: volume.name.clone() });
    }
    if !change.force {
        attached(map, volume, |_| true)?;
    }
    let shards: Vec<VolumeId> = volume.files().into_iter().flat_map(|f| f.system_volumes()).collect();
    let mut ended = end_sessions(map, id);
    // Whoever serves the metadata has nothing to serve any more.
    for shard in &shards {
        ended.extend(end_sessions(map, *shard));
        close(map, *shard);
    }
    let generation = close(map, id);
    Ok(Reason::VolumeDeleting { volume: id, generation, ended })
}

/// The volume is gone for clients from now on.
fn close(map: &mut FabricMap, id: VolumeId) -> Generation {
    let volume = map.volumes.get_mut(&id).expect("a file system and its system volumes are listed together");
    volume.state = VolumeState::Deleting;
    // Targets refuse the older generation, so that no write of an ended session revives a block.
    volume.generation = Generation(volume.generation.0 + 1);
    volume.generation
}

/// Refuses what is asked of a system volume: it is changed together with its file system only.
pub(crate) fn check_is_of_users(map: &FabricMap, volume: &Volume) -> Result<(), Refusal> {
    let Some(id) = volume.system_of() else { return Ok(()) };
    let file_system = map.volumes.get(&id).map_or_else(|| id.to_string(), |listed| listed.name.clone());
    Err(Refusal::SystemVolume { volume: volume.name.clone(), file_system })
}

pub(crate) fn finish(map: &mut FabricMap, change: &FinishDelete) -> Result<Reason, Refusal> {
    let id = change.volume;
    let unknown = || Refusal::Unknown { kind: Kind::Volume, id: id.to_string() };
    let volume = map.volumes.get(&id).ok_or_else(unknown)?;
    if volume.state != VolumeState::Deleting {
        return Err(Refusal::NotDeleting { kind: Kind::of(volume), volume: volume.name.clone() });
    }
    let sessions: Vec<SessionId> = map.sessions.values().filter(|s| s.volume == id).map(|s| s.id).collect();
    if let Some(&first) = sessions.first() {
        return Err(Refusal::Unswept { volume: id, sessions: sessions.len(), first });
    }
    let volume = map.volumes.remove(&id).expect("it was found above");
    drop_tables(map, volume.group_tables().map(|table| table.id));
    Ok(Reason::VolumeDeleted { volume: id, name: volume.name })
}
