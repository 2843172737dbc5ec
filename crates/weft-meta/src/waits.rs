//! Operations that wait for other sessions, for people who look. Nothing is decided by it.

use crate::recalls::Wanted;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;
use weft_rt::{Instant, now};
use weft_types::{InodeNumber, SessionId};
use weft_wire::files::ShardWait;

/// How soon a session asks again that still waits: its wait counts from when it asked first.
const ASKED_AGAIN_WITHIN: Duration = Duration::from_secs(5);

/// Operations that wait.
#[derive(Default)]
pub(crate) struct Waits {
    last: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Waiting>>,
    /// Since when sessions had waited for inodes, and when that ended, without an answer or with one.
    ended: RefCell<BTreeMap<(SessionId, InodeNumber), (Instant, Instant)>>,
}

struct Waiting {
    session: SessionId,
    since: Instant,
    holds: Vec<Wanted>,
    locks: Vec<(SessionId, InodeNumber)>,
}

impl Waiting {
    fn inodes(&self) -> impl Iterator<Item = InodeNumber> {
        let of_locks = self.locks.iter().map(|(_, inode)| *inode);
        self.holds.iter().map(|wanted| wanted.inode).chain(of_locks)
    }
}

/// One that may wait, for as long as this is there.
pub(crate) struct Wait<'w> {
    waits: &'w Waits,
    number: Option<u64>,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let ended = self.waits.waiting.borrow_mut().remove(&number);
            ended.iter().for_each(|wait| self.waits.note_end(wait));
        }
    }
}

impl Waits {
    /// An operation begins, and waits for nothing yet.
    pub(crate) fn begin(&self) -> Wait<'_> {
        Wait { waits: self, number: None }
    }

    fn note_end(&self, wait: &Waiting) {
        let mut ended = self.ended.borrow_mut();
        ended.retain(|_, (_, at)| at.elapsed() < ASKED_AGAIN_WITHIN);
        ended.extend(wait.inodes().map(|inode| ((wait.session, inode), (wait.since, now()))));
    }

    /// Since when a session waits that begins to wait for these inodes, or does so again.
    fn since(&self, session: SessionId, inodes: impl Iterator<Item = InodeNumber>) -> Instant {
        let ended = self.ended.borrow();
        let before = inodes.filter_map(|inode| ended.get(&(session, inode)));
        let again = before.filter(|(_, at)| at.elapsed() < ASKED_AGAIN_WITHIN);
        again.map(|(since, _)| *since).min().unwrap_or_else(now)
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
        let (holds, locks) = (holds.to_vec(), locks.collect());
        let mut new = Waiting { session, since: now(), holds, locks };
        new.since = match waiting.get(&number) {
            Some(before) => before.since,
            None => self.waits.since(session, new.inodes()),
        };
        waiting.insert(number, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::sim::Sim;
    use weft_rt::sleep;

    #[test]
    fn who_asks_again_waits_since_it_asked_first() {
        Sim::new(1).block_on(async {
            let waits = Waits::default();
            let wait_ms = |session, inode, pause| {
                let waits = &waits;
                async move {
                    let mut wait = waits.begin();
                    let holder = (SessionId(9), InodeNumber(inode));
                    wait.note(SessionId(session), &[], [holder].into_iter());
                    sleep(Duration::from_millis(pause)).await;
                    waits.all()[0].waited_ms
                }
            };
            assert_eq!(wait_ms(1, 5, 1_000).await, 1_000);
            sleep(Duration::from_millis(50)).await;
            assert_eq!(wait_ms(1, 5, 2_000).await, 3_050, "it goes on");
            assert_eq!(wait_ms(2, 5, 10).await, 10, "another session");
            assert_eq!(wait_ms(1, 6, 10).await, 10, "another inode");
            sleep(ASKED_AGAIN_WITHIN).await;
            assert_eq!(wait_ms(1, 5, 10).await, 10, "another wait");
            assert_eq!(waits.ended.borrow().len(), 1);
        });
    }
}
