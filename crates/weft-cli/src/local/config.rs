//! `fabric.json`: what a local fabric consists of.

use super::LocalError;
use serde::{Deserialize, Serialize};
use std::path::Path;
use weft_rt::random_u128;
use weft_types::FabricId;
use weft_types::limits::TARGETS_PER_NODE_MAX;

/// The version of the document's shape.
const SCHEMA: u32 = 1;

/// What a local fabric consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalConfig {
    /// The version of this shape.
    pub schema: u32,
    /// The fabric's identity.
    pub fabric: FabricId,
    /// Where the manager listens, as `127.0.0.1:PORT`.
    pub manager_addr: String,
    /// Bytes of each drive file.
    pub drive_bytes: u64,
    /// Whether drive files take space only as they are written.
    pub sparse: bool,
    /// Whether every drive file has been formatted once. Until then none of them holds anything.
    pub is_formatted: bool,
    /// How many threads serve the drives of each node.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub threads: u32,
    /// Into how many parts each drive file is formatted.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub parts: u32,
    /// The nodes, in the order in which they start.
    pub nodes: Vec<LocalNode>,
}

/// A node of a local fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalNode {
    /// Its name.
    pub name: String,
    /// Where its target listens, as `127.0.0.1:PORT`.
    pub addr: String,
    /// How many drive files it has: `drive-1.img`, and so on.
    pub drives: u16,
}

/// The numbers of parts that a device may have.
pub(super) const PARTS: [u32; 4] = [1, 2, 4, 8];

/// What a document of an older program means that does not say it.
const fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

/// What a new fabric consists of.
#[derive(Clone, Copy, Debug)]
pub struct LocalShape {
    /// How many nodes.
    pub nodes: u16,
    /// Drive files of each node.
    pub drives: u16,
    /// Bytes of each drive file.
    pub drive_bytes: u64,
    /// Whether drive files take space only as they are written.
    pub sparse: bool,
    /// Threads of each node.
    pub threads: u32,
    /// Parts of each drive file.
    pub parts: u32,
}

impl LocalConfig {
    /// A new fabric: the manager at the first port, the nodes at those that follow, then the metrics of each.
    ///
    /// # Errors
    /// [`LocalError::PortRange`].
    pub fn new(shape: LocalShape, port: u16) -> Result<LocalConfig, LocalError> {
        let LocalShape { nodes, drives, drive_bytes, sparse, threads, parts } = shape;
        let mut config = LocalConfig {
            schema: SCHEMA,
            fabric: FabricId::from_random(random_u128()),
            manager_addr: String::new(),
            drive_bytes,
            sparse,
            is_formatted: false,
            threads,
            parts,
            nodes: (1..=nodes)
                .map(|n| LocalNode { name: format!("node-{n}"), addr: String::new(), drives })
                .collect(),
        };
        config.set_ports(port)?;
        Ok(config)
    }

    /// How many ports the members have: one for the manager, and one for each thread of each node.
    fn member_ports(&self) -> usize {
        1 + self.nodes.len() * self.threads as usize
    }

    /// How many threads of a node serve: one without a drive does not start.
    pub fn threads_of(&self, node: &LocalNode) -> u32 {
        self.threads.min(u32::from(node.drives).saturating_mul(self.parts)).max(1)
    }

    /// Where the threads of a node listen: the first where the node does, each other one a port further.
    pub fn thread_addrs(&self, node: &LocalNode) -> Vec<String> {
        let Some((host, port)) = node.addr.rsplit_once(':') else { return vec![node.addr.clone()] };
        let Ok(port) = port.parse::<u16>() else { return vec![node.addr.clone()] };
        (0..self.threads_of(node)).map(|n| format!("{host}:{}", u32::from(port) + n)).collect()
    }

    /// Moves all members to the ports from `base` on.
    ///
    /// # Errors
    /// [`LocalError::PortRange`] if they pass the last port.
    pub fn set_ports(&mut self, base: u16) -> Result<(), LocalError> {
        let count = 2 * self.member_ports();
        if base == 0 || usize::from(base) + count > 1 << 16 {
            return Err(LocalError::PortRange { base, count });
        }
        let addr = |n: usize| format!("127.0.0.1:{}", usize::from(base) + n);
        self.manager_addr = addr(0);
        for (i, node) in self.nodes.iter_mut().enumerate() {
            node.addr = addr(1 + i * self.threads as usize);
        }
        Ok(())
    }

    /// Where a member that listens here serves its metrics: behind the ports of all members. None if the address has
    /// no port, or there is no such port, as a fabric may have that an older program made.
    pub fn metrics_addr(&self, addr: &str) -> Option<String> {
        let (host, port) = addr.rsplit_once(':')?;
        let members = u16::try_from(self.member_ports()).ok()?;
        let port = port.parse::<u16>().ok()?.checked_add(members)?;
        Some(format!("{host}:{port}"))
    }

    /// The node with this name.
    pub fn node(&self, name: &str) -> Option<&LocalNode> {
        self.nodes.iter().find(|n| n.name == name)
    }

    /// Bytes of all drive files together, or none if that passes 64 bits.
    pub fn total_bytes(&self) -> Option<u64> {
        let drives: u64 = self.nodes.iter().map(|n| u64::from(n.drives)).sum();
        drives.checked_mul(self.drive_bytes)
    }

    /// Reads the document.
    ///
    /// # Errors
    /// [`LocalError::BadConfig`] with what is wrong.
    pub(crate) fn decode(bytes: &[u8], path: &Path) -> Result<LocalConfig, LocalError> {
        #[derive(Deserialize)]
        struct Shape {
            schema: u32,
        }
        let bad = |reason: String| LocalError::BadConfig { path: path.to_owned(), reason };
        let shape: Shape = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        if shape.schema > SCHEMA {
            return Err(bad(format!(
                "it has schema {}, this program knows up to {SCHEMA}: use a newer weft",
                shape.schema
            )));
        }
        let config: LocalConfig = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        if !(1..=TARGETS_PER_NODE_MAX).contains(&config.threads) {
            return Err(bad(format!(
                "a node has {} threads, there are 1 to {TARGETS_PER_NODE_MAX}",
                config.threads
            )));
        }
        if !PARTS.contains(&config.parts) {
            return Err(bad(format!("drives have {} parts, there are 1, 2, 4 or 8", config.parts)));
        }
        Ok(config)
    }

    /// The document.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("the document serialises");
        json.push(b'\n');
        json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LocalConfig {
        let mut config = LocalConfig {
            schema: SCHEMA,
            fabric: FabricId::from_random(7),
            manager_addr: String::new(),
            drive_bytes: 1 << 30,
            sparse: false,
            is_formatted: true,
            threads: 1,
            parts: 1,
            nodes: vec![
                LocalNode { name: "node-1".into(), addr: String::new(), drives: 2 },
                LocalNode { name: "node-2".into(), addr: String::new(), drives: 2 },
            ],
        };
        config.set_ports(4800).expect("there are enough");
        config
    }

    #[test]
    fn it_reads_back_and_refuses_a_newer_one() {
        let config = config();
        assert_eq!(config.nodes[1].addr, "127.0.0.1:4802");
        assert_eq!(config.total_bytes(), Some(4 << 30));
        let bytes = config.encode();
        assert_eq!(LocalConfig::decode(&bytes, Path::new("f")).expect("it is one"), config);
        let newer = String::from_utf8(bytes).expect("json").replace("\"schema\": 1", "\"schema\": 2");
        let error = LocalConfig::decode(newer.as_bytes(), Path::new("f")).expect_err("newer");
        assert!(error.to_string().contains("use a newer weft"), "{error}");
    }

    #[test]
    fn threads_have_ports_of_their_own_and_a_document_without_them_has_one() {
        let mut config = config();
        assert!(!String::from_utf8(config.encode()).expect("json").contains("threads"));
        (config.threads, config.parts) = (3, 2);
        config.set_ports(4800).expect("there are enough");
        assert_eq!(config.nodes[1].addr, "127.0.0.1:4804");
        assert_eq!(config.thread_addrs(&config.nodes[1])[2], "127.0.0.1:4806");
        assert_eq!(config.metrics_addr(&config.manager_addr).as_deref(), Some("127.0.0.1:4807"));
        let bytes = config.encode();
        assert_eq!(LocalConfig::decode(&bytes, Path::new("f")).expect("it is one"), config);
        let none = String::from_utf8(bytes).expect("json").replace("\"threads\": 3", "\"threads\": 0");
        let error = LocalConfig::decode(none.as_bytes(), Path::new("f")).expect_err("no threads");
        assert!(error.to_string().contains("a node has 0 threads"), "{error}");
        config.parts = 3;
        let error = LocalConfig::decode(&config.encode(), Path::new("f")).expect_err("three parts");
        assert!(error.to_string().contains("drives have 3 parts"), "{error}");
        (config.parts, config.threads) = (1, 5);
        assert_eq!(config.threads_of(&config.nodes[0]), 2, "no more than drives");
    }

    #[test]
    fn ports_do_not_wrap() {
        let mut last = config();
        assert!(last.set_ports(65_530).is_ok());
        assert_eq!(last.metrics_addr(&last.nodes[1].addr).as_deref(), Some("127.0.0.1:65535"));
        assert_eq!(last.metrics_addr("127.0.0.1:65533"), None);
        assert!(matches!(config().set_ports(65_531), Err(LocalError::PortRange { count: 6, .. })));
        assert!(config().set_ports(0).is_err());
    }
}
