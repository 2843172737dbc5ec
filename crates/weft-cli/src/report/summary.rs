//! A record in figures: what each volume was asked for, how long it took, and what happened meanwhile.

use super::marks::{Mark, marks};
use super::record::{Interval, Record};
use crate::paint::{Paint, Tone};
use crate::row::{Percentiles, Row};
use crate::size::Size;
use crate::span::span;
use crate::table::{Cell, Table};
use serde::Serialize;
use std::time::Duration;
use weft_api::{Health, Timestamp};
use weft_types::FabricId;

/// A record in figures, for programs.
#[derive(Serialize)]
pub(super) struct Summary {
    fabric: FabricId,
    begin: Timestamp,
    end: Timestamp,
    intervals: usize,
    /// Intervals in which no manager answered.
    unanswered: usize,
    /// How long copies were missing or behind.
    degraded_ms: u64,
    volumes: Vec<VolumeSummary>,
    events: Vec<Mark>,
}

/// What was asked of a volume over the whole record.
#[derive(Debug, Serialize)]
pub(super) struct VolumeSummary {
    pub(super) name: String,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    /// The most bytes of an interval.
    pub(super) read_bytes_per_s_max: u64,
    pub(super) written_bytes_per_s_max: u64,
    pub(super) errors: u64,
    /// Of the worst interval.
    pub(super) read_p99_us_worst: Option<u64>,
    pub(super) write_p99_us_worst: Option<u64>,
}

pub(super) fn summary(record: &Record) -> Summary {
    let end_ms = record.begin_ms().saturating_add(record.length_ms());
    Summary {
        fabric: record.fabric,
        begin: Timestamp::from_millis(record.begin_ms()),
        end: Timestamp::from_millis(end_ms),
        intervals: record.intervals.len(),
        unanswered: record.silences.len(),
        degraded_ms: degraded_ms(record),
        volumes: record.volumes().into_iter().map(|name| volume(record, name)).collect(),
        events: marks(record),
    }
}

/// How long the fabric was not healthy.
pub(super) fn degraded_ms(record: &Record) -> u64 {
    let bad = record.intervals.iter().filter(|i| i.health != Health::Healthy);
    bad.map(|i| i.interval_ms).fold(0, u64::saturating_add)
}

pub(super) fn volume(record: &Record, name: &str) -> VolumeSummary {
    let of = |interval: &'_ Interval| interval.volumes.iter().find(|v| v.name == name).cloned();
    let rows: Vec<Row> = record.intervals.iter().filter_map(of).collect();
    let most = |value: fn(&Row) -> u64| rows.iter().map(value).max().unwrap_or(0);
    let sum = |value: fn(&Row) -> u64| rows.iter().map(value).fold(0, u64::saturating_add);
    let worst = |times: fn(&Row) -> Percentiles| rows.iter().filter_map(|row| times(row).p99).max();
    VolumeSummary {
        name: name.to_owned(),
        read_bytes: sum(|row| row.read_bytes),
        written_bytes: sum(|row| row.written_bytes),
        read_bytes_per_s_max: most(|row| row.read_bytes_per_s),
        written_bytes_per_s_max: most(|row| row.written_bytes_per_s),
        errors: sum(|row| row.errors),
        read_p99_us_worst: worst(|row| row.read_latency_us),
        write_p99_us_worst: worst(|row| row.write_latency_us),
    }
}

/// Microseconds as people read them.
pub(super) fn latency(us: Option<u64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 1_000 => format!("{us} us"),
        Some(us) if us < 1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        Some(us) => format!("{:.1} s", us as f64 / 1e6),
    }
}

pub(super) fn describe(summary: &Summary, paint: Paint) -> String {
    let length = summary.end.as_millis().saturating_sub(summary.begin.as_millis());
    let mut text = format!(
        "{} of fabric {} from {} on, in {} intervals; not healthy for {}\n",
        span(Duration::from_millis(length)),
        summary.fabric.short(),
        summary.begin,
        summary.intervals,
        span(Duration::from_millis(summary.degraded_ms)),
    );
    if summary.unanswered > 0 {
        let lost =
            format!("no manager answered {} times: what it did not tell is missing here", summary.unanswered);
        text.push_str(&format!("{}\n", paint.text(Tone::Warning, &lost)));
    }
    let mut table = Table::new(&[
        "VOLUME",
        ">READ",
        ">WRITTEN",
        ">R MiB/s MAX",
        ">W MiB/s MAX",
        ">R p99 WORST",
        ">W p99 WORST",
        ">ERRORS",
    ]);
    for volume in &summary.volumes {
        let mib = |bytes: u64| Cell::from(format!("{:.0}", bytes as f64 / f64::from(1 << 20)));
        let tone = if volume.errors > 0 { Tone::Bad } else { Tone::Plain };
        table.row(vec![
            Cell::from(volume.name.as_str()),
            Cell::from(Size(volume.read_bytes).to_string()),
            Cell::from(Size(volume.written_bytes).to_string()),
            mib(volume.read_bytes_per_s_max),
            mib(volume.written_bytes_per_s_max),
            Cell::from(latency(volume.read_p99_us_worst)),
            Cell::from(latency(volume.write_p99_us_worst)),
            Cell::new(volume.errors.to_string(), tone),
        ]);
    }
    if !table.is_empty() {
        text.push_str(&format!("\n{}", table.render(paint)));
    }
    let mut events = Table::new(&[">AT", "WHAT"]);
    for event in &summary.events {
        events.row(vec![Cell::from(format!("{:.1} s", event.at_s)), Cell::from(event.what.as_str())]);
    }
    if !events.is_empty() {
        text.push_str(&format!("\n{}", events.render(paint)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::seconds;
    use super::*;

    #[test]
    fn a_volume_is_summed_up_with_its_worst() {
        let mut record = seconds(5);
        record.intervals[3].health = Health::Degraded;
        let summary = summary(&record);
        let volume = &summary.volumes[0];
        assert_eq!((volume.written_bytes, volume.written_bytes_per_s_max), (5 * 4_096_000, 4_096_000));
        assert_eq!((volume.write_p99_us_worst, volume.read_p99_us_worst), (Some(204), None));
        assert_eq!((summary.intervals, summary.degraded_ms), (5, 1000));
        let text = describe(&summary, Paint::off());
        assert!(text.contains("5 s of fabric") && text.contains("data") && text.contains("204 us"), "{text}");
    }

    #[test]
    fn latencies_read_well() {
        assert_eq!(
            [None, Some(7), Some(1_500), Some(2_000_000)].map(latency),
            ["-", "7 us", "1.5 ms", "2.0 s"]
        );
    }
}
