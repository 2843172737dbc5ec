//! What the checker explores and what it judges: the steps that are possible in a state, and the properties.
//!
//! It owns the properties. It never changes a state.

use crate::calm::settles;
use crate::fabric::{Fabric, Step, World};
use crate::scope::Broken;
use crate::shared::digest;
use crate::target::{Medium, Target};
use stateright::{Model, Property};
use weft_types::{DriveState, Group, Role};

/// One state in so many is followed through a calm until everything has settled.
const SETTLED_PER: u64 = 64;

/// No read is answered with less than what was acknowledged.
pub const NO_STALE_READ: &str = "no replica serves reads that the group has gone on from";
/// No member of the read set lacks an acknowledged write.
pub const NO_LOST_WRITE: &str = "no in-sync member lacks an acknowledged write";
/// Writes are acknowledged in one epoch at a time.
pub const ONE_EPOCH: &str = "no write can be acknowledged in an epoch that the group has gone on from";
/// Every map and every step between two maps is sound.
pub const SOUND_MAPS: &str = "every map has a last member, and follows from the one before";
/// After faults stop, everything comes back.
pub const SETTLES: &str = "in a calm, all members that are there become in-sync";

impl Model for World {
    type State = Fabric;
    type Action = Step;

    fn init_states(&self) -> Vec<Fabric> {
        self.starts.clone()
    }

    fn actions(&self, state: &Fabric, steps: &mut Vec<Step>) {
        // Nothing is explored behind a fault of the maps.
        if state.fault.is_some() {
            return;
        }
        self.steps_of_managers(state, steps);
        for target in 0..state.targets.len() {
            self.steps_of_target(state, target, steps);
        }
        for group in 0..self.groups.len() {
            self.steps_of_group(state, group, steps);
        }
        steps.push(Step::Tick);
    }

    fn next_state(&self, last: &Fabric, step: Step) -> Option<Fabric> {
        self.take(last, step)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(NO_STALE_READ, World::reads_are_current),
            Property::always(NO_LOST_WRITE, World::in_sync_members_are),
            Property::always(ONE_EPOCH, World::one_epoch_is_active),
            Property::always(SOUND_MAPS, |_, state: &Fabric| state.fault.is_none()),
            Property::always(SETTLES, |world: &World, state: &Fabric| {
                world.does_not_settle()
                    || !digest(state).is_multiple_of(SETTLED_PER)
                    || settles(world, state).is_ok()
            }),
        ];
        if self.scope.broken.is_empty() {
            properties.extend(self.milestones());
        }
        properties
    }
}

// Steps.
impl World {
    /// With a rule of safety broken, what a calm leads to says nothing.
    fn does_not_settle(&self) -> bool {
        self.scope.broken.iter().any(|b| *b != Broken::ReturnUnnoticed)
    }

    fn steps_of_managers(&self, state: &Fabric, steps: &mut Vec<Step>) {
        for (manager, process) in state.managers.iter().enumerate() {
            let Some(process) = process else {
                steps.push(Step::Lead { manager });
                continue;
            };
            steps.push(Step::Commit { manager });
            if state.left.deaths > 0 {
                steps.push(Step::Die { manager });
            }
            if state.left.accepts > 0 {
                steps.push(Step::AcceptLoss { manager });
            }
            for target in 0..state.targets.len() {
                let drive = process.map.drives.get(&Target::drive(target));
                if drive.is_some_and(|d| d.state == DriveState::Failed) {
                    steps.push(Step::Restore { target, manager });
                }
                if state.left.usurpers > 0 {
                    steps.push(Step::Usurp { target, manager });
                }
                if process.is_usurped(target) {
                    steps.push(Step::UsurperRenews { target, manager });
                }
                steps.push(Step::Suspect { target, manager });
                steps.push(Step::PushMap { target, manager });
                for victim in (0..state.targets.len()).filter(|v| process.wants_promise(target, *v)) {
                    steps.push(Step::Promise { target, victim, manager });
                }
                if state.left.drains > 0 {
                    steps.push(Step::Drain { target, manager });
                }
            }
        }
    }

    fn steps_of_target(&self, state: &Fabric, target: usize, steps: &mut Vec<Step>) {
        let node = &state.targets[target];
        let left = &state.left;
        if node.report.is_some() {
            steps.push(Step::ReportArrives { target });
        }
        if left.losses > 0 {
            steps.push(Step::Lose { target });
        }
        if !node.up {
            steps.push(Step::Start { target });
            return;
        }
        if left.crashes > 0 {
            steps.push(Step::Crash { target });
        }
        if left.breaks > 0 {
            steps.push(Step::Break { target });
        }
        match node.link {
            Some(_) => {
                steps.push(Step::Renew { target });
                steps.push(Step::FetchMap { target });
                if left.delays > 0 {
                    steps.push(Step::RenewLate { target });
                }
                if left.hangups > 0 {
                    steps.push(Step::HangUp { target });
                }
            }
            None => {
                for manager in 0..state.managers.len() {
                    steps.push(Step::Join { target, manager });
                    if left.hangups > 0 {
                        steps.push(Step::JoinInVain { target, manager });
                    }
                }
            }
        }
        if node.answer.is_some() {
            steps.push(Step::Receive { target });
        }
        if node.medium != Medium::Sound {
            steps.push(Step::Report { target });
        }
        for peer in (0..state.targets.len()).filter(|p| *p != target) {
            steps.push(Step::Vouch { target, peer });
        }
    }

    fn steps_of_group(&self, state: &Fabric, group: usize, steps: &mut Vec<Step>) {
        steps.push(Step::Refresh { group });
        for target in 0..state.targets.len() {
            steps.push(Step::Write { group, target });
            if state.targets[target].members[group].syncing(target).is_none() {
                continue;
            }
            steps.push(Step::Verified { group, target });
            for source in (0..state.targets.len()).filter(|s| *s != target) {
                steps.push(Step::Teach { group, target, source });
                steps.push(Step::Copy { group, target, source });
            }
        }
    }
}

// Properties.
impl World {
    /// A block is current if it is what was acknowledged last, or what is being written.
    fn is_current(state: &Fabric, at: usize, node: usize) -> bool {
        let (writer, value) = (&state.writers[at], state.targets[node].members[at].value);
        value == writer.acked || value == writer.next
    }

    fn reads_are_current(&self, state: &Fabric) -> bool {
        (0..self.groups.len()).all(|at| {
            (0..state.targets.len()).all(|n| {
                !state.targets[n].serves_reads(n, at, &self.scope) || World::is_current(state, at, n)
            })
        })
    }

    fn in_sync_members_are(&self, state: &Fabric) -> bool {
        self.groups.iter().enumerate().all(|(at, id)| {
            let members = state.store.groups[id].read_set().map(Target::index);
            { members }
                .filter(|n| state.targets[*n].medium != Medium::Lost)
                .all(|n| World::is_current(state, at, n))
        })
    }

    /// Every older entry has a member that does not admit it any more, so no write by it is acknowledged.
    fn one_epoch_is_active(&self, state: &Fabric) -> bool {
        state.writers.iter().enumerate().all(|(at, writer)| {
            let is_active = |entry: &Group| {
                let mut members = entry.write_set().map(Target::index);
                members.all(|n| state.targets[n].admits(n, at, entry, &self.scope))
            };
            let older = writer.entries.iter().filter(|e| e.epoch < writer.acked_in);
            !{ older }.any(|e| is_active(e))
        })
    }

    /// What must be reached, or the checker does not get anywhere.
    fn milestones(&self) -> Vec<Property<World>> {
        let scope = &self.scope;
        let mut milestones = vec![
            Property::sometimes("a write is acknowledged", |_, s: &Fabric| {
                s.writers.iter().any(|w| w.acked > 0)
            }),
            Property::sometimes("a member is evicted", |_, s: &Fabric| s.seen.evicted),
        ];
        if scope.epochs > 3 {
            milestones.push(Property::sometimes("a replica comes back and is promoted", |_, s: &Fabric| {
                s.seen.promoted
            }));
        }
        if scope.deaths > 0 {
            milestones.push(Property::sometimes(
                "a target serves by the word of its peers while there is no manager",
                |world: &World, s: &Fabric| {
                    let no_manager = s.managers.iter().all(Option::is_none);
                    let serves =
                        |n: usize| s.targets[n].lease == 0 && s.targets[n].serves_reads(n, 0, &world.scope);
                    no_manager && (0..s.targets.len()).any(serves)
                },
            ));
        }
        if scope.accepts > 0 {
            milestones.push(Property::sometimes("a loss is accepted", |_, s: &Fabric| s.seen.loss_accepted));
        }
        if scope.drains > 0 {
            milestones.push(Property::sometimes("a drive is emptied", |_, s: &Fabric| s.seen.relocated));
        }
        if scope.rebuilds {
            milestones
                .push(Property::sometimes("a copy is rebuilt elsewhere", |_, s: &Fabric| s.seen.rebuilt));
        }
        milestones
    }
}

/// Whether all members of all groups that are there are in-sync.
pub fn is_whole(world: &World, state: &Fabric) -> Result<(), String> {
    for id in &world.groups {
        for slot in &state.store.groups[id].slots {
            let node = Target::index(slot.drive);
            if slot.role != Role::InSync && state.targets[node].medium != Medium::Lost {
                return Err(format!("drive {} is {} in {id}", slot.drive, slot.role));
            }
        }
    }
    Ok(())
}
