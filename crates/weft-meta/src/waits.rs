//! Operations that wait for other sessions, for people who look. Nothing is decided by it.

use crate::recalls::Wanted;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use weft_rt::{Instant, now};
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::ShardWait;

/// Operations that wait.
#[derive(Default)]
pub(crate) struct Waits {
    last: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Waiting>>,
}

struct Waiting {
    session: SessionId,
    since: Instant,
    holds: Vec<Wanted>,
    locks: Vec<(SessionId, InodeNumber)>,
}

/// One that may wait, for as long as this is there.
pub(crate) struct Wait<'w> {
    waits: &'w Waits,
    number: Option<u64>,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.waits.waiting.borrow_mut().remove(&number);
        }
    }
}

impl Waits {
    /// An operation begins, and waits for nothing yet.
    pub(crate) fn begin(&self) -> Wait<'_> {
        Wait { waits: self, number: None }
    }

    /// Those who wait and for whom, the oldest first.
    pub(crate) fn all(&self) -> Vec<ShardWait> {
        let waiting = self.waiting.borrow();
        let all = waiting.values().flat_map(|wait| {
            let of = |holder, inode, keeps| ShardWait {
                session: wait.session,
                holder,
                inode,
                keeps,
                waited_ms: wait.since.elapsed().as_millis() as u64,
            };
            let holds = wait.holds.iter().map(move |w| of(w.session, w.inode, Some(w.keeps)));
            holds.chain(wait.locks.iter().map(move |(holder, inode)| of(*holder, *inode, None)))
        });
        all.collect()
    }
}

impl Wait<'_> {
    /// What a session waits for now.
    pub(crate) fn note(
        &mut self,
        session: SessionId,
        holds: &[Wanted],
        locks: impl Iterator<Item = (SessionId, InodeNumber)>,
    ) {
        let number = *self.number.get_or_insert_with(|| {
            self.waits.last.set(self.waits.last.get() + 1);
            self.waits.last.get()
        });
        let mut waiting = self.waits.waiting.borrow_mut();
        let since = waiting.get(&number).map_or_else(now, |wait| wait.since);
        let (holds, locks) = (holds.to_vec(), locks.collect());
        waiting.insert(number, Waiting { session, since, holds, locks });
    }
}
