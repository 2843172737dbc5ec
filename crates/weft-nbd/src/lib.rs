//! Face: volumes as exports of the NBD protocol (fixed newstyle, structured replies, `base:allocation`).
//!
//! Attach volumes, name them in [`Exports`](weft_client::export::Exports), and let an [`NbdServer`] serve
//! them on any number of listeners:
//!
//! ```no_run
//! # async fn f(volume: weft_client::Volume) -> Result<(), Box<dyn std::error::Error>> {
//! use weft_client::export::Exports;
//! use weft_nbd::NbdServer;
//! let mut exports = Exports::new();
//! exports.add("data", volume)?;
//! let server = NbdServer::new(exports);
//! let listener = weft_rt::Listener::bind(&"127.0.0.1:10809".parse()?)?;
//! server.run(listener).await;
//! # Ok(()) }
//! ```
//!
//! The way of a request: `server.rs` takes the connection, `negotiate.rs` agrees with the client on an
//! export, `transmit.rs` reads requests, has `request.rs` parse each fully, has `weft_client::export` carry
//! it out, and sends the reply through `connection.rs`. With several lanes, `lane.rs` says which thread
//! goes on after the handshake. `protocol.rs` has the specification's numbers and
//! messages; comments cite its sections (`doc/proto.md` of the NBD project) by name.
//!
//! A write is acknowledged when it is durable on every in-sync replica and visible to every connection, so
//! flush and FUA cost nothing and many connections to one export are safe. This crate never attaches or
//! detaches a volume, never caches data, and has no encryption or access control of its own: listen on a
//! Unix socket or on a network that is trusted.

/// Whether this program was built with the doors that fuzzing goes through.
pub const HAS_FUZZING_DOORS: bool = cfg!(feature = "fuzzing");

mod connection;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod lane;
mod negotiate;
pub mod protocol;
mod request;
mod server;
#[cfg(test)]
mod talk;
mod transmit;

pub use lane::{LaneConnections, LaneDoor, LaneSeat, lane};
pub use server::NbdServer;
