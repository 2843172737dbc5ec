//! What is told about faults and losses: the findings of a check, and what would be lost if a loss were accepted.

use crate::Timestamp;
use serde::{Deserialize, Serialize};
use weft_types::{DriveId, Epoch, FabricId, GroupId, MapVersion, Role, SessionId};

/// The fabric, compared with what its drives say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckInfo {
    /// The fabric.
    pub fabric: FabricId,
    /// The version of its map.
    pub map: MapVersion,
    /// When it was checked, by the manager's clock.
    pub time: Timestamp,
    /// Whether there is no fault among the findings.
    pub sound: bool,
    /// Nodes that answered, of those in the map.
    pub nodes_asked: usize,
    /// Nodes in the map.
    pub nodes: usize,
    /// Drives that were compared with the map.
    pub drives_compared: usize,
    /// Groups in the map.
    pub groups: usize,
    /// What was found: faults first.
    pub findings: Vec<CheckFinding>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckSeverity {
    /// Something is not as it must be, or could not be looked at.
    Fault,
    /// Nothing is wrong yet, but it should be looked after.
    Warning,
    /// Good to know.
    Note,
}

/// Something that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckFinding {
    /// How bad it is.
    pub severity: CheckSeverity,
    /// What it is about, such as `node b`, `drive 1f3a` or `group g7`.
    pub subject: String,
    /// What was found, and what was expected.
    pub what: String,
    /// What to do about it.
    pub todo: String,
}

/// Groups that have lost every up-to-date copy, and what becomes of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossInfo {
    /// Volumes with objects in these groups, also those that hold metadata of file systems.
    pub volumes: Vec<String>,
    /// Drives that are declared destroyed.
    pub destroyed: Vec<DriveId>,
    /// Drives whose content is older than what they had acknowledged, and is taken all the same.
    pub older: Vec<DriveId>,
    /// The groups.
    pub groups: Vec<LostGroup>,
    /// Bytes of volumes that read as something older, or as zeroes, at most. What files of file systems lose
    /// is not counted: only their metadata says what of them lies where.
    pub lost_bytes_max: u64,
    /// File systems whose files have objects in these groups, which are not among `volumes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub file_systems: Vec<String>,
    /// Sessions that are ended.
    pub ended_sessions: Vec<SessionId>,
    /// Whether nothing was changed because the request said `dry_run`.
    #[serde(default)]
    pub dry_run: bool,
}

/// A group without an up-to-date copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostGroup {
    /// The group.
    pub group: GroupId,
    /// Its epoch.
    pub epoch: Epoch,
    /// What there is of it.
    pub copies: Vec<LostCopy>,
    /// The drive that it goes on with.
    pub survivor: DriveId,
    /// Whether that drive holds nothing of it: then everything in the group reads as zeroes.
    pub empty: bool,
    /// The parts of volumes in it of which something may be lost, in order of address; at most 256 of each volume.
    pub ranges: Vec<LostRange>,
    /// Further parts that are not listed.
    pub ranges_more: bool,
    /// Bytes of all parts.
    pub bytes: u64,
    /// File systems whose files have objects in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub file_systems: Vec<String>,
}

/// A member of such a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostCopy {
    /// Its drive.
    pub drive: DriveId,
    /// Its node.
    pub node: String,
    /// Its role.
    pub role: Role,
    /// Whether the drive is declared destroyed.
    pub destroyed: bool,
    /// Whether its target serves the drive.
    pub present: bool,
    /// Bytes of data that it holds and that can be read; none while it does not answer.
    pub bytes: Option<u64>,
    /// When the newest write was made that it holds, by the clock of whoever wrote; none if it holds nothing.
    pub newest: Option<Timestamp>,
}

/// A part of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRange {
    /// The volume.
    pub volume: String,
    /// Where it begins.
    pub offset_bytes: u64,
    /// How long it is.
    pub bytes: u64,
}
