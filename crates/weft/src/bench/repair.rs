//! `weft bench repair`: what repair costs, and how fast it is.

use super::failed;
use super::files::ResultFiles;
use std::path::PathBuf;
use std::time::Duration;
use weft_bench::{RepairOptions, RepairPart, RepairSizes};
use weft_cli::{CliError, Output, Size, Span};

/// Arguments of `weft bench repair`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RepairArgs {
    #[command(flatten)]
    files: ResultFiles,
    /// Measure only this part; may be given several times
    #[arg(long, value_enum, value_name = "PART")]
    only: Vec<Part>,
    /// Rounds of what is repeated; medians of them are told
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// How long a phase lasts that does not last as long as a repair, such as 4s
    #[arg(long, value_name = "TIME", default_value = "4s", allow_hyphen_values = true)]
    phase: Span,
    /// How fast the client beside repair goes: percent of what it reaches alone as fast as it can; 100 for that
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = clap::value_parser!(u8).range(1..=100))]
    load: u8,
    /// How much of the volume of 1GiB the client beside repair uses; may be given several times [default: 64MiB and 1GiB]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    working_set: Vec<Size>,
    /// Keep drives in files in this folder, which has to exist, instead of in memory
    #[arg(long, value_name = "DIR")]
    drives: Option<PathBuf>,
    /// Move as little data about as possible: shows how it works, the figures mean nothing
    #[arg(long)]
    tiny: bool,
    /// Do not fail if a phase began before what went before it was over; with --tiny nothing fails for that
    #[arg(long)]
    allow_void: bool,
}

/// A part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// A client beside resync and rebuild, and their rates
    Beside,
    /// How evenly a rebuild spreads over the drives
    Spread,
    /// Scrubs, with a client and without
    Scrub,
    /// Bytes that drives write per byte of data
    Amplify,
}

impl From<Part> for RepairPart {
    fn from(part: Part) -> RepairPart {
        match part {
            Part::Beside => RepairPart::Beside,
            Part::Spread => RepairPart::Spread,
            Part::Scrub => RepairPart::Scrub,
            Part::Amplify => RepairPart::Amplify,
        }
    }
}

pub(crate) fn run(args: RepairArgs, output: Output) -> Result<(), CliError> {
    let program = std::env::current_exe().map_err(CliError::file("find", "weft"))?;
    args.files.check()?;
    let options = RepairOptions {
        parts: args.only.into_iter().map(RepairPart::from).collect(),
        rounds: args.rounds as usize,
        phase: args.phase.0.max(Duration::ZERO),
        load_percent: args.load,
        working_sets: args.working_set.into_iter().map(|size| size.0).collect(),
        drives_in: args.drives,
        sizes: if args.tiny { RepairSizes::TINY } else { RepairSizes::USUAL },
        ..RepairOptions::new(program)
    };
    let figures = weft_bench::repair(&options).map_err(|e| failed(e, "repair"))?;
    args.files.show(&figures, "repair", output)?;
    match figures.void_reasons.first() {
        Some(reason) if !args.allow_void && !args.tiny => Err(CliError::Failed {
            message: format!("the run is void, its figures mean nothing: {reason}"),
            hint: "run it on a machine that does nothing else, or accept it with --allow-void".into(),
        }),
        _ => Ok(()),
    }
}
