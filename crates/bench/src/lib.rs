//! Face: load generator and benchmark.
//!
//! [`Load`] puts a load on a volume and notes latencies; [`figures`] is the committed benchmark: it starts a fabric
//! of its own from the weft binary, runs [`WORKLOADS`] beside a bare exchange of frames of the same sizes
//! ([`Limit`]), and reports medians of the ratios. This crate links neither target nor store nor manager: what it
//! measures is what a user's processes do.

pub mod affinity;
mod bed;
mod error;
mod figures;
mod idle;
mod limit;
mod load;
mod machine;
mod process;
mod report;
mod workload;

pub use bed::{Bed, BedOptions};
pub use error::BenchError;
pub use figures::{Figures, FiguresOptions, figures};
pub use limit::{Limit, Shape};
pub use load::{Amount, Completed, Load, LoadResult, Pattern};
pub use machine::Machine;
pub use process::{Daemon, cpu_seconds};
pub use report::{Row, RunFacts};
pub use workload::{WORKLOADS, Workload};
