//! `weft bench`: the committed benchmark.

use std::path::PathBuf;
use std::time::Duration;
use weft_bench::FiguresOptions;
use weft_cli::CliError;

use crate::manager::with_causes;

/// Measure the data path of this build
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    /// Run the committed benchmark: workloads beside the machine's own limit
    #[command(
        after_long_help = "Examples:\n  weft bench figures\n  weft bench figures --pin --out bench.json\n  weft bench figures --only randread --runs 3"
    )]
    Figures {
        /// Where to write the figures as JSON
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// How long each run takes
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
        seconds: u64,
        /// Runs of each workload
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
        runs: u64,
        /// Give the client and the target a core each
        #[arg(long)]
        pin: bool,
        /// Only the workloads whose name contains this
        #[arg(long, value_name = "PART")]
        only: Option<String>,
        /// Succeed although the machine is too slow or too busy for the figures to mean anything
        #[arg(long)]
        allow_slow_machine: bool,
    },
}

pub(crate) fn run(command: BenchCommand) -> Result<(), CliError> {
    let BenchCommand::Figures { out, seconds, runs, pin, only, allow_slow_machine } = command;
    let program = std::env::current_exe().map_err(CliError::file("find", "weft"))?;
    let options = FiguresOptions {
        json: out,
        duration: Duration::from_secs(seconds),
        runs: runs as usize,
        pin,
        only,
        ..FiguresOptions::new(program)
    };
    let figures = weft_bench::figures(&options).map_err(|error| CliError::Failed {
        message: with_causes(&error),
        hint: error.hint().unwrap_or("run it again; --only picks a single workload").into(),
    })?;
    if figures.is_void() && !allow_slow_machine {
        return Err(CliError::Failed {
            message: "the run is void: this machine is too slow or too busy to measure on".into(),
            hint: "quieten the machine, or pass --allow-slow-machine if it is known to be slow".into(),
        });
    }
    Ok(())
}
