//! The page of a node.

use crate::family::{NODE, PROCESS};
use crate::page::Page;
use std::collections::BTreeMap;
use weft_types::{BLOCK_SIZE, MeterReading};
use weft_wire::control::TargetStatus;
use weft_wire::load::TargetLoad;

/// What the targets of a node say of themselves, as text: one page for all of them.
pub fn node_page(node: &str, targets: &[(TargetStatus, TargetLoad)]) -> String {
    let mut page = Page::new(&[NODE, PROCESS], vec![("node", node.to_owned())]);
    let all = |is_so: &dyn Fn(&(TargetStatus, TargetLoad)) -> bool| {
        u64::from(!targets.is_empty() && targets.iter().all(is_so))
    };
    let sum = |of: &dyn Fn(&TargetLoad) -> u64| targets.iter().map(|(_, load)| of(load)).sum::<u64>();
    page.number("node_targets", &[], targets.len() as u64);
    page.number("node_serving", &[], all(&|(status, _)| status.serving));
    page.number("node_manager_lease", &[], all(&|(_, load)| load.leased));
    page.bytes("node_copied", &[], sum(&|load| load.copied_bytes));
    page.number("node_requests_slow", &[], sum(&|load| load.slow_requests));
    page.number("node_requests_failed", &[], sum(&|load| load.failed_requests));
    let running = || targets.iter().flat_map(|(status, _)| &status.resyncs).filter(|r| !r.done);
    page.number("node_resyncs", &[], running().count() as u64);
    let copied: u64 = running().map(|r| r.blocks_copied).sum();
    page.bytes("node_resync_copied", &[], copied.saturating_mul(BLOCK_SIZE as u64));
    for drive in targets.iter().flat_map(|(status, _)| &status.drives) {
        let id = &[&*drive.id.to_string()];
        page.bytes("drive_capacity", id, drive.capacity_bytes);
        page.bytes("drive_used", id, drive.used_bytes);
        page.number("drive_failed", id, u64::from(drive.failed.is_some()));
        page.number("drive_blocks_damaged", id, drive.blocks_damaged);
        page.number("drive_blocks_healed", id, drive.blocks_healed);
    }
    for drive in targets.iter().flat_map(|(_, load)| &load.drives) {
        let id = drive.id.to_string();
        page.meter("drive", &id, &drive.meter);
        page.number("drive_probes", &[&id], drive.meter.probes);
        page.number("drive_requests_in_flight", &[&id], drive.meter.in_flight);
        page.bytes("drive_data_written", &[&id], drive.data_bytes_written);
        page.bytes("drive_log_written", &[&id], drive.log_bytes_written);
    }
    // One that is being deleted may have the name of its successor.
    let mut volumes: BTreeMap<&str, MeterReading> = BTreeMap::new();
    for volume in targets.iter().flat_map(|(_, load)| &load.volumes) {
        volumes.entry(&volume.name).or_default().add(&volume.meter);
    }
    for (name, meter) in &volumes {
        page.meter("volume", name, meter);
    }
    page.build();
    // One process counts for all of its targets.
    if let Some(process) = targets.iter().find_map(|(_, load)| load.process.as_ref()) {
        page.process(process);
    }
    page.render()
}
