//! What a client felt in each phase of a round, and over its time.
//!
//! It counts what it is told; it starts nothing and waits for nothing.

use crate::bed::Bed;
use crate::latency::Completed;
use crate::process::cpu_seconds;
use crate::report::{median, rounded};
use crate::timeline::quantile_us;
use serde::Serialize;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{Instant, now};

/// The parts of the time that charts show: short enough to see a stall of a second, long enough for a hundred
/// requests at 1,000 per second, of which a 99th percentile can be told.
const SLOT: Duration = Duration::from_millis(250);

/// A phase of a round, as a client felt it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PhaseFigures {
    /// What went on.
    pub phase: &'static str,
    /// How long it lasted.
    pub seconds: f64,
    /// Requests completed per second.
    pub iops: f64,
    /// Mean latency in microseconds; none if nothing completed, as for all latencies.
    pub mean_us: Option<f64>,
    /// Median latency.
    pub p50_us: Option<f64>,
    /// The latency that one request in a hundred exceeds.
    pub p99_us: Option<f64>,
    /// The same in a quarter of a second, in the middle one: what a stall of the machine does to a few of them does not
    /// count.
    pub usual_p99_us: Option<f64>,
    /// The latency that one request in a thousand exceeds.
    pub p999_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
    /// The latency that one read in a hundred exceeds.
    pub read_p99_us: Option<f64>,
    /// The latency that one write in a hundred exceeds.
    pub write_p99_us: Option<f64>,
    /// CPU seconds of the target processes per second.
    pub nodes_cores: f64,
    /// CPU seconds of the client per second.
    pub client_cores: f64,
}

/// What completed in a part of the time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlotFigures {
    /// When it began, in seconds since the round's beginning.
    pub from_s: f64,
    /// When it ended.
    pub to_s: f64,
    /// Requests completed per second.
    pub iops: f64,
    /// Median latency in microseconds; none if nothing completed.
    pub p50_us: Option<f64>,
    /// The latency that one request in a hundred exceeds.
    pub p99_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
}

/// Something that happened in a round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoundEvent {
    /// When, in seconds since the round's beginning.
    pub at_s: f64,
    /// What.
    pub what: String,
}

/// A round over its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RoundTimeline {
    /// Parts of a quarter of a second.
    pub slots: Vec<SlotFigures>,
    /// What happened meanwhile.
    pub events: Vec<RoundEvent>,
}

/// Counts a round's requests.
pub(crate) struct Recorder {
    began: Instant,
    state: RefCell<State>,
}

struct State {
    phase: Phase,
    slots: Vec<Completed>,
    events: Vec<RoundEvent>,
}

/// The phase that goes on.
struct Phase {
    from: Instant,
    reads: Completed,
    writes: Completed,
    /// All of it again, by the part of the time.
    slots: Vec<Completed>,
    /// CPU seconds at its beginning: of this process, and of each target process.
    client: f64,
    nodes: Vec<(u32, f64)>,
}

impl Phase {
    fn begin(bed: &Bed) -> Phase {
        let of = |pid: u32| cpu_seconds(pid).unwrap_or(0.0);
        Phase {
            from: now(),
            reads: Completed::new(),
            writes: Completed::new(),
            slots: vec![],
            client: of(std::process::id()),
            nodes: bed.node_pids().into_iter().map(|pid| (pid, of(pid))).collect(),
        }
    }

    fn note(&mut self, is_read: bool, ended: Instant, latency: Duration) {
        let side = if is_read { &mut self.reads } else { &mut self.writes };
        side.record(latency);
        slot_at(&mut self.slots, self.from, ended).record(latency);
    }

    /// The middle one of the 99th percentiles of its parts, but for the last, which has not ended.
    fn usual_p99_us(&self) -> Option<f64> {
        let whole = self.slots.len().saturating_sub(1);
        let p99s: Vec<f64> =
            self.slots[..whole].iter().filter_map(|slot| quantile_us(&slot.latency_ns, 0.99)).collect();
        (!p99s.is_empty()).then(|| rounded(median(p99s), 0.1))
    }

    /// What it came to; processes that have gone meanwhile are not in the CPU seconds.
    fn end(&self, name: &'static str) -> PhaseFigures {
        let seconds = self.from.elapsed().as_secs_f64().max(1e-9);
        let mut both = self.reads.clone();
        both.add(&self.writes);
        let us = |quantile| quantile_us(&both.latency_ns, quantile);
        let used = |(pid, before): &(u32, f64)| cpu_seconds(*pid).map_or(0.0, |after| after - before);
        let nodes: f64 = self.nodes.iter().map(used).sum();
        PhaseFigures {
            phase: name,
            seconds: rounded(seconds, 0.01),
            iops: rounded(both.requests as f64 / seconds, 1.0),
            mean_us: (both.requests > 0).then(|| rounded(both.latency_ns.mean() / 1000.0, 0.1)),
            p50_us: us(0.5),
            p99_us: us(0.99),
            usual_p99_us: self.usual_p99_us(),
            p999_us: us(0.999),
            max_us: us(1.0),
            read_p99_us: quantile_us(&self.reads.latency_ns, 0.99),
            write_p99_us: quantile_us(&self.writes.latency_ns, 0.99),
            nodes_cores: rounded(nodes / seconds, 0.01),
            client_cores: rounded(used(&(std::process::id(), self.client)) / seconds, 0.01),
        }
    }
}

/// The part of the time in which something ended.
fn slot_at(slots: &mut Vec<Completed>, from: Instant, ended: Instant) -> &mut Completed {
    let slot = ((ended - from).as_nanos() / SLOT.as_nanos()) as usize;
    if slots.len() <= slot {
        slots.resize_with(slot + 1, Completed::new);
    }
    &mut slots[slot]
}

impl Recorder {
    /// Begins a round.
    pub(crate) fn new(bed: &Bed) -> Rc<Recorder> {
        let state = State { phase: Phase::begin(bed), slots: vec![], events: vec![] };
        Rc::new(Recorder { began: now(), state: RefCell::new(state) })
    }

    /// What a load tells of its requests.
    pub(crate) fn listener(self: &Rc<Self>) -> Box<dyn Fn(bool, Instant, Duration)> {
        let recorder = self.clone();
        Box::new(move |is_read, ended, latency| recorder.note(is_read, ended, latency))
    }

    fn note(&self, is_read: bool, ended: Instant, latency: Duration) {
        let mut state = self.state.borrow_mut();
        slot_at(&mut state.slots, self.began, ended).record(latency);
        state.phase.note(is_read, ended, latency);
    }

    /// Begins another phase with nothing counted; what was not asked for is dropped.
    pub(crate) fn begin_phase(&self, bed: &Bed) {
        self.state.borrow_mut().phase = Phase::begin(bed);
    }

    /// The phase since it began.
    pub(crate) fn phase(&self, name: &'static str) -> PhaseFigures {
        self.state.borrow().phase.end(name)
    }

    /// Notes that something happens now.
    pub(crate) fn event(&self, what: impl Into<String>) {
        let at_s = rounded(self.began.elapsed().as_secs_f64(), 0.01);
        self.state.borrow_mut().events.push(RoundEvent { at_s, what: what.into() });
    }

    /// The round over its time; the last part, which has not ended, is left out.
    pub(crate) fn timeline(&self) -> RoundTimeline {
        let state = self.state.borrow();
        let (slot_s, whole) = (SLOT.as_secs_f64(), state.slots.len().saturating_sub(1));
        let figures = |(i, done): (usize, &Completed)| SlotFigures {
            from_s: i as f64 * slot_s,
            to_s: (i + 1) as f64 * slot_s,
            iops: rounded(done.requests as f64 / slot_s, 1.0),
            p50_us: quantile_us(&done.latency_ns, 0.5),
            p99_us: quantile_us(&done.latency_ns, 0.99),
            max_us: quantile_us(&done.latency_ns, 1.0),
        };
        let slots = state.slots[..whole].iter().enumerate().map(figures).collect();
        RoundTimeline { slots, events: state.events.clone() }
    }
}
