//! A run of `weft bench run` as an HTML page.

use crate::BenchError;
use crate::latency::Completed;
use crate::outcome::{RunReport, latency_text, rate_text, size_text};
use crate::timeline::Tick;
use std::path::Path;
use weft_report::{Axis, Chart, Part, Scale, Section, Series, Table, Unit, page};

/// Bars of the distribution of latencies per power of ten: fine enough to tell two humps apart, coarse enough that each
/// holds some requests.
const BARS_PER_DECADE: i32 = 10;

impl RunReport {
    /// The run as the text of an HTML file that needs nothing else.
    pub fn html(&self) -> String {
        page(&format!("Load on volume {}", self.volume.name), &self.sections())
    }

    /// Writes the HTML to a file, replacing it at once or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_html(&self, path: &Path) -> Result<(), BenchError> {
        crate::report::replace(path, &self.html())
    }

    fn sections(&self) -> Vec<Section> {
        let mut summary = vec![Part::Text(format!("{} {}", sentence(&self.what()), sentence(&self.how())))];
        summary.extend(self.failure.iter().map(|failure| Part::Warning(failure.message.clone())));
        let checks = self.checks().into_iter();
        summary.extend(checks.map(|line| match self.is_verified() {
            true => Part::Text(sentence(&line)),
            false => Part::Warning(line),
        }));
        let mut rows = self.rows();
        rows.iter_mut().flatten().for_each(|cell| *cell = pretty(cell));
        let head = rows.remove(0);
        summary.push(Part::Table(Table { head, rows, ends_in_text: false }));
        summary.push(Part::Text(sentence(&self.cpu())));
        vec![
            Section::new("Summary", summary),
            Section::new("Throughput", vec![Part::Chart(self.rates()), Part::Chart(self.bytes())]),
            Section::new("Latency", vec![Part::Chart(self.percentiles()), Part::Chart(self.distribution())]),
            Section::new("Seconds", vec![Part::Folded("Each second in figures".into(), self.seconds())]),
            Section::new("What it ran on", vec![Part::Facts(self.facts())]),
        ]
    }

    /// A line over the seconds: through the middle of each, and level to both ends of the run.
    fn over_time(&self, name: &str, unit: Unit, value: impl Fn(&Tick) -> Option<f64>) -> Series {
        let value = |tick: &Tick| value(tick).unwrap_or(f64::NAN);
        let mut points: Vec<(f64, f64)> =
            self.seconds.iter().map(|tick| ((tick.from_s + tick.to_s) / 2.0, value(tick))).collect();
        if let (Some(first), Some(last)) = (self.seconds.first(), self.seconds.last()) {
            points.insert(0, (first.from_s, value(first)));
            points.push((last.to_s, value(last)));
        }
        Series::new(name, unit, points)
    }

    fn rates(&self) -> Chart {
        let mut series = Vec::new();
        if self.reads.requests > 0 {
            series.push(self.over_time("reads", Unit::PerSecond, |tick| Some(tick.reads_per_s)));
        }
        if self.writes.requests > 0 {
            series.push(self.over_time("writes", Unit::PerSecond, |tick| Some(tick.writes_per_s)));
        }
        Chart::over_time("Requests per second", Axis::new("rate", Unit::PerSecond, Scale::Linear), series)
    }

    fn bytes(&self) -> Chart {
        let all = self.over_time("reads and writes", Unit::MegabytesPerSecond, |tick| Some(tick.mb_per_s));
        let y = Axis::new("throughput", Unit::MegabytesPerSecond, Scale::Linear);
        Chart::over_time("Megabytes per second", y, vec![all])
    }

    fn percentiles(&self) -> Chart {
        let y = Axis::new("latency", Unit::Microseconds, Scale::Log);
        let series = vec![
            self.over_time("p50", Unit::Microseconds, |tick| tick.p50_us),
            self.over_time("p99", Unit::Microseconds, |tick| tick.p99_us),
            self.over_time("p99.9", Unit::Microseconds, |tick| tick.p999_us),
            self.over_time("max", Unit::Microseconds, |tick| tick.max_us),
        ];
        Chart::over_time("Latency of each second's requests", y, series)
    }

    fn distribution(&self) -> Chart {
        let sides = [("reads", &self.latencies.reads), ("writes", &self.latencies.writes)];
        let sides = sides.into_iter().filter(|(_, side)| side.requests > 0);
        let series = sides.map(|(name, side)| Series::new(name, Unit::Percent, bars(side))).collect();
        let x = Axis::new("latency", Unit::Microseconds, Scale::Log);
        let y = Axis::new("share of requests", Unit::Percent, Scale::Linear);
        Chart::new("How latencies are distributed over the whole run", x, y, series)
    }

    fn seconds(&self) -> Table {
        let head = ["seconds", "reads/s", "writes/s", "MB/s", "p50", "p99", "p99.9", "max"];
        let latency = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| pretty(&latency_text(us)));
        let row = |tick: &Tick| {
            let mut cells = vec![format!("{} to {}", tick.from_s, tick.to_s)];
            cells.extend([tick.reads_per_s, tick.writes_per_s, tick.mb_per_s].map(rate_text));
            cells.extend([tick.p50_us, tick.p99_us, tick.p999_us, tick.max_us].map(latency));
            cells
        };
        Table {
            head: head.map(str::to_owned).to_vec(),
            rows: self.seconds.iter().map(row).collect(),
            ends_in_text: false,
        }
    }

    fn facts(&self) -> Vec<(String, String)> {
        let (machine, load, volume) = (&self.machine, &self.load, &self.volume);
        let [processor, kernel] = machine.facts();
        let facts = [
            ("Weft", self.weft_version.to_owned()),
            ("began", machine.date.to_string()),
            processor,
            kernel,
            (
                "volume",
                format!(
                    "{} of pool {}, objects of {}",
                    volume.name,
                    volume.pool,
                    size_text(volume.object_bytes)
                ),
            ),
            (
                "part of the volume",
                format!("{} from {}", size_text(load.length_bytes), size_text(load.offset_bytes)),
            ),
            ("warm-up", format!("{} s, not in the figures", load.warm_up_s)),
            ("seed", load.seed.to_string()),
        ];
        facts.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }
}

/// A line of the report as a sentence.
fn sentence(line: &str) -> String {
    let mut letters = line.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}.", letters.as_str())
}

/// A latency with the letter that terminals may not have.
fn pretty(latency: &str) -> String {
    match latency.strip_suffix(" us") {
        Some(number) => format!("{number} µs"),
        None => latency.to_owned(),
    }
}

/// The outline of a bar chart: how many of a hundred requests took how long, in microseconds.
fn bars(side: &Completed) -> Vec<(f64, f64)> {
    let latency = &side.latency_ns;
    let bar_of = |ns: u64| (ns.max(1) as f64).log10() * f64::from(BARS_PER_DECADE);
    let edge_ns = |bar: i32| 10f64.powf(f64::from(bar) / f64::from(BARS_PER_DECADE));
    let (first, last) = (bar_of(latency.min()).floor() as i32, bar_of(latency.max()).floor() as i32);
    let mut points = vec![(edge_ns(first) / 1000.0, 0.0)];
    let mut next = 0;
    for bar in first..=last {
        // Each value is counted in one bar only: the next one begins right above.
        let end = edge_ns(bar + 1) as u64;
        let count = if end > next { latency.count_between(next, end) } else { 0 };
        next = next.max(latency.highest_equivalent(end) + 1);
        let percent = count as f64 / latency.len() as f64 * 100.0;
        points.extend([(edge_ns(bar) / 1000.0, percent), (edge_ns(bar + 1) / 1000.0, percent)]);
    }
    points.push((edge_ns(last + 1) / 1000.0, 0.0));
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::tests::report;
    use std::time::Duration;

    #[test]
    fn the_page_has_every_chart_and_figure() {
        let html = report().html();
        assert_eq!(html.matches("<svg").count(), 4, "each chart is drawn");
        for part in ["Load on volume data", "share of requests (%)", "rate (requests/s)", "Fast One", "p99.9"]
        {
            assert!(html.contains(part), "'{part}' is not there");
        }
    }

    #[test]
    fn bars_hold_all_requests_once() {
        let mut side = Completed::new();
        for us in [1u64, 10, 11, 12, 100, 1000, 1001, 59_000_000] {
            side.record(Duration::from_micros(us));
        }
        let points = bars(&side);
        let sum: f64 = points[1..points.len() - 1].chunks(2).map(|bar| bar[0].1).sum();
        assert!((sum - 100.0).abs() < 1e-9, "{sum}");
        assert!(points.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        assert!(points[0].0 <= 1.0 && points[points.len() - 1].0 >= 59e6);
    }
}
