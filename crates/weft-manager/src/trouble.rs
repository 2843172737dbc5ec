//! What is not as it should be, from the map and what is known of the targets: each trouble with what it
//! means, what is done about it, and what people can do.
//!
//! It owns the questions "why" and "what now". It decides nothing: what it says is going on, the plan of
//! `weft-membership` does by itself. Since when a trouble is there, is remembered in `known.rs`.

use crate::capacity::{advice as room_advice, percent, size};
use crate::describe::bytes;
use crate::manager::{State, wall_clock_ms};
use crate::member::Member;
use crate::observe::to_ms;
use crate::status::Usage;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weft_api::{
    Advice, AffectedVolume, ByteRange, Doing, Presence, Progress, Severity, Timestamp, Trouble, TroubleKind,
    WaitsFor,
};
use weft_layout::{blocks_in, ranges_in};
use weft_membership::{Cut, Kept, Observations, has_spare_drive};
use weft_rt::{Instant, now};
use weft_types::limits::TROUBLE_VOLUMES_MAX;
use weft_types::{
    BLOCK_SIZE, CapacityLevel, Drive, DriveId, DriveState, Group, GroupId, Lba, Node, Role, Slot, Target,
    Volume,
};
use weft_wire::control::ResyncWait;

/// Runs of addresses that are named per volume; of the rest it is said that they are there.
const RANGES_NAMED: usize = 8;

/// Nodes that are named in one sentence; the others are counted.
const NODES_NAMED: usize = 8;

/// Drives that are named in one sentence; the others are counted.
const DRIVES_NAMED: usize = 4;

/// Sets of drives that are named for the groups that wait for them: the pairs of two nodes with two
/// drives each.
const HOLDERS_NAMED: usize = 4;

/// Clients that are named in one sentence; the others are counted.
const CLIENTS_NAMED: usize = 4;

/// What a look goes by.
struct Look<'a> {
    state: &'a State,
    usage: &'a Usage,
    seen: Observations,
    started: Instant,
}

/// Groups that miss the copies of some drives, by what is waited for.
#[derive(Default)]
struct Missing {
    /// It is awaited, and rebuilt elsewhere then: how many, and how long still for the last, in milliseconds.
    awaited: (usize, u64),
    /// It is awaited, and no other drive could take it.
    awaited_only: usize,
    /// No drive can take it.
    no_drive: usize,
    /// It is about to be taken up.
    soon: usize,
    /// There is nothing to copy from.
    no_source: usize,
}

impl State {
    /// All troubles, the worst first; each begins now as far as this knows.
    pub(crate) fn troubles(&self, usage: &Usage, started: Instant) -> Vec<Trouble> {
        let look = Look { state: self, usage, seen: self.observations(started), started };
        let mut troubles = Vec::from_iter(look.unavailable());
        troubles.extend(look.unserved());
        troubles.extend(look.unreadable());
        troubles.extend(look.reporting());
        troubles.extend(self.map.nodes.values().flat_map(|node| look.node(node)));
        troubles.extend(self.map.drives.values().filter_map(|drive| look.drive(drive)));
        troubles.extend(look.refused());
        troubles.extend(self.left_out());
        troubles.extend(look.cut_off());
        troubles.extend(look.copies());
        troubles.extend(look.copying());
        troubles.extend(self.pools_that_fill(usage));
        troubles.extend(self.map_not_kept());
        troubles.sort_by_key(|t| (std::cmp::Reverse(t.severity), t.kind));
        troubles
    }
}

/// A trouble that begins now, and of which nothing else is known.
pub(crate) fn new_trouble(kind: TroubleKind, severity: Severity, what: String) -> Trouble {
    Trouble {
        kind,
        severity,
        what,
        since: Timestamp::from_millis(wall_clock_ms()),
        node: None,
        drive: None,
        pool: None,
        groups: 0,
        volumes: vec![],
        more_volumes: 0,
        doing: vec![],
        advice: vec![],
    }
}

/// A volume with objects in some of these groups, and the first runs of its addresses that lie there.
fn affected(volume: &Volume, groups: &BTreeSet<GroupId>, ranges: usize) -> AffectedVolume {
    let all: BTreeSet<GroupId> = volume.groups().copied().collect();
    let (runs, more) = match ranges {
        0 => (Vec::new(), false),
        most => ranges_in(volume, Lba(0), |g| groups.contains(&g), most),
    };
    let range = |(lba, count): (Lba, weft_types::BlockCount)| ByteRange {
        offset_bytes: lba.0 * BLOCK_SIZE as u64,
        length_bytes: bytes(count),
    };
    AffectedVolume {
        volume: volume.name.clone(),
        groups: all.iter().filter(|group| groups.contains(group)).count(),
        groups_total: all.len(),
        bytes: bytes(blocks_in(volume, |g| groups.contains(&g))),
        size_bytes: bytes(volume.size),
        ranges: runs.into_iter().map(range).collect(),
        has_more_ranges: more,
    }
}

impl Look<'_> {
    fn trouble(&self, kind: TroubleKind, severity: Severity, what: String) -> Trouble {
        new_trouble(kind, severity, what)
    }

    fn node_name(&self, drive: DriveId) -> String {
        let node = self.state.map.drives.get(&drive).and_then(|d| self.state.map.nodes.get(&d.node));
        node.map_or_else(String::new, |n| n.name.clone())
    }

    fn member(&self, drive: &Drive) -> Option<&Member> {
        self.state.members.get(&drive.target)
    }

    /// The groups that volumes have objects in and for which this is so.
    fn groups(&self, is_so: impl Fn(&Group) -> bool) -> BTreeSet<GroupId> {
        let groups = self.state.map.groups.values().filter(|g| self.state.index.is_used(g.id));
        groups.filter(|g| is_so(g)).map(|g| g.id).collect()
    }

    /// The groups that list a drive among these, in any role.
    fn groups_on(&self, drives: &BTreeSet<DriveId>) -> impl Iterator<Item = &Group> {
        let ids: BTreeSet<GroupId> =
            drives.iter().flat_map(|drive| self.state.index.groups_of(*drive)).collect();
        ids.into_iter().filter_map(|id| self.state.map.groups.get(&id))
    }

    /// Those of them that volumes have objects in, and for which this is so.
    fn used_groups_on(
        &self,
        drives: &BTreeSet<DriveId>,
        is_so: impl Fn(&Group) -> bool,
    ) -> BTreeSet<GroupId> {
        let used = self.groups_on(drives).filter(|g| self.state.index.is_used(g.id));
        used.filter(|g| is_so(g)).map(|g| g.id).collect()
    }

    /// Names the volumes with objects in these groups, as many as a trouble names.
    fn name_volumes(&self, trouble: &mut Trouble, groups: &BTreeSet<GroupId>, ranges: usize) {
        let volumes = self.state.index.volumes_in(groups.iter().copied());
        let named = volumes.first(TROUBLE_VOLUMES_MAX);
        trouble.more_volumes = volumes.count() - named.len();
        let named = named.iter().filter_map(|id| self.state.map.volumes.get(id));
        trouble.volumes = named.map(|volume| affected(volume, groups, ranges)).collect();
        trouble.volumes.sort_by(|a, b| a.volume.cmp(&b.volume));
    }

    /// Groups without a copy that serves, with the drives whose return brings them back. One
    /// trouble for all: every two drives that are away at the same time may have groups of their
    /// own, and the advice is the same.
    fn unavailable(&self) -> Option<Trouble> {
        let state = self.state;
        let lost = self.groups(|g| state.good_copies(g) == 0 && !state.is_awaited(g));
        if lost.is_empty() {
            return None;
        }
        let mut by_holders: BTreeMap<Vec<DriveId>, usize> = BTreeMap::new();
        for group in lost.iter().filter_map(|g| state.map.groups.get(g)) {
            let mut holders: Vec<DriveId> = group.read_set().collect();
            holders.sort();
            *by_holders.entry(holders).or_default() += 1;
        }
        let have = if lost.len() == 1 { "has" } else { "have" };
        let what = format!(
            "{} {have} no up-to-date copy that answers: what lies there can be neither read nor written, \
             everything else is served",
            count(lost.len(), "group")
        );
        let mut trouble = self.trouble(TroubleKind::DataUnavailable, Severity::Unavailable, what);
        trouble.groups = lost.len();
        self.name_volumes(&mut trouble, &lost, RANGES_NAMED);
        let holders: BTreeSet<DriveId> = by_holders.keys().flatten().copied().collect();
        trouble.drive = holders.first().copied().filter(|_| holders.len() == 1);
        let nodes: BTreeSet<String> = holders.iter().map(|d| self.node_name(*d)).collect();
        trouble.node = nodes.first().cloned().filter(|_| nodes.len() == 1);
        trouble.doing = self.waits_for_holders(by_holders);
        let holders: Vec<DriveId> = holders.into_iter().collect();
        trouble.advice = self.advice_for_holders(&holders, &trouble);
        Some(trouble)
    }

    /// What brings unavailable groups back: the sets of drives with the most groups are named, the
    /// others counted.
    fn waits_for_holders(&self, by_holders: BTreeMap<Vec<DriveId>, usize>) -> Vec<Doing> {
        let mut sets: Vec<(Vec<DriveId>, usize)> = by_holders.into_iter().collect();
        sets.sort_by_key(|(_, groups)| std::cmp::Reverse(*groups));
        let rest = sets.split_off(sets.len().min(HOLDERS_NAMED));
        let waits = |what, groups| {
            let waits_for = Some(WaitsFor::LastCopy);
            Doing { what, groups, waits_for, wait_ms: None, progress: None }
        };
        let in_words = |(holders, groups): &(Vec<DriveId>, usize)| {
            let named: Vec<String> =
                holders.iter().take(DRIVES_NAMED).map(|d| self.drive_in_words(*d)).collect();
            let (verb, back) = match holders.len() {
                1 => ("the last up-to-date copy is on", "with it"),
                _ => ("all copies were on", "with any of them"),
            };
            let more = match holders.len().saturating_sub(DRIVES_NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let count = count(*groups, "group");
            waits(
                format!(
                    "{count}: {verb} {}{more}: the data comes back {back}, and only so",
                    named.join(", ")
                ),
                *groups,
            )
        };
        let mut doing: Vec<Doing> = sets.iter().map(in_words).collect();
        if !rest.is_empty() {
            let groups = rest.iter().map(|(_, groups)| groups).sum();
            let drives: BTreeSet<DriveId> = rest.iter().flat_map(|(holders, _)| holders).copied().collect();
            let named: Vec<String> = drives.iter().take(DRIVES_NAMED).map(|d| d.short()).collect();
            let more = match drives.len().saturating_sub(DRIVES_NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let text = format!(
                "{}: on further sets of drives, of {}{more}",
                count(groups, "group"),
                named.join(", ")
            );
            doing.push(waits(text, groups));
        }
        doing
    }

    /// The drive, its node, and why it does not serve.
    fn drive_in_words(&self, id: DriveId) -> String {
        let Some(drive) = self.state.map.drives.get(&id) else { return id.short() };
        let Some(node) = self.state.map.nodes.get(&drive.node) else { return id.short() };
        let state = match self.member(drive) {
            _ if drive.state == DriveState::Failed => "failed",
            Some(m) if m.failed.contains_key(&id) => "failed",
            Some(m) if m.is_up() && !m.drives.contains(&id) => "missing",
            Some(m) if !m.is_up() => "its node is gone",
            _ => "not in service",
        };
        format!("drive {} of node '{}' ({state})", id.short(), node.name)
    }

    fn advice_for_holders(&self, holders: &[DriveId], trouble: &Trouble) -> Vec<Advice> {
        let mut advice = Vec::new();
        let mut gone = BTreeSet::new();
        for drive in holders.iter().filter_map(|d| self.state.map.drives.get(d)) {
            let is_up = self.member(drive).is_some_and(Member::is_up);
            let name = self.node_name(drive.id);
            if !is_up && gone.insert(name.clone()) {
                advice.push(start_node(&name));
            }
            if drive.state == DriveState::Failed {
                advice.extend(restore(drive, &name));
            }
        }
        // Without names it is about all volumes.
        let named = trouble.volumes.iter().filter(|_| trouble.more_volumes == 0);
        let names: String = named.map(|v| format!(" {}", v.volume)).collect();
        advice.push(Advice::command(
            "if none of these drives can ever be read again, this data is lost: have the volumes go on without it, and \
             restore it from a backup; what to say, and what would be lost, is told by",
            format!("weft volume repair{names}"),
        ));
        advice
    }

    /// Shards of file systems that their servers cannot open.
    fn unserved(&self) -> Vec<Trouble> {
        let map = &self.state.map;
        let mut troubles = Vec::new();
        for shard in self.state.unserved_shards() {
            let name = &shard.file_system.name;
            let what = format!(
                "shard {} of file system '{name}' is not served: {} cannot open it ({}). What is named there waits, \
                 everything else is served",
                shard.said.shard,
                map.title_of(shard.server),
                shard.said.why
            );
            let mut trouble = self.trouble(TroubleKind::ShardUnserved, Severity::Unavailable, what);
            let node = map.targets.get(&shard.server).and_then(|target| map.nodes.get(&target.node));
            trouble.node = node.map(|node| node.name.clone());
            trouble.volumes = vec![affected(shard.volume, &shard.volume.groups().copied().collect(), 0)];
            trouble.doing.push(Doing {
                what: "it is tried again until it can be opened".into(),
                groups: 0,
                waits_for: None,
                wait_ms: None,
                progress: None,
            });
            trouble.advice = vec![
                Advice::command("see what the other shards hold", format!("weft fs inspect {name}")),
                Advice::plain(
                    "a drive that is away may have a copy that is not damaged: bring it back; otherwise restore the \
                     files from a backup",
                ),
            ];
            troubles.push(trouble);
        }
        troubles
    }

    /// What the last scrub could not read of any copy.
    fn unreadable(&self) -> Option<Trouble> {
        let done = &self.state.map.scrub.done;
        let groups = self.groups(|g| done.get(&g.id).is_some_and(|record| record.lost > 0));
        let blocks: u64 = groups.iter().filter_map(|g| done.get(g)).map(|record| record.lost).sum();
        if blocks == 0 {
            return None;
        }
        let text = "could not be read from any copy by the last scrub: see `weft scrub status`";
        let what = format!("{blocks} blocks {text}");
        let mut trouble = self.trouble(TroubleKind::BlocksUnreadable, Severity::Degraded, what);
        trouble.groups = groups.len();
        self.name_volumes(&mut trouble, &groups, 0);
        trouble.advice = vec![
            Advice::command("see which blocks they are", "weft scrub status"),
            Advice::plain("write them anew, from a backup; a write heals a block"),
        ];
        Some(trouble)
    }

    /// Nodes of which nothing is known yet, because the manager or they have just started. What they
    /// hold is neither lost nor sound before they have said so, or had the time to.
    fn reporting(&self) -> Option<Trouble> {
        let is_reporting =
            |node: &&Node| self.state.own_members_of(node.id).any(|(_, member)| member.is_reporting());
        let mut nodes: Vec<&Node> = self.state.map.nodes.values().filter(is_reporting).collect();
        // Those that have joined wait for the others, as long as there are some.
        let has_joined =
            |node: &Node| self.state.own_members_of(node.id).all(|(_, member)| member.incarnation.is_some());
        if !nodes.iter().all(|node| has_joined(node)) {
            nodes.retain(|node| !has_joined(node));
        }
        let named: Vec<String> = nodes.iter().take(NODES_NAMED).map(|n| format!("'{}'", n.name)).collect();
        let rest = match nodes.len() - named.len() {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        let what = match nodes.len() {
            0 => return None,
            1 => format!("node {} is still reporting: what it holds is not known yet", named[0]),
            _ => format!(
                "nodes {}{rest} are still reporting: what they hold is not known yet",
                named.join(", ")
            ),
        };
        let mut trouble = self.trouble(TroubleKind::NodeGone, Severity::Degraded, what);
        if let [only] = nodes[..] {
            trouble.node = Some(only.name.clone());
        }
        let patience = self.state.map.durations.lease_wait();
        trouble.doing.push(Doing {
            what: "waits for them; who has not joined by then is taken for gone".into(),
            groups: self.groups(|g| self.state.is_awaited(g)).len(),
            waits_for: Some(WaitsFor::Return),
            wait_ms: Some(millis(patience.saturating_sub(self.state.hears_from.elapsed()))),
            progress: None,
        });
        Some(trouble)
    }

    /// A node that does not take part, or those of its targets that do not.
    fn node(&self, node: &Node) -> Vec<Trouble> {
        let targets: Vec<(&Target, &Member)> = self.state.own_members_of(node.id).collect();
        let is_gone = |member: &Member| !member.is_up() && !member.is_reporting();
        if targets.iter().all(|(_, member)| is_gone(member)) {
            return self.gone(node, &targets).into_iter().collect();
        }
        let gone = targets.iter().filter(|(_, member)| is_gone(member));
        gone.filter_map(|gone| self.gone_beside(node, *gone)).collect()
    }

    /// A node none of whose targets takes part.
    fn gone(&self, node: &Node, targets: &[(&Target, &Member)]) -> Option<Trouble> {
        let why = (targets.iter().find_map(|(_, member)| member.suspicion.as_ref()))
            .map_or("its target has not joined yet", |suspicion| suspicion.why.as_str());
        let what = match self.state.presence_of(node.id) {
            Presence::Up => return None,
            Presence::Suspect => format!("node '{}' does not answer: {why}", node.name),
            Presence::Down => format!("node '{}' is down: {why}", node.name),
        };
        let drives: BTreeSet<DriveId> = self.state.index.drives_on(node.id).collect();
        let mut trouble = self.trouble(TroubleKind::NodeGone, Severity::Degraded, what);
        self.name_what_is_gone(&mut trouble, node, targets, &drives);
        trouble.advice.push(start_node(&node.name));
        let is_awaited = |d: &Doing| d.wait_ms.is_some() && d.waits_for == Some(WaitsFor::Return);
        if trouble.doing.iter().any(is_awaited) {
            trouble.advice.push(Advice::command(
                "if it does not come back, have its copies rebuilt elsewhere without waiting",
                format!("weft node evacuate {}", node.name),
            ));
        } else if !drives.iter().any(|d| self.is_listed(*d)) {
            trouble.advice.push(Advice::command(
                "no copy is on it: if it does not come back, forget it",
                format!("weft node remove {}", node.name),
            ));
        }
        Some(trouble)
    }

    /// A target that does not take part, of a node of which another one does: a thread of its process stands
    /// still.
    fn gone_beside(&self, node: &Node, gone: (&Target, &Member)) -> Option<Trouble> {
        let (target, member) = gone;
        let why = &member.suspicion.as_ref()?.why;
        let what = format!(
            "{} does not answer ({why}), and others of the node do: its thread stands still",
            self.state.map.title_of(target.id)
        );
        let mut trouble = self.trouble(TroubleKind::TargetGone, Severity::Degraded, what);
        let drives: BTreeSet<DriveId> = self.state.index.drives_of(target.id).collect();
        self.name_what_is_gone(&mut trouble, node, &[gone], &drives);
        trouble.advice = vec![
            Advice::plain(format!(
                "look at the log of node '{}', and whether its drives answer: {}",
                node.name,
                self.paths_of(&drives)
            )),
            Advice::plain(
                "if it stays so, restart the node's process: its other targets leave their groups meanwhile",
            ),
        ];
        Some(trouble)
    }

    /// The paths of drives, for people.
    fn paths_of(&self, drives: &BTreeSet<DriveId>) -> String {
        let listed = drives.iter().filter_map(|drive| self.state.map.drives.get(drive));
        listed.map(|drive| drive.path.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Adds what is on these drives of targets that are gone, since when, and what is being done about it.
    fn name_what_is_gone(
        &self,
        trouble: &mut Trouble,
        node: &Node,
        targets: &[(&Target, &Member)],
        drives: &BTreeSet<DriveId>,
    ) {
        let since_ms = targets.iter().map(|(_, member)| member.since_ms).max().unwrap_or(0);
        trouble.since = Timestamp::from_millis(since_ms);
        trouble.node = Some(node.name.clone());
        self.name_what_is_on(trouble, drives);
        let held_up = self.used_groups_on(drives, |g| {
            let writes = g.write_set().any(|d| drives.contains(&d));
            writes && self.state.good_copies(g) > 0
        });
        if held_up.is_empty() {
            return;
        }
        // As long as a word is awaited it is not known.
        let due: Option<Vec<Instant>> = targets
            .iter()
            .map(|(target, member)| self.state.fence(target.id, member, self.started))
            .collect();
        let wait_ms = due.and_then(|due| due.into_iter().max()).map(|due| millis(due - now()));
        trouble.doing.insert(
            0,
            Doing {
                what: format!(
                    "is being left out of {}: writes there wait until nobody can serve its copies any more",
                    count(held_up.len(), "group")
                ),
                groups: held_up.len(),
                waits_for: Some(WaitsFor::Lease),
                wait_ms,
                progress: None,
            },
        );
    }

    fn is_listed(&self, drive: DriveId) -> bool {
        self.state.index.groups_of(drive).next().is_some()
    }

    /// Adds the groups and volumes with copies on these drives, and what becomes of those copies that are
    /// out.
    fn name_what_is_on(&self, trouble: &mut Trouble, drives: &BTreeSet<DriveId>) {
        let on = self.used_groups_on(drives, |_| true);
        trouble.groups = on.len();
        self.name_volumes(trouble, &on, 0);
        trouble.doing.extend(self.missing(drives));
    }

    /// What becomes of the copies on these drives that are out of their groups.
    fn missing(&self, drives: &BTreeSet<DriveId>) -> Vec<Doing> {
        let mut missing = Missing::default();
        let mut pools = BTreeSet::new();
        for group in self.groups_on(drives) {
            for slot in group.slots.iter().filter(|s| s.role == Role::Out && drives.contains(&s.drive)) {
                if self.state.good_copies(group) == 0 {
                    missing.no_source += 1;
                    continue;
                }
                let has_spare = has_spare_drive(&self.state.map, group, slot.drive, &self.seen);
                match self.state.rebuild_in_ms(group.id, slot.drive) {
                    0 if !has_spare => {
                        pools.insert(group.pool);
                        missing.no_drive += 1;
                    }
                    0 => missing.soon += 1,
                    _ if !has_spare => missing.awaited_only += 1,
                    ms => missing.awaited = (missing.awaited.0 + 1, missing.awaited.1.max(ms)),
                }
            }
        }
        let pools = pools.iter().filter_map(|p| self.state.map.pools.get(p));
        let pools: Vec<String> = pools.map(|p| format!("'{}'", p.name)).collect();
        missing.in_words(&pools.join(", "))
    }

    /// A drive that does not serve although its node does, that has failed, was damaged, or is being emptied.
    fn drive(&self, drive: &Drive) -> Option<Trouble> {
        let member = self.member(drive)?;
        let cause = member.failed.get(&drive.id).map(|fault| fault.cause.clone());
        let cause = cause.or_else(|| self.usage.drive(drive.id).and_then(|d| d.failed.clone()));
        if drive.state == DriveState::Failed || cause.is_some() {
            return Some(self.failed(drive, cause));
        }
        let is_retired = |t: &Target| self.state.is_retired(t);
        let is_without = match self.state.map.targets.get(&drive.target).is_some_and(is_retired) {
            // No target of the process has found it.
            true => self.state.presence_of(drive.node) == Presence::Up,
            false => member.is_up() && !member.drives.contains(&drive.id),
        };
        if is_without {
            return Some(self.absent(drive));
        }
        if let Some(cause) = self.usage.drive(drive.id).and_then(|d| d.vanished.clone()) {
            return Some(self.vanished(drive, &cause));
        }
        if drive.state == DriveState::Draining {
            return Some(self.draining(drive));
        }
        self.damaged(drive)
    }

    /// A drive that is gone and serves all the same, until its last copies are elsewhere.
    fn vanished(&self, drive: &Drive, cause: &str) -> Trouble {
        let (node, draining) = (self.node_name(drive.id), self.draining(drive));
        let what = format!(
            "drive {} ({}) of node '{node}' is gone ({cause}), and serves all the same: it has last up-to-date copies. All \
             that is on it is lost when its target ends: {}",
            drive.id.short(),
            drive.path,
            draining.what
        );
        let mut advice = vec![Advice::plain(format!(
            "do not stop or restart the target of node '{node}' before this is over"
        ))];
        advice.extend(
            draining
                .advice
                .into_iter()
                .filter(|a| !a.command.as_ref().is_some_and(|c| c.contains("--cancel"))),
        );
        Trouble { kind: TroubleKind::DriveFailed, severity: Severity::Degraded, what, advice, ..draining }
    }

    fn about(&self, trouble: Trouble, drive: &Drive) -> Trouble {
        Trouble { node: Some(self.node_name(drive.id)), drive: Some(drive.id), ..trouble }
    }

    fn failed(&self, drive: &Drive, cause: Option<String>) -> Trouble {
        let node = self.node_name(drive.id);
        let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
        let what = format!("drive {} ({}) of node '{node}' has failed{cause}", drive.id.short(), drive.path);
        let mut trouble = self.about(self.trouble(TroubleKind::DriveFailed, Severity::Degraded, what), drive);
        self.name_what_is_on(&mut trouble, &BTreeSet::from([drive.id]));
        trouble.advice.extend(restore(drive, &node));
        let is_stuck = |g: &&Group| {
            self.state.good_copies(g) == 0
                && !self.state.index.is_used(g.id)
                && g.read_set().any(|d| d == drive.id)
        };
        let stuck = self.groups_on(&BTreeSet::from([drive.id])).filter(is_stuck).count();
        if stuck > 0 {
            // Nothing can rebuild them, and nobody misses them; but they keep the drive from being forgotten.
            let why = format!(
                "if it is gone for good: it has the last up-to-date copy of {}, of no volume; begin them anew",
                count(stuck, "group")
            );
            let command = format!("weft volume repair --accept-data-loss --destroyed {}", drive.id);
            trouble.advice.push(Advice::command(why, command));
        } else if self.is_listed(drive.id) {
            trouble
                .advice
                .push(Advice::plain("otherwise replace it: what it held is rebuilt on other drives"));
        } else {
            let why = "all of its copies are on other drives: forget it";
            trouble.advice.push(Advice::command(why, format!("weft drive remove {}", drive.id.short())));
        }
        trouble
    }

    fn absent(&self, drive: &Drive) -> Trouble {
        let (node, short) = (self.node_name(drive.id), drive.id.short());
        let left_out = self.state.why_left_out(drive);
        let why = left_out.map_or_else(String::new, |left_out| format!(": {}", left_out.why));
        let what = format!("node '{node}' is up without its drive {short} ({}){why}", drive.path);
        let severity = if self.is_listed(drive.id) { Severity::Degraded } else { Severity::Warning };
        let mut trouble = self.about(self.trouble(TroubleKind::DriveAbsent, severity, what), drive);
        self.name_what_is_on(&mut trouble, &BTreeSet::from([drive.id]));
        let look = match left_out {
            Some(left_out) => format!("{}; then restart its target", left_out.hint),
            None => format!(
                "look whether {} is there, can be opened, and is among the drives of node '{node}', then \
                 restart its \
                 target",
                drive.path
            ),
        };
        trouble.advice = vec![
            Advice::plain(look),
            Advice::command(
                "if it is gone for good, have its copies rebuilt elsewhere without waiting",
                format!("weft drive evacuate {short}"),
            ),
        ];
        trouble
    }

    fn draining(&self, drive: &Drive) -> Trouble {
        let map = &self.state.map;
        let own = BTreeSet::from([drive.id]);
        let waiting: Vec<&Group> =
            self.groups_on(&own).filter(|g| map.staying(g).any(|d| d == drive.id)).collect();
        let passing: Vec<(GroupId, DriveId)> =
            map.relocations.iter().filter(|(_, r)| r.from == drive.id).map(|(g, r)| (*g, r.to)).collect();
        let left = waiting.len() + passing.len();
        let is_stuck = |g: &&&Group| !has_spare_drive(map, g, drive.id, &self.seen);
        let stuck = waiting.iter().filter(is_stuck).count();
        let severity = if stuck > 0 { Severity::Warning } else { Severity::Notice };
        let (node, short) = (self.node_name(drive.id), drive.id.short());
        let what = match left {
            0 => format!("drive {short} of node '{node}' is empty, and takes no part any more"),
            n => format!("drive {short} of node '{node}' is being emptied: {} left", count(n, "copy")),
        };
        let mut trouble = self.about(self.trouble(TroubleKind::DriveDraining, severity, what), drive);
        trouble.groups = left;
        if !passing.is_empty() {
            let mut progress = self.usage.progress(passing.iter().copied());
            let held = self.usage.drive(drive.id).map_or(0, |d| d.used_bytes);
            let to_copy = held.saturating_sub(progress.bytes_copied);
            let rate = progress.bytes_per_second.filter(|rate| *rate > 0 && !waiting.is_empty());
            // What has not begun is not counted in chunks yet; how much is left on the drive is known.
            progress.eta_ms = rate.map(|rate| to_copy.saturating_mul(1000) / rate).or(progress.eta_ms);
            trouble.doing.push(going_on(
                format!("{} passing to other drives", count(passing.len(), "copy")),
                passing.len(),
                progress,
            ));
            trouble.doing.extend(self.held_up(&passing));
        }
        if stuck > 0 {
            trouble.doing.push(no_drive(stuck, ""));
            trouble.advice.extend(more_drives());
        }
        match left {
            0 => trouble.advice.push(Advice::command("forget it", format!("weft drive remove {short}"))),
            _ => trouble
                .advice
                .push(Advice::command("call it off", format!("weft drive evacuate {short} --cancel"))),
        }
        trouble
    }

    fn damaged(&self, drive: &Drive) -> Option<Trouble> {
        let status = self.usage.drive(drive.id).filter(|d| d.blocks_damaged > 0)?;
        let (found, healed) = (status.blocks_damaged, status.blocks_healed);
        let (node, short) = (self.node_name(drive.id), drive.id.short());
        let what = format!(
            "drive {short} ({}) of node '{node}': {} found damaged since its target started, {healed} healed from \
             another copy",
            status.path,
            count(found as usize, "block")
        );
        let severity = if healed >= found { Severity::Notice } else { Severity::Warning };
        let mut trouble = self.about(self.trouble(TroubleKind::DriveDamaged, severity, what), drive);
        trouble.advice = vec![
            Advice::command("read and heal everything", "weft scrub start --all"),
            Advice::command(
                "if it goes on, empty the drive and replace it",
                format!("weft drive evacuate {short}"),
            ),
        ];
        Some(trouble)
    }

    /// Drives that their nodes must not serve.
    fn refused(&self) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        for node in self.state.map.nodes.values() {
            for (_, member) in self.state.own_members_of(node.id) {
                // Of one that has failed it is said that it has.
                let refused =
                    member.refused.iter().filter(|(drive, _)| !member.failed_before.contains(*drive));
                troubles.extend(refused.map(|(drive, text)| self.refused_drive(node, member, *drive, text)));
            }
        }
        troubles
    }

    /// A drive that a node must not serve. What was removed or given up is missed by nobody: only
    /// the list of the node's drives is not as it should be.
    fn refused_drive(&self, node: &Node, member: &Member, drive: DriveId, text: &str) -> Trouble {
        let map = &self.state.map;
        let is_removed = map.removed_drives.contains(&drive);
        let is_destroyed = map.drives.get(&drive).is_some_and(|d| d.state == DriveState::Destroyed);
        let is_older = member.older.contains(&drive);
        let needs_upgrade = member.floorless.contains(&drive);
        let (severity, what) = match is_removed {
            true => {
                (Severity::Notice, format!("node '{}' still lists a drive that is gone: {text}", node.name))
            }
            false => {
                let what = format!("node '{}' has a drive that it must not serve: {text}", node.name);
                (Severity::Degraded, what)
            }
        };
        let mut trouble = self.trouble(TroubleKind::DriveRefused, severity, what);
        (trouble.node, trouble.drive) = (Some(node.name.clone()), Some(drive));
        let advice = if is_removed || is_destroyed {
            format!(
                "take it out of the list of node '{}' (WEFT_DRIVES in /etc/weft/node.env, or --drive of `weft \
                 node run`), and restart its target",
                node.name
            )
        } else if is_older {
            "wait: where other copies are up to date, it joins again by itself, as one that is behind"
                .to_owned()
        } else if needs_upgrade {
            format!("upgrade node '{}', and restart its target", node.name)
        } else {
            "take one of the two away: the copy, or the drive itself on the node that it has left; then \
             restart that target"
                .to_owned()
        };
        trouble.advice = vec![Advice::plain(advice)];
        trouble
    }

    /// Nodes that clients cannot reach although the manager does, or that stay out of groups because of that.
    fn cut_off(&self) -> Vec<Trouble> {
        let cuts = self.state.reach.cuts();
        cuts.filter_map(|(target, cut)| self.cut_off_from(self.state.map.targets.get(&target)?, cut))
            .collect()
    }

    fn cut_off_from(&self, target: &Target, cut: &Cut) -> Option<Trouble> {
        // Of one that nobody reaches another trouble tells.
        self.state.members.get(&target.id).filter(|m| m.is_up())?;
        let (title, addr) = (self.state.map.title_of(target.id), &target.addr);
        let what = match cut.ended_ms {
            None => format!(
                "{} cannot reach {title} ({addr}), which the manager reaches",
                named_clients(&cut.clients)
            ),
            Some(_) => format!("clients could not reach {title} ({addr}), and do again"),
        };
        let severity = if cut.ended_ms.is_none() { Severity::Degraded } else { Severity::Warning };
        let mut trouble = self.trouble(TroubleKind::ClientCutOff, severity, what);
        let age_ms = to_ms(now()).saturating_sub(cut.since_ms);
        trouble.since = Timestamp::from_millis(wall_clock_ms().saturating_sub(age_ms));
        trouble.node = self.state.map.node_of(target.id).map(|node| node.name.clone());
        let concerned: BTreeSet<GroupId> =
            cut.members.keys().map(|(group, _)| *group).chain(cut.kept.keys().copied()).collect();
        trouble.groups = concerned.len();
        self.name_volumes(&mut trouble, &concerned, 0);
        trouble.doing = self.done_about(cut);
        if cut.ended_ms.is_none() {
            let way = format!(
                "look at the way between the clients' machines and {addr}: cable, switch port, firewall, MTU"
            );
            trouble.advice = vec![
                Advice::plain(way),
                Advice::command("see which volumes these clients use", "weft session list"),
            ];
        }
        Some(trouble)
    }

    /// What becomes of the copies on a node that clients cannot reach.
    fn done_about(&self, cut: &Cut) -> Vec<Doing> {
        let left_ms = |at_ms: u64| at_ms.saturating_sub(to_ms(now()));
        let doing = |what, groups, waits_for, wait_ms| Doing {
            what,
            groups,
            waits_for: Some(waits_for),
            wait_ms,
            progress: None,
        };
        let mut doings = Vec::new();
        let copies = count(cut.members.len(), "copy");
        match (cut.members.values().min(), self.state.reach.back_ms(&self.state.map, cut)) {
            (Some(_), Some(back_ms)) => {
                let what = format!("{copies} taken back if the node stays reachable");
                doings.push(doing(what, cut.members.len(), WaitsFor::Turn, Some(left_ms(back_ms))));
            }
            (Some(first_ms), None) => {
                let what = format!(
                    "{copies} left out, so that these clients go on with the others: taken back when the \
                     node is reached again, and rebuilt elsewhere if it is not"
                );
                let due_ms = first_ms.saturating_add(self.state.map.durations.rebuild_after_ms);
                doings.push(doing(what, cut.members.len(), WaitsFor::Return, Some(left_ms(due_ms))));
            }
            (None, _) if left_ms(cut.due_ms) > 0 => {
                let why = match cut.is_alone {
                    true => "; only this client has the trouble, as far as is known",
                    false => "",
                };
                let what = format!("writes of these clients wait, until the node's copies are left out{why}");
                doings.push(doing(what, 0, WaitsFor::Turn, Some(left_ms(cut.due_ms))));
            }
            (None, _) => {}
        }
        let mut kept: BTreeMap<Kept, usize> = BTreeMap::new();
        cut.kept.values().for_each(|why| *kept.entry(*why).or_default() += 1);
        for (why, groups) in kept {
            let what = format!(
                "writes of these clients to {} wait, and fail when their time is over: {why}",
                count(groups, "group")
            );
            doings.push(doing(what, groups, WaitsFor::People, None));
        }
        doings
    }

    /// Groups that are served with fewer copies than they should have.
    fn copies(&self) -> Option<Trouble> {
        let state = self.state;
        let map = &state.map;
        let is_short =
            |g: &Group| (1..map.copies_of(g)).contains(&state.good_copies(g)) && !state.is_awaited(g);
        let groups = self.groups(is_short);
        let listed: Vec<&Group> = groups.iter().filter_map(|g| map.groups.get(g)).collect();
        let mut by_copies: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for group in &listed {
            *by_copies.entry((state.good_copies(group), map.copies_of(group))).or_default() += 1;
        }
        let what = missing_in_words(&by_copies)?;
        let mut trouble = self.trouble(TroubleKind::CopiesMissing, Severity::Degraded, what);
        trouble.groups = groups.len();
        self.name_volumes(&mut trouble, &groups, 0);
        let slots = || listed.iter().flat_map(|g| g.slots.iter().map(move |s| (*g, s)));
        let copied = slots().filter(|(_, s)| self.is_copied(s)).count();
        if copied > 0 {
            let what = format!("{} being brought up to date", count(copied, "copy"));
            let pairs = slots().filter(|(_, s)| self.is_copied(s)).map(|(g, s)| (g.id, s.drive));
            trouble.doing.push(going_on(what, copied, self.usage.progress(pairs)));
        }
        let out = slots().filter(|(_, s)| s.role == Role::Out).map(|(_, s)| s.drive).collect();
        trouble.doing.extend(self.missing(&out));
        if trouble.doing.iter().any(|d| d.waits_for == Some(WaitsFor::Drive)) {
            trouble.advice.extend(more_drives());
        }
        let waits = trouble.doing.iter().any(|d| d.waits_for == Some(WaitsFor::Return));
        if waits {
            trouble.advice.push(Advice::command(
                "wait less long for drives and nodes that are gone, in general",
                "weft fabric set --rebuild-after-ms MS",
            ));
        }
        Some(trouble)
    }

    /// Whether a copy is being brought up to date on a drive that serves.
    fn is_copied(&self, slot: &Slot) -> bool {
        slot.role == Role::Syncing && self.state.is_served(slot.drive)
    }

    /// Drives that are being brought up to date, apart from those that take over from a drive that is
    /// emptied.
    fn copying(&self) -> Vec<Trouble> {
        let map = &self.state.map;
        let mut by_drive: BTreeMap<DriveId, Vec<(GroupId, DriveId)>> = BTreeMap::new();
        for group in map.groups.values() {
            for slot in group.slots.iter().filter(|s| self.is_copied(s)) {
                if !(map.is_whole(group) && map.is_passing(group.id, slot.drive)) {
                    by_drive.entry(slot.drive).or_default().push((group.id, slot.drive));
                }
            }
        }
        by_drive.into_iter().map(|(drive, copies)| self.copying_to(drive, &copies)).collect()
    }

    fn copying_to(&self, drive: DriveId, copies: &[(GroupId, DriveId)]) -> Trouble {
        let (node, short) = (self.node_name(drive), drive.short());
        let what = format!(
            "drive {short} of node '{node}' is being brought up to date in {}",
            count(copies.len(), "group")
        );
        let ids: BTreeSet<GroupId> = copies.iter().map(|(group, _)| *group).collect();
        let in_use: BTreeSet<GroupId> = ids.into_iter().filter(|id| self.state.index.is_used(*id)).collect();
        let severity = if in_use.is_empty() { Severity::Notice } else { Severity::Degraded };
        let mut trouble = self.trouble(TroubleKind::Copying, severity, what);
        (trouble.node, trouble.drive, trouble.groups) = (Some(node), Some(drive), copies.len());
        self.name_volumes(&mut trouble, &in_use, 0);
        let held_up = self.held_up(copies);
        let stuck: usize = held_up.iter().map(|d| d.groups).sum();
        if stuck < copies.len() {
            let progress = self.usage.progress(copies.iter().copied());
            trouble.doing.push(going_on(
                "compares and copies what differs".into(),
                copies.len() - stuck,
                progress,
            ));
        }
        if held_up.iter().any(|d| d.waits_for == Some(WaitsFor::Room)) {
            trouble.advice.extend(room_advice(CapacityLevel::Full));
            let pool = pool_of(self.state, drive);
            trouble.pool = pool;
        }
        trouble.doing.extend(held_up);
        trouble
    }

    /// What holds copying up, by what is waited for.
    fn held_up(&self, copies: &[(GroupId, DriveId)]) -> Vec<Doing> {
        let mut by_cause: BTreeMap<WaitsFor, (usize, String)> = BTreeMap::new();
        for key in copies {
            let group = self.state.map.groups.get(&key.0);
            let has_source = group.is_some_and(|g| self.state.good_copies(g) > 0);
            let wait = match self.usage.wait(*key) {
                _ if !has_source => (WaitsFor::Source, "no up-to-date copy answers".to_owned()),
                Some(ResyncWait::Room(text)) => (WaitsFor::Room, text.clone()),
                Some(ResyncWait::Source(text)) => (WaitsFor::Source, text.clone()),
                Some(ResyncWait::Drive(text)) => (WaitsFor::People, text.clone()),
                None => continue,
            };
            let entry = by_cause.entry(wait.0).or_insert((0, wait.1));
            entry.0 += 1;
        }
        let doing = |(waits_for, (groups, text)): (WaitsFor, (usize, String))| {
            let number = count(groups, "group");
            let what = match (waits_for, copies.first()) {
                (WaitsFor::Room, Some((_, drive))) => {
                    let pool = pool_of(self.state, *drive).unwrap_or_default();
                    let full = self.usage.drive(*drive).map_or_else(String::new, |d| {
                        format!(
                            " ({} % of {} used)",
                            percent(d.used_bytes, d.capacity_bytes),
                            size(d.capacity_bytes)
                        )
                    });
                    format!(
                        "{number}: waits for room in pool '{pool}': drive {}{full} is full; goes on by itself once \
                         there is some",
                        drive.short()
                    )
                }
                (WaitsFor::Source, _) => format!("{number}: waits for a copy to copy from: {text}"),
                _ => format!("{number}: held up by its own drive: {text}"),
            };
            Doing { what, groups, waits_for: Some(waits_for), wait_ms: None, progress: None }
        };
        by_cause.into_iter().map(doing).collect()
    }
}

impl Missing {
    fn in_words(self, pools: &str) -> Vec<Doing> {
        let doing = |what, groups, waits_for, wait_ms| Doing {
            what,
            groups,
            waits_for: Some(waits_for),
            wait_ms,
            progress: None,
        };
        let mut doings = Vec::new();
        let (awaited, wait_ms) = self.awaited;
        if awaited > 0 {
            let what =
                format!("{} awaited, and rebuilt elsewhere if it does not return", count(awaited, "copy"));
            doings.push(doing(what, awaited, WaitsFor::Return, Some(wait_ms)));
        }
        if self.awaited_only > 0 {
            let number = count(self.awaited_only, "copy");
            let what = format!("{number} awaited: no other drive in service could take its place");
            doings.push(doing(what, self.awaited_only, WaitsFor::Return, None));
        }
        if self.soon > 0 {
            let what = format!("{} about to be rebuilt", count(self.soon, "copy"));
            doings.push(doing(what, self.soon, WaitsFor::Turn, None));
        }
        if self.no_drive > 0 {
            doings.push(no_drive(self.no_drive, pools));
        }
        if self.no_source > 0 {
            let what =
                format!("{} cannot be rebuilt: no up-to-date copy answers", count(self.no_source, "copy"));
            doings.push(doing(what, self.no_source, WaitsFor::Source, None));
        }
        doings
    }
}

/// Clients by their names; of many only some.
pub(crate) fn named_clients(clients: &BTreeSet<String>) -> String {
    let named: Vec<String> = clients.iter().take(CLIENTS_NAMED).map(|c| format!("'{c}'")).collect();
    let word = if clients.len() == 1 { "client" } else { "clients" };
    let more = clients.len().saturating_sub(CLIENTS_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{word} {}{more}", named.join(", "))
}

fn no_drive(groups: usize, pools: &str) -> Doing {
    let of = if pools.is_empty() { String::new() } else { format!(" of pool {pools}") };
    Doing {
        what: format!(
            "{}: no drive{of} can take it: every drive in service is on a node that has a copy already, or nearly full",
            count(groups, "copy")
        ),
        groups,
        waits_for: Some(WaitsFor::Drive),
        wait_ms: None,
        progress: None,
    }
}

fn going_on(what: String, groups: usize, progress: Progress) -> Doing {
    Doing { what, groups, waits_for: None, wait_ms: None, progress: Some(progress) }
}

fn start_node(name: &str) -> Advice {
    let what = "bring the node back: repair its machine or network and start its target; in a local fabric";
    Advice::command(what, format!("weft node start {name}"))
}

fn restore(drive: &Drive, node: &str) -> Option<Advice> {
    let what = format!("once it is sound: restart the target of node '{node}', then");
    (drive.state == DriveState::Failed)
        .then(|| Advice::command(what, format!("weft drive restore {}", drive.id.short())))
}

fn more_drives() -> [Advice; 2] {
    [
        Advice::plain(
            "add a node with drives, or bring one back: each copy of a group is on a node of its own, on a drive with \
             room for it",
        ),
        Advice::command("see what there is", "weft drive list"),
    ]
}

fn pool_of(state: &State, drive: DriveId) -> Option<String> {
    let pool = state.map.drives.get(&drive)?.pool;
    Some(state.map.pools.get(&pool)?.name.clone())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Says of how many groups how many copies are there: by copies that are up to date and answer, and
/// copies that there should be, how many groups have them. None of no group.
fn missing_in_words(by_copies: &BTreeMap<(usize, usize), usize>) -> Option<String> {
    let all: usize = by_copies.values().sum();
    let last: usize = by_copies.iter().filter(|((good, _), _)| *good == 1).map(|(_, groups)| groups).sum();
    let has = |groups: usize| if groups == 1 { "has" } else { "have" };
    let mut parts = by_copies.iter().map(|((good, copies), groups)| (good, copies, *groups));
    let text = match (parts.next()?, by_copies.len()) {
        ((good, copies, groups), 1) => {
            let warning = if last > 0 { ": another loss there makes data unavailable" } else { "" };
            let count = count(groups, "group");
            format!(
                "{count} {} {good} of {copies} copies that are up to date and answer{warning}",
                has(groups)
            )
        }
        (first, _) => {
            let parts = std::iter::once(first).chain(parts);
            let parts: Vec<String> = parts
                .map(|(good, copies, groups)| format!("{groups} {} {good} of {copies}", has(groups)))
                .collect();
            let warning = match last {
                0 => String::new(),
                last => format!("; another loss makes data of the {last} with one copy unavailable"),
            };
            format!(
                "{} have fewer copies that are up to date and answer than they should: {}{warning}",
                count(all, "group"),
                parts.join(", ")
            )
        }
    };
    Some(text)
}

/// A number of things, in words.
pub(crate) fn count(n: usize, one: &str) -> String {
    match one.strip_suffix('y') {
        _ if n == 1 => format!("1 {one}"),
        Some(stem) => format!("{n} {stem}ies"),
        None => format!("{n} {one}s"),
    }
}
