//! Forgetting tombstones (R7): the floor of a group, and the work of taking tombstones below it out of the
//! block map.
//!
//! A tombstone below the floor counts as never written from the instant at which the floor is known: for
//! verdicts, reads, digests and copies. So when it leaves the map changes nothing that anyone can see, and
//! needs no record. A checkpoint leaves such tombstones out of the leaves that it writes, and a task goes
//! through the other leaves of the group, a few at a time, and makes those dirty that have one. A crash on
//! the way costs that work and nothing else. It never decides where the floor is.

use crate::StoreError;
use crate::engine::Engine;
use crate::leaf::LeafKey;
use crate::record::Record;
use crate::state::{Room, State};
use crate::store::Store;
use crate::tree::UNKNOWN;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sleep;
use weft_rules::{Path, mark};
use weft_types::{GroupId, SessionSlot, Version};

/// Leaves that are looked at between two pauses.
const LEAVES_PER_STEP: usize = 64;

/// How long clients have the drive for themselves between two steps: 3,000 leaves a second at most, a
/// quarter of an hour for the map of 1 TiB of data.
const PAUSE: Duration = Duration::from_millis(20);

/// How long to wait before a drive without room for another dirty leaf is tried again.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(1);

impl Store {
    /// Raises the floor of a group (R7): no version below it can be open any more, or be taken by anyone.
    /// Tombstones below it count as never written from now on, and leave the map in the background. Durable
    /// on return; it never falls.
    ///
    /// # Errors
    /// `UnknownGroup`, or the store has failed.
    pub async fn set_floor(&self, group: GroupId, floor: Version) -> Result<(), StoreError> {
        self.log(|state| {
            let held = state.drive.group(group)?.floor;
            Ok((floor > held).then_some(Record::Floor { group, version: floor }))
        })
        .await?;
        self.engine.floor_raised.notify_all();
        Ok(())
    }

    /// The floor of a group; zero if none was set, and for a group that this drive does not know.
    pub fn floor(&self, group: GroupId) -> Version {
        self.engine.state.borrow().floor_of(group)
    }

    /// Per session slot of which something is known in a group: the watermark, and the lowest version above
    /// it that is open, settled or not.
    pub fn open_by_session(&self, group: GroupId) -> Vec<(SessionSlot, Version, Option<Version>)> {
        let state = self.engine.state.borrow();
        let Some(held) = state.drive.groups.get(&group) else { return Vec::new() };
        let lowest = |slot| held.marks.entries_of(slot).next().map(|entry| entry.version);
        held.marks.slots().map(|slot| (slot, held.marks.watermark(slot), lowest(slot))).collect()
    }

    /// Whether all tombstones of a group are below its floor and have left the map.
    pub fn has_forgotten(&self, group: GroupId) -> bool {
        let is_walked = {
            let state = self.engine.state.borrow();
            state.drive.groups.get(&group).is_none_or(|held| held.forgotten >= held.floor)
        };
        is_walked && self.newest_tombstone(group).is_none()
    }

    /// The newest tombstone of a group that a higher floor would let go; `None` if there is none. After a
    /// restart that is an upper bound, until the floor has passed it: the newest version on the drive.
    pub fn newest_tombstone(&self, group: GroupId) -> Option<Version> {
        let state = self.engine.state.borrow();
        let held = state.drive.groups.get(&group)?;
        let at_open = state.newest_at_open.filter(|newest| *newest != UNKNOWN);
        let since = state.tombstones.get(&group).copied();
        since.max(at_open).filter(|newest| *newest != Version::ZERO && *newest >= held.floor)
    }
}

/// Takes tombstones below the floors of their groups out of the map, until the store is stopped or fails.
pub(crate) async fn run(engine: Rc<Engine>) {
    loop {
        let raised = engine.floor_raised.notified();
        let next = {
            let state = engine.state.borrow();
            if state.is_stopped || state.is_closing || state.failed.is_some() {
                return;
            }
            let mut groups = state.drive.groups.iter();
            groups.find(|(_, g)| g.forgotten < g.floor).map(|(group, g)| (*group, g.floor))
        };
        let Some((group, floor)) = next else {
            raised.await;
            continue;
        };
        match walk(&engine, group, floor).await {
            Ok(()) => {
                mark(Path::TombstonesForgotten);
                let mut state = engine.state.borrow_mut();
                if let Ok(held) = state.drive.group_mut(group) {
                    held.forgotten = held.forgotten.max(floor);
                }
            }
            // A drive that has no room for what the next checkpoint would write; or it has failed, and that
            // is seen above.
            Err(error) => {
                tracing::debug!(%group, %error, "tombstones are not forgotten yet");
                sleep(NO_ROOM_PAUSE).await;
            }
        }
    }
}

/// Goes through the leaves of a group once.
async fn walk(engine: &Engine, group: GroupId, floor: Version) -> Result<(), StoreError> {
    let end = group.0.checked_add(1).map(|next| LeafKey::first_of(GroupId(next)));
    let mut next = Some(LeafKey::first_of(group));
    while let Some(from) = next {
        let (found, more) = engine.scan(from, end, LEAVES_PER_STEP).await?;
        for (key, leaf) in found {
            if leaf.has_tombstone_below(floor) {
                forget_in(engine, key).await?;
            }
        }
        next = more;
        sleep(PAUSE).await;
        engine.state.borrow().check()?;
    }
    Ok(())
}

/// Makes a leaf dirty, without its tombstones below the floor.
async fn forget_in(engine: &Engine, key: LeafKey) -> Result<(), StoreError> {
    let mut attempt = 0;
    loop {
        engine.admit().await?;
        engine.load(key).await?;
        let room = {
            let mut state = engine.state.borrow_mut();
            let state = &mut *state;
            let floor = state.floor_of(key.group);
            if !state.has_room() {
                continue;
            }
            match state.map.get(&key).map(|leaf| leaf.has_tombstone_below(floor)) {
                None => continue,
                Some(false) => return Ok(()),
                Some(true) => {}
            }
            let room = state.room_for(0, u64::from(!state.map.is_dirty(&key)));
            if room == Room::Enough {
                state.figures.tombstones_forgotten += state.map.forget(key, floor);
                return Ok(());
            }
            room
        };
        attempt += 1;
        engine.make_room(0, room, attempt).await?;
    }
}

impl State {
    /// The floor of a group, zero if there is none.
    pub(crate) fn floor_of(&self, group: GroupId) -> Version {
        self.drive.groups.get(&group).map_or(Version::ZERO, |held| held.floor)
    }

    /// Notes that a tombstone was put in a group.
    pub(crate) fn note_tombstone(&mut self, group: GroupId, version: Version) {
        let newest = self.tombstones.entry(group).or_default();
        *newest = version.max(*newest);
    }
}
