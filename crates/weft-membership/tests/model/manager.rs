//! A manager as the checker sees it: what it knows of each target, and what follows from that.
//!
//! It owns the manager's side of R11 and R15, as `crates/weft-manager` has them in `lease.rs`, `observe.rs` and `join.rs`:
//! who is suspected, whose promise counts, who is fenced. It decides no change by itself: it fills in what was
//! observed and asks [`next_change`]. Times are ticks that stop to count once they make no difference any more.

use crate::scope::{Broken, Scope};
use crate::shared::Shared;
use crate::target::{Grant, Nodes, Target, bit};
use std::collections::BTreeMap;
use weft_layout::FailureDomain;
use weft_membership::{
    Acknowledged, Change, DriveFault, DriveObservation, GroupIndex, Observations, TargetObservation,
    next_change,
};
use weft_types::{DriveId, Epoch, FabricMap, Group, GroupId, NodeId, Role, TargetId};

/// A member that renews but does not give its word holds an eviction up for so many leases.
const WORD_LEASES_MAX: u8 = 2;

/// The start of a second process of a target, apart from all starts of the first one.
pub const USURPER: u8 = u8::MAX;

/// Why a target gets no lease.
pub enum Denied {
    /// It has to join first.
    JoinFirst,
    /// Others may know more, and are awaited.
    NotReady,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Suspicion {
    pub age: u8,
    /// The newest map that took a drive of the node out because of it; 0 for none.
    pub evicted_in: u64,
}

/// What is known of one target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Known {
    pub incarnation: Option<u8>,
    /// Ticks since it joined; counts only while the drive is missing.
    pub joined: u8,
    /// Ticks since it was granted a lease, or since the manager started.
    pub granted_ago: u8,
    pub granted: bool,
    pub adopted: u64,
    /// Whether it has opened its drive.
    pub present: bool,
    pub failed: bool,
    pub suspicion: Option<Suspicion>,
    /// Per node for how many ticks it has promised not to vouch for it.
    pub promises: Vec<Option<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Manager {
    pub map: Shared<FabricMap>,
    /// Ticks since it started.
    pub age: u8,
    pub known: Vec<Known>,
    pub verified: BTreeMap<(GroupId, DriveId), Epoch>,
}

impl Known {
    fn new(nodes: usize) -> Known {
        Known {
            incarnation: None,
            joined: 0,
            granted_ago: 0,
            granted: false,
            adopted: 0,
            present: false,
            failed: false,
            suspicion: None,
            promises: vec![None; nodes],
        }
    }

    fn is_up(&self) -> bool {
        self.granted && self.suspicion.is_none()
    }

    pub fn serves(&self) -> bool {
        self.is_up() && self.present && !self.failed
    }

    /// Whether its target was restarted, perhaps elsewhere, and does not have the drive: the process before may.
    fn is_left_behind(&self) -> bool {
        self.incarnation.is_some() && !self.present && !self.failed
    }
}

impl Manager {
    /// A manager that takes the map out of the store.
    pub fn start(map: Shared<FabricMap>, scope: &Scope) -> Manager {
        let mut known = Known::new(scope.nodes);
        let mut age = 0;
        if scope.is_broken(Broken::LeaderDoesNotWait) {
            (known.granted_ago, age) = (scope.wait, scope.wait);
        }
        Manager { map, age, known: vec![known; scope.nodes], verified: BTreeMap::new() }
    }

    /// Time passes by one tick.
    pub fn tick(&mut self, scope: &Scope) {
        let next = |age: &mut u8, most: u8| *age = (*age + 1).min(most);
        next(&mut self.age, scope.wait);
        for known in &mut self.known {
            next(&mut known.granted_ago, scope.wait);
            if known.incarnation.is_some() && !known.present {
                next(&mut known.joined, scope.wait);
            }
            if let Some(suspicion) = &mut known.suspicion {
                next(&mut suspicion.age, WORD_LEASES_MAX * scope.lease);
            }
            known.promises.iter_mut().flatten().for_each(|age| next(age, scope.wait));
        }
    }

    /// The nodes that must not be vouched for.
    pub fn suspects(&self) -> Nodes {
        let suspected = |n: &usize| {
            let left = |g: &Group| {
                let is_member = g.write_set().any(|d| d == Target::drive(*n));
                is_member && self.needs_word_of_peers(g, *n)
            };
            self.known[*n].suspicion.is_some() || self.map.groups.values().any(left)
        };
        (0..self.known.len()).filter(suspected).map(bit).sum()
    }

    fn needs_word_of_peers(&self, group: &Group, node: usize) -> bool {
        self.known[node].is_left_behind() && group.write_set().any(|d| Target::index(d) != node)
    }

    /// Takes a target into the fabric.
    pub fn join(&mut self, node: usize, incarnation: u8, has_drive: bool) {
        let known = &mut self.known[node];
        known.incarnation = Some(incarnation);
        (known.joined, known.granted, known.adopted) = (0, false, 0);
        (known.present, known.failed) = (has_drive, false);
        known.promises.fill(None);
        if known.suspicion.as_ref().is_none_or(|s| s.evicted_in == 0) {
            known.suspicion = None;
            self.forget_promises_about(node);
        }
    }

    /// Grants a lease.
    pub fn renew(
        &mut self,
        node: usize,
        incarnation: u8,
        adopted: u64,
        scope: &Scope,
    ) -> Result<Grant, Denied> {
        let known = &mut self.known[node];
        if known.incarnation != Some(incarnation) {
            return Err(Denied::JoinFirst);
        }
        let is_noted = !scope.is_broken(Broken::ReturnUnnoticed);
        let ended = known.suspicion.take_if(|s| is_noted && s.evicted_in <= adopted);
        known.adopted = known.adopted.max(adopted);
        if ended.is_some() {
            self.forget_promises_about(node);
        }
        if self.awaits_others(node, scope) {
            return Err(Denied::NotReady);
        }
        let suspects = self.suspects();
        let known = &mut self.known[node];
        (known.granted_ago, known.granted) = (0, true);
        for (victim, promise) in known.promises.iter_mut().enumerate() {
            promise.take_if(|_| suspects & bit(victim) == 0);
        }
        Ok(Grant { left: scope.wait, version: self.map.version.0, suspects })
    }

    fn awaits_others(&self, node: usize, scope: &Scope) -> bool {
        if self.age >= scope.wait || scope.is_broken(Broken::LeaderDoesNotWait) {
            return false;
        }
        let slots = self.map.groups.values().flat_map(|g| &g.slots);
        let holders: Nodes = slots.fold(0, |set, s| set | bit(Target::index(s.drive)));
        holders & bit(node) != 0
            && (0..self.known.len()).any(|n| holders & bit(n) != 0 && self.known[n].incarnation.is_none())
    }

    fn forget_promises_about(&mut self, node: usize) {
        self.known.iter_mut().for_each(|k| k.promises[node] = None);
    }

    /// Whether a node was silent for a lease, or has not found this manager in the time for that.
    pub fn is_silent(&self, node: usize, scope: &Scope) -> bool {
        let known = &self.known[node];
        known.granted_ago >= if known.incarnation.is_some() { scope.lease } else { scope.wait }
    }

    /// Takes a node for gone until it gives a sign of life.
    pub fn suspect(&mut self, node: usize) {
        self.known[node].suspicion.get_or_insert(Suspicion { age: 0, evicted_in: 0 });
    }

    /// Whether there is somebody to ask on a node. A connection leads to whoever listens there: after a restart to a
    /// process that has not joined yet, and the manager cannot tell before it does.
    pub fn can_ask(&self, node: usize) -> bool {
        self.known[node].incarnation.is_some()
    }

    /// Whether a second process of the target has joined last.
    pub fn is_usurped(&self, node: usize) -> bool {
        self.known[node].incarnation == Some(USURPER)
    }

    /// Whether a node is still to promise not to vouch for another one.
    pub fn wants_promise(&self, node: usize, victim: usize) -> bool {
        let both = |g: &Group| {
            let has = |n| g.write_set().any(|d| d == Target::drive(n));
            has(node) && has(victim)
        };
        node != victim
            && self.suspects() & bit(victim) != 0
            && self.known[node].promises[victim].is_none()
            && self.map.groups.values().any(both)
    }

    pub fn note_promise(&mut self, node: usize, victim: usize) {
        self.known[node].promises[victim].get_or_insert(0);
    }

    /// Notes that a target has adopted this manager's map.
    pub fn note_adopted(&mut self, node: usize) {
        let version = self.map.version.0;
        self.known[node].adopted = self.known[node].adopted.max(version);
    }

    /// Notes that a replica has verified everything in a stint.
    pub fn note_verified(&mut self, group: GroupId, drive: DriveId, stint: Epoch) -> bool {
        let slot = self.map.groups.get(&group).and_then(|g| g.slot_of(drive));
        let fits = slot.is_some_and(|s| s.role == Role::Syncing && s.since == stint);
        fits && self.verified.insert((group, drive), stint) != Some(stint)
    }

    /// The next change that the observations ask for, by the project's own rules.
    pub fn decide(&mut self, nodes: &[NodeId], scope: &Scope) -> Option<Change> {
        self.drop_stale_words(scope);
        next_change(&self.map, &GroupIndex::of(&self.map), &self.observe(nodes, scope))
    }

    fn drop_stale_words(&mut self, scope: &Scope) {
        let map = self.map.clone();
        let slot = |group: &GroupId, drive: DriveId| map.groups.get(group)?.slot_of(drive).copied();
        if scope.is_broken(Broken::PromoteByOldWord) {
            // The word is taken for one about the present stint.
            for ((group, drive), stint) in &mut self.verified {
                *stint = slot(group, *drive).map_or(*stint, |s| s.since);
            }
            return;
        }
        self.verified.retain(|(group, drive), stint| {
            slot(group, *drive).is_some_and(|s| s.role == Role::Syncing && s.since == *stint)
        });
    }

    /// Notes for the suspicions which map took drives out because of them.
    pub fn note_evictions(&mut self, old: &FabricMap) {
        let map = self.map.clone();
        for (id, group) in &map.groups {
            let was_member =
                |d| old.groups.get(id).and_then(|g| g.slot_of(d)).is_some_and(|s| s.role != Role::Out);
            for slot in group.slots.iter().filter(|s| s.role == Role::Out && was_member(s.drive)) {
                if let Some(suspicion) = &mut self.known[Target::index(slot.drive)].suspicion {
                    suspicion.evicted_in = map.version.0;
                }
            }
        }
    }

    fn observe(&self, nodes: &[NodeId], scope: &Scope) -> Observations {
        let mut seen = Observations {
            domain: FailureDomain::Node,
            verified: self.verified.clone(),
            ..Observations::default()
        };
        for (node, known) in self.known.iter().enumerate() {
            if known.granted || known.suspicion.is_some() {
                let fenced = known.suspicion.is_some() && self.is_fenced(node, scope);
                let observed = TargetObservation { alive: known.is_up(), fenced, heard_ms: 0 };
                seen.targets.insert(TargetId::first_of(nodes[node]), observed);
            }
            if known.incarnation.is_some() {
                let observed = DriveObservation {
                    present: known.present,
                    failed: known.failed.then(|| DriveFault { cause: "it failed".into(), of_device: false }),
                    fenced: known.failed || (!known.present && known.joined >= waited(scope)),
                    seen_ms: 0,
                };
                seen.drives.insert(Target::drive(node), observed);
            }
        }
        for group in self.map.groups.values() {
            for victim in group.write_set() {
                if let Some(by) = self.word_about(group, victim, scope) {
                    seen.acknowledged.insert((group.id, victim), Acknowledged { by, epoch: group.epoch });
                }
            }
        }
        seen.yielded = self.yielded(scope).collect();
        seen
    }

    /// Whether nothing can let this node serve any more: not its lease, nor what a member has vouched for.
    fn is_fenced(&self, node: usize, scope: &Scope) -> bool {
        let known = &self.known[node];
        let is_leased = known.granted_ago < waited(scope) && !scope.is_broken(Broken::LeaseNotWaitedOut);
        let is_new = self.age < waited(scope) && !scope.is_broken(Broken::LeaderDoesNotWait);
        if is_leased || is_new {
            return false;
        }
        let is_awaited = known.suspicion.as_ref().is_some_and(|s| s.age < WORD_LEASES_MAX * scope.lease);
        let written = self.map.groups.values().filter(|g| g.write_set().any(|d| d == Target::drive(node)));
        { written }.all(|group| {
            let mut witnesses = self.witnesses(group, node).peekable();
            if witnesses.peek().is_none() || scope.is_broken(Broken::EvictWithoutPromise) {
                return true;
            }
            // The promise that was given first is waited out first.
            match witnesses.filter_map(|w| self.known[w].promises[node]).max() {
                Some(age) => is_waited_out(age, scope),
                None => !is_awaited,
            }
        })
    }

    /// The in-sync members of a group on other nodes that serve and can be asked.
    fn witnesses<'a>(&'a self, group: &'a Group, victim: usize) -> impl Iterator<Item = usize> + 'a {
        group.read_set().map(Target::index).filter(move |n| *n != victim && self.known[*n].serves())
    }

    fn word_about(&self, group: &Group, victim: DriveId, scope: &Scope) -> Option<DriveId> {
        let node = Target::index(victim);
        let known = &self.known[node];
        let has_promised = |n: &usize| {
            let promise = self.known[*n].promises[node];
            promise.is_some_and(|age| is_waited_out(age, scope))
                || scope.is_broken(Broken::EvictWithoutPromise)
        };
        let with_newest_map =
            || group.read_set().find(|d| *d != victim && self.has_newest_map(Target::index(*d)));
        if known.suspicion.is_some() {
            self.witnesses(group, node).find(has_promised).map(Target::drive)
        } else if self.needs_word_of_peers(group, node) && !scope.is_broken(Broken::LeftBehindIsGone) {
            let has_drive = |n: &usize| self.known[*n].serves() || scope.is_broken(Broken::AnyPromiseCounts);
            let mut peers = group.write_set().map(Target::index).filter(|n| *n != node).filter(has_drive);
            peers.any(|n| has_promised(&n)).then(with_newest_map).flatten()
        } else if !known.serves() {
            with_newest_map()
        } else {
            None
        }
    }

    fn has_newest_map(&self, node: usize) -> bool {
        self.known[node].serves() && self.known[node].adopted >= self.map.version.0
    }

    /// The stints of members that have handed over, and whose targets have made that durable.
    fn yielded<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = ((GroupId, DriveId), Epoch)> + 'a {
        self.map.relocations.iter().filter_map(|(group, relocation)| {
            let slot = self.map.groups.get(group)?.slot_of(relocation.from)?;
            let knows =
                self.has_newest_map(Target::index(slot.drive)) || scope.is_broken(Broken::LeaveBeforeYield);
            (slot.role == Role::Syncing && knows).then_some(((*group, slot.drive), slot.since))
        })
    }
}

/// Ticks after which whatever was granted or vouched for has run out.
fn waited(scope: &Scope) -> u8 {
    if scope.is_broken(Broken::NoMarginForDrift) { scope.lease } else { scope.wait }
}

/// Whether a promise of this age has outlasted what was vouched for before.
fn is_waited_out(age: u8, scope: &Scope) -> bool {
    age >= waited(scope) || scope.is_broken(Broken::PromiseNotWaitedOut)
}
