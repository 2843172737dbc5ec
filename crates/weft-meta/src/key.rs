//! Keys of a shard's tables. Byte order is key order.

use crate::peer::Transaction;
use std::fmt;
use weft_types::limits::{FILE_NAME_BYTES_MAX, XATTR_NAME_BYTES_MAX};
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{LockFamily, LockOwner, QuotaKind, QuotaOf};

/// The tables of a shard. The number is the first byte of each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Table {
    /// One record: what the shard itself keeps.
    Shard = 1,
    /// By session: which of its operations were answered for good.
    Session = 2,
    /// By session and number: answers that are kept (F1).
    Answer = 3,
    /// By inode: attributes.
    Inode = 4,
    /// By directory and first hash: counters of a part of the directory.
    Part = 5,
    /// By directory, hash and name: entries.
    Entry = 6,
    /// By inode and piece: targets of symbolic links.
    Target = 7,
    /// By inode, name and piece: extended attributes.
    Xattr = 8,
    /// By inode: those without a name that are to be purged.
    Orphan = 9,
    /// By inode and session: who has it open, and keeps it from being purged.
    Held = 10,
    /// By inode, session, owner and first byte: locks of programs.
    Lock = 11,
    /// One record: up to where numbers of transactions may have been given out (F3).
    Transactions = 12,
    /// By transaction, participant and piece: changes of other shards that have been decided here.
    Committed = 13,
    /// By coordinator, transaction and part: what is locked here for a transaction, or was.
    Prepared = 14,
    /// By coordinator: up to which number its transactions are over.
    Over = 15,
    /// By user or group: what may be used of the file system, and of that in this shard (F16).
    Quota = 16,
    /// By user or group and shard: what this shard, the first one, has given to the other one.
    Budget = 17,
    /// By inode: up to where its writers may write what a quota limits (F16).
    Room = 18,
}

/// A key: at most [`Key::BYTES_MAX`] bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<[u8]>);

/// What a key says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum KeyParts<'a> {
    Shard,
    Session(SessionId),
    Answer(SessionId, u64),
    Inode(InodeNumber),
    Part(InodeNumber, u64),
    Entry(InodeNumber, u64, &'a [u8]),
    Target(InodeNumber, u8),
    Xattr(InodeNumber, &'a [u8], u8),
    Orphan(InodeNumber),
    Held(InodeNumber, SessionId),
    Lock(InodeNumber, SessionId, LockOwner, u64),
    Transactions,
    Committed(u64, u16, u16),
    Prepared(Transaction, u8),
    Over(u16),
    Quota(QuotaOf),
    Budget(QuotaOf, u16),
    Room(InodeNumber),
}

impl Key {
    /// The longest key: an entry with the longest name.
    pub const BYTES_MAX: usize = 1 + 8 + 8 + FILE_NAME_BYTES_MAX;

    /// Below every key.
    pub(crate) fn lowest() -> Key {
        Key(Box::new([]))
    }

    fn of(table: Table, numbers: &[u64], rest: &[&[u8]]) -> Key {
        let mut bytes =
            Vec::with_capacity(1 + 8 * numbers.len() + rest.iter().map(|r| r.len()).sum::<usize>());
        bytes.push(table as u8);
        numbers.iter().for_each(|n| bytes.extend_from_slice(&n.to_be_bytes()));
        rest.iter().for_each(|part| bytes.extend_from_slice(part));
        Key(bytes.into())
    }

    /// The shard's own record.
    pub fn shard() -> Key {
        Key::of(Table::Shard, &[], &[])
    }

    /// A session's record.
    pub fn session(session: SessionId) -> Key {
        Key::of(Table::Session, &[session.0], &[])
    }

    /// An answer that is kept.
    pub fn answer(session: SessionId, number: u64) -> Key {
        Key::of(Table::Answer, &[session.0, number], &[])
    }

    /// An inode.
    pub fn inode(inode: InodeNumber) -> Key {
        Key::of(Table::Inode, &[inode.0], &[])
    }

    /// The part of a directory that begins with this hash.
    pub fn part(directory: InodeNumber, first: u64) -> Key {
        Key::of(Table::Part, &[directory.0, first], &[])
    }

    /// An entry of a directory.
    pub fn entry(directory: InodeNumber, hash: u64, name: &[u8]) -> Key {
        Key::of(Table::Entry, &[directory.0, hash], &[name])
    }

    /// A piece of a symbolic link's target.
    pub fn target(inode: InodeNumber, piece: u8) -> Key {
        Key::of(Table::Target, &[inode.0], &[&[piece]])
    }

    /// A piece of an extended attribute. Shorter names come first.
    pub fn xattr(inode: InodeNumber, name: &[u8], piece: u8) -> Key {
        Key::of(Table::Xattr, &[inode.0], &[&[name.len() as u8], name, &[piece]])
    }

    /// The first key that an extended attribute of an inode can have.
    pub fn first_xattr(inode: InodeNumber) -> Key {
        Key::of(Table::Xattr, &[inode.0], &[])
    }

    /// An inode without a name.
    pub fn orphan(inode: InodeNumber) -> Key {
        Key::of(Table::Orphan, &[inode.0], &[])
    }

    /// A session that has an inode open.
    pub fn held(inode: InodeNumber, session: SessionId) -> Key {
        Key::of(Table::Held, &[inode.0, session.0], &[])
    }

    /// A lock that begins with this byte.
    pub fn lock(inode: InodeNumber, session: SessionId, owner: LockOwner, start: u64) -> Key {
        let rest = [&[owner.family as u8][..], &owner.id.to_be_bytes(), &start.to_be_bytes()];
        Key::of(Table::Lock, &[inode.0, session.0], &rest)
    }

    /// The record of transactions.
    pub(crate) fn transactions() -> Key {
        Key::of(Table::Transactions, &[], &[])
    }

    /// A piece of the changes of a participant.
    pub(crate) fn committed(number: u64, participant: u16, piece: u16) -> Key {
        Key::of(Table::Committed, &[number], &[&participant.to_be_bytes(), &piece.to_be_bytes()])
    }

    /// A part of a transaction that is prepared here.
    pub(crate) fn prepared(transaction: Transaction, part: u8) -> Key {
        Key::of(Table::Prepared, &[transaction.coordinator.into(), transaction.number], &[&[part]])
    }

    /// What is over of a coordinator.
    pub(crate) fn over(coordinator: u16) -> Key {
        Key::of(Table::Over, &[coordinator.into()], &[])
    }

    /// A quota.
    pub(crate) fn quota(of: QuotaOf) -> Key {
        Key::of(Table::Quota, &[quota_number(of)], &[])
    }

    /// What another shard may use of a quota.
    pub(crate) fn budget(of: QuotaOf, shard: u16) -> Key {
        Key::of(Table::Budget, &[quota_number(of)], &[&shard.to_be_bytes()])
    }

    /// Up to where the writers of an inode may write.
    pub(crate) fn room(inode: InodeNumber) -> Key {
        Key::of(Table::Room, &[inode.0], &[])
    }

    /// The first key that a lock of an inode can have.
    pub fn first_lock(inode: InodeNumber) -> Key {
        Key::of(Table::Lock, &[inode.0], &[])
    }

    /// The first key of a table.
    pub fn first_of(table: Table) -> Key {
        Key::of(table, &[], &[])
    }

    /// The key with these bytes; `None` if no table has such a key.
    pub fn from_bytes(bytes: &[u8]) -> Option<Key> {
        let key = Key(bytes.into());
        key.parts().is_some().then_some(key)
    }

    /// The key as bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// What it says; `None` of one that no table has.
    pub fn parts(&self) -> Option<KeyParts<'_>> {
        let (table, rest) = self.0.split_first()?;
        if *table == Table::Shard as u8 {
            return rest.is_empty().then_some(KeyParts::Shard);
        }
        if *table == Table::Transactions as u8 {
            return rest.is_empty().then_some(KeyParts::Transactions);
        }
        let (first, rest) = number(rest)?;
        let (inode, session) = (InodeNumber(first), SessionId(first));
        let is_last = rest.is_empty();
        match *table {
            n if n == Table::Session as u8 => is_last.then_some(KeyParts::Session(session)),
            n if n == Table::Answer as u8 => whole_number(rest).map(|n| KeyParts::Answer(session, n)),
            n if n == Table::Inode as u8 => is_last.then_some(KeyParts::Inode(inode)),
            n if n == Table::Part as u8 => whole_number(rest).map(|n| KeyParts::Part(inode, n)),
            n if n == Table::Entry as u8 => {
                let (hash, name) = number(rest)?;
                let fits = (1..=FILE_NAME_BYTES_MAX).contains(&name.len());
                fits.then_some(KeyParts::Entry(inode, hash, name))
            }
            n if n == Table::Target as u8 => match rest {
                [piece] => Some(KeyParts::Target(inode, *piece)),
                _ => None,
            },
            n if n == Table::Xattr as u8 => {
                let (length, rest) = rest.split_first()?;
                let (piece, name) = rest.split_last()?;
                let fits =
                    usize::from(*length) == name.len() && (1..=XATTR_NAME_BYTES_MAX).contains(&name.len());
                fits.then_some(KeyParts::Xattr(inode, name, *piece))
            }
            n if n == Table::Orphan as u8 => is_last.then_some(KeyParts::Orphan(inode)),
            n if n == Table::Held as u8 => {
                whole_number(rest).map(|session| KeyParts::Held(inode, SessionId(session)))
            }
            n if n == Table::Committed as u8 => {
                let (participant, piece) = rest.split_first_chunk()?;
                let piece = u16::from_be_bytes(piece.try_into().ok()?);
                Some(KeyParts::Committed(first, u16::from_be_bytes(*participant), piece))
            }
            n if n == Table::Prepared as u8 => {
                let (number, part) = number(rest)?;
                let coordinator = u16::try_from(first).ok()?;
                let [part] = part else { return None };
                Some(KeyParts::Prepared(Transaction { coordinator, number }, *part))
            }
            n if n == Table::Over as u8 => is_last.then_some(KeyParts::Over(u16::try_from(first).ok()?)),
            n if n == Table::Quota as u8 => is_last.then_some(KeyParts::Quota(quota_of(first)?)),
            n if n == Table::Room as u8 => is_last.then_some(KeyParts::Room(inode)),
            n if n == Table::Budget as u8 => {
                Some(KeyParts::Budget(quota_of(first)?, u16::from_be_bytes(rest.try_into().ok()?)))
            }
            n if n == Table::Lock as u8 => {
                let (session, rest) = number(rest)?;
                let (family, rest) = rest.split_first()?;
                let (id, start) = number(rest)?;
                let owner = LockOwner { family: LockFamily::from_u8(*family)?, id };
                whole_number(start).map(|start| KeyParts::Lock(inode, SessionId(session), owner, start))
            }
            _ => None,
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            Some(parts) => parts.fmt(f),
            None => write!(f, "Key({:02x?})", self.0),
        }
    }
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

/// A quota as a number, in the order of quotas.
fn quota_number(of: QuotaOf) -> u64 {
    u64::from(of.kind as u8) << 32 | u64::from(of.id)
}

/// The quota of such a number.
fn quota_of(number: u64) -> Option<QuotaOf> {
    let kind = QuotaKind::from_u8(u8::try_from(number >> 32).ok()?)?;
    Some(QuotaOf { kind, id: number as u32 })
}

fn whole_number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_says_what_it_was_made_of() {
        let (inode, session) = (InodeNumber(7), SessionId(8));
        let name: &[u8] = b"name";
        let owner = LockOwner { family: LockFamily::Range, id: 10 };
        let transaction = Transaction { coordinator: 18, number: 19 };
        let quota = QuotaOf { kind: QuotaKind::Group, id: 20 };
        let keys = [
            (Key::shard(), KeyParts::Shard),
            (Key::session(session), KeyParts::Session(session)),
            (Key::answer(session, 9), KeyParts::Answer(session, 9)),
            (Key::inode(inode), KeyParts::Inode(inode)),
            (Key::part(inode, 10), KeyParts::Part(inode, 10)),
            (Key::entry(inode, 11, name), KeyParts::Entry(inode, 11, name)),
            (Key::target(inode, 1), KeyParts::Target(inode, 1)),
            (Key::xattr(inode, name, 2), KeyParts::Xattr(inode, name, 2)),
            (Key::orphan(inode), KeyParts::Orphan(inode)),
            (Key::held(inode, session), KeyParts::Held(inode, session)),
            (Key::lock(inode, session, owner, 12), KeyParts::Lock(inode, session, owner, 12)),
            (Key::transactions(), KeyParts::Transactions),
            (Key::committed(13, 14, 15), KeyParts::Committed(13, 14, 15)),
            (Key::prepared(transaction, 16), KeyParts::Prepared(transaction, 16)),
            (Key::over(17), KeyParts::Over(17)),
            (Key::quota(quota), KeyParts::Quota(quota)),
            (Key::budget(quota, 21), KeyParts::Budget(quota, 21)),
            (Key::room(inode), KeyParts::Room(inode)),
        ];
        assert!(keys.is_sorted_by(|a, b| a.0 < b.0));
        for (key, parts) in &keys {
            assert_eq!(key.parts().as_ref(), Some(parts));
            assert_eq!(Key::from_bytes(key.bytes()).as_ref(), Some(key));
        }
    }

    #[test]
    fn bytes_that_are_no_key_are_refused() {
        for bytes in [
            &[][..],
            &[0],
            &[16; 9],
            &[17; 11],
            &[17, 0, 0, 0, 1, 0, 0, 0, 0, 0],
            &[12; 2],
            &[13; 12],
            &[14; 18],
            &[15; 9],
            &[11; 34],
            &[11; 33],
            &[10; 9],
            &[1, 0],
            &[4; 8],
            &[4; 10],
            &[6; 17],
            &[8; 12],
        ] {
            assert_eq!(Key::from_bytes(bytes), None, "{bytes:?}");
        }
    }
}
