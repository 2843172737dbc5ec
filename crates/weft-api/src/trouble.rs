//! What is wrong with a fabric: each trouble with its beginning, what it means, what is done about it, and what people
//! can do. Shapes only.

use crate::Timestamp;
use serde::{Deserialize, Serialize};
use weft_types::DriveId;

/// Something that is not as it should be, or that people want to know of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// What it is, for programs.
    pub kind: TroubleKind,
    /// How bad it is.
    pub severity: Severity,
    /// What it is, for people.
    pub what: String,
    /// Since when, by the manager's clock: from when the manager noticed it, also across its restarts.
    pub since: Timestamp,
    /// The node that it is about.
    pub node: Option<String>,
    /// The drive that it is about.
    pub drive: Option<DriveId>,
    /// The pool that it is about.
    pub pool: Option<String>,
    /// Groups that it concerns.
    pub groups: usize,
    /// Volumes with objects in these groups.
    pub volumes: Vec<AffectedVolume>,
    /// Further such volumes, which are not named. Left out if there are none.
    #[serde(default, skip_serializing_if = "is_none")]
    pub more_volumes: usize,
    /// What the fabric does about it, or waits for.
    pub doing: Vec<Doing>,
    /// What people can do.
    pub advice: Vec<Advice>,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

/// The kinds of trouble; stable, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TroubleKind {
    /// The manager serves no more.
    ManagerStopped,
    /// Groups have no up-to-date copy that answers: their data can be neither read nor written.
    DataUnavailable,
    /// Blocks could not be read from any copy by the last scrub.
    BlocksUnreadable,
    /// A drive has failed.
    DriveFailed,
    /// A node does not answer, or is down.
    NodeGone,
    /// Clients cannot reach a node that the manager reaches.
    ClientCutOff,
    /// A node is up without one of its drives.
    DriveAbsent,
    /// A node has a drive that it must not serve.
    DriveRefused,
    /// A node of another fabric asks this manager.
    NodeForeign,
    /// A node has drives of another fabric.
    DriveForeign,
    /// A node has not opened a drive that it was to serve, and that the map does not list.
    DriveLeftOut,
    /// Damage was found on a drive since its target started.
    DriveDamaged,
    /// Groups miss copies.
    CopiesMissing,
    /// A drive is being brought up to date.
    Copying,
    /// A pool is filling up, or full.
    PoolFilling,
    /// A drive is being emptied.
    DriveDraining,
    /// Nodes do not keep their parts of the fabric map.
    MapNotKept,
    /// A target of a node does not answer, or is down, and others of the node do: a thread stands still.
    TargetGone,
    /// The server of a part of a file system's names cannot open it.
    ShardUnserved,
}

impl TroubleKind {
    /// All of them.
    pub const ALL: [TroubleKind; 19] = [
        TroubleKind::ManagerStopped,
        TroubleKind::DataUnavailable,
        TroubleKind::BlocksUnreadable,
        TroubleKind::DriveFailed,
        TroubleKind::NodeGone,
        TroubleKind::ClientCutOff,
        TroubleKind::DriveAbsent,
        TroubleKind::DriveRefused,
        TroubleKind::NodeForeign,
        TroubleKind::DriveForeign,
        TroubleKind::DriveLeftOut,
        TroubleKind::DriveDamaged,
        TroubleKind::CopiesMissing,
        TroubleKind::Copying,
        TroubleKind::PoolFilling,
        TroubleKind::DriveDraining,
        TroubleKind::MapNotKept,
        TroubleKind::TargetGone,
        TroubleKind::ShardUnserved,
    ];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            TroubleKind::ManagerStopped => "manager-stopped",
            TroubleKind::DataUnavailable => "data-unavailable",
            TroubleKind::BlocksUnreadable => "blocks-unreadable",
            TroubleKind::DriveFailed => "drive-failed",
            TroubleKind::NodeGone => "node-gone",
            TroubleKind::TargetGone => "target-gone",
            TroubleKind::ClientCutOff => "client-cut-off",
            TroubleKind::DriveAbsent => "drive-absent",
            TroubleKind::DriveRefused => "drive-refused",
            TroubleKind::NodeForeign => "node-foreign",
            TroubleKind::DriveForeign => "drive-foreign",
            TroubleKind::DriveLeftOut => "drive-left-out",
            TroubleKind::DriveDamaged => "drive-damaged",
            TroubleKind::CopiesMissing => "copies-missing",
            TroubleKind::Copying => "copying",
            TroubleKind::PoolFilling => "pool-filling",
            TroubleKind::DriveDraining => "drive-draining",
            TroubleKind::MapNotKept => "map-not-kept",
            TroubleKind::ShardUnserved => "shard-unserved",
        }
    }
}

/// How bad a trouble is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// It is going on, and as it should be.
    Notice,
    /// Nothing is missing, but it will be if nobody does anything.
    Warning,
    /// Something is missing or behind: the fabric's health is degraded.
    Degraded,
    /// Data cannot be used: the fabric's health is unavailable.
    Unavailable,
}

impl Severity {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Notice => "notice",
            Severity::Warning => "warning",
            Severity::Degraded => "degraded",
            Severity::Unavailable => "unavailable",
        }
    }
}

/// A volume that a trouble concerns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AffectedVolume {
    /// The volume.
    pub volume: String,
    /// How many of its groups are concerned.
    pub groups: usize,
    /// How many it has.
    pub groups_total: usize,
    /// How many bytes of its address space lie in these groups, written or not.
    pub bytes: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The first runs of addresses that lie in these groups; only where data is unavailable.
    pub ranges: Vec<ByteRange>,
    /// Whether there are more of them.
    pub has_more_ranges: bool,
}

/// A run of addresses of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    /// Where it begins, in bytes.
    pub offset_bytes: u64,
    /// How long it is.
    pub length_bytes: u64,
}

/// What the fabric does about a trouble, or waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doing {
    /// What, for people.
    pub what: String,
    /// How many groups it is about.
    pub groups: usize,
    /// What it waits for; none while it goes on.
    pub waits_for: Option<WaitsFor>,
    /// How long it still waits, in milliseconds, where that is known.
    pub wait_ms: Option<u64>,
    /// How far it has come, where something is copied.
    pub progress: Option<Progress>,
}

/// What the fabric waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitsFor {
    /// For a drive to come back, before its copies are rebuilt elsewhere.
    Return,
    /// For nobody to serve a silent node's copies any more: its lease is waited out.
    Lease,
    /// For a node or drive that can take a copy: one without another copy of the group.
    Drive,
    /// For room on the drive that is copied to.
    Room,
    /// For a copy to copy from.
    Source,
    /// For the last copy: it comes back with its drive, and only with it.
    LastCopy,
    /// For its turn.
    Turn,
    /// For people.
    People,
}

/// How far copying has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Chunks verified so far.
    pub chunks_done: u64,
    /// Chunks to verify, as far as known; 0 while nothing is known.
    pub chunks_total: u64,
    /// Bytes copied so far.
    pub bytes_copied: u64,
    /// Bytes copied per second of the last seconds; none while that is unknown.
    pub bytes_per_second: Option<u64>,
    /// When it will be done at the rate of the last seconds, in milliseconds from now; none while nothing moves.
    pub eta_ms: Option<u64>,
    /// The share of the time that it takes because clients go first, in percent; none while it takes all.
    pub pace_percent: Option<u8>,
}

/// What people can do about a trouble.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What it is good for.
    pub what: String,
    /// The command; none where it is no command of `weft`.
    pub command: Option<String>,
}

impl Advice {
    /// Something to do without a command.
    pub fn plain(what: impl Into<String>) -> Advice {
        Advice { what: what.into(), command: None }
    }

    /// A command and what it is good for.
    pub fn command(what: impl Into<String>, command: impl Into<String>) -> Advice {
        Advice { what: what.into(), command: Some(command.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_documents() {
        for kind in TroubleKind::ALL {
            assert_eq!(serde_json::to_value(kind).expect("a name"), kind.name());
        }
        for severity in [Severity::Notice, Severity::Warning, Severity::Degraded, Severity::Unavailable] {
            assert_eq!(serde_json::to_value(severity).expect("a name"), severity.name());
        }
    }
}
