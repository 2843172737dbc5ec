//! The short run: every target on its corpus, and on a fixed number of inputs that are made of it, always the same ones.
//!
//! `WEFT_FUZZ_FACTOR=n` tries n times as many.

use std::panic::{AssertUnwindSafe, catch_unwind};
use weft_fuzz::{Mutator, TARGETS, Target, corpus, corpus_folder};

/// Bytes of an input that a failure shows.
const SHOWN_MAX: usize = 4096;

/// Tries an input, and says which it was if it fails.
fn try_one(target: &Target, name: &str, input: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| target.run(input))).is_err() {
        let shown: String = input.iter().take(SHOWN_MAX).map(|b| format!("{b:02x}")).collect();
        panic!("{} does not stand {name}, {} bytes: {shown}", target.name, input.len());
    }
}

/// Tries the corpus of a target, and what is made of it.
fn run(target: &Target) {
    let factor: usize = std::env::var("WEFT_FUZZ_FACTOR").map_or(1, |f| f.parse().expect("a number"));
    let corpus = corpus(target);
    for (name, input) in &corpus {
        try_one(target, name, input);
    }
    let mut mutator = Mutator::named(target.name);
    let from: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
    for i in 0..target.tries * factor {
        try_one(target, &format!("input {i} of the short run"), &mutator.input(&from));
    }
}

/// Targets in parts, so that the parts run at the same time.
fn run_part(part: usize) {
    TARGETS.iter().skip(part).step_by(4).for_each(run);
}

#[test]
fn decoders_stand_what_nobody_meant_part_1() {
    run_part(0);
}

#[test]
fn decoders_stand_what_nobody_meant_part_2() {
    run_part(1);
}

#[test]
fn decoders_stand_what_nobody_meant_part_3() {
    run_part(2);
}

#[test]
fn decoders_stand_what_nobody_meant_part_4() {
    run_part(3);
}

#[test]
fn the_corpus_is_small_and_each_of_its_folders_has_a_target() {
    let mut bytes = 0;
    for folder in std::fs::read_dir(corpus_folder()).expect("there is a corpus") {
        let name = folder.expect("the corpus can be listed").file_name();
        let target = weft_fuzz::target(&name.to_string_lossy()).expect("a folder is named for a target");
        bytes += corpus(target).iter().map(|(_, input)| input.len()).sum::<usize>();
    }
    assert!(bytes < 200 << 10, "the corpus has {bytes} bytes");
}

#[test]
fn every_target_has_a_name_of_its_own_and_a_seed() {
    for target in TARGETS {
        assert_eq!(TARGETS.iter().filter(|t| t.name == target.name).count(), 1, "{}", target.name);
        assert!(!(target.seeds)().is_empty(), "{}", target.name);
    }
}
