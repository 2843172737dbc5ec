//! The hunt for rules that were broken on purpose: every switch of [`Mutation`] is turned, and the simulation
//! has to notice within a stated number of seeds.
//!
//! A hunt is a scenario that is biased towards what its rule is about, on the real code. `table.rs` says
//! which mutation is hunted where. The same seed without the mutation must hold: that is looked at whenever
//! one is found. Where one rule stands behind another, both are broken together, and each alone is no error:
//! then the table says what protects.

mod actor;
mod conflicts;
mod counters;
mod crowd;
mod cut;
mod device;
mod directories;
mod drive;
mod endings;
mod fenced;
mod files;
mod files_stage;
mod follow;
mod forgets;
mod handed;
mod interrupted;
mod kept;
mod lanes;
mod mounts;
mod parts;
mod quotas;
mod readers;
mod renewed;
mod returns;
mod rooms;
mod rot;
mod scripts;
mod shard;
mod shared;
mod siblings;
mod silence;
mod sparse;
mod spread;
mod stage;
mod stranded;
mod table;
mod takeover;
mod trees;
mod unsaid;
mod waiting;

pub use crowd::Crowd;
pub use drive::Drive;
pub use scripts::Script;
pub use siblings::Siblings;
pub use stranded::Stranded;
pub use table::{HUNTS, Hunt};

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sim::Sim;
use weft_rt::sleep;
use weft_rt::sync::{Either, race};
use weft_rules::{Broken, Mutation};

/// Virtual time after which a run is taken for stuck.
const ENDS_WITHIN: Duration = Duration::from_secs(90);

/// Where a mutation is hunted.
#[derive(Clone, Copy, Debug)]
pub enum Scenario {
    /// Many clients and faults.
    Crowd(Crowd),
    /// A member that is cut off, with readers that have heard of nothing.
    Stranded(Stranded),
    /// Targets of one node that differ.
    Siblings(Siblings),
    /// A device of several parts is lost.
    Parts,
    /// An exclusive attach takes a volume away from a client.
    Takeover,
    /// Likewise, with several targets on each node.
    TakeoverOfTargets,
    /// A resync is interrupted.
    Interrupted,
    /// A rare schedule, step by step.
    Script(Script),
    /// A drive without a fabric.
    Drive(Drive),
    /// A device of several parts without a fabric.
    Device,
    /// Servers without a fabric that ask each other, with little room.
    Rooms,
    /// A metadata shard whose servers follow one another.
    Shard,
    /// Shards of a file system whose servers follow one another, with directories in all of them.
    Spread,
    /// Likewise, where two directories are moved into each other.
    Moved,
    /// Shards as in `Spread`, where a user has a quota.
    Quotas,
    /// Operations wait in a metadata shard while their session ends.
    Waiting,
    /// A file system that clients have mounted, whose sessions end in the middle of what they do.
    Mounts,
    /// A mount of a file system dies again and again, and the next one looks at what it left.
    Files,
    /// Several mounts of a file system share files.
    SharedFiles,
    /// Several mounts change a tree of directories, links and locks.
    Trees,
    /// As `Trees`, with directories in several shards.
    SpreadTrees,
    /// Several mounts write one file at the same time.
    WrittenByMany,
    /// A mount is cut off until another one has what it held.
    Fenced,
    /// A mount dies as soon as its write is durable, and others have seen the file before.
    DiedAfterWrite,
    /// A mount and its kernel keep names that another mount changes.
    NamesKept,
    /// A mount that is alone reads a file that loses its name.
    Unsaid,
    /// A mount reads a file that the lease of its directory keeps as it is, and another mount changes it.
    UnsaidInLease,
    /// A mount that is alone changes names that it looks for at the same time.
    NamesChanged,
    /// A mount holds a directory in which another mount changes names, attributes and sizes.
    DirectoryKept,
    /// The data of a file lie further apart than drives are large.
    Sparse,
    /// A mount writes to what others read all the time.
    Readers,
    /// A lock changes hands as its holder dies.
    Handed,
    /// A mount loses its session while a program has locked a file.
    Renewed,
    /// Programs on several mounts count in one file, each time under a lock.
    Counters,
}

impl Scenario {
    /// Runs it once, in the simulation that is there.
    async fn run(self) -> Result<(), String> {
        match self {
            Scenario::Crowd(crowd) => crowd.run().await,
            Scenario::Stranded(stranded) => stranded.run().await,
            Scenario::Siblings(siblings) => siblings.run().await,
            Scenario::Parts => parts::run().await,
            Scenario::Takeover => takeover::run().await,
            Scenario::TakeoverOfTargets => takeover::run_split().await,
            Scenario::Interrupted => interrupted::run().await,
            Scenario::Script(script) => script.run().await,
            Scenario::Drive(drive) => drive.run().await,
            Scenario::Device => device::run().await,
            Scenario::Rooms => rooms::run().await,
            Scenario::Shard => shard::run().await,
            Scenario::Spread => spread::run().await,
            Scenario::Moved => spread::run_moved().await,
            Scenario::Quotas => quotas::run().await,
            Scenario::Waiting => waiting::run().await,
            Scenario::Mounts => mounts::run().await,
            Scenario::Files => files::run().await,
            Scenario::Readers => readers::run().await,
            Scenario::Renewed => renewed::run().await,
            Scenario::Handed => handed::run().await,
            Scenario::Counters => counters::run().await,
            Scenario::NamesKept => fenced::run_names().await,
            Scenario::Unsaid => fenced::run_unsaid().await,
            Scenario::NamesChanged => fenced::run_changed_names().await,
            Scenario::DirectoryKept => directories::run().await,
            Scenario::Sparse => sparse::run().await,
            Scenario::UnsaidInLease => unsaid::run().await,
            Scenario::Fenced => fenced::run().await,
            Scenario::DiedAfterWrite => fenced::run_died().await,
            Scenario::SharedFiles => files::run_shared().await,
            Scenario::Trees => trees::run().await,
            Scenario::SpreadTrees => trees::run_spread().await,
            Scenario::WrittenByMany => shared::run().await,
        }
    }
}

/// How a hunt ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed that noticed, and the first line of what it said; none if no seed did.
    pub found: Option<(u64, String)>,
    /// Seeds that were run.
    pub seeds: u64,
    /// Whether code with the switch has run at all.
    pub reached: bool,
    /// The seed fails without the mutation, too: a real error.
    pub fails_unbroken: Option<String>,
}

impl Outcome {
    /// Whether it is as the table says.
    pub fn is_as_expected(&self, hunt: &Hunt) -> bool {
        self.fails_unbroken.is_none() && self.found.is_some() != hunt.is_protected()
    }
}

impl Hunt {
    /// Runs seeds until one notices, or the hunt's budget or this one is used up.
    pub fn run(&self, budget: u64) -> Outcome {
        let mut outcome = Outcome { found: None, seeds: 0, reached: false, fails_unbroken: None };
        for seed in 0..self.budget.min(budget) {
            outcome.seeds += 1;
            let (ended, reached) = run_seed(self.scenario, self.mutations, seed, false);
            outcome.reached |= reached;
            if let Err(what) = ended {
                outcome.fails_unbroken = run_seed(self.scenario, &[], seed, false).0.err();
                outcome.found = Some((seed, first_line(&what)));
                break;
            }
        }
        outcome
    }
}

/// What is wrong, without what it is derived from.
pub fn first_line(what: &str) -> String {
    let line = what.lines().next().unwrap_or_default();
    let mut line = line.trim_end_matches(':').to_owned();
    if let Some((at, _)) = line.char_indices().nth(160) {
        line.truncate(at);
        line.push_str(" ...");
    }
    line
}

/// Runs one seed of a scenario with these rules broken: how it ended, and whether a switch was reached. With
/// its story, prints what happens as it happens.
pub fn run_seed(
    scenario: Scenario,
    mutations: &[Mutation],
    seed: u64,
    with_story: bool,
) -> (Result<(), String>, bool) {
    let broken = Broken::rules(mutations);
    let mut simulation = Sim::new(seed);
    if with_story {
        simulation = simulation.with_story(|line| println!("{line}"));
    }
    let ended: Rc<RefCell<Option<Result<(), String>>>> = Rc::default();
    let slot = ended.clone();
    let ran = catch_unwind(AssertUnwindSafe(|| {
        simulation.block_on(async move {
            let result = match race(scenario.run(), sleep(ENDS_WITHIN)).await {
                Either::Left(result) => result,
                Either::Right(()) => Err(format!("it does not end within {ENDS_WITHIN:?}")),
            };
            *slot.borrow_mut() = Some(result);
        });
    }));
    let result = match (ran, ended.borrow_mut().take()) {
        (Ok(()), Some(result)) => result,
        (Ok(()), None) => Err("the run ended without an outcome".to_owned()),
        (Err(panic), _) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Err(format!("panic: {}", text.unwrap_or_default()))
        }
    };
    weft_rules::observe_slices(None);
    let reached = mutations.iter().any(|m| broken.has_reached(*m));
    (result, reached)
}
