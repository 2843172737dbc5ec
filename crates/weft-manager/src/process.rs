//! The process of a node: what the node's targets have in common.
//!
//! A node's targets are threads of one process. They come and go together: once a newer process has joined
//! with one of them, no target of an older one joins or renews (P4). It owns which process is the newest.

use crate::error::Denied;
use crate::manager::State;
use crate::member::Member;
use std::collections::{BTreeMap, VecDeque};
use weft_rt::Instant;
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{DriveId, NodeId, TargetId};
use weft_wire::Status;

/// Former processes of a node that are remembered: a restart takes seconds, and what such a process has sent
/// is on its way for no longer.
const FORMER_KEPT: usize = 8;

/// A target that joins, or has joined: of which process it is, and what it can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    /// Random, new for each start of the target.
    pub(crate) incarnation: u64,
    /// Random, new for each start of its process.
    pub(crate) id: u64,
    /// How many targets the process has.
    pub(crate) targets: u32,
    /// When it said hello on the connection on which it joins.
    pub(crate) hello: Instant,
    /// Whether it knows the floors of groups (R7).
    pub(crate) knows_floors: bool,
    /// Whether it asks every target of a node for its word (P2).
    pub(crate) knows_targets: bool,
    /// Whether it serves sessions with several lanes (P6).
    pub(crate) knows_lanes: bool,
    /// Whether it knows file systems.
    pub(crate) knows_file_systems: bool,
    /// Whether it knows file systems with directories in several shards.
    pub(crate) knows_spread: bool,
}

/// The newest process of each node, as far as one has joined since this manager started.
#[derive(Debug, Default)]
pub(crate) struct Processes(BTreeMap<NodeId, Newest>);

/// The newest process of a node.
#[derive(Debug)]
struct Newest {
    id: u64,
    targets: u32,
    /// When a target of it said hello last, among those that have joined.
    hello: Instant,
    /// Those before it, the newest in front.
    former: VecDeque<u64>,
}

impl Processes {
    /// Whether a later process of the node has joined than this one.
    fn is_replaced(&self, node: NodeId, process: u64, hello: Instant) -> bool {
        let Some(newest) = self.0.get(&node) else { return false };
        let is_older = newest.former.contains(&process) || hello < newest.hello;
        newest.id != process && is_older && !mutated(Mutation::OlderSiblingJoins)
    }

    /// Notes that a target of this process has joined.
    pub(crate) fn note(&mut self, node: NodeId, process: Process) {
        let Process { id, targets, hello, .. } = process;
        let newest = self.0.entry(node).or_insert_with(|| Newest { id, targets, hello, former: [].into() });
        if newest.id != id {
            newest.former.push_front(newest.id);
            newest.former.truncate(FORMER_KEPT);
            newest.former.retain(|former| *former != id);
            newest.id = id;
        }
        newest.targets = targets;
        newest.hello = newest.hello.max(hello);
    }

    /// The newest process of the node that has joined.
    pub(crate) fn newest_of(&self, node: NodeId) -> Option<u64> {
        self.0.get(&node).map(|newest| newest.id)
    }

    /// Whether this is the newest process of the node that has joined, or none is known.
    pub(crate) fn is_newest(&self, node: NodeId, process: u64) -> bool {
        self.newest_of(node).is_none_or(|newest| newest == process) || mutated(Mutation::OlderSiblingJoins)
    }

    /// How many targets the node's process has; none if it has not joined.
    pub(crate) fn targets_of(&self, node: NodeId) -> Option<u32> {
        self.0.get(&node).map(|newest| newest.targets)
    }

    /// Keeps what is known of these nodes only.
    pub(crate) fn retain(&mut self, is_listed: impl Fn(&NodeId) -> bool) {
        self.0.retain(|node, _| is_listed(node));
    }
}

impl State {
    /// Refuses a target of a process after which another one of its node has joined (P4).
    ///
    /// # Errors
    /// If there is one.
    pub(crate) fn check_is_newest_process(&self, node: NodeId, process: Process) -> Result<(), Denied> {
        if !self.processes.is_replaced(node, process.id, process.hello) {
            return Ok(());
        }
        mark(Path::OlderProcessRefused);
        let name = self.map.nodes.get(&node).map_or_else(|| node.to_string(), |node| node.name.clone());
        let text = format!(
            "a later process of node '{name}' has joined: if this one is to serve, stop the other, and restart this one"
        );
        Err(Denied::new(Status::NotReady, text))
    }

    /// Whether the process that this member is of is the newest of the drive's node that has joined: it answers for the
    /// drive, and another one that listens where it did answers for itself.
    pub(crate) fn is_of_newest_process(&self, member: &Member, drive: DriveId) -> bool {
        let node = self.map.drives.get(&drive).map(|listed| listed.node);
        node.zip(member.process).is_some_and(|(node, process)| self.processes.is_newest(node, process))
    }

    /// The target with this index of the node with this name.
    pub(crate) fn target_at(&self, node: &str, index: u32) -> Option<TargetId> {
        let node = self.map.node_named(node)?.id;
        let has_index = |target: &TargetId| self.map.targets.get(target).is_some_and(|t| t.index == index);
        self.index.targets_of(node).find(has_index)
    }

    /// Whether the node's process has fewer targets than this index says: the target is one of a process
    /// before it, and listed on as long as drives are that nobody has opened since.
    pub(crate) fn is_retired(&self, target: &weft_types::Target) -> bool {
        self.processes.targets_of(target.node).is_some_and(|targets| target.index >= targets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_has_sent_counts_until_a_newer_one_has_joined() {
        let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        let process = |id, hello| Process {
            incarnation: id * 10,
            id,
            targets: 2,
            hello: at(hello),
            knows_floors: true,
            knows_targets: true,
            knows_lanes: true,
            knows_file_systems: true,
            knows_spread: true,
        };
        let (node, mut known) = (NodeId(7), Processes::default());
        assert!(!known.is_replaced(node, 1, at(1)) && known.is_newest(node, 1));
        known.note(node, process(1, 2));
        assert!(!known.is_replaced(node, 1, at(1)), "another target of it, which said hello before");
        assert!(known.is_replaced(node, 2, at(1)), "one that was on its way for longer");
        assert!(!known.is_replaced(node, 2, at(3)));
        known.note(node, process(2, 3));
        assert!(known.is_replaced(node, 1, at(4)), "it has been replaced, whenever it says hello");
        assert!(known.is_newest(node, 2) && !known.is_newest(node, 1));
        known.retain(|_| false);
        assert!(known.is_newest(node, 1));
    }
}
