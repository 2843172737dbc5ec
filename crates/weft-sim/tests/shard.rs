//! A metadata shard on a volume of a simulated fabric: servers follow one another, and every client knows
//! every answer (F1, F2, F3).
//!
//! `WEFT_SHARD_SEEDS=n` runs n seeds.

use weft_sim::hunt::{Scenario, run_seed};

#[test]
fn whoever_serves_a_shard_every_operation_happens_once() {
    let seeds = std::env::var("WEFT_SHARD_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    for seed in 0..seeds {
        let (ended, _) = run_seed(Scenario::Shard, &[], seed, false);
        assert_eq!(ended, Ok(()), "seed {seed}");
    }
}

#[test]
fn directories_in_several_shards_are_one_tree() {
    let seeds = std::env::var("WEFT_SHARD_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    for seed in 0..seeds {
        for scenario in [Scenario::Spread, Scenario::Moved] {
            let (ended, _) = run_seed(scenario, &[], seed, false);
            assert_eq!(ended, Ok(()), "{scenario:?}, seed {seed}");
        }
    }
}

#[test]
fn whatever_ends_a_session_nothing_of_it_happens_later() {
    let seeds = std::env::var("WEFT_SHARD_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    for seed in 0..seeds {
        let (ended, _) = run_seed(Scenario::Mounts, &[], seed, false);
        assert_eq!(ended, Ok(()), "seed {seed}");
    }
}
