//! One map from what drives hold of it: slices of targets, and whole maps (C11). Pure.
//!
//! It owns which of several copies counts for each entry: the newest that lists it, unless a newer one says
//! that it is gone. A slice says so of what it would list (`OfTarget`), a whole map of everything.

use std::collections::{BTreeMap, BTreeSet};
use weft_types::{
    FabricMap, Generation, GroupId, Key, MapVersion, Node, NodeId, SessionState, Table, Target, TargetId,
    Volume, VolumeId, VolumeKind, VolumeState,
};

/// Joins copies of one fabric's map; none without any. The version is the newest of all.
pub(crate) fn join_copies(mut copies: Vec<FabricMap>) -> Option<FabricMap> {
    copies.sort_by_key(|copy| copy.version);
    let newest = copies.last()?;
    // Pools and settings are in every copy.
    let mut map = FabricMap {
        scrub: newest.scrub.clone(),
        next_id: copies.iter().map(FabricMap::ids_below).max()?,
        of_target: None,
        ..newest.clone()
    };
    let groups = newest_of(&copies, |copy| &copy.groups);
    let tables = newest_of(&copies, |copy| &copy.group_tables);
    let volumes = newest_of(&copies, |copy| &copy.volumes);
    let drives = newest_of(&copies, |copy| &copy.drives);
    let sessions = newest_of(&copies, |copy| &copy.sessions);
    map.volumes = kept(&copies, &volumes, |copy, _, volume| lists_a_group_of(copy, volume));
    // What a volume names; a table never changes.
    let named: BTreeSet<_> = map.volumes.values().flat_map(Volume::group_tables).map(|t| t.id).collect();
    let tables = tables.into_iter().filter(|(id, _)| named.contains(id));
    map.group_tables = tables.map(|(id, (_, table))| (id, table.clone())).collect();
    map.sessions = kept(&copies, &sessions, |copy, _, session| copy.volumes.contains_key(&session.volume));
    let is_gone = |map: &FabricMap, id| volumes.contains_key(&id) && !map.volumes.contains_key(&id);
    close_together(&mut map, is_gone);
    map.groups = kept(&copies, &groups, |copy, id, _| {
        copy.of_target.as_ref().is_some_and(|says| says.removed_groups.contains(id))
    });
    let removed = newest.removed_drives.clone();
    map.drives = kept(&copies, &drives, |copy, id, drive| {
        removed.contains(id) || copy.of_target.as_ref().is_some_and(|says| says.target == drive.target)
    });
    // A member whose drive was taken out by a newer copy than that of its group is still a member by what is
    // known.
    let members: Vec<_> = map.groups.values().flat_map(|group| &group.slots).map(|slot| slot.drive).collect();
    for id in members {
        if let Some((_, drive)) = drives.get(&id).filter(|_| !map.drives.contains_key(&id)) {
            map.removed_drives.remove(&id);
            map.drives.insert(id, (*drive).clone());
        }
    }
    let (targets, nodes) = places_of(&copies, &map);
    (map.targets, map.nodes) = (targets, nodes);
    map.relocations = map.groups.keys().filter_map(|id| relocation_of(&copies, *id)).collect();
    if let Some(whole) = copies.iter().rev().find(|copy| !copy.is_of_target()) {
        map.scrub.done = whole.scrub.done.clone();
        map.scrub.done.retain(|id, _| map.groups.contains_key(id));
    }
    Some(map)
}

/// Has file systems and their system volumes be deleted together, as the commit did that closed them: of the
/// one the newest copy may be of before it, of the other of after it.
fn close_together(map: &mut FabricMap, is_gone: impl Fn(&FabricMap, VolumeId) -> bool) {
    let is_closed = |id: VolumeId| {
        let listed = map.volumes.get(&id);
        listed.is_some_and(|v| v.state == VolumeState::Deleting) || is_gone(map, id)
    };
    let closed = |volume: &&Volume| match &volume.kind {
        VolumeKind::Blocks => false,
        VolumeKind::System { file_system } => is_closed(*file_system),
        VolumeKind::Files(files) => files.system_volumes().any(is_closed),
    };
    let mut closing: BTreeSet<VolumeId> = map.volumes.values().filter(closed).map(|v| v.id).collect();
    // A shard that was not closed yet has its file system from another one.
    let files = closing.iter().filter_map(|id| map.volumes.get(id)?.files());
    closing.extend(files.flat_map(|files| files.system_volumes()).collect::<Vec<_>>());
    map.volumes.update_where(
        |volume| closing.contains(&volume.id) && volume.state == VolumeState::Ready,
        |volume| {
            volume.state = VolumeState::Deleting;
            volume.generation = Generation(volume.generation.0 + 1);
        },
    );
    map.sessions.update_where(
        |session| closing.contains(&session.volume) && session.state == SessionState::Open,
        |session| session.state = SessionState::Over,
    );
}

/// The targets and nodes of a map that has been joined but for these: those that the newest copy lists, and
/// those of the drives. Another one has no drive: it is gone, or enters again when it joins.
fn places_of(copies: &[FabricMap], map: &FabricMap) -> (Table<TargetId, Target>, Table<NodeId, Node>) {
    let targets = newest_of(copies, |copy| &copy.targets);
    let nodes = newest_of(copies, |copy| &copy.nodes);
    let of_drives = map.drives.values().map(|drive| drive.target);
    let mut named: BTreeSet<TargetId> = of_drives.chain(map.targets.keys().copied()).collect();
    let of_nodes: BTreeSet<NodeId> =
        named.iter().filter_map(|id| targets.get(id)).map(|(_, target)| target.node).collect();
    named.extend(of_nodes.iter().map(|node| TargetId::first_of(*node)));
    let targets = named.into_iter().filter_map(|id| Some((id, targets.get(&id)?.1.clone()))).collect();
    let nodes = of_nodes.iter().filter_map(|id| Some((*id, nodes.get(id)?.1.clone()))).collect();
    (targets, nodes)
}

/// Per key the newest copy that lists it.
fn newest_of<'a, K: Key + 'a, V: Clone>(
    copies: &'a [FabricMap],
    table: impl Fn(&'a FabricMap) -> &'a Table<K, V>,
) -> BTreeMap<K, (MapVersion, &'a V)> {
    let mut newest = BTreeMap::new();
    for copy in copies {
        newest.extend(table(copy).iter().map(|(key, value)| (*key, (copy.version, value))));
    }
    newest
}

/// The entries that no newer copy says to be gone. `would_list` tells whether a slice that does not list the
/// entry would, if it was there.
fn kept<K: Key, V: Clone>(
    copies: &[FabricMap],
    newest: &BTreeMap<K, (MapVersion, &V)>,
    would_list: impl Fn(&FabricMap, &K, &V) -> bool,
) -> Table<K, V> {
    let is_gone = |key: &K, version: MapVersion, value: &V| {
        let mut newer = copies.iter().filter(|copy| copy.version > version);
        newer.any(|copy| !copy.is_of_target() || would_list(copy, key, value))
    };
    let there = newest.iter().filter(|(key, (version, value))| !is_gone(key, *version, value));
    there.map(|(key, (_, value))| (*key, (*value).clone())).collect()
}

fn lists_a_group_of(copy: &FabricMap, volume: &Volume) -> bool {
    volume.groups().any(|group| copy.groups.contains_key(group))
}

/// The relocation that came with the newest entry of a group.
fn relocation_of(copies: &[FabricMap], group: GroupId) -> Option<(GroupId, weft_types::Relocation)> {
    let newest = copies.iter().rev().find(|copy| copy.groups.contains_key(&group))?;
    Some((group, *newest.relocations.get(&group)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{BlockCount, FabricId, FileSystem, PoolId, Protection, Striping};

    fn map(volumes: &[(u64, VolumeKind, VolumeState)]) -> FabricMap {
        let volume = |(id, kind, state): &(u64, VolumeKind, VolumeState)| Volume {
            id: VolumeId(*id),
            name: format!("v{id}"),
            pool: PoolId(1),
            size: BlockCount(1),
            protection: Protection::mirror(2),
            striping: Striping { unit_blocks: 1, width: 1, object_blocks: 1 },
            spans: vec![],
            generation: Generation(1),
            state: *state,
            thin: true,
            created_ms: 0,
            kind: kind.clone(),
        };
        let volumes = volumes.iter().map(volume).map(|v| (v.id, v)).collect();
        FabricMap { volumes, ..FabricMap::empty(FabricId(1)) }
    }

    fn files(shards: &[u64]) -> VolumeKind {
        let shards = shards.iter().map(|shard| weft_types::ListedShard::new(VolumeId(*shard))).collect();
        VolumeKind::Files(FileSystem { sets: vec![vec![GroupId(1)].into()], shards, is_spread: false })
    }

    #[test]
    fn a_file_system_and_its_system_volumes_are_closed_together() {
        use VolumeState::{Deleting, Ready};
        let system = |file_system| VolumeKind::System { file_system: VolumeId(file_system) };
        // A shard that is closed, a file system that is, and shards that are gone or that nobody has listed.
        for (states, gone, closed) in [
            ([Ready, Deleting, Ready], None, true),
            ([Deleting, Ready, Ready], None, true),
            ([Ready, Ready, Ready], Some(3), true),
            ([Ready, Ready, Ready], None, false),
        ] {
            let mut map = map(&[
                (1, files(&[2, 3]), states[0]),
                (2, system(1), states[1]),
                (3, system(1), states[2]),
                (4, VolumeKind::Blocks, Ready),
                (5, files(&[6]), Ready),
            ]);
            if let Some(gone) = gone {
                map.volumes.remove(&VolumeId(gone));
            }
            close_together(&mut map, |_, id| gone == Some(id.0));
            let is_closed = |v: &&Volume| v.state == Deleting;
            let found: Vec<u64> = map.volumes.values().filter(is_closed).map(|v| v.id.0).collect();
            let expected = [1, 2, 3].into_iter().filter(|id| closed && gone != Some(*id));
            assert_eq!(found, expected.collect::<Vec<u64>>(), "{states:?} without {gone:?}");
        }
    }
}
