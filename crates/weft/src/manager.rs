//! `weft manager run`: the manager as a process.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use weft_cli::{CliError, ManagerRunArgs};
use weft_manager::{EmbeddedStore, Manager, ManagerError, ManagerOptions};
use weft_metrics::{ManagerView, manager_page, process_load};
use weft_rt::sync::{Either, race};
use weft_rt::{Addr, Listener, offload, sleep, spawn, wall_clock_us};

use crate::stop::asked_to_stop;
use weft_types::{MapVersion, with_causes};
use weft_wire::backup::encode_backup;

/// How often the map is backed up, if it has changed.
const BACKUP_EVERY: Duration = Duration::from_secs(3600);

/// The first backup is taken when those who were there before have joined.
const FIRST_BACKUP_AFTER: Duration = Duration::from_secs(60);

/// Backups that are kept: a day of them.
const BACKUPS_KEPT: usize = 24;

/// Runs until a signal, or until the manager can serve no more.
pub(crate) async fn run(args: ManagerRunArgs) -> Result<(), CliError> {
    let supervisor = args.supervisor.clone();
    let running: RefCell<Option<Rc<Manager>>> = RefCell::new(None);
    let ended = race(asked_to_stop(supervisor), serve(args, &running)).await;
    if let Some(manager) = running.borrow().as_ref() {
        if let Err(error) = manager.keep_commits(Duration::ZERO) {
            tracing::warn!(error = with_causes(&error), "how far drives have come was not kept");
        }
    }
    match ended {
        Either::Left(()) => Ok(()),
        Either::Right(ended) => ended,
    }
}

async fn serve(args: ManagerRunArgs, running: &RefCell<Option<Rc<Manager>>>) -> Result<(), CliError> {
    let mut listeners = vec![bind(&args.listen, "--listen")?];
    if let Some(path) = &args.socket {
        make_parent(path)?;
        listeners.push(bind(&Addr::Unix(path.clone()), "--socket")?);
    }
    make_parent(&args.store)?;
    let store = EmbeddedStore::open(&args.store).map_err(|e| refused(&ManagerError::from(e)))?;
    let options = ManagerOptions { fabric: args.fabric_id, ..ManagerOptions::default() };
    let metrics = args.metrics.as_ref().map(|addr| bind(addr, "--metrics")).transpose()?;
    let manager = Manager::start(store, options).map_err(|e| refused(&e))?;
    *running.borrow_mut() = Some(manager.clone());
    tracing::info!(fabric = %manager.map().fabric, map = %manager.map().version, "manager serves");
    for listener in listeners {
        tracing::info!(addr = %listener.local_addr(), "listening");
        spawn(manager.clone().serve(listener));
    }
    if let Some(listener) = metrics {
        serve_metrics(listener, &manager);
    }
    spawn(back_up(manager.clone(), backups_folder(&args.store)));
    let reason = manager.halted().await;
    Err(CliError::Failed {
        message: format!("the manager serves no more: {reason}"),
        hint: "make sure that only one manager runs and its disk is sound, then start it again".into(),
    })
}

/// The folder of the backups that the manager takes by itself: beside its store.
fn backups_folder(store: &Path) -> PathBuf {
    store.parent().unwrap_or(Path::new(".")).join("backups")
}

/// Takes a backup of the map every hour in which it has changed, and keeps the newest. One that cannot be written is
/// told in the log, and missed by nobody who has the drives.
async fn back_up(manager: Rc<Manager>, folder: PathBuf) {
    let mut last = MapVersion(0);
    sleep(FIRST_BACKUP_AFTER).await;
    loop {
        let map = manager.map();
        if map.version > last && !map.nodes.is_empty() {
            last = map.version;
            let (bytes, folder) = (encode_backup(&map, wall_clock_us() / 1000), folder.clone());
            let version = map.version.0;
            if let Err(error) = offload(move || write_backup(&folder, version, &bytes)).await {
                tracing::warn!(error = with_causes(&error), "the map was not backed up");
            }
        }
        sleep(BACKUP_EVERY).await;
    }
}

/// Writes a backup whole or not at all, and removes the oldest that are too many.
fn write_backup(folder: &Path, version: u64, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let name = format!("map-{version:020}.weftmap");
    let fresh = folder.join(format!("{name}.new"));
    fs::write(&fresh, bytes)?;
    fs::File::open(&fresh)?.sync_all()?;
    fs::rename(&fresh, folder.join(&name))?;
    let mut kept: Vec<PathBuf> = fs::read_dir(folder)?.filter_map(|e| Some(e.ok()?.path())).collect();
    kept.retain(|p| {
        let name = p.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        name.starts_with("map-") && name.ends_with(".weftmap")
    });
    kept.sort();
    for old in kept.iter().rev().skip(BACKUPS_KEPT) {
        fs::remove_file(old)?;
    }
    Ok(())
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

/// Listens, or says which option to change.
pub(crate) fn bind(addr: &Addr, option: &str) -> Result<Listener, CliError> {
    Listener::bind(addr).map_err(|source| CliError::Failed {
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
