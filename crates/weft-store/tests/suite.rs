//! All tests of this crate that need nothing but its public parts: one program, built and linked once,
//! whose tests run beside each other.

mod basic;
mod convert;
mod crash;
mod cuts;
mod device;
mod floor;
mod fuzz;
mod golden;
mod image;
mod images;
mod ledger;
mod listing;
mod matrix;
mod model;
mod owner;
mod property;
