//! The figures of a test of mdtest as an HTML page: a chart of the rates of folders, files and trees
//! against the number of processes, where there are several, and the tables.

use super::outcome::MdtestFigures;
use crate::suites::ior::table;
use weft_report::{Axis, Chart, Part, Scale, Section, Series, Unit, page};

/// What operations of a chart have in common: how their names begin.
const KINDS: [&str; 3] = ["Directory", "File", "Tree"];

impl MdtestFigures {
    /// The figures as the text of an HTML file that needs nothing else.
    pub(super) fn page(&self) -> String {
        let mut summary: Vec<Part> = self.facts().into_iter().map(Part::Text).collect();
        summary.extend(self.wrong().into_iter().map(Part::Warning));
        let mut sections = vec![Section::new("Summary", summary)];
        let charts = self.charts();
        if !charts.is_empty() {
            sections.push(Section::new("Charts", charts.into_iter().map(Part::Chart).collect()));
        }
        for result in &self.results {
            sections.push(Section::new(&self.what(result), vec![Part::Table(table(self.table(result)))]));
        }
        page("mdtest", &sections)
    }

    fn charts(&self) -> Vec<Chart> {
        match self.results.len() {
            0 | 1 => self.repetitions(),
            _ => KINDS.iter().filter_map(|kind| self.against_processes(kind)).collect(),
        }
    }

    fn against_processes(&self, kind: &str) -> Option<Chart> {
        let unit = Unit::OperationsPerSecond;
        let mut lines: Vec<Series> = Vec::new();
        for result in &self.results {
            for row in result.in_order() {
                let name = row.operation.words();
                if !name.starts_with(kind) {
                    continue;
                }
                let point = (f64::from(result.processes), row.per_second.mean);
                match lines.iter_mut().find(|line| line.name == name) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Series::new(name, unit, vec![point])),
                }
            }
        }
        lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        let x = Axis::new("processes", Unit::Count, Scale::Linear);
        let y = Axis::new("rate", unit, Scale::Linear);
        let title = format!("{kind} operations against the number of processes");
        (!lines.is_empty()).then(|| Chart::new(&title, x, y, lines))
    }

    /// The rate of each repetition, where there are several.
    fn repetitions(&self) -> Vec<Chart> {
        let unit = Unit::OperationsPerSecond;
        let rows = self.results.iter().flat_map(|result| result.in_order());
        let rows: Vec<_> = rows.filter(|row| row.rates.len() > 1).collect();
        let chart = |kind: &&str| {
            let rows = rows.iter().filter(|row| row.operation.words().starts_with(*kind));
            let line = |rates: &[f64]| rates.iter().enumerate().map(|(n, rate)| (n as f64, *rate)).collect();
            let lines = rows.map(|row| Series::new(row.operation.words(), unit, line(&row.rates)));
            let lines: Vec<Series> = lines.collect();
            let x = Axis::new("repetition", Unit::Count, Scale::Linear);
            let y = Axis::new("rate", unit, Scale::Linear);
            let title = format!("{kind} operations of each repetition");
            (!lines.is_empty()).then(|| Chart::new(&title, x, y, lines))
        };
        KINDS.iter().filter_map(chart).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::{figures, result};
    use crate::findings::Findings;

    #[test]
    fn several_numbers_of_processes_are_an_axis() {
        let charts = |numbers: &[u32]| {
            let figures = figures(numbers.iter().map(|number| result(*number)).collect());
            let html = figures.html();
            let charts = figures.charts();
            assert_eq!(html.matches("<svg").count(), charts.len(), "{html}");
            charts.into_iter().map(|chart| (chart.title, chart.series[0].points.len())).collect::<Vec<_>>()
        };
        let against = charts(&[1, 2, 4]);
        assert_eq!((against.len(), against[0].1), (3, 3));
        assert!(against[1].0.contains("File operations against the number of processes"));
        let repeated = charts(&[2]);
        assert_eq!((repeated.len(), repeated[0].1), (2, 2), "the tree was made once only: {repeated:?}");
    }
}
