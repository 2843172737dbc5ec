//! Nodes: a machine joins with its first target, or is forgotten with all of its targets.
//!
//! It owns names, and what an address is. It never judges whether a node is alive.

use crate::change::take_id;
use crate::refusal::Kind;
use crate::shard_server::forget_servers;
use crate::{Reason, Refusal, validate_name};
use serde::{Deserialize, Serialize};
use weft_types::{FabricMap, NodeId, TargetId};

/// A machine joins the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinNode {
    /// Its name, unique in the fabric.
    pub name: String,
    /// Where its first target listens, as `host:port`.
    pub addr: String,
}

/// A node without drives is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveNode {
    /// The node.
    pub node: NodeId,
}

pub(crate) fn join(map: &mut FabricMap, change: &JoinNode) -> Result<Reason, Refusal> {
    let JoinNode { name, addr } = change;
    validate_name(name).map_err(|fault| Refusal::Name { kind: Kind::Node, name: name.clone(), fault })?;
    if map.node_named(name).is_some() {
        return Err(Refusal::NameTaken { kind: Kind::Node, name: name.clone() });
    }
    free_address(map, addr)?;
    let id = u32::try_from(take_id(map)).map_err(|_| Refusal::NumbersUsedUp { kind: Kind::Node })?;
    let node = NodeId(id);
    map.put_node(node, name.clone(), addr.clone());
    Ok(Reason::NodeJoined { node, name: name.clone() })
}

pub(crate) fn remove(map: &mut FabricMap, change: &RemoveNode) -> Result<Reason, Refusal> {
    let node = change.node;
    let Some(found) = map.nodes.get(&node) else {
        return Err(Refusal::Unknown { kind: Kind::Node, id: node.to_string() });
    };
    let name = found.name.clone();
    let drives = map.drives.values().filter(|d| d.node == node).count();
    if drives > 0 {
        return Err(Refusal::NodeInUse { node, drives });
    }
    map.nodes.remove(&node);
    let gone: Vec<TargetId> = map.targets_of(node).map(|target| target.id).collect();
    map.targets.retain(|_, target| target.node != node);
    forget_servers(map, |server| gone.contains(&server));
    Ok(Reason::NodeRemoved { node, name })
}

/// Checks that the address is one, and that no target has it.
pub(crate) fn free_address(map: &FabricMap, addr: &str) -> Result<(), Refusal> {
    if !is_address(addr) {
        return Err(Refusal::Address { addr: addr.to_owned() });
    }
    match map.targets.values().find(|target| target.addr == addr) {
        Some(target) => {
            let node = map.nodes.get(&target.node).map_or_else(String::new, |node| node.name.clone());
            Err(Refusal::AddressTaken { addr: addr.to_owned(), node })
        }
        None => Ok(()),
    }
}

/// Whether the text has the shape `host:port`; whether the host exists is not for this crate to know.
pub(crate) fn is_address(addr: &str) -> bool {
    /// The longest host name that DNS allows (RFC 1035, section 2.3.4).
    const HOST_BYTES_MAX: usize = 255;
    let Some((host, port)) = addr.rsplit_once(':') else { return false };
    let host_ok = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok()),
        None => {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
            !host.is_empty() && host.len() <= HOST_BYTES_MAX && host.bytes().all(allowed)
        }
    };
    let port_ok = port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p > 0);
    host_ok && port_ok
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for good in ["127.0.0.1:7700", "node-1.example:1", "[::1]:65535"] {
            assert!(is_address(good), "{good}");
        }
        for bad in
            ["", "host", ":1", "host:", "host:0", "host:65536", "host:+1", "::1:7700", "a b:1", "[x]:1"]
        {
            assert!(!is_address(bad), "{bad}");
        }
    }
}
