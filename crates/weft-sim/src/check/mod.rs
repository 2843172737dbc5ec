//! What must hold: while a run goes on, when everything has healed, and of all that was seen.

pub mod cut;
pub mod durable;
pub mod equal;
pub mod forgotten;
pub mod lease;
pub mod limits;
pub mod linearizable;
pub mod progress;
pub mod sessions;
pub mod slices;
pub mod sound;
pub mod tables;
