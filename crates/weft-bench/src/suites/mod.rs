//! The suites of the field of parallel file systems, on any folder: [`ior()`](fn@ior::ior) moves data,
//! [`mdtest()`](fn@mdtest::mdtest) makes and removes names, and [`io500()`](fn@io500::io500) does both, in
//! the phases of IO500.
//!
//! A *conductor* orders phases, and *ranks* carry them out: processes of this program, which it starts
//! here, or which `mpirun` or `srun` has started on many machines. Between phases all ranks wait for each
//! other. No MPI library is used: a launcher's ranks find rank 0 by a file in the tested folder.

mod content;
mod facts;
mod interrupt;
pub(crate) mod io500;
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
mod stonewall;

pub use launch::Launched;
pub use rank::{follow, serve_as_rank};
pub use ranks::RanksOptions;
pub use space::TestedFolder;
pub use spread::Spread;

use crate::BenchError;
use std::io;
use std::path::Path;

/// The error of an action on a path that the operating system refuses.
fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BenchError + 'a {
    move |source| BenchError::File { action, path: path.to_owned(), source }
}
