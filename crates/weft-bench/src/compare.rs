//! Two results of the same benchmark beside each other.

use crate::BenchError;
use crate::clients::{ClientsRun, Rates};
use crate::findings::SCHEMA_VERSION;
use crate::fio::FioJob;
use crate::fleet::FleetLoad;
use crate::matrix::Cell;
use crate::report::{aligned, grouped, rounded};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What is looked at before anything else of a result.
#[derive(Deserialize)]
struct Form {
    schema_version: u32,
}

/// What is read of a result.
#[derive(Deserialize)]
#[serde(tag = "benchmark", rename_all = "kebab-case")]
enum Found {
    Matrix { cells: Vec<Cell> },
    Workload { load: FleetLoad, clients: Vec<Nothing>, total: ClientsRun },
    Fio { jobs: Vec<FioJob>, clients: Vec<Nothing>, total: ClientsRun },
}

/// A client, of which only matters that it is there.
#[derive(Deserialize)]
struct Nothing {}

/// A figure that two results may share.
struct Entry {
    /// All that has to be the same.
    key: String,
    /// What was done.
    load: String,
    clients: u32,
    rates: Rates,
    /// None where it is not known for this alone.
    iops_per_core: Option<f64>,
}

/// What both results have.
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
    /// Requests per second and processor, the second over the first; none where that is not known for this alone.
    pub iops_per_core_ratio: Option<f64>,
}

/// Two results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// What both have, in the order of the first.
    pub cells: Vec<Compared>,
    /// How much only one of them has.
    pub unmatched: usize,
}

/// Compares two results of [`crate::matrix()`], [`crate::fleet()`] or [`crate::fio()`] that [`crate::Findings::write_json`] has written.
///
/// # Errors
/// If a file cannot be read, is no such result, or both have nothing in common.
pub fn compare(first: &Path, second: &Path) -> Result<Comparison, BenchError> {
    let comparison = Comparison::of(&read(first)?, &read(second)?);
    if comparison.cells.is_empty() {
        let (first, second) = (first.display(), second.display());
        let what = format!("{first} and {second} have no load in common");
        return Err(BenchError::Invalid { what });
    }
    Ok(comparison)
}

fn read(path: &Path) -> Result<Vec<Entry>, BenchError> {
    let file = |source| BenchError::File { action: "read", path: path.to_owned(), source };
    let invalid = |what: String| BenchError::Invalid { what: format!("{}: {what}", path.display()) };
    let none = |e| invalid(format!("no result of a benchmark that can be compared: {e}"));
    let bytes = std::fs::read(path).map_err(file)?;
    let form: Form = serde_json::from_slice(&bytes).map_err(none)?;
    if form.schema_version != SCHEMA_VERSION {
        let other = form.schema_version;
        return Err(invalid(format!("a result of form {other}; this program knows form {SCHEMA_VERSION}")));
    }
    let found: Found = serde_json::from_slice(&bytes).map_err(none)?;
    Ok(found.entries())
}

impl Found {
    fn entries(self) -> Vec<Entry> {
        match self {
            Found::Matrix { cells } => cells.iter().map(Entry::of_cell).collect(),
            Found::Workload { load, clients, total } => {
                vec![Entry::of_all(load.what(), clients.len(), &total)]
            }
            Found::Fio { jobs, clients, total } => {
                let count = clients.len();
                let all = Entry::of_all("all jobs".into(), count, &total);
                jobs.iter().map(|job| Entry::of_job(job, count)).chain([all]).collect()
            }
        }
    }
}

impl Entry {
    fn of_cell(cell: &Cell) -> Entry {
        Entry {
            key: cell.name(),
            load: cell.what(),
            clients: cell.clients,
            rates: cell.median.rates,
            iops_per_core: Some(cell.median.iops_per_core),
        }
    }

    /// Which processors worked for this job alone, nobody knows.
    fn of_job(job: &FioJob, clients: usize) -> Entry {
        let load = job.name();
        Entry { key: load.clone(), load, clients: clients as u32, rates: job.rates, iops_per_core: None }
    }

    fn of_all(load: String, clients: usize, total: &ClientsRun) -> Entry {
        Entry {
            key: load.clone(),
            load,
            clients: clients as u32,
            rates: total.rates,
            iops_per_core: Some(total.iops_per_core),
        }
    }
}

impl Comparison {
    fn of(first: &[Entry], second: &[Entry]) -> Comparison {
        let same = |a: &Entry, b: &Entry| (&a.key, a.clients) == (&b.key, b.clients);
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
                cell.iops_per_core_ratio.map_or_else(|| "-".into(), ratio),
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
    fn of(a: &Entry, b: &Entry) -> Compared {
        let ratio = |from: f64, to: f64| if from > 0.0 { rounded(to / from, 0.001) } else { 0.0 };
        let (x, y) = (&a.rates, &b.rates);
        Compared {
            load: a.load.clone(),
            clients: a.clients,
            iops: [x.iops, y.iops],
            iops_ratio: ratio(x.iops, y.iops),
            p99_us: [x.p99_us, y.p99_us],
            p99_ratio: ratio(x.p99_us, y.p99_us),
            iops_per_core_ratio: a.iops_per_core.zip(b.iops_per_core).map(|(from, to)| ratio(from, to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Findings;
    use crate::fio::outcome::tests::figures as fio;
    use crate::fleet::outcome::tests::figures as workload;
    use crate::matrix::outcome::tests::figures as matrix;
    use std::path::PathBuf;

    /// A folder for two results, which is removed when the test is over.
    fn in_folder(name: &str, test: impl FnOnce(PathBuf, PathBuf)) {
        let folder = std::env::temp_dir().join(format!("weft-compare-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        test(folder.join("one.json"), folder.join("two.json"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_result_is_compared_with_another_as_it_was_written() {
        in_folder("matrix", |one, two| {
            let mut figures = matrix();
            figures.write_json(&one).unwrap();
            let dropped = figures.cells.pop().expect("there are some");
            figures.cells[0].median.rates.iops *= 1.5;
            figures.write_json(&two).unwrap();
            let found = compare(&one, &two).unwrap();
            assert_eq!((found.cells.len(), found.unmatched), (figures.cells.len(), 1));
            assert_eq!((found.cells[0].iops_ratio, found.cells[1].iops_ratio), (1.5, 1.0));
            assert!(found.text().contains("1.50"), "{}", found.text());
            assert!(
                !found.cells.iter().any(|c| (c.load.clone(), c.clients) == (dropped.what(), dropped.clients))
            );
        });
    }

    #[test]
    fn workloads_are_compared_as_a_whole_if_they_are_the_same() {
        in_folder("workload", |one, two| {
            let mut figures = workload();
            figures.write_json(&one).unwrap();
            figures.together.total.iops_per_core *= 2.0;
            figures.write_json(&two).unwrap();
            let found = compare(&one, &two).unwrap();
            assert_eq!((found.cells.len(), found.cells[0].iops_per_core_ratio), (1, Some(2.0)));
            figures.load.block_bytes *= 2;
            figures.write_json(&two).unwrap();
            assert!(compare(&one, &two).unwrap_err().to_string().contains("no load in common"));
            matrix().write_json(&two).unwrap();
            assert!(compare(&one, &two).unwrap_err().to_string().contains("no load in common"));
        });
    }

    #[test]
    fn jobs_of_fio_are_compared_each_and_all() {
        in_folder("fio", |one, two| {
            let figures = fio();
            figures.write_json(&one).unwrap();
            figures.without_latencies().write_json(&two).unwrap();
            let found = compare(&one, &two).unwrap();
            let ratios: Vec<_> = found.cells.iter().map(|cell| cell.iops_per_core_ratio).collect();
            assert_eq!((ratios, found.cells[2].load.as_str()), (vec![None, None, Some(1.0)], "all jobs"));
        });
    }

    #[test]
    fn what_is_no_result_is_said() {
        in_folder("none", |one, two| {
            matrix().write_json(&one).unwrap();
            for (text, word) in [
                ("{\"schema_version\": 9, \"cells\": []}", "form 9"),
                ("{\"schema_version\": 1, \"cells\": []}", "benchmark"),
                ("[]", "no result"),
            ] {
                std::fs::write(&two, text).unwrap();
                let error = compare(&one, &two).unwrap_err().to_string();
                assert!(error.contains(word), "'{word}' is not in '{error}'");
            }
        });
    }
}
