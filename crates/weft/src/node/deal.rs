//! Which thread of a node serves which drives, and on which cores it may run.
//!
//! It owns these two decisions, which are made before any drive is opened. They are functions of what is
//! there: they read nothing and open nothing.

use super::devices::Listed;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The cores that this process may use, by the NUMA node that they are on.
pub(super) type NumaCores = BTreeMap<u32, Vec<usize>>;

/// What a thread has been dealt.
#[derive(Clone, Debug, Default)]
pub(super) struct Share {
    /// The NUMA node that its devices are on; none if they are on several, or nothing is known or won by it.
    pub(super) near: Option<u32>,
    pub(super) drives: Vec<Listed>,
    bytes: u64,
}

/// Deals drives to so many threads: first to those of the NUMA node that the drive's device is on, where the
/// process may use cores of several; then the largest first, each to the thread that has least. Of threads
/// that have about as little, one takes it that has the fewest parts of its device: so the parts of a device
/// are on several threads, as far as that is balanced. A drive whose size is not known counts for nothing: it
/// will most likely not open.
pub(super) fn deal(drives: &[Listed], threads: usize, cores: &NumaCores) -> Vec<Share> {
    let near = |drive: &Listed| drive.near.filter(|near| cores.len() > 1 && cores.contains_key(near));
    let mut shares = seats(drives.iter().map(|drive| (near(drive), drive.bytes)), threads);
    let knows_nodes = shares.iter().any(|share| share.near.is_some());
    let mut sorted: Vec<&Listed> = drives.iter().collect();
    sorted.sort_by_key(|drive| Reverse(drive.bytes));
    for drive in sorted {
        let wanted = near(drive).filter(|_| knows_nodes);
        let may = |share: &Share| wanted.is_none() || share.near == wanted;
        let least = shares.iter().filter(|share| may(share)).map(|share| share.bytes).min().unwrap_or(0);
        let siblings = |share: &Share| match drive.device() {
            Some(device) => share.drives.iter().filter(|other| other.device() == Some(device)).count(),
            None => 0,
        };
        let fair = shares.iter_mut().filter(|share| may(share) && share.bytes <= least + drive.bytes / 2);
        let taker =
            fair.min_by_key(|share| (siblings(share), share.bytes, share.drives.len(), share.near.is_some()));
        let share = taker.expect("there is a thread that has least");
        share.bytes += drive.bytes;
        share.drives.push(drive.clone());
    }
    shares
}

/// Which NUMA node each thread is for: one for each with a drive, and the others where a thread would have
/// the most bytes. A node has no more threads than drives. Where there are fewer threads than nodes with
/// drives, they are for any.
fn seats(drives: impl Iterator<Item = (Option<u32>, u64)>, threads: usize) -> Vec<Share> {
    // Drives, bytes and threads of each.
    let mut nodes: BTreeMap<u32, (usize, u64, usize)> = BTreeMap::new();
    for (near, bytes) in drives {
        if let Some(near) = near {
            let (drives, sum, _) = nodes.entry(near).or_insert((0, 0, 1));
            (*drives, *sum) = (*drives + 1, *sum + bytes);
        }
    }
    if nodes.len() > threads {
        nodes.clear();
    }
    for _ in nodes.len()..threads {
        let with_room = nodes.values_mut().filter(|(drives, _, threads)| drives > threads);
        let fullest = with_room.max_by_key(|(_, bytes, threads)| bytes / *threads as u64);
        let Some((_, _, threads)) = fullest else { break };
        *threads += 1;
    }
    let near = nodes.iter().flat_map(|(node, (_, _, threads))| std::iter::repeat_n(Some(*node), *threads));
    let all = near.chain(std::iter::repeat(None)).take(threads);
    all.map(|near| Share { near, ..Share::default() }).collect()
}

/// The cores that each thread is bound to; none: the system places it. Without `pin` a thread may use all of
/// its NUMA node. With it each has one core, as long as there are enough; then they are given out once more.
pub(super) fn bind(
    shares: &[Share],
    cores: &NumaCores,
    allowed: &[usize],
    pin: bool,
) -> Vec<Option<Vec<usize>>> {
    let mut taken: Vec<usize> = Vec::new();
    let mut one_of = |own: &[usize], index: usize| {
        let free = own.iter().find(|core| !taken.contains(core)).copied();
        let core = free.or_else(|| own.get(index % own.len().max(1)).copied())?;
        taken.push(core);
        Some(vec![core])
    };
    let of_thread = |(index, share): (usize, &Share)| {
        let own = share.near.and_then(|near| cores.get(&near));
        match pin {
            true => one_of(own.map_or(allowed, |own| own), index),
            false => own.cloned(),
        }
    };
    shares.iter().enumerate().map(of_thread).collect()
}

#[cfg(test)]
mod tests {
    use super::super::devices::PartOf;
    use super::*;
    use weft_types::{DeviceId, DriveId, FabricId};

    fn names(shares: &[Share]) -> Vec<Vec<String>> {
        shares.iter().map(|share| share.drives.iter().map(|drive| drive.path.clone()).collect()).collect()
    }

    /// On a machine of one NUMA node.
    fn deal_flat(drives: &[Listed], threads: usize) -> Vec<Vec<String>> {
        let one = NumaCores::from([(0, vec![0, 1])]);
        let near = drives.iter().cloned().map(|drive| Listed { near: Some(0), ..drive });
        let shares = deal(&near.collect::<Vec<_>>(), threads, &one);
        assert!(shares.iter().all(|share| share.near.is_none()), "nothing is won by it");
        assert_eq!(names(&shares), names(&deal(drives, threads, &NumaCores::new())));
        names(&shares)
    }

    fn on(path: &str, near: u32) -> Listed {
        Listed { near: Some(near), ..Listed::alone(path) }
    }

    #[test]
    fn the_largest_drives_go_to_the_emptiest_threads() {
        let drives = ["mem:1G", "mem:4G", "mem:2G", "mem:2G", "/not/there"].map(Listed::alone);
        let dealt = deal_flat(&drives, 2);
        assert_eq!(dealt[0], ["mem:4G", "mem:1G"]);
        assert_eq!(dealt[1], ["mem:2G", "mem:2G", "/not/there"]);
        let one_each = deal_flat(&drives, 5);
        assert!(one_each.iter().all(|drives| drives.len() == 1), "{one_each:?}");
    }

    /// The parts of a device, of so many GiB each.
    fn parts(name: &str, count: usize, gib: u64) -> Vec<Listed> {
        let extent = weft_rt::Extent { start: 4096, len: gib << 30 };
        let part = |n| weft_store::Part { drive: DriveId(n as u128), extents: vec![extent] };
        let label = weft_store::DeviceLabel {
            format: 1,
            fabric: FabricId(1),
            device: DeviceId::of_name(name),
            size_bytes: 0,
            created_us: 0,
            parts: (0..count).map(part).collect(),
        };
        let listed = |index| Listed {
            path: format!("{name}#{index}"),
            bytes: gib << 30,
            near: None,
            part: Some(PartOf { path: name.to_owned(), label: label.clone(), index }),
        };
        (0..count).map(listed).collect()
    }

    #[test]
    fn parts_of_a_device_go_to_different_threads_where_that_is_balanced() {
        let two = [parts("a", 2, 8), parts("b", 2, 8)].concat();
        assert_eq!(deal_flat(&two, 2), [["a#0", "b#0"], ["a#1", "b#1"]]);
        // A little more on one thread is balanced; twice as much would not be.
        let beside = [vec![Listed::alone("mem:9G")], parts("a", 2, 8)].concat();
        assert_eq!(deal_flat(&beside, 2), [vec!["mem:9G", "a#1"], vec!["a#0"]]);
        let large = [vec![Listed::alone("mem:64G")], parts("a", 2, 8)].concat();
        assert_eq!(deal_flat(&large, 2), [vec!["mem:64G"], vec!["a#0", "a#1"]]);
        let uneven = deal_flat(&parts("a", 4, 8), 3).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(uneven, [2, 1, 1]);
    }

    #[test]
    fn threads_have_the_drives_and_the_cores_of_one_numa_node() {
        let cores = NumaCores::from([(0, vec![0, 1, 2]), (1, vec![3, 4, 5])]);
        let drives = [on("mem:4G", 1), on("mem:3G", 0), on("mem:2G", 1), on("mem:1G", 0)];
        let two = deal(&drives, 2, &cores);
        assert_eq!(names(&two), [["mem:3G", "mem:1G"], ["mem:4G", "mem:2G"]]);
        assert_eq!(two.iter().map(|share| share.near).collect::<Vec<_>>(), [Some(0), Some(1)]);
        let allowed: Vec<usize> = (0..6).collect();
        assert_eq!(bind(&two, &cores, &allowed, false), [Some(vec![0, 1, 2]), Some(vec![3, 4, 5])]);
        assert_eq!(bind(&two, &cores, &allowed, true), [Some(vec![0]), Some(vec![3])]);
        // The third goes where a thread would have most.
        let three = deal(&drives, 3, &cores);
        assert_eq!(names(&three), [vec!["mem:3G", "mem:1G"], vec!["mem:4G"], vec!["mem:2G"]]);
        assert_eq!(bind(&three, &cores, &allowed, true), [Some(vec![0]), Some(vec![3]), Some(vec![4])]);
        // One thread has all of them, and is bound to none.
        let one = deal(&drives, 1, &cores);
        assert!(
            one[0].near.is_none()
                && one[0].drives.len() == 4
                && bind(&one, &cores, &allowed, false) == [None]
        );
    }

    #[test]
    fn drives_of_no_numa_node_fill_up_the_emptiest_and_each_thread_has_one() {
        let cores = NumaCores::from([(0, vec![0]), (1, vec![1])]);
        // No core of node 7 may be used, so its drive may be anywhere.
        let drives = [
            on("mem:8G", 0),
            on("mem:2G", 1),
            Listed::alone("mem:4G"),
            on("mem:5G", 7),
            Listed::alone("/none"),
        ];
        for threads in 1..=5 {
            let shares = deal(&drives, threads, &cores);
            assert!(shares.iter().all(|share| !share.drives.is_empty()), "{:?}", names(&shares));
            assert_eq!(shares.iter().map(|share| share.drives.len()).sum::<usize>(), 5);
        }
        let two = names(&deal(&drives, 2, &cores));
        assert_eq!(two, [vec!["mem:8G", "/none"], vec!["mem:5G", "mem:4G", "mem:2G"]]);
        let five = deal(&drives, 5, &cores);
        assert_eq!(five.iter().filter(|share| share.near.is_some()).count(), 2);
    }

    #[test]
    fn a_pinned_thread_has_a_core_of_its_own_as_long_as_there_are_some() {
        let shares = vec![Share::default(); 3];
        let one = NumaCores::from([(0, vec![2, 5])]);
        assert_eq!(bind(&shares, &one, &[2, 5], true), [Some(vec![2]), Some(vec![5]), Some(vec![2])]);
        assert_eq!(bind(&shares, &one, &[2, 5], false), [None, None, None]);
        assert_eq!(bind(&shares[..1], &NumaCores::new(), &[], true), [None]);
    }
}
