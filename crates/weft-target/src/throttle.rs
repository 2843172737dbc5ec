//! How much of this target background work may take: resync, scrub, whatever else reads or writes much later.
//!
//! While no client asks for anything, all of it. Otherwise a share of the time, which follows what clients
//! feel: all requests are timed, and the share shrinks until the 99th percentile is at most [`TOLERANCE`]
//! times that of requests that nothing disturbed: those between two pieces of work, and those from before the
//! work began, whichever were faster. The former follow the load as it changes; the latter also know what the
//! work of other processes on the same machine costs. It begins with little, and never shrinks to nothing:
//! copies that are missing are a danger too.
//!
//! A device whose parts are served by several targets of the node is divided among them: each takes its part
//! of the share, and judges by its own clients, because targets tell each other nothing.
//!
//! It owns pace and measurement. It never decides what is copied, and work that a client waits for never asks
//! it.

use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;
use weft_rt::sync::Notify;
use weft_rt::{Instant, now, timeout};

/// By how much background work may raise the 99th percentile of clients' requests.
const TOLERANCE: f64 = 2.0;

/// Below this ratio the share grows again. The gap to [`TOLERANCE`] keeps the share from swinging.
const COMFORT: f64 = 1.5;

/// The share that is always taken: a drive that copies 1 GB/s alone still refills 4 TB within a day. It is
/// also the first: what clients can bear is not known then, and it takes ten seconds to find out that it is
/// the most.
const SHARE_MIN: f64 = 0.05;

/// The share that is never passed while clients are there: half of the time shows how they fare undisturbed.
const SHARE_MAX: f64 = 0.5;

/// How long after a request a client counts as being there.
const PRESENCE: Duration = Duration::from_millis(100);

/// How long after background work requests are compared still: long enough for the pauses between two pieces.
const ATTENTION: Duration = Duration::from_secs(1);

/// Requests of either kind before they are compared: enough for two that are slower than the 99th percentile.
const SAMPLES: u64 = 200;

/// What a piece is taken to last at most, or so many times what pieces have lasted: one that lasted longer was
/// held up by something else than its drive, such as a process that stood still. The next one waits a second
/// by the smallest share then, not minutes. A drive that is slow indeed is followed within a few pieces.
const PIECE_MOST: Duration = Duration::from_millis(50);
const PIECE_MOST_TIMES: u32 = 4;

/// What the first piece of each kind is taken to last, before one was timed.
const PIECE_AT_FIRST: Duration = Duration::from_millis(1);

/// How long requests are counted before they are compared: often enough to follow a load, and at a few
/// thousand requests per second enough of them for a steady percentile.
const PERIOD: Duration = Duration::from_secs(1);

/// By how much the share shrinks and grows after one of those: it gives way faster than it comes back.
const SHRINK: f64 = 0.5;
const GROW: f64 = 1.3;

/// Requests from before the work that are kept at least, once there were as many, and at most twice as many:
/// enough for ten above the 99th percentile.
const QUIET: u64 = 1000;

/// How long after the work began those still say what the load would be like without it.
const QUIET_HOLDS: Duration = Duration::from_secs(300);

/// How long a peer's request waits for its turn at most: the peer gives up after 1.5 s, and paces itself
/// besides.
pub(crate) const PEER_WAIT: Duration = Duration::from_millis(200);

/// The longest pause between two pieces, however long pieces last: copies that are missing are a danger too.
const PAUSE_MOST: Duration = Duration::from_secs(2);

/// What a piece of background work does: kinds differ widely in how long they last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Compares many chunks by their digests.
    Compare,
    /// Takes one chunk as verified.
    Confirm,
    /// Reads or writes one chunk's data.
    Copy,
    /// Reads one chunk's data for a scrub.
    Verify,
}

/// The pace of one target's background work.
pub(crate) struct Throttle {
    /// Requests of clients so far.
    served: Cell<u64>,
    /// How many of them had been seen when somebody last looked, and until when clients count as being there.
    seen: Cell<u64>,
    present_until: Cell<Instant>,
    /// Until when requests are compared, and since when.
    attentive_until: Cell<Instant>,
    attentive_since: Cell<Instant>,
    /// When the counting began of those that are compared next.
    counted_since: Cell<Instant>,
    /// Pieces of work that have begun, and that run.
    begun: Cell<u64>,
    running: Cell<u32>,
    /// Who waits for a turn, the first one first, and how many have come so far.
    queue: RefCell<VecDeque<u64>>,
    came: Cell<u64>,
    /// The first of them is another one now.
    moved: Notify,
    /// When the last piece had its turn, and what it did.
    last: Cell<(Instant, Work)>,
    /// How long a piece of each kind lasts, smoothed.
    lasts: [Cell<Duration>; 4],
    share: Cell<f64>,
    /// Targets of this node, this one too, that serve a part of one device.
    sharers: Cell<u32>,
    samples: RefCell<Samples>,
}

/// Nanoseconds that requests took.
struct Samples {
    undisturbed: Histogram<u64>,
    all: Histogram<u64>,
    /// From before the work: of late, and before that.
    quiet: Histogram<u64>,
    quiet_before: Histogram<u64>,
}

impl Default for Throttle {
    fn default() -> Self {
        // From a microsecond to a minute with two digits: 20 KiB each.
        let histogram =
            || Histogram::new_with_bounds(1_000, 60_000_000_000, 2).expect("the bounds are in order");
        Throttle {
            served: Cell::new(0),
            seen: Cell::new(0),
            present_until: Cell::new(Instant::from_nanos(0)),
            attentive_until: Cell::new(Instant::from_nanos(0)),
            attentive_since: Cell::new(Instant::from_nanos(0)),
            counted_since: Cell::new(Instant::from_nanos(0)),
            begun: Cell::new(0),
            running: Cell::new(0),
            queue: RefCell::default(),
            came: Cell::new(0),
            moved: Notify::default(),
            last: Cell::new((Instant::from_nanos(0), Work::Compare)),
            lasts: [const { Cell::new(PIECE_AT_FIRST) }; 4],
            share: Cell::new(SHARE_MIN),
            sharers: Cell::new(1),
            samples: RefCell::new(Samples {
                undisturbed: histogram(),
                all: histogram(),
                quiet: histogram(),
                quiet_before: histogram(),
            }),
        }
    }
}

/// A place among those who wait for a turn, as long as it lives.
struct Place<'a> {
    throttle: &'a Throttle,
    number: u64,
}

impl Place<'_> {
    fn behind_all(throttle: &Throttle) -> Place<'_> {
        let number = throttle.came.get();
        throttle.came.set(number + 1);
        throttle.queue.borrow_mut().push_back(number);
        Place { throttle, number }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.throttle.queue.borrow_mut().retain(|number| *number != self.number);
        self.throttle.moved.notify_all();
    }
}

/// A request of a client that is being served.
pub(crate) struct Timed {
    /// How many pieces of work had begun when it began; `None` if nobody compares.
    begun: Option<u64>,
    was_alone: bool,
}

/// A piece of background work that runs; dropped at its end.
pub(crate) struct Piece<'a> {
    throttle: &'a Throttle,
    work: Work,
    start: Instant,
}

impl Throttle {
    /// Says how many targets of this node, this one too, serve parts of one device; 1 at least.
    pub(crate) fn set_sharers(&self, sharers: u32) {
        self.sharers.set(sharers.max(1));
    }

    /// The share of the time that this target takes.
    fn own_share(&self) -> f64 {
        self.share.get() / f64::from(self.sharers.get())
    }

    /// Waits for the turn of the next piece of background work: at once while no client is there, and no
    /// longer than `patience`.
    pub(crate) async fn turn(&self, work: Work, patience: Duration) {
        if !self.clients_are_there() {
            return;
        }
        // Turns are given one behind the other, so that many who wait do not start together. When the first
        // of them begins is computed anew each time: a piece that was held up delays the next one only.
        let place = Place::behind_all(self);
        let gives_up = now() + patience;
        while self.clients_are_there() && now() < gives_up {
            let is_first = self.queue.borrow().front() == Some(&place.number);
            let due = self.next();
            if is_first && now() >= due {
                self.last.set((now(), work));
                return;
            }
            let looks = now() + PRESENCE;
            let looks = if is_first { looks.min(due) } else { looks };
            let _ = timeout(looks.min(gives_up) - now(), self.moved.notified()).await;
        }
        // It goes before its turn, and does not hold up those who wait for theirs.
    }

    /// When the next piece may begin.
    fn next(&self) -> Instant {
        let (began, work) = self.last.get();
        began + self.lasts[work as usize].get().div_f64(self.own_share()).min(PAUSE_MOST)
    }

    /// Whether a client asked for something a moment ago.
    pub(crate) fn clients_are_there(&self) -> bool {
        let served = self.served.get();
        if self.seen.replace(served) != served {
            self.present_until.set(now() + PRESENCE);
        }
        now() < self.present_until.get()
    }

    /// The share of the time that background work takes, in percent; none while no client is there, and it
    /// takes all.
    pub(crate) fn pace_percent(&self) -> Option<u8> {
        // At most a half, so it fits.
        (now() < self.present_until.get()).then(|| (self.own_share() * 100.0).round() as u8)
    }

    /// Work that disturbs clients begins, whether it had to wait for its turn or not.
    pub(crate) fn begin(&self, work: Work) -> Piece<'_> {
        self.begun.set(self.begun.get() + 1);
        self.running.set(self.running.get() + 1);
        let start = now();
        if self.attentive_until.replace(start + ATTENTION) == Instant::from_nanos(0) {
            self.attentive_since.set(start);
            self.counted_since.set(start);
        }
        Piece { throttle: self, work, start }
    }

    /// A client's request began just before.
    pub(crate) fn request(&self, start: Instant) -> Timed {
        self.served.set(self.served.get() + 1);
        if self.attentive_until.get() == Instant::from_nanos(0) {
            return Timed { begun: None, was_alone: false };
        }
        if start > self.attentive_until.get() {
            self.attentive_until.set(Instant::from_nanos(0));
        }
        Timed { begun: Some(self.begun.get()), was_alone: self.running.get() == 0 }
    }

    /// A client's request was answered after this time, and what it waited for was not background work
    /// itself.
    pub(crate) fn answered(&self, request: Timed, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let mut samples = self.samples.borrow_mut();
        let Some(begun) = request.begun else { return samples.note_quiet(nanos) };
        samples.all.saturating_record(nanos);
        if request.was_alone && self.begun.get() == begun {
            samples.undisturbed.saturating_record(nanos);
        }
        if !samples.are_enough() || self.counted_since.get().elapsed() < PERIOD {
            return;
        }
        let ratio = samples.ratio(self.attentive_since.get().elapsed() < QUIET_HOLDS);
        self.counted_since.set(now());
        let share = match ratio {
            r if r > TOLERANCE => self.share.get() * SHRINK,
            r if r < COMFORT => self.share.get() * GROW,
            _ => self.share.get(),
        };
        self.share.set(share.clamp(SHARE_MIN, SHARE_MAX));
        tracing::debug!(ratio, share = self.share.get(), "pace of background work");
    }
}

impl Samples {
    /// Counts a request that was served while there was no background work.
    fn note_quiet(&mut self, nanos: u64) {
        self.quiet.saturating_record(nanos);
        if self.quiet.len() >= QUIET {
            std::mem::swap(&mut self.quiet, &mut self.quiet_before);
            self.quiet.reset();
        }
    }

    /// Whether there are enough to compare.
    fn are_enough(&self) -> bool {
        let undisturbed = self.undisturbed.len();
        undisturbed >= SAMPLES && self.all.len() - undisturbed >= SAMPLES
    }

    /// The 99th percentile of all requests over that of the undisturbed, and of the quiet if they still
    /// count; begins anew then.
    fn ratio(&mut self, quiet_counts: bool) -> f64 {
        let p99 = |histogram: &Histogram<u64>| histogram.value_at_quantile(0.99).max(1) as f64;
        let mut calm = p99(&self.undisturbed);
        if quiet_counts && self.quiet_before.len() >= QUIET {
            calm = calm.min(p99(&self.quiet_before));
        }
        let ratio = p99(&self.all) / calm;
        self.undisturbed.reset();
        self.all.reset();
        ratio
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        let throttle = self.throttle;
        throttle.running.set(throttle.running.get() - 1);
        throttle.attentive_until.set(now() + ATTENTION);
        // An eighth of the newest: smooth over a few dozen pieces, quick to follow a drive that slows down. A
        // half, where pieces are taken to last long and this one did not: those before it were held up.
        let lasts = &throttle.lasts[self.work as usize];
        let took = self.start.elapsed().min(PIECE_MOST.max(lasts.get() * PIECE_MOST_TIMES));
        let were_held_up = lasts.get() > PIECE_MOST && took * PIECE_MOST_TIMES < lasts.get();
        lasts.set(match were_held_up {
            true => (lasts.get() + took) / 2,
            false => (lasts.get() * 7 + took) / 8,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use weft_rt::sim::Sim;
    use weft_rt::{sleep, spawn};

    /// Serves one client without a pause for a while: a request takes 100 us, or `slow` beside background
    /// work.
    async fn client(throttle: Rc<Throttle>, slow: Duration, lasts: Duration) {
        let end = now() + lasts;
        while now() < end {
            let start = now();
            let timed = throttle.request(start);
            let is_disturbed = throttle.running.get() > 0;
            sleep(if is_disturbed { slow } else { Duration::from_micros(100) }).await;
            throttle.answered(timed, start.elapsed());
        }
    }

    /// Pieces of 1 ms that four workers finish until the end.
    async fn work(throttle: Rc<Throttle>, lasts: Duration) -> u32 {
        let end = now() + lasts;
        let done = Rc::new(Cell::new(0));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (throttle, done) = (throttle.clone(), done.clone());
                spawn(async move {
                    while now() < end {
                        throttle.turn(Work::Copy, Duration::MAX).await;
                        let _piece = throttle.begin(Work::Copy);
                        sleep(Duration::from_millis(1)).await;
                        done.set(done.get() + 1);
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
        done.get()
    }

    fn run(slow: Duration) -> (u32, f64) {
        Sim::new(1).block_on(async move {
            let throttle = Rc::new(Throttle::default());
            let lasts = Duration::from_secs(20);
            let client = spawn(client(throttle.clone(), slow, lasts));
            let done = work(throttle.clone(), lasts).await;
            client.await.unwrap();
            (done, throttle.share.get())
        })
    }

    #[test]
    fn alone_it_takes_everything() {
        let done = Sim::new(1).block_on(work(Rc::new(Throttle::default()), Duration::from_secs(1)));
        assert!(done >= 3_900, "{done} of 4,000 pieces");
    }

    #[test]
    fn it_grows_to_half_of_the_time_while_nobody_minds() {
        let (done, share) = run(Duration::from_micros(110));
        assert_eq!(share, SHARE_MAX);
        assert!((6_000..=9_000).contains(&done), "{done} of 20,000 pieces");
    }

    #[test]
    fn it_shrinks_to_its_minimum_while_clients_suffer_and_never_stops() {
        let (done, share) = run(Duration::from_micros(900));
        assert!(share < 0.1, "{share}");
        assert!((800..=3_000).contains(&done), "{done} of 20,000 pieces");
    }

    #[test]
    fn it_knows_what_requests_took_before_it_began() {
        let share = Sim::new(1).block_on(async {
            let throttle = Rc::new(Throttle::default());
            client(throttle.clone(), Duration::from_micros(100), Duration::from_secs(1)).await;
            // Work elsewhere on the machine slows all of them from now on, also those between two pieces of
            // this one's.
            let lasts = Duration::from_secs(20);
            let slowed = async {
                let end = now() + lasts;
                while now() < end {
                    let timed = throttle.request(now());
                    sleep(Duration::from_micros(250)).await;
                    throttle.answered(timed, Duration::from_micros(250));
                }
            };
            let working = spawn(work(throttle.clone(), lasts));
            slowed.await;
            working.await.unwrap();
            throttle.share.get()
        });
        assert_eq!(share, SHARE_MIN);
    }

    #[test]
    fn a_time_in_which_all_stood_still_is_soon_forgotten() {
        let done = Sim::new(1).block_on(async {
            let throttle = Rc::new(Throttle::default());
            let lasts = Duration::from_secs(60);
            let serving = spawn(client(throttle.clone(), Duration::from_micros(110), lasts));
            sleep(Duration::from_millis(1)).await;
            let (stalls_until, end) = (now() + Duration::from_secs(20), now() + lasts);
            let done = Rc::new(Cell::new(0));
            for _ in 0..32 {
                let (throttle, done) = (throttle.clone(), done.clone());
                spawn(async move {
                    while now() < end {
                        throttle.turn(Work::Copy, Duration::MAX).await;
                        let _piece = throttle.begin(Work::Copy);
                        let stalls = now() < stalls_until;
                        sleep(Duration::from_millis(if stalls { 2_000 } else { 1 })).await;
                        done.set(done.get() + u32::from(!stalls));
                    }
                });
            }
            serving.await.unwrap();
            done.get()
        });
        assert!(done > 200, "{done} pieces in 40 seconds");
    }

    #[test]
    fn those_who_do_not_wait_for_their_turn_do_not_hold_up_who_does() {
        let done = Sim::new(1).block_on(async {
            let throttle = Rc::new(Throttle::default());
            let lasts = Duration::from_secs(20);
            let serving = spawn(client(throttle.clone(), Duration::from_micros(110), lasts));
            sleep(Duration::from_millis(1)).await;
            let end = now() + lasts;
            for _ in 0..100 {
                let throttle = throttle.clone();
                spawn(async move {
                    while now() < end {
                        throttle.turn(Work::Copy, PEER_WAIT).await;
                        let _piece = throttle.begin(Work::Copy);
                        sleep(Duration::from_millis(5)).await;
                    }
                });
            }
            let done = work(throttle, lasts).await;
            serving.await.unwrap();
            done
        });
        assert!(done > 100, "{done} pieces");
    }

    #[test]
    fn a_process_that_stood_still_goes_on_at_once() {
        let done = Sim::new(1).block_on(async {
            let throttle = Rc::new(Throttle::default());
            let lasts = Duration::from_secs(60);
            let serving = spawn(client(throttle.clone(), Duration::from_micros(110), lasts));
            let pieces: Vec<_> = (0..4).map(|_| throttle.begin(Work::Copy)).collect();
            sleep(Duration::from_secs(8)).await;
            drop(pieces);
            let done = work(throttle, Duration::from_secs(30)).await;
            serving.await.unwrap();
            done
        });
        assert!(done > 1_000, "{done} pieces");
    }

    #[test]
    fn when_clients_leave_it_takes_everything_again() {
        Sim::new(1).block_on(async {
            let throttle = Rc::new(Throttle::default());
            client(throttle.clone(), Duration::from_micros(100), Duration::from_secs(1)).await;
            sleep(PRESENCE).await;
            throttle.turn(Work::Copy, Duration::MAX).await;
            sleep(PRESENCE).await;
            let done = work(throttle, Duration::from_secs(1)).await;
            assert!(done >= 3_900, "{done} of 4,000 pieces");
        });
    }

    #[test]
    fn nothing_is_compared_without_background_work() {
        Sim::new(1).block_on(async {
            let throttle = Rc::new(Throttle::default());
            assert!(throttle.request(now()).begun.is_none());
            drop(throttle.begin(Work::Copy));
            assert!(throttle.request(now()).begun.is_some());
            sleep(ATTENTION * 2).await;
            assert!(throttle.request(now()).begun.is_some(), "the first that finds it out is still compared");
            assert!(throttle.request(now()).begun.is_none());
        });
    }
}
