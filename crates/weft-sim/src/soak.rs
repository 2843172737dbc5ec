//! Many fresh seeds on all cores, with a ledger: what was run, what failed, what was covered.

use crate::code::Code;
use crate::hunt::Script;
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

/// One seed of so many also runs a script of the hunts, one after another: some paths are a matter of a few steps in the
/// right order, which random faults meet in one seed of a thousand. A script takes less time than a seed.
const SCRIPT_EVERY: u64 = 16;

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
    /// What is run.
    pub code: Code,
}

/// A seed of which nobody can tell in advance what it will do: the clock's microseconds.
pub fn fresh_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(0)
}

/// The script that is run with a seed, if one is.
fn script_of(seed: u64) -> Option<Script> {
    let nth = seed.is_multiple_of(SCRIPT_EVERY).then_some(seed / SCRIPT_EVERY)?;
    Some(Script::ALL[(nth % Script::ALL.len() as u64) as usize])
}

impl Soak {
    /// Runs it, and prints what comes of it. Whether all is well: no seed of the ledger failed, and, once it has enough
    /// seeds, no path was never taken.
    ///
    /// # Errors
    /// If the ledger cannot be read or written.
    pub fn run(&self) -> io::Result<bool> {
        let ledger = Ledger::open(&self.path, &self.code, fresh_seed())?;
        println!(
            "code {} as of commit {}: {} seeds run so far, the next is {}; ledger {}",
            ledger.code,
            ledger.commit,
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
            "\n{ran} seeds in {minutes:.1} min: {:.0} per minute; {} of this code and {} scripts, {:.1} h of virtual time, \
             {} failed",
            ran as f64 / minutes,
            ledger.seeds,
            ledger.scripts,
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
            if let Some(script) = script_of(seed) {
                let (result, covered) = script.rehearse(seed, false);
                let result = result.map_err(|what| {
                    let found = Failure { seed, script: Some(script.name()), faults: None, what };
                    println!("\n{found}");
                    found
                });
                ledger.lock().expect("no thread panics while it holds it").note_script(&result, &covered);
            }
            let (result, covered) = run_plan(&Plan::of(seed), false);
            let result = result.map_err(|what| {
                let found = Failure { seed, script: None, faults: None, what };
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

#[cfg(test)]
mod tests {
    use super::*;

    const _: () =
        assert!(PATHS_AFTER >= 3 * SCRIPT_EVERY * Script::ALL.len() as u64, "each runs several times");

    #[test]
    fn every_script_is_run_in_turn() {
        let turn = SCRIPT_EVERY * Script::ALL.len() as u64;
        let run: Vec<Script> = (700..700 + turn).filter_map(script_of).collect();
        assert!(Script::ALL.iter().all(|script| run.contains(script)) && run.len() == Script::ALL.len());
    }
}
