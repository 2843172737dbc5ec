//! The suites of the field of parallel file systems, on any folder: [`ior()`](fn@ior::ior) moves data,
//! [`mdtest()`](fn@mdtest::mdtest) makes and removes names.
//!
//! A *conductor* orders phases, and *ranks* carry them out: processes of this program, which it starts
//! here, or which `mpirun` or `srun` has started on many machines. Between phases all ranks wait for each
//! other. No MPI library is used: a launcher's ranks find rank 0 by a file in the tested folder.

mod content;
mod interrupt;
pub(crate) mod ior;
mod launch;
pub(crate) mod mdtest;
mod meeting;
mod message;
mod mix;
mod rank;
mod ranks;
mod space;
mod spread;

pub use launch::Launched;
pub use rank::{follow, serve_as_rank};
pub use ranks::RanksOptions;
pub use space::TestedFolder;
pub use spread::Spread;
