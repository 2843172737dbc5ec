//! Checkpoints: the tables become a tree, so that the log is free up to where that began.

use crate::error::MetaError;
use crate::key::Key;
use crate::medium::Medium;
use crate::place::{LOG_BLOCK, Places};
use crate::record::Value;
use crate::shard::{Inner, Shard};
use crate::superblock::{FEATURES, FORMAT, Superblock};
use crate::tree::{Tree, write_pages};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use weft_rt::sync::join_all;
use weft_rt::{Buf, spawn};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::BLOCK_SIZE;

/// The newest checkpoint, and what the next one begins with. Whoever makes one holds it.
pub(crate) struct Checkpoint {
    pub(crate) newest: Superblock,
    pub(crate) tree: Tree,
    pub(crate) places: Places,
}

/// What is told of the newest checkpoint, also while the next one is made.
#[derive(Clone, Copy)]
pub(crate) struct Newest {
    pub(crate) format: u16,
    pub(crate) checkpoint: u64,
    pub(crate) pages: u64,
    pub(crate) levels: u8,
}

impl Checkpoint {
    pub(crate) fn told(&self) -> Newest {
        let Superblock { checkpoint, .. } = self.newest;
        let (pages, levels) = self.tree.size();
        Newest { format: FORMAT, checkpoint, pages, levels }
    }
}

/// Pages of items that a step of a checkpoint writes, about. What they replace is free behind it.
pub(crate) const STEP_PAGES: usize = 128;

/// As many where there is no space.
const FULL_STEP_PAGES: usize = 16;

/// If there is no space, a checkpoint begins when this many blocks of the log are in use. It gives the
/// blocks before it back, so that the log takes little of the space that is kept for it. Changes wait where
/// twice as many lie behind the beginning of the last checkpoint.
pub(crate) const FULL_LOG_BLOCKS: u64 = 16;

/// What is in the log only needs pages at the next checkpoint, about as many as it has blocks. There must be
/// space for them also if others have filled the drives in between: so a checkpoint begins when the log has
/// this part of the reserve, and changes wait while it has twice as much.
const LOG_SHARE_OF_RESERVE: u64 = 4;

/// Bytes of changes that wait for the log where there is no space, about.
pub(crate) const FULL_BATCH_BYTES: usize = FULL_LOG_BLOCKS as usize / 2 * BLOCK_SIZE;

/// Free blocks for pages that keep their space unless the drives are full: this number, or this part of the
/// pages if that is more. When the tables become much smaller, the space of the others is given back.
const KEPT_PLACES_LEAST: usize = 256;
const KEPT_PLACES_SHARE: usize = 8;

/// The most blocks that a step gives back, and the most runs of these that are under way at the same time.
const EMPTIED_PER_STEP: usize = 1024;
const DISCARDS_MAX: usize = 16;

/// How many blocks of the log may be in use before a checkpoint begins: a quarter of it, if the reserve is
/// large enough.
pub(crate) fn most_log_blocks(medium: &impl Medium, log_blocks: u32) -> u64 {
    let share = medium.reserve_blocks() / LOG_SHARE_OF_RESERVE;
    share.max(FULL_LOG_BLOCKS).min(u64::from(log_blocks) / 4)
}

/// Begins a checkpoint if much of the log is in use, or some of it where there is no space, and none is under
/// way.
pub(crate) fn begin_if_due<M: Medium>(inner: &Rc<Inner<M>>) {
    let used = inner.log_next.get() - inner.log_from.get();
    if used < if inner.medium.is_full() { FULL_LOG_BLOCKS } else { inner.most_log_blocks.get() } {
        return;
    }
    let Some(checkpoint) = inner.checkpoint.take() else { return };
    let inner = inner.clone();
    spawn(async move {
        if let Err(error) = make(&inner, checkpoint).await {
            inner.end(error);
        }
    });
}

/// Makes a checkpoint.
async fn make<M: Medium>(inner: &Rc<Inner<M>>, mut checkpoint: Checkpoint) -> Result<(), MetaError> {
    write(inner, &mut checkpoint).await?;
    inner.log_from.set(checkpoint.newest.log_next);
    inner.newest.set(checkpoint.told());
    inner.checkpoint.replace(Some(checkpoint));
    inner.count(|counters| counters.checkpoints += 1);
    inner.notify();
    begin_if_due(inner);
    Ok(())
}

/// Writes the tables in steps, each of which has its own superblock. Only the last one says that the log is
/// not needed before this checkpoint.
async fn write<M: Medium>(inner: &Rc<Inner<M>>, checkpoint: &mut Checkpoint) -> Result<(), MetaError> {
    let log_next = inner.log_next.get();
    let mut changed = inner.tables.borrow_mut().take_changed();
    inner.checkpoint_from.set(log_next);
    // Its groups may have other drives now.
    inner.most_log_blocks.set(most_log_blocks(&inner.medium, inner.log_blocks));
    inner.notify();
    loop {
        changed = write_step(inner, checkpoint, changed, log_next).await?;
        if changed.is_empty() {
            return Ok(());
        }
        mark(Path::ShardCheckpointStepped);
    }
}

/// Writes the first of the changes, and returns the others. The tables change while they are rewritten. So
/// the tree holds each part as it was at some moment since the last step, and some of its changes have their
/// place in the log behind `log_next`. Replaying these puts the same values once more, in their order, and so
/// leads to the same tables. The superblock waits until all of them are in the log.
async fn write_step<M: Medium>(
    inner: &Rc<Inner<M>>,
    checkpoint: &mut Checkpoint,
    changed: BTreeSet<Key>,
    log_next: u64,
) -> Result<BTreeSet<Key>, MetaError> {
    let Checkpoint { newest, tree, places } = checkpoint;
    let is_full = inner.medium.is_full();
    let pages = inner.step_pages.get().min(if is_full { FULL_STEP_PAGES } else { usize::MAX });
    let number = newest.checkpoint + 1;
    let items = |from: &Key, to: Option<&Key>, is_wanted: &mut dyn FnMut(&Key, &Value) -> bool| {
        inner.tables.borrow().range(from, to, is_wanted)
    };
    let rewritten = tree.rewrite((changed, pages), items, (newest.name, number), places).await;
    write_pages(&inner.medium, rewritten.pages).await?;
    inner.prove().await?;
    let features = newest.features | FEATURES | inner.features.get();
    let mut superblock = Superblock { features, checkpoint: number, root: tree.root(), ..*newest };
    if rewritten.rest.is_empty() || mutated(Mutation::StepEndsLog) {
        (superblock.generation, superblock.log_next) = (inner.medium.generation(), log_next);
    }
    inner.medium.write(superblock.block(), vec![Buf::from(superblock.encode())]).await?;
    places.give_back(rewritten.retired);
    discard_log(inner, newest.log_next..superblock.log_next).await?;
    let kept = match inner.medium.is_full() {
        true => 0,
        false => KEPT_PLACES_LEAST.max(tree.size().0 as usize / KEPT_PLACES_SHARE),
    };
    discard_runs(inner, &places.empty_beyond(kept, EMPTIED_PER_STEP)).await?;
    *newest = superblock;
    Ok(rewritten.rest)
}

/// Gives back the space of a part of the log's stream that nothing reads any more. Nothing is written there
/// before this is over, because until then it does not count as free.
async fn discard_log<M: Medium>(inner: &Rc<Inner<M>>, stream: Range<u64>) -> Result<(), MetaError> {
    let ring = u64::from(inner.log_blocks);
    let length = (stream.end - stream.start).min(ring);
    let first = stream.start % ring;
    let until_end = length.min(ring - first);
    let runs = [LOG_BLOCK + first..LOG_BLOCK + first + until_end, LOG_BLOCK..LOG_BLOCK + length - until_end];
    discard_runs(inner, &runs).await
}

/// Gives back the space of runs of blocks, a few at a time.
async fn discard_runs<M: Medium>(inner: &Rc<Inner<M>>, runs: &[Range<u64>]) -> Result<(), MetaError> {
    for some in runs.chunks(DISCARDS_MAX) {
        let some = some.iter().filter(|run| !run.is_empty());
        let discards = some.map(|run| inner.medium.discard(run.start, run.end - run.start));
        join_all(discards).await.into_iter().collect::<Result<(), _>>()?;
    }
    Ok(())
}

impl<M: Medium> Shard<M> {
    /// Sets about how many pages of items a checkpoint writes in a step, at least one. Tests use few.
    pub fn step_by(&self, pages: usize) {
        self.inner().step_pages.set(pages.max(1));
    }

    /// Makes a checkpoint now: the next server opens the shard without a log to replay.
    ///
    /// # Errors
    /// If the shard has ended.
    pub async fn checkpoint(&self) -> Result<(), MetaError> {
        loop {
            self.inner().check()?;
            let free = self.inner().checkpoint.take();
            let Some(checkpoint) = free else {
                self.inner().progressed().await;
                continue;
            };
            let inner = self.inner().clone();
            // A task of its own: whoever gives up waiting does not leave a checkpoint half made.
            let made = spawn(async move {
                let made = make(&inner, checkpoint).await;
                made.inspect_err(|error| inner.end(error.clone()))
            });
            return made.await.unwrap_or(Err(MetaError::Closed));
        }
    }
}
