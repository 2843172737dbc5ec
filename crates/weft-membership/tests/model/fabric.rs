//! The whole fabric as one state, and every step that it can take.
//!
//! It owns the steps. Every transition of the map among them is one that `weft-membership` has decided or judged:
//! [`weft_membership::next_change`] and [`apply`], followed by [`check`] and [`check_step`] and the compare-and-swap
//! of the store. It never judges whether a state is good: `checker.rs` does.

use crate::manager::{Denied, Manager, USURPER};
use crate::scope::{Broken, Scope};
use crate::shared::Shared;
use crate::story::{Part, told};
use crate::target::{Medium, Member, Target, bit};
use std::collections::BTreeMap;
use weft_layout::FailureDomain;
use weft_membership::{
    AcceptLoss, AddDrive, Change, CreatePool, CreateVolume, DrainDrive, JoinNode, NewGroup, RestoreDrive,
    SpanPlan, Survivor, apply, check, check_step, lost_groups,
};
use weft_types::TargetId;
use weft_types::{BlockCount, Epoch, FabricId, FabricMap, Group, GroupId, NodeId, PoolId, Role, Striping};

/// Versions of writes after a loss was accepted begin at the next multiple of this, so that they are told from what
/// was lost.
const HISTORY: u8 = 64;

/// A writer of one group: it has one write under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Writer {
    /// The entry by which it writes.
    pub entry: Shared<Group>,
    /// Who has taken the write under this entry.
    pub applied: u8,
    /// The newest acknowledged version.
    pub acked: u8,
    /// The version of the write under way.
    pub next: u8,
    /// Writes that may still be acknowledged.
    pub left: u8,
    /// The newest epoch in which a write was acknowledged.
    pub acked_in: Epoch,
    /// Every entry that the group had, oldest first.
    pub entries: Vec<Shared<Group>>,
}

/// Faults that may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub crashes: u8,
    pub deaths: u8,
    pub breaks: u8,
    pub losses: u8,
    pub hangups: u8,
    pub delays: u8,
    pub drains: u8,
    pub usurpers: u8,
    pub accepts: u8,
}

/// What has happened on the way, to see that the checker gets anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    pub evicted: bool,
    pub promoted: bool,
    pub rebuilt: bool,
    pub relocated: bool,
    pub loss_accepted: bool,
}

/// The whole fabric.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fabric {
    /// The map in the store.
    pub store: Shared<FabricMap>,
    /// The map in the store before that one.
    pub before: Shared<FabricMap>,
    /// One process after another on the store; a second one at the same time only where that rule is broken.
    pub managers: Vec<Option<Manager>>,
    pub targets: Vec<Target>,
    pub writers: Vec<Writer>,
    pub left: Budget,
    pub seen: Seen,
    /// What a commit did that no map may show.
    pub fault: Option<String>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Time passes.
    Tick,
    /// A target joins a manager, and adopts the map of the answer.
    Join { target: usize, manager: usize },
    /// Likewise; the answer is lost.
    JoinInVain { target: usize, manager: usize },
    /// A target asks for its lease, and is granted one.
    Renew { target: usize },
    /// Likewise; the answer is on its way.
    RenewLate { target: usize },
    /// The grant arrives.
    Receive { target: usize },
    /// The connection to the manager is lost, with what was on its way.
    HangUp { target: usize },
    /// A target fetches its manager's map.
    FetchMap { target: usize },
    /// A manager brings its map to a target, and learns that it is adopted.
    PushMap { target: usize, manager: usize },
    /// A target promises not to vouch for a node.
    Promise { target: usize, victim: usize, manager: usize },
    /// A target asks a peer for its word.
    Vouch { target: usize, peer: usize },
    /// A manager takes a target for gone.
    Suspect { target: usize, manager: usize },
    /// A manager commits what is to be done next.
    Commit { manager: usize },
    /// A target's process ends.
    Crash { target: usize },
    /// The next one starts.
    Start { target: usize },
    /// A manager's process ends.
    Die { manager: usize },
    /// The next one starts.
    Lead { manager: usize },
    /// A second process of a target joins, without the drive that the first one has.
    Usurp { target: usize, manager: usize },
    /// It renews its lease, with the newest map.
    UsurperRenews { target: usize, manager: usize },
    /// A drive fails under its target.
    Break { target: usize },
    /// A drive is gone for good.
    Lose { target: usize },
    /// A target sends word that its drive has failed.
    Report { target: usize },
    /// The word arrives.
    ReportArrives { target: usize },
    /// A syncing replica teaches its epoch to an in-sync member.
    Teach { group: usize, target: usize, source: usize },
    /// A syncing replica verifies its block with an in-sync member's.
    Copy { group: usize, target: usize, source: usize },
    /// A syncing replica says that all is verified.
    Verified { group: usize, target: usize },
    /// The writer takes the newest entry.
    Refresh { group: usize },
    /// A replica takes the writer's write.
    Write { group: usize, target: usize },
    /// People have a drive emptied.
    Drain { target: usize, manager: usize },
    /// People put a drive into service again that had failed, and works.
    Restore { target: usize, manager: usize },
    /// People accept the loss of a group's last drives.
    AcceptLoss { manager: usize },
}

/// The fabric's fixed parts.
#[derive(Clone, Debug)]
pub struct World {
    pub scope: Scope,
    /// The nodes' numbers in the map, by index.
    pub nodes: Vec<NodeId>,
    pub groups: Vec<GroupId>,
    /// Where the checker begins.
    pub starts: Vec<Fabric>,
    map: Shared<FabricMap>,
}

impl World {
    /// A fabric with the scope's nodes and groups, made by the changes that make real ones.
    pub fn new(scope: Scope) -> World {
        let mut map = FabricMap::empty(FabricId(7));
        map.durations.rebuild_after_ms = if scope.rebuilds { 0 } else { u64::MAX };
        let take = |map: &mut FabricMap, change| *map = apply(map, &change).expect("it fits").0;
        take(&mut map, Change::CreatePool(CreatePool { name: "p".into() }));
        let pool = PoolId(1);
        let mut nodes = Vec::new();
        for n in 0..scope.nodes {
            take(&mut map, Change::JoinNode(JoinNode { name: format!("n{n}"), addr: format!("h{n}:1") }));
            nodes.push(*map.nodes.keys().last().expect("it joined"));
            let (drive, node, capacity) = (Target::drive(n), nodes[n], BlockCount(1 << 20));
            take(
                &mut map,
                Change::AddDrive(AddDrive {
                    drive,
                    target: TargetId::first_of(node),
                    pool,
                    path: String::new(),
                    capacity,
                    device: None,
                }),
            );
        }
        let first = map.next_id;
        let new_groups: Vec<NewGroup> = (scope.groups.iter().zip(first..))
            .map(|(members, id)| NewGroup {
                id: GroupId(id),
                drives: members.iter().copied().map(Target::drive).collect(),
            })
            .collect();
        let groups: Vec<GroupId> = new_groups.iter().map(|g| g.id).collect();
        let volume = CreateVolume {
            name: "v".into(),
            pool,
            size: BlockCount(1024),
            protection: weft_types::Protection::of_members(scope.groups[0].len()),
            striping: Striping { unit_blocks: 16, width: 1, object_blocks: 1024 },
            domain: FailureDomain::Node,
            thin: false,
            created_ms: 0,
            new_groups,
            span: SpanPlan::NewTable { groups: groups.clone(), count: groups.len() as u32 },
        };
        take(&mut map, Change::CreateVolume(volume));
        World { scope, nodes, groups, starts: Vec::new(), map: Shared::new(map) }
    }

    /// Begins at every state of these stories.
    pub fn telling(mut self, stories: &[Vec<Part>]) -> World {
        self.starts = stories.iter().flat_map(|parts| told(&self, parts)).collect();
        self
    }

    /// Everyone has joined, and has just been granted a lease.
    pub fn beginning(&self) -> Fabric {
        let scope = &self.scope;
        let mut manager = Manager::start(self.map.clone(), scope);
        manager.age = scope.wait;
        let target = |n: usize| {
            let member = |g: &GroupId| {
                let entry = Some(&self.map.groups[g]).filter(|e| e.slot_of(Target::drive(n)).is_some());
                Member::new(entry.cloned().map(Shared::new), scope.nodes)
            };
            Target {
                up: true,
                incarnation: 1,
                medium: Medium::Sound,
                link: Some(0),
                map: Some(self.map.clone()),
                lease: scope.wait,
                was_granted: true,
                answer: None,
                pending: None,
                suspects: 0,
                promises: 0,
                since_answer: 0,
                since_pending: 0,
                report: None,
                reported: false,
                members: self.groups.iter().map(member).collect(),
            }
        };
        let targets: Vec<Target> = (0..scope.nodes).map(target).collect();
        for (node, target) in targets.iter().enumerate() {
            manager.join(node, target.incarnation, true);
            manager.known[node].granted = true;
            manager.note_adopted(node);
        }
        let writer = |g: &GroupId| {
            let entry = Shared::new(self.map.groups[g].clone());
            let acked_in = entry.epoch;
            let (entries, left) = (vec![entry.clone()], scope.writes);
            Writer { entries, entry, applied: 0, acked: 0, next: 1, left, acked_in }
        };
        Fabric {
            store: self.map.clone(),
            before: self.map.clone(),
            managers: if scope.is_broken(Broken::TwoManagersGrant) {
                vec![Some(manager), None]
            } else {
                vec![Some(manager)]
            },
            targets,
            writers: self.groups.iter().map(writer).collect(),
            left: Budget {
                crashes: scope.crashes,
                deaths: scope.deaths,
                breaks: scope.breaks,
                losses: scope.losses,
                hangups: scope.hangups,
                delays: scope.delays,
                drains: scope.drains,
                usurpers: scope.usurpers,
                accepts: scope.accepts,
            },
            seen: Seen::default(),
            fault: None,
        }
    }

    /// The state after a step, or none where the step is not possible.
    pub fn take(&self, from: &Fabric, step: Step) -> Option<Fabric> {
        let mut next = from.clone();
        let happened = match step {
            Step::Tick => self.tick(&mut next),
            Step::Join { target, manager } => self.join(&mut next, target, manager, true),
            Step::JoinInVain { target, manager } => {
                spend(&mut next.left.hangups) && self.join(&mut next, target, manager, false)
            }
            Step::Renew { target } => {
                let is_granted = self.renew(&mut next, target);
                next.targets[target].receive(&self.scope);
                is_granted
            }
            Step::RenewLate { target } => spend(&mut next.left.delays) && self.renew(&mut next, target),
            Step::Receive { target } => {
                let is_there = next.targets[target].answer.is_some();
                next.targets[target].receive(&self.scope);
                is_there
            }
            Step::HangUp { target } => {
                let had = next.targets[target].link.is_some();
                next.targets[target].hang_up();
                had && spend(&mut next.left.hangups)
            }
            Step::FetchMap { target } => self.fetch_map(&mut next, target),
            Step::PushMap { target, manager } => self.push_map(&mut next, target, manager),
            Step::Promise { target, victim, manager } => self.promise(&mut next, target, victim, manager),
            Step::Vouch { target, peer } => self.vouch(&mut next, target, peer),
            Step::Suspect { target, manager } => self.suspect(&mut next, target, manager),
            Step::Commit { manager } => self.commit_next(&mut next, manager),
            Step::Crash { target } => self.crash(&mut next, target),
            Step::Start { target } => {
                let is_down = !next.targets[target].up;
                next.targets[target].start();
                is_down
            }
            Step::Die { manager } => self.die(&mut next, manager),
            Step::Lead { manager } => self.lead(&mut next, manager),
            Step::Usurp { target, manager } => self.usurp(&mut next, target, manager),
            Step::UsurperRenews { target, manager } => self.usurper_renews(&mut next, target, manager),
            Step::Break { target } => {
                let works = next.targets[target].works();
                next.targets[target].medium = Medium::Broken;
                works && spend(&mut next.left.breaks)
            }
            Step::Lose { target } => {
                let is_there = next.targets[target].medium != Medium::Lost;
                next.targets[target].medium = Medium::Lost;
                is_there && spend(&mut next.left.losses)
            }
            Step::Report { target } => self.report(&mut next, target),
            Step::ReportArrives { target } => self.report_arrives(&mut next, target),
            Step::Teach { group, target, source } => self.teach(&mut next, group, target, source),
            Step::Copy { group, target, source } => self.copy(&mut next, group, target, source),
            Step::Verified { group, target } => self.say_verified(&mut next, group, target),
            Step::Refresh { group } => self.refresh(&mut next, group),
            Step::Write { group, target } => self.write(&mut next, group, target),
            Step::Drain { target, manager } => {
                let change = Change::DrainDrive(DrainDrive { drive: Target::drive(target), on: true });
                spend(&mut next.left.drains) && self.commit(&mut next, manager, &change)
            }
            Step::Restore { target, manager } => {
                let change = Change::RestoreDrive(RestoreDrive { drive: Target::drive(target) });
                let serves = next.managers[manager].as_ref().is_some_and(|m| m.known[target].serves());
                serves && self.commit(&mut next, manager, &change)
            }
            Step::AcceptLoss { manager } => {
                spend(&mut next.left.accepts) && self.accept_loss(&mut next, manager)
            }
        };
        (happened && next != *from).then_some(next)
    }
}

/// Takes one of a budget, if there is one.
fn spend(left: &mut u8) -> bool {
    let has = *left > 0;
    *left = left.saturating_sub(1);
    has
}

// Time, leases, promises.
impl World {
    fn tick(&self, f: &mut Fabric) -> bool {
        f.targets.iter_mut().for_each(Target::tick);
        f.managers.iter_mut().flatten().for_each(|m| m.tick(&self.scope));
        true
    }

    fn join(&self, f: &mut Fabric, target: usize, at: usize, is_answered: bool) -> bool {
        let (Some(manager), node) = (&mut f.managers[at], &mut f.targets[target]) else { return false };
        if !node.up || node.link.is_some() {
            return false;
        }
        manager.join(target, node.incarnation, node.works());
        if is_answered {
            node.link = Some(at);
            let map = manager.map.clone();
            node.adopt(target, &map, &self.scope);
        }
        true
    }

    /// Renews a lease. One that was renewed a moment ago changes nothing, unless there is news in the answer.
    fn renew(&self, f: &mut Fabric, target: usize) -> bool {
        let node = &mut f.targets[target];
        let Some(at) = node.link.filter(|_| node.up && node.answer.is_none()) else { return false };
        let Some(manager) = &mut f.managers[at] else { return false };
        if node.map.as_ref().is_some_and(|m| m.version > manager.map.version)
            && !self.scope.is_broken(Broken::EpochUsedAgain)
        {
            // The manager's store is older than the drives: it stops.
            return false;
        }
        let adopted = node.map.as_ref().map_or(0, |m| m.version.0);
        match manager.renew(target, node.incarnation, adopted, &self.scope) {
            Ok(grant) => node.expect(grant),
            Err(Denied::JoinFirst) => node.hang_up(),
            Err(Denied::NotReady) => {}
        }
        true
    }

    fn fetch_map(&self, f: &mut Fabric, target: usize) -> bool {
        let node = &mut f.targets[target];
        if node.pending.is_none() {
            return false;
        }
        let Some(manager) = node.link.and_then(|at| f.managers[at].as_ref()) else { return false };
        node.adopt(target, &manager.map, &self.scope);
        true
    }

    fn push_map(&self, f: &mut Fabric, target: usize, at: usize) -> bool {
        let (Some(manager), node) = (&mut f.managers[at], &mut f.targets[target]) else { return false };
        if !manager.is_usurped(target) {
            if !node.up || !manager.can_ask(target) {
                return false;
            }
            node.adopt(target, &manager.map, &self.scope);
        }
        manager.note_adopted(target);
        true
    }

    fn promise(&self, f: &mut Fabric, target: usize, victim: usize, at: usize) -> bool {
        let (Some(manager), node) = (&mut f.managers[at], &mut f.targets[target]) else { return false };
        if !manager.wants_promise(target, victim) {
            return false;
        }
        if !manager.is_usurped(target) {
            if !node.up || !manager.can_ask(target) {
                return false;
            }
            node.promise(victim);
        }
        manager.note_promise(target, victim);
        true
    }

    /// A word lasts a lease from when it was asked for; it is asked for when the manager's is half gone.
    fn vouch(&self, f: &mut Fabric, target: usize, peer: usize) -> bool {
        if !f.targets[target].works() || !f.targets[target].was_granted {
            return false;
        }
        if f.targets[target].lease > self.scope.wait / 2 || f.targets[target].map.is_none() {
            return false;
        }
        let mut any = false;
        for at in 0..self.groups.len() {
            let member = &f.targets[target].members[at];
            let Some(entry) = &member.entry else { continue };
            let is_asked = |n| entry.write_set().any(|d| d == Target::drive(n));
            if !is_asked(target) || !is_asked(peer) {
                continue;
            }
            if f.targets[peer].vouches_for(peer, target, at, entry.epoch, &self.scope) {
                f.targets[target].members[at].vouches[peer] = self.scope.wait;
                any = true;
            }
        }
        any
    }

    fn suspect(&self, f: &mut Fabric, target: usize, at: usize) -> bool {
        // A connection that was lost and cannot be made again is a reason as well.
        let is_cut_off = f.targets[target].link != Some(at);
        let Some(manager) = &mut f.managers[at] else { return false };
        let known = &manager.known[target];
        let has_reason = manager.is_silent(target, &self.scope) || (known.granted && is_cut_off);
        if known.suspicion.is_some() || !has_reason {
            return false;
        }
        manager.suspect(target);
        true
    }
}

// Processes and drives.
impl World {
    fn crash(&self, f: &mut Fabric, target: usize) -> bool {
        let node = &mut f.targets[target];
        if !node.up || !spend(&mut f.left.crashes) {
            return false;
        }
        node.crash();
        node.forget_left_groups(target);
        true
    }

    fn die(&self, f: &mut Fabric, at: usize) -> bool {
        if f.managers[at].is_none() || !spend(&mut f.left.deaths) {
            return false;
        }
        f.managers[at] = None;
        for target in f.targets.iter_mut().filter(|t| t.link == Some(at)) {
            // What it had granted may still arrive.
            target.link = None;
        }
        true
    }

    fn lead(&self, f: &mut Fabric, at: usize) -> bool {
        if f.managers[at].is_some() {
            return false;
        }
        if self.scope.is_broken(Broken::EpochUsedAgain) {
            f.store = f.before.clone();
        }
        f.managers[at] = Some(Manager::start(f.store.clone(), &self.scope));
        true
    }

    /// The first process hangs, and has lost its connection; it may serve on as long as it is vouched for.
    fn usurp(&self, f: &mut Fabric, target: usize, at: usize) -> bool {
        let node = &f.targets[target];
        let Some(manager) = &mut f.managers[at] else { return false };
        if !node.works() || node.link.is_some() || !spend(&mut f.left.usurpers) {
            return false;
        }
        manager.join(target, USURPER, false);
        true
    }

    fn usurper_renews(&self, f: &mut Fabric, target: usize, at: usize) -> bool {
        let Some(manager) = &mut f.managers[at] else { return false };
        let newest = manager.map.version.0;
        manager.is_usurped(target) && manager.renew(target, USURPER, newest, &self.scope).is_ok()
    }

    fn report(&self, f: &mut Fabric, target: usize) -> bool {
        let node = &mut f.targets[target];
        let has_news = node.medium != Medium::Sound && !node.reported && node.report.is_none();
        if !node.up || !has_news || node.link.is_none() {
            return false;
        }
        (node.report, node.reported) = (Some(node.incarnation), true);
        true
    }

    /// The word of a process arrives, perhaps after its end.
    fn report_arrives(&self, f: &mut Fabric, target: usize) -> bool {
        let node = &mut f.targets[target];
        let Some(from) = node.report.take() else { return false };
        // The manager of then may be gone, and the word with it; it is then said again.
        node.reported = from == node.incarnation && node.link.is_some();
        let Some(manager) = f.managers.iter_mut().flatten().next() else { return true };
        let known = &mut manager.known[target];
        let is_of_present = known.incarnation == Some(from)
            || (known.incarnation.is_some() && self.scope.is_broken(Broken::FormerProcessIsHeard));
        if is_of_present {
            known.failed = true;
        } else {
            node.reported = false;
        }
        true
    }
}

// Resync and writes.
impl World {
    fn teach(&self, f: &mut Fabric, at: usize, target: usize, source: usize) -> bool {
        let node = &f.targets[target];
        let member = &node.members[at];
        let (Some(entry), Some(_)) = (member.entry.clone(), member.syncing(target)) else { return false };
        let is_in_sync = entry.read_set().any(|d| d == Target::drive(source));
        if !node.works() || member.may_copy || !is_in_sync || !f.targets[source].works() {
            return false;
        }
        f.targets[source].adopt_entry(source, at, &entry);
        let member = &mut f.targets[target].members[at];
        member.taught |= bit(source);
        member.may_copy = entry.read_set().all(|d| member.taught & bit(Target::index(d)) != 0);
        if member.may_copy {
            member.taught = 0;
        }
        true
    }

    fn copy(&self, f: &mut Fabric, at: usize, target: usize, source: usize) -> bool {
        let node = &f.targets[target];
        let member = &node.members[at];
        let (Some(entry), Some(_)) = (&member.entry, member.syncing(target)) else { return false };
        let may = member.may_copy || self.scope.is_broken(Broken::CopyTooEarly);
        let is_in_sync = entry.read_set().any(|d| d == Target::drive(source));
        let knows = f.targets[source].members[at].epoch() == entry.epoch
            || self.scope.is_broken(Broken::CopyTooEarly);
        let serves = knows && f.targets[source].serves_reads(source, at, &self.scope);
        if !node.works() || !may || member.verified || !is_in_sync || !serves {
            return false;
        }
        let value = f.targets[source].members[at].value;
        let member = &mut f.targets[target].members[at];
        (member.value, member.verified) = (value, true);
        true
    }

    fn say_verified(&self, f: &mut Fabric, at: usize, target: usize) -> bool {
        let node = &f.targets[target];
        let member = &node.members[at];
        let Some(stint) = member.syncing(target) else { return false };
        let says = member.verified || self.scope.is_broken(Broken::PromoteWithoutResync);
        let Some(manager) = node.link.and_then(|m| f.managers[m].as_mut()) else { return false };
        node.works() && says && manager.note_verified(self.groups[at], Target::drive(target), stint)
    }

    fn refresh(&self, f: &mut Fabric, at: usize) -> bool {
        let newest = &f.store.groups[&self.groups[at]];
        self.use_entry(&mut f.writers[at], newest)
    }

    /// The writer goes on with a newer entry: its write goes to the whole write set anew.
    fn use_entry(&self, writer: &mut Writer, entry: &Group) -> bool {
        if entry.epoch <= writer.entry.epoch {
            return false;
        }
        (writer.entry, writer.applied) = (Shared::new(entry.clone()), 0);
        true
    }

    fn write(&self, f: &mut Fabric, at: usize, target: usize) -> bool {
        let writer = &f.writers[at];
        let entry = writer.entry.clone();
        let is_asked = entry.write_set().any(|d| d == Target::drive(target));
        if !is_asked || writer.left == 0 || writer.applied & bit(target) != 0 {
            return false;
        }
        let node = &mut f.targets[target];
        if !node.holds_lease(target, at, &self.scope) {
            return false;
        }
        if let Some(newer) = node.members[at].entry.clone().filter(|e| e.epoch > entry.epoch) {
            return self.use_entry(&mut f.writers[at], &newer);
        }
        if !node.admits(target, at, &entry, &self.scope) {
            // The writer teaches the entry that is not known here, and asks again.
            let before = node.members[at].clone();
            node.adopt_entry(target, at, &entry);
            return node.members[at] != before;
        }
        node.adopt_entry(target, at, &entry);
        if node.members[at].epoch() != entry.epoch || !node.admits(target, at, &entry, &self.scope) {
            return true;
        }
        let writer = &mut f.writers[at];
        node.members[at].value = writer.next;
        writer.applied |= bit(target);
        if entry.write_set().all(|d| writer.applied & bit(Target::index(d)) != 0) {
            (writer.acked, writer.next, writer.left) = (writer.next, writer.next + 1, writer.left - 1);
            writer.acked_in = writer.acked_in.max(entry.epoch);
            writer.applied = 0;
        }
        true
    }
}

// Commits.
impl World {
    fn commit_next(&self, f: &mut Fabric, at: usize) -> bool {
        let Some(manager) = &mut f.managers[at] else { return false };
        match manager.decide(&self.nodes, &self.scope) {
            Some(change) => self.commit(f, at, &change),
            None => false,
        }
    }

    /// A manager commits a change: apply, compare and swap, take over. One that comes too late stops.
    fn commit(&self, f: &mut Fabric, at: usize, change: &Change) -> bool {
        let Some(manager) = &f.managers[at] else { return false };
        let old = manager.map.clone();
        let Ok((next, _)) = apply(&old, change) else { return false };
        let next = self.break_rules(&old, next, change);
        if next.groups.values().any(|g| g.epoch.0 > self.scope.epochs) {
            return false;
        }
        if f.store.version != old.version {
            f.managers[at] = None;
            f.targets.iter_mut().filter(|t| t.link == Some(at)).for_each(Target::hang_up);
            return true;
        }
        let mut wrong = check(&next).into_iter().chain(check_step(&old, &next));
        f.fault = wrong.next().map(|violation| violation.to_string());
        f.seen.note(change);
        let next = Shared::new(next);
        for (writer, id) in f.writers.iter_mut().zip(&self.groups) {
            let entry = &next.groups[id];
            if writer.entries.last().is_none_or(|e| e.epoch != entry.epoch) {
                writer.entries.push(Shared::new(entry.clone()));
            }
        }
        let before = std::mem::replace(&mut f.store, next.clone());
        // Only a failover to an older map makes a difference of it.
        f.before = if self.scope.is_broken(Broken::EpochUsedAgain) { before } else { next.clone() };
        let manager = f.managers[at].as_mut().expect("it has just decided");
        manager.map = next;
        manager.note_evictions(&old);
        true
    }

    /// The map that a manager without one of the rules of the changes would commit.
    fn break_rules(&self, old: &FabricMap, mut next: FabricMap, change: &Change) -> FabricMap {
        next.groups.update_each(|group| {
            let id = group.id;
            for slot in &mut group.slots {
                let was = old.groups[&id].slot_of(slot.drive).map(|s| s.role);
                let is_back = was == Some(Role::Out) && slot.role == Role::Syncing;
                if is_back && self.scope.is_broken(Broken::RejoinInSync) {
                    slot.role = Role::InSync;
                }
                if matches!(change, Change::Evict(_)) && self.scope.is_broken(Broken::EvictTheLast) {
                    (slot.role, slot.since) = (Role::Out, group.epoch);
                }
            }
        });
        next
    }

    /// A person accepts the loss of every in-sync member, all of which are gone for good, as `loss.rs` of the
    /// manager goes about it: the copy with the newest write that is left goes on.
    fn accept_loss(&self, f: &mut Fabric, at: usize) -> bool {
        let Some(manager) = &f.managers[at] else { return false };
        let map = manager.map.clone();
        let lost = |n: &usize| f.targets[*n].medium == Medium::Lost;
        let destroyed = (0..f.targets.len()).filter(lost).map(Target::drive).collect();
        let mut survivors = BTreeMap::new();
        for group in lost_groups(&map, &destroyed) {
            let members = group.slots.iter().map(|s| s.drive);
            let left = members.filter(|d| !destroyed.contains(d)).map(Target::index);
            let at = self.groups.iter().position(|g| *g == group.id).expect("it is one of them");
            let newest = left.max_by_key(|n| f.targets[*n].members[at].value);
            let Some(survivor) = newest.filter(|n| f.targets[*n].works()) else { return false };
            survivors.insert(group.id, Survivor::Older(Target::drive(survivor)));
        }
        let change = AcceptLoss { destroyed, older: Default::default(), survivors: survivors.clone() };
        if !self.commit(f, at, &Change::AcceptLoss(change)) {
            return false;
        }
        for (id, survivor) in survivors {
            let at = self.groups.iter().position(|g| *g == id).expect("it is one of them");
            let Survivor::Older(drive) = survivor else { unreachable!("a member was chosen") };
            // What is lost is lost by a person's word: the survivor's history is the true one.
            let writer = &mut f.writers[at];
            writer.acked = f.targets[Target::index(drive)].members[at].value;
            writer.next = (writer.next / HISTORY + 1) * HISTORY;
            writer.acked_in = f.store.groups[&id].epoch;
            self.refresh(f, at);
        }
        true
    }
}

impl Seen {
    fn note(&mut self, change: &Change) {
        match change {
            Change::Evict(_) => self.evicted = true,
            Change::Promote(_) => self.promoted = true,
            Change::Rebuild(_) => self.rebuilt = true,
            Change::FinishRelocation(_) => self.relocated = true,
            Change::AcceptLoss(_) => self.loss_accepted = true,
            _ => {}
        }
    }
}
