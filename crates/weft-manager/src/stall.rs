//! A manager that stood still: its process was stopped, its machine was paused or migrated, or its disk hung.
//!
//! What it did not hear in that time says nothing about others, so silence counts only while it could
//! hear. It owns noticing that, and what follows: nobody is suspected, evicted or ended before what has
//! arrived meanwhile was read. It never touches what was granted: leases of before are waited out as
//! ever.

use crate::event::Subjects;
use crate::manager::{LOOKS_PER_LEASE, Manager, State};
use std::cell::Cell;
use std::time::Duration;
use weft_rt::{Instant, now, sleep};
use weft_rules::{Mutation, mutated};

/// When the manager looked, and whether it stood still.
pub(crate) struct Watch {
    /// When the main loop looked last, or it was noticed that the process had stood still.
    looked_at: Cell<Instant>,
    /// When it was noticed last that the process had stood still.
    stalled_at: Cell<Option<Instant>>,
    /// What has arrived meanwhile is to be read first.
    is_catching_up: Cell<bool>,
}

impl Watch {
    pub(crate) fn starting() -> Watch {
        Watch { looked_at: Cell::new(now()), stalled_at: Cell::new(None), is_catching_up: Cell::new(false) }
    }
}

impl State {
    /// Does not count as silence a time in which this process stood still.
    fn discount(&mut self, stall: Duration) {
        let now = now();
        let later = |at: Instant| (at + stall).min(now);
        self.hears_from = later(self.hears_from);
        for heard in self.touched.values_mut().chain(self.served.values_mut()) {
            *heard = later(*heard);
        }
        for member in self.members.values_mut() {
            member.heard_at = later(member.heard_at);
            if let Some(suspicion) = &mut member.suspicion {
                suspicion.since = later(suspicion.since);
            }
        }
    }
}

impl Manager {
    /// How often the main loop looks at least.
    fn look_every(&self) -> Duration {
        self.lease() / LOOKS_PER_LEASE
    }

    /// Notices whether the main loop, which looks so often, has not for twice as long: then the whole
    /// process stood still. Whatever judges by silence asks this first, since it may run before the
    /// main loop does.
    fn notice_stall(&self) {
        let look_every = self.look_every();
        let stall = self.watch.looked_at.get().elapsed().saturating_sub(look_every);
        if stall <= look_every || mutated(Mutation::StallUnnoticed) {
            return;
        }
        self.state.borrow_mut().discount(stall);
        self.watch.looked_at.set(now());
        self.watch.stalled_at.set(Some(now()));
        self.watch.is_catching_up.set(true);
        tracing::warn!(ms = stall.as_millis(), "the manager stood still");
        if stall >= self.lease() {
            let why = format!(
                "the manager stood still for {:.1} s: what it did not hear then does not count as silence",
                stall.as_secs_f64()
            );
            self.of_own_accord(|| self.tell("manager-stalled", why, Subjects::default()));
        }
    }

    /// Whether what has arrived while this process stood still is to be read before anybody is judged
    /// by silence.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.notice_stall();
        self.watch.is_catching_up.get()
    }

    /// Whether this process stood still since: what took too long then is not to be blamed on others.
    pub(crate) fn has_stalled_since(&self, at: Instant) -> bool {
        self.notice_stall();
        self.watch.stalled_at.get().is_some_and(|stalled| stalled >= at)
    }

    /// Begins a look of the main loop; after a stall, first lets everything be read that has arrived
    /// meanwhile. That is done once, however long it takes: a manager that is slow all the time evicts
    /// all the same.
    pub(crate) async fn begin_look(&self) {
        if self.is_catching_up() {
            sleep(self.look_every()).await;
            self.notice_stall();
            self.watch.is_catching_up.set(false);
        }
        self.watch.looked_at.set(now());
    }
}
