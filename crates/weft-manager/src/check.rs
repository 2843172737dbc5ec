//! `fabric-check`: the map, compared with its own rules, with the store, and with what every target says.
//!
//! It owns what counts as a fault and what to do about each. It changes nothing; that something is found
//! while a change is on its way to the targets is told apart by the maps that they have adopted.

use crate::inventory::Counted;
use crate::manager::{Manager, wall_clock_ms};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weft_api::{CheckFinding, CheckInfo, CheckSeverity, Timestamp};
use weft_types::limits::FABRIC_CHECK_FINDINGS_MAX;
use weft_types::{
    Drive, DriveId, DriveState, FabricMap, GroupId, MapVersion, NodeId, Role, TargetId, VolumeId, with_causes,
};
use weft_wire::control::{DriveInventory, DriveLeftOut, HeldGroup};

/// By how much a node's clock may differ before people should know: conflicts between writers get less rare,
/// and times in logs cannot be compared.
const CLOCK_WARN_US: u64 = 1_000_000;

/// By how much before it is a fault: far from the hour beyond which targets refuse a client's versions.
const CLOCK_FAULT_US: u64 = 10 * 60 * 1_000_000;

/// What is found, in the order in which it is.
#[derive(Default)]
struct Findings(Vec<CheckFinding>);

impl Findings {
    fn add(&mut self, severity: CheckSeverity, subject: &str, what: String, todo: &str) {
        self.0.push(CheckFinding { severity, subject: subject.into(), what, todo: todo.into() });
    }

    fn fault(&mut self, subject: &str, what: String, todo: &str) {
        self.add(CheckSeverity::Fault, subject, what, todo);
    }

    fn warning(&mut self, subject: &str, what: String, todo: &str) {
        self.add(CheckSeverity::Warning, subject, what, todo);
    }
}

impl Manager {
    /// Compares everything with everything.
    pub(crate) async fn check_fabric(self: &Rc<Self>) -> CheckInfo {
        let counted = self.inventories(Vec::new()).await;
        // After the answers: what has changed since is newer than they are, and told apart by that.
        let map = self.map();
        let mut found = Findings::default();
        check_map(&map, &mut found);
        self.check_store(&mut found).await;
        self.check_health(&map, &mut found);
        for (target, answer) in &counted {
            check_target(&map, *target, answer, &mut found);
        }
        check_programs(&map, &counted, &mut found);
        self.check_left_out(&map, &mut found);
        let why_absent = |drive: &Drive| self.state.borrow().why_left_out(drive).cloned();
        let needed = |target: TargetId| self.state.borrow().newest_for(target);
        let held = check_drives(&map, &counted, &why_absent, &needed, &mut found);
        self.check_copies(&map, &mut found);
        found.0.sort_by_key(|f| f.severity);
        CheckInfo {
            fabric: map.fabric,
            map: map.version,
            time: Timestamp::from_millis(wall_clock_ms()),
            sound: !found.0.iter().any(|f| f.severity == CheckSeverity::Fault),
            nodes_asked: nodes_that_answered(&map, &counted),
            nodes: map.nodes.len(),
            drives_compared: held,
            groups: map.groups.len(),
            findings: found.0,
        }
    }

    /// Every node that is up should keep parts of the whole map.
    fn check_copies(&self, map: &FabricMap, found: &mut Findings) {
        for (target, why) in &self.state.borrow().copies.missed {
            let name = map.node_of(*target).map_or_else(|| "all".to_owned(), |n| n.name.clone());
            let what = format!("its drives do not keep their parts of the fabric map: {why}");
            let todo = "check again in a minute; a recovery without the manager's store may need them";
            found.warning(&format!("node '{name}'"), what, todo);
        }
    }

    /// The store must hold the very map that is in force.
    async fn check_store(&self, found: &mut Findings) {
        let hint = "stop the manager, look at its disk, and see `weft map restore` and `weft fabric recover`";
        let before = self.durable_map();
        let stored = self.store.load().await;
        let after = self.durable_map();
        match stored {
            Ok(Some(stored)) if stored == *before || stored == *after => {}
            // Others were committed meanwhile.
            Ok(Some(stored)) if before.version < stored.version && stored.version < after.version => {}
            Ok(Some(stored)) if stored.version == before.version || stored.version == after.version => {
                found.fault("manager", format!("its store holds another map {}", stored.version), hint);
            }
            Ok(other) => {
                let version = other.map_or(MapVersion(0), |stored| stored.version);
                let what = format!("its store holds map {version}, {} is in force", after.version);
                found.fault("manager", what, hint);
            }
            Err(error) => found.fault("manager", with_causes(&error), hint),
        }
        if let Some(reason) = self.halted.borrow().as_ref() {
            found.fault("manager", format!("it has stopped: {reason}"), "see what it says");
        }
    }

    /// What nodes have and this manager does not serve.
    fn check_left_out(&self, map: &FabricMap, found: &mut Findings) {
        let state = self.state.borrow();
        for (name, fabric) in state.foreign_nodes() {
            let what = format!("it belongs to fabric {fabric}, this manager serves {}", map.fabric);
            let todo = "name the manager of its own fabric to it; if that should be this one, its store \
                        is a wrong one: see \
                        `weft fabric recover`";
            found.fault(&format!("node '{name}'"), what, todo);
        }
        for node in map.nodes.values() {
            let subject = format!("node '{}'", node.name);
            let (foreign, others) = state.left_out_of(node.id);
            for drive in foreign {
                found.fault(&subject, format!("it has left out {}: {}", drive.path, drive.why), &drive.hint);
            }
            for drive in others {
                found.warning(
                    &subject,
                    format!("it has left out {}: {}", drive.path, drive.why),
                    &drive.hint,
                );
            }
        }
    }

    /// Groups that nobody can read at present.
    fn check_health(&self, map: &FabricMap, found: &mut Findings) {
        let state = self.state.borrow();
        let lost: Vec<_> = map.groups.values().filter(|g| state.good_copies(g) == 0).collect();
        if lost.len() > FABRIC_CHECK_FINDINGS_MAX {
            let what = format!(
                "{} further groups have no up-to-date copy that answers",
                lost.len() - FABRIC_CHECK_FINDINGS_MAX
            );
            found.fault("groups", what, "see the first of them");
        }
        for group in lost.into_iter().take(FABRIC_CHECK_FINDINGS_MAX) {
            let holders: Vec<String> = group.read_set().map(|d| drive_name(map, d)).collect();
            let what = format!("no up-to-date copy answers; they are on {}", holders.join(" and "));
            let todo =
                "bring one of these drives back; if all are gone for good: `weft volume repair --help`";
            found.fault(&format!("group {}", group.id), what, todo);
        }
        for drive in map.drives.values().filter(|d| d.state.is_given_up()) {
            let (word, todo) = match drive.state {
                DriveState::Destroyed => {
                    ("was declared destroyed", "once no group lists it: `weft drive remove`")
                }
                _ => (
                    "has failed",
                    "restart its target and `weft drive restore` it; or, once no group lists it, `weft drive remove`",
                ),
            };
            let copies = map.groups.values().filter(|g| g.slot_of(drive.id).is_some()).count();
            let what = match copies {
                0 => format!("it {word}; no group lists it any more"),
                n => format!(
                    "it {word}; {} it",
                    if n == 1 { "1 group still lists".into() } else { format!("{n} groups still list") }
                ),
            };
            found.warning(&drive_name(map, drive.id), what, todo);
        }
    }
}

fn check_map(map: &FabricMap, found: &mut Findings) {
    for violation in weft_membership::check(map) {
        let todo = "this is a fault of the software: keep the manager's store, and report it";
        found.fault("map", violation.to_string(), todo);
    }
}

/// How many nodes have said what they have, with all of their targets.
fn nodes_that_answered(map: &FabricMap, counted: &BTreeMap<TargetId, Result<Counted, String>>) -> usize {
    let silent = counted.iter().filter(|(_, answer)| answer.is_err());
    let silent: BTreeSet<NodeId> = silent.filter_map(|(target, _)| Some(map.node_of(*target)?.id)).collect();
    map.nodes.keys().filter(|node| !silent.contains(node)).count()
}

fn check_target(map: &FabricMap, id: TargetId, answer: &Result<Counted, String>, found: &mut Findings) {
    if !map.targets.contains_key(&id) {
        return;
    }
    let subject = map.title_of(id);
    let counted = match answer {
        Ok(counted) => counted,
        Err(why) => {
            let drives = map.drives.values().filter(|d| d.target == id).count();
            let what = format!("it does not say what it has ({why}): {drives} drives were not compared");
            return found.fault(&subject, what, "start its target, see `weft node list`, then check again");
        }
    };
    // Its clock was read at some time between question and answer.
    let took_us = (counted.answered - counted.asked).as_micros() as u64;
    let clock = counted.inventory.clock_us;
    let (earliest, latest) = (counted.clock_us.saturating_sub(took_us), counted.clock_us);
    let off = if clock > latest { clock - latest } else { earliest.saturating_sub(clock) };
    if off >= CLOCK_WARN_US {
        let way = if clock > latest { "ahead of" } else { "behind" };
        let what = format!("its clock is {} {way} the manager's", span(off));
        let todo = "set the clocks by NTP on all machines";
        match off >= CLOCK_FAULT_US {
            true => found.fault(&subject, what, todo),
            false => found.warning(&subject, what, todo),
        }
    }
    if counted.inventory.map > map.version {
        let what = format!("it has adopted map {}, the manager is at {}", counted.inventory.map, map.version);
        found.fault(&subject, what, "the manager's store is an old copy: see `weft fabric recover`");
    }
}

/// A span in a unit that people can imagine, rounded to the nearest.
fn span(us: u64) -> String {
    let ms = us.saturating_add(500) / 1000;
    match ms {
        0..10_000 => format!("{ms} ms"),
        10_000..600_000 => format!("{} s", (ms + 500) / 1000),
        600_000..36_000_000 => format!("{} min", (ms + 30_000) / 60_000),
        _ => format!("{} h", (ms + 1_800_000) / 3_600_000),
    }
}

/// All nodes and the manager should be of one version.
fn check_programs(
    map: &FabricMap,
    counted: &BTreeMap<TargetId, Result<Counted, String>>,
    found: &mut Findings,
) {
    let own = env!("CARGO_PKG_VERSION");
    for (target, answer) in counted {
        let Ok(counted) = answer else { continue };
        let version = &counted.inventory.software;
        if version != own {
            let what = format!("it runs weft {version}, the manager {own}");
            found.warning(&map.title_of(*target), what, "upgrade the older one");
        }
    }
}

/// Every drive with the map, and the map with every drive. Returns how many drives were compared.
fn check_drives(
    map: &FabricMap,
    counted: &BTreeMap<TargetId, Result<Counted, String>>,
    why_absent: &dyn Fn(&Drive) -> Option<DriveLeftOut>,
    needed: &dyn Fn(TargetId) -> MapVersion,
    found: &mut Findings,
) -> usize {
    let mut compared = 0;
    for (target, answer) in counted {
        let Ok(counted) = answer else { continue };
        let seen: BTreeSet<DriveId> = counted.inventory.drives.iter().map(|d| d.id).collect();
        for drive in map.drives.values().filter(|d| d.target == *target && !seen.contains(&d.id)) {
            if drive.state != DriveState::Destroyed {
                let left_out = why_absent(drive);
                let why =
                    left_out.as_ref().map_or_else(String::new, |left_out| format!(": {}", left_out.why));
                let what = format!("its target has not found it at {}{why}", drive.path);
                let todo = "look at the node's log for why; put the drive back, or see `weft drive replace`";
                let todo = left_out.as_ref().map_or(todo, |left_out| left_out.hint.as_str());
                found.fault(&drive_name(map, drive.id), what, todo);
            }
        }
        for held in &counted.inventory.drives {
            let is_behind = counted.inventory.map < needed(*target);
            check_drive(map, *target, (counted.inventory.map, is_behind), held, found);
            compared += 1;
        }
    }
    compared
}

fn check_drive(
    map: &FabricMap,
    target: TargetId,
    (adopted, is_behind): (MapVersion, bool),
    held: &DriveInventory,
    found: &mut Findings,
) {
    let subject = drive_name(map, held.id);
    if let Some(why) = &held.failed {
        let todo = "see what it says; then restart the node's target, or replace the drive";
        found.fault(&subject, format!("it is not served: {why}"), todo);
    }
    match map.drives.get(&held.id) {
        Some(listed) if listed.target == target => {}
        Some(Drive { target: other, .. })
            if map.node_of(*other).map(|n| n.id) == map.node_of(target).map(|n| n.id) =>
        {
            let what = format!("found at {}, and the map has it on {}", held.path, map.title_of(*other));
            let todo =
                "see what `weft status` says of it: it passes to the thread that found it once it is taken";
            return found.warning(&subject, what, todo);
        }
        Some(Drive { target: other, .. }) => {
            let what = format!("found at {}, and the map has it on {}", held.path, map.title_of(*other));
            return found.fault(&subject, what, "one of the two is a copy of the other: leave it out");
        }
        None if map.removed_drives.contains(&held.id) => {
            let what = format!("found at {}, and was removed from the fabric", held.path);
            return found.warning(
                &subject,
                what,
                "leave it out, or `weft drive format --force` it as a new one",
            );
        }
        None => {
            let what = format!("found at {}, and the map does not list it", held.path);
            return found.fault(&subject, what, "restart the node's target: it joins with all of its drives");
        }
    }
    // A drive that was declared destroyed, or is refused, is left as it is: what it holds counts for nothing.
    if held.failed.is_some() {
        return;
    }
    check_copy(map, adopted, held, &subject, found);
    let known: BTreeMap<GroupId, &HeldGroup> = held.groups.iter().map(|g| (g.group, g)).collect();
    check_listed(map, held.id, &known, is_behind, &subject, found);
    if !is_behind {
        check_held(map, held, &subject, found);
    }
}

/// The copy of the map that the drive keeps must not be behind what its target has adopted.
fn check_copy(
    map: &FabricMap,
    adopted: MapVersion,
    held: &DriveInventory,
    subject: &str,
    found: &mut Findings,
) {
    if held.map_copy < adopted.min(map.version) {
        let what = format!("its copy of the map is {}, its target has adopted {adopted}", held.map_copy);
        found.warning(subject, what, "check again; if it stays so, restart the node's target");
    }
}

/// What the map says of the drive must be on it.
fn check_listed(
    map: &FabricMap,
    drive: DriveId,
    known: &BTreeMap<GroupId, &HeldGroup>,
    is_behind: bool,
    subject: &str,
    found: &mut Findings,
) {
    let todo = "restart the node's target; if it stays so: `weft drive replace` it";
    let mut told = 0;
    for group in map.groups.values() {
        let Some(slot) = group.slot_of(drive).filter(|s| s.role != Role::Out) else { continue };
        let what = match known.get(&group.id) {
            None if is_behind => continue,
            None => {
                format!("group {} lists it as {}, and the drive does not know the group", group.id, slot.role)
            }
            Some(held) if held.epoch > group.epoch => format!(
                "it knows group {} at {}, the map only {}: the manager's store is an old copy",
                group.id, held.epoch, group.epoch
            ),
            Some(held) if held.epoch < group.epoch && !is_behind => {
                format!("it knows group {} at {}, the map {}", group.id, held.epoch, group.epoch)
            }
            Some(held) if held.epoch == group.epoch && held.role != Some(slot.role) => {
                format!("in group {} at {} it takes itself for {:?}", group.id, held.epoch, held.role)
            }
            Some(_) => continue,
        };
        told += 1;
        if told <= FABRIC_CHECK_FINDINGS_MAX {
            found.fault(subject, what, todo);
        }
    }
    if told > FABRIC_CHECK_FINDINGS_MAX {
        found.fault(subject, format!("so with {} further groups", told - FABRIC_CHECK_FINDINGS_MAX), todo);
    }
}

/// What is on the drive must be in the map.
fn check_held(map: &FabricMap, held: &DriveInventory, subject: &str, found: &mut Findings) {
    for group in &held.groups {
        let id = group.group;
        let Some(listed) = map.groups.get(&id) else {
            match map.was_removed(id) {
                true => found.warning(
                    subject,
                    format!("it still holds group {id}, which was removed from the fabric"),
                    "its target drops it by itself; check again, and restart the target if it stays",
                ),
                false => found.fault(
                    subject,
                    format!(
                        "it holds group {id} with {} volumes, which no map lists: the map was made anew from older \
                         copies, and this may be the only copy of somebody's data",
                        group.volumes.len()
                    ),
                    "bring the drives that hold the newest map and run `weft fabric recover` with all of them; if \
                     nobody misses anything, evacuate the drive and format it anew",
                ),
            }
            continue;
        };
        if listed.slot_of(held.id).is_none() {
            let what = format!("it still holds group {id}, which has gone on without it");
            found.warning(subject, what, "its target drops it by itself; check again");
            continue;
        }
        let is_in_sync = listed.slot_of(held.id).is_some_and(|s| s.role == Role::InSync);
        for volume in group.volumes.iter().filter(|_| is_in_sync) {
            check_held_volume(map, id, *volume, subject, found);
        }
    }
}

fn check_held_volume(map: &FabricMap, group: GroupId, id: VolumeId, subject: &str, found: &mut Findings) {
    match map.volumes.get(&id) {
        Some(volume) if volume.has_group(group) => {}
        Some(volume) => {
            let what =
                format!("it holds blocks of volume '{}' in group {group}, where none belong", volume.name);
            found.fault(subject, what, "this is a fault of the software: report it");
        }
        None if map.was_deleted(id) => {
            let what = format!("it still holds blocks of volume {id} in group {group}, which was deleted");
            found.warning(subject, what, "restart the node's target: it gives their space back");
        }
        None => {
            let what = format!("it holds blocks of volume {id} in group {group}, which no map lists");
            let todo =
                "bring the drives that hold the newest map and run `weft fabric recover` with all of them";
            found.fault(subject, what, todo);
        }
    }
}

/// A drive for people: its short name, and where it is.
fn drive_name(map: &FabricMap, id: DriveId) -> String {
    match map.drives.get(&id).and_then(|d| map.nodes.get(&d.node)) {
        Some(node) => format!("drive {} (node '{}')", id.short(), node.name),
        None => format!("drive {}", id.short()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_told_in_a_unit_that_fits() {
        let told = [1_500, 9_999_000, 12_000_000, 660_000_000, 86_399_999_000].map(span);
        assert_eq!(told, ["2 ms", "9999 ms", "12 s", "11 min", "24 h"]);
    }
}
