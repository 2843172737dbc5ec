//! Random walks: long ways through the states, where trying everything is too much.
//!
//! It owns the choice of steps. The same seed gives the same walk.

use crate::fabric::{Fabric, Step, World};
use stateright::{Expectation, Model};
use std::collections::BTreeSet;

/// A generator of numbers by the linear congruence of Knuth's MMIX, its upper bits taken.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }
}

/// What a walk has met.
pub struct Met {
    pub states: usize,
    /// The milestones that were reached.
    pub reached: BTreeSet<&'static str>,
    /// The property that did not hold, and the steps that led there.
    pub fault: Option<(&'static str, Vec<Step>, Fabric)>,
}

/// Walks from one of the beginnings until a property does not hold, or for so many steps.
pub fn walk(world: &World, seed: u64, length: usize) -> Met {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let properties = world.properties();
    let starts = world.init_states();
    let mut state = starts[dice.below(starts.len())].clone();
    let (mut path, mut steps, mut reached) = (Vec::new(), Vec::new(), BTreeSet::new());
    for states in 1..=length {
        for property in &properties {
            let holds = (property.condition)(world, &state);
            match property.expectation {
                Expectation::Always if !holds => {
                    return Met { states, reached, fault: Some((property.name, path, state)) };
                }
                Expectation::Sometimes if holds => drop(reached.insert(property.name)),
                _ => {}
            }
        }
        steps.clear();
        world.actions(&state, &mut steps);
        let mut next = None;
        while next.is_none() && !steps.is_empty() {
            let step = steps.swap_remove(dice.below(steps.len()));
            next = world.next_state(&state, step);
            path.extend(next.iter().map(|_| step));
        }
        let Some(next) = next else { return Met { states, reached, fault: None } };
        state = next;
    }
    Met { states: length, reached, fault: None }
}
