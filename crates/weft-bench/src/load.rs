//! The load generator: keeps a number of requests in flight on a volume, and notes how long each took.
//!
//! It knows nothing of processes, limits or reports. What it reads is checked against a [`Ledger`] if it has one, and
//! otherwise no more than the client does.

use crate::BenchError;
use crate::latency::Completed;
use crate::ledger::Ledger;
use crate::plan::{Pattern, Plan, Random, Step};
use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_client::{ClientError, Volume};
use weft_rt::{Buf, BufMut, Instant, now, sleep_until, spawn};
use weft_types::BLOCK_SIZE;

/// Bytes of distinct data that writes take turns with: more than one core's private caches hold, so that
/// checksums are computed over data that comes from where an application's would.
const DATA_BYTES: usize = 8 * 1024 * 1024;

/// The fewest distinct buffers, whatever their size.
const DATA_BUFS_MIN: usize = 4;

/// How often a worker that waits for its turn looks whether there will be one: soon enough for whoever asked for
/// the end.
const STOP_LOOKED_AT: Duration = Duration::from_millis(100);

/// Rates that a load can be held to: one request in a day at least, and no more than a core could ever count.
const PER_SECOND: RangeInclusive<f64> = 1e-5..=1e8;

/// The parts of a load's time that are told one by one.
const SECOND: Duration = Duration::from_secs(1);

/// A last part shorter than this says nothing about a rate, and is only in the whole.
const PART_MIN: Duration = Duration::from_millis(100);

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
    /// The bytes of the volume that it keeps to; none: all of them.
    pub range: Option<Range<u64>>,
    /// How many requests are begun per second at most; none: each as soon as another has completed. A request that
    /// was due while none could be begun counts its latency from then on, so that a stall shows in every request that it
    /// held up.
    pub per_second_max: Option<f64>,
}

impl Default for Load {
    /// One random read of 4 KiB.
    fn default() -> Load {
        Load {
            pattern: Pattern::Random,
            read_percent: 100,
            block_size: BLOCK_SIZE as u64,
            depth: 1,
            amount: Amount::Requests(1),
            seed: 0,
            range: None,
            per_second_max: None,
        }
    }
}

/// Requests that a fill keeps in flight: as the sequential workloads.
const FILL_DEPTH: u32 = 4;

/// Bytes of each request of a fill, where the range has so many.
const FILL_BYTES: u64 = 1 << 20;

impl Load {
    /// Writes all of a range once, from its beginning on.
    pub(crate) fn filling(range: Range<u64>, seed: u64) -> Load {
        let length = range.end - range.start;
        let block_size = FILL_BYTES.min(length);
        Load {
            pattern: Pattern::Sequential,
            read_percent: 0,
            block_size,
            depth: FILL_DEPTH,
            amount: Amount::Requests(length / block_size),
            seed,
            range: Some(range),
            ..Load::default()
        }
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
        let mut both = self.reads.clone();
        both.add(&self.writes);
        both.latency_ns
    }
}

/// Is told of a request that completed: whether it was a read, when it ended, and how long it took.
pub type OnRequest = Box<dyn Fn(bool, Instant, Duration)>;

/// Who follows a load while it runs, and may end it.
#[derive(Default)]
pub struct Watch {
    /// Is told of each second once it is over, also of those in which nothing completed: its number from 0 on, and what
    /// completed in it. What completes after the end of the load's time counts to its last second.
    pub on_second: Option<Box<dyn Fn(u64, LoadResult)>>,
    /// Is told of each request.
    pub on_request: Option<OnRequest>,
    /// Once it is true, no further request is begun.
    pub stop: Option<Arc<AtomicBool>>,
    /// Puts a stamp on what is written, and checks what is read.
    pub ledger: Option<Rc<RefCell<Ledger>>>,
    /// Is told when the next request is due that was not begun, by a load that is held to a rate.
    pub schedule: Option<Rc<Schedule>>,
}

/// Whether a load keeps the rate that it is held to.
#[derive(Debug, Default)]
pub struct Schedule {
    /// When the next request is due; none before the first.
    due: Cell<Option<Instant>>,
}

impl Schedule {
    /// How long ago the next request should have been begun: zero for a load that keeps its rate, or has none.
    pub fn behind(&self) -> Duration {
        let at = now();
        self.due.get().filter(|due| *due < at).map_or(Duration::ZERO, |due| at - due)
    }
}

/// A load that ran, maybe not to its end.
#[derive(Debug)]
pub struct Ran {
    /// What completed.
    pub result: LoadResult,
    /// The first request that failed; it ended the load.
    pub failure: Option<ClientError>,
}

impl Load {
    /// Runs the load on a volume until its amount is done and everything begun has completed.
    ///
    /// # Errors
    /// [`BenchError::Invalid`] if the load does not fit the volume; [`BenchError::Request`] with the first
    /// request that failed, after the others have ended.
    pub async fn run(&self, volume: &Volume) -> Result<LoadResult, BenchError> {
        let ran = self.run_watched(volume, Watch::default()).await?;
        match ran.failure {
            Some(error) => Err(error.into()),
            None => Ok(ran.result),
        }
    }

    /// Runs the load, and is watched meanwhile. It ends early when asked to, with the first request that fails, and with
    /// the first that reads what it should not.
    ///
    /// # Errors
    /// [`BenchError::Invalid`] if the load does not fit the volume.
    pub async fn run_watched(&self, volume: &Volume, watch: Watch) -> Result<Ran, BenchError> {
        let range = self.check(volume)?;
        let state = Rc::new(State::new(self, &range, watch));
        let workers: Vec<_> = (0..self.depth).map(|_| spawn(work(state.clone(), volume.clone()))).collect();
        let ticking = spawn(tick(state.clone()));
        for worker in workers {
            worker.await.expect("nobody aborts a worker");
        }
        ticking.abort();
        Ok(state.end())
    }

    /// Whether the load makes sense and fits the volume; the bytes of the volume that it keeps to.
    pub(crate) fn check(&self, volume: &Volume) -> Result<Range<u64>, BenchError> {
        let unit = u64::from(volume.logical_block());
        let size = volume.size_bytes();
        let range = self.range.clone().unwrap_or(0..size);
        let what = if self.block_size == 0 || !self.block_size.is_multiple_of(unit) {
            format!("a block size of {} bytes is no multiple of the logical block of {unit}", self.block_size)
        } else if !range.start.is_multiple_of(unit) {
            format!("an offset of {} bytes is no multiple of the logical block of {unit}", range.start)
        } else if range.end > size || range.start > range.end {
            format!("bytes {} to {} pass the volume's end at {size}", range.start, range.end)
        } else if self.block_size > range.end - range.start {
            let room = range.end - range.start;
            format!("a block size of {} bytes is more than the {room} bytes to go over", self.block_size)
        } else if self.depth == 0 {
            "a depth of 0 would do nothing".to_owned()
        } else if self.read_percent > 100 {
            format!("{} of a hundred requests cannot be reads", self.read_percent)
        } else if let Some(rate) = self.per_second_max.filter(|rate| !PER_SECOND.contains(rate)) {
            let (least, most) = (PER_SECOND.start(), PER_SECOND.end());
            format!("a rate of {rate} requests per second is not between {least} and {most}")
        } else {
            return Ok(range);
        };
        Err(BenchError::Invalid { what })
    }
}

/// What the workers of a load share.
struct State {
    plan: RefCell<Plan>,
    block_size: u64,
    data: Vec<Buf>,
    next_data: Cell<usize>,
    watch: Watch,
    pace: Option<Pace>,
    began: Instant,
    deadline: Option<Instant>,
    left: Cell<u64>,
    /// What completed in the seconds that are over, and in the present one.
    past: RefCell<(Completed, Completed)>,
    reads: RefCell<Completed>,
    writes: RefCell<Completed>,
    /// The number of the present second.
    second: Cell<u64>,
    last: Cell<Instant>,
    failure: RefCell<Option<ClientError>>,
}

/// When the next request is due.
struct Pace {
    interval: Duration,
    due: Cell<Instant>,
}

impl State {
    fn new(load: &Load, range: &Range<u64>, watch: Watch) -> State {
        let data = if load.read_percent < 100 { data(load.block_size as usize, load.seed) } else { vec![] };
        let began = now();
        let interval = load.per_second_max.map(|rate| Duration::from_secs_f64(1.0 / rate));
        State {
            plan: RefCell::new(Plan::new(load, range)),
            block_size: load.block_size,
            data,
            next_data: Cell::new(0),
            watch,
            pace: interval.map(|interval| Pace { interval, due: Cell::new(began) }),
            began,
            deadline: match load.amount {
                Amount::Time(duration) => Some(began + duration),
                Amount::Requests(_) => None,
            },
            left: Cell::new(match load.amount {
                Amount::Time(_) => u64::MAX,
                Amount::Requests(n) => n,
            }),
            past: RefCell::new((Completed::new(), Completed::new())),
            reads: RefCell::new(Completed::new()),
            writes: RefCell::new(Completed::new()),
            second: Cell::new(0),
            last: Cell::new(began),
            failure: RefCell::new(None),
        }
    }

    /// Whether no further request is begun from this instant on, however many are left.
    fn is_over(&self, at: Instant) -> bool {
        self.deadline.is_some_and(|deadline| at >= deadline)
            || self.failure.borrow().is_some()
            || self.watch.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
            || self.watch.ledger.as_ref().is_some_and(|ledger| ledger.borrow().is_violated())
    }

    /// When the next request of a worker that is free counts as begun; waits until then. None if there is to be no
    /// further one.
    async fn turn(&self, free: Instant) -> Option<Instant> {
        if self.left.get() == 0 || self.is_over(free) {
            return None;
        }
        self.left.set(self.left.get() - 1);
        let Some(pace) = &self.pace else { return Some(free) };
        let due = pace.due.get();
        pace.due.set(due + pace.interval);
        if let Some(schedule) = &self.watch.schedule {
            schedule.due.set(Some(pace.due.get()));
        }
        if due <= free {
            return Some(due);
        }
        loop {
            let at = now();
            if self.is_over(at) || self.deadline.is_some_and(|deadline| due >= deadline) {
                return None;
            }
            if at >= due {
                return Some(at);
            }
            sleep_until(due.min(at + STOP_LOOKED_AT)).await;
        }
    }

    fn next_data(&self) -> Buf {
        let i = self.next_data.get();
        self.next_data.set((i + 1) % self.data.len());
        self.data[i].clone()
    }

    fn record(&self, step: Step, latency: Duration, ended: Instant) {
        self.roll(ended);
        let side = if step.is_read { &self.reads } else { &self.writes };
        side.borrow_mut().record(latency);
        if let Some(tell) = &self.watch.on_request {
            tell(step.is_read, ended, latency);
        }
        self.last.set(self.last.get().max(ended));
    }

    /// Tells of the seconds that were over at this instant.
    fn roll(&self, at: Instant) {
        if self.watch.on_second.is_none() {
            return;
        }
        loop {
            let ends = self.second_began() + SECOND;
            // What is still in flight when the time is over counts to the last second.
            if at < ends || self.deadline.is_some_and(|deadline| ends >= deadline) {
                return;
            }
            self.tell_second(SECOND);
        }
    }

    fn second_began(&self) -> Instant {
        self.began + Duration::from_secs(self.second.get())
    }

    /// Ends the present second, which was so long.
    fn tell_second(&self, elapsed: Duration) {
        let result = LoadResult {
            reads: self.reads.replace(Completed::new()),
            writes: self.writes.replace(Completed::new()),
            elapsed,
        };
        let mut past = self.past.borrow_mut();
        past.0.add(&result.reads);
        past.1.add(&result.writes);
        if let Some(tell) = self.watch.on_second.as_ref().filter(|_| elapsed >= PART_MIN) {
            tell(self.second.get(), result);
        }
        self.second.set(self.second.get() + 1);
    }

    /// Puts everything together once all workers have ended.
    fn end(&self) -> Ran {
        self.tell_second(self.last.get() - self.second_began());
        let (reads, writes) = self.past.replace((Completed::new(), Completed::new()));
        let result = LoadResult { reads, writes, elapsed: self.last.get() - self.began };
        Ran { result, failure: self.failure.take() }
    }
}

/// Keeps one request in flight until there is to be no further one.
async fn work(state: Rc<State>, volume: Volume) {
    let mut free = now();
    while let Some(began) = state.turn(free).await {
        let step = state.plan.borrow_mut().next();
        free = match &state.watch.ledger {
            // Boxed so that it does not swell the future of a bare request.
            Some(ledger) => Box::pin(checked(&state, &volume, ledger, step, began)).await,
            None => bare(&state, &volume, step, began).await,
        };
    }
}

/// Carries out one request; returns when it ended.
async fn bare(state: &State, volume: &Volume, step: Step, began: Instant) -> Instant {
    let done = if step.is_read {
        volume.read(step.offset, state.block_size).await.map(drop)
    } else {
        volume.write(step.offset, vec![state.next_data()]).await
    };
    let ended = now();
    finish(state, step, began, done.map(|()| ended));
    ended
}

/// Carries out one request whose data is stamped or checked; returns when the worker is free again. The time that
/// stamps and checks take is not in the latency.
async fn checked(
    state: &State,
    volume: &Volume,
    ledger: &RefCell<Ledger>,
    step: Step,
    mut began: Instant,
) -> Instant {
    let place = ledger.borrow().place(step.offset);
    let done = if step.is_read {
        let seen = ledger.borrow().begin_read(place);
        let read = volume.read(step.offset, state.block_size).await;
        let ended = now();
        read.map(|bufs| {
            ledger.borrow_mut().end_read(place, &seen, &bufs);
            ended
        })
    } else {
        let (generation, data) = ledger.borrow_mut().begin_write(place, &state.next_data());
        if state.pace.is_none() {
            began = now();
        }
        let written = volume.write(step.offset, vec![data]).await;
        let ended = now();
        written.map(|()| {
            ledger.borrow_mut().end_write(place, generation);
            ended
        })
    };
    finish(state, step, began, done);
    now()
}

/// Notes how a request ended.
fn finish(state: &State, step: Step, began: Instant, done: Result<Instant, ClientError>) {
    match done {
        Ok(ended) => state.record(step, ended - began, ended),
        Err(error) => {
            state.failure.borrow_mut().get_or_insert(error);
        }
    }
}

/// Ends seconds in which nothing completes.
async fn tick(state: Rc<State>) {
    while state.watch.on_second.is_some() {
        sleep_until(state.second_began() + SECOND).await;
        state.roll(now());
        if state.deadline.is_some_and(|deadline| state.second_began() + SECOND >= deadline) {
            return;
        }
    }
}

/// Distinct buffers of random bytes: never zero, and no better to compress than any other data.
pub(crate) fn data(len: usize, seed: u64) -> Vec<Buf> {
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
