//! What fio measured, on one machine or on several: for programs, for people who read, and as a page with charts.

use super::JobFile;
use crate::clients::{ClientPlaces, ClientResult, ClientSide, MeasuredOn, Rates, Together};
use crate::findings::Findings;
use crate::latency::Completed;
use crate::machine::Machine;
use crate::outcome::size_text;
use crate::report::{aligned, grouped, rounded};
use crate::timeline::quantile_us;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use weft_report::{Axis, Chart, Part, Scale, Section, Series, Table, Unit, page};

/// The percentiles of the chart.
const PERCENTILES: [f64; 9] = [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 98.0, 99.0, 99.9];

/// What requests did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// They read.
    #[default]
    Read,
    /// They wrote.
    Write,
    /// They discarded.
    Trim,
}

impl Direction {
    fn word(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
            Direction::Trim => "trim",
        }
    }
}

/// A job of the file in one direction, over all its processes and all clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FioJob {
    /// The job's name.
    pub job: String,
    /// What its requests did.
    pub direction: Direction,
    /// How many completed.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// While the job ran. Latencies are from submission to completion, or from the beginning on if the job asks for
    /// these.
    #[serde(flatten)]
    pub rates: Rates,
    /// Nanoseconds, and how many requests took so long, in the steps of fio's own histogram.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies_ns: Vec<(u64, u64)>,
}

impl FioJob {
    /// Those of the same job and direction taken together, in the order in which they come first.
    pub(super) fn together(jobs: Vec<FioJob>) -> Vec<FioJob> {
        let mut all: Vec<FioJob> = Vec::new();
        for job in jobs {
            let known =
                all.iter_mut().find(|known| (&known.job, known.direction) == (&job.job, job.direction));
            let Some(known) = known else {
                all.push(job);
                continue;
            };
            known.requests += job.requests;
            known.bytes += job.bytes;
            known.rates.iops += job.rates.iops;
            known.rates.mb_per_s += job.rates.mb_per_s;
            known.latencies_ns.extend(job.latencies_ns);
        }
        all.into_iter().map(FioJob::summed_up).collect()
    }

    /// With what follows from its latencies.
    fn summed_up(mut self) -> FioJob {
        self.latencies_ns.sort_unstable();
        self.latencies_ns.dedup_by(|next, known| {
            let is_same = next.0 == known.0;
            known.1 += if is_same { next.1 } else { 0 };
            is_same
        });
        FioJob { rates: Rates::new(self.rates.iops, self.rates.mb_per_s * 1e6, &self.completed()), ..self }
    }

    fn completed(&self) -> Completed {
        let mut completed = Completed::new();
        completed.add_counted(&self.latencies_ns);
        completed
    }

    /// What is done.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.job, self.direction.word())
    }

    /// Latencies against percentiles.
    fn line(&self) -> Series {
        let completed = self.completed();
        let point = |percent: &f64| Some((*percent, quantile_us(&completed.latency_ns, percent / 100.0)?));
        Series::new(&self.name(), Unit::Microseconds, PERCENTILES.iter().filter_map(point).collect())
    }
}

/// What one client did: a part of what `weft bench fio --volume --latencies --json` prints.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct FioRun {
    pub(super) machine: Machine,
    pub(super) weft_version: String,
    pub(super) fio_version: String,
    pub(super) elapsed_s: f64,
    pub(super) cpu_s: f64,
    pub(super) jobs: Vec<FioJob>,
}

impl FioRun {
    /// As what any client did.
    fn client(&self) -> ClientResult {
        let side = |is_read: bool| {
            let jobs = self.jobs.iter().filter(|job| (job.direction == Direction::Read) == is_read);
            jobs.fold(ClientSide::default(), |sum, job| ClientSide {
                requests: sum.requests + job.requests,
                bytes: sum.bytes + job.bytes,
            })
        };
        ClientResult {
            machine: self.machine.clone(),
            weft_version: self.weft_version.clone(),
            interrupted: false,
            elapsed_s: self.elapsed_s,
            cpu_s: self.cpu_s,
            reads: side(true),
            writes: side(false),
            seconds: vec![],
            latencies_ns: self.jobs.iter().flat_map(|job| job.latencies_ns.clone()).collect(),
        }
    }
}

/// What all clients did.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "benchmark", rename = "fio")]
pub struct FioFigures {
    /// What it was measured on.
    #[serde(flatten)]
    pub on: MeasuredOn,
    /// The version of the fio that ran; several if they differ.
    pub fio_version: String,
    /// What it ran, as it was given.
    pub job_file: String,
    /// Bytes of each volume.
    pub volume_bytes: u64,
    /// How long the slowest client made requests, in seconds.
    pub elapsed_s: f64,
    /// CPU seconds of all clients: of fio, and of what served the volumes to it.
    pub cpu_s: f64,
    /// Each job and direction, over all clients.
    pub jobs: Vec<FioJob>,
    /// Each client, and all together.
    #[serde(flatten)]
    pub together: Together,
}

impl FioFigures {
    /// Of clients that began together, each on its volume of so many bytes; the targets used so many CPU seconds.
    pub(super) fn new(
        on: MeasuredOn,
        places: &ClientPlaces,
        job_file: &JobFile,
        (volumes, volume_bytes): (&[String], u64),
        runs: Vec<FioRun>,
        target_cpu_s: f64,
    ) -> FioFigures {
        let elapsed_s = runs.iter().map(|run| run.elapsed_s).fold(0.0, f64::max);
        let versions: BTreeSet<&str> = runs.iter().map(|run| run.fio_version.as_str()).collect();
        let target_cores = if elapsed_s > 0.0 { target_cpu_s / elapsed_s } else { 0.0 };
        let clients = runs.iter().map(FioRun::client).collect();
        FioFigures {
            on,
            fio_version: Vec::from_iter(versions).join(", "),
            job_file: job_file.text().to_owned(),
            volume_bytes,
            elapsed_s,
            cpu_s: rounded(runs.iter().map(|run| run.cpu_s).sum(), 0.01),
            together: Together::new(places, volumes, clients, target_cores),
            jobs: FioJob::together(runs.into_iter().flat_map(|run| run.jobs).collect()),
        }
    }

    /// Without all latencies, which only other programs of this kind want.
    pub fn without_latencies(mut self) -> FioFigures {
        self.jobs.iter_mut().for_each(|job| job.latencies_ns.clear());
        self
    }

    fn what(&self) -> String {
        let size = size_text(self.volume_bytes);
        let whose = match &self.together.clients[..] {
            [one] => format!("volume {} of {size}", one.volume),
            many => format!("{} clients, each on a volume of {size}", many.len()),
        };
        format!("{} over NBD for {} s, {whose}", self.fio_version, self.elapsed_s)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut head = vec!["job", "", "requests"];
        head.extend(Rates::HEAD);
        let row = |job: &FioJob| {
            let first = [job.job.clone(), job.direction.word().to_owned(), grouped(job.requests as f64)];
            first.into_iter().chain(job.rates.cells()).collect()
        };
        let head = head.into_iter().map(str::to_owned).collect();
        std::iter::once(head).chain(self.jobs.iter().map(row)).collect()
    }
}

impl Findings for FioFigures {
    fn text(&self) -> String {
        let (jobs, clients) = (aligned(&self.rows()), aligned(&self.together.rows()));
        let fairness = self.together.fairness().map(|line| line + "\n").unwrap_or_default();
        format!("{}{}\n\n{jobs}\n{clients}{fairness}", self.on.text(), self.what())
    }

    fn html(&self) -> String {
        let mut rows = self.rows();
        let table = Table { head: rows.remove(0), rows, ends_in_text: false };
        let x = Axis::new("percentile", Unit::Percent, Scale::Linear);
        let y = Axis::new("latency", Unit::Microseconds, Scale::Log);
        let chart = Chart::new("Latency by percentile", x, y, self.jobs.iter().map(FioJob::line).collect());
        let jobs = vec![Part::Text(self.what()), Part::Table(table), Part::Chart(chart)];
        let sections =
            [Section::new("Jobs", jobs), Section::new("Clients", self.together.parts()), self.on.section()];
        page("fio", &sections)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::clients::measured_on::tests::measured_on;
    use crate::machine::tests::machine;

    fn job(job: &str, direction: Direction, iops: f64, latencies_ns: Vec<(u64, u64)>) -> FioJob {
        let rates = Rates { iops, ..Rates::default() };
        FioJob { job: job.into(), direction, requests: 10, bytes: 40960, rates, latencies_ns }
    }

    fn run(cpu_s: f64, jobs: Vec<FioJob>) -> FioRun {
        FioRun {
            machine: machine(None),
            weft_version: "1.2.3".into(),
            fio_version: "fio-3.33".into(),
            elapsed_s: 2.0,
            cpu_s,
            jobs,
        }
    }

    /// Two clients of which one also wrote.
    pub(crate) fn figures() -> FioFigures {
        let one = run(1.0, vec![job("a", Direction::Read, 5.0, vec![(1000, 10)])]);
        let two = run(
            2.0,
            vec![
                job("a", Direction::Write, 5.0, vec![]),
                job("a", Direction::Read, 5.0, vec![(1000, 5), (3000, 5)]),
            ],
        );
        let places = ClientPlaces { program: "weft".into(), managers: vec![], on: vec![] };
        let file = JobFile::parse("[a]\nrw=randrw\n").expect("it has a job");
        let volumes = ["x", "y"].map(str::to_owned);
        FioFigures::new(measured_on(&[]), &places, &file, (&volumes, 1 << 30), vec![one, two], 1.0)
    }

    #[test]
    fn clients_are_taken_together_by_job_and_direction() {
        let figures = figures();
        let reads = &figures.jobs[0];
        assert_eq!((reads.rates.iops, reads.requests, figures.jobs.len()), (10.0, 20, 2));
        assert_eq!(reads.latencies_ns, [(1000, 15), (3000, 5)]);
        assert_eq!(figures.jobs[1].rates.p99_us, 0.0, "fio kept no latencies");
        let total = &figures.together.total;
        assert_eq!((total.rates.iops, total.client_cores, total.target_cores), (15.0, 1.5, 0.5));
        assert_eq!((total.iops_per_core, total.fairness), (7.5, 0.5));
    }

    #[test]
    fn jobs_clients_and_machine_are_told() {
        let figures = figures();
        let text = figures.text();
        for part in
            ["fio-3.33 over NBD for 2 s, 2 clients, each on a volume of 1 GiB", "iops/core", "Fast One"]
        {
            assert!(text.contains(part), "'{part}' is not in {text}");
        }
        let html = figures.html();
        assert_eq!(html.matches("<svg").count(), 1);
        assert!(html.contains("a write") && html.contains("8 drives"), "{html}");
        assert!(!figures.clone().without_latencies().json().contains("latencies_ns"));
        let run: FioRun = serde_json::from_str(&figures.json()).expect("clients say the same");
        assert_eq!((run.jobs, run.elapsed_s, run.cpu_s), (figures.jobs, 2.0, 3.0));
    }
}
