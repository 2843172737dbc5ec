//! Admission, R1: what every request about a group must pass before it touches a drive.
//!
//! The check itself has no await in it, so between the check and the store's first step nothing can change; and
//! a mutation holds a guard until it has finished, which the acknowledgement of a newer epoch waits for. What only
//! reads holds no guard, and is checked a second time before it is answered. It never reads or changes blocks.

use crate::drive::ServedDrive;
use crate::member::{Member, Running};
use crate::target::Target;
use std::rc::Rc;
use weft_rpc::{Answer, Body, Peer};
use weft_rt::wall_clock_us;
use weft_rules::{Mutation, Path, mark, mutated};
use weft_types::{
    DriveId, Epoch, Generation, GroupId, Owner, Role, Session, SessionId, SessionSlot, SessionState, Version,
    Volume, VolumeId,
};
use weft_wire::data::{DataRequest, Purpose, WatermarkNote, WriteAnswer, clock_counter};
use weft_wire::handshake::PeerRole;
use weft_wire::{Status, control};

/// The session number of requests that no client session makes: a target's own sweeps.
pub(crate) const SYSTEM_SESSION: SessionId = SessionId(0);

/// Which members may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// In-sync members.
    ReadSet,
    /// In-sync and syncing members.
    WriteSet,
}

/// The session behind a request, and the volume that it is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    pub(crate) volume: VolumeId,
    pub(crate) generation: Generation,
    pub(crate) session: SessionId,
    /// The slot that it speaks for: that of its versions and watermarks.
    pub(crate) slot: SessionSlot,
}

/// A session that nothing fences, as of this map of the target and these fences of the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    attached: Attached,
    /// How many maps the target had adopted.
    maps: u64,
    /// [`weft_store::Store::fences`] of the drive.
    fences: u64,
    /// Whether the map lists the volume as a file system.
    is_file_system: bool,
}

/// What a request says of itself for admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) drive: DriveId,
    pub(crate) group: GroupId,
    pub(crate) epoch: Epoch,
    pub(crate) need: Need,
    /// None for requests of peers, which no attach fences.
    pub(crate) attached: Option<Attached>,
    /// Whether the object is one of an inode; nothing if the request is about no object.
    pub(crate) of_inode: Option<bool>,
    /// The version that it would write; zero for none.
    pub(crate) version: Version,
    /// Whether another member has taken that version already: a reader's or a sweep's put.
    pub(crate) is_repair: bool,
}

impl Claim {
    /// The claim of a data request. Sweeps of other targets are not clients, so no session or generation
    /// fences them; the word of anyone else that it is the system's is not taken.
    ///
    /// # Errors
    /// The refusal, if a client claims to be the system.
    pub(crate) fn of(request: &DataRequest, need: Need, peer: &Peer) -> Result<Claim, Answer> {
        let is_system = request.session == SYSTEM_SESSION;
        if is_system && !matches!(peer.role, PeerRole::Target(_)) {
            return Err(Answer::error(Status::Invalid, "session 0 is the system's"));
        }
        let attached = Attached {
            volume: request.object.owner().volume(),
            generation: request.generation,
            session: request.session,
            slot: request.slot,
        };
        Ok(Claim {
            drive: request.drive,
            group: request.group,
            epoch: request.epoch,
            need,
            attached: (!is_system).then_some(attached),
            of_inode: Some(matches!(request.object.owner(), Owner::Inode { .. })),
            version: Version::ZERO,
            is_repair: request.purpose == Purpose::Repair,
        })
    }

    /// The claim of a note about a watermark.
    pub(crate) fn of_note(note: &WatermarkNote) -> Claim {
        let attached = Attached {
            volume: note.volume,
            generation: note.generation,
            session: note.session,
            slot: note.watermark.slot(),
        };
        Claim {
            drive: note.drive,
            group: note.group,
            epoch: note.epoch,
            need: Need::WriteSet,
            attached: Some(attached),
            of_inode: None,
            version: Version::ZERO,
            is_repair: false,
        }
    }

    /// Likewise, for a request that writes this version.
    pub(crate) fn writing(self, version: Version) -> Claim {
        Claim { version, ..self }
    }
}

/// A request that may go on. While it lives, no newer epoch is acknowledged here.
pub(crate) struct Admitted {
    pub(crate) member: Rc<Member>,
    /// The role that this drive had at admission.
    pub(crate) role: Role,
    _running: Running,
}

impl Admitted {
    /// The drive that was asked.
    pub(crate) fn drive(&self) -> &Rc<ServedDrive> {
        &self.member.drive
    }
}

/// Why a request cannot go on now.
pub(crate) enum Refusal {
    /// It is answered with this.
    Answer(Answer),
    /// An entry is being adopted: ask again when the gate is open.
    GateClosed(Rc<Member>),
    /// The volume's generation must be raised durably first.
    NewGeneration(Rc<ServedDrive>, Attached),
}

impl Target {
    /// Admits a request, after waiting for what its admission needs.
    ///
    /// # Errors
    /// The answer that refuses it.
    pub(crate) async fn admit(&self, claim: &Claim) -> Result<Admitted, Answer> {
        loop {
            match self.check(claim) {
                Ok(admitted) => return Ok(admitted),
                Err(Refusal::Answer(answer)) => return Err(answer),
                Err(Refusal::GateClosed(member)) => {
                    mark(Path::WaitsForGate);
                    let changed = member.changed.notified();
                    if member.gate_is_closed() {
                        changed.await;
                    }
                }
                Err(Refusal::NewGeneration(drive, to)) => {
                    mark(Path::GenerationRaised);
                    let raised = Box::pin(drive.store.set_generation(to.volume, to.generation)).await;
                    raised.map_err(|e| drive.refusal(&e))?;
                }
            }
        }
    }

    /// Checks once more what was admitted and has let go of its guard since: whatever it found counts only if no
    /// newer epoch has come meanwhile, because from then on the drive may hold another stint's state.
    ///
    /// # Errors
    /// The answer that admission would give now.
    pub(crate) async fn stands(&self, claim: &Claim) -> Result<(), Answer> {
        if self.check(claim).is_ok() || mutated(Mutation::ReadNotAdmittedAgain) {
            return Ok(());
        }
        mark(Path::RefusedAfterwards);
        Box::pin(self.admit(claim)).await?;
        // The gate was closed, and is open again for the same epoch: what happened in between is not known.
        Err(Answer::error(Status::NotServing, "the group was being changed while the request was under way"))
    }

    /// Checks a request against the state of this very moment.
    ///
    /// # Errors
    /// Why it cannot go on now.
    pub(crate) fn check(&self, claim: &Claim) -> Result<Admitted, Refusal> {
        let member = self.check_membership(claim)?;
        if let Some(attached) = &claim.attached {
            let is_file_system = self.check_fences(&member, attached)?;
            self.check_owner(attached.volume, is_file_system, claim.of_inode)?;
        }
        if claim.version != Version::ZERO {
            self.check_version(claim.version)?;
            if !claim.is_repair && member.is_closed_for(claim.version) {
                mark(Path::ClosedBelow);
                let text = "the floor of the group is being raised above the version";
                return Err(refused(Status::NotServing, text));
            }
        }
        let (role, _running) = (member.role(), member.begin());
        Ok(Admitted { member, role, _running })
    }

    /// What fences a session (R10, R16), unless that was found to let it pass before and nothing of it has
    /// changed since. Says whether what it is attached to is a file system, as far as the map knows it.
    fn check_fences(&self, member: &Member, attached: &Attached) -> Result<bool, Refusal> {
        let (maps, fences) = (self.maps_adopted.get(), member.drive.store.fences());
        let kept = member.pass_of(attached.session);
        let is_kept = |last: &Pass| {
            let is_as_it_was = (last.maps, last.fences) == (maps, fences) || mutated(Mutation::PassKept);
            last.attached == *attached && is_as_it_was
        };
        if let Some(last) = kept.get().filter(is_kept) {
            return Ok(last.is_file_system);
        }
        self.check_listed(attached)?;
        let is_file_system = self.check_is_there(member.group, attached.volume)?;
        self.check_attach(&member.drive, attached)?;
        kept.set(Some(Pass { attached: *attached, maps, fences, is_file_system }));
        Ok(is_file_system)
    }

    /// Refuses requests about a file system in a group that holds nothing of it: its sets never change, so
    /// only a map that lacks the newest one says so of a group that a client was right to ask. Says whether
    /// the volume is a file system.
    fn check_is_there(&self, group: GroupId, volume: VolumeId) -> Result<bool, Refusal> {
        let Some(map) = self.map() else { return Ok(false) };
        match map.volumes.get(&volume) {
            Some(listed) if listed.is_file_system() && !listed.has_group(group) => {
                let text = format!("group {group} holds nothing of {volume} in map {}", map.version);
                Err(refused(Status::NotServing, text))
            }
            listed => Ok(listed.is_some_and(Volume::is_file_system)),
        }
    }

    /// A file system has objects of inodes only, and a volume none: what the one wrote as the other nobody
    /// would find or free.
    fn check_owner(
        &self,
        volume: VolumeId,
        is_file_system: bool,
        of_inode: Option<bool>,
    ) -> Result<(), Refusal> {
        let (status, text) = match of_inode {
            Some(of_inode) if of_inode != is_file_system => match self.map() {
                Some(map) if map.volumes.contains_key(&volume) => {
                    let kind = if is_file_system { "a file system" } else { "a volume of blocks" };
                    (Status::Invalid, format!("{volume} is {kind}, which has no such objects"))
                }
                // Without a map that lists it, an object of a volume is served as ever.
                _ if !of_inode => return Ok(()),
                _ => (Status::NotServing, format!("this target does not know file system {volume} yet")),
            },
            _ => return Ok(()),
        };
        Err(refused(status, text))
    }

    /// A session that the adopted map is new enough to know, and does not list as open, is over: a drive that
    /// was away when it ended has not been told. One that it lists may speak for its own slots and volume
    /// only: the watermark of another would forget what is not complete.
    fn check_listed(&self, attached: &Attached) -> Result<(), Refusal> {
        let Some(map) = self.map() else { return Ok(()) };
        let session = attached.session;
        let is_over = match mutated(Mutation::AbsentIsGone) {
            true => session.0 < map.ids_below(),
            false => map.was_forgotten(session, attached.volume),
        };
        match map.sessions.get(&session).filter(|s| s.state == SessionState::Open) {
            Some(listed) if !is_lane_of(listed, attached) => {
                let text = format!("session {session} has another slot or volume in map {}", map.version);
                Err(refused(Status::Invalid, text))
            }
            None if is_over && !mutated(Mutation::UnlistedSessionServed) => {
                mark(Path::RefusedSession);
                let text = format!("session {session} is not open in map {}", map.version);
                Err(refused(Status::SessionOver, text))
            }
            None if map.is_of_target()
                && !map.volumes.contains_key(&attached.volume)
                && !mutated(Mutation::UnlistedVolumeServed) =>
            {
                let text =
                    format!("map {} of this target does not list {} yet", map.version, attached.volume);
                Err(refused(Status::NotServing, text))
            }
            _ => Ok(()),
        }
    }

    /// Whether the adopted map lists the session behind a claim as open.
    pub(crate) fn is_listed(&self, claim: &Claim) -> bool {
        let Some((attached, map)) = claim.attached.zip(self.map()) else { return false };
        let listed = map.sessions.get(&attached.session).filter(|s| s.state == SessionState::Open);
        listed.is_some_and(|s| is_lane_of(s, &attached))
    }

    /// The volume's generation, and sessions that this drive knows to be over (R16, R10). A client may bring a
    /// generation before the map does, but a drive takes it from the map only: it refuses everything older for
    /// good, so a client's word is not enough.
    fn check_attach(&self, drive: &Rc<ServedDrive>, attached: &Attached) -> Result<(), Refusal> {
        let (volume, claimed) = (attached.volume, attached.generation);
        let floor = drive.store.generation(volume);
        if claimed < floor && !mutated(Mutation::GenerationNotChecked) {
            mark(Path::RefusedGeneration);
            let text = format!("{volume} is at {floor}, the session attached at {claimed}");
            return Err(refused(Status::StaleGeneration, text));
        }
        if drive.store.session_is_over(attached.session) && !mutated(Mutation::ClosedSessionServed) {
            mark(Path::RefusedSession);
            return Err(refused(Status::SessionOver, format!("session {} is over", attached.session)));
        }
        if claimed > floor {
            let listed = self.map().and_then(|map| map.volumes.get(&volume).map(|v| v.generation));
            if listed.is_none_or(|listed| claimed > listed) {
                let text = format!("this target's map {} does not know {claimed} yet", self.map_version());
                return Err(refused(Status::NotServing, text));
            }
            return Err(Refusal::NewGeneration(drive.clone(), *attached));
        }
        Ok(())
    }

    fn check_membership(&self, claim: &Claim) -> Result<Rc<Member>, Refusal> {
        let member = self.member(claim.drive, claim.group);
        let drive = member.as_ref().map(|member| &member.drive).or_else(|| self.drives.get(&claim.drive));
        let drive = drive.ok_or_else(|| {
            refused(Status::NotFound, format!("drive {} is not served by this target", claim.drive))
        })?;
        if let Some(cause) = drive.failure() {
            return Err(refused(Status::DriveFailed, cause));
        }
        if self.lags(drive) && !mutated(Mutation::LaggingServes) {
            let text = format!("the drive has not adopted map {} yet", self.map_version());
            return Err(refused(Status::NotServing, text));
        }
        if self.is_stopped() || !self.holds_lease(member.as_deref()) {
            mark(Path::RefusedNoLease);
            return Err(refused(Status::NotServing, "this target holds no lease"));
        }
        let Some(member) = member else {
            // Epoch 0: the sender knows a newer one and will tell.
            return Err(refused(Status::UnknownEpoch, "the group is not known on this drive"));
        };
        if member.is_gone() {
            return Err(refused(Status::NotFound, format!("group {} has been removed", claim.group)));
        }
        if member.gate_is_closed() {
            return Err(Refusal::GateClosed(member));
        }
        let is_known = |e: Epoch| e >= claim.epoch || mutated(Mutation::NewerEpochAdmitted);
        let Some(entry) = member.entry().filter(|e| is_known(e.epoch)) else {
            return Err(refused(Status::UnknownEpoch, format!("this drive knows {}", member.epoch())));
        };
        if entry.epoch > claim.epoch && !mutated(Mutation::StaleEpochAdmitted) {
            let head = control::encode(&*entry);
            return Err(Refusal::Answer(Answer { status: Status::StaleEpoch, head, body: Body::none() }));
        }
        let serves = match claim.need {
            Need::ReadSet if mutated(Mutation::SyncingServesReads) => member.role() != Role::Out,
            Need::ReadSet => member.role() == Role::InSync,
            Need::WriteSet => member.role() != Role::Out,
        };
        if !serves && !mutated(Mutation::OutServes) {
            mark(Path::RefusedRole);
            return Err(refused(Status::NotServing, format!("this drive is {} in the group", member.role())));
        }
        Ok(member)
    }

    /// Whether this target may serve the group: by the manager's word, or by that of every other member.
    pub(crate) fn holds_lease(&self, member: Option<&Member>) -> bool {
        if self.lease.is_valid() || mutated(Mutation::NoLease) {
            return true;
        }
        let is_vouched_for = member.is_some_and(|m| self.is_vouched_for(m));
        if is_vouched_for {
            mark(Path::VouchedLease);
        }
        is_vouched_for
    }

    /// Refuses a version whose counter no sane clock can have led to. The bound is a wall clock, not the hybrid one:
    /// otherwise a bad client could climb without end, one allowance at a time.
    fn check_version(&self, version: Version) -> Result<(), Refusal> {
        if !self.steady_clock.allows(version.counter()) {
            let head = WriteAnswer { clock: self.clock(), verdicts: vec![] }.encode();
            return Err(Refusal::Answer(Answer { status: Status::VersionAhead, head, body: Body::none() }));
        }
        self.highest_counter.set(self.highest_counter.get().max(version.counter()));
        Ok(())
    }

    /// The hybrid clock, as a version counter: the wall clock, or the highest counter admitted if that is ahead.
    pub(crate) fn clock(&self) -> u64 {
        clock_counter(wall_clock_us()).max(self.highest_counter.get())
    }
}

/// Whether a request is of a lane of this session (P6).
fn is_lane_of(listed: &Session, attached: &Attached) -> bool {
    listed.has_slot(attached.slot) && listed.volume == attached.volume
}

fn refused(status: Status, text: impl Into<String>) -> Refusal {
    Refusal::Answer(Answer::error(status, text))
}
