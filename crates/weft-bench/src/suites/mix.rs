//! Numbers that look random and follow from others: the arithmetic of contents and orders.

/// Every bit of the result depends on every bit of the number, and no two numbers have the same result: the
/// finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014),
/// behind a step of it.
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An order of the numbers below another one that looks random: a permutation, computed place by place, so
/// that it takes no memory however many there are.
///
/// It is a Feistel network over the next power of four, walked until it is within the range (Black and
/// Rogaway, "Ciphers with arbitrary finite domains", 2002).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shuffle {
    count: u64,
    seed: u64,
    half_bits: u32,
}

/// Rounds of the network: four are enough for an order that looks random, though not against an attacker.
const ROUNDS: u64 = 4;

impl Shuffle {
    /// Of this many numbers.
    pub(crate) fn new(count: u64, seed: u64) -> Shuffle {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Shuffle { count, seed, half_bits: bits.div_ceil(2).max(1) }
    }

    /// The number at this place.
    ///
    /// # Panics
    /// If there are not this many places.
    pub(crate) fn at(&self, place: u64) -> u64 {
        assert!(place < self.count, "place {place} of {}", self.count);
        let mut at = place;
        loop {
            at = self.round_trip(at);
            if at < self.count {
                return at;
            }
        }
    }

    fn round_trip(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..ROUNDS {
            let key = self.seed.wrapping_add(round);
            (left, right) = (right, left ^ (mix(right ^ mix(key)) & mask));
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_number_has_one_place_and_the_order_is_another_for_each_seed() {
        for count in [1, 2, 3, 5, 64, 1000, 4097] {
            for seed in 0..3 {
                let shuffle = Shuffle::new(count, seed);
                let numbers: BTreeSet<u64> = (0..count).map(|place| shuffle.at(place)).collect();
                assert_eq!(numbers, (0..count).collect(), "{count} numbers by seed {seed}");
            }
        }
        let first = |seed| (0..1000).map(|place| Shuffle::new(1000, seed).at(place)).collect::<Vec<_>>();
        assert_ne!(first(1), first(2));
        let steps = first(1).windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
        assert!(steps < 20, "{steps} numbers follow their neighbour");
    }
}
