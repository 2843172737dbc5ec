//! Scrubs: which groups are read and verified now, who leads each, and what came of it.
//!
//! ```text
//! due (wanted, or by schedule) --a member that serves, no drive busy--> led by a target --done--> noted in the map
//!           ^                                                              |
//!           +----- the epoch has changed, the leader is gone: go on ------+
//! ```
//! It owns the orders: a group is due by the map alone, so a restarted manager goes on by itself. A drive
//! takes part in one scrub at a time, so that the pace of each is the pace of its drives. What was read so
//! far is kept in memory only: the next manager process begins those groups anew. It never judges a block:
//! targets do.

use crate::event::Subjects;
use crate::manager::{Manager, State, wall_clock_ms};
use crate::status::Rate;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;
use weft_api::{FileObject, ScrubFindingInfo, Timestamp};
use weft_layout::address_of;
use weft_membership::{
    Change, NoteScrubs, SCRUB_REST_MS, ScheduleScrub, StopScrub, WantScrub, due_for_scrub,
};
use weft_rt::sync::{Notify, join_all, race};
use weft_rt::{Instant, now, random_u64, sleep};
use weft_types::limits::{SCRUB_FINDINGS_SHOWN_MAX, SCRUBS_PER_TARGET_MAX};
use weft_types::{
    BLOCK_SIZE, ChunkIndex, DeviceId, DriveId, FabricMap, GroupId, NodeId, ObjectId, Owner, ScrubFindingKind,
    ScrubRecord, TargetId, with_causes,
};
use weft_wire::control::{
    DriveDamage, ScrubFinding, ScrubOrder, ScrubReport, ScrubState, ScrubStatus, TargetAnswer, TargetRequest,
};

/// How often leaders are asked while a scrub runs: a group that is done makes room for the next one soon, and
/// a person who watches sees it move.
const ASK_BUSY: Duration = Duration::from_millis(500);

/// How often targets are asked otherwise: what clients' reads have healed is told within this time.
const ASK_IDLE: Duration = Duration::from_secs(10);

/// The pause after planning is at least this many times as long as planning took. So a fabric with very many
/// groups does not keep the manager's core busy.
const PLANNING_SHARE: u32 = 50;

/// How long a target may take to answer: it only has to add up numbers.
const ASK_MAX: Duration = Duration::from_secs(1);

/// How long finished scrubs wait to be noted together: a note is a new map for everyone. Whatever a dying
/// manager has not noted is read again.
const NOTE_AFTER: Duration = Duration::from_secs(10);

/// Events about one group's findings; beyond, the totals have to do.
const EVENTS_PER_ORDER: u32 = 20;

/// The pause between two events about one drive's damage.
const DAMAGE_EVENT_EVERY: Duration = Duration::from_secs(10);

/// What this manager process knows of scrubs.
#[derive(Default)]
pub(crate) struct Scrubs {
    pub(crate) running: BTreeMap<GroupId, Running>,
    /// Where interrupted scrubs go on.
    kept: BTreeMap<GroupId, Kept>,
    /// Finished, and not yet noted in the map.
    notes: BTreeMap<GroupId, ScrubRecord>,
    notes_since: Option<Instant>,
    pub(crate) run: Option<Run>,
    pub(crate) last: Option<Run>,
    pub(crate) findings: VecDeque<ScrubFindingInfo>,
    damage: BTreeMap<DriveId, Told>,
}

/// The scrubs of a manager, and how its loop is woken.
#[derive(Default)]
pub(crate) struct Scrubbing {
    pub(crate) scrubs: RefCell<Scrubs>,
    wake: Notify,
}

/// A group that a target has been ordered to scrub.
pub(crate) struct Running {
    order: u64,
    pub(crate) leader: DriveId,
    pub(crate) target: TargetId,
    /// The in-sync members when it was ordered.
    pub(crate) drives: BTreeSet<DriveId>,
    from: Option<(ObjectId, ChunkIndex)>,
    cursor: Option<(ObjectId, ChunkIndex)>,
    findings_seen: u32,
    /// What earlier orders for the group have read.
    base: Counts,
    /// What this order has read so far.
    own: Counts,
    /// Chunks that this order has to read.
    total: u64,
    pub(crate) waits_for: Option<String>,
}

impl Running {
    pub(crate) fn counts(&self) -> Counts {
        self.base.plus(self.own)
    }

    /// Chunks to read in all.
    pub(crate) fn chunks_total(&self) -> u64 {
        self.base.chunks + self.total
    }
}

/// Where an interrupted scrub goes on, as long as no other member has to be read as well.
struct Kept {
    cursor: (ObjectId, ChunkIndex),
    drives: BTreeSet<DriveId>,
    counts: Counts,
}

/// What was read and found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) chunks: u64,
    pub(crate) blocks: u64,
    pub(crate) healed: u64,
    pub(crate) lost: u64,
    pub(crate) disagreements: u64,
}

impl Counts {
    pub(crate) fn plus(self, other: Counts) -> Counts {
        Counts {
            chunks: self.chunks + other.chunks,
            blocks: self.blocks + other.blocks,
            healed: self.healed + other.healed,
            lost: self.lost + other.lost,
            disagreements: self.disagreements + other.disagreements,
        }
    }

    fn of(status: &ScrubStatus) -> Counts {
        Counts {
            chunks: status.chunks_done,
            blocks: status.blocks_read,
            healed: status.blocks_healed,
            lost: status.blocks_lost,
            disagreements: status.disagreements,
        }
    }
}

/// A scrub as people see it: from when something was due to when nothing was any more.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) started_ms: u64,
    pub(crate) ended_ms: Option<u64>,
    pub(crate) was_stopped: bool,
    /// Groups that it is about.
    pub(crate) groups: BTreeSet<GroupId>,
    /// Groups that are done.
    pub(crate) done: BTreeSet<GroupId>,
    /// Those among them of which fewer members were read than there should be.
    pub(crate) degraded: usize,
    /// What was found in groups that are done.
    pub(crate) counts: Counts,
    pub(crate) rate: Rate,
}

/// What was last told of a drive's damage.
struct Told {
    damage: DriveDamage,
    at: Instant,
}

impl Manager {
    /// Has scrubs done that are due, as long as the manager lives.
    pub(crate) async fn keep_scrubbing(self: Rc<Self>) {
        while self.halted.borrow().is_none() {
            let woken = self.scrubbing.wake.notified();
            let began = now();
            self.plan_scrubs();
            let took = now() - began;
            self.ask_leaders().await;
            self.note_scrubs();
            let is_busy = self.scrubbing.scrubs.borrow().run.is_some();
            let pause = if is_busy { ASK_BUSY } else { ASK_IDLE };
            race(woken, sleep(pause.max(took * PLANNING_SHARE))).await;
        }
    }

    /// Has groups scrubbed because somebody wants it.
    ///
    /// # Errors
    /// If the map cannot be changed.
    pub(crate) fn start_scrub(&self, groups: BTreeSet<GroupId>) -> Result<(), crate::error::CommitError> {
        self.commit(&Change::WantScrub(WantScrub { groups }))?;
        self.plan_scrubs();
        self.scrubbing.wake.notify_all();
        Ok(())
    }

    /// Ends the scrub that runs, and lets the schedule rest for a day.
    ///
    /// # Errors
    /// Likewise.
    pub(crate) fn stop_scrub(&self) -> Result<(), crate::error::CommitError> {
        self.commit(&Change::StopScrub(StopScrub { rests_until_ms: wall_clock_ms() + SCRUB_REST_MS }))?;
        {
            let mut scrubs = self.scrubbing.scrubs.borrow_mut();
            let scrubs = &mut *scrubs;
            for running in std::mem::take(&mut scrubs.running).into_values() {
                if let Some(run) = &mut scrubs.run {
                    run.counts = run.counts.plus(running.counts());
                }
            }
            scrubs.kept.clear();
            if let Some(run) = scrubs.run.take() {
                let ended_ms = Some(wall_clock_ms());
                scrubs.last = Some(Run { ended_ms, was_stopped: true, ..run });
            }
        }
        self.scrubbing.wake.notify_all();
        Ok(())
    }

    /// Changes how often everything is scrubbed.
    ///
    /// # Errors
    /// Likewise.
    pub(crate) fn schedule_scrub(&self, every_ms: Option<u64>) -> Result<(), crate::error::CommitError> {
        self.commit(&Change::ScheduleScrub(ScheduleScrub { every_ms }))?;
        self.scrubbing.wake.notify_all();
        Ok(())
    }

    /// Decides who scrubs what: drops orders that are void, gives new ones, begins and ends the run.
    fn plan_scrubs(&self) {
        let mut told = Vec::new();
        {
            let state = self.state.borrow();
            let mut scrubs = self.scrubbing.scrubs.borrow_mut();
            let mut due = due_for_scrub(&state.map, wall_clock_ms());
            due.retain(|group| !scrubs.notes.contains_key(group));
            scrubs.drop_void(&state, &due);
            scrubs.give_orders(&state, &due);
            if due.is_empty() {
                told.extend(scrubs.end_run());
            } else {
                told.extend(scrubs.extend_run(&state.map, &due));
            }
        }
        for (what, why) in told {
            self.tell(what, why, Subjects::default());
        }
    }

    /// Tells every target which scrubs it leads, and takes what they say.
    async fn ask_leaders(self: &Rc<Self>) {
        let orders = {
            let state = self.state.borrow();
            let up = state.members.iter().filter(|(_, m)| m.is_up() && m.open_link().is_some());
            let mut orders: BTreeMap<TargetId, Vec<ScrubOrder>> = up.map(|(n, _)| (*n, vec![])).collect();
            for (group, running) in &self.scrubbing.scrubs.borrow().running {
                if let Some(of_target) = orders.get_mut(&running.target) {
                    of_target.push(running.order(*group));
                }
            }
            orders
        };
        let asked = orders.into_iter().map(|(target, orders)| async move {
            (target, self.ask(target, &TargetRequest::Scrub { orders }, None, ASK_MAX).await)
        });
        for (target, answer) in join_all(asked).await {
            match answer {
                Ok(TargetAnswer::Scrubs(report)) => self.take_report(target, report),
                Ok(_) => {}
                Err(error) => tracing::debug!(%target, error = with_causes(&error), "no word of scrubs"),
            }
        }
    }

    fn take_report(&self, target: TargetId, report: ScrubReport) {
        let mut told = Vec::new();
        {
            let map = self.map();
            let mut scrubs = self.scrubbing.scrubs.borrow_mut();
            for status in report.scrubs {
                told.extend(scrubs.take_status(&map, status));
            }
            let name = map.node_of(target).map_or_else(|| target.to_string(), |n| n.name.clone());
            for damage in report.damage {
                let about = Subjects::node(&name).and_drives(&map, [damage.drive]);
                told.extend(scrubs.take_damage(&name, damage).map(|why| ("damage", why, about)));
            }
        }
        for (what, why, about) in told {
            self.tell(what, why, about);
        }
    }

    /// Notes finished scrubs in the map, several at once.
    fn note_scrubs(&self) {
        let records = {
            let mut scrubs = self.scrubbing.scrubs.borrow_mut();
            let is_time = scrubs.running.is_empty()
                || scrubs.notes_since.is_some_and(|since| since.elapsed() >= NOTE_AFTER);
            if scrubs.notes.is_empty() || !is_time {
                return;
            }
            scrubs.notes_since = Some(now());
            scrubs.notes.clone()
        };
        let noted: Vec<GroupId> = records.keys().copied().collect();
        match self.commit(&Change::NoteScrubs(NoteScrubs { records })) {
            Ok(_) => {
                let mut scrubs = self.scrubbing.scrubs.borrow_mut();
                scrubs.notes.retain(|group, _| !noted.contains(group));
                // There may be more to do, or nothing: either is to be known at once.
                self.scrubbing.wake.notify_all();
            }
            // Kept: they are not read again while this manager lives.
            Err(error) => tracing::warn!(error = with_causes(&error), "finished scrubs are not noted"),
        }
    }
}

impl Running {
    fn order(&self, group: GroupId) -> ScrubOrder {
        ScrubOrder {
            order: self.order,
            group,
            drive: self.leader,
            from: self.from,
            findings_seen: self.findings_seen,
        }
    }
}

impl Scrubs {
    /// Forgets orders for groups that are not due any more, and takes groups from leaders that are gone.
    fn drop_void(&mut self, state: &State, due: &[GroupId]) {
        let due: HashSet<GroupId> = due.iter().copied().collect();
        let void: Vec<GroupId> = (self.running.iter())
            .filter(|(group, running)| {
                let is_led = state.is_served(running.leader)
                    && state.map.target_of(running.leader) == Some(running.target);
                !due.contains(group) || !is_led
            })
            .map(|(group, _)| *group)
            .collect();
        for group in void {
            self.interrupt(group);
        }
        self.kept.retain(|group, _| due.contains(group));
    }

    /// Takes a group from its leader, and keeps how far it has come.
    fn interrupt(&mut self, group: GroupId) {
        let Some(running) = self.running.remove(&group) else { return };
        if let Some(cursor) = running.cursor {
            let counts = running.counts();
            self.kept.insert(group, Kept { cursor, drives: running.drives, counts });
        }
    }

    /// Gives an order for each due group that has a member that serves, and none of whose devices is busy:
    /// one scrub at a time reads a device, however many parts it has (P5).
    fn give_orders(&mut self, state: &State, due: &[GroupId]) {
        let device_of = |drive: &DriveId| state.map.drives.get(drive).map(|d| (d.node, d.device));
        let mut busy: HashSet<(NodeId, DeviceId)> =
            self.running.values().flat_map(|running| &running.drives).filter_map(device_of).collect();
        let mut led: HashMap<TargetId, usize> = HashMap::new();
        self.running.values().for_each(|running| *led.entry(running.target).or_default() += 1);
        for id in due {
            let Some(group) = state.map.groups.get(id).filter(|_| !self.running.contains_key(id)) else {
                continue;
            };
            let drives: BTreeSet<DriveId> = group.read_set().collect();
            let Some(leader) = group.read_set().find(|d| state.is_served(*d)) else { continue };
            let Some(target) = state.map.target_of(leader) else { continue };
            let led = led.entry(target).or_default();
            let devices = || drives.iter().filter_map(device_of);
            if devices().any(|device| busy.contains(&device)) || *led >= SCRUBS_PER_TARGET_MAX {
                continue;
            }
            *led += 1;
            busy.extend(devices());
            // A member that was not read so far has to be read from the beginning.
            let kept = self.kept.remove(id).filter(|kept| kept.drives.is_superset(&drives));
            let from = kept.as_ref().map(|kept| kept.cursor);
            let running = Running {
                order: random_u64(),
                leader,
                target,
                drives,
                from,
                cursor: from,
                findings_seen: 0,
                base: kept.map_or_else(Counts::default, |kept| kept.counts),
                own: Counts::default(),
                total: 0,
                waits_for: None,
            };
            self.running.insert(*id, running);
        }
    }

    /// Begins a run if there is none, and counts the groups that are due among its own.
    fn extend_run(&mut self, map: &FabricMap, due: &[GroupId]) -> Option<(&'static str, String)> {
        if let Some(run) = &mut self.run {
            run.groups.extend(due);
            return None;
        }
        let wanted = due.iter().filter(|group| map.scrub.wanted.contains(group)).count();
        self.run = Some(Run {
            started_ms: wall_clock_ms(),
            ended_ms: None,
            was_stopped: false,
            groups: due.iter().copied().collect(),
            done: BTreeSet::new(),
            degraded: 0,
            counts: Counts::default(),
            rate: Rate::begin(now(), 0),
        });
        let by = if wanted > 0 { "on request" } else { "by schedule" };
        Some(("scrub-begun", format!("{} are read and verified, {by}", count(due.len(), "group"))))
    }

    /// Ends the run, once nothing is due any more.
    fn end_run(&mut self) -> Option<(&'static str, String)> {
        let mut run = self.run.take()?;
        run.ended_ms = Some(wall_clock_ms());
        let Counts { blocks, healed, lost, disagreements, .. } = run.counts;
        let mut why = format!(
            "{} scrubbed, {} MiB read: {healed} blocks healed, {lost} lost",
            count(run.done.len(), "group"),
            (blocks * BLOCK_SIZE as u64) >> 20
        );
        if disagreements > 0 {
            why.push_str(&format!(", {disagreements} in disagreement"));
        }
        if run.degraded > 0 {
            why.push_str(&format!("; {} without all copies", count(run.degraded, "group")));
        }
        self.last = Some(run);
        Some(("scrub-ended", why))
    }

    /// Takes a leader's word; returns what is to be told.
    fn take_status(&mut self, map: &FabricMap, status: ScrubStatus) -> Vec<(&'static str, String, Subjects)> {
        let group = status.group;
        let Some(running) = self.running.get_mut(&group).filter(|r| r.order == status.order) else {
            return Vec::new();
        };
        (running.own, running.total) = (Counts::of(&status), status.chunks_total);
        running.cursor = status.cursor.or(running.cursor);
        running.waits_for = match &status.state {
            ScrubState::Waiting(text) => Some(text.clone()),
            _ => None,
        };
        let before = running.findings_seen;
        running.findings_seen += status.findings.len() as u32;
        let is_told = running.findings_seen >= status.findings_total;
        let mut told = Vec::new();
        for (finding, n) in status.findings.iter().zip(before..) {
            self.keep_findings(map, group, finding);
            if finding.kind != ScrubFindingKind::Healed && n < EVENTS_PER_ORDER {
                let about = Subjects::drives(map, finding.drives.iter().copied());
                let (what, why) = event(map, group, finding);
                told.push((what, why, about.and_volume(map, finding.object.owner().volume())));
            }
        }
        match status.state {
            ScrubState::Done if is_told => self.finish(map, group, status.members.len()),
            ScrubState::Interrupted(text) if is_told => {
                tracing::info!(%group, text, "a scrub goes on later");
                self.interrupt(group);
            }
            _ => {}
        }
        self.advance_rate();
        told
    }

    fn finish(&mut self, map: &FabricMap, group: GroupId, members: usize) {
        let Some(running) = self.running.remove(&group) else { return };
        let counts = running.counts();
        let record = ScrubRecord {
            finished_ms: wall_clock_ms(),
            members: members as u8,
            chunks: counts.chunks,
            healed: counts.healed,
            lost: counts.lost,
            disagreements: counts.disagreements,
        };
        self.notes.insert(group, record);
        self.notes_since.get_or_insert(now());
        let copies = map.groups.get(&group).map_or(0, |g| map.copies_of(g));
        if let Some(run) = &mut self.run {
            run.done.insert(group);
            run.degraded += usize::from(members < copies);
            run.counts = run.counts.plus(counts);
        }
    }

    fn advance_rate(&mut self) {
        let chunks = self.totals().chunks;
        if let Some(run) = &mut self.run {
            run.rate = run.rate.advance(now(), chunks);
        }
    }

    /// What the run has read and found so far.
    pub(crate) fn totals(&self) -> Counts {
        let done = self.run.as_ref().map_or_else(Counts::default, |run| run.counts);
        self.running.values().fold(done, |sum, running| sum.plus(running.counts()))
    }

    fn keep_findings(&mut self, map: &FabricMap, group: GroupId, finding: &ScrubFinding) {
        for (first, count) in places(map, finding) {
            if self.findings.len() == SCRUB_FINDINGS_SHOWN_MAX {
                self.findings.pop_front();
            }
            self.findings.push_back(ScrubFindingInfo {
                time: Timestamp::from_millis(wall_clock_ms()),
                kind: finding.kind,
                group,
                volume: volume_name(map, finding.object),
                offset_bytes: first * BLOCK_SIZE as u64,
                length_bytes: count * BLOCK_SIZE as u64,
                drives: finding.drives.clone(),
                file: file_of(finding.object),
            });
        }
    }

    /// Notes a drive's damage; returns what is to be told of it, now and then.
    fn take_damage(&mut self, node: &str, damage: DriveDamage) -> Option<String> {
        if let Some(told) = self.damage.get(&damage.drive)
            && (told.damage == damage || told.at.elapsed() < DAMAGE_EVENT_EVERY)
        {
            return None;
        }
        self.damage.insert(damage.drive, Told { damage, at: now() });
        Some(format!(
            "drive {} of node '{node}': {} damaged blocks found since its target started, {} of them healed",
            damage.drive.short(),
            damage.found,
            damage.healed
        ))
    }
}

/// An event about something that should not be.
fn event(map: &FabricMap, group: GroupId, finding: &ScrubFinding) -> (&'static str, String) {
    let file = file_of(finding.object);
    let unit = if file.is_some() { "blocks" } else { "LBA" };
    let lbas: Vec<String> = places(map, finding)
        .into_iter()
        .map(|(first, count)| format!("{unit} {first} to {}", first + count - 1))
        .collect();
    let drives: Vec<String> = finding.drives.iter().map(|d| d.short()).collect();
    let (volume, lbas, drives) = (volume_name(map, finding.object), lbas.join(", "), drives.join(", "));
    let owner = match file {
        None => format!("volume '{volume}'"),
        Some(file) => format!("file system '{volume}', object {} of inode {}", file.object, file.inode),
    };
    let place = format!("{owner}, {lbas} (blocks of 4 KiB; group {group})");
    match finding.kind {
        ScrubFindingKind::Healed => ("scrub-healed", format!("{place}: healed on drive {drives}")),
        ScrubFindingKind::NotHealed => {
            ("scrub-not-healed", format!("{place}: damaged on drive {drives}, and could not be written anew"))
        }
        ScrubFindingKind::Lost => {
            let is_whole = map.groups.get(&group).is_some_and(|g| map.is_whole(g));
            let hope = if is_whole { "" } else { "; a copy that is out or syncing may hold it still" };
            ("scrub-lost", format!("{place}: no copy can be read any more; damaged on drive {drives}{hope}"))
        }
        ScrubFindingKind::Stale => (
            "scrub-disagree",
            format!("{place}: drive {drives} had missed a complete write and was given it; report this"),
        ),
        ScrubFindingKind::Different => (
            "scrub-disagree",
            format!("{place}: drives {drives} hold different data of one version; report this"),
        ),
    }
}

fn volume_name(map: &FabricMap, object: ObjectId) -> String {
    {
        let volume = object.owner().volume();
        map.volumes.get(&volume).map_or_else(|| volume.to_string(), |v| v.name.clone())
    }
}

/// The object, if it is one of a file.
fn file_of(object: ObjectId) -> Option<FileObject> {
    match object.owner() {
        Owner::Volume(_) => None,
        Owner::Inode { inode, .. } => Some(FileObject { inode, object: object.index() }),
    }
}

/// Where a run of blocks of an object lies in its volume: runs of LBAs, first and count. A volume that has
/// been deleted has no places. Of a file it is the run in the object.
fn places(map: &FabricMap, finding: &ScrubFinding) -> Vec<(u64, u64)> {
    if file_of(finding.object).is_some() {
        return vec![(finding.range.first.into(), finding.range.count.into())];
    }
    let Some(volume) = map.volumes.get(&finding.object.owner().volume()) else { return Vec::new() };
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for block in finding.range.blocks() {
        let Some(lba) = address_of(&volume.striping, finding.object.index(), block) else { continue };
        match runs.last_mut() {
            Some((first, count)) if *first + *count == lba.0 => *count += 1,
            _ => runs.push((lba.0, 1)),
        }
    }
    runs
}

/// A number of things, in words.
fn count(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}
