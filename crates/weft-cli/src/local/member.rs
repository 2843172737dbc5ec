//! `weft node start|stop` and `weft manager start|stop`: one member of a local fabric, for trying what happens when it
//! fails, and for bringing it back.

use super::folder::MANAGER;
use super::process::Signal;
use super::start::{check_lives, start_manager, start_node};
use super::stop::{forget, running, stop_one, supervisor};
use super::{Folder, LocalConfig, LocalError, LocalNode};
use crate::connection::Connection;
use crate::error::CliError;
use crate::locate::FabricPlace;
use crate::output::Output;
use serde::Serialize;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, Presence};
use weft_rt::{now, sleep};

/// How long a node is watched after its start: what is wrong with its arguments or its port shows by then.
const WATCHED: Duration = Duration::from_millis(300);

/// How long nodes that run are awaited after their manager's start: they try again several times a second, unless
/// they are stuck, which the manager tells whoever asks for the status.
const REJOIN_MAX: Duration = Duration::from_secs(10);

/// How often it is looked whether they are there.
const REJOIN_POLL: Duration = Duration::from_millis(50);

/// What was started or stopped.
#[derive(Serialize)]
struct Changed<'a> {
    node: &'a str,
    pid: i32,
    state: &'static str,
}

/// What became of the manager.
#[derive(Serialize)]
struct ManagerChanged {
    pid: i32,
    state: &'static str,
}

/// Starts a node that is not running.
pub(crate) async fn start_member(folder: &Folder, name: &str, output: Output) -> Result<(), CliError> {
    let config = folder.require_config()?;
    let node = find(folder, config.node(name), name, &config.nodes)?;
    let _lock = folder.lock_patiently().await?;
    let mut member = start_node(folder, &config, node, supervisor(folder).as_ref())?;
    sleep(WATCHED).await;
    check_lives(folder, &mut member).inspect_err(|_| {
        // The record names a process that has ended; without it nothing else can be taken for it either.
        let _ = forget(folder, name);
    })?;
    member.tell_left_out(folder);
    let changed = Changed { node: name, pid: member.id.pid, state: "started" };
    output.show(&changed, |c, _| format!("{} started, as process {}\n", c.node, c.pid))
}

/// Starts the manager, which is not running while nodes may be.
pub(crate) async fn start_lost_manager(folder: &Folder, output: Output) -> Result<(), CliError> {
    let config = folder.require_config()?;
    let _lock = folder.lock_patiently().await?;
    if !folder.has_map_file()? {
        return Err(LocalError::NoStore { folder: folder.path().to_owned(), store: folder.map_file() }.into());
    }
    let started = start_manager(folder, &config, supervisor(folder).as_ref()).await;
    let member = started.inspect_err(|error| {
        if matches!(error, LocalError::Died { .. }) {
            let _ = forget(folder, MANAGER);
        }
    })?;
    await_nodes(folder, &config).await?;
    let changed = ManagerChanged { pid: member.id.pid, state: "started" };
    output.show(&changed, |c, _| format!("the manager started, as process {}\n", c.pid))
}

/// Waits until the nodes that run have found the new manager: before, it takes all of them for missing.
async fn await_nodes(folder: &Folder, config: &LocalConfig) -> Result<(), CliError> {
    let connection = Connection::open(&FabricPlace::Folder(folder.path().to_owned())).await?;
    let began = now();
    while began.elapsed() < REJOIN_MAX {
        let ApiAnswer::Status(status) = connection.ask(&ApiRequest::Status {}).await? else {
            return Err(CliError::wrong_answer(connection.at()));
        };
        let is_up = |name: &str| status.nodes.iter().any(|n| n.name == name && n.presence == Presence::Up);
        if running(folder, config).iter().all(|(name, _)| name == MANAGER || is_up(name)) {
            break;
        }
        sleep(REJOIN_POLL).await;
    }
    Ok(())
}

/// Stops the manager in order, or kills it.
pub(crate) async fn stop_manager(folder: &Folder, kill: bool, output: Output) -> Result<(), CliError> {
    folder.require_config()?;
    let _lock = folder.lock_patiently().await?;
    let signal = if kill { Signal::Kill } else { Signal::Terminate };
    let id = stop_one(folder, MANAGER, signal).await?;
    let changed = ManagerChanged { pid: id.pid, state: if kill { "killed" } else { "stopped" } };
    output.show(&changed, |c, _| format!("the manager {}\n", c.state))
}

/// Stops a node in order, or kills it.
pub(crate) async fn stop_member(
    folder: &Folder,
    name: &str,
    kill: bool,
    output: Output,
) -> Result<(), CliError> {
    let config = folder.require_config()?;
    find(folder, config.node(name), name, &config.nodes)?;
    let _lock = folder.lock_patiently().await?;
    let signal = if kill { Signal::Kill } else { Signal::Terminate };
    let id = stop_one(folder, name, signal).await?;
    let changed = Changed { node: name, pid: id.pid, state: if kill { "killed" } else { "stopped" } };
    output.show(&changed, |c, _| format!("{} {}\n", c.node, c.state))
}

fn find<'a>(
    folder: &Folder,
    node: Option<&'a LocalNode>,
    name: &str,
    nodes: &[LocalNode],
) -> Result<&'a LocalNode, LocalError> {
    node.ok_or_else(|| {
        let known: Vec<&str> = nodes.iter().map(|n| n.name.as_str()).collect();
        LocalError::NoNode { name: name.to_owned(), path: folder.path().to_owned(), known: known.join(", ") }
    })
}
