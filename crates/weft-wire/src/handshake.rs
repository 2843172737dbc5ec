//! The first frame each way: who connects, which protocol, how much may be in flight.

use serde::{Deserialize, Serialize};
use weft_types::{FabricId, TargetId};

/// What the side that connects says first, as JSON, so that any version can read any other's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The oldest protocol that it speaks.
    pub protocol_oldest: u16,
    /// The newest protocol that it speaks.
    pub protocol_newest: u16,
    /// What it is.
    pub role: PeerRole,
    /// The fabric that it belongs to; none for a client that does not know yet.
    pub fabric: Option<FabricId>,
    /// Its name, for people and logs.
    pub name: String,
}

impl Hello {
    /// A hello from this code.
    pub fn new(role: PeerRole, fabric: Option<FabricId>, name: impl Into<String>) -> Self {
        Hello {
            protocol_oldest: crate::PROTOCOL_OLDEST,
            protocol_newest: crate::PROTOCOL,
            role,
            fabric,
            name: name.into(),
        }
    }
}

/// What a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerRole {
    /// Attaches volumes.
    Client,
    /// Serves drives.
    Target(TargetId),
    /// Owns the fabric map.
    Manager,
    /// A person's tool.
    Tool,
}

/// The answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The protocol to speak: the newest that both know.
    pub protocol: u16,
    /// The fabric that it belongs to.
    pub fabric: Option<FabricId>,
    /// Requests that may be in flight on this connection.
    pub requests_max: u32,
    /// Bytes of request bodies that may be in flight on this connection.
    pub bytes_max: u32,
    /// The name of the door by which a process of the same machine gets a connection through shared memory;
    /// none if there is no such door, or this is such a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub door: Option<String>,
}

/// The protocol to speak with a peer that speaks these, or why there is none.
///
/// # Errors
/// A text for the peer's people: what was found, what was expected, what to do.
pub fn choose_protocol(hello: &Hello) -> Result<u16, String> {
    let (oldest, newest) = (crate::PROTOCOL_OLDEST, crate::PROTOCOL);
    if hello.protocol_newest < oldest {
        return Err(format!(
            "'{}' speaks protocols up to {}, this side {oldest} to {newest}: upgrade '{}'",
            hello.name, hello.protocol_newest, hello.name
        ));
    }
    if hello.protocol_oldest > newest {
        return Err(format!(
            "'{}' speaks protocols from {}, this side {oldest} to {newest}: upgrade this side first",
            hello.name, hello.protocol_oldest
        ));
    }
    Ok(newest.min(hello.protocol_newest))
}
