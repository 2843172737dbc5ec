//! What the store's tasks and requests share: the state, the drive, and the waiting for each other. It owns
//! loading of leaves, backpressure, and the latch of the first failure; it judges nothing.

use crate::StoreError;
use crate::label::Label;
use crate::leaf::{Leaf, LeafKey};
use crate::page::PageReader;
use crate::state::{Room, State};
use crate::tree;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::{Either, Notify, race};
use weft_rt::{Drive, sleep};
use weft_types::{BlockRange, GroupId, ObjectId, with_causes};

/// The page cache's share of the RAM budget.
const PAGE_CACHE_SHARE: u64 = 8;

/// Leaves that one request loads at the same time.
const LOADS_TOGETHER: usize = 16;

/// Checkpoints that a change waits for on a drive that is nearly full before it is refused: the first
/// returns what was replaced, a second what the first itself replaced.
const ROOM_ATTEMPTS_MAX: u32 = 3;

/// How long data waits on a full drive for reads that keep places before it is refused: longer than a drive takes for
/// a read, shorter than a check of all of its map.
const READS_PATIENCE: Duration = Duration::from_secs(1);

/// An open store's inside.
pub(crate) struct Engine {
    pub(crate) drive: Drive,
    pub(crate) label: Label,
    pub(crate) state: RefCell<State>,
    pub(crate) reader: PageReader,
    /// The committer has something to do.
    pub(crate) work: Notify,
    /// A batch became durable, or the store failed.
    pub(crate) committed: Notify,
    /// A checkpoint was asked for.
    pub(crate) checkpoint_wanted: Notify,
    /// A checkpoint is done (so the log and the RAM have room again), or the store failed.
    pub(crate) checkpointed: Notify,
    /// A read has ended that may have kept places, or the store failed.
    pub(crate) read_ended: Notify,
    /// The floor of a group was raised, or the store failed.
    pub(crate) floor_raised: Notify,
}

impl Engine {
    pub(crate) fn new(drive: Drive, label: Label, state: State) -> Engine {
        let cache_bytes = state.budget_bytes / PAGE_CACHE_SHARE;
        Engine {
            reader: PageReader::new(drive.clone(), cache_bytes as usize),
            drive,
            label,
            state: RefCell::new(state),
            work: Notify::default(),
            committed: Notify::default(),
            checkpoint_wanted: Notify::default(),
            checkpointed: Notify::default(),
            read_ended: Notify::default(),
            floor_raised: Notify::default(),
        }
    }

    /// Latches the first failure: from now on every request is refused with it.
    pub(crate) fn fail(&self, error: &StoreError) {
        let chain = with_causes(error);
        {
            let mut state = self.state.borrow_mut();
            if state.failed.is_none() {
                tracing::error!(drive = %self.label.drive, cause = %chain, "the drive has failed");
                state.failed = Some(chain.into());
                state.is_device_at_fault = error.is_of_device();
            }
        }
        self.wake_all();
    }

    /// Wakes everyone who waits for something that may not come any more.
    pub(crate) fn wake_all(&self) {
        let all = [
            &self.work,
            &self.committed,
            &self.checkpoint_wanted,
            &self.checkpointed,
            &self.read_ended,
            &self.floor_raised,
        ];
        all.into_iter().for_each(Notify::notify_all);
    }

    /// Makes every completed write durable.
    pub(crate) async fn flush(&self) -> Result<(), StoreError> {
        self.drive.flush().await.map_err(|e| StoreError::io("flush", 0, 0, e))
    }

    /// Waits until a batch is durable.
    ///
    /// # Errors
    /// If the store fails before.
    pub(crate) async fn durable(&self, batch: u64) -> Result<(), StoreError> {
        loop {
            {
                let state = self.state.borrow();
                if state.commits.durable() >= batch {
                    return Ok(());
                }
                if let Some(cause) = &state.failed {
                    return Err(StoreError::Failed { cause: cause.clone() });
                }
                if state.is_stopped {
                    return Err(StoreError::Closed);
                }
            }
            self.committed.notified().await;
        }
    }

    /// Waits until one more change has room in the log and in RAM.
    ///
    /// # Errors
    /// If the store has failed or is closing.
    pub(crate) async fn admit(&self) -> Result<(), StoreError> {
        loop {
            {
                let mut state = self.state.borrow_mut();
                state.check()?;
                if state.is_checkpoint_due() {
                    self.want_checkpoint(&mut state);
                }
                if state.has_room() {
                    return Ok(());
                }
            }
            self.checkpointed.notified().await;
        }
    }

    /// Asks for a checkpoint, unless one is asked for that has not begun yet.
    pub(crate) fn want_checkpoint(&self, state: &mut State) {
        if state.checkpoints_begun == state.checkpoints_done {
            state.checkpoints_wanted = state.checkpoints_wanted.max(state.checkpoints_begun + 1);
            self.checkpoint_wanted.notify_all();
        }
    }

    /// Waits for a checkpoint that begins after this call.
    ///
    /// # Errors
    /// If the store fails before.
    pub(crate) async fn checkpoint(&self) -> Result<(), StoreError> {
        let target = {
            let mut state = self.state.borrow_mut();
            let target = state.checkpoints_begun + 1;
            state.checkpoints_wanted = state.checkpoints_wanted.max(target);
            target
        };
        self.checkpoint_wanted.notify_all();
        loop {
            {
                let state = self.state.borrow();
                if state.checkpoints_done >= target {
                    return Ok(());
                }
                if let Some(cause) = &state.failed {
                    return Err(StoreError::Failed { cause: cause.clone() });
                }
                if state.is_stopped {
                    return Err(StoreError::Closed);
                }
            }
            self.checkpointed.notified().await;
        }
    }

    /// Likewise, for whoever keeps others from beginning: it is the newest one when this returns.
    ///
    /// # Errors
    /// If the store fails before.
    pub(crate) async fn checkpoint_despite_hold(&self) -> Result<(), StoreError> {
        self.state.borrow_mut().checkpoint_despite_holds = true;
        self.checkpoint().await
    }

    /// Waits for room on a drive that is nearly full, before the change is tried for the next time.
    ///
    /// # Errors
    /// `NoSpace` if there will be none, or was none after several checkpoints. A change that needs no block of
    /// data is refused only as `Crowded`, if not even the state itself has room: one part of it may have been made
    /// already. Otherwise each checkpoint lets another such change through, so all have their turn.
    pub(crate) async fn make_room(
        &self,
        needed_blocks: u64,
        short: Room,
        attempt: u32,
    ) -> Result<(), StoreError> {
        if short == Room::Full && needed_blocks == 0 {
            if attempt == 1 {
                self.state.borrow_mut().measure_state();
                return Ok(());
            }
            return Err(StoreError::Crowded { reason: "the drive has no room to remember more" });
        }
        if short == Room::Full || (needed_blocks > 0 && attempt > ROOM_ATTEMPTS_MAX) {
            return Err(self.no_space(needed_blocks));
        }
        let is_kept = || self.state.borrow().is_space_kept_by_reads();
        if !is_kept() {
            return self.checkpoint().await;
        }
        // Another checkpoint would return nothing, and take blocks of its own.
        let patience = sleep(READS_PATIENCE);
        let over = race(patience, async {
            while is_kept() {
                self.read_ended.notified().await;
                self.state.borrow().check()?;
            }
            Ok(())
        });
        match over.await {
            Either::Left(()) if needed_blocks > 0 => Err(self.no_space(needed_blocks)),
            Either::Left(()) => Ok(()),
            Either::Right(ended) => ended,
        }
    }

    fn no_space(&self, needed_blocks: u64) -> StoreError {
        StoreError::NoSpace { needed_blocks, free_blocks: self.state.borrow().free_for_data() }
    }

    /// A read begins: the places that it finds stay until the pin is dropped.
    pub(crate) fn pin(&self) -> Pin<'_> {
        let begun = self.state.borrow_mut().frees.begin_read();
        Pin { engine: self, begun }
    }

    /// Brings the leaves of a run of blocks into RAM.
    ///
    /// # Errors
    /// If a page of the map is damaged.
    pub(crate) async fn load_range(
        &self,
        group: GroupId,
        object: ObjectId,
        range: BlockRange,
    ) -> Result<(), StoreError> {
        let missing: Vec<LeafKey> = {
            let state = self.state.borrow();
            let keys = range.by_chunk().map(|(chunk, _)| LeafKey { group, object, chunk });
            keys.filter(|key| !state.map.is_loaded(key)).collect()
        };
        for keys in missing.chunks(LOADS_TOGETHER) {
            match keys {
                [key] => self.load(*key).await?,
                keys => {
                    let loads = weft_rt::sync::join_all(keys.iter().map(|key| self.load(*key))).await;
                    loads.into_iter().collect::<Result<(), _>>()?;
                }
            }
        }
        Ok(())
    }

    /// Brings a leaf into RAM. It may have left again when this returns, so the caller looks again.
    ///
    /// # Errors
    /// If a page of the map is damaged, or contradicts the bitmap.
    pub(crate) async fn load(&self, key: LeafKey) -> Result<(), StoreError> {
        loop {
            let (root, checkpoint) = {
                let state = self.state.borrow();
                if state.map.is_loaded(&key) {
                    return Ok(());
                }
                (state.superblock.root, state.superblock.checkpoint)
            };
            let pin = self.pin();
            let found = tree::lookup(&self.reader, root, key).await?;
            drop(pin);
            let mut state = self.state.borrow_mut();
            // A checkpoint may have written a newer leaf meanwhile, and may have let go of it since.
            if state.superblock.checkpoint == checkpoint {
                if !state.map.is_loaded(&key) {
                    let leaf = found.unwrap_or_default();
                    // As long as no newer leaf is in RAM, what the stored one says is how it is: every place of it is
                    // in use.
                    for run in leaf.places() {
                        state
                            .bitmap
                            .check_owned(run)
                            .map_err(|unowned| unowned.found_by("a block's data"))?;
                    }
                    state.map.insert_clean(key, leaf);
                    state.trim(self.reader.cached_bytes() as u64);
                }
                return Ok(());
            }
        }
    }

    /// Up to `limit` leaves that are not empty, from `from` on and below `end`, in key order; and where to go
    /// on, `None` if there are no more. Waits until what they cite is durable.
    ///
    /// # Errors
    /// If a page of the map is damaged, or the store fails.
    pub(crate) async fn scan(
        &self,
        from: LeafKey,
        end: Option<LeafKey>,
        limit: usize,
    ) -> Result<(Vec<(LeafKey, Rc<Leaf>)>, Option<LeafKey>), StoreError> {
        loop {
            let (root, checkpoint) = {
                let state = self.state.borrow();
                (state.superblock.root, state.superblock.checkpoint)
            };
            let pin = self.pin();
            let stored = tree::scan(&self.reader, root, from, end, limit).await?;
            drop(pin);
            let last = (stored.len() == limit).then(|| stored.last().expect("limit is not zero").0);
            let (changed, batch) = {
                let state = self.state.borrow();
                if state.superblock.checkpoint != checkpoint {
                    continue;
                }
                state.map.changed(from, end, last, state.commits.durable())
            };
            let mut all: BTreeMap<LeafKey, Rc<Leaf>> =
                stored.into_iter().map(|(key, leaf)| (key, Rc::new(leaf))).collect();
            all.extend(changed);
            self.durable(batch).await?;
            let mut next = last.and_then(LeafKey::next);
            let mut out: Vec<_> = all.into_iter().filter(|(_, leaf)| !leaf.is_empty()).collect();
            if out.len() > limit {
                out.truncate(limit);
                next = out.last().and_then(|(key, _)| key.next());
            }
            return Ok((out, next));
        }
    }
}

/// See [`Engine::pin`].
pub(crate) struct Pin<'a> {
    engine: &'a Engine,
    begun: u64,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let released = {
            let mut state = self.engine.state.borrow_mut();
            let state = &mut *state;
            state.frees.end_read(self.begun);
            if state.frees.blocks() == 0 {
                return;
            }
            state.frees.release(&mut state.bitmap)
        };
        self.engine.read_ended.notify_all();
        if let Err(error) = released {
            self.engine.fail(&error);
        }
    }
}
