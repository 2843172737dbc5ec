//! `weft bench io500`: the phases of IO500 one after the other, and their score.

use super::failed;
use super::files::ResultFiles;
use super::suite::{follows, launched, numbers, ranks, show_plan, size, with_progress};
use std::path::PathBuf;
use std::time::Duration;
use weft_bench::{Io500Options, Launched};
use weft_cli::{CliError, Output};

/// Arguments of `weft bench io500`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Io500Args {
    /// The folder in which all is made; it has to be there
    #[arg(short = 'd', long, value_name = "DIR")]
    directory: PathBuf,
    /// Processes, or several numbers of them such as 1,2,4 [default: as many as mpirun or srun has started,
    /// or 1]
    #[arg(short = 'n', long, visible_alias = "num-tasks", value_name = "LIST", value_delimiter = ',')]
    processes: Vec<u32>,
    /// Seconds for which each of the four write phases goes on at the least; official runs have 300
    #[arg(short = 'D', long, value_name = "SECONDS", default_value_t = 30)]
    stonewall: u64,
    /// Bytes of a transfer of ior-easy; those of ior-hard have 47008
    #[arg(short = 't', long, value_name = "SIZE", default_value = "2m", value_parser = size)]
    transfer_size: u64,
    /// Direct requests (O_DIRECT) of ior-easy, past the pages of the kernel
    #[arg(short = 'B', long = "direct", visible_alias = "posix.odirect")]
    is_direct: bool,
    /// The most files that each process makes in a phase, where the stonewall comes later
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    files: u64,
    /// The most bytes that all files take, where the stonewall comes later: half of it for ior-easy, a
    /// quarter for ior-hard and for mdtest-hard [default: half of what is free]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    space: Option<u64>,
    /// Do not compare what is read with what was written
    #[arg(long)]
    no_verify: bool,
    /// Leave the files of IOR, and the folders
    #[arg(short = 'k', long)]
    keep: bool,
    /// Say what would be made and how much space that takes, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    results: ResultFiles,
}

pub(crate) fn run(args: &Io500Args, output: Output) -> Result<(), CliError> {
    let launched = launched()?;
    let is_first = launched.as_ref().is_none_or(|launched| launched.rank == 0);
    if args.dry_run && !is_first {
        return Ok(());
    }
    if follows(launched.as_ref(), &args.directory, "io500")? {
        return Ok(());
    }
    args.results.check()?;
    let options = args.options(launched)?;
    if args.dry_run {
        let plan = options.plan().map_err(|error| failed(error, "io500"))?;
        return show_plan(&plan, weft_bench::Io500Plan::text, output);
    }
    let measured = with_progress(|tell| weft_bench::io500(&options, tell));
    let figures = measured.map_err(|error| failed(error, "io500"))?;
    args.results.show(&figures, "io500", output)?;
    figures.verdict().map_err(|error| failed(error, "io500"))
}

impl Io500Args {
    fn options(&self, launched: Option<Launched>) -> Result<Io500Options, CliError> {
        Ok(Io500Options {
            folder: self.directory.clone(),
            processes: numbers(&self.processes, launched.as_ref()),
            ranks: ranks(launched)?,
            stonewall: Duration::from_secs(self.stonewall),
            transfer_bytes: self.transfer_size,
            is_direct: self.is_direct,
            files_max: self.files,
            space: self.space,
            checks: !self.no_verify,
            keep: self.keep,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Io500Args,
    }

    fn parsed(line: &str) -> Result<Io500Args, clap::Error> {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).map(|line| line.args)
    }

    fn options(line: &str) -> Io500Options {
        parsed(line).unwrap_or_else(|e| panic!("{e}")).options(None).expect("it is valid")
    }

    #[test]
    fn without_options_the_run_is_short_and_compares_what_it_reads() {
        let found = options("-d x");
        assert_eq!((found.processes.as_slice(), found.stonewall.as_secs()), ([1].as_slice(), 30));
        assert_eq!((found.transfer_bytes, found.files_max, found.space), (2 << 20, 1_000_000, None));
        assert!(found.checks && !found.keep && !found.is_direct);
    }

    #[test]
    fn options_are_those_of_the_siblings() {
        let found = options("-d x -n 1,2,4 -D 300 -t 1m -B -k --files 5 --space 2g --no-verify");
        assert_eq!((found.processes, found.stonewall.as_secs()), (vec![1, 2, 4], 300));
        assert_eq!((found.transfer_bytes, found.space), (1 << 20, Some(2 << 30)));
        assert!(found.is_direct && found.keep && !found.checks);
        for line in ["-n 2", "-d x -n two", "-d x -t 2mb", "-d x --stonewall -1"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
