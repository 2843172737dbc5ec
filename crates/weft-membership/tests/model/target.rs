//! A target as the checker sees it: its lease, its promises, what is durable on its drive, and whether it may serve.
//!
//! It owns the target's side of R1, R2, R4 and R11 to R14, as `crates/weft-target` has them in `lease.rs`, `vouch.rs`,
//! `admit.rs`, `adopt.rs` and `resync.rs`. It never changes a map. A block is one number: its version.

use crate::scope::{Broken, Scope};
use crate::shared::Shared;
use weft_types::{DriveId, Epoch, FabricMap, Group, Role};

/// A set of nodes, a bit each.
pub type Nodes = u8;

/// The word of a manager, on its way or waiting for its map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Ticks that it still lasts, counted from when it was asked for.
    pub left: u8,
    /// The map that must be adopted.
    pub version: u64,
    pub suspects: Nodes,
}

/// The drive under a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    Sound,
    /// It failed in the life of this process; the next one finds it sound.
    Broken,
    /// It is gone for good.
    Lost,
}

/// A drive's part in a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The entry that is durable here.
    pub entry: Option<Shared<Group>>,
    /// The stint that was begun last; durable.
    pub stint: Option<Epoch>,
    /// Whether all is verified in this stint; durable.
    pub verified: bool,
    /// The version of the block; durable.
    pub value: u8,
    /// In-sync members that have acknowledged the entry (R13).
    pub taught: Nodes,
    /// All of them had, once in this stint.
    pub may_copy: bool,
    /// Per node how many ticks its word holds, about the entry's epoch.
    pub vouches: Vec<u8>,
}

/// One target with one drive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub up: bool,
    /// Counts the starts.
    pub incarnation: u8,
    pub medium: Medium,
    /// The manager that it has joined.
    pub link: Option<usize>,
    /// The map that was adopted last; not durable.
    pub map: Option<Shared<FabricMap>>,
    /// Ticks that the lease still lasts.
    pub lease: u8,
    pub was_granted: bool,
    /// A grant on its way here.
    pub answer: Option<Grant>,
    /// A grant that waits for its map.
    pub pending: Option<Grant>,
    pub suspects: Nodes,
    pub promises: Nodes,
    /// Those of the promises that were given after the answer on its way was asked for.
    pub since_answer: Nodes,
    /// Those of the promises that were given after the waiting grant was asked for.
    pub since_pending: Nodes,
    /// A report about the drive on its way to a manager, and the process that has sent it.
    pub report: Option<u8>,
    pub reported: bool,
    pub members: Vec<Member>,
}

/// A bit of a set.
pub fn bit(node: usize) -> Nodes {
    1 << node
}

impl Target {
    /// The drive of the target with this index.
    pub fn drive(node: usize) -> DriveId {
        DriveId(node as u128 + 1)
    }

    /// The index of the target with this drive.
    pub fn index(drive: DriveId) -> usize {
        drive.0 as usize - 1
    }

    /// Time passes by one tick.
    pub fn tick(&mut self) {
        self.lease = self.lease.saturating_sub(1);
        for grant in self.answer.iter_mut().chain(self.pending.iter_mut()) {
            grant.left = grant.left.saturating_sub(1);
        }
        for left in self.members.iter_mut().flat_map(|m| &mut m.vouches) {
            *left = left.saturating_sub(1);
        }
    }

    /// The process ends: what is not durable is forgotten.
    pub fn crash(&mut self) {
        self.up = false;
        (self.link, self.map, self.answer, self.pending) = (None, None, None, None);
        (self.lease, self.was_granted, self.reported) = (0, false, false);
        (self.suspects, self.promises, self.since_answer, self.since_pending) = (0, 0, 0, 0);
        for member in &mut self.members {
            (member.taught, member.may_copy) = (0, false);
            member.vouches.fill(0);
        }
    }

    /// Groups that go on without this drive are dropped in the background; at the latest now nothing is known of them.
    pub fn forget_left_groups(&mut self, own: usize) {
        for member in &mut self.members {
            if member.entry.as_ref().is_some_and(|e| e.slot_of(Target::drive(own)).is_none()) {
                member.entry = None;
            }
        }
    }

    /// The next process starts.
    pub fn start(&mut self) {
        self.up = true;
        self.incarnation += 1;
        if self.medium == Medium::Broken {
            self.medium = Medium::Sound;
        }
    }

    /// Whether the process has a drive that works.
    pub fn works(&self) -> bool {
        self.up && self.medium == Medium::Sound
    }

    /// The connection ends, and with it whatever was on its way.
    pub fn hang_up(&mut self) {
        (self.link, self.answer, self.since_answer) = (None, None, 0);
    }

    /// A renewal is sent, and granted at the same moment.
    pub fn expect(&mut self, grant: Grant) {
        self.since_answer = 0;
        self.answer = Some(grant);
    }

    /// The grant arrives.
    pub fn receive(&mut self, scope: &Scope) {
        let Some(grant) = self.answer.take() else { return };
        self.suspects |= grant.suspects;
        self.pending = Some(grant);
        self.since_pending = std::mem::take(&mut self.since_answer);
        self.count_grant(scope);
    }

    /// A grant whose map is adopted counts.
    fn count_grant(&mut self, scope: &Scope) {
        let adopted = self.map.as_ref().map_or(0, |m| m.version.0);
        let counts = |g: &mut Grant| g.version <= adopted || scope.is_broken(Broken::GrantBeforeAdoption);
        let Some(grant) = self.pending.take_if(counts) else { return };
        self.lease = self.lease.max(grant.left);
        self.was_granted = true;
        let younger = match scope.is_broken(Broken::PromiseEndsWithOldGrant) {
            true => 0,
            false => self.since_pending,
        };
        self.promises &= younger | grant.suspects;
        self.since_pending = 0;
        self.since_answer &= self.promises;
        self.suspects = grant.suspects;
    }

    /// Promises not to vouch for a node.
    pub fn promise(&mut self, victim: usize) {
        self.promises |= bit(victim);
        self.since_answer |= self.answer.as_ref().map_or(0, |_| bit(victim));
        self.since_pending |= self.pending.as_ref().map_or(0, |_| bit(victim));
    }

    /// Adopts a map; an older one has no effect.
    pub fn adopt(&mut self, own: usize, map: &Shared<FabricMap>, scope: &Scope) {
        if self.map.as_ref().is_some_and(|m| m.version >= map.version) {
            return;
        }
        if self.medium == Medium::Sound {
            for (at, group) in map.groups.values().enumerate() {
                let is_known = self.members[at].entry.is_some();
                if is_known || group.slot_of(Target::drive(own)).is_some() {
                    self.members[at].adopt(own, group);
                }
            }
        }
        self.map = Some(map.clone());
        self.count_grant(scope);
    }

    /// Adopts an entry that a client or a peer brings.
    pub fn adopt_entry(&mut self, own: usize, at: usize, entry: &Group) {
        let listed = self.map.as_ref().and_then(|m| m.groups.get(&entry.id)).map(|g| g.epoch);
        let is_known = self.members[at].entry.is_some() || entry.slot_of(Target::drive(own)).is_some();
        if is_known && listed.is_none_or(|epoch| epoch <= entry.epoch) {
            self.members[at].adopt(own, entry);
        }
    }

    /// Whether it may serve the group by its own entry: by the manager's word, or by that of all other members.
    pub fn holds_lease(&self, own: usize, at: usize, scope: &Scope) -> bool {
        self.works() && (self.lease > 0 || self.is_vouched_for(own, at, scope))
    }

    fn is_vouched_for(&self, own: usize, at: usize, scope: &Scope) -> bool {
        let member = &self.members[at];
        let (Some(entry), true, true) = (&member.entry, self.was_granted, self.map.is_some()) else {
            return false;
        };
        if scope.is_broken(Broken::VouchForOneself) {
            return true;
        }
        let mut others = entry.write_set().map(Target::index).filter(|n| *n != own).peekable();
        others.peek().is_some() && others.all(|n| member.vouches[n] > 0)
    }

    /// Whether it would vouch for a peer that is at this epoch of the group.
    pub fn vouches_for(&self, own: usize, peer: usize, at: usize, epoch: Epoch, scope: &Scope) -> bool {
        let knows = self.was_granted || scope.is_broken(Broken::VouchAfterRestart);
        let is_free = (self.suspects | self.promises) & bit(peer) == 0;
        let entry = self.members[at].entry.as_ref().filter(|e| e.epoch == epoch);
        let writes = |n: usize| entry.is_some_and(|e| e.write_set().any(|d| d == Target::drive(n)));
        self.works() && knows && is_free && writes(own) && writes(peer)
    }

    /// Whether a read that names the entry's own epoch would be answered from this drive.
    pub fn serves_reads(&self, own: usize, at: usize, scope: &Scope) -> bool {
        self.members[at].role(own) == Role::InSync && self.holds_lease(own, at, scope)
    }

    /// Whether a write that brings this entry would be admitted here, or is now, where the entry is known.
    pub fn admits(&self, own: usize, at: usize, entry: &Group, scope: &Scope) -> bool {
        let member = &self.members[at];
        let known = member.epoch();
        let may = known <= entry.epoch && self.holds_lease(own, at, scope);
        let slot = entry.slot_of(Target::drive(own));
        let is_verified = |since| member.verified && member.stint == Some(since);
        may && slot.is_some_and(|s| match s.role {
            Role::InSync => true,
            Role::Syncing => is_verified(s.since) || scope.is_broken(Broken::WriteBeforeVerify),
            Role::Out => false,
        })
    }
}

impl Member {
    pub fn new(entry: Option<Shared<Group>>, nodes: usize) -> Member {
        Member {
            entry,
            stint: None,
            verified: true,
            value: 0,
            taught: 0,
            may_copy: false,
            vouches: vec![0; nodes],
        }
    }

    pub fn epoch(&self) -> Epoch {
        self.entry.as_ref().map_or(Epoch(0), |e| e.epoch)
    }

    pub fn role(&self, own: usize) -> Role {
        let slot = self.entry.as_ref().and_then(|e| e.slot_of(Target::drive(own)));
        slot.map_or(Role::Out, |s| s.role)
    }

    /// The stint in which it is syncing, if it is.
    pub fn syncing(&self, own: usize) -> Option<Epoch> {
        let slot = self.entry.as_ref().and_then(|e| e.slot_of(Target::drive(own)));
        slot.filter(|s| s.role == Role::Syncing).map(|s| s.since)
    }

    /// Adopts an entry if it is newer. A new stint makes everything unverified (R12); what the map lists as in-sync
    /// is verified by that word.
    fn adopt(&mut self, own: usize, entry: &Group) {
        if entry.epoch <= self.epoch() {
            return;
        }
        self.entry = Some(Shared::new(entry.clone()));
        self.vouches.fill(0);
        self.taught = 0;
        match entry.slot_of(Target::drive(own)) {
            Some(slot) if slot.role == Role::Syncing && self.stint != Some(slot.since) => {
                (self.stint, self.verified, self.may_copy) = (Some(slot.since), false, false);
            }
            Some(slot) if slot.role == Role::InSync => self.verified = true,
            // A group that goes on without this drive is dropped.
            None => (self.stint, self.verified, self.value) = (None, false, 0),
            _ => {}
        }
    }
}
