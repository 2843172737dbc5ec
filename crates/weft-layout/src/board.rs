//! The drives of a pool with what lies on them, and the choice among them.
//!
//! It owns the greedy rule of placement: which drive is the next member of a group. It lives as long as one
//! call; the counts that it begins with are kept elsewhere.

use crate::{Candidate, FailureDomain, Loads};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use weft_types::{DriveId, NodeId};

/// Fixed-point fraction bits of a drive's share of the groups; enough to order shares of any real capacities.
const SHARE_BITS: u32 = 16;

/// Nodes that the groups of one node should reach, at most.
///
/// A node's loss is rebuilt from so many others at once. Two nodes that are down at once take groups away if
/// they are such partners, so in a large fabric most pairs should be none:
/// docs/decisions/0025-partners-of-a-node.md.
pub const PARTNER_NODES: usize = 32;

/// How many nodes are looked at, those furthest behind first, for one that is no partner yet: all partners
/// of a group's members may come first.
const OTHERS_LOOKED_AT: usize = 4 * PARTNER_NODES;

/// The drives with what already lies on them.
pub(crate) struct Board<'a> {
    /// By id, each once, none of size 0.
    drives: Vec<Candidate>,
    /// Where each drive is in `drives`.
    index: HashMap<DriveId, usize>,
    /// How many groups, in fixed point with [`SHARE_BITS`], each drive is short of its share.
    deficits: Vec<i128>,
    loads: Cow<'a, Loads>,
    /// By number.
    nodes: Vec<Node>,
    /// Each node with its drive that is furthest behind, the node furthest ahead first.
    order: BTreeSet<(i128, Reverse<usize>)>,
}

struct Node {
    id: NodeId,
    /// Its drives.
    drives: Vec<usize>,
    /// How far its drive is behind that is furthest behind.
    deficit: i128,
    /// The nodes that it shares groups with, and how many; found when it is first asked for.
    partners: OnceCell<BTreeMap<usize, u64>>,
}

impl<'a> Board<'a> {
    /// The candidates with these loads, which are to be in `new_slots` further groups in sum. The order of
    /// the candidates does not matter.
    pub(crate) fn new(candidates: &[Candidate], loads: &'a Loads, new_slots: usize) -> Board<'a> {
        let mut drives: Vec<Candidate> = candidates.iter().filter(|c| c.capacity.0 > 0).copied().collect();
        drives.sort_by_key(|c| c.drive);
        drives.dedup_by_key(|c| c.drive);
        let index = drives.iter().enumerate().map(|(i, c)| (c.drive, i)).collect();
        let groups: Vec<u64> = drives.iter().map(|c| loads.groups(c.drive)).collect();
        let slots = u128::from(groups.iter().sum::<u64>()) + new_slots as u128;
        let total: u128 = drives.iter().map(|c| u128::from(c.capacity.0)).sum();
        // 64 bits of capacity, 16 of fraction and up to 40 of slots fit 128 bits.
        let share = |c: &Candidate| ((u128::from(c.capacity.0) * (slots << SHARE_BITS)) / total) as i128;
        let deficits = drives.iter().zip(groups).map(|(c, n)| share(c) - (i128::from(n) << SHARE_BITS));
        let deficits: Vec<i128> = deficits.collect();
        let mut nodes: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        for (i, candidate) in drives.iter().enumerate() {
            nodes.entry(candidate.node).or_default().push(i);
        }
        let node = |(id, drives): (NodeId, Vec<usize>)| Node {
            id,
            deficit: furthest(&deficits, &drives),
            drives,
            partners: OnceCell::new(),
        };
        let nodes: Vec<Node> = nodes.into_iter().map(node).collect();
        let order = nodes.iter().enumerate().map(|(n, node)| (node.deficit, Reverse(n))).collect();
        let loads = Cow::Borrowed(loads);
        Board { drives, index, deficits, loads, nodes, order }
    }

    /// The candidate at this place.
    pub(crate) fn drive(&self, at: usize) -> &Candidate {
        &self.drives[at]
    }

    /// The drive to add to the members, as far from them as the domain asks, and on another node or at least
    /// another device where there is one.
    pub(crate) fn pick(&self, members: &[Candidate], domain: FailureDomain) -> Option<usize> {
        domain.sought().find_map(|apart| match apart {
            FailureDomain::Node => self.pick_of_nodes(members),
            FailureDomain::Device | FailureDomain::Drive => self.pick_of_all(members, apart),
        })
    }

    /// The best drive on a node without a member.
    ///
    /// Only drives count that are still short of their share, or at most one group ahead of the one furthest
    /// behind. The first member is the one furthest behind. For a further one, first the node is chosen: one
    /// that gives no member's node more partners than [`PARTNER_NODES`], then one with a drive that meets
    /// the members least often elsewhere, then the one that meets the members' nodes least often, then the
    /// one with the drive furthest behind.
    fn pick_of_nodes(&self, members: &[Candidate]) -> Option<usize> {
        let is_taken = |node: usize| members.iter().any(|m| m.node == self.nodes[node].id);
        let open = || self.order.iter().rev().map(|(deficit, Reverse(n))| (*deficit, *n));
        let (furthest, first) = open().find(|(_, node)| !is_taken(*node))?;
        let least = least_deficit(furthest);
        let is_open = |node: usize| !is_taken(node) && self.nodes[node].deficit > least;
        let with: Vec<usize> = members.iter().filter_map(|m| self.place_of(m.node)).collect();
        let known: BTreeSet<usize> = with.iter().flat_map(|m| self.partners(*m).keys().copied()).collect();
        let is_full = |node: &usize| self.partners(*node).len() >= PARTNER_NODES;
        let mut others =
            open().take_while(|(deficit, _)| *deficit > least).map(|(_, node)| node).take(OTHERS_LOOKED_AT);
        let new = match with.iter().any(is_full) {
            true => None,
            false => others.find(|node| !is_taken(*node) && !known.contains(node)),
        };
        let cost = |node: &usize| {
            let met = |m: &usize| self.partners(*m).get(node).copied();
            let beyond = with.iter().filter(|m| met(m).is_none() && is_full(m)).count();
            let meetings: u64 = with.iter().filter_map(met).sum();
            (beyond, self.least_met(*node, least, members), meetings, -self.nodes[*node].deficit, *node)
        };
        let reached = known.iter().copied().filter(|node| is_open(*node)).chain(new);
        let node = reached.min_by_key(cost).unwrap_or(first);
        self.best(self.open_drives(node, least), members)
    }

    /// The drives of a node with a larger deficit than this.
    fn open_drives(&self, node: usize, least: i128) -> impl Iterator<Item = usize> {
        self.nodes[node].drives.iter().copied().filter(move |i| self.deficits[*i] > least)
    }

    /// How often the drive of the node meets the members that meets them least often.
    fn least_met(&self, node: usize, least: i128, members: &[Candidate]) -> usize {
        let mut fewest = usize::MAX;
        for drive in self.open_drives(node, least) {
            fewest = fewest.min(self.meetings(drive, members));
            if fewest == 0 {
                break;
            }
        }
        fewest
    }

    /// In how many groups the drive meets the members.
    fn meetings(&self, drive: usize, members: &[Candidate]) -> usize {
        members.iter().map(|m| self.loads.meetings(m.drive, self.drives[drive].drive)).sum()
    }

    /// The best drive of all that are so far from the members.
    fn pick_of_all(&self, members: &[Candidate], apart: FailureDomain) -> Option<usize> {
        let is_apart = |i: &usize| {
            let candidate = &self.drives[*i];
            members.iter().all(|m| m.drive != candidate.drive && apart.is_apart(m, candidate))
        };
        let eligible: Vec<usize> = (0..self.drives.len()).filter(is_apart).collect();
        let least = least_deficit(eligible.iter().map(|i| self.deficits[*i]).max()?);
        self.best(eligible.into_iter().filter(|i| self.deficits[*i] > least), members)
    }

    /// The drive that meets the members least often elsewhere, then the one furthest behind.
    fn best(&self, drives: impl Iterator<Item = usize>, members: &[Candidate]) -> Option<usize> {
        drives.min_by_key(|i| (self.meetings(*i, members), -self.deficits[*i], *i))
    }

    /// Puts the drive that has the first slot most seldom, for its size, first.
    pub(crate) fn order_by_first(&self, members: &mut [Candidate]) {
        members.sort_by(|a, b| {
            let weight = |x: &Candidate, y: &Candidate| {
                u128::from(self.loads.firsts(x.drive)) * u128::from(y.capacity.0)
            };
            weight(a, b).cmp(&weight(b, a)).then(a.drive.cmp(&b.drive))
        });
    }

    /// Takes a group into account.
    pub(crate) fn add(&mut self, members: &[Candidate]) {
        let drives: Vec<DriveId> = members.iter().map(|m| m.drive).collect();
        self.loads.to_mut().add(&drives);
        let nodes: Vec<usize> = members.iter().filter_map(|m| self.place_of(m.node)).collect();
        for (drive, node) in drives.iter().zip(&nodes) {
            if let Some(drive) = self.index.get(drive) {
                self.deficits[*drive] -= 1 << SHARE_BITS;
            }
            let place = &mut self.nodes[*node];
            self.order.remove(&(place.deficit, Reverse(*node)));
            place.deficit = furthest(&self.deficits, &place.drives);
            self.order.insert((place.deficit, Reverse(*node)));
            if let Some(partners) = place.partners.get_mut() {
                for other in nodes.iter().filter(|other| *other != node) {
                    *partners.entry(*other).or_default() += 1;
                }
            }
        }
    }

    fn place_of(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&node, |n| n.id).ok()
    }

    /// The nodes that share groups with this one, each with how many.
    fn partners(&self, node: usize) -> &BTreeMap<usize, u64> {
        self.nodes[node].partners.get_or_init(|| {
            let mut partners = BTreeMap::new();
            let drives = self.nodes[node].drives.iter().map(|i| self.drives[*i].drive);
            for partner in drives.flat_map(|drive| self.loads.partners(drive)) {
                let other = self.index.get(partner).and_then(|i| self.place_of(self.drives[*i].node));
                if let Some(other) = other.filter(|other| *other != node) {
                    *partners.entry(other).or_default() += 1;
                }
            }
            partners
        })
    }
}

/// The largest deficit of these drives; a node is listed by its drives, so it has some.
fn furthest(deficits: &[i128], drives: &[usize]) -> i128 {
    drives.iter().map(|i| deficits[*i]).max().unwrap_or(i128::MIN)
}

/// The deficit that a drive must be above to be chosen, where this is the largest.
fn least_deficit(furthest: i128) -> i128 {
    (furthest - (1 << SHARE_BITS)).min(0)
}
