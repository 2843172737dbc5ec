//! `weft bench run`: a load on a volume of any fabric, from the first attach to the report.
//!
//! It owns the threads of the load and what is said of them while they run. It starts no fabric.

use crate::BenchError;
use crate::cores::own_cores;
use crate::job::{Job, JobResult, Seat, Signals, Word, shared_seats};
use crate::latency::Completed;
use crate::ledger::Verified;
use crate::load::{Amount, Load, LoadResult};
use crate::machine::Machine;
use crate::outcome::{LoadFacts, RunReport, VerifyFacts, latency_text, rate_text};
use crate::process::cpu_seconds;
use crate::timeline::{Tick, Timeline};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;
use weft_api::VolumeInfo;
use weft_client::AttachMode;
use weft_rt::{Addr, Spin, random_u64, signal, sleep, spawn, wall_clock_us};
use weft_types::BLOCK_SIZE;

/// How often it is looked what the jobs tell: soon enough for a line per second, and costs next to nothing.
const JOBS_LOOKED_AT: Duration = Duration::from_millis(20);

/// The largest request: far more than what is worth measuring, as the client cuts requests into 1 MiB.
const REQUEST_BYTES_MAX: u64 = 64 << 20;

/// Bytes in flight of all jobs together: what reads and writes keep in memory at the same time.
const IN_FLIGHT_BYTES_MAX: u64 = 4 << 30;

/// Places that can be checked, 4 bytes of memory each: 8 TiB at 4 KiB.
const PLACES_CHECKED_MAX: u64 = 1 << 31;

/// What to run, on what.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Where the fabric's managers may answer.
    pub managers: Vec<Addr>,
    /// The volume.
    pub volume: VolumeInfo,
    /// What each job does, except that the bytes and the rate are divided among the jobs, and that its amount is
    /// `runtime`.
    pub load: Load,
    /// How long it is measured.
    pub runtime: Duration,
    /// How long the load goes on before that.
    pub warm_up: Duration,
    /// Threads, each with an attach of its own, at least 1.
    pub jobs: u32,
    /// They share one attach instead, of which each has a lane.
    pub share_attach: bool,
    /// How threads that have nothing to do wait.
    pub spin: Spin,
    /// Attach so that others may write to the volume as well; several jobs that write do so in any case.
    pub is_shared: bool,
    /// Put a stamp on what is written, and check what is read.
    pub verify: bool,
    /// Write also where the volume holds data.
    pub overwrite: bool,
    /// When to begin, in milliseconds since 1970: so that several such processes begin together. None, or in the past: as
    /// soon as all jobs are ready.
    pub begin_at_ms: Option<u64>,
    /// Tell all latencies, so that those of several such processes can be taken together.
    pub tells_latencies: bool,
}

impl RunOptions {
    fn mode(&self) -> AttachMode {
        match self.load.read_percent {
            100 => AttachMode::ReadOnly,
            _ if self.is_shared || (self.jobs > 1 && !self.share_attach) => AttachMode::Shared,
            _ => AttachMode::Exclusive,
        }
    }

    fn range(&self) -> Range<u64> {
        self.load.range.clone().unwrap_or(0..self.volume.size_bytes)
    }

    /// The part of the volume of each job.
    ///
    /// # Errors
    /// [`BenchError::Invalid`] if the options make no sense on this volume.
    fn parts(&self) -> Result<Vec<Range<u64>>, BenchError> {
        let (range, block) = (self.range(), self.load.block_size);
        let (jobs, depth) = (u64::from(self.jobs), u64::from(self.load.depth));
        let has_sectors = self.mode() == AttachMode::Exclusive && !(self.share_attach && self.jobs > 1);
        let unit = if has_sectors { 512 } else { BLOCK_SIZE as u64 };
        let is_whole = |bytes: u64| bytes.is_multiple_of(BLOCK_SIZE as u64);
        let what = if self.runtime.is_zero() {
            "a run of no time measures nothing".to_owned()
        } else if let Some(what) = refusal(block, depth, jobs, unit) {
            what
        } else if !range.start.is_multiple_of(unit) {
            format!("--offset {} is not a multiple of {unit}, this attach's block", range.start)
        } else if self.verify && !(is_whole(block) && is_whole(range.start)) {
            format!(
                "--verify checks whole blocks: --bs {block} and --offset {} must be multiples of 4KiB",
                range.start
            )
        } else if range.end > self.volume.size_bytes || range.start >= range.end {
            let (name, size) = (&self.volume.name, self.volume.size_bytes);
            format!("bytes {} to {} are not within volume {name} of {size}", range.start, range.end)
        } else if (range.end - range.start) / block < jobs {
            format!("{} bytes do not hold a request of {block} for each job", range.end - range.start)
        } else if self.verify && (range.end - range.start) / block > PLACES_CHECKED_MAX {
            format!(
                "--verify keeps account of {PLACES_CHECKED_MAX} requests' places at most: name a part with --size"
            )
        } else {
            let places = (range.end - range.start) / block;
            let at = |job: u64| range.start + places * job / jobs * block;
            return Ok((0..jobs).map(|job| at(job)..at(job + 1)).collect());
        };
        Err(BenchError::Invalid { what })
    }

    fn facts(&self) -> LoadFacts {
        LoadFacts {
            read_percent: self.load.read_percent,
            pattern: self.load.pattern,
            block_bytes: self.load.block_size,
            depth: self.load.depth,
            jobs: self.jobs,
            offset_bytes: self.range().start,
            length_bytes: self.range().end - self.range().start,
            runtime_s: self.runtime.as_secs_f64(),
            warm_up_s: self.warm_up.as_secs_f64(),
            per_second_max: self.load.per_second_max,
            seed: self.load.seed,
            attached: self.mode(),
            verify: self.verify,
        }
    }
}

/// What is wrong with so many jobs, each with so many requests of so many bytes in flight, where blocks have `unit` bytes.
pub(crate) fn refusal(block: u64, depth: u64, jobs: u64, unit: u64) -> Option<String> {
    let in_flight = block.saturating_mul(depth).saturating_mul(jobs);
    if jobs == 0 || depth == 0 {
        Some("a load needs at least one job with one request in flight".to_owned())
    } else if block == 0 || !block.is_multiple_of(unit) {
        Some(format!("--bs {block} is not a multiple of {unit}, this attach's block"))
    } else if block > REQUEST_BYTES_MAX {
        Some(format!("--bs {block} is more than {REQUEST_BYTES_MAX} bytes"))
    } else if in_flight > IN_FLIGHT_BYTES_MAX {
        Some(format!("{in_flight} bytes in flight are more than {IN_FLIGHT_BYTES_MAX}"))
    } else {
        None
    }
}

/// Puts a load on a volume until its time is over, a request fails, a check fails, or the process is asked to end; then
/// waits for the requests in flight. `tell` gets a line about what is being done: each second one, once it runs.
///
/// A request or check that fails after the load has begun is in the report ([`RunReport::failure`]), beside what ran
/// until then.
///
/// # Errors
/// If the load cannot begin; [`BenchError::HoldsData`] if it would destroy something.
pub async fn run(options: &RunOptions, tell: &mut dyn FnMut(&str)) -> Result<RunReport, BenchError> {
    let parts = options.parts()?;
    // Before any thread is started, which then inherits that the signals are held back.
    let asked_to_end = signal::terminated();
    let is_interrupted = Rc::new(Cell::new(false));
    let flag = is_interrupted.clone();
    let watching = spawn(async move {
        asked_to_end.await;
        flag.set(true);
    });
    let cores = own_cores()?;
    let machine = Machine::describe(cores.len());
    let mut crew = Crew::start(options, parts)?;
    let followed = crew.follow(options, &is_interrupted, tell).await;
    watching.abort();
    crew.end().await;
    followed?;
    Ok(crew.report(options, machine, is_interrupted.get()))
}

/// The jobs of a run.
struct Crew {
    signals: Signals,
    words: Receiver<(usize, Word)>,
    threads: Vec<thread::JoinHandle<()>>,
    timeline: Timeline,
    results: Vec<JobResult>,
    /// Jobs that are ready, that have begun to measure, and that have measured.
    ready: u32,
    begun: u32,
    measured: u32,
    over: u32,
    /// Whether they were told to begin.
    is_going: bool,
    /// CPU seconds of this process when the first job began, and when the last one had measured.
    cpu: (f64, f64),
}

impl Crew {
    fn start(options: &RunOptions, parts: Vec<Range<u64>>) -> Result<Crew, BenchError> {
        let (sender, words) = channel();
        let mut crew = Crew {
            signals: Signals::default(),
            words,
            threads: Vec::new(),
            timeline: Timeline::new(parts.len(), options.load.block_size),
            results: Vec::new(),
            ready: 0,
            begun: 0,
            measured: 0,
            over: 0,
            is_going: false,
            cpu: (0.0, 0.0),
        };
        let verify = options.verify.then(random_u64);
        let jobs = f64::from(options.jobs);
        let mut seats = match options.share_attach {
            true => shared_seats(options.jobs),
            false => parts.iter().map(|_| Seat::Alone).collect(),
        };
        // The first job has the first part.
        seats.reverse();
        for (number, part) in parts.into_iter().enumerate() {
            let load = Load {
                amount: Amount::Time(options.runtime),
                seed: options.load.seed.wrapping_add(number as u64),
                range: Some(part),
                per_second_max: options.load.per_second_max.map(|rate| rate / jobs),
                ..options.load.clone()
            };
            let job = Job {
                number,
                managers: options.managers.clone(),
                volume: options.volume.name.clone(),
                mode: options.mode(),
                load,
                warm_up: options.warm_up,
                verify,
                overwrite: options.overwrite,
                spin: options.spin,
                signals: crew.signals.clone(),
                seat: seats.pop().expect("there is one for each job"),
            };
            crew.threads.push(job.start(sender.clone())?);
        }
        Ok(crew)
    }

    /// Listens to the jobs until all are over.
    async fn follow(
        &mut self,
        options: &RunOptions,
        is_interrupted: &Cell<bool>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), BenchError> {
        let mut failure = None;
        tell(match options.load.read_percent {
            100 => "attaching the volume",
            _ if options.overwrite => "attaching the volume",
            _ => "attaching the volume, and looking whether it holds data",
        });
        while self.over < options.jobs {
            // Looked at before the words: of a thread that has ended, all words are there.
            let is_gone = self.threads.iter().all(thread::JoinHandle::is_finished);
            while let Ok((_, word)) = self.words.try_recv() {
                if let Err(error) = self.hear(word, options, tell) {
                    self.signals.stop.store(true, Ordering::Relaxed);
                    failure = Some(match failure {
                        // That others were told to stop says nothing about why.
                        None | Some(BenchError::Interrupted) => error,
                        Some(first) => first,
                    });
                }
            }
            if is_gone && self.over < options.jobs {
                break;
            }
            if !self.is_going && self.ready == options.jobs && is_time(options) {
                if !options.warm_up.is_zero() {
                    tell("warming up");
                }
                self.signals.go.store(true, Ordering::Release);
                self.is_going = true;
            }
            if is_interrupted.get() && !self.signals.stop.swap(true, Ordering::Relaxed) {
                tell("ending: waiting for the requests in flight; Ctrl-C again gives them up");
            }
            sleep(JOBS_LOOKED_AT).await;
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn hear(
        &mut self,
        word: Word,
        options: &RunOptions,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), BenchError> {
        let me = std::process::id();
        match word {
            Word::Ready => {
                self.ready += 1;
                if self.ready == options.jobs && !is_time(options) {
                    tell("ready, and waiting for the time to begin");
                }
            }
            Word::Begun => {
                self.begun += 1;
                if self.begun == 1 {
                    self.cpu = (cpu_seconds(me)?, 0.0);
                }
            }
            Word::Second(number, load) => {
                if let Some(tick) = self.timeline.add(number, *load) {
                    tell(&live(tick, options.runtime));
                }
            }
            Word::Measured => {
                self.measured += 1;
                if self.measured == options.jobs {
                    self.cpu.1 = cpu_seconds(me)?;
                    if options.verify && options.load.read_percent < 100 {
                        tell("reading back what was written");
                    }
                }
            }
            Word::Over(result) => {
                self.over += 1;
                self.results.push((*result)?);
            }
        }
        Ok(())
    }

    /// Waits for the threads; a panic in one goes on here.
    async fn end(&mut self) {
        self.signals.stop.store(true, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            while !thread.is_finished() {
                sleep(JOBS_LOOKED_AT).await;
            }
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }

    /// Puts together what the jobs did.
    fn report(self, options: &RunOptions, machine: Machine, is_interrupted: bool) -> RunReport {
        let mut whole =
            LoadResult { reads: Completed::new(), writes: Completed::new(), elapsed: Duration::ZERO };
        let mut verified = Verified::default();
        let is_read_back = self.results.iter().all(|job| job.is_read_back);
        let mut failure = None;
        for job in self.results {
            whole.reads.add(&job.load.reads);
            whole.writes.add(&job.load.writes);
            whole.elapsed = whole.elapsed.max(job.load.elapsed);
            verified.add(job.verified.unwrap_or_default());
            failure = failure.or(job.failure);
        }
        let verify = options.verify.then_some(VerifyFacts { verified, is_read_back });
        let cpu_s = (self.cpu.1 - self.cpu.0).max(0.0);
        let seconds = self.timeline.finish();
        let report = RunReport::new(options.volume.clone(), options.facts(), machine, whole, cpu_s, seconds);
        let latencies_ns = options.tells_latencies.then(|| report.all_latencies());
        RunReport { interrupted: is_interrupted, verify, failure, latencies_ns, ..report }
    }
}

/// Whether the time to begin has come.
fn is_time(options: &RunOptions) -> bool {
    options.begin_at_ms.is_none_or(|at| wall_clock_us() / 1000 >= at)
}

/// A second as the line that a person watches.
fn live(tick: &Tick, runtime: Duration) -> String {
    let latency = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), latency_text);
    format!(
        "{:.0} s of {:.0} s  {}/s  {} MB/s  p50 {}  p99 {}  max {}",
        tick.to_s.floor(),
        runtime.as_secs_f64().ceil(),
        rate_text(tick.iops),
        rate_text(tick.mb_per_s),
        latency(tick.p50_us),
        latency(tick.p99_us),
        latency(tick.max_us)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::volume;

    fn options() -> RunOptions {
        RunOptions {
            managers: vec![],
            volume: volume(),
            load: Load { depth: 8, ..Load::default() },
            runtime: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            jobs: 1,
            share_attach: false,
            spin: Spin::Adaptive,
            is_shared: false,
            verify: false,
            overwrite: false,
            begin_at_ms: None,
            tells_latencies: false,
        }
    }

    #[test]
    fn parts_are_disjoint_and_cover_the_range() {
        for (jobs, range) in [(1, 0..64 << 20), (3, 4096..1 << 20), (7, 8192..8192 + 7 * 4096)] {
            let load = Load { range: Some(range.clone()), ..options().load };
            let parts = RunOptions { jobs, load, ..options() }.parts().expect("they fit");
            assert_eq!((parts.len(), parts[0].start), (jobs as usize, range.start));
            assert_eq!(parts.last().map(|part| part.end), Some(range.end));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(parts.iter().all(|part| part.start.is_multiple_of(4096) && part.end > part.start));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = options();
        assert!(good.parts().is_ok());
        let load = |load: Load| RunOptions { load, ..good.clone() };
        let (size, of) = (good.volume.size_bytes, || good.load.clone());
        for (bad, word) in [
            (RunOptions { runtime: Duration::ZERO, ..good.clone() }, "no time"),
            (RunOptions { jobs: 0, ..good.clone() }, "one job"),
            (load(Load { depth: 0, ..of() }), "one request"),
            (load(Load { block_size: 512, ..of() }), "not a multiple of 4096"),
            (load(Load { block_size: 100, read_percent: 0, ..of() }), "not a multiple of 512"),
            (load(Load { block_size: 128 << 20, ..of() }), "more than"),
            (load(Load { block_size: 64 << 20, depth: 1000, ..of() }), "in flight"),
            (load(Load { range: Some(0..size + 4096), ..of() }), "not within volume data"),
            (load(Load { range: Some(4096..4096), ..of() }), "not within"),
            (RunOptions { jobs: 2, ..load(Load { range: Some(0..4096), ..of() }) }, "for each job"),
            (
                RunOptions { verify: true, ..load(Load { block_size: 512, read_percent: 50, ..of() }) },
                "multiples of 4KiB",
            ),
            (
                RunOptions {
                    verify: true,
                    volume: VolumeInfo { size_bytes: 16 << 40, ..good.volume.clone() },
                    ..good.clone()
                },
                "name a part",
            ),
        ] {
            let error = bad.parts().expect_err(word).to_string();
            assert!(error.contains(word), "'{word}' is not in '{error}'");
        }
    }

    #[test]
    fn who_writes_alone_has_the_volume_alone() {
        let of = |read_percent, jobs, is_shared| {
            RunOptions { jobs, is_shared, load: Load { read_percent, ..options().load }, ..options() }.mode()
        };
        assert_eq!(of(100, 4, true), AttachMode::ReadOnly);
        assert_eq!(of(70, 1, false), AttachMode::Exclusive);
        assert_eq!((of(0, 1, true), of(0, 2, false)), (AttachMode::Shared, AttachMode::Shared));
    }
}
