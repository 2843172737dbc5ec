//! Leases: who may serve, who is silent, who is taken for gone.
//!
//! It owns the grants and the suspicions. A suspicion only stops others from vouching; the eviction that may
//! follow waits until no grant and no word can still be in force (`observe.rs`). A sign of life ends the
//! suspicion.

use crate::error::{Denied, RECOVER_HINT};
use crate::event::Subjects;
use crate::manager::{Manager, State, wall_clock_ms};
use crate::member::{Member, Suspicion};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{now, spawn};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{
    DriveId, DriveState, FabricMap, Group, MapVersion, Role, TableChange, TargetId, with_causes,
};
use weft_wire::Status;
use weft_wire::control::TargetRequest;
use weft_wire::renewal::{Grant, Renewal};

/// A target that a client could not reach has so much of a lease to answer the manager.
const PROBE_PART: u32 = 4;

/// Of those that are awaited so many are named.
const AWAITED_NAMED: usize = 8;

/// What a sign of life has changed.
#[derive(Default)]
struct Heard {
    /// The suspicion that it has ended.
    ended: Option<Suspicion>,
    /// Whether the target was up before.
    was_up: bool,
    /// Whether it has adopted a newer map than was known.
    caught_up: bool,
}

impl State {
    /// The targets that must not be vouched for: those that are taken for gone, and those of which another
    /// process may still serve drives that the present one does not have.
    pub(crate) fn suspects(&self) -> Vec<TargetId> {
        let mut suspects = self.suspected.clone();
        // Hardly ever is a drive missing: then no group needs to be looked at.
        for drive in self.lacking.iter().copied().filter(|d| self.is_left_behind(*d)) {
            let mut written = self.groups_written_by(drive);
            if written.any(|group| self.needs_word_of_peers(group, drive)) {
                suspects.extend(self.target_of(drive));
            }
        }
        #[cfg(debug_assertions)]
        assert_eq!(suspects, self.suspects_of_all(), "what was noted is what the whole map says");
        suspects.into_iter().collect()
    }

    /// The same as [`State::suspects`], from all members, drives and groups.
    #[cfg(debug_assertions)]
    fn suspects_of_all(&self) -> BTreeSet<TargetId> {
        let is_lacking = |d: &weft_types::Drive| !self.is_present(d.id);
        let lacking: BTreeSet<DriveId> =
            self.map.drives.values().filter(|d| is_lacking(d)).map(|d| d.id).collect();
        assert_eq!(self.lacking, lacking, "what was noted of each drive is what its node's member says");
        let mut suspects: BTreeSet<TargetId> =
            self.members.iter().filter(|(_, m)| m.suspicion.is_some()).map(|(id, _)| *id).collect();
        for group in self.map.groups.values() {
            let left = group.write_set().filter(|d| self.needs_word_of_peers(group, *d));
            suspects.extend(left.filter_map(|d| self.target_of(d)));
        }
        suspects
    }

    /// Whether the process that has joined for the drive's target has the drive, as far as is known.
    fn is_present(&self, drive: DriveId) -> bool {
        let member = self.target_of(drive).and_then(|n| self.members.get(&n));
        member.is_some_and(|m| m.has_drive(drive))
    }

    /// Notes whether the drive's target has it; after each change of its entry in the map, or of what is
    /// known of the target.
    pub(crate) fn note_presence(&mut self, drive: DriveId) {
        match self.map.drives.contains_key(&drive) && !self.is_present(drive) {
            true => self.lacking.insert(drive),
            false => self.lacking.remove(&drive),
        };
    }

    /// Notes of all drives of a target whether it has them, and whether the target is taken for gone; after
    /// each change of either.
    pub(crate) fn note_member(&mut self, target: TargetId) {
        let drives: Vec<DriveId> = self.index.drives_of(target).collect();
        drives.into_iter().for_each(|drive| self.note_presence(drive));
        match self.members.get(&target).is_some_and(|m| m.suspicion.is_some()) {
            true => self.suspected.insert(target),
            false => self.suspected.remove(&target),
        };
    }

    /// The groups that list a drive, in any role.
    pub(crate) fn groups_of(&self, drive: DriveId) -> impl Iterator<Item = &Group> {
        self.index.groups_of(drive).filter_map(|id| self.map.groups.get(&id))
    }

    /// The groups whose writes go to a drive.
    pub(crate) fn groups_written_by(&self, drive: DriveId) -> impl Iterator<Item = &Group> {
        self.groups_of(drive).filter(move |g| g.write_set().any(|d| d == drive))
    }

    /// Whether the drive's target was restarted, perhaps elsewhere, and does not have the drive: the process
    /// of before may.
    fn is_left_behind(&self, drive: DriveId) -> bool {
        let member = self.target_of(drive).and_then(|n| self.members.get(&n));
        member
            .filter(|m| m.had_former && m.incarnation.is_some())
            .is_some_and(|m| !m.drives.contains(&drive) && !m.failed.contains_key(&drive))
    }

    /// Whether a process of before may serve this drive as long as the peers vouch for it.
    pub(crate) fn needs_word_of_peers(&self, group: &Group, drive: DriveId) -> bool {
        let target = self.target_of(drive);
        self.is_left_behind(drive) && group.write_set().any(|d| self.target_of(d) != target)
    }

    /// Who must have joined before this target is granted a lease: while this process is younger than a
    /// lease, every target with a replica, since each of them may know that the map here is an old one.
    fn awaited(&self, target: TargetId, age: Duration) -> Vec<String> {
        let is_old = age >= self.map.durations.lease_wait() || mutated(Mutation::GrantsUnawaited);
        if is_old || !self.index.has_groups(target) {
            return Vec::new();
        }
        let named = |t: TargetId| self.map.node_of(t).map(|node| node.name.clone());
        let awaited = self.unheard.iter().copied().filter(|t| self.index.has_groups(*t));
        let named: BTreeSet<String> = awaited.filter_map(named).take(AWAITED_NAMED).collect();
        named.into_iter().collect()
    }

    /// Whether a drive of the target that was refused, because it holds less than it should, is trusted by no
    /// group any more, or was accepted by a person as it is.
    fn can_take_back(&self, target: TargetId) -> bool {
        let is_trusted = |d: DriveId| self.groups_written_by(d).next().is_some();
        let Some(member) = self.members.get(&target) else { return false };
        let mut older = member.older.iter().copied();
        older.any(|d| !self.commits.contains_key(&d) || !is_trusted(d))
            || member.failed_before.iter().any(|d| !self.is_to_leave(*d))
    }

    /// Whether a drive that is marked as failed is up to date in a group that other copies serve: then
    /// it leaves that group before anybody serves it again. Where it is the only copy that is left, it
    /// may serve.
    pub(crate) fn is_to_leave(&self, drive: DriveId) -> bool {
        let is_failed = self.map.drives.get(&drive).is_some_and(|d| d.state == DriveState::Failed);
        let has_another = |g: &Group| g.read_set().any(|d| d != drive && self.is_served(d));
        is_failed && self.groups_written_by(drive).any(has_another)
    }

    /// A drive that this target serves although it has to leave its groups: others have come since that
    /// have its data.
    fn served_and_to_leave(&self, target: TargetId) -> Option<DriveId> {
        let member = self.members.get(&target)?;
        member.drives.iter().copied().find(|d| !member.failed.contains_key(d) && self.is_to_leave(*d))
    }

    /// Notes how far drives have come. A number only rises while its drive is served.
    fn note_commits(&mut self, commits: &[(DriveId, u64)]) {
        for (drive, commit) in commits {
            let known = self.commits.entry(*drive).or_default();
            if *commit > *known {
                *known = *commit;
                self.commits_kept.1 = true;
            }
        }
    }

    /// Whether this process of a target may ask for a lease as things are.
    ///
    /// # Errors
    /// If it has to join first, or to join again: another process has joined, or one of its drives may
    /// be served now that was refused, or must not be served any more.
    fn check_may_renew(&self, target: TargetId, incarnation: u64) -> Result<(), Denied> {
        let not_joined = |text| Err(Denied::new(Status::NotFound, text));
        let Some(member) = self.members.get(&target).filter(|m| m.incarnation == Some(incarnation)) else {
            return not_joined(format!("{} has not joined: join first", self.map.title_of(target)));
        };
        if member.has_stopped() {
            // It was on its way for longer than the last word, and must not end the suspicion.
            let text = format!("this process of {} has stopped, as it said", self.map.title_of(target));
            return Err(Denied::new(Status::NotReady, text));
        }
        let node = self.map.targets.get(&target).map(|listed| listed.node);
        let is_newest = |process| node.is_none_or(|node| self.processes.is_newest(node, process));
        if !member.process.is_none_or(is_newest) {
            mark(Path::OlderProcessRefused);
            let text = format!("a later process has joined than that of {}", self.map.title_of(target));
            return Err(Denied::new(Status::NotReady, text));
        }
        if self.can_take_back(target) {
            return not_joined(format!(
                "a drive of {} was refused and can be taken now: join again",
                self.map.title_of(target)
            ));
        }
        match self.served_and_to_leave(target) {
            Some(drive) => not_joined(format!(
                "drive {drive} had failed, and other copies are served by now: join again without it"
            )),
            None => Ok(()),
        }
    }

    /// Notes how far the drives have come with which a target has joined.
    fn note_commits_of(&mut self, target: TargetId, commits: &[(DriveId, u64)]) {
        let Some(member) = self.members.get(&target) else { return };
        let joined: Vec<_> = commits.iter().filter(|(d, _)| member.drives.contains(d)).copied().collect();
        self.note_commits(&joined);
    }

    /// Notes a sign of life of a target that has adopted this version of the map, and later ones on some
    /// drives.
    fn hear(&mut self, target: TargetId, adopted: MapVersion, ahead: &[(DriveId, MapVersion)]) -> Heard {
        let Some(member) = self.members.get_mut(&target) else { return Heard::default() };
        let was_up = member.is_up();
        if mutated(Mutation::SiblingRenews) {
            self.hear_of_siblings(target);
        }
        let Some(member) = self.members.get_mut(&target) else { return Heard::default() };
        let ended = member.suspicion.take_if(|s| s.evicted_in <= adopted);
        if member.suspicion.is_none() {
            member.heard_at = now();
        }
        let ahead: BTreeMap<DriveId, MapVersion> = ahead.iter().copied().collect();
        let caught_up = adopted > member.adopted || ahead != member.ahead;
        member.adopted = member.adopted.max(adopted);
        member.ahead = ahead;
        if ended.is_some() {
            mark(Path::SuspicionEnded);
            self.note_member(target);
            self.forget_promises_about(target);
        }
        Heard { ended, was_up, caught_up }
    }

    /// Takes a sign of life of a target for one of all targets of its node: what nobody must do (P1).
    fn hear_of_siblings(&mut self, target: TargetId) {
        let Some(node) = self.map.targets.get(&target).map(|target| target.node) else { return };
        for sibling in self.index.targets_of(node).collect::<Vec<_>>() {
            if let Some(member) = self.members.get_mut(&sibling) {
                member.heard_at = now();
                member.suspicion = None;
            }
            self.note_member(sibling);
        }
    }

    /// Whether this manager may grant leases to a target.
    ///
    /// # Errors
    /// If it has just started, and a target that may know more has not joined yet.
    fn check_awaits_nobody(&self, target: TargetId) -> Result<(), Denied> {
        let awaited = self.awaited(target, self.hears_from.elapsed());
        if awaited.is_empty() {
            return Ok(());
        }
        mark(Path::GrantRefused);
        let text = format!(
            "this manager has just started: nodes {} may know more, and are awaited first",
            awaited.join(", ")
        );
        Err(Denied::new(Status::NotReady, text))
    }

    /// Grants a lease from now on; says whom its target must not vouch for.
    fn grant(&mut self, target: TargetId, was_up: bool) -> Vec<TargetId> {
        let suspects = self.suspects();
        let Some(member) = self.members.get_mut(&target) else { return suspects };
        (member.granted_at, member.granted) = (now(), true);
        // The target ends its promises about those who are not named to it.
        member.promises.retain(|victim, _| suspects.contains(victim));
        if !was_up && member.is_up() {
            (member.since_ms, member.up_since) = (wall_clock_ms(), now());
        }
        suspects
    }

    /// Notes for the suspicions which commit took drives out because of them.
    pub(crate) fn note_evictions(&mut self, old: &FabricMap) {
        let map = self.map.clone();
        for change in map.groups.changes(&old.groups) {
            let TableChange::Put(id, group) = change else { continue };
            let was_member = |d: DriveId| {
                old.groups.get(id).and_then(|g| g.slot_of(d)).is_some_and(|s| s.role != Role::Out)
            };
            for slot in group.slots.iter().filter(|s| s.role == Role::Out && was_member(s.drive)) {
                let member = map.drives.get(&slot.drive).and_then(|d| self.members.get_mut(&d.target));
                if let Some(suspicion) = member.and_then(|m| m.suspicion.as_mut()) {
                    suspicion.evicted_in = map.version;
                }
            }
        }
    }

    /// Who is gone, in the words of people, now that this target is: its node, once all of the node's targets
    /// are. With the name of the event.
    fn who_is_gone(&self, target: TargetId) -> (&'static str, String) {
        let Some(node) = self.map.node_of(target) else { return ("node-suspected", target.to_string()) };
        let mut siblings = self.index.targets_of(node.id);
        let is_gone = |t: TargetId| self.members.get(&t).is_some_and(|m| m.suspicion.is_some());
        match siblings.all(is_gone) {
            true => ("node-suspected", format!("node '{}'", node.name)),
            false => ("target-suspected", self.map.title_of(target)),
        }
    }

    /// A later suspicion of this target begins with promises of its own.
    pub(crate) fn forget_promises_about(&mut self, target: TargetId) {
        for member in self.members.values_mut() {
            member.promises.remove(&target);
        }
    }
}

impl Manager {
    /// Grants a lease. The target counts it from when it sent the request, this side from now, which is
    /// later; it is void until the map named in the answer is adopted. A renewal ends a suspicion, unless
    /// drives of the target were evicted because of it: then only one that has adopted the eviction does.
    ///
    /// # Errors
    /// If this process of the target has not joined: then it must join first. If this manager is new, and a
    /// target that may know more has not joined yet. If the target knows a newer map: then the manager stops.
    pub(crate) fn renew(&self, renewal: &Renewal) -> Result<Grant, Denied> {
        let Renewal { target, incarnation, adopted, ref commits, ref ahead } = *renewal;
        self.check_term().map_err(|reason| Denied::new(Status::NotReady, reason))?;
        // What was granted counts by the clock; what was heard, by the time in which this process could hear.
        self.is_catching_up();
        let mut state = self.state.borrow_mut();
        // The newest that is decided and concerns it: one that is just being taken out gets no lease by the
        // map before, and what concerns others holds up no lease.
        let map = state.map.clone();
        let durable = state.durable.map.version;
        let named = match mutated(Mutation::GrantDurable) {
            true => state.newest_for_up_to(target, durable),
            false => state.newest_for(target),
        };
        state.check_may_renew(target, incarnation)?;
        state.note_commits_of(target, commits);
        let newest = ahead.iter().map(|(_, version)| *version).fold(adopted, MapVersion::max);
        if newest > durable {
            let text = format!(
                "{} has adopted map {newest}, this manager is at {durable}: the manager's store is older than the \
                 drives, {RECOVER_HINT}",
                map.title_of(target)
            );
            drop(state);
            return Err(Denied::new(Status::NotReady, self.halt_as_stale(text)));
        }
        let heard = state.hear(target, adopted, ahead);
        state.check_awaits_nobody(target)?;
        let suspects = state.grant(target, heard.was_up);
        drop(state);
        match heard.ended {
            Some(suspicion) => self.tell_end_of_suspicion(&map, target, &suspicion),
            None if heard.caught_up || !heard.was_up => self.changed.notify_all(),
            None => {}
        }
        Ok(Grant { map: named, suspects, clock_us: self.steady_clock_us() })
    }

    fn tell_end_of_suspicion(&self, map: &FabricMap, target: TargetId, suspicion: &Suspicion) {
        let title = map.title_of(target);
        let silent_ms = suspicion.since.elapsed().as_millis();
        self.tell(
            "suspicion-ended",
            format!("{title} renewed its lease {silent_ms} ms after: {}", suspicion.why),
            Subjects::target(map, target),
        );
    }

    /// Takes note of how far the drives of a target have come that is stopped in order; durable when it
    /// returns. Also from one that this manager has not heard of since it started: a drive has at least
    /// what is said here.
    ///
    /// The process serves nothing any more: it refuses what comes, and what it had admitted has finished.
    /// So its drives leave their groups as soon as an in-sync member of each, elsewhere, has promised not
    /// to vouch for it (R11); there is no lease to wait for.
    ///
    /// # Errors
    /// If another process of the target has joined since: that one knows better. If the store refuses, or
    /// another manager leads.
    pub(crate) async fn hear_last_word(
        &self,
        target: TargetId,
        incarnation: u64,
        commits: &[(DriveId, u64)],
    ) -> Result<(), Denied> {
        if let Some(reason) = self.why_over() {
            return Err(Denied::new(Status::NotReady, reason));
        }
        {
            let mut state = self.state.borrow_mut();
            let known = state.members.get(&target).map(|member| member.incarnation);
            if known.is_none_or(|known| known.is_some_and(|known| known != incarnation)) {
                let text =
                    format!("{} has not joined, or another process has since", state.map.title_of(target));
                return Err(Denied::new(Status::NotFound, text));
            }
            let is_its_own = |d: &DriveId| state.target_of(*d) == Some(target);
            let own: Vec<_> = commits.iter().copied().filter(|(d, _)| is_its_own(d)).collect();
            state.note_commits(&own);
            if let Some(member) = state.members.get_mut(&target) {
                member.stopped = Some(incarnation);
            }
        }
        let has_stopped = self.state.borrow().members.get(&target).is_some_and(Member::has_stopped);
        if has_stopped {
            self.suspect(target, "it was stopped in order".to_owned());
            // It may have been suspected before, and waited for.
            self.changed.notify_all();
        }
        self.keep_commits(Duration::ZERO).await.map_err(|error| {
            Denied::new(Status::Failed, format!("the manager could not keep it: {}", with_causes(&error)))
        })
    }

    /// Takes a target for gone until it gives a sign of life.
    pub(crate) fn suspect(&self, target: TargetId, why: String) {
        let (map, what, text) = {
            let mut state = self.state.borrow_mut();
            let map = state.map.clone();
            let Some(member) = state.members.get_mut(&target) else { return };
            if member.suspicion.is_some() {
                return;
            }
            member.suspicion = Some(Suspicion { why: why.clone(), since: now(), evicted_in: MapVersion(0) });
            member.since_ms = wall_clock_ms();
            state.note_member(target);
            let (what, who) = state.who_is_gone(target);
            (map, what, format!("{who} is taken for gone: {why}"))
        };
        self.tell(what, text, Subjects::target(&map, target));
    }

    /// Suspects every target that has not renewed for one lease. One that has not joined since this process
    /// started has a full wait, since it must find this process first.
    pub(crate) fn suspect_the_silent(&self) {
        if self.is_catching_up() {
            return;
        }
        let silent: Vec<(TargetId, String)> = {
            let state = self.state.borrow();
            let durations = state.map.durations;
            let unheard = |m: &Member| {
                let patience =
                    if m.incarnation.is_some() { durations.lease() } else { durations.lease_wait() };
                m.suspicion.is_none() && m.heard_at.elapsed() >= patience
            };
            let why = |m: &Member| match m.incarnation {
                Some(_) => format!("no renewal for {} ms", m.heard_at.elapsed().as_millis()),
                None => "it has not joined since this manager started".to_owned(),
            };
            state.members.iter().filter(|(_, m)| unheard(m)).map(|(id, m)| (*id, why(m))).collect()
        };
        for (target, why) in silent {
            self.suspect(target, why);
        }
    }

    /// Looks after a target that a client or target could not reach: its word is a hint, no proof.
    pub(crate) fn probe(self: &Rc<Self>, target: TargetId) {
        {
            let mut state = self.state.borrow_mut();
            let Some(member) = state.members.get_mut(&target) else { return };
            // One that cannot be connected to but renews its lease would fail every probe.
            if member.suspicion.is_some() || member.is_probed || member.is_unreachable {
                return;
            }
            member.is_probed = true;
        }
        let manager = self.clone();
        spawn(async move {
            let (patience, begun) = (manager.lease() / PROBE_PART, now());
            let answer = manager.ask(target, &TargetRequest::Status, None, patience).await;
            if let Some(member) = manager.state.borrow_mut().members.get_mut(&target) {
                member.is_probed = false;
            }
            if let Err(error) = answer
                && !manager.has_stalled_since(begun)
            {
                manager
                    .suspect(target, format!("a client could not reach it, and it does not answer: {error}"));
            }
        });
    }
}
