//! What plans ask of all groups, kept at a cost of what a commit changes.
//!
//! It owns the look-ups from drives to groups and to groups with a copy that is out, and how groups lie on
//! drives. It knows nothing that the map does not say: [`GroupIndex::of`] computes the same from any map.

use std::collections::{BTreeMap, BTreeSet};
use weft_layout::Loads;
use weft_types::{DriveId, FabricMap, Group, GroupId, PoolId, Protection, Role};

/// Look-ups into the groups of one version of the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupIndex {
    /// The groups that list a drive, in any role. A drive that no group lists is not there.
    of_drives: BTreeMap<DriveId, BTreeSet<GroupId>>,
    /// The groups with a member that is out.
    with_out: BTreeSet<GroupId>,
    /// How the groups lie on drives, by pool and number of copies; without members that are to leave.
    loads: BTreeMap<(PoolId, usize), Loads>,
}

impl GroupIndex {
    /// The index of a map. Costs the whole map.
    pub fn of(map: &FabricMap) -> GroupIndex {
        let mut index = GroupIndex::default();
        index.note(&FabricMap::empty(map.fabric), map);
        index
    }

    /// Follows the map from the version that the index is of to another one. Costs what differs.
    pub fn note(&mut self, old: &FabricMap, new: &FabricMap) {
        let groups = new.groups.changes(&old.groups).map(|change| *change.key());
        let relocations = new.relocations.changes(&old.relocations).map(|change| *change.key());
        for id in groups.chain(relocations).collect::<BTreeSet<_>>() {
            let (before, after) = (old.groups.get(&id), new.groups.get(&id));
            self.note_members(before, after);
            if let Some(group) = before
                && let Some(loads) = self.loads.get_mut(&(group.pool, old.copies_of(group)))
            {
                loads.remove(&old.staying(group).collect::<Vec<_>>());
                if loads.is_empty() {
                    self.loads.remove(&(group.pool, old.copies_of(group)));
                }
            }
            if let Some(group) = after {
                let loads = self.loads.entry((group.pool, new.copies_of(group))).or_default();
                loads.add(&new.staying(group).collect::<Vec<_>>());
            }
        }
    }

    fn note_members(&mut self, before: Option<&Group>, after: Option<&Group>) {
        let drives = |group: &Group| group.slots.iter().map(|s| s.drive).collect::<BTreeSet<_>>();
        let (left, joined) = (before.map(drives).unwrap_or_default(), after.map(drives).unwrap_or_default());
        for (drive, group) in left.difference(&joined).zip(before.into_iter().cycle()) {
            let Some(groups) = self.of_drives.get_mut(drive) else { continue };
            groups.remove(&group.id);
            if groups.is_empty() {
                self.of_drives.remove(drive);
            }
        }
        for (drive, group) in joined.difference(&left).zip(after.into_iter().cycle()) {
            self.of_drives.entry(*drive).or_default().insert(group.id);
        }
        let is_with_out = |group: &&Group| group.slots.iter().any(|s| s.role == Role::Out);
        match (before.filter(is_with_out), after.filter(is_with_out)) {
            (_, Some(group)) => drop(self.with_out.insert(group.id)),
            (Some(group), None) => drop(self.with_out.remove(&group.id)),
            (None, None) => {}
        }
    }

    /// The groups that list this drive in any role, in the order of their numbers.
    pub fn of_drive(&self, drive: DriveId) -> impl Iterator<Item = GroupId> {
        self.of_drives.get(&drive).into_iter().flatten().copied()
    }

    /// Whether a group lists this drive in any role.
    pub fn has_any(&self, drive: DriveId) -> bool {
        self.of_drives.contains_key(&drive)
    }

    /// The groups with a member that is out, in the order of their numbers.
    pub fn with_out(&self) -> impl Iterator<Item = GroupId> {
        self.with_out.iter().copied()
    }

    /// How the groups of a pool with so many copies lie on drives.
    pub(crate) fn loads(&self, pool: PoolId, protection: Protection) -> &Loads {
        self.loads_of(pool, protection.members())
    }

    /// How the groups of the group's pool with as many copies lie on drives.
    pub(crate) fn loads_beside(&self, map: &FabricMap, group: &Group) -> &Loads {
        self.loads_of(group.pool, map.copies_of(group))
    }

    fn loads_of(&self, pool: PoolId, copies: usize) -> &Loads {
        self.loads.get(&(pool, copies)).unwrap_or(Loads::NONE)
    }
}
