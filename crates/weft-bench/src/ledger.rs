//! What a checked load may read: what its own writes left, and whether what was read is that.
//!
//! The unit of bookkeeping is the **place**, one request's size: requests of a load cover the same bytes or none in
//! common. Each write of a place has a generation, counted from 1. A block is one atomic register (as `weft-client` promises), so a
//! read may return a write unless it is surely overwritten: unless a write that began after that one had completed
//! either has completed itself, or has been read, before this read began. Nobody else may write to these bytes meanwhile.
//!
//! It never reads or writes a volume.

use crate::stamp::{self, Content, Stamp};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use weft_rt::{Buf, BufMut};
use weft_types::{BLOCK_SIZE, Lba};

/// Mismatches that are kept in full; further ones are only counted. One is news enough, a dozen shows a pattern.
const MISMATCHES_MAX: usize = 12;

/// What is on the volume where the load has not written yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// Zeroes: it held nothing.
    Zeroes,
    /// Anything. Blocks that bear a stamp must at least fit it.
    Anything,
}

/// A block that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Mismatch {
    /// The block's number on the volume, of 4 KiB.
    pub lba: u64,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LBA {}: expected {}, found {}", self.lba, self.expected, self.found)
    }
}

/// What was checked, and what came of it. A block counts as often as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verified {
    /// Blocks that were what they had to be: what this run wrote, the zeroes that were there before, or what bears the
    /// right stamp of an earlier run.
    pub blocks_checked: u64,
    /// Blocks that this run has not written and that bear no stamp: nothing is known of them.
    pub blocks_unknown: u64,
    /// Blocks that were something else.
    pub blocks_wrong: u64,
    /// The first of those.
    pub mismatches: Vec<Mismatch>,
}

impl Verified {
    /// Counts what was found there as well.
    pub(crate) fn add(&mut self, other: Verified) {
        self.blocks_checked += other.blocks_checked;
        self.blocks_unknown += other.blocks_unknown;
        self.blocks_wrong += other.blocks_wrong;
        self.mismatches.extend(other.mismatches);
        self.mismatches.truncate(MISMATCHES_MAX);
    }
}

/// A write that a read may still return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    generation: u32,
    /// When it began and completed, in steps of the ledger's own clock.
    began: u64,
    ended: Option<u64>,
}

/// What was known of a place when a read began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The newest generation that had begun.
    newest: u32,
    /// All that the read may return of what had begun by then; empty: the newest only.
    candidates: Vec<u32>,
}

/// What a load has written, and what it may read.
pub struct Ledger {
    run: u64,
    before: Before,
    start: u64,
    block_size: u64,
    /// The newest generation of each place that has begun; 0 is what was there before. Memory is only touched for
    /// places that are written, 4 bytes each.
    newest: Vec<u32>,
    /// Places of which a read may return more than the newest.
    open: HashMap<usize, Vec<Candidate>>,
    clock: u64,
    verified: Verified,
}

impl Ledger {
    /// A ledger for a load with requests of `block_size` bytes on these bytes of a volume, both multiples of 4 KiB. `run`
    /// tells this run's writes from those of others.
    ///
    /// # Panics
    /// If they are no such multiples.
    pub fn new(run: u64, range: Range<u64>, block_size: u64, before: Before) -> Ledger {
        let is_whole = |bytes: u64| bytes.is_multiple_of(BLOCK_SIZE as u64);
        assert!(block_size > 0 && is_whole(block_size) && is_whole(range.start), "whole blocks are checked");
        let places = range.end.saturating_sub(range.start) / block_size;
        Ledger {
            run,
            before,
            start: range.start,
            block_size,
            newest: vec![0; places as usize],
            open: HashMap::new(),
            clock: 0,
            verified: Verified::default(),
        }
    }

    /// The place of the request at this byte of the volume.
    pub fn place(&self, offset: u64) -> usize {
        ((offset - self.start) / self.block_size) as usize
    }

    /// The places that were written, in order.
    pub fn written(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.newest.len()).filter(|place| self.newest[*place] > 0)
    }

    /// Bytes of each place.
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Where a place begins on the volume, in bytes.
    pub fn offset(&self, place: usize) -> u64 {
        self.start + place as u64 * self.block_size
    }

    /// Whether something was read that should not be there.
    pub fn is_violated(&self) -> bool {
        self.verified.blocks_wrong > 0
    }

    /// What was checked so far.
    pub fn verified(&self) -> &Verified {
        &self.verified
    }

    /// Begins a write of a place: its generation, and the data with stamps on it.
    ///
    /// # Panics
    /// If the place is written more than 2^32 times.
    pub fn begin_write(&mut self, place: usize, data: &Buf) -> (u32, Buf) {
        let old = self.newest[place];
        let generation = old.checked_add(1).expect("no run is that long");
        self.newest[place] = generation;
        self.clock += 1;
        let settled = || vec![Candidate { generation: old, began: 0, ended: Some(0) }];
        let open = self.open.entry(place).or_insert_with(settled);
        open.push(Candidate { generation, began: self.clock, ended: None });
        let first = Lba(self.offset(place) / BLOCK_SIZE as u64);
        let mut stamped = BufMut::aligned(data.len());
        stamped.copy_from_slice(data);
        for (lba, block) in (first.0..).zip(stamped.chunks_mut(BLOCK_SIZE)) {
            stamp::put(block, Stamp { lba: Lba(lba), run: self.run, generation });
        }
        (generation, stamped.freeze())
    }

    /// A write was acknowledged.
    pub fn end_write(&mut self, place: usize, generation: u32) {
        self.clock += 1;
        let open = self.open.get_mut(&place).into_iter().flatten();
        for candidate in open.filter(|c| c.generation == generation) {
            candidate.ended = Some(self.clock);
        }
        self.settle(place, generation);
    }

    /// Begins a read of a place.
    pub fn begin_read(&self, place: usize) -> Seen {
        let open = self.open.get(&place).into_iter().flatten();
        Seen { newest: self.newest[place], candidates: open.map(|c| c.generation).collect() }
    }

    /// Checks what a read returned.
    pub fn end_read(&mut self, place: usize, seen: &Seen, bufs: &[Buf]) {
        let first = self.offset(place) / BLOCK_SIZE as u64;
        let mut generations = Vec::new();
        let mut lba = first;
        for_each_block(bufs, |block| {
            generations.push(self.check(place, seen, Lba(lba), block));
            lba += 1;
        });
        assert_eq!((lba - first) * BLOCK_SIZE as u64, self.block_size, "reads return what was asked for");
        // Read from every block: then what that write overwrote will not be seen again.
        if let [Some(generation), rest @ ..] = &generations[..]
            && *generation > 0
            && rest.iter().all(|other| *other == Some(*generation))
        {
            self.settle(place, *generation);
        }
    }

    /// Checks one block; returns the generation that it is of, 0 for what was there before.
    fn check(&mut self, place: usize, seen: &Seen, lba: Lba, block: &[u8]) -> Option<u32> {
        let content = stamp::content(block);
        let newest = self.newest[place];
        let is_open = |generation: u32| {
            let begun_meanwhile = generation > seen.newest && generation <= newest;
            begun_meanwhile
                || match &seen.candidates[..] {
                    [] => generation == seen.newest,
                    candidates => candidates.contains(&generation),
                }
        };
        let found = match content {
            Content::Stamped(stamp) if stamp.lba == lba && stamp.run == self.run => {
                Some(stamp.generation).filter(|generation| *generation > 0 && is_open(*generation))
            }
            Content::Zeroes if self.before == Before::Zeroes => Some(0).filter(|_| is_open(0)),
            Content::Stamped(stamp) if stamp.lba == lba && self.before == Before::Anything => {
                Some(0).filter(|_| is_open(0))
            }
            Content::Foreign | Content::Zeroes if self.before == Before::Anything && is_open(0) => {
                self.verified.blocks_unknown += 1;
                return Some(0);
            }
            _ => None,
        };
        match found {
            Some(_) => self.verified.blocks_checked += 1,
            None => self.note(seen, newest, lba, content),
        }
        found
    }

    /// Notes a block that is not what it should be.
    fn note(&mut self, seen: &Seen, newest: u32, lba: Lba, content: Content) {
        self.verified.blocks_wrong += 1;
        if self.verified.mismatches.len() < MISMATCHES_MAX {
            let mut open =
                if seen.candidates.is_empty() { vec![seen.newest] } else { seen.candidates.clone() };
            open.extend(seen.newest + 1..=newest);
            let words: Vec<String> = open.iter().map(|generation| self.name(*generation)).collect();
            let expected = words.join(" or ");
            self.verified.mismatches.push(Mismatch { lba: lba.0, expected, found: content.to_string() });
        }
    }

    fn name(&self, generation: u32) -> String {
        match (generation, self.before) {
            (0, Before::Zeroes) => "zeroes".to_owned(),
            (0, Before::Anything) => "whatever was there before this run, unharmed".to_owned(),
            _ => format!("generation {generation} of run {:016x}", self.run),
        }
    }

    /// This generation is what the place holds or newer: what had completed before it began is gone.
    fn settle(&mut self, place: usize, generation: u32) {
        let Some(open) = self.open.get_mut(&place) else { return };
        let Some(began) = open.iter().find(|c| c.generation == generation).map(|c| c.began) else { return };
        open.retain(|c| c.ended.is_none_or(|ended| ended >= began));
        if let [only] = open[..]
            && only.ended.is_some()
        {
            self.open.remove(&place);
        }
    }
}

/// Each block of the buffers, which may be cut anywhere.
fn for_each_block(bufs: &[Buf], mut each: impl FnMut(&[u8])) {
    let mut rest: Vec<u8> = Vec::new();
    for buf in bufs {
        let mut bytes = &buf[..];
        if !rest.is_empty() {
            let missing = (BLOCK_SIZE - rest.len()).min(bytes.len());
            rest.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
            if rest.len() == BLOCK_SIZE {
                each(&rest);
                rest.clear();
            }
        }
        let whole = bytes.len() - bytes.len() % BLOCK_SIZE;
        bytes[..whole].chunks(BLOCK_SIZE).for_each(&mut each);
        rest.extend_from_slice(&bytes[whole..]);
    }
    assert!(rest.is_empty(), "reads return whole blocks");
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_SIZE as u64;

    /// A ledger of four places of two blocks, from block 8 on.
    fn ledger(before: Before) -> Ledger {
        Ledger::new(7, 8 * BLOCK..16 * BLOCK, 2 * BLOCK, before)
    }

    fn data() -> Buf {
        Buf::from(vec![5u8; 2 * BLOCK_SIZE])
    }

    /// Writes a place to the end.
    fn write(ledger: &mut Ledger, place: usize) -> Buf {
        let (generation, buf) = ledger.begin_write(place, &data());
        ledger.end_write(place, generation);
        buf
    }

    /// Reads a place, which returns this; how many blocks were wrong.
    fn read(ledger: &mut Ledger, place: usize, buf: &Buf) -> u64 {
        let wrong = ledger.verified().blocks_wrong;
        let seen = ledger.begin_read(place);
        ledger.end_read(place, &seen, std::slice::from_ref(buf));
        ledger.verified().blocks_wrong - wrong
    }

    #[test]
    fn what_was_written_last_is_what_is_read() {
        let mut ledger = ledger(Before::Zeroes);
        assert_eq!(read(&mut ledger, 1, &Buf::zeroes(2 * BLOCK_SIZE)), 0);
        let first = write(&mut ledger, 1);
        assert_eq!(read(&mut ledger, 1, &first), 0);
        let second = write(&mut ledger, 1);
        assert_eq!(read(&mut ledger, 1, &second), 0);
        assert_eq!(ledger.verified().blocks_checked, 6);
        assert!(!ledger.is_violated());
        assert_eq!(read(&mut ledger, 1, &first), 2, "the older write is gone");
        assert!(ledger.is_violated() && ledger.open.is_empty());
        assert_eq!(ledger.written().collect::<Vec<_>>(), [1]);
        let told = ledger.verified().mismatches[0].to_string();
        assert_eq!(
            told,
            "LBA 10: expected generation 2 of run 0000000000000007, found generation 1 of LBA 10 of run 0000000000000007"
        );
    }

    #[test]
    fn a_corrupted_block_is_found_and_named() {
        for (at, word) in [(100, "with checksum"), (BLOCK_SIZE + 3, "without a stamp")] {
            let mut ledger = ledger(Before::Anything);
            let mut bytes = write(&mut ledger, 2).to_vec();
            bytes[at] ^= 1;
            assert_eq!(read(&mut ledger, 2, &Buf::from(bytes)), 1);
            let mismatch = &ledger.verified().mismatches[0];
            assert_eq!(mismatch.lba, 12 + (at / BLOCK_SIZE) as u64);
            assert!(mismatch.found.contains(word), "{mismatch}");
        }
    }

    #[test]
    fn lost_misplaced_and_foreign_blocks_are_found() {
        let mut ledger = ledger(Before::Zeroes);
        let elsewhere = write(&mut ledger, 0);
        write(&mut ledger, 1);
        assert_eq!(read(&mut ledger, 1, &Buf::zeroes(2 * BLOCK_SIZE)), 2, "the write is lost");
        assert_eq!(read(&mut ledger, 1, &elsewhere), 2, "of another place");
        assert_eq!(read(&mut ledger, 1, &data()), 2, "of somebody else");
        assert_eq!(read(&mut ledger, 3, &data()), 2, "where nothing was written");
        let mut other_run = Ledger::new(8, 8 * BLOCK..16 * BLOCK, 2 * BLOCK, Before::Zeroes);
        let foreign = write(&mut other_run, 1);
        assert_eq!(read(&mut ledger, 1, &foreign), 2, "of another run");
        assert_eq!(ledger.verified().blocks_wrong, 10);
    }

    #[test]
    fn concurrent_writes_may_be_read_in_any_order_until_they_are_overwritten() {
        let mut ledger = ledger(Before::Zeroes);
        let (one, first) = ledger.begin_write(0, &data());
        let (two, second) = ledger.begin_write(0, &data());
        assert_eq!(read(&mut ledger, 0, &Buf::zeroes(2 * BLOCK_SIZE)), 0, "neither is acknowledged");
        ledger.end_write(0, two);
        ledger.end_write(0, one);
        assert_eq!(read(&mut ledger, 0, &first) + read(&mut ledger, 0, &second), 0);
        let mut mixed = first[..BLOCK_SIZE].to_vec();
        mixed.extend_from_slice(&second[BLOCK_SIZE..]);
        assert_eq!(read(&mut ledger, 0, &Buf::from(mixed)), 0, "each block is a register of its own");
        assert_eq!(read(&mut ledger, 0, &Buf::zeroes(2 * BLOCK_SIZE)), 2);
        let third = write(&mut ledger, 0);
        assert_eq!(read(&mut ledger, 0, &third), 0);
        assert_eq!(read(&mut ledger, 0, &first) + read(&mut ledger, 0, &second), 4);
    }

    #[test]
    fn a_read_may_return_what_was_there_when_it_began_and_what_began_meanwhile() {
        let mut ledger = ledger(Before::Zeroes);
        let first = write(&mut ledger, 0);
        let seen: Vec<Seen> = (0..2).map(|_| ledger.begin_read(0)).collect();
        let second = write(&mut ledger, 0);
        ledger.end_read(0, &seen[0], &[first.slice(0..100), first.slice(100..2 * BLOCK_SIZE)]);
        ledger.end_read(0, &seen[1], &[second]);
        assert!(!ledger.is_violated(), "{:?}", ledger.verified());
        assert_eq!(read(&mut ledger, 0, &first), 2);
    }

    #[test]
    fn what_was_once_read_does_not_disappear_again() {
        let mut ledger = ledger(Before::Zeroes);
        let first = write(&mut ledger, 0);
        let (_, second) = ledger.begin_write(0, &data());
        assert_eq!(read(&mut ledger, 0, &first), 0, "the second is still in flight");
        assert_eq!(read(&mut ledger, 0, &second), 0);
        assert_eq!(read(&mut ledger, 0, &first), 2, "the second had been read");
    }

    #[test]
    fn what_was_there_before_is_only_checked_as_far_as_it_says_what_it_is() {
        let mut ledger = ledger(Before::Anything);
        let mut earlier = Ledger::new(8, 8 * BLOCK..16 * BLOCK, 2 * BLOCK, Before::Anything);
        let (left, elsewhere) = (write(&mut earlier, 1), write(&mut earlier, 3));
        assert_eq!(read(&mut ledger, 1, &data()), 0);
        assert_eq!(ledger.verified().blocks_unknown, 2);
        assert_eq!(read(&mut ledger, 1, &left), 0);
        assert_eq!(read(&mut ledger, 1, &Buf::zeroes(2 * BLOCK_SIZE)), 0);
        assert_eq!((ledger.verified().blocks_checked, ledger.verified().blocks_unknown), (2, 4));
        assert_eq!(read(&mut ledger, 1, &elsewhere), 2);
        let mut bytes = left.to_vec();
        bytes[2000] ^= 1;
        assert_eq!(read(&mut ledger, 1, &Buf::from(bytes)), 1);
        assert!(ledger.verified().mismatches[0].expected.contains("unharmed"));
    }
}
