//! How full a pool may become before people are told, and the words for it; and what a drive keeps for names.

use crate::block::BlockCount;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A level that was reached ends only this far below where it began, in thousandths: a pool that
/// hovers around a level is told about once, not with every block.
const HYSTERESIS_PERMILLE: u32 = 20;

/// At which part of its capacity a pool's fullest drive is worth a word.
///
/// At 80 % there is time: a fabric that grows by one percent a day has ten days to the next level,
/// and drives can be ordered. It is also about where the other copies of a lost drive stop fitting
/// on the rest of a pool of five drives (the 80 % of one are 20 % of each of the four others). At
/// 90 % there is none: a rebuild or a night's load fills the rest, the store keeps some percent for
/// itself, and free space is in pieces. Both are what most storage systems warn at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityLevels {
    /// From here on it is a warning, in percent: 1 to 98.
    pub warning_percent: u8,
    /// From here on it is critical, in percent: above the warning, at most 99.
    pub critical_percent: u8,
}

impl Default for CapacityLevels {
    fn default() -> Self {
        CapacityLevels { warning_percent: 80, critical_percent: 90 }
    }
}

impl CapacityLevels {
    /// Whether nobody has changed them: then they are left out of the map.
    pub fn is_default(&self) -> bool {
        *self == CapacityLevels::default()
    }

    /// Whether they are in order and in range.
    pub fn is_valid(&self) -> bool {
        0 < self.warning_percent
            && self.warning_percent < self.critical_percent
            && self.critical_percent < 100
    }

    /// The level of something that is so full, in thousandths, or that takes no more writes;
    /// `before` is the level that it had, which ends only some way below where it began.
    pub fn level(&self, used_permille: u32, is_full: bool, before: CapacityLevel) -> CapacityLevel {
        if is_full {
            return CapacityLevel::Full;
        }
        let from = |percent: u8, level: CapacityLevel| {
            let slack = if before >= level { HYSTERESIS_PERMILLE } else { 0 };
            used_permille + slack >= u32::from(percent) * 10
        };
        if from(self.critical_percent, CapacityLevel::Critical) {
            CapacityLevel::Critical
        } else if from(self.warning_percent, CapacityLevel::Warning) {
            CapacityLevel::Warning
        } else {
            CapacityLevel::Normal
        }
    }
}

/// How full something is, in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityLevel {
    /// There is room.
    #[default]
    Normal,
    /// It is time to add drives, or to delete something.
    Warning,
    /// It is high time.
    Critical,
    /// Writes of new data are refused somewhere.
    Full,
}

impl fmt::Display for CapacityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CapacityLevel::Normal => "normal",
            CapacityLevel::Warning => "warning",
            CapacityLevel::Critical => "critical",
            CapacityLevel::Full => "full",
        })
    }
}

/// Blocks that a drive keeps for the names of files, so that files can be removed when it is full otherwise.
/// A drive of 8 GiB or more keeps 64 MiB, as much as the log of a shard. A smaller one keeps a 128th of its
/// size, but not less than 8 MiB or a sixteenth of its size, whichever is smaller: checkpoints need that.
pub fn names_reserve(capacity: BlockCount) -> BlockCount {
    const USUAL: u64 = 16_384;
    const USUAL_SHARE: u64 = 128;
    const LEAST: u64 = 2048;
    const LEAST_SHARE: u64 = 16;
    BlockCount(USUAL.min(capacity.0 / USUAL_SHARE).max(LEAST.min(capacity.0 / LEAST_SHARE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_begins_where_it_says_and_ends_some_way_below() {
        let levels = CapacityLevels::default();
        let mut level = CapacityLevel::Normal;
        let mut told = Vec::new();
        let way = [799, 800, 795, 781, 800, 780, 779, 801, 899, 900, 881, 880, 879, 781, 700];
        for used in way {
            let next = levels.level(used, false, level);
            if next != level {
                told.push((used, next));
            }
            level = next;
        }
        use CapacityLevel::{Critical, Normal, Warning};
        let expected =
            [(800, Warning), (779, Normal), (801, Warning), (900, Critical), (879, Warning), (700, Normal)];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_is_full_is_full_at_any_part_and_falls_back_to_what_its_part_says() {
        let levels = CapacityLevels::default();
        assert_eq!(levels.level(100, true, CapacityLevel::Normal), CapacityLevel::Full);
        assert_eq!(levels.level(890, false, CapacityLevel::Full), CapacityLevel::Critical);
        assert_eq!(levels.level(100, false, CapacityLevel::Full), CapacityLevel::Normal);
    }

    #[test]
    fn levels_out_of_order_are_not_valid() {
        let levels = |warning_percent, critical_percent| CapacityLevels { warning_percent, critical_percent };
        assert!(levels(80, 90).is_valid() && levels(1, 99).is_valid());
        assert!(!levels(0, 90).is_valid() && !levels(90, 90).is_valid() && !levels(80, 100).is_valid());
    }
}
