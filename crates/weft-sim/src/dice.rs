//! Randomness of plans: what a seed decides before anything runs, so that a fault that is left out changes no other.

use std::time::Duration;

/// A generator of its own (SplitMix64), apart from that of the simulated world.
pub struct Dice(u64);

impl Dice {
    /// Dice of a seed.
    pub fn of(seed: u64) -> Dice {
        Dice(seed ^ 0xd1ce_d1ce_d1ce_d1ce)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Likewise, as an index.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// Once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Between so many milliseconds, in steps of a microsecond.
    pub fn ms(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(low * 1000 + self.below((high - low) * 1000 + 1))
    }

    /// A length that is mostly short and sometimes long: within a factor of two of a power of two between these.
    pub fn ms_log(&mut self, low: u64, high: u64) -> Duration {
        let doublings = (high / low.max(1)).ilog2() + 1;
        let top = low << self.below(u64::from(doublings) + 1);
        self.ms(low, top.clamp(low + 1, high))
    }
}
