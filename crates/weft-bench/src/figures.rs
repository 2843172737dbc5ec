//! `weft bench figures`: the committed benchmark from its first process to its last line.

use crate::BenchError;
use crate::bed::{Bed, BedOptions, NewVolume};
use crate::cores::own_cores;
use crate::drive_alone;
use crate::idle;
use crate::limit::{Limit, Shape};
use crate::load::{Amount, Load};
use crate::machine::Machine;
use crate::process::cpu_seconds;
use crate::progress::progress;
use crate::report::{self, Row, RunFacts, Sample, WriteCost, median};
use crate::transport::Transport;
use crate::workload::{WORKLOADS, Workload};
use std::path::PathBuf;
use std::time::Duration;
use weft_api::FailureDomain;
use weft_client::{AttachOptions, Fabric, Volume};
use weft_rpc::shm::set_shared_memory;
use weft_rt::affinity;
use weft_rt::{Spin, set_spin};

/// The name of the volume under test.
const VOLUME: &str = "bench";

/// Its size, 512 MiB: far more than any cache of the processor holds.
const VOLUME_BYTES: u64 = 512 << 20;

/// Each of its drives: room for the volume, the store's own structures, and the places that overwrites rotate
/// through.
const DRIVE_BYTES: u64 = 1 << 30;

/// How often the volume is written from end to end before anything is timed: the first time fills it, the next
/// two take overwrites through the rest of the drives, whose memory is slow to touch first.
const FILLS: u64 = 3;

/// What the reference exchange reaches on a machine that is fit for measuring, per second: 32 in flight, 64 B for
/// 4 KiB, coalesced, each side sleeping while it has nothing to do.
const REFERENCE_PER_S: f64 = 530_000.0;

/// The part of it that a run has to reach. A judgement, not a measurement: it leaves a quarter for machines that are
/// merely different, and a process that takes half of either core falls below it. Executors that spin exceed the
/// figure, which is one of sleeping sides, so with them the bar is lower than it looks.
const REFERENCE_TOLERANCE: f64 = 0.75;

/// Requests that the reference exchange keeps in flight.
const REFERENCE_DEPTH: u32 = 32;

/// Runs of the reference exchange at the beginning, and as many at the end.
const REFERENCE_RUNS: usize = 3;

/// How long a load or an exchange goes on before it is timed: thousands of requests, enough for buffers, caches and
/// the scheduler to settle.
const WARM_UP: Duration = Duration::from_millis(200);

/// How to run the benchmark.
#[derive(Clone, Debug)]
pub struct FiguresOptions {
    /// The weft binary whose daemons are measured.
    pub program: PathBuf,
    /// Where to write the JSON.
    pub json: Option<PathBuf>,
    /// How long each run takes.
    pub duration: Duration,
    /// Runs of each workload, at least 1.
    pub runs: usize,
    /// Whether client and target get a core each, where there are two.
    pub pin: bool,
    /// Only workloads whose name contains this.
    pub only: Option<String>,
}

impl FiguresOptions {
    /// As `make bench` runs it: five runs of two seconds, pinned.
    pub fn new(program: PathBuf) -> FiguresOptions {
        FiguresOptions {
            program,
            json: None,
            duration: Duration::from_secs(2),
            runs: 5,
            pin: true,
            only: None,
        }
    }

    fn check(&self) -> Result<(), BenchError> {
        let what = if self.runs == 0 {
            "0 runs measure nothing"
        } else if self.duration.is_zero() {
            "runs of 0 seconds measure nothing"
        } else if self.workloads().is_empty() {
            "no workload has such a name"
        } else {
            return Ok(());
        };
        Err(BenchError::Invalid { what: what.to_owned() })
    }

    fn workloads(&self) -> Vec<Workload> {
        let is_wanted = |w: &Workload| self.only.as_ref().is_none_or(|part| w.name.contains(part.as_str()));
        WORKLOADS.into_iter().filter(is_wanted).collect()
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Figures {
    /// What holds for the whole run.
    pub facts: RunFacts,
    /// A row per workload.
    pub rows: Vec<Row>,
}

impl Figures {
    /// Whether the machine was too slow or too busy for the figures to mean anything.
    pub fn is_void(&self) -> bool {
        self.facts.void
    }
}

/// Runs the benchmark: starts a fabric, measures, prints the table on standard output and progress on standard
/// error, writes the JSON. The caller makes [`Figures::is_void`] a failure, unless the user knows that the machine
/// is slow.
///
/// # Errors
/// If anything does not start, or a request fails.
///
/// # Panics
/// On a thread that runs an executor already.
pub fn figures(options: &FiguresOptions) -> Result<Figures, BenchError> {
    options.check()?;
    let options = options.clone();
    weft_rt::block_on(async move { measure(&options).await })?
}

async fn measure(options: &FiguresOptions) -> Result<Figures, BenchError> {
    let cores = Cores::choose(options.pin)?;
    let machine = Machine::describe(cores.all.len()).with_commit();
    let mut reference = reference(&cores, options.duration).await?;
    let mut rows = Vec::new();
    for spin in [Spin::Adaptive, Spin::Never] {
        let workloads: Vec<Workload> = options.workloads().into_iter().filter(|w| w.spin == spin).collect();
        if !workloads.is_empty() {
            set_spin(spin);
            rows.extend(rows_of(options, &cores, &workloads, spin).await?);
        }
    }
    set_spin(Spin::Adaptive);
    reference.extend(self::reference(&cores, options.duration).await?);
    let [drive_4k_per_s, drive_64k_per_s] = drive_reads(&cores, options.duration).await?;
    progress("idle fabric of four nodes");
    let idle_percent = idle::percent(&options.program).await?;
    let needed = REFERENCE_PER_S * REFERENCE_TOLERANCE;
    let reference_per_s = median(reference).round();
    let facts = RunFacts {
        machine,
        pinned: cores.target.is_some(),
        runs: options.runs,
        seconds: options.duration.as_secs_f64(),
        reference_per_s,
        reference_needed_per_s: needed,
        void: reference_per_s < needed,
        drive_4k_per_s,
        drive_64k_per_s,
        idle_percent,
    };
    print!("{}", report::text(&facts, &rows));
    if let Some(path) = &options.json {
        report::write_json(path, &facts, &rows)?;
    }
    Ok(Figures { facts, rows })
}

/// Measures the workloads that one fabric can measure: those whose processes wait in the same way.
async fn rows_of(
    options: &FiguresOptions,
    cores: &Cores,
    workloads: &[Workload],
    spin: Spin,
) -> Result<Vec<Row>, BenchError> {
    let mut bed = Bed::start(&BedOptions {
        program: options.program.clone(),
        nodes: 1,
        drives: 2,
        drive_bytes: DRIVE_BYTES,
        cpu: cores.target,
        spin,
        drives_in: None,
    })
    .await?;
    cores.pin_client()?;
    bed.create_volume(&NewVolume {
        name: VOLUME,
        size_bytes: VOLUME_BYTES,
        failure_domain: FailureDomain::Drive,
        width: Some(1),
        is_thin: false,
    })
    .await?;
    let mut rows = Vec::new();
    for transport in [Transport::Tcp, Transport::Shared] {
        // Connections are made with the first request.
        set_shared_memory(transport == Transport::Shared);
        let client = Client::attach(&bed).await?;
        if transport == Transport::Tcp {
            fill(&client.volume).await?;
        }
        for workload in workloads.iter().filter(|w| w.transport == transport) {
            rows.push(row(options, cores, workload, &mut bed, &client).await?);
        }
        client.volume.detach().await;
    }
    cores.unpin_client()?;
    Ok(rows)
}

/// The volume under test, attached by one of the transports.
struct Client {
    fabric: Fabric,
    volume: Volume,
}

impl Client {
    async fn attach(bed: &Bed) -> Result<Client, BenchError> {
        let fabric = Fabric::connect(&[bed.manager_addr().clone()], "weft bench").await?;
        let volume = fabric.attach(VOLUME, AttachOptions::default()).await?;
        Ok(Client { fabric, volume })
    }
}

/// Who runs where.
struct Cores {
    /// Every core that this process may use.
    all: Vec<usize>,
    /// The client's core; none: wherever the kernel likes.
    client: Option<usize>,
    /// The target's core.
    target: Option<usize>,
}

impl Cores {
    /// Gives the client the first core and the target the second, if that is wanted and there are two.
    fn choose(pin: bool) -> Result<Cores, BenchError> {
        let all = own_cores()?;
        let (client, target) = match all[..] {
            [client, target, ..] if pin => (Some(client), Some(target)),
            _ => (None, None),
        };
        Ok(Cores { all, client, target })
    }

    /// Gives this thread its core. Not before processes are started, which would inherit it.
    fn pin_client(&self) -> Result<(), BenchError> {
        self.client.map_or(Ok(()), |cpu| pin(&[cpu]))
    }

    /// Lets this thread run everywhere again.
    fn unpin_client(&self) -> Result<(), BenchError> {
        self.client.map_or(Ok(()), |_| pin(&self.all))
    }
}

fn pin(cpus: &[usize]) -> Result<(), BenchError> {
    affinity::pin_to(cpus).map_err(|source| BenchError::System { action: "pin to a core", source })
}

/// Writes everything, more than once.
async fn fill(volume: &Volume) -> Result<(), BenchError> {
    for pass in 1..=FILLS {
        progress(&format!("fill {pass} of {FILLS}"));
        Load::filling(0..volume.size_bytes(), pass).run(volume).await?;
    }
    Ok(())
}

async fn reference(cores: &Cores, duration: Duration) -> Result<Vec<f64>, BenchError> {
    progress("reference exchange");
    cores.pin_client()?;
    let mut rates = Vec::new();
    for _ in 0..REFERENCE_RUNS {
        let limit = Limit {
            shape: Shape::of_reference(),
            depth: REFERENCE_DEPTH,
            warm_up: WARM_UP,
            duration: duration / 2,
            server_cpu: cores.target,
            transport: Transport::Tcp,
            spin: Spin::Adaptive,
        };
        rates.push(limit.run().await?);
    }
    cores.unpin_client()?;
    Ok(rates)
}

/// What a drive allows that nobody stands before: reads of 4 and of 64 KiB.
async fn drive_reads(cores: &Cores, duration: Duration) -> Result<[f64; 2], BenchError> {
    progress("a drive alone");
    cores.pin_client()?;
    let rates = drive_alone::reads_per_s([4 << 10, 64 << 10], duration / 2).await?;
    cores.unpin_client()?;
    Ok(rates.map(f64::round))
}

/// Measures one workload and its limit in turns.
async fn row(
    options: &FiguresOptions,
    cores: &Cores,
    workload: &Workload,
    bed: &mut Bed,
    Client { fabric, volume }: &Client,
) -> Result<Row, BenchError> {
    let limit = Limit {
        shape: workload.shape(),
        depth: workload.depth,
        warm_up: WARM_UP,
        duration: options.duration,
        server_cpu: cores.target,
        transport: workload.transport,
        spin: workload.spin,
    };
    let log_before = if workload.is_read { 0 } else { bed.log_bytes().await? };
    let wire_before = fabric.bytes_sent();
    let (mut samples, mut requests) = (Vec::new(), 0);
    for run in 1..=options.runs {
        let limit_iops = limit.run().await?;
        requests += workload.load(Amount::Time(WARM_UP)).run(volume).await?.requests();
        bed.check()?;
        let (client, target) = (cpu_seconds(std::process::id())?, bed.target_cpu_seconds()?);
        let load = workload.load(Amount::Time(options.duration)).run(volume).await?;
        let client = cpu_seconds(std::process::id())? - client;
        let target = bed.target_cpu_seconds()? - target;
        requests += load.requests();
        progress(&format!("{} {run}: {:.0}/s, limit {limit_iops:.0}/s", workload.name, load.per_second()));
        samples.push(Sample::new(&load, client, target, limit_iops));
    }
    let cost = if workload.is_read {
        None
    } else {
        let log = bed.log_bytes().await?.saturating_sub(log_before);
        let wire = fabric.bytes_sent() - wire_before;
        let per = |bytes: u64| bytes as f64 / requests.max(1) as f64;
        Some(WriteCost { log_bytes: per(log), wire_bytes: per(wire) })
    };
    Ok(Row::new(workload, &samples, cost).with_seconds(options.duration.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_measure_nothing_are_refused() {
        let good = FiguresOptions::new(PathBuf::from("weft"));
        assert!(good.check().is_ok());
        for bad in [
            FiguresOptions { runs: 0, ..good.clone() },
            FiguresOptions { duration: Duration::ZERO, ..good.clone() },
            FiguresOptions { only: Some("no such".into()), ..good.clone() },
        ] {
            assert!(matches!(figures(&bad), Err(BenchError::Invalid { .. })));
        }
    }

    #[test]
    fn workloads_can_be_picked_by_name() {
        let mut options = FiguresOptions::new(PathBuf::from("weft"));
        assert_eq!(options.workloads().len(), WORKLOADS.len());
        options.only = Some("read-4k-".into());
        assert_eq!(options.workloads().len(), 5);
    }
}
