//! Files that several mounts write at the same time (F7).
//!
//! Mounts that write whole blocks need not wait for each other: a block has the data of one of the writes, as
//! a volume has it. So the mounts of such a file *share* it, each in the mode [`HoldMode::Shared`]. Nothing
//! is kept then: data are durable when a write returns, and the shard has heard of the size. Whatever is not
//! a read or a write of whole blocks needs the file alone, and has the others give it back.
//!
//! A file of which a kernel keeps pages is not shared by that mount: a kernel drops pages only when it asks
//! for the time of the file and gets another one, and it may throw that answer away.
//!
//! Before a file is shared, nothing may lie behind its end: whoever makes it longer leaves a hole between the
//! end that others know and its own data. The mount that has the file to write sees to that as it begins to
//! share.

use crate::caller::Shards;
use crate::error::FsError;
use crate::open_file::{BLOCK, OpenFile, UnderWay, now};
use std::cell::Cell;
use std::time::Duration;
use weft_rt::{Buf, Instant};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::Attributes;
use weft_wire::files::{FileError, HoldMode, Operation};

/// How long the mount goes by the last use of a file. After a write of parts of blocks, or a refusal, the
/// mount does not share the file for so long. It gives a shared file back that was not used for so long.
const LATELY: Duration = Duration::from_secs(1);

/// What something needs to do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// To read data.
    Look,
    /// To write whole blocks.
    Whole,
    /// To do anything, while no other mount reads or writes.
    Alone,
}

impl Need {
    /// What a write needs.
    pub(crate) fn of_write(offset: u64, end: u64) -> Need {
        match (offset.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK)) || mutated(Mutation::PartsShared) {
            true => Need::Whole,
            false => Need::Alone,
        }
    }

    /// Whether who holds a file in this mode may do it.
    pub(crate) fn is_met_by(self, mode: Option<HoldMode>) -> bool {
        match self {
            Need::Look => matches!(mode, Some(HoldMode::Read | HoldMode::Write | HoldMode::Shared)),
            Need::Whole => matches!(mode, Some(HoldMode::Write | HoldMode::Shared)),
            Need::Alone => mode == Some(HoldMode::Write),
        }
    }

    /// The mode that allows it if no other mount needs the file.
    fn mode(self) -> HoldMode {
        match self {
            Need::Look => HoldMode::Read,
            Need::Whole | Need::Alone => HoldMode::Write,
        }
    }
}

/// What says whether a file is better shared, or held alone by one mount after the other.
#[derive(Default)]
pub(crate) struct Contest {
    /// When the file was needed alone last.
    alone: Cell<Option<Instant>>,
    /// When it could not be shared last: nobody else writes it, or only alone.
    refused: Cell<Option<Instant>>,
    /// When it was read or written last while it was shared.
    used: Cell<Option<Instant>>,
    /// When it was written last while it was shared.
    written: Cell<Option<Instant>>,
    /// Up to where writes of this mount are durable, since it has its mode.
    durable_end: Cell<u64>,
}

impl Contest {
    pub(crate) fn note_alone(&self) {
        note(&self.alone);
    }

    /// The file is held in another mode from now on.
    pub(crate) fn begin(&self) {
        note(&self.used);
        self.durable_end.set(0);
    }
}

fn note(moment: &Cell<Option<Instant>>) {
    moment.set(Some(weft_rt::now()));
}

fn was_lately(moment: &Cell<Option<Instant>>) -> bool {
    moment.get().is_some_and(|at| at.elapsed() < LATELY)
}

impl<S: Shards> OpenFile<S> {
    /// Whether other mounts may write it at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        self.mode.get() == Some(HoldMode::Shared)
    }

    /// Has the shard let the mount do this with the file: alone if nobody else uses it, else beside others if
    /// that can be, else when its turn comes. The caller holds `mode_turn`, and the mode is open at most.
    pub(crate) async fn obtain_beside(&self, need: Need) -> Result<(), FsError> {
        if self.keep_pages.get() > 0 || was_lately(&self.contest.refused) {
            return self.hold(need.mode()).await;
        }
        if self.hold_if_free(need.mode()).await? {
            return Ok(());
        }
        match self.hold(HoldMode::Shared).await {
            Err(error) if cannot_share(&error) => {
                note(&self.contest.refused);
                self.hold(need.mode()).await
            }
            held => held,
        }
    }

    /// The mode that the mount keeps of one that it has, when others let it keep so much: it shares a file
    /// that it writes in whole blocks.
    pub(crate) fn may_keep(&self, mode: HoldMode, keeps: HoldMode) -> HoldMode {
        match (mode, keeps) {
            (HoldMode::Write, HoldMode::Shared)
                if self.keep_pages.get() == 0 && !was_lately(&self.contest.alone) =>
            {
                HoldMode::Shared
            }
            (HoldMode::Write, HoldMode::Read) => HoldMode::Read,
            _ => HoldMode::Open,
        }
    }

    /// Makes sure that nothing lies behind the end; whether that is so. The caller holds the file to write,
    /// and `turn`, and nothing is under way.
    pub(crate) async fn clear_behind(&self) -> bool {
        let cleared = match mutated(Mutation::SharedUncleared) {
            true => Ok(()),
            false => self.try_to_clear_behind().await,
        };
        if let Err(error) = &cleared {
            tracing::debug!(inode = self.inode.0, %error, "a file is not shared: its end is not clear");
        }
        cleared.is_ok() && (self.leavings.get() <= self.size.get() || mutated(Mutation::SharedUncleared))
    }

    async fn try_to_clear_behind(&self) -> Result<(), FsError> {
        self.reserve(0).await?;
        if self.leavings.get() > self.size.get() {
            self.give_space_back().await?;
            let (size, whole) = (self.size.get(), self.size.get().next_multiple_of(BLOCK));
            if self.leavings.get() <= whole {
                // A part of the block that the end cuts.
                if size < self.leavings.get() {
                    self.write_zeroes(size, self.leavings.get()).await?;
                }
                self.leavings.set(size);
            }
        }
        Ok(())
    }

    /// Something is read up to an end while others may write. Where the file may be longer than it was known
    /// to be, the shard is asked: it has heard of each write that has returned.
    pub(crate) async fn before_read_beside(&self, end: u64) -> Result<(), FsError> {
        note(&self.contest.used);
        if end > self.size.get() && !mutated(Mutation::SharedSizeKept) {
            // The mount holds the file so already, so nothing is in the way. A question for attributes would
            // wait for the word of all who write, one of whom may be dead.
            let hold = Operation::Hold(self.inode, HoldMode::Shared);
            let found = self.names.attributes_by(b"", hold).await?;
            self.seen(found);
        }
        Ok(())
    }

    /// Writes whole blocks while others do, too. They are durable when this returns, and the shard has heard
    /// of the size if the file has become longer. A write that fails may have left something behind the end:
    /// then the file is shared no more until that is cleared.
    pub(crate) async fn write_shared(
        &self,
        under_way: UnderWay<'_, S>,
        (offset, end): (u64, u64),
        bufs: Vec<Buf>,
    ) -> Result<(), FsError> {
        let written = self.write_beside(offset, end, bufs).await;
        drop(under_way);
        if written.is_err() && end > self.size.get() {
            self.obtain(Need::Alone).await?;
        }
        written
    }

    async fn write_beside(&self, offset: u64, end: u64, bufs: Vec<Buf>) -> Result<(), FsError> {
        mark(Path::WrittenBeside);
        note(&self.contest.used);
        note(&self.contest.written);
        if !self.may_write_to(end) {
            let _turn = self.turn.lock().await;
            self.reserve(end).await?;
        }
        if mutated(Mutation::GrownBeforeData) {
            self.contest.durable_end.set(self.contest.durable_end.get().max(end));
            self.grow_beside(end).await?;
        }
        let written = self.put(offset, bufs).await;
        // Some of it may be there, also of one that fails.
        self.untold.note_write(now());
        written?;
        self.contest.durable_end.set(self.contest.durable_end.get().max(end));
        self.grow_beside(end).await
    }

    /// Has the shard know that the file reaches an end, once for all writes that wait for that.
    async fn grow_beside(&self, end: u64) -> Result<(), FsError> {
        if end <= self.size.get() {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        match end <= self.size.get() {
            true => Ok(()),
            false => self.tell_growth(self.contest.durable_end.get()).await,
        }
    }

    /// Has the shard hear when the file was written last. The caller holds `turn`.
    pub(crate) async fn tell_beside(&self) -> Result<(), FsError> {
        match self.untold.has_time() {
            true => self.tell_growth(self.size.get()).await,
            false => Ok(()),
        }
    }

    async fn tell_growth(&self, end: u64) -> Result<(), FsError> {
        let (count, time) = (self.untold.count(), self.untold.modified().unwrap_or_else(now));
        mark(Path::GrowthTold);
        let found = self.names.attributes_by(b"", Operation::Grow(self.inode, end, time)).await?;
        if self.untold.count() == count {
            self.untold.clear();
        }
        self.seen(found);
        Ok(())
    }

    /// Attributes of a file that others may write, too: none of them makes it shorter. The time is that of
    /// the shard, which orders the times of all.
    pub(crate) fn seen_beside(&self, seen: Attributes) -> Attributes {
        let size = match mutated(Mutation::GrowthLowers) {
            true => seen.size,
            false => seen.size.max(self.size.get()),
        };
        self.size.set(size);
        self.told_size.set(size);
        Attributes { size, ..seen }
    }

    /// A kernel keeps pages of the file from now on. Nothing would drop them as others write, so the file is
    /// not shared as long as that is so.
    pub(crate) async fn begin_to_keep_pages(&self) -> Result<(), FsError> {
        self.keep_pages.set(self.keep_pages.get() + 1);
        let _mode_turn = self.mode_turn.lock().await;
        match self.is_shared() {
            true => self.give_up(HoldMode::Open).await,
            false => Ok(()),
        }
    }

    /// Shares the file no longer than that is of use: gives it back if nobody here has used it lately, and
    /// has it alone if nobody else does.
    pub(crate) async fn end_sharing(&self) -> Result<(), FsError> {
        let _mode_turn = self.mode_turn.lock().await;
        if !self.is_shared() {
            return Ok(());
        }
        if !was_lately(&self.contest.used) {
            return self.give_up(HoldMode::Open).await;
        }
        let _given_up = self.wait_until_idle().await;
        let _turn = self.turn.lock().await;
        self.tell_beside().await?;
        let need = if was_lately(&self.contest.written) { Need::Whole } else { Need::Look };
        self.hold_if_free(need.mode()).await.map(drop)
    }
}

/// Whether a file cannot be shared now, or the server is of a release that cannot do it.
pub(crate) fn cannot_share(error: &FsError) -> bool {
    error.refusal() == Some(FileError::NotPermitted) || matches!(error, FsError::NotUnderstood { .. })
}
