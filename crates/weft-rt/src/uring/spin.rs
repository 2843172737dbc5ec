//! Whether to spin before sleeping: learned from how long the last waits were.
//!
//! Waking a sleeping thread costs 15 to 20 us, most of a short round trip; spinning costs a core. A wait that
//! ended soon would have been (or was) shortened by spinning, a long one not. The score counts both kinds,
//! so that a busy thread spins, and an idle one sleeps without a single turn of the loop.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

/// Whether a thread spins for a moment before it sleeps in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// As long as the last waits were short.
    #[default]
    Adaptive,
    /// Sleep at once.
    Never,
    /// Never sleep: for benchmarks, with a core to itself.
    Always,
}

/// How long a spin may last: two to three times what it saves, the wake-up of a sleeping thread.
pub(super) const SPIN_MAX: Duration = Duration::from_micros(50);

/// What waking up adds to a sleep: the least that was measured between two cores.
const WAKE_UP: Duration = Duration::from_micros(15);

/// A pause of the loop by this much means that the scheduler gave the core to somebody else, who needs it
/// more. An interrupt takes less.
const PREEMPTED: Duration = Duration::from_micros(15);

/// The score's bounds: so many short waits outweigh the same number of long ones, no more.
const SCORE_MAX: i32 = 8;
/// From this score on it spins.
const SCORE_SPINS: i32 = 4;
/// What it costs to spin on a core that somebody else needs: so many short waits until spinning is tried
/// again. Each further time costs twice as much: on a machine with more work than cores, a thread that spins
/// waits for its next slice of time instead of a few microseconds.
const PENALTY_MIN: i32 = 64;
/// The most it costs: some seconds of busy traffic.
const PENALTY_MAX: i32 = 1 << 18;
/// How many rewarded spins make up for one that was disturbed (by an interrupt, or by a reply that came just
/// too late), and how many that are not made up for it takes until the core counts as needed by others.
const REWARDS_PER_DISTURBANCE: u32 = 8;
const DISTURBANCES_MAX: u32 = 4;
/// So many spins in a row that were rewarded halve what the next disturbance costs.
const CALM_SPINS: u32 = 4096;

/// The decision and what it is learned from.
pub(super) struct Spinner {
    mode: Cell<Spin>,
    score: Cell<i32>,
    penalty: Cell<i32>,
    calm: Cell<u32>,
    /// Disturbances not yet made up for, times [`REWARDS_PER_DISTURBANCE`].
    disturbed: Cell<u32>,
    /// Nobody who could end a wait runs while this thread spins on the only processor.
    alone: bool,
}

impl Spinner {
    /// One that has learned nothing yet, with so many processors to run on.
    pub(super) fn new(processors: usize) -> Spinner {
        Spinner {
            mode: Cell::default(),
            score: Cell::new(0),
            penalty: Cell::new(PENALTY_MIN),
            calm: Cell::new(0),
            disturbed: Cell::new(0),
            alone: processors < 2,
        }
    }

    pub(super) fn set(&self, mode: Spin) {
        self.mode.set(mode);
        self.score.set(0);
    }

    /// How long to spin now, if at all.
    pub(super) fn budget(&self) -> Option<Duration> {
        match self.mode.get() {
            _ if self.alone => None,
            Spin::Never => None,
            Spin::Always => Some(Duration::MAX),
            Spin::Adaptive => (self.score.get() >= SCORE_SPINS).then_some(SPIN_MAX),
        }
    }

    /// Learns from a wait that ended with a sleep of this length, after a spin in vain or without one.
    pub(super) fn slept(&self, duration: Duration, in_vain: bool) {
        if !in_vain {
            self.waited(duration.saturating_sub(WAKE_UP));
        } else if duration <= SPIN_MAX {
            // It came as soon as the core was free: who was to bring it may have waited for this core.
            self.disturbed();
        } else {
            self.waited(Duration::MAX);
        }
    }

    /// Learns how long it was until there was something to do.
    pub(super) fn waited(&self, duration: Duration) {
        let step = if duration <= SPIN_MAX { 1 } else { -2 };
        self.score.set((self.score.get() + step).min(SCORE_MAX).max(self.score.get().min(0)));
    }

    /// Learns from a pause between two looks of the loop; true if the core was taken away.
    pub(super) fn paused(&self, pause: Duration) -> bool {
        let preempted = pause >= PREEMPTED;
        if preempted {
            self.disturbed();
        }
        preempted
    }

    fn disturbed(&self) {
        self.disturbed.set(self.disturbed.get() + REWARDS_PER_DISTURBANCE);
        if self.disturbed.get() <= DISTURBANCES_MAX * REWARDS_PER_DISTURBANCE {
            return;
        }
        self.disturbed.set(0);
        self.score.set(-self.penalty.get());
        self.penalty.set((self.penalty.get() * 2).min(PENALTY_MAX));
        self.calm.set(0);
    }

    /// Learns that a spin was rewarded, and not disturbed.
    pub(super) fn undisturbed(&self) {
        self.disturbed.set(self.disturbed.get().saturating_sub(1));
        self.calm.set(self.calm.get() + 1);
        if self.calm.get() == CALM_SPINS {
            self.calm.set(0);
            self.penalty.set((self.penalty.get() / 2).max(PENALTY_MIN));
        }
    }
}

/// Threads of this process that spin now.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// Usable processors for each thread that may spin at the same time. One thread may always spin.
const PROCESSORS_PER_SPIN: usize = 4;

/// The right to spin, until it is dropped: threads of one process that all spin would keep the cores from
/// those that have something to do.
pub(super) struct Turn {
    is_counted: bool,
}

impl Turn {
    /// A turn for a spin of this length, if not as many threads have one as may. Who never sleeps has a core
    /// to itself, and is not counted.
    pub(super) fn take(budget: Duration) -> Option<Turn> {
        if budget == Duration::MAX {
            return Some(Turn { is_counted: false });
        }
        let most = (usable() / PROCESSORS_PER_SPIN).max(1);
        // One that is counted and not given is taken back at once; nobody relies on the exact number.
        match SPINNING.fetch_add(1, Ordering::Relaxed) < most {
            true => Some(Turn { is_counted: true }),
            false => {
                SPINNING.fetch_sub(1, Ordering::Relaxed);
                None
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_counted {
            SPINNING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// How many processors there are. Not only those that this thread may run on: a thread that is bound to one
/// is answered by threads on others.
pub(super) fn processors() -> usize {
    static ONLINE: OnceLock<usize> = OnceLock::new();
    *ONLINE.get_or_init(|| {
        // SAFETY: the call takes no pointers.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        usize::try_from(online).unwrap_or(1)
    })
}

/// How many processors this process may use: by its affinity, its cpuset, and the processor time of its
/// control groups, rounded down. It is read once, when the first executor of the process begins: before any
/// thread is bound to fewer of them.
pub(super) fn usable() -> usize {
    static USABLE: OnceLock<usize> = OnceLock::new();
    *USABLE.get_or_init(|| available_parallelism().map_or(1, NonZero::get))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_millis(1);

    #[test]
    fn it_spins_while_waits_are_short_and_stops_soon_after() {
        let spinner = Spinner::new(2);
        assert_eq!(spinner.budget(), None, "nothing learned, nothing spent");
        for _ in 0..100 {
            spinner.waited(SHORT);
        }
        assert_eq!(spinner.budget(), Some(SPIN_MAX));
        let mut fruitless = 0;
        while spinner.budget().is_some() {
            spinner.waited(LONG);
            fruitless += 1;
        }
        assert!(fruitless <= 3, "{fruitless} fruitless spins");
        for _ in 0..1000 {
            spinner.waited(LONG);
            assert_eq!(spinner.budget(), None, "an idle thread costs nothing");
        }
        for _ in 0..SCORE_SPINS {
            spinner.slept(SPIN_MAX + WAKE_UP, false);
        }
        assert!(spinner.budget().is_some(), "it takes to spinning again when traffic is back");
    }

    #[test]
    fn it_gives_way_when_the_core_is_wanted_by_others() {
        let spinner = Spinner::new(2);
        for _ in 0..100 {
            spinner.waited(SHORT);
        }
        assert!(!spinner.paused(Duration::from_micros(1)));
        assert!(spinner.budget().is_some());
        let until_next_spin = || {
            for _ in 0..DISTURBANCES_MAX {
                assert!(spinner.paused(Duration::from_micros(100)));
                assert!(spinner.budget().is_some(), "a few disturbances are no reason");
            }
            assert!(spinner.paused(Duration::from_micros(100)));
            let mut waits = 0;
            while spinner.budget().is_none() {
                spinner.waited(SHORT);
                waits += 1;
            }
            waits
        };
        let first = until_next_spin();
        assert!(first >= PENALTY_MIN);
        assert!(until_next_spin() >= 2 * PENALTY_MIN, "it gives way for longer each time");
        for _ in 0..CALM_SPINS * 2 {
            spinner.undisturbed();
        }
        assert_eq!(until_next_spin(), first, "and forgets it when nobody disturbs");
    }

    #[test]
    fn it_gives_way_when_both_ends_share_a_core() {
        let spinner = Spinner::new(2);
        let mut spins = 0;
        for _ in 0..100_000 {
            let in_vain = spinner.budget().is_some();
            spins += u32::from(in_vain);
            spinner.slept(Duration::from_micros(7), in_vain);
        }
        assert!(spins <= 60, "{spins} spins in vain");
    }

    #[test]
    fn only_so_many_threads_of_a_process_spin_at_once() {
        let most = (usable() / PROCESSORS_PER_SPIN).max(1);
        // Other tests of this process may spin meanwhile.
        let turns: Vec<Turn> = (0..most + 2).filter_map(|_| Turn::take(SPIN_MAX)).collect();
        assert!(turns.len() <= most, "{} of {most}", turns.len());
        assert!(Turn::take(Duration::MAX).is_some(), "one that has a core to itself");
        drop(turns);
        let again = (0..1_000).any(|_| {
            std::thread::yield_now();
            Turn::take(SPIN_MAX).is_some()
        });
        assert!(again, "they are given back");
    }

    #[test]
    fn on_one_processor_nobody_spins() {
        let spinner = Spinner::new(1);
        spinner.set(Spin::Always);
        assert_eq!(spinner.budget(), None);
        let spinner = Spinner::new(2);
        spinner.set(Spin::Always);
        assert_eq!(spinner.budget(), Some(Duration::MAX));
        spinner.set(Spin::Never);
        (0..100).for_each(|_| spinner.waited(SHORT));
        assert_eq!(spinner.budget(), None);
    }
}
