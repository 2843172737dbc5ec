//! One run, from the empty fabric to the verdict: faults first, then everything heals and must converge.

use crate::bed::{Bed, FORGET_EVERY, KnowFiles, manager_host, second_manager_host, speak_some_protocol};
use crate::check::sessions::SessionsCheck;
use crate::check::{
    cut, durable, equal, forgotten, lease::LeaseCheck, limits::LimitsCheck, linearizable, progress, sound,
    tables,
};
use crate::clients::{self, Party, client_host};
use crate::coverage::Coverage;
use crate::faults::{self, Fault, Guard};
use crate::files::{self, FilesClient};
use crate::filler::{FILLER, FILLER_BYTES};
use crate::names::Names;
use crate::plan::Plan;
use crate::refusals::Refusals;
use crate::trees::{self, TreesClient};
use crate::workload::INODE_BLOCKS;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;
use weft_api::{ApiAnswer, ApiRequest};
use weft_checker::History;
use weft_client::AttachMode;
use weft_rt::sim::{self, Sim, spawn_process};
use weft_rt::sync::{Either, race};
use weft_rt::{now, random_below, sleep, sleep_until, spawn};

/// How long clients go on after the last fault was healed.
const AFTERMATH: Duration = Duration::from_millis(500);

/// What a fault leads to when it ends by itself has begun after this.
const ENDED_AFTER: Duration = Duration::from_millis(500);

/// Polls of tasks in a run: many times what the longest needs.
const POLLS_MAX: u64 = 60_000_000;

/// The name of the file system, where there is one, and how many of its inodes are used.
const FILES: &str = "files";

/// Clients of its names, and how long an operation of theirs may take: longer than all faults together.
const NAMERS: usize = 2;
const NAMES_PATIENCE: Duration = Duration::from_secs(600);
const NAMES_THINK: Duration = Duration::from_millis(60);

/// Processes that have mounted it, and how long each lives, at most.
const MOUNTS: usize = 2;
const MOUNT_LIVES: Duration = Duration::from_secs(6);

/// How long the users of a tree rest after some operations, and how long one of their mounts is cut off, at
/// most: longer than a session lasts.
const TREES_THINK: Duration = Duration::from_millis(60);
const TREES_SILENCE: Duration = Duration::from_secs(8);

const INODES: u64 = 3;

/// What a run that went well did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Hash over everything that happened: two runs of one plan have the same.
    pub trace: u64,
    /// Operations that clients completed, per block.
    pub operations: u64,
    /// Operations on a tree that several mounts have changed.
    pub tree_operations: u64,
    /// Faults that struck.
    pub faults: usize,
    /// Faults that were planned, and would have destroyed what nothing could save.
    pub spared: usize,
    /// Reads that replicas answered.
    pub reads: u64,
    /// The most tasks at any time.
    pub tasks: usize,
    /// Chunks compared in the end.
    pub chunks: u64,
    /// Virtual time from the last fault to a whole fabric.
    pub converged_after: Duration,
    /// Virtual time of the whole run.
    pub virtual_time: Duration,
}

/// What a run found.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The script that was run with it, by its name; none for its plan.
    pub script: Option<String>,
    /// The faults that it ran with, as [`Plan::with_faults`] takes them; none for all of its plan.
    pub faults: Option<String>,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.script {
            None => {
                writeln!(f, "seed {}: {}", self.seed, self.what)?;
                write!(f, "replay: {}", replay_command(self.seed, self.faults.as_deref()))
            }
            Some(script) => {
                writeln!(f, "{script}, seed {}: {}", self.seed, self.what)?;
                write!(f, "replay: {} --script {script}", replay_command(self.seed, None))
            }
        }
    }
}

/// The command that runs a seed again and tells its story.
pub fn replay_command(seed: u64, faults: Option<&str>) -> String {
    let faults = faults.map_or(String::new(), |list| format!(" --faults '{list}'"));
    format!("cargo run --profile simulation -p weft-sim -- --seed {seed}{faults} --story")
}

/// Runs one seed; with its story, prints what happens as it happens.
///
/// # Errors
/// What is wrong: see [`run_plan`].
pub fn run_seed(seed: u64, with_story: bool) -> Result<Outcome, Failure> {
    let (result, _) = run_plan(&Plan::of(seed), with_story);
    result.map_err(|what| Failure { seed, script: None, faults: None, what })
}

/// Runs a plan; says what came of it and which paths it took. What is wrong is a block that was no atomic register, a
/// fabric that does not become whole, replicas that differ, a limit that was passed, or a panic anywhere.
pub fn run_plan(plan: &Plan, with_story: bool) -> (Result<Outcome, String>, Coverage) {
    let mut simulation = Sim::new(plan.seed).with_polls_max(POLLS_MAX);
    if with_story {
        simulation = simulation.with_story(|line| println!("{line}"));
    }
    weft_rules::take_counts();
    type Slot<T> = Rc<RefCell<Option<T>>>;
    let (result, pairs): (Slot<Result<Outcome, String>>, Slot<Coverage>) = Default::default();
    let (result_slot, pairs_slot, own) = (result.clone(), pairs.clone(), plan.clone());
    let ran = catch_unwind(AssertUnwindSafe(|| {
        simulation.block_on(async move {
            let outcome = scenario(own, pairs_slot).await;
            *result_slot.borrow_mut() = Some(outcome);
        });
    }));
    weft_rules::observe_reads(None);
    weft_rules::observe_slices(None);
    let mut covered = pairs.take().unwrap_or_default();
    covered.add_paths(&weft_rules::take_counts());
    let result = match (ran, result.take()) {
        (Ok(()), Some(result)) => result,
        (Ok(()), None) => Err("the run ended without an outcome".to_owned()),
        (Err(panic), _) => {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
        }
    };
    (result, covered)
}

async fn scenario(plan: Plan, covered: Rc<RefCell<Option<Coverage>>>) -> Result<Outcome, String> {
    let began = now();
    let _know_files = (plan.filers > 0).then(KnowFiles::begin);
    let bed = start(&plan).await;
    let guard = Rc::new(Guard::default());
    let reads = LeaseCheck::start(&bed);
    let limits = Rc::new(LimitsCheck::default());
    let limits_task = spawn(limits.clone().watch(bed.clone()));

    let sessions = Rc::new(SessionsCheck::default());
    let sessions_task = spawn(sessions.clone().watch(bed.clone()));
    let parties = parties(&plan, &bed, &sessions);
    let running = start_clients(&parties, &plan.lanes);
    let users = Users::start(&plan, &bed, running.len());
    sleep(Duration::from_millis(300)).await;

    let scrubs = spawn(scrub_meanwhile(bed.clone(), guard.clone()));
    let processes: Vec<_> = running.iter().map(|(_, process, _)| *process).collect();
    let (struck, spared) = faults::play(&bed, &guard, &plan.faults, &processes, &sessions).await;
    *covered.borrow_mut() = Some(Coverage::of_pairs(&struck));
    // Time in which faults still overlap with whatever they caused.
    sleep(Duration::from_millis(random_below(2_000))).await;
    faults::heal(&bed);
    // Everything that ends by itself has ended after this; then heal once more, for good.
    sleep_until(struck.iter().map(|s| s.to).max().unwrap_or(now())).await;
    sleep(ENDED_AFTER).await;
    faults::heal(&bed);
    faults::mend(&bed, &guard).await;
    sleep(AFTERMATH).await;

    scrubs.abort();
    cut::check(&bed, &guard, &parties[0].0, plan.calm_cut).await?;
    let healed = now();
    parties.iter().for_each(|(party, _)| party.is_over.set(true));
    progress::finish(&running).await?;
    users.finish(&bed, &guard).await?;
    let converged_after = progress::converge(&bed, &guard, healed).await?;
    let done: u64 = parties.iter().map(|(p, _)| p.history.completed()).sum();
    for (party, _) in &parties {
        durable::check(party).await?;
    }
    progress::converge(&bed, &guard, now()).await?;
    let chunks = compare(&bed, &guard).await?;
    sound::check(&bed).await?;
    if !guard.may_be_older() {
        no_drive_is_taken_for_older(&bed).await?;
    }
    parties.iter().try_for_each(|(party, _)| linearizable::check(&party.volume, &party.history))?;
    limits_task.abort();
    sessions_task.abort();
    sessions.verdict()?;
    Ok(Outcome {
        trace: sim::trace_hash(),
        operations: done,
        tree_operations: users.trees.as_ref().map_or(0, |trees| trees.operations()),
        faults: struck.len(),
        spared,
        reads: reads.verdict()?,
        tasks: limits.verdict()?,
        chunks,
        converged_after,
        virtual_time: now() - began,
    })
}

/// Scrubs run into every fault, and must not take one for damage.
async fn scrub_meanwhile(bed: Rc<Bed>, guard: Rc<Guard>) {
    while random_below(2) > 0 {
        equal::scrub(&bed, &guard).await.unwrap_or_else(|found| panic!("{found}"));
        sleep(Duration::from_millis(random_below(1_000))).await;
    }
}

/// Compares all copies, once every discard is forgotten; returns how many chunks there were.
async fn compare(bed: &Rc<Bed>, guard: &Guard) -> Result<u64, String> {
    equal::scrub(bed, guard).await?;
    forgotten::check(bed).await?;
    equal::check(bed).await
}

/// The users of the file system, if there is one, beside the clients of its data.
struct Users {
    names: Rc<Names>,
    files: Option<Rc<FilesClient>>,
    trees: Option<Rc<TreesClient>>,
}

impl Users {
    /// Starts them, on the hosts of the clients from this one on.
    fn start(plan: &Plan, bed: &Rc<Bed>, first: usize) -> Users {
        let count = if plan.filers > 0 { NAMERS } else { 0 };
        let full = plan.faults.iter().any(|planned| matches!(planned.fault, Fault::Full { .. }));
        let refusals = Refusals { full, quota: plan.quota.is_some() };
        let names = Names::start(bed, FILES, (NAMES_PATIENCE, NAMES_THINK, refusals), first..first + count);
        let (patience, think, lives) = (NAMES_PATIENCE, NAMES_THINK, MOUNT_LIVES);
        let habits = files::Habits { mounts: MOUNTS, patience, think, lives, refusals };
        let files = (count > 0).then(|| FilesClient::start(bed, FILES, habits, first + count));
        let (mounts, think, silence) = (plan.trees, TREES_THINK, TREES_SILENCE);
        let habits = trees::Habits { mounts, patience, think, lives, silence, refusals };
        let host = first + count + MOUNTS;
        let trees = (plan.trees > 0).then(|| TreesClient::start(bed, FILES, habits, host));
        Users { names, files, trees }
    }

    /// Has them come to their end: sessions are swept once what is broken is mended.
    async fn finish(&self, bed: &Rc<Bed>, guard: &Guard) -> Result<(), String> {
        let finishing = async {
            self.names.finish().await?;
            if let Some(files) = &self.files {
                files.finish().await?;
            }
            if let Some(trees) = &self.trees {
                trees.finish().await?;
            }
            match self.files {
                Some(_) => tables::check(bed, FILES).await,
                None => Ok(()),
            }
        };
        let mending = async {
            loop {
                faults::mend(bed, guard).await;
                sleep(AFTERMATH).await;
            }
        };
        match race(finishing, mending).await {
            Either::Left(finished) => finished,
            Either::Right(never) => never,
        }
    }
}

/// Starts the clients of each party, each a process on a machine of its own.
fn start_clients(parties: &[(Party, usize)], lanes: &[usize]) -> Vec<progress::Finishing> {
    let mut running: Vec<progress::Finishing> = Vec::new();
    for (party, count) in parties {
        for _ in 0..*count {
            let (name, done) = (format!("client-{}", running.len() + 1), Rc::new(Cell::new(false)));
            let host = client_host(running.len());
            let client = clients::Client { name: name.clone(), host, lanes: lanes[running.len()] };
            let process = spawn_process(host, &name, clients::run(client, party.clone(), done.clone()));
            speak_some_protocol(process);
            running.push((name, process, done));
        }
    }
    running
}

async fn start(plan: &Plan) -> Rc<Bed> {
    let mut rates = BTreeMap::new();
    for (n, rate) in plan.rates.iter().enumerate() {
        if n < plan.shape.nodes {
            rates.insert([10, 0, 0, 1 + n as u8].into(), *rate);
        } else {
            rates.insert(manager_host(), *rate);
            rates.insert(second_manager_host(), -*rate);
        }
    }
    let has_second = plan.faults.iter().any(|p| matches!(p.fault, Fault::SecondManager {}));
    let bed = Bed::start_as(plan.shape.clone(), rates, has_second, FORGET_EVERY).await;
    sim::tell(|| format!("{:?}", bed.shape));
    bed.create_volume("shared", bed.shape.copies, 2).await;
    if plan.loners > 0 {
        bed.create_volume("alone", bed.shape.copies, 2).await;
    }
    if plan.filers > 0 {
        bed.create_file_system_of(plan.shards, FILES, bed.shape.copies, 2).await;
        if let Some(limit) = plan.quota {
            tables::limit(&bed, FILES, limit).await;
        }
    }
    if plan.faults.iter().any(|p| matches!(p.fault, Fault::Full { .. })) {
        bed.create_volume_of(FILLER, FILLER_BYTES, bed.shape.copies, 1, true).await;
    }
    bed
}

/// The clients of each volume, and how many of them.
fn parties(plan: &Plan, bed: &Bed, sessions: &Rc<SessionsCheck>) -> Vec<(Party, usize)> {
    let party = |volume: &str, mode| Party {
        managers: bed.managers(),
        volume: volume.into(),
        mode,
        of_files: false,
        habits: plan.habits.clone(),
        history: History::default(),
        sessions: sessions.clone(),
        is_over: Rc::default(),
    };
    let mut parties = vec![(party("shared", AttachMode::Shared), plan.sharers)];
    if plan.filers > 0 {
        let mut party = Party { of_files: true, ..party(FILES, AttachMode::Shared) };
        let of_inode = |inode: u64| plan.habits.hot_blocks.iter().map(move |b| inode * INODE_BLOCKS + b);
        party.habits.hot_blocks = (0..INODES).flat_map(of_inode).collect();
        parties.push((party, plan.filers));
    }
    if plan.loners > 0 {
        parties.push((party("alone", AttachMode::Exclusive), plan.loners));
    }
    parties
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
