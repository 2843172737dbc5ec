//! How placement spreads the groups of an empty pool, and how long it takes.
//!
//! The groups of the map that is measured are not placed but made in a pattern; these are counted, and
//! dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use weft_cli::CliError;
use weft_layout::{Candidate, FailureDomain, Loads, groups_wanted, place};
use weft_types::{DriveId, FabricMap, NodeId, Protection};

/// What came of it. Counts are medians over the nodes.
pub(super) struct Placed {
    /// How long it took.
    pub(super) took: Duration,
    /// The nodes that a node shares groups with.
    pub(super) partner_nodes: usize,
    /// The drives of other nodes that the drives of a node share groups with.
    pub(super) partner_drives: usize,
}

impl Placed {
    /// Places as many groups as the drives of the map should have.
    pub(super) fn measure(map: &FabricMap, protection: Protection) -> Result<Placed, CliError> {
        let candidates: Vec<Candidate> = map.drives.values().map(Candidate::of).collect();
        let copies = protection.members();
        let wanted = groups_wanted(&candidates, copies);
        let began = Instant::now();
        let placed = place(&candidates, Loads::NONE, copies, wanted, FailureDomain::Node);
        let took = began.elapsed();
        let groups = placed.map_err(|error| CliError::Failed {
            message: format!("no groups can be placed: {error}"),
            hint: "give at least as many --nodes as --copies".into(),
        })?;
        let mut partners: BTreeMap<NodeId, BTreeSet<(NodeId, DriveId)>> = BTreeMap::new();
        for group in &groups {
            let places =
                || group.iter().filter_map(|id| map.drives.get(id)).map(|drive| (drive.node, drive.id));
            for (node, _) in places() {
                partners.entry(node).or_default().extend(places().filter(|(other, _)| *other != node));
            }
        }
        let nodes = |of: &BTreeSet<(NodeId, DriveId)>| of.iter().map(|p| p.0).collect::<BTreeSet<_>>().len();
        let partner_nodes = median(partners.values().map(nodes).collect());
        let partner_drives = median(partners.values().map(BTreeSet::len).collect());
        Ok(Placed { took, partner_nodes, partner_drives })
    }
}

fn median(mut counts: Vec<usize>) -> usize {
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied().unwrap_or(0)
}
