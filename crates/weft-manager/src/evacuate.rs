//! Emptying, replacing and forgetting drives and nodes, as people ask for it.
//!
//! It owns the checks before anything begins: a request that could leave data with fewer copies, or that
//! could never end, is refused with what is in the way. The moves themselves are the plan's
//! (`weft-membership`), group by group.

use crate::capacity::size;
use crate::manager::Manager;
use crate::operate::{Outcome, not_found, refused};
use crate::status::Usage;
use std::collections::BTreeSet;
use std::rc::Rc;
use weft_api::{ApiAnswer, ApiError, CopyMove, ErrorCode, Evacuation};
use weft_layout::FailureDomain;
use weft_membership::{
    BeginRelocation, Change, DrainDrive, RemoveDrive, RemoveNode, Replace, RestoreDrive, apply, domain_of,
    plan_evacuation,
};
use weft_types::{DriveId, DriveState, FabricMap, GroupId, Role, Version};

/// Groups that are named in a refusal; the others are counted.
const NAMED: usize = 4;

impl Manager {
    /// The drives of a node.
    pub(crate) fn drives_of(&self, node: &str) -> Result<BTreeSet<DriveId>, ApiError> {
        let map = self.map();
        let id = map.node_named(node).ok_or_else(|| not_found("node", node, "weft node list"))?.id;
        Ok(map.drives.values().filter(|d| d.node == id).map(|d| d.id).collect())
    }

    /// Begins to empty drives, or lets them take part again.
    pub(crate) async fn evacuate(
        self: &Rc<Self>,
        drives: BTreeSet<DriveId>,
        cancel: bool,
        dry_run: bool,
    ) -> Outcome {
        let usage = self.usage().await;
        let mut copies = Vec::new();
        if !cancel {
            copies = self.plan(&drives)?;
            self.check_room(&drives, &usage)?;
        }
        let map = self.map();
        let is_asked = |state| match state {
            DriveState::Active => !cancel,
            DriveState::Draining => cancel,
            DriveState::Failed | DriveState::Destroyed => false,
        };
        // Said again after a lost answer, there is nothing left to do.
        for drive in map.drives.values().filter(|d| drives.contains(&d.id) && is_asked(d.state)) {
            self.carry_out(&Change::DrainDrive(DrainDrive { drive: drive.id, on: !cancel }), dry_run)?;
        }
        self.changed.notify_all();
        Ok(self.evacuation(&drives, copies, &usage, cancel, dry_run))
    }

    /// Has drives take over from others, one for one, in every group.
    pub(crate) async fn replace_drives(
        self: &Rc<Self>,
        from: &[DriveId],
        to: &[DriveId],
        dry_run: bool,
    ) -> Outcome {
        if to.len() < from.len() {
            let text =
                format!("a device of {} parts cannot take the place of one of {}", to.len(), from.len());
            return Err(ApiError::new(ErrorCode::Refused, text).with_hint(
                "format it with as many parts, or empty the old one: `weft drive evacuate --device`",
            ));
        }
        let usage = self.usage().await;
        let mut map = (*self.map()).clone();
        let (mut changes, mut copies) = (Vec::new(), Vec::new());
        let mut held_by_any = false;
        for (&from, &to) in from.iter().zip(to) {
            self.check_replacement(from, to)?;
            let held = held_by(&map, from);
            held_by_any |= !held.is_empty();
            self.check_floors(&map, &held, to)?;
            for change in replacement(&map, &held, from, to) {
                (map, _) = apply(&map, &change).map_err(|r| refused(&map, r))?;
                changes.push(change);
            }
            copies.extend(held.into_iter().map(|group| CopyMove { group, from, to }));
        }
        if !held_by_any {
            let names: Vec<String> = from.iter().map(|drive| drive.short()).collect();
            return Err(ApiError::new(
                ErrorCode::Refused,
                format!("drive {} holds no copy", names.join(", ")),
            )
            .with_hint(format!("`weft drive remove {}` forgets it", names[0])));
        }
        let from: BTreeSet<DriveId> = from.iter().copied().collect();
        self.check_room(&from, &usage)?;
        if !dry_run {
            for change in &changes {
                self.carry_out(change, false)?;
            }
        }
        self.changed.notify_all();
        Ok(self.evacuation(&from, copies, &usage, false, dry_run))
    }

    fn check_replacement(&self, from: DriveId, to: DriveId) -> Result<(), ApiError> {
        if from == to {
            return Err(ApiError::new(ErrorCode::Invalid, "a drive cannot take its own place")
                .with_hint("give the new drive's identifier: see `weft drive list`"));
        }
        if self.absent_drives().contains(&to) {
            let text = format!("drive {} is not in service", to.short());
            return Err(ApiError::new(ErrorCode::Refused, text).with_hint("see `weft drive show` for why"));
        }
        Ok(())
    }

    /// Refuses a drive whose target does not know the floors of groups, if one of these has one.
    fn check_floors(&self, map: &FabricMap, held: &[GroupId], to: DriveId) -> Result<(), ApiError> {
        let floor = held.iter().find(|g| map.groups[*g].floor > Version::ZERO);
        match floor.filter(|_| self.state.borrow().without_floors().contains(&to)) {
            None => Ok(()),
            Some(group) => {
                let text = format!(
                    "drive {} cannot have a copy of group {group}, which has forgotten discards: the target of \
                     the drive is of an older release that does not know floors",
                    to.short()
                );
                Err(ApiError::new(ErrorCode::Refused, text)
                    .with_hint("upgrade the node of the drive, and restart its target"))
            }
        }
    }

    /// Lets failed drives take part again. A target that has met an error on a drive never serves it again
    /// before it was restarted; so one that serves it has opened it anew, and has found its log and its
    /// labels sound. Of several drives, those that are being emptied because of the others take part again as
    /// well.
    pub(crate) fn restore_drives(&self, drives: &[DriveId], dry_run: bool) -> Result<(), ApiError> {
        let absent = self.absent_drives();
        if let Some(drive) = drives.iter().find(|drive| absent.contains(drive)) {
            let text = format!("drive {} is not served by its target", drive.short());
            let hint = "see why in the log of its node; once the drive is sound, restart the node's target";
            return Err(ApiError::new(ErrorCode::Refused, text).with_hint(hint));
        }
        let map = self.map();
        let state = |drive: &DriveId| map.drives.get(drive).map(|d| d.state);
        let is_one = drives.len() == 1;
        for &drive in drives {
            let change = match state(&drive) {
                Some(DriveState::Draining) if !is_one => Change::DrainDrive(DrainDrive { drive, on: false }),
                Some(DriveState::Active) if !is_one => continue,
                _ => Change::RestoreDrive(RestoreDrive { drive }),
            };
            self.carry_out(&change, dry_run)?;
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Forgets drives that hold no copy: all of them, or none.
    pub(crate) fn remove_drives(&self, drives: Vec<DriveId>, dry_run: bool) -> Outcome {
        self.refuse_if_served(&drives.iter().copied().collect())?;
        let mut map = (*self.map()).clone();
        let changes: Vec<Change> =
            drives.iter().map(|drive| Change::RemoveDrive(RemoveDrive { drive: *drive })).collect();
        for change in &changes {
            (map, _) = apply(&map, change).map_err(|r| refused(&map, r))?;
        }
        for change in changes.iter().filter(|_| !dry_run) {
            self.carry_out(change, false)?;
        }
        Ok(ApiAnswer::Removed { node: None, drives, dry_run })
    }

    /// Forgets a node and its drives, none of which holds a copy.
    pub(crate) fn remove_node(&self, name: &str, dry_run: bool) -> Outcome {
        let drives = self.drives_of(name)?;
        let mut map = (*self.map()).clone();
        let node = map.node_named(name).expect("its drives were found").id;
        if self.state.borrow().members_of(node).any(|(_, member)| member.is_up()) {
            let text = format!("the target of node '{name}' is up: it would join again at once");
            return Err(ApiError::new(ErrorCode::Refused, text)
                .with_hint(format!("stop it first, for a local fabric with `weft node stop {name}`")));
        }
        let remove = |drive: &DriveId| Change::RemoveDrive(RemoveDrive { drive: *drive });
        let mut changes: Vec<Change> = drives.iter().map(remove).collect();
        changes.push(Change::RemoveNode(RemoveNode { node }));
        // All or nothing: the first that does not fit refuses the whole.
        for change in &changes {
            (map, _) = apply(&map, change).map_err(|r| refused(&map, r))?;
        }
        if !dry_run {
            for change in &changes {
                self.carry_out(change, false)?;
            }
        }
        Ok(ApiAnswer::Removed { node: Some(name.to_owned()), drives: drives.into_iter().collect(), dry_run })
    }

    /// A drive that is active and served would be added again at its target's next start.
    fn refuse_if_served(&self, drives: &BTreeSet<DriveId>) -> Result<(), ApiError> {
        let map = self.map();
        let absent = self.absent_drives();
        let is_served = |d: &DriveId| {
            !absent.contains(d) && map.drives.get(d).is_some_and(|d| d.state == DriveState::Active)
        };
        match drives.iter().find(|d| is_served(d)) {
            Some(drive) => {
                let text = format!("drive {} takes part in the fabric", drive.short());
                Err(ApiError::new(ErrorCode::Refused, text)
                    .with_hint(format!("empty it first: `weft drive evacuate {}`", drive.short())))
            }
            None => Ok(()),
        }
    }

    /// Where the drives' copies would go.
    fn plan(&self, drives: &BTreeSet<DriveId>) -> Result<Vec<CopyMove>, ApiError> {
        let map = self.map();
        let planned = {
            let state = self.state.borrow();
            plan_evacuation(&map, state.index.groups(), drives, &state.observations(self.started))
        };
        match planned {
            Ok(moves) => {
                let copy = |x: BeginRelocation| CopyMove { group: x.group, from: x.from, to: x.to };
                Ok(moves.into_iter().map(copy).collect())
            }
            Err(stuck) => {
                let names: Vec<String> = stuck.iter().take(NAMED).map(|(g, _)| g.to_string()).collect();
                let text = format!(
                    "no other drive can take {} copies: those of groups {}{}",
                    stuck.len(),
                    names.join(", "),
                    if stuck.len() > NAMED { ", ..." } else { "" }
                );
                let hint = "a copy needs a drive in service of the same pool that is not nearly full, on a node without \
                            another copy of the group: add a drive or a node, or bring one back";
                Err(ApiError::new(ErrorCode::Refused, text).with_hint(hint))
            }
        }
    }

    /// Checks that what the drives hold fits on the others.
    fn check_room(&self, drives: &BTreeSet<DriveId>, usage: &Usage) -> Result<(), ApiError> {
        let (used, free) = self.room(drives, usage);
        if used <= free {
            return Ok(());
        }
        let (used, free) = (size(used), size(free));
        let text = format!("the drives hold {used}, the others of their pools have {free} free");
        let hint = "add a drive, or delete or discard what is not needed";
        Err(ApiError::new(ErrorCode::Refused, text).with_hint(hint))
    }

    /// Bytes that these drives hold, and that are free on the active drives beside them, as far as targets
    /// answer.
    fn room(&self, drives: &BTreeSet<DriveId>, usage: &Usage) -> (u64, u64) {
        let map = self.map();
        let used = drives.iter().filter_map(|d| usage.drive(*d)).map(|d| d.used_bytes).sum();
        let pools: BTreeSet<_> = drives.iter().filter_map(|d| map.drives.get(d)).map(|d| d.pool).collect();
        let others = map.drives.values().filter(|d| pools.contains(&d.pool) && !drives.contains(&d.id));
        let active = others.filter(|d| d.state == DriveState::Active).filter_map(|d| usage.drive(d.id));
        let free = active.map(|d| d.capacity_bytes.saturating_sub(d.used_bytes)).sum();
        (used, free)
    }

    fn evacuation(
        &self,
        drives: &BTreeSet<DriveId>,
        copies: Vec<CopyMove>,
        usage: &Usage,
        cancelled: bool,
        dry_run: bool,
    ) -> ApiAnswer {
        let (used_bytes, free_bytes) = self.room(drives, usage);
        let infos = self.drive_infos(usage).into_iter().filter(|d| drives.contains(&d.id)).collect();
        ApiAnswer::Evacuation(Evacuation {
            drives: infos,
            copies,
            used_bytes,
            free_bytes,
            cancelled,
            dry_run,
        })
    }
}

/// The groups that have a member on a drive which is to stay there.
fn held_by(map: &FabricMap, drive: DriveId) -> Vec<GroupId> {
    map.groups.values().filter(|g| map.staying(g).any(|d| d == drive)).map(|g| g.id).collect()
}

/// What has one drive take over from another in these groups.
fn replacement(map: &FabricMap, held: &[GroupId], from: DriveId, to: DriveId) -> Vec<Change> {
    // On the same device any group's members stay as far apart as they are, on the same node at least by
    // device.
    let nearest = match map.drives.get(&from).zip(map.drives.get(&to)) {
        Some((a, b)) if (a.node, a.device) == (b.node, b.device) => FailureDomain::Drive,
        Some((a, b)) if a.node == b.node => FailureDomain::Device,
        _ => FailureDomain::Node,
    };
    let mut changes = Vec::new();
    if !held.is_empty() && map.drives.get(&from).is_some_and(|d| d.state == DriveState::Active) {
        // First: a member that passes from a drive which takes part is called off.
        changes.push(Change::DrainDrive(DrainDrive { drive: from, on: true }));
    }
    if held.iter().any(|g| role(map, *g, from) == Some(Role::Out)) {
        changes.push(Change::Replace(Replace { from, to, domain: nearest }));
    }
    for group in held.iter().filter(|g| role(map, **g, from) != Some(Role::Out)) {
        let domain = nearest.max(domain_of(map, &map.groups[group]));
        changes.push(Change::BeginRelocation(BeginRelocation { group: *group, from, to, domain }));
    }
    changes
}

fn role(map: &FabricMap, group: GroupId, drive: DriveId) -> Option<Role> {
    Some(map.groups.get(&group)?.slot_of(drive)?.role)
}
