//! What a run of `weft bench run` did: for programs, and as text for people.
//!
//! It measures nothing.

use crate::BenchError;
use crate::latency::Completed;
use crate::ledger::Verified;
use crate::load::LoadResult;
use crate::machine::Machine;
use crate::plan::Pattern;
use crate::report::{aligned, grouped, rounded};
use crate::timeline::{Tick, quantile_us};
use serde::Serialize;
use std::fmt::Write;
use weft_api::VolumeInfo;
use weft_client::AttachMode;
use weft_types::with_causes;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadFacts {
    /// How many of a hundred requests are reads.
    pub read_percent: u8,
    /// The order of offsets.
    pub pattern: Pattern,
    /// Bytes per request.
    pub block_bytes: u64,
    /// Requests that each job keeps in flight.
    pub depth: u32,
    /// Threads.
    pub jobs: u32,
    /// Where on the volume the load begins.
    pub offset_bytes: u64,
    /// How many bytes of the volume it covers.
    pub length_bytes: u64,
    /// How long it was to be measured, in seconds.
    pub runtime_s: f64,
    /// How long it was to go on before that.
    pub warm_up_s: f64,
    /// How many requests were to be begun per second at most.
    pub per_second_max: Option<f64>,
    /// What decides offsets and data.
    pub seed: u64,
    /// How the volume was attached.
    pub attached: AttachMode,
    /// Whether data was checked.
    pub verify: bool,
}

/// Requests of one kind, or of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// How many completed.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests per second.
    pub iops: f64,
    /// Megabytes (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Mean latency in microseconds; none if nothing completed, as for all latencies.
    pub mean_us: Option<f64>,
    /// Median latency.
    pub p50_us: Option<f64>,
    /// The latency that one request in ten exceeds.
    pub p90_us: Option<f64>,
    /// The latency that one request in a hundred exceeds.
    pub p99_us: Option<f64>,
    /// The latency that one request in a thousand exceeds.
    pub p999_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
}

impl Side {
    fn new(completed: &Completed, block_size: u64, seconds: f64) -> Side {
        let latency = &completed.latency_ns;
        let rate = if seconds > 0.0 { completed.requests as f64 / seconds } else { 0.0 };
        let us = |quantile| quantile_us(latency, quantile);
        Side {
            requests: completed.requests,
            bytes: completed.requests * block_size,
            iops: rounded(rate, 0.1),
            mb_per_s: rounded(rate * block_size as f64 / 1e6, 0.01),
            mean_us: (!latency.is_empty()).then(|| rounded(latency.mean() / 1000.0, 0.1)),
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: us(1.0),
        }
    }
}

/// What was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyFacts {
    /// What came of it.
    #[serde(flatten)]
    pub verified: Verified,
    /// Whether everything that was written was read once more at the end.
    pub is_read_back: bool,
}

/// Why a run ended before its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// What happened.
    pub message: String,
    /// What to do.
    pub hint: Option<String>,
}

impl Failure {
    /// With all causes of the error.
    pub(crate) fn new(error: &BenchError) -> Failure {
        Failure { message: with_causes(error), hint: error.hint().map(str::to_owned) }
    }
}

/// What a run did, on what.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The volume, as the manager described it before.
    pub volume: VolumeInfo,
    /// What was asked for.
    pub load: LoadFacts,
    /// The program's version.
    pub weft_version: &'static str,
    /// What the load ran on.
    pub machine: Machine,
    /// Whether somebody ended it early.
    pub interrupted: bool,
    /// From the first request's begin to the last one's end, without the warm-up, in seconds.
    pub elapsed_s: f64,
    /// CPU seconds of this process meanwhile, user and kernel, all threads.
    pub cpu_s: f64,
    /// All requests.
    pub total: Side,
    /// The reads.
    pub reads: Side,
    /// The writes.
    pub writes: Side,
    /// What was checked, if that was asked for.
    pub verify: Option<VerifyFacts>,
    /// The request that failed and ended the run, if one did.
    pub failure: Option<Failure>,
    /// Each second.
    pub seconds: Vec<Tick>,
    /// Each latency in nanoseconds, to three digits, with how many requests took so long; only if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latencies_ns: Option<Vec<(u64, u64)>>,
    /// All latencies, for the charts.
    #[serde(skip)]
    pub(crate) latencies: LoadResult,
}

impl RunReport {
    pub(crate) fn new(
        volume: VolumeInfo,
        load: LoadFacts,
        machine: Machine,
        latencies: LoadResult,
        cpu_s: f64,
        seconds: Vec<Tick>,
    ) -> RunReport {
        let elapsed = latencies.elapsed.as_secs_f64();
        let side = |completed: &Completed| Side::new(completed, load.block_bytes, elapsed);
        let mut both = latencies.reads.clone();
        both.add(&latencies.writes);
        RunReport {
            volume,
            weft_version: env!("CARGO_PKG_VERSION"),
            machine,
            interrupted: false,
            elapsed_s: rounded(elapsed, 0.001),
            cpu_s: rounded(cpu_s, 0.01),
            total: side(&both),
            reads: side(&latencies.reads),
            writes: side(&latencies.writes),
            verify: None,
            failure: None,
            seconds,
            latencies_ns: None,
            load,
            latencies,
        }
    }

    /// Reads and writes together, as [`RunReport::latencies_ns`] has them.
    pub(crate) fn all_latencies(&self) -> Vec<(u64, u64)> {
        let mut both = self.latencies.reads.clone();
        both.add(&self.latencies.writes);
        both.latency_ns.iter_recorded().map(|x| (x.value_iterated_to(), x.count_at_value())).collect()
    }

    /// Whether every check found what it should.
    pub fn is_verified(&self) -> bool {
        self.verify.as_ref().is_none_or(|verify| verify.verified.blocks_wrong == 0)
    }

    /// The run as text for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", self.what());
        let _ = writeln!(out, "{}\n", self.how());
        out.push_str(&aligned(&self.rows()));
        let _ = writeln!(out, "\n{}", self.cpu());
        for line in self.checks() {
            let _ = writeln!(out, "{line}");
        }
        out
    }

    /// The volume in a line.
    pub(crate) fn what(&self) -> String {
        let v = &self.volume;
        let (size, unit) = (size_text(v.size_bytes), size_text(v.stripe_unit_bytes));
        let copies = if v.copies == 1 { "1 copy".to_owned() } else { format!("{} copies", v.copies) };
        let groups = if v.groups == 1 { "1 group".to_owned() } else { format!("{} groups", v.groups) };
        format!("volume {}: {size}, {copies}, stripes of {} x {unit} over {groups}", v.name, v.width)
    }

    /// The load in a line.
    pub(crate) fn how(&self) -> String {
        let load = &self.load;
        let kind = match load.read_percent {
            100 => "reads".to_owned(),
            0 => "writes".to_owned(),
            share => format!("{share} % reads, {} % writes", 100 - share),
        };
        let pattern = load.pattern.word();
        let jobs = if load.jobs == 1 { String::new() } else { format!(" in each of {} jobs", load.jobs) };
        let rate = load.per_second_max.map(|rate| format!(", at most {}/s", rate_text(rate)));
        let ended = if self.interrupted { ", interrupted" } else { "" };
        format!(
            "{pattern} {kind} of {}, {} in flight{jobs}{}; {:.1} s{ended}",
            size_text(load.block_bytes),
            load.depth,
            rate.unwrap_or_default(),
            self.elapsed_s
        )
    }

    /// The table: a row per kind of request, and one for both where there are both.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let titles = ["", "requests", "per second", "MB/s", "mean", "p50", "p90", "p99", "p99.9", "max"];
        let mut lines = vec![titles.map(str::to_owned).to_vec()];
        let mut sides = vec![("reads", &self.reads), ("writes", &self.writes)];
        sides.retain(|(_, side)| side.requests > 0);
        if sides.len() != 1 {
            sides.push(("total", &self.total));
        }
        for (name, side) in sides {
            let mut line = vec![name.to_owned(), grouped(side.requests as f64)];
            line.extend([rate_text(side.iops), rate_text(side.mb_per_s)]);
            let latencies = [side.mean_us, side.p50_us, side.p90_us, side.p99_us, side.p999_us, side.max_us];
            line.extend(latencies.map(|us| us.map_or_else(|| "-".to_owned(), latency_text)));
            lines.push(line);
        }
        lines
    }

    /// What the load itself cost.
    pub(crate) fn cpu(&self) -> String {
        let per_cpu = match self.cpu_s > 0.0 {
            true => format!(", {} requests per CPU second", grouped(self.total.requests as f64 / self.cpu_s)),
            false => String::new(),
        };
        format!("this process used {:.2} CPU seconds{per_cpu}", self.cpu_s)
    }

    /// What the checks found, a line each.
    pub(crate) fn checks(&self) -> Vec<String> {
        let Some(VerifyFacts { verified, is_read_back }) = &self.verify else { return vec![] };
        let count = |n: u64| grouped(n as f64);
        let mut lines = vec![format!("verified: {} blocks read were right", count(verified.blocks_checked))];
        if verified.blocks_unknown > 0 {
            lines.push(format!(
                "of {} more it is not known what should be in them",
                count(verified.blocks_unknown)
            ));
        }
        if self.load.read_percent < 100 && !is_read_back {
            lines.push("what was written was not all read back".to_owned());
        }
        if verified.blocks_wrong > 0 {
            lines.push(format!("WRONG blocks: {}", count(verified.blocks_wrong)));
            lines.extend(verified.mismatches.iter().map(|mismatch| format!("  {mismatch}")));
        }
        lines
    }
}

/// A number of things, in words.
pub(crate) fn count(n: usize, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// Bytes in the largest unit that divides them.
pub(crate) fn size_text(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(power, _)| bytes > 0 && bytes.is_multiple_of(1 << power));
    unit.map_or_else(|| format!("{bytes} B"), |(power, name)| format!("{} {name}", bytes >> power))
}

/// A rate with as many digits as mean something.
pub(crate) fn rate_text(rate: f64) -> String {
    if rate < 100.0 { format!("{rate:.1}") } else { grouped(rate) }
}

/// A latency in a unit that suits it.
pub(crate) fn latency_text(us: f64) -> String {
    match us {
        ..100.0 => format!("{us:.1} us"),
        ..1e3 => format!("{us:.0} us"),
        ..1e4 => format!("{:.2} ms", us / 1e3),
        ..1e5 => format!("{:.1} ms", us / 1e3),
        ..1e6 => format!("{:.0} ms", us / 1e3),
        _ => format!("{:.1} s", us / 1e6),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::tests::machine;
    use std::time::Duration;
    use weft_api::{Health, Timestamp};
    use weft_types::{Generation, VolumeId, VolumeState};

    pub(crate) fn volume() -> VolumeInfo {
        VolumeInfo {
            id: VolumeId(1),
            name: "data".into(),
            pool: "default".into(),
            size_bytes: 64 << 20,
            protection: weft_types::Protection::mirror(2),
            copies: 2,
            stripe_unit_bytes: 64 << 10,
            width: 4,
            object_bytes: 64 << 20,
            thin: false,
            state: VolumeState::Ready,
            generation: Generation(1),
            created: Timestamp::from_millis(0),
            health: Health::Healthy,
            groups: 4,
            sessions: 0,
            file_system: None,
        }
    }

    /// A run of two seconds with a read and many writes.
    pub(crate) fn report() -> RunReport {
        let mut latencies =
            LoadResult { reads: Completed::new(), writes: Completed::new(), elapsed: Duration::from_secs(2) };
        latencies.reads.record(Duration::from_micros(80));
        (1..=3999).for_each(|us| latencies.writes.record(Duration::from_micros(us)));
        let load = LoadFacts {
            read_percent: 1,
            pattern: Pattern::Random,
            block_bytes: 4096,
            depth: 32,
            jobs: 1,
            offset_bytes: 0,
            length_bytes: 64 << 20,
            runtime_s: 2.0,
            warm_up_s: 0.0,
            per_second_max: None,
            seed: 1,
            attached: AttachMode::Exclusive,
            verify: false,
        };
        let machine = machine(None);
        let tick = |from_s: f64, iops, p99_us: Option<f64>| Tick {
            from_s,
            to_s: from_s + 1.0,
            reads_per_s: 0.0,
            writes_per_s: iops,
            iops,
            mb_per_s: iops * 0.004096,
            p50_us: p99_us,
            p99_us,
            p999_us: p99_us,
            max_us: p99_us,
        };
        let seconds = vec![tick(0.0, 4000.0, Some(900.0)), tick(1.0, 0.0, None)];
        RunReport::new(volume(), load, machine, latencies, 0.5, seconds)
    }

    #[test]
    fn the_text_is_a_table_with_what_it_was_measured_on() {
        let text = report().text();
        for part in [
            "volume data: 64 MiB, 2 copies, stripes of 4 x 64 KiB over 4 groups",
            "random 1 % reads, 99 % writes of 4 KiB, 32 in flight; 2.0 s",
            "total      4,000       2,000   8.2",
            "this process used 0.50 CPU seconds, 8,000 requests per CPU second",
        ] {
            assert!(text.contains(part), "'{part}' is not in:\n{text}");
        }
    }

    #[test]
    fn one_kind_of_request_has_one_row_and_nothing_is_told_too() {
        let mut report = report();
        report.reads.requests = 0;
        assert_eq!(report.rows().len(), 2);
        report.writes.requests = 0;
        assert_eq!(report.rows()[1][0], "total");
        let empty = Side::new(&Completed::new(), 4096, 0.0);
        assert_eq!((empty.iops, empty.p99_us), (0.0, None));
    }

    #[test]
    fn documents_have_the_promised_keys() {
        let json = serde_json::to_value(report()).expect("reports serialise");
        for key in ["iops", "mb_per_s", "mean_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us"] {
            assert!(json["total"][key].is_number(), "{key}: {json}");
        }
        assert_eq!(json["load"]["pattern"], "random");
        assert_eq!(json["seconds"][1]["p99_us"], serde_json::Value::Null);
        assert_eq!(json["machine"]["kernel"], "6.18.0");
        assert_eq!(json["volume"]["copies"], 2);
    }

    #[test]
    fn wrong_blocks_are_told_loudly() {
        let mut report = report();
        let mismatch = crate::Mismatch { lba: 9, expected: "generation 2".into(), found: "zeroes".into() };
        let verified =
            Verified { blocks_checked: 5, blocks_unknown: 1, blocks_wrong: 1, mismatches: vec![mismatch] };
        report.verify = Some(VerifyFacts { verified, is_read_back: false });
        assert!(!report.is_verified());
        let text = report.text();
        assert!(text.contains("LBA 9: expected generation 2, found zeroes"), "{text}");
        assert!(text.contains("WRONG blocks: 1") && text.contains("not all read back"), "{text}");
    }

    #[test]
    fn figures_read_well() {
        let latencies = [0.5, 99.9, 512.4, 1234.0, 45_600.0, 123_456.0, 2.5e6].map(latency_text);
        assert_eq!(latencies, ["0.5 us", "99.9 us", "512 us", "1.23 ms", "45.6 ms", "123 ms", "2.5 s"]);
        assert_eq!([0.0, 8.19, 99_999.6].map(rate_text), ["0.0", "8.2", "100,000"]);
        assert_eq!([0, 512, 4096, 96 << 20].map(size_text), ["0 B", "512 B", "4 KiB", "96 MiB"]);
    }
}
