//! IO500: the phases of that benchmark in their order, from what IOR and mdtest have here, and its score.
//!
//! The rules are those of io500.org. What comes of it is no score of the IO500 list, and says so.

mod conduct;
mod find;
mod limits;
mod orders;
mod outcome;
mod page;
mod phase;
mod score;

pub use conduct::{Io500Options, Io500Plan, io500};
pub(crate) use find::{FindOrder, carry_out};
pub use limits::Io500Limits;
pub use outcome::{Io500Figures, Io500Find, Io500Result, Io500Row};
pub use phase::{Io500Phase, Measure};
pub use score::Io500Score;
