//! A record as a page: charts over one time axis, the same marks on each, and the figures beside them.

use super::marks::{Mark, marks};
use super::record::{Interval, Record};
use super::summary::{degraded_ms, latency, volume};
use crate::row::{Percentiles, Row};
use crate::size::Size;
use crate::span::span;
use std::time::Duration;
use weft_report::{Axis, Chart, Marker, Part, Scale, Section, Series, Table, Unit, page};

/// Points of a line: more than the drawing has units across show nothing more, and make the page large.
const POINTS_MAX: usize = 600;

/// Volumes with a line of their own, those that moved most: as many as there are colours that stay apart.
const VOLUMES_SHOWN: usize = 5;

/// A hole in the record that is longer than so many intervals interrupts the lines.
const HOLE_INTERVALS: u64 = 3;

/// The page of a record as the text of a file.
pub(super) fn html(record: &Record, title: Option<&str>) -> String {
    let title = title.map_or_else(|| format!("Fabric {}", record.fabric.short()), str::to_owned);
    page(&title, &sections(record))
}

fn sections(record: &Record) -> Vec<Section> {
    let view = View::of(record);
    let mut throughput = vec![Part::Chart(view.throughput()), Part::Chart(view.requests())];
    throughput.extend(view.by_volume(record).map(Part::Chart));
    let mut latencies = Vec::new();
    latencies.extend(view.latency("Latency of writes", |row| row.write_latency_us).map(Part::Chart));
    latencies.extend(view.latency("Latency of reads", |row| row.read_latency_us).map(Part::Chart));
    if latencies.is_empty() {
        latencies.push(Part::Text("Nothing was read or written.".into()));
    }
    let text = "From a request's arrival at a node to the answer, of the requests that were answered in each interval, \
                by the nodes' own clocks; what a client waits while a node is gone is not in it.";
    latencies.insert(0, Part::Text(text.into()));
    let mut protection = vec![Part::Chart(view.copies())];
    protection.extend(view.background().map(Part::Chart));
    let mut sections = vec![
        Section::new("Summary", summary(record, &view)),
        Section::new("Throughput", throughput),
        Section::new("Latency", latencies),
        Section::new("Protection", protection),
    ];
    if !view.marks.is_empty() {
        sections.insert(1, Section::new("What happened", vec![Part::Table(events(&view.marks))]));
    }
    sections
}

fn summary(record: &Record, view: &View<'_>) -> Vec<Part> {
    let degraded = degraded_ms(record);
    let mut facts = vec![
        ("fabric".to_owned(), record.fabric.to_string()),
        (
            "recorded".to_owned(),
            format!(
                "{} from {} on, in {} intervals",
                span(Duration::from_millis(record.length_ms())),
                weft_api::Timestamp::from_millis(record.begin_ms()),
                record.intervals.len()
            ),
        ),
        (
            "not healthy".to_owned(),
            if degraded == 0 { "never".into() } else { span(Duration::from_millis(degraded)) },
        ),
    ];
    if view.per_point > 1 {
        let text = format!(
            "{} intervals each: rates are means, latencies and missing copies the worst",
            view.per_point
        );
        facts.push(("points of the charts".to_owned(), text));
    }
    let mut parts = vec![Part::Facts(facts)];
    if !record.silences.is_empty() {
        let count = record.silences.len();
        parts.push(Part::Warning(format!(
            "No manager answered {count} times: what it did not tell is missing here."
        )));
    }
    let head = ["volume", "read", "written", "worst p99 of reads", "worst p99 of writes", "errors"];
    let rows: Vec<Vec<String>> = (record.volumes().into_iter())
        .map(|name| {
            let sums = volume(record, name);
            let bytes =
                |bytes: u64, most: u64| format!("{}, at most {:.0} MB/s", Size(bytes), most as f64 / 1e6);
            vec![
                sums.name,
                bytes(sums.read_bytes, sums.read_bytes_per_s_max),
                bytes(sums.written_bytes, sums.written_bytes_per_s_max),
                latency(sums.read_p99_us_worst).replace(" us", " µs"),
                latency(sums.write_p99_us_worst).replace(" us", " µs"),
                sums.errors.to_string(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        let head = head.map(str::to_owned).to_vec();
        parts.push(Part::Table(Table { head, rows, ends_in_text: false }));
    }
    parts
}

/// The events with the numbers that they have on the charts.
fn events(marks: &[Mark]) -> Table {
    let row = |(number, mark): (usize, &Mark)| {
        let time = mark.time.to_string();
        let clock = time.get(11..19).unwrap_or_default().to_owned();
        vec![number.to_string(), clock, format!("{:.1} s", mark.at_s), mark.what.clone()]
    };
    let head = ["mark", "time (UTC)", "after", "what"].map(str::to_owned).to_vec();
    Table { head, rows: (1..).zip(marks).map(row).collect(), ends_in_text: true }
}

/// What the charts show: the intervals, gathered where there are many, and the marks.
struct View<'a> {
    /// Intervals that each point stands for.
    per_point: usize,
    points: Vec<&'a [Interval]>,
    marks: Vec<Mark>,
    begin_ms: u64,
    unit: Unit,
}

impl<'a> View<'a> {
    fn of(record: &'a Record) -> View<'a> {
        let per_point = record.intervals.len().div_ceil(POINTS_MAX).max(1);
        let unit = match record.length_ms() / 60_000 {
            0..15 => Unit::Seconds,
            15..300 => Unit::Minutes,
            _ => Unit::Hours,
        };
        View {
            per_point,
            points: record.intervals.chunks(per_point).collect(),
            marks: marks(record),
            begin_ms: record.begin_ms(),
            unit,
        }
    }

    /// Milliseconds since the beginning on the horizontal axis.
    fn x(&self, ms: f64) -> f64 {
        match self.unit {
            Unit::Minutes => ms / 60_000.0,
            Unit::Hours => ms / 3_600_000.0,
            _ => ms / 1_000.0,
        }
    }

    /// A line: a value in the middle of each point's time. Holes in the record interrupt it.
    fn line(&self, name: &str, unit: Unit, value: impl Fn(&[Interval]) -> Option<f64>) -> Series {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut last_ms: Option<u64> = None;
        for part in &self.points {
            let (Some(first), Some(last)) = (part.first(), part.last()) else { continue };
            let (from, to) = (first.begin_ms(), last.time.as_millis());
            if let Some(before) = last_ms
                && from > HOLE_INTERVALS.saturating_mul(first.interval_ms).saturating_add(before)
            {
                points.push((self.x(before as f64 - self.begin_ms as f64), f64::NAN));
            }
            let middle = (from + to) as f64 / 2.0 - self.begin_ms as f64;
            points.push((self.x(middle), value(part).unwrap_or(f64::NAN)));
            last_ms = Some(to);
        }
        Series::new(name, unit, points)
    }

    fn chart(&self, title: &str, y: Axis, series: Vec<Series>) -> Chart {
        let x = Axis::new("time since the beginning", self.unit, Scale::Linear);
        let marker = |mark: &Mark| Marker { at: self.x(mark.at_s * 1000.0), text: mark.what.clone() };
        Chart::new(title, x, y, series).numbered(self.marks.iter().map(marker).collect())
    }

    fn throughput(&self) -> Chart {
        let series = vec![
            self.megabytes("written", |i| i.total.written_bytes_per_s),
            self.megabytes("read", |i| i.total.read_bytes_per_s),
        ];
        let y = Axis::new("throughput", Unit::MegabytesPerSecond, Scale::Linear);
        self.chart("What clients read and write, of all volumes", y, series)
    }

    /// What goes on beside the clients' work, if anything does.
    fn background(&self) -> Option<Chart> {
        let is_any = |value: fn(&Interval) -> u64| self.points.iter().any(|p| p.iter().any(|i| value(i) > 0));
        let mut series = Vec::new();
        if is_any(Interval::repair_bytes_per_s) {
            series.push(
                self.megabytes("written by resyncs, rebuilds and healing", Interval::repair_bytes_per_s),
            );
        }
        if is_any(|i| i.scrubbed_bytes_per_s) {
            series.push(self.megabytes("read by scrubs", |i| i.scrubbed_bytes_per_s));
        }
        let y = Axis::new("throughput", Unit::MegabytesPerSecond, Scale::Linear);
        (!series.is_empty()).then(|| self.chart("Work beside that of clients", y, series))
    }

    fn megabytes(&self, name: &str, value: impl Fn(&Interval) -> u64) -> Series {
        self.line(name, Unit::MegabytesPerSecond, |part| mean(part, |i| value(i) as f64 / 1e6))
    }

    fn requests(&self) -> Chart {
        let rate = |name: &str, value: fn(&Row) -> f64| {
            self.line(name, Unit::PerSecond, |part| mean(part, |i| value(&i.total)))
        };
        let series = vec![
            rate("writes", |row| row.writes_per_s + row.zeroes_per_s),
            rate("reads", |row| row.reads_per_s),
        ];
        self.chart("Requests", Axis::new("rate", Unit::PerSecond, Scale::Linear), series)
    }

    /// Volumes apart, where there are several.
    fn by_volume(&self, record: &Record) -> Option<Chart> {
        let names = record.volumes();
        let line = |name: &&str| {
            let of = |i: &Interval| {
                let row = i.volumes.iter().find(|v| v.name == **name);
                row.map_or(0.0, |row| {
                    row.read_bytes_per_s.saturating_add(row.written_bytes_per_s) as f64 / 1e6
                })
            };
            self.line(name, Unit::MegabytesPerSecond, |part| mean(part, of))
        };
        let series: Vec<Series> = names.iter().take(VOLUMES_SHOWN).map(line).collect();
        let title = match names.len() {
            0 | 1 => return None,
            n if n > VOLUMES_SHOWN => format!("The {VOLUMES_SHOWN} busiest of {n} volumes, reads and writes"),
            _ => "Each volume, reads and writes".to_owned(),
        };
        let y = Axis::new("throughput", Unit::MegabytesPerSecond, Scale::Linear);
        Some(self.chart(&title, y, series))
    }

    fn latency(&self, title: &str, times: fn(&Row) -> Percentiles) -> Option<Chart> {
        let worst = |part: &[Interval]| {
            let all = part.iter().map(|i| times(&i.total));
            all.fold(Percentiles::default(), Percentiles::worse)
        };
        let line = |name: &str, which: fn(Percentiles) -> Option<u64>| {
            self.line(name, Unit::Microseconds, |part| which(worst(part)).map(|us| us as f64))
        };
        let is_any = self.points.iter().any(|part| worst(part).p50.is_some());
        let series = vec![line("p50", |t| t.p50), line("p99", |t| t.p99), line("p99.9", |t| t.p999)];
        let y = Axis::new("latency", Unit::Microseconds, Scale::Log);
        is_any.then(|| self.chart(title, y, series))
    }

    fn copies(&self) -> Chart {
        let most = |part: &[Interval]| part.iter().map(|i| i.copies_behind).max().map(|n| n as f64);
        let series = vec![self.line("copies", Unit::Count, most)];
        let y = Axis::new("copies", Unit::Count, Scale::Linear);
        self.chart("Copies of groups that are missing or behind", y, series)
    }
}

/// The mean of a rate over intervals, by their lengths.
fn mean(part: &[Interval], value: impl Fn(&Interval) -> f64) -> Option<f64> {
    let length: f64 = part.iter().map(|i| i.interval_ms as f64).sum();
    let sum: f64 = part.iter().map(|i| value(i) * i.interval_ms as f64).sum();
    (length > 0.0).then(|| sum / length)
}

#[cfg(test)]
mod tests {
    use super::super::record::DriveRow;
    use super::super::record::tests::{event, seconds};
    use super::super::summary::{describe, summary};
    use super::*;
    use crate::paint::Paint;
    use weft_api::Health;

    #[test]
    fn the_page_has_charts_with_units_marks_and_a_table_of_them() {
        let mut record = seconds(30);
        record.intervals[4].events = vec![event(1_004_500, "note", "node-2 <is> killed")];
        let html = html(&record, Some("A night"));
        assert_eq!(html.matches("<svg").count(), 5, "nothing was read: no chart of how long that took");
        for part in [
            "<h1>A night</h1>",
            "time since the beginning (s)",
            "throughput (MB/s)",
            "written by resyncs, rebuilds and healing",
            "node-2 &lt;is&gt; killed",
            "<td>4.5 s</td>",
            "worst p99 of writes",
        ] {
            assert!(html.contains(part), "'{part}' is not in {html}");
        }
        assert!(!html.contains("class=\"marks\""), "the marks are told once");
    }

    #[test]
    fn long_records_are_gathered_and_holes_stay_holes() {
        let mut record = seconds(6000);
        record.intervals[17].write_latency(77_000);
        record.intervals.drain(3000..3100);
        let view = View::of(&record);
        assert_eq!((view.per_point, view.unit), (10, Unit::Minutes));
        let lines = view.latency("writes", |row| row.write_latency_us).expect("there were writes").series;
        assert_eq!(lines[1].points[1].1, 77_000.0, "the worst of its ten");
        assert_eq!(lines[1].points.iter().filter(|p| p.1.is_nan()).count(), 1, "one hole");
        assert_eq!(view.throughput().series[0].points[0].1, 4.096);
    }

    #[test]
    fn figures_that_cannot_be_stay_at_the_end_of_their_range() {
        let mut record = seconds(40);
        for interval in &mut record.intervals {
            interval.interval_ms = u64::MAX;
            interval.health = Health::Degraded;
            interval.drives = vec![DriveRow { stored_bytes_per_s: Some(u64::MAX), ..Default::default() }; 2];
            let row = Row {
                read_bytes: u64::MAX,
                written_bytes: u64::MAX,
                read_bytes_per_s: u64::MAX,
                written_bytes_per_s: u64::MAX,
                errors: u64::MAX,
                reads_per_s: 1e300,
                ..interval.total.clone()
            };
            interval.volumes = vec![row.clone(), Row { name: "b".into(), ..row.clone() }];
            interval.total = row;
        }
        assert_eq!(record.intervals[0].repair_bytes_per_s(), u64::MAX);
        assert_eq!(degraded_ms(&record), u64::MAX);
        assert_eq!(volume(&record, "b").read_bytes, u64::MAX);
        assert!(html(&record, None).contains("<svg"));
        let text = describe(&summary(&record), Paint::off());
        assert!(text.contains("16 EiB") || text.contains("15.9 EiB"), "{text}");
    }

    #[test]
    fn several_volumes_have_lines_of_their_own() {
        let mut record = seconds(3);
        assert!(View::of(&record).by_volume(&record).is_none());
        for interval in &mut record.intervals {
            let twin = Row { name: "b".into(), ..interval.volumes[0].clone() };
            interval.volumes.push(twin);
        }
        let chart = View::of(&record).by_volume(&record).expect("there are two");
        assert_eq!(chart.series.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["b", "data"]);
    }

    impl Interval {
        fn write_latency(&mut self, p99: u64) {
            self.total.write_latency_us.p99 = Some(p99);
        }
    }
}
