//! mdtest: ranks make, look at and remove files and folders in a tree.

mod conduct;
mod names;
mod outcome;
mod page;
mod tree;

pub(crate) use conduct::remove_given;
pub use conduct::{Items, MdtestOptions, MdtestPhases, MdtestPlan, mdtest};
pub use names::Operation;
pub(crate) use names::{MdtestOrder, carry_out};
pub use outcome::{MdtestFigures, MdtestResult, MdtestRow};
pub use tree::{Item, Tree};
