//! The write protocol and the read path of mirror groups: rules R3 to R9 as the client follows them.
//!
//! A write picks a version, goes to the whole write set at once, and is complete when all have answered and
//! one of them took it. A read asks one in-sync replica, and is done in that one round trip unless a write to
//! the block is in flight or its writer died; then it finishes that write before it returns it.

use crate::error::ClientError;
use crate::session::{Ended, Operation, Session};
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;
use weft_rpc::{Body, CallError, Reply, slow_request};
use weft_rt::spawn;
use weft_rt::sync::{Either, join_all, race};
use weft_rt::{Buf, Instant, Sleep, now, random_below, sleep, sleep_until};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::limits::{REQUEST_BLOCKS_MAX, REQUEST_WAITS_MAX};
use weft_types::{BLOCK_SIZE, BlockRange, DriveId, Group, GroupId, Lba, ObjectId, Version, with_causes};
use weft_wire::data::{
    Content, DataRequest, Extent, Purpose, ReadAnswer, Scope, Verdict, WriteAnswer, is_intact,
};
use weft_wire::newest::{Newest, newest_runs};
use weft_wire::{Kind, Status, control};

/// First and longest pause before a replica that could not serve is asked again.
const RETRY_FIRST: Duration = Duration::from_millis(2);
const RETRY_LONGEST: Duration = Duration::from_millis(100);

/// How long one replica may take over a read, from when the request was sent, before another in-sync one is asked
/// beside it: many times what a busy drive needs, short beside an eviction. Doubles with each one asked.
const READ_PATIENCE: Duration = Duration::from_millis(500);

/// The most of it.
const READ_PATIENCE_LONGEST: Duration = Duration::from_secs(16);

/// How many times that long a read may wait for its turn on the connection: queues of this machine's own making are
/// no sign of a slow replica, but a connection whose requests all hang must not hold it for ever.
const TURN_PATIENCE: u32 = 4;

/// How long a full drive is asked before the others of its group, so that a write which it refuses has
/// touched none of them.
const FULL_MEMORY: Duration = Duration::from_secs(2);

/// Longest pause before a write with a strange end is tried to be settled again.
const BURY_LONGEST: Duration = Duration::from_secs(5);

/// What a write puts in its blocks.
#[derive(Clone)]
pub(crate) enum Payload {
    /// Data, whole blocks, with the CRC-32C of each.
    Data { bufs: Vec<Buf>, crcs: Vec<u32> },
    /// Zeroes: the blocks' places are given back.
    Zero,
}

impl Payload {
    /// The payload of the blocks `part` out of those of `whole`.
    fn slice(&self, whole: BlockRange, part: BlockRange) -> Payload {
        match self {
            Payload::Zero => Payload::Zero,
            _ if whole == part => self.clone(),
            Payload::Data { bufs, crcs } => {
                let first = (part.first - whole.first) as usize;
                Payload::Data {
                    bufs: cut(bufs, first * BLOCK_SIZE, part.bytes()),
                    crcs: crcs[first..first + part.count as usize].to_vec(),
                }
            }
        }
    }
}

/// `len` bytes from `start` of the buffers taken as one.
pub(crate) fn cut(bufs: &[Buf], start: usize, len: usize) -> Vec<Buf> {
    let (mut skip, mut left) = (start, len);
    let mut out = Vec::with_capacity(bufs.len().min(2));
    for buf in bufs {
        if left == 0 {
            break;
        }
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        let n = left.min(buf.len() - skip);
        out.push(buf.slice(skip..skip + n));
        (skip, left) = (0, left - n);
    }
    assert_eq!(left, 0, "the buffers are shorter than the range");
    out
}

/// Blocks of one object, in the group that holds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Where {
    pub(crate) group: GroupId,
    pub(crate) object: ObjectId,
    pub(crate) range: BlockRange,
    /// The number of the request that they are part of, for the logs of all machines.
    pub(crate) request: u32,
}

impl Where {
    fn part(self, range: BlockRange) -> Where {
        Where { range, ..self }
    }
}

/// One request as every replica of the group gets it.
#[derive(Clone, Copy)]
struct Ask<'a> {
    kind: Kind,
    at: Where,
    /// What a write writes; zero for reads.
    version: Version,
    purpose: Purpose,
    crcs: &'a [u32],
    bufs: &'a [Buf],
    /// Of a client's own write.
    trail: Option<&'a Trail<'a>>,
    /// Where to note when the request was sent, if somebody wants to know.
    sent: Option<&'a Cell<Option<Instant>>>,
}

impl<'a> Ask<'a> {
    /// Data, or versions only.
    fn read(kind: Kind, at: Where, purpose: Purpose) -> Ask<'static> {
        Ask { kind, at, version: Version::ZERO, purpose, crcs: &[], bufs: &[], trail: None, sent: None }
    }

    fn write(
        at: Where,
        version: Version,
        payload: &'a Payload,
        purpose: Purpose,
        trail: Option<&'a Trail<'a>>,
    ) -> Ask<'a> {
        let (kind, crcs, bufs): (_, &[u32], &[Buf]) = match payload {
            Payload::Data { bufs, crcs } => (Kind::Write, crcs, bufs),
            Payload::Zero => (Kind::WriteZeroes, &[], &[]),
        };
        Ask { kind, at, version, purpose, crcs, bufs, trail, sent: None }
    }

    /// Whether the version that it writes may be on some replica, or may still get there.
    fn may_be_somewhere(&self) -> bool {
        self.trail.is_none_or(Trail::may_be_somewhere)
    }

    /// Whether nobody waits for the write any more, and it is nowhere.
    fn may_be_dropped(&self) -> bool {
        self.trail.is_some_and(|t| t.operation.is_given_up() && !t.may_be_somewhere())
    }
}

/// When the patience with a request ends.
struct Due<'a> {
    sent: &'a Cell<Option<Instant>>,
    begun: Instant,
    patience: Duration,
    /// The instant that the timer is set to.
    at: Instant,
    timer: Sleep,
}

impl<'a> Due<'a> {
    fn new(sent: &'a Cell<Option<Instant>>, patience: Duration) -> Due<'a> {
        let begun = now();
        let at = begun + patience * TURN_PATIENCE;
        Due { sent, begun, patience, at, timer: sleep_until(at) }
    }

    /// Ready when the patience has ended. Poll it after the request, which may have been sent only then.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let at = match self.sent.get() {
            Some(sent) => sent + self.patience,
            None => self.begun + self.patience * TURN_PATIENCE,
        };
        if at != self.at {
            (self.at, self.timer) = (at, sleep_until(at));
        }
        Pin::new(&mut self.timer).poll(cx)
    }
}

/// Where a client's version may have got to.
struct Trail<'a> {
    operation: &'a Operation,
    /// Requests that were sent and of which it is not certain that they did nothing: under way, lost, or answered
    /// with a failure that may have come after the fact.
    open: Cell<u32>,
    /// A replica has taken it, or answered that it holds something newer.
    judged: Cell<bool>,
}

impl Trail<'_> {
    fn may_be_somewhere(&self) -> bool {
        self.open.get() > 0 || self.judged.get()
    }

    fn sent(&self) {
        self.open.set(self.open.get() + 1);
    }

    /// Notes how a request that was sent has been answered.
    fn answered(&self, status: Status) {
        if status == Status::Ok {
            self.judged.set(true);
        }
        // The others may have begun: a store that failed or was closed does not say how far it got.
        let is_certain = matches!(
            status,
            Status::Ok
                | Status::NotServing
                | Status::StaleEpoch
                | Status::UnknownEpoch
                | Status::NoSpace
                | Status::Invalid
                | Status::VersionAhead
                | Status::DamagedOnTheWay
        );
        if is_certain {
            self.open.set(self.open.get() - 1);
        }
    }
}

/// How one exchange with one replica ended.
enum Attempt {
    Answer(DriveId, Reply),
    /// The group has a newer epoch: begin again with it.
    Changed,
    /// The drive is full; nothing was done.
    NoSpace,
    /// The version is too far above this clock of the target; nothing was done.
    Ahead(u64),
    /// It did not serve; it may later, or the map will change.
    Trouble(String),
}

/// How putting a version on the write set of one epoch ended.
enum Put {
    /// The whole write set has answered.
    Whole,
    Changed,
    /// Nobody has taken it, for want of space.
    NoSpace,
    /// Nobody has taken it: it is too far above this clock.
    Ahead(u64),
}

/// How a version ended.
enum Written {
    /// The whole write set has answered. Per block: whether some replica took it.
    Whole(Vec<bool>),
    /// It is nowhere: for want of space.
    NoSpace,
    /// It is nowhere: too far above this clock.
    Ahead(u64),
    /// It is nowhere, and nobody waits for it.
    Dropped,
}

impl Session {
    /// Writes blocks of one object. Complete means durable on the whole write set.
    ///
    /// Once begun it must run to its end: dropped, it holds the watermark for the rest of the session.
    pub(crate) async fn write_object(
        self: &Rc<Self>,
        mut operation: Operation,
        at: Where,
        payload: Payload,
    ) -> Result<(), ClientError> {
        let mut todo = vec![at.range];
        while let Some(run) = todo.pop() {
            let version = operation.next_version().await;
            let part = payload.slice(at.range, run);
            match self.put(&operation, at.part(run), version, &part).await {
                // R5: a block for which nobody said "applied" may have met a newer complete write. One that was
                // given up ends there: its next version would undo writes that were called after it had failed.
                Ok(Written::Whole(applied))
                    if !operation.is_given_up() && !mutated(Mutation::SupersededSuffices) =>
                {
                    if applied.contains(&false) {
                        mark(Path::WriteAgain);
                    }
                    todo.extend(runs_where(run, |block| !applied[(block - run.first) as usize]));
                }
                Ok(Written::Whole(_) | Written::Dropped) => mark(Path::GivenUp),
                Ok(Written::NoSpace) => {
                    operation.finish();
                    return Err(ClientError::NoSpace { group: at.group });
                }
                Ok(Written::Ahead(clock)) => {
                    self.note_trouble(at.group, "this machine's clock is far ahead of a target's");
                    operation.take_back(clock);
                    if !operation.is_given_up() {
                        todo.push(run);
                    }
                }
                Err(error) => {
                    drop((payload, part));
                    self.bury_later(operation, at);
                    return Err(error);
                }
            }
        }
        operation.finish();
        Ok(())
    }

    /// Puts one version on whatever the write set is, until the whole write set of one epoch has answered
    /// (R3, R6).
    async fn put(
        &self,
        operation: &Operation,
        at: Where,
        version: Version,
        payload: &Payload,
    ) -> Result<Written, ClientError> {
        let mut applied = vec![false; at.range.count as usize];
        let trail = Trail { operation, open: Cell::new(0), judged: Cell::new(false) };
        let ask = Ask::write(at, version, payload, Purpose::Client, Some(&trail));
        loop {
            let entry = self.entry(at.group).await?;
            if ask.may_be_dropped() {
                return Ok(Written::Dropped);
            }
            if mutated(Mutation::AppliedForgotten) {
                applied.fill(false);
            }
            let had_answers = applied.contains(&true);
            match self.put_once(&entry, &ask, &mut applied).await? {
                Put::Whole => {
                    if had_answers {
                        mark(Path::AnswerKept);
                    }
                    return Ok(Written::Whole(applied));
                }
                Put::Changed if mutated(Mutation::NewVersionAfterEpoch) => {
                    applied.fill(false);
                    return Ok(Written::Whole(applied));
                }
                Put::Changed => mark(Path::WriteInNextEpoch),
                Put::NoSpace => return Ok(Written::NoSpace),
                Put::Ahead(clock) => return Ok(Written::Ahead(clock)),
            }
        }
    }

    /// Puts one version on the write set of one epoch. Every answer of a wave counts, whatever the others of it
    /// met: an "applied" that were forgotten would let the write be called off while a replica holds it.
    async fn put_once(
        &self,
        entry: &Rc<Group>,
        ask: &Ask<'_>,
        applied: &mut [bool],
    ) -> Result<Put, ClientError> {
        let is_repair = ask.purpose == Purpose::Repair;
        let members: Vec<DriveId> = match is_repair && mutated(Mutation::RepairInSyncOnly) {
            true => entry.read_set().collect(),
            false => entry.write_set().collect(),
        };
        let (full, others): (Vec<_>, Vec<_>) = match self.full.borrow().is_empty() {
            true => (Vec::new(), members),
            false => members.into_iter().partition(|d| self.is_full(*d)),
        };
        let mut refused = Vec::new();
        for wave in [full, others] {
            if wave.is_empty() {
                continue;
            }
            let ends = join_all(wave.iter().map(|drive| self.deliver(entry, *drive, ask))).await;
            let (mut changed, mut ahead, mut error) = (false, None, None);
            for (drive, end) in wave.iter().zip(ends) {
                match end {
                    Ok(Attempt::Answer(_, reply)) => {
                        self.full.borrow_mut().remove(drive);
                        error = self.judge(ask.at, *drive, &reply, applied).err().or(error);
                    }
                    Ok(Attempt::Changed) => changed = true,
                    Ok(Attempt::NoSpace) => {
                        self.full.borrow_mut().insert(*drive, now() + FULL_MEMORY);
                        refused.push(*drive);
                    }
                    Ok(Attempt::Ahead(clock)) => ahead = Some(clock),
                    Ok(Attempt::Trouble(_)) if mutated(Mutation::SilenceIsAnAnswer) => {}
                    Ok(Attempt::Trouble(_)) => unreachable!("delivering goes on through trouble"),
                    Err(e) => error = Some(e),
                }
            }
            if let Some(error) = error {
                return Err(error);
            }
            // Once it may be somewhere, it has to be everywhere.
            let somewhere = ask.may_be_somewhere();
            match ahead {
                Some(clock) if !somewhere => return Ok(Put::Ahead(clock)),
                _ if changed => return Ok(Put::Changed),
                Some(_) => {
                    sleep(RETRY_LONGEST).await;
                    return Ok(Put::Changed);
                }
                None if !refused.is_empty() && !somewhere => return Ok(Put::NoSpace),
                None => {}
            }
        }
        for drive in refused {
            // Others took it, so this one must: a repair may use the reserve that a full drive keeps.
            let delivered = Box::pin(self.deliver_from_reserve(entry, drive, ask));
            match delivered.await? {
                Some(reply) => self.judge(ask.at, drive, &reply, applied)?,
                None => return Ok(Put::Changed),
            }
        }
        Ok(Put::Whole)
    }

    /// Finishes an operation of which a replica's strange answer left open where its version is: whoever holds the
    /// newest version of each block makes the whole write set hold it (R8), and nothing of this write is left to
    /// come. Until then it holds the watermark, and so its versions stay open to readers.
    fn bury_later(self: &Rc<Self>, operation: Operation, at: Where) {
        let session = self.clone();
        spawn(async move {
            let mut pause = RETRY_LONGEST;
            while session.bury(at).await.is_err() {
                if session.check().is_err() {
                    return;
                }
                sleep(pause).await;
                pause = (pause * 2).min(BURY_LONGEST);
            }
            operation.finish();
        });
    }

    /// Settles blocks on the whole write set. First every member of it answers something in the present epoch, here a
    /// settle of version 0, which changes nothing: what was sent in an earlier epoch and is still under way is refused
    /// from then on. What was sent in this epoch has been answered.
    async fn bury(&self, at: Where) -> Result<(), ClientError> {
        loop {
            let entry = self.entry(at.group).await?;
            let barrier = Ask::read(Kind::Settle, at, Purpose::Repair);
            let asked = join_all(entry.write_set().map(|drive| self.deliver(&entry, drive, &barrier))).await;
            let ends: Vec<Attempt> = asked.into_iter().collect::<Result<_, _>>()?;
            if !ends.iter().all(|end| matches!(end, Attempt::Answer(..))) {
                continue;
            }
            // Zeroes may be more blocks than versions are asked of at once.
            for part in at.range.parts(REQUEST_BLOCKS_MAX) {
                self.read_slowly(at.part(part)).await?;
            }
            return Ok(());
        }
    }

    /// Sends a write to a full replica as a repair, until there is room for it. `None`: begin again.
    async fn deliver_from_reserve(
        &self,
        entry: &Rc<Group>,
        drive: DriveId,
        ask: &Ask<'_>,
    ) -> Result<Option<Reply>, ClientError> {
        let ask = Ask { purpose: Purpose::Repair, ..*ask };
        loop {
            match self.deliver(entry, drive, &ask).await? {
                Attempt::Answer(_, reply) => return Ok(Some(reply)),
                Attempt::Changed | Attempt::Ahead(_) => return Ok(None),
                Attempt::NoSpace => {
                    self.note_trouble(ask.at.group, &format!("drive {drive} is full"));
                    race(sleep(RETRY_LONGEST), self.fabric.epoch_changed(entry)).await;
                }
                Attempt::Trouble(_) => unreachable!("delivering goes on through trouble"),
            }
        }
    }

    /// Takes a replica's verdicts: which blocks it applied, and which versions it holds.
    fn judge(
        &self,
        at: Where,
        drive: DriveId,
        reply: &Reply,
        applied: &mut [bool],
    ) -> Result<(), ClientError> {
        // An answer with very many runs travels in the body.
        let bytes = reply.document();
        let answer = WriteAnswer::decode(bytes).map_err(|e| self.protocol(drive, &e))?;
        self.clock.saw(answer.clock);
        let mut next = at.range.first;
        for (range, verdict) in answer.verdicts {
            let fits = range.first == next && range.count > 0 && range.count <= at.range.end() - next;
            if !fits {
                return Err(self.protocol(drive, &"verdicts that do not cover the request"));
            }
            next = range.end();
            match verdict {
                Verdict::Applied => {
                    let first = (range.first - at.range.first) as usize;
                    applied[first..first + range.count as usize].fill(true);
                    if mutated(Mutation::BlocksJudgedTogether) {
                        applied.fill(true);
                    }
                }
                Verdict::Superseded(newest) => {
                    mark(Path::SupersededWrite);
                    if mutated(Mutation::RetryOnAnySuperseded) {
                        let first = (range.first - at.range.first) as usize;
                        applied[first..first + range.count as usize].fill(false);
                    }
                    self.saw_version(at.group, newest).map_err(|e| self.protocol(drive, &e))?;
                }
            }
        }
        if next != at.range.end() {
            return Err(self.protocol(drive, &"verdicts that do not cover the request"));
        }
        Ok(())
    }

    /// Reads blocks of one object: buffers that together are the range, in order.
    pub(crate) async fn read_object(&self, at: Where) -> Result<Vec<(BlockRange, Buf)>, ClientError> {
        let chosen = random_below(64) as usize;
        let mut attempts = 0;
        loop {
            let entry = self.entry(at.group).await?;
            let members: Vec<DriveId> = match mutated(Mutation::ReadsFromSyncing) {
                true => entry.write_set().collect(),
                false => entry.read_set().collect(),
            };
            let ask = Ask::read(Kind::Read, at, Purpose::Client);
            let end = match members[..] {
                [alone] => {
                    let begun = now();
                    let end = self.request(&entry, alone, &ask).await?;
                    self.note_wait(at, alone, begun);
                    end
                }
                _ => {
                    let preferred = match attempts {
                        0 => self.fabric.nearest(&members, chosen),
                        _ => (chosen + attempts) % members.len(),
                    };
                    let preferred = self.past_the_silent(&members, preferred);
                    self.request_of_any(&entry, &members, preferred, &ask).await?
                }
            };
            match end {
                Attempt::Answer(drive, reply) => {
                    let (mut parts, slow) = self.take_extents(at, drive, &reply)?;
                    for range in slow {
                        // Boxed so that the rare path does not swell the future of every read.
                        parts.extend(Box::pin(self.read_slowly(at.part(range))).await?);
                    }
                    parts.sort_by_key(|(range, _)| range.first);
                    return Ok(parts);
                }
                Attempt::Changed => {}
                Attempt::NoSpace | Attempt::Ahead(_) => unreachable!("a read has no such end"),
                Attempt::Trouble(text) => {
                    self.note_trouble(at.group, &text);
                    race(sleep(RETRY_FIRST), self.fabric.epoch_changed(&entry)).await;
                }
            }
            attempts += 1;
        }
    }

    /// The preferred member, or the next one that is not known to be silent.
    fn past_the_silent(&self, members: &[DriveId], preferred: usize) -> usize {
        let order = (0..members.len()).map(|i| (preferred + i) % members.len());
        { order }.find(|i| !self.fabric.is_silent(members[*i])).unwrap_or(preferred)
    }

    /// Asks one replica, and others beside it if it takes long: the first end but trouble.
    async fn request_of_any(
        &self,
        entry: &Rc<Group>,
        members: &[DriveId],
        preferred: usize,
        ask: &Ask<'_>,
    ) -> Result<Attempt, ClientError> {
        let sent = Cell::new(None);
        let first = Ask { sent: Some(&sent), ..*ask };
        let mut first = pin!(self.request(entry, members[preferred], &first));
        let mut due = Due::new(&sent, READ_PATIENCE);
        let ended = poll_fn(|cx| match first.as_mut().poll(cx) {
            Poll::Ready(end) => Poll::Ready(Some(end)),
            Poll::Pending => due.poll(cx).map(|()| None),
        });
        match ended.await {
            Some(end) => end,
            // Boxed so that the rare path does not swell the future of every read.
            None => Box::pin(self.hedge(entry, members, preferred, first, ask)).await,
        }
    }

    /// Asks the other replicas one after another beside the first, which goes on: where all are slow, it still has
    /// the shortest way to go. A request that is left behind gives its credit back when its answer comes.
    async fn hedge(
        &self,
        entry: &Rc<Group>,
        members: &[DriveId],
        preferred: usize,
        first: Pin<&mut impl Future<Output = Result<Attempt, ClientError>>>,
        ask: &Ask<'_>,
    ) -> Result<Attempt, ClientError> {
        type Running<'f> = Pin<Box<dyn Future<Output = Result<Attempt, ClientError>> + 'f>>;
        mark(Path::ReadElsewhere);
        let begun = now();
        self.note_trouble(ask.at.group, &format!("drive {} takes long to answer", members[preferred]));
        let order: Vec<usize> = (0..members.len()).map(|i| (preferred + i) % members.len()).collect();
        let sent: Vec<Cell<Option<Instant>>> = members.iter().map(|_| Cell::new(None)).collect();
        let asks: Vec<Ask<'_>> = sent.iter().map(|sent| Ask { sent: Some(sent), ..*ask }).collect();
        let mut running: Vec<(usize, Running<'_>)> = vec![(preferred, Box::pin(first))];
        let mut idle: VecDeque<usize> = order[1..].iter().copied().collect();
        let mut patience = READ_PATIENCE;
        loop {
            let mut due = None;
            if let Some(i) = idle.pop_front() {
                sent[i].set(None);
                patience = (patience * 2).min(READ_PATIENCE_LONGEST);
                running.push((i, Box::pin(self.request(entry, members[i], &asks[i]))));
                due = Some(Due::new(&sent[i], patience));
            }
            let ended = poll_fn(|cx| {
                for (at, (_, request)) in running.iter_mut().enumerate() {
                    if let Poll::Ready(end) = request.as_mut().poll(cx) {
                        return Poll::Ready(Some((at, end)));
                    }
                }
                match due.as_mut().filter(|_| !idle.is_empty()) {
                    Some(due) => due.poll(cx).map(|()| None),
                    None => Poll::Pending,
                }
            });
            let Some((at, end)) = ended.await else { continue };
            let (i, _) = running.swap_remove(at);
            // Those that have not answered by now made the request late; also the one that the next
            // epoch left behind.
            let is_answer = matches!(end, Ok(Attempt::Answer(..)));
            let silent = running.iter().map(|(i, _)| *i).chain((!is_answer).then_some(i));
            silent.for_each(|i| self.note_wait(ask.at, members[i], begun));
            match end {
                Ok(Attempt::Trouble(text)) if !running.is_empty() => {
                    self.note_trouble(ask.at.group, &text);
                    idle.push_back(i);
                    sleep(RETRY_FIRST).await;
                }
                end => return end,
            }
        }
    }

    /// Splits an answer into blocks that can be returned as they are, and runs that need the slow path.
    #[allow(clippy::type_complexity)]
    fn take_extents(
        &self,
        at: Where,
        drive: DriveId,
        reply: &Reply,
    ) -> Result<(Vec<(BlockRange, Buf)>, Vec<BlockRange>), ClientError> {
        let answer = ReadAnswer::decode(&reply.head).map_err(|e| self.protocol(drive, &e))?;
        self.clock.saw(answer.clock);
        let (mut parts, mut slow) = (Vec::with_capacity(answer.extents.len()), Vec::new());
        let (mut next, mut offset) = (at.range.first, 0);
        for extent in answer.extents {
            let range = extent.range;
            if range.first != next || range.count > at.range.end() - next {
                return Err(self.protocol(drive, &"extents that do not cover the request"));
            }
            next = range.end();
            let data = match extent.content {
                Content::Zero => Some(Buf::zeroes(range.bytes())),
                Content::Damaged => None,
                Content::Data => {
                    if reply.body.len() - offset < range.bytes() {
                        return Err(self.protocol(drive, &"less data than its extents say"));
                    }
                    let data = reply.body.slice(offset..offset + range.bytes());
                    offset += range.bytes();
                    let is_good = is_intact(&data, &extent.crcs) || mutated(Mutation::ClientTrustsData);
                    is_good.then_some(data)
                }
            };
            match data {
                Some(data) if !extent.open || mutated(Mutation::NoSlowPath) => parts.push((range, data)),
                _ => slow.push(range),
            }
        }
        if next != at.range.end() {
            return Err(self.protocol(drive, &"extents that do not cover the request"));
        }
        Ok((parts, slow))
    }

    /// R8, the slow path: finds the newest version of each block that some member can read, makes the whole write set
    /// hold it, then returns it.
    async fn read_slowly(&self, at: Where) -> Result<Vec<(BlockRange, Buf)>, ClientError> {
        mark(Path::SlowRead);
        let mut pause = RETRY_FIRST;
        'again: loop {
            let entry = self.entry(at.group).await?;
            let members: Vec<DriveId> = entry.read_set().collect();
            let ask = Ask::read(Kind::Versions, at, Purpose::Repair);
            let asked = join_all(members.iter().map(|drive| self.deliver(&entry, *drive, &ask))).await;
            let mut holdings = Vec::with_capacity(members.len());
            for (drive, end) in members.iter().zip(asked) {
                let Attempt::Answer(_, reply) = end? else { continue 'again };
                let answer = ReadAnswer::decode(&reply.head).map_err(|e| self.protocol(*drive, &e))?;
                self.clock.saw(answer.clock);
                holdings.push((*drive, answer.extents));
            }
            let mut parts = Vec::new();
            for newest in newest_runs(at.range, &holdings) {
                let says_so =
                    |(_, held): &&(DriveId, Vec<Extent>)| held.iter().any(|x| x.version == newest.version);
                let holder = holdings.iter().find(says_so).map_or(members[0], |(drive, _)| *drive);
                self.saw_version(at.group, newest.version).map_err(|e| self.protocol(holder, &e))?;
                match self.settle_run(&entry, at.part(newest.range), &newest).await? {
                    Some(data) => parts.push((newest.range, data)),
                    None => {
                        // The block moved on, or the epoch did: look again.
                        mark(Path::SlowReadAgain);
                        sleep(pause).await;
                        pause = (pause * 2).min(RETRY_LONGEST);
                        continue 'again;
                    }
                }
            }
            return Ok(parts);
        }
    }

    /// Fetches the newest version of a run, puts it wherever it is missing, and tells all that it is settled.
    /// `None`: begin again.
    async fn settle_run(
        &self,
        entry: &Rc<Group>,
        at: Where,
        newest: &Newest,
    ) -> Result<Option<Buf>, ClientError> {
        let (payload, data) = match newest.content {
            Content::Zero => (Payload::Zero, Buf::zeroes(at.range.bytes())),
            _ => match self.fetch(entry, at, newest).await? {
                Some((data, crcs)) => (Payload::Data { bufs: vec![data.clone()], crcs }, data),
                None => return Ok(None),
            },
        };
        let whole = entry.write_set().all(|drive| newest.intact_on.contains(&drive))
            || mutated(Mutation::NoWriteBack);
        if mutated(Mutation::SettledBeforePut) {
            self.tell_settled(entry, at, newest.version).await;
        }
        if !whole && newest.version != Version::ZERO {
            mark(Path::RepairByReader);
            let mut applied = vec![false; at.range.count as usize];
            let ask = Ask::write(at, newest.version, &payload, Purpose::Repair, None);
            let put = self.put_once(entry, &ask, &mut applied).await?;
            if !matches!(put, Put::Whole) {
                return Ok(None);
            }
        }
        if newest.version != Version::ZERO {
            self.tell_settled(entry, at, newest.version).await;
        }
        Ok(Some(data))
    }

    /// Tells all that a version is on the whole write set: only spares the next reader the slow path, so it may get
    /// lost.
    async fn tell_settled(&self, entry: &Group, at: Where, version: Version) {
        for drive in entry.write_set() {
            if let Ok(link) = self.fabric.link(drive).await {
                let note = Ask { version, ..Ask::read(Kind::Settle, at, Purpose::Repair) };
                let note = self.head(entry, drive, &note);
                link.cast(Kind::Settle, &note.encode(link.protocol(), &[]));
            }
        }
    }

    /// Reads a run in its newest version from a replica that holds it. `None`: it has moved on.
    async fn fetch(
        &self,
        entry: &Rc<Group>,
        at: Where,
        newest: &Newest,
    ) -> Result<Option<(Buf, Vec<u32>)>, ClientError> {
        let ask = Ask::read(Kind::Read, at, Purpose::Repair);
        for drive in &newest.intact_on {
            let end = self.deliver(entry, *drive, &ask).await?;
            let Attempt::Answer(_, reply) = end else { return Ok(None) };
            let answer = ReadAnswer::decode(&reply.head).map_err(|e| self.protocol(*drive, &e))?;
            if answer.extents.iter().any(|x| x.version != newest.version) {
                return Ok(None);
            }
            let crcs: Vec<u32> = answer.extents.iter().flat_map(|x| x.crcs.iter().copied()).collect();
            let complete = crcs.len() == at.range.count as usize && reply.body.len() == at.range.bytes();
            if complete && is_intact(&reply.body, &crcs) {
                return Ok(Some((reply.body, crcs)));
            }
        }
        if !newest.intact_on.is_empty() {
            // Found damaged only now: the next look at the versions will show it.
            return Ok(None);
        }
        let block = Lba(u64::from(at.range.first));
        Err(ClientError::Damaged { group: at.group, object: at.object.to_string(), block })
    }

    /// Asks one in-sync replica what a run of blocks holds.
    pub(crate) async fn contents(&self, at: Where) -> Result<Vec<Extent>, ClientError> {
        loop {
            let entry = self.entry(at.group).await?;
            let members: Vec<DriveId> = entry.read_set().collect();
            let drive = members[random_below(members.len() as u64) as usize];
            let ask = Ask::read(Kind::Versions, at, Purpose::Client);
            let end = self.deliver(&entry, drive, &ask).await?;
            if let Attempt::Answer(_, reply) = end {
                return Ok(ReadAnswer::decode(&reply.head).map_err(|e| self.protocol(drive, &e))?.extents);
            }
        }
    }

    /// The group's newest entry, once it has a replica that serves reads.
    async fn entry(&self, group: GroupId) -> Result<Rc<Group>, ClientError> {
        loop {
            let changed = self.fabric.changed.notified();
            self.check()?;
            if let Some(entry) = self.fabric.entry(group)
                && entry.read_set().next().is_some()
            {
                return Ok(entry);
            }
            changed.await;
        }
    }

    /// Sends one request to one replica, again and again, until it answers or the epoch changes.
    async fn deliver(
        &self,
        entry: &Rc<Group>,
        drive: DriveId,
        ask: &Ask<'_>,
    ) -> Result<Attempt, ClientError> {
        let (mut pause, begun) = (RETRY_FIRST, now());
        let is_write = ask.trail.is_some() && ask.purpose == Purpose::Client;
        let end = loop {
            match self.request(entry, drive, ask).await? {
                Attempt::Trouble(text) if is_write && mutated(Mutation::SilenceIsAnAnswer) => {
                    return Ok(Attempt::Trouble(text));
                }
                Attempt::Trouble(text) => self.note_trouble(ask.at.group, &text),
                Attempt::Ahead(_) if ask.may_be_somewhere() => {
                    // Another replica may have it: this one has to take it when its clock has come so far.
                    self.note_trouble(ask.at.group, &format!("the clock of drive {drive} is far behind"));
                }
                end => break end,
            }
            if ask.may_be_dropped() {
                break Attempt::Changed;
            }
            if let Either::Right(()) = race(sleep(pause), self.fabric.epoch_changed(entry)).await {
                break Attempt::Changed;
            }
            pause = (pause * 2).min(RETRY_LONGEST);
        };
        self.note_wait(ask.at, drive, begun);
        Ok(end)
    }

    /// Sends one request to one replica once. The request is given up when the group's epoch changes.
    async fn request(
        &self,
        entry: &Rc<Group>,
        drive: DriveId,
        ask: &Ask<'_>,
    ) -> Result<Attempt, ClientError> {
        self.check()?;
        let exchange = async {
            let link = self.fabric.link(drive).await?;
            if ask.may_be_dropped() {
                return Err("given up".to_owned());
            }
            let head = self.head(entry, drive, ask).encode(link.protocol(), ask.crcs);
            let lost = |e| format!("drive {drive}: {}", with_causes(&e));
            let body = Body::blocks(ask.bufs.to_vec());
            let answer = link.send(ask.kind, ask.at.request, &head, body).await.map_err(lost)?;
            ask.trail.inspect(|trail| trail.sent());
            ask.sent.inspect(|sent| sent.set(Some(now())));
            let answered = match answer.await {
                Ok(reply) => Ok(reply),
                Err(CallError::Refused { status, head }) => Err((status, head)),
                Err(error) => return Err(lost(error)),
            };
            let status = answered.as_ref().err().map_or(Status::Ok, |(status, _)| *status);
            ask.trail.inspect(|trail| trail.answered(status));
            Ok(answered)
        };
        let (status, head) = match race(exchange, self.fabric.epoch_changed(entry)).await {
            Either::Left(Ok(Ok(reply))) => return Ok(Attempt::Answer(drive, reply)),
            Either::Left(Ok(Err(refused))) => refused,
            Either::Left(Err(text)) => return Ok(Attempt::Trouble(text)),
            Either::Right(()) => return Ok(Attempt::Changed),
        };
        let trouble = |text: String| Ok(Attempt::Trouble(format!("drive {drive}: {text}")));
        match status {
            Status::NoSpace | Status::VersionAhead if matches!(ask.kind, Kind::Read | Kind::Versions) => {
                Err(self.protocol(drive, &format!("unexpected answer to a read: '{status}'")))
            }
            Status::NoSpace => Ok(Attempt::NoSpace),
            Status::VersionAhead => match WriteAnswer::decode(&head) {
                Ok(answer) => Ok(Attempt::Ahead(answer.clock)),
                Err(_) => trouble(status.to_string()),
            },
            Status::StaleEpoch => match control::decode::<Group>(&head) {
                Ok(newer) if newer.id == entry.id && newer.epoch > entry.epoch => {
                    mark(Path::EpochFromReplica);
                    self.fabric.adopt_entry(newer);
                    Ok(Attempt::Changed)
                }
                _ => trouble("stale epoch, without a newer entry".into()),
            },
            Status::UnknownEpoch => {
                Box::pin(self.teach(entry, drive)).await;
                trouble("learns of the epoch".into())
            }
            Status::StaleGeneration => {
                mark(Path::SessionFenced);
                self.end(Ended::Fenced);
                self.check().map(|()| Attempt::Changed)
            }
            Status::SessionOver => {
                mark(Path::SessionOver);
                self.end(Ended::Over);
                self.check().map(|()| Attempt::Changed)
            }
            _ if status.is_retryable() || status == Status::NotFound || status == Status::Failed => {
                trouble(format!("{status} {}", String::from_utf8_lossy(&head)))
            }
            _ => Err(self.protocol(drive, &format!("{status}: {}", String::from_utf8_lossy(&head)))),
        }
    }

    /// Gives a target the group's entry, which it does not know yet (R1).
    async fn teach(&self, entry: &Group, drive: DriveId) {
        if let Ok(link) = self.fabric.link(drive).await {
            mark(Path::EpochTaught);
            let _ = link.call(Kind::AdoptEntry, &control::encode(entry), Body::none()).await;
        }
    }

    fn head(&self, entry: &Group, drive: DriveId, ask: &Ask<'_>) -> DataRequest {
        DataRequest {
            drive,
            group: ask.at.group,
            epoch: entry.epoch,
            generation: self.generation,
            session: self.id,
            watermark: self.carries_watermark(ask.at.group, drive),
            object: ask.at.object,
            range: ask.at.range,
            version: ask.version,
            purpose: ask.purpose,
            slot: self.slot,
            scope: Scope::default(),
        }
    }

    fn is_full(&self, drive: DriveId) -> bool {
        self.full.borrow().get(&drive).is_some_and(|until| now() < *until)
    }

    /// Notes for the log that a request has waited for this drive since then, if that is what made
    /// it slow: of several, the one that it has waited for longest.
    fn note_wait(&self, at: Where, drive: DriveId, since: Instant) {
        let waited = since.elapsed();
        if waited < slow_request() {
            return;
        }
        let mut waits = self.waits.borrow_mut();
        let longest = waits.entry(at.request).or_insert((drive, waited));
        if longest.1 < waited {
            *longest = (drive, waited);
        }
        // Requests that nobody waits for any more tell nothing, and leave theirs behind.
        if waits.len() > REQUEST_WAITS_MAX {
            waits.pop_first();
        }
    }

    fn note_trouble(&self, group: GroupId, text: &str) {
        tracing::debug!(volume = self.volume_name, %group, text, "a replica does not serve");
        self.trouble.borrow_mut().insert(group, text.to_owned());
    }

    /// An answer that breaks the protocol, of the target that serves this drive.
    fn protocol(&self, drive: DriveId, what: &dyn std::fmt::Display) -> ClientError {
        let map = self.fabric.map();
        let addr = map.drive_addr(drive).unwrap_or("an unknown address").to_owned();
        ClientError::Protocol { addr, drive, message: what.to_string() }
    }
}

/// The runs of blocks for which the condition holds.
fn runs_where(range: BlockRange, condition: impl Fn(u32) -> bool) -> Vec<BlockRange> {
    let mut runs: Vec<BlockRange> = Vec::new();
    for block in range.blocks().filter(|b| condition(*b)) {
        match runs.last_mut() {
            Some(run) if run.end() == block => run.count += 1,
            _ => runs.push(BlockRange::one(block)),
        }
    }
    runs
}
