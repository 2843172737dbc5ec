//! Scrubs: which groups are to be read and verified as a whole, when, and how it ended.
//!
//! It owns the schedule's arithmetic and the notes. It never judges a block, and never picks who reads: the manager
//! and the targets do.

use crate::refusal::Kind;
use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use weft_types::{FabricMap, GroupId, ScrubRecord};

/// Points of a period at which scrubs by schedule begin: the hours of a week. Groups that share a point are scrubbed
/// together, so that a fabric of any size begins at most this many scrubs per period.
const POINTS: u64 = 168;

/// How far ahead of the clock a time may lie and still be believed: a clock that is set back by less delays scrubs by
/// no more than this. What lies further ahead was written by a clock that was wrong, and says nothing; otherwise a
/// clock that was a year ahead for a minute would put scrubs off for a year.
const AHEAD_MS_MAX: u64 = 24 * 3_600_000;

/// How long the schedule rests after somebody has stopped a scrub: it was in the way of something that is over by
/// the next day. Whoever wants more turns the schedule off.
pub const SCRUB_REST_MS: u64 = 24 * 3_600_000;

/// The shortest period: below it, most of what was read would be read again before it can have changed.
const EVERY_MS_MIN: u64 = 60_000;

/// Somebody wants groups scrubbed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WantScrub {
    /// The groups.
    pub groups: BTreeSet<GroupId>,
}

/// Nobody wants a scrub any more, and the schedule rests for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopScrub {
    /// Until when the schedule rests, in milliseconds since 1970-01-01T00:00:00Z.
    pub rests_until_ms: u64,
}

/// The schedule of scrubs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleScrub {
    /// How often every group is scrubbed, in milliseconds, at least a minute; none: only when somebody asks.
    pub every_ms: Option<u64>,
}

/// Groups were scrubbed to their end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoteScrubs {
    /// How each of them ended.
    pub records: BTreeMap<GroupId, ScrubRecord>,
}

pub(crate) fn want(map: &mut FabricMap, change: &WantScrub) -> Result<Reason, Refusal> {
    if let Some(id) = change.groups.iter().find(|g| !map.groups.contains_key(g)) {
        return Err(Refusal::Unknown { kind: Kind::Group, id: id.to_string() });
    }
    map.scrub.wanted.extend(&change.groups);
    map.scrub.rests_until_ms = 0;
    Ok(Reason::ScrubWanted { groups: change.groups.len() })
}

pub(crate) fn stop(map: &mut FabricMap, change: &StopScrub) -> Result<Reason, Refusal> {
    let wanted = std::mem::take(&mut map.scrub.wanted).len();
    map.scrub.rests_until_ms = change.rests_until_ms;
    Ok(Reason::ScrubStopped { wanted })
}

pub(crate) fn schedule(map: &mut FabricMap, change: &ScheduleScrub) -> Result<Reason, Refusal> {
    let every_ms = change.every_ms.map(|ms| ms.max(EVERY_MS_MIN));
    map.scrub.every_ms = every_ms;
    map.scrub.rests_until_ms = 0;
    Ok(Reason::ScrubScheduled { every_ms })
}

pub(crate) fn note(map: &mut FabricMap, change: &NoteScrubs) -> Result<Reason, Refusal> {
    let (mut chunks, mut healed, mut lost, mut disagreements) = (0, 0, 0, 0);
    for (group, record) in &change.records {
        if !map.groups.contains_key(group) {
            return Err(Refusal::Unknown { kind: Kind::Group, id: group.to_string() });
        }
        chunks += record.chunks;
        healed += record.healed;
        lost += record.lost;
        disagreements += record.disagreements;
        map.scrub.wanted.remove(group);
        map.scrub.done.insert(*group, *record);
    }
    Ok(Reason::Scrubbed { groups: change.records.len(), chunks, healed, lost, disagreements })
}

/// The groups that are to be scrubbed now: those that somebody wants, then the others. Of each, those whose
/// last scrub is the longest ago come first.
///
/// Every group has its own point in each period, spread evenly by its number, and is due if it has not been scrubbed
/// since that point last passed. So nothing has to be remembered but when a group was scrubbed, and no group waits
/// longer than a period from one beginning to the next. A group that never was is taken to be as old as the oldest
/// volume on it: a new volume is not scrubbed at once.
pub fn due_for_scrub(map: &FabricMap, now_ms: u64) -> Vec<GroupId> {
    let plan = &map.scrub;
    let mut due: Vec<GroupId> = plan.wanted.iter().copied().collect();
    // A scrub that is asked for again before its end goes on where it was. A time in the future is ignored: it
    // is from before the clock was set back, and by it the same groups would come first each time.
    let finished_ms =
        |group: &GroupId| plan.done.get(group).map(|record| record.finished_ms).filter(|ms| *ms <= now_ms);
    due.sort_by_key(|group| (finished_ms(group), *group));
    if let Some(every_ms) = plan.every_ms.filter(|_| !rests(map, now_ms)) {
        let born = born_ms(map);
        let mut scheduled: Vec<(u64, GroupId)> = Vec::new();
        for (group, born) in born.iter().filter(|(group, _)| !plan.wanted.contains(group)) {
            let last = last_ms(map, *group, *born, now_ms);
            if last < last_point(*group, every_ms, now_ms) {
                scheduled.push((last, *group));
            }
        }
        scheduled.sort();
        due.extend(scheduled.into_iter().map(|(_, group)| group));
    }
    due
}

/// When the schedule asks for the next scrub, in milliseconds since 1970-01-01T00:00:00Z; `now_ms` if something is
/// due. `None` without a schedule, or without volumes.
pub fn next_scrub_ms(map: &FabricMap, now_ms: u64) -> Option<u64> {
    let every_ms = map.scrub.every_ms?;
    let next = born_ms(map).into_iter().map(|(group, born)| {
        let point = last_point(group, every_ms, now_ms);
        if last_ms(map, group, born, now_ms) < point { now_ms } else { point.saturating_add(every_ms) }
    });
    let rest = Some(map.scrub.rests_until_ms).filter(|_| rests(map, now_ms)).unwrap_or(0);
    next.min().map(|ms| ms.max(rest))
}

/// Whether the schedule rests because somebody stopped a scrub: for a day from then, so that an end that lies further
/// ahead than that and what a clock may be set back is none.
fn rests(map: &FabricMap, now_ms: u64) -> bool {
    let until = map.scrub.rests_until_ms;
    until > now_ms && until - now_ms <= SCRUB_REST_MS + AHEAD_MS_MAX
}

/// Groups with objects of volumes, each with when the oldest of these volumes was created.
fn born_ms(map: &FabricMap) -> BTreeMap<GroupId, u64> {
    let mut born = BTreeMap::new();
    for list in map.group_lists() {
        let oldest_ms = list.volumes.iter().map(|volume| volume.created_ms).min().unwrap_or(u64::MAX);
        for group in list.groups {
            let at = born.entry(*group).or_insert(oldest_ms);
            *at = oldest_ms.min(*at);
        }
    }
    born
}

/// When the group was scrubbed last; never, if that was told by a clock that was wrong.
fn last_ms(map: &FabricMap, group: GroupId, born_ms: u64, now_ms: u64) -> u64 {
    let last = map.scrub.done.get(&group).map_or(born_ms, |record| record.finished_ms);
    if last.saturating_sub(now_ms) > AHEAD_MS_MAX { 0 } else { last }
}

/// When the group's point passed last.
fn last_point(group: GroupId, every_ms: u64, now_ms: u64) -> u64 {
    let every_ms = every_ms.max(EVERY_MS_MIN);
    // Fibonacci hashing: numbers that follow each other fall far from each other, and evenly.
    let hash = group.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let phase = ((hash * POINTS) >> 32) * (every_ms / POINTS);
    let periods = now_ms.saturating_sub(phase) / every_ms;
    if now_ms < phase { 0 } else { periods * every_ms + phase }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply;
    use crate::{Change, GroupIndex, VolumeRequest, plan_volume};
    use weft_layout::FailureDomain;
    use weft_types::*;

    const NOW: u64 = 1_767_225_600_000;
    const WEEK: u64 = SCRUB_EVERY_MS;
    const HOUR: u64 = 3_600_000;

    /// A fabric with 40 drives and one volume, created now.
    fn fabric() -> FabricMap {
        let mut map = FabricMap::empty(FabricId(1));
        map.pools.insert(PoolId(1), Pool { id: PoolId(1), name: "default".into() });
        for n in 1..=40u32 {
            let node = NodeId(n);
            map.put_node(node, format!("n{n}"), format!("10.0.0.{n}:1"));
            let drive = Drive {
                id: DriveId(u128::from(n)),
                node,
                target: weft_types::TargetId::first_of(node),
                device: weft_types::DeviceId::of_drive(DriveId(u128::from(n))),
                pool: PoolId(1),
                path: String::new(),
                capacity: BlockCount(1 << 20),
                state: DriveState::Active,
            };
            map.drives.insert(drive.id, drive);
        }
        map.next_id = 100;
        let request = VolumeRequest {
            name: "v".into(),
            pool: PoolId(1),
            size_bytes: 16 << 30,
            protection: weft_types::Protection::mirror(2),
            striping: None,
            domain: FailureDomain::Node,
            thin: true,
            created_ms: NOW,
        };
        let change =
            plan_volume(&map, &GroupIndex::of(&map), &request, &BTreeSet::new()).expect("there is room");
        apply(&map, &change).expect("it fits").0
    }

    fn record(finished_ms: u64) -> ScrubRecord {
        ScrubRecord { finished_ms, members: 2, chunks: 1, healed: 1, lost: 0, disagreements: 0 }
    }

    #[test]
    fn a_schedule_is_spread_over_its_period_and_forgets_nobody() {
        let mut map = fabric();
        let groups = born_ms(&map).len();
        assert!(groups > 100, "{groups}");
        assert_eq!(due_for_scrub(&map, NOW), [], "a new volume can wait");
        let mut scrubs = BTreeMap::new();
        let mut most = 0;
        for hour in 0..=2 * 168 {
            let now = NOW + hour * HOUR;
            let due = due_for_scrub(&map, now);
            most = most.max(due.len());
            let records: BTreeMap<_, _> = due.iter().map(|g| (*g, record(now))).collect();
            for group in &due {
                *scrubs.entry(*group).or_insert(0) += 1;
            }
            if !records.is_empty() {
                map = apply(&map, &Change::NoteScrubs(NoteScrubs { records })).expect("they exist").0;
            }
        }
        assert_eq!(scrubs.len(), groups, "every one had its turn");
        assert!(scrubs.values().all(|n| *n == 2), "once a week: {scrubs:?}");
        assert!(most <= groups.div_ceil(168) + 3, "{most} of {groups} at once");
    }

    #[test]
    fn what_is_wanted_is_due_until_it_is_done_or_stopped() {
        let map = fabric();
        let groups: BTreeSet<GroupId> = map.groups.keys().copied().take(2).collect();
        let first = *groups.first().expect("there are two");
        let want = Change::WantScrub(WantScrub { groups: groups.clone() });
        let (map, reason) = apply(&map, &want).expect("they exist");
        assert_eq!(reason, Reason::ScrubWanted { groups: 2 });
        assert_eq!(due_for_scrub(&map, NOW).len(), 2);
        let records = BTreeMap::from([(first, record(NOW))]);
        let (map, _) = apply(&map, &Change::NoteScrubs(NoteScrubs { records })).expect("it exists");
        assert_eq!(due_for_scrub(&map, NOW).len(), 1);
        let (again, _) = apply(&map, &want).expect("they exist");
        assert_eq!(due_for_scrub(&again, NOW).last(), Some(&first), "the one that was scrubbed comes last");
        let set_back = due_for_scrub(&again, NOW - 1);
        assert_eq!(
            set_back.first(),
            Some(&first),
            "by a clock that was set back it was scrubbed nobody knows when"
        );
        let stop = Change::StopScrub(StopScrub { rests_until_ms: NOW + 3 * WEEK });
        let (map, reason) = apply(&map, &stop).expect("always");
        assert_eq!(reason, Reason::ScrubStopped { wanted: 1 });
        assert_eq!(due_for_scrub(&map, NOW + 3 * WEEK - 1), [], "the schedule rests");
        assert_eq!(due_for_scrub(&map, NOW + 3 * WEEK).len(), born_ms(&map).len());
        assert_eq!(next_scrub_ms(&map, NOW + 3 * WEEK - 1), Some(NOW + 3 * WEEK));
    }

    #[test]
    fn a_clock_that_was_wrong_does_not_put_scrubs_off() {
        const DAY: u64 = 24 * HOUR;
        let done = |at: u64| {
            let map = fabric();
            let records = born_ms(&map).keys().map(|g| (*g, record(at))).collect();
            apply(&map, &Change::NoteScrubs(NoteScrubs { records })).expect("they exist").0
        };
        let all = born_ms(&fabric()).len();
        // Set back by a day right after everything was scrubbed: nothing is due, and nothing is for ever.
        let map = done(NOW);
        assert_eq!(due_for_scrub(&map, NOW - DAY), []);
        assert_eq!(due_for_scrub(&map, NOW + WEEK).len(), all);
        // It was a year ahead when everything was scrubbed: that says nothing.
        let map = done(NOW + 52 * WEEK);
        assert_eq!(due_for_scrub(&map, NOW).len(), all);
        assert_eq!(next_scrub_ms(&map, NOW), Some(NOW));
        let stop = Change::StopScrub(StopScrub { rests_until_ms: NOW + 52 * WEEK + DAY });
        let (map, _) = apply(&done(NOW - 2 * WEEK), &stop).expect("always");
        assert_eq!(due_for_scrub(&map, NOW).len(), all, "nobody wanted a rest of a year");
        let stop = Change::StopScrub(StopScrub { rests_until_ms: NOW + DAY });
        let (map, _) = apply(&done(NOW - 2 * WEEK), &stop).expect("always");
        assert_eq!(due_for_scrub(&map, NOW - DAY), [], "a rest outlasts a clock that is set back by a day");
    }

    #[test]
    fn without_a_schedule_nothing_is_due() {
        let (map, _) =
            apply(&fabric(), &Change::ScheduleScrub(ScheduleScrub { every_ms: None })).expect("always");
        assert_eq!(due_for_scrub(&map, NOW + 9 * WEEK), []);
        assert_eq!(next_scrub_ms(&map, NOW), None);
        let often = Change::ScheduleScrub(ScheduleScrub { every_ms: Some(1) });
        let (map, _) = apply(&map, &often).expect("always");
        assert_eq!(map.scrub.every_ms, Some(EVERY_MS_MIN));
        assert!(!due_for_scrub(&map, NOW + EVERY_MS_MIN).is_empty());
    }

    #[test]
    fn unknown_groups_are_refused() {
        let groups = BTreeSet::from([GroupId(u64::MAX)]);
        assert!(apply(&fabric(), &Change::WantScrub(WantScrub { groups })).is_err());
        let records = BTreeMap::from([(GroupId(u64::MAX), record(NOW))]);
        assert!(apply(&fabric(), &Change::NoteScrubs(NoteScrubs { records })).is_err());
    }
}
