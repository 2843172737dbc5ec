//! Whole: a fabric in one process, under simulation, with faults and checkers.
//!
//! One seed is one run: a fabric of 3 to 6 nodes with a manager and several clients, on the real store, target,
//! client and manager code; faults for a while; then everything heals and must converge. [`run_seed`] checks
//! that every block was one atomic register ([`History`]), that the fabric becomes whole again within a bound
//! of virtual time, and that replicas are equal then. The same seed gives the same run.

mod bed;
mod faults;
mod history;
pub mod hunt;
mod run;
pub mod workload;

pub use bed::{Bed, BedShape, manager_host};
pub use faults::{Fault, Schedule};
pub use history::{Action, Call, History, Operation, Value, Violation, is_explained, is_linearizable};
pub use run::{Failure, Outcome, replay_command, run_seed};
