//! How a check of a shard's tables stands, and what it has found.

use super::{decode_bool, decode_bytes, decode_count, encode_bytes};
use crate::{DecodeError, Decoder, Encoder};
use weft_types::InodeNumber;
use weft_types::limits::{CHECK_FINDING_BYTES_MAX, CHECK_FINDINGS_MAX};

/// A check of a shard's tables: one that is under way, or has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableCheck {
    /// The number by which it was asked for. A shard makes one check at a time: this may be the check of
    /// somebody else.
    pub number: u64,
    /// Whether it has ended.
    pub is_over: bool,
    /// How often the tables were read from their beginning: more than once if what seemed wrong was changed
    /// meanwhile.
    pub passes: u32,
    /// Items that this pass has read.
    pub read: u64,
    /// Items that the tables have.
    pub items: u64,
    /// Inodes that were compared.
    pub inodes: u64,
    /// Names that were compared.
    pub names: u64,
    /// Inodes without a name that wait to be purged.
    pub orphans: u64,
    /// Inodes that were changed in each pass, so that nothing can be said of their names.
    pub unsettled: u64,
    /// How much is wrong.
    pub found: u64,
    /// What is wrong, at most [`CHECK_FINDINGS_MAX`] of these.
    pub findings: Vec<CheckFinding>,
}

/// Something that is wrong in a shard's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFinding {
    /// What it is about: an inode, or 0.
    pub inode: InodeNumber,
    /// What contradicts what, for people.
    pub text: String,
}

impl TableCheck {
    pub(super) fn encode(&self, e: &mut Encoder) {
        e.u64(self.number).u8(self.is_over.into()).u32(self.passes);
        for count in
            [self.read, self.items, self.inodes, self.names, self.orphans, self.unsettled, self.found]
        {
            e.u64(count);
        }
        e.u32(self.findings.len() as u32);
        for finding in &self.findings {
            encode_bytes(e.u64(finding.inode.0), finding.text.as_bytes());
        }
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<TableCheck, DecodeError> {
        let (number, is_over, passes) = (d.u64()?, decode_bool(d, "end of a check")?, d.u32()?);
        let [read, items, inodes, names, orphans, unsettled, found] = {
            let mut counts = [0; 7];
            for count in &mut counts {
                *count = d.u64()?;
            }
            counts
        };
        let findings = (0..decode_count(d, "findings", CHECK_FINDINGS_MAX)?).map(|_| {
            let inode = InodeNumber(d.u64()?);
            let text = decode_bytes(d, "finding", CHECK_FINDING_BYTES_MAX)?;
            Ok(CheckFinding { inode, text: String::from_utf8_lossy(&text).into_owned() })
        });
        let findings = findings.collect::<Result<_, DecodeError>>()?;
        Ok(TableCheck {
            number,
            is_over,
            passes,
            read,
            items,
            inodes,
            names,
            orphans,
            unsettled,
            found,
            findings,
        })
    }
}
