//! The figures of a test of IOR as an HTML page: against the number of processes, the size of transfers, or
//! the repetition, whichever there are several of.

use super::access::Access;
use super::outcome::{IorFigures, IorRow, IorSummary};
use crate::outcome::size_text;
use weft_report::{Axis, Chart, Part, Scale, Section, Series, Table, Unit, page};

/// A figure of a summary.
type Figure = fn(&IorSummary) -> f64;

impl IorFigures {
    /// The figures as the text of an HTML file that needs nothing else.
    pub(super) fn page(&self) -> String {
        let mut summary: Vec<Part> = self.facts().into_iter().map(Part::Text).collect();
        summary.extend(self.checks().into_iter().map(|line| match self.wrong() {
            0 => Part::Text(line),
            _ => Part::Warning(line),
        }));
        summary.push(Part::Table(table(self.summary_table())));
        let mut sections = vec![Section::new("Summary", summary)];
        let charts = self.charts();
        if !charts.is_empty() {
            sections.push(Section::new("Charts", charts.into_iter().map(Part::Chart).collect()));
        }
        sections.push(Section::new("Each phase", vec![Part::Table(table(self.table()))]));
        page("IOR", &sections)
    }

    fn charts(&self) -> Vec<Chart> {
        let several =
            |of: fn(&IorSummary) -> u64| self.summary.iter().any(|one| of(one) != of(&self.summary[0]));
        let (processes, transfers) = (several(|one| one.processes.into()), several(|one| one.transfer_bytes));
        let mut charts = Vec::new();
        let figures: [(&str, Unit, Figure); 2] = [
            ("Throughput", Unit::MebibytesPerSecond, |one| one.mib_per_s.mean),
            ("Transfers per second", Unit::PerSecond, |one| one.iops.mean),
        ];
        for (name, unit, figure) in figures {
            if processes {
                let x = Axis::new("processes", Unit::Count, Scale::Linear);
                let lines = self.lines(
                    unit,
                    figure,
                    |one| f64::from(one.processes),
                    |one| match transfers {
                        true => size_text(one.transfer_bytes),
                        false => String::new(),
                    },
                );
                let y = Axis::new("rate", unit, Scale::Linear);
                charts.push(Chart::new(&format!("{name} against the number of processes"), x, y, lines));
            }
            if transfers {
                let x = Axis::new("size of transfers (KiB)", Unit::Number, Scale::Log);
                let lines = self.lines(
                    unit,
                    figure,
                    |one| one.transfer_bytes as f64 / 1024.0,
                    |one| match processes {
                        true => format!("{} processes", one.processes),
                        false => String::new(),
                    },
                );
                let y = Axis::new("rate", unit, Scale::Linear);
                charts.push(Chart::new(&format!("{name} against the size of transfers"), x, y, lines));
            }
        }
        if !processes && !transfers {
            charts.extend(self.repetitions());
        }
        charts
    }

    /// A line for each kind of access and each name.
    fn lines(
        &self,
        unit: Unit,
        figure: Figure,
        place: fn(&IorSummary) -> f64,
        name: impl Fn(&IorSummary) -> String,
    ) -> Vec<Series> {
        let mut lines: Vec<Series> = Vec::new();
        for one in &self.summary {
            let name = format!("{} {}", one.access.word(), name(one)).trim_end().to_owned();
            let point = (place(one), figure(one));
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Series::new(&name, unit, vec![point])),
            }
        }
        lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
        lines
    }

    /// Throughput of each repetition, if there are several.
    fn repetitions(&self) -> Option<Chart> {
        let unit = Unit::MebibytesPerSecond;
        let line = |access: Access| {
            let rows = self.rows.iter().filter(|row| row.access == access);
            let point = |row: &IorRow| Some((f64::from(row.iteration), row.mib_per_s?));
            Series::new(access.word(), unit, rows.filter_map(point).collect())
        };
        let lines = [Access::Write, Access::Read].map(line);
        let lines: Vec<Series> = lines.into_iter().filter(|line| line.points.len() > 1).collect();
        let (x, y) =
            (Axis::new("repetition", Unit::Count, Scale::Linear), Axis::new("rate", unit, Scale::Linear));
        (!lines.is_empty()).then(|| Chart::new("Throughput of each repetition", x, y, lines))
    }
}

/// Rows whose first one holds the titles.
pub(crate) fn table(mut rows: Vec<Vec<String>>) -> Table {
    Table { head: rows.remove(0), rows, ends_in_text: false }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::{figures, row};
    use super::*;
    use crate::findings::Findings;

    fn charts(cases: &[(u32, u64, u32)]) -> Vec<(String, usize)> {
        let both = [Access::Write, Access::Read];
        let rows = cases.iter().flat_map(|(processes, transfer, iteration)| {
            both.map(|access| row(access, *processes, *transfer, *iteration))
        });
        let figures = figures(rows.collect());
        let html = figures.html();
        let charts = figures.charts();
        assert_eq!(html.matches("<svg").count(), charts.len());
        charts.into_iter().map(|chart| (chart.title, chart.series.len())).collect()
    }

    #[test]
    fn what_there_are_several_of_is_an_axis() {
        assert_eq!(charts(&[(2, 4096, 0)]), []);
        let repeated = charts(&[(2, 4096, 0), (2, 4096, 1)]);
        assert_eq!(repeated, [("Throughput of each repetition".to_owned(), 2)]);
        let processes = charts(&[(1, 4096, 0), (2, 4096, 0)]);
        assert_eq!((processes.len(), processes[0].1), (2, 2));
        assert!(processes[0].0.contains("processes"));
        let both = charts(&[(1, 4096, 0), (2, 4096, 0), (1, 8192, 0), (2, 8192, 0)]);
        assert_eq!((both.len(), both[0].1, both[1].1), (4, 4, 4));
    }
}
