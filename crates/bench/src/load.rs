//! The load generator: keeps a number of requests in flight on a volume, and notes how long each took.
//!
//! It knows nothing of processes, limits or reports, and checks no data beyond what the client does.

use crate::BenchError;
use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use weft_client::{ClientError, Volume};
use weft_rt::{Buf, BufMut, Instant, now, spawn};

/// Latencies above this many nanoseconds count as this: longer than any request waits before it fails.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Significant decimal digits of a recorded latency.
const LATENCY_DIGITS: u8 = 3;

/// Bytes of distinct data that writes take turns with: more than one core's private caches hold, so that
/// checksums are computed over data that comes from where an application's would.
const DATA_BYTES: usize = 8 * 1024 * 1024;

/// The fewest distinct buffers, whatever their size.
const DATA_BUFS_MIN: usize = 4;

/// In which order a load goes over the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Evenly distributed, aligned to the block size.
    Random,
    /// One block after the other, from the beginning again at the end.
    Sequential,
}

/// How much a load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Requests are begun for so long.
    Time(Duration),
    /// So many requests.
    Requests(u64),
}

/// What to do to a volume.
#[derive(Clone, Debug)]
pub struct Load {
    /// The order of offsets.
    pub pattern: Pattern,
    /// How many of a hundred requests are reads, 0 to 100; the others are writes.
    pub read_percent: u8,
    /// Bytes per request: a multiple of the volume's logical block.
    pub block_size: u64,
    /// Requests in flight, at least 1.
    pub depth: u32,
    /// When to stop.
    pub amount: Amount,
    /// The same seed gives the same offsets and data.
    pub seed: u64,
}

/// Requests of one kind that completed.
#[derive(Clone, Debug)]
pub struct Completed {
    /// How many.
    pub requests: u64,
    /// Their latencies in nanoseconds.
    pub latency_ns: Histogram<u64>,
}

impl Completed {
    fn new() -> Completed {
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_MAX_NS, LATENCY_DIGITS);
        Completed { requests: 0, latency_ns: latency_ns.expect("the bounds are constants and in order") }
    }

    fn record(&mut self, latency: Duration) {
        self.requests += 1;
        self.latency_ns.saturating_record(latency.as_nanos() as u64);
    }
}

/// What a load did.
#[derive(Clone, Debug)]
pub struct LoadResult {
    /// The reads.
    pub reads: Completed,
    /// The writes.
    pub writes: Completed,
    /// From the first request's begin to the last one's end.
    pub elapsed: Duration,
}

impl LoadResult {
    /// Requests of both kinds.
    pub fn requests(&self) -> u64 {
        self.reads.requests + self.writes.requests
    }

    /// Requests of both kinds per second.
    pub fn per_second(&self) -> f64 {
        self.requests() as f64 / self.elapsed.as_secs_f64()
    }

    /// The latencies of both kinds, in nanoseconds.
    pub fn latency_ns(&self) -> Histogram<u64> {
        let mut both = self.reads.latency_ns.clone();
        both.add(&self.writes.latency_ns).expect("both histograms have the same bounds");
        both
    }
}

impl Load {
    /// Runs the load on a volume until its amount is done and everything begun has completed.
    ///
    /// # Errors
    /// [`BenchError::Invalid`] if the load does not fit the volume; [`BenchError::Request`] with the first
    /// request that failed, after the others have ended.
    pub async fn run(&self, volume: &Volume) -> Result<LoadResult, BenchError> {
        self.check(volume)?;
        let began = now();
        let state = Rc::new(State {
            plan: RefCell::new(Plan::new(self, volume.size_bytes())),
            data: if self.read_percent < 100 { data(self.block_size as usize, self.seed) } else { vec![] },
            next_data: Cell::new(0),
            deadline: match self.amount {
                Amount::Time(duration) => Some(began + duration),
                Amount::Requests(_) => None,
            },
            left: Cell::new(match self.amount {
                Amount::Time(_) => u64::MAX,
                Amount::Requests(n) => n,
            }),
            reads: RefCell::new(Completed::new()),
            writes: RefCell::new(Completed::new()),
            last: Cell::new(began),
            failure: RefCell::new(None),
        });
        let workers: Vec<_> =
            (0..self.depth).map(|_| spawn(work(state.clone(), volume.clone(), self.block_size))).collect();
        for worker in workers {
            worker.await.expect("nobody aborts a worker");
        }
        if let Some(error) = state.failure.take() {
            return Err(error.into());
        }
        Ok(LoadResult {
            reads: state.reads.replace(Completed::new()),
            writes: state.writes.replace(Completed::new()),
            elapsed: state.last.get() - began,
        })
    }

    fn check(&self, volume: &Volume) -> Result<(), BenchError> {
        let unit = u64::from(volume.logical_block());
        let what = if self.block_size == 0 || !self.block_size.is_multiple_of(unit) {
            format!("a block size of {} bytes is no multiple of the logical block of {unit}", self.block_size)
        } else if self.block_size > volume.size_bytes() {
            format!("a block size of {} bytes is more than the volume's size", self.block_size)
        } else if self.depth == 0 {
            "a depth of 0 would do nothing".to_owned()
        } else if self.read_percent > 100 {
            format!("{} of a hundred requests cannot be reads", self.read_percent)
        } else {
            return Ok(());
        };
        Err(BenchError::Invalid { what })
    }
}

/// What the workers of a load share.
struct State {
    plan: RefCell<Plan>,
    data: Vec<Buf>,
    next_data: Cell<usize>,
    deadline: Option<Instant>,
    left: Cell<u64>,
    reads: RefCell<Completed>,
    writes: RefCell<Completed>,
    last: Cell<Instant>,
    failure: RefCell<Option<ClientError>>,
}

impl State {
    /// The next request, if there is to be one at this instant.
    fn next(&self, at: Instant) -> Option<Step> {
        let is_over = self.deadline.is_some_and(|deadline| at >= deadline);
        if is_over || self.left.get() == 0 || self.failure.borrow().is_some() {
            return None;
        }
        self.left.set(self.left.get() - 1);
        Some(self.plan.borrow_mut().next())
    }

    fn next_data(&self) -> Buf {
        let i = self.next_data.get();
        self.next_data.set((i + 1) % self.data.len());
        self.data[i].clone()
    }
}

/// Keeps one request in flight until there is to be no further one.
async fn work(state: Rc<State>, volume: Volume, block_size: u64) {
    let mut began = now();
    while let Some(step) = state.next(began) {
        let (done, side) = if step.is_read {
            (volume.read(step.offset, block_size).await.map(drop), &state.reads)
        } else {
            (volume.write(step.offset, vec![state.next_data()]).await, &state.writes)
        };
        let ended = now();
        if let Err(error) = done {
            state.failure.borrow_mut().get_or_insert(error);
            return;
        }
        side.borrow_mut().record(ended - began);
        state.last.set(ended);
        began = ended;
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    offset: u64,
    is_read: bool,
}

/// Which request comes next. Pure.
struct Plan {
    pattern: Pattern,
    read_percent: u64,
    block_size: u64,
    /// Whole requests that fit the volume.
    places: u64,
    cursor: u64,
    random: Random,
}

impl Plan {
    fn new(load: &Load, size_bytes: u64) -> Plan {
        Plan {
            pattern: load.pattern,
            read_percent: u64::from(load.read_percent),
            block_size: load.block_size,
            places: size_bytes / load.block_size,
            cursor: 0,
            random: Random(load.seed),
        }
    }

    fn next(&mut self) -> Step {
        let place = match self.pattern {
            Pattern::Random => self.random.below(self.places),
            Pattern::Sequential => {
                let place = self.cursor;
                self.cursor = (place + 1) % self.places;
                place
            }
        };
        let is_read = match self.read_percent {
            0 => false,
            100 => true,
            percent => self.random.below(100) < percent,
        };
        Step { offset: place * self.block_size, is_read }
    }
}

/// Steele, Lea and Flood's SplitMix64: good enough for offsets and data, and costs a nanosecond.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// Distinct buffers of random bytes: never zero, and no better to compress than any other data.
fn data(len: usize, seed: u64) -> Vec<Buf> {
    let mut random = Random(!seed);
    let count = (DATA_BYTES / len).max(DATA_BUFS_MIN);
    let fill = |_| {
        let mut buf = BufMut::aligned(len);
        for word in buf.chunks_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
        }
        buf.freeze()
    };
    (0..count).map(fill).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(pattern: Pattern, read_percent: u8) -> Load {
        let amount = Amount::Requests(1);
        Load { pattern, read_percent, block_size: 8192, depth: 1, amount, seed: 7 }
    }

    fn steps(load: &Load, size: u64, n: usize) -> Vec<Step> {
        let mut plan = Plan::new(load, size);
        (0..n).map(|_| plan.next()).collect()
    }

    #[test]
    fn sequential_goes_round_and_leaves_out_the_odd_end() {
        let offsets: Vec<u64> =
            steps(&load(Pattern::Sequential, 0), 3 * 8192 + 4096, 5).iter().map(|s| s.offset).collect();
        assert_eq!(offsets, [0, 8192, 16384, 0, 8192]);
    }

    #[test]
    fn random_reaches_every_place_and_no_other() {
        let mut hits = [0u32; 16];
        for step in steps(&load(Pattern::Random, 100), 16 * 8192, 1600) {
            assert!(step.offset.is_multiple_of(8192) && step.is_read);
            hits[(step.offset / 8192) as usize] += 1;
        }
        assert!(hits.iter().all(|n| (50..200).contains(n)), "{hits:?}");
    }

    #[test]
    fn the_mix_is_kept_and_the_seed_decides() {
        let mixed = load(Pattern::Random, 70);
        let reads = steps(&mixed, 1 << 20, 1000).iter().filter(|s| s.is_read).count();
        assert!((650..750).contains(&reads), "{reads}");
        assert_eq!(steps(&mixed, 1 << 20, 50), steps(&mixed, 1 << 20, 50));
        let other = Load { seed: 8, ..mixed.clone() };
        assert_ne!(steps(&mixed, 1 << 20, 50), steps(&other, 1 << 20, 50));
    }

    #[test]
    fn data_is_distinct_and_not_zero() {
        let bufs = data(4096, 1);
        assert_eq!(bufs.len(), DATA_BYTES / 4096);
        assert_ne!(bufs[0][..], bufs[1][..]);
        let zeroes = bufs[0].iter().filter(|b| **b == 0).count();
        assert!(zeroes < 64, "{zeroes} of 4096 bytes are zero, 16 are expected");
        assert_eq!(data(4 << 20, 1).len(), DATA_BUFS_MIN);
    }

    #[test]
    fn latencies_of_both_kinds_add_up() {
        let mut result =
            LoadResult { reads: Completed::new(), writes: Completed::new(), elapsed: Duration::from_secs(2) };
        result.reads.record(Duration::from_micros(10));
        result.writes.record(Duration::from_micros(30));
        result.writes.record(Duration::from_secs(3600));
        assert_eq!(result.requests(), 3);
        assert_eq!(result.per_second(), 1.5);
        let both = result.latency_ns();
        assert_eq!(both.len(), 3);
        assert_eq!(both.value_at_quantile(0.5) / 1000, 30);
    }
}
