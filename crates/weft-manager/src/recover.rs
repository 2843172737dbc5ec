//! Recovery of a fabric whose manager's store is lost: a new map from the copies that the drives hold.
//!
//! It owns the margins by which everything is raised above what could have been handed out since the newest copy
//! was written. Pure: the caller reads the drives and writes the store. It never declares a replica in-sync that is
//! known to have been evicted: per group the newest entry that any drive holds says who is what, also where it is
//! newer than every copy of the map, since clients and peers teach entries alone.
//!
//! What it cannot know: memberships that only drives which are not at hand have heard of. A write is acknowledged
//! when every member of the write set has it and knows the epoch, so whatever is missed that way is on drives that
//! are all away. The same holds for a manager that was restored from an old copy of its store: it stops when a drive
//! joins that knows more, but as long as only drives appear that were left behind, nobody tells, and it serves what
//! they have. So never start a manager on a backup of its store: recover from the drives, all of them.

use crate::join_copies::join_copies;
use std::collections::{BTreeMap, BTreeSet};
use weft_membership::{Violation, check};
use weft_types::{
    AttachMode, DriveId, Epoch, FabricId, FabricMap, Generation, Group, GroupId, MapVersion, Relocation,
    Role, Session, SessionId, SessionSlot, SessionState, Slot, Volume,
};
use weft_wire::collected::DriveContents;

/// How many maps may have been committed since the newest copy that concerned somebody. Copies are written
/// before a map is acknowledged, so the drives at hand miss only what was committed while all of them were
/// away, and what concerned none of them.
pub const VERSION_MARGIN: u64 = 1_000;

/// How many epochs a group may have seen since the newest that a drive at hand reports.
pub const EPOCH_MARGIN: u64 = 1_000;

/// How many generations a volume may have had since the newest that a copy or a drive at hand knows.
pub const GENERATION_MARGIN: u64 = 1_000;

/// How many identifiers may have been given out since the newest copy: sessions, above all.
pub const ID_MARGIN: u64 = 1_000_000;

/// Why no map can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// There is no copy.
    #[error("none of the drives holds a copy of the fabric map")]
    NoCopy,
    /// The drives belong to several fabrics.
    #[error("the drives belong to different fabrics, {one} and {other}")]
    SeveralFabrics {
        /// A fabric.
        one: FabricId,
        /// Another one.
        other: FabricId,
    },
    /// Drives have become members of a group since the newest copy of the map, which does not list them.
    #[error(
        "group {group} has members that no copy of the map at hand lists, {unlisted:?}: bring these drives, they \
         hold a newer copy"
    )]
    UnlistedMembers {
        /// The group.
        group: GroupId,
        /// The members that are not in the map.
        unlisted: Vec<DriveId>,
    },
    /// Volumes have data in groups of which no copy at hand says anything.
    #[error(
        "volume '{volume}' has data in groups that no copy of the map at hand lists, {unlisted:?}: bring more \
         drives, one of each node if you can; they hold parts of the whole map"
    )]
    UnlistedGroups {
        /// The volume.
        volume: String,
        /// The groups.
        unlisted: Vec<GroupId>,
    },
    /// What the copies say breaks a rule of maps.
    #[error("what the copies of the map say breaks a rule: {0}")]
    Broken(String),
}

/// A map to go on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The map.
    pub map: FabricMap,
    /// What the operator should know, one sentence each.
    pub warnings: Vec<String>,
}

/// Makes a map from the copies on the drives and from what the drives know of their groups.
///
/// Of each entry the newest copy counts that lists it, unless a newer one says that it is gone; of each
/// group the newest entry that a copy or a drive holds. Version, epochs, generations and the next identifier
/// are raised above everything that may have been handed out since; sessions are over, and are swept by the
/// manager before it forgets them. So is one for each slot that a drive knows and no session of the map has:
/// a drive serves sessions before it hears of them, and the next session with the slot would call their
/// writes complete with its first watermark, on the copies that have them and on those that have not (R10).
/// A replica that is in-sync in the group's newest entry stays so, even if it has not heard of that entry
/// itself: without it no write was acknowledged there.
///
/// # Errors
/// If there is no sound copy, or none that lists all members of a group.
pub fn recover(copies: Vec<FabricMap>, drives: &[DriveContents]) -> Result<Recovered, RecoverError> {
    let mut map = joined(copies)?;
    let mut warnings = Vec::new();
    let newest_known = drives.iter().map(|d| d.map_copy).max().unwrap_or_default();
    if newest_known > map.version {
        warnings.push(format!("the newest copy is {}, drives knew {newest_known}", map.version));
    }
    map.version = MapVersion(map.version.max(newest_known).0 + VERSION_MARGIN);
    map.unknown_ids.push((map.next_id, map.next_id + ID_MARGIN));
    map.next_id += ID_MARGIN;
    map.volumes.update_each(|volume| {
        let known = drives.iter().filter_map(|d| d.generations.get(&volume.id)).max();
        let newest = known.map_or(volume.generation, |known| volume.generation.max(*known));
        volume.generation = Generation(newest.0 + GENERATION_MARGIN);
    });
    map.sessions.update_each(|session| session.state = SessionState::Over);
    list_unlisted_sessions(&mut map, drives);
    for drive in map.drives.values().filter(|d| !drives.iter().any(|found| found.id == d.id)) {
        let node = map.nodes.get(&drive.node).map_or_else(String::new, |n| format!(" of node '{}'", n.name));
        warnings.push(format!(
            "drive {}{node} ({}) is not at hand: if it has taken writes while the drives at hand were \
             away, they are \
             lost; bring it if it exists",
            drive.id, drive.path
        ));
    }
    for (id, entry) in newest_entries(drives) {
        let copies = map.groups.get(&id).map(|g| map.copies_of(g));
        match map.groups.get_mut(&id) {
            Some(known) if known.epoch < entry.epoch => {
                warnings.push(format!(
                    "group {id} has changed since the newest copy of the map: it was at {}, and a drive knows {}, \
                     which counts",
                    known.epoch, entry.epoch
                ));
                known.slots = entry.slots.clone();
                known.epoch = entry.epoch;
                settle_relocation(&mut map, id, copies.unwrap_or_default());
            }
            Some(_) => {}
            None => {
                warnings
                    .push(format!("group {id} is on the drives and not in the map: its data is not listed"));
            }
        }
    }
    // Whatever a drive has forgotten, the others count as never written too.
    for entry in drives.iter().flat_map(|d| &d.entries) {
        if let Some(known) = map.groups.get_mut(&entry.id).filter(|g| g.floor < entry.floor) {
            known.floor = entry.floor;
        }
    }
    for group in map.groups.values() {
        let unlisted = group.slots.iter().map(|s| s.drive).filter(|d| !map.drives.contains_key(d));
        let unlisted: Vec<DriveId> = unlisted.collect();
        if !unlisted.is_empty() {
            return Err(RecoverError::UnlistedMembers { group: group.id, unlisted });
        }
    }
    map.groups.update_each(raise);
    match check(&map).first() {
        Some(violation) => Err(RecoverError::Broken(violation.to_string())),
        None => Ok(Recovered { map, warnings }),
    }
}

/// Lists a session that is over for each slot that the drives know and no session has. Their own numbers are lost with
/// the maps, and are served no more; the sweep goes by the slot, on every target of the session's volume.
fn list_unlisted_sessions(map: &mut FabricMap, drives: &[DriveContents]) {
    let listed: BTreeSet<SessionSlot> = map.sessions.values().flat_map(Session::slots).collect();
    let mut unlisted: BTreeMap<SessionSlot, BTreeSet<GroupId>> = BTreeMap::new();
    for (slot, groups) in drives.iter().flat_map(|d| &d.slots).filter(|(slot, _)| !listed.contains(slot)) {
        unlisted.entry(*slot).or_default().extend(groups);
    }
    for (slot, groups) in unlisted {
        // The drives do not tell which volume it was, but that has all of these groups. Where several have, their targets
        // are the same; where none has any, nothing that the session wrote is listed.
        let shared = |v: &Volume| {
            let own: BTreeSet<GroupId> = v.groups().copied().collect();
            own.intersection(&groups).count()
        };
        let Some(volume) = map.volumes.values().max_by_key(|v| shared(v)).filter(|v| shared(v) > 0) else {
            continue;
        };
        let (id, volume) = (SessionId(map.next_id), volume.id);
        map.next_id += 1;
        let session = Session {
            number: 0,
            lane_slots: vec![],
            id,
            slot,
            volume,
            mode: AttachMode::Shared,
            generation: Generation(0),
            client: "unknown, from before the recovery".into(),
            state: SessionState::Over,
        };
        map.sessions.insert(id, session);
    }
}

fn joined(copies: Vec<FabricMap>) -> Result<FabricMap, RecoverError> {
    let one = copies.first().ok_or(RecoverError::NoCopy)?.fabric;
    if let Some(other) = copies.iter().map(|c| c.fabric).find(|f| *f != one) {
        return Err(RecoverError::SeveralFabrics { one, other });
    }
    let joined = join_copies(copies).ok_or(RecoverError::NoCopy)?;
    for volume in joined.volumes.values() {
        let groups = volume.groups().copied();
        let unlisted: BTreeSet<GroupId> = groups.filter(|id| !joined.groups.contains_key(id)).collect();
        if !unlisted.is_empty() {
            let (volume, unlisted) = (volume.name.clone(), unlisted.into_iter().collect());
            return Err(RecoverError::UnlistedGroups { volume, unlisted });
        }
    }
    match check(&joined).first() {
        Some(violation) => Err(RecoverError::Broken(Violation::to_string(violation))),
        None => Ok(joined),
    }
}

/// Per group the newest entry that a drive holds.
fn newest_entries(drives: &[DriveContents]) -> BTreeMap<GroupId, &Group> {
    let mut newest: BTreeMap<GroupId, &Group> = BTreeMap::new();
    for entry in drives.iter().flat_map(|d| &d.entries) {
        let known = newest.entry(entry.id).or_insert(entry);
        if known.epoch < entry.epoch {
            *known = entry;
        }
    }
    newest
}

/// Makes a group's relocation follow from its slots, which are newer than the map: one that has ended is forgotten.
/// Of one that had begun since, nobody knows whose place the new drive takes: if a member is not in-sync, the last
/// such leaves, as if the relocation had ended or been called off; otherwise the first member hands over.
fn settle_relocation(map: &mut FabricMap, id: GroupId, copies: usize) {
    let Some(group) = map.groups.get_mut(&id) else { return };
    let stands = |r: &Relocation| group.slot_of(r.from).is_some() && group.slot_of(r.to).is_some();
    if map.relocations.get(&id).is_some_and(stands) {
        return;
    }
    map.relocations.remove(&id);
    if group.slots.len() <= copies {
        return;
    }
    match group.slots.iter().rposition(|s| s.role != Role::InSync) {
        Some(extra) => {
            group.slots.remove(extra);
        }
        None => {
            let (from, to) = (group.slots[0].drive, group.slots[group.slots.len() - 1].drive);
            map.relocations.insert(id, Relocation { from, to });
        }
    }
}

/// Raises a group's epoch above every one that may have been handed out. A stint that may have gone on in a map that
/// is lost counts for nothing.
fn raise(group: &mut Group) {
    let epoch = Epoch(group.epoch.0 + EPOCH_MARGIN);
    for slot in group.slots.iter_mut().filter(|s| s.role == Role::Syncing) {
        *slot = Slot { since: epoch, ..*slot };
    }
    group.epoch = epoch;
}
