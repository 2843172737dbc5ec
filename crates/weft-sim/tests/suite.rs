//! All tests of this crate that need nothing but its public parts: one program, built and linked once,
//! whose tests run beside each other.

mod clock;
mod evacuate;
mod file_system;
mod given_up;
mod gone;
mod handover;
mod hung;
mod interrupted;
mod loss;
mod managers;
mod mount;
mod mutations;
mod preempted;
mod scrub;
mod seeds;
mod shard;
mod slices;
mod unreadable;
