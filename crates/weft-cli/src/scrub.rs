//! `weft scrub`: reading everything, verifying it, and healing what is damaged.

use crate::connection::Connection;
use crate::error::CliError;
use crate::output::{Output, fields};
use crate::paint::{Paint, Tone};
use crate::size::Size;
use crate::span::span_ms;
use crate::table::{Cell, Table, row};
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, ScrubFindingInfo, ScrubInfo, ScrubRunInfo, ScrubVolumeInfo};
use weft_types::{BLOCK_SIZE, ScrubFindingKind};

/// Rows of a table before the rest is only counted: one screen.
const ROWS_SHOWN: usize = 16;

/// Reading everything, verifying it, and healing what is damaged
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ScrubCommand {
    /// Read volumes as a whole now, and heal damaged copies
    ///
    /// Every copy of every block is read from its drive and verified against its checksum, and copies are
    /// compared with each other. A damaged copy is written anew from a good one; a block of which no copy can
    /// be read is reported, and nothing is changed. It runs in the background, beside clients at a bounded
    /// rate.
    #[command(after_long_help = "Examples:\n  weft scrub start --all\n  weft scrub start data logs")]
    Start(ScrubStartArgs),
    /// Show the scrub that runs, what was found, and when volumes were scrubbed last
    #[command(after_long_help = "Examples:\n  weft scrub status\n  \
        weft scrub status --json | jq .running.groups_done")]
    Status,
    /// Stop the scrub that runs
    ///
    /// What was read up to now counts for the groups that were finished. The schedule rests for a day, or
    /// until the next `weft scrub start`; to turn it off, use `weft scrub schedule --off`.
    #[command(after_long_help = "Examples:\n  weft scrub stop")]
    Stop,
    /// Show or change how often everything is scrubbed
    ///
    /// Unless told otherwise, everything is scrubbed once in 7 days, each group at its own time.
    #[command(after_long_help = "Examples:\n  weft scrub schedule\n  weft scrub schedule --every 7d\n  \
        weft scrub schedule --off")]
    Schedule(ScrubScheduleArgs),
}

/// Arguments of `weft scrub start`.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct ScrubStartArgs {
    /// The volumes
    #[arg(value_name = "VOLUME")]
    pub volumes: Vec<String>,
    /// All volumes
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `weft scrub schedule`.
#[derive(Clone, Debug, clap::Args)]
pub struct ScrubScheduleArgs {
    /// Scrub everything once in this time, at least a minute: 30min, 12h, 7d
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub every: Option<Duration>,
    /// Scrub only when somebody asks
    #[arg(long, conflicts_with = "every")]
    pub off: bool,
}

/// A time with its unit, at least a minute.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let seconds = match &text[digits..] {
        "s" => 1,
        "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err("expected a number with its unit: 90s, 30min, 12h, 7d".into()),
    };
    let number: u64 = text[..digits].parse().map_err(|_| "expected a number, such as in 7d".to_owned())?;
    match number.checked_mul(seconds) {
        Some(0..60) => Err("expected at least 60s".into()),
        // More than a century was not meant, and would not fit into what comes.
        Some(seconds) if seconds <= 100 * 365 * 86_400 => Ok(Duration::from_secs(seconds)),
        _ => Err("expected at most a century".into()),
    }
}

/// Carries out a command about scrubs.
///
/// # Errors
/// The manager's refusal, or that it cannot be reached.
pub(crate) async fn scrub(
    connection: &Connection,
    command: ScrubCommand,
    output: Output,
) -> Result<(), CliError> {
    let request = match &command {
        ScrubCommand::Start(args) => ApiRequest::ScrubStart { volumes: args.volumes.clone() },
        ScrubCommand::Stop => ApiRequest::ScrubStop {},
        ScrubCommand::Schedule(args) if args.off => ApiRequest::ScrubSchedule { every_ms: None },
        ScrubCommand::Schedule(ScrubScheduleArgs { every: Some(every), .. }) => {
            ApiRequest::ScrubSchedule { every_ms: Some(every.as_millis() as u64) }
        }
        ScrubCommand::Schedule(_) | ScrubCommand::Status => ApiRequest::ScrubStatus {},
    };
    let answer = connection.ask(&request).await?;
    let ApiAnswer::Scrub(info) = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| match command {
        ScrubCommand::Schedule(_) => fields(paint, &schedule(info)),
        ScrubCommand::Start(_) | ScrubCommand::Stop | ScrubCommand::Status => describe(info, paint),
    })
}

/// A scrub that runs, in one line.
pub(crate) fn line(run: &ScrubRunInfo, paint: Paint) -> String {
    let mut text = format!(
        "scrub: {} of {} groups done, {} read, {}",
        run.groups_done,
        run.groups_total,
        Size(run.bytes_read),
        outcome(run, paint)
    );
    if run.groups_waiting > 0 && run.groups_waiting + run.groups_done == run.groups_total {
        text.push_str(", the others wait for a copy that answers");
    }
    if let Some(eta) = run.eta_ms {
        text.push_str(&format!(", about {} left", span_ms(eta)));
    }
    text + "\n"
}

/// What a scrub has found, in words.
fn outcome(run: &ScrubRunInfo, paint: Paint) -> String {
    let mut parts = Vec::new();
    if run.healed_blocks > 0 {
        parts.push(paint.text(Tone::Warning, &format!("{} blocks healed", run.healed_blocks)));
    }
    if run.lost_blocks > 0 {
        parts.push(paint.text(Tone::Bad, &format!("{} blocks lost", run.lost_blocks)));
    }
    if run.disagreements > 0 {
        parts.push(paint.text(Tone::Bad, &format!("{} blocks in disagreement", run.disagreements)));
    }
    if parts.is_empty() {
        parts.push(paint.text(Tone::Good, "nothing wrong"));
    }
    parts.join(", ")
}

fn schedule(info: &ScrubInfo) -> Vec<(&'static str, String)> {
    let every = info.every_ms.map_or_else(|| "only on request".into(), |ms| format!("every {}", span_ms(ms)));
    let mut lines = vec![("schedule", every)];
    if let Some(until) = info.rests_until {
        lines.push(("rests until", until.to_string()));
    }
    if let Some(next) = info.next {
        lines.push(("next", next.to_string()));
    }
    lines
}

fn describe(info: &ScrubInfo, paint: Paint) -> String {
    let mut lines = schedule(info);
    if let Some(last) = &info.last {
        let end = last.ended.map_or_else(String::new, |at| at.to_string());
        let how = if last.was_stopped { "stopped" } else { "ended" };
        let degraded = match last.groups_degraded {
            0 => String::new(),
            n => format!(", {n} groups without all copies"),
        };
        lines.push((
            "last",
            format!(
                "{how} {end}: {} of {} groups, {} read, {}{degraded}",
                last.groups_done,
                last.groups_total,
                Size(last.bytes_read),
                outcome(last, paint)
            ),
        ));
    }
    let mut text = fields(paint, &lines);
    if let Some(run) = &info.running {
        text.push('\n');
        text.push_str(&line(run, paint));
        text.push_str(&groups(info).render(paint));
        more(&mut text, info.groups.len());
    }
    if !info.volumes.is_empty() {
        text.push('\n');
        text.push_str(&volumes(&info.volumes).render(paint));
    }
    if !info.findings.is_empty() {
        text.push('\n');
        text.push_str(&findings(&info.findings).render(paint));
        more(&mut text, info.findings.len());
    }
    text
}

fn more(text: &mut String, rows: usize) {
    if let Some(more) = rows.checked_sub(ROWS_SHOWN).filter(|n| *n > 0) {
        text.push_str(&format!("and {more} more\n"));
    }
}

fn groups(info: &ScrubInfo) -> Table {
    let mut table = Table::new(&["GROUP", "LED BY", "COPIES READ", ">DONE", "VOLUMES", "WAITS FOR"]);
    for group in info.groups.iter().take(ROWS_SHOWN) {
        let tone = if group.members < group.copies { Tone::Warning } else { Tone::Good };
        let alone = if group.members == 1 && group.copies > 1 { ", checksums only" } else { "" };
        let percent = (group.chunks_done * 100).checked_div(group.chunks_total).unwrap_or(0);
        table.row(row![
            &group.group,
            group.node.as_str(),
            Cell::new(format!("{} of {}{alone}", group.members, group.copies), tone),
            format!("{percent}%"),
            group.volumes.join(", "),
            group.waits_for.clone().unwrap_or_default()
        ]);
    }
    table
}

fn volumes(volumes: &[ScrubVolumeInfo]) -> Table {
    let mut table = Table::new(&["VOLUME", ">GROUPS", ">SCRUBBED", ">HEALED", ">LOST", "LAST"]);
    for volume in volumes {
        let tone = if volume.lost_blocks > 0 { Tone::Bad } else { Tone::Good };
        table.row(row![
            volume.volume.as_str(),
            &volume.groups,
            &volume.groups_scrubbed,
            &volume.healed_blocks,
            Cell::new(volume.lost_blocks.to_string(), tone),
            volume.scrubbed.map_or_else(|| "-".into(), |at| at.to_string())
        ]);
    }
    table
}

/// The newest findings first.
fn findings(findings: &[ScrubFindingInfo]) -> Table {
    let mut table = Table::new(&["FOUND", "WHAT", "VOLUME", ">LBA", ">BLOCKS", "DRIVES"]);
    for finding in findings.iter().rev().take(ROWS_SHOWN) {
        let (what, tone) = match finding.kind {
            ScrubFindingKind::Healed => ("healed", Tone::Warning),
            ScrubFindingKind::NotHealed => ("not healed", Tone::Bad),
            ScrubFindingKind::Lost => ("lost", Tone::Bad),
            ScrubFindingKind::Stale => ("missed a write", Tone::Bad),
            ScrubFindingKind::Different => ("differs", Tone::Bad),
        };
        let drives: Vec<String> = finding.drives.iter().map(|d| d.short()).collect();
        table.row(row![
            finding.time.to_string(),
            Cell::new(what, tone),
            name_of(finding),
            &(finding.offset_bytes / BLOCK_SIZE as u64),
            &(finding.length_bytes / BLOCK_SIZE as u64),
            drives.join(", ")
        ]);
    }
    table
}

/// The volume, or the object of a file in its file system.
fn name_of(finding: &ScrubFindingInfo) -> String {
    match finding.file {
        None => finding.volume.clone(),
        Some(file) => format!("{}, object {} of inode {}", finding.volume, file.object, file.inode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::{ScrubGroupInfo, Timestamp};
    use weft_types::{DriveId, GroupId};

    #[test]
    fn times_have_a_unit_and_are_not_short() {
        assert_eq!(parse_time("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(parse_time("90s"), Ok(Duration::from_secs(90)));
        for bad in ["", "7", "d", "7w", "0d", "59s", "-1d", "99999999999999999999d", "40000d"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_runs_and_what_was_found_is_on_the_screen() {
        let run = ScrubRunInfo {
            started: Timestamp::from_millis(0),
            ended: None,
            was_stopped: false,
            groups_total: 4,
            groups_done: 1,
            groups_waiting: 2,
            groups_degraded: 0,
            chunks_done: 10,
            bytes_read: 3 << 20,
            healed_blocks: 2,
            lost_blocks: 1,
            disagreements: 0,
            eta_ms: Some(90_000),
        };
        let info = ScrubInfo {
            every_ms: Some(7 * 86_400_000),
            next: Some(Timestamp::from_millis(0)),
            rests_until: None,
            running: Some(run),
            last: None,
            groups: vec![ScrubGroupInfo {
                group: GroupId(7),
                volumes: vec!["data".into()],
                node: "node-2".into(),
                members: 1,
                copies: 2,
                chunks_done: 1,
                chunks_total: 4,
                waits_for: None,
            }],
            volumes: vec![ScrubVolumeInfo {
                volume: "data".into(),
                groups: 4,
                groups_scrubbed: 1,
                scrubbed: None,
                healed_blocks: 2,
                lost_blocks: 1,
            }],
            findings: vec![ScrubFindingInfo {
                time: Timestamp::from_millis(0),
                kind: ScrubFindingKind::Lost,
                group: GroupId(7),
                volume: "data".into(),
                offset_bytes: 40_960,
                length_bytes: 4096,
                drives: vec![DriveId(0xabcd_ef01 << 96)],
                file: None,
            }],
        };
        let text = describe(&info, Paint::off());
        for part in [
            "schedule  every 7 d",
            "scrub: 1 of 4 groups done, 3 MiB read, 2 blocks healed, 1 blocks lost, about 1 min left",
            "node-2  1 of 2, checksums only   25%  data",
            "data         4         1       2     1  -",
            "lost  data     10       1  abcdef01",
        ] {
            assert!(text.contains(part), "'{part}' is not in:\n{text}");
        }
    }
}
