//! One seed, from the empty fabric to the verdict.

use crate::bed::{Bed, BedShape};
use crate::faults::{self, Schedule, client_host};
use crate::history::History;
use crate::workload::{self, Workload};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest};
use weft_client::AttachMode;
use weft_rt::sim::{self, Crash, Sim, spawn_process};
use weft_rt::{now, random_below, sleep, spawn};

/// Faults per run, at most.
const FAULTS_MAX: u64 = 14;

/// How long clients go on after the last fault was healed.
const AFTERMATH: Duration = Duration::from_secs(2);

/// Virtual time within which a healed fabric must be whole: sessions expire, every lease is waited out and
/// every replica is verified well before.
const CONVERGE_WITHIN: Duration = Duration::from_secs(120);

/// What a run that went well did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Hash over everything that happened: two runs of one seed have the same.
    pub trace: u64,
    /// Operations that clients completed, per block.
    pub operations: u64,
    /// Faults that struck.
    pub faults: usize,
    /// Chunks compared by the final scrub.
    pub chunks: u64,
    /// Virtual time from the last fault to a whole fabric.
    pub converged_after: Duration,
}

/// What a run found.
#[derive(Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.what)?;
        write!(f, "replay: {}", replay_command(self.seed))
    }
}

/// The command that runs a seed again and tells its story.
pub fn replay_command(seed: u64) -> String {
    format!("cargo run -p weft-sim -- --seed {seed} --story")
}

/// Runs one seed; with its story, prints what happens as it happens.
///
/// # Errors
/// What is wrong: a block that was no atomic register, a fabric that does not become whole, replicas that
/// differ, a panic anywhere.
pub fn run_seed(seed: u64, with_story: bool) -> Result<Outcome, Failure> {
    let mut simulation = Sim::new(seed);
    if with_story {
        simulation = simulation.with_story(|line| println!("{line}"));
    }
    let result: Rc<RefCell<Option<Result<Outcome, String>>>> = Rc::default();
    let slot = result.clone();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        simulation.block_on(async move {
            let outcome = scenario().await;
            *slot.borrow_mut() = Some(outcome);
        });
    }));
    let what = match (ran, result.borrow_mut().take()) {
        (Ok(()), Some(Ok(outcome))) => return Ok(outcome),
        (Ok(()), Some(Err(what))) => what,
        (Err(panic), _) => {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
        }
        (Ok(()), None) => "the run ended without an outcome".to_owned(),
    };
    Err(Failure { seed, what })
}

async fn scenario() -> Result<Outcome, String> {
    let bed = Bed::start(BedShape::random()).await;
    sim::tell(|| format!("{:?}", bed.shape));
    bed.create_volume("shared", bed.shape.copies, 2).await;
    let history = History::default();
    let clients = 2 + random_below(3) as usize;
    let workload = Workload {
        managers: bed.managers(),
        volume: "shared".into(),
        hot_blocks: hot_blocks(),
        think: Duration::from_micros([1_000, 5_000, 30_000][random_below(3) as usize]),
        operations: None,
        depth: 1 + random_below(3),
    };
    let processes: Vec<_> = (0..clients)
        .map(|n| {
            let name = format!("client-{}", n + 1);
            let run = workload::run(name.clone(), workload.clone(), history.clone());
            spawn_process(client_host(n), &name, run)
        })
        .collect();
    sleep(Duration::from_millis(300)).await;

    // Scrubs run into every fault, and must not take one for damage.
    let scrubs = bed.clone();
    let scrubs = spawn(async move {
        while random_below(2) > 0 {
            scrubs.scrub_itself().await.unwrap_or_else(|found| panic!("{found}"));
            sleep(Duration::from_millis(random_below(1_000))).await;
        }
    });
    let schedule = Schedule::random(FAULTS_MAX, bed.nodes.len(), bed.shape.drives, clients);
    schedule.play(&bed, &processes).await;
    // Time in which faults still overlap with whatever they caused.
    sleep(Duration::from_millis(random_below(2_000))).await;
    faults::heal(&bed);
    sleep(AFTERMATH).await;
    for process in &processes {
        sim::kill(*process, Crash::Process);
    }
    // Everything that ends by itself has ended after this; then heal once more, for good.
    sleep(Duration::from_secs(6)).await;
    faults::heal(&bed);

    scrubs.abort();
    let healed = now();
    let converged_after = converge(&bed, healed).await?;
    read_everything(&bed, &workload, &history).await?;
    converge(&bed, now()).await?;
    bed.scrub_itself().await?;
    let chunks = bed.scrub().await?;
    no_drive_is_taken_for_older(&bed).await?;
    history.check().map_err(|v| v.to_string())?;
    Ok(Outcome {
        trace: sim::trace_hash(),
        operations: history.completed(),
        faults: schedule.0.len(),
        chunks,
        converged_after,
    })
}

/// Few blocks, so that clients meet; some next to a stripe unit's end, so that requests span two objects.
fn hot_blocks() -> Vec<u64> {
    let runs = 1 + random_below(4);
    (0..runs).map(|i| [0, 2, 150, 515][i as usize] + random_below(2)).collect()
}

/// Whatever crashed, disks keep here what was flushed: a drive that is taken for an older copy of itself is a fault.
async fn no_drive_is_taken_for_older(bed: &Rc<Bed>) -> Result<(), String> {
    let ApiAnswer::Events { events } =
        bed.api(ApiRequest::Events { after: 0, limit: None, filter: Default::default() }).await
    else {
        return Err("the answer to events is another one".into());
    };
    match events.into_iter().find(|e| e.what == "drive-refused") {
        None => Ok(()),
        Some(event) => Err(event.why),
    }
}

async fn converge(bed: &Rc<Bed>, from: weft_rt::Instant) -> Result<Duration, String> {
    loop {
        match bed.is_whole().await {
            Ok(()) => return Ok(now() - from),
            Err(why) if now() - from > CONVERGE_WITHIN => {
                return Err(format!("not whole {CONVERGE_WITHIN:?} after everything healed: {why}"));
            }
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Durability: a client that was not there before reads every block that was touched.
async fn read_everything(bed: &Rc<Bed>, workload: &Workload, history: &History) -> Result<(), String> {
    let volume = workload::attach(&bed.managers(), &workload.volume, "reader", AttachMode::Shared).await;
    for block in history.blocks() {
        workload::read("reader", &volume, history, block, 1).await.map_err(|e| e.to_string())?;
    }
    volume.detach().await;
    Ok(())
}
