//! A drive that may take a copy, and how far it has to be from the other copies.
//!
//! It owns what placement knows of a drive. It never knows what lies on it: that is in `loads`.

use serde::{Deserialize, Serialize};
use std::fmt;
use weft_types::{BlockCount, DeviceId, Drive, DriveId, NodeId};

/// What must not fail together with another copy. In order: the later, the nearer copies may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureDomain {
    /// Two copies are never on one node.
    #[default]
    Node,
    /// Two copies are never on one device, on one node only where there is no other; for a single machine.
    Device,
    /// Two copies are never on one drive, on one device only where there is no other, and on one node only
    /// where there is no other; for tests on a machine with one device.
    Drive,
}

impl FailureDomain {
    /// Whether two drives may hold copies of the same data.
    pub fn is_apart(self, a: &Candidate, b: &Candidate) -> bool {
        match self {
            FailureDomain::Node => a.node != b.node,
            FailureDomain::Device => (a.node, a.device) != (b.node, b.device),
            FailureDomain::Drive => a.drive != b.drive,
        }
    }

    /// This domain, and before it those that keep copies further apart, furthest first.
    pub(crate) fn sought(self) -> impl Iterator<Item = FailureDomain> {
        let all = [FailureDomain::Node, FailureDomain::Device, FailureDomain::Drive];
        all.into_iter().filter(move |domain| *domain <= self)
    }
}

impl fmt::Display for FailureDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FailureDomain::Node => "node",
            FailureDomain::Device => "device",
            FailureDomain::Drive => "drive",
        })
    }
}

/// A drive that may take a group's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The drive.
    pub drive: DriveId,
    /// The node that it is on.
    pub node: NodeId,
    /// The device of that node that it is on.
    pub device: DeviceId,
    /// Its size; a drive of size 0 takes nothing.
    pub capacity: BlockCount,
}

impl Candidate {
    /// What placement has to know of a drive.
    pub fn of(drive: &Drive) -> Candidate {
        Candidate { drive: drive.id, node: drive.node, device: drive.device, capacity: drive.capacity }
    }
}
