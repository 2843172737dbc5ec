//! How long requests took: one histogram per kind of request, of the same bounds everywhere.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Latencies above this many nanoseconds count as this: longer than any request waits before it fails.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Significant decimal digits of a recorded latency.
const LATENCY_DIGITS: u8 = 3;

/// Requests of one kind that completed.
#[derive(Clone, Debug)]
pub struct Completed {
    /// How many.
    pub requests: u64,
    /// Their latencies in nanoseconds.
    pub latency_ns: Histogram<u64>,
}

impl Completed {
    /// None so far.
    pub(crate) fn new() -> Completed {
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_MAX_NS, LATENCY_DIGITS);
        Completed { requests: 0, latency_ns: latency_ns.expect("the bounds are constants and in order") }
    }

    pub(crate) fn record(&mut self, latency: Duration) {
        self.requests += 1;
        self.latency_ns.saturating_record(latency.as_nanos() as u64);
    }

    /// Counts so many requests that took so many nanoseconds, for each pair of these.
    pub(crate) fn add_counted(&mut self, counted: &[(u64, u64)]) {
        for (ns, count) in counted {
            self.requests += count;
            self.latency_ns.saturating_record_n(*ns, *count);
        }
    }

    /// Counts what is counted there as well.
    pub(crate) fn add(&mut self, other: &Completed) {
        self.requests += other.requests;
        self.latency_ns.add(&other.latency_ns).expect("all histograms have the same bounds");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_longer_than_anything_counts_as_the_longest() {
        let (mut one, mut two) = (Completed::new(), Completed::new());
        one.record(Duration::from_micros(10));
        two.record(Duration::from_secs(3600));
        one.add(&two);
        assert_eq!((one.requests, one.latency_ns.len()), (2, 2));
        assert!(one.latency_ns.max() >= LATENCY_MAX_NS, "{}", one.latency_ns.max());
        assert_eq!(one.latency_ns.min() / 100, 100, "three digits of 10 us are kept");
    }
}
