//! IOR: ranks write and read a file together, or a file each.

mod access;
mod conduct;
mod layout;
mod outcome;
mod page;

pub use access::Access;
pub(crate) use access::{IorOrder, carry_out};
pub(crate) use conduct::what_is_wrong_with_transfers;
pub use conduct::{IorOptions, IorPlan, ior};
pub(crate) use layout::Layout;
pub use layout::ReadOrder;
pub(crate) use outcome::time;
pub use outcome::{Checked, IorFigures, IorRow, IorSummary};
pub(crate) use page::table;
