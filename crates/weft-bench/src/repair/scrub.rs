//! Scrubs: how fast everything is read and verified, alone and beside a client, and what the client feels of it.

use super::beside::Client;
use super::copies::Copies;
use super::phases::{PhaseFigures, Recorder};
use super::quiet::Voids;
use super::stage::{Stage, StagePlan};
use super::{RepairOptions, beside};
use crate::BenchError;
use crate::load::Schedule;
use crate::progress::progress;
use crate::report::{median, rounded};
use serde::Serialize;
use std::time::Duration;
use weft_rt::{now, sleep};

/// How often to look whether a scrub is done.
const LOOK: Duration = Duration::from_millis(20);

/// How long a scrub may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(180);

/// Scrubs with a client and without.
#[derive(Clone, Debug, Serialize)]
pub struct ScrubFigures {
    /// Bytes of the volume, of which there are two copies.
    pub volume_bytes: u64,
    /// The rate that the client is held to; none: a closed loop.
    pub per_second: Option<f64>,
    /// Bytes read and verified per second with nobody beside it, all copies counted, in megabytes; a median.
    pub alone_mb_per_s: f64,
    /// The same beside a client.
    pub beside_mb_per_s: f64,
    /// The client alone and beside the scrub; medians.
    pub phases: Vec<PhaseFigures>,
    /// The 99th percentile beside the scrub over that alone: the median of the rounds.
    pub p99_ratio: Option<f64>,
    /// The usual 99th percentile beside a scrub over that alone: the median of the rounds.
    pub usual_p99_ratio: Option<f64>,
    /// Every round.
    pub rounds: Vec<ScrubRun>,
}

/// A round: a scrub alone, then one beside a client.
#[derive(Clone, Debug, Serialize)]
pub struct ScrubRun {
    /// Megabytes per second of the scrub that ran alone.
    pub alone_mb_per_s: f64,
    /// Megabytes per second of the scrub beside a client.
    pub beside_mb_per_s: f64,
    /// The client alone and beside the scrub.
    pub phases: Vec<PhaseFigures>,
}

pub(crate) async fn measure(options: &RepairOptions, voids: &Voids) -> Result<ScrubFigures, BenchError> {
    let plan = StagePlan {
        nodes: beside::NODES,
        drives: 1,
        drive_bytes: options.sizes.drive_bytes,
        volume_bytes: options.sizes.volume_bytes,
        width: None,
        is_thin: false,
    };
    let mut stage = Stage::set(options, &plan, voids.of("scrubs")).await?;
    stage.settle().await?;
    let mut client = Client::new(plan.volume_bytes);
    let mut rounds = Vec::new();
    for number in 1..=options.rounds {
        progress(&format!("scrub, {number} of {}", options.rounds));
        stage.quiet("the scrub that runs alone", Copies::Whole, None).await?;
        let alone = scrub(&mut stage).await?;
        let recorder = Recorder::new(&stage.bed);
        let running = client.begin(options, &stage, &recorder).await?;
        let conducted = conduct(options, &mut stage, &recorder, &running.schedule).await;
        running.end().await?;
        let (phases, beside) = conducted?;
        voids.of(format!("scrubs, round {number}")).add_missed(&phases, client.per_second());
        rounds.push(ScrubRun { alone_mb_per_s: alone, beside_mb_per_s: beside, phases });
    }
    let of = |figure: fn(&ScrubRun) -> f64| rounded(median(rounds.iter().map(figure).collect()), 0.1);
    let phases: Vec<&[PhaseFigures]> = rounds.iter().map(|round| &round.phases[..]).collect();
    Ok(ScrubFigures {
        volume_bytes: plan.volume_bytes,
        per_second: client.per_second(),
        alone_mb_per_s: of(|r| r.alone_mb_per_s),
        beside_mb_per_s: of(|r| r.beside_mb_per_s),
        phases: beside::medians(&phases),
        p99_ratio: beside::ratio(&phases, "scrub", "alone", beside::p99),
        usual_p99_ratio: beside::ratio(&phases, "scrub", "alone", beside::usual_p99),
        rounds,
    })
}

async fn conduct(
    options: &RepairOptions,
    stage: &mut Stage,
    recorder: &Recorder,
    client: &Schedule,
) -> Result<(Vec<PhaseFigures>, f64), BenchError> {
    sleep(beside::MARGIN).await;
    stage.quiet("the client alone", Copies::Whole, Some(client)).await?;
    recorder.begin_phase(&stage.bed);
    sleep(options.phase).await;
    let alone = recorder.phase("alone");
    stage.quiet("the scrub beside the client", Copies::Whole, Some(client)).await?;
    recorder.begin_phase(&stage.bed);
    let rate = scrub(stage).await?;
    Ok((vec![alone, recorder.phase("scrub")], rate))
}

/// Scrubs everything once: megabytes per second, all copies counted.
async fn scrub(stage: &mut Stage) -> Result<f64, BenchError> {
    let before = stage.bed.scrub().await?.last.map(|run| run.started);
    let began = now();
    stage.bed.start_scrub().await?;
    loop {
        stage.bed.check()?;
        let info = stage.bed.scrub().await?;
        let ended = info.last.filter(|run| info.running.is_none() && Some(run.started) != before);
        if let Some(run) = ended {
            return Ok(rounded(run.bytes_read as f64 / 1e6 / began.elapsed().as_secs_f64(), 0.1));
        }
        if began.elapsed() > PATIENCE {
            let missing = "the end of a scrub".to_owned();
            return Err(BenchError::NotReady { seconds: PATIENCE.as_secs(), missing });
        }
        sleep(LOOK).await;
    }
}
