//! Groups, sessions and generations on this drive: what admission needs to know, durable before anyone may
//! rely on it (R2, R10, R16).

use crate::StoreError;
use crate::leaf::{Leaf, LeafKey};
use crate::record::Record;
use crate::request::OpenEntry;
use crate::state::{Room, State};
use crate::store::Store;
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_rules::{Mutation, mutated};
use weft_types::{Generation, Group, GroupId, ObjectRange, Owner, SessionId, SessionSlot, Version, VolumeId};

/// Sessions that one record closes at most.
const SESSIONS_PER_RECORD: usize = 1000;

/// Chunks that are looked for at a time when a volume or a group is dropped.
const CHUNKS_PER_STEP: usize = 64;

impl Store {
    /// The groups that this drive knows, in order.
    pub fn groups(&self) -> Vec<GroupId> {
        self.engine.state.borrow().drive.groups.keys().copied().collect()
    }

    /// A group's newest adopted entry.
    pub fn group(&self, group: GroupId) -> Option<Rc<Group>> {
        self.engine.state.borrow().drive.groups.get(&group).map(|g| g.entry.clone())
    }

    /// Adopts a group's entry (the model's `adopt`): if the map says that this drive is syncing since another
    /// epoch than the stint that it is in, a new stint begins, and all that it held is unverified. Durable on
    /// return; adopting the same entry again is a wait for the first time.
    ///
    /// # Errors
    /// `StaleEpoch` if the entry is older than the one held; or the store has failed.
    pub async fn set_group(&self, entry: Group) -> Result<(), StoreError> {
        self.log(|state| {
            if let Some(held) = state.drive.groups.get(&entry.id) {
                let current = held.entry.epoch;
                if current > entry.epoch {
                    return Err(StoreError::StaleEpoch { group: entry.id, found: entry.epoch, current });
                }
                if *held.entry == (Group { floor: held.floor, ..entry.clone() }) {
                    return Ok(None);
                }
            }
            let is_new_stint = state.drive.begins_stint(&entry, state.drive_id);
            Ok(Some(Record::SetGroup { entry, is_new_stint }))
        })
        .await
    }

    /// Removes a group and everything that it holds on this drive; writes and copies that are under way are
    /// refused from now on. Durable on return; after a crash on the way the group is still there, with fewer
    /// chunks.
    ///
    /// # Errors
    /// If the store has failed, or a page of the map is damaged.
    pub async fn drop_group(&self, group: GroupId) -> Result<(), StoreError> {
        self.drop_group_unless(group, || false).await.map(|_| ())
    }

    /// Like [`Store::drop_group`], until the group is wanted after all: that is asked before each chunk,
    /// and before the group itself is removed. Says whether the group was dropped; if not, it is still
    /// there, with fewer chunks, and takes writes and copies again.
    ///
    /// # Errors
    /// As [`Store::drop_group`].
    pub async fn drop_group_unless(
        &self,
        group: GroupId,
        is_wanted: impl Fn() -> bool,
    ) -> Result<bool, StoreError> {
        let end = group.0.checked_add(1).map(|next| LeafKey::first_of(GroupId(next)));
        self.engine.state.borrow_mut().dropping.groups.insert(group);
        let dropped = async {
            if mutated(Mutation::GroupDroppedFirst) {
                self.log(|_| Ok(Some(Record::DropGroup { group }))).await?;
            }
            self.drop_chunks(LeafKey::first_of(group), end, &is_wanted).await?;
            let mut is_dropped = true;
            self.log(|state| {
                is_dropped = !is_wanted();
                let is_known = state.drive.groups.contains_key(&group);
                Ok((is_dropped && is_known).then_some(Record::DropGroup { group }))
            })
            .await?;
            Ok(is_dropped)
        }
        .await;
        self.engine.state.borrow_mut().dropping.groups.remove(&group);
        dropped
    }

    /// Removes everything that a volume has on this drive and returns the space. Durable on return. The
    /// volume must not be written to any more; what a copy still brings of it is left out while this store is
    /// open.
    ///
    /// # Errors
    /// If the store has failed, or a page of the map is damaged.
    pub async fn drop_objects(&self, volume: VolumeId) -> Result<(), StoreError> {
        self.engine.state.borrow_mut().dropping.volumes.insert(volume);
        for group in self.groups() {
            for objects in ObjectRange::of_entry(volume) {
                let (first, end) = LeafKey::bounds(group, objects);
                self.drop_chunks(first, end, || false).await?;
            }
        }
        self.log(|_| Ok(Some(Record::DropOwner { owner: Owner::Volume(volume) }))).await
    }

    /// Removes the chunks from `from` on, below `end`, until they are wanted after all.
    async fn drop_chunks(
        &self,
        from: LeafKey,
        end: Option<LeafKey>,
        is_wanted: impl Fn() -> bool,
    ) -> Result<(), StoreError> {
        let mut next = Some(from);
        while let Some(from) = next.filter(|_| !is_wanted()) {
            let (found, more) = self.engine.scan(from, end, CHUNKS_PER_STEP).await?;
            for (key, _) in found {
                if is_wanted() {
                    return Ok(());
                }
                self.drop_chunk(key).await?;
            }
            next = more;
        }
        Ok(())
    }

    async fn drop_chunk(&self, key: LeafKey) -> Result<(), StoreError> {
        let mut attempt = 0;
        loop {
            self.engine.admit().await?;
            self.engine.load(key).await?;
            let room = {
                let mut state = self.engine.state.borrow_mut();
                if !state.has_room() {
                    continue;
                }
                match state.map.get(&key).map(|leaf| leaf.is_empty()) {
                    None => continue,
                    Some(true) => return Ok(()),
                    Some(false) => {}
                }
                let new_leaves = u64::from(!state.map.is_dirty(&key));
                let room = state.room_for(0, new_leaves);
                if room == Room::Enough {
                    let LeafKey { group, object, chunk } = key;
                    let batch = state.record(|e| Record::DropChunk { group, object, chunk }.encode(e));
                    state.replace_leaf(batch, key, Leaf::default());
                    drop(state);
                    self.engine.work.notify_all();
                    return Ok(());
                }
                room
            };
            attempt += 1;
            self.engine.make_room(0, room, attempt).await?;
        }
    }

    /// These sessions, and all below the floor, are over for good (R10). Durable on return.
    ///
    /// # Errors
    /// If the store has failed.
    pub async fn close_sessions(
        &self,
        floor: Option<SessionId>,
        sessions: &[SessionId],
    ) -> Result<(), StoreError> {
        let floor = floor.unwrap_or_default();
        let parts = sessions.chunks(SESSIONS_PER_RECORD).chain(sessions.is_empty().then_some(&[][..]));
        for part in parts {
            self.log(|state| {
                let is_known = state.drive.session_floor >= floor
                    && part.iter().all(|session| state.drive.session_is_over(*session));
                Ok((!is_known).then(|| Record::CloseSessions { floor, sessions: part.to_vec() }))
            })
            .await?;
        }
        Ok(())
    }

    /// Whether a session is over.
    pub fn session_is_over(&self, session: SessionId) -> bool {
        self.engine.state.borrow().drive.session_is_over(session)
    }

    /// A number that rises whenever [`Store::session_is_over`] or [`Store::generation`] may answer otherwise
    /// than before.
    pub fn fences(&self) -> u64 {
        self.engine.state.borrow().fences
    }

    /// Every session below is over.
    pub fn session_floor(&self) -> SessionId {
        self.engine.state.borrow().drive.session_floor
    }

    /// Forgets the generations of volumes that are gone for good. Takes effect at once; durable with the next
    /// checkpoint, and harmless to lose.
    pub fn forget_volumes(&self, is_gone: impl Fn(VolumeId) -> bool) {
        let mut state = self.engine.state.borrow_mut();
        state.fences += 1;
        state.drive.generations.retain(|volume, _| !is_gone(*volume));
    }

    /// Raises a volume's generation; it never falls. Durable on return.
    ///
    /// # Errors
    /// If the store has failed.
    pub async fn set_generation(&self, volume: VolumeId, generation: Generation) -> Result<(), StoreError> {
        self.log(|state| {
            let held = state.drive.generations.get(&volume).copied().unwrap_or_default();
            Ok((generation > held).then_some(Record::SetGeneration { volume, generation }))
        })
        .await
    }

    /// A volume's generation, zero if none was set.
    pub fn generation(&self, volume: VolumeId) -> Generation {
        self.engine.state.borrow().drive.generations.get(&volume).copied().unwrap_or_default()
    }

    /// The generations of all volumes of which one was set.
    pub fn generations(&self) -> BTreeMap<VolumeId, Generation> {
        self.engine.state.borrow().drive.generations.clone()
    }

    /// The session slots of which the drive holds open entries or a watermark in a group.
    pub fn slots_in(&self, group: GroupId) -> Vec<SessionSlot> {
        let state = self.engine.state.borrow();
        state.drive.groups.get(&group).map_or(Vec::new(), |g| g.marks.slots().collect())
    }

    /// A session's watermark in a group.
    pub fn watermark(&self, group: GroupId, slot: SessionSlot) -> Version {
        let state = self.engine.state.borrow();
        state.drive.groups.get(&group).map_or(Version::ZERO, |g| g.marks.watermark(slot))
    }

    /// A session's open entries in a group, by version: what the sweep of a session that is over goes
    /// through.
    pub fn open_entries_of(&self, group: GroupId, slot: SessionSlot) -> Vec<OpenEntry> {
        let state = self.engine.state.borrow();
        state.drive.groups.get(&group).map_or(Vec::new(), |g| g.marks.entries_of(slot).collect())
    }

    /// Forgets a session that is over and swept: its slot may then be given to another. Durable on return.
    /// Returns `false`, and forgets nothing, if an entry of it is open and not settled: it has to be swept
    /// first.
    ///
    /// # Errors
    /// `UnknownGroup`, or the store has failed.
    pub async fn forget_session(&self, group: GroupId, slot: SessionSlot) -> Result<bool, StoreError> {
        let mut is_swept = true;
        self.log(|state| {
            is_swept = state.drive.group(group)?.marks.entries_of(slot).all(|entry| entry.settled)
                || mutated(Mutation::SweepForgetsUnsettled);
            Ok(is_swept.then_some(Record::ForgetSession { group, slot }))
        })
        .await?;
        Ok(is_swept)
    }

    /// Logs and applies the record that `decide` wants, at one instant, and waits until it is durable. If it
    /// wants none, waits for whatever made that so.
    pub(crate) async fn log(
        &self,
        decide: impl FnOnce(&State) -> Result<Option<Record>, StoreError>,
    ) -> Result<(), StoreError> {
        let batch = self.log_ahead(decide).await?;
        self.engine.durable(batch).await
    }

    /// Likewise, without waiting: the record is durable before, or together with, whatever is logged after
    /// it. Returns the batch.
    pub(crate) async fn log_ahead(
        &self,
        decide: impl FnOnce(&State) -> Result<Option<Record>, StoreError>,
    ) -> Result<u64, StoreError> {
        let batch = loop {
            self.engine.admit().await?;
            let mut state = self.engine.state.borrow_mut();
            state.check()?;
            if !state.has_room() {
                continue;
            }
            match decide(&state)? {
                None => break state.commits.newest_batch(),
                Some(record) if is_unlogged(&record) => {
                    state.replay_note(record);
                    break state.commits.newest_batch();
                }
                Some(record) => {
                    let batch = state.record(|e| record.encode(e));
                    state.replay_note(record);
                    break batch;
                }
            }
        };
        self.engine.work.notify_all();
        Ok(batch)
    }
}

/// Whether a rule is broken by keeping this record out of the log: a restart then forgets what it says (R2,
/// R10, R16).
fn is_unlogged(record: &Record) -> bool {
    match record {
        Record::SetGroup { .. } => mutated(Mutation::RestartForgetsEpoch),
        Record::CloseSessions { .. } => mutated(Mutation::SessionsNotDurable),
        Record::SetGeneration { .. } => mutated(Mutation::GenerationNotDurable),
        _ => false,
    }
}
