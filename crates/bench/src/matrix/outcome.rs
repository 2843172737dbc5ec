//! What the matrix showed: for programs, and as text for people.

use super::client::ClientResult;
use super::{MatrixLoad, MatrixOptions, Volumes};
use crate::BenchError;
use crate::latency::Completed;
use crate::machine::Machine;
use crate::outcome::size_text;
use crate::report::{aligned, document, grouped, median, replace, rounded};
use crate::timeline::quantile_us;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;

/// The form of the document.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// One run of a cell: all clients together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MatrixRun {
    /// Requests per second.
    pub iops: f64,
    /// Megabytes (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Mean latency in microseconds, as all that follow.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// What one request in a hundred exceeds.
    pub p99_us: f64,
    /// What one request in a thousand exceeds.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Processors that the clients kept busy.
    pub client_cores: f64,
    /// Processors that the targets kept busy, in the middle eight tenths of the time.
    pub target_cores: f64,
    /// Requests per second and processor that was busy.
    pub iops_per_core: f64,
    /// Requests per second of the slowest client over that of the fastest.
    pub fairness: f64,
}

impl MatrixRun {
    pub(super) fn new(clients: &[ClientResult], block_bytes: u64, target_cores: f64) -> MatrixRun {
        let mut all = Completed::new();
        let (mut iops, mut client_cores) = (0.0, 0.0);
        let (mut slowest, mut fastest) = (f64::INFINITY, 0.0f64);
        for client in clients.iter().filter(|client| client.elapsed_s > 0.0) {
            let rate = client.total.requests as f64 / client.elapsed_s;
            iops += rate;
            client_cores += client.cpu_s / client.elapsed_s;
            (slowest, fastest) = (slowest.min(rate), fastest.max(rate));
            for (ns, count) in &client.latencies_ns {
                all.requests += count;
                all.latency_ns.saturating_record_n(*ns, *count);
            }
        }
        let us = |quantile| quantile_us(&all.latency_ns, quantile).unwrap_or(0.0);
        let cores = client_cores + target_cores;
        MatrixRun {
            iops: rounded(iops, 0.1),
            mb_per_s: rounded(iops * block_bytes as f64 / 1e6, 0.1),
            mean_us: rounded(
                if all.latency_ns.is_empty() { 0.0 } else { all.latency_ns.mean() / 1000.0 },
                0.1,
            ),
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: us(1.0),
            client_cores: rounded(client_cores, 0.01),
            target_cores: rounded(target_cores, 0.01),
            iops_per_core: rounded(if cores > 0.0 { iops / cores } else { 0.0 }, 0.1),
            fairness: rounded(if fastest > 0.0 { slowest / fastest } else { 0.0 }, 0.01),
        }
    }

    /// The median of each figure.
    fn median(runs: &[MatrixRun]) -> MatrixRun {
        let of = |figure: fn(&MatrixRun) -> f64| median(runs.iter().map(figure).collect());
        MatrixRun {
            iops: of(|r| r.iops),
            mb_per_s: of(|r| r.mb_per_s),
            mean_us: of(|r| r.mean_us),
            p50_us: of(|r| r.p50_us),
            p99_us: of(|r| r.p99_us),
            p999_us: of(|r| r.p999_us),
            max_us: of(|r| r.max_us),
            client_cores: of(|r| r.client_cores),
            target_cores: of(|r| r.target_cores),
            iops_per_core: of(|r| r.iops_per_core),
            fairness: of(|r| r.fairness),
        }
    }
}

/// A load from a number of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Which volumes the clients used.
    pub volumes: Volumes,
    /// Bytes per request.
    pub block_bytes: u64,
    /// Whether they read; otherwise they wrote.
    pub is_read: bool,
    /// Threads of each client.
    pub jobs: u32,
    /// Requests that each thread kept in flight.
    pub depth: u32,
    /// How many clients.
    pub clients: u32,
    /// The medians of its runs.
    pub median: MatrixRun,
    /// Its runs.
    pub runs: Vec<MatrixRun>,
}

impl Cell {
    pub(super) fn new(volumes: Volumes, load: MatrixLoad, is_read: bool, clients: u32) -> Cell {
        let MatrixLoad { block_bytes, jobs, depth } = load;
        Cell {
            volumes,
            block_bytes,
            is_read,
            jobs,
            depth,
            clients,
            median: MatrixRun::default(),
            runs: vec![],
        }
    }

    pub(super) fn with(self, runs: Vec<MatrixRun>) -> Cell {
        Cell { median: MatrixRun::median(&runs), runs, ..self }
    }

    pub(super) fn load(&self) -> MatrixLoad {
        MatrixLoad { block_bytes: self.block_bytes, jobs: self.jobs, depth: self.depth }
    }

    /// The same load on the same volumes, from however many clients.
    pub(super) fn is_like(&self, other: &Cell) -> bool {
        (self.volumes, self.load(), self.is_read) == (other.volumes, other.load(), other.is_read)
    }

    /// What is done, without the number of clients.
    pub(super) fn what(&self) -> String {
        let verb = if self.is_read { "read" } else { "write" };
        let on = match self.volumes {
            Volumes::Private => "private",
            Volumes::Shared => "shared",
        };
        format!("{verb} {} {on}", size_text(self.block_bytes))
    }

    /// What is done by how many.
    pub(super) fn name(&self) -> String {
        format!("{}, {} x {} jobs x {} in flight", self.what(), self.clients, self.jobs, self.depth)
    }
}

/// The whole matrix.
#[derive(Clone, Debug, Serialize)]
pub struct MatrixFigures {
    /// Where the coordinator ran, and what it was built from.
    pub machine: Machine,
    /// The program's version.
    pub weft_version: &'static str,
    /// The fabric's nodes, drives and copies.
    pub layout: String,
    /// How long each run was measured, in seconds.
    pub runtime_s: f64,
    /// Bytes of each volume.
    pub volume_bytes: u64,
    /// Commands that brought clients to other machines; empty: all ran here.
    pub on: Vec<String>,
    /// What was measured.
    pub cells: Vec<Cell>,
}

impl MatrixFigures {
    pub(super) fn new(
        machine: Machine,
        layout: String,
        options: &MatrixOptions,
        cells: Vec<Cell>,
    ) -> MatrixFigures {
        MatrixFigures {
            machine,
            weft_version: env!("CARGO_PKG_VERSION"),
            layout,
            runtime_s: options.runtime.as_secs_f64(),
            volume_bytes: options.volume_bytes,
            on: options.on.iter().map(|words| words.join(" ")).filter(|words| !words.is_empty()).collect(),
            cells,
        }
    }

    /// As text for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", self.machine);
        let _ = writeln!(out, "{}\n", self.how());
        out + &aligned(&self.rows())
    }

    pub(super) fn how(&self) -> String {
        let runs = self.cells.first().map_or(0, |cell| cell.runs.len());
        format!(
            "commit {}, {}; {}; volumes of {}, medians of {runs} runs of {} s",
            self.machine.commit_text(),
            self.machine.date,
            self.layout,
            size_text(self.volume_bytes),
            self.runtime_s
        )
    }

    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        let head = [
            "load",
            "clients",
            "jobs",
            "depth",
            "iops",
            "MB/s",
            "mean us",
            "p50",
            "p99",
            "p99.9",
            "clients' cores",
            "targets'",
            "iops/core",
            "fairness",
        ];
        let row = |cell: &Cell| {
            let m = &cell.median;
            let mut cells = vec![cell.what()];
            cells.extend([cell.clients, cell.jobs, cell.depth].map(|n| n.to_string()));
            let figures = [m.iops, m.mb_per_s, m.mean_us, m.p50_us, m.p99_us, m.p999_us];
            cells.extend(figures.map(grouped));
            cells.extend([m.client_cores, m.target_cores].map(|cores| format!("{cores:.2}")));
            cells.extend([grouped(m.iops_per_core), format!("{:.2}", m.fairness)]);
            cells
        };
        std::iter::once(head.map(str::to_owned).to_vec()).chain(self.cells.iter().map(row)).collect()
    }

    /// Writes the figures as JSON, replacing the file at once or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_json(&self, path: &Path) -> Result<(), BenchError> {
        #[derive(Serialize)]
        struct Document<'a> {
            schema_version: u32,
            #[serde(flatten)]
            figures: &'a MatrixFigures,
        }
        replace(path, &document(&Document { schema_version: SCHEMA_VERSION, figures: self }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::MATRIX_LOADS;
    use super::super::client::Total;
    use super::*;
    use crate::machine::tests::machine;

    fn client(requests: u64, elapsed_s: f64, us: u64) -> ClientResult {
        ClientResult {
            elapsed_s,
            cpu_s: elapsed_s / 2.0,
            total: Total { requests },
            latencies_ns: vec![(us * 1000, requests)],
        }
    }

    pub(crate) fn figures() -> MatrixFigures {
        let options = super::super::tests::options();
        let mut cells = Vec::new();
        for is_read in [true, false] {
            for load in MATRIX_LOADS {
                for clients in [1, 2, 4] {
                    let client = client(10_000, 1.0, 100 * u64::from(clients));
                    let results = vec![client; clients as usize];
                    let run = MatrixRun::new(&results, load.block_bytes, 0.5);
                    let cell = Cell::new(Volumes::Private, load, is_read, clients);
                    cells.push(cell.with(vec![run; 3]));
                }
            }
        }
        MatrixFigures::new(machine(Some("abc")), "4 nodes".into(), &options, cells)
    }

    #[test]
    fn clients_are_added_up_and_their_latencies_taken_together() {
        let run = MatrixRun::new(&[client(9_000, 1.0, 100), client(1_000, 2.0, 5_000)], 4096, 1.0);
        assert_eq!((run.iops, run.mb_per_s), (9_500.0, 38.9));
        assert!((99.0..=101.0).contains(&run.p50_us) && (4_990.0..=5_010.0).contains(&run.p99_us), "{run:?}");
        assert_eq!((run.client_cores, run.target_cores, run.iops_per_core), (1.0, 1.0, 4_750.0));
        assert_eq!(run.fairness, 0.06);
        assert_eq!(MatrixRun::new(&[], 4096, 0.0), MatrixRun::default());
    }

    #[test]
    fn every_cell_is_a_row() {
        let figures = figures();
        let text = figures.text();
        assert_eq!(text.lines().count(), 3 + 1 + figures.cells.len(), "{text}");
        assert!(text.contains("read 4 KiB private") && text.contains("write 1 MiB private"), "{text}");
    }
}
