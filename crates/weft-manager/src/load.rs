//! The load of the fabric: what the targets have counted, with the names of the map.
//!
//! It owns the questions to the targets. Nothing is kept from one answer to the next, and no rate is
//! computed: who watches does that.

use crate::manager::{Manager, wall_clock_ms};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_api::{DriveLoad, FabricLoad, NodeLoad, SessionLoad, Timestamp};
use weft_rt::sync::join_all;
use weft_types::{FabricMap, Node, NodeId, SessionId};
use weft_wire::control::{TargetAnswer, TargetRequest};
use weft_wire::load::TargetLoad;

/// How long a target may take to list its counters.
const LOAD_MAX: Duration = Duration::from_secs(1);

impl Manager {
    /// What all targets that are up have counted.
    pub(crate) async fn load(self: &Rc<Self>) -> FabricLoad {
        let map = self.map();
        let asked = map.targets.values().map(|target| async {
            let is_up = {
                let state = self.state.borrow();
                state.members.get(&target.id).is_some_and(|m| m.is_up() && m.open_link().is_some())
            };
            let answer = match is_up {
                true => self.ask(target.id, &TargetRequest::Load, None, LOAD_MAX).await.ok(),
                false => None,
            };
            match answer {
                Some(TargetAnswer::Load(counted)) => Some((target.node, *counted)),
                _ => None,
            }
        });
        let mut counted: BTreeMap<NodeId, Vec<TargetLoad>> = BTreeMap::new();
        for (node, load) in join_all(asked).await.into_iter().flatten() {
            counted.entry(node).or_default().push(load);
        }
        let mut load = FabricLoad {
            fabric: map.fabric,
            time: Timestamp::from_millis(wall_clock_ms()),
            nodes: Vec::new(),
            silent: Vec::new(),
        };
        // Sessions and volumes may have come while the targets were asked.
        let newest = self.map();
        for node in map.nodes.values() {
            match counted.remove(&node.id) {
                Some(counted) => load.nodes.push(node_load(&newest, node, counted)),
                None => load.silent.push(node.name.clone()),
            }
        }
        load
    }
}

/// What the targets of a node have counted that have answered, together. A volume or session that several of
/// them were asked about is there once for each.
fn node_load(map: &FabricMap, node: &Node, mut counted: Vec<TargetLoad>) -> NodeLoad {
    let volume_name = |id| map.volumes.get(&id).map_or_else(|| id.to_string(), |v| v.name.clone());
    let client = |id: SessionId| match map.sessions.get(&id) {
        Some(session) => session.client.clone(),
        None if id == SessionId(0) => "(nodes)".into(),
        None => id.to_string(),
    };
    // Changes with each of them, and with which of them have answered: sums of others are not compared with
    // it.
    let incarnation = counted.iter().fold(0, |all, load| all ^ load.incarnation);
    let at_us = counted.iter().map(|load| load.at_us).max().unwrap_or(0);
    // One process counts for all of its targets.
    let process = counted.iter_mut().find_map(|load| load.process.take());
    let (mut drives, mut volumes, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
    for load in counted {
        drives.extend(load.drives);
        volumes.extend(load.volumes);
        sessions.extend(load.sessions);
    }
    let drives = drives.into_iter().map(|d| DriveLoad {
        id: d.id,
        path: map.drives.get(&d.id).map_or_else(String::new, |listed| listed.path.clone()),
        meter: d.meter,
        data_bytes_written: d.data_bytes_written,
        log_bytes_written: d.log_bytes_written,
    });
    let sessions = sessions.into_iter().map(|s| SessionLoad {
        id: s.id,
        client: client(s.id),
        volume: volume_name(s.volume),
        meter: s.meter,
    });
    NodeLoad {
        id: node.id,
        name: node.name.clone(),
        incarnation,
        at_us,
        process,
        drives: drives.collect(),
        volumes,
        sessions: sessions.collect(),
    }
}
