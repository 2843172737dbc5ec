//! The result: medians over runs, as a table for people and as JSON for programs.
//!
//! It measures nothing.

use crate::BenchError;
use crate::load::LoadResult;
use crate::machine::Machine;
use crate::workload::{Workload, spin_name};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// One run of a workload, beside one of its limit.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Requests per second.
    pub iops: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// The latency that one request in a hundred exceeds.
    pub p99_us: f64,
    /// The latency that one request in a thousand exceeds.
    pub p999_us: f64,
    /// CPU seconds of the client process during the load.
    pub client_cpu_s: f64,
    /// CPU seconds of the target process during the load.
    pub target_cpu_s: f64,
    /// Operations per second of the limit that ran next to it.
    pub limit_iops: f64,
}

impl Sample {
    /// Takes the figures of a load.
    pub fn new(load: &LoadResult, client_cpu_s: f64, target_cpu_s: f64, limit_iops: f64) -> Sample {
        let latency = load.latency_ns();
        let us = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
        Sample {
            iops: load.per_second(),
            mean_us: latency.mean() / 1000.0,
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            client_cpu_s,
            target_cpu_s,
            limit_iops,
        }
    }
}

/// What writes cost beyond their data, over all runs of a workload.
#[derive(Clone, Copy, Debug)]
pub struct WriteCost {
    /// Bytes written to the logs of all replicas, per write.
    pub log_bytes: f64,
    /// Bytes sent by the client to all replicas, per write.
    pub wire_bytes: f64,
}

/// What holds for a whole run of the benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct RunFacts {
    /// What it ran on.
    pub machine: Machine,
    /// Whether client and target each had a core of their own.
    pub pinned: bool,
    /// Runs of each workload and its limit, taken in turns.
    pub runs: usize,
    /// Seconds of each run.
    pub seconds: f64,
    /// Median of the reference exchange, per second.
    pub reference_per_s: f64,
    /// What it has to reach.
    pub reference_needed_per_s: f64,
    /// Whether it did not: then none of the figures says anything about the code.
    pub void: bool,
    /// Reads of 4 KiB at random from a `mem:` drive by itself, one after another, per second.
    pub drive_4k_per_s: f64,
    /// Likewise, of 64 KiB.
    pub drive_64k_per_s: f64,
    /// CPU of all processes of an idle fabric, in percent of one core.
    pub idle_percent: f64,
}

/// One row of the result: medians over the runs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The workload's name.
    pub workload: &'static str,
    /// Requests per second.
    pub iops: f64,
    /// Megabytes (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// The latency that one request in a hundred exceeds.
    pub p99_us: f64,
    /// The latency that one request in a thousand exceeds.
    pub p999_us: f64,
    /// CPU seconds of the client process in one run.
    pub client_cpu_s: f64,
    /// CPU seconds of the target process in one run.
    pub target_cpu_s: f64,
    /// Median of the ratios between each run and the limit measured right before it.
    pub limit_ratio: f64,
    /// The limit's operations per second.
    pub limit_iops: f64,
    /// Requests per CPU second of client and target together.
    pub iops_per_cpu_s: f64,
    /// Bytes written to the logs of all replicas, per write; none for reads.
    pub log_bytes_per_write: Option<f64>,
    /// Bytes sent by the client, per write; none for reads.
    pub wire_bytes_per_write: Option<f64>,
    /// Runs that the medians are of.
    pub runs: usize,
    /// How client and target reach each other: `tcp` or `shm`.
    pub transport: &'static str,
    /// How client, target and bare exchange wait for something to do.
    pub spin: &'static str,
}

impl Row {
    /// Puts the runs of a workload together.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(workload: &Workload, samples: &[Sample], cost: Option<WriteCost>) -> Row {
        let of = |figure: fn(&Sample) -> f64| median(samples.iter().map(figure).collect());
        let iops = of(|s| s.iops);
        Row {
            workload: workload.name,
            iops: rounded(iops, 1.0),
            mb_per_s: rounded(iops * workload.block_size as f64 / 1e6, 0.1),
            mean_us: rounded(of(|s| s.mean_us), 0.1),
            p50_us: rounded(of(|s| s.p50_us), 0.1),
            p99_us: rounded(of(|s| s.p99_us), 0.1),
            p999_us: rounded(of(|s| s.p999_us), 0.1),
            client_cpu_s: rounded(of(|s| s.client_cpu_s), 0.01),
            target_cpu_s: rounded(of(|s| s.target_cpu_s), 0.01),
            limit_ratio: rounded(of(|s| s.iops / s.limit_iops), 0.001),
            limit_iops: rounded(of(|s| s.limit_iops), 1.0),
            iops_per_cpu_s: 0.0,
            log_bytes_per_write: cost.map(|c| rounded(c.log_bytes, 0.1)),
            wire_bytes_per_write: cost.map(|c| rounded(c.wire_bytes, 0.1)),
            runs: samples.len(),
            transport: workload.transport.name(),
            spin: spin_name(workload.spin),
        }
    }

    /// With the requests per CPU second, which need to know how long a run was.
    pub fn with_seconds(mut self, seconds: f64) -> Row {
        let cpu = self.client_cpu_s + self.target_cpu_s;
        self.iops_per_cpu_s = if cpu > 0.0 { rounded(self.iops * seconds / cpu, 1.0) } else { 0.0 };
        self
    }
}

/// The middle value; of an even number the mean of the two in the middle.
///
/// # Panics
/// If there is none.
pub fn median(mut values: Vec<f64>) -> f64 {
    assert!(!values.is_empty(), "the median of nothing");
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] }
}

/// To a multiple of the step, so that files do not suggest a precision that there is not.
pub(crate) fn rounded(value: f64, step: f64) -> f64 {
    let per_unit = (1.0 / step).round();
    (value * per_unit).round() / per_unit
}

/// The whole result as text.
pub fn text(facts: &RunFacts, rows: &[Row]) -> String {
    let mut out = String::new();
    let m = &facts.machine;
    let pinned = if facts.pinned { "one process per core" } else { "not pinned" };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{m}\ncommit {}, {}, {pinned}", m.commit_text(), m.date);
    let _ = writeln!(
        out,
        "mem: drives, 2 copies on 2 drives of one target, one client, TCP loopback or shared memory (shm-); {} runs of {} s",
        facts.runs, facts.seconds
    );
    let _ = writeln!(
        out,
        "reference exchange (64 B for 4 KiB, 32 in flight): {}/s, needed {}/s",
        grouped(facts.reference_per_s),
        grouped(facts.reference_needed_per_s)
    );
    let _ = writeln!(
        out,
        "a mem: drive by itself, at random: {}/s of 4 KiB, {}/s of 64 KiB",
        grouped(facts.drive_4k_per_s),
        grouped(facts.drive_64k_per_s)
    );
    let _ = writeln!(out, "idle fabric of four nodes: {:.2} % of one core\n", facts.idle_percent);
    out.push_str(&table(rows));
    if facts.void {
        out.push_str(VOID);
    }
    out
}

/// What is said of a run on a machine that is too slow or too busy.
const VOID: &str = "\n*** VOID: the bare exchange does not reach what a fit machine reaches, so these figures\n\
                    *** say nothing about the code. Quieten the machine and run again.\n";

/// The columns: title, and the value of a row.
type Column = (&'static str, fn(&Row) -> String);

const COLUMNS: [Column; 15] = [
    ("workload", |r| r.workload.to_owned()),
    ("iops", |r| grouped(r.iops)),
    ("MB/s", |r| grouped(r.mb_per_s)),
    ("mean us", |r| format!("{:.1}", r.mean_us)),
    ("p50", |r| format!("{:.1}", r.p50_us)),
    ("p99", |r| format!("{:.1}", r.p99_us)),
    ("p99.9", |r| format!("{:.1}", r.p999_us)),
    ("client s", |r| format!("{:.2}", r.client_cpu_s)),
    ("target s", |r| format!("{:.2}", r.target_cpu_s)),
    ("io/cpu s", |r| grouped(r.iops_per_cpu_s)),
    ("limit", |r| grouped(r.limit_iops)),
    ("ratio", |r| format!("{:.3}", r.limit_ratio)),
    ("log B/wr", |r| optional(r.log_bytes_per_write)),
    ("wire B/wr", |r| optional(r.wire_bytes_per_write)),
    ("runs", |r| r.runs.to_string()),
];

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), grouped)
}

/// The rows under their titles.
fn table(rows: &[Row]) -> String {
    let mut lines: Vec<Vec<String>> = vec![COLUMNS.iter().map(|(title, _)| (*title).to_owned()).collect()];
    lines.extend(rows.iter().map(|row| COLUMNS.iter().map(|(_, value)| value(row)).collect()));
    aligned(&lines)
}

/// Lines of as many cells under each other: names to the left, figures to the right.
pub(crate) fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |i: usize| lines.iter().map(|line| line[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate();
        let text: Vec<String> = cells
            .map(
                |(i, (cell, width))| {
                    if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
                },
            )
            .collect();
        out.push_str(text.join("  ").trim_end());
        out.push('\n');
    }
    out
}

/// A number without a fraction, its digits in groups of three.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        let is_boundary = i > 0 && (digits.len() - i).is_multiple_of(3);
        if is_boundary && out != "-" {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A row with what holds for the whole run.
#[derive(Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    row: &'a Row,
    run: &'a RunFacts,
}

/// The rows as JSON: a list of objects.
///
/// # Panics
/// Never: the shape always serialises.
pub fn json(facts: &RunFacts, rows: &[Row]) -> String {
    let entries: Vec<Entry> = rows.iter().map(|row| Entry { row, run: facts }).collect();
    document(&entries)
}

/// Figures as JSON that people can read too.
///
/// # Panics
/// Never: figures always serialise.
pub(crate) fn document(figures: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(figures).expect("figures serialise");
    text.push('\n');
    text
}

/// Writes the JSON to a file, replacing it at once or not at all.
///
/// # Errors
/// If the file cannot be written.
pub fn write_json(path: &Path, facts: &RunFacts, rows: &[Row]) -> Result<(), BenchError> {
    replace(path, &json(facts, rows))
}

/// Writes a file, replacing it at once or not at all.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), BenchError> {
    let failed = |source| BenchError::File { action: "write", path: path.to_owned(), source };
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    std::fs::write(&partial, text).map_err(failed)?;
    std::fs::rename(&partial, path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::machine;
    use crate::workload::WORKLOADS;

    fn facts(void: bool) -> RunFacts {
        let machine = machine(Some("abc1234"));
        RunFacts {
            machine,
            pinned: true,
            runs: 3,
            seconds: 2.0,
            reference_per_s: 900_000.0,
            reference_needed_per_s: 400_000.0,
            void,
            drive_4k_per_s: 800_000.0,
            drive_64k_per_s: 90_000.0,
            idle_percent: 0.25,
        }
    }

    fn sample(iops: f64, limit_iops: f64) -> Sample {
        Sample {
            iops,
            mean_us: 100.04,
            p50_us: 90.0,
            p99_us: 200.0,
            p999_us: 300.0,
            client_cpu_s: 1.0,
            target_cpu_s: 3.0,
            limit_iops,
        }
    }

    fn rows() -> Vec<Row> {
        let samples = [sample(100.0, 200.0), sample(1_234_000.0, 2_000_000.0), sample(300.0, 400.0)];
        let cost = WriteCost { log_bytes: 128.0, wire_bytes: 8480.0 };
        vec![
            Row::new(&WORKLOADS[0], &samples, None).with_seconds(2.0),
            Row::new(&WORKLOADS[1], &samples[..2], Some(cost)).with_seconds(2.0),
        ]
    }

    #[test]
    fn figures_are_medians_and_the_ratio_is_that_of_pairs() {
        let rows = rows();
        assert_eq!((rows[0].iops, rows[0].limit_iops), (300.0, 400.0));
        assert_eq!(rows[0].limit_ratio, 0.617, "the median of 0.5, 0.617 and 0.75");
        assert_eq!(rows[0].mean_us, 100.0);
        assert_eq!(rows[0].mb_per_s, 1.2);
        assert_eq!(rows[0].iops_per_cpu_s, 150.0);
        assert_eq!(rows[1].iops, 617_050.0, "of two runs the mean");
    }

    #[test]
    fn json_has_the_promised_keys() {
        let text = json(&facts(false), &rows());
        let list: Vec<serde_json::Map<String, serde_json::Value>> =
            serde_json::from_str(&text).expect("a list of objects");
        assert_eq!(list.len(), 2);
        let promised = [
            "workload",
            "iops",
            "mb_per_s",
            "mean_us",
            "p50_us",
            "p99_us",
            "p999_us",
            "client_cpu_s",
            "target_cpu_s",
            "limit_ratio",
        ];
        for entry in &list {
            assert!(promised.iter().all(|key| entry.contains_key(*key)), "{entry:?}");
        }
        assert_eq!(list[0]["workload"], "randread-4k-d32");
        assert_eq!(list[1]["wire_bytes_per_write"], 8480.0);
        assert_eq!(list[0]["run"]["machine"]["tcp_congestion_control"], "bbr");
    }

    #[test]
    fn the_table_is_aligned_and_a_void_run_is_said_loudly() {
        let out = text(&facts(false), &rows());
        let table: Vec<&str> = out.lines().skip_while(|l| !l.starts_with("workload")).collect();
        assert_eq!(table.len(), 3);
        assert!(table.iter().all(|line| line.len() == table[0].len()), "{out}");
        assert!(table[2].contains("617,050") && table[2].contains("8,480"));
        assert!(!out.contains("VOID"));
        assert!(text(&facts(true), &rows()).contains("VOID"));
    }

    #[test]
    fn numbers_are_grouped() {
        let texts: Vec<String> = [0.0, 999.4, 1000.0, 1234567.0, -1234.0].map(grouped).into();
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567", "-1,234"]);
    }
}
