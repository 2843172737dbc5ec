//! A target joins: its node and drives enter the map, or are found there.
//!
//! It owns the checks of who is who. A target that was not evicted keeps its roles: its log has every acknowledged
//! write. Nothing is committed before every check has passed.

use crate::error::{CommitError, Denied, RECOVER_HINT};
use crate::event::Subjects;
use crate::manager::{Manager, wall_clock_ms};
use std::collections::{BTreeMap, BTreeSet};
use weft_membership::{AddDrive, Change, CreatePool, JoinNode, MoveNode, SetDevice};
use weft_rt::{Instant, now};
use weft_rules::{Mutation, mutated};
use weft_types::limits::{DRIVE_PATH_BYTES_MAX, DRIVES_PER_TARGET_MAX};
use weft_types::{DeviceId, DriveId, DriveState, FabricMap, GroupId, MapVersion, NodeId, PoolId, Version};
use weft_wire::Status;
use weft_wire::control::DriveReport;

/// The pool that drives join which nobody has put into another one.
pub(crate) const DEFAULT_POOL: &str = "default";

/// The process of a target that joins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    /// Random, new for each start.
    pub(crate) incarnation: u64,
    /// When it said hello on the connection on which it joins.
    pub(crate) hello: Instant,
    /// Whether it knows the floors of groups (R7).
    pub(crate) knows_floors: bool,
}

/// Drives that were refused, by what is known of why.
struct Causes {
    older: BTreeSet<DriveId>,
    failed_before: BTreeSet<DriveId>,
    floorless: BTreeSet<DriveId>,
}

impl Manager {
    /// Takes a target into the fabric: from now on it may ask for its lease. Returns its node, and the drives that
    /// it must not serve, and why.
    ///
    /// # Errors
    /// If another target has its name, or a later process of this one has joined. If it knows a newer map than this
    /// manager: then the manager stops for good.
    pub(crate) fn join(
        &self,
        name: &str,
        addr: &str,
        process: Process,
        drives: Vec<DriveReport>,
    ) -> Result<(NodeId, Vec<(DriveId, String)>), Denied> {
        // Behind another manager, this one's map may be an old one while the store is not.
        self.check_term().map_err(|reason| Denied::new(Status::NotReady, reason))?;
        let (map, incarnation) = (self.map(), process.incarnation);
        check_reports(&drives)?;
        self.check_is_newest(&map, name, incarnation, process.hello)?;
        // What is only decided here nobody else can know.
        if let Some(text) = what_is_newer(&self.durable_map(), &drives) {
            return Err(Denied::new(Status::NotReady, self.halt_as_stale(text)));
        }
        self.check_namesake(&map, name, addr, incarnation)?;
        let refused = self.check_drives(&map, name, process, &drives);
        let (left_out, drives): (Vec<_>, Vec<_>) =
            drives.into_iter().partition(|d| refused.contains_key(&d.id));
        let refused_for = |cause: &dyn Fn(&DriveReport) -> Option<String>| -> BTreeSet<DriveId> {
            left_out.iter().filter(|r| refused.get(&r.id) == cause(r).as_ref()).map(|r| r.id).collect()
        };
        let causes = Causes {
            older: refused_for(&|r| self.why_older(&map, name, incarnation, r)),
            failed_before: refused_for(&|r| self.why_failed(r)),
            floorless: refused_for(&|r| self.why_floorless(&map, name, process, r)),
        };
        let node = self.enter_node(&map, name, addr)?;
        self.enter_drives(node, &drives)?;
        let is_restart = self.note_join(node, process, &drives, refused.clone(), causes);
        self.stops_until.set(None);
        let verb = if is_restart { "is back with" } else { "is there with" };
        self.tell(
            "target-joined",
            format!("target of node '{name}' at {addr} {verb} {} drives", drives.len()),
            Subjects::node(name).and_drives(&self.map(), drives.iter().map(|d| d.id)),
        );
        Ok((node, refused.into_iter().collect()))
    }

    /// Refuses what a process said before it ended, and what was on its way for so long that its successor has joined, or
    /// that its last word came before: by then its drives may have come further, or be gone.
    fn check_is_newest(
        &self,
        map: &FabricMap,
        name: &str,
        incarnation: u64,
        hello: Instant,
    ) -> Result<(), Denied> {
        let state = self.state.borrow();
        let member = map.node_named(name).and_then(|node| state.members.get(&node.id));
        let late = |text| Err(Denied::new(Status::NotReady, text));
        match member {
            Some(m) if m.incarnation != Some(incarnation) && hello < m.hello_at => {
                late(format!("a later process of target '{name}' has joined"))
            }
            Some(m) if m.stopped == Some(incarnation) => {
                late(format!("this process of target '{name}' has stopped, as it said"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a second machine under the name of one that is up; a target that was restarted elsewhere gets its
    /// name back when the lease of its former self has ended.
    fn check_namesake(
        &self,
        map: &FabricMap,
        name: &str,
        addr: &str,
        incarnation: u64,
    ) -> Result<(), Denied> {
        let listed = map.node_named(name).and_then(|node| Some((node, map.target_of(node.id)?)));
        let Some((node, target)) = listed.filter(|(_, t)| t.addr != addr) else { return Ok(()) };
        let state = self.state.borrow();
        let Some(member) = state.members.get(&node.id).filter(|m| m.is_up()) else { return Ok(()) };
        if member.incarnation == Some(incarnation) {
            return Ok(());
        }
        Err(Denied::new(
            Status::Refused,
            format!(
                "a target named '{name}' is up at {}: every node needs a name of its own; \
                 if this is the same machine at a new address, stop the other target first",
                target.addr
            ),
        ))
    }

    /// Finds the drives that the node must not serve, and says why. The others join all the same.
    fn check_drives(
        &self,
        map: &FabricMap,
        name: &str,
        process: Process,
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
                None => self.why_not(map, name, process.incarnation, report),
            };
            let why = why.or_else(|| self.why_floorless(map, name, process, report));
            let Some(why) = why else { continue };
            let is_news = {
                let state = self.state.borrow();
                let member = map.node_named(name).and_then(|n| state.members.get(&n.id));
                member.and_then(|m| m.refused.get(&report.id)) != Some(&why)
            };
            if is_news {
                let had_failed = self.state.borrow().is_to_leave(report.id);
                let what = if had_failed { "failed-drive-refused" } else { "drive-refused" };
                self.tell(what, why.clone(), Subjects::node(name).and_drives(map, [report.id]));
            }
            refused.insert(report.id, why);
        }
        refused
    }

    /// Why a drive that a node has found cannot be served by it.
    fn why_not(&self, map: &FabricMap, name: &str, incarnation: u64, report: &DriveReport) -> Option<String> {
        let (id, path) = (report.id, &report.path);
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
            None => self.why_older(map, name, incarnation, report).or_else(|| self.why_failed(report)),
            Some(node) => {
                let is_up = self.state.borrow().members.get(&node.id).is_some_and(|m| m.serves(id));
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

    /// Whether a drive holds less than its target had promised that it does: it was replaced by an older copy of
    /// itself, or has lost writes. As long as a group takes it for up to date, it must not serve. Once it is out
    /// of all of them it may come back, and is compared with the other copies from its first block to its last.
    ///
    /// What a process says of a drive that it has joined with before is no older copy but an older message: it
    /// joined again, and this try was on its way for longer than what came after it.
    fn why_older(
        &self,
        map: &FabricMap,
        name: &str,
        incarnation: u64,
        report: &DriveReport,
    ) -> Option<String> {
        let known = self.state.borrow().commits.get(&report.id).copied()?;
        let has_joined = {
            let state = self.state.borrow();
            let member = map.node_named(name).and_then(|node| state.members.get(&node.id));
            member.is_some_and(|m| m.has_joined_with(incarnation, report.id))
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
    fn why_floorless(
        &self,
        map: &FabricMap,
        name: &str,
        process: Process,
        report: &DriveReport,
    ) -> Option<String> {
        let state = self.state.borrow();
        let has_floor = |group: &GroupId| map.groups.get(group).is_some_and(|g| g.floor > Version::ZERO);
        let group = state.index.groups_of(report.id).find(has_floor).filter(|_| !process.knows_floors)?;
        Some(format!(
            "drive {} found as {} is a member of group {group}, which has forgotten discards. Expected a \
             target that knows the floors of groups, found one of an older release, which would bring back \
             the data that was discarded: upgrade node '{name}', and restart its target",
            report.id, report.path
        ))
    }

    fn enter_node(&self, map: &FabricMap, name: &str, addr: &str) -> Result<NodeId, CommitError> {
        let (name, addr) = (name.to_owned(), addr.to_owned());
        match map.node_named(&name) {
            Some(node) if map.target_of(node.id).is_some_and(|target| target.addr == addr) => {}
            Some(node) => {
                self.commit(&Change::MoveNode(MoveNode { node: node.id, addr }))?;
            }
            None => {
                self.commit(&Change::JoinNode(JoinNode { name: name.clone(), addr }))?;
            }
        }
        Ok(self.map().node_named(&name).expect("it is in the map now").id)
    }

    fn enter_drives(&self, node: NodeId, drives: &[DriveReport]) -> Result<(), CommitError> {
        for report in drives {
            let map = self.map();
            if let Some(listed) = map.drives.get(&report.id) {
                let is_new = |device: &DeviceId| listed.node == node && *device != listed.device;
                if let Some(device) = report.device.filter(is_new) {
                    self.commit(&Change::SetDevice(SetDevice { drive: report.id, device }))?;
                }
                continue;
            }
            self.commit(&Change::AddDrive(AddDrive {
                drive: report.id,
                node,
                pool: self.default_pool()?,
                path: report.path.clone(),
                capacity: report.capacity,
                device: report.device,
            }))?;
        }
        Ok(())
    }

    fn default_pool(&self) -> Result<PoolId, CommitError> {
        if self.map().pool_named(DEFAULT_POOL).is_none() {
            self.commit(&Change::CreatePool(CreatePool { name: DEFAULT_POOL.into() }))?;
        }
        Ok(self.map().pool_named(DEFAULT_POOL).expect("it is in the map now").id)
    }

    /// Notes who has joined; returns whether it was known before. What its former self had adopted and promised
    /// counts for nothing.
    fn note_join(
        &self,
        node: NodeId,
        process: Process,
        drives: &[DriveReport],
        refused: BTreeMap<DriveId, String>,
        causes: Causes,
    ) -> bool {
        let Process { incarnation, hello, knows_floors } = process;
        let mut state = self.state.borrow_mut();
        for report in drives {
            let before = state.commits.get(&report.id).copied();
            let is_again =
                state.members.get(&node).is_some_and(|m| m.has_joined_with(incarnation, report.id));
            let commit = report.commit.max(before.filter(|_| is_again).unwrap_or(0));
            state.commits.insert(report.id, commit);
            state.commits_kept.1 |= before != Some(commit);
        }
        let member = state.members.get_mut(&node).expect("every node of the map has a member");
        // What has failed in a process stays so, also if its join was sent before and arrives after the word of it.
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
        member.knows_floors = knows_floors;
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
            state.forget_promises_about(node);
        }
        state.note_member(node);
        is_restart
    }
}

/// Refuses reports that are none.
fn check_reports(drives: &[DriveReport]) -> Result<(), Denied> {
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

/// What drives know that this manager does not: then its store is an old copy. A group that the map does not list
/// any more is nothing new if its number is one that this map has given out: it was removed.
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
