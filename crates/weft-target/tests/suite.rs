//! All tests of this crate that need nothing but its public parts: one program, built and linked once,
//! whose tests run beside each other.

mod admission;
mod chaos;
mod fabric;
mod floor;
mod follow;
mod last_word;
mod lease;
mod load;
mod resync;
mod scrub;
mod sweep;
