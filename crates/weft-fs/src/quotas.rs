//! Quotas of a file system, set and read in all of its shards (F16).

use crate::error::FsError;
use crate::mount::Mount;
use std::collections::BTreeMap;
use weft_types::InodeNumber;
use weft_wire::files::{Answer, FileError, Operation, QuotaAmount, QuotaOf};

/// What a user, group or project uses of a file system, and may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaReport {
    /// Whose it is.
    pub of: QuotaOf,
    /// What its inodes use: files up to their ends.
    pub used: QuotaAmount,
    /// Bytes beyond the ends of files that their writers have asked for. They count as long as the files are
    /// open to write.
    pub reserved: u64,
    /// What may be used.
    pub limit: QuotaAmount,
    /// The directory that a project begins with, if that is known.
    pub directory: Option<InodeNumber>,
    /// Shards that have another limit: it was not set to its end.
    pub otherwise_in: Vec<u16>,
}

impl Mount {
    /// The shards that have inodes, the first one last.
    pub fn shards_of_quotas(&self) -> impl Iterator<Item = u16> + use<> {
        let shards = if self.is_spread() { self.shards() } else { 1 };
        (0..shards).rev()
    }

    /// Limits what a user, group or project may use of the file system. Durable in all shards once this has
    /// returned. If it fails, some shards may go by the new limit and some by the old one; it can be set
    /// again. The first shard is asked last: only then do the shards hand out what they do not use.
    /// `directory`: the first directory of a project; `None` keeps what is known of it.
    ///
    /// # Errors
    /// If a shard does not answer, or its server is of a release that knows no quotas.
    pub async fn set_quota(
        &self,
        of: QuotaOf,
        limit: QuotaAmount,
        directory: Option<InodeNumber>,
    ) -> Result<(), FsError> {
        let directory = directory.unwrap_or(InodeNumber(0));
        for shard in self.shards_of_quotas() {
            let operation = Operation::SetQuota(InodeNumber::whole_of(shard), of, limit, directory);
            match self.ask(shard, operation).await? {
                Answer::Done => {}
                Answer::Failed(error) => return Err(refused(error)),
                _ => return Err(FsError::OtherAnswer { shard }),
            }
        }
        Ok(())
    }

    /// What users, groups and projects use and may use, from the first to the last one, in their order: all
    /// of which something is used or limited. Shards are asked one after the other, so what moves between
    /// users meanwhile may be missing or counted twice.
    ///
    /// # Errors
    /// As [`Mount::set_quota`].
    pub async fn quotas(&self, first: QuotaOf, last: QuotaOf) -> Result<Vec<QuotaReport>, FsError> {
        let mut reports = BTreeMap::<QuotaOf, QuotaReport>::new();
        let mut limits = BTreeMap::<QuotaOf, Vec<(u16, QuotaAmount)>>::new();
        for shard in self.shards_of_quotas() {
            let mut from = Some(first);
            while let Some(next) = from {
                let list = match self.ask(shard, Operation::Quotas(next)).await? {
                    Answer::Quotas(list) => list,
                    Answer::Failed(error) => return Err(refused(error)),
                    _ => return Err(FsError::OtherAnswer { shard }),
                };
                let end = list.quotas.last().and_then(|end| end.of.next());
                from = end.filter(|next| !list.is_end && *next <= last);
                for quota in list.quotas.into_iter().filter(|quota| quota.of <= last) {
                    let report = reports.entry(quota.of).or_insert(QuotaReport {
                        of: quota.of,
                        used: QuotaAmount::default(),
                        reserved: 0,
                        limit: QuotaAmount::UNLIMITED,
                        directory: None,
                        otherwise_in: Vec::new(),
                    });
                    report.used = report.used.plus(quota.used);
                    report.reserved = report.reserved.saturating_add(quota.reserved);
                    report.directory =
                        Some(quota.directory).filter(|found| *found != InodeNumber(0)).or(report.directory);
                    limits.entry(quota.of).or_default().push((shard, quota.limit));
                }
            }
        }
        let shards: Vec<u16> = self.shards_of_quotas().collect();
        for (of, report) in &mut reports {
            let said: BTreeMap<u16, QuotaAmount> = limits.remove(of).into_iter().flatten().collect();
            let limit = |shard: &u16| said.get(shard).copied().unwrap_or(QuotaAmount::UNLIMITED);
            report.limit = limit(&0);
            report.otherwise_in = shards.iter().copied().filter(|s| limit(s) != report.limit).rev().collect();
        }
        Ok(reports.into_values().collect())
    }

    /// What one user, group or project uses and may use.
    ///
    /// # Errors
    /// As [`Mount::quotas`].
    pub async fn quota(&self, of: QuotaOf) -> Result<QuotaReport, FsError> {
        let found = self.quotas(of, of).await?.pop();
        let (used, limit) = (QuotaAmount::default(), QuotaAmount::UNLIMITED);
        let (directory, otherwise_in) = (None, Vec::new());
        Ok(found.unwrap_or(QuotaReport { of, used, reserved: 0, limit, directory, otherwise_in }))
    }
}

fn refused(error: FileError) -> FsError {
    FsError::Refused { path: String::new(), error }
}
