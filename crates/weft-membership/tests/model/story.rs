//! Where the checker begins: every state along some stories, each told step by step by the fair schedule.
//!
//! It owns the stories. A replica that was away, came back and was promoted is some thirty steps from a fabric in
//! which nothing has happened: too far to try everything in between. From every step of the story, a few steps of
//! whatever may go wrong reach what is interesting.

use crate::calm::{Cast, round};
use crate::fabric::{Fabric, Step, World};
use crate::target::{Nodes, bit};

/// A part of a story: what happens, then some rounds in which not everyone takes part.
pub struct Part {
    steps: Vec<Step>,
    rounds: usize,
    absent: Nodes,
    has_manager: bool,
}

impl Part {
    /// Everyone takes part.
    pub fn calm(rounds: usize) -> Part {
        Part { steps: Vec::new(), rounds, absent: 0, has_manager: true }
    }

    /// These steps come first.
    pub fn after(self, steps: &[Step]) -> Part {
        Part { steps: steps.to_vec(), ..self }
    }

    /// A target does nothing meanwhile.
    pub fn without(self, target: usize) -> Part {
        Part { absent: self.absent | bit(target), ..self }
    }

    /// There is no manager meanwhile.
    pub fn leaderless(self) -> Part {
        Part { has_manager: false, ..self }
    }
}

/// All states along a story, each with the scope's whole budget of further faults.
pub fn told(world: &World, parts: &[Part]) -> Vec<Fabric> {
    let mut trusting = world.clone();
    // The story is told by the rules; what follows may break one.
    trusting.scope.broken = &[];
    let first = world.beginning();
    let mut states = vec![first.clone()];
    let mut state = first.clone();
    for part in parts {
        (state.left.crashes, state.left.deaths, state.left.breaks) = (9, 9, 9);
        (state.left.losses, state.left.drains, state.left.delays) = (9, 9, 9);
        (state.left.hangups, state.left.usurpers) = (9, 9);
        for step in &part.steps {
            state = trusting.take(&state, *step).unwrap_or_else(|| panic!("{step:?} is not possible"));
            states.push(state.clone());
        }
        let cast = Cast { absent: part.absent, has_manager: part.has_manager };
        for _ in 0..part.rounds {
            state.writers.iter_mut().for_each(|w| w.left = 1);
            round(&trusting, &mut state, cast, &mut |state| states.push(state.clone()));
        }
    }
    for state in &mut states {
        state.left = first.left;
        state.writers.iter_mut().for_each(|w| w.left = world.scope.writes);
    }
    let mut seen = std::collections::HashSet::new();
    states.retain(|state| seen.insert(crate::shared::digest(state)));
    states
}
