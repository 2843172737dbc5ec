//! What the matrix showed: for programs, and as text for people.

use super::{MatrixLoad, MatrixOptions, Volumes};
use crate::clients::{ClientsRun, MeasuredOn, Rates};
use crate::findings::Findings;
use crate::outcome::size_text;
use crate::report::{aligned, grouped};
use serde::{Deserialize, Serialize};

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
    pub median: ClientsRun,
    /// Its runs.
    pub runs: Vec<ClientsRun>,
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
            median: ClientsRun::default(),
            runs: vec![],
        }
    }

    pub(super) fn with(self, runs: Vec<ClientsRun>) -> Cell {
        Cell { median: ClientsRun::median(&runs), runs, ..self }
    }

    pub(crate) fn load(&self) -> MatrixLoad {
        MatrixLoad { block_bytes: self.block_bytes, jobs: self.jobs, depth: self.depth }
    }

    /// The same load on the same volumes, from however many clients.
    pub(crate) fn is_like(&self, other: &Cell) -> bool {
        (self.volumes, self.load(), self.is_read) == (other.volumes, other.load(), other.is_read)
    }

    /// What is done, without the number of clients.
    pub(crate) fn what(&self) -> String {
        let verb = if self.is_read { "read" } else { "write" };
        let on = match self.volumes {
            Volumes::Private => "private",
            Volumes::Shared => "shared",
        };
        format!("{verb} {} {on}", size_text(self.block_bytes))
    }

    /// What is done by how many.
    pub(crate) fn name(&self) -> String {
        format!("{}, {} x {} jobs x {} in flight", self.what(), self.clients, self.jobs, self.depth)
    }
}

/// The whole matrix.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "benchmark", rename = "matrix")]
pub struct MatrixFigures {
    /// What it was measured on.
    #[serde(flatten)]
    pub on: MeasuredOn,
    /// How long each run was measured, in seconds.
    pub runtime_s: f64,
    /// Bytes of each volume.
    pub volume_bytes: u64,
    /// What was measured.
    pub cells: Vec<Cell>,
}

impl MatrixFigures {
    pub(super) fn new(on: MeasuredOn, options: &MatrixOptions, cells: Vec<Cell>) -> MatrixFigures {
        MatrixFigures {
            on,
            runtime_s: options.runtime.as_secs_f64(),
            volume_bytes: options.volume_bytes,
            cells,
        }
    }

    pub(super) fn how(&self) -> String {
        let runs = self.cells.first().map_or(0, |cell| cell.runs.len());
        format!("volumes of {}, medians of {runs} runs of {} s", size_text(self.volume_bytes), self.runtime_s)
    }

    pub(super) fn rows(&self) -> Vec<Vec<String>> {
        let mut head = vec!["load", "clients", "jobs", "depth"];
        head.extend(Rates::HEAD);
        head.extend(["clients' cores", "targets'", "iops/core", "fairness"]);
        let row = |cell: &Cell| {
            let m = &cell.median;
            let mut cells = vec![cell.what()];
            cells.extend([cell.clients, cell.jobs, cell.depth].map(|n| n.to_string()));
            cells.extend(m.rates.cells());
            cells.extend([m.client_cores, m.target_cores].map(|cores| format!("{cores:.2}")));
            cells.extend([grouped(m.iops_per_core), format!("{:.2}", m.fairness)]);
            cells
        };
        std::iter::once(head.into_iter().map(str::to_owned).collect())
            .chain(self.cells.iter().map(row))
            .collect()
    }
}

impl Findings for MatrixFigures {
    fn text(&self) -> String {
        format!("{}{}\n\n{}", self.on.text(), self.how(), aligned(&self.rows()))
    }

    fn html(&self) -> String {
        self.page()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::MATRIX_LOADS;
    use super::*;
    use crate::clients::measured_on::tests::measured_on;
    use crate::clients::order::tests::result;

    pub(crate) fn figures() -> MatrixFigures {
        figures_of(&[1, 2, 4])
    }

    pub(crate) fn figures_of(numbers: &[u32]) -> MatrixFigures {
        let options = super::super::tests::options();
        let mut cells = Vec::new();
        for is_read in [true, false] {
            for load in MATRIX_LOADS {
                for &clients in numbers {
                    let client = result(10_000, 1.0, 100 * u64::from(clients));
                    let results = vec![client; clients as usize];
                    let run = ClientsRun::new(&results, 0.5);
                    let cell = Cell::new(Volumes::Private, load, is_read, clients);
                    cells.push(cell.with(vec![run; 3]));
                }
            }
        }
        MatrixFigures::new(measured_on(&[]), &options, cells)
    }

    #[test]
    fn every_cell_is_a_row() {
        let figures = figures();
        let text = figures.text();
        assert_eq!(text.lines().count(), 4 + 1 + figures.cells.len(), "{text}");
        assert!(text.contains("p50 us") && text.contains("max us"), "{text}");
        assert!(text.contains("read 4 KiB private") && text.contains("write 1 MiB private"), "{text}");
    }
}
