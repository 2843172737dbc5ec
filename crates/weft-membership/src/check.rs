//! What must hold in every map, and between a map and the one after it.
//!
//! It owns the invariants, written independently of the changes, so that the one can be tested by the other, and a
//! map from elsewhere can be judged before it is trusted. It never repairs anything.

use crate::group::is_transition_valid;
use crate::loss;
use crate::node::is_address;
use crate::relocate::is_slots_step;
use crate::span::is_used;
use crate::{VOLUME_BLOCKS_MAX, validate_name};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use weft_layout::{objects_for, validate};
use weft_types::limits::{
    COPIES_MAX, LANES_MAX, SETS_MAX, SHARDS_MAX, SPAN_GROUPS_MAX, SYSTEM_VOLUME_GROUPS_MAX,
    TARGETS_PER_NODE_MAX,
};
use weft_types::{
    AttachMode, Drive, DriveId, DriveState, FabricMap, FileSystem, Group, GroupId, GroupTable, GroupTableId,
    Key, ObjectId, Relocation, Role, Session, SessionId, SessionSlot, SessionState, Slot, Table, TableChange,
    Target, TargetId, Volume, VolumeId, VolumeKind, VolumeState, system_volume_name,
};

/// Something in a map, or between two maps, that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where: the identifier of the entry.
    pub place: String,
    /// What is wrong with it, with what was found.
    pub fault: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.fault)
    }
}

/// Collects violations of one entry.
struct Judge<'a> {
    place: String,
    found: &'a mut Vec<Violation>,
}

impl Judge<'_> {
    /// Notes the fault unless the condition holds.
    fn must(&mut self, holds: bool, fault: impl FnOnce() -> String) {
        if !holds {
            self.found.push(Violation { place: self.place.clone(), fault: fault() });
        }
    }
}

/// Everything that must not be in this map; empty for every map that this crate makes.
pub fn check(map: &FabricMap) -> Vec<Violation> {
    let mut found = Vec::new();
    check_numbers(map, &mut found, None);
    check_names(map, &mut found, None);
    for drive in map.drives.values() {
        check_drive(map, drive, &mut Judge { place: format!("drive {}", drive.id), found: &mut found });
    }
    for (id, relocation) in &map.relocations {
        check_relocation(map, *id, relocation, &mut Judge { place: id.to_string(), found: &mut found });
    }
    for group in map.groups.values() {
        check_group(map, group, &mut Judge { place: group.id.to_string(), found: &mut found });
    }
    for volume in map.volumes.values() {
        check_volume(map, volume, &mut Judge { place: volume.id.to_string(), found: &mut found });
    }
    let used: BTreeSet<GroupTableId> =
        map.volumes.values().flat_map(Volume::group_tables).map(|table| table.id).collect();
    for (id, table) in &map.group_tables {
        let mut judge = Judge { place: format!("table {id}"), found: &mut found };
        check_table(map, table, &mut judge);
        judge.must(used.contains(id), || "no volume names it".into());
    }
    check_sessions(map, &mut found);
    let mut judge = Judge { place: "scrub".into(), found: &mut found };
    for group in map.scrub.wanted.iter().chain(map.scrub.done.keys()) {
        judge.must(map.groups.contains_key(group), || format!("no group {group}"));
    }
    for (from, below) in &map.unknown_ids {
        judge
            .must(from < below && *below <= map.next_id, || format!("numbers {from} to {below} are unknown"));
    }
    judge.must(map.scrub.every_ms != Some(0), || "scheduled without a pause".into());
    found
}

/// Everything that must not be in a map whose predecessor was sound, found by looking at what differs between the two.
///
/// Finds something exactly if [`check`] does. Costs what differs; and all entries of a kind where one changes that
/// others refer to in a way that no change of this crate makes often: a node or pool that is removed, a drive that
/// is removed, declared destroyed, or moved to another pool.
pub fn check_changed(old: &FabricMap, new: &FabricMap) -> Vec<Violation> {
    let is_removed = |d: &Drive| {
        let next = new.drives.get(&d.id);
        let is_destroyed = |d: &Drive| d.state == DriveState::Destroyed;
        next.is_none_or(|n| n.pool != d.pool || is_destroyed(n) != is_destroyed(d))
    };
    let is_elsewhere = |t: &Target| new.targets.get(&t.id).is_none_or(|next| next.node != t.node);
    let is_wide = changed(&old.targets, &new.targets).any(is_elsewhere)
        || changed(&old.nodes, &new.nodes).any(|n| !new.nodes.contains_key(&n.id))
        || changed(&old.pools, &new.pools).any(|p| !new.pools.contains_key(&p.id))
        || changed(&old.drives, &new.drives).any(is_removed)
        || changed(&old.groups, &new.groups).any(|g| is_other_kind(old, new, g))
        || new.next_id < old.next_id
        || new.schema != old.schema
        || new.scrub.wanted != old.scrub.wanted
        || new.unknown_ids != old.unknown_ids;
    if is_wide {
        return check(new);
    }
    let mut found = Vec::new();
    check_numbers(new, &mut found, Some(old));
    check_names(new, &mut found, Some(old));
    for drive in now(&old.drives, &new.drives) {
        check_drive(new, drive, &mut Judge { place: format!("drive {}", drive.id), found: &mut found });
    }
    let passing = new.relocations.changes(&old.relocations).map(|change| *change.key());
    let groups: BTreeSet<GroupId> = now(&old.groups, &new.groups).map(|g| g.id).chain(passing).collect();
    for id in groups {
        let mut judge = Judge { place: id.to_string(), found: &mut found };
        if let Some(group) = new.groups.get(&id) {
            check_group(new, group, &mut judge);
        }
        if let Some(relocation) = new.relocations.get(&id) {
            check_relocation(new, id, relocation, &mut judge);
        }
    }
    for volume in unsure_volumes(old, new) {
        check_volume(new, volume, &mut Judge { place: volume.id.to_string(), found: &mut found });
    }
    check_changed_tables(old, new, &mut found);
    check_changed_sessions(old, new, &mut found);
    let mut judge = Judge { place: "scrub".into(), found: &mut found };
    for group in added(&old.scrub.done, &new.scrub.done) {
        judge.must(new.groups.contains_key(&group), || format!("no group {group}"));
    }
    judge.must(new.scrub.every_ms != Some(0), || "scheduled without a pause".into());
    found
}

/// Volumes that are new or different, and those that name one that is different or gone, or are named by it.
fn unsure_volumes<'a>(old: &FabricMap, new: &'a FabricMap) -> impl Iterator<Item = &'a Volume> {
    let mut unsure: BTreeSet<VolumeId> = now(&old.volumes, &new.volumes).map(|v| v.id).collect();
    for volume in changed(&old.volumes, &new.volumes).chain(now(&old.volumes, &new.volumes)) {
        unsure.extend(volume.system_of());
        unsure.extend(volume.files().into_iter().flat_map(|files| files.system_volumes()));
    }
    unsure.into_iter().filter_map(|id| new.volumes.get(&id))
}

/// Looks through the volumes where a table has come or gone, or a volume does not name one any more.
fn check_changed_tables(old: &FabricMap, new: &FabricMap, found: &mut Vec<Violation>) {
    let mut unsure: BTreeSet<GroupTableId> = BTreeSet::new();
    for (id, table) in put(&old.group_tables, &new.group_tables) {
        check_table(new, table, &mut Judge { place: format!("table {id}"), found });
        unsure.insert(*id);
    }
    for volume in changed(&old.volumes, &new.volumes) {
        let names = |id| new.volumes.get(&volume.id).is_some_and(|v| v.group_tables().any(|t| t.id == id));
        unsure.extend(volume.group_tables().map(|table| table.id).filter(|id| !names(*id)));
    }
    for id in unsure.iter().filter(|id| new.group_tables.contains_key(id) && !is_used(new, **id)) {
        Judge { place: format!("table {id}"), found }.must(false, || "no volume names it".into());
    }
    if changed(&old.group_tables, &new.group_tables).next().is_some() {
        for volume in new.volumes.values() {
            check_named_tables(new, volume, &mut Judge { place: volume.id.to_string(), found });
        }
    }
}

/// Whether the group, as it was, is of another kind now, so that volumes that list it have to be looked at.
fn is_other_kind(old: &FabricMap, new: &FabricMap, group: &Group) -> bool {
    let next = new.groups.get(&group.id);
    next.is_none_or(|next| next.pool != group.pool || new.copies_of(next) != old.copies_of(group))
}

/// Sessions that differ, and those on volumes that differ.
fn check_changed_sessions(old: &FabricMap, new: &FabricMap, found: &mut Vec<Violation>) {
    let sessions: BTreeSet<SessionId> = now(&old.sessions, &new.sessions).map(|s| s.id).collect();
    let volumes = new.volumes.changes(&old.volumes).map(|change| *change.key());
    let volumes: BTreeSet<VolumeId> =
        volumes.chain(sessions.iter().filter_map(|id| Some(new.sessions.get(id)?.volume))).collect();
    if volumes.is_empty() {
        return;
    }
    let mut slots = BTreeSet::new();
    let mut open: BTreeMap<VolumeId, Vec<&Session>> = BTreeMap::new();
    for session in new.sessions.values() {
        let mut judge = Judge { place: session.id.to_string(), found: &mut *found };
        for slot in session.slots() {
            judge.must(slots.insert(slot), || format!("slot {} is taken twice", slot.0));
        }
        if volumes.contains(&session.volume) || sessions.contains(&session.id) {
            check_session(new, session, &mut judge);
            if session.state == SessionState::Open {
                open.entry(session.volume).or_default().push(session);
            }
        }
    }
    for sessions in open.values() {
        let mut judge = Judge { place: sessions[0].volume.to_string(), found: &mut *found };
        check_open_together(sessions, &mut judge);
    }
}

/// Every entry is under its own number, and numbers made from the counter are below it.
fn check_numbers(map: &FabricMap, found: &mut Vec<Violation>, since: Option<&FabricMap>) {
    let nothing = FabricMap::empty(map.fabric);
    let old = since.unwrap_or(&nothing);
    let mut judge = Judge { place: "map".into(), found };
    judge.must(map.schema == FabricMap::SCHEMA, || format!("schema {}", map.schema));
    let mut below = |kind: &str, key: u64, id: u64| {
        judge.must(key == id, || format!("{kind} {id} is under the number {key}"));
        judge.must(id < map.next_id, || format!("{kind} {id} is not below the next number {}", map.next_id));
    };
    put(&old.nodes, &map.nodes).for_each(|(k, n)| below("node", u64::from(k.0), u64::from(n.id.0)));
    put(&old.targets, &map.targets).for_each(|(k, t)| below("target", u64::from(k.0), u64::from(t.id.0)));
    put(&old.pools, &map.pools).for_each(|(k, p)| below("pool", u64::from(k.0), u64::from(p.id.0)));
    put(&old.groups, &map.groups).for_each(|(k, g)| below("group", k.0, g.id.0));
    put(&old.group_tables, &map.group_tables).for_each(|(k, t)| below("table", k.0, t.id.0));
    put(&old.volumes, &map.volumes).for_each(|(k, v)| below("volume", k.0, v.id.0));
    put(&old.sessions, &map.sessions).for_each(|(k, s)| below("session", k.0, s.id.0));
    for (key, drive) in put(&old.drives, &map.drives) {
        judge.must(*key == drive.id, || format!("drive {} is under the number {key}", drive.id));
    }
}

/// Names and addresses follow the rules, and each is there once. Where nothing got another name since then, nothing
/// is looked at.
fn check_names(map: &FabricMap, found: &mut Vec<Violation>, since: Option<&FabricMap>) {
    let mut judge = Judge { place: "map".into(), found };
    let mut check = |kind: &str, names: &mut dyn Iterator<Item = &str>| {
        let mut seen = BTreeSet::new();
        for name in names {
            let of_users = name.split_once(':').filter(|_| kind == "volume").map_or(name, |(name, _)| name);
            judge.must(validate_name(of_users).is_ok(), || format!("{kind} name {name:?} breaks the rule"));
            judge.must(seen.insert(name), || format!("two {kind}s are named '{name}'"));
        }
    };
    let of_volume = |old: &FabricMap, v: &Volume| old.volumes.get(&v.id).is_some_and(|o| o.name == v.name);
    if since.is_none_or(|old| now(&old.nodes, &map.nodes).next().is_some()) {
        check("node", &mut map.nodes.values().map(|n| n.name.as_str()));
    }
    if since.is_none_or(|old| now(&old.pools, &map.pools).next().is_some()) {
        check("pool", &mut map.pools.values().map(|p| p.name.as_str()));
    }
    let named: Option<Vec<&Volume>> =
        since.map(|old| now(&old.volumes, &map.volumes).filter(|v| !of_volume(old, v)).collect());
    match named.as_deref() {
        Some([]) => {}
        // One name among very many is found quicker by a look at each than by putting them in order.
        Some([volume]) => {
            let others = map.volumes.values().filter(|other| other.id != volume.id);
            let mut both = others.map(|other| other.name.as_str()).filter(|name| *name == volume.name);
            check("volume", &mut std::iter::once(volume.name.as_str()).chain(both.next()));
        }
        _ => check("volume", &mut map.volumes.values().map(|v| v.name.as_str())),
    }
    let is_same = |old: &FabricMap| {
        now(&old.nodes, &map.nodes).next().is_none() && now(&old.targets, &map.targets).next().is_none()
    };
    if !since.is_some_and(is_same) {
        check_targets(map, &mut judge);
    }
}

/// Each node has its first target, each target a node, and an address of its own.
fn check_targets(map: &FabricMap, judge: &mut Judge<'_>) {
    for node in map.nodes.keys() {
        let first = map.targets.get(&TargetId::first_of(*node));
        judge.must(first.is_some_and(|first| first.node == *node), || format!("{node} has no first target"));
    }
    let (mut addrs, mut indices) = (BTreeSet::new(), BTreeSet::new());
    for target in map.targets.values() {
        let Target { id, node, index, addr } = target;
        judge.must(map.nodes.contains_key(node), || format!("{id} is on {node}, which is not listed"));
        judge.must(is_address(addr), || format!("{id} has the address {addr:?}"));
        let is_first = *id == TargetId::first_of(*node);
        judge.must(is_first == (*index == 0), || format!("{id} of {node} has the index {index}"));
        judge.must(*index < TARGETS_PER_NODE_MAX, || format!("{id} has the index {index}"));
        judge.must(indices.insert((*node, *index)), || format!("{node} has two targets {index}"));
        judge.must(addrs.insert(addr), || format!("two targets listen at {addr}"));
    }
}

fn check_drive(map: &FabricMap, drive: &Drive, judge: &mut Judge<'_>) {
    judge.must(map.nodes.contains_key(&drive.node), || format!("no node {}", drive.node));
    let target = map.targets.get(&drive.target);
    judge.must(target.is_some_and(|target| target.node == drive.node), || {
        format!("no target {} of node {}", drive.target, drive.node)
    });
    judge.must(map.pools.contains_key(&drive.pool), || format!("no pool {}", drive.pool));
    judge.must(drive.capacity.0 > 0, || "no capacity".into());
}

fn check_relocation(map: &FabricMap, group: GroupId, relocation: &Relocation, judge: &mut Judge<'_>) {
    let member = |d| map.groups.get(&group).is_some_and(|g| g.slot_of(d).is_some());
    let both = member(relocation.from) && member(relocation.to) && relocation.from != relocation.to;
    judge.must(both, || "a drive passes to another one, and not both are members".into());
}

fn check_group(map: &FabricMap, group: &Group, judge: &mut Judge<'_>) {
    judge.must(map.pools.contains_key(&group.pool), || format!("no pool {}", group.pool));
    let copies = map.copies_of(group);
    judge.must((1..=COPIES_MAX).contains(&copies), || format!("{copies} slots"));
    judge.must(group.read_set().next().is_some(), || "no in-sync member is listed".into());
    let exists = |d| map.drives.get(&d).is_none_or(|d| d.state != DriveState::Destroyed);
    judge.must(group.read_set().any(exists), || "every in-sync member was declared destroyed".into());
    judge.must(group.epoch.0 > 0, || "epoch 0".into());
    let mut drives = BTreeSet::new();
    for slot in &group.slots {
        let drive = slot.drive;
        judge.must(drives.insert(drive), || format!("drive {drive} has two slots"));
        judge.must(slot.since.0 > 0 && slot.since <= group.epoch, || {
            format!("the stint of drive {drive} began at {}, the epoch is {}", slot.since, group.epoch)
        });
        match map.drives.get(&drive) {
            Some(listed) => judge.must(listed.pool == group.pool, || {
                format!("drive {drive} is in pool {}, the group in {}", listed.pool, group.pool)
            }),
            None => judge.must(false, || format!("no drive {drive}")),
        }
    }
}

fn check_table(map: &FabricMap, table: &GroupTable, judge: &mut Judge<'_>) {
    let unique: BTreeSet<_> = table.groups().iter().collect();
    let listed = table.groups().len();
    judge.must((1..=SPAN_GROUPS_MAX).contains(&listed) && unique.len() == listed, || {
        format!("it lists {listed} groups, {} different", unique.len())
    });
    for group in table.groups().iter().filter(|group| !map.groups.contains_key(group)) {
        judge.must(false, || format!("no group {group}"));
    }
}

fn check_named_tables(map: &FabricMap, volume: &Volume, judge: &mut Judge<'_>) {
    let strange = volume.group_tables().find(|table| map.group_tables.get(&table.id) != Some(table));
    judge.must(strange.is_none(), || format!("no such table: {strange:?}"));
}

fn check_volume(map: &FabricMap, volume: &Volume, judge: &mut Judge<'_>) {
    judge.must(map.pools.contains_key(&volume.pool), || format!("no pool {}", volume.pool));
    judge.must(volume.generation.0 > 0, || "generation 0".into());
    if let Err(error) = validate(&volume.striping) {
        judge.must(false, || error.to_string());
        return;
    }
    // Users cannot give such a name.
    let is_of_system = volume.system_of().is_some();
    judge.must(is_of_system || !volume.name.contains(':'), || format!("the name '{}'", volume.name));
    check_named_tables(map, volume, judge);
    check_groups(map, volume, judge);
    match &volume.kind {
        VolumeKind::Blocks => check_spans(volume, judge),
        VolumeKind::System { file_system } => {
            check_spans(volume, judge);
            check_system_volume(map, volume, *file_system, judge);
        }
        VolumeKind::Files(files) => check_files(map, volume, files, judge),
    }
}

/// Each list has some groups, all of them of the pool and with the copies of the volume.
fn check_groups(map: &FabricMap, volume: &Volume, judge: &mut Judge<'_>) {
    for groups in volume.lists() {
        let listed = groups.len();
        judge.must((1..=SPAN_GROUPS_MAX).contains(&listed), || {
            format!("one of its lists lists {listed} groups")
        });
    }
    for id in volume.groups() {
        match map.groups.get(id) {
            None => judge.must(false, || format!("no group {id}")),
            Some(group) => judge.must(
                map.copies_of(group) == volume.protection.members() && group.pool == volume.pool,
                || format!("{id} has {} copies in pool {}", map.copies_of(group), group.pool),
            ),
        }
    }
}

/// A file system has sets instead of a size, and lists its system volumes as these name it.
fn check_files(map: &FabricMap, volume: &Volume, files: &FileSystem, judge: &mut Judge<'_>) {
    let (sets, shards) = (files.sets.len(), files.shards.len());
    judge.must(volume.id.0 <= ObjectId::FILE_SYSTEM_MAX, || "no object of a file can name it".into());
    judge.must(volume.size.0 == 0 && volume.spans.is_empty(), || "a file system with blocks".into());
    judge.must((1..=SETS_MAX).contains(&sets), || format!("{sets} sets"));
    let unique: BTreeSet<_> = files.system_volumes().collect();
    judge.must((1..=SHARDS_MAX).contains(&shards) && unique.len() == shards, || {
        format!("{shards} shards, {} different system volumes", unique.len())
    });
    if volume.state == VolumeState::Deleting {
        return;
    }
    for (shard, listed) in files.shards.iter().enumerate() {
        let (id, server) = (listed.volume, listed.server);
        let is_own = |v: &Volume| v.system_of() == Some(volume.id) && v.state == VolumeState::Ready;
        let is_volume = map.volumes.get(&id).is_some_and(is_own);
        judge.must(is_volume, || format!("{id} is not the system volume of shard {shard}"));
        let is_server = server.is_none_or(|server| map.targets.contains_key(&server));
        judge.must(is_server, || format!("shard {shard} has server {server:?}, which is not there"));
    }
}

/// A system volume is listed by its file system under its shard, unless both are being deleted.
fn check_system_volume(map: &FabricMap, volume: &Volume, file_system: VolumeId, judge: &mut Judge<'_>) {
    let groups = volume.spans.first().map_or(0, |span| span.groups.len());
    judge.must(volume.spans.len() == 1 && groups <= SYSTEM_VOLUME_GROUPS_MAX, || {
        format!("a system volume with {} spans, the first of {groups} groups", volume.spans.len())
    });
    if volume.state == VolumeState::Deleting {
        return;
    }
    let listed = map.volumes.get(&file_system);
    let shard =
        listed.and_then(Volume::files).and_then(|f| f.system_volumes().position(|id| id == volume.id));
    let Some((shard, listed)) = shard.zip(listed) else {
        judge.must(false, || format!("{file_system} does not list it among its shards"));
        return;
    };
    let is_ready = listed.state == VolumeState::Ready;
    judge.must(is_ready, || format!("{file_system} is being deleted, and it is not"));
    let held: BTreeSet<_> = listed.groups().collect();
    judge.must(volume.groups().all(|group| held.contains(group)), || {
        format!("it has groups that {file_system} has not")
    });
    let name = system_volume_name(&listed.name, shard);
    judge.must(volume.name == name, || format!("it is named '{}', expected '{name}'", volume.name));
}

fn check_spans(volume: &Volume, judge: &mut Judge<'_>) {
    judge.must((1..=VOLUME_BLOCKS_MAX).contains(&volume.size.0), || format!("size of {}", volume.size));
    let mut next = 0;
    for span in &volume.spans {
        judge.must(span.first == next, || format!("a span begins at object {}, expected {next}", span.first));
        judge.must(span.count > 0 && span.count.is_multiple_of(u64::from(volume.striping.width)), || {
            format!("the span at object {} has {} objects, no whole rows", span.first, span.count)
        });
        next = span.first.saturating_add(span.count);
        let unique: BTreeSet<_> = span.groups.iter().collect();
        let listed = span.groups.len();
        judge.must(unique.len() == listed, || {
            format!("the span at object {} lists {listed} groups, {} different", span.first, unique.len())
        });
    }
    let objects = objects_for(&volume.striping, volume.size);
    judge.must(next == objects, || format!("the spans cover {next} objects, the size needs {objects}"));
}

fn check_sessions(map: &FabricMap, found: &mut Vec<Violation>) {
    let mut slots = BTreeSet::new();
    let mut open: BTreeMap<VolumeId, Vec<&Session>> = BTreeMap::new();
    for session in map.sessions.values() {
        let mut judge = Judge { place: session.id.to_string(), found: &mut *found };
        check_session(map, session, &mut judge);
        for slot in session.slots() {
            judge.must(slots.insert(slot), || format!("slot {} is taken twice", slot.0));
        }
        if session.state == SessionState::Open {
            open.entry(session.volume).or_default().push(session);
        }
    }
    for sessions in open.values() {
        let mut judge = Judge { place: sessions[0].volume.to_string(), found: &mut *found };
        check_open_together(sessions, &mut judge);
    }
}

/// Whatever must hold of a session by itself.
fn check_session(map: &FabricMap, session: &Session, judge: &mut Judge<'_>) {
    judge.must(!session.has_slot(SessionSlot(0)), || "slot 0 is nobody's".into());
    judge.must(session.lanes() <= LANES_MAX, || format!("{} lanes", session.lanes()));
    let Some(volume) = map.volumes.get(&session.volume) else {
        judge.must(false, || format!("no volume {}", session.volume));
        return;
    };
    judge.must(session.generation <= volume.generation, || {
        format!("{} is above the volume's {}", session.generation, volume.generation)
    });
    if session.state == SessionState::Over {
        return;
    }
    judge.must(volume.state == VolumeState::Ready, || "open on a volume that is being deleted".into());
    // A shared session may be older than a later raise only if that raise ended it.
    judge.must(session.generation == volume.generation, || {
        format!("open at {}, targets refuse below {}", session.generation, volume.generation)
    });
}

/// An exclusive session is the only one that is open on its volume.
fn check_open_together(open: &[&Session], judge: &mut Judge<'_>) {
    let exclusive = open.iter().find(|s| s.mode == AttachMode::Exclusive);
    judge.must(exclusive.is_none() || open.len() == 1, || {
        let ids: Vec<String> = open.iter().map(|s| s.id.to_string()).collect();
        format!("an exclusive session is open together with others: {}", ids.join(", "))
    });
}

/// Everything that must not be between a map and the one that follows it by one change. Costs what differs.
pub fn check_step(old: &FabricMap, new: &FabricMap) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut judge = Judge { place: "map".into(), found: &mut found };
    judge.must(new.version.0 == old.version.0 + 1, || format!("{} follows {}", new.version, old.version));
    judge.must(new.fabric == old.fabric, || format!("fabric {} became {}", old.fabric, new.fabric));
    judge.must(new.unknown_ids == old.unknown_ids, || "numbers that maps were lost with changed".into());
    judge.must(new.next_id >= old.next_id, || format!("the next number fell to {}", new.next_id));
    let fresh = (added(&old.groups, &new.groups).map(|g| g.0))
        .chain(added(&old.volumes, &new.volumes).map(|v| v.0))
        .chain(added(&old.sessions, &new.sessions).map(|s| s.0))
        .chain(added(&old.nodes, &new.nodes).map(|n| u64::from(n.0)));
    for id in fresh {
        judge.must(id >= old.next_id, || format!("the number {id} is given again"));
    }
    for group in changed(&old.groups, &new.groups) {
        let mut judge = Judge { place: group.id.to_string(), found: &mut found };
        match new.groups.get(&group.id) {
            Some(next) if next != group && loss::is_accepted(old, new, group) => {
                for fault in loss::step_faults(old, new, group, next) {
                    judge.must(false, || fault);
                }
            }
            Some(next) => check_group_step(group, next, &mut judge),
            None => judge.must(false, || "the group is gone".into()),
        }
    }
    for drive in changed(&old.drives, &new.drives).filter(|d| d.state == DriveState::Destroyed) {
        let is_back = new.drives.get(&drive.id).is_some_and(|d| d.state != DriveState::Destroyed);
        let mut judge = Judge { place: format!("drive {}", drive.id), found: &mut found };
        judge.must(!is_back, || "back after it was declared destroyed".into());
        let is_forgotten = !new.drives.contains_key(&drive.id) && !new.removed_drives.contains(&drive.id);
        judge.must(!is_forgotten, || "forgotten after it was declared destroyed".into());
    }
    for table in
        changed(&old.group_tables, &new.group_tables).filter(|t| new.group_tables.contains_key(&t.id))
    {
        let mut judge = Judge { place: format!("table {}", table.id), found: &mut found };
        judge.must(false, || "it changed".into());
    }
    for volume in changed(&old.volumes, &new.volumes) {
        let mut judge = Judge { place: volume.id.to_string(), found: &mut found };
        match new.volumes.get(&volume.id) {
            Some(next) => check_volume_step(volume, next, &mut judge),
            None => judge.must(volume.state == VolumeState::Deleting, || "gone while it was in use".into()),
        }
    }
    for session in changed(&old.sessions, &new.sessions) {
        let next = new.sessions.get(&session.id);
        let mut judge = Judge { place: session.id.to_string(), found: &mut found };
        check_session_step(session, next, &mut judge);
    }
    found
}

/// The keys that only the new table has.
fn added<'a, K: Key, V: Clone + PartialEq>(
    old: &'a Table<K, V>,
    new: &'a Table<K, V>,
) -> impl Iterator<Item = K> + use<'a, K, V> {
    new.changes(old).filter_map(|change| match change {
        TableChange::Put(key, _) => (!old.contains_key(key)).then_some(*key),
        TableChange::Removed(_) => None,
    })
}

/// The entries of the new table that are new or different, with their keys.
fn put<'a, K: Key, V: Clone + PartialEq>(
    old: &'a Table<K, V>,
    new: &'a Table<K, V>,
) -> impl Iterator<Item = (&'a K, &'a V)> + use<'a, K, V> {
    new.changes(old).filter_map(|change| match change {
        TableChange::Put(key, value) => Some((key, value)),
        TableChange::Removed(_) => None,
    })
}

/// The entries of the new table that are new or different.
fn now<'a, K: Key, V: Clone + PartialEq>(
    old: &'a Table<K, V>,
    new: &'a Table<K, V>,
) -> impl Iterator<Item = &'a V> + use<'a, K, V> {
    put(old, new).map(|(_, value)| value)
}

/// The entries of the old table that are gone or different in the new one, as they were.
fn changed<'a, K: Key, V: Clone + PartialEq>(
    old: &'a Table<K, V>,
    new: &'a Table<K, V>,
) -> impl Iterator<Item = &'a V> + use<'a, K, V> {
    new.changes(old).filter_map(|change| match change {
        TableChange::Put(key, _) | TableChange::Removed(key) => old.get(key),
    })
}

fn check_group_step(old: &Group, new: &Group, judge: &mut Judge<'_>) {
    // Members that have closed below a version begin a new epoch, whatever their floor is (R7).
    let changed = old.slots != new.slots || old.floor != new.floor;
    let is_whole = old.slots == new.slots && new.slots.iter().all(|s| s.role == Role::InSync);
    let is_next = match new.epoch == old.epoch {
        true => !changed,
        false => new.epoch == old.epoch.next() && (changed || is_whole),
    };
    judge.must(is_next, || format!("{} follows {}, floor or slots changed: {changed}", new.epoch, old.epoch));
    judge.must(old.floor <= new.floor, || format!("the floor fell from {} to {}", old.floor, new.floor));
    judge.must(is_whole || old.floor == new.floor, || "the floor rose while a member was not in-sync".into());
    judge.must(old.pool == new.pool, || format!("pool {} became {}", old.pool, new.pool));
    if old.slots.len() == new.slots.len() {
        for (before, after) in old.slots.iter().zip(&new.slots).filter(|(before, after)| before != after) {
            judge.must(after.since == new.epoch, || format!("the stint of drive {} is not new", after.drive));
            judge.must(is_slot_step(before, after), || {
                format!("drive {} {} became drive {} {}", before.drive, before.role, after.drive, after.role)
            });
        }
    } else {
        judge.must(is_slots_step(old, new), || {
            format!("{} slots became {}: {:?}", old.slots.len(), new.slots.len(), new.slots)
        });
    }
    let stays = |d: DriveId| new.read_set().any(|n| n == d);
    judge.must(old.read_set().any(stays), || "no member stayed in-sync".into());
}

/// Whether a slot may change so: the same drive along the arrows of the roles, another one only from out to syncing.
/// That a member stays in-sync is looked at for every step.
fn is_slot_step(before: &Slot, after: &Slot) -> bool {
    let replaced = before.role == Role::Out && after.role == Role::Syncing;
    if before.drive == after.drive { is_transition_valid(before.role, after.role) } else { replaced }
}

fn check_volume_step(old: &Volume, new: &Volume, judge: &mut Judge<'_>) {
    judge.must(new.generation >= old.generation, || format!("{} follows {}", new.generation, old.generation));
    judge.must(new.size >= old.size, || format!("{} became {}", old.size, new.size));
    judge.must(new.striping == old.striping && new.protection == old.protection, || {
        "the layout changed".into()
    });
    let is_kept = match (&old.kind, &new.kind) {
        (VolumeKind::Files(old), VolumeKind::Files(new)) => {
            new.sets.starts_with(&old.sets) && new.system_volumes().eq(old.system_volumes())
        }
        (old, new) => old == new,
    };
    judge.must(is_kept, || "a set of a file system changed, its shards, or what the volume is".into());
    judge.must(!(old.state == VolumeState::Deleting && new.state == VolumeState::Ready), || {
        "a deleted volume came back".into()
    });
    judge.must(new.spans.len() >= old.spans.len(), || "a span is gone".into());
    for (before, after) in old.spans.iter().zip(&new.spans) {
        let kept =
            before.first == after.first && before.groups == after.groups && before.count <= after.count;
        judge.must(kept, || format!("the span at object {} changed", before.first));
    }
}

fn check_session_step(old: &Session, new: Option<&Session>, judge: &mut Judge<'_>) {
    let Some(new) = new else {
        judge.must(old.state == SessionState::Over, || "gone while it was open".into());
        return;
    };
    let reopened = old.state == SessionState::Over && new.state == SessionState::Open;
    judge.must(!reopened, || "open again after it was over".into());
    let identity = |s: &Session| (s.id, s.slot, s.lane_slots.clone(), s.volume, s.mode, s.generation);
    judge.must(identity(old) == identity(new), || "became another session".into());
}
