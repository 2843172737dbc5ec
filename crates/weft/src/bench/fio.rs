//! `weft bench fio`: a job file of fio on every client node.

use super::failed;
use super::files::ResultFiles;
use super::places::{CLIENTS_MAX, PlacesArgs, failed_on};
use std::io::Read;
use std::path::{Path, PathBuf};
use weft_bench::{FioFigures, FioOnVolume, FioOptions, JobFile};
use weft_cli::{CliError, FabricPlace, Output, Size};

/// The largest job file: far more than anybody writes.
const JOB_FILE_BYTES_MAX: u64 = 1 << 20;

/// Arguments of `weft bench fio`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FioArgs {
    /// The job file; - for the standard input
    file: PathBuf,
    /// Clients, each a process with a volume of its own [default: one for each --on, or for every two processors here]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=CLIENTS_MAX))]
    clients: Option<u32>,
    #[command(flatten)]
    places: PlacesArgs,
    /// Bytes of each volume, all of which are written first
    #[arg(long, value_name = "SIZE", default_value = "1GiB", allow_hyphen_values = true)]
    size: Size,
    /// Run it here, on this volume, instead of on volumes that are made for it
    ///
    /// Blocks that were never written are not read from any drive: fill a new volume before reads of it are measured.
    #[arg(long, value_name = "VOLUME", conflicts_with_all = ["clients", "on", "size"])]
    volume: Option<String>,
    /// With --volume: run jobs that write even if the volume holds data, which is lost
    #[arg(long, visible_alias = "yes", requires = "volume")]
    overwrite: bool,
    /// With --volume: begin at this time, in milliseconds since 1970, so that several such commands begin together
    #[arg(long, value_name = "MS", requires = "volume")]
    begin_at: Option<u64>,
    /// Add all latencies of each job to the JSON, as pairs of nanoseconds and how many requests took so long
    #[arg(long)]
    latencies: bool,
    #[command(flatten)]
    files: ResultFiles,
}

pub(crate) fn run(args: &FioArgs, fabric: &FabricPlace, output: Output) -> Result<(), CliError> {
    args.files.check()?;
    let job_file = JobFile::parse(&read(&args.file)?).map_err(|e| failed(e.into(), "fio"))?;
    let figures = args.measure(job_file, fabric)?;
    let figures = if args.latencies { figures } else { figures.without_latencies() };
    args.files.show(&figures, "fio", output)
}

impl FioArgs {
    fn measure(&self, job_file: JobFile, fabric: &FabricPlace) -> Result<FioFigures, CliError> {
        let places = self.places.places(fabric)?;
        let measured = match &self.volume {
            Some(volume) => weft_bench::fio_on_volume(&FioOnVolume {
                program: places.program,
                managers: places.managers,
                volume: volume.clone(),
                job_file,
                overwrite: self.overwrite,
                begin_at_ms: self.begin_at,
            }),
            None => weft_bench::fio(&FioOptions {
                places,
                clients: self.clients.unwrap_or_else(|| self.places.clients_usual()),
                job_file,
                volume_bytes: self.size.0,
            }),
        };
        measured.map_err(failed_on(fabric, "fio"))
    }
}

/// The text of a job file.
fn read(path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let source: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(std::fs::File::open(path).map_err(CliError::file("read", path))?),
    };
    source.take(JOB_FILE_BYTES_MAX).read_to_string(&mut text).map_err(CliError::file("read", path))?;
    Ok(text)
}
