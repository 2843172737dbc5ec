//! Placement: which drives make a group, and which drive takes over a lost slot.
//!
//! It owns the choice, by a greedy rule that is the same on every machine. It never decides *that* a group is
//! made or a slot moved, never looks at roles or epochs, and keeps no state between calls.
//!
//! What is sought, in this order: copies on different nodes, else on different devices; as many groups
//! per drive as its share of the capacity; partners of a drive spread over all drives of other nodes, so
//! that a rebuild reads from and writes to many; the first slot, which breaks ties, in equal shares.

use crate::board::Board;
use crate::{Candidate, FailureDomain, LayoutError, Loads};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{BlockCount, DriveId};

/// Groups that a drive of average size takes part in.
///
/// With 16, one group more or less is 6 % of a drive's load, and a lost drive is rebuilt from and onto up to
/// 16 others at once, more than a network carries. With more, a drive's loss would change more epochs, and
/// the map would grow, for no gain.
pub const GROUPS_PER_DRIVE: usize = 16;

/// Groups that a drive of average size takes part in which shares its device with others.
///
/// The device is lost as a whole, and is rebuilt from and onto as many others as all of its drives have
/// groups.
pub const GROUPS_PER_PART: usize = 8;

/// How many groups of this many copies a pool with these drives should have.
pub fn groups_wanted(candidates: &[Candidate], copies: usize) -> usize {
    let mut on_device: BTreeMap<_, usize> = BTreeMap::new();
    for candidate in candidates {
        *on_device.entry((candidate.node, candidate.device)).or_default() += 1;
    }
    let places = |drives: usize| if drives == 1 { GROUPS_PER_DRIVE } else { drives * GROUPS_PER_PART };
    on_device.into_values().map(places).sum::<usize>().div_ceil(copies.max(1))
}

/// The drives of `new_groups` further groups, each in slot order.
///
/// `existing` counts the pool's groups with as many copies. The order of the candidates does not matter.
///
/// # Errors
/// If there are fewer drives, with [`FailureDomain::Device`] fewer devices, or with [`FailureDomain::Node`]
/// fewer nodes, than copies; or no copies.
pub fn place(
    candidates: &[Candidate],
    existing: &Loads,
    copies: usize,
    new_groups: usize,
    domain: FailureDomain,
) -> Result<Vec<Vec<DriveId>>, LayoutError> {
    let drives =
        candidates.iter().filter(|c| c.capacity.0 > 0).map(|c| c.drive).collect::<BTreeSet<_>>().len();
    let places = candidates.iter().filter(|c| c.capacity.0 > 0);
    let nodes = places.clone().map(|c| c.node).collect::<BTreeSet<_>>().len();
    let devices = places.map(|c| (c.node, c.device)).collect::<BTreeSet<_>>().len();
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
    let mut board = Board::new(candidates, existing, new_groups * copies);
    let mut groups = Vec::with_capacity(new_groups);
    for _ in 0..new_groups {
        let mut members: Vec<Candidate> = Vec::with_capacity(copies);
        for _ in 0..copies {
            let pick = board.pick(&members, domain).expect("there are as many of the domain as copies");
            members.push(*board.drive(pick));
        }
        board.order_by_first(&mut members);
        board.add(&members);
        groups.push(members.iter().map(|m| m.drive).collect());
    }
    Ok(groups)
}

/// The best drive to take over a slot whose drive is lost: not one of the group, on a node that holds no
/// other copy, and least loaded. `None` where there is none.
///
/// `keep` are the drives of the group's other slots; `existing` counts the pool's groups with as many
/// copies. With [`FailureDomain::Device`] and [`FailureDomain::Drive`], a node that holds another copy is
/// used where there is no other, and with the latter also such a device.
pub fn replacement(
    candidates: &[Candidate],
    existing: &Loads,
    keep: &[Candidate],
    lost: DriveId,
    domain: FailureDomain,
) -> Option<DriveId> {
    let others: Vec<Candidate> = candidates.iter().filter(|c| c.drive != lost).copied().collect();
    let board = Board::new(&others, existing, 1);
    board.pick(keep, domain).map(|pick| board.drive(pick).drive)
}

/// How many blocks the drives hold at this many copies, with no two copies in one failure domain.
///
/// A domain larger than its share, say one large node among small ones, counts only as far as the others can
/// hold the further copies: it then holds one copy of everything, and the rest is counted at one copy less.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PARTNER_NODES;
    use proptest::prelude::*;
    use weft_types::{DeviceId, NodeId};

    fn candidate(drive: u128, node: u32, capacity: u64) -> Candidate {
        let id = DriveId(drive);
        let device = DeviceId::of_drive(id);
        Candidate { drive: id, node: NodeId(node), device, capacity: BlockCount(capacity) }
    }

    fn none() -> Loads {
        Loads::default()
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
            place(&two, &none(), 3, 1, FailureDomain::Node),
            Err(LayoutError::TooFewNodes { copies: 3, nodes: 2, drives: 6 })
        );
        assert_eq!(
            place(&two[..2], &none(), 3, 1, FailureDomain::Drive),
            Err(LayoutError::TooFewDrives { copies: 3, drives: 2 })
        );
        assert_eq!(place(&two, &none(), 0, 1, FailureDomain::Node), Err(LayoutError::NoCopies));
    }

    #[test]
    fn the_drive_domain_still_uses_every_node_first() {
        let candidates = fabric(2, 3);
        for group in place(&candidates, &none(), 3, 12, FailureDomain::Drive).expect("six drives") {
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
        for group in place(&one, &none(), 3, 16, FailureDomain::Device).expect("three devices") {
            let devices: BTreeSet<_> = group.iter().map(|d| device_of(*d)).collect();
            assert_eq!(devices.len(), 3, "{group:?}");
        }
        let too_few = LayoutError::TooFewDevices { copies: 4, devices: 3, drives: 6 };
        assert_eq!(place(&one, &none(), 4, 1, FailureDomain::Device), Err(too_few));
        // A drive's copies share a device only where there is no other.
        for group in place(&one, &none(), 4, 16, FailureDomain::Drive).expect("six drives") {
            let devices: BTreeSet<_> = group.iter().map(|d| device_of(*d)).collect();
            assert_eq!(devices.len(), 3, "{group:?}");
        }
        // The same name on two nodes is not one device.
        let mut two = fabric(2, 1);
        two.iter_mut().for_each(|c| c.device = DeviceId(7));
        assert!(place(&two, &none(), 2, 1, FailureDomain::Device).is_ok());
    }

    #[test]
    fn a_replacement_is_on_another_device_where_the_domain_is_the_device() {
        let candidates = fabric_of_parts(1, 2);
        let lost = candidates[3].drive;
        let pick = |domain| replacement(&candidates[..3], &none(), &candidates[..1], lost, domain);
        assert_eq!(pick(FailureDomain::Device), Some(candidates[2].drive));
        let pick = |domain| replacement(&candidates[..2], &none(), &candidates[..1], lost, domain);
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
        let groups = place(&candidates, &none(), 2, groups_wanted(&candidates, 2), FailureDomain::Node)
            .expect("six nodes");
        for c in &candidates {
            let partners: BTreeSet<_> =
                groups.iter().filter(|g| g.contains(&c.drive)).flatten().filter(|&&d| d != c.drive).collect();
            assert_eq!(partners.len(), 10, "16 groups of {:?} reach all 10 drives elsewhere", c.drive);
        }
    }

    /// The nodes that groups of this node reach.
    fn partner_nodes(candidates: &[Candidate], groups: &[Vec<DriveId>], node: NodeId) -> BTreeSet<NodeId> {
        let nodes = groups.iter().map(|g| g.iter().map(|d| node_of(candidates, *d)).collect::<BTreeSet<_>>());
        let mut partners: BTreeSet<NodeId> = nodes.filter(|nodes| nodes.contains(&node)).flatten().collect();
        partners.remove(&node);
        partners
    }

    #[test]
    fn a_node_has_all_others_as_partners_or_as_many_as_it_may() {
        for (nodes, per_node, copies) in [(12, 4, 2), (12, 4, 3), (60, 6, 2), (60, 6, 3)] {
            let candidates = fabric(nodes, per_node);
            let wanted = groups_wanted(&candidates, copies);
            let groups =
                place(&candidates, &none(), copies, wanted, FailureDomain::Node).expect("many nodes");
            for node in 0..nodes {
                let partners = partner_nodes(&candidates, &groups, NodeId(node)).len();
                let least = (nodes as usize - 1).min(PARTNER_NODES);
                let expected = least..2 * PARTNER_NODES;
                assert!(
                    expected.contains(&partners),
                    "{partners} of {nodes} nodes, {copies} copies, n{node}"
                );
            }
        }
    }

    #[test]
    fn a_large_node_gets_one_copy_of_everything_and_no_more() {
        let mut candidates = fabric(3, 1);
        candidates.push(candidate(900, 9, 100 << 20));
        let groups = place(&candidates, &none(), 2, 30, FailureDomain::Node).expect("four nodes");
        assert_eq!(loads(&candidates, &groups), [10, 10, 10, 30]);
    }

    #[test]
    fn groups_follow_capacity() {
        let candidates: Vec<_> =
            (0..8).map(|n| candidate(n, n as u32, if n < 4 { 100 } else { 300 })).collect();
        let groups = place(&candidates, &none(), 2, 64, FailureDomain::Node).expect("eight nodes");
        for (n, load) in loads(&candidates, &groups).into_iter().enumerate() {
            let share: usize = if n < 4 { 8 } else { 24 };
            assert!(load.abs_diff(share) <= 1, "drive {n} has {load} groups, its share is {share}");
        }
    }

    #[test]
    fn new_drives_take_the_new_groups() {
        let old = fabric(3, 1);
        let existing = place(&old, &none(), 2, 24, FailureDomain::Node).expect("three nodes");
        let all = fabric(6, 1);
        let new = place(&all, &Loads::of(&existing), 2, 24, FailureDomain::Node).expect("six nodes");
        assert_eq!(loads(&all, &new), [0, 0, 0, 16, 16, 16]);
    }

    #[test]
    fn a_replacement_keeps_copies_apart_and_is_the_least_loaded() {
        let candidates = fabric(4, 2);
        let existing = Loads::of([[DriveId(300), DriveId(0)]]);
        let keep = [candidate(0, 0, 1), candidate(100, 1, 1)];
        let pick =
            |keep: &[Candidate], domain| replacement(&candidates, &existing, keep, DriveId(200), domain);
        assert_eq!(pick(&keep, FailureDomain::Node), Some(DriveId(201)), "300 has a group already");
        let everywhere: Vec<_> = (0..4).map(|n| candidate(u128::from(100 * n), n, 1)).collect();
        assert_eq!(pick(&everywhere, FailureDomain::Node), None);
        assert!(pick(&everywhere, FailureDomain::Drive).is_some());
        assert_eq!(replacement(&[], &none(), &keep, DriveId(200), FailureDomain::Node), None);
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
            let wanted = groups_wanted(&candidates, copies);
            let groups = place(&candidates, &none(), copies, wanted, FailureDomain::Node).expect("enough nodes");
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
            let placed = place(&candidates, &none(), copies, wanted, FailureDomain::Node);
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
            prop_assert_eq!(place(&candidates, &none(), copies, wanted, FailureDomain::Node), Ok(groups));
        }
    }
}
