//! Scrubs as tools show them, and the operations that people ask for. It decides nothing.

use crate::manager::{Manager, wall_clock_ms};
use crate::scrub::{Run, Scrubs};
use std::collections::BTreeSet;
use weft_api::{ScrubGroupInfo, ScrubInfo, ScrubRunInfo, ScrubVolumeInfo, Timestamp};
use weft_membership::{due_for_scrub, next_scrub_ms};
use weft_rt::now;
use weft_types::{BLOCK_SIZE, FabricMap, GroupId, Volume};

/// The groups of a volume.
pub(crate) fn groups_of(volume: &Volume) -> BTreeSet<GroupId> {
    volume.groups().copied().collect()
}

impl Manager {
    /// The schedule, what runs, and what was found.
    pub fn scrub_info(&self) -> ScrubInfo {
        let map = self.map();
        let now_ms = wall_clock_ms();
        let scrubs = self.scrubbing.scrubs.borrow();
        let rests = map.scrub.rests_until_ms;
        ScrubInfo {
            every_ms: map.scrub.every_ms,
            next: next_scrub_ms(&map, now_ms).map(Timestamp::from_millis),
            rests_until: (rests > now_ms).then(|| Timestamp::from_millis(rests)),
            running: scrubs.run.as_ref().map(|run| run_info(run, &scrubs, &map)),
            last: scrubs.last.as_ref().map(|run| run_info(run, &Scrubs::default(), &map)),
            groups: group_infos(&scrubs, &map),
            volumes: volume_infos(&map),
            findings: scrubs.findings.iter().cloned().collect(),
        }
    }

    /// The scrub that runs.
    pub(crate) fn scrub_run(&self) -> Option<ScrubRunInfo> {
        let scrubs = self.scrubbing.scrubs.borrow();
        scrubs.run.as_ref().map(|run| run_info(run, &scrubs, &self.map()))
    }
}

/// A run, with what the groups have read that are being scrubbed.
fn run_info(run: &Run, scrubs: &Scrubs, map: &FabricMap) -> ScrubRunInfo {
    let running = scrubs.running.values();
    let counts = running.fold(run.counts, |sum, r| sum.plus(r.counts()));
    let waiting: Vec<GroupId> = if run.ended_ms.is_some() {
        Vec::new()
    } else {
        let due = due_for_scrub(map, wall_clock_ms()).into_iter();
        due.filter(|g| !scrubs.running.contains_key(g) && !run.done.contains(g)).collect()
    };
    ScrubRunInfo {
        started: Timestamp::from_millis(run.started_ms),
        ended: run.ended_ms.map(Timestamp::from_millis),
        was_stopped: run.was_stopped,
        groups_total: run.groups.len(),
        groups_done: run.done.len(),
        groups_waiting: waiting.len(),
        groups_degraded: run.degraded,
        chunks_done: counts.chunks,
        bytes_read: counts.blocks * BLOCK_SIZE as u64,
        healed_blocks: counts.healed,
        lost_blocks: counts.lost,
        disagreements: counts.disagreements,
        eta_ms: if run.ended_ms.is_some() { None } else { eta_ms(run, scrubs, map, &waiting, counts.chunks) },
    }
}

/// When the run is done. What groups hold whose turn has not come is known from their last scrub, or taken to
/// be what the others hold.
fn eta_ms(run: &Run, scrubs: &Scrubs, map: &FabricMap, waiting: &[GroupId], done: u64) -> Option<u64> {
    let known: u64 =
        scrubs.running.values().map(|r| r.chunks_total().saturating_sub(r.counts().chunks)).sum();
    let begun = (scrubs.running.len() + run.done.len()).max(1) as u64;
    let usual = (known + done) / begun;
    let later: u64 =
        waiting.iter().map(|group| map.scrub.done.get(group).map_or(usual, |record| record.chunks)).sum();
    // As long as nobody has said what there is, nothing is left and nothing is known.
    run.rate.eta_ms(now(), done, done + known + later).filter(|_| known + later > 0)
}

fn group_infos(scrubs: &Scrubs, map: &FabricMap) -> Vec<ScrubGroupInfo> {
    let info = |(id, running): (&GroupId, &crate::scrub::Running)| ScrubGroupInfo {
        group: *id,
        volumes: map.volumes.values().filter(|v| groups_of(v).contains(id)).map(|v| v.name.clone()).collect(),
        node: map.node_of(running.target).map_or_else(|| running.target.to_string(), |n| n.name.clone()),
        members: running.drives.len(),
        copies: map.groups.get(id).map_or(0, |g| map.copies_of(g)),
        chunks_done: running.counts().chunks,
        chunks_total: running.chunks_total(),
        waits_for: running.waits_for.clone(),
    };
    scrubs.running.iter().map(info).collect()
}

fn volume_infos(map: &FabricMap) -> Vec<ScrubVolumeInfo> {
    let info = |volume: &Volume| {
        let groups = groups_of(volume);
        let records: Vec<_> = groups.iter().filter_map(|g| map.scrub.done.get(g)).collect();
        let is_whole = records.len() == groups.len();
        let oldest = records.iter().map(|r| r.finished_ms).min().filter(|_| is_whole);
        ScrubVolumeInfo {
            volume: volume.name.clone(),
            groups: groups.len(),
            groups_scrubbed: records.len(),
            scrubbed: oldest.map(Timestamp::from_millis),
            healed_blocks: records.iter().map(|r| r.healed).sum(),
            lost_blocks: records.iter().map(|r| r.lost).sum(),
        }
    };
    let mut infos: Vec<ScrubVolumeInfo> = map.volumes.values().map(info).collect();
    infos.sort_by(|a, b| a.volume.cmp(&b.volume));
    infos
}
