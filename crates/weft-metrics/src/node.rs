//! The page of a node.

use crate::family::{NODE, PROCESS};
use crate::page::Page;
use std::collections::BTreeMap;
use weft_types::{BLOCK_SIZE, MeterReading};
use weft_wire::control::TargetStatus;
use weft_wire::load::TargetLoad;

/// What a target says of itself.
#[derive(Clone, Debug, Default)]
pub struct TargetPage {
    /// Its drives and resyncs.
    pub status: TargetStatus,
    /// Its counters.
    pub load: TargetLoad,
    /// Bytes of memory that it owes to requests and answers (P10).
    pub owed_bytes: u64,
    /// Connections that wait for their turn to be read.
    pub waiting: u64,
}

/// What the targets of a node say of themselves, as text: one page for all of them.
pub fn node_page(node: &str, targets: &[TargetPage]) -> String {
    let mut page = Page::new(&[NODE, PROCESS], vec![("node", node.to_owned())]);
    let all =
        |is_so: &dyn Fn(&TargetPage) -> bool| u64::from(!targets.is_empty() && targets.iter().all(is_so));
    let sum = |of: &dyn Fn(&TargetPage) -> u64| targets.iter().map(of).sum::<u64>();
    page.number("node_targets", &[], targets.len() as u64);
    page.number("node_serving", &[], all(&|target| target.status.serving));
    page.number("node_manager_lease", &[], all(&|target| target.load.leased));
    page.bytes("node_copied", &[], sum(&|target| target.load.copied_bytes));
    page.bytes("node_owed", &[], sum(&|target| target.owed_bytes));
    page.number("node_connections_waiting", &[], sum(&|target| target.waiting));
    page.number("node_requests_slow", &[], sum(&|target| target.load.slow_requests));
    page.number("node_requests_failed", &[], sum(&|target| target.load.failed_requests));
    let running = || targets.iter().flat_map(|target| &target.status.resyncs).filter(|r| !r.done);
    page.number("node_resyncs", &[], running().count() as u64);
    let copied: u64 = running().map(|r| r.blocks_copied).sum();
    page.bytes("node_resync_copied", &[], copied.saturating_mul(BLOCK_SIZE as u64));
    for drive in targets.iter().flat_map(|target| &target.status.drives) {
        let id = &[&*drive.id.to_string()];
        page.bytes("drive_capacity", id, drive.capacity_bytes);
        page.bytes("drive_used", id, drive.used_bytes);
        page.number("drive_failed", id, u64::from(drive.failed.is_some()));
        page.number("drive_blocks_damaged", id, drive.blocks_damaged);
        page.number("drive_blocks_healed", id, drive.blocks_healed);
    }
    for drive in targets.iter().flat_map(|target| &target.load.drives) {
        let id = drive.id.to_string();
        page.meter("drive", &id, &drive.meter);
        page.number("drive_probes", &[&id], drive.meter.probes);
        page.number("drive_requests_in_flight", &[&id], drive.meter.in_flight);
        page.bytes("drive_data_written", &[&id], drive.data_bytes_written);
        page.bytes("drive_log_written", &[&id], drive.log_bytes_written);
    }
    // One that is being deleted may have the name of its successor.
    let mut volumes: BTreeMap<&str, MeterReading> = BTreeMap::new();
    for volume in targets.iter().flat_map(|target| &target.load.volumes) {
        volumes.entry(&volume.name).or_default().add(&volume.meter);
    }
    for (name, meter) in &volumes {
        page.meter("volume", name, meter);
    }
    page.build();
    // One process counts for all of its targets.
    if let Some(process) = targets.iter().find_map(|target| target.load.process.as_ref()) {
        page.process(process);
    }
    page.render()
}
