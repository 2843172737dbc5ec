//! What keeps faults from destroying what nothing could save: one good in-sync copy of each group is spared.
//!
//! A drive that is destroyed must leave an in-sync copy that never was hurt, on a node that nothing disturbs: one whose
//! eviction is under way already would leave the destroyed drive as the last one that is listed. Rot must leave one, too, and that one is
//! left in peace until the rot is healed: if it were evicted meanwhile, the copy that rots would be the last one. What
//! would break this is not done, and told as spared; what destroys a drive is put off until it may (`strike.rs`).
//!
//! A drive that is missing or pulled comes back with all that was acknowledged, so it may be the last good copy. It cannot be
//! the one that is spared for another's sake while it is away.

use super::{Fault, Who};
use crate::bed::Bed;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use weft_rt::{Instant, now};
use weft_types::{DriveId, FabricMap};

/// How long after a fault its node may still be evicted because of it: leases, and the waits for them.
const AFTERMATH: Duration = Duration::from_secs(4);

/// What faults have done so far, and whom they must spare.
#[derive(Default)]
pub struct Guard {
    /// Drives whose data was destroyed, or is not to be relied upon any more, and how often.
    hurt: RefCell<BTreeMap<DriveId, u32>>,
    /// Nodes that something has disturbed, and until when that may last.
    disturbed: RefCell<BTreeMap<usize, Instant>>,
    /// Nodes to be left in peace, by the hurt that asks for it.
    spared: RefCell<BTreeMap<u64, BTreeSet<usize>>>,
    next: Cell<u64>,
    /// Whether a drive may hold less than was durable on it.
    is_metadata_hurt: Cell<bool>,
    /// Whether a block of data was damaged.
    is_data_hurt: Cell<bool>,
}

impl Guard {
    /// Whether these drives may be destroyed: for each of their groups, a good in-sync copy is left in peace elsewhere.
    pub fn may_destroy(&self, bed: &Bed, victims: &[DriveId]) -> bool {
        let own: Vec<usize> = victims.iter().filter_map(|d| bed.node_of(*d)).collect();
        let stays = |d: &DriveId| self.calm_node_of(bed, *d).is_some_and(|n| !own.contains(&n));
        self.survivors(&bed.truth(), victims).iter().all(|of_group| of_group.iter().any(stays))
    }

    /// Per group of these drives, the in-sync drives that are good and none of them.
    fn survivors(&self, map: &FabricMap, victims: &[DriveId]) -> Vec<Vec<DriveId>> {
        let hurt = self.hurt.borrow();
        let groups = map.groups.values().filter(|g| victims.iter().any(|v| g.slot_of(*v).is_some()));
        groups
            .map(|g| g.read_set().filter(|d| !victims.contains(d) && !hurt.contains_key(d)).collect())
            .collect()
    }

    /// Notes that drives were destroyed.
    pub fn note_destroyed(&self, victims: &[DriveId]) {
        victims.iter().for_each(|victim| self.hurt(*victim));
    }

    fn hurt(&self, victim: DriveId) {
        *self.hurt.borrow_mut().entry(victim).or_default() += 1;
    }

    /// If a drive may rot, notes it, and the nodes that are left in peace for it. The number ends that.
    pub fn begin_rot(&self, bed: &Bed, victim: DriveId) -> Option<u64> {
        let map = bed.truth();
        let mut nodes = BTreeSet::new();
        for survivors in self.survivors(&map, &[victim]) {
            let calm = survivors.into_iter().find_map(|d| self.calm_node_of(bed, d));
            nodes.insert(calm?);
        }
        let number = self.next.get();
        self.next.set(number + 1);
        self.spared.borrow_mut().insert(number, nodes);
        self.hurt(victim);
        self.is_data_hurt.set(true);
        Some(number)
    }

    /// Notes that what rotted is healed.
    pub fn end_rot(&self, number: u64, victim: DriveId) {
        self.spared.borrow_mut().remove(&number);
        let mut hurt = self.hurt.borrow_mut();
        let times = hurt.get_mut(&victim).expect("it was hurt");
        *times -= 1;
        if *times == 0 {
            hurt.remove(&victim);
        }
    }

    /// Notes that a store's own structures were damaged.
    pub fn note_metadata(&self) {
        self.is_metadata_hurt.set(true);
    }

    /// Whether a drive may rightly be refused as an older copy of itself.
    pub fn may_be_older(&self) -> bool {
        self.is_metadata_hurt.get()
    }

    /// Whether a scrub may rightly find damage.
    pub fn may_be_damaged(&self) -> bool {
        self.is_data_hurt.get() || self.is_metadata_hurt.get()
    }

    /// The node that a drive is in, if nothing disturbs it.
    fn calm_node_of(&self, bed: &Bed, drive: DriveId) -> Option<usize> {
        let is_calm = |n: &usize| self.disturbed.borrow().get(n).is_none_or(|until| *until < now());
        bed.node_of(drive).filter(|n| bed.is_running(*n) && bed.nodes[*n].has(drive) && is_calm(n))
    }

    /// Whether a fault may strike; if so, notes whom it disturbs.
    pub fn allows(&self, bed: &Bed, fault: &Fault) -> bool {
        let disturbed = disturbs(bed, fault);
        let is_spared = |n: &usize| self.spared.borrow().values().any(|nodes| nodes.contains(n));
        let victims = destroys(bed, fault);
        if disturbed.iter().any(is_spared) || (!victims.is_empty() && !self.may_destroy(bed, &victims)) {
            return false;
        }
        let until = now() + fault.lasts() + AFTERMATH;
        let mut known = self.disturbed.borrow_mut();
        for node in disturbed {
            let entry = known.entry(node).or_insert(until);
            *entry = (*entry).max(until);
        }
        true
    }
}

/// The drives that a fault destroys.
pub fn destroys(bed: &Bed, fault: &Fault) -> Vec<DriveId> {
    match fault {
        Fault::Replace { node, drive, .. } => bed.nodes[*node].device_drives(*drive),
        Fault::Loss { node } => bed.nodes[*node].drives_now(),
        _ => vec![],
    }
}

/// The nodes that may be evicted because of a fault.
fn disturbs(bed: &Bed, fault: &Fault) -> Vec<usize> {
    let at = |host: &IpAddr| bed.nodes.iter().position(|n| n.host == *host);
    let all = || (0..bed.nodes.len()).collect();
    match fault {
        Fault::Blackout { .. } | Fault::Delay { .. } | Fault::Full { .. } => all(),
        Fault::Crash { node, .. }
        | Fault::Stop { node, .. }
        | Fault::Stall { who: Who::Node(node), .. }
        | Fault::SlowDrive { node, .. }
        | Fault::StuckDrive { node, .. }
        | Fault::HungDrive { node, .. }
        | Fault::MissingDrive { node, .. }
        | Fault::PulledDrive { node, .. }
        | Fault::DriveError { node, .. }
        | Fault::Unreadable { node, .. }
        | Fault::Rot { node, .. }
        | Fault::RotInMetadata { node, .. }
        | Fault::Replace { node, .. }
        | Fault::Evacuate { node, .. }
        | Fault::Loss { node } => vec![*node],
        Fault::Partition { from, to, .. } | Fault::Flap { from, to, .. } => {
            [from, to].into_iter().filter_map(at).collect()
        }
        Fault::ClientCut { node, .. } => at(node).into_iter().collect(),
        Fault::Manager { .. }
        | Fault::SecondManager {}
        | Fault::SlowStore { .. }
        | Fault::Reset { .. }
        | Fault::Stall { .. }
        | Fault::Client { .. }
        | Fault::ClockStep { .. } => vec![],
    }
}
