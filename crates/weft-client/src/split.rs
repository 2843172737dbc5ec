//! A request on a volume, split into requests on objects.

use std::collections::BTreeMap;
use weft_layout::pieces;
use weft_types::limits::REQUEST_BLOCKS_MAX;
use weft_types::{BlockRange, Lba, Striping};

/// The part of a request that lies in one object, as one run of its blocks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObjectPart {
    pub(crate) object_index: u64,
    pub(crate) range: BlockRange,
    /// Where the run's blocks lie in the request, in the run's order: first block in the request, and count.
    /// With striping, one run of an object is made of several stripe units.
    pub(crate) places: Vec<(u64, u32)>,
}

/// Splits `count` blocks from `lba` at objects, and at `blocks_max` within them. Stripe units that follow
/// each other in an object are one run, however far apart they are in the request.
pub(crate) fn split(striping: &Striping, lba: Lba, count: u64, blocks_max: u32) -> Vec<ObjectPart> {
    let mut pieces = pieces(striping, lba, count).peekable();
    if let Some(whole) =
        pieces.next_if(|piece| u64::from(piece.range.count) == count && count <= u64::from(blocks_max))
    {
        // As most requests are.
        let places = vec![(whole.at, whole.range.count)];
        return vec![ObjectPart { object_index: whole.object_index, range: whole.range, places }];
    }
    let mut open: BTreeMap<u64, usize> = BTreeMap::new();
    let mut parts: Vec<ObjectPart> = Vec::new();
    for piece in pieces {
        let (mut range, mut at) = (piece.range, piece.at);
        while range.count > 0 {
            let last = open.get(&piece.object_index).map(|i| &mut parts[*i]);
            let taken = match last {
                Some(part) if part.range.end() == range.first && part.range.count < blocks_max => {
                    let taken = range.count.min(blocks_max - part.range.count);
                    part.range.count += taken;
                    part.places.push((at, taken));
                    taken
                }
                _ => {
                    let taken = range.count.min(blocks_max);
                    open.insert(piece.object_index, parts.len());
                    parts.push(ObjectPart {
                        object_index: piece.object_index,
                        range: BlockRange::new(range.first, taken),
                        places: vec![(at, taken)],
                    });
                    taken
                }
            };
            range = BlockRange::new(range.first + taken, range.count - taken);
            at += u64::from(taken);
        }
    }
    parts
}

/// Splits a request that carries data.
pub(crate) fn split_data(striping: &Striping, lba: Lba, count: u64) -> Vec<ObjectPart> {
    split(striping, lba, count, REQUEST_BLOCKS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIPING: Striping = Striping { unit_blocks: 4, width: 2, object_blocks: 64 };

    #[test]
    fn units_of_one_object_become_one_run() {
        let parts = split(&STRIPING, Lba(0), 16, 256);
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].range, BlockRange::new(0, 8));
        assert_eq!(parts[0].places, [(0, 4), (8, 4)]);
        assert_eq!(parts[1].places, [(4, 4), (12, 4)]);
    }

    #[test]
    fn every_block_is_in_exactly_one_part_and_no_part_is_too_large() {
        for (lba, count, max) in [(3, 300, 8), (0, 128, 256), (127, 2, 1), (60, 200, 5)] {
            let mut seen = vec![0; count as usize];
            for part in split(&STRIPING, Lba(lba), count, max) {
                assert!(part.range.count <= max && part.range.end() <= STRIPING.object_blocks);
                assert_eq!(part.places.iter().map(|p| p.1).sum::<u32>(), part.range.count);
                let mut block = part.range.first;
                for (at, n) in part.places {
                    for i in 0..u64::from(n) {
                        seen[(at + i) as usize] += 1;
                        let address = weft_layout::address_of(&STRIPING, part.object_index, block);
                        assert_eq!(address, Some(Lba(lba + at + i)));
                        block += 1;
                    }
                }
            }
            assert!(seen.iter().all(|n| *n == 1));
        }
    }
}
