//! A shard that takes part in transactions of others: it locks what they need, and follows what became of
//! them (F3).
//!
//! It owns the locks. What is changed is decided by the coordinator alone (`coordinator.rs`).

use crate::change::Change;
use crate::error::MetaError;
use crate::foreign::RENAMES;
use crate::key::{Key, KeyParts, Table};
use crate::medium::Medium;
use crate::peer::{PeerAnswer, PeerAsk, Prepare, Transaction};
use crate::recalls::Wanted;
use crate::record::{Prepared, ShardRecord, encode_number};
use crate::shard::{Inner, LOOK_AGAIN, Shard, WAITS_AT_MOST};
use crate::tables::Tables;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{now, sleep, timeout};
use weft_rules::{Mutation, mutated};
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::{Answer, FileRequest, HoldMode, NameIn, Operation};

/// How often it is looked for transactions that were prepared here and not heard of since.
const ASKS_EVERY: Duration = Duration::from_millis(500);

/// Inodes that transactions have locked.
#[derive(Default)]
pub(crate) struct Locks(RefCell<BTreeMap<InodeNumber, Locked>>);

#[derive(Clone, Copy)]
struct Locked {
    by: Transaction,
    /// The lock is in the log, and its items are with the coordinator. Until then others may say what they
    /// give back.
    is_prepared: bool,
}

impl Locks {
    /// The locks that tables say.
    pub(crate) fn of(tables: &Tables) -> Locks {
        let locks = Locks::default();
        for (transaction, _, prepared) in prepared_in(tables) {
            if !prepared.is_applied && !mutated(Mutation::PrepareNotLogged) {
                locks.take(transaction, &prepared.locks);
                locks.prepare(transaction);
            }
        }
        locks
    }

    fn take(&self, by: Transaction, inodes: &[InodeNumber]) -> bool {
        let mut locks = self.0.borrow_mut();
        let is_free = |inode: &InodeNumber| locks.get(inode).is_none_or(|locked| locked.by == by);
        if !inodes.iter().all(is_free) {
            return false;
        }
        for inode in inodes {
            locks.entry(*inode).or_insert(Locked { by, is_prepared: false });
        }
        true
    }

    fn has(&self, by: Transaction, inodes: &[InodeNumber]) -> bool {
        let locks = self.0.borrow();
        inodes.iter().all(|inode| locks.get(inode).is_some_and(|locked| locked.by == by))
    }

    fn prepare(&self, by: Transaction) {
        let mut locks = self.0.borrow_mut();
        locks.values_mut().filter(|locked| locked.by == by).for_each(|locked| locked.is_prepared = true);
    }

    /// Gives back what is not in the log.
    fn give_up(&self, by: Transaction) {
        self.0.borrow_mut().retain(|_, locked| locked.by != by || locked.is_prepared);
    }

    fn release(&self, by: Transaction) {
        self.0.borrow_mut().retain(|_, locked| locked.by != by);
    }

    /// What transactions have locked.
    pub(crate) fn all(&self) -> BTreeSet<InodeNumber> {
        self.0.borrow().keys().copied().collect()
    }

    /// What other transactions than this one have locked.
    pub(crate) fn of_others(&self, than: Transaction) -> BTreeSet<InodeNumber> {
        let locks = self.0.borrow();
        locks.iter().filter(|(_, locked)| locked.by != than).map(|(inode, _)| *inode).collect()
    }

    /// Whether an operation has to wait for a transaction: one that reads, and one by which a session gives
    /// back what it holds, as soon as the lock is in the log; others as soon as it is taken.
    pub(crate) fn are_in_the_way(&self, tables: &Tables, request: &FileRequest) -> bool {
        let operation = &request.operation;
        let locks = self.0.borrow();
        if locks.is_empty() || (mutated(Mutation::ReadLocked) && !operation.changes()) {
            return false;
        }
        let is_early = !operation.changes() || gives_back(tables, request.session, operation);
        touched(tables, operation)
            .iter()
            .any(|inode| locks.get(inode).is_some_and(|locked| locked.is_prepared || !is_early))
    }

    /// Whether an answer says something of an inode that a transaction may have changed.
    pub(crate) fn are_in_answer(&self, answer: &Answer) -> bool {
        let locks = self.0.borrow();
        if locks.is_empty() {
            return false;
        }
        match answer {
            Answer::Listed(listed) => {
                listed.entries.iter().any(|entry| locks.contains_key(&entry.attributes.inode))
            }
            _ => false,
        }
    }
}

/// Gives back what a transaction has locked and not logged, when it is dropped.
struct Unlogged<'i, M> {
    transaction: Transaction,
    inner: &'i Inner<M>,
}

impl<M> Drop for Unlogged<'_, M> {
    fn drop(&mut self) {
        self.inner.locks.give_up(self.transaction);
        self.inner.progress.notify_all();
    }
}

/// Whether by an operation a session gives back what it holds of an inode, or says what it knows better than
/// the shard before it does that.
fn gives_back(tables: &Tables, session: SessionId, operation: &Operation) -> bool {
    let held =
        |inode: InodeNumber| tables.holders(inode).find(|(of, _)| *of == session).map(|(_, held)| held);
    // Before it gives back what keeps a file as it is, it says that it has the file open.
    let keeps = |inode: InodeNumber| {
        let with = tables.inode(inode).and_then(|found| found.kept_with());
        with.into_iter()
            .chain([tables.whole()])
            .any(|with| held(with).is_some_and(|held| held != HoldMode::Open))
    };
    match operation {
        Operation::Hold(inode, HoldMode::Open | HoldMode::Read) if keeps(*inode) => true,
        Operation::Hold(inode, mode) => held(*inode).is_some_and(|held| held.covers(*mode)),
        Operation::Change(inode, _) => held(*inode).is_some_and(HoldMode::writes),
        operation => operation.is_of_holder(),
    }
}

/// Inodes whose items an operation reads or changes.
fn touched(tables: &Tables, operation: &Operation) -> Vec<InodeNumber> {
    let named = |at: &NameIn| {
        let inode = tables.entry(at.directory, &at.name).map(|entry| entry.inode);
        [Some(at.directory), inode]
    };
    let inodes = match operation {
        Operation::Await(operation) => return touched(tables, operation),
        Operation::Find(at)
        | Operation::Create(at, _)
        | Operation::CreateOpen(at, ..)
        | Operation::Unlink(at)
        | Operation::RemoveDirectory(at) => named(at).to_vec(),
        Operation::Link(inode, at) => [vec![Some(*inode)], named(at).to_vec()].concat(),
        Operation::Rename(from, to, _) => [named(from), named(to)].concat(),
        operation if operation.is_of_server() => Vec::new(),
        operation => vec![Some(operation.inode())],
    };
    inodes.into_iter().flatten().collect()
}

/// What is prepared here, or was, by transaction and part.
fn prepared_in(tables: &Tables) -> impl Iterator<Item = (Transaction, u8, Prepared)> + use<'_> {
    tables.of(Table::Prepared).filter_map(|(key, value)| match key.parts() {
        Some(KeyParts::Prepared(transaction, part)) => {
            Some((transaction, part, Prepared::decode(value).expect("values are checked")))
        }
        _ => None,
    })
}

/// Up to which number transactions of a coordinator are over.
fn over_of(tables: &Tables, coordinator: u16) -> u64 {
    let value = tables.get(&Key::over(coordinator));
    value.map_or(0, |value| crate::record::decode_number(value).expect("values are checked"))
}

impl<M: Medium> Shard<M> {
    /// Answers another shard of the file system.
    ///
    /// # Errors
    /// If this shard has ended.
    pub async fn answer_peer(&self, ask: &PeerAsk) -> Result<PeerAnswer, MetaError> {
        let inner = self.inner();
        match ask {
            PeerAsk::Prepare(prepare) => inner.prepare(prepare).await,
            PeerAsk::Commit { transaction, over, changes } => {
                inner.settle(*transaction, *over, Some(changes)).await
            }
            PeerAsk::Abort(transaction) => inner.settle(*transaction, 0, None).await,
            PeerAsk::Outcome(transaction, participant) => inner.outcome(*transaction, *participant).await,
            PeerAsk::Parents(transaction, inode) => inner.parents(*transaction, *inode).await,
            PeerAsk::Budget { .. } | PeerAsk::Return { .. } => self.answer_of_quotas(ask).await,
        }
    }
}

impl<M: Medium> Inner<M> {
    async fn prepare(self: &Rc<Inner<M>>, ask: &Prepare) -> Result<PeerAnswer, MetaError> {
        self.check()?;
        let (transaction, key) = (ask.transaction, Key::prepared(ask.transaction, ask.part));
        let is_over = ask.transaction.number <= over_of(&self.tables.borrow(), transaction.coordinator);
        let known =
            self.tables.borrow().get(&key).map(|value| Prepared::decode(value).expect("values are checked"));
        let made = match known {
            Some(known) if !known.is_applied => known.made,
            // A question that has come twice.
            Some(_) if !mutated(Mutation::PrepareAgain) => return Ok(PeerAnswer::Refused),
            None if is_over && !mutated(Mutation::PrepareAgain) => return Ok(PeerAnswer::Refused),
            _ => match self.prepare_new(ask, key).await? {
                Some(made) => made,
                None => return Ok(PeerAnswer::Refused),
            },
        };
        // They stay as they are: all of them are locked.
        let items = self.items_for(ask);
        self.prove().await?;
        Ok(PeerAnswer::Prepared { items, made })
    }

    /// Locks what is asked for, and logs that. `None` if it cannot be had; otherwise the new inode's number.
    async fn prepare_new(
        self: &Rc<Inner<M>>,
        ask: &Prepare,
        key: Key,
    ) -> Result<Option<Option<InodeNumber>>, MetaError> {
        let transaction = ask.transaction;
        if !self.locks.take(transaction, &ask.locks) {
            return Ok(None);
        }
        // Whoever stops waiting for this has nothing locked.
        let unless_logged = Unlogged { transaction, inner: self };
        let is_clear = loop {
            let is_clear = self.clear(ask).await;
            self.wait_for_room().await?;
            // Others may hold something by now: they got it while this waited for room.
            let is_free = in_the_way_of(&self.tables.borrow(), ask).is_empty();
            if is_clear.is_err() || is_free || mutated(Mutation::LeaseNotRecalled) {
                break is_clear;
            }
        };
        // It may have been aborted meanwhile.
        if is_clear.is_err() || !self.locks.has(transaction, &ask.locks) {
            return Ok(None);
        }
        let mut changes = Vec::new();
        let made = match ask.makes {
            true => {
                let Some(made) = self.reserve_inode(&mut changes) else { return Ok(None) };
                Some(made)
            }
            false => None,
        };
        let locks: Vec<InodeNumber> = ask.locks.iter().copied().chain(made).collect();
        self.locks.take(transaction, &locks);
        changes.push(Change::Put(key, Prepared { is_applied: false, made, locks }.encode()));
        self.change(&changes);
        self.locks.prepare(transaction);
        drop(unless_logged);
        Ok(Some(made))
    }

    /// The number of a new inode, that no other gets.
    fn reserve_inode(&self, changes: &mut Vec<Change>) -> Option<InodeNumber> {
        let mut tables = self.tables.borrow_mut();
        let record = tables.shard().expect("a shard that serves was formatted");
        let counter = tables.take_inode();
        if counter >= record.reserved {
            let reserved = counter + ShardRecord::RESERVED;
            if reserved >> InodeNumber::COUNTER_BITS != 0 {
                return None;
            }
            changes.push(Change::Put(Key::shard(), ShardRecord { reserved, ..record }.encode()));
        }
        Some(InodeNumber::new(record.number, counter))
    }

    /// Has other sessions give back what they hold of the inodes that are locked.
    ///
    /// # Errors
    /// If they have not done so for long, or the shard has ended.
    async fn clear(self: &Rc<Inner<M>>, ask: &Prepare) -> Result<(), MetaError> {
        let from = now();
        loop {
            self.check()?;
            let progress = self.progress.notified();
            let wanted = in_the_way_of(&self.tables.borrow(), ask);
            if wanted.is_empty() || mutated(Mutation::LeaseNotRecalled) {
                return Ok(());
            }
            if from.elapsed() >= WAITS_AT_MOST {
                return Err(MetaError::Waits);
            }
            for wanted in wanted {
                self.recalls.ask(wanted);
            }
            let _ = timeout(LOOK_AGAIN, progress).await;
        }
    }

    fn items_for(&self, ask: &Prepare) -> Vec<(Key, Option<crate::record::Value>)> {
        let of_locked = ask.locks.iter().flat_map(|inode| [Key::inode(*inode), Key::part(*inode, 0)]);
        let keys: BTreeSet<Key> = of_locked.chain(ask.keys.iter().cloned()).collect();
        let tables = self.tables.borrow();
        keys.into_iter().map(|key| (key.clone(), tables.get(&key).cloned())).collect()
    }

    /// A transaction is over, with these changes or without any.
    pub(crate) async fn settle(
        self: &Rc<Inner<M>>,
        transaction: Transaction,
        over: u64,
        committed: Option<&Vec<Change>>,
    ) -> Result<PeerAnswer, MetaError> {
        self.wait_for_room().await?;
        let changes = {
            let tables = self.tables.borrow();
            let parts =
                prepared_in(&tables).filter(|(of, _, prepared)| *of == transaction && !prepared.is_applied);
            let mut changes: Vec<Change> = Vec::new();
            let mut is_prepared = false;
            for (_, part, prepared) in parts {
                is_prepared = true;
                let key = Key::prepared(transaction, part);
                changes.push(match committed.is_some() {
                    true => Change::Put(key, Prepared { is_applied: true, ..prepared }.encode()),
                    false => Change::Delete(key),
                });
            }
            if is_prepared {
                changes.extend(committed.into_iter().flatten().cloned());
            }
            if over > over_of(&tables, transaction.coordinator) {
                changes.push(Change::Put(Key::over(transaction.coordinator), encode_number(over)));
                let old = prepared_in(&tables).filter(|(of, _, prepared)| {
                    of.coordinator == transaction.coordinator && of.number <= over && prepared.is_applied
                });
                changes.extend(old.map(|(of, part, _)| Change::Delete(Key::prepared(of, part))));
            }
            changes
        };
        self.change(&changes);
        self.locks.release(transaction);
        self.follow_holds();
        if !changes.is_empty() {
            self.prove().await?;
        }
        Ok(PeerAnswer::Done)
    }

    async fn parents(&self, transaction: Transaction, inode: InodeNumber) -> Result<PeerAnswer, MetaError> {
        let locked = self.locks.of_others(transaction);
        let chain = {
            let tables = self.tables.borrow();
            let mut chain = Vec::new();
            let mut at = inode;
            while let Some(found) = tables.inode(at).filter(|found| found.is_directory()) {
                if locked.contains(&at) && !mutated(Mutation::ParentsOfLocked) {
                    return Ok(PeerAnswer::Refused);
                }
                chain.push((at, found.parent));
                if found.parent == at || chain.len() >= PARENTS_MAX {
                    break;
                }
                at = found.parent;
            }
            chain
        };
        self.prove().await?;
        Ok(PeerAnswer::Parents(chain))
    }

    /// Asks what has become of transactions that were prepared here and not heard of since, until the shard
    /// ends.
    pub(crate) async fn ask_for_outcomes(self: Rc<Inner<M>>) {
        let mut seen: BTreeSet<Transaction> = BTreeSet::new();
        while self.check().is_ok() {
            sleep(ASKS_EVERY).await;
            let open: BTreeSet<Transaction> = {
                let tables = self.tables.borrow();
                let open = prepared_in(&tables).filter(|(.., prepared)| !prepared.is_applied);
                open.map(|(transaction, ..)| transaction).collect()
            };
            for transaction in open.intersection(&seen) {
                if self.ask_for_outcome(*transaction).await.is_err() {
                    return;
                }
            }
            seen = open;
        }
    }

    async fn ask_for_outcome(self: &Rc<Inner<M>>, transaction: Transaction) -> Result<(), MetaError> {
        let Some(peers) = self.peers.borrow().clone() else { return Ok(()) };
        let own = self.tables.borrow().shard().map_or(0, |record| record.number);
        let outcome = peers.ask(transaction.coordinator, PeerAsk::Outcome(transaction, own)).await;
        match outcome {
            Some(PeerAnswer::Committed(changes)) => {
                self.settle(transaction, 0, Some(&changes)).await.map(drop)
            }
            Some(PeerAnswer::Aborted) => self.settle(transaction, 0, None).await.map(drop),
            _ => Ok(()),
        }
    }
}

/// Directories above one that are said at once.
const PARENTS_MAX: usize = 1024;

/// What other sessions have to give back before a transaction gets what it asks for.
fn in_the_way_of(tables: &Tables, ask: &Prepare) -> Vec<Wanted> {
    let others = |inode: InodeNumber, mode: HoldMode| {
        let others = tables.in_the_way(inode, ask.session, mode);
        others.map(move |(session, _)| Wanted { session, inode, keeps: HoldMode::Open })
    };
    // Who holds all names has to hear of whoever else comes.
    let mut wanted: Vec<Wanted> = others(tables.whole(), HoldMode::Read).collect();
    for inode in ask.locks.iter().filter(|inode| **inode != RENAMES) {
        wanted.extend(others(*inode, HoldMode::Write));
        let kept_with = tables.inode(*inode).and_then(|found| found.kept_with());
        wanted.extend(
            kept_with
                .filter(|with| with != inode)
                .into_iter()
                .flat_map(|with| others(with, HoldMode::Write).collect::<Vec<_>>()),
        );
    }
    wanted
}
