//! How the map travels (C8): what has changed in a slice of it, to those who follow that.
//!
//! It owns the versions of the map that were there lately, and the answers to `Follow`. It decides nothing.

use crate::manager::Manager;
use crate::serve::WATCH_MAX;
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use weft_rt::{Buf, random_u64, timeout};
use weft_rules::{Mutation, mutated};
use weft_types::limits::{FRAME_BODY_MAX, MAP_VERSIONS_KEPT_MAX};
use weft_types::{Delta, FabricMap, MapVersion, Session, Slice, TargetId};
use weft_wire::control::ManagerAnswer;
use weft_wire::pieces::{encode_delta, encode_whole};

/// A push has so much of a lease to be faster than the answer to a target that asks.
const PUSHED_PART: u32 = 4;

/// The newest versions of the map, all of them durable.
pub(crate) struct RecentMaps {
    /// Oldest first.
    maps: VecDeque<Rc<FabricMap>>,
    /// What the commits between them changed: one less than there are maps.
    changes: VecDeque<Delta>,
}

impl RecentMaps {
    pub(crate) fn starting(map: Rc<FabricMap>) -> RecentMaps {
        RecentMaps { maps: VecDeque::from([map]), changes: VecDeque::new() }
    }

    /// Adds the version after the newest, and what its commit changed. It must be durable: followers are sent
    /// it.
    pub(crate) fn add(&mut self, map: Rc<FabricMap>, change: Delta) {
        if self.maps.len() == MAP_VERSIONS_KEPT_MAX {
            self.maps.pop_front();
            self.changes.pop_front();
        }
        self.maps.push_back(map);
        self.changes.push_back(change);
    }

    pub(crate) fn get(&self, version: MapVersion) -> Option<Rc<FabricMap>> {
        self.place_of(version).map(|at| self.maps[at].clone())
    }

    /// What the commits after this version changed, oldest first; `None` if the version is not kept.
    pub(crate) fn since(&self, version: MapVersion) -> Option<impl Iterator<Item = &Delta>> {
        self.place_of(version).map(|at| self.changes.range(at..))
    }

    fn oldest(&self) -> Option<Rc<FabricMap>> {
        self.maps.front().cloned()
    }

    fn place_of(&self, version: MapVersion) -> Option<usize> {
        self.maps.binary_search_by_key(&version, |map| map.version).ok()
    }
}

impl Manager {
    /// Random, never 0: tells versions of the map that this process sends from the same ones of
    /// another process, whose store may say something else.
    pub(crate) fn nonce(&self) -> u64 {
        *self.nonce.get_or_init(|| random_u64() | 1)
    }

    /// Waits until something has changed in the slice since that version, and says what.
    ///
    /// No map is held back from a target that has promised not to vouch for a node: its promise
    /// does not end with a map, but with the adoption of a grant's map that comes without that node
    /// among the suspects. And a suspected node needs the map that evicted it to come back.
    pub(crate) async fn follow(
        &self,
        version: MapVersion,
        nonce: u64,
        slice: &Slice,
    ) -> (ManagerAnswer, Option<Buf>) {
        if let Slice::Target(target) = slice {
            return self.follow_target(*target, version, nonce).await;
        }
        let known = match nonce == self.nonce() {
            true => self.state.borrow().recent.get(version).or_else(|| self.some_other_map()),
            false => None,
        };
        match known {
            Some(map) => self.follow_on(&map, slice).await,
            None => self.follow_from_elsewhere(version, nonce, slice).await,
        }
    }

    /// What a target is answered that has seen a version named which it has not: its slice as soon as that
    /// is durable, and only if it is not sent what has changed in time, as every target is.
    async fn follow_target(
        &self,
        target: TargetId,
        version: MapVersion,
        nonce: u64,
    ) -> (ManagerAnswer, Option<Buf>) {
        if !self.durable_map().targets.contains_key(&target) {
            return self.whole_slice(&Slice::Target(target));
        }
        let is_newer = || {
            let state = self.state.borrow();
            let durable = state.durable.map.version;
            durable >= version
                && (!state.has_sent(target, nonce) || state.newest_for_up_to(target, durable) > version)
        };
        let newer = self.until(is_newer);
        if timeout(WATCH_MAX, newer).await.is_err() {
            return (ManagerAnswer::Followed { from: version, version, nonce }, None);
        }
        let named = self.durable_map().version;
        let pushed = self.until(|| self.state.borrow().is_at(target, named));
        match timeout(self.lease() / PUSHED_PART, pushed).await {
            Ok(()) => (ManagerAnswer::Followed { from: version, version, nonce }, None),
            Err(_) => {
                let (version, bytes) = self.whole_slice_of(target);
                // What it is sent by itself leads on from what it was sent so: not from this.
                let answer = ManagerAnswer::Followed { from: MapVersion(0), version, nonce: 0 };
                (answer, Some(bytes))
            }
        }
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_so() {
                return;
            }
            changed.await;
        }
    }

    /// None: what has changed since one version says nothing of what has changed since another.
    fn some_other_map(&self) -> Option<Rc<FabricMap>> {
        let is_broken = mutated(Mutation::DeltaOverGap) || mutated(Mutation::SkipOverGap);
        self.state.borrow().recent.oldest().filter(|_| is_broken)
    }

    /// Waits until the slice is not what it was in this map.
    async fn follow_on(&self, known: &FabricMap, slice: &Slice) -> (ManagerAnswer, Option<Buf>) {
        let held = known.slice(slice);
        let looked_at = Cell::new(known.version);
        let changed = async {
            loop {
                let changed = self.changed.notified();
                let map = self.durable_map();
                if self.may_have_changed(slice, &held, looked_at.get()) {
                    let delta = match mutated(Mutation::SliceFilter) {
                        true => touched_in(known, &map, slice),
                        // What enters or leaves the slice may be touched by no commit.
                        false => map.slice(slice).delta_from(&held),
                    };
                    if !delta.is_empty() || delta.next_id != held.next_id {
                        return (map, delta);
                    }
                }
                looked_at.set(map.version);
                changed.await;
            }
        };
        match timeout(WATCH_MAX, changed).await {
            Ok((map, delta)) => self.what_changed(&map, slice, &delta),
            Err(_) => self.followed(known.version, looked_at.get(), None),
        }
    }

    /// Whether the slice may not be `held` any more, as which it was last seen in this version. Costs what
    /// the commits since then changed. As long as each of them leaves it as it is, the next one can be judged
    /// by it.
    fn may_have_changed(&self, slice: &Slice, held: &FabricMap, since: MapVersion) -> bool {
        let state = self.state.borrow();
        state.recent.since(since).is_none_or(|mut changes| changes.any(|delta| slice.may_change(held, delta)))
    }

    /// Of one who has a version that this manager cannot compare with: all of the slice, as soon as
    /// it is not older.
    async fn follow_from_elsewhere(
        &self,
        version: MapVersion,
        nonce: u64,
        slice: &Slice,
    ) -> (ManagerAnswer, Option<Buf>) {
        let reached = async {
            loop {
                let changed = self.changed.notified();
                if self.durable_map().version >= version {
                    return;
                }
                changed.await;
            }
        };
        match timeout(WATCH_MAX, reached).await {
            Ok(()) => self.whole_slice(slice),
            Err(_) => (ManagerAnswer::Followed { from: version, version, nonce }, None),
        }
    }

    /// The delta of a slice that leads to this map; the slice itself where the delta is too long to be sent.
    fn what_changed(&self, map: &FabricMap, slice: &Slice, delta: &Delta) -> (ManagerAnswer, Option<Buf>) {
        let bytes = encode_delta(delta);
        match bytes.len() > FRAME_BODY_MAX {
            true => self.whole_slice(slice),
            false => self.followed(delta.from, map.version, Some(bytes)),
        }
    }

    fn whole_slice(&self, slice: &Slice) -> (ManagerAnswer, Option<Buf>) {
        let version = self.durable_map().version;
        let answer = ManagerAnswer::Followed { from: MapVersion(0), version, nonce: self.nonce() };
        (answer, Some(self.slice_bytes(slice)))
    }

    fn followed(
        &self,
        from: MapVersion,
        version: MapVersion,
        delta: Option<Vec<u8>>,
    ) -> (ManagerAnswer, Option<Buf>) {
        (ManagerAnswer::Followed { from, version, nonce: self.nonce() }, delta.map(Buf::from))
    }

    /// What a client is sent that has attached: what it follows already and what concerns the
    /// session, or the whole map, if it is of an older release.
    pub(crate) fn attached_map(&self, session: &Session, follows: Option<Slice>) -> (u64, Buf) {
        match follows {
            Some(Slice::Client { mut volumes, mut sessions }) => {
                volumes.insert(session.volume);
                sessions.insert(session.id);
                (self.nonce(), self.slice_bytes(&Slice::Client { volumes, sessions }))
            }
            Some(slice) => (self.nonce(), self.slice_bytes(&slice)),
            None => (0, self.state.borrow().bytes()),
        }
    }

    /// A slice of the durable map, as it travels.
    fn slice_bytes(&self, slice: &Slice) -> Buf {
        Buf::from(encode_whole(&self.durable_map().slice(slice)))
    }
}

/// What commits have touched of a slice: what only enters or leaves it is missing.
fn touched_in(old: &FabricMap, new: &FabricMap, slice: &Slice) -> Delta {
    let (held, next) = (old.slice(slice), new.slice(slice));
    let mut delta = new.delta_from(old);
    delta.next_id = next.next_id;
    delta.put.retain(|piece| held.lists(piece.key()) || next.lists(piece.key()));
    delta.removed.retain(|key| held.lists(*key));
    delta
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::FabricId;

    #[test]
    fn the_newest_versions_are_kept() {
        let map =
            |version| Rc::new(FabricMap { version: MapVersion(version), ..FabricMap::empty(FabricId(1)) });
        let mut recent = RecentMaps::starting(map(5));
        let last = 5 + MAP_VERSIONS_KEPT_MAX as u64;
        for version in 6..=last {
            recent.add(map(version), map(version).delta_from(&map(version - 1)));
        }
        assert!(recent.get(MapVersion(5)).is_none() && recent.get(MapVersion(last + 1)).is_none());
        assert!(recent.since(MapVersion(5)).is_none());
        for version in 6..=last {
            assert_eq!(recent.get(MapVersion(version)).map(|m| m.version), Some(MapVersion(version)));
            let changes = recent.since(MapVersion(version)).expect("it is kept");
            let led_to: Vec<u64> = changes.map(|delta| delta.to.0).collect();
            assert_eq!(led_to, (version + 1..=last).collect::<Vec<_>>());
        }
    }
}
