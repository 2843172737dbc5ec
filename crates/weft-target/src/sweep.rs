//! The sweep of sessions that are over, R10: their unfinished writes are finished or buried, as a reader would (R8).
//!
//! Every target refuses these sessions durably before a sweep begins, so they open nothing themselves any more.
//! Readers still may, by putting what they found (R9), and so does a copy that brings its marks (R14): a session is
//! forgotten only at an instant at which none of its entries is left unsettled. It never decides that a session is
//! over.

use crate::admit::SYSTEM_SESSION;
use crate::member::Member;
use crate::peer::{PeerError, gather};
use crate::serve::as_sent;
use crate::target::Target;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use weft_rpc::{Body, Reply};
use weft_rt::sync::{Either, Notify, join_all, race};
use weft_rt::{Buf, sleep};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_store::OpenEntry;
use weft_types::limits::REQUEST_BLOCKS_MAX;
use weft_types::{
    BlockRange, DriveId, Generation, Group, GroupId, MapVersion, ObjectId, Role, SessionId, SessionSlot,
    Version, VolumeId,
};
use weft_wire::Kind;
use weft_wire::data::{Content, DataRequest, Extent, Purpose, ReadAnswer, Scope, WriteAnswer, is_intact};
use weft_wire::newest::{Newest, newest_runs};

/// First and longest pause before members that could not serve are asked again.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_LONGEST: Duration = Duration::from_millis(500);

/// Entries of one group that are settled at once: enough to hide the round trips.
const ENTRIES_AT_ONCE: usize = 16;

/// What one sweep is about.
type SweepKey = (DriveId, GroupId, SessionSlot);

/// Sweeps that are under way: the manager may ask again while an earlier one still waits for a member.
#[derive(Default)]
pub(crate) struct Sweeps {
    running: RefCell<BTreeSet<SweepKey>>,
    ended: Notify,
}

/// A sweep that is under way, however it ends.
struct RunningSweep<'a> {
    sweeps: &'a Sweeps,
    key: SweepKey,
}

impl Drop for RunningSweep<'_> {
    fn drop(&mut self) {
        self.sweeps.running.borrow_mut().remove(&self.key);
        self.sweeps.ended.notify_all();
    }
}

/// Why an entry could not be settled now: the reason, for people. Begin again with the entry then in force.
struct Again(String);

impl Target {
    /// Refuses these sessions from now on, durably; what they had under way has finished on return (R10). A drive
    /// that cannot make it durable has failed, and serves nobody.
    pub(crate) async fn end_sessions(&self, sessions: &[SessionId]) {
        let drives: Vec<_> = self.drives.values().filter(|d| !d.has_failed()).collect();
        let closed = join_all(drives.iter().map(|d| d.store.close_sessions(None, sessions))).await;
        for (drive, closed) in drives.iter().zip(closed) {
            if let Err(error) = closed {
                drive.fail_at("cannot refuse sessions for good", &error);
            }
        }
        for member in self.members() {
            member.drain().await;
        }
    }

    /// Settles every open entry that these sessions of a volume have left on drives of this target, then forgets the
    /// sessions. Groups in which this target's drive is out are passed over: what it holds counts for nothing when it
    /// comes back; and so is a drive that has failed, unless the volume is on it. Returns when none is left, however long
    /// members are away.
    ///
    /// The map `at_least` is adopted first, so that no copy brings back what a source held that it has evicted: not of a
    /// write that the members which are left have never seen, and that this sweep cannot find.
    ///
    /// # Errors
    /// Why some may be left: a drive that may come back has failed, this target stops or has an older map, or another
    /// sweep of one of these sessions is under way. Whoever gave that one up asks again, and so does not pile up requests
    /// that wait.
    pub(crate) async fn sweep(
        &self,
        sessions: &[(SessionId, SessionSlot)],
        volume: VolumeId,
        at_least: MapVersion,
    ) -> Result<(), String> {
        let has_it = self.adopted_version() >= at_least || mutated(Mutation::SweptBeforeMap);
        let map = self.map().filter(|_| has_it);
        let map = map.ok_or_else(|| format!("map {at_least} is not adopted yet"))?;
        // A slice lists no volume of which this target holds nothing.
        let listed = map.volumes.get(&volume).into_iter();
        let groups: BTreeSet<GroupId> = listed.flat_map(|listed| listed.groups().copied()).collect();
        let slots: BTreeSet<SessionSlot> = sessions.iter().map(|(_, slot)| *slot).collect();
        if self.sweeps.running.borrow().iter().any(|(_, _, slot)| slots.contains(slot)) {
            return Err("a sweep of these sessions is under way".into());
        }
        let mut outcome = Ok(());
        for member in self.members() {
            // Nothing of these sessions is on it, and what became of it must not keep this volume's clients waiting.
            if member.drive.has_failed() && !groups.contains(&member.group) {
                continue;
            }
            for slot in &slots {
                let key = (member.drive.id, member.group, *slot);
                while !self.sweeps.running.borrow_mut().insert(key) {
                    self.sweeps.ended.notified().await;
                }
                let _running = RunningSweep { sweeps: &self.sweeps, key };
                // The others are swept all the same: whoever asks again finds less to do.
                outcome = outcome.and(self.sweep_member(&member, *slot).await);
            }
        }
        outcome
    }

    async fn sweep_member(&self, member: &Rc<Member>, slot: SessionSlot) -> Result<(), String> {
        let mut last_words = String::new();
        let mut pause = RETRY_FIRST;
        loop {
            let entry = member.entry().filter(|_| member.role() != Role::Out && !member.is_gone());
            let Some(entry) = entry else { return Ok(()) };
            if self.is_stopped() || member.drive.has_failed() {
                // What it holds counts again after a restart, unless it is out by then: a drive that has failed adopts no
                // entry that says so, but the map does. Of one that another node has, that node is asked.
                let map = self.map();
                let listed = map.as_ref().and_then(|map| map.groups.get(&member.group));
                let is_writer = |g: &Group| g.write_set().any(|drive| drive == member.drive.id);
                let target = map.as_ref().and_then(|map| map.target_of(member.drive.id));
                let is_elsewhere = target.is_some() && target != self.id();
                return match listed.is_none_or(is_writer) && !is_elsewhere {
                    true => Err(format!("drive {} does not serve now, and may again", member.drive.id)),
                    false => Ok(()),
                };
            }
            let store = &member.drive.store;
            let open: Vec<OpenEntry> =
                store.open_entries_of(member.group, slot).into_iter().filter(|x| !x.settled).collect();
            if open.is_empty() || mutated(Mutation::SweepForgetsUnsettled) {
                match store.forget_session(member.group, slot).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => continue,
                    Err(error) => member.drive.note(&error),
                }
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_LONGEST);
                continue;
            }
            for part in open.chunks(ENTRIES_AT_ONCE) {
                let changed = member.changed.notified();
                let settling = join_all(part.iter().map(|x| self.settle_entry(member, &entry, x)));
                let settled = match race(settling, changed).await {
                    Either::Left(settled) => settled.into_iter().collect::<Result<Vec<_>, _>>(),
                    Either::Right(()) => break,
                };
                if let Err(Again(text)) = settled {
                    if text != last_words {
                        tracing::info!(group = %member.group, slot = slot.0, text, "sweep waits");
                        last_words = text;
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY_LONGEST);
                    break;
                }
            }
        }
    }

    /// R8 for the blocks of one open entry: the newest version is on the whole write set on return, and the entry is
    /// marked settled here: its version is everywhere, or buried under a newer one that is.
    async fn settle_entry(&self, member: &Rc<Member>, entry: &Group, open: &OpenEntry) -> Result<(), Again> {
        for range in open.range.parts(REQUEST_BLOCKS_MAX) {
            for newest in self.find_newest(member, entry, open.object, range).await? {
                self.settle_run(member, entry, open, &newest).await?;
            }
        }
        if member.epoch() != entry.epoch {
            return Err(Again("the epoch changed".into()));
        }
        mark(Path::SweptEntry);
        member.drive.store.settle(entry.id, open.object, open.range, open.version);
        Ok(())
    }

    /// Asks the whole read set what it holds, and looks at what this replica holds itself if it is syncing: the
    /// version to settle may be there only.
    async fn find_newest(
        &self,
        member: &Rc<Member>,
        entry: &Group,
        object: ObjectId,
        range: BlockRange,
    ) -> Result<Vec<Newest>, Again> {
        let members: Vec<DriveId> = entry.read_set().collect();
        let asked = join_all(members.iter().map(|drive| {
            let head = head(entry, *drive, object, range, Version::ZERO);
            self.call_drive(*drive, Kind::Versions, move |protocol| head.encode(protocol, &[]), vec![])
        }))
        .await;
        let mut holdings = Vec::new();
        for (drive, reply) in members.into_iter().zip(asked) {
            let reply = accept(drive, reply)?;
            let answer = ReadAnswer::decode(&reply.head).map_err(|e| Again(e.to_string()))?;
            holdings.push((drive, answer.extents));
        }
        if holdings.is_empty() {
            return Err(Again("no member is in-sync".into()));
        }
        if is_syncing(member, entry) {
            mark(Path::SweptSyncing);
            let store = &member.drive.store;
            self.verify(member, object, range).await?;
            let held = store.versions(entry.id, object, range).await.map_err(|e| Again(e.to_string()))?;
            holdings.push((member.drive.id, as_sent(held).0));
        }
        Ok(written_runs(range, &holdings))
    }

    /// Verifies what a syncing replica holds: before that it counts for nothing (R12).
    async fn verify(&self, member: &Rc<Member>, object: ObjectId, range: BlockRange) -> Result<(), Again> {
        let store = &member.drive.store;
        for (chunk, _) in range.by_chunk() {
            if store.chunk_is_verified(member.group, object, chunk) {
                continue;
            }
            let verified = self.verify_now(member, object, chunk).await;
            if verified.is_err() || !store.chunk_is_verified(member.group, object, chunk) {
                return Err(Again(format!("drive {} is not verified there yet", member.drive.id)));
            }
        }
        Ok(())
    }

    async fn settle_run(
        &self,
        member: &Member,
        entry: &Group,
        open: &OpenEntry,
        newest: &Newest,
    ) -> Result<(), Again> {
        let is_whole = entry.write_set().all(|drive| newest.intact_on.contains(&drive));
        if !is_whole {
            if newest.intact_on.is_empty() {
                // Damaged on every member: nothing can be put, and no reader will ever get an older version.
                tracing::warn!(group = %entry.id, object = %open.object, range = %newest.range, "damaged everywhere");
                return Ok(());
            }
            self.put_newest(member, entry, open.object, newest).await?;
        }
        // A note that is lost only leaves the next reader the slow path.
        join_all(entry.write_set().map(|drive| {
            let note = head(entry, drive, open.object, newest.range, newest.version);
            self.call_drive(drive, Kind::Settle, move |protocol| note.encode(protocol, &[]), vec![])
        }))
        .await;
        Ok(())
    }

    /// Puts the newest version on the whole write set once more, for a scrub: that heals it where it is damaged.
    ///
    /// # Errors
    /// Why it could not be done now, for people.
    pub(crate) async fn put_again(
        &self,
        member: &Member,
        entry: &Group,
        object: ObjectId,
        newest: &Newest,
    ) -> Result<(), String> {
        if newest.intact_on.is_empty() {
            return Err("damaged everywhere".into());
        }
        self.put_newest(member, entry, object, newest).await.map_err(|Again(text)| text)
    }

    /// Puts the newest version on the whole write set.
    async fn put_newest(
        &self,
        member: &Member,
        entry: &Group,
        object: ObjectId,
        newest: &Newest,
    ) -> Result<(), Again> {
        let (kind, data, crcs) = if newest.content == Content::Zero {
            (Kind::WriteZeroes, Body::none(), vec![])
        } else {
            let (data, crcs) = self.fetch(member, entry, object, newest).await?;
            (Kind::Write, Body::blocks(vec![data]), crcs)
        };
        let puts = join_all(entry.write_set().map(|drive| {
            let head = head(entry, drive, object, newest.range, newest.version);
            let (data, crcs) = (data.clone(), &crcs);
            let head = move |protocol| head.encode(protocol, crcs);
            async move { (drive, self.call_drive(drive, kind, head, data).await) }
        }))
        .await;
        for (drive, reply) in puts {
            let reply = accept(drive, reply)?;
            WriteAnswer::decode(reply.document()).map_err(|e| Again(e.to_string()))?;
        }
        Ok(())
    }

    /// Reads the newest version from a member that has it, this target's own drive first.
    async fn fetch(
        &self,
        member: &Member,
        entry: &Group,
        object: ObjectId,
        newest: &Newest,
    ) -> Result<(Buf, Vec<u32>), Again> {
        let own = newest.intact_on.iter().find(|drive| self.serves(**drive));
        let drive = *own.or(newest.intact_on.first()).expect("the caller has checked that there is one");
        let (extents, body) = if drive == member.drive.id && is_syncing(member, entry) {
            // It answers no read by its role, but here it only speaks to itself.
            let held = member.drive.store.read(entry.id, object, newest.range).await;
            let (extents, body) = as_sent(held.map_err(|e| Again(e.to_string()))?);
            (extents, gather(body))
        } else {
            let head = head(entry, drive, object, newest.range, Version::ZERO);
            let reply =
                self.call_drive(drive, Kind::Read, |protocol| head.encode(protocol, &[]), vec![]).await;
            let reply = accept(drive, reply)?;
            let answer = ReadAnswer::decode(&reply.head).map_err(|e| Again(e.to_string()))?;
            (answer.extents, reply.body)
        };
        let is_it = |x: &Extent| x.version == newest.version && x.content == Content::Data;
        let crcs: Vec<u32> = extents.iter().flat_map(|x| x.crcs.iter().copied()).collect();
        let complete = crcs.len() == newest.range.count as usize && is_intact(&body, &crcs);
        if !complete || !extents.iter().all(is_it) {
            return Err(Again(format!("drive {drive} holds the block in another version by now")));
        }
        Ok((body, crcs))
    }
}

/// Whether the member's own drive is syncing in this entry.
fn is_syncing(member: &Member, entry: &Group) -> bool {
    entry.slot_of(member.drive.id).is_some_and(|slot| slot.role == Role::Syncing)
}

/// The head of a request that no client makes.
fn head(entry: &Group, drive: DriveId, object: ObjectId, range: BlockRange, version: Version) -> DataRequest {
    DataRequest {
        drive,
        group: entry.id,
        epoch: entry.epoch,
        generation: Generation(0),
        session: SYSTEM_SESSION,
        watermark: Version::ZERO,
        object,
        range,
        version,
        purpose: Purpose::Repair,
        slot: SessionSlot(0),
        scope: Scope::default(),
    }
}

fn accept(drive: DriveId, reply: Result<Reply, PeerError>) -> Result<Reply, Again> {
    reply.map_err(|error| Again(format!("drive {drive}: {error}")))
}

/// The newest versions in a range as [`newest_runs`] finds them, without what was never written: of that there is nothing
/// to put.
pub(crate) fn written_runs(range: BlockRange, holdings: &[(DriveId, Vec<Extent>)]) -> Vec<Newest> {
    let mut runs = newest_runs(range, holdings);
    runs.retain(|run| run.version != Version::ZERO);
    runs
}
