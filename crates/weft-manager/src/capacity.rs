//! How full the pools are, what that means, and what people can do about it.
//!
//! It owns the figures and the words. The level is judged by `weft_types::CapacityLevels`; space is given and refused
//! by the drives' stores alone.

use crate::describe::{bytes, raw_bytes};
use crate::manager::{Manager, State, wall_clock_ms};
use crate::operate::refused;
use crate::status::Usage;
use std::collections::BTreeMap;
use weft_api::{Advice, ApiError, DriveFill, Severity, Timestamp, Trouble, TroubleKind};
use weft_membership::{Refusal, Size};
use weft_types::limits::REQUEST_BLOCKS_MAX;
use weft_types::{BLOCK_SIZE, BlockCount, CapacityLevel, Drive, DriveState, FabricMap, Pool, PoolId, Volume};
use weft_wire::control::DriveStatus;

/// A drive with less than this free counts as full: the largest request is refused, which needs some blocks for the
/// maps besides.
const FULL_BELOW_BYTES: u64 = REQUEST_BLOCKS_MAX as u64 * BLOCK_SIZE as u64 * 5 / 4;

/// One that was full counts so until this much is free: a write and a discard in turn are not told each time.
const FULL_UNTIL_BYTES: u64 = 8 * FULL_BELOW_BYTES;

/// How full a pool is.
pub(crate) struct PoolFill {
    pub(crate) level: CapacityLevel,
    pub(crate) fullest: Option<DriveFill>,
}

/// A size in bytes for people.
pub(crate) fn size(bytes: u64) -> Size {
    Size(BlockCount(bytes / BLOCK_SIZE as u64))
}

/// A part of a whole in percent, rounded down.
pub(crate) fn percent(part: u64, whole: u64) -> u64 {
    match whole {
        0 => 0,
        whole => u64::try_from(u128::from(part) * 100 / u128::from(whole)).unwrap_or(u64::MAX),
    }
}

impl State {
    /// How full a pool is, by the fullest of its active drives that answer.
    pub(crate) fn fill_of(&self, pool: PoolId, usage: &Usage) -> PoolFill {
        let before = self.known_troubles.level(pool);
        let active = self.map.drives.values().filter(|d| d.pool == pool && d.state == DriveState::Active);
        let answering = active.filter_map(|d| Some((d, usage.drive(d.id)?)));
        let is_full = |status: &DriveStatus| {
            let limit = if before == CapacityLevel::Full { FULL_UNTIL_BYTES } else { FULL_BELOW_BYTES };
            // A drive smaller than that has to be full some time as well.
            status.free_bytes.is_some_and(|free| free < limit.min(status.capacity_bytes / 8))
        };
        let rank = |(drive, status): &(&Drive, &DriveStatus)| {
            (is_full(status), permille(status.used_bytes, status.capacity_bytes), drive.id)
        };
        let Some((drive, status)) = answering.max_by_key(rank) else {
            // Nobody answers: what was known still holds.
            return PoolFill { level: before, fullest: None };
        };
        let is_full = is_full(status);
        let used = permille(status.used_bytes, status.capacity_bytes);
        let fullest = DriveFill {
            drive: drive.id,
            node: self.map.nodes.get(&drive.node).map_or_else(String::new, |n| n.name.clone()),
            capacity_bytes: status.capacity_bytes,
            used_bytes: status.used_bytes,
            is_full,
        };
        PoolFill { level: self.map.capacity.level(used, is_full, before), fullest: Some(fullest) }
    }

    /// The level of every pool, with what is told when it changes.
    pub(crate) fn pool_levels(&self, usage: &Usage) -> BTreeMap<PoolId, (CapacityLevel, String)> {
        let level = |pool: &Pool| {
            let fill = self.fill_of(pool.id, usage);
            (pool.id, (fill.level, describe(pool, &fill)))
        };
        self.map.pools.values().map(level).collect()
    }

    /// The pools that are filling up.
    pub(crate) fn pools_that_fill(&self, usage: &Usage) -> Vec<Trouble> {
        let trouble = |pool: &Pool| {
            let fill = self.fill_of(pool.id, usage);
            let severity = match fill.level {
                CapacityLevel::Normal => return None,
                CapacityLevel::Warning => Severity::Warning,
                CapacityLevel::Critical | CapacityLevel::Full => Severity::Degraded,
            };
            Some(Trouble {
                kind: TroubleKind::PoolFilling,
                severity,
                what: describe(pool, &fill),
                since: Timestamp::from_millis(wall_clock_ms()),
                node: None,
                drive: None,
                pool: Some(pool.name.clone()),
                groups: 0,
                more_volumes: 0,
                volumes: vec![],
                doing: vec![],
                advice: advice(fill.level),
            })
        };
        self.map.pools.values().filter_map(trouble).collect()
    }
}

fn permille(part: u64, whole: u64) -> u32 {
    // At most 1000, unless a target says nonsense.
    u32::try_from(u128::from(part) * 1000 / u128::from(whole.max(1))).unwrap_or(u32::MAX)
}

fn describe(pool: &Pool, fill: &PoolFill) -> String {
    let name = &pool.name;
    let Some(fullest) = &fill.fullest else {
        return format!("pool '{name}' was {} when its drives answered last", fill.level);
    };
    let part = percent(fullest.used_bytes, fullest.capacity_bytes);
    let drive = format!("drive {} of node '{}' is {part} % used", fullest.drive.short(), fullest.node);
    match fill.level {
        CapacityLevel::Normal => format!("pool '{name}' has room: its fullest {drive}"),
        CapacityLevel::Warning => format!("pool '{name}' is filling up: its fullest {drive}"),
        CapacityLevel::Critical => format!("pool '{name}' is nearly full: its fullest {drive}"),
        CapacityLevel::Full => format!(
            "pool '{name}' is full: {drive} and takes no new data; writes that need space there fail with \
             'no space left', reads and discards go on"
        ),
    }
}

/// What people can do about a pool that fills up.
pub(crate) fn advice(level: CapacityLevel) -> Vec<Advice> {
    let mut advice = vec![
        Advice::plain("discard what is not needed inside the volumes (fstrim in a file system on them)"),
        Advice::command("delete a volume that is not needed", "weft volume delete NAME"),
        Advice::command(
            "add a drive: `weft drive format`, then name it to its node's target; new volumes use it, and what is \
             on the fullest drive can pass to it",
            "weft drive evacuate ID",
        ),
    ];
    if level < CapacityLevel::Full {
        advice.push(Advice::command(
            "be told at another level",
            "weft fabric set --capacity-warning 85 --capacity-critical 95",
        ));
    }
    advice
}

impl Manager {
    /// A refusal to make or grow a volume. Where there is no room to promise, also what the drives
    /// have free: promises, which thin volumes may make beyond it, are another thing than data.
    pub(crate) fn refused_for_room(&self, map: &FabricMap, refusal: Refusal) -> ApiError {
        let pool = if let Refusal::NoSpace { pool, .. } = &refusal { Some(*pool) } else { None };
        let mut error = refused(map, refusal);
        let state = self.state.borrow();
        let known = state.usage.as_ref().zip(pool);
        let free = known.map(|((_, usage), pool)| {
            let active = map.drives.values().filter(|d| d.pool == pool && d.state == DriveState::Active);
            active.filter_map(|d| usage.drive(d.id)?.free_bytes).fold(0, u64::saturating_add)
        });
        if let Some(free) = free.filter(|free| *free > 0) {
            error.message.push_str(&format!(
                " (its drives have {} free for all copies: promised to volumes, and not written yet)",
                size(free)
            ));
        }
        error
    }

    /// What whoever has just made or grown a volume should know of its pool.
    pub(crate) fn warnings_about(&self, map: &FabricMap, volume: &Volume) -> Vec<String> {
        let Some(pool) = map.pools.get(&volume.pool) else { return Vec::new() };
        let name = &pool.name;
        let active = map.drives.values().filter(|d| d.pool == pool.id && d.state == DriveState::Active);
        let raw = active.map(|d| bytes(d.capacity)).fold(0, u64::saturating_add);
        let promised = map.volumes.values().filter(|v| v.pool == pool.id);
        let promised = promised.map(raw_bytes);
        let promised = promised.fold(0, u64::saturating_add);
        let mut warnings = Vec::new();
        if promised > raw {
            warnings.push(format!(
                "pool '{name}' is over-provisioned: {} promised to volumes with all copies, {} there ({} %); once \
                 it is full, writes of new data fail with 'no space left'",
                size(promised),
                size(raw),
                percent(promised, raw)
            ));
        }
        let state = self.state.borrow();
        let level = state.known_troubles.level(pool.id);
        if level >= CapacityLevel::Warning {
            let word = if level == CapacityLevel::Full { "full" } else { "filling up" };
            warnings.push(format!("pool '{name}' is {word} (level {level}): `weft status` says what to do"));
        }
        warnings
    }
}
