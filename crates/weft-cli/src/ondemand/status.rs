//! `weft ondemand status`: the hosts, their mounts, and how the fabric is.

use super::crew::{ANSWER_WITHIN, Crew, Failed, Host, hosts, list};
use super::known::Known;
use super::message::{FabricWord, HostStatus, Request};
use super::record::{Records, StartRecord};
use super::script::How;
use crate::error::CliError;
use crate::output::Output;
use crate::paint::{Paint, Tone};
use crate::size::Size;
use crate::table::{Cell, Table};
use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// How a host is, for programs.
#[derive(Serialize)]
struct HostLine {
    host: String,
    #[serde(flatten)]
    status: HostStatus,
}

/// How a file system is, for programs.
#[derive(Serialize)]
struct Status {
    id: Option<String>,
    hosts: Vec<HostLine>,
    /// Hosts that have nothing of it.
    had_nothing: Vec<String>,
    /// Hosts that have not answered.
    failed: Vec<Failed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fabric: Option<FabricWord>,
}

/// File systems that were started on this machine, for programs.
#[derive(Serialize)]
struct Listed {
    file_systems: Vec<StartRecord>,
}

pub(super) fn status(
    known: &Known,
    token: &str,
    interrupted: &AtomicBool,
    output: Output,
) -> Result<(), CliError> {
    let mut crew = Crew::new(&known.hosts, interrupted);
    crew.find(known, token, How::Shared);
    crew.check_one()?;
    let all: Vec<(usize, HostStatus)> = crew.ask_all(&Request::Status { fabric: false }, ANSWER_WITHIN);
    // One host after the other, until one reaches the manager.
    let mut fabric = None;
    let wait = crew.wait(ANSWER_WITHIN);
    for host in crew.hosts.iter_mut().filter(|host| host.is_here()) {
        let status = host.ask::<HostStatus>(Request::Status { fabric: true }, wait);
        fabric = status.ok().and_then(|status| status.fabric);
        if fabric.is_some() {
            break;
        }
    }
    let name = |index: usize| crew.hosts[index].name.clone();
    let lines = all.into_iter().map(|(index, status)| HostLine { host: name(index), status }).collect();
    let nothing = crew.hosts.iter().filter(|host: &&Host| host.has_nothing);
    let status = Status {
        id: crew.found_id(),
        had_nothing: nothing.map(|host| host.name.clone()).collect(),
        hosts: lines,
        failed: crew.failed(),
        fabric,
    };
    crew.leave();
    output.show(&status, describe)?;
    if status.hosts.is_empty() && !status.failed.is_empty() {
        return Err(CliError::Failed {
            message: "no host has answered".into(),
            hint: "the reasons are above; --ssh names another command that reaches hosts".into(),
        });
    }
    Ok(())
}

/// Shows what was started on this machine.
pub(super) fn show_known(records: &Records, output: Output) -> Result<(), CliError> {
    let listed = Listed { file_systems: records.all()? };
    output.show(&listed, |listed, paint| {
        let mut table = Table::new(&["ID", "STATE", ">HOSTS", "PATH", "MOUNTPOINT"]);
        for record in &listed.file_systems {
            table.row(vec![
                Cell::from(&*record.id),
                Cell::from(record.state.word()),
                Cell::from(record.hosts.len().to_string()),
                Cell::from(record.path.display().to_string()),
                Cell::from(record.mountpoint.display().to_string()),
            ]);
        }
        crate::output::table_or_note(&table, paint, "no file system on demand was started here")
    })
}

fn describe(status: &Status, paint: Paint) -> String {
    let mut text = String::new();
    let mut table = Table::new(&["HOST", "STATE", "NODE", "MANAGER", "MOUNT", ">DISK FREE"]);
    let word = |is_good: bool, good: &str, bad: &str| match is_good {
        true => Cell::new(good, Tone::Good),
        false => Cell::new(bad, Tone::Bad),
    };
    for HostLine { host, status } in &status.hosts {
        table.row(vec![
            Cell::from(&**host),
            Cell::from(&*status.state),
            word(status.node, "runs", "ended"),
            status.manager.map_or_else(|| Cell::from("-"), |runs| word(runs, "runs", "ended")),
            match (status.mounted, status.answers) {
                (true, true) => word(true, "answers", ""),
                (true, false) => word(false, "", "silent"),
                _ => word(false, "", "none"),
            },
            Cell::from(Size(status.free_bytes).to_string()),
        ]);
    }
    if !table.is_empty() {
        text.push_str(&table.render(paint));
    }
    if !status.failed.is_empty() {
        text.push_str(&format!("\nNot reached:\n{}", list(&status.failed)));
    }
    if !status.had_nothing.is_empty() {
        let names = status.had_nothing.join(", ");
        text.push_str(&format!("\nNothing of it is on {}: {names}\n", hosts(status.had_nothing.len())));
    }
    match &status.fabric {
        Some(fabric) => {
            text.push_str(&format!(
                "\nThe fabric is {}; of {} for files {} are used\n",
                fabric.health,
                Size(fabric.size_bytes),
                Size(fabric.used_bytes)
            ));
            text.extend(fabric.reasons.iter().map(|reason| format!("  - {reason}\n")));
        }
        None if status.hosts.is_empty() => {}
        None => text.push_str("\nThe manager of the fabric does not answer\n"),
    }
    text
}
