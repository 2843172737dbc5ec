//! In which version of the map each group and drive changed last.
//!
//! A word about a group counts from whoever knows the group as it is: other changes, of which there may
//! be one every few milliseconds, make it no older. It owns the versions, which follow from the maps
//! that are committed.

use std::collections::BTreeMap;
use weft_types::{DriveId, FabricMap, GroupId, Key, MapVersion, TableChange};

/// The versions in which groups and drives changed.
pub(crate) struct ChangedIn {
    /// The version of those that are not named.
    before: MapVersion,
    groups: BTreeMap<GroupId, MapVersion>,
    drives: BTreeMap<DriveId, MapVersion>,
}

impl ChangedIn {
    /// Of what was there before it is only known that it changed in this version at the latest.
    pub(crate) fn before(version: MapVersion) -> ChangedIn {
        ChangedIn { before: version, groups: BTreeMap::new(), drives: BTreeMap::new() }
    }

    /// Notes what is different in the map that follows.
    pub(crate) fn note(&mut self, old: &FabricMap, new: &FabricMap) {
        note(&mut self.groups, new.groups.changes(&old.groups), new.version);
        note(&mut self.drives, new.drives.changes(&old.drives), new.version);
    }

    /// From which version on a map has the group as it is now, and what it says of this drive.
    pub(crate) fn of(&self, group: GroupId, drive: DriveId) -> MapVersion {
        let group = self.groups.get(&group).copied().unwrap_or(self.before);
        group.max(self.drives.get(&drive).copied().unwrap_or(self.before))
    }
}

fn note<'a, K: Key + 'a, V: Clone + 'a>(
    changed_in: &mut BTreeMap<K, MapVersion>,
    changes: impl Iterator<Item = TableChange<'a, K, V>>,
    version: MapVersion,
) {
    for change in changes {
        let _before = match change {
            TableChange::Put(id, _) => changed_in.insert(*id, version),
            TableChange::Removed(id) => changed_in.remove(id),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{Epoch, FabricId, Group, PoolId};

    #[test]
    fn what_does_not_change_keeps_its_version() {
        let group = |id, epoch| Group {
            id: GroupId(id),
            pool: PoolId(1),
            epoch: Epoch(epoch),
            slots: vec![],
            floor: Default::default(),
        };
        let map = |version, groups: &[Group]| {
            let groups = groups.iter().map(|g| (g.id, g.clone())).collect();
            FabricMap { version: MapVersion(version), groups, ..FabricMap::empty(FabricId(1)) }
        };
        let maps = [
            map(5, &[group(1, 1)]),
            map(6, &[group(1, 1), group(2, 1)]),
            map(7, &[group(1, 2), group(2, 1)]),
            map(8, &[group(1, 2), group(2, 1)]),
            map(9, &[group(1, 2)]),
        ];
        let mut changed = ChangedIn::before(MapVersion(5));
        maps[..4].windows(2).for_each(|pair| changed.note(&pair[0], &pair[1]));
        let of = |changed: &ChangedIn, group| changed.of(GroupId(group), DriveId(1)).0;
        assert_eq!((of(&changed, 1), of(&changed, 2), of(&changed, 3)), (7, 6, 5));
        changed.note(&maps[3], &maps[4]);
        assert_eq!(changed.groups.len(), 1, "one that is gone is forgotten");
    }
}
