//! The load of the fabric: what the targets have counted, with the names of the map.
//!
//! It owns the questions to the targets. Nothing is kept from one answer to the next, and no rate is computed: who
//! watches does that.

use crate::manager::{Manager, wall_clock_ms};
use std::rc::Rc;
use std::time::Duration;
use weft_api::{DriveLoad, FabricLoad, NodeLoad, SessionLoad, Timestamp};
use weft_rt::sync::join_all;
use weft_types::{FabricMap, Node, SessionId};
use weft_wire::control::{TargetAnswer, TargetRequest};
use weft_wire::load::TargetLoad;

/// How long a target may take to list its counters.
const LOAD_MAX: Duration = Duration::from_secs(1);

impl Manager {
    /// What all targets that are up have counted.
    pub(crate) async fn load(self: &Rc<Self>) -> FabricLoad {
        let map = self.map();
        let asked = map.nodes.values().map(|node| async {
            let is_up = {
                let state = self.state.borrow();
                state.members.get(&node.id).is_some_and(|m| m.is_up() && m.open_link().is_some())
            };
            match is_up {
                true => self.ask(node.id, &TargetRequest::Load, None, LOAD_MAX).await.ok(),
                false => None,
            }
        });
        let answers = join_all(asked).await;
        let mut load = FabricLoad {
            fabric: map.fabric,
            time: Timestamp::from_millis(wall_clock_ms()),
            nodes: Vec::new(),
            silent: Vec::new(),
        };
        // Sessions and volumes may have come while the targets were asked.
        let newest = self.map();
        for (node, answer) in map.nodes.values().zip(answers) {
            match answer {
                Some(TargetAnswer::Load(counted)) => load.nodes.push(node_load(&newest, node, *counted)),
                _ => load.silent.push(node.name.clone()),
            }
        }
        load
    }
}

fn node_load(map: &FabricMap, node: &Node, counted: TargetLoad) -> NodeLoad {
    let volume_name = |id| map.volumes.get(&id).map_or_else(|| id.to_string(), |v| v.name.clone());
    let client = |id: SessionId| match map.sessions.get(&id) {
        Some(session) => session.client.clone(),
        None if id == SessionId(0) => "(nodes)".into(),
        None => id.to_string(),
    };
    let drives = counted.drives.into_iter().map(|d| DriveLoad {
        id: d.id,
        path: map.drives.get(&d.id).map_or_else(String::new, |listed| listed.path.clone()),
        meter: d.meter,
        data_bytes_written: d.data_bytes_written,
        log_bytes_written: d.log_bytes_written,
    });
    let volumes = counted.volumes.into_iter();
    let sessions = counted.sessions.into_iter().map(|s| SessionLoad {
        id: s.id,
        client: client(s.id),
        volume: volume_name(s.volume),
        meter: s.meter,
    });
    NodeLoad {
        id: node.id,
        name: node.name.clone(),
        incarnation: counted.incarnation,
        at_us: counted.at_us,
        process: counted.process,
        drives: drives.collect(),
        volumes: volumes.collect(),
        sessions: sessions.collect(),
    }
}
