//! The hold of all names of a shard, which a mount takes when it is alone there. While it has the hold it
//! keeps the names and attributes that it learns (`kept_names.rs`). Its kernel may cache them while the mount
//! has the hold of each shard that it has asked something of (F4).
//!
//! The shard recalls the hold as soon as another session asks for anything. Names that the kernel has
//! cached by then stay valid for a moment, and the other session waits that long.

use crate::caller::Shards;
use crate::error::FsError;
use crate::hearing::Hearing;
use crate::namespace::Namespace;
use crate::open_files::OpenFiles;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sleep;
use weft_rt::sync::{Mutex, MutexGuard, join_all};
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

/// Which shards' names the mount holds.
#[derive(Default)]
pub(crate) struct AllNames {
    of: RefCell<BTreeMap<u16, Rc<NamesOfShard>>>,
    has_ended: Cell<bool>,
}

impl AllNames {
    /// The names of a shard.
    pub(crate) fn of(&self, shard: u16) -> Rc<NamesOfShard> {
        let new = || Rc::new(NamesOfShard::new(shard, self.has_ended.get()));
        self.of.borrow_mut().entry(shard).or_insert_with(new).clone()
    }

    /// How long what is answered now stays as it is: not at all if it may be from a shard whose names are not
    /// held. `asked` are the shards that may have answered.
    pub(crate) fn stay(&self, asked: impl IntoIterator<Item = (u16, Rc<Hearing>)>) -> Duration {
        let of = self.of.borrow();
        let stays = |(shard, hearing): (u16, Rc<Hearing>)| {
            of.get(&shard).is_some_and(|names| names.is_held.get()) && hearing.is_sure_for(GONE_AFTER)
        };
        match asked.into_iter().all(stays) {
            true => KEPT,
            false => Duration::ZERO,
        }
    }

    /// Neither holds nor takes any more: the mount ends, and its kernel has forgotten all.
    pub(crate) async fn end<S: Shards>(&self, names: &Namespace<S>) -> Result<(), FsError> {
        self.has_ended.set(true);
        let all: Vec<Rc<NamesOfShard>> = self.of.borrow().values().cloned().collect();
        join_all(all.iter().map(|of_shard| of_shard.end(names))).await.into_iter().collect()
    }
}

/// Whether the mount holds all names of a shard.
pub(crate) struct NamesOfShard {
    shard: u16,
    is_held: Cell<bool>,
    has_ended: Cell<bool>,
    /// Locked by the task that changes that, until the shard has answered.
    turn: Mutex<()>,
    pause: Cell<Duration>,
}

impl NamesOfShard {
    fn new(shard: u16, has_ended: bool) -> NamesOfShard {
        let (is_held, has_ended) = (Cell::new(false), Cell::new(has_ended));
        NamesOfShard { shard, is_held, has_ended, turn: Mutex::new(()), pause: Cell::new(RETRY_FIRST) }
    }

    /// While the returned guard lives, the names are neither taken nor given back. Also returns whether
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
    pub(crate) async fn try_to_hold<S: Shards>(&self, names: &Namespace<S>) {
        let hearing = names.hearing(self.shard);
        let _turn = self.turn.lock().await;
        if !self.is_held.get() && !self.has_ended.get() {
            let whole = self.whole();
            if names.ask(b"", whole, Operation::Hold(whole, HoldMode::Write)).await.is_ok() {
                self.is_held.set(true);
                names.kept().turn_on(self.shard, &hearing);
            }
        }
    }

    /// What stands for all names of the shard.
    fn whole(&self) -> InodeNumber {
        InodeNumber::whole_of(self.shard)
    }

    async fn end<S: Shards>(&self, names: &Namespace<S>) -> Result<(), FsError> {
        let _turn = self.turn.lock().await;
        self.has_ended.set(true);
        match self.is_held.replace(false) {
            true => {
                names.kept().turn_off(self.shard);
                let release = Operation::Release(self.whole(), AttributeChanges::default());
                names.ask(b"", self.whole(), release).await.map(drop)
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
        names.kept().turn_off(self.shard);
        self.pause.set((2 * self.pause.get()).min(RETRY_LONGEST));
        // From here on others may take names away.
        if !mutated(Mutation::GivenUnsaid)
            && let Err(error) = open.say(|inode, _| inode.shard() == self.shard).await
        {
            tracing::debug!(%error, "the shard does not know of all files that are open");
        }
        if !mutated(Mutation::NamesStay) {
            sleep(GONE_AFTER).await;
        }
        let give = match self.whole() {
            // In the first shard the mount that was alone before has precedence.
            InodeNumber::ROOT => Operation::Hold(InodeNumber::ROOT, HoldMode::Open),
            // In other shards any mount may be alone next.
            whole => Operation::Release(whole, AttributeChanges::default()),
        };
        if let Err(error) = names.ask(b"", self.whole(), give).await {
            tracing::debug!(%error, "the names are not given back yet");
            self.is_held.set(true);
        }
    }
}
