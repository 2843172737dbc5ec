//! All tests of this crate that need nothing but its public parts: one program, built and linked once,
//! whose tests run beside each other.

mod backup;
mod devices;
mod file_systems;
mod floor;
mod fold;
mod follow;
mod harness;
mod images;
mod lanes;
mod lease;
mod reach;
mod real;
mod recover;
mod repair;
mod session;
mod stale;
mod stop;
mod targets;
mod trouble;
mod volume;
