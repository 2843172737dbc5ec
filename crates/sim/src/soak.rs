//! Many fresh seeds on all cores, with a ledger: what was run, what failed, what was covered.

use crate::ledger::Ledger;
use crate::minimise::{minimise, schedule};
use crate::plan::Plan;
use crate::run::{Failure, run_plan};
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Seeds after which every path must have been taken once: many times what the rarest one has needed.
pub const PATHS_AFTER: u64 = 5_000;

/// How often the ledger is written and progress told.
const TOLD_EVERY: Duration = Duration::from_secs(20);

/// Failures after which a soak ends early: they are more likely one bug than many.
const FAILURES_ENOUGH: u64 = 20;

/// How a soak is run.
#[derive(Clone, Debug)]
pub struct Soak {
    /// For how long.
    pub lasts: Duration,
    /// Seeds after which it ends in any case.
    pub seeds_max: u64,
    /// Threads.
    pub jobs: usize,
    /// The ledger's file.
    pub path: PathBuf,
    /// The commit that is run.
    pub commit: String,
}

/// A seed of which nobody can tell in advance what it will do: the clock's microseconds.
pub fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(0)
}

impl Soak {
    /// Runs it, and prints what comes of it. Whether all is well: no seed of the ledger failed, and, once it has enough
    /// seeds, no path was never taken.
    ///
    /// # Errors
    /// If the ledger cannot be read or written.
    pub fn run(&self) -> io::Result<bool> {
        let ledger = Ledger::open(&self.path, &self.commit, fresh_seed())?;
        println!(
            "commit {}: {} seeds run so far, the next is {}; ledger {}",
            self.commit,
            ledger.seeds,
            ledger.next_seed,
            self.path.display()
        );
        let (began, seeds_before) = (Instant::now(), ledger.seeds);
        let next = AtomicU64::new(ledger.next_seed);
        let end = ledger.next_seed.saturating_add(self.seeds_max);
        let ledger = Mutex::new(ledger);
        let told = Mutex::new(Instant::now());
        // What panics in a run is told as its failure, in the end and once.
        std::panic::set_hook(Box::new(|_| {}));
        thread::scope(|scope| {
            for _ in 0..self.jobs {
                scope.spawn(|| self.run_seeds(&next, end, began, &ledger, &told));
            }
        });
        drop(std::panic::take_hook());
        let mut ledger = ledger.into_inner().expect("no thread panics while it holds it");
        let ran = ledger.seeds - seeds_before;
        let passed = told.into_inner().expect("no thread panics while it holds it").elapsed();
        ledger.note_time(passed);
        ledger.save(&self.path)?;
        println!("{}", ledger.coverage.table());
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        println!(
            "\n{ran} seeds in {minutes:.1} min: {:.0} per minute; {} of this commit, {:.1} h of virtual time, {} failed",
            ran as f64 / minutes,
            ledger.seeds,
            ledger.virtual_s / 3600.0,
            ledger.failed
        );
        for failed in &ledger.failures {
            println!("failed: {}", Failure::from(failed));
        }
        let never = ledger.coverage.never();
        let is_enough = ledger.seeds >= PATHS_AFTER;
        for path in &never {
            println!("never taken: {}{}", path.name(), if is_enough { "" } else { " (yet)" });
        }
        Ok(ledger.failed == 0 && (never.is_empty() || !is_enough))
    }

    fn run_seeds(
        &self,
        next: &AtomicU64,
        end: u64,
        began: Instant,
        ledger: &Mutex<Ledger>,
        told: &Mutex<Instant>,
    ) {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let failed = ledger.lock().expect("no thread panics while it holds it").failed;
            if seed >= end || began.elapsed() >= self.lasts || failed >= FAILURES_ENOUGH {
                return;
            }
            let (result, covered) = run_plan(&Plan::of(seed), false);
            let result = result.map_err(|what| {
                let found = Failure { seed, faults: None, what };
                let least = minimise(&found, |_| {});
                println!("\n{found}\nwith as few faults as possible: {least}\n{}", schedule(&least));
                Failure { what: found.what, ..least }
            });
            let mut ledger = ledger.lock().expect("no thread panics while it holds it");
            ledger.note(&result, &covered);
            ledger.next_seed = ledger.next_seed.max(seed + 1);
            let mut told = told.lock().expect("no thread panics while it holds it");
            if told.elapsed() >= TOLD_EVERY {
                ledger.note_time(told.elapsed());
                *told = Instant::now();
                let per_minute = ledger.seeds as f64 / (ledger.real_s / 60.0);
                println!("{} seeds, {per_minute:.0} per minute, {} failed", ledger.seeds, ledger.failed);
                if let Err(error) = ledger.save(&self.path) {
                    println!("the ledger was not written: {error}");
                }
            }
        }
    }
}
