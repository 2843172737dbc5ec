//! The page of a node.

use crate::family::{NODE, PROCESS};
use crate::page::Page;
use std::collections::BTreeMap;
use weft_rt::Budget;
use weft_types::{BLOCK_SIZE, MeterReading};
use weft_wire::control::TargetStatus;
use weft_wire::load::TargetLoad;

/// What a node's target says of itself, as text.
pub fn node_page(node: &str, status: &TargetStatus, load: &TargetLoad, budget: &Budget) -> String {
    let mut page = Page::new(&[NODE, PROCESS], vec![("node", node.to_owned())]);
    page.number("node_serving", &[], u64::from(status.serving));
    page.number("node_manager_lease", &[], u64::from(load.leased));
    page.bytes("node_copied", &[], load.copied_bytes);
    page.bytes("node_owed", &[], budget.held_bytes());
    page.number("node_connections_waiting", &[], budget.waiting() as u64);
    page.number("node_requests_slow", &[], load.slow_requests);
    page.number("node_requests_failed", &[], load.failed_requests);
    let running = || status.resyncs.iter().filter(|r| !r.done);
    page.number("node_resyncs", &[], running().count() as u64);
    let copied: u64 = running().map(|r| r.blocks_copied).sum();
    page.bytes("node_resync_copied", &[], copied.saturating_mul(BLOCK_SIZE as u64));
    for drive in &status.drives {
        let id = &[&*drive.id.to_string()];
        page.bytes("drive_capacity", id, drive.capacity_bytes);
        page.bytes("drive_used", id, drive.used_bytes);
        page.number("drive_failed", id, u64::from(drive.failed.is_some()));
        page.number("drive_blocks_damaged", id, drive.blocks_damaged);
        page.number("drive_blocks_healed", id, drive.blocks_healed);
    }
    for drive in &load.drives {
        let id = drive.id.to_string();
        page.meter("drive", &id, &drive.meter);
        page.number("drive_probes", &[&id], drive.meter.probes);
        page.number("drive_requests_in_flight", &[&id], drive.meter.in_flight);
        page.bytes("drive_data_written", &[&id], drive.data_bytes_written);
        page.bytes("drive_log_written", &[&id], drive.log_bytes_written);
    }
    // One that is being deleted may have the name of its successor.
    let mut volumes: BTreeMap<&str, MeterReading> = BTreeMap::new();
    for volume in &load.volumes {
        volumes.entry(&volume.name).or_default().add(&volume.meter);
    }
    for (name, meter) in &volumes {
        page.meter("volume", name, meter);
    }
    page.build();
    if let Some(process) = &load.process {
        page.process(process);
    }
    page.render()
}
