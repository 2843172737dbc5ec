//! Deleted volumes: their blocks are dropped everywhere, then they are forgotten.
//!
//! It owns the order: first every target has adopted the map in which the volume is being deleted, so that no older
//! client brings a block back; then its sessions are swept; then its blocks are dropped. An interrupted delete goes
//! on with the next manager process, since the map says that the volume is being deleted.

use crate::manager::Manager;
use std::rc::Rc;
use std::time::Duration;
use weft_membership::{Change, FinishDelete};
use weft_rt::{sleep, spawn};
use weft_types::{VolumeId, with_causes};
use weft_wire::control::TargetRequest;

/// How long a target may take to drop a volume before it is asked again: it is a record per object.
const DROP_MAX: Duration = Duration::from_secs(60);

/// How long to wait before the targets that failed are asked again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// A replica that is being brought up to date may copy a block from one that has not dropped it yet; the second
/// round, after all have, leaves none behind.
const DROP_ROUNDS: usize = 2;

impl Manager {
    /// Begins to drop the blocks of deleted volumes, one task per volume.
    pub(crate) fn empty_what_is_deleted(self: &Rc<Self>) {
        let volumes: Vec<VolumeId> = {
            let mut state = self.state.borrow_mut();
            let volumes: Vec<VolumeId> = state.index.deleting().collect();
            volumes.into_iter().filter(|volume| state.emptying.insert(*volume)).collect()
        };
        for volume in volumes {
            let manager = self.clone();
            spawn(async move {
                manager.empty(volume).await;
                manager.state.borrow_mut().emptying.remove(&volume);
                manager.changed.notify_all();
            });
        }
    }

    async fn empty(self: &Rc<Self>, volume: VolumeId) {
        self.free_of_clients(volume).await;
        while self.halted.borrow().is_none() {
            let epochs = self.state.borrow().epochs_of(volume);
            match self.drop_everywhere(volume).await {
                // Checked and committed in one step: no replica can come back in between.
                Ok(()) if self.state.borrow().epochs_of(volume) == epochs => {
                    if let Err(error) = self.commit(&Change::FinishDelete(FinishDelete { volume })) {
                        tracing::warn!(%volume, error = with_causes(&error), "a volume is not forgotten");
                    }
                    return;
                }
                Ok(()) => {}
                Err(error) => {
                    tracing::debug!(%volume, error, "a volume is not dropped yet");
                    sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// Completes when every target refuses the volume's clients and none of their writes is unfinished.
    async fn free_of_clients(&self, volume: VolumeId) {
        let version = self.map().version;
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.borrow();
                let is_swept = state.index.sessions_of(volume).next().is_none();
                if is_swept && state.behind(volume, version).is_empty() {
                    return;
                }
            }
            changed.await;
        }
    }

    async fn drop_everywhere(self: &Rc<Self>, volume: VolumeId) -> Result<(), String> {
        // A deletion that is only decided may never be, and no target brings blocks back.
        self.all_durable().await?;
        for _ in 0..DROP_ROUNDS {
            let nodes = self.state.borrow().writers_of(volume);
            self.ask_all(&nodes, &TargetRequest::DropVolume { volume }, DROP_MAX).await?;
        }
        Ok(())
    }
}
