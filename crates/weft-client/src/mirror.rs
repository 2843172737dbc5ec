//! The write protocol and the read path of mirror groups: rules R3 to R9 as the client follows them.
//!
//! A write picks a version, goes to the whole write set at once, and is complete when all have answered and
//! one of them took it. A read asks one in-sync replica, and is done in that one round trip unless a write to
//! the block is in flight or its writer died; then it finishes that write before it returns it.

use crate::error::ClientError;
use crate::exchange::{Answer, Ask, Exchange, Outcome, RETRY_FIRST, RETRY_LONGEST, Setback, Trail};
use crate::group_io::{GroupIo, Lister, Place};
use crate::listing::united;
use crate::mirror_rules::{
    forget_answers, gets_a_new_version, is_everywhere, is_good, is_settled, is_told_too_early, note_verdict,
    readable, superseded, writable,
};
use crate::payload::Payload;
use crate::session::Session;
use crate::versions::Operation;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::{join_all, race};
use weft_rt::{Buf, Instant, now, random_below, sleep, spawn};
use weft_rules::{Path, mark};
use weft_types::limits::REQUEST_BLOCKS_MAX;
use weft_types::{BlockRange, DriveId, Group, GroupId, Lba, ObjectId, Version};
use weft_wire::Kind;
use weft_wire::data::{Content, Extent, Purpose, ReadAnswer, Verdict, WriteAnswer, is_intact};
use weft_wire::listing::ListAnswer;
use weft_wire::newest::{Newest, newest_runs};

/// How long a full drive is asked before the others of its group, and from then on until it takes data: so a
/// write that it refuses has touched none of them.
const FULL_MEMORY: Duration = Duration::from_secs(2);

/// Longest pause before a write with a strange end is tried to be settled again.
const SETTLE_LONGEST: Duration = Duration::from_secs(5);

/// Blocks with their data, and runs of blocks that need the slow path.
type Taken = (Vec<(BlockRange, Buf)>, Vec<BlockRange>);

/// The groups of a session that are mirrored.
pub(crate) struct Mirror {
    session: Rc<Session>,
    /// Drives that refused a write for want of space, and until when at least they are asked first.
    full: RefCell<BTreeMap<DriveId, Instant>>,
    /// Whether writes may take space that is kept for the names of files.
    pub(crate) takes_reserve: Cell<bool>,
    /// As what a write goes to a full replica when others have taken it.
    purpose_if_full: Purpose,
}

impl GroupIo for Mirror {
    fn session(&self) -> &Rc<Session> {
        &self.session
    }

    async fn write(
        self: &Rc<Self>,
        mut operation: Operation,
        at: Place,
        payload: Payload,
    ) -> Result<(), ClientError> {
        let mut todo = vec![at.range];
        while let Some(run) = todo.pop() {
            let Some(version) = operation.next_version().await else {
                mark(Path::GivenUp);
                continue;
            };
            let part = payload.slice(at.range, run);
            match self.put(&operation, at.part(run), version, &part).await {
                Ok(Outcome::Done(applied)) => todo.extend(superseded(&operation, run, &applied)),
                Ok(Outcome::Dropped) => mark(Path::GivenUp),
                // Only by a switch: a version outlives its epoch (R6).
                Ok(Outcome::Changed) => todo.push(run),
                Ok(Outcome::NoSpace) => {
                    operation.finish();
                    return Err(ClientError::NoSpace { group: at.group });
                }
                Ok(Outcome::Ahead(clock)) => {
                    self.session.note_trouble(at.group, "this machine's clock is far ahead of a target's");
                    operation.take_back(clock);
                    if !operation.is_given_up() {
                        todo.push(run);
                    }
                }
                Err(error) => {
                    drop((payload, part));
                    operation.fail();
                    self.settle_later(operation, at);
                    return Err(error);
                }
            }
        }
        operation.finish();
        Ok(())
    }

    async fn read(&self, at: Place) -> Result<Vec<(BlockRange, Buf)>, ClientError> {
        let session = &self.session;
        let chosen = random_below(64) as usize;
        let mut attempts = 0;
        loop {
            let entry = self.entry(at.group).await?;
            let members = readable(&entry);
            let ask = Ask::read(Kind::Read, at, Purpose::Client);
            let exchange = Exchange { session, entry: &entry, ask: &ask };
            let outcome = match members[..] {
                [alone] => {
                    let begun = now();
                    let outcome = exchange.request(alone).await;
                    session.note_wait(at, alone, begun);
                    outcome
                }
                _ => {
                    let preferred = match attempts {
                        0 => session.fabric.nearest(&members, chosen),
                        _ => (chosen + attempts) % members.len(),
                    };
                    let preferred = session.fabric.past_the_silent(&members, preferred);
                    exchange.request_of_any(&members, preferred).await
                }
            };
            match outcome {
                Ok(Outcome::Done(answer)) => {
                    let (mut parts, slow) = self.take_extents(at, &answer)?;
                    for range in slow {
                        // Boxed so that the rare path does not swell the future of every read.
                        parts.extend(Box::pin(self.read_slowly(at.part(range))).await?);
                    }
                    parts.sort_by_key(|(range, _)| range.first);
                    return Ok(parts);
                }
                Ok(_) => {}
                Err(Setback::Later(text)) => {
                    session.note_trouble(at.group, &text);
                    race(sleep(RETRY_FIRST), session.fabric.epoch_changed(&entry)).await;
                }
                Err(Setback::Fatal(error)) => return Err(error),
            }
            attempts += 1;
        }
    }

    async fn contents(&self, at: Place) -> Result<Vec<Extent>, ClientError> {
        loop {
            let entry = self.entry(at.group).await?;
            let members: Vec<DriveId> = entry.read_set().collect();
            let drive = members[random_below(members.len() as u64) as usize];
            let ask = Ask::read(Kind::Versions, at, Purpose::Client);
            if let Outcome::Done(answer) = self.exchange(&entry, &ask).deliver(drive).await? {
                return Ok(self.decode(&answer)?.extents);
            }
        }
    }

    async fn list(&self, at: Place, last: ObjectId, by: Lister) -> Result<ListAnswer, ClientError> {
        let ask = Ask::list(at, last);
        'again: loop {
            let entry = self.entry(at.group).await?;
            let members: Vec<DriveId> = match by {
                Lister::One => {
                    let members: Vec<DriveId> = entry.read_set().collect();
                    vec![members[random_below(members.len() as u64) as usize]]
                }
                Lister::All => entry.write_set().collect(),
            };
            let exchange = self.exchange(&entry, &ask);
            let asked = join_all(members.iter().map(|drive| exchange.deliver(*drive))).await;
            let mut lists = Vec::with_capacity(members.len());
            for end in asked {
                let Outcome::Done(answer) = end? else { continue 'again };
                let list = ListAnswer::decode(&answer.reply.head);
                let list = list.map_err(|error| self.session.protocol(answer.drive, &error))?;
                let is_inside = |(object, _): &(ObjectId, BlockRange)| (at.object..=last).contains(object);
                let place = (at.object, at.range.first);
                let goes_on = list.next.is_none_or(|next| next > place && next.0 <= last);
                if !goes_on || !list.runs.iter().all(is_inside) {
                    return Err(self.session.protocol(answer.drive, &"a list of something else"));
                }
                lists.push(list);
            }
            return Ok(united(lists));
        }
    }
}

impl Mirror {
    pub(crate) fn new(session: Rc<Session>) -> Rc<Mirror> {
        let map = session.fabric.map();
        let is_of_shard = map.volumes.get(&session.volume).is_some_and(|v| v.system_of().is_some());
        let purpose_if_full = if is_of_shard { Purpose::Reserve } else { Purpose::Repair };
        let (full, takes_reserve) = Default::default();
        Rc::new(Mirror { session, full, takes_reserve, purpose_if_full })
    }

    /// Puts one version on whatever the write set is, until the whole write set of one epoch has answered
    /// (R3, R6). Done: per block, whether some replica took it.
    async fn put(
        &self,
        operation: &Operation,
        at: Place,
        version: Version,
        payload: &Payload,
    ) -> Result<Outcome<Vec<bool>>, ClientError> {
        let mut applied = vec![false; at.range.count as usize];
        let trail = Trail::new(operation);
        let purpose = if self.takes_reserve.get() { Purpose::Reserve } else { Purpose::Client };
        let ask = Ask::write(at, version, payload, purpose, Some(&trail));
        loop {
            let entry = self.entry(at.group).await?;
            if ask.may_be_dropped() {
                return Ok(Outcome::Dropped);
            }
            forget_answers(&mut applied);
            let had_answers = applied.contains(&true);
            match self.put_in_epoch(&entry, &ask, &mut applied).await? {
                Outcome::Done(()) => {
                    if had_answers {
                        mark(Path::AnswerKept);
                    }
                    return Ok(Outcome::Done(applied));
                }
                Outcome::Changed if !gets_a_new_version() => mark(Path::WriteInNextEpoch),
                Outcome::Changed => return Ok(Outcome::Changed),
                Outcome::NoSpace => return Ok(Outcome::NoSpace),
                Outcome::Ahead(clock) => return Ok(Outcome::Ahead(clock)),
                Outcome::Dropped => return Ok(Outcome::Dropped),
            }
        }
    }

    /// Puts one version on the write set of one epoch. Every answer of a wave counts, whatever the others of
    /// it met: an "applied" that were forgotten would let the write be called off while a replica holds it.
    async fn put_in_epoch(
        &self,
        entry: &Rc<Group>,
        ask: &Ask<'_>,
        applied: &mut [bool],
    ) -> Result<Outcome<()>, ClientError> {
        let exchange = self.exchange(entry, ask);
        let members = writable(entry, ask.purpose);
        let (full, others): (Vec<_>, Vec<_>) = match self.full.borrow().is_empty() {
            true => (Vec::new(), members),
            false => members.into_iter().partition(|d| self.is_full(*d)),
        };
        let mut refused = Vec::new();
        for wave in [full, others] {
            if wave.is_empty() {
                continue;
            }
            let ends = join_all(wave.iter().map(|drive| exchange.deliver(*drive))).await;
            let (mut is_over, mut ahead, mut error) = (false, None, None);
            for (drive, end) in wave.iter().zip(ends) {
                match end {
                    Ok(Outcome::Done(answer)) => {
                        self.note_room(*drive, ask);
                        error = self.judge(ask.at, &answer, applied).err().or(error);
                    }
                    Ok(Outcome::Changed | Outcome::Dropped) => is_over = true,
                    Ok(Outcome::NoSpace) => {
                        self.full.borrow_mut().insert(*drive, now() + FULL_MEMORY);
                        refused.push(*drive);
                    }
                    Ok(Outcome::Ahead(clock)) => ahead = Some(clock),
                    Err(e) => error = Some(e),
                }
            }
            if let Some(error) = error {
                return Err(error);
            }
            // Once it may be somewhere, it has to be everywhere.
            let is_somewhere = ask.may_be_somewhere();
            match ahead {
                Some(clock) if !is_somewhere => return Ok(Outcome::Ahead(clock)),
                _ if is_over => return Ok(Outcome::Changed),
                Some(_) => {
                    sleep(RETRY_LONGEST).await;
                    return Ok(Outcome::Changed);
                }
                None if !refused.is_empty() && !is_somewhere => return Ok(Outcome::NoSpace),
                None => {}
            }
        }
        for drive in refused {
            // Others took it, so this one must: from the reserve that a full drive keeps.
            match Box::pin(exchange.deliver_from_reserve(drive, self.purpose_if_full)).await? {
                Some(answer) => self.judge(ask.at, &answer, applied)?,
                None => return Ok(Outcome::Changed),
            }
        }
        Ok(Outcome::Done(()))
    }

    /// Takes a replica's verdicts: which blocks it applied, and which versions it holds.
    fn judge(&self, at: Place, answer: &Answer, applied: &mut [bool]) -> Result<(), ClientError> {
        let broken = |what: &dyn std::fmt::Display| self.session.protocol(answer.drive, what);
        // An answer with very many runs travels in the body.
        let verdicts = WriteAnswer::decode(answer.reply.document()).map_err(|e| broken(&e))?;
        self.session.versions.clock.saw(verdicts.clock);
        let mut next = at.range.first;
        for (range, verdict) in verdicts.verdicts {
            let fits = range.first == next && range.count > 0 && range.count <= at.range.end() - next;
            if !fits {
                return Err(broken(&"verdicts that do not cover the request"));
            }
            next = range.end();
            let first = (range.first - at.range.first) as usize;
            note_verdict(applied, first..first + range.count as usize, &verdict);
            if let Verdict::Superseded(newest) = verdict {
                mark(Path::SupersededWrite);
                self.session.versions.saw(at.group, newest).map_err(|e| broken(&e))?;
            }
        }
        if next != at.range.end() {
            return Err(broken(&"verdicts that do not cover the request"));
        }
        Ok(())
    }

    /// Finishes an operation of which a replica's strange answer left open where its version is: whoever
    /// holds the newest version of each block makes the whole write set hold it (R8), and nothing of this
    /// write is left to come. Until then it holds the watermark, and so its versions stay open to readers.
    fn settle_later(self: &Rc<Self>, operation: Operation, at: Place) {
        let mirror = self.clone();
        spawn(async move {
            let mut pause = RETRY_LONGEST;
            while mirror.fence_and_settle(at).await.is_err() {
                if mirror.session.check().is_err() {
                    return;
                }
                sleep(pause).await;
                pause = (pause * 2).min(SETTLE_LONGEST);
            }
            operation.finish();
        });
    }

    /// Settles blocks on the whole write set. First every member of it answers something in the present
    /// epoch, here a settle of version 0, which changes nothing: what was sent in an earlier epoch and is
    /// still under way is refused from then on. What was sent in this epoch has been answered.
    async fn fence_and_settle(&self, at: Place) -> Result<(), ClientError> {
        loop {
            let entry = self.entry(at.group).await?;
            let barrier = Ask::read(Kind::Settle, at, Purpose::Repair);
            let exchange = self.exchange(&entry, &barrier);
            let asked = join_all(entry.write_set().map(|drive| exchange.deliver(drive))).await;
            let ends: Vec<Outcome<Answer>> = asked.into_iter().collect::<Result<_, _>>()?;
            if !ends.iter().all(|end| matches!(end, Outcome::Done(_))) {
                continue;
            }
            // Zeroes may be more blocks than versions are asked of at once.
            for part in at.range.parts(REQUEST_BLOCKS_MAX) {
                self.read_slowly(at.part(part)).await?;
            }
            return Ok(());
        }
    }

    /// Splits an answer into blocks that can be returned as they are, and runs that need the slow path.
    fn take_extents(&self, at: Place, answer: &Answer) -> Result<Taken, ClientError> {
        let broken = |what: &str| self.session.protocol(answer.drive, &what);
        let ReadAnswer { clock, extents } = self.decode(answer)?;
        self.session.versions.clock.saw(clock);
        let (mut parts, mut slow) = (Vec::with_capacity(extents.len()), Vec::new());
        let (mut next, mut offset) = (at.range.first, 0);
        for extent in extents {
            let range = extent.range;
            if range.first != next || range.count > at.range.end() - next {
                return Err(broken("extents that do not cover the request"));
            }
            next = range.end();
            let data = match extent.content {
                Content::Zero => Some(Buf::zeroes(range.bytes())),
                Content::Damaged => None,
                Content::Data => {
                    if answer.reply.body.len() - offset < range.bytes() {
                        return Err(broken("less data than its extents say"));
                    }
                    let data = answer.reply.body.slice(offset..offset + range.bytes());
                    offset += range.bytes();
                    is_good(&data, &extent.crcs).then_some(data)
                }
            };
            match data {
                Some(data) if is_settled(&extent) => parts.push((range, data)),
                _ => slow.push(range),
            }
        }
        if next != at.range.end() {
            return Err(broken("extents that do not cover the request"));
        }
        Ok((parts, slow))
    }

    /// R8, the slow path: finds the newest version of each block that some member can read, makes the whole
    /// write set hold it, then returns it.
    async fn read_slowly(&self, at: Place) -> Result<Vec<(BlockRange, Buf)>, ClientError> {
        mark(Path::SlowRead);
        let versions = &self.session.versions;
        let mut pause = RETRY_FIRST;
        'again: loop {
            let entry = self.entry(at.group).await?;
            let members: Vec<DriveId> = entry.read_set().collect();
            let ask = Ask::read(Kind::Versions, at, Purpose::Repair);
            let exchange = self.exchange(&entry, &ask);
            let asked = join_all(members.iter().map(|drive| exchange.deliver(*drive))).await;
            let mut holdings = Vec::with_capacity(members.len());
            for end in asked {
                let Outcome::Done(answer) = end? else { continue 'again };
                let ReadAnswer { clock, extents } = self.decode(&answer)?;
                versions.clock.saw(clock);
                holdings.push((answer.drive, extents));
            }
            let mut parts = Vec::new();
            for newest in newest_runs(at.range, &holdings) {
                let says_so =
                    |(_, held): &&(DriveId, Vec<Extent>)| held.iter().any(|x| x.version == newest.version);
                let holder = holdings.iter().find(says_so).map_or(members[0], |(drive, _)| *drive);
                let saw = versions.saw(at.group, newest.version);
                saw.map_err(|e| self.session.protocol(holder, &e))?;
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
        at: Place,
        newest: &Newest,
    ) -> Result<Option<Buf>, ClientError> {
        let (payload, data) = match newest.content {
            Content::Zero => (Payload::Zero, Buf::zeroes(at.range.bytes())),
            _ => match self.fetch(entry, at, newest).await? {
                Some((data, crcs)) => (Payload::Data { bufs: vec![data.clone()], crcs }, data),
                None => return Ok(None),
            },
        };
        if newest.version == Version::ZERO {
            return Ok(Some(data));
        }
        if is_told_too_early() {
            self.tell_settled(entry, at, newest.version).await;
        }
        if !is_everywhere(entry, newest) {
            mark(Path::RepairByReader);
            let mut applied = vec![false; at.range.count as usize];
            let ask = Ask::write(at, newest.version, &payload, Purpose::Repair, None);
            let put = self.put_in_epoch(entry, &ask, &mut applied).await?;
            if !matches!(put, Outcome::Done(())) {
                return Ok(None);
            }
        }
        self.tell_settled(entry, at, newest.version).await;
        Ok(Some(data))
    }

    /// Tells all that a version is on the whole write set: only spares the next reader the slow path, so it
    /// may get lost.
    async fn tell_settled(&self, entry: &Rc<Group>, at: Place, version: Version) {
        let note = Ask::read(Kind::Settle, at, Purpose::Repair).of_version(version);
        for drive in entry.write_set() {
            if let Ok(link) = self.session.fabric.link(drive).await {
                let head = self.exchange(entry, &note).head(drive);
                link.cast(Kind::Settle, &head.encode(link.protocol(), &[]));
            }
        }
    }

    /// Reads a run in its newest version from a replica that holds it. `None`: it has moved on.
    async fn fetch(
        &self,
        entry: &Rc<Group>,
        at: Place,
        newest: &Newest,
    ) -> Result<Option<(Buf, Vec<u32>)>, ClientError> {
        let ask = Ask::read(Kind::Read, at, Purpose::Repair);
        for drive in &newest.intact_on {
            let end = self.exchange(entry, &ask).deliver(*drive).await?;
            let Outcome::Done(answer) = end else { return Ok(None) };
            let extents = self.decode(&answer)?.extents;
            if extents.iter().any(|x| x.version != newest.version) {
                return Ok(None);
            }
            let crcs: Vec<u32> = extents.iter().flat_map(|x| x.crcs.iter().copied()).collect();
            let body = answer.reply.body;
            let is_complete = crcs.len() == at.range.count as usize && body.len() == at.range.bytes();
            if is_complete && is_intact(&body, &crcs) {
                return Ok(Some((body, crcs)));
            }
        }
        if !newest.intact_on.is_empty() {
            // Found damaged only now: the next look at the versions will show it.
            return Ok(None);
        }
        let block = Lba(u64::from(at.range.first));
        Err(ClientError::Damaged { group: at.group, object: at.object.to_string(), block })
    }

    /// The group's newest entry, once it has a replica that serves reads.
    async fn entry(&self, group: GroupId) -> Result<Rc<Group>, ClientError> {
        let fabric = &self.session.fabric;
        loop {
            let changed = fabric.changed.notified();
            self.session.check()?;
            if let Some(entry) = fabric.entry(group)
                && entry.read_set().next().is_some()
            {
                return Ok(entry);
            }
            changed.await;
        }
    }

    fn exchange<'a>(&'a self, entry: &'a Rc<Group>, ask: &'a Ask<'a>) -> Exchange<'a> {
        Exchange { session: &self.session, entry, ask }
    }

    fn decode(&self, answer: &Answer) -> Result<ReadAnswer, ClientError> {
        ReadAnswer::decode(&answer.reply.head).map_err(|e| self.session.protocol(answer.drive, &e))
    }

    fn is_full(&self, drive: DriveId) -> bool {
        self.full.borrow().contains_key(&drive)
    }

    /// A drive has taken a write. Only data of a client say that there is room for more of them: zeroes need
    /// none, and names have a reserve.
    fn note_room(&self, drive: DriveId, ask: &Ask<'_>) {
        let mut full = self.full.borrow_mut();
        let is_data = ask.kind == Kind::Write && ask.purpose == Purpose::Client;
        if is_data && full.get(&drive).is_some_and(|until| *until <= now()) {
            full.remove(&drive);
        }
    }
}
