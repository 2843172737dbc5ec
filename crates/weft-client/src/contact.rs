//! What is known of the way to a target: whether it answers.

use std::cell::Cell;
use std::time::Duration;
use weft_rpc::Link;
use weft_rt::{Instant, now};

/// What is known of the way to a target.
#[derive(Default)]
pub(crate) struct Contact {
    /// Answers on the present connection, at the last look.
    answers: Cell<u64>,
    /// Somebody has asked for a connection since the last look.
    wanted: Cell<bool>,
    /// Connection attempts under way.
    connecting: Cell<u32>,
    /// When it answered last, as far as was looked.
    pub(crate) heard: Cell<Option<Instant>>,
    /// Since when an answer is awaited in vain.
    pub(crate) silent: Cell<Option<Instant>>,
    /// Whether the manager and the log have been told of the silence.
    pub(crate) is_reported: Cell<bool>,
    /// A probe is under way.
    pub(crate) is_probed: Cell<bool>,
    /// When the last probe began.
    pub(crate) probed: Cell<Option<Instant>>,
}

/// A connection attempt, while it is under way.
pub(crate) struct Connecting<'a>(&'a Contact);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.connecting.set(self.0.connecting.get() - 1);
    }
}

impl Contact {
    /// Somebody needs a connection, and there is none.
    pub(crate) fn want(&self) {
        self.wanted.set(true);
    }

    /// A connection attempt begins.
    pub(crate) fn connect(&self) -> Connecting<'_> {
        self.connecting.set(self.connecting.get() + 1);
        Connecting(self)
    }

    /// The target has answered.
    pub(crate) fn hear(&self) {
        self.heard.set(Some(now()));
        self.silent.set(None);
    }

    /// Since when the target has not answered although something was asked of it.
    pub(crate) fn silence(&self) -> Option<Duration> {
        self.silent.get().map(|since| since.elapsed())
    }

    /// Looks whether something was heard of the target since the last look, or is awaited. A silence
    /// that was reported ends only when the target is heard of, also if nothing is asked of it any more.
    pub(crate) fn look(&self, link: Option<&Link>) {
        let answers = link.map_or(0, Link::answers);
        let has_answered = answers != self.answers.replace(answers) && answers > 0;
        let is_awaited =
            self.wanted.replace(false) || self.connecting.get() > 0 || link.is_some_and(Link::is_waiting);
        match (has_answered, is_awaited) {
            (true, _) => self.hear(),
            (false, true) if self.silent.get().is_none() => self.silent.set(Some(now())),
            (false, false) if !self.is_reported.get() => self.silent.set(None),
            (false, _) => {}
        }
    }
}
