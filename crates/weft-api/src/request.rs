//! What can be asked. It owns the operations and their parameters; names are those of the glossary.

use crate::{EventInfo, Timestamp};
use serde::{Deserialize, Deserializer, Serialize};
use weft_types::Protection;

/// What must not hold two copies of the same block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureDomain {
    /// A node: every copy is on another machine.
    #[default]
    Node,
    /// A device: copies may share a machine, but not a physical device. For single machines.
    Device,
    /// A drive: copies may share a device, where there is no other. For development.
    Drive,
}

/// Takes a protection, or the number of copies that the first release named in its place.
fn protection_or_copies<'de, D: Deserializer<'de>>(d: D) -> Result<Protection, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Copies(u8),
        Protection(Protection),
    }
    Ok(match Either::deserialize(d)? {
        Either::Copies(copies) => Protection::mirror(copies),
        Either::Protection(protection) => protection,
    })
}

/// A management operation. On the wire: the JSON of this, tagged by `op`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum ApiRequest {
    /// All nodes. Answer: `nodes`.
    NodeList {},
    /// One node. Answer: `node`.
    NodeShow {
        /// Its name.
        name: String,
    },
    /// All drives. Answer: `drives`.
    DriveList {},
    /// One drive. Answer: `drive`.
    DriveShow {
        /// Its identifier, or the first digits of it where they are unique.
        id: String,
    },
    /// Empties a drive: nothing new is placed on it, and its copies pass to other drives while it serves. Answer:
    /// `evacuation`, as soon as it has begun.
    DriveEvacuate {
        /// Its identifier, or the first digits of it where they are unique.
        id: String,
        /// Whether the drive takes part again instead; what has passed to others stays there.
        #[serde(default)]
        cancel: bool,
        /// Whether all drives that are parts of its device are meant.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        device: bool,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Has one drive take over all copies of another, which may be in service or lost. Answer: `evacuation`.
    DriveReplace {
        /// The drive that is to go.
        id: String,
        /// The drive that takes its place.
        with: String,
        /// Whether all drives that are parts of its device are meant, one for one by those of the other's
        /// device, in the order of their paths.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        device: bool,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Lets a drive take part again that is marked as failed, and that its target serves. Answer: `drive`.
    DriveRestore {
        /// Its identifier, or the first digits of it where they are unique.
        id: String,
        /// Whether all drives that are parts of its device are meant.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        device: bool,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Forgets a drive that holds no copy. Answer: `removed`.
    DriveRemove {
        /// Its identifier, or the first digits of it where they are unique.
        id: String,
        /// Whether all drives that are parts of its device are meant.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        device: bool,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Empties all drives of a node. Answer: `evacuation`.
    NodeEvacuate {
        /// Its name.
        name: String,
        /// Whether its drives take part again instead.
        #[serde(default)]
        cancel: bool,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Forgets a node whose drives hold no copy, with the drives. Answer: `removed`.
    NodeRemove {
        /// Its name.
        name: String,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// All pools. Answer: `pools`.
    PoolList {},
    /// Creates a volume. Answer: `volume`, as created; with `dry_run` as it would be.
    VolumeCreate {
        /// Its name: 1 to 63 of `A-Z a-z 0-9 . _ -`, beginning with a letter or digit.
        name: String,
        /// Its size in bytes: a multiple of 4096 above 0.
        size_bytes: u64,
        /// How its data is protected: `{"mirror":{"copies":2}}`. The first release said `"copies":2`.
        #[serde(alias = "copies", deserialize_with = "protection_or_copies")]
        protection: Protection,
        /// The pool's name; none for `default`.
        #[serde(default)]
        pool: Option<String>,
        /// Bytes that go to one object before the next one's turn: a power of two from 4096 to the object's
        /// size; none for the default.
        #[serde(default)]
        stripe_unit_bytes: Option<u64>,
        /// Objects that a stripe runs over: 1 to 64; none for the default.
        #[serde(default)]
        width: Option<u32>,
        /// What must not hold two copies.
        #[serde(default)]
        failure_domain: FailureDomain,
        /// Whether it may be larger than what is free.
        #[serde(default)]
        thin: bool,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// All volumes. Answer: `volumes`.
    VolumeList {
        /// Whether those are listed, too, that hold metadata of file systems.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        all: bool,
    },
    /// One volume. Answer: `volume`.
    VolumeShow {
        /// Its name.
        name: String,
    },
    /// Grows a volume, also while it is attached. Answer: `volume`.
    VolumeResize {
        /// Its name.
        name: String,
        /// Its new size in bytes: a multiple of 4096, not below the present size.
        size_bytes: u64,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Deletes a volume with all data on it. Answer: `deleting`: it is gone for clients at once, its space comes
    /// back once every target has dropped its blocks.
    VolumeDelete {
        /// Its name.
        name: String,
        /// Whether sessions that are open are ended; otherwise they are a reason to refuse.
        #[serde(default)]
        force: bool,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Has volumes go on whose last up-to-date copies are gone, with what is left of them. Answer: `loss`.
    VolumeRepair {
        /// Their names: all volumes that are touched must be named. None: groups that hold nothing of any volume.
        names: Vec<String>,
        /// Whether data may be lost; without it the request is refused with what is wrong.
        #[serde(default)]
        accept_data_loss: bool,
        /// Drives that do not exist any more, by their whole identifiers. They never come back.
        #[serde(default)]
        destroyed: Vec<String>,
        /// Drives that hold less than they had acknowledged, and whose content is wanted all the same.
        #[serde(default)]
        older: Vec<String>,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Creates a file system, with the volumes for its metadata. Answer: `file-system`, as created; with
    /// `dry_run` as it would be.
    FsCreate {
        /// Its name, by the rule for names of volumes; no volume has it.
        name: String,
        /// How its data and its metadata are protected.
        protection: Protection,
        /// The pool's name; none for `default`.
        #[serde(default)]
        pool: Option<String>,
        /// How many shards its metadata has, 1 to 256; none for 16. It never changes.
        #[serde(default)]
        shards: Option<u32>,
        /// Whether new directories lie in any of the shards, so that several nodes serve names; otherwise
        /// all lie in the first one. It never changes.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_spread: bool,
        /// Of files for which nobody says otherwise: bytes that go to one object before the next one's turn,
        /// a power of two from 4096 to the object's size; none for the default.
        #[serde(default)]
        stripe_unit_bytes: Option<u64>,
        /// Of files for which nobody says otherwise: objects that a stripe runs over, 1 to 64; none for the
        /// default.
        #[serde(default)]
        width: Option<u32>,
        /// What must not hold two copies.
        #[serde(default)]
        failure_domain: FailureDomain,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// All file systems. Answer: `file-systems`.
    FsList {},
    /// One file system. Answer: `file-system`.
    FsShow {
        /// Its name.
        name: String,
    },
    /// Has files that are made from now on use drives that were added to the file system's pool. Files that
    /// there are stay where they are. If there is nothing to add, a warning says so. Answer: `file-system`.
    FsGrow {
        /// Its name.
        name: String,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Deletes a file system with all files in it, and the volumes of its metadata. Answer:
    /// `file-system-deleting`.
    FsDelete {
        /// Its name.
        name: String,
        /// Whether sessions that are open are ended; otherwise they are a reason to refuse.
        #[serde(default)]
        force: bool,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Whether any drive holds data of a volume. Answer: `holds-data`.
    VolumeHoldsData {
        /// Its name.
        name: String,
    },
    /// Ends a session: its client loses access at once. Answer: `sessions`, those of its volume.
    SessionEnd {
        /// Its number.
        session: u64,
        /// Whether to go through all checks and change nothing.
        #[serde(default)]
        dry_run: bool,
    },
    /// Compares the map with what every drive says, and changes nothing. Answer: `check`.
    FabricCheck {},
    /// Sessions that are open, or over and not yet swept everywhere. Answer: `sessions`.
    SessionList {
        /// Only those of this volume.
        #[serde(default)]
        volume: Option<String>,
    },
    /// The fabric's health, capacity and repairs. Answer: `status`.
    Status {},
    /// What was asked of nodes, drives, volumes and by clients since the nodes started. Answer: `load`.
    Load {},
    /// What happened lately. Answer: `events`, in the order of their numbers.
    Events {
        /// Only events with a number above this one.
        #[serde(default)]
        after: u64,
        /// At most so many, the newest; none for all that are kept.
        #[serde(default)]
        limit: Option<u32>,
        /// Which of them.
        #[serde(default)]
        filter: EventFilter,
    },
    /// Adds an event of somebody's own, `note`, to those of the fabric. Answer: `events`, with this one.
    EventAdd {
        /// What is to be noted: 1 to 200 characters on one line.
        text: String,
    },
    /// Says that the fabric is about to stop as a whole, one process after the other: for 15 seconds the
    /// manager takes no copies out of use because their node is gone, so that all of them are up to date at
    /// the next start. A node that joins ends it. Answer: `events`, with the one that tells of it.
    FabricStop {},
    /// Has volumes read and verified as a whole, and damaged copies healed. Answer: `scrub`.
    ScrubStart {
        /// Their names; none for every volume.
        #[serde(default)]
        volumes: Vec<String>,
    },
    /// Ends the scrub that runs; the schedule rests for a day. Answer: `scrub`.
    ScrubStop {},
    /// How scrubs are getting on. Answer: `scrub`.
    ScrubStatus {},
    /// Changes how often everything is scrubbed. Answer: `scrub`.
    ScrubSchedule {
        /// The period in milliseconds, at least a minute; none: only when somebody asks.
        every_ms: Option<u64>,
    },
    /// What is different in two maps. Answer: `map-diff`.
    MapDiff {
        /// A map.
        from: Box<weft_types::FabricMap>,
        /// Another one.
        to: Box<weft_types::FabricMap>,
    },
    /// The fabric map as it is. Answer: `map`.
    MapGet {},
    /// Shows the settings, and first changes those that are given. Answer: `settings`.
    Settings(SettingsWish),
}

/// Settings that somebody wants changed; what is not given stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsWish {
    /// How long a replica may be out before its data is rebuilt elsewhere, in milliseconds.
    #[serde(default)]
    pub rebuild_after_ms: Option<u64>,
    /// At which part of its capacity a pool's fullest drive is worth a warning, in percent.
    #[serde(default)]
    pub capacity_warning_percent: Option<u8>,
    /// At which part it is critical, in percent.
    #[serde(default)]
    pub capacity_critical_percent: Option<u8>,
}

impl SettingsWish {
    /// Wants to know how long a replica may be out before its data is rebuilt elsewhere set to so many milliseconds.
    pub fn rebuild_after_ms(ms: u64) -> SettingsWish {
        SettingsWish { rebuild_after_ms: Some(ms), ..SettingsWish::default() }
    }
}

/// Which events somebody wants; those that pass every part that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventFilter {
    /// Only those that carry this time or a later one, by the manager's clock at the event.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// Only those of one of these kinds, as in `what`; none for all.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// Only those about this volume.
    #[serde(default)]
    pub volume: Option<String>,
    /// Only those about this node.
    #[serde(default)]
    pub node: Option<String>,
    /// Only those about the drive whose identifier begins so.
    #[serde(default)]
    pub drive: Option<String>,
}

impl EventFilter {
    /// Whether the event passes.
    pub fn passes(&self, event: &EventInfo) -> bool {
        let is_named = |wanted: &Option<String>, names: &[String]| {
            wanted.as_ref().is_none_or(|wanted| names.iter().any(|name| name == wanted))
        };
        let begins = |wanted: &String| {
            let wanted = wanted.to_ascii_lowercase();
            event.drives.iter().any(|d| d.to_string().starts_with(&wanted))
        };
        self.since.is_none_or(|since| event.time >= since)
            && (self.kinds.is_empty() || self.kinds.contains(&event.what))
            && is_named(&self.volume, &event.volumes)
            && is_named(&self.node, &event.nodes)
            && self.drive.as_ref().is_none_or(begins)
    }
}

impl ApiRequest {
    /// Whether the operation may change the fabric.
    pub fn is_mutation(&self) -> bool {
        match self {
            ApiRequest::VolumeCreate { dry_run, .. }
            | ApiRequest::VolumeResize { dry_run, .. }
            | ApiRequest::VolumeDelete { dry_run, .. }
            | ApiRequest::FsCreate { dry_run, .. }
            | ApiRequest::FsGrow { dry_run, .. }
            | ApiRequest::FsDelete { dry_run, .. }
            | ApiRequest::VolumeRepair { dry_run, .. }
            | ApiRequest::SessionEnd { dry_run, .. }
            | ApiRequest::DriveEvacuate { dry_run, .. }
            | ApiRequest::DriveReplace { dry_run, .. }
            | ApiRequest::DriveRestore { dry_run, .. }
            | ApiRequest::DriveRemove { dry_run, .. }
            | ApiRequest::NodeEvacuate { dry_run, .. }
            | ApiRequest::NodeRemove { dry_run, .. } => !dry_run,
            ApiRequest::Settings(wish) => *wish != SettingsWish::default(),
            ApiRequest::ScrubStart { .. }
            | ApiRequest::ScrubStop {}
            | ApiRequest::ScrubSchedule { .. }
            | ApiRequest::EventAdd { .. } => true,
            _ => false,
        }
    }
}
