//! What a seed decides before anything runs: the fabric, the clients, and what goes wrong when.

use crate::bed::BedShape;
use crate::check::cut::CalmCut;
use crate::clients::Habits;
use crate::dice::Dice;
use crate::faults::{Planned, Scene, draw};
use std::time::Duration;
use weft_types::Durations;
use weft_wire::files::QuotaAmount;

/// Faults per run, at least and at most, and a few beside them.
const FAULTS: (u64, u64) = (10, 16);

/// In how many runs clients are cut off from a node while nothing else is wrong: it takes as long as
/// some faults.
const CALM_CUT_ONCE_IN: u64 = 3;

/// In how many runs there is a file system beside the volumes.
const FILES_ONCE_IN: u64 = 3;

/// In how many of these several mounts change a tree.
const TREES_ONCE_IN: u64 = 2;

/// In how many runs with a file system its directories lie in several shards, and how many these are.
const SPREAD_ONCE_IN: u64 = 2;
const SPREAD_OVER: u32 = 3;

/// In how many runs with a file system one of its users has a quota.
const QUOTA_ONCE_IN: u64 = 3;

/// How many mounts these are, at least and at most.
const TREE_MOUNTS: (usize, usize) = (2, 3);

/// How much faster or slower the monotonic clock of a host runs, at most, in millionths: two such clocks
/// differ by less than the bound on drift that leases are granted with.
const DRIFT_PPM_MAX: i64 = 4_500;

/// Targets of a node, at most.
const TARGETS_MAX: usize = 3;

/// Lanes of a client, at most.
const LANES_OF_A_CLIENT: usize = 3;

/// The bound on drift that leases are granted with.
const DRIFT_PER_MILLE: u32 = 10;

const _: () = assert!(2 * DRIFT_PPM_MAX < DRIFT_PER_MILLE as i64 * 1000);

/// A run, before it runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed that it follows from.
    pub seed: u64,
    /// The fabric.
    pub shape: BedShape,
    /// How much faster than true time the clocks of nodes run, and at last the manager's, in millionths.
    pub rates: Vec<i32>,
    /// Clients of the shared volume.
    pub sharers: usize,
    /// Clients that take another volume from each other.
    pub loners: usize,
    /// Clients of a file system; none: there is no file system.
    pub filers: usize,
    /// Mounts whose users change a tree of the file system; none: there are no such users.
    pub trees: usize,
    /// Shards of the file system; with several, its directories lie in all of them.
    pub shards: u32,
    /// What a user may use of the file system, if that is limited.
    pub quota: Option<QuotaAmount>,
    /// How many lanes each of these clients has.
    pub lanes: Vec<usize>,
    /// How clients behave.
    pub habits: Habits,
    /// What goes wrong.
    pub faults: Vec<Planned>,
    /// Whom clients are cut off from when everything else has healed.
    pub calm_cut: Option<CalmCut>,
}

/// How clients behave.
fn draw_habits(dice: &mut Dice) -> Habits {
    let runs = 1 + dice.index(3);
    // Few blocks, so that clients meet; some next to a stripe unit's end, so that requests span two
    // objects.
    let hot_blocks = (0..runs).map(|i| [0, 2, 150, 515][i] + dice.below(2)).collect();
    Habits {
        hot_blocks,
        think: Duration::from_millis(dice.one_of(&[10, 40, 120])),
        depth: 1 + dice.below(2),
        patience: dice.one_of(&[Duration::from_secs(2), Duration::from_secs(3600)]),
    }
}

/// Whom clients are cut off from at the end, in some runs.
fn draw_calm_cut(dice: &mut Dice, nodes: usize) -> Option<CalmCut> {
    dice.once_in(CALM_CUT_ONCE_IN).then(|| {
        let (to, from) = dice.one_of(&[(true, true), (true, false), (false, true)]);
        CalmCut { node: dice.index(nodes), clients: 1 + dice.index(2), to, from }
    })
}

/// How many mounts change one tree.
fn draw_trees(dice: &mut Dice) -> usize {
    match dice.once_in(TREES_ONCE_IN) {
        true => TREE_MOUNTS.0 + dice.index(TREE_MOUNTS.1 - TREE_MOUNTS.0 + 1),
        false => 0,
    }
}

/// What a user may use, in some runs.
fn draw_quota(dice: &mut Dice) -> Option<QuotaAmount> {
    let bytes = |dice: &mut Dice| (16 << 10) << dice.below(8);
    dice.once_in(QUOTA_ONCE_IN).then(|| QuotaAmount { bytes: bytes(dice), inodes: 2 << dice.below(6) })
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Plan {
        let mut dice = Dice::of(seed);
        let rebuilds = dice.once_in(2);
        let mut shape = BedShape {
            nodes: 3 + dice.index(4),
            drives: 1 + dice.index(2),
            parts: 1,
            targets: 1,
            drive_bytes: 64 << 20,
            copies: 2 + dice.index(2) as u8,
            durations: Durations {
                lease_ms: 500,
                drift_per_mille: DRIFT_PER_MILLE,
                session_ms: 4_000,
                rebuild_after_ms: if rebuilds { 1_500 } else { 3_600_000 },
            },
        };
        let drifts = dice.once_in(2);
        let rate = |dice: &mut Dice| dice.below(2 * DRIFT_PPM_MAX as u64 + 1) as i32 - DRIFT_PPM_MAX as i32;
        let rates = (0..shape.nodes + 1).map(|_| if drifts { rate(&mut dice) } else { 0 }).collect();
        let sharers = 2 + dice.index(2);
        let loners = 2 * dice.index(2);
        let habits = draw_habits(&mut dice);
        let scene = Scene {
            nodes: shape.nodes,
            drives: shape.drives,
            copies: usize::from(shape.copies),
            clients: sharers + loners,
            rebuilds,
        };
        let count = FAULTS.0 + dice.below(FAULTS.1 - FAULTS.0 + 1);
        let mut faults = draw(&mut dice, count as usize, &scene);
        let calm_cut = draw_calm_cut(&mut dice, shape.nodes);
        // Drawn last: a plan of before is the same in all else.
        shape.targets = 1 + dice.index(TARGETS_MAX);
        (shape.drives, shape.parts) = dice.one_of(&[(shape.drives, 1), (2, 2), (4, 2), (4, 4)]);
        let lanes = |dice: &mut Dice, clients: usize| -> Vec<usize> {
            (0..clients).map(|_| 1 + dice.index(LANES_OF_A_CLIENT)).collect()
        };
        let mut lanes_of = lanes(&mut dice, sharers + loners);
        // One that would have shared the volume, and another one: faults strike one of them at least.
        let (sharers, filers) = if dice.once_in(FILES_ONCE_IN) { (sharers - 1, 2) } else { (sharers, 0) };
        lanes_of.extend(lanes(&mut dice, filers / 2));
        // Nodes have got other drives since the faults were drawn: each of them, and each part, is struck.
        if shape.parts > 1 {
            let struck = faults.iter_mut().filter_map(|planned| planned.fault.drive_mut());
            struck.for_each(|drive| *drive = dice.index(shape.drives));
        }
        let trees = if filers > 0 { draw_trees(&mut dice) } else { 0 };
        let shards = if filers > 0 && dice.once_in(SPREAD_ONCE_IN) { SPREAD_OVER } else { 1 };
        let quota = if filers > 0 { draw_quota(&mut dice) } else { None };
        let lanes = lanes_of;
        Plan {
            seed,
            shape,
            rates,
            sharers,
            loners,
            filers,
            trees,
            shards,
            quota,
            lanes,
            habits,
            faults,
            calm_cut,
        }
    }

    /// The same run with only these of its faults, each over so many times sooner: as in `3,7/4,9`.
    ///
    /// # Errors
    /// A text, if the list is none or names a fault that is not there.
    pub fn with_faults(mut self, list: &str) -> Result<Plan, String> {
        let mut kept = Vec::new();
        for item in list.split(',').filter(|item| !item.is_empty()) {
            let (number, by) = item.split_once('/').unwrap_or((item, "1"));
            let number: usize = number.parse().map_err(|_| format!("'{item}' is no fault's number"))?;
            let by: u32 =
                by.parse().ok().filter(|by| *by > 0).ok_or_else(|| format!("'{item}' has no divisor"))?;
            let found = self.faults.iter().find(|p| p.number == number);
            let found = found.ok_or_else(|| format!("seed {} has no fault {number}", self.seed))?;
            kept.push(Planned { fault: found.fault.shortened(by), ..found.clone() });
        }
        kept.sort_by_key(|p| (p.at, p.number));
        self.faults = kept;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_has_enough_faults() {
        assert!((0..2_000).all(|seed| Plan::of(seed).faults.len() as u64 >= FAULTS.0));
    }

    #[test]
    fn a_fault_that_is_left_out_changes_no_other() {
        let whole = Plan::of(17);
        assert!(whole.faults.len() >= 10);
        let few = Plan::of(17).with_faults("7,2/4").unwrap();
        assert_eq!(few.faults.iter().map(|p| p.number).collect::<Vec<_>>(), [2, 7]);
        assert_eq!(Some(&few.faults[1]), whole.faults.iter().find(|p| p.number == 7));
        let second = whole.faults.iter().find(|p| p.number == 2).expect("it has ten");
        assert!(few.faults[0].fault.lasts() <= second.fault.lasts());
        assert!(Plan::of(17).with_faults("99").is_err() && Plan::of(17).with_faults("1/0").is_err());
        assert!(Plan::of(17).with_faults("").unwrap().faults.is_empty());
    }
}
