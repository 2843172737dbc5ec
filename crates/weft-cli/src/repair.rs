//! `weft volume repair`: volumes whose last up-to-date copies are gone for good.
//!
//! It owns asking, and saying what would be lost. The manager checks everything again, and refuses what it can.

use crate::change::{confirm, sessions_ended, would_be};
use crate::connection::Connection;
use crate::error::CliError;
use crate::output::{Output, note};
use crate::size::Size;
use weft_api::{ApiAnswer, ApiRequest, LossInfo, LostGroup};

/// Arguments of `weft volume repair`.
#[derive(Clone, Debug, clap::Args)]
pub struct VolumeRepairArgs {
    /// The volumes: all that lose something must be named; none: groups that hold nothing of any volume
    pub names: Vec<String>,
    /// Go on with older copies, or with nothing, where no up-to-date copy is left
    #[arg(long)]
    pub accept_data_loss: bool,
    /// A drive that does not exist any more, by its whole identifier; may be given several times. It never takes
    /// part again, whatever it holds
    #[arg(long, value_name = "DRIVE", requires = "accept_data_loss")]
    pub destroyed: Vec<String>,
    /// A drive that was refused because it holds less than it had acknowledged, and whose content is wanted all the
    /// same, by its whole identifier
    #[arg(long, value_name = "DRIVE", requires = "accept_data_loss")]
    pub older: Vec<String>,
    /// Say what would be lost, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask first
    #[arg(long, requires = "accept_data_loss")]
    pub yes: bool,
}

pub(crate) async fn repair(
    connection: &Connection,
    args: VolumeRepairArgs,
    output: Output,
) -> Result<(), CliError> {
    let request = |dry_run| ApiRequest::VolumeRepair {
        names: args.names.clone(),
        accept_data_loss: args.accept_data_loss,
        destroyed: args.destroyed.clone(),
        older: args.older.clone(),
        dry_run,
    };
    if !args.dry_run {
        let rehearsal = connection.ask(&request(true)).await?;
        let ApiAnswer::Loss(info) = &rehearsal else {
            return Err(CliError::wrong_answer(connection.at()));
        };
        if !args.yes {
            note(describe(info).trim_end());
        }
        confirm(&at_stake(info), args.names.first().map_or("destroyed", String::as_str), args.yes)?;
    }
    let answer = connection.ask(&request(args.dry_run)).await?;
    let ApiAnswer::Loss(info) = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, _| describe(info))
}

/// What is lost, in a sentence to confirm.
fn at_stake(info: &LossInfo) -> String {
    let mut lost = Vec::new();
    if !info.volumes.is_empty() {
        lost.push(format!("up to {} of {}", Size(info.lost_bytes_max), info.volumes.join(", ")));
    }
    if !info.file_systems.is_empty() {
        lost.push(format!("what files of {} have there", info.file_systems.join(", ")));
    }
    match lost.is_empty() {
        true => "The drives that were named never take part again.".to_owned(),
        false => format!("This loses {}, for good.", lost.join(" and ")),
    }
}

fn describe(info: &LossInfo) -> String {
    let mut text = String::new();
    let would = would_be(info.dry_run);
    for drive in &info.destroyed {
        text.push_str(&format!("drive {drive} {would}declared destroyed: it never takes part again\n"));
    }
    for drive in &info.older {
        text.push_str(&format!("drive {drive} {would}taken as it is, older than it was\n"));
    }
    let (used, unused): (Vec<&LostGroup>, Vec<&LostGroup>) = info.groups.iter().partition(|g| is_used(g));
    for group in used {
        describe_group(&mut text, group);
    }
    match unused.len() {
        0 => {}
        1 => text.push_str(&format!("1 group {would}begun anew that holds nothing of any volume\n")),
        n => text.push_str(&format!("{n} groups {would}begun anew that hold nothing of any volume\n")),
    }
    text.push_str(&sessions_ended(&info.ended_sessions, info.dry_run));
    if !info.file_systems.is_empty() {
        let names = info.file_systems.join(", ");
        text.push_str(&format!("what files of {names} have in these groups {would}lost\n"));
    }
    match info.volumes.as_slice() {
        [] if !info.file_systems.is_empty() => {}
        [] => text.push_str("no volume loses anything\n"),
        volumes => text.push_str(&format!(
            "at most {} of volumes {} {would}lost\n",
            Size(info.lost_bytes_max),
            volumes.join(", ")
        )),
    }
    text
}

/// Whether a volume or a file loses something with the group.
fn is_used(group: &LostGroup) -> bool {
    group.bytes > 0 || !group.file_systems.is_empty()
}

fn describe_group(text: &mut String, group: &LostGroup) {
    text.push_str(&format!("group {}:\n", group.group));
    for copy in &group.copies {
        let state = match (copy.destroyed, copy.bytes, &copy.newest) {
            (true, _, _) => "destroyed".to_owned(),
            (false, Some(bytes), Some(newest)) => format!("{}, newest write at {newest}", Size(bytes)),
            (false, Some(_), None) => "nothing".to_owned(),
            (false, None, _) => "not known".to_owned(),
        };
        let survivor = if copy.drive == group.survivor { ", which it goes on with" } else { "" };
        text.push_str(&format!(
            "  drive {} (node '{}', {}): {state}{survivor}\n",
            copy.drive.short(),
            copy.node,
            copy.role
        ));
    }
    let what = match group.empty {
        true => format!("reads as zeroes, begun anew on drive {}", group.survivor.short()),
        false => "reads as it was when that copy fell behind, where it was written since".to_owned(),
    };
    if !group.file_systems.is_empty() {
        let names = group.file_systems.join(", ");
        text.push_str(&format!("  what files of {names} have in it {what}\n"));
    }
    if group.bytes > 0 {
        text.push_str(&format!("  {} in these parts {what}:\n", Size(group.bytes)));
    }
    for range in &group.ranges {
        let end = range.offset_bytes + range.bytes;
        text.push_str(&format!("    {}: bytes {} to {end}\n", range.volume, range.offset_bytes));
    }
    if group.ranges_more {
        text.push_str("    and further parts: --json lists no more either, the figures count all\n");
    }
}
