//! The rules of membership, leases and failover, model-checked: every order of steps of a small fabric is tried, as
//! far as the bounds go, and random walks go further.
//!
//! Every transition of the map is made by this crate's own functions (`fabric.rs`): [`weft_membership::next_change`]
//! decides, [`weft_membership::apply`] judges. Around them is what targets and managers do about leases, promises and
//! vouching, as small as it can be said (`target.rs`, `manager.rs`), with time in ticks, targets whose clocks are slow,
//! answers that are late or lost, processes that die at any point, and drives that break or are gone. A block is a
//! number: the version of its last write. Decision 11 says why, and what this does not see.
//!
//! `cargo test -p weft-membership --test model -- --nocapture` prints how many states were looked at;
//! `WEFT_MODEL_FACTOR=50` looks at so many times more.

mod calm;
mod checker;
mod fabric;
mod manager;
mod scope;
mod shared;
mod story;
mod target;
mod walk;

use fabric::{Step, World};
use scope::{Broken, Scope};
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::time::Instant;
use story::Part;

/// States that the search generates for one scope: some two seconds in a build for debugging.
const STATES: usize = 250_000;

/// States that it may generate until it has found a counter-example.
const STATES_TO_FAULT: usize = 400_000;

/// Random walks per scope, and the steps of each: twice as many as a replica takes to leave, come back and leave.
const WALKS: u64 = 500;
const WALK_STEPS: usize = 200;

/// Walks until one has found a counter-example.
const WALKS_TO_FAULT: u64 = 800;

type Story = Vec<Part>;

/// A replica is silent until it is evicted, comes back and is promoted.
fn away_and_back() -> Story {
    vec![Part::calm(6).without(1), Part::calm(6)]
}

/// The manager dies, targets vouch for each other, another one takes over.
fn leaderless() -> Story {
    vec![Part::calm(3).after(&[Step::Die { manager: 0 }]).leaderless(), Part::calm(4)]
}

/// One member is evicted, then the other one is gone for good.
fn last_one_lost() -> Story {
    vec![Part::calm(7).without(1), Part::calm(4).after(&[Step::Lose { target: 0 }])]
}

fn emptied() -> Story {
    vec![Part::calm(8).after(&[Step::Drain { target: 1, manager: 0 }])]
}

fn lost() -> Story {
    vec![Part::calm(8).after(&[Step::Lose { target: 1 }])]
}

/// Two targets hang with their drives, and second processes of them join.
fn usurped() -> Story {
    let manager = 0;
    let steps = [
        Step::HangUp { target: 0 },
        Step::HangUp { target: 1 },
        Step::Usurp { target: 0, manager },
        Step::Usurp { target: 1, manager },
        Step::UsurperRenews { target: 0, manager },
        Step::UsurperRenews { target: 1, manager },
        Step::Promise { target: 1, victim: 0, manager },
        Step::Promise { target: 2, victim: 1, manager },
        Step::Tick,
        Step::Tick,
        Step::Vouch { target: 0, peer: 1 },
        Step::Vouch { target: 0, peer: 2 },
    ];
    vec![Part::calm(0).after(&steps)]
}

fn factor() -> usize {
    std::env::var("WEFT_MODEL_FACTOR").map_or(1, |text| text.parse().expect("WEFT_MODEL_FACTOR is a number"))
}

/// Searches and walks through a fabric whose rules all hold.
fn holds(scope: Scope, stories: &[Story]) {
    let (name, began) = (scope.name, Instant::now());
    let world = World::new(scope).telling(stories);
    for start in &world.starts {
        calm::settles(&world, start).expect("every state of a story comes to rest");
    }
    let search = (world.clone().checker().target_state_count(STATES * factor()))
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let discoveries = search.discoveries();
    let mut reached: BTreeSet<&str> = discoveries.keys().copied().collect();
    for property in world.properties().iter().filter(|p| p.expectation == Expectation::Always) {
        if let Some(path) = discoveries.get(property.name) {
            let rest = calm::settles(&world, path.last_state());
            panic!("{name}: not so: {}\n{:#?}\n{rest:?}", property.name, path.clone().into_actions());
        }
    }
    let mut walked = 0;
    for seed in 0..WALKS * factor() as u64 {
        let met = walk::walk(&world, seed, WALK_STEPS);
        walked += met.states;
        reached.extend(met.reached);
        if let Some((property, path, last)) = met.fault {
            let rest = calm::settles(&world, &last);
            panic!("{name}, walk {seed}: not so: {property}\n{path:#?}\n{rest:?}\n{:?}", last.fault);
        }
    }
    eprintln!(
        "{name}: {} beginnings, {} states ({} different, {} steps deep), {walked} on walks, {} ms",
        world.starts.len(),
        search.state_count(),
        search.unique_state_count(),
        search.max_depth(),
        began.elapsed().as_millis()
    );
    let milestones = world.properties().into_iter().filter(|p| p.expectation == Expectation::Sometimes);
    let missed: Vec<&str> = milestones.map(|p| p.name).filter(|p| !reached.contains(p)).collect();
    assert_eq!(missed, Vec::<&str>::new(), "{name}: the model does not get there");
}

#[test]
fn two_copies() {
    let scope = Scope { crashes: 1, deaths: 1, hangups: 1, delays: 1, ..Scope::pair() };
    holds(scope, &[away_and_back(), leaderless()]);
}

#[test]
fn two_copies_and_finer_time() {
    let scope =
        Scope { name: "two copies, finer time", lease: 2, wait: 3, crashes: 1, deaths: 1, ..Scope::pair() };
    holds(scope, &[away_and_back(), leaderless()]);
}

#[test]
fn three_copies() {
    let scope = Scope { name: "three copies", nodes: 3, groups: vec![vec![0, 1, 2]], ..Scope::pair() };
    let scope = Scope { crashes: 1, deaths: 1, hangups: 1, delays: 1, ..scope };
    holds(scope, &[away_and_back(), leaderless()]);
}

#[test]
fn two_groups() {
    let scope = Scope { name: "two groups", nodes: 3, groups: vec![vec![0, 1], vec![2, 0]], ..Scope::pair() };
    let scope = Scope { crashes: 1, deaths: 1, hangups: 1, breaks: 1, ..scope };
    holds(scope, &[away_and_back(), leaderless()]);
}

#[test]
fn a_spare_drive() {
    let scope = Scope { name: "a spare drive", nodes: 3, rebuilds: true, ..Scope::pair() };
    let scope = Scope { crashes: 1, deaths: 1, losses: 1, breaks: 1, drains: 1, ..scope };
    holds(scope, &[emptied(), lost()]);
}

#[test]
fn accepted_loss() {
    let scope =
        Scope { name: "accepted loss", crashes: 1, deaths: 1, losses: 1, accepts: 1, ..Scope::pair() };
    holds(scope, &[last_one_lost(), away_and_back()]);
}

#[test]
fn usurpers() {
    let scope = Scope { name: "processes that hang", nodes: 3, groups: vec![vec![0, 1, 2]], ..Scope::pair() };
    let scope = Scope { crashes: 1, hangups: 2, usurpers: 2, ..scope };
    holds(scope, &[away_and_back(), usurped()]);
}

/// How a counter-example was found.
struct Found {
    how: &'static str,
    states: usize,
    property: &'static str,
    steps: Vec<Step>,
}

/// Looks for a counter-example: the shortest way first, then on walks.
fn counter_example(world: &World) -> Result<Found, usize> {
    let search = (world.clone().checker().target_state_count(STATES_TO_FAULT))
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let discoveries = search.discoveries();
    let shortest =
        discoveries.into_iter().min_by_key(|(name, path)| (path.clone().into_actions().len(), *name));
    if let Some((property, path)) = shortest {
        let states = search.unique_state_count();
        return Ok(Found { how: "search", states, property, steps: path.into_actions() });
    }
    let mut states = search.unique_state_count();
    for seed in 0..WALKS_TO_FAULT {
        let met = walk::walk(world, seed, WALK_STEPS);
        states += met.states;
        if let Some((property, steps, _)) = met.fault {
            return Ok(Found { how: "walks", states, property, steps });
        }
    }
    Err(states)
}

/// Breaks rules, and sees the checker find a way to what they prevent.
fn is_noticed(broken: &'static [Broken], scope: Scope, stories: &[Story]) {
    let world = World::new(scope.breaking(broken)).telling(stories);
    match counter_example(&world) {
        Ok(Found { how, states, property, steps }) => {
            eprintln!("{broken:?}: {states} states ({how}), {} steps: not so: {property}", steps.len());
            if how == "search" {
                eprintln!("  {steps:?}");
            }
        }
        Err(states) => panic!("{broken:?}: nothing found in {states} states"),
    }
}

fn pair() -> Scope {
    Scope::pair()
}

#[test]
fn broken_evictions_are_noticed() {
    let away = || [away_and_back()];
    is_noticed(&[Broken::PromiseNotWaitedOut], pair(), &away());
    is_noticed(&[Broken::LeaseNotWaitedOut, Broken::PromiseNotWaitedOut], pair(), &away());
    is_noticed(&[Broken::NoMarginForDrift], pair(), &away());
    is_noticed(&[Broken::EvictWithoutPromise], pair(), &away());
    is_noticed(&[Broken::EvictTheLast], pair(), &away());
    let latched = [
        Step::Break { target: 1 },
        Step::Report { target: 1 },
        Step::Crash { target: 1 },
        Step::Start { target: 1 },
        Step::Join { target: 1, manager: 0 },
    ];
    is_noticed(&[Broken::FormerProcessIsHeard], pair(), &[vec![Part::calm(0).after(&latched)]]);
    is_noticed(&[Broken::LeaveBeforeYield], Scope { nodes: 3, ..pair() }, &[emptied()]);
}

#[test]
fn broken_failovers_are_noticed() {
    let scope = || Scope { deaths: 1, ..pair() };
    is_noticed(&[Broken::EpochUsedAgain], scope(), &[away_and_back()]);
    is_noticed(&[Broken::LeaderDoesNotWait, Broken::PromiseNotWaitedOut], scope(), &[leaderless()]);
    is_noticed(&[Broken::TwoManagersGrant], Scope { hangups: 2, ..pair() }, &[away_and_back()]);
    is_noticed(&[Broken::GrantBeforeAdoption], pair(), &[away_and_back()]);
    is_noticed(&[Broken::ReturnUnnoticed], pair(), &[away_and_back()]);
}

#[test]
fn broken_vouching_is_noticed() {
    is_noticed(&[Broken::VouchForOneself], pair(), &[away_and_back()]);
    let restart = [Step::Crash { target: 0 }, Step::Start { target: 0 }];
    let story = vec![Part::calm(2).without(1), Part::calm(0).after(&restart)];
    is_noticed(&[Broken::VouchAfterRestart], pair(), &[story]);
    let late = [
        Step::RenewLate { target: 0 },
        Step::Tick,
        Step::Suspect { target: 1, manager: 0 },
        Step::Promise { target: 0, victim: 1, manager: 0 },
    ];
    is_noticed(&[Broken::PromiseEndsWithOldGrant], pair(), &[vec![Part::calm(0).after(&late)]]);
}

#[test]
fn broken_words_about_processes_that_hang_are_noticed() {
    let three = || Scope { nodes: 3, groups: vec![vec![0, 1, 2]], ..pair() };
    is_noticed(&[Broken::AnyPromiseCounts], three(), &[usurped()]);
    let steps = [Step::HangUp { target: 1 }, Step::Usurp { target: 1, manager: 0 }];
    is_noticed(&[Broken::LeftBehindIsGone], pair(), &[vec![Part::calm(0).after(&steps)]]);
}

#[test]
fn broken_returns_are_noticed() {
    let away = || [away_and_back()];
    is_noticed(&[Broken::RejoinInSync], pair(), &away());
    is_noticed(&[Broken::PromoteWithoutResync], pair(), &away());
    is_noticed(&[Broken::PromoteByOldWord], pair(), &away());
    is_noticed(&[Broken::CopyTooEarly], pair(), &away());
    is_noticed(&[Broken::WriteBeforeVerify], pair(), &away());
}

/// Two waits of which each covers the other one as long as there is a member to promise: what was granted before a
/// promise runs out no later than what was vouched for before it, and a renewal ends the promise.
#[test]
fn either_wait_covers_the_other() {
    for broken in [&[Broken::LeaseNotWaitedOut][..], &[Broken::LeaderDoesNotWait]] {
        let world = World::new(Scope { deaths: 1, ..pair() }.breaking(broken));
        let found = counter_example(&world.telling(&[away_and_back(), leaderless()]));
        assert!(found.is_err(), "{broken:?}: not covered after {:?}", found.map(|f| f.steps));
    }
}
