//! What a target says of itself, for people. It never decides anything.

use crate::drive::ServedDrive;
use crate::target::Target;
use weft_types::BLOCK_SIZE;
use weft_wire::control::{DriveStatus, TargetStatus};

impl Target {
    /// Drives, resyncs, and whether anything is served.
    pub fn status(&self) -> TargetStatus {
        let members = self.members();
        TargetStatus {
            drives: self.drives.values().filter(|d| !d.is_refused()).map(|d| drive_status(d)).collect(),
            resyncs: self.resyncs.borrow().values().map(|resync| resync.status()).collect(),
            pace_percent: self.throttle.pace_percent(),
            unserved: self.unserved.borrow().clone(),
            serving: self.holds_lease(None) || members.iter().any(|m| self.holds_lease(Some(m))),
        }
    }
}

fn drive_status(drive: &ServedDrive) -> DriveStatus {
    let usage = drive.store.usage();
    let block = BLOCK_SIZE as u64;
    DriveStatus {
        id: drive.id,
        path: drive.path.clone(),
        capacity_bytes: usage.capacity_blocks * block,
        // What was replaced or discarded returns with the next checkpoint: it holds nothing any more.
        used_bytes: usage.used_blocks.saturating_sub(usage.pending_free_blocks) * block,
        free_bytes: Some((usage.free_blocks + usage.pending_free_blocks) * block),
        log_bytes_written: usage.log_bytes_written,
        data_bytes_written: usage.data_bytes_written,
        failed: drive.failure(),
        vanished: drive.vanished(),
        blocks_damaged: usage.damaged_found,
        blocks_healed: usage.damaged_healed,
    }
}
