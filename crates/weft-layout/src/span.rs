//! Spans: from an object to its group, and which groups a new span uses, in which order.
//!
//! It owns the look-up and the choice. It never makes groups (`placement`) and never changes a volume.

use std::collections::HashMap;
use weft_types::{DriveId, GroupId, Volume};

/// The group that holds an object of the volume, or `None` where no span covers the object.
pub fn group_of(volume: &Volume, object_index: u64) -> Option<GroupId> {
    let after = volume.spans.partition_point(|span| span.first <= object_index);
    let span = volume.spans.get(after.checked_sub(1)?)?;
    let offset = object_index - span.first;
    if offset >= span.count || span.groups.is_empty() {
        return None;
    }
    Some(span.groups[(offset % span.groups.len() as u64) as usize])
}

/// A group that a new span may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLoad {
    /// The group.
    pub id: GroupId,
    /// Its drives.
    pub drives: Vec<DriveId>,
    /// Blocks that volumes have already been promised on it.
    pub load: u64,
}

/// At most `count` of the groups for a new span, in the order of its objects.
///
/// The least loaded groups are taken, so that many small volumes fill the pool evenly. They are ordered so that
/// consecutive objects fall on different drives as far as possible: next is always the group whose drives have
/// rested longest. The order of the input does not matter.
pub fn span_groups(groups: &[GroupLoad], count: usize) -> Vec<GroupId> {
    let mut pool: Vec<&GroupLoad> = groups.iter().collect();
    pool.sort_by_key(|g| g.id);
    if count < pool.len() {
        pool = spread(pool, count, |group| group.load);
    }
    let length = pool.len();
    spread(pool, length, |_| 0).into_iter().map(|g| g.id).collect()
}

/// Takes `count` groups one by one: of the lowest rank, whose drives were taken longest ago, least loaded, first
/// in the input. The rank is the load, or the same for all.
///
/// In this order a group whose drives were not taken at all is the best of its rank, so the search ends
/// there: in a pool with many more drives than are taken it does not see the whole pool each time.
fn spread(mut pool: Vec<&GroupLoad>, count: usize, rank: fn(&GroupLoad) -> u64) -> Vec<&GroupLoad> {
    pool.sort_by_key(|group| group.load);
    let mut taken: Vec<&GroupLoad> = Vec::with_capacity(count);
    let mut last_used: HashMap<DriveId, u64> = HashMap::new();
    while taken.len() < count && !pool.is_empty() {
        let rest = |group: &GroupLoad| {
            let uses = group.drives.iter().map(|d| last_used.get(d).copied().unwrap_or(0));
            (uses.clone().max().unwrap_or(0), uses.sum::<u64>())
        };
        let lowest = rank(pool[0]);
        let mut best: Option<((u64, u64), usize)> = None;
        for (i, group) in pool.iter().enumerate().take_while(|(_, group)| rank(group) == lowest) {
            let rest = rest(group);
            if best.is_none_or(|(least, _)| rest < least) {
                best = Some((rest, i));
            }
            if rest == (0, 0) {
                break;
            }
        }
        let (_, next) = best.expect("the pool is not empty");
        let group = pool.remove(next);
        taken.push(group);
        for &drive in &group.drives {
            last_used.insert(drive, taken.len() as u64);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};
    use weft_types::{BlockCount, Generation, ObjectSpan, PoolId, VolumeId, VolumeState};

    fn volume(spans: Vec<ObjectSpan>) -> Volume {
        Volume {
            id: VolumeId(1),
            name: "v".into(),
            pool: PoolId(1),
            size: BlockCount(1),
            protection: weft_types::Protection::mirror(2),
            striping: crate::default_striping(1),
            spans,
            generation: Generation(1),
            state: VolumeState::Ready,
            thin: false,
            created_ms: 0,
            kind: weft_types::VolumeKind::Blocks,
        }
    }

    fn span(first: u64, count: u64, groups: &[u64]) -> ObjectSpan {
        ObjectSpan { first, count, groups: groups.iter().copied().map(GroupId).collect() }
    }

    fn group(id: u64, drives: &[u128], load: u64) -> GroupLoad {
        GroupLoad { id: GroupId(id), drives: drives.iter().copied().map(DriveId).collect(), load }
    }

    #[test]
    fn objects_go_round_the_groups_of_their_span() {
        let volume = volume(vec![span(0, 4, &[7, 8, 9]), span(4, 2, &[5])]);
        let got: Vec<_> = (0..7).map(|i| group_of(&volume, i).map(|g| g.0)).collect();
        assert_eq!(got, [Some(7), Some(8), Some(9), Some(7), Some(5), Some(5), None]);
        assert_eq!(group_of(&self::volume(vec![]), 0), None);
    }

    #[test]
    fn an_object_before_the_first_span_or_in_an_empty_one_has_no_group() {
        let volume = volume(vec![span(4, 2, &[5]), span(6, 2, &[])]);
        assert_eq!(group_of(&volume, 3), None);
        assert_eq!(group_of(&volume, 6), None);
    }

    #[test]
    fn neighbours_share_no_drive_where_that_is_possible() {
        let groups = [group(1, &[1, 2], 0), group(2, &[1, 3], 0), group(3, &[2, 4], 0), group(4, &[3, 4], 0)];
        let order: Vec<_> = span_groups(&groups, 4).into_iter().map(|g| g.0).collect();
        assert_eq!(order, [1, 4, 2, 3], "drives 1 2, then 3 4, then 1 3, then 2 4");
    }

    #[test]
    fn the_least_loaded_groups_are_taken() {
        let groups = [group(1, &[1], 9), group(2, &[2], 0), group(3, &[3], 5), group(4, &[4], 0)];
        let mut got = span_groups(&groups, 2);
        got.sort();
        assert_eq!(got, [GroupId(2), GroupId(4)]);
        assert_eq!(span_groups(&groups, 9).first(), Some(&GroupId(2)), "the first object is the fullest");
    }

    /// The rule of [`spread`] in one line: the best of all groups that are left, each time.
    fn spread_by_seeing_all(pool: &[GroupLoad], count: usize, rank: fn(&GroupLoad) -> u64) -> Vec<GroupId> {
        let mut pool: Vec<&GroupLoad> = pool.iter().collect();
        let (mut taken, mut last_used) = (Vec::new(), BTreeMap::<DriveId, u64>::new());
        while taken.len() < count && !pool.is_empty() {
            let uses = |g: &GroupLoad| -> Vec<u64> {
                g.drives.iter().map(|d| last_used.get(d).copied().unwrap_or(0)).collect()
            };
            let rest = |g: &GroupLoad| (uses(g).into_iter().max().unwrap_or(0), uses(g).iter().sum::<u64>());
            let best = |&i: &usize| (rank(pool[i]), rest(pool[i]), pool[i].load, i);
            let group = pool.remove((0..pool.len()).min_by_key(best).expect("the pool is not empty"));
            taken.push(group.id);
            last_used.extend(group.drives.iter().map(|d| (*d, taken.len() as u64)));
        }
        taken
    }

    proptest! {
        #[test]
        fn the_search_that_ends_early_takes_the_same_groups(
            groups in vec((btree_set(0u128..12, 1..4), 0u64..3), 0..40),
            count in 0usize..20,
        ) {
            let group = |(id, (drives, load)): (u64, &(BTreeSet<u128>, u64))| GroupLoad {
                id: GroupId(id),
                drives: drives.iter().map(|d| DriveId(*d)).collect(),
                load: *load,
            };
            let groups: Vec<GroupLoad> = (0..).zip(&groups).map(group).collect();
            for rank in [|g: &GroupLoad| g.load, |_: &GroupLoad| 0] {
                let taken = spread(groups.iter().collect(), count, rank).into_iter().map(|g| g.id);
                prop_assert_eq!(taken.collect::<Vec<_>>(), spread_by_seeing_all(&groups, count, rank));
            }
        }

        #[test]
        fn a_choice_has_no_group_twice_and_ignores_the_order_of_its_input(
            loads in proptest::collection::vec((0u64..3, 0u128..6, 0u128..6), 0..20),
            count in 0usize..25,
        ) {
            let mut groups: Vec<_> = (0..).zip(&loads).map(|(i, &(l, a, b))| group(i, &[a, b], l)).collect();
            let got = span_groups(&groups, count);
            let mut unique = got.clone();
            unique.sort();
            unique.dedup();
            prop_assert_eq!(unique.len(), count.min(groups.len()));
            groups.reverse();
            prop_assert_eq!(span_groups(&groups, count), got);
        }
    }
}
