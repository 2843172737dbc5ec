//! Attach and detach.
//!
//! It owns what an attach waits for (R16): where it fences earlier clients, every drive of the volume has
//! adopted the new generation, and the earlier sessions are swept. The sweeping itself is in `sweep.rs`.

use crate::error::{CommitError, Denied};
use crate::manager::{Manager, State};
use crate::member::Member;
use std::collections::{BTreeMap, BTreeSet};
use weft_membership::{Change, CloseSession, OpenSession, Reason, Refusal, exclusive_over};
use weft_rt::{now, timeout};
use weft_rules::{Mutation, mutated};
use weft_types::{
    AttachKind, AttachMode, DriveId, FabricMap, MapVersion, Session, SessionId, SessionState, TargetId,
    Volume, VolumeId, VolumeKind,
};
use weft_wire::Status;

/// What a client asks for with an attach.
pub(crate) struct AttachWish {
    /// What the session may do.
    pub(crate) mode: AttachMode,
    /// Whether sessions in the way are ended.
    pub(crate) preempt: bool,
    /// Who asks, for people.
    pub(crate) client: String,
    /// By what the client knows the attach again; 0: it does not say.
    pub(crate) number: u64,
    /// How many lanes the session is to have.
    pub(crate) lanes: u32,
    /// What the client takes the volume for.
    pub(crate) kind: AttachKind,
    /// Beside which target the server of a shard runs, if it is one.
    pub(crate) server: Option<TargetId>,
}

impl State {
    /// The targets whose targets take writes to a volume.
    pub(crate) fn writers_of(&self, volume: VolumeId) -> BTreeSet<TargetId> {
        let drives = self.write_sets_of(volume).into_iter();
        drives.filter_map(|d| Some(self.map.drives.get(&d)?.target)).collect()
    }

    /// The drives that take writes to a volume.
    fn write_sets_of(&self, volume: VolumeId) -> BTreeSet<DriveId> {
        let Some(volume) = self.map.volumes.get(&volume) else { return BTreeSet::new() };
        let groups: BTreeSet<_> = volume.groups().collect();
        let groups = groups.into_iter().filter_map(|g| self.map.groups.get(g));
        groups.flat_map(|g| g.write_set()).collect()
    }

    /// The processes whose drives take writes to a volume, by their targets.
    ///
    /// # Errors
    /// If one of those drives is not served by its target, as far as is known: what it holds counts again
    /// when it is, and nobody answers for it now.
    pub(crate) fn writing_processes(&self, volume: VolumeId) -> Result<BTreeMap<TargetId, u64>, String> {
        let mut processes = BTreeMap::new();
        for drive in self.write_sets_of(volume) {
            let target = self.map.drives.get(&drive).map(|d| d.target);
            let member = target.and_then(|target| self.members.get(&target));
            let is_newest = |m: &&Member| m.has_drive(drive) && self.is_of_newest_process(m, drive);
            let incarnation = member.filter(is_newest).and_then(|m| m.incarnation);
            match target.zip(incarnation) {
                Some((target, incarnation)) => processes.insert(target, incarnation),
                None => return Err(format!("drive {drive} is not served now, and may be again")),
            };
        }
        processes.extend(self.serving_processes(volume)?);
        Ok(processes)
    }

    /// The processes that serve the shards of a file system, by their targets; none of another volume. What
    /// their sessions write is a file system's as well: an operation that a client has given up must not
    /// happen once its session is forgotten.
    ///
    /// # Errors
    /// If a former server may still do what it was asked for, or one is not there.
    fn serving_processes(&self, volume: VolumeId) -> Result<BTreeMap<TargetId, u64>, String> {
        let files = self.map.volumes.get(&volume).and_then(Volume::files);
        let mut processes = BTreeMap::new();
        for shard in files.into_iter().flat_map(|files| &files.shards) {
            if self.index.over_of(shard.volume).next().is_some() {
                return Err(format!("the former server of {} is not swept yet", shard.volume));
            }
            let Some(session) = self.index.sessions_of(shard.volume).next() else { continue };
            let server = shard.server.ok_or_else(|| format!("nobody is named for {session}"))?;
            let member = self.members.get(&server).filter(|member| member.is_up());
            match member.and_then(|member| member.incarnation) {
                Some(incarnation) => processes.insert(server, incarnation),
                None => return Err(format!("the server of {session} does not answer")),
            };
        }
        Ok(processes)
    }

    /// The targets with drives that take writes to the volume and have not adopted this map, as far as it
    /// concerns their targets. Other drives of these targets may lag: what they have adopted does not concern
    /// the volume.
    pub(crate) fn behind(&self, volume: VolumeId, version: MapVersion) -> BTreeSet<TargetId> {
        let target_behind = |drive: DriveId| {
            let listed = self.map.drives.get(&drive)?;
            let target = listed.target;
            let is_at = match mutated(Mutation::NodeAnswersOnce) {
                true => self.members_of(listed.node).any(|(_, member)| member.is_at(version)),
                false => self.members.get(&target).is_some_and(|m| m.drive_is_at(drive, version)),
            };
            (!is_at).then_some(target)
        };
        self.write_sets_of(volume).into_iter().filter_map(target_behind).collect()
    }

    /// The nodes of these targets by name, for people.
    pub(crate) fn names<'a>(&self, targets: impl IntoIterator<Item = &'a TargetId>) -> String {
        let name = |id: &TargetId| self.map.node_of(*id).map_or_else(|| id.to_string(), |n| n.name.clone());
        let names: BTreeSet<String> = targets.into_iter().map(name).collect();
        names.into_iter().collect::<Vec<_>>().join(", ")
    }
}

/// Refuses an attach of something else than the client takes it for.
fn check_kind(map: &FabricMap, volume: &Volume, wanted: AttachKind) -> Result<(), Denied> {
    let name = &volume.name;
    let text = match (&volume.kind, wanted) {
        (VolumeKind::Blocks, AttachKind::Blocks)
        | (VolumeKind::Files(_), AttachKind::Files)
        | (VolumeKind::System { .. }, AttachKind::System) => return Ok(()),
        (VolumeKind::Files(_), _) => format!("'{name}' is a file system, not a volume of blocks"),
        (VolumeKind::System { file_system }, _) => {
            let listed = map.volumes.get(file_system);
            let file_system = listed.map_or_else(|| file_system.to_string(), |listed| listed.name.clone());
            format!(
                "volume '{name}' holds metadata of file system '{file_system}', and only that attaches it"
            )
        }
        (VolumeKind::Blocks, _) => format!("'{name}' is a volume of blocks, not a file system"),
    };
    Err(Denied::new(Status::Refused, text))
}

/// Refuses the attach of a system volume to all but the server that is named for its shard.
fn check_server(map: &FabricMap, volume: &Volume, server: Option<TargetId>) -> Result<(), Denied> {
    let Some(named) = named_server(map, volume) else { return Ok(()) };
    if server.is_some() && server == named {
        return Ok(());
    }
    let who = |target: Option<TargetId>| target.map_or("nobody".to_owned(), |target| map.title_of(target));
    let text = format!(
        "volume '{}' is attached by the server of its shard, which is {}; asked by {}",
        volume.name,
        who(named),
        who(server)
    );
    Err(Denied::new(Status::Refused, text))
}

/// The target that is named for the shard of a system volume, if one is; nothing of another volume.
fn named_server(map: &FabricMap, volume: &Volume) -> Option<Option<TargetId>> {
    let files = map.volumes.get(&volume.system_of()?)?.files()?;
    Some(files.shards.iter().find(|shard| shard.volume == volume.id)?.server)
}

impl Manager {
    /// Opens a session. Returns it once everything that the mode asks for is done.
    ///
    /// # Errors
    /// If there is no such volume, sessions are in the way, or a target that must know of it does not answer;
    /// the session is over then.
    pub(crate) async fn attach(&self, volume: &str, wish: AttachWish) -> Result<Session, Denied> {
        let unknown =
            || Denied::new(Status::NotFound, format!("there is no volume '{volume}' in the fabric"));
        let id = {
            let map = self.map();
            let listed = map.volume_named(volume).ok_or_else(unknown)?;
            check_kind(&map, listed, wish.kind)?;
            check_server(&map, listed, wish.server)?;
            listed.id
        };
        let term = self.map().durations.session();
        let (session, fences) = match self.asked_before(id, &wish) {
            // The first request may still wait, and ends the session if it waits in vain: so the client gets
            // the session only after all that the first one waits for.
            Some(session) => (session, true),
            None => self.open(id, wish)?,
        };
        self.state.borrow_mut().touched.insert(session, now());
        if fences {
            let version = self.map().version;
            let mut begun = now();
            while timeout(term, self.settled(id, session, version)).await.is_err() {
                if self.has_stalled_since(begun) {
                    begun = now();
                    continue;
                }
                let text = self.why_unsettled(volume, id, version);
                // If it is gone already, somebody else has ended it.
                let _ = self.commit(&Change::CloseSession(CloseSession { session }));
                return Err(Denied::new(Status::NotReady, text));
            }
        }
        let mut state = self.state.borrow_mut();
        let entry = state.map.sessions.get(&session).filter(|s| s.state == SessionState::Open).cloned();
        let Some(entry) = entry else {
            let text = format!("the attach of volume '{volume}' was ended by another one while it waited");
            return Err(Denied::new(Status::SessionOver, text));
        };
        state.touched.insert(session, now());
        Ok(entry)
    }

    /// Opens a session, and says whether it fences clients before it.
    fn open(&self, volume: VolumeId, wish: AttachWish) -> Result<(SessionId, bool), Denied> {
        let lanes = self.lanes_for(&wish);
        let AttachWish { mode, preempt, client, number, .. } = wish;
        self.make_way(volume, mode);
        // Its client may not know that it is over, and may change parts of blocks as if it were the only
        // writer.
        let follows_exclusive = exclusive_over(&self.map(), volume).next().is_some();
        let open = Change::OpenSession(OpenSession { volume, mode, client, preempt, number, lanes });
        let reason = self.commit(&open).map_err(|error| self.why_not_attached(error))?;
        let Reason::SessionOpened { session, ended, .. } = reason else {
            unreachable!("opening a session gives the reason of that name")
        };
        Ok((session, mode == AttachMode::Exclusive || !ended.is_empty() || follows_exclusive))
    }

    /// How many lanes an attach may have: one, as long as a target has not said that it knows of more. It
    /// would refuse the others, and sweep the first one's slot alone. Once there are some, no such target
    /// joins (`join.rs`).
    fn lanes_for(&self, wish: &AttachWish) -> u32 {
        if wish.lanes <= 1 {
            return wish.lanes;
        }
        let state = self.state.borrow();
        let knows = |target: &TargetId| {
            state.members.get(target).is_some_and(|m| m.incarnation.is_some() && m.knows_lanes)
        };
        let Some(older) = state.map.targets.keys().find(|target| !knows(target)) else { return wish.lanes };
        let (client, wanted) = (&wish.client, wish.lanes);
        tracing::info!(
            client,
            wanted,
            "an attach gets one lane: {} has not said that it knows of several",
            state.map.title_of(*older)
        );
        1
    }

    /// The session of an attach that the client asks for again, because it got no answer (C10).
    fn asked_before(&self, volume: VolumeId, wish: &AttachWish) -> Option<SessionId> {
        if wish.number == 0 || mutated(Mutation::AttachUnnumbered) {
            return None;
        }
        let state = self.state.borrow();
        let is_own = |s: &&Session| {
            let is_open = s.state == SessionState::Open && s.volume == volume;
            is_open && (s.number, s.mode, &s.client) == (wish.number, wish.mode, &wish.client)
        };
        let sessions = state.index.sessions_of(volume).filter_map(|id| state.map.sessions.get(&id));
        Some({ sessions }.find(is_own)?.id)
    }

    /// Why an attach is refused. Of a session that is in the way, people must know whether its client lives,
    /// and what to do if it does not. What they can do if it lives is in the hint of whoever asks.
    fn why_not_attached(&self, error: CommitError) -> Denied {
        let CommitError::Refused(refusal @ Refusal::Attached { first, .. }) = &error else {
            return error.into();
        };
        let first = *first;
        let (silent, term) = {
            let state = self.state.borrow();
            let heard = state.touched_at(first);
            (heard.elapsed(), state.map.durations.session())
        };
        let left = term.saturating_sub(silent);
        let text = format!(
            "{refusal}, heard of {:.1} s ago: if it has died, it is over in {:.1} s, or at once \
             with `weft session end {first}`",
            silent.as_secs_f64(),
            left.as_secs_f64()
        );
        Denied::new(Status::Refused, text)
    }

    /// Completes when every drive of the volume has adopted this map, and every session of it that was over
    /// before this one began is swept and forgotten.
    async fn settled(&self, volume: VolumeId, session: SessionId, version: MapVersion) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state.borrow();
                let is_known = state.behind(volume, version).is_empty();
                let is_swept = state.index.over_of(volume).all(|over| over >= session);
                if (is_known || mutated(Mutation::AttachBeforeGeneration))
                    && (is_swept || mutated(Mutation::AttachBeforeSweep))
                {
                    return;
                }
            }
            changed.await;
        }
    }

    fn why_unsettled(&self, name: &str, volume: VolumeId, version: MapVersion) -> String {
        let state = self.state.borrow();
        let behind = state.behind(volume, version);
        match behind.is_empty() {
            false => format!(
                "volume '{name}' cannot be attached: nodes that hold the last copy of some of it have not answered: {}",
                state.names(&behind)
            ),
            true => format!(
                "volume '{name}' cannot be attached yet: the writes of earlier clients are being finished"
            ),
        }
    }

    /// Ends a session that its client is done with. The sweep follows by itself.
    ///
    /// # Errors
    /// If the manager has stopped.
    pub(crate) fn detach(&self, session: SessionId) -> Result<(), Denied> {
        match self.commit(&Change::CloseSession(CloseSession { session })) {
            Ok(_) => Ok(()),
            // Said again after a lost answer, or it had expired.
            Err(CommitError::Refused(Refusal::Unknown { .. } | Refusal::AlreadyOver { .. })) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
