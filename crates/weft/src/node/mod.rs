//! `weft node run`: a node as a process, with one target or several.
//!
//! One target runs on the main thread. Several have a thread each, with an executor, a port and drives of
//! their own (`threads.rs`): the main thread then deals out the drives, and passes on what signals and
//! Prometheus ask for.

mod deal;
mod default_threads;
mod devices;
mod drives;
mod served;
mod threads;

use crate::manager::bind;
use crate::stop::asked_to_stop;
use devices::Devices;
use served::Served;
use std::cell::OnceCell;
use std::time::Duration;
use weft_cli::{CliError, NodeRunArgs};
use weft_metrics::{TargetPage, node_page};
use weft_rpc::Link;
use weft_rt::sync::{Either, race};
use weft_rt::{Addr, Listener, affinity, sleep, spawn};
use weft_target::{Target, TargetThread};
use weft_types::{FabricId, with_causes};
use weft_wire::handshake::{Hello, PeerRole};

/// How long to wait before a manager that did not answer is tried again.
const MANAGER_RETRY: Duration = Duration::from_millis(200);

/// Runs until a signal; what is in memory is on the drives when it returns.
pub(crate) async fn run(args: NodeRunArgs) -> Result<(), CliError> {
    args.transport.apply();
    let ended = match threads::asked(&args).await? {
        1 => alone(&args).await,
        asked => threads::run(&args, asked).await,
    };
    tracing::info!(node = args.name, "node stops");
    ended
}

/// One target, on this thread.
async fn alone(args: &NodeRunArgs) -> Result<(), CliError> {
    let served = Served::default();
    // The locks of devices with parts are held until the drives are closed.
    let held: OnceCell<Devices> = OnceCell::new();
    let serving = async {
        let listener = bind(&args.listen, "--listen").await?;
        let metrics = bind_metrics(args).await?;
        let fabric = fabric_of(args).await;
        let found = Devices::find(&args.drives).await;
        let devices = held.get_or_init(|| found);
        bind_alone(devices, args.pin);
        let mut left_out = devices.left_out.clone();
        left_out.extend(served.open(&devices.drives, fabric).await);
        left_out.extend(served.leave_out(&served.twins()).await);
        let target = served.start(args, fabric, &listener, TargetThread::only());
        target.set_left_out(left_out);
        if let Some(listener) = metrics {
            let (target, name) = (target.clone(), args.name.clone());
            spawn(weft_metrics::serve(listener, move || {
                let (target, name) = (target.clone(), name.clone());
                async move { node_page(&name, &[page_of(&target).await]) }
            }));
        }
        served.run(listener).await;
        Ok(())
    };
    let ended = match race(asked_to_stop(args.supervisor.clone()), serving).await {
        Either::Left(()) => Ok(()),
        Either::Right(ended) => ended,
    };
    served.stop().await;
    ended
}

/// Binds this thread to the cores that a thread with all of these drives has.
fn bind_alone(devices: &Devices, pin: bool) {
    let (near, allowed) = (affinity::allowed_by_numa_node(), affinity::allowed().unwrap_or_default());
    let dealt = deal::deal(&devices.drives, 1, &near);
    let Some(cores) = deal::bind(&dealt, &near, &allowed, pin).pop().flatten() else { return };
    match affinity::pin_to(&cores) {
        Ok(()) => tracing::info!(?cores, "the thread of the node is bound to these cores"),
        Err(error) => tracing::warn!(?cores, %error, "the thread of the node cannot be bound"),
    }
}

/// What a target says of itself, for Prometheus.
async fn page_of(target: &Target) -> TargetPage {
    let budget = target.budget();
    let (owed_bytes, waiting) = (budget.held_bytes(), budget.waiting() as u64);
    TargetPage { status: target.status(), load: target.load().await, owed_bytes, waiting }
}

async fn bind_metrics(args: &NodeRunArgs) -> Result<Option<Listener>, CliError> {
    let Some(addr) = &args.metrics else { return Ok(None) };
    let listener = bind(addr, "--metrics").await?;
    tracing::info!(addr = %listener.local_addr(), "serving metrics");
    Ok(Some(listener))
}

/// The fabric that the drives must belong to.
async fn fabric_of(args: &NodeRunArgs) -> FabricId {
    match args.fabric_id {
        Some(fabric) => fabric,
        None => ask_fabric(&args.manager, &args.name).await,
    }
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
