//! Scrub: reads everything that a group holds, on all in-sync members, verifies it, and heals what is damaged.
//!
//! One in-sync member leads, by the manager's order. It walks over the group's chunks in key order; every in-sync
//! member reads the chunk from its drive and says version and checksum of each block ([`Kind::Verify`]), and the
//! leader compares:
//!
//! ```text
//! all the same -------------------------------> next chunk
//! damaged here, intact there at that version -> put that version again (R8), look again
//! the newest version damaged everywhere ------> lost: told, nothing is changed
//! versions differ ----------------------------> a write is in flight: look again
//!     a member still lacks what an earlier look showed complete -> it missed a write: put it (R8), tell loudly
//! one version, different data ----------------> told loudly, nothing is changed
//! ```
//! It goes on within one epoch only. It never returns data, never decides which group's turn it is, and never takes
//! an older version for a newer one that is damaged.

use crate::member::Member;
use crate::source::{ChunkKey, FIRST, after};
use crate::sweep::written_runs;
use crate::target::Target;
use crate::throttle::Work;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::{join_all, race};
use weft_rt::{Instant, now, sleep, sleep_until, yield_now};
use weft_rules::{Path, mark};
use weft_types::limits::{CHUNK_BLOCKS, DIGESTS_MAX, SCRUB_FINDINGS_HELD_MAX};
use weft_types::{
    BLOCK_SIZE, BlockRange, ChunkIndex, DriveId, Group, ObjectId, Role, ScrubFindingKind, Version,
    VolumeState, with_causes,
};
use weft_wire::control::{DriveDamage, ScrubFinding, ScrubOrder, ScrubReport, ScrubState, ScrubStatus};
use weft_wire::data::{Content, DigestsAnswer, Extent, PeerRequest, ReadAnswer, Scope};
use weft_wire::{Kind, Status};

/// Bytes per second that a scrub reads from each drive at most while clients are there, beside what `throttle.rs`
/// allows: an eighth of what a SATA drive can, a fiftieth of an NVMe one. 8 TB take a day and a half, a fraction of
/// the week in which everything is to be read once. A drive takes part in one scrub at a time, so the leader's pace
/// is that of every member's drive.
const BYTES_PER_SECOND: u64 = 64 << 20;

/// Chunks that are read at once while no client is there: enough to keep a drive busy at 512 KiB each.
const CHUNKS_IN_FLIGHT: usize = 4;

/// Looks at one chunk before what differs is left to the writes that are in flight: two show that a write is
/// missing, the others are for repairs and for blocks that are written all the time.
const LOOKS_MAX: u32 = 4;

/// The pause before the next look: many round trips, so that a write that was in flight has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long to wait before members that could not serve are asked again.
const RETRY: Duration = Duration::from_millis(100);

/// Findings in one answer to the manager.
const FINDINGS_PER_REPORT: usize = 200;

/// The scrubs that this target leads, by order.
#[derive(Default)]
pub(crate) struct Scrubs {
    led: RefCell<BTreeMap<u64, Rc<Scrub>>>,
}

/// The scrub of one group by one order, in one epoch.
pub(crate) struct Scrub {
    order: ScrubOrder,
    member: Option<Rc<Member>>,
    /// The entry in force when it began.
    entry: Option<Rc<Group>>,
    cursor: Cell<Option<ChunkKey>>,
    cancelled: Cell<bool>,
    /// When the next chunk may be read while clients are there.
    next: Cell<Instant>,
    chunks_done: Cell<u64>,
    chunks_total: Cell<u64>,
    blocks_read: Cell<u64>,
    blocks_healed: Cell<u64>,
    blocks_lost: Cell<u64>,
    disagreements: Cell<u64>,
    findings: RefCell<Vec<ScrubFinding>>,
    /// Chunks behind the cursor that are finished: not to be counted twice if their neighbours have to wait.
    finished: RefCell<BTreeSet<ChunkKey>>,
    /// What was written anew in chunks that are not finished.
    written: RefCell<BTreeMap<ChunkKey, Written>>,
    state: RefCell<ScrubState>,
}

/// Blocks, each with the drive, that were given a version anew.
#[derive(Clone, Debug, Default)]
struct Written {
    /// Because they were damaged.
    healed: BTreeSet<(u32, DriveId)>,
    /// Because they had missed a write.
    missed: BTreeSet<(u32, DriveId)>,
}

/// Why a step of a scrub did not happen.
enum Setback {
    /// The scrub is over: the epoch has changed, say.
    Over(String),
    /// Try again later: a member does not serve at present, say.
    Later(String),
}

impl Scrub {
    fn status(&self, findings_seen: usize) -> ScrubStatus {
        let findings = self.findings.borrow();
        let done = self.chunks_done.get();
        ScrubStatus {
            order: self.order.order,
            group: self.order.group,
            members: self.entry.iter().flat_map(|e| e.read_set()).collect(),
            cursor: self.cursor.get(),
            chunks_done: done,
            chunks_total: self.chunks_total.get().max(done),
            blocks_read: self.blocks_read.get(),
            blocks_healed: self.blocks_healed.get(),
            blocks_lost: self.blocks_lost.get(),
            disagreements: self.disagreements.get(),
            findings_total: findings.len() as u32,
            findings: findings.iter().skip(findings_seen).take(FINDINGS_PER_REPORT).cloned().collect(),
            state: self.state.borrow().clone(),
        }
    }

    /// The member that leads and the entry that it leads by, as long as both stand.
    fn stands(&self) -> Result<(&Rc<Member>, &Rc<Group>), Setback> {
        let over = |text: &str| Err(Setback::Over(text.to_owned()));
        let (Some(member), Some(entry)) = (&self.member, &self.entry) else {
            return over("the drive is no member of the group");
        };
        match () {
            () if self.cancelled.get() => over("it was stopped"),
            () if member.drive.has_failed() => over("the leader's drive has failed"),
            () if member.is_gone() => over("the group has been removed"),
            () if member.epoch() != entry.epoch => over("the group's membership has changed"),
            () if member.role() != Role::InSync => over("the leader is not in-sync"),
            () => Ok((member, entry)),
        }
    }

    fn find(&self, kind: ScrubFindingKind, object: ObjectId, found: &Judged) {
        let blocks = u64::from(found.range.count);
        let drives: Vec<DriveId> = found.drives.iter().copied().collect();
        let (group, range) = (self.order.group, found.range);
        let count = |cell: &Cell<u64>, n: u64| cell.set(cell.get() + n);
        match kind {
            ScrubFindingKind::Healed => {
                tracing::warn!(%group, %object, %range, ?drives, "scrub: damaged blocks were healed");
                mark(Path::ScrubHealed);
                count(&self.blocks_healed, blocks * drives.len() as u64);
            }
            ScrubFindingKind::Lost => {
                tracing::error!(%group, %object, %range, "scrub: blocks are damaged on every member");
                count(&self.blocks_lost, blocks);
            }
            ScrubFindingKind::NotHealed | ScrubFindingKind::Stale | ScrubFindingKind::Different => {
                tracing::error!(%group, %object, %range, ?drives, ?kind, "scrub: members disagree");
                count(&self.disagreements, blocks);
            }
        }
        let mut findings = self.findings.borrow_mut();
        if findings.len() < SCRUB_FINDINGS_HELD_MAX {
            findings.push(ScrubFinding { kind, object, range, drives });
        }
    }

    /// Tells what was found in a chunk: what was written anew and is not wrong any more has been healed.
    fn conclude(&self, key: ChunkKey, judged: &[Judged]) {
        let mut written = self.written.borrow_mut().remove(&key).unwrap_or_default();
        for run in judged {
            let kind = match run.is {
                Is::Damaged => ScrubFindingKind::NotHealed,
                Is::Lost => ScrubFindingKind::Lost,
                Is::Different => ScrubFindingKind::Different,
                Is::Good | Is::InFlight | Is::Stale => continue,
            };
            written.healed.retain(|(block, _)| !run.range.contains(*block));
            self.find(kind, key.0, run);
        }
        for run in runs_of(&written.healed, Is::Damaged) {
            self.find(ScrubFindingKind::Healed, key.0, &run);
        }
        for run in runs_of(&written.missed, Is::Stale) {
            self.find(ScrubFindingKind::Stale, key.0, &run);
        }
    }
}

impl Target {
    /// Leads exactly these scrubs from now on, and says how they are getting on.
    pub(crate) fn take_scrubs(&self, orders: Vec<ScrubOrder>) -> ScrubReport {
        let named: BTreeSet<u64> = orders.iter().map(|o| o.order).collect();
        self.scrubs.led.borrow_mut().retain(|order, scrub| {
            let is_named = named.contains(order);
            scrub.cancelled.set(!is_named);
            is_named
        });
        let mut scrubs = Vec::with_capacity(orders.len());
        for order in orders {
            let seen = order.findings_seen as usize;
            let known = self.scrubs.led.borrow().get(&order.order).cloned();
            let scrub = known.unwrap_or_else(|| self.begin_scrub(order));
            scrubs.push(scrub.status(seen));
        }
        let damage = self.drives.values().map(|drive| {
            let usage = drive.store.usage();
            DriveDamage { drive: drive.id, found: usage.damaged_found, healed: usage.damaged_healed }
        });
        ScrubReport { scrubs, damage: damage.filter(|d| d.found > 0).collect() }
    }

    fn begin_scrub(&self, order: ScrubOrder) -> Rc<Scrub> {
        let member = self.member(order.drive, order.group);
        let entry = member.as_ref().and_then(|m| m.entry());
        let scrub = Rc::new(Scrub {
            cursor: Cell::new(Some(order.from.unwrap_or(FIRST))),
            member,
            entry,
            cancelled: Cell::new(false),
            next: Cell::new(now()),
            chunks_done: Cell::new(0),
            chunks_total: Cell::new(0),
            blocks_read: Cell::new(0),
            blocks_healed: Cell::new(0),
            blocks_lost: Cell::new(0),
            disagreements: Cell::new(0),
            findings: RefCell::default(),
            finished: RefCell::default(),
            written: RefCell::default(),
            state: RefCell::new(ScrubState::Running),
            order,
        });
        self.scrubs.led.borrow_mut().insert(scrub.order.order, scrub.clone());
        let (target, led) = (self.shared(), scrub.clone());
        self.background(async move { target.scrub(&led).await });
        scrub
    }

    /// Runs a scrub to its end.
    async fn scrub(&self, scrub: &Scrub) {
        let group = scrub.order.group;
        tracing::info!(%group, drive = %scrub.order.drive, "scrub begins");
        let mut is_counted = false;
        loop {
            let setback = match self.scrub_on(scrub, &mut is_counted).await {
                Ok(()) => {
                    tracing::info!(%group, chunks = scrub.chunks_done.get(), "scrub is done");
                    *scrub.state.borrow_mut() = ScrubState::Done;
                    return;
                }
                Err(setback) => setback,
            };
            match setback {
                Setback::Over(text) => {
                    let left: Vec<ChunkKey> = scrub.written.borrow().keys().copied().collect();
                    left.into_iter().for_each(|key| scrub.conclude(key, &[]));
                    tracing::info!(%group, text, "scrub is interrupted");
                    *scrub.state.borrow_mut() = ScrubState::Interrupted(text);
                    return;
                }
                Setback::Later(text) => {
                    *scrub.state.borrow_mut() = ScrubState::Waiting(text);
                    let pause = sleep(RETRY);
                    if let Some(member) = &scrub.member {
                        race(pause, member.changed.notified()).await;
                    } else {
                        pause.await;
                    }
                }
            }
        }
    }

    /// Scrubs from the cursor to the end.
    async fn scrub_on(&self, scrub: &Scrub, is_counted: &mut bool) -> Result<(), Setback> {
        if !*is_counted {
            scrub.chunks_total.set(self.count_from(scrub).await?);
            *is_counted = true;
        }
        let mut limit = DIGESTS_MAX;
        while let Some(from) = scrub.cursor.get() {
            let Some((keys, to)) = self.chunks_from(scrub, from, limit).await? else {
                limit = (limit / 2).max(1);
                continue;
            };
            for part in keys.chunks(CHUNKS_IN_FLIGHT) {
                let read = join_all(part.iter().map(|key| self.scrub_chunk(scrub, *key))).await;
                read.into_iter().collect::<Result<(), _>>()?;
                scrub.stands()?;
                scrub.chunks_done.set(scrub.chunks_done.get() + part.len() as u64);
                scrub.cursor.set(part.last().and_then(|key| after(*key)));
                scrub.finished.borrow_mut().clear();
                *scrub.state.borrow_mut() = ScrubState::Running;
            }
            scrub.cursor.set(to);
        }
        Ok(())
    }

    /// Counts this member's chunks from the cursor on, for people who watch.
    async fn count_from(&self, scrub: &Scrub) -> Result<u64, Setback> {
        let (member, _) = scrub.stands()?;
        let (mut from, mut total) = (scrub.cursor.get(), 0);
        while let Some(at) = from {
            let digests = member.drive.store.digests(member.group, Some(at), DIGESTS_MAX).await;
            let digests = digests.map_err(|e| Setback::Later(with_causes(&e)))?;
            total += digests.len() as u64;
            let is_last = digests.len() < DIGESTS_MAX;
            from = digests.last().filter(|_| !is_last).and_then(|(o, c, _)| after((*o, *c)));
            yield_now().await;
            scrub.stands()?;
        }
        Ok(total)
    }

    /// The chunks that any in-sync member holds, in order, up to the place that is returned with them: a chunk that
    /// only the leader lacks must not be passed over. `None`: ask for fewer.
    #[allow(clippy::type_complexity)]
    async fn chunks_from(
        &self,
        scrub: &Scrub,
        from: ChunkKey,
        limit: usize,
    ) -> Result<Option<(Vec<ChunkKey>, Option<ChunkKey>)>, Setback> {
        let (_, entry) = scrub.stands()?;
        let asked = join_all(entry.read_set().map(|drive| async move {
            let asked = ask(entry, drive, from, limit, true);
            let head = |protocol| asked.encode(protocol);
            (drive, self.call_drive(drive, Kind::Digests, head, vec![]).await)
        }))
        .await;
        scrub.stands()?;
        let mut keys = BTreeSet::new();
        let mut to: Option<ChunkKey> = None;
        for (drive, reply) in asked {
            let reply = match reply {
                Ok(reply) => reply,
                Err(error) if error.status() == Some(Status::Refused) && limit > 1 => return Ok(None),
                Err(error) => return Err(Setback::Later(format!("drive {drive}: {error}"))),
            };
            let answer = DigestsAnswer::decode(&reply.head).map_err(|e| Setback::Later(e.to_string()))?;
            let held: Vec<ChunkKey> = answer.digests.iter().map(|(o, c, _)| (*o, *c)).collect();
            if !held.is_sorted() || held.first().is_some_and(|key| *key < from) {
                return Err(Setback::Later(format!("drive {drive}: digests that are not in order")));
            }
            if held.len() >= limit {
                let end = held.last().and_then(|key| after(*key));
                to = [to, end].into_iter().flatten().min();
            }
            keys.extend(held);
        }
        let keys = keys.into_iter().filter(|key| to.is_none_or(|to| *key < to)).collect();
        Ok(Some((keys, to)))
    }

    /// Scrubs one chunk: looks until there is nothing more to do about it.
    async fn scrub_chunk(&self, scrub: &Scrub, key: ChunkKey) -> Result<(), Setback> {
        if scrub.finished.borrow().contains(&key) {
            return Ok(());
        }
        let mut complete = vec![Version::ZERO; CHUNK_BLOCKS as usize];
        let mut judged = Vec::new();
        for look in 0..LOOKS_MAX {
            if look > 0 {
                sleep(LOOK_AGAIN).await;
            }
            self.pace(scrub).await;
            let (_, entry) = scrub.stands()?;
            let holdings = self.verify_everywhere(scrub, entry, key).await?;
            scrub.stands()?;
            judged = judge(key.1, &holdings, &complete);
            note_complete(key.1, &holdings, &mut complete);
            if judged.iter().all(|run| !run.calls_for_a_look(look)) {
                break;
            }
            if self.is_being_deleted(key) {
                // Its members drop the blocks one after another, and nothing must come back.
                judged.clear();
                break;
            }
            for run in judged.iter().filter(|run| matches!(run.is, Is::Damaged | Is::Stale)) {
                self.write_anew(scrub, key.0, key.1, run, &holdings).await;
            }
        }
        scrub.conclude(key, &judged);
        scrub.finished.borrow_mut().insert(key);
        Ok(())
    }

    /// Puts the newest version of a run on the write set once more. What does not succeed shows at the next look.
    async fn write_anew(
        &self,
        scrub: &Scrub,
        object: ObjectId,
        chunk: ChunkIndex,
        run: &Judged,
        holdings: &[(DriveId, Vec<Extent>)],
    ) {
        let Ok((member, entry)) = scrub.stands() else { return };
        for newest in written_runs(run.range, holdings) {
            if let Err(text) = self.put_again(member, entry, object, &newest).await {
                tracing::debug!(group = %entry.id, %object, range = %newest.range, text, "scrub: not put");
                continue;
            }
            let places = newest.range.blocks().flat_map(|b| run.drives.iter().map(move |d| (b, *d)));
            let mut written = scrub.written.borrow_mut();
            let written = written.entry((object, chunk)).or_default();
            match run.is {
                Is::Damaged => written.healed.extend(places),
                _ => written.missed.extend(places),
            }
        }
    }

    /// Waits until the next chunk may be read: the throttle's turn, and beside clients the rate of a drive.
    async fn pace(&self, scrub: &Scrub) {
        if self.throttle.clients_are_there() {
            let start = scrub.next.get().max(now());
            let bytes = u64::from(CHUNK_BLOCKS) * BLOCK_SIZE as u64;
            scrub.next.set(start + Duration::from_nanos(bytes * 1_000_000_000 / BYTES_PER_SECOND));
            sleep_until(start).await;
        }
        self.throttle.turn(Work::Verify, Duration::MAX).await;
    }

    /// Has every in-sync member read and verify the chunk.
    async fn verify_everywhere(
        &self,
        scrub: &Scrub,
        entry: &Group,
        key: ChunkKey,
    ) -> Result<Vec<(DriveId, Vec<Extent>)>, Setback> {
        let asked = join_all(entry.read_set().map(|drive| async move {
            // The leader has had its own turn already.
            let asked = ask(entry, drive, key, 1, drive == scrub.order.drive);
            let head = |protocol| asked.encode(protocol);
            (drive, self.call_drive(drive, Kind::Verify, head, vec![]).await)
        }))
        .await;
        let mut holdings = Vec::with_capacity(asked.len());
        for (drive, reply) in asked {
            let reply = reply.map_err(|error| Setback::Later(format!("drive {drive}: {error}")))?;
            let answer = ReadAnswer::decode(&reply.head).map_err(|e| Setback::Later(e.to_string()))?;
            let mut next = key.1.range().first;
            for extent in &answer.extents {
                if extent.range.first != next || extent.range.end() > key.1.range().end() {
                    return Err(Setback::Later(format!(
                        "drive {drive}: extents that do not cover the chunk"
                    )));
                }
                next = extent.range.end();
            }
            if next != key.1.range().end() {
                return Err(Setback::Later(format!("drive {drive}: extents that do not cover the chunk")));
            }
            let data = answer.extents.iter().filter(|x| x.content != Content::Zero);
            let blocks: u64 = data.map(|x| u64::from(x.range.count)).sum();
            scrub.blocks_read.set(scrub.blocks_read.get() + blocks);
            holdings.push((drive, answer.extents));
        }
        Ok(holdings)
    }

    /// Whether the chunk's volume is being deleted, or gone, by the newest map.
    fn is_being_deleted(&self, key: ChunkKey) -> bool {
        let map = self.map();
        map.is_some_and(|m| {
            m.volumes.get(&key.0.owner().volume()).is_none_or(|v| v.state == VolumeState::Deleting)
        })
    }
}

fn ask(entry: &Group, drive: DriveId, key: ChunkKey, limit: usize, is_urgent: bool) -> PeerRequest {
    PeerRequest {
        drive,
        group: entry.id,
        epoch: entry.epoch,
        object: key.0,
        chunk: key.1,
        blocks: key.1.range(),
        limit: limit as u16,
        is_urgent,
        scope: Scope::default(),
    }
}

/// How one block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Is {
    /// Every member holds the same, and can read it.
    Good,
    /// Versions differ: a write is on its way, as far as can be told.
    InFlight,
    /// The newest version is damaged on these drives, and intact on another one.
    Damaged,
    /// Nobody can read the newest version.
    Lost,
    /// These drives lack a version that an earlier look showed complete.
    Stale,
    /// One version has different data.
    Different,
}

/// A run of blocks that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Judged {
    range: BlockRange,
    is: Is,
    drives: BTreeSet<DriveId>,
}

impl Judged {
    /// Whether another look is of use: what is lost, or different, is looked at twice, because a write may just
    /// replace it.
    fn calls_for_a_look(&self, look: u32) -> bool {
        match self.is {
            Is::Good => false,
            Is::InFlight | Is::Damaged | Is::Stale => true,
            Is::Lost | Is::Different => look == 0,
        }
    }
}

/// Judges each block of a chunk by what the members hold, and by the versions that an earlier look showed complete.
fn judge(chunk: ChunkIndex, holdings: &[(DriveId, Vec<Extent>)], complete: &[Version]) -> Vec<Judged> {
    let mut runs: Vec<Judged> = Vec::new();
    let mut at = vec![0; holdings.len()];
    for block in chunk.range().blocks() {
        for (i, (_, extents)) in holdings.iter().enumerate() {
            while extents[at[i]].range.end() <= block {
                at[i] += 1;
            }
        }
        let held = holdings.iter().zip(&at).map(|((drive, extents), at)| (*drive, &extents[*at]));
        let (is, drives) = judge_block(block, held, complete[(block - chunk.range().first) as usize]);
        push(&mut runs, block, is, drives);
    }
    runs
}

fn judge_block<'a>(
    block: u32,
    held: impl Iterator<Item = (DriveId, &'a Extent)> + Clone,
    complete: Version,
) -> (Is, BTreeSet<DriveId>) {
    let newest = held.clone().map(|(_, x)| x.version).max().unwrap_or(Version::ZERO);
    let having = |is: &dyn Fn(&Extent) -> bool| -> BTreeSet<DriveId> {
        held.clone().filter(|(_, x)| is(x)).map(|(drive, _)| drive).collect()
    };
    let what = |x: &Extent| (x.content, x.crcs.get((block - x.range.first) as usize).copied());
    let mut intact = held.clone().filter(|(_, x)| x.version == newest && x.content != Content::Damaged);
    let damaged = having(&|x| x.version == newest && x.content == Content::Damaged);
    let Some((_, first)) = intact.next() else { return (Is::Lost, damaged) };
    if intact.any(|(_, x)| what(x) != what(first)) {
        return (Is::Different, having(&|x| x.version == newest));
    }
    if !damaged.is_empty() {
        return (Is::Damaged, damaged);
    }
    let missed = having(&|x| x.version < complete);
    match having(&|x| x.version < newest).is_empty() {
        true => (Is::Good, BTreeSet::new()),
        false if missed.is_empty() => (Is::InFlight, BTreeSet::new()),
        false => (Is::Stale, missed),
    }
}

/// Notes the versions that some member holds and does not count as open: they are complete, so that from now on
/// every member must hold them, or newer ones.
fn note_complete(chunk: ChunkIndex, holdings: &[(DriveId, Vec<Extent>)], complete: &mut [Version]) {
    for extent in holdings.iter().flat_map(|(_, extents)| extents).filter(|x| !x.open) {
        for block in extent.range.blocks() {
            let known = &mut complete[(block - chunk.range().first) as usize];
            *known = extent.version.max(*known);
        }
    }
}

/// Blocks and drives as runs.
fn runs_of(places: &BTreeSet<(u32, DriveId)>, is: Is) -> Vec<Judged> {
    let mut by_block: BTreeMap<u32, BTreeSet<DriveId>> = BTreeMap::new();
    for (block, drive) in places {
        by_block.entry(*block).or_default().insert(*drive);
    }
    let mut runs = Vec::new();
    for (block, drives) in by_block {
        push(&mut runs, block, is, drives);
    }
    runs
}

fn push(runs: &mut Vec<Judged>, block: u32, is: Is, drives: BTreeSet<DriveId>) {
    match runs.last_mut() {
        Some(run) if run.is == is && run.drives == drives && run.range.end() == block => run.range.count += 1,
        _ => runs.push(Judged { range: BlockRange::one(block), is, drives }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::SessionSlot;

    const CHUNK: ChunkIndex = ChunkIndex(1);
    const FIRST_BLOCK: u32 = CHUNK_BLOCKS;

    /// What a drive holds in the chunk: the first blocks as given, version and content each; the rest never written.
    fn holds(drive: u128, blocks: &[(u64, bool, Content, u32)]) -> (DriveId, Vec<Extent>) {
        let mut extents: Vec<Extent> = Vec::new();
        for (i, (counter, open, content, crc)) in blocks.iter().enumerate() {
            extents.push(Extent {
                range: BlockRange::one(FIRST_BLOCK + i as u32),
                version: Version::new(*counter, SessionSlot(1)),
                open: *open,
                content: *content,
                crcs: if *content == Content::Data { vec![*crc] } else { vec![] },
            });
        }
        let rest = CHUNK_BLOCKS - blocks.len() as u32;
        extents.push(Extent {
            range: BlockRange::new(FIRST_BLOCK + blocks.len() as u32, rest),
            version: Version::ZERO,
            open: false,
            content: Content::Zero,
            crcs: vec![],
        });
        (DriveId(drive), extents)
    }

    fn judged(holdings: &[(DriveId, Vec<Extent>)], complete: &[Version]) -> Vec<(u32, Is, Vec<u128>)> {
        let runs = judge(CHUNK, holdings, complete);
        assert_eq!(runs.iter().map(|r| r.range.count).sum::<u32>(), CHUNK_BLOCKS);
        let bad = runs.into_iter().filter(|r| r.is != Is::Good);
        bad.flat_map(|r| {
            let drives: Vec<u128> = r.drives.iter().map(|d| d.0).collect();
            r.range.blocks().map(|b| (b - FIRST_BLOCK, r.is, drives.clone())).collect::<Vec<_>>()
        })
        .collect()
    }

    #[test]
    fn each_block_is_judged_by_its_newest_version() {
        use Content::*;
        let a = holds(
            1,
            &[
                (5, false, Data, 1),
                (5, false, Damaged, 0),
                (5, false, Damaged, 0),
                (5, false, Damaged, 0),
                (6, true, Data, 1),
                (5, false, Data, 1),
                (5, false, Zero, 0),
            ],
        );
        let b = holds(
            2,
            &[
                (5, false, Data, 1),
                (5, false, Data, 1),
                (5, false, Damaged, 0),
                (4, false, Data, 1),
                (5, false, Damaged, 0),
                (5, false, Data, 2),
                (5, false, Zero, 0),
            ],
        );
        let none = vec![Version::ZERO; CHUNK_BLOCKS as usize];
        let expected = [
            (1, Is::Damaged, vec![1]),
            (2, Is::Lost, vec![1, 2]),
            // What is damaged is the newest: the older one does not count.
            (3, Is::Lost, vec![1]),
            // Its damage is about to be replaced.
            (4, Is::InFlight, vec![]),
            (5, Is::Different, vec![1, 2]),
        ];
        assert_eq!(judged(&[a, b], &none), expected);
    }

    #[test]
    fn a_member_lacks_a_write_only_if_it_was_complete_before() {
        use Content::Data;
        let ahead = holds(1, &[(7, false, Data, 1), (7, true, Data, 1), (9, true, Data, 1)]);
        let behind = holds(2, &[(6, false, Data, 2), (6, false, Data, 2), (8, true, Data, 2)]);
        let holdings = [ahead, behind];
        let mut complete = vec![Version::ZERO; CHUNK_BLOCKS as usize];
        let in_flight: Vec<_> = (0..3).map(|b| (b, Is::InFlight, vec![])).collect();
        assert_eq!(judged(&holdings, &complete), in_flight, "it may have been written between the two reads");
        note_complete(CHUNK, &holdings, &mut complete);
        let expected = [(0, Is::Stale, vec![2]), (1, Is::InFlight, vec![]), (2, Is::InFlight, vec![])];
        assert_eq!(judged(&holdings, &complete), expected);
    }
}
