//! What an operation needs of other shards, and what it has got of them (F3).
//!
//! It owns which items belong to which shard. Locks and messages are in `participant.rs` and
//! `coordinator.rs`.

use crate::change::Change;
use crate::key::{Key, KeyParts};
use crate::record::Value;
use std::collections::{BTreeMap, BTreeSet};
use weft_types::InodeNumber;
use weft_wire::files::{QuotaAmount, QuotaOf};

/// Stands for the parents of all directories of a file system: no inode has this number. Whoever has it
/// locked gives directories other parents.
pub const RENAMES: InodeNumber = InodeNumber::new(0, (1 << InodeNumber::COUNTER_BITS) - 1);

/// Items of other shards, locked there for one transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Foreign {
    /// Items that were asked for; `None` of one that is not there.
    pub(crate) items: BTreeMap<Key, Option<Value>>,
    /// Inodes that are locked.
    pub(crate) locked: BTreeSet<InodeNumber>,
    /// The number that the directory gets which is made in another shard.
    pub(crate) made: Option<InodeNumber>,
    /// Parents of directories, as long as no directory gets another one.
    pub(crate) parents: BTreeMap<InodeNumber, InodeNumber>,
    /// Inodes of this shard that other transactions have locked: what is known of them may be old.
    pub(crate) locked_here: BTreeSet<InodeNumber>,
    /// Directories of the file system lie in several shards.
    pub(crate) is_spread: bool,
    /// In how many; 0 if in one.
    pub(crate) shards: u16,
    /// What may be used of quotas this time, even if it is more than the budget.
    pub(crate) once: BTreeMap<QuotaOf, QuotaAmount>,
    /// Quotas of which no more is to be had.
    pub(crate) used_up: BTreeSet<QuotaOf>,
    /// The shard that a new directory is made in, if it is another one.
    pub(crate) place: Option<u16>,
}

/// What is to be had of another shard before an operation can be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// These items of these inodes, which are locked.
    Items {
        /// The shard.
        shard: u16,
        /// Inodes to lock.
        locks: BTreeSet<InodeNumber>,
        /// Items of them, beside the inode and its first part.
        keys: BTreeSet<Key>,
    },
    /// The number of a new inode.
    Made {
        /// The shard that makes it.
        shard: u16,
    },
    /// The parent of a directory, and those above it in the same shard, without a lock.
    Parents(InodeNumber),
    /// That no transaction has an inode of this shard locked.
    Unlocked(InodeNumber),
    /// That this shard may use so much of a quota in all (F16).
    Budget(QuotaOf, QuotaAmount),
}

impl Need {
    /// An item of another shard.
    pub(crate) fn item(inode: InodeNumber, key: &Key) -> Need {
        Need::Items { shard: inode.shard(), locks: [inode].into(), keys: [key.clone()].into() }
    }

    /// A lock of an inode.
    pub(crate) fn lock(inode: InodeNumber) -> Need {
        Need::Items { shard: inode.shard(), locks: [inode].into(), keys: BTreeSet::new() }
    }

    /// The shard that has it.
    pub(crate) fn shard(&self) -> u16 {
        match self {
            Need::Items { shard, .. } | Need::Made { shard } => *shard,
            Need::Parents(inode) | Need::Unlocked(inode) => inode.shard(),
            Need::Budget(..) => 0,
        }
    }

    /// Asks for something else in the same message, if it is of the same kind and shard.
    pub(crate) fn join(&mut self, other: Need) {
        if let (
            Need::Items { shard, locks, keys },
            Need::Items { shard: of, locks: more_locks, keys: more_keys },
        ) = (self, other)
            && *shard == of
        {
            locks.extend(more_locks);
            keys.extend(more_keys);
        }
    }
}

/// The inode that an item belongs to; `None` for what is the shard's own.
pub(crate) fn inode_of(key: &Key) -> Option<InodeNumber> {
    match key.parts()? {
        KeyParts::Inode(inode)
        | KeyParts::Part(inode, _)
        | KeyParts::Entry(inode, ..)
        | KeyParts::Target(inode, _)
        | KeyParts::Xattr(inode, ..)
        | KeyParts::Orphan(inode)
        | KeyParts::Held(inode, _)
        | KeyParts::Lock(inode, ..)
        | KeyParts::Room(inode) => Some(inode),
        _ => None,
    }
}

/// The changes of a shard's own items, and those of each other shard.
pub(crate) fn split(changes: Vec<Change>, own: u16) -> (Vec<Change>, BTreeMap<u16, Vec<Change>>) {
    let (mut of_own, mut of_others) = (Vec::new(), BTreeMap::<u16, Vec<Change>>::new());
    for change in changes {
        match inode_of(change.key()).map(InodeNumber::shard).filter(|shard| *shard != own) {
            Some(shard) => of_others.entry(shard).or_default().push(change),
            None => of_own.push(change),
        }
    }
    (of_own, of_others)
}
