//! `weft bench compare`: two results of the same benchmark.

use super::failed;
use std::path::PathBuf;
use weft_cli::{CliError, Output};

/// Arguments of `weft bench compare`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// What a benchmark wrote with --out before
    first: PathBuf,
    /// What it wrote then
    second: PathBuf,
}

pub(crate) fn run(args: &CompareArgs, output: Output) -> Result<(), CliError> {
    let compared = weft_bench::compare(&args.first, &args.second).map_err(|e| failed(e, "compare"))?;
    output.show(&compared, |compared, _| compared.text())
}
