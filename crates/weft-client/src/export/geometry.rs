//! How large an export is, and which ranges of it a request may name.

use crate::export::{Fault, FaultKind};
use weft_types::AttachMode;

/// What a client has to know of an export. The size is as of now: it may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes.
    pub size: u64,
    /// What offsets and lengths must be multiples of, in bytes: 512 where the volume is attached exclusively,
    /// else 4096.
    pub logical_block: u32,
    /// Bytes of the smallest write that needs no reading before.
    pub physical_block: u32,
    /// What clients may do.
    pub mode: AttachMode,
}

/// A run of bytes inside an export: not empty, aligned, within its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Geometry {
    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.mode == AttachMode::ReadOnly
    }

    /// The range that a request names.
    ///
    /// # Errors
    /// [`FaultKind::Alignment`], [`FaultKind::Range`].
    pub fn check(&self, offset: u64, length: u64) -> Result<ByteRange, Fault> {
        let unit = u64::from(self.logical_block);
        if length == 0 || !length.is_multiple_of(unit) || !offset.is_multiple_of(unit) {
            let text = format!("{length} bytes at {offset} are not whole blocks of {unit} bytes");
            return Err(Fault::new(FaultKind::Alignment, text));
        }
        if offset.checked_add(length).is_none_or(|end| end > self.size) {
            let text = format!("{length} bytes at {offset} pass the end of the export at {}", self.size);
            return Err(Fault::new(FaultKind::Range, text));
        }
        Ok(ByteRange { offset, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_accepted_is_aligned_and_inside(
            offset: u64, length in 0u64..1 << 33, size in 0u64..1 << 40, shift in 9u32..13, near: bool,
        ) {
            let logical_block = 1 << shift;
            let geometry =
                Geometry { size, logical_block, physical_block: 4096, mode: AttachMode::Exclusive };
            // Half of the offsets near the export, or nearly all would be refused for the same reason.
            let unit = u64::from(logical_block);
            let (offset, length) = match near {
                true => ((offset >> 22) & !(unit - 1), length & !(unit - 1)),
                false => (offset, length),
            };
            match geometry.check(offset, length) {
                Ok(range) => {
                    prop_assert!(range.offset + range.length <= size && range.length > 0);
                    prop_assert!(range.offset % unit == 0 && range.length % unit == 0);
                }
                Err(fault) if fault.kind == FaultKind::Alignment => {
                    prop_assert!(length == 0 || length % unit != 0 || offset % unit != 0);
                }
                Err(fault) => {
                    prop_assert_eq!(fault.kind, FaultKind::Range);
                    prop_assert!(u128::from(offset) + u128::from(length) > u128::from(size));
                }
            }
        }
    }
}
