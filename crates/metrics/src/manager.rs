//! The page of a manager.

use crate::family::{MANAGER, PROCESS};
use crate::page::Page;
use std::collections::{BTreeMap, BTreeSet};
use weft_api::{FabricStatus, Health, Presence};
use weft_types::ProcessLoad;

/// What a manager says of the fabric, as text.
pub fn manager_page(status: &FabricStatus, process: &ProcessLoad) -> String {
    let mut page = Page::new(&[MANAGER, PROCESS], vec![]);
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
    let degraded = |is_so: fn(usize) -> bool| {
        let groups = status.degraded_groups.iter().filter(|d| is_so(d.good_copies)).map(|d| d.group);
        groups.collect::<BTreeSet<_>>().len() as u64
    };
    page.number("group_degraded", &[], degraded(|_| true));
    page.number("group_unavailable", &[], degraded(|good| good == 0));
    for node in &status.nodes {
        page.number("node_up", &[&node.name], u64::from(node.presence == Presence::Up));
    }
    for pool in &status.pools {
        page.bytes("pool_raw", &[&pool.name], pool.raw_bytes);
        page.bytes("pool_used", &[&pool.name], pool.used_bytes);
        page.bytes("pool_provisioned", &[&pool.name], pool.provisioned_bytes);
        page.number("pool_level", &[&pool.name], pool.level as u64);
        if let Some(fullest) = &pool.fullest {
            page.bytes("pool_fullest_used", &[&pool.name], fullest.used_bytes);
            page.bytes("pool_fullest_capacity", &[&pool.name], fullest.capacity_bytes);
        }
    }
    let mut troubles: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for trouble in &status.troubles {
        *troubles.entry((trouble.kind.name(), trouble.severity.name())).or_default() += 1;
    }
    for ((kind, severity), number) in &troubles {
        page.number("fabric_troubles", &[kind, severity], *number);
    }
    if let Some(ms) = status.resync_eta_ms {
        page.seconds("resync_remaining", &[], ms as f64 / 1e3);
    }
    for drive in &status.emptying {
        let labels = &[&*drive.drive.to_string(), &*drive.node];
        page.number("emptying_copies_left", labels, drive.copies_left as u64);
    }
    page.process(process);
    page.render()
}
