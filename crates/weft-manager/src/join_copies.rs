//! One map from what drives hold of it: slices of targets, and whole maps (C11). Pure.
//!
//! It owns which of several copies counts for each entry: the newest that lists it, unless a newer one says
//! that it is gone. A slice says so of what it would list (`OfTarget`), a whole map of everything.

use std::collections::{BTreeMap, BTreeSet};
use weft_types::{FabricMap, GroupId, Key, MapVersion, Node, NodeId, Table, Target, TargetId, Volume};

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
