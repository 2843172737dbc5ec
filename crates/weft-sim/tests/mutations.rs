//! Rules that are broken on purpose are noticed: a few quick ones on every run of the tests; `make mutations` breaks
//! every rule.

use std::collections::BTreeSet;
use weft_rules::Mutation;
use weft_sim::hunt::{HUNTS, run_seed};

#[test]
fn every_switch_is_hunted() {
    let hunted: BTreeSet<Mutation> = HUNTS.iter().flat_map(|hunt| hunt.mutations.iter().copied()).collect();
    let missing: Vec<_> = Mutation::ALL.iter().filter(|m| !hunted.contains(m)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for hunt in HUNTS.iter().filter(|hunt| hunt.is_protected()) {
        let is_found_with_what_protects = |other: &&weft_sim::hunt::Hunt| {
            !other.is_protected() && hunt.mutations.iter().all(|m| other.mutations.contains(m))
        };
        let count = HUNTS.iter().filter(is_found_with_what_protects).count();
        assert!(count > 0 || hunt.stands_alone, "{} is never found", hunt.name());
    }
}

#[test]
fn a_few_broken_rules_are_noticed() {
    for name in QUICK {
        let hunt = HUNTS.iter().find(|hunt| hunt.name() == *name).expect("it is in the table");
        let outcome = hunt.run(u64::MAX);
        assert!(outcome.is_as_expected(hunt), "{name}: {outcome:?}");
    }
}

/// The same scenarios hold while no rule is broken, and a switch of another thread breaks nothing here.
#[test]
fn unbroken_rules_hold() {
    let elsewhere = std::thread::spawn(|| {
        let hunt = HUNTS.iter().find(|hunt| hunt.name() == QUICK[0]).expect("it is in the table");
        hunt.run(u64::MAX)
    });
    for name in QUICK {
        let hunt = HUNTS.iter().find(|hunt| hunt.name() == *name).expect("it is in the table");
        for seed in 0..2 {
            let (ended, reached) = run_seed(hunt.scenario, &[], seed, false);
            assert_eq!((ended, reached), (Ok(()), false), "{name}, seed {seed}");
        }
    }
    assert!(elsewhere.join().expect("it ends").found.is_some());
}

/// Found within a second or two each.
const QUICK: &[&str] = &[
    "commit-without-flush",
    "no-lease",
    "older-write-taken",
    "room-held",
    "vouched-by-any",
    "sibling-renews",
    "part-unchecked",
    "no-answers",
    "lease-not-recalled",
    "names-kept",
];
