//! Slices: the part of the map that concerns one receiver.
//!
//! Pure. A slice of a map is a map as well, so all that is looked up in a map is looked up in its slice. A
//! slice says nothing of what it does not list: it has no `next_id`, and so takes no number for used up.
//! What a client names, and its slice does not list, is gone. What a target's slice says of what it does not
//! list is in [`OfTarget`](super::OfTarget).

use super::target_slice::{groups_of, tables_of};
use super::{Delta, FabricMap, Piece, PieceKey, TargetSlice, Volume};
use crate::{DriveId, GroupId, NodeId, SessionId, Table, TargetId, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Which part of the map a receiver follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Slice {
    /// All of it: for tools.
    Whole,
    /// What concerns this target, see [`TargetSlice`]. Which groups it holds, the manager knows from when it
    /// joined.
    Target(TargetId),
    /// What concerns a client: these volumes and sessions, the groups of the volumes with their drives,
    /// targets and nodes, and relocations.
    Client {
        /// Volumes that it has attached.
        volumes: BTreeSet<VolumeId>,
        /// Its sessions.
        sessions: BTreeSet<SessionId>,
    },
}

impl Slice {
    /// The slice of a client that has attached nothing: times that all members agree on.
    pub fn of_nothing() -> Slice {
        Slice::Client { volumes: BTreeSet::new(), sessions: BTreeSet::new() }
    }

    /// Whether it lists a session, if the map does.
    pub fn names_session(&self, session: SessionId, volume: VolumeId) -> bool {
        match self {
            Slice::Whole => true,
            Slice::Target(_) => false,
            Slice::Client { volumes, sessions } => sessions.contains(&session) && volumes.contains(&volume),
        }
    }

    /// Whether all that `other` names is named by this one.
    pub fn covers(&self, other: &Slice) -> bool {
        match (self, other) {
            (Slice::Whole, _) => true,
            (
                Slice::Client { volumes, sessions },
                Slice::Client { volumes: other_volumes, sessions: other_sessions },
            ) => volumes.is_superset(other_volumes) && sessions.is_superset(other_sessions),
            _ => self == other,
        }
    }

    /// Whether the slice may change with `delta`, which leads on from the map whose slice is `held`. Where
    /// this says no, it stays as it is but for its version. Costs what the delta has, and looks through
    /// the slice only for drives, targets, nodes and groups that it does not have.
    pub fn may_change(&self, held: &FabricMap, delta: &Delta) -> bool {
        matches!(self, Slice::Whole | Slice::Target(_))
            || delta.put.iter().any(|piece| self.takes(held, piece))
            || delta.removed.iter().any(|key| held.lists(*key))
    }

    fn takes(&self, held: &FabricMap, piece: &Piece) -> bool {
        let Slice::Client { volumes, sessions } = self else { return true };
        held.lists(piece.key())
            || match piece {
                Piece::Settings(s) => s.durations != held.durations || s.unknown_ids != held.unknown_ids,
                Piece::Node(node) => {
                    held.drives.values().any(|drive| drive.node == node.id)
                        || held.targets.values().any(|target| target.node == node.id)
                }
                Piece::Target(target) => held.drives.values().any(|drive| drive.target == target.id),
                Piece::Drive(drive) => held.groups.values().any(|g| g.slot_of(drive.id).is_some()),
                Piece::Group(group) => held.volumes.values().any(|v| groups_of(v).any(|id| id == group.id)),
                Piece::Relocation { group, .. } => held.groups.contains_key(group),
                Piece::Volume(volume) => volumes.contains(&volume.id),
                Piece::Session(session) => sessions.contains(&session.id),
                // It never changes, and comes with a volume.
                Piece::GroupTable(_) => false,
                Piece::RemovedDrive(_) | Piece::Pool(_) | Piece::Scrubbed { .. } | Piece::OfTarget(_) => {
                    false
                }
            }
    }
}

impl FabricMap {
    /// Whether the piece with this key is an entry of a table that slices have, and is listed. The settings,
    /// and what only the whole map has, are not.
    pub fn lists(&self, key: PieceKey) -> bool {
        match key {
            PieceKey::Node(id) => self.nodes.contains_key(&id),
            PieceKey::Target(id) => self.targets.contains_key(&id),
            PieceKey::Drive(id) => self.drives.contains_key(&id),
            PieceKey::Group(id) => self.groups.contains_key(&id),
            PieceKey::GroupTable(id) => self.group_tables.contains_key(&id),
            PieceKey::Relocation(id) => self.relocations.contains_key(&id),
            PieceKey::Volume(id) => self.volumes.contains_key(&id),
            PieceKey::Session(id) => self.sessions.contains_key(&id),
            PieceKey::Settings
            | PieceKey::RemovedDrive(_)
            | PieceKey::Pool(_)
            | PieceKey::Scrubbed(_)
            | PieceKey::OfTarget => false,
        }
    }

    /// The slice of this map. What differs between the slices of two versions is
    /// [`FabricMap::delta_from`] of the one to the other: what enters or leaves a slice may be touched by
    /// no change of the map, such as a drive whose last group with this target has moved away.
    ///
    /// Costs what is in the slice for a client, and a look at every group and volume for a target.
    pub fn slice(&self, slice: &Slice) -> FabricMap {
        match slice {
            Slice::Whole => self.clone(),
            Slice::Target(target) => TargetSlice::of(self, *target, BTreeSet::new()).slice(self),
            Slice::Client { volumes, sessions } => self.slice_of_client(volumes, sessions),
        }
    }

    fn slice_of_client(&self, volumes: &BTreeSet<VolumeId>, sessions: &BTreeSet<SessionId>) -> FabricMap {
        let volumes: Table<VolumeId, Volume> =
            volumes.iter().filter_map(|id| Some((*id, self.volumes.get(id)?.clone()))).collect();
        let groups: BTreeSet<GroupId> = volumes.values().flat_map(groups_of).collect();
        FabricMap {
            groups: groups.iter().filter_map(|id| Some((*id, self.groups.get(id)?.clone()))).collect(),
            sessions: sessions.iter().filter_map(|id| Some((*id, self.sessions.get(id)?.clone()))).collect(),
            group_tables: tables_of(volumes.values()),
            volumes,
            ..self.bare()
        }
        .with_members_of(self)
    }

    /// What is in every slice of a client.
    fn bare(&self) -> FabricMap {
        FabricMap {
            schema: self.schema,
            version: self.version,
            durations: self.durations,
            unknown_ids: self.unknown_ids.clone(),
            next_id: 0,
            ..FabricMap::empty(self.fabric)
        }
    }

    /// Adds what belongs to the groups that are there: relocations, members' drives, their targets, and the
    /// nodes of all these.
    fn with_members_of(mut self, map: &FabricMap) -> FabricMap {
        let drives: BTreeSet<DriveId> =
            self.groups.values().flat_map(|group| &group.slots).map(|slot| slot.drive).collect();
        self.drives.extend(drives.iter().filter_map(|id| Some((*id, map.drives.get(id)?.clone()))));
        let targets: BTreeSet<TargetId> = self.drives.values().map(|drive| drive.target).collect();
        self.targets.extend(targets.iter().filter_map(|id| Some((*id, map.targets.get(id)?.clone()))));
        let nodes: BTreeSet<NodeId> = (self.drives.values().map(|drive| drive.node))
            .chain(self.targets.values().map(|target| target.node))
            .collect();
        self.nodes.extend(nodes.iter().filter_map(|id| Some((*id, map.nodes.get(id)?.clone()))));
        let groups = self.groups.keys();
        self.relocations = groups.filter_map(|id| Some((*id, *map.relocations.get(id)?))).collect();
        self
    }
}

impl Delta {
    /// Whether nothing is in it but versions.
    pub fn is_empty(&self) -> bool {
        self.put.is_empty() && self.removed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::piece::tests::{run, steps};
    use super::*;
    use crate::{
        AttachMode, BlockCount, Drive, DriveState, Epoch, FabricId, Generation, Group, MapVersion, Node,
        ObjectSpan, PoolId, Protection, Role, Session, SessionSlot, SessionState, Slot, Striping, Target,
        VolumeState,
    };
    use proptest::prelude::*;

    fn any_slice() -> impl Strategy<Value = Slice> {
        let numbers = || proptest::collection::btree_set(0u64..6, 0..3);
        prop_oneof![
            Just(Slice::Whole),
            (0u32..6).prop_map(|target| Slice::Target(TargetId(target))),
            (numbers(), numbers()).prop_map(|(volumes, sessions)| Slice::Client {
                volumes: volumes.into_iter().map(VolumeId).collect(),
                sessions: sessions.into_iter().map(SessionId).collect(),
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn the_delta_of_a_slice_leads_to_the_slice(first in steps(), then in steps(), slice in any_slice()) {
            let old = run(FabricMap::empty(FabricId(1)), &first);
            let new = run(old.clone(), &then);
            let (was, is) = (old.slice(&slice), new.slice(&slice));
            prop_assert_eq!(was.apply_delta(&is.delta_from(&was)), Ok(is));
        }

        #[test]
        fn what_may_not_change_a_slice_does_not(
            first in steps(),
            then in proptest::collection::vec((super::super::piece::tests::piece(), any::<bool>()), 0..4),
            slice in any_slice(),
        ) {
            let old = run(FabricMap::empty(FabricId(1)), &first);
            let new = run(old.clone(), &then);
            let (was, is) = (old.slice(&slice), new.slice(&slice));
            if !slice.may_change(&was, &new.delta_from(&old)) {
                prop_assert!(is.delta_from(&was).is_empty());
                prop_assert_eq!(FabricMap { version: new.version, ..was }, is);
            }
        }

        /// Admission, resync and scrub of a target begin at a drive of its own; whatever they look
        /// up from there is what the whole map says.
        #[test]
        fn a_target_finds_in_its_slice_what_the_map_says(first in steps(), target in 0u32..6) {
            let map = run(FabricMap::empty(FabricId(1)), &first);
            let target = TargetId(target);
            let slice = map.slice(&Slice::Target(target));
            prop_assert_eq!(slice.targets.get(&target), map.targets.get(&target));
            for node in map.targets.get(&target).iter().map(|target| target.node) {
                prop_assert_eq!(slice.nodes.get(&node), map.nodes.get(&node));
            }
            for drive in map.drives.values().filter(|d| d.target == target) {
                prop_assert_eq!(slice.drives.get(&drive.id), Some(drive));
                for group in map.groups.values().filter(|g| g.slot_of(drive.id).is_some()) {
                    prop_assert_eq!(slice.groups.get(&group.id), Some(group));
                    prop_assert_eq!(slice.relocations.get(&group.id), map.relocations.get(&group.id));
                    for slot in &group.slots {
                        prop_assert_eq!(slice.drives.get(&slot.drive), map.drives.get(&slot.drive));
                        prop_assert_eq!(slice.drive_addr(slot.drive), map.drive_addr(slot.drive));
                    }
                    let volumes = map.volumes.values().filter(|v| groups_of(v).any(|id| id == group.id));
                    for volume in volumes {
                        prop_assert_eq!(slice.volumes.get(&volume.id), Some(volume));
                        let of_volume = |map: &FabricMap| -> Vec<_> {
                            map.sessions.values().filter(|s| s.volume == volume.id).cloned().collect()
                        };
                        prop_assert_eq!(of_volume(&slice), of_volume(&map));
                    }
                }
            }
        }

        /// The data path of a client begins at its volume and its session.
        #[test]
        fn a_client_finds_in_its_slice_what_the_map_says(first in steps(), slice in any_slice()) {
            let map = run(FabricMap::empty(FabricId(1)), &first);
            let sliced = map.slice(&slice);
            prop_assert_eq!(sliced.durations, map.durations);
            let Slice::Client { volumes, sessions } = &slice else { return Ok(()) };
            for id in volumes {
                prop_assert_eq!(sliced.volumes.get(id), map.volumes.get(id));
                for group in map.volumes.get(id).into_iter().flat_map(groups_of) {
                    prop_assert_eq!(sliced.groups.get(&group), map.groups.get(&group));
                    for slot in map.groups.get(&group).iter().flat_map(|g| &g.slots) {
                        prop_assert_eq!(sliced.drives.get(&slot.drive), map.drives.get(&slot.drive));
                        prop_assert_eq!(sliced.drive_addr(slot.drive), map.drive_addr(slot.drive));
                    }
                }
            }
            for id in sessions {
                prop_assert_eq!(sliced.sessions.get(id), map.sessions.get(id));
            }
            let others = sliced.sessions.values().filter(|s| !sessions.contains(&s.id));
            prop_assert_eq!(others.count(), 0, "it hears of no other client's session");
        }

        #[test]
        fn a_slice_takes_nothing_for_gone_that_it_does_not_list(first in steps(), slice in any_slice()) {
            let map = run(FabricMap::empty(FabricId(1)), &first);
            let sliced = map.slice(&slice);
            for id in 0..6 {
                let (group, volume, session) = (GroupId(id), VolumeId(id), SessionId(id));
                let is_whole = slice == Slice::Whole;
                prop_assert_eq!(sliced.was_removed(group), is_whole && map.was_removed(group));
                let of_listed = |v: &Volume| groups_of(v).any(|g| sliced.groups.contains_key(&g));
                let is_deleted = match (&slice, map.volumes.get(&volume)) {
                    (Slice::Whole, _) | (Slice::Target(_), None) => map.was_deleted(volume),
                    (Slice::Target(_), Some(listed)) => !of_listed(listed) && sliced.was_deleted(volume),
                    (Slice::Client { .. }, _) => false,
                };
                prop_assert_eq!(sliced.was_deleted(volume), is_deleted);
                if map.sessions.get(&session).is_some_and(|s| s.volume != volume) {
                    continue;
                }
                let is_forgotten = map.was_forgotten(session, volume)
                    && (is_whole || sliced.is_of_target() && sliced.volumes.contains_key(&volume));
                prop_assert_eq!(sliced.was_forgotten(session, volume), is_forgotten);
            }
        }
    }

    #[test]
    fn a_slice_covers_what_it_names() {
        let of = |volumes: &[u64], sessions: &[u64]| Slice::Client {
            volumes: volumes.iter().copied().map(VolumeId).collect(),
            sessions: sessions.iter().copied().map(SessionId).collect(),
        };
        assert!(Slice::Whole.covers(&of(&[1], &[2])) && of(&[1, 3], &[2]).covers(&of(&[1], &[2])));
        assert!(!of(&[1], &[2]).covers(&of(&[1, 3], &[2])) && !of(&[1], &[2]).covers(&Slice::Whole));
        assert!(of(&[1], &[2]).names_session(SessionId(2), VolumeId(1)));
        assert!(!of(&[], &[2]).names_session(SessionId(2), VolumeId(1)));
        assert!(!Slice::of_nothing().names_session(SessionId(2), VolumeId(1)));
    }

    /// Two nodes with a drive each, and a volume of one group whose only member is on the drive
    /// with this number.
    fn two_nodes(member: u64) -> FabricMap {
        let drive = |id: u64| Drive {
            id: DriveId(id.into()),
            node: NodeId(id as u32),
            target: TargetId(id as u32),
            device: crate::DeviceId(id.into()),
            pool: PoolId(1),
            path: "/dev/x".into(),
            capacity: BlockCount(7),
            state: DriveState::Active,
        };
        let node = |id: u32| Node { id: NodeId(id), name: format!("n{id}") };
        let target =
            |id: u32| Target { id: TargetId(id), node: NodeId(id), index: 0, addr: format!("h:{id}") };
        let slot = Slot { drive: DriveId(member.into()), role: Role::InSync, since: Epoch(member) };
        let group = Group {
            id: GroupId(3),
            pool: PoolId(1),
            epoch: Epoch(member),
            slots: vec![slot],
            floor: Default::default(),
        };
        let volume = Volume {
            id: VolumeId(4),
            name: "v".into(),
            pool: PoolId(1),
            size: BlockCount(1),
            protection: Protection::mirror(1),
            striping: Striping { unit_blocks: 1, width: 1, object_blocks: 1 },
            spans: vec![ObjectSpan { first: 0, count: 1, groups: vec![group.id].into() }],
            generation: Generation(1),
            state: VolumeState::Ready,
            thin: false,
            created_ms: 5,
            kind: crate::VolumeKind::Blocks,
        };
        let session = Session {
            number: 0,
            lane_slots: vec![],
            id: SessionId(5),
            slot: SessionSlot(1),
            volume: volume.id,
            mode: AttachMode::Shared,
            generation: Generation(1),
            client: "c".into(),
            state: SessionState::Open,
        };
        FabricMap {
            nodes: [1, 2].map(|id| (NodeId(id), node(id))).into(),
            targets: [1, 2].map(|id| (TargetId(id), target(id))).into(),
            drives: [1, 2].map(|id| (DriveId(id.into()), drive(id))).into(),
            groups: [(group.id, group)].into(),
            volumes: [(volume.id, volume)].into(),
            sessions: [(session.id, session)].into(),
            ..FabricMap::empty(FabricId(1))
        }
    }

    #[test]
    fn what_enters_or_leaves_a_slice_may_be_touched_by_no_change() {
        // The volume and its session are as they were; a group of the volume has got a member on node 2.
        let map = two_nodes(1);
        let moved = FabricMap { version: MapVersion(2), ..two_nodes(2) };
        let slice = Slice::Target(TargetId(2));
        let (was, is) = (map.slice(&slice), moved.slice(&slice));
        let delta = is.delta_from(&was);
        assert!(delta.put.iter().any(|p| matches!(p, Piece::Volume(_))), "{delta:?}");
        assert!(delta.put.iter().any(|p| matches!(p, Piece::Session(_))), "{delta:?}");
        assert!(slice.may_change(&was, &moved.delta_from(&map)));
    }
}
