//! Targets: a further one joins its node, one listens at another address, one is forgotten, and a drive
//! passes from one to another of its node.
//!
//! It owns a node's targets. It never judges whether one is alive, or which drives it has opened.

use crate::change::take_id;
use crate::node::free_address;
use crate::refusal::Kind;
use crate::shard_server::forget_servers;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use weft_types::limits::TARGETS_PER_NODE_MAX;
use weft_types::{DriveId, FabricMap, NodeId, Target, TargetId};

/// A further target joins a node that has its first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddTarget {
    /// The node.
    pub node: NodeId,
    /// Which of the node's targets it is: 1 to [`TARGETS_PER_NODE_MAX`] - 1.
    pub index: u32,
    /// Where it listens, as `host:port`.
    pub addr: String,
}

/// A target listens at another address. A target of the same node that is listed there gets its former one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveTarget {
    /// The target.
    pub target: TargetId,
    /// Where it listens now, as `host:port`.
    pub addr: String,
}

/// A target without drives that is not its node's first is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveTarget {
    /// The target.
    pub target: TargetId,
}

/// Another target of its node serves a drive: one of the process that has opened it (P4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssignDrive {
    /// The drive.
    pub drive: DriveId,
    /// The target that serves it from now on.
    pub target: TargetId,
}

pub(crate) fn add(map: &mut FabricMap, change: &AddTarget) -> Result<Reason, Refusal> {
    let AddTarget { node, index, addr } = change;
    if map.first_target_of(*node).is_none() {
        return Err(Refusal::Unknown { kind: Kind::Node, id: node.to_string() });
    }
    if *index >= TARGETS_PER_NODE_MAX || map.target_at(*node, *index).is_some() {
        return Err(Refusal::TargetIndex { node: *node, index: *index });
    }
    free_address(map, addr)?;
    let id = u32::try_from(take_id(map)).map_err(|_| Refusal::NumbersUsedUp { kind: Kind::Target })?;
    let target = Target { id: TargetId(id), node: *node, index: *index, addr: addr.clone() };
    let added = Reason::TargetAdded { node: *node, target: target.id, index: *index };
    map.targets.insert(target.id, target);
    Ok(added)
}

pub(crate) fn relocate(map: &mut FabricMap, change: &MoveTarget) -> Result<Reason, Refusal> {
    let MoveTarget { target, addr } = change;
    let found = map.targets.get(target).ok_or_else(|| unknown(*target))?;
    if found.addr == *addr {
        return Err(Refusal::SameAddress { target: *target, addr: addr.clone() });
    }
    let (from, node) = (found.addr.clone(), found.node);
    // A process may give its ports to its targets in another order than the one before it.
    let sibling = map.targets_of(node).find(|sibling| sibling.addr == *addr).map(|sibling| sibling.id);
    match sibling {
        Some(sibling) => {
            let sibling = map.targets.get_mut(&sibling).expect("it was found above");
            sibling.addr.clone_from(&from);
        }
        None => free_address(map, addr)?,
    }
    map.targets.get_mut(target).expect("it was found above").addr.clone_from(addr);
    Ok(Reason::TargetMoved { target: *target, from, to: addr.clone() })
}

pub(crate) fn remove(map: &mut FabricMap, change: &RemoveTarget) -> Result<Reason, Refusal> {
    let target = map.targets.get(&change.target).ok_or_else(|| unknown(change.target))?;
    let (id, node) = (target.id, target.node);
    let drives = map.drives.values().filter(|d| d.target == id).count();
    if drives > 0 || id == TargetId::first_of(node) {
        return Err(Refusal::TargetInUse { target: id, drives });
    }
    map.targets.remove(&id);
    forget_servers(map, |server| server == id);
    Ok(Reason::TargetRemoved { node, target: id })
}

pub(crate) fn assign(map: &mut FabricMap, change: &AssignDrive) -> Result<Reason, Refusal> {
    let AssignDrive { drive, target } = *change;
    let node = map.targets.get(&target).ok_or_else(|| unknown(target))?.node;
    let Some(listed) = map.drives.get_mut(&drive) else {
        return Err(Refusal::Unknown { kind: Kind::Drive, id: drive.to_string() });
    };
    if listed.node != node || listed.target == target {
        return Err(Refusal::NotAssigned { drive, target, listed: listed.target });
    }
    let from = std::mem::replace(&mut listed.target, target);
    Ok(Reason::DriveAssigned { drive, from, to: target })
}

fn unknown(target: TargetId) -> Refusal {
    Refusal::Unknown { kind: Kind::Target, id: target.to_string() }
}
