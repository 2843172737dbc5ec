//! `weft bench figures`: the committed benchmark.

use super::failed;
use std::path::PathBuf;
use std::time::Duration;
use weft_bench::FiguresOptions;
use weft_cli::CliError;

/// Arguments of `weft bench figures`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FiguresArgs {
    /// Where to write the figures as JSON
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How long each run takes, in seconds
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Runs of each workload
    #[arg(long, value_name = "N", default_value_t = 5)]
    runs: usize,
    /// Give client and target a core each, where there are two
    #[arg(long)]
    pin: bool,
    /// Only workloads whose name contains this
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// Do not fail on a machine that is too slow for the figures to mean anything
    #[arg(long)]
    allow_slow_machine: bool,
}

pub(crate) fn run(args: FiguresArgs) -> Result<(), CliError> {
    let program = std::env::current_exe().map_err(CliError::file("find", "weft"))?;
    let options = FiguresOptions {
        json: args.out,
        runs: args.runs,
        duration: Duration::from_secs(args.seconds),
        pin: args.pin,
        only: args.only,
        ..FiguresOptions::new(program)
    };
    let figures = weft_bench::figures(&options).map_err(|e| failed(e, "figures"))?;
    if figures.is_void() && !args.allow_slow_machine {
        return Err(CliError::Failed {
            message: "the machine does not reach the reference exchange: these figures mean nothing".into(),
            hint: "run it on a machine that does nothing else, or accept it with --allow-slow-machine".into(),
        });
    }
    Ok(())
}
