//! Striping arithmetic: a volume's addresses to runs of blocks in objects, and back.
//!
//! It owns the formula and its checks. It never looks at a volume's size or state: callers do that first.
//!
//! A row is `width` objects. Inside a row, units go to its objects in turn; `unit` 2, `width` 3, `object` 4:
//!
//! ```text
//!            object 0   object 1   object 2      object 3   object 4   object 5
//! unit 0, 1   0  1       2  3       4  5          12 13      14 15      16 17
//! unit 3, 4   6  7       8  9      10 11          18 19      20 21      22 23
//!            \------------ row 0 ------------/   \------------ row 1 ------------/
//! ```

use crate::LayoutError;
use weft_types::limits::{OBJECT_BLOCKS_MAX, REQUEST_BLOCKS_MAX, STRIPE_WIDTH_MAX};
use weft_types::{BlockCount, BlockRange, Lba, Striping};

/// Columns of a default stripe. Four objects keep eight drives of a two-way mirror busy with one sequential
/// stream, more than a network of 25 Gbit/s can carry; random access spreads over all groups without any stripe.
const DEFAULT_WIDTH: u32 = 4;

/// Blocks of a default stripe unit, 256 KiB: the largest request is cut into one piece for each of the
/// [`DEFAULT_WIDTH`] columns. A smaller unit would give the same parallelism for more messages; a larger one
/// would leave columns idle.
const DEFAULT_UNIT_BLOCKS: u32 = REQUEST_BLOCKS_MAX / DEFAULT_WIDTH;

/// A part of a request that lies in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The object's number inside the volume.
    pub object_index: u64,
    /// The blocks inside the object.
    pub range: BlockRange,
    /// Where the piece begins inside the request, in blocks.
    pub at: u64,
}

/// Checks a striping against the rules in [`Striping`]; every other function here relies on them.
///
/// # Errors
/// The first of width, object and unit that breaks its rule.
pub fn validate(striping: &Striping) -> Result<(), LayoutError> {
    let Striping { unit_blocks, width, object_blocks } = *striping;
    if width == 0 || width > STRIPE_WIDTH_MAX {
        return Err(LayoutError::Width { width });
    }
    if !object_blocks.is_power_of_two() || object_blocks > OBJECT_BLOCKS_MAX {
        return Err(LayoutError::Object { object_blocks });
    }
    // Of two powers of two, the smaller one divides the larger one.
    if !unit_blocks.is_power_of_two() || unit_blocks > object_blocks {
        return Err(LayoutError::Unit { unit_blocks, object_blocks });
    }
    Ok(())
}

/// The striping of a volume whose owner named none, over a pool with this many groups.
///
/// Objects are of the largest size, so that a large volume has few; sparse objects cost nothing where empty.
pub fn default_striping(groups: usize) -> Striping {
    let width = u32::try_from(groups).unwrap_or(u32::MAX).clamp(1, DEFAULT_WIDTH);
    Striping { unit_blocks: DEFAULT_UNIT_BLOCKS, width, object_blocks: OBJECT_BLOCKS_MAX }
}

/// The parts of a request of `count` blocks from `lba`, in order of address.
///
/// Neighbours are merged where they are adjacent inside one object, so a striping of width 1 gives one piece per
/// object, and a wider one a piece per unit. Together the pieces cover the request exactly; none is empty.
///
/// # Panics
/// If the striping is invalid (see [`validate`]) or the request passes the end of 64-bit addresses; callers have
/// checked the request against the volume's size.
pub fn pieces(striping: &Striping, lba: Lba, count: u64) -> impl Iterator<Item = Piece> + use<> {
    assert_eq!(validate(striping), Ok(()), "a striping is validated before it enters the map");
    assert!(lba.0.checked_add(count).is_some(), "a request ends within 64-bit addresses");
    let striping = *striping;
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = count - at;
        if left == 0 {
            return None;
        }
        let (object_index, block, run) = locate(&striping, Lba(lba.0 + at));
        let length = left.min(u64::from(run)) as u32;
        let piece = Piece { object_index, range: BlockRange::new(block, length), at };
        at += u64::from(length);
        Some(piece)
    })
}

/// The object that holds an address, the block inside it, and how many blocks from there on are adjacent in the
/// object as in the volume.
fn locate(striping: &Striping, lba: Lba) -> (u64, u32, u32) {
    let unit = u64::from(striping.unit_blocks);
    let width = u64::from(striping.width);
    let object = u64::from(striping.object_blocks);
    let (row, in_row) = (lba.0 / (width * object), lba.0 % (width * object));
    let (unit_number, in_unit) = (in_row / unit, in_row % unit);
    let (line, column) = (unit_number / width, unit_number % width);
    let block = line * unit + in_unit;
    let run = if width == 1 { object - block } else { unit - in_unit };
    // Both are at most the object's size, which has 32 bits.
    (row * width + column, block as u32, run as u32)
}

/// The address of a block of an object: the inverse of what [`pieces`] does. `None` where the block lies outside
/// of the object, or the address past 64 bits.
///
/// # Panics
/// If the striping is invalid (see [`validate`]).
pub fn address_of(striping: &Striping, object_index: u64, block: u32) -> Option<Lba> {
    assert_eq!(validate(striping), Ok(()), "a striping is validated before it enters the map");
    if block >= striping.object_blocks {
        return None;
    }
    let unit = u64::from(striping.unit_blocks);
    let width = u64::from(striping.width);
    let object = u64::from(striping.object_blocks);
    let (row, column) = (object_index / width, object_index % width);
    let (line, in_unit) = (u64::from(block) / unit, u64::from(block) % unit);
    let in_row = (line * width + column) * unit + in_unit;
    row.checked_mul(width * object)?.checked_add(in_row).map(Lba)
}

/// How many blocks of an object have an address below this one.
///
/// # Panics
/// If the striping is invalid (see [`validate`]).
pub fn blocks_below(striping: &Striping, object_index: u64, end: Lba) -> u32 {
    assert_eq!(validate(striping), Ok(()), "a striping is validated before it enters the map");
    let unit = u64::from(striping.unit_blocks);
    let width = u64::from(striping.width);
    let object = u64::from(striping.object_blocks);
    let (row, column) = (object_index / width, object_index % width);
    let in_row = end.0.saturating_sub(row.saturating_mul(width * object)).min(width * object);
    let (lines, rest) = (in_row / (width * unit), in_row % (width * unit));
    let in_line = rest.saturating_sub(column * unit).min(unit);
    // At most the object's size, which has 32 bits.
    (lines * unit + in_line) as u32
}

/// How many objects cover a volume of this size: always whole rows, a multiple of the width.
///
/// Already the second unit of a row lies in its second object, so that a row's objects are needed almost at once;
/// taking them together keeps the place of every object independent of the size, so that growing inside the last
/// row moves nothing. An object without blocks occupies nothing.
///
/// # Panics
/// If the striping is invalid (see [`validate`]).
pub fn objects_for(striping: &Striping, size: BlockCount) -> u64 {
    assert_eq!(validate(striping), Ok(()), "a striping is validated before it enters the map");
    let row_blocks = u64::from(striping.width) * u64::from(striping.object_blocks);
    // Cannot overflow: with one-block objects, the rows' objects are at most the size rounded up to the width,
    // and a size near 64 bits is beyond what any volume has (see the limit on volumes in `weft-membership`).
    size.0.div_ceil(row_blocks).saturating_mul(u64::from(striping.width))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn striping() -> impl Strategy<Value = Striping> {
        (0u32..=14, 1u32..=STRIPE_WIDTH_MAX)
            .prop_flat_map(|(object, width)| (0..=object, Just(object), Just(width)))
            .prop_map(|(unit, object, width)| Striping {
                unit_blocks: 1 << unit,
                width,
                object_blocks: 1 << object,
            })
    }

    #[test]
    fn the_picture_above_holds() {
        let striping = Striping { unit_blocks: 2, width: 3, object_blocks: 4 };
        let got: Vec<_> = pieces(&striping, Lba(5), 9).collect();
        let piece =
            |object_index, first, count, at| Piece { object_index, range: BlockRange::new(first, count), at };
        let want =
            [piece(2, 1, 1, 0), piece(0, 2, 2, 1), piece(1, 2, 2, 3), piece(2, 2, 2, 5), piece(3, 0, 2, 7)];
        assert_eq!(got, want);
    }

    #[test]
    fn concatenation_gives_one_piece_per_object() {
        let striping = Striping { unit_blocks: 2, width: 1, object_blocks: 8 };
        let got: Vec<_> = pieces(&striping, Lba(6), 12).map(|p| (p.object_index, p.range)).collect();
        let want = [(0, BlockRange::new(6, 2)), (1, BlockRange::new(0, 8)), (2, BlockRange::new(0, 2))];
        assert_eq!(got, want);
    }

    #[test]
    fn an_empty_request_has_no_pieces() {
        assert_eq!(pieces(&default_striping(4), Lba(7), 0).count(), 0);
    }

    #[test]
    fn the_largest_request_is_one_piece_per_column_of_the_default() {
        let got: Vec<_> = pieces(&default_striping(9), Lba(0), u64::from(REQUEST_BLOCKS_MAX)).collect();
        assert_eq!(got.iter().map(|p| p.object_index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn default_stripings_are_valid_for_any_number_of_groups() {
        for groups in [0, 1, 2, 3, 4, 5, usize::MAX] {
            assert_eq!(validate(&default_striping(groups)), Ok(()), "{groups} groups");
        }
        assert_eq!(default_striping(2).width, 2, "no wider than there are groups");
    }

    #[test]
    fn invalid_stripings_are_refused() {
        let good = Striping { unit_blocks: 16, width: 4, object_blocks: 1024 };
        assert_eq!(validate(&good), Ok(()));
        for (bad, error) in [
            (Striping { width: 0, ..good }, LayoutError::Width { width: 0 }),
            (Striping { width: 65, ..good }, LayoutError::Width { width: 65 }),
            (Striping { object_blocks: 0, ..good }, LayoutError::Object { object_blocks: 0 }),
            (Striping { object_blocks: 1000, ..good }, LayoutError::Object { object_blocks: 1000 }),
            (Striping { object_blocks: 32_768, ..good }, LayoutError::Object { object_blocks: 32_768 }),
            (Striping { unit_blocks: 0, ..good }, LayoutError::Unit { unit_blocks: 0, object_blocks: 1024 }),
            (
                Striping { unit_blocks: 24, ..good },
                LayoutError::Unit { unit_blocks: 24, object_blocks: 1024 },
            ),
            (
                Striping { unit_blocks: 2048, ..good },
                LayoutError::Unit { unit_blocks: 2048, object_blocks: 1024 },
            ),
        ] {
            assert_eq!(validate(&bad), Err(error), "{bad:?}");
        }
    }

    #[test]
    fn a_partial_row_counts_whole() {
        let striping = Striping { unit_blocks: 2, width: 3, object_blocks: 4 };
        for (size, objects) in [(0, 0), (1, 3), (12, 3), (13, 6), (24, 6), (25, 9)] {
            assert_eq!(objects_for(&striping, BlockCount(size)), objects, "{size} blocks");
        }
    }

    #[test]
    fn a_block_outside_of_the_object_has_no_address() {
        let striping = Striping { unit_blocks: 2, width: 3, object_blocks: 4 };
        assert_eq!(address_of(&striping, 0, 4), None);
        assert_eq!(address_of(&striping, u64::MAX, 0), None);
    }

    proptest! {
        #[test]
        fn addresses_and_blocks_are_one_to_one(striping in striping(), lba in 0u64..1 << 51) {
            let piece = pieces(&striping, Lba(lba), 1).next().expect("one block is one piece");
            prop_assert_eq!(address_of(&striping, piece.object_index, piece.range.first), Some(Lba(lba)));
        }

        #[test]
        fn blocks_and_addresses_are_one_to_one(striping in striping(), object in 0u64..1 << 36, at in any::<u32>()) {
            let block = at % striping.object_blocks;
            let lba = address_of(&striping, object, block).expect("far below 64 bits");
            let piece = pieces(&striping, lba, 1).next().expect("one block is one piece");
            prop_assert_eq!((piece.object_index, piece.range), (object, BlockRange::one(block)));
        }

        #[test]
        fn an_object_has_the_blocks_below_an_address_that_pieces_say(
            striping in striping(), object in 0u64..200, end in 0u64..20_000
        ) {
            let of_object = pieces(&striping, Lba(0), end).filter(|piece| piece.object_index == object);
            let expected: u64 = of_object.map(|piece| u64::from(piece.range.count)).sum();
            prop_assert_eq!(u64::from(blocks_below(&striping, object, Lba(end))), expected);
        }

        #[test]
        fn pieces_cover_the_request_exactly(striping in striping(), lba in 0u64..1 << 40, count in 0u64..3000) {
            let mut covered = 0;
            let mut last: Option<Piece> = None;
            for piece in pieces(&striping, Lba(lba), count) {
                prop_assert_eq!(piece.at, covered, "in order, without gap or overlap");
                prop_assert!(piece.range.count > 0 && piece.range.end() <= striping.object_blocks);
                for offset in [0, piece.range.count - 1] {
                    let address = address_of(&striping, piece.object_index, piece.range.first + offset);
                    prop_assert_eq!(address, Some(Lba(lba + piece.at + u64::from(offset))));
                }
                if let Some(last) = last {
                    let adjacent = last.object_index == piece.object_index && last.range.end() == piece.range.first;
                    prop_assert!(!adjacent, "adjacent pieces are merged");
                }
                covered += u64::from(piece.range.count);
                last = Some(piece);
            }
            prop_assert_eq!(covered, count);
        }

        #[test]
        fn the_counted_objects_hold_every_address(striping in striping(), size in 1u64..1 << 40) {
            let objects = objects_for(&striping, BlockCount(size));
            let last = pieces(&striping, Lba(size - 1), 1).next().expect("one block is one piece");
            prop_assert!(last.object_index < objects);
            prop_assert_eq!(objects % u64::from(striping.width), 0);
            prop_assert!(last.object_index + u64::from(striping.width) >= objects, "no row too many");
        }
    }
}
