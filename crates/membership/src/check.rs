//! What must hold in every map, and between a map and the one after it.
//!
//! It owns the invariants, written independently of the changes, so that the one can be tested by the other, and a
//! map from elsewhere can be judged before it is trusted. It never repairs anything.

use crate::group::is_transition_valid;
use crate::loss;
use crate::node::is_address;
use crate::relocate::is_slots_step;
use crate::{VOLUME_BLOCKS_MAX, validate_name};
use std::collections::BTreeSet;
use std::fmt;
use weft_layout::{objects_for, validate};
use weft_types::limits::{COPIES_MAX, SPAN_GROUPS_MAX};
use weft_types::{
    AttachMode, DriveId, DriveState, FabricMap, Group, Role, Session, SessionSlot, SessionState, Slot,
    Volume, VolumeState,
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
    check_numbers(map, &mut found);
    check_names(map, &mut found);
    for drive in map.drives.values() {
        let mut judge = Judge { place: format!("drive {}", drive.id), found: &mut found };
        judge.must(map.nodes.contains_key(&drive.node), || format!("no node {}", drive.node));
        judge.must(map.pools.contains_key(&drive.pool), || format!("no pool {}", drive.pool));
        judge.must(drive.capacity.0 > 0, || "no capacity".into());
    }
    for (id, relocation) in &map.relocations {
        let mut judge = Judge { place: id.to_string(), found: &mut found };
        let member = |d| map.groups.get(id).is_some_and(|g| g.slot_of(d).is_some());
        let both = member(relocation.from) && member(relocation.to) && relocation.from != relocation.to;
        judge.must(both, || "a drive passes to another one, and not both are members".into());
    }
    for group in map.groups.values() {
        check_group(map, group, &mut Judge { place: group.id.to_string(), found: &mut found });
    }
    for volume in map.volumes.values() {
        check_volume(map, volume, &mut Judge { place: volume.id.to_string(), found: &mut found });
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

/// Every entry is under its own number, and numbers made from the counter are below it.
fn check_numbers(map: &FabricMap, found: &mut Vec<Violation>) {
    let mut judge = Judge { place: "map".into(), found };
    judge.must(map.schema == FabricMap::SCHEMA, || format!("schema {}", map.schema));
    let mut below = |kind: &str, key: u64, id: u64| {
        judge.must(key == id, || format!("{kind} {id} is under the number {key}"));
        judge.must(id < map.next_id, || format!("{kind} {id} is not below the next number {}", map.next_id));
    };
    map.nodes.iter().for_each(|(k, n)| below("node", u64::from(k.0), u64::from(n.id.0)));
    map.pools.iter().for_each(|(k, p)| below("pool", u64::from(k.0), u64::from(p.id.0)));
    map.groups.iter().for_each(|(k, g)| below("group", k.0, g.id.0));
    map.volumes.iter().for_each(|(k, v)| below("volume", k.0, v.id.0));
    map.sessions.iter().for_each(|(k, s)| below("session", k.0, s.id.0));
    for (key, drive) in &map.drives {
        judge.must(*key == drive.id, || format!("drive {} is under the number {key}", drive.id));
    }
}

fn check_names(map: &FabricMap, found: &mut Vec<Violation>) {
    let mut judge = Judge { place: "map".into(), found };
    let mut check = |kind: &str, names: Vec<&str>| {
        let mut seen = BTreeSet::new();
        for name in names {
            judge.must(validate_name(name).is_ok(), || format!("{kind} name {name:?} breaks the rule"));
            judge.must(seen.insert(name), || format!("two {kind}s are named '{name}'"));
        }
    };
    check("node", map.nodes.values().map(|n| n.name.as_str()).collect());
    check("pool", map.pools.values().map(|p| p.name.as_str()).collect());
    check("volume", map.volumes.values().map(|v| v.name.as_str()).collect());
    let mut addrs = BTreeSet::new();
    for node in map.nodes.values() {
        judge.must(is_address(&node.addr), || format!("{} has the address {:?}", node.id, node.addr));
        judge.must(addrs.insert(&node.addr), || format!("two nodes listen at {}", node.addr));
    }
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

fn check_volume(map: &FabricMap, volume: &Volume, judge: &mut Judge<'_>) {
    judge.must(map.pools.contains_key(&volume.pool), || format!("no pool {}", volume.pool));
    judge.must((1..=VOLUME_BLOCKS_MAX).contains(&volume.size.0), || format!("size of {}", volume.size));
    judge.must(volume.generation.0 > 0, || "generation 0".into());
    if let Err(error) = validate(&volume.striping) {
        judge.must(false, || error.to_string());
        return;
    }
    let mut next = 0;
    for span in &volume.spans {
        judge.must(span.first == next, || format!("a span begins at object {}, expected {next}", span.first));
        judge.must(span.count > 0 && span.count.is_multiple_of(u64::from(volume.striping.width)), || {
            format!("the span at object {} has {} objects, no whole rows", span.first, span.count)
        });
        next = span.first.saturating_add(span.count);
        let unique: BTreeSet<_> = span.groups.iter().collect();
        let listed = span.groups.len();
        judge.must((1..=SPAN_GROUPS_MAX).contains(&listed) && unique.len() == listed, || {
            format!("the span at object {} lists {listed} groups, {} different", span.first, unique.len())
        });
        for id in &span.groups {
            match map.groups.get(id) {
                None => judge.must(false, || format!("no group {id}")),
                Some(group) => judge.must(
                    map.copies_of(group) == volume.protection.members() && group.pool == volume.pool,
                    || format!("{id} has {} copies in pool {}", map.copies_of(group), group.pool),
                ),
            }
        }
    }
    let objects = objects_for(&volume.striping, volume.size);
    judge.must(next == objects, || format!("the spans cover {next} objects, the size needs {objects}"));
}

fn check_sessions(map: &FabricMap, found: &mut Vec<Violation>) {
    let mut slots = BTreeSet::new();
    for session in map.sessions.values() {
        let mut judge = Judge { place: session.id.to_string(), found: &mut *found };
        let slot = session.slot;
        judge.must(slot != SessionSlot(0), || "slot 0 is nobody's".into());
        judge.must(slots.insert(slot), || format!("slot {} is taken twice", slot.0));
        let Some(volume) = map.volumes.get(&session.volume) else {
            judge.must(false, || format!("no volume {}", session.volume));
            continue;
        };
        judge.must(session.generation <= volume.generation, || {
            format!("{} is above the volume's {}", session.generation, volume.generation)
        });
        if session.state == SessionState::Over {
            continue;
        }
        judge.must(volume.state == VolumeState::Ready, || "open on a volume that is being deleted".into());
        // A shared session may be older than a later raise only if that raise ended it.
        judge.must(session.generation == volume.generation, || {
            format!("open at {}, targets refuse below {}", session.generation, volume.generation)
        });
        let exclusive =
            |s: &&Session| s.mode == AttachMode::Exclusive || session.mode == AttachMode::Exclusive;
        let beside = (map.sessions.values())
            .filter(|s| s.id != session.id && s.volume == session.volume && s.state == SessionState::Open)
            .find(exclusive);
        judge.must(beside.is_none(), || {
            format!("{} and {:?} are open together", session.mode, beside.map(|s| s.id))
        });
    }
}

/// Everything that must not be between a map and the one that follows it by one change.
pub fn check_step(old: &FabricMap, new: &FabricMap) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut judge = Judge { place: "map".into(), found: &mut found };
    judge.must(new.version.0 == old.version.0 + 1, || format!("{} follows {}", new.version, old.version));
    judge.must(new.fabric == old.fabric, || format!("fabric {} became {}", old.fabric, new.fabric));
    judge.must(new.unknown_ids == old.unknown_ids, || "numbers that maps were lost with changed".into());
    judge.must(new.next_id >= old.next_id, || format!("the next number fell to {}", new.next_id));
    let reused = |fresh: bool, id: u64| fresh && id < old.next_id;
    let numbers = (new.groups.keys().map(|g| (!old.groups.contains_key(g), g.0)))
        .chain(new.volumes.keys().map(|v| (!old.volumes.contains_key(v), v.0)))
        .chain(new.sessions.keys().map(|s| (!old.sessions.contains_key(s), s.0)))
        .chain(new.nodes.keys().map(|n| (!old.nodes.contains_key(n), u64::from(n.0))));
    for (fresh, id) in numbers {
        judge.must(!reused(fresh, id), || format!("the number {id} is given again"));
    }
    for group in old.groups.values() {
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
    for drive in old.drives.values().filter(|d| d.state == DriveState::Destroyed) {
        let is_back = new.drives.get(&drive.id).is_some_and(|d| d.state != DriveState::Destroyed);
        let mut judge = Judge { place: format!("drive {}", drive.id), found: &mut found };
        judge.must(!is_back, || "back after it was declared destroyed".into());
        let is_forgotten = !new.drives.contains_key(&drive.id) && !new.removed_drives.contains(&drive.id);
        judge.must(!is_forgotten, || "forgotten after it was declared destroyed".into());
    }
    for volume in old.volumes.values() {
        let mut judge = Judge { place: volume.id.to_string(), found: &mut found };
        match new.volumes.get(&volume.id) {
            Some(next) => check_volume_step(volume, next, &mut judge),
            None => judge.must(volume.state == VolumeState::Deleting, || "gone while it was in use".into()),
        }
    }
    for session in old.sessions.values() {
        let next = new.sessions.get(&session.id);
        let mut judge = Judge { place: session.id.to_string(), found: &mut found };
        check_session_step(session, next, &mut judge);
    }
    found
}

fn check_group_step(old: &Group, new: &Group, judge: &mut Judge<'_>) {
    let changed = old.slots != new.slots;
    let epoch = if changed { old.epoch.next() } else { old.epoch };
    judge.must(new.epoch == epoch, || {
        format!("{} follows {}, slots changed: {changed}", new.epoch, old.epoch)
    });
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
    let identity = |s: &Session| (s.id, s.slot, s.volume, s.mode, s.generation);
    judge.must(identity(old) == identity(new), || "became another session".into());
}
