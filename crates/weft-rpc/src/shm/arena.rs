//! Which pages of the body area are in use: the sender's own book, which the other end never sees. A piece is
//! taken, filled, and handed to the other end, which gives it back. The lowest free pages are taken first, so
//! that few are ever touched, and those are in the cache.
//!
//! Nothing waits for ever. The other end keeps no more than [`KEPT_MAX`] for long, and pieces that are lent,
//! which may wait for a slow drive or behind other frames, have no more than [`LENT_MAX`]. So [`SPARE`] pages
//! come free whatever happens; and where so many are, but scattered, what waits goes in smaller pieces.

use super::region::PAGES;

const WORDS: usize = PAGES / 64;

/// Pages that the receiver may use where they lie. Beyond that it copies bodies: its users may keep theirs
/// for long.
pub(super) const KEPT_MAX: usize = PAGES / 2;

/// Pages that may be lent at a time.
const LENT_MAX: usize = PAGES / 4;

/// With so many pages free, room is scattered rather than short.
const SPARE: usize = PAGES / 4;

const _: () = assert!(SPARE > 0 && KEPT_MAX + LENT_MAX + SPARE <= PAGES);

/// The book.
pub(super) struct Arena {
    /// A bit for each page: set if it is free.
    free: [u64; WORDS],
    /// How many pages a piece has, by its first; 0 where none begins.
    pieces: Box<[u16]>,
    /// A bit for each page: set if a piece begins there that the other end has.
    handed: [u64; WORDS],
    out: u64,
    /// Pages that are free, and those of pieces that were taken and not handed over.
    free_pages: usize,
    lent_pages: usize,
}

impl Arena {
    /// All pages are free.
    pub(super) fn new() -> Arena {
        Arena {
            free: [u64::MAX; WORDS],
            pieces: vec![0; PAGES].into(),
            handed: [0; WORDS],
            out: 0,
            free_pages: PAGES,
            lent_pages: 0,
        }
    }

    /// Pieces that the other end has.
    pub(super) fn out(&self) -> u64 {
        self.out
    }

    /// Whether so many pages more may be lent: taken, and kept for a while before they are handed over or put
    /// back.
    pub(super) fn may_lend(&self, count: usize) -> bool {
        self.lent_pages + count <= LENT_MAX
    }

    /// Takes up to `count` pages that follow each other, at least one, and says which is the first and how
    /// many they are: fewer where enough are free, but scattered. `None` if room is short.
    pub(super) fn take_some(&mut self, mut count: usize) -> Option<(u32, usize)> {
        loop {
            match self.take(count) {
                Some(first) => return Some((first, count)),
                None if self.free_pages < SPARE => return None,
                None => count = count.div_ceil(2),
            }
        }
    }

    /// Takes `count` pages that follow each other, at least one; the first of them, or `None` if there are
    /// none.
    pub(super) fn take(&mut self, count: usize) -> Option<u32> {
        debug_assert!(count > 0 && count <= usize::from(u16::MAX));
        let first = self.find(count)?;
        for page in first..first + count {
            self.free[page / 64] &= !(1 << (page % 64));
        }
        self.pieces[first] = count as u16;
        self.free_pages -= count;
        self.lent_pages += count;
        Some(first as u32)
    }

    fn find(&self, count: usize) -> Option<usize> {
        if count == 1 {
            let word = self.free.iter().position(|word| *word != 0)?;
            return Some(word * 64 + self.free[word].trailing_zeros() as usize);
        }
        let (mut first, mut page) = (0, 0);
        while page < PAGES {
            // What is left of this word, from this page on.
            let word = self.free[page / 64] >> (page % 64);
            let left = 64 - page % 64;
            let run = (!word).trailing_zeros().min(left as u32) as usize;
            page += run;
            if page - first >= count {
                return Some(first);
            }
            if run < left {
                page += ((word >> run).trailing_zeros() as usize).min(left - run);
                first = page;
            }
        }
        None
    }

    /// The other end has the piece that begins at a page from now on.
    ///
    /// # Panics
    /// If none that was taken does, or it has it already.
    pub(super) fn hand_over(&mut self, first: u32) {
        let first = first as usize;
        assert!(self.pieces[first] > 0 && !self.is_handed(first), "page {first} is not ours to hand over");
        self.handed[first / 64] |= 1 << (first % 64);
        self.lent_pages -= usize::from(self.pieces[first]);
        self.out += 1;
    }

    /// The other end gives back the piece that begins at a page; false if it has none there.
    pub(super) fn give_back(&mut self, first: u32) -> bool {
        let first = first as usize;
        if first >= PAGES || !self.is_handed(first) {
            return false;
        }
        self.handed[first / 64] &= !(1 << (first % 64));
        self.out -= 1;
        self.free(first);
        true
    }

    /// A piece that was taken is not needed after all.
    ///
    /// # Panics
    /// If the other end has it, or none that was taken begins there.
    pub(super) fn put_back(&mut self, first: u32) {
        let first = first as usize;
        assert!(self.pieces[first] > 0 && !self.is_handed(first), "page {first} is not ours to put back");
        self.lent_pages -= usize::from(self.pieces[first]);
        self.free(first);
    }

    fn is_handed(&self, first: usize) -> bool {
        self.handed[first / 64] & 1 << (first % 64) != 0
    }

    fn free(&mut self, first: usize) {
        let count = usize::from(std::mem::take(&mut self.pieces[first]));
        for page in first..first + count {
            self.free[page / 64] |= 1 << (page % 64);
        }
        self.free_pages += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    proptest! {
        #[test]
        fn pieces_are_apart_and_lie_as_low_as_they_can(
            steps in prop::collection::vec((1usize..300, any::<prop::sample::Index>(), any::<bool>()), 1..200)
        ) {
            let mut arena = Arena::new();
            let mut model: BTreeMap<usize, usize> = BTreeMap::new();
            let mut handed = BTreeSet::new();
            for (count, which, gives) in steps {
                if gives && !model.is_empty() {
                    let first = *which.get(&model.keys().copied().collect::<Vec<_>>());
                    model.remove(&first);
                    if handed.remove(&first) {
                        prop_assert!(arena.give_back(first as u32));
                    } else {
                        prop_assert!(!arena.give_back(first as u32), "the other end has no such piece");
                        arena.put_back(first as u32);
                    }
                    prop_assert!(!arena.give_back(first as u32), "a piece comes back once");
                } else {
                    let mut gap = 0;
                    let mut fits = None;
                    for (first, pages) in &model {
                        if first - gap >= count { fits = fits.or(Some(gap)); }
                        gap = first + pages;
                    }
                    if PAGES - gap >= count { fits = fits.or(Some(gap)); }
                    let found = arena.take(count).map(|first| first as usize);
                    prop_assert_eq!(found, fits);
                    found.map(|first| model.insert(first, count));
                    if let Some(first) = found.filter(|_| count % 3 > 0) {
                        arena.hand_over(first as u32);
                        handed.insert(first);
                    }
                }
                prop_assert_eq!(arena.out(), handed.len() as u64);
                prop_assert_eq!(arena.free_pages, PAGES - model.values().sum::<usize>());
                let lent: usize = model.iter().filter(|(first, _)| !handed.contains(first)).map(|(_, count)| count).sum();
                prop_assert_eq!(arena.may_lend(1), lent < LENT_MAX);
                if let Some((first, found)) = arena.take_some(count) {
                    prop_assert!(found == count || arena.free_pages + found >= SPARE && arena.take(count).is_none());
                    arena.put_back(first);
                } else {
                    prop_assert!(arena.free_pages < SPARE);
                }
            }
            prop_assert!(!arena.give_back(PAGES as u32));
        }
    }
}
