//! What each target has of the map (C9): its slice, and which commits have touched it since.
//!
//! It owns from where to where what a target is sent leads, and which version of the map a target has to
//! have. A target that no commit has touched since its version has adopted every later one: its slice is the
//! same. It decides nothing.

use crate::manager::{Manager, State};
use crate::member::Member;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weft_rt::{Buf, random_u64};
use weft_rules::{Mutation, mutated};
use weft_types::limits::{FRAME_BODY_MAX, TOUCHES_KEPT_MAX};
use weft_types::{
    Delta, DriveId, FabricMap, GroupId, MapVersion, Piece, PieceKey, TargetId, TargetSlice, Touched,
    targets_touched,
};
use weft_wire::control::DriveReport;
use weft_wire::pieces::{encode_delta, encode_whole};

/// What a target that follows its slice has.
pub(crate) struct HeldSlice {
    /// Belongs to what the target is sent after this join: versions of the slice that it had before may list
    /// other entries.
    nonce: u64,
    /// Which entries it lists.
    slice: TargetSlice,
    /// The version of this process's map in which it has it; none if that is not known.
    at: Option<MapVersion>,
    /// Groups that it holds no more, by its own word.
    left: BTreeSet<GroupId>,
    /// Decided versions above `at` that have touched it, oldest first.
    touches: VecDeque<MapVersion>,
    /// The newest touch that is not kept: from before it, only the whole slice leads on.
    passed_over: MapVersion,
    /// The newest decided version that has touched it, or in which it was sent whole.
    newest: MapVersion,
}

/// What leads a target on.
pub(crate) struct Push {
    /// The version that it leads on from; none for all that the target follows.
    pub(crate) from: Option<MapVersion>,
    /// The version that it leads to.
    pub(crate) version: MapVersion,
    pub(crate) bytes: Buf,
    /// Belongs to both versions.
    pub(crate) nonce: u64,
    /// Of a target that follows its slice: which entries it has then.
    leads_to: Option<TargetSlice>,
}

impl Push {
    /// What leads on a target that follows the whole map.
    pub(crate) fn of_whole(version: MapVersion, bytes: Buf, nonce: u64) -> Push {
        Push { from: None, version, bytes, nonce, leads_to: None }
    }
}

impl HeldSlice {
    fn note_touch(&mut self, version: MapVersion) {
        self.newest = version;
        self.touches.push_back(version);
        if self.touches.len() > TOUCHES_KEPT_MAX
            && let Some(passed) = self.touches.remove(1)
        {
            self.passed_over = passed;
        }
    }

    /// The first version above what it has that has touched it.
    fn first_touch(&self) -> Option<MapVersion> {
        self.touches.front().copied()
    }

    /// The newest version, not above `version`, that has touched the slice. If no commit has touched it
    /// since it was sent last, that version.
    fn touched_up_to(&self, version: MapVersion) -> MapVersion {
        if version <= self.passed_over {
            return version;
        }
        let touch = self.touches.iter().rev().copied().find(|touch| *touch <= version);
        touch.or(self.at).unwrap_or(version).max(self.passed_over)
    }

    fn note_adopted(&mut self, version: MapVersion) {
        while self.touches.front().is_some_and(|touch| *touch <= version) {
            self.touches.pop_front();
        }
    }
}

impl Member {
    /// Whether it has adopted the map of this version, as far as that concerns it.
    pub(crate) fn is_at(&self, version: MapVersion) -> bool {
        self.is_at_with(self.adopted, version)
    }

    /// Likewise a drive, which may be further than the other drives of the target.
    pub(crate) fn drive_is_at(&self, drive: DriveId, version: MapVersion) -> bool {
        self.is_at_with(self.adopted_on(drive), version)
    }

    fn is_at_with(&self, adopted: MapVersion, version: MapVersion) -> bool {
        adopted >= version
            || self.slice.as_ref().is_some_and(|held| {
                held.at.is_some_and(|at| adopted >= at) && held.touched_up_to(version) <= adopted
            })
    }

    /// What it said that it holds no more, and where it is, counts from here on.
    fn note_pushed(&mut self, push: &Push, left: Vec<GroupId>) {
        let Some(slice) = &push.leads_to else {
            self.adopted = self.adopted.max(push.version);
            return;
        };
        if let Some(held) = self.slice.as_mut().filter(|held| held.nonce == push.nonce) {
            self.adopted = self.adopted.max(push.version);
            (held.slice, held.at) = (slice.clone(), Some(push.version));
            held.left = left.into_iter().collect();
            held.note_adopted(push.version);
        }
    }
}

impl State {
    /// Notes whose slices a commit touches.
    pub(crate) fn note_touched(&mut self, delta: &Delta, old: &FabricMap, new: &FabricMap) {
        let without_groups = mutated(Mutation::GroupUntold).then(|| {
            let mut rest = delta.clone();
            rest.put.retain(|piece| !matches!(piece, Piece::Group(_)));
            rest
        });
        let delta = without_groups.as_ref().unwrap_or(delta);
        let holders = |group| self.holders.get(&group).into_iter().flatten().copied().collect();
        let groups = |drive| self.index.groups_of(drive).collect();
        let drives = |target| self.index.drives_of(target).collect();
        let touched = targets_touched(delta, (old, new), holders, groups, drives);
        self.note_holders(delta, old, new);
        match &touched {
            Touched::All => self.members.values_mut().for_each(|member| member.note_touch(new.version)),
            Touched::Some(targets) => {
                for target in targets {
                    if let Some(member) = self.members.get_mut(target) {
                        member.note_touch(new.version);
                    }
                }
            }
        }
    }

    /// Whether a target follows the whole map, as those of the release before do.
    pub(crate) fn is_sent_whole(&self) -> bool {
        let follows_whole = |m: &Member| m.incarnation.is_some() && m.slice.is_none() && !m.awaits_map;
        self.members.values().any(|member| follows_whole(member) && !member.has_stopped())
    }

    /// Who has been a member of a group may hold it on: also where its drive has passed to another target.
    fn note_holders(&mut self, delta: &Delta, old: &FabricMap, new: &FabricMap) {
        let keys = || delta.put.iter().map(Piece::key).chain(delta.removed.iter().copied());
        let has_passed = |drive: &DriveId| {
            new.drives.contains_key(drive) && old.target_of(*drive) != new.target_of(*drive)
        };
        let changed = keys().flat_map(|key| match key {
            PieceKey::Group(id) => vec![id],
            PieceKey::Drive(id) if has_passed(&id) => self.index.groups_of(id).collect(),
            _ => vec![],
        });
        for id in changed.collect::<BTreeSet<GroupId>>() {
            let (was, is) = (members_of(old, id), members_of(new, id));
            let gone: Vec<TargetId> = was.difference(&is).copied().collect();
            if !gone.is_empty() {
                self.holders.entry(id).or_default().extend(gone);
            }
        }
    }

    /// The newest version that is decided and concerns a target: a grant names it.
    pub(crate) fn newest_for(&self, target: TargetId) -> MapVersion {
        let held = self.members.get(&target).and_then(|member| member.slice.as_ref());
        held.map_or(self.map.version, |held| held.newest)
    }

    /// The newest version, not above `version`, that concerns a target.
    pub(crate) fn newest_for_up_to(&self, target: TargetId, version: MapVersion) -> MapVersion {
        let held = self.members.get(&target).and_then(|member| member.slice.as_ref());
        held.map_or(version, |held| held.touched_up_to(version))
    }

    /// Whether what a target has comes from this process, and with this nonce.
    pub(crate) fn has_sent(&self, target: TargetId, nonce: u64) -> bool {
        let held = self.members.get(&target).and_then(|member| member.slice.as_ref());
        held.is_some_and(|held| held.nonce == nonce)
    }

    /// Whether a target has adopted the map of this version, as far as that concerns it.
    pub(crate) fn is_at(&self, target: TargetId, version: MapVersion) -> bool {
        self.members.get(&target).is_some_and(|member| member.is_at(version))
    }

    /// What a target has to be sent; nothing if it has adopted all that concerns it.
    /// `nonce` is that of this process.
    pub(crate) fn next_push(&self, target: TargetId, member: &Member, nonce: u64) -> Option<Push> {
        if member.awaits_map {
            return None;
        }
        let pushed = self.pushed();
        let Some(held) = &member.slice else {
            return (member.adopted < pushed.version).then(|| self.whole_push(nonce));
        };
        let has_all = held.at.is_some() && member.is_at(pushed.version);
        (!has_all).then(|| self.slice_push(target, held, !member.refuses_deltas))
    }

    fn slice_push(&self, target: TargetId, held: &HeldSlice, takes_deltas: bool) -> Push {
        let pushed = self.pushed();
        let led_on = || {
            let at = held.at.filter(|at| takes_deltas && *at >= held.passed_over)?;
            let Some(first) = held.first_touch().filter(|touch| *touch <= pushed.version) else {
                // It has been sent all there is, and has not said yet that it has adopted it.
                let nothing = Delta {
                    from: at,
                    to: at,
                    next_id: 0,
                    fabric: pushed.fabric,
                    put: vec![],
                    removed: vec![],
                };
                return Some((held.slice.clone(), nothing));
            };
            // Its slice is the same in each version before the one that touched it first.
            let base = MapVersion(first.0 - 1);
            let (old, changes) = (self.recent.get(base)?, self.recent.since(base)?);
            let changes: Vec<&Delta> = changes.filter(|delta| delta.to <= pushed.version).collect();
            let (slice, delta) = held.slice.lead_on(&old, pushed, &changes, &held.left)?;
            Some((slice, Delta { from: at, ..delta }))
        };
        if let Some((slice, delta)) = led_on() {
            let bytes = encode_delta(&delta);
            if bytes.len() <= FRAME_BODY_MAX {
                let (from, version, bytes) = (Some(delta.from), delta.to, Buf::from(bytes));
                return Push { from, version, bytes, nonce: held.nonce, leads_to: Some(slice) };
            }
        }
        let kept = held.slice.held.difference(&held.left).copied().collect();
        let slice = match pushed.version == self.durable.map.version {
            true => self.slice_with(target, kept),
            false => TargetSlice::of(pushed, target, kept),
        };
        let bytes = Buf::from(encode_whole(&slice.slice(pushed)));
        Push { from: None, version: pushed.version, bytes, nonce: held.nonce, leads_to: Some(slice) }
    }

    /// Takes what a target has answered to a push.
    pub(crate) fn note_pushed(&mut self, target: TargetId, push: &Push, left: Vec<GroupId>) {
        let Some(member) = self.members.get_mut(&target) else { return };
        let before = member.slice.as_ref().map(|held| held.slice.held.clone());
        member.note_pushed(push, left);
        let after = member.slice.as_ref().map(|held| &held.slice.held);
        let gone: Vec<GroupId> = match (&before, after) {
            (Some(before), Some(after)) => before.difference(after).copied().collect(),
            _ => return,
        };
        for group in gone {
            self.forget_holder(group, target);
        }
    }

    fn forget_holder(&mut self, group: GroupId, target: TargetId) {
        if let Some(holders) = self.holders.get_mut(&group) {
            holders.remove(&target);
            if holders.is_empty() {
                self.holders.remove(&group);
            }
        }
    }

    /// A target holds nothing, as far as is known.
    pub(crate) fn forget_holders(&mut self, target: TargetId) {
        self.holders.retain(|_, holders| {
            holders.remove(&target);
            !holders.is_empty()
        });
    }

    /// A target has another version than it was thought to have: the next that it is sent begins at nothing.
    pub(crate) fn note_elsewhere(&mut self, target: TargetId, push: &Push) {
        let held = self.members.get_mut(&target).and_then(|member| member.slice.as_mut());
        if let Some(held) = held.filter(|held| held.nonce == push.nonce) {
            held.at = None;
        }
    }

    /// What a target is sent that has joined: its slice, or the whole map if it is of the release before.
    /// The next delta leads on from here.
    fn joined_map(
        &mut self,
        target: TargetId,
        drives: &[DriveReport],
        takes_slices: bool,
        nonce: u64,
    ) -> (u64, Buf) {
        let map = self.durable.map.clone();
        self.forget_holders(target);
        if !takes_slices {
            let bytes = self.bytes();
            // If the map is too long to be sent to this member, the member sets no limit for the map.
            let fits = bytes.len() <= FRAME_BODY_MAX;
            if let Some(member) = self.members.get_mut(&target).filter(|_| fits) {
                (member.slice, member.awaits_map) = (None, false);
            }
            return (nonce, bytes);
        }
        let reported = drives.iter().flat_map(|drive| &drive.epochs).map(|(group, _)| *group).collect();
        let slice = self.slice_with(target, reported);
        for group in &slice.held {
            if !members_of(&self.map, *group).contains(&target) {
                self.holders.entry(*group).or_default().insert(target);
            }
        }
        let bytes = Buf::from(encode_whole(&slice.slice(&map)));
        // A longer one is pushed in parts.
        let (bytes, at) = match bytes.len() <= FRAME_BODY_MAX {
            true => (bytes, Some(map.version)),
            false => (Buf::empty(), None),
        };
        let nonce = random_u64() | 1;
        // What is decided and not durable may touch it.
        let decided = (map.version.0 + 1..=self.map.version.0).map(MapVersion);
        let mut held = HeldSlice {
            nonce,
            slice,
            at,
            left: BTreeSet::new(),
            touches: VecDeque::new(),
            passed_over: MapVersion(0),
            newest: map.version,
        };
        decided.for_each(|touch| held.note_touch(touch));
        if let Some(member) = self.members.get_mut(&target) {
            (member.slice, member.awaits_map) = (Some(held), false);
        }
        (nonce, bytes)
    }

    /// Which entries of the durable map are in the slice of a target, which holds these groups. Looks
    /// through all groups only if something is decided and not durable.
    fn slice_with(&self, target: TargetId, held: BTreeSet<GroupId>) -> TargetSlice {
        let map = &self.durable.map;
        if map.version != self.map.version {
            return TargetSlice::of(map, target, held);
        }
        let drives: BTreeSet<DriveId> = self.index.drives_of(target).collect();
        let groups = drives.iter().flat_map(|drive| self.index.groups_of(*drive));
        let slice = TargetSlice { target, held: held.into_iter().chain(groups).collect(), drives };
        debug_assert_eq!(slice, TargetSlice::of(map, target, slice.held.clone()));
        slice
    }

    /// The slice of a target in the newest map that targets are sent.
    fn slice_of(&self, target: TargetId) -> Vec<u8> {
        let held = self.members.get(&target).and_then(|member| member.slice.as_ref());
        let held = held.map_or_else(BTreeSet::new, |held| held.slice.held.clone());
        let map = &self.durable.map;
        encode_whole(&self.slice_with(target, held).slice(map))
    }
}

impl Member {
    fn note_touch(&mut self, version: MapVersion) {
        if let Some(held) = &mut self.slice {
            held.note_touch(version);
        }
    }
}

impl Manager {
    /// What a target is sent that has joined over a connection of this protocol, with these drives.
    pub(crate) fn joined_map(
        &self,
        target: TargetId,
        drives: &[DriveReport],
        takes_slices: bool,
    ) -> (u64, Buf) {
        self.state.borrow_mut().joined_map(target, drives, takes_slices, self.nonce())
    }

    /// The slice of a target, as it travels, and its version.
    pub(crate) fn whole_slice_of(&self, target: TargetId) -> (MapVersion, Buf) {
        let state = self.state.borrow();
        (state.durable.map.version, Buf::from(state.slice_of(target)))
    }
}

/// The targets with drives that a group lists.
fn members_of(map: &FabricMap, group: GroupId) -> BTreeSet<TargetId> {
    let slots = map.groups.get(&group).into_iter().flat_map(|g| &g.slots);
    slots.filter_map(|slot| map.drives.get(&slot.drive)).map(|drive| drive.target).collect()
}

/// Targets that hold a group and have no member of it.
pub(crate) type Holders = BTreeMap<GroupId, BTreeSet<TargetId>>;
