//! `weft ondemand stop`: unmounts everywhere, ends the processes, and removes the data if that is asked for.
//!
//! A host that cannot be reached is named, and keeps none of the others from it.

use super::crew::{ANSWER_WITHIN, Crew, Failed, Host, WORK_WITHIN, hosts, in_a_line, list};
use super::host_mount::shown;
use super::known::Known;
use super::message::{Left, Request, User};
use super::record::{HostRecord, Phase, Records};
use super::script::How;
use crate::error::CliError;
use crate::output::{Output, note};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is to be stopped, and how.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    pub(super) known: Known,
    pub(super) delete: bool,
    pub(super) force: bool,
    pub(super) records: Records,
    pub(super) token: String,
}

/// What was stopped, for programs.
#[derive(Serialize)]
struct Stopped {
    id: Option<String>,
    /// Hosts on which everything has ended now.
    ended: Vec<String>,
    /// Hosts that had nothing of it any more.
    had_nothing: Vec<String>,
    /// Hosts on which something is left, and why.
    left: Vec<Failed>,
    deleted: bool,
    seconds: f64,
}

pub(super) fn stop(stop: &Stop, interrupted: &AtomicBool, output: Output) -> Result<(), CliError> {
    let known = &stop.known;
    let mut crew = Crew::new(&known.hosts, interrupted);
    crew.find(known, &stop.token, if stop.force { How::Forced } else { How::Alone });
    crew.check_one()?;
    let records: Vec<(usize, Option<HostRecord>)> = crew.ask_all(&Request::Record {}, ANSWER_WITHIN);
    let manager = records.iter().find(|(_, record)| record.as_ref().is_some_and(HostRecord::has_manager));
    let manager = manager.map(|(index, _)| *index);
    let has_record: Vec<usize> =
        records.iter().filter(|(_, record)| record.is_some()).map(|(index, _)| *index).collect();
    crew.tell(&format!("reached {} of {}", records.len(), hosts(known.hosts.len())));
    for failed in crew.failed() {
        note(&format!("warning: {} is left out: {}", failed.host, failed.reason));
    }
    if !stop.force {
        refuse_users(&mut crew)?;
    }
    check_interrupted(interrupted)?;
    let names: Vec<String> = has_record.iter().map(|index| crew.hosts[*index].name.clone()).collect();
    let before = crew.failed().len();
    let wait = crew.wait(WORK_WITHIN);
    let unmount = Request::Unmount { force: stop.force, discard: stop.delete };
    let is_known = |host: &Host| host.is_here() && names.contains(&host.name);
    crew.each(is_known, |_, host| host.ask::<()>(unmount.clone(), wait));
    let failed = crew.failed();
    if failed.len() > before && !stop.force {
        return Err(not_unmounted(&failed[..]));
    }
    crew.tell(&format!("unmounted on {}", hosts(crew.hosts.iter().filter(|host| is_known(host)).count())));
    end_processes(stop, &mut crew, manager);
    let left = crew.failed();
    let had_nothing = names_of(&crew, |host| host.has_nothing);
    let ended = names_of(&crew, |host| host.is_here());
    let id = crew.found_id().or(Some(known.id.clone())).filter(|id| !id.is_empty());
    let stopped = Stopped {
        id,
        ended,
        had_nothing,
        left,
        deleted: stop.delete,
        seconds: (crew.elapsed().as_millis() as f64) / 1000.0,
    };
    crew.leave();
    write_down(stop, &stopped)?;
    output.show(&stopped, |stopped, _| describe(stopped))?;
    if stopped.left.is_empty() {
        return Ok(());
    }
    Err(CliError::Failed {
        message: format!("something is left on {}: {}", hosts(stopped.left.len()), in_a_line(&stopped.left)),
        hint: "stop again once these hosts can be reached; what is ended already is passed over".into(),
    })
}

fn check_interrupted(interrupted: &AtomicBool) -> Result<(), CliError> {
    match interrupted.load(Ordering::Relaxed) {
        false => Ok(()),
        true => Err(CliError::Interrupted { message: "stopped before anything was ended".into() }),
    }
}

/// Refuses where somebody uses a mount, before anything is ended.
fn refuse_users(crew: &mut Crew) -> Result<(), CliError> {
    let wait = crew.wait(ANSWER_WITHIN);
    let has_folder = |host: &Host| host.is_here();
    let users = crew.each(has_folder, |_, host| {
        let record: Option<HostRecord> = host.ask(Request::Record {}, wait)?;
        match record {
            Some(_) => host.ask::<Vec<User>>(Request::Users {}, wait),
            None => Ok(Vec::new()),
        }
    });
    let busy: Vec<Failed> = users
        .into_iter()
        .filter(|(_, users)| !users.is_empty())
        .map(|(index, users)| Failed { host: crew.hosts[index].name.clone(), reason: shown(&users) })
        .collect();
    if busy.is_empty() {
        return Ok(());
    }
    note(&format!("In use:\n{}", list(&busy)));
    Err(CliError::Refused {
        message: format!("the file system is in use on {}: {}", hosts(busy.len()), in_a_line(&busy)),
        hint: "end these processes, or take the file system from them with --force".into(),
    })
}

fn not_unmounted(failed: &[Failed]) -> CliError {
    note(&format!("Not unmounted:\n{}", list(failed)));
    CliError::Failed {
        message: format!("nothing was ended, because not all is unmounted: {}", in_a_line(failed)),
        hint: "--force takes mounts away from programs that use them, and gives up what cannot be written"
            .into(),
    }
}

/// Ends nodes, then the manager, and what is left; removes the data if that is asked for.
fn end_processes(stop: &Stop, crew: &mut Crew, manager: Option<usize>) {
    let wait = crew.wait(WORK_WITHIN);
    if let Some(manager) = manager {
        let name = crew.hosts[manager].name.clone();
        crew.each(
            |host| host.is_here() && host.name == name,
            |_, host| host.ask::<()>(Request::Announce {}, wait),
        );
    }
    crew.ask_all::<()>(&Request::EndNode {}, WORK_WITHIN);
    let finish = Request::Finish { delete: stop.delete };
    crew.each(Host::is_here, |_, host| {
        let Left { left } = host.ask(finish.clone(), wait)?;
        match left.is_empty() {
            true => Ok(()),
            false => Err(super::remote::HostError::Said(left.join("; "))),
        }
    });
    let what = if stop.delete { "ended all processes, and removed the data" } else { "ended all processes" };
    crew.tell(&format!("{what} on {}", hosts(crew.hosts.iter().filter(|host| host.is_here()).count())));
}

fn names_of(crew: &Crew, is_meant: impl Fn(&Host) -> bool) -> Vec<String> {
    crew.hosts.iter().filter(|host| is_meant(host)).map(|host| host.name.clone()).collect()
}

/// Brings this machine's record up to date.
fn write_down(stop: &Stop, stopped: &Stopped) -> Result<(), CliError> {
    let Some(id) = &stopped.id else { return Ok(()) };
    let known = stop.records.all()?.into_iter().find(|record| record.id == *id);
    let Some(mut record) = known else { return Ok(()) };
    if stop.delete && stopped.left.is_empty() {
        return stop.records.forget(id);
    }
    record.state = Phase::Stopped;
    if stop.delete {
        record.ended.extend(stopped.ended.iter().chain(&stopped.had_nothing).cloned());
        record.ended.sort();
        record.ended.dedup();
    }
    stop.records.keep(&record)
}

fn describe(stopped: &Stopped) -> String {
    let (ended, nothing) = (stopped.ended.len(), stopped.had_nothing.len());
    let mut text = String::new();
    if ended > 0 {
        let name = stopped.id.as_deref().unwrap_or("of no name");
        let data = if stopped.deleted { "; its data are removed" } else { "; its data stay" };
        text.push_str(&format!(
            "File system {name} has ended on {} after {:.1} s{data}\n",
            hosts(ended),
            stopped.seconds
        ));
    }
    if nothing > 0 {
        text.push_str(&format!("Nothing of it was there any more on {}\n", hosts(nothing)));
    }
    if !stopped.left.is_empty() {
        text.push_str(&format!("Left:\n{}", list(&stopped.left)));
    }
    text
}
