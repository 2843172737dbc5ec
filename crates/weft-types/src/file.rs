//! Files: inode numbers, kinds, times and attributes.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The number of an inode in its file system. It is never used again, also after the inode is gone.
///
/// The highest 12 bits are the shard where the inode was made and stays; the other 52 count the inodes that
/// were made there, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The root directory of every file system.
    pub const ROOT: InodeNumber = InodeNumber(1);

    /// The bits of the counter.
    pub const COUNTER_BITS: u32 = 52;

    /// Shards that have room in a number.
    pub const SHARDS: u16 = 1 << (64 - Self::COUNTER_BITS);

    /// The inode that is the `counter`th of a shard.
    ///
    /// # Panics
    /// If the counter is 0 or has more than 52 bits, or the shard is not below [`InodeNumber::SHARDS`].
    pub const fn new(shard: u16, counter: u64) -> InodeNumber {
        assert!(shard < Self::SHARDS, "a shard's number has at most 12 bits");
        assert!(counter > 0 && counter >> Self::COUNTER_BITS == 0, "a counter has at most 52 bits");
        InodeNumber((shard as u64) << Self::COUNTER_BITS | counter)
    }

    /// The shard where it was made.
    pub const fn shard(self) -> u16 {
        (self.0 >> Self::COUNTER_BITS) as u16
    }

    /// Which inode of its shard it is.
    pub const fn counter(self) -> u64 {
        self.0 & ((1 << Self::COUNTER_BITS) - 1)
    }

    /// What a session holds that holds all names of a shard: in the first shard the root, in each other one a
    /// number that no inode has.
    pub const fn whole_of(shard: u16) -> InodeNumber {
        match shard {
            0 => InodeNumber::ROOT,
            _ => InodeNumber((shard as u64) << Self::COUNTER_BITS),
        }
    }

    /// Whether a hold of this, to write, is one of all names of its shard.
    pub const fn is_whole(self) -> bool {
        self.0 == InodeNumber::whole_of(self.shard()).0
    }
}

impl fmt::Display for InodeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What an inode is. The numbers are those of the wire and of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Pipe = 4,
    /// A socket's name.
    Socket = 5,
    /// A character device.
    CharacterDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

impl FileKind {
    /// All kinds.
    pub const ALL: [FileKind; 7] = [
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::Pipe,
        FileKind::Socket,
        FileKind::CharacterDevice,
        FileKind::BlockDevice,
    ];

    /// The kind with this number.
    pub fn from_u8(n: u8) -> Option<FileKind> {
        FileKind::ALL.into_iter().find(|kind| *kind as u8 == n)
    }
}

/// A point in time: seconds since 1970-01-01T00:00:00Z, negative before, and nanoseconds after that second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileTime {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

impl FileTime {
    /// Nanoseconds of a second.
    pub const SECOND: u32 = 1_000_000_000;

    /// The time so many microseconds after 1970-01-01T00:00:00Z.
    pub const fn from_us(us: u64) -> FileTime {
        FileTime { seconds: (us / 1_000_000) as i64, nanoseconds: (us % 1_000_000) as u32 * 1000 }
    }

    /// The next time that differs: a nanosecond later.
    #[must_use]
    pub fn next(self) -> FileTime {
        match self.nanoseconds + 1 {
            FileTime::SECOND => FileTime { seconds: self.seconds.saturating_add(1), nanoseconds: 0 },
            nanoseconds => FileTime { nanoseconds, ..self },
        }
    }

    /// Milliseconds after 1970-01-01T00:00:00Z; 0 of a time before.
    pub fn as_ms(self) -> u64 {
        let seconds = u64::try_from(self.seconds).unwrap_or(0);
        seconds.saturating_mul(1000).saturating_add(u64::from(self.nanoseconds / 1_000_000))
    }
}

/// What `stat` says of an inode, and what Weft keeps with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// The inode.
    pub inode: InodeNumber,
    /// What it is.
    pub kind: FileKind,
    /// Permissions: the lowest 12 bits of `st_mode`.
    pub mode: u16,
    /// Names of a file; for a directory 2 and its subdirectories; 0 once the last name is gone.
    pub links: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Bytes of a file; of a symbolic link's target; entries of a directory.
    pub size: u64,
    /// Device number of a device.
    pub device: u64,
    /// When it was read; kept as relatime is.
    pub accessed: FileTime,
    /// When its contents changed.
    pub modified: FileTime,
    /// When its contents or attributes changed.
    pub changed: FileTime,
    /// When it was made.
    pub born: FileTime,
    /// Where the data are of a file, and of files that are made in a directory (`weft-layout`).
    pub layout: [u8; 12],
    /// Raised by each change of the inode.
    pub revision: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_number_says_where_it_was_made() {
        let number = InodeNumber::new(4095, (1 << 52) - 1);
        assert_eq!((number.shard(), number.counter()), (4095, (1 << 52) - 1));
        assert_eq!(InodeNumber::new(0, 1), InodeNumber::ROOT);
    }

    #[test]
    fn every_kind_has_its_number() {
        for n in 0..=u8::MAX {
            assert_eq!(FileKind::from_u8(n).is_some(), (1..=7).contains(&n));
            assert!(FileKind::from_u8(n).is_none_or(|kind| kind as u8 == n));
        }
    }

    #[test]
    fn microseconds_become_a_time() {
        let time = FileTime::from_us(1_700_000_000_123_456);
        assert_eq!(time, FileTime { seconds: 1_700_000_000, nanoseconds: 123_456_000 });
    }
}
