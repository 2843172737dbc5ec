//! Waiting for each other within one executor: notify, semaphore, mutex, one-shot and queue.
//!
//! Nothing here crosses threads or processes. Waiters are served in the order in which they came.

use futures_util::future::JoinAll;
use pin_project_lite::pin_project;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Wakers in the order of their arrival, each under a key by which it can leave.
#[derive(Default)]
struct Waiters {
    next: u64,
    /// Keys only rise, so they are in order.
    wakers: Vec<(u64, Waker)>,
}

impl Waiters {
    fn wait(&mut self, key: Option<u64>, waker: &Waker) -> u64 {
        if let Some(key) = key {
            match self.place_of(key) {
                Ok(at) if self.wakers[at].1.will_wake(waker) => {}
                Ok(at) => self.wakers[at].1 = waker.clone(),
                Err(at) => self.wakers.insert(at, (key, waker.clone())),
            }
            return key;
        }
        self.next += 1;
        self.wakers.push((self.next, waker.clone()));
        self.next
    }

    fn leave(&mut self, key: u64) -> Option<Waker> {
        self.place_of(key).ok().map(|at| self.wakers.remove(at).1)
    }

    fn place_of(&self, key: u64) -> Result<usize, usize> {
        self.wakers.binary_search_by_key(&key, |(key, _)| *key)
    }
}

/// Wakes tasks that wait for something to have happened. Remembers nothing: check the condition first,
/// then wait, with no await between.
#[derive(Default)]
pub struct Notify {
    /// Rises with each `notify_all`; a waiter is done when it has risen since it began.
    round: Cell<u64>,
    waiters: RefCell<Waiters>,
}

impl Notify {
    /// Wakes everyone who waits now.
    pub fn notify_all(&self) {
        self.round.set(self.round.get() + 1);
        let mut wakers = std::mem::take(&mut self.waiters.borrow_mut().wakers);
        for (_, waker) in wakers.drain(..) {
            waker.wake();
        }
        // The room is kept for those who wait next.
        let mut waiters = self.waiters.borrow_mut();
        if waiters.wakers.is_empty() {
            waiters.wakers = wakers;
        }
    }

    /// Completes at the next [`Notify::notify_all`] after this call (not after the first poll).
    pub fn notified(&self) -> Notified<'_> {
        Notified { notify: self, round: self.round.get(), key: None }
    }
}

/// See [`Notify::notified`].
pub struct Notified<'a> {
    notify: &'a Notify,
    round: u64,
    key: Option<u64>,
}

impl Future for Notified<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.notify.round.get() != self.round {
            return Poll::Ready(());
        }
        let key = self.notify.waiters.borrow_mut().wait(self.key, cx.waker());
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = self.notify.waiters.borrow_mut().leave(key);
            drop(waker);
        }
    }
}

struct SemaphoreState {
    free: u64,
    /// Waiters in order: what each wants, and its waker once it has been polled.
    queue: BTreeMap<u64, (u64, Waker)>,
    next: u64,
    closed: bool,
}

/// A number of permits, handed out in the order in which they were asked for.
#[derive(Clone)]
pub struct Semaphore(Rc<RefCell<SemaphoreState>>);

/// Permits held; returned when dropped.
pub struct Permit {
    semaphore: Semaphore,
    count: u64,
}

impl Semaphore {
    /// A semaphore with this many permits.
    pub fn new(permits: u64) -> Self {
        Semaphore(Rc::new(RefCell::new(SemaphoreState {
            free: permits,
            queue: BTreeMap::new(),
            next: 0,
            closed: false,
        })))
    }

    /// Waits for `count` permits. Never completes if `count` is more than the semaphore has; `None` once it
    /// is closed.
    pub async fn acquire(&self, count: u64) -> Option<Permit> {
        Acquire { semaphore: self, count, key: None }.await
    }

    /// Takes `count` permits if they are free and nobody waits.
    pub fn try_acquire(&self, count: u64) -> Option<Permit> {
        let mut s = self.0.borrow_mut();
        if s.closed || !s.queue.is_empty() || s.free < count {
            return None;
        }
        s.free -= count;
        drop(s);
        Some(Permit { semaphore: self.clone(), count })
    }

    /// Permits that nobody holds.
    pub fn free(&self) -> u64 {
        self.0.borrow().free
    }

    /// Ends every wait, now and later, with `None`.
    pub fn close(&self) {
        let queue = {
            let mut s = self.0.borrow_mut();
            s.closed = true;
            std::mem::take(&mut s.queue)
        };
        for (_, waker) in queue.into_values() {
            waker.wake();
        }
    }

    fn release(&self, count: u64) {
        let mut s = self.0.borrow_mut();
        s.free += count;
        Self::wake_first(&mut s);
    }

    fn wake_first(s: &mut SemaphoreState) {
        if let Some((_, (want, waker))) = s.queue.first_key_value()
            && s.free >= *want
        {
            waker.wake_by_ref();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.semaphore.release(self.count);
    }
}

struct Acquire<'a> {
    semaphore: &'a Semaphore,
    count: u64,
    key: Option<u64>,
}

impl Future for Acquire<'_> {
    type Output = Option<Permit>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Permit>> {
        let mut s = self.semaphore.0.borrow_mut();
        if s.closed {
            return Poll::Ready(None);
        }
        let first = s.queue.first_key_value().map(|(key, _)| *key);
        if s.free >= self.count && (first.is_none() || first == self.key) {
            s.free -= self.count;
            if let Some(key) = self.key {
                s.queue.remove(&key);
            }
            Semaphore::wake_first(&mut s);
            drop(s);
            self.key = None;
            return Poll::Ready(Some(Permit { semaphore: self.semaphore.clone(), count: self.count }));
        }
        let key = self.key.unwrap_or_else(|| {
            s.next += 1;
            s.next
        });
        s.queue.insert(key, (self.count, cx.waker().clone()));
        drop(s);
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let mut s = self.semaphore.0.borrow_mut();
            s.queue.remove(&key);
            Semaphore::wake_first(&mut s);
        }
    }
}

/// Mutual exclusion across awaits, first come, first served.
pub struct Mutex<T> {
    turn: Semaphore,
    value: RefCell<T>,
}

/// The right to use the value; given back when dropped.
pub struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    _turn: Permit,
}

impl<T> Mutex<T> {
    /// A mutex around a value.
    pub fn new(value: T) -> Self {
        Mutex { turn: Semaphore::new(1), value: RefCell::new(value) }
    }

    /// Waits for the turn.
    pub async fn lock(&self) -> MutexGuard<'_, T> {
        let turn = self.turn.acquire(1).await.expect("a mutex is never closed");
        MutexGuard { mutex: self, _turn: turn }
    }
}

impl<T> MutexGuard<'_, T> {
    /// The value; do not hold the borrow across an await.
    pub fn get(&self) -> RefMut<'_, T> {
        self.mutex.value.borrow_mut()
    }
}

struct OneshotState<T> {
    value: Option<T>,
    waiting: Option<Waker>,
    sender_gone: bool,
}

/// The sending half of a one-shot.
pub struct OneshotSender<T>(Rc<RefCell<OneshotState<T>>>);

/// The receiving half of a one-shot: a future of the value, or of `None` if the sender was dropped.
pub struct OneshotReceiver<T>(Rc<RefCell<OneshotState<T>>>);

/// One value, handed over once.
pub fn oneshot<T>() -> (OneshotSender<T>, OneshotReceiver<T>) {
    let state = Rc::new(RefCell::new(OneshotState { value: None, waiting: None, sender_gone: false }));
    (OneshotSender(state.clone()), OneshotReceiver(state))
}

impl<T> OneshotSender<T> {
    /// Hands the value over.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
    }
}

impl<T> Drop for OneshotSender<T> {
    fn drop(&mut self) {
        let waiting = {
            let mut s = self.0.borrow_mut();
            s.sender_gone = true;
            s.waiting.take()
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

impl<T> Future for OneshotReceiver<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut s = self.0.borrow_mut();
        match s.value.take() {
            Some(value) => Poll::Ready(Some(value)),
            None if s.sender_gone => Poll::Ready(None),
            None => {
                s.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

struct QueueState<T> {
    items: VecDeque<T>,
    waiting: Option<Waker>,
    senders: usize,
    receiver_gone: bool,
}

/// The sending half of a queue.
pub struct Sender<T>(Rc<RefCell<QueueState<T>>>);

/// The receiving half of a queue.
pub struct Receiver<T>(Rc<RefCell<QueueState<T>>>);

/// A queue from many senders to one receiver. It has no bound of its own: what is put in must be bounded by
/// credits or permits.
pub fn queue<T>() -> (Sender<T>, Receiver<T>) {
    let state = Rc::new(RefCell::new(QueueState {
        items: VecDeque::new(),
        waiting: None,
        senders: 1,
        receiver_gone: false,
    }));
    (Sender(state.clone()), Receiver(state))
}

impl<T> Sender<T> {
    /// Puts an item in; gives it back if nobody will ever receive it.
    ///
    /// # Errors
    /// The item, if the receiver is gone.
    pub fn send(&self, item: T) -> Result<(), T> {
        let waiting = {
            let mut q = self.0.borrow_mut();
            if q.receiver_gone {
                return Err(item);
            }
            q.items.push_back(item);
            q.waiting.take()
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.borrow_mut().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waiting = {
            let mut q = self.0.borrow_mut();
            q.senders -= 1;
            if q.senders == 0 { q.waiting.take() } else { None }
        };
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The next item, or `None` once all senders are gone and the queue is empty.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| {
            let mut q = self.0.borrow_mut();
            match q.items.pop_front() {
                Some(item) => Poll::Ready(Some(item)),
                None if q.senders == 0 => Poll::Ready(None),
                None => {
                    q.waiting = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// The next item, if there is one now.
    pub fn try_recv(&mut self) -> Option<T> {
        self.0.borrow_mut().items.pop_front()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let items = {
            let mut q = self.0.borrow_mut();
            q.receiver_gone = true;
            std::mem::take(&mut q.items)
        };
        drop(items);
    }
}

/// Runs all futures at once; their outputs in the given order.
pub fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> JoinAll<F> {
    futures_util::future::join_all(futures)
}

/// Which of two futures was done first.
pub enum Either<A, B> {
    /// The first.
    Left(A),
    /// The second.
    Right(B),
}

pin_project! {
    /// See [`race`].
    #[must_use = "futures do nothing unless polled"]
    pub struct Race<A, B> {
        #[pin]
        a: A,
        #[pin]
        b: B,
    }
}

/// Runs two futures until one is done; the other is dropped with this. The first wins a tie.
// Not an `async fn`, which would keep room for both futures twice: as they came, and where they are polled.
pub fn race<A: Future, B: Future>(a: A, b: B) -> Race<A, B> {
    Race { a, b }
}

impl<A: Future, B: Future> Future for Race<A, B> {
    type Output = Either<A::Output, B::Output>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(out) = this.a.poll(cx) {
            return Poll::Ready(Either::Left(out));
        }
        this.b.poll(cx).map(Either::Right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Sim;
    use crate::{sleep, spawn, timeout};
    use std::time::Duration;

    #[test]
    fn permits_are_served_in_order_and_survive_a_waiter_that_leaves() {
        Sim::new(1).block_on(async {
            let s = Semaphore::new(2);
            let held = s.acquire(2).await.unwrap();
            let impatient = s.clone();
            let gone =
                spawn(async move { timeout(Duration::from_millis(1), impatient.acquire(2)).await.is_err() });
            let patient = s.clone();
            let served = spawn(async move {
                sleep(Duration::from_micros(1)).await;
                patient.acquire(1).await.is_some()
            });
            assert_eq!(gone.await, Ok(true));
            drop(held);
            assert_eq!(served.await, Ok(true));
            assert_eq!(s.free(), 2);
            s.close();
            assert!(s.acquire(1).await.is_none());
        });
    }

    #[test]
    fn a_queue_ends_when_its_senders_are_gone() {
        Sim::new(2).block_on(async {
            let (tx, mut rx) = queue();
            let second = tx.clone();
            spawn(async move {
                second.send(1).unwrap();
                sleep(Duration::from_secs(1)).await;
                tx.send(2).unwrap();
            });
            assert_eq!((rx.recv().await, rx.recv().await, rx.recv().await), (Some(1), Some(2), None));
        });
    }

    #[test]
    fn a_one_shot_tells_when_its_sender_is_dropped() {
        Sim::new(3).block_on(async {
            let (tx, rx) = oneshot::<u8>();
            drop(tx);
            assert_eq!(rx.await, None);
        });
    }
}
