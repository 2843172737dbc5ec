//! Quotas: what a change adds to what users, groups and projects use, and whether that much may be used
//! (F16).

use super::draft::Draft;
use crate::change::Change;
use crate::foreign::Need;
use crate::key::{Key, KeyParts};
use crate::record::{Inode, Value, decode_hold, decode_number, encode_number};
use crate::usage::{charge, owners};
use std::collections::{BTreeMap, BTreeSet};
use weft_rules::{Mutation, mutated};
use weft_types::InodeNumber;
use weft_wire::files::{Answer, FileError, Operation, QuotaAmount, QuotaOf};

impl Draft<'_> {
    /// Limits what may be used.
    pub(super) fn set_quota(
        &mut self,
        whole: InodeNumber,
        of: QuotaOf,
        limit: QuotaAmount,
        directory: InodeNumber,
    ) -> Result<Answer, FileError> {
        if whole != self.tables.whole() {
            return Err(FileError::Invalid);
        }
        self.changes.extend(self.tables.limited(of, limit, directory));
        Ok(Answer::Done)
    }

    /// Has an inode belong to a project.
    pub(super) fn set_project(&mut self, inode: InodeNumber, project: u32) -> Result<Answer, FileError> {
        let inode = Inode { project, ..self.inode(inode)? };
        self.put(Key::inode(inode.attributes.inode), inode.encode());
        Ok(Answer::Project(project))
    }

    /// The project of an inode.
    pub(super) fn project(&self, inode: InodeNumber) -> Result<Answer, FileError> {
        self.inode(inode).map(|inode| Answer::Project(inode.project))
    }

    /// Whether an inode may get a name in a directory. What is counted for a project lies in its directories.
    /// A directory that a project begins with has another one than the directory that it is in, and goes
    /// where that may go.
    ///
    /// # Errors
    /// If the directory belongs to another project.
    pub(super) fn fits_project(
        &self,
        inode: &Inode,
        from: Option<InodeNumber>,
        to: InodeNumber,
    ) -> Result<(), FileError> {
        let to = self.directory(to)?.project;
        let is_same = |from: InodeNumber| Ok(self.directory(from)?.project == to);
        match inode.project == to || mutated(Mutation::ProjectLeft) || from.map_or(Ok(false), is_same)? {
            true => Ok(()),
            false => Err(FileError::OtherProject),
        }
    }

    /// Whether what was done leads to no more than may be used. A quota that is used up beyond its limit
    /// hinders only what makes it more. What a session says of a file that it has written is never hindered:
    /// its bytes were reserved.
    ///
    /// # Errors
    /// If no more may be used.
    pub(super) fn within_quotas(&self, operation: &Operation) -> Result<(), FileError> {
        let is_said = matches!(
            operation,
            Operation::Release(..) | Operation::Grow(..) | Operation::Unreserve(..) | Operation::SetQuota(..)
        );
        if is_said || self.need.borrow().is_some() || !self.tables.has_quotas() {
            return Ok(());
        }
        for (of, (before, after)) in self.uses() {
            let Some(quota) = self.tables.quota(of).filter(|_| !mutated(Mutation::QuotaUnchecked)) else {
                continue;
            };
            let used = self.tables.usage().of(of).charged();
            let all = |used: u64, before: u64, after: u64| match after > before {
                true => used.saturating_add(after - before),
                false => 0,
            };
            let wanted = QuotaAmount {
                bytes: all(used.bytes, before.bytes, after.bytes),
                inodes: all(used.inodes, before.inodes, after.inodes),
            };
            let once = self.foreign.once.get(&of).copied().unwrap_or_default();
            if wanted.fits(self.tables.quota_room(of, &quota, self.foreign.shards).most(once)) {
                continue;
            }
            let is_used_up = !wanted.fits(quota.limit)
                || self.foreign.used_up.contains(&of)
                || !self.tables.may_get_more(of, self.foreign.shards);
            if is_used_up {
                return Err(FileError::OverQuota);
            }
            self.needs(Need::Budget(of, wanted));
            return Ok(());
        }
        Ok(())
    }

    /// What the changed inodes counted before and count now, by whose they are.
    fn uses(&self) -> BTreeMap<QuotaOf, (QuotaAmount, QuotaAmount)> {
        let changed = self.changes.iter().filter_map(|change| match change.key().parts() {
            Some(KeyParts::Inode(inode) | KeyParts::Room(inode)) => Some(inode),
            _ => None,
        });
        let mut uses = BTreeMap::<QuotaOf, (QuotaAmount, QuotaAmount)>::new();
        let decode = |value: Value| Inode::decode(&value).expect("values are checked");
        for inode in changed.collect::<BTreeSet<_>>() {
            let key = Key::inode(inode);
            let before = match self.foreign.items.get(&key) {
                Some(item) => item.clone(),
                None => self.tables.get(&key).cloned(),
            };
            if let Some(before) = before.map(decode) {
                for of in owners(&before) {
                    let uses = uses.entry(of).or_default();
                    uses.0 = uses.0.plus(charge(&before, self.tables.room(inode)));
                }
            }
            if let Some(after) = self.get(&key).map(decode) {
                for of in owners(&after) {
                    let uses = uses.entry(of).or_default();
                    uses.1 = uses.1.plus(charge(&after, self.room(inode)));
                }
            }
        }
        uses
    }

    /// Up to where the writers of an inode may write.
    fn room(&self, inode: InodeNumber) -> u64 {
        let key = Key::room(inode);
        let changed = self.changes.iter().rev().find(|change| *change.key() == key);
        match changed {
            Some(Change::Put(_, value)) => decode_number(value).expect("values are checked"),
            Some(Change::Delete(_)) => 0,
            None => self.tables.room(inode),
        }
    }

    /// The session may write an inode up to an end from now on, which counts where a quota limits it. It may
    /// be less than before, if no other session writes it. What a session writes that does not hold the inode
    /// counts with the size.
    pub(super) fn give_room(&mut self, inode: &Inode, end: u64) {
        let number = inode.attributes.inode;
        let is_limited = || owners(inode).any(|of| self.tables.quota(of).is_some());
        if !self.tables.has_quotas() || !is_limited() || !self.is_writer(number) {
            return;
        }
        let end = match self.is_written_by_others(number) {
            true => end.max(self.tables.room(number)),
            false => end,
        };
        match end == self.tables.room(number) {
            true => {}
            false if end == 0 => self.delete(Key::room(number)),
            false => self.put(Key::room(number), encode_number(end)),
        }
    }

    /// The session does not write an inode any more.
    pub(super) fn take_room(&mut self, inode: InodeNumber) {
        if self.tables.room(inode) > 0 && !self.is_written_by_others(inode) {
            self.delete(Key::room(inode));
        }
    }

    fn is_writer(&self, inode: InodeNumber) -> bool {
        let held = self.get(&Key::held(inode, self.session));
        held.is_some_and(|held| decode_hold(&held).expect("values are checked").writes())
    }

    fn is_written_by_others(&self, inode: InodeNumber) -> bool {
        self.tables.holders(inode).any(|(holder, mode)| holder != self.session && mode.writes())
    }
}
