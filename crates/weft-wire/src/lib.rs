//! Words: the messages between clients, targets and managers, and their bytes.
//!
//! A message travels as a frame (`frame.rs`): an envelope, a typed head, and a body of whole blocks or a
//! document. Requests on the data path have a fixed binary head (`data.rs`); what is rare (membership,
//! sessions, status) is JSON (`control.rs`), so that it can grow without breaking peers; the renewal of a
//! lease is not rare, and fixed (`renewal.rs`). This crate does no I/O; every decoder takes hostile bytes and
//! answers with a typed error.

pub mod backup;
mod codec;
pub mod collected;
pub mod control;
mod crc;
pub mod data;
pub mod files;
pub mod frame;
pub mod handshake;
mod lines;
pub mod listing;
pub mod load;
pub mod map_part;
pub mod newest;
pub mod pieces;
pub mod renewal;
mod status;

pub use codec::{DecodeError, Decoder, Encoder};
pub use crc::{crc32c, crc32c_of_all};
pub use status::Status;

/// The newest version of the protocol that this code speaks. What each has is in `docs/format/wire.md`.
pub const PROTOCOL: u16 = 3;

/// The oldest version of the protocol that this code still speaks.
pub const PROTOCOL_OLDEST: u16 = 1;

/// What a frame's head means. Numbers are stable: they are the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Kind {
    /// First frame from the side that connected.
    Hello = 1,
    /// The answer to a hello.
    Welcome = 2,
    /// Read data and versions of a run of blocks.
    Read = 16,
    /// Read versions only.
    Versions = 17,
    /// Write data to a run of blocks.
    Write = 18,
    /// Make a run of blocks read as zeroes.
    WriteZeroes = 19,
    /// A version of a run of blocks is on the whole write set (R8). One-way from a reader: it may be lost.
    /// With version 0 it settles nothing, and its sender relies on the empty answer: the request was
    /// admitted at its epoch, so the target refuses whatever an older epoch still has on the way.
    Settle = 20,
    /// A session's watermarks for some groups, when there was nothing else to send them with.
    Watermark = 21,
    /// A group's entry of the map, for a target that has an older one.
    AdoptEntry = 22,
    /// Which objects of a group hold data: `listing.rs`.
    List = 23,
    /// A peer asks to be vouched for while the manager is silent.
    Vouch = 32,
    /// Digests of a group's chunks, in key order. The body holds the marks (`control::Marks`, JSON) of the
    /// range that the answer covers, taken after the digests (R14).
    Digests = 33,
    /// Open entries, settled marks and watermarks of a group.
    Marks = 34,
    /// All entries of one chunk, with data, for verification. The answer is that of a read of the whole
    /// chunk; its body ends with the chunk's marks (`control::Marks`, JSON), taken after the data (R14).
    Entries = 35,
    /// Reads all data of one chunk from the drive and verifies it, for a scrub. The answer is that of
    /// `Versions`: with the checksums, without the data.
    Verify = 36,
    /// A client of a file system asks one of its shards: `files/addressed.rs`.
    AskShard = 40,
    /// A shard of a file system asks another one: `weft_meta::PeerRequest`.
    AskPeer = 41,
    /// Manager to target, JSON.
    Control = 48,
    /// Target or client to manager, JSON.
    Manage = 64,
    /// A target asks the manager for its lease: `renewal.rs`.
    Renew = 65,
    /// Management operation from a person's tool, JSON.
    Api = 80,
}

impl Kind {
    /// The kind with this number.
    pub fn from_u16(n: u16) -> Option<Kind> {
        use Kind::*;
        [
            Hello,
            Welcome,
            Read,
            Versions,
            Write,
            WriteZeroes,
            Settle,
            Watermark,
            AdoptEntry,
            List,
            Vouch,
            Digests,
            Marks,
            Entries,
            Verify,
            AskShard,
            AskPeer,
            Control,
            Manage,
            Renew,
            Api,
        ]
        .into_iter()
        .find(|k| *k as u16 == n)
    }
}
