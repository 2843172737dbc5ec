//! Quotas: how much space and how many inodes users, groups and projects may use of a file system, and do use
//! (F16).

use super::{decode_bool, decode_count};
use crate::{DecodeError, Decoder, Encoder};
use weft_types::InodeNumber;
use weft_types::limits::QUOTAS_LISTED_MAX;

/// By what inodes are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QuotaKind {
    /// By owner.
    User = 1,
    /// By group.
    Group = 2,
    /// By project: what an inode gets from its directory ([`super::Operation::SetProject`]). Inodes of
    /// project 0 are not counted.
    Project = 3,
}

impl QuotaKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    /// The kind with this number.
    pub fn from_u8(n: u8) -> Option<QuotaKind> {
        QuotaKind::ALL.into_iter().find(|kind| *kind as u8 == n)
    }
}

/// Whose inodes are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuotaOf {
    /// User, group or project.
    pub kind: QuotaKind,
    /// Its number.
    pub id: u32,
}

impl QuotaOf {
    /// The first one in their order.
    pub const FIRST: QuotaOf = QuotaOf { kind: QuotaKind::User, id: 0 };

    /// The next one in their order; `None` behind the last one.
    pub fn next(self) -> Option<QuotaOf> {
        match self.id.checked_add(1) {
            Some(id) => Some(QuotaOf { id, ..self }),
            None => Some(QuotaOf { kind: QuotaKind::from_u8(self.kind as u8 + 1)?, id: 0 }),
        }
    }

    /// Appends kind (1) and number (4).
    pub fn encode(&self, e: &mut Encoder) {
        e.u8(self.kind as u8).u32(self.id);
    }

    /// Takes one.
    ///
    /// # Errors
    /// If the bytes end early, or the kind is unknown.
    pub fn decode(d: &mut Decoder<'_>) -> Result<QuotaOf, DecodeError> {
        let n = d.u8()?;
        let kind = QuotaKind::from_u8(n).ok_or(DecodeError::Invalid { field: "quota", value: n.into() })?;
        Ok(QuotaOf { kind, id: d.u32()? })
    }
}

/// Space and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaAmount {
    /// Bytes of data, in whole blocks. Copies do not count, holes do. As a limit, `u64::MAX` stands for
    /// no limit.
    pub bytes: u64,
    /// Inodes. As a limit, `u64::MAX` stands for no limit.
    pub inodes: u64,
}

impl QuotaAmount {
    /// No limit.
    pub const UNLIMITED: QuotaAmount = QuotaAmount { bytes: u64::MAX, inodes: u64::MAX };

    /// Whether this is no more than the other one, of either.
    pub fn fits(self, most: QuotaAmount) -> bool {
        self.bytes <= most.bytes && self.inodes <= most.inodes
    }

    /// Both together.
    pub fn plus(self, other: QuotaAmount) -> QuotaAmount {
        QuotaAmount {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }

    /// This without the other one; nothing where that is more.
    pub fn minus(self, other: QuotaAmount) -> QuotaAmount {
        QuotaAmount {
            bytes: self.bytes.saturating_sub(other.bytes),
            inodes: self.inodes.saturating_sub(other.inodes),
        }
    }

    /// The smaller one of each.
    pub fn least(self, other: QuotaAmount) -> QuotaAmount {
        QuotaAmount { bytes: self.bytes.min(other.bytes), inodes: self.inodes.min(other.inodes) }
    }

    /// The larger one of each.
    pub fn most(self, other: QuotaAmount) -> QuotaAmount {
        QuotaAmount { bytes: self.bytes.max(other.bytes), inodes: self.inodes.max(other.inodes) }
    }

    /// Appends bytes (8) and inodes (8).
    pub fn encode(&self, e: &mut Encoder) {
        e.u64(self.bytes).u64(self.inodes);
    }

    /// Takes one.
    ///
    /// # Errors
    /// If the bytes end early.
    pub fn decode(d: &mut Decoder<'_>) -> Result<QuotaAmount, DecodeError> {
        Ok(QuotaAmount { bytes: d.u64()?, inodes: d.u64()? })
    }
}

/// What one shard says of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaUse {
    /// Whose it is.
    pub of: QuotaOf,
    /// What the shard's inodes use: files up to their ends.
    pub used: QuotaAmount,
    /// Bytes beyond the ends of files that their writers have asked for. They count as long as the files are
    /// open to write.
    pub reserved: u64,
    /// What may be used in all shards.
    pub limit: QuotaAmount,
    /// What may be used in this shard before it has to ask for more.
    pub budget: QuotaAmount,
    /// The directory that a project begins with; 0 if that is not known.
    pub directory: InodeNumber,
}

/// What a shard says of quotas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaList {
    /// Those of which something is used or limited, [`QUOTAS_LISTED_MAX`] or fewer, in their order.
    pub quotas: Vec<QuotaUse>,
    /// Whether there are none behind these.
    pub is_end: bool,
}

impl QuotaList {
    pub(super) fn encode(&self, e: &mut Encoder) {
        e.u8(self.is_end.into()).u32(self.quotas.len() as u32);
        for QuotaUse { of, used, reserved, limit, budget, directory } in &self.quotas {
            of.encode(e);
            used.encode(e);
            e.u64(*reserved);
            limit.encode(e);
            budget.encode(e);
            e.u64(directory.0);
        }
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<QuotaList, DecodeError> {
        let is_end = decode_bool(d, "end of quotas")?;
        let quotas = (0..decode_count(d, "quotas", QUOTAS_LISTED_MAX)?).map(|_| {
            Ok(QuotaUse {
                of: QuotaOf::decode(d)?,
                used: QuotaAmount::decode(d)?,
                reserved: d.u64()?,
                limit: QuotaAmount::decode(d)?,
                budget: QuotaAmount::decode(d)?,
                directory: InodeNumber(d.u64()?),
            })
        });
        Ok(QuotaList { quotas: quotas.collect::<Result<_, DecodeError>>()?, is_end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_follow_each_other() {
        let last_user = QuotaOf { kind: QuotaKind::User, id: u32::MAX };
        let first_group = QuotaOf { kind: QuotaKind::Group, id: 0 };
        assert_eq!(QuotaOf::FIRST.next(), Some(QuotaOf { id: 1, ..QuotaOf::FIRST }));
        assert_eq!(last_user.next(), Some(first_group));
        let last_project = QuotaOf { kind: QuotaKind::Project, id: u32::MAX };
        assert_eq!(last_project.next(), None);
        assert!(QuotaOf::FIRST < last_user && last_user < first_group && first_group < last_project);
    }
}
