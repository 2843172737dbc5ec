//! A record: the lines that `weft watch --record` wrote, or `weft watch --json` printed.
//!
//! It owns reading them, and says what is wrong with a file that is none. A last line that is cut off, because the
//! watch was killed or still writes, is left out.

use crate::error::CliError;
use crate::row::Row;
use serde::Deserialize;
use std::fs;
use std::path::Path;
use weft_api::{EventInfo, Health, SCHEMA_VERSION, Timestamp};
use weft_types::FabricId;

/// What was recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Record {
    pub(super) fabric: FabricId,
    /// Oldest first; never empty.
    pub(super) intervals: Vec<Interval>,
    /// When no manager answered.
    pub(super) silences: Vec<Timestamp>,
}

/// What happened in an interval.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Interval {
    pub(super) fabric: FabricId,
    /// Its end.
    pub(super) time: Timestamp,
    pub(super) interval_ms: u64,
    pub(super) total: Row,
    pub(super) volumes: Vec<Row>,
    pub(super) drives: Vec<DriveRow>,
    pub(super) health: Health,
    pub(super) copies_behind: usize,
    pub(super) scrubbed_bytes_per_s: u64,
    pub(super) events: Vec<EventInfo>,
}

/// What was put on a drive: for clients, and by anybody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct DriveRow {
    pub(super) written_bytes_per_s: u64,
    #[serde(default)]
    pub(super) stored_bytes_per_s: Option<u64>,
}

impl Interval {
    /// Its beginning.
    pub(super) fn begin_ms(&self) -> u64 {
        self.time.as_millis().saturating_sub(self.interval_ms)
    }

    /// Bytes a second that drives took from anybody but clients: from resyncs, rebuilds and scrubs.
    pub(super) fn repair_bytes_per_s(&self) -> u64 {
        let beside = |d: &DriveRow| d.stored_bytes_per_s.unwrap_or(0).saturating_sub(d.written_bytes_per_s);
        self.drives.iter().map(beside).fold(0, u64::saturating_add)
    }
}

/// What tells the kinds of lines apart.
#[derive(Deserialize)]
struct Kind {
    schema_version: u32,
    time: Timestamp,
    error: Option<String>,
}

impl Record {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no record.
    pub(super) fn read(path: &Path) -> Result<Record, CliError> {
        let text = fs::read_to_string(path).map_err(CliError::file("read", path))?;
        let hint = "name a file that `weft watch --record FILE` has written, or `weft watch --json` printed";
        Record::parse(&text).map_err(|what| CliError::Failed {
            message: format!("{} is no record: {what}", path.display()),
            hint: hint.into(),
        })
    }

    pub(super) fn parse(text: &str) -> Result<Record, String> {
        let mut record = Record::default();
        // What follows the last end of a line is a line that was not finished.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for (number, line) in (1..).zip(whole.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |error: serde_json::Error| format!("line {number} is none of it: {error}");
            let kind: Kind = serde_json::from_str(line).map_err(wrong)?;
            if kind.schema_version != SCHEMA_VERSION {
                let found = kind.schema_version;
                return Err(format!("line {number} has schema version {found}, expected {SCHEMA_VERSION}"));
            }
            if kind.error.is_some() {
                record.silences.push(kind.time);
                continue;
            }
            let interval: Interval = serde_json::from_str(line).map_err(wrong)?;
            if record.intervals.first().is_some_and(|first| first.fabric != interval.fabric) {
                return Err(format!("line {number} is of another fabric, {}", interval.fabric));
            }
            if record.intervals.last().is_some_and(|last| last.time > interval.time) {
                return Err(format!("line {number}, of {}, is older than the line before", interval.time));
            }
            record.intervals.push(interval);
        }
        let first = record.intervals.first().ok_or("there is no interval in it yet")?;
        record.fabric = first.fabric;
        Ok(record)
    }

    /// When it begins, in milliseconds since 1970.
    pub(super) fn begin_ms(&self) -> u64 {
        self.intervals.first().map_or(0, Interval::begin_ms)
    }

    /// How long it is, in milliseconds.
    pub(super) fn length_ms(&self) -> u64 {
        let end = self.intervals.last().map_or(0, |last| last.time.as_millis());
        end.saturating_sub(self.begin_ms())
    }

    /// The names of all volumes that were asked for anything, those that moved most bytes first.
    pub(super) fn volumes(&self) -> Vec<&str> {
        let mut moved: Vec<(&str, u64)> = Vec::new();
        for row in self.intervals.iter().flat_map(|i| &i.volumes) {
            let bytes = row.read_bytes.saturating_add(row.written_bytes);
            match moved.iter_mut().find(|(name, _)| *name == row.name) {
                Some((_, sum)) => *sum = sum.saturating_add(bytes),
                None => moved.push((&row.name, bytes)),
            }
        }
        moved.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        moved.into_iter().map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::row::Percentiles;
    use weft_types::MapVersion;

    pub(in super::super) fn event(ms: u64, what: &str, why: &str) -> EventInfo {
        let (what, why) = (what.to_owned(), why.to_owned());
        EventInfo {
            seq: 1,
            time: Timestamp::from_millis(ms),
            clock_back_ms: None,
            map: MapVersion(1),
            who: "manager".into(),
            what,
            why,
            volumes: vec![],
            nodes: vec![],
            drives: vec![],
        }
    }

    /// A record of seconds in which one volume writes, without what else happens.
    pub(in super::super) fn seconds(count: u64) -> Record {
        let interval = |i: u64| {
            let latency = Percentiles { p50: Some(100), p99: Some(200 + i), p999: Some(900) };
            let row = |name: &str| Row {
                name: name.into(),
                writes_per_s: 1000.0,
                written_bytes: 4_096_000,
                written_bytes_per_s: 4_096_000,
                write_latency_us: latency,
                ..Row::default()
            };
            Interval {
                fabric: FabricId(1),
                time: Timestamp::from_millis(1_000_000 + (i + 1) * 1000),
                interval_ms: 1000,
                total: row("total"),
                volumes: vec![row("data")],
                drives: vec![DriveRow { written_bytes_per_s: 100, stored_bytes_per_s: Some(250) }],
                health: Health::Healthy,
                copies_behind: 0,
                scrubbed_bytes_per_s: 0,
                events: Vec::new(),
            }
        };
        Record { fabric: FabricId(1), intervals: (0..count).map(interval).collect(), silences: Vec::new() }
    }

    #[test]
    fn what_is_no_record_is_told_by_its_line() {
        let wrong = |text: &str, words: &str| {
            let error = Record::parse(text).expect_err(text);
            assert!(error.contains(words), "{error}");
        };
        wrong("", "no interval");
        wrong("not a line of JSON\n", "line 1");
        wrong("\n{\"schema_version\":1}\n", "line 2");
        wrong("{\"schema_version\":99,\"time\":\"2026-11-21T10:00:00.000Z\"}\n", "schema version 99");
        let silence = "{\"schema_version\":1,\"time\":\"2026-11-21T10:00:00.000Z\",\"error\":\"gone\"}\n";
        wrong(silence, "no interval");
        wrong(&format!("{silence}{{\"schema_ver"), "no interval");
    }

    #[test]
    fn what_repairs_put_on_drives_is_what_clients_did_not() {
        let record = seconds(2);
        assert_eq!(record.intervals[0].repair_bytes_per_s(), 150);
        assert_eq!((record.begin_ms(), record.length_ms()), (1_000_000, 2_000));
        assert_eq!(record.volumes(), ["data"]);
    }
}
