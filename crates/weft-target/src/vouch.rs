//! Vouching: while the manager is silent, the other members of a group stand in for its word.
//!
//! A target goes on serving a group while every other member of the write set that it last acknowledged
//! vouches for it; a group without another member needs the manager. A vouch lasts one lease from when it was
//! asked for. It never vouches for a target that is being evicted, nor before this start of the target has
//! had a lease of its own: a promise made before the restart is forgotten otherwise (R2, R11).

use crate::member::Member;
use crate::target::Target;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weft_rpc::{Answer, Request};
use weft_rt::{Instant, now, sleep_about};
use weft_rules::{Mutation, mutated};
use weft_types::{DriveId, Epoch, FabricMap, Group, GroupId, TargetId};
use weft_wire::control::{self, VouchAnswer, VouchRequest};
use weft_wire::{Kind, Status};

/// How often peers are asked within a lease: as often as the manager is.
const ROUNDS_PER_LEASE: u32 = 4;

/// Groups in one request: as JSON at most 210 bytes each, with two drives, so the request fits a frame's
/// head.
const GROUPS_PER_REQUEST: usize = 64;

/// Other targets of a group, with the drives that they have in its write set.
type Others = BTreeMap<TargetId, Vec<DriveId>>;

/// What a target is asked: the groups, with their epochs and the drives that are meant.
type Questions = BTreeMap<(GroupId, Epoch), Vec<DriveId>>;

/// Who vouches for this target: per target and group the epoch that it knows, and how long its word holds.
#[derive(Default)]
pub(crate) struct Vouches {
    given: RefCell<BTreeMap<(TargetId, GroupId), (Epoch, Instant)>>,
    /// Nodes that have been asked and have not answered: each is asked once at a time, however long it takes.
    asked: RefCell<BTreeSet<TargetId>>,
}

/// A target is being asked.
struct Asking {
    target: Rc<Target>,
    asked: TargetId,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.target.vouches.asked.borrow_mut().remove(&self.asked);
    }
}

impl Target {
    /// Whether every other member of the group's write set vouches for this target now.
    pub(crate) fn is_vouched_for(&self, member: &Member) -> bool {
        if !self.lease.was_granted() {
            return false;
        }
        let (Some(map), Some(entry)) = (self.map(), member.entry()) else { return false };
        let Some(others) = self.others(&map, &entry) else { return false };
        let now = now();
        let given = self.vouches.given.borrow();
        let vouches = |target: &TargetId| {
            let word = given.get(&(*target, entry.id));
            word.is_some_and(|(epoch, until)| *epoch == entry.epoch && now < *until)
        };
        match mutated(Mutation::VouchedByAny) {
            true => others.keys().any(vouches),
            false => !others.is_empty() && others.keys().all(vouches),
        }
    }

    /// The other targets, of any node, with the drives that they have in the entry's write set, by the map.
    /// None if the map does not know a drive's target, or takes one for this target's that this one does not
    /// serve: it has passed to another one, of which the map at hand says nothing.
    fn others(&self, map: &FabricMap, entry: &Group) -> Option<Others> {
        let own = self.id()?;
        let mut others = Others::new();
        for drive in entry.write_set().filter(|d| !self.serves(*d)) {
            others.entry(map.target_of(drive)?).or_default().push(drive);
        }
        if others.remove(&own).is_some() && !mutated(Mutation::WordForAnyDrive) {
            return None;
        }
        if mutated(Mutation::SiblingUnasked) {
            let node = |target: &TargetId| map.targets.get(target).map(|t| t.node);
            others.retain(|target, _| node(target) != node(&own));
        }
        Some(others)
    }

    /// Asks the peers for their word whenever the manager's is half gone, for ever.
    pub(crate) async fn keep_vouches(self: Rc<Self>) {
        loop {
            let lease = self.durations().lease();
            sleep_about(lease / ROUNDS_PER_LEASE).await;
            if self.lease.was_granted() && self.lease.ends_before(now() + lease / 2) {
                self.ask_for_vouches();
            }
        }
    }

    /// Asks every target that shares a write set with this one, siblings too (P2); the answers are noted when
    /// they come. Words that have run out are forgotten.
    fn ask_for_vouches(&self) {
        let now = now();
        self.vouches.given.borrow_mut().retain(|_, (_, until)| now < *until);
        let Some(map) = self.map() else { return };
        let mut groups: BTreeMap<TargetId, Questions> = BTreeMap::new();
        for member in self.members() {
            let Some(entry) = member.entry().filter(|e| e.write_set().any(|d| d == member.drive.id)) else {
                continue;
            };
            for (target, drives) in self.others(&map, &entry).into_iter().flatten() {
                groups.entry(target).or_default().insert((entry.id, entry.epoch), drives);
            }
        }
        for (target, groups) in groups {
            let Some(addr) = map.targets.get(&target).map(|t| t.addr.clone()) else { continue };
            if !self.vouches.asked.borrow_mut().insert(target) {
                continue;
            }
            let asking = Asking { target: self.shared(), asked: target };
            self.background(async move { asking.target.ask_for_vouch(asking.asked, &addr, groups).await });
        }
    }

    async fn ask_for_vouch(&self, target: TargetId, addr: &str, questions: Questions) {
        let Some(own) = self.id() else { return };
        let lease = self.lease_by_own_clock();
        let asked: Vec<_> = questions.into_iter().collect();
        for part in asked.chunks(GROUPS_PER_REQUEST) {
            let groups: Vec<(GroupId, Epoch)> = part.iter().map(|(group, _)| *group).collect();
            let drives = part.iter().map(|((group, _), drives)| (*group, drives.clone())).collect();
            let request = VouchRequest { target: own, asked: Some(target), groups: groups.clone(), drives };
            let sent = now();
            let reply = self.call_addr(addr, Kind::Vouch, |_| control::encode(&request), vec![]).await;
            let reply = match reply {
                Ok(reply) => reply,
                Err(error) if error.status().is_some() => continue,
                Err(_) => return,
            };
            let Ok(answer) = control::decode::<VouchAnswer>(&reply.head) else { continue };
            let mut given = self.vouches.given.borrow_mut();
            for (group, epoch) in &groups {
                if answer.groups.contains(group) {
                    given.insert((target, *group), (*epoch, sent + lease));
                }
            }
        }
    }

    /// Answers a peer that asks to be vouched for.
    pub(crate) fn answer_vouch(&self, request: &Request) -> Answer {
        let asked = match control::decode::<VouchRequest>(&request.head) {
            Ok(asked) => asked,
            Err(error) => return Answer::error(Status::Invalid, error.to_string()),
        };
        // Another target of the node may listen where the sender's map still has this one.
        let is_meant = asked.asked.is_none_or(|asked| Some(asked) == self.id());
        let groups = match self.map().filter(|_| is_meant) {
            Some(map) if self.has_had_lease() && self.lease.may_vouch_for(asked.target) => {
                let meant: BTreeMap<GroupId, &Vec<DriveId>> =
                    asked.drives.iter().map(|(group, drives)| (*group, drives)).collect();
                let vouches = |(group, epoch): &(GroupId, Epoch)| {
                    let speaks = self.speaks_for(&map, *group, meant.get(group).copied());
                    (speaks && self.knows_as_member(&map, asked.target, *group, *epoch)).then_some(*group)
                };
                asked.groups.iter().filter_map(vouches).collect()
            }
            _ => vec![],
        };
        Answer::ok(control::encode(&VouchAnswer { groups }), vec![])
    }

    /// Whether this target serves all drives of the group that the sender means: another one may serve some
    /// of them since, whose word this one cannot give. A sender that names none means all on this target's
    /// node.
    fn speaks_for(&self, map: &FabricMap, group: GroupId, meant: Option<&Vec<DriveId>>) -> bool {
        if mutated(Mutation::WordForAnyDrive) {
            return true;
        }
        if let Some(drives) = meant {
            return drives.iter().all(|drive| self.serves(*drive));
        }
        let own = self.id().and_then(|id| map.targets.get(&id)).map(|target| target.node);
        let is_own = |drive: &DriveId| map.drives.get(drive).is_some_and(|listed| Some(listed.node) == own);
        let entry = map.groups.get(&group);
        entry.is_some_and(|entry| entry.write_set().filter(is_own).all(|drive| self.serves(drive)))
    }

    /// Whether this start of the target has had a lease, so that it knows whom it may not vouch for (R2).
    fn has_had_lease(&self) -> bool {
        self.lease.was_granted() || mutated(Mutation::RestartVouches)
    }

    /// Whether this target, itself a member of the group in this very epoch, knows the other one as one.
    fn knows_as_member(&self, map: &FabricMap, target: TargetId, group: GroupId, epoch: Epoch) -> bool {
        let working = self.drives.values().filter(|d| !d.has_failed() && !self.lags(d));
        let own = working.filter_map(|d| self.member(d.id, group));
        own.filter(|m| !m.gate_is_closed() && !m.is_gone()).any(|member| {
            let Some(entry) = member.entry().filter(|e| e.epoch == epoch) else { return false };
            entry.write_set().any(|d| d == member.drive.id)
                && entry.write_set().any(|d| map.drives.get(&d).is_some_and(|d| d.target == target))
        })
    }
}
