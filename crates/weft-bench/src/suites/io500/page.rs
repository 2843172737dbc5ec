//! The figures of IO500 as an HTML page: the phases and the score of each number of processes, and where
//! there are several, charts against that number.

use super::outcome::{Io500Figures, Io500Result, Io500Row};
use super::phase::Measure;
use crate::suites::facts::processes_text;
use crate::suites::ior::table;
use weft_report::{Axis, Chart, Part, Scale, Section, Series, Unit, page};

impl Io500Figures {
    /// The figures as the text of an HTML file that needs nothing else.
    pub(super) fn page(&self) -> String {
        let mut summary: Vec<Part> = self.facts().into_iter().map(Part::Text).collect();
        summary.push(Part::Warning(self.notice()));
        let mut sections = vec![Section::new("Summary", summary)];
        let charts = self.charts();
        if !charts.is_empty() {
            sections.push(Section::new("Charts", charts.into_iter().map(Part::Chart).collect()));
        }
        for result in &self.results {
            let mut parts = vec![Part::Table(table(result.table()))];
            parts.extend(result.lines().into_iter().map(|line| match line.contains("WRONG") {
                true => Part::Warning(line),
                false => Part::Text(line),
            }));
            sections.push(Section::new(&processes_text(result.processes), parts));
        }
        page("IO500 (not official)", &sections)
    }

    /// Rates and scores against the number of processes, if there are several.
    fn charts(&self) -> Vec<Chart> {
        if self.results.len() < 2 {
            return Vec::new();
        }
        let score = self.line("score", Unit::Number, |result| result.score.total);
        vec![
            chart("Score against the number of processes", Unit::Number, vec![score]),
            chart(
                "Throughput against the number of processes",
                Unit::MebibytesPerSecond,
                self.lines(Measure::Bandwidth, Unit::MebibytesPerSecond, 1024.0),
            ),
            chart(
                "Operations against the number of processes",
                Unit::OperationsPerSecond,
                self.lines(Measure::Operations, Unit::OperationsPerSecond, 1000.0),
            ),
        ]
    }

    /// A line for each phase of a measure, whose rates are `factor` times as many in the unit.
    fn lines(&self, measure: Measure, unit: Unit, factor: f64) -> Vec<Series> {
        let rows = self.results.first().map(|result| result.rows.as_slice()).unwrap_or_default();
        let rows = rows.iter().filter(|row| row.unit == Some(measure));
        let line = |row: &Io500Row| {
            let rate = |result: &Io500Result| {
                let same = result.rows.iter().find(|other| other.phase == row.phase);
                same.and_then(|row| row.rate).unwrap_or(0.0) * factor
            };
            self.line(row.phase.name(), unit, rate)
        };
        rows.map(line).collect()
    }

    fn line(&self, name: &str, unit: Unit, figure: impl Fn(&Io500Result) -> f64) -> Series {
        let point = |result: &Io500Result| (f64::from(result.processes), figure(result));
        let mut points: Vec<(f64, f64)> = self.results.iter().map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series::new(name, unit, points)
    }
}

fn chart(title: &str, unit: Unit, lines: Vec<Series>) -> Chart {
    let x = Axis::new("processes", Unit::Count, Scale::Linear);
    let name = if unit == Unit::Number { "score" } else { "rate" };
    Chart::new(title, x, Axis::new(name, unit, Scale::Linear), lines)
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::{figures, result};
    use crate::findings::Findings;

    #[test]
    fn several_numbers_of_processes_are_an_axis() {
        let one = figures(vec![result(2)]);
        assert!(one.charts().is_empty() && one.html().contains("NOT an official IO500 score"));
        let several = figures(vec![result(4), result(1), result(2)]);
        let (html, charts) = (several.html(), several.charts());
        assert_eq!(html.matches("<svg").count(), charts.len());
        let lines: Vec<usize> = charts.iter().map(|chart| chart.series.len()).collect();
        assert_eq!(lines, [1, 4, 8]);
        let places: Vec<f64> = charts[0].series[0].points.iter().map(|point| point.0).collect();
        assert_eq!(places, [1.0, 2.0, 4.0]);
    }
}
