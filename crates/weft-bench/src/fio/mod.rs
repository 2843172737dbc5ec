//! `weft bench fio`: a job file of fio on every client node, over NBD, and what they measured as one result.
//!
//! It owns what of a job file is replaced (`job_file.rs`), how a client runs it on its volume (`on_volume.rs`), and what
//! comes of it (`said.rs`, `outcome.rs`). fio is a process; clients and their volumes are those of `clients/`.

mod error;
mod job_file;
mod on_volume;
pub(crate) mod outcome;
mod said;

pub use error::FioError;
pub use job_file::JobFile;
pub use on_volume::{FioOnVolume, fio_on_volume};
pub use outcome::{Direction, FioFigures, FioJob};

use crate::BenchError;
use crate::clients::{Begin, COPIES, ClientPlaces, Clients, MeasuredOn, cpu_s, with_own_volumes};
use crate::outcome::count;
use crate::progress::progress;
use crate::tool::Tool;
use outcome::FioRun;

/// What to run, where.
#[derive(Clone, Debug)]
pub struct FioOptions {
    /// Where clients run.
    pub places: ClientPlaces,
    /// How many, at least 1.
    pub clients: u32,
    /// What each of them runs.
    pub job_file: JobFile,
    /// Bytes of each volume.
    pub volume_bytes: u64,
}

/// Makes a volume for each client, has fio run the job file on all of them at once, and deletes the volumes again, also
/// if it fails.
///
/// # Errors
/// [`BenchError::Fio`] if fio cannot run it here and clients are here, what the manager refuses (a volume of that name is
/// there already), and what clients say.
pub fn fio(options: &FioOptions) -> Result<FioFigures, BenchError> {
    let options = options.clone();
    weft_rt::block_on(async move {
        if options.places.on.is_empty() {
            on_volume::check(&options.job_file).await?;
        }
        let measure = async |tool: &mut Tool, volumes: &[String]| measure(tool, &options, volumes).await;
        with_own_volumes(&options.places, options.clients, options.volume_bytes, measure).await
    })?
}

async fn measure(
    tool: &mut Tool,
    options: &FioOptions,
    volumes: &[String],
) -> Result<FioFigures, BenchError> {
    let on = MeasuredOn::look(tool, &options.places, COPIES).await?;
    progress(&format!("fio on {}", count(options.clients as usize, "client")));
    let begin = Begin::soon();
    let words = volumes.iter().map(|volume| {
        let begin_at = begin.at_ms.to_string();
        let words = ["bench", "fio", "-", "--volume", volume, "--begin-at", &begin_at];
        let options = ["--overwrite", "--latencies", "--json"];
        words.into_iter().chain(options).map(str::to_owned).collect()
    });
    let mut clients = Clients::start(&options.places, words, Some(options.job_file.text()))?;
    clients.until(begin.at).await?;
    let before = tool.load().await?;
    let runs: Vec<FioRun> = clients.results().await?;
    let target_cpu_s = cpu_s(&before, &tool.load().await?);
    let volumes = (volumes, options.volume_bytes);
    Ok(FioFigures::new(on, &options.places, &options.job_file, volumes, runs, target_cpu_s))
}
