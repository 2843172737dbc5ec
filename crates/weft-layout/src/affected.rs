//! Which addresses of a volume lie in some of its groups: for people who ask what a loss means.
//!
//! It owns the arithmetic. It never judges whether a group is well.

use crate::span::group_of;
use crate::stripe::pieces;
use weft_types::{BlockCount, GroupId, Lba, Striping, Volume};

/// How many blocks of a volume lie in groups of which this is so.
///
/// # Panics
/// If the striping is invalid, or the spans do not cover the size: both are checked before they enter a map.
pub fn blocks_in(volume: &Volume, is_affected: impl Fn(GroupId) -> bool) -> BlockCount {
    let (striping, size) = (&volume.striping, volume.size);
    let (width, object) = (u64::from(striping.width), u64::from(striping.object_blocks));
    // All rows but the last are full, and the last one is counted object by object.
    let rows = size.0.div_ceil(width * object);
    let full_objects = rows.saturating_sub(1) * width;
    let mut blocks = 0;
    for span in &volume.spans {
        let full = span.count.min(full_objects.saturating_sub(span.first));
        let groups = span.groups.len() as u64;
        for (i, _) in (0..).zip(&span.groups).filter(|(_, g)| is_affected(**g)) {
            blocks += (full / groups + u64::from(i < full % groups)) * object;
        }
    }
    for column in 0..if rows > 0 { width } else { 0 } {
        let index = full_objects + column;
        if group_of(volume, index).is_some_and(&is_affected) {
            blocks += blocks_of_last_row(striping, size, column);
        }
    }
    BlockCount(blocks)
}

/// How many blocks of the last row lie in its object of this column.
fn blocks_of_last_row(striping: &Striping, size: BlockCount, column: u64) -> u64 {
    let (width, object) = (u64::from(striping.width), u64::from(striping.object_blocks));
    let unit = u64::from(striping.unit_blocks);
    let in_row = match size.0 % (width * object) {
        0 if size.0 > 0 => width * object,
        part => part,
    };
    let (lines, rest) = (in_row / (unit * width), in_row % (unit * width));
    lines * unit + rest.saturating_sub(column * unit).min(unit)
}

/// The first runs of addresses, from the beginning of a row on, that lie in groups of which this is so, in order and
/// apart from each other; and whether there are more.
///
/// However large the volume is: rows of a span in whose groups it is so everywhere, or nowhere, are one step, and among
/// the others a run ends at least once in as many rows as the span has groups.
///
/// # Panics
/// As [`blocks_in`].
pub fn ranges_in(
    volume: &Volume,
    from: Lba,
    is_affected: impl Fn(GroupId) -> bool,
    most: usize,
) -> (Vec<(Lba, BlockCount)>, bool) {
    let (striping, size) = (&volume.striping, volume.size);
    let (width, object) = (u64::from(striping.width), u64::from(striping.object_blocks));
    let row_blocks = width * object;
    let mut runs: Vec<(Lba, BlockCount)> = Vec::new();
    let mut add = |first: u64, count: u64| {
        if let Some((start, length)) = runs.last_mut()
            && start.0 + length.0 == first
        {
            length.0 += count;
            return true;
        }
        if runs.len() < most {
            runs.push((Lba(first), BlockCount(count)));
            return true;
        }
        false
    };
    let in_group = |index: u64| group_of(volume, index).is_some_and(&is_affected);
    let mut row = from.0.div_ceil(row_blocks);
    while row < size.0.div_ceil(row_blocks) {
        let first = row * row_blocks;
        let uniform = uniform_rows(volume, row, &is_affected);
        let next = uniform.map_or(row + 1, |(end, _)| end);
        let has_room = match uniform {
            Some((_, false)) => true,
            Some((end, true)) => add(first, end.saturating_mul(row_blocks).min(size.0) - first),
            None => {
                let count = row_blocks.min(size.0 - first);
                let hit: Vec<bool> = (row * width..(row + 1) * width).map(in_group).collect();
                let in_hit = |index: u64| hit[(index % width) as usize];
                let mut parts = pieces(striping, Lba(first), count).filter(|p| in_hit(p.object_index));
                parts.all(|piece| add(first + piece.at, u64::from(piece.range.count)))
            }
        };
        if !has_room {
            return (runs, true);
        }
        row = next;
    }
    (runs, false)
}

/// Where the rows of one span end, from this row on, if it is so in all of its groups, or in none; and which.
fn uniform_rows(volume: &Volume, row: u64, is_affected: impl Fn(GroupId) -> bool) -> Option<(u64, bool)> {
    let width = u64::from(volume.striping.width);
    let after = volume.spans.partition_point(|span| span.first <= row * width);
    let span = volume.spans.get(after.checked_sub(1)?)?;
    let end = (span.first + span.count) / width;
    let hits = span.groups.iter().filter(|g| is_affected(**g)).count();
    let is_uniform = hits == 0 || hits == span.groups.len();
    (end > row && is_uniform).then_some((end, hits > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_types::{Generation, ObjectSpan, PoolId, SpanGroups, VolumeId, VolumeState};

    fn shape() -> impl Strategy<Value = Volume> {
        (0u32..=3, 1u32..=4, 0u32..=2, 1u64..200, 1usize..=5, 1usize..=5, 0u64..4).prop_map(
            |(object, width, unit, size, first, second, cut)| {
                let striping =
                    Striping { unit_blocks: 1 << unit.min(object), width, object_blocks: 1 << object };
                let all = crate::objects_for(&striping, BlockCount(size));
                let cut = (cut * u64::from(width)).min(all);
                let groups = |n: usize, from: u64| (0..n as u64).map(|i| GroupId(from + i)).collect();
                let spans = [
                    ObjectSpan { first: 0, count: cut, groups: groups(first, 0) },
                    ObjectSpan { first: cut, count: all - cut, groups: groups(second, 2) },
                ];
                let spans = spans.into_iter().filter(|s| s.count > 0).collect();
                Volume {
                    id: VolumeId(1),
                    name: "v".into(),
                    pool: PoolId(1),
                    size: BlockCount(size),
                    protection: weft_types::Protection::mirror(2),
                    striping,
                    spans,
                    generation: Generation(1),
                    state: VolumeState::Ready,
                    thin: false,
                    created_ms: 0,
                    kind: weft_types::VolumeKind::Blocks,
                }
            },
        )
    }

    proptest! {
        /// Block by block, the slow way, it is the same.
        #[test]
        fn what_is_counted_and_named_is_what_lies_there(volume in shape()) {
            let is_affected = |g: GroupId| g.0 % 3 == 1;
            let slow: Vec<u64> = (0..volume.size.0)
                .filter(|lba| {
                    let piece = pieces(&volume.striping, Lba(*lba), 1).next().expect("one block is one piece");
                    is_affected(group_of(&volume, piece.object_index).expect("it is covered"))
                })
                .collect();
            prop_assert_eq!(blocks_in(&volume, is_affected).0, slow.len() as u64);
            let (runs, more) = ranges_in(&volume, Lba(0), is_affected, usize::MAX);
            let named: Vec<u64> = runs.iter().flat_map(|(a, n)| a.0..a.0 + n.0).collect();
            prop_assert_eq!(&named, &slow);
            prop_assert!(!more);
            prop_assert!(runs.windows(2).all(|w| w[0].0.0 + w[0].1.0 < w[1].0.0), "apart: {:?}", runs);
            let (few, more) = ranges_in(&volume, Lba(0), is_affected, 2);
            prop_assert_eq!(&few[..], &runs[..runs.len().min(2)]);
            prop_assert_eq!(more, runs.len() > 2);
            let row = u64::from(volume.striping.width) * u64::from(volume.striping.object_blocks);
            let (behind, _) = ranges_in(&volume, Lba(row), is_affected, usize::MAX);
            let named: Vec<u64> = behind.iter().flat_map(|(a, n)| a.0..a.0 + n.0).collect();
            let slow: Vec<u64> = slow.into_iter().filter(|lba| *lba >= row).collect();
            prop_assert_eq!(named, slow);
        }
    }

    /// Row by row, this would not end in a lifetime.
    #[test]
    fn the_largest_volume_is_looked_at_in_a_few_steps() {
        let striping = crate::default_striping(300);
        let size = BlockCount(1 << 51);
        let all = crate::objects_for(&striping, size);
        let cut = all / 2 / u64::from(striping.width) * u64::from(striping.width);
        let groups = |from: u64| (from..from + 256).map(GroupId).collect::<SpanGroups>();
        let volume = Volume {
            id: VolumeId(1),
            name: "v".into(),
            pool: PoolId(1),
            size,
            protection: weft_types::Protection::mirror(2),
            striping,
            spans: vec![
                ObjectSpan { first: 0, count: cut, groups: groups(0) },
                ObjectSpan { first: cut, count: all - cut, groups: groups(1000) },
            ],
            generation: Generation(1),
            state: VolumeState::Ready,
            thin: true,
            created_ms: 0,
            kind: weft_types::VolumeKind::Blocks,
        };
        let whole = (vec![(Lba(0), size)], false);
        assert_eq!(ranges_in(&volume, Lba(0), |_| true, 8), whole);
        assert_eq!(ranges_in(&volume, Lba(0), |_| false, 8), (vec![], false));
        let (half, more) = ranges_in(&volume, Lba(0), |g| g.0 >= 1000, 8);
        assert_eq!((half.len(), more), (1, false), "{half:?}");
        assert_eq!(half[0].1, blocks_in(&volume, |g| g.0 >= 1000));
        for last in [255, 1255] {
            let (few, more) = ranges_in(&volume, Lba(0), |g| g == GroupId(last), 256);
            assert_eq!((few.len(), more), (256, true));
        }
    }
}
