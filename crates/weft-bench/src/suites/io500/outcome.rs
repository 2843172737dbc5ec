//! The results of IO500 runs: a row for each phase, the score, and why the score is not official.

use super::conduct::Io500Options;
use super::phase::{Io500Phase, Measure};
use super::score::Io500Score;
use crate::BenchError;
use crate::cores::own_cores;
use crate::findings::Findings;
use crate::machine::Machine;
use crate::report::{aligned, grouped, rounded};
use crate::suites::facts::{facts, processes_text};
use crate::suites::ior::{Checked, time};
use crate::suites::message::PhaseReport;
use crate::suites::space::{TestedFolder, size_words};
use serde::Serialize;
use std::time::Duration;

/// The stonewall that the rules of IO500 ask for, in seconds.
const OFFICIAL_STONEWALL_S: u64 = 300;

/// One phase.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Io500Row {
    /// Which.
    pub phase: Io500Phase,
    /// What its rate is in; none for what is not measured.
    pub unit: Option<Measure>,
    /// All processes together, over the whole time; none for what is not measured.
    pub rate: Option<f64>,
    /// From the first begin to the last end.
    pub seconds: f64,
    /// Transfers or files of all processes; of *find* those that were looked at.
    pub operations: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Of a write phase, whether it went on until the stonewall.
    pub reached_stonewall: Option<bool>,
}

/// What the phase *find* has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Io500Find {
    /// Files that it has looked at.
    pub looked_at: u64,
    /// Files that matched by name, size and time.
    pub found: u64,
    /// Files that were made with such a name, this size, and behind the timestamp.
    pub expected: u64,
}

/// All phases with one number of processes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Io500Result {
    /// Processes.
    pub processes: u32,
    /// Each phase, in order.
    pub rows: Vec<Io500Row>,
    /// What the search has counted.
    pub find: Option<Io500Find>,
    /// The score by the formula of IO500.
    pub score: Io500Score,
    /// What was compared while it was read: transfers of IOR, and files of mdtest.
    pub checked: Checked,
}

impl Io500Row {
    fn cells(&self) -> Vec<String> {
        let rate = |wanted: Measure| match self.rate.filter(|_| self.unit == Some(wanted)) {
            Some(rate) => format!("{rate:.6}"),
            None => "-".to_owned(),
        };
        vec![
            self.phase.name().to_owned(),
            rate(Measure::Bandwidth),
            rate(Measure::Operations),
            if self.unit.is_some() { time(self.seconds) } else { "-".to_owned() },
            if self.unit.is_some() { grouped(self.operations as f64) } else { "-".to_owned() },
            if self.bytes > 0 { size_words(self.bytes) } else { "-".to_owned() },
        ]
    }
}

impl Io500Result {
    pub(super) fn new(processes: u32) -> Io500Result {
        Io500Result {
            processes,
            rows: Vec::new(),
            find: None,
            score: Io500Score::default(),
            checked: Checked::default(),
        }
    }

    /// Adds a phase of all ranks.
    pub(super) fn add(
        &mut self,
        phase: Io500Phase,
        reports: &[PhaseReport],
        seconds: f64,
        stonewall: Duration,
        is_checked: bool,
    ) {
        let operations: u64 = reports.iter().map(|report| report.operations).sum();
        let bytes: u64 = reports.iter().map(|report| report.bytes).sum();
        let unit = phase.measure();
        if is_checked {
            self.checked.add(&Checked::of(reports));
        }
        self.rows.push(Io500Row {
            phase,
            unit,
            rate: unit.map(|unit| rounded(unit.rate(bytes, operations, seconds), 1e-6)),
            seconds: rounded(seconds, 1e-6),
            operations,
            bytes,
            reached_stonewall: phase.is_write().then_some(seconds >= stonewall.as_secs_f64()),
        });
    }

    /// Makes the score of the rows.
    pub(super) fn finish(&mut self) {
        let rates: Vec<(Measure, f64)> =
            self.rows.iter().filter_map(|row| Some((row.unit?, row.rate?))).collect();
        self.score = Io500Score::of(&rates);
    }

    /// A row for each phase, below their titles.
    pub(super) fn table(&self) -> Vec<Vec<String>> {
        let head = ["phase", "GiB/s", "kIOPS", "seconds", "operations", "data"].map(str::to_owned).to_vec();
        std::iter::once(head).chain(self.rows.iter().map(Io500Row::cells)).collect()
    }

    /// Phases that ended before the stonewall.
    fn early(&self) -> Vec<&'static str> {
        let early = self.rows.iter().filter(|row| row.reached_stonewall == Some(false));
        early.map(|row| row.phase.name()).collect()
    }

    /// The score, what was found, and what was compared, in some lines.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("score: {}", self.score.text())];
        lines.extend(self.find.map(|find| {
            let (found, expected) = (grouped(find.found as f64), grouped(find.expected as f64));
            match find.found == find.expected {
                true => format!("find: {found} files, as many as were made"),
                false => format!("find: WRONG, {found} files instead of {expected}"),
            }
        }));
        lines.extend(self.checked.lines());
        lines
    }

    /// That a search or content was wrong, as an error.
    fn verdict(&self) -> Result<(), BenchError> {
        self.checked.verdict()?;
        match self.find.filter(|find| find.found != find.expected) {
            None => Ok(()),
            Some(Io500Find { found, expected, .. }) => Err(BenchError::Miscounted { found, expected }),
        }
    }
}

/// The figures of all runs.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "benchmark", rename = "io500")]
pub struct Io500Figures {
    /// What it was measured on: the machine of the first rank.
    pub machine: Machine,
    /// The program's version.
    pub weft_version: &'static str,
    /// Machines that ranks were on.
    pub hosts: Vec<String>,
    /// The folder of the test.
    pub folder: TestedFolder,
    /// How it was done, in words.
    pub how: Vec<String>,
    /// How long each of the four write phases went on at the least, in seconds.
    pub stonewall_s: u64,
    /// Whether the score is one of the IO500 list: never.
    pub is_official: bool,
    /// Why it is not, in words.
    pub why_not_official: Vec<String>,
    /// For each number of processes.
    pub results: Vec<Io500Result>,
}

impl Io500Figures {
    pub(super) fn new(options: &Io500Options, folder: TestedFolder, hosts: Vec<String>) -> Io500Figures {
        Io500Figures {
            machine: Machine::of_this_time(own_cores().map_or(0, |cores| cores.len())),
            weft_version: env!("CARGO_PKG_VERSION"),
            hosts,
            folder,
            how: options.how(),
            stonewall_s: options.stonewall.as_secs(),
            is_official: false,
            why_not_official: Vec::new(),
            results: Vec::new(),
        }
    }

    /// Says why the scores are none of the list.
    pub(super) fn judge(&mut self) {
        let own = "the phases are Weft's own, and the list takes runs of the program of IO500 only";
        let mut why = vec![own.to_owned()];
        if self.stonewall_s < OFFICIAL_STONEWALL_S {
            let stonewall_s = self.stonewall_s;
            why.push(format!("the stonewall was {stonewall_s} s, and has to be {OFFICIAL_STONEWALL_S} s"));
        }
        for result in self.results.iter().filter(|result| !result.early().is_empty()) {
            let (early, processes) = (result.early().join(", "), processes_text(result.processes));
            why.push(format!("with {processes}, {early} ended before the stonewall (--space, --files)"));
        }
        self.why_not_official = why;
    }

    /// What was measured, on what, in some lines.
    pub(super) fn facts(&self) -> Vec<String> {
        facts(&self.machine, self.weft_version, &self.hosts, &self.folder, &self.how)
    }

    /// That the scores are none of the list, in a line.
    pub(super) fn notice(&self) -> String {
        format!("This is NOT an official IO500 score: {}.", self.why_not_official.join("; "))
    }

    /// That content or a search was wrong, as an error.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] and [`BenchError::Miscounted`].
    pub fn verdict(&self) -> Result<(), BenchError> {
        self.results.iter().try_for_each(Io500Result::verdict)
    }
}

impl Findings for Io500Figures {
    fn text(&self) -> String {
        let mut out = format!("{}\n", self.facts().join("\n"));
        for result in &self.results {
            let processes = processes_text(result.processes);
            out.push_str(&format!("\n{processes}\n{}", aligned(&result.table())));
            result.lines().iter().for_each(|line| out.push_str(&format!("{line}\n")));
        }
        out.push_str(&format!("\n{}\n", self.notice()));
        out
    }

    fn html(&self) -> String {
        self.page()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::conduct::tests::options;
    use super::*;

    pub(crate) fn result(processes: u32) -> Io500Result {
        let mut result = Io500Result::new(processes);
        for phase in Io500Phase::ALL {
            let report = PhaseReport { operations: 1000, bytes: 1 << 30, ..PhaseReport::default() };
            let seconds = if phase == Io500Phase::MdtestEasyWrite { 20.0 } else { 40.0 };
            let reports = vec![report; processes as usize];
            result.add(phase, &reports, seconds, Duration::from_secs(30), phase.is_compared());
        }
        result.find = Some(Io500Find { looked_at: 1000, found: 17, expected: 17 });
        result.finish();
        result
    }

    pub(crate) fn figures(results: Vec<Io500Result>) -> Io500Figures {
        let folder =
            TestedFolder { folder: "/x".into(), file_system: "ext4".into(), source: "/dev/a".into() };
        let mut figures = Io500Figures {
            machine: crate::machine::tests::machine(None),
            weft_version: "0",
            results,
            ..Io500Figures::new(&options(), folder, vec!["a".into()])
        };
        figures.judge();
        figures
    }

    #[test]
    fn rates_are_of_all_processes_and_the_score_is_of_all_rates() {
        let result = result(2);
        assert_eq!(result.rows.len(), 13);
        let rates: Vec<Option<f64>> = result.rows.iter().take(4).map(|row| row.rate).collect();
        assert_eq!(rates, [Some(0.05), Some(0.1), None, Some(0.05)]);
        assert_eq!(result.score.bandwidth_gib_per_s, 0.05);
        // Seven phases of 0.05 and one of 0.1.
        assert_eq!(result.score.kiops, 0.054525);
        assert_eq!(result.rows[1].reached_stonewall, Some(false));
        assert_eq!((result.rows[0].reached_stonewall, result.rows[5].reached_stonewall), (Some(true), None));
        assert_eq!(result.checked.transfers, 6000, "three phases compare what they read");
    }

    #[test]
    fn text_says_that_it_is_no_official_score_and_why() {
        let text = figures(vec![result(1), result(2)]).text();
        for part in [
            "NOT an official IO500 score",
            "Weft's own",
            "the stonewall was 30 s, and has to be 300 s",
            "with 2 processes, mdtest-easy-write ended before the stonewall",
            "score: bandwidth 0.050000 GiB/s",
            "find: 17 files, as many as were made",
            "mdtest-hard-delete",
            "all right",
        ] {
            assert!(text.contains(part), "'{part}' is not in {text}");
        }
    }

    #[test]
    fn a_search_that_misses_files_and_wrong_content_are_errors() {
        figures(vec![result(1)]).verdict().expect("nothing is wrong");
        let mut missed = result(1);
        missed.find = Some(Io500Find { looked_at: 1000, found: 16, expected: 17 });
        let missed = figures(vec![missed]);
        assert!(missed.text().contains("WRONG, 16 files instead of 17"), "{}", missed.text());
        let error = missed.verdict().expect_err("one is missing");
        assert!(error.to_string().contains("16") && error.hint().is_some(), "{error}");
        let mut wrong = result(1);
        let report = PhaseReport { wrong: 1, first_wrong: Some("byte 7".into()), ..PhaseReport::default() };
        wrong.add(Io500Phase::IorHardRead, &[report], 1.0, Duration::ZERO, true);
        let error = figures(vec![wrong]).verdict().expect_err("it is wrong");
        assert!(error.to_string().contains("byte 7"), "{error}");
    }
}
