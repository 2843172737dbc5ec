//! Adoption, R2: entries of groups and whole maps become durable here before anyone hears that they are.
//!
//! Acknowledging an epoch promises two things: that it survives a crash, and that nothing admitted under an older
//! one can still change a block. It never decides what a map says.

use crate::drive::ServedDrive;
use crate::follow::{News, NextMap, NotTaken, kept_as};
use crate::member::Member;
use crate::target::Target;
use std::collections::BTreeSet;
use std::rc::Rc;
use weft_rpc::{Answer, Request};
use weft_rt::sync::join_all;
use weft_rt::{spawn, timeout};
use weft_rules::{Mutation, Path, mark, mutated};
use weft_store::StoreError;
use weft_types::limits::{COPIES_MAX, EPOCHS_AHEAD_MAX};
use weft_types::{
    DriveId, Epoch, FabricMap, Group, GroupId, MapVersion, Role, SessionId, VolumeId, VolumeState,
    with_causes,
};
use weft_wire::{Status, control};

/// A drive that has not adopted a map within so much of a lease lags: the others go on without it. A grant that waits
/// for the map holds for a lease.
const LAGS_AFTER_PART: u32 = 2;

impl Target {
    /// Answers a peer or client that brings a group's entry: durable before the answer, ignored if not newer.
    pub(crate) async fn answer_entry(&self, request: &Request) -> Answer {
        let entry = match control::decode::<Group>(&request.head) {
            Ok(entry) => entry,
            Err(error) => return Answer::error(Status::Invalid, error.to_string()),
        };
        if let Err(answer) = self.check_entry(&entry) {
            return answer;
        }
        match self.adopt_entry(&entry).await {
            Ok(()) => Answer::ok(vec![], vec![]),
            Err(answer) => answer,
        }
    }

    /// Refuses an entry that no manager can have made, as far as the adopted map tells: anyone may bring one (R1),
    /// and what is adopted is durable.
    fn check_entry(&self, entry: &Group) -> Result<(), Answer> {
        let drives: BTreeSet<DriveId> = entry.slots.iter().map(|s| s.drive).collect();
        let is_sound = (1..=COPIES_MAX + 1).contains(&entry.slots.len())
            && drives.len() == entry.slots.len()
            && entry.slots.iter().all(|s| s.since <= entry.epoch);
        if !is_sound {
            return Err(Answer::error(Status::Invalid, "an entry that no group can have"));
        }
        let map = self.map();
        let listed = map.as_ref().and_then(|map| map.groups.get(&entry.id));
        if listed.is_none() {
            let is_removed = |map: &FabricMap| match &map.of_target {
                Some(says) => says.removed_groups.contains(&entry.id),
                // Numbers are not used twice.
                None => entry.id.0 < map.next_id,
            };
            if map.as_ref().is_some_and(|map| is_removed(map)) {
                return Err(Answer::error(Status::NotFound, format!("group {} is not in the map", entry.id)));
            }
            self.check_unlisted(entry, map.as_deref())?;
        }
        let own = self.drives.keys().filter_map(|drive| self.member(*drive, entry.id)).map(|m| m.epoch());
        let known = own.chain(listed.map(|g| g.epoch)).max().unwrap_or_default();
        if entry.epoch.0 > known.0.saturating_add(EPOCHS_AHEAD_MAX) {
            let text = format!("{} of group {} is too far ahead of {known}", entry.epoch, entry.id);
            return Err(Answer::error(Status::Invalid, text));
        }
        Ok(())
    }

    /// A group that a slice does not list may have gone on without a drive of this target, which has dropped
    /// it since: by an old entry, the drive's emptiness would count as the group's data. A newer entry comes
    /// with the map (C14).
    fn check_unlisted(&self, entry: &Group, map: Option<&FabricMap>) -> Result<(), Answer> {
        let is_known = self.drives.keys().any(|drive| self.member(*drive, entry.id).is_some());
        if is_known || map.is_some_and(|map| !map.is_of_target()) || mutated(Mutation::SnapshotLowers) {
            return Ok(());
        }
        let version = self.map_version();
        let text = format!("group {} is not in the map {version} of this target yet", entry.id);
        Err(Answer::error(Status::NotServing, text))
    }

    /// Adopts an entry on every drive of this target that is, or was, in the group.
    ///
    /// # Errors
    /// The answer that says which drive could not make it durable.
    async fn adopt_entry(&self, entry: &Group) -> Result<(), Answer> {
        // The map that came with the lease counts as known, also for a group that a drive has dropped: an old
        // entry would take the drive's emptiness for the group's data.
        let listed = self.map().and_then(|map| map.groups.get(&entry.id).map(|g| g.epoch));
        if listed.is_some_and(|epoch| epoch > entry.epoch) {
            return Ok(());
        }
        for drive in self.drives.values() {
            let known = self.member(drive.id, entry.id);
            if drive.is_refused() || (entry.slot_of(drive.id).is_none() && known.is_none()) {
                continue;
            }
            if let Some(cause) = drive.failure() {
                // One that is no member serves nobody in the group: not now, and after a restart it knows the map first (R2).
                match entry.slot_of(drive.id).is_some_and(|slot| slot.role != Role::Out) {
                    true => return Err(Answer::error(Status::DriveFailed, cause)),
                    false => continue,
                }
            }
            let member = self.member_or_new(drive, entry.id);
            self.adopt_on(&member, entry).await.map_err(|e| drive.refusal(&e))?;
        }
        Ok(())
    }

    /// Adopts an entry on one drive, if it is newer than what the drive knows. Durable on return.
    async fn adopt_on(&self, member: &Rc<Member>, entry: &Group) -> Result<(), StoreError> {
        let _turn = member.turn.lock().await;
        if entry.epoch <= member.epoch() || member.is_gone() {
            return Ok(());
        }
        if entry.slot_of(member.drive.id).is_some() {
            // What is dropped from here on would be of the new stint.
            member.end_drop().await;
        }
        // First nothing older is admitted, then what was admitted finishes, then the entry is durable.
        let gate = member.close_gate();
        if member.is_busy() {
            mark(Path::DrainedFirst);
        }
        if !mutated(Mutation::NoDrain) {
            member.drain().await;
        }
        gate.keep_closed();
        let (store, durable) = (member.drive.store.clone(), entry.clone());
        let storing = async move { store.set_group(durable).await };
        let stored = match mutated(Mutation::EpochNotDurable) {
            true => {
                drop(spawn(storing));
                Ok(())
            }
            false => storing.await,
        };
        let adopted = match &stored {
            Ok(()) => Some(entry.clone()),
            Err(_) => None,
        };
        mark(Path::EntryAdopted);
        if let Err(error) = &stored {
            // Whether the entry is durable is not known, so neither the old one nor the new one may serve.
            member.drive.fail_at(&format!("cannot adopt {} of group {}", entry.epoch, entry.id), error);
        }
        gate.open(adopted);
        self.adopted.notify_all();
        self.resync_if_needed(member);
        stored
    }

    /// Adopts what news of the map lead to: epochs, roles, stints and generations of everything that concerns
    /// this target are durable on return, and whatever older epochs and generations had admitted has
    /// finished. An older map has no effect.
    ///
    /// A drive that is slow, or hangs, does not keep the others from serving under the map: it lags, and serves
    /// nothing until it has adopted the map as well. This returns once each drive has, or has failed.
    ///
    /// # Errors
    /// The news are of another fabric, or do not lead on from the map in force.
    pub(crate) async fn adopt_news(&self, news: News) -> Result<(), NotTaken> {
        let version = news.version();
        self.put_into_force(news).await?;
        while self.adopted_version() < version {
            let adopted = self.adopted.notified();
            if self.adopted_version() < version {
                adopted.await;
            }
        }
        Ok(())
    }

    /// Puts a map into force, unless it is an older one: as soon as all drives have adopted it, or all but those
    /// that lag by then.
    ///
    /// # Errors
    /// The news are of another fabric, or do not lead on from the map in force.
    pub(crate) async fn put_into_force(&self, news: News) -> Result<(), NotTaken> {
        let _turn = self.adopting.lock().await;
        let Some(NextMap { map, bytes, nonce }) = self.next_map(news)? else { return Ok(()) };
        let map = Rc::new(map);
        let all = || self.drives.values().filter(|d| !d.has_failed());
        for drive in all() {
            self.start_adopting(drive, &map, &bytes);
        }
        let have_all = async {
            while all().any(|drive| drive.adopted() < map.version) {
                let adopted = self.adopted.notified();
                if all().any(|drive| drive.adopted() < map.version) {
                    adopted.await;
                }
            }
        };
        let _ = timeout(self.durations().lease() / LAGS_AFTER_PART, have_all).await;
        for member in self.members().iter().filter(|m| m.drive.has_failed()) {
            member.drain().await;
        }
        let is_first = self.map().is_none();
        self.set_map(map.clone(), nonce);
        if is_first {
            let (target, map) = (self.shared(), map.clone());
            self.background(async move { target.drop_deleted_volumes(&map).await });
        }
        self.adopted.notify_all();
        self.lease.map_adopted(map.version);
        tracing::info!(version = %map.version, "map adopted");
        // One that has caught up with the map before this one while the others adopted this one.
        for drive in all().filter(|d| self.lags(d)) {
            tracing::warn!(drive = %drive.id, path = drive.path, "drive lags: it has not adopted the map in time");
            self.start_adopting(drive, &map, &bytes);
        }
        self.drop_left_groups(&map);
        for member in self.members() {
            self.resync_if_needed(&member);
        }
        Ok(())
    }

    /// Whether the drive has not adopted the map in force yet. It serves nothing then.
    pub(crate) fn lags(&self, drive: &ServedDrive) -> bool {
        drive.adopted() < self.map_version()
    }

    /// The version of the map up to which each drive that works has adopted everything.
    pub(crate) fn adopted_version(&self) -> MapVersion {
        let working = self.drives.values().filter(|d| !d.has_failed());
        working.map(|d| d.adopted()).fold(self.map_version(), MapVersion::min)
    }

    /// Has a drive adopt a map, and whatever comes into force meanwhile, unless it is at that already.
    fn start_adopting(&self, drive: &Rc<ServedDrive>, map: &Rc<FabricMap>, bytes: &Rc<[u8]>) {
        let Some(adopting) = drive.begin_adopting() else { return };
        let (target, drive) = (self.shared(), drive.clone());
        let (map, bytes) = (map.clone(), bytes.clone());
        self.background(async move {
            target.adopt_until_newest(&drive, map, bytes).await;
            drop(adopting);
            target.adopted.notify_all();
        });
    }

    async fn adopt_until_newest(&self, drive: &Rc<ServedDrive>, mut map: Rc<FabricMap>, mut bytes: Rc<[u8]>) {
        loop {
            if let Err(error) = self.adopt_map_on(drive, &map, &bytes).await {
                drive.note(&error);
            }
            // Requests of older generations, and of sessions that are over, may be under way in groups whose epoch has
            // not changed.
            let own = self.members().into_iter().filter(|m| m.drive.id == drive.id);
            for member in own.filter(|_| !mutated(Mutation::MapNotDrained)) {
                member.drain().await;
            }
            let was_late = self.lags(drive);
            drive.note_adopted(map.version);
            match self.map().filter(|newest| newest.version > map.version && !drive.has_failed()) {
                Some(newest) => (map, bytes) = (newest.clone(), kept_as(&newest)),
                None if !was_late => return,
                None => break,
            }
        }
        tracing::info!(drive = %drive.id, path = drive.path, version = %map.version, "drive lags no more");
        self.drop_left_groups(&map);
        for member in self.members().iter().filter(|m| m.drive.id == drive.id) {
            self.resync_if_needed(member);
        }
    }

    /// Serves a drive that was refused before: it adopts the newest map first, whose epochs and generations passed it
    /// by meanwhile.
    pub(crate) async fn take_back(&self, drive: &Rc<ServedDrive>) {
        let _turn = self.adopting.lock().await;
        let Some(map) = self.map() else { return };
        let adopted = self.adopt_map_on(drive, &map, &kept_as(&map)).await;
        drive.note_adopted(map.version);
        drive.take_back();
        if let Err(error) = adopted {
            // The manager counts on it already, and has to hear that it does not serve.
            return drive.fail_at("cannot adopt the map", &error);
        }
        self.drop_left_groups(&map);
        for member in self.members().iter().filter(|m| m.drive.id == drive.id) {
            self.resync_if_needed(member);
        }
    }

    async fn adopt_map_on(
        &self,
        drive: &Rc<ServedDrive>,
        map: &FabricMap,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let mut held = BTreeSet::new();
        let mut newer = Vec::new();
        for group in map.groups.values() {
            let known = self.member(drive.id, group.id).map(|m| m.epoch());
            if group.slot_of(drive.id).is_some() {
                held.insert(group.id);
            } else if known.is_none() {
                continue;
            }
            if known.is_none_or(|epoch| epoch < group.epoch) {
                newer.push(group);
            }
        }
        // All at once, so that the store commits them together.
        let adopting = newer.into_iter().map(|group| {
            let member = self.member_or_new(drive, group.id);
            async move { self.adopt_on(&member, group).await }
        });
        join_all(adopting).await.into_iter().collect::<Result<(), _>>()?;
        let raising = map
            .volumes
            .values()
            .filter(|v| drive.store.generation(v.id) < v.generation && volume_uses(map, v.id, &held));
        let raised = join_all(raising.map(|v| drive.store.set_generation(v.id, v.generation))).await;
        if let Err(error) = raised.into_iter().collect::<Result<(), _>>() {
            // Acknowledging the map promises that older generations are refused here, also after a crash.
            drive.fail_at("cannot raise a volume's generation", &error);
            return Err(error);
        }
        if let Err(error) = self.adopt_floors(drive, map).await {
            drive.fail_at("cannot raise a group's floor", &error);
            return Err(error);
        }
        // Ids only rise, and a session leaves the map once it is swept: whatever is below the lowest is over.
        let lowest = match mutated(Mutation::AbsentIsGone) {
            true => map.sessions.keys().next().copied().unwrap_or(SessionId(map.ids_below())),
            false => map.sessions_from(),
        };
        if drive.store.session_floor() < lowest {
            drive.store.close_sessions(Some(lowest), &[]).await?;
        }
        drive.store.forget_volumes(|volume| map.was_deleted(volume));
        match drive.store.put_map_copy(map.version.0, bytes).await {
            // It only helps to recover a fabric that has lost its managers; parts of the whole are kept as
            // well (C11).
            Err(error @ StoreError::TooLarge { .. }) => {
                let error = with_causes(&error);
                tracing::warn!(drive = %drive.id, error, "the drive keeps no copy of the map");
                Ok(())
            }
            kept => kept,
        }
    }

    /// Raises the floors of the groups that a drive knows to those of a map (R7). Only then a member that
    /// has closed for a floor admits again what is below it, and answers that it is.
    async fn adopt_floors(&self, drive: &Rc<ServedDrive>, map: &FabricMap) -> Result<(), StoreError> {
        let known = |g: &&Group| self.member(drive.id, g.id).is_some() && drive.store.group(g.id).is_some();
        let is_higher = |g: &&Group| g.floor > drive.store.floor(g.id);
        let raising = map.groups.values().filter(is_higher).filter(known);
        let raised = join_all(raising.map(|g| drive.store.set_floor(g.id, g.floor))).await;
        for raised in raised {
            match raised {
                // It has been dropped meanwhile.
                Ok(()) | Err(StoreError::UnknownGroup { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for member in self.members().iter().filter(|m| m.drive.id == drive.id) {
            let listed = map.groups.get(&member.group).map_or(Epoch(0), |g| g.epoch);
            member.open_from(listed);
        }
        Ok(())
    }

    /// Returns the space of groups that drives of this target are no longer in, in the background: groups whose
    /// newest entry does not name the drive, and those that were removed from the fabric, perhaps while this target
    /// was away. A group that the map has only not heard of, since maps were lost, is nobody's to drop.
    fn drop_left_groups(&self, map: &FabricMap) {
        for member in self.members() {
            let removed = map.was_removed(member.group);
            let left = member.entry().is_some_and(|e| e.slot_of(member.drive.id).is_none());
            // What is on a drive that is refused is left as it is.
            let is_ours = !member.drive.is_refused();
            if is_ours && (removed || left) && member.drive.store.group(member.group).is_some() {
                let target = self.shared();
                self.background(async move { target.drop_group(member, removed).await });
            }
        }
    }

    /// Returns the space of volumes that were deleted for certain, and of which a drive still holds something. A
    /// delete drops everything that it finds; this is for what was not there to be found.
    async fn drop_deleted_volumes(&self, map: &FabricMap) {
        for drive in self.drives.values() {
            let deleted = self.deleted_on(drive, map).await;
            for volume in deleted.into_iter().take_while(|_| !drive.has_failed()) {
                match drive.store.drop_objects(volume).await {
                    Ok(()) => tracing::info!(%volume, drive = %drive.id, "what was left of it is dropped"),
                    Err(error) => drive.note(&error),
                }
            }
        }
    }

    /// The volumes that were deleted for certain, and of which the drive holds something.
    async fn deleted_on(&self, drive: &ServedDrive, map: &FabricMap) -> BTreeSet<VolumeId> {
        let (mut deleted, mut unsaid) = (BTreeSet::new(), BTreeSet::new());
        for group in drive.store.groups() {
            let held = match drive.store.volumes_in(group).await {
                Ok(held) if !drive.has_failed() => held,
                Ok(_) => return BTreeSet::new(),
                Err(error) => {
                    drive.note(&error);
                    return BTreeSet::new();
                }
            };
            // A slice says nothing of volumes that have objects only in groups that it does not list.
            match !map.is_of_target() || map.groups.contains_key(&group) || map.was_removed(group) {
                true => deleted.extend(held.into_iter().filter(|v| map.was_deleted(*v))),
                false => unsaid.extend(held),
            }
        }
        deleted.difference(&unsaid).copied().collect()
    }

    /// Drops what the drive holds of a group, unless the drive comes back to it meanwhile. The epoch of a
    /// group that goes on without this drive stays known in this process, so nothing older is ever admitted
    /// again; of one that was removed the map says so, and a slice takes no entry that it does not list.
    async fn drop_group(&self, member: Rc<Member>, removed: bool) {
        let dropping = {
            let _turn = member.turn.lock().await;
            if removed {
                member.leave();
            } else if member.slot().is_some() {
                return;
            }
            let Some(dropping) = member.begin_drop() else { return };
            dropping
        };
        member.drain().await;
        let (group, drive) = (member.group, &member.drive);
        match drive.store.drop_group_unless(group, || dropping.is_called_off()).await {
            Ok(true) => tracing::info!(%group, drive = %drive.id, "group dropped"),
            Ok(false) => tracing::info!(%group, drive = %drive.id, "group kept: the drive is back in it"),
            Err(error) => return drive.note(&error),
        }
        if member.is_gone() {
            self.forget_member(&member);
        }
    }

    /// Whether the adopted map says that a volume is being deleted, or is gone: ids are not used twice.
    pub(crate) fn is_deleted(&self, volume: VolumeId) -> bool {
        self.map().is_some_and(|map| match map.volumes.get(&volume) {
            Some(listed) => listed.state == VolumeState::Deleting,
            None => map.was_deleted(volume),
        })
    }

    /// Whether this target serves the drive.
    pub(crate) fn serves(&self, drive: DriveId) -> bool {
        self.drives.get(&drive).is_some_and(|d| !d.is_refused())
    }
}

/// Whether the volume has objects in one of these groups.
fn volume_uses(map: &FabricMap, volume: VolumeId, groups: &BTreeSet<GroupId>) -> bool {
    map.volumes.get(&volume).is_some_and(|v| v.groups().any(|g| groups.contains(g)))
}
