//! The clock by which a target judges whether a version is too far ahead: a wall clock that never goes back.
//!
//! A machine's clock may be set back, by a day or by years, while volumes hold versions from before; whoever writes
//! such a block anew needs a higher one. So the bound rests on the furthest of three clocks: this machine's, what it
//! was when the process started or heard from its manager plus the time since, and the manager's. No version moves
//! it, so a bad client cannot climb by it. It never tells anyone the time.

use std::cell::Cell;
use weft_rt::{Instant, now, wall_clock_us};
use weft_types::limits::VERSION_AHEAD_MAX;
use weft_wire::data::clock_counter;

/// A wall clock that never goes back.
pub(crate) struct SteadyClock {
    /// At this moment it was so many microseconds since 1970-01-01T00:00:00Z.
    known: Cell<(Instant, u64)>,
    /// The bound without this machine's clock when it was last looked at: it only rises.
    bound_then: Cell<u64>,
}

impl SteadyClock {
    /// Begins with this machine's clock.
    pub(crate) fn new() -> SteadyClock {
        SteadyClock { known: Cell::new((now(), wall_clock_us())), bound_then: Cell::new(0) }
    }

    /// The manager's clock is this.
    pub(crate) fn heard(&self, clock_us: u64) {
        self.known.set((now(), self.now_us().max(clock_us)));
    }

    fn now_us(&self) -> u64 {
        wall_clock_us().max(self.known_now_us())
    }

    fn known_now_us(&self) -> u64 {
        let (at, us) = self.known.get();
        let since = u64::try_from((now() - at).as_micros()).unwrap_or(u64::MAX);
        us.saturating_add(since)
    }

    /// Whether a version counter is not too far ahead. The clocks are read only for one that was when they last were.
    pub(crate) fn allows(&self, counter: u64) -> bool {
        counter <= self.bound_then.get() || counter <= self.bound()
    }

    /// The highest version counter that is not too far ahead.
    fn bound(&self) -> u64 {
        let bound = |us| clock_counter(us).saturating_add(VERSION_AHEAD_MAX);
        let known = self.known_now_us();
        self.bound_then.set(bound(known));
        bound(known.max(wall_clock_us()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::time::Duration;
    use weft_rt::sim::{Sim, set_wall_skew, spawn_process};
    use weft_rt::sleep;

    const DAY_US: u64 = 24 * 3_600_000_000;

    #[test]
    fn a_clock_that_is_set_back_takes_no_bound_back_and_the_managers_counts() {
        Sim::new(1).block_on(async {
            let over = Rc::new(Cell::new(false));
            let end = over.clone();
            let process = spawn_process([10, 0, 0, 1].into(), "target", async move {
                let clock = SteadyClock::new();
                let first = clock.bound();
                sleep(Duration::from_secs(10)).await;
                assert_eq!(clock.bound(), first + 10_000_000 / 16, "time goes on");
                let late = SteadyClock::new();
                assert!(late.bound() < first, "a process that starts now knows no better");
                late.heard(wall_clock_us() + DAY_US);
                assert_eq!(late.bound(), clock.bound());
                assert!(late.allows(late.bound()) && !late.allows(late.bound() + 1));
                late.heard(0);
                assert_eq!(late.bound(), clock.bound(), "a manager whose clock is behind changes nothing");
                end.set(true);
            });
            sleep(Duration::from_secs(5)).await;
            set_wall_skew(process, -(DAY_US as i64));
            sleep(Duration::from_secs(10)).await;
            assert!(over.get(), "it came to its end");
        });
    }
}
