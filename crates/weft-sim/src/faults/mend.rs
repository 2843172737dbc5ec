//! How everything is put in order again: what faults leave behind, and what people do about it.

use super::Guard;
use crate::bed::{Bed, USUAL_SLOWNESS};
use std::rc::Rc;
use std::time::Duration;
use weft_api::ApiRequest;
use weft_rt::sim::{self, Crash, DiskFaults};
use weft_types::{DriveId, DriveState};

/// Latency of a network at which nothing is wrong.
pub(crate) fn usual_latency() {
    sim::set_latency(Duration::from_micros(5), Duration::from_micros(200));
}

/// Ends every fault that is still there: networks, drives and processes work again. What cannot be read stays so.
pub fn heal(bed: &Rc<Bed>) {
    sim::tell(|| "everything heals".into());
    sim::heal_network();
    usual_latency();
    bed.map_store().set_slowness(USUAL_SLOWNESS);
    sim::resume_all();
    for (n, node) in bed.nodes.iter().enumerate() {
        let mut is_one_back = false;
        for (at, disk) in node.disks().into_iter().enumerate() {
            disk.set_faults(|f| {
                *f = DiskFaults { unreadable: std::mem::take(&mut f.unreadable), ..DiskFaults::default() }
            });
            is_one_back |= node.put_back(at);
        }
        if is_one_back {
            // It is found at the next start.
            bed.kill_node(n, Crash::Process);
        }
    }
    bed.start_manager();
    for n in 0..bed.nodes.len() {
        bed.start_node(n);
    }
}

/// Does what people do about drives that are broken: one step of everything that can be done now.
pub async fn mend(bed: &Rc<Bed>, guard: &Guard) {
    bed.start_manager();
    let map = bed.truth();
    for (n, node) in bed.nodes.iter().enumerate().filter(|(_, node)| !node.is_lost()) {
        for (d, id) in node.drives_now().into_iter().enumerate() {
            let request = |id: String| ApiRequest::DriveRestore { id, device: false, dry_run: false };
            let is_latched = bed.store(id).is_some_and(|store| store.failure().is_some());
            if is_latched {
                bed.kill_node(n, Crash::Process);
                bed.start_node(n);
            }
            match map.drives.get(&id).map(|drive| drive.state) {
                Some(DriveState::Failed) => bed.ask(request(id.to_string())).await,
                Some(DriveState::Draining) => call_off(bed, id).await,
                _ => {}
            }
            let victims = node.device_drives(d);
            if bed.is_to_be_replaced(n, d) && guard.may_destroy(bed, &victims) {
                bed.kill_node(n, Crash::PowerCut);
                bed.put_empty_device(n, d).await;
                guard.note_destroyed(&victims);
                bed.start_node(n);
            }
        }
    }
    for (old, new) in bed.replaced() {
        let is_needed = map.groups.values().any(|g| g.slot_of(old).is_some());
        if is_needed && map.drives.contains_key(&new) {
            if map.drives.get(&old).is_some_and(|drive| drive.state == DriveState::Draining) {
                // What was to pass to drives that are gone as well does not pass any more.
                call_off(bed, old).await;
            }
            let (id, with) = (old.to_string(), new.to_string());
            bed.ask(ApiRequest::DriveReplace { id, with, device: false, dry_run: false }).await;
        }
    }
}

/// Has a drive take part again that is being emptied.
async fn call_off(bed: &Rc<Bed>, drive: DriveId) {
    let id = drive.to_string();
    bed.ask(ApiRequest::DriveEvacuate { id, cancel: true, device: false, dry_run: false }).await;
}
