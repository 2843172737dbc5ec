//! What clients say of the targets that they reach, and the events about it.
//!
//! It owns the way from a client's words to `weft_membership::Reach`, which decides. What a client says
//! counts from when it arrives: its own clock only tells for how long something has been so.

use crate::event::Subjects;
use crate::manager::{Manager, State};
use crate::observe::to_ms;
use crate::trouble::named_clients;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weft_membership::ReachReport;
use weft_rt::now;
use weft_rules::{Mutation, mutated};
use weft_types::limits::REACH_TARGETS_MAX;
use weft_types::{SessionId, TargetId};
use weft_wire::control::TargetAge;

impl Manager {
    /// Takes note of which targets the client of these sessions reaches, and looks after those that it
    /// does not.
    pub(crate) fn note_reach(
        self: &Rc<Self>,
        sessions: impl Iterator<Item = SessionId>,
        silent: &[TargetAge],
        heard: &[TargetAge],
    ) {
        let (map, now_ms) = (self.map(), to_ms(now()));
        let since = |ages: &[TargetAge]| -> BTreeMap<TargetId, u64> {
            let known =
                ages.iter().take(REACH_TARGETS_MAX).filter(|age| map.targets.contains_key(&age.target));
            known.map(|age| (age.target, now_ms.saturating_sub(age.ms))).collect()
        };
        let report = ReachReport { said_ms: now_ms, silent: since(silent), heard: since(heard) };
        let is_news = {
            let mut state = self.state.borrow_mut();
            let mut is_news = false;
            for session in sessions {
                let before = state.reports.insert(session, report.clone());
                is_news |= before.is_some_and(|r| !r.silent.is_empty()) || !report.silent.is_empty();
            }
            is_news
        };
        for target in report.silent.keys() {
            self.probe(*target);
        }
        if is_news {
            self.changed.notify_all();
        }
    }

    /// Judges by now what clients have said, and tells who begins to miss which target, and who does no more.
    pub(crate) fn look_at_reach(&self) {
        if mutated(Mutation::ReportsUnheeded) {
            return;
        }
        let told = {
            let mut state = self.state.borrow_mut();
            let before = state.complaints();
            state.judge_reach();
            state.news_of_reach(&before)
        };
        for (what, why, about) in told {
            self.tell(what, why, about);
        }
    }
}

impl State {
    fn judge_reach(&mut self) {
        let mut reach = std::mem::take(&mut self.reach);
        let up_since = |target: TargetId| self.members.get(&target).map_or(0, |m| to_ms(m.up_since));
        reach.look(&self.map, &self.reports, &|drive| self.is_served(drive), &up_since, to_ms(now()));
        self.reach = reach;
    }

    /// The targets that clients miss now, and who they are.
    fn complaints(&self) -> BTreeMap<TargetId, BTreeSet<String>> {
        let standing = self.reach.cuts().filter(|(_, cut)| cut.ended_ms.is_none());
        standing.map(|(target, cut)| (target, cut.clients.clone())).collect()
    }

    /// What has begun and what has ended since.
    fn news_of_reach(
        &self,
        before: &BTreeMap<TargetId, BTreeSet<String>>,
    ) -> Vec<(&'static str, String, Subjects)> {
        let mut news = Vec::new();
        for (target, cut) in self.reach.cuts().filter(|(_, cut)| cut.ended_ms.is_none()) {
            let known = before.get(&target);
            let new: BTreeSet<String> =
                cut.clients.iter().filter(|c| !known.is_some_and(|k| k.contains(*c))).cloned().collect();
            if !new.is_empty() {
                let (title, since) = (self.map.title_of(target), to_ms(now()).saturating_sub(cut.since_ms));
                let who = named_clients(&new);
                let why = format!("{who} cannot reach {title}: no answer for {since} ms");
                news.push(("client-cut-off", why, Subjects::target(&self.map, target)));
            }
        }
        let now_ms = to_ms(now());
        let standing = self.complaints();
        for (target, clients) in before.iter().filter(|(target, _)| !standing.contains_key(target)) {
            let title = self.map.title_of(*target);
            let cut = self.reach.cuts().find(|(n, _)| n == target).map(|(_, cut)| cut);
            let back_ms = cut.and_then(|cut| self.reach.back_ms(&self.map, cut));
            let then = back_ms.map_or_else(String::new, |at| {
                format!("; its copies are taken back in {} ms if it stays so", at.saturating_sub(now_ms))
            });
            let who = named_clients(clients);
            let why = format!("{who} can reach {title} again, or gave it up{then}");
            news.push(("client-reaches-again", why, Subjects::target(&self.map, *target)));
        }
        news
    }
}
