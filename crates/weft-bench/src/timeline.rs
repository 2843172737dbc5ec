//! What happened in each second of a run, over all its jobs.

use crate::latency::Completed;
use crate::load::LoadResult;
use crate::report::rounded;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// One second of a run; the last may be shorter, or longer by the requests that were in flight at the end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tick {
    /// When it began, in seconds since the run's beginning.
    pub from_s: f64,
    /// When it ended.
    pub to_s: f64,
    /// Reads completed per second.
    pub reads_per_s: f64,
    /// Writes completed per second.
    pub writes_per_s: f64,
    /// Requests completed per second.
    pub iops: f64,
    /// Megabytes (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Median latency in microseconds; none if nothing completed.
    pub p50_us: Option<f64>,
    /// The latency that one request in a hundred exceeds.
    pub p99_us: Option<f64>,
    /// The latency that one request in a thousand exceeds.
    pub p999_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
}

/// A latency of a histogram in microseconds; none if it is empty.
pub(crate) fn quantile_us(latency_ns: &Histogram<u64>, quantile: f64) -> Option<f64> {
    (!latency_ns.is_empty()).then(|| rounded(latency_ns.value_at_quantile(quantile) as f64 / 1000.0, 0.1))
}

impl Tick {
    fn new(second: u64, block_size: u64, result: &LoadResult) -> Tick {
        let elapsed = result.elapsed.as_secs_f64();
        let rate = |side: &Completed| rounded(side.requests as f64 / elapsed, 0.1);
        let latency = result.latency_ns();
        Tick {
            from_s: second as f64,
            to_s: rounded(second as f64 + elapsed, 0.001),
            reads_per_s: rate(&result.reads),
            writes_per_s: rate(&result.writes),
            iops: rounded(result.per_second(), 0.1),
            mb_per_s: rounded(result.per_second() * block_size as f64 / 1e6, 0.01),
            p50_us: quantile_us(&latency, 0.5),
            p99_us: quantile_us(&latency, 0.99),
            p999_us: quantile_us(&latency, 0.999),
            max_us: quantile_us(&latency, 1.0),
        }
    }
}

/// Puts together what the jobs tell of each second.
pub(crate) struct Timeline {
    jobs: usize,
    block_size: u64,
    /// Seconds of which not all jobs have told yet, and how many have.
    pending: BTreeMap<u64, (usize, LoadResult)>,
    ticks: Vec<Tick>,
}

impl Timeline {
    pub(crate) fn new(jobs: usize, block_size: u64) -> Timeline {
        Timeline { jobs, block_size, pending: BTreeMap::new(), ticks: Vec::new() }
    }

    /// A job tells of a second. Returns the second if it was the last one to do so.
    pub(crate) fn add(&mut self, second: u64, result: LoadResult) -> Option<&Tick> {
        let (told, whole) = match self.pending.remove(&second) {
            None => (1, result),
            Some((told, mut whole)) => {
                whole.reads.add(&result.reads);
                whole.writes.add(&result.writes);
                whole.elapsed = whole.elapsed.max(result.elapsed);
                (told + 1, whole)
            }
        };
        if told < self.jobs {
            self.pending.insert(second, (told, whole));
            return None;
        }
        self.ticks.push(Tick::new(second, self.block_size, &whole));
        self.ticks.last()
    }

    /// All seconds in order, also those of which some jobs did not tell because they ended early.
    pub(crate) fn finish(mut self) -> Vec<Tick> {
        for (second, (_, whole)) in std::mem::take(&mut self.pending) {
            self.ticks.push(Tick::new(second, self.block_size, &whole));
        }
        self.ticks.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
        self.ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn second(reads: u64, latency_us: u64) -> LoadResult {
        let mut result =
            LoadResult { reads: Completed::new(), writes: Completed::new(), elapsed: Duration::from_secs(1) };
        (0..reads).for_each(|_| result.reads.record(Duration::from_micros(latency_us)));
        result
    }

    #[test]
    fn a_second_is_over_when_all_jobs_have_told() {
        let mut timeline = Timeline::new(2, 4096);
        assert_eq!(timeline.add(0, second(100, 10)), None);
        assert_eq!(timeline.add(1, second(0, 0)), None);
        let tick = timeline.add(0, second(300, 1000)).expect("both have told").clone();
        assert_eq!((tick.iops, tick.reads_per_s, tick.writes_per_s, tick.to_s), (400.0, 400.0, 0.0, 1.0));
        assert_eq!(tick.mb_per_s, 1.64);
        assert!(tick.p50_us > Some(900.0) && tick.max_us < Some(1100.0), "{tick:?}");
        let ticks = timeline.finish();
        assert_eq!(ticks.len(), 2);
        assert_eq!((ticks[1].iops, ticks[1].p99_us), (0.0, None));
    }
}
