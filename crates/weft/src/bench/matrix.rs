//! `weft bench matrix`: loads from one client node to many.

use super::files::ResultFiles;
use super::places::{CLIENTS_MAX, PlacesArgs, failed_on};
use std::time::Duration;
use weft_bench::{MATRIX_LOADS, MatrixLoad, MatrixOptions, Volumes};
use weft_cli::{CliError, FabricPlace, Output, Size, Span};

/// Arguments of `weft bench matrix`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MatrixArgs {
    /// Numbers of clients, such as 1,2,4 [default: 1, 2, 4 and so on up to the number of machines given with --on, or of
    /// half of the processors here; with --quick at least 1,2]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=CLIENTS_MAX))]
    clients: Vec<u32>,
    #[command(flatten)]
    places: PlacesArgs,
    /// Only loads of this block size; may be given several times [default: 4KiB, 8KiB, 64KiB and 1MiB]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    bs: Vec<Size>,
    /// Only reads or writes
    #[arg(long, value_enum)]
    rw: Option<Only>,
    /// Which volumes clients use: each its own, all the same one, or first the one and then the
    /// other, which for a single client are the same
    #[arg(long, value_enum, default_value_t = On::Both)]
    volumes: On,
    /// Runs of each load; medians are told [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: Option<u64>,
    /// How long each is measured, such as 60s [default: 60s, with --quick 2s]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    runtime: Option<Span>,
    /// How long each goes on before that, which is not in the figures [default: 5s, with --quick 500ms]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    warm_up: Option<Span>,
    /// Bytes of each volume, all of which are written first [default: 8GiB, with --quick 256MiB]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    size: Option<Size>,
    /// For a laptop: short runs of small volumes, and as many jobs as there are processors
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    files: ResultFiles,
}

/// What requests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    /// Only reads
    Read,
    /// Only writes
    Write,
}

/// Which volumes clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum On {
    /// Each its own
    Private,
    /// All the same one
    Shared,
    /// First each its own, then all the same one
    Both,
}

pub(crate) fn run(args: &MatrixArgs, place: &FabricPlace, output: Output) -> Result<(), CliError> {
    args.files.check()?;
    let figures = weft_bench::matrix(&args.options(place)?).map_err(failed_on(place, "matrix"))?;
    args.files.show(&figures, "matrix", output)
}

impl MatrixArgs {
    fn options(&self, place: &FabricPlace) -> Result<MatrixOptions, CliError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let usual = |quick, otherwise| if self.quick { quick } else { otherwise };
        let time = |span: Option<Span>, otherwise| span.map_or(otherwise, |span| span.0);
        let clients = match self.clients.is_empty() {
            // A single number of clients makes no line.
            true => up_to(self.places.clients_usual().max(if self.quick { 2 } else { 1 })),
            false => self.numbers(),
        };
        Ok(MatrixOptions {
            places: self.places.places(place)?,
            loads: self.loads(processors as u32)?,
            directions: match self.rw {
                None => vec![true, false],
                Some(only) => vec![only == Only::Read],
            },
            volumes: match self.volumes {
                On::Private => vec![Volumes::Private],
                On::Shared => vec![Volumes::Shared],
                On::Both if clients == [1] => vec![Volumes::Private],
                On::Both => vec![Volumes::Private, Volumes::Shared],
            },
            clients,
            runs: self.runs.unwrap_or(usual(1, 3)) as usize,
            runtime: time(self.runtime, Duration::from_millis(usual(2_000, 60_000))),
            warm_up: time(self.warm_up, Duration::from_millis(usual(500, 5_000))),
            volume_bytes: self.size.map_or(usual(256 << 20, 8 << 30), |size| size.0),
        })
    }

    fn numbers(&self) -> Vec<u32> {
        let mut clients = self.clients.clone();
        clients.sort_unstable();
        clients.dedup();
        clients
    }

    fn loads(&self, processors: u32) -> Result<Vec<MatrixLoad>, CliError> {
        let known = |size: &Size| MATRIX_LOADS.iter().any(|load| load.block_bytes == size.0);
        if let Some(other) = self.bs.iter().find(|size| !known(size)) {
            return Err(CliError::Usage {
                message: format!("the matrix has no load of {} bytes", other.0),
                hint: "it has 4KiB, 8KiB, 64KiB and 1MiB; `weft bench run` puts any load on a volume".into(),
            });
        }
        let wanted =
            |load: &MatrixLoad| self.bs.is_empty() || self.bs.iter().any(|s| s.0 == load.block_bytes);
        let jobs = |load: MatrixLoad| if self.quick { load.jobs.min(processors) } else { load.jobs };
        let loads = MATRIX_LOADS.into_iter().filter(wanted);
        Ok(loads.map(|load| MatrixLoad { jobs: jobs(load), ..load }).collect())
    }
}

/// 1, 2, 4 and so on, and the number itself.
fn up_to(most: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..32).map(|n| 1 << n).take_while(|n| *n < most).collect();
    numbers.push(most.max(1));
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_matrix_has_two_numbers_of_clients_at_least() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: MatrixArgs,
        }
        let options = |line: &str| {
            let line = <Line as clap::Parser>::try_parse_from(line.split(' ')).expect("it is valid");
            line.args.options(&FabricPlace::new(Some("127.0.0.1:1"))).expect("they fit together")
        };
        assert_eq!(options("matrix --quick").clients[..2], [1, 2]);
        assert_eq!(options("matrix --quick --clients 1").clients, [1]);
        let alone = options("matrix --quick --clients 1").volumes;
        assert_eq!(alone, [Volumes::Private], "one client's own volume is the one of all");
        assert_eq!(options("matrix --quick").volumes.len(), 2);
    }

    #[test]
    fn numbers_of_clients_double() {
        assert_eq!(up_to(1), [1]);
        assert_eq!(up_to(2), [1, 2]);
        assert_eq!(up_to(24), [1, 2, 4, 8, 16, 24]);
    }
}
