//! What a test of mdtest came to: operations per second, over all repetitions.

use super::conduct::MdtestOptions;
use super::names::Operation;
use super::tree::Tree;
use crate::BenchError;
use crate::cores::own_cores;
use crate::findings::Findings;
use crate::machine::Machine;
use crate::outcome::count;
use crate::report::{aligned, grouped, rounded};
use crate::suites::facts::{facts, processes_text};
use crate::suites::message::PhaseReport;
use crate::suites::space::TestedFolder;
use crate::suites::spread::Spread;
use serde::Serialize;

/// One operation, over all repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MdtestRow {
    /// Which.
    pub operation: Operation,
    /// How often all processes together did it in one repetition.
    pub operations: u64,
    /// Per second, all processes together.
    pub per_second: Spread,
    /// The rate of each repetition.
    pub rates: Vec<f64>,
    /// From the first begin to the last end, in seconds, of each repetition.
    pub seconds: Vec<f64>,
}

/// All operations with one number of processes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MdtestResult {
    /// Processes.
    pub processes: u32,
    /// The trees, and what was in them.
    pub tree: Tree,
    /// Each operation, in the order in which they were first done.
    pub rows: Vec<MdtestRow>,
    /// Files whose content was not what it should be.
    pub wrong: u64,
    /// Of each process and phase the first one.
    pub first_wrong: Vec<String>,
}

impl MdtestResult {
    pub(super) fn new(processes: u32, tree: &Tree) -> MdtestResult {
        MdtestResult { processes, tree: tree.clone(), rows: vec![], wrong: 0, first_wrong: vec![] }
    }

    /// Adds a phase of all ranks.
    pub(super) fn add(&mut self, operation: Operation, reports: &[PhaseReport], total_s: f64) {
        let operations: u64 = reports.iter().map(|report| report.operations).sum();
        self.wrong += reports.iter().map(|report| report.wrong).sum::<u64>();
        self.first_wrong.extend(reports.iter().filter_map(|report| report.first_wrong.clone()));
        let at = self.rows.iter().position(|row| row.operation == operation).unwrap_or_else(|| {
            let per_second = Spread::default();
            self.rows.push(MdtestRow { operation, operations, per_second, rates: vec![], seconds: vec![] });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.rates.push(if total_s > 0.0 { rounded(operations as f64 / total_s, 0.001) } else { 0.0 });
        row.seconds.push(rounded(total_s, 1e-6));
        row.per_second = Spread::of(&row.rates);
    }

    /// Operations in the order of tables: folders, files, trees.
    pub(super) fn in_order(&self) -> Vec<&MdtestRow> {
        let mut rows: Vec<&MdtestRow> = self.rows.iter().collect();
        rows.sort_by_key(|row| row.operation);
        rows
    }
}

/// The figures of a test.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "benchmark", rename = "mdtest")]
pub struct MdtestFigures {
    /// What it was measured on: the machine of the first rank.
    pub machine: Machine,
    /// The program's version.
    pub weft_version: &'static str,
    /// Machines that ranks were on.
    pub hosts: Vec<String>,
    /// The folder of the test.
    pub folder: TestedFolder,
    /// How often all of it was done.
    pub repetitions: u32,
    /// How it was done, in words.
    pub how: Vec<String>,
    /// For each number of processes.
    pub results: Vec<MdtestResult>,
}

impl MdtestFigures {
    pub(super) fn new(options: &MdtestOptions, folder: TestedFolder, hosts: Vec<String>) -> MdtestFigures {
        MdtestFigures {
            machine: Machine::of_this_time(own_cores().map_or(0, |cores| cores.len())),
            weft_version: env!("CARGO_PKG_VERSION"),
            hosts,
            folder,
            repetitions: options.repetitions,
            how: how(options),
            results: Vec::new(),
        }
    }

    /// What was measured, on what, in some lines.
    pub(super) fn facts(&self) -> Vec<String> {
        facts(&self.machine, self.weft_version, &self.hosts, &self.folder, &self.how)
    }

    /// What the ranks of a result did, in a line.
    pub(super) fn what(&self, result: &MdtestResult) -> String {
        let tree = &result.tree;
        let items = grouped((tree.items * u64::from(tree.ranks)) as f64);
        let kinds = match (self.has("Directory"), self.has("File")) {
            (true, true) => "folders, and as many files,",
            (false, true) => "files",
            _ => "folders",
        };
        format!(
            "{}: {items} {kinds} in {} of {} folders each",
            processes_text(result.processes),
            count(tree.trees() as usize, "tree"),
            grouped(tree.folders() as f64)
        )
    }

    fn has(&self, kind: &str) -> bool {
        self.results.iter().flat_map(|result| &result.rows).any(|row| row.operation.words().starts_with(kind))
    }

    /// A row for each operation, below their titles.
    pub(super) fn table(&self, result: &MdtestResult) -> Vec<Vec<String>> {
        let head = ["operations per second", "max", "min", "mean", "std dev"].map(str::to_owned).to_vec();
        let row = |row: &&MdtestRow| {
            let mut cells = vec![row.operation.words().to_owned()];
            cells.extend(row.per_second.figures().map(|rate| format!("{rate:.3}")));
            cells
        };
        std::iter::once(head).chain(result.in_order().iter().map(row)).collect()
    }

    pub(super) fn wrong(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for result in self.results.iter().filter(|result| result.wrong > 0) {
            lines.push(format!("WRONG content in {} files", result.wrong));
            lines.extend(result.first_wrong.iter().map(|line| format!("  {line}")));
        }
        lines
    }

    /// That content was wrong, as an error.
    ///
    /// # Errors
    /// [`BenchError::Wrong`].
    pub fn verdict(&self) -> Result<(), BenchError> {
        let wrong = self.results.iter().map(|result| result.wrong).sum();
        match self.results.iter().find_map(|result| result.first_wrong.first()) {
            None => Ok(()),
            Some(first) => Err(BenchError::Wrong { wrong, first: first.clone() }),
        }
    }
}

impl Findings for MdtestFigures {
    fn text(&self) -> String {
        let mut out = format!("{}\n", self.facts().join("\n"));
        for result in &self.results {
            out.push_str(&format!("\n{}\n{}", self.what(result), aligned(&self.table(result))));
        }
        self.wrong().iter().for_each(|line| out.push_str(&format!("{line}\n")));
        out
    }

    fn html(&self) -> String {
        self.page()
    }
}

/// How the test was done, a part for each choice.
fn how(options: &MdtestOptions) -> Vec<String> {
    let mut how = vec![count(options.repetitions as usize, "repetition")];
    let chosen = [
        (options.is_leaf_only, "items on the lowest level only".to_owned()),
        (options.write_bytes > 0, format!("files of {} bytes", options.write_bytes)),
        (options.read_bytes > 0, format!("{} bytes read of each", options.read_bytes)),
        (options.fsync, "fsync after each file is written".to_owned()),
        (options.checks, "content checked".to_owned()),
        (options.stride > 0, format!("items of the process {} further on", options.stride)),
        (options.order.is_some(), "asked for at random".to_owned()),
    ];
    how.extend(chosen.into_iter().filter(|(is_so, _)| *is_so).map(|(_, words)| words));
    how
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::tree::tests::tree;
    use super::*;

    pub(crate) fn result(processes: u32) -> MdtestResult {
        let mut result = MdtestResult::new(processes, &Tree { ranks: processes, ..tree() });
        let report = |wrong: u64| PhaseReport {
            operations: 100,
            wrong,
            first_wrong: (wrong > 0).then(|| "file.0.1: byte 3".to_owned()),
            ..PhaseReport::default()
        };
        result.add(Operation::TreeCreation, &[report(0)], 0.5);
        for seconds in [1.0, 2.0] {
            result.add(Operation::FileCreation, &[report(0), report(0)], seconds);
            result.add(Operation::DirectoryStat, &[report(0), report(0)], seconds);
        }
        result
    }

    pub(crate) fn figures(results: Vec<MdtestResult>) -> MdtestFigures {
        let options = super::super::conduct::tests::options();
        MdtestFigures {
            machine: crate::machine::tests::machine(None),
            weft_version: "0",
            hosts: vec!["a".into()],
            folder: TestedFolder { folder: "/x".into(), file_system: "ext4".into(), source: "/dev/a".into() },
            repetitions: 2,
            how: how(&options),
            results,
        }
    }

    #[test]
    fn rates_are_of_all_processes_over_all_repetitions() {
        let result = result(2);
        let order: Vec<Operation> = result.in_order().iter().map(|row| row.operation).collect();
        assert_eq!(order, [Operation::DirectoryStat, Operation::FileCreation, Operation::TreeCreation]);
        let files = result.in_order()[1];
        assert_eq!((files.operations, files.rates.as_slice()), (200, [200.0, 100.0].as_slice()));
        assert_eq!(files.per_second.figures(), [200.0, 100.0, 150.0, 50.0]);
    }

    #[test]
    fn the_text_has_a_table_for_each_number_of_processes() {
        let text = figures(vec![result(1), result(2)]).text();
        for part in
            ["1 process: 26 folders", "2 processes: 52 folders", "File creation", "150.000", "on /dev/a"]
        {
            assert!(text.contains(part), "'{part}' is not in {text}");
        }
        figures(vec![result(1)]).verdict().expect("nothing is wrong");
        let mut wrong = result(2);
        let report =
            PhaseReport { wrong: 1, first_wrong: Some("file.0.1: byte 3".into()), ..Default::default() };
        wrong.add(Operation::FileRead, &[report], 1.0);
        let figures = figures(vec![wrong]);
        assert!(figures.text().contains("WRONG content in 1 files\n  file.0.1"), "{}", figures.text());
        assert!(figures.verdict().is_err());
    }
}
