//! Operations over several shards, decided by the one that has their first directory: it collects what it
//! needs of the others, decides, and notifies them (F3). docs/decisions/0042.

use crate::change::Change;
use crate::decide::{Decision, Limits, decide_with};
use crate::error::MetaError;
use crate::foreign::{Foreign, Need, inode_of, split};
use crate::key::{Key, KeyParts, Table};
use crate::medium::Medium;
use crate::peer::{PeerAnswer, PeerAsk, Peers, Prepare, Transaction};
use crate::quota::Budget;
use crate::record::{PIECE_BYTES, decode_number, encode_number};
use crate::shard::{Inner, Shard, WAITS_AT_MOST};
use crate::tables::Tables;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{now, random_below, sleep, spawn, wall_clock_us};
use weft_rules::{Mutation, mutated};
use weft_types::{FileKind, FileTime, InodeNumber};
use weft_wire::files::{Answer, FileRequest, Operation};
use weft_wire::{Decoder, Encoder};

/// Numbers of transactions that are reserved together.
const RESERVED: u64 = 1024;

/// How long to wait before an operation is tried again that met a lock, at first and at the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_LONGEST: Duration = Duration::from_millis(100);

/// How long to wait before a participant is notified again that has not answered.
const NOTIFY_AGAIN: Duration = Duration::from_millis(50);

/// Transactions of this shard that are not over.
#[derive(Default)]
pub(crate) struct Transactions {
    next: Cell<u64>,
    reserved: Cell<u64>,
    /// Those that are not decided, or not durably.
    open: RefCell<BTreeSet<u64>>,
    /// Those of which participants are notified, with the inodes of this shard that they have changed; `None`
    /// of those that a server before has decided.
    notified: RefCell<BTreeMap<u64, Option<BTreeSet<InodeNumber>>>>,
    /// How many shards the file system has, if directories lie in all of them.
    shards: Cell<u16>,
}

impl Transactions {
    /// They go on behind all that a server before can have begun.
    pub(crate) fn of(tables: &Tables) -> Transactions {
        let reserved = tables.get(&Key::transactions());
        let reserved = reserved.map_or(1, |value| decode_number(value).expect("values are checked"));
        let transactions = Transactions::default();
        transactions.next.set(reserved);
        transactions.reserved.set(reserved);
        transactions
    }

    /// How many shards the file system has, if directories lie in all of them; otherwise 0.
    pub(crate) fn shards(&self) -> u16 {
        self.shards.get()
    }

    /// Whether directories lie in several shards.
    pub(crate) fn is_spread(&self) -> bool {
        self.shards.get() > 1
    }

    /// All up to this number are over.
    fn over(&self) -> u64 {
        let next = self.next.get();
        let open = self.open.borrow().first().copied().unwrap_or(next);
        let notified = self.notified.borrow().first_key_value().map_or(next, |(number, _)| *number);
        open.min(notified) - 1
    }

    /// Whether a transaction that not all participants have heard of may have changed an inode of this shard.
    pub(crate) fn has_changed(&self, inode: InodeNumber) -> bool {
        let notified = self.notified.borrow();
        notified.values().any(|changed| changed.as_ref().is_none_or(|changed| changed.contains(&inode)))
    }
}

/// A transaction that is not decided.
struct Open<'t> {
    of: &'t Transactions,
    number: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.of.open.borrow_mut().remove(&self.number);
    }
}

/// How an attempt has ended.
enum Attempt<E> {
    Answered(Answer),
    NotAllowed(E),
    /// Something was locked, or a shard has not answered.
    Again,
}

impl<M: Medium> Shard<M> {
    /// Lets the shard reach the others of its file system. `spread`: new directories may lie in any of so
    /// many shards; 0: all in that of their parent.
    pub fn join_peers(&self, peers: Rc<dyn Peers>, spread: u16) {
        let inner = self.inner();
        inner.peers.replace(Some(peers));
        inner.transactions.shards.set(spread);
        let committed: BTreeSet<u64> = {
            let tables = inner.tables.borrow();
            committed_in(&tables).map(|(number, ..)| number).collect()
        };
        for number in committed {
            inner.transactions.notified.borrow_mut().insert(number, None);
            spawn(inner.clone().notify_all_of(number));
        }
        spawn(inner.clone().ask_for_outcomes());
    }
}

/// What was committed and not followed by all participants: by number and participant.
fn committed_in(tables: &Tables) -> impl Iterator<Item = (u64, u16)> + use<'_> {
    tables.of(Table::Committed).filter_map(|(key, _)| match key.parts() {
        Some(KeyParts::Committed(number, participant, 0)) => Some((number, participant)),
        _ => None,
    })
}

/// The changes of a participant as pieces of the coordinator's tables, behind their length.
fn pieces_of(number: u64, participant: u16, changes: &[Change]) -> Vec<Change> {
    let mut e = Encoder::default();
    changes.iter().for_each(|change| change.encode(&mut e));
    let mut whole = (e.0.len() as u32).to_le_bytes().to_vec();
    whole.extend_from_slice(&e.0);
    let piece =
        |(n, piece): (usize, &[u8])| Change::Put(Key::committed(number, participant, n as u16), piece.into());
    whole.chunks(PIECE_BYTES).enumerate().map(piece).collect()
}

/// The keys of these pieces.
fn keys_of(tables: &Tables, number: u64, participant: Option<u16>) -> Vec<Key> {
    let keys = tables.of(Table::Committed).map(|(key, _)| key);
    let is_meant = |key: &&Key| match key.parts() {
        Some(KeyParts::Committed(of, shard, _)) => {
            of == number && participant.is_none_or(|participant| participant == shard)
        }
        _ => false,
    };
    keys.filter(is_meant).cloned().collect()
}

/// The changes of a participant, if it has any.
fn changes_for(tables: &Tables, number: u64, participant: u16) -> Option<Vec<Change>> {
    let keys = keys_of(tables, number, Some(participant));
    let whole: Vec<u8> = keys.iter().filter_map(|key| tables.get(key)).flat_map(|v| v.to_vec()).collect();
    let (length, bytes) = whole.split_first_chunk()?;
    let bytes = &bytes[..(u32::from_le_bytes(*length) as usize).min(bytes.len())];
    let mut d = Decoder::new(bytes);
    let mut changes = Vec::new();
    while d.left() > 0 {
        changes.push(Change::decode(&mut d).expect("it was encoded here, and is under a checksum"));
    }
    Some(changes)
}

impl<M: Medium> Inner<M> {
    /// Whether the shard can ask others.
    pub(crate) fn has_peers(&self) -> bool {
        self.peers.borrow().is_some()
    }

    /// The shard that a new directory is made in, if it is another one than that of its parent: near the root
    /// any, so that what users do lies in all of them; further down that of the parent, so that most
    /// operations happen in one.
    pub(crate) fn place_of(&self, operation: &Operation) -> Option<u16> {
        let (shards, tables) = (self.transactions.shards.get(), self.tables.borrow());
        let is_near_root = |directory: InodeNumber| {
            let parent = tables.inode(directory).map(|found| found.parent);
            directory == InodeNumber::ROOT || parent == Some(InodeNumber::ROOT)
        };
        match operation {
            Operation::Create(at, made)
                if shards > 1 && made.kind == FileKind::Directory && is_near_root(at.directory) =>
            {
                let place = random_below(u64::from(shards)) as u16;
                let own = tables.shard().map_or(0, |record| record.number);
                (place != own).then_some(place)
            }
            _ => None,
        }
    }

    /// Carries out an operation that concerns other shards, too.
    ///
    /// # Errors
    /// If the shard has ended, or something is locked for long. Inside: why it may not be decided.
    pub(crate) async fn transact<E>(
        self: &Rc<Inner<M>>,
        request: &FileRequest,
        place: Option<u16>,
        may_be_decided: &impl Fn() -> Result<(), E>,
    ) -> Result<Result<Answer, E>, MetaError> {
        let (from, mut pause) = (now(), PAUSE_FIRST);
        loop {
            match self.attempt(request, place, may_be_decided).await? {
                Attempt::Answered(answer) => return Ok(Ok(answer)),
                Attempt::NotAllowed(why) => return Ok(Err(why)),
                Attempt::Again if from.elapsed() >= WAITS_AT_MOST => return Err(MetaError::Waits),
                Attempt::Again => {
                    sleep(pause.mul_f64(0.5 + random_below(1000) as f64 / 1000.0)).await;
                    pause = (pause * 2).min(PAUSE_LONGEST);
                }
            }
        }
    }

    async fn attempt<E>(
        self: &Rc<Inner<M>>,
        request: &FileRequest,
        place: Option<u16>,
        may_be_decided: &impl Fn() -> Result<(), E>,
    ) -> Result<Attempt<E>, MetaError> {
        let own = self.tables.borrow().shard().map_or(0, |record| record.number);
        let Some(peers) = self.peers.borrow().clone() else { return Err(MetaError::Closed) };
        let open = self.begin_transaction().await?;
        let transaction = Transaction { coordinator: own, number: open.number };
        let (is_spread, shards) = (self.transactions.is_spread(), self.transactions.shards());
        let mut foreign = Foreign { place, is_spread, shards, ..Foreign::default() };
        let (mut asked, mut part) = (BTreeSet::new(), 0);
        let ended = loop {
            self.wait_for_room().await?;
            if let Err(why) = may_be_decided() {
                break Attempt::NotAllowed(why);
            }
            if self.locks.are_in_the_way(&self.tables.borrow(), request) {
                break Attempt::Again;
            }
            foreign.locked_here = self.locks.of_others(transaction);
            let need = match self.decide_here(request, &foreign, false) {
                Ok(decision) => {
                    let notified = self.commit(transaction, decision.changes);
                    asked.retain(|shard| !notified.contains(shard));
                    self.prove().await?;
                    break Attempt::Answered(decision.answer);
                }
                Err(Need::Unlocked(_)) => break Attempt::Again,
                Err(Need::Budget(of, wanted)) => match self.get_budget(&peers, of, wanted).await? {
                    Some(Budget::Had { once }) => {
                        foreign.once.insert(of, once);
                        continue;
                    }
                    Some(Budget::UsedUp) => {
                        foreign.used_up.insert(of);
                        continue;
                    }
                    None => break Attempt::Again,
                },
                Err(need) => need,
            };
            if !matches!(need, Need::Parents(_)) {
                asked.insert(need.shard());
            }
            let over = self.transactions.over();
            let ask = ask_for(&need, transaction, (part, over), request);
            part += 1;
            let answer = peers.ask(need.shard(), ask).await;
            self.check()?;
            if !take(&mut foreign, &need, answer) {
                break Attempt::Again;
            }
        };
        drop(open);
        self.end_attempt(&peers, transaction, asked);
        Ok(ended)
    }

    /// The next number of a transaction, durably reserved.
    async fn begin_transaction(self: &Rc<Inner<M>>) -> Result<Open<'_>, MetaError> {
        let transactions = &self.transactions;
        let number = transactions.next.get();
        transactions.next.set(number + 1);
        transactions.open.borrow_mut().insert(number);
        let open = Open { of: transactions, number };
        if number >= transactions.reserved.get() {
            self.wait_for_room().await?;
            let reserved = transactions.next.get().max(transactions.reserved.get()) + RESERVED;
            self.change(&[Change::Put(Key::transactions(), encode_number(reserved))]);
            self.prove().await?;
            transactions.reserved.set(reserved.max(transactions.reserved.get()));
        }
        Ok(open)
    }

    /// Decides an operation now. `is_locked`: it has to wait for a transaction.
    pub(crate) fn decide_here(
        &self,
        request: &FileRequest,
        foreign: &Foreign,
        is_locked: bool,
    ) -> Result<Decision, Need> {
        let now = FileTime::from_us(wall_clock_us());
        let tables = self.tables.borrow();
        let is_kept = is_locked || self.recalls.is_kept_from(&tables, request);
        let (is_full, newest_set) = (self.medium.is_full(), self.newest_set.get());
        decide_with(&tables, request, now, Limits { is_full, is_kept, newest_set }, foreign)
    }

    /// Makes the changes of a decision, those of other shards as something to notify them of. Returns those
    /// shards.
    fn commit(self: &Rc<Inner<M>>, transaction: Transaction, changes: Vec<Change>) -> BTreeSet<u16> {
        let (mut changes, of_others) = split(changes, transaction.coordinator);
        let notified: BTreeSet<u16> = of_others.keys().copied().collect();
        let changed = changes.iter().filter_map(|change| inode_of(change.key())).collect();
        for (shard, theirs) in of_others.iter().filter(|_| !mutated(Mutation::CommitUnlogged)) {
            changes.extend(pieces_of(transaction.number, *shard, theirs));
        }
        self.change(&changes);
        self.follow_holds();
        if !notified.is_empty() {
            self.transactions.notified.borrow_mut().insert(transaction.number, Some(changed));
            let (inner, number) = (self.clone(), transaction.number);
            spawn(async move {
                // Of nothing that is not durable.
                if inner.prove().await.is_ok() {
                    inner.notify_all_of(number).await;
                }
            });
        }
        notified
    }

    /// Notifies participants of a transaction that nothing of theirs changes.
    fn end_attempt(&self, peers: &Rc<dyn Peers>, transaction: Transaction, asked: BTreeSet<u16>) {
        for shard in asked {
            let peers = peers.clone();
            // One that does not hear of it asks.
            spawn(async move { peers.ask(shard, PeerAsk::Abort(transaction)).await });
        }
    }

    /// Notifies the participants of a transaction that it has happened, until each of them has followed.
    async fn notify_all_of(self: Rc<Inner<M>>, number: u64) {
        let coordinator = self.tables.borrow().shard().map_or(0, |record| record.number);
        let transaction = Transaction { coordinator, number };
        let notified: BTreeMap<u16, Vec<Change>> = {
            let tables = self.tables.borrow();
            let participants: Vec<u16> =
                committed_in(&tables).filter(|(of, _)| *of == number).map(|(_, shard)| shard).collect();
            let changes = |shard| Some((shard, changes_for(&tables, number, shard)?));
            participants.into_iter().filter_map(changes).collect()
        };
        for (shard, changes) in notified {
            loop {
                let Some(peers) = self.peers.borrow().clone() else { return };
                if self.check().is_err() {
                    return;
                }
                let (changes, over) = (changes.clone(), self.transactions.over());
                let ask = PeerAsk::Commit { transaction, over, changes };
                if peers.ask(shard, ask).await == Some(PeerAnswer::Done) {
                    break;
                }
                sleep(NOTIFY_AGAIN).await;
            }
        }
        if self.wait_for_room().await.is_ok() {
            let keys = keys_of(&self.tables.borrow(), number, None);
            self.change(&keys.into_iter().map(Change::Delete).collect::<Vec<_>>());
            self.transactions.notified.borrow_mut().remove(&number);
        }
    }

    /// What has become of a transaction of this shard.
    pub(crate) async fn outcome(
        &self,
        transaction: Transaction,
        participant: u16,
    ) -> Result<PeerAnswer, MetaError> {
        self.check()?;
        let number = transaction.number;
        if self.transactions.open.borrow().contains(&number) {
            return Ok(PeerAnswer::UnderWay);
        }
        let changes = changes_for(&self.tables.borrow(), number, participant);
        // What was decided may not be durable, and another server may have decided it.
        self.prove().await?;
        Ok(changes.map_or(PeerAnswer::Aborted, PeerAnswer::Committed))
    }
}

/// The question that gets what is needed.
fn ask_for(need: &Need, transaction: Transaction, (part, over): (u8, u64), request: &FileRequest) -> PeerAsk {
    let (locks, keys, makes) = match need {
        Need::Parents(inode) | Need::Unlocked(inode) => return PeerAsk::Parents(transaction, *inode),
        Need::Made { .. } => (Vec::new(), Vec::new(), true),
        Need::Budget(..) => unreachable!("it is had by itself"),
        Need::Items { locks, keys, .. } => {
            (locks.iter().copied().collect(), keys.iter().cloned().collect(), false)
        }
    };
    PeerAsk::Prepare(Prepare { transaction, part, over, session: request.session, locks, keys, makes })
}

/// Takes what was answered; false if it was not what is needed.
fn take(foreign: &mut Foreign, need: &Need, answer: Option<PeerAnswer>) -> bool {
    match (need, answer) {
        (Need::Parents(_), Some(PeerAnswer::Parents(parents))) => {
            let is_any = !parents.is_empty();
            foreign.parents.extend(parents);
            is_any
        }
        (Need::Items { locks, .. }, Some(PeerAnswer::Prepared { items, .. })) => {
            foreign.items.extend(items);
            foreign.locked.extend(locks);
            true
        }
        (Need::Made { .. }, Some(PeerAnswer::Prepared { made: Some(made), .. })) => {
            foreign.made = Some(made);
            foreign.locked.insert(made);
            // It is new: there is nothing of it.
            foreign.items.extend([(Key::inode(made), None), (Key::part(made, 0), None)]);
            true
        }
        _ => false,
    }
}
