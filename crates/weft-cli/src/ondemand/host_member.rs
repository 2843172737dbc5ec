//! The processes of a file system on a host: the manager, the node and the mount.
//!
//! Each is recorded by its number, its start and its boot, so that no other process is ever ended for it.

use super::host_drives::paths;
use super::host_prepare::run;
use super::on_host::{Place, Work};
use crate::connection::Connection;
use crate::error::CliError;
use crate::local::{ProcessId, Signal, detach_from_terminal, program};
use crate::locate::FabricPlace;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, FabricStatus, Presence};
use weft_rt::{now, sleep, timeout};

/// How long a manager, and a node, may take until it answers.
const MANAGER_START_MAX: Duration = Duration::from_secs(20);
const NODE_START_MAX: Duration = Duration::from_secs(60);

/// How long a manager may take for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(3);

const POLL: Duration = Duration::from_millis(50);

/// How long a process may take to stop in order before it is killed, and then to end.
const STOP_MAX: Duration = Duration::from_secs(10);
const KILL_MAX: Duration = Duration::from_secs(10);

/// Lines of a log that say why a process has ended.
const LAST_LINES: usize = 3;

/// A process that this one has started.
pub(super) struct Member<'a> {
    place: &'a Place,
    name: &'static str,
    child: Child,
}

impl<'a> Member<'a> {
    /// Starts a command in the background, and records it.
    pub(super) fn start(
        work: &Work<'a>,
        name: &'static str,
        mut command: Command,
    ) -> Result<Member<'a>, CliError> {
        work.check()?;
        let place = work.place;
        let log_file = place.log_file(name);
        let log = File::options().create(true).append(true).open(&log_file);
        let log = log.map_err(CliError::file("open", &log_file))?;
        let copy = log.try_clone().map_err(CliError::file("open", &log_file))?;
        command.stdin(Stdio::null()).stdout(copy).stderr(log).current_dir("/");
        detach_from_terminal(&mut command);
        let mut child = command.spawn().map_err(|error| CliError::Failed {
            message: format!("the {name} cannot be started: {error}"),
            hint: "check that weft can be started there".into(),
        })?;
        let recorded = match ProcessId::of(child.id() as i32) {
            Some(id) => id.write(&place.pid_file(name)).map_err(CliError::from),
            // It has ended already, as the next look at it says.
            None => Ok(()),
        };
        if let Err(error) = recorded {
            let _ = child.kill().and_then(|()| child.wait());
            return Err(error);
        }
        Ok(Member { place, name, child })
    }

    /// Fails if it has ended, with its last words.
    pub(super) fn check(&mut self) -> Result<(), CliError> {
        let Ok(Some(how)) = self.child.try_wait() else { return Ok(()) };
        Err(CliError::Failed {
            message: format!("the {} has ended ({how}): {}", self.name, last_words(self.place, self.name)),
            hint: format!("its log is {}", self.place.log_file(self.name).display()),
        })
    }
}

/// The last lines of a log, on one line.
pub(super) fn last_words(place: &Place, name: &str) -> String {
    let log = fs::read(place.log_file(name)).unwrap_or_default();
    let text = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.len() {
        0 => "it said nothing".to_owned(),
        count => lines[count.saturating_sub(LAST_LINES)..].join("; "),
    }
}

/// Makes the fabric, unless there is one, and starts its manager. Returns its address.
pub(super) async fn start_manager(work: &Work<'_>) -> Result<String, CliError> {
    let (place, record) = (work.place, work.place.record()?);
    if !place.store().exists() {
        let mut command = program()?;
        command.args(["fabric", "init"]).arg(place.store());
        command.args(["--fabric-id", &record.fabric.to_string()]);
        run(command, "the fabric cannot be made")?;
    }
    let mut command = program()?;
    command.args(["manager", "run", "--listen", &record.manager, "--store"]).arg(place.store());
    command.args(["--fabric-id", &record.fabric.to_string(), "--log-file"]).arg(place.log_file("manager"));
    let mut member = Member::start(work, "manager", command)?;
    let began = now();
    while ask_status(&record.manager).await.is_none() {
        work.check()?;
        member.check()?;
        if began.elapsed() > MANAGER_START_MAX {
            return Err(silent("the manager", MANAGER_START_MAX, &last_words(place, "manager")));
        }
        sleep(POLL).await;
    }
    Ok(record.manager)
}

/// Starts the node, and waits until the manager counts it.
pub(super) async fn start_node(work: &Work<'_>, manager: &str) -> Result<(), CliError> {
    let place = work.place;
    let record = place.change(|record| record.manager = manager.to_owned())?;
    let mut command = program()?;
    command.args(["node", "run", "--name", &record.node, "--listen", &record.listen]);
    command.args(["--manager", manager, "--fabric-id", &record.fabric.to_string()]);
    command.arg("--log-file").arg(place.log_file("node"));
    for path in paths(place, &record) {
        command.arg("--drive").arg(path);
    }
    let mut member = Member::start(work, "node", command)?;
    let began = now();
    loop {
        work.check()?;
        member.check()?;
        let status = ask_status(manager).await;
        let is_answered = status.is_some();
        let is_up = |status: FabricStatus| {
            status.nodes.iter().any(|node| node.name == record.node && node.presence == Presence::Up)
        };
        if status.is_some_and(is_up) {
            return Ok(());
        }
        if began.elapsed() > NODE_START_MAX {
            let words = last_words(place, "node");
            return Err(match is_answered {
                true => silent("the node does not join: it", NODE_START_MAX, &words),
                false => silent(&format!("the manager at {manager}"), NODE_START_MAX, &words),
            });
        }
        sleep(POLL).await;
    }
}

fn silent(who: &str, waited: Duration, words: &str) -> CliError {
    CliError::Failed {
        message: format!("{who} does not answer within {} s: {words}", waited.as_secs()),
        hint:
            "hosts have to reach each other at the ports of --ports: is there a firewall, or another network \
               (--network)?"
                .into(),
    }
}

/// What a manager says of its fabric; none if it does not answer.
pub(super) async fn ask_status(manager: &str) -> Option<FabricStatus> {
    match timeout(ANSWER_MAX, ask(manager, &ApiRequest::Status {})).await {
        Ok(Ok(ApiAnswer::Status(status))) => Some(*status),
        _ => None,
    }
}

/// Asks a manager.
pub(super) async fn ask(manager: &str, request: &ApiRequest) -> Result<ApiAnswer, CliError> {
    Connection::open(&place_of(manager)?).await?.ask(request).await
}

/// Where a fabric is, by the address of its manager.
pub(super) fn place_of(manager: &str) -> Result<FabricPlace, CliError> {
    let addr = manager.parse().map_err(|error: weft_rt::ParseAddrError| CliError::Failed {
        message: format!("the manager's address '{manager}' cannot be read: {error}"),
        hint: "the record of this host is damaged".into(),
    })?;
    Ok(FabricPlace::Address(addr))
}

/// Whether a process of the file system runs.
pub(super) fn runs(place: &Place, name: &str) -> bool {
    ProcessId::read_alive(&place.pid_file(name)).is_some()
}

/// Ends a process in order, or by force if that takes too long, and forgets it. Nothing happens if it does
/// not run.
pub(super) async fn end_member(place: &Place, name: &str) -> Result<(), CliError> {
    let pid_file = place.pid_file(name);
    if let Some(id) = ProcessId::read_alive(&pid_file) {
        let failed = CliError::file("end the process of", &pid_file);
        id.signal(Signal::Terminate).map_err(failed)?;
        if !id.ends_within(STOP_MAX).await {
            id.signal(Signal::Kill).map_err(CliError::file("end the process of", &pid_file))?;
            if !id.ends_within(KILL_MAX).await {
                return Err(CliError::Failed {
                    message: format!("the {name} (process {}) was killed and does not end", id.pid),
                    hint: "it waits inside the kernel, such as for a disk; stop again later".into(),
                });
            }
        }
    }
    let _ = fs::remove_file(pid_file);
    Ok(())
}
