//! Two results of the matrix beside each other.

use super::outcome::{Cell, SCHEMA_VERSION};
use crate::BenchError;
use crate::report::{aligned, grouped, rounded};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What is read of a result.
#[derive(Deserialize)]
struct Document {
    schema_version: u32,
    cells: Vec<Cell>,
}

/// A cell that both results have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// What was done.
    pub load: String,
    /// By how many clients.
    pub clients: u32,
    /// Requests per second, of the first and the second.
    pub iops: [f64; 2],
    /// The second over the first.
    pub iops_ratio: f64,
    /// The 99th percentile of latency in microseconds, of the first and the second.
    pub p99_us: [f64; 2],
    /// The second over the first.
    pub p99_ratio: f64,
    /// Requests per second and processor, the second over the first.
    pub iops_per_core_ratio: f64,
}

/// Two results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Cells that both have, in the order of the first.
    pub cells: Vec<Compared>,
    /// Cells that only one of them has.
    pub unmatched: usize,
}

/// Compares two results that [`super::MatrixFigures::write_json`] has written.
///
/// # Errors
/// If a file cannot be read, or is no such result.
pub fn compare(first: &Path, second: &Path) -> Result<Comparison, BenchError> {
    Ok(Comparison::of(&read(first)?, &read(second)?))
}

fn read(path: &Path) -> Result<Vec<Cell>, BenchError> {
    let file = |source| BenchError::File { action: "read", path: path.to_owned(), source };
    let invalid = |what: String| BenchError::Invalid { what: format!("{}: {what}", path.display()) };
    let bytes = std::fs::read(path).map_err(file)?;
    let document: Document = serde_json::from_slice(&bytes)
        .map_err(|e| invalid(format!("no result of `weft bench matrix`: {e}")))?;
    match document.schema_version {
        SCHEMA_VERSION => Ok(document.cells),
        other => Err(invalid(format!("a result of form {other}; this program knows form {SCHEMA_VERSION}"))),
    }
}

impl Comparison {
    fn of(first: &[Cell], second: &[Cell]) -> Comparison {
        let same = |a: &Cell, b: &Cell| a.is_like(b) && a.clients == b.clients;
        let pairs = first.iter().filter_map(|a| Some((a, second.iter().find(|b| same(a, b))?)));
        let cells: Vec<Compared> = pairs.map(|(a, b)| Compared::of(a, b)).collect();
        let unmatched = first.len() + second.len() - 2 * cells.len();
        Comparison { cells, unmatched }
    }

    /// As text for people.
    pub fn text(&self) -> String {
        let head = ["load", "clients", "iops", "then", "ratio", "p99 us", "then", "ratio", "iops/core ratio"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for cell in &self.cells {
            let ratio = |ratio: f64| format!("{ratio:.2}");
            let [before, after] = cell.iops.map(grouped);
            let [p99_before, p99_after] = cell.p99_us.map(grouped);
            rows.push(vec![
                cell.load.clone(),
                cell.clients.to_string(),
                before,
                after,
                ratio(cell.iops_ratio),
                p99_before,
                p99_after,
                ratio(cell.p99_ratio),
                ratio(cell.iops_per_core_ratio),
            ]);
        }
        let mut text = aligned(&rows);
        if self.unmatched > 0 {
            text += &format!("{} figures are in one of the two only\n", self.unmatched);
        }
        text
    }
}

impl Compared {
    fn of(a: &Cell, b: &Cell) -> Compared {
        let ratio = |from: f64, to: f64| if from > 0.0 { rounded(to / from, 0.001) } else { 0.0 };
        let (x, y) = (&a.median, &b.median);
        Compared {
            load: a.what(),
            clients: a.clients,
            iops: [x.iops, y.iops],
            iops_ratio: ratio(x.iops, y.iops),
            p99_us: [x.p99_us, y.p99_us],
            p99_ratio: ratio(x.p99_us, y.p99_us),
            iops_per_core_ratio: ratio(x.iops_per_core, y.iops_per_core),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::figures;
    use super::*;

    #[test]
    fn a_result_is_compared_with_another_as_it_was_written() {
        let folder = std::env::temp_dir().join(format!("weft-compare-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (one, two) = (folder.join("one.json"), folder.join("two.json"));
        let mut figures = figures();
        figures.write_json(&one).unwrap();
        let dropped = figures.cells.pop().expect("there are some");
        figures.cells[0].median.iops *= 1.5;
        figures.write_json(&two).unwrap();
        let found = compare(&one, &two).unwrap();
        assert_eq!((found.cells.len(), found.unmatched), (figures.cells.len(), 1));
        assert_eq!((found.cells[0].iops_ratio, found.cells[1].iops_ratio), (1.5, 1.0));
        assert!(found.text().contains("1.50"), "{}", found.text());
        assert!(
            !found.cells.iter().any(|c| (c.load.clone(), c.clients) == (dropped.what(), dropped.clients))
        );
        std::fs::write(&two, "{\"schema_version\": 9, \"cells\": []}").unwrap();
        assert!(compare(&one, &two).unwrap_err().to_string().contains("form 9"));
        std::fs::write(&two, "[]").unwrap();
        assert!(compare(&one, &two).unwrap_err().to_string().contains("no result"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
