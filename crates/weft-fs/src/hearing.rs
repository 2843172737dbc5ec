//! When a mount has last heard from the shard, and so how long it may rely on what it holds (F5).

use crate::error::FsError;
use std::cell::{Cell, RefCell};
use std::time::Duration;
use weft_rt::Instant;
use weft_rt::sync::Notify;
use weft_rules::{Mutation, mutated};
use weft_types::limits::FILE_LEASE_MS;

/// How long a mount may go by what it holds without a word.
const LEASE: Duration = Duration::from_millis(FILE_LEASE_MS);

/// When a mount was heard and answered.
pub(crate) struct Hearing {
    /// When the newest question left that was answered.
    heard: Cell<Instant>,
    /// Why nothing will be heard any more.
    over: RefCell<Option<FsError>>,
    changed: Notify,
}

impl Hearing {
    /// A mount that counts as heard when its attach began.
    pub(crate) fn from(began: Instant) -> Hearing {
        Hearing { heard: Cell::new(began), over: RefCell::default(), changed: Notify::default() }
    }

    /// A question that left then was answered.
    pub(crate) fn note(&self, left: Instant) {
        self.heard.set(self.heard.get().max(left));
        self.changed.notify_all();
    }

    /// Nothing will be heard any more.
    pub(crate) fn end(&self, why: FsError) {
        self.over.borrow_mut().get_or_insert(why);
        self.changed.notify_all();
    }

    /// Whether the mount may go by what it holds for so long from now on.
    pub(crate) fn is_sure_for(&self, time: Duration) -> bool {
        self.over.borrow().is_none()
            && (self.heard.get().elapsed() + time < LEASE || mutated(Mutation::NoSelfFence))
    }

    /// Waits until the mount may go by what it holds. Where it may, this does not wait.
    ///
    /// # Errors
    /// Why it never may.
    pub(crate) async fn until_sure(&self) -> Result<(), FsError> {
        loop {
            let changed = self.changed.notified();
            if let Some(why) = &*self.over.borrow() {
                return Err(why.clone());
            }
            if self.is_sure_for(Duration::ZERO) {
                return Ok(());
            }
            changed.await;
        }
    }
}
