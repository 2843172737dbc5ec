//! The store's face, and the data path through it, top to bottom: a write is judged, placed, made current
//! in RAM and logged in one instant, then waits for its batch; a read finds extents, waits until what they
//! cite is durable, reads, and verifies.
//!
//! What a caller may rely on: a request that returned is durable, and so is every version that an answer
//! cites; bytes that a read returns match their checksums; a request that was refused changed nothing.

use crate::StoreError;
use crate::checkpoint;
use crate::commit;
use crate::convert;
use crate::engine::Engine;
use crate::floor;
use crate::format;
use crate::label::Label;
use crate::leaf::{Kind, LeafKey};
use crate::map_copy::{self, CopyOf};
use crate::open_set::ENTRY_BYTES_MAX;
use crate::record::{self, Record, Span};
use crate::recover;
use crate::region::PlaceRun;
use crate::request::*;
use crate::state::{Room, State, within};
use crate::watch;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::rc::Rc;
use weft_rt::sync::{Either, race};
use weft_rt::{Drive, JoinHandle};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::limits::{CHUNK_BLOCKS, OPEN_ENTRIES_MAX, OPEN_ENTRIES_REPAIR_MAX, REQUEST_BLOCKS_MAX};
use weft_types::{BLOCK_SIZE, BlockRange, DeviceId, Version};

/// Blocks of zeroes that are put in one instant: so many leaves are surely in RAM together.
const ZERO_BLOCKS_AT_ONCE: u32 = 16 * CHUNK_BLOCKS;

/// One open drive. Used as `Rc<Store>` by many tasks of one thread; [`Store::close`] it in the end. A store
/// that is dropped without has lost nothing: the next open replays its log.
pub struct Store {
    pub(crate) engine: Rc<Engine>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
    /// Looks whether the drive still answers, also while the store is being closed.
    watch: JoinHandle<()>,
}

impl Store {
    /// Formats a drive: everything on it is lost. Durable on return.
    ///
    /// # Errors
    /// If the drive is too small, or holds anything that `force` does not allow to destroy; those of the drive.
    pub async fn format(drive: &Drive, options: FormatOptions) -> Result<Label, StoreError> {
        format::format(drive, &options).await
    }

    /// Goes through all that [`Store::format`] checks, and changes nothing: the label that the drive would get.
    ///
    /// # Errors
    /// Those of [`Store::format`].
    pub async fn check_format(drive: &Drive, options: FormatOptions) -> Result<Label, StoreError> {
        format::plan(drive, &options).await
    }

    /// Opens a formatted drive and recovers what was acknowledged before. How long it takes is bounded by the
    /// log's size.
    ///
    /// # Errors
    /// If the drive is not Weft's, or its structures are damaged: then it has to be formatted anew and
    /// resynced. `Hangs` if it does not answer.
    pub async fn open(drive: Drive, options: OpenOptions) -> Result<(Rc<Store>, OpenReport), StoreError> {
        let opened = race(recover::open(drive.clone(), &options), watch::hangs(&drive)).await;
        let (engine, report) = match opened {
            Either::Left(opened) => opened?,
            Either::Right(hangs) => {
                drive.give_up();
                return Err(hangs);
            }
        };
        let engine = Rc::new(engine);
        let watch = weft_rt::spawn(watch::run(engine.clone()));
        let mut tasks = vec![
            weft_rt::spawn(commit::run(engine.clone())),
            weft_rt::spawn(checkpoint::run(engine.clone())),
            weft_rt::spawn(floor::run(engine.clone())),
        ];
        if engine.state.borrow().is_converting() {
            tasks.push(weft_rt::spawn(convert::run(engine.clone())));
        }
        Ok((Rc::new(Store { engine, tasks: RefCell::new(tasks), watch }), report))
    }

    /// Ends all work: refuses new requests, takes a checkpoint, and stops. The next open finds an empty log.
    ///
    /// # Errors
    /// If the store has failed before, or the checkpoint fails.
    pub async fn close(&self) -> Result<(), StoreError> {
        let is_changed = {
            let mut state = self.engine.state.borrow_mut();
            if state.is_stopped {
                return Ok(());
            }
            state.is_closing = true;
            state.commits.open_batch() - 1 > state.superblock.batch || state.records_since_checkpoint > 0
        };
        self.engine.checkpointed.notify_all();
        let done = if is_changed { self.engine.checkpoint().await } else { Ok(()) };
        self.stop();
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for task in tasks {
            let _ = task.await;
        }
        self.watch.abort();
        done
    }

    fn stop(&self) {
        self.engine.state.borrow_mut().is_stopped = true;
        self.engine.wake_all();
    }

    /// Takes a checkpoint that begins after this call, and waits for it.
    ///
    /// # Errors
    /// If the store fails before.
    pub async fn checkpoint(&self) -> Result<(), StoreError> {
        self.engine.checkpoint().await
    }

    /// The device that the drive is on, which other drives of this machine may be on as well; none if it
    /// is not known.
    pub fn device(&self) -> Option<DeviceId> {
        self.engine.drive.device()
    }

    /// The drive's label.
    pub fn label(&self) -> &Label {
        &self.engine.label
    }

    /// The figures as of now.
    pub fn usage(&self) -> Usage {
        self.engine.state.borrow().usage(self.engine.reader.cached_bytes() as u64)
    }

    /// The first failure of the drive, if there was one; from then on every request is refused.
    pub fn failure(&self) -> Option<Rc<str>> {
        self.engine.state.borrow().failed.clone()
    }

    /// Whether its failure was an error of the device that the drive is on: see [`StoreError::is_of_device`].
    pub fn is_device_at_fault(&self) -> bool {
        self.engine.state.borrow().is_device_at_fault
    }

    /// Whether the drive is still there: see [`Drive::check_presence`].
    ///
    /// # Errors
    /// `Gone` if it is not.
    pub async fn check_presence(&self) -> Result<(), StoreError> {
        let found = self.engine.drive.check_presence().await;
        found.map_err(|e| StoreError::Gone { source: Rc::new(e) })
    }

    /// Puts one version on a run of blocks (R3, R7, R9), each block judged by itself; returns the verdicts in
    /// order, neighbours of one verdict together. Durable on return, and so is every version cited.
    ///
    /// # Errors
    /// `NoSpace` before anything was changed, and for data only: a discard or a write of zeroes waits for
    /// checkpoints instead; `Crowded`, after which a discard may have happened in part; `UnknownGroup`, `Invalid`;
    /// or the store has failed, then it is unknown whether the write happened.
    pub async fn write(&self, write: Write) -> Result<Vec<(BlockRange, Verdict)>, StoreError> {
        check_write(&write)?;
        let mut verdicts = Vec::with_capacity(1);
        let mut batch = 0;
        for range in parts_of(&write) {
            batch = batch.max(self.write_part(&write, range, &mut verdicts).await?);
        }
        if !mutated(Mutation::AnswerBeforeDurable) {
            self.engine.durable(batch).await?;
        }
        Ok(verdicts)
    }

    /// Puts a part of a write; returns the batch that its verdicts wait for.
    async fn write_part(
        &self,
        write: &Write,
        range: BlockRange,
        verdicts: &mut Vec<(BlockRange, Verdict)>,
    ) -> Result<u64, StoreError> {
        let mut attempts = 0;
        loop {
            self.engine.admit().await?;
            let outcome = {
                let mut state = self.engine.state.borrow_mut();
                state.check()?;
                judge_and_put(&mut state, &self.engine.drive, write, range, verdicts)?
            };
            match outcome {
                Outcome::Again => Box::pin(self.engine.load_range(write.group, write.object, range)).await?,
                Outcome::Done { batch, is_changed } => {
                    if is_changed {
                        self.engine.work.notify_all();
                    }
                    return Ok(batch);
                }
                Outcome::NoRoom { needed_blocks, short } => {
                    attempts += 1;
                    Box::pin(self.engine.make_room(needed_blocks, short, attempts)).await?;
                }
            }
        }
    }

    /// Marks a version as known to be on the whole write set (R8, R10). Takes effect at once; logged with the
    /// next batch, and harmless to lose.
    pub fn settle(
        &self,
        group: weft_types::GroupId,
        object: weft_types::ObjectId,
        range: BlockRange,
        version: Version,
    ) {
        if !range.is_valid() {
            return;
        }
        // Settling a part of an entry cuts it: not in a set that is full. What is settled as a whole always counts,
        // since a sweep waits for it.
        let would_overfill = {
            let state = self.engine.state.borrow();
            state.drive.group(group).is_ok_and(|g| {
                g.marks.len_of(version.slot()) >= OPEN_ENTRIES_MAX
                    && g.marks.is_cut_by(object, range, version)
            })
        };
        if !would_overfill {
            self.note(Record::Settle { group, object, range, version });
        }
    }

    /// Raises a session's watermark in a group. Takes effect at once; logged with the next batch, and harmless
    /// to lose.
    pub fn advance(&self, group: weft_types::GroupId, slot: weft_types::SessionSlot, watermark: Version) {
        let rises = {
            let state = self.engine.state.borrow();
            state.drive.group(group).is_ok_and(|g| watermark > g.marks.watermark(slot))
        };
        if rises {
            self.note(Record::Advance { group, slot, watermark });
        }
    }

    /// Applies a record that is harmless to lose, and logs it if there is room. It wakes nobody: the next batch
    /// takes it along.
    fn note(&self, record: Record) {
        let mut state = self.engine.state.borrow_mut();
        if state.has_room_for_note() {
            state.record(|e| record.encode(e));
        }
        state.replay_note(record);
    }

    /// Writes a copy of the fabric map to its own region. Durable on return.
    ///
    /// # Errors
    /// If it is too large for the region, or the drive fails.
    pub async fn put_map_copy(&self, version: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.engine.state.borrow().check()?;
        map_copy::put(&self.engine.drive, &self.engine.label, CopyOf::Slice, version, bytes).await
    }

    /// Bytes that a copy of the map, or of a part of it, may have.
    pub fn map_copy_room(&self) -> u64 {
        map_copy::room(&self.engine.label)
    }

    /// Writes a part of the whole map of this version, in the place of the older one of two. Durable on
    /// return.
    ///
    /// # Errors
    /// If it is too large for the region, or the drive fails.
    pub async fn put_map_part(&self, version: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.engine.state.borrow().check()?;
        map_copy::put(&self.engine.drive, &self.engine.label, CopyOf::Part, version, bytes).await
    }

    /// The newest good copy of the fabric map on this store's drive: its version and bytes.
    ///
    /// # Errors
    /// If the drive cannot be read at all.
    pub async fn map_copy(&self) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        Self::read_map_copy(&self.engine.drive).await
    }

    /// The newest good copy of the fabric map on a drive: its version and bytes. Needs nothing else on the
    /// drive to be in order.
    ///
    /// # Errors
    /// If the drive cannot be read at all.
    pub async fn read_map_copy(drive: &Drive) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        Ok(map_copy::read(drive, CopyOf::Slice).await?.into_iter().next())
    }

    /// The good parts of whole maps on a drive with their versions, the newest first. Needs nothing else on
    /// the drive to be in order.
    ///
    /// # Errors
    /// If the drive cannot be read at all.
    pub async fn read_map_parts(drive: &Drive) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        map_copy::read(drive, CopyOf::Part).await
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.watch.abort();
        self.stop();
    }
}

/// Refuses what no caller may ask for.
fn check_write(write: &Write) -> Result<(), StoreError> {
    let invalid = |reason| Err(StoreError::Invalid { reason });
    if !write.range.is_valid() {
        return invalid("the range is empty or passes the largest object");
    }
    if write.version == Version::ZERO {
        return invalid("version zero means never written");
    }
    if let Payload::Data { data, crcs } = &write.payload {
        if write.range.count > REQUEST_BLOCKS_MAX {
            return invalid("the data is longer than one request may be");
        }
        if data.len() != write.range.bytes() || crcs.len() != write.range.count as usize {
            return invalid("the data or its checksums do not have the range's length");
        }
        debug_assert!(
            data.chunks(BLOCK_SIZE).zip(crcs).all(|(block, crc)| weft_wire::crc32c(block) == *crc),
            "the caller has verified the checksums"
        );
    }
    Ok(())
}

/// The parts of a write that are put in one instant each: data at once, zeroes by so many leaves.
fn parts_of(write: &Write) -> impl Iterator<Item = BlockRange> + use<> {
    let range = write.range;
    let is_data = matches!(write.payload, Payload::Data { .. });
    let mut at = range.first;
    std::iter::from_fn(move || {
        let step = (at / ZERO_BLOCKS_AT_ONCE + 1) * ZERO_BLOCKS_AT_ONCE;
        let end = if is_data { range.end() } else { range.end().min(step) };
        let part = BlockRange::new(at, end - at);
        at = end;
        (part.count > 0).then_some(part)
    })
}

/// How a part of a write ended.
enum Outcome {
    /// The log's room is gone, or a leaf has left RAM again: wait for room, load it, and try again.
    Again,
    /// It was judged, and what was to be put is put.
    Done { batch: u64, is_changed: bool },
    /// Nothing was changed.
    NoRoom { needed_blocks: u64, short: Room },
}

/// What happens to a run of blocks of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    /// Newer than what is held: taken, and added to the open set.
    Take,
    /// The version that is held, which is damaged: the data heals it.
    Heal,
    /// Taken before, or held.
    Known,
    /// Something newer is held.
    Superseded(Version),
}

/// A part of a write, judged.
struct Judged {
    /// Runs of blocks and their judgements, in order.
    runs: SmallVec<[(BlockRange, Judgement); 1]>,
    /// The newest batch that the verdicts cite.
    cited: u64,
    /// Leaves that become dirty if anything is put.
    new_leaves: u64,
}

/// Judges a part of a write and puts it: one instant, no await.
fn judge_and_put(
    state: &mut State,
    drive: &Drive,
    write: &Write,
    range: BlockRange,
    verdicts: &mut Vec<(BlockRange, Verdict)>,
) -> Result<Outcome, StoreError> {
    if !state.has_room() {
        // Others were admitted together with this write, and have taken the room since.
        return Ok(Outcome::Again);
    }
    let Some(judged) = judge(state, write, range)? else { return Ok(Outcome::Again) };
    check_open_set(state, write, &judged)?;
    if let Some(refused) = check_room(state, write, &judged) {
        return Ok(refused);
    }
    let mut batch = if mutated(Mutation::CitesBeforeDurable) { 0 } else { judged.cited };
    let mut is_changed = false;
    for (part, judgement) in judged.runs {
        match judgement {
            Judgement::Known => mark(Path::AppliedAgain),
            Judgement::Heal => mark(Path::DamageHealed),
            Judgement::Take | Judgement::Superseded(_) => {}
        }
        let made = match (judgement, &write.payload) {
            (Judgement::Take, Payload::Zero) => Some(put_zero(state, write, part)),
            (Judgement::Take | Judgement::Heal, Payload::Data { .. }) => {
                Some(put_data(state, drive, write, part, judgement == Judgement::Take))
            }
            (Judgement::Superseded(_), _) => remember(state, write, part),
            (Judgement::Known | Judgement::Heal, _) => None,
        };
        is_changed |= made.is_some();
        batch = batch.max(made.unwrap_or(0));
        let verdict = match judgement {
            Judgement::Superseded(newest) => Verdict::Superseded { newest },
            _ => Verdict::Applied,
        };
        match verdicts.last_mut() {
            Some((last, v)) if *v == verdict && last.end() == part.first => last.count += part.count,
            _ => verdicts.push((part, verdict)),
        }
    }
    Ok(Outcome::Done { batch, is_changed })
}

/// Judges each block of a part (the model's `on_write`); `None` if a leaf is not in RAM.
fn judge(state: &mut State, write: &Write, range: BlockRange) -> Result<Option<Judged>, StoreError> {
    let version = write.version;
    if state.dropping.groups.contains(&write.group) {
        return Err(StoreError::UnknownGroup { group: write.group });
    }
    let held = state.drive.group(write.group)?;
    let (marks, floor) = (&held.marks, held.floor);
    let may_be_open = marks.may_hold(write.object, version);
    let is_below_floor = version < floor && !mutated(Mutation::BelowFloorTaken);
    let is_data = matches!(write.payload, Payload::Data { .. });
    let durable = state.commits.durable();
    let mut cited = if may_be_open { state.remembered_batch } else { 0 };
    if is_below_floor {
        cited = cited.max(state.floor_batch);
    }
    let mut judged = Judged { runs: SmallVec::new(), cited, new_leaves: 0 };
    let runs = &mut judged.runs;
    let mut push = |part: BlockRange, judgement| match runs.last_mut() {
        Some((last, j)) if *j == judgement && last.end() == part.first => last.count += part.count,
        _ => runs.push((part, judgement)),
    };
    for (chunk, part) in range.by_chunk() {
        let key = LeafKey { group: write.group, object: write.object, chunk };
        let first = within(part.first, chunk);
        let Some(cited) = state.map.cite(&key, (first, part.count as u8), durable) else { return Ok(None) };
        judged.cited = judged.cited.max(cited.batch);
        judged.new_leaves += u64::from(!cited.is_dirty);
        for piece in cited.leaf.pieces(first, part.count as u8) {
            let base = chunk.range().first + u32::from(piece.first);
            let blocks = BlockRange::new(base, u32::from(piece.count));
            let held = piece.version_above(floor);
            let takes = held < version || (held > version && mutated(Mutation::OlderWriteTaken));
            // R7: below the floor every member answers a client the same, whichever tombstones it still has.
            // A repair is of a version that some member holds, and a block that has data is judged by that.
            let is_passed =
                is_below_floor && takes && (write.kind == WriteKind::Client || held == Version::ZERO);
            let otherwise = match takes {
                true if is_passed => {
                    mark(Path::BelowFloor);
                    Judgement::Superseded(floor)
                }
                true => Judgement::Take,
                false => Judgement::Superseded(held),
            };
            if held == version {
                let heals = is_data && piece.kind == Some(Kind::Damaged) && !mutated(Mutation::NoHeal);
                push(blocks, if heals { Judgement::Heal } else { Judgement::Known });
            } else if (held < version && !mutated(Mutation::MarkAboveHeldCounts)) || !may_be_open {
                // A mark above what the block holds came with a copy from elsewhere: the data never did.
                push(blocks, otherwise);
            } else {
                for block in blocks.blocks() {
                    let is_open = marks.find(write.object, block, version).is_some()
                        && !mutated(Mutation::RepeatedSuperseded);
                    if is_open {
                        mark(Path::AnswerOfBuried);
                    }
                    push(BlockRange::one(block), if is_open { Judgement::Known } else { otherwise });
                }
            }
        }
    }
    Ok(Some(judged))
}

/// Refuses what would add to an open set that is full already. A client that keeps to the protocol is far from it.
fn check_open_set(state: &mut State, write: &Write, judged: &Judged) -> Result<(), StoreError> {
    let is_repair = write.kind == WriteKind::Repair;
    let opens = |j: &Judgement| match j {
        Judgement::Take => true,
        Judgement::Superseded(_) => is_repair,
        Judgement::Heal | Judgement::Known => false,
    };
    if !judged.runs.iter().any(|(_, j)| opens(j)) {
        return Ok(());
    }
    let limit = if is_repair { OPEN_ENTRIES_REPAIR_MAX } else { OPEN_ENTRIES_MAX };
    let marks = &state.drive.groups[&write.group].marks;
    if marks.len_of(write.version.slot()) + judged.runs.len() > limit {
        return Err(StoreError::Crowded { reason: "the session's watermark is too far behind" });
    }
    let only_remembers = !judged.runs.iter().any(|(_, j)| *j == Judgement::Take);
    if only_remembers && !state.has_room_for_mark() {
        state.measure_state();
    }
    if only_remembers && !state.has_room_for_mark() {
        return Err(StoreError::Crowded { reason: "the drive has no room to remember more" });
    }
    Ok(())
}

/// Whether what is to be put has room, beside what checkpoints need; `None` if it has.
fn check_room(state: &State, write: &Write, judged: &Judged) -> Option<Outcome> {
    let is_put = |j: &Judgement| matches!(j, Judgement::Take | Judgement::Heal);
    let put: u64 = judged.runs.iter().filter(|(_, j)| is_put(j)).map(|(r, _)| u64::from(r.count)).sum();
    if put == 0 {
        return None;
    }
    // A repair finishes a write that other replicas took already: room is kept for it when clients' own writes
    // are refused.
    let needed_blocks = match write.payload {
        Payload::Data { .. } => put + state.kept_from(write.kind),
        Payload::Zero => 0,
    };
    match state.room_for(needed_blocks, judged.new_leaves) {
        Room::Enough => None,
        short => Some(Outcome::NoRoom { needed_blocks, short }),
    }
}

/// Places data, makes it current and logs it; returns the batch.
fn put_data(state: &mut State, drive: &Drive, write: &Write, part: BlockRange, opens: bool) -> u64 {
    let Payload::Data { data, crcs } = &write.payload else { unreachable!("the caller has looked") };
    let skip = (part.first - write.range.first) as usize;
    let crcs = &crcs[skip..skip + part.count as usize];
    let mut places: SmallVec<[PlaceRun; 1]> = SmallVec::new();
    state.bitmap.allocate(part.count, &mut places);
    let mut at = skip * BLOCK_SIZE;
    for run in &places {
        let end = at + run.count as usize * BLOCK_SIZE;
        state.commits.add_data(drive, run.place, data.slice(at..end));
        at = end;
    }
    state.figures.data_bytes_written += part.bytes() as u64;
    let span = span(write, part);
    let batch = state.record(|e| record::encode_write(e, &span, opens, &places, crcs));
    state.put_data(batch, (write.group, write.object), (part, write.version), &places, crcs);
    if opens {
        open(state, write, part);
    } else {
        state.figures.damaged_healed += u64::from(part.count);
    }
    batch
}

/// Puts a tombstone and logs it; returns the batch.
fn put_zero(state: &mut State, write: &Write, part: BlockRange) -> u64 {
    let span = span(write, part);
    let batch = state.record(|e| record::encode_zero(e, &span));
    state.put_zero(batch, (write.group, write.object), (part, write.version));
    open(state, write, part);
    batch
}

/// Adds a refused repair's version to the open set (R9) and logs it; returns the batch.
fn remember(state: &mut State, write: &Write, part: BlockRange) -> Option<u64> {
    let marks = &state.drive.groups[&write.group].marks;
    // What is below the floor is complete, or its session is swept (R7).
    let is_passed = write.version <= marks.watermark(write.version.slot())
        || write.version < state.drive.groups[&write.group].floor;
    if write.kind != WriteKind::Repair || is_passed || mutated(Mutation::RepairLeavesNoEntry) {
        return None;
    }
    mark(Path::RefusedRepairRemembered);
    let (group, object, version) = (write.group, write.object, write.version);
    let note = Record::Remember { group, object, range: part, version };
    let batch = state.record(|e| note.encode(e));
    open(state, write, part);
    state.remembered_batch = batch;
    Some(batch)
}

fn open(state: &mut State, write: &Write, part: BlockRange) {
    if mutated(Mutation::TakenWithoutEntry) {
        return;
    }
    state.grow_state(ENTRY_BYTES_MAX);
    let group =
        state.drive.groups.get_mut(&write.group).expect("the group was found when the write was judged");
    group.marks.remember(write.object, part, write.version);
    if mutated(Mutation::SettledAtOnce) {
        group.marks.settle(write.object, part, write.version);
    }
}

fn span(write: &Write, range: BlockRange) -> Span {
    Span { group: write.group, object: write.object, range, version: write.version }
}
