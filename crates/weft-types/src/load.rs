//! Load as it is counted and passed on: what was asked of a drive, a volume or a session, and how
//! long it took.
//!
//! It owns the shapes of the counters, and taking one reading from another. Counters only rise
//! while a process lives, so a watcher that keeps the last reading finds what happened in between.
//! It never counts anything itself.

use crate::VolumeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What was asked since the process started, and what is being done now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterReading {
    /// Requests that read data, and were answered.
    pub reads: u64,
    /// Requests that wrote data, and were answered.
    pub writes: u64,
    /// Requests that wrote zeroes or discarded, and were answered.
    pub zeroes: u64,
    /// Requests that asked for versions only, and were answered.
    pub probes: u64,
    /// Bytes of the blocks that were read.
    pub read_bytes: u64,
    /// Bytes of data that were written.
    pub written_bytes: u64,
    /// Bytes that were made to read as zeroes.
    pub zeroed_bytes: u64,
    /// Requests that were admitted and not carried out.
    pub errors: u64,
    /// Requests that are being carried out at this moment: a level, not a counter.
    pub in_flight: u64,
    /// How long reads of data took.
    pub read_latency: Latencies,
    /// How long writes took, those of zeroes among them.
    pub write_latency: Latencies,
}

impl MeterReading {
    /// What has happened since an earlier reading of the same meter; levels are those of this one.
    pub fn since(&self, earlier: &MeterReading) -> MeterReading {
        MeterReading {
            reads: self.reads.saturating_sub(earlier.reads),
            writes: self.writes.saturating_sub(earlier.writes),
            zeroes: self.zeroes.saturating_sub(earlier.zeroes),
            probes: self.probes.saturating_sub(earlier.probes),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            zeroed_bytes: self.zeroed_bytes.saturating_sub(earlier.zeroed_bytes),
            errors: self.errors.saturating_sub(earlier.errors),
            in_flight: self.in_flight,
            read_latency: self.read_latency.since(&earlier.read_latency),
            write_latency: self.write_latency.since(&earlier.write_latency),
        }
    }

    /// Adds what another meter has counted.
    pub fn add(&mut self, other: &MeterReading) {
        self.reads = self.reads.saturating_add(other.reads);
        self.writes = self.writes.saturating_add(other.writes);
        self.zeroes = self.zeroes.saturating_add(other.zeroes);
        self.probes = self.probes.saturating_add(other.probes);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
        self.zeroed_bytes = self.zeroed_bytes.saturating_add(other.zeroed_bytes);
        self.errors = self.errors.saturating_add(other.errors);
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.read_latency.add(&other.read_latency);
        self.write_latency.add(&other.write_latency);
    }
}

/// How long requests took: a histogram of which only the buckets that hold something are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// Per bucket the longest time in it, in microseconds, and how many requests it holds;
    /// ascending. Buckets are narrow: a time is at most a sixteenth below its bucket's.
    pub buckets: Vec<(u64, u64)>,
    /// The sum of all times, in microseconds.
    pub sum_us: u64,
}

impl Latencies {
    /// Requests that were timed.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum: u64, (_, count)| sum.saturating_add(*count))
    }

    /// Those that were timed since an earlier reading of the same histogram.
    pub fn since(&self, earlier: &Latencies) -> Latencies {
        let before: BTreeMap<u64, u64> = earlier.buckets.iter().copied().collect();
        let left = |(bound, count): &(u64, u64)| {
            let new = count.saturating_sub(before.get(bound).copied().unwrap_or(0));
            (new > 0).then_some((*bound, new))
        };
        Latencies {
            buckets: self.buckets.iter().filter_map(left).collect(),
            sum_us: self.sum_us.saturating_sub(earlier.sum_us),
        }
    }

    /// Adds those of another histogram.
    pub fn add(&mut self, other: &Latencies) {
        let mut all: BTreeMap<u64, u64> = self.buckets.iter().copied().collect();
        for (bound, count) in &other.buckets {
            let sum = all.entry(*bound).or_default();
            *sum = sum.saturating_add(*count);
        }
        self.buckets = all.into_iter().collect();
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// The time in microseconds that this share of the requests (0 to 1) did not exceed; none
    /// without requests.
    pub fn quantile_us(&self, share: f64) -> Option<u64> {
        let count = self.count();
        // The rank of the request that is asked for: of 1,000 requests, p99.9 is the 999th.
        let rank = ((share * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0u64;
        let reaches = |(_, count): &&(u64, u64)| {
            seen = count.saturating_add(seen);
            seen >= rank
        };
        self.buckets.iter().find(reaches).map(|(bound, _)| *bound)
    }
}

/// What a process and its machine have used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLoad {
    /// Processor time of the process, in microseconds: of all its threads, in user and kernel mode.
    pub cpu_us: u64,
    /// Memory of the process that is resident, in bytes.
    pub resident_bytes: u64,
    /// The machine's network interfaces, by name.
    pub interfaces: Vec<InterfaceLoad>,
}

/// What went over a network interface since the machine started, whoever sent it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceLoad {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
}

/// What was asked of a volume at one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeLoad {
    /// The volume.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Requests for it.
    pub meter: MeterReading,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latencies(buckets: &[(u64, u64)]) -> Latencies {
        Latencies { buckets: buckets.to_vec(), sum_us: buckets.iter().map(|(b, n)| b * n).sum() }
    }

    #[test]
    fn percentiles_are_those_of_what_came_since() {
        let before = latencies(&[(10, 1_000), (5_000, 7)]);
        let after = latencies(&[(10, 1_500), (20, 490), (5_000, 16), (9_000, 1)]);
        let since = after.since(&before);
        assert_eq!(since, latencies(&[(10, 500), (20, 490), (5_000, 9), (9_000, 1)]));
        assert_eq!(since.count(), 1_000);
        assert_eq!(since.quantile_us(0.5), Some(10));
        assert_eq!(since.quantile_us(0.501), Some(20));
        assert_eq!(since.quantile_us(0.99), Some(20));
        assert_eq!(since.quantile_us(0.999), Some(5_000));
        assert_eq!(since.quantile_us(1.0), Some(9_000));
        assert_eq!(since.quantile_us(0.0), Some(10));
        assert_eq!(after.since(&after).quantile_us(0.5), None, "nothing came");
    }

    #[test]
    fn counters_that_cannot_be_stay_at_the_end_of_their_range() {
        let most = Latencies { buckets: vec![(10, u64::MAX), (20, u64::MAX)], sum_us: u64::MAX };
        assert_eq!((most.count(), most.quantile_us(1.0)), (u64::MAX, Some(10)));
        let reading = MeterReading { reads: u64::MAX, read_latency: most.clone(), ..Default::default() };
        let mut sum = reading.clone();
        sum.add(&reading);
        assert_eq!(sum, reading);
    }

    #[test]
    fn histograms_add_up() {
        let mut sum = latencies(&[(10, 1), (30, 2)]);
        sum.add(&latencies(&[(20, 5), (30, 1)]));
        assert_eq!(sum, latencies(&[(10, 1), (20, 5), (30, 3)]));
    }

    #[test]
    fn counters_are_subtracted_and_levels_are_not() {
        let before = MeterReading { reads: 5, read_bytes: 4096, in_flight: 9, ..Default::default() };
        let mut after = MeterReading { reads: 7, read_bytes: 8192, in_flight: 3, ..Default::default() };
        after.errors = 1;
        let since = after.since(&before);
        assert_eq!((since.reads, since.read_bytes, since.errors, since.in_flight), (2, 4096, 1, 3));
        let mut sum = before.clone();
        sum.add(&since);
        assert_eq!((sum.reads, sum.in_flight), (7, 12), "meters of two drives have two queues");
    }
}
