//! Whole: a fabric of real processes on real files, tortured, with a record of every acknowledgement.
//!
//! `make torture MINUTES=N` runs rounds of faults on a fabric whose nodes, manager and clients have a network
//! namespace each: SIGKILL, SIGSTOP for longer than a lease, one thread of a node that stands still, cuts by
//! nftables, devices that fill up, are pulled or are cut short. Nodes have several threads, another number at
//! each start, and a device of several parts each. Clients of Weft use several threads each, and record what
//! they call and what they get ([`record`]); fio writes and verifies over NBD; programs use files through
//! several mounts, and know what they have to find ([`users`]). After every round the fabric
//! must become healthy; at the end every block of every client must have behaved like one atomic register,
//! files must be what they may be, and cold data must be what it was.

pub mod client;
pub mod dice;
pub mod fabric;
pub mod fault;
pub mod fio;
pub mod mounts;
pub mod record;
pub mod run;
pub mod stall;
pub mod tree;
pub mod users;
pub mod world;

/// What went wrong, in words for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Trouble(pub String);

impl Trouble {
    /// A trouble with something that the system refused.
    pub fn of(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Trouble {
        Trouble(format!("{what}: {error}"))
    }
}
