//! What shards of a file system ask each other so that an operation happens in several of them or in none
//! (F3).

use crate::change::Change;
use crate::key::Key;
use crate::record::Value;
use std::pin::Pin;
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{QuotaAmount, QuotaOf};

/// An operation over several shards. No two have the same name, whichever servers come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Transaction {
    /// The shard that decides it.
    pub coordinator: u16,
    /// Which of its transactions it is, from 1.
    pub number: u64,
}

/// What a participant is asked to have ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// For which transaction.
    pub transaction: Transaction,
    /// Counts what is asked for in the transaction.
    pub part: u8,
    /// Transactions of the coordinator up to this number are over.
    pub over: u64,
    /// The session that the operation is of: what it holds is not in the way.
    pub session: SessionId,
    /// Inodes to lock.
    pub locks: Vec<InodeNumber>,
    /// Items to answer with, beside inode and first part of what is locked.
    pub keys: Vec<Key>,
    /// Whether the number of a new inode is wanted, too.
    pub makes: bool,
}

/// A question of one shard to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAsk {
    /// Locks inodes, and answers with items of them.
    Prepare(Prepare),
    /// The transaction has happened: makes these changes, once, and gives its locks back.
    Commit {
        /// Which transaction.
        transaction: Transaction,
        /// Transactions of the coordinator up to this number are over.
        over: u64,
        /// Changes of items whose inodes it has locked.
        changes: Vec<Change>,
    },
    /// The transaction has not happened, or has changed nothing here: gives its locks back.
    Abort(Transaction),
    /// What has become of a transaction, for this participant.
    Outcome(Transaction, u16),
    /// The parents of a directory and of those above it, as far as they are in this shard. Refused while
    /// another transaction than this one has one of them locked: it may have another parent by then.
    Parents(Transaction, InodeNumber),
    /// Gives a shard more of a quota (F16). To the first shard only.
    Budget {
        /// The shard that asks.
        shard: u16,
        /// Of which quota.
        of: QuotaOf,
        /// What it uses, or may use, already.
        held: QuotaAmount,
        /// How often something was taken back from it.
        turn: u64,
        /// What it has to use in all.
        wanted: QuotaAmount,
    },
    /// Takes back what a shard does not use of a quota.
    Return {
        /// Of which quota.
        of: QuotaOf,
        /// How often something is taken back, with this.
        turn: u64,
    },
}

/// An answer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAnswer {
    /// All is locked, and stays so until the transaction is over.
    Prepared {
        /// The items; `None` of one that is not there.
        items: Vec<(Key, Option<Value>)>,
        /// The number of the new inode.
        made: Option<InodeNumber>,
    },
    /// Something is locked by another transaction, or in the way for long, or this transaction is over.
    Refused,
    /// It is done, or was before.
    Done,
    /// The transaction has happened, with these changes.
    Committed(Vec<Change>),
    /// It has not happened, and never will, or changes nothing of the participant's.
    Aborted,
    /// It is not decided yet.
    UnderWay,
    /// Directories and their parents, from the one that was asked for upwards.
    Parents(Vec<(InodeNumber, InodeNumber)>),
    /// What a shard may use of a quota in all.
    Budget {
        /// So much.
        amount: QuotaAmount,
        /// How often something was taken back from it.
        turn: u64,
    },
}

/// How a shard reaches the others of its file system.
pub trait Peers {
    /// Asks a shard, which may be the asking one itself. `None` if no answer has come: the question may have
    /// arrived then, and may still arrive.
    fn ask(&self, shard: u16, ask: PeerAsk) -> Pin<Box<dyn Future<Output = Option<PeerAnswer>>>>;
}
