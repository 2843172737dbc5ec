//! The slice of a target (C9, C14): what it holds and serves, and what leads from one version of that to the
//! next.
//!
//! Pure. It owns which entries are in such a slice. It costs what the slice has, or what has changed,
//! wherever no group enters or leaves the slice; then it looks through all volumes once.

use super::{Delta, FabricMap, GroupTable, GroupTables, MapSettings, Piece, PieceKey, PieceKind, Volume};
use crate::{DriveId, GroupId, GroupTableId, NodeId, SessionId, Table, TargetId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a target's slice says of entries that it does not list.
///
/// A slice lists its target, all pools, the drives of its target, the groups that its target holds, and what
/// belongs to these: the drives of their members with their targets and nodes and these nodes' first targets,
/// their relocations, the volumes with objects in them, the sessions of these volumes, and the tables that
/// list these groups or that these volumes name. So a session of a listed volume that is not listed is not in
/// the fabric. Of groups only a word counts: one that is not listed may go on elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfTarget {
    /// Whose slice it is.
    pub target: TargetId,
    /// The next number of the whole map, see [`FabricMap::next_id`]. As old as the newest change of anything
    /// else in the slice.
    pub next_id: u64,
    /// Every session below this one is not in the fabric any more. As old as `next_id`.
    pub sessions_from: SessionId,
    /// Groups that the target holds, and that are not in the fabric any more.
    pub removed_groups: BTreeSet<GroupId>,
}

/// Which entries of a map are in a target's slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSlice {
    /// Whose it is.
    pub target: TargetId,
    /// The drives that it serves, by the map.
    pub drives: BTreeSet<DriveId>,
    /// The groups that its drives are members of, and others of which they hold something: all are listed
    /// that the map has.
    pub held: BTreeSet<GroupId>,
}

impl TargetSlice {
    /// The slice of a target that holds these groups, and those of the map that its drives are members of.
    /// Looks through all drives and groups.
    pub fn of(map: &FabricMap, target: TargetId, held: BTreeSet<GroupId>) -> TargetSlice {
        let own = map.drives.values().filter(|drive| drive.target == target);
        let mut slice = TargetSlice { target, drives: own.map(|drive| drive.id).collect(), held };
        let members = map.groups.values().filter(|g| g.slots.iter().any(|s| slice.drives.contains(&s.drive)));
        let members: Vec<GroupId> = members.map(|g| g.id).collect();
        slice.held.extend(members);
        slice
    }

    /// The slice of this map, which has the same drives of the target, and no group with a member among them
    /// that is not held. Looks through all volumes and sessions.
    pub fn slice(&self, map: &FabricMap) -> FabricMap {
        let listed = GroupSet::of(self.held.iter().copied().filter(|id| map.groups.contains_key(id)));
        let lists = map.group_lists().into_iter();
        let volumes: Table<VolumeId, Volume> = lists
            .filter(|list| list.groups.iter().any(|id| listed.has(*id)))
            .flat_map(|list| list.volumes)
            .map(|volume| (volume.id, volume.clone()))
            .collect();
        let groups = self.held.iter().filter_map(|id| Some((*id, map.groups.get(id)?.clone())));
        let relocations = self.held.iter().filter(|id| map.groups.contains_key(id));
        let sessions = map.sessions.iter().filter(|(_, s)| volumes.contains_key(&s.volume));
        let places = self.places(map);
        let mut slice = FabricMap {
            schema: map.schema,
            version: map.version,
            nodes: places.nodes.iter().filter_map(|id| Some((*id, map.nodes.get(id)?.clone()))).collect(),
            targets: { places.targets.iter() }
                .filter_map(|id| Some((*id, map.targets.get(id)?.clone())))
                .collect(),
            pools: map.pools.clone(),
            removed_drives: map.removed_drives.clone(),
            drives: places.drives.iter().filter_map(|id| Some((*id, map.drives.get(id)?.clone()))).collect(),
            groups: groups.collect(),
            relocations: relocations.filter_map(|id| Some((*id, *map.relocations.get(id)?))).collect(),
            sessions: sessions.map(|(id, session)| (*id, session.clone())).collect(),
            group_tables: { map.group_tables.iter() }
                .filter(|(_, table)| table.groups().iter().any(|id| listed.has(*id)))
                .map(|(id, table)| (*id, table.clone()))
                .chain(tables_of(volumes.values()).iter().map(|(id, table)| (*id, table.clone())))
                .collect(),
            volumes,
            next_id: 0,
            of_target: Some(self.says_of(map)),
            ..FabricMap::empty(map.fabric)
        };
        slice.put_settings(settings_of(map));
        slice
    }

    /// What leads from the slice of one map to the slice of a later one, and the later slice. `changes` are
    /// what the commits between the two maps changed, `forgotten` groups that the target holds no more.
    ///
    /// Nothing if a drive has come to the target, or gone, together with its groups: then only the whole
    /// slice helps.
    pub fn lead_on(
        &self,
        old: &FabricMap,
        new: &FabricMap,
        changes: &[&Delta],
        forgotten: &BTreeSet<GroupId>,
    ) -> Option<(TargetSlice, Delta)> {
        let changed = Changed::of(changes);
        let next = self.follow(old, new, &changed, forgotten)?;
        let mut delta = Delta {
            fabric: new.fabric,
            from: old.version,
            to: new.version,
            next_id: 0,
            put: Vec::new(),
            removed: Vec::new(),
        };
        let settings = settings_of(new);
        if settings != settings_of(old) {
            delta.put.push(Piece::Settings(settings));
        }
        for kind in [PieceKind::RemovedDrive, PieceKind::Pool] {
            changed.of_kind(kind).for_each(|key| delta.note(key, old.has(key), new.has(key), old, new));
        }
        let step = Step { held: self, next: &next, old, new };
        let groups = step.touched_groups(&changed, forgotten);
        step.note_places(&changed, &groups, &mut delta);
        for group in &groups {
            let (was, is) = (step.listed(*group), step.lists(*group));
            delta.note(PieceKey::Group(*group), was, is, old, new);
        }
        for group in groups.iter().copied().chain(changed.groups(PieceKind::Relocation)) {
            let was = step.listed(group) && old.relocations.contains_key(&group);
            let is = step.lists(group) && new.relocations.contains_key(&group);
            delta.note(PieceKey::Relocation(group), was, is, old, new);
        }
        step.note_tables(&changed, &groups, &mut delta);
        step.note_volumes(&changed, &groups, &mut delta);
        delta.put.push(Piece::OfTarget(next.says_of(new)));
        delta.in_key_order();
        Some((next, delta))
    }

    /// Which entries of the later map are in the slice.
    fn follow(
        &self,
        old: &FabricMap,
        new: &FabricMap,
        changed: &Changed,
        forgotten: &BTreeSet<GroupId>,
    ) -> Option<TargetSlice> {
        let mut next = self.clone();
        for key in changed.of_kind(PieceKind::Drive) {
            let PieceKey::Drive(id) = key else { continue };
            let is_own = new.drives.get(&id).is_some_and(|drive| drive.target == self.target);
            let has_come = is_own != self.drives.contains(&id);
            // A drive enters the map before any group lists it, and leaves it after.
            if has_come && is_own && old.drives.contains_key(&id) {
                return None;
            }
            match is_own {
                true => next.drives.insert(id),
                false => next.drives.remove(&id),
            };
        }
        let is_member = |id: &GroupId| {
            new.groups.get(id).is_some_and(|g| g.slots.iter().any(|s| next.drives.contains(&s.drive)))
        };
        let joined: Vec<GroupId> = changed.groups(PieceKind::Group).filter(|id| is_member(id)).collect();
        next.held.retain(|id| !forgotten.contains(id) || is_member(id));
        next.held.extend(joined);
        Some(next)
    }

    fn lists_group(&self, map: &FabricMap, id: GroupId) -> bool {
        self.held.contains(&id) && map.groups.contains_key(&id)
    }

    fn lists_volume(&self, map: &FabricMap, volume: &Volume) -> bool {
        groups_of(volume).any(|id| self.lists_group(map, id))
    }

    fn lists_table(&self, map: &FabricMap, table: &GroupTable) -> bool {
        table.groups().iter().any(|id| self.lists_group(map, *id))
    }

    /// Whether a volume of the slice names the table. Looks through all volumes.
    fn names_table(&self, map: &FabricMap, table: GroupTableId) -> bool {
        let names = |volume: &&Volume| volume.group_tables().any(|named| named.id == table);
        map.volumes.values().filter(names).any(|volume| self.lists_volume(map, volume))
    }

    /// The drives of the target, and those of the members of its groups, with where they are.
    fn places(&self, map: &FabricMap) -> Places {
        let groups = self.held.iter().filter_map(|id| map.groups.get(id));
        let members = groups.flat_map(|group| &group.slots).map(|slot| slot.drive);
        let all: BTreeSet<DriveId> = self.drives.iter().copied().chain(members).collect();
        let mut places =
            Places { drives: all, targets: BTreeSet::from([self.target]), nodes: BTreeSet::new() };
        places.drives.retain(|id| map.drives.contains_key(id));
        let drives = places.drives.iter().filter_map(|id| map.drives.get(id));
        places.targets.extend(drives.map(|drive| drive.target));
        let nodes = places.targets.iter().filter_map(|id| map.node_of(*id));
        places.nodes = nodes.map(|node| node.id).collect();
        places.targets.extend(places.nodes.iter().map(|node| TargetId::first_of(*node)));
        places.targets.retain(|id| map.targets.contains_key(id));
        places
    }

    fn says_of(&self, map: &FabricMap) -> OfTarget {
        OfTarget {
            target: self.target,
            next_id: map.ids_below(),
            sessions_from: map.sessions_from(),
            removed_groups: self.held.iter().copied().filter(|id| map.was_removed(*id)).collect(),
        }
    }
}

/// The drives that a slice lists, their targets, these targets' nodes, and the first targets of these.
struct Places {
    drives: BTreeSet<DriveId>,
    targets: BTreeSet<TargetId>,
    nodes: BTreeSet<NodeId>,
}

impl Places {
    /// Whether the entry with this key is one of them.
    fn has(&self, key: PieceKey) -> bool {
        match key {
            PieceKey::Drive(id) => self.drives.contains(&id),
            PieceKey::Target(id) => self.targets.contains(&id),
            PieceKey::Node(id) => self.nodes.contains(&id),
            _ => false,
        }
    }

    fn keys(&self) -> impl Iterator<Item = PieceKey> {
        let drives = self.drives.iter().copied().map(PieceKey::Drive);
        let targets = self.targets.iter().copied().map(PieceKey::Target);
        drives.chain(targets).chain(self.nodes.iter().copied().map(PieceKey::Node))
    }
}

/// Groups, for as many questions as a large fabric's volumes have groups: a bit for each number, as long as
/// their numbers are near each other.
enum GroupSet {
    Bits { first: u64, bits: Vec<u64> },
    Sparse(BTreeSet<GroupId>),
}

/// Numbers that the bits of a set span at most: 8 MiB.
const BITS_SPANNED: u64 = 1 << 26;

impl GroupSet {
    fn of(groups: impl Iterator<Item = GroupId>) -> GroupSet {
        let groups: BTreeSet<GroupId> = groups.collect();
        let (Some(first), Some(last)) = (groups.first(), groups.last()) else {
            return GroupSet::Sparse(groups);
        };
        let (first, span) = (first.0, last.0 - first.0);
        if span >= BITS_SPANNED {
            return GroupSet::Sparse(groups);
        }
        let mut bits = vec![0; span as usize / 64 + 1];
        for group in groups {
            let at = group.0 - first;
            bits[at as usize / 64] |= 1 << (at % 64);
        }
        GroupSet::Bits { first, bits }
    }

    fn has(&self, group: GroupId) -> bool {
        match self {
            GroupSet::Bits { first, bits } => {
                let at = group.0.wrapping_sub(*first);
                let word = usize::try_from(at / 64).ok().and_then(|word| bits.get(word));
                word.is_some_and(|word| word & (1 << (at % 64)) != 0)
            }
            GroupSet::Sparse(groups) => groups.contains(&group),
        }
    }
}

/// The settings that a target's slice has: not which groups are to be scrubbed, which changes with each
/// scrub.
fn settings_of(map: &FabricMap) -> MapSettings {
    MapSettings { scrub_wanted: BTreeSet::new(), ..MapSettings::of(map) }
}

/// The groups that hold a volume's objects, some of them more than once.
pub(super) fn groups_of(volume: &Volume) -> impl Iterator<Item = GroupId> {
    volume.groups().copied()
}

/// The tables that volumes name windows of.
pub(super) fn tables_of<'a>(volumes: impl Iterator<Item = &'a Volume>) -> GroupTables {
    volumes.flat_map(Volume::group_tables).map(|table| (table.id, table.clone())).collect()
}

/// The keys of pieces that commits have put or removed.
struct Changed(BTreeSet<PieceKey>);

impl Changed {
    fn of(changes: &[&Delta]) -> Changed {
        let keys = |delta: &&Delta| -> Vec<PieceKey> {
            delta.put.iter().map(Piece::key).chain(delta.removed.iter().copied()).collect()
        };
        Changed(changes.iter().flat_map(keys).collect())
    }

    fn of_kind(&self, kind: PieceKind) -> impl Iterator<Item = PieceKey> {
        self.0.iter().copied().filter(move |key| key.kind() == kind)
    }

    /// The identifiers that `pick` takes out of the keys of one kind.
    fn ids<T: Ord>(&self, pick: impl Fn(PieceKey) -> Option<T>) -> BTreeSet<T> {
        self.0.iter().copied().filter_map(pick).collect()
    }

    fn groups(&self, kind: PieceKind) -> impl Iterator<Item = GroupId> {
        self.of_kind(kind).filter_map(|key| match key {
            PieceKey::Group(id) | PieceKey::Relocation(id) => Some(id),
            _ => None,
        })
    }
}

/// From the slice of one map to the slice of a later one.
struct Step<'a> {
    held: &'a TargetSlice,
    next: &'a TargetSlice,
    old: &'a FabricMap,
    new: &'a FabricMap,
}

impl Step<'_> {
    fn listed(&self, group: GroupId) -> bool {
        self.held.lists_group(self.old, group)
    }

    fn lists(&self, group: GroupId) -> bool {
        self.next.lists_group(self.new, group)
    }

    /// The groups that have changed, or have entered the slice or left it.
    fn touched_groups(&self, changed: &Changed, forgotten: &BTreeSet<GroupId>) -> BTreeSet<GroupId> {
        let candidates = changed.groups(PieceKind::Group).chain(forgotten.iter().copied());
        candidates.filter(|id| self.listed(*id) || self.lists(*id)).collect()
    }

    fn note_places(&self, changed: &Changed, groups: &BTreeSet<GroupId>, delta: &mut Delta) {
        let kinds = [PieceKind::Node, PieceKind::Target, PieceKind::Drive];
        let changed: BTreeSet<PieceKey> = kinds.into_iter().flat_map(|kind| changed.of_kind(kind)).collect();
        if groups.is_empty() && changed.is_empty() {
            return;
        }
        let (was, is) = (self.held.places(self.old), self.next.places(self.new));
        let touched: BTreeSet<PieceKey> = was.keys().chain(is.keys()).collect();
        for key in touched {
            let (was, is) = (was.has(key), is.has(key));
            if was != is || changed.contains(&key) {
                delta.note(key, was, is, self.old, self.new);
            }
        }
    }

    fn note_tables(&self, changed: &Changed, groups: &BTreeSet<GroupId>, delta: &mut Delta) {
        let mut tables: BTreeSet<GroupTableId> = changed.ids(|key| match key {
            PieceKey::GroupTable(id) => Some(id),
            _ => None,
        });
        let crossing = self.crossing(groups);
        let otherwise_named = self.otherwise_named(changed, &crossing);
        tables.extend(&otherwise_named);
        if !crossing.is_empty() {
            let all = self.old.group_tables.values().chain(self.new.group_tables.values());
            tables.extend(all.filter(|t| t.groups().iter().any(|id| crossing.contains(id))).map(|t| t.id));
        }
        for id in tables {
            // A table without a group of the slice is named by a volume of the slice only if that has
            // changed, or groups have entered the slice or left it: most tables that are new are told apart
            // without a look.
            let is_unsure = !crossing.is_empty() || otherwise_named.contains(&id);
            let has = |slice: &TargetSlice, map: &FabricMap| {
                let lists = |table: &GroupTable| {
                    slice.lists_table(map, table) || (is_unsure && slice.names_table(map, table.id))
                };
                map.group_tables.get(&id).is_some_and(|table| lists(table))
            };
            let (was, is) = (has(self.held, self.old), has(self.next, self.new));
            delta.note(PieceKey::GroupTable(id), was, is, self.old, self.new);
        }
    }

    /// Tables that a volume of the slice names where it did not, or does not any more. A volume with one list
    /// is left out: its table has a group of the slice whenever the volume is in the slice.
    fn otherwise_named(&self, changed: &Changed, crossing: &BTreeSet<GroupId>) -> BTreeSet<GroupTableId> {
        let mut volumes: BTreeSet<VolumeId> = changed.ids(|key| match key {
            PieceKey::Volume(id) => Some(id),
            _ => None,
        });
        if !crossing.is_empty() {
            let has_several = |v: &&Volume| v.lists().nth(1).is_some();
            volumes.extend(self.new.volumes.values().filter(has_several).map(|v| v.id));
        }
        let named = |slice: &TargetSlice, map: &FabricMap, id: &VolumeId| -> BTreeSet<GroupTableId> {
            let listed = map.volumes.get(id).filter(|v| v.lists().nth(1).is_some());
            let listed = listed.filter(|volume| slice.lists_volume(map, volume));
            listed.into_iter().flat_map(Volume::group_tables).map(|table| table.id).collect()
        };
        let differ = |id: VolumeId| {
            let (was, is) = (named(self.held, self.old, &id), named(self.next, self.new, &id));
            was.symmetric_difference(&is).copied().collect::<Vec<_>>()
        };
        volumes.into_iter().flat_map(differ).collect()
    }

    /// Those of the groups that enter the slice or leave it.
    fn crossing(&self, groups: &BTreeSet<GroupId>) -> BTreeSet<GroupId> {
        groups.iter().copied().filter(|id| self.listed(*id) != self.lists(*id)).collect()
    }

    fn note_volumes(&self, changed: &Changed, groups: &BTreeSet<GroupId>, delta: &mut Delta) {
        let mut volumes: BTreeSet<VolumeId> = changed.ids(|key| match key {
            PieceKey::Volume(id) => Some(id),
            _ => None,
        });
        let crossing = self.crossing(groups);
        if !crossing.is_empty() {
            let lists = self.new.group_lists().into_iter();
            let concerned = lists.filter(|list| list.groups.iter().any(|id| crossing.contains(id)));
            volumes.extend(concerned.flat_map(|list| list.volumes).map(|v| v.id));
        }
        let was_in = |id: &VolumeId| {
            self.old.volumes.get(id).is_some_and(|volume| self.held.lists_volume(self.old, volume))
        };
        let is_in = |id: &VolumeId| {
            self.new.volumes.get(id).is_some_and(|volume| self.next.lists_volume(self.new, volume))
        };
        let mut crossing = BTreeSet::new();
        for id in volumes {
            let (was, is) = (was_in(&id), is_in(&id));
            delta.note(PieceKey::Volume(id), was, is, self.old, self.new);
            if was != is {
                crossing.insert(id);
            }
        }
        let mut sessions: BTreeSet<SessionId> = changed.ids(|key| match key {
            PieceKey::Session(id) => Some(id),
            _ => None,
        });
        if !crossing.is_empty() {
            let both = self.old.sessions.iter().chain(self.new.sessions.iter());
            sessions.extend(both.filter(|(_, s)| crossing.contains(&s.volume)).map(|(id, _)| *id));
        }
        for id in sessions {
            let was = self.old.sessions.get(&id).is_some_and(|s| was_in(&s.volume));
            let is = self.new.sessions.get(&id).is_some_and(|s| is_in(&s.volume));
            delta.note(PieceKey::Session(id), was, is, self.old, self.new);
        }
    }
}

impl FabricMap {
    fn has(&self, key: PieceKey) -> bool {
        match key {
            PieceKey::Pool(id) => self.pools.contains_key(&id),
            PieceKey::RemovedDrive(id) => self.removed_drives.contains(&id),
            other => self.lists(other),
        }
    }

    fn piece(&self, key: PieceKey) -> Option<Piece> {
        self.pieces_of(key.kind(), key.number()..=key.number()).pop()
    }
}

impl Delta {
    /// Notes of a piece that was in the old slice, or not, and is in the new one, or not, what is different.
    fn note(&mut self, key: PieceKey, was: bool, is: bool, old: &FabricMap, new: &FabricMap) {
        match (was, is) {
            (_, true) => {
                let piece = new.piece(key);
                if !was || piece != old.piece(key) {
                    self.put.extend(piece);
                }
            }
            (true, false) => self.removed.push(key),
            (false, false) => {}
        }
    }

    fn in_key_order(&mut self) {
        self.put.sort_by_key(Piece::key);
        self.put.dedup_by_key(|piece| piece.key());
        self.removed.sort();
        self.removed.dedup();
    }
}

/// The targets in whose slices something may be different after a commit, but for what each slice says of
/// entries that it does not list.
///
/// `holders` names the targets that hold a group and have no member of it; `groups_of_drive` the groups that
/// list a drive in either map; `drives_of_target` the drives of a target in either map. Of a drive that the
/// commit gives to another target, one of the two is enough.
pub fn targets_touched(
    delta: &Delta,
    (old, new): (&FabricMap, &FabricMap),
    holders: impl Fn(GroupId) -> Vec<TargetId>,
    groups_of_drive: impl Fn(DriveId) -> Vec<GroupId>,
    drives_of_target: impl Fn(TargetId) -> Vec<DriveId>,
) -> Touched {
    let mut touched = Touched::Some(BTreeSet::new());
    let keys = delta.put.iter().map(Piece::key).chain(delta.removed.iter().copied());
    let (mut groups, mut nodes) = (BTreeSet::new(), BTreeSet::new());
    for key in keys {
        match key {
            PieceKey::Settings if settings_of(old) == settings_of(new) => {}
            PieceKey::Settings | PieceKey::RemovedDrive(_) | PieceKey::Pool(_) => return Touched::All,
            PieceKey::Target(id) => {
                let both = [old, new].into_iter();
                nodes.extend(both.filter_map(|map| map.targets.get(&id)).map(|target| target.node));
                nodes.insert(NodeId(id.0));
            }
            PieceKey::Node(id) => drop(nodes.insert(id)),
            PieceKey::Drive(id) => {
                let own = [old, new].into_iter().filter_map(|map| map.drives.get(&id));
                touched.extend(own.map(|drive| drive.target));
                groups.extend(groups_of_drive(id));
            }
            PieceKey::Group(id) | PieceKey::Relocation(id) => drop(groups.insert(id)),
            PieceKey::Volume(id) => {
                let both = [old, new].into_iter().filter_map(|map| map.volumes.get(&id));
                groups.extend(both.flat_map(groups_of));
            }
            PieceKey::Session(id) => {
                let both = [old, new].into_iter();
                let volumes = both.filter_map(|map| Some((map.sessions.get(&id)?.volume, map))).filter_map(
                    |(volume, map)| map.volumes.get(&volume).or_else(|| new.volumes.get(&volume)),
                );
                groups.extend(volumes.flat_map(groups_of));
            }
            PieceKey::GroupTable(id) => {
                let both = [old, new].into_iter().filter_map(|map| map.group_tables.get(&id));
                groups.extend(both.flat_map(|table| table.groups().iter().copied()));
            }
            PieceKey::Scrubbed(_) | PieceKey::OfTarget => {}
        }
    }
    // A node comes with each drive on it, and with the node its first target.
    for map in [old, new].into_iter().filter(|_| !nodes.is_empty()) {
        let targets = || map.targets.values().filter(|t| nodes.contains(&t.node)).map(|target| target.id);
        touched.extend(targets());
        groups.extend(targets().flat_map(&drives_of_target).flat_map(&groups_of_drive));
    }
    for group in groups {
        for map in [old, new] {
            let slots = map.groups.get(&group).into_iter().flat_map(|g| &g.slots);
            touched.extend(slots.filter_map(|slot| map.drives.get(&slot.drive)).map(|drive| drive.target));
        }
        touched.extend(holders(group));
    }
    touched
}

/// Targets whose slices a commit touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Each of them.
    All,
    /// These.
    Some(BTreeSet<TargetId>),
}

impl Touched {
    fn extend(&mut self, targets: impl IntoIterator<Item = TargetId>) {
        if let Touched::Some(touched) = self {
            touched.extend(targets);
        }
    }

    /// Whether the target is one of them.
    pub fn has(&self, target: TargetId) -> bool {
        match self {
            Touched::All => true,
            Touched::Some(targets) => targets.contains(&target),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::piece::tests::{run, steps};
    use super::*;
    use crate::{FabricId, GroupId};
    use proptest::prelude::*;

    /// Targets and groups of the maps that `steps` makes.
    fn held() -> impl Strategy<Value = BTreeSet<GroupId>> {
        proptest::collection::btree_set((0u64..6).prop_map(GroupId), 0..3)
    }

    proptest! {
        #[test]
        fn a_set_of_groups_has_what_was_put_in(
            groups in proptest::collection::btree_set(prop_oneof![0u64..200, any::<u64>()], 0..20),
            others in proptest::collection::vec(prop_oneof![0u64..200, any::<u64>()], 0..20),
        ) {
            let set = GroupSet::of(groups.iter().copied().map(GroupId));
            for group in groups.iter().chain(&others) {
                prop_assert_eq!(set.has(GroupId(*group)), groups.contains(group));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// What is led to is the slice of the later map, whatever has happened in between.
        #[test]
        fn the_delta_of_a_targets_slice_leads_to_it(
            first in steps(),
            between in proptest::collection::vec(steps(), 1..4),
            (target, held, forgotten) in (0u32..6, held(), held()),
        ) {
            let old = run(FabricMap::empty(FabricId(1)), &first);
            let (mut new, mut changes) = (old.clone(), Vec::new());
            for steps in &between {
                let next = run(new.clone(), steps);
                changes.push(next.delta_from(&new));
                new = next;
            }
            let changes: Vec<&Delta> = changes.iter().collect();
            // A drive enters a map before any group lists it.
            let has_come = |id: &DriveId| new.drives.contains_key(id) && !old.drives.contains_key(id);
            let is_same = |g: &&crate::Group| old.groups.get(&g.id) == Some(g);
            if new.groups.values().filter(is_same).any(|g| g.slots.iter().any(|s| has_come(&s.drive))) {
                return Ok(());
            }
            let had = TargetSlice::of(&old, TargetId(target), held);
            let Some((has, delta)) = had.lead_on(&old, &new, &changes, &forgotten) else { return Ok(()) };
            let kept = had.held.iter().copied().filter(|id| !forgotten.contains(id)).collect();
            let members = TargetSlice::of(&new, TargetId(target), kept);
            prop_assert_eq!(&members.drives, &has.drives);
            prop_assert!(members.held.is_subset(&has.held));
            prop_assert_eq!(had.slice(&old).apply_delta(&delta), Ok(has.slice(&new)));
        }

        /// Whose slice is different is touched.
        #[test]
        fn what_does_not_touch_a_target_changes_nothing_of_its_slice(
            first in steps(),
            then in steps(),
            target in 0u32..6,
            held in held(),
        ) {
            let old = run(FabricMap::empty(FabricId(1)), &first);
            let new = run(old.clone(), &then);
            let delta = new.delta_from(&old);
            let slice = TargetSlice::of(&old, TargetId(target), held);
            let holders = |group| match slice.held.contains(&group) {
                true => vec![slice.target],
                false => vec![],
            };
            let groups_of_drive = |drive| {
                let lists = |map: &FabricMap| -> Vec<GroupId> {
                    map.groups.values().filter(|g| g.slot_of(drive).is_some()).map(|g| g.id).collect()
                };
                [lists(&old), lists(&new)].concat()
            };
            let drives_of_target = |target| {
                let drives = old.drives.values().chain(new.drives.values());
                drives.filter(|d| d.target == target).map(|d| d.id).collect()
            };
            let touched =
                targets_touched(&delta, (&old, &new), holders, groups_of_drive, drives_of_target);
            if touched.has(slice.target) {
                return Ok(());
            }
            let now = TargetSlice::of(&new, slice.target, slice.held.clone());
            prop_assert_eq!(&now, &slice);
            let bare = |map: FabricMap| FabricMap { of_target: None, version: new.version, ..map };
            prop_assert_eq!(bare(slice.slice(&old)), bare(now.slice(&new)));
            let removed = |map: &FabricMap| slice.slice(map).of_target.map(|o| o.removed_groups);
            if old.next_id == new.next_id {
                prop_assert_eq!(removed(&old), removed(&new));
            }
        }
    }
}
