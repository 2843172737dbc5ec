//! `weft status`: the fabric at a glance.

use crate::connection::Connection;
use crate::error::CliError;
use crate::output::Output;
use crate::paint::{Paint, Tone};
use crate::size::Size;
use crate::span::span_ms;
use crate::table::{Cell, Table, row};
use weft_api::{ApiAnswer, ApiRequest, DegradedGroup, FabricStatus, Health, Presence, Repair};

/// Rows of the table of degraded groups before the rest is only counted: one screen.
const GROUPS_SHOWN: usize = 16;

/// Nodes up to which all are listed; beyond, only those that are not up.
const NODES_SHOWN: usize = 16;

pub(crate) async fn status(connection: &Connection, output: Output) -> Result<(), CliError> {
    let answer = connection.ask(&ApiRequest::Status {}).await?;
    let ApiAnswer::Status(status) = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| describe(status, paint))
}

/// A health in words and colour.
pub(crate) fn health(health: Health) -> Cell {
    match health {
        Health::Healthy => Cell::new("healthy", Tone::Good),
        Health::Degraded => Cell::new("degraded", Tone::Warning),
        Health::Unavailable => Cell::new("unavailable", Tone::Bad),
    }
}

fn describe(status: &FabricStatus, paint: Paint) -> String {
    let (name, tone) = match status.health {
        Health::Healthy => ("healthy", Tone::Good),
        Health::Degraded => ("degraded", Tone::Warning),
        Health::Unavailable => ("unavailable", Tone::Bad),
    };
    let up = status.nodes.iter().filter(|n| n.presence == Presence::Up).count();
    let mut text = format!(
        "Fabric {} is {}: {up} of {} nodes up, {} volumes, {} sessions, {} groups, map {}\n",
        status.fabric.short(),
        paint.text(tone, name),
        status.nodes.len(),
        status.volumes,
        status.sessions,
        status.groups,
        status.map,
    );
    for reason in &status.reasons {
        text.push_str(&format!("  {} {reason}\n", paint.text(tone, "-")));
    }
    let shown = |n: &&weft_api::NodeInfo| status.nodes.len() <= NODES_SHOWN || n.presence != Presence::Up;
    let nodes: Vec<_> = status.nodes.iter().filter(shown).cloned().collect();
    if !nodes.is_empty() {
        text.push_str(&format!("\n{}", crate::node::table(&nodes, status.time).render(paint)));
    }
    if !status.pools.is_empty() {
        text.push_str(&format!("\n{}", crate::pool::table(&status.pools).render(paint)));
    }
    if !status.degraded_groups.is_empty() {
        text.push_str(&format!("\n{}", repairs(status, paint)));
    }
    text
}

fn repairs(status: &FabricStatus, paint: Paint) -> String {
    let mut table = Table::new(&["GROUP", "COPIES", "MISSING ON", "DRIVE", "ROLE", "REPAIR"]);
    for group in status.degraded_groups.iter().take(GROUPS_SHOWN) {
        let tone = if group.good_copies == 0 { Tone::Bad } else { Tone::Warning };
        table.row(row![
            &group.group,
            Cell::new(format!("{} of {}", group.good_copies, group.copies), tone),
            group.node.as_str(),
            group.drive.short(),
            crate::drive::role(group.role),
            repair(group)
        ]);
    }
    let mut text = table.render(paint);
    if let Some(more) = status.degraded_groups.len().checked_sub(GROUPS_SHOWN).filter(|n| *n > 0) {
        text.push_str(&format!("and {more} more\n"));
    }
    if let Some(eta) = status.resync_eta_ms {
        text.push_str(&format!("resync is done in about {}\n", span_ms(eta)));
    }
    text
}

/// What is being done about a copy.
fn repair(group: &DegradedGroup) -> String {
    match &group.repair {
        Repair::Resync { chunks_verified, chunks_total, bytes_copied, eta_ms } => {
            let part = match (chunks_verified, chunks_total) {
                (Some(done), Some(total)) if *total > 0 => format!(" {}%", done.min(total) * 100 / total),
                _ => String::new(),
            };
            let eta = eta_ms.map_or_else(String::new, |ms| format!(", {} left", span_ms(ms)));
            format!("resync{part}, {} copied{eta}", Size(*bytes_copied))
        }
        Repair::AwaitingReturn { rebuild_in_ms } => {
            format!("awaits its return, rebuilt elsewhere in {}", span_ms(*rebuild_in_ms))
        }
        Repair::NoSpareDrive => "no drive can take it: add one".into(),
        Repair::AwaitingLastCopy => "the last up-to-date copy: bring its node back".into(),
        Repair::Evicting => "does not answer, is being left out".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::{NodeInfo, PoolInfo, Timestamp};
    use weft_types::{DriveId, FabricId, GroupId, MapVersion, NodeId, PoolId, Role};

    #[test]
    fn what_is_wrong_and_what_is_done_is_on_the_screen() {
        let status = FabricStatus {
            fabric: FabricId(0x3f2a_9c1e << 96),
            map: MapVersion(42),
            time: Timestamp::from_millis(0),
            health: Health::Degraded,
            reasons: vec!["node node-2 is down".into()],
            nodes: vec![NodeInfo {
                id: NodeId(2),
                name: "node-2".into(),
                addr: "127.0.0.1:4802".into(),
                presence: Presence::Down,
                since: Timestamp::from_millis(0),
                drives: 2,
                adopted: None,
            }],
            pools: vec![PoolInfo {
                id: PoolId(1),
                name: "default".into(),
                drives: 8,
                groups: 64,
                raw_bytes: 64 << 30,
                used_bytes: 1 << 30,
                provisioned_bytes: 20 << 30,
                free: vec![],
            }],
            degraded_groups: vec![DegradedGroup {
                group: GroupId(7),
                volumes: vec!["data".into()],
                drive: DriveId(0xabcd_ef01 << 96),
                node: "node-2".into(),
                role: Role::Syncing,
                good_copies: 1,
                copies: 2,
                repair: Repair::Resync {
                    chunks_verified: Some(1),
                    chunks_total: Some(4),
                    bytes_copied: 1 << 20,
                    eta_ms: Some(5000),
                },
            }],
            groups: 64,
            volumes: 1,
            sessions: 1,
            resync_eta_ms: Some(5000),
        };
        let text = describe(&status, Paint::off());
        for part in [
            "Fabric 3f2a9c1e is degraded: 0 of 1 nodes up, 1 volumes, 1 sessions, 64 groups, map m42",
            "  - node node-2 is down",
            "default       8  64 GiB  1 GiB (1%)  20 GiB (31%)",
            "g7     1 of 2  node-2      abcdef01  syncing  resync 25%, 1 MiB copied, 5 s left",
            "resync is done in about 5 s",
        ] {
            assert!(text.contains(part), "'{part}' is not in:\n{text}");
        }
    }
}
