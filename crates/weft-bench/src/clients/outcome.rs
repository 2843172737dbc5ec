//! What clients did, each and together, and the processors that it took: as figures, as a table, and as charts.

use super::ClientPlaces;
use super::order::{ClientResult, ClientSecond};
use crate::latency::Completed;
use crate::machine::Machine;
use crate::report::{grouped, median, rounded};
use crate::timeline::quantile_us;
use serde::{Deserialize, Serialize};
use weft_api::{FabricLoad, NodeLoad};
use weft_report::{Axis, Chart, Part, Scale, Series, Table, Unit};

/// How fast requests were, and how long they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Requests per second.
    pub iops: f64,
    /// Megabytes (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Mean latency in microseconds, as all that follow; 0 if nothing completed, or none were kept.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// What one request in a hundred exceeds.
    pub p99_us: f64,
    /// What one request in a thousand exceeds.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Rates {
    /// Of so many requests and bytes per second, which took so long.
    pub(crate) fn new(iops: f64, bytes_per_s: f64, completed: &Completed) -> Rates {
        let latency = &completed.latency_ns;
        let us = |quantile| quantile_us(latency, quantile).unwrap_or(0.0);
        Rates {
            iops: rounded(iops, 0.1),
            mb_per_s: rounded(bytes_per_s / 1e6, 0.1),
            mean_us: if latency.is_empty() { 0.0 } else { rounded(latency.mean() / 1000.0, 0.1) },
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: us(1.0),
        }
    }

    /// The columns of [`Rates::cells`].
    pub(crate) const HEAD: [&str; 7] = ["iops", "MB/s", "mean us", "p50 us", "p99 us", "p99.9 us", "max us"];

    /// As cells of a table.
    pub(crate) fn cells(&self) -> [String; 7] {
        let latencies = [self.mean_us, self.p50_us, self.p99_us, self.p999_us, self.max_us];
        let [mean, p50, p99, p999, max] = latencies.map(grouped);
        [grouped(self.iops), grouped(self.mb_per_s), mean, p50, p99, p999, max]
    }

    /// The median of each figure.
    fn median(all: &[Rates]) -> Rates {
        let of = |figure: fn(&Rates) -> f64| median(all.iter().map(figure).collect());
        Rates {
            iops: of(|r| r.iops),
            mb_per_s: of(|r| r.mb_per_s),
            mean_us: of(|r| r.mean_us),
            p50_us: of(|r| r.p50_us),
            p99_us: of(|r| r.p99_us),
            p999_us: of(|r| r.p999_us),
            max_us: of(|r| r.max_us),
        }
    }
}

/// What clients did together in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientsRun {
    /// Sums over the clients, and latencies of all requests taken together.
    #[serde(flatten)]
    pub rates: Rates,
    /// Processors that the clients kept busy.
    pub client_cores: f64,
    /// Processors that the targets kept busy.
    pub target_cores: f64,
    /// Requests per second and processor that was busy.
    pub iops_per_core: f64,
    /// Requests per second of the slowest client over that of the fastest.
    pub fairness: f64,
}

impl ClientsRun {
    /// Adds up what they say.
    pub(crate) fn new(clients: &[ClientResult], target_cores: f64) -> ClientsRun {
        let mut all = Completed::new();
        let (mut iops, mut bytes_per_s, mut client_cores) = (0.0, 0.0, 0.0);
        let (mut slowest, mut fastest) = (f64::INFINITY, 0.0f64);
        for client in clients.iter().filter(|client| client.elapsed_s > 0.0) {
            let rate = (client.reads.requests + client.writes.requests) as f64 / client.elapsed_s;
            iops += rate;
            bytes_per_s += (client.reads.bytes + client.writes.bytes) as f64 / client.elapsed_s;
            client_cores += client.cpu_s / client.elapsed_s;
            (slowest, fastest) = (slowest.min(rate), fastest.max(rate));
            all.add_counted(&client.latencies_ns);
        }
        let cores = client_cores + target_cores;
        ClientsRun {
            rates: Rates::new(iops, bytes_per_s, &all),
            client_cores: rounded(client_cores, 0.01),
            target_cores: rounded(target_cores, 0.01),
            iops_per_core: rounded(if cores > 0.0 { iops / cores } else { 0.0 }, 0.1),
            fairness: rounded(if fastest > 0.0 { slowest / fastest } else { 0.0 }, 0.01),
        }
    }

    /// The median of each figure.
    pub(crate) fn median(runs: &[ClientsRun]) -> ClientsRun {
        let of = |figure: fn(&ClientsRun) -> f64| median(runs.iter().map(figure).collect());
        let rates: Vec<Rates> = runs.iter().map(|run| run.rates).collect();
        ClientsRun {
            rates: Rates::median(&rates),
            client_cores: of(|r| r.client_cores),
            target_cores: of(|r| r.target_cores),
            iops_per_core: of(|r| r.iops_per_core),
            fairness: of(|r| r.fairness),
        }
    }
}

/// A client, and what it did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClientRow {
    /// Its number, from 1 on.
    pub client: u32,
    /// The command that brought it to its machine; empty: it ran where the benchmark was started.
    pub on: String,
    /// Its machine.
    pub machine: Machine,
    /// The version of its program.
    pub weft_version: String,
    /// Its volume.
    pub volume: String,
    /// Reads per second.
    pub reads_per_s: f64,
    /// Writes per second, and trims.
    pub writes_per_s: f64,
    /// All of its requests.
    #[serde(flatten)]
    pub rates: Rates,
    /// Processors that it kept busy.
    pub client_cores: f64,
    /// Second by second; none if it does not tell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seconds: Vec<ClientSecond>,
}

/// Clients, and what they did together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Together {
    /// Each client.
    pub clients: Vec<ClientRow>,
    /// All together.
    pub total: ClientsRun,
}

impl Together {
    /// Of clients that each had a volume of their own, of these.
    pub(crate) fn new(
        places: &ClientPlaces,
        volumes: &[String],
        results: Vec<ClientResult>,
        target_cores: f64,
    ) -> Together {
        let total = ClientsRun::new(&results, target_cores);
        let row = |(n, (result, volume)): (usize, (ClientResult, &String))| {
            let run = ClientsRun::new(std::slice::from_ref(&result), 0.0);
            let rate = |requests: u64| rounded(requests as f64 / result.elapsed_s.max(1e-9), 0.1);
            ClientRow {
                client: n as u32 + 1,
                on: places.of(n as u32).join(" "),
                volume: volume.clone(),
                reads_per_s: rate(result.reads.requests),
                writes_per_s: rate(result.writes.requests),
                rates: run.rates,
                client_cores: run.client_cores,
                machine: result.machine,
                weft_version: result.weft_version,
                seconds: result.seconds,
            }
        };
        Together { clients: results.into_iter().zip(volumes).enumerate().map(row).collect(), total }
    }

    /// A row for each client, one for all, and the titles before them.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let cores = |cores: f64| format!("{cores:.2}");
        let line = |first: [String; 2], rates: &Rates, by: [f64; 2], last: [String; 3]| {
            let mut cells = first.to_vec();
            cells.extend(rates.cells());
            cells.extend(by.map(grouped));
            cells.extend(last);
            cells
        };
        let title = str::to_owned;
        let mut head = vec![title("client"), title("on")];
        head.extend(Rates::HEAD.map(title));
        head.extend(["reads/s", "writes/s", "cores", "targets'", "iops/core"].map(title));
        let mut rows = vec![head];
        for client in &self.clients {
            let on = if client.on.is_empty() { "here" } else { &client.on };
            // Targets work for all clients at once.
            let last = [cores(client.client_cores), title("-"), title("-")];
            let by = [client.reads_per_s, client.writes_per_s];
            rows.push(line([client.client.to_string(), title(on)], &client.rates, by, last));
        }
        let sum = |of: fn(&ClientRow) -> f64| self.clients.iter().map(of).sum::<f64>();
        let ClientsRun { client_cores, target_cores, iops_per_core, .. } = self.total;
        let last = [cores(client_cores), cores(target_cores), grouped(iops_per_core)];
        let by = [sum(|c| c.reads_per_s), sum(|c| c.writes_per_s)];
        rows.push(line([title("all"), String::new()], &self.total.rates, by, last));
        rows
    }

    /// Below the table: whether all had the same.
    pub(crate) fn fairness(&self) -> Option<String> {
        let line = || format!("the slowest client did {:.2} of the fastest", self.total.fairness);
        (self.clients.len() > 1).then(line)
    }

    /// The table, and a line for each client over the seconds where they tell of these.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let mut rows = self.rows();
        let mut parts = vec![Part::Table(Table { head: rows.remove(0), rows, ends_in_text: false })];
        parts.extend(self.fairness().map(Part::Text));
        if self.clients.iter().any(|client| !client.seconds.is_empty()) {
            let rate = Axis::new("rate", Unit::PerSecond, Scale::Linear);
            let latency = Axis::new("latency", Unit::Microseconds, Scale::Log);
            let rates = self.lines(Unit::PerSecond, |second| Some(second.iops));
            let p99s = self.lines(Unit::Microseconds, |second| second.p99_us);
            parts.push(Part::Chart(Chart::over_time("Requests per second", rate, rates)));
            parts.push(Part::Chart(Chart::over_time("p99 latency of each second", latency, p99s)));
        }
        parts
    }

    fn lines(&self, unit: Unit, figure: impl Fn(&ClientSecond) -> Option<f64>) -> Vec<Series> {
        let line = |client: &ClientRow| {
            let points = client.seconds.iter().filter_map(|second| Some((second.from_s, figure(second)?)));
            Series::new(&format!("client {}", client.client), unit, points.collect())
        };
        self.clients.iter().map(line).collect()
    }
}

/// What the targets did between two looks at their counters: microseconds of CPU time, and of time, of each.
fn worked(before: &FabricLoad, after: &FabricLoad) -> Vec<(u64, u64)> {
    let of = |node: &NodeLoad| {
        let then = before.nodes.iter().find(|n| n.id == node.id && n.incarnation == node.incarnation)?;
        let (from, to) = (then.process.as_ref()?, node.process.as_ref()?);
        Some((to.cpu_us.saturating_sub(from.cpu_us), node.at_us.saturating_sub(then.at_us)))
    };
    after.nodes.iter().filter_map(of).collect()
}

/// CPU seconds of all targets between two looks at their counters.
pub(crate) fn cpu_s(before: &FabricLoad, after: &FabricLoad) -> f64 {
    worked(before, after).into_iter().map(|(cpu_us, _)| cpu_us as f64 / 1e6).sum()
}

/// CPU seconds per second of all targets between two looks at their counters.
pub(crate) fn cores(before: &FabricLoad, after: &FabricLoad) -> f64 {
    let worked = worked(before, after).into_iter().filter(|(_, passed_us)| *passed_us > 0);
    worked.map(|(cpu_us, passed_us)| cpu_us as f64 / passed_us as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::super::order::tests::result as client;
    use super::*;

    #[test]
    fn clients_are_added_up_and_their_latencies_taken_together() {
        let run = ClientsRun::new(&[client(9_000, 1.0, 100), client(1_000, 2.0, 5_000)], 1.0);
        let rates = run.rates;
        assert_eq!((rates.iops, rates.mb_per_s), (9_500.0, 38.9));
        assert!(
            (99.0..=101.0).contains(&rates.p50_us) && (4_990.0..=5_010.0).contains(&rates.p99_us),
            "{run:?}"
        );
        assert_eq!((run.client_cores, run.target_cores, run.iops_per_core), (1.0, 1.0, 4_750.0));
        assert_eq!(run.fairness, 0.06);
        assert_eq!(ClientsRun::new(&[], 0.0), ClientsRun::default());
    }

    #[test]
    fn every_client_is_a_row_and_a_line() {
        let on = vec![vec!["ssh".into(), "a".into()], vec!["ssh".into(), "b".into()]];
        let places = ClientPlaces { program: "weft".into(), managers: vec![], on };
        let results = vec![client(1000, 1.0, 100), client(500, 1.0, 100), client(1000, 1.0, 300)];
        let volumes = ["a", "b", "c"].map(str::to_owned);
        let together = Together::new(&places, &volumes, results, 0.5);
        assert_eq!((together.total.rates.iops, together.total.fairness), (2500.0, 0.5));
        let rows = together.rows();
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{rows:?}");
        let firsts: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(firsts, ["client", "1", "2", "3", "all"]);
        assert_eq!((rows[2][1].as_str(), rows[3][1].as_str()), ("ssh b", "ssh a"));
        let lines = together.lines(Unit::PerSecond, |second| Some(second.iops));
        assert_eq!(lines.len(), 3);
        assert_eq!(together.parts().len(), 1 + 1 + 2, "a table, a line, and two charts");
    }
}
