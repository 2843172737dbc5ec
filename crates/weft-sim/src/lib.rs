//! Whole: a fabric in one process, under simulation, with faults and checkers.
//!
//! One seed is one run: a fabric of 3 to 6 nodes with a manager and several clients, on the real store, target,
//! client and manager code; faults for a while; then everything heals and must converge. What a seed does is a
//! [`Plan`]; [`run_plan`] runs it and checks what `check` says. The same plan gives the same run.

mod bed;
pub mod check;
mod clients;
mod code;
mod coverage;
mod dice;
pub mod faults;
mod files;
mod filler;
pub mod hunt;
mod ledger;
mod minimise;
mod mounts;
mod names;
mod plan;
mod refusals;
mod run;
mod soak;
mod tree_deeds;
mod trees;
pub mod workload;

pub use bed::{Bed, BedShape, KnowFiles, STOP_PATIENCE, manager_host, second_manager_host};
pub use clients::{Habits, Party, client_host};
pub use code::Code;
pub use coverage::Coverage;
pub use dice::Dice;
pub use faults::{Fault, Planned};
pub use ledger::{Failed, Ledger};
pub use minimise::{minimise, schedule};
pub use plan::Plan;
pub use run::{Failure, Outcome, replay_command, run_plan, run_seed};
pub use soak::{PATHS_AFTER, Soak, fresh_seed};
