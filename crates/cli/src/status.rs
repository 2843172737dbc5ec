//! `weft status`: the fabric at a glance.

use crate::connection::Connection;
use crate::error::CliError;
use crate::output::Output;
use crate::paint::{Paint, Tone};
use crate::size::Size;
use crate::span::span_ms;
use crate::table::{Cell, Table, row};
use weft_api::{ApiAnswer, ApiRequest, DegradedGroup, FabricStatus, Health, Presence, Repair};

/// Rows of the table of repairs before the rest is only counted: one screen.
const ROWS_SHOWN: usize = 16;

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
        "Fabric {} is {}: {up} of {} nodes up, {}, {}, {}, map {}\n",
        status.fabric.short(),
        paint.text(tone, name),
        status.nodes.len(),
        count(status.volumes, "volume"),
        count(status.sessions, "session"),
        count(status.groups, "group"),
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
    if !status.emptying.is_empty() {
        text.push_str(&format!("\n{}", emptying(status).render(paint)));
    }
    if let Some(run) = &status.scrub {
        text.push_str(&format!("\n{}", crate::scrub::line(run, paint)));
    }
    if !status.degraded_groups.is_empty() {
        text.push_str(&format!("\n{}", repairs(status, paint)));
    }
    text
}

/// Groups that miss their copy on the same drive for the same reason.
struct Missing<'a> {
    first: &'a DegradedGroup,
    groups: usize,
    fewest_copies: usize,
    verified: Option<(u64, u64)>,
    copied_bytes: u64,
    eta_ms: Option<u64>,
}

/// Gathers degraded groups by drive, role and kind of repair, in the order in which they first occur.
fn gather(groups: &[DegradedGroup]) -> Vec<Missing<'_>> {
    let mut rows: Vec<Missing<'_>> = Vec::new();
    for group in groups {
        let is_alike = |row: &&mut Missing<'_>| {
            let kind = std::mem::discriminant(&row.first.repair);
            (row.first.drive, row.first.role) == (group.drive, group.role)
                && kind == std::mem::discriminant(&group.repair)
        };
        let (verified, copied_bytes, eta_ms) = match &group.repair {
            Repair::Resync { chunks_verified, chunks_total, bytes_copied, eta_ms } => {
                (chunks_verified.zip(*chunks_total), *bytes_copied, *eta_ms)
            }
            _ => (None, 0, None),
        };
        match rows.iter_mut().find(is_alike) {
            None => rows.push(Missing {
                first: group,
                groups: 1,
                fewest_copies: group.good_copies,
                verified,
                copied_bytes,
                eta_ms,
            }),
            Some(row) => {
                row.groups += 1;
                row.fewest_copies = row.fewest_copies.min(group.good_copies);
                row.verified = match (row.verified, verified) {
                    (Some((a, b)), Some((c, d))) => Some((a + c, b + d)),
                    (one, other) => one.or(other),
                };
                row.copied_bytes += copied_bytes;
                row.eta_ms = row.eta_ms.max(eta_ms);
            }
        }
    }
    rows
}

/// Drives that are being emptied, as a table.
fn emptying(status: &FabricStatus) -> Table {
    let mut table = Table::new(&["EMPTYING", "DRIVE", ">COPIES LEFT", ">ON THEIR WAY", ">COPIED OF THESE"]);
    for drive in &status.emptying {
        table.row(row![
            drive.node.as_str(),
            drive.drive.short(),
            &drive.copies_left,
            &drive.copies_passing,
            &Size(drive.bytes_copied)
        ]);
    }
    table
}

fn repairs(status: &FabricStatus, paint: Paint) -> String {
    let mut table = Table::new(&["MISSING ON", "DRIVE", "ROLE", ">GROUPS", "COPIES LEFT", "REPAIR"]);
    let rows = gather(&status.degraded_groups);
    for row in rows.iter().take(ROWS_SHOWN) {
        let tone = if row.fewest_copies == 0 { Tone::Bad } else { Tone::Warning };
        table.row(row![
            row.first.node.as_str(),
            row.first.drive.short(),
            crate::drive::role(row.first.role),
            &row.groups,
            Cell::new(format!("{} of {}", row.fewest_copies, row.first.copies), tone),
            repair(row)
        ]);
    }
    let mut text = table.render(paint);
    if let Some(more) = rows.len().checked_sub(ROWS_SHOWN).filter(|n| *n > 0) {
        text.push_str(&format!("and {more} more\n"));
    }
    if let Some(eta) = status.resync_eta_ms {
        text.push_str(&format!("resync is done in about {}\n", span_ms(eta)));
    }
    text
}

/// What is being done about copies.
fn repair(row: &Missing<'_>) -> String {
    match &row.first.repair {
        Repair::Resync { .. } => {
            let part = match row.verified {
                Some((done, total)) if total > 0 => format!(" {}%", done.min(total) * 100 / total),
                _ => String::new(),
            };
            let eta = row.eta_ms.map_or_else(String::new, |ms| format!(", {} left", span_ms(ms)));
            format!("resync{part}, {} copied{eta}", Size(row.copied_bytes))
        }
        Repair::AwaitingReturn { rebuild_in_ms } => {
            format!("awaits its return, rebuilt elsewhere in {}", span_ms(*rebuild_in_ms))
        }
        Repair::NoSpareDrive => "no drive can take it: add one".into(),
        Repair::AwaitingLastCopy => "the last up-to-date copy: bring its drive or node back".into(),
        Repair::Evicting => "does not answer, is being left out".into(),
    }
}

/// A number of things, in words.
fn count(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::{NodeInfo, PoolInfo, Timestamp};
    use weft_types::{DriveId, FabricId, GroupId, MapVersion, NodeId, PoolId, Role};

    #[test]
    fn what_is_wrong_and_what_is_done_is_on_the_screen() {
        let group = DegradedGroup {
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
        };
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
            emptying: vec![],
            degraded_groups: vec![group.clone(), group],
            groups: 64,
            volumes: 1,
            sessions: 1,
            resync_eta_ms: Some(5000),
            resyncs: vec![],
            scrub: None,
        };
        let text = describe(&status, Paint::off());
        for part in [
            "Fabric 3f2a9c1e is degraded: 0 of 1 nodes up, 1 volume, 1 session, 64 groups, map m42",
            "  - node node-2 is down",
            "default       8  64 GiB  1 GiB (1%)  20 GiB (31%)",
            "node-2      abcdef01  syncing       2  1 of 2       resync 25%, 2 MiB copied, 5 s left",
            "resync is done in about 5 s",
        ] {
            assert!(text.contains(part), "'{part}' is not in:\n{text}");
        }
    }
}
