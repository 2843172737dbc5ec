//! Whole: every decoder of the workspace under bytes that nobody meant.
//!
//! A [`Target`] is a decoder with the property that it is held to: it never panics, what it accepts reads back as it
//! was, and it takes no more memory than the bytes that are there can account for. `tests/short.rs` tries each of them
//! with a fixed number of inputs that are always the same ones; `make fuzz` drives the same targets by coverage, and
//! what it finds is kept in `corpus/`. See docs/decisions/0012-fuzzing.md.

mod cli;
mod corpus;
mod document;
mod drive;
mod files;
mod memory;
mod mutate;
mod nbd;
mod target;
mod wire;

pub use corpus::{corpus, corpus_folder};
pub use mutate::Mutator;
pub use target::{TARGETS, Target, target};
