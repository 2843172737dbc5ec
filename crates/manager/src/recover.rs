//! Recovery of a fabric whose manager's store is lost: a new map from the copies that the drives hold.
//!
//! It owns the margins by which everything is raised above what could have been handed out since the newest copy
//! was written. Pure: the caller reads the drives and writes the store. It never declares a replica in-sync that may
//! have been evicted: where the copies leave a doubt, the replica has to verify everything anew.

use std::collections::BTreeMap;
use weft_membership::{Violation, check};
use weft_types::{
    DriveId, Epoch, FabricId, FabricMap, Generation, Group, GroupId, MapVersion, Role, SessionState, Slot,
};
use weft_wire::control::DriveReport;

/// How many maps may have been committed since the newest copy. Copies are written before a map is acknowledged, so
/// the drives at hand miss only what was committed while all of them were away.
pub const VERSION_MARGIN: u64 = 1_000;

/// How many epochs a group may have seen since the newest that a drive at hand reports.
pub const EPOCH_MARGIN: u64 = 1_000;

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
    /// None of a group's replicas is known to hold every write.
    #[error(
        "no drive at hand is known to hold all of group {group}: it was in-sync on {listed:?} when the newest copy \
         of the map was written, and its membership has changed since; bring the missing drives"
    )]
    NoGoodCopy {
        /// The group.
        group: GroupId,
        /// Who was in-sync in the newest copy.
        listed: Vec<DriveId>,
    },
    /// The newest copy breaks a rule of maps.
    #[error("the newest copy of the map breaks a rule: {0}")]
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
/// The newest copy counts. Version, epochs, generations and the next identifier are raised above everything that may
/// have been handed out since; sessions are over, and are swept by the manager before it forgets them. A replica
/// that knows an older epoch than another member of its group may have been evicted: it is out, and comes back by
/// verifying everything.
///
/// # Errors
/// If there is no sound copy, or a group has no replica left that can be trusted.
pub fn recover(copies: Vec<FabricMap>, reports: &[DriveReport]) -> Result<Recovered, RecoverError> {
    let mut map = newest(copies)?;
    let mut warnings = Vec::new();
    let newest_reported = reports.iter().map(|r| r.map_copy).max().unwrap_or_default();
    if newest_reported > map.version {
        warnings.push(format!("the newest copy is {}, drives knew {newest_reported}", map.version));
    }
    map.version = MapVersion(map.version.max(newest_reported).0 + VERSION_MARGIN);
    map.next_id += ID_MARGIN;
    for volume in map.volumes.values_mut() {
        volume.generation = Generation(volume.generation.0 + 1);
    }
    for session in map.sessions.values_mut() {
        session.state = SessionState::Over;
    }
    for drive in map.drives.keys().filter(|d| !reports.iter().any(|r| r.id == **d)) {
        warnings.push(format!(
            "drive {drive} is not at hand: if it has taken writes while the drives at hand were away, they are \
             lost; bring it if it exists"
        ));
    }
    let known = reported_epochs(reports);
    for (group, drives) in &known {
        match map.groups.get_mut(group) {
            Some(entry) => raise(entry, drives, &mut warnings)?,
            None => warnings
                .push(format!("group {group} is on the drives and not in the map: its data is not listed")),
        }
    }
    // Groups that no drive at hand reports may have moved on as well.
    for group in map.groups.values_mut().filter(|g| !known.contains_key(&g.id)) {
        raise(group, &BTreeMap::new(), &mut warnings)?;
    }
    match check(&map).first() {
        Some(violation) => Err(RecoverError::Broken(violation.to_string())),
        None => Ok(Recovered { map, warnings }),
    }
}

fn newest(copies: Vec<FabricMap>) -> Result<FabricMap, RecoverError> {
    let one = copies.first().ok_or(RecoverError::NoCopy)?.fabric;
    if let Some(other) = copies.iter().map(|c| c.fabric).find(|f| *f != one) {
        return Err(RecoverError::SeveralFabrics { one, other });
    }
    let newest = copies.into_iter().max_by_key(|c| c.version).ok_or(RecoverError::NoCopy)?;
    match check(&newest).first() {
        Some(violation) => Err(RecoverError::Broken(Violation::to_string(violation))),
        None => Ok(newest),
    }
}

/// Per group which drive knows which epoch.
fn reported_epochs(reports: &[DriveReport]) -> BTreeMap<GroupId, BTreeMap<DriveId, Epoch>> {
    let mut known: BTreeMap<GroupId, BTreeMap<DriveId, Epoch>> = BTreeMap::new();
    for report in reports {
        for (group, epoch) in &report.epochs {
            known.entry(*group).or_default().insert(report.id, *epoch);
        }
    }
    known
}

/// Raises a group's epoch above every one that is known, and takes out the replicas that may have been left behind.
fn raise(
    group: &mut Group,
    known: &BTreeMap<DriveId, Epoch>,
    warnings: &mut Vec<String>,
) -> Result<(), RecoverError> {
    let listed: Vec<DriveId> = group.read_set().collect();
    let newest = known.values().copied().max().unwrap_or_default();
    let has_moved_on = newest > group.epoch;
    let epoch = Epoch(group.epoch.max(newest).0 + EPOCH_MARGIN);
    for slot in &mut group.slots {
        let is_behind = has_moved_on && known.get(&slot.drive) != Some(&newest);
        match slot.role {
            Role::InSync if is_behind => {
                warnings.push(format!(
                    "group {}: drive {} may have been evicted since the newest copy; it will be brought up to date",
                    group.id, slot.drive
                ));
                *slot = Slot { role: Role::Out, since: epoch, ..*slot };
            }
            // A stint that went on in a map that is lost counts for nothing.
            Role::Syncing => *slot = Slot { since: epoch, ..*slot },
            Role::InSync | Role::Out => {}
        }
    }
    group.epoch = epoch;
    match group.read_set().next() {
        Some(_) => Ok(()),
        None => Err(RecoverError::NoGoodCopy { group: group.id, listed }),
    }
}
