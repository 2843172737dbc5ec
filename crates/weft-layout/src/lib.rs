//! Pure: addresses to objects, and objects to groups.
//!
//! This crate owns the arithmetic of striping ([`pieces`], [`address_of`]), the way from an object to its
//! group ([`group_of`], [`group_of_file`]) and the placement of groups over drives ([`place`],
//! [`replacement`]). It never does I/O, never reads a clock, draws no random number, and never changes a
//! fabric map: the same input gives the same answer on every machine.

mod affected;
mod board;
mod candidate;
mod error;
mod file;
mod loads;
mod placement;
mod span;
mod stripe;

pub use affected::{blocks_in, ranges_in};
pub use board::PARTNER_NODES;
pub use candidate::{Candidate, FailureDomain};
pub use error::LayoutError;
pub use file::{FileLayout, file_blocks_max, group_of_file};
pub use loads::Loads;
pub use placement::{GROUPS_PER_DRIVE, GROUPS_PER_PART, groups_wanted, place, replacement, usable_blocks};
pub use span::{GroupLoad, group_of, span_groups};
pub use stripe::{Piece, address_of, blocks_below, default_striping, objects_for, pieces, validate};
