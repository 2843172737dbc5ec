//! `weft bench matrix`: loads of several block sizes from one client node to many, on volumes of their own and on one that
//! they share, as figures, tables and charts against the number of clients.
//!
//! It owns in what order what is measured (clients and volumes: `clients/`), and what comes of it (`outcome.rs`,
//! `page.rs`).

pub(crate) mod outcome;
mod page;

pub use outcome::{Cell, MatrixFigures};

use crate::BenchError;
use crate::clients::{
    COPIES, ClientPlaces, ClientsRun, MeasuredOn, Order, own_volume, run_together, with_volumes,
};
use crate::plan::Pattern;
use crate::progress::progress;
use crate::tool::Tool;
use std::time::Duration;

/// A load of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixLoad {
    /// Bytes per request.
    pub block_bytes: u64,
    /// Threads of each client, each with an attach of its own.
    pub jobs: u32,
    /// Requests that each of them keeps in flight.
    pub depth: u32,
}

/// The loads of the plan that was published for NVMesh on 24 machines.
pub const MATRIX_LOADS: [MatrixLoad; 4] = [
    MatrixLoad { block_bytes: 4 << 10, jobs: 64, depth: 64 },
    MatrixLoad { block_bytes: 8 << 10, jobs: 64, depth: 64 },
    MatrixLoad { block_bytes: 64 << 10, jobs: 64, depth: 8 },
    MatrixLoad { block_bytes: 1 << 20, jobs: 8, depth: 4 },
];

/// Which volumes clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Volumes {
    /// Each its own.
    Private,
    /// All the same.
    Shared,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct MatrixOptions {
    /// Where clients run.
    pub places: ClientPlaces,
    /// Numbers of clients, ascending.
    pub clients: Vec<u32>,
    /// The loads.
    pub loads: Vec<MatrixLoad>,
    /// Whether to read, and to write.
    pub directions: Vec<bool>,
    /// On which volumes.
    pub volumes: Vec<Volumes>,
    /// How often each is measured; medians are told.
    pub runs: usize,
    /// How long each is measured.
    pub runtime: Duration,
    /// How long each goes on before that.
    pub warm_up: Duration,
    /// Bytes of each volume.
    pub volume_bytes: u64,
}

impl MatrixOptions {
    fn clients_max(&self) -> u32 {
        self.clients.iter().copied().max().unwrap_or(0)
    }

    fn check(&self) -> Result<(), BenchError> {
        let wrong = |what: String| Err(BenchError::Invalid { what });
        if self.clients.contains(&0) || self.clients_max() == 0 {
            return wrong("a matrix needs at least one client".into());
        }
        if self.runs == 0 || self.runtime.is_zero() || self.loads.is_empty() {
            return wrong("a matrix of no runs, no time or no loads measures nothing".into());
        }
        let jobs = self.loads.iter().map(|load| u64::from(load.jobs) * load.block_bytes).max();
        match jobs {
            Some(bytes) if bytes > self.volume_bytes => wrong(format!(
                "volumes of {} bytes do not hold a request for each job: at least {bytes} are needed",
                self.volume_bytes
            )),
            _ => Ok(()),
        }
    }

    /// The volume of a client, counted from 0 on.
    fn volume(&self, volumes: Volumes, client: u32) -> String {
        match volumes {
            Volumes::Private => own_volume(client),
            Volumes::Shared => "weft-bench-shared".into(),
        }
    }

    /// All volumes that are used.
    fn all_volumes(&self) -> Vec<String> {
        let of = |volumes: &Volumes| match volumes {
            Volumes::Private => (0..self.clients_max()).map(|n| self.volume(*volumes, n)).collect(),
            Volumes::Shared => vec![self.volume(*volumes, 0)],
        };
        self.volumes.iter().flat_map(of).collect()
    }
}

/// Makes volumes, measures every cell of the matrix, and deletes the volumes again, also if it fails.
///
/// # Errors
/// [`BenchError::Invalid`], what the manager refuses (a volume of that name is there already), and what clients say.
pub fn matrix(options: &MatrixOptions) -> Result<MatrixFigures, BenchError> {
    options.check()?;
    let options = options.clone();
    weft_rt::block_on(async move {
        let mut tool = Tool::new(options.places.managers.clone());
        let volumes = options.all_volumes();
        let measure = async |tool: &mut Tool| measure(tool, &options).await;
        with_volumes(&mut tool, &options.places, &volumes, options.volume_bytes, measure).await
    })?
}

async fn measure(tool: &mut Tool, options: &MatrixOptions) -> Result<MatrixFigures, BenchError> {
    let on = MeasuredOn::look(tool, &options.places, COPIES).await?;
    let mut cells = Vec::new();
    for volumes in &options.volumes {
        for load in &options.loads {
            for is_read in &options.directions {
                for clients in &options.clients {
                    let cell = Cell::new(*volumes, *load, *is_read, *clients);
                    let mut runs = Vec::with_capacity(options.runs);
                    for n in 1..=options.runs {
                        progress(&format!("{}, {n} of {}", cell.name(), options.runs));
                        runs.push(run(tool, options, &cell).await?);
                    }
                    cells.push(cell.with(runs));
                }
            }
        }
    }
    Ok(MatrixFigures::new(on, options, cells))
}

/// Measures a cell once: all clients begin at the same time.
async fn run(tool: &mut Tool, options: &MatrixOptions, cell: &Cell) -> Result<ClientsRun, BenchError> {
    let order = |n: u32| Order {
        volume: options.volume(cell.volumes, n),
        block_bytes: cell.block_bytes,
        jobs: cell.jobs,
        depth: cell.depth,
        pattern: Pattern::Random,
        read_percent: if cell.is_read { 100 } else { 0 },
        runtime: options.runtime,
        warm_up: options.warm_up,
        seed: u64::from(n) << 32,
    };
    let orders = (0..cell.clients).map(order);
    let span = (options.warm_up, options.runtime);
    let (results, target_cores) = run_together(tool, &options.places, orders, span).await?;
    Ok(ClientsRun::new(&results, target_cores))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn options() -> MatrixOptions {
        MatrixOptions {
            places: ClientPlaces { program: "weft".into(), managers: vec![], on: vec![] },
            clients: vec![1, 2],
            loads: MATRIX_LOADS.to_vec(),
            directions: vec![true, false],
            volumes: vec![Volumes::Private, Volumes::Shared],
            runs: 3,
            runtime: Duration::from_secs(60),
            warm_up: Duration::from_secs(2),
            volume_bytes: 1 << 30,
        }
    }

    #[test]
    fn each_client_has_a_volume_of_its_own_and_all_have_one() {
        assert_eq!(options().all_volumes(), ["weft-bench-1", "weft-bench-2", "weft-bench-shared"]);
    }

    #[test]
    fn what_measures_nothing_is_refused() {
        assert!(options().check().is_ok());
        for (bad, word) in [
            (MatrixOptions { clients: vec![], ..options() }, "one client"),
            (MatrixOptions { clients: vec![0, 1], ..options() }, "one client"),
            (MatrixOptions { runs: 0, ..options() }, "no runs"),
            (MatrixOptions { volume_bytes: 1 << 20, ..options() }, "for each job"),
        ] {
            let error = bad.check().expect_err(word).to_string();
            assert!(error.contains(word), "'{word}' is not in '{error}'");
        }
    }
}
