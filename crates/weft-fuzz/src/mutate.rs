//! Inputs made of other inputs: deterministic, so that a run is the same everywhere and every time.

/// Values that sit at the edges of what fields can hold.
const EDGES: [u64; 12] =
    [0, 1, 2, 127, 128, 255, 256, u16::MAX as u64, u32::MAX as u64, 1 << 48, i64::MAX as u64, u64::MAX];

/// Words that turn documents into others.
const WORDS: [&str; 12] = [
    "0",
    "-1",
    "18446744073709551615",
    "18446744073709551616",
    "4294967295",
    "1e308",
    "null",
    "[]",
    "{}",
    "\"\"",
    "true",
    "9999-12-31T23:59:59.999Z",
];

/// Bytes of the longest input that is made.
const INPUT_MAX: usize = 8 << 10;

/// Makes inputs.
#[derive(Clone, Debug)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// One that makes the same inputs whenever it is made with the same name.
    pub fn named(name: &str) -> Mutator {
        // FNV-1a (Fowler, Noll, Vo), 64 bits.
        let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Mutator { state: name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, hash) }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// An input that comes from one of these, changed in one to a few ways.
    pub fn input(&mut self, from: &[Vec<u8>]) -> Vec<u8> {
        let mut input = match from.len() {
            0 => Vec::new(),
            count => from[self.below(count)].clone(),
        };
        for _ in 0..1 << self.below(4) {
            self.change(&mut input, from);
        }
        input.truncate(INPUT_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>, from: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        let rest = input.len() - at;
        match self.below(10) {
            0 if rest > 0 => input[at] ^= 1 << self.below(8),
            1 if rest > 0 => input[at] = self.next() as u8,
            2 => input.truncate(at),
            3 => input.insert(at, self.next() as u8),
            4 if rest > 0 => drop(input.drain(at..at + 1 + self.below(rest.min(32)))),
            5 => {
                // A field of any width takes a value from an edge, or next to one.
                let value = EDGES[self.below(EDGES.len())].wrapping_add(self.next() % 3).wrapping_sub(1);
                let width = rest.min([1, 2, 4, 8][self.below(4)]);
                let bytes = if self.below(8) > 0 { value.to_le_bytes() } else { value.to_be_bytes() };
                input[at..at + width].copy_from_slice(&bytes[..width]);
            }
            6 => {
                // A part comes twice, or moves.
                let length = self.below(rest.min(64) + 1);
                let part = input[at..at + length].to_vec();
                let to = self.below(input.len() + 1);
                drop(input.splice(to..to, part));
            }
            7 if !from.is_empty() => {
                let other = &from[self.below(from.len())];
                let (start, length) = (self.below(other.len() + 1), self.below(128));
                let part = other[start..other.len().min(start + length)].to_vec();
                let end = at + self.below(rest + 1);
                drop(input.splice(at..end, part));
            }
            8 => {
                // The number or word that stands there becomes another.
                let is_of = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
                let end = at + input[at..].iter().take_while(|b| is_of(b)).count();
                let start = at - input[..at].iter().rev().take_while(|b| is_of(b)).count();
                let word = WORDS[self.below(WORDS.len())];
                drop(input.splice(start..end, word.bytes()));
            }
            _ => {
                let count = self.below(rest.min(8) + 1);
                for byte in &mut input[at..at + count] {
                    *byte = self.next() as u8;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_same_name_makes_the_same_inputs_and_they_differ() {
        let from = [b"{\"a\":12}".to_vec(), vec![7; 40]];
        let make = |name| {
            let mut mutator = Mutator::named(name);
            (0..500).map(|_| mutator.input(&from)).collect::<Vec<_>>()
        };
        assert_eq!(make("x"), make("x"));
        assert_ne!(make("x"), make("y"));
        let different: BTreeSet<_> = make("x").into_iter().collect();
        assert!(different.len() > 400, "{}", different.len());
    }
}
