//! `weft drive evacuate | replace | remove` and `weft node evacuate | remove`: drives leave the fabric.
//!
//! It owns asking, and showing how far the work has come. The manager does the work, and goes on when nobody looks.

use crate::change::{confirm, would_be};
use crate::connection::Connection;
use crate::drive::{DriveEvacuateArgs, DriveRemoveArgs, DriveReplaceArgs, EvacuateArgs};
use crate::error::CliError;
use crate::interrupt::unless_interrupted;
use crate::output::{Output, note};
use crate::paint::Paint;
use crate::progress::Count;
use crate::size::Size;
use crate::table::{Table, row};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, Evacuation, FabricStatus};
use weft_rt::sleep;
use weft_types::DriveId;

/// How often the progress is looked at.
const POLL: Duration = Duration::from_millis(500);

pub(crate) async fn drive(
    connection: &Connection,
    args: DriveEvacuateArgs,
    output: Output,
) -> Result<(), CliError> {
    let EvacuateArgs { cancel, dry_run, no_wait } = args.how;
    let DriveEvacuateArgs { id, device, .. } = args;
    run(connection, ApiRequest::DriveEvacuate { id, cancel, device, dry_run }, no_wait, output).await
}

pub(crate) async fn node(
    connection: &Connection,
    name: String,
    how: EvacuateArgs,
    output: Output,
) -> Result<(), CliError> {
    let EvacuateArgs { cancel, dry_run, no_wait } = how;
    run(connection, ApiRequest::NodeEvacuate { name, cancel, dry_run }, no_wait, output).await
}

pub(crate) async fn replace(
    connection: &Connection,
    args: DriveReplaceArgs,
    output: Output,
) -> Result<(), CliError> {
    let DriveReplaceArgs { id, with, device, dry_run, no_wait } = args;
    run(connection, ApiRequest::DriveReplace { id, with, device, dry_run }, no_wait, output).await
}

pub(crate) async fn remove_drive(
    connection: &Connection,
    args: DriveRemoveArgs,
    output: Output,
) -> Result<(), CliError> {
    let DriveRemoveArgs { id, device, dry_run, yes } = args;
    let request = |dry_run| ApiRequest::DriveRemove { id: id.clone(), device, dry_run };
    let what = match device {
        true => format!("drive {id} and the others of its device"),
        false => format!("drive {id}"),
    };
    remove(connection, request, (what, device), &id, dry_run, yes, output).await
}

pub(crate) async fn remove_node(
    connection: &Connection,
    name: String,
    dry_run: bool,
    yes: bool,
    output: Output,
) -> Result<(), CliError> {
    let request = |dry_run| ApiRequest::NodeRemove { name: name.clone(), dry_run };
    let what = format!("node '{name}' and its drives");
    remove(connection, request, (what, true), &name, dry_run, yes, output).await
}

async fn remove(
    connection: &Connection,
    request: impl Fn(bool) -> ApiRequest,
    (what, names_drives): (String, bool),
    word: &str,
    dry_run: bool,
    yes: bool,
    output: Output,
) -> Result<(), CliError> {
    if !dry_run {
        // What would be refused is refused before anybody is asked.
        connection.ask(&request(true)).await?;
        confirm(&format!("The fabric forgets {what}, and never takes the drives back."), word, yes)?;
    }
    let answer = connection.ask(&request(dry_run)).await?;
    let ApiAnswer::Removed { drives, dry_run, .. } = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    let would = would_be(*dry_run);
    output.show(&answer, |_, _| {
        let ids: Vec<String> = drives.iter().map(|d| d.short()).collect();
        match (names_drives, ids.is_empty()) {
            (false, _) => format!("drive {} {would}removed\n", ids.join(", ")),
            (true, true) => format!("{what} {would}removed: it had none\n"),
            // Which drives they are, nobody has said.
            (true, false) => format!("{what} {would}removed: {}\n", ids.join(", ")),
        }
    })
}

/// Begins, and waits until the drives are empty.
async fn run(
    connection: &Connection,
    request: ApiRequest,
    no_wait: bool,
    output: Output,
) -> Result<(), CliError> {
    let answer = connection.ask(&request).await?;
    let ApiAnswer::Evacuation(evacuation) = &answer else {
        return Err(CliError::wrong_answer(connection.at()));
    };
    output.show(&answer, |_, paint| describe(evacuation, paint))?;
    if evacuation.dry_run || evacuation.cancelled || no_wait || output.is_json {
        return Ok(());
    }
    let drives: BTreeSet<DriveId> = evacuation.drives.iter().map(|d| d.id).collect();
    match unless_interrupted(wait_until_empty(connection, &drives)).await {
        Some(result) => {
            result?;
            output.print("done: nothing is left on it\n")
        }
        None => {
            note("it goes on in the background: `weft status` shows how far it is, --cancel stops it");
            Ok(())
        }
    }
}

async fn wait_until_empty(connection: &Connection, drives: &BTreeSet<DriveId>) -> Result<(), CliError> {
    let (mut bar, mut most) = (None, 0);
    loop {
        let answer = connection.ask(&ApiRequest::Status {}).await?;
        let ApiAnswer::Status(status) = &answer else {
            return Err(CliError::wrong_answer(connection.at()));
        };
        let (left, copied) = left(status, drives);
        most = most.max(left);
        if left == 0 {
            return Ok(());
        }
        let bar = bar.get_or_insert_with(|| Count::new("copies passed on", most as u64));
        bar.set((most - left) as u64, &format!("{} copied of those on their way", Size(copied)));
        sleep(POLL).await;
    }
}

/// Copies that are left on the drives, and bytes copied for those that are on their way.
fn left(status: &FabricStatus, drives: &BTreeSet<DriveId>) -> (usize, u64) {
    let ours = status.emptying.iter().filter(|e| drives.contains(&e.drive));
    ours.fold((0, 0), |(left, copied), e| (left + e.copies_left, copied + e.bytes_copied))
}

fn describe(evacuation: &Evacuation, paint: Paint) -> String {
    let names: Vec<String> =
        evacuation.drives.iter().map(|d| format!("{} ({})", d.id.short(), d.node)).collect();
    let names = names.join(", ");
    if evacuation.cancelled {
        let verb = if evacuation.dry_run { "would take" } else { "takes" };
        return format!("{names} {verb} part again\n");
    }
    let verb = if evacuation.dry_run { "would be emptied" } else { "is being emptied" };
    let mut text = format!(
        "{names} {verb}: {} copies, {} in all; {} are free elsewhere\n",
        evacuation.copies.len(),
        Size(evacuation.used_bytes),
        Size(evacuation.free_bytes)
    );
    let mut takers: BTreeMap<DriveId, usize> = BTreeMap::new();
    for copy in &evacuation.copies {
        *takers.entry(copy.to).or_default() += 1;
    }
    if !takers.is_empty() {
        let mut table = Table::new(&["TO DRIVE", ">COPIES"]);
        for (drive, copies) in &takers {
            table.row(row![drive.short(), copies]);
        }
        text.push_str(&table.render(paint));
    }
    text
}
