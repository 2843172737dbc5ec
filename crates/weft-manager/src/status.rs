//! The fabric at a glance: health with reasons, capacity, and how the repairs are getting on.
//!
//! It owns the questions to the targets and the estimate of when a resync is done. Targets are asked only
//! when somebody wants to know, and at most once a second.

use crate::manager::{Manager, State, wall_clock_ms};
use crate::observe::to_ms;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_api::{
    Advice, DegradedGroup, Emptying, FabricStatus, Health, Progress, Repair, ResyncInfo, Severity, Timestamp,
    Trouble, TroubleKind,
};
use weft_rt::sync::join_all;
use weft_rt::{Instant, now, sleep};
use weft_types::{
    BLOCK_SIZE, DriveId, DriveState, FabricMap, Group, GroupId, Role, SessionState, Slot, TargetId,
    VolumeKind,
};
use weft_wire::control::{DriveStatus, ResyncStatus, ResyncWait, TargetAnswer, TargetRequest, UnservedShard};

/// How long an answer of the targets is good enough: a person does not see a second, and a fast poller costs
/// nothing.
const USAGE_FRESH: Duration = Duration::from_secs(1);

/// How often targets are asked while something is copied or a pool is nearly full.
const ASK_BUSY: Duration = Duration::from_secs(2);

/// How often they are asked otherwise: a pool that fills up in less is one that nobody could have saved.
const ASK_IDLE: Duration = Duration::from_secs(10);

/// How long a target may take to say how it is: it only has to add up numbers.
const STATUS_MAX: Duration = Duration::from_secs(1);

/// A rate is measured over at least this time, so that one chunk more or less does not double the estimate,
/// and over at most twice of it, so that it follows a throttle.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// What targets said of their drives and resyncs.
#[derive(Default)]
pub(crate) struct Usage {
    drives: BTreeMap<DriveId, DriveStatus>,
    resyncs: BTreeMap<(GroupId, DriveId), ResyncStatus>,
    rates: BTreeMap<(GroupId, DriveId), Rate>,
    /// Likewise, of blocks copied.
    copy_rates: BTreeMap<(GroupId, DriveId), Rate>,
    /// The share of the time that background work takes on a drive's target, while clients are there.
    paces: BTreeMap<DriveId, u8>,
    /// Shards of file systems that their servers cannot open, with these.
    unserved: Vec<(TargetId, UnservedShard)>,
}

/// Where a resync was: at the start of the window that is measured, and at the start of the next one.
#[derive(Clone, Copy)]
pub(crate) struct Rate {
    from: (Instant, u64),
    next: (Instant, u64),
}

impl Rate {
    pub(crate) fn begin(at: Instant, chunks: u64) -> Rate {
        Rate { from: (at, chunks), next: (at, chunks) }
    }

    pub(crate) fn advance(mut self, at: Instant, chunks: u64) -> Rate {
        if chunks < self.next.1 {
            return Rate::begin(at, chunks);
        }
        if at - self.next.0 >= RATE_WINDOW {
            self.from = std::mem::replace(&mut self.next, (at, chunks));
        }
        self
    }

    /// How many pass in an hour at the rate of the last seconds.
    fn per_hour(&self, at: Instant, count: u64) -> u128 {
        let (elapsed, done) = (at - self.from.0, count.saturating_sub(self.from.1));
        u128::from(done) * 3_600_000 / elapsed.as_millis().max(1)
    }

    /// Milliseconds until so many chunks are verified; none while nothing moves.
    pub(crate) fn eta_ms(&self, at: Instant, chunks: u64, total: u64) -> Option<u64> {
        let (elapsed, done) = (at - self.from.0, chunks.saturating_sub(self.from.1));
        let left = u128::from(total.saturating_sub(chunks));
        match done {
            0 if left > 0 => None,
            0 => Some(0),
            _ => u64::try_from(left * elapsed.as_millis() / u128::from(done)).ok(),
        }
    }
}

impl Usage {
    /// What a drive's target said of it.
    pub(crate) fn drive(&self, drive: DriveId) -> Option<&DriveStatus> {
        self.drives.get(&drive)
    }

    /// What holds a copy up.
    pub(crate) fn wait(&self, key: (GroupId, DriveId)) -> Option<&ResyncWait> {
        self.resyncs.get(&key)?.waits_for.as_ref()
    }

    /// How far the copying to these drives has come, all of it together.
    pub(crate) fn progress(&self, copies: impl IntoIterator<Item = (GroupId, DriveId)>) -> Progress {
        let at = now();
        let mut progress = Progress::default();
        let (mut blocks_per_hour, mut chunks_per_hour, mut is_known) = (0u128, 0u128, true);
        for key in copies {
            progress.pace_percent = progress.pace_percent.max(self.paces.get(&key.1).copied());
            let Some(resync) = self.resyncs.get(&key) else {
                is_known = false;
                continue;
            };
            progress.chunks_done += resync.chunks_verified;
            progress.chunks_total += resync.chunks_total;
            progress.bytes_copied += resync.blocks_copied * BLOCK_SIZE as u64;
            // What waits for something else is not done at the rate of the others.
            is_known &= resync.waits_for.is_none();
            let rate =
                |rates: &BTreeMap<_, Rate>, value| rates.get(&key).map_or(0, |r| r.per_hour(at, value));
            blocks_per_hour += rate(&self.copy_rates, resync.blocks_copied);
            chunks_per_hour += rate(&self.rates, resync.chunks_verified);
        }
        let left = u128::from(progress.chunks_total.saturating_sub(progress.chunks_done));
        if let Some(left_ms) = (left * 3_600_000).checked_div(chunks_per_hour) {
            let rate = blocks_per_hour * BLOCK_SIZE as u128 / 3600;
            progress.bytes_per_second = u64::try_from(rate).ok();
            progress.eta_ms = u64::try_from(left_ms).ok().filter(|_| is_known);
        }
        progress
    }

    /// Shards that their servers cannot open, with these.
    pub(crate) fn unserved(&self) -> &[(TargetId, UnservedShard)] {
        &self.unserved
    }

    fn repair(&self, group: GroupId, drive: DriveId) -> Repair {
        let Some(resync) = self.resyncs.get(&(group, drive)) else {
            return Repair::Resync {
                chunks_verified: None,
                chunks_total: None,
                bytes_copied: 0,
                eta_ms: None,
            };
        };
        let rate = self.rates.get(&(group, drive));
        Repair::Resync {
            chunks_verified: Some(resync.chunks_verified),
            chunks_total: Some(resync.chunks_total),
            bytes_copied: resync.blocks_copied.saturating_mul(BLOCK_SIZE as u64),
            eta_ms: rate.and_then(|r| r.eta_ms(now(), resync.chunks_verified, resync.chunks_total)),
        }
    }
}

impl Manager {
    /// What the targets that are up say of their drives, not older than a second.
    pub(crate) async fn usage(self: &Rc<Self>) -> Rc<Usage> {
        let old = match &self.state.borrow().usage {
            Some((at, usage)) if at.elapsed() < USAGE_FRESH || self.polling.get() => return usage.clone(),
            Some((_, usage)) => Some(usage.clone()),
            None => None,
        };
        let up: Vec<_> = {
            let state = self.state.borrow();
            state
                .members
                .iter()
                .filter(|(_, m)| m.is_up() && m.open_link().is_some())
                .map(|(target, _)| *target)
                .collect()
        };
        self.polling.set(true);
        let answers = join_all(up.into_iter().map(|target| async move {
            (target, self.ask(target, &TargetRequest::Status, None, STATUS_MAX).await)
        }))
        .await;
        self.polling.set(false);
        let mut usage = Usage::default();
        for (target, answer) in answers {
            let Ok(TargetAnswer::Status(status)) = answer else { continue };
            if let Some(pace) = status.pace_percent {
                usage.paces.extend(status.drives.iter().map(|d| (d.id, pace)));
            }
            usage.unserved.extend(status.unserved.into_iter().map(|shard| (target, shard)));
            usage.drives.extend(status.drives.into_iter().map(|d| (d.id, d)));
            usage.resyncs.extend(status.resyncs.into_iter().map(|r| ((r.group, r.drive), r)));
        }
        for (key, resync) in &usage.resyncs {
            let before = old.as_ref().and_then(|o| o.rates.get(key).copied());
            let rate = before.unwrap_or_else(|| Rate::begin(now(), resync.chunks_verified));
            usage.rates.insert(*key, rate.advance(now(), resync.chunks_verified));
            let before = old.as_ref().and_then(|o| o.copy_rates.get(key).copied());
            let rate = before.unwrap_or_else(|| Rate::begin(now(), resync.blocks_copied));
            usage.copy_rates.insert(*key, rate.advance(now(), resync.blocks_copied));
        }
        let usage = Rc::new(usage);
        self.state.borrow_mut().usage = Some((now(), usage.clone()));
        usage
    }

    /// Why this manager serves no more, if it does not.
    fn stopped(&self) -> Option<Trouble> {
        let reason = self.halted.borrow().clone()?;
        Some(Trouble {
            kind: TroubleKind::ManagerStopped,
            severity: Severity::Unavailable,
            what: format!("the manager has stopped: {reason}"),
            since: Timestamp::from_millis(wall_clock_ms()),
            node: None,
            drive: None,
            pool: None,
            groups: 0,
            more_volumes: 0,
            volumes: vec![],
            doing: vec![],
            advice: vec![Advice::plain(
                "reads and writes go on as long as nothing else fails; look into the manager's log",
            )],
        })
    }

    /// Asks the targets how they are now and then, also if nobody wants to know: so that a pool that fills up
    /// is told, and an estimate is there for whoever asks first.
    pub(crate) async fn keep_asking(self: Rc<Self>) {
        while self.halted.borrow().is_none() {
            let usage = self.usage().await;
            let is_busy = {
                let state = self.state.borrow();
                let is_syncing = |g: &Group| g.slots.iter().any(|s| s.role == Role::Syncing);
                let is_tight = |pool: &weft_types::PoolId| {
                    state.fill_of(*pool, &usage).level >= weft_types::CapacityLevel::Critical
                };
                state.map.groups.values().any(is_syncing) || state.map.pools.keys().any(is_tight)
            };
            sleep(if is_busy { ASK_BUSY } else { ASK_IDLE }).await;
        }
    }

    /// The fabric at a glance.
    pub async fn status(self: &Rc<Self>) -> FabricStatus {
        let usage = self.usage().await;
        let (nodes, pools) = (self.node_infos(), self.pool_infos(&usage));
        let state = self.state.borrow();
        let map = &state.map;
        let degraded = state.degraded_groups(&usage);
        let eta = |d: &DegradedGroup| match &d.repair {
            Repair::Resync { eta_ms, .. } => Some(*eta_ms),
            _ => None,
        };
        let etas: Vec<Option<u64>> = degraded.iter().filter_map(eta).collect();
        let found = state.troubles(&usage, self.started).into_iter();
        let found = found.map(|trouble| state.known_troubles.with_beginning(trouble));
        let troubles: Vec<Trouble> = self.stopped().into_iter().chain(found).collect();
        let is_worth = |t: &&Trouble| t.severity >= Severity::Degraded;
        FabricStatus {
            fabric: map.fabric,
            map: map.version,
            time: Timestamp::from_millis(wall_clock_ms()),
            health: health(&troubles),
            reasons: troubles.iter().filter(is_worth).map(reason).collect(),
            troubles,
            nodes,
            pools,
            groups: map.groups.len(),
            volumes: map.volumes.values().filter(|v| v.kind == VolumeKind::Blocks).count(),
            file_systems: map.file_systems().count(),
            sessions: map.sessions.values().filter(|s| s.state == SessionState::Open).count(),
            // Unknown as long as one of them is.
            resync_eta_ms: etas
                .iter()
                .copied()
                .collect::<Option<Vec<u64>>>()
                .and_then(|e| e.into_iter().max()),
            emptying: state.emptying(&usage),
            degraded_groups: degraded,
            resyncs: usage.resyncs.values().map(resync_info).collect(),
            scrub: self.scrub_run(),
        }
    }
}

/// The worst of all troubles.
fn health(troubles: &[Trouble]) -> Health {
    match troubles.iter().map(|t| t.severity).max() {
        Some(Severity::Unavailable) => Health::Unavailable,
        Some(Severity::Degraded) => Health::Degraded,
        Some(Severity::Warning | Severity::Notice) | None => Health::Healthy,
    }
}

/// A trouble in one sentence.
fn reason(trouble: &Trouble) -> String {
    let names: Vec<&str> = trouble.volumes.iter().map(|v| v.volume.as_str()).collect();
    match names.is_empty() {
        true => trouble.what.clone(),
        false if trouble.more_volumes > 0 => {
            format!("{} (volumes {} and {} more)", trouble.what, names.join(", "), trouble.more_volumes)
        }
        false => format!("{} (volumes {})", trouble.what, names.join(", ")),
    }
}

fn resync_info(resync: &ResyncStatus) -> ResyncInfo {
    ResyncInfo {
        group: resync.group,
        drive: resync.drive,
        done: resync.done,
        bytes_copied: resync.blocks_copied.saturating_mul(BLOCK_SIZE as u64),
        bytes_held: resync.blocks_held.saturating_mul(BLOCK_SIZE as u64),
    }
}

impl State {
    /// Copies that are missing, behind or silent, with what is being done about each.
    fn degraded_groups(&self, usage: &Usage) -> Vec<DegradedGroup> {
        let map = &self.map;
        let is_bad = |group: &Group, s: &Slot| {
            let is_passing = || map.is_whole(group) && map.is_passing(group.id, s.drive);
            s.role != Role::InSync && !is_passing() || !self.is_served(s.drive)
        };
        let bad: Vec<&Group> =
            map.groups.values().filter(|group| group.slots.iter().any(|s| is_bad(group, s))).collect();
        let volumes = volumes_by_group(map, &bad.iter().map(|group| group.id).collect());
        let mut degraded = Vec::new();
        for group in bad {
            for slot in group.slots.iter().filter(|s| is_bad(group, s)) {
                let node = map.drives.get(&slot.drive).and_then(|d| map.nodes.get(&d.node));
                degraded.push(DegradedGroup {
                    group: group.id,
                    volumes: volumes.get(&group.id).cloned().unwrap_or_default(),
                    drive: slot.drive,
                    node: node.map_or_else(String::new, |n| n.name.clone()),
                    role: slot.role,
                    good_copies: self.good_copies(group),
                    copies: map.copies_of(group),
                    repair: self.repair(group, slot, usage),
                });
            }
        }
        degraded
    }

    /// Drives that are being emptied, with how far that has come.
    fn emptying(&self, usage: &Usage) -> Vec<Emptying> {
        let map = &self.map;
        let draining = map.drives.values().filter(|d| d.state == DriveState::Draining);
        let describe = |drive: &weft_types::Drive| {
            let left = map.groups.values().filter(|g| map.staying(g).any(|d| d == drive.id)).count();
            let moves: Vec<_> = map.relocations.iter().filter(|(_, r)| r.from == drive.id).collect();
            let resyncs = moves.iter().filter_map(|(group, r)| usage.resyncs.get(&(**group, r.to)));
            Emptying {
                drive: drive.id,
                node: map.nodes.get(&drive.node).map_or_else(String::new, |n| n.name.clone()),
                copies_left: left + moves.len(),
                copies_passing: moves.len(),
                bytes_copied: resyncs.map(|r| r.blocks_copied * BLOCK_SIZE as u64).sum(),
            }
        };
        draining.map(describe).collect()
    }

    fn repair(&self, group: &Group, slot: &Slot, usage: &Usage) -> Repair {
        let is_served = self.is_served(slot.drive);
        match slot.role {
            Role::Syncing if is_served => usage.repair(group.id, slot.drive),
            Role::InSync if self.good_copies(group) == 0 => Repair::AwaitingLastCopy,
            Role::InSync | Role::Syncing => Repair::Evicting,
            Role::Out => match self.rebuild_in_ms(group.id, slot.drive) {
                0 => Repair::NoSpareDrive,
                rebuild_in_ms => Repair::AwaitingReturn { rebuild_in_ms },
            },
        }
    }

    /// How long the drive is still awaited before its copy of a group is rebuilt elsewhere.
    pub(crate) fn rebuild_in_ms(&self, group: GroupId, drive: DriveId) -> u64 {
        let after = self.map.durations.rebuild_after_ms;
        let Some(listed) = self.map.drives.get(&drive).filter(|d| d.state == DriveState::Active) else {
            return 0;
        };
        let Some(member) = self.members.get(&listed.target) else { return after };
        if let Some(since_ms) = self.reach.members().get(&(group, drive)).filter(|_| member.is_up()) {
            return after.saturating_sub(to_ms(now()).saturating_sub(*since_ms));
        }
        let gone_at = if member.is_up() && !member.drives.contains(&drive) {
            member.joined_at
        } else {
            member.heard_at
        };
        after.saturating_sub(to_ms(now()) - to_ms(gone_at))
    }
}

/// The names of the volumes with objects in each of some groups.
fn volumes_by_group(map: &FabricMap, groups: &BTreeSet<GroupId>) -> BTreeMap<GroupId, Vec<String>> {
    let mut by_group: BTreeMap<GroupId, BTreeSet<String>> = BTreeMap::new();
    for list in map.group_lists() {
        for group in list.groups.iter().filter(|group| groups.contains(group)) {
            by_group.entry(*group).or_default().extend(list.volumes.iter().map(|v| v.name.clone()));
        }
    }
    by_group.into_iter().map(|(group, names)| (group, names.into_iter().collect())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_the_rate_of_the_last_seconds() {
        let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        let mut rate = Rate::begin(at(0), 0);
        assert_eq!(rate.eta_ms(at(0), 0, 100), None, "nothing has moved yet");
        rate = rate.advance(at(5), 50);
        assert_eq!(rate.eta_ms(at(5), 50, 100), Some(5_000));
        rate = rate.advance(at(10), 60);
        assert_eq!(rate.eta_ms(at(10), 60, 100), Some(20_000), "ten in the last five seconds");
        rate = rate.advance(at(11), 3);
        assert_eq!(rate.eta_ms(at(12), 4, 10), Some(6_000), "a new stint begins anew");
    }
}
