//! How data is protected against the loss of drives.

use crate::BlockCount;
use crate::limits::COPIES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How the data of a volume is protected. It is chosen when the volume is created, and does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Protection {
    /// Each block is on several drives.
    Mirror {
        /// Copies of each block: 1 to [`COPIES_MAX`]. One copy survives no loss.
        copies: u8,
    },
}

impl Protection {
    /// A mirror with this many copies.
    pub const fn mirror(copies: u8) -> Self {
        Protection::Mirror { copies }
    }

    /// The protection that a group of this many members gives.
    pub fn of_members(members: usize) -> Self {
        Protection::Mirror { copies: u8::try_from(members).unwrap_or(u8::MAX) }
    }

    /// Whether groups can be made for it.
    pub const fn is_valid(self) -> bool {
        match self {
            Protection::Mirror { copies } => copies > 0 && copies as usize <= COPIES_MAX,
        }
    }

    /// Members of a group: drives that hold the data, and what protects it.
    pub const fn members(self) -> usize {
        match self {
            Protection::Mirror { copies } => copies as usize,
        }
    }

    /// Members that must be left so that the data is there.
    pub const fn members_needed(self) -> usize {
        match self {
            Protection::Mirror { .. } => 1,
        }
    }

    /// Blocks on drives that so many blocks of data take. 128 bits hold the product of any two
    /// 64-bit numbers.
    pub fn raw_blocks(self, data: BlockCount) -> u128 {
        match self {
            Protection::Mirror { copies } => u128::from(data.0) * u128::from(copies),
        }
    }

    /// Blocks of data that so many blocks on drives hold, rounded up.
    pub fn data_blocks(self, raw: u128) -> u128 {
        match self {
            Protection::Mirror { copies } => raw.div_ceil(u128::from(copies.max(1))),
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protection::Mirror { copies: 1 } => f.write_str("1 copy"),
            Protection::Mirror { copies } => write!(f, "{copies} copies"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_counts_its_copies() {
        let three = Protection::mirror(3);
        assert_eq!((three.members(), three.members_needed()), (3, 1));
        assert_eq!((three.raw_blocks(BlockCount(5)), three.data_blocks(16)), (15, 6));
        assert_eq!(Protection::of_members(3), three);
        assert!(three.is_valid() && !Protection::mirror(0).is_valid() && !Protection::mirror(4).is_valid());
        assert_eq!(Protection::mirror(u8::MAX).raw_blocks(BlockCount(u64::MAX)), 255 * u128::from(u64::MAX));
        assert_eq!(serde_json::to_string(&three).expect("it serialises"), r#"{"mirror":{"copies":3}}"#);
        assert_eq!(
            (three.to_string(), Protection::mirror(1).to_string()),
            ("3 copies".into(), "1 copy".into())
        );
    }
}
