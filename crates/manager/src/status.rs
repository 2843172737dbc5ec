//! The fabric at a glance: health with reasons, capacity, and how the repairs are getting on.
//!
//! It owns the questions to the targets and the estimate of when a resync is done. Targets are asked only when
//! somebody wants to know, and at most once a second.

use crate::describe::presence;
use crate::manager::{Manager, State, wall_clock_ms};
use crate::observe::to_ms;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_api::{DegradedGroup, Emptying, FabricStatus, Health, Presence, Repair, ResyncInfo, Timestamp};
use weft_rt::sync::join_all;
use weft_rt::{Instant, now};
use weft_types::{BLOCK_SIZE, DriveId, DriveState, FabricMap, Group, GroupId, Role, SessionState, Slot};
use weft_wire::control::{DriveStatus, ResyncStatus, TargetAnswer, TargetRequest};

/// How long an answer of the targets is good enough: a person does not see a second, and a fast poller costs nothing.
const USAGE_FRESH: Duration = Duration::from_secs(1);

/// How long a target may take to say how it is: it only has to add up numbers.
const STATUS_MAX: Duration = Duration::from_secs(1);

/// A rate is measured over at least this time, so that one chunk more or less does not double the estimate, and
/// over at most twice of it, so that it follows a throttle.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// What targets said of their drives and resyncs.
#[derive(Default)]
pub(crate) struct Usage {
    drives: BTreeMap<DriveId, DriveStatus>,
    resyncs: BTreeMap<(GroupId, DriveId), ResyncStatus>,
    rates: BTreeMap<(GroupId, DriveId), Rate>,
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
                .map(|(n, _)| *n)
                .collect()
        };
        self.polling.set(true);
        let answers = join_all(
            up.into_iter()
                .map(|node| async move { self.ask(node, &TargetRequest::Status, None, STATUS_MAX).await }),
        )
        .await;
        self.polling.set(false);
        let mut usage = Usage::default();
        for answer in answers {
            let Ok(TargetAnswer::Status(status)) = answer else { continue };
            usage.drives.extend(status.drives.into_iter().map(|d| (d.id, d)));
            usage.resyncs.extend(status.resyncs.into_iter().map(|r| ((r.group, r.drive), r)));
        }
        for (key, resync) in &usage.resyncs {
            let before = old.as_ref().and_then(|o| o.rates.get(key).copied());
            let rate = before.unwrap_or_else(|| Rate::begin(now(), resync.chunks_verified));
            usage.rates.insert(*key, rate.advance(now(), resync.chunks_verified));
        }
        let usage = Rc::new(usage);
        self.state.borrow_mut().usage = Some((now(), usage.clone()));
        usage
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
        let (mut health, mut reasons) = state.health(&degraded);
        if let Some(reason) = self.halted.borrow().clone() {
            health = Health::Unavailable;
            reasons.insert(0, format!("the manager has stopped: {reason}"));
        }
        FabricStatus {
            fabric: map.fabric,
            map: map.version,
            time: Timestamp::from_millis(wall_clock_ms()),
            health,
            reasons,
            nodes,
            pools,
            groups: map.groups.len(),
            volumes: map.volumes.len(),
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
    /// How well the fabric is, and why: first what cannot be used, then what is behind.
    fn health(&self, degraded: &[DegradedGroup]) -> (Health, Vec<String>) {
        let map = &self.map;
        let mut reasons = Vec::new();
        let (lost, behind): (Vec<_>, Vec<_>) =
            degraded.iter().filter(|d| !d.volumes.is_empty()).partition(|d| d.good_copies == 0);
        let groups = |part: &[&DegradedGroup]| part.iter().map(|d| d.group).collect::<BTreeSet<_>>().len();
        let volumes = |part: &[&DegradedGroup]| {
            let names: BTreeSet<&str> =
                part.iter().flat_map(|d| d.volumes.iter().map(String::as_str)).collect();
            names.into_iter().collect::<Vec<_>>().join(", ")
        };
        if !lost.is_empty() {
            let what = match groups(&lost) {
                1 => "1 group has".to_owned(),
                n => format!("{n} groups have"),
            };
            let text = "no up-to-date copy that answers; volumes that cannot be used in part or whole:";
            reasons.push(format!("{what} {text} {}", volumes(&lost)));
        }
        for node in map.nodes.values() {
            let Some(member) = self.members.get(&node.id) else { continue };
            let why = member.suspicion.as_ref().map_or("its target has not joined yet", |s| s.why.as_str());
            match presence(map, node, member) {
                Presence::Up => {}
                Presence::Suspect => reasons.push(format!("node '{}' does not answer: {why}", node.name)),
                Presence::Down => reasons.push(format!("node '{}' is down: {why}", node.name)),
            }
            let refused = member.refused.values();
            reasons.extend(
                refused
                    .map(|text| format!("node '{}' has a drive that it must not serve: {text}", node.name)),
            );
        }
        for drive in map.drives.values().filter(|d| d.state == DriveState::Failed) {
            reasons.push(format!("drive {} ({}) has failed; once it is sound: restart its target, then `weft drive restore {}`", drive.id.short(), drive.path, drive.id.short()));
        }
        if !behind.is_empty() {
            let what = match groups(&behind) {
                1 => "1 group misses a copy or has".to_owned(),
                n => format!("{n} groups miss a copy or have"),
            };
            let text = "one that is behind; volumes that are less protected:";
            reasons.push(format!("{what} {text} {}", volumes(&behind)));
        }
        let used = volumes_by_group(map);
        let scrubbed = map.scrub.done.iter().filter(|(group, _)| used.contains_key(group));
        let unreadable: u64 = scrubbed.map(|(_, record)| record.lost).sum();
        if unreadable > 0 {
            let text = "could not be read from any copy by the last scrub: see `weft scrub status`";
            reasons.push(format!("{unreadable} blocks {text}"));
        }
        let health = match (lost.is_empty(), reasons.is_empty()) {
            (false, _) => Health::Unavailable,
            (true, false) => Health::Degraded,
            (true, true) => Health::Healthy,
        };
        (health, reasons)
    }

    /// Copies that are missing, behind or silent, with what is being done about each.
    fn degraded_groups(&self, usage: &Usage) -> Vec<DegradedGroup> {
        let map = &self.map;
        let volumes = volumes_by_group(map);
        let mut degraded = Vec::new();
        for group in map.groups.values() {
            let is_whole = map.is_whole(group);
            let is_bad = |s: &&Slot| {
                let is_behind = s.role != Role::InSync && !(is_whole && map.is_passing(group.id, s.drive));
                is_behind || !self.is_served(s.drive)
            };
            for slot in group.slots.iter().filter(is_bad) {
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
            Role::Out => match self.rebuild_in_ms(slot.drive) {
                0 => Repair::NoSpareDrive,
                rebuild_in_ms => Repair::AwaitingReturn { rebuild_in_ms },
            },
        }
    }

    /// How long the drive is still awaited before its copies are rebuilt elsewhere.
    fn rebuild_in_ms(&self, drive: DriveId) -> u64 {
        let after = self.map.durations.rebuild_after_ms;
        let Some(listed) = self.map.drives.get(&drive).filter(|d| d.state == DriveState::Active) else {
            return 0;
        };
        let Some(member) = self.members.get(&listed.node) else { return after };
        let gone_at = if member.is_up() && !member.drives.contains(&drive) {
            member.joined_at
        } else {
            member.heard_at
        };
        after.saturating_sub(to_ms(now()) - to_ms(gone_at))
    }
}

/// The names of the volumes with objects in each group.
fn volumes_by_group(map: &FabricMap) -> BTreeMap<GroupId, Vec<String>> {
    let mut by_group: BTreeMap<GroupId, BTreeSet<String>> = BTreeMap::new();
    for volume in map.volumes.values() {
        for group in volume.spans.iter().flat_map(|s| &s.groups) {
            by_group.entry(*group).or_default().insert(volume.name.clone());
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
