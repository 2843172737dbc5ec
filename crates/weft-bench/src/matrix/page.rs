//! The matrix as an HTML page: against the number of clients, what they reach together, and how long it takes.

use super::Volumes;
use super::outcome::{Cell, MatrixFigures};
use crate::clients::Rates;
use crate::outcome::{count, size_text};
use crate::report::grouped;
use weft_report::{Axis, Chart, Part, Scale, Section, Series, Table, Unit, page};

/// A figure of a cell.
type Figure = fn(&Rates) -> f64;

impl MatrixFigures {
    /// The figures as the text of an HTML file that needs nothing else.
    pub(super) fn page(&self) -> String {
        let mut sections = vec![Section::new("What was reached", self.summary())];
        for volumes in [Volumes::Private, Volumes::Shared] {
            for is_read in [true, false] {
                let cells = self.cells.iter().filter(|c| c.volumes == volumes && c.is_read == is_read);
                let cells: Vec<&Cell> = cells.collect();
                if !cells.is_empty() {
                    sections.push(section(volumes, is_read, &cells));
                }
            }
        }
        let mut rows = self.rows();
        let table = Table { head: rows.remove(0), rows, ends_in_text: false };
        sections.push(Section::new("All figures", vec![Part::Text(self.how()), Part::Table(table)]));
        sections.push(self.on.section());
        page("Matrix of loads", &sections)
    }
}

impl MatrixFigures {
    /// What the page begins with: how it was measured, and the most of each kind of load.
    fn summary(&self) -> Vec<Part> {
        let mut parts = vec![Part::Text(self.how())];
        for volumes in [Volumes::Private, Volumes::Shared] {
            for is_read in [true, false] {
                let cells = self.cells.iter().filter(|c| c.volumes == volumes && c.is_read == is_read);
                let most = |figure: Figure| {
                    let of = |cell: &&Cell| figure(&cell.median.rates);
                    cells.clone().max_by(|a, b| of(a).total_cmp(&of(b))).map(|cell| {
                        let clients = count(cell.clients as usize, "client");
                        (grouped(of(&cell)), format!("{}, {clients}", size_text(cell.block_bytes)))
                    })
                };
                if let (Some((iops, of_iops)), Some((mb, of_mb))) = (most(|r| r.iops), most(|r| r.mb_per_s)) {
                    let kind = kind(volumes, is_read);
                    let text =
                        format!("{kind}: at most {iops} requests/s ({of_iops}) and {mb} MB/s ({of_mb}).");
                    parts.push(Part::Text(text));
                }
            }
        }
        parts
    }
}

fn kind(volumes: Volumes, is_read: bool) -> String {
    let verb = if is_read { "Reads" } else { "Writes" };
    let on = match volumes {
        Volumes::Private => "each client on its own volume",
        Volumes::Shared => "all clients on one volume",
    };
    format!("{verb}, {on}")
}

/// Reads or writes on volumes of one kind: a chart and a table of each figure; the tables alone
/// where all is of one number of clients, against which there is nothing to draw.
fn section(volumes: Volumes, is_read: bool, cells: &[&Cell]) -> Section {
    let is_line = cells.iter().any(|cell| cell.clients != cells[0].clients);
    let mut parts = Vec::new();
    let mut show = |title: &str, label: &str, unit: Unit, scale: Scale, figures: &[(&str, Figure)]| {
        let caption = match unit {
            Unit::Microseconds => format!("{title} in \u{b5}s"),
            _ => title.to_owned(),
        };
        if is_line {
            let x = Axis::new("clients", Unit::Count, Scale::Linear);
            let y = Axis::new(label, unit, scale);
            parts.push(Part::Chart(Chart::new(title, x, y, lines(cells, unit, figures))));
        }
        parts.extend([Part::Text(caption), Part::Table(table(cells, figures))]);
    };
    show("Requests per second", "rate", Unit::PerSecond, Scale::Linear, &[("", |r| r.iops)]);
    show(
        "Megabytes per second",
        "throughput",
        Unit::MegabytesPerSecond,
        Scale::Linear,
        &[("", |r| r.mb_per_s)],
    );
    show("Median latency", "latency", Unit::Microseconds, Scale::Log, &[("", |r| r.p50_us)]);
    let tail: [(&str, Figure); 2] = [("p99", |r| r.p99_us), ("p99.9", |r| r.p999_us)];
    for (name, figure) in tail {
        show(&format!("{name} latency"), "latency", Unit::Microseconds, Scale::Log, &[("", figure)]);
    }
    Section::new(&kind(volumes, is_read), parts)
}

/// The block sizes, in the order in which they were measured.
fn loads<'a>(cells: &[&'a Cell]) -> Vec<&'a Cell> {
    let mut loads: Vec<&Cell> = Vec::new();
    for cell in cells {
        if !loads.iter().any(|known| known.is_like(cell)) {
            loads.push(cell);
        }
    }
    loads
}

fn title(load: &Cell, figure: &str) -> String {
    format!("{} {figure}", size_text(load.block_bytes)).trim_end().to_owned()
}

fn lines(cells: &[&Cell], unit: Unit, figures: &[(&str, Figure)]) -> Vec<Series> {
    let mut lines = Vec::new();
    for load in loads(cells) {
        for (name, figure) in figures {
            let points = cells.iter().filter(|cell| cell.is_like(load));
            let points = points.map(|cell| (f64::from(cell.clients), figure(&cell.median.rates))).collect();
            lines.push(Series::new(&title(load, name), unit, points));
        }
    }
    lines
}

fn table(cells: &[&Cell], figures: &[(&str, Figure)]) -> Table {
    let loads = loads(cells);
    let mut clients: Vec<u32> = cells.iter().map(|cell| cell.clients).collect();
    clients.sort_unstable();
    clients.dedup();
    let mut head = vec!["clients".to_owned()];
    head.extend(loads.iter().flat_map(|load| figures.iter().map(|(name, _)| title(load, name))));
    let row = |clients: u32| {
        let mut row = vec![clients.to_string()];
        for load in &loads {
            let cell = cells.iter().find(|cell| cell.clients == clients && cell.is_like(load));
            let text =
                |figure: Figure| cell.map_or_else(|| "-".into(), |cell| grouped(figure(&cell.median.rates)));
            row.extend(figures.iter().map(|(_, figure)| text(*figure)));
        }
        row
    };
    Table { head, rows: clients.into_iter().map(row).collect(), ends_in_text: false }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::{figures, figures_of};
    use crate::findings::Findings;

    #[test]
    fn one_number_of_clients_is_a_table_without_charts() {
        let html = figures_of(&[1]).html();
        assert!(!html.contains("<svg"), "a chart of one point shows nothing");
        for part in ["Requests per second", "Median latency in µs", "p99.9 latency in µs", "1 client)"] {
            assert!(html.contains(part), "'{part}' is not there");
        }
        assert!(!html.contains("1 clients"), "one client is a client");
    }

    #[test]
    fn the_page_begins_with_what_was_reached() {
        let html = figures().html();
        let (summary, chart) = (html.find("at most"), html.find("<svg"));
        assert!(summary.is_some() && summary < chart);
        assert!(html.contains("MB/s (1 MiB, "), "{html}");
        assert!(html.contains("Median latency in µs") || html.contains("µs</th>"), "tables say their unit");
    }

    #[test]
    fn the_page_has_every_chart_and_figure() {
        let html = figures().html();
        assert_eq!(html.matches("<svg").count(), 2 * 5, "five charts for reads, and for writes");
        for part in
            ["Reads, each client on its own volume", "64 KiB", "rate (requests/s)", "Fast One", "clients"]
        {
            assert!(html.contains(part), "'{part}' is not there");
        }
    }
}
