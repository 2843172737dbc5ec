//! What faces serve: volumes under names, for any number of clients of any protocol.
//!
//! A face parses its protocol and writes its answers; what lies between is here. `exports.rs` knows the
//! volumes by name, `geometry.rs` says what requests are valid, `credits.rs` bounds what a client has in
//! flight, `drain.rs` ends clients gracefully, and [`Client::carry_out`] does the work and counts it. What
//! goes wrong is a [`Fault`], which a face maps to the numbers of its protocol in one table.
//!
//! ```no_run
//! # async fn f(volume: weft_client::Volume) -> Result<(), Box<dyn std::error::Error>> {
//! use weft_client::export::{Credits, Drain, Exports, Op};
//! let mut exports = Exports::new();
//! exports.add("data", volume)?;
//! let drain = Drain::new(128);
//! // For each connection:
//! let Some(entered) = drain.enter() else { return Ok(()) };
//! let export = exports.find("data").expect("it was added");
//! let range = export.geometry().check(0, 4096)?;
//! let client = export.client("somebody");
//! let budget = weft_rt::Budget::default();
//! let credits = Credits::new(256, 64 << 20, budget.open(|| { /* the connection ends */ }));
//! let credit = credits.take(4096).await;
//! entered.request_arrived();
//! let outcome = client.carry_out(Op::Read { range }).await;
//! // ... the answer is with the client:
//! drop(credit);
//! # Ok(()) }
//! ```

mod client;
mod credits;
mod drain;
mod exports;
mod fault;
mod geometry;
#[cfg(any(test, feature = "memory"))]
mod memory;
mod source;

pub use client::{Client, ClientLoad, Op, Outcome};
pub use credits::{Credit, Credits};
pub use drain::{Drain, Entered, STOP_MAX};
pub use exports::{Export, ExportError, Exports};
pub use fault::{Fault, FaultKind};
pub use geometry::{ByteRange, Geometry};
#[cfg(any(test, feature = "memory"))]
pub use memory::MemoryVolume;
