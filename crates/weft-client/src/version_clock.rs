//! The clock that a session's versions start from, so that conflicts between writers are rare: this
//! machine's, corrected by those of the targets that answer it, and never so far ahead of the manager's that
//! a target could refuse a version.
//!
//! A target refuses a version that is [`VERSION_AHEAD_MAX`] ahead of the furthest clock it knows, its
//! manager's among them (`weft-target/src/clock.rs`). A refused write may begin again, but not while it is
//! unknown what became of it on another replica: with a clock that is a day ahead it would wait for a day. No
//! order rests on this clock: counters are raised above every version that the session meets.

use std::cell::Cell;
use weft_rt::{Instant, wall_clock_us};
use weft_types::Version;
use weft_types::limits::VERSION_AHEAD_MAX;
use weft_wire::data::clock_counter;

/// The largest counter that is taken from a target: it leaves room for as many writes as a group will ever
/// see, and lies decades ahead of any clock.
pub(crate) const COUNTER_SANE_MAX: u64 = Version::COUNTER_MAX - (1 << 40);

/// How far ahead of the manager's clock this machine's may be before the manager's counts. With what a
/// target's may be ahead of that one ([`VersionClock::saw`]) three quarters of the allowance are used.
const AHEAD_OF_MANAGER_MAX: u64 = VERSION_AHEAD_MAX / 4;

/// The clock of one session, as a version counter.
pub(crate) struct VersionClock {
    /// At this moment the manager's clock was so many microseconds since 1970-01-01T00:00:00Z; `None`: it did
    /// not say.
    manager: Option<(Instant, u64)>,
    /// By how many counter steps targets' clocks are ahead of this machine's.
    shift: Cell<i64>,
    /// This machine's clock when a version was last given out.
    own_then: Cell<u64>,
}

impl VersionClock {
    /// With the manager's clock as it was then, in microseconds since 1970-01-01T00:00:00Z; 0 if it is not
    /// known.
    pub(crate) fn read_at(then: Instant, manager_us: u64) -> VersionClock {
        VersionClock {
            manager: (manager_us > 0).then_some((then, manager_us)),
            shift: Cell::new(0),
            own_then: Cell::new(0),
        }
    }

    /// What the next version starts from.
    pub(crate) fn counter(&self) -> u64 {
        self.own_then.set(self.own());
        (self.own_then.get() as i64 + self.shift.get()).max(1) as u64
    }

    /// Notes a target's clock. One that is far ahead of this machine's is not followed: versions made from it
    /// would be refused by every target whose clock is right.
    pub(crate) fn saw(&self, clock: u64) {
        // Most answers come from clocks that are not ahead of what was last given out: they need no look at
        // this one.
        if (clock as i64) <= (self.own_then.get() as i64).saturating_add(self.shift.get()) {
            return;
        }
        let own = self.own();
        let bound = own.saturating_add(VERSION_AHEAD_MAX / 2).min(COUNTER_SANE_MAX);
        if clock <= bound {
            self.shift.set(self.shift.get().max(clock as i64 - own as i64));
        }
    }

    /// Goes back to a target's clock that is behind, after it refused a version as too far ahead.
    pub(crate) fn saw_behind(&self, clock: u64) {
        let clock = clock.min(COUNTER_SANE_MAX) as i64;
        self.shift.set(self.shift.get().min(clock - self.own() as i64));
    }

    /// Notes the manager's clock, as a target's: this machine's may be far behind.
    pub(crate) fn saw_manager(&self) {
        if let Some(us) = self.manager_us() {
            self.saw(clock_counter(us));
        }
    }

    /// What the manager's clock is by now, in microseconds.
    fn manager_us(&self) -> Option<u64> {
        let (at, us) = self.manager?;
        Some(us.saturating_add(u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX)))
    }

    /// This machine's clock, or the latest that the manager's allows.
    fn own(&self) -> u64 {
        let wall = clock_counter(wall_clock_us()).min(COUNTER_SANE_MAX);
        let Some(us) = self.manager_us() else { return wall };
        wall.min(clock_counter(us).saturating_add(AHEAD_OF_MANAGER_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::time::Duration;
    use weft_rt::sim::{Sim, set_wall_skew, spawn_process};
    use weft_rt::{now, sleep};

    const DAY_US: u64 = 24 * 3_600_000_000;

    #[test]
    fn a_clock_that_jumps_a_day_ahead_gives_no_version_that_a_target_refuses() {
        Sim::new(1).block_on(async {
            let over = Rc::new(Cell::new(false));
            let end = over.clone();
            let process = spawn_process([10, 0, 2, 1].into(), "client", async move {
                let true_us = wall_clock_us();
                let (clock, alone) = (VersionClock::read_at(now(), true_us), VersionClock::read_at(now(), 0));
                assert_eq!(clock.counter(), clock_counter(true_us));
                sleep(Duration::from_secs(10)).await;
                let refused_from = clock_counter(true_us + 10_000_000) + VERSION_AHEAD_MAX;
                assert!(alone.counter() > refused_from, "the clock has jumped");
                assert_eq!(clock.counter(), refused_from - VERSION_AHEAD_MAX + AHEAD_OF_MANAGER_MAX);
                // Of the targets that answer, only those count that are right by the manager's clock.
                clock.saw(clock_counter(true_us + DAY_US));
                clock.saw(clock.counter() + VERSION_AHEAD_MAX / 2);
                assert!(clock.counter() < refused_from, "{} of {refused_from}", clock.counter());
                end.set(true);
            });
            sleep(Duration::from_secs(5)).await;
            set_wall_skew(process, DAY_US as i64);
            sleep(Duration::from_secs(10)).await;
            assert!(over.get(), "the process has not come to its end");
        });
    }

    #[test]
    fn a_clock_that_is_behind_follows_the_targets() {
        Sim::new(1).block_on(async {
            let clock = VersionClock::read_at(now(), wall_clock_us() + DAY_US);
            let own = clock.counter();
            assert_eq!(own, clock_counter(wall_clock_us()), "the manager's clock only holds back");
            clock.saw(own + 1_000);
            assert_eq!(clock.counter(), own + 1_000);
            clock.saw_behind(own + 10);
            assert_eq!(clock.counter(), own + 10);
        });
    }
}
