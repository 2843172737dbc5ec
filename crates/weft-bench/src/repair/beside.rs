//! A client beside repair: what it feels of a resync and of a rebuild, and how fast they are with and without it.

use super::RepairOptions;
use super::copies::Copies;
use super::phases::{PhaseFigures, Recorder, RoundTimeline};
use super::quiet::Voids;
use super::raw::{self, RawRates};
use super::stage::{Stage, StagePlan};
use crate::BenchError;
use crate::limit::{Limit, Shape};
use crate::load::{Amount, Load, Ran, Schedule, Watch};
use crate::progress::progress;
use crate::report::{median, rounded};
use crate::transport::Transport;
use serde::Serialize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weft_rt::{JoinHandle, Spin, now, sleep, spawn};

/// Nodes of the fabric, with one drive each: a loss leaves three to rebuild from and to.
pub(crate) const NODES: u32 = 4;

/// Requests that the client keeps in flight at most.
const DEPTH: u32 = 8;

/// How many of a hundred requests are reads.
const READ_PERCENT: u8 = 50;

/// How long a rebuild is held back at least once the lost copies are out. A client's requests stall while the lease of
/// the node runs out (2 s), and those that were due meanwhile are made up for afterwards; what is measured begins when
/// that is over.
const REBUILD_AFTER: Duration = Duration::from_secs(4);

/// How long a node stays away at least beyond the length of a phase, for the same reason.
const AWAY_BEYOND: Duration = Duration::from_secs(4);

/// How long the load goes on before its first phase, and after the last.
pub(crate) const MARGIN: Duration = Duration::from_secs(1);

/// The size of what a resync copies at once, and how many it has in flight.
const COPY_BYTES: usize = 512 << 10;
const COPY_DEPTH: u32 = 4;

/// A client beside repair.
#[derive(Clone, Debug, Serialize)]
pub struct BesideFigures {
    /// Nodes, with one drive each.
    pub nodes: u32,
    /// Bytes of the volume, of which there are two copies.
    pub volume_bytes: u64,
    /// How many of a hundred requests are reads.
    pub read_percent: u8,
    /// Requests in flight at most.
    pub depth: u32,
    /// What one drive can do by itself.
    pub raw: RawRates,
    /// What a bare exchange of frames of the size of a copy reaches, in megabytes per second.
    pub exchange_mb_per_s: f64,
    /// A resync of a replica that missed a write to everything, with nobody beside it, in megabytes per second.
    pub resync_alone_mb_per_s: f64,
    /// A rebuild with nobody beside it.
    pub rebuild_alone_mb_per_s: f64,
    /// The clients, which differ in how much of the volume they use.
    pub clients: Vec<ClientFigures>,
}

/// A client with its load; medians over the rounds.
#[derive(Clone, Debug, Serialize)]
pub struct ClientFigures {
    /// The bytes of the volume that it uses.
    pub working_set_bytes: u64,
    /// What a closed loop of the same depth reached alone, in requests per second.
    pub closed_loop_iops: f64,
    /// The rate that the load is held to; none: a closed loop.
    pub per_second: Option<f64>,
    /// The phases in order.
    pub phases: Vec<PhaseFigures>,
    /// The 99th percentile beside a resync over that alone: the median of the rounds.
    pub resync_p99_ratio: Option<f64>,
    /// The same beside a rebuild.
    pub rebuild_p99_ratio: Option<f64>,
    /// The usual 99th percentile beside a resync over that alone: the median of the rounds.
    pub resync_usual_p99_ratio: Option<f64>,
    /// The same beside a rebuild.
    pub rebuild_usual_p99_ratio: Option<f64>,
    /// How fast the resync was beside it, in megabytes per second.
    pub resync_mb_per_s: f64,
    /// How fast the rebuild was beside it.
    pub rebuild_mb_per_s: f64,
    /// Every round.
    pub rounds: Vec<Round>,
}

/// A round beside the client.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Its phases in order.
    pub phases: Vec<PhaseFigures>,
    /// The resync.
    pub resync: Copied,
    /// The rebuild.
    pub rebuild: Copied,
    /// Over its time.
    pub timeline: RoundTimeline,
}

/// What a repair copied.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Copied {
    /// Bytes.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Megabytes per second.
    pub mb_per_s: f64,
}

impl Copied {
    fn new(bytes: u64, took: Duration) -> Copied {
        let seconds = took.as_secs_f64().max(1e-9);
        Copied {
            bytes,
            seconds: rounded(seconds, 0.01),
            mb_per_s: rounded(bytes as f64 / 1e6 / seconds, 0.1),
        }
    }
}

pub(crate) async fn measure(options: &RepairOptions, voids: &Voids) -> Result<BesideFigures, BenchError> {
    let plan = StagePlan {
        nodes: NODES,
        drives: 1,
        drive_bytes: options.sizes.drive_bytes,
        volume_bytes: options.sizes.volume_bytes,
        width: None,
        is_thin: false,
    };
    progress("what a drive and a connection can do");
    let raw = raw::measure(options.drives_in.as_deref(), plan.drive_bytes).await?;
    let exchange = Limit {
        shape: Shape::of_read(COPY_BYTES),
        depth: COPY_DEPTH,
        warm_up: Duration::from_millis(200),
        duration: options.phase / 2,
        server_cpu: None,
        transport: Transport::Tcp,
        spin: Spin::Adaptive,
    };
    let exchange = exchange.run().await? * COPY_BYTES as f64 / 1e6;
    let mut alone = Vec::new();
    let mut clients: Vec<Client> = options.working_sets(plan.volume_bytes).map(Client::new).collect();
    for number in 1..=options.rounds {
        progress(&format!("repair with nobody beside it, {number} of {}", options.rounds));
        let part = voids.of(format!("repair with nobody beside it, round {number}"));
        alone.push(repair_alone(options, &plan, part).await?);
        for client in &mut clients {
            let mib = client.working_set >> 20;
            progress(&format!("repair beside a client on {mib} MiB, {number} of {}", options.rounds));
            let part = voids.of(format!("repair beside a client on {mib} MiB, round {number}"));
            client.round(options, &plan, part).await?;
        }
    }
    let of_alone = |figure: fn(&(Copied, Copied)) -> f64| median(alone.iter().map(figure).collect());
    Ok(BesideFigures {
        nodes: NODES,
        volume_bytes: plan.volume_bytes,
        read_percent: READ_PERCENT,
        depth: DEPTH,
        raw,
        exchange_mb_per_s: rounded(exchange, 1.0),
        resync_alone_mb_per_s: of_alone(|(resync, _)| resync.mb_per_s),
        rebuild_alone_mb_per_s: of_alone(|(_, rebuild)| rebuild.mb_per_s),
        clients: clients.into_iter().map(Client::end).collect(),
    })
}

/// How fast the client goes.
#[derive(Clone, Copy, Debug)]
struct Pace {
    closed_loop: f64,
    per_second: Option<f64>,
}

/// A client, and the rounds that it has gone through.
pub(crate) struct Client {
    working_set: u64,
    pace: Option<Pace>,
    rounds: Vec<Round>,
}

impl Client {
    pub(crate) fn new(working_set: u64) -> Client {
        Client { working_set, pace: None, rounds: vec![] }
    }

    fn load(&self, per_second_max: Option<f64>, amount: Amount) -> Load {
        Load {
            read_percent: READ_PERCENT,
            depth: DEPTH,
            amount,
            per_second_max,
            seed: 1 + self.rounds.len() as u64,
            range: Some(0..self.working_set),
            ..Load::default()
        }
    }

    /// How fast to go: in the first round it is found out.
    async fn pace(&mut self, options: &RepairOptions, stage: &Stage) -> Result<Pace, BenchError> {
        if let Some(pace) = self.pace {
            return Ok(pace);
        }
        self.load(None, Amount::Time(MARGIN)).run(&stage.volume).await?;
        let closed = self.load(None, Amount::Time(options.phase)).run(&stage.volume).await?.per_second();
        let share = f64::from(options.load_percent) / 100.0;
        let per_second = (options.load_percent < 100).then(|| (closed * share).round().max(1.0));
        let pace = Pace { closed_loop: rounded(closed, 1.0), per_second };
        self.pace = Some(pace);
        Ok(pace)
    }

    /// Lets a node go and come back, and another go for good, beside the load, which never rests.
    async fn round(
        &mut self,
        options: &RepairOptions,
        plan: &StagePlan,
        voids: Voids,
    ) -> Result<(), BenchError> {
        let mut stage = Stage::set(options, plan, voids.clone()).await?;
        stage.settle().await?;
        stage.quiet("what the client reaches alone", Copies::Whole, None).await?;
        // Found out before the round begins.
        self.pace(options, &stage).await?;
        let recorder = Recorder::new(&stage.bed);
        let running = self.begin(options, &stage, &recorder).await?;
        let conducted = conduct(options, &mut stage, &recorder, &running.schedule).await;
        running.end().await?;
        let (phases, resync, rebuild) = conducted?;
        voids.add_missed(&phases, self.per_second());
        self.rounds.push(Round { phases, resync, rebuild, timeline: recorder.timeline() });
        Ok(())
    }

    /// The rate that it is held to, once that is known.
    pub(crate) fn per_second(&self) -> Option<f64> {
        self.pace.and_then(|pace| pace.per_second)
    }

    /// Begins the load.
    pub(crate) async fn begin(
        &mut self,
        options: &RepairOptions,
        stage: &Stage,
        recorder: &Rc<Recorder>,
    ) -> Result<Running, BenchError> {
        let pace = self.pace(options, stage).await?;
        let (stop, schedule) = (Arc::new(AtomicBool::new(false)), Rc::new(Schedule::default()));
        let watch = Watch {
            on_request: Some(recorder.listener()),
            stop: Some(stop.clone()),
            schedule: Some(schedule.clone()),
            ..Watch::default()
        };
        let (volume, load) = (stage.volume.clone(), self.load(pace.per_second, Amount::Requests(u64::MAX)));
        let task = spawn(async move { load.run_watched(&volume, watch).await });
        Ok(Running { schedule, stop, task })
    }

    fn end(self) -> ClientFigures {
        let of = |figure: fn(&Round) -> f64| median(self.rounds.iter().map(figure).collect());
        let phases: Vec<&[PhaseFigures]> = self.rounds.iter().map(|round| &round.phases[..]).collect();
        let pace = self.pace.expect("there was a round");
        ClientFigures {
            working_set_bytes: self.working_set,
            closed_loop_iops: pace.closed_loop,
            per_second: pace.per_second,
            phases: medians(&phases),
            resync_p99_ratio: ratio(&phases, "resync", "alone", p99),
            rebuild_p99_ratio: ratio(&phases, "rebuild", "alone again", p99),
            resync_usual_p99_ratio: ratio(&phases, "resync", "alone", usual_p99),
            rebuild_usual_p99_ratio: ratio(&phases, "rebuild", "alone again", usual_p99),
            resync_mb_per_s: of(|r| r.resync.mb_per_s),
            rebuild_mb_per_s: of(|r| r.rebuild.mb_per_s),
            rounds: self.rounds,
        }
    }
}

/// A client's load that runs until it is ended.
pub(crate) struct Running {
    /// Whether it keeps its rate.
    pub(crate) schedule: Rc<Schedule>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<Result<Ran, BenchError>>,
}

impl Running {
    /// Ends it.
    ///
    /// # Errors
    /// With the request that failed, if one has.
    pub(crate) async fn end(self) -> Result<(), BenchError> {
        self.stop.store(true, Ordering::Relaxed);
        let ran = self.task.await.expect("nobody aborts it")?;
        ran.failure.map_or(Ok(()), |failure| Err(failure.into()))
    }
}

/// The events of a round, and what was measured between them.
async fn conduct(
    options: &RepairOptions,
    stage: &mut Stage,
    recorder: &Rc<Recorder>,
    client: &Schedule,
) -> Result<(Vec<PhaseFigures>, Copied, Copied), BenchError> {
    let mut phases = Vec::new();
    sleep(MARGIN).await;
    stage.quiet("alone", Copies::Whole, Some(client)).await?;
    recorder.begin_phase(&stage.bed);
    sleep(options.phase).await;
    phases.push(recorder.phase("alone"));
    stage.still_whole("at the end of alone").await?;

    let before = stage.copied().await?;
    recorder.event(format!("{} goes away", stage.bed.node_name(0)));
    stage.bed.freeze(0)?;
    stage.wait_for("the node that is away is out", |copies| copies != Copies::Whole).await?;
    recorder.event("its copies are out");
    sleep(AWAY_BEYOND).await;
    stage.quiet("away", Copies::Out, Some(client)).await?;
    recorder.begin_phase(&stage.bed);
    sleep(options.phase).await;
    phases.push(recorder.phase("away"));
    stage.quiet("resync", Copies::Out, Some(client)).await?;

    recorder.event("it comes back");
    recorder.begin_phase(&stage.bed);
    let began = now();
    stage.bed.thaw(0)?;
    stage.wait_for("the node is up to date", |copies| copies == Copies::Whole).await?;
    let took = began.elapsed();
    phases.push(recorder.phase("resync"));
    recorder.event("it is up to date");
    let resync = Copied::new(stage.copied().await?.since(&before), took);

    stage.quiet("alone again", Copies::Whole, Some(client)).await?;
    recorder.begin_phase(&stage.bed);
    sleep(options.phase).await;
    phases.push(recorder.phase("alone again"));
    stage.still_whole("at the end of alone again").await?;
    let before = stage.copied().await?;
    recorder.event(format!("{} is lost with its drive", stage.bed.node_name(1)));
    stage.bed.kill(1);
    stage.wait_for("the copies of the lost node are out", |copies| copies == Copies::Out).await?;
    sleep(REBUILD_AFTER).await;
    stage.quiet("lost", Copies::Out, Some(client)).await?;
    recorder.begin_phase(&stage.bed);
    sleep(options.phase).await;
    phases.push(recorder.phase("lost"));
    stage.quiet("rebuild", Copies::Out, Some(client)).await?;
    stage.bed.rebuild_after(Duration::from_secs(1)).await?;
    stage.wait_for("a rebuild begins", |copies| copies == Copies::Syncing).await?;
    recorder.event("its copies are rebuilt on the others");
    recorder.begin_phase(&stage.bed);
    let began = now();
    stage.wait_for("all copies are there again", |copies| copies == Copies::Whole).await?;
    let took = began.elapsed();
    phases.push(recorder.phase("rebuild"));
    recorder.event("all copies are there again");
    let rebuild = Copied::new(stage.copied().await?.since(&before), took);
    sleep(MARGIN).await;
    Ok((phases, resync, rebuild))
}

/// The same repairs with nobody beside them: how fast are a resync of everything, and a rebuild?
async fn repair_alone(
    options: &RepairOptions,
    plan: &StagePlan,
    voids: Voids,
) -> Result<(Copied, Copied), BenchError> {
    let mut stage = Stage::set(options, plan, voids).await?;
    stage.settle().await?;
    let before = stage.copied().await?;
    stage.bed.freeze(0)?;
    stage.fill().await?;
    stage.wait_for("the node that is away is out", |copies| copies == Copies::Out).await?;
    stage.quiet("resync", Copies::Out, None).await?;
    let began = now();
    stage.bed.thaw(0)?;
    stage.wait_for("the node is up to date", |copies| copies == Copies::Whole).await?;
    let took = began.elapsed();
    let resync = Copied::new(stage.copied().await?.since(&before), took);
    stage.quiet("rebuild", Copies::Whole, None).await?;
    stage.bed.rebuild_after(Duration::from_secs(1)).await?;
    let before = stage.copied().await?;
    stage.bed.kill(1);
    stage.wait_for("a rebuild begins", |copies| copies == Copies::Syncing).await?;
    let began = now();
    stage.wait_for("all copies are there again", |copies| copies == Copies::Whole).await?;
    let took = began.elapsed();
    let rebuild = Copied::new(stage.copied().await?.since(&before), took);
    Ok((resync, rebuild))
}

/// The latency that one request in a hundred exceeds.
pub(crate) fn p99(phase: &PhaseFigures) -> Option<f64> {
    phase.p99_us
}

/// The same in the middle one of the parts of the time.
pub(crate) fn usual_p99(phase: &PhaseFigures) -> Option<f64> {
    phase.usual_p99_us
}

/// How much higher a figure is than in the phase to compare with, in the middle round.
pub(crate) fn ratio(
    rounds: &[&[PhaseFigures]],
    phase: &str,
    with: &str,
    figure: fn(&PhaseFigures) -> Option<f64>,
) -> Option<f64> {
    let of = |round: &[PhaseFigures], name: &str| figure(round.iter().find(|p| p.phase == name)?);
    let ratios: Vec<f64> =
        rounds.iter().filter_map(|round| Some(of(round, phase)? / of(round, with)?)).collect();
    (!ratios.is_empty()).then(|| rounded(median(ratios), 0.01))
}

/// Each phase with the medians of its figures over the rounds.
pub(crate) fn medians(rounds: &[&[PhaseFigures]]) -> Vec<PhaseFigures> {
    let Some(first) = rounds.first() else { return vec![] };
    let of_phase = |i: usize| {
        let of =
            |figure: fn(&PhaseFigures) -> f64| median(rounds.iter().map(|round| figure(&round[i])).collect());
        let us = |figure: fn(&PhaseFigures) -> Option<f64>| {
            let known: Vec<f64> = rounds.iter().filter_map(|round| figure(&round[i])).collect();
            (!known.is_empty()).then(|| rounded(median(known), 0.1))
        };
        PhaseFigures {
            phase: first[i].phase,
            seconds: rounded(of(|p| p.seconds), 0.01),
            iops: rounded(of(|p| p.iops), 1.0),
            mean_us: us(|p| p.mean_us),
            p50_us: us(|p| p.p50_us),
            p99_us: us(|p| p.p99_us),
            usual_p99_us: us(|p| p.usual_p99_us),
            p999_us: us(|p| p.p999_us),
            max_us: us(|p| p.max_us),
            read_p99_us: us(|p| p.read_p99_us),
            write_p99_us: us(|p| p.write_p99_us),
            nodes_cores: rounded(of(|p| p.nodes_cores), 0.01),
            client_cores: rounded(of(|p| p.client_cores), 0.01),
        }
    };
    (0..first.len()).map(of_phase).collect()
}
