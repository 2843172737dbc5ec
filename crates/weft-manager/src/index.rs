//! What follows from the map and is asked for with each renewal, attach and look, kept at a cost of what a
//! commit changes.
//!
//! It owns the look-ups from drives to groups, from groups to volumes, from nodes to targets and drives, and
//! from volumes to sessions. It decides nothing, and knows nothing that the map does not say: [`Index::of`]
//! computes the same from any map.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use weft_membership::GroupIndex;
use weft_types::{
    DriveId, FabricMap, GroupId, Key, NodeId, Session, SessionId, SessionState, SpanGroups, Table,
    TableWindow, TargetId, Volume, VolumeId, VolumeState,
};

/// Look-ups into one version of the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// What plans ask of groups.
    groups: GroupIndex,
    /// The targets of a node.
    targets: BTreeMap<NodeId, BTreeSet<TargetId>>,
    /// The drives of a target. A target without drives is not there.
    drives: BTreeMap<TargetId, BTreeSet<DriveId>>,
    /// The sessions of a volume in any state. A volume without sessions is not there.
    sessions: BTreeMap<VolumeId, BTreeSet<SessionId>>,
    /// The sessions that are over and not yet swept, by volume.
    over: BTreeSet<(VolumeId, SessionId)>,
    /// The volumes that are being deleted.
    deleting: BTreeSet<VolumeId>,
    /// The volumes with each list of groups.
    lists: BTreeMap<ListKey, BTreeSet<VolumeId>>,
    /// The lists that each group is in, in order.
    lists_of: HashMap<GroupId, Vec<ListKey>>,
    /// The volumes with more than one list.
    in_several: BTreeMap<VolumeId, BTreeSet<ListKey>>,
}

/// What a list of groups is found by: volumes share windows of tables, and own the other lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ListKey {
    Window(TableWindow),
    /// The list of a volume, by its place among [`Volume::lists`].
    Own(VolumeId, usize),
}

impl ListKey {
    fn of(volume: &Volume, place: usize, groups: &SpanGroups) -> ListKey {
        match groups.window() {
            Some((_, window)) => ListKey::Window(window),
            None => ListKey::Own(volume.id, place),
        }
    }
}

/// The volumes with objects in some groups.
pub(crate) struct VolumesIn<'a> {
    index: &'a Index,
    lists: BTreeSet<ListKey>,
}

impl VolumesIn<'_> {
    /// The first of them by number, no more than `most`.
    pub(crate) fn first(&self, most: usize) -> BTreeSet<VolumeId> {
        let mut first = BTreeSet::new();
        for volumes in self.lists.iter().filter_map(|list| self.index.lists.get(list)) {
            first.extend(volumes.iter().take(most));
            while first.len() > most {
                first.pop_last();
            }
        }
        first
    }

    /// How many they are.
    pub(crate) fn count(&self) -> usize {
        let listed: usize =
            self.lists.iter().filter_map(|list| self.index.lists.get(list)).map(BTreeSet::len).sum();
        let again = |lists: &BTreeSet<ListKey>| {
            lists.iter().filter(|list| self.lists.contains(list)).count().saturating_sub(1)
        };
        listed - self.index.in_several.values().map(again).sum::<usize>()
    }
}

impl Index {
    /// The index of a map. Costs the whole map.
    pub(crate) fn of(map: &FabricMap) -> Index {
        let mut index = Index::default();
        index.note(&FabricMap::empty(map.fabric), map);
        index
    }

    /// Follows the map from the version that the index is of to another one. Costs what differs.
    pub(crate) fn note(&mut self, old: &FabricMap, new: &FabricMap) {
        self.groups.note(old, new);
        for (before, after) in differences(&old.targets, &new.targets) {
            if let Some(target) = before {
                leave(&mut self.targets, &target.node, Some(target.id));
            }
            if let Some(target) = after {
                self.targets.entry(target.node).or_default().insert(target.id);
            }
        }
        for (before, after) in differences(&old.drives, &new.drives) {
            if let Some(drive) = before {
                leave(&mut self.drives, &drive.target, Some(drive.id));
            }
            if let Some(drive) = after {
                self.drives.entry(drive.target).or_default().insert(drive.id);
            }
        }
        for (before, after) in differences(&old.sessions, &new.sessions) {
            let is_over = |s: &&Session| s.state == SessionState::Over;
            if let Some(session) = before {
                leave(&mut self.sessions, &session.volume, Some(session.id));
            }
            if let Some(session) = before.filter(is_over) {
                self.over.remove(&(session.volume, session.id));
            }
            if let Some(session) = after {
                self.sessions.entry(session.volume).or_default().insert(session.id);
            }
            self.over.extend(after.filter(is_over).map(|s| (s.volume, s.id)));
        }
        for (before, after) in differences(&old.volumes, &new.volumes) {
            let is_deleting = |v: &&Volume| v.state == VolumeState::Deleting;
            if let Some(volume) = before.filter(is_deleting) {
                self.deleting.remove(&volume.id);
            }
            self.deleting.extend(after.filter(is_deleting).map(|v| v.id));
            if before.map(Volume::placed) != after.map(Volume::placed) {
                before.into_iter().for_each(|volume| self.forget_lists(volume));
                after.into_iter().for_each(|volume| self.note_lists(volume));
            }
        }
    }

    fn note_lists(&mut self, volume: &Volume) {
        let mut own = BTreeSet::new();
        for (place, groups) in volume.lists().enumerate() {
            let key = ListKey::of(volume, place, groups);
            let volumes = self.lists.entry(key).or_default();
            if volumes.is_empty() {
                for group in groups {
                    let lists = self.lists_of.entry(*group).or_default();
                    if let Err(place) = lists.binary_search(&key) {
                        lists.insert(place, key);
                    }
                }
            }
            volumes.insert(volume.id);
            own.insert(key);
        }
        if own.len() > 1 {
            self.in_several.insert(volume.id, own);
        }
    }

    fn forget_lists(&mut self, volume: &Volume) {
        self.in_several.remove(&volume.id);
        for (place, groups) in volume.lists().enumerate() {
            let key = ListKey::of(volume, place, groups);
            leave(&mut self.lists, &key, Some(volume.id));
            if self.lists.contains_key(&key) {
                continue;
            }
            for group in groups {
                if let Some(lists) = self.lists_of.get_mut(group) {
                    lists.retain(|list| *list != key);
                    if lists.is_empty() {
                        self.lists_of.remove(group);
                    }
                }
            }
        }
    }

    /// Whether a volume has objects in the group.
    pub(crate) fn is_used(&self, group: GroupId) -> bool {
        self.lists_of.contains_key(&group)
    }

    /// The volumes with objects in these groups. Costs what these groups are.
    pub(crate) fn volumes_in(&self, groups: impl IntoIterator<Item = GroupId>) -> VolumesIn<'_> {
        let lists = groups.into_iter().filter_map(|group| self.lists_of.get(&group)).flatten().copied();
        VolumesIn { index: self, lists: lists.collect() }
    }

    /// What plans ask of groups.
    pub(crate) fn groups(&self) -> &GroupIndex {
        &self.groups
    }

    /// The groups that list this drive in any role, in the order of their numbers.
    pub(crate) fn groups_of(&self, drive: DriveId) -> impl Iterator<Item = GroupId> {
        self.groups.of_drive(drive)
    }

    /// The targets that the map lists on this node.
    pub(crate) fn targets_of(&self, node: NodeId) -> impl Iterator<Item = TargetId> {
        self.targets.get(&node).into_iter().flatten().copied()
    }

    /// The drives that the map lists on this target.
    pub(crate) fn drives_of(&self, target: TargetId) -> impl Iterator<Item = DriveId> {
        self.drives.get(&target).into_iter().flatten().copied()
    }

    /// The drives that the map lists on this node.
    pub(crate) fn drives_on(&self, node: NodeId) -> impl Iterator<Item = DriveId> {
        self.targets_of(node).flat_map(|target| self.drives_of(target))
    }

    /// Whether a group lists a drive of this target, in any role.
    pub(crate) fn has_groups(&self, target: TargetId) -> bool {
        self.drives_of(target).any(|drive| self.groups.has_any(drive))
    }

    /// The sessions of this volume in any state.
    pub(crate) fn sessions_of(&self, volume: VolumeId) -> impl Iterator<Item = SessionId> {
        self.sessions.get(&volume).into_iter().flatten().copied()
    }

    /// The sessions of this volume that are over and not yet swept.
    pub(crate) fn over_of(&self, volume: VolumeId) -> impl Iterator<Item = SessionId> {
        self.over.range((volume, SessionId(0))..=(volume, SessionId(u64::MAX))).map(|(_, session)| *session)
    }

    /// The volumes with sessions that are over and not yet swept.
    pub(crate) fn volumes_with_over(&self) -> BTreeSet<VolumeId> {
        self.over.iter().map(|(volume, _)| *volume).collect()
    }

    /// The volumes that are being deleted.
    pub(crate) fn deleting(&self) -> impl Iterator<Item = VolumeId> {
        self.deleting.iter().copied()
    }
}

/// The entries that are not the same in two versions of a table: as they were, and as they are.
fn differences<'a, K: Key, V: Clone + PartialEq>(
    old: &'a Table<K, V>,
    new: &'a Table<K, V>,
) -> impl Iterator<Item = (Option<&'a V>, Option<&'a V>)> {
    new.changes(old).map(|change| (old.get(change.key()), new.get(change.key())))
}

/// Takes a member out, and its set once that is empty.
fn leave<K: Ord, V: Ord>(sets: &mut BTreeMap<K, BTreeSet<V>>, key: &K, member: Option<V>) {
    let (Some(set), Some(member)) = (sets.get_mut(key), member) else { return };
    set.remove(&member);
    if set.is_empty() {
        sets.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weft_types::{
        AttachMode, BlockCount, Drive, DriveState, Epoch, FabricId, FileSystem, Generation, Group,
        GroupTable, GroupTableId, GroupTables, ObjectSpan, PoolId, Protection, Role, SessionSlot, Slot,
        Striping, VolumeKind,
    };

    /// Puts or removes an entry of one of the four kinds, with small numbers so that steps meet.
    #[derive(Clone, Debug)]
    enum Step {
        Group(u64, Option<Vec<(u8, bool)>>),
        Drive(u8, Option<u32>),
        Session(u64, Option<(u64, bool)>),
        Volume(u64, Option<(bool, Vec<Vec<u64>>)>),
        SharedVolume(u64, Vec<(u32, u32)>),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let lists = prop::collection::vec(prop::collection::vec(0u64..4, 1..3), 0..3);
        let windows = prop::collection::vec((0u32..4, 1u32..5), 1..4);
        let slots = prop::collection::vec((0u8..5, any::<bool>()), 1..4);
        let step = prop_oneof![
            (0u64..4, prop::option::of(slots)).prop_map(|(g, s)| Step::Group(g, s)),
            (0u8..5, prop::option::of(0u32..3)).prop_map(|(d, n)| Step::Drive(d, n)),
            (0u64..6, prop::option::of((0u64..3, any::<bool>()))).prop_map(|(s, v)| Step::Session(s, v)),
            (0u64..3, prop::option::of((any::<bool>(), lists))).prop_map(|(v, s)| Step::Volume(v, s)),
            (0u64..3, windows).prop_map(|(v, w)| Step::SharedVolume(v, w)),
        ];
        prop::collection::vec(step, 0..12)
    }

    fn put<K: Key, V: Clone>(table: &mut Table<K, V>, key: K, value: Option<V>) {
        match value {
            Some(value) => drop(table.insert(key, value)),
            None => drop(table.remove(&key)),
        }
    }

    fn take(map: &mut FabricMap, step: &Step) {
        match step {
            Step::Group(id, slots) => {
                let slot = |(drive, is_out): &(u8, bool)| Slot {
                    drive: DriveId(u128::from(*drive)),
                    role: if *is_out { Role::Out } else { Role::InSync },
                    since: Epoch(1),
                };
                let slots = slots.as_ref().map(|slots| slots.iter().map(slot).collect());
                let group = slots.map(|slots| Group {
                    id: GroupId(*id),
                    pool: PoolId(1),
                    epoch: Epoch(1),
                    slots,
                    floor: Default::default(),
                });
                put(&mut map.groups, GroupId(*id), group);
            }
            Step::Drive(id, node) => {
                let id = DriveId(u128::from(*id));
                let drive = node.map(|node| Drive {
                    id,
                    node: NodeId(node),
                    target: TargetId(node),
                    device: weft_types::DeviceId::of_drive(id),
                    pool: PoolId(1),
                    path: String::new(),
                    capacity: BlockCount(1),
                    state: DriveState::Active,
                });
                put(&mut map.drives, id, drive);
            }
            Step::Session(id, session) => {
                let session = session.map(|(volume, is_over)| Session {
                    number: 0,
                    lane_slots: vec![],
                    id: SessionId(*id),
                    slot: SessionSlot(1),
                    volume: VolumeId(volume),
                    mode: AttachMode::Shared,
                    generation: Generation(1),
                    client: String::new(),
                    state: if is_over { SessionState::Over } else { SessionState::Open },
                });
                put(&mut map.sessions, SessionId(*id), session);
            }
            Step::Volume(id, volume) => {
                let volume = volume.as_ref().map(|(is_deleting, lists)| {
                    let groups = |list: &Vec<u64>| list.iter().copied().map(GroupId).collect();
                    volume_of(*id, *is_deleting, lists.iter().map(groups).collect())
                });
                put(&mut map.volumes, VolumeId(*id), volume);
            }
            Step::SharedVolume(id, windows) => {
                let id_of_table = GroupTableId(9);
                let table = GroupTable::new(id_of_table, &[3, 1, 0, 2].map(GroupId));
                let tables: GroupTables = [(id_of_table, table.into())].into();
                let table = &tables[&id_of_table];
                let groups = |(first, count): &(u32, u32)| {
                    let window = TableWindow { table: table.id, first: *first, count: *count };
                    SpanGroups::of_table(table, window).expect("it is one of the table")
                };
                let volume = volume_of(*id, false, windows.iter().map(groups).collect());
                map.volumes.insert(VolumeId(*id), volume);
            }
        }
    }

    /// A volume; of an odd number: a file system.
    fn volume_of(id: u64, is_deleting: bool, lists: Vec<SpanGroups>) -> Volume {
        let span = |(first, groups)| ObjectSpan { first, count: 1, groups };
        let (spans, kind) = match id % 2 {
            0 => ((0..).zip(lists).map(span).collect(), VolumeKind::Blocks),
            _ => (vec![], VolumeKind::Files(FileSystem { sets: lists, shards: vec![], is_spread: false })),
        };
        Volume {
            id: VolumeId(id),
            name: String::new(),
            pool: PoolId(1),
            size: BlockCount(1),
            protection: Protection::mirror(2),
            striping: Striping { unit_blocks: 1, width: 1, object_blocks: 1 },
            spans,
            generation: Generation(1),
            state: if is_deleting { VolumeState::Deleting } else { VolumeState::Ready },
            thin: true,
            created_ms: 0,
            kind,
        }
    }

    proptest! {
        #[test]
        fn an_index_that_followed_equals_one_that_is_computed(commits in prop::collection::vec(steps(), 1..6)) {
            let mut map = FabricMap::empty(FabricId(1));
            let mut index = Index::of(&map);
            for commit in commits {
                let mut next = map.clone();
                commit.iter().for_each(|step| take(&mut next, step));
                index.note(&map, &next);
                map = next;
                prop_assert_eq!(&index, &Index::of(&map));
            }
            // Computed another way than by the index's own code.
            for drive in (0..5).map(DriveId) {
                let lists = |g: &&Group| g.slot_of(drive).is_some();
                let groups: Vec<GroupId> = map.groups.values().filter(lists).map(|g| g.id).collect();
                prop_assert_eq!(index.groups_of(drive).collect::<Vec<_>>(), groups);
            }
            for target in (0..3).map(TargetId) {
                let of_target = map.drives.values().filter(|d| d.target == target).map(|d| d.id);
                let drives: Vec<DriveId> = of_target.collect();
                let holds = map.groups.values().any(|g| g.slots.iter().any(|s| drives.contains(&s.drive)));
                prop_assert_eq!(index.drives_of(target).collect::<Vec<_>>(), drives);
                prop_assert_eq!(index.has_groups(target), holds);
            }
            for groups in [vec![0], vec![1, 3], vec![0, 1, 2]] {
                let groups: Vec<GroupId> = groups.into_iter().map(GroupId).collect();
                let holds = |v: &&Volume| v.groups().any(|g| groups.contains(g));
                let all: BTreeSet<VolumeId> = map.volumes.values().filter(holds).map(|v| v.id).collect();
                let found = index.volumes_in(groups.iter().copied());
                prop_assert_eq!((found.count(), found.first(9)), (all.len(), all.clone()));
                prop_assert_eq!(found.first(1), all.iter().copied().take(1).collect());
                prop_assert_eq!(groups.iter().any(|g| index.is_used(*g)), !all.is_empty());
            }
            for volume in (0..3).map(VolumeId) {
                let sessions = || map.sessions.values().filter(|s| s.volume == volume);
                let over = sessions().filter(|s| s.state == SessionState::Over).map(|s| s.id);
                prop_assert_eq!(index.over_of(volume).collect::<Vec<_>>(), over.collect::<Vec<_>>());
                let all = sessions().map(|s| s.id).collect::<Vec<_>>();
                prop_assert_eq!(index.sessions_of(volume).collect::<Vec<_>>(), all);
            }
            let deleting = map.volumes.values().filter(|v| v.state == VolumeState::Deleting).map(|v| v.id);
            prop_assert_eq!(index.deleting().collect::<Vec<_>>(), deleting.collect::<Vec<_>>());
        }
    }
}
