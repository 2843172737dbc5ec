//! What has to be over before a phase begins, and what is said where it was not.
//!
//! It judges what it is shown, and keeps the reasons why figures mean nothing; it asks nobody, and waits for nothing.

use super::copies::Copies;
use super::phases::PhaseFigures;
use crate::progress::progress;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// How far a client may be behind its rate and count as having caught up: what a busy machine makes of a moment, and
/// a hundredth of the stalls after which it has to catch up.
const BEHIND_MAX: Duration = Duration::from_millis(20);

/// The share of its rate that a client keeps that is left alone: what is due at the edges of a phase may count for its
/// neighbours.
const KEPT_MIN: f64 = 0.95;

/// Why the figures mean nothing, of all parts of a run together.
#[derive(Clone, Default)]
pub(crate) struct Voids {
    reasons: Rc<RefCell<Vec<String>>>,
    /// What is being measured.
    part: String,
}

impl Voids {
    /// For a part of the run.
    pub(crate) fn of(&self, part: impl Into<String>) -> Voids {
        Voids { reasons: self.reasons.clone(), part: part.into() }
    }

    /// Notes that a phase did not have what it needs.
    pub(crate) fn add(&self, phase: &str, what: &str) {
        let reason = format!("{}, {phase}: {what}", self.part);
        progress(&format!("VOID: {reason}"));
        self.reasons.borrow_mut().push(reason);
    }

    /// Notes the phases in which a client that was left alone did not keep its rate: what it felt then is the queue that
    /// it made itself, and nothing to compare with.
    pub(crate) fn add_missed(&self, phases: &[PhaseFigures], per_second: Option<f64>) {
        let Some(rate) = per_second else { return };
        let alone = phases.iter().filter(|p| p.phase.starts_with("alone"));
        for missed in alone.filter(|p| p.iops < rate * KEPT_MIN) {
            let what = format!("the client did {:.0} of its {rate:.0} requests per second", missed.iops);
            self.add(missed.phase, &what);
        }
    }

    /// All reasons so far, in the order in which they were met.
    pub(crate) fn reasons(&self) -> Vec<String> {
        self.reasons.borrow().clone()
    }
}

/// What goes on at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// How the copies stand.
    pub(crate) copies: Copies,
    /// Whether a scrub runs.
    pub(crate) is_scrubbing: bool,
    /// How far the client is behind its rate, if one is there.
    pub(crate) behind: Duration,
    /// Bytes that went to drives since the look before; none where a client writes.
    pub(crate) written: Option<u64>,
}

impl Look {
    /// What is not over yet; none if a phase that wants the copies to stand so may begin.
    pub(crate) fn unrest(&self, wanted: Copies) -> Option<String> {
        if self.copies != wanted {
            Some(format!("copies were {}, not {}", self.copies.word(), wanted.word()))
        } else if self.is_scrubbing {
            Some("a scrub ran".to_owned())
        } else if self.behind > BEHIND_MAX {
            Some(format!("the client was {:.2} s behind its rate", self.behind.as_secs_f64()))
        } else {
            let written = self.written.filter(|bytes| *bytes > 0)?;
            Some(format!("drives still wrote, {written} bytes between two looks"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Look =
        Look { copies: Copies::Whole, is_scrubbing: false, behind: Duration::ZERO, written: Some(0) };

    #[test]
    fn whatever_goes_on_is_named() {
        assert_eq!(QUIET.unrest(Copies::Whole), None);
        assert_eq!(Look { written: None, behind: BEHIND_MAX, ..QUIET }.unrest(Copies::Whole), None);
        for (look, wanted, words) in [
            (QUIET, Copies::Out, "all in-sync, not out"),
            (
                Look { copies: Copies::Syncing, ..QUIET },
                Copies::Whole,
                "being brought up to date, not all in-sync",
            ),
            (Look { is_scrubbing: true, ..QUIET }, Copies::Whole, "scrub"),
            (Look { behind: Duration::from_millis(1500), ..QUIET }, Copies::Whole, "1.50 s behind"),
            (Look { written: Some(4096), ..QUIET }, Copies::Whole, "4096 bytes"),
        ] {
            let said = look.unrest(wanted).expect(words);
            assert!(said.contains(words), "'{words}' is not in '{said}'");
        }
    }

    #[test]
    fn a_client_that_is_left_alone_keeps_its_rate() {
        let phase = |phase, iops| PhaseFigures { phase, iops, ..PhaseFigures::default() };
        let voids = Voids::default().of("round 1");
        let phases = [phase("alone", 990.0), phase("resync", 500.0), phase("alone again", 940.0)];
        voids.add_missed(&phases, None);
        assert!(voids.reasons().is_empty(), "a client as fast as it can has no rate");
        voids.add_missed(&phases, Some(1000.0));
        let expected = "round 1, alone again: the client did 940 of its 1000 requests per second";
        assert_eq!(voids.reasons(), [expected]);
    }

    #[test]
    fn reasons_of_all_parts_come_together() {
        let voids = Voids::default();
        voids.of("a scrub, round 2").add("alone", "a scrub ran");
        voids.of("the spread").add("rebuild", "copies were out, not all in-sync");
        let expected =
            ["a scrub, round 2, alone: a scrub ran", "the spread, rebuild: copies were out, not all in-sync"];
        assert_eq!(voids.reasons(), expected);
    }
}
