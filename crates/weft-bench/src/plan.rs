//! Which request of a load comes next. Pure.

use crate::load::Load;
use std::ops::Range;

/// In which order a load goes over the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Evenly distributed, aligned to the block size.
    Random,
    /// One block after the other, from the beginning again at the end.
    Sequential,
}

impl Pattern {
    /// In a word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Where on the volume, in bytes.
    pub(crate) offset: u64,
    pub(crate) is_read: bool,
}

/// Which request comes next. Pure.
pub(crate) struct Plan {
    pattern: Pattern,
    read_percent: u64,
    block_size: u64,
    /// Where the first request may be, in bytes.
    start: u64,
    /// Whole requests that fit from there on.
    places: u64,
    cursor: u64,
    random: Random,
}

impl Plan {
    /// For a load on these bytes of a volume.
    pub(crate) fn new(load: &Load, range: &Range<u64>) -> Plan {
        Plan {
            pattern: load.pattern,
            read_percent: u64::from(load.read_percent),
            block_size: load.block_size,
            start: range.start,
            places: (range.end - range.start) / load.block_size,
            cursor: 0,
            random: Random(load.seed),
        }
    }

    /// The next request.
    pub(crate) fn next(&mut self) -> Step {
        let place = match self.pattern {
            Pattern::Random => self.random.below(self.places),
            Pattern::Sequential => {
                let place = self.cursor;
                self.cursor = (place + 1) % self.places;
                place
            }
        };
        let is_read = match self.read_percent {
            0 => false,
            100 => true,
            percent => self.random.below(100) < percent,
        };
        Step { offset: self.start + place * self.block_size, is_read }
    }
}

/// Steele, Lea and Flood's SplitMix64: good enough for offsets and data, and costs a nanosecond.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pattern: Pattern, read_percent: u8) -> Load {
        Load { pattern, read_percent, block_size: 8192, seed: 7, ..Load::default() }
    }

    fn steps(load: &Load, range: Range<u64>, n: usize) -> Vec<Step> {
        let mut plan = Plan::new(load, &range);
        (0..n).map(|_| plan.next()).collect()
    }

    #[test]
    fn sequential_goes_round_and_leaves_out_the_odd_end() {
        let offsets: Vec<u64> =
            steps(&load(Pattern::Sequential, 0), 4096..4 * 8192, 5).iter().map(|s| s.offset).collect();
        assert_eq!(offsets, [4096, 12288, 20480, 4096, 12288]);
    }

    #[test]
    fn random_reaches_every_place_and_no_other() {
        let mut hits = [0u32; 16];
        for step in steps(&load(Pattern::Random, 100), 0..16 * 8192, 1600) {
            assert!(step.offset.is_multiple_of(8192) && step.is_read);
            hits[(step.offset / 8192) as usize] += 1;
        }
        assert!(hits.iter().all(|n| (50..200).contains(n)), "{hits:?}");
    }

    #[test]
    fn the_mix_is_kept_and_the_seed_decides() {
        let mixed = load(Pattern::Random, 70);
        let reads = steps(&mixed, 0..1 << 20, 1000).iter().filter(|s| s.is_read).count();
        assert!((650..750).contains(&reads), "{reads}");
        assert_eq!(steps(&mixed, 0..1 << 20, 50), steps(&mixed, 0..1 << 20, 50));
        let other = Load { seed: 8, ..mixed.clone() };
        assert_ne!(steps(&mixed, 0..1 << 20, 50), steps(&other, 0..1 << 20, 50));
    }
}
