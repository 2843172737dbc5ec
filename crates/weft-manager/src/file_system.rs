//! File systems, as people ask for them: create, list, show, grow, delete.
//!
//! It owns who has to know file systems before there is one. What a file system begins as is decided in
//! `weft-membership`; its blocks are dropped, and its sessions swept, as those of volumes are.

use crate::describe::name_or;
use crate::manager::{Manager, State, wall_clock_ms};
use crate::operate::{Outcome, domain_asked, domain_of, not_found, striping_asked};
use std::collections::BTreeSet;
use weft_api::{
    ApiAnswer, ApiError, ErrorCode, FailureDomain, FileSystemInfo, Health, ShardServing, Timestamp,
};
use weft_membership::{
    BeginDelete, Change, FileSystemRequest, Refusal, SHARDS_DEFAULT, nearly_full, plan_file_set,
    plan_file_system,
};
use weft_types::{
    BLOCK_SIZE, FabricMap, FileSystem, ListedShard, Protection, SessionState, TargetId, Volume, VolumeId,
    VolumeState,
};
use weft_wire::control::UnservedShard;

/// A new file system, as a tool asks for it.
pub(crate) struct FsWish {
    pub(crate) name: String,
    pub(crate) protection: Protection,
    pub(crate) pool: Option<String>,
    pub(crate) shards: Option<u32>,
    pub(crate) is_spread: bool,
    pub(crate) stripe_unit_bytes: Option<u64>,
    pub(crate) width: Option<u32>,
    pub(crate) failure_domain: FailureDomain,
}

impl Manager {
    pub(crate) fn create_file_system(&self, wish: FsWish, dry_run: bool) -> Outcome {
        self.check_all_know(wish.is_spread)?;
        if wish.is_spread && wish.shards == Some(1) {
            let text = "directories are to lie in several shards, and the file system has one";
            let hint = "ask for more shards, or for directories in one";
            return Err(ApiError::new(ErrorCode::Invalid, text.to_owned()).with_hint(hint));
        }
        let map = self.map();
        let mut request = FileSystemRequest {
            name: wish.name.clone(),
            pool: self.pool_asked(&map, wish.pool.as_deref())?,
            protection: wish.protection,
            striping: None,
            domain: domain_asked(wish.failure_domain),
            shards: wish.shards.map_or(SHARDS_DEFAULT, |shards| shards as usize),
            is_spread: wish.is_spread,
            created_ms: wall_clock_ms(),
        };
        let unfit = self.unfit_drives();
        let plan = |request: &FileSystemRequest| {
            let planned = plan_file_system(&map, self.state.borrow().index.groups(), request, &unfit);
            planned.map_err(|refusal| self.refused_place(&map, refusal))
        };
        let mut change = plan(&request)?;
        if wish.stripe_unit_bytes.is_some() || wish.width.is_some() {
            // The default depends on the groups that the plan has found; what was named replaces its part.
            let Change::CreateFileSystem(planned) = &change else { unreachable!("it was planned as one") };
            request.striping = Some(striping_asked(planned.striping, wish.stripe_unit_bytes, wish.width)?);
            change = plan(&request)?;
        }
        let map = self.carry_out(&change, dry_run)?;
        let listed = find_file_system(&map, &wish.name)?;
        let warnings = self.warnings_about(&map, listed);
        Ok(ApiAnswer::FileSystem { file_system: self.file_system_info(&map, listed), warnings, dry_run })
    }

    pub(crate) fn show_file_system(&self, name: &str) -> Outcome {
        let map = self.map();
        let file_system = self.file_system_info(&map, find_file_system(&map, name)?);
        Ok(ApiAnswer::FileSystem { file_system, warnings: vec![], dry_run: false })
    }

    pub(crate) fn grow_file_system(&self, name: &str, dry_run: bool) -> Outcome {
        let map = self.map();
        let listed = find_file_system(&map, name)?;
        let (id, domain) = (listed.id, domain_of(&map, listed));
        let (absent, full) = (self.absent_drives(), nearly_full(&map, &self.state.borrow().room()));
        let planned = plan_file_set(&map, self.state.borrow().index.groups(), (id, domain), &absent, &full);
        let (map, said) = match planned {
            Ok(change) => (self.carry_out(&change, dry_run)?, None),
            // Said again after a lost answer, it is done.
            Err(refusal @ Refusal::NothingToAdd { .. }) => (map.clone(), Some(refusal.to_string())),
            Err(refusal) => return Err(self.refused_place(&map, refusal)),
        };
        let listed = find_file_system(&map, name)?;
        let warnings = said.into_iter().chain(self.warnings_about(&map, listed)).collect();
        Ok(ApiAnswer::FileSystem { file_system: self.file_system_info(&map, listed), warnings, dry_run })
    }

    pub(crate) fn delete_file_system(&self, name: &str, force: bool, dry_run: bool) -> Outcome {
        let map = self.map();
        let listed = find_file_system(&map, name)?;
        let file_system = self.file_system_info(&map, listed);
        let mut ended_sessions = Vec::new();
        // Said again after a lost answer, it goes on by itself.
        if listed.state == VolumeState::Ready {
            ended_sessions = self.ended_by_deletion(&map, listed.id);
            self.carry_out(&Change::BeginDelete(BeginDelete { volume: listed.id, force }), dry_run)?;
        }
        Ok(ApiAnswer::FileSystemDeleting { file_system, ended_sessions, dry_run })
    }

    /// All file systems, by name.
    pub(crate) fn file_system_infos(&self) -> Vec<FileSystemInfo> {
        let map = self.map();
        let mut infos: Vec<_> = map.file_systems().map(|v| self.file_system_info(&map, v)).collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    }

    fn file_system_info(&self, map: &FabricMap, volume: &Volume) -> FileSystemInfo {
        let open = |s: &&weft_types::Session| s.volume == volume.id && s.state == SessionState::Open;
        let groups: BTreeSet<_> = volume.groups().collect();
        FileSystemInfo {
            id: volume.id,
            name: volume.name.clone(),
            pool: name_or(map.pools.get(&volume.pool), |p| &p.name, volume.pool),
            protection: volume.protection,
            copies: volume.protection.members() as u8,
            stripe_unit_bytes: u64::from(volume.striping.unit_blocks) * BLOCK_SIZE as u64,
            width: volume.striping.width,
            object_bytes: u64::from(volume.striping.object_blocks) * BLOCK_SIZE as u64,
            shards: volume.files().map_or(0, |files| files.shards.len()),
            is_spread: volume.files().is_some_and(|files| files.is_spread),
            servers: volume.files().map_or_else(Vec::new, |files| self.servers_of(map, files)),
            sets: volume.files().map_or_else(Vec::new, |f| f.sets.iter().map(|set| set.len()).collect()),
            state: volume.state,
            generation: volume.generation,
            created: Timestamp::from_millis(volume.created_ms),
            health: self.file_system_health(map, volume),
            groups: groups.len(),
            sessions: map.sessions.values().filter(open).count(),
        }
    }

    /// The worst of its files and its metadata.
    fn file_system_health(&self, map: &FabricMap, volume: &Volume) -> Health {
        let state = self.state.borrow();
        let parts = parts_of(map, volume).map(|part| state.volume_health(map, part));
        let is_unserved = state.unserved_shards().any(|shard| shard.file_system.id == volume.id);
        let shards = if is_unserved { Health::Unavailable } else { Health::Healthy };
        parts.chain([shards]).max().unwrap_or(Health::Healthy)
    }

    /// Who serves the shards of a file system.
    fn servers_of(&self, map: &FabricMap, files: &FileSystem) -> Vec<ShardServing> {
        let state = self.state.borrow();
        let open = map.sessions.values().filter(|session| session.state == SessionState::Open);
        let attached: BTreeSet<VolumeId> = open.map(|session| session.volume).collect();
        let unserved: BTreeSet<VolumeId> = state.unserved_shards().map(|shard| shard.volume.id).collect();
        let serving = |shard: &ListedShard| ShardServing {
            server: shard.server.map(|server| map.title_of(server)),
            serves: attached.contains(&shard.volume) && !unserved.contains(&shard.volume),
        };
        files.shards.iter().map(serving).collect()
    }

    /// Refuses the first file system, and the first one with directories in several shards (`spread`), as
    /// long as a target has not said that it knows such: it could not read its slice of the map. Once there is
    /// one, no such target joins (`join.rs`).
    fn check_all_know(&self, spread: bool) -> Result<(), ApiError> {
        let map = self.map();
        let is_such = |volume: &Volume| !spread || volume.files().is_some_and(|files| files.is_spread);
        if map.file_systems().any(is_such) {
            return Ok(());
        }
        let state = self.state.borrow();
        let knows = |target: &weft_types::TargetId| {
            let member = state.members.get(target).filter(|m| m.incarnation.is_some());
            member.is_some_and(|m| m.knows_file_systems && (m.knows_spread || !spread))
        };
        let what = match spread {
            true => "file systems with directories in several shards",
            false => "file systems",
        };
        let Some(older) = map.targets.keys().find(|target| !knows(target)) else { return Ok(()) };
        let has_joined = state.members.get(older).is_some_and(|m| m.incarnation.is_some());
        let title = map.title_of(*older);
        let (text, hint) = match has_joined {
            true => (
                format!("{title} runs an older release, which does not know {what}"),
                "upgrade all nodes first: `weft node list` names them",
            ),
            false => (
                format!("{title} has not said yet whether its release knows {what}"),
                "start it, or remove it with `weft node remove` if it is gone for good",
            ),
        };
        Err(ApiError::new(ErrorCode::Refused, text).with_hint(hint))
    }
}

/// A shard that its server cannot open.
pub(crate) struct Unserved<'a> {
    pub(crate) file_system: &'a Volume,
    /// Its own volume.
    pub(crate) volume: &'a Volume,
    pub(crate) server: TargetId,
    /// What the server has said.
    pub(crate) said: &'a UnservedShard,
}

impl State {
    /// Shards that the servers that are named for them could not open when they were asked last.
    pub(crate) fn unserved_shards(&self) -> impl Iterator<Item = Unserved<'_>> {
        let said = self.usage.iter().flat_map(|(_, usage)| usage.unserved());
        said.filter_map(|(server, said)| {
            let file_system = self.map.volumes.get(&said.file_system)?;
            let shard = file_system.files()?.shards.get(usize::from(said.shard))?;
            let volume = self.map.volumes.get(&shard.volume)?;
            let is_named = shard.server == Some(*server);
            is_named.then_some(Unserved { file_system, volume, server: *server, said })
        })
    }
}

/// A file system and its system volumes, as far as they are listed; or a volume alone.
pub(crate) fn parts_of<'a>(map: &'a FabricMap, volume: &'a Volume) -> impl Iterator<Item = &'a Volume> {
    let shards = volume.files().into_iter().flat_map(|files| &files.shards);
    std::iter::once(volume).chain(shards.filter_map(|shard| map.volumes.get(&shard.volume)))
}

/// The file system with this name.
fn find_file_system<'a>(map: &'a FabricMap, name: &str) -> Result<&'a Volume, ApiError> {
    match map.volume_named(name) {
        Some(listed) if listed.is_file_system() => Ok(listed),
        Some(listed) if listed.system_of().is_some() => {
            let text = format!("'{name}' is a system volume of a file system");
            Err(ApiError::new(ErrorCode::NotFound, text).with_hint("see them all: weft fs list"))
        }
        Some(_) => {
            let text = format!("'{name}' is a volume, not a file system");
            let hint = format!("see it: weft volume show {name}");
            Err(ApiError::new(ErrorCode::NotFound, text).with_hint(hint))
        }
        None => Err(not_found("file system", name, "weft fs list")),
    }
}
