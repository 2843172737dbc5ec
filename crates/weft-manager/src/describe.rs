//! Nodes, drives, pools, volumes and sessions as tools show them. It reads the map and what is known of the
//! targets, and decides nothing.

use crate::manager::{Manager, State, wall_clock_ms};
use crate::member::Member;
use crate::status::Usage;
use std::collections::BTreeSet;
use weft_api::{
    CapacityAtCopies, DriveInfo, DriveUse, Health, NodeInfo, PoolInfo, Presence, ReplicaInfo, SessionInfo,
    TargetInfo, Timestamp, VolumeInfo,
};
use weft_layout::FailureDomain;
use weft_membership::free_blocks;
use weft_types::limits::COPIES_MAX;
use weft_types::{
    BLOCK_SIZE, BlockCount, DeviceId, Drive, DriveId, DriveState, FabricMap, Group, MapVersion, Node, NodeId,
    Protection, Role, SessionState, Target, TargetId, Volume, VolumeId,
};

/// Bytes of so many blocks; sizes in a map are far below what 64 bits hold.
pub(crate) fn bytes(blocks: BlockCount) -> u64 {
    blocks.bytes().unwrap_or(u64::MAX)
}

/// Bytes on drives that a volume was promised, with all that protects it.
pub(crate) fn raw_bytes(volume: &Volume) -> u64 {
    let blocks = volume.protection.raw_blocks(volume.promised());
    bytes(BlockCount(u64::try_from(blocks).unwrap_or(u64::MAX)))
}

/// A drive's part in each group that lists it.
pub(crate) fn replicas(map: &FabricMap, drive: DriveId) -> Vec<ReplicaInfo> {
    let listed = map.groups.values().filter_map(|g| Some((g.id, *g.slot_of(drive)?)));
    listed.map(|(group, slot)| ReplicaInfo { group, role: slot.role, since: slot.since }).collect()
}

/// A name from the map, or the number where the map has none.
pub(crate) fn name_or<T>(entry: Option<&T>, name: impl Fn(&T) -> &str, otherwise: impl ToString) -> String {
    entry.map_or_else(|| otherwise.to_string(), |e| name(e).to_owned())
}

impl State {
    /// Whether the drive's target is up and serves it.
    pub(crate) fn is_served(&self, drive: DriveId) -> bool {
        let target = self.map.target_of(drive);
        target.and_then(|target| self.members.get(&target)).is_some_and(|m| m.serves(drive))
    }

    /// In-sync members of the group that serve.
    pub(crate) fn good_copies(&self, group: &Group) -> usize {
        group.read_set().filter(|d| self.is_served(*d)).count()
    }

    /// Whether a node is still reporting that has an up-to-date copy of the group.
    pub(crate) fn is_awaited(&self, group: &Group) -> bool {
        let member = |d: DriveId| self.target_of(d).and_then(|t| self.members.get(&t));
        group.read_set().any(|d| member(d).is_some_and(Member::is_reporting))
    }

    /// How well one group is: unavailable without a copy that serves, or while a silent member holds up
    /// writes.
    pub(crate) fn group_health(&self, group: &Group) -> Health {
        if self.good_copies(group) == 0 && !self.is_awaited(group) {
            Health::Unavailable
        } else if !self.map.is_whole(group) || !group.write_set().all(|d| self.is_served(d)) {
            Health::Degraded
        } else {
            Health::Healthy
        }
    }

    pub(crate) fn volume_health(&self, map: &FabricMap, volume: &Volume) -> Health {
        let groups: BTreeSet<_> = volume.groups().collect();
        let groups = groups.into_iter().filter_map(|g| map.groups.get(g));
        groups.map(|g| self.group_health(g)).max().unwrap_or(Health::Healthy)
    }
}

impl State {
    /// The targets of a node that its process has, with what is known of them.
    pub(crate) fn own_members_of(&self, node: NodeId) -> impl Iterator<Item = (&Target, &Member)> {
        let listed =
            self.members_of(node).filter_map(|(id, member)| Some((self.map.targets.get(&id)?, member)));
        listed.filter(|(target, _)| !self.is_retired(target))
    }

    /// Whether a node takes part: any of its targets does.
    pub(crate) fn presence_of(&self, node: NodeId) -> Presence {
        let targets = self.own_members_of(node);
        let all = targets.map(|(target, member)| self.presence(target.id, member));
        all.min_by_key(|presence| *presence as u8).unwrap_or(Presence::Down)
    }

    /// Whether a target takes part, to the manager's knowledge. Costs its drives.
    fn presence(&self, target: TargetId, member: &Member) -> Presence {
        if member.is_up() {
            return Presence::Up;
        }
        let is_written = |drive| self.groups_written_by(drive).next().is_some();
        match member.suspicion {
            Some(_) if self.index.drives_of(target).any(is_written) => Presence::Suspect,
            Some(_) => Presence::Down,
            // It has not been seen since this manager started, or has just joined: wait and see.
            None => Presence::Suspect,
        }
    }

    fn target_info(&self, target: &Target, member: &Member) -> TargetInfo {
        TargetInfo {
            id: target.id,
            index: target.index,
            addr: target.addr.clone(),
            presence: self.presence(target.id, member),
            since: Timestamp::from_millis(member.since_ms),
            drives: self.index.drives_of(target.id).count(),
            // What concerns others only, it has adopted by having nothing to adopt.
            adopted: match member.is_at(self.map.version) {
                true => Some(self.map.version),
                false => Some(member.adopted).filter(|v| *v > MapVersion(0)),
            },
        }
    }
}

impl Manager {
    /// All nodes, by number.
    pub(crate) fn node_infos(&self) -> Vec<NodeInfo> {
        let map = self.map();
        map.nodes.values().map(|n| self.node_info(&map, n)).collect()
    }

    pub(crate) fn node_info(&self, map: &FabricMap, node: &Node) -> NodeInfo {
        let state = self.state.borrow();
        let targets: Vec<TargetInfo> = (state.own_members_of(node.id))
            .map(|(target, member)| state.target_info(target, member))
            .collect();
        let presence = targets.iter().map(|target| target.presence).min_by_key(|presence| *presence as u8);
        let presence = presence.unwrap_or(Presence::Down);
        // Since when it is as it is: since the last of its targets that is so became so.
        let since = targets.iter().filter(|t| t.presence == presence).map(|t| t.since).max();
        NodeInfo {
            id: node.id,
            name: node.name.clone(),
            addr: map.first_target_of(node.id).map_or_else(String::new, |target| target.addr.clone()),
            presence,
            since: since.unwrap_or(Timestamp::from_millis(wall_clock_ms())),
            drives: state.index.drives_on(node.id).count(),
            adopted: targets.iter().map(|target| target.adopted).min().flatten(),
            targets: if targets.len() > 1 { targets } else { vec![] },
        }
    }

    /// All drives, by node and path.
    pub(crate) fn drive_infos(&self, usage: &Usage) -> Vec<DriveInfo> {
        let map = self.map();
        let mut drives: Vec<DriveInfo> =
            map.drives.values().map(|d| self.drive_info(&map, d, usage)).collect();
        drives.sort_by(|a, b| (&a.node, &a.path, a.id).cmp(&(&b.node, &b.path, b.id)));
        drives
    }

    fn drive_info(&self, map: &FabricMap, drive: &Drive, usage: &Usage) -> DriveInfo {
        let replicas = replicas(map, drive.id);
        let in_role = |role| replicas.iter().filter(|r| r.role == role).count();
        DriveInfo {
            id: drive.id,
            node: name_or(map.nodes.get(&drive.node), |n| &n.name, drive.node),
            // The map keeps the path at which the drive was found first; its target knows where it is now.
            path: usage.drive(drive.id).map_or_else(|| drive.path.clone(), |d| d.path.clone()),
            device: Some(drive.device).filter(|device| *device != DeviceId::of_drive(drive.id)),
            pool: name_or(map.pools.get(&drive.pool), |p| &p.name, drive.pool),
            capacity_bytes: bytes(drive.capacity),
            state: drive.state,
            present: self.state.borrow().is_served(drive.id),
            usage: usage.drive(drive.id).map(|d| DriveUse {
                used_bytes: d.used_bytes,
                data_bytes_written: d.data_bytes_written,
                log_bytes_written: d.log_bytes_written,
                blocks_damaged: d.blocks_damaged,
                blocks_healed: d.blocks_healed,
            }),
            in_sync_groups: in_role(Role::InSync),
            syncing_groups: in_role(Role::Syncing),
            out_groups: in_role(Role::Out),
        }
    }

    /// All pools, by number.
    pub(crate) fn pool_infos(&self, usage: &Usage) -> Vec<PoolInfo> {
        let map = self.map();
        let info = |pool: &weft_types::Pool| {
            let drives: Vec<&Drive> = map.drives.values().filter(|d| d.pool == pool.id).collect();
            let active = drives.iter().filter(|d| d.state == DriveState::Active);
            let promised = map.volumes.values().filter(|v| v.pool == pool.id);
            let promised = promised.map(raw_bytes);
            let free = |copies| CapacityAtCopies {
                copies,
                free_bytes: bytes(free_blocks(
                    &map,
                    pool.id,
                    Protection::mirror(copies),
                    FailureDomain::Node,
                )),
            };
            let fill = self.state.borrow().fill_of(pool.id, usage);
            PoolInfo {
                id: pool.id,
                name: pool.name.clone(),
                drives: drives.len(),
                groups: map.groups.values().filter(|g| g.pool == pool.id).count(),
                raw_bytes: active.map(|d| bytes(d.capacity)).fold(0, u64::saturating_add),
                used_bytes: drives.iter().filter_map(|d| usage.drive(d.id)).map(|d| d.used_bytes).sum(),
                provisioned_bytes: promised.fold(0, u64::saturating_add),
                free: (1..=COPIES_MAX as u8).map(free).collect(),
                level: fill.level,
                fullest: fill.fullest,
            }
        };
        map.pools.values().map(info).collect()
    }

    /// All volumes of users by name, and with `all` those that hold metadata of file systems.
    pub(crate) fn volume_infos(&self, all: bool) -> Vec<VolumeInfo> {
        let map = self.map();
        let is_meant = |v: &&Volume| !v.is_file_system() && (all || v.system_of().is_none());
        let volumes = map.volumes.values().filter(is_meant);
        let mut volumes: Vec<VolumeInfo> = volumes.map(|v| self.volume_info(&map, v)).collect();
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        volumes
    }

    pub(crate) fn volume_info(&self, map: &FabricMap, volume: &Volume) -> VolumeInfo {
        let groups: BTreeSet<_> = volume.groups().collect();
        let open = |s: &&weft_types::Session| s.volume == volume.id && s.state == SessionState::Open;
        VolumeInfo {
            id: volume.id,
            name: volume.name.clone(),
            pool: name_or(map.pools.get(&volume.pool), |p| &p.name, volume.pool),
            size_bytes: bytes(volume.size),
            protection: volume.protection,
            copies: volume.protection.members() as u8,
            stripe_unit_bytes: u64::from(volume.striping.unit_blocks) * BLOCK_SIZE as u64,
            width: volume.striping.width,
            object_bytes: u64::from(volume.striping.object_blocks) * BLOCK_SIZE as u64,
            thin: volume.thin,
            state: volume.state,
            generation: volume.generation,
            created: Timestamp::from_millis(volume.created_ms),
            health: self.state.borrow().volume_health(map, volume),
            groups: groups.len(),
            sessions: map.sessions.values().filter(open).count(),
            file_system: volume.system_of().map(|id| name_or(map.volumes.get(&id), |v| &v.name, id)),
        }
    }

    /// Sessions by number, all or those of one volume.
    pub(crate) fn session_infos(&self, only: Option<VolumeId>) -> Vec<SessionInfo> {
        let map = self.map();
        let state = self.state.borrow();
        let wanted = map.sessions.values().filter(|s| only.is_none_or(|volume| s.volume == volume));
        let info = |s: &weft_types::Session| {
            let idle_ms = u64::try_from(state.touched_at(s.id).elapsed().as_millis()).unwrap_or(u64::MAX);
            SessionInfo {
                id: s.id,
                volume: name_or(map.volumes.get(&s.volume), |v| &v.name, s.volume),
                mode: s.mode,
                client: s.client.clone(),
                state: s.state,
                generation: s.generation,
                idle_ms: (s.state == SessionState::Open).then_some(idle_ms),
                lanes: s.lanes(),
            }
        };
        wanted.map(info).collect()
    }
}
