//! What is asked of drives, volumes and sessions, and how long it takes.
//!
//! It owns the counters. On the data path a request costs a look-up, a few increments of cells and two entries of
//! histograms; adding up and listing is left to whoever asks (`load.rs`). It never decides anything.
//!
//! A volume's counters are those of its sessions added up, so that nothing is counted a third time. Sessions that are
//! over pass theirs on to the volume; what is kept is bounded by the sessions and volumes of the map.

use crate::admit::{Admitted, SYSTEM_SESSION};
use crate::drive::ServedDrive;
use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::{Instant, now};
use weft_types::{FabricMap, Latencies, MeterReading, SessionId, SessionState, VolumeId};
use weft_wire::Kind;
use weft_wire::data::DataRequest;

/// The longest time that is told apart from longer ones, in microseconds: a minute, twice what a client waits.
const LATENCY_MAX_US: u64 = 60_000_000;

/// One significant digit: buckets a sixteenth wide, in 3 KiB for each histogram.
const LATENCY_DIGITS: u8 = 1;

/// Times of one kind of request.
struct Times {
    histogram: RefCell<Histogram<u64>>,
    sum_us: Cell<u64>,
}

impl Default for Times {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_MAX_US, LATENCY_DIGITS);
        let histogram = RefCell::new(histogram.expect("the bounds are in order"));
        Times { histogram, sum_us: Cell::new(0) }
    }
}

impl Times {
    fn note(&self, us: u64) {
        self.histogram.borrow_mut().saturating_record(us.max(1));
        self.sum_us.set(self.sum_us.get().saturating_add(us));
    }

    fn read(&self) -> Latencies {
        let histogram = self.histogram.borrow();
        let recorded = histogram.iter_recorded();
        let buckets = recorded.map(|v| (v.value_iterated_to(), v.count_since_last_iteration())).collect();
        Latencies { buckets, sum_us: self.sum_us.get() }
    }
}

/// Requests of one kind.
#[derive(Default)]
struct Count {
    requests: Cell<u64>,
    bytes: Cell<u64>,
}

impl Count {
    fn add(&self, bytes: u64) {
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
    }
}

/// What was asked of one drive, or by one session.
#[derive(Default)]
pub(crate) struct Meter {
    reads: Count,
    writes: Count,
    zeroes: Count,
    probes: Count,
    errors: Cell<u64>,
    in_flight: Cell<u64>,
    read_times: Times,
    write_times: Times,
    /// When it was heard of last.
    heard_at: Cell<Instant>,
}

impl Meter {
    /// The counters at this moment.
    pub(crate) fn read(&self) -> MeterReading {
        MeterReading {
            reads: self.reads.requests.get(),
            writes: self.writes.requests.get(),
            zeroes: self.zeroes.requests.get(),
            probes: self.probes.requests.get(),
            read_bytes: self.reads.bytes.get(),
            written_bytes: self.writes.bytes.get(),
            zeroed_bytes: self.zeroes.bytes.get(),
            errors: self.errors.get(),
            in_flight: self.in_flight.get(),
            read_latency: self.read_times.read(),
            write_latency: self.write_times.read(),
        }
    }

    fn of_kind(&self, kind: Kind) -> (&Count, Option<&Times>) {
        match kind {
            Kind::Read => (&self.reads, Some(&self.read_times)),
            Kind::Write => (&self.writes, Some(&self.write_times)),
            Kind::WriteZeroes => (&self.zeroes, Some(&self.write_times)),
            _ => (&self.probes, None),
        }
    }

    /// A request was carried out. Where it `counts` elsewhere, only its time is noted.
    fn note(&self, kind: Kind, bytes: u64, us: u64, counts: bool) {
        let (count, times) = self.of_kind(kind);
        if counts {
            count.add(bytes);
        }
        if let Some(times) = times {
            times.note(us);
        }
    }
}

/// The sessions' meters of one target; a drive has its own.
#[derive(Default)]
pub(crate) struct Meters {
    sessions: RefCell<BTreeMap<(SessionId, VolumeId), Rc<Meter>>>,
    /// Per volume what sessions had asked that are over.
    former: RefCell<BTreeMap<VolumeId, MeterReading>>,
}

/// A request that was admitted and is being carried out. Dropped without [`Metered::done`], it counts as an error.
pub(crate) struct Metered {
    drive: Rc<ServedDrive>,
    session: Rc<Meter>,
    kind: Kind,
    bytes: u64,
    /// Whether this replica's session and volume count it: a write counts at one of its replicas.
    counts: bool,
    is_done: bool,
}

impl Meters {
    /// A request that arrived at this instant begins to be carried out.
    pub(crate) fn begin(
        &self,
        admitted: &Admitted,
        head: &DataRequest,
        kind: Kind,
        at: Instant,
        map: Option<&FabricMap>,
    ) -> Metered {
        let session = self.session((head.session, head.object.owner().volume()), map);
        session.heard_at.set(at);
        let drive = admitted.drive().clone();
        for meter in [&drive.meter, &*session] {
            meter.in_flight.set(meter.in_flight.get() + 1);
        }
        let is_write = matches!(kind, Kind::Write | Kind::WriteZeroes);
        let counts = !is_write || admitted.member.is_first_of_write_set();
        Metered { drive, session, kind, bytes: head.range.bytes() as u64, counts, is_done: false }
    }

    fn session(&self, key: (SessionId, VolumeId), map: Option<&FabricMap>) -> Rc<Meter> {
        if let Some(meter) = self.sessions.borrow().get(&key) {
            return meter.clone();
        }
        // The first request of a session: those that are over make room.
        self.retire(map);
        self.sessions.borrow_mut().entry(key).or_default().clone()
    }

    /// Passes the counters of sessions that are over on to their volumes, and forgets volumes that are gone.
    pub(crate) fn retire(&self, map: Option<&FabricMap>) {
        let Some(map) = map else { return };
        let (mut sessions, mut former) = (self.sessions.borrow_mut(), self.former.borrow_mut());
        sessions.retain(|(session, volume), meter| {
            let is_over = match map.sessions.get(session) {
                Some(listed) => listed.state != SessionState::Open,
                // One that the map is too old to know may be open.
                None => *session != SYSTEM_SESSION && map.was_forgotten(*session, *volume),
            };
            let is_idle = meter.in_flight.get() == 0;
            let stays = !is_idle || (!is_over && map.volumes.contains_key(volume));
            if !stays {
                former.entry(*volume).or_default().add(&meter.read());
            }
            stays
        });
        former.retain(|volume, _| map.volumes.contains_key(volume));
    }

    /// A session that is open has said something that is no request.
    pub(crate) fn hear(&self, session: SessionId, volume: VolumeId, map: Option<&FabricMap>) {
        self.session((session, volume), map).heard_at.set(now());
    }

    /// Which of these sessions were heard of, and how many milliseconds ago.
    pub(crate) fn heard_of(&self, sessions: &[SessionId]) -> Vec<(SessionId, u64)> {
        let meters = self.sessions.borrow();
        let heard = |id: &SessionId| {
            let of_session = meters.range((*id, VolumeId(0))..=(*id, VolumeId(u64::MAX)));
            let last = of_session.map(|(_, meter)| meter.heard_at.get()).max()?;
            Some((*id, u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX)))
        };
        sessions.iter().filter_map(heard).collect()
    }

    /// Per session what it has asked.
    pub(crate) fn sessions(&self) -> Vec<((SessionId, VolumeId), MeterReading)> {
        self.sessions.borrow().iter().map(|(key, meter)| (*key, meter.read())).collect()
    }

    /// Per volume what sessions that are over had asked.
    pub(crate) fn former(&self) -> BTreeMap<VolumeId, MeterReading> {
        self.former.borrow().clone()
    }
}

impl Metered {
    /// The request was carried out in this time.
    pub(crate) fn done(mut self, took: Duration) {
        self.is_done = true;
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.drive.meter.note(self.kind, self.bytes, us, true);
        self.session.note(self.kind, self.bytes, us, self.counts);
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        for meter in [&self.drive.meter, &*self.session] {
            meter.in_flight.set(meter.in_flight.get() - 1);
            if !self.is_done {
                meter.errors.set(meter.errors.get() + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_types::{
        AttachMode, BlockCount, FabricId, Generation, PoolId, Session, SessionSlot, Striping, Volume,
        VolumeState,
    };

    const VOLUME: VolumeId = VolumeId(3);

    fn map(open: &[u64]) -> FabricMap {
        let mut map = FabricMap { next_id: 100, ..FabricMap::empty(FabricId(1)) };
        let volume = Volume {
            id: VOLUME,
            name: "v".into(),
            pool: PoolId(1),
            size: BlockCount(1),
            protection: weft_types::Protection::mirror(1),
            striping: Striping { unit_blocks: 1, width: 1, object_blocks: 1 },
            spans: vec![],
            generation: Generation(1),
            state: VolumeState::Ready,
            thin: false,
            created_ms: 0,
            kind: weft_types::VolumeKind::Blocks,
        };
        map.volumes.insert(VOLUME, volume);
        for id in open.iter().map(|n| SessionId(*n)) {
            let session = Session {
                number: 0,
                lane_slots: vec![],
                id,
                volume: VOLUME,
                slot: SessionSlot(1),
                mode: AttachMode::Shared,
                client: String::new(),
                state: SessionState::Open,
                generation: Generation(1),
            };
            map.sessions.insert(id, session);
        }
        map
    }

    #[test]
    fn times_read_back_within_a_sixteenth() {
        let times = Times::default();
        for us in [0, 1, 17, 100, 1_000, 12_345, 59_999_999] {
            let before = times.read();
            times.note(us);
            let (bound, count) = times.read().since(&before).buckets[0];
            assert_eq!(count, 1);
            assert!(bound >= us && bound <= us.max(1) + us / 16, "{us} is in the bucket up to {bound}");
        }
        times.note(LATENCY_MAX_US * 50);
        assert_eq!(times.read().count(), 8, "what is longer than the longest is counted there");
    }

    #[test]
    fn sessions_that_are_over_leave_their_counters_to_the_volume() {
        let meters = Meters::default();
        let note = |session: u64, map: &FabricMap| {
            let meter = meters.session((SessionId(session), VOLUME), Some(map));
            meter.note(Kind::Write, 4096, 10, true);
            meter.note(Kind::Write, 4096, 10, false);
        };
        note(7, &map(&[7]));
        note(8, &map(&[8]));
        let open: Vec<SessionId> = meters.sessions().iter().map(|((id, _), _)| *id).collect();
        assert_eq!(open, [SessionId(8)]);
        let former = &meters.former()[&VOLUME];
        assert_eq!((former.writes, former.written_bytes, former.write_latency.count()), (1, 4096, 2));
        note(101, &map(&[]));
        assert_eq!(meters.sessions().len(), 1, "the map is too old to know it: it may be open");
        meters.retire(Some(&FabricMap { next_id: 1_000, ..FabricMap::empty(FabricId(1)) }));
        assert!(meters.sessions().is_empty() && meters.former().is_empty(), "the volume is gone");
    }
}
