//! One drive that is served: its store, and whether it has failed.
//!
//! It owns the latch: a drive that failed once serves nothing more in the life of this process. It never
//! retries what the store refused.

use crate::meter::Meter;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use weft_rpc::Answer;
use weft_rt::sync::Notify;
use weft_store::{Store, StoreError};
use weft_types::{DriveId, GroupId, MapVersion, with_causes};
use weft_wire::Status;

/// A drive and its store.
pub(crate) struct ServedDrive {
    pub(crate) id: DriveId,
    /// Where it is on this node, for people.
    pub(crate) path: String,
    pub(crate) store: Rc<Store>,
    /// What is asked of it.
    pub(crate) meter: Meter,
    failed: RefCell<Option<String>>,
    /// An error said that the device is at fault that the drive is on.
    is_device_at_fault: Cell<bool>,
    /// Why the manager refuses it: its place is on another node.
    refused: RefCell<Option<String>>,
    /// What has become of the drive, if it is gone and serves all the same.
    vanished: RefCell<Option<String>>,
    /// The newest map of which everything is durable here; 0 before the first.
    adopted: Cell<MapVersion>,
    /// A map is being adopted.
    is_adopting: Cell<bool>,
    /// A drive of this target has failed; shared by all of them.
    failures: Rc<Notify>,
}

/// A drive adopts a map, while this lives.
pub(crate) struct Adopting(Rc<ServedDrive>);

impl Drop for Adopting {
    fn drop(&mut self) {
        self.0.is_adopting.set(false);
    }
}

impl ServedDrive {
    pub(crate) fn new(path: String, store: Rc<Store>, failures: Rc<Notify>) -> ServedDrive {
        let id = store.label().drive;
        ServedDrive {
            id,
            path,
            store,
            meter: Meter::default(),
            failed: RefCell::new(None),
            is_device_at_fault: Cell::new(false),
            refused: RefCell::new(None),
            vanished: RefCell::new(None),
            adopted: Cell::new(MapVersion(0)),
            is_adopting: Cell::new(false),
            failures,
        }
    }

    /// Begins to adopt a map; none while it adopts another one.
    pub(crate) fn begin_adopting(self: &Rc<Self>) -> Option<Adopting> {
        (!self.is_adopting.replace(true)).then(|| Adopting(self.clone()))
    }

    /// The newest map of which everything is durable here.
    pub(crate) fn adopted(&self) -> MapVersion {
        self.adopted.get()
    }

    /// Everything of this map is durable here.
    pub(crate) fn note_adopted(&self, version: MapVersion) {
        self.adopted.set(self.adopted.get().max(version));
    }

    /// Takes a drive out of service that is not this node's, or is not what it was, until the manager takes it in a
    /// later join. It counts as failed
    /// here, and nobody is told: the manager knows, and to all others its name means the drive of the other node.
    pub(crate) fn refuse(&self, cause: String) {
        tracing::error!(drive = %self.id, path = self.path, cause, "drive is refused");
        *self.refused.borrow_mut() = Some(cause);
    }

    /// Puts a drive into service that was refused before, once it has adopted the newest map.
    pub(crate) fn take_back(&self) {
        if self.refused.borrow_mut().take().is_some() {
            tracing::info!(drive = %self.id, path = self.path, "drive is refused no more");
            if self.has_failed() {
                // Nobody was told while it was refused.
                self.failures.notify_all();
            }
        }
    }

    /// Whether the manager has refused it.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.borrow().is_some()
    }

    /// What broke, if the drive has failed: seen here, or by the store while it worked in the background. Or why it
    /// was refused.
    pub(crate) fn failure(&self) -> Option<String> {
        let refused = self.refused.borrow().clone();
        refused.or_else(|| self.breakage())
    }

    /// What broke, whether the drive is refused or not.
    pub(crate) fn breakage(&self) -> Option<String> {
        if self.failed.borrow().is_none()
            && let Some(cause) = self.store.failure()
        {
            self.fail(cause.to_string());
        }
        self.failed.borrow().clone()
    }

    /// Whether the drive has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    /// Notes that the drive is gone, and goes on serving: it has the last up-to-date copy of this group,
    /// and perhaps of others. The manager sees it in the status, and has them copied to other drives.
    pub(crate) fn vanish(&self, cause: String, group: GroupId) {
        if self.vanished.borrow().is_none() {
            tracing::error!(
                drive = %self.id, path = self.path, %group, cause,
                "drive is gone, and serves until its last up-to-date copies are on other drives: all that is on it is lost \
                 when this process ends; hint: do not stop it before `weft status` says that the drive has failed"
            );
        }
        *self.vanished.borrow_mut() = Some(cause);
    }

    /// What has become of the drive, if it is gone and serves all the same.
    pub(crate) fn vanished(&self) -> Option<String> {
        self.vanished.borrow().clone()
    }

    /// Whether an error said that the device is at fault that the drive is on.
    pub(crate) fn is_device_at_fault(&self) -> bool {
        self.is_device_at_fault.get() || self.store.is_device_at_fault()
    }

    /// Takes the drive out of service for good, because this could not be done.
    pub(crate) fn fail_at(&self, what: &str, error: &StoreError) {
        self.note_device(error);
        self.fail(format!("{what}: {}", with_causes(error)));
    }

    fn note_device(&self, error: &StoreError) {
        self.is_device_at_fault.set(self.is_device_at_fault.get() || error.is_of_device());
    }

    /// Takes the drive out of service for good; the manager is told by the lease loop.
    fn fail(&self, cause: String) {
        if self.failed.borrow().is_some() {
            return;
        }
        tracing::error!(drive = %self.id, path = self.path, cause, "drive has failed");
        *self.failed.borrow_mut() = Some(cause);
        self.failures.notify_all();
    }

    /// The refusal that a store's error means to whoever asked. An error that says that the drive, or the
    /// store's own structures on it, cannot be trusted latches the drive.
    pub(crate) fn refusal(&self, error: &StoreError) -> Answer {
        let text = with_causes(error);
        match error {
            StoreError::NoSpace { .. } => Answer::error(Status::NoSpace, text),
            StoreError::Invalid { .. } | StoreError::TooLarge { .. } => Answer::error(Status::Invalid, text),
            StoreError::UnknownGroup { .. }
            | StoreError::StaleStint { .. }
            | StoreError::StaleEpoch { .. }
            | StoreError::Crowded { .. }
            | StoreError::Closed => Answer::error(Status::NotServing, text),
            _ => {
                self.note_device(error);
                self.fail(text.clone());
                Answer::error(Status::DriveFailed, text)
            }
        }
    }

    /// Notes an error of the store where nobody waits for an answer.
    pub(crate) fn note(&self, error: &StoreError) {
        let _ = self.refusal(error);
    }
}
