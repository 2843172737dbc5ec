//! Which single requests are logged: those that were slow or failed, up to a quota.
//!
//! It owns the threshold and the quota. Whoever knows a request writes the line.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use weft_rt::{Instant, now, sleep_until, spawn};

/// From when on a request is slow, where nothing else is said. A sound drive answers within milliseconds, and
/// a reader asks a second replica after half a second; but an eviction takes some seconds, and disk drivers
/// give up after 30. So what takes a second is never usual, and is told long before anybody suffers from it.
const SLOW: Duration = Duration::from_secs(1);

/// Lines of one kind in one period. A few name the drive, the node and the group that are slow; the rest is a
/// number.
const LINES_MAX: u32 = 20;

/// How long a period is: at most two lines a second in the long run, whatever happens.
const PERIOD: Duration = Duration::from_secs(10);

/// One for the process, like its log: in nanoseconds.
static SLOW_NS: AtomicU64 = AtomicU64::new(SLOW.as_nanos() as u64);

/// From when on a request counts as slow and is told in the log.
pub fn slow_request() -> Duration {
    Duration::from_nanos(SLOW_NS.load(Ordering::Relaxed))
}

/// Says from when on a request counts as slow, instead of after a second.
pub fn set_slow_request(threshold: Duration) {
    SLOW_NS.store(u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// How many lines of one kind may still be written: 20 in 10 s. What is left out is counted, and the count is
/// told when the period is over.
#[derive(Clone)]
pub struct LogQuota(Rc<Inner>);

struct Inner {
    /// What the lines tell of.
    what: &'static str,
    until: Cell<Instant>,
    written: Cell<u32>,
    suppressed: Cell<u64>,
}

impl LogQuota {
    /// A quota for lines about this, such as "slow requests".
    pub fn new(what: &'static str) -> LogQuota {
        LogQuota(Rc::new(Inner {
            what,
            until: Cell::default(),
            written: Cell::new(0),
            suppressed: Cell::new(0),
        }))
    }

    /// Whether a line may be written now; it counts as written then.
    pub fn allows(&self) -> bool {
        let quota = &*self.0;
        let now = now();
        if now >= quota.until.get() {
            quota.until.set(now + PERIOD);
            quota.written.set(0);
        }
        if quota.written.get() < LINES_MAX {
            quota.written.set(quota.written.get() + 1);
            return true;
        }
        let before = quota.suppressed.replace(quota.suppressed.get() + 1);
        if before == 0 {
            let (quota, until) = (self.0.clone(), quota.until.get());
            spawn(async move {
                sleep_until(until).await;
                let suppressed = quota.suppressed.take();
                tracing::warn!(suppressed, "more {} were not told one by one", quota.what);
            });
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::sim::Sim;
    use weft_rt::sleep;

    #[test]
    fn what_passes_the_quota_is_counted_and_told_when_the_period_is_over() {
        Sim::new(1).block_on(async {
            let quota = LogQuota::new("slow requests");
            let allowed = |n: u32| (0..n).filter(|_| quota.allows()).count() as u32;
            assert_eq!(allowed(LINES_MAX + 7), LINES_MAX);
            assert_eq!(quota.0.suppressed.get(), 7);
            sleep(PERIOD / 2).await;
            assert_eq!((allowed(3), quota.0.suppressed.get()), (0, 10));
            sleep(PERIOD).await;
            assert_eq!(quota.0.suppressed.get(), 0, "they were told");
            assert_eq!(allowed(LINES_MAX + 1), LINES_MAX, "a new period");
        });
    }
}
