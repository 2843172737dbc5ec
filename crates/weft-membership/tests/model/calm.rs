//! A calm: nothing fails any more, and everyone does what there is to do, in turn.
//!
//! It owns the one fair schedule by which a state must come to rest. It never skips a step of the model.

use crate::checker::is_whole;
use crate::fabric::{Fabric, Step, World};
use crate::target::{Medium, Nodes, Target, bit};

/// Rounds of the schedule: an eviction waits twice, and each change takes some rounds; a state far from rest needs
/// six changes.
const ROUNDS: usize = 60;

/// Changes that a manager commits in a round, at most.
const COMMITS: usize = 4;

/// Follows a state until all members that are there are in-sync and a write goes through; says what is missing if
/// that does not happen.
pub fn settles(world: &World, from: &Fabric) -> Result<(), String> {
    let mut world = world.clone();
    // The bound on epochs is the checker's, and no rule.
    world.scope.epochs = u64::MAX;
    let mut state = from.clone();
    if state.fault.is_some() || is_lost(&world, &state) {
        return Ok(());
    }
    state.writers.iter_mut().for_each(|w| w.left = w.left.max(1));
    // A drive that failed is looked at by people: its target is restarted.
    for target in 0..world.nodes.len() {
        state.left.crashes = 1;
        let is_latched = state.targets[target].medium == Medium::Broken;
        if let Some(next) = world.take(&state, Step::Crash { target }).filter(|_| is_latched) {
            state = next;
        }
    }
    let mut last = Err("no round".to_owned());
    for _ in 0..ROUNDS {
        round(&world, &mut state, Cast::ALL, &mut |_| {});
        last = rest(&world, &state);
        if last.is_ok() {
            return last;
        }
    }
    last
}

/// Whether a group waits for a person, since none of its in-sync members exists any more.
fn is_lost(world: &World, state: &Fabric) -> bool {
    world.groups.iter().any(|id| {
        let mut members = state.store.groups[id].read_set().map(Target::index);
        members.all(|n| state.targets[n].medium == Medium::Lost)
    })
}

fn rest(world: &World, state: &Fabric) -> Result<(), String> {
    is_whole(world, state)?;
    // Without a drive to take the place of one that is lost, a drive that is emptied stays as one copy more.
    let is_complete = state.targets.iter().all(|t| t.medium != Medium::Lost);
    if is_complete && !state.store.relocations.is_empty() {
        return Err("a drive is still passing to another one".into());
    }
    match state.writers.iter().position(|w| w.left > 0) {
        Some(group) => Err(format!("the write to group {group} is not acknowledged")),
        None => Ok(()),
    }
}

/// Who takes part in a round.
#[derive(Clone, Copy)]
pub struct Cast {
    pub absent: Nodes,
    pub has_manager: bool,
}

impl Cast {
    pub const ALL: Cast = Cast { absent: 0, has_manager: true };
}

/// Everyone's turn once; each state on the way is shown.
pub fn round(world: &World, state: &mut Fabric, cast: Cast, show: &mut dyn FnMut(&Fabric)) {
    let nodes: Vec<usize> = (0..world.nodes.len()).filter(|n| cast.absent & bit(*n) == 0).collect();
    let mut go = |step| {
        if let Some(next) = world.take(state, step) {
            *state = next;
            show(state);
        }
    };
    let manager = 0;
    for &target in &nodes {
        go(Step::Start { target });
        nodes.iter().for_each(|&peer| go(Step::Vouch { target, peer }));
        go(Step::ReportArrives { target });
    }
    if cast.has_manager {
        go(Step::Lead { manager });
        for &target in &nodes {
            go(Step::Receive { target });
            go(Step::Join { target, manager });
            go(Step::Report { target });
            go(Step::Renew { target });
            go(Step::FetchMap { target });
            go(Step::Restore { target, manager });
        }
        (0..world.nodes.len()).for_each(|target| go(Step::Suspect { target, manager }));
        for &target in &nodes {
            (0..world.nodes.len()).for_each(|victim| go(Step::Promise { target, victim, manager }));
            go(Step::PushMap { target, manager });
        }
        (0..COMMITS).for_each(|_| go(Step::Commit { manager }));
        nodes.iter().for_each(|&target| go(Step::PushMap { target, manager }));
    }
    for group in 0..world.groups.len() {
        go(Step::Refresh { group });
        for &target in &nodes {
            nodes.iter().for_each(|&source| go(Step::Teach { group, target, source }));
            nodes.iter().for_each(|&source| go(Step::Copy { group, target, source }));
            go(Step::Verified { group, target });
        }
        nodes.iter().for_each(|&target| go(Step::Write { group, target }));
    }
    go(Step::Tick);
}
