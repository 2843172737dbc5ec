//! A shard that is served: operations in, answers out.

use crate::change::Change;
use crate::checkpoint::{
    Checkpoint, FULL_BATCH_BYTES, FULL_LOG_BLOCKS, Newest, STEP_PAGES, begin_if_due, most_log_blocks,
};
use crate::coordinator::Transactions;
use crate::decide::Decision;
use crate::error::MetaError;
use crate::foreign::{Foreign, Need};
use crate::key::{Key, KeyParts, Table};
use crate::lock_waits::{LockWaits, WantedLock};
use crate::log::{BATCH_BYTES_MAX, Log};
use crate::medium::{Medium, read_whole};
use crate::participant::Locks;
use crate::peer::Peers;
use crate::place::{LOG_BLOCK, LOG_BLOCKS, LOG_BLOCKS_LEAST, Places, SUPERBLOCKS};
use crate::quota::Quotas;
use crate::recalls::{Recalls, Wanted, in_the_way, who_knows};
use crate::record::{Inode, Part, ShardRecord, Value, decode_hold};
use crate::running_check::RunningCheck;
use crate::superblock::{FEATURES, QUOTAS, SPREAD, ShardName, Superblock, newest};
use crate::tables::Tables;
use crate::tree::{Tree, write_pages};
use crate::waits::Waits;
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::Notify;
use weft_rt::{Buf, Instant, now, spawn, timeout, wall_clock_us};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{Attributes, BLOCK_SIZE, FileKind, FileTime, InodeNumber, SessionId};
use weft_wire::Encoder;
use weft_wire::files::{Answer, FileError, FileRequest, HoldMode, LockOwner, Operation};

/// What a new shard is.
#[derive(Clone, Copy, Debug)]
pub struct ShardFormat {
    /// Which shard it is. Shard 0 has the root directory.
    pub name: ShardName,
    /// The key of the hash of names, the same in all shards of a file system.
    pub hash_key: [u8; 16],
    /// Layout of the root directory.
    pub layout: [u8; 12],
    /// Owner, group and permissions of the root directory.
    pub owner: (u32, u32, u16),
    /// Blocks of the log, at least four of the largest batches.
    pub log_blocks: u32,
    /// Whether directories of the file system lie in several shards.
    pub is_spread: bool,
}

impl ShardFormat {
    /// A shard with the usual log, whose root directory belongs to root.
    pub fn new(name: ShardName, hash_key: [u8; 16], layout: [u8; 12]) -> ShardFormat {
        ShardFormat { name, hash_key, layout, owner: (0, 0, 0o755), log_blocks: LOG_BLOCKS, is_spread: false }
    }

    /// The items that a new shard has.
    pub(crate) fn items(&self, now: FileTime) -> Tables {
        let mut tables = Tables::default();
        let is_first = self.name.shard == 0;
        let reserved = if is_first { 2 } else { 1 };
        let record = ShardRecord { reserved, hash_key: self.hash_key, number: self.name.shard };
        tables.load(Key::shard(), record.encode());
        if is_first {
            let (uid, gid, mode) = self.owner;
            let attributes = Attributes {
                inode: InodeNumber::ROOT,
                kind: FileKind::Directory,
                mode,
                links: 2,
                uid,
                gid,
                size: 0,
                device: 0,
                accessed: now,
                modified: now,
                changed: now,
                born: now,
                layout: self.layout,
                revision: 1,
            };
            let root = Inode {
                attributes,
                parent: InodeNumber::ROOT,
                reserved_end: 0,
                modified_revision: 0,
                is_unnamed: false,
                project: 0,
            };
            tables.load(Key::inode(InodeNumber::ROOT), root.encode());
            tables.load(Key::part(InodeNumber::ROOT, 0), Part { modified: now, ..Part::default() }.encode());
        }
        tables
    }
}

/// What a shard has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardCounters {
    /// Operations that were answered.
    pub operations: u64,
    /// Batches of the log.
    pub batches: u64,
    /// Blocks of the log.
    pub log_blocks: u64,
    /// Bytes of changes.
    pub change_bytes: u64,
    /// Reads that proved that no other server has begun (F2).
    pub probes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
}

pub(crate) struct Inner<M> {
    pub(crate) medium: M,
    pub(crate) tables: RefCell<Tables>,
    /// Who waits for whom.
    pub(crate) recalls: Recalls,
    /// The set of groups that new inodes lie in, once it is known.
    pub(crate) newest_set: Cell<Option<u8>>,
    /// The other shards of the file system, once they can be reached.
    pub(crate) peers: RefCell<Option<Rc<dyn Peers>>>,
    /// Inodes that transactions of other shards have locked.
    pub(crate) locks: Locks,
    /// Transactions of this shard.
    pub(crate) transactions: Transactions,
    /// What is remembered of quotas.
    pub(crate) quotas: Quotas,
    /// What a release has to know that opens the shard from the next superblock on.
    pub(crate) features: Cell<u64>,
    lock_waits: LockWaits,
    pub(crate) waits: Waits,
    pub(crate) table_check: RunningCheck,
    /// Changes that were decided and are not under way yet, encoded.
    waiting: RefCell<Vec<u8>>,
    /// Counts what is to be proved, and what was: by an append or a probe that began later (F2).
    asked: Cell<u64>,
    proved: Cell<u64>,
    /// Something is to be proved, or the shard is to end.
    work: Notify,
    /// Something was proved, room was made, or the shard has ended.
    pub(crate) progress: Notify,
    pub(crate) end: RefCell<Option<MetaError>>,
    /// The first block of the log's stream that the newest checkpoint has not.
    pub(crate) log_from: Cell<u64>,
    /// The block of the stream that is written next.
    pub(crate) log_next: Cell<u64>,
    /// Where it stood when the last checkpoint began that is made, or under way.
    pub(crate) checkpoint_from: Cell<u64>,
    pub(crate) log_blocks: u32,
    /// The number of its blocks in use at which a checkpoint begins.
    pub(crate) most_log_blocks: Cell<u64>,
    /// Pages of items that a step of a checkpoint writes, about.
    pub(crate) step_pages: Cell<usize>,
    pub(crate) checkpoint: RefCell<Option<Checkpoint>>,
    pub(crate) counters: Cell<ShardCounters>,
    /// The newest checkpoint.
    pub(crate) newest: Cell<Newest>,
    /// When this server has opened it.
    pub(crate) opened: Instant,
}

/// A shard. Clones are the same shard. It ends with the last of them, with the first failure of its volume,
/// or by [`Shard::close`].
pub struct Shard<M: Medium>(Rc<Handle<M>>);

/// What ends the shard when nobody has it any more.
struct Handle<M: Medium>(Rc<Inner<M>>);

impl<M: Medium> Drop for Handle<M> {
    fn drop(&mut self) {
        self.0.end(MetaError::Closed);
    }
}

impl<M: Medium> Clone for Shard<M> {
    fn clone(&self) -> Self {
        Shard(self.0.clone())
    }
}

/// Opens the shard of a medium, and makes it first where nobody has written anything to the medium.
///
/// # Errors
/// Those of [`Shard::open`] and [`format_shard`]; if there are no superblocks, but a log.
///
/// # Panics
/// If the log is too short for its batches.
pub async fn open_or_format<M: Medium>(medium: M, format: &ShardFormat) -> Result<Shard<M>, MetaError> {
    // Pages alone were left by a server that was interrupted while it made the shard. It had answered
    // nothing: the first answer of a shard comes after the first block of its log.
    for block in [SUPERBLOCKS[0], SUPERBLOCKS[1], LOG_BLOCK] {
        if read_whole(&medium, block, 1).await?.iter().any(|byte| *byte != 0) {
            return Shard::open(medium).await;
        }
    }
    let ShardName { file_system, shard } = format.name;
    tracing::info!(file_system, shard, "the shard is made: its volume is empty");
    format_shard(&medium, format).await?;
    Shard::open(medium).await
}

/// Makes a shard on a medium that holds none.
///
/// # Errors
/// If a shard is there, or the medium fails.
///
/// # Panics
/// If the log is too short for its batches.
pub async fn format_shard(medium: &impl Medium, format: &ShardFormat) -> Result<(), MetaError> {
    assert!(format.log_blocks >= LOG_BLOCKS_LEAST, "a log has at least {LOG_BLOCKS_LEAST} blocks");
    let slots = read_whole(medium, SUPERBLOCKS[0], SUPERBLOCKS.len() as u64).await?;
    if slots.iter().any(|byte| *byte != 0) {
        return Err(MetaError::damaged("the superblock", SUPERBLOCKS[0], "something is there already"));
    }
    let tables = format.items(FileTime::from_us(wall_clock_us()));
    let (needed, blocks) = (LOG_BLOCK + u64::from(format.log_blocks), medium.blocks());
    if needed >= blocks {
        return Err(MetaError::NoSpace { needed, blocks });
    }
    let mut superblock = Superblock {
        name: format.name,
        features: FEATURES | if format.is_spread { SPREAD } else { 0 },
        checkpoint: 1,
        // Whoever formats a shard may open it as well: its log is empty.
        generation: 0,
        log_blocks: format.log_blocks,
        log_next: 0,
        root: None,
    };
    let mut places = Places::around(superblock.first_page(), &Default::default());
    let mut tree = Tree::default();
    let all = ([Key::shard()].into(), usize::MAX);
    let rewritten =
        tree.rewrite(all, |from, to, wanted| tables.range(from, to, wanted), (format.name, 1), &mut places);
    let rewritten = rewritten.await;
    superblock.root = tree.root();
    write_pages(medium, rewritten.pages).await?;
    Ok(medium.write(superblock.block(), vec![Buf::from(superblock.encode())]).await?)
}

impl<M: Medium> Shard<M> {
    /// Opens the shard of a medium, and serves it from now on.
    ///
    /// # Errors
    /// If the medium holds none, or a damaged one, or one of a later release; if the medium fails.
    pub async fn open(medium: M) -> Result<Shard<M>, MetaError> {
        let slots = read_whole(&medium, SUPERBLOCKS[0], SUPERBLOCKS.len() as u64).await?;
        let (a, b) = slots.split_at(BLOCK_SIZE);
        let superblock = newest([a, b])?;
        let mut tables = Tables::default();
        let (tree, used) = Tree::load(&medium, &superblock, &mut tables).await?;
        let mut replayed = 0;
        let apply = |changes: &[Change]| {
            replayed += changes.len();
            changes.iter().for_each(|change| tables.apply(change));
        };
        let log = Log::replay(&medium, &superblock, apply).await?;
        if replayed > 0 {
            mark(Path::ShardReplayed);
        }
        if tables.shard().is_none_or(|record| record.number != superblock.name.shard) {
            let reason = format!("they are none of shard {}", superblock.name.shard);
            return Err(MetaError::damaged("the tables", superblock.block(), reason));
        }
        tables.begin();
        if mutated(Mutation::LocksForgotten) {
            let locks: Vec<Key> = tables.of(Table::Lock).map(|(key, _)| key.clone()).collect();
            locks.into_iter().for_each(|key| tables.apply(&Change::Delete(key)));
        }
        let places = Places::around(superblock.first_page(), &used);
        let checkpoint = Checkpoint { newest: superblock, tree, places };
        let most_log_blocks = most_log_blocks(&medium, log.blocks);
        let (locks, transactions) = (Locks::of(&tables), Transactions::of(&tables));
        let inner = Rc::new(Inner {
            medium,
            tables: RefCell::new(tables),
            recalls: Recalls::default(),
            newest_set: Cell::new(None),
            peers: RefCell::new(None),
            locks,
            transactions,
            quotas: Quotas::of(superblock.features & QUOTAS != 0),
            features: Cell::new(superblock.features),
            lock_waits: LockWaits::default(),
            waits: Waits::default(),
            table_check: RunningCheck::default(),
            waiting: RefCell::default(),
            asked: Cell::new(0),
            proved: Cell::new(0),
            work: Notify::default(),
            progress: Notify::default(),
            end: RefCell::new(None),
            log_from: Cell::new(superblock.log_next),
            log_next: Cell::new(log.next),
            checkpoint_from: Cell::new(superblock.log_next),
            log_blocks: log.blocks,
            most_log_blocks: Cell::new(most_log_blocks),
            step_pages: Cell::new(STEP_PAGES),
            newest: Cell::new(checkpoint.told()),
            opened: now(),
            checkpoint: RefCell::new(Some(checkpoint)),
            counters: Cell::default(),
        });
        begin_if_due(&inner);
        spawn(write_log(inner.clone(), log));
        let shard = Shard(Rc::new(Handle(inner)));
        if superblock.features & FEATURES != FEATURES {
            // A release of before would misread what this one writes.
            shard.checkpoint().await?;
        }
        Ok(shard)
    }

    pub(crate) fn inner(&self) -> &Rc<Inner<M>> {
        &self.0.0
    }

    /// Carries out an operation, and answers when all that the answer is based on is durable, and it is
    /// proved that no other server has begun (F1, F2).
    ///
    /// # Errors
    /// If the shard has ended. Only the next server of the shard knows whether the operation has happened.
    pub async fn serve(&self, request: &FileRequest) -> Result<Answer, MetaError> {
        let served = self.serve_if(request, || Ok::<(), Infallible>(())).await?;
        Ok(served.unwrap_or_else(|never| match never {}))
    }

    /// As [`Shard::serve`], but asks `may_be_decided` in the very step that decides the operation: it may
    /// have waited until then, and its session may have ended (F1).
    ///
    /// # Errors
    /// If the shard has ended. Inside: why the operation may not be decided; then nothing has happened.
    pub async fn serve_if<E>(
        &self,
        request: &FileRequest,
        may_be_decided: impl Fn() -> Result<(), E>,
    ) -> Result<Result<Answer, E>, MetaError> {
        let inner = self.inner();
        inner.recalls.note(request);
        match request.operation {
            Operation::Recalls => return inner.recalls_of(request.session).await.map(Ok),
            Operation::Told(number) => {
                inner.recalls.told(request.session, number);
                inner.notify();
                return Ok(Ok(Answer::Done));
            }
            Operation::Check(number) => return inner.check_of(number).await.map(Ok),
            Operation::Use => return inner.use_of().await.map(Ok),
            Operation::State => return inner.state_of().await.map(Ok),
            Operation::DataOf(ref inodes) => return inner.data_of(inodes).await.map(Ok),
            Operation::Across(number, after) => return inner.across(number, after).await.map(Ok),
            Operation::NamesOf(ref inodes) => return inner.names_of(inodes).await.map(Ok),
            Operation::Quotas(from) => return inner.quotas_from(from).await.map(Ok),
            Operation::SetQuota(..) | Operation::SetProject(..) => self.know_quotas().await?,
            _ => {}
        }
        let place = inner.place_of(&request.operation);
        // From the decision on nothing is awaited before it is made.
        let Decision { changes, answer } = match inner.decide_in_turn(request, place, &may_be_decided).await?
        {
            Ok(Ok(decision)) => decision,
            Ok(Err(_)) => {
                let served = inner.transact(request, place, &may_be_decided).await?;
                inner.count(|counters| counters.operations += 1);
                return Ok(served);
            }
            Err(why) => return Ok(Err(why)),
        };
        let is_unproved = match changes.is_empty() {
            true => mutated(Mutation::UnprobedRead),
            false => mutated(Mutation::AnswerBeforeAppend),
        };
        inner.change(&changes);
        match request.operation {
            Operation::Hold(..)
            | Operation::HoldDirectory(_)
            | Operation::Release(..)
            | Operation::RemoveDirectory(_)
            | Operation::Rename(..) => inner.follow_holds(),
            Operation::Lock(..) | Operation::Unlock(..) => inner.notify(),
            _ => {}
        }
        if !changes.is_empty() && answer != Answer::Failed(FileError::Busy) {
            inner.recalls.has_it(request);
        }
        if !is_unproved {
            inner.prove().await?;
        }
        inner.count(|counters| counters.operations += 1);
        Ok(Ok(answer))
    }

    /// Forgets what is kept for sessions that are over for good, and what they have open: none of their
    /// operations is decided any more. One call does a part of it, and returns whether that was all.
    ///
    /// # Errors
    /// If the shard has ended.
    pub async fn forget_sessions(&self, is_over: impl Fn(SessionId) -> bool) -> Result<bool, MetaError> {
        let inner = self.inner();
        inner.recalls.forget(&is_over);
        inner.wait_for_room().await?;
        let (changes, is_all) = {
            let tables = inner.tables.borrow();
            // Who has a lock has the inode open.
            let kept = [Table::Session, Table::Answer, Table::Lock, Table::Held];
            let kept = kept.into_iter().flat_map(|table| tables.of(table));
            let of_session = |key: &Key| match key.parts() {
                Some(
                    KeyParts::Session(session)
                    | KeyParts::Answer(session, _)
                    | KeyParts::Lock(_, session, ..)
                    | KeyParts::Held(_, session),
                ) => Some(session),
                _ => None,
            };
            let over = kept.filter(|(key, _)| of_session(key).is_some_and(&is_over));
            let over = over.filter(|(key, value)| match shared_by(key, value) {
                Some(inode) => inner.recalls.end_sharing(&tables, inode, &is_over),
                None => true,
            });
            let over: Vec<(&Key, &Value)> = over.take(PURGED_ITEMS + 1).collect();
            let is_all = over.len() <= PURGED_ITEMS;
            let mut changes = Vec::with_capacity(over.len());
            for (key, value) in over.into_iter().take(PURGED_ITEMS) {
                changes.extend(changed_by_writer(&tables, key, value));
                changes.extend(room_of_writer(&tables, key, &is_over));
                changes.push(Change::Delete(key.clone()));
            }
            (changes, is_all)
        };
        if !changes.is_empty() {
            mark(Path::SessionForgotten);
            inner.change(&changes);
            inner.follow_holds();
            inner.prove().await?;
        }
        Ok(is_all)
    }

    /// How long nothing has come from a session: since its last request, or since this server has begun, if
    /// that is less. Whatever was answered to the session before was asked for before that (F5).
    pub fn silent_for(&self, session: SessionId) -> Duration {
        let inner = self.inner();
        inner.recalls.heard(session).unwrap_or(inner.opened).elapsed()
    }

    /// Whether inodes without a name may be there. Costs nothing, and proves nothing.
    pub fn may_have_orphans(&self) -> bool {
        self.inner().tables.borrow().of(Table::Orphan).next().is_some()
    }

    /// Inodes that have no name, and that no session has open, at most `limit`: none of them gets a name
    /// again, whatever happens, nor is it opened.
    ///
    /// # Errors
    /// If the shard has ended.
    pub async fn orphans(&self, limit: usize) -> Result<Vec<InodeNumber>, MetaError> {
        let inner = self.inner();
        inner.check()?;
        let orphans = {
            let tables = inner.tables.borrow();
            let listed = tables.of(Table::Orphan).filter_map(|(key, _)| match key.parts() {
                Some(KeyParts::Orphan(inode)) => Some(inode),
                _ => None,
            });
            listed.filter(|inode| is_orphan(&tables, *inode)).take(limit).collect()
        };
        // The last name may be gone in memory only, or another server may have begun.
        inner.prove().await?;
        Ok(orphans)
    }

    /// Removes one of the [`Shard::orphans`], whose data are gone and that nobody uses any more. False if it
    /// is none.
    ///
    /// # Errors
    /// If the shard has ended. What is left is removed when this is asked again.
    pub async fn purge(&self, inode: InodeNumber) -> Result<bool, MetaError> {
        let inner = self.inner();
        loop {
            inner.wait_for_room().await?;
            if !is_orphan(&inner.tables.borrow(), inode) {
                return Ok(false);
            }
            let (changes, is_last) = purge(&inner.tables.borrow(), inode);
            inner.change(&changes);
            inner.prove().await?;
            if is_last {
                return Ok(true);
            }
        }
    }

    /// Waits until the shard has ended, and says why.
    pub async fn ended(&self) -> MetaError {
        let inner = self.inner();
        loop {
            if let Err(error) = inner.check() {
                return error;
            }
            inner.progressed().await;
        }
    }

    /// What the shard holds, for checks.
    pub fn with_tables<R>(&self, read: impl FnOnce(&Tables) -> R) -> R {
        read(&self.inner().tables.borrow())
    }

    /// What it has done since it was opened.
    pub fn counters(&self) -> ShardCounters {
        self.inner().counters.get()
    }

    /// New inodes lie in this set of groups from now on: by its place among those of the file system. Until
    /// then they lie in that of their directory.
    pub fn use_set(&self, newest: u8) {
        self.inner().newest_set.set(Some(newest));
    }

    /// Ends the shard: operations that wait fail with [`MetaError::Closed`].
    pub fn close(&self) {
        self.inner().end(MetaError::Closed);
    }
}

/// How long an operation that waits for others goes without a look at whether it may go on.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How long one operation waits. Then its client has to ask again, so that a client that does not wait any
/// more does not keep a connection busy.
pub(crate) const WAITS_AT_MOST: Duration = Duration::from_secs(5);

/// Items that one round of a purge removes: a tenth of the largest batch.
const PURGED_ITEMS: usize = 256;

/// Who takes, gives back or looks for a lock.
fn lock_owner(operation: &Operation) -> Option<LockOwner> {
    match operation {
        Operation::Lock(_, lock) | Operation::FindLock(_, lock) => Some(lock.owner),
        Operation::Unlock(_, owner, _) => Some(*owner),
        _ => None,
    }
}

/// The lock that is waited for, if it is one.
fn wanted_lock(request: &FileRequest) -> Option<WantedLock> {
    let Operation::Await(operation) = &request.operation else { return None };
    match **operation {
        Operation::Lock(inode, lock) => Some(WantedLock { session: request.session, inode, lock }),
        _ => None,
    }
}

/// The inode that a session shares with others, if that is what the item says.
fn shared_by(key: &Key, value: &Value) -> Option<InodeNumber> {
    let Some(KeyParts::Held(inode, _)) = key.parts() else { return None };
    let mode = decode_hold(value).expect("values are checked");
    (mode == HoldMode::Shared).then_some(inode)
}

/// What becomes of a file when the hold of a session that is over is forgotten: that session may have
/// written data without a word to the shard. Kernels that have pages of the file see by its time that they
/// are old (F5).
fn changed_by_writer(tables: &Tables, key: &Key, value: &Value) -> Option<Change> {
    let Some(KeyParts::Held(inode, _)) = key.parts() else { return None };
    let may_have_written = decode_hold(value).expect("values are checked").writes();
    let mut found = tables.inode(inode).filter(|found| may_have_written && !found.is_directory())?;
    if mutated(Mutation::WritesForgotten) {
        return None;
    }
    let attributes = &mut found.attributes;
    attributes.modified = attributes.modified.next();
    attributes.changed = attributes.changed.max(attributes.modified);
    attributes.revision += 1;
    Some(Change::Put(Key::inode(inode), found.encode()))
}

/// What becomes of the room to write when the hold of a session that is over is forgotten: it goes, unless
/// others write the inode.
fn room_of_writer(tables: &Tables, key: &Key, is_over: impl Fn(SessionId) -> bool) -> Option<Change> {
    let Some(KeyParts::Held(inode, session)) = key.parts() else { return None };
    let lives = |holder: SessionId| holder != session && !is_over(holder);
    let is_written = tables.holders(inode).any(|(holder, mode)| mode.writes() && lives(holder));
    (tables.room(inode) > 0 && !is_written).then(|| Change::Delete(Key::room(inode)))
}

/// Whether an inode has no name, and never gets one: who gives it one has to have it open.
fn is_orphan(tables: &Tables, inode: InodeNumber) -> bool {
    tables.get(&Key::orphan(inode)).is_some() && (!tables.is_held(inode) || mutated(Mutation::HoldForgotten))
}

/// What removes an inode from the tables, or some of what belongs to it; and whether nothing is left.
fn purge(tables: &Tables, inode: InodeNumber) -> (Vec<Change>, bool) {
    let is_xattr = |key: &&Key| matches!(key.parts(), Some(KeyParts::Xattr(found, ..)) if found == inode);
    let is_target = |key: &&Key| matches!(key.parts(), Some(KeyParts::Target(found, _)) if found == inode);
    let xattrs = tables.from(Key::first_xattr(inode)).map(|(key, _)| key).take_while(is_xattr);
    let targets = tables.from(Key::target(inode, 0)).map(|(key, _)| key).take_while(is_target);
    let mut keys: Vec<Key> = xattrs.chain(targets).take(PURGED_ITEMS).cloned().collect();
    let is_last = keys.len() < PURGED_ITEMS;
    if is_last {
        keys.extend(tables.part(inode).map(|_| Key::part(inode, 0)));
        keys.extend(Some(Key::room(inode)).filter(|room| tables.get(room).is_some()));
        keys.extend([Key::inode(inode), Key::orphan(inode)]);
    }
    (keys.into_iter().map(Change::Delete).collect(), is_last)
}

impl<M: Medium> Inner<M> {
    /// Makes changes in memory, and has them appended.
    pub(crate) fn change(&self, changes: &[Change]) {
        let mut tables = self.tables.borrow_mut();
        let mut e = Encoder(self.waiting.take());
        for change in changes {
            tables.apply(change);
            change.encode(&mut e);
        }
        self.waiting.replace(e.0);
    }

    /// What an operation does, or what is needed of other shards first.
    fn decide(&self, request: &FileRequest, place: Option<u16>) -> Result<Decision, Need> {
        let is_locked = self.locks.are_in_the_way(&self.tables.borrow(), request);
        let (is_spread, shards) = (self.transactions.is_spread(), self.transactions.shards());
        let foreign = Foreign { place, is_spread, shards, ..Foreign::default() };
        match self.decide_here(request, &foreign, is_locked) {
            Err(_) if !self.has_peers() || !request.operation.changes() => {
                Ok(Decision::refused(FileError::Stale))
            }
            decided => decided,
        }
    }

    /// Decides an operation as soon as it may be decided. An operation that changes something needs room
    /// in the log. For any other, no session may hold what is in its way, and sessions that know more than
    /// the shard must have told it (F4).
    ///
    /// # Errors
    /// If the shard has ended. Inside: why it may not be decided at all.
    async fn decide_in_turn<E>(
        self: &Rc<Inner<M>>,
        request: &FileRequest,
        place: Option<u16>,
        may_be_decided: &impl Fn() -> Result<(), E>,
    ) -> Result<Result<Result<Decision, Need>, E>, MetaError> {
        let mut asked: Option<Vec<(Wanted, u64)>> = None;
        let changes = request.operation.changes();
        let wanted_lock = wanted_lock(request);
        let (mut waits_for_lock, mut would_wait_from) = (None, None);
        if let Some(owner) = lock_owner(&request.operation) {
            self.lock_waits.end_of(request.session, owner);
        }
        let (from, mut waited_for) = (now(), Vec::new());
        let mut wait = self.waits.begin();
        loop {
            if from.elapsed() >= WAITS_AT_MOST {
                return Err(MetaError::Waits);
            }
            let progress = self.progress.notified();
            if changes {
                self.wait_for_room().await?;
            }
            self.check()?;
            if !mutated(Mutation::SessionNotCheckedAgain)
                && let Err(why) = may_be_decided()
            {
                return Ok(Err(why));
            }
            let in_the_way = self.in_the_way_of(request);
            let is_open = |(wanted, number): &(Wanted, u64)| self.recalls.is_open(wanted.session, *number);
            if !in_the_way.is_empty() {
                waited_for.clone_from(&in_the_way);
            }
            self.recalls.keep_free(request.session, &waited_for);
            let is_kept = !changes && self.recalls.is_kept_from(&self.tables.borrow(), request);
            let is_locked = wanted_lock.is_some_and(|wanted| self.is_locked(wanted));
            if let (true, Some(wanted)) = (is_locked, wanted_lock) {
                if self.is_deadlock(wanted, waits_for_lock.is_some(), &mut would_wait_from) {
                    mark(Path::DeadlockRefused);
                    return Ok(Ok(Ok(Decision::refused(FileError::Deadlock))));
                }
                mark(Path::LockWaited);
                waits_for_lock.get_or_insert_with(|| self.lock_waits.begin(wanted));
            }
            let is_moving = !changes && self.locks.are_in_the_way(&self.tables.borrow(), request);
            let is_free = in_the_way.is_empty() && !is_kept && !is_locked && !is_moving;
            if is_free && !asked.iter().flatten().any(is_open) {
                let decision = match self.decide(request, place) {
                    Ok(decision) if self.locks.are_in_answer(&decision.answer) => {
                        let _ = timeout(LOOK_AGAIN, progress).await;
                        continue;
                    }
                    Ok(decision) => decision,
                    Err(need) => return Ok(Ok(Err(need))),
                };
                let numbers = asked.get_or_insert_with(|| self.ask_who_knows(request, &decision.answer));
                if !numbers.iter().any(is_open) {
                    return Ok(Ok(Ok(decision)));
                }
            }
            let told = asked.iter().flatten().filter(|asked| is_open(asked)).map(|(wanted, _)| *wanted);
            let holds: Vec<Wanted> = in_the_way.iter().copied().chain(told).collect();
            wait.note(request.session, &holds, self.lockers(wanted_lock).into_iter());
            self.recalls.ask_all(in_the_way);
            // The end of a session does not notify this wait, so look again after a while.
            let _ = timeout(LOOK_AGAIN, progress).await;
        }
    }

    /// What sessions hold that an operation has to wait for. One that changes something may have been decided
    /// in part: it waits for nobody.
    fn in_the_way_of(&self, request: &FileRequest) -> Vec<Wanted> {
        if request.operation.changes() || mutated(Mutation::LeaseNotRecalled) {
            return Vec::new();
        }
        in_the_way(&self.tables.borrow(), request)
    }

    /// Whether a wait would last for ever, and still would a little later: by then the shard has heard of
    /// waits that were given up. Of owners that wait for each other, the one that came last is refused, as
    /// in Linux.
    fn is_deadlock(
        &self,
        wanted: WantedLock,
        waits_already: bool,
        from: &mut Option<(Instant, Duration)>,
    ) -> bool {
        if !self.lock_waits.would_wait_for_itself(&self.tables.borrow(), wanted) {
            *from = None;
            return false;
        }
        let rests = if waits_already { 3 * LOOK_AGAIN } else { LOOK_AGAIN };
        let (from, rests) = *from.get_or_insert_with(|| (now(), rests));
        from.elapsed() >= rests
    }

    /// Sessions whose locks are in the way of one, if one is wanted.
    fn lockers(&self, wanted: Option<WantedLock>) -> Vec<(SessionId, InodeNumber)> {
        let Some(wanted) = wanted else { return Vec::new() };
        wanted.holders(&self.tables.borrow()).map(|(session, _)| (session, wanted.inode)).collect()
    }

    fn is_locked(&self, wanted: WantedLock) -> bool {
        wanted.holders(&self.tables.borrow()).next().is_some()
    }

    /// Asks the sessions that know more than the shard of the inodes of an answer to tell it.
    fn ask_who_knows(&self, request: &FileRequest, answer: &Answer) -> Vec<(Wanted, u64)> {
        if mutated(Mutation::WriterNotAsked) {
            return Vec::new();
        }
        let wanted = who_knows(&self.tables.borrow(), request, answer);
        wanted.into_iter().map(|wanted| (wanted, self.recalls.ask(wanted))).collect()
    }

    /// The recalls of a session. Their answer tells it that it was heard, which counts only if no other
    /// server has begun.
    async fn recalls_of(&self, session: SessionId) -> Result<Answer, MetaError> {
        let recalls = self.recalls.of_session(session).await;
        self.prove().await?;
        Ok(Answer::Recalled(recalls))
    }

    /// What sessions hold has changed.
    pub(crate) fn follow_holds(&self) {
        self.recalls.follow(&self.tables.borrow());
        self.notify();
    }

    /// Waits until changes may be decided: the log has room for them.
    pub(crate) async fn wait_for_room(self: &Rc<Inner<M>>) -> Result<(), MetaError> {
        loop {
            self.check()?;
            if self.has_room() {
                return Ok(());
            }
            begin_if_due(self);
            self.progress.notified().await;
        }
    }

    fn has_room(&self) -> bool {
        let (next, waiting) = (self.log_next.get(), self.waiting.borrow().len());
        if self.medium.is_full()
            && (next - self.checkpoint_from.get() >= 2 * FULL_LOG_BLOCKS || waiting >= FULL_BATCH_BYTES)
        {
            return false;
        }
        next - self.log_from.get() < 2 * self.most_log_blocks.get() && waiting < BATCH_BYTES_MAX / 2
    }

    /// Waits until an append or a probe has completed that began after now.
    pub(crate) async fn prove(&self) -> Result<(), MetaError> {
        self.check()?;
        let asked = self.asked.get() + 1;
        self.asked.set(asked);
        self.work.notify_all();
        while self.proved.get() < asked {
            self.progress.notified().await;
            self.check()?;
        }
        Ok(())
    }

    /// Whether the shard has ended.
    pub(crate) fn check(&self) -> Result<(), MetaError> {
        self.end.borrow().clone().map_or(Ok(()), Err)
    }

    /// Ends the shard, unless it has ended.
    pub(crate) fn end(&self, error: MetaError) {
        self.end.borrow_mut().get_or_insert(error);
        self.work.notify_all();
        self.progress.notify_all();
    }

    /// Waits until something may have become possible.
    pub(crate) async fn progressed(&self) {
        self.progress.notified().await;
    }

    /// Something has become possible that others may wait for.
    pub(crate) fn notify(&self) {
        self.progress.notify_all();
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut ShardCounters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }
}

/// Appends what waits, and probes where only proof is waited for, one after the other, until the shard ends.
async fn write_log<M: Medium>(inner: Rc<Inner<M>>, mut log: Log) {
    while inner.check().is_ok() {
        if inner.asked.get() == inner.proved.get() {
            inner.work.notified().await;
            continue;
        }
        if let Err(error) = prove_once(&inner, &mut log).await {
            inner.end(error);
        }
    }
}

/// Proves all that was asked for until now.
async fn prove_once<M: Medium>(inner: &Rc<Inner<M>>, log: &mut Log) -> Result<(), MetaError> {
    let asked = inner.asked.get();
    let changes = inner.waiting.take();
    if changes.is_empty() {
        inner.medium.read(SUPERBLOCKS[0], 1).await?;
        inner.count(|counters| counters.probes += 1);
    } else {
        let before = log.next;
        log.append(&inner.medium, &changes).await?;
        inner.log_next.set(log.next);
        inner.count(|counters| {
            counters.batches += 1;
            counters.log_blocks += log.used(before);
            counters.change_bytes += changes.len() as u64;
        });
    }
    inner.proved.set(asked);
    inner.notify();
    begin_if_due(inner);
    Ok(())
}
