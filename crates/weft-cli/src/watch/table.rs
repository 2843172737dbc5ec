//! The tables of `weft watch`: rows in the order asked for, as text.

use super::rates::{InterfaceRow, Rates};
use crate::paint::{Paint, Tone};
use crate::row::{Percentiles, Row};
use crate::table::{Cell, Table};
use std::cmp::Ordering;

/// What the rows are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum By {
    /// Nodes, with processor time and network.
    Node,
    /// Drives.
    Drive,
    /// Volumes.
    #[default]
    Volume,
    /// Clients, one row for each session.
    Client,
}

/// What the rows are sorted by: names ascending, everything else descending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SortColumn {
    /// The name.
    #[default]
    Name,
    /// Reads a second.
    Reads,
    /// Writes a second, those of zeroes among them.
    Writes,
    /// Bytes read a second.
    ReadBytes,
    /// Bytes written a second.
    WriteBytes,
    /// Requests in flight.
    Queue,
    /// The 99th percentile of reads.
    ReadP99,
    /// The 99th percentile of writes.
    WriteP99,
    /// Processor time.
    Cpu,
    /// Requests that failed.
    Errors,
}

impl SortColumn {
    /// The column that comes next when a person goes through them.
    pub(super) fn next(self) -> SortColumn {
        use SortColumn::*;
        let order = [Name, Reads, Writes, ReadBytes, WriteBytes, Queue, ReadP99, WriteP99, Cpu, Errors];
        let at = order.iter().position(|column| *column == self).map_or(0, |at| at + 1);
        order[at % order.len()]
    }

    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let writes = |row: &Row| row.writes_per_s + row.zeroes_per_s;
        let down = match self {
            SortColumn::Name => Ordering::Equal,
            SortColumn::Reads => b.reads_per_s.total_cmp(&a.reads_per_s),
            SortColumn::Writes => writes(b).total_cmp(&writes(a)),
            SortColumn::ReadBytes => b.read_bytes_per_s.cmp(&a.read_bytes_per_s),
            SortColumn::WriteBytes => b.written_bytes_per_s.cmp(&a.written_bytes_per_s),
            SortColumn::Queue => b.queue.cmp(&a.queue),
            SortColumn::ReadP99 => b.read_latency_us.p99.cmp(&a.read_latency_us.p99),
            SortColumn::WriteP99 => b.write_latency_us.p99.cmp(&a.write_latency_us.p99),
            SortColumn::Cpu => b.cpu_percent.unwrap_or(0.0).total_cmp(&a.cpu_percent.unwrap_or(0.0)),
            SortColumn::Errors => b.errors.cmp(&a.errors),
        };
        down.then_with(|| a.of.cmp(&b.of)).then_with(|| by_name(&a.name, &b.name))
    }
}

/// The order of names for people: by letters, and by numbers where both have digits, so that
/// node-10 comes after node-2.
fn by_name(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let (number, other) = (leading_number(left), leading_number(right));
        if let (Some((digits, rest)), Some((others, rest_of_other))) = (number, other) {
            // Without leading zeroes, the longer number is the larger one.
            match digits.len().cmp(&others.len()).then_with(|| digits.cmp(others)) {
                Ordering::Equal => (left, right) = (rest, rest_of_other),
                order => return order,
            }
            continue;
        }
        let (mut letters, mut others) = (left.chars(), right.chars());
        match (letters.next(), others.next()) {
            (None, None) => return a.cmp(b),
            (one, other) if one != other => return one.cmp(&other),
            _ => (left, right) = (letters.as_str(), others.as_str()),
        }
    }
}

/// The digits with which a text begins, without leading zeroes, and what follows them; none if it
/// begins with another letter.
fn leading_number(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    (end > 0).then_some((digits.trim_start_matches('0'), rest))
}

/// The word that a value has on the command line.
pub(super) fn word(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
}

/// The table that is asked for, and that of the network below the nodes.
pub(super) fn render(rates: &Rates, by: By, sort: SortColumn, paint: Paint) -> String {
    let (title, of, rows) = match by {
        By::Node => ("NODE", None, &rates.nodes),
        By::Drive => ("DRIVE", Some("NODE"), &rates.drives),
        By::Volume => ("VOLUME", None, &rates.volumes),
        By::Client => ("CLIENT", Some("VOLUME"), &rates.clients),
    };
    let mut titles = vec![title];
    titles.extend(of);
    if by == By::Node {
        titles.push(">CPU%");
    }
    titles.extend([">R/s", ">W/s", ">R MiB/s", ">W MiB/s", ">QUEUE"]);
    titles.extend([">R p50", ">p99", ">p99.9", ">W p50", ">p99", ">p99.9", ">ERRORS"]);
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_by(|a, b| sort.compare(a, b));
    let mut table = Table::new(&titles);
    for row in sorted {
        table.row(cells(row, of.is_some(), by == By::Node));
    }
    let mut text = match table.is_empty() {
        true => format!("nothing has been asked by {} yet\n", word(&by)),
        false => table.render(paint),
    };
    let network = network(&rates.interfaces);
    if by == By::Node && !network.is_empty() {
        text.push_str(&format!("\n{}", network.render(paint)));
    }
    text
}

fn cells(row: &Row, has_of: bool, has_cpu: bool) -> Vec<Cell> {
    let mut cells = vec![Cell::from(row.name.as_str())];
    if has_of {
        cells.push(Cell::from(row.of.as_deref().unwrap_or("-")));
    }
    if has_cpu {
        cells.push(Cell::from(row.cpu_percent.map_or_else(|| "-".into(), |cpu| format!("{cpu:.0}"))));
    }
    cells.push(Cell::from(rate(row.reads_per_s)));
    cells.push(Cell::from(rate(row.writes_per_s + row.zeroes_per_s)));
    cells.push(Cell::from(mib(row.read_bytes_per_s)));
    cells.push(Cell::from(mib(row.written_bytes_per_s)));
    cells.push(Cell::from(&row.queue));
    for Percentiles { p50, p99, p999 } in [row.read_latency_us, row.write_latency_us] {
        cells.extend(
            [p50, p99, p999].map(|us| Cell::from(us.map_or_else(|| "-".into(), |us| us.to_string()))),
        );
    }
    let tone = if row.errors > 0 { Tone::Bad } else { Tone::Plain };
    cells.push(Cell::new(row.errors.to_string(), tone));
    cells
}

/// Interfaces that carried anything, by node.
fn network(interfaces: &[InterfaceRow]) -> Table {
    let mut busy: Vec<&InterfaceRow> =
        interfaces.iter().filter(|i| i.received_bytes_per_s + i.sent_bytes_per_s > 0).collect();
    busy.sort_by(|a, b| by_name(&a.node, &b.node).then_with(|| by_name(&a.name, &b.name)));
    let mut table = Table::new(&["NODE", "INTERFACE", ">IN MiB/s", ">OUT MiB/s"]);
    for interface in busy {
        table.row(vec![
            Cell::from(interface.node.as_str()),
            Cell::from(interface.name.as_str()),
            Cell::from(mib(interface.received_bytes_per_s)),
            Cell::from(mib(interface.sent_bytes_per_s)),
        ]);
    }
    table
}

/// A rate with a digit after the point where that says something.
fn rate(per_second: f64) -> String {
    if per_second > 0.0 && per_second < 10.0 {
        format!("{per_second:.1}")
    } else {
        format!("{per_second:.0}")
    }
}

fn mib(bytes_per_second: u64) -> String {
    rate(bytes_per_second as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_api::Timestamp;
    use weft_types::FabricId;

    fn rates() -> Rates {
        let row = |name: &str, reads: f64, p99: u64| Row {
            name: name.into(),
            reads_per_s: reads,
            read_bytes_per_s: (reads as u64) << 20,
            read_latency_us: Percentiles { p99: Some(p99), ..Percentiles::default() },
            ..Row::default()
        };
        Rates {
            fabric: FabricId(1),
            time: Timestamp::from_millis(0),
            interval_ms: 1_000,
            total: Row::default(),
            nodes: vec![Row { name: "node-1".into(), cpu_percent: Some(42.0), ..Row::default() }],
            drives: vec![],
            volumes: vec![row("b10", 5.0, 900), row("b2", 2_000.0, 80), row("a", 12.0, 100)],
            clients: vec![],
            interfaces: vec![InterfaceRow {
                node: "node-1".into(),
                name: "eth0".into(),
                received_bytes_per_s: 3 << 20,
                sent_bytes_per_s: 0,
            }],
            silent_nodes: vec![],
        }
    }

    #[test]
    fn rows_are_in_the_order_asked_for() {
        let names = |sort| {
            let text = render(&rates(), By::Volume, sort, Paint::off());
            let name = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
            text.lines().skip(1).map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(SortColumn::Name), ["a", "b2", "b10"]);
        assert_eq!(names(SortColumn::Reads), ["b2", "a", "b10"]);
        assert_eq!(names(SortColumn::ReadP99), ["b10", "a", "b2"]);
        assert_eq!(names(SortColumn::Errors), ["a", "b2", "b10"], "equal rows are sorted by name");
    }

    #[test]
    fn names_are_in_the_order_of_the_alphabet_and_of_their_numbers() {
        let mut rates = rates();
        let row = |name: &str| Row { name: name.into(), ..Row::default() };
        rates.volumes =
            ["t64m", "node-10", "db", "t1m", "data", "node-2", "node-2b", "7", "t064m"].map(row).into();
        let text = render(&rates, By::Volume, SortColumn::Name, Paint::off());
        let names: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
        let expected = ["7", "data", "db", "node-2", "node-2b", "node-10", "t1m", "t064m", "t64m"];
        assert_eq!(names, expected);
    }

    #[test]
    fn nodes_have_their_processor_time_and_network() {
        let text = render(&rates(), By::Node, SortColumn::Cpu, Paint::off());
        assert!(text.contains("node-1    42"), "{text}");
        assert!(text.contains("node-1  eth0            3.0          0"), "{text}");
        let none = render(&rates(), By::Client, SortColumn::Name, Paint::off());
        assert_eq!(none, "nothing has been asked by client yet\n");
    }

    #[test]
    fn all_columns_come_in_turn() {
        let all: &[SortColumn] = clap::ValueEnum::value_variants();
        let mut column = SortColumn::Name;
        for _ in all {
            column = column.next();
        }
        assert_eq!(column, SortColumn::Name);
    }
}
