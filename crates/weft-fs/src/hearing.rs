//! When a mount has last heard from each shard, and so how long it may rely on what it holds there (F5).

use crate::error::FsError;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::Notify;
use weft_rt::{Instant, now};
use weft_rules::{Mutation, mutated};
use weft_types::limits::FILE_LEASE_MS;

/// How long a mount may go by what it holds without a word.
const LEASE: Duration = Duration::from_millis(FILE_LEASE_MS);

/// When a mount was heard by each shard that it has asked something of.
#[derive(Default)]
pub(crate) struct Hearings {
    of: RefCell<BTreeMap<u16, Rc<Hearing>>>,
    /// One more shard is asked.
    began: Notify,
}

impl Hearings {
    /// That of a shard. Who calls this for the first time has not asked that shard anything yet: so what is
    /// held there was asked for later, and the server has heard of the mount later.
    pub(crate) fn of(&self, shard: u16) -> Rc<Hearing> {
        let mut of = self.of.borrow_mut();
        let known = of.len();
        let hearing = of.entry(shard).or_insert_with(|| Rc::new(Hearing::from(now()))).clone();
        if of.len() > known {
            self.began.notify_all();
        }
        hearing
    }

    /// Of each shard that was asked.
    pub(crate) fn all(&self) -> Vec<(u16, Rc<Hearing>)> {
        self.of.borrow().iter().map(|(shard, hearing)| (*shard, hearing.clone())).collect()
    }

    /// The shards, once there are more than this number.
    pub(crate) async fn beyond(&self, count: usize) -> Vec<u16> {
        loop {
            let began = self.began.notified();
            if self.of.borrow().len() > count {
                return self.of.borrow().keys().copied().collect();
            }
            began.await;
        }
    }
}

/// When a mount was heard and answered by one shard.
pub(crate) struct Hearing {
    /// When the newest question left that was answered.
    heard: Cell<Instant>,
    /// Why nothing will be heard any more.
    over: RefCell<Option<FsError>>,
    changed: Notify,
}

impl Hearing {
    /// A mount that counts as heard at this time.
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
