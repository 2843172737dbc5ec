//! Which members clients cannot reach although the manager can, and what follows.
//!
//! A write waits for every member of its group. A client that has lost its way to one target therefore waits for as
//! long as the manager, which reaches that target, keeps it in the group. Clients say which targets have not answered
//! them ([`ReachReport`]); this file decides whose members leave which groups, and when they may come back:
//!
//! ```text
//!            silent for 1 1/4 leases, or 5 if       reports end            quiet for the hold-down
//!   reported -------------------------------> out -------------> held down ------------------------> back
//!              only this client has the trouble     <-----------
//!                                                    a new report
//! ```
//! It owns the evidence that counts, the bounds, and the hold-down. It never does I/O and reads no clock: times are
//! milliseconds on the manager's clock. How a member leaves is in `demote.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use weft_types::{
    AttachMode, DriveId, FabricMap, Group, GroupId, NodeId, Role, Session, SessionState, TargetId,
};

/// Leases for which a report counts if it is not repeated. A client repeats it twice per lease.
const EXPIRES_LEASES: u64 = 3;

/// Quarters of a lease of silence after which a node counts as unreachable. The manager itself takes a
/// node for gone after four; so a node that is gone for everybody is known as such first, and is not
/// held down when it is back.
const PATIENCE_QUARTERS: u64 = 5;

/// The same where other clients reach the node, or it is not known whether they do. Their volumes lose a copy for the
/// sake of one client, so a cut that heals soon must not do that. It is a third of the time after which a client's
/// request fails, with the usual durations.
const ALONE_QUARTERS: u64 = 20;

/// Leases for which a member is held down after the last report has ended: the first time, and at most. It doubles from
/// one time to the next, so a way that comes and goes does not have the member copied again and again.
const HOLD_FIRST_LEASES: u64 = 5;
const HOLD_LONGEST_LEASES: u64 = 150;

/// One node of so many may be left out at a time, and always one: a fault that cuts clients off from more of them is
/// not made better by more copies that are missing.
const NODES_PER_CUT: usize = 4;

/// What the client of a session said last of the targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReachReport {
    /// When it said so.
    pub said_ms: u64,
    /// The targets that do not answer it, with since when it has waited in vain.
    pub silent: BTreeMap<TargetId, u64>,
    /// The targets that have answered it, with when they did last.
    pub heard: BTreeMap<TargetId, u64>,
}

/// Why a member that a client cannot reach stays in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// No other in-sync member serves and is reached by all who complain.
    LastReached,
    /// Only one client has the trouble, and the group misses a copy already.
    Degraded,
    /// As many nodes as may be left out at a time are left out.
    TooManyNodes,
    /// The client reaches fewer nodes than it misses: its own network is at fault.
    OwnNetwork,
    /// Only one client has the trouble, and it has never reached the node: it came with its fault.
    NeverReached,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kept::LastReached => "no other up-to-date copy serves and is reached by these clients",
            Kept::Degraded => "a copy is missing there already, and other clients reach the node",
            Kept::TooManyNodes => "as many nodes as can be spared are left out already",
            Kept::OwnNetwork => "the client reaches fewer nodes than it misses",
            Kept::NeverReached => "the client has never reached the node, and other clients do",
        })
    }
}

/// A target that clients cannot reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Since when the first of those who complain now has had no answer.
    pub since_ms: u64,
    /// Who complains now, as they call themselves.
    pub clients: BTreeSet<String>,
    /// Whether only one client has the trouble, while others reach the node or have not said that they do not.
    pub is_alone: bool,
    /// When its members leave, if the reports go on.
    pub due_ms: u64,
    /// The members that are to leave their groups and stay out, with since when.
    pub members: BTreeMap<(GroupId, DriveId), u64>,
    /// Groups that they must not leave, and why.
    pub kept: BTreeMap<GroupId, Kept>,
    /// When the last report ended; none while one stands.
    pub ended_ms: Option<u64>,
    /// How many times members were left out.
    times: u32,
}

/// All targets that clients cannot reach, from one look to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    cuts: BTreeMap<TargetId, Cut>,
}

/// A report that counts.
struct Voice<'a> {
    session: &'a Session,
    report: &'a ReachReport,
}

impl Voice<'_> {
    /// Processes of one machine and program count as one client: they share their way. A name ends with the number of
    /// the process in brackets.
    fn client(&self) -> &str {
        client_of(&self.session.client)
    }

    /// Whether the client reaches fewer nodes than it misses: none of whose targets it misses, and some.
    fn is_cut_off(&self, map: &FabricMap, since_ms: u64) -> bool {
        let node_of = |target: &TargetId| map.targets.get(target).map(|t| t.node);
        let missed: BTreeSet<NodeId> = self.report.silent.keys().filter_map(node_of).collect();
        let heard = self.report.heard.iter().filter(|(_, at)| **at >= since_ms);
        let reached: BTreeSet<NodeId> = heard.filter_map(|(target, _)| node_of(target)).collect();
        reached.difference(&missed).count() < missed.len()
    }
}

fn client_of(name: &str) -> &str {
    name.rsplit_once('[').map_or(name, |(client, _)| client)
}

/// What a look goes by.
struct Look<'a> {
    map: &'a FabricMap,
    reports: &'a BTreeMap<weft_types::SessionId, ReachReport>,
    serves: &'a dyn Fn(DriveId) -> bool,
    up_since: &'a dyn Fn(TargetId) -> u64,
    now_ms: u64,
    lease_ms: u64,
}

impl Reach {
    /// The targets that somebody complains of, or that are held down.
    pub fn cuts(&self) -> impl Iterator<Item = (TargetId, &Cut)> {
        let is_current = |cut: &&Cut| cut.ended_ms.is_none() || !cut.members.is_empty();
        self.cuts.iter().filter(move |(_, cut)| is_current(cut)).map(|(target, cut)| (*target, cut))
    }

    /// The members that are to leave their groups and stay out, with since when, in milliseconds.
    pub fn members(&self) -> BTreeMap<(GroupId, DriveId), u64> {
        self.cuts.values().flat_map(|cut| &cut.members).map(|(member, since)| (*member, *since)).collect()
    }

    /// When the members of a cut whose reports have ended are taken back.
    pub fn back_ms(&self, map: &FabricMap, cut: &Cut) -> Option<u64> {
        Some(cut.ended_ms? + hold_ms(u64::from(map.durations.lease_ms), cut.times))
    }

    /// Takes account of what clients have said by now. `serves` tells whether a drive's target is up and serves it,
    /// `up_since` since when a target is up: a silence of before says nothing of the way to it.
    pub fn look(
        &mut self,
        map: &FabricMap,
        reports: &BTreeMap<weft_types::SessionId, ReachReport>,
        serves: &dyn Fn(DriveId) -> bool,
        up_since: &dyn Fn(TargetId) -> u64,
        now_ms: u64,
    ) {
        let lease_ms = u64::from(map.durations.lease_ms);
        let look = Look { map, reports, serves, up_since, now_ms, lease_ms };
        let mut targets: BTreeSet<TargetId> = self.cuts.keys().copied().collect();
        targets.extend(look.voices().flat_map(|v| v.report.silent.keys().copied()));
        for target in targets {
            let complaining: Vec<Voice<'_>> =
                look.voices().filter(|v| v.report.silent.contains_key(&target)).collect();
            let mut cut = self.cuts.remove(&target).unwrap_or_default();
            cut.members.retain(|(group, drive), _| look.is_concerned(*group, *drive));
            match complaining.is_empty() || !map.targets.contains_key(&target) {
                true => cut.quieten(&look),
                false => self.judge(&mut cut, &look, target, &complaining),
            }
            if !cut.is_forgotten(&look) {
                self.cuts.insert(target, cut);
            }
        }
    }

    /// Clients complain of the target: its members leave as soon as, and where, they may.
    fn judge(&self, cut: &mut Cut, look: &Look<'_>, target: TargetId, complaining: &[Voice<'_>]) {
        let up_since = (look.up_since)(target);
        let since = |v: &Voice<'_>| v.report.silent.get(&target).map_or(look.now_ms, |at| up_since.max(*at));
        cut.since_ms = complaining.iter().map(since).min().unwrap_or(look.now_ms);
        cut.clients = complaining.iter().map(|v| v.session.client.clone()).collect();
        cut.ended_ms = None;
        cut.kept.clear();
        // One that misses most of what it talks to says more of its own network than of the target.
        let able: Vec<&Voice<'_>> =
            complaining.iter().filter(|v| !v.is_cut_off(look.map, cut.since_ms)).collect();
        let least_ms = PATIENCE_QUARTERS * look.lease_ms / 4;
        let waited = |v: &&&Voice<'_>| look.now_ms.saturating_sub(since(v)) >= least_ms;
        let clients: BTreeSet<&str> = able.iter().filter(waited).map(|v| v.client()).collect();
        cut.is_alone = clients.len() < 2 && !look.is_only_one(target, complaining, cut.since_ms);
        let quarters = if cut.is_alone { ALONE_QUARTERS } else { PATIENCE_QUARTERS };
        cut.due_ms = cut.since_ms + quarters * look.lease_ms / 4;
        let all: Vec<&Voice<'_>> = complaining.iter().collect();
        let is_known = able.iter().any(|v| v.report.heard.contains_key(&target));
        let general = match () {
            () if able.is_empty() => Some(Kept::OwnNetwork),
            () if cut.is_alone && !is_known => Some(Kept::NeverReached),
            () if !self.may_spare(look, target) => Some(Kept::TooManyNodes),
            () => None,
        };
        let mut leaving = BTreeMap::new();
        for (group, users) in look.groups_of(if able.is_empty() { &all } else { &able }) {
            let kept = general.or_else(|| self.why_kept(cut.is_alone, look, target, group, &users));
            for drive in group.write_set().filter(|d| look.map.target_of(*d) == Some(target)) {
                let key = (group.id, drive);
                match kept {
                    _ if cut.members.contains_key(&key) => {}
                    Some(kept) => drop(cut.kept.insert(group.id, kept)),
                    // One that is gone for the manager, too, is evicted without this.
                    None if look.now_ms >= cut.due_ms && (look.serves)(drive) => {
                        leaving.insert(key, look.now_ms);
                    }
                    None => {}
                }
            }
        }
        if cut.members.is_empty() && !leaving.is_empty() {
            cut.times += 1;
        }
        cut.members.extend(leaving);
    }

    /// Whether the target's node may be left out beside those of which a target is.
    fn may_spare(&self, look: &Look<'_>, target: TargetId) -> bool {
        let nodes: BTreeSet<NodeId> = look.map.drives.values().map(|d| d.node).collect();
        let node_of = |target: &TargetId| look.map.targets.get(target).map(|t| t.node);
        let out = self.cuts.iter().filter(|(_, cut)| !cut.members.is_empty());
        let out: BTreeSet<Option<NodeId>> = out.map(|(target, _)| node_of(target)).collect();
        let others = out.iter().filter(|node| **node != node_of(&target)).count();
        others < (nodes.len() / NODES_PER_CUT).max(1)
    }

    /// Why the group must keep its member on the target; none where it can spare it.
    fn why_kept(
        &self,
        is_alone: bool,
        look: &Look<'_>,
        target: TargetId,
        group: &Group,
        users: &[&Voice<'_>],
    ) -> Option<Kept> {
        let is_reached = |drive: &DriveId| {
            let Some(other) = look.map.target_of(*drive).filter(|t| *t != target) else { return false };
            let is_left_out = self.cuts.get(&other).is_some_and(|c| !c.members.is_empty());
            let from = look.now_ms.saturating_sub(EXPIRES_LEASES * look.lease_ms);
            let hears = |v: &&&Voice<'_>| {
                let is_heard = v.report.heard.get(&other).is_some_and(|at| *at >= from);
                is_heard && !v.report.silent.contains_key(&other)
            };
            (look.serves)(*drive) && !is_left_out && users.iter().all(|v| hears(&v))
        };
        if !group.read_set().any(|d| is_reached(&d)) {
            return Some(Kept::LastReached);
        }
        let is_good = |s: &weft_types::Slot| s.role == Role::InSync && (look.serves)(s.drive);
        let is_whole =
            group.slots.iter().filter(|s| look.map.target_of(s.drive) != Some(target)).all(is_good);
        (is_alone && !is_whole).then_some(Kept::Degraded)
    }
}

impl Cut {
    /// Nobody complains any more.
    fn quieten(&mut self, look: &Look<'_>) {
        let ended_ms = *self.ended_ms.get_or_insert(look.now_ms);
        self.clients.clear();
        self.kept.clear();
        if look.now_ms >= ended_ms + hold_ms(look.lease_ms, self.times) {
            self.members.clear();
        }
    }

    /// Whether nothing of it needs to be known: how often it came back counts until it was quiet for long.
    fn is_forgotten(&self, look: &Look<'_>) -> bool {
        let quiet_ms = self.ended_ms.map_or(0, |ended| look.now_ms.saturating_sub(ended));
        let longest = HOLD_LONGEST_LEASES * look.lease_ms;
        let is_over = self.ended_ms.is_some() && self.members.is_empty();
        is_over && (self.times == 0 || quiet_ms >= hold_ms(look.lease_ms, self.times) + longest)
    }
}

impl<'a> Look<'a> {
    /// The reports that count: of open sessions that write, and not older than they may be.
    fn voices(&self) -> impl Iterator<Item = Voice<'a>> {
        let fresh_ms = EXPIRES_LEASES * self.lease_ms;
        let (map, now_ms) = (self.map, self.now_ms);
        self.reports.iter().filter(move |(_, r)| now_ms.saturating_sub(r.said_ms) <= fresh_ms).filter_map(
            move |(id, report)| {
                let session = map.sessions.get(id).filter(|s| s.state == SessionState::Open)?;
                // A read finds another copy.
                (session.mode != AttachMode::ReadOnly).then_some(Voice { session, report })
            },
        )
    }

    /// Whether every other client has said something since the silence began, and none of them that it reaches the target.
    fn is_only_one(&self, target: TargetId, complaining: &[Voice<'_>], since_ms: u64) -> bool {
        // The word of one that was heard when the silence began is about the time before.
        let from = since_ms + self.lease_ms / 4;
        let is_other = |s: &&Session| {
            let own = complaining.iter().any(|v| v.client() == client_of(&s.client));
            s.state == SessionState::Open && !own
        };
        self.map.sessions.values().filter(is_other).all(|session| {
            let report = self.reports.get(&session.id);
            let has_said = report.is_some_and(|r| r.said_ms >= from);
            let has_heard = report.and_then(|r| r.heard.get(&target)).is_some_and(|at| *at >= from);
            has_said && !has_heard
        })
    }

    /// Whether a member that was left out is still listed, and did not die before it had left.
    fn is_concerned(&self, group: GroupId, drive: DriveId) -> bool {
        let slot = self.map.groups.get(&group).and_then(|g| g.slot_of(drive));
        slot.is_some_and(|s| s.role != Role::InSync || (self.serves)(drive))
    }

    /// The groups of the volumes that these clients write to, with who of them does.
    fn groups_of<'v>(&self, voices: &[&'v Voice<'a>]) -> Vec<(&'a Group, Vec<&'v Voice<'a>>)> {
        let mut users: BTreeMap<GroupId, Vec<&'v Voice<'a>>> = BTreeMap::new();
        for voice in voices {
            let volume = self.map.volumes.get(&voice.session.volume);
            let groups: BTreeSet<GroupId> = volume.into_iter().flat_map(|v| v.groups()).copied().collect();
            groups.into_iter().for_each(|group| users.entry(group).or_default().push(voice));
        }
        users.into_iter().filter_map(|(id, users)| Some((self.map.groups.get(&id)?, users))).collect()
    }
}

/// For how long members stay out after the last report, when they were left out so many times.
fn hold_ms(lease_ms: u64, times: u32) -> u64 {
    let doubled = HOLD_FIRST_LEASES << times.saturating_sub(1).min(8);
    if times == 0 { 0 } else { doubled.min(HOLD_LONGEST_LEASES) * lease_ms }
}
