//! A job of `weft bench run`: a thread with connections of its own, and an attach or a lane of one, which
//! puts a load on its part of the volume and tells what it does.

use crate::BenchError;
use crate::latency::Completed;
use crate::ledger::{Before, Ledger, Verified};
use crate::load::{Amount, Load, LoadResult, Watch};
use crate::outcome::Failure;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::Duration;
use weft_client::{AttachMode, AttachOptions, ClientError, Fabric, Lane, Volume};
use weft_rt::{Addr, Spin, set_spin, sleep, spawn};

/// How often a job that is ready looks whether all are.
const READY_LOOKED_AT: Duration = Duration::from_millis(2);

/// Bytes of one question whether there is data: as many as a target answers for at once.
const STATUS_BYTES: u64 = 1 << 20;

/// Questions in flight.
const STATUS_DEPTH: usize = 16;

/// What distinguishes the offsets of the warm-up from those that are measured. The value means nothing.
const WARM_UP_SEED: u64 = 0x7761_726d;

/// What the jobs of a run hear from whoever runs them.
#[derive(Clone, Default)]
pub(crate) struct Signals {
    /// All are ready: begin.
    pub(crate) go: Arc<AtomicBool>,
    /// Begin nothing more.
    pub(crate) stop: Arc<AtomicBool>,
}

/// What a job tells.
pub(crate) enum Word {
    /// It is attached and may begin.
    Ready,
    /// It begins to measure.
    Begun,
    /// What it did in a second.
    Second(u64, Box<LoadResult>),
    /// It has measured; it may now read back what it wrote.
    Measured,
    /// It has ended.
    Over(Box<Result<JobResult, BenchError>>),
}

/// What a job did.
pub(crate) struct JobResult {
    pub(crate) load: LoadResult,
    pub(crate) failure: Option<Failure>,
    pub(crate) verified: Option<Verified>,
    /// Whether all that it wrote was read back at the end.
    pub(crate) is_read_back: bool,
}

/// How a job comes by its volume.
pub(crate) enum Seat {
    /// By an attach of its own.
    Alone,
    /// By an attach with a lane for each of these jobs too. It ends when none of them has theirs any more.
    First(Vec<Sender<Lane>>, Receiver<()>),
    /// As a lane of that attach. The sender is kept as long as the lane is used.
    Lane(Receiver<Lane>, Sender<()>),
}

/// The seats of so many jobs that share an attach.
pub(crate) fn shared_seats(jobs: u32) -> Vec<Seat> {
    let (uses, left) = channel();
    let (posts, lanes): (Vec<_>, Vec<_>) = (1..jobs).map(|_| channel()).unzip();
    let lanes = lanes.into_iter().map(|lane| Seat::Lane(lane, uses.clone()));
    std::iter::once(Seat::First(posts, left)).chain(lanes).collect()
}

/// What a job is to do.
pub(crate) struct Job {
    pub(crate) number: usize,
    pub(crate) managers: Vec<Addr>,
    pub(crate) volume: String,
    pub(crate) mode: AttachMode,
    /// On its own part of the volume.
    pub(crate) load: Load,
    pub(crate) warm_up: Duration,
    /// If what is written and read shall be checked: the run's number.
    pub(crate) verify: Option<u64>,
    /// Whether data that is there may be destroyed.
    pub(crate) overwrite: bool,
    /// How its thread waits for something to do.
    pub(crate) spin: Spin,
    pub(crate) signals: Signals,
    pub(crate) seat: Seat,
}

impl Job {
    /// Starts it. Its last word is [`Word::Over`], unless it panics.
    pub(crate) fn start(self, words: Sender<(usize, Word)>) -> Result<thread::JoinHandle<()>, BenchError> {
        let number = self.number;
        thread::Builder::new()
            .name(format!("bench-job-{number}"))
            .spawn(move || {
                let teller = words.clone();
                let tell = move |word| {
                    // Nobody listens any more once the run has failed; then nobody misses it either.
                    let _ = teller.send((number, word));
                };
                let ran = weft_rt::block_on(async move { self.run(tell).await });
                let ran = ran.map_err(BenchError::from).and_then(|result| result);
                let _ = words.send((number, Word::Over(Box::new(ran))));
            })
            .map_err(|source| BenchError::System { action: "start a thread", source })
    }

    async fn run(mut self, tell: impl Fn(Word) + Clone + 'static) -> Result<JobResult, BenchError> {
        set_spin(self.spin);
        match std::mem::replace(&mut self.seat, Seat::Alone) {
            Seat::Alone => {
                let volume = self.attach(1).await?;
                let done = self.run_on(&volume, tell).await;
                volume.detach().await;
                done
            }
            Seat::First(others, left) => {
                let volume = self.attach(1 + others.len()).await?;
                let done = match hand_out(&volume, others) {
                    Ok(()) => self.run_on(&volume, tell).await,
                    Err(error) => Err(error),
                };
                if done.is_err() {
                    // The other lanes wait for a start that does not come, and this attach waits for them.
                    self.signals.stop.store(true, Ordering::Relaxed);
                }
                while left.try_recv() != Err(TryRecvError::Disconnected) {
                    sleep(READY_LOOKED_AT).await;
                }
                volume.detach().await;
                done
            }
            Seat::Lane(lane, used) => {
                // Nothing else runs on this thread. If there is no attach, its job says why.
                let volume = lane.recv().map_err(|_| BenchError::Interrupted)?.open()?;
                let done = self.run_on(&volume, tell).await;
                volume.detach().await;
                drop(used);
                done
            }
        }
    }

    async fn attach(&self, lanes: usize) -> Result<Volume, BenchError> {
        let fabric = Fabric::connect(&self.managers, &format!("weft bench[{}]", std::process::id())).await?;
        let options =
            AttachOptions { mode: self.mode, lanes, whole_blocks: lanes > 1, ..AttachOptions::default() };
        Ok(fabric.attach(&self.volume, options).await?)
    }

    async fn run_on(
        &self,
        volume: &Volume,
        tell: impl Fn(Word) + Clone + 'static,
    ) -> Result<JobResult, BenchError> {
        let range = self.load.check(volume)?;
        let writes = self.load.read_percent < 100;
        let mut before = Before::Anything;
        if writes && !self.overwrite {
            check_empty(volume, &range, &self.signals.stop).await?;
            before = Before::Zeroes;
        }
        let ledger = self
            .verify
            .map(|run| Rc::new(RefCell::new(Ledger::new(run, range.clone(), self.load.block_size, before))));
        tell(Word::Ready);
        while !self.signals.go.load(Ordering::Acquire) {
            if self.is_stopped() {
                return Err(BenchError::Interrupted);
            }
            sleep(READY_LOOKED_AT).await;
        }
        let watch =
            || Watch { stop: Some(self.signals.stop.clone()), ledger: ledger.clone(), ..Watch::default() };
        let mut failure = None;
        if !self.warm_up.is_zero() {
            let warm_up = Load {
                amount: Amount::Time(self.warm_up),
                seed: self.load.seed ^ WARM_UP_SEED,
                ..self.load.clone()
            };
            failure = warm_up.run_watched(volume, watch()).await?.failure;
        }
        tell(Word::Begun);
        let mut result = None;
        if failure.is_none() {
            let second = tell.clone();
            let on_second: Box<dyn Fn(u64, LoadResult)> =
                Box::new(move |number, load| second(Word::Second(number, Box::new(load))));
            let ran = self.load.run_watched(volume, Watch { on_second: Some(on_second), ..watch() }).await?;
            (result, failure) = (Some(ran.result), ran.failure);
        }
        let is_violated = || ledger.as_ref().is_some_and(|ledger| ledger.borrow().is_violated());
        if failure.is_some() || is_violated() {
            // The others need not go on: this run has failed.
            self.signals.stop.store(true, Ordering::Relaxed);
        }
        tell(Word::Measured);
        let mut is_read_back = false;
        if let Some(ledger) = ledger.as_ref().filter(|_| writes && !self.is_stopped()) {
            failure = read_back(volume, ledger, self.load.depth, &self.signals.stop).await;
            is_read_back = failure.is_none() && !self.is_stopped() && !is_violated();
        }
        Ok(JobResult {
            load: result.unwrap_or_else(nothing),
            failure: failure.map(|error| Failure::new(&BenchError::from(error))),
            verified: ledger.as_ref().map(|ledger| ledger.borrow().verified().clone()),
            is_read_back,
        })
    }

    fn is_stopped(&self) -> bool {
        self.signals.stop.load(Ordering::Relaxed)
    }
}

/// Gives each of these jobs a lane of the attach.
///
/// # Errors
/// If it has fewer.
fn hand_out(volume: &Volume, others: Vec<Sender<Lane>>) -> Result<(), BenchError> {
    let lanes = volume.take_lanes();
    if lanes.len() < others.len() {
        return Err(BenchError::FewerLanes { asked: 1 + others.len(), given: 1 + lanes.len() });
    }
    for (lane, job) in lanes.into_iter().zip(others) {
        // One that has ended needs none.
        let _ = job.send(lane);
    }
    Ok(())
}

/// A load that did nothing.
fn nothing() -> LoadResult {
    LoadResult { reads: Completed::new(), writes: Completed::new(), elapsed: Duration::ZERO }
}

/// Fails if there is data in these bytes of a volume.
pub(crate) async fn check_empty(
    volume: &Volume,
    range: &Range<u64>,
    stop: &Arc<AtomicBool>,
) -> Result<(), BenchError> {
    let next = Rc::new(Cell::new(range.start));
    let found: Rc<Cell<Option<u64>>> = Rc::default();
    let ask = || {
        let (volume, end, stop) = (volume.clone(), range.end, stop.clone());
        let (next, found) = (next.clone(), found.clone());
        spawn(async move {
            while next.get() < end && found.get().is_none() && !stop.load(Ordering::Relaxed) {
                let offset = next.get();
                let length = (end - offset).min(STATUS_BYTES);
                next.set(offset + length);
                let extents = volume.block_status(offset, length).await?;
                if extents.iter().any(|extent| !extent.is_zero) {
                    found.set(Some(found.get().map_or(offset, |other| other.min(offset))));
                }
            }
            Ok::<(), ClientError>(())
        })
    };
    let asked: Vec<_> = (0..STATUS_DEPTH).map(|_| ask()).collect();
    for task in asked {
        task.await.expect("nobody aborts a question")?;
    }
    match found.get() {
        Some(offset) => Err(BenchError::HoldsData { volume: volume.name().to_owned(), offset }),
        None => Ok(()),
    }
}

/// Reads and checks everything that was written; the first request that failed.
async fn read_back(
    volume: &Volume,
    ledger: &Rc<RefCell<Ledger>>,
    depth: u32,
    stop: &Arc<AtomicBool>,
) -> Option<ClientError> {
    let places: Rc<Vec<usize>> = Rc::new(ledger.borrow().written().collect());
    let next = Rc::new(Cell::new(0));
    let read = || {
        let (volume, ledger, stop) = (volume.clone(), ledger.clone(), stop.clone());
        let (places, next) = (places.clone(), next.clone());
        spawn(async move {
            while let Some(place) = places.get(next.get()).copied() {
                next.set(next.get() + 1);
                if stop.load(Ordering::Relaxed) || ledger.borrow().is_violated() {
                    break;
                }
                let (seen, offset, length) = {
                    let ledger = ledger.borrow();
                    (ledger.begin_read(place), ledger.offset(place), ledger.block_size())
                };
                let bufs = volume.read(offset, length).await?;
                ledger.borrow_mut().end_read(place, &seen, &bufs);
            }
            Ok::<(), ClientError>(())
        })
    };
    let readers: Vec<_> = (0..depth).map(|_| read()).collect();
    let mut failure = None;
    for reader in readers {
        if let Err(error) = reader.await.expect("nobody aborts a reader") {
            failure.get_or_insert(error);
        }
    }
    failure
}
