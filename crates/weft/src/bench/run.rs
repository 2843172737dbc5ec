//! `weft bench run`: a load on a volume of any fabric.

use super::failed;
use super::files;
use super::rate::RateLimit;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, VolumeInfo};
use weft_bench::{Load, Pattern, RunOptions, RunReport};
use weft_cli::{CliError, Connection, FabricPlace, Output, Size, Span, Step, TransportArgs, note};
use weft_types::limits::LANES_MAX;

/// Threads that a load may have: more than the cores of most machines.
pub(super) const JOBS_MAX: i64 = 64;

/// Requests that each may keep in flight: far beyond the point from which on they only wait for each other.
pub(super) const DEPTH_MAX: i64 = 4096;

/// Arguments of `weft bench run`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The volume's name
    volume: String,
    /// What the requests do
    #[arg(long, value_enum, default_value_t = Direction::Read)]
    rw: Direction,
    /// With --rw mix: how many of a hundred requests are reads [default: 70]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=99))]
    read_share: Option<u8>,
    /// In which order they go over the volume
    #[arg(long, value_enum, default_value_t = Order::Random)]
    pattern: Order,
    /// Bytes per request: a multiple of 4KiB, or of 512 where the volume is attached exclusively
    #[arg(long, value_name = "SIZE", default_value = "4KiB", allow_hyphen_values = true)]
    bs: Size,
    /// Requests that each job keeps in flight
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    depth: u32,
    /// Threads, each with a connection and a part of the volume of its own; attaches it shared to write
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=JOBS_MAX))]
    jobs: u32,
    /// Threads that share one attach, each with a lane of it and a part of the volume; blocks have 4KiB then
    #[arg(long, value_name = "N", conflicts_with = "jobs")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=LANES_MAX as i64))]
    threads: Option<u32>,
    /// How long to measure, such as 30s or 5m
    #[arg(long, value_name = "TIME", default_value = "30s", allow_hyphen_values = true)]
    runtime: Span,
    /// How long to go on before that, which is not in the figures
    #[arg(long, value_name = "TIME", default_value = "2s", allow_hyphen_values = true)]
    warm_up: Span,
    /// How much of the volume to use [default: all from --offset on]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    size: Option<Size>,
    /// From where on to use it
    #[arg(long, value_name = "SIZE", default_value = "0", allow_hyphen_values = true)]
    offset: Size,
    /// Stamp what is written, and check what is read; nobody else may write there meanwhile
    ///
    /// Reads of what this run has written must return what was acknowledged last, or what is in flight. Blocks that
    /// an earlier such run wrote must fit their own checksum and address. Takes 4 bytes of memory per request's
    /// size of the volume, and some CPU, which is not in the latencies but limits the rate.
    #[arg(long)]
    verify: bool,
    /// Go no faster than this: requests per second such as 5000, or bytes per second such as 100MiB
    ///
    /// Requests are then begun at even distances. One that is held up because all are in flight counts its latency
    /// from when it was due, so that no stall is hidden.
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    rate_limit: Option<RateLimit>,
    /// What decides offsets and data: the same seed gives the same
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write even if the volume holds data, which is lost
    #[arg(long, visible_alias = "yes")]
    overwrite: bool,
    /// Attach the volume shared: other clients may use it meanwhile
    #[arg(long)]
    shared: bool,
    /// Also write the report with charts to this file, a page that any browser shows
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Add all latencies to the JSON, as pairs of nanoseconds and how many requests took so long
    #[arg(long)]
    latencies: bool,
    #[command(flatten)]
    transport: TransportArgs,
    /// Begin at this time, in milliseconds since 1970, so that several such commands begin together
    #[arg(long, value_name = "MS")]
    begin_at: Option<u64>,
}

/// What requests do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Direction {
    /// Only reads; the volume is attached read-only
    Read,
    /// Only writes
    Write,
    /// Both
    Mix,
}

/// In which order they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Order {
    /// Evenly distributed
    Random,
    /// One after the other, from the beginning again at the end
    Sequential,
}

pub(crate) async fn run(args: RunArgs, place: &FabricPlace, output: Output) -> Result<(), CliError> {
    let read_percent = args.read_percent()?;
    args.transport.apply();
    if let Some(path) = &args.html {
        files::check(path)?;
    }
    let volume = find(place, &args.volume).await?;
    let options = args.options(read_percent, place, volume)?;
    let is_watched = std::io::stderr().is_terminal();
    // Made when there is something to say, by when signals are held back: it has a thread of its own.
    let mut step = None;
    let mut tell = |line: &str| {
        if is_watched {
            step.get_or_insert_with(Step::new).says(line);
        }
    };
    let ran = weft_bench::run(&options, &mut tell).await;
    drop(step);
    let report = ran.map_err(|error| failed(error, "run"))?;
    if let Some(path) = &args.html {
        report.write_html(path).map_err(|error| failed(error, "run"))?;
    }
    output.show(&report, |report, _| report.text())?;
    if let Some(path) = &args.html {
        note(&format!("the report with charts is in {}", path.display()));
    }
    verdict(&report)
}

impl RunArgs {
    fn read_percent(&self) -> Result<u8, CliError> {
        match (self.rw, self.read_share) {
            (Direction::Mix, share) => Ok(share.unwrap_or(70)),
            (Direction::Read, None) => Ok(100),
            (Direction::Write, None) => Ok(0),
            (_, Some(_)) => Err(CliError::Usage {
                message: "--read-share is about a mix of reads and writes".into(),
                hint: "add --rw mix, or leave --read-share out".into(),
            }),
        }
    }

    fn options(
        &self,
        read_percent: u8,
        place: &FabricPlace,
        volume: VolumeInfo,
    ) -> Result<RunOptions, CliError> {
        let start = self.offset.0;
        let end = match self.size {
            Some(size) => start.saturating_add(size.0),
            None => volume.size_bytes.max(start),
        };
        let load = Load {
            pattern: match self.pattern {
                Order::Random => Pattern::Random,
                Order::Sequential => Pattern::Sequential,
            },
            read_percent,
            block_size: self.bs.0,
            depth: self.depth,
            seed: self.seed,
            range: Some(start..end),
            per_second_max: self.rate_limit.map(|rate| rate.per_second(self.bs.0)),
            ..Load::default()
        };
        Ok(RunOptions {
            managers: place.managers()?,
            volume,
            load,
            runtime: self.runtime.0,
            warm_up: self.warm_up.0.max(Duration::ZERO),
            jobs: self.threads.unwrap_or(self.jobs),
            share_attach: self.threads.is_some(),
            is_shared: self.shared,
            spin: self.transport.spin(),
            verify: self.verify,
            overwrite: self.overwrite,
            begin_at_ms: self.begin_at,
            tells_latencies: self.latencies,
        })
    }
}

/// The volume as the manager describes it.
async fn find(place: &FabricPlace, name: &str) -> Result<VolumeInfo, CliError> {
    let connection = Connection::open(place).await?;
    match connection.ask(&ApiRequest::VolumeShow { name: name.to_owned() }).await? {
        ApiAnswer::Volume { volume, .. } => Ok(volume),
        _ => Err(CliError::Failed {
            message: format!(
                "the manager at {} answered another question than the one asked",
                connection.at()
            ),
            hint: "use the same version of weft on this side and for the manager".into(),
        }),
    }
}

/// What the exit code says.
fn verdict(report: &RunReport) -> Result<(), CliError> {
    if let Some(wrong) = report.verify.as_ref().map(|verify| &verify.verified)
        && let Some(first) = wrong.mismatches.first()
    {
        return Err(CliError::Failed {
            message: format!("what was read is not what should be there, {} times; {first}", wrong.blocks_wrong),
            hint: "if nobody else wrote to the volume meanwhile, its data is damaged: keep it as it is, and see \
                   `weft events` and the nodes' logs"
                .into(),
        });
    }
    match &report.failure {
        Some(failure) => Err(CliError::Failed {
            message: format!("the load ended early: {}", failure.message),
            hint: failure.hint.clone().unwrap_or_else(|| "`weft status` says how the fabric is".into()),
        }),
        None => Ok(()),
    }
}
