//! Sizes as people read them, in texts of refusals and reasons. Never for machines.

use std::fmt;
use weft_types::{BLOCK_SIZE, BlockCount};

/// A size in the largest binary unit that leaves at least 1, with one digit after the point, rounded down.
pub struct Size(
    /// How many blocks.
    pub BlockCount,
);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.0.0) * BLOCK_SIZE as u128;
        if bytes == 0 {
            return f.write_str("0 B");
        }
        // A block is 4 KiB, so no size but 0 is below 1 KiB.
        let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = ((bytes.ilog2() / 10) as usize).clamp(1, units.len());
        let tenths = (bytes * 10) >> (10 * power);
        match tenths % 10 {
            0 => write!(f, "{} {}", tenths / 10, units[power - 1]),
            digit => write!(f, "{}.{digit} {}", tenths / 10, units[power - 1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        for (blocks, text) in [
            (0, "0 B"),
            (1, "4 KiB"),
            (255, "1020 KiB"),
            (256, "1 MiB"),
            (400, "1.5 MiB"),
            (1 << 28, "1 TiB"),
            (u64::MAX, "65535.9 EiB"),
        ] {
            assert_eq!(Size(BlockCount(blocks)).to_string(), text);
        }
    }
}
