//! Management operations: from a request of a tool to the answer.
//!
//! It owns the list and the changes that people ask for. A dry run goes through the same checks on the same
//! map and leaves out only the commit. What the answers look like is in `describe.rs` and `status.rs`.

use crate::error::{CHANGE_TOO_LARGE_HINT, CommitError, STORE_BEHIND_HINT, TOO_LARGE_HINT};
use crate::event::Subjects;
use crate::file_system::{FsWish, parts_of};
use crate::join::DEFAULT_POOL;
use crate::loss;
use crate::manager::{Manager, wall_clock_ms};
use crate::scrub_info::groups_of;
use crate::serve::UNKNOWN_HINT;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{
    ApiAnswer, ApiError, ApiRequest, ErrorCode, EventFilter, FailureDomain, SettingsInfo, SettingsWish,
};
use weft_layout::LayoutError;
use weft_membership::{
    BeginDelete, Change, ChangeSettings, CloseSession, Reason, Refusal, ResizeRequest, VolumeRequest,
};
use weft_membership::{apply, nearly_full, plan_resize, plan_volume};
use weft_rt::now;
use weft_types::limits::NOTE_CHARS_MAX;
use weft_types::{
    BLOCK_SIZE, Drive, DriveId, FabricMap, PoolId, Protection, SessionId, SessionState, Striping, Volume,
    VolumeId, VolumeState, with_causes,
};

/// How long a fabric may take to stop as a whole: its nodes have ten seconds to stop in order.
const FABRIC_STOP_MAX: Duration = Duration::from_secs(15);

pub(crate) type Outcome = Result<ApiAnswer, ApiError>;

/// A new volume, as a tool asks for it.
struct Wish {
    name: String,
    size_bytes: u64,
    protection: Protection,
    pool: Option<String>,
    stripe_unit_bytes: Option<u64>,
    width: Option<u32>,
    failure_domain: FailureDomain,
    thin: bool,
}

impl Manager {
    /// Carries out one management operation.
    ///
    /// # Errors
    /// With a code, what was found, and what to do; the fabric is then unchanged.
    pub(crate) async fn operate(self: &Rc<Self>, request: ApiRequest, who: &str) -> Outcome {
        if request.is_mutation() {
            tracing::info!(who, ?request, "operation");
        }
        match request {
            ApiRequest::NodeList {} => Ok(ApiAnswer::Nodes { nodes: self.node_infos() }),
            ApiRequest::NodeShow { name } => self.show_node(&name).await,
            ApiRequest::DriveList {} => {
                Ok(ApiAnswer::Drives { drives: self.drive_infos(&*self.usage().await) })
            }
            ApiRequest::DriveShow { id } => self.show_drive(&id).await,
            ApiRequest::DriveEvacuate { id, cancel, device, dry_run } => {
                let drives = find_drives(&self.map(), &id, device)?;
                self.evacuate(drives.into_iter().collect(), cancel, dry_run).await
            }
            ApiRequest::DriveReplace { id, with, device, dry_run } => {
                let map = self.map();
                let (from, to) = (find_drives(&map, &id, device)?, find_drives(&map, &with, device)?);
                self.replace_drives(&from, &to, dry_run).await
            }
            ApiRequest::DriveRestore { id, device, dry_run } => {
                self.restore_drives(&find_drives(&self.map(), &id, device)?, dry_run)?;
                self.show_drive(&id).await
            }
            ApiRequest::DriveRemove { id, device, dry_run } => {
                self.remove_drives(find_drives(&self.map(), &id, device)?, dry_run)
            }
            ApiRequest::NodeEvacuate { name, cancel, dry_run } => {
                let drives = self.drives_of(&name)?;
                self.evacuate(drives, cancel, dry_run).await
            }
            ApiRequest::NodeRemove { name, dry_run } => self.remove_node(&name, dry_run),
            ApiRequest::PoolList {} => Ok(ApiAnswer::Pools { pools: self.pool_infos(&*self.usage().await) }),
            create @ (ApiRequest::VolumeCreate { .. } | ApiRequest::FsCreate { .. }) => self.create(create),
            ApiRequest::VolumeList { all } => Ok(ApiAnswer::Volumes { volumes: self.volume_infos(all) }),
            ApiRequest::VolumeShow { name } => self.show_volume(&name),
            ApiRequest::VolumeResize { name, size_bytes, dry_run } => {
                self.resize_volume(&name, size_bytes, dry_run)
            }
            ApiRequest::VolumeDelete { name, force, dry_run } => self.delete_volume(&name, force, dry_run),
            ApiRequest::VolumeRepair { names, accept_data_loss, destroyed, older, dry_run } => {
                let wish = loss::Wish { names, accept_data_loss, destroyed, older, dry_run };
                self.repair_volumes(wish).await
            }
            ApiRequest::FsList {} => Ok(ApiAnswer::FileSystems { file_systems: self.file_system_infos() }),
            ApiRequest::FsShow { name } => self.show_file_system(&name),
            ApiRequest::FsGrow { name, dry_run } => self.grow_file_system(&name, dry_run),
            ApiRequest::FsDelete { name, force, dry_run } => self.delete_file_system(&name, force, dry_run),
            ApiRequest::VolumeHoldsData { name } => {
                let volume = find_volume(&self.map(), &name)?.id;
                Ok(ApiAnswer::HoldsData { holds: self.holds_data(volume).await })
            }
            ApiRequest::SessionEnd { session, dry_run } => self.end_session(SessionId(session), dry_run),
            ApiRequest::FabricCheck {} => Ok(ApiAnswer::Check(Box::new(self.check_fabric().await))),
            ApiRequest::SessionList { volume } => self.list_sessions(volume.as_deref()),
            ApiRequest::Status {} => Ok(ApiAnswer::Status(Box::new(self.status().await))),
            ApiRequest::Load {} => Ok(ApiAnswer::Load(Box::new(self.load().await))),
            ApiRequest::Events { after, limit, filter } => {
                Ok(ApiAnswer::Events { events: self.state.borrow().events.newest(after, limit, &filter) })
            }
            ApiRequest::EventAdd { text } => self.add_note(&text),
            ApiRequest::FabricStop {} => Ok(self.begin_stop()),
            ApiRequest::ScrubStart { volumes } => self.scrub_volumes(&volumes),
            ApiRequest::ScrubStop {} => self.answer_scrub(self.stop_scrub()),
            ApiRequest::ScrubStatus {} => self.answer_scrub(Ok(())),
            ApiRequest::ScrubSchedule { every_ms } => self.answer_scrub(self.schedule_scrub(every_ms)),
            ApiRequest::MapDiff { from, to } => {
                Ok(ApiAnswer::MapDiff { changes: weft_membership::diff(&from, &to) })
            }
            ApiRequest::MapGet {} => Ok(ApiAnswer::Map { map: Box::new((*self.map()).clone()) }),
            ApiRequest::Settings(wanted) => self.settings(wanted),
        }
    }

    /// Creates a volume or a file system.
    fn create(&self, request: ApiRequest) -> Outcome {
        match request {
            ApiRequest::VolumeCreate {
                name,
                size_bytes,
                protection,
                pool,
                stripe_unit_bytes,
                width,
                failure_domain,
                thin,
                dry_run,
            } => {
                let wish = Wish {
                    name,
                    size_bytes,
                    protection,
                    pool,
                    stripe_unit_bytes,
                    width,
                    failure_domain,
                    thin,
                };
                self.create_volume(wish, dry_run)
            }
            ApiRequest::FsCreate {
                name,
                protection,
                pool,
                shards,
                is_spread,
                stripe_unit_bytes,
                width,
                failure_domain,
                dry_run,
            } => {
                let wish = FsWish {
                    name,
                    protection,
                    pool,
                    shards,
                    is_spread,
                    stripe_unit_bytes,
                    width,
                    failure_domain,
                };
                self.create_file_system(wish, dry_run)
            }
            other => unreachable!("{other:?} creates nothing"),
        }
    }

    fn add_note(&self, text: &str) -> Outcome {
        let (text, length) = (text.trim(), text.trim().chars().count());
        if length == 0 || length > NOTE_CHARS_MAX || text.chars().any(char::is_control) {
            let found =
                if length > NOTE_CHARS_MAX { format!("{length} characters") } else { format!("{text:?}") };
            let error = format!("a note has 1 to {NOTE_CHARS_MAX} characters on one line, found {found}");
            return Err(ApiError::new(ErrorCode::Invalid, error).with_hint("say it in a line"));
        }
        self.tell("note", text.to_owned(), Subjects::default());
        Ok(self.newest_event())
    }

    fn show_volume(&self, name: &str) -> Outcome {
        let map = self.map();
        let volume = self.volume_info(&map, find_volume(&map, name)?);
        Ok(ApiAnswer::Volume { volume, warnings: vec![], dry_run: false })
    }

    /// The fabric is about to stop as a whole.
    fn begin_stop(&self) -> ApiAnswer {
        self.stops_until.set(Some(now() + FABRIC_STOP_MAX));
        let seconds = FABRIC_STOP_MAX.as_secs();
        let text = format!("all nodes are about to stop; for {seconds} s none leaves its groups for that");
        self.tell("fabric-stop", text, Subjects::default());
        self.newest_event()
    }

    fn newest_event(&self) -> ApiAnswer {
        ApiAnswer::Events { events: self.state.borrow().events.newest(0, Some(1), &EventFilter::default()) }
    }

    fn scrub_volumes(&self, names: &[String]) -> Outcome {
        let map = self.map();
        let volumes: Vec<&Volume> = match names.is_empty() {
            true => map.volumes.values().collect(),
            false => names.iter().map(|name| find_entry(&map, name)).collect::<Result<_, _>>()?,
        };
        let parts = volumes.into_iter().flat_map(|volume| parts_of(&map, volume));
        let groups: BTreeSet<_> = parts.flat_map(groups_of).collect();
        if groups.is_empty() {
            let hint = "create one: weft volume create --help";
            return Err(ApiError::new(ErrorCode::Refused, "the fabric has no volumes").with_hint(hint));
        }
        self.answer_scrub(self.start_scrub(groups))
    }

    fn answer_scrub(&self, done: Result<(), CommitError>) -> Outcome {
        done.map_err(|e| uncommitted(&self.map(), e))?;
        Ok(ApiAnswer::Scrub(Box::new(self.scrub_info())))
    }

    async fn show_node(self: &Rc<Self>, name: &str) -> Outcome {
        let usage = self.usage().await;
        let map = self.map();
        let node = map.node_named(name).ok_or_else(|| not_found("node", name, "weft node list"))?;
        let of_node = |d: &weft_api::DriveInfo| d.node == name;
        let drives = self.drive_infos(&usage).into_iter().filter(of_node).collect();
        Ok(ApiAnswer::Node { node: self.node_info(&map, node), drives })
    }

    async fn show_drive(self: &Rc<Self>, id: &str) -> Outcome {
        let usage = self.usage().await;
        let map = self.map();
        let drive = find_drive(&map, id)?;
        let infos = self.drive_infos(&usage);
        let Some(info) = infos.into_iter().find(|d| d.id == drive) else {
            return Err(not_found("drive", id, "weft drive list"));
        };
        Ok(ApiAnswer::Drive { drive: info, replicas: crate::describe::replicas(&map, drive) })
    }

    fn create_volume(&self, wish: Wish, dry_run: bool) -> Outcome {
        let map = self.map();
        let pool = self.pool_asked(&map, wish.pool.as_deref())?;
        let domain = domain_asked(wish.failure_domain);
        let mut request = VolumeRequest {
            name: wish.name.clone(),
            pool,
            size_bytes: wish.size_bytes,
            protection: wish.protection,
            striping: None,
            domain,
            thin: wish.thin,
            created_ms: wall_clock_ms(),
        };
        let unfit = self.unfit_drives();
        let plan = |request: &VolumeRequest| {
            let planned = plan_volume(&map, self.state.borrow().index.groups(), request, &unfit);
            planned.map_err(|refusal| self.refused_place(&map, refusal))
        };
        let mut change = plan(&request)?;
        if wish.stripe_unit_bytes.is_some() || wish.width.is_some() {
            // The default depends on the groups that the plan has found; what was named replaces its part.
            let Change::CreateVolume(planned) = &change else { unreachable!("a planned volume is one") };
            request.striping = Some(striping_asked(planned.striping, wish.stripe_unit_bytes, wish.width)?);
            change = plan(&request)?;
        }
        let map = self.carry_out(&change, dry_run)?;
        let volume = find_volume(&map, &wish.name)?;
        let warnings = self.warnings_about(&map, volume);
        Ok(ApiAnswer::Volume { volume: self.volume_info(&map, volume), warnings, dry_run })
    }

    /// The pool that something new is to draw from: the default one where nobody says which.
    pub(crate) fn pool_asked(&self, map: &FabricMap, name: Option<&str>) -> Result<PoolId, ApiError> {
        let name = name.unwrap_or(DEFAULT_POOL);
        map.pool_named(name).map(|pool| pool.id).ok_or_else(|| match map.pools.is_empty() {
            true => ApiError::new(ErrorCode::Refused, "there are no drives in the fabric yet")
                .with_hint("start a target with drives: weft node run"),
            false => not_found("pool", name, "weft pool list"),
        })
    }

    fn resize_volume(&self, name: &str, size_bytes: u64, dry_run: bool) -> Outcome {
        let map = self.map();
        let volume = find_volume(&map, name)?;
        let request = ResizeRequest { volume: volume.id, size_bytes, domain: domain_of(&map, volume) };
        let unfit = self.unfit_drives();
        let planned = plan_resize(&map, self.state.borrow().index.groups(), &request, &unfit);
        let map = match planned {
            Ok(change) => self.carry_out(&change, dry_run)?,
            // Said again after a lost answer: it is done.
            Err(Refusal::SameSize { .. }) => map.clone(),
            Err(refusal) => return Err(self.refused_place(&map, refusal)),
        };
        let volume = find_volume(&map, name)?;
        let warnings = self.warnings_about(&map, volume);
        Ok(ApiAnswer::Volume { volume: self.volume_info(&map, volume), warnings, dry_run })
    }

    /// Drives that no new group is placed on: those that do not serve, and those that are nearly full.
    pub(crate) fn unfit_drives(&self) -> BTreeSet<DriveId> {
        let state = self.state.borrow();
        let full = nearly_full(&state.map, &state.room());
        drop(state);
        self.absent_drives().union(&full).copied().collect()
    }

    /// A refusal; where there are too few drives, says which are left out because they are nearly full.
    pub(crate) fn refused_place(&self, map: &FabricMap, refusal: Refusal) -> ApiError {
        let is_short = matches!(
            refusal,
            Refusal::Layout(LayoutError::TooFewNodes { .. } | LayoutError::TooFewDrives { .. })
        );
        let error = self.refused_for_room(map, refusal);
        let full = nearly_full(map, &self.state.borrow().room());
        if !is_short || full.is_empty() {
            return error;
        }
        let named: Vec<String> = full.iter().map(|drive| drive.short().to_string()).collect();
        let message =
            format!("{}; drives that are nearly full are left out: {}", error.message, named.join(", "));
        ApiError::new(error.code, message)
            .with_hint("add drives, or discard or delete what is not needed: see `weft drive list`")
    }

    fn delete_volume(&self, name: &str, force: bool, dry_run: bool) -> Outcome {
        let map = self.map();
        let volume = find_volume(&map, name)?;
        let info = self.volume_info(&map, volume);
        if volume.state == VolumeState::Deleting {
            // Said again after a lost answer: it goes on by itself.
            return Ok(ApiAnswer::Deleting { volume: info, ended_sessions: vec![], dry_run });
        }
        let ended_sessions = self.ended_by_deletion(&map, volume.id);
        self.carry_out(&Change::BeginDelete(BeginDelete { volume: volume.id, force }), dry_run)?;
        Ok(ApiAnswer::Deleting { volume: info, ended_sessions, dry_run })
    }

    pub(crate) fn ended_by_deletion(&self, map: &FabricMap, volume: VolumeId) -> Vec<SessionId> {
        let change = Change::BeginDelete(BeginDelete { volume, force: true });
        match apply(map, &change) {
            Ok((_, Reason::VolumeDeleting { ended, .. })) => ended,
            _ => Vec::new(),
        }
    }

    fn list_sessions(&self, volume: Option<&str>) -> Outcome {
        let map = self.map();
        let only = volume.map(|name| find_entry(&map, name).map(|v| v.id)).transpose()?;
        Ok(ApiAnswer::Sessions { sessions: self.session_infos(only) })
    }

    /// Ends a session at once: its client is refused as soon as the targets have heard of it.
    fn end_session(&self, session: SessionId, dry_run: bool) -> Outcome {
        let map = self.map();
        let volume = map
            .sessions
            .get(&session)
            .map(|s| s.volume)
            .ok_or_else(|| not_found("session", &session.0.to_string(), "weft session list"))?;
        match self.carry_out(&Change::CloseSession(CloseSession { session }), dry_run) {
            // Said again after a lost answer: it is over.
            Err(error) if map.sessions[&session].state == SessionState::Open => return Err(error),
            _ => {}
        }
        Ok(ApiAnswer::Sessions { sessions: self.session_infos(Some(volume)) })
    }

    fn settings(&self, wanted: SettingsWish) -> Outcome {
        let SettingsWish { rebuild_after_ms, capacity_warning_percent, capacity_critical_percent } = wanted;
        let change = ChangeSettings { rebuild_after_ms, capacity_warning_percent, capacity_critical_percent };
        match self.commit(&Change::Settings(change)) {
            // Asked for what there is, or said again after a lost answer.
            Ok(_) | Err(CommitError::Refused(Refusal::SameSettings)) => {}
            Err(error) => return Err(uncommitted(&self.map(), error)),
        }
        Ok(ApiAnswer::Settings { settings: SettingsInfo::of(&self.map()) })
    }

    /// Commits the change; a dry run applies it to a copy of the map. Returns the map after it.
    pub(crate) fn carry_out(&self, change: &Change, dry_run: bool) -> Result<Rc<FabricMap>, ApiError> {
        if dry_run {
            let (map, _) = apply(&self.map(), change).map_err(|r| refused(&self.map(), r))?;
            return Ok(Rc::new(map));
        }
        self.commit(change).map_err(|e| uncommitted(&self.map(), e))?;
        Ok(self.map())
    }

    /// Drives that are known not to serve at present: no new group is put on them. Those of targets that have
    /// not found a restarted manager yet are not among them.
    pub(crate) fn absent_drives(&self) -> BTreeSet<DriveId> {
        let state = self.state.borrow();
        let is_absent = |d: &weft_types::Drive| state.members.get(&d.target).is_none_or(|m| m.lacks(d.id));
        state.map.drives.values().filter(|d| is_absent(d)).map(|d| d.id).collect()
    }
}

/// What must not hold two copies, as the rules have it.
pub(crate) fn domain_asked(asked: FailureDomain) -> weft_layout::FailureDomain {
    match asked {
        FailureDomain::Node => weft_layout::FailureDomain::Node,
        FailureDomain::Device => weft_layout::FailureDomain::Device,
        FailureDomain::Drive => weft_layout::FailureDomain::Drive,
    }
}

/// The layout that was planned, with the parts that were asked for in place of its own.
///
/// # Errors
/// If the stripe unit is no number of blocks.
pub(crate) fn striping_asked(
    planned: Striping,
    unit_bytes: Option<u64>,
    width: Option<u32>,
) -> Result<Striping, ApiError> {
    Ok(Striping {
        unit_blocks: unit_bytes.map(unit_blocks).transpose()?.unwrap_or(planned.unit_blocks),
        width: width.unwrap_or(planned.width),
        ..planned
    })
}

/// A stripe unit in blocks.
fn unit_blocks(bytes: u64) -> Result<u32, ApiError> {
    let blocks = bytes / BLOCK_SIZE as u64;
    match u32::try_from(blocks) {
        Ok(blocks) if bytes.is_multiple_of(BLOCK_SIZE as u64) => Ok(blocks),
        _ => Err(ApiError::new(
            ErrorCode::Invalid,
            format!("a stripe unit of {bytes} bytes: expected a power of two from 4096 to the object's size"),
        )),
    }
}

/// Copies of the volume share a node, or a device, only if it was created so.
pub(crate) fn domain_of(map: &FabricMap, volume: &Volume) -> weft_layout::FailureDomain {
    let groups = volume.groups().filter_map(|g| map.groups.get(g));
    groups.map(|g| weft_membership::domain_of(map, g)).max().unwrap_or_default()
}

/// The block volume with this name.
fn find_volume<'a>(map: &'a FabricMap, name: &str) -> Result<&'a Volume, ApiError> {
    match map.volume_named(name) {
        Some(listed) if listed.is_file_system() => {
            let text = format!("'{name}' is a file system, not a volume");
            let hint = format!("see it: weft fs show {name}");
            Err(ApiError::new(ErrorCode::NotFound, text).with_hint(hint))
        }
        listed => listed.ok_or_else(|| not_found("volume", name, "weft volume list")),
    }
}

/// The volume or the file system with this name.
pub(crate) fn find_entry<'a>(map: &'a FabricMap, name: &str) -> Result<&'a Volume, ApiError> {
    map.volume_named(name).ok_or_else(|| not_found("volume", name, "weft volume list"))
}

/// A drive by its identifier, or by the first digits where only one begins with them.
/// The drive that begins so, or, with `device`, all drives of its device in the order of their paths.
fn find_drives(map: &FabricMap, text: &str, device: bool) -> Result<Vec<DriveId>, ApiError> {
    let drive = find_drive(map, text)?;
    let place = map.drives.get(&drive).map(|d| (d.node, d.device));
    let is_meant = |d: &&Drive| d.id == drive || (device && Some((d.node, d.device)) == place);
    let mut drives: Vec<&Drive> = map.drives.values().filter(is_meant).collect();
    drives.sort_by_key(|d| (&d.path, d.id));
    Ok(drives.into_iter().map(|d| d.id).collect())
}

fn find_drive(map: &FabricMap, text: &str) -> Result<DriveId, ApiError> {
    let begins = |d: &&DriveId| d.to_string().starts_with(&text.to_ascii_lowercase());
    let found: Vec<&DriveId> = map.drives.keys().filter(begins).take(2).collect();
    match found[..] {
        [one] if !text.is_empty() => Ok(*one),
        [_, _] => Err(ApiError::new(ErrorCode::Invalid, format!("several drives begin with '{text}'"))
            .with_hint("give more digits")),
        _ => Err(not_found("drive", text, "weft drive list")),
    }
}

pub(crate) fn not_found(kind: &str, name: &str, list: &str) -> ApiError {
    let shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
    ApiError::new(ErrorCode::NotFound, format!("there is no {kind} '{shown}' in the fabric"))
        .with_hint(format!("see `{list}`"))
}

/// A refusal of the rules, in the terms of the interface. People know pools by name: `map` has it.
pub(crate) fn refused(map: &FabricMap, refusal: Refusal) -> ApiError {
    let code = match &refusal {
        Refusal::Unknown { .. } => ErrorCode::NotFound,
        Refusal::NameTaken { .. } => ErrorCode::Conflict,
        Refusal::Name { .. }
        | Refusal::Size { .. }
        | Refusal::TooLarge { .. }
        | Refusal::Protection { .. }
        | Refusal::RebuildAfter { .. }
        | Refusal::CapacityLevels { .. }
        | Refusal::Shards { .. }
        | Refusal::WiderThanPool { .. } => ErrorCode::Invalid,
        Refusal::Layout(LayoutError::TooFewNodes { .. } | LayoutError::TooFewDrives { .. }) => {
            ErrorCode::Refused
        }
        Refusal::Layout(_) => ErrorCode::Invalid,
        _ => ErrorCode::Refused,
    };
    let mut message = with_causes(&refusal);
    if let Refusal::NoSpace { pool, .. } | Refusal::WiderThanPool { pool, .. } = &refusal
        && let Some(known) = map.pools.get(pool)
    {
        message = message.replacen(&format!("pool {pool}"), &format!("pool '{}'", known.name), 1);
    }
    ApiError { code, message, hint: refusal.hint() }
}

fn uncommitted(map: &FabricMap, error: CommitError) -> ApiError {
    match error {
        CommitError::Refused(refusal) => refused(map, refusal),
        CommitError::TooLarge { .. } => {
            ApiError::new(ErrorCode::Refused, with_causes(&error)).with_hint(TOO_LARGE_HINT)
        }
        CommitError::ChangeTooLarge { .. } => {
            ApiError::new(ErrorCode::Refused, with_causes(&error)).with_hint(CHANGE_TOO_LARGE_HINT)
        }
        CommitError::StoreBehind { .. } => {
            ApiError::new(ErrorCode::Unavailable, with_causes(&error)).with_hint(STORE_BEHIND_HINT)
        }
        CommitError::Halted(_) => {
            ApiError::new(ErrorCode::Unavailable, with_causes(&error)).with_hint(UNKNOWN_HINT)
        }
    }
}
