//! From what is decided to what is durable (C1): the task that writes, and waiting for it.
//!
//! A commit is decided in one step, and the store has it later. This file owns the time between. Decisions use
//! the newest map; what leaves the manager is durable: maps that are pushed, commands that cannot be taken
//! back, and answers, which wait for all that was decided when they were made.

use crate::event::written_with;
use crate::led_store::{Decided, LedStore};
use crate::manager::{COMMITS_KEPT_EVERY, Manager};
use crate::store::{Journal, StoreError};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::race;
use weft_rt::{now, sleep, timeout};
use weft_rules::{Path, mark};
use weft_types::{FabricMap, with_causes};

/// How long an answer waits for the store. After that it says that the outcome is unknown.
pub(crate) const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait before something that is not urgent is written again that the store did not take.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// The newest durable map, and the commits after it, which are not durable yet.
pub(crate) struct Durable {
    pub(crate) map: Rc<FabricMap>,
    waiting: VecDeque<Decided>,
    /// Since when which trouble is there, as a document, if that is to be written down.
    troubles: Option<Vec<u8>>,
}

impl Durable {
    /// This map is durable, and nothing else is decided.
    pub(crate) fn at(map: Rc<FabricMap>) -> Durable {
        Durable { map, waiting: VecDeque::new(), troubles: None }
    }

    /// A commit is decided.
    pub(crate) fn add(&mut self, decided: Decided) {
        self.waiting.push_back(decided);
    }

    /// How many commits are decided and not durable.
    pub(crate) fn ahead(&self) -> usize {
        self.waiting.len()
    }

    /// This document is to be written down instead of the one before.
    pub(crate) fn note_troubles(&mut self, document: Vec<u8>) {
        self.troubles = Some(document);
    }
}

impl Manager {
    /// The newest map that the store has.
    pub(crate) fn durable_map(&self) -> Rc<FabricMap> {
        self.state.borrow().durable.map.clone()
    }

    /// Waits until everything is durable that is decided now.
    ///
    /// # Errors
    /// Why that is not known.
    pub(crate) async fn all_durable(&self) -> Result<(), String> {
        let version = self.map().version;
        let durable = async {
            loop {
                let changed = self.changed.notified();
                if self.durable_map().version >= version {
                    return Ok(());
                }
                if let Some(reason) = self.halted.borrow().as_ref() {
                    return Err(format!(
                        "it is not known whether it is kept: this manager has stopped: {reason}"
                    ));
                }
                changed.await;
            }
        };
        timeout(STORE_PATIENCE, durable).await.unwrap_or_else(|_| {
            Err(format!(
                "it is not known whether it is kept: the manager's store has not answered for {} s",
                STORE_PATIENCE.as_secs()
            ))
        })
    }

    /// Writes commits and events, one transaction after the other, until the manager stops.
    pub(crate) async fn keep_durable(self: Rc<Self>) {
        while self.halted.borrow().is_none() {
            let decided = self.decided.notified();
            let done = match self.next_commits() {
                commits if !commits.is_empty() => Ok(self.make_durable(commits).await),
                _ => self.write_what_can_wait().await,
            };
            match done {
                Ok(true) => {}
                Ok(false) => decided.await,
                Err(error) => {
                    tracing::warn!(error = with_causes(&error), "the store does not take what can wait");
                    race(decided, sleep(RETRY_AFTER)).await;
                }
            }
        }
    }

    /// Takes the commits that the next transaction keeps.
    fn next_commits(&self) -> Vec<Decided> {
        let mut state = self.state.borrow_mut();
        let waiting = &mut state.durable.waiting;
        if waiting.is_empty() {
            return Vec::new();
        }
        let at_once = LedStore::at_once(waiting.iter());
        waiting.drain(..at_once).collect()
    }

    /// Has the store keep these commits. If it fails, the manager stops: it is unknown then which map it has.
    async fn make_durable(&self, commits: Vec<Decided>) -> bool {
        let to = commits.last().expect("there are some").delta.to;
        let events = self.state.borrow().events.unwritten(to);
        let numbers = written_with(&events);
        let journal = Journal { events, ..Journal::default() };
        if let Err(error) = self.store.commit(&commits, &journal).await {
            mark(Path::ManagerFenced);
            self.halt(format!("map {to} was not committed: {}", with_causes(&error)));
            return false;
        }
        {
            let mut state = self.state.borrow_mut();
            for Decided { delta, map, .. } in commits {
                state.durable.map = map.clone();
                state.recent.add(map, delta);
            }
            state.events.note_written(numbers);
        }
        self.changed.notify_all();
        true
    }

    /// Writes down what was told, and lets the store's base catch up: one transaction, if there is anything to
    /// do. What the store does not take now it is asked for again: no commit waits for it.
    async fn write_what_can_wait(&self) -> Result<bool, StoreError> {
        if !self.store.leads() {
            return Ok(false);
        }
        let (journal, map) = {
            let mut state = self.state.borrow_mut();
            let (commits, durable) = (state.commits_to_keep(COMMITS_KEPT_EVERY), &state.durable);
            let (events, troubles) = (state.events.unwritten(durable.map.version), durable.troubles.clone());
            (Journal { events, troubles, commits }, durable.map.clone())
        };
        let numbers = written_with(&journal.events);
        if journal.is_empty() {
            return self.store.fold(&map).await;
        }
        let written = self.store.write_down(&journal).await;
        let mut state = self.state.borrow_mut();
        state.commits_kept.1 |= written.is_err() && journal.commits.is_some();
        written?;
        state.events.note_written(numbers);
        if state.durable.troubles == journal.troubles {
            state.durable.troubles = None;
        }
        Ok(true)
    }

    /// Confirms the term as long as it lasts; where it is not confirmed in time, the manager stops.
    pub(crate) async fn keep_leading(self: Rc<Self>) {
        let Some(every) = self.store.beat_every() else { return };
        while self.halted.borrow().is_none() {
            let next = now() + every;
            match self.store.confirm().await {
                Ok(()) => {}
                Err(error @ StoreError::Overtaken { .. }) => {
                    mark(Path::ManagerFenced);
                    self.halt(with_causes(&error));
                }
                Err(error) => tracing::warn!(error = with_causes(&error), "the term is not confirmed"),
            }
            if let Err(reason) = self.check_term() {
                tracing::debug!(reason, "the term is over");
            }
            weft_rt::sleep_until(next).await;
        }
    }
}
