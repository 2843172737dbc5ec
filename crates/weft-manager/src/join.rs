//! A target joins: it, its node and its drives enter the map, or are found there.
//!
//! It owns the checks of who is who. A target that was not evicted keeps its roles: its log has every
//! acknowledged write. Nothing is committed before every check has passed.

use crate::error::{CommitError, Denied, RECOVER_HINT};
use crate::event::Subjects;
use crate::manager::{Manager, wall_clock_ms};
use crate::member::Member;
use crate::process::Process;
use std::collections::{BTreeMap, BTreeSet};
use weft_membership::{
    AddDrive, AddTarget, AssignDrive, Change, CloseSession, CreatePool, JoinNode, MoveTarget, RemoveTarget,
    SetDevice,
};
use weft_rt::{Instant, now};
use weft_rules::{Mutation, mutated};
use weft_types::limits::{DRIVE_PATH_BYTES_MAX, DRIVES_PER_TARGET_MAX, TARGETS_PER_NODE_MAX};
use weft_types::{
    DeviceId, DriveId, DriveState, FabricMap, GroupId, MapVersion, Node, NodeId, PoolId, Session, SessionId,
    SessionState, Target, TargetId, Version, Volume, VolumeId, with_causes,
};
use weft_wire::Status;
use weft_wire::control::{DriveReport, Join};

/// The pool that drives join which nobody has put into another one.
pub(crate) const DEFAULT_POOL: &str = "default";

/// A target that joins, by its name and place.
struct Joining<'a> {
    /// The node's name.
    name: &'a str,
    /// Where the target listens.
    addr: &'a str,
    /// Which of the node's targets it is.
    index: u32,
    /// Its number, if it is listed.
    known: Option<TargetId>,
    process: Process,
}

impl Joining<'_> {
    /// The target of the map that it is, if it is listed.
    fn listed<'m>(&self, map: &'m FabricMap) -> Option<&'m Target> {
        map.targets.get(&self.known?)
    }

    /// In the words of people.
    fn title(&self) -> String {
        match self.process.targets {
            1 => format!("target '{}'", self.name),
            _ => format!("target {} of node '{}'", self.index, self.name),
        }
    }
}

/// Drives that were refused, by what is known of why.
struct Causes {
    older: BTreeSet<DriveId>,
    failed_before: BTreeSet<DriveId>,
    floorless: BTreeSet<DriveId>,
}

impl Manager {
    /// Takes a target into the fabric: from now on it may ask for its lease. `hello` is when it said hello on
    /// the connection on which it joins. Returns its number, and the drives that it must not serve, and why.
    ///
    /// # Errors
    /// If another target has its name, or a later process of this one has joined. If it knows a newer map
    /// than this manager: then the manager stops for good. If it is not the first of its node, and that one,
    /// or a member that does not know of such targets, is in the way.
    pub(crate) fn join(
        &self,
        join: Join,
        hello: Instant,
    ) -> Result<(TargetId, Vec<(DriveId, String)>), Denied> {
        // Behind another manager, this one's map may be an old one while the store is not.
        self.check_term().map_err(|reason| Denied::new(Status::NotReady, reason))?;
        let map = self.map();
        let Join { node, addr, incarnation, drives, knows_floors, knows_targets, knows_lanes, .. } = join;
        let (knows_file_systems, knows_spread, serves) =
            (join.knows_file_systems, join.knows_spread, join.serves);
        let process = Process {
            incarnation,
            id: if join.process == 0 { incarnation } else { join.process },
            targets: join.targets.max(1),
            hello,
            knows_floors,
            knows_targets,
            knows_lanes,
            knows_file_systems,
            knows_spread,
        };
        let known = self.state.borrow().target_at(&node, join.target);
        let joining = &Joining { name: &node, addr: &addr, index: join.target, known, process };
        check_reports(joining, &drives)?;
        self.check_is_newest(&map, joining)?;
        // What is only decided here nobody else can know.
        if let Some(text) = what_is_newer(&self.durable_map(), &drives) {
            return Err(Denied::new(Status::NotReady, self.halt_as_stale(text)));
        }
        self.check_namesake(&map, joining)?;
        self.check_all_know_targets(&map, joining)?;
        check_knows_lanes(&map, joining)?;
        check_knows_file_systems(&map, joining)?;
        check_knows_spread(&map, joining)?;
        let refused = self.check_drives(&map, joining, &drives);
        let (left_out, drives): (Vec<_>, Vec<_>) =
            drives.into_iter().partition(|d| refused.contains_key(&d.id));
        let refused_for = |cause: &dyn Fn(&DriveReport) -> Option<String>| -> BTreeSet<DriveId> {
            left_out.iter().filter(|r| refused.get(&r.id) == cause(r).as_ref()).map(|r| r.id).collect()
        };
        let causes = Causes {
            older: refused_for(&|r| self.why_older(&map, joining, r)),
            failed_before: refused_for(&|r| self.why_failed(r)),
            floorless: refused_for(&|r| self.why_floorless(&map, joining, r)),
        };
        let target = self.enter_target(&map, joining)?;
        self.enter_drives(target, &drives)?;
        let is_restart = self.note_join(target, process, &drives, refused.clone(), causes);
        self.forget_retired(target);
        self.end_former_servers(target, &serves)?;
        self.stops_until.set(None);
        let verb = if is_restart { "is back with" } else { "is there with" };
        let who = match process.targets {
            1 => format!("target of node '{node}'"),
            _ => joining.title(),
        };
        self.tell(
            "target-joined",
            format!("{who} at {addr} {verb} {} drives", drives.len()),
            Subjects::node(&node).and_drives(&self.map(), drives.iter().map(|d| d.id)),
        );
        Ok((target, refused.into_iter().collect()))
    }

    /// Ends the sessions under which processes of a target before this one have served shards.
    fn end_former_servers(&self, target: TargetId, serves: &BTreeSet<SessionId>) -> Result<(), Denied> {
        let map = self.map();
        let shards = map.file_systems().filter_map(|volume| volume.files()).flat_map(|files| &files.shards);
        let own: Vec<VolumeId> = shards.filter(|s| s.server == Some(target)).map(|s| s.volume).collect();
        let is_former = |s: &&Session| own.contains(&s.volume) && s.state == SessionState::Open;
        let former = map.sessions.values().filter(is_former).filter(|s| !serves.contains(&s.id));
        for session in former.map(|s| s.id).collect::<Vec<_>>() {
            self.commit(&Change::CloseSession(CloseSession { session }))?;
        }
        Ok(())
    }

    /// Refuses what a process said before it ended, and what was on its way for so long that its successor
    /// has joined, or that its last word came before: by then its drives may have come further, or be gone.
    fn check_is_newest(&self, map: &FabricMap, joining: &Joining<'_>) -> Result<(), Denied> {
        let Process { incarnation, hello, .. } = joining.process;
        let state = self.state.borrow();
        if let Some(node) = map.node_named(joining.name) {
            state.check_is_newest_process(node.id, joining.process)?;
        }
        let member = joining.listed(map).and_then(|target| state.members.get(&target.id));
        let late = |text| Err(Denied::new(Status::NotReady, text));
        match member {
            Some(m) if m.incarnation != Some(incarnation) && hello < m.hello_at => {
                late(format!("a later process of {} has joined", joining.title()))
            }
            Some(m) if m.stopped == Some(incarnation) => {
                late(format!("this process of {} has stopped, as it said", joining.title()))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a second machine under the name of one that is up; a target that was restarted elsewhere gets
    /// its name back when the lease of its former self has ended.
    fn check_namesake(&self, map: &FabricMap, joining: &Joining<'_>) -> Result<(), Denied> {
        let Some(target) = joining.listed(map).filter(|t| t.addr != joining.addr) else { return Ok(()) };
        let state = self.state.borrow();
        let is_of_another = |m: &Member| m.is_up() && m.process != Some(joining.process.id);
        let mut siblings = state.members_of(target.node);
        let Some((other, _)) = siblings.find(|(_, member)| is_of_another(member)) else { return Ok(()) };
        let addr = map.targets.get(&other).map_or(&target.addr, |other| &other.addr);
        Err(Denied::new(
            Status::Refused,
            format!(
                "a target named '{}' is up at {addr}: every node needs a name of its own; \
                 if this is the same machine at a new address, stop the other target first",
                joining.name
            ),
        ))
    }

    /// Refuses a node's second target as long as members are there that would ask only its first one for its
    /// word (P2), and such members once there are second targets.
    fn check_all_know_targets(&self, map: &FabricMap, joining: &Joining<'_>) -> Result<(), Denied> {
        let refused = |text| Err(Denied::new(Status::Refused, text));
        if !joining.process.knows_targets && map.targets.len() > map.nodes.len() {
            return refused(format!(
                "node '{}' runs an older release, and this fabric has nodes with several targets, of which it would \
                 ask only the first: upgrade node '{}'",
                joining.name, joining.name
            ));
        }
        if joining.index == 0 {
            return Ok(());
        }
        let state = self.state.borrow();
        let mut members = state.members.iter();
        let older = members.find(|(_, m)| m.incarnation.is_some() && !m.knows_targets);
        match older.and_then(|(target, _)| map.node_of(*target)) {
            None => Ok(()),
            Some(older) => refused(format!(
                "node '{}' runs an older release, and would ask only the first target of node '{}' for its word: \
                 upgrade node '{}' first, or start this node with `--threads 1`",
                older.name, joining.name, older.name
            )),
        }
    }

    /// Whether a node may have several targets where nobody has asked for that: every other node has joined
    /// with a release that knows of them, or nodes have several already. Without a word of all, one that
    /// comes later may be of an older release, and would be refused because of the node that asks.
    ///
    /// # Errors
    /// With who is in the way.
    pub(crate) fn may_have_targets(&self, node: &str) -> Result<(), Denied> {
        let map = self.map();
        if map.targets.len() > map.nodes.len() {
            return Ok(());
        }
        let state = self.state.borrow();
        let knows = |target: &Target| {
            let member = state.members.get(&target.id);
            member.is_some_and(|m| m.incarnation.is_some() && m.knows_targets)
        };
        let others = map.nodes.values().filter(|other| other.name != node);
        let in_the_way = |other: &&Node| !map.targets_of(other.id).all(knows);
        match others.into_iter().find(in_the_way) {
            None => Ok(()),
            Some(other) => Err(Denied::new(
                Status::Refused,
                format!(
                    "node '{}' has not said yet whether its release knows of several targets",
                    other.name
                ),
            )),
        }
    }

    /// Finds the drives that the target must not serve, and says why. The others join all the same.
    fn check_drives(
        &self,
        map: &FabricMap,
        joining: &Joining<'_>,
        drives: &[DriveReport],
    ) -> BTreeMap<DriveId, String> {
        let (mut paths, mut refused) = (BTreeMap::new(), BTreeMap::new());
        for report in drives {
            let twin = paths.insert(report.id, &report.path);
            let why = match twin {
                Some(other) => Some(format!(
                    "drive {} was found twice, as {other} and {}: one of the two is a copy of the other; \
                     leave it out, or format it anew",
                    report.id, report.path
                )),
                None => self.why_not(map, joining, report),
            };
            let why = why.or_else(|| self.why_floorless(map, joining, report));
            let Some(why) = why else { continue };
            let is_news = {
                let state = self.state.borrow();
                let member = joining.listed(map).and_then(|target| state.members.get(&target.id));
                member.and_then(|m| m.refused.get(&report.id)) != Some(&why)
            };
            if is_news {
                let had_failed = self.state.borrow().is_to_leave(report.id);
                let what = if had_failed { "failed-drive-refused" } else { "drive-refused" };
                self.tell(what, why.clone(), Subjects::node(joining.name).and_drives(map, [report.id]));
            }
            refused.insert(report.id, why);
        }
        refused
    }

    /// Why a target cannot have a drive of its node: another target of the same process has joined with it.
    fn why_served_beside(
        &self,
        map: &FabricMap,
        joining: &Joining<'_>,
        report: &DriveReport,
    ) -> Option<String> {
        let listed = map.drives.get(&report.id)?.target;
        let own = joining.listed(map).map(|target| target.id);
        let state = self.state.borrow();
        let sibling = state.members.get(&listed).filter(|_| Some(listed) != own)?;
        let is_served = sibling.process == Some(joining.process.id) && sibling.has_drive(report.id);
        is_served.then(|| {
            format!(
                "drive {} found as {} is served by {}: it was given to two targets of one process",
                report.id,
                report.path,
                map.title_of(listed)
            )
        })
    }

    /// Why a drive that a node has found cannot be served by it.
    fn why_not(&self, map: &FabricMap, joining: &Joining<'_>, report: &DriveReport) -> Option<String> {
        let (id, path, name) = (report.id, &report.path, joining.name);
        if map.removed_drives.contains(&id) {
            return Some(format!(
                "drive {id} found as {path} was removed from the fabric, and is left alone: leave it out, or make it a \
                 new drive with `weft drive format --force`"
            ));
        }
        let listed = map.drives.get(&id)?;
        if listed.state == DriveState::Destroyed {
            return Some(format!(
                "drive {id} found as {path} was declared destroyed, and the fabric has gone on without it: what it holds \
                 counts for nothing any more, and is left as it is; `weft drive format --force` makes it a new drive"
            ));
        }
        match map.nodes.get(&listed.node).filter(|n| n.name != name) {
            None => (self.why_served_beside(map, joining, report))
                .or_else(|| self.why_older(map, joining, report))
                .or_else(|| self.why_failed(report)),
            Some(node) => {
                let is_up = self.state.borrow().members.get(&listed.target).is_some_and(|m| m.serves(id));
                let (found, hint) = if is_up {
                    (
                        "is in service",
                        "one of the two is a copy of the other: leave it out, or format it anew",
                    )
                } else {
                    ("belongs", "put it back, or start its target under the name of that node")
                };
                Some(format!(
                    "drive {id} found as {path} {found} on node '{}' as {}: {hint}",
                    node.name, listed.path
                ))
            }
        }
    }

    /// Whether a drive holds less than its target had promised that it does: it was replaced by an older copy
    /// of itself, or has lost writes. As long as a group takes it for up to date, it must not serve. Once it
    /// is out of all of them it may come back, and is compared with the other copies from its first block to
    /// its last.
    ///
    /// What a process says of a drive that it has joined with before is no older copy but an older message:
    /// it joined again, and this try was on its way for longer than what came after it.
    fn why_older(&self, map: &FabricMap, joining: &Joining<'_>, report: &DriveReport) -> Option<String> {
        let known = self.state.borrow().commits.get(&report.id).copied()?;
        let has_joined = {
            let state = self.state.borrow();
            let member = joining.listed(map).and_then(|target| state.members.get(&target.id));
            member.is_some_and(|m| m.has_joined_with(joining.process.incarnation, report.id))
        };
        if has_joined {
            return None;
        }
        let is_trusted = self.state.borrow().groups_written_by(report.id).next().is_some();
        // A target of an older release does not say.
        if report.commit == 0 || report.commit >= known || !is_trusted {
            return None;
        }
        Some(format!(
            "drive {} found as {} holds less than it had acknowledged (commit {}, it was at {known}): an older copy has \
             taken its place, or it has lost writes. It is taken out of its groups, and then brought up to date from the \
             other copies. Where it is the only one: put back what was there, or see `weft volume repair --help`",
            report.id, report.path, report.commit
        ))
    }

    /// Whether a drive is marked as failed, and other copies of what it holds are served. It was
    /// reported, and nobody was to trust it again before somebody says that it is sound: its target was
    /// just quicker than its eviction.
    fn why_failed(&self, report: &DriveReport) -> Option<String> {
        self.state.borrow().is_to_leave(report.id).then(|| {
            format!(
                "drive {} found as {} is marked as failed: it is taken out of the groups that have another \
                 copy; once it is sound, `weft drive restore` has it brought up to date",
                report.id, report.path
            )
        })
    }

    /// Why a target that does not know floors cannot serve a drive: the drive is a member of a group that
    /// has a floor (R7). The target would take versions below the floor, and so bring back what was
    /// forgotten.
    fn why_floorless(&self, map: &FabricMap, joining: &Joining<'_>, report: &DriveReport) -> Option<String> {
        let (state, name) = (self.state.borrow(), joining.name);
        let has_floor = |group: &GroupId| map.groups.get(group).is_some_and(|g| g.floor > Version::ZERO);
        let group =
            state.index.groups_of(report.id).find(has_floor).filter(|_| !joining.process.knows_floors)?;
        Some(format!(
            "drive {} found as {} is a member of group {group}, which has forgotten discards. Expected a \
             target that knows the floors of groups, found one of an older release, which would bring back \
             the data that was discarded: upgrade node '{name}', and restart its target",
            report.id, report.path
        ))
    }

    fn enter_target(&self, map: &FabricMap, joining: &Joining<'_>) -> Result<TargetId, Denied> {
        let (name, addr, index) = (joining.name.to_owned(), joining.addr.to_owned(), joining.index);
        match (joining.listed(map), map.node_named(&name)) {
            (Some(target), _) if target.addr == addr => {}
            (Some(target), _) => {
                self.commit(&Change::MoveTarget(MoveTarget { target: target.id, addr }))?;
                self.close_links_of(target.node);
            }
            (None, None) if index == 0 => {
                self.commit(&Change::JoinNode(JoinNode { name, addr }))?;
            }
            (None, Some(node)) if index > 0 && self.is_current(node.id, joining.process) => {
                self.commit(&Change::AddTarget(AddTarget { node: node.id, index, addr }))?;
            }
            (None, _) => {
                let text =
                    format!("{} comes before the first target of its node: try again", joining.title());
                return Err(Denied::new(Status::NotReady, text));
            }
        }
        let entered = self.state.borrow().target_at(joining.name, index);
        Ok(entered.expect("it is in the map now"))
    }

    /// Closes the connections to a node's targets: addresses have passed from one to another.
    fn close_links_of(&self, node: NodeId) {
        let mut state = self.state.borrow_mut();
        let targets: Vec<TargetId> = state.index.targets_of(node).collect();
        for target in targets {
            let link = state.members.get_mut(&target).and_then(|member| member.link.take());
            link.into_iter().for_each(|link| link.close());
        }
    }

    /// Whether a target of this process has joined, and none of a newer one.
    fn is_current(&self, node: NodeId, process: Process) -> bool {
        let newest = self.state.borrow().processes.newest_of(node);
        newest.is_some_and(|newest| newest == process.id || mutated(Mutation::OlderSiblingJoins))
    }

    fn enter_drives(&self, target: TargetId, drives: &[DriveReport]) -> Result<(), CommitError> {
        for report in drives {
            let map = self.map();
            let Some(listed) = map.drives.get(&report.id) else {
                self.commit(&Change::AddDrive(AddDrive {
                    drive: report.id,
                    target,
                    pool: self.default_pool()?,
                    path: report.path.clone(),
                    capacity: report.capacity,
                    device: device_of(report),
                }))?;
                continue;
            };
            if let Some(device) = device_of(report).filter(|device| *device != listed.device) {
                self.commit(&Change::SetDevice(SetDevice { drive: report.id, device }))?;
            }
            // The process has opened it, so no other process serves it; and this one deals each drive out
            // once (P4).
            if listed.target != target {
                self.commit(&Change::AssignDrive(AssignDrive { drive: report.id, target }))?;
            }
        }
        Ok(())
    }

    /// Takes out of the map the targets that the node's process does not have, as far as no drive is listed
    /// of them: the process before had more.
    fn forget_retired(&self, joined: TargetId) {
        let map = self.map();
        let Some(node) = map.node_of(joined).map(|node| node.id) else { return };
        let retired: Vec<TargetId> = {
            let state = self.state.borrow();
            let is_free = |target: &TargetId| {
                let is_retired = map.targets.get(target).is_some_and(|target| state.is_retired(target));
                is_retired && state.index.drives_of(*target).next().is_none()
            };
            state.index.targets_of(node).filter(is_free).collect()
        };
        for target in retired {
            if let Err(error) = self.commit(&Change::RemoveTarget(RemoveTarget { target })) {
                tracing::warn!(%target, error = with_causes(&error), "a target that is gone stays listed");
            }
        }
    }

    fn default_pool(&self) -> Result<PoolId, CommitError> {
        if self.map().pool_named(DEFAULT_POOL).is_none() {
            self.commit(&Change::CreatePool(CreatePool { name: DEFAULT_POOL.into() }))?;
        }
        Ok(self.map().pool_named(DEFAULT_POOL).expect("it is in the map now").id)
    }

    /// Notes who has joined; returns whether it was known before. What its former self had adopted and
    /// promised counts for nothing.
    fn note_join(
        &self,
        target: TargetId,
        process: Process,
        drives: &[DriveReport],
        refused: BTreeMap<DriveId, String>,
        causes: Causes,
    ) -> bool {
        let Process { incarnation, hello, knows_floors, knows_targets, knows_lanes, .. } = process;
        let mut state = self.state.borrow_mut();
        let node = state.map.targets[&target].node;
        state.processes.note(node, process);
        for report in drives {
            let before = state.commits.get(&report.id).copied();
            let is_again =
                state.members.get(&target).is_some_and(|m| m.has_joined_with(incarnation, report.id));
            let commit = report.commit.max(before.filter(|_| is_again).unwrap_or(0));
            state.commits.insert(report.id, commit);
            state.commits_kept.1 |= before != Some(commit);
        }
        let member = state.members.get_mut(&target).expect("every target of the map has a member");
        // What has failed in a process stays so, also if its join was sent before and arrives after the word
        // of it.
        if member.incarnation != Some(incarnation) {
            member.failed.clear();
        }
        let is_restart = member.incarnation.is_some_and(|i| i != incarnation);
        member.had_former |= is_restart;
        member.refused = refused;
        member.older = causes.older;
        member.failed_before = causes.failed_before;
        member.floorless = causes.floorless;
        let now = now();
        if !member.is_up() {
            member.since_ms = wall_clock_ms();
        }
        member.incarnation = Some(incarnation);
        state.unheard.remove(&target);
        let member = state.members.get_mut(&target).expect("it was there just now");
        member.process = Some(process.id);
        (member.knows_floors, member.knows_targets) = (knows_floors, knows_targets);
        member.knows_lanes = knows_lanes;
        member.knows_file_systems = process.knows_file_systems;
        member.knows_spread = process.knows_spread;
        member.stopped = None;
        member.hello_at = member.hello_at.max(hello);
        (member.joined_at, member.heard_at, member.granted) = (now, now, false);
        member.adopted = MapVersion(0);
        member.ahead.clear();
        (member.slice, member.refuses_deltas) = (None, false);
        member.awaits_map = true;
        let sound = drives.iter().map(|d| d.id).filter(|drive| !member.failed.contains_key(drive));
        member.drives = sound.collect();
        if !mutated(Mutation::PromiseOutlivesRestart) {
            member.promises.clear();
        }
        member.is_unreachable = false;
        if let Some(link) = member.link.take() {
            link.close();
        }
        // One that was evicted is back when it renews with the map that says so, which the answer brings.
        if member.suspicion.as_ref().is_none_or(|s| s.evicted_in == MapVersion(0)) {
            member.suspicion = None;
            state.forget_promises_about(target);
        }
        state.note_member(target);
        is_restart
    }
}

/// Refuses a target that does not know of lanes as long as sessions have several (P6, P7): it would refuse
/// the requests of all but the first.
fn check_knows_lanes(map: &FabricMap, joining: &Joining<'_>) -> Result<(), Denied> {
    if joining.process.knows_lanes {
        return Ok(());
    }
    let Some(session) = map.sessions.values().find(|s| s.lanes() > 1) else { return Ok(()) };
    let text = format!(
        "node '{}' runs an older release, and session {} of client '{}' has {} lanes, of which it would \
         serve only the first: upgrade node '{}', or end the session",
        joining.name,
        session.id,
        session.client,
        session.lanes(),
        joining.name
    );
    Err(Denied::new(Status::Refused, text))
}

/// Refuses a target that does not know of file systems as long as there are some: it could not read its
/// slice.
fn check_knows_file_systems(map: &FabricMap, joining: &Joining<'_>) -> Result<(), Denied> {
    if joining.process.knows_file_systems {
        return Ok(());
    }
    let Some(file_system) = map.file_systems().next() else { return Ok(()) };
    let text = format!(
        "node '{}' runs an older release, which does not know file systems, and this fabric has file system \
         '{}': upgrade node '{}'",
        joining.name, file_system.name, joining.name
    );
    Err(Denied::new(Status::Refused, text))
}

/// Likewise, of file systems with directories in several shards.
fn check_knows_spread(map: &FabricMap, joining: &Joining<'_>) -> Result<(), Denied> {
    if joining.process.knows_spread {
        return Ok(());
    }
    let is_spread = |volume: &&Volume| volume.files().is_some_and(|files| files.is_spread);
    let Some(file_system) = map.file_systems().find(is_spread) else { return Ok(()) };
    let text = format!(
        "node '{}' runs an older release, which does not know file systems with directories in several \
         shards, and this fabric has one, '{}': upgrade node '{}'",
        joining.name, file_system.name, joining.name
    );
    Err(Denied::new(Status::Refused, text))
}

/// Refuses reports that are none.
fn check_reports(joining: &Joining<'_>, drives: &[DriveReport]) -> Result<(), Denied> {
    let Process { targets, .. } = joining.process;
    if targets > TARGETS_PER_NODE_MAX || joining.index >= targets {
        let text = format!(
            "target {} of {targets}: a node has at most {TARGETS_PER_NODE_MAX}, numbered from 0",
            joining.index
        );
        return Err(Denied::new(Status::Refused, text));
    }
    if drives.len() > DRIVES_PER_TARGET_MAX {
        let text = format!("{} drives, a target serves at most {DRIVES_PER_TARGET_MAX}", drives.len());
        return Err(Denied::new(Status::Refused, text));
    }
    for report in drives {
        if report.path.len() > DRIVE_PATH_BYTES_MAX {
            let text = format!("drive {}: a path of {} bytes", report.id, report.path.len());
            return Err(Denied::new(Status::Refused, text));
        }
    }
    Ok(())
}

/// What drives know that this manager does not: then its store is an old copy. A group that the map does not
/// list any more is nothing new if its number is one that this map has given out: it was removed.
fn what_is_newer(map: &FabricMap, drives: &[DriveReport]) -> Option<String> {
    drives.iter().find_map(|report| {
        let newer = report.map_copy > map.version;
        let unknown = report.epochs.iter().find(|(group, epoch)| match map.groups.get(group) {
            Some(known) => known.epoch < *epoch,
            None => group.0 >= map.next_id,
        });
        let found = match unknown {
            _ if newer => format!("map {}, this manager {}", report.map_copy, map.version),
            Some((group, epoch)) => match map.groups.get(group) {
                Some(known) => format!("group {group} at {epoch}, this manager at {}", known.epoch),
                None => format!("group {group}, this manager does not"),
            },
            None => return None,
        };
        Some(format!(
            "drive {} knows {found}: the manager's store is older than the drives, {RECOVER_HINT}",
            report.id
        ))
    })
}

/// The device that a drive is on, as far as its target says (P5).
fn device_of(report: &DriveReport) -> Option<DeviceId> {
    report.device.filter(|_| !mutated(Mutation::PartsAreDrives))
}
