//! What one thread of a node serves: its open drives, and the target over them.

use super::devices::Listed;
use super::drives::{self, FORMER_DRIVE_MAX};
use crate::room::room_bytes;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use weft_cli::NodeRunArgs;
use weft_meta::ShardServer;
use weft_metrics::process_load;
use weft_rt::sync::join_all;
use weft_rt::{Listener, now};
use weft_store::Store;
use weft_target::{Target, TargetOptions, TargetThread};
use weft_types::{DriveId, FabricId, with_causes};
use weft_wire::control::DriveLeftOut;

/// The drives of a thread, and its target once it has started. Whatever is interrupted, [`Served::stop`]
/// closes what is open.
#[derive(Default)]
pub(super) struct Served {
    /// With the path of each drive.
    stores: RefCell<Vec<(String, Rc<Store>)>>,
    target: RefCell<Option<Rc<Target>>>,
    /// What serves shards of file systems beside the target.
    shards: RefCell<Option<Rc<ShardServer>>>,
}

impl Served {
    /// Opens drives, all at once: one that hangs, until it is left out, holds up none of the others. Returns
    /// those that are left out.
    pub(super) async fn open(&self, listed: &[Listed], fabric: FabricId) -> Vec<DriveLeftOut> {
        let former_until = now() + FORMER_DRIVE_MAX;
        let opening = listed.iter().map(|listed| async move {
            match drives::open(listed, fabric, former_until).await {
                Ok(store) => {
                    self.stores.borrow_mut().push((listed.path.clone(), store));
                    None
                }
                Err(drive) => {
                    let path = &listed.path;
                    tracing::error!(path, "drive is left out: {}; hint: {}", drive.why, drive.hint);
                    Some(*drive)
                }
            }
        });
        join_all(opening).await.into_iter().flatten().collect()
    }

    /// The drives that are open, with their paths.
    pub(super) fn drives(&self) -> Vec<(String, DriveId)> {
        self.stores.borrow().iter().map(|(path, store)| (path.clone(), store.label().drive)).collect()
    }

    /// Those of them that carry one identity.
    pub(super) fn twins(&self) -> BTreeMap<DriveId, DriveLeftOut> {
        drives::twins(self.drives().iter().map(|(path, drive)| (path.as_str(), *drive)))
    }

    /// Closes the drives with these identities. Returns why each identity is left out.
    pub(super) async fn leave_out(&self, twins: &BTreeMap<DriveId, DriveLeftOut>) -> Vec<DriveLeftOut> {
        for (drive, twin) in twins {
            tracing::error!(%drive, "drives are left out: {}; hint: {}", twin.why, twin.hint);
        }
        let all = std::mem::take(&mut *self.stores.borrow_mut());
        let (left_out, kept) =
            all.into_iter().partition::<Vec<_>, _>(|(_, store)| twins.contains_key(&store.label().drive));
        *self.stores.borrow_mut() = kept;
        close(left_out).await;
        twins.values().cloned().collect()
    }

    /// Starts the target over the open drives.
    pub(super) fn start(
        &self,
        args: &NodeRunArgs,
        fabric: FabricId,
        listener: &Listener,
        thread: TargetThread,
    ) -> Rc<Target> {
        let listen = listener.local_addr();
        if self.stores.borrow().is_empty() {
            tracing::error!(node = args.name, addr = %listen, "no drive could be opened: nothing is served here");
        }
        let options = TargetOptions {
            node_name: args.name.clone(),
            fabric,
            listen,
            managers: vec![args.manager.clone()],
            thread,
        };
        let target = Target::start(options, self.stores.borrow().clone());
        target.set_room(room_bytes(thread.of.into()));
        target.set_process_probe(process_load);
        *self.target.borrow_mut() = Some(target.clone());
        *self.shards.borrow_mut() = Some(ShardServer::beside(&target));
        match thread.of {
            1 => tracing::info!(node = args.name, %fabric, addr = %listener.local_addr(), "node serves"),
            _ => {
                let (index, addr) = (thread.index, listener.local_addr());
                tracing::info!(node = args.name, target = index, %fabric, %addr, "target serves");
            }
        }
        target
    }

    /// Serves the target and the shards beside it, for ever.
    ///
    /// # Panics
    /// If the target has not started.
    pub(super) fn run(&self, listener: Listener) -> impl Future<Output = ()> + use<> {
        let shards = self.shards.borrow().clone().expect("the target has started");
        async move { shards.run(listener).await }
    }

    /// Stops the target, if it has started, and closes the drives: what is in memory is on them on return.
    pub(super) async fn stop(&self) {
        if let Some(shards) = self.shards.take() {
            shards.stop();
        }
        let target = self.target.borrow_mut().take();
        if let Some(target) = &target {
            target.stop().await;
        }
        let stores = std::mem::take(&mut *self.stores.borrow_mut());
        close(stores).await;
        if let Some(target) = &target {
            target.say_last_word().await;
        }
    }
}

async fn close(stores: Vec<(String, Rc<Store>)>) {
    for (path, store) in stores {
        // Its log holds every acknowledged write: the next start only takes a little longer.
        if let Err(error) = store.close().await {
            tracing::error!(path, error = with_causes(&error), "the drive was not closed in order");
        }
    }
}
