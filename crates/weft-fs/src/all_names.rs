//! The hold of all names of a file system, which a mount takes when it is alone. While it has the hold it
//! keeps the names and attributes that it learns (`kept_names.rs`), and its kernel may cache them (F4).
//!
//! The shard recalls the hold as soon as another session asks for anything. Names that the kernel has
//! cached by then stay valid for a moment, and the other session waits that long.

use crate::caller::Shards;
use crate::error::FsError;
use crate::hearing::Hearing;
use crate::namespace::Namespace;
use crate::open_files::OpenFiles;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sleep;
use weft_rt::sync::{Mutex, MutexGuard};
use weft_rules::{Mutation, mutated};
use weft_types::InodeNumber;
use weft_wire::files::{AttributeChanges, HoldMode, Operation};

/// How long the kernel may keep names and attributes.
const KEPT: Duration = Duration::from_millis(200);

/// How long to wait until the kernel has none of the names any more. It may count `KEPT` from the moment
/// at which it looks at an answer.
const GONE_AFTER: Duration = Duration::from_millis(500);

/// The first and the longest pause before the mount tries again to hold all names. The pause doubles each
/// time the names are recalled.
const RETRY_FIRST: Duration = Duration::from_secs(10);
const RETRY_LONGEST: Duration = Duration::from_secs(320);

/// Whether the mount holds all names.
pub(crate) struct AllNames {
    is_held: Cell<bool>,
    has_ended: Cell<bool>,
    /// Held by whoever changes that, until the shard has answered.
    turn: Mutex<()>,
    pause: Cell<Duration>,
}

impl Default for AllNames {
    fn default() -> AllNames {
        let (is_held, has_ended) = (Cell::new(false), Cell::new(false));
        AllNames { is_held, has_ended, turn: Mutex::new(()), pause: Cell::new(RETRY_FIRST) }
    }
}

impl AllNames {
    /// How long what is answered now stays as it is.
    pub(crate) fn stay(&self, hearing: &Hearing) -> Duration {
        match self.is_held.get() && hearing.is_sure_for(GONE_AFTER) {
            true => KEPT,
            false => Duration::ZERO,
        }
    }

    /// While the returned guard lives, all names are neither taken nor given back. Also returns whether
    /// they are held.
    pub(crate) async fn stop(&self) -> (MutexGuard<'_, ()>, bool) {
        let turn = self.turn.lock().await;
        (turn, self.is_held.get())
    }

    /// How long to wait before it is tried again.
    pub(crate) fn pause(&self) -> Duration {
        self.pause.get()
    }

    /// Holds them if nobody else is there.
    pub(crate) async fn try_to_hold<S: Shards>(&self, names: &Namespace<S>, hearing: &Rc<Hearing>) {
        let _turn = self.turn.lock().await;
        if !self.is_held.get() && !self.has_ended.get() {
            let hold = Operation::Hold(InodeNumber::ROOT, HoldMode::Write);
            if names.ask(b"", InodeNumber::ROOT, hold).await.is_ok() {
                self.is_held.set(true);
                names.kept().turn_on(hearing);
            }
        }
    }

    /// Neither holds nor takes them any more: the mount ends, and its kernel has forgotten all.
    pub(crate) async fn end<S: Shards>(&self, names: &Namespace<S>) -> Result<(), FsError> {
        let _turn = self.turn.lock().await;
        self.has_ended.set(true);
        match self.is_held.replace(false) {
            true => {
                names.kept().turn_off();
                let release = Operation::Release(InodeNumber::ROOT, AttributeChanges::default());
                names.ask(b"", InodeNumber::ROOT, release).await.map(drop)
            }
            false => Ok(()),
        }
    }

    /// Gives them back, once the kernel has none of them, and the shard knows of all files that are open.
    pub(crate) async fn give<S: Shards>(&self, names: &Namespace<S>, open: &OpenFiles<S>) {
        let _turn = self.turn.lock().await;
        if !self.is_held.replace(false) {
            return;
        }
        names.kept().turn_off();
        self.pause.set((2 * self.pause.get()).min(RETRY_LONGEST));
        // From here on others may take names away.
        if !mutated(Mutation::GivenUnsaid)
            && let Err(error) = open.say(|_, _| true).await
        {
            tracing::debug!(%error, "the shard does not know of all files that are open");
        }
        if !mutated(Mutation::NamesStay) {
            sleep(GONE_AFTER).await;
        }
        let hold = Operation::Hold(InodeNumber::ROOT, HoldMode::Open);
        if let Err(error) = names.ask(b"", InodeNumber::ROOT, hold).await {
            tracing::debug!(%error, "the names are not given back yet");
            self.is_held.set(true);
        }
    }
}
