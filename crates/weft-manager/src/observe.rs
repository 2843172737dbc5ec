//! From what is known of the targets to the observations that `weft-membership` decides by, and on to
//! commits.
//!
//! It owns the waiting of an eviction (R11): a target counts as fenced when its last grant has been waited
//! out, and so has, for each group that can spare it, everything that a member vouched for before it promised
//! to stop. It never waits itself: it says when to look again.

use crate::error::Denied;
use crate::manager::{Manager, State};
use crate::member::Member;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weft_layout::FailureDomain;
use weft_membership::{
    Acknowledged, Change, DriveFault, DriveObservation, FailDrive, Observations, Room, TargetObservation,
    next_change,
};
use weft_rt::{Instant, now};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{
    BLOCK_SIZE, BlockCount, DriveId, Epoch, Group, GroupId, MapVersion, NodeId, Role, TargetId, with_causes,
};
use weft_wire::Status;

/// A member that renews its lease but does not give its word within so many leases does not hold up an
/// eviction any longer: its groups are left alone, the others go on.
const WORD_LEASES_MAX: u32 = 2;

/// Likewise where a target was stopped in order: this part of a lease, since clients of all its groups wait,
/// and a word that comes later still counts.
const STOP_WORD_PART: u32 = 8;

impl Manager {
    /// Notes that a replica has verified everything in a stint (R15).
    ///
    /// # Errors
    /// If the word is not about the replica's present stint.
    pub(crate) fn note_verified(&self, group: GroupId, drive: DriveId, stint: Epoch) -> Result<(), Denied> {
        let map = self.map();
        let slot = map.groups.get(&group).and_then(|g| g.slot_of(drive));
        match slot {
            None => {
                let text = format!("drive {drive} is no member of group {group}");
                return Err(Denied::new(Status::NotFound, text));
            }
            // Said again, after a lost answer.
            Some(slot) if slot.role == Role::InSync => return Ok(()),
            Some(slot) if slot.role == Role::Out || (slot.since != stint && !takes_stale()) => {
                mark(Path::PromotionRefused);
                let text = format!(
                    "drive {drive} in group {group} is {} since {}, the word is about {stint}",
                    slot.role, slot.since
                );
                return Err(Denied::new(Status::Refused, text));
            }
            Some(_) => {}
        }
        let stint = slot.filter(|_| takes_stale()).map_or(stint, |slot| slot.since);
        self.state.borrow_mut().verified.insert((group, drive), stint);
        self.commit_what_is_due();
        Ok(())
    }

    /// Notes that a target has stopped to serve a drive, because of what happened to it. Only the process
    /// that has joined can say so: an eviction does not wait for its lease then, and the word of a process
    /// before it, however late it arrives, says nothing about what this one serves.
    ///
    /// # Errors
    /// If no target of the drive's node has joined with this incarnation. Of a drive that is not in the map nobody needs to know.
    pub(crate) fn note_failure(
        &self,
        drive: DriveId,
        incarnation: u64,
        fault: DriveFault,
    ) -> Result<(), Denied> {
        let map = self.map();
        let Some(listed) = map.drives.get(&drive) else { return Ok(()) };
        {
            let mut state = self.state.borrow_mut();
            let speaker = state.speaker_of(listed.node, incarnation);
            let Some(speaker) = speaker else {
                return Err(Denied::new(
                    Status::NotFound,
                    format!("{} has not joined: join first", map.title_of(listed.target)),
                ));
            };
            // One that could not join with the drive has never served it: the target that the drive is listed of is
            // not fenced by its word.
            if let Some(member) = state.members.get_mut(&speaker).filter(|_| speaker == listed.target) {
                member.failed.entry(drive).or_insert_with(|| fault.clone());
                state.note_presence(drive);
            }
        }
        // At once: a process that starts now and finds the drive sound must not make the word of it
        // forgotten.
        if map.drives.get(&drive).is_some_and(|d| !d.state.is_given_up()) {
            let DriveFault { cause, of_device } = fault;
            let change = Change::FailDrive(FailDrive { drive, cause, of_device });
            self.of_own_accord(|| self.commit(&change))?;
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Commits every change that the observations ask for, one after another, and says when to look again.
    pub(crate) fn commit_what_is_due(&self) -> Option<Instant> {
        self.of_own_accord(|| self.commit_all_that_is_due())
    }

    fn commit_all_that_is_due(&self) -> Option<Instant> {
        loop {
            if self.halted.borrow().is_some() || self.is_catching_up() {
                return None;
            }
            if let Some(until) = self.stops_until.get().filter(|until| now() < *until) {
                return Some(until);
            }
            self.look_at_reach();
            let (seen, due) = {
                let mut state = self.state.borrow_mut();
                state.drop_stale_words();
                state.observe(self.started)
            };
            let map = self.map();
            let change = next_change(&map, self.state.borrow().index.groups(), &seen);
            let Some(change) = change else { return due };
            if let Err(error) = self.commit(&change) {
                // The rules have offered it for this very map, so only the store or the size can be in the
                // way.
                tracing::error!(error = with_causes(&error), "a change was not committed");
                return due;
            }
        }
    }
}

impl State {
    /// The target of a node's newest process that has joined with this incarnation.
    fn speaker_of(&self, node: NodeId, incarnation: u64) -> Option<TargetId> {
        let is_it = |m: &Member| {
            let is_newest = m.process.is_some_and(|process| self.processes.is_newest(node, process));
            is_newest && m.incarnation == Some(incarnation)
        };
        self.members_of(node).find(|(_, member)| is_it(member)).map(|(target, _)| target)
    }

    /// Forgets words of replicas whose stint has ended.
    fn drop_stale_words(&mut self) {
        let map = self.map.clone();
        let is_current = |group: &GroupId, drive: &DriveId, stint: &Epoch| {
            let slot = map.groups.get(group).and_then(|g| g.slot_of(*drive));
            slot.is_some_and(|s| s.role == Role::Syncing && s.since == *stint)
        };
        self.verified.retain(|(group, drive), stint| is_current(group, drive, stint));
    }

    /// All observations, and when a fence that stands now will be complete.
    fn observe(&self, started: Instant) -> (Observations, Option<Instant>) {
        let mut seen = Observations {
            now_ms: to_ms(now()),
            domain: FailureDomain::Node,
            verified: self.verified.clone(),
            ..Observations::default()
        };
        let mut next_due: Option<Instant> = None;
        for (id, member) in &self.members {
            let is_known = member.granted || member.suspicion.is_some();
            if !is_known {
                continue;
            }
            let fence = member.suspicion.as_ref().map(|_| self.fence(*id, member, started));
            let is_fenced = fence.is_some_and(|f| f.is_some_and(|due| due <= now()));
            if let Some(Some(due)) = fence
                && !is_fenced
            {
                next_due = Some(next_due.map_or(due, |d| d.min(due)));
            }
            let target = TargetObservation {
                alive: member.is_up(),
                fenced: is_fenced,
                heard_ms: to_ms(member.heard_at),
            };
            seen.targets.insert(*id, target);
        }
        if mutated(Mutation::PromotedUnverified) {
            let slots = self.map.groups.values().flat_map(|g| g.slots.iter().map(move |s| (g.id, s)));
            let syncing = slots.filter(|(_, s)| s.role == Role::Syncing);
            seen.verified.extend(syncing.map(|(group, s)| ((group, s.drive), s.since)));
        }
        seen.room = self.room();
        seen.without_floors = self.without_floors();
        seen.vanished = self.vanished();
        seen.unreached = self.reach.members();
        self.observe_drives(&mut seen);
        self.observe_words(&mut seen);
        seen.yielded = self.yielded(&seen.unreached).collect();
        seen.ended = self.silent_sessions().collect();
        (seen, next_due)
    }

    /// Drives whose targets have joined and do not know the floors of groups.
    pub(crate) fn without_floors(&self) -> BTreeSet<DriveId> {
        let older = self.members.iter().filter(|(_, m)| m.incarnation.is_some() && !m.knows_floors);
        older.flat_map(|(target, _)| self.index.drives_of(*target)).collect()
    }

    /// Drives whose targets say that they are gone and serve all the same.
    fn vanished(&self) -> BTreeSet<DriveId> {
        let Some((_, usage)) = &self.usage else { return BTreeSet::new() };
        let is_gone = |id: &&DriveId| usage.drive(**id).is_some_and(|d| d.vanished.is_some());
        self.map.drives.keys().filter(is_gone).copied().collect()
    }

    /// How full drives are, as their targets said last; nothing of those whose targets say nothing of it.
    pub(crate) fn room(&self) -> BTreeMap<DriveId, Room> {
        let Some((_, usage)) = &self.usage else { return BTreeMap::new() };
        let blocks = |bytes: u64| BlockCount(bytes / BLOCK_SIZE as u64);
        let room_of = |id: &DriveId| {
            let status = usage.drive(*id)?;
            Some((*id, Room { used: blocks(status.used_bytes), free: blocks(status.free_bytes?) }))
        };
        self.map.drives.keys().filter_map(room_of).collect()
    }

    /// All observations.
    pub(crate) fn observations(&self, started: Instant) -> Observations {
        self.observe(started).0
    }

    /// When nothing can let this target serve any more: not its lease, nor the word of a member that has
    /// promised to stop vouching. None while a member's promise is awaited.
    pub(crate) fn fence(&self, target: TargetId, member: &Member, started: Instant) -> Option<Instant> {
        let wait = self.lease_wait();
        let began = if mutated(Mutation::LeaderDoesNotWait) { Instant::default() } else { started };
        let granted = if member.granted { member.granted_at } else { began };
        let mut due = granted.max(began) + wait;
        if mutated(Mutation::LeaseNotWaitedOut) {
            due = now();
        }
        self.after_words(target, member, due, wait, self.map.durations.lease() * WORD_LEASES_MAX)
    }

    /// Likewise, for the drives with which a process has joined that has said its last word: it serves
    /// nothing any more, by a lease or by what others vouched for, so neither is waited out. The words are
    /// needed all the same, of members that are there and know of the eviction.
    fn fence_of_stopped(&self, target: TargetId, member: &Member) -> Option<Instant> {
        let patience = self.map.durations.lease() / STOP_WORD_PART;
        self.after_words(target, member, Instant::default(), Duration::ZERO, patience)
    }

    /// When the target is fenced that is fenced at `due`, once each group that can spare it has a word that
    /// has lasted for `wait`; none while one is awaited, which is no longer than `patience`.
    fn after_words(
        &self,
        target: TargetId,
        member: &Member,
        mut due: Instant,
        wait: Duration,
        patience: Duration,
    ) -> Option<Instant> {
        let suspected = member.suspicion.as_ref().map_or(now(), |s| s.since);
        let still_awaited = now() - suspected < patience;
        let is_word_needed = |_: &&Group| !mutated(Mutation::EvictsWithoutWord);
        for group in self.groups_written_on(target).filter(is_word_needed) {
            let mut witnesses = self.witnesses(group, target).peekable();
            if witnesses.peek().is_none() {
                continue;
            }
            match witnesses.filter_map(|(_, w)| w.promise_due(target, wait)).min() {
                Some(promise) => due = due.max(promise),
                None if still_awaited => return None,
                None => {}
            }
        }
        Some(due)
    }

    /// How long a lease may last by this clock: by the bound on drift longer than by the target's.
    fn lease_wait(&self) -> Duration {
        match mutated(Mutation::NoMargin) {
            true => self.map.durations.lease(),
            false => self.map.durations.lease_wait(),
        }
    }

    /// The groups with a drive of this target in their write set.
    fn groups_written_on(&self, target: TargetId) -> impl Iterator<Item = &Group> {
        let listing: BTreeSet<GroupId> =
            self.index.drives_of(target).flat_map(|d| self.index.groups_of(d)).collect();
        let groups = listing.into_iter().filter_map(|id| self.map.groups.get(&id));
        groups.filter(move |g| g.write_set().any(|d| self.target_of(d) == Some(target)))
    }

    /// The in-sync members of a group on other targets that serve and can be asked, with their drives.
    fn witnesses<'a>(
        &'a self,
        group: &'a Group,
        victim: TargetId,
    ) -> impl Iterator<Item = (DriveId, &'a Member)> {
        let others = group.read_set().filter(move |d| self.target_of(*d) != Some(victim));
        others
            .filter_map(|d| Some((d, self.members.get(&self.target_of(d)?)?)))
            .filter(|(d, m)| m.serves(*d) && !m.is_unreachable)
    }

    /// Whether a process of before on this target can have no vouching any more. One in-sync member on
    /// another target that has stopped is enough: that process has to ask it, whatever map it knows. Of a
    /// syncing one it may never have heard; so where only such are left, all of them must have stopped.
    fn nobody_vouches(&self, group: &Group, target: TargetId, has_stopped: impl Fn(&Member) -> bool) -> bool {
        let has_stopped = |drive: DriveId| {
            let member = self.target_of(drive).and_then(|n| self.members.get(&n));
            member.is_some_and(|m| m.serves(drive) && has_stopped(m))
        };
        let is_peer = |d: &DriveId| self.target_of(*d) != Some(target);
        match group.read_set().any(|d| is_peer(&d)) {
            true => group.read_set().filter(is_peer).any(has_stopped),
            false => group.write_set().filter(is_peer).all(has_stopped),
        }
    }

    pub(crate) fn target_of(&self, drive: DriveId) -> Option<TargetId> {
        self.map.drives.get(&drive).map(|d| d.target)
    }

    /// Drives of targets that have joined. One that its target reported as failed is fenced by that report,
    /// since the target stops to serve it first, and so are all with which a target has joined that has
    /// stopped; one that its restarted target did not find is fenced once the lease of the target's former
    /// self is over.
    fn observe_drives(&self, seen: &mut Observations) {
        let wait = self.map.durations.lease_wait();
        let is_over = |id: TargetId, m: &Member| {
            m.has_stopped() && self.fence_of_stopped(id, m).is_some_and(|due| due <= now())
        };
        let stopped = self.members.iter().filter(|(id, m)| is_over(**id, m));
        let stopped: BTreeSet<TargetId> = stopped.map(|(id, _)| *id).collect();
        for drive in self.map.drives.values() {
            let Some(member) = self.members.get(&drive.target).filter(|m| m.incarnation.is_some()) else {
                continue;
            };
            let present = member.drives.contains(&drive.id);
            let failed = member.failed.get(&drive.id).cloned();
            let seen_at = if present { member.heard_at } else { member.joined_at };
            let stopped = present && stopped.contains(&drive.target);
            let fenced = failed.is_some() || stopped || (!present && now() >= member.joined_at + wait);
            let observed = DriveObservation { present, failed, fenced, seen_ms: to_ms(seen_at) };
            seen.drives.insert(drive.id, observed);
        }
    }

    /// Whose word there is for the eviction of which drive.
    ///
    /// For a drive of a suspected target: of an in-sync member whose promise has outlasted all that it
    /// vouched for. Where the target's process has said its last word, and has the drive, its promise is
    /// enough: nobody is vouched for any more. For a drive that a process of before may still serve: the
    /// same, whoever of the in-sync members gave the promise and has its drive. One that has not may have a
    /// process of before as well, which is not bound by it. For any other drive whose target is up: of one
    /// that has adopted the group as it is now, and that the drive failed; the drive's own target has
    /// stopped to serve it. For one that clients cannot reach: the same, of one that they can. Changes of
    /// other groups make that word no older.
    fn observe_words(&self, seen: &mut Observations) {
        let wait = self.lease_wait();
        let mut words: BTreeMap<(GroupId, DriveId), Acknowledged> = BTreeMap::new();
        for group in self.groups_in_question(seen).iter().filter_map(|id| self.map.groups.get(id)) {
            for victim in group.write_set() {
                let Some(target) = self.target_of(victim) else { continue };
                let Some(member) = self.members.get(&target) else { continue };
                let is_due = |m: &Member| m.promise_due(target, wait).is_some_and(|due| due <= now());
                let who_knows = || {
                    let version = self.changed_in.of(group.id, victim);
                    let is_other =
                        |d: &DriveId| *d != victim && !seen.unreached.contains_key(&(group.id, *d));
                    group.read_set().filter(is_other).find(|d| self.has_adopted(*d, version))
                };
                let by = if member.suspicion.is_some() {
                    let has_stopped = member.has_stopped() && member.drives.contains(&victim);
                    let wait = if has_stopped { Duration::ZERO } else { wait };
                    let is_due = |m: &Member| m.promise_due(target, wait).is_some_and(|due| due <= now());
                    let has_word = |m: &Member| is_due(m) || mutated(Mutation::EvictsWithoutWord);
                    self.witnesses(group, target).find(|(_, m)| has_word(m)).map(|(d, _)| d)
                } else if self.needs_word_of_peers(group, victim) {
                    self.nobody_vouches(group, target, is_due).then(who_knows).flatten()
                } else if !member.serves(victim) || seen.unreached.contains_key(&(group.id, victim)) {
                    who_knows()
                } else {
                    None
                };
                if let Some(by) = by {
                    words.insert((group.id, victim), Acknowledged { by, epoch: group.epoch });
                }
            }
        }
        seen.acknowledged = words;
    }

    /// The groups of which a member may have to leave: of a target that does not serve, on a drive that its
    /// target does not have, or out of clients' reach.
    fn groups_in_question(&self, seen: &Observations) -> BTreeSet<GroupId> {
        let is_down = |(_, m): &(&TargetId, &Member)| !m.is_up();
        let down = self.members.iter().filter(is_down).flat_map(|(id, _)| self.index.drives_of(*id));
        let groups = down.chain(self.lacking.iter().copied()).flat_map(|d| self.index.groups_of(d));
        groups.chain(seen.unreached.keys().map(|(group, _)| *group)).collect()
    }

    /// The stints of members that are to leave their groups, serve no reads any more, and whose targets
    /// have made that durable: those that have handed over, and those that clients cannot reach.
    fn yielded(
        &self,
        unreached: &BTreeMap<(GroupId, DriveId), u64>,
    ) -> impl Iterator<Item = ((GroupId, DriveId), Epoch)> {
        let passing = self.map.relocations.iter().map(|(group, relocation)| (*group, relocation.from));
        passing.chain(unreached.keys().copied()).filter_map(|(group, drive)| {
            let slot = self.map.groups.get(&group)?.slot_of(drive)?;
            let version = self.changed_in.of(group, drive);
            let knows = self.has_adopted(drive, version) || mutated(Mutation::DepartsUnawares);
            (slot.role == Role::Syncing && knows).then_some(((group, drive), slot.since))
        })
    }

    /// Whether the drive's target is up, serves it, and has adopted this version of the map, or a later one.
    fn has_adopted(&self, drive: DriveId, version: MapVersion) -> bool {
        let member = self.target_of(drive).and_then(|n| self.members.get(&n));
        member.is_some_and(|m| m.serves(drive) && m.is_at(version))
    }
}

/// Whether the word of an older stint counts.
fn takes_stale() -> bool {
    mutated(Mutation::StaleStintPromoted)
}

/// Milliseconds on the executor's clock.
pub(crate) fn to_ms(at: Instant) -> u64 {
    at.as_nanos() / 1_000_000
}
