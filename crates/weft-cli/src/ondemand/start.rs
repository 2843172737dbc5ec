//! `weft ondemand start`: from hosts to a mounted file system, or back to nothing.

use super::crew::{ANSWER_WITHIN, Crew, Failed, Host, WORK_WITHIN, hosts, in_a_line, list};
use super::message::{Left, Prepare, Prepared, Request};
use super::network::Network;
use super::plan::{Ports, Wanted, complaints, node_names, steps};
use super::record::{FILE_SYSTEM, HostRecord, Phase, Records, SCHEMA, StartRecord};
use super::remote::{HostError, Session, Ssh, Wait};
use super::script::{FOLDER, Scene};
use crate::error::CliError;
use crate::output::{Output, note};
use crate::size::Size;
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_types::FabricId;

/// How long a host may take to undo what it has done: processes that hang are killed after 20 s.
const UNDO_WITHIN: Duration = Duration::from_secs(90);

/// How long the copy of the program may take.
const COPY_WITHIN: Duration = Duration::from_secs(300);

/// A start, with all that was asked for.
#[derive(Clone, Debug)]
pub(super) struct Start {
    pub(super) hosts: Vec<String>,
    pub(super) wanted: Wanted,
    pub(super) shards: Option<u32>,
    pub(super) ports: Ports,
    pub(super) network: Option<Network>,
    pub(super) ssh: Ssh,
    /// A program on the hosts.
    pub(super) weft: Option<PathBuf>,
    pub(super) dry_run: bool,
    pub(super) records: Records,
    pub(super) fabric: FabricId,
    pub(super) token: String,
}

/// What was started, for programs.
#[derive(Serialize)]
struct Started {
    id: String,
    fabric: String,
    path: PathBuf,
    mountpoint: PathBuf,
    hosts: Vec<String>,
    copies: u8,
    /// Bytes of all drives.
    raw_bytes: u64,
    manager: String,
    seconds: f64,
}

/// What would be started, for programs.
#[derive(Serialize)]
struct Rehearsed {
    dry_run: bool,
    hosts: Vec<String>,
    steps: Vec<String>,
}

/// Why a start has come to its end early.
enum Cut {
    /// Hosts have failed.
    Hosts { step: &'static str, failed: Vec<Failed>, is_refusal: bool },
    /// Something on this machine.
    Here(CliError),
    /// It was interrupted.
    Stopped,
}

impl From<CliError> for Cut {
    fn from(error: CliError) -> Cut {
        Cut::Here(error)
    }
}

/// Starts a file system; undoes everything where that fails, or once `stop` is set.
pub(super) fn start(start: &Start, stop: &AtomicBool, output: Output) -> Result<(), CliError> {
    let mut crew = Crew::new(&start.hosts, stop);
    let looked = look(start, &mut crew);
    if start.dry_run {
        let without = crew.hosts.iter().filter(|host| host.facts.needs_program()).count();
        crew.leave();
        looked.map_err(|cut| error_of(cut, &[], &start.hosts))?;
        let with_devices = crew.hosts.iter().filter(|host| !host.facts.devices.is_empty()).count();
        let steps = steps(&start.hosts, &start.wanted, without, with_devices);
        let rehearsed = Rehearsed { dry_run: true, hosts: start.hosts.clone(), steps };
        return output.show(&rehearsed, |rehearsed, _| {
            let steps = rehearsed.steps.iter().enumerate();
            let steps: String = steps.map(|(n, step)| format!("  {}. would {step}\n", n + 1)).collect();
            format!("All {} are fit. A start:\n{steps}", hosts(rehearsed.hosts.len()))
        });
    }
    let mut record = StartRecord {
        schema: SCHEMA,
        state: Phase::Starting,
        id: String::new(),
        fabric: start.fabric,
        hosts: start.hosts.clone(),
        path: start.wanted.path.clone(),
        mountpoint: start.wanted.mountpoint.clone(),
        copies: start.wanted.copies,
        ssh: start.ssh.text(),
        ended: Vec::new(),
    };
    match looked.and_then(|()| bring_up(start, &mut crew, &mut record)) {
        Ok(started) => {
            crew.leave();
            output.show(&started, |started, _| describe(started))
        }
        Err(cut) => {
            let left = undo(start, &mut crew, &record);
            crew.leave();
            Err(error_of(cut, &left, &start.hosts))
        }
    }
}

/// Looks at all hosts, and refuses those that are not fit.
fn look(start: &Start, crew: &mut Crew) -> Result<(), Cut> {
    let program_bytes =
        fs::metadata("/proc/self/exe").map_err(CliError::file("find", "/proc/self/exe"))?.len();
    let named = start.weft.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    let wait = crew.wait(ANSWER_WITHIN);
    crew.each(
        |_| true,
        |_, host| {
            let scene = Scene {
                token: &start.token,
                host: &host.name,
                path: &start.wanted.path,
                id: "",
                named: &named,
            };
            let script = scene.start(&start.wanted.mountpoint, program_bytes, start.wanted.resume);
            let mut session = Session::open(&start.ssh, &host.name, &start.token, &script)?;
            let mut looked = session.line(wait);
            while looked.as_ref().is_ok_and(|line| line != "looked") {
                looked.as_ref().map(|line| host.facts.take(line)).ok();
                looked = session.line(wait);
            }
            host.session = Some(session);
            looked.map(drop)
        },
    );
    check(crew, "look at the hosts")?;
    let (mut failed, mut is_refusal) = (Vec::new(), false);
    for host in &crew.hosts {
        let found = complaints(&host.facts, &start.wanted);
        is_refusal |= found.iter().any(|complaint| complaint.is_refusal);
        let reason: Vec<String> = found.into_iter().map(|complaint| complaint.what).collect();
        if !reason.is_empty() {
            failed.push(Failed { host: host.name.clone(), reason: reason.join("; ") });
        }
    }
    if !failed.is_empty() {
        return Err(Cut::Hosts { step: "look at the hosts", failed, is_refusal });
    }
    crew.tell(&format!("looked at {}", hosts(crew.hosts.len())));
    Ok(())
}

/// Fails if any host has failed, or the command is to end.
fn check(crew: &Crew, step: &'static str) -> Result<(), Cut> {
    if crew.stop.load(Ordering::Relaxed) {
        return Err(Cut::Stopped);
    }
    let failed = crew.failed();
    if failed.is_empty() { Ok(()) } else { Err(Cut::Hosts { step, failed, is_refusal: false }) }
}

/// All steps that change anything.
fn bring_up(start: &Start, crew: &mut Crew, record: &mut StartRecord) -> Result<Started, Cut> {
    record.id = identity(start, crew)?;
    start.records.keep(record)?;
    claim(start, crew, &record.id)?;
    let prepared = prepare(start, crew, record)?;
    let raw_bytes = prepared.iter().map(|prepared| prepared.bytes).sum::<u64>();
    let drives = prepared.iter().map(|prepared| prepared.drives).sum();
    crew.tell(&format!("made drives of {} in all", Size(raw_bytes)));

    let wait = crew.wait(WORK_WITHIN);
    let is_first = |host: &Host| host.name == start.hosts[0];
    let managers: Vec<(usize, String)> = crew.each(is_first, |_, host| host.ask(Request::Manager {}, wait));
    check(crew, "start the manager")?;
    let manager = managers.into_iter().next().map(|(_, address)| address).unwrap_or_default();
    crew.tell(&format!("started the manager on {}, at {manager}", start.hosts[0]));

    crew.ask_all::<()>(&Request::Node { manager: manager.clone() }, WORK_WITHIN);
    check(crew, "start the nodes")?;
    crew.tell(&format!("started a node on {}", hosts(crew.hosts.len())));

    let create = Request::Create { drives, copies: start.wanted.copies, shards: start.shards };
    crew.each(is_first, |_, host| host.ask::<()>(create.clone(), wait));
    check(crew, "create the file system")?;
    crew.tell(&format!("created the file system '{FILE_SYSTEM}'"));

    crew.ask_all::<()>(&Request::Mount {}, WORK_WITHIN);
    check(crew, "mount the file system")?;
    crew.tell(&format!("mounted it on {}; every mount answers", hosts(crew.hosts.len())));

    crew.ask_all::<()>(&Request::Settle {}, ANSWER_WITHIN);
    check(crew, "keep it")?;
    record.state = Phase::Running;
    start.records.keep(record)?;
    Ok(Started {
        id: record.id.clone(),
        fabric: record.fabric.to_string(),
        path: record.path.clone(),
        mountpoint: record.mountpoint.clone(),
        hosts: record.hosts.clone(),
        copies: record.copies,
        raw_bytes,
        manager,
        seconds: (crew.elapsed().as_millis() as f64) / 1000.0,
    })
}

/// The identity of the file system: the first digits of its fabric's, or that of the data that are resumed.
fn identity(start: &Start, crew: &Crew) -> Result<String, Cut> {
    if !start.wanted.resume {
        return Ok(start.fabric.to_string().chars().take(8).collect());
    }
    let names: Vec<&str> =
        crew.hosts.iter().filter_map(|host| Some(&*host.facts.ondemand.first()?.0)).collect();
    let first = names.first().copied().unwrap_or_default();
    let differs = crew.hosts.iter().zip(&names).find(|(_, name)| **name != first);
    if let Some((host, name)) = differs {
        let reason = format!("it holds {name}, and {} holds {first}", start.hosts[0]);
        let failed = vec![Failed { host: host.name.clone(), reason }];
        return Err(Cut::Hosts { step: "find the data", failed, is_refusal: true });
    }
    Ok(first.strip_prefix(FOLDER).unwrap_or(first).to_owned())
}

/// Makes the folder on each host, copies the program where it has to be, and starts it.
fn claim(start: &Start, crew: &mut Crew, id: &str) -> Result<(), Cut> {
    let needs = crew.hosts.iter().filter(|host| host.facts.needs_program()).count();
    let program = match needs {
        0 => Vec::new(),
        _ => fs::read("/proc/self/exe").map_err(CliError::file("read", "/proc/self/exe"))?,
    };
    let wait = crew.wait(COPY_WITHIN);
    crew.each(Host::is_here, |_, host| claim_one(host, id, &program, wait));
    check(crew, "make the folders")?;
    match needs {
        0 => crew.tell(&format!("made {FOLDER}{id} in {}", start.wanted.path.display())),
        needs => crew.tell(&format!(
            "made {FOLDER}{id} in {}, and copied weft to {}",
            start.wanted.path.display(),
            hosts(needs)
        )),
    }
    Ok(())
}

fn claim_one(host: &mut Host, id: &str, program: &[u8], wait: Wait) -> Result<(), HostError> {
    let word = if host.facts.needs_program() { "take" } else { "claim" };
    let Some(session) = &mut host.session else { return Err(HostError::Ended("no connection".into())) };
    session.send(format!("{word} {id}\n").as_bytes())?;
    let mut refusal = None;
    loop {
        let line = session.line(wait)?;
        let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match word {
            "ready" => session.send(program)?,
            "claimed" => host.is_claimed = true,
            "serves" => return Ok(()),
            "taken" => {
                refusal = Some(format!(
                    "the folder of this start is there already, made by host {rest}: is PATH shared between \
                     hosts, or does the host file have one machine under two names?"
                ))
            }
            "refused" if host.is_claimed => return Err(HostError::Said(rest.to_owned())),
            "refused" => refusal = Some(rest.to_owned()),
            "given-up" => {
                return Err(HostError::Said(refusal.unwrap_or_else(|| "no folder can be made".into())));
            }
            _ => {}
        }
    }
}

/// Has each host make its drives. Returns what they have prepared, in the order of the hosts.
fn prepare(start: &Start, crew: &mut Crew, record: &mut StartRecord) -> Result<Vec<Prepared>, Cut> {
    if start.wanted.resume {
        let earlier: Vec<(usize, Option<HostRecord>)> = crew.ask_all(&Request::Record {}, ANSWER_WITHIN);
        check(crew, "read the records")?;
        if let Some((_, Some(earlier))) = earlier.into_iter().next() {
            (record.fabric, record.copies) = (earlier.fabric, earlier.copies);
            start.records.keep(record)?;
        }
    }
    let addresses = crew.hosts.iter().filter_map(|host| host.facts.address);
    let other = addresses.into_iter().find(|address| !address.is_loopback());
    let nodes = node_names(&start.hosts);
    let wait = crew.wait(WORK_WITHIN);
    let prepared = crew.each(Host::is_here, |index, host| {
        let own = HostRecord {
            schema: SCHEMA,
            state: Phase::Starting,
            id: record.id.clone(),
            fabric: record.fabric,
            host: host.name.clone(),
            node: nodes[index].clone(),
            hosts: start.hosts.clone(),
            path: start.wanted.path.clone(),
            mountpoint: start.wanted.mountpoint.clone(),
            above_mountpoint: None,
            drives: host.facts.drives(&start.wanted),
            devices: host.facts.devices.clone(),
            copies: record.copies,
            listen: String::new(),
            manager: String::new(),
        };
        let asked = Prepare {
            record: own,
            ports: (start.ports.first, start.ports.last),
            network: start.network.map(|network| network.to_string()),
            reached_at: host.facts.address,
            other,
            drive_bytes: start.wanted.size.map(|size| size / u64::from(start.wanted.drives)),
            sparse: start.wanted.sparse,
            resume: start.wanted.resume,
        };
        host.ask(Request::Prepare(Box::new(asked)), wait)
    });
    check(crew, "make the drives")?;
    Ok(prepared.into_iter().map(|(_, prepared)| prepared).collect())
}

/// Undoes everything. Returns what is left on which host.
fn undo(start: &Start, crew: &mut Crew, record: &StartRecord) -> Vec<Failed> {
    let never = AtomicBool::new(false);
    let wait = Wait { limit: UNDO_WITHIN, stop: &never };
    let claimed = crew.hosts.iter().filter(|host| host.is_claimed).count();
    if claimed > 0 {
        note(&format!("undoing what was done on {}", hosts(claimed)));
    }
    for host in &mut crew.hosts {
        host.failure = None;
    }
    let done = crew.each(|host| host.is_claimed, |_, host| host.ask::<Left>(Request::Undo {}, wait));
    let mut left: Vec<Failed> = Vec::new();
    for (index, Left { left: found }) in done {
        if !found.is_empty() {
            left.push(Failed { host: crew.hosts[index].name.clone(), reason: found.join("; ") });
        }
    }
    left.extend(crew.failed());
    // Where something is left, a stop has to find it.
    if left.is_empty()
        && !record.id.is_empty()
        && !start.wanted.resume
        && let Err(error) = start.records.forget(&record.id)
    {
        note(&format!("warning: {}", error.chain()));
    }
    if start.wanted.resume && !record.id.is_empty() {
        let record = StartRecord { state: Phase::Stopped, ..record.clone() };
        let _ = start.records.keep(&record);
    }
    left
}

fn error_of(cut: Cut, left: &[Failed], all: &[String]) -> CliError {
    let mut remains = String::new();
    if !left.is_empty() {
        note(&format!("Not undone:\n{}", list(left)));
        remains = format!("; not undone on {}: {}", hosts(left.len()), in_a_line(left));
    }
    let later = "run `weft ondemand stop --delete` with the same hosts and PATH for what was not undone";
    match cut {
        Cut::Here(error) if left.is_empty() => error,
        Cut::Here(error) => {
            CliError::Failed { message: format!("{}{remains}", error.chain()), hint: later.into() }
        }
        Cut::Stopped if left.is_empty() => {
            CliError::Interrupted { message: "stopped before the file system was up; all is undone".into() }
        }
        Cut::Stopped => CliError::Failed {
            message: format!("stopped before the file system was up{remains}"),
            hint: later.into(),
        },
        Cut::Hosts { step, failed, is_refusal } => {
            note(&format!("Failed:\n{}", list(&failed)));
            let count = format!("{} of {}", failed.len(), hosts(all.len()));
            let message = format!("cannot {step}: {count} failed ({}){remains}", in_a_line(&failed));
            let hint = match left.is_empty() {
                true => {
                    "nothing was left behind; mend these hosts, or take them out of the host file".to_owned()
                }
                false => later.to_owned(),
            };
            match is_refusal {
                true => CliError::Refused { message, hint },
                false => CliError::Failed { message, hint },
            }
        }
    }
}

fn describe(started: &Started) -> String {
    let (count, at, id) = (started.hosts.len(), started.mountpoint.display(), &started.id);
    format!(
        "File system {id} is up on {} after {:.1} s: {} of drives, {} of each block, mounted at {at}\n\n\
         Next:\n  \
         weft ondemand copy --id {id} SRC... {at}/DST   copy files in, from all hosts at once\n  \
         weft ondemand status {id}   see how it is\n  \
         weft ondemand stop {id} --delete   end it, and remove its data\n",
        hosts(count),
        started.seconds,
        Size(started.raw_bytes),
        if started.copies == 1 { "1 copy".to_owned() } else { format!("{} copies", started.copies) },
    )
}
