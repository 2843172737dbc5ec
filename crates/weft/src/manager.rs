//! `weft manager run`: the manager as a process.

use crate::backup::BackupFolder;
use crate::init::{check_is_there, no_fabric, open_store};
use crate::stop::asked_to_stop;
use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use weft_cli::{CliError, ManagerRunArgs};
use weft_manager::{Manager, ManagerError, ManagerOptions};
use weft_metrics::{ManagerView, manager_page, process_load};
use weft_rt::sync::{Either, race};
use weft_rt::{Addr, Listener, now, offload, sleep, spawn};
use weft_types::with_causes;

/// Runs until a signal, or until the manager can serve no more.
pub(crate) async fn run(args: ManagerRunArgs) -> Result<(), CliError> {
    let supervisor = args.supervisor.clone();
    let running: RefCell<Option<Rc<Manager>>> = RefCell::new(None);
    let ended = race(asked_to_stop(supervisor), serve(args, &running)).await;
    let manager = running.borrow().clone();
    if let Some(manager) = manager
        && let Err(error) = manager.keep_commits(Duration::ZERO).await
    {
        tracing::warn!(error = with_causes(&error), "how far drives have come was not kept");
    }
    match ended {
        Either::Left(()) => Ok(()),
        Either::Right(ended) => ended,
    }
}

async fn serve(args: ManagerRunArgs, running: &RefCell<Option<Rc<Manager>>>) -> Result<(), CliError> {
    // Before anything is made: where a disk is not mounted, nothing shall lie in its place.
    check_is_there(&args.store, args.fabric_id)?;
    let mut listeners = vec![bind(&args.listen, "--listen").await?];
    if let Some(path) = &args.socket {
        make_parent(path)?;
        listeners.push(bind(&Addr::Unix(path.clone()), "--socket").await?);
    }
    let store = open_store(&args.store, args.fabric_id)?;
    let options = ManagerOptions { fabric: args.fabric_id, ..ManagerOptions::default() };
    let metrics = match &args.metrics {
        Some(addr) => Some(bind(addr, "--metrics").await?),
        None => None,
    };
    let manager = Manager::start(store, options).await.map_err(|error| match error {
        ManagerError::NoFabric => no_fabric(&args.store, args.fabric_id),
        error => refused(&error),
    })?;
    *running.borrow_mut() = Some(manager.clone());
    tracing::info!(fabric = %manager.map().fabric, map = %manager.map().version, "manager serves");
    for listener in listeners {
        tracing::info!(addr = %listener.local_addr(), "listening");
        spawn(manager.clone().serve(listener));
    }
    if let Some(listener) = metrics {
        serve_metrics(listener, &manager);
    }
    let backups = BackupFolder::beside(&args.store);
    spawn(manager.clone().keep_backups(args.backup_every.0, move |version, bytes| {
        let backups = backups.clone();
        offload(move || backups.write(version, &bytes))
    }));
    let reason = manager.halted().await;
    Err(CliError::Failed {
        message: format!("the manager serves no more: {reason}"),
        hint: "make sure that only one manager runs and its disk is sound, then start it again".into(),
    })
}

fn serve_metrics(listener: Listener, manager: &Rc<Manager>) {
    tracing::info!(addr = %listener.local_addr(), "serving metrics");
    let manager = manager.clone();
    spawn(weft_metrics::serve(listener, move || {
        let manager = manager.clone();
        async move {
            let (status, process) = (manager.status().await, offload(process_load).await);
            let (map, scrub, events) = (manager.map(), manager.scrub_info(), manager.event_counts());
            let (status, map, scrub, events) = (&status, &*map, &scrub, &events);
            manager_page(&ManagerView { status, map, scrub, events, process: &process })
        }
    }));
}

/// How long an address may be in use by a process that was killed: the kernel takes its rings down, and its sockets
/// with them, a moment after it has ended.
const FORMER_SOCKET_MAX: Duration = Duration::from_secs(2);
const FORMER_SOCKET_POLL: Duration = Duration::from_millis(20);

/// Listens, or says which option to change.
pub(crate) async fn bind(addr: &Addr, option: &str) -> Result<Listener, CliError> {
    let until = now() + FORMER_SOCKET_MAX;
    let mut listener = Listener::bind(addr);
    while listener.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse) && now() < until {
        sleep(FORMER_SOCKET_POLL).await;
        listener = Listener::bind(addr);
    }
    listener.map_err(|source| CliError::Failed {
        message: format!("cannot listen at {addr}: {source}"),
        hint: match source.kind() {
            io::ErrorKind::AddrInUse => format!("another process listens there: choose another {option}"),
            io::ErrorKind::AddrNotAvailable => format!("{option} must be an address of this machine"),
            _ => format!("check {option} and the permissions"),
        },
    })
}

fn make_parent(path: &Path) -> Result<(), CliError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => {
            fs::create_dir_all(parent).map_err(CliError::file("create the folder", parent))
        }
        _ => Ok(()),
    }
}

/// The manager's refusal to start, with its hint.
pub(crate) fn refused(error: &ManagerError) -> CliError {
    let hint = error.hint().unwrap_or("check the file's permissions and the disk");
    CliError::Failed { message: with_causes(error), hint: hint.into() }
}
