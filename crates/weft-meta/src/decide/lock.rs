//! Locks of programs on files (F11).

use super::draft::Draft;
use crate::key::Key;
use crate::record::encode_lock;
use weft_rules::{Mutation, mutated};
use weft_types::limits::FILE_LOCKS_MAX;
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{Answer, FileError, FileLock, LockOwner};

impl Draft<'_> {
    /// Gives the owner this lock, and no other one in its range. The session must have the file open, in
    /// any mode.
    pub(super) fn lock(&mut self, inode: InodeNumber, lock: &FileLock) -> Result<Answer, FileError> {
        self.inode(inode)?;
        if self.get(&Key::held(inode, self.session)).is_none() {
            return Err(FileError::Stale);
        }
        if self.lock_in_the_way(inode, lock).is_some() && !mutated(Mutation::LockUnseen) {
            return Err(FileError::Locked);
        }
        let before = self.locks_of(inode, lock.owner);
        let mut after = apart_from(&before, lock.start, lock.last, Some(lock));
        after.push(joined(&before, *lock));
        let others = self
            .tables
            .locks(inode)
            .filter(|(session, other)| *session == self.session && other.owner != lock.owner);
        if others.count() + after.len() > FILE_LOCKS_MAX {
            return Err(FileError::NoLocks);
        }
        self.put_locks(inode, &before, &after);
        Ok(Answer::Done)
    }

    /// The owner has no lock in a range.
    pub(super) fn unlock(
        &mut self,
        inode: InodeNumber,
        owner: LockOwner,
        (start, last): (u64, u64),
    ) -> Result<Answer, FileError> {
        let before = self.locks_of(inode, owner);
        let after = apart_from(&before, start, last, None);
        let is_split = after.len() > before.len();
        if is_split && self.tables.locks(inode).filter(|(s, _)| *s == self.session).count() >= FILE_LOCKS_MAX
        {
            return Err(FileError::NoLocks);
        }
        self.put_locks(inode, &before, &after);
        Ok(Answer::Done)
    }

    /// A lock of somebody else that would be in the way of this one.
    pub(super) fn find_lock(&mut self, inode: InodeNumber, lock: &FileLock) -> Result<Answer, FileError> {
        self.inode(inode)?;
        Ok(Answer::Lock(self.lock_in_the_way(inode, lock)))
    }

    /// The session has no lock of the inode.
    pub(super) fn drop_locks(&mut self, inode: InodeNumber) {
        if mutated(Mutation::LockKept) {
            return;
        }
        let session = self.session;
        let owned = self.tables.locks(inode).filter(|(owner, _)| *owner == session);
        let keys: Vec<Key> = owned.map(|(_, lock)| key_of(inode, session, &lock)).collect();
        keys.into_iter().for_each(|key| self.delete(key));
    }

    /// The number of a process means something on its own machine only.
    fn lock_in_the_way(&self, inode: InodeNumber, lock: &FileLock) -> Option<FileLock> {
        let (session, found) = self.tables.locks_in_the_way(inode, self.session, *lock).next()?;
        let process = if session == self.session { found.process } else { 0 };
        Some(FileLock { process, ..found })
    }

    fn locks_of(&self, inode: InodeNumber, owner: LockOwner) -> Vec<FileLock> {
        let locks = self.tables.locks(inode);
        let own = locks.filter(|(session, lock)| *session == self.session && lock.owner == owner);
        own.map(|(_, lock)| lock).collect()
    }

    fn put_locks(&mut self, inode: InodeNumber, before: &[FileLock], after: &[FileLock]) {
        let session = self.session;
        let is_gone = |lock: &&FileLock| after.iter().all(|other| other.start != lock.start);
        before.iter().filter(is_gone).for_each(|lock| self.delete(key_of(inode, session, lock)));
        for lock in after.iter().filter(|lock| !before.contains(lock)) {
            self.put(key_of(inode, session, lock), encode_lock(lock));
        }
    }
}

fn key_of(inode: InodeNumber, session: SessionId, lock: &FileLock) -> Key {
    Key::lock(inode, session, lock.owner, lock.start)
}

/// What is left of an owner's locks outside a range, without those that are joined with a new one.
fn apart_from(before: &[FileLock], start: u64, last: u64, new: Option<&FileLock>) -> Vec<FileLock> {
    let mut after = Vec::new();
    for lock in before {
        if new.is_some_and(|new| is_joined(lock, new)) {
            continue;
        }
        if lock.last < start || last < lock.start {
            after.push(*lock);
            continue;
        }
        if lock.start < start {
            after.push(FileLock { last: start - 1, ..*lock });
        }
        if lock.last > last {
            after.push(FileLock { start: last + 1, ..*lock });
        }
    }
    after
}

/// Whether two locks of one owner are one: of one mode, and without a gap.
fn is_joined(lock: &FileLock, new: &FileLock) -> bool {
    let touches = lock.start <= new.last.saturating_add(1) && new.start <= lock.last.saturating_add(1);
    lock.mode == new.mode && touches
}

/// A new lock with those of its owner that it is joined with.
fn joined(before: &[FileLock], new: FileLock) -> FileLock {
    let with = before.iter().filter(|lock| is_joined(lock, &new));
    with.fold(new, |joined, lock| FileLock {
        start: joined.start.min(lock.start),
        last: joined.last.max(lock.last),
        ..joined
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::random_below;
    use weft_rt::sim::Sim;
    use weft_wire::files::{LockFamily, LockMode};

    /// Bytes that a file of the model has.
    const BYTES: u64 = 24;

    fn lock(start: u64, last: u64, mode: LockMode) -> FileLock {
        let owner = LockOwner { family: LockFamily::Range, id: 1 };
        FileLock { owner, start, last, mode, process: 0 }
    }

    /// The mode of each byte.
    fn bytes_of(locks: &[FileLock]) -> Vec<Option<LockMode>> {
        let mode = |at: u64| locks.iter().find(|lock| lock.start <= at && at <= lock.last).map(|l| l.mode);
        (0..BYTES).map(mode).collect()
    }

    #[test]
    fn an_owners_locks_are_as_if_each_byte_had_one() {
        Sim::new(1).block_on(async {
            for _ in 0..2_000 {
                let (mut locks, mut model) = (Vec::new(), vec![None; BYTES as usize]);
                for _ in 0..random_below(20) {
                    let (a, b) = (random_below(BYTES), random_below(BYTES));
                    let (start, last) = (a.min(b), a.max(b));
                    let mode = LockMode::from_u8(random_below(3) as u8);
                    locks = step(&locks, start, last, mode);
                    model[start as usize..=last as usize].fill(mode);
                    assert_eq!(bytes_of(&locks), model);
                }
            }
        });
    }

    /// The locks after one was taken, or a range was given back: as few as may be.
    fn step(locks: &[FileLock], start: u64, last: u64, mode: Option<LockMode>) -> Vec<FileLock> {
        let new = mode.map(|mode| lock(start, last, mode));
        let mut after = apart_from(locks, start, last, new.as_ref());
        after.extend(new.map(|new| joined(locks, new)));
        after.sort_by_key(|lock| lock.start);
        let is_apart = |pair: &[FileLock]| {
            pair[0].last < pair[1].start && (pair[0].mode != pair[1].mode || pair[0].last + 1 < pair[1].start)
        };
        assert!(after.windows(2).all(is_apart), "{after:?}");
        after
    }
}
