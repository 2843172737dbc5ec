//! All tests of this crate that need nothing but its public parts: one program, built and linked once,
//! whose tests run beside each other.

mod file_systems;
mod floors;
mod invariants;
mod properties;
mod reach;
mod room;
mod scenarios;
mod shard_servers;
mod tables;
mod volumes;
