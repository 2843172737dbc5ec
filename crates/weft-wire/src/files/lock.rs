//! Locks that programs take on files (F11).

use crate::{DecodeError, Decoder, Encoder};

/// How a lock is taken. Locks of one family do not see those of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LockFamily {
    /// On a whole file, by an open file (`flock`).
    Whole = 0,
    /// On a range, by a process or an open file (`fcntl`).
    Range = 1,
}

/// Who has locks, among all in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// How it takes them.
    pub family: LockFamily,
    /// Its number in the kernel of the mount.
    pub id: u64,
}

/// What a lock keeps others from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LockMode {
    /// Exclusive locks.
    Shared = 1,
    /// All locks.
    Exclusive = 2,
}

/// A lock on a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileLock {
    /// Who has it, or wants it.
    pub owner: LockOwner,
    /// The first byte.
    pub start: u64,
    /// The last byte, not below the first one.
    pub last: u64,
    /// What it keeps others from.
    pub mode: LockMode,
    /// The process of who has it, for those who ask; a number on the machine of the mount.
    pub process: u32,
}

impl LockFamily {
    /// The family with this number.
    pub fn from_u8(n: u8) -> Option<LockFamily> {
        [LockFamily::Whole, LockFamily::Range].into_iter().find(|family| *family as u8 == n)
    }
}

impl LockMode {
    /// The mode with this number.
    pub fn from_u8(n: u8) -> Option<LockMode> {
        [LockMode::Shared, LockMode::Exclusive].into_iter().find(|mode| *mode as u8 == n)
    }
}

impl LockOwner {
    pub(super) fn encode(self, e: &mut Encoder) {
        e.u8(self.family as u8).u64(self.id);
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<LockOwner, DecodeError> {
        let n = d.u8()?;
        let family = LockFamily::from_u8(n);
        let family = family.ok_or(DecodeError::Invalid { field: "lock family", value: n.into() })?;
        Ok(LockOwner { family, id: d.u64()? })
    }
}

impl FileLock {
    /// Whether both cannot be had at once: by different owners of one family.
    pub fn excludes(&self, other: &FileLock) -> bool {
        let is_exclusive = self.mode == LockMode::Exclusive || other.mode == LockMode::Exclusive;
        let is_near = self.start <= other.last && other.start <= self.last;
        self.owner.family == other.owner.family && is_exclusive && is_near
    }

    pub(super) fn encode(&self, e: &mut Encoder) {
        self.owner.encode(e);
        e.u64(self.start).u64(self.last).u8(self.mode as u8).u32(self.process);
    }

    pub(super) fn decode(d: &mut Decoder<'_>) -> Result<FileLock, DecodeError> {
        let owner = LockOwner::decode(d)?;
        let (start, last) = decode_range(d)?;
        let n = d.u8()?;
        let mode = LockMode::from_u8(n);
        let mode = mode.ok_or(DecodeError::Invalid { field: "lock mode", value: n.into() })?;
        Ok(FileLock { owner, start, last, mode, process: d.u32()? })
    }
}

/// Takes the first and the last byte of a range.
pub(super) fn decode_range(d: &mut Decoder<'_>) -> Result<(u64, u64), DecodeError> {
    let (start, last) = (d.u64()?, d.u64()?);
    match start <= last {
        true => Ok((start, last)),
        false => Err(DecodeError::Invalid { field: "last byte of a lock", value: last }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_exclude_each_other_where_they_meet_and_one_is_exclusive() {
        let owner = |family| LockOwner { family, id: 1 };
        let lock =
            |start, last, mode| FileLock { owner: owner(LockFamily::Range), start, last, mode, process: 0 };
        let (shared, exclusive) = (lock(5, 9, LockMode::Shared), lock(9, u64::MAX, LockMode::Exclusive));
        assert!(shared.excludes(&exclusive) && exclusive.excludes(&shared));
        assert!(!shared.excludes(&shared) && exclusive.excludes(&exclusive));
        assert!(!shared.excludes(&lock(10, 12, LockMode::Exclusive)));
        assert!(!shared.excludes(&FileLock { owner: owner(LockFamily::Whole), ..exclusive }));
    }

    #[test]
    fn bytes_that_are_no_lock_are_refused() {
        let owner = LockOwner { family: LockFamily::Whole, id: 7 };
        let lock = FileLock { owner, start: 3, last: 3, mode: LockMode::Shared, process: 9 };
        let mut e = Encoder::default();
        lock.encode(&mut e);
        assert_eq!(e.0.len(), 1 + 8 + 8 + 8 + 1 + 4);
        assert_eq!(FileLock::decode(&mut Decoder::new(&e.0)), Ok(lock));
        for (at, value) in [(0, 2), (9, 4), (25, 0), (25, 3)] {
            let mut wrong = e.0.clone();
            wrong[at] = value;
            assert!(FileLock::decode(&mut Decoder::new(&wrong)).is_err(), "byte {at} is {value}");
        }
        assert!(FileLock::decode(&mut Decoder::new(&e.0[..29])).is_err());
    }
}
