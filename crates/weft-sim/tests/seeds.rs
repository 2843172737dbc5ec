//! Seeds on every run of the tests: those that once found something, the first few, and some that nobody has run before,
//! or as many of those as `WEFT_SIM_FRESH` says.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use weft_sim::{Plan, fresh_seed, replay_command, run_plan, run_seed};

/// Seeds from 0 on that are run each time.
const FIRST: u64 = 40;

/// Seeds that nobody has run before, each time: some seconds of them.
const FRESH: u64 = 10;

/// Threads that run them.
const JOBS: usize = 2;

/// Seeds that found something: see the file.
const REGRESSIONS: &str = include_str!("../regressions.txt");

/// Per line of the list a seed and its faults.
fn regressions() -> Vec<(u64, Option<&'static str>)> {
    let lines = REGRESSIONS.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (run, said) = line.split_once(':').expect("a seed and what it found");
            assert!(said.trim().ends_with('.'), "what it found is a sentence: {line}");
            let mut words = run.split_whitespace();
            let seed = words.next().expect("a seed").parse().expect("a seed is a number");
            (seed, words.next())
        })
        .collect()
}

#[test]
fn seeds_that_once_found_something_hold() {
    for (seed, faults) in regressions() {
        let plan = Plan::of(seed);
        let plan = match faults {
            Some(list) => plan.with_faults(list).unwrap_or_else(|wrong| panic!("{wrong}")),
            None => plan,
        };
        if let Err(what) = run_plan(&plan, false).0 {
            panic!("{what}\nreplay: {}", replay_command(seed, faults));
        }
    }
}

#[test]
fn the_first_seeds_and_fresh_ones_hold() {
    let fresh = std::env::var("WEFT_SIM_FRESH").map(|n| n.parse().expect("WEFT_SIM_FRESH is a number"));
    let fresh = fresh.unwrap_or(FRESH);
    let from = fresh_seed();
    println!("seeds 0..{FIRST} and {from}..{}", from + fresh);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..JOBS)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let nth = next.fetch_add(1, Ordering::Relaxed);
                        if nth >= FIRST + fresh {
                            return;
                        }
                        let seed = if nth < FIRST { nth } else { from + nth - FIRST };
                        run_seed(seed, false).unwrap_or_else(|failure| panic!("{failure}"));
                    }
                })
            })
            .collect();
        let ended: Vec<_> = jobs.into_iter().map(|job| job.join()).collect();
        assert!(ended.iter().all(Result::is_ok), "a seed fails");
    });
}

/// Two processes, since addresses of memory must not matter either.
#[test]
fn two_processes_give_one_seed_the_same_trace() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_weft-sim")).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for args in [&["--seed", "42"][..], &["--seed", "7", "--faults", "1,4/4"]] {
        assert_eq!(run(args), run(args));
    }
}
