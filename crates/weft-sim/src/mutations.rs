//! `weft-sim mutations`: breaks every rule in turn, and prints who noticed.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use weft_rules::{Path, take_counts};
use weft_sim::hunt::{HUNTS, Hunt, Outcome, run_seed};

/// What it is called with.
pub const USAGE: &str = "       weft-sim mutations [--only NAME]... [--jobs N] [--budget SEEDS] [--markdown] [--seed N [--unbroken] [--story]]";

#[derive(Default)]
struct Options {
    only: Vec<String>,
    jobs: usize,
    budget: u64,
    markdown: bool,
    seed: Option<u64>,
    unbroken: bool,
    story: bool,
}

fn parse(mut args: impl Iterator<Item = String>) -> Option<Options> {
    let mut options = Options { jobs: 2, budget: u64::MAX, ..Options::default() };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--only" => options.only.push(args.next()?),
            "--jobs" => options.jobs = args.next()?.parse().ok().filter(|n| *n > 0)?,
            "--budget" => options.budget = args.next()?.parse().ok()?,
            "--markdown" => options.markdown = true,
            "--seed" => options.seed = Some(args.next()?.parse().ok()?),
            "--unbroken" => options.unbroken = true,
            "--story" => options.story = true,
            _ => return None,
        }
    }
    Some(options)
}

/// Runs the hunts that are asked for.
pub fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let Some(options) = parse(args) else {
        eprintln!("usage:\n{USAGE}");
        return ExitCode::from(2);
    };
    let is_wanted = |hunt: &&Hunt| {
        let names = || hunt.mutations.iter().map(|m| m.name());
        options.only.is_empty()
            || options
                .only
                .iter()
                .any(|only| hunt.name() == *only || (!only.contains('+') && names().any(|n| n == only)))
    };
    let hunts: Vec<&Hunt> = HUNTS.iter().filter(is_wanted).collect();
    if hunts.is_empty() {
        eprintln!("error: there is no such mutation");
        return ExitCode::from(2);
    }
    if let Some(seed) = options.seed {
        return replay(&hunts, seed, &options);
    }
    // What a broken rule makes fail is what is looked for: it is told in the table.
    std::panic::set_hook(Box::new(|_| {}));
    let outcomes = hunt_all(&hunts, &options);
    if options.markdown {
        print_markdown(&hunts, &outcomes);
    }
    let missed = hunts.iter().zip(&outcomes).filter(|(hunt, outcome)| !outcome.is_as_expected(hunt)).count();
    eprintln!("{} hunts, {missed} not as expected", hunts.len());
    if missed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs one seed of each hunt and says all of what it says.
fn replay(hunts: &[&Hunt], seed: u64, options: &Options) -> ExitCode {
    let mut failed = false;
    for hunt in hunts {
        let broken = if options.unbroken { &[][..] } else { hunt.mutations };
        let (ended, reached) = run_seed(hunt.scenario, broken, seed, options.story);
        failed |= ended.is_err();
        println!("{}, seed {seed}, switch reached: {reached}: {ended:?}", hunt.name());
        let counts = take_counts();
        if options.story {
            let taken = Path::ALL.iter().zip(counts).filter(|(_, count)| *count > 0);
            let taken: Vec<String> = taken.map(|(path, count)| format!("{} {count}", path.name())).collect();
            println!("paths: {}", taken.join(", "));
        }
        if let Err(what) = ended {
            println!("{what}");
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Runs hunts on so many threads; prints each line as it is there, unless a table in order is asked for.
fn hunt_all(hunts: &[&Hunt], options: &Options) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(vec![None; hunts.len()]);
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some(hunt) = hunts.get(nth) else { return };
                    let begun = Instant::now();
                    let outcome = hunt.run(options.budget);
                    let line = line_of(hunt, &outcome, begun.elapsed().as_secs_f64());
                    match options.markdown {
                        true => eprintln!("{line}"),
                        false => println!("{line}"),
                    }
                    outcomes.lock().expect("nobody panics with it")[nth] = Some(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("nobody panics with it");
    outcomes.into_iter().map(|o| o.expect("every hunt was run")).collect()
}

fn line_of(hunt: &Hunt, outcome: &Outcome, seconds: f64) -> String {
    let rule = hunt.mutations[0].rule();
    let mark = if outcome.is_as_expected(hunt) { "" } else { "!! " };
    format!(
        "{mark}{rule:<9} {:<44} {:<12} {:>4} seeds {seconds:>6.1} s  {}",
        hunt.name(),
        place_of(hunt),
        outcome.seeds,
        verdict_of(hunt, outcome)
    )
}

/// Where it is hunted, in a word.
fn place_of(hunt: &Hunt) -> String {
    let text = format!("{:?}", hunt.scenario);
    let mut words = text.split([' ', '(', ')']).filter(|w| !w.is_empty());
    match (words.next(), words.next()) {
        (Some(first @ ("Stranded" | "Script")), Some(second)) => format!("{first}: {second}"),
        (first, _) => first.unwrap_or_default().to_owned(),
    }
}

fn verdict_of(hunt: &Hunt, outcome: &Outcome) -> String {
    if let Some(what) = &outcome.fails_unbroken {
        return format!("fails without the mutation, too: {}", weft_sim::hunt::first_line(what));
    }
    match &outcome.found {
        Some((_, what)) => what.clone(),
        None if hunt.is_protected() => format!("no harm alone: {}", hunt.protected_by),
        None if outcome.reached => "not found".to_owned(),
        None => "not found: the switch was never reached".to_owned(),
    }
}

fn print_markdown(hunts: &[&Hunt], outcomes: &[Outcome]) {
    println!("| rule | mutation | what is broken | found by | seeds | verdict |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (hunt, outcome) in hunts.iter().zip(outcomes) {
        let breaks: Vec<&str> = hunt.mutations.iter().map(|m| m.breaks()).collect();
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            hunt.mutations[0].rule(),
            hunt.name(),
            breaks.join(" "),
            place_of(hunt),
            outcome.seeds,
            verdict_of(hunt, outcome).replace('|', "\\|")
        );
    }
}
