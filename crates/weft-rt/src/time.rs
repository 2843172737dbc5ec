//! Time: monotonic instants, sleeping, and the wall clock. Virtual under simulation.

use crate::executor::with_core;
use pin_project_lite::pin_project;
use std::future::Future;
use std::ops::{Add, Sub};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The tick of [`sleep_about`]: a quarter of the usual lease, which is what is done most often.
const TICK: Duration = Duration::from_millis(500);

/// A point on the executor's monotonic clock, in nanoseconds from an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The instant this many nanoseconds from the clock's start.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds from the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The last tick up to this instant, or the instant itself if that tick is not after another one.
    fn last_tick_after(self, other: Instant) -> Instant {
        let tick = TICK.as_nanos() as u64;
        let last = Instant(self.0 / tick * tick);
        if last > other { last } else { self }
    }

    /// How long ago it was; zero if it lies ahead.
    pub fn elapsed(self) -> Duration {
        now() - self
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The present instant.
pub fn now() -> Instant {
    with_core(|core| core.now())
}

/// Microseconds since 1970-01-01T00:00:00Z, by a clock that nobody trusts for correctness.
pub fn wall_clock_us() -> u64 {
    with_core(|core| core.wall_clock_us())
}

/// Completes after the duration.
pub fn sleep(d: Duration) -> Sleep {
    sleep_until(now() + d)
}

/// Completes after the duration, or earlier: at the last whole half second of the clock before its end,
/// if one is still ahead. So what the tasks of a machine do every now and then is done at the same moment,
/// and an idle thread wakes up once for all of it. Exact below a quarter of a second, and under simulation.
pub fn sleep_about(d: Duration) -> Sleep {
    let (now, at) = (now(), now() + d);
    let is_real = with_core(|core| core.uring().is_some());
    sleep_until(if is_real && d >= TICK / 2 { at.last_tick_after(now) } else { at })
}

/// Completes at the instant.
pub fn sleep_until(at: Instant) -> Sleep {
    Sleep { at, timer: None }
}

/// See [`sleep`].
pub struct Sleep {
    at: Instant,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        with_core(|core| {
            if core.now() >= self.at {
                if let Some(key) = self.timer.take() {
                    core.cancel_timer(self.at, key);
                }
                return Poll::Ready(());
            }
            let key = core.set_timer(self.at, self.timer, cx.waker());
            self.timer = Some(key);
            Poll::Pending
        })
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.timer {
            crate::executor::try_with_core(|core| core.cancel_timer(self.at, key));
        }
    }
}

/// The time allowed has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

pin_project! {
    /// See [`timeout`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        allowed: Duration,
        // Set when the future is polled for the first time.
        sleep: Option<Sleep>,
    }
}

/// The future's output, unless the duration passes first, counted from when this is polled for the first
/// time. The future is dropped with this.
///
/// # Errors
/// [`Elapsed`] if the time passed.
// Not an `async fn`, which would keep room for the future twice: as it came, and where it is polled.
pub fn timeout<F: Future>(allowed: Duration, future: F) -> Timeout<F> {
    Timeout { future, allowed, sleep: None }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let sleep = this.sleep.get_or_insert_with(|| sleep(*this.allowed));
        if let Poll::Ready(out) = this.future.poll(cx) {
            return Poll::Ready(Ok(out));
        }
        Pin::new(sleep).poll(cx).map(|()| Err(Elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_now_and_then_is_done_on_whole_ticks() {
        let from = |now: u64, ms: u64| {
            let [now, at] = [now, now + ms].map(|ms| Instant::from_nanos(ms * 1_000_000));
            at.last_tick_after(now).as_nanos() / 1_000_000
        };
        assert_eq!([from(0, 500), from(1, 500), from(1, 1000), from(499, 500)], [500, 500, 1000, 500]);
        assert_eq!([from(0, 499), from(10, 20), from(490, 20)], [499, 30, 500], "never later");
    }

    #[test]
    fn ticks_are_for_real_clocks() {
        let wakes_at = |d| sleep_about(d).at;
        crate::block_on(async move {
            assert_eq!(wakes_at(Duration::from_millis(501)).as_nanos() % 500_000_000, 0);
        })
        .unwrap();
        crate::sim::Sim::new(1).block_on(async move {
            let d = Duration::from_millis(1001);
            assert_eq!(wakes_at(d), now() + d);
        });
    }
}
