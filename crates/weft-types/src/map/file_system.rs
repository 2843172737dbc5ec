//! File systems as entries of the table of volumes, and what tells them from block volumes.

use super::{FabricMap, ObjectSpan, SpanGroups, Volume};
use crate::{BlockCount, SessionId, TargetId, VolumeId};
use serde::{Deserialize, Serialize};

/// What an entry of the table of volumes is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VolumeKind<G = SpanGroups> {
    /// A block volume.
    #[default]
    Blocks,
    /// A block volume that holds the metadata of one shard of a file system. It is created and deleted with
    /// the file system, and users neither attach nor change it.
    System {
        /// The file system.
        file_system: VolumeId,
    },
    /// A file system.
    Files(FileSystem<G>),
}

/// What a file system has instead of spans.
///
/// An object of a file lives in `set[(hash(inode) + index) % set.len()]`, where the set is named by the
/// file's layout (`FileLayout` in weft-layout).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem<G = SpanGroups> {
    /// Lists of groups, from 1 to [`SETS_MAX`](crate::limits::SETS_MAX), each of 1 to
    /// [`SPAN_GROUPS_MAX`](crate::limits::SPAN_GROUPS_MAX). A set may name a group several times, which is
    /// its weight. Files name sets by their places, so a set never changes, and none is taken out; new files
    /// take the last one.
    pub sets: Vec<G>,
    /// Its shards of metadata; from 1 to [`SHARDS_MAX`](crate::limits::SHARDS_MAX). How many there are, and
    /// their system volumes, are fixed when the file system is created.
    pub shards: Vec<ListedShard>,
    /// Whether new directories lie in any of the shards; otherwise all lie in the first one. Fixed when the
    /// file system is created.
    pub is_spread: bool,
}

/// A shard of metadata, as the map lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedShard {
    /// Its system volume.
    pub volume: VolumeId,
    /// The target beside which it is served: no other one may attach the system volume. None before one is
    /// named. Whether that one serves already is not said here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<TargetId>,
}

impl ListedShard {
    /// The shard of a system volume, before a server is named.
    pub fn new(volume: VolumeId) -> ListedShard {
        ListedShard { volume, server: None }
    }
}

impl<G> FileSystem<G> {
    /// The system volumes of its shards, in the order of the shards.
    pub fn system_volumes(&self) -> impl Iterator<Item = VolumeId> + '_ {
        self.shards.iter().map(|shard| shard.volume)
    }
}

/// The name of the system volume of a shard: one that no user can give to a volume.
pub fn system_volume_name(file_system: &str, shard: usize) -> String {
    format!("{file_system}:{shard}")
}

impl<G> VolumeKind<G> {
    /// The kind with other groups in its sets, each made of what is there.
    pub(super) fn with_groups<H, E>(self, groups: impl Fn(G) -> Result<H, E>) -> Result<VolumeKind<H>, E> {
        Ok(match self {
            VolumeKind::Blocks => VolumeKind::Blocks,
            VolumeKind::System { file_system } => VolumeKind::System { file_system },
            VolumeKind::Files(files) => {
                let sets = files.sets.into_iter().map(groups).collect::<Result<_, _>>()?;
                VolumeKind::Files(FileSystem { sets, shards: files.shards, is_spread: files.is_spread })
            }
        })
    }

    /// The sets of a file system; none of a block volume.
    pub(super) fn sets(&self) -> impl Iterator<Item = &G> {
        match self {
            VolumeKind::Files(files) => files.sets.iter(),
            VolumeKind::Blocks | VolumeKind::System { .. } => [].iter(),
        }
    }

    pub(super) fn sets_mut(&mut self) -> impl Iterator<Item = &mut G> {
        match self {
            VolumeKind::Files(files) => files.sets.iter_mut(),
            VolumeKind::Blocks | VolumeKind::System { .. } => [].iter_mut(),
        }
    }
}

impl<G> Volume<G> {
    /// What a file system has instead of spans; nothing if it is a block volume.
    pub fn files(&self) -> Option<&FileSystem<G>> {
        match &self.kind {
            VolumeKind::Files(files) => Some(files),
            VolumeKind::Blocks | VolumeKind::System { .. } => None,
        }
    }

    /// Whether it is a file system: its objects are those of inodes.
    pub fn is_file_system(&self) -> bool {
        self.files().is_some()
    }

    /// The file system that it holds metadata of, if it is a system volume.
    pub fn system_of(&self) -> Option<VolumeId> {
        match self.kind {
            VolumeKind::System { file_system } => Some(file_system),
            VolumeKind::Blocks | VolumeKind::Files(_) => None,
        }
    }
}

impl Volume {
    /// Where its objects are: what differs only where its lists of groups do, or its system volumes.
    pub fn placed(&self) -> (&[ObjectSpan], &VolumeKind) {
        (&self.spans, &self.kind)
    }

    /// How many blocks of its pool it was promised. A file system has no size, and takes what is there; the
    /// size of its system volumes is what they may have, far above what they ever take.
    pub fn promised(&self) -> BlockCount {
        match self.kind {
            VolumeKind::Blocks => self.size,
            VolumeKind::System { .. } | VolumeKind::Files(_) => BlockCount(0),
        }
    }
}

impl FabricMap {
    /// The file systems, in the order of their numbers. Looks through all volumes.
    pub fn file_systems(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values().filter(|volume| volume.is_file_system())
    }

    /// Takes file systems out, with their system volumes and sessions.
    pub(super) fn leave_out_file_systems(&mut self) {
        let ids = self.volumes.values().filter(|volume| volume.kind != VolumeKind::Blocks).map(|v| v.id);
        let ids: Vec<VolumeId> = ids.collect();
        if ids.is_empty() {
            return;
        }
        let sessions = self.sessions.values().filter(|session| ids.contains(&session.volume));
        for id in sessions.map(|session| session.id).collect::<Vec<SessionId>>() {
            self.sessions.remove(&id);
        }
        for id in ids {
            self.volumes.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AttachMode, GroupTable, Session, SessionState, Striping, TableWindow, VolumeState};
    use super::*;
    use crate::{FabricId, Generation, GroupId, GroupTableId, PoolId, Protection, SessionSlot};
    use std::sync::Arc;

    fn volume(id: u64, spans: Vec<ObjectSpan>, kind: VolumeKind) -> Volume {
        Volume {
            id: VolumeId(id),
            name: format!("v{id}"),
            pool: PoolId(1),
            size: BlockCount(if spans.is_empty() { 0 } else { 9 }),
            protection: Protection::mirror(2),
            striping: Striping { unit_blocks: 1, width: 1, object_blocks: 16 },
            spans,
            generation: Generation(1),
            state: VolumeState::Ready,
            thin: true,
            created_ms: 5,
            kind,
        }
    }

    /// A file system, its system volume and a block volume, which share a table, and a session of each.
    fn map() -> FabricMap {
        let table = Arc::new(GroupTable::new(GroupTableId(9), &[1, 2, 3].map(GroupId)));
        let window = |first, count| {
            SpanGroups::of_table(&table, TableWindow { table: table.id, first, count }).expect("it has that")
        };
        let span = |first| vec![ObjectSpan { first: 0, count: 4, groups: window(first, 1) }];
        let sets = vec![window(1, 2), vec![GroupId(7), GroupId(8), GroupId(7)].into()];
        let files = FileSystem { sets, shards: vec![ListedShard::new(VolumeId(21))], is_spread: true };
        let system = VolumeKind::System { file_system: VolumeId(20) };
        let volumes = [
            volume(20, vec![], VolumeKind::Files(files)),
            volume(21, span(0), system),
            volume(22, span(2), VolumeKind::Blocks),
        ];
        let session = |volume: u64| Session {
            id: SessionId(volume + 10),
            slot: SessionSlot(volume as u16),
            volume: VolumeId(volume),
            mode: AttachMode::Shared,
            generation: Generation(1),
            client: "c".into(),
            state: SessionState::Open,
            number: 0,
            lane_slots: vec![],
        };
        FabricMap {
            group_tables: [(table.id, table)].into(),
            volumes: volumes.into_iter().map(|v| (v.id, v)).collect(),
            sessions: [20, 21, 22].map(|id| (SessionId(id + 10), session(id))).into_iter().collect(),
            ..FabricMap::empty(FabricId(1))
        }
    }

    #[test]
    fn the_groups_of_a_file_system_are_those_of_all_sets() {
        let map = map();
        let files = &map.volumes[&VolumeId(20)];
        assert_eq!(files.groups().map(|g| g.0).collect::<Vec<_>>(), [2, 3, 7, 8, 7]);
        assert!(files.has_group(GroupId(8)) && !files.has_group(GroupId(1)));
        assert_eq!(files.group_tables().map(|table| table.id.0).collect::<Vec<_>>(), [9]);
        assert_eq!(map.file_systems().map(|v| v.id.0).collect::<Vec<_>>(), [20]);
        assert_eq!(map.volumes[&VolumeId(21)].system_of(), Some(VolumeId(20)));
        let lists = map.group_lists();
        assert_eq!(lists.iter().filter(|list| list.volumes.contains(&files)).count(), 2);
    }

    #[test]
    fn documents_keep_file_systems_and_rise_in_their_schema() {
        let map = map();
        let text = serde_json::to_string(&map).expect("it serialises");
        assert_eq!(serde_json::from_str::<FabricMap>(&text).expect("it reads back"), map);
        assert!(text.contains("\"schema\":6,"), "{text}");
        let mut without = map;
        without.leave_out_file_systems();
        let text = serde_json::to_string(&without).expect("it serialises");
        assert!(text.contains("\"schema\":4,"), "{text}");
    }

    #[test]
    fn an_earlier_release_sees_no_file_system() {
        let map = map().for_earlier_release();
        assert_eq!(map.volumes.keys().map(|id| id.0).collect::<Vec<_>>(), [22]);
        assert_eq!(map.sessions.keys().map(|id| id.0).collect::<Vec<_>>(), [32]);
        assert!(map.group_tables.is_empty());
        assert_eq!(map.volumes[&VolumeId(22)].groups().map(|g| g.0).collect::<Vec<_>>(), [3]);
    }
}
