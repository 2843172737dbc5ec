//! `weft status`: the fabric at a glance, and what is wrong with it, since when, what is done about it, and what to do.

use crate::connection::Connection;
use crate::error::CliError;
use crate::local::Unmanaged;
use crate::locate::FabricPlace;
use crate::output::Output;
use crate::paint::{Paint, Tone};
use crate::size::Size;
use crate::span::span_ms;
use crate::table::Cell;
use weft_api::{
    AffectedVolume, ApiAnswer, ApiRequest, Doing, FabricStatus, Health, Presence, Progress, Severity,
    Timestamp, Trouble,
};

/// Troubles that are shown in full: some screens. The JSON document has all of them.
const TROUBLES_SHOWN: usize = 24;

/// Volumes that are named per trouble, and ranges per volume.
const VOLUMES_SHOWN: usize = 4;
const RANGES_SHOWN: usize = 4;

/// Nodes up to which all are listed; beyond, only those that are not up.
const NODES_SHOWN: usize = 16;

/// Shows the fabric's status; without a manager, what can be known of a local fabric.
///
/// # Errors
/// [`CliError::Unreachable`] without a manager, also where something was shown.
pub(crate) async fn status(place: &FabricPlace, output: Output) -> Result<(), CliError> {
    let connection = match Connection::open(place).await {
        Err(error @ CliError::Unreachable { .. }) => {
            if let FabricPlace::Folder(folder) = place
                && let Some(unmanaged) = Unmanaged::look(folder, place).await?
            {
                output.show(&unmanaged, Unmanaged::describe)?;
            }
            return Err(error);
        }
        opened => opened?,
    };
    let answer = connection.ask(&ApiRequest::Status {}).await?;
    let ApiAnswer::Status(status) = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| describe(status, place, paint))
}

/// A health in words and colour.
pub(crate) fn health(health: Health) -> Cell {
    match health {
        Health::Healthy => Cell::new("healthy", Tone::Good),
        Health::Degraded => Cell::new("degraded", Tone::Warning),
        Health::Unavailable => Cell::new("unavailable", Tone::Bad),
    }
}

fn describe(status: &FabricStatus, place: &FabricPlace, paint: Paint) -> String {
    let (name, tone) = match status.health {
        Health::Healthy => ("healthy", Tone::Good),
        Health::Degraded => ("degraded", Tone::Warning),
        Health::Unavailable => ("unavailable", Tone::Bad),
    };
    let up = status.nodes.iter().filter(|n| n.presence == Presence::Up).count();
    let warnings = status.troubles.iter().filter(|t| t.severity == Severity::Warning).count();
    let is_new = status.nodes.is_empty() && status.health == Health::Healthy;
    let health = match is_new {
        // Nothing is wrong with what is not there, but it is not what people mean by healthy.
        true => format!("has {}", paint.text(Tone::Warning, "no nodes yet")),
        false => format!("is {}", paint.text(tone, name)),
    };
    let mut text = format!(
        "Fabric {} {health}{}: {up} of {} nodes up, {}, {}, {}, map {}\n",
        status.fabric.short(),
        if warnings > 0 { format!(", with {}", count(warnings, "warning")) } else { String::new() },
        status.nodes.len(),
        match status.file_systems {
            0 => count(status.volumes, "volume"),
            n => format!("{}, {}", count(status.volumes, "volume"), count(n, "file system")),
        },
        count(status.sessions, "session"),
        count(status.groups, "group"),
        status.map,
    );
    if is_new {
        text.push_str(&format!(
            "format drives for it (`weft drive format PATH --fabric-id {}`) and start nodes with them \
             (`weft node run`)\n",
            status.fabric
        ));
    }
    for trouble in status.troubles.iter().take(TROUBLES_SHOWN) {
        text.push_str(&format!("\n{}", describe_trouble(trouble, status.time, place, paint)));
    }
    if let Some(more) = status.troubles.len().checked_sub(TROUBLES_SHOWN).filter(|n| *n > 0) {
        text.push_str(&format!("\nand {more} more: `weft status --json` has all\n"));
    }
    let shown = |n: &&weft_api::NodeInfo| status.nodes.len() <= NODES_SHOWN || n.presence != Presence::Up;
    let nodes: Vec<_> = status.nodes.iter().filter(shown).cloned().collect();
    if !nodes.is_empty() {
        text.push_str(&format!("\n{}", crate::node::table(&nodes, status.time).render(paint)));
    }
    if !status.pools.is_empty() {
        text.push_str(&format!("\n{}", crate::pool::table(&status.pools).render(paint)));
    }
    if let Some(run) = &status.scrub {
        text.push_str(&format!("\n{}", crate::scrub::line(run, paint)));
    }
    text
}

/// One trouble: what, and below it since when, what it means, what is done, and what to do.
fn describe_trouble(trouble: &Trouble, time: Timestamp, place: &FabricPlace, paint: Paint) -> String {
    let (mark, tone) = match trouble.severity {
        Severity::Unavailable => ("UNAVAILABLE", Tone::Bad),
        Severity::Degraded => ("DEGRADED", Tone::Warning),
        Severity::Warning => ("WARNING", Tone::Warning),
        Severity::Notice => ("NOTICE", Tone::Faint),
    };
    let mut text = format!("{} {}\n", paint.text(tone, mark), trouble.what);
    let mut line = |name: &str, value: String| {
        text.push_str(&format!("  {} {value}\n", paint.text(Tone::Faint, &format!("{name:8}"))));
    };
    line("since", since(trouble.since, time));
    for volume in trouble.volumes.iter().take(VOLUMES_SHOWN) {
        line("affects", affected(volume));
    }
    let more = trouble.volumes.len().saturating_sub(VOLUMES_SHOWN) + trouble.more_volumes;
    if more > 0 {
        line("affects", format!("and {} more", count(more, "volume")));
    }
    for doing in &trouble.doing {
        line(if doing.waits_for.is_some() { "waits" } else { "does" }, describe_doing(doing));
    }
    for advice in &trouble.advice {
        let command = advice.command.as_deref().map(|c| format!(": {}", place.command(c)));
        line("you can", format!("{}{}", advice.what, command.unwrap_or_default()));
    }
    text
}

/// A time and how long ago it is.
fn since(then: Timestamp, time: Timestamp) -> String {
    match time.as_millis().checked_sub(then.as_millis()) {
        Some(ms) => format!("{then}, {} ago", span_ms(ms)),
        None => format!("{then}, which is to come: the manager's clock was set back"),
    }
}

fn affected(volume: &AffectedVolume) -> String {
    // Only a file system has no size.
    if volume.size_bytes == 0 {
        return format!("file system {}: {} of {} groups", volume.volume, volume.groups, volume.groups_total);
    }
    let mut text = format!(
        "volume {}: {} of {} groups, {} of {}",
        volume.volume,
        volume.groups,
        volume.groups_total,
        Size(volume.bytes),
        Size(volume.size_bytes)
    );
    let named: Vec<String> = (volume.ranges.iter().take(RANGES_SHOWN))
        .map(|r| format!("{}+{}", r.offset_bytes, r.length_bytes))
        .collect();
    if !named.is_empty() {
        let more = volume.ranges.len() > RANGES_SHOWN || volume.has_more_ranges;
        let more = if more { ", ..." } else { "" };
        text.push_str(&format!("; bytes from+length {}{more}", named.join(", ")));
    }
    text
}

fn describe_doing(doing: &Doing) -> String {
    let wait = doing.wait_ms.map_or_else(String::new, |ms| format!(", in {}", span_ms(ms)));
    let progress = doing.progress.map_or_else(String::new, |p| describe_progress(&p));
    format!("{}{wait}{progress}", doing.what)
}

fn describe_progress(progress: &Progress) -> String {
    let part = match progress.chunks_total {
        0 => String::new(),
        total => format!(" {}%,", progress.chunks_done.min(total) * 100 / total),
    };
    let mut text = format!(":{part} {} copied", Size(progress.bytes_copied));
    if let Some(rate) = progress.bytes_per_second {
        text.push_str(&format!(", {}/s", Size(rate)));
    }
    match progress.eta_ms {
        Some(ms) => text.push_str(&format!(", done in about {}", span_ms(ms))),
        None => text.push_str(", no estimate yet"),
    }
    if let Some(percent) = progress.pace_percent {
        text.push_str(&format!(", at {percent}% of the time since clients go first"));
    }
    text
}

/// A number of things, in words.
fn count(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::{Advice, ByteRange, NodeInfo, PoolInfo, TroubleKind, WaitsFor};
    use weft_types::{CapacityLevel, FabricId, MapVersion, NodeId, PoolId};

    fn trouble() -> Trouble {
        Trouble {
            kind: TroubleKind::NodeGone,
            severity: Severity::Degraded,
            what: "node 'node-2' is down".into(),
            since: Timestamp::from_millis(0),
            node: Some("node-2".into()),
            drive: None,
            pool: None,
            groups: 3,
            volumes: vec![AffectedVolume {
                volume: "data".into(),
                groups: 3,
                groups_total: 8,
                bytes: 3 << 20,
                size_bytes: 8 << 20,
                ranges: vec![ByteRange { offset_bytes: 4096, length_bytes: 8192 }],
                has_more_ranges: true,
            }],
            more_volumes: 0,
            doing: vec![
                Doing {
                    what: "3 copies awaited".into(),
                    groups: 3,
                    waits_for: Some(WaitsFor::Return),
                    wait_ms: Some(400_000),
                    progress: None,
                },
                Doing {
                    what: "copies what differs".into(),
                    groups: 3,
                    waits_for: None,
                    wait_ms: None,
                    progress: Some(Progress {
                        chunks_done: 1,
                        chunks_total: 4,
                        bytes_copied: 2 << 20,
                        bytes_per_second: Some(1 << 20),
                        eta_ms: Some(5000),
                        pace_percent: Some(25),
                    }),
                },
            ],
            advice: vec![Advice::command("bring it back", "weft node start node-2")],
        }
    }

    fn status() -> FabricStatus {
        FabricStatus {
            fabric: FabricId(0x3f2a_9c1e << 96),
            map: MapVersion(42),
            time: Timestamp::from_millis(180_000),
            health: Health::Degraded,
            reasons: vec!["node node-2 is down".into()],
            troubles: vec![trouble()],
            nodes: vec![NodeInfo {
                id: NodeId(2),
                name: "node-2".into(),
                addr: "127.0.0.1:4802".into(),
                presence: Presence::Down,
                since: Timestamp::from_millis(0),
                drives: 2,
                adopted: None,
                targets: vec![],
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
                level: CapacityLevel::Warning,
                fullest: None,
            }],
            emptying: vec![],
            degraded_groups: vec![],
            groups: 64,
            volumes: 1,
            file_systems: 0,
            sessions: 1,
            resync_eta_ms: Some(5000),
            resyncs: vec![],
            scrub: None,
        }
    }

    #[test]
    fn what_is_wrong_and_what_is_done_is_on_the_screen() {
        let text = describe(&status(), &FabricPlace::new(Some("/srv/f")), Paint::off());
        for part in [
            "Fabric 3f2a9c1e is degraded: 0 of 1 nodes up, 1 volume, 1 session, 64 groups, map m42",
            "DEGRADED node 'node-2' is down\n  since    1970-01-01T00:00:00.000Z, 3 min ago",
            "  affects  volume data: 3 of 8 groups, 3 MiB of 8 MiB; bytes from+length 4096+8192, ...",
            "  waits    3 copies awaited, in 6 min",
            "  does     copies what differs: 25%, 2 MiB copied, 1 MiB/s, done in about 5 s, at 25% of the time",
            "default       8  64 GiB  1 GiB (1%)  20 GiB (31%)        -  warning",
        ] {
            assert!(text.contains(part), "'{part}' is not in:\n{text}");
        }
        let start = text.lines().find(|l| l.contains("bring it back")).expect("it is advised");
        assert!(start.contains("weft --fabric /srv/f node start node-2"), "{start}");
    }

    #[test]
    fn a_time_to_come_is_called_so() {
        let mut status = status();
        status.time = Timestamp::from_millis(0);
        status.troubles[0].since = Timestamp::from_millis(1000);
        let text = describe(&status, &FabricPlace::new(None), Paint::off());
        assert!(text.contains("which is to come: the manager's clock was set back"), "{text}");
    }

    #[test]
    fn a_fabric_without_nodes_is_not_called_healthy() {
        let mut status = status();
        (status.health, status.troubles, status.nodes) = (Health::Healthy, vec![], vec![]);
        let text = describe(&status, &FabricPlace::new(None), Paint::off());
        let first = text.lines().next().expect("a line");
        assert!(
            first.starts_with("Fabric 3f2a9c1e has no nodes yet") && !first.contains("healthy"),
            "{text}"
        );
        assert!(text.contains("weft node run"), "{text}");
    }

    #[test]
    fn warnings_leave_a_fabric_healthy_and_are_counted() {
        let mut status = status();
        (status.health, status.troubles[0].severity) = (Health::Healthy, Severity::Warning);
        let text = describe(&status, &FabricPlace::new(None), Paint::off());
        assert!(text.starts_with("Fabric 3f2a9c1e is healthy, with 1 warning: "), "{text}");
    }
}
