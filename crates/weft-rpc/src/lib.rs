//! Runtime: requests and answers over connections.
//!
//! It owns frames (`frame.rs`), the side that asks (`link.rs`), the side that answers (`server.rs`,
//! `service.rs`), the handshake between them, and the transports below: streams, and memory that is shared
//! with a process of the same machine (`shm`). It never looks into a message: a frame's flag says that its
//! body is blocks, each with a checksum, which may be used where they lie.

mod body;
mod call;
mod debt;
mod frame;
mod frames;
mod link;
mod protocol;
mod request_log;
mod server;
mod service;
pub mod shm;
mod stream;
mod transport;

pub use body::Body;
pub use call::{CallError, Reply};
pub use frame::{Frame, FrameError};
pub use frames::{FrameReader, FrameWriter};
pub use link::{ConnectError, Link};
pub use protocol::{protocol_newest, set_protocol_newest};
pub use request_log::{LogQuota, set_slow_request, slow_request};
pub use server::Server;
pub use service::{Answer, Greeter, Peer, Request, Service, Services};
pub use transport::Transport;
