//! `weft bench matrix`: loads of several block sizes from one client node to many, on volumes of their own and on one that
//! they share, as figures, tables and charts against the number of clients.
//!
//! A client node is a process of its own (`client.rs`). It owns the volumes that it makes, in what order what is measured,
//! and what comes of the clients' results (`outcome.rs`, `page.rs`). It starts no fabric.

mod client;
mod compare;
mod outcome;
mod page;

pub use compare::{Comparison, compare};
pub use outcome::{Cell, MatrixFigures, MatrixRun};

use crate::BenchError;
use crate::affinity;
use crate::load::Load;
use crate::machine::Machine;
use crate::progress::progress;
use crate::tool::{Tool, not_an_answer};
use client::{Client, Order};
use std::path::PathBuf;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest, FabricLoad, FailureDomain};
use weft_client::{AttachMode, AttachOptions, Fabric};
use weft_rt::{Addr, now, sleep, sleep_until, wall_clock_us};

/// How long before they begin clients are started: what a process takes to start and attach on a busy machine.
const STARTS_BEFORE: Duration = Duration::from_secs(2);

/// How long a volume may take to be gone, and how often it is looked whether it is.
const GONE_WITHIN: Duration = Duration::from_secs(60);
const GONE_LOOKED_AT: Duration = Duration::from_millis(100);

/// The copies of each block.
const COPIES: u8 = 2;

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
    /// The weft binary, as this machine has it.
    pub program: PathBuf,
    /// Where the fabric's managers may answer, for every client.
    pub managers: Vec<Addr>,
    /// What is put in front of a client's command line, in turn: empty for a process here, `ssh HOST` for one there.
    pub on: Vec<Vec<String>>,
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
        if self.runs == 0 || self.runtime.is_zero() || self.loads.is_empty() || self.on.is_empty() {
            return wrong("a matrix of no runs, no time, no loads or no machines measures nothing".into());
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
            Volumes::Private => format!("weft-bench-{}", client + 1),
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
        let mut tool = Tool::new(options.managers.clone());
        let volumes = options.all_volumes();
        let mut made = Vec::new();
        let measured = match make(&mut tool, &options, &volumes, &mut made).await {
            Ok(()) => measure(&mut tool, &options).await,
            Err(error) => Err(error),
        };
        for name in made {
            if let Err(error) = unmake(&mut tool, &name).await {
                tracing::warn!(volume = name, %error, "the volume stays behind");
            }
        }
        measured
    })?
}

/// Makes the volumes, and writes all of each, so that reads find data.
async fn make(
    tool: &mut Tool,
    options: &MatrixOptions,
    volumes: &[String],
    made: &mut Vec<String>,
) -> Result<(), BenchError> {
    for name in volumes {
        let request = ApiRequest::VolumeCreate {
            name: name.clone(),
            size_bytes: options.volume_bytes,
            copies: COPIES,
            pool: None,
            stripe_unit_bytes: None,
            width: None,
            failure_domain: FailureDomain::Node,
            thin: false,
            dry_run: false,
        };
        tool.ask("volume-create", &request).await?;
        made.push(name.clone());
    }
    let fabric = Fabric::connect(&options.managers, "weft bench matrix").await?;
    for (n, name) in volumes.iter().enumerate() {
        progress(&format!("fill volume {} of {}", n + 1, volumes.len()));
        let attach = AttachOptions { mode: AttachMode::Exclusive, ..AttachOptions::default() };
        let volume = fabric.attach(name, attach).await?;
        let filled = Load::filling(0..options.volume_bytes, n as u64).run(&volume).await;
        volume.detach().await;
        filled?;
    }
    Ok(())
}

/// Deletes a volume, and waits until it is gone: the next run needs its name.
async fn unmake(tool: &mut Tool, name: &str) -> Result<(), BenchError> {
    let request = ApiRequest::VolumeDelete { name: name.to_owned(), force: true, dry_run: false };
    tool.ask("volume-delete", &request).await?;
    let until = now() + GONE_WITHIN;
    let show = ApiRequest::VolumeShow { name: name.to_owned() };
    while now() < until && tool.ask("volume-show", &show).await.is_ok() {
        sleep(GONE_LOOKED_AT).await;
    }
    Ok(())
}

async fn measure(tool: &mut Tool, options: &MatrixOptions) -> Result<MatrixFigures, BenchError> {
    let machine = Machine::describe(affinity::own_cores()?.len()).with_commit();
    let layout = layout(tool).await?;
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
    Ok(MatrixFigures::new(machine, layout, options, cells))
}

/// The nodes and drives in a line.
async fn layout(tool: &mut Tool) -> Result<String, BenchError> {
    match tool.ask("status", &ApiRequest::Status {}).await? {
        ApiAnswer::Status(status) => {
            let drives: usize = status.nodes.iter().map(|node| node.drives).sum();
            Ok(format!("{} nodes with {drives} drives, {COPIES} copies", status.nodes.len()))
        }
        _ => Err(not_an_answer("status")),
    }
}

/// Measures a cell once: all clients begin at the same time.
async fn run(tool: &mut Tool, options: &MatrixOptions, cell: &Cell) -> Result<MatrixRun, BenchError> {
    let begin = now() + STARTS_BEFORE;
    let begin_at_ms = (wall_clock_us() / 1000).saturating_add(STARTS_BEFORE.as_millis() as u64);
    let mut clients = Vec::new();
    for n in 0..cell.clients {
        let order = Order {
            volume: options.volume(cell.volumes, n),
            load: cell.load(),
            is_read: cell.is_read,
            runtime: options.runtime,
            warm_up: options.warm_up,
            seed: u64::from(n) << 32,
            begin_at_ms,
        };
        let on = &options.on[n as usize % options.on.len()];
        clients.push(Client::start(&options.program, on, &options.managers, &order, n + 1)?);
    }
    // Within what is measured, by a tenth on both sides: clients do not begin to the microsecond.
    let margin = options.runtime / 10;
    sleep_until(begin + options.warm_up + margin).await;
    let before = tool.load().await?;
    sleep_until(begin + options.warm_up + (options.runtime - margin)).await;
    let after = tool.load().await?;
    let mut results = Vec::new();
    for client in clients {
        results.push(client.wait().await?);
    }
    Ok(MatrixRun::new(&results, cell.block_bytes, cores(&before, &after)))
}

/// CPU seconds per second of all targets between two looks at their counters.
fn cores(before: &FabricLoad, after: &FabricLoad) -> f64 {
    let of = |node: &weft_api::NodeLoad| {
        let then = before.nodes.iter().find(|n| n.id == node.id && n.incarnation == node.incarnation)?;
        let (from, to) = (then.process.as_ref()?, node.process.as_ref()?);
        let passed = node.at_us.saturating_sub(then.at_us);
        let used = to.cpu_us.saturating_sub(from.cpu_us);
        (passed > 0).then(|| used as f64 / passed as f64)
    };
    after.nodes.iter().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn options() -> MatrixOptions {
        MatrixOptions {
            program: "weft".into(),
            managers: vec![],
            on: vec![vec![]],
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
