//! Placement: which drives make a group, and which drive takes over a lost slot.
//!
//! It owns the choice, by a greedy rule that is the same on every machine. It never decides *that* a group is made
//! or a slot moved, never looks at roles or epochs, and keeps no state between calls.
//!
//! What is sought, in this order: copies on different nodes, else on different devices; as many groups
//! per drive as its share of the capacity; partners of a drive spread over all drives of other nodes, so
//! that a rebuild reads from and writes to many; the first slot, which breaks ties, in equal shares.

use crate::LayoutError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use weft_types::{BlockCount, DeviceId, Drive, DriveId, NodeId};

/// Groups that a drive of average size takes part in.
///
/// With 16, one group more or less is 6 % of a drive's load, and a lost drive is rebuilt from and onto up to 16
/// others at once, more than a network carries. With more, a drive's loss would change more epochs, and the map
/// would grow, for no gain.
pub const GROUPS_PER_DRIVE: usize = 16;

/// Fixed-point fraction bits of a drive's share of the groups; enough to order shares of any real capacities.
const SHARE_BITS: u32 = 16;

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
    fn sought(self) -> impl Iterator<Item = FailureDomain> {
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

/// How many groups of this many copies a pool with so many drives should have.
pub fn groups_wanted(drives: usize, copies: usize) -> usize {
    (drives * GROUPS_PER_DRIVE).div_ceil(copies.max(1))
}

/// The drives of `new_groups` further groups, each in slot order.
///
/// `existing` are the pool's groups with as many copies, in slot order: they count as load. The order of the
/// candidates does not matter.
///
/// # Errors
/// If there are fewer drives, with [`FailureDomain::Device`] fewer devices, or with [`FailureDomain::Node`]
/// fewer nodes, than copies; or no copies.
pub fn place(
    candidates: &[Candidate],
    existing: &[Vec<DriveId>],
    copies: usize,
    new_groups: usize,
    domain: FailureDomain,
) -> Result<Vec<Vec<DriveId>>, LayoutError> {
    let mut board = Board::new(candidates, existing, new_groups * copies);
    let drives = board.drives.len();
    let nodes = board.drives.iter().map(|c| c.node).collect::<BTreeSet<_>>().len();
    let devices = board.drives.iter().map(|c| (c.node, c.device)).collect::<BTreeSet<_>>().len();
    if copies == 0 {
        return Err(LayoutError::NoCopies);
    }
    if drives < copies {
        return Err(LayoutError::TooFewDrives { copies, drives });
    }
    if nodes < copies && domain == FailureDomain::Node {
        return Err(LayoutError::TooFewNodes { copies, nodes, drives });
    }
    if devices < copies && domain == FailureDomain::Device {
        return Err(LayoutError::TooFewDevices { copies, devices, drives });
    }
    let mut groups = Vec::with_capacity(new_groups);
    for _ in 0..new_groups {
        let mut members: Vec<usize> = Vec::with_capacity(copies);
        for _ in 0..copies {
            let pick = domain.sought().find_map(|apart| {
                let is_apart =
                    |i: &usize| members.iter().all(|m| apart.is_apart(&board.drives[*m], &board.drives[*i]));
                board.pick(&members, is_apart)
            });
            members.push(pick.expect("there are as many of the domain as copies"));
        }
        board.order_by_first(&mut members);
        board.add(&members);
        groups.push(members.iter().map(|&i| board.drives[i].drive).collect());
    }
    Ok(groups)
}

/// The best drive to take over a slot whose drive is lost: not one of the group, on a node that holds no other
/// copy, and least loaded. `None` where there is none.
///
/// `keep` are the drives of the group's other slots; `existing` the pool's groups, as load. With
/// [`FailureDomain::Device`] and [`FailureDomain::Drive`], a node that holds another copy is used where
/// there is no other, and with the latter also such a device.
pub fn replacement(
    candidates: &[Candidate],
    existing: &[Vec<DriveId>],
    keep: &[Candidate],
    lost: DriveId,
    domain: FailureDomain,
) -> Option<DriveId> {
    let board = Board::new(candidates, existing, 1);
    let members: Vec<usize> = keep.iter().filter_map(|c| board.index.get(&c.drive).copied()).collect();
    let pick = domain.sought().find_map(|apart| {
        let is_free = |i: &usize| {
            let candidate = &board.drives[*i];
            let differs = |k: &Candidate| k.drive != candidate.drive && apart.is_apart(k, candidate);
            candidate.drive != lost && keep.iter().all(differs)
        };
        board.pick(&members, is_free)
    })?;
    Some(board.drives[pick].drive)
}

/// How many blocks the drives hold at this many copies, with no two copies in one failure domain.
///
/// A domain larger than its share, say one large node among small ones, counts only as far as the others can hold
/// the further copies: it then holds one copy of everything, and the rest is counted at one copy less.
pub fn usable_blocks(candidates: &[Candidate], copies: usize, domain: FailureDomain) -> BlockCount {
    let mut domains: Vec<u128> = match domain {
        FailureDomain::Drive => candidates.iter().map(|c| u128::from(c.capacity.0)).collect(),
        FailureDomain::Device => sums(candidates, |c| (c.node, c.device)),
        FailureDomain::Node => sums(candidates, |c| c.node),
    };
    domains.sort_unstable();
    let mut copies = copies as u128;
    while copies > 0 {
        let sum: u128 = domains.iter().sum();
        match domains.last() {
            Some(&largest) if copies > 1 && largest * copies > sum => {
                domains.pop();
                copies -= 1;
            }
            _ => return BlockCount(u64::try_from(sum / copies).unwrap_or(u64::MAX)),
        }
    }
    BlockCount(0)
}

/// How many blocks the drives of each place have together.
fn sums<K: Ord>(candidates: &[Candidate], place: impl Fn(&Candidate) -> K) -> Vec<u128> {
    let mut sums: BTreeMap<K, u128> = BTreeMap::new();
    for candidate in candidates {
        *sums.entry(place(candidate)).or_default() += u128::from(candidate.capacity.0);
    }
    sums.into_values().collect()
}

/// The drives with what already lies on them.
struct Board {
    /// By id, each once, none of size 0.
    drives: Vec<Candidate>,
    index: BTreeMap<DriveId, usize>,
    /// Groups that each drive should have at the end, in fixed point with [`SHARE_BITS`].
    share: Vec<i128>,
    /// Groups that each drive has.
    groups: Vec<u64>,
    /// Groups in which each drive has the first slot.
    firsts: Vec<u64>,
    /// How often two drives, lower index first, are in one group.
    pairs: BTreeMap<(usize, usize), u64>,
}

impl Board {
    fn new(candidates: &[Candidate], existing: &[Vec<DriveId>], new_slots: usize) -> Self {
        let mut drives: Vec<Candidate> = candidates.iter().filter(|c| c.capacity.0 > 0).copied().collect();
        drives.sort_by_key(|c| c.drive);
        drives.dedup_by_key(|c| c.drive);
        let index: BTreeMap<_, _> = drives.iter().enumerate().map(|(i, c)| (c.drive, i)).collect();
        let count = drives.len();
        let mut board = Board {
            drives,
            index,
            share: Vec::new(),
            groups: vec![0; count],
            firsts: vec![0; count],
            pairs: BTreeMap::new(),
        };
        for group in existing {
            let members: Vec<usize> = group.iter().filter_map(|d| board.index.get(d).copied()).collect();
            board.add(&members);
        }
        let slots = u128::from(board.groups.iter().sum::<u64>()) + new_slots as u128;
        let total: u128 = board.drives.iter().map(|c| u128::from(c.capacity.0)).sum();
        // 64 bits of capacity, 16 of fraction and up to 40 of slots fit 128 bits.
        board.share = (board.drives.iter())
            .map(|c| ((u128::from(c.capacity.0) * (slots << SHARE_BITS)) / total) as i128)
            .collect();
        board
    }

    /// How many groups, in fixed point, the drive is short of its share.
    fn deficit(&self, drive: usize) -> i128 {
        self.share[drive] - (i128::from(self.groups[drive]) << SHARE_BITS)
    }

    /// The drive to add to the members: of those that are still short of their share, or at most one group ahead
    /// of the one furthest behind, the one that meets the members least often elsewhere, then the one furthest
    /// behind. The first member is thus always the one furthest behind.
    fn pick(&self, members: &[usize], eligible: impl Fn(&usize) -> bool) -> Option<usize> {
        let eligible: Vec<usize> =
            (0..self.drives.len()).filter(|i| !members.contains(i)).filter(|i| eligible(i)).collect();
        let furthest = eligible.iter().map(|&i| self.deficit(i)).max()?;
        let window = 1 << SHARE_BITS;
        (eligible.into_iter())
            .filter(|&i| self.deficit(i) > (furthest - window).min(0))
            .min_by_key(|&i| (self.meetings(i, members), -self.deficit(i), i))
    }

    /// How often the drive is in a group with one of the members.
    fn meetings(&self, drive: usize, members: &[usize]) -> u64 {
        members.iter().map(|&m| self.pairs.get(&(drive.min(m), drive.max(m))).copied().unwrap_or(0)).sum()
    }

    /// Puts the drive that has the first slot most seldom, for its size, first.
    fn order_by_first(&self, members: &mut [usize]) {
        members.sort_by(|&a, &b| {
            let weight =
                |x: usize, y: usize| u128::from(self.firsts[x]) * u128::from(self.drives[y].capacity.0);
            weight(a, b).cmp(&weight(b, a)).then(a.cmp(&b))
        });
    }

    /// Takes a group into account.
    fn add(&mut self, members: &[usize]) {
        if let Some(&first) = members.first() {
            self.firsts[first] += 1;
        }
        for (n, &a) in members.iter().enumerate() {
            self.groups[a] += 1;
            for &b in &members[n + 1..] {
                *self.pairs.entry((a.min(b), a.max(b))).or_default() += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(drive: u128, node: u32, capacity: u64) -> Candidate {
        let id = DriveId(drive);
        let device = DeviceId::of_drive(id);
        Candidate { drive: id, node: NodeId(node), device, capacity: BlockCount(capacity) }
    }

    /// Equal drives, `per_node` on each of `nodes`; drive `100 n + d` is on node `n`.
    fn fabric(nodes: u32, per_node: u32) -> Vec<Candidate> {
        (0..nodes)
            .flat_map(|n| (0..per_node).map(move |d| candidate(u128::from(100 * n + d), n, 1 << 20)))
            .collect()
    }

    fn node_of(candidates: &[Candidate], drive: DriveId) -> NodeId {
        candidates.iter().find(|c| c.drive == drive).expect("a placed drive is a candidate").node
    }

    fn loads(candidates: &[Candidate], groups: &[Vec<DriveId>]) -> Vec<usize> {
        candidates.iter().map(|c| groups.iter().filter(|g| g.contains(&c.drive)).count()).collect()
    }

    #[test]
    fn too_few_nodes_or_drives_are_refused_with_the_figures() {
        let two = fabric(2, 3);
        assert_eq!(
            place(&two, &[], 3, 1, FailureDomain::Node),
            Err(LayoutError::TooFewNodes { copies: 3, nodes: 2, drives: 6 })
        );
        assert_eq!(
            place(&two[..2], &[], 3, 1, FailureDomain::Drive),
            Err(LayoutError::TooFewDrives { copies: 3, drives: 2 })
        );
        assert_eq!(place(&two, &[], 0, 1, FailureDomain::Node), Err(LayoutError::NoCopies));
    }

    #[test]
    fn the_drive_domain_still_uses_every_node_first() {
        let candidates = fabric(2, 3);
        for group in place(&candidates, &[], 3, 12, FailureDomain::Drive).expect("six drives") {
            let nodes: BTreeSet<_> = group.iter().map(|&d| node_of(&candidates, d)).collect();
            assert_eq!(nodes.len(), 2, "{group:?}");
        }
    }

    /// Drives in pairs on one device, `devices` of them on each of `nodes`.
    fn fabric_of_parts(nodes: u32, devices: u32) -> Vec<Candidate> {
        let mut candidates = fabric(nodes, 2 * devices);
        for candidate in &mut candidates {
            candidate.device = DeviceId(candidate.drive.0 / 2);
        }
        candidates
    }

    #[test]
    fn copies_are_on_different_devices_where_the_domain_is_the_device() {
        let one = fabric_of_parts(1, 3);
        let device_of = |d: DriveId| one.iter().find(|c| c.drive == d).expect("a candidate").device;
        for group in place(&one, &[], 3, 16, FailureDomain::Device).expect("three devices") {
            let devices: BTreeSet<_> = group.iter().map(|d| device_of(*d)).collect();
            assert_eq!(devices.len(), 3, "{group:?}");
        }
        let too_few = LayoutError::TooFewDevices { copies: 4, devices: 3, drives: 6 };
        assert_eq!(place(&one, &[], 4, 1, FailureDomain::Device), Err(too_few));
        // A drive's copies share a device only where there is no other.
        for group in place(&one, &[], 4, 16, FailureDomain::Drive).expect("six drives") {
            let devices: BTreeSet<_> = group.iter().map(|d| device_of(*d)).collect();
            assert_eq!(devices.len(), 3, "{group:?}");
        }
        // The same name on two nodes is not one device.
        let mut two = fabric(2, 1);
        two.iter_mut().for_each(|c| c.device = DeviceId(7));
        assert!(place(&two, &[], 2, 1, FailureDomain::Device).is_ok());
    }

    #[test]
    fn a_replacement_is_on_another_device_where_the_domain_is_the_device() {
        let candidates = fabric_of_parts(1, 2);
        let lost = candidates[3].drive;
        let pick = |domain| replacement(&candidates[..3], &[], &candidates[..1], lost, domain);
        assert_eq!(pick(FailureDomain::Device), Some(candidates[2].drive));
        let pick = |domain| replacement(&candidates[..2], &[], &candidates[..1], lost, domain);
        assert_eq!(pick(FailureDomain::Device), None);
        assert_eq!(pick(FailureDomain::Drive), Some(candidates[1].drive));
    }

    #[test]
    fn what_is_usable_counts_a_device_once() {
        let mut candidates = fabric_of_parts(1, 2);
        let usable = |c: &[Candidate], domain| usable_blocks(c, 2, domain).0;
        assert_eq!(usable(&candidates, FailureDomain::Device), 2 << 20);
        // The second device has one drive: what the first has more holds no second copy.
        candidates.pop();
        assert_eq!(usable(&candidates, FailureDomain::Device), 1 << 20);
        assert_eq!(usable(&candidates, FailureDomain::Drive), 3 << 19);
    }

    #[test]
    fn partners_spread_over_all_other_nodes() {
        let candidates = fabric(6, 2);
        let groups =
            place(&candidates, &[], 2, groups_wanted(12, 2), FailureDomain::Node).expect("six nodes");
        for c in &candidates {
            let partners: BTreeSet<_> =
                groups.iter().filter(|g| g.contains(&c.drive)).flatten().filter(|&&d| d != c.drive).collect();
            assert_eq!(partners.len(), 10, "16 groups of {:?} reach all 10 drives elsewhere", c.drive);
        }
    }

    #[test]
    fn a_large_node_gets_one_copy_of_everything_and_no_more() {
        let mut candidates = fabric(3, 1);
        candidates.push(candidate(900, 9, 100 << 20));
        let groups = place(&candidates, &[], 2, 30, FailureDomain::Node).expect("four nodes");
        assert_eq!(loads(&candidates, &groups), [10, 10, 10, 30]);
    }

    #[test]
    fn groups_follow_capacity() {
        let candidates: Vec<_> =
            (0..8).map(|n| candidate(n, n as u32, if n < 4 { 100 } else { 300 })).collect();
        let groups = place(&candidates, &[], 2, 64, FailureDomain::Node).expect("eight nodes");
        for (n, load) in loads(&candidates, &groups).into_iter().enumerate() {
            let share: usize = if n < 4 { 8 } else { 24 };
            assert!(load.abs_diff(share) <= 1, "drive {n} has {load} groups, its share is {share}");
        }
    }

    #[test]
    fn new_drives_take_the_new_groups() {
        let old = fabric(3, 1);
        let existing = place(&old, &[], 2, 24, FailureDomain::Node).expect("three nodes");
        let all = fabric(6, 1);
        let new = place(&all, &existing, 2, 24, FailureDomain::Node).expect("six nodes");
        assert_eq!(loads(&all, &new), [0, 0, 0, 16, 16, 16]);
    }

    #[test]
    fn a_replacement_keeps_copies_apart_and_is_the_least_loaded() {
        let candidates = fabric(4, 2);
        let existing = vec![vec![DriveId(300), DriveId(0)]];
        let keep = [candidate(0, 0, 1), candidate(100, 1, 1)];
        let pick =
            |keep: &[Candidate], domain| replacement(&candidates, &existing, keep, DriveId(200), domain);
        assert_eq!(pick(&keep, FailureDomain::Node), Some(DriveId(201)), "300 has a group already");
        let everywhere: Vec<_> = (0..4).map(|n| candidate(u128::from(100 * n), n, 1)).collect();
        assert_eq!(pick(&everywhere, FailureDomain::Node), None);
        assert!(pick(&everywhere, FailureDomain::Drive).is_some());
        assert_eq!(replacement(&[], &[], &keep, DriveId(200), FailureDomain::Node), None);
    }

    #[test]
    fn usable_space_counts_only_what_can_be_mirrored() {
        let usable = |caps: &[u64], copies| {
            let candidates: Vec<_> = (0..).zip(caps).map(|(n, &c)| candidate(u128::from(n), n, c)).collect();
            usable_blocks(&candidates, copies, FailureDomain::Node).0
        };
        assert_eq!(usable(&[100, 100, 100], 1), 300);
        assert_eq!(usable(&[100, 100, 100], 2), 150);
        assert_eq!(usable(&[100, 100, 100], 3), 100);
        assert_eq!(usable(&[1000, 100, 100], 2), 200, "the large one mirrors both small ones");
        assert_eq!(usable(&[1000, 1000, 10], 3), 10);
        assert_eq!(usable(&[100, 100], 3), 0);
        assert_eq!(usable(&[], 1), 0);
    }

    proptest! {
        #[test]
        fn equal_drives_get_equal_shares(nodes in 3u32..9, per_node in 1u32..5, copies in 1usize..=3) {
            let candidates = fabric(nodes, per_node);
            let wanted = groups_wanted(candidates.len(), copies);
            let groups = place(&candidates, &[], copies, wanted, FailureDomain::Node).expect("enough nodes");
            let loads = loads(&candidates, &groups);
            let (least, most) = (loads.iter().min().expect("drives"), loads.iter().max().expect("drives"));
            prop_assert!(most - least <= 2, "groups per drive {loads:?}");
            let firsts: Vec<_> =
                candidates.iter().map(|c| groups.iter().filter(|g| g[0] == c.drive).count()).collect();
            let (least, most) = (firsts.iter().min().expect("drives"), firsts.iter().max().expect("drives"));
            prop_assert!(most - least <= 2, "first slots per drive {firsts:?}");
        }

        #[test]
        fn copies_are_apart_and_the_order_of_candidates_does_not_matter(
            drives in proptest::collection::vec((0u32..6, 1u64..1000), 3..24),
            copies in 1usize..=3,
            wanted in 0usize..40,
        ) {
            let mut candidates: Vec<_> =
                (0..).zip(&drives).map(|(d, &(node, capacity))| candidate(d, node, capacity)).collect();
            let nodes: BTreeSet<_> = drives.iter().map(|d| d.0).collect();
            let placed = place(&candidates, &[], copies, wanted, FailureDomain::Node);
            if nodes.len() < copies {
                prop_assert!(placed.is_err());
                return Ok(());
            }
            let groups = placed.expect("enough nodes");
            prop_assert_eq!(groups.len(), wanted);
            for group in &groups {
                let nodes: BTreeSet<_> = group.iter().map(|&d| node_of(&candidates, d)).collect();
                prop_assert_eq!(nodes.len(), copies, "{:?}", group);
            }
            candidates.reverse();
            prop_assert_eq!(place(&candidates, &[], copies, wanted, FailureDomain::Node), Ok(groups));
        }
    }
}
