//! Tombstones vanish in the end (R7): once all is quiet, floors rise above them, and they leave the maps of
//! the drives.

use crate::bed::Bed;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{now, sim, sleep, wall_clock_us};
use weft_types::{Role, Version};
use weft_wire::data::clock_counter;

/// Virtual time within which the last tombstones are gone: some rounds, and a walk over each drive's map.
const GONE_WITHIN: Duration = Duration::from_secs(60);

/// Waits until no in-sync member of a group has a tombstone. Clocks are put right first: a session that writes
/// nothing, on a machine whose clock is behind by more than is followed, keeps what others discard. For the
/// same reason a group is passed over whose newest tombstone lies ahead of the right clock: a clock that was
/// ahead gave its version.
///
/// # Errors
/// Who still has one after a long time.
pub async fn check(bed: &Rc<Bed>) -> Result<(), String> {
    bed.put_clocks_right();
    let from = now();
    loop {
        let map = bed.map().await;
        let mut left = None;
        for group in map.groups.values() {
            for store in bed.nodes.iter().flat_map(|n| n.stores()) {
                let slot = group.slot_of(store.label().drive).filter(|s| s.role == Role::InSync);
                let newest = store.newest_tombstone(group.id);
                if slot.is_some() && !store.has_forgotten(group.id) && !newest.is_some_and(is_ahead) {
                    left = Some(format!(
                        "group {} has {newest:?} on drive {}, its floor is {} there and {} in the map",
                        group.id,
                        store.label().drive,
                        store.floor(group.id),
                        group.floor
                    ));
                }
            }
        }
        let Some(left) = left else {
            sim::tell(|| "every discard is forgotten".into());
            return Ok(());
        };
        if now() - from > GONE_WITHIN {
            return Err(format!("tombstones are left {GONE_WITHIN:?} after all was quiet: {left}"));
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Whether a version is of a clock that was ahead of the right one.
fn is_ahead(version: Version) -> bool {
    version.counter() > clock_counter(wall_clock_us())
}
