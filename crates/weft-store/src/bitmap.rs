//! The allocator: one bit per block of the drive, in zones of one bitmap page each. Pure state: it never
//! does I/O; the checkpoint writes its pages.
//!
//! A checkpoint needs the bits as they were at one instant while writers go on. So [`Bitmap::freeze`] marks
//! that instant, and a zone that changes afterwards first keeps a copy of its bits until
//! [`Bitmap::thaw`].

use crate::StoreError;
use crate::region::{Place, PlaceRun, RegionMap, ZONE_BLOCKS};
use weft_types::BLOCK_SIZE;

const WORDS: usize = BLOCK_SIZE / 8;

/// The bits of one zone; a set bit is a block in use.
pub(crate) type ZoneBits = [u64; WORDS];

/// Runs that are looked at for one that fits a whole request, before it is cut into pieces: a bound on the
/// time that a fragmented drive costs.
const RUNS_TRIED_MAX: usize = 64;

/// A place that something on the drive claims to own, and cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unowned {
    /// No data and no map page can lie there.
    Outside(Place),
    /// The bitmap has it as free, or it was given back already.
    Free(Place),
}

impl Unowned {
    /// The drive contradicts itself; `what` is what claims the place.
    pub(crate) fn found_by(self, what: &'static str) -> StoreError {
        match self {
            Unowned::Outside(place) => {
                StoreError::damaged(what, place, "it lies outside of the part of the drive that holds data")
            }
            Unowned::Free(place) => StoreError::damaged(
                what,
                place,
                "the bitmap has the place as free, or something else owned it too and gave it back",
            ),
        }
    }
}

struct Zone {
    bits: Box<ZoneBits>,
    free: u32,
    /// The bits differ from those of the newest checkpoint.
    is_dirty: bool,
    /// The bits at the instant of the freeze, if they have changed since.
    frozen: Option<Box<ZoneBits>>,
}

/// Which blocks of the drive are in use.
pub(crate) struct Bitmap {
    zones: Vec<Zone>,
    free: u64,
    is_frozen: bool,
    /// Where the search for data goes on, and the one for map pages: apart, so that data stays in runs.
    data_at: u64,
    page_at: u64,
    /// For tests: go on with what was returned last, so that whatever is returned too early is written over.
    reuses_at_once: bool,
    region: RegionMap,
}

impl Bitmap {
    /// A drive on which only the fixed regions are in use.
    pub(crate) fn new(region: RegionMap) -> Self {
        let zones = (0..region.zones)
            .map(|zone| {
                let bits = Self::pristine(&region, zone);
                let free = count_free(&bits);
                Zone { bits, free, is_dirty: false, frozen: None }
            })
            .collect::<Vec<_>>();
        let free = zones.iter().map(|z| u64::from(z.free)).sum();
        let page_at = region.data_first + region.data_blocks() / 8 * 7;
        Bitmap {
            zones,
            free,
            is_frozen: false,
            data_at: region.data_first,
            page_at,
            reuses_at_once: false,
            region,
        }
    }

    /// The bits of a zone in which only the fixed regions, and what lies beyond the drive, are in use.
    pub(crate) fn pristine(region: &RegionMap, zone: u64) -> Box<ZoneBits> {
        let mut bits = Box::new([0u64; WORDS]);
        let start = zone * ZONE_BLOCKS;
        let mut set = |from: u64, to: u64| {
            for block in from.max(start)..to.min(start + ZONE_BLOCKS) {
                bits[((block - start) / 64) as usize] |= 1 << (block % 64);
            }
        };
        set(0, region.data_first);
        set(region.data_end(), u64::MAX);
        bits
    }

    /// For tests: from now on what is returned is what is taken next.
    pub(crate) fn reuse_at_once(&mut self) {
        self.reuses_at_once = true;
    }

    /// Takes a zone's bits from the drive; `false` (and no change) if they leave a part of the fixed regions, or what
    /// lies beyond the drive, to be allocated.
    pub(crate) fn load(&mut self, zone: u64, bits: Box<ZoneBits>) -> bool {
        let pristine = Self::pristine(&self.region, zone);
        if bits.iter().zip(pristine.iter()).any(|(bits, fixed)| bits & fixed != *fixed) {
            return false;
        }
        let z = &mut self.zones[zone as usize];
        self.free -= u64::from(z.free);
        z.free = count_free(&bits);
        z.bits = bits;
        self.free += u64::from(z.free);
        true
    }

    /// Blocks that are not in use.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Bytes of RAM.
    pub(crate) fn ram_bytes(&self) -> u64 {
        let frozen =
            if self.is_frozen { self.zones.iter().filter(|z| z.frozen.is_some()).count() } else { 0 };
        ((self.zones.len() + frozen) * BLOCK_SIZE) as u64
    }

    /// Takes `count` blocks for data, in as few runs as can be found quickly.
    ///
    /// # Panics
    /// If fewer are free: the caller keeps the reserve, so it knows.
    pub(crate) fn allocate(&mut self, count: u32, out: &mut impl Extend<PlaceRun>) {
        assert!(u64::from(count) <= self.free, "{count} blocks are wanted, {} are free", self.free);
        let mut at = self.data_at;
        if count > 1 {
            for _ in 0..RUNS_TRIED_MAX {
                let run = self.next_free_run(at, count);
                at = run.place.0 + u64::from(run.count);
                if run.count == count {
                    self.take(run);
                    out.extend([run]);
                    self.data_at = at;
                    return;
                }
            }
            at = self.data_at;
        }
        let mut left = count;
        while left > 0 {
            let run = self.next_free_run(at, left);
            self.take(run);
            out.extend([run]);
            left -= run.count;
            at = run.place.0 + u64::from(run.count);
        }
        self.data_at = at;
    }

    /// Takes one block for a map page; `None` if none is free.
    pub(crate) fn allocate_page(&mut self) -> Option<Place> {
        if self.free == 0 {
            return None;
        }
        let run = self.next_free_run(self.page_at, 1);
        self.take(run);
        self.page_at = run.place.0 + 1;
        Some(run.place)
    }

    /// Marks a run as in use; `false` (and no change) if part of it is already, or cannot hold data.
    pub(crate) fn try_take(&mut self, run: PlaceRun) -> bool {
        let is_free = self.region.holds_data(run) && blocks(run).all(|b| !self.is_used(Place(b)));
        if is_free {
            self.take(run);
        }
        is_free
    }

    /// Returns a run.
    ///
    /// # Errors
    /// The first place of it that cannot hold data, or is free already: two owners would follow. Then nothing is
    /// changed. What is on a drive may say so, so it is the drive that is not to be trusted.
    pub(crate) fn release(&mut self, run: PlaceRun) -> Result<(), Unowned> {
        self.check_owned(run)?;
        for block in blocks(run) {
            let zone = self.zone_to_change(block);
            let (word, bit) = position(block);
            zone.bits[word] &= !bit;
            zone.free += 1;
        }
        self.free += u64::from(run.count);
        if self.reuses_at_once {
            (self.data_at, self.page_at) = (run.place.0, run.place.0);
        }
        Ok(())
    }

    /// Whether something may own this run: it can hold data, and all of it is in use.
    ///
    /// # Errors
    /// The first place of it for which that is not so.
    pub(crate) fn check_owned(&self, run: PlaceRun) -> Result<(), Unowned> {
        if !self.region.holds_data(run) {
            return Err(Unowned::Outside(run.place));
        }
        match blocks(run).map(Place).find(|place| !self.is_used(*place)) {
            Some(place) => Err(Unowned::Free(place)),
            None => Ok(()),
        }
    }

    /// Whether a block is in use.
    pub(crate) fn is_used(&self, place: Place) -> bool {
        let (word, bit) = position(place.0);
        self.zones[(place.0 / ZONE_BLOCKS) as usize].bits[word] & bit != 0
    }

    /// Whether data or map pages can lie there.
    pub(crate) fn holds_data(&self, run: PlaceRun) -> bool {
        self.region.holds_data(run)
    }

    /// Notes that a zone will differ from the newest checkpoint's, before the bits themselves change: a
    /// replaced block is free in the next checkpoint although it may not be reused yet.
    pub(crate) fn mark_dirty(&mut self, run: PlaceRun) {
        let last = run.place.0 + u64::from(run.count) - 1;
        for zone in run.place.0 / ZONE_BLOCKS..=last / ZONE_BLOCKS {
            self.zones[zone as usize].is_dirty = true;
        }
    }

    /// Keeps the bits of this instant, and hands out which zones have to be written.
    pub(crate) fn freeze(&mut self) -> Vec<u64> {
        assert!(!self.is_frozen, "one checkpoint at a time");
        self.is_frozen = true;
        let mut dirty = Vec::new();
        for (i, zone) in self.zones.iter_mut().enumerate() {
            if std::mem::take(&mut zone.is_dirty) {
                dirty.push(i as u64);
            }
        }
        dirty
    }

    /// The bits of a zone at the instant of the freeze.
    pub(crate) fn frozen_bits(&self, zone: u64) -> Box<ZoneBits> {
        assert!(self.is_frozen, "frozen bits exist during a checkpoint");
        let zone = &self.zones[zone as usize];
        zone.frozen.as_ref().unwrap_or(&zone.bits).clone()
    }

    /// Ends the freeze.
    pub(crate) fn thaw(&mut self) {
        self.is_frozen = false;
        for zone in &mut self.zones {
            zone.frozen = None;
        }
    }

    fn take(&mut self, run: PlaceRun) {
        for block in blocks(run) {
            let zone = self.zone_to_change(block);
            let (word, bit) = position(block);
            debug_assert!(zone.bits[word] & bit == 0, "block {block} is taken twice");
            zone.bits[word] |= bit;
            zone.free -= 1;
            zone.is_dirty = true;
        }
        self.free -= u64::from(run.count);
    }

    fn zone_to_change(&mut self, block: u64) -> &mut Zone {
        let zone = &mut self.zones[(block / ZONE_BLOCKS) as usize];
        if self.is_frozen && zone.frozen.is_none() {
            zone.frozen = Some(zone.bits.clone());
        }
        zone
    }

    /// The first free run at or after `from` (around the drive's end), cut to `max` blocks and to its zone.
    fn next_free_run(&self, from: u64, max: u32) -> PlaceRun {
        debug_assert!(self.free > 0);
        let from = if from >= self.region.data_end() { self.region.data_first } else { from };
        let first_zone = from / ZONE_BLOCKS;
        let zones = self.zones.len() as u64;
        for step in 0..=zones {
            let index = (first_zone + step) % zones;
            let zone = &self.zones[index as usize];
            if zone.free == 0 {
                continue;
            }
            let start = if step == 0 { from % ZONE_BLOCKS } else { 0 };
            if let Some((at, count)) = free_run_in(&zone.bits, start as usize, max) {
                return PlaceRun { place: Place(index * ZONE_BLOCKS + at as u64), count };
            }
        }
        panic!("{} blocks are free but none was found", self.free);
    }
}

fn blocks(run: PlaceRun) -> std::ops::Range<u64> {
    run.place.0..run.place.0 + u64::from(run.count)
}

fn position(block: u64) -> (usize, u64) {
    ((block % ZONE_BLOCKS / 64) as usize, 1 << (block % 64))
}

/// How many bits are clear.
pub(crate) fn count_free(bits: &ZoneBits) -> u32 {
    bits.iter().map(|w| w.count_zeros()).sum()
}

/// Sets or clears the part of a run that lies in a zone.
pub(crate) fn change_bits(bits: &mut ZoneBits, zone: u64, run: PlaceRun, is_used: bool) {
    let start = zone * ZONE_BLOCKS;
    let all = blocks(run);
    for block in all.start.max(start)..all.end.min(start + ZONE_BLOCKS) {
        let (word, bit) = position(block);
        if is_used { bits[word] |= bit } else { bits[word] &= !bit }
    }
}

/// The zones that a run touches.
pub(crate) fn zones_of(run: PlaceRun) -> std::ops::RangeInclusive<u64> {
    run.place.0 / ZONE_BLOCKS..=(run.place.0 + u64::from(run.count) - 1) / ZONE_BLOCKS
}

/// The first run of clear bits at or after `start`, cut to `max`.
fn free_run_in(bits: &ZoneBits, start: usize, max: u32) -> Option<(usize, u32)> {
    let mut word = start / 64;
    let mut clear = !bits[word] & (u64::MAX << (start % 64));
    while clear == 0 {
        word += 1;
        clear = !*bits.get(word)?;
    }
    let at = word * 64 + clear.trailing_zeros() as usize;
    let mut count = 0;
    let mut next = at;
    while count < max && next < ZONE_BLOCKS as usize {
        let rest = bits[next / 64] >> (next % 64);
        let run = (rest.trailing_zeros() as usize).min(64 - next % 64);
        if run == 0 {
            break;
        }
        count = (count + run as u32).min(max);
        next += run;
    }
    Some((at, count))
}

/// A zone's bits as its page: little-endian words.
pub(crate) fn encode_zone(bits: &ZoneBits, page: &mut [u8]) {
    for (bytes, word) in page.chunks_exact_mut(8).zip(bits) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// A zone's bits from its page.
pub(crate) fn decode_zone(page: &[u8]) -> Box<ZoneBits> {
    let mut bits = Box::new([0; WORDS]);
    for (word, bytes) in bits.iter_mut().zip(page.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn region() -> RegionMap {
        RegionMap::of(300 << 20, None)
    }

    proptest! {
        #[test]
        fn what_is_taken_is_free_before_and_returns(
            steps in prop::collection::vec((1u32..300, prop::bool::ANY), 1..80)
        ) {
            let mut map = Bitmap::new(region());
            let all = map.free();
            let mut held: Vec<PlaceRun> = Vec::new();
            for (count, give) in steps {
                if give && !held.is_empty() {
                    let run = held.swap_remove(count as usize % held.len());
                    map.release(run).unwrap();
                } else {
                    let mut out = Vec::new();
                    map.allocate(count, &mut out);
                    prop_assert_eq!(out.iter().map(|r| r.count).sum::<u32>(), count);
                    held.extend(out);
                }
                let blocks: BTreeSet<u64> = held.iter().flat_map(|r| super::blocks(*r)).collect();
                prop_assert_eq!(blocks.len() as u32, held.iter().map(|r| r.count).sum::<u32>());
                prop_assert_eq!(map.free() + blocks.len() as u64, all);
                prop_assert!(held.iter().all(|r| region().holds_data(*r)));
            }
        }
    }

    #[test]
    fn a_drive_can_be_filled_to_the_last_block_and_in_pieces() {
        let mut map = Bitmap::new(region());
        let mut out = Vec::new();
        while map.free() > 0 {
            let n = map.free().min(200) as u32;
            map.allocate(n, &mut out);
        }
        assert_eq!(out.iter().map(|r| u64::from(r.count)).sum::<u64>(), region().data_blocks());
        assert_eq!(map.allocate_page(), None);
        let first = out[0].place;
        for i in [0, 2, 4, 5] {
            map.release(PlaceRun { place: first.plus(i), count: 1 }).unwrap();
        }
        let mut pieces = Vec::new();
        map.allocate(4, &mut pieces);
        assert_eq!(pieces.len(), 3);
    }

    #[test]
    fn a_freeze_keeps_the_bits_of_its_instant() {
        let mut map = Bitmap::new(region());
        let mut out = Vec::new();
        map.allocate(10, &mut out);
        let zone = out[0].place.0 / ZONE_BLOCKS;
        assert_eq!(map.freeze(), vec![zone]);
        let before = map.frozen_bits(zone);
        map.release(out[0]).unwrap();
        map.allocate_page().unwrap();
        assert_eq!(map.frozen_bits(zone), before);
        map.thaw();
        assert!(map.freeze().contains(&zone) || !map.is_used(out[0].place));
    }

    #[test]
    fn a_place_returns_once_and_none_outside_does() {
        let mut map = Bitmap::new(region());
        let mut out = Vec::new();
        map.allocate(4, &mut out);
        let (run, free) = (out[0], map.free());
        map.release(PlaceRun { count: 1, ..run }).unwrap();
        assert_eq!(map.release(run), Err(Unowned::Free(run.place)));
        let rest = PlaceRun { place: run.place.plus(1), count: 3 };
        assert_eq!(map.check_owned(rest), Ok(()), "a run that is refused stays as it was");
        assert_eq!(map.free(), free + 1);
        for place in [Place(0), Place(region().data_first - 1), Place(region().data_end()), Place(1 << 40)] {
            let run = PlaceRun { place, count: 1 };
            assert_eq!(map.release(run), Err(Unowned::Outside(place)));
        }
    }

    #[test]
    fn bits_that_leave_the_fixed_regions_to_be_allocated_are_refused() {
        let region = region();
        let mut map = Bitmap::new(region);
        let free = map.free();
        for (zone, block) in [(0, 0), (0, region.data_first - 1), (region.zones - 1, region.data_end())] {
            let mut bits = Bitmap::pristine(&region, zone);
            let (word, bit) = position(block);
            bits[word] &= !bit;
            assert!(!map.load(zone, bits), "block {block}");
        }
        assert_eq!(map.free(), free);
        assert!(map.load(0, Bitmap::pristine(&region, 0)) && map.free() == free);
    }

    #[test]
    fn a_page_of_bits_reads_back() {
        let bits = Bitmap::pristine(&region(), 2);
        let mut page = vec![0; BLOCK_SIZE];
        encode_zone(&bits, &mut page);
        assert_eq!(decode_zone(&page), bits);
        assert_eq!(page[BLOCK_SIZE - 1], 0xff, "what lies beyond the drive is in use");
    }
}
