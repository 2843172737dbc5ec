//! Resync, R12 to R15: a syncing replica compares every chunk with an in-sync one and fetches what differs.
//!
//! ```text
//! every in-sync member has the epoch durably -> versions ahead -> walk over all chunks -> all verified -> promoted
//! ```
//! While clients are there, the versions go ahead of the data: chunks are fetched hollow, versions and marks with most of
//! the data as damaged (R12). That is all that a write's verdict depends on, and a hundredth of the bytes, so writes soon
//! wait for nothing. One that comes to a chunk before that has it fetched at once, hollow too. The walk fills a hollow
//! chunk before it passes. Only of complete versions the data is left out: every in-sync member has it, whatever becomes
//! of the source. Of an open one, such as that of the write which waits, the data comes along.
//!
//! It pulls: the source only answers. It never serves a chunk that is not verified, never counts what this replica
//! held before the stint, and never decides that it is in-sync: the manager does.

use crate::member::Member;
use crate::peer::PeerError;
use crate::source::{ChunkKey, FIRST, after};
use crate::target::Target;
use crate::throttle::Work;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use weft_rpc::{Answer, Reply};
use weft_rt::sync::{Either, Notify, join_all, race};
use weft_rt::{Buf, random_below, sleep, spawn, yield_now};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_store::{CopyData, CopyEntry, Cursor, ExtentData, Marks, OpenEntry, StoreError};
use weft_types::limits::DIGESTS_MAX;
use weft_types::{BlockRange, ChunkIndex, DriveId, Epoch, Group, ObjectId, Version, with_causes};
use weft_wire::control::{self, ManagerRequest, ResyncStatus, ResyncWait};
use weft_wire::data::{Content, DigestsAnswer, PeerRequest, ReadAnswer, Scope, is_intact};
use weft_wire::{Kind, Status};

/// Chunks that the walk has in flight while no client is there: enough to keep a drive and a connection busy at
/// 512 KiB each. While clients are there, `throttle.rs` sets the pace.
const CHUNKS_IN_FLIGHT: usize = 4;

/// Blocks of a chunk that are filled at once while clients are there: whatever moves or checks them occupies a thread
/// for tens of microseconds, which their requests do not feel. A whole chunk takes half a millisecond.
const PART_BLOCKS: u32 = 16;

/// How long to wait before a source that could not serve is asked again.
const RETRY: Duration = Duration::from_millis(20);

/// The bringing up to date of one replica in one stint.
pub(crate) struct Resync {
    member: Rc<Member>,
    stint: Epoch,
    /// Every in-sync member has the stint's epoch durably, so no write goes around this replica (R13).
    may_copy: Cell<bool>,
    /// Chunks that are being verified: by the walk or for a write, never both.
    in_flight: RefCell<BTreeSet<ChunkKey>>,
    changed: Notify,
    /// Chunks that were fetched hollow and not filled yet.
    hollow: RefCell<BTreeSet<ChunkKey>>,
    /// From where on chunks may be fetched hollow; `None`: nowhere. Below, the walk has looked for the last time.
    hollow_from: Cell<Option<ChunkKey>>,
    /// From where on versions have not gone ahead of the data yet; `None`: nowhere.
    ahead_from: Cell<Option<ChunkKey>>,
    chunks_verified: Cell<u64>,
    chunks_total: Cell<u64>,
    blocks_copied: Cell<u64>,
    blocks_held: Cell<u64>,
    done: Cell<bool>,
    /// What held it up when it was last held up, and how many chunks were verified by then: when there are more, it
    /// goes on.
    held_up: RefCell<Option<(ResyncWait, u64)>>,
}

/// Why a step of a resync did not happen.
enum Setback {
    /// The stint is over: so is the resync.
    Over,
    /// No source could serve; try again.
    Source(String),
    /// The answer would not fit a frame: ask for less at once.
    TooMuch,
    /// This replica's own drive refused.
    Drive(StoreError),
}

impl Resync {
    fn new(member: Rc<Member>, stint: Epoch) -> Resync {
        Resync {
            member,
            stint,
            may_copy: Cell::new(false),
            in_flight: RefCell::default(),
            changed: Notify::default(),
            hollow: RefCell::default(),
            hollow_from: Cell::new(Some(FIRST)),
            ahead_from: Cell::new(Some(FIRST)),
            chunks_verified: Cell::new(0),
            chunks_total: Cell::new(0),
            blocks_copied: Cell::new(0),
            blocks_held: Cell::new(0),
            done: Cell::new(false),
            held_up: RefCell::new(None),
        }
    }

    fn hold_up(&self, wait: ResyncWait) {
        *self.held_up.borrow_mut() = Some((wait, self.chunks_verified.get()));
    }

    /// How far it has come.
    pub(crate) fn status(&self) -> ResyncStatus {
        let verified = self.chunks_verified.get();
        ResyncStatus {
            group: self.member.group,
            drive: self.member.drive.id,
            chunks_verified: verified,
            chunks_total: self.chunks_total.get().max(verified),
            blocks_copied: self.blocks_copied.get(),
            blocks_held: self.blocks_held.get(),
            done: self.done.get(),
            waits_for: self.waits_for(),
        }
    }

    /// What holds it up since the last chunk was verified.
    fn waits_for(&self) -> Option<ResyncWait> {
        let held_up = self.held_up.borrow();
        let (wait, verified) = held_up.as_ref().filter(|_| !self.done.get())?;
        (*verified == self.chunks_verified.get()).then(|| wait.clone())
    }

    /// Whether the stint still runs on a drive that works.
    fn is_current(&self) -> bool {
        let is_stint = |stint| stint == self.stint || mutated(Mutation::StaleStintCopied);
        self.member.stint().is_some_and(is_stint) && !self.member.drive.has_failed() && !self.member.is_gone()
    }

    fn is_verified(&self, key: ChunkKey) -> bool {
        self.member.drive.store.chunk_is_verified(self.member.group, key.0, key.1)
    }

    /// The turn to verify a chunk, once nobody else has it.
    async fn claim(self: &Rc<Self>, key: ChunkKey) -> Claimed {
        loop {
            let changed = self.changed.notified();
            if self.in_flight.borrow_mut().insert(key) {
                return Claimed { resync: self.clone(), key };
            }
            changed.await;
        }
    }
}

/// The turn to verify a chunk.
struct Claimed {
    resync: Rc<Resync>,
    key: ChunkKey,
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.resync.in_flight.borrow_mut().remove(&self.key);
        self.resync.changed.notify_all();
    }
}

impl Target {
    /// Starts the resync that the member's role asks for, and forgets one whose stint is over.
    pub(crate) fn resync_if_needed(&self, member: &Rc<Member>) {
        let key = (member.drive.id, member.group);
        let stint = member.stint().filter(|_| !member.drive.has_failed() && !self.is_stopped());
        let mut resyncs = self.resyncs.borrow_mut();
        let running = resyncs.get(&key).filter(|r| r.is_current()).map(|r| r.stint);
        if stint.is_some() && running == stint {
            return;
        }
        if let Some(over) = resyncs.remove(&key) {
            // Writes that wait for it have to look again.
            over.changed.notify_all();
        }
        if let Some(stint) = stint {
            let resync = Rc::new(Resync::new(member.clone(), stint));
            resyncs.insert(key, resync.clone());
            drop(resyncs);
            let target = self.shared();
            self.background(async move { target.resync(resync).await });
        }
    }

    /// Runs a resync to its end: all verified and promoted, or the stint over.
    async fn resync(self: Rc<Self>, resync: Rc<Resync>) {
        let (group, drive, stint) = (resync.member.group, resync.member.drive.id, resync.stint);
        tracing::info!(%group, %drive, %stint, "resync begins");
        let mut last_words = String::new();
        loop {
            match self.resync_once(&resync).await {
                Ok(()) => break,
                Err(Setback::Over) => {
                    mark(Path::StintOver);
                    tracing::info!(%group, %drive, %stint, "resync ends: the stint is over");
                    resync.changed.notify_all();
                    return;
                }
                Err(Setback::Source(text)) => {
                    resync.hold_up(ResyncWait::Source(text.clone()));
                    if text != last_words {
                        tracing::info!(%group, %drive, text, "resync waits for a source");
                        last_words = text;
                    }
                }
                Err(Setback::TooMuch) => {
                    tracing::warn!(%group, %drive, "one chunk has more marks than fit a frame")
                }
                Err(Setback::Drive(error)) => {
                    resync.member.drive.note(&error);
                    resync.hold_up(match &error {
                        StoreError::NoSpace { .. } | StoreError::Crowded { .. } => {
                            ResyncWait::Room(with_causes(&error))
                        }
                        other => ResyncWait::Drive(with_causes(other)),
                    });
                    tracing::warn!(%group, %drive, error = with_causes(&error), "resync is held up by its own drive");
                    sleep(RETRY * 10).await;
                }
            }
            sleep(RETRY).await;
        }
        resync.done.set(true);
        tracing::info!(%group, %drive, %stint, copied = resync.blocks_copied.get(), "all is verified");
        let request = ManagerRequest::Verified { group, drive, stint };
        while resync.is_current() {
            self.tell_manager(request.clone(), || resync.is_current()).await;
            race(sleep(self.durations().lease()), resync.member.changed.notified()).await;
        }
    }

    async fn resync_once(self: &Rc<Self>, resync: &Rc<Resync>) -> Result<(), Setback> {
        if !resync.may_copy.get() {
            self.teach_epoch(resync).await?;
            resync.may_copy.set(true);
            resync.changed.notify_all();
        }
        self.count_chunks(resync).await?;
        self.walk(resync).await
    }

    /// R13: every in-sync member has this replica's epoch durably before anything is copied. Members that become
    /// in-sync later were syncing, or in-sync, when the stint began, so they have it too.
    async fn teach_epoch(&self, resync: &Rc<Resync>) -> Result<(), Setback> {
        // A client may bring the entry before the map comes. What comes with the map are the sessions and generations by
        // which this replica refuses whoever was fenced before it became a member (R16).
        let entry = loop {
            let adopted = self.adopted.notified();
            let entry = self.current_entry(resync)?;
            let listed = self.map().and_then(|map| map.groups.get(&entry.id).map(|g| g.epoch));
            if listed.is_some_and(|epoch| epoch >= resync.stint) {
                break entry;
            }
            race(adopted, sleep(RETRY)).await;
        };
        if mutated(Mutation::CopyTooEarly) {
            return Ok(());
        }
        let head = control::encode(&*entry);
        let told = join_all(
            entry.read_set().map(|drive| self.call_drive(drive, Kind::AdoptEntry, |_| head.clone(), vec![])),
        )
        .await;
        if told.is_empty() {
            return Err(Setback::Source("no member is in-sync".into()));
        }
        for reply in told {
            accept(reply)?;
        }
        // The members that were asked must still be all there are.
        if self.current_entry(resync)?.epoch != entry.epoch {
            return Err(epoch_changed());
        }
        Ok(())
    }

    fn current_entry(&self, resync: &Resync) -> Result<Rc<Group>, Setback> {
        let entry = resync.member.entry().filter(|_| resync.is_current() && !self.is_stopped());
        entry.ok_or(Setback::Over)
    }

    /// Asks an in-sync member, at the epoch of this moment; an answer that comes after the epoch has changed is
    /// dropped, because its source may have been evicted meanwhile.
    async fn ask_source(&self, resync: &Resync, source: DriveId, ask: Ask) -> Result<Reply, Setback> {
        let entry = self.current_entry(resync)?;
        let request = PeerRequest {
            drive: source,
            group: entry.id,
            epoch: entry.epoch,
            object: ask.key.0,
            chunk: ask.key.1,
            blocks: ask.blocks,
            limit: ask.limit as u16,
            is_urgent: ask.is_urgent,
            scope: Scope::default(),
        };
        let reply =
            accept(self.call_drive(source, ask.kind, |protocol| request.encode(protocol), vec![]).await)?;
        self.check_epoch(resync, entry.epoch)?;
        Ok(reply)
    }

    /// Refuses what a source said at an epoch that is over: the source may have been evicted meanwhile.
    fn check_epoch(&self, resync: &Resync, asked_at: Epoch) -> Result<(), Setback> {
        let has_changed = self.current_entry(resync)?.epoch != asked_at;
        match has_changed && !mutated(Mutation::EvictedSourceCopied) {
            true => Err(epoch_changed()),
            false => Ok(()),
        }
    }

    /// An in-sync member to copy from; another one each time, so that one that is cut off is not asked for ever.
    fn pick_source(&self, resync: &Resync) -> Result<DriveId, Setback> {
        let entry = self.current_entry(resync)?;
        let members: Vec<DriveId> = entry.read_set().collect();
        if members.is_empty() {
            return Err(Setback::Source("no member is in-sync".into()));
        }
        Ok(members[random_below(members.len() as u64) as usize])
    }

    /// Counts the source's chunks, and those that were verified before a restart, for people who watch.
    async fn count_chunks(&self, resync: &Resync) -> Result<(), Setback> {
        if resync.chunks_total.get() > 0 {
            return Ok(());
        }
        let source = self.pick_source(resync)?;
        let cursor = resync.member.drive.store.verify_state(resync.member.group).map(|s| s.cursor);
        let (mut from, mut total, mut before) = (Some(FIRST), 0, 0);
        while let Some(at) = from {
            let (digests, _) = self.source_digests(resync, source, at, DIGESTS_MAX).await?;
            total += digests.len() as u64;
            let is_before = |(o, c, _): &&(ObjectId, ChunkIndex, u64)| Some(Cursor::At(*o, *c)) < cursor;
            before += digests.iter().filter(is_before).count() as u64;
            let is_last = digests.len() < DIGESTS_MAX;
            from =
                digests.last().filter(|_| !is_last).and_then(|(object, chunk, _)| after((*object, *chunk)));
            yield_now().await;
        }
        resync.chunks_total.set(total);
        resync.chunks_verified.set(before);
        Ok(())
    }

    async fn source_digests(
        &self,
        resync: &Resync,
        source: DriveId,
        from: ChunkKey,
        limit: usize,
    ) -> Result<(Vec<(ObjectId, ChunkIndex, u64)>, Marks), Setback> {
        let ask = Ask { kind: Kind::Digests, key: from, blocks: from.1.range(), limit, is_urgent: false };
        let reply = self.ask_source(resync, source, ask).await?;
        let answer = DigestsAnswer::decode(&reply.head).map_err(|e| Setback::Source(e.to_string()))?;
        let keys: Vec<ChunkKey> = answer.digests.iter().map(|(o, c, _)| (*o, *c)).collect();
        if !keys.is_sorted() || keys.first().is_some_and(|k| *k < from) || keys.len() > limit {
            return Err(Setback::Source("digests that are not in order".into()));
        }
        Ok((answer.digests, decode_marks(&reply.body)?))
    }

    /// Verifies all chunks in key order, from the cursor on.
    async fn walk(self: &Rc<Self>, resync: &Rc<Resync>) -> Result<(), Setback> {
        let (store, group) = (&resync.member.drive.store, resync.member.group);
        while let Cursor::At(object, chunk) = self.cursor(resync)? {
            self.go_ahead(resync).await?;
            let stretch = self.compare(resync, (object, chunk)).await?;
            let to = stretch.to;
            let cursor = to.map_or(Cursor::End, |(object, chunk)| Cursor::At(object, chunk));
            if mutated(Mutation::CursorBeforeChunks) {
                store.set_cursor(group, resync.stint, cursor).await.map_err(setback)?;
            }
            while self.verify_all(resync, &stretch, Pass::Walk).await? == Progress::ClientsCame {
                self.go_ahead(resync).await?;
            }
            resync.hollow_from.set(to);
            self.fill_below(resync, to).await?;
            store.set_cursor(group, resync.stint, cursor).await.map_err(setback)?;
        }
        Ok(())
    }

    /// Verifies all chunks without most of their data, while clients are there: their writes then wait for no fetch.
    /// The walk finds what lacks data, by its digests of this replica.
    async fn go_ahead(self: &Rc<Self>, resync: &Rc<Resync>) -> Result<(), Setback> {
        while let Some(from) = self.is_to_go_ahead(resync) {
            let to = match self.cursor(resync)? {
                Cursor::At(object, chunk) => {
                    let stretch = self.compare(resync, from.max((object, chunk))).await?;
                    self.verify_all(resync, &stretch, Pass::Ahead).await?;
                    stretch.to
                }
                Cursor::End => None,
            };
            resync.ahead_from.set(to);
        }
        Ok(())
    }

    /// Where versions are to go ahead of the data, if anywhere: only clients gain by it.
    fn is_to_go_ahead(&self, resync: &Resync) -> Option<ChunkKey> {
        resync.ahead_from.get().filter(|_| self.throttle.clients_are_there())
    }

    /// How far the walk has come in this stint.
    fn cursor(&self, resync: &Resync) -> Result<Cursor, Setback> {
        let state = resync.member.drive.store.verify_state(resync.member.group);
        state.filter(|s| s.stint == Some(resync.stint)).map(|s| s.cursor).ok_or(Setback::Over)
    }

    /// Compares the chunks from a place on, as many as one answer of a source tells.
    async fn compare(&self, resync: &Resync, from: ChunkKey) -> Result<Stretch, Setback> {
        let (store, group) = (&resync.member.drive.store, resync.member.group);
        let epoch = self.current_entry(resync)?.epoch;
        let source = self.pick_source(resync)?;
        let mut limit = DIGESTS_MAX;
        let (theirs, marks) = loop {
            match self.source_digests(resync, source, from, limit).await {
                Err(Setback::TooMuch) if limit > 1 => limit /= 2,
                other => break other?,
            }
        };
        let is_last = theirs.len() < limit;
        let to = theirs.last().filter(|_| !is_last).and_then(|(object, chunk, _)| after((*object, *chunk)));
        // R14. Watermarks are true whatever a block holds; entries count with the chunk that they belong to.
        let watermarks = Marks { open: vec![], watermarks: marks.watermarks };
        store.merge_marks(group, resync.stint, epoch, watermarks).await.map_err(setback)?;
        self.throttle.turn(Work::Compare, Duration::MAX).await;
        let ours = self.own_digests(resync, from, to).await?;
        let jobs = RefCell::new(jobs(merge(&theirs, &ours), marks.open));
        Ok(Stretch { source, epoch, jobs, to })
    }

    /// This replica's digests of a range. What is unverified changes only by being verified, so it does not matter
    /// that they are taken after the source's.
    async fn own_digests(
        &self,
        resync: &Resync,
        from: ChunkKey,
        to: Option<ChunkKey>,
    ) -> Result<Vec<(ObjectId, ChunkIndex, u64)>, Setback> {
        let (store, group) = (&resync.member.drive.store, resync.member.group);
        let _piece = self.throttle.begin(Work::Compare);
        let mut ours = Vec::new();
        let mut next = Some(from);
        while let Some(at) = next {
            let part = store.digests(group, Some(at), DIGESTS_MAX).await.map_err(setback)?;
            let is_last = part.len() < DIGESTS_MAX;
            next = part.last().filter(|_| !is_last).and_then(|(object, chunk, _)| after((*object, *chunk)));
            let in_range = part.len();
            ours.extend(part.into_iter().filter(|(o, c, _)| to.is_none_or(|to| (*o, *c) < to)));
            if in_range > 0 && next.is_some_and(|n| to.is_some_and(|to| n >= to)) {
                break;
            }
        }
        Ok(ours)
    }

    /// Verifies the chunks of a stretch that are left, several at once. The walk stops when clients have come, for
    /// whom versions have to go ahead.
    async fn verify_all(
        self: &Rc<Self>,
        resync: &Rc<Resync>,
        stretch: &Stretch,
        pass: Pass,
    ) -> Result<Progress, Setback> {
        let workers = (0..CHUNKS_IN_FLIGHT).map(|_| async move {
            loop {
                if pass == Pass::Walk && self.is_to_go_ahead(resync).is_some() {
                    return Ok(Progress::ClientsCame);
                }
                let job = stretch.jobs.borrow_mut().pop_front();
                let Some(job) = job else { return Ok(Progress::Done) };
                match pass {
                    Pass::Ahead if resync.is_verified(job.key) => (),
                    Pass::Ahead => {
                        self.verify_chunk(resync, stretch, job, Fetch::Ahead).await?;
                    }
                    Pass::Walk => self.pass_by(resync, stretch, job).await?,
                }
                yield_now().await;
            }
        });
        let ends = join_all(workers).await.into_iter().collect::<Result<Vec<_>, Setback>>()?;
        let is_left = ends.contains(&Progress::ClientsCame);
        Ok(if is_left { Progress::ClientsCame } else { Progress::Done })
    }

    /// Verifies a chunk and fills it: the walk is done with it.
    async fn pass_by(&self, resync: &Rc<Resync>, stretch: &Stretch, job: Job) -> Result<(), Setback> {
        let key = job.key;
        let (_turn, may_lack_data) = self.verify_chunk(resync, stretch, job, Fetch::ForWalk).await?;
        if may_lack_data {
            self.fill(resync, key).await?;
        }
        resync.chunks_verified.set(resync.chunks_verified.get() + 1);
        Ok(())
    }

    /// Verifies a chunk when its turn comes. Returns with the chunk still claimed, and whether data may be missing: it
    /// was verified before (ahead, or for a write, maybe by a process before this one, and maybe hollow), or the source
    /// could not read all of it.
    async fn verify_chunk(
        &self,
        resync: &Rc<Resync>,
        stretch: &Stretch,
        job: Job,
        fetch: Fetch,
    ) -> Result<(Claimed, bool), Setback> {
        // Before the chunk is claimed, as the fetch is: a write that waits for it must not wait for what gives way to
        // clients.
        let is_here = job.is_equal || resync.is_verified(job.key);
        let work = if is_here { Work::Confirm } else { fetch.work() };
        self.throttle.turn(work, Duration::MAX).await;
        let fetched = match job.is_equal || resync.is_verified(job.key) {
            true => None,
            false => {
                Some(self.fetch_blocks(resync, stretch.source, job.key, job.key.1.range(), fetch).await?)
            }
        };
        let turn = resync.claim(job.key).await;
        let was_verified = resync.is_verified(job.key);
        let mut lacks_data = false;
        match fetched {
            // What a write fetched meanwhile is as good.
            Some(_) if was_verified && fetch.is_hollow() => (),
            Some(fetched) => {
                lacks_data = self.keep_blocks(resync, job.key, fetched).await?;
                if fetch == Fetch::Ahead {
                    mark(Path::VersionsAhead);
                }
            }
            None if !was_verified => self.take_as_equal(resync, stretch.epoch, job).await?,
            None => (),
        }
        Ok((turn, was_verified || lacks_data))
    }

    /// A chunk that was equal by digest at an epoch counts as verified, with the source's marks for what it holds; the
    /// caller has the chunk's turn.
    ///
    /// Not when the epoch is another one by now: the source may have been evicted, and a write that was open only there
    /// and here be swept without either. The members that are left do not have it, and this chunk is not equal to theirs.
    async fn take_as_equal(&self, resync: &Resync, epoch: Epoch, job: Job) -> Result<(), Setback> {
        let Job { key, open, .. } = job;
        self.check_epoch(resync, epoch)?;
        let _piece = self.throttle.begin(Work::Confirm);
        let (store, group) = (&resync.member.drive.store, resync.member.group);
        let extents = store.versions(group, key.0, key.1.range()).await.map_err(setback)?;
        let held: Vec<_> = extents.iter().map(|x| (x.range, x.version)).collect();
        let marks = Marks { open: of_held(open, &held), watermarks: vec![] };
        note_brought(&marks);
        mark(Path::EqualByDigest);
        store.merge_marks(group, resync.stint, epoch, marks).await.map_err(setback)?;
        store.verify_chunk(group, key.0, key.1, resync.stint, vec![], true).await.map_err(setback)?;
        let data = extents.iter().filter(|x| !matches!(x.data, ExtentData::Zero));
        let blocks: u64 = data.map(|x| u64::from(x.range.count)).sum();
        resync.blocks_held.set(resync.blocks_held.get() + blocks);
        Ok(())
    }

    /// Fills the hollow chunks below a place (`None`: all) that the walk did not know of: of writes that came to the
    /// source after it was asked.
    async fn fill_below(&self, resync: &Rc<Resync>, to: Option<ChunkKey>) -> Result<(), Setback> {
        loop {
            let first = resync.hollow.borrow().first().copied();
            let Some(key) = first.filter(|key| to.is_none_or(|to| *key < to)) else { return Ok(()) };
            let _turn = resync.claim(key).await;
            // Its fetch may have failed.
            if resync.is_verified(key) {
                self.fill(resync, key).await?;
            }
            resync.hollow.borrow_mut().remove(&key);
        }
    }

    /// Fetches the data of a verified chunk that lacks some, part by part; the caller has the chunk's turn, which no
    /// write waits for. One source may not have what another had already, so each is asked until nothing is missing;
    /// what none of them can read stays damaged.
    async fn fill(&self, resync: &Resync, key: ChunkKey) -> Result<(), Setback> {
        let entry = self.current_entry(resync)?;
        if mutated(Mutation::HollowNotFilled) {
            return Ok(());
        }
        let mut failed = None;
        let chunk = key.1.range();
        for source in entry.read_set() {
            let mut rest = Some(chunk);
            while let Some(part) = self.hollow_part(resync, key.0, rest).await? {
                mark(Path::HollowFilled);
                self.throttle.turn(Work::Copy, Duration::MAX).await;
                match self.copy_blocks(resync, source, key, part, Fetch::ForWalk).await {
                    Err(Setback::Source(text)) => {
                        failed = Some(text);
                        break;
                    }
                    copied => copied?,
                }
                rest =
                    (part.end() < chunk.end()).then(|| BlockRange::new(part.end(), chunk.end() - part.end()));
            }
        }
        if let Some(text) = failed
            && self.hollow_part(resync, key.0, Some(chunk)).await?.is_some()
        {
            return Err(Setback::Source(text));
        }
        resync.hollow.borrow_mut().remove(&key);
        Ok(())
    }

    /// The next blocks of which only the versions are here, in what is left of a chunk: as many as are filled at once.
    /// There may be others between the first and the last of them.
    async fn hollow_part(
        &self,
        resync: &Resync,
        object: ObjectId,
        rest: Option<BlockRange>,
    ) -> Result<Option<BlockRange>, Setback> {
        let Some(rest) = rest else { return Ok(None) };
        let (store, group) = (&resync.member.drive.store, resync.member.group);
        let extents = store.versions(group, object, rest).await.map_err(setback)?;
        let most = if self.throttle.clients_are_there() { PART_BLOCKS } else { rest.count };
        let hollow = extents.iter().filter(|x| matches!(x.data, ExtentData::Damaged)).map(|x| x.range);
        Ok(first_part(hollow, most))
    }

    /// Makes blocks of a chunk what the source holds; the caller has the chunk's turn.
    async fn copy_blocks(
        &self,
        resync: &Resync,
        source: DriveId,
        key: ChunkKey,
        blocks: BlockRange,
        fetch: Fetch,
    ) -> Result<(), Setback> {
        let fetched = self.fetch_blocks(resync, source, key, blocks, fetch).await?;
        self.keep_blocks(resync, key, fetched).await?;
        Ok(())
    }

    /// Asks a source for a chunk, or a part of it.
    async fn fetch_blocks(
        &self,
        resync: &Resync,
        source: DriveId,
        key: ChunkKey,
        blocks: BlockRange,
        fetch: Fetch,
    ) -> Result<Fetched, Setback> {
        let epoch = self.current_entry(resync)?.epoch;
        let limit = usize::from(!fetch.is_hollow());
        let ask = Ask { kind: Kind::Entries, key, blocks, limit, is_urgent: fetch.is_urgent() };
        let reply = self.ask_source(resync, source, ask).await?;
        Ok(Fetched { fetch, blocks, epoch, reply })
    }

    /// Takes what was fetched of a chunk: all that is newer than what this replica holds if the chunk is verified,
    /// and otherwise nothing else; says whether it came without the data of some blocks. Parts are of verified chunks
    /// only. The caller has the chunk's turn.
    async fn keep_blocks(&self, resync: &Resync, key: ChunkKey, fetched: Fetched) -> Result<bool, Setback> {
        let Fetched { fetch, blocks: asked, epoch, reply } = fetched;
        self.check_epoch(resync, epoch)?;
        let _piece = self.throttle.begin(fetch.work());
        let (store, group) = (&resync.member.drive.store, resync.member.group);
        let (entries, marks) = decode_entries(&reply, asked, fetch)?;
        // The source may not have dropped yet what this replica has dropped already.
        let entries = if self.is_deleted(key.0.owner().volume()) { vec![] } else { entries };
        let is_data = |x: &&CopyEntry| matches!(x.data, CopyData::Data { .. } | CopyData::Damaged);
        let blocks: u64 = entries.iter().filter(is_data).map(|x| u64::from(x.range.count)).sum();
        let lacks_data = entries.iter().any(|x| matches!(x.data, CopyData::Damaged));
        let held: Vec<_> = entries.iter().map(|x| (x.range, x.version)).collect();
        let open = of_held(cut(marks.open, key), &held);
        let marks = Marks { open, watermarks: marks.watermarks };
        note_brought(&marks);
        store.merge_marks(group, resync.stint, epoch, marks).await.map_err(setback)?;
        if asked == key.1.range() {
            store.verify_chunk(group, key.0, key.1, resync.stint, entries, false).await.map_err(setback)?;
        } else {
            mark(Path::FilledInParts);
            store.fill_part(group, key.0, asked, resync.stint, entries).await.map_err(setback)?;
        }
        if fetch.is_hollow() {
            // Counted when it is filled.
            return Ok(lacks_data);
        }
        resync.blocks_copied.set(resync.blocks_copied.get() + blocks);
        self.copied_blocks.set(self.copied_blocks.get() + blocks);
        resync.blocks_held.set(resync.blocks_held.get() + blocks);
        Ok(lacks_data)
    }

    /// R4: verifies one chunk for a write that waits for it. Returns when the chunk is verified, or when the
    /// member's entry has changed: the caller then begins again with admission.
    ///
    /// # Errors
    /// The answer to the write, if this replica's own drive refuses.
    pub(crate) async fn verify_now(
        &self,
        member: &Rc<Member>,
        object: ObjectId,
        chunk: ChunkIndex,
    ) -> Result<(), Answer> {
        let key = (object, chunk);
        let epoch = member.epoch();
        let stands = || member.epoch() == epoch && !member.drive.has_failed() && !self.is_stopped();
        while stands() {
            self.resync_if_needed(member);
            let resync = self.resyncs.borrow().get(&(member.drive.id, member.group)).cloned();
            let Some(resync) = resync.filter(|r| r.is_current()) else { return Ok(()) };
            let (changed, begun) = (member.changed.notified(), resync.changed.notified());
            if !resync.may_copy.get() {
                race(changed, begun).await;
                continue;
            }
            let verified = match race(self.verify_on_demand(&resync, key), changed).await {
                Either::Left(verified) => verified,
                Either::Right(()) => return Ok(()),
            };
            match verified {
                Ok(()) | Err(Setback::Over) => return Ok(()),
                Err(Setback::Source(text)) => tracing::debug!(group = %member.group, text, "no source"),
                Err(Setback::TooMuch) => tracing::debug!(group = %member.group, "too many marks"),
                Err(Setback::Drive(error)) => return Err(member.drive.refusal(&error)),
            }
            sleep(RETRY).await;
        }
        Ok(())
    }

    async fn verify_on_demand(&self, resync: &Rc<Resync>, key: ChunkKey) -> Result<(), Setback> {
        mark(Path::WriteToUnverified);
        let turn = resync.claim(key).await;
        if resync.is_verified(key) {
            return Ok(());
        }
        let source = self.pick_source(resync)?;
        // Noted before it is fetched, so that the walk cannot miss it.
        let fetch = match resync.hollow_from.get() {
            Some(from) if key >= from => {
                resync.hollow.borrow_mut().insert(key);
                mark(Path::HollowFetch);
                Fetch::Hollow
            }
            _ => Fetch::ForWrite,
        };
        // As a task of its own: once begun it runs to its end, also if the write is given up.
        let (target, resync) = (self.shared(), resync.clone());
        let copied = spawn(async move {
            let _turn = turn;
            target.copy_blocks(&resync, source, key, key.1.range(), fetch).await
        });
        copied.await.unwrap_or(Err(Setback::Over))
    }
}

fn note_brought(marks: &Marks) {
    if !marks.open.is_empty() {
        mark(Path::MarksBrought);
    }
}

/// How a chunk is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetch {
    /// With its data, when its turn comes.
    ForWalk,
    /// With its data, at once: a write waits for it.
    ForWrite,
    /// At once, with the data of open versions only: a write waits for it.
    Hollow,
    /// When its turn comes, with the data of open versions only.
    Ahead,
}

impl Fetch {
    fn is_hollow(self) -> bool {
        matches!(self, Fetch::Hollow | Fetch::Ahead)
    }

    fn is_urgent(self) -> bool {
        matches!(self, Fetch::ForWrite | Fetch::Hollow)
    }

    fn work(self) -> Work {
        if self.is_hollow() { Work::Confirm } else { Work::Copy }
    }
}

/// What is done with all chunks, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Verified, without most of the data.
    Ahead,
    /// Verified, and filled.
    Walk,
}

/// How a pass over a stretch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Nothing is left.
    Done,
    /// Some is left: clients have come.
    ClientsCame,
}

/// Chunks that were compared.
struct Stretch {
    source: DriveId,
    /// The group's epoch when the source was asked.
    epoch: Epoch,
    /// Those that are left to verify.
    jobs: RefCell<VecDeque<Job>>,
    /// Where the next stretch begins; `None`: there is none.
    to: Option<ChunkKey>,
}

/// Blocks of a chunk as a source held them.
struct Fetched {
    fetch: Fetch,
    blocks: BlockRange,
    /// The group's epoch when it was asked.
    epoch: Epoch,
    reply: Reply,
}

/// What a source is asked for.
struct Ask {
    /// Digests, or entries of one chunk.
    kind: Kind,
    /// The chunk that is meant, or to begin at.
    key: ChunkKey,
    /// Of entries, the blocks.
    blocks: BlockRange,
    /// How many digests at most; of entries 0: with the data of open ones only.
    limit: usize,
    /// A client's write waits for it.
    is_urgent: bool,
}

/// A chunk that the walk has to verify.
struct Job {
    key: ChunkKey,
    /// Both sides have it, with the same digest.
    is_equal: bool,
    /// The source's open entries in it.
    open: Vec<OpenEntry>,
}

/// Chunks with the open entries that belong to them.
fn jobs(chunks: Vec<(ChunkKey, bool)>, open: Vec<OpenEntry>) -> VecDeque<Job> {
    let mut by_chunk: BTreeMap<ChunkKey, Vec<OpenEntry>> = BTreeMap::new();
    for entry in open {
        for (chunk, range) in entry.range.by_chunk() {
            by_chunk.entry((entry.object, chunk)).or_default().push(OpenEntry { range, ..entry });
        }
    }
    let job = |(key, is_equal)| Job { key, is_equal, open: by_chunk.remove(&key).unwrap_or_default() };
    chunks.into_iter().map(job).collect()
}

/// From the first of these ranges, which are in order, as many blocks as one part has at most; it ends with the last
/// block of a range.
fn first_part(ranges: impl Iterator<Item = BlockRange>, most: u32) -> Option<BlockRange> {
    let mut ranges = ranges.peekable();
    let first = ranges.peek()?.first;
    let within = ranges.take_while(|range| range.first < first + most);
    let end = within.map(|range| range.end().min(first + most)).last()?;
    Some(BlockRange::new(first, end - first))
}

/// The parts of open entries that lie in a chunk.
fn cut(open: Vec<OpenEntry>, (object, chunk): ChunkKey) -> Vec<OpenEntry> {
    let parts = open.into_iter().filter(|x| x.object == object).flat_map(|x| {
        let range = x.range.by_chunk().find(|(c, _)| *c == chunk);
        range.map(|(_, range)| OpenEntry { range, ..x })
    });
    parts.collect()
}

/// The parts of open entries that belong to what these blocks hold: versions up to the one held. The source takes
/// its marks after its data, so a mark may be of a newer version; counted here it would make this replica say
/// "applied" to a write whose data it never had.
fn of_held(open: Vec<OpenEntry>, held: &[(BlockRange, Version)]) -> Vec<OpenEntry> {
    let mut parts = Vec::with_capacity(open.len());
    let open = if mutated(Mutation::CopyDropsMarks) { vec![] } else { open };
    for entry in open {
        let before = parts.len();
        let counts = |version| entry.version <= version || mutated(Mutation::MarksOfUnheld);
        for (range, _) in held.iter().filter(|(_, version)| counts(*version)) {
            let first = range.first.max(entry.range.first);
            let end = range.end().min(entry.range.end());
            if first < end {
                parts.push(OpenEntry { range: BlockRange::new(first, end - first), ..entry });
            }
        }
        if parts.len() == before {
            mark(Path::MarkOfNewer);
        }
    }
    parts
}

/// Chunks of either side in key order, each with whether both have it with the same digest.
fn merge(
    theirs: &[(ObjectId, ChunkIndex, u64)],
    ours: &[(ObjectId, ChunkIndex, u64)],
) -> Vec<(ChunkKey, bool)> {
    let (mut a, mut b) = (theirs.iter().peekable(), ours.iter().peekable());
    let mut chunks = Vec::with_capacity(theirs.len());
    let key = |x: &(ObjectId, ChunkIndex, u64)| (x.0, x.1);
    loop {
        let next = match (a.peek(), b.peek()) {
            (None, None) => return chunks,
            (Some(x), Some(y)) => key(x).min(key(y)),
            (Some(x), None) | (None, Some(x)) => key(x),
        };
        let in_theirs = a.next_if(|x| key(x) == next).map(|x| x.2);
        let in_ours = b.next_if(|x| key(x) == next).map(|x| x.2);
        chunks.push((next, in_theirs == in_ours || mutated(Mutation::DigestsNotCompared)));
    }
}

/// An answer that is a success.
fn accept(reply: Result<Reply, PeerError>) -> Result<Reply, Setback> {
    reply.map_err(|error| match error.status() {
        Some(Status::Refused) => Setback::TooMuch,
        _ => Setback::Source(error.to_string()),
    })
}

fn epoch_changed() -> Setback {
    Setback::Source("the epoch changed".into())
}

fn setback(error: StoreError) -> Setback {
    match error {
        StoreError::StaleEpoch { .. } => epoch_changed(),
        StoreError::StaleStint { .. } | StoreError::UnknownGroup { .. } => Setback::Over,
        other => Setback::Drive(other),
    }
}

fn decode_marks(document: &[u8]) -> Result<Marks, Setback> {
    let marks: control::Marks = control::decode(document).map_err(|e| Setback::Source(e.to_string()))?;
    let is_sound = |x: &control::OpenMark| x.range.is_valid() && x.version != Version::ZERO;
    if !marks.open.iter().all(is_sound) {
        return Err(Setback::Source("a mark that cannot be".into()));
    }
    let open = marks.open.into_iter().map(|x| OpenEntry {
        version: x.version,
        object: x.object,
        range: x.range,
        settled: x.settled,
    });
    Ok(Marks { open: open.collect(), watermarks: marks.watermarks })
}

/// Reads entries: they must cover the blocks that were asked for, and all data must match its checksums. Data that was
/// not asked for counts as damaged.
fn decode_entries(
    reply: &Reply,
    blocks: BlockRange,
    fetch: Fetch,
) -> Result<(Vec<CopyEntry>, Marks), Setback> {
    let wrong = |what: &str| Setback::Source(what.to_owned());
    let answer = ReadAnswer::decode(&reply.head).map_err(|e| Setback::Source(e.to_string()))?;
    let (mut next, mut offset) = (blocks.first, 0);
    let mut entries = Vec::with_capacity(answer.extents.len());
    for x in answer.extents {
        if x.range.first != next || x.range.count > blocks.end() - next {
            return Err(wrong("entries that do not cover what was asked for"));
        }
        next = x.range.end();
        let data = match x.content {
            Content::Zero if x.version == Version::ZERO => CopyData::Absent,
            Content::Zero => CopyData::Zero,
            Content::Damaged => {
                mark(Path::CopyOfDamaged);
                CopyData::Damaged
            }
            Content::Data if fetch.is_hollow() && !x.open => CopyData::Damaged,
            Content::Data => {
                let end = offset + x.range.bytes();
                if end > reply.body.len() {
                    return Err(wrong("less data than the entries say"));
                }
                let buf: Buf = reply.body.slice(offset..end);
                offset = end;
                if !is_intact(&buf, &x.crcs) {
                    return Err(wrong("data was damaged on the way"));
                }
                CopyData::Data { buf, crcs: x.crcs }
            }
        };
        entries.push(CopyEntry { range: x.range, version: x.version, data });
    }
    if next != blocks.end() {
        return Err(wrong("entries that do not cover what was asked for"));
    }
    Ok((entries, decode_marks(&reply.body[offset..])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{SessionSlot, VolumeId, limits};

    const OBJECT: ObjectId = ObjectId::of_volume(VolumeId(1), 3);

    fn v(counter: u64) -> Version {
        Version::new(counter, SessionSlot(1))
    }

    fn open(version: Version, first: u32, count: u32) -> OpenEntry {
        OpenEntry { version, object: OBJECT, range: BlockRange::new(first, count), settled: false }
    }

    #[test]
    fn chunks_of_both_sides_are_merged_in_order() {
        let entry = |chunk, digest| (OBJECT, ChunkIndex(chunk), digest);
        let theirs = [entry(1, 10), entry(2, 20), entry(5, 50)];
        let ours = [entry(0, 1), entry(2, 20), entry(5, 51)];
        let merged: Vec<_> = merge(&theirs, &ours).into_iter().map(|((_, c), equal)| (c.0, equal)).collect();
        assert_eq!(merged, [(0, false), (1, false), (2, true), (5, false)]);
        assert_eq!(merge(&[], &[]), []);
    }

    #[test]
    fn entries_go_to_the_chunks_that_they_touch() {
        let chunk = limits::CHUNK_BLOCKS;
        let chunks = vec![((OBJECT, ChunkIndex(0)), true), ((OBJECT, ChunkIndex(1)), false)];
        let jobs = jobs(chunks, vec![open(v(1), chunk - 2, 4), open(v(2), 5 * chunk, 1)]);
        assert_eq!(jobs[0].open, [open(v(1), chunk - 2, 2)]);
        assert_eq!(jobs[1].open, [open(v(1), chunk, 2)], "a chunk that nobody holds has no entries");
        assert_eq!(cut(vec![open(v(1), chunk - 2, 4)], (OBJECT, ChunkIndex(1))), jobs[1].open);
    }

    #[test]
    fn a_part_goes_from_the_first_hollow_block_to_the_last_that_it_can_reach() {
        let part = |ranges: &[(u32, u32)], most| {
            let ranges = ranges.iter().map(|(first, count)| BlockRange::new(*first, *count));
            first_part(ranges, most).map(|part| (part.first, part.count))
        };
        assert_eq!(part(&[], 8), None);
        assert_eq!(part(&[(3, 2)], 8), Some((3, 2)));
        assert_eq!(part(&[(3, 20)], 8), Some((3, 8)));
        assert_eq!(part(&[(3, 2), (7, 1), (10, 5), (40, 1)], 8), Some((3, 8)));
        assert_eq!(
            part(&[(3, 2), (7, 1), (11, 5)], 8),
            Some((3, 5)),
            "what lies behind the last is not fetched"
        );
        assert_eq!(part(&[(3, 2), (127, 1)], 128), Some((3, 125)));
    }

    #[test]
    fn only_entries_of_what_is_held_count() {
        let held = [(BlockRange::new(0, 10), v(5)), (BlockRange::new(10, 5), Version::ZERO)];
        let entries = vec![open(v(3), 8, 4), open(v(5), 0, 1), open(v(6), 0, 10)];
        assert_eq!(of_held(entries, &held), [open(v(3), 8, 2), open(v(5), 0, 1)]);
    }

    #[test]
    fn places_follow_each_other_up_to_the_last() {
        let last = ChunkIndex(limits::OBJECT_CHUNKS_MAX as u16 - 1);
        assert_eq!(after((OBJECT, ChunkIndex(4))), Some((OBJECT, ChunkIndex(5))));
        assert_eq!(after((OBJECT, last)), Some((ObjectId::of_volume(VolumeId(1), 4), ChunkIndex(0))));
        let end = ObjectId::of_volume(VolumeId(1), u64::MAX);
        assert_eq!(after((end, last)), Some((ObjectId::of_volume(VolumeId(2), 0), ChunkIndex(0))));
        assert_eq!(after((ObjectId::from_bytes([0xff; 16]), last)), None);
    }
}
