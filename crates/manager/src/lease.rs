//! Leases: who may serve, who is silent, who is taken for gone.
//!
//! It owns the grants and the suspicions. A suspicion only stops others from vouching; the eviction that may follow
//! waits until no grant and no word can still be in force (`observe.rs`). A sign of life ends the suspicion.

use crate::error::Denied;
use crate::manager::{Manager, State, wall_clock_ms};
use crate::member::Suspicion;
use std::rc::Rc;
use weft_rt::{now, spawn};
use weft_types::{MapVersion, NodeId};
use weft_wire::Status;
use weft_wire::control::{ManagerAnswer, TargetRequest};

/// A target that a client could not reach has so much of a lease to answer the manager.
const PROBE_PART: u32 = 4;

impl State {
    /// The nodes that must not be vouched for.
    pub(crate) fn suspects(&self) -> Vec<NodeId> {
        self.members.iter().filter(|(_, m)| m.suspicion.is_some()).map(|(id, _)| *id).collect()
    }

    /// A later suspicion of this node begins with promises of its own.
    pub(crate) fn forget_promises_about(&mut self, node: NodeId) {
        for member in self.members.values_mut() {
            member.promises.remove(&node);
        }
    }
}

impl Manager {
    /// Grants a lease. The target counts it from when it sent the request, this side from now, which is later; it
    /// is void until the map named in the answer is adopted.
    ///
    /// # Errors
    /// If this process of the target has not joined: then it must join first.
    pub(crate) fn renew(
        &self,
        node: NodeId,
        incarnation: u64,
        adopted: MapVersion,
    ) -> Result<ManagerAnswer, Denied> {
        let mut state = self.state.borrow_mut();
        let (map, version) = (state.map.clone(), state.map.version);
        let unknown = || {
            Denied::new(Status::NotFound, format!("this target of node {node} has not joined: join first"))
        };
        let member = state.members.get_mut(&node).ok_or_else(unknown)?;
        if member.incarnation != Some(incarnation) {
            return Err(unknown());
        }
        if adopted > version {
            let text = format!("map {adopted} is not known here, the newest is {version}");
            return Err(Denied::new(Status::Refused, text));
        }
        let was_up = member.is_up();
        let suspicion = member.suspicion.take();
        (member.heard_at, member.granted_at, member.granted) = (now(), now(), true);
        let caught_up = adopted > member.adopted;
        member.adopted = member.adopted.max(adopted);
        if !was_up {
            member.since_ms = wall_clock_ms();
        }
        if suspicion.is_some() {
            state.forget_promises_about(node);
        }
        let suspects = state.suspects();
        drop(state);
        if let Some(suspicion) = suspicion {
            let name = map.nodes.get(&node).map_or_else(String::new, |n| n.name.clone());
            let silent_ms = suspicion.since.elapsed().as_millis();
            self.tell(
                "suspicion-ended",
                format!("node '{name}' renewed its lease {silent_ms} ms after: {}", suspicion.why),
            );
        } else if caught_up || !was_up {
            self.changed.notify_all();
        }
        Ok(ManagerAnswer::Granted { map: version, suspects })
    }

    /// The nodes that must not be vouched for.
    pub(crate) fn suspects(&self) -> Vec<NodeId> {
        self.state.borrow().suspects()
    }

    /// Takes a node for gone until it gives a sign of life.
    pub(crate) fn suspect(&self, node: NodeId, why: String) {
        let text = {
            let mut state = self.state.borrow_mut();
            let map = state.map.clone();
            let Some(member) = state.members.get_mut(&node) else { return };
            if member.suspicion.is_some() {
                return;
            }
            member.suspicion = Some(Suspicion { why: why.clone(), since: now() });
            member.since_ms = wall_clock_ms();
            let name = map.nodes.get(&node).map_or("", |n| n.name.as_str());
            format!("node '{name}' is taken for gone: {why}")
        };
        self.tell("node-suspected", text);
    }

    /// Suspects every target that has not renewed for one lease. One that has not joined since this process
    /// started has a full wait, since it must find this process first.
    pub(crate) fn suspect_the_silent(&self) {
        let silent: Vec<(NodeId, String)> = {
            let state = self.state.borrow();
            let durations = state.map.durations;
            let unheard = |m: &crate::member::Member| {
                let patience =
                    if m.incarnation.is_some() { durations.lease() } else { durations.lease_wait() };
                m.suspicion.is_none() && m.heard_at.elapsed() >= patience
            };
            let why = |m: &crate::member::Member| match m.incarnation {
                Some(_) => format!("no renewal for {} ms", m.heard_at.elapsed().as_millis()),
                None => "it has not joined since this manager started".to_owned(),
            };
            state.members.iter().filter(|(_, m)| unheard(m)).map(|(id, m)| (*id, why(m))).collect()
        };
        for (node, why) in silent {
            self.suspect(node, why);
        }
    }

    /// Looks after a node that a client or target could not reach: its word is a hint, no proof.
    pub(crate) fn probe(self: &Rc<Self>, node: NodeId) {
        {
            let mut state = self.state.borrow_mut();
            let Some(member) = state.members.get_mut(&node) else { return };
            // One that cannot be connected to but renews its lease would fail every probe.
            if member.suspicion.is_some() || member.is_probed || member.is_unreachable {
                return;
            }
            member.is_probed = true;
        }
        let manager = self.clone();
        spawn(async move {
            let patience = manager.lease() / PROBE_PART;
            let answer = manager.ask(node, &TargetRequest::Status, None, patience).await;
            if let Some(member) = manager.state.borrow_mut().members.get_mut(&node) {
                member.is_probed = false;
            }
            if let Err(error) = answer {
                manager
                    .suspect(node, format!("a client could not reach it, and it does not answer: {error}"));
            }
        });
    }
}
