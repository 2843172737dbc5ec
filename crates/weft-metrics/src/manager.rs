//! The page of a manager.

use crate::family::{MANAGER, PROCESS};
use crate::page::Page;
use std::collections::{BTreeMap, BTreeSet};
use weft_api::{FabricStatus, Health, Presence, Repair, ScrubInfo};
use weft_types::{BLOCK_SIZE, DriveState, FabricMap, ProcessLoad};

/// What a manager knows, of which its page is made.
#[derive(Clone, Copy, Debug)]
pub struct ManagerView<'a> {
    /// The fabric at a glance.
    pub status: &'a FabricStatus,
    /// The fabric map.
    pub map: &'a FabricMap,
    /// Scrubs.
    pub scrub: &'a ScrubInfo,
    /// How many events of each kind there were since the process started.
    pub events: &'a BTreeMap<String, u64>,
    /// What the process has used.
    pub process: &'a ProcessLoad,
}

/// What a manager says of the fabric, as text.
pub fn manager_page(view: &ManagerView<'_>) -> String {
    let mut page = Page::new(&[MANAGER, PROCESS], vec![]);
    fabric(&mut page, view);
    groups(&mut page, view.status);
    capacity(&mut page, view);
    scrub(&mut page, view);
    page.build();
    page.process(view.process);
    page.render()
}

fn fabric(page: &mut Page, view: &ManagerView<'_>) {
    let status = view.status;
    let health = match status.health {
        Health::Healthy => 0,
        Health::Degraded => 1,
        Health::Unavailable => 2,
    };
    page.number("fabric_health", &[], health);
    page.number("fabric_map_version", &[], status.map.0);
    page.number("fabric_groups", &[], status.groups as u64);
    page.number("fabric_volumes", &[], status.volumes as u64);
    page.number("fabric_sessions", &[], status.sessions as u64);
    for node in &status.nodes {
        page.number("node_up", &[&node.name], u64::from(node.presence == Presence::Up));
    }
    let states = [
        ("active", DriveState::Active),
        ("draining", DriveState::Draining),
        ("failed", DriveState::Failed),
        ("destroyed", DriveState::Destroyed),
    ];
    for (name, state) in states {
        let count = view.map.drives.values().filter(|drive| drive.state == state).count();
        page.number("fabric_drives", &[name], count as u64);
    }
    for (what, count) in view.events {
        page.number("fabric_events", &[what], *count);
    }
}

/// Groups that miss copies, and how far their repairs are.
fn groups(page: &mut Page, status: &FabricStatus) {
    let degraded = |is_so: fn(usize) -> bool| {
        let groups = status.degraded_groups.iter().filter(|d| is_so(d.good_copies)).map(|d| d.group);
        groups.collect::<BTreeSet<_>>().len() as u64
    };
    page.number("group_degraded", &[], degraded(|_| true));
    page.number("group_unavailable", &[], degraded(|good| good == 0));
    // Each kind is always there: an alert on one that has never been seen would otherwise find nothing.
    let kinds = ["resync", "awaiting-return", "no-spare-drive", "awaiting-last-copy", "evicting"];
    let mut copies: BTreeMap<&str, u64> = kinds.into_iter().map(|kind| (kind, 0)).collect();
    let (mut chunks, mut verified) = (0, 0);
    for group in &status.degraded_groups {
        let kind = match &group.repair {
            Repair::Resync { chunks_verified, chunks_total, .. } => {
                if let Some(total) = chunks_total {
                    chunks += total;
                    verified += chunks_verified.unwrap_or(0).min(*total);
                }
                "resync"
            }
            Repair::AwaitingReturn { .. } => "awaiting-return",
            Repair::NoSpareDrive => "no-spare-drive",
            Repair::AwaitingLastCopy => "awaiting-last-copy",
            Repair::Evicting => "evicting",
        };
        *copies.entry(kind).or_default() += 1;
    }
    for (kind, count) in copies {
        page.number("group_copies_missing", &[kind], count);
    }
    let mut troubles: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for trouble in &status.troubles {
        *troubles.entry((trouble.kind.name(), trouble.severity.name())).or_default() += 1;
    }
    for ((kind, severity), number) in &troubles {
        page.number("fabric_troubles", &[kind, severity], *number);
    }
    page.number("resync_chunks", &[], chunks);
    page.number("resync_chunks_verified", &[], verified);
    if let Some(ms) = status.resync_eta_ms {
        page.seconds("resync_remaining", &[], ms as f64 / 1e3);
    }
    for drive in &status.emptying {
        let labels = &[&*drive.drive.to_string(), &*drive.node];
        page.number("emptying_copies_left", labels, drive.copies_left as u64);
    }
}

fn capacity(page: &mut Page, view: &ManagerView<'_>) {
    for pool in &view.status.pools {
        page.bytes("pool_raw", &[&pool.name], pool.raw_bytes);
        page.bytes("pool_used", &[&pool.name], pool.used_bytes);
        page.bytes("pool_provisioned", &[&pool.name], pool.provisioned_bytes);
        page.number("pool_level", &[&pool.name], pool.level as u64);
        if let Some(fullest) = &pool.fullest {
            page.bytes("pool_fullest_used", &[&pool.name], fullest.used_bytes);
            page.bytes("pool_fullest_capacity", &[&pool.name], fullest.capacity_bytes);
        }
        for free in &pool.free {
            page.bytes("pool_free", &[&pool.name, &free.copies.to_string()], free.free_bytes);
        }
    }
    // One that is being deleted may have the name of its successor.
    let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
    let of_users = |volume: &&weft_types::Volume| volume.kind == weft_types::VolumeKind::Blocks;
    for volume in view.map.volumes.values().filter(of_users) {
        let size = sizes.entry(&volume.name).or_default();
        *size = volume.size.0.saturating_mul(BLOCK_SIZE as u64).max(*size);
    }
    for (name, size) in sizes {
        page.bytes("volume_size", &[name], size);
    }
}

fn scrub(page: &mut Page, view: &ManagerView<'_>) {
    let running = view.scrub.running.as_ref();
    page.number("scrub_running", &[], u64::from(running.is_some()));
    page.number("scrub_groups", &[], running.map_or(0, |run| run.groups_total as u64));
    page.number("scrub_groups_done", &[], running.map_or(0, |run| run.groups_done as u64));
    page.bytes("scrub_read", &[], running.map_or(0, |run| run.bytes_read));
    if let Some(ms) = running.and_then(|run| run.eta_ms) {
        page.seconds("scrub_remaining", &[], ms as f64 / 1e3);
    }
    let mut seen = BTreeSet::new();
    for volume in view.scrub.volumes.iter().filter(|volume| seen.insert(&volume.volume)) {
        if let Some(time) = volume.scrubbed {
            page.seconds("volume_scrubbed_time", &[&volume.volume], time.as_millis() as f64 / 1e3);
        }
        page.number("volume_blocks_lost", &[&volume.volume], volume.lost_blocks);
    }
}
