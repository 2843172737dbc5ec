//! The end of a face: no new clients, requests in flight finish, clients are let go when they are idle.

use crate::IO_TIMEOUT;
use crate::export::Credits;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use weft_rt::sync::Notify;
use weft_rt::{Instant, now, sleep};

/// How long a client must have been quiet, after the drain has begun, before it counts as idle.
const QUIET: Duration = Duration::from_millis(200);

/// How long a client may take to finish: longer than an operation that meets a failed node goes on trying.
const GRACE: Duration = Duration::from_secs(40);

/// How long a drain takes at most, if no operation takes longer than `GRACE`: then every client is shut out,
/// and with it ends the wait for one that does not read its answers.
pub const STOP_MAX: Duration = Duration::from_secs(45);

const _: () = assert!(IO_TIMEOUT.as_millis() < GRACE.as_millis());
// The clock is looked at after each pause of `QUIET`.
const _: () = assert!(GRACE.as_millis() + QUIET.as_millis() <= STOP_MAX.as_millis());

/// Counts the clients of a face, and sees to the end of them. Clones are the same.
#[derive(Clone)]
pub struct Drain(Rc<Inner>);

struct Inner {
    clients_max: usize,
    clients: Cell<usize>,
    begun_at: Cell<Option<Instant>>,
    begun: Notify,
    left: Notify,
}

impl Drain {
    /// For a face that has so many clients at a time.
    pub fn new(clients_max: usize) -> Drain {
        Drain(Rc::new(Inner {
            clients_max,
            clients: Cell::new(0),
            begun_at: Cell::new(None),
            begun: Notify::default(),
            left: Notify::default(),
        }))
    }

    /// A client has come, and is counted until this is dropped; `None` if there are too many.
    pub fn enter(&self) -> Option<Entered> {
        if self.0.clients.get() >= self.0.clients_max {
            return None;
        }
        self.0.clients.set(self.0.clients.get() + 1);
        Some(Entered { drain: self.clone(), arrived: Cell::new(0) })
    }

    /// Clients that are there.
    pub fn clients(&self) -> usize {
        self.0.clients.get()
    }

    /// Begins, unless it has begun.
    pub fn begin(&self) {
        if self.0.begun_at.get().is_none() {
            self.0.begun_at.set(Some(now()));
            self.0.begun.notify_all();
        }
    }

    /// Since when it has begun, if it has.
    pub fn since(&self) -> Option<Instant> {
        self.0.begun_at.get()
    }

    /// Completes when it has begun.
    pub async fn begun(&self) {
        loop {
            let begun = self.0.begun.notified();
            if self.since().is_some() {
                return;
            }
            begun.await;
        }
    }

    /// Completes when no client is left.
    pub async fn done(&self) {
        while self.0.clients.get() > 0 {
            self.0.left.notified().await;
        }
    }
}

/// A client that is counted.
pub struct Entered {
    drain: Drain,
    /// Requests so far.
    arrived: Cell<u64>,
}

impl Entered {
    /// The drain that counts it.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Notes that the client is not idle.
    pub fn request_arrived(&self) {
        self.arrived.set(self.arrived.get() + 1);
    }

    /// Completes when the drain has begun and the client is idle, or takes too long: its connection is to be
    /// closed.
    pub async fn is_to_go(&self, credits: &Credits) {
        self.drain.begun().await;
        let since = now();
        loop {
            let seen = self.arrived.get();
            sleep(QUIET).await;
            let is_idle = self.arrived.get() == seen && credits.is_idle();
            if is_idle || since.elapsed() >= GRACE {
                return;
            }
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let inner = &self.drain.0;
        inner.clients.set(inner.clients.get() - 1);
        inner.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_rt::sim::Sim;
    use weft_rt::spawn;

    #[test]
    fn a_client_goes_when_it_is_idle_and_a_busy_one_when_its_time_is_over() {
        Sim::new(1).block_on(async {
            let drain = Drain::new(2);
            let credits = [(); 2].map(|()| Credits::new(4, 100, weft_rt::Budget::default().open(|| {})));
            let (idle, busy) = (drain.enter().unwrap(), drain.enter().unwrap());
            assert!(drain.enter().is_none() && drain.clients() == 2, "two at a time");
            let _in_flight = credits[1].take(10).await;
            let [of_idle, of_busy] = credits;
            let begun = now();
            let goes = spawn(async move {
                idle.is_to_go(&of_idle).await;
                begun.elapsed()
            });
            let stays = spawn(async move {
                busy.is_to_go(&of_busy).await;
                begun.elapsed()
            });
            drain.begin();
            drain.done().await;
            assert!((QUIET..2 * QUIET).contains(&goes.await.unwrap()));
            assert!((GRACE..STOP_MAX).contains(&stays.await.unwrap()));
            assert_eq!(drain.clients(), 0);
        });
    }
}
