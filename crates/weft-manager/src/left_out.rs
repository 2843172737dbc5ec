//! What nodes have and this manager does not serve: drives that could not be opened or belong to another
//! fabric, and nodes of another fabric that ask this manager.
//!
//! It owns the words about them. A manager on a wrong store sees nothing else of the fabric that it should
//! serve: without these its fabric would be called healthy.

use crate::manager::{Manager, State};
use crate::trouble::{count, new_trouble};
use std::collections::BTreeMap;
use std::time::Duration;
use weft_api::{Advice, Severity, Trouble, TroubleKind};
use weft_rt::{Instant, now};
use weft_types::limits::{DRIVES_PER_TARGET_MAX, EVENT_CHARS_MAX, FOREIGN_NODES_MAX};
use weft_types::{Drive, FabricId, Node, NodeId, TargetId};
use weft_wire::control::DriveLeftOut;

/// How long after its last attempt a node of another fabric counts as there: several times what it waits in
/// between.
const FOREIGN_NODE_FRESH: Duration = Duration::from_secs(15);

/// Drives that one sentence names; the others are counted.
const DRIVES_NAMED: usize = 4;

/// A node that has asked this manager, and belongs to another fabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForeignNode {
    fabric: FabricId,
    heard_at: Instant,
}

/// What a target says that it has left out, within bounds.
fn within_bounds(mut left_out: Vec<DriveLeftOut>) -> Vec<DriveLeftOut> {
    left_out.truncate(DRIVES_PER_TARGET_MAX);
    for drive in &mut left_out {
        for text in [&mut drive.path, &mut drive.why, &mut drive.hint] {
            cut(text);
        }
    }
    left_out
}

fn cut(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(EVENT_CHARS_MAX) {
        text.truncate(end);
        text.push_str(" ...");
    }
}

impl Manager {
    /// Notes what a target that has joined says that it has left out.
    pub(crate) fn note_left_out(&self, name: &str, target: TargetId, left_out: Vec<DriveLeftOut>) {
        let mut state = self.state.borrow_mut();
        state.foreign_nodes.remove(name);
        if let Some(member) = state.members.get_mut(&target) {
            member.left_out = within_bounds(left_out);
        }
    }

    /// Notes that a node of another fabric has asked. Only the newest are remembered.
    pub(crate) fn note_foreign_node(&self, name: &str, fabric: FabricId) {
        let mut name = name.to_owned();
        cut(&mut name);
        let mut state = self.state.borrow_mut();
        let heard = &mut state.foreign_nodes;
        heard.retain(|_, node| node.heard_at.elapsed() < FOREIGN_NODE_FRESH);
        if heard.len() < FOREIGN_NODES_MAX || heard.contains_key(&name) {
            heard.insert(name, ForeignNode { fabric, heard_at: now() });
        }
    }
}

impl State {
    /// Why the targets of its node have not opened this drive, if one has said so.
    pub(crate) fn why_left_out(&self, drive: &Drive) -> Option<&DriveLeftOut> {
        let mut left_out = self.own_members_of(drive.node).flat_map(|(_, member)| &member.left_out);
        left_out.find(|l| l.id == Some(drive.id) || l.path == drive.path)
    }

    /// Nodes of another fabric that have asked lately, with their fabrics.
    pub(crate) fn foreign_nodes(&self) -> impl Iterator<Item = (&str, FabricId)> {
        let is_fresh = |node: &ForeignNode| node.heard_at.elapsed() < FOREIGN_NODE_FRESH;
        let nodes = self.foreign_nodes.iter().filter(move |(_, node)| is_fresh(node));
        nodes.map(|(name, node)| (name.as_str(), node.fabric))
    }

    /// What the node has left out and no listed drive stands for: drives of other fabrics, and all others.
    pub(crate) fn left_out_of(&self, node: NodeId) -> (Vec<&DriveLeftOut>, Vec<&DriveLeftOut>) {
        let all = self.own_members_of(node).flat_map(|(_, member)| &member.left_out);
        let is_listed = |l: &DriveLeftOut| {
            let mut own = self.map.drives.values().filter(|d| d.node == node);
            own.any(|d| l.id == Some(d.id) || l.path == d.path)
        };
        let (foreign, own): (Vec<_>, Vec<_>) = all.partition(|l| l.fabric.is_some());
        // What a listed drive lacks is said of that drive.
        (foreign, own.into_iter().filter(|l| !is_listed(l)).collect())
    }

    /// The troubles with what is not served, apart from drives that the map lists.
    pub(crate) fn left_out(&self) -> Vec<Trouble> {
        let mut troubles: Vec<Trouble> = self.foreign_nodes().map(|(n, f)| self.foreign_node(n, f)).collect();
        for node in self.map.nodes.values().filter(|n| self.members_of(n.id).any(|(_, m)| m.is_up())) {
            let (foreign, others) = self.left_out_of(node.id);
            if !foreign.is_empty() {
                troubles.push(self.foreign_drives(node, &foreign));
            }
            if !others.is_empty() {
                troubles.push(unopened(node, &others));
            }
        }
        troubles
    }

    /// Where this fabric has no drive at all, what is found is most likely the fabric that should be served.
    fn severity(&self) -> Severity {
        if self.map.drives.is_empty() { Severity::Unavailable } else { Severity::Degraded }
    }

    /// What to do where the store may be the wrong one, or else the thing that was found.
    fn advice(&self, otherwise: impl FnOnce() -> Vec<Advice>) -> Vec<Advice> {
        if !self.map.drives.is_empty() {
            return otherwise();
        }
        vec![
            Advice::plain(
                "this manager's fabric has no drive, so its store is most likely a wrong or a new one: \
                 stop it, and start \
                 it with the store of the other fabric",
            ),
            Advice::command(
                "if that store is lost, make it from the copies on the drives",
                "weft fabric recover STORE --drives DRIVE...",
            ),
        ]
    }

    fn foreign_node(&self, name: &str, fabric: FabricId) -> Trouble {
        let what =
            format!("node '{name}' belongs to fabric {fabric}, this manager serves {}", self.map.fabric);
        let mut trouble = new_trouble(TroubleKind::NodeForeign, self.severity(), what);
        trouble.node = Some(name.to_owned());
        trouble.advice = self.advice(|| {
            vec![Advice::plain(
                "name the manager of its own fabric to the node, or give it drives of this one, and \
                 restart it",
            )]
        });
        trouble
    }

    fn foreign_drives(&self, node: &Node, foreign: &[&DriveLeftOut]) -> Trouble {
        let mut by_fabric: BTreeMap<FabricId, Vec<&DriveLeftOut>> = BTreeMap::new();
        for drive in foreign {
            by_fabric.entry(drive.fabric.expect("it is of another fabric")).or_default().push(drive);
        }
        let parts = by_fabric.iter().map(|(fabric, drives)| {
            let belong = if drives.len() == 1 { "belongs" } else { "belong" };
            format!("{} {belong} to fabric {fabric}", named(drives))
        });
        let what = format!(
            "node '{}' has {} of another fabric: {}; this manager serves {}",
            node.name,
            count(foreign.len(), "drive"),
            parts.collect::<Vec<_>>().join(", "),
            self.map.fabric
        );
        let mut trouble = new_trouble(TroubleKind::DriveForeign, self.severity(), what);
        trouble.node = Some(node.name.clone());
        if let [only] = foreign {
            trouble.drive = only.id;
        }
        trouble.advice = self.advice(|| {
            let path = foreign.first().map_or("DRIVE", |d| d.path.as_str());
            vec![
                Advice::plain(format!(
                    "bring them to a node of their own fabric, take them out of the drives of node '{}', \
                     and restart it",
                    node.name
                )),
                Advice::command(
                    "if what is on them is of no use any more, make each a drive of this fabric",
                    format!("weft drive format {path} --fabric-id {} --force", self.map.fabric),
                ),
            ]
        });
        trouble
    }
}

/// A node's drives that its target could not open, and that no drive of the map stands for.
fn unopened(node: &Node, left_out: &[&DriveLeftOut]) -> Trouble {
    let reasons: Vec<&str> = left_out.iter().take(DRIVES_NAMED).map(|l| l.why.as_str()).collect();
    let more = left_out.len().saturating_sub(DRIVES_NAMED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let what = format!(
        "node '{}' has left out {}: {}{more}",
        node.name,
        count(left_out.len(), "drive"),
        reasons.join("; ")
    );
    let mut trouble = new_trouble(TroubleKind::DriveLeftOut, Severity::Warning, what);
    trouble.node = Some(node.name.clone());
    if let [only] = left_out {
        trouble.drive = only.id;
    }
    let mut hints: Vec<&str> = left_out.iter().map(|l| l.hint.as_str()).collect();
    hints.dedup();
    trouble.advice = hints.into_iter().take(DRIVES_NAMED).map(Advice::plain).collect();
    trouble.advice.push(Advice::plain(format!(
        "then restart node '{}'; a drive that it shall not have is taken out of its list of drives",
        node.name
    )));
    trouble
}

/// Drives by their short names and paths.
fn named(drives: &[&DriveLeftOut]) -> String {
    let name = |l: &&DriveLeftOut| match l.id {
        Some(id) => format!("drive {} ({})", id.short(), l.path),
        None => l.path.clone(),
    };
    let names: Vec<String> = drives.iter().take(DRIVES_NAMED).map(name).collect();
    match drives.len().saturating_sub(DRIVES_NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}
