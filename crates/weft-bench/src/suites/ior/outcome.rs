//! What a test of IOR came to: a row for each phase, a summary over repetitions, and what checks have found.

use super::access::Access;
use super::conduct::IorOptions;
use super::layout::{Layout, ReadOrder};
use crate::BenchError;
use crate::cores::own_cores;
use crate::findings::Findings;
use crate::machine::Machine;
use crate::outcome::size_text;
use crate::report::{aligned, grouped, rounded};
use crate::suites::facts::facts;
use crate::suites::message::PhaseReport;
use crate::suites::space::{TestedFolder, size_words};
use crate::suites::spread::Spread;
use serde::Serialize;

const MIB: f64 = (1 << 20) as f64;

/// One phase of one repetition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IorRow {
    /// What was done.
    pub access: Access,
    /// MiB (2^20 bytes) per second: all bytes over the whole time; none for a removal.
    pub mib_per_s: Option<f64>,
    /// Transfers of all processes per second, without the time of opens and closes.
    pub iops: Option<f64>,
    /// The mean time of one transfer, in seconds.
    pub latency_s: Option<f64>,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes of a transfer.
    pub transfer_bytes: u64,
    /// The longest open of a process, in seconds.
    pub open_s: f64,
    /// The longest time of a process for its transfers, with the sync after the last one.
    pub access_s: f64,
    /// The longest close.
    pub close_s: f64,
    /// From the first begin to the last end.
    pub total_s: f64,
    /// Processes.
    pub processes: u32,
    /// Which repetition, from 0 on.
    pub iteration: u32,
    /// Bytes that were moved.
    pub bytes: u64,
}

impl IorRow {
    pub(super) fn new(
        access: Access,
        layout: &Layout,
        iteration: u32,
        reports: &[PhaseReport],
        total_s: f64,
    ) -> IorRow {
        let longest = |of: fn(&PhaseReport) -> f64| reports.iter().map(of).fold(0.0, f64::max);
        let (bytes, operations) =
            reports.iter().fold((0, 0), |sum, report| (sum.0 + report.bytes, sum.1 + report.operations));
        let access_s = longest(|report| report.access_s);
        let is_moved = access != Access::Remove;
        let rate = |amount: f64, time: f64| (is_moved && time > 0.0).then(|| amount / time);
        let latencies: f64 = reports.iter().map(|report| report.latencies_s).sum();
        IorRow {
            access,
            mib_per_s: rate(bytes as f64 / MIB, total_s).map(|rate| rounded(rate, 0.01)),
            iops: rate(operations as f64, access_s).map(|rate| rounded(rate, 0.01)),
            latency_s: rate(latencies, operations as f64).map(|time| rounded(time, 1e-6)),
            block_bytes: layout.block_bytes,
            transfer_bytes: layout.transfer_bytes,
            open_s: rounded(longest(|report| report.open_s), 1e-6),
            access_s: rounded(access_s, 1e-6),
            close_s: rounded(longest(|report| report.close_s), 1e-6),
            total_s: rounded(total_s, 1e-6),
            processes: layout.ranks,
            iteration,
            bytes,
        }
    }

    fn cells(&self) -> Vec<String> {
        let kib = |bytes: u64| match bytes.is_multiple_of(1024) {
            true => (bytes / 1024).to_string(),
            false => format!("{:.2}", bytes as f64 / 1024.0),
        };
        let is_moved = self.access != Access::Remove;
        let figure = |text: String| if is_moved { text } else { "-".to_owned() };
        vec![
            self.access.word().to_owned(),
            self.mib_per_s.map_or_else(|| "-".into(), decimal),
            self.iops.map_or_else(|| "-".into(), decimal),
            self.latency_s.map_or_else(|| "-".into(), time),
            figure(kib(self.block_bytes)),
            figure(kib(self.transfer_bytes)),
            figure(time(self.open_s)),
            figure(time(self.access_s)),
            figure(time(self.close_s)),
            time(self.total_s),
            self.processes.to_string(),
            self.iteration.to_string(),
        ]
    }
}

/// All repetitions of writing or reading with one size of transfers and one number of processes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IorSummary {
    /// What was done.
    pub access: Access,
    /// Processes.
    pub processes: u32,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes of a transfer.
    pub transfer_bytes: u64,
    /// MiB per second.
    pub mib_per_s: Spread,
    /// Transfers per second.
    pub iops: Spread,
    /// The whole time, in seconds.
    pub total_s: Spread,
    /// How often it was done.
    pub repetitions: usize,
}

/// What checks of the content have found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Transfers that were read and compared.
    pub transfers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Transfers that held something else than they should.
    pub wrong: u64,
    /// Of each process and phase the first wrong byte.
    pub first_wrong: Vec<String>,
}

impl Checked {
    /// Of one phase of all ranks.
    pub(crate) fn of(reports: &[PhaseReport]) -> Checked {
        Checked {
            transfers: reports.iter().map(|report| report.operations).sum(),
            bytes: reports.iter().map(|report| report.bytes).sum(),
            wrong: reports.iter().map(|report| report.wrong).sum(),
            first_wrong: reports.iter().filter_map(|report| report.first_wrong.clone()).collect(),
        }
    }

    pub(crate) fn add(&mut self, other: &Checked) {
        self.transfers += other.transfers;
        self.bytes += other.bytes;
        self.wrong += other.wrong;
        self.first_wrong.extend(other.first_wrong.iter().cloned());
    }

    /// That content was wrong, as an error.
    ///
    /// # Errors
    /// [`BenchError::Wrong`].
    pub(crate) fn verdict(&self) -> Result<(), BenchError> {
        match self.first_wrong.first() {
            None => Ok(()),
            Some(first) => Err(BenchError::Wrong { wrong: self.wrong, first: first.clone() }),
        }
    }

    /// In some lines; none if nothing was checked.
    pub(crate) fn lines(&self) -> Vec<String> {
        let of = format!("{} transfers, {}", grouped(self.transfers as f64), size_words(self.bytes));
        match (self.transfers, self.wrong) {
            (0, _) => vec![],
            (_, 0) => vec![format!("checked: {of}, all right")],
            (_, wrong) => {
                let head = format!("WRONG content in {} of {of}", grouped(wrong as f64));
                std::iter::once(head).chain(self.first_wrong.iter().map(|line| format!("  {line}"))).collect()
            }
        }
    }
}

/// The figures of a test.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "benchmark", rename = "ior")]
pub struct IorFigures {
    /// What it was measured on: the machine of the first rank.
    pub machine: Machine,
    /// The program's version.
    pub weft_version: &'static str,
    /// Machines that ranks were on.
    pub hosts: Vec<String>,
    /// The folder of the files.
    pub folder: TestedFolder,
    /// How the files were used, in words.
    pub how: Vec<String>,
    /// Each phase, in order.
    pub rows: Vec<IorRow>,
    /// Writes and reads over all repetitions.
    pub summary: Vec<IorSummary>,
    /// What checks have found.
    pub checked: Checked,
}

impl IorFigures {
    pub(super) fn new(options: &IorOptions, folder: TestedFolder, hosts: Vec<String>) -> IorFigures {
        IorFigures {
            machine: Machine::of_this_time(own_cores().map_or(0, |cores| cores.len())),
            weft_version: env!("CARGO_PKG_VERSION"),
            hosts,
            folder,
            how: how(options),
            rows: Vec::new(),
            summary: Vec::new(),
            checked: Checked::default(),
        }
    }

    /// Transfers whose content was wrong.
    pub fn wrong(&self) -> u64 {
        self.checked.wrong
    }

    /// Makes the summary of the rows.
    pub(super) fn summarize(&mut self) {
        let mut summary: Vec<IorSummary> = Vec::new();
        for row in self.rows.iter().filter(|row| row.access != Access::Remove) {
            let key = |access, processes, transfer| (access, processes, transfer);
            let own = key(row.access, row.processes, row.transfer_bytes);
            if summary.iter().any(|known| key(known.access, known.processes, known.transfer_bytes) == own) {
                continue;
            }
            let like = |other: &&IorRow| key(other.access, other.processes, other.transfer_bytes) == own;
            let of = |figure: fn(&IorRow) -> f64| {
                let values: Vec<f64> = self.rows.iter().filter(like).map(figure).collect();
                Spread::of(&values)
            };
            summary.push(IorSummary {
                access: row.access,
                processes: row.processes,
                block_bytes: row.block_bytes,
                transfer_bytes: row.transfer_bytes,
                mib_per_s: of(|row| row.mib_per_s.unwrap_or(0.0)),
                iops: of(|row| row.iops.unwrap_or(0.0)),
                total_s: of(|row| row.total_s),
                repetitions: self.rows.iter().filter(like).count(),
            });
        }
        self.summary = summary;
    }

    /// A row for each phase, below their titles.
    pub(super) fn table(&self) -> Vec<Vec<String>> {
        let head = [
            "access",
            "bw MiB/s",
            "IOPS",
            "latency s",
            "block KiB",
            "xfer KiB",
            "open s",
            "wr/rd s",
            "close s",
            "total s",
            "tasks",
            "iter",
        ];
        let head = head.map(str::to_owned).to_vec();
        std::iter::once(head).chain(self.rows.iter().map(IorRow::cells)).collect()
    }

    /// A row for each summary, below their titles.
    pub(super) fn summary_table(&self) -> Vec<Vec<String>> {
        let head = [
            "operation",
            "tasks",
            "xfer",
            "max MiB/s",
            "min MiB/s",
            "mean MiB/s",
            "stddev",
            "max IOPS",
            "min IOPS",
            "mean IOPS",
            "stddev",
            "mean s",
        ];
        let row = |summary: &IorSummary| {
            let mut cells = vec![
                summary.access.word().to_owned(),
                summary.processes.to_string(),
                size_text(summary.transfer_bytes),
            ];
            let figures = [summary.mib_per_s.figures(), summary.iops.figures()].concat();
            cells.extend(figures.into_iter().map(decimal));
            cells.push(time(summary.total_s.mean));
            cells
        };
        std::iter::once(head.map(str::to_owned).to_vec()).chain(self.summary.iter().map(row)).collect()
    }

    /// What was measured, on what, in some lines.
    pub(super) fn facts(&self) -> Vec<String> {
        facts(&self.machine, self.weft_version, &self.hosts, &self.folder, &self.how)
    }

    pub(super) fn checks(&self) -> Vec<String> {
        self.checked.lines()
    }

    /// That content was wrong, as an error.
    ///
    /// # Errors
    /// [`BenchError::Wrong`].
    pub fn verdict(&self) -> Result<(), BenchError> {
        self.checked.verdict()
    }
}

impl Findings for IorFigures {
    fn text(&self) -> String {
        let mut out = format!("{}\n\n{}", self.facts().join("\n"), aligned(&self.table()));
        if !self.summary.is_empty() {
            out.push_str(&format!("\n{}", aligned(&self.summary_table())));
        }
        self.checks().iter().for_each(|line| out.push_str(&format!("{line}\n")));
        out
    }

    fn html(&self) -> String {
        self.page()
    }
}

/// How files are used, a part for each choice.
fn how(options: &IorOptions) -> Vec<String> {
    let segments = match options.segments {
        1 => String::new(),
        many => format!(" in each of {many} segments"),
    };
    let mut how = vec![
        if options.is_file_per_process { "a file for each process" } else { "one file for all" }.to_owned(),
        format!("blocks of {}{segments}", size_text(options.block_bytes)),
        if options.is_random { "transfers at random" } else { "transfers one after the other" }.to_owned(),
    ];
    let chosen = [
        (options.is_direct, "direct (O_DIRECT)"),
        (options.fsync, "fsync after the last write"),
        (options.fsync_per_write, "fsync after each write"),
        (options.waits_between, "barriers around opens and closes"),
        (options.use_existing, "written over existing files"),
    ];
    how.extend(chosen.into_iter().filter(|(is_so, _)| *is_so).map(|(_, words)| words.to_owned()));
    how.extend(match options.read_order {
        ReadOrder::Own => None,
        ReadOrder::Next(far) => Some(format!("read by the process {far} further on, or of as many machines")),
        ReadOrder::Random(seed) => Some(format!("read by processes at random (seed {seed})")),
    });
    how.extend(options.deadline.map(|time| {
        let rest = if options.wears_out { ", then until all have done as much as the fastest" } else { "" };
        format!("transfers begun within {} s{rest}", time.as_secs_f64())
    }));
    how
}

/// A rate with two digits after the point where that says something.
fn decimal(value: f64) -> String {
    if value >= 10_000.0 { grouped(value) } else { format!("{value:.2}") }
}

/// Seconds, with as many digits as mean something.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        ..1.0 => format!("{seconds:.6}"),
        ..100.0 => format!("{seconds:.3}"),
        _ => format!("{seconds:.1}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::layout::tests::layout;
    use super::*;

    fn report(n: u64) -> PhaseReport {
        PhaseReport {
            open_s: 0.01 * n as f64,
            access_s: 2.0 * n as f64,
            close_s: 0.5,
            operations: 100 * n,
            bytes: (100 * n) << 20,
            latencies_s: 1.0,
            ..PhaseReport::default()
        }
    }

    pub(crate) fn row(access: Access, processes: u32, transfer_bytes: u64, iteration: u32) -> IorRow {
        let layout = Layout { ranks: processes, transfer_bytes, ..layout() };
        IorRow::new(access, &layout, iteration, &[report(1), report(2)], 5.0 + f64::from(iteration))
    }

    pub(crate) fn figures(rows: Vec<IorRow>) -> IorFigures {
        let mut figures = IorFigures {
            machine: crate::machine::tests::machine(None),
            weft_version: "0",
            hosts: vec!["a".into(), "b".into()],
            folder: TestedFolder {
                folder: "/mnt/home".into(),
                file_system: "fuse.weft".into(),
                source: "home".into(),
            },
            how: vec!["one file for all".into()],
            rows,
            summary: vec![],
            checked: Checked::default(),
        };
        figures.summarize();
        figures
    }

    #[test]
    fn a_row_is_of_all_processes() {
        let row = row(Access::Write, 2, 4096, 0);
        assert_eq!(
            (row.mib_per_s, row.iops),
            (Some(60.0), Some(75.0)),
            "300 MiB in 5 s, 300 transfers in 4 s"
        );
        assert_eq!((row.open_s, row.access_s, row.close_s, row.total_s), (0.02, 4.0, 0.5, 5.0));
        assert_eq!((row.latency_s, row.bytes), (Some(0.006667), 300 << 20));
        let removal = super::tests::row(Access::Remove, 2, 4096, 0);
        assert_eq!((removal.mib_per_s, removal.iops, removal.latency_s), (None, None, None));
        assert_eq!(removal.cells()[1..4], ["-", "-", "-"]);
    }

    #[test]
    fn the_summary_is_over_repetitions_of_the_same() {
        let rows = [(Access::Write, 0), (Access::Read, 0), (Access::Remove, 0), (Access::Write, 1)];
        let mut rows: Vec<IorRow> = rows.iter().map(|(access, n)| row(*access, 2, 4096, *n)).collect();
        rows.push(row(Access::Write, 4, 4096, 0));
        let figures = figures(rows);
        assert_eq!(figures.summary.len(), 3, "{:?}", figures.summary);
        let write = &figures.summary[0];
        assert_eq!((write.repetitions, write.processes), (2, 2));
        assert_eq!((write.mib_per_s.max, write.mib_per_s.min, write.total_s.mean), (60.0, 50.0, 5.5));
        let text = figures.text();
        for part in ["bw MiB/s", "xfer KiB", "2 machines: a, b", "/mnt/home on home (fuse.weft)", "75.00"] {
            assert!(text.contains(part), "'{part}' is not in {text}");
        }
    }

    #[test]
    fn wrong_content_is_said_and_is_an_error() {
        let mut figures = figures(vec![row(Access::Write, 2, 4096, 0)]);
        figures.verdict().expect("nothing was checked");
        figures.checked.add(&Checked::of(&[PhaseReport {
            wrong: 2,
            first_wrong: Some("byte 7".into()),
            ..report(1)
        }]));
        let error = figures.verdict().expect_err("it is wrong");
        assert!(error.to_string().contains("byte 7"), "{error}");
        assert!(
            figures.text().contains("WRONG content in 2 of 100 transfers, 100 MiB\n  byte 7"),
            "{}",
            figures.text()
        );
    }
}
