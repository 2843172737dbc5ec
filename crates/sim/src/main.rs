//! Runs seeds of the simulation: `--seed N` for one, `--seeds FIRST..END` for many, `--story` for what happened.
//! `mutations` breaks every rule in turn, and shows that it is noticed.

mod mutations;

use std::process::ExitCode;
use weft_sim::run_seed;

const USAGE: &str = "usage: weft-sim [--seed N | --seeds FIRST..END] [--story]";

fn main() -> ExitCode {
    let mut seeds = 0..200;
    let mut story = false;
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|arg| arg == "mutations").is_some() {
        return mutations::main(args);
    }
    while let Some(arg) = args.next() {
        let parsed = match arg.as_str() {
            "--story" => {
                story = true;
                Some(())
            }
            "--seed" => args.next().and_then(|n| n.parse().ok()).map(|n: u64| seeds = n..n + 1),
            "--seeds" => args.next().and_then(|range| {
                let (first, end) = range.split_once("..")?;
                seeds = first.parse().ok()?..end.parse().ok()?;
                Some(())
            }),
            _ => None,
        };
        if parsed.is_none() {
            eprintln!("{USAGE}\n{}", mutations::USAGE);
            return ExitCode::from(2);
        }
    }
    let many = seeds.end - seeds.start > 1;
    let mut failed = 0;
    for seed in seeds {
        match run_seed(seed, story) {
            Ok(outcome) if many => {
                println!("seed {seed}: {} operations, {} faults", outcome.operations, outcome.faults)
            }
            Ok(outcome) => println!("seed {seed}: {outcome:#?}"),
            Err(failure) => {
                failed += 1;
                println!("{failure}");
            }
        }
    }
    if failed > 0 {
        println!("{failed} seeds failed");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
