//! What this target has: for `weft fabric check`, and for people who decide about lost data. It only looks.

use crate::drive::ServedDrive;
use crate::target::Target;
use std::collections::BTreeSet;
use weft_rt::wall_clock_us;
use weft_store::{Cursor, StoreError};
use weft_types::{GroupId, MapVersion, VolumeId, with_causes};
use weft_wire::control::{DriveInventory, HeldGroup, Holding, Inventory};

impl Target {
    /// Drives, the groups that they know, and what they hold of those that are named.
    pub(crate) async fn inventory(&self, detail: &BTreeSet<GroupId>) -> Inventory {
        let mut drives = Vec::new();
        for drive in self.drives.values() {
            let mut entry = DriveInventory {
                id: drive.id,
                path: drive.path.clone(),
                format: drive.store.label().format,
                failed: drive.failure(),
                map_copy: MapVersion(0),
                commit: drive.store.durable_commit(),
                groups: Vec::new(),
            };
            if let Err(error) = fill(drive, detail, &mut entry).await {
                entry.failed.get_or_insert(with_causes(&error));
            }
            drives.push(entry);
        }
        Inventory {
            software: env!("CARGO_PKG_VERSION").to_owned(),
            clock_us: wall_clock_us(),
            map: self.adopted_version(),
            drives,
        }
    }

    /// Whether a drive of this target holds data of the volume.
    ///
    /// # Errors
    /// If a drive cannot be read.
    pub(crate) async fn holds_data_of(&self, volume: VolumeId) -> Result<bool, StoreError> {
        for drive in self.drives.values().filter(|d| !d.has_failed()) {
            if drive.store.holds_data_of(volume).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

async fn fill(
    drive: &ServedDrive,
    detail: &BTreeSet<GroupId>,
    entry: &mut DriveInventory,
) -> Result<(), StoreError> {
    let store = &drive.store;
    entry.map_copy = MapVersion(store.map_copy().await?.map_or(0, |(version, _)| version));
    for id in store.groups() {
        let Some(known) = store.group(id) else { continue };
        let slot = known.slot_of(drive.id);
        let mut held = HeldGroup {
            group: id,
            epoch: known.epoch,
            role: slot.map(|s| s.role),
            since: slot.map(|s| s.since),
            volumes: store.volumes_in(id).await?,
            holding: None,
        };
        if detail.contains(&id) {
            let found = store.holding(id).await?;
            let verified = match store.verify_state(id).map(|s| s.cursor) {
                Some(Cursor::At(object, chunk)) => Some((object, chunk)),
                Some(Cursor::End) | None => None,
            };
            held.holding = Some(Holding {
                chunks: found.chunks,
                blocks: found.blocks,
                readable: Some(found.readable),
                zeroes: Some(found.zeroes),
                newest: found.newest,
                verified_below: verified,
            });
        }
        entry.groups.push(held);
    }
    Ok(())
}
