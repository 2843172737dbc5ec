//! `weft bench start-workload`: one load from many clients at once, each on a volume of its own, in the terms of DISKSPD.
//!
//! It owns what is measured (clients and volumes: `clients/`) and what comes of it (`outcome.rs`).

pub(crate) mod outcome;

pub use outcome::FleetFigures;

use crate::BenchError;
use crate::clients::{COPIES, ClientPlaces, MeasuredOn, Order, Together, run_together, with_own_volumes};
use crate::outcome::count;
use crate::plan::Pattern;
use crate::progress::progress;
use crate::run::refusal;
use crate::tool::Tool;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use weft_types::BLOCK_SIZE;

/// A load as DISKSPD describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetLoad {
    /// Bytes per request.
    pub block_bytes: u64,
    /// Threads of each client.
    pub threads: u32,
    /// Requests that each of them keeps in flight.
    pub outstanding: u32,
    /// How many of a hundred requests are writes.
    pub write_percent: u8,
    /// The order of offsets.
    pub pattern: Pattern,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// Where clients run.
    pub places: ClientPlaces,
    /// How many.
    pub clients: u32,
    /// What each of them does.
    pub load: FleetLoad,
    /// How long it is measured.
    pub duration: Duration,
    /// How long it goes on before that.
    pub warm_up: Duration,
    /// Bytes of each volume.
    pub volume_bytes: u64,
}

impl FleetOptions {
    fn check(&self) -> Result<(), BenchError> {
        let FleetLoad { block_bytes, threads, outstanding, .. } = self.load;
        let needed = block_bytes.saturating_mul(threads.into());
        let what = if self.clients == 0 || self.duration.is_zero() {
            "a workload of no clients or no time measures nothing".to_owned()
        // Volumes are attached shared.
        } else if let Some(what) = refusal(block_bytes, outstanding.into(), threads.into(), BLOCK_SIZE as u64)
        {
            what
        } else if needed > self.volume_bytes {
            format!(
                "volumes of {} bytes do not hold a request for each thread: at least {needed} are needed",
                self.volume_bytes
            )
        } else {
            return Ok(());
        };
        Err(BenchError::Invalid { what })
    }
}

/// Makes a volume for each client, has all of them put the load on their volumes, and deletes the volumes again, also if
/// it fails.
///
/// # Errors
/// [`BenchError::Invalid`], what the manager refuses (a volume of that name is there already), and what clients say.
pub fn fleet(options: &FleetOptions) -> Result<FleetFigures, BenchError> {
    options.check()?;
    let options = options.clone();
    weft_rt::block_on(async move {
        let measure = async |tool: &mut Tool, volumes: &[String]| measure(tool, &options, volumes).await;
        with_own_volumes(&options.places, options.clients, options.volume_bytes, measure).await
    })?
}

async fn measure(
    tool: &mut Tool,
    options: &FleetOptions,
    volumes: &[String],
) -> Result<FleetFigures, BenchError> {
    let on = MeasuredOn::look(tool, &options.places, COPIES).await?;
    let FleetLoad { block_bytes, threads, outstanding, write_percent, pattern } = options.load;
    let order = |(n, volume): (usize, &String)| Order {
        volume: volume.clone(),
        block_bytes,
        jobs: threads,
        depth: outstanding,
        pattern,
        read_percent: 100 - write_percent.min(100),
        runtime: options.duration,
        warm_up: options.warm_up,
        seed: (n as u64) << 32,
    };
    progress(&format!(
        "{} for {} s",
        count(options.clients as usize, "client"),
        options.duration.as_secs_f64()
    ));
    let span = (options.warm_up, options.duration);
    let orders = volumes.iter().enumerate().map(order);
    let (results, target_cores) = run_together(tool, &options.places, orders, span).await?;
    Ok(FleetFigures::new(on, options, Together::new(&options.places, volumes, results, target_cores)))
}
