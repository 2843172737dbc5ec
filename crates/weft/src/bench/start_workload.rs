//! `weft bench start-workload`: one load from many clients at once, in DISKSPD's terms.

use super::files::ResultFiles;
use super::places::{CLIENTS_MAX, PlacesArgs, failed_on};
use super::run::{DEPTH_MAX, JOBS_MAX};
use std::time::Duration;
use weft_bench::{FleetLoad, FleetOptions, Pattern};
use weft_cli::{CliError, FabricPlace, Output, ParseSpanError, Size, Span};

/// The letters that DISKSPD's -S may have: which caches to use.
const CACHES: &str = "bhmruw";

/// Arguments of `weft bench start-workload`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StartWorkloadArgs {
    /// Bytes per request: a multiple of 4KiB
    #[arg(short, long = "bs", value_name = "SIZE", default_value = "64KiB", allow_hyphen_values = true)]
    bs: Size,
    /// Requests that each thread keeps in flight
    #[arg(short, long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    outstanding: u32,
    /// Threads of each client, each with a part of the volume of its own
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=JOBS_MAX))]
    threads: u32,
    /// How many of a hundred requests are writes; the others are reads
    #[arg(short, long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    write_share: u8,
    /// Go over the volume at random, aligned to the requests' size, instead of sequentially
    #[arg(short, long)]
    random: bool,
    /// How long to measure: seconds, or a time such as 5m
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = seconds, allow_hyphen_values = true)]
    duration: Span,
    /// How long to go on before that, which is not in the figures
    #[arg(short = 'W', long, value_name = "TIME", default_value = "5s", value_parser = seconds, allow_hyphen_values = true)]
    warm_up: Span,
    /// Bytes of each volume, all of which are written first
    #[arg(short = 'c', long, value_name = "SIZE", default_value = "1GiB", allow_hyphen_values = true)]
    size: Size,
    /// Measure latencies: they always are, and this changes nothing
    #[arg(short = 'L', long = "latency")]
    _latency: bool,
    /// Go past caches: there are none on the way, and this changes nothing; DISKSPD's letters may follow, as in -Sh
    #[arg(short = 'S', long = "caching", value_name = "LETTERS", num_args = 0..=1, default_missing_value = "", value_parser = caches)]
    _caching: Option<String>,
    /// Clients, each a process with a volume of its own [default: one for each --on, or for every two processors here]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=CLIENTS_MAX))]
    clients: Option<u32>,
    #[command(flatten)]
    places: PlacesArgs,
    #[command(flatten)]
    files: ResultFiles,
}

pub(crate) fn run(args: &StartWorkloadArgs, place: &FabricPlace, output: Output) -> Result<(), CliError> {
    args.files.check()?;
    let figures = weft_bench::fleet(&args.options(place)?).map_err(failed_on(place, "start-workload"))?;
    args.files.show(&figures, "start-workload", output)
}

impl StartWorkloadArgs {
    fn options(&self, place: &FabricPlace) -> Result<FleetOptions, CliError> {
        Ok(FleetOptions {
            places: self.places.places(place)?,
            clients: self.clients.unwrap_or_else(|| self.places.clients_usual()),
            load: FleetLoad {
                block_bytes: self.bs.0,
                threads: self.threads,
                outstanding: self.outstanding,
                write_percent: self.write_share,
                pattern: if self.random { Pattern::Random } else { Pattern::Sequential },
            },
            duration: self.duration.0,
            warm_up: self.warm_up.0,
            volume_bytes: self.size.0,
        })
    }
}

/// A time: of seconds, as DISKSPD has them, where there is no unit.
fn seconds(text: &str) -> Result<Span, ParseSpanError> {
    match text.parse::<u32>() {
        Ok(seconds) => Ok(Span(Duration::from_secs(seconds.into()))),
        Err(_) => text.parse(),
    }
}

fn caches(text: &str) -> Result<String, String> {
    match text.chars().find(|letter| !CACHES.contains(*letter)) {
        None => Ok(text.to_owned()),
        Some(other) => Err(format!("expected some of the letters {CACHES}, found '{other}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: StartWorkloadArgs,
    }

    fn parsed(line: &str) -> Result<StartWorkloadArgs, clap::Error> {
        Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).map(|line| line.args)
    }

    #[test]
    fn lines_of_diskspd_are_taken() {
        for line in [
            "-b 4K -o 32 -t 8 -w 100 -r -d 60",
            "-b4K -o32 -t8 -w100 -r -d60 -W5 -Sh -L -c1G",
            "-b 4096 -o 32 -t 8 -w 100 -r -d 1m -S -L",
        ] {
            let args = parsed(line).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((args.bs.0, args.outstanding, args.threads, args.write_share), (4096, 32, 8, 100));
            assert_eq!((args.duration.0, args.random, args.size.0), (Duration::from_secs(60), true, 1 << 30));
        }
        for line in ["-b 4KB", "-o 0", "-t 0", "-w 101", "-d soon", "-d -1", "-Sx", "--clients 0", "file.dat"]
        {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
