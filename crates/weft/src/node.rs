//! `weft node run`: a node's target as a process.

use crate::drive::{open_refusal, store_refusal};
use crate::manager::bind;
use crate::room::room_bytes;
use crate::stop::asked_to_stop;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use weft_cli::{CliError, NodeRunArgs};
use weft_metrics::{node_page, process_load};
use weft_rpc::Link;
use weft_rt::sync::{Either, join_all, race};
use weft_rt::{Addr, Drive, Instant, Listener, OpenOptions, now, random_u128, sleep, spawn};
use weft_store::{FormatOptions, Store, StoreError};
use weft_target::{Target, TargetOptions};
use weft_types::{DriveId, FabricId, with_causes};
use weft_wire::control::DriveLeftOut;
use weft_wire::handshake::{Hello, PeerRole};

/// How long to wait before a manager that did not answer is tried again.
const MANAGER_RETRY: Duration = Duration::from_millis(200);

/// How long a drive may be in use by a process that was killed: the kernel holds on to it until the last request that was
/// under way is through, and tells nobody when.
const FORMER_DRIVE_MAX: Duration = Duration::from_secs(10);
const FORMER_DRIVE_POLL: Duration = Duration::from_millis(50);

/// The stores that are open, with the path of each drive.
type Stores = Rc<RefCell<Vec<(String, Rc<Store>)>>>;

/// Runs until a signal; what is in memory is on the drives when it returns.
pub(crate) async fn run(args: NodeRunArgs) -> Result<(), CliError> {
    args.transport.apply();
    let stores = Stores::default();
    let target = Rc::new(RefCell::new(None));
    let ended = {
        let served = serve(&args, &stores, &target);
        match race(asked_to_stop(args.supervisor.clone()), served).await {
            Either::Left(()) => Ok(()),
            Either::Right(ended) => ended,
        }
    };
    let target: Option<Rc<Target>> = target.borrow_mut().take();
    if let Some(target) = &target {
        target.stop().await;
    }
    let stores = std::mem::take(&mut *stores.borrow_mut());
    for (path, store) in stores {
        // Its log holds every acknowledged write: the next start only takes a little longer.
        if let Err(error) = store.close().await {
            tracing::error!(path, error = with_causes(&error), "the drive was not closed in order");
        }
    }
    if let Some(target) = &target {
        target.say_last_word().await;
    }
    tracing::info!(node = args.name, "node stops");
    ended
}

async fn serve(
    args: &NodeRunArgs,
    stores: &Stores,
    running: &RefCell<Option<Rc<Target>>>,
) -> Result<(), CliError> {
    let listener = bind(&args.listen, "--listen").await?;
    let metrics = match &args.metrics {
        Some(addr) => Some(bind(addr, "--metrics").await?),
        None => None,
    };
    let listen = listener.local_addr();
    let fabric = match args.fabric_id {
        Some(fabric) => fabric,
        None => ask_fabric(&args.manager, &args.name).await,
    };
    let former_until = now() + FORMER_DRIVE_MAX;
    // At once: one that hangs, until it is left out, holds up none of the others.
    let opening = args.drives.iter().map(|path| async move {
        match open(path, fabric, former_until).await {
            Ok(store) => {
                stores.borrow_mut().push((path.clone(), store));
                None
            }
            Err(drive) => {
                tracing::error!(path, "drive is left out: {}; hint: {}", drive.why, drive.hint);
                Some(*drive)
            }
        }
    });
    let mut left_out: Vec<DriveLeftOut> = join_all(opening).await.into_iter().flatten().collect();
    left_out.extend(leave_out_twins(stores).await);
    if stores.borrow().is_empty() {
        tracing::error!(node = args.name, "no drive could be opened: this node serves nothing");
    }
    let options =
        TargetOptions { node_name: args.name.clone(), fabric, listen, managers: vec![args.manager.clone()] };
    let target = Target::start(options, stores.borrow().clone());
    target.set_left_out(left_out);
    target.set_room(room_bytes(1));
    target.set_process_probe(process_load);
    *running.borrow_mut() = Some(target.clone());
    if let Some(listener) = metrics {
        serve_metrics(listener, &args.name, &target);
    }
    tracing::info!(node = args.name, %fabric, addr = %listener.local_addr(), "node serves");
    target.run(listener).await;
    Ok(())
}

fn serve_metrics(listener: Listener, name: &str, target: &Rc<Target>) {
    tracing::info!(addr = %listener.local_addr(), "serving metrics");
    let (target, name) = (target.clone(), name.to_owned());
    spawn(weft_metrics::serve(listener, move || {
        let (target, name) = (target.clone(), name.clone());
        async move { node_page(&name, &target.status(), &target.load().await, &target.budget()) }
    }));
}

fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Asks the manager which fabric it owns, until it answers.
async fn ask_fabric(manager: &Addr, name: &str) -> FabricId {
    let mut is_told = false;
    loop {
        match Link::connect(manager, &Hello::new(PeerRole::Tool, None, name)).await {
            Ok(link) => {
                if let Some(fabric) = link.welcome().fabric {
                    return fabric;
                }
            }
            Err(error) if !is_told => {
                tracing::warn!(%manager, error = with_causes(&error), "waiting for the manager");
                is_told = true;
            }
            Err(_) => {}
        }
        sleep(MANAGER_RETRY).await;
    }
}

/// Opens a drive and recovers what is on it; one in memory is formatted first. One that is in use may be let go until then.
///
/// # Errors
/// Why it is left out.
async fn open(path: &str, fabric: FabricId, former_until: Instant) -> Result<Rc<Store>, Box<DriveLeftOut>> {
    let left_out = |error: CliError| {
        let (why, hint) = (error.chain(), error.hint());
        Box::new(DriveLeftOut { path: path.to_owned(), id: None, fabric: None, why, hint })
    };
    let mut drive = Drive::open(path, OpenOptions::default()).await;
    if drive.as_ref().is_err_and(is_in_use) {
        tracing::info!(path, "waiting for the drive, which a process that has just ended may still hold");
    }
    while drive.as_ref().is_err_and(is_in_use) && now() < former_until {
        sleep(FORMER_DRIVE_POLL).await;
        drive = Drive::open(path, OpenOptions::default()).await;
    }
    let drive = drive.map_err(|e| left_out(open_refusal(path)(e)))?;
    if path.starts_with("mem:") {
        let options = FormatOptions::new(fabric, DriveId::from_random(random_u128()));
        Store::format(&drive, options).await.map_err(|e| left_out(store_refusal(path)(e)))?;
    }
    let options = weft_store::OpenOptions { fabric: Some(fabric), ..Default::default() };
    let (store, report) = Store::open(drive, options).await.map_err(|error| match error {
        StoreError::FormattedAlready { fabric: found, drive } => Box::new(DriveLeftOut {
            path: path.to_owned(),
            id: Some(drive),
            fabric: Some(found),
            why: format!("{path}: drive {drive} belongs to fabric {found}, not to {fabric}"),
            hint: "put the drive of this fabric back, or start the node of the other one with it".into(),
        }),
        error => left_out(store_refusal(path)(error)),
    })?;
    tracing::info!(path, drive = %store.label().drive, ?report, "drive is open");
    Ok(store)
}

/// Closes drives that carry the same identity: one is a copy of the other, and nobody can tell which one holds
/// the acknowledged writes. Returns them.
async fn leave_out_twins(stores: &Stores) -> Vec<DriveLeftOut> {
    let mut paths: BTreeMap<DriveId, Vec<String>> = BTreeMap::new();
    for (path, store) in stores.borrow().iter() {
        paths.entry(store.label().drive).or_default().push(path.clone());
    }
    let twins: BTreeMap<DriveId, Vec<String>> = paths.into_iter().filter(|(_, p)| p.len() > 1).collect();
    let hint = "keep the one that was in use last, and format the other one anew";
    let mut told = Vec::new();
    for (drive, paths) in &twins {
        let why = format!("{} carry the same identity, so one is a copy of the other", paths.join(" and "));
        tracing::error!(%drive, "drives are left out: {why}; hint: {hint}");
        let path = paths.first().cloned().unwrap_or_default();
        told.push(DriveLeftOut { path, id: Some(*drive), fabric: None, why, hint: hint.into() });
    }
    let all = std::mem::take(&mut *stores.borrow_mut());
    let (left_out, kept) =
        all.into_iter().partition::<Vec<_>, _>(|(_, s)| twins.contains_key(&s.label().drive));
    *stores.borrow_mut() = kept;
    for (path, store) in left_out {
        if let Err(error) = store.close().await {
            tracing::error!(path, error = with_causes(&error), "the drive was not closed in order");
        }
    }
    told
}
