//! Settings of the whole fabric: how long a copy may be out, and at which fill people are told.
//!
//! It owns their ranges. Leases and sessions are not among them: clients and targets count by these, and a
//! change would have to be waited out.

use crate::{Reason, Refusal};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use weft_types::FabricMap;

/// How long a copy may be out before it is rebuilt elsewhere, in milliseconds: a second to a year. No node
/// restarts within less than a second, and each rebuild copies everything; a year is as good as never.
pub const REBUILD_AFTER_MS: RangeInclusive<u64> = 1_000..=365 * 24 * 3_600_000;

/// Settings that change; what is none stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeSettings {
    /// How long a copy may be out before it is rebuilt elsewhere, in milliseconds: see [`REBUILD_AFTER_MS`].
    pub rebuild_after_ms: Option<u64>,
    /// From which fill of a pool's fullest drive people are warned, in percent: 1 to 98.
    pub capacity_warning_percent: Option<u8>,
    /// From which fill it is critical, in percent: above the warning, at most 99.
    pub capacity_critical_percent: Option<u8>,
}

pub(crate) fn set(map: &mut FabricMap, change: &ChangeSettings) -> Result<Reason, Refusal> {
    let old = (map.durations, map.capacity);
    if let Some(ms) = change.rebuild_after_ms {
        if !REBUILD_AFTER_MS.contains(&ms) {
            return Err(Refusal::RebuildAfter { ms });
        }
        map.durations.rebuild_after_ms = ms;
    }
    let levels = &mut map.capacity;
    levels.warning_percent = change.capacity_warning_percent.unwrap_or(levels.warning_percent);
    levels.critical_percent = change.capacity_critical_percent.unwrap_or(levels.critical_percent);
    if !levels.is_valid() {
        let (warning, critical) = (levels.warning_percent, levels.critical_percent);
        return Err(Refusal::CapacityLevels { warning, critical });
    }
    let (durations, capacity) = (map.durations, map.capacity);
    if (durations, capacity) == old {
        return Err(Refusal::SameSettings);
    }
    Ok(Reason::SettingsChanged {
        rebuild_after_ms: (durations != old.0).then_some(durations.rebuild_after_ms),
        capacity_percent: (capacity != old.1)
            .then_some((capacity.warning_percent, capacity.critical_percent)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Change, apply, check, check_step};
    use weft_types::{CapacityLevels, FabricId};

    fn change(
        rebuild_after_ms: Option<u64>,
        warning: Option<u8>,
        critical: Option<u8>,
    ) -> Result<(FabricMap, Reason), Refusal> {
        let old = FabricMap::empty(FabricId(1));
        let change = ChangeSettings {
            rebuild_after_ms,
            capacity_warning_percent: warning,
            capacity_critical_percent: critical,
        };
        let (new, reason) = apply(&old, &Change::Settings(change))?;
        assert_eq!((check(&new), check_step(&old, &new)), (vec![], vec![]));
        Ok((new, reason))
    }

    #[test]
    fn what_is_named_changes_and_the_rest_stays() {
        let (map, reason) = change(Some(60_000), None, None).unwrap();
        assert_eq!(map.durations.rebuild_after_ms, 60_000);
        assert_eq!(map.capacity, CapacityLevels::default());
        assert_eq!(reason.to_string(), "copies that are out for 60000 ms are rebuilt elsewhere from now on");
        let (map, reason) = change(None, Some(50), None).unwrap();
        assert_eq!(map.capacity, CapacityLevels { warning_percent: 50, critical_percent: 90 });
        assert_eq!(reason.to_string(), "pools are told to be filling up at 50 %, critical at 90 %");
        let (_, reason) = change(Some(60_000), Some(50), Some(60)).unwrap();
        assert!(reason.to_string().contains("from now on; pools"), "{reason}");
    }

    #[test]
    fn what_is_out_of_range_or_changes_nothing_is_refused() {
        for ms in [0, 999, REBUILD_AFTER_MS.end() + 1] {
            assert_eq!(change(Some(ms), None, None), Err(Refusal::RebuildAfter { ms }));
        }
        for (warning, critical) in [(0, 50), (60, 50), (99, 100), (50, 50)] {
            let refused = Err(Refusal::CapacityLevels { warning, critical });
            assert_eq!(change(None, Some(warning), Some(critical)), refused);
        }
        let levels = CapacityLevels::default();
        assert_eq!(change(None, None, None), Err(Refusal::SameSettings));
        assert_eq!(change(None, Some(levels.warning_percent), None), Err(Refusal::SameSettings));
    }
}
