//! Checkpoints: the tables become a tree, so that the log is free up to where that began.

use crate::error::MetaError;
use crate::key::Key;
use crate::medium::Medium;
use crate::place::{LOG_BLOCK, Places};
use crate::shard::{Inner, Shard};
use crate::superblock::{FEATURES, FORMAT, Superblock};
use crate::tree::{Tree, write_pages};
use std::ops::Range;
use std::rc::Rc;
use weft_rt::{Buf, spawn};

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
    pub(crate) generation: u64,
    pub(crate) pages: u64,
    pub(crate) levels: u8,
}

impl Checkpoint {
    pub(crate) fn told(&self) -> Newest {
        let Superblock { checkpoint, generation, .. } = self.newest;
        let (pages, levels) = self.tree.size();
        Newest { format: FORMAT, checkpoint, generation, pages, levels }
    }
}

/// If there is no space, a checkpoint begins when this many blocks of the log are in use. It gives the
/// blocks before it back, so that the log takes little of the space that is kept for it.
const FULL_LOG_BLOCKS: u64 = 64;

/// Begins a checkpoint if a quarter of the log is in use, or some of it where there is no space, and none is
/// under way.
pub(crate) fn begin_if_due<M: Medium>(inner: &Rc<Inner<M>>) {
    let used = inner.log_next.get() - inner.log_from.get();
    let quarter = u64::from(inner.log_blocks) / 4;
    if used < if inner.medium.is_full() { quarter.min(FULL_LOG_BLOCKS) } else { quarter } {
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

/// Writes the tables, which change while they are rewritten. So the tree holds each part as it was at some
/// moment between now and the end, and some of its changes have their place in the log behind `log_next`.
/// Replaying these puts the same values once more, in their order, and so leads to the same tables. The
/// superblock waits until all of them are in the log.
async fn write<M: Medium>(inner: &Rc<Inner<M>>, checkpoint: &mut Checkpoint) -> Result<(), MetaError> {
    let log_next = inner.log_next.get();
    let changed = inner.tables.borrow_mut().take_changed();
    let newest = checkpoint.newest;
    let number = newest.checkpoint + 1;
    let items = |from: &Key, to: Option<&Key>| inner.tables.borrow().range(from, to);
    let rewritten =
        checkpoint.tree.rewrite(&changed, items, newest.name, number, &mut checkpoint.places).await;
    write_pages(&inner.medium, rewritten.pages).await?;
    inner.prove().await?;
    let generation = inner.medium.generation();
    let root = rewritten.tree.root();
    let features = FEATURES;
    let superblock = Superblock { features, checkpoint: number, generation, log_next, root, ..newest };
    inner.medium.write(superblock.block(), vec![Buf::from(superblock.encode())]).await?;
    if inner.medium.is_full() {
        discard(inner, newest.log_next..log_next, &rewritten.retired).await?;
    }
    checkpoint.places.give_back(rewritten.retired);
    (checkpoint.newest, checkpoint.tree) = (superblock, rewritten.tree);
    Ok(())
}

/// Gives back the space of blocks of the log's stream, and of pages, that nothing reads any more. Nothing
/// is written there before this is over, because until then neither the blocks nor the pages count as
/// free.
async fn discard<M: Medium>(
    inner: &Rc<Inner<M>>,
    stream: Range<u64>,
    pages: &[u64],
) -> Result<(), MetaError> {
    let ring = u64::from(inner.log_blocks);
    let length = (stream.end - stream.start).min(ring);
    let first = stream.start % ring;
    let until_end = length.min(ring - first);
    inner.medium.discard(LOG_BLOCK + first, until_end).await?;
    if length > until_end {
        inner.medium.discard(LOG_BLOCK, length - until_end).await?;
    }
    for page in pages {
        inner.medium.discard(*page, 1).await?;
    }
    Ok(())
}

impl<M: Medium> Shard<M> {
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
