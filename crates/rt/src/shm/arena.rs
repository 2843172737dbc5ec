//! Which pages of the body area are in use: the sender's own book, which the other end never sees. A piece is taken,
//! filled, and handed to the other end, which gives it back. The lowest free pages are taken first, so that few are ever
//! touched, and those are in the cache.

use super::region::PAGES;

const WORDS: usize = PAGES / 64;

/// The book.
pub(super) struct Arena {
    /// A bit for each page: set if it is free.
    free: [u64; WORDS],
    /// How many pages a piece has, by its first; 0 where none begins.
    pieces: Box<[u16]>,
    /// A bit for each page: set if a piece begins there that the other end has.
    handed: [u64; WORDS],
    out: u64,
}

impl Arena {
    /// All pages are free.
    pub(super) fn new() -> Arena {
        Arena { free: [u64::MAX; WORDS], pieces: vec![0; PAGES].into(), handed: [0; WORDS], out: 0 }
    }

    /// Pieces that the other end has.
    pub(super) fn out(&self) -> u64 {
        self.out
    }

    /// Takes `count` pages that follow each other, at least one; the first of them, or `None` if there are none.
    pub(super) fn take(&mut self, count: usize) -> Option<u32> {
        debug_assert!(count > 0 && count <= usize::from(u16::MAX));
        let first = self.find(count)?;
        for page in first..first + count {
            self.free[page / 64] &= !(1 << (page % 64));
        }
        self.pieces[first] = count as u16;
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
        self.free(first);
    }

    fn is_handed(&self, first: usize) -> bool {
        self.handed[first / 64] & 1 << (first % 64) != 0
    }

    fn free(&mut self, first: usize) {
        for page in first..first + usize::from(std::mem::take(&mut self.pieces[first])) {
            self.free[page / 64] |= 1 << (page % 64);
        }
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
            }
            prop_assert!(!arena.give_back(PAGES as u32));
        }
    }
}
