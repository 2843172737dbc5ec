//! Windows: parts of a drive that are drives by themselves.
//!
//! It owns the arithmetic from the bytes of a window to those of what it is a part of. A window has one
//! extent as a rule, and then costs an addition for each operation; an operation that passes from one extent
//! to the next is cut in pieces.

use crate::IO_ALIGN;
use std::io;
use std::ops::Range;

/// Bytes of a drive that follow each other; both numbers are multiples of [`IO_ALIGN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The first byte, from the drive's start.
    pub start: u64,
    /// How many bytes; above 0.
    pub len: u64,
}

impl Extent {
    /// The bytes from one place up to another.
    pub fn of(range: Range<u64>) -> Extent {
        Extent { start: range.start, len: range.end - range.start }
    }

    /// The byte behind the last one; `None` if there is no such number.
    pub fn end(&self) -> Option<u64> {
        self.start.checked_add(self.len)
    }
}

/// Where the bytes of a window lie: one extent behind the other.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    extents: Vec<Extent>,
    len: u64,
}

impl Window {
    /// All of a drive.
    pub(crate) fn whole(len: u64) -> Window {
        Window { extents: vec![Extent { start: 0, len }], len }
    }

    /// The extents of this window as a window of what this one is a window of.
    ///
    /// # Errors
    /// `InvalidInput` if there is none, one is not aligned or empty, two overlap, or one leaves this window.
    pub(crate) fn within(&self, extents: &[Extent]) -> io::Result<Window> {
        check(extents, self.len)?;
        let below: Vec<Extent> = extents.iter().flat_map(|e| self.pieces(e.start, e.len)).collect();
        Ok(Window { extents: below, len: extents.iter().map(|e| e.len).sum() })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Where the range begins, if it lies in one piece.
    pub(crate) fn in_one(&self, offset: u64, len: u64) -> Option<u64> {
        match &self.extents[..] {
            [one] => Some(one.start + offset),
            _ => {
                let mut pieces = self.pieces(offset, len);
                let first = pieces.next()?;
                pieces.next().is_none().then_some(first.start)
            }
        }
    }

    /// The pieces in which the range lies, in its order. It lies within the window.
    pub(crate) fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Extent> {
        let mut begins = 0;
        let pieces = self.extents.iter().map(move |extent| {
            let first = offset.max(begins);
            let end = (offset + len).min(begins + extent.len);
            let start = extent.start + (first - begins).min(extent.len);
            begins += extent.len;
            Extent { start, len: end.saturating_sub(first) }
        });
        pieces.filter(|piece| piece.len > 0)
    }
}

/// Refuses extents that are not parts of a drive of this size, each by itself.
fn check(extents: &[Extent], size_bytes: u64) -> io::Result<()> {
    let refused = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    let align = IO_ALIGN as u64;
    let mut sorted = extents.to_vec();
    sorted.sort();
    let mut free_from = 0;
    for extent in &sorted {
        let Extent { start, len } = *extent;
        if !start.is_multiple_of(align) || !len.is_multiple_of(align) || len == 0 {
            return refused(format!("{len} bytes at {start} are no whole blocks of {align}"));
        }
        if start < free_from {
            return refused(format!("{len} bytes at {start} overlap others"));
        }
        free_from = match extent.end() {
            Some(end) if end <= size_bytes => end,
            _ => return refused(format!("{len} bytes at {start} pass the end at {size_bytes}")),
        };
    }
    if sorted.is_empty() { refused("a window without any bytes".into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    fn extent(start: u64, len: u64) -> Extent {
        Extent { start: start * BLOCK, len: len * BLOCK }
    }

    #[test]
    fn ranges_are_cut_where_extents_end() {
        let window = Window::whole(100 * BLOCK).within(&[extent(10, 4), extent(50, 6)]).unwrap();
        assert_eq!(window.len(), 10 * BLOCK);
        let pieces = |at, len| window.pieces(at * BLOCK, len * BLOCK).collect::<Vec<_>>();
        assert_eq!(pieces(0, 4), [extent(10, 4)]);
        assert_eq!(pieces(3, 2), [extent(13, 1), extent(50, 1)]);
        assert_eq!(pieces(4, 6), [extent(50, 6)]);
        assert_eq!(pieces(0, 10), [extent(10, 4), extent(50, 6)]);
        assert_eq!(window.in_one(4 * BLOCK, BLOCK), Some(50 * BLOCK));
        assert_eq!(window.in_one(3 * BLOCK, 2 * BLOCK), None);
        let inner = window.within(&[extent(2, 4)]).unwrap();
        let all: Vec<Extent> = inner.pieces(0, 4 * BLOCK).collect();
        assert_eq!(all, [extent(12, 2), extent(50, 2)]);
    }

    #[test]
    fn what_is_no_part_of_a_drive_is_refused() {
        let whole = Window::whole(10 * BLOCK);
        let odd = Extent { start: 1, len: BLOCK };
        let wraps = Extent { start: u64::MAX - BLOCK + 1, len: 2 * BLOCK };
        for (bad, why) in [
            (vec![], "without any bytes"),
            (vec![extent(0, 0)], "no whole blocks"),
            (vec![odd], "no whole blocks"),
            (vec![extent(2, 3), extent(4, 1)], "overlap"),
            (vec![extent(4, 2), extent(0, 5)], "overlap"),
            (vec![extent(9, 2)], "pass the end"),
            (vec![wraps], "pass the end"),
        ] {
            let refused = whole.within(&bad).expect_err("no part of a drive");
            assert!(refused.to_string().contains(why), "{bad:?}: {refused}");
        }
    }
}
