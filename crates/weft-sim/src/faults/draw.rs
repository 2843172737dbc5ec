//! Which faults a run has: drawn from its seed, each kind within its budget.

use super::{Fault, Planned, Who};
use crate::bed::manager_host;
use crate::clients::client_host;
use crate::dice::Dice;
use std::net::IpAddr;
use std::time::Duration;
use weft_rt::sim::Crash;

/// What there is that can go wrong.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Nodes.
    pub nodes: usize,
    /// Drives on each.
    pub drives: usize,
    /// Copies of each block.
    pub copies: usize,
    /// Clients.
    pub clients: usize,
    /// Whether the fabric replaces a copy that stays away, before the run is over.
    pub rebuilds: bool,
}

/// A kind of fault.
pub struct Kind {
    /// Its name in tables; some are told apart further when they strike.
    pub name: &'static str,
    /// What happens.
    pub says: &'static str,
    /// How often it may be in one run.
    pub budget: usize,
    /// How often it is drawn, beside the others.
    weight: u64,
    draw: fn(&mut Dice, &Scene) -> Option<Fault>,
}

/// Kinds that a run has most of its faults of. A budget keeps a run from being nothing but one kind; those of what destroys data are small, because the
/// fabric must have had time to make up for one before the next.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "crash",
        says: "a node's process dies wherever its tasks are, and starts again as another incarnation",
        budget: 6,
        weight: 5,
        draw: |dice, scene| {
            Some(Fault::Crash { node: dice.index(scene.nodes), crash: Crash::Process, away: away(dice) })
        },
    },
    Kind {
        name: "power-cut",
        says: "a node loses power: each write that was not flushed is kept, lost or torn, in any order",
        budget: 6,
        weight: 5,
        draw: |dice, scene| {
            Some(Fault::Crash { node: dice.index(scene.nodes), crash: Crash::PowerCut, away: away(dice) })
        },
    },
    Kind {
        name: "blackout",
        says: "all nodes and the manager lose power at once, and come back one after another",
        budget: 1,
        weight: 1,
        draw: |dice, scene| {
            let nodes = (0..scene.nodes).map(|_| away(dice)).collect();
            Some(Fault::Blackout { manager: away(dice), nodes })
        },
    },
    Kind {
        name: "manager-crash",
        says: "the manager dies in the middle of whatever it does, and another one starts on its store",
        budget: 3,
        weight: 3,
        draw: |dice, _| Some(Fault::Manager { away: dice.ms_log(1, 4_000) }),
    },
    Kind {
        name: "second-manager",
        says: "another manager starts on the same store while the first one still runs",
        budget: 2,
        weight: 1,
        draw: |_, _| Some(Fault::SecondManager {}),
    },
    Kind {
        name: "partition",
        says: "two hosts do not hear each other, or one of them does not hear the other",
        budget: 4,
        weight: 4,
        draw: |dice, scene| {
            let (from, to) = two_hosts(dice, scene)?;
            Some(Fault::Partition { from, to, both: dice.once_in(2), lasts: dice.ms_log(10, 6_000) })
        },
    },
    Kind {
        name: "flapping",
        says: "the way between two hosts is cut and mended again and again",
        budget: 2,
        weight: 2,
        draw: |dice, scene| {
            let (from, to) = two_hosts(dice, scene)?;
            let (period, times) = (dice.ms_log(5, 700), 2 + dice.below(5) as u32);
            Some(Fault::Flap { from, to, both: dice.once_in(2), period, times })
        },
    },
    Kind {
        name: "reset",
        says: "connections are cut with requests in flight, and made anew",
        budget: 6,
        weight: 4,
        draw: |dice, scene| two_hosts(dice, scene).map(|(a, b)| Fault::Reset { a, b }),
    },
    Kind {
        name: "delay",
        says: "everything on the network is late, up to many leases",
        budget: 2,
        weight: 2,
        draw: |dice, _| Some(Fault::Delay { latency: dice.ms_log(1, 3_000), lasts: dice.ms_log(10, 1_500) }),
    },
    Kind {
        name: "node-stall",
        says: "a node stands still for up to many leases, and then goes on as if nothing had been",
        budget: 3,
        weight: 3,
        draw: |dice, scene| {
            Some(Fault::Stall { who: Who::Node(dice.index(scene.nodes)), lasts: dice.ms_log(20, 4_000) })
        },
    },
    Kind {
        name: "manager-stall",
        says: "the manager stands still, often for longer than a session lives: targets serve by their \
               peers' word, or not at all",
        budget: 2,
        weight: 2,
        draw: |dice, _| Some(Fault::Stall { who: Who::Manager, lasts: dice.ms_log(20, 12_000) }),
    },
    Kind {
        name: "client-stall",
        says: "a client stands still, often for longer than every lease and than its session lives",
        budget: 2,
        weight: 2,
        draw: |dice, scene| {
            Some(Fault::Stall { who: Who::Client(dice.index(scene.clients)), lasts: dice.ms(100, 9_000) })
        },
    },
    Kind {
        name: "client-death",
        says: "a client dies with writes in flight, and never comes back",
        budget: 3,
        weight: 1,
        draw: |dice, scene| {
            (scene.clients > 1).then(|| Fault::Client { client: 1 + dice.index(scene.clients - 1) })
        },
    },
    Kind {
        name: "clock-step",
        says: "the wall clock of a node, of the manager or of a client jumps by up to a day",
        budget: 2,
        weight: 2,
        draw: |dice, scene| {
            let host = match dice.below(3) {
                0 => manager_host(),
                1 => client_host(dice.index(scene.clients)),
                _ => node_host(dice.index(scene.nodes)),
            };
            let size_us = dice.one_of(&[1_000, 1_000_000, 60_000_000, 3_000_000_000, 86_400_000_000]);
            Some(Fault::ClockStep { host, skew_us: if dice.once_in(3) { size_us } else { -size_us } })
        },
    },
    Kind {
        name: "slow-drive",
        says: "a drive takes up to two seconds over everything",
        budget: 3,
        weight: 3,
        draw: |dice, scene| {
            let (node, drive) = a_drive(dice, scene);
            Some(Fault::SlowDrive {
                node,
                drive,
                latency: dice.ms_log(1, 2_000),
                lasts: dice.ms_log(50, 4_000),
            })
        },
    },
    Kind {
        name: "stuck-drive",
        says: "a drive completes nothing for a while",
        budget: 2,
        weight: 2,
        draw: |dice, scene| {
            let (node, drive) = a_drive(dice, scene);
            Some(Fault::StuckDrive { node, drive, lasts: dice.ms_log(50, 4_000) })
        },
    },
    Kind {
        name: "drive-error",
        says: "a drive refuses writes and flushes until somebody restores it",
        budget: 1,
        weight: 1,
        draw: |dice, scene| {
            let (node, drive) = a_drive(dice, scene);
            Some(Fault::DriveError { node, drive, lasts: dice.ms_log(100, 4_000) })
        },
    },
    Kind {
        name: "unreadable",
        says: "a block of data on one drive cannot be read any more",
        budget: 2,
        weight: 2,
        draw: |dice, scene| {
            let (node, drive) = a_drive(dice, scene);
            Some(Fault::Unreadable { node, drive, scrub_after: dice.ms_log(10, 2_000) })
        },
    },
    Kind {
        name: "rot",
        says: "a bit flips in a block of data on one drive",
        budget: 2,
        weight: 2,
        draw: |dice, scene| {
            let (node, drive) = a_drive(dice, scene);
            Some(Fault::Rot { node, drive, scrub_after: dice.ms_log(10, 2_000) })
        },
    },
    Kind {
        name: "rot-in-metadata",
        says: "a bit flips in a map page, a bitmap, the zone table or a label, and the node loses power",
        budget: 1,
        weight: 1,
        draw: |dice, scene| {
            let (node, drive) = a_drive(dice, scene);
            Some(Fault::RotInMetadata { node, drive, pick: dice.below(1 << 32), away: away(dice) })
        },
    },
    Kind {
        name: "replace",
        says: "a drive is pulled and destroyed, and an empty one takes its place",
        budget: 1,
        weight: 1,
        draw: |dice, scene| {
            let (node, drive) = a_drive(dice, scene);
            Some(Fault::Replace { node, drive, away: away(dice) })
        },
    },
    Kind {
        name: "loss",
        says: "a node is gone for good with its drives, and the others make up for it",
        budget: 1,
        weight: 1,
        draw: |dice, scene| {
            let can_rebuild = scene.rebuilds && scene.nodes > scene.copies;
            can_rebuild.then(|| Fault::Loss { node: dice.index(scene.nodes) })
        },
    },
    Kind {
        name: "evacuate",
        says: "a drive is to be emptied, and perhaps wanted again on the way",
        budget: 2,
        weight: 2,
        draw: |dice, scene| {
            let (node, drive) = a_drive(dice, scene);
            let cancel_after = dice.once_in(2).then(|| dice.ms_log(1, 3_000));
            Some(Fault::Evacuate { node, drive, cancel_after })
        },
    },
    Kind {
        name: "full",
        says: "no drive has room, until somebody discards a volume that fills them",
        budget: 1,
        weight: 0,
        draw: |dice, _| Some(Fault::Full { lasts: dice.ms(200, 3_000) }),
    },
];

/// Kinds of which a run has a few faults beside the others. They are drawn when all others are, so that the others of a seed
/// are what they were, and have the same numbers: a kind that is new belongs here.
pub const KINDS_BESIDE: &[Kind] = &[
    Kind {
        name: "stop",
        says: "a node is stopped in order, which may take too long for whoever waits for it, and starts again",
        budget: 3,
        weight: 3,
        draw: |dice, scene| {
            // A stop takes a millisecond while nothing else is wrong.
            let patience = if dice.once_in(3) { dice.ms(0, 2) } else { dice.ms(500, 3_000) };
            Some(Fault::Stop { node: dice.index(scene.nodes), patience, away: away(dice) })
        },
    },
    Kind {
        name: "missing-drive",
        says: "a node starts without one of its drives, and gets it back at a later start with what it held",
        budget: 2,
        weight: 2,
        draw: |dice, scene| {
            let (node, drive) = a_drive(dice, scene);
            let (in_order, lasts) = (dice.once_in(2), dice.ms_log(20, 4_000));
            Some(Fault::MissingDrive { node, drive, in_order, away: dice.ms_log(1, 1_000), lasts })
        },
    },
    Kind {
        name: "client-cut",
        says: "a client and a node do not hear each other, one way or both, for many leases",
        budget: 2,
        weight: 2,
        draw: |dice, scene| {
            let (client, node) = (client_host(dice.index(scene.clients)), node_host(dice.index(scene.nodes)));
            let (to, from) = dice.one_of(&[(true, true), (true, false), (false, true)]);
            Some(Fault::ClientCut { client, node, to, from, lasts: dice.ms_log(300, 10_000) })
        },
    },
    Kind {
        name: "pulled-drive",
        says: "a drive is pulled out of a node that runs, and put back with what it held",
        budget: 2,
        weight: 2,
        draw: |dice, scene| {
            let (node, drive) = a_drive(dice, scene);
            Some(Fault::PulledDrive { node, drive, lasts: dice.ms_log(10, 4_000) })
        },
    },
    Kind {
        name: "hung-drive",
        says: "a drive completes nothing for so long that it counts as failed, and then everything",
        budget: 1,
        weight: 1,
        draw: |dice, scene| {
            let (node, drive) = a_drive(dice, scene);
            Some(Fault::HungDrive { node, drive, lasts: dice.ms(11_000, 16_000) })
        },
    },
    Kind {
        name: "slow-store",
        says: "the manager's store takes up to two seconds over everything, and where managers share it \
               some transactions get no answer: they are lost, or carried out later",
        budget: 2,
        weight: 2,
        draw: |dice, _| {
            let (latency, late) = (dice.ms_log(5, 2_000), dice.ms_log(1, 4_000));
            let unanswered_per_mille = if dice.once_in(2) { dice.below(300) } else { 0 };
            let lasts = dice.ms_log(100, 6_000);
            Some(Fault::SlowStore { latency, unanswered_per_mille, late, lasts })
        },
    },
];

/// How many faults of those kinds a run has, at least and at most.
const BESIDE: (u64, u64) = (1, 4);

/// In how many runs drives are filled: it takes as long as many other faults.
const FULL_ONCE_IN: u64 = 16;

/// How many drives are filled at most.
const FULL_DRIVES_MAX: usize = 4;

/// So many faults for a scene, and a few beside them, in the order in which they strike.
pub fn draw(dice: &mut Dice, count: usize, scene: &Scene) -> Vec<Planned> {
    let mut planned = draw_most(dice, count, scene);
    draw_beside(dice, scene, &mut planned);
    planned.sort_by_key(|p| p.at);
    planned
}

fn draw_most(dice: &mut Dice, count: usize, scene: &Scene) -> Vec<Planned> {
    let total: u64 = KINDS.iter().map(|k| k.weight).sum();
    let mut left: Vec<usize> = KINDS.iter().map(|k| k.budget).collect();
    let (mut planned, mut at) = (Vec::new(), Duration::ZERO);
    let may_fill = scene.nodes * scene.drives <= FULL_DRIVES_MAX;
    let full_at = (dice.once_in(FULL_ONCE_IN) && may_fill).then(|| dice.index(count.max(1)));
    while planned.len() < count {
        let is_full = full_at == Some(planned.len());
        let ticket = dice.below(total);
        let which = match is_full {
            true => KINDS.iter().position(|k| k.name == "full").expect("it is one of them"),
            false => kind_with(KINDS, ticket),
        };
        if left[which] == 0 {
            continue;
        }
        let Some(fault) = (KINDS[which].draw)(dice, scene) else { continue };
        left[which] -= 1;
        // Often one fault upon another, sometimes time to recover between.
        at += if dice.once_in(4) { dice.ms(500, 3_000) } else { dice.ms(0, 500) };
        planned.push(Planned { number: planned.len() + 1, at, fault });
    }
    planned
}

/// Adds a few faults while the others strike, with the numbers that follow on theirs.
fn draw_beside(dice: &mut Dice, scene: &Scene, planned: &mut Vec<Planned>) {
    let total: u64 = KINDS_BESIDE.iter().map(|k| k.weight).sum();
    let mut left: Vec<usize> = KINDS_BESIDE.iter().map(|k| k.budget).collect();
    let last = planned.last().map_or(Duration::ZERO, |p| p.at);
    let end = planned.len() + (BESIDE.0 + dice.below(BESIDE.1 - BESIDE.0 + 1)) as usize;
    while planned.len() < end {
        let which = kind_with(KINDS_BESIDE, dice.below(total));
        if left[which] == 0 {
            continue;
        }
        let Some(fault) = (KINDS_BESIDE[which].draw)(dice, scene) else { continue };
        left[which] -= 1;
        planned.push(Planned { number: planned.len() + 1, at: dice.ms(0, last.as_millis() as u64), fault });
    }
}

/// The kind with this ticket, of which each has as many as its weight.
fn kind_with(kinds: &[Kind], mut ticket: u64) -> usize {
    let has_it = |kind: &Kind| {
        let has_it = ticket < kind.weight;
        ticket = ticket.saturating_sub(kind.weight);
        has_it
    };
    kinds.iter().position(has_it).expect("a ticket is below the sum of the weights")
}

fn away(dice: &mut Dice) -> Duration {
    dice.ms_log(1, 5_000)
}

fn a_drive(dice: &mut Dice, scene: &Scene) -> (usize, usize) {
    (dice.index(scene.nodes), dice.index(scene.drives))
}

fn node_host(node: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, 1 + node as u8])
}

/// A node, and the manager, a client or another node.
fn two_hosts(dice: &mut Dice, scene: &Scene) -> Option<(IpAddr, IpAddr)> {
    let node = dice.index(scene.nodes);
    let other = match dice.below(3) {
        0 => manager_host(),
        1 => client_host(dice.index(scene.clients)),
        _ => {
            let other = (node + 1 + dice.index(scene.nodes - 1)) % scene.nodes;
            node_host(other)
        }
    };
    let (a, b) = (node_host(node), other);
    Some(if dice.once_in(2) { (a, b) } else { (b, a) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// One in which drives are filled, and one that has too many of them for that.
    const SCENES: [Scene; 2] = [
        Scene { nodes: 4, drives: 1, copies: 2, clients: 3, rebuilds: true },
        Scene { nodes: 4, drives: 2, copies: 2, clients: 3, rebuilds: true },
    ];

    #[test]
    fn no_kind_is_drawn_more_often_than_its_budget_and_each_is_drawn() {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for seed in 0..400 {
            let mut here: BTreeMap<&str, usize> = BTreeMap::new();
            let planned = draw(&mut Dice::of(seed), 14, &SCENES[seed as usize % 2]);
            assert!(planned.is_sorted_by_key(|p| p.at));
            for p in planned {
                let name = match p.fault.name() {
                    "partition-one-way" => "partition",
                    other => other,
                };
                *here.entry(name).or_default() += 1;
            }
            for kind in KINDS.iter().chain(KINDS_BESIDE) {
                let count = here.get(kind.name).copied().unwrap_or(0);
                assert!(count <= kind.budget, "{count} of {} in seed {seed}", kind.name);
                *seen.entry(kind.name).or_default() += count;
            }
        }
        assert!(seen.values().all(|count| *count > 0), "{seen:?}");
    }
}
