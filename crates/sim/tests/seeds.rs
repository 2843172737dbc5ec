//! Fixed seeds on every run of the tests; `cargo run -p weft-sim -- --seeds A..B` runs others.

use std::process::Command;
use weft_sim::run_seed;

/// Seeds run on each of two threads.
const SEEDS: u64 = 100;

fn run(seeds: std::ops::Range<u64>) {
    let mut operations = 0;
    for seed in seeds {
        match run_seed(seed, false) {
            Ok(outcome) => operations += outcome.operations,
            Err(failure) => panic!("{failure}"),
        }
    }
    println!("{operations} operations checked");
}

#[test]
fn seeds_of_the_first_half_hold() {
    run(0..SEEDS);
}

#[test]
fn seeds_of_the_second_half_hold() {
    run(SEEDS..2 * SEEDS);
}

/// Two processes, since addresses of memory must not matter either.
#[test]
fn two_processes_give_one_seed_the_same_trace() {
    let run = || {
        let output = Command::new(env!("CARGO_BIN_EXE_weft-sim")).args(["--seed", "42"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        output.stdout
    };
    assert_eq!(String::from_utf8_lossy(&run()), String::from_utf8_lossy(&run()));
}
