//! Stopping the members of a local fabric: nodes first, so that they can still tell the manager; the manager
//! last.

use super::folder::{MANAGER, SUPERVISOR};
use super::process::Signal;
use super::{Folder, LocalConfig, LocalError, ProcessId};
use crate::connection::Connection;
use crate::locate::FabricPlace;
use crate::output::note;
use std::fs;
use std::time::Duration;
use weft_api::ApiRequest;
use weft_rt::timeout;
use weft_types::with_causes;

/// How long a member may take to stop in order (a node writes a checkpoint of each drive) before it is
/// killed.
const STOP_MAX: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(10) };

/// How long a killed process may take to end: it may be inside a system call that cannot be interrupted.
const KILL_MAX: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(10) };

/// How long the `weft up` in the foreground may take to stop everything: two turns of [`STOP_MAX`], then
/// kills.
const SUPERVISOR_STOP_MAX: Duration = Duration::from_secs(40);

/// How long the manager may take to hear that everything is about to stop.
const ANNOUNCE_MAX: Duration = if cfg!(test) { Duration::from_millis(500) } else { Duration::from_secs(2) };

/// The members that run, in the order in which they are stopped.
pub(super) fn running(folder: &Folder, config: &LocalConfig) -> Vec<(String, ProcessId)> {
    let names = config.nodes.iter().map(|n| n.name.as_str()).chain([MANAGER]);
    names.filter_map(|name| Some((name.to_owned(), ProcessId::read_alive(&folder.pid_file(name))?))).collect()
}

impl Folder {
    /// Whether anything of the fabric in the folder runs.
    pub(crate) fn has_running_member(&self) -> bool {
        matches!(self.config(), Ok(Some(config)) if !running(self, &config).is_empty())
    }
}

/// The `weft up` in the foreground, if there is one.
pub(super) fn supervisor(folder: &Folder) -> Option<ProcessId> {
    ProcessId::read_alive(&folder.pid_file(SUPERVISOR))
}

/// Stops all members that run, however they were started. One that cannot be stopped keeps none of the others
/// from it.
///
/// # Errors
/// [`LocalError::StillRunning`] with those that run still, and why.
pub(super) async fn stop_all(folder: &Folder, config: &LocalConfig) -> Result<usize, LocalError> {
    let members = running(folder, config);
    let (nodes, managers): (Vec<_>, Vec<_>) = members.iter().cloned().partition(|(name, _)| name != MANAGER);
    if !nodes.is_empty() && !managers.is_empty() {
        announce(folder).await;
    }
    let mut left = Vec::new();
    for turn in [nodes, managers] {
        let mut asked = Vec::new();
        for (name, id) in turn {
            match id.signal(Signal::Terminate).map_err(LocalError::file("stop", folder.pid_file(&name))) {
                Ok(()) => asked.push((name, id)),
                Err(error) => left.push((name, id, error)),
            }
        }
        for (name, id) in asked {
            if let Err(error) = end(folder, &name, &id).await {
                left.push((name, id, error));
            }
        }
    }
    if left.is_empty() {
        return Ok(members.len());
    }
    let named = left.iter().map(|(name, id, error)| {
        let why = match error {
            LocalError::WontStop { .. } => "it was killed and does not end".to_owned(),
            other => with_causes(other),
        };
        format!("{name} (process {}: {why})", id.pid)
    });
    let named: Vec<String> = named.collect();
    let pids: Vec<String> = left.iter().map(|(_, id, _)| id.pid.to_string()).collect();
    Err(LocalError::StillRunning { members: named.join(", "), pids: pids.join(",") })
}

/// Tells the manager that everything is about to stop: it would take the first node that has stopped for
/// gone. A manager that does not hear it does that, and some copies are brought up to date at the next start.
async fn announce(folder: &Folder) {
    let place = FabricPlace::Folder(folder.path().to_owned());
    let said = async { Connection::open(&place).await?.ask(&ApiRequest::FabricStop {}).await };
    let _ = timeout(ANNOUNCE_MAX, said).await;
}

/// Asks the `weft up` in the foreground to stop everything, and waits until it has.
pub(super) async fn stop_supervisor(folder: &Folder, id: &ProcessId) -> Result<(), LocalError> {
    let pid_file = folder.pid_file(SUPERVISOR);
    id.signal(Signal::Terminate).map_err(LocalError::file("stop", pid_file))?;
    if id.ends_within(SUPERVISOR_STOP_MAX).await {
        return Ok(());
    }
    Err(LocalError::WontStop { name: format!("weft up (process {})", id.pid), waited: SUPERVISOR_STOP_MAX })
}

/// Waits for the end of a member that was asked to stop; kills it if it takes too long.
async fn end(folder: &Folder, name: &str, id: &ProcessId) -> Result<(), LocalError> {
    if !id.ends_within(STOP_MAX).await {
        note(&format!("{name} did not stop within {} s; killing it", STOP_MAX.as_secs()));
        id.signal(Signal::Kill).map_err(LocalError::file("stop", folder.pid_file(name)))?;
        if !id.ends_within(KILL_MAX).await {
            return Err(LocalError::WontStop { name: name.to_owned(), waited: STOP_MAX + KILL_MAX });
        }
    }
    forget(folder, name)
}

/// Stops one member.
///
/// # Errors
/// [`LocalError::MemberStopped`] if it is not running, [`LocalError::WontStop`] if it does not end in time.
pub(super) async fn stop_one(folder: &Folder, name: &str, signal: Signal) -> Result<ProcessId, LocalError> {
    let pid_file = folder.pid_file(name);
    let Some(id) = ProcessId::read_alive(&pid_file) else {
        return Err(LocalError::MemberStopped { name: name.to_owned() });
    };
    id.signal(signal).map_err(LocalError::file("stop", pid_file))?;
    if !id.ends_within(STOP_MAX).await {
        return Err(LocalError::WontStop { name: name.to_owned(), waited: STOP_MAX });
    }
    forget(folder, name)?;
    Ok(id)
}

/// Removes the record of a process that has ended.
pub(super) fn forget(folder: &Folder, name: &str) -> Result<(), LocalError> {
    let path = folder.pid_file(name);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(LocalError::file("remove", path)(e)),
        _ => Ok(()),
    }
}
