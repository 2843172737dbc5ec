//! A read that one replica is slow to answer: others are asked beside it.

use crate::exchange::{Answer, Ask, Exchange, Outcome, RETRY_FIRST, Setback};
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use weft_rt::{Instant, Sleep, now, sleep, sleep_until};
use weft_rules::{Path, mark};
use weft_types::DriveId;

/// How long one replica may take over a read, from when the request was sent, before another in-sync one is
/// asked beside it: many times what a busy drive needs, short beside an eviction. Doubles with each one
/// asked.
const READ_PATIENCE: Duration = Duration::from_millis(500);

/// The most of it.
const READ_PATIENCE_LONGEST: Duration = Duration::from_secs(16);

/// How many times that long a read may wait for its turn on the connection: queues of this machine's own
/// making are no sign of a slow replica, but a connection whose requests all hang must not hold it for ever.
const TURN_PATIENCE: u32 = 4;

type Ended = Result<Outcome<Answer>, Setback>;

impl Exchange<'_> {
    /// Asks one replica, and others beside it if it takes long: the first end that is no setback, or the last
    /// one.
    pub(crate) async fn request_of_any(&self, members: &[DriveId], preferred: usize) -> Ended {
        let sent = Cell::new(None);
        let ask = self.ask.noting_when(&sent);
        let first = Exchange { ask: &ask, ..*self };
        let mut first = pin!(first.request(members[preferred]));
        let mut due = Due::new(&sent, READ_PATIENCE);
        let ended = poll_fn(|cx| match first.as_mut().poll(cx) {
            Poll::Ready(end) => Poll::Ready(Some(end)),
            Poll::Pending => due.poll(cx).map(|()| None),
        });
        match ended.await {
            Some(end) => end,
            // Boxed so that the rare path does not swell the future of every read.
            None => Box::pin(self.hedge(members, preferred, first)).await,
        }
    }

    /// Asks the other replicas one after another beside the first, which goes on: where all are slow, it
    /// still has the shortest way to go. A request that is left behind gives its credit back when its answer
    /// comes.
    async fn hedge(
        &self,
        members: &[DriveId],
        preferred: usize,
        first: Pin<&mut impl Future<Output = Ended>>,
    ) -> Ended {
        type Running<'f> = Pin<Box<dyn Future<Output = Ended> + 'f>>;
        mark(Path::ReadElsewhere);
        let (session, at, begun) = (self.session, self.ask.at, now());
        session.note_trouble(at.group, &format!("drive {} takes long to answer", members[preferred]));
        let order: Vec<usize> = (0..members.len()).map(|i| (preferred + i) % members.len()).collect();
        let sent: Vec<Cell<Option<Instant>>> = members.iter().map(|_| Cell::new(None)).collect();
        let asks: Vec<Ask<'_>> = sent.iter().map(|sent| self.ask.noting_when(sent)).collect();
        let exchanges: Vec<Exchange<'_>> = asks.iter().map(|ask| Exchange { ask, ..*self }).collect();
        let mut running: Vec<(usize, Running<'_>)> = vec![(preferred, Box::pin(first))];
        let mut idle: VecDeque<usize> = order[1..].iter().copied().collect();
        let mut patience = READ_PATIENCE;
        loop {
            let mut due = None;
            if let Some(i) = idle.pop_front() {
                sent[i].set(None);
                patience = (patience * 2).min(READ_PATIENCE_LONGEST);
                running.push((i, Box::pin(exchanges[i].request(members[i]))));
                due = Some(Due::new(&sent[i], patience));
            }
            let ended = poll_fn(|cx| {
                for (at, (_, request)) in running.iter_mut().enumerate() {
                    if let Poll::Ready(end) = request.as_mut().poll(cx) {
                        return Poll::Ready(Some((at, end)));
                    }
                }
                match due.as_mut().filter(|_| !idle.is_empty()) {
                    Some(due) => due.poll(cx).map(|()| None),
                    None => Poll::Pending,
                }
            });
            let Some((ended_at, end)) = ended.await else { continue };
            let (i, _) = running.swap_remove(ended_at);
            // Those that have not answered by now made the request late; also the one that the next
            // epoch left behind.
            let is_answer = matches!(end, Ok(Outcome::Done(_)));
            let silent = running.iter().map(|(i, _)| *i).chain((!is_answer).then_some(i));
            silent.for_each(|i| session.note_wait(at, members[i], begun));
            match end {
                Err(Setback::Later(text)) if !running.is_empty() => {
                    session.note_trouble(at.group, &text);
                    idle.push_back(i);
                    sleep(RETRY_FIRST).await;
                }
                end => return end,
            }
        }
    }
}

/// When the patience with a request ends.
struct Due<'a> {
    sent: &'a Cell<Option<Instant>>,
    begun: Instant,
    patience: Duration,
    /// The instant that the timer is set to.
    at: Instant,
    timer: Sleep,
}

impl<'a> Due<'a> {
    fn new(sent: &'a Cell<Option<Instant>>, patience: Duration) -> Due<'a> {
        let begun = now();
        let at = begun + patience * TURN_PATIENCE;
        Due { sent, begun, patience, at, timer: sleep_until(at) }
    }

    /// Ready when the patience has ended. Poll it after the request, which may have been sent only then.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let at = match self.sent.get() {
            Some(sent) => sent + self.patience,
            None => self.begun + self.patience * TURN_PATIENCE,
        };
        if at != self.at {
            (self.at, self.timer) = (at, sleep_until(at));
        }
        Pin::new(&mut self.timer).poll(cx)
    }
}
