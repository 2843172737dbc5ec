//! The newest protocol that this process speaks.

use weft_rt::sim::{self, ProcessId};
use weft_wire::{PROTOCOL, PROTOCOL_OLDEST};

/// Under which name a simulated process keeps the newest protocol that it speaks.
const PROTOCOL_SETTING: &str = "protocol-newest";

/// The newest protocol that this process speaks: what the code has, or less under simulation
/// ([`set_protocol_newest`]).
pub fn protocol_newest() -> u16 {
    sim::setting(PROTOCOL_SETTING).map_or(PROTOCOL, |protocol| protocol as u16)
}

/// Lets a simulated process speak no newer protocol than this, as one of a former release does. Connections
/// that it has already keep theirs.
pub fn set_protocol_newest(process: ProcessId, protocol: u16) {
    assert!((PROTOCOL_OLDEST..=PROTOCOL).contains(&protocol), "protocol {protocol}");
    sim::set(process, PROTOCOL_SETTING, u64::from(protocol));
}
