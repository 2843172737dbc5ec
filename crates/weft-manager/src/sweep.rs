//! Sessions that are over: every target refuses them for good, then their open entries are finished or
//! buried, then they are forgotten (R10).
//!
//! It owns the rounds. A round counts only if no group of the volume has changed meanwhile: a replica that
//! came back during it may have brought open entries along that had been swept elsewhere. Nothing is
//! forgotten on a hope: a target that does not answer is asked until it does, or has left the volume's
//! groups.

use crate::attend::AskError;
use crate::manager::{Manager, State};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use weft_membership::{Change, SweepSession};
use weft_rt::sync::join_all;
use weft_rt::{sleep, spawn};
use weft_rules::{Mutation, mutated};
use weft_types::limits::LANES_MAX;
use weft_types::{Epoch, GroupId, SessionId, SessionSlot, TargetId, VolumeId, with_causes};
use weft_wire::control::TargetRequest;

/// Slots of sessions in one request: it has to fit the head of a frame.
const SESSIONS_PER_REQUEST: usize = 256;

/// How long a target may take to sweep before it is asked again: it copies every open entry of a session,
/// 4096 per group at most, to its peers.
const SWEEP_MAX: Duration = Duration::from_secs(30);

/// How long to wait before the targets that failed are asked again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

impl State {
    /// The epochs of a volume's groups.
    pub(crate) fn epochs_of(&self, volume: VolumeId) -> Vec<(GroupId, Epoch)> {
        let Some(volume) = self.map.volumes.get(&volume) else { return Vec::new() };
        let groups: BTreeSet<&GroupId> = volume.groups().collect();
        groups.into_iter().filter_map(|g| Some((*g, self.map.groups.get(g)?.epoch))).collect()
    }

    /// All of these targets, since none speaks for another one of its node (P3).
    fn to_be_asked(&self, targets: impl Iterator<Item = TargetId>) -> BTreeSet<TargetId> {
        if !mutated(Mutation::NodeAnswersOnce) {
            return targets.collect();
        }
        let node = |target: TargetId| self.map.targets.get(&target).map(|t| t.node);
        let by_node: BTreeMap<_, TargetId> = targets.map(|target| (node(target), target)).collect();
        by_node.into_values().collect()
    }

    /// Sessions of the volume that are over and not yet swept, each with the slots of all its lanes (P7).
    fn over(&self, volume: VolumeId) -> Vec<(SessionId, SessionSlot)> {
        let sessions = self.index.over_of(volume).filter_map(|id| self.map.sessions.get(&id));
        let lanes = if mutated(Mutation::OneSlotSwept) { 1 } else { LANES_MAX };
        sessions.flat_map(|s| s.slots().take(lanes).map(|slot| (s.id, slot))).collect()
    }
}

impl Manager {
    /// Begins to sweep the sessions that are over, one task per volume.
    pub(crate) fn sweep_what_is_over(self: &Rc<Self>) {
        let volumes: Vec<VolumeId> = {
            let mut state = self.state.borrow_mut();
            let volumes = state.index.volumes_with_over();
            volumes.into_iter().filter(|volume| state.sweeping.insert(*volume)).collect()
        };
        for volume in volumes {
            let manager = self.clone();
            spawn(async move {
                manager.sweep(volume).await;
                manager.state.borrow_mut().sweeping.remove(&volume);
                manager.changed.notify_all();
            });
        }
    }

    async fn sweep(self: &Rc<Self>, volume: VolumeId) {
        while self.halted.borrow().is_none() {
            let (sessions, epochs) = {
                let state = self.state.borrow();
                (state.over(volume), state.epochs_of(volume))
            };
            if sessions.is_empty() {
                return;
            }
            match self.sweep_once(volume, &sessions).await {
                // Checked and committed in one step: nothing can come back in between.
                Ok(()) if self.state.borrow().epochs_of(volume) == epochs => self.forget(&sessions),
                Ok(()) => {}
                Err(error) => {
                    tracing::debug!(%volume, error, "sessions are not swept yet");
                    sleep(RETRY_AFTER).await;
                }
            }
        }
    }

    /// Every target of the volume refuses the sessions; only then every target sweeps them, since until then
    /// one of them may still take a write that another has swept.
    async fn sweep_once(
        self: &Rc<Self>,
        volume: VolumeId,
        sessions: &[(SessionId, SessionSlot)],
    ) -> Result<(), String> {
        if mutated(Mutation::ForgottenUnswept) {
            return Ok(());
        }
        // Of the same instant as the epochs that are compared after the round.
        let (processes, map) = {
            let state = self.state.borrow();
            (state.writing_processes(volume)?, state.map.version)
        };
        // An end that is only decided may never be, and no target takes it back.
        if !mutated(Mutation::CommandEarly) {
            self.all_durable().await?;
        }
        let targets = self.state.borrow().to_be_asked(processes.keys().copied());
        for part in sessions.chunks(SESSIONS_PER_REQUEST) {
            let end = TargetRequest::EndSessions { sessions: ids(part).into_iter().collect() };
            if !mutated(Mutation::SweptBeforeRefused) {
                self.ask_all(&targets, &end, SWEEP_MAX).await?;
            }
        }
        for part in sessions.chunks(SESSIONS_PER_REQUEST) {
            let sweep = |target: TargetId| {
                let map = self.state.borrow().newest_for_up_to(target, map);
                TargetRequest::Sweep { sessions: part.to_vec(), volume, map }
            };
            self.ask_each(&targets, sweep, SWEEP_MAX).await?;
        }
        // Another process may hold what the one that answered had not.
        match self.state.borrow().writing_processes(volume)? == processes {
            true => Ok(()),
            false => Err("a target was started anew meanwhile".into()),
        }
    }

    /// Asks several targets the same.
    ///
    /// # Errors
    /// If one of them did not do it, and has not left the map's groups meanwhile: what was in its way.
    pub(crate) async fn ask_all(
        self: &Rc<Self>,
        targets: &BTreeSet<TargetId>,
        request: &TargetRequest,
        patience: Duration,
    ) -> Result<(), String> {
        self.ask_each(targets, |_| request.clone(), patience).await
    }

    /// Asks each of several targets something of its own.
    async fn ask_each(
        self: &Rc<Self>,
        targets: &BTreeSet<TargetId>,
        request: impl Fn(TargetId) -> TargetRequest,
        patience: Duration,
    ) -> Result<(), String> {
        let asked = targets.iter().map(|&target| {
            let request = request(target);
            async move { (target, self.ask(target, &request, None, patience).await) }
        });
        let failed: Vec<(TargetId, AskError)> =
            join_all(asked).await.into_iter().filter_map(|(target, r)| Some((target, r.err()?))).collect();
        match failed.first() {
            None => Ok(()),
            Some((target, error)) => Err(format!("{}: {}", self.map().title_of(*target), with_causes(error))),
        }
    }

    fn forget(&self, sessions: &[(SessionId, SessionSlot)]) {
        for session in ids(sessions) {
            if let Err(error) = self.commit(&Change::SweepSession(SweepSession { session })) {
                tracing::warn!(%session, error = with_causes(&error), "a swept session is not forgotten");
            }
        }
    }
}

fn ids(sessions: &[(SessionId, SessionSlot)]) -> BTreeSet<SessionId> {
    sessions.iter().map(|(id, _)| *id).collect()
}
