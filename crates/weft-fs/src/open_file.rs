//! A file that is open on this mount: what the mount may do with it, its size and times, and where its bytes
//! may lie.
//!
//! The mount asks the shard for a mode, and gives it back when another mount wants the file: as soon as
//! nothing is under way that needs the mode, and the shard knows size and times (F4). As long as the mount
//! may read, no other mount changes attributes.
//!
//! It owns the bytes behind the end of a file (F8). Bytes are written before the shard hears of the size,
//! and a file is made shorter before its bytes are given back. So a failure in between leaves bytes behind
//! the end. They are never read: before a file grows over them, zeroes are written there.
//!
//! What programs write is kept for a while (`write_back.rs`): the size here counts it, and the shard hears of
//! a size after the data are durable. What several mounts write at the same time is not kept (`shared.rs`).
//!
//! Run every call that changes the file to its end, even if its caller does not wait any more. It keeps
//! its turn until the shard has answered, so that no late change comes after a newer one.

use crate::caller::Shards;
use crate::dirty::Dirty;
use crate::doubts::{Asked, Doubts};
use crate::error::FsError;
use crate::hearing::Hearing;
use crate::kept_names::KeptBy;
use crate::lockers::Lockers;
use crate::namespace::Namespace;
use crate::shared::{Contest, Need};
use crate::untold::Untold;
use crate::write_back::{Lost, WriteBack};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use weft_client::{ClientError, File};
use weft_rt::sync::{Either, Mutex, Notify, race};
use weft_rt::{Buf, wall_clock_us};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{Attributes, BLOCK_SIZE, FileTime, InodeNumber, with_causes};
use weft_wire::files::{Answer, AttributeChanges, FileError, HoldMode, NameIn, Operation, SetTime};

/// Bytes are reserved by multiples of this, and as many again as the file has, up to so many.
pub(crate) const RESERVED_STEP: u64 = 256 << 10;
const RESERVED_AHEAD: u64 = 256 << 20;

/// Bytes that are zeroed or given back by one call, whatever they hold. In what lies further out data are
/// looked for first: most of it may be holes, more than all drives can hold.
const NEAR_BYTES: u64 = 1 << 30;

/// Bytes of which is asked at once what they hold, at first and at most.
const LOOK_FIRST: u64 = 4 << 20;
const LOOK_MOST: u64 = 1 << 30;

pub(crate) const BLOCK: u64 = BLOCK_SIZE as u64;

/// Who uses a file, and how often.
pub(crate) struct OpenFile<S> {
    pub(crate) names: Namespace<S>,
    pub(crate) inode: InodeNumber,
    data: File,
    /// Handles, and operations that need it open for their time.
    pub(crate) users: Cell<u64>,
    /// Handles by which a kernel keeps pages.
    pub(crate) keep_pages: Cell<u64>,
    /// Who has taken locks of it.
    pub(crate) lockers: Lockers,
    /// Held by whoever takes or gives back a lock, until the shard has answered: what is asked later is
    /// decided later.
    pub(crate) lock_turn: Mutex<()>,
    /// Held by whoever writes back, waits while it changes the size, or changes what the shard knows.
    pub(crate) turn: Mutex<()>,
    /// Its end is being moved, by whoever has the turn: nothing is taken behind it.
    moves_end: Cell<bool>,
    /// What is not written back.
    pub(crate) dirty: Dirty,
    /// Some of it is on its way.
    pub(crate) is_flying: Cell<bool>,
    /// It is being written back although nobody waits for that.
    pub(crate) is_early: Cell<bool>,
    /// The shard is being told from time to time.
    pub(crate) is_telling: Cell<bool>,
    /// What could not be written back.
    pub(crate) lost: Lost,
    pub(crate) write_back: Rc<WriteBack>,
    /// The name under which this mount has made it.
    pub(crate) made_as: RefCell<Option<NameIn>>,
    hearing: Rc<Hearing>,
    /// What the mount may do with it. None if it is not open.
    pub(crate) mode: Cell<Option<HoldMode>>,
    /// Whether it is better shared with others.
    pub(crate) contest: Contest,
    /// The shard does not know that: what the mount holds keeps the file as it is (F4).
    unsaid: Cell<Option<KeptBy>>,
    /// Held by whoever changes the mode, until the shard has answered. Taken before `turn`.
    pub(crate) mode_turn: Mutex<()>,
    /// The mode is given up: nothing begins under it.
    is_given_up: Cell<bool>,
    /// What is under way under the mode.
    under_way: Cell<u64>,
    /// The mode has changed, or nothing is under way any more.
    progress: Notify,
    pub(crate) size: Cell<u64>,
    /// The newest attributes that the shard has told.
    pub(crate) known: Cell<Attributes>,
    /// When they were asked for. As long as the mount may read, and has no doubts since then, they are all
    /// that there is.
    asked: Cell<Asked>,
    doubts: Rc<Doubts>,
    /// The size that the shard knows.
    pub(crate) told_size: Cell<u64>,
    /// What the shard has not heard, beside the size.
    pub(crate) untold: Untold,
    /// Up to where bytes may be written without asking. None before it was asked.
    pub(crate) reserved: Cell<Option<u64>>,
    /// Up to where this session has asked to write: less than what is reserved where another one had asked
    /// for more before. A quota counts it (F16).
    room: Cell<u64>,
    /// Nothing is asked for ahead any more: a quota had no room for it.
    is_tight: Cell<bool>,
    /// Bytes behind the size and below this may be anything.
    pub(crate) leavings: Cell<u64>,
}

/// An operation that is under way. As long as it is there, the mount keeps the mode that it needs.
pub(crate) struct UnderWay<'f, S>(&'f OpenFile<S>);

impl<S> Drop for UnderWay<'_, S> {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        self.0.progress.notify_all();
    }
}

/// The end of a file is being moved, as long as this is there.
struct MovesEnd<'f>(&'f Cell<bool>);

impl MovesEnd<'_> {
    fn begin(moves_end: &Cell<bool>) -> MovesEnd<'_> {
        moves_end.set(true);
        MovesEnd(moves_end)
    }
}

impl Drop for MovesEnd<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Nothing begins under the mode of a file, as long as this is there.
pub(crate) struct GivenUp<'f, S>(&'f OpenFile<S>);

impl<S> Drop for GivenUp<'_, S> {
    fn drop(&mut self) {
        self.0.is_given_up.set(false);
        self.0.progress.notify_all();
    }
}

/// What is known of a file that is opened.
pub(crate) struct Found {
    pub attributes: Attributes,
    /// When these were asked for.
    pub asked: Asked,
    pub data: File,
    /// What the mount may do with it. None if it is not open.
    pub mode: Option<HoldMode>,
    /// The shard does not know that, since this keeps the file as it is.
    pub unsaid: Option<KeptBy>,
    /// Up to where bytes may be written, if it was made by this mount just now: then nothing lies in it.
    pub reserved: Option<u64>,
    /// The name under which this mount has made it.
    pub made_as: Option<NameIn>,
}

impl Found {
    /// A file that is not open.
    pub(crate) fn new(attributes: Attributes, data: File, asked: Asked) -> Found {
        Found { attributes, asked, data, mode: None, unsaid: None, reserved: None, made_as: None }
    }
}

/// What all files of a mount have.
pub(crate) struct OfMount<S> {
    pub names: Namespace<S>,
    pub hearing: Rc<Hearing>,
    pub write_back: Rc<WriteBack>,
    pub doubts: Rc<Doubts>,
}

impl<S: Shards> OpenFile<S> {
    /// A file that nobody uses yet.
    pub(crate) fn new(of_mount: OfMount<S>, found: Found) -> Rc<OpenFile<S>> {
        let OfMount { names, hearing, write_back, doubts } = of_mount;
        let Found { attributes, asked, data, mode, unsaid, reserved, made_as } = found;
        Rc::new(OpenFile {
            names,
            inode: attributes.inode,
            data,
            users: Cell::new(0),
            keep_pages: Cell::new(0),
            lockers: Lockers::default(),
            lock_turn: Mutex::new(()),
            turn: Mutex::new(()),
            moves_end: Cell::new(false),
            dirty: Dirty::default(),
            is_flying: Cell::new(false),
            is_early: Cell::new(false),
            is_telling: Cell::new(false),
            lost: Lost::default(),
            write_back,
            made_as: RefCell::new(made_as),
            hearing,
            mode: Cell::new(mode),
            contest: Contest::default(),
            unsaid: Cell::new(unsaid),
            mode_turn: Mutex::new(()),
            is_given_up: Cell::new(false),
            under_way: Cell::new(0),
            progress: Notify::default(),
            size: Cell::new(attributes.size),
            known: Cell::new(attributes),
            asked: Cell::new(asked),
            doubts,
            told_size: Cell::new(attributes.size),
            untold: Untold::default(),
            reserved: Cell::new(reserved),
            room: Cell::new(reserved.unwrap_or(0)),
            is_tight: Cell::new(false),
            leavings: Cell::new(0),
        })
    }

    /// Something begins that needs a mode: waits until the mount has it.
    async fn begin(&self, need: Need) -> Result<UnderWay<'_, S>, FsError> {
        loop {
            self.hearing.until_sure().await?;
            let progress = self.progress.notified();
            match (self.is_given_up.get(), need.is_met_by(self.mode.get())) {
                (true, _) => progress.await,
                (false, false) => self.obtain(need).await?,
                (false, true) => {
                    self.under_way.set(self.under_way.get() + 1);
                    return Ok(UnderWay(self));
                }
            }
        }
    }

    /// Has the shard let the mount do this with the file, unless it may already.
    pub(crate) async fn obtain(&self, need: Need) -> Result<(), FsError> {
        let _mode_turn = self.mode_turn.lock().await;
        if need.is_met_by(self.mode.get()) {
            return Ok(());
        }
        if self.unsaid.get() == Some(KeptBy::AllNames) {
            // Said first, so that a recall of all names does not wait for what is under way here.
            self.hold(HoldMode::Read).await?;
        }
        if matches!(self.mode.get(), Some(HoldMode::Read | HoldMode::Shared)) {
            // Two mounts that both read and both wait to write would wait for each other. Nor may this one
            // wait as long as the shard does not know that the file is open: the other mount may wait for
            // the directory.
            self.give_up(HoldMode::Open).await?;
        }
        match need {
            Need::Alone => {
                self.contest.note_alone();
                self.hold(HoldMode::Write).await
            }
            need => self.obtain_beside(need).await,
        }
    }

    /// Has the shard know that the file is open, in this mode if it does not and nothing is in the way: it
    /// may just be closed.
    pub(crate) async fn open_again(&self, mode: HoldMode) -> Result<(), FsError> {
        let _mode_turn = self.mode_turn.lock().await;
        match self.mode.get() {
            None if !self.hold_if_free(mode).await? => self.hold(HoldMode::Open).await,
            _ => Ok(()),
        }
    }

    /// This mount has made it, so the shard knows it to be open to write. It was found, and opened to read,
    /// before the answer was here.
    pub(crate) fn note_made(&self) {
        if self.unsaid.get().is_some() {
            // Another mount that wants to read waits until the shard hears of less.
            self.mode.set(Some(HoldMode::Write));
            self.note_said();
        }
    }

    fn note_said(&self) {
        self.unsaid.set(None);
        self.progress.notify_all();
    }

    /// What keeps it as it is, if it is open and the shard does not know it.
    pub(crate) fn unsaid(&self) -> Option<KeptBy> {
        self.unsaid.get()
    }

    /// Has the shard know that the file is open, if it is and the shard does not. Never waits for another
    /// mount where a directory keeps the file as it is: that one may wait for the directory.
    pub(crate) async fn say(&self) -> Result<(), FsError> {
        // Who has the turn may say it, and wait for another mount then.
        let Either::Left(_mode_turn) = race(self.mode_turn.lock(), self.until_said()).await else {
            return Ok(());
        };
        match (self.unsaid.get(), self.mode.get()) {
            (Some(KeptBy::AllNames), Some(mode)) => self.hold(mode).await,
            (Some(KeptBy::Directory(_)), Some(_)) => self.give_up(HoldMode::Open).await,
            (None, _) | (_, None) => Ok(()),
        }
    }

    async fn until_said(&self) {
        loop {
            let progress = self.progress.notified();
            if self.unsaid.get().is_none() {
                return;
            }
            progress.await;
        }
    }

    /// Has the shard let the mount do this with the file, as soon as nothing is in the way. The caller holds
    /// `mode_turn`.
    pub(crate) async fn hold(&self, mode: HoldMode) -> Result<(), FsError> {
        let asked = self.doubts.asked();
        let found = self.names.attributes_by(b"", Operation::Hold(self.inode, mode)).await?;
        self.note_held(mode, found, asked);
        Ok(())
    }

    /// As [`OpenFile::hold`], but does not wait. Returns whether the mount has the mode now.
    pub(crate) async fn hold_if_free(&self, mode: HoldMode) -> Result<bool, FsError> {
        let asked = self.doubts.asked();
        let found = self.names.hold_if_free(self.inode, mode).await?;
        found.inspect(|found| self.note_held(mode, *found, asked));
        Ok(found.is_some())
    }

    fn note_held(&self, mode: HoldMode, found: Attributes, asked: Asked) {
        self.mode.set(Some(mode));
        self.note_said();
        if found.revision >= self.known.get().revision {
            self.known.set(found);
            self.asked.set(asked.max(self.asked.get()));
        }
        let size = self.known.get().size;
        self.size.set(size);
        self.told_size.set(size);
        self.untold.clear();
        self.reserved.set(None);
        self.room.set(0);
        self.leavings.set(0);
        self.contest.begin();
    }

    /// Whether something may begin that needs this, without a wait.
    pub(crate) fn is_ready(&self, need: Need) -> bool {
        need.is_met_by(self.mode.get()) && !self.is_given_up.get() && self.hearing.is_sure_for(Duration::ZERO)
    }

    /// Whether no other mount may write the file now.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self.mode.get(), Some(HoldMode::Read | HoldMode::Write))
    }

    /// How often the shard has changed the inode, as far as is known.
    pub(crate) fn revision(&self) -> u64 {
        self.known.get().revision
    }

    /// Another mount wants the file: keeps no more than this mode.
    pub(crate) async fn give(&self, keeps: HoldMode) -> Result<(), FsError> {
        // What was asked for meanwhile may be what the other one wants: it is answered first.
        let _mode_turn = self.mode_turn.lock().await;
        match self.mode.get() {
            Some(mode) if !keeps.covers(mode) => self.give_up(self.may_keep(mode, keeps)).await,
            _ => Ok(()),
        }
    }

    /// Gives up all that exceeds this mode. The caller holds `mode_turn`.
    pub(crate) async fn give_up(&self, mut keeps: HoldMode) -> Result<(), FsError> {
        let _given_up = self.wait_until_idle().await;
        let _turn = self.turn.lock().await;
        match (mutated(Mutation::GivenBackUntold), mutated(Mutation::GivenBackUnwritten)) {
            (true, _) => {}
            (_, true) => self.tell_what_is_written(self.to_tell()).await?,
            _ => self.tell_in_turn().await?,
        }
        if keeps == HoldMode::Shared && !self.clear_behind().await {
            keeps = HoldMode::Open;
        }
        self.names.ask(b"", self.inode, Operation::Hold(self.inode, keeps)).await?;
        self.mode.set(Some(keeps));
        self.contest.begin();
        self.note_said();
        Ok(())
    }

    /// Lets nothing begin under the mode, and waits until nothing is under way.
    pub(crate) async fn wait_until_idle(&self) -> GivenUp<'_, S> {
        self.is_given_up.set(true);
        let given_up = GivenUp(self);
        loop {
            let progress = self.progress.notified();
            if self.under_way.get() == 0 || mutated(Mutation::GivenBackUnderWay) {
                return given_up;
            }
            progress.await;
        }
    }

    /// Has the shard know size and times, and that the file is open no more, if nobody uses it.
    pub(crate) async fn close(&self) -> Result<(), FsError> {
        let _mode_turn = self.mode_turn.lock().await;
        if self.users.get() > 0 || self.mode.get().is_none() {
            return Ok(());
        }
        self.release().await
    }

    /// The same, whoever uses it: the mount ends.
    pub(crate) async fn leave(&self) -> Result<(), FsError> {
        let _mode_turn = self.mode_turn.lock().await;
        match self.mode.get() {
            Some(_) => self.release().await,
            None => Ok(()),
        }
    }

    async fn release(&self) -> Result<(), FsError> {
        let _given_up = self.wait_until_idle().await;
        let _turn = self.turn.lock().await;
        // What is lost is told by the next sync of the whole mount: nobody has the file open any more.
        let _ = self.write_back_in_turn().await;
        if self.is_shared() {
            self.tell_beside().await?;
        }
        let changes = self.changes();
        if self.unsaid.get().is_none() || changes != AttributeChanges::default() {
            self.names.ask(b"", self.inode, Operation::Release(self.inode, changes)).await?;
        }
        self.untold.clear();
        self.mode.set(None);
        self.note_said();
        Ok(())
    }

    /// The newest attributes, with the changes of which the shard has not heard. `found` may be older than
    /// what the shard has told this mount in another answer.
    pub(crate) fn seen(&self, found: Attributes) -> Attributes {
        let known = self.known.get();
        let mut seen = if found.revision > known.revision { found } else { known };
        self.known.set(seen);
        if self.is_shared() {
            return self.seen_beside(seen);
        }
        if !self.untold.has_time() && self.size.get() == self.told_size.get() {
            // Another client may write to it: where this mount only reads, or before it was opened.
            self.size.set(seen.size);
            self.told_size.set(seen.size);
        }
        if self.untold.has_time() {
            seen.size = self.size.get();
        }
        self.untold.put_on(&mut seen);
        seen
    }

    /// The same, of attributes that were asked for at this time: from now on the mount knows them, if they
    /// are the newest.
    pub(crate) fn seen_since(&self, found: Attributes, asked: Asked) -> Attributes {
        if found.revision >= self.known.get().revision {
            self.asked.set(asked.max(self.asked.get()));
        }
        self.seen(found)
    }

    fn is_known(&self) -> bool {
        self.doubts.are_none_since(self.asked.get())
    }

    /// The attributes, if the mount knows them without asking.
    pub(crate) fn attributes(&self) -> Option<Attributes> {
        let is_known = self.is_known() && self.is_ready(Need::Look) && !self.is_shared();
        is_known.then(|| self.seen(self.known.get()))
    }

    /// The permissions, if the mount knows them without asking: no other mount changes them while this one
    /// may read.
    pub(crate) fn permissions(&self) -> Option<u16> {
        let is_known = self.is_known() && self.is_ready(Need::Look);
        is_known.then(|| self.seen(self.known.get()).mode)
    }

    /// Reads; fewer bytes at the end of the file only.
    pub(crate) async fn read(&self, offset: u64, length: u64) -> Result<Vec<Buf>, FsError> {
        let _under_way = self.begin(Need::Look).await?;
        if self.is_shared() {
            self.before_read_beside(offset.saturating_add(length)).await?;
        }
        let before = self.size.get();
        if offset >= before {
            return Ok(Vec::new());
        }
        self.settle_part(offset, offset.saturating_add(length)).await?;
        // What was taken since is not written.
        let size = before.min(self.size.get());
        let length = length.min(size.saturating_sub(offset));
        self.data.read(offset, length).await.map_err(|error| self.failed(&error))
    }

    /// Takes all of it, and writes it back later ([`OpenFile::write_back`]). Size and time are durable with
    /// the next [`OpenFile::tell`].
    pub(crate) async fn write(&self, offset: u64, bufs: Vec<Buf>) -> Result<(), FsError> {
        if self.others_have_all_room() {
            return self.write_through(offset, bufs).await;
        }
        let end = self.end(offset, length_of(&bufs))?;
        let under_way = self.begin(Need::of_write(offset, end)).await?;
        if self.is_shared() {
            return self.write_shared(under_way, (offset, end), bufs).await;
        }
        self.tell_owner().await?;
        self.make_room().await?;
        let turn = match self.has_place(offset, end) {
            true => None,
            false => {
                let turn = self.turn.lock().await;
                let turn = (!mutated(Mutation::GrowthWithoutTurn)).then_some(turn);
                self.reserve(end).await?;
                self.clear(offset).await?;
                turn
            }
        };
        self.take(offset, end, &bufs);
        drop((turn, under_way));
        Ok(())
    }

    /// Takes all of it at the end, wherever that is: as [`OpenFile::write`].
    pub(crate) async fn append(&self, bufs: Vec<Buf>) -> Result<(), FsError> {
        if self.others_have_all_room() {
            return self.append_through(bufs).await;
        }
        let length = length_of(&bufs);
        let _under_way = self.begin(Need::Alone).await?;
        self.tell_owner().await?;
        self.make_room().await?;
        loop {
            // The end moves while it is waited for.
            let offset = self.size.get();
            let end = self.end(offset, length)?;
            if self.has_place(offset, end) {
                self.take(offset, end, &bufs);
                return Ok(());
            }
            let _turn = self.turn.lock().await;
            self.reserve(self.end(self.size.get(), length)?).await?;
        }
    }

    /// Takes bytes at once, if nothing has to be waited for. Whether that is so.
    pub(crate) fn write_now(&self, offset: Option<u64>, bufs: &[Buf]) -> bool {
        let offset = offset.unwrap_or_else(|| self.size.get());
        let Ok(end) = self.end(offset, length_of(bufs)) else { return false };
        let is_ready = self.is_ready(Need::Alone) && !self.untold.has_owner();
        let may_be = is_ready && self.write_back.has_room(self.dirty.weight()) && self.has_place(offset, end);
        if may_be {
            self.take(offset, end, bufs);
        }
        may_be
    }

    /// Whether nothing more may be kept, and none of what is belongs to this file.
    fn others_have_all_room(&self) -> bool {
        self.dirty.is_empty() && !self.write_back.has_room(0)
    }

    /// Writes back what is kept of this file if no more may be.
    async fn make_room(&self) -> Result<(), FsError> {
        match self.write_back.has_room(self.dirty.weight()) {
            true => Ok(()),
            false => self.write_back().await,
        }
    }

    /// Whether bytes may be taken at once: their place is reserved, and nothing shows before them.
    fn has_place(&self, offset: u64, end: u64) -> bool {
        let is_reserved =
            self.may_write_to(end) || (self.reserved.get().is_some() && mutated(Mutation::WriteUnreserved));
        let (size, leavings) = (self.size.get(), self.leavings.get());
        let is_free = end <= size || !self.moves_end.get();
        is_reserved && is_free && (offset <= size || leavings <= size || mutated(Mutation::LeavingsSeen))
    }

    /// Takes bytes whose place is reserved.
    fn take(&self, offset: u64, end: u64, bufs: &[Buf]) {
        if end > self.size.get() {
            self.leavings.set(self.leavings.get().max(end));
            self.size.set(end);
        }
        self.keep(offset, bufs);
        self.untold.note_write(now());
    }

    /// Some of what was kept is lost, from an offset on. What the shard does not count ends before it.
    pub(crate) fn end_before_lost(&self, from: u64) {
        let end = from.max(self.told_size.get());
        if self.size.get() > end {
            self.size.set(end);
            self.forget_behind(end);
        }
    }

    /// Puts bytes where they belong.
    pub(crate) async fn put(&self, offset: u64, bufs: Vec<Buf>) -> Result<(), FsError> {
        self.data.write(offset, bufs).await.map_err(|error| self.failed(&error))
    }

    /// Writes all of it. The data is durable then; that the file has grown is so with the next
    /// [`OpenFile::tell`].
    pub(crate) async fn write_through(&self, offset: u64, bufs: Vec<Buf>) -> Result<(), FsError> {
        let end = self.end(offset, length_of(&bufs))?;
        let under_way = self.begin(Need::of_write(offset, end)).await?;
        if self.is_shared() {
            return self.write_shared(under_way, (offset, end), bufs).await;
        }
        self.tell_owner().await?;
        self.settle_part(offset, end).await?;
        if end <= self.size.get() && self.may_write_to(end) {
            let written = self.data.write(offset, bufs).await;
            if end > self.size.get() || !self.may_write_to(end) {
                // It was made shorter meanwhile: what was written lies behind the end.
                let _turn = self.turn.lock().await;
                self.reserve(end).await?;
                self.leavings.set(self.leavings.get().max(end));
            }
            written.map_err(|error| self.failed(&error))?;
        } else {
            let turn = self.turn.lock().await;
            let _turn = (!mutated(Mutation::GrowthWithoutTurn)).then_some(turn);
            self.grow(offset, end, bufs).await?;
        }
        self.untold.note_write(now());
        Ok(())
    }

    /// Writes all of it at the end, wherever that is: as [`OpenFile::write_through`].
    pub(crate) async fn append_through(&self, bufs: Vec<Buf>) -> Result<(), FsError> {
        let length = length_of(&bufs);
        let _under_way = self.begin(Need::Alone).await?;
        self.tell_owner().await?;
        let _turn = self.turn.lock().await;
        let offset = self.size.get();
        self.grow(offset, self.end(offset, length)?, bufs).await?;
        self.untold.note_write(now());
        Ok(())
    }

    /// Writes data that end behind what may be written without the turn.
    async fn grow(&self, offset: u64, end: u64, bufs: Vec<Buf>) -> Result<(), FsError> {
        let _moves_end = MovesEnd::begin(&self.moves_end);
        self.reserve(end).await?;
        self.clear(offset).await?;
        // A write that fails may have put some of it.
        self.leavings.set(self.leavings.get().max(end));
        self.data.write(offset, bufs).await.map_err(|error| self.failed(&error))?;
        self.size.set(self.size.get().max(end));
        Ok(())
    }

    /// Gives the file another size. It is durable.
    pub(crate) async fn resize(&self, size: u64) -> Result<Attributes, FsError> {
        self.end(size, 0)?;
        let _under_way = self.begin(Need::Alone).await?;
        let _turn = self.turn.lock().await;
        self.resize_in_turn(size).await
    }

    /// Makes the file at least this long.
    pub(crate) async fn extend(&self, size: u64) -> Result<(), FsError> {
        self.end(size, 0)?;
        let _under_way = self.begin(Need::Alone).await?;
        let _turn = self.turn.lock().await;
        match self.size.get() < size {
            true => self.resize_in_turn(size).await.map(drop),
            false => Ok(()),
        }
    }

    /// Changes other attributes, after what was written until now. They are durable with the size, and before
    /// what is written later.
    pub(crate) async fn change_others(&self, changes: AttributeChanges) -> Result<Attributes, FsError> {
        let _under_way = self.begin(Need::Alone).await?;
        if !self.is_known() {
            let asked = self.doubts.asked();
            let found = self.names.attributes_by(b"", Operation::Attributes(self.inode)).await?;
            self.seen_since(found, asked);
        }
        self.untold.note(changes, now());
        Ok(self.seen(self.known.get()))
    }

    /// Whether the shard has not heard of who may use the file.
    pub(crate) fn has_untold_owner(&self) -> bool {
        self.untold.has_owner()
    }

    /// Has the shard know who may use the file, before anything is written to it.
    async fn tell_owner(&self) -> Result<(), FsError> {
        match self.untold.has_owner() {
            true => self.tell().await,
            false => Ok(()),
        }
    }

    async fn resize_in_turn(&self, size: u64) -> Result<Attributes, FsError> {
        let _moves_end = MovesEnd::begin(&self.moves_end);
        let written = self.write_back_in_turn().await;
        let count = self.untold.count();
        let is_shorter = size < self.size.get();
        if !is_shorter {
            // If the file becomes shorter, the lost bytes may be among those that are cut off.
            written?;
        }
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
        if self.untold.count() == count {
            self.untold.forget_time();
        }
        self.told_size.set(size);
        self.size.set(size);
        self.forget_behind(size);
        self.seen(found);
        if is_shorter {
            self.give_space_back().await?;
        }
        Ok(found)
    }

    /// Makes a range within the file read as zeroes, and gives back the space of whole blocks.
    pub(crate) async fn zero(&self, offset: u64, length: u64) -> Result<(), FsError> {
        let end = self.end(offset, length)?;
        let _under_way = self.begin(Need::Alone).await?;
        // A part of a block is written, so the space behind it must not be given back at that time.
        let turn = self.turn.lock().await;
        let _turn = (!mutated(Mutation::GivenBackUnderWay)).then_some(turn);
        if offset >= end.min(self.size.get()) {
            return Ok(());
        }
        if self.has_part(offset, end) && !mutated(Mutation::KeptNotRead) {
            self.write_back_in_turn().await?;
        }
        self.reserve(0).await?;
        // Nothing lies behind what is reserved, and nothing may.
        let end = match mutated(Mutation::ZeroesUnreserved) {
            true => end.min(self.size.get()),
            false => end.min(self.size.get()).min(self.reserved.get().unwrap_or(0)),
        };
        if offset < end {
            self.write_zeroes(offset, end).await?;
        }
        self.untold.note_write(now());
        Ok(())
    }

    /// Whether something is kept, or the shard has not heard all.
    pub(crate) fn is_unsettled(&self) -> bool {
        !self.untold.is_none() || !self.dirty.is_empty() || self.is_flying.get()
    }

    /// Writes back, and has the shard hear of size and time, durably.
    pub(crate) async fn tell(&self) -> Result<(), FsError> {
        if !self.is_unsettled() {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        self.tell_in_turn().await
    }

    /// The same, by whoever has the turn.
    pub(crate) async fn tell_in_turn(&self) -> Result<(), FsError> {
        if self.is_shared() {
            return self.tell_beside().await;
        }
        // What is taken from here on is told another time: its data are not written now.
        let before = self.to_tell();
        if !mutated(Mutation::SizeBeforeData) {
            self.write_back_in_turn().await?;
        }
        self.tell_what_is_written(before).await
    }

    /// What the shard has not heard: how many changes, the size, and the changes.
    fn to_tell(&self) -> (u64, u64, AttributeChanges) {
        (self.untold.count(), self.size.get(), self.changes())
    }

    /// Has the shard hear of a size whose data are durable.
    async fn tell_what_is_written(
        &self,
        (count, size, changes): (u64, u64, AttributeChanges),
    ) -> Result<(), FsError> {
        if changes == AttributeChanges::default() || mutated(Mutation::SizeNotTold) {
            return Ok(());
        }
        let found = self.change(changes).await?;
        self.told_size.set(size);
        self.seen(found);
        // Until now it counts as not told: whoever asks the shard meanwhile hears of what was before.
        if self.untold.count() == count {
            self.untold.clear();
        }
        Ok(())
    }

    /// What the shard has not heard of size and other attributes.
    fn changes(&self) -> AttributeChanges {
        let size = self.size.get();
        let has_grown = self.untold.has_time() && size != self.told_size.get();
        AttributeChanges { size: has_grown.then_some(size), ..self.untold.changes() }
    }

    /// Where data or a hole begins at or behind an offset; `None` if there is none before the end.
    pub(crate) async fn find(&self, offset: u64, wants_data: bool) -> Result<Option<u64>, FsError> {
        let _under_way = self.begin(Need::Look).await?;
        if self.is_shared() {
            self.before_read_beside(u64::MAX).await?;
        }
        let before = self.size.get();
        self.settle().await?;
        let size = before.min(self.size.get());
        let (mut at, mut look) = (offset, LOOK_FIRST);
        while at < size {
            let length = (size - at).min(look);
            let extents = self.data.block_status(at, length).await.map_err(|error| self.failed(&error))?;
            for extent in extents {
                if extent.is_zero != wants_data {
                    return Ok(Some(at));
                }
                at += extent.length;
            }
            if wants_data {
                match self.data.next_data(at).await {
                    Ok(next) => at = next.unwrap_or(size),
                    // By a target of an earlier release: on step by step.
                    Err(ClientError::Refused { .. }) => {}
                    Err(error) => return Err(self.failed(&error)),
                }
            }
            look = (2 * look).min(LOOK_MOST);
        }
        Ok((!wants_data && offset < size).then_some(size))
    }

    async fn change(&self, changes: AttributeChanges) -> Result<Attributes, FsError> {
        self.names.change(self.inode, changes, b"").await
    }

    /// Whether bytes up to an end are reserved for this session.
    pub(crate) fn may_write_to(&self, end: u64) -> bool {
        self.reserved.get().is_some() && end <= self.room.get()
    }

    /// Has bytes up to an end reserved, and learns what may lie behind the size.
    pub(crate) async fn reserve(&self, end: u64) -> Result<(), FsError> {
        if self.may_write_to(end) {
            return Ok(());
        }
        // What the file has counts anyway.
        let (size, most) = (self.size.get(), self.data.size_max());
        let least = if end == 0 { 0 } else { end.max(size).next_multiple_of(BLOCK) };
        let wish = match end > size && !self.is_tight.get() {
            false => least,
            true => (least + size.min(RESERVED_AHEAD)).next_multiple_of(RESERVED_STEP).min(most),
        };
        if mutated(Mutation::WriteUnreserved) && self.reserved.get().is_some() {
            return Ok(());
        }
        let (before, wish) = match self.move_end(Operation::Reserve(self.inode, wish)).await {
            // Less than a step, or nothing ahead of what is written now, may be left of a quota.
            Err(error) if error.refusal() == Some(FileError::OverQuota) && least < wish => {
                self.is_tight.set(true);
                (self.move_end(Operation::Reserve(self.inode, least)).await?, least)
            }
            moved => (moved?, wish),
        };
        if self.reserved.get().is_none() {
            self.leavings.set(before);
        }
        self.reserved.set(Some(before.max(wish)));
        self.room.set(wish);
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
        let end = match mutated(Mutation::ZeroesUnreserved) {
            true => until.min(self.leavings.get()),
            false => until.min(self.leavings.get()).min(self.reserved.get().unwrap_or(0)),
        };
        if self.size.get() < end && !mutated(Mutation::LeavingsSeen) {
            mark(Path::LeavingsZeroed);
            self.write_zeroes(self.size.get(), end).await?;
        }
        Ok(())
    }

    /// Lets go of what was asked for ahead: a quota counts it, and others may need it (F16).
    pub(crate) async fn give_room_back(&self) -> Result<(), FsError> {
        let _turn = self.turn.lock().await;
        let whole = self.size.get().next_multiple_of(BLOCK);
        if self.room.get() > whole {
            self.is_tight.set(true);
            // From now on nothing is written behind this.
            self.room.set(whole);
            self.move_end(Operation::Reserve(self.inode, whole)).await?;
        }
        Ok(())
    }

    /// Gives back what lies behind the size.
    pub(crate) async fn give_space_back(&self) -> Result<(), FsError> {
        self.reserve(0).await?;
        let reserved = self.reserved.get().unwrap_or(0);
        let whole = self.size.get().next_multiple_of(BLOCK);
        // Until it is done: whatever fails, what lies there is not seen again.
        self.leavings.set(self.leavings.get().max(reserved));
        if whole < reserved {
            let near = reserved.min(whole.saturating_add(NEAR_BYTES));
            self.data.discard(whole, near - whole).await.map_err(|error| self.failed(&error))?;
            match self.data.discard_data(near..reserved).await {
                Ok(()) => {}
                // By a target of an earlier release: it stays reserved, until the file is purged.
                Err(ClientError::Refused { .. }) => return Ok(()),
                Err(error) => return Err(self.failed(&error)),
            }
            self.move_end(Operation::Unreserve(self.inode, whole)).await?;
            self.reserved.set(Some(whole));
            self.room.set(whole);
        }
        // Nothing lies behind what is reserved: a block that the end cuts may be there.
        self.leavings.set(if mutated(Mutation::ZeroesUnreserved) { whole } else { whole.min(reserved) });
        Ok(())
    }

    pub(crate) async fn write_zeroes(&self, from: u64, to: u64) -> Result<(), FsError> {
        // Data are given back by whole blocks, so the part of a block at the end is zeroed by itself.
        let near = from.saturating_add(NEAR_BYTES).next_multiple_of(BLOCK).min(to);
        let far = near.max(to - to % BLOCK);
        for (from, to) in [(from, near), (far, to)].into_iter().filter(|(from, to)| from < to) {
            self.data.write_zeroes(from, to - from).await.map_err(|error| self.failed(&error))?;
        }
        self.data.discard_data(near..far).await.map_err(|error| self.failed(&error))
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

fn length_of(bufs: &[Buf]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

pub(crate) fn now() -> FileTime {
    FileTime::from_us(wall_clock_us())
}
