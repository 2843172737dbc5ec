//! Runs seeds of the simulation: one, many, or as many as fit into some time; and breaks every rule in turn, to show
//! that the simulation notices.

mod mutations;

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use weft_sim::hunt::Script;
use weft_sim::{Code, Coverage, Failure, Outcome, Plan, Soak, minimise, run_plan, schedule};

/// A run takes and gives back millions of small pieces of memory in a second: the system's allocator would be half of it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
usage: weft-sim [--seed N [--faults LIST] | --seeds FIRST..END] [--script NAME] [--story] [--minimise] [--plan]
       weft-sim soak --minutes N [--seeds-max N] [--jobs N] [--ledger FILE]

  --seed N       one seed
  --faults LIST  only these faults of its plan, by number, some of them shorter: 3,7/4,9
  --seeds A..B   many seeds
  --script NAME  instead of its plan, a script of the hunts, while every rule holds: all, or one of those in
                 crates/weft-sim/src/hunt/scripts.rs, in lower case with hyphens
  --story        tell what happens as it happens
  --minimise     of a seed that fails, find fewer and shorter faults with which it still does
  --plan         show what a seed has planned, and run nothing
  soak           fresh seeds on all cores, counted in target/soak/CODE.json";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let ended = match args.first().map(String::as_str) {
        Some("soak") => soak(&args[1..]),
        Some("mutations") => return mutations::main(args[1..].iter().cloned()),
        _ => seeds(&args),
    };
    ended.unwrap_or_else(|| {
        eprintln!("{USAGE}\n{}", mutations::USAGE);
        ExitCode::from(2)
    })
}

/// Runs seeds; none if the arguments are wrong.
fn seeds(args: &[String]) -> Option<ExitCode> {
    let mut seeds = 0..200;
    let (mut story, mut least, mut plan_only, mut faults) = (false, false, false, None);
    let mut scripts = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--story" => story = true,
            "--minimise" => least = true,
            "--plan" => plan_only = true,
            "--faults" => faults = Some(args.next()?.clone()),
            "--script" => match args.next()?.as_str() {
                "all" => scripts = Script::ALL.to_vec(),
                name => scripts.push(Script::named(name)?),
            },
            "--seed" => {
                let n: u64 = args.next()?.parse().ok()?;
                seeds = n..n + 1;
            }
            "--seeds" => {
                let (first, end) = args.next()?.split_once("..")?;
                seeds = first.parse().ok()?..end.parse().ok()?;
            }
            _ => return None,
        }
    }
    if !scripts.is_empty() {
        return Some(rehearse(&scripts, seeds, story));
    }
    let many = seeds.end - seeds.start > 1;
    let mut failed = 0;
    for seed in seeds {
        let mut plan = Plan::of(seed);
        if let Some(list) = &faults {
            plan = match plan.with_faults(list) {
                Ok(plan) => plan,
                Err(wrong) => {
                    eprintln!("{wrong}");
                    return Some(ExitCode::from(2));
                }
            };
        }
        if plan_only {
            let (faults, what) = (faults.clone(), String::new());
            print!("{}", schedule(&Failure { seed, script: None, faults, what }));
            continue;
        }
        match run_plan(&plan, story).0 {
            Ok(outcome) if many => tell(seed, &outcome),
            Ok(outcome) => println!("seed {seed}: {outcome:#?}"),
            Err(what) => {
                failed += 1;
                let found = Failure { seed, script: None, faults: faults.clone(), what };
                println!("{found}");
                if least {
                    std::panic::set_hook(Box::new(|_| {}));
                    let least = minimise(&found, |line| println!("{line}"));
                    println!("with as few faults as possible: {least}\n{}", schedule(&least));
                }
            }
        }
    }
    if failed > 0 {
        println!("{failed} seeds failed");
        return Some(ExitCode::FAILURE);
    }
    Some(ExitCode::SUCCESS)
}

/// Tells of a seed that went well in one line.
fn tell(seed: u64, Outcome { operations, tree_operations, faults, .. }: &Outcome) {
    println!("seed {seed}: {operations} operations, {tree_operations} on a tree, {faults} faults");
}

/// Runs scripts while every rule holds.
fn rehearse(scripts: &[Script], seeds: Range<u64>, story: bool) -> ExitCode {
    let mut failed = 0;
    for script in scripts {
        let mut paths = Coverage::default();
        for seed in seeds.clone() {
            let (result, covered) = script.rehearse(seed, story);
            paths.add(&covered);
            if let Err(what) = result {
                failed += 1;
                println!("{}", Failure { seed, script: Some(script.name()), faults: None, what });
            }
        }
        let taken: Vec<String> = paths.paths.iter().map(|(path, count)| format!("{path} {count}")).collect();
        println!("{}: {} seeds; {}", script.name(), seeds.end - seeds.start, taken.join(", "));
    }
    println!("{failed} failed");
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs a soak; none if the arguments are wrong.
fn soak(args: &[String]) -> Option<ExitCode> {
    let code = Code::here();
    let mut soak = Soak {
        lasts: Duration::ZERO,
        seeds_max: u64::MAX,
        jobs: std::thread::available_parallelism().map_or(1, usize::from),
        path: PathBuf::from(format!("target/soak/{}.json", code.digest)),
        code,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args.next()?;
        match arg.as_str() {
            "--minutes" => {
                soak.lasts = Duration::try_from_secs_f64(60.0 * value.parse::<f64>().ok()?).ok()?
            }
            "--seeds-max" => soak.seeds_max = value.parse().ok()?,
            "--jobs" => soak.jobs = value.parse().ok().filter(|jobs| *jobs > 0)?,
            "--ledger" => soak.path = PathBuf::from(value),
            _ => return None,
        }
    }
    if soak.lasts.is_zero() {
        return None;
    }
    Some(match soak.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: the ledger {}: {error}", soak.path.display());
            ExitCode::FAILURE
        }
    })
}
