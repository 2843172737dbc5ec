//! Writing back what programs have written (F14): data first, then the size that goes with them.
//!
//! A program that writes goes on at once, as long as the mount may write the file (F4). The data are
//! durable when the program asks for it, when another mount wants the file, when the file is read other
//! than from the kernel's pages, or a second later.

use crate::caller::Shards;
use crate::error::FsError;
use crate::open_file::OpenFile;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_rt::sync::join_all;
use weft_rt::{Buf, spawn};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::limits::{WRITE_BACK_FILE_BYTES_MAX, WRITE_BACK_MOUNT_BYTES_MAX};
use weft_wire::files::FileError;

/// From so many on they are written back while the program goes on.
const EARLY_BYTES: u64 = 2 << 20;

/// Requests of one file that are under way at a time.
const RUNS_AT_ONCE: usize = 16;

/// What the files of a mount share.
#[derive(Default)]
pub(crate) struct WriteBack {
    /// Bytes that are not written back.
    bytes: Cell<u64>,
    /// Bytes that may be kept back from now on; `None`: any number. With none left each write is durable when
    /// it returns.
    allowance: Cell<Option<u64>>,
    /// Losses of any file, and how many of them a sync of the whole mount has reported.
    lost: Lost,
    heard: Cell<u64>,
}

impl WriteBack {
    /// Sets how many bytes may be kept back from now on; `None`: any number.
    pub(crate) fn allow(&self, bytes: Option<u64>) {
        self.allowance.set(bytes);
    }

    /// Bytes that may still be kept back; `None`: any number.
    pub(crate) fn allowance(&self) -> Option<u64> {
        self.allowance.get()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.allowance.get() != Some(0)
    }

    /// Whether there is room for more bytes of a file that has so many.
    pub(crate) fn has_room(&self, of_file: u64) -> bool {
        of_file < WRITE_BACK_FILE_BYTES_MAX && self.bytes.get() < WRITE_BACK_MOUNT_BYTES_MAX
    }

    /// What a file keeps has changed.
    fn update(&self, before: u64, after: u64) {
        self.bytes.set(self.bytes.get() + after - before);
    }

    /// Tells what was lost of any file, once.
    ///
    /// # Errors
    /// Why something was lost.
    pub(crate) fn tell_lost(&self) -> Result<(), FsError> {
        self.lost.tell(&self.heard)
    }
}

/// What was lost of a file: it could not be written back.
#[derive(Default)]
pub(crate) struct Lost {
    /// How often.
    count: Cell<u64>,
    why: RefCell<Option<FsError>>,
}

impl Lost {
    /// How often, until now.
    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }

    fn note(&self, why: &FsError) {
        self.count.set(self.count.get() + 1);
        self.why.replace(Some(why.clone()));
    }

    /// Reports losses that came after the first `heard` ones, and counts them as heard.
    ///
    /// # Errors
    /// Why something was lost.
    pub(crate) fn tell(&self, heard: &Cell<u64>) -> Result<(), FsError> {
        match (heard.replace(self.count.get()) < self.count.get(), &*self.why.borrow()) {
            (true, Some(why)) => Err(why.clone()),
            _ => Ok(()),
        }
    }
}

impl<S: Shards> OpenFile<S> {
    /// Keeps bytes to be written back. They lie within what is reserved, and in the file.
    pub(crate) fn keep(&self, offset: u64, bufs: &[Buf]) {
        let before = self.dirty.weight();
        self.dirty.put(offset, bufs);
        self.write_back.update(before, self.dirty.weight());
        let bytes: usize = bufs.iter().map(|buf| buf.len()).sum();
        let left = self.write_back.allowance().map(|left| left.saturating_sub(bytes as u64));
        self.write_back.allow(left);
    }

    /// The file has become shorter.
    pub(crate) fn forget_behind(&self, size: u64) {
        if mutated(Mutation::KeptBehindEnd) {
            return;
        }
        let before = self.dirty.weight();
        self.dirty.truncate(size);
        self.write_back.update(before, self.dirty.weight());
    }

    /// Writes back all that was kept until now. What fails is lost, and told to everybody who has the file
    /// open.
    ///
    /// # Errors
    /// Why something could not be written.
    pub(crate) async fn write_back(&self) -> Result<(), FsError> {
        let _turn = self.turn.lock().await;
        self.write_back_in_turn().await
    }

    /// As [`OpenFile::write_back`], by a caller that holds the turn. Run it to its end: the bytes that it
    /// has taken to write are nowhere else.
    pub(crate) async fn write_back_in_turn(&self) -> Result<(), FsError> {
        if self.dirty.is_empty() {
            return Ok(());
        }
        let weight = self.dirty.weight();
        let runs = self.dirty.take();
        self.is_flying.set(true);
        let written = self.write_runs(runs).await;
        self.is_flying.set(false);
        self.write_back.update(weight, 0);
        written.map_err(|(from, why)| {
            mark(Path::WriteBackLost);
            tracing::warn!(inode = self.inode.0, error = %why, "written data are lost");
            self.lost.note(&why);
            self.write_back.lost.note(&why);
            if why.refusal() == Some(FileError::NoSpace) {
                // From now on programs hear of that from their writes, until it is said that there is room.
                self.write_back.allow(Some(0));
            }
            self.end_before_lost(from);
            why
        })
    }

    /// Writes all of them, in their order, whatever becomes of some.
    ///
    /// # Errors
    /// Where the first one lies that is lost, and why.
    async fn write_runs(&self, runs: Vec<(u64, Buf)>) -> Result<(), (u64, FsError)> {
        let (mut runs, mut written) = (runs.into_iter().peekable(), Ok(()));
        while runs.peek().is_some() {
            let put = async |(offset, run)| self.put(offset, vec![run]).await.map_err(|why| (offset, why));
            for outcome in join_all(runs.by_ref().take(RUNS_AT_ONCE).map(put)).await {
                written = written.and(outcome);
            }
        }
        written
    }

    /// Writes back before something that needs the data where they belong.
    pub(crate) async fn settle(&self) -> Result<(), FsError> {
        match self.dirty.is_empty() && !self.is_flying.get() {
            true => Ok(()),
            false => self.write_back().await,
        }
    }

    /// Whether some of a part is kept, or on its way.
    pub(crate) fn has_part(&self, offset: u64, end: u64) -> bool {
        self.is_flying.get() || self.dirty.overlaps(offset, end)
    }

    /// Writes back before a part is read, if some of it is kept or on its way.
    pub(crate) async fn settle_part(&self, offset: u64, end: u64) -> Result<(), FsError> {
        match self.has_part(offset, end) && !mutated(Mutation::KeptNotRead) {
            true => self.write_back().await,
            false => Ok(()),
        }
    }
}

/// Writes back while the program goes on, unless that is being done.
pub(crate) fn write_back_early<S: Shards>(file: &Rc<OpenFile<S>>) {
    if file.dirty.weight() >= EARLY_BYTES && !file.is_early.replace(true) {
        let file = file.clone();
        spawn(async move {
            // What fails is told to those who have the file open.
            let _ = file.write_back().await;
            file.is_early.set(false);
        });
    }
}
