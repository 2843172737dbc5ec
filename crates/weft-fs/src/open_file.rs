//! A file that is open on this mount: its size and times, which the mount alone changes, and where its bytes
//! may lie.
//!
//! It owns what is behind the end of a file. Bytes are written before the shard hears of the size, and a file
//! is made shorter before its bytes are given back, so whatever dies in between leaves bytes behind the end.
//! Nobody reads these, and a file that grows over them has zeroes put there first.
//!
//! What changes it is to be run to its end, whoever waits for it: it keeps its turn until the shard has
//! answered, so that nothing late comes after what was done since.

use crate::caller::Shards;
use crate::error::FsError;
use crate::namespace::Namespace;
use std::cell::Cell;
use std::rc::Rc;
use weft_client::{ClientError, File};
use weft_rt::sync::Mutex;
use weft_rt::{Buf, wall_clock_us};
use weft_rules::{Mutation, mutated};
use weft_types::{Attributes, BLOCK_SIZE, FileTime, InodeNumber, with_causes};
use weft_wire::files::{Answer, AttributeChanges, FileError, Operation, SetTime};

/// Bytes are reserved by multiples of this, and as many again as the file has, up to so many.
const RESERVED_STEP: u64 = 256 << 10;
const RESERVED_AHEAD: u64 = 1 << 30;

/// Bytes that are given back at once of a file that becomes shorter. What lies further out stays until the
/// file is purged.
const GIVEN_BACK: u64 = 1 << 40;

/// Bytes of a file that are given back by one call.
const STEP_BYTES: usize = 1 << 30;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Who uses a file, and how often.
pub(crate) struct OpenFile<S> {
    names: Namespace<S>,
    pub(crate) inode: InodeNumber,
    data: File,
    /// Handles, and operations that need it open for their time.
    pub(crate) users: Cell<u64>,
    /// Held by whoever changes the size, or what the shard knows.
    pub(crate) turn: Mutex<()>,
    /// The shard knows that the session has it open.
    pub(crate) is_held: Cell<bool>,
    size: Cell<u64>,
    /// The newest attributes that the shard has told.
    known: Cell<Attributes>,
    /// The size that the shard knows.
    told_size: Cell<u64>,
    /// When data was written last that the shard has not heard of.
    changed: Cell<Option<FileTime>>,
    /// Counts what has changed it.
    writes: Cell<u64>,
    /// Up to where bytes may be written without asking. None before it was asked.
    reserved: Cell<Option<u64>>,
    /// Bytes behind the size and below this may be anything.
    leavings: Cell<u64>,
}

impl<S: Shards> OpenFile<S> {
    /// A file that was found, or made by this mount just now: then nothing lies in it.
    pub(crate) fn new(names: Namespace<S>, found: &Attributes, data: File, is_new: bool) -> Rc<OpenFile<S>> {
        Rc::new(OpenFile {
            names,
            inode: found.inode,
            data,
            users: Cell::new(0),
            turn: Mutex::new(()),
            is_held: Cell::new(false),
            size: Cell::new(found.size),
            known: Cell::new(*found),
            told_size: Cell::new(found.size),
            changed: Cell::new(None),
            writes: Cell::new(0),
            reserved: Cell::new(is_new.then_some(0)),
            leavings: Cell::new(0),
        })
    }

    /// The newest attributes, with what the shard has not heard yet. What the shard has answered may be older
    /// than what it has answered to somebody else since.
    pub(crate) fn seen(&self, found: Attributes) -> Attributes {
        let known = self.known.get();
        let mut seen = if found.revision > known.revision { found } else { known };
        self.known.set(seen);
        if self.changed.get().is_none() && self.size.get() == self.told_size.get() {
            // Another client may write to it: where this mount only reads, or before it was opened.
            self.size.set(seen.size);
            self.told_size.set(seen.size);
        }
        if let Some(time) = self.changed.get() {
            (seen.size, seen.modified) = (self.size.get(), time);
            seen.changed = seen.changed.max(time);
        }
        seen
    }

    /// Reads; fewer bytes at the end of the file only.
    pub(crate) async fn read(&self, offset: u64, length: u64) -> Result<Vec<Buf>, FsError> {
        let size = self.size.get();
        if offset >= size {
            return Ok(Vec::new());
        }
        self.data.read(offset, length.min(size - offset)).await.map_err(|error| self.failed(&error))
    }

    /// Writes all of it. The data is durable then; that the file has grown is so with the next
    /// [`OpenFile::tell`].
    pub(crate) async fn write(&self, offset: u64, bufs: Vec<Buf>) -> Result<(), FsError> {
        let length: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let end = self.end(offset, length)?;
        if end <= self.size.get() && self.reserved.get().is_some_and(|reserved| end <= reserved) {
            let written = self.data.write(offset, bufs).await;
            if end > self.size.get() || self.reserved.get().is_some_and(|reserved| end > reserved) {
                // It was made shorter meanwhile: what was written lies behind the end.
                let _turn = self.turn.lock().await;
                self.reserve(end).await?;
                self.leavings.set(self.leavings.get().max(end));
            }
            written.map_err(|error| self.failed(&error))?;
        } else {
            let turn = self.turn.lock().await;
            let _turn = (!mutated(Mutation::GrowthWithoutTurn)).then_some(turn);
            self.reserve(end).await?;
            self.clear(offset).await?;
            // A write that fails may have put some of it.
            self.leavings.set(self.leavings.get().max(end));
            self.data.write(offset, bufs).await.map_err(|error| self.failed(&error))?;
            self.size.set(self.size.get().max(end));
        }
        self.note_change();
        Ok(())
    }

    /// Gives the file another size. It is durable.
    pub(crate) async fn resize(&self, size: u64) -> Result<Attributes, FsError> {
        self.end(size, 0)?;
        let _turn = self.turn.lock().await;
        self.resize_in_turn(size).await
    }

    /// Makes the file at least this long.
    pub(crate) async fn extend(&self, size: u64) -> Result<(), FsError> {
        self.end(size, 0)?;
        let _turn = self.turn.lock().await;
        match self.size.get() < size {
            true => self.resize_in_turn(size).await.map(drop),
            false => Ok(()),
        }
    }

    /// Changes other attributes, after what was written until now.
    pub(crate) async fn change_others(&self, changes: AttributeChanges) -> Result<Attributes, FsError> {
        let _turn = self.turn.lock().await;
        self.tell_in_turn().await?;
        let found = self.change(changes).await?;
        Ok(self.seen(found))
    }

    async fn resize_in_turn(&self, size: u64) -> Result<Attributes, FsError> {
        let is_shorter = size < self.size.get();
        if !is_shorter {
            self.reserve(0).await?;
            self.clear(size).await?;
        }
        let changes =
            AttributeChanges { size: Some(size), modified: Some(SetTime::Now), ..Default::default() };
        if is_shorter && mutated(Mutation::GivenBackFirst) {
            self.write_zeroes(size, self.size.get()).await?;
        }
        let found = self.change(changes).await?;
        self.changed.set(None);
        self.size.set(size);
        self.told_size.set(size);
        self.seen(found);
        if is_shorter {
            self.give_back().await?;
        }
        Ok(found)
    }

    fn note_change(&self) {
        self.changed.set(Some(now()));
        self.writes.set(self.writes.get() + 1);
    }

    /// Makes a range within the file read as zeroes, and gives back the space of whole blocks.
    pub(crate) async fn zero(&self, offset: u64, length: u64) -> Result<(), FsError> {
        let end = self.end(offset, length)?.min(self.size.get());
        if offset >= end {
            return Ok(());
        }
        self.write_zeroes(offset, end).await?;
        self.note_change();
        Ok(())
    }

    /// Has the shard hear of size and time, durably.
    pub(crate) async fn tell(&self) -> Result<(), FsError> {
        if self.changed.get().is_none() {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        self.tell_in_turn().await
    }

    /// The same, by whoever has the turn.
    pub(crate) async fn tell_in_turn(&self) -> Result<(), FsError> {
        let Some(time) = self.changed.get() else { return Ok(()) };
        if mutated(Mutation::SizeNotTold) {
            return Ok(());
        }
        let writes = self.writes.get();
        let size = self.size.get();
        let changes = AttributeChanges {
            size: (size != self.told_size.get()).then_some(size),
            modified: Some(SetTime::At(time)),
            ..Default::default()
        };
        let found = self.change(changes).await?;
        self.told_size.set(size);
        self.seen(found);
        // Until now it counts as not told: whoever asks the shard meanwhile hears of the time before.
        if self.writes.get() == writes {
            self.changed.set(None);
        }
        Ok(())
    }

    /// Where data or a hole begins at or behind an offset; `None` if there is none before the end.
    pub(crate) async fn find(&self, offset: u64, wants_data: bool) -> Result<Option<u64>, FsError> {
        let size = self.size.get();
        let mut at = offset;
        while at < size {
            let length = (size - at).min(STEP_BYTES as u64);
            let extents = self.data.block_status(at, length).await.map_err(|error| self.failed(&error))?;
            for extent in extents {
                if extent.is_zero != wants_data {
                    return Ok(Some(at));
                }
                at += extent.length;
            }
        }
        Ok((!wants_data && offset < size).then_some(size))
    }

    async fn change(&self, changes: AttributeChanges) -> Result<Attributes, FsError> {
        self.names.change(self.inode, changes, b"").await
    }

    /// Has bytes up to an end reserved, and learns what may lie behind the size.
    async fn reserve(&self, end: u64) -> Result<(), FsError> {
        if self.reserved.get().is_some_and(|reserved| end <= reserved) {
            return Ok(());
        }
        let ahead = self.size.get().min(RESERVED_AHEAD);
        let wish = match end {
            0 => 0,
            end => (end + ahead).next_multiple_of(RESERVED_STEP).min(self.data.size_max()),
        };
        if mutated(Mutation::WriteUnreserved) && self.reserved.get().is_some() {
            return Ok(());
        }
        let before = self.move_end(Operation::Reserve(self.inode, wish)).await?;
        if self.reserved.get().is_none() {
            self.leavings.set(before);
        }
        self.reserved.set(Some(before.max(wish)));
        Ok(())
    }

    async fn move_end(&self, operation: Operation) -> Result<u64, FsError> {
        match self.names.ask(b"", self.inode, operation).await? {
            Answer::Reserved(before) => Ok(before),
            _ => Err(FsError::OtherAnswer { shard: self.inode.shard() }),
        }
    }

    /// Puts zeroes where something may lie between the size and an offset up to which the file grows.
    async fn clear(&self, until: u64) -> Result<(), FsError> {
        let end = until.min(self.leavings.get());
        if self.size.get() < end && !mutated(Mutation::LeavingsSeen) {
            self.write_zeroes(self.size.get(), end).await?;
        }
        Ok(())
    }

    /// Gives back what lies behind the size.
    async fn give_back(&self) -> Result<(), FsError> {
        self.reserve(0).await?;
        let reserved = self.reserved.get().unwrap_or(0);
        let whole = self.size.get().next_multiple_of(BLOCK);
        // Until it is done: whatever fails, what lies there is not seen again.
        self.leavings.set(self.leavings.get().max(reserved));
        let until = reserved.min(whole.saturating_add(GIVEN_BACK));
        for at in (whole..until).step_by(STEP_BYTES) {
            let length = (until - at).min(STEP_BYTES as u64);
            self.data.discard(at, length).await.map_err(|error| self.failed(&error))?;
        }
        if until < reserved {
            return Ok(());
        }
        if whole < reserved {
            self.move_end(Operation::Unreserve(self.inode, whole)).await?;
            self.reserved.set(Some(whole));
        }
        self.leavings.set(whole);
        Ok(())
    }

    async fn write_zeroes(&self, from: u64, to: u64) -> Result<(), FsError> {
        for at in (from..to).step_by(STEP_BYTES) {
            let length = (to - at).min(STEP_BYTES as u64);
            self.data.write_zeroes(at, length).await.map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }

    /// The end of a range, if a file can have it.
    fn end(&self, offset: u64, length: u64) -> Result<u64, FsError> {
        let end = offset.checked_add(length).filter(|end| *end <= self.data.size_max());
        end.ok_or(FsError::Refused { path: String::new(), error: FileError::TooLarge })
    }

    fn failed(&self, error: &ClientError) -> FsError {
        match error {
            ClientError::NoSpace { .. } => {
                FsError::Refused { path: String::new(), error: FileError::NoSpace }
            }
            error => {
                FsError::Data { path: format!("inode {}", self.inode), error: with_causes(error).into() }
            }
        }
    }
}

fn now() -> FileTime {
    FileTime::from_us(wall_clock_us())
}
